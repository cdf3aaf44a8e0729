"""How does a task write data files from Arrow batches?

It writes Parquet files by pyarrow, one partition value per file. No commit names the files yet: the
files of a killed attempt are removed by its run, else by VACUUM.

A column that a file lacks is null in all its rows (Delta protocol, "Reader Requirements"): a column
without values is left out, which saves 3 to 6 % of the encoding of 100-byte records.

Not here: the sizes of files and row groups (etl/decide/table_storage.py).
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import pyarrow as pa
from pyarrow import compute, parquet, types

from etl.decide.table_storage import (
    OPEN_FILES,
    PAGE_BYTES,
    delta_encoded_columns,
    dictionary_columns,
    is_row_group,
    is_whole_file,
    level_of,
    name_of_file,
    rows_at_a_time,
)
from etl.errors import SettingsError
from etl.io.delta.statistics_to_write import CountedValues, footer_keeps, render_stats
from etl.io.delta.stores import FOLDER_BYTES, TableFolder, invalid_directory_name, table_folder
from etl.model.columns import arrow_schema, raw_columns
from etl.model.plans import Codec, DataFile, FileOptions

EVENT_DATE = "event_date"
_MICROS_PER_DAY = 86_400_000_000
_YEAR_1 = -62_135_596_800_000_000
_YEAR_10000 = 253_402_300_800_000_000
_DAY_1 = _YEAR_1 // _MICROS_PER_DAY
_LAST_DAY = _YEAR_10000 // _MICROS_PER_DAY - 1
_READS_AS_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Characters that Spark escapes as three in the name of a partition directory."""
Values = tuple[str | None, ...]
"""Values of the partition columns, as in the log."""


def split_by_values(
    batch: pa.RecordBatch, partition_by: tuple[str, ...]
) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yield the rows of each combination of partition values, in the order of first appearance.

    The rows keep their order. Raises SettingsError for a value that no partition can have.
    """
    if not partition_by:
        yield (), batch
        return
    keys = pa.table({name: _values_of(batch, name) for name in partition_by})
    found = keys.group_by(list(partition_by), use_threads=False).aggregate([]).to_pylist()
    for key in found:
        values = tuple(_text(key[name], name) for name in partition_by)
        if len(found) == 1:
            yield values, batch
        else:
            yield values, batch.filter(_has_key(keys, key))


def _values_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the values of a partition column; null if rows lack it (Jafka has fewer columns)."""
    if name not in batch.schema.names:
        if name == EVENT_DATE:
            return _date_of(batch)
        return pa.nulls(batch.num_rows, pa.string())
    values = batch.column(name)
    if types.is_string(values.type):
        # Delta reads an empty text as null (Delta protocol, "Partition Value Serialization").
        return compute.if_else(compute.equal(values, ""), None, values)
    if types.is_date32(values.type):
        days = values.cast(pa.int32())
        is_outside = compute.or_(compute.less(days, _DAY_1), compute.greater(days, _LAST_DAY))
        if compute.any(is_outside).as_py():
            raise SettingsError(
                f"A date of {name} is outside of the years 1 to 9999",
                key="table.partition_by",
                action="Check the transform: not all readers of a table can read such a date as "
                "the "
                "name of a partition",
            )
    return values


def _text(value: Any, name: str) -> str | None:
    if value == _READS_AS_NULL:
        raise SettingsError(
            f"A value of {name} is {value!r}",
            key="table.partition_by",
            action="Check the transform: Spark reads this text in a partition as null",
        )
    if isinstance(value, str):
        _reject_without_folder(value, name)
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _reject_without_folder(value: str, name: str) -> None:
    """Reject a text that cannot name a directory. Raises SettingsError.

    The files written here need no directory, but OPTIMIZE and changes of their rows create one.
    """
    if "\0" in value:
        raise invalid_directory_name(name, "contains a NUL")
    if len(f"{name}={_ESCAPED.sub('%00', value)}".encode()) > FOLDER_BYTES:
        raise invalid_directory_name(name, f"has {len(value)} characters")


def _has_key(keys: pa.Table, key: Mapping[str, Any]) -> pa.ChunkedArray:
    """Return the mask of the rows with these partition values."""
    masks = []
    for name, value in key.items():
        column = keys.column(name)
        if value is None:
            masks.append(compute.is_null(column))
        else:
            is_equal = compute.equal(column, pa.scalar(value, column.type))
            masks.append(compute.fill_null(is_equal, False))
    return functools.reduce(compute.and_, masks).combine_chunks()


def _date_of(batch: pa.RecordBatch) -> pa.Array:
    """Return the built-in column `event_date`: the UTC date of the timestamp in the years 1 to
    9999, else null, as Spark's writer does.
    """
    timestamps = batch.column("timestamp")
    micros = timestamps.cast(pa.int64()).fill_null(_YEAR_10000).to_numpy(zero_copy_only=False)
    days = numpy.floor_divide(micros, _MICROS_PER_DAY)
    outside = (micros < _YEAR_1) | (micros >= _YEAR_10000)
    days = numpy.where(outside, 0, days).astype(numpy.int32)
    return pa.array(days, mask=outside).cast(pa.date32())


TEXTS = pa.dictionary(pa.int32(), pa.string())
_NULL_IF_PHYSICAL = ("key", "timestamp", "timestampType", "headers")


class FileColumns:
    """The columns of the files of one task.

    Columns without a value in the first batch are left out until a row has a value in one of them.
    """

    def __init__(self, wanted: FileOptions) -> None:
        self._needed = list(needed_columns(wanted))
        schema = wanted.schema or arrow_schema(physical=wanted.physical)
        fields = {field.name: field for field in schema}
        in_files = [name for name in self._needed if name not in wanted.partition_by]
        self.typed = pa.schema([fields[name] for name in in_files])
        """All columns of the files, with the types of the table."""
        self._lacking: frozenset[str] | None = None
        self.kept = _kept(self.typed)
        """The columns of the next files, with the types in files."""

    @property
    def lacking(self) -> frozenset[str]:
        """The columns that are left out at present."""
        return self._lacking or frozenset()

    def needed_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the needed columns of a task's next rows, including partition columns.

        Once a row has a value in a column that was left out, all columns are kept from there on: a
        task starts a new file once at most.
        """
        needed = batch.select(self._needed)
        null = set()
        for name in self.typed.names:
            if needed.column(name).null_count == needed.num_rows:
                null.add(name)
        if self._lacking is None:
            self._lacking = frozenset()
            if len(null) < len(self.typed):
                self._lacking = frozenset(null)
            kept = [field for field in self.typed if field.name not in self._lacking]
            self.kept = _kept(pa.schema(kept))
        elif not self._lacking <= null:
            self._lacking = frozenset()
            self.kept = _kept(self.typed)
        return needed

    def fitting(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the types of files. The topic becomes a dictionary column here, as
        most batches have a single topic.
        """
        rows = rows.select(self.kept.names)
        typed = pa.schema([self.typed.field(name) for name in self.kept.names])
        if not rows.schema.equals(typed):
            rows = rows.cast(typed)
        if "topic" not in self.kept.names:
            return rows
        at = self.kept.names.index("topic")
        columns = rows.columns
        columns[at] = as_dictionary(columns[at])
        return pa.RecordBatch.from_arrays(columns, schema=self.kept)


def _kept(typed: pa.Schema) -> pa.Schema:
    """Return the schema with the topic as a dictionary column."""
    fields = []
    for field in typed:
        if field.name == "topic":
            field = field.with_type(TEXTS)
        fields.append(field)
    return pa.schema(fields)


def with_nulls(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of that schema, with null in the columns that they lack."""
    there = {*rows.schema.names}
    columns = []
    for field in schema:
        if field.name in there:
            columns.append(rows.column(field.name))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def as_dictionary(texts: pa.StringArray) -> pa.DictionaryArray:
    """Return the texts as a dictionary array. Equal texts are detected by their bytes, without
    hashing.
    """
    many = len(texts)
    ends = numpy.frombuffer(texts.buffers()[1], dtype=numpy.int32)
    ends = ends[texts.offset : texts.offset + many + 1]
    size = int(ends[1] - ends[0])
    if texts.null_count or size == 0 or (numpy.diff(ends) != size).any():
        return texts.dictionary_encode()
    content = numpy.frombuffer(
        texts.buffers()[2], dtype=f"V{size}", count=many, offset=int(ends[0])
    )
    if (content != content[0]).any():
        return texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(pa.array(numpy.zeros(many, dtype=numpy.int32)), texts[:1])


def needed_columns(wanted: FileOptions) -> tuple[str, ...]:
    """Return the columns that rows must have: a transform's, or those of the raw table.

    Columns that are always null on Jafka are left out there.
    """
    if wanted.schema is not None:
        return tuple(wanted.schema.names)
    needed = {*wanted.columns}
    if EVENT_DATE in wanted.partition_by:
        needed.add("timestamp")
    if wanted.physical:
        needed.difference_update(_NULL_IF_PHYSICAL)
    columns = raw_columns(physical=wanted.physical)
    return tuple(name for name in columns if name in needed)


class DataFiles:
    """The files of one attempt of a task: `take` each batch, then `end`; `abandon` after an error.

    `task` and `attempt` are part of the file names. Raises OSError if the table's directory cannot
    be written, TableUnreachable if it is gone.
    """

    def __init__(self, wanted: FileOptions, *, task: int = 0, attempt: int = 0) -> None:
        self._wanted = wanted
        self._task = task
        self._attempt = attempt
        self._columns = FileColumns(wanted)
        self._folder = table_folder(wanted.root)
        self._open: dict[Values, _OpenFile] = {}
        """Ordered by their last rows: the file that got rows last is last."""
        self._done: list[DataFile] = []
        self._held_bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns of the raw table, or of `FileOptions.schema`, in any order.

        Raises as `split_by_values`.
        """
        if not batch.num_rows:
            return
        batch = self._columns.needed_of(batch)
        for values, rows in split_by_values(batch, self._wanted.partition_by):
            self._add(values, self._columns.fitting(rows))

    def end(self) -> tuple[DataFile, ...]:
        """Write the buffers; return all files."""
        for values in list(self._open):
            self._finish(values)
        return tuple(self._done)

    def abandon(self) -> None:
        """Delete the written files. A file that cannot be deleted stays, like those of a killed
        task.
        """
        paths = [file.abandon() for file in self._open.values()]
        paths += [file.path for file in self._done]
        for path in paths:
            with contextlib.suppress(OSError):
                self._folder.remove(path)
        self._open = {}
        self._done = []
        self._held_bytes = 0

    def _add(self, values: Values, rows: pa.RecordBatch) -> None:
        file = self._fitting_file(values)
        before = file.write_buffer_bytes
        file.hold(rows)
        self._held_bytes += file.write_buffer_bytes - before
        if is_row_group(file.write_buffer_bytes, self._held_bytes, self._wanted):
            largest = max(self._open, key=lambda each: self._open[each].write_buffer_bytes)
            self._write(largest)

    def _write(self, values: Values) -> None:
        """Write the buffer of these partition values as a row group.

        A file is created only now, so that few rows of many values open no file each.
        """
        file = self._open[values]
        begun = []
        for each, opened in self._open.items():
            if opened.is_begun:
                begun.append(each)
        if not file.is_begun and len(begun) >= OPEN_FILES:
            self._finish(begun[0])
        self._held_bytes -= file.write_buffer_bytes
        file.write()
        if is_whole_file(file.size, self._wanted.file_bytes):
            self._finish(values)

    def _fitting_file(self, values: Values) -> _OpenFile:
        """Return the open file of these values with the present columns of the rows.

        A file with fewer columns is finished if it was created already, else replaced.
        """
        file = self._open.get(values)
        if file is not None and file.lacking != self._columns.lacking:
            if file.is_begun:
                self._finish(values)
            else:
                self._held_bytes -= file.write_buffer_bytes
                whole = self._new(values)
                file.give_to(whole)
                self._held_bytes += whole.write_buffer_bytes
                self._open[values] = whole
        found = self._open.pop(values, None) or self._new(values)
        self._open[values] = found
        return found

    def _new(self, values: Values) -> _OpenFile:
        named = dict(zip(self._wanted.partition_by, values, strict=True))
        unique = f"{self._wanted.write_id}-{uuid.uuid4()}"
        path = name_of_file(named, self._task, self._attempt, unique, self._wanted.codec)
        return _OpenFile(self._wanted, self._folder, self._columns, path, named)

    def _finish(self, values: Values) -> None:
        file = self._open[values]
        self._held_bytes -= file.write_buffer_bytes
        # After a failed `close` the file is still in `_open`, so that it can be abandoned.
        self._done.append(file.close())
        del self._open[values]


_BATCH_BYTES = 16 * 1024
"""Measured overhead of an Arrow batch: thousands of small ones exceed their data."""


_TOGETHER = 64
"""Number of small batches that are combined: the overhead above then counts once."""


class _OpenFile:
    """One open file: buffered rows, and a Parquet writer from the first row group on."""

    def __init__(
        self,
        wanted: FileOptions,
        folder: TableFolder,
        columns: FileColumns,
        path: str,
        values: Mapping[str, str | None],
    ) -> None:
        self._wanted = wanted
        self._folder = folder
        self._path = path
        self._values = values
        self._schema = columns.kept
        self.lacking = columns.lacking
        self._held: list[pa.RecordBatch] = []
        self.write_buffer_bytes = 0
        self._counted = CountedValues(columns.typed, self.lacking)
        self._file: pa.NativeFile | None = None
        self._writer: Any = None

    @property
    def is_begun(self) -> bool:
        """True if the file exists."""
        return self._file is not None

    @property
    def size(self) -> int:
        """Bytes written so far."""
        if self._file is None:
            return 0
        return int(self._file.tell())

    def hold(self, rows: pa.RecordBatch) -> None:
        """Keep rows for the next row group."""
        self._held.append(rows)
        self.write_buffer_bytes += rows.nbytes + _BATCH_BYTES
        if (
            len(self._held) % _TOGETHER == 0
            and self.write_buffer_bytes < 2 * len(self._held) * _BATCH_BYTES
        ):
            self._held = self._together().combine_chunks().to_batches()
            self.write_buffer_bytes = sum(batch.nbytes + _BATCH_BYTES for batch in self._held)
        self._counted.count(rows)

    def give_to(self, other: _OpenFile) -> None:
        """Move the buffer to a file with more columns."""
        for rows in self._held:
            other.hold(with_nulls(rows, other._schema))

    def write(self) -> None:
        """Write the buffer as one row group."""
        held, self._held, self.write_buffer_bytes = self._together(), [], 0
        if held.num_rows:
            self._begun(rows_at_a_time(held.num_rows, held.nbytes)).write_table(
                held, row_group_size=held.num_rows
            )
            # The buffers of encoded pages: the pool would keep some MB more with each row group.
            pa.default_memory_pool().release_unused()

    def close(self) -> DataFile:
        """Close the file; return its entry for the log."""
        self.write()
        self._writer.close()
        metadata = self._writer.writer.metadata
        size = self.size
        self._close_file()
        stats = render_stats(metadata, self._counted)
        now_ms = int(time.time() * 1000)
        return DataFile(self._path, size, metadata.num_rows, self._values, stats, now_ms)

    def abandon(self) -> str:
        """Close the file in its present state; return its path."""
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            self._close_file()
        return self._path

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()

    def _together(self) -> pa.Table:
        return pa.Table.from_batches(self._held, self._schema).unify_dictionaries()

    def _begun(self, at_a_time: int) -> Any:
        if self._writer is None:
            self._file = self._folder.create(self._path)
            options = _options(
                self._schema, footer_keeps(self._counted.columns), self._wanted.codec
            )
            self._writer = parquet.ParquetWriter(
                self._file, self._schema, write_batch_size=at_a_time, **options
            )
        return self._writer


def _options(schema: pa.Schema, bounded: list[str], codec: Codec) -> dict[str, Any]:
    columns = {field.name: str(field.type) for field in schema}
    compression = codec.value
    if codec is Codec.NONE:
        compression = "none"
    return {
        "compression": compression,
        "compression_level": level_of(codec),
        "use_dictionary": dictionary_columns(columns),
        "write_statistics": bounded,
        "store_schema": False,
        "column_encoding": dict.fromkeys(delta_encoded_columns(columns), "DELTA_BINARY_PACKED"),
        "data_page_size": PAGE_BYTES,
    }
