"""An encoder of the messages before record batches: formats v0 and v1, and those of Kafka 0.7 and
Jafka, after their description alone.

CRCs are those of Python's zlib, compression that of `tests.fakes.batches`: nothing is shared with
the decoder.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etl.kafka.request_values import EntryLayout, FetchedPartition
from tests.fakes.batches import Codec, compress


@dataclass(frozen=True, slots=True)
class Msg:
    """One message of format v0 or v1 and its offset; the timestamp is v1's."""

    offset: int
    value: bytes | None = b""
    key: bytes | None = None
    timestamp: int = -1
    append_time: bool = False


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Messages in a wrapper, with their offsets in the log. None is computed from them."""

    messages: Sequence[Msg]
    codec: Codec = Codec.GZIP
    timestamp: int = -1
    append_time: bool = False
    xerial: bool = True
    offset: int | None = None
    base: int | None = None
    """What v1 takes from each offset: the offset of the first message as the set was produced."""
    payload: bytes | None = None
    """Instead of the compressed messages."""

    @property
    def last_offset(self) -> int:
        return self.messages[-1].offset


def encode_logical(entries: Sequence[Msg | Wrapper], magic: int) -> bytes:
    """The bytes of entries of one format, v0 or v1."""
    return b"".join(
        wrapper_bytes(each, magic) if isinstance(each, Wrapper) else message_bytes(each, magic)
        for each in entries
    )


def message_bytes(message: Msg, magic: int, codec: int = 0) -> bytes:
    attributes = codec | (8 if message.append_time and magic else 0)
    covered = struct.pack(">bb", magic, attributes) + (
        struct.pack(">q", message.timestamp) if magic else b""
    )
    covered += _sized(message.key) + _sized(message.value)
    return struct.pack(">qiI", message.offset, 4 + len(covered), zlib.crc32(covered)) + covered


def wrapper_bytes(wrapper: Wrapper, magic: int) -> bytes:
    if magic == 0:
        base = 0
    elif wrapper.base is None:
        base = wrapper.messages[0].offset
    else:
        base = wrapper.base
    payload = wrapper.payload
    if payload is None:
        payload = compress(
            inside(wrapper.messages, magic, base), wrapper.codec, xerial=wrapper.xerial
        )
        if magic == 0 and wrapper.codec is Codec.LZ4:
            payload = with_wrong_checksum(payload)
    offset = wrapper.last_offset if wrapper.offset is None else wrapper.offset
    return message_bytes(
        Msg(offset, payload, None, wrapper.timestamp, wrapper.append_time), magic, wrapper.codec
    )


def inside(messages: Sequence[Msg], magic: int, base: int) -> bytes:
    return b"".join(
        message_bytes(Msg(m.offset - base, m.value, m.key, m.timestamp, m.append_time), magic)
        for m in messages
    )


def with_wrong_checksum(frame: bytes) -> bytes:
    """An lz4 frame with another checksum of its header, at the place where this header has it."""
    at = 6 + 8 * bool(frame[4] & 8)
    return frame[:at] + bytes([frame[at] ^ 0x5A]) + frame[at + 1 :]


def _sized(content: bytes | None) -> bytes:
    return struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of Kafka 0.7 or Jafka: a payload, or (`inside`) a compressed message set."""

    payload: bytes = b""
    magic: int = 1
    inside: Sequence[Entry] | None = None
    codec: Codec = Codec.GZIP
    xerial: bool = True
    attributes: int = 0


def encode_physical(entries: Sequence[Entry]) -> bytes:
    """The bytes of a message set of 0.7."""
    return b"".join(entry_bytes(entry) for entry in entries)


def entry_bytes(entry: Entry) -> bytes:
    codec, payload = 0, entry.payload
    if entry.inside is not None:
        codec, payload = (
            int(entry.codec),
            compress(encode_physical(entry.inside), entry.codec, xerial=entry.xerial),
        )
    head = bytes([entry.magic]) + (bytes([codec | entry.attributes]) if entry.magic else b"")
    message = head + struct.pack(">I", zlib.crc32(payload)) + payload
    return struct.pack(">i", len(message)) + message


def physical_rows(entries: Sequence[Entry], position: int) -> list[tuple[int, int, bytes]]:
    """Yield (offset, message_index, payload) of every message in the encoded entries."""
    rows = []
    for entry in entries:
        rows += [(position, index, payload) for index, payload in enumerate(_payloads(entry))]
        position += len(entry_bytes(entry))
    return rows


def _payloads(entry: Entry) -> list[bytes]:
    if entry.inside is None:
        return [entry.payload]
    return [payload for each in entry.inside for payload in _payloads(each)]


def physical_answer(
    records: bytes, *, topic: str = "demo", partition: int = 0, broker_id: int = 3, **fields: Any
) -> FetchedPartition:
    """`records` as a fetch of 0.7 would bring them."""
    result: dict[str, Any] = {
        "refusal": None,
        "high_watermark": None,
        "last_stable_offset": None,
        "log_start_offset": None,
        "aborted": (),
        **fields,
    }
    return FetchedPartition(
        topic=topic,
        partition=partition,
        records=memoryview(bytearray(records)),
        layout=EntryLayout.PHYSICAL,
        broker_id=broker_id,
        **result,
    )
