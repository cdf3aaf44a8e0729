"""An operator accepts recreated topics on Jafka, partition by partition."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from etl.commands.lag import offsets_of
from etl.decide.accept_partitions import describe_accepted_partitions
from etl.decide.recreated_or_truncated import topic_ids_to_record
from etl.errors import (
    BrokerUnreachable,
    MisalignedOffset,
    NeedsDecision,
    PartitionTruncated,
    SettingsError,
)
from etl.model.partitions import Fingerprint, TopicPartition
from etl.model.plans import Plan, StaleRows
from etl.report.report_json import describe_plan
from etl.report.run_progress import Outcome
from tests.builders import changed, log_topic_ids_of
from tests.fakes.outside import Outside
from tests.fakes.physical_log import PhysicalLog
from tests.fakes.stories import (
    PHYSICAL_LOGS,
    PHYSICAL_SETTINGS,
    STEPS,
    crash_at,
    grow,
    outcomes,
    physical_outside_of,
    reject_doubled_records,
    reject_missing_records,
    run,
    settings_of,
)
from tests.fakes.stories import accept as accept_logs
from tests.fakes.world import Crash, FakeWorld, When

ONE, TWO, ALSO_ONE = PHYSICAL_LOGS
"""Partition 0 of broker 1, partition 0 of broker 2, partition 1 of broker 1."""
BROKER_1 = (ONE, ALSO_ONE)


def accept(outside: Outside, *names: str, **request: Any) -> Plan:
    return accept_logs(outside, *names, settings=PHYSICAL_SETTINGS, **request)


def physical(outside: Outside, partition: TopicPartition) -> PhysicalLog:
    found = outside.logs[partition]
    assert isinstance(found, PhysicalLog)
    return found


def loaded(*entries: int, alike: bool = False) -> Outside:
    """So many entries in each log, and all of them read."""
    outside = physical_outside_of(*entries or (5, 3, 4))
    for partition in outside.logs:
        physical(outside, partition).alike = alike
    outside.topic_ids = {"clicks": "zxid-5"}
    run(outside)
    return outside


def make_again(outside: Outside, partitions: Sequence[TopicPartition], entries: int = 9) -> None:
    """The topic on these brokers; by default the new partition is longer than the old one."""
    for partition in partitions:
        outside.logs[partition] = outside.logs[partition].recreated()
        outside.logs[partition].grow(entries)


def away(outside: Outside, partition: TopicPartition, *, is_away: bool = True) -> None:
    outside.logs[partition].has_leader = not is_away


def expire_read_offsets(outside: Outside, partition: TopicPartition) -> None:
    """Retention lets go of it, and leaves what came since."""
    found = physical(outside, partition)
    while found.log_start < outside.offsets[partition][0]:
        found.expire_segment()


def recreated_while_two_was_away() -> Outside:
    """On all brokers; that of TWO lost its log, too, and is still away."""
    outside = loaded()
    outside.topic_ids["clicks"] = "zxid-9"
    make_again(outside, [*BROKER_1, TWO])
    away(outside, TWO)
    return outside


def kept_by_two() -> Outside:
    """Recreated on broker 1 while broker 2 was unreachable."""
    outside = loaded()
    outside.topic_ids["clicks"] = "zxid-9"
    make_again(outside, BROKER_1)
    outside.logs[TWO].grow(2)
    return outside


def test_the_new_log_of_a_broker_absent_at_the_acceptance_is_not_read_at_the_old_offset() -> None:
    outside = recreated_while_two_was_away()
    with pytest.raises(NeedsDecision, match="deleted and recreated"):
        run(outside)
    before = outside.offsets[TWO][0]
    plan = accept(outside, "clicks")
    assert plan.loaded_until == {ONE: 0, ALSO_ONE: 0, TWO: before}
    assert (plan.topic_ids, log_topic_ids_of(plan)) == ({"clicks": "zxid-9"}, {TWO: "zxid-5"})
    run(outside)
    grow(outside, 1, 1, 1)
    assert outcomes(run(outside)) == [Outcome.NO_LEADER, Outcome.INGESTED]
    away(outside, TWO, is_away=False)
    with pytest.raises(NeedsDecision, match="may have kept its log or lost it") as refused:
        run(outside)
    assert refused.value.where["broker_id"] == 2 and refused.value.exit_code == 5
    evidence = "clicks:2-0: the bytes that were read or planned are not there any more"
    assert evidence in refused.value.action
    plan = accept(outside, "clicks:2-0")
    assert (plan.loaded_until[TWO], plan.incarnations[TWO], log_topic_ids_of(plan)) == (0, 1, {})
    run(outside)
    reject_missing_records(outside)


def test_a_kept_log_continues_at_its_offset_after_its_whole_topic_is_accepted() -> None:
    outside = kept_by_two()
    message = "each of its brokers may have kept its log or lost it.*and 2 more partitions"
    with pytest.raises(NeedsDecision, match=message) as refused:
        run(outside)
    for advice in (
        "clicks:1-0 clicks:1-1: the bytes that were read or planned are not there any more",
        "clicks:2-0: the bytes that were read or planned last are there",
        "etl topics accept-changes CONF -p clicks --reason ..., which reads logs that hold other",
    ):
        assert advice in refused.value.action
    plan = accept(outside, "clicks")
    assert (plan.incarnations, log_topic_ids_of(plan)) == ({ONE: 1, ALSO_ONE: 1}, {})
    assert {one.partition for one in plan.losses.stale_rows} == {ONE, ALSO_ONE}
    run(outside)
    reject_missing_records(outside)


def test_the_logs_of_a_topic_may_be_decided_one_after_the_other_and_each_counts_once() -> None:
    outside = kept_by_two()
    accept(outside, "clicks:1-0")
    with pytest.raises(NeedsDecision, match="and 1 more partitions"):
        run(outside)
    accept(outside, "clicks:2-0", is_same_log=True)
    with pytest.raises(NeedsDecision) as refused:
        run(outside)
    assert refused.value.where == {"topic": "clicks", "partition": 1, "broker_id": 1}
    plan = accept(outside, "clicks:1-1")
    assert (plan.incarnations, log_topic_ids_of(plan)) == ({ONE: 1, ALSO_ONE: 1}, {})
    assert {one.partition for one in plan.losses.stale_rows} == {ONE, ALSO_ONE}
    run(outside)
    reject_missing_records(outside)


@pytest.mark.parametrize(
    ("named", "is_same_log", "message"),
    [
        ("clicks:1-0", True, "not the same partition: it no longer has the bytes"),
        ("clicks:2-0", False, "It is the same partition: it has the bytes"),
        ("clicks", True, "not the same partition"),
    ],
)
def test_no_decision_overrides_the_bytes_of_a_log(
    named: str, is_same_log: bool, message: str
) -> None:
    outside = kept_by_two()
    before = dict(outside.plans)
    with pytest.raises(SettingsError, match=message):
        accept(outside, named, is_same_log=is_same_log)
    assert outside.plans == before


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_log_without_evidence_must_be_named_itself_and_the_operators_decision_counts(
    is_kept: bool,
) -> None:
    outside = kept_by_two()
    if not is_kept:
        make_again(outside, [TWO])
    outside.logs[TWO].grow(9)
    expire_read_offsets(outside, TWO)
    with pytest.raises(NeedsDecision) as refused:
        run(outside)
    command = "etl topics accept-changes CONF -p clicks:2-0"
    for advice in (
        "clicks:2-0: it is unknown whether the log is the same",
        f"lost its log: {command} --reason",
        f"kept it: {command} --not-recreated --reason",
    ):
        assert advice in refused.value.action
    for is_same_log in (True, False):
        with pytest.raises(SettingsError, match="must be named itself|not the same"):
            accept(outside, "clicks", is_same_log=is_same_log)
    accept(outside, "clicks:2-0", is_same_log=is_kept)
    accept(outside, "clicks")
    run(outside, settings_of(broker_type="jafka", on_data_loss="skip"))
    reject_missing_records(outside)


def test_a_kept_log_that_lost_its_end_is_accepted_with_the_offset_of_the_truncation() -> None:
    outside = kept_by_two()
    partition = physical(outside, TWO)
    cut = partition.entries[1][0]
    partition.cut(cut)
    partition.grow(9)
    with pytest.raises(NeedsDecision) as refused:
        run(outside)
    advice = "its disk lost only the end of it, name the partition, and pass with --truncated-at"
    assert advice in refused.value.action
    plan = accept(outside, "clicks:2-0", at_offset=cut)
    assert plan.loaded_until[TWO] == cut
    assert log_topic_ids_of(plan) == {ONE: "zxid-5", ALSO_ONE: "zxid-5"}
    accept(outside, "clicks")
    run(outside)
    reject_missing_records(outside)


def test_a_log_that_is_shorter_than_it_was_read_is_another_whatever_it_holds() -> None:
    outside = loaded()
    outside.topic_ids["clicks"] = "zxid-9"
    make_again(outside, [ONE, ALSO_ONE, TWO], entries=2)
    plan = accept(outside, "clicks")
    assert set(plan.loaded_until.values()) == {0}
    run(outside)
    reject_missing_records(outside)


def test_a_log_of_which_nothing_was_read_need_not_be_decided() -> None:
    outside = loaded(5, 0, 4)
    outside.topic_ids["clicks"] = "zxid-9"
    make_again(outside, BROKER_1)
    outside.logs[TWO].grow(3)
    accept(outside, "clicks:1-0", "clicks:1-1")
    run(outside)
    reject_missing_records(outside)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", When)
def test_a_crash_between_the_decisions_of_a_topic_and_its_last_log_loses_and_doubles_nothing(
    step: str, when: When
) -> None:
    outside = recreated_while_two_was_away()
    for name in ("clicks", "clicks:2-0"):
        with contextlib.suppress(Crash):
            accept(outside, name, at=crash_at(step, when))
        # the second one is refused where the first one was stored
        with contextlib.suppress(BrokerUnreachable, SettingsError):
            accept(outside, name)
        with contextlib.suppress(Crash):
            run(outside, at=crash_at(step, when))
        reject_doubled_records(outside)
        away(outside, TWO, is_away=False)
    run(outside)
    reject_missing_records(outside)


def test_a_log_recreated_on_one_broker_while_another_keeps_the_topic_stops_every_run() -> None:
    outside = loaded()
    make_again(outside, BROKER_1)
    before, position = dict(outside.plans), outside.offsets[ONE][0]
    message = "holds other bytes before offset .*and 1 more partitions"
    with pytest.raises(PartitionTruncated, match=message) as refused:
        run(outside)
    assert outside.plans == before
    assert "recreated on that broker alone" in refused.value.action
    command = "etl topics accept-changes CONF -p clicks:1-0 --truncated-at OFFSET"
    assert f"from 0 if it was recreated: {command}" in refused.value.action
    plan = accept(outside, "clicks:1-0", at_offset=0)
    assert plan.losses.stale_rows == (StaleRows(ONE, 0, position),)
    with pytest.raises(PartitionTruncated, match="holds other bytes"):
        run(outside)
    accept(outside, "clicks:1-1", at_offset=0)
    run(outside)
    reject_missing_records(outside)


class WithoutBytes(PhysicalLog):
    """A plan without fingerprints, or new logs with the same bytes."""

    def tail(self, until: int, size: int) -> Fingerprint:
        return Fingerprint(until, size, "as ever")


@pytest.mark.parametrize("at", [0, 44])
def test_a_log_without_an_entry_at_our_offset_is_accepted_as_another_without_evidence(
    at: int,
) -> None:
    outside = physical_outside_of(0, 3, 4)
    outside.logs[ONE] = WithoutBytes()
    grow(outside, 5, 0, 0)
    run(outside)
    outside.logs[ONE] = partition = WithoutBytes(entries=[(0, 1)], end=5, lives=[(0, 1)])
    partition.grow(12)
    position = outside.offsets[ONE][0]
    assert position not in [start for start, _ in partition.entries]
    # the position is not verified yet
    with pytest.raises(SettingsError, match="is unchanged: it was neither truncated nor recreated"):
        accept(outside, "clicks:1-0", at_offset=at)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    with pytest.raises(MisalignedOffset) as refused:
        run(outside)
    command = "etl topics accept-changes CONF -p clicks:1-0 --truncated-at OFFSET --reason ..."
    assert command in refused.value.action
    with pytest.raises(SettingsError, match=f"Offset {position} is above {position - 1}"):
        accept(outside, "clicks:1-0", at_offset=position)
    with pytest.raises(SettingsError, match="not the same partition"):
        accept(outside, "clicks:1-0", is_same_log=True)
    plan = accept(outside, "clicks:1-0", at_offset=at)
    assert plan.losses.stale_rows == (StaleRows(ONE, at, position),)
    run(outside)
    reject_doubled_records(outside)
    loaded_places = {place for found, place in outside.rows() if found == ONE}
    assert loaded_places >= set(partition.read(at, partition.end))


def test_a_log_that_a_cap_left_half_read_is_recognized_by_the_bytes_before_its_end() -> None:
    capped = settings_of(broker_type="jafka", limits={"max_bytes_per_plan": 1})
    outside = physical_outside_of(9)
    run(outside, capped)
    plan = outside.newest_plan()
    assert plan and plan.loaded_until[ONE] < plan.fingerprints[ONE].until_offset
    assert plan.fingerprints[ONE].until_offset == outside.logs[ONE].end
    make_again(outside, [ONE], entries=20)
    with pytest.raises(PartitionTruncated, match="holds other bytes"):
        run(outside, capped)


def test_logs_of_identical_messages_differ_by_the_topic_id_only_and_need_a_decision() -> None:
    outside = loaded(alike=True)
    outside.topic_ids["clicks"] = "zxid-9"
    make_again(outside, [*BROKER_1, TWO])
    for partition in ("clicks:1-0", "clicks:1-1", "clicks:2-0"):
        with pytest.raises(SettingsError, match="It is the same partition:"):
            accept(outside, partition)
        accept(outside, partition, at_offset=0)
    run(outside)
    reject_missing_records(outside)


@pytest.mark.parametrize(
    ("names", "at"),
    [(("clicks",), 0), (("clicks:1-0", "clicks:1-1"), 0), (("clicks:1-0",), 10_000)],
)
def test_at_is_for_one_partition_that_is_named_itself_and_no_higher_than_it_was_read(
    names: tuple[str, ...], at: int
) -> None:
    with pytest.raises(SettingsError, match="--truncated-at is for one partition|is above"):
        accept(kept_by_two(), *names, at_offset=at)


def test_a_log_without_a_decision_has_no_lag_and_the_others_have_theirs() -> None:
    outside = recreated_while_two_was_away()
    plan = accept(outside, "clicks")
    run(outside)
    away(outside, TWO, is_away=False)
    rows = offsets_of(FakeWorld(outside, PHYSICAL_SETTINGS).observe(), PHYSICAL_SETTINGS).rows
    lags = {(row["broker_id"], row["partition"]): row["lag"] for row in rows}
    assert lags == {(1, 0): 0, (1, 1): 0, (2, 0): None}
    undecided = {"topic": "clicks", "partition": 0, "broker_id": 2, "topic_id": "zxid-5"}
    assert describe_plan(plan, None)["undecided"] == [undecided]


def test_the_command_reports_of_each_log_whether_its_bytes_or_the_operator_decided_it() -> None:
    outside = kept_by_two()
    outside.logs[ALSO_ONE].grow(9)
    expire_read_offsets(outside, ALSO_ONE)
    old, snapshot = outside.newest_plan(), FakeWorld(outside, PHYSICAL_SETTINGS).observe()
    plan = accept(outside, "clicks:1-1", "clicks:1-0")
    assert old and describe_accepted_partitions(old, plan, snapshot) == [
        "clicks:1-1: is another partition, by your decision only: if it is the same one, its "
        "rows are in the table twice, under two incarnations",
        "clicks:2-0: is not decided yet, and runs stop until it is",
    ]
    away(outside, TWO)
    later, snapshot = (
        changed(plan, reason="another"),
        FakeWorld(outside, PHYSICAL_SETTINGS).observe(),
    )
    assert describe_accepted_partitions(plan, later, snapshot) == [
        "clicks:2-0: stays undecided: its broker is unreachable, and once it is available runs "
        "stop until it is decided"
    ]


def test_the_ids_of_logs_are_kept_only_where_they_are_not_their_topics() -> None:
    outside = recreated_while_two_was_away()
    plan = accept(outside, "clicks")
    assert topic_ids_to_record(plan, (), plan.loaded_until, {"clicks": "zxid-9"}) == {TWO: "zxid-5"}
    assert topic_ids_to_record(plan, [TWO], plan.loaded_until, {"clicks": "zxid-9"}) == {}


def test_a_log_that_is_recreated_during_the_read_stops_the_run_before_the_append() -> None:
    outside = loaded()
    grow(outside, 3, 0, 0)

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("fetch", When.AFTER):
            make_again(outside, [ONE], entries=30)

    with pytest.raises(PartitionTruncated, match="holds other bytes"):
        run(outside, at=at)
    with pytest.raises(SettingsError, match="do not report the truncation offset of the partition"):
        accept(outside, "clicks:1-0")
    accept(outside, "clicks:1-0", at_offset=0)
    run(outside)
    reject_missing_records(outside)
