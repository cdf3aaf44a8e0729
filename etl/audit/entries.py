"""Whether a table holds what the ledger says of physical logs (0.7 family), whose offsets are byte
positions.

A row is known by the position of its entry and by its message's index in that. How many messages a
range holds byte positions do not tell: its reader's own count does, the receipt. So what is proven
of a log is this: each range has as many messages as its receipt says, none of them twice; the
messages of an entry are 0, 1, 2 and so on without a hole; and no entry begins outside of all
ranges. Where nobody counted but the table itself, after a crash, a message that is missing at the
end of an entry, or with its whole entry, is not seen.

Owns that comparison. The rows come counted (`edges.delta.scan_entries` makes Spark read them), in
stretches between the edges of what the ledger knows. Nothing here does I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from etl.audit.findings import SHOWN, AuditedLog, Expected, LogFindings
from etl.audit.pieces import Piece, pieces_of, rows_of, short_of, unequal_of, unproven_of


@dataclass(frozen=True, slots=True)
class Stretch:
    """The rows found of one log whose entries begin between two neighbours of its `edges_of`."""

    number: int
    """How many of the edges lie at or below the entries: 0 is before the first of them."""
    rows: int
    messages: int
    """The same without doubles."""
    first: int
    """The first entry."""
    holes: int = 0
    """Entries whose messages are not 0, 1, 2 and so on."""
    first_hole: int | None = None
    first_double: int | None = None
    """The first entry of such, and the first with a message that is there more than once."""


def edges_of(audited: AuditedLog, expected: Expected) -> tuple[int, ...]:
    """Where what the ledger knows of a log begins and ends, ascending: entries between two
    neighbours are of the same piece, or of none.

    Raises LedgersDisagree when the ledger contradicts itself.
    """
    pieces = pieces_of(audited.log, expected.coverage, expected.ranges)
    both = (
        (one.from_offset, one.until_offset) for some in (pieces, expected.given_up) for one in some
    )
    return tuple(sorted({edge for pair in both for edge in pair}))


def audit_entries(
    expected: Mapping[AuditedLog, Expected],
    found: Iterable[tuple[AuditedLog, Stretch]],
) -> Iterator[LogFindings]:
    """Compare log by log. `found` holds each log's stretches together and in ascending order; the
    logs may come in any order.

    Logs that are expected and not found come last. Raises LedgersDisagree when the ledger
    contradicts itself.
    """
    unseen = dict(expected)
    for audited, pairs in groupby(found, key=lambda pair: pair[0]):
        yield audit_log_of_entries(
            audited, unseen.pop(audited, Expected()), [stretch for _, stretch in pairs]
        )
    for audited, rest in sorted(unseen.items(), key=lambda item: item[0]):
        yield audit_log_of_entries(audited, rest, ())


def audit_log_of_entries(
    audited: AuditedLog, expected: Expected, stretches: Sequence[Stretch]
) -> LogFindings:
    """Compare one log."""
    pieces, edges = (
        pieces_of(audited.log, expected.coverage, expected.ranges),
        edges_of(audited, expected),
    )
    starts, of_pieces, beyond = (
        [piece.from_offset for piece in pieces],
        list[tuple[Piece, Stretch]](),
        list[Stretch](),
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
