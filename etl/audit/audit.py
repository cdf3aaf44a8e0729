"""Is each offset in the table once, and none that no plan loaded?

Compares what the table holds (bitmaps of offsets that Spark computes, etl/io/delta/scan.py) with
what it should hold: range results of applied plans, and row counts of the loaded intervals of
pruned plans. One partition is in memory at a time, and of it one bucket of 32,768 offsets. The
bitmaps are compared as they come: converting them to Roaring bitmaps takes many times as long
(tests/bench/offset_sets.py).

Kafka 0.8 and later: a row is unique by its offset. Jafka and Kafka 0.7: by the position of its
entry and its index there. Positions do not tell how many messages a range holds, the range result
does. So each range must have as many messages as its result counts, none twice; the messages of an
entry must be 0, 1, 2 and so on; and no entry may begin outside of all ranges. If a crash lost the
result and the rows were counted instead, a message missing at the end of an entry is not noticed.

A replay's rows replace those of earlier plans. A row that was in the table before plan 1 is
recognised by its offset and incarnation; such offsets are compared by number of rows only.
"""

from __future__ import annotations

import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap64

from etl.decide.loaded_intervals import (
    Span,
    interval_of,
    is_exact,
    merge,
    outside_of,
    split_around,
    subtract_span,
    without,
)
from etl.errors import LedgersDisagree
from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange, Plan, RangeResult
from etl.model.snapshot import Interval, Table

SHOWN = 5
"""How many offsets a finding names; it counts all of them."""


@dataclass(frozen=True, slots=True, order=True)
class AuditedLog:
    """One incarnation of one partition: after a recreation offsets start again."""

    log: BrokerPartition
    log_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What the ledger expects of one partition."""

    applied: tuple[tuple[OffsetRange, RangeResult], ...] = ()
    """The ranges of plans that were applied and are still kept."""
    coverage: tuple[Interval, ...] = ()
    """Intervals of pruned plans."""
    given_up: tuple[Interval, ...] = ()
    """Offsets of which a row may be there once or not at all: what an operator gave up, and what
    another pipeline loaded.
    """
    elsewhere: tuple[tuple[OffsetRange, RangeResult], ...] = ()
    """Ranges of kept plans that went to another table, or to a state that an older copy replaced:
    accepted by an operator, and reported as missing for that reason.
    """
    read_by_others: tuple[tuple[int, int], ...] = ()
    """Offsets [from, until) that other members of the group read: they have no rows, and none is
    missing.
    """

    @property
    def ranges(self) -> tuple[tuple[OffsetRange, RangeResult], ...]:
        """Those of all kept plans."""
        return (*self.applied, *self.elsewhere)


@dataclass(frozen=True, slots=True)
class Unequal:
    """An interval of which only the row count is known, and the table holds another number of its
    offsets.
    """

    from_offset: int
    until_offset: int
    expected_rows: int
    found_rows: int


@dataclass(frozen=True, slots=True)
class IncompleteInterval:
    """An interval of the ledger, a range or a part of several, of which the table lacks rows, or
    may lack some.
    """

    from_offset: int
    until_offset: int
    missing: int


@dataclass(frozen=True, slots=True)
class LogFindings:
    """The audit of one partition. Counts are of offsets, on Jafka of messages, but for `found_rows`
    and `double_rows`.
    """

    audited: AuditedLog
    expected_rows: int
    found_rows: int
    missing: int = 0
    missing_first: tuple[int, ...] = ()
    """The first missing offsets. Those of an `unequal` interval are counted without names; on
    Jafka, entries that lack a message.
    """
    double_rows: int = 0
    """Rows too many: of an offset that is there three times, two."""
    double_places: tuple[int, ...] = ()
    """Buckets with duplicates, on Jafka the first entry of each such interval; another query names
    the duplicates.
    """
    unexpected: int = 0
    unexpected_first: tuple[int, ...] = ()
    """Offsets with a row where no applied plan gives one: outside all intervals, or in a gap."""
    unequal: tuple[Unequal, ...] = ()
    short: tuple[IncompleteInterval, ...] = ()
    """Where offsets are missing; `missing` is their sum."""
    given_up_rows: int = 0
    """Rows of given-up offsets: neither required nor an error."""
    unproven: tuple[IncompleteInterval, ...] = ()
    """Intervals with offsets without rows, where it is unknown whether they should have one."""
    entries_with_holes: int = 0
    """On Jafka: entries whose rows' indices are not 0, 1, 2 and so on, with the right number of
    rows.
    """
    entries_with_holes_first: tuple[int, ...] = ()

    @property
    def is_right(self) -> bool:
        """Every expected offset is there once, and nothing else."""
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
    """Offsets [from, until) of which all have a row (`rows` None), or `rows` of them, unknown
    which; or it is `open`.
    """

    from_offset: int
    until_offset: int
    rows: int | None
    interval: tuple[int, int]
    """The ledger's interval that it belongs to: from, until."""
    is_open: bool = False
    """Its rows were never counted: any of its offsets may have one."""
    found: int = 0
    missing: int = 0


def pieces_of(
    log: BrokerPartition,
    coverage: Sequence[Interval],
    ranges: Iterable[tuple[OffsetRange, RangeResult]],
) -> list[Piece]:
    """Return the expected offsets, ascending. A range that a crash left both in a plan and in the
    loaded intervals counts once. Raises LedgersDisagree for overlapping ones.
    """
    covered = [(i.from_offset, i.until_offset) for i in coverage]
    pieces = [
        Piece(
            i.from_offset,
            i.until_offset,
            i.rows if log.is_physical else _unless_all(i.rows, i.until_offset - i.from_offset),
            (i.from_offset, i.until_offset),
            is_open=i.rows is None,
        )
        for i in coverage
    ]
    for applied, receipt in ranges:
        if not is_covered(applied, covered):
            pieces.extend(_pieces_of_range(applied, receipt))
    pieces = sorted(
        (p for p in pieces if p.from_offset < p.until_offset), key=lambda piece: piece.from_offset
    )
    for before, after in zip(pieces, pieces[1:], strict=False):
        if after.from_offset < before.until_offset:
            raise LedgersDisagree(
                "Two applied plans hold the same offsets",
                **log.place,
                offset=after.from_offset,
                action="Check the plans of this pipeline in ZooKeeper, and whether the table has rows of these offsets twice",
            )
    return pieces


def together(one: Expected, other: Expected) -> Expected:
    """Merge what two pipelines loaded into one partition."""
    return Expected(
        (*one.applied, *other.applied),
        (*one.coverage, *other.coverage),
        (*one.given_up, *other.given_up),
        (*one.elsewhere, *other.elsewhere),
        (*one.read_by_others, *other.read_by_others),
    )


def without_reloaded(expected: Expected, audited: AuditedLog) -> Expected:
    """Return the expected rows without ranges that went elsewhere and were loaded again. The rest
    of such a range is missing as before, unless its rows are unknown one by one: then it may have
    rows, and none is required.
    """
    again = [
        *((one.from_offset, one.until_offset) for one in expected.coverage),
        *((r.from_offset, r.until_offset) for r, _ in expected.applied),
    ]
    kept, left = list[tuple[OffsetRange, RangeResult]](), list(expected.given_up)
    for r, receipt in expected.elsewhere:
        if without((r.from_offset, r.until_offset), again) == [
            (r.from_offset, r.until_offset)
        ] or is_exact(r, receipt):
            parts = outside_of(r, receipt, again)
            kept += parts
            again += [(part.from_offset, part.until_offset) for part, _ in parts]
        else:
            left.append(interval_of(r, receipt, audited.log_epoch))
    return replace(expected, elsewhere=tuple(kept), given_up=tuple(left))


def _pieces_of_range(applied: OffsetRange, receipt: RangeResult) -> list[Piece]:
    """Return the pieces of a range: without its gaps if all are known. On Jafka one piece, whose
    rows are counted.
    """
    interval = applied.from_offset, applied.until_offset
    if receipt.rows is None:
        return [Piece(*interval, None, interval, is_open=True)]
    if applied.log.is_physical:
        return [Piece(*interval, receipt.rows, interval)]
    known = applied.size - sum(until - start for start, until in receipt.gaps)
    if not receipt.gaps_complete or known != receipt.rows:
        return [Piece(*interval, receipt.rows, interval)]
    starts = [applied.from_offset, *(until for _, until in receipt.gaps)]
    ends = [*(start for start, _ in receipt.gaps), applied.until_offset]
    return [Piece(start, end, None, interval) for start, end in zip(starts, ends, strict=True)]


def is_covered(applied: OffsetRange, covered: Iterable[tuple[int, int]]) -> bool:
    """True if one of these intervals contains the whole range."""
    return any(
        start <= applied.from_offset and applied.until_offset <= end for start, end in covered
    )


def _unless_all(rows: int | None, size: int) -> int | None:
    return None if rows == size else rows


def rows_of(piece: Piece) -> int:
    """How many rows are expected; of an open piece, those that were found."""
    if piece.is_open:
        return piece.found
    return piece.until_offset - piece.from_offset if piece.rows is None else piece.rows


def unequal_of(pieces: Iterable[Piece]) -> tuple[Unequal, ...]:
    """Those of which only the number of rows is known, and it is another one."""
    return tuple(
        Unequal(p.from_offset, p.until_offset, p.rows, p.found)
        for p in pieces
        if p.rows is not None and p.rows != p.found
    )


def short_of(pieces: Iterable[Piece]) -> tuple[IncompleteInterval, ...]:
    """The pieces that lack rows, those of one interval together; pieces are in order."""
    found: dict[tuple[int, int], int] = {}
    for p in pieces:
        lacking = p.missing if p.rows is None else max(0, p.rows - p.found)
        if lacking:
            found[p.interval] = found.get(p.interval, 0) + lacking
    return tuple(IncompleteInterval(*interval, missing) for interval, missing in found.items())


def unproven_of(
    log: BrokerPartition, expected: Expected, pieces: Iterable[Piece]
) -> tuple[IncompleteInterval, ...]:
    """Return uncounted incomplete intervals, and those recounted behind a transform with missing
    offsets. On Jafka all bytes of such intervals count.
    """
    opened = {
        p.interval: p.until_offset - p.from_offset - (0 if log.is_physical else p.found)
        for p in pieces
        if p.is_open
    }
    covered = [(i.from_offset, i.until_offset) for i in expected.coverage]
    counted = {(i.from_offset, i.until_offset): i.unproven for i in expected.coverage} | {
        (r.from_offset, r.until_offset): interval_of(r, receipt).unproven
        for r, receipt in expected.ranges
        if not is_covered(r, covered)
    }
    return tuple(
        IncompleteInterval(*interval, lacking)
        for interval, lacking in sorted({**counted, **opened}.items())
        if lacking
    )


BUCKET_OFFSETS = 32_768
"""Offsets per bucket: the width of the bitmaps that Spark's `bitmap_construct_agg` makes, 4 KiB."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The found rows with offsets in [number * 32,768, (number + 1) * 32,768)."""

    number: int
    rows: int
    bitmap: bytes | None
    """Bit i (least significant first) stands for the bucket's offset i; None: every offset is there
    and `rows` is their number.
    """


@dataclass(slots=True)
class _Named:
    """How many offsets, and the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add_interval(self, from_offset: int, until_offset: int) -> None:
        self.count += until_offset - from_offset
        self.first.extend(
            range(from_offset, min(until_offset, from_offset + SHOWN - len(self.first)))
        )

    def add_flags(self, flags: NDArray[numpy.bool_], at: int) -> int:
        """How many there are in `flags`, which begin at offset `at`."""
        count = int(numpy.count_nonzero(flags))
        self.count += count
        if len(self.first) < SHOWN:
            self.first.extend((numpy.flatnonzero(flags)[: SHOWN - len(self.first)] + at).tolist())
        return count


def audit(
    expected: Mapping[AuditedLog, Expected], found: Iterable[tuple[AuditedLog, Bucket]]
) -> Iterator[LogFindings]:
    """Compare log by log. `found` holds each log's buckets together and in ascending order; the
    logs may come in any order.

    Logs that are expected and not found come last. Raises LedgersDisagree when the ledger
    contradicts itself.
    """
    unseen = dict(expected)
    for audited, pairs in groupby(found, key=lambda pair: pair[0]):
        yield audit_log(audited, unseen.pop(audited, Expected()), (bucket for _, bucket in pairs))
    for audited, rest in sorted(unseen.items(), key=lambda item: item[0]):
        yield audit_log(audited, rest, ())


def audit_log(audited: AuditedLog, expected: Expected, buckets: Iterable[Bucket]) -> LogFindings:
    """Compare one log. `buckets` are in ascending order; where one is absent its offsets have no
    row.
    """
    pieces = pieces_of(audited.log, expected.coverage, expected.ranges)
    missing, unexpected = _Named(), _Named()
    found_rows, double_rows, double_places = 0, 0, []
    reached, first, given_up_rows = 0, 0, 0
    for bucket in buckets:
        start, end = bucket.number * BUCKET_OFFSETS, (bucket.number + 1) * BUCKET_OFFSETS
        _miss(pieces, first, reached, start, missing)
        first = _skip(pieces, first, start)
        flags = _flags(bucket)
        beyond = _compare(pieces, first, flags, start, missing)
        given_up_rows += _take_out(expected.given_up, beyond, start)
        unexpected.add_flags(beyond, start)
        found_rows += bucket.rows
        surplus = bucket.rows - int(numpy.count_nonzero(flags))
        if surplus:
            double_rows += surplus
            double_places.append(bucket.number)
        reached = end
    _miss(pieces, first, reached, None, missing)
    unequal = unequal_of(pieces)
    short = short_of(pieces)
    unexpected.count += sum(max(0, u.found_rows - u.expected_rows) for u in unequal)
    return LogFindings(
        audited,
        sum(rows_of(piece) for piece in pieces),
        found_rows,
        sum(s.missing for s in short),
        tuple(missing.first),
        double_rows,
        tuple(double_places),
        unexpected.count,
        tuple(unexpected.first),
        unequal,
        short,
        given_up_rows,
        unproven_of(audited.log, expected, pieces),
    )


def _flags(bucket: Bucket) -> NDArray[numpy.bool_]:
    if bucket.bitmap is None:
        return numpy.ones(BUCKET_OFFSETS, numpy.bool_)
    packed = numpy.frombuffer(bucket.bitmap, numpy.uint8)
    return numpy.unpackbits(packed, bitorder="little", count=BUCKET_OFFSETS).view(numpy.bool_)


def _skip(pieces: Sequence[Piece], first: int, start: int) -> int:
    """The index of the first piece that reaches beyond `start`."""
    while first < len(pieces) and pieces[first].until_offset <= start:
        first += 1
    return first


def _miss(
    pieces: Sequence[Piece], first: int, start: int, end: int | None, missing: _Named
) -> None:
    """Add expected offsets between `start` and `end`, where the table has none."""
    for index in range(first, len(pieces)):
        piece = pieces[index]
        if end is not None and piece.from_offset >= end:
            return
        absent_from = max(piece.from_offset, start)
        absent_until = piece.until_offset if end is None else min(piece.until_offset, end)
        if piece.rows is None and not piece.is_open and absent_from < absent_until:
            missing.add_interval(absent_from, absent_until)
            piece.missing += absent_until - absent_from


def _compare(
    pieces: Sequence[Piece], first: int, flags: NDArray[numpy.bool_], start: int, missing: _Named
) -> NDArray[numpy.bool_]:
    """Note what a bucket lacks, count what it holds of counted pieces, and return what it holds
    beyond all pieces.
    """
    beyond = flags.copy()
    for index in range(first, len(pieces)):
        piece = pieces[index]
        if piece.from_offset >= start + BUCKET_OFFSETS:
            break
        inside = slice(max(0, piece.from_offset - start), piece.until_offset - start)
        beyond[inside] = False
        if piece.rows is None and not piece.is_open:
            piece.missing += missing.add_flags(~flags[inside], start + (inside.start or 0))
        else:
            piece.found += int(numpy.count_nonzero(flags[inside]))
    return beyond


def _take_out(intervals: Iterable[Interval], beyond: NDArray[numpy.bool_], start: int) -> int:
    """Clear what a bucket holds of these intervals, and count it."""
    before = int(numpy.count_nonzero(beyond))
    for interval in intervals:
        if interval.from_offset < start + BUCKET_OFFSETS and interval.until_offset > start:
            beyond[max(0, interval.from_offset - start) : interval.until_offset - start] = False
    return before - int(numpy.count_nonzero(beyond))


@dataclass(frozen=True, slots=True)
class EntryInterval:
    """The found rows of one partition whose entries begin between two neighbours of `edges_of`."""

    number: int
    """How many of the edges lie at or below the entries: 0 is before the first of them."""
    rows: int
    messages: int
    """Without duplicates."""
    first: int
    """The first entry."""
    holes: int = 0
    """Entries whose messages are not 0, 1, 2 and so on."""
    first_hole: int | None = None
    first_double: int | None = None
    """The first entry of such, and the first with a message that is there more than once."""


def edges_of(audited: AuditedLog, expected: Expected) -> tuple[int, ...]:
    """Return where the ledger's pieces of a partition begin and end, ascending: entries between two
    edges are of one piece, or of none. Raises LedgersDisagree if the ledger contradicts itself.
    """
    pieces = pieces_of(audited.log, expected.coverage, expected.ranges)
    both = (
        (one.from_offset, one.until_offset) for some in (pieces, expected.given_up) for one in some
    )
    return tuple(sorted({edge for pair in both for edge in pair}))


def audit_entries(
    expected: Mapping[AuditedLog, Expected],
    found: Iterable[tuple[AuditedLog, EntryInterval]],
) -> Iterator[LogFindings]:
    """Compare partition by partition. `found` has each partition's intervals together and
    ascending; partitions in any order. Expected ones without rows come last. Raises LedgersDisagree
    if the ledger contradicts itself.
    """
    unseen = dict(expected)
    for audited, pairs in groupby(found, key=lambda pair: pair[0]):
        yield audit_log_of_entries(
            audited, unseen.pop(audited, Expected()), [stretch for _, stretch in pairs]
        )
    for audited, rest in sorted(unseen.items(), key=lambda item: item[0]):
        yield audit_log_of_entries(audited, rest, ())


def audit_log_of_entries(
    audited: AuditedLog, expected: Expected, stretches: Sequence[EntryInterval]
) -> LogFindings:
    """Compare one log."""
    pieces, edges = (
        pieces_of(audited.log, expected.coverage, expected.ranges),
        edges_of(audited, expected),
    )
    starts, of_pieces, beyond = (
        [piece.from_offset for piece in pieces],
        list[tuple[Piece, EntryInterval]](),
        list[EntryInterval](),
    )
    for stretch in stretches:
        at = bisect_right(starts, edges[stretch.number - 1]) - 1 if stretch.number else -1
        if at >= 0 and edges[stretch.number - 1] < pieces[at].until_offset:
            pieces[at].found += stretch.messages
            of_pieces.append((pieces[at], stretch))
        else:
            beyond.append(stretch)
    is_given_up = {
        one.number: bool(one.number) and _is_given_up(edges[one.number - 1], expected)
        for one in beyond
    }
    strange = [one for one in beyond if not is_given_up[one.number]]
    holes = [(piece, stretch) for piece, stretch in of_pieces if stretch.first_hole is not None]
    unsaid = [
        stretch for piece, stretch in holes if piece.rows is not None and piece.found >= piece.rows
    ]
    double = [stretch for stretch in stretches if stretch.first_double is not None]
    short, unequal = short_of(pieces), unequal_of(pieces)
    return LogFindings(
        audited,
        sum(rows_of(piece) for piece in pieces),
        sum(stretch.rows for stretch in stretches),
        missing=sum(one.missing for one in short),
        missing_first=_first(
            stretch.first_hole
            for piece, stretch in holes
            if piece.rows is not None and piece.found < piece.rows
        ),
        double_rows=sum(stretch.rows - stretch.messages for stretch in stretches),
        double_places=_first(one.first_double for one in double),
        unexpected=sum(one.messages for one in strange)
        + sum(max(0, u.found_rows - u.expected_rows) for u in unequal),
        unexpected_first=_first(one.first for one in strange),
        unequal=unequal,
        short=short,
        given_up_rows=sum(one.messages for one in beyond if is_given_up[one.number]),
        unproven=unproven_of(audited.log, expected, pieces),
        entries_with_holes=sum(one.holes for one in unsaid),
        entries_with_holes_first=_first(one.first_hole for one in unsaid),
    )


def _is_given_up(edge: int, expected: Expected) -> bool:
    return any(one.from_offset <= edge < one.until_offset for one in expected.given_up)


def _first(entries: Iterable[int | None]) -> tuple[int, ...]:
    return tuple([entry for entry in entries if entry is not None][:SHOWN])


_Pair = tuple[OffsetRange, RangeResult]


def replaced_expected(known: Expected, span: Span, came: Sequence[_Pair]) -> Expected:
    """Return the expected rows after a replay of `span`, which read `came` in adjacent ranges.
    Ranges known offset by offset are split around it. If the span cuts an interval with only a
    count, that one and all new ranges become one interval with a count.
    """
    applied, counted, inside = list[_Pair](), list(known.coverage), list[int | None]()
    for r, receipt in known.applied:
        if not span.meets(r.from_offset, r.until_offset):
            applied.append((r, receipt))
        elif span.holds(r.from_offset, r.until_offset):
            inside.append(receipt.rows)
        elif is_exact(r, receipt):
            parts = split_around(r, receipt, span)
            applied += parts
            inside.append((receipt.rows or 0) - sum(part.rows or 0 for _, part in parts))
        else:
            counted.append(interval_of(r, receipt, span.log_epoch))
    left = subtract_span(
        counted, span, known_inside=None if None in inside else sum(rows or 0 for rows in inside)
    )
    if not left.crossing:
        return replace(known, applied=(*applied, *came), coverage=left.outside)
    of_now = merge(interval_of(r, receipt, span.log_epoch) for r, receipt in came)
    return replace(
        known, applied=tuple(applied), coverage=(*left.outside, left.counted_with(of_now, span))
    )


Offsets = NDArray[numpy.int64]
_OFFSETS_A_RUN = 16
"""Adding a run costs about as much as adding so many offsets."""


class ObservedMessages:
    """Which messages of one range of a physical log gave a row, by their entry's byte position and
    their index in it, in whatever order.

    A Roaring bitmap too: a message is its index and, in the lower bits, its entry's distance from
    the range's start.
    """

    def __init__(self, offset_range: OffsetRange) -> None:
        self._range, self._seen = offset_range, BitMap64()
        self._bits = offset_range.size.bit_length()

    def add(self, offsets: Offsets, indices: Offsets) -> None:
        """Note these messages; all entries lie in the range. An index that no message can have
        names none.
        """
        possible = (indices >= 0) & (indices < 1 << (63 - self._bits))
        messages = (indices[possible] << self._bits) | (offsets[possible] - self._range.from_offset)
        self._seen.update(array.array("Q", messages.tobytes()))

    def receipt(self, gaps_max: int) -> RangeResult:
        """Return the range's result as far as rows tell: the number of messages, not which are
        missing. A duplicate counts once; it is the audit's finding.
        """
        del gaps_max
        return RangeResult(rows=len(self._seen), gaps_complete=False)


class ObservedOffsets:
    """Which offsets of one range gave a row, whatever order they come in.

    Kept as a Roaring bitmap: next to nothing for a log without gaps, at most two bytes a row where
    rows do not lie far apart.
    """

    def __init__(self, offset_range: OffsetRange) -> None:
        self._range, self._seen = offset_range, BitMap64()

    def add(self, offsets: Offsets) -> None:
        """Note these offsets, ascending; all lie in the range."""
        if not len(offsets):
            return
        breaks = numpy.flatnonzero(numpy.diff(offsets) > 1)
        if len(breaks) * _OFFSETS_A_RUN > len(offsets):
            self._seen.update(array.array("Q", offsets.tobytes()))
            return
        starts, lasts = (
            offsets[numpy.append(0, breaks + 1)],
            offsets[numpy.append(breaks, len(offsets) - 1)],
        )
        for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
            self._seen.add_range(start, last + 1)

    def receipt(self, gaps_max: int) -> RangeResult:
        """Return the range's result as far as rows tell: all offsets without a row count as
        missing. A duplicate counts once; it is the audit's finding.
        """
        rows, gaps = len(self._seen), self._gaps(gaps_max + 1)
        return RangeResult(
            rows=rows,
            missing_offsets=self._range.size - rows,
            gaps=tuple(gaps[:gaps_max]),
            gaps_complete=len(gaps) <= gaps_max,
        )

    def _gaps(self, most: int) -> list[tuple[int, int]]:
        """The first intervals [from, until) without a row."""
        found: list[tuple[int, int]] = []
        at, until = self._range.from_offset, self._range.until_offset
        while at < until and len(found) < most:
            begin = self._run_end(at)
            at = next(self._seen.iter_equal_or_larger(begin), until) if begin < until else until
            if begin < at:
                found.append((begin, at))
        return found

    def _run_end(self, start: int) -> int:
        """The first offset from `start` on that gave no row, or the range's end: by steps that
        double, then halve.
        """
        end, step, until = start, 1, self._range.until_offset
        while end < until and self._seen.contains_range(end, min(end + step, until)):
            end, step = min(end + step, until), step * 2
        while step := step // 2:
            if end + step <= until and self._seen.contains_range(end, end + step):
                end += step
        return end


Parts = list[tuple[int, int]]


def rows_before_of(
    newest: Plan | None, table: Table, expected: Mapping[AuditedLog, Expected]
) -> dict[AuditedLog, Parts]:
    """Return offsets [from, until) of each partition with rows from before plan 1, without what was
    loaded since.
    """
    before = newest.rows_before if newest else None
    if before is None or before.table_id != table.id:
        return {}
    found = dict[AuditedLog, Parts]()
    for one in before.held:
        audited = AuditedLog(one.log, one.log_epoch)
        known = expected.get(audited, Expected())
        loaded = [(r.from_offset, r.until_offset) for r, _ in known.ranges]
        loaded += [(interval.from_offset, interval.until_offset) for interval in known.coverage]
        parts = without((one.from_offset, one.until_offset), loaded)
        if parts:
            found[audited] = parts
    return found


def more_than_before(
    newest: Plan | None, counted: Mapping[AuditedLog, int]
) -> tuple[tuple[AuditedLog, int], ...]:
    """Return partitions with more such rows than the plan found, and how many: others wrote them
    since.
    """
    before = newest.rows_before if newest else None
    known = {AuditedLog(one.log, one.log_epoch): one.rows for one in before.held} if before else {}
    return tuple(
        (audited, rows - known[audited])
        for audited, rows in sorted(counted.items())
        if rows > known[audited]
    )
