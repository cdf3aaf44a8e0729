"""Offsets that a group commits to its coordinator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from etl.model.logs import BrokerPartition
from etl.protocol.generations.kafka.small_messages import by_topic, or_none


def coordinator_fields(group: str) -> dict[str, Any]:
    return {"key": group, "key_type": 0}


def commit_fields(group: str, offsets: Mapping[BrokerPartition, int]) -> dict[str, Any]:
    """A commit from outside of any membership (generation -1)."""
    wanted = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [wanted(name=topic, partitions=[
        wanted.OffsetCommitRequestPartition(partition_index=log.partition, committed_offset=offsets[log], committed_leader_epoch=-1,
                                            committed_metadata="")
        for log in logs]) for topic, logs in by_topic(offsets).items()]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1, "topics": topics}


def parse_commit(response: Any) -> dict[BrokerPartition, int]:
    """Error code of each log."""
    return {BrokerPartition(topic.name, each.partition_index): each.error_code for topic in response.topics for each in topic.partitions}


def offset_fetch_fields(group: str, logs: Collection[BrokerPartition]) -> dict[str, Any]:
    wanted = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [wanted(name=topic, partition_indexes=[log.partition for log in found]) for topic, found in by_topic(logs).items()]
    return {"group_id": group, "topics": topics}


def parse_offset_fetch(response: Any) -> dict[BrokerPartition, tuple[int, int | None]]:
    """Error code and committed offset of each log; None where nothing was ever committed."""
    return {BrokerPartition(topic.name, each.partition_index): (each.error_code, or_none(each.committed_offset))
            for topic in response.topics for each in topic.partitions}
