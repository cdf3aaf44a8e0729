"""How does one walk through an offset range, without socket, clock or Spark?

    while not cursor.done:
        ask for cursor.position with cursor.max_bytes
        for arrow_batch in cursor.feed(answer): ...        # read to its end before the next feed
        where cursor.starved: wait, up to a deadline

The position moves when `feed` is called, so the next request is sent while this answer is decoded.

- Records below the position or beyond `until` are dropped. The position follows record batches, not
  records: compaction and transaction markers leave offsets without rows. The range is done when
  the next offset reaches `until`.
- A truncated record batch is skipped, unless nothing complete came before it: then it is larger
  than the request, which grows up to a limit.
- An empty answer without an error: if the readable end is below `until`, the log must grow back
  (`starved`). Otherwise only compaction can leave nothing up to the end: on a topic that may have
  such holes the range is complete after several such answers. On any other the records exist and
  are not returned (`silent`), as with slow remote storage (KIP-405).
- Offsets between two record batches that neither has (`missing`) were compacted, if the topic is,
  else lost. Offsets missing inside a batch were always compacted.
- Messages of formats v0 and v1 are batches of their own, a wrapper is one.
- On Jafka nothing is missing inside a range, which begins and ends at entries.

Not here: sending requests, waiting and retries (etl/reader/fetch.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etl.decide.partition_identity import EPOCHS_KEPT
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
from etl.kafka.messages import EntryLayout, FetchedPartition
from etl.model.columns import raw_columns
from etl.model.partitions import BrokerPartition, Cleanup, Isolation, Leader
from etl.model.plans import GAPS_KEPT, OffsetRange, RangeResult
from etl.model.security import OPEN, Security
from etl.records.decode import decode, walk_entries
from etl.records.entries import (
    MAX_UNPACKED_BYTES,
    NO_EPOCH,
    BatchHeader,
    Counts,
    Selection,
    Walk,
    no_message_at,
)
from etl.records.kernel_cache import MAX_HOLES, Tally
from etl.records.message_kernel import PHYSICAL_ENTRY_BYTES
from etl.settings.choices import MAX_RECORD_BYTES

MISSING_MAX = MAX_HOLES
"""Number of missing intervals that are kept; all are counted."""


class PassedBatches:
    """Notes of the record batches that a walk through `range` passed by; where compaction
    `explains_missing` offsets, none are noted.
    """

    def __init__(self, range: OffsetRange, *, explains_missing: bool) -> None:
        self._range, self._explains_missing = range, explains_missing
        self._epochs: list[tuple[int, int]] = []
        self.last_epoch: int | None = None
        """The leader epoch of the record batch that holds the last offset of the range; None until
        one does.
        """
        self.missing: list[tuple[int, int]] = []
        self.missing_count = 0

    def note(self, found: Walk, position: int) -> None:
        """Add the record batches of one response, requested from `position`; the last may end
        beyond `until`.
        """
        self._note_epochs(found)
        if not self._explains_missing:
            self._note_missing(found, position)

    @property
    def newest_epochs(self) -> tuple[tuple[int, int], ...]:
        """The last `EPOCHS_KEPT` leader epochs, each with the first offset of the range that was
        written in it.
        """
        return tuple(self._epochs[-EPOCHS_KEPT:])

    def _note_missing(self, found: Walk, position: int) -> None:
        """Add offsets from `position` on that no record batch has. For older formats the decoder
        does that.
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
        """Epochs only rise, so an answer that begins and ends with the one we have brings no other."""
        self.last_epoch = _epoch_at(found, self._range.until_offset - 1)
        if not self._epochs or self._epochs[-1][0] != found.batches[-1].leader_epoch:
            for batch in found.batches:
                newest = self._epochs[-1][0] if self._epochs else NO_EPOCH
                if newest < batch.leader_epoch and batch.base_offset < self._range.until_offset:
                    self._epochs.append(
                        (batch.leader_epoch, max(batch.base_offset, self._range.from_offset))
                    )


def _epoch_at(found: Walk, offset: int) -> int | None:
    """The leader epoch of the record batch that holds this offset, if one does; only the last two
    can.
    """
    epochs = (
        b.leader_epoch for b in found.batches[-2:] if b.base_offset <= offset <= b.last_offset
    )
    return next((epoch for epoch in epochs if epoch > NO_EPOCH), None)


EMPTY_ANSWERS_THAT_PROVE = 3
"""Empty answers in a row after which the rest of a range counts as compacted away."""


class Cursor:
    """One range on its way from `from_offset` to `until_offset`.

    `fetch_max_bytes`: first request size, `max_batch_bytes`: largest. `columns`: those to build,
    None for all. `max_record_bytes`, `max_unpacked_bytes`: see `entries.Selection`. `cleanup`: the
    topic's cleanup policy. After an exception the cursor is unusable.
    """

    def __init__(
        self,
        range: OffsetRange,
        *,
        isolation: Isolation,
        fetch_max_bytes: int,
        max_batch_bytes: int,
        columns: tuple[str, ...] | None = None,
        incarnation: int = 0,
        max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
        max_record_bytes: int = MAX_RECORD_BYTES,
        cleanup: Cleanup = Cleanup(),
    ) -> None:
        self.range = range
        self._isolation = isolation
        self._limit = max(fetch_max_bytes, max_batch_bytes)
        self._columns = raw_columns(columns, physical=range.log.is_physical)
        self._incarnation, self._max_unpacked_bytes, self._max_record_bytes = (
            incarnation,
            max_unpacked_bytes,
            max_record_bytes,
        )
        self._tally, self._counts = Tally(range.from_offset), Counts()
        self._fetched_bytes, self._empty_answers, self._decoding, self._cut_off = (
            0,
            0,
            False,
            (-1, 0),
        )
        self._passed, self.cleanup = (
            PassedBatches(range, explains_missing=cleanup.explains_missing),
            cleanup,
        )
        self.position = range.from_offset
        """The next offset to ask."""
        self.max_bytes = fetch_max_bytes
        """With how many bytes to ask for this log."""
        self.starved = False
        """The last answer was empty, or less than an entry, and by it the readable end lies below
        `until`: wait, with a deadline, and ask again."""
        self.is_held_back = False
        """The same, while the high watermark is not below it: a transaction is open."""
        self.silent = False
        """The last answer was empty, and by its readable end it should not be: wait, with a
        deadline, and ask again.
        """

    @property
    def done(self) -> bool:
        return self.position >= self.range.until_offset

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Intervals [from, until) that no record batch had and nothing explains, the first
        `MISSING_MAX`; `missing_count` are all.
        """
        between_messages = [] if self.cleanup.explains_missing else self._tally.holes()
        return sorted([*self._passed.missing, *between_messages])[:MISSING_MAX]

    @property
    def missing_count(self) -> int:
        return self._passed.missing_count + (
            0 if self.cleanup.explains_missing else self._tally.hole_count
        )

    def feed(self, fetched: FetchedPartition) -> Iterator[pa.RecordBatch]:
        """Take the answer to the last request, move on, and give its rows as Arrow batches.

        The rows are decoded while the iterator is read, which must happen to its end, and before
        the next `feed`.

        Raises CorruptData, MessageTooLarge, ExpiredOffsets (the position fell below the log start),
        RanOutBeforeUntil (the log ends before the position), or the error of the answer's refusal;
        CorruptData and RecordTooLarge while the iterator is read. Most brokers leave
        `log_start_offset` out of an answer with OFFSET_OUT_OF_RANGE: ask for it and feed the answer
        with it filled in to learn which of the two it is, or else it is a BrokerError.
        """
        self._check_idle()
        if fetched.refusal:
            raise self._refused(fetched, fetched.refusal)
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
        return self._rows(
            decode(
                fetched,
                found.batches,
                Selection(
                    from_offset=fetch_offset,
                    until_offset=self.range.until_offset,
                    columns=self._columns,
                    skips_aborted=self._isolation is Isolation.READ_COMMITTED,
                    incarnation=self._incarnation,
                    max_unpacked_bytes=self._max_unpacked_bytes,
                    max_record_bytes=self._max_record_bytes,
                ),
                self._tally,
                self._counts,
            )
        )

    def pass_over(self, until_offset: int) -> None:
        """Move past records that are gone, up to `until_offset`."""
        self._check_idle()
        self.position = min(max(self.position, until_offset), self.range.until_offset)
        self.starved = self.is_held_back = self.silent = False

    def _rows(self, decoded: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from decoded
        self._decoding = False

    def _check_idle(self) -> None:
        if self._decoding:
            raise EtlError(
                "The rows of the answer before were not read to their end",
                action="Report this bug of the loop around the cursor",
            )

    def _move(self, fetched: FetchedPartition, found: Walk) -> None:
        """Move after the last complete record batch of the response, if there is one."""
        self.starved = self.is_held_back = self.silent = False
        reached = found.batches[-1].last_offset + 1 if found.batches else self.position
        if reached > self.position:
            self._empty_answers = 0
            self._passed.note(found, self.position)
            self.position = min(reached, self.range.until_offset)
        elif found.incomplete_bytes:
            self._empty_answers = 0
            self._grow(fetched, found.incomplete_bytes)
        elif found.batches:
            raise CorruptData(
                f"The broker answered with record batches up to offset {reached - 1} only, all below the offset asked for",
                action=f"Check offset {self.position} on the broker",
                **self._place,
            )
        else:
            self._note_empty(fetched)

    def _note_empty(self, fetched: FetchedPartition) -> None:
        if self._readable_end(fetched) < self.range.until_offset:
            self.starved, self._empty_answers = True, 0
            self.is_held_back = (fetched.high_watermark or 0) >= self.range.until_offset
        elif fetched.proves_empty and not self.cleanup.ends_in_silence:
            self.silent = True
        elif fetched.proves_empty:
            self._empty_answers += 1
            if self._empty_answers >= EMPTY_ANSWERS_THAT_PROVE:
                self.position = self.range.until_offset

    def _readable_end(self, fetched: FetchedPartition) -> int:
        if self._isolation is Isolation.READ_COMMITTED and fetched.last_stable_offset is not None:
            return fetched.last_stable_offset
        return self.position if fetched.high_watermark is None else fetched.high_watermark

    def _grow(self, fetched: FetchedPartition, needed: int) -> None:
        """Request more bytes next time: double, or the size of the truncated record batch."""
        if needed > self._limit and len(fetched.records) < self.max_bytes:
            raise CorruptData(
                f"A record batch claims {needed} bytes, but the answer ends after {len(fetched.records)} of the {self.max_bytes} asked for",
                action="Check whether something between broker and reader cuts answers, and the log on the broker",
                **self._place,
            )
        if fetched.layout is EntryLayout.PHYSICAL and len(fetched.records) < min(
            self.max_bytes, max(needed, PHYSICAL_ENTRY_BYTES)
        ):
            self._note_cut_off(fetched, (self.position, len(fetched.records)))
            return
        if needed > self._limit or self.max_bytes >= self._limit:
            raise MessageTooLarge(
                f"A record batch does not fit into the largest fetch, {self._limit} bytes"
                + (f"; it has {needed}" if needed > 1 else ""),
                action="Check max.message.bytes of the topic",
                **self._place,
            )
        self.max_bytes = min(self._limit, max(2 * self.max_bytes, needed))

    def _note_cut_off(self, fetched: FetchedPartition, found: tuple[int, int]) -> None:
        """Handle a truncated batch that more bytes would not complete. An end below `until` is
        reported before another request.
        """
        if self._cut_off == found:
            raise no_message_at(
                fetched,
                self.position,
                f"it would be cut off, for its segment has {found[1]} bytes from there on",
            )
        self._cut_off, self.starved = found, True

    @property
    def _place(self) -> dict[str, object]:
        return {**self.range.log.place, "offset": self.position}

    def _refused(self, fetched: FetchedPartition, refusal: BrokerRefusal) -> EtlError:
        if refusal.meaning is Meaning.OUT_OF_RANGE:
            return self._out_of_range(fetched)
        return refusal.error("fetch", **self._place)

    def _out_of_range(self, fetched: FetchedPartition) -> EtlError:
        log_start, place = fetched.log_start_offset, self._place
        if log_start is None:
            return BrokerError(
                "The offset is out of range, and this broker does not say on which side",
                action="Check log start and end of the partition; a moved leader also answers so",
                **place,
            )
        if self.position < log_start:
            return ExpiredOffsets(
                "The offset was deleted by retention before it was read",
                action="Check the topic's retention",
                **place,
                log_start_offset=log_start,
            )
        return RanOutBeforeUntil(
            f"The log ends at or below {self.position}, the range at {self.range.until_offset}",
            action="Check whether the topic was deleted and made again, or "
            + (
                "the broker lost what was not yet on its disk"
                if self.range.log.is_physical
                else "an unclean leader was elected"
            ),
            **place,
        )

    @property
    def read_so_far(self) -> tuple[int, int, int]:
        """Offsets passed, rows given and bytes fetched."""
        return self.position - self.range.from_offset, self._tally.rows, self._fetched_bytes

    @property
    def receipt(self) -> RangeResult:
        """Return the result so far; of the whole range when `done`.

        rows + control_records + aborted_records + missing_offsets is the number of offsets passed.
        With byte offsets nothing can be counted from them, and nothing is missing.
        """
        self._check_idle()
        tally, counts = self._tally, self._counts
        if self.range.log.is_physical:
            return RangeResult(rows=tally.rows, fetched_bytes=self._fetched_bytes)
        gaps, walked = tally.gaps(), self.position - self.range.from_offset
        all_kept = tally.gap_count <= GAPS_KEPT
        if tally.expected < self.position:
            if len(gaps) < GAPS_KEPT:
                gaps.append((tally.expected, self.position))
            else:
                all_kept = False
        return RangeResult(
            rows=tally.rows,
            fetched_bytes=self._fetched_bytes,
            control_records=counts.control_records,
            aborted_records=counts.aborted_records,
            missing_offsets=walked - tally.rows - counts.control_records - counts.aborted_records,
            gaps=tuple(gaps),
            gaps_complete=all_kept,
            last_epoch=self._passed.last_epoch,
            epochs=self._passed.newest_epochs,
        )


@dataclass(slots=True)
class RangeProgress:
    """One range on its way: its place in the caller's list, its cursor, and what went wrong since
    it last moved.
    """

    index: int
    cursor: Cursor
    leader: Leader | None
    attempts: int = 0
    failure: EtlError | None = None
    idle_since: float | None = None
    """When it was first seen to stand still; None while it moves."""

    @property
    def log(self) -> BrokerPartition:
        return self.cursor.range.log

    def lose_leader(self, failure: EtlError) -> None:
        """The leader is to be looked up again."""
        self.leader, self.failure = None, failure
        self.attempts += 1
        self.idle_for()

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


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Fetch options of one task: everything but its ranges."""

    isolation: Isolation
    bootstrap: tuple[tuple[str, int], ...]
    fetch_max_bytes: int
    max_batch_bytes: int
    retry: int
    backoff_s: float
    deadline_s: float
    timeout_s: float
    max_wait_ms: int
    topic_ids: Mapping[str, str]
    fails_on_loss: bool
    generation: str | None
    """How brokers are to be spoken to that are looked up on the way."""
    security: Security = OPEN


def lose_leaders(walks: Sequence[RangeProgress], failure: EtlError) -> None:
    for walk in walks:
        if not walk.cursor.done:
            walk.lose_leader(failure)


def place_of(walk: RangeProgress) -> dict[str, Any]:
    return {**walk.log.place, "offset": walk.cursor.position}
