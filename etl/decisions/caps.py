"""How much of each log one run reads, where caps bound it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from etl.decisions.byte_positions.boundaries import NONE_KNOWN, Boundaries, ends_between
from etl.decisions.tasks import cost_of
from etl.model.partitions import BrokerPartition
from etl.settings.sections import Limits

Sizes = Sequence[int] | None
"""How many offsets of a log may be read, ascending; None: any number."""


def share_caps(
    logs: Mapping[BrokerPartition, tuple[int, int]],
    bytes_per_offset: Mapping[BrokerPartition, float],
    limits: Limits,
    turn: int,
    boundaries: Boundaries = NONE_KNOWN,
) -> dict[BrokerPartition, int]:
    """Until which offset each log is read, `logs` being its (position, end).

    Both caps are shared like water: every log gets the same level, what a short log leaves goes to
    the longer ones. What the level cannot give evenly goes one offset at a time. The first log with
    something to read, another one every `turn`, gets one offset however small the cap is, so that
    none starves; only then can a byte cap be passed, by one record that is larger than it. A larger
    cap of records takes no offset from any log; a larger cap of bytes at most the odd one.

    A physical log is read up to a boundary: the last one that its share reaches. The log whose turn
    it is gets all up to its first one, however small the cap is, and no other does, so that a cap
    is passed by one such stretch and not by one of each log.
    """
    order = sorted(logs)
    start = turn % len(order) if order else 0
    order = order[start:] + order[:start]
    wanted = {log: logs[log][1] - logs[log][0] for log in order}
    sizes = {log: _sizes(log, *logs[log], boundaries) for log in order}
    if limits.max_records_per_run is not None:
        wanted = _pour(wanted, sizes, dict.fromkeys(order, 1.0), limits.max_records_per_run)
    if limits.max_bytes_per_run is not None:
        weights = {log: cost_of(log, bytes_per_offset) for log in order}
        wanted = _pour(wanted, sizes, weights, limits.max_bytes_per_run)
    return {log: logs[log][0] + wanted[log] for log in sorted(logs)}


def _sizes(log: BrokerPartition, start: int, end: int, boundaries: Boundaries) -> Sizes:
    ends = ends_between(log, start, end, boundaries)
    return None if ends is None else [one - start for one in ends]


def _pour(
    wanted: Mapping[BrokerPartition, int],
    sizes: Mapping[BrokerPartition, Sizes],
    weights: Mapping[BrokerPartition, float],
    budget: float,
) -> dict[BrokerPartition, int]:
    first = next((log for log, want in wanted.items() if want), None)
    if first is None:
        return dict(wanted)
    # its turn: the least that it can move by before all others, even where that alone is larger
    # than the cap, or it would never move
    least = dict.fromkeys(wanted, 0) | {first: _next(0, sizes[first])}
    left = max(0.0, budget - least[first] * weights[first])
    level = _level([(want - least[log]) * weights[log] for log, want in wanted.items()], left)
    given = {
        log: _at_most(min(want, least[log] + int(level / weights[log])), sizes[log])
        for log, want in wanted.items()
    }
    left -= sum((given[log] - least[log]) * weights[log] for log in given)
    for log in sorted(
        wanted, key=lambda log: log == first
    ):  # stable: the first one comes last, it has its odd one
        room = int(left / weights[log])
        reach = given[log] + (min(1, room) if sizes[log] is None else room)
        more = _at_most(min(wanted[log], reach), sizes[log]) - given[log]
        given[log] += more
        left -= more * weights[log]
    return given


def _next(size: int, sizes: Sizes) -> int:
    """The least size above this one."""
    return size + 1 if sizes is None else sizes[bisect_right(sizes, size)]


def _at_most(size: int, sizes: Sizes) -> int:
    """The largest size up to this one; 0 where there is none."""
    if sizes is None:
        return size
    at = bisect_right(sizes, size)
    return sizes[at - 1] if at else 0


def _level(amounts: Iterable[float], budget: float) -> float:
    """The level at which sum(min(amount, level)) reaches `budget`; the largest amount when all
    fits.
    """
    left, level = float(budget), 0.0
    rising = sorted(amounts)
    for i, amount in enumerate(rising):
        share = left / (len(rising) - i)
        if amount > share:
            return share
        level, left = amount, left - amount
    return level
