"""What an audit finds, and that it finds it wherever it is; literals and laws."""

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
    PartitionFindings,
    Unequal,
    audit,
    audit_partition,
)
from etl.errors import LedgersDisagree
from etl.model.partitions import TopicPartition
from etl.model.plans import NOT_COUNTED, OffsetRange, RangeResult
from etl.model.snapshot import Interval

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


def applied(start: int, until: int, *gaps: tuple[int, int]) -> tuple[OffsetRange, RangeResult]:
    lost = sum(end - begin for begin, end in gaps)
    return OffsetRange(LOG, start, until), RangeResult(
        rows=until - start - lost, missing_offsets=lost, gaps=gaps
    )


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
    assert found.missing == 2
    assert found.missing_first == ()
    assert found.unexpected == 1
    assert found.short == (IncompleteInterval(0, 50_000, 2),)


def test_a_result_that_does_not_know_all_its_gaps_is_counted_only() -> None:
    result = RangeResult(rows=6, missing_offsets=4, gaps=((1, 2),), gaps_complete=False)
    expected = Expected(((OffsetRange(LOG, 0, 10), result),))
    assert find(expected, [0, 2, 4, 5, 6, 9]).is_right
    assert find(expected, [0, 2, 4, 5, 6]).unequal == (Unequal(0, 10, 6, 5),)


def test_two_plans_with_the_same_offsets_are_refused() -> None:
    with pytest.raises(LedgersDisagree, match="partition 3, offset 8"):
        find(Expected((applied(0, 10), applied(8, 12))), range(12))


def test_logs_are_distinguished_and_those_without_a_row_are_included() -> None:
    again, other = AuditedPartition(LOG, 1), AuditedPartition(TopicPartition("views", 0))
    expected = {
        AUDITED: Expected((applied(0, 5),)),
        again: Expected((applied(0, 2),)),
        other: Expected((applied(0, 1),)),
    }
    stray = AuditedPartition(TopicPartition("stray", 0))
    found = [(again, b) for b in buckets_of(range(2))] + [
        (AUDITED, b) for b in buckets_of(range(5))
    ]
    findings = {
        f.audited: f for f in audit(expected, [*found, *((stray, b) for b in buckets_of([1]))])
    }
    assert {audited: (f.missing, f.unexpected) for audited, f in findings.items()} == {
        again: (0, 0),
        AUDITED: (0, 0),
        other: (1, 0),
        stray: (0, 1),
    }


def test_an_uncounted_range_may_have_any_of_its_rows_and_its_missing_rows_cannot_be_proven() -> (
    None
):
    expected = Expected(((OffsetRange(LOG, 10, 40_000), NOT_COUNTED), applied(40_000, 40_010)))
    found = find(expected, [*range(10, 39_000), *range(40_000, 40_010)])
    assert found.unproven == (IncompleteInterval(10, 40_000, 1000),)
    assert found.missing == 0
    assert found.unexpected == 0
    assert found.is_right is False
    assert found.expected_rows == found.found_rows
    assert find(expected, range(10, 40_010)).is_right
    assert (
        find(Expected(loaded=(Interval(10, 40_000, None),)), range(10, 39_000)).unproven
        == found.unproven
    )


def test_rows_counted_after_a_transform_must_exist_and_their_missing_offsets_cannot_be_proven() -> (
    None
):
    offset_range, result = applied(0, 10, (3, 5))
    expected = Expected(
        ((offset_range, replace(result, behind_transform=True)),),
        (Interval(10, 20, 9, unproven=1), Interval(20, 30, 10)),
    )
    present = [o for o in range(30) if o not in (3, 4, 15)]
    assert find(expected, present).unproven == (
        IncompleteInterval(0, 10, 2),
        IncompleteInterval(10, 20, 1),
    )
    assert find(expected, present[1:]).missing_first == (0,)
    assert find(expected, [*present, 3]).unexpected_first == (3,)


def test_a_range_that_is_in_the_coverage_already_is_in_doubt_once() -> None:
    offset_range, result = applied(0, 10, (3, 5))
    expected = Expected(
        ((offset_range, replace(result, behind_transform=True)),),
        (Interval(0, 20, 18, unproven=2),),
    )
    assert find(expected, [o for o in range(20) if o not in (3, 4)]).unproven == (
        IncompleteInterval(0, 20, 2),
    )


small_offsets = st.lists(
    st.one_of(st.integers(0, 40), st.integers(BUCKET_OFFSETS - 20, BUCKET_OFFSETS + 20)),
    max_size=60,
)


@st.composite
def ledgers(draw: st.DrawFn) -> Expected:
    cuts = sorted(
        draw(
            st.sets(
                st.one_of(
                    st.integers(0, 45), st.integers(BUCKET_OFFSETS - 25, BUCKET_OFFSETS + 25)
                ),
                max_size=8,
            )
        )
    )
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
    pieces = []
    for start, until in ranges:
        gap_cuts = sorted(draw(st.sets(st.integers(start, until), max_size=4)))
        pieces.append(applied(start, until, *zip(gap_cuts[::2], gap_cuts[1::2], strict=False)))
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
    wanted = {
        o
        for r, result in expected.applied
        for o in range(r.from_offset, r.until_offset)
        if not any(start <= o < until for start, until in result.gaps)
    }
    found, counted = find(expected, offsets), Counter(offsets)
    assert found.missing == len(wanted - set(offsets)) == sum(s.missing for s in found.short)
    assert {(s.from_offset, s.until_offset): s.missing for s in found.short} == {
        (r.from_offset, r.until_offset): lacking
        for r, _ in expected.applied
        if (
            lacking := len(
                [o for o in wanted - set(offsets) if r.from_offset <= o < r.until_offset]
            )
        )
    }
    assert list(found.missing_first) == sorted(wanted - set(offsets))[:5]
    assert found.unexpected == len(set(offsets) - wanted)
    assert list(found.unexpected_first) == sorted(set(offsets) - wanted)[:5]
    assert found.double_rows == sum(n - 1 for n in counted.values())
    assert set(found.double_places) == {o // BUCKET_OFFSETS for o, n in counted.items() if n > 1}
    assert (found.expected_rows, found.found_rows) == (len(wanted), len(offsets))
