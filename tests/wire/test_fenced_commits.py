"""Commits of a group's offsets for a plan: fenced by a membership, and compared with the observed
offsets without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from socket import socket
from uuid import UUID

import pytest

from etl.errors import CommitUnknown, PermissionDenied, SettingsError
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.group_offsets import FencedOffsetCommit, StoredOffsets
from etl.io.brokers.member_state import MemberTerms
from etl.ledger.plan_document import with_id
from etl.model.partitions import (
    BY_COORDINATOR,
    Committed,
    GroupProtocol,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import CommitState, Plan, PlanKind, PlannedCommit, PlanOrigin
from tests.builders import kafka_named, plain_plan
from tests.fakes.broker import FIND_COORDINATOR, OFFSET_COMMIT, FakeBroker, hang_up
from tests.fakes.coordinator import LEAVE, FakeCoordinator

FIRST, SECOND = (TopicPartition("demo", number) for number in range(2))
KEPT = StoredOffsets("g", "clicks")
SEEN = Committed(500, None, "theirs")


def plan_of(*partitions: TopicPartition) -> Plan:
    share = MemberAssignment("m-1", Membership.COORDINATOR, "range", 3, frozenset(partitions))
    positions = dict.fromkeys(partitions, 800)
    return with_id(
        plain_plan(
            number=2,
            origin=PlanOrigin(pipeline_id="u", created_at_ms=0),
            kind=PlanKind.INGEST,
            cluster=kafka_named("c"),
            shape="s",
            ranges=(),
            loaded_until=positions,
            expected_commits=dict.fromkeys(partitions, SEEN),
            commit=PlannedCommit(CommitState.IN_DOUBT, OffsetsStorage.KAFKA, share),
        )
    )


PLAN = plan_of(FIRST, SECOND)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.world.generation, running.world.members = 3, {"m-1": b""}
        for partition in (FIRST, SECOND):
            running.world.committed["g", partition.topic, partition.partition] = (500, "theirs")
        yield running


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster([(broker.host, broker.port)], timeout_s=1) as connected:
        yield connected


def stored(broker: FakeBroker) -> set[tuple[int, str]]:
    return {
        broker.world.committed["g", partition.topic, partition.partition]
        for partition in (FIRST, SECOND)
    }


def hand_over(
    cluster: Cluster, results: list[str] | None = None, *, plan: Plan = PLAN, tries_for_s: float = 0
) -> RejectedCommit | None:
    def unsure() -> None:
        if results is not None:
            results.append("unsure")

    return FencedOffsetCommit(KEPT, tries_for_s=tries_for_s).hand_over(cluster, plan, unsure=unsure)


def test_one_commit_moves_every_offset(broker: FakeBroker, cluster: Cluster) -> None:
    results = list[str]()
    assert hand_over(cluster, results) is None and not results
    assert stored(broker) == {(800, f"etl:clicks:2:{PLAN.id}")}
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 1
    assert hand_over(cluster, results, plan=plan_of()) is None, "nothing to move"


def test_a_commit_after_the_membership_is_void(broker: FakeBroker, cluster: Cluster) -> None:
    broker.world.group_refusals[OFFSET_COMMIT].extend([22] * 20)
    results = list[str]()
    assert "does not take us for its member" in str(hand_over(cluster, results))
    assert stored(broker) == {(500, "theirs")} and not results


def test_after_a_lost_answer_offsets_are_read(broker: FakeBroker, cluster: Cluster) -> None:
    broker.script[OFFSET_COMMIT].append(hang_up)
    results = list[str]()
    assert hand_over(cluster, results, tries_for_s=20) is None
    assert results == ["unsure"] and stored(broker) == {(800, f"etl:clicks:2:{PLAN.id}")}


OURS, THEIRS, OTHERS = (800, f"etl:clicks:2:{PLAN.id}"), (500, "theirs"), (900, "others")
TAKEN, VOID, UNDECIDABLE = "taken", "void", "undecidable"


@pytest.mark.parametrize(
    ("there", "hangs_up", "codes", "result"),
    [
        ((THEIRS, THEIRS), True, [0, 22], TAKEN),
        ((THEIRS, THEIRS), True, [7, 22], VOID),
        *(((OURS, OURS), False, [code, 22, 22], TAKEN) for code in (14, 15, 16)),
        ((OURS, THEIRS), False, [7, 22], UNDECIDABLE),
        ((OTHERS, OTHERS), False, [7, 22], UNDECIDABLE),
    ],
    ids=str,
)
def test_rejected_after_an_answer_in_doubt_the_stored_offsets_decide(
    broker: FakeBroker,
    cluster: Cluster,
    there: tuple[tuple[int, str], tuple[int, str]],
    hangs_up: bool,
    codes: list[int],
    result: str,
) -> None:
    """A lost answer or one of a moving coordinator, whose batch may be in the log. A commit that
    was accepted in part is never void: another plan would begin where the part ends.
    """
    for partition, stored in zip((FIRST, SECOND), there, strict=True):
        broker.world.committed["g", partition.topic, partition.partition] = stored
    broker.script[OFFSET_COMMIT].extend([hang_up] * hangs_up)
    broker.world.group_refusals[OFFSET_COMMIT].extend(codes)
    results = list[str]()
    if result == UNDECIDABLE:
        with pytest.raises(CommitUnknown):
            hand_over(cluster, results, tries_for_s=20)
    else:
        assert (hand_over(cluster, results, tries_for_s=20) is None) is (result == TAKEN)
    assert results == ["unsure"]


@pytest.mark.parametrize("is_lost", [True, False], ids=["a lost answer", "a moving coordinator"])
def test_a_commit_in_doubt_at_the_deadline_is_unknown(
    broker: FakeBroker, cluster: Cluster, is_lost: bool
) -> None:
    if is_lost:
        broker.script[OFFSET_COMMIT].append(hang_up)
    else:
        broker.world.group_refusals[OFFSET_COMMIT].append(16)
        broker.world.group_refusals[FIND_COORDINATOR].extend([0, *[15] * 40])
    results = list[str]()
    with pytest.raises(CommitUnknown):
        hand_over(cluster, results)
    assert results == ["unsure"]


def test_a_commit_in_part_is_never_void(broker: FakeBroker, cluster: Cluster) -> None:
    broker.world.refused_logs[SECOND.topic, SECOND.partition] = 3

    def over(connection: socket, frame: bytes) -> None:
        broker.world.generation = 4
        connection.sendall(frame)

    broker.script[OFFSET_COMMIT].append(over)
    with pytest.raises(CommitUnknown):
        hand_over(cluster, tries_for_s=20)


def test_a_commit_in_doubt_is_not_void(broker: FakeBroker, cluster: Cluster) -> None:
    broker.script[OFFSET_COMMIT].append(hang_up)
    broker.world.refused_logs.update(
        {(partition.topic, partition.partition): 3 for partition in (FIRST, SECOND)}
    )
    with pytest.raises(CommitUnknown, match="do not know the topics"):
        hand_over(cluster, tries_for_s=0.3)


def test_a_topic_may_be_new_to_a_coordinator(broker: FakeBroker, cluster: Cluster) -> None:
    """The brokers' metadata has it: the same commit is sent again, and accepted as soon as the
    coordinator knows it.
    """
    for partition in (FIRST, SECOND):
        broker.log(partition.topic, partition.partition)
    broker.world.refused_logs[SECOND.topic, SECOND.partition] = 3
    with pytest.raises(CommitUnknown, match="does not know a topic that other brokers have"):
        hand_over(cluster)

    def accept_and_send(connection: socket, frame: bytes) -> None:
        broker.world.refused_logs.clear()
        connection.sendall(frame)

    broker.script[OFFSET_COMMIT].append(accept_and_send)
    assert hand_over(cluster, tries_for_s=20) is None
    assert stored(broker) == {(800, f"etl:clicks:2:{PLAN.id}")}


def test_a_deleted_topic_is_left_out(broker: FakeBroker, cluster: Cluster) -> None:
    broker.world.refused_logs[SECOND.topic, SECOND.partition] = 3
    assert hand_over(cluster) is None
    broker.world.refused_logs[FIRST.topic, FIRST.partition] = 3
    assert "do not know the topics" in str(hand_over(cluster))
    broker.world.refused_logs[FIRST.topic, FIRST.partition] = 29
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
