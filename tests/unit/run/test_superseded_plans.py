"""Stored plans that another one replaces: expired ranges, an operator's decision, and drivers that
do not know of it.
"""

from __future__ import annotations

import contextlib

import pytest

from etl.decide.plan_replacement import replacement_plan
from etl.errors import DataLoss, Owned
from etl.ledger.plan_document import with_id
from etl.model.plans import Loss, LossReason
from etl.model.snapshot import Supersede
from etl.report.run_progress import Outcome
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    SETTINGS,
    SKIPPING,
    crash_at,
    expired_plan,
    grow,
    outcomes,
    outside_of,
    reject_broken,
    reject_unfinished,
    run,
)
from tests.fakes.world import Crash, FakeWorld, When


def test_a_stored_plan_with_an_expired_range_is_superseded_if_policy_permits_the_gap() -> None:
    outside = expired_plan()
    old = outside.newest_plan()
    grow(outside, 3, 0, 0)
    report = run(outside, SKIPPING)
    assert outcomes(report) == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.RECORDS_LOST,
        Outcome.EXPIRES_SOON,
        Outcome.INGESTED,
    ]
    new = outside.newest_plan()
    assert old is not None and new is not None
    assert (new.number, new.origin.supersedes, new.losses.lost) == (
        1,
        old.id,
        (Loss(LOGS[0], 0, 2, LossReason.EXPIRED),),
    )
    assert new.origin.reason == "clicks 0: its range starts at 0, and the log now at 2"
    reject_unfinished(outside)


def test_a_stored_replacement_is_named_with_the_plan_that_it_replaced() -> None:
    outside = expired_plan()
    old = outside.newest_plan()
    with contextlib.suppress(Crash):
        run(outside, SKIPPING, at=crash_at("fetch", When.BEFORE))
    new = outside.newest_plan()
    assert old is not None and new is not None and new.origin.supersedes == old.id
    assert run(outside, SKIPPING).outcomes[0] == (
        Outcome.PLAN_RESUMED,
        f"Plan 1 ({new.id}), which replaced {old.id}, is stored and not in the table: it is "
        "executed unchanged",
    )
    grow(outside, 3, 0, 0)
    with contextlib.suppress(Crash):
        run(outside, SKIPPING, at=crash_at("fetch", When.BEFORE))
    assert run(outside, SKIPPING).outcomes[0] == (
        Outcome.PLAN_RESUMED,
        "Plan 2 of an earlier run is stored and not in the table: it is executed unchanged",
    )


def test_a_stored_plan_with_an_expired_range_stops_the_run_under_fail_and_stays() -> None:
    outside = expired_plan(SETTINGS)
    stored = dict(outside.plans)
    with pytest.raises(DataLoss, match="2 offsets are gone"):
        run(outside)
    assert outside.plans == stored and outside.table is None


@pytest.mark.parametrize(
    "step",
    ["supersede", "fetch", "append", "record losses", "record", "commit from 0", "commit from 2"],
)
@pytest.mark.parametrize("when", When)
def test_a_crash_while_a_plan_is_superseded_loses_and_doubles_nothing(
    step: str, when: When
) -> None:
    outside = expired_plan()
    with pytest.raises(Crash):
        run(outside, SKIPPING, at=crash_at(step, when))
    reject_broken(outside)
    grow(outside, 1, 2, 3)
    run(outside, SKIPPING)
    reject_unfinished(outside)


def skipped_by_hand(outside: Outside, *skips: Loss) -> None:
    """An operator supersedes the stored plan and leaves offsets out."""
    world = FakeWorld(outside, SKIPPING)
    snapshot = world.observe()
    newest = outside.newest_plan()
    assert newest is not None
    world.supersede(
        with_id(
            replacement_plan(Supersede(newest, "corrupt", skips), snapshot, SKIPPING, now_ms=1)
        ),
        snapshot.ledger,
    )


@pytest.mark.parametrize("step", ["supersede", "append", "record losses", "record"])
@pytest.mark.parametrize("when", When)
def test_offsets_that_an_operator_skipped_stay_out_when_the_plans_start_expires_before_the_next_run(
    step: str, when: When
) -> None:
    outside = outside_of(9, 0, 0)
    with pytest.raises(Crash):
        run(outside, SKIPPING, at=crash_at("store plan", When.AFTER))
    skipped_by_hand(outside, Loss(LOGS[0], 4, 6, LossReason.SKIPPED))
    outside.logs[LOGS[0]].log_start = 5
    with pytest.raises(Crash):
        run(outside, SKIPPING, at=crash_at(step, when))
    run(outside, SKIPPING)
    assert set(outside.rows()) == {(LOGS[0], 6), (LOGS[0], 7), (LOGS[0], 8)}
    assert [loss for _, loss in outside.losses] == [
        Loss(LOGS[0], 4, 6, LossReason.SKIPPED),
        Loss(LOGS[0], 0, 4, LossReason.EXPIRED),
    ]


def test_a_late_append_of_a_superseded_plan_wins_and_the_next_run_restores_it() -> None:
    outside = outside_of(5, 3, 4)

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("open table", When.AFTER):
            # the rows are read by now; then the range expires, and another driver supersedes the
            # plan and dies
            outside.logs[LOGS[0]].log_start = 1
            with contextlib.suppress(Crash):
                run(outside, SKIPPING, at=crash_at("supersede", When.AFTER))
            outside.logs[LOGS[0]].log_start = 0

    run(outside, SKIPPING, at=at)
    report = run(outside, SKIPPING)
    assert outcomes(report)[:1] == [Outcome.LEDGER_RESTORED]
    reject_unfinished(outside)


def test_two_drivers_cannot_both_supersede_a_plan() -> None:
    outside = expired_plan()

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("supersede", When.BEFORE):
            run(outside, SKIPPING)

    with pytest.raises(Owned, match="changed this plan"):
        run(outside, SKIPPING, at=at)
    reject_unfinished(outside)
