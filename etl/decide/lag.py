"""How far is the table behind, and what does retention delete first?

Lag is the readable end minus the position, in offsets: an upper bound of the records. The position
is where the next plan begins; a stored plan lags until it is in the table, and a partition that was
never read has the position where it will start. Offsets below the log start do not lag. Lag is
unknown for a partition without a leader, and for one that was truncated or recreated.

Brokers delete whole segments, by record time or by size (`retention.ms`, `retention.bytes` with
`cleanup.policy=delete`), some time after they may; times here are the earliest possible. If brokers
do not report their settings, the movement of the log start since the newest plan is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from etl.decide.offsets import start_of, starts_of
from etl.decide.partition_identity import other_logs, reject_recreated_or_truncated
from etl.errors import NeedsDecision
from etl.model.partitions import BrokerPartition, OldestRecord
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import FirstRun, PipelineState, RebuildFromTable, Replay, Snapshot, UpToDate
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Reached:
    """The state of a pipeline: its newest plan, and the position of each partition that was ever
    read.
    """

    last: Plan | None = None
    """None before the first plan."""
    positions: Mapping[BrokerPartition, int] = field(default_factory=dict)
    others: frozenset[BrokerPartition] = frozenset()
    """Partitions that were truncated or recreated."""
    refusal: NeedsDecision | None = None
    """The error that a run raises for them."""


def reached(state: PipelineState, snapshot: Snapshot) -> Reached:
    """Return the positions of the table, in any state of the pipeline."""
    if isinstance(state, FirstRun):
        return Reached()
    if isinstance(state, RebuildFromTable):
        return reached(state.state, snapshot)
    if isinstance(state, UpToDate):
        unchanged_until = {}
        for log, position in state.last.positions.items():
            unchanged_until[log] = min(position, state.positions.get(log, position))
        return _reached(state.last, state.positions, unchanged_until, snapshot)
    starts = starts_of(state.plan)
    if isinstance(state, Replay):
        return _reached(state.plan, starts, state.plan.positions, snapshot)
    return _reached(state.plan, starts, starts, snapshot)


def _reached(
    plan: Plan,
    positions: Mapping[BrokerPartition, int],
    holds: Mapping[BrokerPartition, int],
    snapshot: Snapshot,
) -> Reached:
    """`holds`: the offsets up to which partitions must be unchanged, as in `plan`."""
    try:
        reject_recreated_or_truncated(plan, snapshot, holds)
    except NeedsDecision as refusal:
        return Reached(plan, positions, other_logs(plan, snapshot, holds), refusal)
    return Reached(plan, positions)


def lag_of(
    log: BrokerPartition, snapshot: Snapshot, so_far: Reached, settings: Settings
) -> int | None:
    """Return how many readable offsets of a partition are not in the table; None if its end or
    start is unknown, or it was truncated or recreated.
    """
    oldest = oldest_unread(log, snapshot, so_far, settings)
    if oldest is None:
        return None
    # A position above the end is an error of its own.
    return max(0, snapshot.extents[log].end_offset - oldest)


def oldest_unread(
    log: BrokerPartition, snapshot: Snapshot, so_far: Reached, settings: Settings
) -> int | None:
    """Return the first unread offset of a partition; None if its lag is unknown."""
    extent = snapshot.extents.get(log)
    if extent is None or log in so_far.others:
        return None
    position = position_of(log, snapshot, so_far, settings)
    if position is None:
        return None
    return max(extent.log_start_offset, position)


def position_of(
    log: BrokerPartition, snapshot: Snapshot, so_far: Reached, settings: Settings
) -> int | None:
    """Return the start of the next plan in a partition; None if it was never read and its start is
    unknown.
    """
    position = so_far.positions.get(log)
    if position is None and log in snapshot.extents:
        position = start_of(log, snapshot, so_far.last, settings)
    return position


def lag_in_all(snapshot: Snapshot, so_far: Reached, settings: Settings) -> int:
    """Return the sum of all known lags."""
    return sum(lag_of(log, snapshot, so_far, settings) or 0 for log in snapshot.extents)


NEARLY_FULL = 0.9
"""A partition whose retained bytes from a range's start on reach this fraction of `retention.bytes`
loses that start with the next records.
"""


@dataclass(frozen=True, slots=True)
class Expiring:
    """A range whose start may expire soon."""

    log: BrokerPartition
    from_offset: int
    why: str

    def __str__(self) -> str:
        return f"{self.log}: {self.why}; its range (from {self.from_offset}) is read first"


def expiring(
    ranges: Iterable[OffsetRange], snapshot: Snapshot, *, within_s: float, now_ms: int
) -> tuple[Expiring, ...]:
    """Return an entry per partition whose first range may lose its start within that many seconds,
    sorted; 0: none.
    """
    if not within_s:
        return ()
    starts: dict[BrokerPartition, int] = {}
    for r in ranges:
        starts[r.log] = min(r.from_offset, starts.get(r.log, r.from_offset))
    found = []
    for log, start in sorted(starts.items()):
        reason = _expiry_reason(log, start, snapshot, within_s, now_ms)
        if reason:
            found.append(Expiring(log, start, reason))
    return tuple(found)


def _expiry_reason(
    log: BrokerPartition, start: int, snapshot: Snapshot, within_s: float, now_ms: int
) -> str | None:
    """Return why the range's start may expire in time; None if it does not."""
    extent = snapshot.extents.get(log)
    settings = snapshot.retention.get(log.topic)
    if extent is None or start >= extent.end_offset:
        return None
    if settings is None:
        return _by_movement(log, start, extent.log_start_offset, snapshot, within_s, now_ms)
    retained_from = snapshot.retained_from.get(log)
    if settings.ms is not None and retained_from is not None and start < retained_from:
        return (
            f"records up to offset {retained_from} may expire within {_format_time(within_s)} "
            f"(retention.ms {settings.ms:,})"
        )
    kept = (extent.end_offset - start) * snapshot.bytes_per_offset.get(log, 0.0)
    if settings.bytes is not None and kept >= NEARLY_FULL * settings.bytes:
        return f"about {round(kept):,} bytes are kept of {settings.bytes:,} (retention.bytes)"
    return None


def _by_movement(
    log: BrokerPartition,
    start: int,
    log_start: int,
    snapshot: Snapshot,
    within_s: float,
    now_ms: int,
) -> str | None:
    movement = _movement(log, log_start, snapshot, now_ms)
    if movement is None:
        return None
    moved_by, passed_s = movement
    left_s = (start - log_start) * passed_s / moved_by
    if left_s > within_s:
        return None
    moved = f"the log start moved by {moved_by:,} {log.unit}s in {_format_time(passed_s)}"
    if start > log_start:
        return f"{moved} and may pass {start} in {_format_time(left_s)}"
    return f"{moved} and is {log_start}"


def _movement(
    log: BrokerPartition, log_start: int, snapshot: Snapshot, now_ms: int
) -> tuple[int, float] | None:
    """Return the movement of the log start since the newest plan, in offsets and seconds; None if
    it did not move or is unknown.
    """
    last = snapshot.ledger.newest
    if last is None or now_ms <= last.created_at_ms:
        return None
    before = last.log_starts.get(log)
    if before is None or log_start <= before:
        return None
    return log_start - before, (now_ms - last.created_at_ms) / 1000


@dataclass(frozen=True, slots=True)
class Headroom:
    """The time and bytes left until retention may delete a record."""

    seconds: float | None = None
    """0: it may be deleted now. None: unknown."""
    bytes: int | None = None
    """Bytes that may still be written to the partition, by `retention.bytes` and the average size of
    its records; None: unknown, or no limit.
    """
    rests_on: str | None = None
    """The base of the estimate."""
    why: str | None = None
    """The reason why `seconds` is unknown."""


def headroom(
    log: BrokerPartition, offset: int, oldest: OldestRecord, snapshot: Snapshot, *, now_ms: int
) -> Headroom:
    """Return the time left for the record at `offset`, the `oldest` unread one of a partition with
    known offsets.

    By time a segment expires with its latest record, never before any of its records; by size once
    the records after it fill the limit.
    """
    settings = snapshot.retention.get(log.topic)
    extent = snapshot.extents[log]
    if settings is None:
        movement = _movement(log, extent.log_start_offset, snapshot, now_ms)
        if movement is None:
            return Headroom(
                why="neither the brokers report the topic's retention, nor do plans show a movement "
                "of its log start"
            )
        moved_by, passed_s = movement
        left_s = (offset - extent.log_start_offset) * passed_s / moved_by
        return Headroom(left_s, rests_on="the movement of the log start since the newest plan")
    size = None
    cost = snapshot.bytes_per_offset.get(log)
    if settings.bytes is not None and cost is not None and not settings.is_tiered:
        kept = round((extent.end_offset - offset) * cost)
        size = max(0, settings.bytes - kept)
    if settings.ms is not None and oldest.timestamp_ms is not None:
        left_s = max(0.0, (oldest.timestamp_ms + settings.ms - now_ms) / 1000)
        return Headroom(left_s, size, rests_on="retention.ms")
    if settings.ms is not None:
        reason = (
            "the topic has a retention.ms, but its oldest unread record has no known time: "
            f"{oldest.why}"
        )
        return Headroom(bytes=size, why=reason)
    if settings.bytes is not None:
        reason = "only retention.bytes limits the partition, and its growth rate is unknown"
        return Headroom(bytes=size, why=reason)
    if settings.is_compacted:
        return Headroom(why="a newer record of its key may replace it at any time")
    return Headroom(why="the topic keeps its records")


def _format_time(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 90:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds)} s"
