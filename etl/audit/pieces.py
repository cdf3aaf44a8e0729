"""What the ledger expects of one log, as pieces in which each offset has a row, or so many of them
have; what of it is not there.

No table is asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from etl.audit.findings import AuditedLog, Expected, IncompleteInterval, Unequal
from etl.decide.loaded_intervals import interval_of, is_exact, outside_of, without
from etl.errors import LedgersDisagree
from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange, RangeResult
from etl.model.snapshot import Interval


@dataclass(slots=True)
class Piece:
    """Offsets [from, until) of which either all have a row (`rows` None), or `rows` do, and nobody
    knows which; or it is `open`.
    """

    from_offset: int
    until_offset: int
    rows: int | None
    interval: tuple[int, int]
    """Of the ledger's interval that it is a part of: from, until."""
    is_open: bool = False
    """Its rows were never counted: any of its offsets may have one."""
    found: int = 0
    missing: int = 0


def pieces_of(
    log: BrokerPartition,
    coverage: Sequence[Interval],
    ranges: Iterable[tuple[OffsetRange, RangeResult]],
) -> list[Piece]:
    """The expected offsets, ascending. A range that a crash left both in a plan and in the coverage
    counts once.

    Raises LedgersDisagree where two of them hold the same offsets.
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
                "two applied plans hold the same offsets",
                **log.place,
                offset=after.from_offset,
                check="the plans of this pipeline in ZooKeeper, and whether the table has rows of these offsets twice",
            )
    return pieces


def together(one: Expected, other: Expected) -> Expected:
    """What two pipelines put into one log's rows."""
    return Expected(
        (*one.applied, *other.applied),
        (*one.coverage, *other.coverage),
        (*one.given_up, *other.given_up),
        (*one.elsewhere, *other.elsewhere),
        (*one.read_by_others, *other.read_by_others),
    )


def as_loaded_again(expected: Expected, audited: AuditedLog) -> Expected:
    """The same without what went elsewhere and was loaded again. The rest of such a range is missed
    as before, unless nobody knows which of its offsets have a row: then a row of it may be there,
    and nobody misses it.
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
    """The pieces of a range: without its gaps where the receipt names all of them. A physical log's
    is one: only its rows are counted.
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
    """Whether one of these intervals holds the whole range."""
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
    """Intervals that were never counted and are not whole, and those that were counted behind a
    transform and lacked offsets.

    Of a physical log nobody knows what lacks, so all bytes of such intervals count.
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
