"""Where do a member's partitions begin, and which of its offset commits are in doubt?

With `group.mode: join` and `commit_when: before_read` the group's offsets are committed when the plan
is stored (ADR 27). Positions say how far the table is; offsets, read after the partitions are
owned, say where the next plan begins:

    offset of an owned partition               meaning
    ----------------------------------------   -----------------------------------------------------
    at our position                            nobody read since
    beyond it                                  other members read it: neither lost nor ours
    none, as when another member owned it      nobody read since
    beyond it, by an unknown plan of ours      OffsetMoved: the ledger lost that plan
    below it, or gone                          OffsetMoved: following would load rows twice
    as seen by a plan that commits after its   left by a run of another mode; committed first
    append

The position of a partition of another member stays until the partition is owned again. A stored
plan whose offsets are committed is executed by any run. One whose offsets are not is replaced by a
plan of the run that owns its partitions now, before its first fetch.

In Kafka a plan is stored, one commit moves the group's offsets with the plan's metadata, then the
plan is marked. A commit without a mark is in doubt. Its membership is ended first, so that it can
no longer arrive (`run.group_member`); then the group's offsets are read:

    offsets of the plan's partitions                 the commit
    ----------------------------------------------   -----------------------------------------------
    one has the plan's metadata                      succeeded: a commit is all or nothing
    the same, another is as the plan saw it          succeeded except for that one (topic not
                                                     authorized): an operator decides
    one is as the plan saw it, metadata too          did not arrive
    all are before the plan's ends                   did not arrive; others read on
    all overwritten, beyond the plan's ends          unknown: an operator decides

A rejected commit is recorded, too. If an offset has its metadata all the same, the commit
succeeded (a former coordinator, or one before 2.5 that waited for replicas).

With `commit_when: after_append` (ADR 31) offsets are committed after the append, by the membership
that planned it. A stored plan is executed by any run, and an offset below our position is moved
there. What both read then:

    group's offset            plan stored             in the table, not recorded   recorded
    -----------------------   ---------------------   --------------------------   -----------------
    as the plan saw it        nobody committed        unknown: all of it may be    commit rejected
    as the plan moves it      -                       moved                        moved
    below its position        others read so far      all of it may be             others read on
    at or beyond it           others read all of it   all of it may be             moved, reported
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
    of_another_log,
    reject_beyond,
    reject_other_offsets_storage,
    starts_of,
)
from etl.errors import NeedsDecision, SettingsError
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    Committed,
    MemberAssignment,
    Membership,
    OffsetsStorage,
)
from etl.model.plans import Plan, PlanKind, ReadByOthers
from etl.model.snapshot import Ledger, PipelineState, RebuildFromTable, Replay, Snapshot, UpToDate
from etl.settings.choices import CommitWhen, OwnershipMode
from etl.settings.sections import Settings

_BY_MEMBERS = (PlanKind.INGEST, PlanKind.START)


def is_member(settings: Settings) -> bool:
    """True if runs by this conf are group members."""
    return settings.group.mode is OwnershipMode.JOIN


def is_left_committed(ledger: Ledger) -> bool:
    """True if the newest plan's offsets are committed and its result is not recorded."""
    return ledger.newest is not None and bool(ledger.newest.handed_over) and ledger.applied is None


def commits_after_append(settings: Settings) -> bool:
    """True if runs by this conf are members that commit after the append."""
    return is_member(settings) and settings.group.join.commit_when is CommitWhen.AFTER_APPEND


def is_left_to_execute(ledger: Ledger, settings: Settings) -> bool:
    """True if any run executes the newest plan, member or not, and its result is not recorded."""
    is_behind = ledger.newest is not None and ledger.newest.is_of_member and ledger.applied is None
    return is_left_committed(ledger) or (is_behind and commits_after_append(settings))


def owned_logs(snapshot: Snapshot, settings: Settings) -> Collection[BrokerPartition] | None:
    """Return the partitions of a member; if none has joined, as for a command, all with an offset.
    None: runs are no members.
    """
    if not is_member(settings):
        return None
    if snapshot.share is None and is_left_to_execute(snapshot.ledger, settings):
        return (
            frozenset()
        )  # what is left is executed before anybody joins, and then it is looked again
    return snapshot.share.logs if snapshot.share else snapshot.committed.keys()


def is_never_committed(plan: Plan, snapshot: Snapshot, settings: Settings) -> bool:
    """True if another plan replaces this one, which is stored and not in the table: nothing was or
    will be committed for it.
    """
    is_known = snapshot.share is not None or plan.handed_over is False
    is_behind = plan.is_of_member and commits_after_append(settings)
    return (
        is_member(settings)
        and is_known
        and not plan.handed_over
        and not is_behind
        and plan.kind in _BY_MEMBERS
    )


def of_member(
    plan: Plan, snapshot: Snapshot, settings: Settings, *, is_command: bool = False
) -> Plan:
    """Return the plan with its maker's assignment and commit state; unchanged without a membership.
    `is_command`: no member executes it, so it commits as it is stored, whatever the conf says of
    runs.
    """
    share = snapshot.share
    if not is_member(settings) or share is None:
        return plan
    # in ZooKeeper it is stored in one step with the offsets, or not at all
    handed_over = (
        None
        if commits_after_append(settings) and not is_command
        else share.membership is Membership.ZOOKEEPER
    )
    return replace(
        plan, share=replace(share, logs=share.logs & plan.positions.keys()), handed_over=handed_over
    )


def as_if_alone(snapshot: Snapshot, settings: Settings) -> Snapshot:
    """Return the snapshot of a run that owns all partitions: before joining, the assignment is
    unknown.
    """
    if not is_member(settings) or snapshot.share is not None:
        return snapshot
    every = frozenset((*snapshot.extents, *snapshot.leaderless))
    return replace(
        snapshot,
        share=MemberAssignment(
            "", settings.group.membership or Membership.ZOOKEEPER, "", None, every
        ),
    )


def standing_of_member(
    state: PipelineState,
    known: Plan | None,
    committed: Mapping[BrokerPartition, Committed],
    owned: Collection[BrokerPartition],
    ends: Ends,
    storage: OffsetsStorage,
    *,
    moves_behind: bool = False,
) -> PipelineState:
    """The state by ledger and table, with what the offsets of owned logs add to it. `known`: the
    newest plan that the ledger has.
    """
    if isinstance(state, UpToDate):
        return stand_as_member(
            state.last, committed, owned, ends, storage=storage, moves_behind=moves_behind
        )
    if isinstance(state, RebuildFromTable):
        seen = expected_after_restore(state.plan, known, committed)
        return replace(
            state,
            state=stand_as_member(
                seen,
                committed,
                owned,
                ends,
                storage=storage,
                is_rebuilt=True,
                moves_behind=moves_behind,
            ),
        )
    return state


def stand_as_member(
    plan: Plan,
    committed: Mapping[BrokerPartition, Committed],
    owned: Collection[BrokerPartition],
    ends: Ends,
    *,
    storage: OffsetsStorage | None = None,
    is_rebuilt: bool = False,
    moves_behind: bool = False,
) -> UpToDate:
    """Return the state after `plan`, which is in the table, by the offsets of owned partitions; see
    the module's table.

    `storage`: where the offsets are from; `is_rebuilt`: the ledger was lost, and the plan's `seen`
    are offsets of an older copy; `moves_behind`: offsets below our position are committed again
    (`commits_after_append`). Raises OffsetMoved.
    """
    uncommitted, advanced = [], dict[BrokerPartition, Committed]()
    passed, back = dict[BrokerPartition, Committed](), dict[BrokerPartition, Committed]()
    moved_by_plan = {
        *plan.offsets_to_commit,
        *(plan.offsets_to_move if plan.is_of_member else ()),
    }
    moves_later = is_rebuilt or (plan.moves_offsets and plan.handed_over is None)
    for log in sorted(plan.positions.keys() & set(owned)):
        found, position = committed.get(log, NOTHING_COMMITTED), plan.positions[log]
        if found.offset == position or (
            found == plan.seen[log] == NOTHING_COMMITTED and log not in moved_by_plan
        ):
            continue
        if moves_later and found == plan.seen[log] and not is_read_on_by_others(plan, log, found):
            uncommitted.append(log)
        elif (
            moves_behind
            and storage in (None, plan.offsets_in)
            and found.offset is not None
            and found.offset < position
        ):
            advanced[log] = found
        elif found.offset is None or found.offset < position:
            back[log] = found
        else:
            passed[log] = found
    if back:
        raise moved_offset(plan, back, min(back), storage)
    for log, found in passed.items():
        if is_of_a_later_plan(plan, found):
            raise of_a_lost_plan(plan, found, log)
    reset = (
        sorted(passed.keys() & {gone.log for gone in plan.vanished})
        if plan.kind is PlanKind.RESET
        else []
    )
    if reset:
        raise of_another_log(plan, passed[reset[0]].offset, reset[0], None)
    reject_beyond(plan, passed, ends, is_member=True)
    to = {log: found.offset for log, found in passed.items() if found.offset is not None}
    last = replace(plan, seen={**plan.seen, **advanced}) if advanced else plan
    return UpToDate(
        last, {**plan.positions, **to}, tuple(sorted((*uncommitted, *advanced))), passed=to
    )


def read_by_others(last: Plan, passed: Mapping[BrokerPartition, int]) -> tuple[ReadByOthers, ...]:
    """Return what other members read after `last`, up to the group's current offsets."""
    return tuple(
        ReadByOthers(log, last.positions[log], to, last.log_epochs.get(log, 0))
        for log, to in sorted(passed.items())
    )


def metadata_named_by_command(state: UpToDate | Replay) -> tuple[ReadByOthers, ...]:
    """Return the commit metadata of a command's plan, after the last one or instead of a stored one
    that named it.
    """
    return (
        read_by_others(state.last, state.passed)
        if isinstance(state, UpToDate)
        else state.plan.read_by_others
    )


def before(plan: Plan) -> Plan:
    """Return the positions before this plan, also before what others read. On such a partition the
    plan saw their offset, which is above the position for good.
    """
    starts, seen = starts_of(plan), dict(plan.seen)
    for hole in plan.read_by_others:
        starts[hole.log] = min(starts[hole.log], hole.from_offset)
        seen[hole.log] = Committed(starts[hole.log])
    return replace(
        plan,
        positions=starts,
        seen=seen,
        ranges=(),
        handed_over=None,
        vanished=(),
        read_by_others=(),
    )


def reject_replacing(plan: Plan) -> None:
    """Reject a plan that would leave this one's ranges to a later run, which would take them for
    read by others. Raises NeedsDecision.
    """
    if plan.handed_over is False:
        message = f"Plan {plan.number} is stored, and " + (
            "void, since its hand-over was refused: the next run that owns a partition puts another in its place"
            if plan.is_void
            else "the next run finds out whether it was handed over"
        )
        raise NeedsDecision(message, action="Run `etl run CONF`; then run this command again")
    if plan.is_executed_as_it_is:
        message = f"Plan {plan.number} was handed over and is not in the table: the group's offsets are behind it, and nobody else reads it"
        if not plan.handed_over:
            message = f"Plan {plan.number} is stored by a member of the group and not in the table: others may have read on behind it"
        action = (
            "Run `etl run CONF`, which executes it; what cannot be read of it any more is left out by `etl plans supersede CONF "
            f"{plan.number} --skip TOPIC:PARTITION:FROM-UNTIL --reason ...`; then say this again"
        )
        raise NeedsDecision(message, action=action)


def as_left_to_others(snapshot: Snapshot, plan: Plan | None, settings: Settings) -> Snapshot:
    """Return the snapshot with offsets that other members advanced at the positions of `plan`,
    since setting them back would read records twice. Offsets outside the log, of an earlier
    incarnation, or of partitions that are not read now stay.
    """
    if not is_member(settings) or plan is None:
        return snapshot
    ends, reset = (
        ends_of(snapshot),
        {gone.log for gone in plan.vanished} if plan.kind is PlanKind.RESET else set(),
    )
    theirs = {
        log: plan.left(log)
        for log, found in snapshot.committed.items()
        if log in plan.positions
        and log not in reset
        and found.offset is not None
        and found.offset > plan.positions[log]
        and ((end := ends.get(log)) is None or found.offset <= end)
        and not is_of_a_later_plan(plan, found)
    }
    theirs |= {
        log: plan.left(log)
        for log in plan.positions
        if snapshot.share and log not in snapshot.share.logs
    }
    return replace(snapshot, committed={**snapshot.committed, **theirs})


class HandOverOutcome(Enum):
    """Result of an offset commit in doubt."""

    TAKEN = "taken"
    IN_PART = "taken in part"
    NOT_TAKEN = "not taken"
    UNTOLD = "nobody can tell"


def is_left_open(ledger: Ledger) -> bool:
    """True if the newest plan's commit was begun and its result is not recorded."""
    return ledger.newest is not None and ledger.newest.is_open and ledger.applied is None


def found_out(plan: Plan, committed: Mapping[BrokerPartition, Committed]) -> HandOverOutcome:
    """Return the result of a plan's commit in doubt; see the module's table."""
    logs = plan.offsets_to_commit
    if not logs:
        return HandOverOutcome.NOT_TAKEN
    found = {log: committed.get(log, NOTHING_COMMITTED) for log in logs}
    is_as_seen = bool(uncommitted_partitions(plan, committed))
    if any(there.word == plan.word for there in found.values()):
        return HandOverOutcome.IN_PART if is_as_seen else HandOverOutcome.TAKEN
    offsets = {log: there.offset for log, there in found.items() if there.offset is not None}
    if is_as_seen or plan.is_void:
        return HandOverOutcome.NOT_TAKEN
    if offsets and all(offset < plan.positions[log] for log, offset in offsets.items()):
        return HandOverOutcome.NOT_TAKEN
    return HandOverOutcome.UNTOLD


def with_commit_settled(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which a plan with a successful commit says so."""
    ledger = snapshot.ledger
    plan = ledger.newest
    if (
        plan is None
        or plan.handed_over is not False
        or ledger.applied
        or found_out(plan, snapshot.committed) is not HandOverOutcome.TAKEN
    ):
        return snapshot
    return replace(
        snapshot, ledger=replace(ledger, newest=replace(plan, handed_over=True, is_void=False))
    )


def reject_in_doubt_commit(plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
    """Reject a plan whose commit must be settled first, or cannot be. Raises SettingsError for runs
    that are no members any more or keep offsets elsewhere, NeedsDecision if the result is unknown.
    """
    if plan.handed_over is not False:
        return
    if not is_member(settings):
        message = f"Plan {plan.number} was stored by a member of the group, and nobody wrote down that it was handed over"
        action = "With group.mode: join, as it was, `etl run CONF` finds out and finishes it; change the key then"
        raise SettingsError(message, key="group.mode", action=action)
    if plan.is_open:
        reject_other_offsets_storage(plan, snapshot.offsets_in)
    found = found_out(plan, snapshot.committed)
    if found is HandOverOutcome.IN_PART:
        refused = min(uncommitted_partitions(plan, snapshot.committed))
        action = (
            "Check the brokers' ACLs for the topic (Read), and that the coordinator knows it; then `etl plans supersede CONF "
            f"{plan.number} --reason ...`: what was handed over is loaded, and a later plan reads the rest"
        )
        raise NeedsDecision(
            f"Plan {plan.number} was handed over but for this partition",
            **refused.place,
            action=action,
        )
    if found is HandOverOutcome.UNTOLD:
        log = plan.offsets_to_commit[0]
        message = (
            f"Nobody can tell whether plan {plan.number} was handed over: its run died at that very moment, and others have committed "
            "the group's offsets beyond its ends since"
        )
        action = (
            "Check what the group's other members read between the offsets in `etl plans show CONF "
            f"{plan.number}`, such as {starts_of(plan)[log]} to {plan.positions[log]} of {log}: if they read it, `etl plans supersede "
            f"CONF {plan.number} --reason ...` leaves it to them; if they did not, the same with --assume-offsets-committed, and the next run loads it"
        )
        raise NeedsDecision(message, **log.place, action=action)


def reject_without_assignment(plan: Plan, snapshot: Snapshot) -> None:
    """Reject replacing an uncommitted plan without an assignment: a run that has one does it.
    Raises NeedsDecision.
    """
    if snapshot.share is None:
        message = f"Plan {plan.number} is stored and was not handed over: a run that has joined the group puts another in its place"
        raise NeedsDecision(message, action="Run `etl run CONF`; then run this command again")


def plan_without_uncommitted(
    plan: Plan, logs: Collection[BrokerPartition], reason: str, *, now_ms: int
) -> Plan:
    """The plan, without its id, that takes the place of one of which these logs were not handed
    over: they stay where they were.
    """
    stood = before(plan)
    ranges = tuple(r for r in plan.ranges if r.log not in logs)
    return replace(
        plan,
        kind=PlanKind.INGEST if ranges else PlanKind.START,
        created_at_ms=now_ms,
        ranges=ranges,
        supersedes=plan.id,
        reason=reason,
        positions={
            log: stood.positions[log] if log in logs else at for log, at in plan.positions.items()
        },
        losses=tuple(
            loss
            for loss in plan.losses
            if loss.log not in logs or loss.until_offset <= stood.positions[loss.log]
        ),
        read_by_others=tuple(hole for hole in plan.read_by_others if hole.log not in logs),
        share=replace(plan.share, logs=plan.share.logs - set(logs)) if plan.share else None,
        handed_over=True,
        is_void=False,
        id="",
    )


def uncommitted_partitions(
    plan: Plan, committed: Mapping[BrokerPartition, Committed]
) -> frozenset[BrokerPartition]:
    """Return the partitions whose offset is still as the plan saw it."""
    return frozenset(
        log
        for log in plan.offsets_to_commit
        if committed.get(log, NOTHING_COMMITTED) == plan.seen[log]
    )


@dataclass(frozen=True, slots=True)
class ReadTwice:
    """Offsets [from, until) of one log that the table holds, or will, and that others may have read
    as well.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int


def read_twice(state: PipelineState, snapshot: Snapshot) -> tuple[ReadTwice, ...]:
    """Return the duplicate reads of the newest plan; none unless it is a member's that commits
    after the append.
    """
    plan = snapshot.ledger.newest
    if plan is None or not plan.is_of_member or isinstance(state, RebuildFromTable):
        return ()
    is_in_table, is_recorded = isinstance(state, UpToDate), snapshot.ledger.applied is not None
    began, unknown = (
        _began(plan),
        set(plan.offsets_to_move) if is_in_table and not is_recorded else set(),
    )
    found = []
    for log, position in sorted(plan.positions.items()):
        there = snapshot.committed.get(log, NOTHING_COMMITTED)
        is_told = is_in_table and log not in unknown and (there.offset or 0) >= position
        until = position if log in unknown else min(there.offset or 0, position)
        if there != plan.left(log) and not is_told and until > began[log]:
            found.append(ReadTwice(log, began[log], until))
    return tuple(found)


def taken(plan: Plan, moved: Collection[BrokerPartition]) -> tuple[ReadTwice, ...]:
    """Return what others read, or will, of a plan in the table of which only the offsets of `moved`
    were committed.
    """
    began, left = (
        _began(plan),
        [log for log in plan.offsets_to_move if log not in moved] if plan.is_of_member else [],
    )
    return tuple(ReadTwice(log, began[log], plan.positions[log]) for log in left)


def _began(plan: Plan) -> dict[BrokerPartition, int]:
    """Return where another member begins that takes a partition before the plan's offsets are
    committed.
    """
    starts = starts_of(plan)
    return {
        log: starts[log] if seen.offset is None else seen.offset for log, seen in plan.seen.items()
    }
