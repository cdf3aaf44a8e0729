"""How are record batches (format v2, Kafka 0.11 and later) read: headers, CRC, transactions?

Lives here: headers, CRC, control batches and aborted transactions.
Not here: decompression (codecs.py), records (batch_kernel.py), earlier formats (message_sets.py).

Rules (Kafka protocol, record batch v2; KIP-98):

- A record batch that the response truncates is skipped. An impossible length is an error.
- The CRC-32C covers all bytes from the attributes on, compressed, and is checked first.
- Control batches are never rows. Under read_committed neither are batches of aborted transactions.
- With attribute bit 6 (KIP-534) the base timestamp field holds the delete horizon. The broker that
  sets it writes the deltas against that value, so timestamps are base plus delta as always.
- With log append time (bit 3) each record has the batch's max timestamp.
- Offsets increase and stay within [base offset, last offset]; gaps are legal (compaction).
- A record batch without records is legal: it keeps the state of a producer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import google_crc32c
import pyarrow as pa

from etl.kafka.request_values import FetchedPartition
from etl.records import codecs
from etl.records.arrow_buffers import BatchBuffers, Group
from etl.records.batch_kernel import SMALLEST_RECORD, count_records
from etl.records.entries import BatchHeader, Counts, Selection, corrupt, place_of
from etl.records.kernel_cache import Tally, read_only_view

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH_COUNTS = 12
_CRC_FROM = 21
SMALLEST_LENGTH = _HEADER.size - _BEFORE_LENGTH_COUNTS
_MAX_OFFSET = 2**63 - 1

_APPEND_TIME_BIT = 0x08
_ABORT = 0


def read_header(fetched: FetchedPartition, at: int, until: int) -> BatchHeader:
    (
        base_offset,
        _,
        leader_epoch,
        _,
        crc,
        attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        _,
        _,
        count,
    ) = _HEADER.unpack_from(fetched.records, at)
    header = BatchHeader(
        base_offset,
        at,
        until,
        crc,
        attributes,
        base_offset + last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        count,
        leader_epoch,
    )
    if base_offset < 0 or last_delta < 0 or header.last_offset >= _MAX_OFFSET:
        raise corrupt(
            fetched,
            base_offset,
            f"A record batch reaches from offset {base_offset} to {header.last_offset}",
        )
    if not 0 <= count <= last_delta + 1:
        raise corrupt(
            fetched,
            base_offset,
            f"A record batch of {last_delta + 1} offsets claims {count} records",
        )
    if header.codec == 0:
        _check_count(fetched, header, until - at - _HEADER.size)
    elif header.codec not in codecs.NAMES:
        raise corrupt(fetched, base_offset, f"Compression codec {header.codec} does not exist")
    return header


def _check_count(fetched: FetchedPartition, header: BatchHeader, size: int) -> None:
    """Reject a record count that the bytes cannot hold, before memory is reserved.

    Raises CorruptData.
    """
    if header.records * SMALLEST_RECORD > size:
        raise corrupt(
            fetched,
            header.base_offset,
            f"A record batch claims {header.records} records in {size} bytes",
        )


def decode(
    fetched: FetchedPartition,
    batches: Sequence[BatchHeader],
    selection: Selection,
    tally: Tally,
    counts: Counts,
    aborted: AbortedTransactions,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` within the selected offsets.

    The Arrow batches have about GROUP_BYTES each, or one record that is larger. `batches` are all
    record batches of the response, also those outside the range: aborted transactions can only be
    followed from its first record batch on, and the CRC of the last one must be checked, too.

    Raises CorruptData for a wrong CRC or structure, RecordTooLarge for a record batch that would
    decompress to more than `max_unpacked_bytes`, and for a record with more than `max_record_bytes`
    or too many headers.
    """
    group = _BatchGroup(fetched, selection, tally)
    for header in batches:
        group.check_crc(header)
        skipped = aborted.skips(header, group.control_type)
        wanted = (
            header.last_offset >= selection.from_offset
            and header.base_offset < selection.until_offset
        )
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


class AbortedTransactions:
    """The record batches of one response that belong to aborted transactions (KIP-98)."""

    def __init__(self, aborted: tuple[tuple[int, int], ...]) -> None:
        # (producer id, first offset), the next one last.
        self._pending = sorted(aborted, key=lambda item: item[1], reverse=True)
        self._producers: set[int] = set()

    def skips(self, header: BatchHeader, control_type: Callable[[BatchHeader], int | None]) -> bool:
        """True if this batch is left out.

        Must be called for each record batch of the response, in order.
        """
        while self._pending and self._pending[-1][1] <= header.last_offset:
            self._producers.add(self._pending.pop()[0])
        if header.producer_id not in self._producers:
            return False
        if header.is_control:
            if control_type(header) == _ABORT:
                self._producers.discard(header.producer_id)
            return True
        return header.is_transactional


class _BatchGroup(Group):
    """Record batches of one response that are decoded together."""

    def __init__(self, fetched: FetchedPartition, selection: Selection, tally: Tally) -> None:
        super().__init__(fetched, selection, tally, BatchBuffers)

    def check_crc(self, header: BatchHeader) -> None:
        # A numpy slice is not copied; google_crc32c rejects a memoryview of a writable buffer.
        found = google_crc32c.value(self.plain[header.start + _CRC_FROM : header.until])
        if found != header.crc:
            raise corrupt(
                self.fetched,
                header.base_offset,
                f"CRC-32C of a record batch is {found:08x}, in its header {header.crc:08x}",
            )

    def add(self, header: BatchHeader) -> None:
        """Add the records of `header` to the group, decompressed if they are compressed."""
        row = self._row(header)
        self.add_row(row, records=header.records, size=row[2] - row[1])

    def _row(self, header: BatchHeader) -> tuple[int, ...]:
        """Return the row of the group's table for `header`."""
        start = header.start + _HEADER.size
        until = header.until
        if header.codec:
            description = (
                f"A record batch of {header.until - header.start} bytes, "
                f"up to offset {header.last_offset},"
            )
            start, until = self.unpack(
                header.codec, self.plain[start:until], header.base_offset, description
            )
            _check_count(self.fetched, header, until - start)
        return (
            int(header.codec != 0),
            start,
            until,
            header.records,
            header.base_offset,
            header.last_offset,
            header.base_timestamp,
            header.max_timestamp,
            int(bool(header.attributes & _APPEND_TIME_BIT)),
        )

    def count(self, header: BatchHeader) -> int:
        """Return the number of records of `header` within the selected offsets."""
        if (
            self.selection.from_offset <= header.base_offset
            and header.last_offset < self.selection.until_offset
        ):
            return header.records
        with self.temporary_unpack():
            row = self._row(header)
        source = read_only_view(self.unpacked) if header.codec else self.plain
        return count_records(
            source,
            row,
            self.selection.from_offset,
            self.selection.until_offset,
            **place_of(self.fetched),
        )

    def control_type(self, header: BatchHeader) -> int | None:
        """Return the type of the one record of a control batch (0 abort, 1 commit).

        None if compaction removed it.
        """
        if not header.records:
            return None
        with self.temporary_unpack():
            compressed, start, until = self._row(header)[:3]
        source = self.unpacked if compressed else self.plain
        return _control_type(self.fetched, header, source[start:until].tobytes())


def _control_type(fetched: FetchedPartition, header: BatchHeader, record: bytes) -> int:
    """Return the type in the key of a control record: int16 version, int16 type.

    Raises CorruptData if there is no such key.
    """
    at = 0
    try:
        _, at = _varint(record, at)  # length
        _, at = _varint(record, at + 1)  # timestamp delta, after the attributes
        _, at = _varint(record, at)  # offset delta
        size, at = _varint(record, at)
        if size < 4 or at + 4 > len(record):
            raise IndexError
    except IndexError:
        raise corrupt(
            fetched, header.base_offset, "A control batch holds no control record"
        ) from None
    return int.from_bytes(record[at + 2 : at + 4], "big", signed=True)


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
