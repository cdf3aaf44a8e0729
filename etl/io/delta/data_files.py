"""How does a task write data files from Arrow batches?

Parquet files by pyarrow, one partition value per file. No commit names them yet: those of a killed
attempt are removed by its run, else by VACUUM.

A column that a file lacks is null in all its rows (Delta protocol, "Reader Requirements"): a column
without values is left out, which saves 3 to 6 % of the encoding of 100-byte records.

Not here: where files and row groups end (etl/decide/table_storage.py).
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
    by_difference,
    is_row_group,
    is_whole_file,
    level_of,
    name_of_file,
    rows_at_a_time,
    with_dictionary,
)
from etl.errors import SettingsError
from etl.io.delta.file_statistics import CountedValues, footer_keeps, render_stats
from etl.io.delta.stores import FOLDER_BYTES, TableFolder, of_no_folder, table_folder
from etl.model.columns import arrow_schema, raw_columns
from etl.model.plans import Codec, DataFile, FileOptions

EVENT_DATE = "event_date"
_MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_DAY_1, _LAST_DAY = _YEAR_1 // _MICROS_PER_DAY, _YEAR_10000 // _MICROS_PER_DAY - 1
_READS_AS_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Characters that Spark writes as three in the name of a partition's folder."""
Values = tuple[str | None, ...]
"""Values of the partition columns, as in the log."""


def split_by_values(
    batch: pa.RecordBatch, partition_by: tuple[str, ...]
) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows of each combination of partition values, in the order in which they first come; the
    rows' own order is kept.

    Raises SettingsError for a value that no partition can have.
    """
    if not partition_by:
        yield (), batch
        return
    keys = pa.table({name: _values_of(batch, name) for name in partition_by})
    found = keys.group_by(list(partition_by), use_threads=False).aggregate([]).to_pylist()
    for one in found:
        values = tuple(_text(one[name], name) for name in partition_by)
        yield values, batch if len(found) == 1 else batch.filter(_is_of(keys, one))


def _values_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the values of a partition column; null if rows lack it (Jafka has fewer columns)."""
    if name not in batch.schema.names:
        return _date_of(batch) if name == EVENT_DATE else pa.nulls(batch.num_rows, pa.string())
    values = batch.column(name)
    if types.is_string(
        values.type
    ):  # to Delta a text without characters is null (Delta protocol, "Partition Value Serialization")
        return compute.if_else(compute.equal(values, ""), None, values)
    if types.is_date32(values.type):
        days = values.cast(pa.int32())
        if compute.any(
            compute.or_(compute.less(days, _DAY_1), compute.greater(days, _LAST_DAY))
        ).as_py():
            action = "Check the transform; such a date cannot be the name of a partition that all readers of a table understand"
            raise SettingsError(
                f"A date of {name} lies outside of the years 1 to 9999",
                key="table.partition_by",
                action=action,
            )
    return values


def _text(value: Any, name: str) -> str | None:
    if value == _READS_AS_NULL:
        action = "Check the transform; to Spark this text in a partition is null"
        raise SettingsError(
            f"A value of {name} is {value!r}", key="table.partition_by", action=action
        )
    if isinstance(value, str):
        _reject_without_folder(value, name)
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _reject_without_folder(value: str, name: str) -> None:
    """Our files need no folder; who puts them together (OPTIMIZE), or changes rows of theirs, makes
    one. Raises SettingsError.
    """
    if "\0" in value:
        raise of_no_folder(name, "holds a NUL")
    if len(f"{name}={_ESCAPED.sub('%00', value)}".encode()) > FOLDER_BYTES:
        raise of_no_folder(name, f"has {len(value)} characters")


def _is_of(keys: pa.Table, one: Mapping[str, Any]) -> pa.ChunkedArray:
    found = [
        compute.is_null(column)
        if value is None
        else compute.fill_null(compute.equal(column, pa.scalar(value, column.type)), False)
        for name, value in one.items()
        for column in [keys.column(name)]
    ]
    return functools.reduce(compute.and_, found).combine_chunks()


def _date_of(batch: pa.RecordBatch) -> pa.Array:
    """The built-in column `event_date`: the UTC date of the timestamp in the years 1 to 9999, else
    null, as Spark's writer has it.
    """
    timestamps = batch.column("timestamp")
    micros = timestamps.cast(pa.int64()).fill_null(_YEAR_10000).to_numpy(zero_copy_only=False)
    days = numpy.floor_divide(micros, _MICROS_PER_DAY)
    outside = (micros < _YEAR_1) | (micros >= _YEAR_10000)
    return pa.array(numpy.where(outside, 0, days).astype(numpy.int32), mask=outside).cast(
        pa.date32()
    )


TEXTS = pa.dictionary(pa.int32(), pa.string())
_NULL_IF_PHYSICAL = ("key", "timestamp", "timestampType", "headers")


class FileColumns:
    """The columns of the files of one task. Those that none of its first rows has a value in are
    left out until a row has one.
    """

    def __init__(self, wanted: FileOptions) -> None:
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
    """Return the texts with each different one stored once. Equal texts are detected by their
    bytes, without hashing.
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


def needed_columns(wanted: FileOptions) -> tuple[str, ...]:
    """The columns that rows must have: a transform's, or those of the raw table; of physical logs
    without those that are always null.
    """
    if wanted.schema is not None:
        return tuple(wanted.schema.names)
    needed = {*wanted.columns, *(("timestamp",) if EVENT_DATE in wanted.partition_by else ())}
    columns = raw_columns(physical=wanted.physical)
    return tuple(
        name
        for name in columns
        if name in needed and not (wanted.physical and name in _NULL_IF_PHYSICAL)
    )


class DataFiles:
    """The files of one attempt of a task. `take` each batch, then `end`, or `abandon` where it came
    to nothing.

    `task` and `attempt` are for the names alone. Raises OSError where the table's folder cannot be
    written, TableUnreachable where it is gone.
    """

    def __init__(self, wanted: FileOptions, *, task: int = 0, attempt: int = 0) -> None:
        self._wanted, self._task, self._attempt = wanted, task, attempt
        self._columns, self._folder = FileColumns(wanted), table_folder(wanted.root)
        self._open: dict[Values, _OpenFile] = {}
        """The one that got rows last is last."""
        self._done: list[DataFile] = []
        self._held_bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Rows with the columns of the raw table, or of `FileOptions.schema`, in any order. Raises
        as `split_by_values`.
        """
        if not batch.num_rows:
            return
        batch = self._columns.needed_of(batch)
        for values, rows in split_by_values(batch, self._wanted.partition_by):
            self._add(values, self._columns.fitting(rows))

    def end(self) -> tuple[DataFile, ...]:
        """Write the buffers, and return all files."""
        for values in list(self._open):
            self._finish(values)
        return tuple(self._done)

    def abandon(self) -> None:
        """Delete what was written. What cannot be deleted stays, like files of a killed task."""
        for path in [
            *(file.abandon() for file in self._open.values()),
            *(file.path for file in self._done),
        ]:
            with contextlib.suppress(OSError):
                self._folder.remove(path)
        self._open, self._done, self._held_bytes = {}, [], 0

    def _add(self, values: Values, rows: pa.RecordBatch) -> None:
        file = self._fitting_file(values)
        before = file.write_buffer_bytes
        file.hold(rows)
        self._held_bytes += file.write_buffer_bytes - before
        if is_row_group(file.write_buffer_bytes, self._held_bytes, self._wanted):
            self._write(max(self._open, key=lambda one: self._open[one].write_buffer_bytes))

    def _write(self, values: Values) -> None:
        """Write the buffer of these partition values as a row group; a file is begun only now, so
        that few rows of many values need none.
        """
        file, begun = self._open[values], [each for each, one in self._open.items() if one.is_begun]
        if not file.is_begun and len(begun) >= OPEN_FILES:
            self._finish(begun[0])
        self._held_bytes -= file.write_buffer_bytes
        file.write()
        if is_whole_file(file.size, self._wanted.file_bytes):
            self._finish(values)

    def _fitting_file(self, values: Values) -> _OpenFile:
        """The open file of these values, of the columns that rows have by now. One that has fewer,
        and is begun, ends.
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
        path = name_of_file(
            named,
            self._task,
            self._attempt,
            f"{self._wanted.write_id}-{uuid.uuid4()}",
            self._wanted.codec,
        )
        return _OpenFile(self._wanted, self._folder, self._columns, path, named)

    def _finish(self, values: Values) -> None:
        file = self._open[values]
        self._held_bytes -= file.write_buffer_bytes
        self._done.append(
            file.close()
        )  # where its end is refused it is still open, and can be abandoned
        del self._open[values]


_BATCH_BYTES = 16 * 1024
"""Measured overhead of an Arrow batch: thousands of small ones exceed their data."""


_TOGETHER = 64
"""So many small batches are made one: the bytes above are then counted once."""


class _OpenFile:
    """One file on its way: rows that are held back, and from the first row group on a Parquet
    writer.
    """

    def __init__(
        self,
        wanted: FileOptions,
        folder: TableFolder,
        columns: FileColumns,
        path: str,
        values: Mapping[str, str | None],
    ) -> None:
        self._wanted, self._folder, self._path, self._values, self._schema = (
            wanted,
            folder,
            path,
            values,
            columns.kept,
        )
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
        return int(self._file.tell()) if self._file is not None else 0

    def hold(self, rows: pa.RecordBatch) -> None:
        """Keep rows for the next row group."""
        self._held.append(rows)
        self.write_buffer_bytes += rows.nbytes + _BATCH_BYTES
        if (
            len(self._held) % _TOGETHER == 0
            and self.write_buffer_bytes < 2 * len(self._held) * _BATCH_BYTES
        ):
            self._held = self._together().combine_chunks().to_batches()
            self.write_buffer_bytes = sum(one.nbytes + _BATCH_BYTES for one in self._held)
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
            # what pages were encoded in: the pool would keep it, and some MB more with many a row
            # group
            pa.default_memory_pool().release_unused()

    def close(self) -> DataFile:
        """Close the file; return its entry for the log."""
        self.write()
        self._writer.close()
        metadata = self._writer.writer.metadata
        size = self.size
        self._let_go()
        return DataFile(
            self._path,
            size,
            metadata.num_rows,
            self._values,
            render_stats(metadata, self._counted),
            int(time.time() * 1000),
        )

    def abandon(self) -> str:
        """Let the file go as it is; its path."""
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            self._let_go()
        return self._path

    def _let_go(self) -> None:
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
    return {
        "compression": "none" if codec is Codec.NONE else codec.value,
        "compression_level": level_of(codec),
        "use_dictionary": with_dictionary(columns),
        "write_statistics": bounded,
        "store_schema": False,
        "column_encoding": dict.fromkeys(by_difference(columns), "DELTA_BINARY_PACKED"),
        "data_page_size": PAGE_BYTES,
    }
