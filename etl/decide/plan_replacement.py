"""Is a stored plan that is not in the table executed, or which plan replaces it?

It is executed again; or, if it cannot be finished, another plan takes its number: the same offsets
without those that are gone or skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from etl.decide.byte_offsets import reject_misaligned_offset, reject_misaligned_offsets
from etl.decide.member_offsets import (
    commits_after_append,
    is_never_committed,
    plan_before,
    read_by_others,
    reject_in_doubt_commit,
    reject_without_assignment,
    state_after_plan,
    with_assignment,
)
from etl.decide.offsets import ends_of, starts_of
from etl.decide.plan import (
    KEYS_THAT_SHAPE_ROWS,
    plan_from,
    reading_of,
    shape_of_rows,
    stops_without_leader,
)
from etl.decide.recreated_or_truncated import (
    is_what_was_read,
    permanently_missing_topics,
    recreated_topics,
    reject_recreated_or_truncated,
    reject_stored_plan_of_recreated_topic,
    truncated_partitions,
    waiting_partitions,
)
from etl.decide.replay import GIVEN_UP
from etl.decide.run_requests import request_of_replacement
from etl.decide.table_changes import table_to_record
from etl.errors import BrokerUnreachable, NeedsDecision, SettingsError
from etl.model.partitions import TopicPartition, uncounted
from etl.model.plans import (
    LOST_WITH_LOG,
    CommitState,
    Loss,
    Losses,
    LossReason,
    OffsetRange,
    Plan,
    PlanKind,
)
from etl.model.snapshot import Ledger, Resume, Snapshot, Supersede
from etl.settings.sections import Settings

Span = TypeVar("Span", OffsetRange, Loss)


@dataclass(frozen=True, slots=True)
class MissingFrom:
    """The end of the planned offsets that a partition still has."""

    offset: int
    """From this offset on the records of the stored plan are gone."""
    why: LossReason


def replacement_plan(
    state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan:
    """Return the plan that takes the number of one that cannot be finished, without its id: from
    its starts to the current ends.

    The old plan's losses stay lost, and the committed offsets that it observed stay expected. In an
    unreadable partition the position stays, and its losses are left to the plan that reads it.
    Offsets that are gone with their partition (`partitions_missing_offsets`) are losses of the new
    plan. Raises as `plan_next` and `reject_in_doubt_commit`, and SettingsError if `skipped` names
    offsets that it does not read.
    """
    if state.plan.kind is PlanKind.BACKFILL:
        # Its losses are the backfill's, which plans them again.
        state = replace(state, plan=replace(state.plan, losses=Losses()))
    reject_in_doubt_commit(state.plan, snapshot, settings)
    if is_never_committed(state.plan, snapshot, settings):
        return _anew(state, snapshot, settings, now_ms=now_ms)
    if state.plan.commit.state.is_binding:
        return committed_replacement_plan(state, snapshot, settings, now_ms=now_ms)
    old = state.plan
    among = losses_to_read_again(old)
    earlier = [loss for loss in among if loss.partition in snapshot.readable]
    gone = partitions_missing_offsets(old, snapshot)
    deleted = {partition for partition in gone if partition not in snapshot.readable}
    kept = []
    for loss in old.losses.lost:
        if loss in earlier or loss not in among or loss.partition in deleted:
            kept.append(loss)
    skipped = _with_incarnations(state.skipped, old)
    # The replacement reads from the same start, so it leaves out again what was skipped before, and
    # no cap may end before these offsets: no later plan knows of them.
    skips = (*earlier, *skipped)
    _reject_leaderless_skips(skipped, snapshot)
    for skip in skipped:
        reject_misaligned_offset(skip.partition, skip.until_offset, snapshot, key="--skip")
    plan = plan_from(
        starts_of(old),
        old,
        snapshot,
        settings,
        number=old.number,
        uid=old.origin.pipeline_id,
        now_ms=now_ms,
        given_up=skips,
        asking=request_of_replacement(old),
    )
    ranges = without_losses(plan.ranges, earlier)
    not_read = [r for r in old.ranges if r.partition in deleted]
    expired = without_losses(plan.losses.lost, earlier)
    # Retention may have taken what an operator skips; the decision stays the operator's.
    skipped_of_log = without_losses(skipped, expired)
    left = exclude_skipped((*ranges, *not_read), skipped_of_log)
    losses = (*kept, *without_losses(expired, skipped), *skipped)
    lost = without_losses(_losses_of_missing(old, gone), losses)
    ranges_left = [r for r in left if r.partition not in deleted]
    return replace(
        plan.with_expected(old.expected_commits),
        ranges=tuple(ranges_left),
        origin=replace(
            plan.origin, previous=old.origin.previous, supersedes=old.id, reason=state.reason
        ),
        losses=replace(plan.losses, lost=(*losses, *lost), stale_rows=old.losses.stale_rows),
        inherits=old.inherits,
    )


def _with_incarnations(losses: Iterable[Loss], plan: Plan) -> list[Loss]:
    """Return losses with the incarnations of the plan's partitions."""
    found = []
    for loss in losses:
        found.append(replace(loss, incarnation=plan.incarnations.get(loss.partition, 0)))
    return found


def partitions_missing_offsets(
    plan: Plan,
    snapshot: Snapshot,
    *,
    decided: Mapping[TopicPartition, LossReason] = MappingProxyType({}),
    same: Collection[TopicPartition] = (),
) -> dict[TopicPartition, MissingFrom]:
    """Return the partitions without all of a stored plan's records: deleted, recreated, or
    truncated inside or below its ranges.

    `decided`: partitions that an operator accepts as such; `same`: those accepted as unchanged. If
    the extent on Jafka is unknown, the whole range counts.
    """
    again = recreated_topics(plan, snapshot)
    others = set()
    for partition in waiting_partitions(plan, snapshot):
        if is_what_was_read(partition, plan, snapshot) is False:
            others.add(partition)
    cuts = {
        cut.partition: cut.left_until
        for cut in truncated_partitions(plan, snapshot, plan.loaded_until)
    }
    found: dict[TopicPartition, MissingFrom] = {}
    for r in sorted(plan.advancing, key=lambda r: (r.partition, r.from_offset)):
        partition = r.partition
        start = r.from_offset
        if partition in found or partition in same:
            continue
        if partition in decided:
            found[partition] = MissingFrom(start, decided[partition])
        elif partition.topic in snapshot.missing_topics:
            found[partition] = MissingFrom(start, LossReason.DELETED)
        elif partition.topic in again or partition in others:
            found[partition] = MissingFrom(start, LossReason.RECREATED)
        elif partition in cuts:
            if not partition.is_physical:
                start = max(start, cuts[partition])
            found[partition] = MissingFrom(start, LossReason.TRUNCATED)
    return found


def lost_with_partitions(plan: Plan, gone: Mapping[TopicPartition, MissingFrom]) -> list[Loss]:
    """Return the offsets of a stored plan that are lost with their partitions, and its own losses
    there: no later plan reports either.
    """
    earlier = []
    for loss in losses_to_read_again(plan):
        if loss.partition in gone and loss.until_offset > gone[loss.partition].offset:
            start = max(loss.from_offset, gone[loss.partition].offset)
            earlier.append(replace(loss, from_offset=start))
    return [*earlier, *without_losses(_losses_of_missing(plan, gone), earlier)]


def _losses_of_missing(plan: Plan, gone: Mapping[TopicPartition, MissingFrom]) -> list[Loss]:
    """Return one loss per interval of the plan's ranges that the partition lacks, independently of
    tasks.
    """
    found: list[Loss] = []
    for r in sorted(plan.advancing, key=lambda r: (r.partition, r.from_offset)):
        if r.partition not in gone or r.until_offset <= gone[r.partition].offset:
            continue
        start = max(r.from_offset, gone[r.partition].offset)
        if found and (found[-1].partition, found[-1].until_offset) == (r.partition, start):
            start = found.pop().from_offset
        incarnation = plan.incarnations.get(r.partition, 0)
        found.append(Loss(r.partition, start, r.until_offset, gone[r.partition].why, incarnation))
    return found


def committed_replacement_plan(
    state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan:
    """Return the replacement of a committed plan: its ranges without gone or skipped offsets.

    Later offsets belong to other members, and no other member reads its ranges. Nothing is left of
    a deleted or recreated topic. Raises DataLoss if the policy is `fail` and expired offsets were
    not skipped, SettingsError for a skip outside of its ranges.
    """
    old = state.plan
    ended = permanently_missing_topics(old, snapshot)
    missing = {}
    for partition, gone_from in partitions_missing_offsets(old, snapshot).items():
        if partition.topic in ended:
            missing[partition] = gone_from
    gone = _losses_of_missing(old, missing)
    skipped = _with_incarnations(state.skipped, old)
    for skip in skipped:
        reject_misaligned_offset(skip.partition, skip.until_offset, snapshot, key="--skip")
    by_operator = [*skipped, *without_losses(gone, skipped)]
    left = tuple(exclude_skipped(old.ranges, by_operator))
    expired = list(_expired(replace(old, ranges=left), snapshot, settings))
    ranges = []
    for r in exclude_skipped(left, expired):
        ranges.append(replace(r, leader=snapshot.leaders.get(r.partition, r.leader)))
    return replace(
        old,
        ranges=tuple(ranges),
        kind=_kind_of(old, ranges),
        origin=replace(
            old.origin,
            created_at_ms=now_ms,
            supersedes=old.id,
            reason=state.reason,
            time_zone=snapshot.time_zone,
        ),
        shape=shape_of_rows(settings),
        losses=replace(old.losses, lost=(*old.losses.lost, *by_operator, *expired)),
        table=table_to_record(snapshot.table, old.table.rows_before),
        id="",
    )


def _expired(plan: Plan, snapshot: Snapshot, settings: Settings) -> Iterable[Loss]:
    """Yield the expired offsets of a plan's ranges. Raises DataLoss if the policy is `fail`."""
    for r in plan.ranges:
        offsets = snapshot.readable.get(r.partition)
        if offsets and r.from_offset < offsets.log_start_offset:
            reading_of(r.partition, r.from_offset, snapshot, settings)
            until = min(r.until_offset, offsets.log_start_offset)
            incarnation = plan.incarnations.get(r.partition, 0)
            yield Loss(r.partition, r.from_offset, until, LossReason.EXPIRED, incarnation)


def _anew(state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int) -> Plan:
    """Return a member's plan in place of one that was never committed: its assigned partitions from
    their current offsets.
    """
    old = state.plan
    owned: Collection[TopicPartition] = ()
    if snapshot.group.assignment:
        owned = snapshot.group.assignment.partitions
    stand = state_after_plan(
        plan_before(old),
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
        uid=old.origin.pipeline_id,
        now_ms=now_ms,
        asking=request_of_replacement(old),
    )
    among = losses_to_read_again(old)
    kept = [loss for loss in old.losses.lost if loss not in among]
    return replace(
        with_assignment(plan, snapshot, settings),
        origin=replace(
            plan.origin,
            previous=old.origin.previous,
            supersedes=old.id,
            reason=state.reason,
        ),
        losses=Losses(
            lost=(*kept, *plan.losses.lost),
            stale_rows=old.losses.stale_rows,
            read_by_others=read_by_others(plan_before(old), stand.passed),
        ),
        inherits=old.inherits,
    )


def losses_to_read_again(plan: Plan) -> tuple[Loss, ...]:
    """Return the losses of this plan that its replacement would read again, because they follow a
    range's start: skipped or missing offsets.

    Offsets that are gone with their partition are never read again.
    """
    starts = starts_of(plan)
    found = []
    for loss in plan.losses.lost:
        if loss.why in LOST_WITH_LOG or loss.incarnation != plan.incarnations.get(
            loss.partition, 0
        ):
            continue
        if loss.until_offset > starts[loss.partition]:
            found.append(loss)
    return tuple(found)


def plan_without(plan: Plan, missing: Sequence[Loss], *, now_ms: int) -> Plan:
    """Return the same plan with offsets that are missing from its partitions as losses.

    It replaces the plan, and has no id yet.
    """
    # A plan with these losses is stored before anything is committed: in the results alone, a crash
    # between commit and record would lose them.
    missing = _with_incarnations(missing, plan)
    ranges = tuple(exclude_skipped(plan.ranges, missing))
    count = sum(loss.until_offset - loss.from_offset for loss in missing)
    first = f"{missing[0].partition} from {missing[0].from_offset}"
    return replace(
        plan,
        ranges=ranges,
        kind=_kind_of(plan, ranges),
        origin=replace(
            plan.origin,
            created_at_ms=now_ms,
            supersedes=plan.id,
            reason=f"{count:,} of its offsets are missing from the logs, the first of them {first}",
        ),
        losses=replace(plan.losses, lost=(*plan.losses.lost, *missing)),
        id="",
    )


def _kind_of(plan: Plan, ranges: Sequence[OffsetRange]) -> PlanKind:
    if plan.kind is PlanKind.BACKFILL:
        return plan.kind
    if ranges:
        return PlanKind.INGEST
    return PlanKind.START


def in_place_of(plan: Plan, stored: Plan) -> Plan:
    """Return the next plan under the number of a stored plan of a backfill, without its id."""
    reason = plan.origin.reason or f"a plan of backfill {stored.backfill} is made again later"
    origin = replace(
        plan.origin, previous=stored.origin.previous, supersedes=stored.id, reason=reason
    )
    return replace(plan, number=stored.number, origin=origin, id="")


def exclude_skipped(
    ranges: Iterable[OffsetRange], skipped: Sequence[Loss]
) -> Iterable[OffsetRange]:
    """Return the ranges without the skipped offsets.

    Raises SettingsError for skipped offsets outside of the ranges.
    """
    left = list(ranges)
    for skip in skipped:
        remaining = without_losses(left, [skip])
        removed = _size(left) - _size(remaining)
        if removed != skip.until_offset - skip.from_offset:
            raise SettingsError(
                f"Offsets {skip.from_offset} to {skip.until_offset} are not all in the plan's "
                "ranges",
                key="--skip",
                **skip.partition.place,
                action="Check the ranges in `etl plans show CONF N`",
            )
        left = remaining
    return left


def _size(ranges: Iterable[OffsetRange]) -> int:
    return sum(r.size for r in ranges)


def without_losses(found: Iterable[Span], skipped: Iterable[Loss]) -> list[Span]:
    """Return ranges or losses without the skipped offsets."""
    left = list(found)
    for skip in skipped:
        parts: list[Span] = []
        for span in left:
            parts.extend(_around(span, skip))
        left = parts
    return left


def _around(r: Span, skip: Loss) -> Iterable[Span]:
    """Yield the parts of an interval before and after the skipped offsets."""
    if (
        r.partition != skip.partition
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
        if skip.partition in snapshot.leaderless:
            raise BrokerUnreachable(
                f"The partition {skip.partition.unled}, so none of its offsets can be skipped now",
                **skip.partition.place,
                action=skip.partition.held_by,
            )


def needs_closing(stored: Plan) -> bool:
    """Return True if a driver may still append under this plan's number: the plan reads, inherits,
    or superseded one.
    """
    return (
        bool(stored.ranges)
        or stored.kind is PlanKind.TAKE_OVER
        or stored.origin.supersedes is not None
    )


def closing_plan_of(stored: Plan, reason: str, *, now_ms: int) -> Plan:
    """Return the plan that takes the number of a stored one and reads nothing, without its id.

    Every loaded-until offset stays at the start of the stored plan.
    A plan that inherits another pipeline is executed unchanged: it reads nothing itself, and the
    other pipeline is retired because of it.
    """
    if stored.kind is PlanKind.TAKE_OVER:
        return stored
    key_ends = dict(stored.request.unfinished)
    if stored.request.run_key is not None:
        for r in stored.ranges:
            key_ends.setdefault(r.partition, stored.loaded_until[r.partition])
    again = losses_to_read_again(stored)
    losses = [loss for loss in stored.losses.lost if loss not in again]
    if stored.kind is PlanKind.BACKFILL:
        losses = []  # they are the backfill's, which plans them again
    return replace(
        stored.with_loaded_until(starts_of(stored)),
        kind=PlanKind.SET,
        origin=replace(stored.origin, created_at_ms=now_ms, supersedes=stored.id, reason=reason),
        ranges=(),
        id="",
        losses=replace(stored.losses, lost=tuple(losses)),
        request=replace(stored.request, unfinished=key_ends),
        commit=stored.commit.without_member,
        payload=None,
        is_closing=True,
    )


def next_closing_plan(
    last: Plan, reason: str, *, table_id: str, table_version: int, number: int, now_ms: int
) -> Plan:
    """Return a closing plan with the number after the table's newest one, for an unknown stored
    plan.

    `number` is the table's newest plan number, `last` its plan.
    """
    empty = replace(
        last,
        kind=PlanKind.SET,
        ranges=(),
        inherits=None,
        losses=replace(last.losses, lost=(), stale_rows=()),
    )
    partitions = {}
    for partition, planned in last.partitions.items():
        expected = last.committed_after(partition)
        partitions[partition] = replace(planned, expected_commit=expected, record_epochs=())
    closing = closing_plan_of(empty, reason, now_ms=now_ms)
    return replace(
        closing,
        number=number + 1,
        origin=replace(closing.origin, previous=last.id, supersedes=None),
        partitions=partitions,
        table=replace(last.table, id=table_id, version=table_version, transaction_version=number),
    )


def resume_or_supersede(
    state: Resume, snapshot: Snapshot, settings: Settings
) -> Resume | Supersede:
    """Decide about a stored plan: it is executed unchanged; or it is superseded, if its range
    expired or a partition has no leader, and the policy permits it.

    A replay (`PlanKind.REPLAY`) that cannot restore all its rows is given up under any policy,
    since existing rows would be lost. Raises NeedsDecision if a topic was deleted or recreated or
    the conf shapes rows differently, MisalignedOffset if no message begins at its start, DataLoss
    and BrokerUnreachable if policy is `fail`.
    """
    plan = state.plan
    reject_in_doubt_commit(plan, snapshot, settings)
    if is_never_committed(plan, snapshot, settings):
        reject_without_assignment(plan, snapshot)
        return Supersede(plan, "it was stored, and the group's offsets were not committed with it")
    if plan.kind is PlanKind.REPLAY:
        reason = why_given_up(plan, snapshot)
        if reason:
            return Supersede(plan, reason)
    _reject_gone_topics(plan, snapshot)
    reject_stored_plan_of_recreated_topic(plan, snapshot)
    if plan.commit.state.is_binding:
        reject_recreated_or_truncated(plan, _of_ranges(plan, snapshot))
    else:
        reject_recreated_or_truncated(plan, snapshot)
    reject_misaligned_offsets(starts_of(plan), snapshot, plan, is_left=True)
    _reject_leaderless_ranges(plan, snapshot, settings)
    leaderless = sorted(snapshot.leaderless & plan.read_partitions)
    if leaderless:
        partition = leaderless[0]
        if uncounted([partition], snapshot.leaders):
            unled = f"the broker of {partition} is available and has fewer partitions now"
        elif partition.is_physical:
            unled = f"the broker of {partition} is unreachable"
        else:
            unled = f"{partition} has no leader"
        more = ""
        if leaderless[1:]:
            more = f" (and {len(leaderless) - 1:,} more partitions)"
        return Supersede(plan, f"{unled}{more}: a later plan reads its offsets")
    for r in plan.ranges:
        offsets = snapshot.readable.get(r.partition)
        if offsets and r.from_offset < offsets.log_start_offset:
            reading_of(r.partition, r.from_offset, snapshot, settings)  # raises under `fail`
            return Supersede(
                plan,
                f"{r.partition}: its range starts at {r.from_offset}, and the log now at "
                f"{offsets.log_start_offset}",
            )
    _reject_other_row_shape(plan, settings)
    return state


def _of_ranges(plan: Plan, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the plan's partitions only: others are decided once it is in the
    table.

    A plan that is executed unchanged is not replaced, so a partition that is another one now is
    left out and accepted afterwards.
    """
    topics = plan.read_topics
    partitions = {}
    for topic_partition, partition in snapshot.partitions.items():
        if topic_partition in plan.read_partitions or topic_partition not in snapshot.readable:
            partitions[topic_partition] = partition
    read_topics = {}
    for name, topic in snapshot.topics.items():
        if name in topics or topic.is_missing:
            read_topics[name] = topic
    return replace(snapshot, partitions=partitions, topics=read_topics)


def why_given_up(plan: Plan, snapshot: Snapshot) -> str | None:
    """Return why a replay cannot restore all of its rows; None if it can."""
    gone = sorted(snapshot.missing_topics & plan.read_topics)
    if gone:
        return f"{GIVEN_UP}: the brokers do not know the topic {gone[0]} any more"
    for r in plan.ranges:
        offsets = snapshot.readable.get(r.partition)
        if offsets and r.from_offset < offsets.log_start_offset:
            return (
                f"{GIVEN_UP}: {r.partition} is planned from {r.from_offset}, and the log now "
                f"starts at {offsets.log_start_offset}"
            )
    return None


def topics_left_to_read(ledger: Ledger) -> set[str]:
    """Return the topics of a plan that is stored and not known to be executed.

    Topics that it gives up as deleted do not stop a run from executing it.
    """
    # A task cannot distinguish a deleted topic from one that is moving, so a run requests these
    # topics before Spark starts, also those that the conf no longer names.
    plan = ledger.newest
    if plan is None or ledger.applied is not None or plan.kind is PlanKind.BACKFILL:
        return set()
    deleted = {loss.partition.topic for loss in plan.losses.lost if loss.why is LossReason.DELETED}
    return deleted | plan.read_topics


def reject_abandoning_lost_offsets(plan: Plan, snapshot: Snapshot) -> None:
    """Reject the replacement of a stored plan if its records are gone: an operator decides.

    Raises NeedsDecision for a deleted or recreated topic, PartitionTruncated.
    """
    if (
        plan.kind in (PlanKind.REPLAY, PlanKind.BACKFILL)
        or plan.commit.state.is_binding
        or plan.commit.state.is_unresolved
    ):
        return
    _reject_gone_topics(plan, snapshot)
    reject_recreated_or_truncated(plan, _of_ranges(plan, snapshot))


def _reject_gone_topics(plan: Plan, snapshot: Snapshot) -> None:
    gone = sorted(snapshot.missing_topics & plan.read_topics)
    if not gone:
        return
    others = ""
    if gone[1:]:
        others = f" (and {len(gone) - 1:,} more topics)"
    ranges = [r for r in plan.ranges if r.partition.topic in gone]
    first = ranges[0]
    count = f"{_size(ranges):,} {first.partition.unit}s"
    raise NeedsDecision(
        f"Plan {plan.number} is stored and not in the table, and the brokers do not know its topic "
        f"any more{others}",
        topic=gone[0],
        action=f"Check whether the topic was deleted: then {count} of plan {plan.number}, the "
        f"first of them {first.partition} from {first.from_offset} to {first.until_offset}, are "
        "lost. To record them as lost and continue without them, run "
        f"`etl plans supersede CONF {plan.number} --reason ...`",
    )


def _reject_leaderless_ranges(plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
    """Reject a stored plan with a partition without a leader: a plan is read completely or not at
    all.

    Raises BrokerUnreachable: always for a plan that is executed unchanged, else with `fail`.
    """
    partitions = snapshot.leaderless & plan.read_partitions
    if not partitions:
        return
    partition = min(partitions)
    if plan.commit.state.is_binding:
        if plan.commit.state is CommitState.DONE:
            state = "whose offsets are committed, is not in the table and reads it"
            reason = "No other member of the group reads these offsets any more"
        else:
            state = "which a member of the group stored, is not in the table and reads it"
            reason = "The stored plan is executed unchanged"
        raise BrokerUnreachable(
            f"The partition {partition.unled}, and plan {plan.number}, {state}",
            **partition.place,
            action=f"{partition.held_by}. {reason}. If they are gone for good, run `etl plans "
            f"supersede CONF {plan.number} --skip TOPIC:PARTITION:FROM-UNTIL --reason ...` to "
            "continue without them",
        )
    if stops_without_leader(partition, settings):
        raise BrokerUnreachable(
            f"The partition has no leader, and plan {plan.number}, which is stored and not in the "
            "table, reads it",
            **partition.place,
            action="Check the brokers that host its replicas, or set source.on_no_leader: skip. "
            "Then a run replaces the plan by one without this partition, and reads its records "
            "once it has a leader again",
        )


def _reject_other_row_shape(plan: Plan, settings: Settings) -> None:
    """Reject a stored plan after a change of the settings of its rows. Raises NeedsDecision."""
    if plan.shape == shape_of_rows(settings):
        return
    keys = f"{', '.join(KEYS_THAT_SHAPE_ROWS[:-1])} and {KEYS_THAT_SHAPE_ROWS[-1]}"
    restore = f"Or restore what was changed of {keys} for one run, then change it again"
    action = (
        f"Run `etl plans supersede CONF {plan.number} --reason ...`: the same offsets are then "
        f"read with the present conf, nothing is lost. {restore}"
    )
    if plan.kind is PlanKind.REPLAY:
        action = (
            f"Run `etl plans supersede CONF {plan.number} --reason ...`: the rows stay unchanged, "
            f"and another `etl replay` writes them with the present conf. {restore}"
        )
    raise NeedsDecision(
        f"Plan {plan.number} is stored but not in the table, and the settings of its rows have "
        "changed in the conf since",
        action=action,
    )
