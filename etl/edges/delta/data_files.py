"""Writes the data files of a table from Arrow batches, by pyarrow, where a task runs: nothing names them until a commit does.

Owns the Parquet writer and the values of partitions; where files and row groups end, and how columns are kept, is decided in `file_layout`.
A file that is not finished stays where it is: no commit names it, and VACUUM takes it like those of an attempt that was lost.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
from pyarrow import compute, parquet

from etl.decisions.file_layout import (
    OPEN_FILES, PAGE_BYTES, by_difference, compared, is_row_group, is_whole_file, level_of, name_of_file, with_dictionary,
)
from etl.edges.delta.file_statistics import render_stats
from etl.model.data_files import Codec, DataFile, FilesWanted
from etl.model.raw_table import arrow_schema, raw_columns

EVENT_DATE = "event_date"
_MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_NULL_IF_PHYSICAL = ("key", "timestamp", "timestampType", "headers")
TEXTS = pa.dictionary(pa.int32(), pa.string())
Values = tuple[str | None, ...]
"""Of the columns that the table is partitioned by, as the log has them."""


class DataFiles:
    """The files of one attempt of a task. `take` each batch, then `end`.

    `task` and `attempt` are for the names alone. Raises OSError where the table's folder cannot be written.
    """

    def __init__(self, wanted: FilesWanted, *, task: int = 0, attempt: int = 0) -> None:
        self._wanted, self._task, self._attempt = wanted, task, attempt
        self._needed = needed_columns(wanted)
        fields = {field.name: field for field in arrow_schema(physical=wanted.physical)}
        self._typed = pa.schema([fields[name] for name in self._needed if name not in wanted.partition_by])
        self._kept = pa.schema([field.with_type(TEXTS) if field.name == "topic" else field for field in self._typed])
        self._open: dict[Values, _OpenFile] = {}
        self._done: list[DataFile] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Rows with the columns of the raw table, in any order."""
        if not batch.num_rows:
            return
        batch = batch.select(list(self._needed))
        for values, rows in split_by_values(batch, self._wanted.partition_by):
            self._add(values, self._fitting(rows.select(self._kept.names)))

    def end(self) -> tuple[DataFile, ...]:
        """Write what is held back, and tell of all files."""
        for values in list(self._open):
            self._finish(values)
        return tuple(self._done)

    def _add(self, values: Values, rows: pa.RecordBatch) -> None:
        file = self._open.pop(values, None) or self._begin(values)
        self._open[values] = file  # the newest in use is last
        file.hold(rows)
        if is_row_group(file.held_bytes, sum(one.held_bytes for one in self._open.values())):
            fullest = max(self._open, key=lambda one: self._open[one].held_bytes)
            self._open[fullest].write()
            if is_whole_file(self._open[fullest].size, self._wanted.file_bytes):
                self._finish(fullest)

    def _fitting(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Of the types that are kept. The topic's text becomes a number here, where most batches have one topic alone."""
        typed = rows if rows.schema.equals(self._typed) else rows.cast(self._typed)
        if "topic" not in self._kept.names:
            return typed
        at = self._kept.names.index("topic")
        columns = typed.columns
        columns[at] = as_dictionary(columns[at])
        return pa.RecordBatch.from_arrays(columns, schema=self._kept)

    def _begin(self, values: Values) -> _OpenFile:
        if len(self._open) >= OPEN_FILES:
            self._finish(next(iter(self._open)))
        named = dict(zip(self._wanted.partition_by, values, strict=True))
        path = name_of_file(named, self._task, self._attempt, str(uuid.uuid4()), self._wanted.codec)
        return _OpenFile(self._wanted, self._kept, path, named)

    def _finish(self, values: Values) -> None:
        self._done.append(self._open.pop(values).close())


_BATCH_BYTES = 16 * 1024
"""What an Arrow batch takes beside its data, as measured: thousands of small ones are more than their data."""


class _OpenFile:
    """One file on its way: rows that are held back, and a Parquet writer for those that are not."""

    def __init__(self, wanted: FilesWanted, schema: pa.Schema, path: str, values: Mapping[str, str | None]) -> None:
        self._path, self._values, self._schema = path, values, schema
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self._nulls = dict.fromkeys(schema.names, 0)
        whole = Path(wanted.root, path)
        whole.parent.mkdir(parents=True, exist_ok=True)
        self._file = pa.OSFile(str(whole), "wb")
        self._writer = parquet.ParquetWriter(self._file, schema, **_options(tuple(schema.names), wanted.codec))

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._file.tell())

    def hold(self, rows: pa.RecordBatch) -> None:
        """Keep rows for the next row group."""
        self._held.append(rows)
        self.held_bytes += rows.nbytes + _BATCH_BYTES
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            self._nulls[name] += column.null_count

    def write(self) -> None:
        """What is held back as one row group."""
        held, self._held, self.held_bytes = pa.Table.from_batches(self._held, self._schema), [], 0
        if held.num_rows:
            self._writer.write_table(held.unify_dictionaries(), row_group_size=held.num_rows)

    def close(self) -> DataFile:
        """The end of the file, and what the log will say of it."""
        self.write()
        self._writer.close()
        metadata = self._writer.writer.metadata
        size = self.size
        self._file.close()
        return DataFile(self._path, size, metadata.num_rows, self._values, render_stats(metadata, self._nulls), int(time.time() * 1000))


def as_dictionary(texts: pa.StringArray) -> pa.DictionaryArray:
    """The same texts, each different one kept once. That all are the same is seen at their bytes, without hashing each of them."""
    many = len(texts)
    ends = numpy.frombuffer(texts.buffers()[1], dtype=numpy.int32)[texts.offset:texts.offset + many + 1]
    size = int(ends[1] - ends[0])
    if texts.null_count or size == 0 or (numpy.diff(ends) != size).any():
        return texts.dictionary_encode()
    content = numpy.frombuffer(texts.buffers()[2], dtype=f"V{size}", count=many, offset=int(ends[0]))
    if (content != content[0]).any():
        return texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(pa.array(numpy.zeros(many, dtype=numpy.int32)), texts[:1])


def needed_columns(wanted: FilesWanted) -> tuple[str, ...]:
    """The columns of the raw table that rows must have; of physical logs without those that are null in all of them.

    A column of the table that a file lacks is null in all its rows (Delta protocol, "Reader Requirements"), and costs nothing so.
    """
    asked = {*wanted.columns, *(("timestamp",) if EVENT_DATE in wanted.partition_by else ())}
    columns = raw_columns(physical=wanted.physical)
    return tuple(name for name in columns if name in asked and not (wanted.physical and name in _NULL_IF_PHYSICAL))


def split_by_values(batch: pa.RecordBatch, partition_by: tuple[str, ...]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows of each combination of partition values, in the order in which they first come; the rows' own order is kept."""
    if not partition_by:
        yield (), batch
        return
    keys = pa.table({name: _values_of(batch, name) for name in partition_by})
    found = keys.group_by(list(partition_by), use_threads=False).aggregate([]).to_pylist()
    for one in found:
        values = tuple(None if one[name] is None else str(one[name]) for name in partition_by)
        yield values, batch if len(found) == 1 else batch.filter(_is_of(keys, one))


def _values_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Of one column that the table is partitioned by; null where no row has it (physical logs have fewer columns)."""
    if name == EVENT_DATE:
        return _date_of(batch)
    return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, pa.string())


def _is_of(keys: pa.Table, one: Mapping[str, Any]) -> pa.ChunkedArray:
    found = [
        compute.is_null(column) if value is None else compute.fill_null(compute.equal(column, pa.scalar(value, column.type)), False)
        for name, value in one.items() for column in [keys.column(name)]]
    return functools.reduce(compute.and_, found).combine_chunks()


def _date_of(batch: pa.RecordBatch) -> pa.Array:
    """The built-in column `event_date`: the UTC date of the timestamp in the years 1 to 9999, else null, as Spark's writer has it."""
    timestamps = batch.column("timestamp")
    micros = timestamps.cast(pa.int64()).fill_null(_YEAR_10000).to_numpy(zero_copy_only=False)
    days = numpy.floor_divide(micros, _MICROS_PER_DAY)
    outside = (micros < _YEAR_1) | (micros >= _YEAR_10000)
    return pa.array(numpy.where(outside, 0, days).astype(numpy.int32), mask=outside).cast(pa.date32())


def _options(columns: tuple[str, ...], codec: Codec) -> dict[str, Any]:
    return {
        "compression": "none" if codec is Codec.NONE else codec.value, "compression_level": level_of(codec),
        "use_dictionary": with_dictionary(columns), "write_statistics": compared(columns), "store_schema": False,
        "column_encoding": dict.fromkeys(by_difference(columns), "DELTA_BINARY_PACKED"), "data_page_size": PAGE_BYTES,
    }
