"""What members of a classic group tell each other: subscriptions, and what the leader assigns
(ConsumerProtocol, versions 0 to 3).

Each begins with its version, and a later one only adds fields at the end (KIP-429), so that of a
version that is not known here what is known of it is read, as Kafka's own consumers do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from etl.errors import CorruptData
from etl.model.partitions import BrokerPartition
from etl.protocol.generations.kafka import schemas
from etl.protocol.generations.kafka.small_messages import by_topic, or_minus_one, or_none
from etl.protocol.group_messages import Subscription

_NEWEST = 3
_WITH_OWNED = 2
"""The first version that tells what is owned, and of which generation: only then do others believe
it.
"""
_CHECK = "which clients are members of the group"


def render_subscription(told: Subscription) -> bytes:
    """In version 0, which every client reads, where nothing is owned."""
    version = _WITH_OWNED if told.owned or told.generation is not None else 0
    kind = ConsumerProtocolSubscription.TopicPartition
    owned = [
        kind(topic=topic, partitions=[log.partition for log in logs])
        for topic, logs in by_topic(told.owned).items()
    ]
    made = ConsumerProtocolSubscription(
        version=version,
        topics=list(told.topics),
        user_data=told.user_data,
        owned_partitions=owned,
        generation_id=or_minus_one(told.generation),
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


def _decoded(kind: Any, content: bytes, what: str, place: Mapping[str, Any]) -> Any:
    told = int.from_bytes(content[:2], "big", signed=True)
    if told < 0:
        raise CorruptData(f"{what} is of version {told}", check=_CHECK, **place)
    version = min(told, _NEWEST)
    schemas.refuse_other_data(kind, version, memoryview(content), **place)
    try:
        return kind.decode(content[2:], version=version, header=False)
    except (ValueError, IndexError, struct.error, OverflowError, TypeError, MemoryError) as error:
        raise CorruptData(f"{what} cannot be read: {error}", check=_CHECK, **place) from None


def _logs(told: Iterable[Any], place: Mapping[str, Any]) -> frozenset[BrokerPartition]:
    logs = frozenset(
        BrokerPartition(each.topic, partition)
        for each in told
        for partition in each.partitions
        if partition >= 0
    )
    if any(partition < 0 for each in told for partition in each.partitions):
        raise CorruptData(
            "a partition that a member is said to have is negative", check=_CHECK, **place
        )
    return logs
