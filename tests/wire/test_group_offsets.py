"""Offsets of a group: every version, fencing, and commits in doubt."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from uuid import UUID

import pytest

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    CommitUnknown,
    CorruptData,
    EtlError,
    MembershipLost,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import CommittedOffset
from etl.model.partitions import TopicPartition
from tests.fakes.broker import (
    FIND_COORDINATOR,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Act,
    FakeBroker,
    World,
    altered,
    hang_up,
    never,
)

DEMO, OTHER = TopicPartition("demo", 0), TopicPartition("demo", 1)


@pytest.fixture
def impatient(broker: FakeBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(broker.host, broker.port, request_timeout_s=0.5) as connected:
        yield connected


@pytest.fixture
def member(broker: FakeBroker) -> str:
    """The group has one member, in generation 4."""
    broker.world.generation, broker.world.members = 4, {"m-1": b""}
    return "m-1"


# Every version


@pytest.mark.parametrize("version", range(1, 11))
def test_each_version_returns_what_it_has(version: int) -> None:
    topic_ids = {"demo": str(UUID(int=7))}
    with FakeBroker(versions={OFFSET_COMMIT: (1, version), OFFSET_FETCH: (1, version)}) as broker:
        broker.world.topic_ids["demo"] = UUID(int=7)
        with SimpleConsumer(broker.host, broker.port, request_timeout_s=5) as consumer:
            consumer.commit_offsets(
                "g",
                {DEMO: 42},
                metadata="etl:clicks:7:abc",
                leader_epochs={DEMO: 3},
                topic_ids=topic_ids,
            )
            found = consumer.fetch_offsets(
                "g", [DEMO, OTHER], topic_ids=topic_ids, require_stable=True
            )
        assert {(OFFSET_COMMIT, version), (OFFSET_FETCH, version)} <= set(broker.requests)
    epoch = 3 if version >= 6 else None
    assert found == {
        DEMO: CommittedOffset(None, 42, "etl:clicks:7:abc", epoch),
        OTHER: CommittedOffset(None, None),
    }


def test_topics_have_names_where_an_id_is_unknown() -> None:
    with FakeBroker(versions={OFFSET_COMMIT: (1, 10), OFFSET_FETCH: (1, 10)}) as broker:
        with SimpleConsumer(broker.host, broker.port, request_timeout_s=5) as consumer:
            consumer.commit_offsets(
                "g", {DEMO: 42, TopicPartition("else", 0): 1}, topic_ids={"demo": str(UUID(int=7))}
            )
        assert (OFFSET_COMMIT, 9) in broker.requests


def test_a_recreated_topic_accepts_no_offset_of_the_former_one() -> None:
    with FakeBroker(versions={OFFSET_COMMIT: (1, 10), OFFSET_FETCH: (1, 10)}) as broker:
        broker.world.topic_ids["demo"] = UUID(int=8)
        with (
            SimpleConsumer(broker.host, broker.port, request_timeout_s=5) as consumer,
            pytest.raises(EtlError, match="UNKNOWN_TOPIC_ID"),
        ):
            consumer.commit_offsets("g", {DEMO: 42}, topic_ids={"demo": str(UUID(int=7))})
        assert not broker.world.committed


# Members


@pytest.mark.parametrize("code", [22, 25, 27, 82, 110, 113])
def test_a_fenced_commit_is_no_lost_answer(
    broker: FakeBroker, consumer: SimpleConsumer, code: int
) -> None:
    broker.world.group_refusals[OFFSET_COMMIT].append(code)
    with pytest.raises(MembershipLost):
        consumer.commit_offsets("g", {DEMO: 42}, generation=4, member_id="m-1")
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 1
    broker.world.group_refusals[OFFSET_FETCH].append(code)
    with pytest.raises(MembershipLost):
        consumer.fetch_offsets("g", [DEMO], generation=4, member_id="m-1")


def test_a_static_name_is_refused_where_brokers_know_no_static_members() -> None:
    with (
        FakeBroker(versions={OFFSET_COMMIT: (0, 6)}) as broker,
        SimpleConsumer(broker.host, broker.port, request_timeout_s=1) as consumer,
    ):
        with pytest.raises(SettingsError, match="no version of OFFSET_COMMIT from 7"):
            consumer.commit_offsets(
                "g", {DEMO: 42}, generation=4, member_id="m-1", instance_id="static"
            )


# Commits in doubt


@pytest.mark.parametrize("act", [hang_up, never])
def test_a_commit_without_an_answer_is_not_repeated(
    broker: FakeBroker, impatient: SimpleConsumer, act: Act
) -> None:
    impatient.find_coordinator("g")
    broker.script[OFFSET_COMMIT].append(act)
    with pytest.raises(
        CommitUnknown, match="It is unknown whether the offsets of group g are stored: "
    ):
        impatient.commit_offsets("g", {DEMO: 42})
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 1
    assert broker.world.committed["g", "demo", 0][0] == 42


def test_a_commit_of_a_member_is_repeated_over_a_new_connection(
    broker: FakeBroker, consumer: SimpleConsumer, member: str
) -> None:
    """No other client can commit meanwhile."""
    consumer.find_coordinator("g")
    broker.script[OFFSET_COMMIT].append(hang_up)
    consumer.commit_offsets("g", {DEMO: 42}, generation=4, member_id=member, instance_id="static")
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 2
    assert consumer.fetch_offsets("g", [DEMO], generation=4, member_id=member)[DEMO].offset == 42


@pytest.mark.parametrize("code", [-1, 7, 15])
def test_a_transient_error_leaves_the_commit_in_doubt(
    broker: FakeBroker, impatient: SimpleConsumer, code: int
) -> None:
    broker.world.group_refusals[OFFSET_COMMIT].extend([code] * 20)
    with pytest.raises(CommitUnknown, match=rf"\(code {code}\)"):
        impatient.commit_offsets("g", {DEMO: 42})


def test_the_coordinator_keeps_the_offsets() -> None:
    world = World()
    with (
        FakeBroker(world=world, broker_id=1) as first,
        FakeBroker(world=world, broker_id=2) as second,
    ):
        world.coordinator = 2
        with SimpleConsumer(first.host, first.port, request_timeout_s=5) as consumer:
            consumer.commit_offsets("g", {DEMO: 42}, metadata="etl:clicks:7")
            assert consumer.fetch_offsets("g", [DEMO]) == {
                DEMO: CommittedOffset(None, 42, "etl:clicks:7")
            }
        requests = [
            {key for key, _ in each.requests} & {OFFSET_COMMIT, OFFSET_FETCH}
            for each in (first, second)
        ]
        assert requests == [set(), {OFFSET_COMMIT, OFFSET_FETCH}]


@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_coordinator_that_is_not_one_yet_is_retried(
    broker: FakeBroker, consumer: SimpleConsumer, code: int
) -> None:
    broker.world.group_refusals[FIND_COORDINATOR].append(code)
    broker.world.group_refusals[OFFSET_COMMIT].append(code)
    consumer.commit_offsets("g", {DEMO: 42})
    broker.world.group_refusals[OFFSET_FETCH].append(code)
    assert consumer.fetch_offsets("g", [DEMO])[DEMO].offset == 42
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 2
    broker.world.group_refusals[FIND_COORDINATOR].append(code)
    assert consumer.find_coordinator("g").port == broker.port


def test_a_dead_coordinator_is_looked_up(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    """Brokers name it until they have noticed."""
    with FakeBroker(broker.world, broker_id=2) as dead:
        broker.world.coordinator = dead.broker_id

    def named_for_the_last_time(connection: socket.socket, answer: bytes) -> None:
        connection.sendall(answer)
        broker.world.coordinator = broker.broker_id

    broker.world.committed["g", "demo", 0] = 42, ""
    broker.script[FIND_COORDINATOR].append(named_for_the_last_time)
    assert consumer.fetch_offsets("g", [DEMO])[DEMO].offset == 42
    assert [key for key, _ in broker.requests].count(FIND_COORDINATOR) == 2


def test_a_missing_coordinator_is_no_doubt(broker: FakeBroker, impatient: SimpleConsumer) -> None:
    broker.world.group_refusals[FIND_COORDINATOR].extend([15] * 20)
    with pytest.raises(BrokerError, match="name the coordinator"):
        impatient.commit_offsets("g", {DEMO: 42})


def test_an_unstable_offset_is_waited_for_until_the_deadline(
    broker: FakeBroker, consumer: SimpleConsumer, impatient: SimpleConsumer
) -> None:
    consumer.commit_offsets("g", {DEMO: 42})
    broker.world.group_refusals[OFFSET_FETCH].append(88)
    assert consumer.fetch_offsets("g", [DEMO], require_stable=True)[DEMO].offset == 42
    broker.world.group_refusals[OFFSET_FETCH].extend([88] * 20)
    with pytest.raises(BrokerUnreachable, match="UNSTABLE_OFFSET_COMMIT"):
        impatient.fetch_offsets("g", [DEMO], require_stable=True)


# Logs that are refused on their own


def test_partitions_are_refused_one_by_one(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    broker.world.refused_logs["demo", 1] = 3
    reported = consumer.commit_each("g", {DEMO: 42, OTHER: 43})
    assert {partition: refusal and refusal.name for partition, refusal in reported.items()} == {
        DEMO: None,
        OTHER: "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert consumer.fetch_offsets("g", [DEMO, OTHER])[DEMO].offset == 42
    broker.world.untold_logs["demo", 1] = 3
    found = consumer.fetch_each("g", [DEMO, OTHER])
    unknown = found[OTHER].refusal
    assert (found[DEMO].offset, unknown and unknown.name) == (42, "UNKNOWN_TOPIC_OR_PARTITION")
    with pytest.raises(TopicMissing, match="return an offset of group g: UNKNOWN_TOPIC"):
        consumer.fetch_offsets("g", [DEMO, OTHER])
    broker.world.refused_logs["demo", 0] = 12
    with pytest.raises(
        SettingsError, match=r"\(and 1 of 2 more were rejected\): OFFSET_METADATA_TOO_LARGE"
    ):
        consumer.commit_offsets("g", {DEMO: 42, OTHER: 43})
    with pytest.raises(TopicMissing, match="commit an offset of group g: UNKNOWN_TOPIC"):
        consumer.commit_offsets("g", {OTHER: 43})


@pytest.mark.parametrize(
    ("key", "requested", "reported"),
    [
        (OFFSET_COMMIT, b"demo", b"deno"),
        (OFFSET_FETCH, b"demo", b"deno"),
        (OFFSET_FETCH, b"\x02g", b"\x02h"),
    ],
)
def test_an_answer_about_something_else_is_no_consent(
    broker: FakeBroker, consumer: SimpleConsumer, key: int, requested: bytes, reported: bytes
) -> None:
    broker.script[key].append(altered(lambda body: body.replace(requested, reported)))
    with pytest.raises(CorruptData, match="than requested"):
        if key == OFFSET_COMMIT:
            consumer.commit_offsets("g", {DEMO: 42})
        else:
            consumer.fetch_offsets("g", [DEMO])
