"""The offsets request: where one log starts, where its flushed part ends, and where its segments
begin. One log per request.

A log's offsets are byte positions, so a range of it may begin and end only where an entry begins
for sure: at what this request names.

A broker makes a topic's logs with its first message, which then lies at 0. Of a log that is not
there Kafka 0.7 says that it starts and ends at 0, and Jafka names no offset: here both read alike.
Whether the topic is there at all, only ZooKeeper knows.
"""

from __future__ import annotations

from typing import Any

from etl.errors import Refusal, SettingsError
from etl.model.partitions import BrokerPartition
from etl.protocol.generations.jafka.errors import refusal_of
from etl.protocol.messages import EARLIEST, LATEST, ListedOffset
from etl.protocol.primitives import Reader, Writer

OFFSETS = 4
ALL = 0x7FFFFFFF
"""More than a log has segments: the broker answers with as many as there are, and takes no memory
for the number.
"""


def encode_offsets(log: BrokerPartition, time: int, *, most: int = ALL) -> bytes:
    """One framed request. `time` is LATEST (the flushed end, then the segments' starts) or EARLIEST
    (the start of the oldest segment).

    Raises SettingsError for a moment: Jafka's search by time steps one entry too far.
    """
    if time not in (LATEST, EARLIEST):
        raise SettingsError(
            "a Jafka broker cannot be asked for offsets by time: its search is off by one and names a segment too old, or none",
            check="that the first or the last offset is asked for; records of this generation have no timestamps",
            **log.place,
        )
    if most < 1:
        raise ValueError(
            f"{most} offsets cannot be asked for: an answer without any is that of a log that is not there"
        )
    return (
        Writer()
        .int16(OFFSETS)
        .string16(log.topic)
        .int32(log.partition)
        .int64(time)
        .int32(most)
        .framed()
    )


def parse_offsets(
    log: BrokerPartition, answer: memoryview, **place: Any
) -> tuple[int, ...] | Refusal:
    """The answer to one request, from the bytes behind its size: one offset at least, newest first.
    Raises CorruptData.
    """
    reader = Reader(answer, **place, **log.place)
    refusal = refusal_of(reader.int16())
    if refusal is not None:
        return refusal
    found = [reader.int64() for _ in range(reader.count("the array of offsets", item_bytes=8))]
    if any(offset < 0 for offset in found) or found != sorted(found, reverse=True):
        raise reader.corrupt(f"the offsets {found[:5]} are not those of a log, newest first")
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    # The start of a last segment without a flushed byte is also the end: it is told twice.
    return tuple(dict.fromkeys(found)) or (0,)


def read_listed(log: BrokerPartition, time: int, answer: memoryview, **place: Any) -> ListedOffset:
    """The same in the words of all generations."""
    found = parse_offsets(log, answer, **place)
    if isinstance(found, Refusal):
        return ListedOffset(log, found, None, None, None)
    return ListedOffset(
        log, None, found[0], None, None, tuple(reversed(found)) if time == LATEST else None
    )
