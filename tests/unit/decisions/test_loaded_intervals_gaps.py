"""Which intervals of time the table lacks records of."""

from __future__ import annotations

from datetime import timedelta

import pytest

from etl.commands.lag import TableGaps
from etl.decide.loaded_intervals import (
    ExplainedOffsets,
    MissingOffsets,
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
