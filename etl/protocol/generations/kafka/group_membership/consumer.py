"""The consumer protocol (KIP-848, Kafka 4.0 on): ConsumerGroupHeartbeat, and ConsumerGroupDescribe
by which such a group is looked at.

kafka-python has no schema of them, so they are in files beside this module, as Kafka's protocol
writes messages down; their classes are that library's like all others. Topics go by their ids,
which Metadata tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.api_message import ApiMessage

from etl.errors import CorruptData
from etl.model.partitions import BrokerPartition
from etl.protocol.generations.kafka.errors import refusal_of
from etl.protocol.group_messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from etl.protocol.messages import ToldMembers


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See ConsumerGroupHeartbeatRequest.json."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See ConsumerGroupHeartbeatResponse.json."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See ConsumerGroupDescribeRequest.json."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See ConsumerGroupDescribeResponse.json."""


_DIVIDED = frozenset({"Stable", "Reconciling"})
"""Where each member has been told what it is to read, whether or not it reads all of it yet."""
_FULL = 0
"""A heartbeat with this epoch, and one that tells what is owned, says everything; the others say
nothing that was said before.
"""


def consumer_heartbeat_fields(beat: ConsumerHeartbeat) -> dict[str, Any]:
    kind = ConsumerGroupHeartbeatRequest.TopicPartitions
    owned = (
        None
        if beat.owned is None
        else [
            kind(topic_id=UUID(topic), partitions=sorted(partitions))
            for topic, partitions in sorted(beat.owned.items())
            if partitions
        ]
    )
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
    refusal = refusal_of(response.error_code)
    if refusal is None and response.heartbeat_interval_ms <= 0 and response.member_epoch > 0:
        raise CorruptData(
            f"heartbeats are wanted every {response.heartbeat_interval_ms} ms",
            check="the broker's log",
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


def parse_consumer_group(response: Any, **place: Any) -> ToldMembers:
    """The members of the one group that was asked for, with what each reads or is about to; as
    `groups.parse_group`.

    Raises CorruptData for a negative partition.
    """
    group = next(iter(response.groups), None)
    if group is None:
        return ToldMembers(None, {})
    is_divided = group.group_state in _DIVIDED
    return ToldMembers(
        refusal_of(group.error_code),
        {
            f"{member.member_id} at {member.client_host.lstrip('/')}": _logs_of(member, place)
            if is_divided
            else None
            for member in group.members
        },
    )


def _logs_of(member: Any, place: Mapping[str, Any]) -> frozenset[BrokerPartition]:
    told = [*member.assignment.topic_partitions, *member.target_assignment.target_partitions]
    if any(partition < 0 for each in told for partition in each.partitions):
        raise CorruptData("an assigned partition is negative", check="the broker's log", **place)
    return frozenset(
        BrokerPartition(each.topic_name, partition)
        for each in told
        for partition in each.partitions
    )


def _assigned(told: Iterable[Any], place: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for each in told:
        if any(partition < 0 for partition in each.partitions):
            raise CorruptData(
                "an assigned partition is negative", check="the broker's log", **place
            )
        found[str(each.topic_id)] = found.get(str(each.topic_id), frozenset()) | frozenset(
            each.partitions
        )
    return found
