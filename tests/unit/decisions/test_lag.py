"""The lag, readable offsets that are not in the table: every command shows the same number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from etl.commands.lag import lags_of, offsets_of
from etl.commands.plans import preview_of
from etl.decide.lag import Progress, lag_of
from etl.errors import EtlError, NeedsDecision
from etl.model.partitions import TopicPartition
from etl.report.report_json import report_as_json
from etl.run.ingest import ingest
from etl.settings.choices import OnOwned
from etl.settings.sections import Settings
from tests.builders import with_keys
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import Outside
from tests.fakes.planning import A, B, onward, snapshot_of
from tests.fakes.planning import settings_of as plan_settings
from tests.fakes.stories import (
    LOGS,
    SETTINGS,
    crash_at,
    grow,
    new_report,
    outside_of,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

AT_NOON = "2026-01-31T12:00:00+00:00"
NOON_MS = 1_769_860_800_000
OTHER = TopicPartition("clicks-2", 7)
Situation = tuple[Outside, Settings, dict[int, int | None]]
"""The partitions, and the lag of each."""


def of_a_first_run(start: Any, *lags: int) -> Situation:
    outside = outside_of(5, 3, 4)
    outside.logs[LOGS[0]].log_start = 1
    outside.logs[LOGS[2]].later = {3: NOON_MS}
    return outside, settings_of(starting_offsets=start), dict(enumerate(lags))


def of_a_group_with_offsets() -> Situation:
    outside = outside_of(5, 3, 4)
    outside.offsets = {LOGS[0]: (4, 17)}
    return outside, SETTINGS, {0: 1, 1: 3, 2: 4}


def loaded(settings: Settings = SETTINGS) -> Outside:
    outside = outside_of(5, 3, 4)
    run(outside, settings)
    grow(outside, 2, 0, 1)
    return outside


def of_a_crash(step: str, *lags: int, settings: Settings = SETTINGS) -> Situation:
    outside = loaded(settings)
    with pytest.raises(Crash):
        run(outside, settings, at=crash_at(step, When.AFTER))
    grow(outside, 1, 1, 1)
    return outside, settings, dict(enumerate(lags))


def of_a_lost_ledger() -> Situation:
    outside = loaded()
    outside.uid, outside.plans, outside.applied, outside.offsets = None, {}, {}, {}
    return outside, SETTINGS, {0: 2, 1: 0, 2: 1}


def of_expired_records() -> Situation:
    outside = loaded()
    outside.logs[LOGS[0]].log_start = 6
    return outside, settings_of(on_data_loss="skip"), {0: 1, 1: 0, 2: 1}


def of_a_partition_without_a_leader() -> Situation:
    outside = loaded()
    outside.logs[LOGS[0]].has_leader = False
    return outside, settings_of(on_no_leader="skip"), {0: None, 1: 0, 2: 1}


def of_a_start_that_waits() -> Situation:
    outside = outside_of(5, 3, 4)
    settings = settings_of(on_no_leader="skip", starting_offsets="latest")
    outside.logs[LOGS[0]].has_leader = False
    run(outside, settings)
    outside.logs[LOGS[0]] = FakeLog(8, later={7: NOON_MS})
    return outside, settings, {0: 1, 1: 0, 2: 0}


def of_an_owned_partition() -> Situation:
    outside = loaded()
    outside.owners = {LOGS[0]: "group_host-1-0"}
    skipping = with_keys(SETTINGS, group={"on_owned": OnOwned.SKIP})
    return outside, skipping, {0: 2, 1: 0, 2: 1}


def of_a_followed_offset() -> Situation:
    outside = loaded()
    outside.move_offset(LOGS[0], 6)
    return outside, settings_of(on_offset_changed="follow"), {0: 1, 1: 0, 2: 1}


def of_a_new_topic(start: str, lag: int) -> Situation:
    outside = loaded()
    outside.logs[OTHER] = FakeLog(9)
    return outside, settings_of(new_topics_starting_offsets=start), {0: 2, 1: 0, 2: 1, 7: lag}


SITUATIONS: dict[str, Callable[[], Situation]] = {
    "a first run from the latest record": lambda: of_a_first_run("latest", 0, 0, 0),
    "a first run from a time": lambda: of_a_first_run(AT_NOON, 0, 0, 1),
    "a group with offsets": of_a_group_with_offsets,
    "a plan that is stored and not in the table": lambda: of_a_crash("store plan", 3, 1, 2),
    "a plan that is in the table and not recorded": lambda: of_a_crash("append", 1, 1, 1),
    "caps": lambda: of_a_crash(
        "store plan", 8, 3, 5, settings=settings_of(limits={"max_records_per_plan": 2})
    ),
    "a ledger that was lost": of_a_lost_ledger,
    "records that expired": of_expired_records,
    "a partition without a leader": of_a_partition_without_a_leader,
    "a start that waits for its partition": of_a_start_that_waits,
    "a partition with an owner in the group": of_an_owned_partition,
    "an offset that another client moved forward": of_a_followed_offset,
    "a new topic from its first record": lambda: of_a_new_topic("earliest", 9),
    "a new topic from its latest record": lambda: of_a_new_topic("latest", 0),
}


def described_by_plan(outside: Outside, settings: Settings) -> int:
    return preview_of(FakeWorld(outside, settings).observe(), settings).lag


def described_by_offsets(outside: Outside, settings: Settings) -> dict[int, int | None]:
    rows = offsets_of(FakeWorld(outside, settings).observe(), settings).rows
    return {row["partition"]: row["lag"] for row in rows}


def described_by_lag(outside: Outside, settings: Settings) -> dict[int, int | None]:
    found = lags_of(FakeWorld(outside, settings).observe(), settings, {}, now_ms=NOON_MS)
    return {row["partition"]: row["lag"] for row in found.as_json()["partitions"]}


def reported_lags(
    outside: Outside, settings: Settings, step: str = "no step"
) -> dict[str, dict[int, int | None]]:
    """What the report of a run shows before and after it; the run dies at this step."""
    report = new_report()
    with contextlib.suppress(Crash, EtlError):
        ingest(FakeWorld(outside, settings, crash_at(step, When.BEFORE)), settings, report)
    rows = report_as_json(report)["lag"]
    return {when: {row["partition"]: row[when] for row in rows} for when in ("before", "after")}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_command_and_the_report_show_the_same_lag_before_and_after_a_run(
    situation: str,
) -> None:
    outside, settings, lags = SITUATIONS[situation]()
    for when in ("before", "after"):
        assert (
            described_by_offsets(outside, settings) == described_by_lag(outside, settings) == lags
        )
        assert described_by_plan(outside, settings) == sum(lag or 0 for lag in lags.values())
        if when == "before":
            report = reported_lags(outside, settings)
            assert report["before"] == lags
            lags = report["after"]


def of_a_cut_log(at: int) -> Outside:
    outside = loaded()
    outside.logs[LOGS[0]].cut(at)
    grow(outside, 5, 1, 0)
    return outside


def of_a_recreated_topic() -> Outside:
    outside = outside_of(5, 3, 4)
    outside.logs[OTHER], outside.topic_ids = FakeLog(4), {"clicks": "id-1", "clicks-2": "id-2"}
    run(outside)
    grow(outside, 2, 0, 1)
    outside.topic_ids = {"clicks": "id-1", "clicks-2": "id-3"}
    return outside


@pytest.mark.parametrize(
    ("make", "lags"),
    [
        (lambda: of_a_cut_log(3), {0: None, 1: 1, 2: 1}),
        (of_a_recreated_topic, {0: 2, 1: 0, 2: 1, 7: None}),
    ],
)
def test_logs_with_another_incarnation_have_no_lag_and_the_reason_of_plan(
    make: Callable[[], Outside], lags: Any
) -> None:
    outside = make()
    assert described_by_offsets(outside, SETTINGS) == described_by_lag(outside, SETTINGS) == lags
    assert reported_lags(outside, SETTINGS)["after"] == lags
    reported = offsets_of(FakeWorld(outside, SETTINGS).observe(), SETTINGS)
    with pytest.raises(NeedsDecision) as plan_says:
        described_by_plan(outside, SETTINGS)
    assert str(reported.refusal) == str(plan_says.value)


def test_no_lag_is_reported_if_a_run_would_stop_at_the_table() -> None:
    outside = loaded()
    outside.table = None
    assert set(described_by_offsets(outside, SETTINGS).values()) == {None}
    assert set(reported_lags(outside, SETTINGS)["before"].values()) == {None}


def test_a_position_above_the_end_of_its_log_is_no_lag_below_nothing() -> None:
    state = onward({A: 9})
    so_far = Progress(state.last, state.positions)
    assert lag_of(A, snapshot_of({A: (0, 5)}), so_far, plan_settings()) == 0


def test_the_lag_of_a_log_without_an_observed_start_is_unknown() -> None:
    last = onward({B: 5}, pending_starts={A: 1}).last
    assert lag_of(A, snapshot_of({A: (0, 5)}), Progress(last, {B: 5}), plan_settings()) is None
