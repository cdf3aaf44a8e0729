"""Which offsets do the table's files hold, where a crash lost the results of a plan?

Reads the key columns from the Parquet files of the plan's commit; if those are gone, from the
table's current files, for a row is in one plan only. A column may have a physical name (Delta
protocol, "Column Mapping"), and partition columns are in the log. No query engine reads here, so no
table feature is in the way. Rows that a deletion vector marks are read, too: they were there once.

Not here: what the rows prove (etl/audit/audit.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy

from etl.audit.audit import ObservedMessages, ObservedOffsets
from etl.errors import TableUnreachable
from etl.io.delta.log import Added, open_log, parse_added, parse_removed, read_commit_file
from etl.io.delta.stores import behind, options_of, unreachable
from etl.io.delta.table import open_table, rust_path
from etl.model.columns import row_key
from etl.model.partitions import BrokerPartition
from etl.model.plans import GAPS_KEPT, NOT_COUNTED, OffsetRange, RangeResult

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyarrow import fs


INCARNATION = "incarnation"
"""A table may lack it, or rows may have NULL there: they are of the log's first life, 0."""
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_ROWS_AT_ONCE = 2**17
_INTEGERS = ("byte", "short", "integer", "long")
_STATISTICS = ("min", "max", "null_count")


class Uncountable(Exception):
    """Why rows cannot be counted; a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Parquet files of a table, and what the columns are called in them."""

    path: str
    folder: fs.FileSystem
    added: Sequence[Added]
    names: Mapping[str, str]
    """Those that name a record, `columns.row_key`."""

    def rows(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the key columns of each row, topic as string, all else int64, in batches; rows
        without a record are left out. Raises Uncountable for a missing or damaged file and for
        other column types, TableUnreachable.
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
    """Return the files that a commit adds, without those from which it only deletes rows (a
    deletion vector).
    """
    removed = parse_removed(content)
    return [one for one in parse_added(content) if one.path not in removed]


def rows_in_null_partition(path: str, delta_version: int, column: str) -> int | None:
    """Return how many rows of a commit have null in this partition column; None if unknown. Raises
    as `open_table`.
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
            "The table is gone", path=path, action="Check who removed it, and whether it comes back"
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
    lacking = next((name for name in key if name not in there and name != INCARNATION), None)
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
    """True if the file may hold such offsets, by its statistics."""
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
    """True if its bytes can be read: then its content is the problem."""
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
        if not {*fixed, *read} >= {*names} - {INCARNATION}:
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
        name: _repeated(value, name, rows) for name, value in {INCARNATION: "0", **fixed}.items()
    }
    columns |= {name: _cast(name, column) for name, column in read.items()}
    columns[INCARNATION] = columns[INCARNATION].fill_null(0)
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


Incarnations = Mapping[BrokerPartition, int]
NO_INCARNATIONS: Incarnations = MappingProxyType({})
_Life = tuple[str | int | None, ...]
"""One life of one log, as rows name it: the values of `_life_columns`."""
_Seen = ObservedOffsets | ObservedMessages


def _life_columns(*, physical: bool) -> tuple[str, ...]:
    return tuple(
        name for name in row_key(physical=physical) if name not in ("offset", "message_index")
    )


@dataclass(frozen=True, slots=True)
class Recount:
    """What was recounted of a plan: a result for each range, as far as known."""

    receipts: tuple[RangeResult, ...]
    uncounted: str | None = None
    """Why rows could not be counted; the results are then placeholders."""


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

    `incarnations`: incarnations other than the first. Fetched bytes are unknown (None), and all
    offsets without a row are `missing_offsets`, but on Jafka, where nobody knows which should have
    one. Rows outside all ranges are ignored; `verify` finds them. What can never be counted is no
    error; raises TableUnreachable, and as `open_table`, if a later try may help.
    """
    physical = _are_physical(ranges)
    try:
        if delta_version is not None:
            found = files_of_commit(path, delta_version, physical=physical)
        else:
            found = None
        if found is None:
            found = files_of_today(
                path, [(r.from_offset, r.until_offset) for r in ranges], physical=physical
            )
        receipts = _recounted(found, ranges, incarnations, gaps_max)
    except Uncountable as why:
        return Recount((NOT_COUNTED,) * len(ranges), str(why))
    return Recount(
        tuple(replace(receipt, behind_transform=behind_transform) for receipt in receipts)
    )


def recount_commit(
    path: str,
    delta_version: int,
    ranges: Sequence[OffsetRange],
    incarnations: Incarnations = NO_INCARNATIONS,
) -> tuple[RangeResult, ...] | None:
    """Return the same from the commit's own files only; None if they are gone or cannot be counted."""
    try:
        found = files_of_commit(path, delta_version, physical=_are_physical(ranges))
        return _recounted(found, ranges, incarnations, GAPS_KEPT) if found else None
    except Uncountable:
        return None


def _recounted(
    files: TableFiles, ranges: Sequence[OffsetRange], incarnations: Incarnations, gaps_max: int
) -> tuple[RangeResult, ...]:
    seen: dict[int, _Seen] = {
        i: ObservedMessages(r) if r.log.is_physical else ObservedOffsets(r)
        for i, r in enumerate(ranges)
    }
    by_log, columns = _by_log(ranges, incarnations), _life_columns(physical=_are_physical(ranges))
    for batch in files.rows():
        _count(batch, columns, by_log, seen)
    return tuple(seen[i].receipt(gaps_max) for i in range(len(ranges)))


def _are_physical(ranges: Sequence[OffsetRange]) -> bool:
    return any(r.log.is_physical for r in ranges)


def _by_log(
    ranges: Sequence[OffsetRange], incarnations: Incarnations
) -> dict[_Life, list[tuple[int, OffsetRange]]]:
    found: dict[_Life, list[tuple[int, OffsetRange]]] = {}
    for i, r in enumerate(ranges):
        named = {**r.log.place, "incarnation": incarnations.get(r.log, 0)}
        found.setdefault(
            tuple(named[name] for name in _life_columns(physical=r.log.is_physical)), []
        ).append((i, r))
    return {
        log: sorted(members, key=lambda member: member[1].from_offset)
        for log, members in found.items()
    }


def _count(
    batch: pyarrow.RecordBatch,
    columns: Sequence[str],
    by_log: Mapping[_Life, list[tuple[int, OffsetRange]]],
    seen: Mapping[int, _Seen],
) -> None:
    """Add each record of a batch to its range: the batch is split into runs of one partition, which
    are sorted and split by bounds.
    """
    for log, run in _runs(batch, columns):
        order = numpy.argsort(run[0], kind="stable")
        offsets, *indices = (column[order] for column in run)
        for i, r in by_log.get(log, ()):
            low, high = numpy.searchsorted(offsets, (r.from_offset, r.until_offset))
            seen[i].add(offsets[low:high], *(column[low:high] for column in indices))


def _runs(batch: pyarrow.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[_Life, list[Any]]]:
    """The offsets of each log in a batch, and, where they have such, the messages' indices."""
    import pyarrow
    from pyarrow import compute

    within = [name for name in batch.schema.names if name not in columns]
    places = [batch.column(name).to_numpy(zero_copy_only=False) for name in within]
    logs = pyarrow.Table.from_batches([batch]).group_by([*columns]).aggregate([])
    for log in logs.to_pylist():
        mine = functools.reduce(
            compute.and_, (compute.equal(batch.column(name), log[name]) for name in columns)
        )
        mask = mine.to_numpy(zero_copy_only=False)
        yield tuple(log[name] for name in columns), [place[mask] for place in places]
