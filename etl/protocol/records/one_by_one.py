"""Records of one answer as Python objects, one by one: for a person who looks, and for small
programs. Rows of tables never come this way.

Decoding is that of the pipelines, checksums and all; only what comes of it is made into objects, a
thousand rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from etl.errors import MessageTooLarge
from etl.kafka.messages import EntryLayout, FetchedPartition
from etl.model.columns import raw_columns
from etl.protocol.records.batch_v2 import AbortedTransactions
from etl.protocol.records.decode import decode, walk
from etl.protocol.records.headers import Header
from etl.protocol.records.selection import Counts, Selection
from etl.protocol.records.tally import Tally
from etl.settings.choices import FETCH_LIMIT_BYTES_MOST

_END_OF_ALL = 2**63 - 1
_ROWS_AT_A_TIME = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log."""

    topic: str
    partition: int
    broker_id: int | None
    """Of a physical log; None where the answer's log is known without it."""
    offset: int
    """Its own. In a physical log the byte position of the entry that it came in."""
    message_index: int
    """Its place among the messages of that entry; 0 where each record has an offset."""
    next_offset: int
    """Where to ask for what follows. Of a message inside a compressed entry of a physical log,
    which can only be had whole, where that begins, and of its last one where it ends: who goes on
    behind any other gets some of them again, as the old consumers did."""
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    """Milliseconds since 1970; None: the format has none."""
    is_append_time: bool | None
    """Whether the broker set the timestamp, and not the producer; None: there is none."""
    headers: tuple[tuple[str, bytes | None], ...]


class Messages:
    """The records of one answer, from the offset that was asked for on. Valid as long as the
    answer's bytes are.
    """

    def __init__(self, fetched: FetchedPartition) -> None:
        """Raises CorruptData where the answer holds no records, and OffsetInsideMessage where none
        begins at the offset.
        """
        self._fetched = fetched
        self._walk = walk(fetched, fetched.asked_offset, _END_OF_ALL)

    @property
    def next_offset(self) -> int:
        """Where to ask for what follows: behind the last whole entry. It moves where no record is
        left, too (compaction, transactions).
        """
        found = self._walk.batches
        return (
            max(self._fetched.asked_offset, found[-1].last_offset + 1)
            if found
            else self._fetched.asked_offset
        )

    @property
    def needed_bytes(self) -> int:
        """How large a fetch must be for the entry that is cut off, of which nothing is given, 0
        where some whole one came before it.

        1: too little is there to tell.
        """
        return 0 if self._walk.batches else self._walk.cut_off_bytes

    def __iter__(self) -> Iterator[Record]:
        """Each record, in order. An entry that is cut off at the end is left for the next fetch.

        Raises CorruptData, RecordTooLarge, and MessageTooLarge where nothing but a cut-off entry is
        there: ask with more bytes.
        """
        if self.needed_bytes:
            needs = (
                f"it takes {self.needed_bytes:,}"
                if self.needed_bytes > 1
                else "how many it takes, they do not tell"
            )
            check = f"max_bytes, which may be up to {FETCH_LIMIT_BYTES_MOST:,}"
            if self._fetched.layout is EntryLayout.PHYSICAL:
                check += "; if more bytes bring no more, no message begins at this offset"
            raise MessageTooLarge(
                f"a message does not fit into a fetch of {len(self._fetched.records):,} bytes; {needs}",
                check=check,
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

    def _with_next(self, rows: Iterator[dict[str, Any]], end: int) -> Iterator[Record]:
        """Each leads to where the one behind it lies, the last one to the end."""
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

    def _record(self, row: dict[str, Any], *, next_offset: int) -> Record:
        return Record(
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
