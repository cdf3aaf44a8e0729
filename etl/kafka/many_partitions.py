"""How is Kafka asked about many partitions at once?

Lives here: ListOffsets, OffsetForLeaderEpoch, DescribeLogDirs, OffsetCommit and OffsetFetch, by
Kafka's own message schemas, with partitions as rows of numbers. kafka-python would create an
object for each partition; it serves the small requests (etl/kafka/small_messages.py).

Flexible versions (KIP-482) have compact lengths and tagged fields; no tagged field of the
supported versions is needed, so they are skipped.

    OffsetCommit  0   written to ZooKeeper     OffsetFetch  0   read from ZooKeeper
                  1   generation and member                 1   read from the coordinator
                  7   group instance id                     2   error of the whole response
                  9   member epochs (KIP-848)               7   stable offsets only (KIP-447)
                  10  topic ids                             8   several groups; 9 member; 10 ids
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from etl.errors import BrokerRefusal, CorruptData
from etl.kafka.messages import (
    ClusterMetadata,
    CommittedOffset,
    CommittedOffsets,
    CoordinatorResponse,
    EpochEndResponse,
    EpochEndsResponse,
    ListedOffset,
    OffsetsCommit,
    OffsetsQuestion,
    PartitionMetadata,
    TopicMetadata,
)
from etl.kafka.primitives import Reader, Writer
from etl.kafka.small_messages import by_topic, isolation_level, of_chosen, or_minus_one, or_none
from etl.kafka.versions import UNKNOWN_TOPIC, Api, error_of
from etl.model.partitions import INTERNAL_TOPICS, Broker, BrokerPartition, Isolation, Leader

Answer = TypeVar("Answer")
FIRST_LISTED = 1
"""Version 0 of ListOffsets names several offsets for each log, so its logs take different sizes."""
FIRST_CLUSTER = 9
"""Earlier versions of Metadata are `small_messages`'."""
_FIRST_WITH_TOPIC_IDS, _LAST_WITH_OPERATIONS = 10, 10
_FIRST_FLEXIBLE = {
    Api.METADATA: FIRST_CLUSTER,
    Api.LIST_OFFSETS: 6,
    Api.OFFSET_FOR_LEADER_EPOCH: 4,
    Api.DESCRIBE_LOG_DIRS: 2,
}
_LISTED, _LISTED_WITH_EPOCH, _EPOCH_END, _SIZE, _LED = (
    Struct(layout) for layout in (">ihqq", ">ihqqi", ">hiiq", ">iqq?", ">hiii")
)
_MAX_PORT = 65535


class ThrottledAnswer(NamedTuple, Generic[Answer]):
    """An answer, and for how long the broker throttles us."""

    answer: Answer
    throttled_ms: int


def encode_list_offsets(
    version: int,
    times: Mapping[BrokerPartition, int],
    isolation: Isolation,
    epochs: Mapping[BrokerPartition, int | None],
    *,
    correlation_id: int,
    client_id: str,
) -> bytes:
    """One request for many logs, from `FIRST_LISTED` on; `times` holds LATEST, EARLIEST or
    milliseconds since 1970.
    """
    request = _request(Api.LIST_OFFSETS, version, correlation_id, client_id).int32(-1)
    if version >= 2:
        request.int8(isolation_level(isolation))
    if version < 4:
        return _with_logs(
            request,
            times,
            Struct(">iq"),
            lambda log: (log.partition, times[log]),
            is_flexible=False,
        )
    return _with_logs(
        request,
        times,
        Struct(">iiq" if version < 6 else ">iiqx"),
        lambda log: (log.partition, or_minus_one(epochs.get(log)), times[log]),
        is_flexible=version >= 6,
    )


def parse_offsets(
    version: int,
    answer: memoryview,
    *,
    is_last_stable: bool = False,
    **place: Any,
) -> ThrottledAnswer[dict[BrokerPartition, ListedOffset]]:
    """`is_last_stable`: see `ListedOffset`, for all of them. Raises CorruptData."""
    reader, is_flexible = _answer(Api.LIST_OFFSETS, version, answer, place)
    throttled_ms = reader.int32() if version >= 2 else 0
    found: dict[BrokerPartition, ListedOffset] = {}
    for topic, rows in _told(
        reader, _LISTED_WITH_EPOCH if version >= 4 else _LISTED, is_flexible, index_at=0
    ):
        for index, code, time_ms, offset, *epoch in rows:
            log = BrokerPartition(topic, index)
            found[log] = ListedOffset(
                log,
                error_of(code) if code else None,
                or_none(offset),
                or_none(time_ms),
                or_none(epoch[0] if version >= 4 else None),
                is_last_stable=is_last_stable,
            )
    return ThrottledAnswer(found, _ended(reader, throttled_ms, is_flexible))


def encode_epoch_ends(
    version: int,
    epochs: Mapping[BrokerPartition, int],
    current: Mapping[BrokerPartition, int | None],
    *,
    correlation_id: int,
    client_id: str,
) -> bytes:
    """Encode a request for the end of an epoch in each partition (KIP-101). `current` fences a
    former leader (KIP-320).
    """
    request = _request(Api.OFFSET_FOR_LEADER_EPOCH, version, correlation_id, client_id)
    if version >= 3:
        request.int32(-1)
    return _with_logs(
        request,
        epochs,
        Struct(">iiix" if version >= 4 else ">iii"),
        lambda log: (log.partition, or_minus_one(current.get(log)), epochs[log]),
        is_flexible=version >= 4,
    )


def parse_epoch_ends(
    version: int, answer: memoryview, **place: Any
) -> ThrottledAnswer[EpochEndsResponse]:
    """Parse the ends of epochs. Raises CorruptData."""
    reader, is_flexible = _answer(Api.OFFSET_FOR_LEADER_EPOCH, version, answer, place)
    throttled_ms, found = reader.int32(), EpochEndsResponse()
    for topic, rows in _told(reader, _EPOCH_END, is_flexible, index_at=1):
        for code, index, epoch, end, *_ in rows:
            found[BrokerPartition(topic, index)] = EpochEndResponse(
                error_of(code) if code else None, or_none(epoch), or_none(end)
            )
    return ThrottledAnswer(found, _ended(reader, throttled_ms, is_flexible))


def encode_log_dirs(
    version: int, logs: Collection[BrokerPartition], *, correlation_id: int, client_id: str
) -> bytes:
    """How large each log is on that broker (KIP-113)."""
    request = _request(Api.DESCRIBE_LOG_DIRS, version, correlation_id, client_id)
    return _with_logs(
        request, logs, Struct(">i"), lambda log: (log.partition,), is_flexible=version >= 2
    )


def parse_log_dirs(
    version: int, answer: memoryview, **place: Any
) -> ThrottledAnswer[dict[BrokerPartition, int]]:
    """Bytes of the segments of each log on that broker; a copy that is being moved to another disk
    is left out. Raises CorruptData.
    """
    reader, is_flexible = _answer(Api.DESCRIBE_LOG_DIRS, version, answer, place)
    throttled_ms, found = reader.int32(), dict[BrokerPartition, int]()
    if version >= 3:
        reader.int16()  # of the whole request: then there are no folders
    for _ in range(_length(reader, "folders", is_flexible)):
        code = reader.int16()
        _text(reader, "the folder", is_flexible)
        for topic, rows in _told(reader, _SIZE, is_flexible, index_at=0):
            if code == 0:
                found.update(
                    {
                        BrokerPartition(topic, index): size
                        for index, size, _, is_future, *_ in rows
                        if not is_future
                    }
                )
        if version >= 4:
            reader.span(16, "the disk's size")
        _tags(reader, is_flexible)
    return ThrottledAnswer(found, _ended(reader, throttled_ms, is_flexible))


def parse_cluster(
    version: int, answer: memoryview, chosen: Collection[str] | None = None, **place: Any
) -> ThrottledAnswer[ClusterMetadata]:
    """The answer to Metadata from `FIRST_CLUSTER` on; `chosen` as in
    `small_messages.parse_metadata`. Raises CorruptData.
    """
    reader, _ = _answer(Api.METADATA, version, answer, place)
    throttled_ms, brokers = reader.int32(), dict[int, Broker]()
    for _ in range(_length(reader, "brokers", True)):
        number, host, port = reader.int32(), _text(reader, "a host", True), reader.int32()
        if not -1 <= port <= _MAX_PORT:
            raise reader.corrupt(f"Port is {port}")
        _text_or_none(reader, "a rack")
        _tags(reader, True)
        brokers[number] = Broker(number, host, port)
    cluster_id = _text_or_none(reader, "the cluster's id")
    reader.int32()  # the controller
    topics = [_topic(reader, version, brokers) for _ in range(_length(reader, "topics", True))]
    if version <= _LAST_WITH_OPERATIONS:
        reader.int32()
    _ended(reader, throttled_ms, True)
    return ThrottledAnswer(
        ClusterMetadata(
            cluster_id, brokers, of_chosen({topic.topic: topic for topic in topics}, chosen)
        ),
        throttled_ms,
    )


def _topic(reader: Reader, version: int, brokers: Mapping[int, Broker]) -> TopicMetadata:
    code, name = reader.int16(), _text(reader, "the topic", True)
    topic_id = bytes(reader.span(16, "the topic's id")) if version >= _FIRST_WITH_TOPIC_IDS else b""
    is_internal, partitions = reader.int8() != 0, list[PartitionMetadata]()
    for _ in range(_length(reader, "partitions", True)):
        refused, index, leader_id, epoch = _LED.unpack(reader.span(_LED.size, "a partition"))
        if index < 0:
            raise reader.corrupt("a partition's number is negative")
        for field in ("replicas", "in-sync replicas", "offline replicas"):
            reader.span(4 * _length(reader, field, True), field)
        _tags(reader, True)
        broker = brokers.get(leader_id)
        partitions.append(
            PartitionMetadata(
                BrokerPartition(name, index),
                error_of(refused),
                None if broker is None else Leader(broker, or_none(epoch)),
            )
        )
    reader.int32()  # what we may do with it
    _tags(reader, True)
    return TopicMetadata(
        name,
        error_of(code),
        str(UUID(bytes=topic_id)) if any(topic_id) else None,
        is_internal or name in INTERNAL_TOPICS,
        tuple(sorted(partitions, key=attrgetter("log"))),
    )


# What they have in common


def _request(api: Api, version: int, correlation_id: int, client_id: str) -> Writer:
    request = Writer().int16(api.key).int16(version).int32(correlation_id).string16(client_id)
    return request.int8(0) if version >= _FIRST_FLEXIBLE[api] else request


def _with_logs(
    request: Writer,
    logs: Collection[BrokerPartition],
    layout: Struct,
    row: Callable[[BrokerPartition], tuple[int, ...]],
    *,
    is_flexible: bool,
) -> bytes:
    """The frame that ends with a row for each log, topic by topic."""
    topics = by_topic(logs)
    _put_length(request, len(topics), is_flexible)
    for topic, some in topics.items():
        name = topic.encode()
        (request.unsigned_varint(len(name) + 1) if is_flexible else request.int16(len(name))).raw(
            name
        )
        _put_length(request, len(some), is_flexible)
        request.raw(b"".join([layout.pack(*row(log)) for log in some]))
        if is_flexible:
            request.int8(0)
    return (request.int8(0) if is_flexible else request).framed()


def _put_length(request: Writer, length: int, is_flexible: bool) -> None:
    if is_flexible:
        request.unsigned_varint(length + 1)
    else:
        request.int32(length)


def _answer(
    api: Api, version: int, answer: memoryview, place: Mapping[str, Any]
) -> tuple[Reader, bool]:
    """Return a reader after the header."""
    reader, is_flexible = (
        Reader(answer, api=f"{api.name} v{version}", **place),
        version >= _FIRST_FLEXIBLE[api],
    )
    reader.int32()
    _tags(reader, is_flexible)
    return reader, is_flexible


def _told(
    reader: Reader, layout: Struct, is_flexible: bool, *, index_at: int
) -> Iterator[tuple[str, Sequence[tuple[Any, ...]]]]:
    """Each topic with the rows of its logs; `index_at`: which number of a row is the partition's."""
    for _ in range(_length(reader, "topics", is_flexible)):
        topic = _text(reader, "the topic", is_flexible)
        rows = _rows(reader, _length(reader, "partitions", is_flexible), layout, is_flexible)
        if rows and min(row[index_at] for row in rows) < 0:
            raise reader.corrupt("a partition's number is negative")
        _tags(reader, is_flexible)
        yield topic, rows


def _rows(
    reader: Reader, count: int, layout: Struct, is_flexible: bool
) -> Sequence[tuple[Any, ...]]:
    """All at once; one by one where one of them has tagged fields. A number more at a row's end is
    that of its tagged fields.
    """
    whole, begun = Struct(layout.format + "B") if is_flexible else layout, reader.at
    rows = list(whole.iter_unpack(reader.span(count * whole.size, "partitions")))
    if not is_flexible or not any(row[-1] for row in rows):
        return rows
    reader.at, rows = begun, []
    for _ in range(count):
        rows.append(layout.unpack(reader.span(layout.size, "a partition")))
        _tags(reader, is_flexible)
    return rows


def _length(reader: Reader, field: str, is_flexible: bool) -> int:
    """Read the length of an array whose items take at least one byte."""
    length = reader.unsigned_varint() - 1 if is_flexible else reader.int32()
    if not 0 <= length <= reader.left:
        raise reader.corrupt(f"{field} are {length} items where {reader.left} bytes are left")
    return length


def _text(reader: Reader, field: str, is_flexible: bool) -> str:
    return reader.decoded(
        reader.span(reader.unsigned_varint() - 1 if is_flexible else reader.int16(), field),
        field,
    )


def _text_or_none(reader: Reader, field: str) -> str | None:
    length = reader.unsigned_varint() - 1
    return None if length < 0 else reader.decoded(reader.span(length, field), field)


def _tags(reader: Reader, is_flexible: bool) -> None:
    for _ in range(reader.unsigned_varint() if is_flexible else 0):
        reader.unsigned_varint()
        reader.span(reader.unsigned_varint(), "a tagged field")


def _ended(reader: Reader, throttled_ms: int, is_flexible: bool) -> int:
    """Return `throttled_ms` if nothing follows."""
    _tags(reader, is_flexible)
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
) -> dict[BrokerPartition, BrokerRefusal | None]:
    """Parse the response to `commit`. Raises CorruptData for other partitions than requested, which
    would pass for their success.
    """
    names = _names_of(commit.topic_ids if commit else {})
    refusals = {
        BrokerPartition(_name_of(topic, names), each.partition_index): error_of(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }
    if commit and refusals.keys() != commit.offsets.keys():
        raise CorruptData(
            "The answer to OFFSET_COMMIT names other partitions than were asked for",
            action="Check the broker's log",
        )
    return refusals


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
    """Parse the response to `question`. `in_zookeeper`: such a broker (version 0) reports a
    partition without an offset as unknown. Raises CorruptData for other groups or partitions.
    """
    if question and [each.group_id for each in response.groups] not in ([], [question.group]):
        raise CorruptData(
            "The answer to OFFSET_FETCH is about another group than was asked for",
            action="Check the broker's log",
        )
    found = response.groups[0] if response.groups else response
    names = _names_of(question.topic_ids if question else {})
    refusal = error_of(found.error_code)
    offsets = {
        BrokerPartition(_name_of(topic, names), each.partition_index): _committed(
            each, in_zookeeper
        )
        for topic in found.topics
        for each in topic.partitions
    }
    if question and refusal is None and offsets.keys() != set(question.logs):
        raise CorruptData(
            "The answer to OFFSET_FETCH names other partitions than were asked for",
            action="Check the broker's log",
        )
    return CommittedOffsets(refusal, offsets)


def _committed(found: Any, in_zookeeper: bool) -> CommittedOffset:
    offset, refusal = or_none(found.committed_offset), error_of(found.error_code)
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
    """Return the topic's name by its id, from version 10 on; an unknown id unchanged."""
    topic_id: UUID = getattr(topic, "topic_id", _NO_ID)
    return str(topic.name or names.get(topic_id, str(topic_id)))
