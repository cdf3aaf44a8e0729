"""How are the messages of group members encoded and decoded, in both protocols?

Lives here: the fields of requests and the parsers of responses, subscriptions and assignments.
Not here: their values (request_values.py), choice of partitions (etl/decide/group_assignment.py).

Classic protocol (Kafka 0.9 to 4.x): JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the
subscriptions and assignments inside them (ConsumerProtocol, versions 0 to 3). Each of those begins
with its version. Later versions only append fields (KIP-429), so the known part of an unknown
version is read, as Kafka's consumers do.

Consumer protocol (KIP-848, Kafka 4.0): ConsumerGroupHeartbeat and ConsumerGroupDescribe.
kafka-python has no schemas for them; they are in this folder in Kafka's own format.
Topics are identified by topic id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from etl.errors import BrokerRefusal, CorruptData
from etl.kafka import kafka_python_messages
from etl.kafka.kafka_python_messages import (
    ConsumerGroupHeartbeatRequest,
    described_group,
    member_label,
    numbers_by_topic,
    or_minus_one,
    or_none,
)
from etl.kafka.request_values import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    Joined,
    JoinRequest,
    MemberIdentity,
    MembersResponse,
    MemberSubscription,
    Subscription,
    Synced,
)
from etl.kafka.versions import Api, error_of
from etl.model.partitions import TopicPartition, is_of_instance

_NEWEST = 3
_WITH_OWNED = 2
"""The first version with owned partitions and their generation.

Other members rely on owned partitions only with a generation.
"""
_CHECK = "Check which clients are members of the group"


def render_subscription(subscription: Subscription) -> bytes:
    """Encode a subscription; in version 0, which every client reads, without owned partitions.

    A cooperative member has the field from its first join on, empty then (KIP-429): librdkafka
    crashes when the subscriptions of such a group lack it.
    """
    version = 0
    if subscription.owned is not None:
        version = _WITH_OWNED
    kind = ConsumerProtocolSubscription.TopicPartition
    owned = []
    for topic, numbers in numbers_by_topic(subscription.owned or ()).items():
        owned.append(kind(topic=topic, partitions=numbers))
    encoded = ConsumerProtocolSubscription(
        version=version,
        topics=list(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=owned,
        generation_id=or_minus_one(subscription.generation),
    )
    return bytes(encoded.encode())


def parse_subscription(content: bytes, **place: Any) -> Subscription:
    """Parse the subscription of a member; none is owned in version 0. Raises CorruptData."""
    found = _decoded(ConsumerProtocolSubscription, content, "A member's subscription", place)
    owned = getattr(found, "owned_partitions", None) or ()
    return Subscription(
        tuple(found.topics),
        _logs(owned, place),
        or_none(getattr(found, "generation_id", None)),
        bytes(found.user_data or b""),
    )


def render_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    kind = ConsumerProtocolAssignment.TopicPartition
    assigned = []
    for topic, numbers in numbers_by_topic(partitions).items():
        assigned.append(kind(topic=topic, partitions=numbers))
    return bytes(
        ConsumerProtocolAssignment(version=0, assigned_partitions=assigned, user_data=b"").encode()
    )


def parse_assignment(content: bytes, **place: Any) -> frozenset[TopicPartition]:
    """Parse the assignment of a member. Raises CorruptData.

    Empty if the leader assigned nothing, or did not know the member.
    """
    if not content:
        return frozenset()
    assignment = _decoded(ConsumerProtocolAssignment, content, "An assignment", place)
    return _logs(assignment.assigned_partitions, place)


def _decoded(kind: Any, content: bytes, field: str, place: Mapping[str, Any]) -> Any:
    written_version = int.from_bytes(content[:2], "big", signed=True)
    if written_version < 0:
        raise CorruptData(f"{field} is of version {written_version}", action=_CHECK, **place)
    version = min(written_version, _NEWEST)
    kafka_python_messages.reject_malformed_member_data(kind, version, memoryview(content), **place)
    try:
        return kind.decode(content[2:], version=version, header=False)
    except (ValueError, IndexError, struct.error, OverflowError, TypeError, MemoryError) as error:
        raise CorruptData(f"{field} cannot be read: {error}", action=_CHECK, **place) from None


def _logs(topics: Iterable[Any], place: Mapping[str, Any]) -> frozenset[TopicPartition]:
    partitions: set[TopicPartition] = set()
    for topic in topics:
        for partition in topic.partitions:
            if partition < 0:
                raise CorruptData("A partition of a member is negative", action=_CHECK, **place)
            partitions.add(TopicPartition(topic.topic, partition))
    return frozenset(partitions)


CONSUMERS = "consumer"
"""The group type that assigns partitions."""
FIRST_STATIC_JOIN = 5
"""First version of JoinGroup with the instance id of static members (KIP-345, Kafka 2.3)."""
FIRST_STATIC = 3
"""First version of SyncGroup, Heartbeat and LeaveGroup with it."""
_REASON = "a run of a pipeline"
_PROTOCOL = JoinGroupRequest.JoinGroupRequestProtocol


def join_fields(wanted: JoinRequest) -> dict[str, Any]:
    protocols = []
    for strategy, subscription in wanted.subscriptions.items():
        protocols.append(_PROTOCOL(name=strategy, metadata=render_subscription(subscription)))
    return {
        "group_id": wanted.group,
        "session_timeout_ms": wanted.session_timeout_ms,
        "rebalance_timeout_ms": wanted.rebalance_timeout_ms,
        "member_id": wanted.member_id or "",
        "group_instance_id": wanted.instance_id,
        "protocol_type": CONSUMERS,
        "protocols": protocols,
        "reason": _REASON,
    }


def parse_join(response: Any, instance_id: str | None = None, **place: Any) -> Joined:
    """Parse the response to a static (`instance_id`) or dynamic member's join.

    A static leader that returns gets a new member id. From version 9 on the response has a flag
    for it (KIP-814); in older responses the leader has its former id. Raises CorruptData for an
    invalid subscription of a member.
    """
    refusal = error_of(response.error_code)
    member_id = response.member_id or None
    if refusal is not None:
        return Joined(refusal, member_id, -1, "", False, ())
    skips = getattr(response, "skip_assignment", False) or _is_former_id(
        response.leader, response.member_id, instance_id
    )
    is_leader = response.leader == response.member_id or skips
    members: list[MemberSubscription] = []
    if is_leader:
        for each in response.members:
            instance = getattr(each, "group_instance_id", None) or None
            subscription = parse_subscription(bytes(each.metadata), **place)
            members.append(MemberSubscription(each.member_id, instance, subscription))
    return Joined(
        None,
        member_id,
        response.generation_id,
        response.protocol_name or "",
        is_leader,
        tuple(members),
        skips,
    )


def _is_former_id(leader: str, member_id: str, instance_id: str | None) -> bool:
    return instance_id is not None and leader != member_id and is_of_instance(leader, instance_id)


def sync_fields(
    identity: MemberIdentity, strategy: str, assigned: Mapping[str, Iterable[TopicPartition]]
) -> dict[str, Any]:
    """Return the fields of SyncGroup.

    `assigned`: member id to partitions, sent by the leader; empty for other members.
    """
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    assignments = []
    for member, partitions in assigned.items():
        assignments.append(kind(member_id=member, assignment=render_assignment(partitions)))
    return {
        **_identity(identity),
        "protocol_type": CONSUMERS,
        "protocol_name": strategy,
        "assignments": assignments,
    }


def parse_sync(response: Any, **place: Any) -> Synced:
    """Parse the assignment of this member. Raises CorruptData if it is invalid."""
    refusal = error_of(response.error_code)
    if refusal is not None:
        return Synced(refusal, frozenset())
    return Synced(None, parse_assignment(bytes(response.assignment), **place))


def heartbeat_fields(identity: MemberIdentity) -> dict[str, Any]:
    return _identity(identity)


def parse_heartbeat(response: Any) -> BrokerRefusal | None:
    return error_of(response.error_code)


def leave_fields(identity: MemberIdentity) -> dict[str, Any]:
    """Return the fields of LeaveGroup; versions 3 and later have a list of members."""
    leaving = LeaveGroupRequest.MemberIdentity(
        member_id=identity.member_id, group_instance_id=identity.instance_id, reason=_REASON
    )
    return {"group_id": identity.group, "member_id": identity.member_id, "members": [leaving]}


def parse_leave(response: Any) -> BrokerRefusal | None:
    """Return the error of the request, or of its one member."""
    refusal = error_of(response.error_code)
    if refusal is not None:
        return refusal
    for member in response.members or ():
        refusal = error_of(member.error_code)
        if refusal is not None:
            return refusal
    return None


def _identity(identity: MemberIdentity) -> dict[str, Any]:
    return {
        "group_id": identity.group,
        "generation_id": identity.generation,
        "member_id": identity.member_id,
        "group_instance_id": identity.instance_id,
    }


_ASSIGNED_STATES = frozenset({"Stable", "Reconciling"})
"""Group states in which the next partitions of each member are known, even if it does not own all
of them yet.
"""
_FULL = 0
"""Epoch of a heartbeat with all fields; other heartbeats only have changes."""


def consumer_heartbeat_fields(beat: ConsumerHeartbeat) -> dict[str, Any]:
    kind = ConsumerGroupHeartbeatRequest.TopicPartitions
    owned = None
    if beat.owned is not None:
        owned = []
        for topic, partitions in sorted(beat.owned.items()):
            if partitions:
                owned.append(kind(topic_id=UUID(topic), partitions=sorted(partitions)))
    is_full = beat.epoch == _FULL
    return {
        "group_id": beat.group,
        "member_id": beat.member_id or "",
        "member_epoch": beat.epoch,
        "instance_id": beat.instance_id,
        "rack_id": None,
        "rebalance_timeout_ms": beat.rebalance_timeout_ms if is_full else -1,
        "subscribed_topic_names": list(beat.topics) if is_full else None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": owned,
    }


def parse_consumer_heartbeat(response: Any, **place: Any) -> ConsumerHeartbeatAnswer:
    """Parse the response. Raises CorruptData for a negative partition or an interval of 0."""
    refusal = error_of(response.error_code)
    if refusal is None and response.heartbeat_interval_ms <= 0 and response.member_epoch > 0:
        raise CorruptData(
            f"The coordinator sent the heartbeat interval {response.heartbeat_interval_ms} ms",
            action="Check the broker's log",
            **place,
        )
    assigned = None
    if response.assignment is not None:
        assigned = _assigned(response.assignment.topic_partitions, place)
    return ConsumerHeartbeatAnswer(
        refusal,
        response.error_message or "",
        response.member_id or None,
        response.member_epoch,
        response.heartbeat_interval_ms,
        assigned,
    )


def consumer_group_fields(group: str) -> dict[str, Any]:
    return {"group_ids": [group], "include_authorized_operations": False}


def parse_consumer_group(response: Any, group: str, **place: Any) -> MembersResponse:
    """Return the members of the group with their current and next partitions.

    None instead of partitions: unknown, so the member may own any of them. In the state `Assigning`
    members keep their current partitions, but their next ones are not computed yet (KIP-848).
    Raises CorruptData for another group than requested, and for a negative partition.
    """
    described = described_group(response, Api.CONSUMER_GROUP_DESCRIBE, group, **place)
    if described is None:
        return MembersResponse(None, {})

    has_assignments = described.group_state in _ASSIGNED_STATES
    members: dict[str, frozenset[TopicPartition] | None] = {}
    for member in described.members:
        partitions = None
        if has_assignments:
            partitions = _partitions_of(member, {"group": group, **place})
        members[member_label(member)] = partitions
    return MembersResponse(error_of(described.error_code), members)


def _partitions_of(member: Any, place: Mapping[str, Any]) -> frozenset[TopicPartition]:
    topics = [*member.assignment.topic_partitions, *member.target_assignment.target_partitions]
    partitions: set[TopicPartition] = set()
    for topic in topics:
        _reject_negative(topic.partitions, place)
        for partition in topic.partitions:
            partitions.add(TopicPartition(topic.topic_name, partition))
    return frozenset(partitions)


def _assigned(topics: Iterable[Any], place: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for topic in topics:
        _reject_negative(topic.partitions, place)
        topic_id = str(topic.topic_id)
        found[topic_id] = found.get(topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def _reject_negative(partitions: Iterable[int], place: Mapping[str, Any]) -> None:
    """Raise CorruptData for a negative partition."""
    if any(partition < 0 for partition in partitions):
        raise CorruptData(
            "An assigned partition is negative", action="Check the broker's log", **place
        )
