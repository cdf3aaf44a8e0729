"""What the ledger says of a log once rows of an interval took the place of those that were there.
Pure functions of values.

Where every offset of an older interval has a row, or where its gaps are known one by one, the part
outside of the replaced interval is known as well. An interval of pruned plans keeps counts alone:
of one that the replay cuts through nobody knows how many of its rows lie outside, but for the rows
that stood inside, which the replay's plan counted. So it becomes one interval with what was
replaced, and its number of rows is right; where it cannot be, it is told as not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange, Plan, RangeResult
from etl.model.snapshot import Interval


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [from, until) of one life of one log, all of which a plan replaces, and the rows that
    stood there.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int
    log_epoch: int = 0
    stood: int | None = None
    """None: nobody counted them, or others removed rows since they were loaded."""

    def holds(self, from_offset: int, until_offset: int) -> bool:
        """Whether all of these offsets are in it."""
        return self.from_offset <= from_offset and until_offset <= self.until_offset

    def meets(self, from_offset: int, until_offset: int) -> bool:
        """Whether any of these offsets is in it."""
        return from_offset < self.until_offset and self.from_offset < until_offset


def spans_of(plan: Plan, *, is_counted: bool = True) -> tuple[Span, ...]:
    """What a replay replaces, in order: the ranges of each log are one interval. `is_counted`: what
    it counted is still so.
    """
    found: dict[BrokerPartition, tuple[int, int]] = {}
    for r in plan.ranges:
        low, high = found.get(r.log, (r.from_offset, r.until_offset))
        found[r.log] = min(low, r.from_offset), max(high, r.until_offset)
    return tuple(
        Span(
            log, low, high, plan.log_epochs.get(log, 0), plan.stood.get(log) if is_counted else None
        )
        for log, (low, high) in sorted(found.items())
    )


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of older intervals around a span."""

    outside: tuple[Interval, ...]
    """With the rows that they have there."""
    crossing: tuple[Interval, ...] = ()
    """Those that reach into the span and of which nobody knows how many rows they have there."""
    known_inside: int | None = 0
    """Rows in the span of all but those; None where nobody counted them."""

    def counted_with(self, came: Sequence[Interval], span: Span) -> Interval:
        """The one interval that the crossing ones become, with what came. Rows are None where
        nobody can tell.
        """
        counts = [one.rows for one in (*self.crossing, *came)]
        rows = None
        if None not in counts and span.stood is not None and self.known_inside is not None:
            rows = sum(count or 0 for count in counts) - max(0, span.stood - self.known_inside)
        every = (*self.crossing, *came)
        low, high = min(one.from_offset for one in every), max(one.until_offset for one in every)
        return Interval(
            low,
            high,
            rows,
            sum(one.control_records for one in every),
            sum(one.aborted_records for one in every),
            sum(one.compacted for one in every),
            span.log_epoch,
            sum(one.unproven for one in every),
        )


def taken_out(
    intervals: Iterable[Interval], span: Span, *, known_inside: int | None = 0
) -> Remaining:
    """What is left of the intervals of one log around the span. `known_inside`: rows in it that
    others account for.
    """
    outside, crossing, inside = list[Interval](), list[Interval](), [known_inside]
    for one in intervals:
        if one.log_epoch != span.log_epoch or not span.meets(one.from_offset, one.until_offset):
            outside.append(one)
        elif span.holds(one.from_offset, one.until_offset):
            inside.append(one.rows)
        elif one.rows == one.until_offset - one.from_offset and not span.log.is_physical:
            inside.append(
                min(one.until_offset, span.until_offset) - max(one.from_offset, span.from_offset)
            )
            outside += [
                Interval(low, high, high - low, log_epoch=one.log_epoch)
                for low, high in _around(one.from_offset, one.until_offset, span)
            ]
        else:
            crossing.append(one)
    return Remaining(
        tuple(outside),
        tuple(crossing),
        None if None in inside else sum(rows or 0 for rows in inside),
    )


def replaced_in(
    intervals: Sequence[Interval], span: Span, came: Sequence[Interval]
) -> tuple[Interval, ...]:
    """The intervals of one log once `came`, which lie side by side in the span, took the place of
    what it held.
    """
    left = taken_out(intervals, span)
    return (*left.outside, *((left.counted_with(came, span),) if left.crossing else came))


def is_exact(r: OffsetRange, receipt: RangeResult) -> bool:
    """Whether it is known of each offset of the range if it has a row."""
    known = r.size - sum(until - start for start, until in receipt.gaps)
    return not r.log.is_physical and receipt.gaps_complete and receipt.rows == known


def cut_around(
    r: OffsetRange, receipt: RangeResult, span: Span
) -> tuple[tuple[OffsetRange, RangeResult], ...]:
    """The parts of an exact range outside of the span, each with what is known of it."""
    parts = (
        replace(r, from_offset=low, until_offset=high)
        for low, high in _around(r.from_offset, r.until_offset, span)
    )
    return tuple((part, _cut(receipt, part)) for part in parts)


def outside_of(
    r: OffsetRange, receipt: RangeResult, holes: Iterable[tuple[int, int]]
) -> list[tuple[OffsetRange, RangeResult]]:
    """The same outside of all these offsets, [from, until) each."""
    parts = [(r, receipt)]
    for span in (Span(r.log, start, until) for start, until in holes):
        parts = [
            part
            for one in parts
            for part in (
                cut_around(*one, span)
                if span.meets(one[0].from_offset, one[0].until_offset)
                else (one,)
            )
        ]
    return parts


def _cut(receipt: RangeResult, part: OffsetRange) -> RangeResult:
    """Why its offsets gave no row is known of a part that has all gaps of the whole, or none of
    them; else nobody knows any more.
    """
    low, high = part.from_offset, part.until_offset
    gaps = tuple(
        (max(start, low), min(until, high))
        for start, until in receipt.gaps
        if start < high and low < until
    )
    lacking = sum(until - start for start, until in gaps)
    kept = replace(receipt, rows=part.size - lacking, gaps=gaps)
    if gaps == receipt.gaps:
        return kept
    fetched = None if lacking else receipt.fetched_bytes
    return replace(
        kept, control_records=0, aborted_records=0, missing_offsets=lacking, fetched_bytes=fetched
    )


def _around(from_offset: int, until_offset: int, span: Span) -> Iterable[tuple[int, int]]:
    if from_offset < span.from_offset:
        yield from_offset, span.from_offset
    if span.until_offset < until_offset:
        yield span.until_offset, until_offset
