"""What `etl plan` says that the next run would do, and that the run then does just that."""

from __future__ import annotations

import pytest

from etl.doors import preview_of
from etl.ingest import ingest
from etl.report import Outcome
from etl.settings import Settings
from tests.fakes.world import Crash, FakeWorld, Outside, When
from tests.unit.test_ingest import (
    LOGS, SETTINGS, SKIPPING, crash_at, expired_plan, grow, new_report, outcomes, outside_of, run, settings_of,
)


def says(outside: Outside, settings: Settings = SETTINGS) -> str:
    return preview_of(FakeWorld(outside, settings).observe(), settings).says


def is_what_a_run_reads(outside: Outside, settings: Settings = SETTINGS) -> bool:
    foretold = [(r["plan"], r["partition"], r["from"], r["until"]) for r in preview_of(
        FakeWorld(outside, settings).observe(), settings).as_json()["ranges"]]
    report = new_report()
    ingest(FakeWorld(outside, settings), settings, report)
    read = [(one.plan.number, r.log.partition, r.from_offset, r.until_offset) for one in report.plans for r in one.plan.ranges]
    assert foretold == read
    return True


def stored_and_grown(settings: Settings = SETTINGS) -> Outside:
    """A plan is stored, its driver died, and the logs have grown since."""
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, settings, at=crash_at("store plan", When.AFTER))
    grow(outside, 2, 0, 1)
    return outside


def test_a_run_that_replays_a_plan_is_said_to_make_the_next_one_too() -> None:
    outside = stored_and_grown()
    assert says(outside) == "the next run replays plan 1, which is stored and not in the table; then it makes plan 2"
    assert is_what_a_run_reads(outside)


def test_a_replay_that_leaves_nothing_is_said_to_find_nothing_new_after_it() -> None:
    outside = stored_and_grown()
    grow(outside, -2, 0, -1)
    assert says(outside) == "the next run replays plan 1, which is stored and not in the table; then it finds nothing new"


def test_a_plan_that_is_superseded_is_said_to_be_followed_by_what_the_caps_left() -> None:
    outside, capped = expired_plan(), settings_of(on_data_loss="skip", limits={"max_records_per_run": 4})
    assert says(outside, capped).endswith("and the log at 2 by now; then it makes plan 2")
    assert is_what_a_run_reads(outside, capped)


def test_what_the_next_run_lets_go_is_said_and_is_what_it_then_lets_go() -> None:
    outside, settings = outside_of(5, 3, 4), SKIPPING
    run(outside, settings)
    grow(outside, 5, 2, 0)
    outside.logs[LOGS[0]].log_start = 7
    preview = preview_of(FakeWorld(outside, settings).observe(), settings)
    assert preview.let_go == ("the next run lets go clicks 0: 2 offsets (5 to 7), expired",)
    losses = [{"plan": 2, "topic": "clicks", "partition": 0, "from": 5, "until": 7, "why": "expired", "log_epoch": 0}]
    assert preview.as_json()["losses"] == losses
    run(outside, settings)
    assert [(number, loss.from_offset, loss.until_offset) for number, loss in outside.losses] == [(2, 5, 7)]


def test_a_plan_of_losses_alone_is_said_to_let_go_and_not_to_keep_starts() -> None:
    outside = outside_of(5, 3, 4)
    run(outside, SKIPPING)
    outside.logs[LOGS[0]].end = outside.logs[LOGS[0]].log_start = 7
    assert says(outside, SKIPPING) == "the next run makes plan 2, which reads nothing and lets go 2 offsets"
    report = run(outside, SKIPPING)
    assert outcomes(report) == [Outcome.RECORDS_LOST, Outcome.LET_GO]
    assert report.outcomes[-1][1] == "plan 2 reads nothing and lets go 2 offsets"


def test_a_run_that_replays_under_caps_is_said_to_take_on_a_whole_new_plan_besides() -> None:
    settings = settings_of(limits={"max_records_per_run": 3})
    outside = stored_and_grown(settings)
    assert sum(r["until"] - r["from"] for r in preview_of(FakeWorld(outside, settings).observe(), settings).as_json()["ranges"]) == 6
    assert is_what_a_run_reads(outside, settings)


def test_what_the_table_knows_better_is_said_to_be_taken_over_first() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    outside.plans.clear()
    outside.applied.clear()
    assert says(outside, SKIPPING) == "the next run first takes over plan 1 from the table, then finds nothing new"
