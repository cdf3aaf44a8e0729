"""How do group members and their coordinator communicate, in either protocol?

Classic protocol (Kafka 0.9 to 4.x): JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the
subscriptions and assignments inside them (ConsumerProtocol, versions 0 to 3). Each of those begins
with its version; later versions only append fields (KIP-429), so of an unknown version the known
part is read, as Kafka's consumers do.

Consumer protocol (KIP-848, Kafka 4.0): ConsumerGroupHeartbeat and ConsumerGroupDescribe.
kafka-python has no schemas for them, so they lie beside this module in Kafka's own format.
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
from etl.kafka import small_messages
from etl.kafka.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    Joined,
    JoinRequest,
    MemberIdentity,
    MembersResponse,
    MemberSubscription,
    Subscription,
    Synced,
    is_of_instance,
)
from etl.kafka.small_messages import ConsumerGroupHeartbeatRequest, by_topic, or_minus_one, or_none
from etl.kafka.versions import error_of
from etl.model.partitions import BrokerPartition

_NEWEST = 3
_WITH_OWNED = 2
"""The first version with owned partitions and their generation: only then do other members trust
them.
"""
_CHECK = "Check which clients are members of the group"


def render_subscription(subscription: Subscription) -> bytes:
    """In version 0, which every client reads, where nothing is owned."""
    version = _WITH_OWNED if subscription.owned or subscription.generation is not None else 0
    kind = ConsumerProtocolSubscription.TopicPartition
    owned = [
        kind(topic=topic, partitions=[log.partition for log in logs])
        for topic, logs in by_topic(subscription.owned).items()
    ]
    made = ConsumerProtocolSubscription(
        version=version,
        topics=list(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=owned,
        generation_id=or_minus_one(subscription.generation),
    )
    return bytes(made.encode())


def parse_subscription(content: bytes, **place: Any) -> Subscription:
    """Raises CorruptData."""
    found = _decoded(ConsumerProtocolSubscription, content, "a member's subscription", place)
    owned = getattr(found, "owned_partitions", None) or ()
    return Subscription(
        tuple(found.topics),
        _logs(owned, place),
        or_none(getattr(found, "generation_id", None)),
        bytes(found.user_data or b""),
    )


def render_assignment(logs: Iterable[BrokerPartition]) -> bytes:
    kind = ConsumerProtocolAssignment.TopicPartition
    assigned = [
        kind(topic=topic, partitions=[log.partition for log in found])
        for topic, found in by_topic(logs).items()
    ]
    return bytes(
        ConsumerProtocolAssignment(version=0, assigned_partitions=assigned, user_data=b"").encode()
    )


def parse_assignment(content: bytes, **place: Any) -> frozenset[BrokerPartition]:
    """Nothing where the leader assigned nothing, or does not know the member. Raises CorruptData."""
    if not content:
        return frozenset()
    return _logs(
        _decoded(ConsumerProtocolAssignment, content, "an assignment", place).assigned_partitions,
        place,
    )


def _decoded(kind: Any, content: bytes, field: str, place: Mapping[str, Any]) -> Any:
    written_version = int.from_bytes(content[:2], "big", signed=True)
    if written_version < 0:
        raise CorruptData(f"{field} is of version {written_version}", action=_CHECK, **place)
    version = min(written_version, _NEWEST)
    small_messages.reject_malformed_member_data(kind, version, memoryview(content), **place)
    try:
        return kind.decode(content[2:], version=version, header=False)
    except (ValueError, IndexError, struct.error, OverflowError, TypeError, MemoryError) as error:
        raise CorruptData(f"{field} cannot be read: {error}", action=_CHECK, **place) from None


def _logs(topics: Iterable[Any], place: Mapping[str, Any]) -> frozenset[BrokerPartition]:
    logs = frozenset(
        BrokerPartition(each.topic, partition)
        for each in topics
        for partition in each.partitions
        if partition >= 0
    )
    if any(partition < 0 for each in topics for partition in each.partitions):
        raise CorruptData(
            "A partition that a member is said to have is negative", action=_CHECK, **place
        )
    return logs


CONSUMERS = "consumer"
"""The group type whose members divide partitions."""
FIRST_STATIC_JOIN, FIRST_STATIC = 5, 3
"""The versions of JoinGroup, and of the two others, that know the names of static members (KIP-345,
Kafka 2.3).
"""
_REASON = "a run of a pipeline"
_PROTOCOL = JoinGroupRequest.JoinGroupRequestProtocol


def join_fields(wanted: JoinRequest) -> dict[str, Any]:
    protocols = [
        _PROTOCOL(name=strategy, metadata=render_subscription(subscription))
        for strategy, subscription in wanted.subscriptions.items()
    ]
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

    A static leader that returns gets a new member id. From version 9 on the broker says that it
    leads (KIP-814); an older broker names its former id as leader. Raises CorruptData for an
    invalid subscription of a member.
    """
    refusal, member_id = error_of(response.error_code), response.member_id or None
    if refusal is not None:
        return Joined(refusal, member_id, -1, "", False, ())
    skips = getattr(response, "skip_assignment", False) or _is_former_id(
        response.leader, response.member_id, instance_id
    )
    is_leader = response.leader == response.member_id or skips
    if is_leader:
        members = tuple(
            MemberSubscription(
                each.member_id,
                getattr(each, "group_instance_id", None) or None,
                parse_subscription(bytes(each.metadata), **place),
            )
            for each in response.members
        )
    else:
        members = ()
    return Joined(
        None,
        member_id,
        response.generation_id,
        response.protocol_name or "",
        is_leader,
        members,
        skips,
    )


def _is_former_id(leader: str, member_id: str, instance_id: str | None) -> bool:
    return instance_id is not None and leader != member_id and is_of_instance(leader, instance_id)


def sync_fields(
    identity: MemberIdentity, strategy: str, assigned: Mapping[str, Iterable[BrokerPartition]]
) -> dict[str, Any]:
    """`assigned`: member id to logs, of the leader; nothing of anybody else."""
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    assignments = [
        kind(member_id=member, assignment=render_assignment(logs))
        for member, logs in assigned.items()
    ]
    return {
        **_identity(identity),
        "protocol_type": CONSUMERS,
        "protocol_name": strategy,
        "assignments": assignments,
    }


def parse_sync(response: Any, **place: Any) -> Synced:
    """Raises CorruptData for an assignment that is none."""
    refusal = error_of(response.error_code)
    return Synced(
        refusal, frozenset() if refusal else parse_assignment(bytes(response.assignment), **place)
    )


def heartbeat_fields(identity: MemberIdentity) -> dict[str, Any]:
    return _identity(identity)


def parse_heartbeat(response: Any) -> BrokerRefusal | None:
    return error_of(response.error_code)


def leave_fields(identity: MemberIdentity) -> dict[str, Any]:
    """Version 3 on names several members, the older ones one."""
    leaving = LeaveGroupRequest.MemberIdentity(
        member_id=identity.member_id, group_instance_id=identity.instance_id, reason=_REASON
    )
    return {"group_id": identity.group, "member_id": identity.member_id, "members": [leaving]}


def parse_leave(response: Any) -> BrokerRefusal | None:
    """Return the error of the request, or of the one member that it named."""
    error_found = error_of(response.error_code)
    return error_found or next(
        (refusal for each in response.members or () if (refusal := error_of(each.error_code))),
        None,
    )


def _identity(identity: MemberIdentity) -> dict[str, Any]:
    return {
        "group_id": identity.group,
        "generation_id": identity.generation,
        "member_id": identity.member_id,
        "group_instance_id": identity.instance_id,
    }


_DIVIDED = frozenset({"Stable", "Reconciling"})
"""Group states in which each member knows its assignment, whether or not it has all of it yet."""
_FULL = 0
"""A heartbeat with this epoch, or with owned partitions, has all fields; others have changes only.
"""


def consumer_heartbeat_fields(beat: ConsumerHeartbeat) -> dict[str, Any]:
    kind = ConsumerGroupHeartbeatRequest.TopicPartitions
    if beat.owned is None:
        owned = None
    else:
        owned = [
            kind(topic_id=UUID(topic), partitions=sorted(partitions))
            for topic, partitions in sorted(beat.owned.items())
            if partitions
        ]
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
    """Raises CorruptData for a negative partition, or an interval that is none."""
    refusal = error_of(response.error_code)
    if refusal is None and response.heartbeat_interval_ms <= 0 and response.member_epoch > 0:
        raise CorruptData(
            f"Heartbeats are wanted every {response.heartbeat_interval_ms} ms",
            action="Check the broker's log",
            **place,
        )
    return ConsumerHeartbeatAnswer(
        refusal,
        response.error_message or "",
        response.member_id or None,
        response.member_epoch,
        response.heartbeat_interval_ms,
        None
        if response.assignment is None
        else _assigned(response.assignment.topic_partitions, place),
    )


def consumer_group_fields(group: str) -> dict[str, Any]:
    return {"group_ids": [group], "include_authorized_operations": False}


def parse_consumer_group(response: Any, **place: Any) -> MembersResponse:
    """Parse the members of the requested group with their current and next partitions; as
    `groups.parse_group`. Raises CorruptData for a negative partition.
    """
    group = next(iter(response.groups), None)
    if group is None:
        return MembersResponse(None, {})
    is_divided = group.group_state in _DIVIDED
    return MembersResponse(
        error_of(group.error_code),
        {
            f"{member.member_id} at {member.client_host.lstrip('/')}": _logs_of(member, place)
            if is_divided
            else None
            for member in group.members
        },
    )


def _logs_of(member: Any, place: Mapping[str, Any]) -> frozenset[BrokerPartition]:
    partitions = [*member.assignment.topic_partitions, *member.target_assignment.target_partitions]
    if any(partition < 0 for each in partitions for partition in each.partitions):
        raise CorruptData(
            "An assigned partition is negative", action="Check the broker's log", **place
        )
    return frozenset(
        BrokerPartition(each.topic_name, partition)
        for each in partitions
        for partition in each.partitions
    )


def _assigned(topics: Iterable[Any], place: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for each in topics:
        if any(partition < 0 for partition in each.partitions):
            raise CorruptData(
                "An assigned partition is negative", action="Check the broker's log", **place
            )
        found[str(each.topic_id)] = found.get(str(each.topic_id), frozenset()) | frozenset(
            each.partitions
        )
    return found
