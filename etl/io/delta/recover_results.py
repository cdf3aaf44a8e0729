"""Which offsets do the table's files hold, if a crash lost the results of a plan?

Reads the key columns from the Parquet files of the plan's commit; if those are gone, from the
table's current files, as a row belongs to one plan only. A column may have a physical name (Delta
protocol, "Column Mapping"), and the values of partition columns are in the table's log. The files
are read without a query engine, so unsupported table features do not matter: of a table with column
mapping delta-rs' reader for pyarrow returns NULL for all columns, and it rejects deletion vectors.
Rows that a deletion vector marks are counted, too: the plan wrote them.

Not here: the conclusions from the rows (etl/audit/compare_rows.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy

from etl.audit.compare_rows import ObservedMessages, ObservedOffsets
from etl.errors import TableUnreachable
from etl.io.delta.log import (
    PHYSICAL_NAME,
    Added,
    open_log,
    parse_added,
    parse_removed,
    read_commit_file,
)
from etl.io.delta.stores import options_of, public_cause, unreachable
from etl.io.delta.table_shape import open_table, rust_path
from etl.model.columns import row_key
from etl.model.partitions import TopicPartition
from etl.model.plans import GAPS_KEPT, NOT_COUNTED, OffsetRange, RangeResult

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyarrow import fs


INCARNATION = "incarnation"
"""Column that a table may lack, or that may be NULL: such rows are of the first incarnation, 0."""
_ROWS_AT_ONCE = 2**17
_INTEGERS = ("byte", "short", "integer", "long")
_STATISTICS = ("min", "max", "null_count")


class Uncountable(Exception):
    """The reason why rows cannot be counted: a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Parquet files of a table, with the names of their columns."""

    path: str
    folder: fs.FileSystem
    added: Sequence[Added]
    names: Mapping[str, str]
    """The columns of `columns.row_key`: column -> its name in the files."""

    def rows(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the key columns of each row in batches, without rows that belong to no record.

        topic is string, all other columns are int64. Raises Uncountable for a missing or damaged
        file and for other column types, TableUnreachable.
        """
        for file in self.added:
            yield from self._rows_of(file)

    def _rows_of(self, file: Added) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        try:
            yield from _batches_of(self.folder, file, self.names)
        except FileNotFoundError as error:
            raise Uncountable(f"the file {file.path} is gone") from error
        except (OSError, pyarrow.ArrowException) as error:
            if isinstance(error, OSError) and not _can_be_read(self.folder, file):
                raise unreachable(error, self.path, "read") from public_cause(error, self.path)
            raise Uncountable(
                f"the file {file.path} is damaged: {str(error).splitlines()[0]}"
            ) from error


def files_of_commit(path: str, delta_version: int, *, physical: bool = False) -> TableFiles | None:
    """Return the files that one commit added; None if the commit or one of them is gone.

    `physical`: the rows are of Jafka partitions. Raises Uncountable, and as `open_table`.
    """
    folder = open_log(rust_path(path))
    content = read_commit_file(folder, delta_version)
    if content is None:
        return None
    added = _files_with_new_rows(content)
    if not all(_exists(folder, file) for file in added):
        return None
    table = _table_at(path, delta_version)
    return TableFiles(path, folder, added, _names(table, physical=physical))


def _files_with_new_rows(content: bytes) -> list[Added]:
    """Return the files that a commit adds, without those from which it only deletes rows (a
    deletion vector).
    """
    removed = parse_removed(content)
    added = parse_added(content)
    return [file for file in added if file.path not in removed]


def rows_of_commit(path: str, delta_version: int) -> int | None:
    """Return how many rows a commit added, by its own counts; None if unknown.

    Raises as `open_table`.
    """
    content = read_commit_file(open_log(rust_path(path)), delta_version)
    if content is None:
        return None
    rows = 0
    for file in parse_added(content):
        if file.rows is None:
            return None
        rows += file.rows
    return rows


def rows_in_null_partition(path: str, delta_version: int, column: str) -> int | None:
    """Return how many rows of a commit have null in this partition column; None if unknown.

    Raises as `open_table`.
    """
    content = read_commit_file(open_log(rust_path(path)), delta_version)
    if content is None:
        return None
    added = []
    for file in parse_added(content):
        if None in file.partition_values.values():
            added.append(file)
    if not added:
        return 0
    table = _table_at(path, delta_version)
    name = _names_in_files(table).get(column, column)
    rows = 0
    for file in added:
        if file.partition_values.get(name, "") is not None:
            continue
        if file.rows is None:
            return None
        rows += file.rows
    return rows


def files_of_today(
    path: str, offsets: Sequence[tuple[int, int]], *, physical: bool = False
) -> TableFiles:
    """Return the current files of the table that may hold offsets of these intervals [from, until).

    `physical`: the rows are of Jafka partitions. Raises Uncountable, and as `open_table`.
    """
    table = _opened(path)
    names = _names(table, physical=physical)
    added = []
    for file in actions_of(table):
        if may_hold_offsets(file, names["offset"], offsets):
            added.append(added_of(file, names))
    return TableFiles(path, open_log(rust_path(path)), added, names)


def _opened(path: str) -> DeltaTable:
    table = open_table(path)
    if table is None:
        raise TableUnreachable(
            "The table is gone", path=path, action="Check who removed it, and whether it comes back"
        )
    return table


def _table_at(path: str, delta_version: int) -> DeltaTable:
    """Return the table at that version; the current one if the log no longer reaches back.

    A physical name survives the renaming of a column, but not its deletion.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(rust_path(path), storage_options=options_of(path), version=delta_version)
    except (DeltaError, OSError):
        return _opened(path)


def _names_in_files(table: DeltaTable) -> dict[str, str]:
    """Return column -> its name in files and in the log, for all columns."""
    names = {}
    for field in table.schema().fields:
        names[field.name] = str(field.metadata.get(PHYSICAL_NAME, field.name))
    return names


def _names(table: DeltaTable, *, physical: bool) -> dict[str, str]:
    """Return key column -> its name in files and in the log.

    Raises Uncountable if the table lacks a required column.
    """
    in_files = _names_in_files(table)
    names = {}
    for name in row_key(physical=physical):
        if name in in_files:
            names[name] = in_files[name]
        elif name != INCARNATION:
            raise Uncountable(f"the table has no column {name}")
    return names


def key_columns(table: DeltaTable, *, physical: bool) -> dict[str, str] | None:
    """Return key column -> its name in files; None if a column is missing or has another type."""
    from deltalake.schema import PrimitiveType

    try:
        names = _names(table, physical=physical)
    except Uncountable:
        return None
    for field in table.schema().fields:
        if field.name not in names:
            continue
        allowed = ("string",) if field.name == "topic" else _INTEGERS
        if not isinstance(field.type, PrimitiveType) or field.type.type not in allowed:
            return None
    return names


def actions_of(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the table's files with their partition values, and with statistics if the log has
    any.
    """
    import pyarrow

    found = pyarrow.table(table.get_add_actions())
    columns = ("path", "partition", *_STATISTICS, "num_records")
    wanted = [name for name in columns if name in found.column_names]
    empty: dict[str, Any] = {"partition": {}}
    for name in _STATISTICS:
        empty[name] = {}
    for batch in found.select(wanted).to_batches():
        for file in batch.to_pylist():
            present = {name: value for name, value in file.items() if value}
            yield empty | present


def added_of(action: Mapping[str, Any], names: Mapping[str, str]) -> Added:
    """Return the file of one of `actions_of`; `names`: as `key_columns` returns them."""
    return Added(action["path"], _by_physical_name(action["partition"], names))


def _by_physical_name(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str | None]:
    """Return partition values by physical name, as in the log; delta-rs uses the schema's names."""
    renamed: dict[str, str | None] = {}
    for name, value in values.items():
        renamed[names.get(name, name)] = None if value is None else str(value)
    return renamed


def may_hold_offsets(
    file: Mapping[str, Any], offset: str, intervals: Sequence[tuple[int, int]]
) -> bool:
    """Return True if the file may hold such offsets, by its statistics."""
    low = file["min"].get(offset)
    high = file["max"].get(offset)
    if low is None or high is None:
        return True
    return any(low < until and start <= high for start, until in intervals)


def _exists(folder: fs.FileSystem, file: Added) -> bool:
    from pyarrow import fs

    try:
        return bool(folder.get_file_info(unquote(file.path)).type == fs.FileType.File)
    except OSError as error:
        path = getattr(folder, "path", "")
        raise unreachable(error, path, "read") from public_cause(error, path)


def _can_be_read(folder: fs.FileSystem, file: Added) -> bool:
    """Return True if the file's bytes can be read: then its content is the problem."""
    try:
        with folder.open_input_stream(unquote(file.path)) as stream:
            while stream.read(2**20):
                pass
    except OSError:
        return False
    return True


def _batches_of(
    folder: fs.FileSystem, file: Added, names: Mapping[str, str]
) -> Iterator[pyarrow.RecordBatch]:
    from pyarrow import parquet

    fixed = {}
    for name, physical in names.items():
        if physical in file.partition_values:
            fixed[name] = file.partition_values[physical]
    with parquet.ParquetFile(unquote(file.path), filesystem=folder) as opened:
        there = set(opened.schema_arrow.names)
        read = []
        for name, physical in names.items():
            if name not in fixed and physical in there:
                read.append(name)
        if not {*fixed, *read} >= {*names} - {INCARNATION}:
            # Written before the table had the column: it is NULL in all rows of the file.
            return
        columns = [names[name] for name in read]
        for batch in opened.iter_batches(columns=columns, batch_size=_ROWS_AT_ONCE):
            values = {name: batch.column(names[name]) for name in read}
            yield _typed(values, fixed, batch.num_rows)


def _typed(
    read: Mapping[str, pyarrow.Array], fixed: Mapping[str, str | None], rows: int
) -> pyarrow.RecordBatch:
    """Return the key columns, with partition values filled in, without rows that have a NULL."""
    import pyarrow

    columns = {INCARNATION: _repeated("0", INCARNATION, rows)}
    for name, value in fixed.items():
        columns[name] = _repeated(value, name, rows)
    for name, column in read.items():
        columns[name] = _cast(name, column)
    columns[INCARNATION] = columns[INCARNATION].fill_null(0)
    key = row_key(physical="message_index" in columns)
    in_order = {name: columns[name] for name in key}
    return pyarrow.RecordBatch.from_pydict(in_order).drop_null()


def _kind(name: str) -> pyarrow.DataType:
    import pyarrow

    return pyarrow.string() if name == "topic" else pyarrow.int64()


def _cast(name: str, column: pyarrow.Array) -> pyarrow.Array:
    from pyarrow import types

    tests = [types.is_integer]
    if name == "topic":
        tests = [types.is_string, types.is_large_string, types.is_string_view]
    if not any(is_fit(column.type) for is_fit in tests):
        raise Uncountable(f"the column {name} is {column.type}")
    return column.cast(_kind(name))


def _repeated(value: str | None, name: str, rows: int) -> pyarrow.Array:
    """Return a partition value for all rows of a file. In the log it is text; no text is NULL."""
    import pyarrow

    return pyarrow.repeat(pyarrow.scalar(value or None, pyarrow.string()), rows).cast(_kind(name))


Incarnations = Mapping[TopicPartition, int]
NO_INCARNATIONS: Incarnations = MappingProxyType({})
_Incarnation = tuple[str | int | None, ...]
"""One incarnation of a partition, as rows name it: the values of `incarnation_columns`."""
_Observed = ObservedOffsets | ObservedMessages


def incarnation_columns(*, physical: bool) -> tuple[str, ...]:
    """Return the columns that name a partition and its incarnation."""
    key = row_key(physical=physical)
    return tuple(name for name in key if name not in ("offset", "message_index"))


@dataclass(frozen=True, slots=True)
class Recount:
    """The recounted results of a plan, one for each range."""

    results: tuple[RangeResult, ...]
    uncounted: str | None = None
    """The reason why rows could not be counted; the results are placeholders then."""


def recount(
    path: str,
    delta_version: int | None,
    ranges: Sequence[OffsetRange],
    incarnations: Incarnations = NO_INCARNATIONS,
    *,
    behind_transform: bool = False,
    gaps_max: int = GAPS_KEPT,
) -> Recount:
    """Return the results of `ranges`, counted in the Parquet files that commit `delta_version`
    added (None: unknown).

    `incarnations`: incarnations other than the first. Fetched bytes are unknown (None). All offsets
    without a row are `missing_offsets`, but not on Jafka, where offsets are bytes; the files do not
    show why, nor, after a transform, whether there was a record. Rows outside all
    ranges are ignored; `verify` finds them. Rows that can never be counted raise no error (see
    `Recount.uncounted`). Raises TableUnreachable, and as `open_table`, if a later try may help.
    """
    physical = _are_physical(ranges)
    try:
        found = None
        if delta_version is not None:
            found = files_of_commit(path, delta_version, physical=physical)
        if found is None:
            intervals = [(r.from_offset, r.until_offset) for r in ranges]
            found = files_of_today(path, intervals, physical=physical)
        results = _recounted(found, ranges, incarnations, gaps_max)
    except Uncountable as reason:
        return Recount((NOT_COUNTED,) * len(ranges), str(reason))
    return Recount(tuple(replace(result, behind_transform=behind_transform) for result in results))


def recount_commit(
    path: str,
    delta_version: int,
    ranges: Sequence[OffsetRange],
    incarnations: Incarnations = NO_INCARNATIONS,
) -> tuple[RangeResult, ...] | None:
    """Return the same from the commit's own files only; None if they are gone or cannot be
    counted.
    """
    try:
        found = files_of_commit(path, delta_version, physical=_are_physical(ranges))
        if found is None:
            return None
        return _recounted(found, ranges, incarnations, GAPS_KEPT)
    except Uncountable:
        return None


class _RowCount:
    """The number of rows of one range, duplicates included."""

    def __init__(self) -> None:
        self.rows = 0

    def add(self, offsets: Any, *_indices: Any) -> None:
        """Add rows of the range."""
        self.rows += len(offsets)


def count_rows(
    files: TableFiles, ranges: Sequence[OffsetRange], incarnations: Incarnations
) -> list[int]:
    """Return the number of rows of each range in these files. Raises as `TableFiles.rows`."""
    counts = [_RowCount() for _ in ranges]
    by_incarnation = _by_incarnation(ranges, incarnations)
    columns = incarnation_columns(physical=_are_physical(ranges))
    for batch in files.rows():
        _count(batch, columns, by_incarnation, counts)
    return [count.rows for count in counts]


def _recounted(
    files: TableFiles, ranges: Sequence[OffsetRange], incarnations: Incarnations, gaps_max: int
) -> tuple[RangeResult, ...]:
    observed: list[_Observed] = []
    for r in ranges:
        if r.partition.is_physical:
            observed.append(ObservedMessages(r))
        else:
            observed.append(ObservedOffsets(r))
    by_incarnation = _by_incarnation(ranges, incarnations)
    columns = incarnation_columns(physical=_are_physical(ranges))
    for batch in files.rows():
        _count(batch, columns, by_incarnation, observed)
    return tuple(found.result(gaps_max) for found in observed)


def _are_physical(ranges: Sequence[OffsetRange]) -> bool:
    return any(r.partition.is_physical for r in ranges)


def _by_incarnation(
    ranges: Sequence[OffsetRange], incarnations: Incarnations
) -> dict[_Incarnation, list[tuple[int, OffsetRange]]]:
    """Return the ranges of each incarnation with their numbers, in ascending order of offsets."""
    found: dict[_Incarnation, list[tuple[int, OffsetRange]]] = {}
    for i, r in enumerate(ranges):
        values = {**r.partition.place, "incarnation": incarnations.get(r.partition, 0)}
        columns = incarnation_columns(physical=r.partition.is_physical)
        incarnation = tuple(values[name] for name in columns)
        found.setdefault(incarnation, []).append((i, r))
    for members in found.values():
        members.sort(key=lambda member: member[1].from_offset)
    return found


def _count(
    batch: pyarrow.RecordBatch,
    columns: Sequence[str],
    by_incarnation: Mapping[_Incarnation, list[tuple[int, OffsetRange]]],
    observed: Sequence[_Observed | _RowCount],
) -> None:
    """Add each record of a batch to its range: the batch is split by incarnation; each part is
    sorted by offset and split at the bounds of the ranges.
    """
    for incarnation, part in _split(batch, columns):
        order = numpy.argsort(part[0], kind="stable")
        offsets, *indices = (column[order] for column in part)
        for i, r in by_incarnation.get(incarnation, ()):
            low, high = numpy.searchsorted(offsets, (r.from_offset, r.until_offset))
            observed[i].add(offsets[low:high], *(column[low:high] for column in indices))


def _split(
    batch: pyarrow.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[_Incarnation, list[Any]]]:
    """Yield each incarnation of a batch with its offsets and, on Jafka, its message indices."""
    import pyarrow
    from pyarrow import compute

    within = [name for name in batch.schema.names if name not in columns]
    values = [batch.column(name).to_numpy(zero_copy_only=False) for name in within]
    incarnations = pyarrow.Table.from_batches([batch]).group_by([*columns]).aggregate([])
    for incarnation in incarnations.to_pylist():
        equal = [compute.equal(batch.column(name), incarnation[name]) for name in columns]
        mask = functools.reduce(compute.and_, equal).to_numpy(zero_copy_only=False)
        yield tuple(incarnation[name] for name in columns), [column[mask] for column in values]
