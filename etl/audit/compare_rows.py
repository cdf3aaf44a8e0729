"""Whether each loaded offset is in the table once, and no other offset.

Compares the offsets in the table (bitmaps that Spark computes, etl/io/delta/offsets_of_rows.py)
with the expected ones: range results of applied plans, and row counts of the loaded intervals of
pruned plans. One partition is in memory at a time, and one bucket of 32,768 offsets of it. The
bitmaps are compared as they are: converting them to Roaring bitmaps takes many times as long
(bench/offset_sets.py).

Kafka 0.8 and later: a row is unique by its offset. Jafka and Kafka 0.7: by the position of its
entry and its index there. Positions do not show how many messages a range has, the range result
does. So each range must have as many messages as its result counts, none twice; the messages of an
entry must be 0, 1, 2 and so on; and no entry may begin outside of all ranges. If a crash lost the
result and the rows were counted instead, a message missing at the end of an entry is not noticed.

A replay's rows replace those of earlier plans. A row that was in the table before plan 1 is
recognised by its offset and incarnation; such offsets are compared by number of rows only.

Lives here: expected offsets, the audit of both broker types, results computed from rows.
Not here: why rows are missing (causes_of_missing_rows.py).
"""

from __future__ import annotations

import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap64

from etl.decide.loaded_intervals import (
    Span,
    interval_of,
    is_exact,
    merge,
    split_around,
    split_around_spans,
    subtract_intervals,
    subtract_span,
)
from etl.errors import LedgersDisagree
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan, RangeResult
from etl.model.snapshot import Interval, Table

SHOWN = 5
"""Number of offsets that a finding lists; it counts all of them."""


@dataclass(frozen=True, slots=True, order=True)
class AuditedPartition:
    """One incarnation of one partition: after a recreation offsets start again."""

    partition: TopicPartition
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What the ledger expects of one partition."""

    applied: tuple[tuple[OffsetRange, RangeResult], ...] = ()
    """The ranges of stored plans that were applied."""
    loaded: tuple[Interval, ...] = ()
    """Intervals of pruned plans."""
    given_up: tuple[Interval, ...] = ()
    """Offsets with one row or none: given up by an operator, or loaded by another pipeline."""
    elsewhere: tuple[tuple[OffsetRange, RangeResult], ...] = ()
    """Ranges of stored plans in another table, or in a state that an older copy replaced.

    An operator accepted that; the rows are reported as missing for that reason.
    """
    read_by_others: tuple[tuple[int, int], ...] = ()
    """Offsets [from, until) that other members of the group read: without rows, but not missing."""

    @property
    def ranges(self) -> tuple[tuple[OffsetRange, RangeResult], ...]:
        """The ranges of all stored plans."""
        return (*self.applied, *self.elsewhere)


@dataclass(frozen=True, slots=True)
class Unequal:
    """An interval with a known row count, if the table has another number of its offsets."""

    from_offset: int
    until_offset: int
    expected_rows: int
    found_rows: int


@dataclass(frozen=True, slots=True)
class IncompleteInterval:
    """An interval of the ledger (a range, or a part of several) with rows missing, or unproven."""

    from_offset: int
    until_offset: int
    missing: int


@dataclass(frozen=True, slots=True)
class PartitionFindings:
    """The audit of one partition.

    Counts are of offsets, on Jafka of messages, except `found_rows` and `double_rows`.
    """

    audited: AuditedPartition
    expected_rows: int
    found_rows: int
    missing: int = 0
    missing_first: tuple[int, ...] = ()
    """The first missing offsets; on Jafka, entries without one of their messages.

    Those of an `unequal` interval are counted but not listed.
    """
    double_rows: int = 0
    """Surplus rows: two for an offset with three rows."""
    double_places: tuple[int, ...] = ()
    """Buckets with duplicates, on Jafka the first entry of each such interval.

    Another query lists the duplicates.
    """
    unexpected: int = 0
    unexpected_first: tuple[int, ...] = ()
    """Offsets with a row but without an applied plan: outside of all intervals, or in a gap."""
    unequal: tuple[Unequal, ...] = ()
    short: tuple[IncompleteInterval, ...] = ()
    """Intervals with missing offsets; `missing` is their sum."""
    given_up_rows: int = 0
    """Rows of given-up offsets: neither required nor an error."""
    unproven: tuple[IncompleteInterval, ...] = ()
    """Intervals with offsets without rows, where it is unknown whether they should have one."""
    entries_with_holes: int = 0
    """On Jafka: entries with the right number of rows but other indices than 0, 1, 2 and so on."""
    entries_with_holes_first: tuple[int, ...] = ()

    @property
    def is_right(self) -> bool:
        """True if the table has every expected offset once, and no other."""
        return not (
            self.missing
            or self.double_rows
            or self.unexpected
            or self.unequal
            or self.unproven
            or self.entries_with_holes
        )


@dataclass(slots=True)
class Piece:
    """Expected offsets [from, until) with the same knowledge of their rows.

    All of them have a row (`rows` None), or `rows` of them, unknown which; or any (`is_open`).
    """

    from_offset: int
    until_offset: int
    rows: int | None
    interval: tuple[int, int]
    """The ledger's interval that contains the piece: from, until."""
    is_open: bool = False
    """True if the rows were never counted: any of the offsets may have one."""
    explained: int = 0
    """Of an open piece: offsets without a record, by the reader's counts."""
    has_left_out: bool = False
    """True if a transform left out records, on Jafka perhaps messages of an entry."""
    found: int = 0
    missing: int = 0


def pieces_of(
    partition: TopicPartition,
    loaded_intervals: Sequence[Interval],
    ranges: Iterable[tuple[OffsetRange, RangeResult]],
) -> list[Piece]:
    """Return the expected offsets of a partition, ascending.

    A range that a crash left both in a plan and in the loaded intervals counts once. Raises
    LedgersDisagree for overlapping ranges.
    """
    pieces = []
    covered = []
    for loaded in loaded_intervals:
        interval = (loaded.from_offset, loaded.until_offset)
        covered.append(interval)
        rows = loaded.rows
        if not partition.is_physical and rows == loaded.until_offset - loaded.from_offset:
            rows = None  # all of them
        pieces.append(
            Piece(
                *interval,
                rows,
                interval,
                is_open=loaded.rows is None,
                explained=_without_record(loaded),
                has_left_out=loaded.left_out > 0,
            )
        )
    for applied, result in ranges:
        if not is_covered(applied, covered):
            pieces.extend(_pieces_of_range(applied, result))
    pieces = [piece for piece in pieces if piece.from_offset < piece.until_offset]
    pieces.sort(key=lambda piece: piece.from_offset)
    for before, after in pairwise(pieces):
        if after.from_offset < before.until_offset:
            raise LedgersDisagree(
                "Two applied plans have the same offsets",
                **partition.place,
                offset=after.from_offset,
                action="Check the plans of this pipeline in ZooKeeper, "
                "and whether the table has rows of these offsets twice",
            )
    return pieces


def together(one: Expected, other: Expected) -> Expected:
    """Return the expected rows of a partition that two pipelines loaded."""
    return Expected(
        (*one.applied, *other.applied),
        (*one.loaded, *other.loaded),
        (*one.given_up, *other.given_up),
        (*one.elsewhere, *other.elsewhere),
        (*one.read_by_others, *other.read_by_others),
    )


def without_reloaded(expected: Expected, audited: AuditedPartition) -> Expected:
    """Return the expected rows without `elsewhere` ranges that were loaded again.

    The rest of such a range is missing as before. If its rows are not known one by one, it may have
    rows, and none is required.
    """
    reloaded = []
    for interval in expected.loaded:
        reloaded.append((interval.from_offset, interval.until_offset))
    for applied, _ in expected.applied:
        reloaded.append((applied.from_offset, applied.until_offset))
    elsewhere: list[tuple[OffsetRange, RangeResult]] = []
    given_up = list(expected.given_up)
    for offset_range, result in expected.elsewhere:
        whole = (offset_range.from_offset, offset_range.until_offset)
        is_untouched = subtract_intervals(whole, reloaded) == [whole]
        if not is_untouched and not is_exact(offset_range, result):
            given_up.append(interval_of(offset_range, result, audited.incarnation))
            continue
        for part, part_result in split_around_spans(offset_range, result, reloaded):
            elsewhere.append((part, part_result))
            reloaded.append((part.from_offset, part.until_offset))
    return replace(expected, elsewhere=tuple(elsewhere), given_up=tuple(given_up))


def _pieces_of_range(applied: OffsetRange, result: RangeResult) -> list[Piece]:
    """Return the pieces of a range: the parts between its gaps, if all gaps are known.

    Else, and on Jafka, one piece with a row count.
    """
    interval = applied.from_offset, applied.until_offset
    if result.rows is None:
        explained = _without_record(interval_of(applied, result))
        return [Piece(*interval, None, interval, is_open=True, explained=explained)]
    if applied.partition.is_physical:
        return [Piece(*interval, result.rows, interval, has_left_out=result.left_out > 0)]
    outside_gaps = applied.size
    pieces = []
    start = applied.from_offset
    for gap_start, gap_until in result.gaps:
        outside_gaps -= gap_until - gap_start
        pieces.append(Piece(start, gap_start, None, interval))
        start = gap_until
    pieces.append(Piece(start, applied.until_offset, None, interval))
    if not result.gaps_complete or outside_gaps != result.rows:
        return [Piece(*interval, result.rows, interval)]
    return pieces


def _without_record(interval: Interval) -> int:
    """Return the number of offsets of the interval that had no record, as far as it is known."""
    return interval.control_records + interval.aborted_records + interval.compacted


def is_covered(applied: OffsetRange, covered: Iterable[tuple[int, int]]) -> bool:
    """Return True if one of these intervals contains the whole range."""
    for start, end in covered:
        if start <= applied.from_offset and applied.until_offset <= end:
            return True
    return False


def rows_of(piece: Piece) -> int:
    """Return the number of expected rows; of an open piece, the number of found ones."""
    if piece.is_open:
        return piece.found
    if piece.rows is None:
        return piece.until_offset - piece.from_offset
    return piece.rows


def unequal_of(pieces: Iterable[Piece]) -> tuple[Unequal, ...]:
    """Return the pieces with a row count that differs from the number of found offsets."""
    unequal = []
    for piece in pieces:
        if piece.rows is not None and piece.rows != piece.found:
            unequal.append(Unequal(piece.from_offset, piece.until_offset, piece.rows, piece.found))
    return tuple(unequal)


def short_of(pieces: Iterable[Piece]) -> tuple[IncompleteInterval, ...]:
    """Return the intervals with missing rows, in the order of their pieces."""
    by_interval: dict[tuple[int, int], int] = {}
    for piece in pieces:
        missing = piece.missing
        if piece.rows is not None:
            missing = max(0, piece.rows - piece.found)
        if missing:
            by_interval[piece.interval] = by_interval.get(piece.interval, 0) + missing
    short = []
    for interval, missing in by_interval.items():
        short.append(IncompleteInterval(*interval, missing))
    return tuple(short)


def unproven_of(
    partition: TopicPartition, expected: Expected, pieces: Iterable[Piece]
) -> tuple[IncompleteInterval, ...]:
    """Return intervals with offsets without rows, if it is unknown whether they should have one.

    These are incomplete intervals that were never counted, and those that were recounted after a
    transform. On Jafka all bytes of such intervals count.
    """
    unproven = {}
    for loaded in expected.loaded:
        unproven[loaded.from_offset, loaded.until_offset] = loaded.unproven
    covered = list(unproven)
    for offset_range, result in expected.ranges:
        if not is_covered(offset_range, covered):
            interval = (offset_range.from_offset, offset_range.until_offset)
            unproven[interval] = interval_of(offset_range, result).unproven
    for piece in pieces:
        if piece.is_open:
            without_row = piece.until_offset - piece.from_offset
            if not partition.is_physical:
                without_row = max(0, without_row - piece.found - piece.explained)
            unproven[piece.interval] = without_row
    incomplete = []
    for interval, offsets in sorted(unproven.items()):
        if offsets:
            incomplete.append(IncompleteInterval(*interval, offsets))
    return tuple(incomplete)


BUCKET_OFFSETS = 32_768
"""Offsets per bucket: the width of the bitmaps that Spark's `bitmap_construct_agg` makes, 4 KiB."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The found rows with offsets in [number * 32,768, (number + 1) * 32,768)."""

    number: int
    rows: int
    bitmap: bytes | None
    """Bit i (least significant first) is set if offset i of the bucket was found.

    None: every offset was found, and `rows` is their number.
    """


@dataclass(slots=True)
class _CountedOffsets:
    """A number of offsets, and the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add_interval(self, from_offset: int, until_offset: int) -> None:
        self.count += until_offset - from_offset
        shown_until = from_offset + SHOWN - len(self.first)
        self.first.extend(range(from_offset, min(until_offset, shown_until)))

    def add_flags(self, flags: NDArray[numpy.bool_], at: int) -> int:
        """Add the offsets that are set in `flags`; return their number.

        `at` is the offset of the first flag.
        """
        count = int(numpy.count_nonzero(flags))
        self.count += count
        left = SHOWN - len(self.first)
        if left > 0:
            indices = numpy.flatnonzero(flags)[:left]
            self.first.extend((indices + at).tolist())
        return count


def audit(
    expected: Mapping[AuditedPartition, Expected], found: Iterable[tuple[AuditedPartition, Bucket]]
) -> Iterator[PartitionFindings]:
    """Yield the findings of each partition.

    `found` has each partition's buckets together and ascending; partitions in any order. Expected
    partitions without rows come last. Raises LedgersDisagree if the ledger contradicts itself.
    """
    unseen = dict(expected)
    for audited, pairs in groupby(found, key=lambda pair: pair[0]):
        buckets = (bucket for _, bucket in pairs)
        yield audit_partition(audited, unseen.pop(audited, Expected()), buckets)
    for audited, rest in sorted(unseen.items(), key=lambda item: item[0]):
        yield audit_partition(audited, rest, ())


def audit_partition(
    audited: AuditedPartition, expected: Expected, buckets: Iterable[Bucket]
) -> PartitionFindings:
    """Return the findings of one partition.

    `buckets` are ascending; the offsets of an absent bucket have no row.
    """
    pieces = pieces_of(audited.partition, expected.loaded, expected.ranges)
    missing = _CountedOffsets()
    unexpected = _CountedOffsets()
    found_rows = 0
    double_rows = 0
    double_places = []
    given_up_rows = 0
    compared_until = 0
    first = 0
    for bucket in buckets:
        start = bucket.number * BUCKET_OFFSETS
        _add_absent(pieces, first, compared_until, start, missing)
        first = _skip(pieces, first, start)
        flags = _flags(bucket)
        outside = _compare(pieces, first, flags, start, missing)
        given_up_rows += _clear(expected.given_up, outside, start)
        unexpected.add_flags(outside, start)
        found_rows += bucket.rows
        surplus = bucket.rows - int(numpy.count_nonzero(flags))
        if surplus:
            double_rows += surplus
            double_places.append(bucket.number)
        compared_until = start + BUCKET_OFFSETS
    _add_absent(pieces, first, compared_until, None, missing)
    unequal = unequal_of(pieces)
    short = short_of(pieces)
    return PartitionFindings(
        audited,
        expected_rows=sum(map(rows_of, pieces)),
        found_rows=found_rows,
        missing=_missing(short),
        missing_first=tuple(missing.first),
        double_rows=double_rows,
        double_places=tuple(double_places),
        unexpected=unexpected.count + _surplus(unequal),
        unexpected_first=tuple(unexpected.first),
        unequal=unequal,
        short=short,
        given_up_rows=given_up_rows,
        unproven=unproven_of(audited.partition, expected, pieces),
    )


def _missing(short: Iterable[IncompleteInterval]) -> int:
    """Return the number of offsets, on Jafka of messages, that these intervals lack."""
    return sum(interval.missing for interval in short)


def _surplus(unequal: Iterable[Unequal]) -> int:
    """Return the number of rows above the row counts of these intervals."""
    surplus = 0
    for interval in unequal:
        surplus += max(0, interval.found_rows - interval.expected_rows)
    return surplus


def _flags(bucket: Bucket) -> NDArray[numpy.bool_]:
    if bucket.bitmap is None:
        return numpy.ones(BUCKET_OFFSETS, numpy.bool_)
    packed = numpy.frombuffer(bucket.bitmap, numpy.uint8)
    return numpy.unpackbits(packed, bitorder="little", count=BUCKET_OFFSETS).view(numpy.bool_)


def _skip(pieces: Sequence[Piece], first: int, start: int) -> int:
    """Return the index of the first piece that ends after `start`."""
    while first < len(pieces) and pieces[first].until_offset <= start:
        first += 1
    return first


def _add_absent(
    pieces: Sequence[Piece], first: int, start: int, end: int | None, missing: _CountedOffsets
) -> None:
    """Count the expected offsets in [start, end) as missing: the table has no bucket there."""
    for index in range(first, len(pieces)):
        piece = pieces[index]
        if end is not None and piece.from_offset >= end:
            return
        absent_from = max(piece.from_offset, start)
        absent_until = piece.until_offset
        if end is not None:
            absent_until = min(absent_until, end)
        if piece.rows is None and not piece.is_open and absent_from < absent_until:
            missing.add_interval(absent_from, absent_until)
            piece.missing += absent_until - absent_from


def _compare(
    pieces: Sequence[Piece],
    first: int,
    flags: NDArray[numpy.bool_],
    start: int,
    missing: _CountedOffsets,
) -> NDArray[numpy.bool_]:
    """Count missing and found offsets of each piece in a bucket; return those outside of pieces."""
    outside = flags.copy()
    for index in range(first, len(pieces)):
        piece = pieces[index]
        if piece.from_offset >= start + BUCKET_OFFSETS:
            break
        inside = slice(max(0, piece.from_offset - start), piece.until_offset - start)
        outside[inside] = False
        if piece.rows is None and not piece.is_open:
            piece.missing += missing.add_flags(~flags[inside], start + (inside.start or 0))
        else:
            piece.found += int(numpy.count_nonzero(flags[inside]))
    return outside


def _clear(intervals: Iterable[Interval], flags: NDArray[numpy.bool_], start: int) -> int:
    """Clear the flags of these intervals in a bucket; return how many were set."""
    before = int(numpy.count_nonzero(flags))
    for interval in intervals:
        if interval.from_offset < start + BUCKET_OFFSETS and interval.until_offset > start:
            first = max(0, interval.from_offset - start)
            flags[first : interval.until_offset - start] = False
    return before - int(numpy.count_nonzero(flags))


@dataclass(frozen=True, slots=True)
class EntryInterval:
    """The found rows of one partition with entries between two neighbours of `edges_of`."""

    number: int
    """Number of edges at or below the entries; 0: before the first edge."""
    rows: int
    messages: int
    """Number of messages without duplicates."""
    first: int
    """The first entry."""
    holes: int = 0
    """Number of entries with other messages than 0, 1, 2 and so on."""
    first_hole: int | None = None
    """The first such entry."""
    first_double: int | None = None
    """The first entry with a duplicate message."""


def edges_of(audited: AuditedPartition, expected: Expected) -> tuple[int, ...]:
    """Return the starts and ends of the expected pieces of a partition, ascending.

    Entries between two edges are of one piece, or of none. Raises LedgersDisagree if the ledger
    contradicts itself.
    """
    edges = set()
    for piece in pieces_of(audited.partition, expected.loaded, expected.ranges):
        edges |= {piece.from_offset, piece.until_offset}
    for interval in expected.given_up:
        edges |= {interval.from_offset, interval.until_offset}
    return tuple(sorted(edges))


def audit_entries(
    expected: Mapping[AuditedPartition, Expected],
    found: Iterable[tuple[AuditedPartition, EntryInterval]],
) -> Iterator[PartitionFindings]:
    """Yield the findings of each partition of Jafka.

    `found` has each partition's intervals together and ascending; partitions in any order. Expected
    partitions without rows come last. Raises LedgersDisagree if the ledger contradicts itself.
    """
    unseen = dict(expected)
    for audited, pairs in groupby(found, key=lambda pair: pair[0]):
        intervals = [interval for _, interval in pairs]
        yield audit_jafka_partition(audited, unseen.pop(audited, Expected()), intervals)
    for audited, rest in sorted(unseen.items(), key=lambda item: item[0]):
        yield audit_jafka_partition(audited, rest, ())


def audit_jafka_partition(
    audited: AuditedPartition, expected: Expected, intervals: Sequence[EntryInterval]
) -> PartitionFindings:
    """Return the findings of one partition of Jafka."""
    pieces = pieces_of(audited.partition, expected.loaded, expected.ranges)
    edges = edges_of(audited, expected)
    starts = [piece.from_offset for piece in pieces]
    inside: list[tuple[Piece, EntryInterval]] = []
    unexpected: list[EntryInterval] = []
    found_rows = 0
    double_rows = 0
    given_up_rows = 0
    for interval in intervals:
        found_rows += interval.rows
        double_rows += interval.rows - interval.messages
        if not interval.number:
            unexpected.append(interval)
            continue
        edge = edges[interval.number - 1]
        at = bisect_right(starts, edge) - 1
        if at >= 0 and edge < pieces[at].until_offset:
            pieces[at].found += interval.messages
            inside.append((pieces[at], interval))
        elif _is_given_up(edge, expected):
            given_up_rows += interval.messages
        else:
            unexpected.append(interval)

    # A hole in a piece with too few messages is a missing message, already counted as such.
    missing_first = []
    holes = 0
    holes_first = []
    for piece, interval in inside:
        if interval.first_hole is None or piece.rows is None:
            continue
        if piece.found < piece.rows:
            missing_first.append(interval.first_hole)
        elif not piece.has_left_out:
            holes += interval.holes
            holes_first.append(interval.first_hole)
    short = short_of(pieces)
    unequal = unequal_of(pieces)
    unexpected_messages = 0
    unexpected_first = []
    for interval in unexpected:
        unexpected_messages += interval.messages
        unexpected_first.append(interval.first)
    double_places = [interval.first_double for interval in intervals]
    return PartitionFindings(
        audited,
        expected_rows=sum(map(rows_of, pieces)),
        found_rows=found_rows,
        missing=_missing(short),
        missing_first=_first(missing_first),
        double_rows=double_rows,
        double_places=_first(double_places),
        unexpected=unexpected_messages + _surplus(unequal),
        unexpected_first=_first(unexpected_first),
        unequal=unequal,
        short=short,
        given_up_rows=given_up_rows,
        unproven=unproven_of(audited.partition, expected, pieces),
        entries_with_holes=holes,
        entries_with_holes_first=_first(holes_first),
    )


def _is_given_up(edge: int, expected: Expected) -> bool:
    for interval in expected.given_up:
        if interval.from_offset <= edge < interval.until_offset:
            return True
    return False


def _first(entries: Iterable[int | None]) -> tuple[int, ...]:
    """Return the first entries to show, without None."""
    known = [entry for entry in entries if entry is not None]
    return tuple(known[:SHOWN])


_Pair = tuple[OffsetRange, RangeResult]


def replaced_expected(known: Expected, span: Span, came: Sequence[_Pair]) -> Expected:
    """Return the expected rows after a replay of `span`, which read `came` in adjacent ranges.

    Ranges known offset by offset are split around the span. If the span splits an interval with
    only a row count, that interval and all new ranges become one interval with a row count.
    """
    applied: list[_Pair] = []
    counted = list(known.loaded)
    rows_inside: list[int | None] = []
    for offset_range, result in known.applied:
        start = offset_range.from_offset
        until = offset_range.until_offset
        if not span.meets(start, until):
            applied.append((offset_range, result))
        elif span.holds(start, until):
            rows_inside.append(result.rows)
        elif is_exact(offset_range, result):
            rows = result.rows or 0
            for part, part_result in split_around(offset_range, result, span):
                applied.append((part, part_result))
                rows -= part_result.rows or 0
            rows_inside.append(rows)
        else:
            counted.append(interval_of(offset_range, result, span.incarnation))
    known_inside = None
    if None not in rows_inside:
        known_inside = sum(rows or 0 for rows in rows_inside)
    left = subtract_span(counted, span, known_inside=known_inside)
    if not left.crossing:
        return replace(known, applied=(*applied, *came), loaded=left.outside)
    replayed = []
    for offset_range, result in came:
        replayed.append(interval_of(offset_range, result, span.incarnation))
    loaded = (*left.outside, left.counted_with(merge(replayed), span))
    return replace(known, applied=tuple(applied), loaded=loaded)


Offsets = NDArray[numpy.int64]
_OFFSETS_A_RUN = 16
"""Adding a run to a bitmap costs about as much as adding this number of offsets."""


class ObservedMessages:
    """The messages of one Jafka range that have a row, added in any order.

    A Roaring bitmap: a message is its index in the entry and, in the lower bits, the distance of
    the entry's byte position from the start of the range.
    """

    def __init__(self, offset_range: OffsetRange) -> None:
        self._range = offset_range
        self._seen = BitMap64()
        self._bits = offset_range.size.bit_length()

    def add(self, offsets: Offsets, indices: Offsets) -> None:
        """Add messages with entries in the range; impossible indices are ignored."""
        possible = (indices >= 0) & (indices < 1 << (63 - self._bits))
        messages = (indices[possible] << self._bits) | (offsets[possible] - self._range.from_offset)
        self._seen.update(array.array("Q", messages.tobytes()))

    def result(self, gaps_max: int) -> RangeResult:
        """Return the range's result as far as rows show it: the number of messages, without gaps.

        A duplicate counts once; the audit reports it.
        """
        del gaps_max
        return RangeResult(rows=len(self._seen), gaps_complete=False)


class ObservedOffsets:
    """The offsets of one range that have a row, added in any order.

    A Roaring bitmap: almost no memory for a partition without gaps, at most two bytes per row for
    rows that are not far apart.
    """

    def __init__(self, offset_range: OffsetRange) -> None:
        self._range = offset_range
        self._seen = BitMap64()

    def add(self, offsets: Offsets) -> None:
        """Add offsets of the range, ascending."""
        if not len(offsets):
            return
        breaks = numpy.flatnonzero(numpy.diff(offsets) > 1)
        if len(breaks) * _OFFSETS_A_RUN > len(offsets):
            self._seen.update(array.array("Q", offsets.tobytes()))
            return
        starts = offsets[numpy.append(0, breaks + 1)]
        lasts = offsets[numpy.append(breaks, len(offsets) - 1)]
        for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
            self._seen.add_range(start, last + 1)

    def result(self, gaps_max: int) -> RangeResult:
        """Return the range's result as far as rows show it: offsets without a row are missing.

        A duplicate counts once; the audit reports it.
        """
        rows = len(self._seen)
        gaps = self._gaps(gaps_max + 1)
        return RangeResult(
            rows=rows,
            missing_offsets=self._range.size - rows,
            gaps=tuple(gaps[:gaps_max]),
            gaps_complete=len(gaps) <= gaps_max,
        )

    def _gaps(self, most: int) -> list[tuple[int, int]]:
        """Return the first intervals [from, until) without a row."""
        gaps: list[tuple[int, int]] = []
        at = self._range.from_offset
        until = self._range.until_offset
        while at < until and len(gaps) < most:
            start = self._run_end(at)
            at = until
            if start < until:
                at = next(self._seen.iter_equal_or_larger(start), until)
            if start < at:
                gaps.append((start, at))
        return gaps

    def _run_end(self, start: int) -> int:
        """Return the first offset from `start` on without a row, or the end of the range.

        The search doubles its steps, then halves them.
        """
        end = start
        step = 1
        until = self._range.until_offset
        while end < until and self._seen.contains_range(end, min(end + step, until)):
            end = min(end + step, until)
            step *= 2
        while step := step // 2:
            if end + step <= until and self._seen.contains_range(end, end + step):
                end += step
        return end


Parts = list[tuple[int, int]]


def rows_before_of(
    newest: Plan | None, table: Table, expected: Mapping[AuditedPartition, Expected]
) -> dict[AuditedPartition, Parts]:
    """Return offsets [from, until) with rows from before plan 1, by partition.

    Offsets that were loaded since are left out.
    """
    if newest is None or newest.table.rows_before is None:
        return {}
    before = newest.table.rows_before
    if before.table_id != table.id:
        return {}
    found: dict[AuditedPartition, Parts] = {}
    for held in before.held:
        audited = AuditedPartition(held.partition, held.incarnation)
        known = expected.get(audited, Expected())
        loaded = []
        for offset_range, _ in known.ranges:
            loaded.append((offset_range.from_offset, offset_range.until_offset))
        for interval in known.loaded:
            loaded.append((interval.from_offset, interval.until_offset))
        parts = subtract_intervals((held.from_offset, held.until_offset), loaded)
        if parts:
            found[audited] = parts
    return found


def more_than_before(
    newest: Plan | None, counted: Mapping[AuditedPartition, int]
) -> tuple[tuple[AuditedPartition, int], ...]:
    """Return partitions with more rows from before plan 1 than the plan has, and the difference.

    Other writers wrote them since.
    """
    known = {}
    if newest and newest.table.rows_before:
        for held in newest.table.rows_before.held:
            known[AuditedPartition(held.partition, held.incarnation)] = held.rows
    more = []
    for audited, rows in sorted(counted.items()):
        surplus = rows - known[audited]
        if surplus > 0:
            more.append((audited, surplus))
    return tuple(more)
