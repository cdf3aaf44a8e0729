"""Requests and responses of Kafka 0.8 to 4.x that are small: bytes <-> values, no sockets.

They are encoded and parsed with `kafka.protocol` of kafka-python, and their parts are turned into
our values, where the wire's -1 ends. Fetch is written and read by hand (`fetch`), because that
library's decoder copies the frame and the records. What lies inside the records belongs to
`protocol.records`. Which version a question is asked in is decided in `dialect`; those that are
known are in `versions.Api`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from etl.errors import CorruptData, Refusal
from etl.model.partitions import INTERNAL_TOPICS, Broker, BrokerPartition, Isolation, Leader
from etl.protocol.generations.kafka import schemas
from etl.protocol.generations.kafka.errors import UNKNOWN_TOPIC, refusal_of
from etl.protocol.generations.kafka.group_membership.consumer import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from etl.protocol.generations.kafka.versions import Api, ApiVersions
from etl.protocol.messages import ClusterMetadata, ListedOffset, PartitionMetadata, TopicMetadata

_MESSAGES: dict[Api, tuple[Any, Any]] = {
    Api.PRODUCE: (ProduceRequest, ProduceResponse),
    Api.LIST_OFFSETS: (ListOffsetsRequest, ListOffsetsResponse),
    Api.METADATA: (MetadataRequest, MetadataResponse),
    Api.OFFSET_COMMIT: (OffsetCommitRequest, OffsetCommitResponse),
    Api.OFFSET_FETCH: (OffsetFetchRequest, OffsetFetchResponse),
    Api.FIND_COORDINATOR: (FindCoordinatorRequest, FindCoordinatorResponse),
    Api.JOIN_GROUP: (JoinGroupRequest, JoinGroupResponse),
    Api.SYNC_GROUP: (SyncGroupRequest, SyncGroupResponse),
    Api.HEARTBEAT: (HeartbeatRequest, HeartbeatResponse),
    Api.LEAVE_GROUP: (LeaveGroupRequest, LeaveGroupResponse),
    Api.CONSUMER_GROUP_HEARTBEAT: (ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    Api.CONSUMER_GROUP_DESCRIBE: (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    Api.DESCRIBE_GROUPS: (DescribeGroupsRequest, DescribeGroupsResponse),
    Api.SASL_HANDSHAKE: (SaslHandshakeRequest, SaslHandshakeResponse),
    Api.SASL_AUTHENTICATE: (SaslAuthenticateRequest, SaslAuthenticateResponse),
    Api.API_VERSIONS: (ApiVersionsRequest, ApiVersionsResponse),
    Api.OFFSET_FOR_LEADER_EPOCH: (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    Api.DESCRIBE_CONFIGS: (DescribeConfigsRequest, DescribeConfigsResponse),
    Api.DESCRIBE_LOG_DIRS: (DescribeLogDirsRequest, DescribeLogDirsResponse),
    Api.DESCRIBE_PRODUCERS: (DescribeProducersRequest, DescribeProducersResponse),
    Api.DESCRIBE_TRANSACTIONS: (DescribeTransactionsRequest, DescribeTransactionsResponse),
    Api.LIST_TRANSACTIONS: (ListTransactionsRequest, ListTransactionsResponse),
}


def encode(
    api: Api, version: int, *, correlation_id: int, client_id: str, fields: Mapping[str, Any]
) -> bytes:
    """One framed request of any kind but Fetch."""
    request = _MESSAGES[api][0][version](**fields)
    request.with_header(correlation_id, client_id)
    frame: bytes = bytes(request.encode(header=True, framed=True))
    return frame


def decode(api: Api, version: int, response: memoryview, **place: Any) -> Any:
    """The library's response object from the bytes after the length (correlation id included).

    Raises CorruptData where the bytes are not that response.
    """
    schemas.refuse_other(
        _MESSAGES[api][1], version, response, api=f"{api.name} v{version}", **place
    )
    try:
        return _MESSAGES[api][1].decode(response, version=version, header=True)
    except (ValueError, IndexError, struct.error, OverflowError, TypeError, MemoryError) as error:
        raise CorruptData(
            f"the answer to {api.name} v{version} cannot be read: {error}",
            check="that nothing between here and the broker alters bytes",
            **place,
        ) from None


def parse_api_versions(response: Any) -> ApiVersions:
    """api key -> (lowest, highest). Of a v0 answer with code 35 nothing is left, which is an empty
    mapping.
    """
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


METADATA_CREATES_NOTHING = 4
"""From this version of Metadata on a broker can be told to create no topic that it is asked for
(KIP-204).
"""


def metadata_fields(topics: Collection[str] | None) -> dict[str, Any]:
    """None: all topics. Named they may be from version `METADATA_CREATES_NOTHING` on."""
    named = (
        None
        if topics is None
        else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)]
    )
    return {"topics": named, "allow_auto_topic_creation": False}


def parse_metadata(response: Any, chosen: Collection[str] | None = None) -> ClusterMetadata:
    """`chosen`: of an answer that tells of all topics, what it would say of these; None: all that
    it tells of.
    """
    brokers = {
        each.node_id: Broker(each.node_id, each.host, each.port) for each in response.brokers
    }
    topics = {
        topic.topic: topic for topic in (_parse_topic(each, brokers) for each in response.topics)
    }
    return ClusterMetadata(response.cluster_id, brokers, of_chosen(topics, chosen))


def of_chosen(
    topics: dict[str, TopicMetadata], chosen: Collection[str] | None
) -> dict[str, TopicMetadata]:
    """What an answer that tells of all topics would say of these; None: all that it tells of."""
    if chosen is None:
        return topics
    return {
        name: topics.get(name) or TopicMetadata(name, UNKNOWN_TOPIC, None, False, ())
        for name in sorted(chosen)
    }


def _parse_topic(found: Any, brokers: Mapping[int, Broker]) -> TopicMetadata:
    topic_id: UUID | None = getattr(found, "topic_id", None)
    partitions = (_parse_partition(found.name, each, brokers) for each in found.partitions)
    return TopicMetadata(
        topic=found.name,
        refusal=refusal_of(found.error_code),
        topic_id=str(topic_id) if topic_id else None,
        is_internal=bool(found.is_internal) or found.name in INTERNAL_TOPICS,
        partitions=tuple(sorted(partitions, key=lambda each: each.log)),
    )


def _parse_partition(topic: str, found: Any, brokers: Mapping[int, Broker]) -> PartitionMetadata:
    # Code 9 (a replica is away) beside a leader is harmless, so only the leader decides. A leader
    # that is not among the brokers is one that just died: as good as none.
    broker = brokers.get(found.leader_id)
    leader = None if broker is None else Leader(broker, or_none(getattr(found, "leader_epoch", -1)))
    return PartitionMetadata(
        BrokerPartition(topic, found.partition_index), refusal_of(found.error_code), leader
    )


MAX_TIMESTAMP = -3
"""Instead of a time: the record with the largest timestamp, wherever it lies; -1 in the answer
where none has one (KIP-734, version 7).
"""


def list_offsets_fields(
    times: Mapping[BrokerPartition, int],
    isolation: Isolation,
    epochs: Mapping[BrokerPartition, int | None],
    most: int = 1,
) -> dict[str, Any]:
    """One request for some logs; `times` holds LATEST, EARLIEST or milliseconds since 1970. Version
    0 names up to `most` offsets each.

    Newer versions are written for many logs by `many_logs`.
    """
    wanted = ListOffsetsRequest.ListOffsetsTopic
    topics = [
        wanted(
            name=topic,
            partitions=[
                wanted.ListOffsetsPartition(
                    partition_index=log.partition,
                    timestamp=times[log],
                    current_leader_epoch=or_minus_one(epochs.get(log)),
                    max_num_offsets=most,
                )
                for log in logs
            ],
        )
        for topic, logs in by_topic(times).items()
    ]
    return {"replica_id": -1, "isolation_level": isolation_level(isolation), "topics": topics}


def parse_list_offsets(response: Any) -> dict[BrokerPartition, ListedOffset]:
    """Of version 0, which names neither times nor epochs."""
    listed = (
        ListedOffset(
            BrokerPartition(topic.name, each.partition_index),
            refusal_of(each.error_code),
            next(iter(_offsets(each)), None),
            None,
            None,
        )
        for topic in response.topics
        for each in topic.partitions
    )
    return {each.log: each for each in listed}


def parse_offsets_before(response: Any, most: int) -> tuple[int, ...] | Refusal:
    """The offsets of the one log that was asked for, at most so many."""
    partitions = [each for topic in response.topics for each in topic.partitions]
    if len(partitions) != 1:
        what = f"the answer to LIST_OFFSETS tells of {len(partitions)} partitions where one was asked for"
        raise CorruptData(what, check="the broker's log")
    return refusal_of(partitions[0].error_code) or _offsets(partitions[0])[: max(most, 0)]


def _offsets(found: Any) -> tuple[int, ...]:
    """Version 0 names several, newest first; later ones one, or -1 for none."""
    return tuple(offset for offset in (*found.old_style_offsets, found.offset) if offset >= 0)


def by_topic(logs: Iterable[BrokerPartition]) -> dict[str, list[BrokerPartition]]:
    topics: dict[str, list[BrokerPartition]] = {}
    for log in sorted(logs):
        topics.setdefault(log.topic, []).append(log)
    return topics


def isolation_level(isolation: Isolation) -> int:
    return 1 if isolation is Isolation.READ_COMMITTED else 0


def or_none(number: int | None) -> int | None:
    """The wire's -1 for "there is none" ends here."""
    return None if number is None or number < 0 else number


def or_minus_one(number: int | None) -> int:
    return -1 if number is None else number
