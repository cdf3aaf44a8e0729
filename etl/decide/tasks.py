"""Where may ranges be cut, and how are they packed into tasks?

A range may be cut at any offset; on Jafka and Kafka 0.7 only where the broker reports an entry: the
position of the last plan, starts of segments, and the flushed end. Imports no settings.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from etl.model.partitions import BrokerPartition, PartitionOffsets
from etl.model.plans import OffsetRange

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


ASSUMED_BYTES_PER_OFFSET = 1024.0
"""Where a broker does not tell the size of its logs."""
ASSUMED_PARALLELISM = 8
"""How many tasks work at once on a cluster that is not asked."""
LEAST_TASK_BYTES = 4 * 2**20
"""Less than that is not worth a task of its own: starting one takes about as long as reading it."""
LEAST_BYTES_PER_OFFSET = 2.0**-20
"""A log whose offsets cost nothing (all compacted away) is cheap, not free: shares are found by
dividing.
"""


def split_ranges(
    wholes: Iterable[OffsetRange],
    bytes_per_offset: Mapping[BrokerPartition, float],
    target_bytes: int,
    parallelism: int | None,
    boundaries: Boundaries = NONE_KNOWN,
) -> tuple[OffsetRange, ...]:
    """Ranges in pieces of about `target_bytes`, and in so many that `parallelism` tasks have
    something to read where there is enough.

    None: only the cluster knows how many work at once. A range of a physical log is cut at
    `boundaries` only, so its pieces may be larger.
    """
    ranges = list(wholes)
    whole = bytes_of(ranges, bytes_per_offset)
    share = max(
        whole / max(1, ASSUMED_PARALLELISM if parallelism is None else parallelism),
        float(LEAST_TASK_BYTES),
    )
    return tuple(
        piece
        for r in ranges
        for piece in split_range(r, bytes_per_offset, target_bytes, share, boundaries)
    )


def split_range(
    whole: OffsetRange,
    bytes_per_offset: Mapping[BrokerPartition, float],
    target_bytes: int,
    share_bytes: float = math.inf,
    boundaries: Boundaries = NONE_KNOWN,
) -> Iterator[OffsetRange]:
    """Pieces of even size, none much larger than `target_bytes` and none larger than `share_bytes`,
    as far as the log may be cut there.

    Nothing for an empty range.
    """
    cost = whole.size * cost_of(whole.log, bytes_per_offset)
    return _even_pieces(
        whole,
        min(whole.size, max(1, round(cost / target_bytes), _at_most(cost, share_bytes))),
        boundaries,
    )


def pack_tasks(
    ranges: Sequence[OffsetRange],
    bytes_per_offset: Mapping[BrokerPartition, float],
    target_bytes: int,
    parallelism: int,
    first: Collection[BrokerPartition] = (),
) -> tuple[tuple[int, ...], ...]:
    """Indices of `ranges` packed into tasks: one leader a task, about `target_bytes` each, and as
    many as can work at once.

    When all is small they are smaller, so that `parallelism` tasks have something to do where there
    are as many ranges; and what several leaders have of less than `LEAST_TASK_BYTES` shares a task,
    one leader after the other, where more tasks than work at once are left. Tasks begin in their
    order: those with a range of the logs in `first` come first, and it comes first in them.
    """
    costs = [r.size * cost_of(r.log, bytes_per_offset) for r in ranges]
    share = sum(costs) / max(1, parallelism)
    by_leader: dict[int | None, list[int]] = {}
    for i, r in enumerate(ranges):
        by_leader.setdefault(r.leader.broker.id if r.leader else None, []).append(i)
    of_leaders = [
        task
        for _, indices in sorted(by_leader.items(), key=str)
        for task in _fill(indices, costs, target_bytes, share)
    ]
    tasks = _together(of_leaders, costs, parallelism)
    late = [r.log not in first for r in ranges]
    return tuple(
        sorted(
            (tuple(sorted(task, key=lambda i: (late[i], i))) for task in tasks),
            key=lambda task: late[task[0]],
        )
    )


def split_by_offsets(
    ranges: Iterable[OffsetRange], most: int, boundaries: Boundaries = NONE_KNOWN
) -> tuple[OffsetRange, ...]:
    """Ranges in even pieces of `most` offsets or fewer, as far as their logs may be cut there."""
    return tuple(piece for r in ranges for piece in _even_pieces(r, -(-r.size // most), boundaries))


def split_tasks(
    tasks: Iterable[Sequence[int]], ranges: Sequence[OffsetRange], most: int
) -> tuple[tuple[int, ...], ...]:
    """The same ranges in the same order, in so many tasks that none reads more than `most` offsets,
    as long as no range has more.
    """
    found: list[list[int]] = []
    for task in tasks:
        read = most + 1
        for i in task:
            read += ranges[i].size
            if read > most:
                found.append([])
                read = ranges[i].size
            found[-1].append(i)
    return tuple(tuple(task) for task in found)


def _even_pieces(whole: OffsetRange, pieces: int, boundaries: Boundaries) -> Iterator[OffsetRange]:
    start, size = whole.from_offset, whole.size
    cuts = [start + size * i // pieces for i in range(pieces + 1)] if size else []
    ends = ends_between(whole.log, start, whole.until_offset, boundaries)
    if ends:
        cuts = [start, *nearest(cuts[1:], ends)]
    for piece_from, piece_until in zip(cuts, cuts[1:]):
        yield replace(whole, from_offset=piece_from, until_offset=piece_until)


def _at_most(cost: float, share: float) -> int:
    """How many pieces none of which is larger than `share`, but for what arithmetic rounds."""
    return math.ceil(cost / share - 1e-9) if share else 1


def _fill(
    indices: Sequence[int], costs: Sequence[float], target: float, share: float
) -> list[tuple[int, ...]]:
    """Even tasks of ranges that one leader has."""
    cost = sum(costs[i] for i in indices)
    return _evenly(
        [(i,) for i in indices],
        costs,
        min(len(indices), max(1, round(cost / target), _at_most(cost, share))),
    )


def _together(
    tasks: Sequence[tuple[int, ...]], costs: Sequence[float], parallelism: int
) -> list[tuple[int, ...]]:
    """Tasks that are not worth one each share some, whoever leads their ranges: each is a start of
    Spark's, and a file of the table.

    As many are left as can work at once.
    """
    small = [task for task in tasks if _cost(task, costs) < LEAST_TASK_BYTES]
    large = [task for task in tasks if _cost(task, costs) >= LEAST_TASK_BYTES]
    least = math.ceil(sum(_cost(task, costs) for task in small) / LEAST_TASK_BYTES)
    count = max(1, least, parallelism - len(large))
    return [*large, *_evenly(small, costs, count)] if count < len(small) else list(tasks)


def _evenly(
    parts: Iterable[tuple[int, ...]], costs: Sequence[float], count: int
) -> list[tuple[int, ...]]:
    """So many tasks of these parts, the dearest first, each into the task that has least so far:
    even tasks, in n log n.
    """
    tasks: list[tuple[float, int, list[int]]] = [(0.0, n, []) for n in range(count)]
    for part in sorted(parts, key=lambda part: (-_cost(part, costs), part)):
        cost, n, members = tasks[0]
        members.extend(part)
        heapq.heapreplace(tasks, (cost + _cost(part, costs), n, members))
    return [tuple(sorted(members)) for _, _, members in sorted(tasks, key=lambda task: task[1])]


def _cost(task: Iterable[int], costs: Sequence[float]) -> float:
    return sum(costs[i] for i in task)


def bytes_of(
    ranges: Iterable[OffsetRange], bytes_per_offset: Mapping[BrokerPartition, float]
) -> float:
    """What reading them comes to, by what the brokers tell of the size of their logs."""
    return sum(r.size * cost_of(r.log, bytes_per_offset) for r in ranges)


def cost_of(log: BrokerPartition, bytes_per_offset: Mapping[BrokerPartition, float]) -> float:
    """Bytes of one offset on average; those of a physical log are bytes."""
    if log.is_physical:
        return 1.0
    return max(bytes_per_offset.get(log, ASSUMED_BYTES_PER_OFFSET), LEAST_BYTES_PER_OFFSET)


T = TypeVar("T")


def in_parts(wanted: Iterable[T], cost: Callable[[T], int], at_most: int) -> Iterator[list[T]]:
    """Cut what is wanted into parts; `cost` gives the bytes of one, of which a part has `at_most`,
    or it is one alone.
    """
    some: list[T] = []
    size = 0
    for one in wanted:
        taken = cost(one)
        if some and size + taken > at_most:
            yield some
            some, size = [], 0
        some.append(one)
        size += taken
    if some:
        yield some
