"""Requests of group members and responses of coordinators, written and read by kafka-python on the
other side. Joins and assignments in every version: tests/wire/test_members_of_a_coordinator.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etl.errors import CorruptData, SettingsError
from etl.kafka import group_messages, kafka_python_messages
from etl.kafka.kafka_broker_type import KafkaProtocol
from etl.kafka.request_values import (
    LEAVES,
    ConsumerHeartbeat,
    JoinRequest,
    MemberIdentity,
    MembersResponse,
    Subscription,
)
from etl.kafka.versions import Api
from etl.model.partitions import TopicPartition
from tests.fuzz import seeds
from tests.groups.coordinator_golden import plain_answer

LOGS = frozenset({TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)})
TOPICS = Subscription(("a", "b"))
WANTED = JoinRequest("g", "m-1", None, 10_000, 60_000, {"range": TOPICS, "roundrobin": TOPICS})


@pytest.mark.parametrize("version", range(2))
def test_a_later_heartbeat_has_changes_only(version: int) -> None:
    api, topic = Api.CONSUMER_GROUP_HEARTBEAT, "00000000-0000-0000-0000-0000000000c1"

    def received(beat: ConsumerHeartbeat) -> Any:
        broker = KafkaProtocol({api.key: (0, version)}, "us", "b:9092")
        frame = broker.groups.consumer_heartbeat(beat).frame(5)
        assert frame[4:8] == api.key.to_bytes(2, "big") + version.to_bytes(2, "big")
        kind = kafka_python_messages.ConsumerGroupHeartbeatRequest
        return kind.decode(frame[4:], version=version, header=True)

    first = received(ConsumerHeartbeat("g", "m-1", 0, "static", 60_000, ("a", "b"), {}))
    assert (first.group_id, first.member_id, first.member_epoch) == ("g", "m-1", 0)
    assert (first.instance_id, first.rebalance_timeout_ms) == ("static", 60_000)
    assert (first.subscribed_topic_names, first.topic_partitions) == (["a", "b"], [])
    owned = {topic: frozenset({2, 1})}
    later = received(ConsumerHeartbeat("g", "m-1", 4, None, 60_000, ("a",), owned))
    assert (later.rebalance_timeout_ms, later.subscribed_topic_names) == (-1, None)
    [reported] = later.topic_partitions
    assert (str(reported.topic_id), reported.partitions) == (topic, [1, 2])
    last = received(ConsumerHeartbeat("g", "m-1", LEAVES, None, 60_000, ("a",), None))
    assert last.topic_partitions is None


@pytest.mark.parametrize(
    "api",
    [Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP, Api.CONSUMER_GROUP_HEARTBEAT],
)
def test_a_part_of_an_answer_is_an_error(api: Api) -> None:
    for seed in seeds.responses(api):
        version, answer = seed[0], seed[1:]
        kafka_python_messages.decode(api, version, memoryview(answer))
        for wrong in (*(answer[:end] for end in range(len(answer))), answer + b"x"):
            with pytest.raises(CorruptData):
                kafka_python_messages.decode(api, version, memoryview(wrong))


def test_only_the_leader_gets_all_members() -> None:
    answer = {
        seed[0]: kafka_python_messages.decode(Api.JOIN_GROUP, seed[0], memoryview(seed[1:]))
        for seed in seeds.responses(Api.JOIN_GROUP)
    }
    for version, response in answer.items():
        joined = group_messages.parse_join(response)
        assert (joined.refusal, joined.generation, joined.strategy) == (None, 7, "range")
        assert (joined.is_leader, joined.member_id) == (True, "m-1")
        first, second = joined.members
        assert (first.member_id, first.instance_id) == ("m-1", None)
        assert (second.member_id, second.instance_id) == ("m-2", "static" if version >= 5 else None)
        assert [each.subscription.topics for each in joined.members] == [("a", "b"), ("a",)]
    answer[9].skip_assignment = True
    back = group_messages.parse_join(answer[9])
    assert (back.is_leader, back.skips_assignment, len(back.members)) == (True, True, 2), "KIP-814"
    answer[0].leader = "m-2"
    assert group_messages.parse_join(answer[0]).is_leader is False


@pytest.mark.parametrize(
    ("leader", "is_back"),
    [
        ("driver-6f1a0c52-0d3b-4a51-9f0e-0123456789ab", True),
        ("driver-1-6f1a0c52-0d3b-4a51-9f0e-0123456789ab", False),
        ("driver", False),
        ("m-2", False),
    ],
)
def test_a_static_leader_is_known_by_its_former_id(leader: str, is_back: bool) -> None:
    [seed] = [seed for seed in seeds.responses(Api.JOIN_GROUP) if seed[0] == 8]
    response = kafka_python_messages.decode(Api.JOIN_GROUP, 8, memoryview(seed[1:]))
    response.leader, response.members = leader, []
    for instance_id, expected in (("driver", is_back), (None, False)):
        joined = group_messages.parse_join(response, instance_id)
        assert joined.is_leader == expected
        assert joined.skips_assignment == expected
        assert joined.members == ()


@pytest.mark.parametrize(
    "reported",
    [
        pytest.param(Subscription(("a",)), id="plain"),
        pytest.param(Subscription(("a", "b"), LOGS, 7, b"data"), id="owned"),
        pytest.param(Subscription((), frozenset()), id="cooperative"),
    ],
)
def test_a_subscription_is_read_as_it_was_written(reported: Subscription) -> None:
    found = group_messages.parse_subscription(group_messages.render_subscription(reported))
    assert found == replace(reported, owned=reported.owned or frozenset())


def test_an_empty_assignment_has_the_version_that_every_client_reads() -> None:
    assert group_messages.render_subscription(Subscription(("a",)))[:2] == b"\0\0"
    cooperative = Subscription(("a",), frozenset())
    assert group_messages.render_subscription(cooperative)[:2] >= b"\0\1", "KIP-429"
    assert group_messages.render_assignment(LOGS)[:2] == b"\0\0"
    assert group_messages.parse_assignment(group_messages.render_assignment(LOGS)) == LOGS
    assert group_messages.parse_assignment(b"") == frozenset(), "the leader did not know us"


def test_a_version_that_is_not_known_yet_is_read_as_far_as_it_is() -> None:
    newer = b"\0\x09" + group_messages.render_assignment(LOGS)[2:] + b"more"
    assert group_messages.parse_assignment(newer) == LOGS


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xff\xff\0\0\0\0", id="its version"),
        pytest.param(
            b"\0\0\0\0\0\1\0\1a\0\0\0\1\xff\xff\xff\xff\0\0\0\0", id="a negative partition"
        ),
        pytest.param(b"\0\0\0\0\0\1\xff\xff\0\0\0\0", id="a topic without a name"),
        pytest.param(b"\0\0\x7f\xff\xff\xff", id="too many topics"),
        pytest.param(b"\0", id="cut off"),
    ],
)
def test_an_assignment_that_is_none_is_an_error(content: bytes) -> None:
    with pytest.raises(CorruptData):
        group_messages.parse_assignment(content)


@pytest.mark.parametrize(
    ("parse", "name"),
    [
        (kafka_python_messages.parse_describe_groups, "DESCRIBE_GROUPS"),
        (group_messages.parse_consumer_group, "CONSUMER_GROUP_DESCRIBE"),
    ],
)
def test_another_group_is_refused(parse: Callable[..., MembersResponse], name: str) -> None:
    described = SimpleNamespace(
        group_id="h", error_code=0, protocol_type="", group_state="Empty", members=[]
    )
    response = SimpleNamespace(groups=[described])
    assert parse(response, "h") == parse(SimpleNamespace(groups=[]), "g")
    with pytest.raises(CorruptData) as refused:
        parse(response, "g", broker="b:9092")
    assert refused.value.message == f"The response to {name} has another group than requested"
    assert refused.value.where == {"group": "g", "broker": "b:9092"}


@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT])
def test_a_static_name_is_refused_where_the_broker_knows_none(api: Api) -> None:
    old = KafkaProtocol.of_release("2.2", "us", "b:9092")
    questions: dict[Api, Callable[[], object]] = {
        Api.JOIN_GROUP: lambda: old.groups.join_group(JoinRequest("g", None, "static", 1, 1, {})),
        Api.SYNC_GROUP: lambda: old.groups.sync_group(
            MemberIdentity("g", "m", "static", 1), "range", {}
        ),
        Api.HEARTBEAT: lambda: old.groups.heartbeat(MemberIdentity("g", "m", "static", 1)),
    }
    with pytest.raises(SettingsError, match=f"no version of {api.name} from"):
        questions[api]()


def test_the_consumer_protocol_needs_a_broker_that_has_it_and_any_needs_groups() -> None:
    with pytest.raises(SettingsError, match="no version of CONSUMER_GROUP_HEARTBEAT"):
        KafkaProtocol.of_release("3.6", "us", "b:9092").groups.consumer_heartbeat(
            ConsumerHeartbeat("g", "m", 0, None, 1, (), {})
        )
    with pytest.raises(SettingsError, match="no version of JOIN_GROUP"):
        KafkaProtocol.of_release("0.8.2", "us", "b:9092").groups.join_group(WANTED)


GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "groups").glob("*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_real_coordinators_answered_is_read(path: Path) -> None:
    """Recorded by `python -m tests.groups.coordinator_golden`."""
    document = json.loads(path.read_text())
    assert document["answers"]
    for each in document["answers"]:
        api, content = Api[each["api"]], memoryview(bytes.fromhex(each["answer"]))
        decoded = kafka_python_messages.decode(api, each["version"], content)
        assert plain_answer(api, decoded) == each["says"]
