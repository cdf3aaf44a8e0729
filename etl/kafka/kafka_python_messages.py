"""How are Kafka's small requests and responses encoded and decoded?

`kafka.protocol` of kafka-python encodes and parses them; responses become values of
request_values.py.

Lives here: metadata, DescribeGroups, DescribeConfigs (retention and cleanup), open transactions
(KIP-664), and the check of responses against their schemas. Not here: Fetch (fetch_messages.py) and
requests about many partitions (many_partition_messages.py), because kafka-python copies records and
creates an object for each partition.

The bytes of a response are first checked against its schema: kafka-python accepts a null array or
string where the schema has none, a truncated string, trailing bytes, and varints without an end,
which it adds up to numbers of millions of bits. The check walks the schema with a `Reader`, which
compares each length with the remaining bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
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
from kafka.protocol.api_message import ApiMessage
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

from etl.errors import BrokerRefusal, CorruptData
from etl.kafka.primitives import Reader
from etl.kafka.request_values import (
    ClusterMetadata,
    ListedOffset,
    MembersResponse,
    PartitionMetadata,
    TopicMetadata,
)
from etl.kafka.versions import UNKNOWN_TOPIC, Api, ApiVersions, error_of
from etl.model.partitions import (
    INTERNAL_TOPICS,
    Broker,
    Isolation,
    Leader,
    OpenTransaction,
    Retention,
    TopicPartition,
)


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See ConsumerGroupHeartbeatRequest.json."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See ConsumerGroupHeartbeatResponse.json."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See ConsumerGroupDescribeRequest.json."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See ConsumerGroupDescribeResponse.json."""


Step = Callable[[Reader], None]
"""Reads one field, or several of fixed size. Raises CorruptData."""

_FIXED = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "bitfield": 4,
    "uuid": 16,
}
_INDEXES = {"PartitionIndex", "Index", "Partition"}
_NAMES = {"Name", "Topic"}
"""Fields that are never null here, because topics are requested by name.

From Metadata 12 on the name is null in a response to an unknown topic id.
"""
_MAX_PORT = 65535


def reject_malformed(message: Any, version: int, response: memoryview, **place: Any) -> None:
    """Raise CorruptData, with place and byte, if `response` is not a `message` of this version.

    `message` is a response class of kafka-python, `response` the bytes after the length, with the
    correlation id.
    """
    reader = Reader(response, **place)
    for step in _steps_of(message, version):
        step(reader)
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")


def reject_malformed_member_data(
    data: Any, version: int, content: memoryview, **place: Any
) -> None:
    """Do the same for the data of group members.

    It begins with its version, and may end with unknown fields of newer versions. `data` is a class
    of kafka-python without a header.
    """
    reader = Reader(content, **place)
    for step in _steps_of_data(data, version):
        step(reader)


@cache
def _steps_of_data(data: Any, version: int) -> tuple[Step, ...]:
    flexible = _holds(data.json["flexibleVersions"], version)
    return (_skipping("the version", 2), *_steps(data.json["fields"], version, flexible))


@cache
def _steps_of(message: Any, version: int) -> tuple[Step, ...]:
    schema = message.json
    flexible = _holds(schema["flexibleVersions"], version)
    header = [_skipping("the correlation id", 4)]
    if flexible:
        header.append(Reader.skip_tags)
    return (*header, *_steps(schema["fields"], version, flexible))


def _steps(
    fields: Sequence[Mapping[str, Any]],
    version: int,
    flexible: bool,
    *,
    has_tags: bool | None = None,
) -> list[Step]:
    """Return the steps through one struct; adjacent fields of fixed size are one step.

    `has_tags`: tagged fields follow, as in each flexible struct, but not after array items of text
    or numbers. None: as in a struct.
    """
    steps: list[Step] = []
    size = 0
    first = ""
    for field in fields:
        if not _is_untagged(field, version):
            continue
        if field["type"] in _FIXED and field["name"] not in _INDEXES and field["name"] != "Port":
            size += _FIXED[field["type"]]
            first = first or field["name"]
            continue
        if size:
            steps.append(_skipping(first, size))
        size = 0
        first = ""
        steps.append(_step(field, version, flexible))
    if size:
        steps.append(_skipping(first, size))
    if has_tags is None:
        has_tags = flexible
    if has_tags:
        steps.append(Reader.skip_tags)
    return steps


def _is_untagged(field: Mapping[str, Any], version: int) -> bool:
    """True if this version has the field, outside of the tagged fields."""
    if not _holds(field["versions"], version):
        return False
    return not _holds(field.get("taggedVersions", "none"), version)


def _step(field: Mapping[str, Any], version: int, flexible: bool) -> Step:
    name = field["name"]
    kind = field["type"]
    may_be_null = _holds(field.get("nullableVersions", "none"), version) and name not in _NAMES
    if name in _INDEXES:
        return _number(name, 0, 2**31 - 1)
    if name == "Port":
        return _number(name, -1, _MAX_PORT)
    if "fields" in field and not kind.startswith("[]"):
        return _struct(name, _steps(field["fields"], version, flexible), may_be_null)
    if not kind.startswith("[]"):
        return _text(name, may_be_null, flexible, is_long=kind == "bytes")

    if "fields" in field:
        fields = field["fields"]
        has_tags = flexible
    else:
        fields = [{**field, "name": name, "type": kind[2:], "nullableVersions": "none"}]
        has_tags = False
    steps = _steps(fields, version, flexible, has_tags=has_tags)
    return _array(name, steps, may_be_null, flexible, _layout(fields, version, has_tags))


def _layout(
    fields: Sequence[Mapping[str, Any]], version: int, has_tags: bool
) -> struct.Struct | None:
    """Return the layout of array items of equal size; None if their sizes differ.

    It unpacks the partition number of each item, and the number of its tagged fields.
    """
    layout = ">"
    for field in fields:
        if not _is_untagged(field, version):
            continue
        if field["type"] not in _FIXED or field["name"] == "Port":
            return None
        if field["name"] in _INDEXES:
            layout += "i"
        else:
            layout += f"{_FIXED[field['type']]}x"
    if has_tags:
        layout += "B"
    return struct.Struct(layout)


def _skipping(name: str, size: int) -> Step:
    def skip(reader: Reader) -> None:
        reader.span(size, name)

    return skip


def _number(name: str, lowest: int, highest: int) -> Step:
    def check(reader: Reader) -> None:
        number = reader.int32()
        if not lowest <= number <= highest:
            raise reader.corrupt(f"{name} is {number}")

    return check


def _text(name: str, may_be_null: bool, flexible: bool, *, is_long: bool = False) -> Step:
    """Read a string, or bytes (`is_long`) with a length of four bytes."""

    def skip(reader: Reader) -> None:
        if flexible:
            length = reader.unsigned_varint() - 1
        elif is_long:
            length = reader.int32()
        else:
            length = reader.int16()
        if length != -1 or not may_be_null:
            reader.span(length, name)

    return skip


def _struct(name: str, inner: Sequence[Step], may_be_null: bool) -> Step:
    """Read a struct. If it may be null, it begins with a byte: 1, or -1 for null (KIP-893)."""

    def walk(reader: Reader) -> None:
        presence = 1
        if may_be_null:
            presence = reader.int8()
        if presence == -1:
            return
        if presence != 1:
            raise reader.corrupt(f"{name} has the presence byte {presence}")
        for step in inner:
            step(reader)

    return walk


def _skip_regular_items(reader: Reader, layout: struct.Struct, count: int) -> bool:
    """Skip items of this layout at once.

    Returns False and skips nothing if one has tagged fields or is invalid: then each is checked.
    """
    size = layout.size * count
    start = reader.at
    if size > reader.left:
        return False

    columns: list[tuple[int, ...]] = []
    if size:
        columns = list(zip(*layout.iter_unpack(reader.span(size, "items")), strict=True))
    has_tags = bool(columns) and layout.format.endswith("B") and any(columns[-1])
    if not has_tags and all(min(column) >= 0 for column in columns):
        return True
    reader.at = start
    return False


def _array(
    name: str,
    inner: Sequence[Step],
    may_be_null: bool,
    flexible: bool,
    layout: struct.Struct | None,
) -> Step:
    def walk(reader: Reader) -> None:
        count = reader.unsigned_varint() - 1 if flexible else reader.int32()
        if count == -1 and may_be_null:
            return
        # Each item takes at least one byte: a count above the number of bytes is invalid.
        if not 0 <= count <= reader.left:
            raise reader.corrupt(f"{name} claims {count} items where {reader.left} bytes are left")
        if layout is not None and _skip_regular_items(reader, layout, count):
            return
        for _ in range(count):
            for step in inner:
                step(reader)

    return walk


def _holds(versions: str, version: int) -> bool:
    """True if `version` is in Kafka's notation of versions: `none`, `3`, `3-5`, `3+`."""
    if versions == "none":
        return False
    first, _, last = versions.removesuffix("+").partition("-")
    if version < int(first):
        return False
    return versions.endswith("+") or version <= int(last or first)


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
    """Encode one framed request."""
    request = _MESSAGES[api][0][version](**fields)
    request.with_header(correlation_id, client_id)
    frame: bytes = bytes(request.encode(header=True, framed=True))
    return frame


def decode(api: Api, version: int, response: memoryview, **place: Any) -> Any:
    """Return kafka-python's object of a response: the bytes after the length.

    Raises CorruptData if the bytes are not a response of this type and version.
    """
    reject_malformed(_MESSAGES[api][1], version, response, api=f"{api.name} v{version}", **place)
    try:
        return _MESSAGES[api][1].decode(response, version=version, header=True)
    except (ValueError, IndexError, struct.error, OverflowError, TypeError, MemoryError) as error:
        raise CorruptData(
            f"The response to {api.name} v{version} cannot be parsed: {error}",
            action="Check that nothing between here and the broker alters bytes",
            **place,
        ) from None


def parse_api_versions(response: Any) -> ApiVersions:
    """Return api key -> (lowest, highest). A v0 response with code 35 is an empty mapping."""
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


METADATA_CREATES_NOTHING = 4
"""First version of Metadata that can request topics without creating them (KIP-204)."""


def metadata_fields(topics: Collection[str] | None) -> dict[str, Any]:
    """Return the fields of Metadata; None: all topics.

    Topics may be named from version `METADATA_CREATES_NOTHING` on.
    """
    if topics is None:
        named = None
    else:
        named = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)]
    return {"topics": named, "allow_auto_topic_creation": False}


def parse_metadata(response: Any, chosen: Collection[str] | None = None) -> ClusterMetadata:
    """Parse a response to Metadata.

    `chosen`: the topics to return from a response about all topics; None: all of them.
    """
    brokers = {}
    for each in response.brokers:
        brokers[each.node_id] = Broker(each.node_id, each.host, each.port)
    topics = {}
    for each in response.topics:
        topic = _parse_topic(each, brokers)
        topics[topic.topic] = topic
    return ClusterMetadata(response.cluster_id, brokers, select_topics(topics, chosen))


def select_topics(
    topics: dict[str, TopicMetadata], chosen: Collection[str] | None
) -> dict[str, TopicMetadata]:
    """Return these topics from a response about all topics; None: all of them."""
    if chosen is None:
        return topics
    selected = {}
    for name in sorted(chosen):
        selected[name] = topics.get(name) or TopicMetadata(name, UNKNOWN_TOPIC, None, False, ())
    return selected


def _parse_topic(found: Any, brokers: Mapping[int, Broker]) -> TopicMetadata:
    topic_uuid: UUID | None = getattr(found, "topic_id", None)
    topic_id = None
    if topic_uuid is not None:
        topic_id = str(topic_uuid)
    partitions = (_parse_partition(found.name, each, brokers) for each in found.partitions)
    return TopicMetadata(
        topic=found.name,
        refusal=error_of(found.error_code),
        topic_id=topic_id,
        is_internal=bool(found.is_internal) or found.name in INTERNAL_TOPICS,
        partitions=tuple(sorted(partitions, key=lambda each: each.partition)),
    )


def _parse_partition(topic: str, found: Any, brokers: Mapping[int, Broker]) -> PartitionMetadata:
    # Code 9 (REPLICA_NOT_AVAILABLE) is harmless if there is a leader, so only the leader decides. A
    # leader that is not in the list of brokers has just died.
    broker = brokers.get(found.leader_id)
    leader = None
    if broker is not None:
        leader = Leader(broker, or_none(getattr(found, "leader_epoch", -1)))
    return PartitionMetadata(
        TopicPartition(topic, found.partition_index), error_of(found.error_code), leader
    )


MAX_TIMESTAMP = -3
"""Instead of a time: the record with the largest timestamp (KIP-734, version 7).

The response has -1 if no record has a timestamp.
"""


def list_offsets_fields(
    times: Mapping[TopicPartition, int],
    isolation: Isolation,
    epochs: Mapping[TopicPartition, int | None],
    most: int = 1,
) -> dict[str, Any]:
    """Return the fields of ListOffsets; `many_partition_messages` encodes versions 1 and later.

    `times` holds LATEST, EARLIEST or milliseconds since 1970. The response to version 0 has up to
    `most` offsets per partition.
    """
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    topics = []
    for topic, topic_partitions in by_topic(times).items():
        partitions = []
        for topic_partition in topic_partitions:
            partition = topic_type.ListOffsetsPartition(
                partition_index=topic_partition.partition,
                timestamp=times[topic_partition],
                current_leader_epoch=or_minus_one(epochs.get(topic_partition)),
                max_num_offsets=most,
            )
            partitions.append(partition)
        topics.append(topic_type(name=topic, partitions=partitions))
    return {"replica_id": -1, "isolation_level": isolation_level(isolation), "topics": topics}


def parse_list_offsets(response: Any) -> dict[TopicPartition, ListedOffset]:
    """Parse version 0, without times and epochs."""
    listed: dict[TopicPartition, ListedOffset] = {}
    for topic in response.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            offset = next(iter(_offsets(each)), None)
            listed[partition] = ListedOffset(
                partition, error_of(each.error_code), offset, None, None
            )
    return listed


def parse_offsets_before(response: Any, most: int) -> tuple[int, ...] | BrokerRefusal:
    """Return up to `most` offsets of the one requested partition."""
    partitions = []
    for topic in response.topics:
        partitions.extend(topic.partitions)
    if len(partitions) != 1:
        raise CorruptData(
            f"The response to LIST_OFFSETS has {len(partitions)} partitions instead of one",
            action="Check the broker's log",
        )
    return error_of(partitions[0].error_code) or _offsets(partitions[0])[: max(most, 0)]


def _offsets(found: Any) -> tuple[int, ...]:
    """Return the offsets of version 0, newest first, or the one of later versions (-1: none)."""
    listed = (*found.old_style_offsets, found.offset)
    return tuple(offset for offset in listed if offset >= 0)


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of the partitions of each topic, as requests name them."""
    numbers = {}
    for topic, of_topic in by_topic(partitions).items():
        numbers[topic] = [partition.partition for partition in of_topic]
    return numbers


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition)
    return topics


def isolation_level(isolation: Isolation) -> int:
    return 1 if isolation is Isolation.READ_COMMITTED else 0


def or_none(number: int | None) -> int | None:
    """Return None for the protocol's -1."""
    return None if number is None or number < 0 else number


def or_minus_one(number: int | None) -> int:
    return -1 if number is None else number


_TOPIC = 2
_LIMIT_KEYS = ("retention.ms", "retention.bytes")
_RETENTION_KEYS = ("cleanup.policy", "remote.storage.enable", *_LIMIT_KEYS)


def configs_fields(topics: Collection[str]) -> dict[str, Any]:
    """Return the fields of DescribeConfigs for retention and cleanup of topics (KIP-133)."""
    wanted = DescribeConfigsRequest.DescribeConfigsResource
    keys = list(_RETENTION_KEYS)
    resources = []
    for name in sorted(topics):
        resources.append(wanted(resource_type=_TOPIC, resource_name=name, configuration_keys=keys))
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


def parse_retention(response: Any) -> dict[str, Retention]:
    """Return the retention by topic, without topics that this client may not describe.

    A topic that is only compacted has no limits. Raises CorruptData for a limit that is no number.
    """
    retention: dict[str, Retention] = {}
    for topic in response.results:
        if topic.error_code == 0:
            configs = {config.name: config.value for config in topic.configs}
            retention[topic.resource_name] = _retention(configs, topic.resource_name)
    return retention


def _retention(found: Mapping[str, str | None], topic: str) -> Retention:
    policy = [word.strip() for word in (found.get("cleanup.policy") or "delete").split(",")]
    ms = None
    size = None
    if "delete" in policy:
        ms, size = (_limit(found.get(key), key, topic) for key in _LIMIT_KEYS)
    return Retention(
        ms,
        size,
        is_compacted="compact" in policy,
        is_tiered=found.get("remote.storage.enable") == "true",
    )


def _limit(value: str | None, key: str, topic: str) -> int | None:
    text = value or "-1"
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        raise CorruptData(f"The broker reports {text[:40]!r} for {key}", topic=topic)
    return or_none(int(text))


_YEAR_10000_MS = 253_402_300_800_000
"""Later times have no date."""


def producers_fields(partitions: Collection[TopicPartition]) -> dict[str, Any]:
    """Return the fields of DescribeProducers for the leader of these partitions."""
    wanted = DescribeProducersRequest.TopicRequest
    topics = []
    for topic, numbers in numbers_by_topic(partitions).items():
        topics.append(wanted(name=topic, partition_indexes=numbers))
    return {"topics": topics}


def parse_open_transactions(response: Any) -> dict[TopicPartition, OpenTransaction]:
    """Return the earliest open transaction of each partition.

    Partitions without one, or that this client may not describe, are left out.
    """
    earliest: dict[TopicPartition, OpenTransaction] = {}
    for topic in response.topics:
        for each in topic.partitions:
            started = []
            for producer in each.active_producers:
                if producer.current_txn_start_offset >= 0:
                    started.append((producer.current_txn_start_offset, producer.producer_id))
            if each.error_code == 0 and started:
                first_offset, producer_id = min(started)
                partition = TopicPartition(topic.name, each.partition_index)
                earliest[partition] = OpenTransaction(producer_id, first_offset)
    return earliest


def list_transactions_fields(producer_ids: Collection[int]) -> dict[str, Any]:
    return {"state_filters": [], "producer_id_filters": sorted(producer_ids), "duration_filter": -1}


def parse_transactional_ids(response: Any) -> list[str]:
    """Return the transactional ids that this broker coordinates and this client may describe."""
    if response.error_code:
        return []
    return [each.transactional_id for each in response.transaction_states]


def describe_transactions_fields(transactional_ids: Collection[str]) -> dict[str, Any]:
    return {"transactional_ids": sorted(transactional_ids)}


def parse_transactions(response: Any) -> dict[int, tuple[str, int | None]]:
    """Return producer id -> transactional id and start of its transaction.

    The start is in milliseconds since 1970; None: unknown.
    """
    transactions: dict[int, tuple[str, int | None]] = {}
    for each in response.transaction_states:
        if each.error_code != 0:
            continue
        started_ms = each.transaction_start_time_ms
        if not 0 < started_ms < _YEAR_10000_MS:
            started_ms = None
        transactions[each.producer_id] = (each.transactional_id, started_ms)
    return transactions


_CONSUMERS = "consumer"
"""The group type that assigns partitions; groups of Connect assign connectors and tasks."""
_STABLE = "Stable"


def describe_groups_fields(group: str) -> dict[str, Any]:
    return {"groups": [group]}


def parse_describe_groups(response: Any, group: str, **place: Any) -> MembersResponse:
    """Return the members of the group and their assignments; None unless the group is stable.

    Raises CorruptData for another group than requested, and for an invalid assignment.
    """
    described = described_group(response, Api.DESCRIBE_GROUPS, group, **place)
    if described is None:
        return MembersResponse(None, {})

    has_assignments = described.protocol_type == _CONSUMERS and described.group_state == _STABLE
    members: dict[str, frozenset[TopicPartition] | None] = {}
    for member in described.members:
        assignment = None
        if has_assignments:
            content = bytes(member.member_assignment)
            assignment = _parse_assignment(content, {"group": group, **place})
        members[member_label(member)] = assignment
    return MembersResponse(error_of(described.error_code), members)


def described_group(response: Any, api: Api, group: str, **place: Any) -> Any | None:
    """Return the requested group of a response; None if the broker describes none.

    Raises CorruptData for another group.
    """
    if not response.groups:
        return None
    described = response.groups[0]
    if described.group_id != group:
        raise CorruptData(
            f"The response to {api.name} has another group than requested",
            action="Check the broker's log",
            group=group,
            **place,
        )
    return described


def member_label(member: Any) -> str:
    """Return the name of a described member in output: its id and host."""
    return f"{member.member_id} at {member.client_host.lstrip('/')}"


def _parse_assignment(content: bytes, place: dict[str, Any]) -> frozenset[TopicPartition] | None:
    """Return the partitions of one member; None before its first assignment.

    All versions of ConsumerProtocolAssignment begin with these fields.
    """
    if not content:
        return None
    reader = Reader(memoryview(content), **place)
    reader.int16()
    partitions = set()
    for _ in range(reader.count("the assignment's topics", item_bytes=6)):
        topic = reader.string16("an assigned topic")
        for _ in range(reader.count("the assigned partitions", item_bytes=4)):
            partition = reader.int32()
            if partition < 0:
                raise reader.corrupt(f"Assigned partition {partition} is negative")
            partitions.add(TopicPartition(topic, partition))
    return frozenset(partitions)
