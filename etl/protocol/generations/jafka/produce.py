"""Writing messages, and making and deleting topics: for the demo, for tests, and for whoever makes
logs to try things with.

A produce request has no answer, neither when it was served nor when not. So an offsets request
follows each on the same connection: a broker that took the messages answers that one, and one that
did not has hung up. Where they lie nobody is told.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any

from etl.errors import Refusal
from etl.model.partitions import BrokerPartition
from etl.protocol.generations.jafka.errors import WRONG_PASSWORD, refusal_of
from etl.protocol.primitives import Reader, Writer

PRODUCE, CREATE, DELETE = 0, 5, 6
_MESSAGE = struct.Struct(">ibbI")
_MAGIC = 1


def encode_messages(records: Iterable[tuple[bytes | None, bytes | None]]) -> bytes:
    """An uncompressed message set of key and value pairs, of which the format has the values only.

    Raises ValueError for a key, for a value that is None, and where there is no record.
    """
    messages = b"".join(_encode_message(key, value) for key, value in records)
    if not messages:
        raise ValueError("there is no record to send")
    return messages


def _encode_message(key: bytes | None, value: bytes | None) -> bytes:
    if key is not None:
        raise ValueError(f"messages of this generation have no key, and here is one: {key[:40]!r}")
    if value is None:
        raise ValueError(
            "messages of this generation have a payload always, if an empty one: None cannot be sent"
        )
    return _MESSAGE.pack(_MESSAGE.size - 4 + len(value), _MAGIC, 0, zlib.crc32(value)) + value


def encode_produce(log: BrokerPartition, messages: bytes) -> bytes:
    """One framed request, which is not answered."""
    return (
        Writer()
        .int16(PRODUCE)
        .string16(log.topic)
        .int32(log.partition)
        .int32(len(messages))
        .raw(messages)
        .framed()
    )


def encode_create(topic: str, partitions: int, *, enlarges: bool = True) -> bytes:
    """One framed request: as many partitions at least, on this broker; the logs themselves are made
    by the first message.

    enlarges    without it a broker up to 3.0.6 does nothing, since it counts every topic as having
    num.partitions already
    """
    if partitions < 1:
        raise ValueError(f"a topic cannot have {partitions} partitions")
    return Writer().int16(CREATE).string16(topic).int32(partitions).int8(enlarges).framed()


def encode_delete(topic: str, password: str) -> bytes:
    """One framed request: the topic's logs on this broker. Any password will do where the broker
    has none.
    """
    return Writer().int16(DELETE).string16(topic).string16(password).framed()


def parse_count(answer: memoryview, **place: Any) -> int | Refusal:
    """The one number that answers a create or a delete request, from the bytes behind its size:
    partitions made, or deleted.

    Raises CorruptData.
    """
    reader = Reader(answer, **place)
    refusal = refusal_of(reader.int16())
    if refusal is not None:
        return refusal
    if reader.count("the array of numbers", item_bytes=4) != 1:
        raise reader.corrupt("the answer does not hold one number")
    number = reader.int32()
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return WRONG_PASSWORD if number == -1 else number
