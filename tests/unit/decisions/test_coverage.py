"""What pruned plans leave: loaded intervals per log, merged, and never counted twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.decide import loaded_intervals
from etl.decide.loaded_intervals import (
    OFFSETS_END,
    PLANS_KEPT,
    Ancestry,
    add_removals,
    ancestry,
    first_gap,
    fold,
    fold_all,
    inherit_intervals,
    is_better,
    merge,
    prunable,
)
from etl.errors import LedgersDisagree
from etl.ledger.documents import parse, render
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
    plan = plain_plan(
        number,
        ranges=tuple(OffsetRange(*r) for r in ranges),
        id=f"plan-{number}",
        table_transaction_version=number - 1,
    )
    return plan, CommitResult(
        number,
        plan.id,
        number,
        "t",
        tuple(RangeResult(rows=until - start - 1) for _, start, until in ranges),
    )


def test_too_many_intervals_become_fewer_and_keep_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loaded_intervals, "INTERVALS_KEPT", 5)
    holed = tuple((A, start, start + 5) for start in (0, 10, 20, 30, 40))
    whole = fold(LoadedIntervals(), *plan_of(1, *holed))
    assert whole.intervals[A] == tuple(Interval(start, start + 5, 4) for _, start, _ in holed)
    assert fold(whole, *plan_of(2, (B, 0, 5))).intervals == {
        A: (Interval(0, 35, 16), Interval(40, 45, 4)),
        B: (Interval(0, 5, 4),),
    }


def test_intervals_of_two_lives_of_a_log_are_not_merged_even_where_their_offsets_meet() -> None:
    assert merge(
        [Interval(0, 5, 5), Interval(5, 9, 4, incarnation=1), Interval(2, 5, 3, incarnation=1)]
    ) == (Interval(0, 5, 5), Interval(2, 9, 7, incarnation=1))


def test_folding_keeps_the_incarnation_of_the_log_and_the_vanished_records_of_a_reset() -> None:
    first, reset, later = plan_of(1, (A, 0, 5)), plan_of(2), plan_of(3, (A, 3, 9))
    gone = StaleRows(A, 3, 5)
    found = fold(
        fold(LoadedIntervals(), *first),
        replace(reset[0], losses=replace(reset[0].losses, stale_rows=(gone,))),
        reset[1],
    )
    found = fold(found, changed(later[0], loaded_until={A: 9}, incarnations={A: 1}), later[1])
    assert found == LoadedIntervals(
        3,
        {A: (Interval(0, 5, 4), Interval(3, 9, 5, incarnation=1))},
        table_id="t",
        vanished=(gone,),
    )


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
    found = fold(
        fold(LoadedIntervals(), *plan_of(1, (A, 0, 5), (A, 5, 9), (B, 2, 4))),
        *plan_of(2, (A, 9, 10)),
    )
    assert found == LoadedIntervals(
        2, {A: (Interval(0, 10, 7),), B: (Interval(2, 4, 1),)}, table_id="t"
    )


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
        ((5, 100), (5, None), True),
        ((5, None), (5, 100), False),
        ((5, 100), (5, 90), False),
        ((5, None), (5, None), False),
    ],
)
def test_the_intervals_of_a_plan_are_replaced_only_by_more_exact_ones(
    record: tuple[int, int | None],
    kept: tuple[int, int | None],
    better: bool,
) -> None:
    _, applied = plan_of(1, (A, 0, 5))
    assert (
        is_better(
            replace(applied, results=(RangeResult(*record),)),
            replace(applied, results=(RangeResult(*kept),)),
        )
        is better
    )
    assert is_better(replace(applied, plan_id="plan-2", results=(RangeResult(*record),)), applied)


def test_a_plan_that_is_folded_in_already_changes_nothing() -> None:
    once = fold(LoadedIntervals(), *plan_of(3, (A, 0, 5)))
    assert fold(once, *plan_of(3, (A, 0, 5))) == once
    assert fold(once, *plan_of(2, (A, 5, 6))) == once


def test_what_cannot_be_proven_stays_in_the_coverage_with_the_newest_plan_that_it_is_of() -> None:
    found = LoadedIntervals()
    for number, result in enumerate(
        (
            RangeResult(9, 1),
            RangeResult(8, missing_offsets=2, behind_transform=True),
            RangeResult(10, behind_transform=True),
            RangeResult(9, missing_offsets=1),
            NOT_COUNTED,
            NOT_COUNTED,
            RangeResult(10, 1),
        ),
        1,
    ):
        plan, applied = plan_of(number, (A, number * 10 - 10, number * 10))
        found = fold(found, plan, replace(applied, results=(result,)))
        assert found.unproven_through == {1: 0, 2: 2, 3: 2, 4: 2, 5: 5}.get(number, 6)
    assert found.intervals[A] == (
        Interval(0, 40, 36, unproven=2),
        Interval(40, 60, None),
        Interval(60, 70, 10),
    )
    assert [i.unexplained for i in found.intervals[A]] == [4, 0, 0]


def test_what_could_not_be_proven_of_a_table_that_was_given_up_is_forgotten_with_it() -> None:
    plan, applied = plan_of(1, (A, 0, 10))
    before = fold(LoadedIntervals(), plan, replace(applied, results=(NOT_COUNTED,)))
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


def test_a_plan_that_went_to_another_table_begins_the_coverage_anew() -> None:
    before = fold(LoadedIntervals(), *plan_of(1, (A, 0, 5), (B, 0, 5)))
    plan, applied = plan_of(2, (A, 5, 9))
    found = fold(before, plan, replace(applied, table_id="another"))
    assert (found.through, set(found.intervals), found.table_id) == (2, {A}, "another")
    assert found.intervals[A][0].from_offset == 5


def test_what_others_removed_is_kept_once_and_the_newest_of_it() -> None:
    found = [ForeignCommit(version, "DELETE", "removed rows") for version in range(3)]
    noted = add_removals(add_removals(LoadedIntervals(), found[:2]), found)
    assert noted.removals == tuple(found)
    assert add_removals(noted, found) == noted
    assert (
        len(
            add_removals(
                LoadedIntervals(), [ForeignCommit(v, "DELETE", "removed rows") for v in range(1500)]
            ).removals
        )
        == 1000
    )


@pytest.mark.parametrize(
    ("bits", "version", "led"),
    [
        ({}, 0, Ancestry(frozenset(), 0)),
        ({1: 0, 2: 1, 3: 2}, 3, Ancestry(frozenset({1, 2, 3}), 0)),
        (
            {1: 0, 2: 1, 3: 2},
            2,
            Ancestry(frozenset({1, 2}), 0),
        ),  # plan 3 is stored and not in the table
        (
            {1: 0, 2: 1, 3: 2, 4: 1},
            4,
            Ancestry(frozenset({1, 4}), 0),
        ),  # the table is a copy of the day of plan 1
        ({1: 0, 2: 1, 3: 0}, 3, Ancestry(frozenset({3}), 0)),  # another table
        (
            {7: 6, 8: 4, 9: 8},
            9,
            Ancestry(frozenset({8, 9}), 4),
        ),  # plan 6 and those before it were pruned
        (
            {1: 0, 2: 1, 3: 2},
            1,
            Ancestry(frozenset({1}), 0),
        ),  # an old copy was accepted, and nothing was loaded since
    ],
)
def test_the_plans_that_led_to_a_table_are_found_by_the_version_that_each_observed(
    bits: dict[int, int], version: int, led: Ancestry
) -> None:
    assert ancestry(bits, version) == led


def test_what_an_operator_gave_up_is_kept_apart_when_it_is_folded() -> None:
    first = plan_of(1, (A, 0, 5))
    lost = plan_of(2, (A, 5, 9))
    third, result = plan_of(3, (A, 9, 12))
    third = replace(third, table=replace(third.table, transaction_version=1))
    found = fold(LoadedIntervals(), *first)
    found = fold(found, *lost, is_given_up=True)
    assert found == LoadedIntervals(
        2,
        {A: (Interval(0, 5, 4),)},
        table_id="t",
        given_up={A: (Interval(5, 9, 3),)},
        held_through=1,
    )
    assert fold(found, third, result) == LoadedIntervals(
        3,
        {A: (Interval(0, 5, 4), Interval(9, 12, 2))},
        table_id="t",
        given_up={A: (Interval(5, 9, 3),)},
    )


@pytest.mark.parametrize(
    ("version", "intervals", "given_up"),
    [
        (None, (0, 15), None),
        (5, (0, 15), None),
        (4, (0, 12), (12, 15)),  # an old copy was accepted, and nothing was loaded since
        (2, (0, 6), (6, 15)),
        # a result that lacks a part of the pruned intervals, and which part is unknown
        (1, None, (0, 15)),
    ],
)
def test_the_loaded_intervals_of_a_table_depend_on_its_version(
    version: int | None,
    intervals: tuple[int, int] | None,
    given_up: tuple[int, int] | None,
) -> None:
    pruned = fold(fold(LoadedIntervals(), *plan_of(1, (A, 0, 3))), *plan_of(2, (A, 3, 6)))
    found = fold_all(pruned, [plan_of(n, (A, 3 * n - 3, 3 * n)) for n in (3, 4, 5)], version)
    for there, offsets in ((found.intervals, intervals), (found.given_up, given_up)):
        assert [(one.from_offset, one.until_offset) for one in there.get(A, ())] == (
            [offsets] if offsets else []
        )


def test_what_other_members_read_of_a_pipeline_stays_theirs_for_who_takes_over() -> None:
    theirs = replace(
        fold(LoadedIntervals(), *plan_of(1, (A, 0, 5), (B, 0, 2))),
        read_by_others=(ReadByOthers(A, 5, 7), ReadByOthers(B, 2, 3)),
    )
    found = inherit_intervals(LoadedIntervals(), theirs, {A: 9, B: 3}, table_id="t", known=(B,))
    assert found.read_by_others == (ReadByOthers(A, 5, 7),)
    assert inherit_intervals(found, theirs, {A: 9, B: 3}, table_id="t", known=(B,)) == found


@pytest.mark.parametrize("change", ["another table", "an old copy"])
def test_if_the_abandoned_part_of_the_intervals_is_unknown_all_of_them_are_abandoned(
    change: str,
) -> None:
    first, second, third = plan_of(1, (A, 0, 5)), plan_of(2, (A, 5, 9)), plan_of(3, (A, 9, 12))
    plan, applied = third
    if change == "another table":
        applied = replace(applied, table_id="t2")
    else:
        plan = replace(plan, table=replace(plan.table, transaction_version=1))
    found = fold(fold(fold(LoadedIntervals(), *first), *second), plan, applied)
    assert (found.intervals, found.given_up) == (
        {A: (Interval(9, 12, 2),)},
        {A: (Interval(0, 9, 7),)},
    )


def test_rows_of_every_incarnation_of_an_inherited_log_are_expected_by_the_heir() -> None:
    found = inherit_intervals(
        LoadedIntervals(), None, {A: 4, B: 7}, table_id="t", known=(), lives={A: 2}
    )
    assert found.given_up == {
        A: (
            Interval(0, OFFSETS_END, 0),
            Interval(0, OFFSETS_END, 0, incarnation=1),
            Interval(0, 4, 0, incarnation=2),
        ),
        B: (Interval(0, 7, 0),),
    }
    assert (
        inherit_intervals(found, None, {A: 4, B: 7}, table_id="t", known=(), lives={A: 2}) == found
    )
    later = inherit_intervals(found, None, {B: 3}, table_id="t", known=(B,))
    assert later.given_up[B] == (Interval(0, 7, 0), Interval(0, 3, 0)), (
        "intervals that were inherited before stay"
    )


def test_the_first_offsets_that_nothing_holds_are_named() -> None:
    assert first_gap([(0, 3), (2, 6)], 1, 6) is None
    assert first_gap([(0, 3), (5, 9)], 1, 9) == (3, 5)
    assert first_gap([], 1, 9) == (1, 9)
    assert first_gap([(0, 9)], 4, 4) is None


def test_folding_keeps_the_run_key_of_a_complete_plan_and_drops_that_of_a_capped_one() -> None:
    until = Bounds(until=Bound("T", at_ms=5))
    first, cut, last = plan_of(1, (A, 0, 5)), plan_of(2, (A, 5, 9)), plan_of(3, (A, 9, 10))
    found = fold(
        LoadedIntervals(),
        replace(first[0], request=replace(first[0].request, run_key="k1", bounds=until)),
        first[1],
    )
    assert found.keys == (RunKeyRecord("k1", 1, "until T"),)
    found = fold(
        found,
        replace(cut[0], request=replace(cut[0].request, run_key="k2", unfinished={A: 10})),
        cut[1],
    )
    assert found.keys == (RunKeyRecord("k1", 1, "until T"),)
    found = fold(
        found,
        replace(last[0], request=replace(last[0].request, run_key="k2")),
        last[1],
        is_given_up=True,
    )
    assert found.keys == (RunKeyRecord("k1", 1, "until T"), RunKeyRecord("k2", 3))
    assert parse(LoadedIntervals, render(found), path="coverage").keys == found.keys
