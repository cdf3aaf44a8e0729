"""Loaded intervals of pruned plans: merged, and never counted twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.commands.lag import TableGaps
from etl.decide import loaded_intervals
from etl.decide.loaded_intervals import (
    OFFSETS_END,
    PLANS_KEPT,
    Ancestry,
    ExplainedOffsets,
    MissingOffsets,
    add_removals,
    ancestry,
    explain_missing,
    find_gaps,
    find_missing,
    first_gap,
    fold,
    fold_all,
    inherit_intervals,
    is_better,
    merge,
    merged_holes,
    prunable,
    subtract_intervals,
)
from etl.decide.run_requests import interval_between, split_into_intervals
from etl.errors import LedgersDisagree
from etl.model.partitions import TopicPartition
from etl.model.plans import (
    NOT_COUNTED,
    Bound,
    Bounds,
    CommitResult,
    OffsetRange,
    Plan,
    RangeResult,
    ReadByOthers,
    RunKeyRecord,
    StaleRows,
)
from etl.model.snapshot import ForeignCommit, Interval, LoadedIntervals
from tests.builders import changed, plain_plan

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def plan_of(number: int, *ranges: tuple[TopicPartition, int, int]) -> tuple[Plan, CommitResult]:
    """A plan over these ranges, each with one offset that gave no row, and its result."""
    plan = plain_plan(
        number,
        ranges=tuple(OffsetRange(*r) for r in ranges),
        id=f"plan-{number}",
        table_transaction_version=number - 1,
    )
    results = tuple(RangeResult(rows=until - start - 1) for _, start, until in ranges)
    return plan, CommitResult(number, plan.id, number, "t", results)


def folded(*plans: tuple[Plan, CommitResult]) -> LoadedIntervals:
    found = LoadedIntervals()
    for plan, applied in plans:
        found = fold(found, plan, applied)
    return found


def test_too_many_intervals_become_fewer_and_keep_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loaded_intervals, "INTERVALS_KEPT", 5)
    holed = plan_of(1, *((A, start, start + 5) for start in (0, 10, 20, 30, 40)))
    whole = folded(holed)
    assert whole.intervals[A] == tuple(Interval(n, n + 5, 4) for n in (0, 10, 20, 30, 40))
    assert fold(whole, *plan_of(2, (B, 0, 5))).intervals == {
        A: (Interval(0, 35, 16), Interval(40, 45, 4)),
        B: (Interval(0, 5, 4),),
    }


def test_intervals_of_two_incarnations_are_not_merged_even_where_their_offsets_meet() -> None:
    assert merge(
        [Interval(0, 5, 5), Interval(5, 9, 4, incarnation=1), Interval(2, 5, 3, incarnation=1)]
    ) == (Interval(0, 5, 5), Interval(2, 9, 7, incarnation=1))


def test_folding_keeps_the_incarnation_of_the_log_and_the_stale_rows_of_a_reset() -> None:
    gone = StaleRows(A, 3, 5)
    reset, of_reset = plan_of(2)
    later, of_later = plan_of(3, (A, 3, 9))
    later = changed(later, loaded_until={A: 9}, incarnations={A: 1})
    found = folded(
        plan_of(1, (A, 0, 5)), (changed(reset, vanished=(gone,)), of_reset), (later, of_later)
    )
    intervals = {A: (Interval(0, 5, 4), Interval(3, 9, 5, incarnation=1))}
    assert found == LoadedIntervals(3, intervals, table_id="t", vanished=(gone,))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12), st.sets(st.integers(0, 11)), st.randoms()
)
def test_merging_keeps_every_row_and_every_offset_in_whatever_order(
    sizes: list[int], left_out: set[int], random: object
) -> None:
    cuts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    pieces = [
        Interval(a, b, b - a) for i, (a, b) in enumerate(zip(cuts, cuts[1:])) if i not in left_out
    ]
    shuffled = list(pieces)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    merged = merge(shuffled)
    assert sum(i.rows or 0 for i in merged) == sum(i.rows or 0 for i in pieces)
    assert [o for i in merged for o in range(i.from_offset, i.until_offset)] == [
        o for i in pieces for o in range(i.from_offset, i.until_offset)
    ]
    assert all(before.until_offset < after.from_offset for before, after in zip(merged, merged[1:]))
    assert merge(merged) == merged


def test_folding_adds_the_plans_ranges_with_their_rows() -> None:
    found = folded(plan_of(1, (A, 0, 5), (A, 5, 9), (B, 2, 4)), plan_of(2, (A, 9, 10)))
    intervals = {A: (Interval(0, 10, 7),), B: (Interval(2, 4, 1),)}
    assert found == LoadedIntervals(2, intervals, table_id="t")


def test_why_offsets_gave_no_row_outlives_the_plans() -> None:
    plan, applied = plan_of(1, (A, 0, 9), (A, 9, 20), (A, 20, 30))
    results = (
        RangeResult(4, 100, 2, 1, 2),
        RangeResult(10, 100, 0, 0, 1),
        RangeResult(7, None, 0, 0, 3),
    )
    [interval] = fold(LoadedIntervals(), plan, replace(applied, results=results)).intervals[A]
    assert interval == Interval(0, 30, 21, control_records=2, aborted_records=1, compacted=3)
    assert interval.unexplained == 3


@pytest.mark.parametrize("other", [{"plan_id": "plan-0"}, {"results": ()}])
def test_the_record_of_another_plan_is_never_folded_in(other: dict[str, Any]) -> None:
    plan, applied = plan_of(1, (A, 0, 5))
    with pytest.raises(LedgersDisagree, match="does not belong"):
        fold(LoadedIntervals(), plan, replace(applied, **other))


@pytest.mark.parametrize(
    ("record", "kept", "better"),
    [
        (RangeResult(5, 100), RangeResult(5, None), True),
        (RangeResult(5, None), RangeResult(5, 100), False),
        (RangeResult(5, 100), RangeResult(5, 90), False),
        (RangeResult(5, None), RangeResult(5, None), False),
    ],
)
def test_the_intervals_of_a_plan_are_replaced_only_by_more_exact_ones(
    record: RangeResult, kept: RangeResult, better: bool
) -> None:
    _, applied = plan_of(1, (A, 0, 5))
    found, before = replace(applied, results=(record,)), replace(applied, results=(kept,))
    assert is_better(found, before) is better
    assert is_better(replace(found, plan_id="plan-2"), applied)


def test_a_plan_that_is_folded_in_already_changes_nothing() -> None:
    once = folded(plan_of(3, (A, 0, 5)))
    assert fold(once, *plan_of(3, (A, 0, 5))) == fold(once, *plan_of(2, (A, 5, 6))) == once


def test_what_cannot_be_proven_stays_in_the_coverage_with_the_newest_plan_that_it_is_of() -> None:
    results = {
        RangeResult(9, 1): 0,
        RangeResult(8, missing_offsets=2, behind_transform=True): 2,
        RangeResult(10, behind_transform=True): 2,
        RangeResult(9, missing_offsets=1): 2,
        NOT_COUNTED: 5,
        RangeResult(10, 1): 5,
    }
    found = LoadedIntervals()
    for number, (result, unproven_through) in enumerate(results.items(), 1):
        plan, applied = plan_of(number, (A, number * 10 - 10, number * 10))
        found = fold(found, plan, replace(applied, results=(result,)))
        assert found.unproven_through == unproven_through
    assert found.intervals[A] == (
        Interval(0, 40, 36, unproven=2),
        Interval(40, 50, None),
        Interval(50, 60, 10),
    )
    assert [i.unexplained for i in found.intervals[A]] == [4, 0, 0]


def test_what_could_not_be_proven_of_a_table_that_was_given_up_is_forgotten_with_it() -> None:
    plan, applied = plan_of(1, (A, 0, 10))
    before = folded((plan, replace(applied, results=(NOT_COUNTED,))))
    plan, applied = plan_of(2, (A, 10, 20))
    assert fold(before, plan, replace(applied, table_id="another")).unproven_through == 0


def test_the_newest_hundred_plans_stay() -> None:
    assert PLANS_KEPT == 100
    assert prunable([(n, 10) for n in range(1, 104)]) == [1, 2, 3]
    assert prunable([(n, 10) for n in range(1, 101)]) == []


@given(st.dictionaries(st.integers(1, 300), st.integers(0, 40), max_size=30))
def test_as_many_plans_stay_as_the_limits_allow_and_the_newest_however_large(
    sizes: dict[int, int],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded_intervals, "PLANS_KEPT", 10)
        patch.setattr(loaded_intervals, "PLAN_BYTES_KEPT", 100)
        gone = prunable(list(sizes.items()))
    kept = sorted(set(sizes) - set(gone))
    assert gone == sorted(gone)
    assert not gone or not kept or gone[-1] < kept[0]
    assert len(kept) <= 10 and (sum(sizes[n] for n in kept) <= 100 or len(kept) == 1)
    assert bool(kept) == bool(sizes)
    if gone:
        assert len(kept) == 10 or sum(sizes[n] for n in [gone[-1], *kept]) > 100


def test_what_others_removed_is_kept_once_and_the_newest_of_it() -> None:
    found = [ForeignCommit(version, "DELETE", "removed rows") for version in range(1500)]
    noted = add_removals(add_removals(LoadedIntervals(), found[:2]), found[:3])
    assert noted.removals == tuple(found[:3])
    assert add_removals(noted, found[:3]) == noted
    assert add_removals(LoadedIntervals(), found).removals == tuple(found[-1000:])


@pytest.mark.parametrize(
    ("bits", "version", "led"),
    [
        ({}, 0, Ancestry(frozenset(), 0)),
        ({1: 0, 2: 1, 3: 2}, 3, Ancestry(frozenset({1, 2, 3}), 0)),
        # plan 3 is stored and not in the table
        ({1: 0, 2: 1, 3: 2}, 2, Ancestry(frozenset({1, 2}), 0)),
        # the table is a copy of the day of plan 1
        ({1: 0, 2: 1, 3: 2, 4: 1}, 4, Ancestry(frozenset({1, 4}), 0)),
        # another table
        ({1: 0, 2: 1, 3: 0}, 3, Ancestry(frozenset({3}), 0)),
        # plan 6 and those before it were pruned
        ({7: 6, 8: 4, 9: 8}, 9, Ancestry(frozenset({8, 9}), 4)),
        # an old copy was accepted, and nothing was loaded since
        ({1: 0, 2: 1, 3: 2}, 1, Ancestry(frozenset({1}), 0)),
    ],
)
def test_the_plans_that_led_to_a_table_are_found_by_the_version_that_each_observed(
    bits: dict[int, int], version: int, led: Ancestry
) -> None:
    assert ancestry(bits, version) == led


def test_what_an_operator_gave_up_is_kept_apart_when_it_is_folded() -> None:
    third, result = plan_of(3, (A, 9, 12))
    third = changed(third, table_transaction_version=1)
    given_up = {A: (Interval(5, 9, 3),)}
    found = fold(folded(plan_of(1, (A, 0, 5))), *plan_of(2, (A, 5, 9)), is_given_up=True)
    assert found == LoadedIntervals(
        2, {A: (Interval(0, 5, 4),)}, table_id="t", given_up=given_up, held_through=1
    )
    intervals = {A: (Interval(0, 5, 4), Interval(9, 12, 2))}
    after = LoadedIntervals(3, intervals, table_id="t", given_up=given_up)
    assert fold(found, third, result) == after


@pytest.mark.parametrize(
    ("version", "intervals", "given_up"),
    [
        (None, [(0, 15)], []),
        (5, [(0, 15)], []),
        # an old copy was accepted, and nothing was loaded since
        (4, [(0, 12)], [(12, 15)]),
        (2, [(0, 6)], [(6, 15)]),
        # the table lacks a part of the pruned intervals, and which part is unknown
        (1, [], [(0, 15)]),
    ],
)
def test_the_loaded_intervals_of_a_table_depend_on_its_version(
    version: int | None, intervals: list[tuple[int, int]], given_up: list[tuple[int, int]]
) -> None:
    pruned = folded(plan_of(1, (A, 0, 3)), plan_of(2, (A, 3, 6)))
    found = fold_all(pruned, [plan_of(n, (A, 3 * n - 3, 3 * n)) for n in (3, 4, 5)], version)
    for there, offsets in ((found.intervals, intervals), (found.given_up, given_up)):
        assert [(one.from_offset, one.until_offset) for one in there.get(A, ())] == offsets


def test_offsets_that_other_members_read_stay_theirs_for_the_successor() -> None:
    read_by_others = (ReadByOthers(A, 5, 7), ReadByOthers(B, 2, 3))
    theirs = replace(folded(plan_of(1, (A, 0, 5), (B, 0, 2))), read_by_others=read_by_others)
    found = inherit_intervals(LoadedIntervals(), theirs, {A: 9, B: 3}, table_id="t", known=(B,))
    assert found.read_by_others == (ReadByOthers(A, 5, 7),)
    assert inherit_intervals(found, theirs, {A: 9, B: 3}, table_id="t", known=(B,)) == found


@pytest.mark.parametrize("change", ["another table", "an old copy"])
def test_if_the_abandoned_part_of_the_intervals_is_unknown_all_of_them_are_abandoned(
    change: str,
) -> None:
    plan, applied = plan_of(3, (A, 9, 12))
    if change == "another table":
        applied = replace(applied, table_id="t2")
    else:
        plan = changed(plan, table_transaction_version=1)
    found = folded(plan_of(1, (A, 0, 5)), plan_of(2, (A, 5, 9)), (plan, applied))
    assert found.intervals == {A: (Interval(9, 12, 2),)}
    assert found.given_up == {A: (Interval(0, 9, 7),)}


def test_rows_of_every_incarnation_of_an_inherited_log_are_expected_by_the_successor() -> None:
    def inherit(before: LoadedIntervals) -> LoadedIntervals:
        positions, lives = {A: 4, B: 7}, {A: 2}
        return inherit_intervals(before, None, positions, table_id="t", known=(), lives=lives)

    found = inherit(LoadedIntervals())
    of_a = [Interval(0, OFFSETS_END, 0), Interval(0, OFFSETS_END, 0, incarnation=1)]
    assert found.given_up == {A: (*of_a, Interval(0, 4, 0, incarnation=2)), B: (Interval(0, 7, 0),)}
    assert inherit(found) == found
    later = inherit_intervals(found, None, {B: 3}, table_id="t", known=(B,))
    assert later.given_up[B] == (Interval(0, 7, 0), Interval(0, 3, 0)), "earlier intervals stay"


def test_the_first_offsets_that_nothing_holds_are_named() -> None:
    assert first_gap([(0, 3), (2, 6)], 1, 6) is None
    assert first_gap([(0, 3), (5, 9)], 1, 9) == (3, 5)
    assert first_gap([], 1, 9) == (1, 9)
    assert first_gap([(0, 9)], 4, 4) is None


def test_folding_keeps_the_run_key_of_a_complete_plan_and_drops_that_of_a_capped_one() -> None:
    until = Bounds(until=Bound("T", at_ms=5))
    first, of_first = plan_of(1, (A, 0, 5))
    cut, of_cut = plan_of(2, (A, 5, 9))
    last, of_last = plan_of(3, (A, 9, 10))
    found = folded(
        (changed(first, run_key="k1", bounds=until), of_first),
        (changed(cut, run_key="k2", key_ends={A: 10}), of_cut),
    )
    assert found.keys == (RunKeyRecord("k1", 1, "until T"),)
    found = fold(found, changed(last, run_key="k2"), of_last, is_given_up=True)
    assert found.keys == (RunKeyRecord("k1", 1, "until T"), RunKeyRecord("k2", 3))


def test_offsets_that_others_read_outlive_their_plans_and_intervals_that_touch_are_one() -> None:
    first, applied = plan_of(1, (A, 15, 20))
    second, of_second = plan_of(2)
    found = folded(
        (changed(first, read_by_others=(ReadByOthers(A, 5, 15),)), applied),
        (changed(second, read_by_others=(ReadByOthers(A, 3, 5), ReadByOthers(B, 0, 9))), of_second),
    )
    assert found.read_by_others == (ReadByOthers(A, 3, 15), ReadByOthers(B, 0, 9))
    of_two_incarnations = (ReadByOthers(A, 0, 5), ReadByOthers(A, 5, 9, 1))
    assert len(merged_holes(of_two_incarnations)) == 2


@pytest.mark.parametrize(
    ("stretch", "holes", "left"),
    [
        ((0, 10), [], [(0, 10)]),
        ((0, 10), [(0, 10)], []),
        ((0, 10), [(3, 5), (8, 20)], [(0, 3), (5, 8)]),
        ((0, 10), [(20, 30)], [(0, 10)]),
        ((4, 10), [(0, 2), (1, 6)], [(6, 10)]),
    ],
)
def test_the_rest_of_an_interval_excludes_its_holes(
    stretch: tuple[int, int], holes: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    assert subtract_intervals(stretch, holes) == left


HOURS = list(
    split_into_intervals(
        interval_between("2026-11-10T05:00:00Z", "2026-11-10T08:00:00Z"), timedelta(hours=1)
    )
)
BOUNDS = {A: [100, 110, 120, 130], B: [0, 5, 5, 9]}


@pytest.mark.parametrize(
    ("loaded", "missing"),
    [
        ({A: [(90, 130)], B: [(0, 9)]}, []),
        ({A: [(100, 119), (120, 130)], B: [(0, 9)]}, [(1, 1)]),
        ({A: [(100, 130)], B: [(0, 7)]}, [(2, 2)]),
        ({A: [(100, 105), (125, 130)], B: [(0, 9)]}, [(0, 5), (1, 10), (2, 5)]),
        ({}, [(0, 15), (1, 10), (2, 14)]),
    ],
    ids=["all", "a hole", "a part of one partition", "a hole over several hours", "nothing"],
)
def test_each_hour_that_lacks_an_offset_is_reported_with_their_number(
    loaded: dict[TopicPartition, list[tuple[int, int]]], missing: list[tuple[int, int]]
) -> None:
    found = find_gaps(HOURS, BOUNDS, loaded, {})
    assert [(HOURS.index(one.interval), one.missing) for one in found] == missing


def test_an_hour_without_records_is_not_missing() -> None:
    found = find_gaps(HOURS, {B: BOUNDS[B]}, {}, {})
    assert [(one.interval, one.partitions[0].partition) for one in found] == [
        (HOURS[0], B),
        (HOURS[2], B),
    ]


def test_intervals_deleted_by_retention_are_reported_apart_because_no_run_loads_them() -> None:
    [first, *_] = find_gaps(HOURS, BOUNDS, {B: [(0, 9)]}, {A: 104})
    assert (first.missing, first.gone) == (10, 4)
    assert find_missing(A, (100, 110), [(102, 104), (106, 108)], 107) == MissingOffsets(
        A, 100, 102, 6, 4
    )


def test_times_out_of_order_make_no_interval_run_backwards() -> None:
    [one] = find_gaps(HOURS[:2], {A: [100, 90, 110]}, {}, {})
    assert (one.interval, one.missing) == (HOURS[1], 20)


def test_abandoned_offsets_and_offsets_before_the_start_are_counted_apart_and_once() -> None:
    loaded, let_go = {A: [(110, 120)], B: [(6, 9)]}, {A: [(105, 112), (108, 115), (120, 200)]}
    assert explain_missing(BOUNDS, loaded, let_go, {A: 105, B: 6}) == ExplainedOffsets(
        5 + 10, 5 + 6
    )
    assert explain_missing(BOUNDS, loaded, {}, {}) == ExplainedOffsets(0, 0)
    assert explain_missing(BOUNDS, loaded, let_go, {A: 105, B: 6}, let_go) == ExplainedOffsets(
        0, 5 + 6, 5 + 10
    ), "what others read is not let go"


@pytest.mark.parametrize(
    ("loaded", "let_go", "begins"),
    [({}, {}, {A: 50}), ({}, {A: [(0, 40)]}, {}), ({A: [(100, 150)]}, {A: [(200, 240)]}, {A: 50})],
)
def test_a_start_or_abandoned_offsets_outside_of_the_bounds_explain_nothing(
    loaded: dict[TopicPartition, list[tuple[int, int]]],
    let_go: dict[TopicPartition, list[tuple[int, int]]],
    begins: dict[TopicPartition, int],
) -> None:
    assert explain_missing({A: [100, 200]}, loaded, let_go, begins, let_go) == ExplainedOffsets(
        0, 0
    )


@pytest.mark.parametrize(
    ("explained", "text"),
    [
        ((0, 0), "3 intervals: the table has every record of them that the partitions hold"),
        ((2, 0), "hold, except 2 offsets that plans record as lost or given up"),
        (
            (0, 1),
            "not counted: 1 offset before the start of this pipeline, or before its new start ",
        ),
    ],
)
def test_offsets_that_are_explained_are_reported_beside_complete_intervals(
    explained: tuple[int, int], text: str
) -> None:
    found = TableGaps(3, (), ExplainedOffsets(*explained), ())
    assert text in found.summary and found.refusal is None


def test_intervals_of_partitions_without_a_leader_are_not_reported_as_complete() -> None:
    found = TableGaps(3, (), ExplainedOffsets(0, 0), (A, B))
    text = (
        "clicks 0 and 1 more partitions have no leader, so the offsets at these times are unknown"
    )
    assert found.summary.endswith(text)
    place = {"topic": "clicks", "partition": 0}
    assert found.refusal and (found.refusal.exit_code, found.refusal.where) == (6, place)
    assert found.as_json()["without_leader"] == [place, {"topic": "clicks", "partition": 1}]
