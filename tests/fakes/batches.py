"""An encoder of record batches v2, written after the format's description alone and sharing nothing
with the decoder.

CRC-32C is computed bit by bit, varints number by number, compression is that of Python's zlib and
of pyarrow (the decoder uses cramjam), so that a mistake would have to be made twice to go unseen.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import pyarrow as pa

from etl.kafka.request_values import FetchedPartition
from etl.kafka.versions import error_of


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True)
class Rec:
    """One record: its distance from base offset and base timestamp, and its content."""

    delta: int
    value: bytes | None = b""
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp_delta: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch as it shall appear on the wire."""

    base_offset: int
    records: Sequence[Rec]
    codec: Codec = Codec.NONE
    last_delta: int | None = None
    """None: that of the last record."""
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_000_500
    producer_id: int = -1
    append_time: bool = False
    transactional: bool = False
    control: bool = False
    delete_horizon: bool = False
    xerial: bool = True
    count: int | None = None
    leader_epoch: int = 7
    payload: bytes | None = field(default=None, repr=False)

    @property
    def last_offset(self) -> int:
        if self.last_delta is not None:
            return self.base_offset + self.last_delta
        return self.base_offset + (self.records[-1].delta if self.records else 0)


def encode(batch: Batch) -> bytes:
    payload = batch.payload
    if payload is None:
        payload = compress(
            b"".join(record_bytes(record) for record in batch.records),
            batch.codec,
            xerial=batch.xerial,
        )
    attributes = (
        batch.codec
        | batch.append_time << 3
        | batch.transactional << 4
        | batch.control << 5
        | batch.delete_horizon << 6
    )
    count = len(batch.records) if batch.count is None else batch.count
    covered = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            batch.last_offset - batch.base_offset,
            batch.base_timestamp,
            batch.max_timestamp,
            batch.producer_id,
            0 if batch.producer_id >= 0 else -1,
            -1,
            count,
        )
        + payload
    )
    behind_length = struct.pack(">ibI", batch.leader_epoch, 2, crc32c(covered)) + covered
    return struct.pack(">qi", batch.base_offset, len(behind_length)) + behind_length


def control(offset: int, producer_id: int, *, kind: int) -> Batch:
    """A transaction marker: kind 0 aborts, 1 commits."""
    record = Rec(0, key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, 3))
    return Batch(offset, [record], producer_id=producer_id, transactional=True, control=True)


def record_bytes(record: Rec) -> bytes:
    body = (
        b"\x00"
        + varint(record.timestamp_delta)
        + varint(record.delta)
        + _sized(record.key)
        + _sized(record.value)
    )
    body += varint(len(record.headers)) + b"".join(
        _sized(key) + _sized(value) for key, value in record.headers
    )
    return varint(len(body)) + body


def _sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def varint(number: int) -> bytes:
    """Zig-zag, seven bits a byte, low bits first."""
    left = 2 * number if number >= 0 else -2 * number - 1
    groups = []
    while True:
        left, low = divmod(left, 128)
        groups.append(low)
        if not left:
            return bytes(group + 128 for group in groups[:-1]) + bytes(groups[-1:])


def compress(plain: bytes, codec: Codec, *, xerial: bool = True) -> bytes:
    if codec is Codec.NONE:
        return plain
    if codec is Codec.GZIP:
        return gzip.compress(plain, 6, mtime=0)  # the same bytes at any time
    if codec is Codec.SNAPPY and xerial:
        return _xerial(plain)
    return bytes(pa.compress(plain, codec.name.lower(), asbytes=True))


def _xerial(plain: bytes, block_bytes: int = 32 * 1024) -> bytes:
    """Blocks of 32 KiB after a header, as snappy-java's output stream writes them."""
    framed = bytes.fromhex("82534e41505059000000000100000001")
    for start in range(0, len(plain), block_bytes):
        block = bytes(pa.compress(plain[start : start + block_bytes], "snappy", asbytes=True))
        framed += len(block).to_bytes(4, "big") + block
    return framed


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(content: bytes) -> int:
    """CRC-32C (Castagnoli), reflected; that of b"123456789" is e3069283."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def answer(
    records: bytes,
    *,
    high_watermark: int = 1 << 40,
    last_stable_offset: int | None = 1 << 40,
    log_start_offset: int | None = 0,
    aborted: tuple[tuple[int, int], ...] = (),
    error_code: int = 0,
    proves_empty: bool = False,
    topic: str = "clicks",
    partition: int = 3,
) -> FetchedPartition:
    """`records` as a Fetch answer would bring them."""
    return FetchedPartition(
        topic=topic,
        partition=partition,
        refusal=error_of(error_code),
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        aborted=aborted,
        records=memoryview(bytearray(records)),
        proves_empty=proves_empty,
    )
