"""Which offsets does the table hold by the ledger, and which are missing?

Lives here: which plans led to the table; merging their ranges into intervals when plans are pruned;
what remains of an interval after a replay replaced a part; which time intervals are incomplete.
Not here: which offsets backfills may load (etl/decide/backfill.py).

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
from etl.model.partitions import TopicPartition, in_order, select_keys
from etl.model.plans import (
    NOT_COUNTED,
    CommitResult,
    OffsetRange,
    Plan,
    PlanKind,
    RangeResult,
    ReadByOthers,
    sum_of_known,
)
from etl.model.snapshot import ForeignCommit, Interval, LoadedIntervals


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [from, until) of one incarnation of a partition, all of which a plan replaces."""

    partition: TopicPartition
    from_offset: int
    until_offset: int
    incarnation: int = 0
    replaced_rows: int | None = None
    """Rows of these offsets before; None: not counted, or other writers removed rows since.

    The plan counts them, as a pruned interval with gaps has an unknown number of rows in a part.
    """

    def holds(self, from_offset: int, until_offset: int) -> bool:
        """True if it contains all these offsets."""
        return self.from_offset <= from_offset and until_offset <= self.until_offset

    def meets(self, from_offset: int, until_offset: int) -> bool:
        """True if it contains any of these offsets."""
        return from_offset < self.until_offset and self.from_offset < until_offset


def spans_of(plan: Plan, *, is_counted: bool = True) -> tuple[Span, ...]:
    """Return the offsets that a replay replaces, sorted: one interval per partition.

    `is_counted`: the plan's counts of rows are still right.
    """
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    for r in plan.ranges:
        low, high = bounds.get(r.partition, (r.from_offset, r.until_offset))
        bounds[r.partition] = min(low, r.from_offset), max(high, r.until_offset)
    spans = []
    for partition, (low, high) in sorted(bounds.items()):
        rows_before = None
        if is_counted:
            rows_before = plan.replaced_rows.get(partition)
        spans.append(Span(partition, low, high, plan.incarnations.get(partition, 0), rows_before))
    return tuple(spans)


@dataclass(frozen=True, slots=True)
class Remaining:
    """Remaining parts of older intervals around a replaced one."""

    outside: tuple[Interval, ...]
    """Parts outside of it, with the number of their rows."""
    crossing: tuple[Interval, ...] = ()
    """Intervals that overlap it with an unknown number of rows inside."""
    known_inside: int | None = 0
    """Rows inside of all others; None if not counted."""

    def counted_with(self, came: Sequence[Interval], span: Span) -> Interval:
        """Return the one interval that the overlapping ones become with the new intervals `came`.

        Its rows are None if unknown.
        """
        merged = (*self.crossing, *came)
        rows = sum_of_known([interval.rows for interval in merged])
        if rows is not None:
            if span.replaced_rows is None or self.known_inside is None:
                rows = None
            else:
                rows -= max(0, span.replaced_rows - self.known_inside)
        start = min(interval.from_offset for interval in merged)
        end = max(interval.until_offset for interval in merged)
        whole = _with_sums(Interval(start, end, rows, incarnation=span.incarnation), merged)
        if rows is None:
            # Both count what lies in the span, and the sum would explain missing rows.
            return replace(whole, control_records=0, aborted_records=0, compacted=0, left_out=0)
        return whole


def subtract_span(
    intervals: Iterable[Interval], span: Span, *, known_inside: int | None = 0
) -> Remaining:
    """Return the remaining parts of a partition's intervals around the span.

    `known_inside`: rows in it of other intervals; None: not counted.
    """
    outside: list[Interval] = []
    crossing: list[Interval] = []
    counts_inside = [known_inside]
    for interval in intervals:
        start = interval.from_offset
        end = interval.until_offset
        if interval.incarnation != span.incarnation or not span.meets(start, end):
            outside.append(interval)
        elif span.holds(start, end):
            counts_inside.append(interval.rows)
        elif interval.rows == end - start and not span.partition.is_physical:
            # Each offset has a row.
            counts_inside.append(min(end, span.until_offset) - max(start, span.from_offset))
            for low, high in _around(start, end, span):
                outside.append(Interval(low, high, high - low, incarnation=interval.incarnation))
        else:
            crossing.append(interval)
    return Remaining(tuple(outside), tuple(crossing), sum_of_known(counts_inside))


def replace_span(
    intervals: Sequence[Interval], span: Span, came: Sequence[Interval]
) -> tuple[Interval, ...]:
    """Return a partition's intervals after the adjacent intervals `came` replaced the span."""
    remaining = subtract_span(intervals, span)
    if remaining.crossing:
        return (*remaining.outside, remaining.counted_with(came, span))
    return (*remaining.outside, *came)


def is_exact(r: OffsetRange, result: RangeResult) -> bool:
    """True if it is known for each offset of the range whether it has a row."""
    # A range of Jafka is in bytes, and compressed it may have as many messages by chance.
    known = r.size - _size(result.gaps)
    return not r.partition.is_physical and result.gaps_complete and result.rows == known


def split_around(
    r: OffsetRange, result: RangeResult, span: Span
) -> tuple[tuple[OffsetRange, RangeResult], ...]:
    """Return the parts of an exact range outside of the span, with the result of each."""
    parts = []
    for low, high in _around(r.from_offset, r.until_offset, span):
        part = replace(r, from_offset=low, until_offset=high)
        parts.append((part, _result_of_part(result, part)))
    return tuple(parts)


def split_around_spans(
    r: OffsetRange, range_result: RangeResult, holes: Iterable[tuple[int, int]]
) -> list[tuple[OffsetRange, RangeResult]]:
    """Return the parts of an exact range outside of several spans [from, until)."""
    parts = [(r, range_result)]
    for start, until in holes:
        span = Span(r.partition, start, until)
        remaining: list[tuple[OffsetRange, RangeResult]] = []
        for part, result in parts:
            if span.meets(part.from_offset, part.until_offset):
                remaining += split_around(part, result, span)
            else:
                remaining.append((part, result))
        parts = remaining
    return parts


def _result_of_part(result: RangeResult, part: OffsetRange) -> RangeResult:
    """Return the result of a part of a range.

    Reasons of missing rows are known if the part has all gaps or none.
    """
    low, high = part.from_offset, part.until_offset
    gaps = []
    for start, until in result.gaps:
        if start < high and low < until:
            gaps.append((max(start, low), min(until, high)))
    lacking = _size(gaps)
    rows = part.size - lacking
    kept = replace(result, rows=rows, gaps=tuple(gaps), records=None)
    if kept.gaps == result.gaps:
        if result.left_out:
            kept = replace(kept, records=rows + result.left_out)
        return kept
    fetched = None
    if not lacking:
        fetched = result.fetched_bytes
    return replace(
        kept, control_records=0, aborted_records=0, missing_offsets=lacking, fetched_bytes=fetched
    )


def _around(from_offset: int, until_offset: int, span: Span) -> Iterable[tuple[int, int]]:
    """Yield the parts of [from, until) before and after the span."""
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
    """Return the numbers of the plans to merge, given (number, bytes) of all stored ones.

    The newest `PLANS_KEPT` stay, or as many as fit `PLAN_BYTES_KEPT`; the newest always stays.
    """
    kept = 0
    total = 0
    newest_first = sorted(sizes, reverse=True)
    for _, size in newest_first[:PLANS_KEPT]:
        total += size
        if kept and total > PLAN_BYTES_KEPT:
            break
        kept += 1
    pruned = [number for number, _ in newest_first[kept:]]
    return sorted(pruned)


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Plans that led to the table as it is."""

    numbers: frozenset[int]
    """Numbers of kept plans."""
    before: int
    """All plans up to this number are not kept."""


def ancestry(versions: Mapping[int, int], transaction_version: int) -> Ancestry:
    """Return the plans that led to the table at this transaction version.

    `versions`: plan number -> transaction version of the table when the plan was made. Plans
    between the two went to another table, or to a state that was replaced by an older copy and
    given up by an operator.
    """
    found = set()
    before = transaction_version
    for number in sorted(versions, reverse=True):
        if number <= before:
            found.add(number)
            before = versions[number]
    return Ancestry(frozenset(found), before)


def fold(
    loaded_intervals: LoadedIntervals,
    plan: Plan,
    applied: CommitResult,
    *,
    is_given_up: bool = False,
    reached: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> LoadedIntervals:
    """Return the intervals with one more plan; a plan that is included already changes nothing.

    Offsets that were given up are kept apart: no row of them is required, and their rows are no
    error. The run key of such a plan is kept, unless it did not reach its bound for a reason that
    is not in the table now (`reached`: the end of each partition in the table): then the key is
    forgotten, and a new request continues from the ledger.
    Raises LedgersDisagree for the result of another plan.
    """
    if not applied.is_of(plan):
        message = (
            f"The record of plan {plan.number} does not belong to it: "
            f"it is of {applied.plan_id}, the plan is {plan.id}"
        )
        raise LedgersDisagree(message, action="Check whether ZooKeeper was restored from a copy")
    if plan.number <= loaded_intervals.through:
        return loaded_intervals

    read_by_others = merged_holes((*loaded_intervals.read_by_others, *plan.losses.read_by_others))
    is_unknown_before = plan.number > loaded_intervals.through + 1
    loaded_intervals = replace(
        loaded_intervals,
        read_by_others=read_by_others,
        has_unknown_plans=loaded_intervals.has_unknown_plans or is_unknown_before,
    )
    if plan.request.run_key and is_reached(plan, reached):
        loaded_intervals = replace(
            loaded_intervals, keys=with_key(loaded_intervals.keys, run_key_to_record(plan))
        )
    loaded = _loaded_by(plan, applied)
    held_through = _held_through(loaded_intervals)
    if is_given_up:
        return replace(
            loaded_intervals,
            through=plan.number,
            held_through=held_through,
            given_up=_together(loaded_intervals.given_up, loaded),
        )

    is_same_table = loaded_intervals.table_id in (None, applied.table_id)
    if not is_same_table or held_through > plan.table.transaction_version:
        # The table no longer holds the intervals so far.
        loaded_intervals = replace(
            loaded_intervals,
            intervals={},
            given_up=_together(loaded_intervals.given_up, loaded_intervals.intervals),
            vanished=(),
            unproven_through=0,
        )
    before = dict(loaded_intervals.intervals)
    if plan.kind is PlanKind.REPLAY:
        for span in spans_of(plan, is_counted=not loaded_intervals.removals):
            came = merge(loaded.pop(span.partition))
            before[span.partition] = replace_span(before.get(span.partition, ()), span, came)
    unproven_through = loaded_intervals.unproven_through
    if any(result.is_doubtful for result in applied.results):
        unproven_through = plan.number
    return replace(
        loaded_intervals,
        through=plan.number,
        held_through=None,
        table_id=applied.table_id,
        intervals=_together(before, loaded),
        vanished=(*loaded_intervals.vanished, *plan.losses.stale_rows),
        unproven_through=unproven_through,
    )


def result_of_unknown_plan(plan: Plan) -> CommitResult:
    """Return the result of a plan without one that a later plan followed: it is given up.

    The ledger was restored from the rows, since the table may have another plan of its number.
    """
    uncounted = (NOT_COUNTED,) * len(plan.ranges)
    return CommitResult(plan.number, plan.id, 0, "", uncounted)


def _loaded_by(plan: Plan, applied: CommitResult) -> dict[TopicPartition, list[Interval]]:
    loaded: dict[TopicPartition, list[Interval]] = {}
    for r, result in zip(plan.ranges, applied.results, strict=True):
        interval = interval_of(r, result, plan.incarnations.get(r.partition, 0))
        loaded.setdefault(r.partition, []).append(interval)
    return loaded


def _held_through(loaded: LoadedIntervals) -> int:
    """Return the newest plan that is in the table by these intervals."""
    if loaded.held_through is None:
        return loaded.through
    return loaded.held_through


def fold_all(
    loaded: LoadedIntervals,
    recorded: Sequence[tuple[Plan, CommitResult]],
    transaction_version: int | None,
) -> LoadedIntervals:
    """Return the intervals with all these plans, ascending, at a transaction version of the table.

    Plans that did not lead to it are given up. None: the newest of them is in the table.
    """
    if transaction_version is None:
        transaction_version = max((plan.number for plan, _ in recorded), default=loaded.through)
    versions = {plan.number: plan.table.transaction_version for plan, _ in recorded}
    led = ancestry(versions, transaction_version)
    if _held_through(loaded) > led.before:
        given_up = _together(loaded.given_up, loaded.intervals)
        loaded = replace(loaded, intervals={}, given_up=given_up)
    for plan, applied in recorded:
        loaded = fold(loaded, plan, applied, is_given_up=plan.number not in led.numbers)
    return loaded


OFFSETS_END = 2**63 - 1
"""All offsets are smaller."""


def inherit_intervals(
    loaded: LoadedIntervals,
    theirs: LoadedIntervals | None,
    taken: Mapping[TopicPartition, int],
    *,
    table_id: str,
    known: Collection[TopicPartition],
    lives: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> LoadedIntervals:
    """Return the intervals with those of another pipeline, up to the offsets `taken`.

    `theirs`: all that it loaded, if its ledger is available. Otherwise, and in partitions that this
    pipeline knows already, no row of it is required. `lives`: the incarnations that it had reached.
    A second call changes nothing.
    """
    new_partitions = {partition for partition in taken if partition not in known}
    inherited: dict[TopicPartition, tuple[Interval, ...]] = {}
    read_by_others = list(loaded.read_by_others)
    if theirs is not None:
        tables = {theirs.table_id, loaded.table_id}
        if tables <= {None, table_id}:
            inherited = select_keys(theirs.intervals, new_partitions)
        for read in theirs.read_by_others:
            if read.partition in new_partitions:
                read_by_others.append(read)
        loaded = add_removals(loaded, theirs.removals)
    given_up = dict(loaded.given_up)
    for partition, loaded_until in taken.items():
        incarnation = lives.get(partition, 0)
        not_required = []
        for older in range(incarnation):
            not_required.append(Interval(0, OFFSETS_END, 0, incarnation=older))
        not_required.append(Interval(0, loaded_until, 0, incarnation=incarnation))
        given_up[partition] = tuple(dict.fromkeys((*given_up.get(partition, ()), *not_required)))
    loaded_into = loaded.table_id
    if inherited:
        loaded_into = loaded.table_id or table_id
    return replace(
        loaded,
        read_by_others=merged_holes(read_by_others),
        table_id=loaded_into,
        intervals={**loaded.intervals, **inherited},
        given_up=given_up,
    )


def first_gap(
    loaded: Collection[tuple[int, int]], start: int, until: int
) -> tuple[int, int] | None:
    """Return the first offsets of [start, until) outside of these intervals; None if none are."""
    for low, high in sorted(loaded):
        if low > start:
            break
        start = max(start, high)
    if start >= until:
        return None
    later_starts = [low for low, _ in loaded if low > start]
    return start, min([until, *later_starts])


def subtract_intervals(
    stretch: tuple[int, int], holes: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the parts of [from, until) outside of these intervals, sorted, without empty ones."""
    parts = []
    if stretch[0] < stretch[1]:
        parts.append(stretch)
    for start, until in holes:
        remaining = []
        for low, high in parts:
            before_start = min(high, start)
            after_end = max(low, until)
            if low < before_start:
                remaining.append((low, before_start))
            if after_end < high:
                remaining.append((after_end, high))
        parts = remaining
    return sorted(parts)


def _together(
    before: Mapping[TopicPartition, Sequence[Interval]],
    more: Mapping[TopicPartition, Sequence[Interval]],
) -> dict[TopicPartition, tuple[Interval, ...]]:
    """Merge the intervals of each partition, within `INTERVALS_KEPT`."""
    merged = {}
    for partition in {**before, **more}:
        merged[partition] = merge((*before.get(partition, ()), *more.get(partition, ())))
    return _bounded(merged)


def _bounded(
    intervals: dict[TopicPartition, tuple[Interval, ...]],
) -> dict[TopicPartition, tuple[Interval, ...]]:
    """Return at most `INTERVALS_KEPT` intervals.

    The oldest of each incarnation are merged, gaps included; the number of their rows stays right.
    """
    if sum(map(len, intervals.values())) <= INTERVALS_KEPT:
        return intervals
    by_incarnation: dict[TopicPartition, list[list[Interval]]] = {}
    for partition, found in intervals.items():
        grouped = groupby(found, key=lambda interval: interval.incarnation)
        by_incarnation[partition] = [list(group) for _, group in grouped]
    most = max(1, INTERVALS_KEPT // sum(map(len, by_incarnation.values())))
    bounded = {}
    for partition, groups in by_incarnation.items():
        kept: list[Interval] = []
        for group in groups:
            kept += _at_most(group, most)
        bounded[partition] = tuple(kept)
    return bounded


def _at_most(intervals: list[Interval], most: int) -> list[Interval]:
    """Return at most so many intervals of one incarnation; the oldest become one."""
    old = len(intervals) - most + 1
    if old < 2:
        return intervals
    return [_merged(intervals[:old]), *intervals[old:]]


def _merged(intervals: Sequence[Interval]) -> Interval:
    """Return one interval instead of these, which are sorted and of one incarnation."""
    rows = sum_of_known([interval.rows for interval in intervals])
    first = intervals[0]
    last = intervals[-1]
    whole = Interval(first.from_offset, last.until_offset, rows, incarnation=first.incarnation)
    return _with_sums(whole, intervals)


def _with_sums(whole: Interval, intervals: Sequence[Interval]) -> Interval:
    """Return the interval with the sums of the other counts of these, which it replaces."""
    control_records = 0
    aborted_records = 0
    compacted = 0
    unproven = 0
    left_out = 0
    for interval in intervals:
        control_records += interval.control_records
        aborted_records += interval.aborted_records
        compacted += interval.compacted
        unproven += interval.unproven
        left_out += interval.left_out
    return replace(
        whole,
        control_records=control_records,
        aborted_records=aborted_records,
        compacted=compacted,
        unproven=unproven,
        left_out=left_out,
    )


def is_better(record: CommitResult, kept: CommitResult) -> bool:
    """True if a result replaces the kept one of the same plan number.

    The kept one is of another plan (restored ledger), or was recounted while its run knows more.
    """
    return record.plan_id != kept.plan_id or (kept.is_recounted and not record.is_recounted)


def interval_of(r: OffsetRange, result: RangeResult, incarnation: int = 0) -> Interval:
    """Return the interval of a range's result, without the places of its gaps."""
    unproven = 0
    if result.behind_transform and r.partition.is_physical:
        # A row shows where its entry begins and not where it ends: each byte is doubtful.
        unproven = r.size
    elif result.behind_transform:
        unproven = result.missing_offsets
    return Interval(
        from_offset=r.from_offset,
        until_offset=r.until_offset,
        rows=result.rows,
        control_records=result.control_records,
        aborted_records=result.aborted_records,
        compacted=result.compacted,
        incarnation=incarnation,
        unproven=unproven,
        left_out=result.left_out,
    )


def add_removals(loaded: LoadedIntervals, removals: Iterable[ForeignCommit]) -> LoadedIntervals:
    """Return the intervals with these commits of other writers, the newest `REMOVALS_KEPT`."""
    known = {found.delta_version for found in loaded.removals}
    new = [commit for commit in removals if commit.delta_version not in known]
    return replace(loaded, removals=(*loaded.removals, *new)[-REMOVALS_KEPT:])


def merge(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sort intervals and merge adjacent ones of an incarnation.

    Intervals with a known number of rows are not merged with those of an unknown one.
    """
    merged: list[Interval] = []
    for interval in sorted(intervals, key=lambda i: (i.incarnation, i.from_offset, i.until_offset)):
        if merged and _can_merge(merged[-1], interval):
            interval = _merged((merged.pop(), interval))
        merged.append(interval)
    return tuple(merged)


def merged_holes(found: Iterable[ReadByOthers]) -> tuple[ReadByOthers, ...]:
    """Return the offsets that other members read, sorted and merged.

    If there are very many, the newest of each incarnation.
    """
    merged: list[ReadByOthers] = []
    for interval in sorted(set(found), key=_by_incarnation_and_offset):
        if merged and _overlaps_or_touches(merged[-1], interval):
            last = merged.pop()
            until_offset = max(last.until_offset, interval.until_offset)
            interval = replace(last, until_offset=until_offset)
        merged.append(interval)
    if len(merged) <= INTERVALS_KEPT:
        return tuple(merged)
    grouped = groupby(merged, key=lambda interval: (interval.partition, interval.incarnation))
    groups = [list(group) for _, group in grouped]
    most = max(1, INTERVALS_KEPT // len(groups))
    newest: list[ReadByOthers] = []
    for group in groups:
        newest += group[-most:]
    return tuple(newest)


def _by_incarnation_and_offset(found: ReadByOthers) -> tuple[TopicPartition, int, int, int]:
    return found.partition, found.incarnation, found.from_offset, found.until_offset


def _overlaps_or_touches(before: ReadByOthers, after: ReadByOthers) -> bool:
    if before.partition != after.partition or before.incarnation != after.incarnation:
        return False
    return after.from_offset <= before.until_offset


def _can_merge(before: Interval, after: Interval) -> bool:
    if (before.rows is None) != (after.rows is None):
        return False
    return before.incarnation == after.incarnation and before.until_offset == after.from_offset


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets of a partition that are not in the table: the first gap [from, until) and a count."""

    partition: TopicPartition
    from_offset: int
    until_offset: int
    count: int
    gone: int
    """Number of them below the log start: no run can load them."""


@dataclass(frozen=True, slots=True)
class TableGap:
    """An interval of time that is not fully loaded."""

    interval: TimeInterval
    partitions: tuple[MissingOffsets, ...]

    @property
    def missing(self) -> int:
        """Return the number of missing offsets: at most so many records."""
        return sum(partition.count for partition in self.partitions)

    @property
    def gone(self) -> int:
        """Return the number of missing offsets that no run can load."""
        return sum(partition.gone for partition in self.partitions)


def find_gaps(
    intervals: Sequence[TimeInterval],
    bounds: Mapping[TopicPartition, Sequence[int]],
    loaded: Mapping[TopicPartition, Collection[tuple[int, int]]],
    starts: Mapping[TopicPartition, int],
) -> list[TableGap]:
    """Return the time intervals with offsets that are not in the table, sorted.

    `bounds`: per partition the first offset at or after the start of the first interval, then one
    for each end. `loaded`: offsets [from, until) that are or may be in the table, or were given up.
    `starts`: the log starts.
    """
    gaps = []
    for index, interval in enumerate(intervals):
        incomplete = []
        for partition in in_order(bounds):
            start, end = bounds[partition][index : index + 2]
            wanted = (start, max(start, end))
            missing = find_missing(
                partition, wanted, loaded.get(partition, ()), starts.get(partition, 0)
            )
            if missing is not None:
                incomplete.append(missing)
        if incomplete:
            gaps.append(TableGap(interval, tuple(incomplete)))
    return gaps


@dataclass(frozen=True, slots=True)
class ExplainedOffsets:
    """Offsets of the intervals that are not in the table and that no run will load."""

    let_go: int
    """Given up by policy or an operator, or loaded by a predecessor."""
    before_start: int
    """Before the pipeline's start, or before it continued after a truncation or recreation."""
    read_by_others: int = 0
    """Read by other members of the group."""


def explain_missing(
    bounds: Mapping[TopicPartition, Sequence[int]],
    loaded: Mapping[TopicPartition, Collection[tuple[int, int]]],
    let_go: Mapping[TopicPartition, Collection[tuple[int, int]]],
    begins: Mapping[TopicPartition, int],
    of_others: Mapping[TopicPartition, Collection[tuple[int, int]]] = MappingProxyType({}),
) -> ExplainedOffsets:
    """Count the offsets between the first and last bound that by decision no run will load.

    `begins`: the pipeline's start in each partition. `of_others`: offsets that other members read.
    An offset with several reasons is counted once.
    """
    lost_count = 0
    before_count = 0
    others_count = 0
    for partition, offsets in bounds.items():
        first = min(offsets)
        last = max(offsets)
        explained = list(loaded.get(partition, ()))
        for start, until in of_others.get(partition, ()):
            left = subtract_intervals((max(start, first), min(until, last)), explained)
            others_count += _size(left)
            explained += left
        for start, until in let_go.get(partition, ()):
            left = subtract_intervals((max(start, first), min(until, last)), explained)
            lost_count += _size(left)
            explained += left
        before_start = (first, min(last, begins.get(partition, first)))
        before_count += _size(subtract_intervals(before_start, explained))
    return ExplainedOffsets(lost_count, before_count, others_count)


def _size(intervals: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in intervals)


def find_missing(
    partition: TopicPartition,
    wanted: tuple[int, int],
    loaded: Collection[tuple[int, int]],
    log_start: int,
) -> MissingOffsets | None:
    """Return which of the wanted offsets [from, until) are not loaded; None: all are loaded."""
    gaps = list(subtract_intervals(wanted, loaded))
    if not gaps:
        return None
    gone = 0
    for start, until in gaps:
        gone += max(0, min(until, log_start) - start)
    from_offset, until_offset = gaps[0]
    return MissingOffsets(partition, from_offset, until_offset, _size(gaps), gone)
