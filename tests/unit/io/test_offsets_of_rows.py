"""Which rows of a topic a table has: by statistics of the log, else by its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import NeedsDecision
from etl.io.delta.offsets_of_rows import LOG as LOG_COLUMNS
from etl.io.delta.offsets_of_rows import Runs, held_rows, unaccounted_rows
from etl.model.partitions import TopicPartition
from etl.model.plans import HeldRows

LOG = TopicPartition("clicks", 0)


def rows(*of: tuple[str | None, int | None, int | None], **more: Sequence[Any]) -> pyarrow.Table:
    topics, partitions, offsets = zip(*of, strict=True)
    columns = {
        "topic": pyarrow.array(topics, pyarrow.string()),
        "partition": pyarrow.array(partitions, pyarrow.int32()),
        "offset": pyarrow.array(offsets, pyarrow.int64()),
    }
    return pyarrow.table({"value": [b"v"] * len(of), **columns, **more})


def written(path: Path, table: pyarrow.Table, **options: Any) -> None:
    write_deltalake(str(path), table, mode="append", **options)


def of_clicks(path: Path) -> list[HeldRows]:
    found = unaccounted_rows(str(path), {"clicks"}, physical=False)
    assert found is not None
    return list(found)


def unreadable(path: Path) -> None:
    for file in path.rglob("*.parquet"):
        file.write_bytes(b"no parquet")


def without_statistics(path: Path) -> None:
    for partition in path.glob("_delta_log/*.json"):
        lines = [json.loads(line) for line in partition.read_text().splitlines()]
        for line in lines:
            line.get("add", {}).pop("stats", None)
        partition.write_text("\n".join(map(json.dumps, lines)))


def test_files_of_other_topics_or_of_one_partition_are_known_by_statistics_alone(
    tmp_path: Path,
) -> None:
    written(tmp_path, rows(("views", 0, 5), ("views", 1, 6)))
    written(tmp_path, rows(("clicks", 0, 5), ("clicks", 0, 9)))
    written(tmp_path, rows(("clicks", 0, 2)))
    unreadable(tmp_path)
    assert of_clicks(tmp_path) == [HeldRows(LOG, 0, 2, 10, 3)]


def test_files_of_several_partitions_are_read_and_rows_that_name_no_record_are_left_out(
    tmp_path: Path,
) -> None:
    nameless = ((None, 0, 3), ("clicks", None, 4), ("clicks", 0, None))
    written(tmp_path, rows(("clicks", 0, 5), ("clicks", 1, 7), ("views", 0, 1), *nameless))
    written(tmp_path, rows(("clicks", -1, 5), ("a", 0, -5), ("clicks", 0, 6)))
    other = HeldRows(TopicPartition("clicks", 1), 0, 7, 8, 1)
    assert of_clicks(tmp_path) == [HeldRows(LOG, 0, 5, 7, 2), other]


def test_a_table_without_statistics_is_read_and_one_that_is_partitioned_by_topic_need_not_be(
    tmp_path: Path,
) -> None:
    written(tmp_path / "bare", rows(("clicks", 0, 5), ("views", 0, 9)))
    without_statistics(tmp_path / "bare")
    assert of_clicks(tmp_path / "bare") == [HeldRows(LOG, 0, 5, 6, 1)]
    written(tmp_path / "parts", rows(("clicks", 0, 5), ("views", 0, 9)), partition_by=["topic"])
    unreadable(tmp_path / "parts")
    assert of_clicks(tmp_path / "parts") == [HeldRows(LOG, 0, 5, 6, 1)]


def test_incarnations_of_a_log_are_distinguished_and_null_is_the_first_one(tmp_path: Path) -> None:
    written(tmp_path, rows(("clicks", 0, 5), ("clicks", 0, 6)))
    lives = pyarrow.array([None, 0, 2], pyarrow.int32())
    written(
        tmp_path,
        rows(("clicks", 0, 7), ("clicks", 0, 8), ("clicks", 0, 1), incarnation=lives),
        schema_mode="merge",
    )
    assert of_clicks(tmp_path) == [HeldRows(LOG, 0, 5, 9, 4), HeldRows(LOG, 2, 1, 2, 1)]


def test_a_table_without_the_columns_that_name_records_or_with_others_of_their_names_holds_none(
    tmp_path: Path,
) -> None:
    written(tmp_path / "none", pyarrow.table({"topic": ["clicks"], "value": [1]}))
    written(
        tmp_path / "types", pyarrow.table({"topic": ["clicks"], "partition": ["0"], "offset": [1]})
    )
    assert of_clicks(tmp_path / "none") == of_clicks(tmp_path / "types") == []


def test_rows_of_our_pipelines_are_theirs_and_an_empty_or_missing_table_is_not_scanned(
    tmp_path: Path,
) -> None:
    path = tmp_path / "table"
    assert unaccounted_rows(str(path), {"clicks"}, physical=False) is None
    DeltaTable.create(str(path), schema=rows(("a", 0, 1)).schema)
    assert unaccounted_rows(str(path), {"clicks"}, physical=False) is None
    by_another = CommitProperties(
        app_transactions=[Transaction("offset-range-etl/cluster/group/other", 1)]
    )
    written(path, rows(("clicks", 0, 1)), commit_properties=by_another)
    assert unaccounted_rows(str(path), {"clicks"}, physical=False) is None, (
        "it is not known which topics that one loaded"
    )


def test_a_file_that_is_damaged_leaves_it_open_which_topics_it_has_and_that_is_no_reason_to_load(
    tmp_path: Path,
) -> None:
    written(tmp_path, rows(("clicks", 0, 5), ("views", 0, 9)))
    unreadable(tmp_path)
    with pytest.raises(NeedsDecision, match="their topics are unknown"):
        of_clicks(tmp_path)


def test_rows_of_all_topics_are_found_in_one_look_and_of_no_topic_none(tmp_path: Path) -> None:
    written(tmp_path, rows(("clicks", 0, 5), ("views", 3, 9)))
    table = DeltaTable(str(tmp_path))
    found = held_rows(table, str(tmp_path), {"clicks", "views", "absent"}, physical=False)
    assert [one.partition for one in found] == [LOG, TopicPartition("views", 3)]
    assert held_rows(table, str(tmp_path), (), physical=False) == ()


Key = tuple[str | None, int | None, int | None, int | None, int | None, int | None]
"""Topic, broker, partition, life, entry and index."""
NAMES = (*LOG_COLUMNS, "offset", "message_index")
CLICKS, VIEWS = ("clicks", 1, 0, 0), ("views", 1, 0, 0)
NOWHERE: Key = (None, None, None, None, None, None)


def batch_of(keys: Sequence[Key]) -> pyarrow.RecordBatch:
    columns = {}
    for i, name in enumerate(NAMES):
        kind = pyarrow.string() if name == "topic" else pyarrow.int64()
        columns[name] = pyarrow.array([key[i] for key in keys], kind)
    return pyarrow.record_batch(columns)


def runs_of(*batches: Sequence[Key]) -> list[tuple[object, ...]]:
    runs = Runs({CLICKS: numpy.array([0, 100, 200], numpy.int64)})
    found = []
    for table in runs(map(batch_of, batches)):
        found += [tuple(row.values()) for row in table.to_pylist()]
    return found


def test_a_sequence_continues_with_the_next_message_of_its_entry_or_the_first_of_a_later_one() -> (
    None
):
    keys: list[Key] = [
        (*CLICKS, *message) for message in ((0, 0), (0, 1), (40, 0), (80, 0), (80, 1), (80, 2))
    ]
    assert runs_of(keys) == [(*CLICKS, 1, 0, 0, 80, 2, 6)]


def test_a_run_ends_at_an_edge_at_another_log_and_at_rows_of_no_log() -> None:
    keys: list[Key] = [
        (*CLICKS, 90, 0),
        (*CLICKS, 100, 0),
        (*VIEWS, 100, 1),
        (*VIEWS, 300, 0),
        NOWHERE,
        NOWHERE,
        (*CLICKS, 200, 0),
    ]
    assert runs_of(keys) == [
        (*CLICKS, 1, 90, 0, 90, 0, 1),
        (*CLICKS, 2, 100, 0, 100, 0, 1),
        (*VIEWS, 0, 100, 1, 300, 0, 2),
        (None, None, None, None, 0, -1, -1, -1, -1, 2),
        (*CLICKS, 3, 200, 0, 200, 0, 1),
    ]


def test_batches_of_nothing_have_no_runs() -> None:
    assert runs_of([], [(*CLICKS, 0, 0)], []) == [(*CLICKS, 1, 0, 0, 0, 0, 1)]


MESSAGES = st.lists(
    st.tuples(st.integers(0, 4).map(lambda at: at * 40), st.integers(0, 2)), min_size=1, max_size=12
)


@given(MESSAGES, st.integers(0, 12))
def test_no_sequence_has_a_double_or_a_gap_however_rows_are_divided_into_batches(
    messages: list[tuple[int, int]], cut: int
) -> None:
    keys: list[Key] = [(*CLICKS, *message) for message in messages]
    found, at = runs_of(keys[:cut], keys[cut:]), 0
    for run in found:
        rows = int(str(run[-1]))
        mine = messages[at : at + rows]
        assert (mine[0], mine[-1]) == (run[5:7], run[7:9])
        for before, after in zip(mine, mine[1:]):
            assert after == (before[0], before[1] + 1) or (after[0] > before[0] and after[1] == 0)
        at += rows
    assert at == len(messages)
