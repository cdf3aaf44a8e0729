"""How much of each log one run reads, where caps bound it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from etl.decisions.tasks import cost_of
from etl.model.logs import BrokerPartition
from etl.settings.sections import Limits


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
        weights = {log: cost_of(log, bytes_per_offset) for log in order}
        wanted = _pour(wanted, weights, limits.max_bytes_per_run)
    return {log: logs[log][0] + wanted[log] for log in sorted(logs)}


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
