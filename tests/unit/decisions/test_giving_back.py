"""What a backfill that loads no more gives back, and what of its plans the ledger expects in the
table after that.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.decide.loaded_intervals import fold_all
from etl.decide.reservations import (
    given_up_offsets,
    intervals_without_released,
    ledger_without_released,
    plan_without_released,
    remaining_reservation,
    split_reservation,
)
from etl.model.partitions import BrokerPartition
from etl.model.plans import GAPS_KEPT, CommitResult, OffsetRange, RangeResult
from etl.model.snapshot import Interval, LoadedIntervals, Reservation
from tests.builders import plain_plan

LOG, PHYSICAL = BrokerPartition("clicks", 0), BrokerPartition("clicks", 0, 1)
CLAIM = Reservation("old", {LOG: ((0, 4), (6, 10))}, {LOG: 2}, "from 0 until 10", 5)


def applied_of(*receipts: RangeResult) -> CommitResult:
    return CommitResult(1, "id", 7, "table-1", receipts)


def test_a_reservation_is_split_at_the_borders_of_its_known_parts() -> None:
    loaded = LoadedIntervals(
        intervals={LOG: (Interval(0, 4, 3), Interval(6, 8, 2))},
        given_up={LOG: (Interval(8, 12, 4),)},
    )
    assert [
        (one.offsets.from_offset, one.offsets.until_offset, one.rows)
        for one in split_reservation({LOG: ((0, 4), (6, 14))}, loaded)
    ] == [(0, 4, 3), (6, 8, 2), (8, 12, 4), (12, 14, None)]
    assert [one.rows for one in split_reservation({LOG: ((1, 4),)}, loaded)] == [None], (
        "the number of rows of a part of a plan's range is unknown"
    )


def test_in_doubt_are_intervals_loaded_into_an_earlier_table_and_not_again_since() -> None:
    given_up = {LOG: (Interval(0, 3, 3), Interval(3, 8, 5)), PHYSICAL: (Interval(0, 9, 1),)}
    loaded = LoadedIntervals(intervals={LOG: (Interval(2, 4, 2),)}, given_up=given_up)
    assert given_up_offsets({LOG: ((0, 6), (7, 20))}, loaded) == {LOG: ((0, 2), (4, 6), (7, 8))}
    assert given_up_offsets({LOG: ((2, 4),)}, loaded) == {}


def test_where_as_many_rows_are_there_as_were_loaded_nothing_is_given_back() -> None:
    stretches = {LOG: ((0, 10),)}
    held = split_reservation(stretches, LoadedIntervals(intervals={LOG: (Interval(0, 10, 8),)}))
    assert (
        remaining_reservation(stretches, held, [RangeResult(rows=8, gaps=((3, 5),))]) == stretches
    )
    assert remaining_reservation(stretches, held, [RangeResult(rows=7, gaps=((3, 6),))]) == {
        LOG: ((0, 3), (6, 10))
    }
    assert remaining_reservation(stretches, held, [RangeResult(rows=0, gaps=((0, 10),))]) == {}


def test_of_very_many_holes_the_largest_are_given_back() -> None:
    stretches = {LOG: ((0, 10_000),)}
    gaps = (*((at, at + 1) for at in range(0, 4 * GAPS_KEPT, 2)), (9_000, 9_900))
    kept = remaining_reservation(
        stretches, split_reservation(stretches, LoadedIntervals()), [RangeResult(rows=1, gaps=gaps)]
    )[LOG]
    assert (kept[-1], sum(until - start for start, until in kept)) == (
        (9_900, 10_000),
        10_000 - 900 - (GAPS_KEPT - 1),
    )


@pytest.mark.parametrize(("rows", "kept"), [(0, {}), (1, {PHYSICAL: ((0, 90),)})])
def test_rows_of_a_physical_log_only_show_whether_any_row_exists(rows: int, kept: object) -> None:
    stretches = {PHYSICAL: ((0, 90),)}
    held = split_reservation(
        stretches, LoadedIntervals(intervals={PHYSICAL: (Interval(0, 90, 3),)})
    )
    assert (
        remaining_reservation(stretches, held, [RangeResult(rows=rows, gaps_complete=False)])
        == kept
    )


def test_released_offsets_are_not_expected_of_a_plan() -> None:
    plan = plain_plan(
        1, ranges=(OffsetRange(LOG, 0, 5), OffsetRange(LOG, 5, 10), OffsetRange(LOG, 10, 12))
    )
    full = RangeResult(rows=5, fetched_bytes=9)
    left, applied, doubtful = plan_without_released(
        plan, applied_of(full, replace(full, rows=4, gaps=((7, 8),)), replace(full, rows=2)), CLAIM
    )
    assert [(r.from_offset, r.until_offset) for r in left.ranges] == [
        (0, 4),
        (6, 10),
    ] and not doubtful
    assert [(one.rows, one.gaps) for one in applied.receipts] == [(4, ()), (3, ((7, 8),))]


def test_a_range_with_unknown_gaps_is_not_judged() -> None:
    plan = plain_plan(1, ranges=(OffsetRange(LOG, 0, 5), OffsetRange(LOG, 6, 10)))
    unknown = RangeResult(rows=3, gaps_complete=False)
    left, applied, doubtful = plan_without_released(plan, applied_of(unknown, unknown), CLAIM)
    assert left.ranges == plan.ranges[1:] and applied.receipts == (unknown,)
    assert doubtful == {LOG: (Interval(0, 4, 4, incarnation=2),)}


def test_the_same_holds_of_plans_that_were_pruned() -> None:
    intervals = (
        Interval(0, 5, 5, incarnation=2),
        Interval(5, 10, 3, incarnation=2),
        Interval(10, 12, 2, incarnation=2),
    )
    coverage = LoadedIntervals(intervals={LOG: intervals})
    found = intervals_without_released(coverage, CLAIM)
    assert found.intervals == {LOG: (Interval(0, 4, 4, incarnation=2),)}
    assert found.given_up == {LOG: (Interval(6, 10, 4, incarnation=2),)}
    whole = replace(CLAIM, stretches={LOG: ((0, 12),)})
    assert intervals_without_released(coverage, whole) == coverage


def test_an_heir_keeps_undecidable_intervals_as_loaded_and_not_counted() -> None:
    """Free it would be loaded again, and some of its rows may be there."""
    pruned = LoadedIntervals(
        1,
        {LOG: (Interval(0, 5, 5, incarnation=2), Interval(5, 8, 2, incarnation=2))},
        table_id="table-1",
    )
    plan = plain_plan(
        2,
        ranges=(OffsetRange(LOG, 8, 9), OffsetRange(LOG, 9, 12)),
        table_transaction_version=1,
        incarnations={LOG: 2},
    )
    recorded = [
        (
            plan,
            CommitResult(
                2,
                plan.id,
                7,
                "table-1",
                (RangeResult(rows=1), RangeResult(rows=2, gaps_complete=False)),
            ),
        )
    ]
    found = fold_all(*ledger_without_released(pruned, recorded, CLAIM), None)
    assert found.intervals == {
        LOG: (
            Interval(0, 4, 4, incarnation=2),
            Interval(6, 8, None, incarnation=2),
            Interval(8, 9, 1, incarnation=2),
            Interval(9, 10, None, incarnation=2),
        )
    }
    assert not found.given_up
