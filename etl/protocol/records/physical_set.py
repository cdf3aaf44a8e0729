"""Message sets of Kafka 0.7 and Jafka, whose offsets are byte positions: entries, and entries
inside entries.

Owns where an entry begins and ends, and what is inside a compressed one. Messages become rows in
`message_kernel`.

What holds for them (the classes of Jafka 3.0.6 and Kafka 0.7.2):

- An entry is a length and a message: magic, attributes (magic 1 only), CRC-32 of the payload alone,
  payload. Its offset is where it begins,
  the next one's where it ends; nothing in it says so. Positions inside an entry look like any other bytes.
- A compressed message holds entries; any of them may be compressed again. They have no offsets: a
  message is known by where the outer
  entry begins, and by its number in it, counted from 0 through all that is nested, in order.
- A range begins and ends where entries do, and an entry belongs to the range in which it begins.
  One that reaches beyond the end of the
  range shows that the end is none.
- An answer's last entry may be cut off. What lies in a compressed message is whole, or damaged.
- Magic 0 is never compressed. Bits 0 and 1 of the attributes are the codec (gzip and, in Kafka
  alone, snappy); the others mean nothing.
- A compressed message with nothing in it is legal, and gives no row.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

import pyarrow as pa

from etl.kafka.messages import FetchedPartition
from etl.protocol.records import codecs
from etl.protocol.records.arrow import MessageBuffers
from etl.protocol.records.compiled import Bytes, frozen
from etl.protocol.records.group import Group
from etl.protocol.records.headers import MessagesHeader, Walk
from etl.protocol.records.message_kernel import (
    MAX_OFFSET,
    OWN_TYPE,
    PHYSICAL,
    PHYSICAL_ENTRY_BYTES,
    PHYSICAL_INSIDE,
    SMALLEST_PHYSICAL,
    scan_entries,
)
from etl.protocol.records.selection import Selection, corrupt, no_message_at
from etl.protocol.records.tally import Tally

MOST_NESTED = 16
"""How deep compressed messages may lie in one another. Producers make one of them; a broker takes
what a stack of Java takes.
"""

_CODECS = (codecs.GZIP, codecs.SNAPPY)
_CODEC_BITS = 0x03
_LENGTH, _MAGIC_AT, _ATTRIBUTES_AT = struct.Struct(">i"), 4, 5
_WRAPPER = struct.Struct(">ibbI")
"""Length, magic, attributes and CRC of a compressed entry."""


def walk(fetched: FetchedPartition, from_offset: int, until_offset: int) -> Walk:
    """The whole entries of an answer that was asked for at `from_offset`, up to `until_offset`:
    many at a time, compressed ones alone.

    Raises OffsetInsideMessage where no entry begins, and where one reaches beyond `until_offset`.
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
            return Walk(tuple(found), cut_off_bytes=1)
        ends = at + PHYSICAL_ENTRY_BYTES + _LENGTH.unpack_from(source.data, at)[0]
        codec = _codec_at(fetched, source, at, ends, position, until_offset)
        if ends > source.size:
            return Walk(tuple(found), cut_off_bytes=ends - at)
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
    """The codec of the entry at `at`; 0 for none. Raises OffsetInsideMessage where no entry can be."""
    length, left = ends - at - PHYSICAL_ENTRY_BYTES, source.size - at
    magic = int(source[at + _MAGIC_AT]) if left > _MAGIC_AT else 0
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
    if not magic or left <= _ATTRIBUTES_AT:
        return 0
    codec = int(source[at + _ATTRIBUTES_AT]) & _CODEC_BITS
    if codec and codec not in _CODECS:
        raise no_message_at(
            fetched, position, f"its compression codec would be {codec}, which does not exist"
        )
    return codec


def decode(
    fetched: FetchedPartition, headers: Sequence[MessagesHeader], selection: Selection, tally: Tally
) -> Iterator[pa.RecordBatch]:
    """The rows of these entries, as Arrow batches. Raises CorruptData, OffsetInsideMessage,
    RecordTooLarge.
    """
    group = _EntryGroup(fetched, selection, tally)
    for header in headers:
        if header.codec:
            group.add_compressed(header)
        else:
            row = (0, header.start, header.until, PHYSICAL, header.base_offset, 0, 0, OWN_TYPE, 0)
            group.add_row(row, records=header.records, size=header.until - header.start)
        if group.is_full:
            yield from group.take()
    yield from group.take()


class _EntryGroup(Group):
    """Entries on their way into one Arrow batch."""

    def __init__(self, fetched: FetchedPartition, selection: Selection, tally: Tally) -> None:
        super().__init__(fetched, selection, tally, MessageBuffers)

    def add_compressed(self, header: MessagesHeader) -> None:
        """Make what lies in a compressed entry part of the group, however deep."""
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
        """What `content` holds, its first message with the number `first_index`; the number behind
        its last.
        """
        if depth > MOST_NESTED:
            raise corrupt(
                self.fetched,
                outer.base_offset,
                f"messages are compressed in one another more than {MOST_NESTED} times",
            )
        what = f"a compressed message of {outer.until - outer.start} bytes"
        at, until = self.unpack(
            codec, content, outer.base_offset, what, already=self.unpacked_size - already_from
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
        ends, codec = at + PHYSICAL_ENTRY_BYTES + length, attributes & _CODEC_BITS
        if magic not in (0, 1):
            raise self._damaged(outer, f"a message in it has the magic {magic}")
        if length < SMALLEST_PHYSICAL + magic or ends > until:
            left = until - at - PHYSICAL_ENTRY_BYTES
            raise self._damaged(
                outer, f"a message in it has a length of {length}, where {left} bytes are left"
            )
        if codec not in _CODECS:
            raise self._damaged(
                outer, f"a message in it has the compression codec {codec}, which does not exist"
            )
        found = zlib.crc32(source[at + _WRAPPER.size : ends].data)
        if found != crc:
            raise self._damaged(
                outer, f"CRC-32 of a message in it is {found:08x}, it says {crc:08x}"
            )
        return ends, codec

    def _damaged(self, outer: MessagesHeader, what: str) -> Exception:
        return corrupt(
            self.fetched,
            outer.base_offset,
            f"a compressed message of {outer.until - outer.start} bytes is damaged: {what}",
        )
