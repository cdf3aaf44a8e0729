"""Retention between a plan and its fetch, under `on_data_loss: skip`: the same run puts another
plan in its place, and not for ever.
"""

from __future__ import annotations

import contextlib
import itertools

import pytest

from etl.errors import ExpiredOffsets, OffsetMoved, Owned
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
    crash_at_moment,
    grow,
    new_report,
    outcomes,
    outside_of,
    reject_broken,
    reject_unfinished,
    run,
)
from tests.fakes.world import Crash, FakeWorld, When


def expiring(outside: Outside, *log_starts: int, then: At = lambda step, when: None) -> At:
    """Before each of the first fetches retention moves the start of a partition; `then` is called
    after every change.
    """
    left = list(log_starts)

    def at(step: str, when: When) -> None:
        if (step, when) == ("fetch", When.BEFORE) and left:
            outside.logs[LOGS[0]].log_start = left.pop(0)
        then(step, when)

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


def test_a_plan_that_was_left_and_is_overtaken_again_is_superseded_in_the_run_that_finds_it() -> (
    None
):
    outside = outside_of(9, 3, 4)
    with pytest.raises(Crash):
        run(outside, SKIPPING, crash_at("fetch", When.BEFORE))
    outside.logs[LOGS[0]].log_start = 1
    report = run(outside, SKIPPING, expiring(outside, 2, 3))
    assert outcomes(report)[-1] is Outcome.INGESTED
    reject_unfinished(outside)


def dying_at(moment: int, outside: Outside) -> At:
    """Retention overtakes the plan twice, the driver dies then, and retention continues."""
    dies = crash_at_moment(moment)

    def at(step: str, when: When) -> None:
        try:
            dies(step, when)
        except Crash:
            outside.logs[LOGS[0]].log_start += bool(outside.plans) and not outside.table
            raise

    return expiring(outside, 1, 2, then=at)


def assert_lost_offsets_recorded(outside: Outside) -> None:
    """All records that the partition lost before they were read are reported once, and nothing
    else.
    """
    lost = sorted((loss.from_offset, loss.until_offset) for _, loss in outside.losses)
    assert [offset for start, until in lost for offset in range(start, until)] == list(
        range(outside.logs[LOGS[0]].log_start)
    )


def test_a_crash_at_any_moment_of_an_overtaken_run_loses_and_doubles_nothing() -> None:
    for moment in itertools.count():
        outside = outside_of(9, 3, 4)
        try:
            run(outside, SKIPPING, dying_at(moment, outside))
            break
        except Crash:
            reject_broken(outside)
        grow(outside, 1, 0, 2)
        run(outside, SKIPPING)
        reject_unfinished(outside)
        assert_lost_offsets_recorded(outside)
    assert moment > 30


def test_a_second_driver_at_any_moment_of_an_overtaken_run_loses_and_doubles_nothing() -> None:
    for moment in itertools.count():
        outside, moments = outside_of(9, 3, 4), itertools.count()

        def at(step: str, when: When) -> None:
            if next(moments) == moment:
                with contextlib.suppress(Owned):
                    run(outside, SKIPPING)

        with contextlib.suppress(Owned, OffsetMoved):
            run(outside, SKIPPING, expiring(outside, 1, 2, then=at))
        reject_broken(outside)
        run(outside, SKIPPING)
        reported = {
            offset
            for _, loss in outside.losses
            for offset in range(loss.from_offset, loss.until_offset)
        }
        rows = {offset for partition, offset in outside.rows() if partition == LOGS[0]}
        assert reported | rows == set(range(9)) and not reported & rows
        if next(moments) <= moment:
            break
    assert moment > 30
