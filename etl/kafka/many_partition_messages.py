"""How are requests about many partitions encoded and decoded?

Lives here: ListOffsets, Metadata, OffsetForLeaderEpoch and DescribeLogDirs by Kafka's own message
schemas, with partitions as rows of numbers; FindCoordinator, OffsetCommit and OffsetFetch. Not
here: small requests (kafka_python_messages.py), which kafka-python encodes and decodes. It would
create an object for each partition.

Flexible versions (KIP-482) have compact lengths and tagged fields; no tagged field of the
supported versions is needed, so they are skipped.

    OffsetCommit  0   written to ZooKeeper     OffsetFetch  0   read from ZooKeeper
                  1   generation and member                 1   read from the coordinator
                  7   group instance id                     2   error of the whole response
                  9   member epochs (KIP-848)               7   stable offsets only (KIP-447)
                  10  topic ids                             8   several groups; 9 member; 10 ids
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from etl.errors import BrokerRefusal, CorruptData
from etl.kafka.kafka_python_messages import (
    by_topic,
    isolation_level,
    or_minus_one,
    or_none,
    select_topics,
)
from etl.kafka.primitives import Reader, Writer, compact_length
from etl.kafka.request_values import (
    ClusterMetadata,
    CommittedOffset,
    CommittedOffsets,
    CoordinatorResponse,
    EpochEndResponse,
    EpochEndsResponse,
    ListedOffset,
    OffsetsCommit,
    OffsetsQuery,
    PartitionMetadata,
    TopicMetadata,
)
from etl.kafka.versions import UNKNOWN_TOPIC, Api, error_of
from etl.model.partitions import INTERNAL_TOPICS, Broker, Isolation, Leader, TopicPartition

Answer = TypeVar("Answer")
FIRST_LISTED = 1
"""Version 0 of ListOffsets has several offsets per partition, so its rows differ in size."""
FIRST_CLUSTER = 9
"""Earlier versions of Metadata are in `kafka_python_messages`."""
_FIRST_WITH_TOPIC_IDS = 10
_LAST_WITH_OPERATIONS = 10
_FIRST_FLEXIBLE = {
    Api.METADATA: FIRST_CLUSTER,
    Api.LIST_OFFSETS: 6,
    Api.OFFSET_FOR_LEADER_EPOCH: 4,
    Api.DESCRIBE_LOG_DIRS: 2,
}
_OFFSET_ROW = Struct(">ihqq")
_OFFSET_AND_EPOCH_ROW = Struct(">ihqqi")
_EPOCH_END_ROW = Struct(">hiiq")
_LOG_DIR_ROW = Struct(">iqq?")
_PARTITION_ROW = Struct(">hiii")
_REPLICA_LISTS = ("replicas", "in-sync replicas", "offline replicas")
_LENGTHS_OF_LISTS = itemgetter(slice(4, None))
_LAST = itemgetter(-1)
_ARRAY_LENGTH = Struct(">i")
_TEXT_LENGTH = Struct(">h")
_MAX_PORT = 65535


class ThrottledAnswer(NamedTuple, Generic[Answer]):
    """An answer, and how long the broker throttles this client."""

    answer: Answer
    throttled_ms: int


def encode_list_offsets(
    version: int,
    times: Mapping[TopicPartition, int],
    isolation: Isolation,
    epochs: Mapping[TopicPartition, int | None],
    *,
    correlation_id: int,
    client_id: str,
) -> bytes:
    """Encode a request for many partitions, in version `FIRST_LISTED` or later.

    `times` holds LATEST, EARLIEST or milliseconds since 1970.
    """
    request = _request(Api.LIST_OFFSETS, version, correlation_id, client_id).int32(-1)
    if version >= 2:
        request.int8(isolation_level(isolation))
    if version < 4:
        return _finish_request(
            request,
            times,
            Struct(">iq"),
            lambda partition: (partition.partition, times[partition]),
            is_flexible=False,
        )
    layout = ">iiq" if version < 6 else ">iiqx"
    return _finish_request(
        request,
        times,
        Struct(layout),
        lambda partition: (
            partition.partition,
            or_minus_one(epochs.get(partition)),
            times[partition],
        ),
        is_flexible=version >= 6,
    )


def parse_offsets(
    version: int,
    answer: memoryview,
    requested: Iterable[TopicPartition] = (),
    *,
    is_last_stable: bool = False,
    **place: Any,
) -> ThrottledAnswer[dict[TopicPartition, ListedOffset]]:
    """Parse the offsets of partitions, by the `requested` objects. Raises CorruptData.

    `is_last_stable`: see `ListedOffset`; it holds for all of them.
    """
    reader, is_flexible = _answer(Api.LIST_OFFSETS, version, answer, place)
    throttled_ms = reader.int32() if version >= 2 else 0
    layout = _OFFSET_AND_EPOCH_ROW if version >= 4 else _OFFSET_ROW
    known = _by_name(requested)
    found: dict[TopicPartition, ListedOffset] = {}
    for topic, rows in _topic_rows(reader, layout, is_flexible):
        for index, code, time_ms, offset, *more in rows:
            partition = known.get((topic, index, None)) or _partition(reader, topic, index)
            epoch = None
            if version >= 4:
                epoch = or_none(more[0])
            found[partition] = ListedOffset(
                partition,
                error_of(code),
                or_none(offset),
                or_none(time_ms),
                epoch,
                None,
                is_last_stable,
            )
    return ThrottledAnswer(found, _ended(reader, throttled_ms, is_flexible))


def encode_epoch_ends(
    version: int,
    epochs: Mapping[TopicPartition, int],
    current: Mapping[TopicPartition, int | None],
    *,
    correlation_id: int,
    client_id: str,
) -> bytes:
    """Encode a request for the end of a leader epoch in each partition (KIP-101).

    `current` holds known leader epochs, by which a former leader rejects the request (KIP-320).
    """
    request = _request(Api.OFFSET_FOR_LEADER_EPOCH, version, correlation_id, client_id)
    if version >= 3:
        request.int32(-1)
    layout = ">iiix" if version >= 4 else ">iii"
    return _finish_request(
        request,
        epochs,
        Struct(layout),
        lambda partition: (
            partition.partition,
            or_minus_one(current.get(partition)),
            epochs[partition],
        ),
        is_flexible=version >= 4,
    )


def parse_epoch_ends(
    version: int, answer: memoryview, requested: Iterable[TopicPartition] = (), **place: Any
) -> ThrottledAnswer[EpochEndsResponse]:
    """Parse the ends of epochs, by the `requested` objects. Raises CorruptData."""
    reader, is_flexible = _answer(Api.OFFSET_FOR_LEADER_EPOCH, version, answer, place)
    throttled_ms = reader.int32()
    known = _by_name(requested)
    found = EpochEndsResponse()
    for topic, rows in _topic_rows(reader, _EPOCH_END_ROW, is_flexible):
        for code, index, epoch, end, *_ in rows:
            partition = known.get((topic, index, None)) or _partition(reader, topic, index)
            found[partition] = EpochEndResponse(error_of(code), or_none(epoch), or_none(end))
    return ThrottledAnswer(found, _ended(reader, throttled_ms, is_flexible))


def encode_log_dirs(
    version: int, partitions: Collection[TopicPartition], *, correlation_id: int, client_id: str
) -> bytes:
    """Encode a request for the size of each partition on this broker (KIP-113)."""
    request = _request(Api.DESCRIBE_LOG_DIRS, version, correlation_id, client_id)
    return _finish_request(
        request,
        partitions,
        Struct(">i"),
        lambda partition: (partition.partition,),
        is_flexible=version >= 2,
    )


def parse_log_dirs(
    version: int, answer: memoryview, requested: Iterable[TopicPartition] = (), **place: Any
) -> ThrottledAnswer[dict[TopicPartition, int]]:
    """Parse the bytes of the segments of each partition on this broker, by the `requested` objects.
    Raises CorruptData.

    Future replicas, which move to another disk, are left out.
    """
    reader, is_flexible = _answer(Api.DESCRIBE_LOG_DIRS, version, answer, place)
    throttled_ms = reader.int32()
    known = _by_name(requested)
    found: dict[TopicPartition, int] = {}
    if version >= 3:
        reader.int16()  # the error of the whole request: then there are no folders
    for _ in range(_length(reader, "folders", is_flexible)):
        code = reader.int16()
        _text(reader, "the folder", is_flexible)
        for topic, rows in _topic_rows(reader, _LOG_DIR_ROW, is_flexible):
            for index, size, _, is_future, *_ in rows:
                partition = known.get((topic, index, None)) or _partition(reader, topic, index)
                if code == 0 and not is_future:
                    found[partition] = size
        if version >= 4:
            reader.span(16, "the disk's size")
        if is_flexible:
            reader.skip_tags()
    return ThrottledAnswer(found, _ended(reader, throttled_ms, is_flexible))


def parse_cluster(
    version: int, answer: memoryview, chosen: Collection[str] | None = None, **place: Any
) -> ThrottledAnswer[ClusterMetadata]:
    """Parse a response to Metadata in version `FIRST_CLUSTER` or later. Raises CorruptData.

    `chosen`: as in `kafka_python_messages.parse_metadata`.
    """
    reader, _ = _answer(Api.METADATA, version, answer, place)
    throttled_ms = reader.int32()
    brokers: dict[int, Broker] = {}
    for _ in range(_length(reader, "brokers", True)):
        number = reader.int32()
        host = _text(reader, "a host", True)
        port = reader.int32()
        if not -1 <= port <= _MAX_PORT:
            raise reader.corrupt(f"Port is {port}")
        _text_or_none(reader, "a rack")
        reader.skip_tags()
        brokers[number] = Broker(number, host, port)
    cluster_id = _text_or_none(reader, "the cluster's id")
    reader.int32()  # the controller
    leaders: dict[tuple[int, int], Leader] = {}
    topics = []
    for _ in range(_length(reader, "topics", True)):
        topics.append(_topic(reader, version, brokers, leaders))
    if version <= _LAST_WITH_OPERATIONS:
        reader.int32()
    _ended(reader, throttled_ms, True)

    by_name = select_topics({topic.topic: topic for topic in topics}, chosen)
    return ThrottledAnswer(ClusterMetadata(cluster_id, brokers, by_name), throttled_ms)


def _topic(
    reader: Reader,
    version: int,
    brokers: Mapping[int, Broker],
    leaders: dict[tuple[int, int], Leader],
) -> TopicMetadata:
    """Parse a topic. `leaders`: those of earlier topics by broker id and epoch, which are shared:
    very many partitions have few leaders.
    """
    code = reader.int16()
    name = _text(reader, "the topic", True)
    topic_id = None
    if version >= _FIRST_WITH_TOPIC_IDS:
        id_bytes = bytes(reader.span(16, "the topic's id"))
        if any(id_bytes):
            topic_id = str(UUID(bytes=id_bytes))
    is_internal = reader.int8() != 0
    partitions: list[PartitionMetadata] = []
    for partition_code, index, leader_id, epoch, *_ in _partition_rows(reader):
        if index < 0:
            raise reader.corrupt("A partition number is negative")
        partition = TopicPartition(name, index)
        leader = leaders.get((leader_id, epoch))
        if leader is None and leader_id in brokers:
            leader = leaders[leader_id, epoch] = Leader(brokers[leader_id], or_none(epoch))
        partitions.append(PartitionMetadata(partition, error_of(partition_code), leader))
    reader.int32()  # authorized operations
    reader.skip_tags()
    return TopicMetadata(
        name,
        error_of(code),
        topic_id,
        is_internal or name in INTERNAL_TOPICS,
        tuple(sorted(partitions, key=attrgetter("partition"))),
    )


def _partition_rows(reader: Reader) -> Sequence[tuple[int, ...]]:
    """Read the partitions of a topic: error code, number, leader and leader epoch, then lengths.

    All at once if each has as many replicas as the first one and no tagged fields, as is usual;
    else each by itself.
    """
    count = _length(reader, "partitions", True)
    if not count:
        return []
    start = reader.at
    first, lengths = _partition_row(reader)
    start_of_others = reader.at
    lists = "".join(f"B{4 * length}x" for length in lengths)
    layout = Struct(f"{_PARTITION_ROW.format}{lists}B")
    others_size = (count - 1) * layout.size
    if layout.size == start_of_others - start and others_size <= reader.left:
        others = list(layout.iter_unpack(reader.span(others_size, "partitions")))
        # Compact: a length is stored as one more; the last number is that of the tagged fields.
        lengths_of_first = (*(length + 1 for length in lengths), 0)
        if all(lengths_of == lengths_of_first for lengths_of in map(_LENGTHS_OF_LISTS, others)):
            return [first, *others]

    reader.at = start_of_others
    rows = [first]
    for _ in range(count - 1):
        rows.append(_partition_row(reader)[0])
    return rows


def _partition_row(reader: Reader) -> tuple[tuple[int, ...], list[int]]:
    """Read one partition, and the lengths of its lists of replicas."""
    row = _PARTITION_ROW.unpack(reader.span(_PARTITION_ROW.size, "a partition"))
    lengths = []
    for field in _REPLICA_LISTS:
        length = _length(reader, field, True)
        reader.span(4 * length, field)
        lengths.append(length)
    reader.skip_tags()
    return row, lengths


# Headers, arrays and texts of these messages


def _request(api: Api, version: int, correlation_id: int, client_id: str) -> Writer:
    request = Writer().int16(api.key).int16(version).int32(correlation_id).string16(client_id)
    if version >= _FIRST_FLEXIBLE[api]:
        request.int8(0)
    return request


def _finish_request(
    request: Writer,
    partitions: Collection[TopicPartition],
    layout: Struct,
    row: Callable[[TopicPartition], tuple[int, ...]],
    *,
    is_flexible: bool,
) -> bytes:
    """Write the topics array, a row per partition, which is the last field; return the frame."""
    array_length: Callable[[int], bytes] = _ARRAY_LENGTH.pack
    text_length: Callable[[int], bytes] = _TEXT_LENGTH.pack
    no_tags = b""
    if is_flexible:
        array_length = compact_length
        text_length = compact_length
        no_tags = b"\0"
    topics = by_topic(partitions)
    fields = [array_length(len(topics))]
    for topic, partitions_of_topic in topics.items():
        name = topic.encode()
        fields += (text_length(len(name)), name, array_length(len(partitions_of_topic)))
        fields += [layout.pack(*row(partition)) for partition in partitions_of_topic]
        fields.append(no_tags)
    fields.append(no_tags)
    return request.raw(b"".join(fields)).framed()


def _answer(
    api: Api, version: int, answer: memoryview, place: Mapping[str, Any]
) -> tuple[Reader, bool]:
    """Return a reader after the header."""
    reader = Reader(answer, api=f"{api.name} v{version}", **place)
    is_flexible = version >= _FIRST_FLEXIBLE[api]
    reader.int32()
    if is_flexible:
        reader.skip_tags()
    return reader, is_flexible


def _by_name(
    partitions: Iterable[TopicPartition],
) -> dict[tuple[str, int, int | None], TopicPartition]:
    """Return requested partitions by their names in responses.

    Values of a response that are found by the requested objects need no objects of their own, and
    are found later without a comparison of the topics' names.
    """
    return {partition: partition for partition in partitions}


def _partition(reader: Reader, topic: str, index: int) -> TopicPartition:
    """Return a partition that was not requested. Raises CorruptData for an impossible number."""
    if index < 0:
        raise reader.corrupt("A partition number is negative")
    return TopicPartition(topic, index)


def _topic_rows(
    reader: Reader, layout: Struct, is_flexible: bool
) -> Iterator[tuple[str, Sequence[tuple[Any, ...]]]]:
    """Yield each topic with the rows of its partitions."""
    # In flexible versions a row may end with one more number, the count of its tagged fields.
    with_tags = Struct(f"{layout.format}B")
    for _ in range(_length(reader, "topics", is_flexible)):
        topic = _text(reader, "the topic", is_flexible)
        count = _length(reader, "partitions", is_flexible)
        if is_flexible:
            rows = _rows_with_tags(reader, count, layout, with_tags)
            reader.skip_tags()
        else:
            rows = list(layout.iter_unpack(reader.span(count * layout.size, "partitions")))
        yield topic, rows


def _rows_with_tags(
    reader: Reader, count: int, layout: Struct, with_tags: Struct
) -> list[tuple[Any, ...]]:
    """Read rows at once, or each by itself if one has tagged fields."""
    start = reader.at
    rows = list(with_tags.iter_unpack(reader.span(count * with_tags.size, "partitions")))
    if not any(map(_LAST, rows)):
        return rows

    reader.at = start
    rows = []
    for _ in range(count):
        rows.append(layout.unpack(reader.span(layout.size, "a partition")))
        reader.skip_tags()
    return rows


def _length(reader: Reader, field: str, is_flexible: bool) -> int:
    """Read the length of an array with items of at least one byte."""
    length = reader.unsigned_varint() - 1 if is_flexible else reader.int32()
    if not 0 <= length <= reader.left:
        raise reader.corrupt(f"{field} are {length} items where {reader.left} bytes are left")
    return length


def _text(reader: Reader, field: str, is_flexible: bool) -> str:
    if is_flexible:
        return reader.compact_string(field)
    return reader.string16(field)


def _text_or_none(reader: Reader, field: str) -> str | None:
    length = reader.unsigned_varint() - 1
    if length < 0:
        return None
    return reader.decoded(reader.span(length, field), field)


def _ended(reader: Reader, throttled_ms: int, is_flexible: bool) -> int:
    """Return `throttled_ms`. Raises CorruptData if bytes follow the end."""
    if is_flexible:
        reader.skip_tags()
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return throttled_ms


FIRST_STATIC = 7
FIRST_BY_ID = 10
_NO_ID = UUID(int=0)


def coordinator_fields(group: str) -> dict[str, Any]:
    return {"key": group, "key_type": 0}


def parse_coordinator(response: Any) -> CoordinatorResponse:
    return CoordinatorResponse(
        error_of(response.error_code), Broker(response.node_id, response.host, response.port)
    )


def commit_fields(commit: OffsetsCommit) -> dict[str, Any]:
    """Return the fields of OffsetCommit.

    Without a member the generation is -1 and the member id empty.
    """
    generation = -1
    member_id = ""
    instance_id = None
    if commit.member:
        generation = commit.member.generation
        member_id = commit.member.member_id
        instance_id = commit.member.instance_id
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = []
    for topic, topic_partitions in by_topic(commit.offsets).items():
        partitions = []
        for topic_partition in topic_partitions:
            partition = topic_type.OffsetCommitRequestPartition(
                partition_index=topic_partition.partition,
                committed_offset=commit.offsets[topic_partition],
                committed_metadata=commit.metadata,
                committed_leader_epoch=or_minus_one(commit.leader_epochs.get(topic_partition)),
            )
            partitions.append(partition)
        topic_id = _id_of(topic, commit.topic_ids)
        topics.append(topic_type(name=topic, topic_id=topic_id, partitions=partitions))
    return {
        "group_id": commit.group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "retention_time_ms": -1,
        "topics": topics,
    }


def parse_commit(
    response: Any, commit: OffsetsCommit | None = None
) -> dict[TopicPartition, BrokerRefusal | None]:
    """Parse the response to `commit`.

    Raises CorruptData for other partitions than requested: a partition without an error would count
    as committed.
    """
    names: dict[UUID, str] = {}
    if commit:
        names = _names_of(commit.topic_ids)
    refusals: dict[TopicPartition, BrokerRefusal | None] = {}
    for topic in response.topics:
        name = _name_of(topic, names)
        for each in topic.partitions:
            refusals[TopicPartition(name, each.partition_index)] = error_of(each.error_code)
    if commit and refusals.keys() != commit.offsets.keys():
        raise CorruptData(
            "The response to OFFSET_COMMIT has other partitions than requested",
            action="Check the broker's log",
        )
    return refusals


def offset_fetch_fields(question: OffsetsQuery) -> dict[str, Any]:
    """Return the fields of OffsetFetch for every version: 8 and later have a list of groups."""
    topic_type = OffsetFetchRequest.OffsetFetchRequestTopic
    group_type = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = []
    group_topics = []
    for topic, partitions in by_topic(question.partitions).items():
        numbers = [partition.partition for partition in partitions]
        topic_id = _id_of(topic, question.topic_ids)
        topics.append(topic_type(name=topic, partition_indexes=numbers))
        group_topics.append(
            group_type.OffsetFetchRequestTopics(
                name=topic, topic_id=topic_id, partition_indexes=numbers
            )
        )
    member_id = None
    member_epoch = -1
    if question.member:
        member_id = question.member.member_id
        member_epoch = question.member.generation
    group = group_type(
        group_id=question.group,
        member_id=member_id,
        member_epoch=member_epoch,
        topics=group_topics,
    )
    return {
        "group_id": question.group,
        "topics": topics,
        "groups": [group],
        "require_stable": question.is_stable,
    }


def parse_offset_fetch(
    response: Any, *, in_zookeeper: bool, question: OffsetsQuery | None = None
) -> CommittedOffsets:
    """Parse the response to `question`.

    `in_zookeeper`: version 0, which reports a partition without a committed offset as unknown.
    Raises CorruptData for another group or other partitions than requested.
    """
    answered_groups = [answered.group_id for answered in response.groups]
    if question and answered_groups not in ([], [question.group]):
        raise CorruptData(
            "The response to OFFSET_FETCH has another group than requested",
            action="Check the broker's log",
        )
    # From version 8 on a response has its topics in a list of groups.
    group = response.groups[0] if response.groups else response
    names_by_id: dict[UUID, str] = {}
    if question:
        names_by_id = _names_of(question.topic_ids)
    refusal = error_of(group.error_code)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in group.topics:
        name = _name_of(topic, names_by_id)
        for partition in topic.partitions:
            topic_partition = TopicPartition(name, partition.partition_index)
            offsets[topic_partition] = _committed(partition, in_zookeeper)
    if question and refusal is None and offsets.keys() != set(question.partitions):
        raise CorruptData(
            "The response to OFFSET_FETCH has other partitions than requested",
            action="Check the broker's log",
        )
    return CommittedOffsets(refusal, offsets)


def _committed(found: Any, in_zookeeper: bool) -> CommittedOffset:
    offset = or_none(found.committed_offset)
    refusal = error_of(found.error_code)
    if offset is None:
        if in_zookeeper and refusal is UNKNOWN_TOPIC:
            refusal = None
        return CommittedOffset(refusal, None)
    return CommittedOffset(
        refusal, offset, found.metadata or "", or_none(found.committed_leader_epoch)
    )


def _id_of(topic: str, topic_ids: Mapping[str, str]) -> UUID:
    return UUID(topic_ids[topic]) if topic in topic_ids else _NO_ID


def _names_of(topic_ids: Mapping[str, str]) -> dict[UUID, str]:
    return {UUID(topic_id): topic for topic, topic_id in topic_ids.items()}


def _name_of(topic: Any, names: Mapping[UUID, str]) -> str:
    """Return the topic's name, from version 10 on by its id; an unknown id unchanged."""
    topic_id: UUID = getattr(topic, "topic_id", _NO_ID)
    return str(topic.name or names.get(topic_id, str(topic_id)))
