"""How much of each log could be read and is not in the table. Pure functions of values.

Lag is the readable end minus the position, in offsets: an upper bound of the records. The position
is where the next plan begins, so what a stored plan holds still lags until the plan is in the
table; a log that was never read has the position that it will start at. Below the log start nothing
can be read any more, so nothing there lags. Of a log that nobody leads the end is not known, and no
lag either; nor of one that was cut or made again, whose offsets are no longer those that we know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etl.decisions.identity.log_identity import other_logs, refuse_other_logs
from etl.decisions.start import start_of, starts_of
from etl.errors import NeedsDecision
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan
from etl.model.snapshot import FirstRun, PipelineState, RebuildFromTable, Replay, Snapshot, UpToDate
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a pipeline is: its newest plan, None before the first, and the position of each log
    that was ever read.
    """

    last: Plan | None = None
    positions: Mapping[BrokerPartition, int] = field(default_factory=dict)
    others: frozenset[BrokerPartition] = frozenset()
    """Logs that are no longer those whose offsets it knows."""
    refusal: NeedsDecision | None = None
    """What a run says of them."""


def reached(state: PipelineState, snapshot: Snapshot) -> Reached:
    """What the table holds, wherever the pipeline stands."""
    if isinstance(state, FirstRun):
        return Reached()
    if isinstance(state, RebuildFromTable):
        return reached(state.state, snapshot)
    if isinstance(state, UpToDate):
        known, last = state.positions, state.last
        return _reached(
            last,
            known,
            {
                log: min(position, known.get(log, position))
                for log, position in last.positions.items()
            },
            snapshot,
        )
    plan, starts = state.plan, starts_of(state.plan)
    return _reached(plan, starts, plan.positions if isinstance(state, Replay) else starts, snapshot)


def _reached(
    plan: Plan,
    positions: Mapping[BrokerPartition, int],
    holds: Mapping[BrokerPartition, int],
    snapshot: Snapshot,
) -> Reached:
    """`holds`: up to where the logs must still be those that the plan knew, as `plan` asks it."""
    try:
        refuse_other_logs(plan, snapshot, holds)
    except NeedsDecision as refusal:
        return Reached(plan, positions, other_logs(plan, snapshot, holds), refusal)
    return Reached(plan, positions)


def lag_of(
    log: BrokerPartition, snapshot: Snapshot, so_far: Reached, settings: Settings
) -> int | None:
    """Offsets of one log that could be read and are not in the table; None where its end or start
    is not known, or it is another log.
    """
    oldest = oldest_unread(log, snapshot, so_far, settings)
    # a position above the end is an error of its own
    return None if oldest is None else max(0, snapshot.extents[log].end_offset - oldest)


def oldest_unread(
    log: BrokerPartition, snapshot: Snapshot, so_far: Reached, settings: Settings
) -> int | None:
    """Where what lags of one log begins; where its lag is not known, None."""
    extent, position = snapshot.extents.get(log), position_of(log, snapshot, so_far, settings)
    if extent is None or log in so_far.others:
        return None
    return None if position is None else max(extent.log_start_offset, position)


def position_of(
    log: BrokerPartition, snapshot: Snapshot, so_far: Reached, settings: Settings
) -> int | None:
    """Where the next plan begins in one log; None where it was never read, and nobody can say yet
    where it starts.
    """
    position = so_far.positions.get(log)
    if position is None and log in snapshot.extents:
        position = start_of(log, snapshot, so_far.last, settings)
    return position


def lag_in_all(snapshot: Snapshot, so_far: Reached, settings: Settings) -> int:
    """The sum over all logs of which it is known."""
    return sum(lag_of(log, snapshot, so_far, settings) or 0 for log in snapshot.extents)
