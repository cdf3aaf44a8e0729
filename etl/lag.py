"""How much of each log could be read and is not in the table. Pure functions of values.

Lag is the readable end minus the position, in offsets: an upper bound of the records. The position is where the next plan begins, so what
a stored plan holds still lags until the plan is in the table; a log that was never read has the position that it will start at. Below the
log start nothing can be read any more, so nothing there lags. Of a log that nobody leads the end is not known, and no lag either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etl.model import Adopt, BrokerPartition, FirstRun, Onward, Plan, Snapshot, Standing
from etl.settings import Settings
from etl.starts import start_of, starts_of


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a pipeline is: its newest plan, None before the first, and the position of each log that was ever read."""

    last: Plan | None = None
    positions: Mapping[BrokerPartition, int] = field(default_factory=dict)


def reached(standing: Standing) -> Reached:
    """What the table holds, wherever the pipeline stands."""
    if isinstance(standing, FirstRun):
        return Reached()
    if isinstance(standing, Adopt):
        return reached(standing.standing)
    if isinstance(standing, Onward):
        return Reached(standing.last, standing.positions)
    return Reached(standing.plan, starts_of(standing.plan))


def lag_of(log: BrokerPartition, snapshot: Snapshot, so_far: Reached, settings: Settings) -> int | None:
    """Offsets of one log that could be read and are not in the table; None where its end or its start is not known."""
    extent = snapshot.extents.get(log)
    if extent is None:
        return None
    position = so_far.positions.get(log)
    if position is None:
        position = start_of(log, snapshot, so_far.last, settings)
    # a position above the end is an error of its own
    return None if position is None else max(0, extent.end_offset - max(extent.log_start_offset, position))


def lag_in_all(snapshot: Snapshot, so_far: Reached, settings: Settings) -> int:
    """The sum over all logs of which it is known."""
    return sum(lag_of(log, snapshot, so_far, settings) or 0 for log in snapshot.extents)
