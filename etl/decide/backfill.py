"""Which offsets may a backfill load, and in which plans?

Lives here: the offsets that a new backfill reserves; its next, replacing and closing plan.
Not here: how reservations bind other pipelines (etl/decide/reservations.py), the order of steps
(etl/run/backfill.py).

    offsets of the interval                        decision
    --------------------------------------------   -------------------------------------------------
    never loaded, unreserved, retained             reserved
    the pipeline's, or another backfill's          SettingsError; left out with `--only-unloaded`
    below the log start                            DataLoss; left out with `--only-retained`
    above the readable end                         SettingsError; NotYetReadable after an open
                                                   transaction
    before a time in the future                    NotReady
    of a partition that the pipeline never began   SettingsError: a run decides the start first
    of a truncated or recreated partition          NeedsDecision, unless the pipeline loaded all
                                                   in the current incarnation

A bound by time is the offset of the first record at or after that time, in each partition.

Each plan reads, of every partition, a part of the first remaining interval, within the caps. Its
loaded-until offsets are those of the backfill; committed offsets do not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from etl.decide.byte_offsets import reject_misaligned_offset
from etl.decide.loaded_intervals import OFFSETS_END, subtract_intervals
from etl.decide.offsets import starts_of
from etl.decide.plan import divide_caps, reading_of, shape_of_rows
from etl.decide.recreated_or_truncated import record_epochs, reject_recreated_or_truncated
from etl.decide.replay import Bound, OffsetsOfTimes, ReplayRequest
from etl.decide.reservations import Stretches, reject_other_incarnation
from etl.decide.table_changes import table_to_record
from etl.decide.tasks import boundaries_of, split_ranges
from etl.errors import (
    BrokerUnreachable,
    DataLoss,
    NeedsDecision,
    NotReady,
    NotYetReadable,
    PartitionTruncated,
    SettingsError,
)
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    is_named,
    select_keys,
    topics_of,
)
from etl.model.plans import Loss, OffsetRange, Plan, PlanKind, PlannedRequest
from etl.model.snapshot import (
    Reservation,
    Reservations,
    ReservationState,
    Snapshot,
    Supersede,
    UpToDate,
)
from etl.settings.choices import OnNoLeader
from etl.settings.sections import Settings
from etl.settings.source import Timestamp

_Part = tuple[int, int]
"""Offsets [from, until)."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def first_backfill_plan(
    claim: Reservation, live: Plan, snapshot: Snapshot, settings: Settings, *, uid: str, now_ms: int
) -> Plan:
    """Return plan 1 without its id.

    `live`: the newest plan of the live pipeline; topic ids, incarnations and leader epochs are as
    there. Raises as `next_backfill_plan`.
    """
    starts = {log: parts[0][0] for log, parts in claim.stretches.items()}
    topics = topics_of(starts)
    before_first = replace(
        live,
        number=0,
        origin=replace(live.origin, pipeline_id=uid),
        kind=PlanKind.BACKFILL,
        id="",
        positions=starts,
        seen=dict.fromkeys(starts, NOTHING_COMMITTED),
        moves_offsets=False,
        topic_ids=select_keys(live.topic_ids, topics),
        creation_ids=select_keys(live.creation_ids, topics),
        log_topic_ids=select_keys(live.log_topic_ids, starts),
        incarnations=dict(claim.incarnations),
        leader_epochs=select_keys(live.leader_epochs, starts),
        tails=select_keys(live.tails, starts),
        record_epochs={},
        heir_of=(),
        pending_starts={},
        pending_offsets={},
        ranges=(),
        log_starts={},
        commit=live.commit.without_member,
        losses=replace(live.losses, read_by_others=()),
    )
    if snapshot.table:
        # The version of the pipeline: the backfill has not committed yet.
        snapshot = replace(snapshot, table=replace(snapshot.table, transaction_version=None))
    plan = _plan_after(before_first, starts, claim, snapshot, settings, now_ms=now_ms)
    return replace(plan, origin=replace(plan.origin, previous=None))


def next_backfill_plan(
    claim: Reservation, state: UpToDate, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan | None:
    """Return the next plan without its id; None if there is nothing to read.

    That is, all is loaded, the backfill is abandoned, or no remaining partition has a leader.
    Raises DataLoss and BrokerUnreachable if policy is `fail`, NeedsDecision and PartitionTruncated
    for a changed partition, NotYetReadable.
    """
    last = state.last
    remaining = claim.left_from(last.positions)
    if claim.state is not ReservationState.OPEN or last.closes or not remaining:
        return None
    is_unavailable = remaining.keys() <= snapshot.leaderless.difference(snapshot.extents)
    if is_unavailable and settings.source.on_no_leader is OnNoLeader.SKIP:
        return None
    plan = _plan_after(last, last.positions, claim, snapshot, settings, now_ms=now_ms)
    starts = starts_of(plan)
    kept_epochs = {}
    for log, epochs in record_epochs(last, snapshot.ledger.applied).items():
        if starts.get(log) == last.positions[log]:
            kept_epochs[log] = epochs
    return replace(plan, record_epochs=kept_epochs)


def backfill_replacement_plan(
    claim: Reservation, state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan:
    """Return the plan that replaces one that cannot be finished, without its id.

    It has the same number and the same start offsets. Raises as `next_backfill_plan`.
    """
    old = state.plan
    starts = starts_of(old)
    plan = _plan_after(old, starts, claim, snapshot, settings, now_ms=now_ms)
    losses_before = [loss for loss in old.losses.lost if loss.until_offset <= starts[loss.log]]
    return replace(
        plan,
        number=old.number,
        origin=replace(
            plan.origin, previous=old.origin.previous, supersedes=old.id, reason=state.reason
        ),
        losses=replace(plan.losses, lost=(*losses_before, *plan.losses.lost)),
        record_epochs=old.record_epochs,
    )


def closing_plan(
    last: Plan, *, is_stored: bool, snapshot: Snapshot, reason: str, now_ms: int
) -> Plan:
    """Return the plan that reads nothing and closes a backfill, without its id.

    `is_stored`: it replaces `last`, which is stored and not in the table; else it is the next plan.
    The table is the current one, which may be an older copy than that of `last`.
    """
    plan = replace(
        last,
        ranges=(),
        origin=replace(last.origin, created_at_ms=now_ms, reason=reason),
        losses=replace(last.losses, lost=()),
        id="",
        closes=True,
    )
    plan = replace(plan, table=table_to_record(snapshot.table))
    if is_stored:
        return replace(
            plan, origin=replace(plan.origin, supersedes=last.id), positions=starts_of(last)
        )
    return replace(
        plan,
        origin=replace(plan.origin, supersedes=None, previous=last.id),
        number=last.number + 1,
        record_epochs=record_epochs(last, snapshot.ledger.applied),
    )


def _plan_after(
    last: Plan,
    positions: Mapping[BrokerPartition, int],
    claim: Reservation,
    snapshot: Snapshot,
    settings: Settings,
    *,
    now_ms: int,
) -> Plan:
    """Return the plan after `last` that reads the reserved offsets from these offsets on."""
    reject_other_incarnation(snapshot, positions)
    reject_recreated_or_truncated(last, snapshot, positions)
    remaining = claim.left_from(positions)
    _reject_unavailable(remaining, snapshot, settings)
    _reject_truncated_partitions(remaining, last, snapshot)

    readings: dict[BrokerPartition, _Part] = {}
    losses: list[Loss] = []
    passed: dict[BrokerPartition, int] = {}
    for log in sorted(remaining.keys() & snapshot.extents.keys()):
        parts = remaining[log]
        reading, lost = _readable(log, parts, claim.incarnation_of(log), snapshot, settings)
        losses += lost
        if reading is None:
            passed[log] = parts[-1][1]
        else:
            readings[log] = reading
            passed[log] = reading[0]

    sizes = snapshot.bytes_per_offset
    boundaries = boundaries_of(snapshot.extents)
    stops = divide_caps(readings, sizes, settings.limits, last.number + 1, boundaries)
    whole_ranges = []
    for log, (start, _) in readings.items():
        whole_ranges.append(OffsetRange(log, start, stops[log], snapshot.leaders.get(log)))
    task_bytes = settings.limits.target_task_bytes
    ranges = split_ranges(whole_ranges, sizes, task_bytes, snapshot.parallelism, boundaries)

    log_starts = {}
    for log, offsets in snapshot.extents.items():
        if log in positions:
            log_starts[log] = offsets.log_start_offset
    plan = replace(
        last,
        number=last.number + 1,
        kind=PlanKind.BACKFILL,
        origin=replace(
            last.origin, created_at_ms=now_ms, previous=last.id, supersedes=None, reason=None
        ),
        shape=shape_of_rows(settings),
        ranges=ranges,
        positions={**positions, **passed, **stops},
        seen=dict.fromkeys(last.positions, NOTHING_COMMITTED),
        moves_offsets=False,
        request=PlannedRequest(),
        time_zone=snapshot.time_zone,
        id="",
        losses=replace(last.losses, lost=tuple(losses), stale_rows=()),
        took_over=None,
        stood={},
        log_starts=log_starts,
        topic_ids={**last.topic_ids, **select_keys(snapshot.topic_ids, last.topic_ids)},
    )
    return replace(plan, table=table_to_record(snapshot.table))


def _readable(
    log: BrokerPartition,
    parts: tuple[_Part, ...],
    incarnation: int,
    snapshot: Snapshot,
    settings: Settings,
) -> tuple[_Part | None, list[Loss]]:
    """Return the first readable part and the offsets lost before it. Raises as `reading_of`."""
    lost: list[Loss] = []
    for start, until in parts:
        found = reading_of(log, start, snapshot, settings)
        for loss in found.lost:
            lost_until = min(loss.until_offset, until)
            lost.append(replace(loss, until_offset=lost_until, incarnation=incarnation))
        if found.position < until:
            if until > found.end_offset:
                message = (
                    f"The readable end of the partition is {found.end_offset}, "
                    f"and the backfill was begun up to {until}"
                )
                raise NotYetReadable(
                    message,
                    **log.place,
                    offset=until,
                    action="Check its leader, and open transactions. A retry continues",
                )
            return (found.position, until), lost
    return None, lost


def _reject_truncated_partitions(
    remaining: Mapping[BrokerPartition, tuple[_Part, ...]], last: Plan, snapshot: Snapshot
) -> None:
    """Reject partitions that were truncated below the end of the reservation.

    When it was made, the leader's end was at or above it.
    """
    for log, parts in sorted(remaining.items()):
        reserved_until = parts[-1][1]
        ends = []
        offsets = snapshot.extents.get(log)
        if offsets:
            ends.append(offsets.end_offset + offsets.held_back)
        epoch_end = snapshot.epoch_ends.get(log)
        if epoch_end and epoch_end.asked_epoch == last.leader_epochs.get(log):
            ends.append(epoch_end.end_offset)
        if ends and min(ends) < reserved_until:
            message = (
                f"The partition was truncated at offset {min(ends)}, "
                f"and the backfill loads it up to {reserved_until}"
            )
            action = (
                "Check whether an unclean leader was elected, or a broker lost its disk. "
                "Run `etl run CONF`: it shows whether the pipeline can continue"
            )
            raise PartitionTruncated(message, **log.place, offset=reserved_until, action=action)


def _reject_unavailable(
    remaining: Mapping[BrokerPartition, object], snapshot: Snapshot, settings: Settings
) -> None:
    """Reject missing partitions; if policy is `fail`, those without a leader, too."""
    for log in sorted(remaining.keys() - snapshot.extents.keys()):
        if log not in snapshot.leaderless:
            message = "The partition does not exist any more, or the conf does not select its topic"
            action = "Check source.topics, and whether the topic was deleted"
            raise NeedsDecision(message, **log.place, action=action)
        if settings.source.on_no_leader is OnNoLeader.FAIL:
            action = (
                "Check the brokers that host its replicas, "
                "or set source.on_no_leader: skip to continue without it"
            )
            raise BrokerUnreachable("The partition has no leader", **log.place, action=action)


@dataclass(frozen=True, slots=True)
class BackfillRequest(ReplayRequest):
    """A requested backfill. Without names: all partitions of the conf's topics."""

    asked: str = ""
    """The request as text, by which it is recognised."""
    only_missing: bool = False
    """Only offsets that no pipeline has loaded or reserved."""

    def covers(self, log: BrokerPartition) -> bool:
        """True if the request includes the partition."""
        return not self.named or is_named(log, self.named)


def requested_partitions(
    request: BackfillRequest, live: Plan, snapshot: Snapshot
) -> list[BrokerPartition]:
    """Return the requested partitions: readable ones that the live pipeline has begun.

    Raises SettingsError and BrokerUnreachable.
    """
    existing = {*snapshot.extents, *snapshot.leaderless}
    for name in request.named:
        if not name.covers_any(existing):
            message = f"The brokers have no {name}, or the conf does not select its topic"
            raise SettingsError(
                message, key="--partition", action="Check with `etl offsets show CONF`"
            )
    logs = [log for log in sorted(existing) if request.covers(log)]
    for log in logs:
        if log not in live.positions:
            message = (
                "The pipeline has not begun this partition, "
                "so it is unknown which offsets are left for a backfill"
            )
            action = (
                "Run `etl run CONF`, which decides where the pipeline begins. "
                "Then run this command again"
            )
            raise SettingsError(message, **log.place, action=action)
        if log not in snapshot.extents:
            raise BrokerUnreachable(f"The partition {log.unled}", **log.place, action=log.held_by)
    return logs


def requested_intervals(
    request: BackfillRequest,
    logs: Iterable[BrokerPartition],
    found: OffsetsOfTimes,
    snapshot: Snapshot,
    *,
    now_ms: int,
) -> dict[BrokerPartition, tuple[int, int]]:
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

    logs = list(logs)
    _reject_above_all_ends(request, logs, snapshot)
    intervals = {}
    for log in logs:
        requested_start = _offset_of(request.from_, log, found)
        end = _offset_of(request.until, log, found)
        start = _retained_start(log, requested_start, request, snapshot)
        if start < end:
            _reject_above_end(log, end, request, snapshot)
            reject_misaligned_offset(log, start, snapshot, key="--from")
            reject_misaligned_offset(log, end, snapshot, key="--until")
            intervals[log] = start, end
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


def _offset_of(bound: Bound, log: BrokerPartition, found: OffsetsOfTimes) -> int:
    if isinstance(bound, int):
        return bound
    return found[log, bound.ms]


def _retained_start(
    log: BrokerPartition, start: int, request: BackfillRequest, snapshot: Snapshot
) -> int:
    """Return the start of the interval, at or above the log start.

    By time, brokers find only retained records, so the request may mean earlier ones.
    """
    log_start = snapshot.extents[log].log_start_offset
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
    raise DataLoss(message, **log.place, offset=start, action=action)


def _reject_above_all_ends(
    request: BackfillRequest, logs: Iterable[BrokerPartition], snapshot: Snapshot
) -> None:
    """Reject an interval above the ends of all partitions: it is for the live pipeline."""
    ends = []
    for log in logs:
        offsets = snapshot.extents[log]
        ends.append(offsets.end_offset + offsets.held_back)
    if isinstance(request.from_, int) and ends and request.from_ > max(ends):
        message = (
            f"The interval begins at offset {request.from_}, "
            f"and the longest partition ends at {max(ends)}"
        )
        action = "Pass an offset as a number, and a time as 2026-01-31T00:00:00+00:00"
        raise SettingsError(message, key="--from", action=action)


def _reject_above_end(
    log: BrokerPartition, end: int, request: BackfillRequest, snapshot: Snapshot
) -> None:
    offsets = snapshot.extents[log]
    readable_end = offsets.end_offset
    if end <= readable_end or request.only_missing:
        # The live pipeline loads the records above the readable end.
        return
    if end <= readable_end + offsets.held_back:
        message = (
            f"The interval ends above the last stable offset {readable_end}: "
            "a transaction is open there"
        )
        action = "Run this command again when the transaction has ended"
        raise NotYetReadable(message, **log.place, offset=end, action=action)
    message = f"The interval ends at {end}, and the partition at {readable_end}"
    action = f"Pass --until {readable_end}, or less"
    raise SettingsError(message, key="--until", **log.place, action=action)


def reserved_intervals(
    request: BackfillRequest,
    intervals: Mapping[BrokerPartition, tuple[int, int]],
    live: Stretches,
    lives: Mapping[BrokerPartition, int],
    claims: Reservations,
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return the offsets to reserve of each partition; empty if others have all of them.

    `live`: the offsets of the live pipeline. `lives`: the current incarnations.
    Raises SettingsError if others reserved a part, unless only missing offsets are requested.
    """
    reserved = {}
    for log, interval in sorted(intervals.items()):
        incarnation = lives.get(log, 0)
        held: list[tuple[str | None, _Part]] = []
        for part in live.get(log, ()):
            held.append((None, part))
        for claim in claims:
            if claim.incarnation_of(log) != incarnation:
                continue
            for part in claim.stretches.get(log, ()):
                held.append((claim.name, part))
        free = subtract_intervals(interval, [part for _, part in held])
        if free and incarnation:
            raise _incarnation_error(log)
        if free != [interval] and not request.only_missing:
            for holder, part in held:
                if subtract_intervals(interval, [part]) != [interval]:
                    raise _held_error(log, interval, holder, part, free)
        if free:
            reserved[log] = tuple(free)
    return reserved


def _incarnation_error(log: BrokerPartition) -> NeedsDecision:
    """Return the error for a partition of a later incarnation.

    Neither reservations nor rows of the current incarnation show what earlier ones loaded.
    """
    message = (
        "This partition was truncated or recreated since the pipeline began it. "
        "It is unknown which records of the interval were loaded before that"
    )
    action = "Pass the other partitions as `--partition TOPIC:PARTITION`"
    return NeedsDecision(message, **log.place, action=action)


def _held_error(
    log: BrokerPartition,
    interval: _Part,
    holder: str | None,
    part: _Part,
    free: list[_Part],
) -> SettingsError:
    """Return the error for an interval that overlaps a part of another holder.

    `holder`: the name of the backfill; None: the live pipeline.
    """
    low = max(part[0], interval[0])
    high = min(part[1], interval[1])
    parts_left = [f"{start} to {until}" for start, until in free]
    offsets_left = ", ".join(parts_left)
    action = (
        "Pass `--only-unloaded`, which leaves out the offsets of others "
        f"(it loads {offsets_left or 'nothing of the interval'})"
    )
    if holder is not None:
        message = f"Backfill {holder} has loaded offsets {low} to {high}, or will load them"
        action += (
            f". If its rows were deleted since: run `etl backfills delete CONF {holder} "
            "--reason ...`, which frees their offsets"
        )
    else:
        if part[1] == OFFSETS_END:
            message = (
                f"The pipeline loads this partition from offset {part[0]} on, "
                f"and the interval is {interval[0]} to {interval[1]}"
            )
        else:
            message = f"The pipeline has loaded offsets {low} to {high}"
        action += ". To read loaded records again, run `etl replay`"
    return SettingsError(message, key="--from", **log.place, offset=low, action=action)


def reject_other_bounds(claim: Reservation, bounds: str) -> None:
    """Reject another interval under the name of a backfill. Raises SettingsError."""
    if claim.asked != bounds:
        message = f"Backfill {claim.name} was begun {claim.asked}, and this request is {bounds}"
        action = (
            "Use another name for another interval. "
            f"Run `etl backfills run CONF {claim.name}` to continue that one"
        )
        raise SettingsError(message, key="NAME", action=action)
