"""How are message sets read: formats v0 and v1, and those of Jafka with byte offsets?

Lives here: entries, wrappers and nested compression.
Not here: rows of messages (message_set_kernel.py), record batches v2 (batch_v2.py).

Formats v0 and v1 (Kafka 0.8 to 0.10, and older segments of newer brokers; Kafka protocol, message
sets; KIP-31, KIP-32; classes of Kafka 0.8.2 to 3.9):

- Each message has a CRC-32 of all bytes from its magic on. That of a wrapper is checked before
  decompression, those inside after it.
- The value of a wrapper is a compressed message set of the same magic; it contains no wrappers.
  Its offset is that of its last message, so its first offset is known only after decompression.
- Offsets inside a v0 wrapper are absolute; inside a v1 wrapper they count from the first message as
  produced, so that the last one is the wrapper's own offset. Some producers (librdkafka) leave the
  offset of a wrapper at 0: then v1 offsets are absolute, too.
- With log append time (v1, attribute bit 3) the wrapper's timestamp holds for all. v0 has none.
- lz4 in v0 has a wrong header checksum (KIP-57).
- A wrapper without messages or value is an error, as for Java's clients.

Kafka 0.7 and Jafka, with byte positions as offsets (classes of Jafka 3.0.6 and Kafka 0.7.2):

- An entry is a length and a message: magic, attributes (magic 1 only), CRC-32 of the payload,
  payload. Its offset is the byte position of its start; no field holds it.
- A compressed message contains entries, which may be compressed again. They have no offsets: a
  message is identified by the position of the outermost entry and its index there, from 0.
- A range begins and ends at entries, and an entry belongs to the range in which it begins. An entry
  that crosses the end of the range shows that the end is misaligned.
- The last entry of a response may be truncated. Inside a compressed message that is corruption.
- Magic 0 is never compressed. Bits 0 and 1 of the attributes are the codec (gzip; snappy in Kafka
  only); other bits are ignored. A compressed message without content is legal and gives no row.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from etl.errors import CorruptData
from etl.kafka.request_values import FetchedPartition
from etl.records import codecs
from etl.records.arrow_buffers import Group, MessageBuffers, decompress
from etl.records.entries import MessagesHeader, Selection, Walk, corrupt, misaligned
from etl.records.kernel_cache import Bytes, Tally, read_only_view
from etl.records.message_set_kernel import (
    ENTRY_BYTES,
    LOGICAL,
    LOGICAL_INSIDE,
    MAX_OFFSET,
    OWN_TYPE,
    PHYSICAL,
    PHYSICAL_ENTRY_BYTES,
    PHYSICAL_INSIDE,
    SMALLEST_PHYSICAL,
    SMALLEST_V0,
    SMALLEST_V1,
    scan_entries,
    scan_messages,
)

SMALLEST_LENGTHS = (SMALLEST_V0, SMALLEST_V1)
"""By magic."""
_CODECS = (codecs.GZIP, codecs.SNAPPY, codecs.LZ4)
_CODEC_BITS = 0x07
_APPEND_TIME_BIT = 0x08
_MAGIC_AT = 16
_ATTRIBUTES_AT = 17
_AFTER_ATTRIBUTES = 18
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_ENTRY = struct.Struct(">qiIbb")


def read_header(
    fetched: FetchedPartition,
    source: Bytes,
    at: int,
    until: int,
    *,
    follows: int,
    until_offset: int,
    max_unpacked_bytes: int,
) -> MessagesHeader:
    """Return the wrapper at [at, until), or the uncompressed messages that begin there.

    `follows` is one past the last offset of the previous entry; the entry's offset is not below it.
    Raises CorruptData.
    """
    offset, _, _, magic, attributes = _ENTRY.unpack_from(fetched.records, at)
    if offset >= MAX_OFFSET:
        raise corrupt(fetched, offset, f"A message has the offset {offset}")
    codec = attributes & _CODEC_BITS
    if not codec:
        ends, count, first, last = scan_messages(source, at, source.size, follows, until_offset)
        return MessagesHeader(first, at, ends, last, count, follows=follows)
    if codec not in _CODECS:
        raise corrupt(
            fetched,
            offset,
            f"A message of format v{magic} has the compression codec {codec}, "
            "which that format does not have",
        )
    # Only the content of a wrapper has its first offset: the cursor moves by the header, before
    # anything is decompressed, and the decoder detects missing offsets before a message.
    wrapper = MessagesHeader(follows, at, until, offset, 0, codec, magic, follows)
    if offset == 0:
        return _with_last_offset(fetched, source, wrapper, max_unpacked_bytes)
    return wrapper


def _with_last_offset(
    fetched: FetchedPartition, source: Bytes, wrapper: MessagesHeader, max_unpacked_bytes: int
) -> MessagesHeader:
    """Return a wrapper with the offset 0 with the offset of its last message.

    Its producer may have left the offset at 0; then the cursor would stop inside the wrapper. It is
    decompressed into memory of its own, because that of the thread can hold rows of another cursor.
    """
    room = np.empty(max_unpacked_bytes, dtype=np.uint8)
    size = decompress(
        fetched,
        wrapper.codec,
        _content(fetched, source, wrapper),
        room,
        0,
        _describe(wrapper),
        most=max_unpacked_bytes,
    )
    _, _, last_offset = _scan_inside(fetched, read_only_view(room[:size]), 0, size, wrapper)
    return wrapper._replace(last_offset=last_offset)


def decode(
    fetched: FetchedPartition, headers: Sequence[MessagesHeader], selection: Selection, tally: Tally
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these messages within the selected offsets.

    Raises CorruptData, RecordTooLarge.
    """
    group = _MessageGroup(fetched, selection, tally)
    for header in headers:
        if header.codec:
            group.add_wrapper(header)
        else:
            row = (0, header.start, header.until, LOGICAL, 0, header.follows, 0, OWN_TYPE, 0)
            group.add_row(row, records=header.records, size=header.until - header.start)
        if group.is_full:
            yield from group.take()
    yield from group.take()


class _MessageGroup(Group):
    """Messages of formats v0 and v1 that are decoded together."""

    def __init__(self, fetched: FetchedPartition, selection: Selection, tally: Tally) -> None:
        super().__init__(fetched, selection, tally, MessageBuffers)

    def add_wrapper(self, header: MessagesHeader) -> None:
        """Add the messages in a wrapper to the group."""
        content = _content(self.fetched, self.plain, header)
        start, until = self.unpack(header.codec, content, header.last_offset, _describe(header))
        count, _, last = _scan_inside(
            self.fetched, read_only_view(self.unpacked), start, until, header
        )
        base = header.last_offset - last
        # In v0 the offsets must be equal: relative offsets, as in v1, would be below the cursor and
        # silently dropped.
        if base < 0 or (base and not header.magic):
            raise corrupt(
                self.fetched,
                header.last_offset,
                f"The last message in a wrapper of format v{header.magic} has the offset {last}",
            )
        attributes = int(self.plain[header.start + _ATTRIBUTES_AT])
        kind = -1
        ms = -1
        if header.magic:
            kind = int(bool(attributes & _APPEND_TIME_BIT))
            (ms,) = _TIMESTAMP.unpack_from(self.fetched.records, header.start + _AFTER_ATTRIBUTES)
        self.add_row(
            (1, start, until, LOGICAL_INSIDE, base, header.follows, 0, kind, ms),
            records=count,
            size=until - start,
        )


def _describe(wrapper: MessagesHeader) -> str:
    return (
        f"A wrapper of {wrapper.until - wrapper.start} bytes, up to offset {wrapper.last_offset},"
    )


def _content(fetched: FetchedPartition, source: Bytes, wrapper: MessagesHeader) -> Bytes:
    """Return the compressed message set of a wrapper.

    Raises CorruptData for a wrong CRC, and if the wrapper has no valid value.
    """
    records = fetched.records
    at = wrapper.start
    crc = _ENTRY.unpack_from(records, at)[2]
    found = zlib.crc32(source[at + _MAGIC_AT : wrapper.until].data)
    if crc != found:
        raise corrupt(
            fetched,
            wrapper.last_offset,
            f"CRC-32 of a wrapper is {found:08x}, in its header {crc:08x}",
        )
    at += _AFTER_ATTRIBUTES
    if wrapper.magic:
        at += _TIMESTAMP.size
    at += _LENGTH.size + max(0, _LENGTH.unpack_from(records, at)[0])
    if at + _LENGTH.size > wrapper.until:
        raise corrupt(fetched, wrapper.last_offset, "A wrapper's key is longer than the wrapper")
    (size,) = _LENGTH.unpack_from(records, at)
    if size < 0 or at + _LENGTH.size + size != wrapper.until:
        left = wrapper.until - at - _LENGTH.size
        raise corrupt(
            fetched,
            wrapper.last_offset,
            f"A wrapper has a value of {size} bytes, where {left} are left",
        )
    content = source[wrapper.until - size : wrapper.until]
    if wrapper.codec == codecs.LZ4 and not wrapper.magic:
        return codecs.with_lz4_checksum(content)
    return content


def _scan_inside(
    fetched: FetchedPartition, source: Bytes, start: int, until: int, wrapper: MessagesHeader
) -> tuple[int, int, int]:
    """Return (number, first offset, last offset) of the messages in [start, until) of a wrapper.

    The offsets are those of their fields. Raises CorruptData.
    """
    ends, count, first, last = scan_messages(source, start, until, 0, MAX_OFFSET, wrapper.magic)
    if ends != until or not count:
        raise _invalid_inside(fetched, source, ends, until, wrapper)
    return count, first, last


def _invalid_inside(
    fetched: FetchedPartition, source: Bytes, at: int, until: int, wrapper: MessagesHeader
) -> CorruptData:
    """Return the error for the bytes at `at` inside a wrapper."""
    message = f"{until - at} bytes in it are no message"
    left = until - at - ENTRY_BYTES
    if at == until:
        message = "there is no message in it"
    elif until - at >= ENTRY_BYTES + SMALLEST_V0:
        offset, length, _, magic, attributes = _ENTRY.unpack_from(source.data, at)
        if magic != wrapper.magic:
            message = f"a message in it has the magic {magic}"
        elif attributes & _CODEC_BITS:
            message = "a message in it is compressed again"
        elif not SMALLEST_LENGTHS[magic] <= length <= left:
            message = f"a message in it has a length of {length}, where {left} bytes are left"
        else:
            message = f"a message in it has the offset {offset}, which does not ascend"
    return corrupt(
        fetched,
        wrapper.last_offset,
        f"{_describe(wrapper)} of format v{wrapper.magic} is damaged: {message}",
    )


MAX_NESTING = 16
"""Largest depth of nested compressed messages.

Producers create depth 1; a broker accepts what fits Java's stack.
"""

_JAFKA_CODECS = (codecs.GZIP, codecs.SNAPPY)
_JAFKA_CODEC_BITS = 0x03
_JAFKA_LENGTH = struct.Struct(">i")
_JAFKA_MAGIC_AT = 4
_JAFKA_ATTRIBUTES_AT = 5
_WRAPPER = struct.Struct(">ibbI")
"""Length, magic, attributes and CRC of a compressed entry."""


def walk_jafka(fetched: FetchedPartition, from_offset: int, until_offset: int) -> Walk:
    """Return the complete entries from `from_offset`, the requested offset, to `until_offset`.

    Adjacent uncompressed entries are one item, each compressed entry is an item. Raises
    MisalignedOffset if no entry begins at a position, or one crosses `until_offset`.
    """
    source = read_only_view(fetched.records)
    at = 0
    found: list[MessagesHeader] = []
    while at < source.size and from_offset + at < until_offset:
        position = from_offset + at
        if until_offset - position < PHYSICAL_ENTRY_BYTES + SMALLEST_PHYSICAL:
            raise misaligned(
                fetched,
                position,
                f"there are {until_offset - position} bytes before {until_offset}, "
                "and none is so small",
            )
        if source.size - at < PHYSICAL_ENTRY_BYTES:
            return Walk(tuple(found), incomplete_bytes=1)
        ends = at + PHYSICAL_ENTRY_BYTES + _JAFKA_LENGTH.unpack_from(source.data, at)[0]
        codec = _codec_at(fetched, source, at, ends, position, until_offset)
        if ends > source.size:
            return Walk(tuple(found), incomplete_bytes=ends - at)
        if codec:
            header = MessagesHeader(position, at, ends, from_offset + ends - 1, 0, codec)
        else:
            ends, count = scan_entries(source, at, source.size, until_offset - position)
            header = MessagesHeader(position, at, ends, from_offset + ends - 1, count)
        found.append(header)
        at = ends
    return Walk(tuple(found))


def _codec_at(
    fetched: FetchedPartition, source: Bytes, at: int, ends: int, position: int, until_offset: int
) -> int:
    """Return the codec of the entry at `at`; 0: uncompressed.

    Raises MisalignedOffset if no entry can begin there. Any bytes inside a message can look like a
    length, so an entry that would cross `until_offset` is rejected before more bytes are fetched.
    """
    length = ends - at - PHYSICAL_ENTRY_BYTES
    left = source.size - at
    magic = int(source[at + _JAFKA_MAGIC_AT]) if left > _JAFKA_MAGIC_AT else 0
    if magic > 1:
        raise misaligned(fetched, position, f"its magic would be {magic}")
    if length < SMALLEST_PHYSICAL + magic:
        raise misaligned(fetched, position, f"its length would be {length}")
    if position + ends - at > until_offset:
        raise misaligned(
            fetched,
            position,
            f"it would reach to {position + ends - at}, beyond {until_offset}, "
            "where a message begins or the log ends",
        )
    if not magic or left <= _JAFKA_ATTRIBUTES_AT:
        return 0
    codec = int(source[at + _JAFKA_ATTRIBUTES_AT]) & _JAFKA_CODEC_BITS
    if codec and codec not in _JAFKA_CODECS:
        raise misaligned(
            fetched, position, f"its compression codec would be {codec}, which does not exist"
        )
    return codec


def decode_jafka(
    fetched: FetchedPartition, headers: Sequence[MessagesHeader], selection: Selection, tally: Tally
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these entries. Raises CorruptData, MisalignedOffset, RecordTooLarge."""
    group = _JafkaGroup(fetched, selection, tally)
    for header in headers:
        if header.codec:
            group.add_compressed(header)
        else:
            row = (0, header.start, header.until, PHYSICAL, header.base_offset, 0, 0, OWN_TYPE, 0)
            group.add_row(row, records=header.records, size=header.until - header.start)
        if group.is_full:
            yield from group.take()
    yield from group.take()


class _JafkaGroup(Group):
    """Entries that are decoded together."""

    def __init__(self, fetched: FetchedPartition, selection: Selection, tally: Tally) -> None:
        super().__init__(fetched, selection, tally, MessageBuffers)

    def add_compressed(self, header: MessagesHeader) -> None:
        """Add the messages of a compressed entry to the group, at any depth.

        They share the offset of the entry. The message index counts them through all depths, so it
        does not depend on how often a mirror wrapped them.
        """
        _, _, _, crc = _WRAPPER.unpack_from(self.plain.data, header.start)
        content = self.plain[header.start + _WRAPPER.size : header.until]
        found = zlib.crc32(content.data)
        if found != crc:
            raise misaligned(
                self.fetched,
                header.base_offset,
                f"CRC-32 of its compressed content would be {found:08x}, its field has {crc:08x}",
            )
        self._add_inside(
            header, content, header.codec, first_index=0, depth=1, already_from=self.unpacked_size
        )

    def _add_inside(
        self,
        outer: MessagesHeader,
        content: Bytes,
        codec: int,
        *,
        first_index: int,
        depth: int,
        already_from: int,
    ) -> int:
        """Add the messages in `content`, with indexes from `first_index`; return the next index."""
        if depth > MAX_NESTING:
            raise corrupt(
                self.fetched,
                outer.base_offset,
                f"Messages are compressed in one another more than {MAX_NESTING} times",
            )
        description = f"A compressed message of {outer.until - outer.start} bytes"
        at, until = self.unpack(
            codec,
            content,
            outer.base_offset,
            description,
            already=self.unpacked_size - already_from,
        )
        source, index = read_only_view(self.unpacked), first_index
        while at < until:
            ends, count = scan_entries(source, at, until, MAX_OFFSET)
            if count:
                row = (1, at, ends, PHYSICAL_INSIDE, outer.base_offset, 0, index, OWN_TYPE, 0)
                self.add_row(row, records=count, size=ends - at)
                at, index = ends, index + count
            else:
                ends, codec = self._compressed_inside(outer, source, at, until)
                inside = source[at + _WRAPPER.size : ends]
                index = self._add_inside(
                    outer,
                    inside,
                    codec,
                    first_index=index,
                    depth=depth + 1,
                    already_from=already_from,
                )
                at = ends
        return index

    def _compressed_inside(
        self, outer: MessagesHeader, source: Bytes, at: int, until: int
    ) -> tuple[int, int]:
        """Return (end, codec) of the compressed entry at `at`.

        Raises CorruptData if there is no valid one.
        """
        if until - at < _WRAPPER.size:
            raise self._damaged(outer, f"{until - at} bytes in it are no message")
        length, magic, attributes, crc = _WRAPPER.unpack_from(source.data, at)
        ends = at + PHYSICAL_ENTRY_BYTES + length
        codec = attributes & _JAFKA_CODEC_BITS
        if magic not in (0, 1):
            raise self._damaged(outer, f"a message in it has the magic {magic}")
        if length < SMALLEST_PHYSICAL + magic or ends > until:
            left = until - at - PHYSICAL_ENTRY_BYTES
            raise self._damaged(
                outer, f"a message in it has a length of {length}, where {left} bytes are left"
            )
        if codec not in _JAFKA_CODECS:
            raise self._damaged(
                outer, f"a message in it has the compression codec {codec}, which does not exist"
            )
        found = zlib.crc32(source[at + _WRAPPER.size : ends].data)
        if found != crc:
            raise self._damaged(
                outer, f"CRC-32 of a message in it is {found:08x}, its field has {crc:08x}"
            )
        return ends, codec

    def _damaged(self, outer: MessagesHeader, message: str) -> Exception:
        return corrupt(
            self.fetched,
            outer.base_offset,
            f"A compressed message of {outer.until - outer.start} bytes is damaged: {message}",
        )
