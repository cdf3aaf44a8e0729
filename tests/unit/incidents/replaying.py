"""Decides again what a run decided, from its report and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from etl.decide.next_step import NextStep, next_step
from etl.model.snapshot import Snapshot
from etl.report.plan_json import Incident, read_incident
from etl.settings.sections import Settings

REPORTS = Path(__file__).parent / "reports"


def incident_of(name: str) -> Incident:
    """The text of a report in `reports`."""
    return read_incident(json.loads((REPORTS / f"{name}.json").read_text(encoding="utf-8")))


def decide(snapshot: Snapshot, settings: Settings, now_ms: int, uid: str = "unnamed") -> NextStep:
    """The step that the run took which saw this; `uid` is that of a first plan. Raises what stopped
    it.
    """
    step = next_step(snapshot, settings, now_ms=now_ms, uid=uid)
    if step.refusal:
        raise step.refusal
    return step
