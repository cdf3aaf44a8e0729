"""Which statistics of a data file does the table's log hold?

Readers trust them (Delta protocol, "Per-file Statistics"): a bound that is too tight loses rows in
filters. So minimum and maximum are those of the Parquet footer; the maximum of a timestamp, which
the log keeps in milliseconds, and decimals of many digits are rounded outwards. If values are
ordered or parsed differently by readers (NaN, infinity, years beyond 9999), the file has no bounds:
delta-rs takes a bound that is missing beside others for null.

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
    """One column that has statistics."""

    path: tuple[str, ...]
    """Its name; of a struct's field those of the structs around it first."""
    kind: pa.DataType
    at: int | None
    """Which of the file's Parquet columns it is, of a list or a map the first one; None: the file
    lacks it, it is null in all its rows.
    """

    @property
    def is_kept(self) -> bool:
        """True if Parquet shall keep its minimum and maximum."""
        return any(holds(self.kind) for holds in _KEPT)

    @property
    def is_counted(self) -> bool:
        """True if `CountedValues` has its minimum and maximum."""
        return any(holds(self.kind) for holds in _COUNTED)


def columns_of(schema: pa.Schema, lacking: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns of which the log speaks; those of `lacking` are not in the file."""
    at, found = 0, list[Column]()
    for field in schema:
        if field.name in lacking:
            found += [replace(one, at=None) for one in _columns((field.name,), field.type, 0)]
            continue
        found += _columns((field.name,), field.type, at)
        at += _parquet_columns(field.type)
    return tuple(found[:INDEXED_COLUMNS])


def footer_keeps(columns: Iterable[Column]) -> list[str]:
    """Return the Parquet paths of columns with footer bounds. Never floats: the writer skips NaN,
    which Spark orders above all numbers and would then miss.
    """
    return [".".join(column.path) for column in columns if column.at is not None and column.is_kept]


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
    """Counts of one file with that schema without the columns of `lacking`, which are null in all
    its rows.
    """

    def __init__(self, schema: pa.Schema, lacking: Collection[str] = ()) -> None:
        self.columns = columns_of(schema, lacking)
        self.nulls = [0] * len(self.columns)
        """Per column; a field of a null struct is null."""
        self._bounds: list[Bounds | None] = [None] * len(self.columns)
        self._is_unbounded = [False] * len(self.columns)

    def count(self, rows: pa.RecordBatch) -> None:
        """Take rows in."""
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
        """The least and the greatest value, a text as its UTF-8 bytes; None where there is none, or
        a number that is none, or not finite: JSON has no name for it."""
        return None if self._is_unbounded[i] else self._bounds[i]

    def _bound(self, i: int, values: pa.Array) -> None:
        if types.is_floating(values.type) and not compute.all(compute.is_finite(values)).as_py():
            self._is_unbounded[i] = True
            return
        found = compute.min_max(values.dictionary if types.is_dictionary(values.type) else values)
        least, greatest = (_bound_value(found[end]) for end in ("min", "max"))
        known = self._bounds[i] or (least, greatest)
        self._bounds[i] = min(known[0], least), max(known[1], greatest)


def _bound_value(found: pa.Scalar) -> Any:
    return found.as_buffer().to_pybytes() if types.is_string(found.type) else found.as_py()


def nested(found: Sequence[tuple[tuple[str, ...], object]]) -> dict[str, object]:
    """Values by path, as the log has them: one mapping inside the other."""
    statistics = dict[str, object]()
    for path, value in found:
        inner = statistics
        for name in path[:-1]:
            inner = inner.setdefault(name, {})  # type: ignore[assignment]
        inner[path[-1]] = value
    return statistics


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_KEPT = 32
"""Characters of a text's beginning that bound it, as Delta's own writer keeps them: every reader
reads all of the log.
"""
_LAST_ASCII, _LAST_OF_ALL = "\x7f", "\U0010ffff"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which each reader can parse."""
_FIRST_DAY, _LAST_DAY = _FIRST_MS // 86_400_000, _LAST_MS // 86_400_000
_DIGITS_OF_DOUBLE = 15
"""So many decimal digits survive the way through a double."""
_PLACES = 4
"""Decimal places of a double that Python writes without an exponent."""


def render_stats(metadata: parquet.FileMetaData, counted: CountedValues) -> str:
    """Return the statistics of a file as JSON, from its footer and its counts."""
    least, greatest = list[tuple[tuple[str, ...], Any]](), list[tuple[tuple[str, ...], Any]]()
    is_whole = True
    for i, column in enumerate(counted.columns):
        bounds = _bounds_of(metadata, counted, i)
        if bounds is not None:
            least.append((column.path, bounds[0]))
            greatest.append((column.path, bounds[1]))
        elif (
            (column.is_kept or column.is_counted)
            and len(column.path) == 1
            and counted.nulls[i] < metadata.num_rows
        ):
            is_whole = False
    nulls = [
        (column.path, count) for column, count in zip(counted.columns, counted.nulls, strict=True)
    ]
    statistics = {"numRecords": metadata.num_rows, "nullCount": nested(nulls)}
    if is_whole:
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
    return found if found is None or not types.is_string(column.kind) else _of_texts(*found)


def _of_footer(
    metadata: parquet.FileMetaData, kind: pa.DataType, at: int
) -> tuple[Any, Any] | None:
    found = [_told(metadata.row_group(group), at) for group in range(metadata.num_row_groups)]
    if None in found:
        return None
    return _bounds(kind, [one for some in found if some is not None for one in some])


def _told(group: Any, at: int) -> list[Any] | None:
    """Return a row group's bounds of a column; None if it has values without bounds: Parquet keeps
    none beyond 4 KiB.
    """
    found = group.column(at).statistics
    if found is not None and found.has_min_max:
        return [found]
    return [] if found is not None and found.null_count == group.num_rows else None


def _bounds(kind: pa.DataType, found: list[Any]) -> tuple[Any, Any] | None:
    """The least and the greatest value as the log has them; None where there are none, or none that
    the log can name.
    """
    if not found:
        return None
    least, greatest = (
        f([_footer_bound(raw) for one in found for raw in (one.min_raw, one.max_raw)])
        for f in (min, max)
    )
    if types.is_decimal(kind):
        return decimal_bounds(least, greatest, kind)
    if types.is_date32(kind):
        if _FIRST_DAY <= least <= greatest <= _LAST_DAY:
            return (_day(least), _day(greatest))
        return None
    if not types.is_timestamp(kind):
        return least, greatest
    first, last = least // 1000, -(-greatest // 1000)
    zone = "Z" if kind.tz else ""
    if _FIRST_MS <= first <= last <= _LAST_MS:
        return (_moment(first, zone), _moment(last, zone))
    return None


def _footer_bound(raw: Any) -> Any:
    """A bound of the footer in the order of the column's type: decimals as whole numbers."""
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw


def _of_texts(least: bytes, greatest: bytes) -> tuple[str, str] | None:
    try:
        return text_bounds(least.decode(), greatest.decode())
    except UnicodeDecodeError:
        return None


def decimal_bounds(least: int, greatest: int, kind: pa.DataType) -> tuple[float, float] | None:
    """The bounds, given in units of the last place, as JSON numbers without an exponent: delta-rs
    takes one with it for null.

    Where readers that take these for doubles would round them, they are rounded outwards. None
    where the type has no number so large.
    """
    first, last = _decimal(least, kind, -1), _decimal(greatest, kind, 1)
    return None if first is None or last is None else (first, last)


def _decimal(unscaled: int, kind: pa.DataType, outwards: int) -> float | None:
    """Return the number, rounded outwards (-1: down, 1: up) to a whole one if it has many digits."""
    number = float(f"{unscaled}E-{kind.scale}")
    if abs(unscaled) < 10**_DIGITS_OF_DOUBLE and "e" not in repr(number):
        return number
    place = max(-_PLACES, len(str(abs(unscaled))) - kind.scale - _DIGITS_OF_DOUBLE + 1)
    step = 10 ** (place + kind.scale)
    further = (outwards * unscaled // step + 2) * step * outwards
    if abs(further) >= 10**kind.precision:
        return None
    return further // 10**kind.scale if place >= 0 else float(f"{further}E-{kind.scale}")


def text_bounds(least: str, greatest: str) -> tuple[str, str]:
    """Return short texts around all texts from `least` to `greatest`, in the order of UTF-8 bytes.
    Long ones are truncated; the upper bound then ends with the next larger character, or earlier if
    there is none.
    """
    end = next(
        (at for at in range(TEXT_KEPT, len(greatest)) if greatest[at] != _LAST_OF_ALL),
        len(greatest),
    )
    if end == len(greatest):
        return least[:TEXT_KEPT], greatest
    return least[:TEXT_KEPT], greatest[:end] + (
        _LAST_ASCII if greatest[end] < _LAST_ASCII else _LAST_OF_ALL
    )


def _day(days: int) -> str:
    at = _EPOCH + timedelta(days=days)
    return f"{at.year:04d}-{at:%m-%d}"


def _moment(ms: int, zone: str) -> str:
    """A moment, or a time without a zone, in the one form by which all readers filter alike."""
    at = _EPOCH + timedelta(milliseconds=ms)
    return f"{at.year:04d}-{at:%m-%dT%H:%M:%S}.{ms % 1000:03d}{zone}"
