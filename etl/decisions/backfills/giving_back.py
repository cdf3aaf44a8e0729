"""What a backfill that loads no more gives back: offsets that it has loaded, and of which the table
has no row by now. Pure.

Somebody deleted the rows, or put an older copy of the table in place, and an operator accepted
that. Offsets that never had a row (markers of transactions, compaction) are not looked for where
the table has as many rows as were loaded. Of a physical log rows do not tell which messages are not
there: a stretch of it is given back where it has no row at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decisions.backfills.claiming import Stretches, common
from etl.decisions.coverage import interval_of, without
from etl.decisions.replaced import is_exact, outside_of
from etl.model.partitions import BrokerPartition
from etl.model.plans import GAPS_KEPT, NOT_COUNTED, CommitResult, OffsetRange, Plan, RangeResult
from etl.model.snapshot import Coverage, Interval, Reservation


@dataclass(frozen=True, slots=True)
class Held:
    """A part of what is claimed, as it was loaded."""

    offsets: OffsetRange
    rows: int | None
    """That it gave; None where nobody knows it of this part alone."""


def held_parts(stretches: Stretches, loaded: Coverage) -> tuple[Held, ...]:
    """All that is claimed, cut where what is known of it ends."""
    return tuple(
        part
        for log, parts in sorted(stretches.items())
        for stretch in parts
        for part in _parts_of(log, stretch, loaded)
    )


def _parts_of(log: BrokerPartition, stretch: tuple[int, int], loaded: Coverage) -> Iterator[Held]:
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
    """What stays claimed. `receipts`: what the table of today has of each part, with the gaps."""
    holes: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for part, receipt in zip(held, receipts, strict=True):
        holes.setdefault(part.offsets.log, []).extend(_without_rows(part, receipt))
    kept = {
        log: tuple(piece for stretch in parts for piece in without(stretch, holes.get(log, ())))
        for log, parts in stretches.items()
    }
    return {log: parts for log, parts in kept.items() if parts}


def given_up_of(
    stretches: Stretches, loaded: Coverage
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """What of these was loaded into a state of the table that an operator gave up, and not again
    since.
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
    """A plan and what came of it without what was given back since, for another one may have loaded
    that; and what nobody can judge.

    Those are the other offsets of a range that was given back in part, where it is not known of
    each of them whether it had a row.
    """
    kept, doubtful = list[_Pair](), dict[BrokerPartition, tuple[Interval, ...]]()
    for r, receipt in zip(plan.ranges, applied.receipts, strict=True):
        gone = without((r.from_offset, r.until_offset), claim.stretches.get(r.log, ()))
        if not gone or is_exact(r, receipt):
            kept += outside_of(r, receipt, gone)
        else:
            doubtful[r.log] = (
                *doubtful.get(r.log, ()),
                *_around(interval_of(r, receipt, claim.life_of(r.log)), gone),
            )
    receipts = tuple(receipt for _, receipt in kept)
    return (
        replace(plan, ranges=tuple(r for r, _ in kept)),
        replace(applied, receipts=receipts),
        doubtful,
    )


def covered_as_claimed(coverage: Coverage, claim: Reservation) -> Coverage:
    """The same of plans that were pruned."""
    kept, doubtful = _split(coverage, claim)
    return replace(coverage, intervals=kept, given_up=_joined(coverage.given_up, doubtful))


def loaded_as_claimed(
    pruned: Coverage,
    recorded: Iterable[tuple[Plan, CommitResult]],
    claim: Reservation,
) -> tuple[Coverage, list[tuple[Plan, CommitResult]]]:
    """The same of all its plans, pruned or not, for who takes in what it loaded.

    Some rows of what nobody can judge may be there: that is loaded, so that nobody loads it again,
    and not counted.
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


def _split(coverage: Coverage, claim: Reservation) -> tuple[_Intervals, _Intervals]:
    """What is left of the intervals, and what is left of those of which nobody knows how many rows
    that has.
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
    """What is left of an interval in which each offset has a row, or of one of which nobody asks."""
    return tuple(
        Interval(low, high, high - low, log_epoch=interval.log_epoch)
        for low, high in without((interval.from_offset, interval.until_offset), gone)
    )
