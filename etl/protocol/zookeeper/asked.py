"""What a run was asked for, as plans and the coverage keep it: bounds and run keys to plain lists,
and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from etl.model.plans import NO_BOUNDS, Bound, Bounds, KeptKey


def render_bounds(bounds: Bounds) -> list[Any]:
    """Both ends, and in how many logs no record was as late as the second."""
    return [
        *(
            bound and [bound.said, bound.at_ms, bound.back]
            for bound in (bounds.start, bounds.until)
        ),
        bounds.open_logs,
    ]


def parse_bounds(found: Sequence[Any] | None) -> Bounds:
    """The bounds that `render_bounds` wrote; none where a document has none."""
    if not found:
        return NO_BOUNDS
    start, until, open_logs = found
    return Bounds(Bound(*start) if start else None, Bound(*until) if until else None, open_logs)


def render_keys(keys: Iterable[KeptKey]) -> list[list[Any]]:
    """Run keys that no stored plan has any more."""
    return [[one.key, one.number, one.said, one.is_empty] for one in keys]


def parse_keys(found: Iterable[Sequence[Any]]) -> tuple[KeptKey, ...]:
    """The keys that `render_keys` wrote."""
    return tuple(KeptKey(*one) for one in found)
