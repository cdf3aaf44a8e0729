"""The columns of rows that name their records, straight from the Parquet files of a table.

Owns how a column is found in a file: a table with column mapping calls it by a physical name (Delta
protocol, "Column Mapping"), and a column that the table is partitioned by is in the log and not in
the file. No query engine reads here, so no table feature that one lacks is in the way; what a
deletion vector marks as deleted is read too, for it was there once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from etl.edges.delta.failures import unreachable
from etl.edges.delta.log import Added, open_log, parse_added, parse_removed, read_commit_file
from etl.edges.delta.path import open_table, rust_path
from etl.edges.delta.store_failures import behind
from etl.edges.delta.stores import options_of
from etl.errors import TableUnreachable
from etl.model.columns import row_key

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyarrow import fs

LOG_EPOCH = "log_epoch"
"""A table may lack it, or rows may have NULL there: they are of the log's first life, 0."""
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_ROWS_AT_ONCE = 2**17
_INTEGERS = ("byte", "short", "integer", "long")
_STATISTICS = ("min", "max", "null_count")


class Uncountable(Exception):
    """Why nobody can count rows any more; a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Parquet files of a table, and what the columns are called in them."""

    path: str
    folder: fs.FileSystem
    added: Sequence[Added]
    names: Mapping[str, str]
    """Those that name a record, `columns.row_key`."""

    def rows(self) -> Iterator[pyarrow.RecordBatch]:
        """What names the record of each row, the topic a string and all else int64, a batch at a
        time; rows of no log are left out.

        Raises Uncountable for a file that is gone or damaged and for columns of another type,
        TableUnreachable.
        """
        for one in self.added:
            yield from self._rows_of(one)

    def _rows_of(self, one: Added) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        try:
            yield from _batches_of(self.folder, one, self.names)
        except FileNotFoundError as error:
            raise Uncountable(f"the file {one.path} is gone") from error
        except (OSError, pyarrow.ArrowException) as error:
            if isinstance(error, OSError) and not _can_be_read(self.folder, one):
                raise unreachable(error, self.path, "read") from behind(error, self.path)
            raise Uncountable(
                f"the file {one.path} is damaged: {str(error).splitlines()[0]}"
            ) from error


def files_of_commit(path: str, delta_version: int, *, physical: bool = False) -> TableFiles | None:
    """The files that one commit added; None where the commit or one of them is gone. Raises
    Uncountable, and as `open_table`.

    `physical`: the rows are of physical logs.
    """
    folder = open_log(rust_path(path))
    content = read_commit_file(folder, delta_version)
    added = _brought(content) if content is not None else None
    if added is None or not all(_is_there(folder, one) for one in added):
        return None
    table = _table_at(path, delta_version)
    return TableFiles(path, folder, added, _names(table, physical=physical))


def _brought(content: bytes) -> list[Added]:
    """What one commit file adds, without the files that were there before it and from which it
    takes rows out (a deletion vector).
    """
    removed = parse_removed(content)
    return [one for one in parse_added(content) if one.path not in removed]


def rows_in_null_partition(path: str, delta_version: int, column: str) -> int | None:
    """How many rows one commit added whose value of this partition column is null; None where
    nobody knows. Raises as `open_table`.
    """
    content = read_commit_file(open_log(rust_path(path)), delta_version)
    if content is None:
        return None
    added = [one for one in parse_added(content) if None in one.partition_values.values()]
    if not added:
        return 0
    fields = _table_at(path, delta_version).schema().fields
    name = next(
        (
            str(field.metadata.get(_PHYSICAL_NAME, field.name))
            for field in fields
            if field.name == column
        ),
        column,
    )
    rows = [one.rows for one in added if one.partition_values.get(name, "") is None]
    return None if None in rows else sum(count for count in rows if count is not None)


def files_of_today(
    path: str, offsets: Sequence[tuple[int, int]], *, physical: bool = False
) -> TableFiles:
    """The files that the table consists of now and that may hold offsets of these intervals [from,
    until), of physical logs or others.

    Raises Uncountable, and as `open_table`.
    """
    table = _opened(path)
    names = _names(table, physical=physical)
    added = [
        added_of(f, names) for f in actions_of(table) if _may_hold(f, names["offset"], offsets)
    ]
    return TableFiles(path, open_log(rust_path(path)), added, names)


def _opened(path: str) -> DeltaTable:
    table = open_table(path)
    if table is None:
        raise TableUnreachable(
            "the table is gone", path=path, check="who removed it, and whether it comes back"
        )
    return table


def _table_at(path: str, delta_version: int) -> DeltaTable:
    """The table as it was; as it is, where the log no longer reaches back. A physical name outlives
    a renaming, but not a column.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(rust_path(path), storage_options=options_of(path), version=delta_version)
    except (DeltaError, OSError):
        return _opened(path)


def _names(table: DeltaTable, *, physical: bool) -> dict[str, str]:
    """Column -> its name in files and in the log. Raises Uncountable where the table lacks one that
    is needed.
    """
    there = {
        field.name: str(field.metadata.get(_PHYSICAL_NAME, field.name))
        for field in table.schema().fields
    }
    key = row_key(physical=physical)
    lacking = next((name for name in key if name not in there and name != LOG_EPOCH), None)
    if lacking:
        raise Uncountable(f"the table has no column {lacking}")
    return {name: there[name] for name in key if name in there}


def key_columns(table: DeltaTable, *, physical: bool) -> dict[str, str] | None:
    """Column that names a record -> its name in files; None if the table lacks one of them, or has
    one of another type.
    """
    from deltalake.schema import PrimitiveType

    try:
        names = _names(table, physical=physical)
    except Uncountable:
        return None
    types = {
        field.name: field.type.type if isinstance(field.type, PrimitiveType) else ""
        for field in table.schema().fields
    }
    is_fit = all(types[name] in (("string",) if name == "topic" else _INTEGERS) for name in names)
    return names if is_fit else None


def actions_of(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """The files of the table with their partition values and statistics, as far as the log has any."""
    import pyarrow

    found = pyarrow.table(table.get_add_actions())
    wanted = [
        name
        for name in ("path", "partition", *_STATISTICS, "num_records")
        if name in found.column_names
    ]
    empty = dict[str, Any](partition={}, **{name: {} for name in _STATISTICS})
    for batch in found.select(wanted).to_batches():
        yield from ({**empty, **{k: v for k, v in f.items() if v}} for f in batch.to_pylist())


def added_of(action: Mapping[str, Any], names: Mapping[str, str]) -> Added:
    """The file of one of `actions_of`; `names`: as `key_columns` returns them."""
    return Added(action["path"], _by_physical_name(action["partition"], names))


def _by_physical_name(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str | None]:
    """delta-rs names the values of partitions as the schema does, the log by physical names."""
    return {
        names.get(name, name): None if value is None else str(value)
        for name, value in values.items()
    }


def _may_hold(file: Mapping[str, Any], offset: str, intervals: Sequence[tuple[int, int]]) -> bool:
    """Whether the file may hold such offsets, by its statistics where it has any."""
    low, high = file["min"].get(offset), file["max"].get(offset)
    if low is None or high is None:
        return True
    return any(low < until and start <= high for start, until in intervals)


def _is_there(folder: fs.FileSystem, one: Added) -> bool:
    from pyarrow import fs

    try:
        return bool(folder.get_file_info(unquote(one.path)).type == fs.FileType.File)
    except OSError as error:
        path = getattr(folder, "path", "")
        raise unreachable(error, path, "read") from behind(error, path)


def _can_be_read(folder: fs.FileSystem, one: Added) -> bool:
    """Whether its bytes come: then what went wrong is in them."""
    try:
        with folder.open_input_stream(unquote(one.path)) as stream:
            while stream.read(2**20):
                pass
    except OSError:
        return False
    return True


def _batches_of(
    folder: fs.FileSystem, one: Added, names: Mapping[str, str]
) -> Iterator[pyarrow.RecordBatch]:
    from pyarrow import parquet

    fixed = {
        name: one.partition_values[physical]
        for name, physical in names.items()
        if physical in one.partition_values
    }
    with parquet.ParquetFile(unquote(one.path), filesystem=folder) as file:
        there = set(file.schema_arrow.names)
        read = [name for name, physical in names.items() if name not in fixed and physical in there]
        if not {*fixed, *read} >= {*names} - {LOG_EPOCH}:
            return  # written before the table had the column: it is NULL in all its rows
        for batch in file.iter_batches(
            columns=[names[name] for name in read], batch_size=_ROWS_AT_ONCE
        ):
            yield _typed({name: batch.column(names[name]) for name in read}, fixed, batch.num_rows)


def _typed(
    read: Mapping[str, pyarrow.Array], fixed: Mapping[str, str | None], rows: int
) -> pyarrow.RecordBatch:
    """The columns, those that are partition values filled in, without the rows that are of no log."""
    import pyarrow

    columns = {
        name: _repeated(value, name, rows) for name, value in {LOG_EPOCH: "0", **fixed}.items()
    }
    columns |= {name: _cast(name, column) for name, column in read.items()}
    columns[LOG_EPOCH] = columns[LOG_EPOCH].fill_null(0)
    key = row_key(physical="message_index" in columns)
    return pyarrow.RecordBatch.from_pydict({name: columns[name] for name in key}).drop_null()


def _kind(name: str) -> pyarrow.DataType:
    import pyarrow

    return pyarrow.string() if name == "topic" else pyarrow.int64()


def _cast(name: str, column: pyarrow.Array) -> pyarrow.Array:
    from pyarrow import types

    of_text = (types.is_string, types.is_large_string, types.is_string_view)
    if not any(fits(column.type) for fits in (of_text if name == "topic" else (types.is_integer,))):
        raise Uncountable(f"the column {name} is {column.type}")
    return column.cast(_kind(name))


def _repeated(value: str | None, name: str, rows: int) -> pyarrow.Array:
    """The one value that a table partition gives to all its rows. In the log it is text, and no
    text is NULL.
    """
    import pyarrow

    return pyarrow.repeat(pyarrow.scalar(value or None, pyarrow.string()), rows).cast(_kind(name))
