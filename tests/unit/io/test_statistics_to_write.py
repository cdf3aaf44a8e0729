"""Statistics in the log for columns of every type: bounds contain each value, they are missing where
readers differ, and delta-rs finds each value by them (pandas, `filters=`).
`tests/spark/test_data_skipping.py` states the same for Spark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import compute, parquet

from etl.io.delta.append import ArrowWriter, Destination, Load, append
from etl.io.delta.data_files import DataFiles
from etl.io.delta.loaded_plans import Result
from etl.io.delta.statistics_to_write import INDEXED_COLUMNS, TEXT_KEPT, decimal_bounds, text_bounds
from etl.model.plans import FileOptions, Written
from tests.builders import plain_plan

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
    """A value or bound in the order of readers; NaN is the greatest number."""
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
        assert in_order(bound, kind) <= min(values), path
        assert max(values) <= in_order(greatest[path], kind), path
    for path, count in nulls.items():
        assert count == sum(valued(row, path) is None for row in rows), path
    assert {path[0] for path in nulls} == set(KINDS)
    # If only some bounds are missing, delta-rs reads them as null, and skips the file.
    numbers = [row[name] for row in rows for name in ("f32", "f64") if row[name] is not None]
    is_finite = all(map(math.isfinite, numbers))
    bounded = {name for name in KINDS if any(row[name] is not None for row in rows)}
    bounded -= {"data", "pairs", "dotted"}
    assert ("minValues" in reported) == is_finite and ("dotted", "some") not in least
    assert {path[0] for path in least if len(path) == 1} == (bounded if is_finite else set())


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


DIGITS, DAY, AT = pa.decimal128(38, 10), pa.date32(), pa.timestamp("us", tz="UTC")


def decimals(*values: int | str) -> pa.Array:
    return pa.array([Decimal(value) for value in values], DIGITS)


@dataclass(frozen=True)
class OneFileEach:
    """Tasks, each of which writes one of these batches."""

    batches: Sequence[pa.RecordBatch]

    def write(self, wanted: FileOptions) -> Sequence[Written]:
        found = []
        for task, batch in enumerate(self.batches):
            files = DataFiles(wanted, task=task)
            files.take(batch)
            found.append(Written((), files.end(), {}, made=batch.num_rows))
        return found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array(["a", "b"]), pa.array(["c", "d" * 5000])),
        (pa.array([1.0, 2.0]), pa.array([3.0, float("nan")])),
        (pa.array([1.0, 2.0]), pa.array([float("-inf"), 0.5])),
        (pa.array([1, 2]).cast(DIGITS), decimals("0.00001", "-0.00001")),
        (pa.array([1, 2]).cast(DIGITS), decimals("1234567890123456789.5", "-3")),
        (pa.array([1, 2]).cast(DIGITS), decimals(10**28 - 1, "3")),
        (pa.array([0, 1], pa.int32()).cast(DAY), pa.array([2, 3_000_000], pa.int32()).cast(DAY)),
        (pa.array([0, 1], AT), pa.array([2, 2**62], AT)),
        (pa.array([-1, 123_456], AT), pa.array([1_700_000_000_123_456, 124_000], AT)),
        (pa.array([True, True]), pa.array([True, False])),
        (pa.array([1, 2]), pa.array([None, None], pa.int64())),
    ],
    ids="long text,NaN,infinite,tiny,many digits,all digits,day,time,micros,boolean,nulls".split(
        ","
    ),
)
def test_each_value_is_found_whatever_statistics_of_others_lack(
    tmp_path: Path, first: pa.Array, second: pa.Array
) -> None:
    batches = [
        pa.record_batch({"n": pa.array([at, at]), "found": values})
        for at, values in enumerate((first, second))
    ]
    load = Load(ArrowWriter(made=batches[0].schema), OneFileEach(batches))
    outcome = append(load, plain_plan(ranges=()), Destination(str(tmp_path / "table"), "app"))
    assert outcome.result is Result.APPLIED
    table = DeltaTable(tmp_path / "table").to_pyarrow_dataset()
    column: Any = compute.field("found")
    for value in {*first, *second}:
        filters = [column == value if value.is_valid else column.is_null()]
        if value.is_valid and not pa.types.is_floating(value.type):  # NaN has no order
            filters += [column <= value, column > value]
        for one in filters:
            every = table.to_table().filter(one)
            assert table.to_table(filter=one).num_rows == every.num_rows, (value, one)
    assert table.to_table(filter=compute.field("n") == 1).num_rows == 2


TEXTS = st.text(st.sampled_from("aé\x7f\x80😀\U0010ffff"), max_size=40) | st.integers(0, 60).map(
    "x".__mul__
)


@given(
    st.lists(TEXTS, min_size=1, max_size=4), st.text(st.sampled_from("xa\U0010ffff"), max_size=34)
)
def test_long_texts_are_bounded_by_their_beginnings_and_every_one_lies_between(
    texts: list[str], prefix: str
) -> None:
    """In the order of their bytes; the log keeps 32 characters."""
    texts = [prefix + text for text in texts]
    least, greatest = text_bounds(min(texts, key=str.encode), max(texts, key=str.encode))
    assert all(least.encode() <= text.encode() <= greatest.encode() for text in texts)
    assert len(least) <= TEXT_KEPT
    assert len(greatest) <= TEXT_KEPT + 1 or "\U0010ffff" in greatest
    if max(map(len, texts)) <= TEXT_KEPT:
        assert {least, greatest} <= set(texts)


def statistics_of_each(*batches: pa.RecordBatch) -> list[dict[str, Any]]:
    """Statistics of the files that these batches become, a row group each."""
    with TemporaryDirectory() as folder:
        schema = batches[0].schema
        options = FileOptions(folder, tuple(schema.names), row_group_bytes=1, schema=schema)
        files = DataFiles(options)
        for batch in batches:
            files.take(batch)
        done = files.end()
        assert all(Path(folder, file.path).is_file() for file in done)
        return [json.loads(file.stats, parse_constant=pytest.fail) for file in done]


def statistics_of(*batches: pa.RecordBatch) -> dict[str, Any]:
    """The statistics of the one file that these batches become."""
    [reported] = statistics_of_each(*batches)
    return reported
