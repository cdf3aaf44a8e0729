"""Offsets of Jafka partitions that an operator names: verified before they are stored, and reported
if they were accepted unverified.
"""

from __future__ import annotations

import pytest

from etl.decide.byte_offsets import reject_misaligned_offset
from etl.decide.next_step import plan_superseding
from etl.errors import MisalignedOffset, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.partitions import LookedAt, TopicPartition
from etl.model.plans import Loss, LossReason, Plan
from etl.model.snapshot import Supersede
from tests.builders import changed, with_facts
from tests.fakes.outside import Outside
from tests.fakes.physical_log import PhysicalLog
from tests.fakes.stories import (
    PHYSICAL_LOGS,
    PHYSICAL_SETTINGS,
    physical_outside_of,
    reject_doubled_records,
    run,
)
from tests.fakes.stories import accept as accept_logs
from tests.fakes.world import FakeWorld

ONE, TWO, _ = PHYSICAL_LOGS


def accept(outside: Outside, name: str, *, at_offset: int) -> Plan:
    return accept_logs(outside, name, at_offset=at_offset, settings=PHYSICAL_SETTINGS)


def recreate(partition: TopicPartition, *, entries: int) -> Outside:
    """All partitions were read, then this one was recreated on its broker."""
    outside = physical_outside_of(5, 3, 4)
    outside.topic_ids = {"clicks": "zxid-5"}
    run(outside)
    outside.logs[partition] = outside.logs[partition].recreated()
    outside.logs[partition].grow(entries)
    return outside


def undecided(*, entries: int) -> Outside:
    """The same on the broker of TWO, and the topic has another id since."""
    outside = recreate(TWO, entries=entries)
    outside.topic_ids["clicks"] = "zxid-9"
    return outside


def starts_in(outside: Outside, partition: TopicPartition) -> list[int]:
    """Where the messages of the log begin."""
    found = outside.logs[partition]
    assert isinstance(found, PhysicalLog)
    return [start for start, _ in found.entries]


def test_an_offset_that_an_operator_names_inside_a_message_is_refused_with_the_ones_around_it() -> (
    None
):
    outside = undecided(entries=30)
    starts, before = starts_in(outside, TWO), dict(outside.plans)
    with pytest.raises(
        SettingsError, match=f"it is inside the one from {starts[1]} to {starts[2]}"
    ) as refused:
        accept(outside, "clicks:2-0", at_offset=starts[1] + 3)
    assert (refused.value.exit_code, refused.value.where["key"], outside.plans) == (
        2,
        "--truncated-at",
        before,
    )
    assert accept(outside, "clicks:2-0", at_offset=starts[1]).loaded_until[TWO] == starts[1]


def test_an_unverifiable_offset_is_rejected_with_the_offsets_that_the_broker_reports() -> None:
    outside = undecided(entries=30)
    seen = FakeWorld(outside, PHYSICAL_SETTINGS).observe()
    bounds = seen.readable[TWO].boundaries
    assert bounds
    untold = LookedAt(bounds[1] + 3, None, "its broker gives nothing from there")
    with pytest.raises(
        SettingsError,
        match="It is unknown whether a message begins at .*: its broker gives nothing",
    ) as refused:
        reject_misaligned_offset(
            TWO, untold.offset, with_facts(seen, looked_at={TWO: (untold,)}), key="--truncated-at"
        )
    assert (
        f"The nearest offsets that the broker reports are {bounds[1]} and {bounds[2]}"
        in refused.value.action
    )


def test_an_offset_above_the_end_of_an_undecided_log_is_refused() -> None:
    outside = undecided(entries=1)
    end = outside.logs[TWO].end
    assert end + 1 < outside.offsets[TWO][0]
    with pytest.raises(SettingsError, match=f"is above {end}, the end of the partition"):
        accept(outside, "clicks:2-0", at_offset=end + 1)
    assert accept(outside, "clicks:2-0", at_offset=end).loaded_until[TWO] == end


@pytest.mark.parametrize("name", ["clicks", "clicks:1-0"])
def test_where_a_log_was_cut_is_no_offset_inside_a_message(name: str) -> None:
    outside = recreate(ONE, entries=5)
    starts, before = starts_in(outside, ONE), dict(outside.plans)
    with pytest.raises(
        SettingsError, match=f"it is inside the one from {starts[1]} to {starts[2]}"
    ):
        accept(outside, name, at_offset=starts[1] + 3)
    assert outside.plans == before
    assert accept(outside, name, at_offset=starts[2]).loaded_until[ONE] == starts[2]


def accepted_by_an_earlier_version() -> tuple[Outside, list[int]]:
    """A reset is stored that leaves ONE inside its second message."""
    outside = recreate(ONE, entries=5)
    starts = starts_in(outside, ONE)
    plan = accept(outside, "clicks:1-0", at_offset=starts[2])
    wrong = with_id(
        changed(
            plan, loaded_until={**plan.loaded_until, ONE: starts[1] + 3}, fingerprints={}, id=""
        )
    )
    world = FakeWorld(outside, PHYSICAL_SETTINGS)
    world.supersede(wrong, world.observe().ledger)
    return outside, starts


def test_a_stored_reset_that_begins_inside_a_message_is_accepted_again_as_its_message_advises() -> (
    None
):
    outside, starts = accepted_by_an_earlier_version()
    with pytest.raises(MisalignedOffset) as refused:
        run(outside)
    assert (
        f"If it is {starts[1]} or below, run `etl topics accept-changes CONF -p clicks:1-0 "
        f"--truncated-at OFFSET" in refused.value.action
    )
    assert accept(outside, "clicks:1-0", at_offset=starts[1]).loaded_until[ONE] == starts[1]
    run(outside)
    reject_doubled_records(outside)
    assert outside.offsets[ONE][0] == outside.logs[ONE].end


def test_a_stored_reset_inside_a_message_skips_it_as_its_message_advises() -> None:
    outside, starts = accepted_by_an_earlier_version()
    with pytest.raises(MisalignedOffset) as refused:
        run(outside)
    assert (
        f"etl plans supersede CONF 2 --skip clicks:1-0:{starts[1] + 3}-{starts[2]} --reason"
        in refused.value.action
    )
    world = FakeWorld(outside, PHYSICAL_SETTINGS)
    snapshot, stored = (
        world.observe(lambda partition: [starts[2]] if partition == ONE else []),
        outside.newest_plan(),
    )
    assert stored
    skip = Loss(ONE, starts[1] + 3, starts[2], LossReason.SKIPPED)
    plan = plan_superseding(
        Supersede(stored, "by the operator", (skip,)),
        snapshot,
        PHYSICAL_SETTINGS,
        now_ms=world.now_ms(),
    )
    world.supersede(plan, snapshot.ledger)
    run(outside)
    reject_doubled_records(outside)
    assert outside.offsets[ONE][0] == outside.logs[ONE].end
