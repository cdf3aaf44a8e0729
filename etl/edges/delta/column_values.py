"""What is counted of the values of a file's columns while rows come, for the log to tell: nulls,
and bounds that no Parquet footer tells.

A column here is one that Delta keeps statistics of: of a struct each of its fields, of a list or a
map the whole (Delta protocol, "Per-file Statistics"), and no more of them than Delta's own writer
takes. Bounds of all others are those of the Parquet footer (`file_statistics`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import compute, types

INDEXED_COLUMNS = 32
"""Of how many columns the log speaks, the first ones (Delta's `delta.dataSkippingNumIndexedCols`,
by default).
"""
_KEPT = (
    types.is_signed_integer,
    types.is_string,
    types.is_date32,
    types.is_timestamp,
    types.is_decimal,
)
"""Types whose bounds the footer keeps."""
_COUNTED = (types.is_floating, types.is_string, types.is_boolean)
"""Types whose bounds are counted here: of floating numbers the footer passes NaN over, of texts it
has none beyond 4 KiB. Those of booleans Delta's own writer leaves out, and delta-rs's has them."""
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
        """Whether Parquet is asked to keep its least and greatest value."""
        return any(holds(self.kind) for holds in _KEPT)

    @property
    def is_counted(self) -> bool:
        """Whether its least and greatest value are those that `CountedValues` found."""
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
    """The Parquet columns whose least and greatest value are kept, by the paths that the Parquet
    writer knows them by.

    Never those of floating numbers: the writer passes NaN over, which Spark takes for the greatest
    of all, and which it would not look for in a row group whose greatest number is too small.
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
    return (
        _parquet_columns(kind.key_type) + _parquet_columns(kind.item_type)
        if types.is_map(kind)
        else 1
    )


class CountedValues:
    """The counts of one file, whose rows are of that schema without the columns of `lacking`: those
    are null in all of them.
    """

    def __init__(self, schema: pa.Schema, lacking: Collection[str] = ()) -> None:
        self.columns = columns_of(schema, lacking)
        self.nulls = [0] * len(self.columns)
        """Of each column; where the struct around it is null, so is the field."""
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
        least, greatest = (_value(found[end]) for end in ("min", "max"))
        known = self._bounds[i] or (least, greatest)
        self._bounds[i] = min(known[0], least), max(known[1], greatest)


def _value(found: pa.Scalar) -> Any:
    return found.as_buffer().to_pybytes() if types.is_string(found.type) else found.as_py()


def nested(found: Sequence[tuple[tuple[str, ...], object]]) -> dict[str, object]:
    """Values by path, as the log has them: one mapping inside the other."""
    told = dict[str, object]()
    for path, value in found:
        inner = told
        for name in path[:-1]:
            inner = inner.setdefault(name, {})  # type: ignore[assignment]
        inner[path[-1]] = value
    return told
