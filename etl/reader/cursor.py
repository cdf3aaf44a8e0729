"""The position in one offset range, and the rows of its responses; no socket, clock or Spark.

    while not cursor.done:
        response = fetch(cursor.position, cursor.max_bytes)
        for arrow_batch in cursor.feed(response): ...      # read to its end before the next feed
        if cursor.starved: wait, up to a deadline

The position moves when `feed` is called, so the next request is sent while this response is
decoded.

- Records below the position or beyond `until` are dropped. The position follows record batches, not
  records: compaction and transaction markers leave offsets without rows. The range is done when
  the next offset reaches `until`.
- A truncated record batch is skipped, unless nothing complete came before it: then it is larger
  than the request, which grows up to a limit.
- An empty response without an error proves nothing by itself: brokers send it when throttled, too.
  If the readable end is below `until`, the partition must grow back (`starved`). Otherwise only
  compaction can leave nothing up to the end (a transaction leaves record batches): on a topic that
  may have such gaps the range is complete after several such responses. On any other topic the
  records exist and are not returned (`silent`), as with remote storage that is slower than
  `remote.fetch.max.wait.ms` (KIP-405). An unknown cleanup policy is no proof of compaction.
- Offsets between two record batches that neither has (`missing`) were compacted, if the topic is,
  else lost: a broker that finds a segment gone starts without an error, and skips it. Offsets
  missing inside a batch were always compacted: only the cleaner rewrites a batch.
- Messages of formats v0 and v1 are batches of their own, a wrapper is one.
- On Jafka nothing is missing inside a range, which begins and ends at entries.

Not here: sending requests, waiting and retries (etl/reader/fetch.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etl.decide.recreated_or_truncated import EPOCHS_KEPT
from etl.errors import (
    BrokerError,
    BrokerRefusal,
    CorruptData,
    EtlError,
    ExpiredOffsets,
    Meaning,
    MessageTooLarge,
    RanOutBeforeUntil,
)
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.model.columns import raw_columns
from etl.model.partitions import Cleanup, Isolation, Leader, TopicPartition
from etl.model.plans import GAPS_KEPT, OffsetRange, RangeResult
from etl.reader.fetch_options import FetchOptions
from etl.records.decode import decode, walk_entries
from etl.records.entries import (
    NO_EPOCH,
    BatchHeader,
    Counts,
    Selection,
    Walk,
    misaligned,
)
from etl.records.kernel_cache import MAX_HOLES, Tally
from etl.records.message_set_kernel import PHYSICAL_ENTRY_BYTES

MISSING_MAX = MAX_HOLES
"""Number of missing intervals that are kept; all are counted."""


class PassedBatches:
    """Leader epochs and missing offsets of the record batches of a range that were passed.

    `explains_missing`: compaction explains missing offsets, so none are recorded.
    """

    def __init__(self, range: OffsetRange, *, explains_missing: bool) -> None:
        self._range = range
        self._explains_missing = explains_missing
        self._epochs: list[tuple[int, int]] = []
        self.last_epoch: int | None = None
        """The leader epoch of the record batch with the last offset of the range; None until that
        batch is passed.
        """
        self.missing: list[tuple[int, int]] = []
        self.missing_count = 0

    def note(self, found: Walk, position: int) -> None:
        """Add the record batches of one response that was requested from `position`.

        The last batch may end beyond `until`.
        """
        self._note_epochs(found)
        if not self._explains_missing:
            self._note_missing(found, position)

    @property
    def newest_epochs(self) -> tuple[tuple[int, int], ...]:
        """The last `EPOCHS_KEPT` leader epochs, each with its first offset in the range."""
        return tuple(self._epochs[-EPOCHS_KEPT:])

    def _note_missing(self, found: Walk, position: int) -> None:
        """Add offsets from `position` on that no record batch has.

        The decoder does it for older formats.
        """
        expected = position
        for batch in found.batches:
            if isinstance(batch, BatchHeader) and batch.base_offset > expected:
                self._add_missing(expected, min(batch.base_offset, self._range.until_offset))
            expected = max(expected, batch.last_offset + 1)

    def _add_missing(self, from_offset: int, until_offset: int) -> None:
        self.missing_count += 1
        if len(self.missing) < MISSING_MAX:
            self.missing.append((from_offset, until_offset))

    def _note_epochs(self, found: Walk) -> None:
        """Add new leader epochs.

        Epochs only rise, so a response that ends with the newest known epoch has no other.
        """
        self.last_epoch = _epoch_at(found, self._range.until_offset - 1)
        newest = self._epochs[-1][0] if self._epochs else NO_EPOCH
        if self._epochs and newest == found.batches[-1].leader_epoch:
            return
        for batch in found.batches:
            if newest < batch.leader_epoch and batch.base_offset < self._range.until_offset:
                first_offset = max(batch.base_offset, self._range.from_offset)
                self._epochs.append((batch.leader_epoch, first_offset))
                newest = batch.leader_epoch


def _epoch_at(found: Walk, offset: int) -> int | None:
    """Return the leader epoch of the record batch with this offset; only the last two can have it.

    None if neither has it, or its epoch is unknown.
    """
    for batch in found.batches[-2:]:
        if batch.base_offset <= offset <= batch.last_offset and batch.leader_epoch > NO_EPOCH:
            return batch.leader_epoch
    return None


LEAST_FETCH_BYTES = 64 << 10
"""No fetch is made smaller than this for a slow line; one record batch comes in any case."""
EMPTY_RESPONSES_THAT_PROVE = 3
"""Empty responses in a row after which the rest of a range counts as compacted away."""


class Cursor:
    """The position in one range, from `from_offset` to `until_offset`, and its counts.

    `columns`: those to build, None for all. `cleanup`: the topic's cleanup policy. `first_bytes`:
    size of the first request; None: as the options have it. After an exception the cursor is
    unusable.
    """

    def __init__(
        self,
        range: OffsetRange,
        options: FetchOptions,
        *,
        columns: tuple[str, ...] | None = None,
        incarnation: int = 0,
        cleanup: Cleanup = Cleanup(),
        first_bytes: int | None = None,
    ) -> None:
        if first_bytes is None:
            first_bytes = options.fetch_max_bytes
        self.range = range
        self._isolation = options.isolation
        self._first_bytes = first_bytes
        self._limit = max(first_bytes, options.max_batch_bytes)
        self._columns = raw_columns(columns, physical=range.partition.is_physical)
        self._incarnation = incarnation
        self._max_unpacked_bytes = options.max_unpacked_bytes
        self._max_record_bytes = options.max_record_bytes
        self._tally = Tally(range.from_offset)
        self._counts = Counts()
        self._fetched_bytes = 0
        self._empty_responses = 0
        self._decoding = False
        self._least_bytes = LEAST_FETCH_BYTES
        """No smaller request: the size of the next record batch, if a response truncated it."""
        self._truncated_at = (-1, 0)
        """Position and size of the last response with only a truncated entry (Jafka)."""
        self.cleanup = cleanup
        self._passed = PassedBatches(range, explains_missing=cleanup.explains_missing)
        self.position = range.from_offset
        """The next offset to request."""
        self.max_bytes = first_bytes
        """The size to request of this partition."""
        self.starved = False
        """The last response was empty, or less than an entry, and by it the readable end is below
        `until`: wait, with a deadline, and request again.
        """
        self.is_held_back = False
        """`starved`, and the high watermark is not below `until`: a transaction is open."""
        self.silent = False
        """The last response was empty, and by its readable end it should not be: wait, with a
        deadline, and request again.
        """

    @property
    def done(self) -> bool:
        """True if the position reached `until`."""
        return self.position >= self.range.until_offset

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Unexplained intervals [from, until) that no record batch had: the first `MISSING_MAX`."""
        intervals = list(self._passed.missing)
        if not self.cleanup.explains_missing:
            intervals += self._tally.holes()
        return sorted(intervals)[:MISSING_MAX]

    @property
    def missing_count(self) -> int:
        """Number of all unexplained intervals."""
        count = self._passed.missing_count
        if not self.cleanup.explains_missing:
            count += self._tally.hole_count
        return count

    def feed(self, fetched: FetchedPartition) -> Iterator[pa.RecordBatch]:
        """Move the position after the response to the last request, and return its Arrow batches.

        The rows are decoded while the iterator is read, which must happen to its end, and before
        the next `feed`.

        Raises CorruptData, MessageTooLarge, ExpiredOffsets (the position is below the log start),
        RanOutBeforeUntil (the partition ends below the position), or the error of the response;
        CorruptData and RecordTooLarge while the iterator is read. Most brokers leave
        `log_start_offset` out of a response with OFFSET_OUT_OF_RANGE. Request it and feed the
        response with it, to get one of the two errors instead of a BrokerError.
        """
        self._check_idle()
        if fetched.refusal:
            raise self._error_of(fetched, fetched.refusal)
        self._fetched_bytes += len(fetched.records)
        fetch_offset = self.position
        found = walk_entries(
            fetched,
            fetch_offset,
            self.range.until_offset,
            max_unpacked_bytes=self._max_unpacked_bytes,
        )
        self._move(fetched, found)
        if not found.batches or self.position == fetch_offset:
            return iter(())
        self._decoding = True
        selection = Selection(
            from_offset=fetch_offset,
            until_offset=self.range.until_offset,
            columns=self._columns,
            skips_aborted=self._isolation is Isolation.READ_COMMITTED,
            incarnation=self._incarnation,
            max_unpacked_bytes=self._max_unpacked_bytes,
            max_record_bytes=self._max_record_bytes,
        )
        return self._rows(decode(fetched, found.batches, selection, self._tally, self._counts))

    def request_less(self) -> bool:
        """Request half of the bytes next time; False if there is no smaller request."""
        if self.max_bytes <= self._least_bytes:
            return False
        self.max_bytes = max(self._least_bytes, self.max_bytes // 2)
        return True

    def request_more(self) -> None:
        """Request twice the bytes next time, up to the size of the first request."""
        if self.max_bytes < self._first_bytes:
            self.max_bytes = min(self._first_bytes, 2 * self.max_bytes)

    def pass_over(self, until_offset: int) -> None:
        """Move past records that are gone, up to `until_offset`."""
        self._check_idle()
        self.position = min(max(self.position, until_offset), self.range.until_offset)
        self._least_bytes = LEAST_FETCH_BYTES
        self._reset_waiting()

    def _rows(self, decoded: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from decoded
        self._decoding = False

    def _check_idle(self) -> None:
        if self._decoding:
            raise EtlError(
                "The rows of the previous response were not read to their end",
                action="Report this bug of the loop around the cursor",
            )

    def _reset_waiting(self) -> None:
        self.starved = False
        self.is_held_back = False
        self.silent = False

    def _move(self, fetched: FetchedPartition, found: Walk) -> None:
        """Move after the last complete record batch of the response, if there is one."""
        self._reset_waiting()
        next_offset = found.batches[-1].last_offset + 1 if found.batches else self.position
        if next_offset > self.position:
            self._empty_responses = 0
            self._least_bytes = LEAST_FETCH_BYTES
            self._passed.note(found, self.position)
            self.position = min(next_offset, self.range.until_offset)
        elif fetched.cut is not None:
            return
        elif found.incomplete_bytes:
            self._empty_responses = 0
            self._grow(fetched, found.incomplete_bytes)
        elif found.batches:
            raise CorruptData(
                f"The broker answered with record batches up to offset {next_offset - 1} only,"
                " all below the requested offset",
                action=f"Check offset {self.position} on the broker",
                **self._place,
            )
        else:
            self._note_empty(fetched)

    def _note_empty(self, fetched: FetchedPartition) -> None:
        if self._readable_end(fetched) < self.range.until_offset:
            self.starved = True
            self._empty_responses = 0
            self.is_held_back = (fetched.high_watermark or 0) >= self.range.until_offset
        elif fetched.proves_empty and not self.cleanup.ends_in_silence:
            self.silent = True
        elif fetched.proves_empty:
            self._empty_responses += 1
            if self._empty_responses >= EMPTY_RESPONSES_THAT_PROVE:
                self.position = self.range.until_offset

    def _readable_end(self, fetched: FetchedPartition) -> int:
        if self._isolation is Isolation.READ_COMMITTED and fetched.last_stable_offset is not None:
            return fetched.last_stable_offset
        if fetched.high_watermark is None:
            return self.position
        return fetched.high_watermark

    def _grow(self, fetched: FetchedPartition, needed: int) -> None:
        """Request more bytes next time: double, or the size of the truncated record batch."""
        received = len(fetched.records)
        if needed > self._limit and received < self.max_bytes:
            raise CorruptData(
                f"A record batch claims {needed} bytes, but the response ends after {received} of"
                f" the {self.max_bytes} requested",
                action="Check whether something between broker and reader truncates responses,"
                " and the log on the broker",
                **self._place,
            )
        if fetched.layout is EntryLayout.PHYSICAL:
            sufficient = max(needed, PHYSICAL_ENTRY_BYTES)
            if received < min(self.max_bytes, sufficient):
                self._note_truncated_entry(fetched, (self.position, received))
                return
        if needed > self._limit or self.max_bytes >= self._limit:
            message = f"A record batch does not fit into the largest fetch, {self._limit} bytes"
            if needed > 1:
                message += f"; it has {needed}"
            raise MessageTooLarge(
                message,
                action="Check max.message.bytes of the topic. For such batches raise"
                " source.max_batch_bytes",
                **self._place,
            )
        self._least_bytes = max(LEAST_FETCH_BYTES, needed)
        self.max_bytes = min(self._limit, max(2 * self.max_bytes, needed))

    def _note_truncated_entry(self, fetched: FetchedPartition, found: tuple[int, int]) -> None:
        """Wait after a truncated entry that more bytes would not complete.

        `found`: position and size of the response. Raises MisalignedOffset at the second such
        response. The first one lets the caller report an end below `until` before.
        """
        if self._truncated_at == found:
            raise misaligned(
                fetched,
                self.position,
                f"it would be cut off, for its segment has {found[1]} bytes from there on",
            )
        self._truncated_at = found
        self.starved = True

    @property
    def _place(self) -> dict[str, object]:
        return {**self.range.partition.place, "offset": self.position}

    def _error_of(self, fetched: FetchedPartition, refusal: BrokerRefusal) -> EtlError:
        if refusal.meaning is Meaning.OUT_OF_RANGE:
            return self._out_of_range(fetched)
        return refusal.error("fetch", **self._place)

    def _out_of_range(self, fetched: FetchedPartition) -> EtlError:
        log_start = fetched.log_start_offset
        place = self._place
        if log_start is None:
            return BrokerError(
                "The offset is out of range, and this broker does not report on which side",
                action="Check log start and end of the partition."
                " After a leader change a new leader can answer so, too",
                **place,
            )
        if self.position < log_start:
            return ExpiredOffsets(
                "The offset was deleted by retention before it was read",
                action="Check the topic's retention",
                **place,
                log_start_offset=log_start,
            )
        if self.range.partition.is_physical:
            cause = "the broker lost what was not yet on its disk"
        else:
            cause = "an unclean leader was elected"
        return RanOutBeforeUntil(
            f"The partition ends at or below {self.position},"
            f" the range at {self.range.until_offset}",
            action=f"Check whether the topic was deleted and recreated, or {cause}",
            **place,
        )

    @property
    def read_so_far(self) -> tuple[int, int, int]:
        """Offsets passed, rows returned and bytes fetched."""
        return self.position - self.range.from_offset, self._tally.rows, self._fetched_bytes

    @property
    def result(self) -> RangeResult:
        """Return the result so far; of the whole range when `done`.

        rows + control_records + aborted_records + missing_offsets is the number of offsets passed.
        With byte offsets nothing can be counted from them, and nothing is missing.
        """
        self._check_idle()
        tally = self._tally
        counts = self._counts
        if self.range.partition.is_physical:
            return RangeResult(rows=tally.rows, fetched_bytes=self._fetched_bytes)
        gaps = tally.gaps()
        gaps_complete = tally.gap_count <= GAPS_KEPT
        if tally.expected < self.position:
            if len(gaps) < GAPS_KEPT:
                gaps.append((tally.expected, self.position))
            else:
                gaps_complete = False
        passed = self.position - self.range.from_offset
        counted = tally.rows + counts.control_records + counts.aborted_records
        return RangeResult(
            rows=tally.rows,
            fetched_bytes=self._fetched_bytes,
            control_records=counts.control_records,
            aborted_records=counts.aborted_records,
            missing_offsets=passed - counted,
            gaps=tuple(gaps),
            gaps_complete=gaps_complete,
            last_epoch=self._passed.last_epoch,
            epochs=self._passed.newest_epochs,
        )


@dataclass(slots=True)
class RangeProgress:
    """One range that is being read: its index in the caller's list, its cursor, and its failures
    since the position moved last.
    """

    index: int
    cursor: Cursor
    leader: Leader | None
    topic_id: str | None = None
    """The topic's id when the range was planned; None: unknown."""
    attempts: int = 0
    failure: EtlError | None = None
    idle_since: float | None = None
    """Time of the first observation that the position did not move; None while it moves."""
    cuts: int = 0
    """Responses that the deadline cut, less those that arrived whole since."""

    @property
    def partition(self) -> TopicPartition:
        """The partition of the range."""
        return self.cursor.range.partition

    def lose_leader(self, failure: EtlError) -> None:
        """Forget the leader after a failure, so that it is looked up again."""
        self.leader = None
        self.failure = failure
        self.attempts += 1
        self.idle_for()

    def note_cut(self) -> bool:
        """Request less next time: the deadline cut the response. False if there is no less.

        Attempts are counted anew while requests shrink. Otherwise they would end before requests
        are small enough for the line.
        """
        self.cuts += 1
        shrinks = self.cursor.request_less()
        if shrinks:
            self.note_progress()
        return shrinks

    def note_whole(self) -> None:
        """Request more again after a cut: this response arrived whole, and has records."""
        if self.cuts:
            self.cuts -= 1
            self.cursor.request_more()

    def note_progress(self) -> None:
        """Reset the state of failures: the position moved."""
        self.attempts = 0
        self.failure = None
        self.idle_since = None

    def idle_for(self) -> float:
        """Return how many seconds ago the position moved last, as far as observed."""
        now = time.monotonic()
        if self.idle_since is None:
            self.idle_since = now
        return now - self.idle_since


def max_response_bytes(requested: Sequence[RangeProgress], options: FetchOptions) -> int:
    """Return the size of the next response for these ranges: half for each cut of one."""
    halved = options.fetch_max_bytes >> max(progress.cuts for progress in requested)
    largest = max(progress.cursor.max_bytes for progress in requested)
    return max(halved, largest)


def lose_leaders(ranges: Sequence[RangeProgress], failure: EtlError) -> None:
    """Forget the leader of each range that is not done; see `RangeProgress.lose_leader`."""
    for progress in ranges:
        if not progress.cursor.done:
            progress.lose_leader(failure)


def place_of(progress: RangeProgress) -> dict[str, Any]:
    """Return the places of an error: the partition, and the next offset."""
    return {**progress.partition.place, "offset": progress.cursor.position}
