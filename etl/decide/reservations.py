"""Who may load which offsets: the live pipeline, or a backfill?

Lives here: the offsets of each side, rejections of plans that overlap them, what a backfill keeps
of its reservation, and its results without the released offsets.
Not here: which offsets a new backfill reserves (etl/decide/backfill.py), storing reservations
(etl/io/zookeeper/ledger_side_documents.py).

    pipeline            reserves
    -----------------   ----------------------------------------------------------------------------
    a backfill          its intervals, from its beginning; once abandoned, the offsets it has loaded
    the live pipeline   all that its plans loaded, and all from the end of its newest plan on

Offsets before the pipeline's end that were never loaded are free until a backfill reserves them, an
operator sets the offset back, or a replay reads them. Each of these writes the reservation lock
at the version read before the other reservations: of two at the same moment one is rejected (ADR
22). A plan that continues where the last one ended reserves nothing new.

An abandoned or finished backfill releases offsets without rows, after an operator accepted the
removal of the rows. Offsets that never had a row are not searched if the number of rows is right.
On Jafka an interval is released only if the table has none of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.loaded_intervals import (
    OFFSETS_END,
    ancestry,
    interval_of,
    is_exact,
    split_around_spans,
    subtract_intervals,
)
from etl.decide.offsets import starts_of
from etl.decide.table_changes import known_in_table
from etl.errors import LedgersDisagree, NeedsDecision, Owned
from etl.model.partitions import BrokerPartition
from etl.model.plans import (
    GAPS_KEPT,
    NOT_COUNTED,
    CommitResult,
    OffsetRange,
    Plan,
    PlanKind,
    RangeResult,
)
from etl.model.snapshot import (
    Interval,
    Ledger,
    LoadedIntervals,
    Replay,
    Reservation,
    Reservations,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
)

Stretches = Mapping[BrokerPartition, Sequence[tuple[int, int]]]
"""Offsets [from, until) of each partition."""

_SETS_OFFSETS = (PlanKind.RESET, PlanKind.SET, PlanKind.TAKE_OVER)


def newly_reserved(plan: Plan, last: Plan | None) -> dict[BrokerPartition, int]:
    """Return the start offsets at which a plan of the live pipeline reserves free offsets.

    These are new partitions, other incarnations, and partitions that were set back.
    `last`: the newest stored plan, which this one may replace.
    """
    starts = starts_of(plan)
    if last is None:
        return starts
    starts_before = starts_of(last)
    reserved = {}
    for log, start in starts.items():
        is_same_incarnation = plan.incarnations.get(log, 0) == last.incarnations.get(log, 0)
        if log not in starts_before or not is_same_incarnation or start < starts_before[log]:
            reserved[log] = start
    return reserved


def updates_reservation_lock(plan: Plan, last: Plan | None) -> bool:
    """True if a plan of the live pipeline reserves free offsets.

    A replay may read offsets that were given up.
    """
    return plan.kind is PlanKind.REPLAY or bool(newly_reserved(plan, last))


def reject_reserved(plan: Plan, last: Plan | None, claims: Reservations) -> None:
    """Reject a plan of the live pipeline that begins before or inside a backfill's reservation.

    Raises NeedsDecision.
    """
    for log, start in sorted(newly_reserved(plan, last).items()):
        for claim in claims.of(plan.table.id):
            reserved = _reserved_against(plan, claim, log, last)
            overlapping = [part for part in reserved if start < part[1]]
            if not overlapping:
                continue
            low, high = overlapping[0]
            reserved_until = overlapping[-1][1]
            message = (
                f"The pipeline would begin at offset {start}, and backfill {claim.name} "
                f"has reserved offsets {max(low, start)} to {high}"
            )
            action = (
                f"Run `etl backfills show CONF {claim.name}`. Set an offset of at least "
                f"{reserved_until}, or run {_delete_command(claim.name)}, which releases "
                "the offsets that it has not loaded and those whose rows were deleted since"
            )
            raise NeedsDecision(message, **log.place, offset=start, action=action)


def _delete_command(name: str) -> str:
    return f"`etl backfills delete CONF {name} --reason ...`"


def _reserved_against(
    plan: Plan, claim: Reservation, log: BrokerPartition, last: Plan | None
) -> list[tuple[int, int]]:
    """Return the offsets of a partition that a reservation holds against a plan.

    A reservation of an earlier incarnation holds all before the pipeline's start offset.
    """
    incarnation = plan.incarnations.get(log, 0)
    parts = list(claim.stretches.get(log, ()))
    if last is None or log not in last.positions or claim.incarnation_of(log) == incarnation:
        return parts
    if last.incarnations.get(log, 0) != incarnation:
        return []
    pipeline_start = starts_of(last)[log]
    below_start = []
    for start, end in parts:
        if start < pipeline_start:
            below_start.append((start, min(end, pipeline_start)))
    return below_start


def reject_restart_of_reserved_partition(
    plan: Plan, last: Plan, left: Mapping[str, Collection[BrokerPartition]]
) -> None:
    """Reject a plan that begins another incarnation of a partition while a backfill loads it.

    The backfill would read other records. `left`: the unfinished partitions of each backfill.
    Raises NeedsDecision.
    """
    restarted = set()
    for log, incarnation in plan.incarnations.items():
        if incarnation != last.incarnations.get(log, 0):
            restarted.add(log)
    for name, logs in sorted(left.items()):
        for log in sorted(restarted.intersection(logs)):
            message = (
                f"Backfill {name} has not loaded all offsets that it has reserved "
                "of this partition before the change"
            )
            action = (
                f"Run {_delete_command(name)}, which keeps the loaded rows. "
                "Then run this command again"
            )
            raise NeedsDecision(message, **log.place, action=action)


def reserved_by_pipeline(
    state: UpToDate | Replay | Supersede,
    stored: Sequence[tuple[Plan, bool]],
    coverage: LoadedIntervals,
    transaction_version: int,
) -> dict[BrokerPartition, list[tuple[int, int]]]:
    """Return the offsets of the live pipeline, of each partition's current incarnation.

    `stored`: kept plans, and whether each is recorded. `coverage`: all recorded intervals, for the
    table at this transaction version. A plan that is not in it and was given up by an operator
    reserves nothing. Raises Owned if a stored plan must be executed first.
    """
    newest = _newest_plan(state)
    if isinstance(state, UpToDate):
        ends: Mapping[BrokerPartition, int] = newest.positions
    else:
        previous = None
        for plan, _ in stored:
            if plan.number == newest.number - 1:
                previous = plan
        ends = _ends_before(newest, previous)
    versions = {plan.number: plan.table.transaction_version for plan, _ in stored}
    in_table = ancestry(versions, transaction_version).numbers
    unrecorded = []
    for plan, is_recorded in stored:
        if not is_recorded and (plan.number in in_table or plan.number >= newest.number):
            unrecorded.append(plan)
    if not isinstance(state, UpToDate) or newest.number <= transaction_version:
        unrecorded.append(newest)

    held = {log: [(end, OFFSETS_END)] for log, end in ends.items()}
    for log, intervals in coverage.intervals.items():
        parts = held.setdefault(log, [])
        for interval in intervals:
            if interval.incarnation == newest.incarnations.get(log, 0):
                parts.append(_offsets(interval))
    for plan in unrecorded:
        for r in plan.ranges:
            if plan.incarnations.get(r.log, 0) == newest.incarnations.get(r.log, 0):
                held.setdefault(r.log, []).append((r.from_offset, r.until_offset))
    return _merged(held)


def _merged(
    intervals: Mapping[BrokerPartition, list[tuple[int, int]]],
) -> dict[BrokerPartition, list[tuple[int, int]]]:
    return {log: merge_intervals(parts) for log, parts in intervals.items()}


def _newest_plan(state: UpToDate | Replay | Supersede) -> Plan:
    if isinstance(state, UpToDate):
        return state.last
    return state.plan


def _offsets(interval: Interval) -> tuple[int, int]:
    return interval.from_offset, interval.until_offset


def current_reads_of_others(
    state: UpToDate | Replay | Supersede, coverage: LoadedIntervals
) -> dict[BrokerPartition, list[tuple[int, int]]]:
    """Return the offsets of each partition's current incarnation that other members read.

    No pipeline reserves them, and a request for missing offsets does not include them.
    """
    newest = _newest_plan(state)
    by_partition: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for read in (*coverage.read_by_others, *newest.losses.read_by_others):
        if read.incarnation == newest.incarnations.get(read.log, 0):
            by_partition.setdefault(read.log, []).append((read.from_offset, read.until_offset))
    return _merged(by_partition)


def incarnations_of(newest: Plan | None) -> dict[BrokerPartition, int]:
    """Return the incarnation of each partition that the live pipeline reads."""
    if newest is None:
        return {}
    return {log: newest.incarnations.get(log, 0) for log in newest.positions}


def reject_other_incarnation(snapshot: Snapshot, positions: Mapping[BrokerPartition, int]) -> None:
    """Reject a backfill of partitions of which the live pipeline reads another incarnation.

    Raises NeedsDecision.
    """
    claim = snapshot.backfill
    if claim is None:
        return
    for log in sorted(claim.left_from(positions)):
        incarnation = claim.incarnation_of(log)
        if snapshot.live_epochs.get(log, incarnation) != incarnation:
            message = (
                "The pipeline continues with this partition as truncated or recreated, "
                "and the backfill was begun before that"
            )
            action = f"Run {_delete_command(claim.name)}, which keeps the loaded rows"
            raise NeedsDecision(message, **log.place, action=action)


def merge_intervals(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals sorted, adjacent and overlapping ones merged."""
    merged: list[tuple[int, int]] = []
    for start, until in sorted(parts):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], until)
        else:
            merged.append((start, until))
    return merged


def intersect_intervals(
    parts: Iterable[tuple[int, int]], others: Collection[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the offsets that are in both, in order."""
    overlaps = []
    for start, until in parts:
        for low, high in others:
            if max(start, low) < min(until, high):
                overlaps.append((max(start, low), min(until, high)))
    return merge_intervals(overlaps)


def _ends_before(stored: Plan, before: Plan | None) -> dict[BrokerPartition, int]:
    """Return the end of each partition before a plan that is not in the table.

    Its replacement may begin there, so the pipeline's reservation does. If the plan is a
    replacement itself, an unknown plan, such as a replay, may still be appended: raises Owned.
    """
    is_replacement = stored.kind in _SETS_OFFSETS or stored.origin.supersedes
    if is_replacement or before is None or before.id != stored.origin.previous:
        raise Owned(
            f"Plan {stored.number} of the pipeline is stored and not in the table",
            action="Run `etl run CONF`, which executes it. Then run this command again",
        )
    ends = {}
    for log, start in starts_of(stored).items():
        ends[log] = min(start, before.positions.get(log, 0))
    return ends


@dataclass(frozen=True, slots=True)
class ReservedPart:
    """A part of a reservation with the number of rows that were loaded."""

    offsets: OffsetRange
    rows: int | None
    """None if unknown for this part alone."""


def split_reservation(stretches: Stretches, loaded: LoadedIntervals) -> tuple[ReservedPart, ...]:
    """Return the whole reservation, split by loaded intervals."""
    held: list[ReservedPart] = []
    for log, parts in sorted(stretches.items()):
        for part in parts:
            held += _held_parts_of(log, part, loaded)
    return tuple(held)


def _held_parts_of(
    log: BrokerPartition, reserved: tuple[int, int], loaded: LoadedIntervals
) -> Iterator[ReservedPart]:
    start, until = reserved
    known = (*loaded.intervals.get(log, ()), *loaded.given_up.get(log, ()))
    for interval in known:
        low = max(start, interval.from_offset)
        high = min(until, interval.until_offset)
        if low < high:
            rows = None
            if (low, high) == _offsets(interval):
                rows = interval.rows
            yield ReservedPart(OffsetRange(log, low, high), rows)
    for low, high in subtract_intervals(reserved, map(_offsets, known)):
        yield ReservedPart(OffsetRange(log, low, high), None)


def remaining_reservation(
    stretches: Stretches,
    held: Sequence[ReservedPart],
    receipts: Sequence[RangeResult],
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return the offsets that stay reserved.

    `receipts`: the rows of each part in the current table, with its gaps.
    """
    released: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for part, receipt in zip(held, receipts, strict=True):
        released.setdefault(part.offsets.log, []).extend(_without_rows(part, receipt))
    return _subtract(stretches, released)


def _subtract(
    stretches: Stretches, removed: Stretches
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return the offsets of each partition without the removed ones, without empty partitions."""
    remaining = {}
    for log, parts in stretches.items():
        left: list[tuple[int, int]] = []
        for part in parts:
            left += subtract_intervals(part, removed.get(log, ()))
        if left:
            remaining[log] = tuple(left)
    return remaining


def given_up_offsets(
    stretches: Stretches, loaded: LoadedIntervals
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return which of these were loaded into a state of the table that an operator gave up.

    Without those that were loaded again since.
    """
    given_up = {}
    loaded_again = {}
    for log, parts in stretches.items():
        given_up[log] = intersect_intervals(map(_offsets, loaded.given_up.get(log, ())), parts)
        loaded_again[log] = list(map(_offsets, loaded.intervals.get(log, ())))
    return _subtract(given_up, loaded_again)


def _without_rows(part: ReservedPart, receipt: RangeResult) -> Sequence[tuple[int, int]]:
    """Return the offsets of a part that are released."""
    r = part.offsets
    if receipt.rows is None or (part.rows is not None and receipt.rows >= part.rows):
        return ()
    if receipt.rows == 0:
        return [(r.from_offset, r.until_offset)]
    if r.log.is_physical:
        return ()
    # A reservation is one znode: the largest gaps now, the others in a later call.
    largest_first = sorted(receipt.gaps, key=lambda gap: gap[0] - gap[1])
    return largest_first[:GAPS_KEPT]


_RangeAndResult = tuple[OffsetRange, RangeResult]


def plan_without_released(
    plan: Plan, applied: CommitResult, claim: Reservation
) -> tuple[Plan, CommitResult, dict[BrokerPartition, tuple[Interval, ...]]]:
    """Return a plan and its result without released offsets, as others may have loaded those.

    The third value: uncertain offsets. These are the other offsets of a range that was released in
    part, if their rows are not known one by one.
    """
    kept: list[_RangeAndResult] = []
    uncertain: dict[BrokerPartition, tuple[Interval, ...]] = {}
    for r, receipt in zip(plan.ranges, applied.receipts, strict=True):
        released = subtract_intervals(
            (r.from_offset, r.until_offset), claim.stretches.get(r.log, ())
        )
        if not released or is_exact(r, receipt):
            kept += split_around_spans(r, receipt, released)
        else:
            interval = interval_of(r, receipt, claim.incarnation_of(r.log))
            uncertain[r.log] = (*uncertain.get(r.log, ()), *_outside(interval, released))
    ranges = []
    receipts = []
    for r, receipt in kept:
        ranges.append(r)
        receipts.append(receipt)
    plan = replace(plan, ranges=tuple(ranges))
    return plan, replace(applied, receipts=tuple(receipts)), uncertain


def intervals_without_released(coverage: LoadedIntervals, claim: Reservation) -> LoadedIntervals:
    """Return the intervals of pruned plans without released offsets.

    Uncertain ones count as given up.
    """
    kept, uncertain = _without_released(coverage, claim)
    return replace(coverage, intervals=kept, given_up=_concatenate(coverage.given_up, uncertain))


def ledger_without_released(
    pruned: LoadedIntervals,
    recorded: Iterable[tuple[Plan, CommitResult]],
    claim: Reservation,
) -> tuple[LoadedIntervals, list[tuple[Plan, CommitResult]]]:
    """Return all plans of a backfill without released offsets, for a pipeline that inherits them.

    Uncertain offsets count as loaded, so that they are not loaded again, without a number of rows.
    """
    kept, uncertain = _without_released(pruned, claim)
    uncounted = {}
    for log, intervals in uncertain.items():
        without_rows = [replace(interval, rows=None) for interval in intervals]
        uncounted[log] = tuple(without_rows)
    plans = []
    for stored_plan, result in recorded:
        plan, applied, uncertain_of_plan = plan_without_released(stored_plan, result, claim)
        ranges = list(plan.ranges)
        receipts = list(applied.receipts)
        for log, intervals in uncertain_of_plan.items():
            for interval in intervals:
                ranges.append(OffsetRange(log, interval.from_offset, interval.until_offset))
                receipts.append(NOT_COUNTED)
        plan = replace(plan, ranges=tuple(ranges))
        plans.append((plan, replace(applied, receipts=tuple(receipts))))
    return replace(pruned, intervals=_concatenate(kept, uncounted)), plans


_Intervals = Mapping[BrokerPartition, tuple[Interval, ...]]


def _without_released(
    coverage: LoadedIntervals, claim: Reservation
) -> tuple[_Intervals, _Intervals]:
    """Return the intervals without released offsets: certain and uncertain ones.

    Uncertain is the rest of an interval that was released in part and has offsets without a row.
    """
    kept: dict[BrokerPartition, tuple[Interval, ...]] = {}
    uncertain: dict[BrokerPartition, tuple[Interval, ...]] = {}
    for log, intervals in coverage.intervals.items():
        for interval in intervals:
            released = subtract_intervals(_offsets(interval), claim.stretches.get(log, ()))
            if not released:
                kept[log] = (*kept.get(log, ()), interval)
                continue
            outside = _outside(interval, released)
            size = interval.until_offset - interval.from_offset
            if interval.rows == size and not log.is_physical:
                kept[log] = (*kept.get(log, ()), *outside)
            else:
                uncertain[log] = (*uncertain.get(log, ()), *outside)
    return kept, uncertain


def _concatenate(some: _Intervals, more: _Intervals) -> _Intervals:
    together = {}
    for log in {**some, **more}:
        together[log] = (*some.get(log, ()), *more.get(log, ()))
    return together


def _outside(interval: Interval, released: Sequence[tuple[int, int]]) -> tuple[Interval, ...]:
    """Return the parts of an interval outside of released offsets, with a row for each offset.

    For intervals in which each offset has a row, or in which no row is required.
    """
    parts = []
    for low, high in subtract_intervals(_offsets(interval), released):
        parts.append(Interval(low, high, high - low, incarnation=interval.incarnation))
    return tuple(parts)


def reject_table_without_backfill(name: str, ledger: Ledger, table: Table, in_table: int) -> None:
    """Reject a table that lacks a plan which a backfill has loaded into it.

    `ledger`: the backfill's, read before the table. `in_table`: its newest plan there, 0 for none.
    Raises LedgersDisagree.
    """
    newest = known_in_table(ledger, table)
    if in_table < newest:
        if in_table:
            found = f"its newest plan there is plan {in_table}"
        else:
            found = "the table holds none of its plans"
        message = f"Backfill {name} has loaded plan {newest} into this table, and now {found}"
        action = (
            "Check whether an older copy of the table, or of its Delta log, was restored: "
            "a newer one has those rows, and needs its files. Run `etl verify` with the conf of "
            "the pipeline that the backfill belongs to: it counts the missing rows"
        )
        raise LedgersDisagree(message, table_version=table.version, action=action)
