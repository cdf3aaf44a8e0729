"""What a table's log says of a data file's content, so that readers can pass the file over (Delta protocol, "Per-file Statistics").

Every reader believes it blindly: a bound that is too tight loses rows in filters. So the least and the greatest value are those that the
Parquet writer itself found, and of a timestamp, which the log keeps in milliseconds, the greatest is rounded up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import parquet

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_KEPT = 32
"""Characters of a text's beginning that bound it, as Delta's own writer keeps them: every reader reads all of the log."""
_LAST_ASCII, _LAST_OF_ALL = "\x7f", "\U0010ffff"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Of the years 1 to 9999, which every reader can parse."""


def render_stats(metadata: parquet.FileMetaData, nulls: Mapping[str, int]) -> str:
    """The statistics of a file, JSON, of its footer; `nulls` are those of each column, which the footer does not tell of nested ones."""
    least, greatest = dict[str, Any](), dict[str, Any]()
    for at, name in _flat_columns(metadata):
        found = [_told(metadata.row_group(group), at) for group in range(metadata.num_row_groups)]
        kind = str(metadata.schema.column(at).logical_type.type)
        bounds = None if None in found else _bounds(kind, [one for some in found if some is not None for one in some])
        if bounds is not None:
            least[name], greatest[name] = bounds
    return json.dumps(
        {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": dict(nulls)}, separators=(",", ":"))


def _flat_columns(metadata: parquet.FileMetaData) -> Iterable[tuple[int, str]]:
    return ((at, path) for at in range(metadata.num_columns) if "." not in (path := metadata.schema.column(at).path))


def _told(group: Any, at: int) -> list[Any] | None:
    """What a row group says of a column's values; None where it has values and bounds none of them: Parquet keeps none beyond 4 KiB."""
    found = group.column(at).statistics
    if found is not None and found.has_min_max:
        return [found]
    return [] if found is not None and found.null_count == group.num_rows else None


def _bounds(kind: str, found: list[Any]) -> tuple[Any, Any] | None:
    """The least and the greatest value as the log has them; None where there are none, or none that the log can name."""
    if not found:
        return None
    least, greatest = min(one.min_raw for one in found), max(one.max_raw for one in found)
    if kind == "STRING":
        return text_bounds(_text(least), _text(greatest))
    if kind != "TIMESTAMP":
        return least, greatest
    first, last = least // 1000, -(-greatest // 1000)
    return (_moment(first), _moment(last)) if _FIRST_MS <= first <= last <= _LAST_MS else None


def text_bounds(least: str, greatest: str) -> tuple[str, str]:
    """Short texts between which all texts from `least` to `greatest` lie, in the order of their UTF-8 bytes.

    One that is longer is cut. The greatest ends with a character above the one that was cut off, and is cut later where there is none.
    """
    end = next((at for at in range(TEXT_KEPT, len(greatest)) if greatest[at] != _LAST_OF_ALL), len(greatest))
    if end == len(greatest):
        return least[:TEXT_KEPT], greatest
    return least[:TEXT_KEPT], greatest[:end] + (_LAST_ASCII if greatest[end] < _LAST_ASCII else _LAST_OF_ALL)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _moment(ms: int) -> str:
    """A moment in the one form by which all readers filter alike."""
    at = _EPOCH + timedelta(milliseconds=ms)
    return f"{at.year:04d}-{at:%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
