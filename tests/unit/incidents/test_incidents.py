"""Runs decided again from their reports in `reports`, with the same result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etl.decide.next_step import Action, NextStep, next_step
from etl.errors import EtlError
from etl.model.snapshot import Snapshot
from etl.report import incident as incidents
from etl.report.incident import Incident, Planned, as_text, read_incident, snapshots_as_json
from etl.report.report_json import report_as_json
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.sections import Settings
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    CRASHES,
    OutsideOf,
    crash_at,
    grow,
    of_both_kinds,
    outside_of,
    run,
    settings_for,
)
from tests.fakes.world import Crash, FakeWorld, When

REPORTS = Path(__file__).parent / "reports"
NO_PLAN = Planned("", "unnamed", 0)
PASTED = sorted(path.stem for path in REPORTS.glob("*.json"))


def incident_of(name: str) -> Incident:
    """The text of a report in `reports`."""
    return read_incident(json.loads((REPORTS / f"{name}.json").read_text(encoding="utf-8")))


def decide(snapshot: Snapshot, settings: Settings, now_ms: int, uid: str = "unnamed") -> NextStep:
    """The step of the run that observed this. Raises its error."""
    step = next_step(snapshot, settings, now_ms=now_ms, uid=uid)
    if step.refusal:
        raise step.refusal
    return step


def decided_as_then(incident: Incident) -> list[str]:
    """The decision for each snapshot. Fails if it is another than the run's."""
    found = []
    for snapshot in incident.looks:
        for then in (*incident.plans, NO_PLAN):
            try:
                plan = decide(snapshot, incident.settings, then.created_at_ms, then.uid).plan
            except EtlError as error:
                assert incident.error and (type(error).__name__, error.message) == (
                    incident.error["error"],
                    incident.error["message"],
                )
                found.append(type(error).__name__)
                break
            if plan is None or plan.id in {one.id for one in incident.plans}:
                found.append(f"plan {plan.number}" if plan else "up_to_date")
                break
        else:
            raise AssertionError("the run made another plan")
    return found


@pytest.mark.parametrize("name", PASTED)
def test_a_pasted_report_is_decided_as_its_run_decided(name: str) -> None:
    incident = incident_of(name)
    assert incident.looks
    decided_as_then(incident)


def test_a_plan_that_was_left_is_replayed_word_for_word_and_then_the_run_makes_its_own() -> None:
    incident = incident_of("replayed_plan")
    first, last = incident.looks
    left = decide(first, incident.settings, incident.began_at_ms)
    assert left.action is Action.RESUME and left.plan and left.plan == first.ledger.newest
    then = decide(last, incident.settings, incident.plans[-1].created_at_ms)
    assert then.action is Action.STORE and then.plan and then.plan.origin.previous == left.plan.id
    assert decided_as_then(incident) == ["plan 2", "plan 3"]


def test_a_table_that_was_restored_from_a_copy_is_refused_as_it_was() -> None:
    incident = incident_of("table_restored_from_a_copy")
    assert decided_as_then(incident) == ["LedgersDisagree"]


def test_a_range_that_expired_meanwhile_is_let_go_by_the_plan_that_takes_the_number() -> None:
    incident = incident_of("expired_range")
    decided = decide(incident.looks[0], incident.settings, incident.plans[0].created_at_ms)
    assert decided.action is Action.SUPERSEDE and decided.plan
    [lost] = decided.plan.losses.lost
    assert (lost.partition.partition, lost.from_offset, lost.until_offset) == (0, 5000, 6200)
    assert decided_as_then(incident) == ["plan 2", "up_to_date"]


def file_of(report: Report) -> Incident:
    return read_incident(json.loads(as_text(report_as_json(report), snapshots_as_json(report))))


def reported(outside: Outside) -> Report:
    settings = settings_for(outside)
    report = Report("run-2", "clicks", "group", "clicks", 1_700_000_000_000, settings=settings)
    try:
        ingest(FakeWorld(outside, settings), settings, report)
    except EtlError as error:
        report.failed(error)
    return report


@of_both_kinds
@pytest.mark.parametrize(("step", "when"), CRASHES)
def test_whatever_a_crash_left_the_report_of_the_next_run_is_decided_as_that_run_did(
    outside_of: OutsideOf, step: str, when: When
) -> None:
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, at=crash_at(step, when))
    grow(outside, 2, 0, 1)
    incident = file_of(reported(outside))
    assert f"plan {len(outside.plans)}" in decided_as_then(incident)


def test_a_run_that_is_refused_keeps_what_it_saw() -> None:
    outside = outside_of(5, 3, 4)
    reported(outside)
    outside.table = None
    incident = file_of(reported(outside))
    assert incident.error and not incident.plans
    assert decided_as_then(incident) == ["LedgersDisagree"]


def test_a_snapshot_larger_than_the_limit_is_left_out_and_the_report_marks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incidents, "SNAPSHOT_MAX_BYTES", 100)
    report = reported(outside_of(5, 3, 4))
    document = json.loads(as_text(report_as_json(report), snapshots_as_json(report)))
    assert document["snapshot"]["first"]["left_out"].endswith("more than 100")
    assert read_incident(document).looks == ()


def test_in_a_report_each_range_is_a_line_for_people() -> None:
    report = reported(outside_of(5, 3, 4))
    lines = as_text(report_as_json(report), snapshots_as_json(report)).splitlines()
    [begins] = [number for number, line in enumerate(lines) if line.endswith('"ranges": [')]
    rows = [json.loads(line.strip().rstrip(",")) for line in lines[begins + 1 : begins + 4]]
    assert report.plan
    ranges = [(r.partition.partition, r.until_offset) for r in report.plan.ranges]
    assert [(row["partition"], row["until"]) for row in rows] == ranges


def test_no_text_that_a_report_holds_is_taken_for_the_end_of_its_line() -> None:
    rows = [
        {"message": "}\0{"},
        {"message": "}, {", "gaps": [[1, 2], [3, 4]]},
        {"message": "a\nb\u2028"},
    ]
    plans = [{"ranges": rows}, {"ranges": []}]
    document = {"rows": rows, "plan": {"kind": "ingest", "none": []}, "plans": plans, "no": {}}
    text = as_text(document, None)
    assert json.loads(text) == document
    assert text.count('{"message"') == 2 * 3
    assert text.count('\n    {"message"') + text.count('\n        {"message"') == 2 * 3


def test_what_a_run_saw_is_not_in_the_document_for_programs() -> None:
    report = reported(outside_of(5, 3, 4))
    document = json.loads(as_text(report_as_json(report), snapshots_as_json(report)))
    assert document.pop("snapshot")["looks"] == 1
    assert document == json.loads(json.dumps(report_as_json(report)))
