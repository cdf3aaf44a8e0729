"""Results of a range that are computed from rows alone."""

from __future__ import annotations

import random

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.audit.compare_rows import ObservedMessages, ObservedOffsets
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, RangeResult

LOG = TopicPartition("clicks", 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100) | st.integers(2**31 - 9, 2**33), st.integers(1, 5000), st.data())
def test_a_recounted_result_has_the_gaps_of_its_rows_in_whatever_order_they_came(
    start: int, size: int, data: st.DataObject
) -> None:
    single = data.draw(st.sets(st.integers(start, start + size - 1), max_size=300))
    runs = data.draw(
        st.lists(
            st.tuples(st.integers(start, start + size - 1), st.integers(1, 2 * size)), max_size=4
        )
    )
    offsets = data.draw(
        st.permutations(
            sorted(single.union(*(range(first, min(first + n, start + size)) for first, n in runs)))
        )
    )
    cut = data.draw(st.integers(0, len(offsets)))
    seen = ObservedOffsets(OffsetRange(LOG, start, start + size))
    for part in (offsets[:cut], offsets[cut:]):
        seen.add(numpy.sort(numpy.array(part, numpy.int64)))
    result = seen.result(gaps_max=10_000)
    absent = [o for begin, end in result.gaps for o in range(begin, end)]
    assert absent == sorted(set(range(start, start + size)) - set(offsets))
    assert result.rows == len(offsets)
    assert result.missing_offsets == size - len(offsets)
    assert result.gaps_complete is True
    assert all(
        end < begin for (_, end), (begin, _) in zip(result.gaps, result.gaps[1:], strict=False)
    )


def test_rows_that_lie_far_apart_cost_neither_time_nor_memory() -> None:
    first, last = 2**40, 2**63 - 3
    seen = ObservedOffsets(OffsetRange(LOG, 0, last + 1))
    seen.add(numpy.array([first, first + 1, last], numpy.int64))
    assert seen.result(gaps_max=9) == RangeResult(
        rows=3, missing_offsets=last - 2, gaps=((0, first), (first + 2, last))
    )


def test_a_range_result_keeps_the_first_gaps_and_marks_that_there_are_more() -> None:
    size = 3 * 2**19 + 1
    seen = ObservedOffsets(OffsetRange(LOG, 0, size))
    seen.add(numpy.arange(0, size, 2, dtype=numpy.int64))
    result = seen.result(gaps_max=2)
    assert result.gaps == ((1, 2), (3, 4))
    assert result.gaps_complete is False
    assert result.missing_offsets == size // 2
    assert ObservedOffsets(OffsetRange(LOG, 0, size)).result(gaps_max=2).gaps == ((0, size),)


# -- physical logs
# --------------------------------------------------------------------------------------------------

PHYSICAL = TopicPartition("clicks", 0, 1)


@given(
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, 2**33 - 1), st.integers(0, 2**28)), max_size=30),
    st.randoms(),
)
def test_each_message_of_a_physical_log_counts_once_wherever_its_entry_begins(
    start: int, messages: list[tuple[int, int]], order: random.Random
) -> None:
    seen, twice = (
        ObservedMessages(OffsetRange(PHYSICAL, start, start + 2**33)),
        [*messages, *messages],
    )
    order.shuffle(twice)
    for some in (twice[::2], twice[1::2]):
        seen.add(
            *(
                numpy.array([one[i] for one in some], numpy.int64) + (0 if i else start)
                for i in (0, 1)
            )
        )
    assert seen.result(1) == RangeResult(rows=len(set(messages)), gaps_complete=False)


def test_an_index_that_no_message_has_names_none() -> None:
    seen = ObservedMessages(OffsetRange(PHYSICAL, 10, 20))
    seen.add(numpy.array([10, 11, 12], numpy.int64), numpy.array([0, -1, 2**62], numpy.int64))
    assert seen.result(1).rows == 1
