"""An operator continues with truncated or recreated partitions: no record is lost, none is loaded
twice, and lost offsets are named.
"""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import replace

import pytest

from etl.decide.accept_partitions import describe_accepted_partitions
from etl.decide.recreated_or_truncated import accept_command
from etl.errors import NeedsDecision, OffsetMoved, Owned, PartitionTruncated, SettingsError
from etl.model.partitions import Named, TopicPartition, parse_named
from etl.model.plans import PlanKind, StaleRows
from etl.report.run_progress import Outcome
from tests.builders import changed, pending_starts_of
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    accept,
    crash_at,
    outcomes,
    outside_of,
    reject_doubled_records,
    reject_missing_records,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When
from tests.fakes.zookeeper_copies import restore_znodes, znodes_of

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


@pytest.mark.parametrize("end", [10, 12, 15, 20])
def test_a_log_that_was_cut_stops_every_run_however_long_it_is_by_now(end: int) -> None:
    outside = loaded()
    outside.logs[A].cut(10)
    outside.logs[A].end = end
    before = dict(outside.plans)
    for _ in range(2):
        with pytest.raises(
            PartitionTruncated, match="truncated at offset 10, and records up to 15"
        ):
            run(outside)
    assert outside.plans == before


@pytest.mark.parametrize("end", [10, 12, 20])
def test_an_accepted_log_continues_at_its_truncation_and_the_lost_offsets_are_named(
    end: int,
) -> None:
    outside = loaded()
    outside.logs[A].cut(10)
    outside.logs[A].end = end
    plan = accept(outside, "clicks:0")
    assert (plan.kind, plan.loaded_until[A], plan.incarnations, plan.losses.stale_rows) == (
        PlanKind.RESET,
        10,
        {A: 1},
        (StaleRows(A, 10, 15),),
    )
    report = run(outside)
    assert outcomes(report)[:2] == [Outcome.TOPIC_CHANGES_ACCEPTED, Outcome.TOPIC_CHANGES_ACCEPTED]
    assert (
        "rows of offsets 10 to 15 with incarnation 0 are of records that Kafka lost"
        in report.outcomes[1][1]
    )
    reject_missing_records(outside)
    assert sum(outside.records().values()) == 22 + end - 10


@pytest.mark.parametrize(
    "step", ["observe", "append", "record", "commit from 0", "store plan", "tidy"]
)
@pytest.mark.parametrize("when", When)
def test_a_crash_while_a_log_is_accepted_or_gone_on_with_loses_and_doubles_nothing(
    step: str, when: When
) -> None:
    outside = cut_and_longer()
    with contextlib.suppress(Crash):
        accept(outside, "clicks:0", at=crash_at(step, when))
    reject_doubled_records(outside)
    with contextlib.suppress(
        SettingsError
    ):  # nothing is wrong with it any more where the plan was stored
        accept(outside, "clicks:0")
    with contextlib.suppress(Crash):
        run(outside, at=crash_at(step, when))
    reject_doubled_records(outside)
    outside.logs[B].end += 2
    run(outside)
    reject_missing_records(outside)


@pytest.mark.parametrize(
    "step", ["observe", "store plan", "append", "record", "commit from 0", "tidy"]
)
@pytest.mark.parametrize("policy", ["fail", "follow"])
@pytest.mark.parametrize("later", ["reset", "more"])
def test_a_ledger_restored_from_a_copy_of_before_a_reset_loses_and_doubles_nothing(
    step: str, policy: str, later: str
) -> None:
    outside = loaded()
    outside.logs[A].end = 25
    with pytest.raises(Crash):
        run(outside, at=crash_at(step, When.AFTER))
    kept = znodes_of(outside)
    run(outside)
    outside.logs[A].cut(5)
    outside.logs[A].end = 40
    accept(outside, "clicks:0")
    with contextlib.suppress(Crash):
        run(outside, at=crash_at("append", When.AFTER) if later == "reset" else None)
    restore_znodes(outside, kept)
    run(outside, settings_of(on_offset_changed=policy))
    reject_missing_records(outside)
    assert not outside.losses


def test_a_stored_plan_with_truncated_ranges_is_superseded_by_the_reset() -> None:
    outside = loaded()
    outside.logs[A].end = 25
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    outside.logs[A].cut(20)
    outside.logs[A].end = 30
    with pytest.raises(PartitionTruncated, match="truncated at offset 20, and records up to 25"):
        run(outside)
    old = outside.newest_plan()
    plan = accept(outside, "clicks:0")
    assert old and (
        plan.number,
        plan.origin.supersedes,
        plan.loaded_until[A],
        plan.losses.stale_rows,
    ) == (
        2,
        old.id,
        15,
        (),
    )
    run(outside)
    reject_missing_records(outside)
    assert set(outside.keys()) == {
        (partition, 0, n) for partition, end in ((A, 30), (B, 3), (C, 4)) for n in range(end)
    }


def test_a_stored_plan_that_begins_above_the_cut_gives_its_place_too() -> None:
    outside = loaded()
    outside.logs[A].end = 25
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    outside.logs[A].cut(10)
    outside.logs[A].end = 40
    plan = accept(outside, "clicks")
    assert (plan.number, plan.loaded_until[A], plan.losses.stale_rows) == (
        2,
        10,
        (StaleRows(A, 10, 15),),
    )


def test_vanished_rows_have_their_incarnation_if_a_log_is_accepted_twice_before_a_run() -> None:
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


def test_a_late_append_of_the_old_plan_is_restored_and_the_truncation_is_reported_again() -> None:
    outside = loaded()
    outside.logs[A].end = 25

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("open table", When.AFTER):
            kept = replace(outside.logs[A])
            outside.logs[A].cut(20)
            accept(outside, "clicks:0")
            outside.logs[A] = kept  # the zombie has read all of it before
        crash_at("append", When.AFTER)(reached, side)

    with pytest.raises(Crash):
        run(outside, at=at)
    outside.logs[A].cut(20)
    with pytest.raises(PartitionTruncated):
        run(outside)
    accept(outside, "clicks:0")
    run(outside)
    reject_missing_records(outside)


def test_a_log_that_is_cut_while_it_is_read_stops_the_run_before_the_append() -> None:
    outside = loaded()
    outside.logs[A].end = 25

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("fetch", When.AFTER):
            outside.logs[A].cut(20)
            outside.logs[A].end = 30

    with pytest.raises(PartitionTruncated):
        run(outside, at=at)
    accept(outside, "clicks:0")
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


def test_a_log_may_be_cut_again_before_the_reset_was_executed() -> None:
    outside = cut_and_longer()
    accept(outside, "clicks:0")
    outside.logs[A].cut(7)
    outside.logs[A].end = 30
    with pytest.raises(PartitionTruncated, match="truncated at offset 7, and records up to 10"):
        run(outside)
    plan = accept(outside, "clicks:0")
    assert (plan.loaded_until[A], plan.incarnations) == (7, {A: 2})
    run(outside)
    reject_missing_records(outside)


def test_an_offset_that_another_client_moved_meanwhile_is_not_changed_by_a_reset() -> None:
    outside = cut_and_longer()
    accept(outside, "clicks:0")
    outside.move_offset(A, 17)
    with pytest.raises(OffsetMoved):
        run(outside)


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


@pytest.mark.parametrize("ends", [(20, 9, 9), (2, 0, 1), (20, 9, 0)])
def test_a_recreated_topic_is_read_from_its_start_after_it_is_accepted(
    ends: tuple[int, ...],
) -> None:
    outside = with_ids("id-1")
    recreate(outside, "id-2", *ends)
    with pytest.raises(NeedsDecision, match="recreated"):
        run(outside)
    plan = accept(outside, "clicks")
    assert (plan.loaded_until, plan.incarnations) == ({A: 0, B: 0, C: 0}, {A: 1, B: 1, C: 1})
    assert plan.losses.stale_rows == (StaleRows(A, 0, 15), StaleRows(B, 0, 3), StaleRows(C, 0, 4))
    run(outside)
    reject_doubled_records(outside)
    assert {key for key in outside.keys() if key[1] == 1} == {
        (partition, 1, n) for partition, end in zip(LOGS, ends) for n in range(end)
    }
    reject_missing_records(outside)


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


def test_topics_that_an_operator_knows_in_another_ensemble_are_gone_on_with_where_they_were() -> (
    None
):
    outside = with_ids("zxid-5")
    outside.topic_ids["clicks"] = "zxid-1f"
    with pytest.raises(NeedsDecision, match="recreated") as refused:
        run(outside)
    assert (
        "of another topic --not-recreated would leave out all records below the loaded-until offsets"
        in refused.value.action
    )
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


def test_a_topic_that_brokers_report_as_another_is_not_accepted_as_the_same() -> None:
    outside = with_ids("id-1")
    outside.topic_ids["clicks"] = "id-2"
    with pytest.raises(SettingsError, match="another topic"):
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


def test_two_operators_cannot_both_take_a_plans_place() -> None:
    outside = cut_and_longer()
    accept(outside, "clicks:0")
    outside.logs[A].cut(8)

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("supersede", When.BEFORE):
            accept(outside, "clicks:0")

    with pytest.raises(Owned, match="stored or changed plan"):
        accept(outside, "clicks:0", at=at)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("clicks", Named("clicks")),
        ("a.b-c_d:12", Named("a.b-c_d", TopicPartition("a.b-c_d", 12))),
        ("clicks:1-0", Named("clicks", TopicPartition("clicks", 0, 1))),
        ("page views", Named("page views")),
        ("user:clicks", Named("user:clicks")),
        ("user:clicks:1-0", Named("user:clicks", TopicPartition("user:clicks", 0, 1))),
    ],
)
def test_a_log_is_named_by_its_topic_and_partition(text: str, named: Named) -> None:
    assert parse_named(text) == named
    assert str(named) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "clicks:",
        ":1",
        "a/b",
        "a\nb",
        ".",
        "..",
        "..:1",
        "clicks:1234567890",
        "clicks:1-",
        "clicks:1-0-0",
        "clicks:01",
    ],
)
def test_what_names_no_log_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="names no log"):
        parse_named(text)


def test_the_command_that_leads_out_names_logs_as_a_shell_takes_them() -> None:
    command = accept_command(["page views", "it's:1-0", "clicks"], "--truncated-at OFFSET")
    named = ["-p", "page views", "-p", "it's:1-0", "-p", "clicks"]
    assert shlex.split(command)[4:] == [*named, "--truncated-at", "OFFSET", "--reason", "..."]


def test_a_named_topic_covers_all_its_partitions_and_no_other() -> None:
    assert Named("clicks").covers(B) and Named("clicks", B).covers(B)
    assert not Named("clicks", A).covers(B) and not Named("click").covers(
        TopicPartition("clicks", 0)
    )
