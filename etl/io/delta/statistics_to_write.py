"""Which statistics of a data file does the table's log hold?

Readers trust them (Delta protocol, "Per-file Statistics"): a bound that is too tight loses rows in
filters. So minimum and maximum are those of the Parquet footer; the maximum of a timestamp, which
the log keeps in milliseconds, and decimals of many digits are rounded outwards. If readers order or
parse values differently (NaN, infinity, years beyond 9999), the file has no bounds at all: if only
some bounds are missing, delta-rs reads them as null.

Nulls, and bounds that no footer has, are counted while rows are written: for each field of a
struct, for lists and maps as a whole, and for as many columns as Delta's own writer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute, types

if TYPE_CHECKING:
    from pyarrow import parquet


INDEXED_COLUMNS = 32
"""Number of leading columns with statistics (Delta's `delta.dataSkippingNumIndexedCols` by
default).
"""
_KEPT = (
    types.is_signed_integer,
    types.is_string,
    types.is_date32,
    types.is_timestamp,
    types.is_decimal,
)
"""Types with bounds in the footer."""
_COUNTED = (types.is_floating, types.is_string, types.is_boolean)
"""Types with bounds counted here: the footer skips NaN, and has no bounds of texts beyond 4 KiB.
Delta's own writer leaves out booleans, delta-rs does not.
"""
Bounds = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column with statistics."""

    path: tuple[str, ...]
    """Its name; for a field of a struct, the names of the enclosing structs first."""
    kind: pa.DataType
    at: int | None
    """Number of its Parquet column, of the first one for a list or a map. None: the file lacks it,
    as it is null in all rows.
    """

    @property
    def is_kept(self) -> bool:
        """True if the Parquet footer keeps its minimum and maximum."""
        return any(holds(self.kind) for holds in _KEPT)

    @property
    def is_counted(self) -> bool:
        """True if `CountedValues` computes its minimum and maximum."""
        return any(holds(self.kind) for holds in _COUNTED)


def columns_of(schema: pa.Schema, lacking: Collection[str] = ()) -> tuple[Column, ...]:
    """Return the columns with statistics in the log; those of `lacking` are not in the file."""
    at = 0
    found: list[Column] = []
    for field in schema:
        if field.name in lacking:
            found += [replace(column, at=None) for column in _columns((field.name,), field.type, 0)]
            continue
        found += _columns((field.name,), field.type, at)
        at += _parquet_columns(field.type)
    return tuple(found[:INDEXED_COLUMNS])


def footer_keeps(columns: Iterable[Column]) -> list[str]:
    """Return the Parquet paths of columns with bounds in the footer.

    Floats are never among them: the writer skips NaN, which Spark orders above all numbers and
    would miss then.
    """
    paths = []
    for column in columns:
        if column.at is not None and column.is_kept:
            paths.append(".".join(column.path))
    return paths


def _columns(path: tuple[str, ...], kind: pa.DataType, at: int) -> Iterator[Column]:
    if not types.is_struct(kind):
        yield Column(path, kind, at)
        return
    for field in (kind.field(i) for i in range(kind.num_fields)):
        yield from _columns((*path, field.name), field.type, at)
        at += _parquet_columns(field.type)


def _parquet_columns(kind: pa.DataType) -> int:
    if types.is_struct(kind):
        return sum(_parquet_columns(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_list(kind):
        return _parquet_columns(kind.value_type)
    if types.is_map(kind):
        return _parquet_columns(kind.key_type) + _parquet_columns(kind.item_type)
    return 1


class CountedValues:
    """Counted nulls and bounds of one file. The columns of `lacking` are null in all its rows."""

    def __init__(self, schema: pa.Schema, lacking: Collection[str] = ()) -> None:
        self.columns = columns_of(schema, lacking)
        self.nulls = [0] * len(self.columns)
        """Per column; a field of a null struct is null."""
        self._bounds: list[Bounds | None] = [None] * len(self.columns)
        self._is_unbounded = [False] * len(self.columns)

    def count(self, rows: pa.RecordBatch) -> None:
        """Count rows."""
        for i, column in enumerate(self.columns):
            if column.at is None:
                self.nulls[i] += rows.num_rows
                continue
            values = rows.column(column.path[0])
            for name in column.path[1:]:
                values = compute.struct_field(values, name)
            self.nulls[i] += values.null_count
            if column.is_counted and not self._is_unbounded[i] and values.null_count < len(values):
                self._bound(i, values)

    def bounds(self, i: int) -> Bounds | None:
        """Return minimum and maximum, a text as its UTF-8 bytes.

        None without values, and for NaN and infinity: JSON cannot represent them.
        """
        if self._is_unbounded[i]:
            return None
        return self._bounds[i]

    def _bound(self, i: int, values: pa.Array) -> None:
        if types.is_floating(values.type) and not compute.all(compute.is_finite(values)).as_py():
            self._is_unbounded[i] = True
            return
        if types.is_dictionary(values.type):
            values = values.dictionary
        found = compute.min_max(values)
        least = _bound_value(found["min"])
        greatest = _bound_value(found["max"])
        known = self._bounds[i] or (least, greatest)
        self._bounds[i] = min(known[0], least), max(known[1], greatest)


def _bound_value(found: pa.Scalar) -> Any:
    if types.is_string(found.type):
        return found.as_buffer().to_pybytes()
    return found.as_py()


def nested(found: Sequence[tuple[tuple[str, ...], object]]) -> dict[str, object]:
    """Return the values as nested mappings, a level for each name of a path, as in the log."""
    statistics = dict[str, object]()
    for path, value in found:
        inner = statistics
        for name in path[:-1]:
            inner = inner.setdefault(name, {})  # type: ignore[assignment]
        inner[path[-1]] = value
    return statistics


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_KEPT = 32
"""Characters of a text that its bounds keep, as in Delta's own writer: the log stays small."""
_LAST_ASCII, _LAST_OF_ALL = "\x7f", "\U0010ffff"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which every reader can parse."""
_FIRST_DAY, _LAST_DAY = _FIRST_MS // 86_400_000, _LAST_MS // 86_400_000
_DIGITS_OF_DOUBLE = 15
"""Number of decimal digits that a double keeps exactly."""
_PLACES = 4
"""Decimal places of a double that Python writes without an exponent."""


def render_stats(metadata: parquet.FileMetaData, counted: CountedValues) -> str:
    """Return the statistics of a file as JSON, from its footer and its counts."""
    least: list[tuple[tuple[str, ...], Any]] = []
    greatest: list[tuple[tuple[str, ...], Any]] = []
    nulls: list[tuple[tuple[str, ...], Any]] = []
    is_complete = True
    for i, column in enumerate(counted.columns):
        nulls.append((column.path, counted.nulls[i]))
        bounds = _bounds_of(metadata, counted, i)
        if bounds is not None:
            least.append((column.path, bounds[0]))
            greatest.append((column.path, bounds[1]))
            continue
        may_have_bounds = column.is_kept or column.is_counted
        has_values = counted.nulls[i] < metadata.num_rows
        if may_have_bounds and len(column.path) == 1 and has_values:
            is_complete = False
    statistics = {"numRecords": metadata.num_rows, "nullCount": nested(nulls)}
    if is_complete:
        statistics |= {"minValues": nested(least), "maxValues": nested(greatest)}
    return json.dumps(statistics, separators=(",", ":"), allow_nan=False)


def _bounds_of(
    metadata: parquet.FileMetaData, counted: CountedValues, i: int
) -> tuple[Any, Any] | None:
    column = counted.columns[i]
    if not column.is_counted:
        if column.is_kept and column.at is not None:
            return _of_footer(metadata, column.kind, column.at)
        return None
    found = counted.bounds(i)
    if found is not None and types.is_string(column.kind):
        return _of_texts(*found)
    return found


def _of_footer(
    metadata: parquet.FileMetaData, kind: pa.DataType, at: int
) -> tuple[Any, Any] | None:
    """Return the bounds of a column in all row groups.

    None if a row group has values without bounds, or no group has values.
    """
    values = []
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        statistics = group.column(at).statistics
        if statistics is None:
            return None
        if statistics.has_min_max:
            values.append(_footer_bound(statistics.min_raw))
            values.append(_footer_bound(statistics.max_raw))
        elif statistics.null_count != group.num_rows:
            return None
    if not values:
        return None
    return _bounds(kind, min(values), max(values))


def _bounds(kind: pa.DataType, least: Any, greatest: Any) -> tuple[Any, Any] | None:
    """Return minimum and maximum in the form of the log; None if the log cannot represent them."""
    if types.is_decimal(kind):
        return decimal_bounds(least, greatest, kind)
    if types.is_date32(kind):
        if _FIRST_DAY <= least <= greatest <= _LAST_DAY:
            return (_day(least), _day(greatest))
        return None
    if not types.is_timestamp(kind):
        return least, greatest
    first = least // 1000
    last = -(-greatest // 1000)
    zone = ""
    if kind.tz:
        zone = "Z"
    if _FIRST_MS <= first <= last <= _LAST_MS:
        return (_moment(first, zone), _moment(last, zone))
    return None


def _footer_bound(raw: Any) -> Any:
    """Return a bound of the footer as a comparable value: a decimal as its unscaled integer."""
    if isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _of_texts(least: bytes, greatest: bytes) -> tuple[str, str] | None:
    try:
        return text_bounds(least.decode(), greatest.decode())
    except UnicodeDecodeError:
        return None


def decimal_bounds(least: int, greatest: int, kind: pa.DataType) -> tuple[float, float] | None:
    """Return bounds in units of the last place as JSON numbers without an exponent.

    delta-rs reads a number with an exponent as null. Numbers that a reader's double would round are
    rounded outwards. None if a rounded number exceeds the precision of the type.
    """
    first = _decimal(least, kind, -1)
    last = _decimal(greatest, kind, 1)
    if first is None or last is None:
        return None
    return first, last


def _decimal(unscaled: int, kind: pa.DataType, outwards: int) -> float | None:
    """Return the number; one with too many digits is rounded outwards (-1: down, 1: up)."""
    number = float(f"{unscaled}E-{kind.scale}")
    if abs(unscaled) < 10**_DIGITS_OF_DOUBLE and "e" not in repr(number):
        return number
    place = max(-_PLACES, len(str(abs(unscaled))) - kind.scale - _DIGITS_OF_DOUBLE + 1)
    step = 10 ** (place + kind.scale)
    further = (outwards * unscaled // step + 2) * step * outwards
    if abs(further) >= 10**kind.precision:
        return None
    if place >= 0:
        whole: int = further // 10**kind.scale
        return whole
    return float(f"{further}E-{kind.scale}")


def text_bounds(least: str, greatest: str) -> tuple[str, str]:
    """Return short bounds of all texts from `least` to `greatest`, in the order of UTF-8 bytes.

    Long texts are truncated. The truncated upper bound gets a larger character at its end.
    """
    end = TEXT_KEPT
    while end < len(greatest) and greatest[end] == _LAST_OF_ALL:
        end += 1
    if end >= len(greatest):
        return least[:TEXT_KEPT], greatest
    larger = _LAST_OF_ALL
    if greatest[end] < _LAST_ASCII:
        larger = _LAST_ASCII
    return least[:TEXT_KEPT], greatest[:end] + larger


def _day(days: int) -> str:
    at = _EPOCH + timedelta(days=days)
    return f"{at.year:04d}-{at:%m-%d}"


def _moment(ms: int, zone: str) -> str:
    """Return a timestamp in the form that all readers filter the same way; `zone`: Z or nothing."""
    at = _EPOCH + timedelta(milliseconds=ms)
    return f"{at.year:04d}-{at:%m-%dT%H:%M:%S}.{ms % 1000:03d}{zone}"
