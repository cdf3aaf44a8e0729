"""The classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, from version 0 (Kafka 0.9) on.

What members tell each other through the coordinator is bytes to it, and belongs to `subscriptions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from etl.errors import Refusal
from etl.model.partitions import BrokerPartition
from etl.protocol.generations.kafka.errors import refusal_of
from etl.protocol.generations.kafka.group_membership.subscriptions import (
    parse_assignment,
    parse_subscription,
    render_assignment,
    render_subscription,
)
from etl.protocol.group_messages import (
    Joined,
    JoinRequest,
    MemberIdentity,
    Synced,
    ToldMember,
    is_of_instance,
)

CONSUMERS = "consumer"
"""The kind of group whose members divide partitions among them."""
FIRST_STATIC_JOIN, FIRST_STATIC = 5, 3
"""The versions of JoinGroup, and of the two others, that know the names of static members (KIP-345,
Kafka 2.3).
"""
_REASON = "a run of a pipeline"
_PROTOCOL = JoinGroupRequest.JoinGroupRequestProtocol


def join_fields(wanted: JoinRequest) -> dict[str, Any]:
    protocols = [
        _PROTOCOL(name=strategy, metadata=render_subscription(told))
        for strategy, told in wanted.subscriptions.items()
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
    """Parse an answer to the join of a static member (`instance_id`) or a dynamic one.

    A static leader that comes back gets a new member id. From version 9 on the broker says that it
    leads (KIP-814); an older broker names its former member id as the leader's. Raises CorruptData
    for what a member told that is no subscription.
    """
    refusal, member_id = refusal_of(response.error_code), response.member_id or None
    if refusal is not None:
        return Joined(refusal, member_id, -1, "", False, ())
    skips = getattr(response, "skip_assignment", False) or _is_former_id(
        response.leader, response.member_id, instance_id
    )
    is_leader = response.leader == response.member_id or skips
    members = (
        tuple(
            ToldMember(
                each.member_id,
                getattr(each, "group_instance_id", None) or None,
                parse_subscription(bytes(each.metadata), **place),
            )
            for each in response.members
        )
        if is_leader
        else ()
    )
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
    refusal = refusal_of(response.error_code)
    return Synced(
        refusal, frozenset() if refusal else parse_assignment(bytes(response.assignment), **place)
    )


def heartbeat_fields(identity: MemberIdentity) -> dict[str, Any]:
    return _identity(identity)


def parse_heartbeat(response: Any) -> Refusal | None:
    return refusal_of(response.error_code)


def leave_fields(identity: MemberIdentity) -> dict[str, Any]:
    """Version 3 on names several members, the older ones one."""
    leaving = LeaveGroupRequest.MemberIdentity(
        member_id=identity.member_id, group_instance_id=identity.instance_id, reason=_REASON
    )
    return {"group_id": identity.group, "member_id": identity.member_id, "members": [leaving]}


def parse_leave(response: Any) -> Refusal | None:
    """Of the request, or else of the one member that it named."""
    told = refusal_of(response.error_code)
    return told or next(
        (refusal for each in response.members or () if (refusal := refusal_of(each.error_code))),
        None,
    )


def _identity(identity: MemberIdentity) -> dict[str, Any]:
    return {
        "group_id": identity.group,
        "generation_id": identity.generation,
        "member_id": identity.member_id,
        "group_instance_id": identity.instance_id,
    }
