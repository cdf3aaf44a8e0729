"""Which offsets may a backfill load, and in which plans?

Lives here: the offsets of a new request, what is left of one, and its next plan.
Not here: the order of steps (etl/run/backfill.py).

    offsets of the interval                        decision
    --------------------------------------------   -------------------------------------------------
    never loaded, retained                         requested
    loaded, or left to the pipeline's runs         SettingsError; left out with `--only-unloaded`
    below the log start                            DataLoss; left out with `--only-retained`
    above the readable end                         SettingsError; NotYetReadable after an open
                                                   transaction
    before a time in the future                    NotReady
    of a partition that the pipeline never began   SettingsError: a run decides the start first
    of a truncated or recreated partition          NeedsDecision, unless the pipeline loaded all
                                                   in the current incarnation

A bound by time is the offset of the first record at or after that time, in each partition.

What is left of a request are its intervals without those that any plan of the pipeline loaded, and
those that a plan of the backfill gave up: two backfills that overlap share what is loaded (ADR 39).
Each plan reads, of every partition, a part of the first interval that is left, within the caps. It
moves no position. A stored plan need not be finished: whoever plans next takes its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.byte_offsets import reject_misaligned_offset
from etl.decide.loaded_intervals import OFFSETS_END, subtract_intervals
from etl.decide.plan import divide_caps, reading_of, reject_leaderless
from etl.decide.replay import Bound, OffsetsOfTimes, ReplayRequest, plan_that_moves_nothing
from etl.decide.tasks import boundaries_of, split_ranges
from etl.errors import (
    BrokerUnreachable,
    DataLoss,
    NeedsDecision,
    NotReady,
    NotYetReadable,
    SettingsError,
)
from etl.model.partitions import TopicPartition, is_named
from etl.model.plans import BackfillPayload, Loss, Losses, OffsetRange, Plan, PlanKind
from etl.model.snapshot import Backfill, LoadedIntervals, Snapshot, UpToDate
from etl.settings.sections import Settings
from etl.settings.source import Timestamp

_Part = tuple[int, int]
"""Offsets [from, until)."""
Intervals = Mapping[TopicPartition, tuple[_Part, ...]]
"""Offsets [from, until) of each partition, ascending and disjoint; no partition without any."""


def unloaded_of(backfill: Backfill, loaded: LoadedIntervals) -> Intervals:
    """Return the requested offsets that are neither loaded nor lost, without empty partitions.

    `loaded`: by all plans of the pipeline.
    """
    done = {}
    for partition in backfill.intervals:
        loaded_parts = loaded_in(partition, backfill.incarnation_of(partition), loaded)
        done[partition] = (*backfill.lost.get(partition, ()), *loaded_parts)
    return without(backfill.intervals, done)


def left_to_runs(
    backfill: Backfill,
    unloaded: Intervals,
    loaded_until: Mapping[TopicPartition, int],
    incarnations: Mapping[TopicPartition, int],
) -> Intervals:
    """Return those of the unloaded offsets that runs load: from the loaded-until offset on, if the
    pipeline still reads the incarnation of the request. An operator set the offset back.
    """
    of_runs = {}
    for partition in unloaded:
        if partition in loaded_until and incarnations.get(partition, 0) == backfill.incarnation_of(
            partition
        ):
            of_runs[partition] = ((loaded_until[partition], OFFSETS_END),)
    return intersect(unloaded, of_runs)


def loaded_in(partition: TopicPartition, incarnation: int, loaded: LoadedIntervals) -> list[_Part]:
    """Return the loaded offsets of one incarnation of a partition."""
    offsets = []
    for interval in loaded.intervals.get(partition, ()):
        if interval.incarnation == incarnation:
            offsets.append((interval.from_offset, interval.until_offset))
    return offsets


def intersect(some: Intervals, others: Intervals) -> Intervals:
    """Return the offsets that are in both."""
    return without(some, without(some, others))


def without(some: Intervals, others: Intervals) -> Intervals:
    """Return the offsets of `some` that are not in `others`."""
    left = {}
    for partition, parts in some.items():
        outside: list[_Part] = []
        for part in parts:
            outside += subtract_intervals(part, others.get(partition, ()))
        if outside:
            left[partition] = tuple(outside)
    return left


def count_offsets(intervals: Intervals) -> int:
    """Return the number of offsets; of Jafka, bytes."""
    total = 0
    for parts in intervals.values():
        total += sum(until - start for start, until in parts)
    return total


def plan_backfill(
    backfill: Backfill,
    left: Intervals,
    state: UpToDate,
    snapshot: Snapshot,
    settings: Settings,
    *,
    now_ms: int,
) -> Plan | None:
    """Return the plan after the last one that loads a part of what is left, without its id.

    None if no partition that is left has a leader. A plan without ranges records offsets that
    retention deleted, if policy is `skip`. Raises DataLoss and BrokerUnreachable if policy is
    `fail`, NeedsDecision and PartitionTruncated for a changed partition, NotYetReadable.
    """
    last = state.last
    _reject_other_incarnation(backfill, left, last)
    _reject_unavailable(left, snapshot, settings)
    plan = plan_that_moves_nothing(state, snapshot, settings, reason=None, now_ms=now_ms)

    readings: dict[TopicPartition, _Part] = {}
    lost: list[Loss] = []
    for partition in sorted(left.keys() & snapshot.readable.keys()):
        incarnation = backfill.incarnation_of(partition)
        reading, lost_before = _readable(
            partition, left[partition], incarnation, snapshot, settings
        )
        lost += lost_before
        if reading:
            readings[partition] = reading
    if not readings and not lost:
        return None

    sizes = snapshot.bytes_per_offset
    boundaries = boundaries_of(snapshot.readable)
    stops = divide_caps(readings, sizes, settings.limits, plan.number, boundaries)
    whole_ranges = []
    for partition, (start, _) in readings.items():
        if start < stops[partition]:
            whole_ranges.append(
                OffsetRange(
                    partition, start, stops[partition], snapshot.partition(partition).leader
                )
            )
    task_bytes = settings.limits.target_task_bytes
    ranges = split_ranges(whole_ranges, sizes, task_bytes, snapshot.parallelism, boundaries)
    return replace(
        plan,
        kind=PlanKind.BACKFILL,
        payload=BackfillPayload(backfill.name),
        ranges=ranges,
        losses=Losses(lost=tuple(lost)),
    )


def _readable(
    partition: TopicPartition,
    parts: Sequence[_Part],
    incarnation: int,
    snapshot: Snapshot,
    settings: Settings,
) -> tuple[_Part | None, list[Loss]]:
    """Return the first readable part and the offsets lost before it. Raises as `reading_of`."""
    lost: list[Loss] = []
    for start, until in parts:
        found = reading_of(partition, start, snapshot, settings)
        for loss in found.lost:
            lost_until = min(loss.until_offset, until)
            lost.append(replace(loss, until_offset=lost_until, incarnation=incarnation))
        if found.position < until:
            if until > found.end_offset:
                message = (
                    f"The readable end of the partition is {found.end_offset}, "
                    f"and the backfill loads it up to {until}"
                )
                raise NotYetReadable(
                    message,
                    **partition.place,
                    offset=until,
                    action="Check its leader, and open transactions. A retry continues",
                )
            return (found.position, until), lost
    return None, lost


def with_lost(backfill: Backfill, plan: Plan) -> Backfill:
    """Return the request without the offsets that its plan gave up."""
    lost = dict(backfill.lost)
    for loss in plan.losses.lost:
        lost[loss.partition] = (
            *lost.get(loss.partition, ()),
            (loss.from_offset, loss.until_offset),
        )
    merged = {partition: tuple(merge_intervals(parts)) for partition, parts in lost.items()}
    return replace(backfill, lost=intersect(merged, backfill.intervals))


def merge_intervals(parts: Iterable[_Part]) -> list[_Part]:
    """Return the intervals sorted, adjacent and overlapping ones merged."""
    merged: list[_Part] = []
    for start, until in sorted(parts):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], until)
        else:
            merged.append((start, until))
    return merged


def incomplete_error(backfill: Backfill, left: Intervals) -> BrokerUnreachable:
    """Return the error for a backfill of which no partition that is left can be read."""
    partition = min(left)
    return BrokerUnreachable(
        f"The rest of backfill {backfill.name} is not loaded yet: {partition} has no leader",
        **partition.place,
        action="Check the brokers of the partition, then run "
        f"`etl backfills run CONF {backfill.name}` to continue",
    )


def _reject_other_incarnation(backfill: Backfill, left: Intervals, last: Plan) -> None:
    """Reject a request for partitions of which the pipeline reads another incarnation now, or that
    it does not read any more.
    """
    for partition in sorted(left):
        is_other = last.incarnations.get(partition, 0) != backfill.incarnation_of(partition)
        if is_other or partition not in last.loaded_until:
            message = (
                "The pipeline continues with this partition as truncated or recreated, "
                "and the backfill was requested before that"
            )
            if not is_other:
                message = "The pipeline does not read this partition any more"
            action = (
                f"Run `etl backfills delete CONF {backfill.name} --reason ...`, "
                "which keeps the loaded rows"
            )
            raise NeedsDecision(message, **partition.place, action=action)


def _reject_unavailable(left: Intervals, snapshot: Snapshot, settings: Settings) -> None:
    """Reject missing partitions; if policy is `fail`, those without a leader, too."""
    for partition in sorted(left.keys() - snapshot.readable.keys()):
        if partition not in snapshot.leaderless:
            message = "The partition does not exist any more, or the conf does not select its topic"
            action = "Check source.topics, and whether the topic was deleted"
            raise NeedsDecision(message, **partition.place, action=action)
        reject_leaderless([partition], settings)


@dataclass(frozen=True, slots=True)
class BackfillRequest(ReplayRequest):
    """A requested backfill. Without names: all partitions of the conf's topics."""

    asked: str = ""
    """The request as text, by which it is recognised."""
    only_missing: bool = False
    """Only offsets that the pipeline has not loaded."""

    def covers(self, partition: TopicPartition) -> bool:
        """True if the request includes the partition."""
        return not self.named or is_named(partition, self.named)


def requested_partitions(
    request: BackfillRequest, last: Plan, snapshot: Snapshot
) -> list[TopicPartition]:
    """Return the requested partitions: readable ones that the pipeline has begun.

    Raises SettingsError and BrokerUnreachable.
    """
    existing = {*snapshot.readable, *snapshot.leaderless}
    for name in request.named:
        if not name.covers_any(existing):
            message = f"The brokers have no {name}, or the conf does not select its topic"
            raise SettingsError(
                message, key="--partition", action="Check with `etl offsets show CONF`"
            )
    partitions = [partition for partition in sorted(existing) if request.covers(partition)]
    for partition in partitions:
        if partition not in last.loaded_until:
            message = (
                "The pipeline has not begun this partition, "
                "so it is unknown which offsets are left for a backfill"
            )
            action = (
                "Run `etl run CONF`, which decides where the pipeline begins. "
                "Then run this command again"
            )
            raise SettingsError(message, **partition.place, action=action)
        if partition not in snapshot.readable:
            raise BrokerUnreachable(
                f"The partition {partition.unled}", **partition.place, action=partition.held_by
            )
    return partitions


def requested_intervals(
    request: BackfillRequest,
    partitions: Iterable[TopicPartition],
    found: OffsetsOfTimes,
    snapshot: Snapshot,
    *,
    now_ms: int,
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the requested offsets of each partition that has some.

    Raises as the module's table.
    """
    if isinstance(request.until, Timestamp) and request.until.ms > now_ms:
        seconds = (request.until.ms - now_ms) / 1000
        message = (
            f"The interval is not over: its end is in the future by {seconds:,.0f} s, "
            "by this machine's clock"
        )
        action = (
            "Run this command again after that time. Records that arrive before it would be missing"
        )
        raise NotReady(message, key="--until", action=action)

    partitions = list(partitions)
    _reject_above_all_ends(request, partitions, snapshot)
    intervals = {}
    for partition in partitions:
        requested_start = _offset_of(request.from_, partition, found)
        end = _offset_of(request.until, partition, found)
        start = _retained_start(partition, requested_start, request, snapshot)
        if start < end:
            _reject_above_end(partition, end, request, snapshot)
            reject_misaligned_offset(partition, start, snapshot, key="--from")
            reject_misaligned_offset(partition, end, snapshot, key="--until")
            intervals[partition] = start, end
    if not intervals:
        message = "The partitions have no record in the interval"
        if request.only_retained:
            message = "The partitions have no retained record in the interval"
        raise SettingsError(
            message,
            key="--from",
            action="Compare --from and --until with the offsets of `etl offsets show CONF`",
        )
    return intervals


def _offset_of(bound: Bound, partition: TopicPartition, found: OffsetsOfTimes) -> int:
    if isinstance(bound, int):
        return bound
    return found[partition, bound.ms]


def _retained_start(
    partition: TopicPartition, start: int, request: BackfillRequest, snapshot: Snapshot
) -> int:
    """Return the start of the interval, at or above the log start.

    By time, brokers find only retained records, so the request may mean earlier ones.
    """
    log_start = snapshot.readable[partition].log_start_offset
    is_offset = isinstance(request.from_, int)
    if is_offset:
        is_gone = start < log_start
    else:
        is_gone = start <= log_start and log_start > 0
    if not is_gone or request.only_retained:
        return max(start, log_start)
    if is_offset:
        message = f"Offsets {start} to {log_start} are gone: the log starts at {log_start}"
    else:
        message = f"The log starts at {log_start}, so records of the interval may be gone"
    action = "Pass `--only-retained` to load the retained records, or a later --from"
    raise DataLoss(message, **partition.place, offset=start, action=action)


def _reject_above_all_ends(
    request: BackfillRequest, partitions: Iterable[TopicPartition], snapshot: Snapshot
) -> None:
    """Reject an interval above the ends of all partitions: runs load it."""
    ends = []
    for partition in partitions:
        offsets = snapshot.readable[partition]
        ends.append(offsets.end_offset + offsets.held_back)
    if isinstance(request.from_, int) and ends and request.from_ > max(ends):
        message = (
            f"The interval begins at offset {request.from_}, "
            f"and the longest partition ends at {max(ends)}"
        )
        action = "Pass an offset as a number, and a time as 2026-01-31T00:00:00+00:00"
        raise SettingsError(message, key="--from", action=action)


def _reject_above_end(
    partition: TopicPartition, end: int, request: BackfillRequest, snapshot: Snapshot
) -> None:
    offsets = snapshot.readable[partition]
    readable_end = offsets.end_offset
    if end <= readable_end or request.only_missing:
        # Runs load the records above the readable end.
        return
    if end <= readable_end + offsets.held_back:
        message = (
            f"The interval ends above the last stable offset {readable_end}: "
            "a transaction is open there"
        )
        action = "Run this command again when the transaction has ended"
        raise NotYetReadable(message, **partition.place, offset=end, action=action)
    message = f"The interval ends at {end}, and the partition at {readable_end}"
    action = f"Pass --until {readable_end}, or less"
    raise SettingsError(message, key="--until", **partition.place, action=action)


def unloaded_intervals(
    request: BackfillRequest,
    intervals: Mapping[TopicPartition, _Part],
    loaded: LoadedIntervals,
    last: Plan,
    positions: Mapping[TopicPartition, int],
) -> dict[TopicPartition, tuple[_Part, ...]]:
    """Return the offsets of the intervals that a backfill loads; empty if there are none.

    `positions`: the loaded-until offsets, from where runs load. Raises SettingsError if a part is
    loaded, unless only unloaded offsets are requested.
    """
    found = {}
    for partition, interval in sorted(intervals.items()):
        incarnation = last.incarnations.get(partition, 0)
        held = [(positions[partition], OFFSETS_END), *loaded_in(partition, incarnation, loaded)]
        if request.only_missing:
            held += _read_by_others(partition, incarnation, loaded, last)
        held = merge_intervals(held)
        free = subtract_intervals(interval, held)
        if free and incarnation:
            raise _incarnation_error(partition)
        if free != [interval] and not request.only_missing:
            for part in held:
                if subtract_intervals(interval, [part]) != [interval]:
                    raise _held_error(partition, interval, part, free)
        if free:
            found[partition] = tuple(free)
    return found


def also_read_by_others(intervals: Intervals, loaded: LoadedIntervals, last: Plan) -> int:
    """Return the number of these offsets that other members of the group read."""
    read: dict[TopicPartition, tuple[_Part, ...]] = {}
    for partition in intervals:
        incarnation = last.incarnations.get(partition, 0)
        read[partition] = tuple(
            merge_intervals(_read_by_others(partition, incarnation, loaded, last))
        )
    return count_offsets(intersect(intervals, read))


def _read_by_others(
    partition: TopicPartition, incarnation: int, loaded: LoadedIntervals, last: Plan
) -> list[_Part]:
    offsets = []
    for read in (*loaded.read_by_others, *last.losses.read_by_others):
        if read.partition == partition and read.incarnation == incarnation:
            offsets.append((read.from_offset, read.until_offset))
    return offsets


def _incarnation_error(partition: TopicPartition) -> NeedsDecision:
    """Return the error for a partition of a later incarnation.

    The rows of the current incarnation do not show what earlier ones loaded.
    """
    message = (
        "This partition was truncated or recreated since the pipeline began it. "
        "It is unknown which records of the interval were loaded before that"
    )
    action = "Pass the other partitions as `--partition TOPIC:PARTITION`"
    return NeedsDecision(message, **partition.place, action=action)


def _held_error(
    partition: TopicPartition, interval: _Part, part: _Part, free: Sequence[_Part]
) -> SettingsError:
    """Return the error for an interval that overlaps offsets of the pipeline."""
    low = max(part[0], interval[0])
    high = min(part[1], interval[1])
    parts_left = [f"{start} to {until}" for start, until in free]
    offsets_left = ", ".join(parts_left) or "nothing of the interval"
    if part[1] == OFFSETS_END:
        message = (
            f"The pipeline has loaded this partition from offset {part[0]} on, or its runs load "
            f"it, and the interval is {interval[0]} to {interval[1]}"
        )
    else:
        message = f"The pipeline has loaded offsets {low} to {high}"
    action = (
        "Pass `--only-unloaded`, which leaves these offsets out "
        f"(it loads {offsets_left}). To read loaded records again, run `etl replay`"
    )
    return SettingsError(message, key="--from", **partition.place, offset=low, action=action)


def reject_other_request(backfill: Backfill, request: str) -> None:
    """Reject another request under the name of a backfill. Raises SettingsError."""
    if backfill.request != request:
        message = (
            f"Backfill {backfill.name} was begun {backfill.request}, and this request is {request}"
        )
        action = (
            "Use another name for another interval. "
            f"Run `etl backfills run CONF {backfill.name}` to continue that one"
        )
        raise SettingsError(message, key="NAME", action=action)
