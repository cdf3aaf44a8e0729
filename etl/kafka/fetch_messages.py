"""How are records fetched from Kafka, and how are they produced?

Lives here: Fetch, encoded and decoded without kafka-python, which copies records: here they stay
slices of the receive buffer. Produce requests, for the demo and for tests.
Not here: the contents of the records field (etl/records).

Fetch versions, for a reader without fetch sessions:

    1   throttle time (0.9)
    2   message format v1 (0.10.0)
    3   size limit of the whole response; the first partition always gets one batch (KIP-74, 0.10.1)
    4   isolation level, last stable offset, aborted transactions; record batches v2 (0.11)
    5   log start offset
    7   fetch sessions (KIP-227); never opened here
    9   leader epochs (KIP-320)
    10  zstd (2.1)
    11  rack id; never sent
    12  compact lengths and tagged fields (KIP-482, 2.7)
    13  topic ids (KIP-516, 3.1): a recreated topic is rejected instead of read

Later versions serve followers only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from kafka.protocol.producer import ProduceRequest

from etl.errors import BrokerRefusal, CorruptData, EtlError, SettingsError
from etl.kafka.kafka_python_messages import isolation_level, or_minus_one, or_none
from etl.kafka.primitives import Reader, Writer
from etl.kafka.request_values import FetchAnswer, FetchedPartition, FetchTarget, in_serving_order
from etl.kafka.versions import NONE, Api, error_of
from etl.model.partitions import Isolation, TopicPartition

FIRST_WITH_A_LIMIT = 3
FIRST_WITH_TOPIC_IDS = 13
_FIRST_COMPACT = 12
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NO_SESSION = (0, -1)
"""Session id and epoch of a full fetch that opens no session (KIP-227); epoch 0 would open one."""


def names_all_by_id(wanted: Sequence[FetchTarget]) -> bool:
    """True if each topic has a topic id; znode ids, used before Kafka 2.8, do not count."""
    return all(each.topic_id is not None and _ID.fullmatch(each.topic_id) for each in wanted)


def limit_targets(wanted: Sequence[FetchTarget], max_bytes: int) -> tuple[FetchTarget, ...]:
    """Return `wanted` for brokers without a limit of the whole response.

    Partitions beyond `max_bytes`, in serving order, are requested with 0 bytes: brokers return
    their errors and no records, which proves nothing about their ends. The first partition keeps
    its limit.
    """
    left = max_bytes
    requested: list[FetchTarget] = []
    for each in in_serving_order(wanted):
        if requested and each.max_bytes > left:
            requested.append(replace(each, max_bytes=0))
            continue
        requested.append(each)
        left -= each.max_bytes
    return tuple(requested)


def encode_fetch(
    version: int,
    wanted: Sequence[FetchTarget],
    *,
    correlation_id: int,
    client_id: str,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: Isolation,
) -> bytes:
    """Encode one framed Fetch request without a session.

    `max_bytes` limits the response if the version supports it. Raises ValueError for a duplicate
    partition, an empty request, or version 13 without topic ids.
    """
    if not wanted:
        raise ValueError("A fetch needs a partition")
    topics: dict[str, list[FetchTarget]] = {}
    for each in in_serving_order(wanted):
        topics.setdefault(each.partition.topic, []).append(each)
    out = (
        _Request(version)
        .int16(Api.FETCH.key)
        .int16(version)
        .int32(correlation_id)
        .string16(client_id)
    )
    out.tags().int32(-1).int32(max_wait_ms).int32(min_bytes)
    if version >= FIRST_WITH_A_LIMIT:
        out.int32(max_bytes)
    if version >= 4:
        out.int8(isolation_level(isolation))
    if version >= 7:
        out.int32(_NO_SESSION[0]).int32(_NO_SESSION[1])
    out.count(len(topics))
    for topic, partitions in topics.items():
        out.topic(topic, partitions[0].topic_id).count(len(partitions))
        for each in partitions:
            _write_wanted(out, version, each)
        out.tags()
    if version >= 7:
        out.count(0)
    if version >= 11:
        out.text("")
    return out.tags().framed()


def _write_wanted(out: _Request, version: int, wanted: FetchTarget) -> None:
    out.int32(wanted.partition.partition)
    if version >= 9:
        out.int32(or_minus_one(wanted.leader_epoch))
    out.int64(wanted.offset)
    if version >= 12:
        # The epoch of the last fetched record. It is not sent: OffsetForLeaderEpoch detects
        # truncated partitions after all records are read.
        out.int32(-1)
    if version >= 5:
        out.int64(-1)
    out.int32(wanted.max_bytes).tags()


def parse_fetch(
    version: int,
    body: memoryview,
    wanted: Sequence[FetchTarget] = (),
    *,
    cut: EtlError | None = None,
    **place: Any,
) -> FetchAnswer:
    """Parse the response to a request for `wanted`: the bytes after the correlation id.

    `records` of each partition are slices of `body`, valid until its buffer is reused. Raises
    CorruptData with topic and partition for impossible lengths and truncated bytes. With `cut`,
    the error that ended the response, the partitions before the end of `body` are returned.
    """
    reader = _Response(version, body, wanted, place)
    reader.cut = cut
    throttle_ms = 0
    refusal: BrokerRefusal | None = None
    partitions: list[FetchedPartition] = []
    try:
        throttle_ms, refusal = _read_head(reader, version)
        _read_partitions(reader, version, wanted, partitions, proves_empty=throttle_ms <= 0)
    except CorruptData:
        if cut is None:
            raise
    return FetchAnswer(throttle_ms, refusal, tuple(partitions), cut)


def _read_head(reader: _Response, version: int) -> tuple[int, BrokerRefusal | None]:
    """Return throttle time and error of the response."""
    reader.tags()
    throttle_ms = reader.int32() if version >= 1 else 0
    error_code = NONE
    if version >= 7:
        error_code = reader.int16()
        reader.int32()
    return throttle_ms, error_of(error_code)


def _read_partitions(
    reader: _Response,
    version: int,
    wanted: Sequence[FetchTarget],
    partitions: list[FetchedPartition],
    *,
    proves_empty: bool,
) -> None:
    """Read all partitions into `partitions`. `proves_empty`: the response was not throttled."""
    place = reader.place
    without_bytes = {each.partition for each in wanted if each.max_bytes <= 0}
    for _ in range(reader.counted("the array of topics", item_bytes=6)):
        reader.place = place
        topic = reader.topic()
        for _ in range(reader.counted("the array of partitions", item_bytes=18)):
            reader.place = {**place, "topic": topic}
            fetched = _read_partition(reader, version, topic)
            partition = TopicPartition(topic, fetched.partition)
            is_proof = proves_empty and partition not in without_bytes and fetched.cut is None
            partitions.append(replace(fetched, proves_empty=is_proof))
            # Without a limit of the whole response no partition uses up the bytes of another.
            proves_empty = proves_empty and (
                version < FIRST_WITH_A_LIMIT or not len(fetched.records)
            )
        reader.tags()
    reader.tags()
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")


def _read_partition(reader: _Response, version: int, topic: str) -> FetchedPartition:
    partition = reader.int32()
    if partition < 0:
        raise reader.corrupt(f"Partition {partition} is negative")
    reader.place = {**reader.place, "partition": partition}
    error_code = reader.int16()
    high_watermark = reader.int64()
    last_stable_offset = reader.int64() if version >= 4 else -1
    log_start_offset = reader.int64() if version >= 5 else -1
    aborted = reader.aborted() if version >= 4 else ()
    if version >= 11:
        reader.int32()  # the preferred replica, never set for a reader without a rack
    records = reader.records()
    cut = reader.cut if reader.is_cut else None
    if cut is None:
        reader.tags()
    return FetchedPartition(
        topic=topic,
        partition=partition,
        refusal=error_of(error_code),
        high_watermark=high_watermark,
        last_stable_offset=or_none(last_stable_offset),
        log_start_offset=or_none(log_start_offset),
        aborted=aborted,
        records=records,
        cut=cut,
    )


class _Request(Writer):
    """Writer of the fields that differ between versions."""

    __slots__ = ("_version",)

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version

    def count(self, number: int) -> _Request:
        if self._version >= _FIRST_COMPACT:
            return self.unsigned_varint(number + 1)
        return self.int32(number)

    def text(self, text: str) -> _Request:
        if self._version < _FIRST_COMPACT:
            return self.string16(text)
        encoded = text.encode("utf-8")
        return self.unsigned_varint(len(encoded) + 1).raw(encoded)

    def topic(self, name: str, topic_id: str | None) -> _Request:
        if self._version < FIRST_WITH_TOPIC_IDS:
            return self.text(name)
        if topic_id is None:
            raise ValueError(f"The id of topic {name} is unknown")
        return self.raw(UUID(topic_id).bytes)

    def tags(self) -> _Request:
        """Write that there are no tagged fields."""
        if self._version >= _FIRST_COMPACT:
            self.unsigned_varint(0)
        return self


class _Response(Reader):
    """Reader of the fields that differ between versions."""

    __slots__ = ("_version", "_names", "cut", "is_cut")

    def __init__(
        self, version: int, body: memoryview, wanted: Sequence[FetchTarget], place: dict[str, Any]
    ) -> None:
        super().__init__(body, **place)
        self._version = version
        self.cut: EtlError | None = None
        """The error that ended the response."""
        self.is_cut = False
        """True once records end there."""
        self._names = {}
        if version >= FIRST_WITH_TOPIC_IDS:
            for each in wanted:
                if each.topic_id is not None:
                    self._names[UUID(each.topic_id)] = each.partition.topic

    def counted(self, field: str, *, item_bytes: int) -> int:
        if self._version < _FIRST_COMPACT:
            return self.count(field, item_bytes=item_bytes)
        count = max(0, self.unsigned_varint() - 1)
        if count * item_bytes > self.left:
            raise self.corrupt(f"{field} claims {count} items where {self.left} bytes are left")
        return count

    def topic(self) -> str:
        if self._version < _FIRST_COMPACT:
            return self.string16("a topic's name")
        if self._version < FIRST_WITH_TOPIC_IDS:
            return self.compact_string("a topic's name")
        topic_id = UUID(bytes=bytes(self.span(16, "a topic's id")))
        if topic_id not in self._names:
            raise self.corrupt(f"The topic with the id {topic_id} was not requested")
        return self._names[topic_id]

    def aborted(self) -> tuple[tuple[int, int], ...]:
        found = []
        for _ in range(self.counted("the array of aborted transactions", item_bytes=16)):
            found.append((self.int64(), self.int64()))
            self.tags()
        return tuple(found)

    def records(self) -> memoryview:
        if self._version < _FIRST_COMPACT:
            length = self.int32()
        else:
            length = self.unsigned_varint() - 1
        if length == -1:
            length = 0
        if self.cut is not None and length > self.left:
            self.is_cut = True
            length = self.left
        return self.span(length, "the record set")

    def tags(self) -> None:
        """Skip the tagged fields of a struct, in versions that have them."""
        if self._version >= _FIRST_COMPACT:
            self.skip_tags()


_NOTHING_APPENDED = BrokerRefusal(
    NONE,
    "the response has neither an offset nor an error, so nothing was appended",
    False,
    SettingsError,
    (
        "Check the sent bytes. Kafka 0.8 to 0.10.2 respond like this if they hold no complete "
        "message with a correct checksum"
    ),
)
"""The error of an append without an offset and with error code 0."""


def magic_of(version: int) -> int:
    """Return the newest message format that a version of Produce accepts."""
    if version < 2:
        return 0
    if version < 3:
        return 1
    return 2


def encode_records(
    records: Iterable[tuple[bytes | None, bytes | None]], *, timestamp_ms: int, magic: int = 2
) -> bytes:
    """Encode an uncompressed record batch, or message set (`magic` 0 or 1), of keys and values.

    All get the same timestamp, if the format has timestamps. Raises ValueError without records.
    """
    from kafka.record import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=0x7FFFFFFF)
    for key, value in records:
        builder.append(timestamp_ms, key, value)
    if builder.next_offset() == 0:
        raise ValueError("There is no record to send")
    builder.close()
    return bytes(builder.buffer())


def produce_fields(
    partition: TopicPartition, record_batch: bytes, timeout_ms: int
) -> dict[str, Any]:
    wanted = ProduceRequest.TopicProduceData
    partitions = [wanted.PartitionProduceData(index=partition.partition, records=record_batch)]
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": timeout_ms,
        "topic_data": [wanted(name=partition.topic, partition_data=partitions)],
    }


def parse_produce(response: Any) -> dict[TopicPartition, int | BrokerRefusal]:
    """Return the offset of the first appended record of each partition, or the error."""
    offsets: dict[TopicPartition, int | BrokerRefusal] = {}
    for topic in response.responses:
        for each in topic.partition_responses:
            partition = TopicPartition(topic.name, each.index)
            offsets[partition] = _first_offset(each.error_code, or_none(each.base_offset))
    return offsets


def _first_offset(code: int, offset: int | None) -> int | BrokerRefusal:
    refusal = error_of(code)
    if refusal is not None:
        return refusal
    if offset is None:
        return _NOTHING_APPENDED
    return offset
