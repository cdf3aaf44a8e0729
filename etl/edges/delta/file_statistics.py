"""What a table's log says of a data file's content, so that readers can pass the file over (Delta
protocol, "Per-file Statistics").

Every reader believes it blindly: a bound that is too tight loses rows in filters. So the least and
the greatest value are those that the Parquet writer itself found, or `column_values`; of a
timestamp, which the log keeps in milliseconds, the greatest is rounded up, and decimals of many
digits are rounded outwards. Where a value is one that readers order or parse in different ways
(NaN, infinity, years beyond 9999) the file has no bounds at all: delta-rs takes one that is missing
beside others for null, and its PyArrow dataset then passes the file over.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from etl.edges.delta.column_values import CountedValues, nested

if TYPE_CHECKING:
    from pyarrow import parquet

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_KEPT = 32
"""Characters of a text's beginning that bound it, as Delta's own writer keeps them: every reader
reads all of the log.
"""
_LAST_ASCII, _LAST_OF_ALL = "\x7f", "\U0010ffff"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Of the years 1 to 9999, which every reader can parse."""
_FIRST_DAY, _LAST_DAY = _FIRST_MS // 86_400_000, _LAST_MS // 86_400_000
_DIGITS_OF_DOUBLE = 15
"""So many decimal digits survive the way through a double."""
_PLACES = 4
"""So many places behind the point has a double that Python writes without an exponent."""


def render_stats(metadata: parquet.FileMetaData, counted: CountedValues) -> str:
    """The statistics of a file, JSON, of its footer and of what was counted of its values."""
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
    told = {"numRecords": metadata.num_rows, "nullCount": nested(nulls)}
    if is_whole:
        told |= {"minValues": nested(least), "maxValues": nested(greatest)}
    return json.dumps(told, separators=(",", ":"), allow_nan=False)


def _bounds_of(
    metadata: parquet.FileMetaData, counted: CountedValues, i: int
) -> tuple[Any, Any] | None:
    column = counted.columns[i]
    if not column.is_counted:
        return (
            _of_footer(metadata, column.kind, column.at)
            if column.is_kept and column.at is not None
            else None
        )
    found = counted.bounds(i)
    return found if found is None or not types.is_string(column.kind) else _of_texts(*found)


def _of_footer(
    metadata: parquet.FileMetaData, kind: pa.DataType, at: int
) -> tuple[Any, Any] | None:
    found = [_told(metadata.row_group(group), at) for group in range(metadata.num_row_groups)]
    return (
        None
        if None in found
        else _bounds(kind, [one for some in found if some is not None for one in some])
    )


def _told(group: Any, at: int) -> list[Any] | None:
    """What a row group says of a column's values; None where it has values and bounds none of them:
    Parquet keeps none beyond 4 KiB.
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
        f([_value(raw) for one in found for raw in (one.min_raw, one.max_raw)]) for f in (min, max)
    )
    if types.is_decimal(kind):
        return decimal_bounds(least, greatest, kind)
    if types.is_date32(kind):
        return (
            (_day(least), _day(greatest)) if _FIRST_DAY <= least <= greatest <= _LAST_DAY else None
        )
    if not types.is_timestamp(kind):
        return least, greatest
    first, last = least // 1000, -(-greatest // 1000)
    zone = "Z" if kind.tz else ""
    return (
        (_moment(first, zone), _moment(last, zone))
        if _FIRST_MS <= first <= last <= _LAST_MS
        else None
    )


def _value(raw: Any) -> Any:
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
    """The number, or one further outwards (-1: below it, 1: above it), which is a whole one where
    there are many digits.
    """
    told = float(f"{unscaled}E-{kind.scale}")
    if abs(unscaled) < 10**_DIGITS_OF_DOUBLE and "e" not in repr(told):
        return told
    place = max(-_PLACES, len(str(abs(unscaled))) - kind.scale - _DIGITS_OF_DOUBLE + 1)
    step = 10 ** (place + kind.scale)
    further = (outwards * unscaled // step + 2) * step * outwards
    if abs(further) >= 10**kind.precision:
        return None
    return further // 10**kind.scale if place >= 0 else float(f"{further}E-{kind.scale}")


def text_bounds(least: str, greatest: str) -> tuple[str, str]:
    """Short texts between which all texts from `least` to `greatest` lie, in the order of their
    UTF-8 bytes.

    One that is longer is cut. The greatest ends with a character above the one that was cut off,
    and is cut later where there is none.
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
