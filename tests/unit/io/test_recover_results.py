"""The results of a commit counted again from the rows of small real tables."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaProtocolError
from pyarrow import parquet

from etl.decide.loaded_intervals import interval_of
from etl.errors import TableUnreachable
from etl.io.delta.recover_results import Recount, recount, recount_commit
from etl.model.partitions import TopicPartition
from etl.model.plans import NOT_COUNTED, OffsetRange, Plan, PlanKind, RangeResult
from etl.run.loaded_rows import _with_rows_written
from tests.builders import plain_plan, plain_settings

CLICKS, VIEWS = TopicPartition("clicks", 0), TopicPartition("views", 1)
RANGES = (OffsetRange(CLICKS, 0, 6), OffsetRange(VIEWS, 10, 12), OffsetRange(CLICKS, 6, 8))
ROWS = [("clicks", 0, offset) for offset in (0, 1, 4, 5, 6, 7)] + [
    ("views", 1, 10),
    ("views", 1, 11),
]
RECEIPTS = (
    RangeResult(rows=4, missing_offsets=2, gaps=((2, 4),)),
    RangeResult(rows=2),
    RangeResult(rows=2),
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a table")


def rows_of(rows: Sequence[tuple[Any, Any, Any]], **columns: Any) -> pyarrow.Table:
    topics, partitions, offsets = zip(*rows, strict=True)
    given = {
        "topic": pyarrow.array(topics, pyarrow.string()),
        "partition": pyarrow.array(partitions, pyarrow.int32()),
        "offset": pyarrow.array(offsets, pyarrow.int64()),
    }
    return pyarrow.table({**given, **columns})


def without_its_files(path: str) -> None:
    """What OPTIMIZE and VACUUM do to the files of a commit."""
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def mapped_table(
    path: str,
    *,
    mode: str = "name",
    partition_by: Sequence[str] = ("topic",),
    features: Sequence[str] = (),
) -> None:
    """A table with other column names in its files and in its log; the rows are `ROWS`."""
    kinds = {"topic": "string", "partition": "integer", "offset": "long"}
    physical = {name: f"col-{number}" for number, name in enumerate(kinds, 1)}
    mapping, fields = "delta.columnMapping", []
    for number, (name, kind) in enumerate(kinds.items(), 1):
        metadata = {f"{mapping}.id": number, f"{mapping}.physicalName": physical[name]}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": metadata})
    protocol: dict[str, Any] = {"minReaderVersion": 2, "minWriterVersion": 5}
    if features:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": [*features], "writerFeatures": [*features]}
    table = {
        "id": "table-1",
        "format": {"provider": "parquet", "options": {}},
        "partitionColumns": [*partition_by],
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "createdTime": 0,
        "configuration": {f"{mapping}.mode": mode, f"{mapping}.maxColumnId": "3"},
    }
    actions: list[dict[str, Any]] = [{"protocol": protocol}, {"metaData": table}]
    os.makedirs(f"{path}/_delta_log")
    for topic in ("clicks", "views"):
        rows = rows_of([row for row in ROWS if row[0] == topic])
        kept = rows.select([name for name in kinds if name not in partition_by])
        file = f"{path}/{topic}.parquet"
        parquet.write_table(
            kept.rename_columns([physical[name] for name in kept.schema.names]), file
        )
        added = {"path": f"{topic}.parquet", "size": os.path.getsize(file), "modificationTime": 0}
        values = {physical[name]: str(rows[name][0]) for name in partition_by}
        actions.append({"add": {**added, "partitionValues": values, "dataChange": True}})
    log = Path(path, "_delta_log", f"{0:020}.json")
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("partition_by", [["topic"], ["topic", "partition"], None])
def test_the_commits_own_files_are_counted_or_where_they_are_gone_those_of_today(
    path: str, partition_by: list[str] | None
) -> None:
    write_deltalake(path, rows_of([*ROWS, *ROWS]), partition_by=partition_by)
    write_deltalake(path, rows_of([("clicks", 0, 2), ("other", 3, 1)]), mode="append")
    assert recount(path, 0, RANGES) == Recount(RECEIPTS), "an offset that is there twice is one"
    write_deltalake(path, rows_of(ROWS[:5]), mode="overwrite")
    others = [("clicks", 0, 99), ("a strange topic", 0, 2)]
    write_deltalake(path, rows_of([*ROWS[5:], *others]), mode="append")
    without_its_files(path)
    assert recount_commit(path, 0, RANGES) is None
    assert recount(path, 0, RANGES) == recount(path, None, RANGES) == Recount(RECEIPTS)


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("partition_by", [["topic"], ["topic", "partition"], []])
@pytest.mark.parametrize("version", [0, None])
def test_columns_are_found_by_their_physical_names_in_files_and_partition_values(
    path: str, mode: str, partition_by: list[str], version: int | None
) -> None:
    mapped_table(path, mode=mode, partition_by=partition_by)
    assert recount(path, version, RANGES) == Recount(RECEIPTS)


def test_features_that_no_reader_of_arrow_has_are_not_in_the_way_of_todays_files(path: str) -> None:
    mapped_table(path, features=["columnMapping", "deletionVectors"])
    with pytest.raises(DeltaProtocolError):
        DeltaTable(path).to_pyarrow_dataset()
    assert recount(path, None, RANGES) == Recount(RECEIPTS)


def test_a_column_that_was_renamed_since_is_found_under_the_name_it_had(path: str) -> None:
    mapped_table(path)
    first = Path(path, "_delta_log", f"{0:020}.json")
    metadata = json.loads(first.read_text().splitlines()[1])
    metadata["metaData"]["schemaString"] = metadata["metaData"]["schemaString"].replace(
        '"offset"', '"renamed"'
    )
    Path(path, "_delta_log", f"{1:020}.json").write_text(json.dumps(metadata))
    assert recount(path, 0, RANGES) == Recount(RECEIPTS)
    assert recount(path, None, RANGES) == Recount(
        (NOT_COUNTED,) * 3, "the table has no column offset"
    )


def test_rows_of_no_log_of_another_log_and_of_another_life_of_ours_are_passed_over(
    path: str,
) -> None:
    strange = [
        (None, 0, 2),
        ("clicks", None, 2),
        ("clicks", 0, None),
        ("clicks", -1, 2),
        ("clicks", 0, -2),
        ("clicks", 0, 2**63 - 1),
    ]
    lives = pyarrow.array([None, 0] * 4 + [0] * len(strange) + [1], pyarrow.int32())
    write_deltalake(path, rows_of([*ROWS, *strange, ("clicks", 0, 3)], incarnation=lives))
    assert recount(path, 0, RANGES) == Recount(RECEIPTS)
    [second] = recount(path, 0, RANGES[:1], {CLICKS: 1}).results
    assert (second.rows, second.gaps) == (1, ((0, 3), (4, 6)))


def test_behind_a_transform_of_data_frames_the_files_count_the_rows_of_a_plan(path: str) -> None:
    write_deltalake(path, rows_of(ROWS))
    plan = plain_plan(1, ranges=RANGES)
    replayed = replace(plan, kind=PlanKind.REPLAY)
    conf = plain_settings(table={"path": path}, transform="shaping:rows")

    def with_rows(results: tuple[RangeResult, ...], of: Plan = plan) -> Any:
        return _with_rows_written(results, of, 0, conf)

    assert with_rows(RECEIPTS) == (RECEIPTS, None)
    read = (RangeResult(rows=6, fetched_bytes=9), *RECEIPTS[1:])
    found, written = with_rows(read)
    assert ([r.rows for r in found], [r.records for r in found]) == ([None] * 3, [6, 2, 2])
    assert written == 8, "of which range a record has no row is unknown"
    found, written = with_rows(read, replayed)
    assert ([r.rows for r in found], written) == ([None] * 3, 8), "of a replay, too"


def test_range_results_record_that_a_transform_made_the_counted_rows(path: str) -> None:
    write_deltalake(path, rows_of(ROWS))
    results = recount(path, 0, RANGES, behind_transform=True).results
    assert [(r.behind_transform, r.is_doubtful) for r in results] == [
        (True, True),
        (True, False),
        (True, False),
    ]


def test_a_result_keeps_as_many_gaps_as_it_may(path: str) -> None:
    write_deltalake(path, rows_of([("clicks", 0, offset) for offset in (1, 3, 5)]))
    [result] = recount(path, 0, RANGES[:1], gaps_max=1).results
    assert (result.rows, result.missing_offsets) == (3, 3)
    assert (result.gaps, result.gaps_complete) == (((0, 1),), False)


ONE, TWO = TopicPartition("clicks", 0, 1), TopicPartition("clicks", 0, 2)
OF_BYTES = (OffsetRange(ONE, 0, 120), OffsetRange(ONE, 120, 200), OffsetRange(TWO, 0, 300))
MESSAGES = [
    (1, 0, 0),
    (1, 20, 0),
    (1, 20, 1),
    (1, 20, 2),
    (1, 119, 0),
    (1, 120, 0),
    (2, 0, 0),
    (2, 20, 0),
]
"""Broker, entry and index."""


def messages_of(messages: Sequence[tuple[Any, Any, Any]], **columns: Any) -> pyarrow.Table:
    brokers, offsets, indices = zip(*messages, strict=True)
    return rows_of(
        [("clicks", 0, offset) for offset in offsets],
        broker_id=pyarrow.array(brokers, pyarrow.int32()),
        message_index=pyarrow.array(indices, pyarrow.int32()),
        **columns,
    )


@pytest.mark.parametrize("partition_by", [None, ["topic", "broker_id"], ["message_index"]])
@pytest.mark.parametrize("version", [0, None])
def test_messages_of_physical_logs_are_counted_by_their_entries_and_brokers(
    path: str, partition_by: list[str] | None, version: int | None
) -> None:
    write_deltalake(path, messages_of(MESSAGES), partition_by=partition_by)
    found = recount(path, version, OF_BYTES)
    assert found.uncounted is None
    assert found.results == tuple(RangeResult(rows=rows, gaps_complete=False) for rows in (5, 1, 2))
    assert not any(result.is_doubtful for result in found.results)


def test_a_message_that_is_there_twice_is_one_and_one_of_another_life_or_of_no_entry_is_none(
    path: str,
) -> None:
    lives = pyarrow.array([0] * 2 * len(MESSAGES) + [1, 0, 0, 0], pyarrow.int32())
    write_deltalake(
        path,
        messages_of(
            [*MESSAGES, *MESSAGES, (1, 40, 0), (None, 60, 0), (1, 60, None), (3, 60, 0)],
            incarnation=lives,
        ),
    )
    assert [result.rows for result in recount(path, 0, OF_BYTES).results] == [5, 1, 2]
    assert [result.rows for result in recount(path, 0, OF_BYTES, {ONE: 1}).results] == [1, 0, 2]


def test_whether_a_transform_dropped_messages_of_physical_logs_is_doubtful_whatever_is_there(
    path: str,
) -> None:
    write_deltalake(path, messages_of(MESSAGES))
    results = recount(path, 0, OF_BYTES, behind_transform=True).results
    assert all(result.is_doubtful and result.missing_offsets == 0 for result in results)
    assert [
        interval_of(r, result).unproven for r, result in zip(OF_BYTES, results, strict=True)
    ] == [120, 80, 300]


def test_a_table_without_what_names_a_message_cannot_be_counted(path: str) -> None:
    write_deltalake(path, rows_of(ROWS))
    assert recount(path, 0, OF_BYTES) == Recount(
        (NOT_COUNTED,) * 3, "the table has no column broker_id"
    )


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("partition", None, "the table has no column partition"),
        ("offset", None, "the table has no column offset"),
        ("partition", [str(row[1]) for row in ROWS], "the column partition is string"),
        ("offset", [float(row[2]) for row in ROWS], "the column offset is double"),
        ("topic", [7] * len(ROWS), "the column topic is int64"),
    ],
)
def test_columns_that_a_transform_changed_leave_results_without_counts(
    path: str, column: str, values: list[Any] | None, why: str
) -> None:
    table = rows_of(ROWS).drop_columns([column])
    write_deltalake(path, table.append_column(column, [values]) if values else table)
    assert recount(path, 0, RANGES, behind_transform=True) == Recount((NOT_COUNTED,) * 3, why)


def test_a_file_that_the_log_names_and_that_is_lost_cannot_be_counted(path: str) -> None:
    write_deltalake(path, rows_of(ROWS))
    [file] = Path(path).glob("*.parquet")
    file.unlink()
    found = recount(path, 0, RANGES)
    assert found == Recount((NOT_COUNTED,) * 3, f"the file {file.name} is gone")


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-9],
        lambda whole: whole[:8] + b"\xff" * 60 + whole[68:],
        lambda whole: b"",
    ],
    ids=["cut off", "overwritten", "emptied"],
)
def test_a_damaged_file_cannot_be_counted(path: str, damage: Any) -> None:
    write_deltalake(path, rows_of(ROWS))
    [file] = Path(path).glob("*.parquet")
    file.write_bytes(damage(file.read_bytes()))
    found = recount(path, 0, RANGES)
    assert found.results == (NOT_COUNTED,) * 3
    assert f"the file {file.name} is damaged" in (found.uncounted or "")


def test_a_file_or_a_table_that_cannot_be_opened_now_is_tried_again_by_the_next_run(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TableUnreachable, match="gone"):
        recount(path, None, RANGES)
    write_deltalake(path, rows_of(ROWS))

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("the disk does not answer")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", refuse)
    monkeypatch.setattr("etl.io.delta.recover_results._can_be_read", lambda folder, one: False)
    with pytest.raises(TableUnreachable, match="the disk does not answer"):
        recount(path, 0, RANGES)
