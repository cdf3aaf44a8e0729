"""What do owners and live members of the group mean for a run, and for a command?

    found                          policy                    decision
    ----------------------------   -----------------------   ---------------------------------------
    a live consumer                on_active_members: fail       Owned (also a member of Kafka's group)
    a live consumer                on_active_members: skip    read unowned partitions only
    an owner                       on_owned: fail            Owned
    an owner                       on_owned: wait            wait once, observe again, then Owned
    an owner                       on_owned: skip            leave the partition out; position stays
    an owner of a stored plan's    skip, unowned             Owned: a stored plan is executed whole
    a driver of this pipeline      any                       none: the driver lock decides
    other members                  mode: join                theirs is left to them
    members of the group of this   mode: join, fail          Owned: they divide nothing with us
    name in the other storage

A command that moves offsets under `mode: join` (ADR 27) joins the group; its plan commits as it is
stored:

    the partition is                          decision
    ---------------------------------------   ------------------------------------------------------
    assigned to the command                   its offset moves with the plan
    another member's                          Owned: that one continues from its own position
    read by others since our last plan        rejected if the command would go back over it

Not here: claiming partitions and waiting for owners (etl/io/zookeeper/owners.py). Original
consumers know neither plans nor commits (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from etl.decide.group_commits import (
    HandOverOutcome,
    as_if_alone,
    as_left_to_others,
    found_out,
    is_left_open,
    is_left_to_execute,
    is_member,
    of_member,
)
from etl.decide.offsets import ends_of, is_read_on_by_others, of_another_log
from etl.decide.table_changes import name_of
from etl.errors import NeedsDecision, Owned
from etl.kafka.messages import is_of_instance
from etl.ledger.registrations import consumer_id, consumer_of, parse_owner, thread_id
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    Committed,
    KafkaGroup,
    Membership,
    OffsetsStorage,
    RejectedCommit,
    render_log,
)
from etl.model.plans import Plan, ReadByOthers
from etl.model.snapshot import Ledger, OtherPipeline, PipelineState, Replay, Snapshot, UpToDate
from etl.settings.choices import OnActiveMembers, OnOwned
from etl.settings.sections import GroupSettings, Settings

_NAMED = 3
UNASSIGNED = "no known member of the group"
"""Instead of an owner: the group divided its partitions before this one was there, or divides them
now.
"""
_ANOTHER = "another member of the group"


def foreign_owners(
    owners: Mapping[BrokerPartition, str], settings: Settings
) -> dict[BrokerPartition, str]:
    """The owners that are no drivers of this very pipeline."""
    return {log: owner for log, owner in owners.items() if not _is_ours(owner, settings)}


def foreign_consumers(consumers: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """Those of the group's consumers, by their ids, that are no drivers of this very pipeline."""
    return tuple(
        consumer for consumer in consumers if not _is_ours(thread_id(consumer, 0), settings)
    )


def members_as_owners(
    group: KafkaGroup, logs: Collection[BrokerPartition]
) -> dict[BrokerPartition, str]:
    """Return the members of Kafka's group as owners of these partitions: of all if their assignment
    is unknown.
    """
    return {
        log: member
        for member, theirs in group.members.items()
        for log in logs
        if theirs is None or log in theirs
    }


def owners_to_wait_for(snapshot: Snapshot, settings: Settings) -> dict[BrokerPartition, str]:
    """Return the owners that policy says to wait for, with their partitions; none if waiting would
    change nothing.
    """
    if (
        is_member(settings)
        or on_owned(settings.group) is not OnOwned.WAIT
        or _is_refused(snapshot, settings)
    ):
        return {}
    return foreign_owners(snapshot.owners, settings)


def leave_to_owners(snapshot: Snapshot, settings: Settings) -> Snapshot:
    """Return the snapshot without partitions that are left to others; its `owners` are these.
    Raises Owned, with the consumer or owner, if policy is `fail` or waiting did not help.
    """
    if is_member(settings) and (
        snapshot.share
        or is_left_to_execute(snapshot.ledger, settings)
        or is_left_open(snapshot.ledger)
    ):
        _reject_members_elsewhere(snapshot, settings.group)
        return _without(snapshot, _of_others(snapshot, settings))
    if _is_refused(snapshot, settings):
        message = f"Live consumers are registered in the group: {', '.join(foreign_consumers(snapshot.live_consumers, settings)[:_NAMED])}"
        action = "Check that they are stopped; a crashed one leaves after its session timeout"
        raise Owned(message, action=action)
    left = foreign_owners(snapshot.owners, settings)
    if left and on_owned(settings.group) is not OnOwned.SKIP:
        raise owned_by(left)
    return _without(snapshot, left)


def _reject_members_elsewhere(snapshot: Snapshot, group: GroupSettings) -> None:
    """Reject members in the other storage: they do not share the assignment and would read the same
    partitions.
    """
    if snapshot.share is None or group.on_active_members is not OnActiveMembers.FAIL:
        return
    in_zookeeper = [one for one in snapshot.live_consumers if one not in snapshot.live_in_kafka]
    if snapshot.share.membership is Membership.ZOOKEEPER and snapshot.live_in_kafka:
        message = f"Consumers are alive in Kafka's own group of this name: {', '.join(snapshot.live_in_kafka[:_NAMED])}"
        raise Owned(
            message,
            action="Check that they are stopped: offsets_storage: zookeeper shares with consumers that are registered in ZooKeeper alone",
        )
    if snapshot.share.membership is Membership.COORDINATOR and in_zookeeper:
        message = f"Consumers of the group are registered in ZooKeeper: {', '.join(in_zookeeper[:_NAMED])}"
        raise Owned(
            message,
            action="Check that they are stopped: membership: coordinator shares with members of Kafka's own group alone",
        )


def _of_others(snapshot: Snapshot, settings: Settings) -> dict[BrokerPartition, str]:
    """Return partitions that are neither assigned to us nor of a plan that any run executes."""
    plan = snapshot.ledger.newest if is_left_to_execute(snapshot.ledger, settings) else None
    ours = {
        *(snapshot.share.logs if snapshot.share else ()),
        *(r.log for r in (plan.ranges if plan else ())),
    }
    others = (log for log in (*snapshot.extents, *snapshot.leaderless) if log not in ours)
    unknown = owner_not_known(snapshot, settings)
    return {log: snapshot.owners.get(log, unknown) for log in others}


def owner_not_known(snapshot: Snapshot, settings: Settings) -> str:
    """Return the owner of an unassigned partition without a known owner. Members in ZooKeeper own a
    partition a moment before its znode says so; assignments of Kafka's members are known.
    """
    in_zookeeper = [one for one in snapshot.live_consumers if one not in snapshot.live_in_kafka]
    is_shared = settings.group.membership is Membership.ZOOKEEPER and foreign_consumers(
        in_zookeeper, settings
    )
    return _ANOTHER if is_shared else UNASSIGNED


def _without(snapshot: Snapshot, left: Mapping[BrokerPartition, str]) -> Snapshot:
    extents = {log: extent for log, extent in snapshot.extents.items() if log not in left}
    owners = {
        log: owner
        for log, owner in left.items()
        if log in snapshot.extents or log in snapshot.leaderless
    }
    return replace(
        snapshot,
        extents=extents,
        extents_of_owned={log: extent for log, extent in snapshot.extents.items() if log in left},
        leaderless=snapshot.leaderless - left.keys(),
        owners=owners,
    )


def reject_owned_ranges(plan: Plan, snapshot: Snapshot) -> None:
    """Reject a stored plan that reads a partition left to its owner, since it is executed whole.
    Raises Owned. A committed plan is executed whoever owns its partitions now; an uncommitted one
    is replaced by a member.
    """
    if plan.handed_over or snapshot.share:
        return
    left = {r.log: snapshot.owners[r.log] for r in plan.ranges if r.log in snapshot.owners}
    if left:
        raise owned_by(left, first=f"Plan {plan.number} is stored and must be executed first. ")


def on_owned(group: GroupSettings) -> OnOwned:
    """Return the policy for owned partitions; with `on_active_members: skip` they are skipped."""
    if group.on_active_members is OnActiveMembers.SKIP:
        return OnOwned.SKIP
    return group.on_owned


def _is_refused(snapshot: Snapshot, settings: Settings) -> bool:
    return settings.group.on_active_members is OnActiveMembers.FAIL and bool(
        foreign_consumers(snapshot.live_consumers, settings)
    )


def _is_ours(owner: str, settings: Settings) -> bool:
    found, name = parse_owner(settings.group.id, owner), settings.group.join.instance_id
    if found is not None:
        return found.pipeline == settings.pipeline
    if not is_member(settings) or name is None:
        return False
    if (
        settings.group.membership is Membership.COORDINATOR
    ):  # a static member stays in its group between runs
        return is_of_instance(owner.partition(" at ")[0], name)
    return consumer_of(owner) == consumer_id(settings.group.id, name)


def owned_by(owners: Mapping[BrokerPartition, str], *, waited: str = "", first: str = "") -> Owned:
    """The error that names the first of these logs and its owner. `waited` ends the sentence,
    `first` begins what to check.
    """
    log, owner = min(owners.items())
    if owner == UNASSIGNED:
        message = f"The partition is assigned to {owner}{waited}"
        return Owned(
            message,
            **log.place,
            action=f"{first}Run this command again after the next rebalance of the group",
        )
    more = f" (and {len(owners) - 1:,} more partitions have owners)" if len(owners) > 1 else ""
    return Owned(
        f"The partition is owned by {owner}{more}{waited}",
        **log.place,
        action=f"{first}Check that this consumer is stopped",
    )


def joins_for_commands(settings: Settings) -> bool:
    """True if a command joins the group: where plan and offsets are stored in one step."""
    return is_member(settings) and settings.group.offsets_storage is OffsetsStorage.ZOOKEEPER


def foreseen_by_command(snapshot: Snapshot, settings: Settings) -> Snapshot:
    """Return the snapshot of a command that owns all partitions, for a dry run, which does not
    join.
    """
    return as_if_alone(snapshot, settings) if joins_for_commands(settings) else snapshot


def reject_active_members(snapshot: Snapshot, settings: Settings) -> None:
    """Reject a plan that commits after its append while others are in the group: they would read
    from their offsets. So it is in Kafka's groups, where a command is no member. Raises Owned.
    """
    alive = foreign_consumers(snapshot.live_consumers, settings)
    if is_member(settings) and not joins_for_commands(settings) and alive:
        message = f"The group has members, and what is stored here moves offsets only when a run executes it: {', '.join(alive[:_NAMED])}"
        action = "Stop them, as Kafka's own tools want it for a reset; then run this command again, `etl run CONF`, and start them again"
        raise Owned(message, action=action)


def reject_partitions_of_other_members(
    logs: Collection[BrokerPartition], snapshot: Snapshot, settings: Settings
) -> None:
    """Reject moving offsets of partitions assigned to others; deleted ones have no owner. Raises
    Owned.
    """
    if snapshot.share is None:
        return
    there = {
        *snapshot.extents,
        *snapshot.extents_left_alone,
        *snapshot.leaderless,
        *snapshot.owners,
    }
    theirs = there.intersection(logs) - snapshot.share.logs
    if theirs:
        first = "Its offset would move while its owner continues from its own. "
        unknown = owner_not_known(snapshot, settings)
        raise owned_by({log: snapshot.owners.get(log, unknown) for log in theirs}, first=first)


def of_command(plan: Plan, snapshot: Snapshot, settings: Settings) -> Plan:
    """Return the plan of a command, without its id: committed as it is stored if runs are members,
    else unchanged. It expects the current offsets of its partitions, also when it replaces a plan
    that saw others.
    """
    found = of_member(plan, snapshot, settings, is_command=True)
    if found.share is None or not found.handed_over:
        return found
    now = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in found.share.logs}
    return replace(found, seen={**found.seen, **now})


def ownership_after_inheritance(plan: Plan, snapshot: Snapshot, settings: Settings) -> Plan:
    """`of_command` for a plan that takes another pipeline's place: what other members read beyond
    its positions stays theirs, also of logs that this pipeline had before, and the next run names
    it.
    """
    left = as_left_to_others(snapshot, plan, settings)
    theirs = {
        log: found
        for log, found in left.committed.items()
        if log in plan.seen and found != snapshot.committed.get(log)
    }
    return of_command(replace(plan, seen={**plan.seen, **theirs}), left, settings)


def reject_unfinished_predecessor(
    other: OtherPipeline, newest: Plan | None, committed: Mapping[BrokerPartition, Committed]
) -> None:
    """Reject inheriting from a pipeline whose newest plan is or may be committed and is not in the
    table.

    `committed`: the offsets of its group, if it is ours; they may show that a rejected commit
    succeeded. Raises NeedsDecision.
    """
    if newest and newest.number > other.number and _may_be_committed(newest, lambda _: committed):
        raise _left_unread(newest, name_of(other.app_id), "is not in the table")


def reject_retiring_unfinished(
    name: str, ledger: Ledger, committed: Callable[[Plan], Mapping[BrokerPartition, Committed]]
) -> None:
    """Reject retiring a pipeline whose newest plan is or may be committed and is not known to be in
    the table: another pipeline would begin after it, and nobody would load its ranges.

    `committed`: see `reject_unfinished_predecessor`; of the plan's partitions, read where needed.
    Raises NeedsDecision.
    """
    if ledger.newest and not ledger.applied and _may_be_committed(ledger.newest, committed):
        raise _left_unread(ledger.newest, name, "nobody wrote down that it is in the table")


def _may_be_committed(
    plan: Plan, committed: Callable[[Plan], Mapping[BrokerPartition, Committed]]
) -> bool:
    return plan.handed_over is not None and not (
        plan.is_void and found_out(plan, committed(plan)) is HandOverOutcome.NOT_TAKEN
    )


def _left_unread(plan: Plan, name: str, is_known: str) -> NeedsDecision:
    was = "was handed over" if plan.handed_over or plan.is_void else "may have been handed over"
    message = f"Plan {plan.number} of {name} {was} and {is_known}: nobody else reads its ranges"
    return NeedsDecision(
        message,
        action="Run `etl run` with that pipeline's conf, which finds out and executes it; then run this command again",
    )


def reject_unrecorded_commit(state: PipelineState, snapshot: Snapshot, settings: Settings) -> None:
    """Reject a command without membership after a committed plan whose result is not recorded,
    since `owned_logs` does not see what others read before that. Raises NeedsDecision.
    """
    if (
        isinstance(state, UpToDate)
        and is_member(settings)
        and snapshot.share is None
        and is_left_to_execute(snapshot.ledger, settings)
    ):
        message = f"Plan {state.last.number} is of a member of the group, and nobody wrote down that it is in the table"
        raise NeedsDecision(
            message,
            action="Run `etl run CONF`, which finds out and continues; then run this command again",
        )


def reject_fenced_plan(void: RejectedCommit | None, done: str = "") -> None:
    """Report that the plan was not stored because another member came first. `done`: what was done
    before. Raises Owned.
    """
    if void:
        raise Owned(
            f"The group changed after the snapshot: {void.why}",
            action=f"{done or 'Nothing was stored or committed'}. Run this command again",
        )


def reject_offsets_read_by_others(
    back: Mapping[BrokerPartition, tuple[int, int]], read: Collection[ReadByOthers]
) -> None:
    """Reject going back (`back`: from, until, of the current incarnation) over what other members
    read. Raises NeedsDecision.
    """
    for hole in sorted(read, key=lambda hole: (hole.log, -hole.until_offset)):
        start, until = back.get(hole.log, (0, 0))
        if max(start, hole.from_offset) < min(until, hole.until_offset):
            message = f"Other members of the group read offsets {hole.from_offset} to {hole.until_offset}: both would have them"
            action = (
                f"Pass --to {hole.until_offset}, or further on: what lies before that is theirs"
            )
            raise NeedsDecision(message, **hole.log.place, offset=start, action=action)


def reject_unknown_incarnations(
    state: UpToDate | Replay, anew: Collection[BrokerPartition]
) -> None:
    """Reject beginning a partition (`anew`) whose offset others advanced, since its incarnation is
    unknown. Raises OffsetMoved.
    """
    moved = sorted(state.passed.keys() & set(anew)) if isinstance(state, UpToDate) else ()
    if moved and isinstance(state, UpToDate):
        raise of_another_log(state.last, state.passed[moved[0]], moved[0], None)


def reject_rewinding_other_members(
    plan: Plan | None, committed: Mapping[BrokerPartition, Committed], settings: Settings
) -> None:
    """Reject restoring offsets in another mode after a member's plan if others have read on. Raises
    NeedsDecision.
    """
    if plan is None or is_member(settings):
        return
    for log, found in sorted(committed.items()):
        if log in plan.positions and is_read_on_by_others(plan, log, found):
            message = (
                f"Plan {plan.number} was handed over by a member of the group, and other members have read on since: {render_log(log)} "
                f"is at {found.offset}, ours is {plan.positions[log]}"
            )
            action = "Set group.mode: join, under which restoring leaves what they read to them, and the next run continues behind it"
            raise NeedsDecision(message, **log.place, offset=found.offset, action=action)


def describe_rewound(
    moves: Mapping[BrokerPartition, tuple[int | None, int]], snapshot: Snapshot, settings: Settings
) -> list[str]:
    """Describe what restoring these offsets (from, to) means for other members: a sentence per
    partition that goes back.
    """
    ends = ends_of(snapshot) if is_member(settings) else {}
    return [
        f"{render_log(log)} ends before the offset that goes back: if it was cut below what other members had read, they have what it "
        f"holds from {to} on, and both would; then set the group's offset to the log's end instead, as the group's own tools do it"
        for log, (at, to) in sorted(moves.items())
        if at is not None and to < (ends.get(log) or 0) < at
    ]
