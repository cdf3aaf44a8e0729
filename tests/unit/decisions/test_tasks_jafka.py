"""Tasks and plans on Jafka, where ranges may end at some byte offsets only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from etl.decide.plan import divide_caps
from etl.decide.plan_replacement import replacement_plan
from etl.decide.tasks import (
    boundaries_of,
    end_at_or_above,
    ends_between,
    nearest,
    split_by_offsets,
    split_ranges,
)
from etl.ledger.plan_document import with_id
from etl.model.partitions import Leader, PartitionOffsets, TopicPartition
from etl.model.plans import Loss, LossReason, OffsetRange
from etl.model.snapshot import FirstRun, Snapshot, Supersede
from etl.settings.sections import LimitsSettings
from tests.builders import with_facts
from tests.fakes.planning import (
    BROKER,
    NOW_MS,
    TURNS,
    next_plan,
    offsets_of,
    onward,
    planned,
    settings_of,
    snapshot_of,
)

A, B = TopicPartition("clicks", 0, 1), TopicPartition("clicks", 0, 2)
LOGS = st.builds(
    TopicPartition, st.sampled_from(["clicks", "other"]), st.integers(0, 2), st.integers(0, 2)
)
BOUNDS = st.lists(st.integers(0, 400), min_size=1, max_size=8, unique=True).map(
    lambda found: tuple(sorted(found))
)
SEGMENTS = st.dictionaries(LOGS, BOUNDS, min_size=1, max_size=6)
"""The boundaries of each partition, from its start to its flushed end."""
Boundaries = Mapping[TopicPartition, Sequence[int]]
Reading = tuple[dict[TopicPartition, tuple[int, ...]], dict[TopicPartition, tuple[int, int]]]
"""Boundaries, and (position, end); the position is where an earlier run found the end: anywhere."""


def stops_of(found: Reading, size: int | None, turn: int) -> dict[TopicPartition, int]:
    """Where a plan with a cap of so many bytes ends in each partition."""
    bounds, partitions = found
    return divide_caps(partitions, {}, LimitsSettings(max_bytes_per_plan=size), turn, bounds)


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    """Boundaries of partitions, and of each the (position, end)."""
    bounds = draw(SEGMENTS)
    return bounds, {
        partition: (draw(st.integers(found[0], found[-1])), found[-1])
        for partition, found in bounds.items()
    }


def legal(partition: TopicPartition, start: int, stop: int, bounds: Boundaries) -> bool:
    return stop == start or stop in bounds[partition]


def first_stretch(partition: TopicPartition, start: int, bounds: Boundaries) -> int:
    return min((bound for bound in bounds[partition] if bound > start), default=start) - start


@given(readings(), st.none() | st.integers(1, 1500), TURNS)
def test_a_capped_log_is_read_up_to_a_boundary_and_some_log_moves(
    found: Reading, size: int | None, turn: int
) -> None:
    bounds, partitions = found
    stops = stops_of(found, size, turn)
    assert all(
        start <= stops[partition] <= end and legal(partition, start, stops[partition], bounds)
        for partition, (start, end) in partitions.items()
    )
    if any(start < end for start, end in partitions.values()):
        assert any(stops[partition] > start for partition, (start, _) in partitions.items())


@given(readings(), st.integers(1, 1500), TURNS)
def test_a_cap_is_passed_by_one_stretch_of_one_log_at_most(
    found: Reading, size: int, turn: int
) -> None:
    bounds, partitions = found
    stops = stops_of(found, size, turn)
    moved = {
        partition: stops[partition] - start
        for partition, (start, _) in partitions.items()
        if stops[partition] > start
    }
    if sum(moved.values()) > size:
        [(partition, far)] = moved.items()
        assert far == first_stretch(partition, partitions[partition][0], bounds)


@given(readings(), st.integers(1, 1500), TURNS)
def test_no_physical_log_starves_over_as_many_turns_as_there_are_logs(
    found: Reading, size: int, turn: int
) -> None:
    _, partitions = found
    read = dict.fromkeys(partitions, 0)
    for now in range(turn, turn + len(partitions)):
        for partition, stop in stops_of(found, size, now).items():
            read[partition] += stop - partitions[partition][0]
    assert all(read[partition] for partition, (start, end) in partitions.items() if end > start)


@given(readings(), st.integers(1, 1500), st.integers(1, 12))
def test_the_pieces_of_ranges_tile_them_and_meet_at_boundaries(
    found: Reading, target: int, parallelism: int
) -> None:
    bounds, partitions = found
    wholes = [
        OffsetRange(partition, start, end, Leader(BROKER))
        for partition, (start, end) in partitions.items()
        if start < end
    ]
    for pieces in (
        split_ranges(wholes, {}, target, parallelism, bounds),
        split_by_offsets(wholes, target, bounds),
    ):
        for whole in wholes:
            mine = [piece for piece in pieces if piece.partition == whole.partition]
            assert all(piece.size for piece in mine)
            assert [mine[0].from_offset, *(p.until_offset for p in mine)] == [
                *(p.from_offset for p in mine),
                whole.until_offset,
            ]
            assert mine[0].from_offset == whole.from_offset
            assert all(piece.until_offset in bounds[whole.partition] for piece in mine)


@given(readings(), st.integers(1, 1500), TURNS)
def test_run_after_run_a_capped_pipeline_reads_each_log_to_its_end_and_no_offset_twice(
    found: Reading, size: int, turn: int
) -> None:
    bounds, partitions = found
    positions = {partition: start for partition, (start, _) in partitions.items()}
    for now in range(turn, turn + 8 * len(partitions) * len(partitions)):
        if all(positions[partition] == end for partition, (_, end) in partitions.items()):
            return
        left = {
            partition: (positions[partition], end) for partition, (_, end) in partitions.items()
        }
        positions = stops_of((bounds, left), size, now)
    raise AssertionError("it makes no progress")


def test_where_no_boundary_is_known_a_physical_log_is_not_cut_at_all() -> None:
    whole = OffsetRange(A, 10, 1000)
    assert split_ranges([whole], {}, 50, 1) == (whole,)
    assert stops_of(({}, {A: (10, 1000)}), 50, turn=1) == {A: 1000}


def test_a_partition_whose_boundary_is_above_the_cap_is_read_in_another_turn() -> None:
    found: Reading = ({A: (0, 100, 200), B: (0, 900)}, {A: (0, 200), B: (0, 900)})
    assert stops_of(found, 250, turn=2) == {A: 200, B: 0}
    assert stops_of(found, 250, turn=3) == {A: 0, B: 900}


@given(st.lists(st.integers(0, 400), max_size=6), BOUNDS)
def test_the_nearest_ends_are_ends_in_order_each_once(
    cuts: list[int], ends: tuple[int, ...]
) -> None:
    found = nearest(cuts, ends)
    assert found == sorted(set(found)) and set(found) <= set(ends)
    assert all(
        min(abs(cut - end) for end in ends) in {abs(cut - one) for one in found} for cut in cuts
    )


@given(LOGS, BOUNDS, st.integers(0, 400), st.integers(0, 400))
def test_a_range_may_end_at_its_own_end_and_at_the_boundaries_before_it(
    partition: TopicPartition, bounds: tuple[int, ...], start: int, end: int
) -> None:
    found = ends_between(partition, start, end, {partition: bounds})
    assert found == (
        sorted({end, *(bound for bound in bounds if start < bound < end)}) if start < end else []
    )
    assert (
        ends_between(TopicPartition(partition.topic, partition.partition), start, end, {}) is None
    )
    above = end_at_or_above(partition, start, {partition: bounds})
    assert above == min((bound for bound in bounds if bound >= start), default=start)


# -- plans

PHYSICAL = settings_of(
    limits={"max_bytes_per_plan": 300, "target_task_bytes": 100}, broker_type="jafka"
)


def physical(bounds: Mapping[TopicPartition, tuple[int, ...]]) -> Snapshot:
    extents = {
        partition: PartitionOffsets(found[0], found[-1], boundaries=found)
        for partition, found in bounds.items()
    }
    return with_facts(
        snapshot_of({}),
        extents=extents,
        leaders={partition: Leader(BROKER) for partition in bounds},
        parallelism=4,
    )


def test_a_plan_of_jafka_partitions_begins_at_the_position_and_ends_at_boundaries() -> None:
    snapshot = physical({A: (0, 120, 260, 431)})
    first = planned(snapshot, FirstRun(), PHYSICAL)
    assert offsets_of(first) == {A: [(0, 120), (120, 260)]} and first.loaded_until == {A: 260}
    second = planned(snapshot, onward({A: 260}), PHYSICAL)
    assert offsets_of(second) == {A: [(260, 431)]} and second.loaded_until == {A: 431}
    assert next_plan(snapshot, onward({A: 431}), PHYSICAL) is None
    between_boundaries = planned(physical({A: (0, 120, 260, 700)}), onward({A: 190}), PHYSICAL)
    assert offsets_of(between_boundaries) == {A: [(190, 260)]}


def test_after_expiry_of_the_start_offset_a_physical_log_continues_at_its_first_segment() -> None:
    snapshot = physical({A: (120, 260, 431)})
    skipping = settings_of(broker_type="jafka", on_data_loss="skip")
    plan = planned(snapshot, onward({A: 60}), skipping)
    assert offsets_of(plan)[A][0][0] == 120 and plan.losses.lost == (
        Loss(A, 60, 120, LossReason.EXPIRED),
    )


def test_an_offset_skipped_by_an_operator_ends_the_plan_at_the_next_boundary() -> None:
    snapshot = physical({A: (0, 120, 260, 431)})
    small = settings_of(limits={"max_bytes_per_plan": 100}, broker_type="jafka")
    stored = with_id(replace(planned(snapshot, FirstRun(), small), number=5))
    skip = Loss(A, 31, 62, LossReason.SKIPPED)
    plan = replacement_plan(Supersede(stored, "poisoned", (skip,)), snapshot, small, now_ms=NOW_MS)
    assert (
        offsets_of(plan) == {A: [(0, 31), (62, 120)]}
        and plan.loaded_until == {A: 120}
        and plan.losses.lost == (skip,)
    )


@given(SEGMENTS)
def test_boundaries_are_those_that_brokers_named(
    bounds: dict[TopicPartition, tuple[int, ...]],
) -> None:
    assert boundaries_of(physical(bounds).readable) == bounds
    assert boundaries_of(snapshot_of({TopicPartition("clicks", 0): (0, 9)}).readable) == {}
