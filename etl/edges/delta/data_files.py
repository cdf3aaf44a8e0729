"""Writes the data files of a table from Arrow batches, by pyarrow, where a task runs: nothing names
them until a commit does.

Owns the Parquet writer; where files and row groups end, and how columns are kept, is decided in
`table_storage`. What an attempt wrote that was killed is taken away by the run that it was of; where
that is gone, too, no commit names it, and VACUUM takes it.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import parquet

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
from etl.edges.delta.column_values import CountedValues, footer_keeps
from etl.edges.delta.file_columns import FileColumns, with_nulls
from etl.edges.delta.file_statistics import render_stats
from etl.edges.delta.partition_values import Values, split_by_values
from etl.edges.delta.table_folder import TableFolder, table_folder
from etl.model.plans import Codec, DataFile, FilesWanted


class DataFiles:
    """The files of one attempt of a task. `take` each batch, then `end`, or `abandon` where it came
    to nothing.

    `task` and `attempt` are for the names alone. Raises OSError where the table's folder cannot be
    written, TableUnreachable where it is gone.
    """

    def __init__(self, wanted: FilesWanted, *, task: int = 0, attempt: int = 0) -> None:
        self._wanted, self._task, self._attempt = wanted, task, attempt
        self._columns, self._folder = FileColumns(wanted), table_folder(wanted.root)
        self._open: dict[Values, _OpenFile] = {}
        """The one that got rows last is last."""
        self._done: list[DataFile] = []
        self._held_bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Rows with the columns of the raw table, or of `FilesWanted.schema`, in any order. Raises
        as `split_by_values`.
        """
        if not batch.num_rows:
            return
        batch = self._columns.needed_of(batch)
        for values, rows in split_by_values(batch, self._wanted.partition_by):
            self._add(values, self._columns.fitting(rows))

    def end(self) -> tuple[DataFile, ...]:
        """Write what is held back, and tell of all files."""
        for values in list(self._open):
            self._finish(values)
        return tuple(self._done)

    def abandon(self) -> None:
        """Take away what was written: nobody will name it. What the folder refuses now stays, like
        the files of a task that was killed.
        """
        for path in [
            *(file.abandon() for file in self._open.values()),
            *(file.path for file in self._done),
        ]:
            with contextlib.suppress(OSError):
                self._folder.remove(path)
        self._open, self._done, self._held_bytes = {}, [], 0

    def _add(self, values: Values, rows: pa.RecordBatch) -> None:
        file = self._fitting_file(values)
        before = file.held_bytes
        file.hold(rows)
        self._held_bytes += file.held_bytes - before
        if is_row_group(file.held_bytes, self._held_bytes, self._wanted):
            self._write(max(self._open, key=lambda one: self._open[one].held_bytes))

    def _write(self, values: Values) -> None:
        """What is held back for these values as a row group; a file is begun only now, so that few
        rows of many values need none.
        """
        file, begun = self._open[values], [each for each, one in self._open.items() if one.is_begun]
        if not file.is_begun and len(begun) >= OPEN_FILES:
            self._finish(begun[0])
        self._held_bytes -= file.held_bytes
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
                self._held_bytes -= file.held_bytes
                whole = self._new(values)
                file.give_to(whole)
                self._held_bytes += whole.held_bytes
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
        self._held_bytes -= file.held_bytes
        self._done.append(
            file.close()
        )  # where its end is refused it is still open, and can be abandoned
        del self._open[values]


_BATCH_BYTES = 16 * 1024
"""What an Arrow batch takes beside its data, as measured: thousands of small ones are more than
their data.
"""


_TOGETHER = 64
"""So many small batches are made one: the bytes above are then counted once."""


class _OpenFile:
    """One file on its way: rows that are held back, and from the first row group on a Parquet
    writer.
    """

    def __init__(
        self,
        wanted: FilesWanted,
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
        self.held_bytes = 0
        self._counted = CountedValues(columns.typed, self.lacking)
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
        if (
            len(self._held) % _TOGETHER == 0
            and self.held_bytes < 2 * len(self._held) * _BATCH_BYTES
        ):
            self._held = self._together().combine_chunks().to_batches()
            self.held_bytes = sum(one.nbytes + _BATCH_BYTES for one in self._held)
        self._counted.count(rows)

    def give_to(self, other: _OpenFile) -> None:
        """Hand over what is held back to a file of more columns."""
        for rows in self._held:
            other.hold(with_nulls(rows, other._schema))

    def write(self) -> None:
        """What is held back as one row group."""
        held, self._held, self.held_bytes = self._together(), [], 0
        if held.num_rows:
            self._begun(rows_at_a_time(held.num_rows, held.nbytes)).write_table(
                held, row_group_size=held.num_rows
            )
            # what pages were encoded in: the pool would keep it, and some MB more with many a row
            # group
            pa.default_memory_pool().release_unused()

    def close(self) -> DataFile:
        """The end of the file, and what the log will say of it."""
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
