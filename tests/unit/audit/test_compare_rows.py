"""What an audit of rows finds: literals, and a comparison offset by offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.audit.compare_rows import (
    BUCKET_OFFSETS,
    AuditedPartition,
    Bucket,
    Expected,
    IncompleteInterval,
    ObservedOffsets,
    PartitionFindings,
    Unequal,
    audit,
    audit_partition,
    more_than_before,
    rows_before_of,
)
from etl.decide.loaded_intervals import interval_of
from etl.errors import LedgersDisagree
from etl.model.partitions import TopicPartition
from etl.model.plans import NOT_COUNTED, HeldRows, OffsetRange, RangeResult, RowsBefore
from etl.model.snapshot import Interval, Table
from etl.report.verify import Proof
from tests.builders import changed, plain_plan

LOG = TopicPartition("clicks", 3)
AUDITED = AuditedPartition(LOG)


def buckets_of(offsets: Iterable[int]) -> list[Bucket]:
    """What a scan of rows with these offsets gives."""
    rows: dict[int, list[int]] = {}
    for offset in offsets:
        rows.setdefault(offset // BUCKET_OFFSETS, []).append(offset % BUCKET_OFFSETS)
    return [_bucket(number, members) for number, members in sorted(rows.items())]


def _bucket(number: int, members: Sequence[int]) -> Bucket:
    flags = numpy.zeros(BUCKET_OFFSETS, numpy.bool_)
    flags[members] = True
    full = flags.all() and len(members) == BUCKET_OFFSETS
    return Bucket(
        number, len(members), None if full else numpy.packbits(flags, bitorder="little").tobytes()
    )


Counted = tuple[OffsetRange, RangeResult]


def applied(start: int, until: int, *gaps: tuple[int, int]) -> Counted:
    lost = sum(end - begin for begin, end in gaps)
    result = RangeResult(rows=until - start - lost, missing_offsets=lost, gaps=gaps)
    return OffsetRange(LOG, start, until), result


def find(expected: Expected, offsets: Iterable[int]) -> PartitionFindings:
    return audit_partition(AUDITED, expected, buckets_of(offsets))


def test_a_table_with_every_expected_offset_once_is_right() -> None:
    expected = Expected((applied(10, 40_000, (20, 30), (32_760, 32_780)),), (Interval(0, 10, 10),))
    offsets = [o for o in range(40_000) if not 20 <= o < 30 and not 32_760 <= o < 32_780]
    found = find(expected, offsets)
    assert found.is_right
    assert found.expected_rows == found.found_rows == 40_000 - 30


def test_buckets_that_are_not_there_at_all_are_missing_offsets() -> None:
    found = find(Expected((applied(7, 200_000),)), range(65_536, 98_304))
    assert (found.missing, found.missing_first) == (200_000 - 7 - 32_768, (7, 8, 9, 10, 11))
    assert not found.is_right


def test_of_a_counted_interval_only_the_number_can_be_wrong() -> None:
    expected = Expected(loaded=(Interval(0, 50_000, 49_000), Interval(60_000, 60_010, 4)))
    assert find(expected, [*range(49_000), *range(60_000, 60_004)]).is_right
    found = find(expected, [*range(48_998), *range(60_000, 60_005)])
    assert found.unequal == (Unequal(0, 50_000, 49_000, 48_998), Unequal(60_000, 60_010, 4, 5))
    assert (found.missing, found.missing_first, found.unexpected) == (2, (), 1)
    assert found.short == (IncompleteInterval(0, 50_000, 2),)


def test_a_result_that_does_not_know_all_its_gaps_is_counted_only() -> None:
    result = RangeResult(rows=6, missing_offsets=4, gaps=((1, 2),), gaps_complete=False)
    expected = Expected(((OffsetRange(LOG, 0, 10), result),))
    assert find(expected, [0, 2, 4, 5, 6, 9]).is_right
    assert find(expected, [0, 2, 4, 5, 6]).unequal == (Unequal(0, 10, 6, 5),)


def test_behind_a_transform_the_rows_of_a_range_are_its_records_without_those_left_out() -> None:
    result = RangeResult(rows=8, fetched_bytes=9, control_records=2, gaps=((3, 5),))
    expected = Expected(((OffsetRange(LOG, 0, 10), result.without_left_out(3)),))
    assert find(expected, [0, 1, 5, 7, 9]).is_right
    lacking = find(expected, [0, 1, 5, 7])
    assert (lacking.missing, lacking.expected_rows) == (1, 5)

    of_frames = replace(result, rows=None, records=8)
    unknown = Expected(((OffsetRange(LOG, 0, 10), of_frames),))
    assert find(unknown, [0, 1, 2, 5, 6, 7, 8, 9]).is_right, "each record has its row"
    assert find(unknown, [0, 1, 5]).unproven == (IncompleteInterval(0, 10, 5),)
    pruned = Expected(loaded=(interval_of(OffsetRange(LOG, 0, 10), of_frames),))
    assert find(pruned, [0, 1, 5]).unproven == (IncompleteInterval(0, 10, 5),)


def test_two_plans_with_the_same_offsets_are_refused() -> None:
    with pytest.raises(LedgersDisagree, match="partition 3, offset 8"):
        find(Expected((applied(0, 10), applied(8, 12))), range(12))


def test_logs_are_distinguished_and_those_without_a_row_are_included() -> None:
    again, other = AuditedPartition(LOG, 1), AuditedPartition(TopicPartition("views", 0))
    stray = AuditedPartition(TopicPartition("stray", 0))
    expected = {
        AUDITED: Expected((applied(0, 5),)),
        again: Expected((applied(0, 2),)),
        other: Expected((applied(0, 1),)),
    }
    rows = {again: range(2), AUDITED: range(5), stray: [1]}
    buckets = [(audited, b) for audited, offsets in rows.items() for b in buckets_of(offsets)]
    found = {f.audited: (f.missing, f.unexpected) for f in audit(expected, buckets)}
    assert found == {again: (0, 0), AUDITED: (0, 0), other: (1, 0), stray: (0, 1)}


def test_missing_rows_of_an_uncounted_range_cannot_be_proven() -> None:
    expected = Expected(((OffsetRange(LOG, 10, 40_000), NOT_COUNTED), applied(40_000, 40_010)))
    found = find(expected, [*range(10, 39_000), *range(40_000, 40_010)])
    unproven = (IncompleteInterval(10, 40_000, 1000),)
    assert (found.unproven, found.missing, found.unexpected) == (unproven, 0, 0)
    assert not found.is_right and found.expected_rows == found.found_rows
    assert find(expected, range(10, 40_010)).is_right
    pruned = Expected(loaded=(Interval(10, 40_000, None),))
    assert find(pruned, range(10, 39_000)).unproven == unproven


def after_transform(start: int, until: int, *gaps: tuple[int, int]) -> Counted:
    offset_range, result = applied(start, until, *gaps)
    return offset_range, replace(result, behind_transform=True)


def test_missing_offsets_of_rows_counted_after_a_transform_cannot_be_proven() -> None:
    loaded = (Interval(10, 20, 9, unproven=1), Interval(20, 30, 10))
    expected = Expected((after_transform(0, 10, (3, 5)),), loaded)
    present = [o for o in range(30) if o not in (3, 4, 15)]
    unproven = (IncompleteInterval(0, 10, 2), IncompleteInterval(10, 20, 1))
    assert find(expected, present).unproven == unproven
    assert find(expected, present[1:]).missing_first == (0,)
    assert find(expected, [*present, 3]).unexpected_first == (3,)


def test_a_range_that_is_in_the_loaded_intervals_already_is_in_doubt_once() -> None:
    expected = Expected((after_transform(0, 10, (3, 5)),), (Interval(0, 20, 18, unproven=2),))
    found = find(expected, [o for o in range(20) if o not in (3, 4)])
    assert found.unproven == (IncompleteInterval(0, 20, 2),)


small_offsets = st.lists(
    st.one_of(st.integers(0, 40), st.integers(BUCKET_OFFSETS - 20, BUCKET_OFFSETS + 20)),
    max_size=60,
)


@st.composite
def ledgers(draw: st.DrawFn) -> Expected:
    near_the_start = st.integers(0, 45)
    near_a_bucket = st.integers(BUCKET_OFFSETS - 25, BUCKET_OFFSETS + 25)
    cuts = sorted(draw(st.sets(near_the_start | near_a_bucket, max_size=8)))
    pieces = []
    for start, until in zip(cuts[::2], cuts[1::2]):
        gap_cuts = sorted(draw(st.sets(st.integers(start, until), max_size=4)))
        pieces.append(applied(start, until, *zip(gap_cuts[::2], gap_cuts[1::2])))
    return Expected(tuple(pieces))


def test_abandoned_offsets_are_neither_missing_nor_unexpected_and_may_not_be_double() -> None:
    expected = Expected(
        (applied(40_000, 40_010),), (Interval(0, 10, 10),), given_up=(Interval(10, 40_000, 39_990),)
    )
    found = find(expected, [*range(20), 32_767, 32_768, *range(40_000, 40_010)])
    assert found.is_right and (found.expected_rows, found.given_up_rows) == (20, 12)
    assert find(expected, [*range(10), 15, 15, *range(40_000, 40_010)]).double_rows == 1


@settings(max_examples=60, deadline=None)
@given(ledgers(), small_offsets)
def test_the_findings_are_what_comparing_offset_by_offset_gives(
    expected: Expected, offsets: list[int]
) -> None:
    wanted, short = set(), {}
    for r, result in expected.applied:
        of_range = set(range(r.from_offset, r.until_offset))
        for start, until in result.gaps:
            of_range -= set(range(start, until))
        wanted |= of_range
        if lacking := of_range - set(offsets):
            short[r.from_offset, r.until_offset] = len(lacking)
    found, counted = find(expected, offsets), Counter(offsets)
    missing, unexpected = sorted(wanted - set(offsets)), sorted(set(offsets) - wanted)
    doubles = {offset: count for offset, count in counted.items() if count > 1}
    assert {(s.from_offset, s.until_offset): s.missing for s in found.short} == short
    assert (found.missing, list(found.missing_first)) == (len(missing), missing[:5])
    assert (found.unexpected, list(found.unexpected_first)) == (len(unexpected), unexpected[:5])
    assert found.double_rows == sum(count - 1 for count in doubles.values())
    assert set(found.double_places) == {offset // BUCKET_OFFSETS for offset in doubles}
    assert (found.expected_rows, found.found_rows) == (len(wanted), len(offsets))


AGAIN = AuditedPartition(LOG, 1)
PLAN = plain_plan(
    loaded_until={LOG: 300},
    rows_before=RowsBefore("t", (HeldRows(LOG, 0, 10, 100, 90), HeldRows(LOG, 1, 0, 50, 50))),
)
TABLE = Table("t", 3, 1)


def test_rows_from_before_plan_one_are_those_of_its_offsets_without_later_loads() -> None:
    assert rows_before_of(PLAN, TABLE, {}) == {AUDITED: [(10, 100)], AGAIN: [(0, 50)]}
    backfilled = Expected(
        applied=((OffsetRange(LOG, 20, 30), RangeResult(10)),), loaded=(Interval(0, 12, 12),)
    )
    assert rows_before_of(PLAN, TABLE, {AUDITED: backfilled})[AUDITED] == [(12, 20), (30, 100)]
    whole = Expected(loaded=(Interval(0, 100, 100),))
    assert AUDITED not in rows_before_of(PLAN, TABLE, {AUDITED: whole})


def test_another_table_and_a_plan_without_such_rows_have_none() -> None:
    assert rows_before_of(PLAN, replace(TABLE, id="another"), {}) == {}
    assert rows_before_of(changed(PLAN, rows_before=None), TABLE, {}) == {}
    assert rows_before_of(None, TABLE, {}) == {}


def test_as_many_rows_as_there_were_or_fewer_are_right_and_more_are_not() -> None:
    assert more_than_before(PLAN, {AUDITED: 90, AGAIN: 3}) == ()
    since = more_than_before(PLAN, {AUDITED: 92, AGAIN: 50})
    assert since == ((AUDITED, 2),)
    right = Proof((), (), 3, (), rows_before=140)
    assert right.is_right and right.found_rows == right.as_json()["rows_before_plan_1"] == 140
    wrong = Proof((), (), 3, (), rows_before=142, more_than_before=since)
    assert not wrong.is_right and "DESCRIBE HISTORY" in wrong.action
    assert "topic clicks, partition 3: 2 rows of offsets from before plan 1" in wrong.first_finding


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
