"""How are message sets read: formats v0 and v1, and those of Jafka with byte offsets?

Formats v0 and v1 (Kafka 0.8 to 0.10, and older segments of newer brokers; Kafka protocol, message
sets; KIP-31, KIP-32; classes of Kafka 0.8.2 to 3.9):

- Each message has a CRC-32 of all bytes from its magic on. That of a wrapper is checked before
  decompression, those inside after it.
- The value of a wrapper is a compressed message set of the same magic; it contains no wrappers.
  Its offset is that of its last message, so its first offset is known only after decompression.
- Offsets inside a v0 wrapper are absolute; inside a v1 wrapper they count from the first message as
  produced, so that the last one is the wrapper's own offset. A wrapper with offset 0 was left so
  by its producer (librdkafka did): then v1 offsets are absolute, too.
- With log append time (v1, attribute bit 3) the wrapper's timestamp holds for all. v0 has none.
- lz4 in v0 has a wrong header checksum (KIP-57).
- A wrapper without messages or value is an error, as for Java's clients.

Kafka 0.7 and Jafka, whose offsets are byte positions (classes of Jafka 3.0.6 and Kafka 0.7.2):

- An entry is a length and a message: magic, attributes (magic 1 only), CRC-32 of the payload,
  payload. Its offset is where it begins; no field holds it.
- A compressed message contains entries, which may be compressed again. They have no offsets: a
  message is identified by the position of the outermost entry and its index there, from 0.
- A range begins and ends at entries, and an entry belongs to the range in which it begins. An entry
  that crosses the end of the range shows that the end is misaligned.
- The last entry of a response may be truncated. Inside a compressed message that is corruption.
- Magic 0 is never compressed. Bits 0 and 1 of the attributes are the codec (gzip; snappy in Kafka
  only); other bits are ignored. A compressed message without content is legal and gives no row.

Messages become rows in etl/records/message_kernel.py.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from etl.errors import CorruptData
from etl.kafka.messages import FetchedPartition
from etl.records import codecs
from etl.records.arrow import Group, MessageBuffers, decompress
from etl.records.entries import MessagesHeader, Selection, Walk, corrupt, no_message_at
from etl.records.kernel_cache import Bytes, Tally, frozen
from etl.records.message_kernel import (
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
_CODEC_BITS, _APPEND_TIME_BIT = 0x07, 0x08
_MAGIC_AT, _ATTRIBUTES_AT, _BEHIND_ATTRIBUTES = 16, 17, 18
_TIMESTAMP, _LENGTH, _ENTRY = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">qiIbb")


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
    """The messages that begin with the whole entry at [at, until), or the wrapper that it is.

    `follows` is one past the entry before, and the entry's offset is at least that. Raises
    CorruptData.
    """
    offset, _, _, magic, attributes = _ENTRY.unpack_from(fetched.records, at)
    if offset >= MAX_OFFSET:
        raise corrupt(fetched, offset, f"a message has the offset {offset}")
    codec = attributes & _CODEC_BITS
    if not codec:
        ends, count, first, last = scan_messages(source, at, source.size, follows, until_offset)
        return MessagesHeader(first, at, ends, last, count, follows=follows)
    if codec not in _CODECS:
        raise corrupt(
            fetched,
            offset,
            f"a message of format v{magic} has the compression codec {codec}, which is none of that format",
        )
    wrapper = MessagesHeader(follows, at, until, offset, 0, codec, magic, follows)
    return wrapper if offset else _beginning_of_a_log(fetched, source, wrapper, max_unpacked_bytes)


def _beginning_of_a_log(
    fetched: FetchedPartition, source: Bytes, wrapper: MessagesHeader, max_unpacked_bytes: int
) -> MessagesHeader:
    """A wrapper with the offset 0 as far as it reaches. In memory of its own, because another
    cursor's rows may lie in the thread's.
    """
    room = np.empty(max_unpacked_bytes, dtype=np.uint8)
    size = decompress(
        fetched,
        wrapper.codec,
        _content(fetched, source, wrapper),
        room,
        0,
        _called(wrapper),
        most=max_unpacked_bytes,
    )
    inside = frozen(room[:size])
    return wrapper._replace(last_offset=_scanned(fetched, inside, 0, size, wrapper)[2])


def decode(
    fetched: FetchedPartition, headers: Sequence[MessagesHeader], selection: Selection, tally: Tally
) -> Iterator[pa.RecordBatch]:
    """The rows of these messages within the selected offsets, as Arrow batches. Raises CorruptData,
    RecordTooLarge.
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
    """Messages of formats v0 and v1 on their way into one Arrow batch."""

    def __init__(self, fetched: FetchedPartition, selection: Selection, tally: Tally) -> None:
        super().__init__(fetched, selection, tally, MessageBuffers)

    def add_wrapper(self, header: MessagesHeader) -> None:
        """Add the messages in a wrapper to the group."""
        content = _content(self.fetched, self.plain, header)
        start, until = self.unpack(header.codec, content, header.last_offset, _called(header))
        count, _, last = _scanned(self.fetched, frozen(self.unpacked), start, until, header)
        base = header.last_offset - last
        if base < 0 or (base and not header.magic):
            raise corrupt(
                self.fetched,
                header.last_offset,
                f"the last message in a wrapper of format v{header.magic} has the offset {last}",
            )
        attributes = int(self.plain[header.start + _ATTRIBUTES_AT])
        kind, ms = (-1, -1)
        if header.magic:
            kind = int(bool(attributes & _APPEND_TIME_BIT))
            (ms,) = _TIMESTAMP.unpack_from(self.fetched.records, header.start + _BEHIND_ATTRIBUTES)
        self.add_row(
            (1, start, until, LOGICAL_INSIDE, base, header.follows, 0, kind, ms),
            records=count,
            size=until - start,
        )


def _called(wrapper: MessagesHeader) -> str:
    return (
        f"a wrapper of {wrapper.until - wrapper.start} bytes, up to offset {wrapper.last_offset},"
    )


def _content(fetched: FetchedPartition, source: Bytes, wrapper: MessagesHeader) -> Bytes:
    """The compressed message set that a wrapper holds. Raises CorruptData for a wrong CRC, and
    where there is none.
    """
    records, at = fetched.records, wrapper.start
    crc, found = (
        _ENTRY.unpack_from(records, at)[2],
        zlib.crc32(source[at + _MAGIC_AT : wrapper.until].data),
    )
    if crc != found:
        raise corrupt(
            fetched,
            wrapper.last_offset,
            f"CRC-32 of a wrapper is {found:08x}, its header says {crc:08x}",
        )
    at += _BEHIND_ATTRIBUTES + (_TIMESTAMP.size if wrapper.magic else 0)
    at += _LENGTH.size + max(0, _LENGTH.unpack_from(records, at)[0])
    if at + _LENGTH.size > wrapper.until:
        raise corrupt(fetched, wrapper.last_offset, "a wrapper's key is longer than the wrapper")
    (size,) = _LENGTH.unpack_from(records, at)
    if size < 0 or at + _LENGTH.size + size != wrapper.until:
        left = wrapper.until - at - _LENGTH.size
        raise corrupt(
            fetched,
            wrapper.last_offset,
            f"a wrapper has a value of {size} bytes, where {left} are left for it",
        )
    content = source[wrapper.until - size : wrapper.until]
    if wrapper.codec == codecs.LZ4 and not wrapper.magic:
        return codecs.with_lz4_checksum(content)
    return content


def _scanned(
    fetched: FetchedPartition, source: Bytes, start: int, until: int, wrapper: MessagesHeader
) -> tuple[int, int, int]:
    """(how many, offset of the first, of the last) of the messages in [start, until), as they are
    written there. Raises CorruptData.
    """
    ends, count, first, last = scan_messages(source, start, until, 0, MAX_OFFSET, wrapper.magic)
    if ends != until or not count:
        raise _strange_inside(fetched, source, ends, until, wrapper)
    return count, first, last


def _strange_inside(
    fetched: FetchedPartition, source: Bytes, at: int, until: int, wrapper: MessagesHeader
) -> CorruptData:
    message = f"{until - at} bytes in it are no message"
    if at == until:
        message = "there is no message in it"
    elif until - at >= ENTRY_BYTES + SMALLEST_V0:
        offset, length, _, magic, attributes = _ENTRY.unpack_from(source.data, at)
        if magic != wrapper.magic:
            message = f"a message in it has the magic {magic}"
        elif attributes & _CODEC_BITS:
            message = "a message in it is compressed again"
        elif not SMALLEST_LENGTHS[magic] <= length <= until - at - ENTRY_BYTES:
            message = f"a message in it has a length of {length}, where {until - at - ENTRY_BYTES} bytes are left"
        else:
            message = f"a message in it has the offset {offset}, which does not rise"
    return corrupt(
        fetched,
        wrapper.last_offset,
        f"{_called(wrapper)} of format v{wrapper.magic} is damaged: {message}",
    )


MOST_NESTED = 16
"""How deep compressed messages may lie in one another. Producers make one of them; a broker takes
what a stack of Java takes.
"""

_JAFKA_CODECS = (codecs.GZIP, codecs.SNAPPY)
_JAFKA_CODEC_BITS = 0x03
_JAFKA_LENGTH, _JAFKA_MAGIC_AT, _JAFKA_ATTRIBUTES_AT = struct.Struct(">i"), 4, 5
_WRAPPER = struct.Struct(">ibbI")
"""Length, magic, attributes and CRC of a compressed entry."""


def walk_jafka(fetched: FetchedPartition, from_offset: int, until_offset: int) -> Walk:
    """Return the complete entries of a response to a request at `from_offset`, up to
    `until_offset`: uncompressed ones together, compressed ones singly. Raises MisalignedOffset if
    no entry begins there, or one crosses `until_offset`.
    """
    source, at, found = frozen(fetched.records), 0, list[MessagesHeader]()
    while at < source.size and from_offset + at < until_offset:
        position = from_offset + at
        if until_offset - position < PHYSICAL_ENTRY_BYTES + SMALLEST_PHYSICAL:
            raise no_message_at(
                fetched,
                position,
                f"there are {until_offset - position} bytes before {until_offset}, and none is so small",
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
    """The codec of the entry at `at`; 0 for none. Raises MisalignedOffset where no entry can be."""
    length, left = ends - at - PHYSICAL_ENTRY_BYTES, source.size - at
    magic = int(source[at + _JAFKA_MAGIC_AT]) if left > _JAFKA_MAGIC_AT else 0
    if magic > 1:
        raise no_message_at(fetched, position, f"its magic would be {magic}")
    if length < SMALLEST_PHYSICAL + magic:
        raise no_message_at(fetched, position, f"its length would be {length}")
    if position + ends - at > until_offset:
        raise no_message_at(
            fetched,
            position,
            f"it would reach to {position + ends - at}, beyond {until_offset}, where a message begins or the log ends",
        )
    if not magic or left <= _JAFKA_ATTRIBUTES_AT:
        return 0
    codec = int(source[at + _JAFKA_ATTRIBUTES_AT]) & _JAFKA_CODEC_BITS
    if codec and codec not in _JAFKA_CODECS:
        raise no_message_at(
            fetched, position, f"its compression codec would be {codec}, which does not exist"
        )
    return codec


def decode_jafka(
    fetched: FetchedPartition, headers: Sequence[MessagesHeader], selection: Selection, tally: Tally
) -> Iterator[pa.RecordBatch]:
    """The rows of these entries, as Arrow batches. Raises CorruptData, MisalignedOffset,
    RecordTooLarge.
    """
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
    """Entries on their way into one Arrow batch."""

    def __init__(self, fetched: FetchedPartition, selection: Selection, tally: Tally) -> None:
        super().__init__(fetched, selection, tally, MessageBuffers)

    def add_compressed(self, header: MessagesHeader) -> None:
        """Add the messages of a compressed entry to the group, at any depth."""
        _, _, _, crc = _WRAPPER.unpack_from(self.plain.data, header.start)
        content = self.plain[header.start + _WRAPPER.size : header.until]
        found = zlib.crc32(content.data)
        if found != crc:
            raise no_message_at(
                self.fetched,
                header.base_offset,
                f"CRC-32 of what would be compressed is {found:08x}, it says {crc:08x}",
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
        """Add the messages in `content`, numbered from `first_index`; return the next number."""
        if depth > MOST_NESTED:
            raise corrupt(
                self.fetched,
                outer.base_offset,
                f"messages are compressed in one another more than {MOST_NESTED} times",
            )
        description = f"a compressed message of {outer.until - outer.start} bytes"
        at, until = self.unpack(
            codec,
            content,
            outer.base_offset,
            description,
            already=self.unpacked_size - already_from,
        )
        source, index = frozen(self.unpacked), first_index
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
        """(where it ends, codec) of the compressed entry at `at`. Raises CorruptData when it is
        none.
        """
        if until - at < _WRAPPER.size:
            raise self._damaged(outer, f"{until - at} bytes in it are no message")
        length, magic, attributes, crc = _WRAPPER.unpack_from(source.data, at)
        ends, codec = at + PHYSICAL_ENTRY_BYTES + length, attributes & _JAFKA_CODEC_BITS
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
                outer, f"CRC-32 of a message in it is {found:08x}, it says {crc:08x}"
            )
        return ends, codec

    def _damaged(self, outer: MessagesHeader, message: str) -> Exception:
        return corrupt(
            self.fetched,
            outer.base_offset,
            f"a compressed message of {outer.until - outer.start} bytes is damaged: {message}",
        )
