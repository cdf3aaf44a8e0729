"""Which columns a data file has that a task writes, and of what types.

A column of the table that a file lacks is null in all its rows (Delta protocol, "Reader
Requirements"), and costs nothing so: written, one that is null in each row takes 3 to 6 % of the
encoding of records of 100 bytes.
"""

from __future__ import annotations

import numpy
import pyarrow as pa

from etl.edges.delta.partition_values import EVENT_DATE
from etl.model.columns import arrow_schema, raw_columns
from etl.model.plans import FilesWanted

TEXTS = pa.dictionary(pa.int32(), pa.string())
_NULL_IF_PHYSICAL = ("key", "timestamp", "timestampType", "headers")


class FileColumns:
    """The columns of the files of one task. Those that none of its first rows has a value in are
    left out until a row has one.
    """

    def __init__(self, wanted: FilesWanted) -> None:
        self._needed = list(needed_columns(wanted))
        fields = {
            field.name: field for field in wanted.schema or arrow_schema(physical=wanted.physical)
        }
        self.typed = pa.schema(
            [fields[name] for name in self._needed if name not in wanted.partition_by]
        )
        """All of them, as the table has them."""
        self._lacking: frozenset[str] | None = None
        self.kept = _kept(self.typed)
        """Those of the files that begin now, as files have them."""

    @property
    def lacking(self) -> frozenset[str]:
        """Those that are left out by now."""
        return self._lacking or frozenset()

    def needed_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are needed of a task's next rows, with those by which the table is
        partitioned.

        Where a row has a value in a column that was left out, all are kept from there on: a task
        begins a file anew once.
        """
        needed = batch.select(self._needed)
        null = frozenset(
            name for name in self.typed.names if needed.column(name).null_count == needed.num_rows
        )
        if self._lacking is None:
            self._lacking = null if len(null) < len(self.typed) else frozenset()
            self.kept = _kept(
                pa.schema([field for field in self.typed if field.name not in self._lacking])
            )
        elif not self._lacking <= null:
            self._lacking, self.kept = frozenset(), _kept(self.typed)
        return needed

    def fitting(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the types that are kept. The topic's text becomes a number here, where most
        batches have one topic alone.
        """
        rows = rows.select(self.kept.names)
        typed = pa.schema([self.typed.field(name) for name in self.kept.names])
        rows = rows if rows.schema.equals(typed) else rows.cast(typed)
        if "topic" not in self.kept.names:
            return rows
        at = self.kept.names.index("topic")
        columns = rows.columns
        columns[at] = as_dictionary(columns[at])
        return pa.RecordBatch.from_arrays(columns, schema=self.kept)


def _kept(typed: pa.Schema) -> pa.Schema:
    return pa.schema(
        [field.with_type(TEXTS) if field.name == "topic" else field for field in typed]
    )


def with_nulls(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of that schema, null in the columns that they lack."""
    there = {*rows.schema.names}
    columns = [
        rows.column(field.name) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def as_dictionary(texts: pa.StringArray) -> pa.DictionaryArray:
    """The same texts, each different one kept once. That all are the same is seen at their bytes,
    without hashing each of them.
    """
    many = len(texts)
    ends = numpy.frombuffer(texts.buffers()[1], dtype=numpy.int32)[
        texts.offset : texts.offset + many + 1
    ]
    size = int(ends[1] - ends[0])
    if texts.null_count or size == 0 or (numpy.diff(ends) != size).any():
        return texts.dictionary_encode()
    content = numpy.frombuffer(
        texts.buffers()[2], dtype=f"V{size}", count=many, offset=int(ends[0])
    )
    if (content != content[0]).any():
        return texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(pa.array(numpy.zeros(many, dtype=numpy.int32)), texts[:1])


def needed_columns(wanted: FilesWanted) -> tuple[str, ...]:
    """The columns that rows must have: a transform's, or those of the raw table; of physical logs
    without those that are always null.
    """
    if wanted.schema is not None:
        return tuple(wanted.schema.names)
    asked = {*wanted.columns, *(("timestamp",) if EVENT_DATE in wanted.partition_by else ())}
    columns = raw_columns(physical=wanted.physical)
    return tuple(
        name
        for name in columns
        if name in asked and not (wanted.physical and name in _NULL_IF_PHYSICAL)
    )
