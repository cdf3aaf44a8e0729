"""Stored plans that another one replaces: expired ranges, an operator's decision, drivers that do
not know of it, and retention between a plan and its fetch, which the same run follows, and not for
ever.
"""

from __future__ import annotations

import contextlib

import pytest

from etl.errors import ExpiredOffsets, Owned
from etl.model.plans import Loss, LossReason
from etl.report.run_progress import Outcome
from etl.run.ingest import EXPIRIES_MAX, ingest
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    SETTINGS,
    SKIPPING,
    At,
    crash_at,
    expired_plan,
    grow,
    new_report,
    outcomes,
    outside_of,
    reject_unfinished,
    run,
)
from tests.fakes.world import Crash, FakeWorld, When


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


def test_two_drivers_cannot_both_supersede_a_plan() -> None:
    outside = expired_plan()

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("supersede", When.BEFORE):
            run(outside, SKIPPING)

    with pytest.raises(Owned, match="stored or changed plan"):
        run(outside, SKIPPING, at=at)
    reject_unfinished(outside)


# -- retention between a plan and its fetch


def expiring(outside: Outside, *log_starts: int) -> At:
    """Before each of the first fetches retention moves the start of a partition."""
    left = list(log_starts)

    def at(step: str, when: When) -> None:
        if (step, when) == ("fetch", When.BEFORE) and left:
            outside.logs[LOGS[0]].log_start = left.pop(0)

    return at


def test_a_plan_that_retention_overtakes_is_superseded_in_the_same_run() -> None:
    outside = outside_of(5, 3, 4)
    report = run(outside, SKIPPING, expiring(outside, 2))
    assert outcomes(report) == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.RECORDS_LOST,
        Outcome.EXPIRES_SOON,
        Outcome.INGESTED,
    ]
    assert outside.losses == [(1, Loss(LOGS[0], 0, 2, LossReason.EXPIRED))]
    assert len(outside.table or ()) == 1
    reject_unfinished(outside)


def test_retention_that_overtakes_again_and_again_is_followed_as_often_as_that_is_bounded() -> None:
    outside = outside_of(20, 3, 4)
    run(outside, SKIPPING, expiring(outside, *range(1, EXPIRIES_MAX + 1)))
    reject_unfinished(outside)
    assert sum(loss.until_offset - loss.from_offset for _, loss in outside.losses) == EXPIRIES_MAX


def test_retention_faster_than_the_run_stops_it_and_the_next_run_continues() -> None:
    outside = outside_of(20, 3, 4)
    with pytest.raises(ExpiredOffsets):
        run(outside, SKIPPING, expiring(outside, *range(1, EXPIRIES_MAX + 2)))
    assert not outside.rows() and not outside.offsets
    run(outside, SKIPPING)
    reject_unfinished(outside)


def test_under_fail_retention_between_plan_and_fetch_stops_the_run_at_once() -> None:
    outside = outside_of(5, 3, 4)
    world = FakeWorld(outside, SETTINGS, expiring(outside, 2))
    with pytest.raises(ExpiredOffsets):
        ingest(world, SETTINGS, new_report())
    assert world.steps.count("observe") == 1 and outside.table is None
