"""What is the lag of a table, and which offsets does retention delete first?

Lives here: lag in offsets, ranges that expire soon, the time and bytes left before retention
deletes a record.
Not here: lag in records, bytes and time as commands print it (etl/report/lag.py).

Lag is the readable end minus the loaded-until offset: an upper bound of the number of records. A
stored plan counts as lag until it is in the table; for a partition that was never read the lag is
counted from its future start offset. Offsets below the log start do not count. Lag is unknown for a
partition without a leader, and for one that was truncated or recreated.

Brokers delete whole segments, by record time or by size (`retention.ms`, `retention.bytes` with
`cleanup.policy=delete`), some time after they may; times here are the earliest possible. If brokers
do not report their settings, the movement of the log start since the newest plan is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from etl.decide.offsets import start_of, starts_of
from etl.decide.reconcile import compare, naming_table
from etl.decide.recreated_or_truncated import (
    changed_partitions,
    reject_recreated_or_truncated,
    unchanged_until,
)
from etl.errors import NeedsDecision
from etl.model.partitions import OldestRecord, TopicPartition
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import (
    FirstRun,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    UpToDate,
)
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a pipeline: newest plan and loaded-until offsets."""

    last: Plan | None = None
    """The newest plan; None before the first."""
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Loaded-until offset of each partition that was ever read."""
    others: frozenset[TopicPartition] = frozenset()
    """Partitions that were truncated or recreated."""
    refusal: NeedsDecision | None = None
    """The error that a run raises for them."""


def progress_of(state: PipelineState, snapshot: Snapshot) -> Progress:
    """Return the progress of a pipeline in any state."""
    if isinstance(state, FirstRun):
        return Progress()
    if isinstance(state, RebuildFromTable):
        return progress_of(state.state, snapshot)
    if isinstance(state, StoredBackfill):
        return progress_of(state.state, snapshot)
    if isinstance(state, UpToDate):
        unchanged = unchanged_until(state.last, state.positions)
        return _reached(state.last, state.positions, unchanged, snapshot)
    starts = starts_of(state.plan)
    if isinstance(state, Resume):
        return _reached(state.plan, starts, state.plan.loaded_until, snapshot)
    return _reached(state.plan, starts, starts, snapshot)


def progress_of_table(snapshot: Snapshot, settings: Settings) -> Progress | None:
    """Return the progress by ledger and table, also in paused partitions; None if they disagree.

    It does not depend on committed offsets.
    """
    try:
        with naming_table(settings):
            state = compare(snapshot.ledger, snapshot.table, settings.table.place)
    except NeedsDecision:
        return None
    return progress_of(state, snapshot.with_offsets_of_paused())


def _reached(
    plan: Plan,
    positions: Mapping[TopicPartition, int],
    unchanged: Mapping[TopicPartition, int],
    snapshot: Snapshot,
) -> Progress:
    """Return the progress of a pipeline with this newest plan.

    `unchanged`: offsets up to which partitions must be unchanged since the plan.
    """
    try:
        reject_recreated_or_truncated(plan, snapshot, unchanged)
    except NeedsDecision as error:
        changed = changed_partitions(plan, snapshot, unchanged)
        return Progress(plan, positions, changed, error)
    return Progress(plan, positions)


def lag_of(
    partition: TopicPartition, snapshot: Snapshot, so_far: Progress, settings: Settings
) -> int | None:
    """Return the number of readable offsets of a partition that are not in the table.

    None if its end or start is unknown, or if it was truncated or recreated.
    """
    oldest = oldest_unread(partition, snapshot, so_far, settings)
    if oldest is None:
        return None
    # Runs reject a loaded-until offset above the end; it is no negative lag.
    return max(0, snapshot.readable[partition].end_offset - oldest)


def oldest_unread(
    partition: TopicPartition, snapshot: Snapshot, so_far: Progress, settings: Settings
) -> int | None:
    """Return the first unread offset of a partition; None if its lag is unknown."""
    offsets = snapshot.readable.get(partition)
    if offsets is None or partition in so_far.others:
        return None
    start = position_of(partition, snapshot, so_far, settings)
    if start is None:
        return None
    return max(offsets.log_start_offset, start)


def position_of(
    partition: TopicPartition, snapshot: Snapshot, so_far: Progress, settings: Settings
) -> int | None:
    """Return the start offset of the next plan in a partition.

    None if the partition was never read and its start is unknown.
    """
    position = so_far.positions.get(partition)
    if position is None and partition in snapshot.readable:
        position = start_of(partition, snapshot, so_far.last, settings)
    return position


def unread_starts(
    partitions: Iterable[TopicPartition],
    snapshot: Snapshot,
    so_far: Progress | None,
    settings: Settings,
) -> dict[TopicPartition, int]:
    """Return the first unread offset of each of these partitions that is known to lag."""
    if so_far is None:
        return {}
    unread: dict[TopicPartition, int] = {}
    for partition in partitions:
        start = oldest_unread(partition, snapshot, so_far, settings)
        if start is not None and start < snapshot.readable[partition].end_offset:
            unread[partition] = start
    return unread


def total_lag(snapshot: Snapshot, so_far: Progress, settings: Settings) -> int:
    """Return the sum of the known lags of all partitions."""
    total = 0
    for partition in snapshot.readable:
        total += lag_of(partition, snapshot, so_far, settings) or 0
    return total


NEARLY_FULL = 0.9
"""Fraction of `retention.bytes`.

If the records from a range's start on take more, the next records expire that start.
"""


@dataclass(frozen=True, slots=True)
class Expiring:
    """A range with a start that may expire soon."""

    partition: TopicPartition
    from_offset: int
    why: str

    def __str__(self) -> str:
        return f"{self.partition}: {self.why}; its range (from {self.from_offset}) is read first"


def find_expiring(
    ranges: Iterable[OffsetRange], snapshot: Snapshot, *, within_s: float, now_ms: int
) -> tuple[Expiring, ...]:
    """Return the first range of each partition if its start may expire within so many seconds.

    Sorted by partition; with 0 seconds none.
    """
    if not within_s:
        return ()
    starts: dict[TopicPartition, int] = {}
    for r in ranges:
        first = starts.get(r.partition)
        if first is None or r.from_offset < first:
            starts[r.partition] = r.from_offset
    found = []
    for partition, start in starts.items():
        reason = _reason_of_expiry(partition, start, snapshot, within_s, now_ms)
        if reason:
            found.append(Expiring(partition, start, reason))
    return tuple(sorted(found, key=attrgetter("partition")))


def _reason_of_expiry(
    partition: TopicPartition, start: int, snapshot: Snapshot, within_s: float, now_ms: int
) -> str | None:
    """Return why the record at `start` may expire within so many seconds; None: it does not."""
    observed = snapshot.partition(partition)
    offsets = observed.readable_offsets
    if offsets is None or start >= offsets.end_offset:
        return None
    retention = snapshot.topic(partition.topic).retention
    if retention is None:
        return _expiry_by_movement(
            partition, start, offsets.log_start_offset, snapshot, within_s, now_ms
        )
    retained_from = observed.retained_from
    if retention.ms is not None and retained_from is not None and start < retained_from:
        return (
            f"records up to offset {retained_from} may expire within "
            f"{_format_duration(within_s)} (retention.ms {retention.ms:,})"
        )
    if retention.bytes is None or retention.is_tiered:
        return None
    size = (offsets.end_offset - start) * (observed.bytes_per_offset or 0.0)
    if size >= NEARLY_FULL * retention.bytes:
        return f"about {round(size):,} bytes are kept of {retention.bytes:,} (retention.bytes)"
    return None


def _expiry_by_movement(
    partition: TopicPartition,
    start: int,
    log_start: int,
    snapshot: Snapshot,
    within_s: float,
    now_ms: int,
) -> str | None:
    """Return why the record at `start` may expire if brokers do not report their settings."""
    movement = _movement(partition, log_start, snapshot, now_ms)
    if movement is None:
        return None
    moved_by, elapsed_s = movement
    left_s = _seconds_left(start, log_start, moved_by, elapsed_s)
    if left_s is None or left_s > within_s:
        return None
    moved = (
        f"the log start moved by {moved_by:,} {partition.unit}s in {_format_duration(elapsed_s)}"
    )
    if start > log_start:
        return f"{moved} and may pass {start} in {_format_duration(left_s)}"
    return f"{moved} and is {log_start}"


_LEAST_MOVEMENT_S = 60
"""A shorter movement of the log start is no rate: brokers delete a whole segment at once."""


def _seconds_left(offset: int, log_start: int, moved_by: int, elapsed_s: float) -> float | None:
    """Return the seconds until the moving log start may pass the offset.

    None if the log start is below it, and its movement too short for a rate.
    """
    if offset <= log_start:
        return 0.0
    if elapsed_s < _LEAST_MOVEMENT_S:
        return None
    return (offset - log_start) * elapsed_s / moved_by


def _movement(
    partition: TopicPartition, log_start: int, snapshot: Snapshot, now_ms: int
) -> tuple[int, float] | None:
    """Return the movement of the log start since the newest plan: offsets and seconds.

    None if it did not move, or if that is unknown.
    """
    last = snapshot.ledger.newest
    if last is None:
        return None
    planned = last.partition(partition)
    before = None
    if planned:
        before = planned.log_start
    if before is None or log_start <= before or now_ms <= last.origin.created_at_ms:
        return None
    return log_start - before, (now_ms - last.origin.created_at_ms) / 1000


@dataclass(frozen=True, slots=True)
class Headroom:
    """Time and bytes left before retention may delete a record, at the earliest."""

    seconds_left: float | None = None
    """0: it may be deleted from now on."""
    bytes_left: int | None = None
    """Number of bytes that may still be written, by `retention.bytes` and the average size of the
    records; None: no such limit is known.
    """
    estimated_from: str | None = None
    """Basis of the estimate."""
    unknown_because: str | None = None
    """Reason why the time is unknown."""


def headroom(
    partition: TopicPartition, offset: int, oldest: OldestRecord, snapshot: Snapshot, *, now_ms: int
) -> Headroom:
    """Return the time left for the record at `offset`, the `oldest` unread one of a partition.

    The offsets of the partition are known. By time a segment expires with its latest record, never
    before any of its records; by size when the records after it fill the limit.
    """
    offsets = snapshot.readable[partition]
    retention = snapshot.topic(partition.topic).retention
    if retention is None:
        log_start = offsets.log_start_offset
        movement = _movement(partition, log_start, snapshot, now_ms)
        left_s = None
        if movement is not None:
            left_s = _seconds_left(offset, log_start, *movement)
        if left_s is None:
            return Headroom(
                unknown_because=(
                    "neither the brokers report the topic's retention, nor do plans show a "
                    "movement of its log start"
                )
            )
        return Headroom(
            left_s, estimated_from="the movement of the log start since the newest plan"
        )
    bytes_left = None
    bytes_per_offset = snapshot.bytes_per_offset.get(partition)
    if retention.bytes is not None and bytes_per_offset is not None and not retention.is_tiered:
        size = round((offsets.end_offset - offset) * bytes_per_offset)
        bytes_left = max(0, retention.bytes - size)
    if retention.ms is not None and oldest.timestamp_ms is not None:
        left_s = (oldest.timestamp_ms + retention.ms - now_ms) / 1000
        return Headroom(max(0.0, left_s), bytes_left, estimated_from="retention.ms")
    if retention.ms is not None:
        reason = (
            "the topic has a retention.ms, but its oldest unread record has no known time: "
            f"{oldest.why}"
        )
        return Headroom(bytes_left=bytes_left, unknown_because=reason)
    if retention.bytes is not None:
        reason = "only retention.bytes limits the partition, and its growth rate is unknown"
        return Headroom(bytes_left=bytes_left, unknown_because=reason)
    if retention.is_compacted:
        return Headroom(unknown_because="a newer record of its key may replace it at any time")
    return Headroom(unknown_because="the topic keeps its records")


def _format_duration(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 90:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds)} s"
