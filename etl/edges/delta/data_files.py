"""Writes the data files of a table from Arrow batches, by pyarrow, where a task runs: nothing names them until a commit does.

Owns the Parquet writer; where files and row groups end, and how columns are kept, is decided in `file_layout`.
What an attempt wrote that was killed is taken away by the run that it was of; where that is gone, too, no commit names it, and VACUUM
takes it.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
from pyarrow import parquet

from etl.decisions.file_layout import (
    OPEN_FILES, PAGE_BYTES, by_difference, is_row_group, is_whole_file, level_of, name_of_file, rows_at_a_time, with_dictionary,
)
from etl.edges.delta.column_values import CountedValues, footer_keeps
from etl.edges.delta.file_statistics import render_stats
from etl.edges.delta.partition_values import EVENT_DATE, Values, split_by_values
from etl.errors import TableUnreachable
from etl.model.data_files import Codec, DataFile, FilesWanted
from etl.model.raw_table import arrow_schema, raw_columns

_NULL_IF_PHYSICAL = ("key", "timestamp", "timestampType", "headers")
TEXTS = pa.dictionary(pa.int32(), pa.string())


class DataFiles:
    """The files of one attempt of a task. `take` each batch, then `end`, or `abandon` where it came to nothing.

    `task` and `attempt` are for the names alone. Raises OSError where the table's folder cannot be written, TableUnreachable where it is
    gone.
    """

    def __init__(self, wanted: FilesWanted, *, task: int = 0, attempt: int = 0) -> None:
        self._wanted, self._task, self._attempt = wanted, task, attempt
        self._needed = needed_columns(wanted)
        fields = {field.name: field for field in wanted.schema or arrow_schema(physical=wanted.physical)}
        self._typed = pa.schema([fields[name] for name in self._needed if name not in wanted.partition_by])
        self._kept = pa.schema([field.with_type(TEXTS) if field.name == "topic" else field for field in self._typed])
        self._open: dict[Values, _OpenFile] = {}
        """The one that got rows last is last."""
        self._done: list[DataFile] = []
        self._held_bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Rows with the columns of the raw table, or of `FilesWanted.schema`, in any order. Raises as `split_by_values`."""
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

    def abandon(self) -> None:
        """Take away what was written: nobody will name it. What the folder refuses now stays, like the files of a task that was killed."""
        for path in [*(file.abandon() for file in self._open.values()), *(file.path for file in self._done)]:
            with contextlib.suppress(OSError):
                Path(self._wanted.root, path).unlink()
        self._open, self._done, self._held_bytes = {}, [], 0

    def _add(self, values: Values, rows: pa.RecordBatch) -> None:
        file = self._open.pop(values, None) or self._new(values)
        self._open[values] = file
        before = file.held_bytes
        file.hold(rows)
        self._held_bytes += file.held_bytes - before
        if is_row_group(file.held_bytes, self._held_bytes, self._wanted):
            self._write(max(self._open, key=lambda one: self._open[one].held_bytes))

    def _write(self, values: Values) -> None:
        """What is held back for these values as a row group; a file is begun only now, so that few rows of many values need none."""
        file, begun = self._open[values], [each for each, one in self._open.items() if one.is_begun]
        if not file.is_begun and len(begun) >= OPEN_FILES:
            self._finish(begun[0])
        self._held_bytes -= file.held_bytes
        file.write()
        if is_whole_file(file.size, self._wanted.file_bytes):
            self._finish(values)

    def _fitting(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Of the types that are kept. The topic's text becomes a number here, where most batches have one topic alone."""
        typed = rows if rows.schema.equals(self._typed) else rows.cast(self._typed)
        if "topic" not in self._kept.names:
            return typed
        at = self._kept.names.index("topic")
        columns = typed.columns
        columns[at] = as_dictionary(columns[at])
        return pa.RecordBatch.from_arrays(columns, schema=self._kept)

    def _new(self, values: Values) -> _OpenFile:
        named = dict(zip(self._wanted.partition_by, values, strict=True))
        path = name_of_file(named, self._task, self._attempt, f"{self._wanted.write_id}-{uuid.uuid4()}", self._wanted.codec)
        return _OpenFile(self._wanted, self._typed, self._kept, path, named)

    def _finish(self, values: Values) -> None:
        file = self._open[values]
        self._held_bytes -= file.held_bytes
        self._done.append(file.close())  # where its end is refused it is still open, and can be abandoned
        del self._open[values]


_BATCH_BYTES = 16 * 1024
"""What an Arrow batch takes beside its data, as measured: thousands of small ones are more than their data."""


_TOGETHER = 64
"""So many small batches are made one: the bytes above are then counted once."""


class _OpenFile:
    """One file on its way: rows that are held back, and from the first row group on a Parquet writer."""

    def __init__(self, wanted: FilesWanted, plain: pa.Schema, schema: pa.Schema, path: str, values: Mapping[str, str | None]) -> None:
        self._wanted, self._path, self._values, self._schema = wanted, path, values, schema
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self._counted = CountedValues(plain)
        self._file: pa.NativeFile | None = None
        self._writer: Any = None

    @property
    def is_begun(self) -> bool:
        """Whether there is a file by now."""
        return self._file is not None

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._file.tell()) if self._file is not None else 0

    def hold(self, rows: pa.RecordBatch) -> None:
        """Keep rows for the next row group."""
        self._held.append(rows)
        self.held_bytes += rows.nbytes + _BATCH_BYTES
        if len(self._held) % _TOGETHER == 0 and self.held_bytes < 2 * len(self._held) * _BATCH_BYTES:
            self._held = self._together().combine_chunks().to_batches()
            self.held_bytes = sum(one.nbytes + _BATCH_BYTES for one in self._held)
        self._counted.count(rows)

    def write(self) -> None:
        """What is held back as one row group."""
        held, self._held, self.held_bytes = self._together(), [], 0
        if held.num_rows:
            self._begun(rows_at_a_time(held.num_rows, held.nbytes)).write_table(held, row_group_size=held.num_rows)
            # what pages were encoded in: the pool would keep it, and some MB more with many a row group
            pa.default_memory_pool().release_unused()

    def close(self) -> DataFile:
        """The end of the file, and what the log will say of it."""
        self.write()
        self._writer.close()
        metadata = self._writer.writer.metadata
        size = self.size
        self._let_go()
        return DataFile(self._path, size, metadata.num_rows, self._values, render_stats(metadata, self._counted), int(time.time() * 1000))

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
            root = Path(self._wanted.root)
            whole = root / self._path
            if not root.is_dir():  # whoever begins to write makes it: made again it would be a folder of files that no log stands beside
                check = "that it is the same folder on every executor's host, and who removed it; the next run appends the same plan again"
                raise TableUnreachable("the table's folder is not there", path=self._wanted.root, check=check)
            whole.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(whole), "wb")
            options = _options(self._counted.schema, self._wanted.codec)
            self._writer = parquet.ParquetWriter(self._file, self._schema, write_batch_size=at_a_time, **options)
        return self._writer


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
    """The columns that rows must have: a transform's, or those of the raw table; of physical logs without those that are always null.

    A column of the table that a file lacks is null in all its rows (Delta protocol, "Reader Requirements"), and costs nothing so.
    """
    if wanted.schema is not None:
        return tuple(wanted.schema.names)
    asked = {*wanted.columns, *(("timestamp",) if EVENT_DATE in wanted.partition_by else ())}
    columns = raw_columns(physical=wanted.physical)
    return tuple(name for name in columns if name in asked and not (wanted.physical and name in _NULL_IF_PHYSICAL))


def _options(schema: pa.Schema, codec: Codec) -> dict[str, Any]:
    columns = {field.name: str(field.type) for field in schema}
    return {
        "compression": "none" if codec is Codec.NONE else codec.value, "compression_level": level_of(codec),
        "use_dictionary": with_dictionary(columns), "write_statistics": footer_keeps(schema), "store_schema": False,
        "column_encoding": dict.fromkeys(by_difference(columns), "DELTA_BINARY_PACKED"), "data_page_size": PAGE_BYTES,
    }
