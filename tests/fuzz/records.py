"""How the targets for records read their input: to complete Arrow batches."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import google_crc32c

from etl.kafka.broker_type_interface import Request
from etl.kafka.jafka_broker_type import JafkaProtocol
from etl.kafka.request_values import EARLIEST, LATEST, Fetch, FetchedPartition, FetchTarget
from etl.model.partitions import Isolation, TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor
from etl.reader.fetch_options import FetchOptions
from etl.records import decode
from etl.records.decode import Messages, walk_entries
from etl.records.entries import Selection
from tests.fakes.batches import Batch, Codec, answer, compress, encode, record_bytes
from tests.fakes.jafka import entry
from tests.fakes.message_sets import (
    Entry,
    Msg,
    entry_bytes,
    message_bytes,
    physical_answer,
    with_wrong_checksum,
)
from tests.fakes.old_logs import OLD_CODECS, physical_cursor
from tests.fuzz import seeds

MAX_UNPACKED_BYTES = 1 << 18
"""What the targets let one record batch decompress to: small, so that a bomb is one."""
MAX_RECORD_BYTES = 1 << 15
PLAIN_RECORDS = b"".join(record_bytes(record) for record in seeds.RECORDS)


def streams(codec: Codec) -> tuple[bytes, bytes, bytes]:
    """One stream, one with padding after it if that is allowed, and two of them."""
    one = compress(PLAIN_RECORDS, codec)
    padding = {Codec.ZSTD: b"", Codec.SNAPPY: b"\0"}.get(codec, bytes(20))
    return (
        one,
        one + padding,
        compress(PLAIN_RECORDS[:9], codec) + compress(PLAIN_RECORDS[9:], codec),
    )


def message_streams() -> list[bytes]:
    """The content of compressed wrappers of both formats, after `message_payload`'s byte."""
    return [
        bytes([magic | which << 1])
        + (with_wrong_checksum(stream) if codec is Codec.LZ4 and not magic else stream)
        for magic in (0, 1)
        for which, codec in enumerate(OLD_CODECS)
        for held in seeds.packed_messages(magic)
        for stream in (compress(held, codec), compress(held, codec, xerial=False))
    ]


def record_batches(content: bytes) -> None:
    """The first bytes are the range's start, its size, and the isolation."""
    first, size, isolation = (*content[:3], 0, 40, 0)[:3] if len(content) < 3 else content[:3]
    found = answer(sealed(content[3:]), aborted=((seeds.PRODUCER, 0),) if isolation & 2 else ())
    rows(
        found,
        first,
        first + size,
        Isolation.READ_COMMITTED if isolation & 1 else Isolation.READ_UNCOMMITTED,
    )


def packed_records(content: bytes) -> None:
    """The first byte is codec and count of a batch, the rest its records uncompressed."""
    codec, count = Codec(content[0] % 5 if content else 0), content[0] // 5 if content else 0
    payload = compress(content[1:], codec, xerial=count % 2 == 0)
    rows(answer(encode(Batch(0, [], codec=codec, last_delta=60, count=count, payload=payload))))


def payload(content: bytes) -> None:
    """The first byte is the codec, the rest what its decompressor is given."""
    codec = Codec(1 + content[0] % 4 if content else 1)
    rows(answer(encode(Batch(0, [], codec=codec, last_delta=60, count=3, payload=content[1:]))))


def rows(
    fetched: FetchedPartition,
    first: int = 0,
    until: int = 40,
    isolation: Isolation = Isolation.READ_COMMITTED,
) -> None:
    cursor = Cursor(
        OffsetRange(seeds.LOG, first, until),
        FetchOptions(
            isolation=isolation,
            fetch_max_bytes=4096,
            max_batch_bytes=1 << 16,
            max_unpacked_bytes=MAX_UNPACKED_BYTES,
            max_record_bytes=MAX_RECORD_BYTES,
        ),
    )
    seen = 0
    for batch in cursor.feed(fetched):
        batch.validate(full=True)
        seen += batch.num_rows
    result = cursor.result
    walked = seen + result.control_records + result.aborted_records + result.missing_offsets
    if (
        result.rows != seen
        or walked != cursor.position - first
        or not first <= cursor.position <= max(first, until)
    ):
        raise AssertionError(
            f"{seen} rows, position {cursor.position}, and the range result is {result}"
        )


def sealed(content: bytes) -> bytes:
    found, at = bytearray(content), 0
    while at + 26 <= len(found):
        magic, until = found[at + 16], at + 12 + struct.unpack_from(">i", found, at + 8)[0]
        if not at + (61 if magic > 1 else 26) <= until <= len(found):
            break
        if magic > 1:
            struct.pack_into(
                ">I", found, at + 17, google_crc32c.value(bytes(found[at + 21 : until]))
            )
        else:
            struct.pack_into(">I", found, at + 12, zlib.crc32(found[at + 16 : until]))
        at = until
    return bytes(found)


def sealed_entries(content: bytes) -> bytes:
    """The same entries of 0.7 with the CRCs that belong to them."""
    found, at = bytearray(content), 0
    while at + 10 <= len(found):
        until, crc_at = (
            at + 4 + struct.unpack_from(">i", found, at)[0],
            at + 5 + (found[at + 4] & 1),
        )
        if not crc_at + 4 <= until <= len(found):
            break
        struct.pack_into(">I", found, crc_at, zlib.crc32(found[crc_at + 4 : until]))
        at = until
    return bytes(found)


def packed_messages(content: bytes) -> None:
    """The first byte is magic, codec and base of a wrapper, the rest its content."""
    mark = content[0] if content else 0
    magic, codec, base = mark & 1, OLD_CODECS[(mark >> 1) % 3], (mark >> 3) % 40
    payload = compress(sealed(content[1:]), codec, xerial=mark < 128)
    rows(answer(message_bytes(Msg(base, payload), magic, codec)))


def message_payload(content: bytes) -> None:
    """The first byte is magic, codec and place of a wrapper, the rest its payload."""
    mark = content[0] if content else 0
    wrapper = Msg((mark >> 3) % 40, content[1:])
    rows(answer(message_bytes(wrapper, mark & 1, OLD_CODECS[(mark >> 1) % 3])))


def physical_sets(content: bytes) -> None:
    """The first byte: how many bytes are beyond the range; its high bit: wrong CRCs."""
    mark = content[0] if content else 0
    _physical_rows(content[1:] if mark & 0x80 else sealed_entries(content[1:]), mark & 0x7F)


def packed_entries(content: bytes) -> None:
    """The first byte is the codec, and how deep the rest lies in entries of 0.7 inside entries."""
    mark = content[0] if content else 0
    found = sealed_entries(content[1:])
    for depth in range(1 + (mark >> 1) % 20):
        codec = OLD_CODECS[(mark + depth) & 1]
        found = entry_bytes(Entry(compress(found, codec, xerial=mark < 128), attributes=int(codec)))
    _physical_rows(found, 0)


def entry_payload(content: bytes) -> None:
    """The first byte is the codec of an entry of 0.7, the rest what its decompressor is given."""
    codec = OLD_CODECS[(content[0] if content else 0) & 1]
    _physical_rows(entry_bytes(Entry(content[1:], attributes=int(codec))), 0)


def one_at_a_time(content: bytes) -> None:
    """The first bytes: byte offsets or not, the requested offset; then the records."""
    is_physical, request = (
        (content[0] & 1 if content else 0),
        (content[1] if len(content) > 1 else 0),
    )
    fetched = (
        physical_answer(sealed_entries(content[2:])) if is_physical else answer(sealed(content[2:]))
    )
    selection = partial(
        Selection, max_unpacked_bytes=MAX_UNPACKED_BYTES, max_record_bytes=MAX_RECORD_BYTES
    )
    with (
        mock.patch.object(
            decode, "walk_entries", partial(walk_entries, max_unpacked_bytes=MAX_UNPACKED_BYTES)
        ),
        mock.patch.object(decode, "Selection", selection),
    ):
        messages = Messages(replace(fetched, asked_offset=request))
        seen = [(record.offset, record.message_index, record.next_offset) for record in messages]
    ends = [request, *(end for *_, end in seen), messages.next_offset]
    if (
        seen != sorted(set(seen))
        or any(not request <= at <= end for at, _, end in seen)
        or ends != sorted(ends)
    ):
        raise AssertionError(
            f"requested {request}: records {seen}, and on at {messages.next_offset}"
        )


def physical_fetch(fetched: FetchedPartition, *, is_sealed: bool) -> None:
    """The answer of a fetch of 0.7 for one partition, as rows."""
    found = bytes(fetched.records)
    records = memoryview(bytearray(sealed_entries(found) if is_sealed else found))
    physical_feed(replace(fetched, records=records), len(found))


def _physical_rows(content: bytes, beyond: int) -> None:
    physical_feed(physical_answer(content), max(0, len(content) - beyond))


def physical_feed(fetched: FetchedPartition, until: int) -> None:
    """The rows of a range from 0 on, which must be whole ones."""
    cursor = physical_cursor(
        0,
        until,
        fetch_max_bytes=4096,
        max_batch_bytes=1 << 16,
        max_unpacked_bytes=MAX_UNPACKED_BYTES,
        max_record_bytes=MAX_RECORD_BYTES,
    )
    seen = []
    for batch in cursor.feed(fetched):
        batch.validate(full=True)
        seen += list(
            zip(
                batch.column("offset").to_pylist(),
                batch.column("message_index").to_pylist(),
                strict=True,
            )
        )
    if (
        cursor.result.rows != len(seen)
        or not 0 <= cursor.position <= until
        or seen != sorted(set(seen))
    ):
        raise AssertionError(
            f"rows {seen}, position {cursor.position}, and the range result is {cursor.result}"
        )


_DIALECT = JafkaProtocol("b:9092")
_LOGS = [TopicPartition("clicks", number, 3) for number in range(3)]
_HELLO = entry(b"hello")


def _fetch(partitions: int) -> Request[Any]:
    return _DIALECT.fetch(
        Fetch(
            tuple(FetchTarget(partition, 0, 100) for partition in _LOGS[:partitions]),
            Isolation.READ_COMMITTED,
            1 << 20,
            0,
            1,
        )
    )


_REQUESTS: tuple[Request[Any], ...] = (
    _fetch(1),
    _fetch(3),
    _DIALECT.list_offsets({_LOGS[0]: LATEST}, Isolation.READ_COMMITTED, {}),
    _DIALECT.list_offsets(dict.fromkeys(_LOGS, EARLIEST), Isolation.READ_COMMITTED, {}),
    _DIALECT.offsets_before(_LOGS[0], LATEST, 5),
    _DIALECT.create_topic("clicks", 3),
    _DIALECT.append(_LOGS[0], _HELLO, timestamp_ms=0, timeout_ms=0),
    _DIALECT.delete_topic("clicks", "secret"),
)
_FETCHES = 2

JAFKA_ANSWERS = tuple(
    bytes([which]) + bytes.fromhex(answer)
    for which, answer in (
        (0, "0000" + _HELLO.hex()),
        (0, "0001"),
        (1, "0000 00000011 0000" + _HELLO.hex() + "00000002 0003 00000002 ffff"),
        (2, "0000 00000002 000000000000001f 0000000000000000"),
        (
            3,
            "0000000e 0000 00000001 0000000000000007 00000006 0000 00000000 0000000e 0000 "
            "00000001 0000000000000000",
        ),
        (4, "0000 00000002 000000000000001f 0000000000000000"),
        (5, "0000 00000001 00000003"),
        (5, "0000 00000001 ffffffff"),
        (6, "0000 00000001 000000000000001f"),
        (7, "0000 00000001 00000003"),
        (7, "0000 00000001 ffffffff"),
    )
)
JAFKA_FETCHED = (
    JAFKA_ANSWERS[0],
    bytes([1]) + bytes.fromhex("0000" + 3 * ("00000011 0000" + _HELLO.hex())),
)
JAFKA_REFUSED = JAFKA_ANSWERS[1:3]


def jafka_answer(content: bytes) -> object:
    """An answer of a Jafka, by its request. Raises CorruptData and nothing else."""
    request = _REQUESTS[content[0] % len(_REQUESTS) if content else 0]
    return request.read(memoryview(content[1:])).answer


def jafka_to_rows(content: bytes) -> None:
    """An answer to a fetch, to Arrow batches. The high bit: wrong CRCs."""
    mark = content[0] if content else 0
    request = _REQUESTS[(mark & 0x7F) % _FETCHES]
    for fetched in request.read(memoryview(bytearray(content[1:]))).answer.partitions:
        physical_fetch(fetched, is_sealed=not mark & 0x80)
