"""Loaded intervals after rows were replaced, and an audit by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.audit.compare_rows import (
    BUCKET_OFFSETS,
    AuditedPartition,
    Bucket,
    Expected,
    PartitionFindings,
    audit_partition,
    replaced_expected,
)
from etl.decide.loaded_intervals import Span, fold, replace_span, spans_of, split_around
from etl.ledger.plan_document import with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import CommitResult, OffsetRange, Plan, PlanKind, RangeResult
from etl.model.snapshot import ForeignCommit, Interval, LoadedIntervals
from tests.builders import changed, plain_plan

LOG, PHYSICAL = TopicPartition("clicks", 0), TopicPartition("clicks", 0, 1)


def buckets_of(offsets: Iterable[int]) -> list[Bucket]:
    members = sorted(offsets)
    flags = numpy.zeros(BUCKET_OFFSETS, numpy.bool_)
    flags[members] = True
    if members:
        return [Bucket(0, len(members), numpy.packbits(flags, bitorder="little").tobytes())]
    return []


@dataclass
class History:
    """Plans of one log, the rows that they left in the table, and what the log still has."""

    plans: list[tuple[Plan, CommitResult]] = field(default_factory=list)
    table: set[int] = field(default_factory=set)
    has: set[int] = field(default_factory=set)
    end: int = 0

    def adds(self, kind: PlanKind, cuts: list[int], knows: list[bool]) -> None:
        """A plan over the pieces between `cuts`; whether the range result of each names its gaps."""
        number, inside = len(self.plans) + 1, range(cuts[0], cuts[-1])
        ranges = tuple(OffsetRange(LOG, a, b) for a, b in zip(cuts, cuts[1:]))
        self.end = max(self.end, cuts[-1])
        plan = plain_plan(
            number,
            kind=kind,
            ranges=ranges,
            loaded_until={LOG: self.end},
            table_transaction_version=number - 1,
        )
        if kind is PlanKind.REPLAY:
            plan = changed(plan, replaced_rows={LOG: len(self.table.intersection(inside))})
        plan = with_id(plan)
        results = tuple(self._result(r, is_known=known) for r, known in zip(ranges, knows))
        self.plans.append((plan, CommitResult(number, plan.id, number, "t", results)))
        self.table = self.table.difference(inside) | self.has.intersection(inside)

    def _result(self, r: OffsetRange, *, is_known: bool) -> RangeResult:
        gaps = tuple(
            (at, at + 1) for at in range(r.from_offset, r.until_offset) if at not in self.has
        )
        return RangeResult(
            r.size - len(gaps),
            100,
            missing_offsets=len(gaps),
            gaps=gaps if is_known else (),
            gaps_complete=is_known,
        )

    def expected(self, folded: int) -> Expected:
        """As `verify` has it, once so many plans are pruned."""
        loaded = LoadedIntervals()
        for plan, applied in self.plans[:folded]:
            loaded = fold(loaded, plan, applied)
        known = Expected(loaded=loaded.intervals.get(LOG, ()))
        for plan, applied in self.plans[folded:]:
            pairs = list(zip(plan.ranges, applied.results, strict=True))
            if plan.kind is PlanKind.REPLAY:
                known = replaced_expected(known, spans_of(plan)[0], pairs)
            else:
                known = replace(known, applied=(*known.applied, *pairs))
        return known


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    for _ in range(draw(st.integers(1, 6))):
        if history.end and draw(st.booleans()):
            history.has -= set(
                draw(st.lists(st.integers(0, history.end), max_size=3))
            )  # compaction
            low = draw(st.integers(0, history.end - 1))
            high = draw(st.integers(low + 1, history.end))
            kind = PlanKind.REPLAY
        else:
            low, high, kind = history.end, history.end + draw(st.integers(1, 9)), PlanKind.INGEST
            history.has |= set(draw(st.lists(st.integers(low, high - 1))))
        cuts = sorted({low, high, *draw(st.lists(st.integers(low, high), max_size=2))})
        history.adds(kind, cuts, draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    return history


def found(history: History, folded: int, table: set[int]) -> PartitionFindings:
    return audit_partition(AuditedPartition(LOG), history.expected(folded), buckets_of(table))


@given(histories(), st.integers(0, 6))
def test_whatever_was_replaced_and_pruned_the_table_is_proven_right(
    history: History, folded: int
) -> None:
    findings = found(history, folded, history.table)
    assert findings.is_right, findings
    assert findings.expected_rows == findings.found_rows == len(history.table)


@given(histories(), st.integers(0, 6), st.data())
def test_a_missing_or_surplus_row_is_found_after_any_replay(
    history: History, folded: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, history.end))
    assert not found(history, folded, history.table ^ {at}).is_right


def test_of_a_dense_interval_the_parts_around_are_known_and_of_another_only_the_number() -> None:
    span, came = Span(LOG, 3, 6, replaced_rows=2), [Interval(3, 6, 1, compacted=2)]
    assert replace_span([Interval(0, 10, 10)], span, came) == (
        Interval(0, 3, 3),
        Interval(6, 10, 4),
        *came,
    )
    assert replace_span([Interval(0, 10, 9, control_records=1)], span, came) == (
        Interval(0, 10, 8, control_records=1, compacted=2),
    )
    assert replace_span([Interval(4, 5, 0), Interval(6, 9, 2)], span, came) == (
        Interval(6, 9, 2),
        *came,
    )


@pytest.mark.parametrize(
    "interval",
    [Interval(0, 10, 9), Interval(0, 10, None)],
    ids=["the replaced rows were not counted", "the loaded rows were not counted"],
)
def test_without_counts_of_the_rows_the_number_is_unknown(interval: Interval) -> None:
    interval = replace(interval, control_records=1)
    came = [Interval(3, 6, 2, control_records=1)]
    [left] = replace_span([interval], Span(LOG, 3, 6), came)
    assert (left.rows, left.control_records) == (None, 0), "both may count the same offset"


def test_byte_positions_count_no_rows_so_a_replay_inside_an_interval_keeps_their_number() -> None:
    left = replace_span(
        [Interval(0, 100, 100)], Span(PHYSICAL, 30, 60, replaced_rows=31), [Interval(30, 60, 29)]
    )
    assert left == (Interval(0, 100, 98),)


def test_rows_of_another_incarnation_are_not_replaced() -> None:
    old, came = Interval(0, 10, 10), Interval(5, 8, 3, incarnation=1)
    assert replace_span(
        [old, Interval(5, 8, 3, incarnation=1)], Span(LOG, 5, 8, 1, replaced_rows=3), [came]
    ) == (old, came)


def test_after_a_removal_of_rows_by_others_the_former_count_does_not_apply_to_the_rest() -> None:
    history = History(has=set(range(10)) - {1})
    history.adds(PlanKind.INGEST, [0, 10], [False])
    history.adds(PlanKind.REPLAY, [4, 6], [True])
    (first, applied), (second, again) = history.plans
    loaded = fold(LoadedIntervals(), first, applied)
    [interval] = fold(loaded, second, again).intervals[LOG]
    assert interval.rows == 9
    removed = replace(loaded, removals=(ForeignCommit(2, "DELETE", "removed rows"),))
    [interval] = fold(removed, second, again).intervals[LOG]
    assert interval.rows is None


@pytest.mark.parametrize(
    ("gaps", "explained"),
    [(((7, 9),), 2), (((1, 2), (7, 9)), 0)],
    ids=["all of them", "some of them"],
)
def test_why_offsets_gave_no_row_stays_known_where_a_part_has_all_gaps_of_its_range(
    gaps: tuple[tuple[int, int], ...], explained: int
) -> None:
    lacking = sum(until - start for start, until in gaps)
    result = RangeResult(10 - lacking, 500, control_records=lacking, gaps=gaps)
    parts = split_around(OffsetRange(LOG, 0, 10), result, Span(LOG, 3, 6))
    assert [(r.from_offset, r.until_offset) for r, _ in parts] == [(0, 3), (6, 10)]
    assert sum(part.rows or 0 for _, part in parts) == 7 - lacking
    assert parts[1][1].control_records == explained
