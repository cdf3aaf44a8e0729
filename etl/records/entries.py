"""What does the records field contain, and which records become rows?

Lives here: arguments and results of all decoders (headers, selection, counters), and the errors for
damaged bytes.
Not here: decompression (codecs.py), decoding (batch_v2.py, message_sets.py).
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from etl.errors import CorruptData, MisalignedOffset
from etl.kafka.request_values import FetchedPartition
from etl.settings.choices import MAX_RECORD_BYTES

NO_EPOCH = -1
"""Leader epoch of records without one, as in record batches v2."""

_MAGIC_AT = 16
_TIMESTAMP_OF_V1_AT = 18
_MAX_TIMESTAMP_AT = 35
_TIMESTAMP = struct.Struct(">q")
_CODEC_BITS = 0x07
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20


class BatchHeader(NamedTuple):
    """Header and place of one record batch. A tuple, for speed: there can be 100,000 per second."""

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
    """Number of records in it; compaction reduces it."""
    leader_epoch: int
    """Epoch of the leader that wrote it (KIP-101)."""

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
    """Adjacent messages of an older format, or one wrapper.

    With byte offsets `base_offset` is the start of the first entry, and `last_offset` + 1 the start
    of the next one.
    """

    base_offset: int
    """Offset of the first message.

    In formats v0 and v1 only the content of a wrapper has it: for a wrapper it is one past the last
    offset of the previous entry.
    """
    start: int
    """Place of the first byte in the records field."""
    until: int
    """Place after the last byte."""
    last_offset: int
    records: int
    """Number of messages; 0 for a wrapper, before it is decompressed."""
    codec: int = 0
    """Codec of a wrapper; 0: uncompressed messages."""
    magic: int = 0
    """Magic of a wrapper."""
    follows: int = 0
    """One past the last offset of the previous entry; 0 at the beginning of a response."""

    @property
    def leader_epoch(self) -> int:
        return NO_EPOCH


Header = BatchHeader | MessagesHeader


@dataclass(frozen=True, slots=True)
class Walk:
    """The complete entries of one response, and the size of a truncated one."""

    batches: tuple[Header, ...]
    """Each record batch v2 is an item; many messages of older formats are one item."""
    incomplete_bytes: int = 0
    """Size of the truncated entry. 0: no entry is truncated. 1: the size is truncated, too."""


def largest_timestamp(records: memoryview) -> int | None:
    """Return the largest timestamp of the first record batch or message, in ms.

    None without a timestamp, or if its header is truncated. Message sets v0 have none; a wrapper v1
    and a record batch have the largest one in their header. Producers without timestamps write -1.
    """
    if len(records) < _MAGIC_AT + 1:
        return None
    at = {1: _TIMESTAMP_OF_V1_AT, 2: _MAX_TIMESTAMP_AT}.get(records[_MAGIC_AT])
    if at is None or len(records) < at + _TIMESTAMP.size:
        return None
    found: int = _TIMESTAMP.unpack_from(records, at)[0]
    return found if found >= 0 else None


MAX_UNPACKED_BYTES = 128 << 20
"""Largest decompressed size of a record batch or wrapper.

Each thread reserves it once; only used pages become resident.
"""

_CHECK_LOG = "Check the partition on the broker (kafka-dump-log), its disks, and the network"


@dataclass(slots=True)
class Counts:
    """Numbers of records in a range that became no rows."""

    control_records: int = 0
    aborted_records: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """The offsets and columns of the records that become rows."""

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
    """Return the partition of an error."""
    return {"topic": fetched.topic, "partition": fetched.partition, "broker_id": fetched.broker_id}


def corrupt(fetched: FetchedPartition, offset: int, message: str) -> CorruptData:
    """Return the error for damaged bytes of the entry at `offset`."""
    return CorruptData(message, action=_CHECK_LOG, **place_of(fetched), offset=offset)


def misaligned(fetched: FetchedPartition, position: int, message: str) -> MisalignedOffset:
    """Return the error for a byte offset at which no message begins.

    Any bytes inside a message can look like the length of the next one, so the next start is not
    searched for.
    """
    return MisalignedOffset(
        f"{MisalignedOffset.FOUND_BY_READER}{message}",
        action=(
            "Check whether another client moved the group's offset to a position inside a message, "
            "and the partition on the broker for damage"
        ),
        **place_of(fetched),
        offset=position,
    )
