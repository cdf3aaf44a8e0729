"""Which offsets the next plan holds. Pure functions of values.

What is decided here and nowhere else: how far a plan reads, and what becomes of offsets that are
gone. Where a log starts that was never read is `start`'s, how much of it one run reads `caps`', how
it is cut `tasks`'; what becomes of a stored plan that cannot be finished is decided in `replay`,
and `replacement` makes the one that takes its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from etl.decisions.byte_positions.boundaries import boundaries_of, end_at_or_above
from etl.decisions.byte_positions.misplaced_offsets import refuse_inside_entries
from etl.decisions.caps import share_caps
from etl.decisions.handing_over import read_by_others
from etl.decisions.identity.log_identity import record_epochs, refuse_other_logs
from etl.decisions.identity.made_again import kept_creations, kept_ids
from etl.decisions.identity.tails import kept_tails
from etl.decisions.rows_before import lives_begun, rows_before
from etl.decisions.run_keys import (
    NOTHING_ASKED,
    Asking,
    asking_of,
    left_of_key,
    refuse_start_by_offsets,
    refuse_unread_before,
)
from etl.decisions.shape import shape_of_rows
from etl.decisions.start import pending_offsets, pending_starts, start_of
from etl.decisions.tasks import cut_ranges
from etl.errors import BadOffset, BrokerUnreachable, DataLoss, EtlError, NotYetReadable
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Lineage
from etl.model.plans import Loss, LossReason, OffsetRange, Plan, PlanKind
from etl.model.snapshot import FirstRun, Snapshot, UpToDate
from etl.settings.choices import OnDataLoss, OnNoLeader
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class _Reading:
    """One log that this plan may read: from its position, past the losses that policy let go, up to
    the end.
    """

    position: int
    end_offset: int
    lost: tuple[Loss, ...] = ()


def plan_next(
    snapshot: Snapshot, state: FirstRun | UpToDate, settings: Settings, *, uid: str, now_ms: int
) -> Plan | None:
    """The next plan, without its id, or None when there is nothing to read and nothing new to keep.

    Raises DataLoss, BadOffset, NeedsDecision or BrokerUnreachable where policy says `fail`,
    NotYetReadable for a position that an open transaction covers, OffsetInsideMessage for one that
    somebody told and at which no message begins, SettingsError for a first start by offsets.
    """
    last = state.last if isinstance(state, UpToDate) else None
    known = state.positions if isinstance(state, UpToDate) else {}
    number = last.number + 1 if last else 1
    left_by_others = {
        log: told.offset for log, told in snapshot.committed.items() if told.offset is not None
    }
    refuse_start_by_offsets(snapshot.asked, last)
    refuse_unread_before(snapshot.asked, known or left_by_others, snapshot)
    asking = asking_of(snapshot.asked, last, snapshot)
    plan = plan_from(
        known, last, snapshot, settings, number=number, uid=uid, now_ms=now_ms, asking=asking
    )
    if isinstance(state, UpToDate):
        passed = (
            Loss(
                log,
                state.last.positions[log],
                offset,
                LossReason.MOVED,
                state.last.log_epochs.get(log, 0),
            )
            for log, offset in sorted(state.followed.items())
        )
        holes = read_by_others(state.last, state.passed)
        plan = replace(
            plan, losses=(*passed, *plan.losses), previous=state.last.id, read_by_others=holes
        )
    is_news = plan.positions.keys() - known.keys() or plan.pending_starts.keys() - (
        last.pending_starts.keys() if last else ()
    )
    return plan if plan.ranges or plan.losses or is_news else None


def plan_from(
    known: Mapping[BrokerPartition, int],
    last: Plan | None,
    snapshot: Snapshot,
    settings: Settings,
    *,
    number: int,
    uid: str,
    now_ms: int,
    beyond: Collection[Loss] = (),
    asking: Asking = NOTHING_ASKED,
) -> Plan:
    """A plan that reads known logs from their positions, new ones from where policy says, all of
    them to their ends or what is asked for.

    No cap ends a log before offsets of `beyond` do: they are this plan's to leave out, and no later
    plan knows of them. Raises NeedsDecision for a new log whose rows the table holds already.
    """
    if last:
        refuse_other_logs(
            last,
            snapshot,
            {
                log: min(position, known.get(log, position))
                for log, position in last.positions.items()
            },
        )
    _refuse_leaderless(snapshot, settings)
    starts = {
        log: known[log] if log in known else start_of(log, snapshot, last, settings)
        for log in sorted(snapshot.extents)
    }
    whole = {
        log: reading_of(log, start, snapshot, settings)
        for log, start in starts.items()
        if start is not None
    }
    readings = {
        log: replace(r, end_offset=asking.until(log, r.position, r.end_offset))
        for log, r in whole.items()
    }
    skips = {(skip.log, skip.from_offset) for skip in beyond}
    begins = {**known, **{log: reading.position for log, reading in readings.items()}}
    begins = {log: position for log, position in begins.items() if (log, position) not in skips}
    refuse_inside_entries(
        begins, snapshot, last, is_left=last is not None and last.number == number
    )
    sizes, known_ends = snapshot.bytes_per_offset, boundaries_of(snapshot.extents)
    stops = share_caps(
        {log: (r.position, r.end_offset) for log, r in readings.items()},
        sizes,
        settings.limits,
        number,
        known_ends,
    )
    for skip in beyond:
        if skip.log in stops:
            skipped = min(
                end_at_or_above(skip.log, skip.until_offset, known_ends),
                readings[skip.log].end_offset,
            )
            stops[skip.log] = max(stops[skip.log], skipped)
    wholes = (
        OffsetRange(log, r.position, stops[log], snapshot.leaders.get(log))
        for log, r in readings.items()
    )
    ranges = cut_ranges(
        wholes, sizes, settings.limits.target_task_bytes, snapshot.parallelism, known_ends
    )
    positions = {**known, **stops}
    there = (*snapshot.extents, *snapshot.leaderless, *snapshot.owners, *snapshot.paused)
    table, before = snapshot.table, rows_before(last, snapshot)
    begun = {log: reading.position for log, reading in readings.items() if log not in known}
    log_epochs = {**(last.log_epochs if last else {}), **lives_begun(before, begun, snapshot)}
    topic_ids = {**(last.topic_ids if last else {}), **snapshot.topic_ids}
    pending = pending_starts(there, positions, last, settings, now_ms=now_ms)
    return Plan(
        number=number,
        uid=uid,
        kind=PlanKind.INGEST if ranges else PlanKind.START,
        created_at_ms=now_ms,
        dialect=settings.source.dialect,
        cluster=snapshot.cluster,
        shape=shape_of_rows(settings),
        ranges=ranges,
        positions=positions,
        seen={log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in positions},
        table_id=table.id if table else None,
        table_transaction_version=(table.transaction_version or 0) if table else 0,
        table_version=table.version if table else None,
        heir_of=last.heir_of if last else (),
        topic_ids=topic_ids,
        creation_ids=kept_creations(
            topic_ids, last.creation_ids if last else {}, snapshot.creation_ids
        ),
        log_topic_ids=kept_ids(last, snapshot.extents, positions, topic_ids),
        tails=kept_tails(last, positions, snapshot),
        losses=tuple(
            replace(loss, log_epoch=log_epochs.get(loss.log, 0))
            for r in readings.values()
            for loss in r.lost
        ),
        pending_starts=pending,
        pending_offsets=pending_offsets(pending, last, snapshot, settings),
        log_starts={log: snapshot.extents[log].log_start_offset for log in readings},
        leader_epochs=_leader_epochs(last, known, readings, snapshot),
        record_epochs=_record_epochs(last, known, readings, snapshot, number),
        log_epochs=log_epochs,
        cluster_id=snapshot.cluster_id,
        offsets_in=snapshot.offsets_in,
        time_zone=snapshot.time_zone,
        rows_before=before,
        run_key=asking.run_key,
        bounds=asking.bounds,
        key_ends=left_of_key(
            asking, {log: r.end_offset for log, r in readings.items()}, stops, positions
        ),
    )


def _leader_epochs(
    last: Plan | None,
    known: Mapping[BrokerPartition, int],
    readings: Collection[BrokerPartition],
    snapshot: Snapshot,
) -> dict[BrokerPartition, int]:
    """The epochs of the leaders that told the ends. Without one the old epoch is dropped: it need
    not reach up to the new end.
    """
    old = last.leader_epochs if last else {}
    kept = {
        log: epoch
        for log, epoch in old.items()
        if last and log not in readings and known[log] <= last.positions[log]
    }
    return {
        **kept,
        **{log: epoch for log, epoch in snapshot.leader_epochs.items() if log in readings},
    }


def _record_epochs(
    last: Plan | None,
    known: Mapping[BrokerPartition, int],
    readings: Mapping[BrokerPartition, _Reading],
    snapshot: Snapshot,
    number: int,
) -> dict[BrokerPartition, Lineage]:
    """The epochs of the record batches read up to where this plan begins, be it in the place of the
    last plan or behind it.

    Where a log begins further on, past what expired or was passed over, nobody has read what is
    before.
    """
    if last is None:
        return {}
    epochs, reached = (
        (last.record_epochs, known)
        if last.number == number
        else (record_epochs(last, snapshot.ledger.applied), last.positions)
    )
    begins = {log: readings[log].position if log in readings else known[log] for log in epochs}
    return {log: epoch for log, epoch in epochs.items() if begins[log] == reached[log]}


def reading_of(
    log: BrokerPartition, wanted: int, snapshot: Snapshot, settings: Settings
) -> _Reading:
    """What of one log can be read from `wanted` on. Raises NotYetReadable, BadOffset, and DataLoss
    where policy says `fail`.
    """
    extent = snapshot.extents[log]
    if extent.end_offset < wanted <= extent.end_offset + extent.held_back:
        what = f"the position lies above the last stable offset {extent.end_offset}: a transaction is open there"
        check = "who left the transaction open (kafka-transactions.sh find-hanging); once it ends, a retry goes on"
        raise NotYetReadable(what, **log.place, offset=wanted, check=check)
    if wanted > extent.end_offset:
        raise _above_the_end(log, wanted, snapshot)
    if wanted >= extent.log_start_offset:
        return _Reading(wanted, extent.end_offset)
    if settings.source.on_data_loss is OnDataLoss.FAIL:
        what = f"{extent.log_start_offset - wanted:,} {log.unit}s are gone: wanted {wanted}, the log starts at {extent.log_start_offset}"
        check = "the topic's retention against how often this runs; to go on without them set source.on_data_loss: skip"
        raise DataLoss(what, **log.place, offset=wanted, check=check)
    return _Reading(
        extent.log_start_offset,
        extent.end_offset,
        (Loss(log, wanted, extent.log_start_offset, LossReason.EXPIRED),),
    )


def _above_the_end(log: BrokerPartition, wanted: int, snapshot: Snapshot) -> EtlError:
    """The error for a position above the end. Cut logs are told before, so the leader does not give
    its last records yet (KIP-207).
    """
    extent, newest = snapshot.extents[log], snapshot.ledger.newest
    place = {**log.place, "offset": wanted}
    holds = f"the log can be read from {extent.log_start_offset} to {extent.end_offset}"
    ours = newest.positions.get(log) if newest else None
    if ours is not None and wanted <= ours:
        check = f"its leader, and open transactions; {holds}"
        return NotYetReadable(
            "the readable end of the log lies below our position", check=check, **place
        )
    check = f"who committed it: {holds}; " + (
        "set the committed offset to one of these, or remove it to start where policy says"
        if ours is None
        else f"set the committed offset back to ours, {ours}"
    )
    return BadOffset("the committed offset lies above the end of the log", check=check, **place)


def _refuse_leaderless(snapshot: Snapshot, settings: Settings) -> None:
    if snapshot.leaderless and settings.source.on_no_leader is OnNoLeader.FAIL:
        log = min(snapshot.leaderless)
        check = (
            "the brokers that hold its replicas; to go on without it set source.on_no_leader: skip"
        )
        raise BrokerUnreachable("the partition has no leader", **log.place, check=check)
