"""Offsets that are missing from inside a log: the run stops, or records them once."""

from __future__ import annotations

import pytest

from etl.errors import MissingOffsets
from etl.model.partitions import parse_intervals
from etl.model.plans import Loss, LossReason, PlanKind
from etl.report.run_progress import Outcome
from etl.run.ingest import ingest
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    crash_at,
    new_report,
    outcomes,
    outside_of,
    reject_broken,
    reject_unfinished,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

LOSSES = settings_of(on_data_loss="skip")
LOST_STEPS = [
    "observe",
    "store plan",
    "claim: parents",
    "claim: parents",
    "claim",
    "fetch",
    "open table",
    "supersede: parents",
    "supersede",
    "fetch",
    "open table",
    "append",
    "record losses",
    "record",
    "commit from 0: parents",
    "commit from 0: parents",
    "commit from 0",
    "commit from 2",
    "tidy",
    "release",
]
"""Every change of a first run that finds offsets missing from a log, and lets them go."""


def outside_with_a_hole() -> Outside:
    outside = outside_of(5, 3, 4)
    outside.logs[LOGS[0]].lost = {1, 3}
    return outside


def test_offsets_missing_from_inside_a_log_stop_the_run_before_anything_is_written() -> None:
    outside = outside_with_a_hole()
    with pytest.raises(MissingOffsets) as raised:
        run(outside)
    assert parse_intervals(raised.value.where["missing"]) == ((LOGS[0], 1, 2), (LOGS[0], 3, 4))
    assert not outside.rows() and not outside.losses and not outside.offsets


def test_offsets_missing_from_inside_a_log_are_let_go_by_a_plan_that_names_them() -> None:
    outside, report = outside_with_a_hole(), new_report()
    world = FakeWorld(outside, LOSSES)
    ingest(world, LOSSES, report)
    assert world.steps == LOST_STEPS
    reject_unfinished(outside)
    assert outside.losses == [
        (1, Loss(LOGS[0], 1, 2, LossReason.MISSING)),
        (1, Loss(LOGS[0], 3, 4, LossReason.MISSING)),
    ]
    assert outcomes(report) == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.RECORDS_LOST,
        Outcome.RECORDS_LOST,
        Outcome.INGESTED,
    ]
    assert len(report.plans) == 1


def test_a_plan_that_stopped_at_missing_offsets_is_finished_under_another_policy() -> None:
    outside = outside_with_a_hole()
    with pytest.raises(MissingOffsets):
        run(outside)
    run(outside, LOSSES)
    reject_unfinished(outside)


def test_a_log_of_which_nothing_is_left_is_passed_by_a_plan_without_ranges() -> None:
    outside = outside_of(2)
    outside.logs[LOGS[0]].lost = {0, 1}
    report = run(outside, LOSSES)
    assert report.plan is not None and report.plan.kind is PlanKind.START
    reject_unfinished(outside)


@pytest.mark.parametrize("step", sorted(set(LOST_STEPS)))
@pytest.mark.parametrize("when", When)
def test_after_a_crash_missing_offsets_of_a_log_are_recorded_once(step: str, when: When) -> None:
    outside = outside_with_a_hole()
    with pytest.raises(Crash):
        run(outside, LOSSES, at=crash_at(step, when))
    reject_broken(outside)
    run(outside, LOSSES)
    reject_unfinished(outside)
    assert len(outside.losses) == 2


@pytest.mark.parametrize("step", ["record losses", "store uid", "adopt 1"])
@pytest.mark.parametrize("when", When)
def test_what_a_plan_let_go_is_written_down_once_where_the_ledger_is_rebuilt_before_it_was(
    step: str, when: When
) -> None:
    outside = outside_with_a_hole()
    with pytest.raises(Crash):
        run(outside, LOSSES, at=crash_at("record losses", When.BEFORE))
    outside.uid, outside.plans = None, {}
    with pytest.raises(Crash):
        run(outside, LOSSES, at=crash_at(step, when))
    assert len(outside.losses) == (0 if (step, when) == ("record losses", When.BEFORE) else 2), (
        "losses first, then the ledger"
    )
    run(outside, LOSSES)
    reject_unfinished(outside)
    assert len(outside.losses) == 2
