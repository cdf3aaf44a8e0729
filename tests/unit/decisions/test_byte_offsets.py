"""Byte offsets that another client committed or an operator names are verified once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etl.decide.byte_offsets import (
    correct_start_offsets,
    no_operator_offsets,
    reject_misaligned_offset,
    reject_misaligned_offsets,
    unverified_offsets,
)
from etl.decide.next_step import plan_superseding, steps_ahead
from etl.errors import MisalignedOffset, OffsetMoved, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.partitions import (
    Committed,
    LookedAt,
    PartitionOffsets,
    TopicPartition,
    UnverifiedOffset,
)
from etl.model.plans import Loss, LossReason, OffsetRange, Plan
from etl.model.snapshot import Supersede, Table
from etl.settings.sections import Settings
from tests.builders import changed, plain_plan, with_facts
from tests.fakes.outside import Outside
from tests.fakes.physical_log import PhysicalLog
from tests.fakes.planning import NOW_MS, A
from tests.fakes.stories import (
    PHYSICAL_LOGS,
    PHYSICAL_SETTINGS,
    physical_outside_of,
    reject_doubled_records,
    reject_unfinished,
    run,
    settings_of,
)
from tests.fakes.stories import accept as accept_logs
from tests.fakes.world import FakeWorld

ONE, TWO, _ = PHYSICAL_LOGS
FOLLOWING = settings_of(broker_type="jafka", on_offset_changed="follow")
EXTENT = PartitionOffsets(0, 100, boundaries=(0, 40, 100))


def doubted(
    plan: Plan | None,
    offset: int | None,
    *,
    in_table: bool = True,
    offsets: PartitionOffsets = EXTENT,
) -> list[int]:
    table = Table("t", 1, plan.number if plan and in_table else None)
    return [
        one.offset
        for one in unverified_offsets(plan, table, {ONE: Committed(offset, 3)}, {ONE: offsets})
    ]


def starts_of(outside: Outside, partition: TopicPartition = ONE) -> list[int]:
    """Where the messages of the log begin."""
    found = outside.logs[partition]
    assert isinstance(found, PhysicalLog)
    return [start for start, _ in found.entries]


def moved_inside_a_message() -> tuple[Outside, list[int], int]:
    """Another client moved ONE's offset; where its messages begin, and our offset."""
    outside = physical_outside_of(6, 3, 4)
    run(outside)
    outside.logs[ONE].grow(3)
    starts, ours = starts_of(outside), outside.offsets[ONE][0]
    outside.move_offset(ONE, starts[7] + 5)
    return outside, starts, ours


def loaded(outside: Outside) -> set[Any]:
    """The places of ONE that have a row."""
    return {place for partition, place in outside.rows() if partition == ONE}


def held(outside: Outside, start: int) -> set[Any]:
    """The places of ONE from this offset on."""
    return set(outside.logs[ONE].held(start, outside.logs[ONE].end))


class Blind(FakeWorld):
    """A driver of an earlier version, which verified nothing."""

    def _snapshot(self, named=no_operator_offsets):  # type: ignore[no-untyped-def]
        return with_facts(super()._snapshot(), looked_at={})


def store_blindly(outside: Outside) -> Plan:
    world = Blind(outside, FOLLOWING)
    step = steps_ahead(world.observe(), FOLLOWING, now_ms=world.now_ms(), uid="uid1")[0]
    assert step.plan
    world.store(step.plan)
    return step.plan


def superseded(
    outside: Outside, *, skipped: tuple[Loss, ...] = (), settings: Settings = FOLLOWING
) -> Plan:
    """What `etl plans supersede` does with the outside."""
    world = FakeWorld(outside, settings)
    snapshot = world.observe(
        lambda partition: [skip.until_offset for skip in skipped if skip.partition == partition]
    )
    newest = outside.newest_plan()
    assert newest
    state = Supersede(correct_start_offsets(newest, None, snapshot), "put right", skipped)
    plan = plan_superseding(state, snapshot, settings, now_ms=NOW_MS)
    world.supersede(plan, snapshot.ledger)
    return plan


def test_the_start_offset_of_a_new_log_is_verified_unless_the_broker_reports_it() -> None:
    assert doubted(None, 17) == [17] == doubted(plain_plan(loaded_until={TWO: 5}), 17)
    for known in (0, 40, 100, None):
        assert doubted(None, known) == []
    assert doubted(None, 130) == [], "an offset above the end is another error"
    in_kafka = unverified_offsets(None, None, {A: Committed(17, 1)}, {A: PartitionOffsets(0, 100)})
    assert in_kafka == ()


def test_a_moved_offset_is_verified_and_the_end_of_our_own_plan_is_not() -> None:
    plan = plain_plan(4, loaded_until={ONE: 55}, expected_commits={ONE: Committed(20, 2)})
    assert doubted(plan, 55) == doubted(plan, 20) == []
    assert doubted(plan, 60) == [60]
    assert unverified_offsets(plan, Table("t", 1, 4), {ONE: Committed(60, 3)}, {ONE: EXTENT}) == (
        UnverifiedOffset(ONE, 60, 55, 100),
    )


def test_a_verified_offset_comes_with_the_end_of_its_segment() -> None:
    assert unverified_offsets(None, None, {ONE: Committed(17, 3)}, {ONE: EXTENT}) == (
        UnverifiedOffset(ONE, 17, 0, 40),
    )
    assert unverified_offsets(None, None, {ONE: Committed(60, 3)}, {ONE: EXTENT}) == (
        UnverifiedOffset(ONE, 60, 40, 100),
    )


def test_the_start_of_an_unfinished_plan_and_the_present_offset_are_verified() -> None:
    plan = plain_plan(
        4,
        loaded_until={ONE: 90},
        ranges=(OffsetRange(ONE, 50, 90),),
        lost=(Loss(ONE, 45, 50, LossReason.MOVED),),
    )
    assert doubted(plan, 50, in_table=False) == [50]
    skipped = changed(plan, lost=(Loss(ONE, 45, 50, LossReason.SKIPPED),))
    assert doubted(skipped, 45, in_table=False) == [45], "the end of a skip was verified before"
    found = unverified_offsets(plan, None, {ONE: Committed(47, 3)}, {ONE: EXTENT})
    assert found == (
        UnverifiedOffset(ONE, 50, 45, 100, is_kept=True),
        UnverifiedOffset(ONE, 47, 45, 100),
    )


def test_an_offset_that_was_moved_inside_a_message_stops_a_run_before_anything_is_stored() -> None:
    outside, starts, ours = moved_inside_a_message()
    plans = dict(outside.plans)
    with pytest.raises(
        MisalignedOffset, match=f"it is inside the one from {starts[7]} to {starts[8]}"
    ) as refused:
        run(outside, FOLLOWING)
    assert outside.plans == plans
    place = {"topic": "clicks", "partition": 0, "broker_id": 1}
    assert refused.value.where == {**place, "offset": starts[7] + 5}
    assert f"Set it back to {ours}, the end of the loaded offsets" in refused.value.action
    assert f"A message begins at {starts[7]} or {starts[8]}, too" in refused.value.action
    outside.move_offset(ONE, ours)
    run(outside, FOLLOWING)
    reject_unfinished(outside)


def test_a_start_inside_a_message_stops_the_first_run_and_either_end_is_accepted() -> None:
    outside = physical_outside_of(6, 3, 4)
    starts = starts_of(outside)
    outside.move_offset(ONE, starts[2] - 1)
    with pytest.raises(
        MisalignedOffset, match="No message begins at the committed offset:"
    ) as refused:
        run(outside)
    assert not outside.plans and not outside.table
    assert f"Set it to {starts[1]}: the message that begins there" in refused.value.action
    assert f"Or set it to {starts[2]}: that message is left out" in refused.value.action
    outside.move_offset(ONE, starts[1])
    run(outside)
    assert loaded(outside) == held(outside, starts[1])


def test_without_a_scan_so_far_back_the_error_names_the_boundaries_of_the_broker() -> None:
    outside = physical_outside_of(6, 3, 4)
    bounds = outside.logs[ONE].extent.boundaries
    assert bounds
    outside.move_offset(ONE, bounds[1] + 3)
    seen = FakeWorld(outside, PHYSICAL_SETTINGS).observe()
    looked = tuple(replace(one, before=None, after=None) for one in seen.partition(ONE).looked_at)
    seen = with_facts(seen, looked_at={ONE: looked})
    with pytest.raises(MisalignedOffset, match="its length would be -1") as refused:
        steps_ahead(seen, PHYSICAL_SETTINGS, now_ms=NOW_MS, uid="u")
    assert f"reports {bounds[1]} below it: all later messages are loaded" in refused.value.action
    assert f"It reports {bounds[2]} above it: messages below that" in refused.value.action


def test_a_misaligned_stored_plan_is_reported_before_the_read_and_repaired_by_the_offset() -> None:
    outside, _, ours = moved_inside_a_message()
    plan = store_blindly(outside)
    message = "Plan 2 is stored and not in the table, and no message begins at its start"
    command = "`etl plans supersede CONF 2 --reason ...`"
    with pytest.raises(MisalignedOffset, match=message) as refused:
        run(outside, FOLLOWING)
    assert f"Set it back to {ours}" in refused.value.action
    assert f". Then run {command}, which plans again from the comm" in refused.value.action
    outside.move_offset(ONE, ours)
    with pytest.raises(MisalignedOffset) as refused:
        run(outside, FOLLOWING)
    assert refused.value.action.startswith(f"Run {command}")
    assert refused.value.action.endswith(f"it is {ours} now, the start of a message")
    instead = superseded(outside)
    assert (instead.origin.supersedes, instead.losses.lost) == (plan.id, ())
    assert min(r.from_offset for r in instead.ranges if r.partition == ONE) == ours
    run(outside, FOLLOWING)
    reject_unfinished(outside)


def test_a_plan_repaired_to_a_later_message_reports_the_offsets_before_it_as_lost() -> None:
    outside, starts, ours = moved_inside_a_message()
    store_blindly(outside)
    outside.move_offset(ONE, starts[8])
    assert superseded(outside).losses.lost == (Loss(ONE, ours, starts[8], LossReason.MOVED),)
    run(outside, FOLLOWING)
    assert outside.offsets[ONE][0] == outside.logs[ONE].end
    assert not [row for row, times in outside.rows().items() if times > 1]


def test_a_start_inside_a_message_may_be_skipped() -> None:
    outside = physical_outside_of(6, 3, 4)
    starts = starts_of(outside)
    outside.move_offset(ONE, starts[2] - 1)
    store_blindly(outside)
    skip = Loss(ONE, starts[2] - 1, starts[3], LossReason.SKIPPED)
    plan = superseded(outside, skipped=(skip,))
    assert min(r.from_offset for r in plan.ranges if r.partition == ONE) == starts[3]
    run(outside)
    assert loaded(outside) == held(outside, starts[3])


def test_a_skip_that_ends_inside_a_message_is_refused_before_it_is_stored() -> None:
    outside = physical_outside_of(6, 3, 4)
    starts, stored = starts_of(outside), store_blindly(outside)
    with pytest.raises(
        SettingsError, match=f"it is inside the one from {starts[2]} to {starts[3]}"
    ) as refused:
        superseded(outside, skipped=(Loss(ONE, starts[1], starts[2] + 4, LossReason.SKIPPED),))
    assert (refused.value.where["key"], outside.newest_plan()) == ("--skip", stored)
    superseded(outside, skipped=(Loss(ONE, starts[1], starts[2], LossReason.SKIPPED),))
    run(outside)
    assert loaded(outside) == held(outside, 0) - outside.logs[ONE].held(starts[1], starts[2])


def test_what_an_operator_names_is_walked_to_also_where_a_plan_that_is_left_begins() -> None:
    plan = plain_plan(4, loaded_until={ONE: 90}, ranges=(OffsetRange(ONE, 50, 90),))
    found = unverified_offsets(
        plan, None, {ONE: Committed(50, 3)}, {ONE: EXTENT}, lambda partition: [50, 40, 130]
    )
    assert found == (UnverifiedOffset(ONE, 50, 40, 100),)


STORED_AT_37 = with_id(
    plain_plan(
        2,
        loaded_until={ONE: 60},
        ranges=(OffsetRange(ONE, 37, 60),),
        expected_commits={ONE: Committed(37, 2)},
    )
)


def test_a_first_plan_is_repaired_too_and_that_of_a_log_read_before_and_not_moved_is_not() -> None:
    outside = physical_outside_of(6, 3, 4)
    starts = starts_of(outside)
    outside.move_offset(ONE, starts[2] - 1)
    store_blindly(outside)
    outside.move_offset(ONE, starts[1])
    assert min(r.from_offset for r in superseded(outside).ranges if r.partition == ONE) == starts[1]
    run(outside)
    assert loaded(outside) == held(outside, starts[1])
    seen, before = FakeWorld(outside, FOLLOWING).observe(), plain_plan(1, loaded_until={ONE: 37})
    assert correct_start_offsets(STORED_AT_37, before, seen) == STORED_AT_37


def test_a_misaligned_plan_of_a_log_that_was_read_before_may_mean_a_damaged_log() -> None:
    damaged = LookedAt(37, False, "its magic would be 9")
    seen = FakeWorld(physical_outside_of(9, 3, 4), FOLLOWING).observe()
    seen = with_facts(seen, looked_at={ONE: (damaged,)})
    message = "at its start in this partition: its magic would be 9"
    with pytest.raises(MisalignedOffset, match=message) as refused:
        reject_misaligned_offsets({ONE: 37}, seen, STORED_AT_37, is_left=True)
    assert refused.value.action.endswith(
        "If no client set it, compare the partition's records with the table's (etl records "
        "show). If it is another partition, or lost its end and was written since, etl topics "
        "accept-changes CONF -p clicks:1-0 --truncated-at OFFSET --reason ... continues at the "
        "end of the equal records, at 0 if it was recreated. If it is the same and damaged "
        "there, --skip leaves the damaged offsets out"
    )


def test_a_stored_plan_is_not_repaired_to_a_loaded_offset_or_into_another_message() -> None:
    outside, starts, _ = moved_inside_a_message()
    store_blindly(outside)
    outside.move_offset(ONE, starts[2])
    with pytest.raises(OffsetMoved, match="following it would load rows twice"):
        superseded(outside)
    outside.move_offset(ONE, starts[8] + 2)
    with pytest.raises(MisalignedOffset):
        superseded(outside)


# -- offsets that an operator names


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


def test_an_operators_offset_inside_a_message_is_refused_with_the_ones_around_it() -> None:
    outside = undecided(entries=30)
    starts, before = starts_of(outside, TWO), dict(outside.plans)
    message = f"it is inside the one from {starts[1]} to {starts[2]}"
    with pytest.raises(SettingsError, match=message) as refused:
        accept(outside, "clicks:2-0", at_offset=starts[1] + 3)
    assert (refused.value.exit_code, refused.value.where["key"]) == (2, "--truncated-at")
    assert outside.plans == before
    assert accept(outside, "clicks:2-0", at_offset=starts[1]).loaded_until[TWO] == starts[1]


def test_an_unverifiable_offset_is_rejected_with_the_offsets_that_the_broker_reports() -> None:
    seen = FakeWorld(undecided(entries=30), PHYSICAL_SETTINGS).observe()
    bounds = seen.readable[TWO].boundaries
    assert bounds
    unknown = LookedAt(bounds[1] + 3, None, "its broker gives nothing from there")
    seen = with_facts(seen, looked_at={TWO: (unknown,)})
    message = "It is unknown whether a message begins at .*: its broker gives nothing"
    with pytest.raises(SettingsError, match=message) as refused:
        reject_misaligned_offset(TWO, unknown.offset, seen, key="--truncated-at")
    nearest = f"The nearest offsets that the broker reports are {bounds[1]} and {bounds[2]}"
    assert nearest in refused.value.action


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
    starts, before = starts_of(outside, ONE), dict(outside.plans)
    with pytest.raises(
        SettingsError, match=f"it is inside the one from {starts[1]} to {starts[2]}"
    ):
        accept(outside, name, at_offset=starts[1] + 3)
    assert outside.plans == before
    assert accept(outside, name, at_offset=starts[2]).loaded_until[ONE] == starts[2]


def accepted_by_an_earlier_version() -> tuple[Outside, list[int]]:
    """A reset is stored that leaves ONE inside its second message."""
    outside = recreate(ONE, entries=5)
    starts = starts_of(outside)
    plan = accept(outside, "clicks:1-0", at_offset=starts[2])
    inside = {**plan.loaded_until, ONE: starts[1] + 3}
    wrong = with_id(changed(plan, loaded_until=inside, fingerprints={}, id=""))
    world = FakeWorld(outside, PHYSICAL_SETTINGS)
    world.supersede(wrong, world.observe().ledger)
    return outside, starts


def test_a_stored_reset_inside_a_message_is_accepted_again_as_its_error_advises() -> None:
    outside, starts = accepted_by_an_earlier_version()
    with pytest.raises(MisalignedOffset) as refused:
        run(outside)
    command = "etl topics accept-changes CONF -p clicks:1-0 --truncated-at OFFSET"
    assert f"If it is {starts[1]} or below, run `{command}" in refused.value.action
    skip = f"etl plans supersede CONF 2 --skip clicks:1-0:{starts[1] + 3}-{starts[2]} --reason"
    assert skip in refused.value.action
    assert accept(outside, "clicks:1-0", at_offset=starts[1]).loaded_until[ONE] == starts[1]
    run(outside)
    reject_doubled_records(outside)
    assert outside.offsets[ONE][0] == outside.logs[ONE].end
