"""The bounded plans of a backfill: the first, the next, the one in the place of one that cannot be
finished, and the last. Pure.

Each plan reads of every log a part of the first stretch that is left, as much as the caps allow.
Its positions are where the backfill goes on; the group's offsets do not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from etl.decisions.backfills.claiming import refuse_another_life
from etl.decisions.byte_positions.boundaries import boundaries_of
from etl.decisions.caps import share_caps
from etl.decisions.identity.log_identity import record_epochs, refuse_other_logs
from etl.decisions.plan import reading_of
from etl.decisions.shape import shape_of_rows
from etl.decisions.start import starts_of
from etl.decisions.tasks import cut_ranges
from etl.errors import BrokerUnreachable, LogTruncated, NeedsDecision, NotYetReadable
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition
from etl.model.plans import NO_BOUNDS, Loss, OffsetRange, Plan, PlanKind
from etl.model.snapshot import Reservation, ReservationState, Snapshot, Supersede, UpToDate
from etl.settings.choices import OnNoLeader
from etl.settings.sections import Settings

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
        log_epochs=dict(claim.log_epochs),
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
    """The next one, without its id; None where all is loaded, or the backfill is given up, or
    nothing that is left has a leader.

    Raises DataLoss and BrokerUnreachable where policy says `fail`, NeedsDecision and LogTruncated
    for a log that is another by now, NotYetReadable.
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


def backfill_plan_instead(
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
    """A plan behind `last` that reads on from these positions."""
    refuse_another_life(snapshot, positions)
    refuse_other_logs(last, snapshot, positions)
    left = claim.left_from(positions)
    _refuse_away(left, snapshot, settings)
    _refuse_cut(left, last, snapshot)
    readings, losses, ends = (
        dict[BrokerPartition, _Part](),
        list[Loss](),
        dict[BrokerPartition, int](),
    )
    for log in sorted(left.keys() & snapshot.extents.keys()):
        reading, lost = _readable(log, left[log], claim.life_of(log), snapshot, settings)
        losses += lost
        ends[log] = reading[0] if reading else left[log][-1][1]
        if reading:
            readings[log] = reading
    sizes, bounds = snapshot.bytes_per_offset, boundaries_of(snapshot.extents)
    stops = share_caps(readings, sizes, settings.limits, last.number + 1, bounds)
    wholes = (
        OffsetRange(log, start, stops[log], snapshot.leaders.get(log))
        for log, (start, _) in readings.items()
    )
    ranges = cut_ranges(
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
    """The first of these parts of which the log has something, and what is gone before that. Raises
    as `reading_of`.
    """
    lost = []
    for start, until in parts:
        found = reading_of(log, start, snapshot, settings)
        lost += [
            replace(loss, until_offset=min(loss.until_offset, until), log_epoch=life)
            for loss in found.lost
        ]
        if found.position < until:
            if until > found.end_offset:
                what = f"the readable end of the log is {found.end_offset}, and the backfill was begun up to {until}"
                raise NotYetReadable(
                    what,
                    **log.place,
                    offset=until,
                    check="its leader, and open transactions; a retry goes on",
                )
            return (found.position, until), lost
    return None, lost


def _refuse_cut(
    left: Mapping[BrokerPartition, tuple[_Part, ...]], last: Plan, snapshot: Snapshot
) -> None:
    """Up to the end of what is claimed each log must be the one that was claimed: the leader then
    knew of no end before that.
    """
    for log, parts in sorted(left.items()):
        until, end, extent = parts[-1][1], snapshot.epoch_ends.get(log), snapshot.extents.get(log)
        ends = [extent.end_offset + extent.held_back] if extent else []
        if end and end.asked_epoch == last.leader_epochs.get(log):
            ends.append(end.end_offset)
        if ends and min(ends) < until:
            what = f"the log was cut at offset {min(ends)}, and the backfill loads it up to {until}"
            check = "whether an unclean leader was elected, or a broker lost its disk; `etl run CONF` says whether the pipeline can go on"
            raise LogTruncated(what, **log.place, offset=until, check=check)


def _refuse_away(
    left: Mapping[BrokerPartition, object], snapshot: Snapshot, settings: Settings
) -> None:
    for log in sorted(left.keys() - snapshot.extents.keys()):
        if log not in snapshot.leaderless:
            what = "the brokers do not know this partition any more, or the conf does not name its topic"
            raise NeedsDecision(
                what, **log.place, check="source.topics, and whether it was deleted"
            )
        if settings.source.on_no_leader is OnNoLeader.FAIL:
            check = "the brokers that hold its replicas; to go on without it set source.on_no_leader: skip"
            raise BrokerUnreachable("the partition has no leader", **log.place, check=check)
