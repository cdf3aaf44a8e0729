"""Whether a partition is still the incarnation of the known offsets: leader epochs and log ends."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from etl.decide.plan import plan_next
from etl.decide.recreated_or_truncated import (
    EPOCHS_KEPT,
    Cut,
    accept_command,
    compared_ids,
    creations_to_record,
    epochs_to_ask,
    joined,
    record_epochs,
    reject_recreated_or_truncated,
    truncated_partitions,
)
from etl.errors import NeedsDecision, NotYetReadable, PartitionTruncated, SettingsError
from etl.model.partitions import EpochEnd, TopicPartition
from etl.model.plans import CommitResult, OffsetRange, Plan, RangeResult
from etl.model.snapshot import Ledger, Snapshot, UpToDate
from tests.builders import plain_plan, plain_snapshot
from tests.fakes.outside import Outside
from tests.fakes.planning import (
    SETTINGS,
    A,
    B,
    last_plan,
    next_plan,
    onward,
    planned,
    settings_of,
    snapshot_of,
)
from tests.fakes.stories import LOGS, accept, crash_at, outside_of, reject_missing_records, run
from tests.fakes.world import Crash, When


def read_to(
    until: int, *, leader: int | None = None, record: int | None = None, **changes: Any
) -> tuple[Plan, CommitResult]:
    """A plan that read A up to `until`, and what came of it."""
    plan = last_plan(
        {A: until},
        ranges=(OffsetRange(A, 0, until),),
        leader_epochs={} if leader is None else {A: leader},
        **changes,
    )
    epochs = () if record is None else ((record, 0),)
    return plan, CommitResult(
        plan.number, plan.id, 1, "t", (RangeResult(rows=until, last_epoch=record, epochs=epochs),)
    )


def read_in_epochs(until: int, *epochs: tuple[int, int]) -> tuple[Plan, CommitResult]:
    """The same with record batches of several leaders."""
    plan, applied = read_to(until, leader=epochs[-1][0])
    result = RangeResult(rows=until, last_epoch=epochs[-1][0], epochs=epochs)
    return plan, CommitResult(plan.number, plan.id, 1, "t", (result,))


def seen(
    end: int, answer: EpochEnd | None, applied: CommitResult | None = None, plan: Plan | None = None
) -> Snapshot:
    """A's readable end, and its leader's answer about the requested epoch."""
    return snapshot_of(
        {A: (0, end)}, epoch_ends={A: answer} if answer else {}, ledger=Ledger("u", plan, applied)
    )


def cuts(plan: Plan, snapshot: Snapshot) -> list[Cut]:
    return truncated_partitions(plan, snapshot, plan.loaded_until)


IN_TWO_EPOCHS = read_in_epochs(120, (0, 0), (1, 60))


@pytest.mark.parametrize(
    ("read", "end", "answer", "found"),
    [
        # a log that is longer again is known by the epoch of its leader
        (read_to(150, leader=3), 200, EpochEnd(3, 3, 100), [Cut(A, 150, 100)]),
        # a leader was elected cleanly
        (read_to(150, leader=3, record=2), 200, EpochEnd(2, 2, 150), []),
        # all records read were of an epoch that the leader lacks: a former leader, a longer log
        (
            read_to(150, leader=4, record=4),
            200,
            EpochEnd(4, 3, 160),
            [Cut(A, 150, 0, is_known=False)],
        ),
        # two logs part where the shorter stretch of the last epoch that both have ends
        (IN_TWO_EPOCHS, 200, EpochEnd(1, 0, 50), [Cut(A, 120, 50)]),
        (IN_TWO_EPOCHS, 200, EpochEnd(1, 0, 60), [Cut(A, 120, 60)]),
        (IN_TWO_EPOCHS, 200, EpochEnd(1, 0, 90), [Cut(A, 120, 60)]),
        (IN_TWO_EPOCHS, 200, EpochEnd(1, 1, 90), [Cut(A, 120, 90)]),
        # they have no epoch in common that we remember
        (
            read_in_epochs(120, (3, 0), (5, 60)),
            200,
            EpochEnd(5, 4, 70),
            [Cut(A, 120, 60, is_known=False)],
        ),
        # records of an epoch that the leader lacks are gone from their first known offset
        (read_in_epochs(100, (5, 80)), 200, EpochEnd(5, 3, 200), [Cut(A, 100, 80, is_known=False)]),
        # an epoch without a record need not be found again
        (read_to(150, leader=4), 200, EpochEnd(4, 3, 150), []),
        # without epochs only an end below the position shows it
        (read_to(150), 149, None, [Cut(A, 150, 149, is_known=False)]),
        (read_to(150), 150, None, []),
        # an answer for another epoch
        (read_to(150, leader=3), 200, EpochEnd(2, 2, 100), []),
    ],
)
def test_a_log_was_cut_where_its_epochs_and_ours_part(
    read: tuple[Plan, CommitResult], end: int, answer: EpochEnd | None, found: list[Cut]
) -> None:
    plan, applied = read
    assert cuts(plan, seen(end, answer, applied, plan)) == found


def test_the_truncation_under_a_stored_plan_is_found_by_the_epochs_before_it() -> None:
    plan = last_plan(
        {A: 120},
        ranges=(OffsetRange(A, 60, 120),),
        leader_epochs={A: 1},
        record_epochs={A: ((0, 0),)},
    )
    assert cuts(plan, seen(200, EpochEnd(1, 0, 60))) == [Cut(A, 120, 60)]
    assert truncated_partitions(plan, seen(200, EpochEnd(1, 0, 60)), {A: 60}) == []
    assert truncated_partitions(plan, seen(200, EpochEnd(1, 0, 50)), {A: 60}) == [Cut(A, 60, 50)]


def test_the_epochs_of_plan_after_plan_are_joined_and_the_newest_kept() -> None:
    assert joined(((0, 0), (1, 60)), ((1, 90), (2, 100))) == ((0, 0), (1, 60), (2, 100))
    long = tuple((epoch, epoch) for epoch in range(40))
    assert joined(long[:20], long[20:]) == long[-EPOCHS_KEPT:]


def test_a_log_truncated_without_an_election_ends_where_the_next_write_began() -> None:
    plan, _ = read_to(150, leader=3)
    snapshot = snapshot_of({A: (0, 120)}, epoch_ends={A: EpochEnd(3, 3, 120)}, leader_epochs={A: 3})
    assert cuts(plan, snapshot) == [Cut(A, 150, 120, is_known=False)]


def test_an_end_below_the_position_of_a_log_that_was_not_cut_will_pass() -> None:
    plan, _ = read_to(150, leader=3)
    snapshot = seen(149, EpochEnd(3, 3, 150), plan=plan)
    with pytest.raises(NotYetReadable, match="below the loaded-until offset") as caught:
        plan_next(snapshot, UpToDate(plan, plan.loaded_until), SETTINGS, uid="u", now_ms=1)
    assert caught.value.retriable


def test_a_log_without_a_leader_is_not_judged() -> None:
    plan = last_plan({B: 150}, leader_epochs={B: 3})
    assert cuts(plan, seen(200, None)) == []


def test_the_epoch_of_the_record_batch_is_requested_if_known_else_that_of_the_leader() -> None:
    plan, applied = read_to(150, leader=4, record=3)
    assert epochs_to_ask(plan, applied) == {A: 3}
    assert epochs_to_ask(plan, None) == {A: 4}
    assert epochs_to_ask(None, None) == {}


def test_the_epoch_of_a_record_batch_is_kept_while_its_log_is_not_read() -> None:
    plan = last_plan({A: 150}, record_epochs={A: ((3, 0),)})
    assert record_epochs(plan, None) == {A: ((3, 0),)}


@pytest.mark.parametrize("until", [140, 150])
def test_only_a_record_batch_that_ends_at_the_position_stands_for_it(until: int) -> None:
    plan, applied = read_to(until, record=3)
    plan = last_plan({A: 150}, ranges=plan.ranges, record_epochs={A: ((1, 0),)})
    applied = CommitResult(plan.number, plan.id, 1, "t", applied.results)
    assert record_epochs(plan, applied) == ({A: ((1, 0), (3, 0))} if until == 150 else {})


def test_the_next_plan_keeps_the_epochs_by_which_it_goes() -> None:
    plan, applied = read_to(7, leader=3, record=2)
    snapshot = snapshot_of(
        {A: (0, 10)},
        epoch_ends={A: EpochEnd(2, 2, 7)},
        leader_epochs={A: 5},
        ledger=Ledger("u", plan, applied),
    )
    new = planned(snapshot, UpToDate(plan, plan.loaded_until))
    assert (new.leader_epochs, new.record_epochs) == ({A: 5}, {A: ((2, 0),)})


def test_without_a_reported_epoch_a_log_loses_its_old_one_and_without_a_leader_keeps_it() -> None:
    state = onward({A: 7, B: 5}, leader_epochs={A: 3, B: 4}, incarnations={A: 1})
    new = planned(snapshot_of({A: (0, 10)}), state)
    assert (new.leader_epochs, new.incarnations) == ({B: 4}, {A: 1})


def test_the_epoch_of_a_record_batch_does_not_cover_expired_offsets_after_it() -> None:
    plan, applied = read_to(7, leader=3, record=2)
    snapshot = snapshot_of(
        {A: (9, 9)},
        epoch_ends={A: EpochEnd(2, 2, 8)},
        leader_epochs={A: 3},
        ledger=Ledger("u", plan, applied),
    )
    new = planned(snapshot, UpToDate(plan, plan.loaded_until), settings_of(on_data_loss="skip"))
    assert (new.loaded_until, new.leader_epochs, new.record_epochs) == ({A: 9}, {A: 3}, {})


def test_a_cut_log_stops_the_run_and_the_message_names_the_offsets_and_the_command() -> None:
    snapshot = snapshot_of(
        {A: (0, 200), B: (0, 9)}, epoch_ends={A: EpochEnd(3, 3, 100), B: EpochEnd(3, 3, 5)}
    )
    with pytest.raises(
        PartitionTruncated, match="truncated at offset 100, and records up to 150.*and 1 more"
    ) as caught:
        next_plan(snapshot, onward({A: 150, B: 9}, leader_epochs={A: 3, B: 3}))
    assert caught.value.where == {"topic": "clicks", "partition": 0, "offset": 150}
    assert "etl topics accept-changes CONF -p clicks:0 --reason" in caught.value.action
    assert caught.value.exit_code == 5


def test_the_message_requests_the_offset_of_an_unknown_truncation() -> None:
    with pytest.raises(PartitionTruncated, match="at offset 100 or below") as caught:
        next_plan(snapshot_of({A: (0, 100)}), onward({A: 150}))
    assert "clicks:0 --truncated-at OFFSET --reason" in caught.value.action


def test_the_message_names_another_ensemble_as_a_cause_if_every_topic_was_recreated() -> None:
    plan = last_plan({A: 7}, topic_ids={"clicks": "zxid-5"})
    with pytest.raises(NeedsDecision, match="recreated") as caught:
        reject_recreated_or_truncated(
            plan, snapshot_of({A: (0, 10)}, topic_ids={"clicks": "zxid-6"})
        )
    assert "etl topics accept-changes CONF -p clicks --reason" in caught.value.action
    assert "--not-recreated" in caught.value.action


def test_a_log_of_another_pipelines_topic_is_not_compared() -> None:
    other = TopicPartition("gone", 0)
    assert cuts(last_plan({other: 5}, leader_epochs={other: 1}), seen(10, None)) == []


def test_the_command_that_leads_out_names_logs_as_a_shell_takes_them() -> None:
    command = accept_command(["page views", "it's:1-0", "clicks"], "--truncated-at OFFSET")
    named = ["-p", "page views", "-p", "it's:1-0", "-p", "clicks"]
    assert shlex.split(command)[4:] == [*named, "--truncated-at", "OFFSET", "--reason", "..."]


UPGRADED, OLD = {"clicks": "id-1"}, dict[str, str]()
either_way = pytest.mark.parametrize(
    ("before", "after"),
    [(OLD, UPGRADED), (UPGRADED, OLD)],
    ids=["brokers begin to report ids", "brokers cease to report ids"],
)


def loaded_with_ids(topic_ids: dict[str, str], creation: str = "zxid-5") -> Outside:
    outside = outside_of(15, 3, 4)
    outside.topic_ids, outside.creation_ids = dict(topic_ids), {"clicks": creation}
    run(outside)
    return outside


def make_again(outside: Outside, topic_ids: dict[str, str], creation: str = "zxid-9") -> None:
    outside.topic_ids, outside.creation_ids = dict(topic_ids), {"clicks": creation}
    outside.logs = {
        partition: replace(outside.logs[partition].recreated(), end=30) for partition in LOGS
    }


def grown(outside: Outside) -> None:
    for partition in outside.logs.values():
        partition.end += 5


@either_way
def test_a_recreated_topic_is_recognized_by_its_znode_if_only_one_side_has_the_brokers_id(
    before: dict[str, str], after: dict[str, str]
) -> None:
    outside = loaded_with_ids(before)
    make_again(outside, after)
    with pytest.raises(NeedsDecision, match="its id is zxid-9, plan 1 read zxid-5"):
        run(outside)
    accept(outside, "clicks")
    run(outside)
    reject_missing_records(outside)


@either_way
def test_a_topic_that_was_not_recreated_is_read_on_and_its_known_ids_are_kept(
    before: dict[str, str], after: dict[str, str]
) -> None:
    outside = loaded_with_ids(before)
    for ids in (after, before, after):
        outside.topic_ids = dict(ids)
        grown(outside)
        run(outside)
    plan = outside.newest_plan()
    assert plan and {*plan.topic_ids.values(), *plan.creation_ids.values()} == {
        *after.values(),
        "zxid-5",
    }


def test_a_copied_zookeeper_has_no_other_topic_if_the_brokers_report_the_topic_id() -> None:
    outside = loaded_with_ids(UPGRADED)
    outside.creation_ids = {"clicks": "zxid-9"}
    grown(outside)
    run(outside)
    plan = outside.newest_plan()
    assert plan and plan.creation_ids == {"clicks": "zxid-9"}


def test_the_znode_does_not_count_if_the_brokers_report_another_id() -> None:
    outside = loaded_with_ids(UPGRADED)
    make_again(outside, {"clicks": "id-2"}, creation="zxid-5")
    with pytest.raises(NeedsDecision, match="its id is id-2"):
        run(outside)
    with pytest.raises(SettingsError, match="another topic"):
        accept(outside, "clicks", is_same_log=True)


@pytest.mark.parametrize("stored", [False, True], ids=["no stored plan", "a stored plan"])
@pytest.mark.parametrize(("at_offset", "is_same_log"), [(None, False), (5, False), (None, True)])
def test_a_partition_of_a_recreated_topic_is_not_accepted_by_itself(
    stored: bool, at_offset: int | None, is_same_log: bool
) -> None:
    outside = loaded_with_ids(UPGRADED)
    if stored:
        grown(outside)
        with pytest.raises(Crash):
            run(outside, at=crash_at("store plan", When.AFTER))
    make_again(outside, {"clicks": "id-2"})
    before = dict(outside.plans)
    with pytest.raises(SettingsError) as rejected:
        accept(outside, "clicks:0", at_offset=at_offset, is_same_log=is_same_log)
    number = 2 if stored else 1
    assert rejected.value.message == (
        f"The topic was deleted and recreated: its id is id-2, plan {number} read id-1. Its "
        "partitions cannot be accepted one by one"
    )
    assert rejected.value.where == {"key": "--partition", "topic": "clicks", "partition": 0}
    assert rejected.value.action == (
        "Accept the topic as a whole: etl topics accept-changes CONF -p clicks --reason ..."
    )
    assert (rejected.value.exit_code, outside.plans) == (2, before)
    accept(outside, "clicks", "clicks:0")
    run(outside)
    reject_missing_records(outside)


def test_a_truncated_partition_is_accepted_by_itself_if_only_the_znode_id_differs() -> None:
    outside = loaded_with_ids(OLD)
    outside.creation_ids = {"clicks": "zxid-9"}
    outside.logs[LOGS[0]].cut(10)
    assert accept(outside, "clicks:0").loaded_until[LOGS[0]] == 10


def test_ids_of_two_kinds_are_not_compared() -> None:
    plan = plain_plan(topic_ids={"clicks": "id-1"})
    assert compared_ids("clicks", plan, plain_snapshot({}, topic_ids={"clicks": "zxid-9"})) is None
    assert compared_ids("clicks", plan, plain_snapshot({})) is None


def test_the_newest_creation_id_is_kept_also_for_topics_with_ids_of_brokers() -> None:
    ids = {"a": "id-1", "b": "zxid-2"}
    assert creations_to_record(
        ids, {"a": "zxid-1", "b": "zxid-2", "gone": "zxid-7"}, {"a": "zxid-3"}
    ) == {"a": "zxid-3"}
