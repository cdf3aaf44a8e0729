"""Which offsets has the table, by the ledger, and which are missing?

Lives here: which plans led to the table; merging their ranges into intervals when plans are pruned;
what remains of an interval after a replay replaced a part; which time intervals are incomplete.

If each offset of an older interval has a row, or its gaps are known one by one, the part outside of
a replaced interval is known, too. Intervals of pruned plans keep counts only: if a replay cuts one,
both become one interval with the right number of rows, by the rows that the replay counted; if that
is impossible, the number is unknown.

Time intervals are compared by offsets, not by runs: a scheduler's run does not prove that its
interval was loaded, and a later run may have loaded one that had none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType

from etl.decide.run_requests import TimeInterval, is_reached, run_key_to_record, with_key
from etl.errors import LedgersDisagree
from etl.model.partitions import BrokerPartition, in_order
from etl.model.plans import CommitResult, OffsetRange, Plan, PlanKind, RangeResult, ReadByOthers
from etl.model.snapshot import ForeignCommit, Interval, LoadedIntervals


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [from, until) of one life of one log, all of which a plan replaces, and the rows that
    stood there.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int
    incarnation: int = 0
    stood: int | None = None
    """None: not counted, or others removed rows since."""

    def holds(self, from_offset: int, until_offset: int) -> bool:
        """True if it contains all these offsets."""
        return self.from_offset <= from_offset and until_offset <= self.until_offset

    def meets(self, from_offset: int, until_offset: int) -> bool:
        """True if it contains any of these offsets."""
        return from_offset < self.until_offset and self.from_offset < until_offset


def spans_of(plan: Plan, *, is_counted: bool = True) -> tuple[Span, ...]:
    """Return what a replay replaces, sorted: one interval per partition. `is_counted`: the plan's
    counts are still right.
    """
    found: dict[BrokerPartition, tuple[int, int]] = {}
    for r in plan.ranges:
        low, high = found.get(r.log, (r.from_offset, r.until_offset))
        found[r.log] = min(low, r.from_offset), max(high, r.until_offset)
    return tuple(
        Span(
            log,
            low,
            high,
            plan.incarnations.get(log, 0),
            plan.stood.get(log) if is_counted else None,
        )
        for log, (low, high) in sorted(found.items())
    )


@dataclass(frozen=True, slots=True)
class Remaining:
    """What remains of older intervals around a replaced one."""

    outside: tuple[Interval, ...]
    """With the rows that they have there."""
    crossing: tuple[Interval, ...] = ()
    """Intervals that overlap it with an unknown number of rows inside."""
    known_inside: int | None = 0
    """Rows inside of all others; None if not counted."""

    def counted_with(self, came: Sequence[Interval], span: Span) -> Interval:
        """Return the one interval that the overlapping ones become, with the new rows. Rows are
        None if unknown.
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
            span.incarnation,
            sum(one.unproven for one in every),
        )


def subtract_span(
    intervals: Iterable[Interval], span: Span, *, known_inside: int | None = 0
) -> Remaining:
    """Return what remains of a partition's intervals around the span. `known_inside`: rows in it of
    other intervals.
    """
    outside, crossing, inside = list[Interval](), list[Interval](), [known_inside]
    for one in intervals:
        if one.incarnation != span.incarnation or not span.meets(one.from_offset, one.until_offset):
            outside.append(one)
        elif span.holds(one.from_offset, one.until_offset):
            inside.append(one.rows)
        elif one.rows == one.until_offset - one.from_offset and not span.log.is_physical:
            inside.append(
                min(one.until_offset, span.until_offset) - max(one.from_offset, span.from_offset)
            )
            outside += [
                Interval(low, high, high - low, incarnation=one.incarnation)
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
    left = subtract_span(intervals, span)
    return (*left.outside, *((left.counted_with(came, span),) if left.crossing else came))


def is_exact(r: OffsetRange, receipt: RangeResult) -> bool:
    """True if it is known for each offset of the range whether it has a row."""
    known = r.size - sum(until - start for start, until in receipt.gaps)
    return not r.log.is_physical and receipt.gaps_complete and receipt.rows == known


def split_around(
    r: OffsetRange, receipt: RangeResult, span: Span
) -> tuple[tuple[OffsetRange, RangeResult], ...]:
    """Return the parts of an exact range outside of the span, with what is known of each."""
    parts = (
        replace(r, from_offset=low, until_offset=high)
        for low, high in _around(r.from_offset, r.until_offset, span)
    )
    return tuple((part, _cut(receipt, part)) for part in parts)


def outside_of(
    r: OffsetRange, receipt: RangeResult, holes: Iterable[tuple[int, int]]
) -> list[tuple[OffsetRange, RangeResult]]:
    """Return the same outside of several spans [from, until)."""
    parts = [(r, receipt)]
    for span in (Span(r.log, start, until) for start, until in holes):
        parts = [
            part
            for one in parts
            for part in (
                split_around(*one, span)
                if span.meets(one[0].from_offset, one[0].until_offset)
                else (one,)
            )
        ]
    return parts


def _cut(receipt: RangeResult, part: OffsetRange) -> RangeResult:
    """Return the result for a part: reasons of missing rows are known if the part has all gaps or
    none.
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


PLANS_KEPT = 100
PLAN_BYTES_KEPT = 16 * 2**20
REMOVALS_KEPT = 1000
INTERVALS_KEPT = 400_000
"""Of all partitions; above that, the oldest intervals of each incarnation are merged."""


def prunable(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the numbers of the plans to merge, given (number, bytes) of all stored ones. The
    newest `PLANS_KEPT` stay, or as many as fit `PLAN_BYTES_KEPT`; the newest always stays.
    """
    kept, total = 0, 0
    newest_first = sorted(sizes, reverse=True)
    for _, size in newest_first[:PLANS_KEPT]:
        total += size
        if kept and total > PLAN_BYTES_KEPT:
            break
        kept += 1
    return sorted(number for number, _ in newest_first[kept:])


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Which plans led to the table as it is."""

    numbers: frozenset[int]
    """Numbers of kept plans."""
    before: int
    """All plans up to this number are not kept."""


def ancestry(versions: Mapping[int, int], transaction_version: int) -> Ancestry:
    """Return the plans that led to the table, of `versions`: number -> transaction version when it
    was made.

    A plan says which one the table held before it. Plans between the two went to another table, or
    to a state that was replaced by an older copy and given up by an operator.
    """
    found, before = set(), transaction_version
    for number in sorted(versions, reverse=True):
        if number <= before:
            found.add(number)
            before = versions[number]
    return Ancestry(frozenset(found), before)


def fold(
    coverage: LoadedIntervals,
    plan: Plan,
    applied: CommitResult,
    *,
    is_given_up: bool = False,
    reached: Mapping[BrokerPartition, int] = MappingProxyType({}),
) -> LoadedIntervals:
    """Return the intervals with one more plan; a plan that is included already changes nothing.

    What was given up is kept apart: no row of it is required, and rows of it are no error. A run
    key of it is kept, unless something kept it from its bound that is not in the table by now
    (`reached`: the end of each partition in the table): then it is forgotten, and a new request
    continues from the ledger. Raises LedgersDisagree for the result of another plan.
    """
    if not applied.is_of(plan):
        message = f"The record of plan {plan.number} does not belong to it: it is of {applied.plan_id}, the plan is {plan.id}"
        raise LedgersDisagree(message, action="Check whether ZooKeeper was restored from a copy")
    if plan.number <= coverage.through:
        return coverage
    coverage = replace(
        coverage, read_by_others=merged_holes((*coverage.read_by_others, *plan.read_by_others))
    )
    loaded: dict[BrokerPartition, list[Interval]] = {}
    for r, receipt in zip(plan.ranges, applied.receipts, strict=True):
        loaded.setdefault(r.log, []).append(
            interval_of(r, receipt, plan.incarnations.get(r.log, 0))
        )
    if plan.run_key and is_reached(plan, reached):
        coverage = replace(coverage, keys=with_key(coverage.keys, run_key_to_record(plan)))
    held_through = coverage.through if coverage.held_through is None else coverage.held_through
    if is_given_up:
        return replace(
            coverage,
            through=plan.number,
            held_through=held_through,
            given_up=_together(coverage.given_up, loaded),
        )
    goes_on = (
        coverage.table_id in (None, applied.table_id)
        and held_through <= plan.table_transaction_version
    )
    unproven_before = coverage.unproven_through if goes_on else 0
    before = dict(coverage.intervals) if goes_on else {}
    if plan.kind is PlanKind.REPLAY:
        for span in spans_of(plan, is_counted=not coverage.removals):
            before[span.log] = replaced_in(
                before.get(span.log, ()), span, merge(loaded.pop(span.log))
            )
    return replace(
        coverage,
        through=plan.number,
        held_through=None,
        table_id=applied.table_id,
        intervals=_together(before, loaded),
        given_up=coverage.given_up if goes_on else _together(coverage.given_up, coverage.intervals),
        vanished=(*(coverage.vanished if goes_on else ()), *plan.vanished),
        unproven_through=plan.number
        if any(receipt.is_doubtful for receipt in applied.receipts)
        else unproven_before,
    )


def fold_all(
    coverage: LoadedIntervals,
    recorded: Sequence[tuple[Plan, CommitResult]],
    transaction_version: int | None,
) -> LoadedIntervals:
    """Return the intervals with all these plans, ascending, for a table at this transaction
    version: plans that did not lead to it are given up. None: the newest of them is in the table.
    """
    newest = max((plan.number for plan, _ in recorded), default=coverage.through)
    reached = newest if transaction_version is None else transaction_version
    led = ancestry({plan.number: plan.table_transaction_version for plan, _ in recorded}, reached)
    if (coverage.through if coverage.held_through is None else coverage.held_through) > led.before:
        coverage = replace(
            coverage, intervals={}, given_up=_together(coverage.given_up, coverage.intervals)
        )
    for plan, applied in recorded:
        coverage = fold(coverage, plan, applied, is_given_up=plan.number not in led.numbers)
    return coverage


def with_backfills(
    live: LoadedIntervals, of_backfills: Iterable[LoadedIntervals], table_id: str
) -> LoadedIntervals:
    """Return what a pipeline and its backfills have loaded into this table, as that of one
    pipeline.
    """
    intervals = dict[BrokerPartition, tuple[Interval, ...]]()
    for one in (live, *of_backfills):
        if one.table_id in (None, table_id):
            intervals = _together(intervals, one.intervals)
        else:
            intervals = intervals
    return replace(live, intervals=intervals, table_id=table_id)


OFFSETS_END = 2**63 - 1
"""No offset lies at or above this."""


def take_in(
    coverage: LoadedIntervals,
    theirs: LoadedIntervals | None,
    taken: Mapping[BrokerPartition, int],
    *,
    table_id: str,
    known: Collection[BrokerPartition],
    lives: Mapping[BrokerPartition, int] = MappingProxyType({}),
) -> LoadedIntervals:
    """Return the intervals with those of another pipeline up to `taken`; a second call changes
    nothing.

    `theirs` is all that it loaded, if its ledger is available. Otherwise, and in partitions that
    this pipeline knows already, no row of it is required. `lives`: the incarnation that it had
    reached.
    """
    is_here = (
        theirs is not None
        and theirs.table_id in (None, table_id)
        and coverage.table_id in (None, table_id)
    )
    if theirs and is_here:
        judged = {
            log: found
            for log, found in theirs.intervals.items()
            if log in taken and log not in known
        }
    else:
        judged = {}
    left = {
        log: (
            *(Interval(0, OFFSETS_END, 0, incarnation=life) for life in range(lives.get(log, 0))),
            Interval(0, position, 0, incarnation=lives.get(log, 0)),
        )
        for log, position in taken.items()
    }
    removals, holes = (theirs.removals, theirs.read_by_others) if theirs else ((), ())
    holes = merged_holes(
        (
            *coverage.read_by_others,
            *(hole for hole in holes if hole.log in taken and hole.log not in known),
        )
    )
    return replace(
        note(coverage, removals),
        read_by_others=holes,
        table_id=coverage.table_id or (table_id if judged else None),
        intervals={**coverage.intervals, **judged},
        given_up={
            **coverage.given_up,
            **{
                log: tuple(dict.fromkeys((*coverage.given_up.get(log, ()), *found)))
                for log, found in left.items()
            },
        },
    )


def unloaded(loaded: Collection[tuple[int, int]], start: int, until: int) -> tuple[int, int] | None:
    """The first offsets of [start, until) that none of these intervals holds; None: all are there."""
    for low, high in sorted(loaded):
        if low > start:
            break
        start = max(start, high)
    if start < until:
        return (start, min([until, *(low for low, _ in loaded if low > start)]))
    return None


def without(stretch: tuple[int, int], holes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what is left of [from, until) outside of these, sorted, without empty parts."""
    left = [stretch]
    for start, until in holes:
        left = [
            part
            for low, high in left
            for part in ((low, min(high, start)), (max(low, until), high))
            if part[0] < part[1]
        ]
    return sorted(left)


def _together(
    before: Mapping[BrokerPartition, Sequence[Interval]],
    more: Mapping[BrokerPartition, Sequence[Interval]],
) -> dict[BrokerPartition, tuple[Interval, ...]]:
    return _bounded(
        {log: merge((*before.get(log, ()), *more.get(log, ()))) for log in {**before, **more}}
    )


def _bounded(
    intervals: dict[BrokerPartition, tuple[Interval, ...]],
) -> dict[BrokerPartition, tuple[Interval, ...]]:
    """Intervals, not too many: the oldest of each log are merged, holes included; the number of
    their rows stays right.
    """
    if sum(map(len, intervals.values())) <= INTERVALS_KEPT:
        return intervals
    lives = {(log, interval.incarnation) for log, found in intervals.items() for interval in found}
    most = max(1, INTERVALS_KEPT // len(lives))
    return {
        log: tuple(
            one
            for _, life in groupby(found, key=lambda i: i.incarnation)
            for one in _at_most(list(life), most)
        )
        for log, found in intervals.items()
    }


def _at_most(life: list[Interval], most: int) -> list[Interval]:
    old = len(life) - most + 1
    return life if old < 2 else [_one(life[:old]), *life[old:]]


def _one(intervals: Sequence[Interval]) -> Interval:
    """Return one interval from the first to the last of these, which are of one incarnation."""
    rows = None if any(i.rows is None for i in intervals) else sum(i.rows or 0 for i in intervals)
    return Interval(
        intervals[0].from_offset,
        intervals[-1].until_offset,
        rows,
        sum(i.control_records for i in intervals),
        sum(i.aborted_records for i in intervals),
        sum(i.compacted for i in intervals),
        intervals[0].incarnation,
        sum(i.unproven for i in intervals),
    )


def is_better(record: CommitResult, kept: CommitResult) -> bool:
    """True if a result replaces the kept one of its number: of another plan (restored ledger), or
    recounted while its run knows more.
    """
    return record.plan_id != kept.plan_id or (kept.is_recounted and not record.is_recounted)


def interval_of(r: OffsetRange, receipt: RangeResult, incarnation: int = 0) -> Interval:
    """Return the interval of a range's result, without the places of its gaps."""
    counts = receipt.control_records, receipt.aborted_records, receipt.compacted
    lacking = r.size if r.log.is_physical else receipt.missing_offsets
    unproven = lacking if receipt.behind_transform else 0
    return Interval(r.from_offset, r.until_offset, receipt.rows, *counts, incarnation, unproven)


def note(coverage: LoadedIntervals, removals: Iterable[ForeignCommit]) -> LoadedIntervals:
    """Return the intervals with these commits of others; the newest `REMOVALS_KEPT` are kept."""
    known = {found.delta_version for found in coverage.removals}
    new = tuple(found for found in removals if found.delta_version not in known)
    return replace(coverage, removals=(coverage.removals + new)[-REMOVALS_KEPT:])


def merge(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sort intervals and merge adjacent ones of an incarnation, but not counted with uncounted
    ones.
    """
    merged: list[Interval] = []
    for interval in sorted(intervals, key=lambda i: (i.incarnation, i.from_offset, i.until_offset)):
        if merged and _touch(merged[-1], interval):
            interval = _one((merged.pop(), interval))
        merged.append(interval)
    return tuple(merged)


def merged_holes(found: Iterable[ReadByOthers]) -> tuple[ReadByOthers, ...]:
    """Return what others read, sorted and merged; of each incarnation the newest, if there are very
    many.
    """
    merged: list[ReadByOthers] = []
    for one in sorted(
        set(found),
        key=lambda hole: (hole.log, hole.incarnation, hole.from_offset, hole.until_offset),
    ):
        last = merged[-1] if merged else None
        if (
            last
            and (last.log, last.incarnation) == (one.log, one.incarnation)
            and one.from_offset <= last.until_offset
        ):
            one = replace(merged.pop(), until_offset=max(last.until_offset, one.until_offset))
        merged.append(one)
    if len(merged) <= INTERVALS_KEPT:
        return tuple(merged)
    lives = [
        list(life) for _, life in groupby(merged, key=lambda hole: (hole.log, hole.incarnation))
    ]
    return tuple(hole for life in lives for hole in life[-max(1, INTERVALS_KEPT // len(lives)) :])


def _touch(before: Interval, after: Interval) -> bool:
    same_kind = (before.rows is None) == (after.rows is None)
    return same_kind and (before.incarnation, before.until_offset) == (
        after.incarnation,
        after.from_offset,
    )


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets [from, until) of one partition that are not in the table: the first such gap of a
    time interval, and their total number.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int
    count: int
    gone: int
    """So many of them lie below the log start: no run will bring them."""


@dataclass(frozen=True, slots=True)
class TableGap:
    """An interval of time that the table does not hold wholly."""

    interval: TimeInterval
    logs: tuple[MissingOffsets, ...]

    @property
    def missing(self) -> int:
        """Offsets, so records at most."""
        return sum(one.count for one in self.logs)

    @property
    def gone(self) -> int:
        """Those of them that no run will bring."""
        return sum(one.gone for one in self.logs)


def find_gaps(
    intervals: Sequence[TimeInterval],
    bounds: Mapping[BrokerPartition, Sequence[int]],
    loaded: Mapping[BrokerPartition, Collection[tuple[int, int]]],
    starts: Mapping[BrokerPartition, int],
) -> list[TableGap]:
    """Return the time intervals with offsets that are not in the table, sorted.

    `bounds`: per partition the first offset at or after the start of the first interval, then one
    for each end. `loaded`: offsets [from, until) that are or may be in the table, or were given up.
    `starts`: the log starts.
    """
    found = []
    for at, interval in enumerate(intervals):
        logs = [
            missing_of(
                log,
                (offsets[at], max(offsets[at : at + 2])),
                loaded.get(log, ()),
                starts.get(log, 0),
            )
            for log, offsets in ((log, bounds[log]) for log in in_order(bounds))
        ]
        short = tuple(one for one in logs if one is not None)
        if short:
            found.append(TableGap(interval, short))
    return found


@dataclass(frozen=True, slots=True)
class Excused:
    """Offsets of the intervals that are not in the table and that no run will load."""

    let_go: int
    """Given up by policy or an operator, or loaded by a predecessor."""
    before_start: int
    """Before the pipeline's start, or before it continued after a truncation or recreation."""
    read_by_others: int = 0
    """Other members of the group read them."""


def excused(
    bounds: Mapping[BrokerPartition, Sequence[int]],
    loaded: Mapping[BrokerPartition, Collection[tuple[int, int]]],
    let_go: Mapping[BrokerPartition, Collection[tuple[int, int]]],
    begins: Mapping[BrokerPartition, int],
    of_others: Mapping[BrokerPartition, Collection[tuple[int, int]]] = MappingProxyType({}),
) -> Excused:
    """Return the offsets between the first and last bound of each partition that `loaded` lacks by
    a decision.

    `begins`: where the pipeline began a partition. `of_others`: what other members read.
    """
    counted = before = theirs = 0
    for log, offsets in bounds.items():
        first, last, there = min(offsets), max(offsets), list(loaded.get(log, ()))
        for start, until in of_others.get(log, ()):
            left = without((max(start, first), min(until, last)), there)
            theirs += sum(end - begin for begin, end in left)
            there += left
        for start, until in let_go.get(log, ()):
            left = without((max(start, first), min(until, last)), there)
            counted += sum(end - begin for begin, end in left)
            there += left
        before += sum(
            end - begin for begin, end in without((first, min(last, begins.get(log, first))), there)
        )
    return Excused(counted, before, theirs)


def missing_of(
    log: BrokerPartition,
    wanted: tuple[int, int],
    loaded: Collection[tuple[int, int]],
    log_start: int,
) -> MissingOffsets | None:
    """Return which of the wanted offsets [from, until) are not loaded; None: all are."""
    holes = list[tuple[int, int]]()
    begin, end = wanted
    while (hole := unloaded(loaded, begin, end)) is not None:
        holes.append(hole)
        begin = hole[1]
    if not holes:
        return None
    gone = sum(max(0, min(until, log_start) - start) for start, until in holes)
    return MissingOffsets(log, *holes[0], sum(until - start for start, until in holes), gone)
