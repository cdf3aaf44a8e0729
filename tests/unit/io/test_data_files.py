"""The data files that tasks write: content, statistics for the log, and paths."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from etl.decide import table_storage
from etl.errors import SettingsError
from etl.io.delta.data_files import DataFiles, as_dictionary
from etl.model.columns import arrow_schema
from etl.model.plans import Codec, DataFile, FileOptions

MICROS = 1_700_000_000_123_456
"""2023-11-14T22:13:20.123456Z"""
BOUNDS = ("minValues", "maxValues")


def rows(
    offsets: Sequence[int], timestamps: Sequence[int | None] | None = None, **columns: Any
) -> pa.RecordBatch:
    zeros = [0] * len(offsets)
    values: dict[str, Any] = {
        "key": [None] * len(offsets),
        "value": [b"v%d" % offset for offset in offsets],
        "topic": ["clicks"] * len(offsets),
        "partition": zeros,
        "offset": list(offsets),
        "timestamp": timestamps or [MICROS] * len(offsets),
        "timestampType": zeros,
        "headers": [None] * len(offsets),
        "incarnation": zeros,
        **columns,
    }
    arrays = [pa.array(values[field.name], field.type) for field in arrow_schema()]
    return pa.record_batch(arrays, schema=arrow_schema())


def wanted(tmp_path: Path, partition_by: tuple[str, ...] = (), **more: Any) -> FileOptions:
    columns = (*arrow_schema().names, *(("event_date",) if "event_date" in partition_by else ()))
    return FileOptions(str(tmp_path), columns, partition_by, **more)


def written(options: FileOptions, *batches: pa.RecordBatch) -> tuple[DataFile, ...]:
    files = DataFiles(options)
    for batch in batches:
        files.take(batch)
    return files.end()


def read(options: FileOptions, file: DataFile) -> pa.Table:
    return parquet.read_table(Path(options.root, file.path), partitioning=None)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_file_has_the_very_rows_that_were_given(tmp_path: Path, codec: Codec) -> None:
    request = wanted(tmp_path, codec=codec)
    headers = [None, [{"key": "a", "value": b"1"}, {"key": "a", "value": None}], []]
    given = rows([5, 6, 7], headers=headers, key=[b"k", None, b""])
    [file] = written(request, given)
    assert read(request, file) == pa.Table.from_batches([given])
    assert (file.rows, file.partition_values) == (3, {})
    assert file.size == Path(tmp_path, file.path).stat().st_size


def test_columns_of_wider_types_come_as_the_tables_own(tmp_path: Path) -> None:
    """Readers use the log's types for the bytes of a file."""
    given = rows([5, 6], key=[b"k", None], headers=[None, []])
    wide = {
        "partition": pa.int64(),
        "timestampType": pa.int64(),
        "incarnation": pa.int64(),
        "timestamp": pa.timestamp("ns", tz="UTC"),
        "topic": pa.large_string(),
        "value": pa.large_binary(),
    }
    batch = given.cast(
        pa.schema([field.with_type(wide.get(field.name, field.type)) for field in given.schema])
    )
    [file] = written(wanted(tmp_path), batch)
    found = parquet.read_table(Path(tmp_path, file.path), partitioning=None)
    assert found == pa.Table.from_batches([given]) and found.schema.equals(arrow_schema())


@pytest.mark.parametrize("size", [1, 100, 5_000])
def test_a_page_has_about_the_requested_size_whatever_the_size_of_rows(
    tmp_path: Path, size: int
) -> None:
    """A reader holds a page at a time."""
    many = 3 * table_storage.PAGE_BYTES // size
    assert 1 <= table_storage.rows_at_a_time(many, many * size) * size <= table_storage.PAGE_BYTES
    assert table_storage.rows_at_a_time(1, 10 * table_storage.PAGE_BYTES) == 1


def test_a_column_without_values_is_left_out_of_the_file_and_its_nulls_are_counted(
    tmp_path: Path,
) -> None:
    [file] = written(wanted(tmp_path, row_group_bytes=1), rows([5, 6]), rows([7]))
    there = [name for name in arrow_schema().names if name not in ("key", "headers")]
    assert read(wanted(tmp_path), file).column_names == there
    nulls = dict.fromkeys(arrow_schema().names, 0)
    assert json.loads(file.stats)["nullCount"] == {**nulls, "key": 3, "headers": 3}


FLAGS = st.tuples(st.booleans(), st.booleans(), st.booleans())


@given(
    st.lists(st.lists(FLAGS, min_size=1, max_size=3), min_size=1, max_size=5),
    st.sampled_from([1, 2**20]),
)
def test_whatever_columns_files_lack_their_rows_are_those_that_were_given(
    has: list[list[tuple[bool, bool, bool]]], group: int
) -> None:
    header, batches, first = [{"key": "a", "value": None}], list[pa.RecordBatch](), 0
    for each in has:
        columns: dict[str, Any] = {
            "key": [b"k" if one else None for one, _, _ in each],
            "headers": [header if one else None for _, one, _ in each],
            "partition": [int(one) for _, _, one in each],
        }
        batches.append(rows(range(first, first + len(each)), **columns))
        first += len(each)
    schema = arrow_schema()
    tables = [schema.empty_table()]
    with TemporaryDirectory() as folder:
        request = wanted(Path(folder), ("partition",), row_group_bytes=group)
        files = written(request, *batches)
        for file in files:
            value = pa.scalar(int(file.partition_values["partition"] or 0), pa.int32())
            column = pa.repeat(value, file.rows)
            tables.append(read(request, file).append_column("partition", column))
    found = pa.concat_tables(tables, promote_options="default").select(schema.names)
    assert found.sort_by("offset") == pa.Table.from_batches(batches)
    assert len(files) <= 4


def test_a_text_without_statistics_in_its_row_group_is_bounded_anyway(tmp_path: Path) -> None:
    """Parquet keeps no bounds over 4 KiB; those of other row groups would lose rows."""
    given = rows([1], topic=["z" * 5000]), rows([2], topic=["a"])
    [file] = written(wanted(tmp_path, row_group_bytes=1), *given)
    statistics = json.loads(file.stats)
    bounds = [(statistics[one]["topic"], statistics[one]["offset"]) for one in BOUNDS]
    assert bounds == [("a", 1), ("z" * 32 + "\x7f", 2)]


def test_rows_go_to_a_file_for_each_value_of_the_partitions(tmp_path: Path) -> None:
    request = wanted(tmp_path, ("topic", "event_date"))
    files = written(
        request,
        rows([1, 2, 3], [MICROS, 0, None], topic=["a", "a", "b"]),
        rows([4, 5], [0, 86_400_000_000], topic=["a", "a"]),
    )
    found = {
        tuple(file.partition_values[by] for by in request.partition_by): file for file in files
    }
    offsets = {by: read(request, file)["offset"].to_pylist() for by, file in found.items()}
    assert offsets == {
        ("a", "2023-11-14"): [1],
        ("a", "1970-01-01"): [2, 4],
        ("b", None): [3],
        ("a", "1970-01-02"): [5],
    }
    assert found["a", "1970-01-01"].path.startswith("topic=a/event_date=1970-01-01/part-")
    assert found["b", None].path.startswith("topic=b/event_date=__HIVE_DEFAULT_PARTITION__/part-")
    assert "topic" not in read(request, files[0]).column_names
    assert "topic" not in json.loads(files[0].stats)["nullCount"]
    outside = written(wanted(tmp_path, ("topic",)), rows([1], topic=["a b/../c"]))[0]
    assert "/" not in outside.path and outside.partition_values == {"topic": "a b/../c"}


@pytest.mark.parametrize(
    ("micros", "day"),
    [
        (-1, date(1969, 12, 31)),
        (0, date(1970, 1, 1)),
        (-62_135_596_800_000_000, date(1, 1, 1)),
        (-62_135_596_800_000_001, None),
        (253_402_300_799_999_999, date(9999, 12, 31)),
        (253_402_300_800_000_000, None),
        (2**63 - 1000, None),
        (-(2**63) + 1000, None),
    ],
)
def test_the_event_date_is_the_utc_date_in_the_years_1_to_9999(
    tmp_path: Path, micros: int, day: date | None
) -> None:
    [file] = written(wanted(tmp_path, ("event_date",)), rows([1], [micros]))
    assert file.partition_values == {"event_date": None if day is None else day.isoformat()}


def test_small_batches_share_a_file_and_no_rows_are_no_file(tmp_path: Path) -> None:
    assert written(wanted(tmp_path), rows([])) == () and list(tmp_path.iterdir()) == []
    [file] = written(wanted(tmp_path), *(rows(range(at, at + 100)) for at in range(0, 1000, 100)))
    assert file.rows == 1000
    assert read(wanted(tmp_path), file).column("offset").to_pylist() == list(range(1000))


@pytest.mark.parametrize("file_bytes", [20_000, 60_000])
def test_no_file_exceeds_the_requested_size_by_more_than_a_row_group_and_only_the_last_is_smaller(
    tmp_path: Path, file_bytes: int
) -> None:
    """Of rows that are as large on the disk as in memory, from several partitions of Kafka."""
    request = wanted(tmp_path, file_bytes=file_bytes, codec=Codec.NONE)
    batches = [
        rows(
            range(at, at + 20),
            value=[random.Random(at + n).randbytes(100) for n in range(20)],
            partition=[at % 3] * 20,
        )
        for at in range(0, 2000, 20)
    ]
    *whole, last = written(request, *batches)
    assert len(whole) > 1
    assert all(file_bytes <= file.size <= 2 * file_bytes + batches[0].nbytes for file in whole)
    assert last.size <= 2 * file_bytes + batches[0].nbytes
    assert sum(file.rows for file in (*whole, last)) == 2000


def test_what_a_task_holds_back_is_bounded_over_all_its_files(tmp_path: Path) -> None:
    request = wanted(tmp_path, ("partition",), write_buffer_bytes=3 * rows(range(100)).nbytes)
    files = DataFiles(request)
    for at in range(20):
        files.take(rows(range(at * 100, at * 100 + 100), partition=[at % 4] * 100))
        assert (
            sum(one.write_buffer_bytes for one in files._open.values()) < request.write_buffer_bytes
        )
    assert sorted(file.rows for file in files.end()) == [500] * 4


def test_each_of_many_partition_values_is_one_file_as_long_as_its_rows_fit_into_memory(
    tmp_path: Path,
) -> None:
    request, many = wanted(tmp_path, ("partition",)), 3 * table_storage.OPEN_FILES
    files = DataFiles(request)
    for _ in range(5):
        for at in range(many):
            files.take(rows([at], partition=[at]))
    found = files.end()
    assert [file.rows for file in found] == [5] * many


def test_a_task_has_so_many_files_open_and_no_more(tmp_path: Path) -> None:
    request, many = (
        wanted(tmp_path, ("partition",), row_group_bytes=1),
        table_storage.OPEN_FILES + 5,
    )
    files = DataFiles(request)
    for at in (*range(many), 0):
        files.take(rows([at], partition=[at]))
        assert sum(one.is_begun for one in files._open.values()) <= table_storage.OPEN_FILES
    found = files.end()
    assert len(found) == many + 1 and sum(file.rows for file in found) == many + 1


def test_rows_in_small_batches_are_held_back_by_their_own_size(tmp_path: Path) -> None:
    """An Arrow batch of one row takes a hundred times the size of its data."""
    files = DataFiles(wanted(tmp_path))
    for at in range(1000):
        files.take(rows([at]))
        [one] = files._open.values()
        if at == 7:
            assert one.write_buffer_bytes >= 8 * 16 * 1024, "more than their data alone takes"
    assert one.write_buffer_bytes < 1000 * rows([1]).nbytes + 2**20
    [file] = files.end()
    assert file.rows == 1000


@pytest.mark.parametrize("file_bytes", [1, 2**20], ids=["whole", "begun"])
def test_files_that_no_commit_will_name_are_deleted(tmp_path: Path, file_bytes: int) -> None:
    files = DataFiles(wanted(tmp_path, ("partition",), file_bytes=file_bytes, row_group_bytes=1))
    for at in range(3):
        files.take(rows([at], partition=[at]))
    assert len([*tmp_path.rglob("*.parquet")]) == 3
    files.abandon()
    assert [*tmp_path.rglob("*.parquet")] == []


def test_files_of_physical_logs_lack_the_columns_that_are_null_in_all_their_rows(
    tmp_path: Path,
) -> None:
    schema = arrow_schema(physical=True)
    given = {"value": b"v", "topic": "t", "offset": 7}
    zeros = dict.fromkeys(("partition", "broker_id", "message_index", "incarnation"), 0)
    row = {**given, **zeros}
    batch = pa.record_batch([pa.array([row.get(f.name)], f.type) for f in schema], schema=schema)
    request = FileOptions(str(tmp_path), tuple(schema.names), physical=True)
    [file] = written(request, batch)
    assert set(read(request, file).column_names) == row.keys()
    assert datetime.fromtimestamp(file.modified_at_ms / 1000, UTC).year >= 2024
    by_null = FileOptions(str(tmp_path), tuple(schema.names), ("timestampType",), physical=True)
    [file] = written(by_null, batch)
    assert (file.rows, dict(file.partition_values)) == (1, {"timestampType": None})


@pytest.mark.parametrize(
    "texts",
    [["clicks"] * 5, ["clicks", "clicka"], ["a", "bc"], ["", ""], [None, "a"], ["aa", "aa", "ab"]],
)
@pytest.mark.parametrize("start", [0, 1])
def test_texts_are_the_same_as_a_dictionary(texts: list[str | None], start: int) -> None:
    sliced = pa.array(["before"][:start] + texts, pa.string()).slice(start)
    found = as_dictionary(sliced)
    assert found.to_pylist() == texts
    assert len(found.dictionary) == len({text for text in texts if text is not None})


def by_values(batch: pa.RecordBatch, by: str) -> list[str | None]:
    with TemporaryDirectory() as folder:
        files = DataFiles(
            FileOptions(folder, tuple(batch.schema.names), (by,), schema=batch.schema)
        )
        files.take(batch)
        return [file.partition_values[by] for file in files.end()]


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([True, None, False, True], pa.bool_(), ["true", None, "false"]),
        ([date(1, 1, 1), date(9999, 12, 31)], pa.date32(), ["0001-01-01", "9999-12-31"]),
        (["", None, "a/b=%é", "x" * 252], pa.string(), [None, "a/b=%é", "x" * 252]),
        ([-7, 8], pa.int8(), ["-7", "8"]),
    ],
)
def test_a_partition_has_the_text_that_delta_knows_its_value_by(
    values: list[Any], kind: pa.DataType, texts: list[str | None]
) -> None:
    batch = pa.record_batch({"by": pa.array(values, kind), "n": list(range(len(values)))})
    assert by_values(batch, "by") == texts


@pytest.mark.parametrize(
    "value",
    [
        pa.array([2_932_897], pa.int32()).cast(pa.date32()),
        pa.array(["__HIVE_DEFAULT_PARTITION__"]),
        pa.array(["a\0b"]),
        pa.array(["x" * 253]),
        pa.array(["/" * 85]),
        pa.array(["é" * 127]),
    ],
    ids=["year", "null", "NUL", "long", "long once it is escaped", "long in bytes"],
)
def test_a_value_that_no_partition_can_have_is_refused(value: pa.Array) -> None:
    """Also if our files need no directory: OPTIMIZE creates one."""
    with pytest.raises(SettingsError, match="table.partition_by"):
        by_values(pa.record_batch({"by": value, "n": [1]}), "by")


def test_attempts_of_a_task_never_share_the_name_of_a_file(tmp_path: Path) -> None:
    names = [written(wanted(tmp_path), rows([1]))[0].path for _ in range(3)]
    assert len(set(names)) == 3
