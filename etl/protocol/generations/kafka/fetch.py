"""Fetch, written and read by hand: records stay slices of the caller's buffer.

kafka-python's decoder copies the frame and the records. Versions 4 to 11 are the non-flexible ones that carry record batches v2;
from 5 on they tell the log start, from 9 on they carry leader epochs, from 10 on zstd may come, from 11 on a rack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from etl.model.logs import Isolation
from etl.protocol.generations.kafka.errors import NONE, refusal_of
from etl.protocol.generations.kafka.small_messages import isolation_level, or_minus_one, or_none
from etl.protocol.generations.kafka.versions import Api
from etl.protocol.messages import FetchAnswer, FetchedPartition, FetchTarget, in_serving_order
from etl.protocol.primitives import Reader, Writer


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


def encode_fetch(version: int, wanted: Sequence[FetchTarget], *, correlation_id: int, client_id: str, max_wait_ms: int,
                 min_bytes: int, max_bytes: int, isolation: Isolation) -> bytes:
    """One framed Fetch request without a session; `max_bytes` bounds the whole answer.

    Raises ValueError when a log is named twice, or nothing is wanted.
    """
    if not wanted:
        raise ValueError("a fetch without a log asks nothing")
    topics: dict[str, list[FetchTarget]] = {}
    for each in in_serving_order(wanted):
        topics.setdefault(each.log.topic, []).append(each)
    layout = FETCH_LAYOUTS[version]
    out = Writer().int16(Api.FETCH.key).int16(version).int32(correlation_id).string16(client_id)
    out.int32(-1).int32(max_wait_ms).int32(min_bytes).int32(max_bytes).int8(isolation_level(isolation))
    if layout.session:
        out.int32(_NO_SESSION[0]).int32(_NO_SESSION[1])
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


def _write_wanted(out: Writer, layout: FetchLayout, wanted: FetchTarget) -> None:
    out.int32(wanted.log.partition)
    if layout.leader_epoch:
        out.int32(or_minus_one(wanted.leader_epoch))
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
    throttle_ms, error_code = reader.int32(), NONE
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
    return FetchAnswer(throttle_ms, refusal_of(error_code), tuple(partitions))


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
        topic=topic, partition=partition, refusal=refusal_of(error_code), high_watermark=high_watermark,
        last_stable_offset=or_none(last_stable_offset), log_start_offset=or_none(log_start_offset), aborted=aborted,
        records=reader.span(0 if length == -1 else length, "the record set"))
