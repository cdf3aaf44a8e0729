"""Requests and responses of the modern dialect (Kafka 0.11 to 4.x): bytes <-> values, no sockets.

Small requests are encoded and small responses parsed with `kafka.protocol` of kafka-python, and their parts are
turned into our values here, where the wire's -1 ends. Fetch is written and read by hand, because that library's
decoder copies the frame and the records: here records stay slices of the caller's buffer. What lies inside the
records belongs to `record_batches`, sockets and versions already agreed upon to `edges.broker`.

Versions known: `Api`. Fetch 4 to 11 are the non-flexible versions that carry record batches v2; from 5 on they
tell the log start, from 9 on they carry leader epochs, from 10 on zstd may come, from 11 on a rack. Older ones
(0.8 to 0.10) would be further rows of `FETCH_LAYOUTS`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from uuid import UUID

from kafka.protocol.admin import (
    DescribeGroupsRequest, DescribeGroupsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
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
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
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

from etl.errors import CorruptData, SettingsError
from etl.model.plans import Broker, BrokerPartition, Isolation, Leader, OpenTransaction, Retention
from etl.protocol import FetchedPartition
from etl.protocol.generations.kafka import schemas
from etl.protocol.primitives import Reader, Writer

LATEST = -1
"""A time in ListOffsets: the readable end (high watermark, or last stable offset under read_committed)."""
EARLIEST = -2
"""A time in ListOffsets: the log start offset."""

Spoken = Mapping[int, tuple[int, int]]
"""What a broker said it speaks: api key -> lowest and highest version."""


class Api(Enum):
    """Kind of request: api key, and the lowest and highest version known here."""

    PRODUCE = (0, 3, 8)
    FETCH = (1, 4, 11)
    LIST_OFFSETS = (2, 2, 5)
    METADATA = (3, 4, 12)
    OFFSET_COMMIT = (8, 2, 7)
    OFFSET_FETCH = (9, 2, 5)
    FIND_COORDINATOR = (10, 1, 3)
    DESCRIBE_GROUPS = (15, 0, 4)
    API_VERSIONS = (18, 0, 0)
    OFFSET_FOR_LEADER_EPOCH = (23, 2, 4)
    DESCRIBE_CONFIGS = (32, 1, 3)
    DESCRIBE_LOG_DIRS = (35, 0, 4)
    DESCRIBE_PRODUCERS = (61, 0, 0)
    DESCRIBE_TRANSACTIONS = (65, 0, 0)
    LIST_TRANSACTIONS = (66, 0, 1)

    @property
    def key(self) -> int:
        return self.value[0]


_MESSAGES: dict[Api, tuple[Any, Any]] = {
    Api.PRODUCE: (ProduceRequest, ProduceResponse),
    Api.LIST_OFFSETS: (ListOffsetsRequest, ListOffsetsResponse),
    Api.METADATA: (MetadataRequest, MetadataResponse),
    Api.OFFSET_COMMIT: (OffsetCommitRequest, OffsetCommitResponse),
    Api.OFFSET_FETCH: (OffsetFetchRequest, OffsetFetchResponse),
    Api.FIND_COORDINATOR: (FindCoordinatorRequest, FindCoordinatorResponse),
    Api.DESCRIBE_GROUPS: (DescribeGroupsRequest, DescribeGroupsResponse),
    Api.API_VERSIONS: (ApiVersionsRequest, ApiVersionsResponse),
    Api.OFFSET_FOR_LEADER_EPOCH: (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    Api.DESCRIBE_CONFIGS: (DescribeConfigsRequest, DescribeConfigsResponse),
    Api.DESCRIBE_LOG_DIRS: (DescribeLogDirsRequest, DescribeLogDirsResponse),
    Api.DESCRIBE_PRODUCERS: (DescribeProducersRequest, DescribeProducersResponse),
    Api.DESCRIBE_TRANSACTIONS: (DescribeTransactionsRequest, DescribeTransactionsResponse),
    Api.LIST_TRANSACTIONS: (ListTransactionsRequest, ListTransactionsResponse),
}


def is_spoken(api: Api, spoken: Spoken) -> bool:
    """Whether the broker and this module share a version of this request."""
    key, lowest, highest = api.value
    return key in spoken and spoken[key][0] <= highest and spoken[key][1] >= lowest


def choose_version(api: Api, spoken: Spoken, **place: Any) -> int:
    """The highest version that the broker and this module both speak.

    Raises SettingsError when there is none: a broker older than 0.11, or one that dropped what we know.
    """
    key, lowest, highest = api.value
    theirs = spoken.get(key)
    if theirs is None or theirs[0] > highest or theirs[1] < lowest:
        says = "none" if theirs is None else f"{theirs[0]} to {theirs[1]}"
        raise SettingsError(f"the broker speaks no version of {api.name} from {lowest} to {highest} (it says {says})",
                            check="the broker's version: this dialect needs Kafka 0.11 or newer", **place)
    return min(highest, theirs[1])


# Small requests: fields in, frame out; body in, the library's response out.

def encode(api: Api, version: int, *, correlation_id: int, client_id: str, fields: Mapping[str, Any]) -> bytes:
    """One framed request of any kind but Fetch."""
    request = _MESSAGES[api][0][version](**fields)
    request.with_header(correlation_id, client_id)
    frame: bytes = bytes(request.encode(header=True, framed=True))
    return frame


def decode(api: Api, version: int, response: memoryview, **place: Any) -> Any:
    """The library's response object from the bytes after the length (correlation id included).

    Raises CorruptData where the bytes are not that response.
    """
    schemas.refuse_other(_MESSAGES[api][1], version, response, api=f"{api.name} v{version}", **place)
    try:
        return _MESSAGES[api][1].decode(response, version=version, header=True)
    except (ValueError, IndexError, struct.error, OverflowError, TypeError, MemoryError) as error:
        raise CorruptData(f"the answer to {api.name} v{version} cannot be read: {error}",
                          check="that nothing between here and the broker alters bytes", **place) from None


def parse_api_versions(response: Any) -> Spoken:
    """api key -> (lowest, highest). Of a v0 answer with code 35 nothing is left, which is an empty mapping."""
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


# Metadata

@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One log and who leads it now."""

    log: BrokerPartition
    error_code: int
    leader: Leader | None
    """None: no leader at the moment, wait and ask again."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic, or why the broker does not tell of it (code 3: not there; 29: not allowed)."""

    topic: str
    error_code: int
    topic_id: str | None
    """None where brokers have no topic ids (before 2.8)."""
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The answer to one Metadata request."""

    cluster_id: str | None
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]

    @property
    def leaders(self) -> dict[BrokerPartition, Leader]:
        """Every log that has a leader."""
        return {each.log: each.leader for each in self._partitions() if each.leader is not None}

    @property
    def leaderless(self) -> frozenset[BrokerPartition]:
        """Every log that is known and has no leader."""
        return frozenset(each.log for each in self._partitions() if each.leader is None)

    @property
    def topic_ids(self) -> dict[str, str]:
        """Topic ids, where the broker has them."""
        return {name: topic.topic_id for name, topic in self.topics.items() if topic.topic_id is not None}

    def _partitions(self) -> Iterable[PartitionMetadata]:
        return (partition for topic in self.topics.values() for partition in topic.partitions)


def metadata_fields(topics: Collection[str] | None) -> dict[str, Any]:
    """None: all topics. Asking never creates a topic (which is why versions below 4 are not used)."""
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)]
    return {"topics": named, "allow_auto_topic_creation": False}


def parse_metadata(response: Any) -> ClusterMetadata:
    brokers = {each.node_id: Broker(each.node_id, each.host, each.port) for each in response.brokers}
    topics = (_parse_topic(each, brokers) for each in response.topics)
    return ClusterMetadata(response.cluster_id, brokers, {topic.topic: topic for topic in topics})


def _parse_topic(found: Any, brokers: Mapping[int, Broker]) -> TopicMetadata:
    topic_id: UUID | None = getattr(found, "topic_id", None)
    partitions = (_parse_partition(found.name, each, brokers) for each in found.partitions)
    return TopicMetadata(
        topic=found.name, error_code=found.error_code, topic_id=str(topic_id) if topic_id else None,
        is_internal=bool(found.is_internal), partitions=tuple(sorted(partitions, key=lambda each: each.log)))


def _parse_partition(topic: str, found: Any, brokers: Mapping[int, Broker]) -> PartitionMetadata:
    # Code 9 (a replica is away) beside a leader is harmless, so only the leader decides. A leader that is not among
    # the brokers is one that just died: as good as none.
    broker = brokers.get(found.leader_id)
    leader = None if broker is None else Leader(broker, _or_none(getattr(found, "leader_epoch", -1)))
    return PartitionMetadata(BrokerPartition(topic, found.partition_index), found.error_code, leader)


# ListOffsets

@dataclass(frozen=True, slots=True)
class ListedOffset:
    """What a broker answered for one log and one time."""

    log: BrokerPartition
    error_code: int
    offset: int | None
    """None: no record that late."""
    timestamp_ms: int | None
    leader_epoch: int | None


def list_offsets_fields(times: Mapping[BrokerPartition, int], isolation: Isolation,
                        epochs: Mapping[BrokerPartition, int | None]) -> dict[str, Any]:
    """One request for many logs; `times` holds LATEST, EARLIEST or milliseconds since 1970."""
    wanted = ListOffsetsRequest.ListOffsetsTopic
    topics = [wanted(name=topic, partitions=[
        wanted.ListOffsetsPartition(partition_index=log.partition, timestamp=times[log],
                                    current_leader_epoch=_or_minus_one(epochs.get(log)))
        for log in logs]) for topic, logs in _by_topic(times).items()]
    return {"replica_id": -1, "isolation_level": _isolation_level(isolation), "topics": topics}


def parse_list_offsets(response: Any) -> dict[BrokerPartition, ListedOffset]:
    listed = (ListedOffset(BrokerPartition(topic.name, each.partition_index), each.error_code, _or_none(each.offset),
                           _or_none(each.timestamp), _or_none(getattr(each, "leader_epoch", -1)))
              for topic in response.topics for each in topic.partitions)
    return {each.log: each for each in listed}


# OffsetForLeaderEpoch

@dataclass(frozen=True, slots=True)
class ToldEpochEnd:
    """What a broker answered of one log and one epoch."""

    error_code: int
    epoch: int | None
    end_offset: int | None
    """None: the leader's log knows no such epoch (an epoch above its own, or a log without epochs)."""


ToldEpochEnds = dict[BrokerPartition, ToldEpochEnd]


def epoch_ends_fields(epochs: Mapping[BrokerPartition, int], current: Mapping[BrokerPartition, int | None]) -> dict[str, Any]:
    """One question for each log: where the records up to an epoch end (KIP-101). `current` fences a leader of the past (KIP-320)."""
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics = [wanted(topic=topic, partitions=[
        wanted.OffsetForLeaderPartition(
            partition=log.partition, current_leader_epoch=_or_minus_one(current.get(log)), leader_epoch=epochs[log])
        for log in logs]) for topic, logs in _by_topic(epochs).items()]
    return {"replica_id": -1, "topics": topics}


def parse_epoch_ends(response: Any) -> ToldEpochEnds:
    return {BrokerPartition(topic.topic, each.partition): ToldEpochEnd(
        each.error_code, _or_none(each.leader_epoch), _or_none(each.end_offset)) for topic in response.topics for each in topic.partitions}


# DescribeLogDirs

def log_dirs_fields(logs: Collection[BrokerPartition]) -> dict[str, Any]:
    wanted = DescribeLogDirsRequest.DescribableLogDirTopic
    return {"topics": [wanted(topic=topic, partitions=[log.partition for log in found]) for topic, found in _by_topic(logs).items()]}


def parse_log_dirs(response: Any) -> dict[BrokerPartition, int]:
    """Bytes of the segments of each log on that broker; a copy that is being moved to another disk is left out."""
    return {BrokerPartition(topic.name, each.partition_index): each.partition_size
            for folder in response.results if folder.error_code == 0
            for topic in folder.topics for each in topic.partitions if not each.is_future_key}


# Open transactions (KIP-664)

_YEAR_10000_MS = 253_402_300_800_000
"""No date can be written from there on."""


def producers_fields(logs: Collection[BrokerPartition]) -> dict[str, Any]:
    """Who writes to these logs: asked of their leader."""
    wanted = DescribeProducersRequest.TopicRequest
    return {"topics": [wanted(name=topic, partition_indexes=[log.partition for log in found]) for topic, found in _by_topic(logs).items()]}


def parse_open_transactions(response: Any) -> dict[BrokerPartition, OpenTransaction]:
    """The open transaction that began first in each log; a log without one, or of which we may not ask, is left out."""
    found: dict[BrokerPartition, OpenTransaction] = {}
    for topic in response.topics:
        for each in topic.partitions:
            started = [(p.current_txn_start_offset, p.producer_id) for p in each.active_producers if p.current_txn_start_offset >= 0]
            if each.error_code == 0 and started:
                first_offset, producer_id = min(started)
                found[BrokerPartition(topic.name, each.partition_index)] = OpenTransaction(producer_id, first_offset)
    return found


def list_transactions_fields(producer_ids: Collection[int]) -> dict[str, Any]:
    return {"state_filters": [], "producer_id_filters": sorted(producer_ids), "duration_filter": -1}


def parse_transactional_ids(response: Any) -> list[str]:
    """The transactional ids that this broker coordinates and we may see."""
    return [] if response.error_code else [each.transactional_id for each in response.transaction_states]


def describe_transactions_fields(transactional_ids: Collection[str]) -> dict[str, Any]:
    return {"transactional_ids": sorted(transactional_ids)}


def parse_transactions(response: Any) -> dict[int, tuple[str, int | None]]:
    """Producer id -> transactional id, and when its transaction began in milliseconds since 1970."""
    return {each.producer_id: (each.transactional_id, each.transaction_start_time_ms if 0 < each.transaction_start_time_ms < _YEAR_10000_MS
                               else None)
            for each in response.transaction_states if each.error_code == 0}


# DescribeConfigs

_TOPIC = 2
_LIMIT_KEYS = ("retention.ms", "retention.bytes")
_RETENTION_KEYS = ("cleanup.policy", "remote.storage.enable", *_LIMIT_KEYS)


def configs_fields(topics: Collection[str]) -> dict[str, Any]:
    """How long topics are kept, and how they are cleaned up (KIP-133)."""
    wanted = DescribeConfigsRequest.DescribeConfigsResource
    resources = [wanted(resource_type=_TOPIC, resource_name=name, configuration_keys=list(_RETENTION_KEYS)) for name in sorted(topics)]
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


def parse_retention(response: Any) -> dict[str, Retention]:
    """By topic; one that we may not describe is left out. A topic that is only compacted has no limits.

    Raises CorruptData for a limit that is no number.
    """
    return {topic.resource_name: _retention({one.name: one.value for one in topic.configs}, topic.resource_name)
            for topic in response.results if topic.error_code == 0}


def _retention(found: Mapping[str, str | None], topic: str) -> Retention:
    policy = [word.strip() for word in (found.get("cleanup.policy") or "delete").split(",")]
    ms, size = (_limit(found.get(key), key, topic) if "delete" in policy else None for key in _LIMIT_KEYS)
    return Retention(ms, size, is_compacted="compact" in policy, is_tiered=found.get("remote.storage.enable") == "true")


def _limit(value: str | None, key: str, topic: str) -> int | None:
    said = value or "-1"
    if not re.fullmatch(r"-?[0-9]{1,19}", said):
        raise CorruptData(f"the broker says that {key} is {said[:40]!r}", topic=topic)
    return int(said) if int(said) >= 0 else None


# A group's offsets, as the broker keeps them

def coordinator_fields(group: str) -> dict[str, Any]:
    return {"key": group, "key_type": 0}


def commit_fields(group: str, offsets: Mapping[BrokerPartition, int]) -> dict[str, Any]:
    """A commit from outside of any membership (generation -1)."""
    wanted = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [wanted(name=topic, partitions=[
        wanted.OffsetCommitRequestPartition(partition_index=log.partition, committed_offset=offsets[log], committed_leader_epoch=-1,
                                            committed_metadata="")
        for log in logs]) for topic, logs in _by_topic(offsets).items()]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1, "topics": topics}


def parse_commit(response: Any) -> dict[BrokerPartition, int]:
    """Error code of each log."""
    return {BrokerPartition(topic.name, each.partition_index): each.error_code for topic in response.topics for each in topic.partitions}


def offset_fetch_fields(group: str, logs: Collection[BrokerPartition]) -> dict[str, Any]:
    wanted = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [wanted(name=topic, partition_indexes=[log.partition for log in found]) for topic, found in _by_topic(logs).items()]
    return {"group_id": group, "topics": topics}


def parse_offset_fetch(response: Any) -> dict[BrokerPartition, tuple[int, int | None]]:
    """Error code and committed offset of each log; None where nothing was ever committed."""
    return {BrokerPartition(topic.name, each.partition_index): (each.error_code, _or_none(each.committed_offset))
            for topic in response.topics for each in topic.partitions}


# Produce

def encode_records(records: Iterable[tuple[bytes | None, bytes | None]], *, timestamp_ms: int) -> bytes:
    """One uncompressed record batch v2 of key and value pairs, all with one timestamp. ValueError when there is none."""
    from kafka.record import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=0x7FFFFFFF)
    for key, value in records:
        builder.append(timestamp_ms, key, value)
    if builder.next_offset() == 0:
        raise ValueError("there is no record to send")
    builder.close()
    return bytes(builder.buffer())


def produce_fields(log: BrokerPartition, record_batch: bytes, timeout_ms: int) -> dict[str, Any]:
    wanted = ProduceRequest.TopicProduceData
    partitions = [wanted.PartitionProduceData(index=log.partition, records=record_batch)]
    return {"transactional_id": None, "acks": -1, "timeout_ms": timeout_ms,
            "topic_data": [wanted(name=log.topic, partition_data=partitions)]}


def parse_produce(response: Any) -> dict[BrokerPartition, tuple[int, int | None]]:
    """Error code of each log and the offset that its first record got."""
    return {BrokerPartition(topic.name, each.index): (each.error_code, _or_none(each.base_offset))
            for topic in response.responses for each in topic.partition_responses}


# Fetch, by hand

@dataclass(frozen=True, slots=True)
class FetchLayout:
    """Which fields one version of Fetch has beyond version 4."""

    log_start_offset: bool = False
    session: bool = False
    leader_epoch: bool = False
    rack: bool = False


_FROM_5 = FetchLayout(log_start_offset=True)
_FROM_7 = FetchLayout(log_start_offset=True, session=True)
_FROM_9 = FetchLayout(log_start_offset=True, session=True, leader_epoch=True)
FETCH_LAYOUTS: dict[int, FetchLayout] = {
    4: FetchLayout(),
    5: _FROM_5, 6: _FROM_5,
    7: _FROM_7, 8: _FROM_7,
    9: _FROM_9, 10: _FROM_9,
    11: FetchLayout(log_start_offset=True, session=True, leader_epoch=True, rack=True),
}
_NO_SESSION = (0, -1)
"""Session id and epoch of a full fetch that opens no session (KIP-227); epoch 0 would open one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One log in a Fetch: from which offset, and how many bytes at most."""

    log: BrokerPartition
    offset: int
    max_bytes: int
    leader_epoch: int | None = None
    """The epoch that the metadata told: a broker that is behind or deposed then answers 74 or 75 (KIP-320)."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One Fetch response. The records of its partitions are slices of the buffer it was read from."""

    throttle_ms: int
    error_code: int
    """Of the whole request; versions below 7 have none, which is 0."""
    partitions: tuple[FetchedPartition, ...]


def in_wire_order(wanted: Sequence[Wanted]) -> list[Wanted]:
    """`wanted` as a broker serves it: by topic in order of first appearance, since a topic is written once.

    The order matters (KIP-74): the first log that has records gets its first record batch whole, the later ones
    what is left of the request's size.

    Raises ValueError when a log is named twice: a broker refuses such a request.
    """
    ordered = [each for group in _wanted_by_topic(wanted).values() for each in group]
    if len({each.log for each in ordered}) < len(ordered):
        twice = sorted(f"{each.log.topic}/{each.log.partition}" for each in ordered)
        raise ValueError(f"a fetch may name a log once only: {', '.join(twice)}")
    return ordered


def encode_fetch(version: int, wanted: Sequence[Wanted], *, correlation_id: int, client_id: str, max_wait_ms: int,
                 min_bytes: int, max_bytes: int, isolation: Isolation) -> bytes:
    """One framed Fetch request without a session; `max_bytes` bounds the whole answer.

    Raises ValueError when a log is named twice, or nothing is wanted.
    """
    if not wanted:
        raise ValueError("a fetch without a log asks nothing")
    in_wire_order(wanted)
    layout = FETCH_LAYOUTS[version]
    out = Writer().int16(Api.FETCH.key).int16(version).int32(correlation_id).string16(client_id)
    out.int32(-1).int32(max_wait_ms).int32(min_bytes).int32(max_bytes).int8(_isolation_level(isolation))
    if layout.session:
        out.int32(_NO_SESSION[0]).int32(_NO_SESSION[1])
    topics = _wanted_by_topic(wanted)
    out.int32(len(topics))
    for topic, logs in topics.items():
        out.string16(topic).int32(len(logs))
        for each in logs:
            _write_wanted(out, layout, each)
    if layout.session:
        out.int32(0)
    if layout.rack:
        out.string16("")
    return out.framed()


def _write_wanted(out: Writer, layout: FetchLayout, wanted: Wanted) -> None:
    out.int32(wanted.log.partition)
    if layout.leader_epoch:
        out.int32(_or_minus_one(wanted.leader_epoch))
    out.int64(wanted.offset)
    if layout.log_start_offset:
        out.int64(-1)
    out.int32(wanted.max_bytes)


def parse_fetch(version: int, body: memoryview, **place: Any) -> FetchAnswer:
    """A Fetch response from the bytes after the correlation id.

    `records` of each partition are slices of `body`: they live as long as the buffer below it is not reused.
    Raises CorruptData naming topic and partition where a length is absurd or the bytes end early.
    """
    layout = FETCH_LAYOUTS[version]
    reader = Reader(body, **place)
    throttle_ms, error_code = reader.int32(), 0
    if layout.session:
        error_code = reader.int16()
        reader.int32()
    partitions: list[FetchedPartition] = []
    proves_empty = throttle_ms <= 0
    for _ in range(reader.count("the array of topics", item_bytes=6)):
        reader.place = place
        topic = reader.string16("a topic's name")
        reader.place = {**place, "topic": topic}
        for _ in range(reader.count("the array of partitions", item_bytes=30)):
            fetched = _read_partition(reader, layout, topic, {**place, "topic": topic})
            partitions.append(replace(fetched, proves_empty=proves_empty))
            proves_empty = proves_empty and not len(fetched.records)
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return FetchAnswer(throttle_ms, error_code, tuple(partitions))


def _read_partition(reader: Reader, layout: FetchLayout, topic: str, place: dict[str, Any]) -> FetchedPartition:
    reader.place = place
    partition = reader.int32()
    if partition < 0:
        raise reader.corrupt(f"partition {partition} is negative")
    reader.place = {**place, "partition": partition}
    error_code = reader.int16()
    high_watermark, last_stable_offset = reader.int64(), reader.int64()
    log_start_offset = reader.int64() if layout.log_start_offset else -1
    aborted = tuple((reader.int64(), reader.int64()) for _ in range(reader.count("the array of aborted transactions", item_bytes=16)))
    if layout.rack:
        reader.int32()  # a preferred replica, never named to a reader without a rack
    length = reader.int32()
    return FetchedPartition(
        topic=topic, partition=partition, error_code=error_code, high_watermark=high_watermark,
        last_stable_offset=_or_none(last_stable_offset), log_start_offset=_or_none(log_start_offset), aborted=aborted,
        records=reader.span(0 if length == -1 else length, "the record set"))


def _wanted_by_topic(wanted: Sequence[Wanted]) -> dict[str, list[Wanted]]:
    topics: dict[str, list[Wanted]] = {}
    for each in wanted:
        topics.setdefault(each.log.topic, []).append(each)
    return topics


def _by_topic(logs: Iterable[BrokerPartition]) -> dict[str, list[BrokerPartition]]:
    topics: dict[str, list[BrokerPartition]] = {}
    for log in sorted(logs):
        topics.setdefault(log.topic, []).append(log)
    return topics


def _isolation_level(isolation: Isolation) -> int:
    return 1 if isolation is Isolation.READ_COMMITTED else 0


def _or_none(number: int | None) -> int | None:
    """The wire's -1 for "there is none" ends here."""
    return None if number is None or number < 0 else number


def _or_minus_one(number: int | None) -> int:
    return -1 if number is None else number
