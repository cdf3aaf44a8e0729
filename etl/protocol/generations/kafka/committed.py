"""Offsets that a group commits to its coordinator, or that a broker before 4.0 keeps for it in
ZooKeeper.

OffsetCommit  0       the broker writes to ZooKeeper              OffsetFetch  0       read there
              1       generation and member                                    1       by the coordinator
              7       a static member's name                                   2       a refusal of the whole question
              9       member epochs (KIP-848)                                  7       stable offsets alone (KIP-447)
              10      topics by their ids                                      8       several groups; 9 the member, 10 topic ids
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from etl.errors import CorruptData, Refusal
from etl.model.partitions import Broker, BrokerPartition
from etl.protocol.generations.kafka.errors import UNKNOWN_TOPIC, refusal_of
from etl.protocol.generations.kafka.small_messages import by_topic, or_minus_one, or_none
from etl.protocol.messages import ToldCoordinator
from etl.protocol.stored_offsets import (
    CommittedOffset,
    CommittedOffsets,
    OffsetsCommit,
    OffsetsQuestion,
)

FIRST_STATIC = 7
FIRST_BY_ID = 10
_NO_ID = UUID(int=0)


def coordinator_fields(group: str) -> dict[str, Any]:
    return {"key": group, "key_type": 0}


def parse_coordinator(response: Any) -> ToldCoordinator:
    return ToldCoordinator(
        refusal_of(response.error_code), Broker(response.node_id, response.host, response.port)
    )


def commit_fields(commit: OffsetsCommit) -> dict[str, Any]:
    """Generation -1 and an empty name are those of a commit from outside of any membership."""
    wanted, member = OffsetCommitRequest.OffsetCommitRequestTopic, commit.member
    topics = [
        wanted(
            name=topic,
            topic_id=_id_of(topic, commit.topic_ids),
            partitions=[
                wanted.OffsetCommitRequestPartition(
                    partition_index=log.partition,
                    committed_offset=commit.offsets[log],
                    committed_metadata=commit.metadata,
                    committed_leader_epoch=or_minus_one(commit.leader_epochs.get(log)),
                )
                for log in logs
            ],
        )
        for topic, logs in by_topic(commit.offsets).items()
    ]
    return {
        "group_id": commit.group,
        "generation_id_or_member_epoch": member.generation if member else -1,
        "member_id": member.member_id if member else "",
        "group_instance_id": member.instance_id if member else None,
        "retention_time_ms": -1,
        "topics": topics,
    }


def parse_commit(
    response: Any, commit: OffsetsCommit | None = None
) -> dict[BrokerPartition, Refusal | None]:
    """`commit`: what was asked for. Raises CorruptData for an answer about other logs: it would
    pass for their consent.
    """
    names = _names_of(commit.topic_ids if commit else {})
    told = {
        BrokerPartition(_name_of(topic, names), each.partition_index): refusal_of(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }
    if commit and told.keys() != commit.offsets.keys():
        raise CorruptData(
            "the answer to OFFSET_COMMIT names other partitions than were asked for",
            check="the broker's log",
        )
    return told


def offset_fetch_fields(question: OffsetsQuestion) -> dict[str, Any]:
    """For every version: versions 8 and later name groups."""
    of_one, of_several = (
        OffsetFetchRequest.OffsetFetchRequestTopic,
        OffsetFetchRequest.OffsetFetchRequestGroup,
    )
    logs, member = by_topic(question.logs), question.member
    numbers = {topic: [log.partition for log in found] for topic, found in logs.items()}
    group = of_several(
        group_id=question.group,
        member_id=member.member_id if member else None,
        member_epoch=member.generation if member else -1,
        topics=[
            of_several.OffsetFetchRequestTopics(
                name=topic, topic_id=_id_of(topic, question.topic_ids), partition_indexes=found
            )
            for topic, found in numbers.items()
        ],
    )
    return {
        "group_id": question.group,
        "topics": [of_one(name=topic, partition_indexes=found) for topic, found in numbers.items()],
        "groups": [group],
        "require_stable": question.is_stable,
    }


def parse_offset_fetch(
    response: Any, *, in_zookeeper: bool, question: OffsetsQuestion | None = None
) -> CommittedOffsets:
    """`in_zookeeper`: a broker that reads them there (version 0) says of a log without an offset
    that it is unknown.

    `question`: what was asked. Raises CorruptData for an answer about other groups or logs.
    """
    if question and [each.group_id for each in response.groups] not in ([], [question.group]):
        raise CorruptData(
            "the answer to OFFSET_FETCH is about another group than was asked for",
            check="the broker's log",
        )
    found = response.groups[0] if response.groups else response
    names = _names_of(question.topic_ids if question else {})
    refusal = refusal_of(found.error_code)
    offsets = {
        BrokerPartition(_name_of(topic, names), each.partition_index): _committed(
            each, in_zookeeper
        )
        for topic in found.topics
        for each in topic.partitions
    }
    if question and refusal is None and offsets.keys() != set(question.logs):
        raise CorruptData(
            "the answer to OFFSET_FETCH names other partitions than were asked for",
            check="the broker's log",
        )
    return CommittedOffsets(refusal, offsets)


def _committed(found: Any, in_zookeeper: bool) -> CommittedOffset:
    offset, refusal = or_none(found.committed_offset), refusal_of(found.error_code)
    is_absent = in_zookeeper and offset is None and refusal is UNKNOWN_TOPIC
    epoch = None if offset is None else or_none(found.committed_leader_epoch)
    return CommittedOffset(
        None if is_absent else refusal,
        offset,
        "" if offset is None else found.metadata or "",
        epoch,
    )


def _id_of(topic: str, topic_ids: Mapping[str, str]) -> UUID:
    return UUID(topic_ids[topic]) if topic in topic_ids else _NO_ID


def _names_of(topic_ids: Mapping[str, str]) -> dict[UUID, str]:
    return {UUID(topic_id): topic for topic, topic_id in topic_ids.items()}


def _name_of(topic: Any, names: Mapping[UUID, str]) -> str:
    """By its id from version 10 on, which names it alone; an id that nobody asked for is told as it
    is.
    """
    topic_id: UUID = getattr(topic, "topic_id", _NO_ID)
    return str(topic.name or names.get(topic_id, str(topic_id)))
