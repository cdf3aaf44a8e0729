"""What happens to a stored plan that is not in the table?

It is executed again; or, if it cannot be finished, another plan takes its number: the same offsets
without those that are gone or skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from etl.decide.backfill import backfill_replacement_plan
from etl.decide.byte_offsets import reject_misaligned_offset, reject_misaligned_offsets
from etl.decide.group_commits import (
    before,
    commits_after_append,
    is_never_committed,
    of_member,
    read_by_others,
    reject_in_doubt_commit,
    reject_without_assignment,
    stand_as_member,
)
from etl.decide.offsets import ends_of, starts_of
from etl.decide.partition_identity import (
    is_what_was_read,
    permanently_missing_topics,
    recreated_topics,
    reject_recreated_or_truncated,
    reject_stored_plan_of_recreated_topic,
    truncated_partitions,
    waiting_logs,
)
from etl.decide.plan import plan_from, reading_of, shape_of_rows
from etl.decide.replay import GIVEN_UP
from etl.decide.reservations import reject_other_incarnation
from etl.decide.run_requests import request_of_replacement
from etl.errors import BrokerUnreachable, NeedsDecision, SettingsError
from etl.model.partitions import BrokerPartition, uncounted
from etl.model.plans import LOST_WITH_LOG, Loss, LossReason, OffsetRange, Plan, PlanKind
from etl.model.snapshot import Ledger, Replay, Snapshot, Supersede
from etl.settings.choices import OnNoLeader
from etl.settings.sections import Settings

Span = TypeVar("Span", OffsetRange, Loss)


@dataclass(frozen=True, slots=True)
class GoneFrom:
    """From which offset on a log no longer holds what a stored plan reads of it."""

    offset: int
    why: LossReason


def replacement_plan(
    state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan:
    """Return the plan that takes the number of one that cannot be finished, without its id: from
    its starts to the current ends.

    What the old plan gave up stays given up, and what it saw of the offsets stays expected. In an
    unreadable partition the position stays, and its losses are left to the plan that reads it.
    Offsets that are gone with their log (`partitions_missing_offsets`) are losses of the new plan.
    Raises as `plan_next`, SettingsError if `skipped` names offsets that it does not read, and what
    `reject_in_doubt_commit` raises.
    """
    reject_in_doubt_commit(state.plan, snapshot, settings)
    if snapshot.backfill:
        return backfill_replacement_plan(
            snapshot.backfill, state, snapshot, settings, now_ms=now_ms
        )
    if is_never_committed(state.plan, snapshot, settings):
        return _anew(state, snapshot, settings, now_ms=now_ms)
    if state.plan.is_executed_as_it_is:
        return committed_replacement_plan(state, snapshot, settings, now_ms=now_ms)
    old, among = state.plan, let_go_among(state.plan)
    earlier = [loss for loss in among if loss.log in snapshot.extents]
    gone = partitions_missing_offsets(old, snapshot)
    deleted = {log for log in gone if log not in snapshot.extents}
    kept = [
        loss for loss in old.losses if loss in earlier or loss not in among or loss.log in deleted
    ]
    skipped = [
        replace(skip, incarnation=old.incarnations.get(skip.log, 0)) for skip in state.skipped
    ]
    skips = (*earlier, *skipped)
    _reject_leaderless_skips(skipped, snapshot)
    for skip in skipped:
        reject_misaligned_offset(skip.log, skip.until_offset, snapshot, key="--skip")
    plan = plan_from(
        starts_of(old),
        old,
        snapshot,
        settings,
        number=old.number,
        uid=old.uid,
        now_ms=now_ms,
        beyond=skips,
        asking=request_of_replacement(old),
    )
    ranges = without_losses(plan.ranges, earlier)
    not_read = [r for r in old.ranges if r.log in deleted]
    left = leave_out((*ranges, *not_read), skipped)
    losses = (*kept, *without_losses(plan.losses, earlier), *skipped)
    lost = without_losses(_losses_of_missing(old, gone), losses)
    return replace(
        plan,
        ranges=tuple(r for r in left if r.log not in deleted),
        seen={**plan.seen, **old.seen},
        previous=old.previous,
        supersedes=old.id,
        reason=state.reason,
        losses=(*losses, *lost),
        vanished=old.vanished,
        took_over=old.took_over,
    )


def partitions_missing_offsets(
    plan: Plan,
    snapshot: Snapshot,
    *,
    decided: Mapping[BrokerPartition, LossReason] = MappingProxyType({}),
    same: Collection[BrokerPartition] = (),
) -> dict[BrokerPartition, GoneFrom]:
    """Return the partitions that no longer hold what a stored plan reads: deleted, recreated, or
    truncated inside or below its ranges.

    `decided`: partitions that an operator accepts as such; `same`: those accepted as unchanged. If
    the extent on Jafka is unknown, the whole range counts.
    """
    again = recreated_topics(plan, snapshot)
    others = {
        log
        for log in waiting_logs(plan, snapshot)
        if is_what_was_read(log, plan, snapshot) is False
    }
    cuts = {cut.log: cut.left_until for cut in truncated_partitions(plan, snapshot, plan.positions)}
    found = dict[BrokerPartition, GoneFrom]()
    for r in sorted(plan.advancing, key=lambda r: (r.log, r.from_offset)):
        log, start = r.log, r.from_offset
        if log in found or log in same:
            continue
        if log in decided:
            found[log] = GoneFrom(start, decided[log])
        elif log.topic in snapshot.missing_topics:
            found[log] = GoneFrom(start, LossReason.DELETED)
        elif log.topic in again or log in others:
            found[log] = GoneFrom(start, LossReason.RECREATED)
        elif log in cuts:
            found[log] = GoneFrom(
                start if log.is_physical else max(start, cuts[log]), LossReason.TRUNCATED
            )
    return found


def lost_with_logs(plan: Plan, gone: Mapping[BrokerPartition, GoneFrom]) -> list[Loss]:
    """Return what of a stored plan is lost with its partitions, including its own losses there: no
    later plan reports either.
    """
    among = [
        loss
        for loss in let_go_among(plan)
        if loss.log in gone and loss.until_offset > gone[loss.log].offset
    ]
    earlier = [
        replace(loss, from_offset=max(loss.from_offset, gone[loss.log].offset)) for loss in among
    ]
    return [*earlier, *without_losses(_losses_of_missing(plan, gone), earlier)]


def _losses_of_missing(plan: Plan, gone: Mapping[BrokerPartition, GoneFrom]) -> list[Loss]:
    """Return one loss per interval of the plan's ranges that the log lacks, however many tasks read
    it.
    """
    found: list[Loss] = []
    for r in sorted(plan.advancing, key=lambda r: (r.log, r.from_offset)):
        if r.log not in gone or r.until_offset <= gone[r.log].offset:
            continue
        start = max(r.from_offset, gone[r.log].offset)
        if found and (found[-1].log, found[-1].until_offset) == (r.log, start):
            start = found.pop().from_offset
        found.append(
            Loss(r.log, start, r.until_offset, gone[r.log].why, plan.incarnations.get(r.log, 0))
        )
    return found


def committed_replacement_plan(
    state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan:
    """Return the replacement of a committed plan: its ranges without what is gone or skipped, and
    nothing more.

    What follows is not ours, and nobody else reads its ranges; of a deleted or recreated topic
    nothing is left. Raises DataLoss if policy is `fail` and nobody skipped what expired,
    SettingsError for a skip that it does not hold.
    """
    old, table = state.plan, snapshot.table
    lives, ended = old.incarnations, permanently_missing_topics(old, snapshot)
    gone = _losses_of_missing(
        old,
        {
            log: at
            for log, at in partitions_missing_offsets(old, snapshot).items()
            if log.topic in ended
        },
    )
    skipped = [replace(skip, incarnation=lives.get(skip.log, 0)) for skip in state.skipped]
    for skip in skipped:
        reject_misaligned_offset(skip.log, skip.until_offset, snapshot, key="--skip")
    by_hand = [*skipped, *without_losses(gone, skipped)]
    left = tuple(leave_out(old.ranges, by_hand))
    expired = list(_expired(replace(old, ranges=left), snapshot, settings))
    ranges = tuple(
        replace(r, leader=snapshot.leaders.get(r.log, r.leader)) for r in leave_out(left, expired)
    )
    return replace(
        old,
        ranges=ranges,
        kind=_kind_of(old, ranges),
        created_at_ms=now_ms,
        shape=shape_of_rows(settings),
        supersedes=old.id,
        reason=state.reason,
        losses=(*old.losses, *by_hand, *expired),
        table_id=table.id if table else None,
        table_transaction_version=(table.transaction_version or 0) if table else 0,
        table_version=table.version if table else None,
        time_zone=snapshot.time_zone,
        id="",
    )


def _expired(plan: Plan, snapshot: Snapshot, settings: Settings) -> Iterable[Loss]:
    """Return what expired of a plan's ranges. Raises DataLoss if policy is `fail`."""
    for r in plan.ranges:
        extent = snapshot.extents.get(r.log)
        if extent and r.from_offset < extent.log_start_offset:
            reading_of(r.log, r.from_offset, snapshot, settings)
            until = min(r.until_offset, extent.log_start_offset)
            yield Loss(
                r.log, r.from_offset, until, LossReason.EXPIRED, plan.incarnations.get(r.log, 0)
            )


def _anew(state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int) -> Plan:
    """Return a member's plan instead of one that was never committed: its assigned partitions from
    their current offsets.
    """
    old = state.plan
    owned = snapshot.share.logs if snapshot.share else ()
    stand = stand_as_member(
        before(old),
        snapshot.committed,
        owned,
        ends_of(snapshot),
        moves_behind=commits_after_append(settings),
    )
    plan = plan_from(
        stand.positions,
        old,
        snapshot,
        settings,
        number=old.number,
        uid=old.uid,
        now_ms=now_ms,
        asking=request_of_replacement(old),
    )
    among = let_go_among(old)
    return replace(
        of_member(plan, snapshot, settings),
        previous=old.previous,
        supersedes=old.id,
        reason=state.reason,
        losses=(*(loss for loss in old.losses if loss not in among), *plan.losses),
        vanished=old.vanished,
        took_over=old.took_over,
        read_by_others=read_by_others(before(old), stand.passed),
    )


def let_go_among(plan: Plan) -> tuple[Loss, ...]:
    """Return the losses of this plan that its replacement would read again, because they follow a
    range's start: skipped or missing. What is gone with its partition is never read again.
    """
    starts = starts_of(plan)
    current = (
        loss
        for loss in plan.losses
        if loss.incarnation == plan.incarnations.get(loss.log, 0) and loss.why not in LOST_WITH_LOG
    )
    return tuple(loss for loss in current if loss.until_offset > starts[loss.log])


def plan_without(plan: Plan, missing: Sequence[Loss], *, now_ms: int) -> Plan:
    """Return the replacement of a plan whose partitions lack some offsets, without its id: the
    same, with those as losses.
    """
    missing = [replace(loss, incarnation=plan.incarnations.get(loss.log, 0)) for loss in missing]
    ranges = tuple(leave_out(plan.ranges, missing))
    count = sum(loss.until_offset - loss.from_offset for loss in missing)
    first = f"{missing[0].log} from {missing[0].from_offset}"
    return replace(
        plan,
        ranges=ranges,
        kind=_kind_of(plan, ranges),
        created_at_ms=now_ms,
        supersedes=plan.id,
        reason=f"{count:,} of its offsets are missing from the logs, the first of them {first}",
        losses=(*plan.losses, *missing),
        id="",
    )


def _kind_of(plan: Plan, ranges: Sequence[OffsetRange]) -> PlanKind:
    if plan.kind is PlanKind.BACKFILL:
        return plan.kind
    if ranges:
        return PlanKind.INGEST
    return PlanKind.START


def leave_out(ranges: Iterable[OffsetRange], skipped: Sequence[Loss]) -> Iterable[OffsetRange]:
    """The ranges without the skipped offsets. Raises SettingsError for offsets that no range holds."""
    left = list(ranges)
    for skip in skipped:
        cut = without_losses(left, [skip])
        if (
            sum(r.size for r in left) - sum(r.size for r in cut)
            != skip.until_offset - skip.from_offset
        ):
            message = f"Offsets {skip.from_offset} to {skip.until_offset} are not all in the plan's ranges"
            action = "Check the ranges in `etl plans show CONF N`"
            raise SettingsError(message, **skip.log.place, action=action)
        left = cut
    return left


def without_losses(found: Iterable[Span], skipped: Iterable[Loss]) -> list[Span]:
    """Return ranges or losses without the skipped offsets."""
    left = list(found)
    for skip in skipped:
        left = [part for one in left for part in _around(one, skip)]
    return left


def _around(r: Span, skip: Loss) -> Iterable[Span]:
    if (
        r.log != skip.log
        or skip.until_offset <= r.from_offset
        or r.until_offset <= skip.from_offset
    ):
        yield r
        return
    if r.from_offset < skip.from_offset:
        yield replace(r, until_offset=skip.from_offset)
    if skip.until_offset < r.until_offset:
        yield replace(r, from_offset=skip.until_offset)


def _reject_leaderless_skips(skipped: Iterable[Loss], snapshot: Snapshot) -> None:
    """Reject skipping offsets of a partition without a leader: the plan that passes them must read
    it. Raises BrokerUnreachable.
    """
    for skip in skipped:
        if skip.log in snapshot.leaderless:
            message = f"The partition {skip.log.unled}, so none of its offsets can be skipped now"
            raise BrokerUnreachable(message, **skip.log.place, action=skip.log.held_by)


def needs_closing(stored: Plan) -> bool:
    """True if a driver may still append under this plan's number: the plan reads, inherits, or
    superseded one.
    """
    return bool(stored.ranges) or stored.kind is PlanKind.TAKE_OVER or stored.supersedes is not None


def closing_plan_of(stored: Plan, reason: str, *, now_ms: int) -> Plan:
    """The plan that takes the number of a stored one and reads nothing, without its id: every
    position stays where that one began.

    A plan that takes another pipeline's place is executed as it is: it reads nothing itself, and
    the other one is retired because of it.
    """
    if stored.kind is PlanKind.TAKE_OVER:
        return stored
    key_ends = dict(stored.key_ends)
    if stored.run_key is not None:
        key_ends = {**{r.log: stored.positions[r.log] for r in stored.ranges}, **key_ends}
    again = let_go_among(stored)
    return replace(
        stored,
        kind=PlanKind.SET,
        created_at_ms=now_ms,
        ranges=(),
        positions=starts_of(stored),
        supersedes=stored.id,
        reason=reason,
        id="",
        losses=tuple(loss for loss in stored.losses if loss not in again),
        key_ends=key_ends,
        stood={},
        share=None,
        handed_over=None,
        is_void=False,
        closes=True,
    )


def next_closing_plan(
    last: Plan, reason: str, *, table_id: str, table_version: int, number: int, now_ms: int
) -> Plan:
    """Return the same under the number after the table's newest one, `number`, if the stored plan
    is unknown. `last` is its plan.
    """
    return replace(
        closing_plan_of(
            replace(last, kind=PlanKind.SET, ranges=(), took_over=None, losses=(), vanished=()),
            reason,
            now_ms=now_ms,
        ),
        number=number + 1,
        previous=last.id,
        supersedes=None,
        record_epochs={},
        seen={log: last.left(log) for log in last.positions},
        table_id=table_id,
        table_version=table_version,
        table_transaction_version=number,
    )


def replay_or_supersede(
    state: Replay, snapshot: Snapshot, settings: Settings
) -> Replay | Supersede:
    """Decide about a stored plan: it is executed unchanged, or superseded if policy permits: its
    range expired, or a partition has no leader.

    A replay (`PlanKind.REPLAY`) that cannot restore all its rows is given up, whatever policy says,
    since existing rows would be lost. Raises NeedsDecision if a topic was deleted or recreated or
    the conf shapes rows differently, MisalignedOffset if no message begins at its start, DataLoss
    and BrokerUnreachable if policy is `fail`.
    """
    plan = state.plan
    reject_in_doubt_commit(plan, snapshot, settings)
    if is_never_committed(plan, snapshot, settings):
        reject_without_assignment(plan, snapshot)
        return Supersede(plan, "it was stored, and the group's offsets were not moved with it")
    if plan.kind is PlanKind.REPLAY and (why := why_given_up(plan, snapshot)):
        return Supersede(plan, why)
    _reject_gone_topics(plan, snapshot)
    reject_other_incarnation(snapshot, starts_of(plan))
    reject_stored_plan_of_recreated_topic(plan, snapshot)
    reject_recreated_or_truncated(
        plan, _of_ranges(plan, snapshot) if plan.is_executed_as_it_is else snapshot
    )
    reject_misaligned_offsets(starts_of(plan), snapshot, plan, is_left=True)
    _reject_leaderless_ranges(plan, snapshot, settings)
    leaderless = sorted(snapshot.leaderless & {r.log for r in plan.ranges})
    if leaderless:
        more = f" (and {len(leaderless) - 1:,} more partitions)" if leaderless[1:] else ""
        log = leaderless[0]
        unled = f"the broker of {log} is away" if log.is_physical else f"{log} has no leader"
        if uncounted([log], snapshot.leaders):
            unled = f"the broker of {log} is there and counts fewer partitions now"
        return Supersede(plan, f"{unled}{more}: a later plan reads what it holds")
    for r in plan.ranges:
        extent = snapshot.extents.get(r.log)
        if extent and r.from_offset < extent.log_start_offset:
            reading_of(r.log, r.from_offset, snapshot, settings)  # raises under `fail`
            return Supersede(
                plan,
                f"{r.log}: its range starts at {r.from_offset}, and the log at {extent.log_start_offset} by now",
            )
    _reject_other_row_shape(plan, settings)
    return state


def _of_ranges(plan: Plan, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot of what the plan reads: other partitions are decided once it is in the
    table. A plan that is executed unchanged is not replaced, so a partition that is another by now
    is left out and accepted afterwards.
    """
    logs, topics = {r.log for r in plan.ranges}, {r.log.topic for r in plan.ranges}
    return replace(
        snapshot,
        extents={log: extent for log, extent in snapshot.extents.items() if log in logs},
        topic_ids={topic: found for topic, found in snapshot.topic_ids.items() if topic in topics},
        creation_ids={
            topic: found for topic, found in snapshot.creation_ids.items() if topic in topics
        },
    )


def why_given_up(plan: Plan, snapshot: Snapshot) -> str | None:
    """Why a replay cannot bring back all of its rows; None where nothing speaks against it."""
    gone = sorted(snapshot.missing_topics & {r.log.topic for r in plan.ranges})
    if gone:
        return f"{GIVEN_UP}: the brokers do not know the topic {gone[0]} any more"
    for r in plan.ranges:
        extent = snapshot.extents.get(r.log)
        if extent and r.from_offset < extent.log_start_offset:
            return f"{GIVEN_UP}: {r.log} was to be read from {r.from_offset}, and the log starts at {extent.log_start_offset} by now"
    return None


def topics_left_to_read(ledger: Ledger) -> set[str]:
    """Topics of a plan that is stored and not known to be executed; those that it gives up as
    deleted keep no run from executing it.
    """
    plan = ledger.newest
    if plan is None or ledger.applied is not None:
        return set()
    deleted = {loss.log.topic for loss in plan.losses if loss.why is LossReason.DELETED}
    return deleted | {r.log.topic for r in plan.ranges}


def reject_abandoning_lost_offsets(plan: Plan, snapshot: Snapshot) -> None:
    """Reject replacing a stored plan that reads what its logs no longer hold: an operator decides.
    Raises NeedsDecision for a deleted or recreated topic, PartitionTruncated.
    """
    if (
        plan.kind in (PlanKind.REPLAY, PlanKind.BACKFILL)
        or plan.is_executed_as_it_is
        or plan.handed_over is False
    ):
        return
    _reject_gone_topics(plan, snapshot)
    reject_recreated_or_truncated(plan, _of_ranges(plan, snapshot))


def _reject_gone_topics(plan: Plan, snapshot: Snapshot) -> None:
    gone = sorted(snapshot.missing_topics & {r.log.topic for r in plan.ranges})
    if gone:
        others = f" (and {len(gone) - 1:,} more topics)" if gone[1:] else ""
        message = f"Plan {plan.number} is stored and not in the table, and the brokers do not know this topic of it any more{others}"
        ranges = [r for r in plan.ranges if r.log.topic in gone]
        count = f"{sum(r.size for r in ranges):,} {ranges[0].log.unit}s"
        first = f"the first of them {ranges[0].log} from {ranges[0].from_offset} to {ranges[0].until_offset}"
        action = (
            f"Check whether it was deleted: then {count} of plan {plan.number}, {first}, are lost. The plan without them, which records them as "
            f"lost, is: etl plans supersede CONF {plan.number} --reason ..."
        )
        raise NeedsDecision(message, topic=gone[0], action=action)


def _reject_leaderless_ranges(plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
    """Reject a stored plan with a partition without a leader: it is read whole or not at all.
    Raises BrokerUnreachable with `fail`.
    """
    logs = snapshot.leaderless & {r.log for r in plan.ranges}
    if logs and plan.is_executed_as_it_is:
        reason = "was handed over" if plan.handed_over else "a member of the group stored"
        message = f"The partition {min(logs).unled}, and plan {plan.number}, which {reason} and is not in the table, reads it"
        if plan.handed_over:
            rests = "nobody else of the group reads these offsets any more"
        else:
            rests = "a stored plan is executed as it is"
        action = (
            f"{min(logs).held_by}; {rests}. If they are gone for good, the plan without them "
            f"is: etl plans supersede CONF {plan.number} --skip TOPIC:PARTITION:FROM-UNTIL --reason ..."
        )
        raise BrokerUnreachable(message, **min(logs).place, action=action)
    if logs and settings.source.on_no_leader is OnNoLeader.FAIL:
        message = f"The partition has no leader, and plan {plan.number}, which is stored and not in the table, reads it"
        action = (
            "Check the brokers that hold its replicas; under source.on_no_leader: skip a run puts a plan without it in its place, and what it "
            "holds is read once it has a leader again"
        )
        raise BrokerUnreachable(message, **min(logs).place, action=action)


def _reject_other_row_shape(plan: Plan, settings: Settings) -> None:
    """Reject a stored plan under settings that shape rows differently. Raises NeedsDecision."""
    if plan.shape != shape_of_rows(settings):
        message = f"Plan {plan.number} is stored but not in the table, and the conf has changed what shapes its rows since"
        action = (
            f"Run `etl plans supersede CONF {plan.number} --reason ...`: the same offsets are then read as the conf says now, nothing is lost; "
            "or put source.isolation_level, transform and table.partition_by back for one run, then change them"
        )
        if plan.kind is PlanKind.REPLAY:
            action = (
                f"Run `etl plans supersede CONF {plan.number} --reason ...`: the rows stay as they are, and another `etl replay` makes them as "
                "the conf says now; or put source.isolation_level, transform and table.partition_by back for one run"
            )
        raise NeedsDecision(message, action=action)
