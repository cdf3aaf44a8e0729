"""Byte positions that somebody else told, in logs where most lie inside an entry: which are looked
at.

A range that begins inside an entry can never be read, and once it is stored every run stops there.
So whatever is about to become a position of a physical log (0.7 family), and was neither named by
its broker nor reached by a plan of ours, is looked at before:

    an offset that the group committed in a log that was never read
    an offset that somebody moved
    where a plan begins that is stored and not in the table, for one of an earlier version was stored unseen
    an offset that an operator names: up to where a log is what was read, or where what is skipped ends

How it is looked at belongs to `edges.brokers.entries`, what becomes of a bad one to
`misplaced_offsets`. Pure functions of values.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from etl.decisions.start import starts_of
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    Committed,
    DoubtedOffset,
    PartitionOffsets,
)
from etl.model.plans import LossReason, Plan
from etl.model.snapshot import Table

Named = Callable[[BrokerPartition], Collection[int]]
"""Which offsets of a log an operator names."""


def none_named(log: BrokerPartition) -> Collection[int]:
    """As in a run: nobody names any."""
    return ()


def doubted_offsets(
    plan: Plan | None,
    table: Table | None,
    committed: Mapping[BrokerPartition, Committed],
    extents: Mapping[BrokerPartition, PartitionOffsets],
    named: Named = none_named,
) -> tuple[DoubtedOffset, ...]:
    """What is looked at, in order. `plan` is the one in force."""
    is_left = plan is not None and plan.number > ((table.transaction_version or 0) if table else 0)
    kept = _kept_by(plan) if plan and is_left else {}
    found = list[DoubtedOffset]()
    for log, extent in sorted(extents.items()):
        if extent.boundaries is not None:
            said = {
                offset: one for offset in named(log) for one in _inside(offset, log, extent, ())
            }
            others = _doubted(log, extent, plan, committed.get(log, NOTHING_COMMITTED), kept)
            found += [*said.values(), *(one for one in others if one.offset not in said)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where a plan that is left begins in one log."""

    offset: int
    ours: tuple[int, ...] = ()
    """Where we were before somebody moved the offset there."""
    is_skips_end: bool = False
    """An operator said it, with what lies before it."""


def _kept_by(plan: Plan) -> dict[BrokerPartition, _Kept]:
    kept = {log: _Kept(start) for log, start in starts_of(plan).items()}
    for loss in plan.losses:
        one = kept.get(loss.log)
        if (
            one
            and loss.until_offset == one.offset
            and loss.log_epoch == plan.log_epochs.get(loss.log, 0)
        ):
            ours = (*one.ours, loss.from_offset) if loss.why is LossReason.MOVED else one.ours
            kept[loss.log] = _Kept(
                one.offset, ours, one.is_skips_end or loss.why is LossReason.SKIPPED
            )
    return kept


def _doubted(
    log: BrokerPartition,
    extent: PartitionOffsets,
    plan: Plan | None,
    found: Committed,
    kept: Mapping[BrokerPartition, _Kept],
) -> Iterator[DoubtedOffset]:
    if log in kept:
        if not kept[log].is_skips_end:
            yield from _inside(kept[log].offset, log, extent, kept[log].ours, is_kept=True)
        if found.offset != kept[log].offset:
            yield from _inside(found.offset, log, extent, kept[log].ours)
    elif plan is None or log not in plan.positions:
        yield from _inside(found.offset, log, extent, ())
    elif found.offset != plan.seen[log].offset:  # else the plan moves it yet
        yield from _inside(found.offset, log, extent, (plan.positions[log],))


def _inside(
    offset: int | None,
    log: BrokerPartition,
    extent: PartitionOffsets,
    ours: Sequence[int],
    *,
    is_kept: bool = False,
) -> Iterator[DoubtedOffset]:
    """The offset, where it lies inside the log and an entry begins there neither by what its broker
    names nor by what is `ours`.
    """
    if offset is None or not extent.log_start_offset < offset < extent.end_offset or offset in ours:
        return
    named = extent.boundaries or (extent.log_start_offset,)
    above = bisect_right(named, offset)
    if named[above - 1] != offset:
        walk_from = max([named[above - 1], *(each for each in ours if each < offset)])
        yield DoubtedOffset(
            log, offset, walk_from, min([extent.end_offset, *named[above : above + 1]]), is_kept
        )
