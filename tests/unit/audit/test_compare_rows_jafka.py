"""What an audit of rows of Jafka partitions finds: literals, and a comparison with a count by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.audit.causes_of_missing_rows import Gaps, PartitionProof, doubt_of, gaps_of
from etl.audit.compare_rows import (
    AuditedPartition,
    EntryInterval,
    Expected,
    IncompleteInterval,
    ObservedMessages,
    PartitionFindings,
    Unequal,
    audit_entries,
    audit_jafka_partition,
    edges_of,
)
from etl.errors import LedgersDisagree
from etl.io.delta.offsets_of_rows import Numbering
from etl.model.partitions import TopicPartition
from etl.model.plans import NOT_COUNTED, Loss, LossReason, OffsetRange, RangeResult
from etl.model.snapshot import Interval
from etl.report.verify import Proof

LOG = TopicPartition("clicks", 0, 1)
AUDITED = AuditedPartition(LOG)
Message = tuple[int, int]


def scan_intervals(expected: Expected, messages: Iterable[Message]) -> list[EntryInterval]:
    """What a scan of rows with these keys gives."""
    edges, counted = numpy.array(edges_of(AUDITED, expected), numpy.int64), Counter(messages)
    numbered = sorted(
        (int(numpy.searchsorted(edges, entry, side="right")), entry, index, rows)
        for (entry, index), rows in counted.items()
    )
    by_number = groupby(numbered, key=lambda one: one[0])
    return [_interval(number, list(mine)) for number, mine in by_number]


def _interval(number: int, found: Sequence[tuple[int, int, int, int]]) -> EntryInterval:
    entries: dict[int, list[int]] = {}
    for _, entry, index, _ in found:
        entries.setdefault(entry, []).append(index)
    holes = [entry for entry, indices in entries.items() if indices != list(range(len(indices)))]
    doubles = [entry for _, entry, _, rows in found if rows > 1]
    return EntryInterval(
        number,
        sum(rows for *_, rows in found),
        len(found),
        found[0][1],
        len(holes),
        min(holes, default=None),
        min(doubles, default=None),
    )


def applied(start: int, until: int, rows: int | None) -> tuple[OffsetRange, RangeResult]:
    result = NOT_COUNTED if rows is None else RangeResult(rows=rows, fetched_bytes=until - start)
    return OffsetRange(LOG, start, until), result


def find(expected: Expected, messages: Iterable[Message]) -> PartitionFindings:
    return audit_jafka_partition(AUDITED, expected, scan_intervals(expected, messages))


WHOLE = [(0, 0), (40, 0), (40, 1), (40, 2), (100, 0), (131, 0), (131, 1)]
EXPECTED = Expected((applied(0, 100, 4), applied(100, 150, 3)))


def test_a_log_with_the_message_counts_of_its_range_results_is_right() -> None:
    found = find(EXPECTED, WHOLE)
    assert found.is_right and (found.expected_rows, found.found_rows) == (7, 7)
    pruned = Expected((applied(100, 150, 3),), (Interval(0, 100, 4),))
    assert find(pruned, WHOLE).is_right
    assert find(Expected((applied(0, 50, 0),)), []).is_right, "an entry may unpack to nothing"


def test_a_range_that_happens_to_have_as_many_messages_as_bytes_is_no_range_of_offsets() -> None:
    expected = Expected((applied(0, 5, 5),), (Interval(5, 8, 3),))
    messages = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (5, 0), (5, 1), (5, 2)]
    assert find(expected, messages).is_right


@pytest.mark.parametrize(("gone", "first"), [((40, 1), (40,)), ((40, 2), ()), ((0, 0), ())])
def test_messages_that_are_missing_are_counted_and_named_where_an_entry_has_a_hole(
    gone: Message, first: tuple[int, ...]
) -> None:
    found = find(EXPECTED, [message for message in WHOLE if message != gone])
    assert found.missing == 1
    assert found.missing_first == first
    assert found.short == (IncompleteInterval(0, 100, 1),)
    assert found.unequal == (Unequal(0, 100, 4, 3),) and not found.entries_with_holes


def test_messages_outside_of_all_ranges_or_surplus_inside_one_are_unexpected() -> None:
    outside = find(EXPECTED, [*WHOLE, (150, 0), (150, 1)])
    assert (outside.unexpected, outside.unexpected_first) == (2, (150,))
    inside = find(EXPECTED, [*WHOLE, (140, 0)])
    assert (inside.unexpected, inside.unexpected_first, inside.missing) == (1, (), 0)
    other = AuditedPartition(TopicPartition("clicks", 0, 2))
    there = EntryInterval(0, 5, 4, 70, first_double=70)
    stray, absent = audit_entries({AUDITED: EXPECTED}, [(other, there)])
    assert (stray.audited, stray.unexpected, stray.unexpected_first) == (other, 4, (70,))
    assert (stray.double_rows, absent.audited, absent.missing) == (1, AUDITED, 7)


def test_an_entry_with_other_message_numbers_is_found_though_the_count_matches() -> None:
    found = find(EXPECTED, [(entry, index + (entry == 40)) for entry, index in WHOLE])
    assert (found.missing, found.entries_with_holes) == (0, 1)
    assert found.entries_with_holes_first == (40,)
    assert not found.is_right and not PartitionProof(found).is_right
    message = Proof((PartitionProof(found),), (), 3, ()).first_finding
    assert "but without consecutive message indexes from 0" in message and "(first: 40)" in message


def test_abandoned_offsets_may_have_rows_or_not() -> None:
    expected = Expected((applied(100, 150, 3),), given_up=(Interval(0, 100, 4),))
    for there in (WHOLE, WHOLE[2:]):
        found = find(expected, there)
        assert found.is_right and found.given_up_rows == len(there) - 3


def test_an_uncounted_range_and_one_counted_after_a_transform_cannot_be_proven() -> None:
    counted = RangeResult(rows=3, gaps_complete=False, behind_transform=True)
    found = find(Expected((applied(0, 100, None), (OffsetRange(LOG, 100, 150), counted))), WHOLE)
    both = (IncompleteInterval(0, 100, 100), IncompleteInterval(100, 150, 50))
    assert found.unproven == both and not found.missing
    plans = {(0, 100): 4, (100, 150): 5}
    doubt = doubt_of(found.unproven, plans, pruned=0, accepted=0, is_physical=True)
    assert doubt.summary.startswith(
        "the messages of 150 bytes cannot be proven (first between 0 and 100; plans 4, 5): "
    )
    assert not PartitionProof(found, doubt=doubt).is_right
    assert PartitionProof(found, doubt=replace(doubt, allowed=True)).is_right
    without = OffsetRange(LOG, 100, 150), RangeResult(rows=3, gaps_complete=False)
    assert find(Expected((applied(0, 100, 4), without)), WHOLE).is_right


def test_of_a_jafka_partition_no_offset_has_an_unknown_reason_and_losses_are_in_bytes() -> None:
    losses = (Loss(LOG, 150, 200, LossReason.EXPIRED),)
    expected = Expected((applied(0, 100, 4),), (Interval(100, 150, 3),))
    gaps = gaps_of(expected, losses, is_physical=True)
    assert gaps == Gaps(losses=losses) and gaps.summary == "50 bytes lost (150 to 200, expired)"


def test_a_double_is_named_by_its_entry_and_its_index() -> None:
    found = find(EXPECTED, [*WHOLE, (131, 1)])
    assert (found.double_rows, found.double_places) == (1, (131,))
    proof = Proof((PartitionProof(found),), ((AUDITED, (131, 1), 2),), 3, ())
    place = "topic clicks, partition 0, broker_id 1"
    assert proof.first_finding == f"{place}: 1 double (first: 131 message 1)"
    [reported] = proof.as_json()["partitions"]
    names = ("partition", "broker_id", "double_first", "entries_with_holes")
    assert [reported[name] for name in names] == [0, 1, [[131, 1, 2]], 0]


def test_two_plans_of_the_same_bytes_are_refused() -> None:
    with pytest.raises(LedgersDisagree, match="the same offsets") as refused:
        edges_of(AUDITED, Expected((applied(0, 100, 4), applied(99, 150, 3))))
    assert refused.value.where["broker_id"] == 1


ENTRIES = st.dictionaries(
    st.integers(0, 60), st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=12
)
CUTS = st.lists(st.integers(0, 60), min_size=2, max_size=5, unique=True).map(sorted)


@settings(deadline=None)
@given(ENTRIES, CUTS, st.data())
def test_the_result_equals_that_of_counting_by_hand(
    entries: dict[int, list[int]], cuts: list[int], data: st.DataObject
) -> None:
    messages = [(entry, index) for entry, indices in entries.items() for index in indices]
    there = set(messages)
    with_holes = [
        e for e, indices in entries.items() if set(indices) != set(range(len(set(indices))))
    ]
    counts = []
    missing = holes = 0
    unexpected = sum(not cuts[0] <= entry < cuts[-1] for entry, _ in there)
    for start, until in zip(cuts, cuts[1:]):
        wanted = data.draw(st.integers(0, 6))
        present = sum(start <= entry < until for entry, _ in there)
        counts.append(applied(start, until, wanted))
        missing += max(0, wanted - present)
        unexpected += max(0, present - wanted)
        if present >= wanted:
            holes += sum(start <= entry < until for entry in with_holes)
    found = find(Expected(tuple(counts)), messages)
    assert found.expected_rows == sum(result.rows or 0 for _, result in counts)
    assert (found.found_rows, found.double_rows) == (len(messages), len(messages) - len(there))
    assert (found.missing, found.unexpected) == (missing, unexpected)
    assert found.entries_with_holes == holes


# -- the part of the scan that needs no Spark


def test_entries_are_numbered_by_the_edges_of_their_log_and_added_up() -> None:
    columns = {
        "topic": ["clicks"] * 4 + ["other"] * 2 + [None],
        "broker_id": [1, 1, 2, 1, 1, 1, None],
        "partition": [0] * 6 + [None],
        "incarnation": [0] * 6 + [None],
        "offset": [0, 99, 5, 100, 7, 3, None],
        "rows": [1, 3, 1, 2, 1, 1, 4],
        "messages": [1, 2, 1, 2, 1, 1, 0],
        "last_index": [0, 2, 0, 1, 0, 0, None],
        "log": [0, 0, 1, 0, None, None, None],
    }
    batch = pyarrow.RecordBatch.from_pydict(
        {
            name: pyarrow.array(values, pyarrow.string() if name == "topic" else pyarrow.int64())
            for name, values in columns.items()
        }
    )
    numbering = Numbering([numpy.array([0, 100, 150]), numpy.array([10])])
    found = {
        tuple(row.values())
        for added in numbering([batch, batch.slice(0, 0)])
        for row in added.to_pylist()
    }
    assert found == {
        ("clicks", 1, 0, 0, 1, 4, 3, 1, 0, 99, 99),
        ("clicks", 1, 0, 0, 2, 2, 2, 0, 100, None, None),
        ("clicks", 2, 0, 0, 0, 1, 1, 0, 5, None, None),
        ("other", 1, 0, 0, 0, 2, 2, 0, 3, None, None),
        (None, None, None, None, 0, 4, 0, None, None, None, None),
    }


# -- results of a range that are computed from rows alone


@given(
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, 2**33 - 1), st.integers(0, 2**28)), max_size=30),
    st.randoms(),
)
def test_each_message_of_a_jafka_partition_counts_once_wherever_its_entry_begins(
    start: int, messages: list[tuple[int, int]], order: random.Random
) -> None:
    seen, twice = ObservedMessages(OffsetRange(LOG, start, start + 2**33)), [*messages, *messages]
    order.shuffle(twice)
    for some in (twice[::2], twice[1::2]):
        entries = numpy.array([entry for entry, _ in some], numpy.int64)
        indices = numpy.array([index for _, index in some], numpy.int64)
        seen.add(entries + start, indices)
    assert seen.result(1) == RangeResult(rows=len(set(messages)), gaps_complete=False)


def test_an_index_that_no_message_has_names_none() -> None:
    seen = ObservedMessages(OffsetRange(LOG, 10, 20))
    seen.add(numpy.array([10, 11, 12], numpy.int64), numpy.array([0, -1, 2**62], numpy.int64))
    assert seen.result(1).rows == 1
