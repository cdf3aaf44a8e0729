"""Which stretches of time are not whole in the table, by the ledger and by what the brokers have at
each time. Pure.

That a scheduler had a run for an interval does not say that its records are in the table, and that
it had none does not say that they are not: a later run goes on from the ledger. So the offsets are
compared, not the runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from etl.decisions.coverage import unloaded, without
from etl.decisions.times.time_intervals import TimeInterval
from etl.model.partitions import BrokerPartition, in_order


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets [from, until) of one log that are not in the table: the first such stretch of an
    interval, and how many there are in all.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int
    count: int
    gone: int
    """So many of them lie below the log start: no run will bring them."""


@dataclass(frozen=True, slots=True)
class IncompleteStretch:
    """An interval of time that the table does not hold wholly."""

    interval: TimeInterval
    logs: tuple[MissingOffsets, ...]

    @property
    def missing(self) -> int:
        """Offsets, so records at most."""
        return sum(one.count for one in self.logs)

    @property
    def gone(self) -> int:
        """Those of them that no run will bring."""
        return sum(one.gone for one in self.logs)


def incomplete_stretches(
    intervals: Sequence[TimeInterval],
    bounds: Mapping[BrokerPartition, Sequence[int]],
    loaded: Mapping[BrokerPartition, Collection[tuple[int, int]]],
    starts: Mapping[BrokerPartition, int],
) -> list[IncompleteStretch]:
    """Those of the intervals of which offsets are not in the table, in order.

    bounds   of each log the first offset at or after the start of the first interval, and after it
    one for each interval's end loaded   the offsets [from, until) that the ledger says are in the
    table, may be there, or were let go starts   the first offset that each log still keeps
    """
    found = []
    for at, interval in enumerate(intervals):
        logs = [
            missing_of(
                log,
                (offsets[at], max(offsets[at : at + 2])),
                loaded.get(log, ()),
                starts.get(log, 0),
            )
            for log, offsets in ((log, bounds[log]) for log in in_order(bounds))
        ]
        short = tuple(one for one in logs if one is not None)
        if short:
            found.append(IncompleteStretch(interval, short))
    return found


@dataclass(frozen=True, slots=True)
class Excused:
    """How many offsets of the intervals are not said to be in the table, and no run is to bring."""

    let_go: int
    """Policy or an operator let them go, an operator gave them up, or a pipeline loaded them whose
    place was taken.
    """
    before_start: int
    """They lie before where this pipeline began their logs, or began again with logs that were cut
    or made again.
    """
    read_by_others: int = 0
    """Other members of the group read them."""


def excused(
    bounds: Mapping[BrokerPartition, Sequence[int]],
    loaded: Mapping[BrokerPartition, Collection[tuple[int, int]]],
    let_go: Mapping[BrokerPartition, Collection[tuple[int, int]]],
    begins: Mapping[BrokerPartition, int],
    of_others: Mapping[BrokerPartition, Collection[tuple[int, int]]] = MappingProxyType({}),
) -> Excused:
    """Of the offsets between the first and the last bound of each log those that `loaded` lacks and
    somebody decided about.

    begins     where the pipeline began a log
    of_others  what other members of the group read
    """
    counted = before = theirs = 0
    for log, offsets in bounds.items():
        first, last, there = min(offsets), max(offsets), list(loaded.get(log, ()))
        for start, until in of_others.get(log, ()):
            left = without((max(start, first), min(until, last)), there)
            theirs += sum(end - begin for begin, end in left)
            there += left
        for start, until in let_go.get(log, ()):
            left = without((max(start, first), min(until, last)), there)
            counted += sum(end - begin for begin, end in left)
            there += left
        before += sum(
            end - begin for begin, end in without((first, min(last, begins.get(log, first))), there)
        )
    return Excused(counted, before, theirs)


def missing_of(
    log: BrokerPartition,
    wanted: tuple[int, int],
    loaded: Collection[tuple[int, int]],
    log_start: int,
) -> MissingOffsets | None:
    """What of the wanted offsets [from, until) is not loaded; None: nothing."""
    holes = list[tuple[int, int]]()
    begin, end = wanted
    while (hole := unloaded(loaded, begin, end)) is not None:
        holes.append(hole)
        begin = hole[1]
    if not holes:
        return None
    gone = sum(max(0, min(until, log_start) - start) for start, until in holes)
    return MissingOffsets(log, *holes[0], sum(until - start for start, until in holes), gone)
