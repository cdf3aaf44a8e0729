"""The receipts of a plan whose record a crash prevented, counted again from the rows that lie in
the table.

Owns which files are asked: those that the plan's own commit added; where they are gone, those that
the table consists of today, for a row is in one plan only. How a file is read belongs to `files`,
what rows tell of a range to `audit`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy

from etl.audit.audit import SeenMessages, SeenOffsets
from etl.edges.delta.files import TableFiles, Uncountable, files_of_commit, files_of_today
from etl.model.columns import row_key
from etl.model.partitions import BrokerPartition
from etl.model.plans import GAPS_KEPT, NOT_COUNTED, OffsetRange, RangeResult

if TYPE_CHECKING:
    import pyarrow

LogEpochs = Mapping[BrokerPartition, int]
NO_EPOCHS: LogEpochs = MappingProxyType({})
_Life = tuple[str | int | None, ...]
"""One life of one log, as rows name it: the values of `_life_columns`."""
_Seen = SeenOffsets | SeenMessages


def _life_columns(*, physical: bool) -> tuple[str, ...]:
    return tuple(
        name for name in row_key(physical=physical) if name not in ("offset", "message_index")
    )


@dataclass(frozen=True, slots=True)
class Recount:
    """What could be counted again of a plan: a receipt for each of its ranges, as far as anybody
    knows.
    """

    receipts: tuple[RangeResult, ...]
    uncounted: str | None = None
    """Why nobody can count them; the receipts are then those of rows that nobody counted."""


def recount(
    path: str,
    delta_version: int | None,
    ranges: Sequence[OffsetRange],
    log_epochs: LogEpochs = NO_EPOCHS,
    *,
    behind_transform: bool = False,
    gaps_max: int = GAPS_KEPT,
) -> Recount:
    """The receipts of `ranges`, counted from the Parquet files that commit `delta_version` added
    (None: the log forgot which).

    `log_epochs` names the life of each log that the ranges read, where it is not the first. Nobody
    knows any more how many bytes were fetched (None), nor why an offset gave no row: all of those
    are `missing_offsets`, but for physical logs, of whose byte positions nobody can say which
    should have one. Rows that no range names are passed over: `verify` finds them. What can never
    be counted is no error, a run must go on; raises TableUnreachable, and as `open_table`, where a
    later try may help.
    """
    physical = _are_physical(ranges)
    try:
        found = (
            files_of_commit(path, delta_version, physical=physical)
            if delta_version is not None
            else None
        )
        if found is None:
            found = files_of_today(
                path, [(r.from_offset, r.until_offset) for r in ranges], physical=physical
            )
        receipts = _recounted(found, ranges, log_epochs, gaps_max)
    except Uncountable as why:
        return Recount((NOT_COUNTED,) * len(ranges), str(why))
    return Recount(
        tuple(replace(receipt, behind_transform=behind_transform) for receipt in receipts)
    )


def recount_commit(
    path: str,
    delta_version: int,
    ranges: Sequence[OffsetRange],
    log_epochs: LogEpochs = NO_EPOCHS,
) -> tuple[RangeResult, ...] | None:
    """The same from the commit's own files alone, whatever the table holds today; None where they
    are gone or cannot be counted.
    """
    try:
        found = files_of_commit(path, delta_version, physical=_are_physical(ranges))
        return _recounted(found, ranges, log_epochs, GAPS_KEPT) if found else None
    except Uncountable:
        return None


def _recounted(
    files: TableFiles, ranges: Sequence[OffsetRange], log_epochs: LogEpochs, gaps_max: int
) -> tuple[RangeResult, ...]:
    seen: dict[int, _Seen] = {
        i: SeenMessages(r) if r.log.is_physical else SeenOffsets(r) for i, r in enumerate(ranges)
    }
    by_log, columns = _by_log(ranges, log_epochs), _life_columns(physical=_are_physical(ranges))
    for batch in files.rows():
        _count(batch, columns, by_log, seen)
    return tuple(seen[i].receipt(gaps_max) for i in range(len(ranges)))


def _are_physical(ranges: Sequence[OffsetRange]) -> bool:
    return any(r.log.is_physical for r in ranges)


def _by_log(
    ranges: Sequence[OffsetRange], log_epochs: LogEpochs
) -> dict[_Life, list[tuple[int, OffsetRange]]]:
    found: dict[_Life, list[tuple[int, OffsetRange]]] = {}
    for i, r in enumerate(ranges):
        named = {**r.log.place, "log_epoch": log_epochs.get(r.log, 0)}
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
    """Give each record of a batch to its range: the batch is cut into the runs of one log, the run
    is sorted and cut by bounds.
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
