"""The crash law for committed offsets in Kafka (without compare-and-set), or in both places."""

from __future__ import annotations

import pytest

from etl.commands.restore_ledger import restore_from_commits
from etl.errors import OffsetMoved, SettingsError
from etl.model.partitions import OffsetsStorage
from etl.report.run_progress import Outcome
from tests.fakes.any_history import restore_ledger
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    CRASHES,
    LOGS,
    SETTINGS,
    crash_at,
    grow,
    offsets_of,
    outcomes,
    outside_of,
    reject_broken,
    reject_unfinished,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

KAFKA, DUAL, ZOOKEEPER = OffsetsStorage.KAFKA, OffsetsStorage.DUAL, OffsetsStorage.ZOOKEEPER
in_kafka_too = pytest.mark.parametrize("storage", [KAFKA, DUAL])


def outside_in(storage: OffsetsStorage, *ends: int) -> Outside:
    outside = outside_of(*ends)
    outside.offsets_in = storage
    return outside


@in_kafka_too
@pytest.mark.parametrize(("step", "when"), [*CRASHES, ("commit in ZooKeeper", When.BEFORE)])
def test_after_a_crash_the_next_run_finishes_wherever_offsets_are(
    storage: OffsetsStorage, step: str, when: When
) -> None:
    outside = outside_in(storage, 5, 3, 4)
    run(outside)
    grow(outside, 7, 1, 2)
    if storage is KAFKA and step == "commit in ZooKeeper":
        run(outside, at=crash_at(step, when))
        assert outside.offsets == {}, "nothing is written there"
        return
    with pytest.raises(Crash):
        run(outside, at=crash_at(step, when))
    reject_broken(outside)
    grow(outside, 3, 1, 9)
    run(outside)
    reject_unfinished(outside)
    assert all(
        found.is_at(outside.logs[partition].end) for partition, found in outside.committed().items()
    ), "in each place"


@in_kafka_too
@pytest.mark.parametrize(("step", "when"), CRASHES)
def test_a_group_that_expired_after_a_crash_continues_at_the_loaded_until_offsets(
    storage: OffsetsStorage, step: str, when: When
) -> None:
    outside = outside_in(storage, 5, 3, 4)
    run(outside)
    grow(outside, 7, 1, 2)
    with pytest.raises(Crash):
        run(outside, at=crash_at(step, when))
    outside.kept.clear()
    report = run(outside, settings_of(starting_offsets="latest"))
    reject_unfinished(outside)
    assert {Outcome.PLAN_COMPLETED, Outcome.PLAN_RESUMED} & {*outcomes(report)}, (
        "the outcome reports the repair"
    )


@in_kafka_too
@pytest.mark.parametrize(
    ("step", "when"),
    [crash for crash in CRASHES if crash[0] in ("store plan", "append", "commit from 0")],
)
def test_an_offset_moved_after_a_crash_stops_the_next_run_and_is_never_overwritten(
    storage: OffsetsStorage,
    step: str,
    when: When,
) -> None:
    outside = outside_in(storage, 5, 3, 4)
    run(outside)
    grow(outside, 7, 1, 2)
    with pytest.raises(Crash):
        run(outside, at=crash_at(step, when))
    outside.kept[LOGS[0]] = 2, "mine"
    with pytest.raises(OffsetMoved):
        run(outside)
    reject_broken(outside)
    assert outside.kept[LOGS[0]] == (2, "mine")
    with pytest.raises(OffsetMoved):
        run(outside)
    world = FakeWorld(outside, SETTINGS)
    restore_from_commits(world, world.observe(), SETTINGS, "seen", "run-2")
    run(outside)
    reject_unfinished(outside)


def test_a_driver_that_writes_late_is_taken_for_one_of_ours_and_its_offset_is_moved_again() -> None:
    outside = outside_in(KAFKA, 5)
    run(outside)
    late = dict(outside.kept)
    for _ in range(3):
        grow(outside, 2)
        run(outside)
    outside.kept.update(late)
    assert outcomes(run(outside)) == [Outcome.PLAN_COMPLETED, Outcome.UP_TO_DATE]
    reject_unfinished(outside)


@pytest.mark.parametrize("was", OffsetsStorage)
@pytest.mark.parametrize("now", OffsetsStorage)
def test_the_changed_key_applies_after_an_unfinished_plan(
    was: OffsetsStorage, now: OffsetsStorage
) -> None:
    outside = outside_in(was, 5, 3, 4)
    run(outside)
    grow(outside, 1, 1, 1)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    outside.offsets_in = now
    if was is not now:
        with pytest.raises(SettingsError, match=f"was made for offsets in {was.value}"):
            run(outside)
        outside.offsets_in = was
    run(outside)
    outside.offsets_in = now
    run(outside)
    assert set(offsets_of(outside).values()) == {6, 4, 5}
    grow(outside, 2, 2, 2)
    run(outside)
    reject_unfinished(outside)


@pytest.mark.parametrize(
    ("was", "now"), [(KAFKA, ZOOKEEPER), (KAFKA, DUAL), (ZOOKEEPER, KAFKA), (ZOOKEEPER, DUAL)]
)
def test_an_offset_from_before_the_change_of_the_key_is_set_by_a_command(
    was: OffsetsStorage, now: OffsetsStorage
) -> None:
    outside = outside_in(was, 5, 3, 4)
    run(outside)
    for partition in LOGS:
        if was is ZOOKEEPER:
            outside.kept[partition] = (1, "theirs")
        else:
            outside.offsets[partition] = (1, 7)
    outside.offsets_in = now
    with pytest.raises(OffsetMoved) as caught:
        run(outside)
    message = f"group.offsets_storage is {now.value} now, and was {was.value} when plan 1 was made"
    assert message in caught.value.message
    assert "etl ledger restore CONF" in caught.value.action
    restore_ledger(outside, SETTINGS)
    run(outside)
    grow(outside, 2, 2, 2)
    run(outside)
    reject_unfinished(outside)
