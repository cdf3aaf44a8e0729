"""Who is in Kafka's own group of a name, and what its members read: DescribeGroups and the
assignments that it carries, no sockets.

Groups of the newer protocol (KIP-848) are described by another request
(`group_membership.consumer`).
"""

from __future__ import annotations

from typing import Any

from etl.model.partitions import BrokerPartition
from etl.protocol.generations.kafka.errors import refusal_of
from etl.protocol.messages import ToldMembers
from etl.protocol.primitives import Reader

_CONSUMERS = "consumer"
"""The kind of group whose members divide partitions; Connect's divide something else."""
_STABLE = "Stable"


def groups_fields(group: str) -> dict[str, Any]:
    return {"groups": [group]}


def parse_group(response: Any, **place: Any) -> ToldMembers:
    """The members of the one group that was asked for.

    Raises CorruptData for an assignment that is none.
    """
    group = next(iter(response.groups), None)
    if group is None:
        return ToldMembers(None, {})
    divides = group.protocol_type == _CONSUMERS and group.group_state == _STABLE
    return ToldMembers(
        refusal_of(group.error_code),
        {
            f"{member.member_id} at {member.client_host.lstrip('/')}": _parse_assignment(
                bytes(member.member_assignment), place
            )
            if divides
            else None
            for member in group.members
        },
    )


def _parse_assignment(content: bytes, place: dict[str, Any]) -> frozenset[BrokerPartition] | None:
    """The logs of one member (ConsumerProtocolAssignment; all its versions begin so). None: nothing
    was assigned yet.
    """
    if not content:
        return None
    reader = Reader(memoryview(content), **place)
    reader.int16()
    logs = set()
    for _ in range(reader.count("the assignment's topics", item_bytes=6)):
        topic = reader.string16("an assigned topic")
        for _ in range(reader.count("the assigned partitions", item_bytes=4)):
            partition = reader.int32()
            if partition < 0:
                raise reader.corrupt(f"assigned partition {partition} is negative")
            logs.add(BrokerPartition(topic, partition))
    return frozenset(logs)
