"""Which offsets may a backfill load, and in which plans?

    offsets of the interval                        decision
    --------------------------------------------   -------------------------------------------------
    never loaded, unreserved, in the log           reserved
    the pipeline's, or another backfill's          SettingsError; left out with `--only-unloaded`
    below the log start                            DataLoss; left out with `--only-retained`
    above the readable end                         SettingsError; NotYetReadable behind an open
                                                   transaction
    before a time in the future                    NotReady
    of a partition that the pipeline never began   SettingsError: a run decides the start first
    of a truncated or recreated partition          NeedsDecision, unless the pipeline loaded all
                                                   in the current incarnation

A bound by time is the offset of the first record at or after that time, in each partition.

Each plan reads, of every partition, a part of the first interval that is left, within the caps. Its
positions are where the backfill continues; the group's offsets do not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from etl.decide.byte_offsets import reject_misaligned_offset
from etl.decide.loaded_intervals import OFFSETS_END, without
from etl.decide.offsets import starts_of
from etl.decide.partition_identity import record_epochs, reject_recreated_or_truncated
from etl.decide.plan import divide_caps, reading_of, shape_of_rows
from etl.decide.replay import Found, ReplayRequest
from etl.decide.reservations import Stretches, reject_other_incarnation
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
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition
from etl.model.plans import NO_BOUNDS, Loss, OffsetRange, Plan, PlanKind
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


def first_backfill_plan(
    claim: Reservation, live: Plan, snapshot: Snapshot, settings: Settings, *, uid: str, now_ms: int
) -> Plan:
    """Plan 1, without its id. `live` is the newest plan of the live pipeline: what the logs are,
    and which life of theirs, is as there.

    Raises as `next_backfill_plan`.
    """
    starts = {log: parts[0][0] for log, parts in claim.stretches.items()}
    topics = {log.topic for log in starts}
    seed = replace(
        live,
        number=0,
        uid=uid,
        kind=PlanKind.BACKFILL,
        id="",
        positions=starts,
        seen=dict.fromkeys(starts, NOTHING_COMMITTED),
        moves_offsets=False,
        topic_ids={name: one for name, one in live.topic_ids.items() if name in topics},
        creation_ids={name: one for name, one in live.creation_ids.items() if name in topics},
        log_topic_ids={log: one for log, one in live.log_topic_ids.items() if log in starts},
        incarnations=dict(claim.incarnations),
        leader_epochs={log: one for log, one in live.leader_epochs.items() if log in starts},
        tails={log: one for log, one in live.tails.items() if log in starts},
        record_epochs={},
        heir_of=(),
        pending_starts={},
        pending_offsets={},
        ranges=(),
        log_starts={},
        share=None,
        handed_over=None,
        read_by_others=(),
    )
    own = replace(snapshot.table, transaction_version=None) if snapshot.table else None
    plan = _part_of(claim, seed, starts, replace(snapshot, table=own), settings, now_ms=now_ms)
    return replace(plan, previous=None)


def next_backfill_plan(
    claim: Reservation, state: UpToDate, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan | None:
    """Return the next plan without its id; None if all is loaded, the backfill is abandoned, or
    nothing that is left has a leader.

    Raises DataLoss and BrokerUnreachable if policy is `fail`, NeedsDecision and PartitionTruncated
    for a changed partition, NotYetReadable.
    """
    left = claim.left_from(state.last.positions)
    if claim.state is not ReservationState.OPEN or state.last.closes or not left:
        return None
    if (
        not snapshot.extents.keys() & left.keys()
        and settings.source.on_no_leader is OnNoLeader.SKIP
        and left.keys() <= snapshot.leaderless
    ):
        return None
    plan = _part_of(claim, state.last, state.last.positions, snapshot, settings, now_ms=now_ms)
    sharp = record_epochs(state.last, snapshot.ledger.applied)
    kept = {
        log: lineage
        for log, lineage in sharp.items()
        if starts_of(plan).get(log) == state.last.positions[log]
    }
    return replace(plan, record_epochs=kept)


def backfill_replacement_plan(
    claim: Reservation, state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan:
    """The plan with the number of one that cannot be finished, without its id: from where that one
    began. Raises as the next one.
    """
    old, starts = state.plan, starts_of(state.plan)
    plan = _part_of(claim, old, starts, snapshot, settings, now_ms=now_ms)
    kept = tuple(loss for loss in old.losses if loss.until_offset <= starts[loss.log])
    return replace(
        plan,
        number=old.number,
        previous=old.previous,
        supersedes=old.id,
        reason=state.reason,
        losses=(*kept, *plan.losses),
        record_epochs=old.record_epochs,
    )


def closing_plan(
    last: Plan, *, is_stored: bool, snapshot: Snapshot, reason: str, now_ms: int
) -> Plan:
    """The plan that reads nothing and closes a backfill, without its id: in the place of one that
    is not in the table, or the next.

    The table is that of now, which may be an older copy than the one for which the other plan was
    made.
    """
    table = snapshot.table
    plan = replace(
        last,
        ranges=(),
        created_at_ms=now_ms,
        reason=reason,
        losses=(),
        id="",
        supersedes=last.id if is_stored else None,
        closes=True,
        positions=starts_of(last) if is_stored else last.positions,
        table_id=table.id if table else None,
        table_transaction_version=(table.transaction_version or 0) if table else 0,
        table_version=table.version if table else None,
    )
    if is_stored:
        return plan
    return replace(
        plan,
        number=last.number + 1,
        previous=last.id,
        record_epochs=record_epochs(last, snapshot.ledger.applied),
    )


def _part_of(
    claim: Reservation,
    last: Plan,
    positions: Mapping[BrokerPartition, int],
    snapshot: Snapshot,
    settings: Settings,
    *,
    now_ms: int,
) -> Plan:
    """Return a plan after `last` that reads from these positions."""
    reject_other_incarnation(snapshot, positions)
    reject_recreated_or_truncated(last, snapshot, positions)
    left = claim.left_from(positions)
    _reject_unavailable(left, snapshot, settings)
    _reject_truncated_topics(left, last, snapshot)
    readings, losses, ends = (
        dict[BrokerPartition, _Part](),
        list[Loss](),
        dict[BrokerPartition, int](),
    )
    for log in sorted(left.keys() & snapshot.extents.keys()):
        reading, lost = _readable(log, left[log], claim.incarnation_of(log), snapshot, settings)
        losses += lost
        ends[log] = reading[0] if reading else left[log][-1][1]
        if reading:
            readings[log] = reading
    sizes, bounds = snapshot.bytes_per_offset, boundaries_of(snapshot.extents)
    stops = divide_caps(readings, sizes, settings.limits, last.number + 1, bounds)
    wholes = (
        OffsetRange(log, start, stops[log], snapshot.leaders.get(log))
        for log, (start, _) in readings.items()
    )
    ranges = split_ranges(
        wholes, sizes, settings.limits.target_task_bytes, snapshot.parallelism, bounds
    )
    table = snapshot.table
    return replace(
        last,
        number=last.number + 1,
        kind=PlanKind.BACKFILL,
        created_at_ms=now_ms,
        shape=shape_of_rows(settings),
        ranges=ranges,
        positions={**positions, **ends, **stops},
        seen=dict.fromkeys(last.positions, NOTHING_COMMITTED),
        moves_offsets=False,
        table_id=table.id if table else None,
        table_transaction_version=(table.transaction_version or 0) if table else 0,
        table_version=table.version if table else None,
        previous=last.id,
        supersedes=None,
        reason=None,
        run_key=None,
        bounds=NO_BOUNDS,
        time_zone=snapshot.time_zone,
        key_ends={},
        id="",
        losses=tuple(losses),
        vanished=(),
        took_over=None,
        stood={},
        log_starts={
            log: extent.log_start_offset
            for log, extent in snapshot.extents.items()
            if log in positions
        },
        topic_ids={
            **last.topic_ids,
            **{name: one for name, one in snapshot.topic_ids.items() if name in last.topic_ids},
        },
    )


def _readable(
    log: BrokerPartition,
    parts: tuple[_Part, ...],
    life: int,
    snapshot: Snapshot,
    settings: Settings,
) -> tuple[_Part | None, list[Loss]]:
    """Return the first readable part and the offsets lost before it. Raises as `reading_of`."""
    lost = []
    for start, until in parts:
        found = reading_of(log, start, snapshot, settings)
        lost += [
            replace(loss, until_offset=min(loss.until_offset, until), incarnation=life)
            for loss in found.lost
        ]
        if found.position < until:
            if until > found.end_offset:
                message = f"The readable end of the log is {found.end_offset}, and the backfill was begun up to {until}"
                raise NotYetReadable(
                    message,
                    **log.place,
                    offset=until,
                    action="Check its leader, and open transactions; a retry continues",
                )
            return (found.position, until), lost
    return None, lost


def _reject_truncated_topics(
    left: Mapping[BrokerPartition, tuple[_Part, ...]], last: Plan, snapshot: Snapshot
) -> None:
    """Reject partitions that changed below the end of the reservation; the leader's end was at or
    above it then.
    """
    for log, parts in sorted(left.items()):
        until, end, extent = parts[-1][1], snapshot.epoch_ends.get(log), snapshot.extents.get(log)
        ends = [extent.end_offset + extent.held_back] if extent else []
        if end and end.asked_epoch == last.leader_epochs.get(log):
            ends.append(end.end_offset)
        if ends and min(ends) < until:
            message = (
                f"The log was cut at offset {min(ends)}, and the backfill loads it up to {until}"
            )
            action = "Check whether an unclean leader was elected, or a broker lost its disk; `etl run CONF` says whether the pipeline can continue"
            raise PartitionTruncated(message, **log.place, offset=until, action=action)


def _reject_unavailable(
    left: Mapping[BrokerPartition, object], snapshot: Snapshot, settings: Settings
) -> None:
    for log in sorted(left.keys() - snapshot.extents.keys()):
        if log not in snapshot.leaderless:
            message = "The brokers do not know this partition any more, or the conf does not name its topic"
            raise NeedsDecision(
                message, **log.place, action="Check source.topics, and whether it was deleted"
            )
        if settings.source.on_no_leader is OnNoLeader.FAIL:
            action = "Check the brokers that hold its replicas; to continue without it set source.on_no_leader: skip"
            raise BrokerUnreachable("The partition has no leader", **log.place, action=action)


@dataclass(frozen=True, slots=True)
class BackfillRequest(ReplayRequest):
    """What to backfill. Without names: all partitions of the conf's topics."""

    asked: str = ""
    """The request as text, by which it is recognised."""
    only_missing: bool = False
    """Only offsets that nobody has loaded or reserved."""

    def covers(self, log: BrokerPartition) -> bool:
        """True if the request includes the partition."""
        return not self.named or any(one.covers(log) for one in self.named)


def logs_of(request: BackfillRequest, live: Plan, snapshot: Snapshot) -> list[BrokerPartition]:
    """The logs that are meant; all can be read now, and the live pipeline has begun them. Raises
    SettingsError, BrokerUnreachable.
    """
    there = {*snapshot.extents, *snapshot.leaderless}
    for one in request.named:
        if not any(one.covers(log) for log in there):
            message = f"The brokers have no {one}, or the conf does not name its topic"
            raise SettingsError(
                message,
                key="--topic" if one.log is None else "--partition",
                action="Check with `etl offsets show CONF`",
            )
    logs = sorted(log for log in there if request.covers(log))
    for log in logs:
        if log not in live.positions:
            message = "The pipeline has not begun this partition, so nobody knows yet what of it is left for a backfill"
            raise SettingsError(
                message,
                **log.place,
                action="Run `etl run CONF`, which decides where it begins; then run this command again",
            )
        if log not in snapshot.extents:
            raise BrokerUnreachable(f"The partition {log.unled}", **log.place, action=log.held_by)
    return logs


def intervals_of(
    request: BackfillRequest,
    logs: Iterable[BrokerPartition],
    found: Found,
    snapshot: Snapshot,
    *,
    now_ms: int,
) -> dict[BrokerPartition, tuple[int, int]]:
    """Return start and end of each partition with something requested. Raises as the module's
    table.
    """
    if isinstance(request.until, Timestamp) and request.until.ms > now_ms:
        message = f"The interval is not over: its end is in the future by {(request.until.ms - now_ms) / 1000:,.0f} s, by this machine's clock"
        raise NotReady(
            message,
            key="--until",
            action="Run this command again after that time; records that come until then would be missing",
        )
    intervals, logs = {}, list(logs)
    _reject_above_all_ends(request, logs, snapshot)
    for log in logs:
        low, high = (
            bound if isinstance(bound, int) else found[log, bound.ms]
            for bound in (request.from_, request.until)
        )
        low = _retained(log, low, request, snapshot)
        if low < high:
            _reject_above_end(log, high, request, snapshot)
            for offset, key in ((low, "--from"), (high, "--until")):
                reject_misaligned_offset(log, offset, snapshot, key=key)
            intervals[log] = low, high
    if not intervals:
        message = "No record of these logs lies in the interval" + (
            ", and is retained" if request.only_retained else ""
        )
        raise SettingsError(
            message,
            key="--from",
            action="Compare --from and --until with the offsets of `etl offsets show CONF`",
        )
    return intervals


def _retained(log: BrokerPartition, low: int, request: BackfillRequest, snapshot: Snapshot) -> int:
    """Return the start of the interval. By time, brokers find only retained records, so earlier
    ones may be meant.
    """
    start = snapshot.extents[log].log_start_offset
    is_gone = low < start if isinstance(request.from_, int) else low <= start and start > 0
    if not is_gone or request.only_retained:
        return max(low, start)
    if isinstance(request.from_, int):
        message = f"Offsets {low} to {start} are gone: the log starts at {start}"
    else:
        message = f"The log starts at {start}, so records of the interval may be gone"
    raise DataLoss(
        message,
        **log.place,
        offset=low,
        action="Pass `--only-retained`, which loads what the log still has; or a later --from",
    )


def _reject_above_all_ends(
    request: BackfillRequest, logs: Iterable[BrokerPartition], snapshot: Snapshot
) -> None:
    """Reject an interval that lies above the ends of all partitions; what comes there is the live
    pipeline's.
    """
    highest = max(
        (
            extent.end_offset + extent.held_back
            for extent in map(snapshot.extents.__getitem__, logs)
        ),
        default=None,
    )
    if isinstance(request.from_, int) and highest is not None and request.from_ > highest:
        message = (
            f"The interval begins at offset {request.from_}, and the longest log ends at {highest}"
        )
        raise SettingsError(
            message,
            key="--from",
            action="Write a number for an offset; a time is written 2026-01-31T00:00:00+00:00",
        )


def _reject_above_end(
    log: BrokerPartition, high: int, request: BackfillRequest, snapshot: Snapshot
) -> None:
    extent = snapshot.extents[log]
    if high <= extent.end_offset or request.only_missing:  # what lies there is the live pipeline's
        return
    if high <= extent.end_offset + extent.held_back:
        message = f"The interval ends above the last stable offset {extent.end_offset}: a transaction is open there"
        raise NotYetReadable(
            message, **log.place, offset=high, action="When the transaction ends, say it again"
        )
    message = f"The interval ends at {high}, and the log at {extent.end_offset}"
    raise SettingsError(
        message, key="--until", **log.place, action=f"Pass --until {extent.end_offset}, or less"
    )


def reserved_intervals(
    request: BackfillRequest,
    intervals: Mapping[BrokerPartition, tuple[int, int]],
    live: Stretches,
    lives: Mapping[BrokerPartition, int],
    claims: Reservations,
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return what is reserved of each partition; empty if others have all of it.

    `live`: what the live pipeline reserves. Raises SettingsError if others reserved a part, unless
    only missing offsets are requested.
    """
    stretches = {}
    for log, interval in sorted(intervals.items()):
        held = [("the pipeline", part) for part in live.get(log, ())]
        held += [
            (f"backfill {one.name}", part)
            for one in claims
            if one.incarnation_of(log) == lives.get(log, 0)
            for part in one.stretches.get(log, ())
        ]
        left = without(interval, (part for _, part in held))
        if left:
            _reject_other_incarnation(log, lives.get(log, 0))
        if left != [interval] and not request.only_missing:
            raise _held(
                log,
                interval,
                next(one for one in held if without(interval, [one[1]]) != [interval]),
                left,
            )
        if left:
            stretches[log] = tuple(left)
    return stretches


def _reject_other_incarnation(log: BrokerPartition, life: int) -> None:
    """Reject a partition of a later incarnation: neither reservations nor rows of the current one
    tell what earlier ones loaded.
    """
    if life:
        message = (
            "This partition was cut or made again since the pipeline began it, and what the table has of the interval from before "
            "that cannot be told from what is missing"
        )
        raise NeedsDecision(
            message,
            **log.place,
            action="Pass `--topic TOPIC --partition PARTITION`, which leaves this partition out",
        )


def _held(
    log: BrokerPartition,
    interval: tuple[int, int],
    by: tuple[str, tuple[int, int]],
    left: list[tuple[int, int]],
) -> SettingsError:
    who, (start, until) = by
    low, high = max(start, interval[0]), min(until, interval[1])
    if until == OFFSETS_END:
        message = f"{who} loads this partition from offset {start} on, and the interval is {interval[0]} to {interval[1]}"
    elif who.startswith("backfill"):
        message = f"{who} has loaded offsets {low} to {high}, or will"
    else:
        message = f"{who} has loaded {low} to {high}"
    free = ", ".join(f"{start} to {until}" for start, until in left) or "nothing of the interval"
    action = f"Pass `--only-unloaded`, which fills only what nobody else loads ({free})"
    if who.startswith("backfill"):
        action += "; rows of it that somebody deleted since: `etl backfills delete` of that one gives them back"
    else:
        action += "; what is loaded and is to be read again takes `etl replay`"
    return SettingsError(message, key="--from", **log.place, offset=low, action=action)


def reject_other_bounds(claim: Reservation, bounds: str) -> None:
    """A name stands for one backfill. Raises SettingsError."""
    if claim.asked != bounds:
        message = f"Backfill {claim.name} was begun {claim.asked}, and now it is asked for {bounds}"
        action = f"Use another name for another interval; `etl backfills run CONF {claim.name}` goes on with that one"
        raise SettingsError(message, key="NAME", action=action)
