"""Where do a member's partitions begin, and which of its offset commits are in doubt?

Lives here: the state of a pipeline by the offsets of its owned partitions; the result of a commit
in doubt; replacing a plan with a rejected commit; duplicate reads. Not here: owners and live
members (partition_owners.py), joining the group (etl/run/group_member.py).

With `group.mode: join` and `commit_when: before_read` the group's offsets are committed when the
plan is stored (ADR 27). The loaded-until offsets describe the table. The committed offsets, read
after the partitions are owned, are where the next plan begins:

    committed offset of an owned partition     meaning
    ----------------------------------------   -----------------------------------------------------
    at the loaded-until offset                 no other member read since
    beyond it                                  other members read the offsets between: not lost, and
                                               not loaded by this pipeline
    none, as when another member owned it      no other member read since
    beyond it, by an unknown plan of ours      OffsetMoved: the ledger lost that plan
    below it, or gone                          OffsetMoved: following would load rows twice
    as seen by a plan that commits after its   left by a run of another mode; committed first
    append

The loaded-until offset of another member's partition does not change until this pipeline owns the
partition again. Any run executes a stored plan with committed offsets. A plan without them is
replaced, before its first fetch, by a plan of the run that owns its partitions now.

In Kafka a plan is stored, one commit moves the group's offsets with the plan's metadata, then the
plan is marked. A commit without a mark is in doubt. Its membership is ended first, so that it can
no longer arrive (`run.group_member`). Then the group's offsets decide:

    offsets of the plan's partitions                 the commit
    ----------------------------------------------   -----------------------------------------------
    one has the plan's metadata                      succeeded: a commit is all or nothing
    the same, another is as the plan saw it          succeeded except for that one (topic not
                                                     authorized): an operator decides
    one is as the plan saw it, metadata too          did not arrive
    all are before the plan's ends                   did not arrive; other members read on
    all overwritten, beyond the plan's ends          unknown: an operator decides

A rejected commit is recorded, too. If an offset has its metadata all the same, the commit
succeeded (a former coordinator, or one before 2.5 that waited for replicas).

With `commit_when: after_append` (ADR 31) offsets are committed after the append, by the membership
that planned it. Any run executes a stored plan, and an offset below the loaded-until offset is
moved to it. Offsets that both this pipeline and other members read:

    group's offset              plan stored            in the table, not recorded   recorded
    -------------------------   --------------------   --------------------------   ----------------
    as the plan saw it          no commit              unknown: all of it may be    commit rejected
    as the plan moves it        -                      moved                        moved
    below the loaded-until      others read so far     all of it may be             others read on
    offset
    at or beyond it             others read it all     all of it may be             moved, reported
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from etl.decide.offsets import (
    Ends,
    ends_of,
    expected_after_restore,
    is_of_a_later_plan,
    is_read_on_by_others,
    moved_offset,
    of_a_lost_plan,
    of_another_incarnation,
    reject_beyond,
    reject_other_offsets_storage,
    reset_partitions,
    starts_of,
)
from etl.errors import NeedsDecision, SettingsError
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    GroupProtocol,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    TopicPartition,
)
from etl.model.plans import CommitState, Plan, PlanKind, ReadByOthers
from etl.model.snapshot import Ledger, PipelineState, RebuildFromTable, Resume, Snapshot, UpToDate
from etl.settings.choices import CommitWhen, OwnershipMode
from etl.settings.sections import Settings

_BY_MEMBERS = (PlanKind.INGEST, PlanKind.START)


def is_member(settings: Settings) -> bool:
    """True if runs by this conf are group members."""
    return settings.group.mode is OwnershipMode.JOIN


def is_left_committed(ledger: Ledger) -> bool:
    """True if the newest plan's offsets are committed and its result is not recorded."""
    return _newest_state(ledger) is CommitState.DONE and ledger.applied is None


def _newest_state(ledger: Ledger) -> CommitState | None:
    """Return what became of the newest plan's commit; None without a plan."""
    if ledger.newest is None:
        return None
    return ledger.newest.commit.state


def commits_after_append(settings: Settings) -> bool:
    """True if runs by this conf are members that commit after the append."""
    return is_member(settings) and settings.group.join.commit_when is CommitWhen.AFTER_APPEND


def holds_assignment(settings: Settings) -> bool:
    """Return True if a run keeps revoked partitions until its rows are in the table and its offsets
    committed (KIP-848). A classic group would wait all that time.
    """
    return commits_after_append(settings) and settings.group.join.protocol is GroupProtocol.CONSUMER


def is_left_to_execute(ledger: Ledger, settings: Settings) -> bool:
    """True if any run executes the newest plan, member or not, and its result is not recorded."""
    if is_left_committed(ledger):
        return True
    is_of_member = _newest_state(ledger) is CommitState.AFTER_APPEND_AS_MEMBER
    return is_of_member and ledger.applied is None and commits_after_append(settings)


def owned_partitions(snapshot: Snapshot, settings: Settings) -> Collection[TopicPartition] | None:
    """Return the partitions of a member; before it joins, as for a command, all with an offset.

    None: runs are not group members.
    """
    if not is_member(settings):
        return None
    if snapshot.group.assignment is None:
        if is_left_to_execute(snapshot.ledger, settings):
            # A run executes this plan before it joins the group, then observes again.
            return frozenset()
        return snapshot.committed.keys()
    return snapshot.group.assignment.partitions


def is_never_committed(plan: Plan, snapshot: Snapshot, settings: Settings) -> bool:
    """True if a stored plan outside the table is replaced, as it is never committed."""
    state = plan.commit.state
    if not is_member(settings) or state is CommitState.DONE or plan.kind not in _BY_MEMBERS:
        return False
    if state is CommitState.AFTER_APPEND_AS_MEMBER and commits_after_append(settings):
        return False
    return snapshot.group.assignment is not None or state.is_unresolved


def with_assignment(
    plan: Plan, snapshot: Snapshot, settings: Settings, *, is_command: bool = False
) -> Plan:
    """Return the plan with its maker's assignment and commit state; unchanged without a membership.

    `is_command`: no member executes the plan, so it commits when it is stored, whatever
    `commit_when` is.
    """
    share = snapshot.group.assignment
    if not is_member(settings) or share is None:
        return plan
    if not is_command and commits_after_append(settings):
        state = CommitState.AFTER_APPEND_AS_MEMBER
    elif share.membership is Membership.ZOOKEEPER:
        # Plan and offsets are stored in one step, or not at all.
        state = CommitState.DONE
    else:
        state = CommitState.IN_DOUBT
    assignment = replace(share, partitions=share.partitions & plan.loaded_until.keys())
    return replace(plan, commit=replace(plan.commit, state=state, member=assignment))


def as_if_alone(snapshot: Snapshot, settings: Settings) -> Snapshot:
    """Return the snapshot of a run that owns all partitions.

    Before a member joins, its assignment is unknown.
    """
    if not is_member(settings) or snapshot.group.assignment is not None:
        return snapshot
    all_partitions = frozenset((*snapshot.readable, *snapshot.leaderless))
    membership = settings.group.membership or Membership.ZOOKEEPER
    return snapshot.with_assignment(MemberAssignment("", membership, "", None, all_partitions))


def member_state(
    state: PipelineState,
    known: Plan | None,
    committed: Mapping[TopicPartition, Committed],
    owned: Collection[TopicPartition],
    ends: Ends,
    storage: OffsetsStorage,
    *,
    moves_behind: bool = False,
) -> PipelineState:
    """Return the state by ledger and table, completed by the committed offsets of `owned`.

    `known`: the newest plan in the ledger. The others: see `state_after_plan`.
    """
    if isinstance(state, UpToDate):
        return state_after_plan(
            state.last, committed, owned, ends, storage=storage, moves_behind=moves_behind
        )
    if isinstance(state, RebuildFromTable):
        restored = state_after_plan(
            expected_after_restore(state.plan, known, committed),
            committed,
            owned,
            ends,
            storage=storage,
            is_rebuilt=True,
            moves_behind=moves_behind,
        )
        return replace(state, state=restored)
    return state


def state_after_plan(
    plan: Plan,
    committed: Mapping[TopicPartition, Committed],
    owned: Collection[TopicPartition],
    ends: Ends,
    *,
    storage: OffsetsStorage | None = None,
    is_rebuilt: bool = False,
    moves_behind: bool = False,
) -> UpToDate:
    """Return the state after `plan`, which is in the table, by the offsets of owned partitions.

    See the module's first table. `storage`: the storage of the committed offsets. `is_rebuilt`: the
    ledger was lost, and the plan's `seen` are offsets of an older copy. `moves_behind`: offsets
    below the loaded-until offsets are committed again (`commits_after_append`). Raises OffsetMoved.
    """
    uncommitted = []
    too_low = dict[TopicPartition, Committed]()
    moved_back = dict[TopicPartition, Committed]()
    passed = dict[TopicPartition, Committed]()
    moved_by_plan = set(plan.offsets_to_commit)
    if plan.commit.state is CommitState.AFTER_APPEND_AS_MEMBER:
        moved_by_plan.update(plan.offsets_to_move)
    moves_later = is_rebuilt or not plan.commit.state.is_before_read
    moves_low_offsets = moves_behind and storage in (None, plan.commit.storage)

    for partition in sorted(plan.loaded_until.keys() & set(owned)):
        found = committed.get(partition, NOTHING_COMMITTED)
        loaded_until = plan.loaded_until[partition]
        is_as_seen = found == plan.expected_commits[partition]
        if found.offset == loaded_until:
            continue
        if is_as_seen and found == NOTHING_COMMITTED and partition not in moved_by_plan:
            continue
        is_below = found.offset is not None and found.offset < loaded_until
        if moves_later and is_as_seen and not is_read_on_by_others(plan, partition, found):
            uncommitted.append(partition)
        elif is_below and moves_low_offsets:
            too_low[partition] = found
        elif is_below or found.offset is None:
            moved_back[partition] = found
        else:
            passed[partition] = found

    if moved_back:
        raise moved_offset(plan, moved_back, min(moved_back), storage, is_member=True)
    _reject_passed(plan, passed, ends)

    passed_to = {
        partition: found.offset for partition, found in passed.items() if found.offset is not None
    }
    last = plan
    if too_low:
        last = plan.with_expected(too_low)
    to_commit = tuple(sorted((*uncommitted, *too_low)))
    return UpToDate(last, {**plan.loaded_until, **passed_to}, to_commit, passed=passed_to)


def _reject_passed(plan: Plan, passed: Mapping[TopicPartition, Committed], ends: Ends) -> None:
    """Reject offsets beyond the loaded-until offsets that other members cannot have committed."""
    for partition, found in passed.items():
        if is_of_a_later_plan(plan, found):
            raise of_a_lost_plan(plan, found, partition)
    of_former_incarnation = sorted(reset_partitions(plan).intersection(passed))
    if of_former_incarnation:
        partition = of_former_incarnation[0]
        raise of_another_incarnation(plan, passed[partition].offset, partition, None)
    reject_beyond(plan, passed, ends, is_member=True)


def read_by_others(last: Plan, passed: Mapping[TopicPartition, int]) -> tuple[ReadByOthers, ...]:
    """Return the offsets that other members read after `last`, up to the committed ones."""
    found = []
    for partition, until in sorted(passed.items()):
        incarnation = last.incarnations.get(partition, 0)
        found.append(ReadByOthers(partition, last.loaded_until[partition], until, incarnation))
    return tuple(found)


def read_by_others_of_command(state: UpToDate | Resume) -> tuple[ReadByOthers, ...]:
    """Return what others read, for a command's plan after the last one or instead of a stored one.

    A plan that replaces a stored one names the same offsets as that one.
    """
    if isinstance(state, UpToDate):
        return read_by_others(state.last, state.passed)
    return state.plan.losses.read_by_others


def plan_before(plan: Plan) -> Plan:
    """Return the plan with its loaded-until offsets before it, also before what others read.

    Where others read, `Plan.expected_commits` has their offset, which stays above the
    loaded-until offset.
    """
    starts = starts_of(plan)
    seen = {}
    for hole in plan.losses.read_by_others:
        starts[hole.partition] = min(starts[hole.partition], hole.from_offset)
        seen[hole.partition] = Committed(starts[hole.partition])
    return replace(
        plan.with_loaded_until(starts).with_expected(seen),
        ranges=(),
        commit=plan.commit.after_append,
        losses=replace(plan.losses, stale_rows=(), read_by_others=()),
    )


def reject_replacing(plan: Plan) -> None:
    """Reject replacing this plan by one that leaves its ranges to a later run.

    That run would consider the ranges read by other members. Raises NeedsDecision.
    """
    number = plan.number
    if plan.commit.state.is_unresolved:
        message = f"Plan {number} is stored, and its offset commit is in doubt"
        action = "Run `etl run CONF`, which resolves the commit; then run this command again"
        if plan.commit.state is CommitState.REJECTED:
            message = f"Plan {number} is stored, and its offset commit was rejected"
            action = (
                "Run `etl run CONF`: the next run that owns a partition replaces the plan; "
                "then run this command again"
            )
        raise NeedsDecision(message, action=action)
    if plan.commit.state.is_binding:
        message = (
            f"The offsets of plan {number} are committed, and the plan is not in the table: "
            "no other member reads its ranges"
        )
        if plan.commit.state is not CommitState.DONE:
            message = (
                f"Plan {number} is stored by a member of the group and is not in the table: "
                "other members may have read offsets after its ranges"
            )
        action = (
            "Run `etl run CONF`, which executes the plan. If some of its offsets cannot be read "
            f"any more, leave them out with `etl plans supersede CONF {number} "
            "--skip TOPIC:PARTITION:FROM-UNTIL --reason ...`. Then run this command again"
        )
        raise NeedsDecision(message, action=action)


def as_left_to_others(snapshot: Snapshot, plan: Plan | None, settings: Settings) -> Snapshot:
    """Return the snapshot with the offsets of `plan` where other members advanced the group's.

    Setting those back would read records twice. Offsets outside the log, of an earlier
    incarnation, or of partitions that are not read now stay.
    """
    if not is_member(settings) or plan is None:
        return snapshot
    ends = ends_of(snapshot)
    restarted = reset_partitions(plan)
    left_to_others = {}
    for partition, found in snapshot.committed.items():
        if partition not in plan.loaded_until or partition in restarted or found.offset is None:
            continue
        end = ends.get(partition)
        is_in_log = end is None or found.offset <= end
        is_advanced = found.offset > plan.loaded_until[partition]
        if is_in_log and is_advanced and not is_of_a_later_plan(plan, found):
            left_to_others[partition] = plan.committed_after(partition)
    if snapshot.group.assignment:
        for partition in plan.loaded_until:
            if partition not in snapshot.group.assignment.partitions:
                left_to_others[partition] = plan.committed_after(partition)
    return snapshot.with_committed(left_to_others)


class CommitOutcome(Enum):
    """Result of an offset commit in doubt."""

    TAKEN = "taken"
    IN_PART = "taken in part"
    NOT_TAKEN = "not taken"
    UNTOLD = "nobody can tell"


def is_left_open(ledger: Ledger) -> bool:
    """True if the newest plan's commit was begun and its result is not recorded."""
    return _newest_state(ledger) is CommitState.IN_DOUBT and ledger.applied is None


def commit_outcome(plan: Plan, committed: Mapping[TopicPartition, Committed]) -> CommitOutcome:
    """Return the result of a plan's commit in doubt; see the module's second table."""
    partitions = plan.offsets_to_commit
    if not partitions:
        return CommitOutcome.NOT_TAKEN
    found = {partition: committed.get(partition, NOTHING_COMMITTED) for partition in partitions}
    has_uncommitted = bool(uncommitted_partitions(plan, committed))
    if any(offset.metadata == plan.commit_metadata for offset in found.values()):
        if has_uncommitted:
            return CommitOutcome.IN_PART
        return CommitOutcome.TAKEN
    if has_uncommitted or plan.commit.state is CommitState.REJECTED:
        return CommitOutcome.NOT_TAKEN
    offsets = {
        partition: there.offset for partition, there in found.items() if there.offset is not None
    }
    if offsets and all(
        offset < plan.loaded_until[partition] for partition, offset in offsets.items()
    ):
        return CommitOutcome.NOT_TAKEN
    return CommitOutcome.UNTOLD


def with_commit_resolved(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with its newest plan marked as committed if its commit succeeded."""
    ledger = snapshot.ledger
    plan = ledger.newest
    if plan is None or not plan.commit.state.is_unresolved or ledger.applied:
        return snapshot
    if commit_outcome(plan, snapshot.committed) is not CommitOutcome.TAKEN:
        return snapshot
    resolved = plan.with_commit_state(CommitState.DONE)
    return replace(snapshot, ledger=replace(ledger, newest=resolved))


def reject_in_doubt_commit(plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
    """Reject a plan with a commit that must be resolved first, or that cannot be resolved.

    Raises SettingsError for runs that are not members any more or keep offsets elsewhere,
    NeedsDecision if the result is unknown.
    """
    if not plan.commit.state.is_unresolved:
        return
    number = plan.number
    if not is_member(settings):
        message = (
            f"Plan {number} was stored by a member of the group, "
            "and the ledger has no result of its offset commit"
        )
        action = (
            "Set group.mode: join, as it was: `etl run CONF` then resolves the commit and "
            "finishes the plan. Change the key after that"
        )
        raise SettingsError(message, key="group.mode", action=action)
    if plan.commit.state is CommitState.IN_DOUBT:
        reject_other_offsets_storage(plan, snapshot.group.storage)

    found = commit_outcome(plan, snapshot.committed)
    if found is CommitOutcome.IN_PART:
        uncommitted = min(uncommitted_partitions(plan, snapshot.committed))
        message = f"The offsets of plan {number} are committed except for this partition"
        action = (
            "Check the brokers' ACLs for the topic (Read), and that the coordinator knows the "
            f"topic. Then run `etl plans supersede CONF {number} --reason ...`: the committed "
            "partitions are loaded, and a later plan reads the rest"
        )
        raise NeedsDecision(message, **uncommitted.place, action=action)
    if found is CommitOutcome.UNTOLD:
        partition = plan.offsets_to_commit[0]
        message = (
            f"The result of the offset commit of plan {number} is unknown: its run ended during "
            "the commit, and other members have committed offsets beyond the plan's ends since"
        )
        action = (
            "Check whether other members of the group read the offsets in "
            f"`etl plans show CONF {number}`, such as {starts_of(plan)[partition]} to "
            f"{plan.loaded_until[partition]} of {partition}. If they read them, run `etl plans "
            f"supersede CONF {number} --reason ...`, which leaves the offsets to them. If they "
            "did not, add --assume-offsets-committed, and the next run loads the offsets"
        )
        raise NeedsDecision(message, **partition.place, action=action)


def reject_without_assignment(plan: Plan, snapshot: Snapshot) -> None:
    """Reject replacing an uncommitted plan without an assignment.

    A run that has an assignment replaces it. Raises NeedsDecision.
    """
    if snapshot.group.assignment is None:
        message = (
            f"Plan {plan.number} is stored, and its offsets are not committed: "
            "a run that has joined the group replaces it"
        )
        raise NeedsDecision(message, action="Run `etl run CONF`; then run this command again")


def plan_without_uncommitted(
    plan: Plan, partitions: Collection[TopicPartition], reason: str, *, now_ms: int
) -> Plan:
    """Return a replacement of the plan, without its id, that leaves out these uncommitted
    partitions.

    Their loaded-until offsets do not change.
    """
    previous = plan_before(plan)
    ranges = [r for r in plan.ranges if r.partition not in partitions]
    kind = PlanKind.START
    if ranges:
        kind = PlanKind.INGEST
    set_back = {}
    for partition in plan.partitions.keys() & set(partitions):
        set_back[partition] = previous.loaded_until[partition]
    losses = []
    for loss in plan.losses.lost:
        if (
            loss.partition not in partitions
            or loss.until_offset <= previous.loaded_until[loss.partition]
        ):
            losses.append(loss)
    still_read_by_others = [
        read for read in plan.losses.read_by_others if read.partition not in partitions
    ]
    commit = replace(plan.commit, state=CommitState.DONE)
    if commit.member:
        owned = commit.member.partitions - set(partitions)
        commit = replace(commit, member=replace(commit.member, partitions=owned))
    return replace(
        plan.with_loaded_until(set_back),
        kind=kind,
        origin=replace(plan.origin, created_at_ms=now_ms, supersedes=plan.id, reason=reason),
        ranges=tuple(ranges),
        losses=replace(plan.losses, lost=tuple(losses), read_by_others=tuple(still_read_by_others)),
        commit=commit,
        id="",
    )


def uncommitted_partitions(
    plan: Plan, committed: Mapping[TopicPartition, Committed]
) -> frozenset[TopicPartition]:
    """Return the partitions whose offset is still as the plan saw it."""
    uncommitted = set()
    for partition in plan.offsets_to_commit:
        if committed.get(partition, NOTHING_COMMITTED) == plan.expected_commits[partition]:
            uncommitted.add(partition)
    return frozenset(uncommitted)


@dataclass(frozen=True, slots=True)
class ReadTwice:
    """Offsets [from, until) in the table, now or later, that others may have read as well."""

    partition: TopicPartition
    from_offset: int
    until_offset: int


def duplicate_reads(state: PipelineState, snapshot: Snapshot) -> tuple[ReadTwice, ...]:
    """Return the duplicate reads of the newest plan; see the module's last table.

    Empty unless a member made the plan and commits after the append.
    """
    plan = snapshot.ledger.newest
    if plan is None or isinstance(state, RebuildFromTable):
        return ()
    if plan.commit.state is not CommitState.AFTER_APPEND_AS_MEMBER:
        return ()
    is_in_table = isinstance(state, UpToDate)
    is_recorded = snapshot.ledger.applied is not None
    starts = _starts_for_others(plan)
    unknown = set[TopicPartition]()
    if is_in_table and not is_recorded:
        unknown.update(plan.offsets_to_move)

    duplicates = []
    for partition, loaded_until in sorted(plan.loaded_until.items()):
        found = snapshot.committed.get(partition, NOTHING_COMMITTED)
        offset = found.offset or 0
        is_known = is_in_table and partition not in unknown and offset >= loaded_until
        until = min(offset, loaded_until)
        if partition in unknown:
            until = loaded_until
        if found != plan.committed_after(partition) and not is_known and until > starts[partition]:
            duplicates.append(ReadTwice(partition, starts[partition], until))
    return tuple(duplicates)


def duplicate_reads_after_commit(
    plan: Plan, moved: Collection[TopicPartition]
) -> tuple[ReadTwice, ...]:
    """Return what others read, or will, of a plan in the table with offsets committed for
    `moved`.
    """
    if plan.commit.state is not CommitState.AFTER_APPEND_AS_MEMBER:
        return ()
    starts = _starts_for_others(plan)
    duplicates = []
    for partition in plan.offsets_to_move:
        if partition not in moved:
            duplicates.append(ReadTwice(partition, starts[partition], plan.loaded_until[partition]))
    return tuple(duplicates)


def _starts_for_others(plan: Plan) -> dict[TopicPartition, int]:
    """Return where another member begins before the plan's offsets are committed."""
    starts = starts_of(plan)
    starts_for_others = {}
    for partition, seen in plan.expected_commits.items():
        if seen.offset is None:
            starts_for_others[partition] = starts[partition]
        else:
            starts_for_others[partition] = seen.offset
    return starts_for_others
