"""What the ledger expects of one log once a replay's rows took the place of those of earlier plans.
No table is asked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from etl.audit.findings import Expected
from etl.decide.loaded_intervals import Span, cut_around, interval_of, is_exact, merge, taken_out
from etl.model.plans import OffsetRange, RangeResult

_Pair = tuple[OffsetRange, RangeResult]


def replaced_expected(known: Expected, span: Span, came: Sequence[_Pair]) -> Expected:
    """Expected rows after the replay of `span`, which read `came` in ranges that lie side by side.

    Ranges of which each offset is known are cut around it. Where the span cuts through an interval
    of which the number of rows alone is known, that one and all that came are one interval of which
    the number is known.
    """
    applied, counted, inside = list[_Pair](), list(known.coverage), list[int | None]()
    for r, receipt in known.applied:
        if not span.meets(r.from_offset, r.until_offset):
            applied.append((r, receipt))
        elif span.holds(r.from_offset, r.until_offset):
            inside.append(receipt.rows)
        elif is_exact(r, receipt):
            parts = cut_around(r, receipt, span)
            applied += parts
            inside.append((receipt.rows or 0) - sum(part.rows or 0 for _, part in parts))
        else:
            counted.append(interval_of(r, receipt, span.log_epoch))
    left = taken_out(
        counted, span, known_inside=None if None in inside else sum(rows or 0 for rows in inside)
    )
    if not left.crossing:
        return replace(known, applied=(*applied, *came), coverage=left.outside)
    of_now = merge(interval_of(r, receipt, span.log_epoch) for r, receipt in came)
    return replace(
        known, applied=tuple(applied), coverage=(*left.outside, left.counted_with(of_now, span))
    )
