"""How the limits of a plan are divided, and how ranges are cut and packed into tasks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.decide.plan import divide_caps
from etl.decide.tasks import (
    ASSUMED_BYTES_PER_OFFSET,
    ASSUMED_PARALLELISM,
    LEAST_TASK_BYTES,
    pack_tasks,
    split_by_offsets,
    split_ranges,
)
from etl.errors import NeedsDecision
from etl.model.partitions import Broker, Leader, TopicPartition
from etl.model.plans import OffsetRange
from etl.settings.sections import LimitsSettings
from tests.fakes.planning import BROKER, CAPS, COSTS, EXTENTS, TURNS, A, B


def read_by(
    stops: Mapping[TopicPartition, int], partitions: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    return {partition: stops[partition] - start for partition, (start, _) in partitions.items()}


@given(EXTENTS, COSTS, CAPS, st.none() | st.integers(1, 100_000), TURNS)
def test_caps_are_kept_but_for_one_record_that_is_larger(
    partitions: dict[TopicPartition, tuple[int, int]],
    costs: dict[TopicPartition, float],
    records: int | None,
    size: int | None,
    turn: int,
) -> None:
    limits = LimitsSettings(max_records_per_plan=records, max_bytes_per_plan=size)
    counts = read_by(divide_caps(partitions, costs, limits, turn), partitions)
    for partition, (start, end) in partitions.items():
        assert 0 <= counts[partition] <= end - start
    if records is not None:
        assert sum(counts.values()) <= records
    if size is not None:
        total = 0.0
        for partition, count in counts.items():
            total += count * costs.get(partition, ASSUMED_BYTES_PER_OFFSET)
        assert total <= size * (1 + 1e-9) or sum(counts.values()) == 1
    if any(end > start for start, end in partitions.values()):
        assert sum(counts.values()) > 0


@given(EXTENTS, COSTS, TURNS)
def test_without_caps_everything_is_read(
    partitions: dict[TopicPartition, tuple[int, int]], costs: dict[TopicPartition, float], turn: int
) -> None:
    assert divide_caps(partitions, costs, LimitsSettings(), turn) == {
        partition: end for partition, (_, end) in partitions.items()
    }


@given(EXTENTS, st.integers(1, 400), TURNS)
def test_a_cap_of_records_is_used_up_and_shared_evenly(
    partitions: dict[TopicPartition, tuple[int, int]], records: int, turn: int
) -> None:
    given_ = read_by(
        divide_caps(partitions, {}, LimitsSettings(max_records_per_plan=records), turn), partitions
    )
    wanted = {partition: end - start for partition, (start, end) in partitions.items()}
    assert sum(given_.values()) == min(records, sum(wanted.values()))
    short = [given_[partition] for partition in partitions if given_[partition] < wanted[partition]]
    assert not short or max(given_.values()) <= min(short) + 1


@given(EXTENTS, COSTS, CAPS, st.none() | st.integers(1, 5000), TURNS)
def test_no_log_starves_over_as_many_turns_as_there_are_logs(
    partitions: dict[TopicPartition, tuple[int, int]],
    costs: dict[TopicPartition, float],
    records: int | None,
    size: int | None,
    turn: int,
) -> None:
    """The others grow as fast as they are read, which would starve a partition."""
    limits = LimitsSettings(max_records_per_plan=records, max_bytes_per_plan=size)
    read = dict.fromkeys(partitions, 0)
    for now in range(turn, turn + len(partitions)):
        counts = read_by(divide_caps(partitions, costs, limits, now), partitions)
        for partition, count in counts.items():
            read[partition] += count
    assert all(read[partition] for partition, (start, end) in partitions.items() if end > start)


def test_a_log_with_large_records_is_read_in_turn_with_one_of_small_records() -> None:
    partitions, costs, limits = (
        {A: (0, 10), B: (0, 10**6)},
        {A: 1000.0, B: 1.0},
        LimitsSettings(max_bytes_per_plan=500),
    )
    assert divide_caps(partitions, costs, limits, turn=1) == {A: 0, B: 251}
    assert divide_caps(partitions, costs, limits, turn=2) == {A: 1, B: 0}


def test_both_caps_hold_together() -> None:
    limits = LimitsSettings(max_records_per_plan=50, max_bytes_per_plan=200)
    stops = divide_caps({A: (0, 100), B: (0, 100)}, {A: 10.0, B: 10.0}, limits, turn=2)
    assert stops == {A: 10, B: 10}


@given(st.integers(0, 300), st.integers(0, 500), st.floats(0, 2000), st.integers(1, 100_000))
def test_the_pieces_of_a_range_are_the_range(
    start: int, size: int, cost: float, target: int
) -> None:
    whole = OffsetRange(A, start, start + size, Leader(BROKER))
    pieces = split_ranges([whole], {A: cost}, target, 1)
    assert [
        offset for piece in pieces for offset in range(piece.from_offset, piece.until_offset)
    ] == list(range(start, start + size))
    assert all(
        piece.size and (piece.partition, piece.leader) == (whole.partition, whole.leader)
        for piece in pieces
    )


@given(
    st.lists(st.tuples(st.integers(1, 300), st.none() | st.integers(0, 9)), max_size=30),
    st.sampled_from([1.0, 2.0**15, 2.0**18]),
    st.integers(1, 2**26),
    st.integers(0, 8),
)
def test_packing_puts_each_range_into_one_task_and_combines_leaders_only_below_the_size_of_a_task(
    sizes: list[tuple[int, int | None]], cost: float, target: int, parallelism: int
) -> None:
    ranges = [
        OffsetRange(
            TopicPartition("clicks", i % 6),
            0,
            size,
            None if leader is None else Leader(Broker(leader, "h", 1)),
        )
        for i, (size, leader) in enumerate(sizes)
    ]
    tasks = pack_tasks(
        ranges, {TopicPartition("clicks", p): cost for p in range(6)}, target, parallelism
    )
    assert sorted(i for task in tasks for i in task) == list(range(len(ranges)))
    several = [task for task in tasks if len({ranges[i].leader for i in task}) > 1]
    assert all(sum(ranges[i].size for i in task) * cost < 2 * LEAST_TASK_BYTES for task in several)
    assert len(tasks) >= parallelism or not several


@given(st.integers(1, 60), st.integers(0, 12), st.integers(1, 3))
def test_a_little_from_many_leaders_is_as_many_tasks_as_work_at_once_however_many_lead(
    leaders: int, parallelism: int, partitions: int
) -> None:
    """Each is a file of the table, and a start of Spark's."""
    ranges = [
        OffsetRange(TopicPartition("clicks", p), 0, 10, Leader(Broker(p % leaders, "h", 1)))
        for p in range(leaders * partitions)
    ]
    assert (
        len(pack_tasks(ranges, {}, 2**28, parallelism)) == min(max(1, parallelism), len(ranges))
        or leaders < parallelism
    )


@pytest.mark.parametrize(
    ("sizes", "leaders", "parallelism", "tasks"),
    [
        ([2**18, 10, 10, 10], 4, 2, ((0,), (1, 2, 3))),
        ([10] * 8, 1, 4, ((0, 4), (1, 5), (2, 6), (3, 7))),
        ([2**18] * 4, 1, 1, ((0,), (1,), (2,), (3,))),
        ([4096] * 4, 2, 1, ((0, 2), (1, 3))),
        ([], 1, 4, ()),
    ],
    ids=[
        "much from one leader stays apart from the little of others",
        "little is packed so that all workers have something",
        "large ranges have tasks of their own",
        "leaders with enough for a task do not share one",
        "nothing to read needs no task",
    ],
)
def test_ranges_are_packed_by_their_size_and_leader(
    sizes: list[int], leaders: int, parallelism: int, tasks: tuple[tuple[int, ...], ...]
) -> None:
    ranges = [
        OffsetRange(TopicPartition("clicks", p), 0, size, Leader(Broker(p % leaders, "h", 1)))
        for p, size in enumerate(sizes)
    ]
    assert pack_tasks(ranges, {}, 2**28, parallelism) == tasks


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(1, 2**30),
)
def test_a_run_uses_as_many_tasks_as_work_at_once_where_there_is_enough_to_read(
    sizes: list[tuple[int, int]], parallelism: int, target: int
) -> None:
    cost = 2.0**20
    wholes = [
        OffsetRange(TopicPartition("clicks", i), 0, size, Leader(Broker(leader, "h", 1)))
        for i, (size, leader) in enumerate(sizes)
    ]
    costs = {r.partition: cost for r in wholes}
    cut = split_ranges(wholes, costs, target, parallelism)
    tasks = pack_tasks(cut, costs, target, parallelism)
    enough = sum(size for size, _ in sizes) * cost >= parallelism * LEAST_TASK_BYTES
    assert len(tasks) >= parallelism or not enough
    for whole in wholes:
        pieces = [r for r in cut if r.partition == whole.partition]
        assert [offset for r in pieces for offset in range(r.from_offset, r.until_offset)] == list(
            range(whole.size)
        )


def test_one_large_partition_is_read_by_all_cores() -> None:
    whole = OffsetRange(A, 0, 100_000, Leader(BROKER))
    cut = split_ranges([whole], {A: 1000.0}, 2**28, 8)
    assert [r.size for r in cut] == [12_500] * 8
    assert len(pack_tasks(cut, {A: 1000.0}, 2**28, 8)) == 8


def test_little_is_not_cut_for_the_sake_of_many_cores() -> None:
    whole = OffsetRange(A, 0, 4000, Leader(BROKER))
    assert split_ranges([whole], {A: 1000.0}, 2**28, 64) == (whole,)


def test_where_only_the_cluster_knows_its_cores_some_are_assumed() -> None:
    whole = OffsetRange(A, 0, 1_000_000, Leader(BROKER))
    assert len(split_ranges([whole], {A: 1000.0}, 2**30, None)) == ASSUMED_PARALLELISM


def test_an_end_that_no_log_has_is_rejected_before_its_pieces_are_made() -> None:
    whole = OffsetRange(A, 5, 2**63 - 1, None)
    with pytest.raises(NeedsDecision, match=r"9,223,372,036,854,775,802 offsets") as rejected:
        split_ranges([whole], {}, 2**28, 8)
    assert rejected.value.where == {"topic": A.topic, "partition": A.partition, "offset": 5}
    with pytest.raises(NeedsDecision):
        split_by_offsets([whole], 1000)
