"""Which offsets the next plan holds. Pure functions of values.

What is decided here and nowhere else: what becomes of offsets that are gone, and of a stored plan that cannot be finished. Where a log
starts that was never read is decided in `start`, how much of it one run reads in `caps`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from etl.decisions.caps import share_caps
from etl.decisions.log_identity import record_epochs, refuse_other_logs
from etl.decisions.start import pending_starts, start_of, starts_of
from etl.decisions.tasks import cut_ranges
from etl.errors import BadOffset, BrokerUnreachable, DataLoss, EtlError, NeedsDecision, NotYetReadable, SettingsError
from etl.model.ledger import Ledger
from etl.model.logs import BrokerPartition, Isolation, Lineage
from etl.model.plans import NOTHING_COMMITTED, Loss, OffsetRange, Plan, PlanKind, LossReason
from etl.model.snapshot import FirstRun, UpToDate, Replay, Snapshot, Supersede
from etl.settings.policies import OnDataLoss, OnNoLeader
from etl.settings.sections import Settings

Span = TypeVar("Span", OffsetRange, Loss)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One log that this plan may read: from its position, past the losses that policy let go, up to the end."""

    position: int
    end_offset: int
    lost: tuple[Loss, ...] = ()


def plan_next(snapshot: Snapshot, state: FirstRun | UpToDate, settings: Settings, *, uid: str, now_ms: int) -> Plan | None:
    """The next plan, without its id, or None when there is nothing to read and nothing new to keep.

    Raises DataLoss, BadOffset, NeedsDecision or BrokerUnreachable where policy says `fail`, NotYetReadable for a position that an open
    transaction covers.
    """
    last = state.last if isinstance(state, UpToDate) else None
    known = state.positions if isinstance(state, UpToDate) else {}
    number = last.number + 1 if last else 1
    plan = _plan_from(known, last, snapshot, settings, number=number, uid=uid, now_ms=now_ms)
    if isinstance(state, UpToDate):
        passed = (Loss(log, state.last.positions[log], offset, LossReason.MOVED, state.last.log_epochs.get(log, 0))
                  for log, offset in sorted(state.followed.items()))
        plan = replace(plan, losses=(*passed, *plan.losses), previous=state.last.id)
    is_news = plan.positions.keys() - known.keys() or plan.pending_starts.keys() - (last.pending_starts.keys() if last else ())
    return plan if plan.ranges or plan.losses or is_news else None


def plan_instead(state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int) -> Plan:
    """The plan that takes the number of one that cannot be finished, without its id: from where that one started, to the ends of now.

    What the old plan let go stays let go, and what it saw of the offsets stays the expected side of compare-and-set. In a log that cannot
    be read now the position stays, and what the old plan let go behind it is for the plan to say that reads it. Raises as `plan_next`,
    and SettingsError when `skipped` names offsets that it does not read.
    """
    old, among = state.plan, let_go_among(state.plan)
    earlier = [loss for loss in among if loss.log in snapshot.extents]
    kept = [loss for loss in old.losses if loss in earlier or loss not in among]
    skipped = [replace(skip, log_epoch=old.log_epochs.get(skip.log, 0)) for skip in state.skipped]
    skips = (*earlier, *skipped)
    _refuse_leaderless_skips(skipped, snapshot)
    plan = _plan_from(starts_of(old), old, snapshot, settings, number=old.number, uid=old.uid, now_ms=now_ms, beyond=skips)
    ranges = tuple(leave_out(_without(plan.ranges, earlier), skipped))
    return replace(
        plan, ranges=ranges, seen={**plan.seen, **old.seen}, previous=old.previous, supersedes=old.id, reason=state.reason,
        losses=(*kept, *_without(plan.losses, earlier), *skipped), vanished=old.vanished,
        took_over=old.took_over)


def let_go_among(plan: Plan) -> tuple[Loss, ...]:
    """What this plan let go and another one in its place would read again, since it lies behind a range's start: skipped, or missing."""
    starts = starts_of(plan)
    current = (loss for loss in plan.losses if loss.log_epoch == plan.log_epochs.get(loss.log, 0))
    return tuple(loss for loss in current if loss.until_offset > starts[loss.log])


def plan_without(plan: Plan, missing: Sequence[Loss], *, now_ms: int) -> Plan:
    """The plan that takes the place of one whose logs lack some of its offsets, without its id: the same, and those are let go."""
    missing = [replace(loss, log_epoch=plan.log_epochs.get(loss.log, 0)) for loss in missing]
    ranges = tuple(leave_out(plan.ranges, missing))
    count = sum(loss.until_offset - loss.from_offset for loss in missing)
    first = f"{missing[0].log.topic} {missing[0].log.partition} from {missing[0].from_offset}"
    return replace(
        plan, ranges=ranges, kind=PlanKind.INGEST if ranges else PlanKind.START, created_at_ms=now_ms, supersedes=plan.id,
        reason=f"{count:,} of its offsets are missing from the logs, the first of them {first}", losses=(*plan.losses, *missing), id="")


def replay_or_supersede(state: Replay, snapshot: Snapshot, settings: Settings) -> Replay | Supersede:
    """What becomes of a stored plan: it is replayed word for word, or superseded where policy lets it: its range has expired, or a log
    that it reads has no leader.

    Raises NeedsDecision when a topic was deleted or made again or the conf shapes rows in another way by now, DataLoss and
    BrokerUnreachable when policy says `fail`.
    """
    plan = state.plan
    _refuse_gone_topics(plan, snapshot)
    refuse_other_logs(plan, snapshot)
    _refuse_leaderless_ranges(plan, snapshot, settings)
    leaderless = sorted(snapshot.leaderless & {r.log for r in plan.ranges})
    if leaderless:
        more = f" (and {len(leaderless) - 1:,} more partitions)" if leaderless[1:] else ""
        return Supersede(plan, f"{leaderless[0].topic} {leaderless[0].partition} has no leader{more}: a later plan reads what it holds")
    for r in plan.ranges:
        extent = snapshot.extents.get(r.log)
        if extent and r.from_offset < extent.log_start_offset:
            _reading(r.log, r.from_offset, snapshot, settings)  # raises under `fail`
            place = f"{r.log.topic} {r.log.partition}"
            return Supersede(plan, f"{place}: its range starts at {r.from_offset}, and the log at {extent.log_start_offset} by now")
    _refuse_another_shape(plan, settings)
    return state


def topics_left_to_read(ledger: Ledger) -> set[str]:
    """Those of a plan that is stored and of which nobody knows that it was executed."""
    return {r.log.topic for r in ledger.newest.ranges} if ledger.newest and ledger.applied is None else set()


def _refuse_gone_topics(plan: Plan, snapshot: Snapshot) -> None:
    gone = sorted(snapshot.gone_topics & {r.log.topic for r in plan.ranges})
    if gone:
        others = f" (and {len(gone) - 1:,} more topics)" if gone[1:] else ""
        what = f"plan {plan.number} is stored and not in the table, and the brokers do not know this topic of it any more{others}"
        check = (
            "whether it was deleted: then what the table lacks of it is gone, and the plan without it is: "
            f"etl plans supersede CONF {plan.number} --reason ...")
        raise NeedsDecision(what, topic=gone[0], check=check)


def leave_out(ranges: Iterable[OffsetRange], skipped: Sequence[Loss]) -> Iterable[OffsetRange]:
    """The ranges without the skipped offsets. Raises SettingsError for offsets that no range holds."""
    left = list(ranges)
    for skip in skipped:
        cut = _without(left, [skip])
        if sum(r.size for r in left) - sum(r.size for r in cut) != skip.until_offset - skip.from_offset:
            what = f"offsets {skip.from_offset} to {skip.until_offset} are not all in the plan's ranges"
            check = "the ranges in `etl plans show CONF N`"
            raise SettingsError(what, topic=skip.log.topic, partition=skip.log.partition, check=check)
        left = cut
    return left


def _without(found: Iterable[Span], skipped: Iterable[Loss]) -> list[Span]:
    """Ranges or losses without what was skipped of them."""
    left = list(found)
    for skip in skipped:
        left = [part for one in left for part in _around(one, skip)]
    return left


def _around(r: Span, skip: Loss) -> Iterable[Span]:
    if r.log != skip.log or skip.until_offset <= r.from_offset or r.until_offset <= skip.from_offset:
        yield r
        return
    if r.from_offset < skip.from_offset:
        yield replace(r, until_offset=skip.from_offset)
    if skip.until_offset < r.until_offset:
        yield replace(r, from_offset=skip.until_offset)


def _plan_from(
    known: Mapping[BrokerPartition, int], last: Plan | None, snapshot: Snapshot, settings: Settings,
    *, number: int, uid: str, now_ms: int, beyond: Iterable[Loss] = (),
) -> Plan:
    """A plan that reads from the known positions, and from where policy says for logs that are not known, to the ends.

    No cap ends a log before offsets of `beyond` do: they are this plan's to leave out, and no later plan knows of them.
    """
    if last:
        refuse_other_logs(last, snapshot, {log: min(position, known.get(log, position)) for log, position in last.positions.items()})
    _refuse_leaderless(snapshot, settings)
    starts = {log: known[log] if log in known else start_of(log, snapshot, last, settings) for log in sorted(snapshot.extents)}
    readings = {log: _reading(log, start, snapshot, settings) for log, start in starts.items() if start is not None}
    stops = share_caps({log: (r.position, r.end_offset) for log, r in readings.items()}, snapshot.bytes_per_offset, settings.limits, number)
    for skip in beyond:
        if skip.log in stops:
            stops[skip.log] = max(stops[skip.log], min(skip.until_offset, readings[skip.log].end_offset))
    wholes = (OffsetRange(log, r.position, stops[log], snapshot.leaders.get(log)) for log, r in readings.items())
    ranges = cut_ranges(wholes, snapshot.bytes_per_offset, settings.limits.target_task_bytes, snapshot.parallelism)
    positions = {**known, **stops}
    there = (*snapshot.extents, *snapshot.leaderless, *snapshot.owners)
    table, log_epochs = snapshot.table, dict(last.log_epochs) if last else {}
    return Plan(
        number=number, uid=uid, kind=PlanKind.INGEST if ranges else PlanKind.START, created_at_ms=now_ms,
        dialect=settings.source.dialect, cluster=snapshot.cluster, shape=shape_of_rows(settings), ranges=ranges, positions=positions,
        seen={log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in positions},
        table_id=table.id if table else None, table_transaction_version=(table.transaction_version or 0) if table else 0,
        table_version=table.version if table else None, heir_of=last.heir_of if last else (),
        topic_ids={**(last.topic_ids if last else {}), **snapshot.topic_ids},
        losses=tuple(replace(loss, log_epoch=log_epochs.get(loss.log, 0)) for r in readings.values() for loss in r.lost),
        pending_starts=pending_starts(there, positions, last, settings, now_ms=now_ms),
        log_starts={log: snapshot.extents[log].log_start_offset for log in readings},
        leader_epochs=_leader_epochs(last, known, readings, snapshot),
        record_epochs=_record_epochs(last, known, readings, snapshot, number), log_epochs=log_epochs,
    )


def _leader_epochs(
    last: Plan | None, known: Mapping[BrokerPartition, int], readings: Collection[BrokerPartition], snapshot: Snapshot,
) -> dict[BrokerPartition, int]:
    """Those of the leaders that told the ends. A log whose leader tells none loses its old one, which need not reach up to a new end."""
    old = last.leader_epochs if last else {}
    kept = {log: epoch for log, epoch in old.items() if last and log not in readings and known[log] <= last.positions[log]}
    return {**kept, **{log: epoch for log, epoch in snapshot.leader_epochs.items() if log in readings}}


def _record_epochs(
    last: Plan | None, known: Mapping[BrokerPartition, int], readings: Mapping[BrokerPartition, _Reading], snapshot: Snapshot, number: int,
) -> dict[BrokerPartition, Lineage]:
    """Of the record batches read up to where this plan begins, in the place of the last one or behind it.

    Where a log begins further on, past what expired or was passed over, nobody has read what is before.
    """
    if last is None:
        return {}
    epochs, reached = (last.record_epochs, known) if last.number == number else (
        record_epochs(last, snapshot.ledger.applied), last.positions)
    begins = {log: readings[log].position if log in readings else known[log] for log in epochs}
    return {log: epoch for log, epoch in epochs.items() if begins[log] == reached[log]}


def _refuse_another_shape(plan: Plan, settings: Settings) -> None:
    """A stored plan is replayed word for word: rows of another shape would not be its rows. Raises NeedsDecision."""
    if plan.shape != shape_of_rows(settings):
        what = f"plan {plan.number} is stored but not in the table, and the conf has changed what shapes its rows since"
        check = (
            f"`etl plans supersede CONF {plan.number} --reason ...`: the same offsets are then read as the conf says now, nothing is lost; "
            "or put source.isolation, transform and table.partition_by back for one run, then change them")
        raise NeedsDecision(what, check=check)


def shape_of_rows(settings: Settings) -> str:
    """Hash of the settings that shape the rows."""
    shaping = [settings.source.isolation.value, settings.transform, list(settings.table.partition_by)]
    return hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:16]


def may_be_transformed(plan: Plan, settings: Settings) -> bool:
    """Whether a transform may have made the plan's rows. Of what shaped them a plan keeps the hash alone, so: unless it is that of none."""
    plain = (settings.model_copy(update={"transform": None, "source": settings.source.model_copy(update={"isolation": isolation})})
             for isolation in Isolation)
    return all(plan.shape != shape_of_rows(one) for one in plain)


def _reading(log: BrokerPartition, wanted: int, snapshot: Snapshot, settings: Settings) -> _Reading:
    extent = snapshot.extents[log]
    if extent.end_offset < wanted <= extent.end_offset + extent.held_back:
        what = f"the position lies above the last stable offset {extent.end_offset}: a transaction is open there"
        check = "who left the transaction open (kafka-transactions.sh find-hanging); once it ends, a retry goes on"
        raise NotYetReadable(what, topic=log.topic, partition=log.partition, offset=wanted, check=check)
    if wanted > extent.end_offset:
        raise _above_the_end(log, wanted, snapshot)
    if wanted >= extent.log_start_offset:
        return _Reading(wanted, extent.end_offset)
    if settings.source.on_data_loss is OnDataLoss.FAIL:
        what = f"{extent.log_start_offset - wanted:,} offsets are gone: wanted {wanted}, the log starts at {extent.log_start_offset}"
        check = "the topic's retention against how often this runs; to go on without them set source.on_data_loss: skip"
        raise DataLoss(what, topic=log.topic, partition=log.partition, offset=wanted, check=check)
    return _Reading(extent.log_start_offset, extent.end_offset, (Loss(log, wanted, extent.log_start_offset, LossReason.EXPIRED),))


def _above_the_end(log: BrokerPartition, wanted: int, snapshot: Snapshot) -> EtlError:
    """A log that was cut is told before this: of ours it is one whose leader does not give out its last records yet (KIP-207)."""
    extent, newest = snapshot.extents[log], snapshot.ledger.newest
    place: dict[str, Any] = {"topic": log.topic, "partition": log.partition, "offset": wanted}
    holds = f"the log can be read from {extent.log_start_offset} to {extent.end_offset}"
    ours = newest.positions.get(log) if newest else None
    if ours is not None and wanted <= ours:
        check = f"its leader, and open transactions; {holds}"
        return NotYetReadable("the readable end of the log lies below our position", check=check, **place)
    check = f"who committed it: {holds}; " + (
        "set the committed offset to one of these, or remove it to start where policy says" if ours is None else
        f"set the committed offset back to ours, {ours}")
    return BadOffset("the committed offset lies above the end of the log", check=check, **place)


def _refuse_leaderless(snapshot: Snapshot, settings: Settings) -> None:
    if snapshot.leaderless and settings.source.on_no_leader is OnNoLeader.FAIL:
        log = min(snapshot.leaderless)
        check = "the brokers that hold its replicas; to go on without it set source.on_no_leader: skip"
        raise BrokerUnreachable("the partition has no leader", topic=log.topic, partition=log.partition, check=check)


def _refuse_leaderless_ranges(plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
    """A stored plan reads all of its logs or none. Raises BrokerUnreachable under `fail`."""
    logs = snapshot.leaderless & {r.log for r in plan.ranges}
    if logs and settings.source.on_no_leader is OnNoLeader.FAIL:
        what = f"the partition has no leader, and plan {plan.number}, which is stored and not in the table, reads it"
        check = (
            "the brokers that hold its replicas; under source.on_no_leader: skip a run puts a plan without it in its place, and what it "
            "holds is read once it has a leader again")
        raise BrokerUnreachable(what, topic=min(logs).topic, partition=min(logs).partition, check=check)


def _refuse_leaderless_skips(skipped: Iterable[Loss], snapshot: Snapshot) -> None:
    """What is skipped is let go by the plan that passes it, which cannot be one that does not read the log. Raises BrokerUnreachable."""
    for skip in skipped:
        if skip.log in snapshot.leaderless:
            what = "the partition has no leader, so none of its offsets can be skipped now"
            check = "the brokers that hold its replicas"
            raise BrokerUnreachable(what, topic=skip.log.topic, partition=skip.log.partition, check=check)
