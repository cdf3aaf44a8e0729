"""Statistics in the log for columns of every type: bounds contain each value, and are missing where
readers differ.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from etl.errors import SettingsError
from etl.io.delta.data_files import DataFiles
from etl.io.delta.statistics_to_write import INDEXED_COLUMNS, decimal_bounds
from etl.model.plans import FileOptions

DEEP = pa.struct([("text", pa.string()), ("real", pa.float64())])
INNER = pa.struct([("number", pa.int64()), ("deep", DEEP), ("some", pa.list_(pa.int32()))])
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "dotted": (
        INNER,
        st.fixed_dictionaries(
            {
                "number": st.none() | st.integers(-5, 5),
                "deep": st.none()
                | st.fixed_dictionaries(
                    {"text": st.none() | st.text(max_size=3), "real": st.none() | st.floats()}
                ),
                "some": st.none() | st.lists(st.integers(0, 3), max_size=2),
            }
        ),
    ),
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f32": (pa.float32(), st.floats(width=32)),
    "f64": (
        pa.float64(),
        st.floats() | st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308]),
    ),
    "money": (pa.decimal128(12, 2), st.decimals(-(10**10) + 1, 10**10 - 1, places=2)),
    "large": (pa.decimal128(38, 6), st.decimals(-(10**31), 10**31, places=6)),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(UTC))),
    "wall": (pa.timestamp("us"), st.datetimes()),
    "yes": (pa.bool_(), st.booleans()),
    "data": (pa.binary(), st.binary(max_size=3)),
    "text": (pa.string(), st.text(max_size=40)),
    "dotted.name": (pa.int32(), st.integers(-9, 9)),
    "pairs": (
        pa.map_(pa.string(), pa.int32()),
        st.lists(st.tuples(st.text(max_size=2), st.integers(0, 3)), max_size=2),
    ),
}
SCHEMA = pa.schema([pa.field(name, kind) for name, (kind, _) in KINDS.items()])
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()}),
    min_size=1,
    max_size=6,
)


def statistics_of(*batches: pa.RecordBatch) -> dict[str, Any]:
    """The statistics of the file that these batches become, a row group each."""
    [reported] = statistics_of_each(*batches)
    return reported


def statistics_of_each(*batches: pa.RecordBatch) -> list[dict[str, Any]]:
    """The same where there may be a file for each: the first one lacks columns that it has no value
    in.
    """
    with TemporaryDirectory() as folder:
        schema = batches[0].schema
        files = DataFiles(
            FileOptions(folder, tuple(schema.names), row_group_bytes=1, schema=schema)
        )
        for batch in batches:
            files.take(batch)
        done = files.end()
        assert all(Path(folder, file.path).is_file() for file in done)
        return [json.loads(file.stats, parse_constant=pytest.fail) for file in done]


def flat(reported: dict[str, Any], *path: str) -> dict[tuple[str, ...], Any]:
    return {
        deeper: value
        for name, inner in reported.items()
        for deeper, value in (
            flat(inner, *path, name).items()
            if isinstance(inner, dict)
            else [((*path, name), inner)]
        )
    }


def valued(row: Any, path: tuple[str, ...]) -> Any:
    return row if not path or row is None else valued(row[path[0]], path[1:])


def in_order(value: Any, kind: pa.DataType) -> Any:
    """A value, or a bound of the log, as something that orders as readers order it; NaN is the
    greatest number (Spark).
    """
    if isinstance(value, str) and pa.types.is_date(kind):
        return date.fromisoformat(value)
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    if pa.types.is_decimal(kind):
        return Decimal(str(value))
    if pa.types.is_floating(kind):
        return (math.isnan(value), value)
    return value.encode() if isinstance(value, str) else value


def kind_at(path: tuple[str, ...]) -> pa.DataType:
    kind = SCHEMA.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    return kind


@given(ROWS, ROWS)
@settings(max_examples=40, deadline=None)
def test_bounds_contain_every_value_of_every_kind_and_nulls_are_counted(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    batches = [pa.RecordBatch.from_pylist(rows, schema=SCHEMA) for rows in (first, second)]
    reported = statistics_of_each(*batches)
    for each, rows in zip(
        reported, [first, second] if len(reported) > 1 else [[*first, *second]], strict=True
    ):
        check_bounds_and_nulls(each, pa.RecordBatch.from_pylist(rows, schema=SCHEMA).to_pylist())


def check_bounds_and_nulls(reported: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    assert reported["numRecords"] == len(rows)
    least, greatest, nulls = (
        flat(reported.get(name, {})) for name in ("minValues", "maxValues", "nullCount")
    )
    assert least.keys() == greatest.keys()
    for path, bound in least.items():
        kind = kind_at(path)
        values = [in_order(value, kind) for row in rows if (value := valued(row, path)) is not None]
        assert values, "a bound of nothing"
        assert all(
            in_order(bound, kind) <= value <= in_order(greatest[path], kind) for value in values
        ), path
    for path, count in nulls.items():
        assert count == sum(valued(row, path) is None for row in rows), path
    assert {path[0] for path in nulls} == set(KINDS)


@given(ROWS)
@settings(max_examples=20, deadline=None)
def test_each_column_that_readers_look_for_has_bounds_or_none_has(
    rows: list[dict[str, Any]],
) -> None:
    """If only some bounds are missing, delta-rs reads them as null, and its PyArrow dataset skips
    the file.
    """
    reported = statistics_of(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    valued = {name for name in KINDS if any(row[name] is not None for row in rows)}
    is_finite = all(
        math.isfinite(row[name]) for row in rows for name in ("f32", "f64") if row[name] is not None
    )
    least = flat(reported.get("minValues", {}))
    assert {path[0] for path in least if len(path) == 1} == (
        valued - {"data", "pairs", "dotted"} if is_finite else set()
    )
    assert ("minValues" in reported) == is_finite and ("dotted", "some") not in least


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.nan], [math.inf, 1.0], [-math.inf]])
def test_a_number_that_json_or_an_order_does_not_have_takes_the_bounds_away(
    values: list[float],
) -> None:
    """Spark finds NaN above every number: a greatest value that passes it over loses rows."""
    reported = statistics_of(*(pa.record_batch({"n": pa.array([one])}) for one in (*values, 2.0)))
    assert reported == {"numRecords": len(values) + 1, "nullCount": {"n": 0}}


def test_the_footer_keeps_no_bounds_of_floating_numbers_for_readers_that_look_there(
    tmp_path: Path,
) -> None:
    batch = pa.record_batch({"n": pa.array([1.0, math.nan]), "m": pa.array([1, 2])})
    files = DataFiles(FileOptions(str(tmp_path), ("n", "m"), schema=batch.schema))
    files.take(batch)
    group = parquet.read_metadata(tmp_path / files.end()[0].path).row_group(0)
    assert group.column(0).statistics is None or not group.column(0).statistics.has_min_max
    assert group.column(1).statistics.has_min_max
    assert "DICTIONARY" not in str(group.column(0).encodings)
    many = {f"c{number}": [number] for number in range(INDEXED_COLUMNS + 5)}
    in_log = statistics_of(pa.record_batch(many))
    first = [*many][:INDEXED_COLUMNS]
    assert list(in_log["minValues"]) == list(in_log["nullCount"]) == first, (
        "the log has as many columns as Delta's own writer gives"
    )


@pytest.mark.parametrize(
    ("micros", "zone", "least", "greatest"),
    [
        (1_700_000_000_123_456, "UTC", "2023-11-14T22:13:20.123Z", "2023-11-14T22:13:20.124Z"),
        (1_700_000_000_123_000, None, "2023-11-14T22:13:20.123", "2023-11-14T22:13:20.123"),
        (-1, None, "1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000"),
    ],
)
def test_timestamps_are_bounded_in_milliseconds_with_the_greatest_rounded_up(
    micros: int, zone: str | None, least: str, greatest: str
) -> None:
    values = pa.array([micros], pa.timestamp("us", tz=zone))
    reported = statistics_of(pa.record_batch({"t": values}))
    assert (reported["minValues"]["t"], reported["maxValues"]["t"]) == (least, greatest)


DAYS = (date(9999, 12, 31) - date(1970, 1, 1)) // timedelta(days=1) + 1
MILLISECOND = 1000
MICROS = pa.timestamp("us")


@pytest.mark.parametrize(
    "beyond",
    [
        pa.array([0, DAYS], pa.int32()).cast(pa.date32()),
        pa.array([0, DAYS * 86_400_000_000 - MILLISECOND + 1], MICROS),
        pa.array([0, -62_135_596_800_000_001], MICROS),
        pa.array([0, 2**63 - MILLISECOND], MICROS),
        pa.array([0, -(2**63) + MILLISECOND], MICROS),
    ],
)
def test_days_and_times_of_other_years_than_1_to_9999_leave_the_file_without_bounds(
    beyond: pa.Array,
) -> None:
    """A reader then reads the file."""
    reported = statistics_of(pa.record_batch({"at": beyond, "n": [1, 2]}))
    assert reported == {"numRecords": 2, "nullCount": {"at": 0, "n": 0}}


@given(st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20), st.integers(0, 20))
@example(12345678901234567891, 12345678901234567891, 10)
@example(10**14, 10**15 - 1, 3)
@example(-1, 1, 20)
def test_decimals_lie_between_numbers_that_a_double_keeps_and_that_have_no_exponent(
    one: int, other: int, scale: int
) -> None:
    least, greatest = sorted((one, other))
    reported = decimal_bounds(least, greatest, pa.decimal128(38, scale))
    assert reported is not None and "e" not in json.dumps(reported)
    assert (
        Decimal(repr(reported[0]))
        <= Decimal(least).scaleb(-scale)
        <= Decimal(greatest).scaleb(-scale)
        <= Decimal(repr(reported[1]))
    )
    for bound, value in zip(reported, (least, greatest), strict=True):
        if abs(value) < 10**15 and scale <= 4:
            assert Decimal(repr(bound)) == Decimal(value).scaleb(-scale)
    assert decimal_bounds(0, 10**38 - 1, pa.decimal128(38, 10)) is None, "none is above it"
    assert decimal_bounds(0, 10**15 - 1, pa.decimal128(15, 0)) == (0, 10**15 - 1)


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
