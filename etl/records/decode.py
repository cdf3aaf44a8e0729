"""How does a fetched records field become Arrow batches, or Python objects for a person?

From 0.8 on all entries begin alike, and the magic byte tells the format: 2 is etl/records/batch_v2,
0 and 1 are etl/records/message_sets. One response may mix formats. Entries of Jafka and Kafka 0.7
begin differently; the layout of the response tells that.

`Messages` iterates over records as Python objects, a thousand rows at a time, with the same
decoding and checksums. Rows of tables are never made that way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import pyarrow as pa

from etl.errors import CorruptData, MessageTooLarge
from etl.kafka.messages import EntryLayout, FetchedPartition
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
from etl.records.kernel_cache import Tally, frozen
from etl.settings.choices import MAX_BATCH_BYTES_MOST

_START_OF_ENTRY = struct.Struct(">qiib")
"""Offset, length, four bytes that each format has a use of its own for, magic."""
_LENGTH_AT = 12
"""The length counts from here on."""
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
    """Read the headers of the complete entries of a response to a request at `from_offset`, up to
    `until_offset`.

    An entry that begins at or beyond `until_offset` ends the list: it proves that the log has
    nothing more below. Later bytes are not read, so damage there does no harm. CRCs are not checked
    yet. Raises CorruptData with topic, partition and offset for impossible fields;
    MisalignedOffset, if with byte offsets no message begins at one, or one crosses `until_offset`.
    """
    if fetched.layout is EntryLayout.PHYSICAL:
        return message_sets.walk_jafka(fetched, from_offset, until_offset)
    records, size, at, last_offset = fetched.records, len(fetched.records), 0, -1
    source, found = frozen(records), list[Header]()
    while size - at >= _START_OF_ENTRY.size and last_offset + 1 < until_offset:
        offset, length, _, magic = _START_OF_ENTRY.unpack_from(records, at)
        if length < _SMALLEST_LENGTHS.get(magic, length + 1):
            raise _strange_entry(fetched, offset, length, magic)
        until = at + _LENGTH_AT + length
        if until > size:
            return Walk(tuple(found), incomplete_bytes=_LENGTH_AT + length)
        if offset <= last_offset:
            called = "record batch" if magic == 2 else "message"
            raise corrupt(
                fetched,
                offset,
                f"a {called} begins at or below offset {last_offset}, where the one before it ends",
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
        at, last_offset = header.until, header.last_offset
    return Walk(
        tuple(found), incomplete_bytes=1 if at < size and last_offset + 1 < until_offset else 0
    )


def decode(
    fetched: FetchedPartition,
    batches: Sequence[Header],
    selection: Selection,
    tally: Tally,
    counts: Counts,
    aborted: AbortedTransactions | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of all `batches` that `walk` found, within the selected offsets, as Arrow batches.

    Who decodes them one after the other gives the same `aborted` each time: it is known only to who
    passes the markers in order.

    Read to the end before the buffer below `fetched.records` is used again; `tally` and `counts`
    are right only then.

    Raises CorruptData for a wrong CRC or structure, RecordTooLarge for a record batch or wrapper
    that would decompress to more than `max_unpacked_bytes`, and for a record with more than
    `max_record_bytes` or too many headers.
    """
    if fetched.layout is EntryLayout.PHYSICAL:
        yield from message_sets.decode_jafka(
            fetched, cast(Sequence[MessagesHeader], batches), selection, tally
        )
        return
    aborted = aborted or AbortedTransactions(fetched.aborted if selection.skips_aborted else ())
    for kind, alike in groupby(batches, type):
        if kind is BatchHeader:
            yield from batch_v2.decode(
                fetched, cast(list[BatchHeader], list(alike)), selection, tally, counts, aborted
            )
        else:
            yield from message_sets.decode(
                fetched, cast(list[MessagesHeader], list(alike)), selection, tally
            )


def _strange_entry(fetched: FetchedPartition, offset: int, length: int, magic: int) -> CorruptData:
    if magic not in _SMALLEST_LENGTHS:
        return corrupt(fetched, offset, f"magic {magic} is no message format")
    called = "record batch" if magic == 2 else f"message of format v{magic}"
    return corrupt(fetched, offset, f"a {called} with a length of {length} cannot be")


_END_OF_ALL = 2**63 - 1
_ROWS_AT_A_TIME = 1000


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """One record of a log."""

    topic: str
    partition: int
    broker_id: int | None
    """On Jafka; None if the partition is known otherwise."""
    offset: int
    """Its own. In a physical log the byte position of the entry that it came in."""
    message_index: int
    """Its place among the messages of that entry; 0 where each record has an offset."""
    next_offset: int
    """The offset to continue at. Of a message inside a compressed Jafka entry, which can only be
    fetched whole, the entry's start, and of its last message the entry's end: continuing after
    another one returns some again, as with the original consumers.
    """
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    """Milliseconds since 1970; None: the format has none."""
    is_append_time: bool | None
    """True if the broker set the timestamp; None: no timestamp."""
    headers: tuple[tuple[str, bytes | None], ...]


class Messages:
    """Iterates over the records of one response from the requested offset on, while its bytes are
    valid.
    """

    def __init__(self, fetched: FetchedPartition) -> None:
        """Raises CorruptData where the answer holds no records, and MisalignedOffset where none
        begins at the offset.
        """
        self._fetched = fetched
        self._walk = walk_entries(fetched, fetched.asked_offset, _END_OF_ALL)

    @property
    def next_offset(self) -> int:
        """Return the offset to continue at: after the last complete entry, also without records
        left (compaction, transactions).
        """
        found = self._walk.batches
        if found:
            return max(self._fetched.asked_offset, found[-1].last_offset + 1)
        return self._fetched.asked_offset

    @property
    def needed_bytes(self) -> int:
        """Return the fetch size for the truncated entry if nothing complete came before it, else 0.
        1: too few bytes to tell.
        """
        return 0 if self._walk.batches else self._walk.incomplete_bytes

    def __iter__(self) -> Iterator[DecodedRecord]:
        """Yield each record, in order. A truncated last entry is left to the next fetch. Raises
        CorruptData, RecordTooLarge, and MessageTooLarge if there is only a truncated entry.
        """
        if self.needed_bytes:
            if self.needed_bytes > 1:
                needs = f"it takes {self.needed_bytes:,}"
            else:
                needs = "how many it takes, they do not tell"
            action = f"Raise max_bytes, which may be up to {MAX_BATCH_BYTES_MOST:,}"
            if self._fetched.layout is EntryLayout.PHYSICAL:
                action += "; if more bytes bring no more, no message begins at this offset"
            raise MessageTooLarge(
                f"A message does not fit into a fetch of {len(self._fetched.records):,} bytes; {needs}",
                action=action,
                topic=self._fetched.topic,
                partition=self._fetched.partition,
                broker_id=self._fetched.broker_id,
                offset=self._fetched.asked_offset,
            )
        # One after the other, so that those before a damaged one are given.
        aborted = AbortedTransactions(self._fetched.aborted)
        for header in self._walk.batches:
            rows = self._rows(header, aborted)
            if self._fetched.layout is EntryLayout.PHYSICAL:
                yield from self._with_next(rows, header.last_offset + 1)
            else:
                yield from (self._record(row, next_offset=row["offset"] + 1) for row in rows)

    def _with_next(self, rows: Iterator[dict[str, Any]], end: int) -> Iterator[DecodedRecord]:
        """Link each record to the next one's offset, the last to the end."""
        before: dict[str, Any] | None = None
        for row in rows:
            if before is not None:
                yield self._record(before, next_offset=row["offset"])
            before = row
        if before is not None:
            yield self._record(before, next_offset=end)

    def _rows(self, header: Header, aborted: AbortedTransactions) -> Iterator[dict[str, Any]]:
        columns = raw_columns(physical=self._fetched.layout is EntryLayout.PHYSICAL)
        selection = Selection(self._fetched.asked_offset, _END_OF_ALL, columns, skips_aborted=True)
        for arrow_batch in decode(
            self._fetched, [header], selection, Tally(self._fetched.asked_offset), Counts(), aborted
        ):
            # As numbers: Python's own moments end with the year 9999, and what a producer sends
            # does not.
            at = arrow_batch.schema.names.index("timestamp")
            plain = arrow_batch.set_column(at, "timestamp", arrow_batch.column(at).cast("int64"))
            for start in range(0, plain.num_rows, _ROWS_AT_A_TIME):
                yield from plain.slice(start, _ROWS_AT_A_TIME).to_pylist()

    def _record(self, row: dict[str, Any], *, next_offset: int) -> DecodedRecord:
        return DecodedRecord(
            topic=self._fetched.topic,
            partition=self._fetched.partition,
            broker_id=self._fetched.broker_id,
            offset=row["offset"],
            message_index=row.get("message_index") or 0,
            next_offset=next_offset,
            key=row["key"],
            value=row["value"],
            timestamp_ms=None if row["timestamp"] is None else row["timestamp"] // 1000,
            is_append_time=None if row["timestamp"] is None else bool(row["timestampType"]),
            headers=tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        )
