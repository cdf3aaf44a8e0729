"""Record batches of message format v2 (Kafka 0.11 and later): their headers, CRC, compression and transactions.

Owns the walk over the records field of one fetched partition, from its bytes to Arrow batches. The records inside a
record batch are decompressed by `codecs` and decoded by `kernel`; which offsets are wanted, and what an answer means
for the range, is `cursor`'s.
Knows magic 2 only. Message formats v0 and v1 (magic 0 and 1) are CorruptData that says so.

What holds for every record batch (Kafka protocol, record batch v2; KIP-98):

- A record batch that the answer cuts off at its end is left alone. A length that no record batch can have is an error.
- The CRC-32C covers everything from the attributes on, compressed as it came, and is checked before decompression.
- Control batches are never rows. Under read_committed neither are batches of aborted transactions.
- Attribute bit 6 (KIP-534): the field of the base timestamp then holds the delete horizon. Whoever set it wrote the
  records' deltas against that very value, so timestamps are base plus delta as always; bit 6 changes nothing here.
- Under log append time (bit 3) every record has the batch's max timestamp.
- Offsets inside rise and stay within [base offset, last offset]; gaps are legal (compaction).
- A record batch without records is legal too: it keeps the producer's state.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from etl.errors import CorruptData, RecordTooLarge
from etl.protocol.messages import FetchedPartition
from etl.protocol.records import codecs
from etl.protocol.records.arrow import ColumnBuffers
from etl.protocol.records.kernel import SMALLEST_RECORD, TABLE_WIDTH, Bytes, Tally, count_records
from etl.settings.fetch_sizes import MAX_RECORD_BYTES

MAX_UNPACKED_BYTES = 128 << 20
"""What one record batch may decompress to. Reserved once per thread; only what is used becomes resident memory."""
GROUP_BYTES = 16 << 20
"""Record batches are decoded together until their records come to this many bytes ..."""
GROUP_RECORDS = 1 << 18
"""... or to this many records. How much of them one Arrow batch takes is `columns`'."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH_COUNTS = 12
_CRC_FROM = 21
SMALLEST_LENGTH = _HEADER.size - _BEFORE_LENGTH_COUNTS
_MAX_OFFSET = 2**63 - 1

_CODEC_BITS, _APPEND_TIME_BIT, _TRANSACTIONAL_BIT, _CONTROL_BIT = 0x07, 0x08, 0x10, 0x20
_ABORT = 0

_LOG = "the log on the broker (kafka-dump-log), its disks, and the network between"
_scratch = threading.local()


class BatchHeader(NamedTuple):
    """One record batch: what its header says and where it lies. A tuple, because there may be 100,000 a second."""

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


@dataclass(slots=True)
class Counts:
    """Records that became no rows, of one walk through a range."""

    control_records: int = 0
    aborted_records: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """What of the log becomes rows, and which columns they have."""

    from_offset: int
    until_offset: int
    columns: Collection[str]
    skips_aborted: bool
    log_epoch: int = 0
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES
    """What one record batch may decompress to."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """What one record may have in the chosen columns."""


def read_header(fetched: FetchedPartition, at: int, until: int) -> BatchHeader:
    (base_offset, _, leader_epoch, _, crc, attributes, last_delta, base_timestamp, max_timestamp, producer_id, _, _,
     count) = _HEADER.unpack_from(fetched.records, at)
    header = BatchHeader(
        base_offset, at, until, crc, attributes, base_offset + last_delta, base_timestamp, max_timestamp, producer_id, count,
        leader_epoch)
    if base_offset < 0 or last_delta < 0 or header.last_offset >= _MAX_OFFSET:
        raise corrupt(fetched, base_offset, f"a record batch reaches from offset {base_offset} to {header.last_offset}")
    if not 0 <= count <= last_delta + 1:
        raise corrupt(fetched, base_offset, f"a record batch of {last_delta + 1} offsets claims {count} records")
    if header.codec == 0:
        _check_count(fetched, header, until - at - _HEADER.size)
    elif header.codec not in codecs.NAMES:
        raise corrupt(fetched, base_offset, f"compression codec {header.codec} does not exist")
    return header


def _check_count(fetched: FetchedPartition, header: BatchHeader, size: int) -> None:
    """Refuse a number of records that the bytes cannot hold: no memory is reserved for it. Raises CorruptData."""
    if header.records * SMALLEST_RECORD > size:
        raise corrupt(fetched, header.base_offset, f"a record batch claims {header.records} records in {size} bytes")


def corrupt(fetched: FetchedPartition, offset: int, what: str) -> CorruptData:
    return CorruptData(what, check=_LOG, topic=fetched.topic, partition=fetched.partition, offset=offset)


def decode(fetched: FetchedPartition, batches: Sequence[BatchHeader], selection: Selection, tally: Tally,
           counts: Counts) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` within the selected offsets, as Arrow batches of about GROUP_BYTES each, or of one record that is larger.

    `batches` are all that `walk` found, also those outside the range: the aborted transactions of an answer are only
    understood from its first record batch on, and a CRC vouches also for the one that ended the walk. Read to the end before the buffer
    below `fetched.records` is used again; `tally` and `counts` are right only then.

    Raises CorruptData for a wrong CRC or structure, RecordTooLarge for a record batch that would decompress to more
    than `max_unpacked_bytes`, and for a record with more than `max_record_bytes` or too many headers.
    """
    group = _Group(fetched, selection, tally)
    aborted = _AbortedTransactions(fetched.aborted if selection.skips_aborted else ())
    for header in batches:
        group.check_crc(header)
        skipped = aborted.skips(header, group)
        wanted = header.last_offset >= selection.from_offset and header.base_offset < selection.until_offset
        if not wanted or not header.records:
            continue
        if header.is_control:
            counts.control_records += group.count(header)
        elif skipped:
            counts.aborted_records += group.count(header)
        else:
            group.add(header)
            if group.is_full:
                yield from group.take()
    yield from group.take()


class _AbortedTransactions:
    """Which record batches of one answer belong to aborted transactions (KIP-98)."""

    def __init__(self, aborted: tuple[tuple[int, int], ...]) -> None:
        self._coming = sorted(aborted, key=lambda item: item[1], reverse=True)
        self._producers: set[int] = set()

    def skips(self, header: BatchHeader, group: _Group) -> bool:
        """Whether this batch is to be left out; to be asked of every record batch of the answer, in order."""
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._producers.add(self._coming.pop()[0])
        if header.producer_id not in self._producers:
            return False
        if header.is_control:
            if group.control_type(header) == _ABORT:
                self._producers.discard(header.producer_id)
            return True
        return header.is_transactional


class _Group:
    """Record batches of one answer on their way into one Arrow batch."""

    def __init__(self, fetched: FetchedPartition, selection: Selection, tally: Tally) -> None:
        self._fetched, self._selection, self._tally = fetched, selection, tally
        self._plain = _frozen(np.frombuffer(fetched.records, dtype=np.uint8))
        self._place: dict[str, Any] = {"topic": fetched.topic, "partition": fetched.partition}
        self._empty()

    def _empty(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._records, self._size, self._unpacked_size = 0, 0, 0

    def check_crc(self, header: BatchHeader) -> None:
        # A numpy slice goes in without a copy; google_crc32c takes no memoryview of a writable buffer.
        found = google_crc32c.value(self._plain[header.start + _CRC_FROM:header.until])
        if found != header.crc:
            raise corrupt(self._fetched, header.base_offset, f"CRC-32C of a record batch is {found:08x}, its header says {header.crc:08x}")

    def add(self, header: BatchHeader) -> None:
        """Make the records of `header` part of the group, decompressed where they are compressed."""
        row = self._unpack(header)
        self._rows.append(row)
        self._records += header.records
        self._size += row[2] - row[1]

    @property
    def is_full(self) -> bool:
        return self._size >= GROUP_BYTES or self._records >= GROUP_RECORDS

    def _unpack(self, header: BatchHeader) -> tuple[int, ...]:
        """The row of the group's table that describes `header`."""
        start, until = header.start + _HEADER.size, header.until
        if header.codec:
            target = _scratch_bytes(GROUP_BYTES + self._selection.max_unpacked_bytes)[self._unpacked_size:]
            size = _decompress(self._fetched, header, self._plain[start:until], target[:self._selection.max_unpacked_bytes])
            _check_count(self._fetched, header, size)
            start, until = self._unpacked_size, self._unpacked_size + size
            self._unpacked_size = until
        return (
            int(header.codec != 0), start, until, header.records, header.base_offset, header.last_offset,
            header.base_timestamp, header.max_timestamp, int(bool(header.attributes & _APPEND_TIME_BIT)))

    def count(self, header: BatchHeader) -> int:
        """Records of `header` within the selected offsets."""
        if self._selection.from_offset <= header.base_offset and header.last_offset < self._selection.until_offset:
            return header.records
        kept = self._unpacked_size
        row = self._unpack(header)
        self._unpacked_size = kept
        source = _frozen(_scratch.bytes) if header.codec else self._plain
        return count_records(source, row, self._selection.from_offset, self._selection.until_offset, **self._place)

    def control_type(self, header: BatchHeader) -> int | None:
        """Type of the one record of a control batch (0 abort, 1 commit); None when compaction took it."""
        if not header.records:
            return None
        kept = self._unpacked_size
        compressed, start, until = self._unpack(header)[:3]
        self._unpacked_size = kept
        source = _scratch.bytes if compressed else self._plain
        return _control_type(self._fetched, header, source[start:until].tobytes())

    def take(self) -> Iterator[pa.RecordBatch]:
        """Decode what was added, and start over. Nothing comes when no record lies within the selected offsets."""
        if not self._rows:
            return
        table = np.array(self._rows, dtype=np.int64).reshape(-1, TABLE_WIDTH)
        selection = self._selection
        buffers = ColumnBuffers(
            selection.columns, rows=self._records, size=self._size, max_record_bytes=selection.max_record_bytes)
        unpacked = _frozen(_scratch.bytes) if self._unpacked_size else self._plain
        compressed, monster = self._unpacked_size > 0, self._unpacked_size > 4 * GROUP_BYTES
        self._empty()
        more = True
        while more:
            more = buffers.fill(
                self._plain, unpacked, table, from_offset=selection.from_offset, until_offset=selection.until_offset,
                tally=self._tally, **self._place)
            if monster or (more and compressed):
                _let_go_of_scratch()  # one monster should not stay resident, nor another cursor write over what is still to be decoded
            if buffers.rows:
                yield buffers.arrow_batch(self._fetched.topic, self._fetched.partition, selection.log_epoch)
            if more:
                buffers = buffers.behind()


def _frozen(content: Bytes) -> Bytes:
    """A read-only view: the kernels are compiled for one kind of source only."""
    view = content.view()
    view.flags.writeable = False
    return view


def _scratch_bytes(size: int) -> Bytes:
    """This thread's room to decompress into: used up within one step of `decode`, so cursors may share it."""
    content: Bytes | None = getattr(_scratch, "bytes", None)
    if content is None or content.size < size:
        content = _scratch.bytes = np.empty(size, dtype=np.uint8)
    return content


def _let_go_of_scratch() -> None:
    """Forget this thread's scratch memory: who still has it keeps it, the next to decompress makes another."""
    _scratch.__dict__.pop("bytes", None)


def _decompress(fetched: FetchedPartition, header: BatchHeader, content: Bytes, target: Bytes) -> int:
    """Decompress the records of one batch into `target`; the number of bytes written."""
    try:
        return codecs.decompress(header.codec, content, target)
    except codecs.DoesNotFit as error:
        raise RecordTooLarge(
            f"a record batch of {header.until - header.start} bytes, up to offset {header.last_offset}, decompresses to more than "
            f"{target.size}",
            check="who produced it (such a ratio is rare for data and usual for a decompression bomb)",
            topic=fetched.topic, partition=fetched.partition, offset=header.base_offset) from error
    except ValueError as error:
        raise corrupt(fetched, header.base_offset, f"a record batch is no {codecs.NAMES[header.codec]}: {error}") from error


def _control_type(fetched: FetchedPartition, header: BatchHeader, record: bytes) -> int:
    """The type in a control record's key: int16 version, int16 type.

    Raises CorruptData where there is no such key.
    """
    at = 0
    try:
        _, at = _varint(record, at)  # length
        _, at = _varint(record, at + 1)  # timestamp delta, behind the attributes
        _, at = _varint(record, at)  # offset delta
        size, at = _varint(record, at)
        if size < 4 or at + 4 > len(record):
            raise IndexError
    except IndexError:
        raise corrupt(fetched, header.base_offset, "a control batch holds no control record") from None
    return int.from_bytes(record[at + 2:at + 4], "big", signed=True)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        if shift > 63:
            raise IndexError
