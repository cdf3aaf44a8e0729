"""At which offsets may ranges be split, and how are they packed into tasks?

A range may be split at any offset; on Jafka and Kafka 0.7 only at boundaries, at which the broker
reports that a message begins: the loaded-until offset of the last plan, starts of segments, and the
flushed end. Earlier flushed ends are not reported any more.

Lives here: splitting, packing, and the assumed sizes. Not here: settings, which callers pass as
numbers; the caps of a plan (etl/decide/plan.py).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from etl.errors import NeedsDecision
from etl.model.partitions import PartitionOffsets, TopicPartition
from etl.model.plans import OffsetRange

Boundaries = Mapping[TopicPartition, Sequence[int]]
"""Offsets at which partitions of Jafka may be split, ascending. A Jafka partition that is missing
here may not be split at all.
"""
NONE_KNOWN: Boundaries = MappingProxyType({})


def boundaries_of(
    extents: Mapping[TopicPartition, PartitionOffsets],
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the boundaries that brokers reported."""
    boundaries = {}
    for partition, offsets in extents.items():
        if offsets.boundaries is not None:
            boundaries[partition] = offsets.boundaries
    return boundaries


def ends_between(
    partition: TopicPartition, start: int, end: int, known: Boundaries
) -> Sequence[int] | None:
    """Return the possible ends of a range from `start` to `end`, ascending.

    They are `end` and the boundaries before it; None if the range may end at any offset.
    """
    if not partition.is_physical:
        return None
    bounds = known.get(partition, ())
    ends = list(bounds[bisect_right(bounds, start) : bisect_left(bounds, end)])
    if start < end:
        ends.append(end)
    return ends


def end_at_or_above(partition: TopicPartition, offset: int, known: Boundaries) -> int:
    """Return the first possible end of a range at or above `offset`.

    The offset itself if no boundary is above it.
    """
    bounds = known.get(partition, ())
    index = bisect_left(bounds, offset)
    if index == len(bounds):
        return offset
    return bounds[index]


def nearest(cuts: Iterable[int], ends: Sequence[int]) -> list[int]:
    """Return the nearest of `ends`, ascending, to each of `cuts`: each once and in order."""
    found = set()
    for cut in cuts:
        index = bisect_left(ends, cut)
        neighbors = ends[max(0, index - 1) : index + 1]
        found.add(min(neighbors, key=lambda end: abs(end - cut)))
    return sorted(found)


ASSUMED_BYTES_PER_OFFSET = 1024.0
"""Assumed if a broker does not report the size of its logs."""
ASSUMED_PARALLELISM = 8
"""Assumed number of tasks that run at once, if the Spark cluster is unknown."""
LEAST_TASK_BYTES = 4 * 2**20
"""Smallest size of a task: to start one takes about as long as to read so many bytes."""
LEAST_BYTES_PER_OFFSET = 2.0**-20
"""Smallest cost of an offset, also if all records are compacted away: costs are divisors."""
MOST_PIECES = 1_000_000
"""Most pieces of all ranges: 256 TB in tasks of 256 MiB. A damaged broker may report any end."""


def split_ranges(
    wholes: Iterable[OffsetRange],
    bytes_per_offset: Mapping[TopicPartition, float],
    target_bytes: int,
    parallelism: int | None,
    boundaries: Boundaries = NONE_KNOWN,
) -> tuple[OffsetRange, ...]:
    """Return the ranges in pieces of about `target_bytes`, enough of them for `parallelism` tasks.

    `parallelism`: None if only the cluster knows the number of tasks that run at once. A range of
    Jafka is split at `boundaries` only, so its pieces may be larger. Raises NeedsDecision for more
    than `MOST_PIECES`.
    """
    ranges = list(wholes)
    # Ranges are split when they are planned, for the cores that the conf gives: results are per
    # range, a stored plan is executed unchanged, and Spark starts only if there is a plan.
    if parallelism is None:
        parallelism = ASSUMED_PARALLELISM
    costs = [r.size * cost_of(r.partition, bytes_per_offset) for r in ranges]
    even_part = sum(costs) / max(1, parallelism)
    most_bytes = max(even_part, float(LEAST_TASK_BYTES))
    counts = []
    for r, cost in zip(ranges, costs, strict=True):
        count = max(1, round(cost / target_bytes), _pieces_of_at_most(cost, most_bytes))
        counts.append(min(r.size, count))
    return _split_evenly(ranges, counts, boundaries)


def pack_tasks(
    ranges: Sequence[OffsetRange],
    bytes_per_offset: Mapping[TopicPartition, float],
    target_bytes: int,
    parallelism: int,
    first: Collection[TopicPartition] = (),
) -> tuple[tuple[int, ...], ...]:
    """Return indices of `ranges` packed into tasks: one leader per task, about `target_bytes` each.

    If there is less to read, tasks are smaller, so that `parallelism` tasks can run at once. If
    there are still more tasks than run at once, ranges of several leaders that are smaller than
    `LEAST_TASK_BYTES` are read by one task, one leader after the other. Tasks start in their order:
    first those with a range of the partitions in `first`, and those ranges first in them.
    """
    costs = [r.size * cost_of(r.partition, bytes_per_offset) for r in ranges]
    even_part = sum(costs) / max(1, parallelism)
    by_leader: dict[int | None, list[int]] = {}
    for i, r in enumerate(ranges):
        leader_id = None
        if r.leader:
            leader_id = r.leader.broker.id
        by_leader.setdefault(leader_id, []).append(i)
    of_leaders: list[tuple[int, ...]] = []
    for _, indices in sorted(by_leader.items(), key=str):
        of_leaders.extend(_tasks_of_leader(indices, costs, target_bytes, even_part))

    late = [r.partition not in first for r in ranges]
    tasks = []
    for task in _merge_small(of_leaders, costs, parallelism):
        tasks.append(tuple(sorted(task, key=lambda i: (late[i], i))))
    return tuple(sorted(tasks, key=lambda task: late[task[0]]))


def split_by_offsets(
    ranges: Iterable[OffsetRange], most: int, boundaries: Boundaries = NONE_KNOWN
) -> tuple[OffsetRange, ...]:
    """Return the ranges in even pieces of at most `most` offsets.

    Pieces are larger where the partition may not be split. Raises NeedsDecision for more than
    `MOST_PIECES`.
    """
    wholes = list(ranges)
    counts = [-(-r.size // most) for r in wholes]
    return _split_evenly(wholes, counts, boundaries)


def split_tasks(
    tasks: Iterable[Sequence[int]], ranges: Sequence[OffsetRange], most: int
) -> tuple[tuple[int, ...], ...]:
    """Return the same ranges in the same order, in tasks that read at most `most` offsets each.

    A larger range is a task of its own.
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


def _split_evenly(
    wholes: Sequence[OffsetRange], counts: Sequence[int], boundaries: Boundaries
) -> tuple[OffsetRange, ...]:
    """Return each range in as many even pieces as `counts` says."""
    if sum(counts) > len(wholes) + MOST_PIECES:
        count, largest = max(zip(counts, wholes, strict=True), key=lambda pair: pair[0])
        raise NeedsDecision(
            f"{largest.size:,} {largest.partition.unit}s would be read in {count:,} ranges, and "
            f"all partitions together can have {MOST_PIECES:,}",
            **largest.partition.place,
            offset=largest.from_offset,
            action=f"Check whether the log ends at {largest.until_offset}, as the broker reports. "
            "If so, read less at once: limits.max_bytes_per_plan, in the data source endingOffsets",
        )
    pieces: list[OffsetRange] = []
    for whole, count in zip(wholes, counts, strict=True):
        if count == 1:
            pieces.append(whole)
        else:
            pieces.extend(_even_pieces(whole, count, boundaries))
    return tuple(pieces)


def _even_pieces(whole: OffsetRange, pieces: int, boundaries: Boundaries) -> Iterator[OffsetRange]:
    start = whole.from_offset
    size = whole.size
    cuts: list[int] = []
    if size:
        cuts = [start + size * i // pieces for i in range(pieces + 1)]
    ends = ends_between(whole.partition, start, whole.until_offset, boundaries)
    if ends:
        cuts = [start, *nearest(cuts[1:], ends)]
    for piece_from, piece_until in zip(cuts, cuts[1:]):
        yield replace(whole, from_offset=piece_from, until_offset=piece_until)


def _pieces_of_at_most(cost: float, most: float) -> int:
    """Return the number of pieces such that none is larger than `most`, except for rounding."""
    if not most:
        return 1
    return math.ceil(cost / most - 1e-9)


def _tasks_of_leader(
    indices: Sequence[int], costs: Sequence[float], target: float, most: float
) -> list[tuple[int, ...]]:
    """Return even tasks of the ranges of one leader."""
    cost = _cost(indices, costs)
    count = max(1, round(cost / target), _pieces_of_at_most(cost, most))
    parts = [(i,) for i in indices]
    return _pack_evenly(parts, costs, min(len(indices), count))


def _merge_small(
    tasks: Sequence[tuple[int, ...]], costs: Sequence[float], parallelism: int
) -> list[tuple[int, ...]]:
    """Return the tasks, with tasks below `LEAST_TASK_BYTES` merged, also of several leaders.

    Each task costs a start by Spark and a file of the table. As many remain as can run at once.
    """
    small = []
    large = []
    small_cost = 0.0
    for task in tasks:
        cost = _cost(task, costs)
        if cost < LEAST_TASK_BYTES:
            small.append(task)
            small_cost += cost
        else:
            large.append(task)
    least = math.ceil(small_cost / LEAST_TASK_BYTES)
    count = max(1, least, parallelism - len(large))
    if count >= len(small):
        return list(tasks)
    return [*large, *_pack_evenly(small, costs, count)]


def _pack_evenly(
    parts: Iterable[tuple[int, ...]], costs: Sequence[float], count: int
) -> list[tuple[int, ...]]:
    """Return `count` tasks of these parts: the most expensive first, each into the task with the
    least cost so far. The tasks are about even, in n log n.
    """
    tasks: list[tuple[float, int, list[int]]] = [(0.0, n, []) for n in range(count)]
    for part in sorted(parts, key=lambda part: (-_cost(part, costs), part)):
        cost, n, members = tasks[0]
        members.extend(part)
        heapq.heapreplace(tasks, (cost + _cost(part, costs), n, members))
    in_order = sorted(tasks, key=lambda task: task[1])
    return [tuple(sorted(members)) for _, _, members in in_order]


def _cost(task: Iterable[int], costs: Sequence[float]) -> float:
    return sum(costs[i] for i in task)


def bytes_of(
    ranges: Iterable[OffsetRange], bytes_per_offset: Mapping[TopicPartition, float]
) -> float:
    """Return the bytes to read, by the sizes that brokers report of their logs."""
    return sum(r.size * cost_of(r.partition, bytes_per_offset) for r in ranges)


def cost_of(partition: TopicPartition, bytes_per_offset: Mapping[TopicPartition, float]) -> float:
    """Return the average bytes per offset; on Jafka an offset is a byte."""
    if partition.is_physical:
        return 1.0
    return max(bytes_per_offset.get(partition, ASSUMED_BYTES_PER_OFFSET), LEAST_BYTES_PER_OFFSET)


T = TypeVar("T")


def in_parts(wanted: Iterable[T], cost: Callable[[T], int], at_most: int) -> Iterator[list[T]]:
    """Yield parts of at most `at_most` bytes; an item that is larger is a part of its own.

    `cost` returns the bytes of an item.
    """
    part: list[T] = []
    part_bytes = 0
    for item in wanted:
        item_bytes = cost(item)
        if part and part_bytes + item_bytes > at_most:
            yield part
            part = []
            part_bytes = 0
        part.append(item)
        part_bytes += item_bytes
    if part:
        yield part
