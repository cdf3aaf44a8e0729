"""Click events to try things with, as a producer would send them: record batches with keys, headers
and every codec in turn, or for Jafka message sets, plain and gzipped.

The events are made from their number alone, so the same number is the same event in every run.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator

import cramjam
import google_crc32c

RECORDS_PER_BATCH = 500
_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Record batch v2, from base offset to record count."""
_MESSAGE = struct.Struct(">ibbI")
"""What is before the payload of a message of Jafka and Kafka 0.7: its length, magic, attributes and
CRC-32.
"""
_PAGES = (
    b"/",
    b"/search",
    b"/basket",
    b"/checkout",
    b"/help",
    b"/article/pump-21",
    b"/article/rotor-9",
)
_VARINTS = tuple(
    bytes([n << 1]) if n < 64 else bytes([n << 1 & 0x7F | 0x80, n >> 6]) for n in range(1024)
)
"""Zig-zag varints of small numbers, two bytes at most."""


def _lz4(data: bytes) -> bytes:
    """Kafka reads frames of independent blocks only."""
    packing = cramjam.lz4.Compressor(level=1, block_linked=False)
    packing.compress(data)
    return bytes(packing.finish())


_CODECS: tuple[tuple[int, Callable[[bytes], bytes]], ...] = (
    (0, bytes),
    (1, lambda data: gzip.compress(data, compresslevel=1)),
    (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    (3, _lz4),
    (4, lambda data: bytes(cramjam.zstd.compress(data))),
)
"""The codec's number in the attributes of a record batch, and how it packs."""


def click_batches(
    first: int,
    count: int,
    *,
    partitions: int,
    began_ms: int,
    records_per_batch: int = RECORDS_PER_BATCH,
) -> Iterator[tuple[int, bytes]]:
    """`count` events from number `first` on, as (partition, record batch), spread evenly over the
    partitions.

    At most 1,024 records a batch.
    """
    for number, start in enumerate(range(first, first + count, records_per_batch)):
        events = range(start, min(start + records_per_batch, first + count))
        codec, pack = _CODECS[number // partitions % len(_CODECS)]
        yield number % partitions, _packed(_batch(events, began_ms), codec, pack)


def click_messages(
    first: int, count: int, *, partitions: int, messages_per_set: int = RECORDS_PER_BATCH
) -> Iterator[tuple[int, bytes]]:
    """The same events for Jafka and Kafka 0.7, as (number of a partition, message set): every
    second set of each is one gzipped message.
    """
    for number, start in enumerate(range(first, first + count, messages_per_set)):
        events = range(start, min(start + messages_per_set, first + count))
        messages = b"".join(_message(_event(event)) for event in events)
        is_packed = number // partitions % 2 == 1
        yield (
            number % partitions,
            _message(gzip.compress(messages, compresslevel=1), codec=1) if is_packed else messages,
        )


def _message(payload: bytes, codec: int = 0) -> bytes:
    return _MESSAGE.pack(_MESSAGE.size - 4 + len(payload), 1, codec, zlib.crc32(payload)) + payload


def _event(number: int) -> bytes:
    return b'{"event": %d, "user": "%b", "page": "%b", "ms": %d}' % (
        number,
        _user(number),
        _PAGES[number % len(_PAGES)],
        number % 977,
    )


def _user(number: int) -> bytes:
    return b"user-%d" % (number * 7919 % 50_021)


def _batch(events: range, began_ms: int) -> bytes:
    """An uncompressed record batch v2 (KIP-98) without its CRC: `_packed` makes that. Written by
    hand, for a million events.
    """
    records = b"".join(_record(at, number) for at, number in enumerate(events))
    times = [began_ms + events[0], began_ms + events[-1]]
    return (
        _HEADER.pack(0, 0, -1, 2, 0, 0, len(events) - 1, *times, -1, -1, -1, len(events)) + records
    )


def _record(at: int, number: int) -> bytes:
    key, value = _user(number), _event(number)
    headers = b"\x04\x0csource\x08demo\x0atrace\x20%016x" % number if number % 10 == 0 else b"\x00"
    delta = _VARINTS[at]
    body = (
        b"\x00" + delta + delta + _VARINTS[len(key)] + key + _VARINTS[len(value)] + value + headers
    )
    return _VARINTS[len(body)] + body


def _packed(batch: bytes, codec: int, pack: Callable[[bytes], bytes]) -> bytes:
    """The same batch with its records packed: length, attributes and CRC-32C are made anew."""
    base, _, epoch, magic, _, attributes, *rest = _HEADER.unpack_from(batch)
    records = pack(batch[_HEADER.size :])
    length = _HEADER.size - 12 + len(records)
    covered = _HEADER.pack(base, length, epoch, magic, 0, attributes | codec, *rest)[21:] + records
    crc: int = google_crc32c.value(covered)
    return _HEADER.pack(base, length, epoch, magic, crc, attributes | codec, *rest)[:21] + covered
