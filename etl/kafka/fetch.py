"""How are records fetched from Kafka, and how are they produced?

Fetch is encoded and decoded here, not by kafka-python: records stay slices of the receive buffer,
while that library copies them. What each version adds, for a reader without fetch sessions:

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

Later versions serve followers only. Produce requests are for the demo and for tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from kafka.protocol.producer import ProduceRequest

from etl.errors import BrokerRefusal, SettingsError
from etl.kafka.messages import FetchAnswer, FetchedPartition, FetchTarget, in_serving_order
from etl.kafka.primitives import Reader, Writer
from etl.kafka.small_messages import isolation_level, or_minus_one, or_none
from etl.kafka.versions import NONE, Api, error_of
from etl.model.partitions import BrokerPartition, Isolation

VERSIONS = range(14)
FIRST_WITH_A_LIMIT = 3
FIRST_WITH_TOPIC_IDS = 13
_FIRST_COMPACT = 12
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NO_SESSION = (0, -1)
"""Session id and epoch of a full fetch that opens no session (KIP-227); epoch 0 would open one."""


def names_all_by_id(wanted: Sequence[FetchTarget]) -> bool:
    """True if each topic has a topic id; znode ids of brokers before 2.8 do not count."""
    return all(each.topic_id is not None and _ID.fullmatch(each.topic_id) for each in wanted)


def squeezed(wanted: Sequence[FetchTarget], max_bytes: int) -> tuple[FetchTarget, ...]:
    """Return `wanted` for a broker without a limit of the whole response: partitions beyond
    `max_bytes`, in serving order, are requested with no bytes. The first is always complete.
    Brokers answer the others without records, with their errors.
    """
    left = max_bytes
    requested: list[FetchTarget] = []
    for each in in_serving_order(wanted):
        fits = not requested or each.max_bytes <= left
        requested.append(each if fits else replace(each, max_bytes=0))
        left -= requested[-1].max_bytes
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
    """Encode one framed Fetch request without a session; `max_bytes` limits the response if the
    version supports it. Raises ValueError for a duplicate partition, an empty request, or version
    13 without topic ids.
    """
    if not wanted:
        raise ValueError("a fetch without a log asks nothing")
    topics: dict[str, list[FetchTarget]] = {}
    for each in in_serving_order(wanted):
        topics.setdefault(each.log.topic, []).append(each)
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
    for topic, logs in topics.items():
        out.topic(topic, logs[0].topic_id).count(len(logs))
        for each in logs:
            _write_wanted(out, version, each)
        out.tags()
    if version >= 7:
        out.count(0)
    if version >= 11:
        out.text("")
    return out.tags().framed()


def _write_wanted(out: _Request, version: int, wanted: FetchTarget) -> None:
    out.int32(wanted.log.partition)
    if version >= 9:
        out.int32(or_minus_one(wanted.leader_epoch))
    out.int64(wanted.offset)
    if version >= 12:
        out.int32(
            -1
        )  # the epoch of the last record we have: logs that were cut are told by `OffsetForLeaderEpoch`, once all is read
    if version >= 5:
        out.int64(-1)
    out.int32(wanted.max_bytes).tags()


def parse_fetch(
    version: int, body: memoryview, wanted: Sequence[FetchTarget] = (), **place: Any
) -> FetchAnswer:
    """A Fetch response from the bytes after the correlation id, to a request for `wanted`.

    `records` of each partition are slices of `body`: they live as long as the buffer below it is
    not reused. Raises CorruptData naming topic and partition where a length is absurd or the bytes
    end early.
    """
    reader = _Response(version, body, wanted, place)
    reader.tags()
    throttle_ms, error_code = reader.int32() if version >= 1 else 0, NONE
    if version >= 7:
        error_code = reader.int16()
        reader.int32()
    partitions: list[FetchedPartition] = []
    unasked = {each.log for each in wanted if each.max_bytes <= 0}
    proves_empty = throttle_ms <= 0
    for _ in range(reader.counted("the array of topics", item_bytes=6)):
        reader.place = place
        topic = reader.topic()
        for _ in range(reader.counted("the array of partitions", item_bytes=18)):
            reader.place = {**place, "topic": topic}
            fetched = _read_partition(reader, version, topic)
            proven = proves_empty and BrokerPartition(topic, fetched.partition) not in unasked
            partitions.append(replace(fetched, proves_empty=proven))
            # without a limit of the whole answer nobody takes another's bytes
            proves_empty = proves_empty and (
                version < FIRST_WITH_A_LIMIT or not len(fetched.records)
            )
        reader.tags()
    reader.tags()
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return FetchAnswer(throttle_ms, error_of(error_code), tuple(partitions))


def _read_partition(reader: _Response, version: int, topic: str) -> FetchedPartition:
    partition = reader.int32()
    if partition < 0:
        raise reader.corrupt(f"partition {partition} is negative")
    reader.place = {**reader.place, "partition": partition}
    error_code, high_watermark = reader.int16(), reader.int64()
    last_stable_offset = reader.int64() if version >= 4 else -1
    log_start_offset = reader.int64() if version >= 5 else -1
    aborted = reader.aborted() if version >= 4 else ()
    if version >= 11:
        reader.int32()  # a preferred replica, never named to a reader without a rack
    records = reader.records()
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
    )


class _Request(Writer):
    """What versions write differently."""

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
            raise ValueError(f"no id of topic {name} is known")
        return self.raw(UUID(topic_id).bytes)

    def tags(self) -> _Request:
        """No tagged field."""
        return self.unsigned_varint(0) if self._version >= _FIRST_COMPACT else self


class _Response(Reader):
    """What versions read differently."""

    __slots__ = ("_version", "_names")

    def __init__(
        self, version: int, body: memoryview, wanted: Sequence[FetchTarget], place: dict[str, Any]
    ) -> None:
        super().__init__(body, **place)
        self._version = version
        by_id = version >= FIRST_WITH_TOPIC_IDS
        if by_id:
            self._names = {
                UUID(each.topic_id): each.log.topic for each in wanted if each.topic_id is not None
            }
        else:
            self._names = {}

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
            return self.decoded(
                self.span(self.unsigned_varint() - 1, "a topic's name"), "a topic's name"
            )
        topic_id = UUID(bytes=bytes(self.span(16, "a topic's id")))
        if topic_id not in self._names:
            raise self.corrupt(f"the topic with the id {topic_id} was not asked for")
        return self._names[topic_id]

    def aborted(self) -> tuple[tuple[int, int], ...]:
        found = []
        for _ in range(self.counted("the array of aborted transactions", item_bytes=16)):
            found.append((self.int64(), self.int64()))
            self.tags()
        return tuple(found)

    def records(self) -> memoryview:
        length = self.int32() if self._version < _FIRST_COMPACT else self.unsigned_varint() - 1
        return self.span(0 if length == -1 else length, "the record set")

    def tags(self) -> None:
        """Tagged fields (KIP-482): none that is defined so far is of use to a reader."""
        if self._version < _FIRST_COMPACT:
            return
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self.span(self.unsigned_varint(), "a tagged field")


_NOT_TAKEN = BrokerRefusal(
    NONE,
    "it names no offset for what was sent, so it took nothing of it, and tells no error",
    False,
    SettingsError,
    "Check the bytes that were sent: Kafka 0.8 to 0.10.2 answer so where no whole message with a right checksum is in them",
)
"""An append without an offset failed, whatever its code."""


def magic_of(version: int) -> int:
    """The newest message format that a version of Produce takes."""
    return 0 if version < 2 else 1 if version < 3 else 2


def encode_records(
    records: Iterable[tuple[bytes | None, bytes | None]], *, timestamp_ms: int, magic: int = 2
) -> bytes:
    """One uncompressed record batch, or message set (`magic` 0 or 1), of key and value pairs, all
    with one timestamp if the format has any.

    ValueError when there is none.
    """
    from kafka.record import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=0x7FFFFFFF)
    for key, value in records:
        builder.append(timestamp_ms, key, value)
    if builder.next_offset() == 0:
        raise ValueError("there is no record to send")
    builder.close()
    return bytes(builder.buffer())


def produce_fields(log: BrokerPartition, record_batch: bytes, timeout_ms: int) -> dict[str, Any]:
    wanted = ProduceRequest.TopicProduceData
    partitions = [wanted.PartitionProduceData(index=log.partition, records=record_batch)]
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": timeout_ms,
        "topic_data": [wanted(name=log.topic, partition_data=partitions)],
    }


def parse_produce(response: Any) -> dict[BrokerPartition, int | BrokerRefusal]:
    """The offset that the first record of each log got."""
    return {
        BrokerPartition(topic.name, each.index): _first_offset(
            each.error_code, or_none(each.base_offset)
        )
        for topic in response.responses
        for each in topic.partition_responses
    }


def _first_offset(code: int, offset: int | None) -> int | BrokerRefusal:
    return _NOT_TAKEN if offset is None and code == NONE else error_of(code) or offset or 0
