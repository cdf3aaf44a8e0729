"""Is each offset in the table once, and none that no plan applied?

Whether a table holds what the ledger says it holds: every offset once, none missing, none that
nobody applied.

Owns the comparison. What the table holds comes as bitmaps of offsets (`edges.delta.scan` makes
Spark read the rows), what it should hold as the receipts of applied plans and, where plans were
pruned, as loaded intervals with row counts. Nothing here does I/O; one log is in memory at a time,
and of it one bucket of 32,768 offsets. Spark's bitmaps are compared as they come: making Roaring
bitmaps of them takes many times as long (tests/bench/offset_sets.py).

A row is unique by its offset (Kafka 0.8 and later). On the 0.7 family several rows may share one:
those logs are audited in `entries`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy
from numpy.typing import NDArray

from etl.audit.findings import SHOWN, AuditedLog, Expected, LogFindings
from etl.audit.pieces import Piece, pieces_of, rows_of, short_of, unequal_of, unproven_of
from etl.model.snapshot import Interval

BUCKET_OFFSETS = 32_768
"""Offsets per bucket: the width of the bitmaps that Spark's `bitmap_construct_agg` makes, 4 KiB."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows found whose offsets lie in [number * 32,768, (number + 1) * 32,768)."""

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
    """Note what is expected between `start` and `end`, where the table holds nothing."""
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
