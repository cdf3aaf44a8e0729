"""Decides again what a run decided, from its report and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from etl.decisions.ownership import leave_to_owners, refuse_owned_ranges
from etl.decisions.plan import plan_next
from etl.decisions.reconcile import where_we_stand
from etl.decisions.refusals import refuse_what_cannot_run
from etl.decisions.replacement import plan_instead
from etl.decisions.replay import replay_or_supersede
from etl.model.logs import BrokerPartition
from etl.model.plans import NOTHING_COMMITTED, Committed, Plan
from etl.model.snapshot import PipelineState, RebuildFromTable, Replay, Snapshot, Supersede, UpToDate
from etl.protocol.zookeeper.plan_documents import with_id
from etl.report.incident import Incident, read_incident
from etl.settings.sections import Settings

REPORTS = Path(__file__).parent / "reports"


def incident_of(name: str) -> Incident:
    """What a report in `reports` tells."""
    return read_incident(json.loads((REPORTS / f"{name}.json").read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class Decided:
    """What a run does that sees this: where it finds the pipeline, and the plan that it executes."""

    state: PipelineState
    plan: Plan | None


def decide(snapshot: Snapshot, settings: Settings, now_ms: int, uid: str = "unnamed") -> Decided:
    """The decisions of one look, by the functions that a run calls. `uid` is that of a first plan."""
    refuse_what_cannot_run(snapshot)
    snapshot = leave_to_owners(snapshot, settings)
    state = where_we_stand(snapshot, settings)
    if isinstance(state, RebuildFromTable):
        state = state.state
    if isinstance(state, (Replay, Supersede)):
        refuse_owned_ranges(state.plan, snapshot)
    if isinstance(state, Replay):
        state = replay_or_supersede(state, snapshot, settings)
    if isinstance(state, Replay):
        return Decided(state, state.plan)
    if isinstance(state, Supersede):
        return Decided(state, with_id(plan_instead(state, snapshot, settings, now_ms=now_ms)))
    if isinstance(state, UpToDate):
        snapshot = replace(snapshot, committed={**snapshot.committed, **_moved(snapshot, state)})
    plan = plan_next(snapshot, state, settings, uid=snapshot.ledger.uid or uid, now_ms=now_ms)
    return Decided(state, plan and with_id(plan))


def _moved(snapshot: Snapshot, state: UpToDate) -> dict[BrokerPartition, Committed]:
    """The offsets that an earlier run had left and that a run moves before it plans."""
    versions = {log: snapshot.committed.get(log, NOTHING_COMMITTED).version for log in state.uncommitted}
    return {log: Committed(state.last.positions[log], 0 if version is None else version + 1) for log, version in versions.items()}
