"""Writing records: for the demo, for tests, and for whoever makes records to try things with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.protocol.producer import ProduceRequest

from etl.errors import Refusal, SettingsError
from etl.model.partitions import BrokerPartition
from etl.protocol.generations.kafka.errors import NONE, refusal_of
from etl.protocol.generations.kafka.small_messages import or_none

_NOT_TAKEN = Refusal(
    NONE,
    "it names no offset for what was sent, so it took nothing of it, and tells no error",
    False,
    SettingsError,
    "the bytes that were sent: Kafka 0.8 to 0.10.2 answer so where no whole message with a right checksum is in them",
)
"""Whatever its code says, an append without an offset was none."""


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


def parse_produce(response: Any) -> dict[BrokerPartition, int | Refusal]:
    """The offset that the first record of each log got."""
    return {
        BrokerPartition(topic.name, each.index): _first_offset(
            each.error_code, or_none(each.base_offset)
        )
        for topic in response.responses
        for each in topic.partition_responses
    }


def _first_offset(code: int, offset: int | None) -> int | Refusal:
    return _NOT_TAKEN if offset is None and code == NONE else refusal_of(code) or offset or 0
