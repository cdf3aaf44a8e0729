"""Commits of a group's offsets for a plan, for each `group.offsets_storage`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from socket import socket
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from etl.errors import (
    CommitUnknown,
    OffsetMoved,
    Owned,
    PermissionDenied,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers import group_offsets
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.group_offsets import FencedOffsetCommit, StoredOffsets
from etl.io.brokers.member_state import MemberTerms
from etl.ledger.plan_document import with_id
from etl.model.partitions import (
    BY_COORDINATOR,
    NOTHING_COMMITTED,
    Committed,
    GroupProtocol,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import CommitState, Plan, PlannedCommit
from etl.run.observe import GroupOffsets
from tests.builders import plain_plan, plain_settings
from tests.fakes.broker import FIND_COORDINATOR, OFFSET_COMMIT, FakeBroker, hang_up
from tests.fakes.coordinator import LEAVE, FakeCoordinator

FIRST, SECOND = (TopicPartition("demo", number) for number in range(2))
KEPT = StoredOffsets("g", "clicks")


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster([(broker.host, broker.port)], timeout_s=1) as connected:
        yield connected


def store(broker: FakeBroker, offset: int, word: str, partition: TopicPartition = FIRST) -> None:
    broker.world.committed["g", partition.topic, partition.partition] = (offset, word)


def stored(broker: FakeBroker, partition: TopicPartition = FIRST) -> tuple[int, str] | None:
    return broker.world.committed.get(("g", partition.topic, partition.partition))


# Without a membership


WORD = f"12:{'a' * 32}"


def to(offset: int) -> dict[TopicPartition, Committed]:
    return {FIRST: Committed(offset, None, WORD)}


def test_metadata_of_this_pipeline_is_its_plan(broker: FakeBroker, cluster: Cluster) -> None:
    assert KEPT.move(cluster, {FIRST: NOTHING_COMMITTED}, to(800)) == [FIRST]
    assert stored(broker) == (800, f"etl:clicks:{WORD}")
    assert KEPT.committed(cluster, [FIRST, SECOND]) == {FIRST: Committed(800, None, WORD)}
    assert StoredOffsets("g", "others").committed(cluster, [FIRST]) == {
        FIRST: Committed(800, None, f"etl:clicks:{WORD}")
    }
    store(broker, 800, "x" * 4096)
    word = KEPT.committed(cluster, [FIRST])[FIRST].metadata
    assert word is not None and len(word) == 64, "a long one is known by its digest"
    assert KEPT.committed(cluster, []) == {}


@pytest.mark.parametrize("there", [None, (500, "theirs"), (800, "another's")])
def test_an_offset_moves_from_the_observed_value(
    broker: FakeBroker, cluster: Cluster, there: tuple[int, str] | None
) -> None:
    if there:
        store(broker, *there)
    assert KEPT.move(cluster, {FIRST: Committed(500, None, "theirs")}, to(800)) == [FIRST]
    assert (stored(broker) or (None,))[0] == 800


def test_a_moved_offset_stops_the_commit(broker: FakeBroker, cluster: Cluster) -> None:
    store(broker, 500, "again", SECOND)
    after = {**to(800), SECOND: Committed(800, None, WORD)}
    with pytest.raises(OffsetMoved, match="it is 500, ours is 800"):
        KEPT.move(cluster, dict.fromkeys(after, Committed(500, None, "seen")), after)
    assert stored(broker) is None and stored(broker, SECOND) == (500, "again")


def test_a_lost_answer_is_known_by_its_metadata(broker: FakeBroker, cluster: Cluster) -> None:
    broker.script[OFFSET_COMMIT].append(hang_up)
    assert KEPT.move(cluster, {FIRST: NOTHING_COMMITTED}, to(800)) == [FIRST]
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 1


@pytest.mark.parametrize(
    ("there", "raises"), [(None, CommitUnknown), ((300, "another's"), OffsetMoved)]
)
def test_a_lost_answer_without_its_offset_is_in_doubt(
    broker: FakeBroker, cluster: Cluster, there: tuple[int, str] | None, raises: type[Exception]
) -> None:
    def undone(connection: socket, frame: bytes) -> None:
        broker.world.committed.clear()
        if there:
            store(broker, *there)
        connection.close()

    broker.script[OFFSET_COMMIT].append(undone)
    with pytest.raises(raises):
        KEPT.move(cluster, {FIRST: NOTHING_COMMITTED}, to(800))


def test_a_deleted_topic_is_left_out_of_a_move(broker: FakeBroker, cluster: Cluster) -> None:
    broker.world.refused_logs["demo", 1] = 3
    after = {**to(800), SECOND: Committed(800, None, WORD)}
    assert KEPT.move(cluster, dict.fromkeys(after, NOTHING_COMMITTED), after) == [FIRST]
    broker.world.refused_logs["demo", 1] = 29
    with pytest.raises(PermissionDenied):
        KEPT.move(cluster, dict.fromkeys(after, NOTHING_COMMITTED), after)


def test_a_rejected_partition_has_no_offset(broker: FakeBroker, cluster: Cluster) -> None:
    broker.log("demo", 0)
    store(broker, 500, "theirs")
    broker.world.untold_logs["demo", 1] = 3  # as 0.8.2 does where the topic is gone
    assert KEPT.committed(cluster, [FIRST, SECOND]) == {FIRST: Committed(500, None, "theirs")}
    assert KEPT.move(cluster, {FIRST: Committed(500, None, "theirs")}, to(800)) == [FIRST]
    broker.log("demo", 1)
    with pytest.raises(TopicMissing):
        KEPT.committed(cluster, [FIRST, SECOND])


def test_a_group_with_live_members_keeps_its_offsets(broker: FakeBroker, cluster: Cluster) -> None:
    broker.world.generation, broker.world.members = 4, {"m-1": b""}
    with pytest.raises(Owned, match="has live members in Kafka"):
        KEPT.move(cluster, {FIRST: NOTHING_COMMITTED}, to(800))
    assert stored(broker) is None


def test_many_offsets_take_several_commits(
    broker: FakeBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "_COMMIT_BYTES", 1_000)
    after = {TopicPartition("demo", number): Committed(800, None, WORD) for number in range(20)}
    moved = KEPT.move(cluster, dict.fromkeys(after, NOTHING_COMMITTED), after)
    assert sorted(moved) == sorted(after)
    assert len(broker.world.committed) == 20
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 3


# Fenced by a membership


SEEN = Committed(500, None, "theirs")


def plan_of(*partitions: TopicPartition) -> Plan:
    share = MemberAssignment("m-1", Membership.COORDINATOR, "range", 3, frozenset(partitions))
    return with_id(
        plain_plan(
            number=2,
            loaded_until=dict.fromkeys(partitions, 800),
            expected_commits=dict.fromkeys(partitions, SEEN),
            commit=PlannedCommit(CommitState.IN_DOUBT, OffsetsStorage.KAFKA, share),
        )
    )


PLAN = plan_of(FIRST, SECOND)


@pytest.fixture
def fencing(broker: FakeBroker) -> FakeBroker:
    """It stores an offset of each partition, and its group has our member."""
    broker.world.generation, broker.world.members = 3, {"m-1": b""}
    for partition in (FIRST, SECOND):
        store(broker, 500, "theirs", partition)
    return broker


def both(broker: FakeBroker) -> set[tuple[int, str] | None]:
    return {stored(broker, partition) for partition in (FIRST, SECOND)}


def hand_over(
    cluster: Cluster, results: list[str] | None = None, *, plan: Plan = PLAN, tries_for_s: float = 0
) -> RejectedCommit | None:
    def unsure() -> None:
        if results is not None:
            results.append("unsure")

    return FencedOffsetCommit(KEPT, tries_for_s=tries_for_s).hand_over(cluster, plan, unsure=unsure)


def test_one_commit_moves_every_offset(fencing: FakeBroker, cluster: Cluster) -> None:
    results = list[str]()
    assert hand_over(cluster, results) is None and not results
    assert both(fencing) == {(800, f"etl:clicks:2:{PLAN.id}")}
    assert [key for key, _ in fencing.requests].count(OFFSET_COMMIT) == 1
    assert hand_over(cluster, results, plan=plan_of()) is None, "nothing to move"


def test_a_commit_after_the_membership_is_void(fencing: FakeBroker, cluster: Cluster) -> None:
    fencing.world.group_refusals[OFFSET_COMMIT].extend([22] * 20)
    results = list[str]()
    assert "does not take us for its member" in str(hand_over(cluster, results))
    assert both(fencing) == {(500, "theirs")} and not results


OURS, THEIRS, OTHERS = (800, f"etl:clicks:2:{PLAN.id}"), (500, "theirs"), (900, "others")
TAKEN, VOID, UNDECIDABLE = "taken", "void", "undecidable"


@pytest.mark.parametrize(
    ("there", "hangs_up", "codes", "result"),
    [
        ((THEIRS, THEIRS), True, [], TAKEN),
        ((THEIRS, THEIRS), True, [0, 22], TAKEN),
        ((THEIRS, THEIRS), True, [7, 22], VOID),
        *(((OURS, OURS), False, [code, 22, 22], TAKEN) for code in (14, 15, 16)),
        ((OURS, THEIRS), False, [7, 22], UNDECIDABLE),
        ((OTHERS, OTHERS), False, [7, 22], UNDECIDABLE),
    ],
    ids=str,
)
def test_rejected_after_an_answer_in_doubt_the_stored_offsets_decide(
    fencing: FakeBroker,
    cluster: Cluster,
    there: tuple[tuple[int, str], tuple[int, str]],
    hangs_up: bool,
    codes: list[int],
    result: str,
) -> None:
    """A lost answer or one of a moving coordinator, whose batch may be in the log. A commit that
    was accepted in part is never void: another plan would begin where the part ends.
    """
    for partition, committed in zip((FIRST, SECOND), there, strict=True):
        store(fencing, *committed, partition)
    fencing.script[OFFSET_COMMIT].extend([hang_up] * hangs_up)
    fencing.world.group_refusals[OFFSET_COMMIT].extend(codes)
    results = list[str]()
    if result == UNDECIDABLE:
        with pytest.raises(CommitUnknown):
            hand_over(cluster, results, tries_for_s=20)
    else:
        assert (hand_over(cluster, results, tries_for_s=20) is None) is (result == TAKEN)
    assert results == ["unsure"]


@pytest.mark.parametrize("is_lost", [True, False], ids=["a lost answer", "a moving coordinator"])
def test_a_commit_in_doubt_at_the_deadline_is_unknown(
    fencing: FakeBroker, cluster: Cluster, is_lost: bool
) -> None:
    if is_lost:
        fencing.script[OFFSET_COMMIT].append(hang_up)
    else:
        fencing.world.group_refusals[OFFSET_COMMIT].append(16)
        fencing.world.group_refusals[FIND_COORDINATOR].extend([0, *[15] * 40])
    results = list[str]()
    with pytest.raises(CommitUnknown):
        hand_over(cluster, results)
    assert results == ["unsure"]


def test_a_commit_in_part_is_never_void(fencing: FakeBroker, cluster: Cluster) -> None:
    fencing.world.refused_logs[SECOND.topic, SECOND.partition] = 3

    def over(connection: socket, frame: bytes) -> None:
        fencing.world.generation = 4
        connection.sendall(frame)

    fencing.script[OFFSET_COMMIT].append(over)
    with pytest.raises(CommitUnknown):
        hand_over(cluster, tries_for_s=20)


def test_a_commit_in_doubt_is_not_void(fencing: FakeBroker, cluster: Cluster) -> None:
    fencing.script[OFFSET_COMMIT].append(hang_up)
    fencing.world.refused_logs.update(
        {(partition.topic, partition.partition): 3 for partition in (FIRST, SECOND)}
    )
    with pytest.raises(CommitUnknown, match="do not know the topics"):
        hand_over(cluster, tries_for_s=0.3)


def test_a_topic_may_be_new_to_a_coordinator(fencing: FakeBroker, cluster: Cluster) -> None:
    """The same commit is sent again until the coordinator knows the topic."""
    for partition in (FIRST, SECOND):
        fencing.log(partition.topic, partition.partition)
    fencing.world.refused_logs[SECOND.topic, SECOND.partition] = 3
    with pytest.raises(CommitUnknown, match="does not know a topic that other brokers have"):
        hand_over(cluster)

    def accept_and_send(connection: socket, frame: bytes) -> None:
        fencing.world.refused_logs.clear()
        connection.sendall(frame)

    fencing.script[OFFSET_COMMIT].append(accept_and_send)
    assert hand_over(cluster, tries_for_s=20) is None
    assert both(fencing) == {(800, f"etl:clicks:2:{PLAN.id}")}


def test_a_deleted_topic_is_left_out_of_a_commit(fencing: FakeBroker, cluster: Cluster) -> None:
    fencing.world.refused_logs[SECOND.topic, SECOND.partition] = 3
    assert hand_over(cluster) is None
    fencing.world.refused_logs[FIRST.topic, FIRST.partition] = 3
    assert "do not know the topics" in str(hand_over(cluster))
    fencing.world.refused_logs[FIRST.topic, FIRST.partition] = 29
    with pytest.raises(PermissionDenied):
        hand_over(cluster)


def test_more_than_a_batch_holds_is_refused_by_name(cluster: Cluster) -> None:
    many = plan_of(*(TopicPartition("demo" * 20, number) for number in range(6000)))
    with pytest.raises(SettingsError, match="The offset commit of 6,000 partitions has"):
        hand_over(cluster, plan=many)


def test_the_membership_of_a_driver_that_is_gone_is_ended() -> None:
    with FakeCoordinator() as broker:
        sleeper, other = member_of(broker), member_of(broker)
        try:
            share = sleeper.join()
            broker.refusals[LEAVE].append(16)
            other.end(share)
            assert share.member_id not in broker.group.members
            broker.refusals[LEAVE].append(25)
            other.end(share)
            broker.refusals[LEAVE].append(30)
            with pytest.raises(PermissionDenied, match="end the membership of a run that is gone"):
                other.end(share)
        finally:
            sleeper.leave()


def test_a_membership_of_the_consumer_protocol_is_ended() -> None:
    with FakeCoordinator() as broker:
        sleeper = member_of(broker, GroupProtocol.CONSUMER)
        try:
            share = sleeper.join()
            assert share.strategy == BY_COORDINATOR
            member_of(broker).end(share)
            assert share.member_id not in broker.consumers
        finally:
            sleeper.leave()


def member_of(
    broker: FakeCoordinator, protocol: GroupProtocol = GroupProtocol.CLASSIC
) -> CoordinatedMember:
    broker.log("clicks", 0)
    broker.world.topic_ids["clicks"] = UUID(int=1)
    terms = MemberTerms("g", ("clicks",), session_timeout_s=20, join_timeout_s=20, answers_in_s=5)
    return CoordinatedMember([(broker.host, broker.port)], terms, protocol=protocol)


# The storage of a conf


KAFKA, DUAL = {"offsets_storage": "kafka"}, {"offsets_storage": "dual"}
JAFKA = {"broker_type": "jafka", "assume_cluster_id": "c"}


def offsets_on(broker: FakeBroker, storage: str) -> GroupOffsets:
    """Services of a run with these brokers and no ZooKeeper: any access to it fails."""
    discovery = SimpleNamespace(
        open_cluster=lambda: Cluster([(broker.host, broker.port)], timeout_s=5)
    )
    return GroupOffsets(
        plain_settings(group={"offsets_storage": storage}), cast(Any, None), cast(Any, discovery)
    )


def test_offsets_in_kafka_are_read_and_moved_without_zookeeper(broker: FakeBroker) -> None:
    offsets = offsets_on(broker, "kafka")
    assert offsets.committed([FIRST]) == {}
    commit = PlannedCommit(storage=OffsetsStorage.KAFKA)
    plan = with_id(plain_plan(loaded_until={FIRST: 42}, commit=commit))
    moved = {FIRST: Committed(42, None, plan.commit_metadata)}
    assert offsets.commit(plan) == offsets.committed([FIRST]) == moved
    assert broker.world.committed["group", "demo", 0] == (42, f"etl:clicks:1:{plan.id}")
    assert offsets.commit(plan, ()) == {}


@pytest.mark.parametrize(
    ("epochs", "is_moved"),
    [((7,), True), ((5, 7), True), ((5, 5), False), ((None,), False)],
    ids=str,
)
def test_after_an_append_the_membership_of_the_plan_commits(
    broker: FakeBroker, epochs: tuple[int | None, ...], is_moved: bool
) -> None:
    broker.world.generation, broker.world.members, left = 7, {"m-1": b""}, [*epochs]

    def unbroken(share: MemberAssignment) -> MemberAssignment | None:
        epoch = left.pop(0)
        return None if epoch is None else replace(share, generation=epoch)

    share = MemberAssignment("m-1", Membership.COORDINATOR, BY_COORDINATOR, 3, frozenset({FIRST}))
    state = CommitState.AFTER_APPEND_AS_MEMBER
    commit = PlannedCommit(state, OffsetsStorage.KAFKA, share)
    plan = with_id(plain_plan(loaded_until={FIRST: 42}, commit=commit))
    moved = offsets_on(broker, "kafka").commit_of_member(
        plan, None, share=lambda: None, unbroken=unbroken, unsure=lambda: None
    )
    assert moved == ({FIRST: plan.moved(FIRST)} if is_moved else {}) and not left
    committed = {("group", "demo", 0): (42, f"etl:clicks:1:{plan.id}")}
    assert broker.world.committed == (committed if is_moved else {})


@pytest.mark.parametrize("storage", ["kafka", "dual"])
def test_brokers_without_offsets_are_refused(storage: str) -> None:
    with (
        FakeBroker(versions={OFFSET_COMMIT: (0, 0)}) as broker,
        pytest.raises(SettingsError) as refused,
    ):
        offsets_on(broker, storage).committed([FIRST])
    assert (
        refused.value.where == {"key": "group.offsets_storage"}
        and "by its API versions" in refused.value.message
    )
    assert "from 0.8.2 on" in refused.value.action


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"group": KAFKA, "source": JAFKA}, "these brokers store no offsets of groups;"),
        ({"group": {**DUAL, "on_active_members": "skip"}}, "not go with on_active_members: skip"),
        ({"group": {**KAFKA, "mirror_group": "group"}}, "the pipeline's own group"),
        ({"group": {"offsets_storage": "both"}}, "zookeeper, kafka or dual"),
    ],
)
def test_an_impossible_storage_names_its_key(sections: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError) as refused:
        plain_settings(**sections)
    assert what in str(refused.value)
