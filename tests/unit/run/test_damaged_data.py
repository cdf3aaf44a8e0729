"""A message in the offsets of a plan is damaged: the plan and the command that skips are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etl.decide.byte_offsets import name_damaged_plan
from etl.errors import CorruptData, MisalignedOffset
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, LossReason, OffsetRange, Plan, PlanKind
from tests.builders import plain_plan
from tests.fakes.stories import PHYSICAL_LOGS, physical_outside_of, run
from tests.fakes.world import When

JAFKA = TopicPartition("jt", 0, 1)
KAFKA = TopicPartition("k t", 3)
CRC = "A message's CRC-32 is not that of its bytes"
AT_START = f"No message is at this byte position: {CRC}"


def plan_of(partition: TopicPartition, **changes: Any) -> Plan:
    ranges = (OffsetRange(partition, 7000, 7400),)
    return plain_plan(6, loaded_until={partition: 7400}, ranges=ranges, **changes)


def found_at(offset: int, partition: TopicPartition = JAFKA) -> MisalignedOffset:
    return MisalignedOffset(AT_START, action="Check the group", **partition.place, offset=offset)


@pytest.mark.parametrize("offset", [7000, 7200])
def test_damage_in_our_own_plan_is_corrupt_data_and_the_way_out_is_named(offset: int) -> None:
    error = name_damaged_plan(found_at(offset), plan_of(JAFKA))
    assert type(error) is MisalignedOffset
    assert error.message == f"Corrupt data in the offsets of plan 6: {CRC}"
    assert error.where == {"topic": "jt", "partition": 0, "broker_id": 1, "offset": offset}
    assert error.action == (
        "Check the partition on the broker for damage. To leave the damaged offsets out: "
        f"`etl plans supersede CONF 6 --skip jt:1-0:{offset}-UNTIL --reason ...`, where UNTIL is "
        "the start of the next undamaged message"
    )


def test_a_damaged_batch_of_kafka_keeps_its_message_and_checks() -> None:
    damaged = CorruptData("A CRC is wrong", action="Check the disks", **KAFKA.place, offset=7200)
    error = name_damaged_plan(damaged, plan_of(KAFKA))
    assert type(error) is CorruptData
    assert error.message == "Corrupt data in the offsets of plan 6: A CRC is wrong"
    assert error.action.startswith(
        "Check the disks. To leave the damaged offsets out: `etl plans supersede CONF 6 --skip "
        "'k t:3:7200-UNTIL' --reason ...`"
    )


@pytest.mark.parametrize(
    ("offset", "plan"),
    [
        (7400, plan_of(JAFKA)),
        (6999, plan_of(JAFKA)),
        (7200, plan_of(KAFKA)),
        (7200, plan_of(JAFKA, kind=PlanKind.REPLAY)),
        (7000, replace(plan_of(JAFKA), number=1)),
        (7000, plan_of(JAFKA, lost=(Loss(JAFKA, 6000, 7000, LossReason.MOVED),))),
    ],
)
def test_an_offset_that_another_client_may_have_set_is_reported_as_read(
    offset: int, plan: Plan
) -> None:
    damaged = found_at(offset)
    assert name_damaged_plan(damaged, plan) is damaged


def test_an_error_without_an_offset_stays() -> None:
    damaged = CorruptData("A response is truncated", action="Check the network", **JAFKA.place)
    assert name_damaged_plan(damaged, plan_of(JAFKA)) is damaged


def test_a_run_names_its_stored_plan() -> None:
    outside = physical_outside_of(4, 2, 2)
    run(outside)
    partition = PHYSICAL_LOGS[0]
    start = outside.logs[partition].end
    outside.logs[partition].grow(3)

    def damage(step: str, when: When) -> None:
        if (step, when) == ("append", When.BEFORE):
            raise MisalignedOffset(
                AT_START, action="Check the group", **partition.place, offset=start
            )

    with pytest.raises(MisalignedOffset) as refused:
        run(outside, at=damage)
    assert refused.value.message == f"Corrupt data in the offsets of plan 2: {CRC}"
    assert f"CONF 2 --skip clicks:1-0:{start}-UNTIL --reason" in refused.value.action
    assert sorted(outside.plans) == [1, 2]


def test_an_error_that_stays_is_not_its_own_cause() -> None:
    outside = physical_outside_of(4, 2, 2)
    damaged = CorruptData("A response is truncated", action="Check the network", **JAFKA.place)

    def damage(step: str, when: When) -> None:
        if (step, when) == ("append", When.BEFORE):
            raise damaged

    with pytest.raises(CorruptData) as raised:
        run(outside, at=damage)
    assert raised.value is damaged and damaged.__cause__ is None
