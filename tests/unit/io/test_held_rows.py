"""Which rows of a topic a table has: by statistics in its log if possible, else by its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from etl.errors import NeedsDecision
from etl.io.delta.offsets_of_rows import held_rows, unaccounted_rows
from etl.model.partitions import TopicPartition
from etl.model.plans import HeldRows

LOG = TopicPartition("clicks", 0)


def rows(*of: tuple[str | None, int | None, int | None], **more: Sequence[Any]) -> pyarrow.Table:
    """(topic, partition, offset)."""
    kinds = (pyarrow.string(), pyarrow.int32(), pyarrow.int64())
    names = ("topic", "partition", "offset")
    columns = {
        name: pyarrow.array(values, kind)
        for name, values, kind in zip(names, zip(*of, strict=True), kinds, strict=True)
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
