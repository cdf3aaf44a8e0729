"""`etl offsets show`: committed offset, position and lag of each partition."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from etl.decide.lag import Reached, lag_of, reached
from etl.decide.reconcile import compare, naming_table, where_we_stand
from etl.decide.set_offsets import paused_logs
from etl.errors import LedgersDisagree, NeedsDecision, OffsetMoved
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition
from etl.model.snapshot import Snapshot
from etl.report.describe import logs_of, told_extent
from etl.report.lag import told_pause
from etl.run.services import ALONE
from etl.run.shell import open_world
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of each partition, and why nobody can say how far the table is."""

    rows: list[dict[str, Any]]
    refusal: NeedsDecision | None = None
    """What a run would stop at: where the ledgers disagree no row has a position or a lag, where
    logs are others, those have no lag.
    """


def offsets(settings: Settings) -> Offsets:
    """Committed offset, position and lag of each partition."""
    with open_world(settings, ALONE) as world:
        return offsets_of(world.observe(), settings)


def offsets_of(snapshot: Snapshot, settings: Settings) -> Offsets:
    """The same of what was observed."""
    so_far, refusal = how_far(snapshot, settings)
    paused = paused_logs(logs_of(snapshot), snapshot.pauses)
    rows = [
        {
            **log.place,
            **told_extent(snapshot, log),
            **_boundaries(snapshot, log),
            "committed": snapshot.committed.get(log, NOTHING_COMMITTED).offset,
            "position": so_far.positions.get(log) if so_far else None,
            "lag": lag_of(log, snapshot, so_far, settings) if so_far else None,
            "paused": told_pause(paused.get(log)),
        }
        for log in sorted(logs_of(snapshot))
    ]
    return Offsets(rows, refusal)


def how_far(snapshot: Snapshot, settings: Settings) -> tuple[Reached | None, NeedsDecision | None]:
    """What the table holds, None where the ledgers disagree; and what a run would stop at for what
    is not known of it.
    """
    try:
        with naming_table(settings):
            so_far = reached(
                compare(snapshot.ledger, snapshot.table, settings.table.place), snapshot
            )
    except LedgersDisagree as error:
        return None, error
    with contextlib.suppress(
        LedgersDisagree, OffsetMoved
    ):  # then a run begins no plan, and what is in the table is known all the same
        so_far = reached(where_we_stand(snapshot, settings), snapshot)
    return so_far, so_far.refusal


def _boundaries(snapshot: Snapshot, log: BrokerPartition) -> dict[str, list[int]]:
    """Of a log that may not be cut anywhere, where it may: where segments begin, and the readable
    end.
    """
    extent = snapshot.extents.get(log)
    return (
        {}
        if extent is None or extent.boundaries is None
        else {"boundaries": list(extent.boundaries)}
    )
