"""Committed offsets in ZooKeeper, in Kafka or in both: how they are read and compared with a plan."""

from __future__ import annotations

import pytest

from etl.decide.offsets import (
    apart_from,
    both,
    is_dropped,
    off_position,
    place_moved,
    reject_other_offsets_storage,
    up_to_date,
)
from etl.errors import OffsetMoved, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.partitions import NOTHING_COMMITTED, Committed, OffsetsStorage, TopicPartition
from etl.model.plans import Plan, PlannedCommit
from etl.settings.choices import OnOffsetChanged
from tests.builders import changed, plain_plan

LOG = TopicPartition("clicks", 0)
ZOOKEEPER, KAFKA, DUAL = OffsetsStorage.ZOOKEEPER, OffsetsStorage.KAFKA, OffsetsStorage.DUAL


def plan_at(storage: OffsetsStorage, seen: Committed, position: int = 800) -> Plan:
    return with_id(
        changed(
            plain_plan(12),
            ranges=(),
            loaded_until={LOG: position},
            expected_commits={LOG: seen},
            commit=PlannedCommit(storage=storage),
        )
    )


def in_zookeeper(offset: int | None, version: int = 3) -> Committed:
    return NOTHING_COMMITTED if offset is None else Committed(offset, version)


def in_kafka(offset: int | None, word: str = "11:before") -> Committed:
    return NOTHING_COMMITTED if offset is None else Committed(offset, None, word)


IN_BOTH = both(in_zookeeper(500), in_kafka(500))

# Reading both


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "read"),
    [
        (None, None, None),
        (None, 5, 5),
        (None, 9, 9),
        (5, None, 5),
        (5, 5, 5),
        (5, 9, 9),
        (9, None, 9),
        (9, 5, 9),
        (9, 9, 9),
    ],
)
def test_of_two_places_the_larger_offset_counts(
    zookeeper: int | None, kafka: int | None, read: int | None
) -> None:
    found = both(in_zookeeper(zookeeper), in_kafka(kafka))
    assert found.offset == read
    assert (found.in_zookeeper, found.in_kafka) == (in_zookeeper(zookeeper), in_kafka(kafka)), (
        "and each side is still known"
    )
    assert (found.differing is None) is (zookeeper == kafka)


# Moving


@pytest.mark.parametrize("storage", OffsetsStorage)
def test_a_plan_knows_what_its_commit_leaves_in_each_place(storage: OffsetsStorage) -> None:
    seen = {
        ZOOKEEPER: in_zookeeper(500),
        KAFKA: in_kafka(500),
        DUAL: both(in_zookeeper(500), in_kafka(600)),
    }
    plan = plan_at(storage, seen[storage])
    ours = f"{plan.number}:{plan.id}"
    left = {
        ZOOKEEPER: Committed(800, 4),
        KAFKA: Committed(800, None, ours),
        DUAL: Committed(800, 4, ours),
    }
    assert plan.moved(LOG) == left[storage]
    assert plan.offsets_to_move == (LOG,)


def test_a_place_that_is_there_already_is_not_written_again() -> None:
    plan = plan_at(DUAL, both(in_zookeeper(800), in_kafka(500)))
    assert plan.offsets_to_move == (LOG,), "the smaller of the two offsets moves"
    assert plan.moved(LOG) == Committed(800, 3, plan.commit_metadata)
    plan = plan_at(DUAL, both(in_zookeeper(500), in_kafka(800, "theirs")))
    assert plan.moved(LOG) == Committed(800, 4, "theirs")
    assert plan_at(DUAL, both(in_zookeeper(800), in_kafka(800))).offsets_to_move == ()


# After a plan

CASES: list[tuple[OffsetsStorage, Committed, Committed, int | str | None]] = [
    # the plan's observed offset, the present one, and: None if it is committed or can be committed
    # now, else the offset that another client set
    (ZOOKEEPER, in_zookeeper(500), in_zookeeper(500), None),
    (ZOOKEEPER, in_zookeeper(500), in_zookeeper(800, 9), None),
    (ZOOKEEPER, in_zookeeper(500), in_zookeeper(500, 4), 500),
    (ZOOKEEPER, in_zookeeper(500), NOTHING_COMMITTED, "removed"),
    (KAFKA, in_kafka(500), in_kafka(500), None),
    (KAFKA, in_kafka(500), in_kafka(800, "theirs"), None),
    (KAFKA, in_kafka(500), in_kafka(500, "theirs"), 500),
    (KAFKA, in_kafka(500), in_kafka(900, "theirs"), 900),
    (KAFKA, in_kafka(500), NOTHING_COMMITTED, None),
    (KAFKA, in_kafka(500), in_kafka(300, f"2:{'a' * 32}"), None),
    (KAFKA, in_kafka(500), in_kafka(300, f"30:{'a' * 32}"), 300),
    (KAFKA, in_kafka(500), in_kafka(300, "2:a"), 300),
    (KAFKA, NOTHING_COMMITTED, in_kafka(700, "theirs"), 700),
    # both: neither, one, or both are moved yet
    (DUAL, IN_BOTH, IN_BOTH, None),
    (DUAL, IN_BOTH, both(in_zookeeper(500), in_kafka(800)), None),
    (DUAL, IN_BOTH, both(in_zookeeper(800, 4), in_kafka(500)), None),
    (DUAL, IN_BOTH, both(in_zookeeper(800, 4), NOTHING_COMMITTED), None),
    # one side moves forward, and one back, independently of the other
    (DUAL, IN_BOTH, both(in_zookeeper(900, 4), in_kafka(800)), 900),
    (DUAL, IN_BOTH, both(in_zookeeper(800, 4), in_kafka(900)), 900),
    (DUAL, IN_BOTH, both(in_zookeeper(800, 4), in_kafka(300)), 300),
    (DUAL, IN_BOTH, both(in_zookeeper(300, 5), in_kafka(800)), 300),
    (DUAL, IN_BOTH, both(in_zookeeper(300, 5), in_kafka(900)), 300),
    (DUAL, IN_BOTH, both(NOTHING_COMMITTED, in_kafka(800)), "removed"),
]


@pytest.mark.parametrize(("storage", "seen", "found", "moved"), CASES)
def test_after_a_plan_each_storage_has_the_offset_or_is_to_be_moved_or_was_moved_by_another_client(
    storage: OffsetsStorage, seen: Committed, found: Committed, moved: int | str | None
) -> None:
    plan = plan_at(storage, seen)
    reported = place_moved(plan, LOG, found)
    assert (reported and (reported.offset if reported.offset is not None else "removed")) == moved
    uncommitted, apart = apart_from(plan, {} if found == NOTHING_COMMITTED else {LOG: found})
    is_settled = moved is not None or found.is_at(800)
    assert (uncommitted, set(apart)) == (
        () if is_settled else (LOG,),
        {LOG} if moved is not None else set(),
    )


@pytest.mark.parametrize("policy", OnOffsetChanged)
def test_a_place_that_went_back_stops_a_run_under_every_policy_though_the_larger_one_counts(
    policy: OnOffsetChanged,
) -> None:
    plan, found = plan_at(DUAL, IN_BOTH), both(in_zookeeper(800, 4), in_kafka(300, "theirs"))
    with pytest.raises(OffsetMoved, match="it is 300, ours is 800") as raised:
        up_to_date(plan, {LOG: found}, policy, {LOG: 1000})
    assert "restore" in raised.value.action
    assert off_position(found, 800) == 300, "so the command that sets it back sees it, too"


def test_one_place_that_went_on_is_followed_by_policy_and_the_other_one_with_it() -> None:
    plan = plan_at(DUAL, IN_BOTH)
    found = both(in_zookeeper(900, 5), in_kafka(800, plan.commit_metadata))
    state = up_to_date(plan, {LOG: found}, OnOffsetChanged.FOLLOW, {LOG: 1000})
    assert state.followed == {LOG: 900}
    after = plan_at(DUAL, found, 950)
    assert after.moved(LOG) == Committed(950, 6, after.commit_metadata)


# Offsets that brokers dropped


@pytest.mark.parametrize(
    ("storage", "seen", "found"),
    [
        (KAFKA, in_kafka(500), NOTHING_COMMITTED),
        (DUAL, IN_BOTH, both(in_zookeeper(800, 4), NOTHING_COMMITTED)),
    ],
)
def test_offsets_that_a_group_forgot_are_moved_again_from_the_positions_and_nothing_starts_anew(
    storage: OffsetsStorage, seen: Committed, found: Committed
) -> None:
    plan = plan_at(storage, seen)
    state = up_to_date(plan, {LOG: found}, OnOffsetChanged.FAIL, {LOG: 1000})
    assert (state.positions, state.uncommitted) == ({LOG: 800}, (LOG,))
    assert is_dropped(plan, LOG, found)
    assert not is_dropped(plan, LOG, plan.moved(LOG))


def test_only_offsets_in_kafka_of_partitions_that_are_read_count_as_dropped() -> None:
    in_zookeeper_only = plan_at(ZOOKEEPER, in_zookeeper(500))
    assert not is_dropped(in_zookeeper_only, LOG, NOTHING_COMMITTED)
    plan = plan_at(KAFKA, in_kafka(500))
    assert up_to_date(plan, {}, OnOffsetChanged.FAIL, {LOG: 900}).dropped == (LOG,)
    assert up_to_date(plan, {}, OnOffsetChanged.FAIL, {}).dropped == ()


# Another storage than the plan saw


@pytest.mark.parametrize("was", OffsetsStorage)
@pytest.mark.parametrize("now", OffsetsStorage)
def test_a_new_storage_gets_the_offsets_unless_another_client_committed_there(
    was: OffsetsStorage, now: OffsetsStorage
) -> None:
    seen = {ZOOKEEPER: in_zookeeper(500), KAFKA: in_kafka(500), DUAL: IN_BOTH}[was]
    plan = plan_at(was, seen)
    there = {
        ZOOKEEPER: in_zookeeper(800, 4),
        KAFKA: NOTHING_COMMITTED,
        DUAL: both(in_zookeeper(800, 4), NOTHING_COMMITTED),
    }[now]
    if was is KAFKA:
        there = {
            ZOOKEEPER: NOTHING_COMMITTED,
            KAFKA: in_kafka(800),
            DUAL: both(NOTHING_COMMITTED, in_kafka(800)),
        }[now]
    state = up_to_date(plan, {LOG: there}, OnOffsetChanged.FAIL, {LOG: 1000}, storage=now)
    assert state.uncommitted == (() if there.is_at(800) else (LOG,))
    assert state.last.commit.storage is now


def test_a_changed_offsets_storage_applies_only_after_a_stored_plan() -> None:
    plan = plan_at(ZOOKEEPER, in_zookeeper(500))
    reject_other_offsets_storage(plan, ZOOKEEPER)
    message = "was made for offsets in zookeeper; group.offsets_storage is kafka now"
    with pytest.raises(SettingsError, match=message) as raised:
        reject_other_offsets_storage(plan, KAFKA)
    assert "Set group.offsets_storage: zookeeper, with which `etl run CONF`" in raised.value.action
