"""How much of each log one run reads, and how its ranges are cut and packed into tasks. Pure functions of values.

Owns the costs of offsets and what is made of them. Where a log is read from and up to where it could be read is `plan`'s.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from etl.model.plans import BrokerPartition, OffsetRange
from etl.settings.sections import Limits

ASSUMED_BYTES_PER_OFFSET = 1024.0
"""Where a broker does not tell the size of its logs."""
ASSUMED_PARALLELISM = 8
"""How many tasks work at once on a cluster that is not asked."""
LEAST_TASK_BYTES = 4 * 2**20
"""Less than that is not worth a task of its own: starting one takes about as long as reading it."""
LEAST_BYTES_PER_OFFSET = 2.0**-20
"""A log whose offsets cost nothing (all compacted away) is cheap, not free: shares are found by dividing."""


def share_caps(
    logs: Mapping[BrokerPartition, tuple[int, int]], bytes_per_offset: Mapping[BrokerPartition, float], limits: Limits, turn: int,
) -> dict[BrokerPartition, int]:
    """Until which offset each log is read, `logs` being its (position, end).

    Both caps are shared like water: every log gets the same level, what a short log leaves goes to the longer ones.
    What the level cannot give evenly goes one offset at a time. The first log with something to read, another one every
    `turn`, gets one offset however small the cap is, so that none starves; only then can a byte cap be passed, by one record
    that is larger than it. A larger cap of records takes no offset from any log; a larger cap of bytes at most the odd one.
    """
    order = sorted(logs)
    start = turn % len(order) if order else 0
    order = order[start:] + order[:start]
    wanted = {log: logs[log][1] - logs[log][0] for log in order}
    if limits.max_records_per_run is not None:
        wanted = _pour(wanted, dict.fromkeys(order, 1.0), limits.max_records_per_run)
    if limits.max_bytes_per_run is not None:
        weights = {log: _cost(log, bytes_per_offset) for log in order}
        wanted = _pour(wanted, weights, limits.max_bytes_per_run)
    return {log: logs[log][0] + wanted[log] for log in sorted(logs)}


def cut_ranges(
    wholes: Iterable[OffsetRange], bytes_per_offset: Mapping[BrokerPartition, float], target_bytes: int, parallelism: int | None,
) -> tuple[OffsetRange, ...]:
    """Ranges in pieces of about `target_bytes`, and in so many that `parallelism` tasks have something to read where there is enough.

    None: only the cluster knows how many work at once.
    """
    ranges = list(wholes)
    whole = sum(r.size * _cost(r.log, bytes_per_offset) for r in ranges)
    share = max(whole / max(1, ASSUMED_PARALLELISM if parallelism is None else parallelism), float(LEAST_TASK_BYTES))
    return tuple(piece for r in ranges for piece in split_range(r, bytes_per_offset, target_bytes, share))


def split_range(
    whole: OffsetRange, bytes_per_offset: Mapping[BrokerPartition, float], target_bytes: int, share_bytes: float = math.inf,
) -> Iterator[OffsetRange]:
    """Pieces of even size, none much larger than `target_bytes` and none larger than `share_bytes`; nothing for an empty range."""
    cost = whole.size * _cost(whole.log, bytes_per_offset)
    return _even_pieces(whole, min(whole.size, max(1, round(cost / target_bytes), _at_most(cost, share_bytes))))


def pack_tasks(
    ranges: Sequence[OffsetRange], bytes_per_offset: Mapping[BrokerPartition, float], target_bytes: int, parallelism: int,
    first: Collection[BrokerPartition] = (),
) -> tuple[tuple[int, ...], ...]:
    """Indices of `ranges` packed into tasks: one leader a task, about `target_bytes` each, and as many as can work at once.

    When all is small they are smaller, so that `parallelism` tasks have something to do where there are as many ranges. Tasks begin in
    their order: those with a range of the logs in `first` come first, and it comes first in them.
    """
    costs = [r.size * _cost(r.log, bytes_per_offset) for r in ranges]
    share = sum(costs) / max(1, parallelism)
    by_leader: dict[int | None, list[int]] = {}
    for i, r in enumerate(ranges):
        by_leader.setdefault(r.leader.broker.id if r.leader else None, []).append(i)
    tasks = (task for _, indices in sorted(by_leader.items(), key=str) for task in _fill(indices, costs, target_bytes, share))
    late = [r.log not in first for r in ranges]
    return tuple(sorted((tuple(sorted(task, key=lambda i: (late[i], i))) for task in tasks), key=lambda task: late[task[0]]))


def cut_to_offsets(ranges: Iterable[OffsetRange], most: int) -> tuple[OffsetRange, ...]:
    """Ranges in even pieces of `most` offsets or fewer."""
    return tuple(piece for r in ranges for piece in _even_pieces(r, -(-r.size // most)))


def split_tasks(tasks: Iterable[Sequence[int]], ranges: Sequence[OffsetRange], most: int) -> tuple[tuple[int, ...], ...]:
    """The same ranges in the same order, in so many tasks that none reads more than `most` offsets, as long as no range has more."""
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


def _even_pieces(whole: OffsetRange, pieces: int) -> Iterator[OffsetRange]:
    start, size = whole.from_offset, whole.size
    cuts = [start + size * i // pieces for i in range(pieces + 1)] if size else []
    for piece_from, piece_until in zip(cuts, cuts[1:]):
        yield replace(whole, from_offset=piece_from, until_offset=piece_until)


def _at_most(cost: float, share: float) -> int:
    """How many pieces none of which is larger than `share`, but for what arithmetic rounds."""
    return math.ceil(cost / share - 1e-9) if share else 1


def _fill(indices: Sequence[int], costs: Sequence[float], target: float, share: float) -> list[tuple[int, ...]]:
    """The dearest range first, each into the task that has least so far: even tasks, in n log n."""
    cost = sum(costs[i] for i in indices)
    count = min(len(indices), max(1, round(cost / target), _at_most(cost, share)))
    tasks: list[tuple[float, int, list[int]]] = [(0.0, n, []) for n in range(count)]
    for i in sorted(indices, key=lambda i: (-costs[i], i)):
        cost, n, members = tasks[0]
        members.append(i)
        heapq.heapreplace(tasks, (cost + costs[i], n, members))
    return [tuple(sorted(members)) for _, _, members in sorted(tasks, key=lambda task: task[1])]


def _cost(log: BrokerPartition, bytes_per_offset: Mapping[BrokerPartition, float]) -> float:
    return max(bytes_per_offset.get(log, ASSUMED_BYTES_PER_OFFSET), LEAST_BYTES_PER_OFFSET)


def _pour(wanted: Mapping[BrokerPartition, int], weights: Mapping[BrokerPartition, float], budget: float) -> dict[BrokerPartition, int]:
    first = next((log for log, want in wanted.items() if want), None)
    if first is None:
        return dict(wanted)
    # its turn: one offset before all others, even one that alone is larger than the cap, or the log would never move
    left = max(0.0, budget - weights[first])
    rest = {**wanted, first: wanted[first] - 1}
    level = _level([rest[log] * weights[log] for log in rest], left)
    given = {log: min(want, int(level / weights[log])) for log, want in rest.items()}
    left -= sum(given[log] * weights[log] for log in given)
    for log in sorted(rest, key=lambda log: log == first):  # stable: the first one comes last, it has its odd one
        if given[log] < rest[log] and weights[log] <= left:
            given[log] += 1
            left -= weights[log]
    given[first] += 1
    return given


def _level(amounts: Iterable[float], budget: float) -> float:
    """The level at which sum(min(amount, level)) reaches `budget`; the largest amount when all fits."""
    left, level = float(budget), 0.0
    rising = sorted(amounts)
    for i, amount in enumerate(rising):
        share = left / (len(rising) - i)
        if amount > share:
            return share
        level, left = amount, left - amount
    return level
