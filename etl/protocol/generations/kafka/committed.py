"""Offsets that a group commits to its coordinator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from etl.model.logs import Broker, BrokerPartition
from etl.protocol.generations.kafka.errors import UNKNOWN_TOPIC, refusal_of
from etl.protocol.generations.kafka.small_messages import by_topic, or_none
from etl.protocol.messages import CommittedOffset, CommittedOffsets, ToldCoordinator
from etl.protocol.refusal import Refusal


def coordinator_fields(group: str) -> dict[str, Any]:
    return {"key": group, "key_type": 0}


def parse_coordinator(response: Any) -> ToldCoordinator:
    return ToldCoordinator(refusal_of(response.error_code), Broker(response.node_id, response.host, response.port))


def commit_fields(group: str, offsets: Mapping[BrokerPartition, int], metadata: str = "") -> dict[str, Any]:
    """A commit from outside of any membership (generation -1)."""
    wanted = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [wanted(name=topic, partitions=[
        wanted.OffsetCommitRequestPartition(partition_index=log.partition, committed_offset=offsets[log], committed_leader_epoch=-1,
                                            committed_metadata=metadata)
        for log in logs]) for topic, logs in by_topic(offsets).items()]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1, "topics": topics}


def parse_commit(response: Any) -> dict[BrokerPartition, Refusal | None]:
    return {BrokerPartition(topic.name, each.partition_index): refusal_of(each.error_code)
            for topic in response.topics for each in topic.partitions}


def offset_fetch_fields(group: str, logs: Collection[BrokerPartition]) -> dict[str, Any]:
    wanted = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [wanted(name=topic, partition_indexes=[log.partition for log in found]) for topic, found in by_topic(logs).items()]
    return {"group_id": group, "topics": topics}


def parse_offset_fetch(response: Any, *, in_zookeeper: bool) -> CommittedOffsets:
    """`in_zookeeper`: a broker that reads them there (version 0) says of a log without an offset that it is unknown."""
    return CommittedOffsets(refusal_of(response.error_code), {
        BrokerPartition(topic.name, each.partition_index): _committed(each, in_zookeeper)
        for topic in response.topics for each in topic.partitions})


def _committed(found: Any, in_zookeeper: bool) -> CommittedOffset:
    offset, refusal = or_none(found.committed_offset), refusal_of(found.error_code)
    is_absent = in_zookeeper and offset is None and refusal is UNKNOWN_TOPIC
    return CommittedOffset(None if is_absent else refusal, offset, "" if offset is None else found.metadata or "")
