"""Where a log may be cut: at any offset, or, where offsets are byte positions, only where its
broker says that an entry begins.

The offsets of a physical log (0.7 family) are byte positions, most of them inside an entry, and
only whoever reads knows which are not. So its ranges begin and end at the position that a plan
left, at the segments' starts and at the flushed end. Pure functions of values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from etl.model.partitions import BrokerPartition, PartitionOffsets

Boundaries = Mapping[BrokerPartition, Sequence[int]]
"""Of logs that may not be cut anywhere, where they may, ascending. A physical log that is not in it
may not be cut at all.
"""
NONE_KNOWN: Boundaries = MappingProxyType({})


def boundaries_of(
    extents: Mapping[BrokerPartition, PartitionOffsets],
) -> dict[BrokerPartition, tuple[int, ...]]:
    """The boundaries that brokers named."""
    return {
        log: extent.boundaries for log, extent in extents.items() if extent.boundaries is not None
    }


def ends_between(
    log: BrokerPartition, start: int, end: int, known: Boundaries
) -> Sequence[int] | None:
    """Where a range from `start` to `end` may end, ascending: `end` and the boundaries before it;
    None where it may end anywhere.
    """
    if not log.is_physical:
        return None
    bounds = known.get(log, ())
    return [
        *bounds[bisect_right(bounds, start) : bisect_left(bounds, end)],
        *([end] if start < end else ()),
    ]


def end_at_or_above(log: BrokerPartition, offset: int, known: Boundaries) -> int:
    """The first offset at or above this one where a range may end; the offset itself where no
    boundary lies above it.
    """
    bounds = known.get(log, ())
    at = bisect_left(bounds, offset)
    return bounds[at] if at < len(bounds) else offset


def nearest(cuts: Iterable[int], ends: Sequence[int]) -> list[int]:
    """Of `ends`, ascending, the nearest to each of these cuts, each once and in order."""
    found = set()
    for cut in cuts:
        at = bisect_left(ends, cut)
        found.add(min(ends[max(0, at - 1) : at + 1], key=lambda end: abs(end - cut)))
    return sorted(found)
