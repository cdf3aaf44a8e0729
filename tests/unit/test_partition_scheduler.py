"""The order in which a consumer's partitions are fetched and return records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from traceback import walk_tb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import CorruptData, NotAssigned
from etl.model.partitions import TopicPartition
from etl.streams.partition_scheduler import PartitionScheduler

P0, P1, P2 = LOGS = [TopicPartition("clicks", p) for p in range(3)]
EIGHT_POLLS = [  # wanted records, the broker's records, the returned ones, the order after it
    ((P0, P1, P2), (P0, 0), (P0, [0, 1]), (P0, P1, P2)),
    ((P1, P2), (P1, 0), (P0, [2, 3]), (P1, P2, P0)),
    ((P0, P2), (P2, 0), (P1, [0, 1]), (P1, P2, P0)),
    ((P0,), (P0, 4), (P1, [2, 3]), (P2, P0, P1)),
    ((P1,), (P1, 4), (P2, [0, 1]), (P2, P0, P1)),
    ((), None, (P2, [2, 3]), (P0, P1, P2)),
    ((P2,), (P2, 4), (P0, [4, 5]), (P0, P1, P2)),
    ((), None, (P0, [6, 7]), (P1, P2, P0)),
]


def rotation(*partitions: TopicPartition) -> PartitionScheduler[int]:
    found = PartitionScheduler[int]()
    found.assign(partitions)
    return found


def test_the_eight_polls_ask_hand_out_and_rotate_as_consumers_do() -> None:
    turns = rotation(*LOGS)
    for request, given_, handed_out, order in EIGHT_POLLS:
        assert sorted(turns.to_fetch()) == sorted(request)
        if given_:
            turns.add(given_[0], iter(range(given_[1], given_[1] + 4)))
        assert turns.take(2) == dict([handed_out])
        assert turns.assigned == order


def test_if_the_first_log_has_too_few_records_the_next_one_follows() -> None:
    turns = rotation(*LOGS)
    turns.add(P0, iter([0]))
    turns.add(P2, iter([7, 8, 9]))
    assert turns.take(3) == {P0: [0], P2: [7, 8]} and turns.assigned == (P1, P2, P0)
    assert turns.take(3) == {P2: [9]} and turns.take(3) == {} and not turns.has_records


def test_what_came_of_a_paused_log_is_kept_and_handed_out_once_it_is_resumed() -> None:
    turns = rotation(P0, P1)
    turns.add(P0, iter([0, 1]))
    turns.pause([P0])
    assert turns.paused == {P0} and turns.to_fetch() == (P1,)
    assert turns.take(9) == {} and not turns.has_records
    turns.add(P1, iter([5]))
    assert turns.take(9) == {P1: [5]}
    turns.resume([P0])
    assert turns.take(9) == {P0: [0, 1]}


def test_a_revoked_log_returns_nothing_and_the_others_keep_turn_rest_and_pause() -> None:
    turns = rotation(P0, P1)
    turns.add(P0, iter([0]))
    turns.add(P1, iter([5, 6]))
    turns.pause([P0, P1])
    turns.assign([P2, P1])
    assert turns.assigned == (P1, P2) and turns.paused == {P1}
    turns.add(P0, iter([1]))
    turns.resume([P1])
    assert turns.take(9) == {P1: [5, 6]}
    turns.assign([P0])
    assert turns.to_fetch() == (P0,) and turns.take(9) == {}, "it comes back without what it had"


def broken(*before: int) -> Iterator[int]:
    yield from before
    raise CorruptData("a bad CRC")


def test_records_before_a_broken_one_are_returned_and_it_is_raised_with_nothing_else() -> None:
    turns = rotation(P0, P1)
    turns.add(P0, broken(0, 1))
    turns.add(P1, iter([5, 6]))
    assert turns.take(3) == {P0: [0, 1], P1: [5]}
    with pytest.raises(CorruptData):
        turns.take(3)
    assert turns.take(3) == {P1: [6]}, "it does not hold up the others"
    with pytest.raises(CorruptData):
        turns.take(3)
    assert turns.to_fetch() == (P1,), "no fetch after it without a call"
    turns.drop(P0)
    assert turns.to_fetch() == (P1, P0)


def test_an_error_raised_repeatedly_keeps_only_the_frames_of_its_last_time() -> None:
    turns, depths = rotation(P0), set[int]()
    turns.add(P0, broken())
    for _ in range(5):
        with pytest.raises(CorruptData) as raised:
            turns.take(1)
        depths.add(len(list(walk_tb(raised.value.__traceback__))))
    assert len(depths) == 1


@pytest.mark.parametrize("word", ["pause", "resume", "drop"])
def test_a_log_that_is_not_assigned_is_refused_by_name_and_nothing_is_changed(word: str) -> None:
    turns = rotation(P0)
    with pytest.raises(NotAssigned) as refused:
        turns.drop(P1) if word == "drop" else getattr(turns, word)([P0, P1])
    assert refused.value.where["partition"] == 1 and turns.paused == frozenset()


@given(
    sizes=st.lists(st.lists(st.integers(0, 7), max_size=5), min_size=1, max_size=4),
    most=st.integers(1, 5),
)
def test_every_record_is_handed_out_once_and_in_the_order_of_its_log_however_answers_come(
    sizes: list[list[int]], most: int
) -> None:
    partitions = [TopicPartition("clicks", p) for p in range(len(sizes))]
    turns, given_, got = (
        rotation(*partitions),
        Counter[TopicPartition](),
        {partition: list[int]() for partition in partitions},
    )
    left = {partition: list(some) for partition, some in zip(partitions, sizes, strict=True)}
    while any(left.values()) or turns.has_records:
        for partition in turns.to_fetch():
            if left[partition]:
                size = left[partition].pop()
                turns.add(partition, iter(range(given_[partition], given_[partition] + size)))
                given_[partition] += size
        handed_out = turns.take(most)
        assert sum(map(len, handed_out.values())) <= most
        for partition, records in handed_out.items():
            got[partition] += records
    assert got == {partition: list(range(given_[partition])) for partition in partitions}


def test_a_partition_is_fetched_if_it_has_no_records_left_and_is_not_paused() -> None:
    turns = rotation(P0)
    turns.pause([P0])
    assert turns.to_fetch() == ()
    turns.resume([P0])
    turns.add(P0, iter(()))
    assert turns.to_fetch() == (P0,) and not turns.has_records, "the response had no records"
    turns.add(P0, iter([0, 1]))
    with pytest.raises(ValueError, match="not returned yet"):
        turns.add(P0, iter([1]))
    turns.drop(P0)  # as a seek does
    assert turns.to_fetch() == (P0,) and turns.take(9) == {}
