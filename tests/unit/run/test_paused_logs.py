"""Paused partitions in runs on the fake cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etl.commands.plans import preview_of
from etl.decide.replay import ReplayRequest
from etl.model.partitions import TopicPartition, parse_named
from etl.model.plans import PlanKind, Request
from etl.model.snapshot import Pause
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.run.replay import replay
from etl.settings.sections import Settings
from tests.builders import pending_starts_of
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    OutsideOf,
    crash_at,
    grow,
    new_report,
    of_both_kinds,
    outcomes,
    outside_of,
    reject_broken,
    reject_unfinished,
    run,
    settings_for,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

AT_MS = 1_699_999_000_000
WHOLE = Pause("clicks", None, "all of it", "kim@host", AT_MS)


def pause(outside: Outside, place: int = 1) -> TopicPartition:
    partition = list(outside.logs)[place]
    outside.pauses = (
        *outside.pauses,
        Pause("clicks", partition, "its records are broken", "kim@host", AT_MS),
    )
    return partition


def rows_of(outside: Outside, partition: TopicPartition) -> int:
    return sum(1 for there, _ in outside.rows() if there == partition)


def paused_in(report: Report) -> list[str]:
    return [value for outcome, value in report.outcomes if outcome is Outcome.PAUSED]


@of_both_kinds
def test_a_paused_log_keeps_its_offset_while_others_are_read_and_continues_there_after_the_resume(
    outside_of: OutsideOf,
) -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    partition = pause(outside)
    before, rows = outside.offsets[partition], rows_of(outside, partition)
    for _ in range(2):
        grow(outside, 2, 2, 2)
        report = run(outside)
        assert (
            report.plan
            and report.plan.loaded_until[partition] == before[0]
            and partition not in {r.partition for r in report.plan.ranges}
        )
        [result] = paused_in(report)
        assert (
            "paused since 2023-11-14T21:56:40.000+00:00 by kim@host: its records are broken; "
            in result
            and "s unread, " in result
        )
    assert outside.offsets[partition] == before and rows_of(outside, partition) == rows
    outside.pauses = ()
    assert not paused_in(run(outside))
    reject_unfinished(outside)


def test_a_stored_plan_over_a_log_paused_since_is_executed_whole_and_reports_it() -> None:
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    partition = pause(outside)
    report = run(outside)
    [replayed] = [value for outcome, value in report.outcomes if outcome is Outcome.PLAN_RESUMED]
    assert replayed.endswith(
        "is executed unchanged; clicks 1 of it paused later; a stored plan is executed as a whole"
    )
    assert rows_of(outside, partition) == 3 and len(paused_in(report)) == 1


@pytest.mark.parametrize(
    ("place", "change", "rows"),
    [
        (1, {"log_start": 2}, [5, 1]),
        (1, {"has_leader": False}, [5, 3]),
        (0, {"log_start": 2}, [3, 3]),
    ],
    ids=["it expired", "it has no leader", "another one expired"],
)
def test_a_superseding_plan_leaves_out_a_log_paused_since_and_loses_nothing_of_it(
    place: int, change: dict[str, Any], rows: list[int]
) -> None:
    outside, settings = outside_of(5, 3, 4), settings_of(on_data_loss="skip", on_no_leader="skip")
    with pytest.raises(Crash):
        run(outside, settings, at=crash_at("store plan", When.AFTER))
    partition = pause(outside)
    vars(outside.logs[LOGS[place]]).update(change)
    assert Outcome.PLAN_SUPERSEDED in outcomes(run(outside, settings))
    assert rows_of(outside, partition) == 0 and all(
        loss.partition != partition for _, loss in outside.losses
    )
    outside.pauses, outside.logs[partition].has_leader = (), True
    run(outside, settings)
    assert [rows_of(outside, one) for one in LOGS[:2]] == rows
    reject_broken(outside)


def test_a_topic_that_is_paused_before_the_first_run_keeps_the_start_that_was_decided_then() -> (
    None
):
    outside, latest = outside_of(5, 3, 4), settings_of(starting_offsets="latest")
    outside.pauses = (WHOLE,)
    report = run(outside, latest)
    assert report.plan and report.plan.kind is PlanKind.START and not report.plan.loaded_until
    assert set(pending_starts_of(report.plan)) == set(LOGS) and not outside.offsets
    for partition in LOGS:
        outside.logs[partition].later = dict.fromkeys(
            range(outside.logs[partition].end, 20), outside.now_ms + 1
        )
    grow(outside, 2, 2, 2)
    outside.pauses = ()
    run(outside, latest)
    assert [rows_of(outside, partition) for partition in LOGS] == [2, 2, 2]


def test_a_replay_that_names_a_paused_log_replaces_its_rows() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    partition = pause(outside)
    settings, report = settings_for(outside), new_report()
    plan = replay(
        FakeWorld(outside, settings),
        settings,
        report,
        ReplayRequest((parse_named("clicks:1"),), 0, 3),
        "seen",
    )
    assert (
        plan.kind is PlanKind.REPLAY
        and {r.partition for r in plan.ranges} == {partition}
        and rows_of(outside, partition) == 3
    )
    reject_broken(outside)


def load(outside: Outside, request: Request, settings: Settings) -> Report:
    report = replace(new_report(), request=request)
    ingest(FakeWorld(outside, settings, request=request), settings, report)
    return report


def test_a_run_key_is_incomplete_during_a_pause_and_then_reads_to_the_frozen_end() -> None:
    outside = outside_of(5, 3, 4)
    settings, key = settings_for(outside), Request("K")
    run(outside)
    partition = pause(outside)
    grow(outside, 1, 2, 1)
    report = load(outside, key, settings)
    assert [value for outcome, value in report.outcomes if outcome is Outcome.NOT_COMPLETE] == [
        "Run key K is not loaded in clicks 1, which could not be read. Run it again with the "
        "key when it can be read"
    ]
    grow(outside, 1, 2, 1)
    assert (
        Outcome.NOT_COMPLETE in outcomes(load(outside, key, settings))
        and rows_of(outside, partition) == 3
    )
    outside.pauses = ()
    assert Outcome.NOT_COMPLETE not in outcomes(load(outside, key, settings))
    assert rows_of(outside, partition) == 5, "two that existed at the key's first run"
    assert outcomes(load(outside, key, settings)) == [Outcome.ALREADY_LOADED]


def test_a_run_key_used_while_a_new_log_was_paused_is_incomplete_until_the_log_is_read() -> None:
    outside = outside_of(5, 3, 4)
    settings, key = settings_for(outside), Request("K")
    partition = pause(outside)
    assert (
        Outcome.NOT_COMPLETE in outcomes(load(outside, key, settings))
        and rows_of(outside, partition) == 0
    )
    outside.pauses = ()
    assert (
        Outcome.NOT_COMPLETE not in outcomes(load(outside, key, settings))
        and rows_of(outside, partition) == 3
    )


def test_pauses_lost_with_the_ledger_are_reported_by_the_run_that_restores_it() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    outside.uid, outside.plans, outside.applied, outside.offsets = None, {}, {}, {}
    [reported] = [
        value for outcome, value in run(outside).outcomes if outcome is Outcome.LEDGER_RESTORED
    ]
    assert reported.endswith(
        "commits up to plan 1. ZooKeeper may have lost pauses of partitions and requests of "
        "backfills. Pause partitions again with `etl topics pause`, and begin backfills again with "
        "`etl backfills run ... --only-unloaded`"
    )


def test_a_preview_lists_paused_logs_and_reads_nothing_of_them() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    partition = pause(outside)
    grow(outside, 2, 2, 2)
    found = preview_of(FakeWorld(outside, settings_for(outside)).observe(), settings_for(outside))
    assert {r.partition for r in found.ranges} == {LOGS[0], LOGS[2]} and partition not in {
        r.partition for r in found.ranges
    }
    assert found.as_json()["paused"] == list(found.paused) and found.paused[0].startswith(
        "clicks 1: paused since"
    )
