"""How are the lag of a table and its paused partitions described?

Lives here: records, bytes and time behind per partition, and the time left before retention deletes
unread records, as values, JSON objects and sentences. An unknown value is None, with the reason.
Not here: computing the lag (etl/decide/lag.py), the commands (etl/commands/lag.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etl.decide.lag import (
    Headroom,
    Progress,
    headroom,
    lag_of,
    oldest_unread,
    position_of,
)
from etl.decide.set_offsets import leave_paused, pauses_of_partitions
from etl.errors import NeedsDecision
from etl.model.partitions import OldestRecord, TopicPartition, in_order
from etl.model.plans import Plan
from etl.model.snapshot import Pause, Snapshot
from etl.report.describe import (
    aggregate_known,
    describe_open,
    describe_partition_offsets,
    describe_unknown,
    existing_partitions,
    format_time,
    named_keys,
)
from etl.report.run_progress import time_in_words
from etl.settings.sections import Settings

PAUSES_AND_BACKFILLS_LOST = (
    "ZooKeeper may have lost pauses of partitions and requests of backfills. Pause partitions again "
    "with `etl topics pause`, and begin backfills again with `etl backfills run ... --only-unloaded`"
)
_NO_TIMESTAMPS = OldestRecord(why="messages of these brokers have no timestamps")
_NOT_LOOKED_UP = OldestRecord(why="it was not looked up")


@dataclass(frozen=True, slots=True)
class PausedPartitions:
    """The partitions of one topic that one command paused, as observed."""

    pauses: tuple[Pause, ...]
    """All have the same topic, reason and time."""
    partitions: tuple[TopicPartition, ...]
    """Existing partitions."""
    unread: int | None
    """Unread offsets (of Jafka bytes) of partitions with known offsets; None: all are unknown."""
    headroom_s: float | None
    """Time until the first unread record may expire; None: there is none, or it is unknown."""
    why_unknown: str = "unknown reason"

    @property
    def summary(self) -> str:
        """Return a sentence."""
        first = self.pauses[0]
        partitions = list(self.partitions)
        if not partitions:
            partitions = [pause.partition for pause in self.pauses if pause.partition]
        where = f"{first.topic} {named_keys(partitions)}".strip()
        text = f"{where}: paused since {format_time(first.since_ms)} by {first.by}: {first.reason}"
        if not self.partitions:
            return f"{text}; brokers report no such partition: it is deleted, or an ACL hides it"
        if self.unread is None:
            return f"{text}; the number of unread records is unknown"
        if not self.unread:
            return f"{text}; no unread records"
        unread = f"{self.unread:,} {self.partitions[0].unit}s unread"
        if self.headroom_s is None:
            return f"{text}; {unread}, and their expiry is unknown: {self.why_unknown}"
        expiry = "now"
        if self.headroom_s:
            expiry = f"in {time_in_words(self.headroom_s)}"
        return f"{text}; {unread}, and the oldest may expire {expiry}"

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object.

        `partitions` are the existing ones; of a topic that is paused as a whole, all of them.
        """
        first = self.pauses[0]
        return {
            "topic": first.topic,
            "whole_topic": any(pause.partition is None for pause in self.pauses),
            "partitions": [partition.key for partition in self.partitions],
            "reason": first.reason,
            "by": first.by,
            "since_at": format_time(first.since_ms),
            "unread": self.unread,
            "headroom_s": self.headroom_s,
        }


def pause_as_json(pause: Pause) -> dict[str, Any]:
    """Return an operator's pause as a JSON object. A topic paused as a whole has no partition."""
    partition = pause.partition
    place: dict[str, Any] = {"topic": pause.topic, "partition": None}
    if partition:
        place = partition.place
    return {**place, **(describe_pause(pause) or {})}


def describe_pause(pause: Pause | None) -> dict[str, Any] | None:
    """Return why a partition is paused as a JSON object; None if it is not."""
    if pause is None:
        return None
    return {"reason": pause.reason, "by": pause.by, "since_at": format_time(pause.since_ms)}


def paused_partitions(
    snapshot: Snapshot, so_far: Progress | None, settings: Settings, *, now_ms: int
) -> tuple[PausedPartitions, ...]:
    """Return the pauses, one value per command and topic, with the observed partitions.

    `so_far`: the pipeline's loaded-until offsets; None: unknown.
    """
    paused = leave_paused(snapshot).paused
    whole = snapshot.with_offsets_of_paused()
    by_command: dict[tuple[str, str, str, int], tuple[list[Pause], list[TopicPartition]]] = {}
    for pause in snapshot.ledger.pauses:
        pauses, _ = by_command.setdefault(_command_of(pause), ([], []))
        pauses.append(pause)
    for partition, pause in sorted(paused.items()):
        _, partitions = by_command[_command_of(pause)]
        partitions.append(partition)
    found = []
    for pauses, partitions in by_command.values():
        unread = []
        for partition in partitions:
            unread_of_partition = _unread_of_paused(partition, whole, so_far, settings, now_ms)
            if unread_of_partition is not None:
                unread.append(unread_of_partition)
        found.append(_paused_by_command(tuple(pauses), tuple(partitions), unread))
    return tuple(found)


def describe_paused(
    snapshot: Snapshot, so_far: Progress | None, settings: Settings, *, now_ms: int
) -> Iterator[str]:
    """Describe the pauses: a sentence per command and topic."""
    found = paused_partitions(snapshot, so_far, settings, now_ms=now_ms)
    return (paused.summary for paused in found)


def describe_paused_but_loaded(
    partitions: Iterable[TopicPartition], pauses: Iterable[Pause]
) -> tuple[str, ...]:
    """Describe paused partitions that a replay or a backfill reads: a sentence each.

    An explicit range is loaded, and the partition stays paused.
    """
    sentences = []
    for partition, pause in sorted(pauses_of_partitions(partitions, pauses).items()):
        since = format_time(pause.since_ms)
        sentences.append(
            f"{partition} is paused since {since} by {pause.by}: {pause.reason}. "
            "The named offsets are loaded, and it stays paused"
        )
    return tuple(sentences)


def describe_paused_but_executed(plan: Plan, pauses: Iterable[Pause]) -> str:
    """Describe a stored plan's partitions that were paused later, as the end of a sentence.

    Empty if it has none.
    """
    paused = sorted(pauses_of_partitions({r.partition for r in plan.ranges}, pauses))
    if not paused:
        return ""
    named = str(paused[0])
    if len(paused) > 1:
        named += f" and {len(paused) - 1:,} more"
    return f"; {named} of it paused later; a stored plan is executed as a whole"


def _command_of(pause: Pause) -> tuple[str, str, str, int]:
    return pause.topic, pause.reason, pause.by, pause.since_ms


def _paused_by_command(
    pauses: tuple[Pause, ...],
    partitions: tuple[TopicPartition, ...],
    unread: list[tuple[int, Headroom | None]],
) -> PausedPartitions:
    """Return the value of one command. `unread`: of partitions with known lag."""
    counts: list[int | None] = []
    headrooms = []
    for count, left in unread:
        counts.append(count)
        if left:
            headrooms.append(left)
    why_unknown = "unknown reason"
    for left in headrooms:
        if left.unknown_because:
            why_unknown = left.unknown_because
            break
    return PausedPartitions(
        pauses,
        partitions,
        unread=aggregate_known(sum, counts),
        headroom_s=aggregate_known(min, [left.seconds_left for left in headrooms]),
        why_unknown=why_unknown,
    )


def _unread_of_paused(
    partition: TopicPartition,
    snapshot: Snapshot,
    so_far: Progress | None,
    settings: Settings,
    now_ms: int,
) -> tuple[int, Headroom | None] | None:
    """Return the lag of a partition and the time left; None if its lag is unknown."""
    if so_far is None:
        return None
    start = oldest_unread(partition, snapshot, so_far, settings)
    lag = lag_of(partition, snapshot, so_far, settings)
    if lag is None or start is None:
        return None
    if not lag:
        return 0, None
    oldest = snapshot.partition(partition).oldest_unread or _unknown_oldest(partition)
    return lag, headroom(partition, start, oldest, snapshot, now_ms=now_ms)


def _unknown_oldest(partition: TopicPartition) -> OldestRecord:
    """Return the oldest record of a partition without an observed one: the reason only."""
    if partition.is_physical:
        return _NO_TIMESTAMPS
    return _NOT_LOOKED_UP


_UNKNOWN_FIELDS = {
    "lag": "the lag",
    "estimated_bytes": "the size",
    "behind_s": "the time behind",
    "headroom_s": "the expiry of records",
}


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of one partition.

    None: unknown, with the reason in `unknown`. A partition without lag has no oldest record and no
    expiry.
    """

    partition: TopicPartition
    offsets: Mapping[str, int | None]
    position: int | None
    lag: int | None
    """Offsets, so records at most; of Jafka bytes."""
    estimated_bytes: int | None = None
    oldest_ms: int | None = None
    """Timestamp of the oldest unread record, in ms since 1970."""
    behind_s: float | None = None
    headroom: Headroom = field(default_factory=Headroom)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Name in the document -> why it is unknown."""
    paused: Pause | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the partition in the document of `etl lag`."""
        records_at_most = self.lag
        if self.partition.is_physical:
            records_at_most = None
        return {
            **self.partition.place,
            **self.offsets,
            "loaded_until": self.position,
            "lag": self.lag,
            "records_at_most": records_at_most,
            "estimated_bytes": self.estimated_bytes,
            "oldest_unread_at": format_time(self.oldest_ms),
            "behind_s": self.behind_s,
            "headroom_s": self.headroom.seconds_left,
            "headroom_rests_on": self.headroom.estimated_from,
            "headroom_bytes": self.headroom.bytes_left,
            "unknown": dict(self.unknown),
            "paused": describe_pause(self.paused),
        }


@dataclass(frozen=True, slots=True)
class Lags:
    """Lag of all partitions at one time."""

    at_ms: int
    partitions: tuple[PartitionLag, ...]
    open_transactions: tuple[str, ...] = ()
    """Open transactions, a sentence per topic. Records after them are unreadable and do not lag."""
    paused: tuple[str, ...] = ()
    """Paused partitions, a sentence per command."""
    refusal: NeedsDecision | None = None
    """The error that a run would raise: the lag of such partitions is unknown."""

    @property
    def totals(self) -> dict[str, Any]:
        """Return sums, the longest time behind and the least time left, of known values.

        None if no value is known.
        """
        known = [partition for partition in self.partitions if partition.lag is not None]
        lag = aggregate_known(sum, (partition.lag for partition in known))
        sizes = [partition.estimated_bytes for partition in known]
        times_behind = [partition.behind_s for partition in known]
        seconds_left = [partition.headroom.seconds_left for partition in known]
        bytes_left = [partition.headroom.bytes_left for partition in known]
        records_at_most = lag
        if any(partition.partition.is_physical for partition in self.partitions):
            records_at_most = None
        return {
            "partitions": len(self.partitions),
            "partitions_unknown": len(self.partitions) - len(known),
            "lag": lag,
            "records_at_most": records_at_most,
            "estimated_bytes": aggregate_known(sum, sizes),
            "behind_s": aggregate_known(max, times_behind),
            "headroom_s": aggregate_known(min, seconds_left),
            "headroom_bytes": aggregate_known(min, bytes_left),
        }

    @property
    def unknown(self) -> tuple[str, ...]:
        """Describe the unknown values: a sentence per reason and topic."""
        sentences: list[str] = []
        for name, subject in _UNKNOWN_FIELDS.items():
            reasons = {}
            for partition in self.partitions:
                if name in partition.unknown:
                    reasons[partition.partition] = partition.unknown[name]
            sentences += describe_unknown(subject, reasons)
        return tuple(sentences)

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl lag`."""
        return {
            "at": format_time(self.at_ms),
            "totals": self.totals,
            "open_transactions": list(self.open_transactions),
            "paused": list(self.paused),
            "partitions": [partition.as_json() for partition in self.partitions],
        }


def lags_at(
    snapshot: Snapshot,
    so_far: Progress | None,
    settings: Settings,
    oldest: Mapping[TopicPartition, OldestRecord],
    *,
    now_ms: int,
    refusal: NeedsDecision | None = None,
) -> Lags:
    """Return the lag of a snapshot.

    `so_far`: the pipeline's loaded-until offsets (None: unknown); `oldest`: the oldest unread
    records; `refusal`: see `Lags`.
    """
    partitions = in_order(existing_partitions(snapshot))
    paused = pauses_of_partitions(partitions, snapshot.ledger.pauses)
    rows = []
    for partition in partitions:
        oldest_of_partition = oldest.get(partition, _unknown_oldest(partition))
        row = _row(partition, snapshot, settings, so_far, oldest_of_partition, now_ms)
        rows.append(replace(row, paused=paused.get(partition)))
    return Lags(
        now_ms,
        tuple(rows),
        tuple(describe_open(snapshot)),
        tuple(describe_paused(snapshot, so_far, settings, now_ms=now_ms)),
        refusal,
    )


def _row(
    partition: TopicPartition,
    snapshot: Snapshot,
    settings: Settings,
    so_far: Progress | None,
    oldest: OldestRecord,
    now_ms: int,
) -> PartitionLag:
    offsets = describe_partition_offsets(snapshot, partition)
    if so_far is None:
        reason = "the ledger and the table disagree"
        return PartitionLag(partition, offsets, None, None, unknown={"lag": reason})
    position = position_of(partition, snapshot, so_far, settings)
    lag = lag_of(partition, snapshot, so_far, settings)
    unread_from_offset = oldest_unread(partition, snapshot, so_far, settings)
    if lag is None or unread_from_offset is None:
        reason = _why_unknown(partition, snapshot, so_far)
        return PartitionLag(partition, offsets, position, None, unknown={"lag": reason})
    if not lag:
        return PartitionLag(partition, offsets, position, 0, 0, behind_s=0.0)
    unknown: dict[str, str] = {}
    size = _size(partition, lag, snapshot, unknown)
    left = headroom(partition, unread_from_offset, oldest, snapshot, now_ms=now_ms)
    if left.unknown_because:
        unknown["headroom_s"] = left.unknown_because
    if oldest.timestamp_ms is None:
        unknown["behind_s"] = oldest.why or "unknown reason"
        return PartitionLag(partition, offsets, position, lag, size, headroom=left, unknown=unknown)
    behind_s = max(0, now_ms - oldest.timestamp_ms) / 1000
    return PartitionLag(
        partition, offsets, position, lag, size, oldest.timestamp_ms, behind_s, left, unknown
    )


def _size(
    partition: TopicPartition, lag: int, snapshot: Snapshot, unknown: dict[str, str]
) -> int | None:
    """Return the estimated bytes of the lag, by the average bytes per offset.

    None: unknown, and the reason is added to `unknown`.
    """
    bytes_per_offset = snapshot.bytes_per_offset.get(partition)
    if bytes_per_offset is None:
        unknown["estimated_bytes"] = "brokers do not report the size of the partition"
        return None
    retention = snapshot.topic(partition.topic).retention
    if retention is not None and retention.is_tiered:
        unknown["estimated_bytes"] = "part of the partition is in remote storage"
        return None
    return round(lag * bytes_per_offset)


def _why_unknown(partition: TopicPartition, snapshot: Snapshot, so_far: Progress) -> str:
    if partition not in snapshot.readable:
        return f"it {partition.unled}"
    if partition in so_far.others:
        return "the partition was recreated or truncated"
    return "its start is not decided yet"
