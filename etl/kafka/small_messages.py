"""How are Kafka's small requests and responses encoded and decoded?

They are encoded and parsed by `kafka.protocol` of kafka-python and converted to our values.
Not here: Fetch (etl/kafka/fetch.py) and requests about many partitions
(etl/kafka/many_partitions.py), because that library copies records and creates an object for
each partition.

The bytes of a response are first checked against its schema: kafka-python accepts a null array or
string where the schema has none, a truncated string, trailing bytes, and varints without an end,
which it adds up to numbers of millions of bits. The check walks the schema with a `Reader`, which
compares each length with the remaining bytes.

Lives here: metadata, group coordinators, DescribeGroups, DescribeConfigs (retention and cleanup),
and open transactions (KIP-664).
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
from etl.kafka.messages import (
    ClusterMetadata,
    ListedOffset,
    MembersResponse,
    PartitionMetadata,
    TopicMetadata,
)
from etl.kafka.primitives import Reader
from etl.kafka.versions import UNKNOWN_TOPIC, Api, ApiVersions, error_of
from etl.model.partitions import (
    INTERNAL_TOPICS,
    Broker,
    BrokerPartition,
    Isolation,
    Leader,
    OpenTransaction,
    Retention,
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
"""Never null for us: we ask for topics by name (from Metadata 12 on a broker may answer for an id
that it does not know).
"""
_MAX_PORT = 65535


def reject_other(message: Any, version: int, response: memoryview, **place: Any) -> None:
    """Raise CorruptData, with the place and the byte, where `response` is not a `message` of that
    version.

    `message` is a response class of kafka-python, `response` the bytes after the length,
    correlation id included.
    """
    reader = Reader(response, **place)
    for step in _steps_of(message, version):
        step(reader)
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")


def reject_malformed_member_data(
    data: Any, version: int, content: memoryview, **place: Any
) -> None:
    """Do the same for data of group members: with a version in front, and unknown trailing fields
    of newer versions. `data` is a class of kafka-python without a header.
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
    header = [_skipping("the correlation id", 4), *([_tags] if flexible else [])]
    return (*header, *_steps(schema["fields"], version, flexible))


def _steps(
    fields: Sequence[Mapping[str, Any]],
    version: int,
    flexible: bool,
    *,
    has_tags: bool | None = None,
) -> list[Step]:
    """Return the steps through one struct; adjacent fields of fixed size are one step. `has_tags`:
    tagged fields follow, as in each flexible struct, but not after array items of text or numbers.
    """
    steps: list[Step] = []
    size, first = 0, ""
    for field in fields:
        if not _holds(field["versions"], version) or _holds(
            field.get("taggedVersions", "none"), version
        ):
            continue
        if field["type"] in _FIXED and field["name"] not in _INDEXES and field["name"] != "Port":
            size, first = size + _FIXED[field["type"]], first or field["name"]
            continue
        if size:
            steps.append(_skipping(first, size))
        size, first = 0, ""
        steps.append(_step(field, version, flexible))
    if size:
        steps.append(_skipping(first, size))
    return [*steps, _tags] if (flexible if has_tags is None else has_tags) else steps


def _step(field: Mapping[str, Any], version: int, flexible: bool) -> Step:
    name, kind = field["name"], field["type"]
    may_be_null = _holds(field.get("nullableVersions", "none"), version) and name not in _NAMES
    if name in _INDEXES or name == "Port":
        return _number(
            name, 0 if name in _INDEXES else -1, _MAX_PORT if name == "Port" else 2**31 - 1
        )
    if "fields" in field and not kind.startswith("[]"):
        return _struct(name, _steps(field["fields"], version, flexible), may_be_null)
    if not kind.startswith("[]"):
        return _text(name, may_be_null, flexible, is_long=kind == "bytes")
    item = {**field, "name": name, "type": kind[2:], "nullableVersions": "none"}
    fields, has_tags = (
        field["fields"] if "fields" in field else [item],
        flexible and "fields" in field,
    )
    steps = _steps(fields, version, flexible, has_tags=has_tags)
    return _array(name, steps, may_be_null, flexible, _layout(fields, version, has_tags))


def _layout(
    fields: Sequence[Mapping[str, Any]], version: int, has_tags: bool
) -> struct.Struct | None:
    """Items of one size each, where none has tagged fields: of each its index and the number of its
    tags. None: they have no one size.
    """
    there = [
        field
        for field in fields
        if _holds(field["versions"], version)
        and not _holds(field.get("taggedVersions", "none"), version)
    ]
    if not all(field["type"] in _FIXED and field["name"] != "Port" for field in there):
        return None
    sizes = ("i" if field["name"] in _INDEXES else f"{_FIXED[field['type']]}x" for field in there)
    return struct.Struct(">" + "".join(sizes) + ("B" if has_tags else ""))


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
    """Read a struct; a leading byte tells whether it is null (KIP-893), if it may be."""

    def walk(reader: Reader) -> None:
        there = reader.int8() if may_be_null else 1
        if there not in (1, -1):
            raise reader.corrupt(f"{name} is said to be there by {there}")
        for step in inner if there == 1 else ():
            step(reader)

    return walk


def _are_as_usual(reader: Reader, layout: struct.Struct, count: int) -> bool:
    """Skip items of that layout at once; False, and nothing skipped, if one has tags or is invalid:
    then each is checked.
    """
    size, begun = layout.size * count, reader.at
    if size > reader.left:
        return False
    if size:
        columns = list(zip(*layout.iter_unpack(reader.span(size, "items")), strict=True))
    else:
        columns = []
    tags = columns[-1] if columns and layout.format.endswith("B") else ()
    if not any(tags) and all(min(column) >= 0 for column in columns):
        return True
    reader.at = begun
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
        # Each item is one byte at least, so a count cannot promise more rounds than there are
        # bytes.
        if not 0 <= count <= reader.left:
            raise reader.corrupt(f"{name} claims {count} items where {reader.left} bytes are left")
        if layout is not None and _are_as_usual(reader, layout, count):
            return
        for _ in range(count):
            for step in inner:
                step(reader)

    return walk


def _tags(reader: Reader) -> None:
    """Tagged fields (KIP-482): none of them is known to a version that is spoken here, and all are
    passed over.
    """
    for _ in range(reader.unsigned_varint()):
        reader.unsigned_varint()
        reader.span(reader.unsigned_varint(), "a tagged field")


def _holds(versions: str, version: int) -> bool:
    """True if `version` is in Kafka's notation of versions: `none`, `3`, `3-5`, `3+`."""
    if versions == "none":
        return False
    first, dash, last = versions.removesuffix("+").partition("-")
    return int(first) <= version and (
        versions.endswith("+") or version <= int(last if dash else first)
    )


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
    reject_other(_MESSAGES[api][1], version, response, api=f"{api.name} v{version}", **place)
    try:
        return _MESSAGES[api][1].decode(response, version=version, header=True)
    except (ValueError, IndexError, struct.error, OverflowError, TypeError, MemoryError) as error:
        raise CorruptData(
            f"The answer to {api.name} v{version} cannot be read: {error}",
            action="Check that nothing between here and the broker alters bytes",
            **place,
        ) from None


def parse_api_versions(response: Any) -> ApiVersions:
    """Return api key -> (lowest, highest). A v0 response with code 35 is an empty mapping."""
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


METADATA_CREATES_NOTHING = 4
"""From this version of Metadata on a broker can be told to create no requested topic (KIP-204)."""


def metadata_fields(topics: Collection[str] | None) -> dict[str, Any]:
    """None: all topics. Named they may be from version `METADATA_CREATES_NOTHING` on."""
    if topics is None:
        named = None
    else:
        named = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)]
    return {"topics": named, "allow_auto_topic_creation": False}


def parse_metadata(response: Any, chosen: Collection[str] | None = None) -> ClusterMetadata:
    """`chosen`: of a response about all topics, the answer for these; None: all."""
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
    """Return the answer for these topics from a response about all; None: all."""
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
        refusal=error_of(found.error_code),
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
        BrokerPartition(topic, found.partition_index), error_of(found.error_code), leader
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

    Newer versions are written for many logs by `many_partitions`.
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
    """Parse version 0, without times and epochs."""
    listed = (
        ListedOffset(
            BrokerPartition(topic.name, each.partition_index),
            error_of(each.error_code),
            next(iter(_offsets(each)), None),
            None,
            None,
        )
        for topic in response.topics
        for each in topic.partitions
    )
    return {each.log: each for each in listed}


def parse_offsets_before(response: Any, most: int) -> tuple[int, ...] | BrokerRefusal:
    """Return at most so many offsets of the one requested partition."""
    partitions = [each for topic in response.topics for each in topic.partitions]
    if len(partitions) != 1:
        what = f"The answer to LIST_OFFSETS tells of {len(partitions)} partitions where one was asked for"
        raise CorruptData(what, action="Check the broker's log")
    return error_of(partitions[0].error_code) or _offsets(partitions[0])[: max(most, 0)]


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


_TOPIC = 2
_LIMIT_KEYS = ("retention.ms", "retention.bytes")
_RETENTION_KEYS = ("cleanup.policy", "remote.storage.enable", *_LIMIT_KEYS)


def configs_fields(topics: Collection[str]) -> dict[str, Any]:
    """How long topics are kept, and how they are cleaned up (KIP-133)."""
    wanted = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        wanted(resource_type=_TOPIC, resource_name=name, configuration_keys=list(_RETENTION_KEYS))
        for name in sorted(topics)
    ]
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


def parse_retention(response: Any) -> dict[str, Retention]:
    """Retention by topic; one that we may not describe is left out. A topic that is only compacted
    has no limits.

    Raises CorruptData for a limit that is no number.
    """
    return {
        topic.resource_name: _retention(
            {one.name: one.value for one in topic.configs}, topic.resource_name
        )
        for topic in response.results
        if topic.error_code == 0
    }


def _retention(found: Mapping[str, str | None], topic: str) -> Retention:
    policy = [word.strip() for word in (found.get("cleanup.policy") or "delete").split(",")]
    ms, size = (
        _limit(found.get(key), key, topic) if "delete" in policy else None for key in _LIMIT_KEYS
    )
    return Retention(
        ms,
        size,
        is_compacted="compact" in policy,
        is_tiered=found.get("remote.storage.enable") == "true",
    )


def _limit(value: str | None, key: str, topic: str) -> int | None:
    text = value or "-1"
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        raise CorruptData(f"The broker says that {key} is {text[:40]!r}", topic=topic)
    return int(text) if int(text) >= 0 else None


_YEAR_10000_MS = 253_402_300_800_000
"""No date can be written from there on."""


def producers_fields(logs: Collection[BrokerPartition]) -> dict[str, Any]:
    """The question who writes to these logs, for their leader."""
    wanted = DescribeProducersRequest.TopicRequest
    return {
        "topics": [
            wanted(name=topic, partition_indexes=[log.partition for log in found])
            for topic, found in by_topic(logs).items()
        ]
    }


def parse_open_transactions(response: Any) -> dict[BrokerPartition, OpenTransaction]:
    """The open transaction that began first in each log; a log without one, or of which we may not
    ask, is left out.
    """
    found: dict[BrokerPartition, OpenTransaction] = {}
    for topic in response.topics:
        for each in topic.partitions:
            started = [
                (p.current_txn_start_offset, p.producer_id)
                for p in each.active_producers
                if p.current_txn_start_offset >= 0
            ]
            if each.error_code == 0 and started:
                first_offset, producer_id = min(started)
                found[BrokerPartition(topic.name, each.partition_index)] = OpenTransaction(
                    producer_id, first_offset
                )
    return found


def list_transactions_fields(producer_ids: Collection[int]) -> dict[str, Any]:
    return {"state_filters": [], "producer_id_filters": sorted(producer_ids), "duration_filter": -1}


def parse_transactional_ids(response: Any) -> list[str]:
    """The transactional ids that this broker coordinates and we may see."""
    if response.error_code:
        return []
    return [each.transactional_id for each in response.transaction_states]


def describe_transactions_fields(transactional_ids: Collection[str]) -> dict[str, Any]:
    return {"transactional_ids": sorted(transactional_ids)}


def parse_transactions(response: Any) -> dict[int, tuple[str, int | None]]:
    """Producer id -> transactional id, and when its transaction began in milliseconds since 1970."""
    return {
        each.producer_id: (
            each.transactional_id,
            each.transaction_start_time_ms
            if 0 < each.transaction_start_time_ms < _YEAR_10000_MS
            else None,
        )
        for each in response.transaction_states
        if each.error_code == 0
    }


_CONSUMERS = "consumer"
"""The group type whose members divide partitions; Connect's divide something else."""
_STABLE = "Stable"


def groups_fields(group: str) -> dict[str, Any]:
    return {"groups": [group]}


def parse_group(response: Any, **place: Any) -> MembersResponse:
    """Return the members of the one requested group. Raises CorruptData for an invalid assignment."""
    group = next(iter(response.groups), None)
    if group is None:
        return MembersResponse(None, {})
    divides = group.protocol_type == _CONSUMERS and group.group_state == _STABLE
    return MembersResponse(
        error_of(group.error_code),
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
