"""An operator continues with truncated or recreated partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.decide.accept_partitions import describe_accepted_partitions
from etl.errors import NeedsDecision, PartitionTruncated, SettingsError
from etl.model.plans import PlanKind, StaleRows
from etl.report.run_progress import Outcome
from tests.builders import changed, pending_starts_of
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    accept,
    outcomes,
    outside_of,
    reject_missing_records,
    run,
    settings_of,
)
from tests.fakes.world import FakeWorld

A, B, C = LOGS


def loaded() -> Outside:
    outside = outside_of(15, 3, 4)
    run(outside)
    return outside


def cut_and_longer() -> Outside:
    """A was read up to 15, cut to 10, and has ten records more."""
    outside = loaded()
    outside.logs[A].cut(10)
    outside.logs[A].end = 20
    return outside


def test_an_accepted_log_continues_at_its_truncation_and_the_lost_offsets_are_named() -> None:
    outside = cut_and_longer()
    plan = accept(outside, "clicks:0")
    assert (plan.kind, plan.loaded_until[A]) == (PlanKind.RESET, 10)
    assert plan.incarnations == {A: 1}
    assert plan.losses.stale_rows == (StaleRows(A, 10, 15),)
    report = run(outside)
    assert outcomes(report)[:2] == [Outcome.TOPIC_CHANGES_ACCEPTED] * 2
    stale = "rows of offsets 10 to 15 with incarnation 0 are of records that Kafka lost"
    assert stale in report.outcomes[1][1]
    reject_missing_records(outside)
    assert sum(outside.records().values()) == 22 + 10


def test_stale_rows_have_their_incarnation_if_a_log_is_accepted_twice_before_a_run() -> None:
    outside = outside_of(15, 3, 4)
    run(outside)
    outside.logs[A].cut(10)
    assert accept(outside, "clicks:0").losses.stale_rows == (StaleRows(A, 10, 15),)
    outside.logs[A].cut(6)
    plan = accept(outside, "clicks:0")
    assert (plan.loaded_until[A], plan.losses.stale_rows) == (6, (StaleRows(A, 6, 15),))
    outside.logs[A].grow(9)
    run(outside)
    outside.logs[A].cut(9)
    again = accept(outside, "clicks:0")
    assert again.losses.stale_rows == (StaleRows(A, 9, 15, plan.incarnations[A]),), (
        "an acceptance that a run has executed is not repeated"
    )
    run(outside)
    reject_missing_records(outside)


def test_a_start_that_waits_for_its_partition_waits_through_a_reset() -> None:
    outside, settings = (
        outside_of(15, 3),
        settings_of(starting_offsets="latest", on_no_leader="skip"),
    )
    outside.logs[B].has_leader = False
    run(outside, settings)
    outside.logs[A].cut(at=9)
    plan = accept(outside, "clicks:0", settings=settings)
    assert list(pending_starts_of(plan)) == [B]
    outside.logs[B].has_leader = True
    run(outside, settings)
    assert not outside.rows() and outside.offsets[B][0] == 3


@pytest.mark.parametrize(
    ("new_topics", "is_same_log", "rows"),
    [("earliest", False, 3), ("latest", False, 0), ("latest", True, 3)],
)
def test_a_pending_start_in_a_recreated_topic_is_decided_anew(
    new_topics: str, is_same_log: bool, rows: int
) -> None:
    outside, settings = (
        outside_of(3),
        settings_of(on_no_leader="skip", new_topics_starting_offsets=new_topics),
    )
    outside.topic_ids, outside.logs[A].has_leader = {"clicks": "zxid-1"}, False
    run(outside, settings)
    outside.topic_ids = {"clicks": "zxid-2"}
    accept(outside, "clicks", is_same_log=is_same_log, settings=settings)
    outside.logs[A].has_leader = True
    run(outside, settings)
    assert len(outside.rows()) == rows


def recreate(outside: Outside, topic_id: str, *ends: int) -> None:
    outside.topic_ids["clicks"] = topic_id
    outside.logs = {
        partition: replace(outside.logs[partition].recreated(), end=end)
        for partition, end in zip(LOGS, ends)
    }


def with_ids(topic_id: str) -> Outside:
    outside = outside_of(15, 3, 4)
    outside.topic_ids["clicks"] = topic_id
    run(outside)
    return outside


def test_a_recreated_topic_is_read_from_its_start_after_it_is_accepted() -> None:
    outside, ends = with_ids("id-1"), (20, 1, 0)
    recreate(outside, "id-2", *ends)
    with pytest.raises(NeedsDecision, match="recreated"):
        run(outside)
    plan = accept(outside, "clicks")
    assert (plan.loaded_until, plan.incarnations) == ({A: 0, B: 0, C: 0}, {A: 1, B: 1, C: 1})
    assert plan.losses.stale_rows == (StaleRows(A, 0, 15), StaleRows(B, 0, 3), StaleRows(C, 0, 4))
    run(outside)
    reject_missing_records(outside)
    assert {key for key in outside.keys() if key[1] == 1} == {
        (partition, 1, n) for partition, end in zip(LOGS, ends) for n in range(end)
    }


def test_a_partition_missing_since_the_topic_was_recreated_is_read_from_its_start_later() -> None:
    outside = with_ids("id-1")
    recreate(outside, "id-2", 20, 9)
    assert accept(outside, "clicks").loaded_until[C] == 0
    run(outside)
    outside.logs[C] = FakeLog(6, lives=[(0, 1)])
    run(outside)
    reject_missing_records(outside)


def test_a_recreated_topic_starts_where_policy_decides() -> None:
    outside, settings = with_ids("id-1"), settings_of(new_topics_starting_offsets="latest")
    recreate(outside, "id-2", 20, 9, 9)
    plan = accept(outside, "clicks", settings=settings)
    assert plan.loaded_until == {A: 20, B: 9, C: 9}


def test_topics_that_an_operator_knows_in_another_ensemble_continue_where_they_were() -> None:
    outside = with_ids("zxid-5")
    outside.topic_ids["clicks"] = "zxid-1f"
    with pytest.raises(NeedsDecision, match="recreated") as refused:
        run(outside)
    warning = "--not-recreated would leave out all records below the loaded-until offsets"
    assert f"of another topic {warning}" in refused.value.action
    old, snapshot = outside.newest_plan(), FakeWorld(outside, settings_of()).observe()
    outside.logs[A].end = 20
    plan = accept(outside, "clicks", is_same_log=True)
    assert (plan.incarnations, plan.losses.stale_rows) == ({}, ())
    assert plan.topic_ids == {"clicks": "zxid-1f"}
    assert old and describe_accepted_partitions(old, plan, snapshot) == [
        "clicks: is the same topic, by your decision only: if it is another, its records "
        "below our positions are never loaded"
    ]
    assert describe_accepted_partitions(old, changed(plan, incarnations={A: 1}), snapshot) == []
    run(outside)
    reject_missing_records(outside)
    assert not [key for key in outside.keys() if key[1]]


def test_a_topic_that_ends_below_our_position_is_not_the_same() -> None:
    outside = with_ids("zxid-5")
    recreate(outside, "zxid-1f", 20, 1, 9)
    with pytest.raises(SettingsError, match="not the same partition"):
        accept(outside, "clicks", is_same_log=True)


@pytest.mark.parametrize("name", ["clicks:1", "other", "clicks:0"])
def test_a_log_with_which_nothing_is_wrong_is_not_accepted(name: str) -> None:
    outside = loaded() if name == "clicks:0" else cut_and_longer()
    before = dict(outside.plans)
    with pytest.raises(
        SettingsError,
        match="The topic does not exist," if name == "other" else f"{name} is unchanged",
    ):
        accept(outside, name)
    assert outside.plans == before


def test_without_epochs_of_brokers_the_operator_gives_the_offset_of_the_truncation() -> None:
    outside = outside_of(15, 3, 4)
    for partition in outside.logs.values():
        partition.tells_epochs = False
    run(outside)
    outside.logs[A].cut(10)
    outside.logs[A].end = 12
    with pytest.raises(PartitionTruncated, match="at offset 12 or below.*--truncated-at OFFSET"):
        run(outside)
    with pytest.raises(SettingsError, match="do not report the truncation offset"):
        accept(outside, "clicks:0")
    with pytest.raises(SettingsError, match="Offset 13 is above 12"):
        accept(outside, "clicks:0", at_offset=13)
    assert accept(outside, "clicks:0", at_offset=10).loaded_until[A] == 10
    run(outside)
    reject_missing_records(outside)


def test_with_a_truncation_that_brokers_report_an_operator_gives_no_offset() -> None:
    with pytest.raises(SettingsError, match="--truncated-at is for one partition"):
        accept(cut_and_longer(), "clicks:0", at_offset=5)
