"""What do owners and live members of the group mean for a run, and for a command?

Lives here: waiting for owners, skipping or rejecting owned partitions; the assignment of a command;
rejecting decisions that would make other members lose or double records.
Not here: claiming partitions and waiting for owners (etl/io/zookeeper/owners.py), commits of
members (member_offsets.py). Original consumers know neither plans nor commits (docs/adr/0005).

    found                          policy                    decision
    ----------------------------   -----------------------   ---------------------------------------
    a live consumer                on_active_members: fail   Owned (also a member of Kafka's group)
    a live consumer                on_active_members: skip   read unowned partitions only
    an owner                       on_owned: fail            Owned
    an owner                       on_owned: wait            wait once, observe again, then Owned
    an owner                       on_owned: skip            leave the partition out; its
                                                             loaded-until offset does not change
    an owner of a stored plan's    on_owned: skip            Owned: a stored plan is executed whole
    a driver of this pipeline      any                       none: the driver lock decides
    other members                  mode: join                their partitions are left to them
    members of the group of this   mode: join, fail          Owned: they do not share the assignment
    name in the other storage

A command that moves offsets under `mode: join` (ADR 27) joins the group; its plan commits when it
is stored:

    the partition is                          decision
    ---------------------------------------   ------------------------------------------------------
    assigned to the command                   its offset moves with the plan
    another member's                          Owned: that one continues from its own position
    read by others since our last plan        rejected if the command would go back over it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from etl.decide.member_offsets import (
    CommitOutcome,
    as_if_alone,
    as_left_to_others,
    commit_outcome,
    is_left_open,
    is_left_to_execute,
    is_member,
    with_assignment,
)
from etl.decide.offsets import ends_of, is_read_on_by_others, of_another_incarnation
from etl.decide.table_changes import name_of
from etl.errors import NeedsDecision, Owned
from etl.ledger.owner_nodes import consumer_id, consumer_of, parse_owner, thread_id
from etl.model.partitions import (
    Committed,
    KafkaGroup,
    Membership,
    OffsetsStorage,
    RejectedCommit,
    TopicPartition,
    is_of_instance,
    render_partition,
    select_keys,
)
from etl.model.plans import CommitState, Plan, ReadByOthers
from etl.model.snapshot import (
    Availability,
    Ledger,
    OtherPipeline,
    PipelineState,
    Resume,
    Snapshot,
    UpToDate,
)
from etl.settings.choices import OnActiveMembers, OnOwned
from etl.settings.sections import GroupSettings, Settings

_NAMED = 3
UNASSIGNED = "no known member of the group"
"""Instead of an owner: the partition was created after the last rebalance, or a rebalance is in
progress.
"""
_ANOTHER = "another member of the group"


def foreign_owners(
    owners: Mapping[TopicPartition, str], settings: Settings
) -> dict[TopicPartition, str]:
    """Return the owners that are not drivers of this pipeline."""
    foreign = {}
    for partition, owner in owners.items():
        if not _is_ours(owner, settings):
            foreign[partition] = owner
    return foreign


def foreign_consumers(consumers: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """Return the ids of the group's consumers that are not drivers of this pipeline."""
    foreign = []
    for consumer in consumers:
        if not _is_ours(thread_id(consumer, 0), settings):
            foreign.append(consumer)
    return tuple(foreign)


def members_as_owners(
    group: KafkaGroup, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, str]:
    """Return the members of Kafka's group as owners of these partitions.

    A member with an unknown assignment owns all of them.
    """
    owners = {}
    for member, assigned in group.members.items():
        for partition in partitions:
            if assigned is None or partition in assigned:
                owners[partition] = member
    return owners


def owners_to_wait_for(snapshot: Snapshot, settings: Settings) -> dict[TopicPartition, str]:
    """Return the partitions and owners to wait for by policy; none if waiting changes nothing."""
    if is_member(settings) or owned_policy(settings.group) is not OnOwned.WAIT:
        return {}
    if _rejects_live_consumers(snapshot, settings):
        return {}
    return foreign_owners(snapshot.owners, settings)


def leave_to_owners(snapshot: Snapshot, settings: Settings) -> Snapshot:
    """Return the snapshot without partitions that are left to others; its `owners` are these.

    Raises Owned, with the consumer or owner, if policy is `fail` or waiting did not help.
    """
    if is_member(settings):
        ledger = snapshot.ledger
        if (
            snapshot.group.assignment
            or is_left_to_execute(ledger, settings)
            or is_left_open(ledger)
        ):
            _reject_members_elsewhere(snapshot, settings.group)
            return _without(snapshot, _of_others(snapshot, settings))
    if _rejects_live_consumers(snapshot, settings):
        alive = foreign_consumers(snapshot.group.live_consumers, settings)
        raise Owned(
            f"Live consumers are registered in the group: {', '.join(alive[:_NAMED])}",
            action="Check that they are stopped; a crashed one leaves after its session timeout",
        )
    owners = foreign_owners(snapshot.owners, settings)
    if owners and owned_policy(settings.group) is not OnOwned.SKIP:
        raise owned_error(owners)
    return _without(snapshot, owners)


def _reject_members_elsewhere(snapshot: Snapshot, group: GroupSettings) -> None:
    """Reject members in the other storage, which would read the same partitions.

    They take no part in the assignment. Raises Owned.
    """
    if snapshot.group.assignment is None or group.on_active_members is not OnActiveMembers.FAIL:
        return
    membership = snapshot.group.assignment.membership
    in_kafka = snapshot.group.kafka_members
    if membership is Membership.ZOOKEEPER and in_kafka:
        names = ", ".join(in_kafka[:_NAMED])
        raise Owned(
            f"Consumers are alive in Kafka's own group of this name: {names}",
            action=(
                "Check that they are stopped: group.offsets_storage: zookeeper divides partitions "
                "among consumers that are registered in ZooKeeper alone"
            ),
        )
    in_zookeeper = _live_in_zookeeper(snapshot)
    if membership is Membership.COORDINATOR and in_zookeeper:
        names = ", ".join(in_zookeeper[:_NAMED])
        raise Owned(
            f"Consumers of the group are registered in ZooKeeper: {names}",
            action=(
                "Check that they are stopped: group.offsets_storage: kafka divides the partitions "
                "among members of Kafka's own group alone"
            ),
        )


def _live_in_zookeeper(snapshot: Snapshot) -> list[str]:
    return [
        found
        for found in snapshot.group.live_consumers
        if found not in snapshot.group.kafka_members
    ]


def _of_others(snapshot: Snapshot, settings: Settings) -> dict[TopicPartition, str]:
    """Return partitions that are neither assigned to us nor of a plan that any run executes."""
    ours = set[TopicPartition]()
    if snapshot.group.assignment:
        ours.update(snapshot.group.assignment.partitions)
    plan = snapshot.ledger.newest
    if plan and is_left_to_execute(snapshot.ledger, settings):
        ours.update(plan.read_partitions)
    unknown = owner_not_known(snapshot, settings)
    others = {}
    for partition in (*snapshot.readable, *snapshot.leaderless):
        if partition not in ours:
            others[partition] = snapshot.owners.get(partition, unknown)
    return others


def owner_not_known(snapshot: Snapshot, settings: Settings) -> str:
    """Return the text for the owner of a partition that is not ours and has no known owner.

    Members in ZooKeeper own a partition a moment before its znode exists. Assignments of Kafka's
    members are known.
    """
    if settings.group.membership is Membership.ZOOKEEPER:
        if foreign_consumers(_live_in_zookeeper(snapshot), settings):
            return _ANOTHER
    return UNASSIGNED


def _without(snapshot: Snapshot, left: Mapping[TopicPartition, str]) -> Snapshot:
    """Return the snapshot without the partitions that are left to their owners."""
    changed = {}
    for topic_partition, partition in snapshot.partitions.items():
        if topic_partition in left and (
            topic_partition in snapshot.readable or topic_partition in snapshot.leaderless
        ):
            changed[topic_partition] = replace(
                partition, availability=Availability.OWNED, owner=left[topic_partition]
            )
        elif partition.owner is not None and partition.availability is not Availability.OWNED:
            changed[topic_partition] = replace(partition, owner=None)
    return snapshot.with_partitions(changed)


def reject_owned_ranges(plan: Plan, snapshot: Snapshot) -> None:
    """Reject a stored plan that reads a partition left to its owner, as it is executed whole.

    A committed plan is executed whichever member owns its partitions now; a member replaces an
    uncommitted one. Raises Owned.
    """
    if plan.commit.state is CommitState.DONE or snapshot.group.assignment:
        return
    owners = select_keys(snapshot.owners, plan.read_partitions)
    if owners:
        raise owned_error(
            owners, first=f"Plan {plan.number} is stored and must be executed first. "
        )


def owned_policy(group: GroupSettings) -> OnOwned:
    """Return the policy for owned partitions; with `on_active_members: skip` they are skipped."""
    if group.on_active_members is OnActiveMembers.SKIP:
        return OnOwned.SKIP
    return group.on_owned


def _rejects_live_consumers(snapshot: Snapshot, settings: Settings) -> bool:
    """True if other consumers of the group are alive, and policy is `fail`."""
    if settings.group.on_active_members is not OnActiveMembers.FAIL:
        return False
    return bool(foreign_consumers(snapshot.group.live_consumers, settings))


def _is_ours(owner: str, settings: Settings) -> bool:
    """True if the owner is a driver of this pipeline or its own static member."""
    found = parse_owner(settings.group.id, owner)
    if found is not None:
        return found.pipeline == settings.pipeline
    instance_id = settings.group.join.instance_id
    if not is_member(settings) or instance_id is None:
        return False
    if settings.group.membership is Membership.COORDINATOR:
        # A static member stays in its group between runs.
        return is_of_instance(owner.partition(" at ")[0], instance_id)
    return consumer_of(owner) == consumer_id(settings.group.id, instance_id)


def owned_error(
    owners: Mapping[TopicPartition, str], *, waited: str = "", first: str = ""
) -> Owned:
    """Return the error with the first of these partitions and its owner.

    `waited`: end of the message. `first`: sentence before the action.
    """
    partition, owner = min(owners.items())
    if owner == UNASSIGNED:
        return Owned(
            f"The partition is assigned to {owner}{waited}",
            **partition.place,
            action=f"{first}Run this command again after the next rebalance of the group",
        )
    more = ""
    if len(owners) > 1:
        more = f" (and {len(owners) - 1:,} more partitions have owners)"
    return Owned(
        f"The partition is owned by {owner}{more}{waited}",
        **partition.place,
        action=f"{first}Check that this consumer is stopped",
    )


def joins_for_commands(settings: Settings) -> bool:
    """True if a command joins the group: where plan and offsets are stored in one step."""
    return is_member(settings) and settings.group.offsets_storage is OffsetsStorage.ZOOKEEPER


def foreseen_by_command(snapshot: Snapshot, settings: Settings) -> Snapshot:
    """Return the snapshot of a command that owns all partitions.

    For a dry run, which does not join the group.
    """
    if not joins_for_commands(settings):
        return snapshot
    return as_if_alone(snapshot, settings)


def reject_active_members(snapshot: Snapshot, settings: Settings) -> None:
    """Reject a plan that commits after its append while others are in the group.

    They would read from their own offsets. This applies to Kafka's groups, where a command is not a
    member. Raises Owned.
    """
    alive = foreign_consumers(snapshot.group.live_consumers, settings)
    if is_member(settings) and not joins_for_commands(settings) and alive:
        message = (
            f"The group has members: {', '.join(alive[:_NAMED])}. The plan of this command "
            "commits its offsets only when a run executes it"
        )
        action = (
            "Stop them, as Kafka's own tools require for a reset. Then run this command again, "
            "run `etl run CONF`, and start them again"
        )
        raise Owned(message, action=action)


def reject_partitions_of_other_members(
    partitions: Collection[TopicPartition], snapshot: Snapshot, settings: Settings
) -> None:
    """Reject moving offsets of partitions assigned to others; deleted ones have no owner.

    Raises Owned.
    """
    # A member reads on from its position in memory, whatever offset is committed meanwhile: records
    # would be lost or doubled. So a command owns a partition while it stores its plan.
    if snapshot.group.assignment is None:
        return
    existing = {
        *snapshot.readable,
        *snapshot.left_out,
        *snapshot.leaderless,
        *snapshot.owners,
    }
    of_others = existing.intersection(partitions) - snapshot.group.assignment.partitions
    if of_others:
        unknown = owner_not_known(snapshot, settings)
        owners = {partition: snapshot.owners.get(partition, unknown) for partition in of_others}
        first = "Its offset would move while its owner continues from its own. "
        raise owned_error(owners, first=first)


def command_plan(plan: Plan, snapshot: Snapshot, settings: Settings) -> Plan:
    """Return the plan of a command, without its id.

    If runs are members, it commits when it is stored and expects the current offsets of its
    partitions, also when it replaces a plan that saw others. Else it is unchanged.
    """
    found = with_assignment(plan, snapshot, settings, is_command=True)
    if found.commit.member is None or found.commit.state is not CommitState.DONE:
        return found
    now = snapshot.committed_of(found.commit.member.partitions)
    return found.with_expected(now)


def ownership_after_inheritance(plan: Plan, snapshot: Snapshot, settings: Settings) -> Plan:
    """Return `command_plan` of a plan that inherits another pipeline.

    Offsets that other members committed beyond its loaded-until offsets stay, also of partitions
    that this pipeline had before. The next run records them as read by others.
    """
    left = as_left_to_others(snapshot, plan, settings)
    of_others = {}
    for partition, found in left.committed.items():
        if partition in plan.expected_commits and found != snapshot.committed.get(partition):
            of_others[partition] = found
    return command_plan(plan.with_expected(of_others), left, settings)


def reject_unfinished_predecessor(
    other: OtherPipeline, newest: Plan | None, committed: Mapping[TopicPartition, Committed]
) -> None:
    """Reject inheriting from a pipeline with a newest plan that is not in the table, but committed.

    Also if it may be committed. `committed`: the offsets of its group, if it is ours; they may
    prove that a rejected commit succeeded. Raises NeedsDecision.
    """
    if newest and newest.number > other.number and _may_be_committed(newest, lambda _: committed):
        raise _unfinished(newest, name_of(other.app_id), "the plan is not in the table")


def reject_retiring_unfinished(
    name: str, ledger: Ledger, committed: Callable[[Plan], Mapping[TopicPartition, Committed]]
) -> None:
    """Reject retiring a pipeline with a newest plan that is or may be committed, without a result.

    Another pipeline would begin after it, and its ranges would never be loaded. `committed`: see
    `reject_unfinished_predecessor`; of the plan's partitions, read where needed. Raises
    NeedsDecision.
    """
    if ledger.newest and not ledger.applied and _may_be_committed(ledger.newest, committed):
        unrecorded = "the ledger does not record that the plan is in the table"
        raise _unfinished(ledger.newest, name, unrecorded)


def _may_be_committed(
    plan: Plan, committed: Callable[[Plan], Mapping[TopicPartition, Committed]]
) -> bool:
    if not plan.commit.state.is_before_read:
        return False
    if plan.commit.state is not CommitState.REJECTED:
        return True
    return commit_outcome(plan, committed(plan)) is not CommitOutcome.NOT_TAKEN


def _unfinished(plan: Plan, name: str, table_state: str) -> NeedsDecision:
    verb = "may be"
    if plan.commit.state in (CommitState.DONE, CommitState.REJECTED):
        verb = "are"
    message = (
        f"The offsets of plan {plan.number} of {name} {verb} committed, and {table_state}: "
        "no other member reads its ranges"
    )
    action = (
        "Run `etl run` with that pipeline's conf, which resolves the commit and executes the "
        "plan; then run this command again"
    )
    return NeedsDecision(message, action=action)


def reject_unrecorded_commit(state: PipelineState, snapshot: Snapshot, settings: Settings) -> None:
    """Reject a command without membership after a committed plan without a recorded result.

    `owned_partitions` does not contain what others read before that. Raises NeedsDecision.
    """
    if (
        not isinstance(state, UpToDate)
        or not is_member(settings)
        or snapshot.group.assignment is not None
    ):
        return
    if is_left_to_execute(snapshot.ledger, settings):
        message = (
            f"Plan {state.last.number} was stored by a member of the group, "
            "and the ledger does not record that it is in the table"
        )
        action = (
            "Run `etl run CONF`, which completes the record and continues; "
            "then run this command again"
        )
        raise NeedsDecision(message, action=action)


def reject_fenced_plan(void: RejectedCommit | None, done: str = "") -> None:
    """Reject a command that could not store its plan because the group changed.

    `done`: what the command did before. Raises Owned.
    """
    if void:
        raise Owned(
            f"The group changed after the snapshot: {void.why}",
            action=f"{done or 'Nothing was stored or committed'}. Run this command again",
        )


def reject_offsets_read_by_others(
    back: Mapping[TopicPartition, tuple[int, int]], read: Collection[ReadByOthers]
) -> None:
    """Reject going back over offsets that other members read.

    `back`: offsets [from, until) of the current incarnation. Raises NeedsDecision.
    """
    for hole in sorted(read, key=lambda hole: (hole.partition, -hole.until_offset)):
        start, until = back.get(hole.partition, (0, 0))
        if max(start, hole.from_offset) < min(until, hole.until_offset):
            message = (
                f"Other members of the group read offsets {hole.from_offset} to "
                f"{hole.until_offset}: their records would be loaded here, too"
            )
            action = (
                f"Pass --to {hole.until_offset} or a higher offset: "
                "the offsets before it belong to the other members"
            )
            raise NeedsDecision(message, **hole.partition.place, offset=start, action=action)


def reject_unknown_incarnations(state: UpToDate | Resume, anew: Collection[TopicPartition]) -> None:
    """Reject a new incarnation of partitions (`anew`) with an offset that others advanced.

    The incarnation of that offset is unknown. Raises OffsetMoved.
    """
    if not isinstance(state, UpToDate):
        return
    moved = sorted(state.passed.keys() & set(anew))
    if moved:
        raise of_another_incarnation(state.last, state.passed[moved[0]], moved[0], None)


def reject_rewinding_other_members(
    plan: Plan | None, committed: Mapping[TopicPartition, Committed], settings: Settings
) -> None:
    """Reject restoring offsets in another mode after a member's plan if others have read on.

    Raises NeedsDecision.
    """
    if plan is None or is_member(settings):
        return
    for partition, found in sorted(committed.items()):
        if partition in plan.loaded_until and is_read_on_by_others(plan, partition, found):
            message = (
                f"The offsets of plan {plan.number} were committed by a member of the group, and "
                "other members have read on since: the committed offset of "
                f"{render_partition(partition)} is {found.offset}, the loaded-until offset is "
                f"{plan.loaded_until[partition]}"
            )
            action = (
                "Set group.mode: join: the command then leaves to other members what they read, "
                "and the next run continues after it"
            )
            raise NeedsDecision(message, **partition.place, offset=found.offset, action=action)


def describe_rewound(
    moves: Mapping[TopicPartition, tuple[int | None, int]], snapshot: Snapshot, settings: Settings
) -> list[str]:
    """Describe what restoring these offsets (from, to) means for other members.

    One sentence per partition that goes back from beyond its end.
    """
    if not is_member(settings):
        return []
    ends = ends_of(snapshot)
    sentences = []
    for partition, (at, to) in sorted(moves.items()):
        if at is not None and to < (ends.get(partition) or 0) < at:
            sentences.append(
                f"{render_partition(partition)} ends below the committed offset, which goes back "
                f"to {to}. If the partition was truncated below what other members had read, they "
                f"have its records from {to} on already, and would have them twice: then set the "
                "group's offset to the partition's end instead, with the group's own tools"
            )
    return sentences
