"""Which stretches of time are not whole in the table."""

from __future__ import annotations

from datetime import timedelta

import pytest

from etl.commands.lag import TableGaps
from etl.decide.loaded_intervals import (
    ExplainedOffsets,
    MissingOffsets,
    TableGap,
    explain_missing,
    find_gaps,
    find_missing,
)
from etl.decide.run_requests import interval_between, split_into_intervals
from etl.model.partitions import TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
HOURS = list(
    split_into_intervals(
        interval_between("2026-11-10T05:00:00Z", "2026-11-10T08:00:00Z"), timedelta(hours=1)
    )
)
BOUNDS = {A: [100, 110, 120, 130], B: [0, 5, 5, 9]}


def missing(loaded: dict[TopicPartition, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Of each interval that is not whole its number and the offsets that it lacks."""
    return [
        (HOURS.index(one.interval), one.missing) for one in find_gaps(HOURS, BOUNDS, loaded, {})
    ]


def test_what_one_plan_over_several_hours_has_loaded_is_missing_in_none_of_them() -> None:
    assert missing({A: [(90, 130)], B: [(0, 9)]}) == []


def test_an_hour_is_not_whole_if_one_of_its_logs_lacks_an_offset() -> None:
    assert missing({A: [(100, 119), (120, 130)], B: [(0, 9)]}) == [(1, 1)]
    assert missing({A: [(100, 130)], B: [(0, 7)]}) == [(2, 2)]


def test_a_hole_over_two_hours_is_missing_in_both_and_counts_once_in_each() -> None:
    assert missing({A: [(100, 105), (125, 130)], B: [(0, 9)]}) == [(0, 5), (1, 10), (2, 5)]


def test_where_nothing_was_loaded_every_hour_with_records_is_missing_and_one_without_is_not() -> (
    None
):
    assert missing({}) == [(0, 15), (1, 10), (2, 14)]
    assert [one.partitions[0].partition for one in find_gaps(HOURS, {B: BOUNDS[B]}, {}, {})] == [
        B,
        B,
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


def intervals(
    *incomplete: TableGap,
    let_go: int = 0,
    before: int = 0,
    unled: tuple[TopicPartition, ...] = (),
) -> TableGaps:
    return TableGaps(3, incomplete, ExplainedOffsets(let_go, before), unled)


def test_intervals_are_not_reported_as_complete_with_abandoned_offsets_or_unobserved_logs() -> None:
    assert (
        intervals().summary
        == "3 intervals: the table has every record of them that the partitions hold"
        and intervals().refusal is None
    )
    assert intervals(let_go=2).summary.endswith(
        ", except 2 offsets that plans record as lost or given up"
    )
    assert intervals(before=1).summary.endswith(
        " hold; not counted: 1 offset before the start of this pipeline, or before its new "
        "start after a truncation"
    )
    found = intervals(unled=(A, B))
    assert found.summary == (
        "3 intervals: the table has every record of them that the partitions with a leader "
        "hold; clicks 0 and 1 more "
        "partitions have no leader, so the offsets at these times are unknown"
    )
    assert found.refusal and (found.refusal.exit_code, found.refusal.where) == (
        6,
        {"topic": "clicks", "partition": 0},
    )
    assert found.as_json()["without_leader"] == [
        {"topic": "clicks", "partition": 0},
        {"topic": "clicks", "partition": 1},
    ]
