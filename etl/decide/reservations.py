"""Who may load which offsets: the live pipeline, or a backfill?

    who                 reserves
    -----------------   ----------------------------------------------------------------------------
    a backfill          its intervals, from its beginning; once abandoned, what it has loaded
    the live pipeline   all that its plans loaded, and all from the end of its newest plan on

Offsets before the pipeline's end that were never loaded are free until a backfill reserves them, an
operator sets the position back, or a replay reads them. Each of these writes the reservation lock
at the version read before the other reservations: of two at the same moment one is rejected (ADR
22). A plan that continues where the last one ended reserves nothing new.

An abandoned or finished backfill gives back offsets whose rows are gone, once an operator accepted
that. Offsets that never had a row are not looked for if the number of rows is right. On Jafka
an interval is given back only if none of its rows is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.loaded_intervals import (
    OFFSETS_END,
    ancestry,
    interval_of,
    is_exact,
    outside_of,
    without,
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
_MOVES = (PlanKind.RESET, PlanKind.SET, PlanKind.TAKE_OVER)


def claimed_anew(plan: Plan, last: Plan | None) -> dict[BrokerPartition, int]:
    """Return where a plan of the live pipeline reserves partitions that the plan before did not:
    new ones, other incarnations, and set back. `last` is the newest stored plan, which this one may
    replace.
    """
    before = starts_of(last) if last else {}
    lives = last.incarnations if last else {}
    return {
        log: start
        for log, start in starts_of(plan).items()
        if log not in before
        or plan.incarnations.get(log, 0) != lives.get(log, 0)
        or start < before[log]
    }


def updates_reservation_lock(plan: Plan, last: Plan | None) -> bool:
    """True if a plan of the live pipeline reserves free offsets: after a new position, or given-up
    offsets that a replay reads.
    """
    return plan.kind is PlanKind.REPLAY or bool(claimed_anew(plan, last))


def reject_claimed(plan: Plan, last: Plan | None, claims: Reservations) -> None:
    """Reject a plan of the live pipeline that begins before or inside a backfill's reservation.
    Raises NeedsDecision.
    """
    for log, start in sorted(claimed_anew(plan, last).items()):
        for claim in claims.of(plan.table_id):
            met = [part for part in _held_before(claim, log, plan, last) if start < part[1]]
            if not met:
                continue
            low, high = met[0]
            message = f"The pipeline would begin at offset {start}, and backfill {claim.name} has claimed {max(low, start)} to {high}"
            action = (
                f"Run `etl backfills show CONF {claim.name}`; a position behind {met[-1][1]}; or {_abandon(claim.name)}, which "
                "gives back what it has not loaded, and what somebody deleted of it since"
            )
            raise NeedsDecision(message, **log.place, offset=start, action=action)


def _abandon(name: str) -> str:
    return f"`etl backfills delete CONF {name} --reason ...`"


def _held_before(
    claim: Reservation, log: BrokerPartition, plan: Plan, last: Plan | None
) -> list[tuple[int, int]]:
    """Return what a reservation holds of a partition against a plan. One of an earlier incarnation
    holds all before the position.
    """
    life, parts = plan.incarnations.get(log, 0), list(claim.stretches.get(log, ()))
    if last is None or log not in last.positions or claim.incarnation_of(log) == life:
        return parts
    stood = starts_of(last)[log] if last.incarnations.get(log, 0) == life else 0
    return [(start, min(until, stood)) for start, until in parts if start < stood]


def reject_restart_of_reserved_partition(
    plan: Plan, last: Plan, left: Mapping[str, Collection[BrokerPartition]]
) -> None:
    """Reject a plan that begins another incarnation of a partition which a backfill has still to
    load: the backfill would read other records. Raises NeedsDecision. `left`: the unfinished
    partitions of each backfill.
    """
    begun = {
        log for log, life in plan.incarnations.items() if life != last.incarnations.get(log, 0)
    }
    for name, logs in sorted(left.items()):
        for log in sorted(begun.intersection(logs)):
            message = f"Backfill {name} has not loaded all that it claims of this partition, as it was before"
            action = f"{_abandon(name)}, which keeps what it has loaded; then say this again"
            raise NeedsDecision(message, **log.place, action=action)


def held_by_live(
    state: UpToDate | Replay | Supersede,
    stored: Sequence[tuple[Plan, bool]],
    coverage: LoadedIntervals,
    transaction_version: int,
) -> dict[BrokerPartition, list[tuple[int, int]]]:
    """Return what the live pipeline reserves, of each partition's current incarnation.

    `stored`: kept plans, and whether each is recorded; `coverage`: all recorded intervals, for the
    table at this transaction version. A plan that is not in it and was given up by an operator
    reserves nothing. Raises Owned if a stored plan must be executed first.
    """
    newest = state.last if isinstance(state, UpToDate) else state.plan
    before = next((plan for plan, _ in stored if plan.number == newest.number - 1), None)
    ends = newest.positions if isinstance(state, UpToDate) else _settled(newest, before)
    led = ancestry(
        {plan.number: plan.table_transaction_version for plan, _ in stored}, transaction_version
    ).numbers
    unrecorded = [
        plan
        for plan, is_recorded in stored
        if not is_recorded and (plan.number in led or plan.number >= newest.number)
    ]
    if not isinstance(state, UpToDate) or newest.number <= transaction_version:
        unrecorded.append(newest)
    held = {log: [(end, OFFSETS_END)] for log, end in ends.items()}
    for log, intervals in coverage.intervals.items():
        held.setdefault(log, []).extend(
            (one.from_offset, one.until_offset)
            for one in intervals
            if one.incarnation == newest.incarnations.get(log, 0)
        )
    for plan in unrecorded:
        for r in plan.ranges:
            if plan.incarnations.get(r.log, 0) == newest.incarnations.get(r.log, 0):
                held.setdefault(r.log, []).append((r.from_offset, r.until_offset))
    return {log: joined(parts) for log, parts in held.items()}


def read_by_others_now(
    state: UpToDate | Replay | Supersede, coverage: LoadedIntervals
) -> dict[BrokerPartition, list[tuple[int, int]]]:
    """Return what other members read of each partition's current incarnation: nobody reserves it,
    and a request for missing offsets does not include it.
    """
    newest = state.last if isinstance(state, UpToDate) else state.plan
    found: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for hole in (*coverage.read_by_others, *newest.read_by_others):
        if hole.incarnation == newest.incarnations.get(hole.log, 0):
            found.setdefault(hole.log, []).append((hole.from_offset, hole.until_offset))
    return {log: joined(parts) for log, parts in found.items()}


def incarnations_of(newest: Plan | None) -> dict[BrokerPartition, int]:
    """Which life of each log the live pipeline has."""
    return {log: newest.incarnations.get(log, 0) for log in newest.positions} if newest else {}


def reject_other_incarnation(snapshot: Snapshot, positions: Mapping[BrokerPartition, int]) -> None:
    """Reject a backfill that would continue in a partition of which the live pipeline reads another
    incarnation. Raises NeedsDecision.
    """
    claim = snapshot.backfill
    for log in sorted(claim.left_from(positions)) if claim else ():
        if claim and snapshot.live_epochs.get(
            log, claim.incarnation_of(log)
        ) != claim.incarnation_of(log):
            message = "The pipeline goes on with this partition as one that was cut or made again, and the backfill was begun before that"
            action = f"{_abandon(claim.name)}, which keeps what it has loaded"
            raise NeedsDecision(message, **log.place, action=action)


def joined(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same offsets sorted, adjacent and overlapping ones merged."""
    found = list[tuple[int, int]]()
    for start, until in sorted(parts):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((start, until))
    return found


def common(
    parts: Iterable[tuple[int, int]], others: Collection[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The offsets that are in both, in order."""
    met = ((max(start, low), min(until, high)) for start, until in parts for low, high in others)
    return joined((start, until) for start, until in met if start < until)


def _settled(stored: Plan, before: Plan | None) -> dict[BrokerPartition, int]:
    """Return where each partition ended before a plan that is not in the table, since its
    replacement may begin there. If it is a replacement itself, an unknown plan, such as a replay,
    may still be appended.
    """
    if stored.kind in _MOVES or stored.supersedes or before is None or before.id != stored.previous:
        message = f"Plan {stored.number} of the pipeline is stored and not in the table"
        raise Owned(
            message, action="Run `etl run CONF`, which executes it; then run this command again"
        )
    return {
        log: min(start, before.positions.get(log, 0)) for log, start in starts_of(stored).items()
    }


@dataclass(frozen=True, slots=True)
class Held:
    """A part of a reservation, as it was loaded."""

    offsets: OffsetRange
    rows: int | None
    """Its number of rows; None if unknown for this part alone."""


def held_parts(stretches: Stretches, loaded: LoadedIntervals) -> tuple[Held, ...]:
    """Return the whole reservation, split where what is known of it changes."""
    return tuple(
        part
        for log, parts in sorted(stretches.items())
        for stretch in parts
        for part in _parts_of(log, stretch, loaded)
    )


def _parts_of(
    log: BrokerPartition, stretch: tuple[int, int], loaded: LoadedIntervals
) -> Iterator[Held]:
    start, until = stretch
    known = [
        one for intervals in (loaded.intervals, loaded.given_up) for one in intervals.get(log, ())
    ]
    for one in known:
        low, high = max(start, one.from_offset), min(until, one.until_offset)
        if low < high:
            yield Held(
                OffsetRange(log, low, high),
                one.rows if (low, high) == (one.from_offset, one.until_offset) else None,
            )
    for low, high in without(stretch, ((one.from_offset, one.until_offset) for one in known)):
        yield Held(OffsetRange(log, low, high), None)


def still_there(
    stretches: Stretches,
    held: Sequence[Held],
    receipts: Sequence[RangeResult],
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return what stays reserved. `receipts`: what the current table has of each part, with its
    gaps.
    """
    holes: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for part, receipt in zip(held, receipts, strict=True):
        holes.setdefault(part.offsets.log, []).extend(_without_rows(part, receipt))
    kept = {
        log: tuple(piece for stretch in parts for piece in without(stretch, holes.get(log, ())))
        for log, parts in stretches.items()
    }
    return {log: parts for log, parts in kept.items() if parts}


def given_up_of(
    stretches: Stretches, loaded: LoadedIntervals
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return which of these was loaded into a state of the table that an operator gave up, and not
    again since.
    """
    found = {}
    for log, parts in stretches.items():
        again = [(one.from_offset, one.until_offset) for one in loaded.intervals.get(log, ())]
        before = common(
            ((one.from_offset, one.until_offset) for one in loaded.given_up.get(log, ())), parts
        )
        found[log] = tuple(part for stretch in before for part in without(stretch, again))
    return {log: parts for log, parts in found.items() if parts}


def _without_rows(part: Held, receipt: RangeResult) -> Sequence[tuple[int, int]]:
    r = part.offsets
    if receipt.rows is None or (part.rows is not None and receipt.rows >= part.rows):
        return ()
    if r.log.is_physical or not receipt.rows:
        return () if receipt.rows else [(r.from_offset, r.until_offset)]
    return sorted(receipt.gaps, key=lambda gap: gap[0] - gap[1])[
        :GAPS_KEPT
    ]  # a claim is one znode: the largest, and more another time


_Pair = tuple[OffsetRange, RangeResult]


def as_claimed(
    plan: Plan, applied: CommitResult, claim: Reservation
) -> tuple[Plan, CommitResult, dict[BrokerPartition, tuple[Interval, ...]]]:
    """Return a plan and its result without what was given back since, because others may have
    loaded it, and what cannot be judged: the other offsets of a range given back in part, if their
    rows are not known one by one.
    """
    kept, doubtful = list[_Pair](), dict[BrokerPartition, tuple[Interval, ...]]()
    for r, receipt in zip(plan.ranges, applied.receipts, strict=True):
        gone = without((r.from_offset, r.until_offset), claim.stretches.get(r.log, ()))
        if not gone or is_exact(r, receipt):
            kept += outside_of(r, receipt, gone)
        else:
            doubtful[r.log] = (
                *doubtful.get(r.log, ()),
                *_around(interval_of(r, receipt, claim.incarnation_of(r.log)), gone),
            )
    receipts = tuple(receipt for _, receipt in kept)
    return (
        replace(plan, ranges=tuple(r for r, _ in kept)),
        replace(applied, receipts=receipts),
        doubtful,
    )


def covered_as_claimed(coverage: LoadedIntervals, claim: Reservation) -> LoadedIntervals:
    """Return the same for pruned plans."""
    kept, doubtful = _split(coverage, claim)
    return replace(coverage, intervals=kept, given_up=_joined(coverage.given_up, doubtful))


def loaded_as_claimed(
    pruned: LoadedIntervals,
    recorded: Iterable[tuple[Plan, CommitResult]],
    claim: Reservation,
) -> tuple[LoadedIntervals, list[tuple[Plan, CommitResult]]]:
    """Return the same for all plans of a backfill, for a pipeline that inherits them. What cannot
    be judged counts as loaded, so that nobody loads it again, without a number of rows.
    """
    kept, doubtful = _split(pruned, claim)
    unknown = {
        log: tuple(replace(one, rows=None) for one in some) for log, some in doubtful.items()
    }
    found = list[tuple[Plan, CommitResult]]()
    for one in recorded:
        plan, applied, more = as_claimed(*one, claim)
        ranges = tuple(
            OffsetRange(log, i.from_offset, i.until_offset)
            for log, some in more.items()
            for i in some
        )
        receipts = (*applied.receipts, *(NOT_COUNTED for _ in ranges))
        found.append(
            (replace(plan, ranges=(*plan.ranges, *ranges)), replace(applied, receipts=receipts))
        )
    return replace(pruned, intervals=_joined(kept, unknown)), found


_Intervals = Mapping[BrokerPartition, tuple[Interval, ...]]


def _split(coverage: LoadedIntervals, claim: Reservation) -> tuple[_Intervals, _Intervals]:
    """Return what is left of the intervals, and what is left of those with an unknown number of
    rows.
    """
    kept, doubtful = (
        dict[BrokerPartition, tuple[Interval, ...]](),
        dict[BrokerPartition, tuple[Interval, ...]](),
    )
    for log, intervals in coverage.intervals.items():
        for one in intervals:
            gone = without((one.from_offset, one.until_offset), claim.stretches.get(log, ()))
            is_known = not gone or (
                one.rows == one.until_offset - one.from_offset and not log.is_physical
            )
            into = kept if is_known else doubtful
            into[log] = (*into.get(log, ()), *(_around(one, gone) if gone else (one,)))
    return kept, doubtful


def _joined(some: _Intervals, more: _Intervals) -> _Intervals:
    return {log: (*some.get(log, ()), *more.get(log, ())) for log in {**some, **more}}


def _around(interval: Interval, gone: Sequence[tuple[int, int]]) -> tuple[Interval, ...]:
    """Return what is left of an interval whose offsets all have rows, or whose rows are not
    required.
    """
    return tuple(
        Interval(low, high, high - low, incarnation=interval.incarnation)
        for low, high in without((interval.from_offset, interval.until_offset), gone)
    )


def reject_table_without_backfill(name: str, ledger: Ledger, table: Table, in_table: int) -> None:
    """Reject a table that lacks a plan which a backfill has loaded into it. `ledger` is the
    backfill's, read before the table; `in_table`: its newest plan there, 0 for none. Raises
    LedgersDisagree.
    """
    newest = known_in_table(ledger, table)
    if in_table < newest:
        if in_table:
            there = f"the newest of it there is plan {in_table}"
        else:
            there = "the table holds none of its plans"
        message = f"Backfill {name} has loaded plan {newest} into this table, and now {there}"
        action = (
            "Check whether an older copy of the table, or of its log, was put back: a newer one has those rows, and needs its files; "
            "`etl verify` with the conf of the pipeline whose backfill it is counts what is missing"
        )
        raise LedgersDisagree(message, table_version=table.version, action=action)
