"""How does a fetched records field become Arrow batches, or Python objects?

Lives here: the choice of the format of each entry, and `Messages`.
Not here: the formats (batch_v2.py, message_sets.py).

From 0.8 on all entries begin alike, and the magic byte determines the format: 2 is batch_v2.py, 0
and 1 are message_sets.py. One response may mix formats. Entries of Jafka and Kafka 0.7 begin
differently; `FetchedPartition.layout` determines it.

`Messages` iterates over records as Python objects, a thousand rows at a time, with the same
decoding and checksums. Rows of tables are never created by it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import pyarrow as pa

from etl.errors import CorruptData, MessageTooLarge
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.model.columns import raw_columns
from etl.records import batch_v2, message_sets
from etl.records.batch_v2 import AbortedTransactions
from etl.records.entries import (
    MAX_UNPACKED_BYTES,
    BatchHeader,
    Counts,
    Header,
    MessagesHeader,
    Selection,
    Walk,
    corrupt,
)
from etl.records.kernel_cache import Tally, read_only_view
from etl.settings.choices import MAX_BATCH_BYTES_MOST

_START_OF_ENTRY = struct.Struct(">qiib")
"""Offset, length, four bytes that differ between formats, magic."""
_LENGTH_AT = 12
"""Bytes of an entry before those that its length counts."""
_SMALLEST_LENGTHS = {
    magic: length
    for magic, length in enumerate((*message_sets.SMALLEST_LENGTHS, batch_v2.SMALLEST_LENGTH))
}


def walk_entries(
    fetched: FetchedPartition,
    from_offset: int,
    until_offset: int,
    *,
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
) -> Walk:
    """Read the headers of the complete entries of a response.

    The request began at `from_offset`. An entry that reaches `until_offset` ends the list: it
    proves that the partition has no more records below. Later bytes are not read, so damage there
    has no effect. CRCs are not checked yet. Raises CorruptData with topic, partition and offset for
    impossible fields; with byte offsets MisalignedOffset, if no message begins at an offset, or one
    crosses `until_offset`.
    """
    if fetched.layout is EntryLayout.PHYSICAL:
        return message_sets.walk_jafka(fetched, from_offset, until_offset)

    records = fetched.records
    size = len(records)
    source = read_only_view(records)
    at = 0
    last_offset = -1
    found: list[Header] = []
    while size - at >= _START_OF_ENTRY.size and last_offset + 1 < until_offset:
        offset, length, _, magic = _START_OF_ENTRY.unpack_from(records, at)
        if length < _SMALLEST_LENGTHS.get(magic, length + 1):
            raise _invalid_entry(fetched, offset, length, magic)
        # A broker that converts records for an old version of Fetch fills the response up with an
        # entry at offset -1 that is longer than the remaining bytes: it is truncated, too.
        until = at + _LENGTH_AT + length
        if until > size:
            return Walk(tuple(found), incomplete_bytes=_LENGTH_AT + length)
        if offset <= last_offset:
            kind = "record batch" if magic == 2 else "message"
            raise corrupt(
                fetched,
                offset,
                f"A {kind} begins at or below offset {last_offset}, the end of the previous one",
            )
        header: Header
        if magic == 2:
            header = batch_v2.read_header(fetched, at, until)
        else:
            header = message_sets.read_header(
                fetched,
                source,
                at,
                until,
                follows=last_offset + 1,
                until_offset=until_offset,
                max_unpacked_bytes=max_unpacked_bytes,
            )
        found.append(header)
        at = header.until
        last_offset = header.last_offset
    if at < size and last_offset + 1 < until_offset:
        return Walk(tuple(found), incomplete_bytes=1)
    return Walk(tuple(found))


def decode(
    fetched: FetchedPartition,
    batches: Sequence[Header],
    selection: Selection,
    tally: Tally,
    counts: Counts,
    aborted: AbortedTransactions | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches`, as found by `walk_entries`, within the selected offsets.

    A caller that decodes them in several calls passes the same `aborted` each time: it follows the
    transaction markers in order.

    The result must be consumed before the buffer of `fetched.records` is reused; `tally` and
    `counts` are correct only then.

    Raises CorruptData for a wrong CRC or structure, RecordTooLarge for a record batch or wrapper
    that would decompress to more than `max_unpacked_bytes`, and for a record with more than
    `max_record_bytes` or too many headers.
    """
    if fetched.layout is EntryLayout.PHYSICAL:
        yield from message_sets.decode_jafka(
            fetched, cast(Sequence[MessagesHeader], batches), selection, tally
        )
        return
    if aborted is None:
        transactions = fetched.aborted if selection.skips_aborted else ()
        aborted = AbortedTransactions(transactions)
    for kind, group in groupby(batches, type):
        headers = list(group)
        if kind is BatchHeader:
            yield from batch_v2.decode(
                fetched, cast(list[BatchHeader], headers), selection, tally, counts, aborted
            )
        else:
            yield from message_sets.decode(
                fetched, cast(list[MessagesHeader], headers), selection, tally
            )


def _invalid_entry(fetched: FetchedPartition, offset: int, length: int, magic: int) -> CorruptData:
    if magic not in _SMALLEST_LENGTHS:
        return corrupt(fetched, offset, f"Magic {magic} is no message format")
    kind = "record batch" if magic == 2 else f"message of format v{magic}"
    return corrupt(fetched, offset, f"A {kind} with a length of {length} is impossible")


_END_OF_ALL = 2**63 - 1
_ROWS_AT_A_TIME = 1000


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """One record of a partition."""

    topic: str
    partition: int
    broker_id: int | None
    """The broker id on Jafka; None on Kafka."""
    offset: int
    """The record's offset. On Jafka the byte position of its entry."""
    message_index: int
    """The record's place among the messages of its entry; 0 on Kafka."""
    next_offset: int
    """The offset to continue at.

    A compressed Jafka entry can only be fetched whole: for its last message it is the end of the
    entry, for the others its start. Continuing there returns messages again, as with Jafka's own
    consumers.
    """
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    """Milliseconds since 1970; None: the format has none."""
    is_append_time: bool | None
    """True if the broker set the timestamp; None: no timestamp."""
    headers: tuple[tuple[str, bytes | None], ...]


class Messages:
    """Iterable of the records of one response from the requested offset on.

    It is valid as long as the bytes of the response.
    """

    def __init__(self, fetched: FetchedPartition) -> None:
        """Read the headers of the entries.

        Raises CorruptData for bytes that are no records, and MisalignedOffset if no message begins
        at the offset.
        """
        self._fetched = fetched
        self._walk = walk_entries(fetched, fetched.asked_offset, _END_OF_ALL)

    @property
    def next_offset(self) -> int:
        """Return the offset to continue at, after the last complete entry.

        Also if the entries have no records (compaction, transactions).
        """
        found = self._walk.batches
        if found:
            return max(self._fetched.asked_offset, found[-1].last_offset + 1)
        return self._fetched.asked_offset

    @property
    def needed_bytes(self) -> int:
        """Return the fetch size for the truncated entry; 0 if a complete entry precedes it.

        1: the size is truncated, too.
        """
        if self._walk.batches:
            return 0
        return self._walk.incomplete_bytes

    def __iter__(self) -> Iterator[DecodedRecord]:
        """Yield each record, in order. A truncated last entry is left to the next fetch.

        Raises CorruptData, RecordTooLarge, and MessageTooLarge if there is only a truncated entry.
        """
        if self.needed_bytes:
            raise self._too_large()

        # One header at a time, so that records before a damaged record batch or wrapper are
        # yielded. Adjacent uncompressed messages share a header: those before a damaged one may be
        # lacking.
        aborted = AbortedTransactions(self._fetched.aborted)
        for header in self._walk.batches:
            rows = self._rows(header, aborted)
            if self._fetched.layout is EntryLayout.PHYSICAL:
                yield from self._with_next(rows, header.last_offset + 1)
            else:
                for row in rows:
                    yield self._record(row, next_offset=row["offset"] + 1)

    def _too_large(self) -> MessageTooLarge:
        """Return the error for a response with only a truncated entry."""
        if self.needed_bytes > 1:
            size = f"its size is {self.needed_bytes:,} bytes"
        else:
            size = "its size is unknown"
        action = f"Raise max_bytes, which may be up to {MAX_BATCH_BYTES_MOST:,}"
        if self._fetched.layout is EntryLayout.PHYSICAL:
            action += ". If a larger fetch does not help, no message begins at this offset"
        received = f"{len(self._fetched.records):,} bytes"
        return MessageTooLarge(
            f"A message does not fit into a fetch of {received}; {size}",
            action=action,
            topic=self._fetched.topic,
            partition=self._fetched.partition,
            broker_id=self._fetched.broker_id,
            offset=self._fetched.asked_offset,
        )

    def _with_next(self, rows: Iterator[dict[str, Any]], end: int) -> Iterator[DecodedRecord]:
        """Yield each record with the offset of the next one, the last one with `end`."""
        previous: dict[str, Any] | None = None
        for row in rows:
            if previous is not None:
                yield self._record(previous, next_offset=row["offset"])
            previous = row
        if previous is not None:
            yield self._record(previous, next_offset=end)

    def _rows(self, header: Header, aborted: AbortedTransactions) -> Iterator[dict[str, Any]]:
        columns = raw_columns(physical=self._fetched.layout is EntryLayout.PHYSICAL)
        selection = Selection(self._fetched.asked_offset, _END_OF_ALL, columns, skips_aborted=True)
        for arrow_batch in decode(
            self._fetched, [header], selection, Tally(self._fetched.asked_offset), Counts(), aborted
        ):
            # As numbers: Python's datetimes end with the year 9999, timestamps of records do not.
            at = arrow_batch.schema.names.index("timestamp")
            plain = arrow_batch.set_column(at, "timestamp", arrow_batch.column(at).cast("int64"))
            for start in range(0, plain.num_rows, _ROWS_AT_A_TIME):
                yield from plain.slice(start, _ROWS_AT_A_TIME).to_pylist()

    def _record(self, row: dict[str, Any], *, next_offset: int) -> DecodedRecord:
        timestamp_ms = None
        is_append_time = None
        if row["timestamp"] is not None:
            timestamp_ms = row["timestamp"] // 1000
            is_append_time = bool(row["timestampType"])
        return DecodedRecord(
            topic=self._fetched.topic,
            partition=self._fetched.partition,
            broker_id=self._fetched.broker_id,
            offset=row["offset"],
            message_index=row.get("message_index") or 0,
            next_offset=next_offset,
            key=row["key"],
            value=row["value"],
            timestamp_ms=timestamp_ms,
            is_append_time=is_append_time,
            headers=tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        )
