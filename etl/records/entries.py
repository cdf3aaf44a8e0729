"""What does the records field contain, and which of it becomes rows?

Lives here: what all decoders receive and return, before anything is decompressed or decoded, and
how damaged bytes are reported.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from etl.errors import CorruptData, MisalignedOffset
from etl.kafka.messages import FetchedPartition
from etl.settings.choices import MAX_RECORD_BYTES

NO_EPOCH = -1
"""Leader epoch of records without one, as in record batches v2."""

_MAGIC_AT, _TIMESTAMP_OF_V1_AT, _MAX_TIMESTAMP_AT, _TIMESTAMP = 16, 18, 35, struct.Struct(">q")
_CODEC_BITS, _TRANSACTIONAL_BIT, _CONTROL_BIT = 0x07, 0x10, 0x20


class BatchHeader(NamedTuple):
    """Header and place of one record batch. A tuple, because there may be 100,000 per second."""

    base_offset: int
    start: int
    """Place of its first byte in the records field."""
    until: int
    """Place after its last byte."""
    crc: int
    attributes: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    records: int
    """How many are left in it; compaction makes them fewer."""
    leader_epoch: int
    """Of the leader that wrote it (KIP-101)."""

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_BITS


class MessagesHeader(NamedTuple):
    """Adjacent messages of an older format, or one wrapper. With byte offsets `base_offset` is the
    start of the first entry, and `last_offset` + 1 that of the next one.
    """

    base_offset: int
    """Of the first message; for a wrapper, whose content is unknown, one after the previous entry.
    """
    start: int
    """Place of the first byte in the records field."""
    until: int
    """Place after the last byte."""
    last_offset: int
    records: int
    """0 for a wrapper, whose content is unknown."""
    codec: int = 0
    """Of a wrapper; 0: uncompressed messages."""
    magic: int = 0
    """Of a wrapper."""
    follows: int = 0
    """One past the entry before; 0 at the beginning of an answer."""

    @property
    def leader_epoch(self) -> int:
        return NO_EPOCH


Header = BatchHeader | MessagesHeader


@dataclass(frozen=True, slots=True)
class Walk:
    """The complete entries of one response, and the size of a truncated one."""

    batches: tuple[Header, ...]
    """Record batches v2 one by one; messages of older formats many at a time."""
    incomplete_bytes: int = 0
    """0: none is truncated. 1: too few bytes to tell. Else the size of the truncated entry."""


def largest_timestamp(records: memoryview) -> int | None:
    """Return the largest timestamp of the first record batch or message, in ms; None without one,
    or if its header is truncated. Message sets v0 have none, a wrapper v1 has the largest inside, a
    record batch has it in its header. Producers without timestamps write -1.
    """
    if len(records) < _MAGIC_AT + 1:
        return None
    at = {1: _TIMESTAMP_OF_V1_AT, 2: _MAX_TIMESTAMP_AT}.get(records[_MAGIC_AT])
    if at is None or len(records) < at + _TIMESTAMP.size:
        return None
    found: int = _TIMESTAMP.unpack_from(records, at)[0]
    return found if found >= 0 else None


MAX_UNPACKED_BYTES = 128 << 20
"""Largest decompressed size of a record batch or wrapper. Reserved once per thread; only used pages
become resident.
"""

_LOG = "Check the log on the broker (kafka-dump-log), its disks, and the network between"


@dataclass(slots=True)
class Counts:
    """Records that became no rows, of one walk through a range."""

    control_records: int = 0
    aborted_records: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records become rows, with which columns."""

    from_offset: int
    until_offset: int
    columns: Collection[str]
    skips_aborted: bool
    incarnation: int = 0
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES
    """Largest decompressed size of a record batch or wrapper."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """Largest size of a record in the selected columns."""


def place_of(fetched: FetchedPartition) -> dict[str, Any]:
    """Which log an error is about."""
    return {"topic": fetched.topic, "partition": fetched.partition, "broker_id": fetched.broker_id}


def corrupt(fetched: FetchedPartition, offset: int, message: str) -> CorruptData:
    return CorruptData(message, action=_LOG, **place_of(fetched), offset=offset)


def no_message_at(fetched: FetchedPartition, position: int, message: str) -> MisalignedOffset:
    """Return the error for bytes that are no message at a byte offset: the next one cannot be
    found.
    """
    return MisalignedOffset(
        f"No message is at this byte position: {message}",
        action="Check whether another client moved the group's offset to a position inside a message, and the log on the broker for damage",
        **place_of(fetched),
        offset=position,
    )
