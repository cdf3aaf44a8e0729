"""Where do ZooKeeper, the newest plan and the table differ, and what can be restored?

    ledger and table                                  restored
    -----------------------------------------------   ----------------------------------------------
    the table has a plan that the ledger lacks, and   the ledger, from the table's commits, and all
    its commit is known                               offsets
    the same, no commit is known                      a plan that continues behind the rows: after
                                                      the last row of each partition
    they agree, or neither has a plan, and the table  the same for these partitions
    has rows of partitions that were not begun
    they agree, offsets differ                        the offsets, by a plan that moves them back
    a plan is stored and not in the table             nothing: the next run executes it

Rows tell where an offset ends, not where an entry does: Jafka cannot continue behind rows alone.
Rows do not tell: offsets at the end without rows (read again, no harm), rows deleted there (they
return), offsets skipped there (loaded, if retained), and gaps further down.

Differences of one partition (`compare` names the state, etl/decide/next_step.py decides):

    UNREAD         the group has an offset, no plan of ours knows the partition
    NOT_MOVED      rows are in the table, the offset is as the plan saw it
    MOVED          another client wrote the offset
    READ_ON        the same, by another member of the group
    NOT_APPENDED   the plan is stored and not in the table
    LEDGER_BEHIND  the table has a plan that ZooKeeper lacks
    NOT_HELD       the table lacks the newest plan, which an operator accepted
    DISAGREE       an operator decides which side is right
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from etl.decide.group_commits import (
    as_if_alone,
    is_member,
    reject_in_doubt_commit,
    stand_as_member,
    with_commit_settled,
)
from etl.decide.group_ownership import leave_to_owners
from etl.decide.next_step import NextStep, Repair, next_step, repair_of, steps_ahead
from etl.decide.offsets import (
    apart_from,
    as_if_stored_in,
    ends_of,
    expected_after_restore,
    off_position,
    place_moved,
    up_to_date,
)
from etl.decide.reconcile import (
    compare,
    naming_table,
    reject_other_ledger,
    reject_retired_or_shared,
    where_we_stand,
)
from etl.decide.table_changes import (
    is_recorded,
    plan_of,
    reject_changes_by_others,
    reject_topics_of_other_pipelines,
)
from etl.decide.table_rules import rows_not_begun
from etl.errors import EtlError, LedgersDisagree, NeedsDecision, SettingsError
from etl.ledger.plan_document import parse_plan
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    PartitionOffsets,
    in_order,
    quoted_log,
    render_log,
)
from etl.model.plans import Plan
from etl.model.snapshot import (
    FirstRun,
    Ledger,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.sections import Settings


class Lost(str, Enum):
    """What there is to restore."""

    NOTHING = "nothing"
    OFFSETS = "offsets"
    LEDGER = "ledger"
    PLANS = "plans"
    """The ledger and its commits are lost: only rows are left."""


def what_is_lost(snapshot: Snapshot, settings: Settings) -> tuple[Lost, Plan | None]:
    """Return what there is to restore, and the table's plan; None if the table has none. Raises
    LedgersDisagree if an operator must first accept a table, SettingsError if the table has nothing
    of ours, NeedsDecision if a stored plan must be executed first.
    """
    ledger, table = snapshot.ledger, snapshot.table
    with naming_table(settings):
        reject_other_ledger(ledger, table)
        reject_changes_by_others(table, ledger.acknowledged, settings.table.on_rows_removed)
        if is_forgotten(ledger, table):
            return Lost.PLANS, None
        found = compare(ledger, table, settings.table.place)
    if isinstance(found, FirstRun) and rows_not_begun(None, snapshot):
        with naming_table(settings):
            reject_topics_of_other_pipelines(found, snapshot)
        return Lost.PLANS, None
    if isinstance(found, FirstRun):
        message = "The table holds no plan of this pipeline, and ZooKeeper knows none: there is nothing to restore"
        action = "Check table.path, group and pipeline; `etl run CONF --dry-run` says what a first run does"
        raise SettingsError(message, path=settings.table.path, action=action)
    if isinstance(found, RebuildFromTable):
        return Lost.LEDGER, found.plan
    if (
        isinstance(found, UpToDate)
        and not apart(found.last, snapshot)
        and rows_not_begun(found.last, snapshot)
    ):
        return Lost.PLANS, None
    if isinstance(found, UpToDate):
        return (Lost.OFFSETS if apart(found.last, snapshot) else Lost.NOTHING), found.last
    return Lost.NOTHING, _left(found, snapshot, settings)


def is_forgotten(ledger: Ledger, table: Table | None) -> bool:
    """True if the table holds a plan that the ledger lacks and the table's log no longer contains."""
    if table is None or (table.metadata and table.metadata.document is not None):
        return False
    return (table.transaction_version or 0) > (ledger.newest.number if ledger.newest else 0)


def _left(state: Replay | Supersede, snapshot: Snapshot, settings: Settings) -> Plan:
    """Return a stored plan whose offsets are as it saw them. Raises NeedsDecision, and as
    `reject_in_doubt_commit`.
    """
    plan = with_commit_settled(snapshot).ledger.newest or state.plan
    reject_in_doubt_commit(plan, snapshot, settings)
    found = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in plan.offsets_to_move}
    moved = sorted(log for log, now in found.items() if place_moved(plan, log, now))
    if moved:
        message = f"Plan {plan.number} is stored and not in the table, and another client moved the offset of {render_log(moved[0])} since"
        raise NeedsDecision(
            message,
            action="Run `etl run CONF`, which executes it and then stops at this offset; then run this command again",
        )
    return plan


def apart(plan: Plan, snapshot: Snapshot) -> dict[BrokerPartition, tuple[int | None, int]]:
    """Return the partitions whose committed offset is not the plan's position: the offset now and
    after restoring.
    """
    if plan.moves_offsets:
        found = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in plan.positions}
    else:
        found = {}
    there = {
        log: (off_position(one, plan.positions[log]), plan.positions[log])
        for log, one in sorted(found.items())
    }
    return {log: (at, to) for log, (at, to) in there.items() if at != to}


def repair_from(plan: Plan, snapshot: Snapshot) -> Repair:
    """Return the ledger from the table's commits, and each offset to its position, whoever moved
    it.
    """
    seen = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in plan.positions}
    observed_by_settings = replace(plan, seen=seen, offsets_in=snapshot.offsets_in)
    return Repair(
        observed_by_settings, tuple(apart(plan, snapshot)), adopts=plan, knew=snapshot.ledger.newest
    )


def describe_each_move(offsets: Mapping[BrokerPartition, tuple[int | None, int]]) -> list[str]:
    """Which offsets move: a sentence for each log."""
    return [
        f"{render_log(log)}: the committed offset goes from {'none' if there is None else there} to {to}"
        for log, (there, to) in offsets.items()
    ]


def describe_restored_rows(
    until: Mapping[BrokerPartition, tuple[int, int]],
    snapshot: Snapshot,
    others: int,
) -> list[str]:
    """Describe what continuing behind the rows means. `others`: number of other pipelines in the
    table.
    """
    sentences = []
    for log, (_, position) in sorted(until.items()):
        there, extent = (
            snapshot.committed.get(log, NOTHING_COMMITTED).offset,
            snapshot.extents.get(log),
        )
        sentence = f"{render_log(log)} goes on at {position}, one past its last row"
        if there is not None and there > position:
            sentence += f"; the committed offset is {there}, and what lies between is read again: the table has no row of it"
        if extent and extent.end_offset + extent.held_back < position:
            sentence += f"; the log ends at {extent.end_offset}, so it was cut or made again, and the next run stops there"
        sentences.append(sentence)
    log = min(until)
    sentences.append(
        "of a topic that was deleted and made again since, and is longer by now, records before these offsets would be passed over: "
        f"compare the last rows with what the logs hold there, e.g. `etl records show CONF -p {quoted_log(log)} "
        f"--from {until[log][1] - 1} -n 1`"
    )
    sentences.append(
        "rows that were deleted at the end of a partition come again, what was let go there is loaded if the log has it, and "
        "nobody can tell any more whether something is missing further down"
    )
    if others:
        sentences.append(
            f"other pipelines have loaded into this table ({others}): rows of the conf's topics count whoever loaded them"
        )
    return sentences


_NO_END = 2**63 - 1


class Difference(str, Enum):
    """A kind of difference; the value is its text in a table."""

    NONE = "none"
    UNREAD = "never read"
    NOT_MOVED = "offset not moved"
    MOVED = "moved by another client"
    READ_ON = "read on by others"
    NOT_APPENDED = "plan not appended"
    LEDGER_BEHIND = "ledger behind the table"
    NOT_HELD = "not in the table"
    DISAGREE = "ledgers disagree"


class PlanStands(str, Enum):
    """What is known of ZooKeeper's newest plan."""

    RECORDED = "in the table, and recorded"
    NOT_RECORDED = "in the table, and not recorded"
    STORED = "stored, and not in the table"
    OTHER_HELD = "not the plan of this number that the table holds"
    BEHIND = "older than the table's"
    NOT_HELD = "not in the table, which was accepted"
    GONE = "recorded, and the table does not hold it"
    UNCLEAR = "stored; whether its rows are in this table nobody can tell"


@dataclass(frozen=True, slots=True)
class PartitionSources:
    """What the three sources say of one partition."""

    log: BrokerPartition
    committed: int | None
    """The group's offset; None: there is none."""
    planned: int | None
    """The position of the newest plan in ZooKeeper."""
    in_table: int | None
    """The position of our newest commit in the table."""
    difference: Difference


def state_by_ledgers(snapshot: Snapshot, settings: Settings) -> PipelineState | None:
    """Return the state by ledger and table only; None if they disagree."""
    try:
        return compare(snapshot.ledger, snapshot.table, settings.table.place)
    except LedgersDisagree:
        return None


def plan_in_table(ledger: Ledger, table: Table | None) -> Plan | None:
    """Return the plan of our newest commit; None if there is none, or the table's log no longer has
    it.
    """
    metadata = table.metadata if table else None
    if metadata is None:
        return None
    if ledger.newest and metadata.plan_id == ledger.newest.id:
        return ledger.newest
    with suppress(
        LedgersDisagree
    ):  # a plan of which nothing can be read: what that means is `compare`'s to tell
        if metadata.document:
            return parse_plan(
                metadata.document, path=f"commit {metadata.delta_version} of the table"
            )
        return None
    return None


def plan_stands(base: PipelineState | None, ledger: Ledger, table: Table | None) -> PlanStands:
    """Return what is known of the ledger's newest plan, by `state_by_ledgers`."""
    newest = ledger.newest
    if isinstance(base, RebuildFromTable):
        if newest and base.plan.number == newest.number:
            return PlanStands.OTHER_HELD
        return PlanStands.BEHIND
    in_table = (table.transaction_version or 0) if table else 0
    if newest is None or base is None:
        is_gone = newest is not None and is_recorded(ledger, newest) and in_table < newest.number
        return PlanStands.GONE if is_gone else PlanStands.UNCLEAR
    if isinstance(base, Replay | Supersede):
        return PlanStands.STORED
    if in_table != newest.number:
        return PlanStands.NOT_HELD
    return PlanStands.NOT_RECORDED if ledger.applied is None else PlanStands.RECORDED


def differences(snapshot: Snapshot, base: PipelineState | None) -> list[PartitionSources]:
    """Each partition that any of the three knows, in order; `base` is `state_by_ledgers` the same
    snapshot.
    """
    ledger, table, committed = snapshot.ledger, snapshot.table, snapshot.committed
    held = plan_in_table(ledger, table)
    planned, in_table = (dict(plan.positions) if plan else {} for plan in (ledger.newest, held))
    offsets = {log: found.offset for log, found in committed.items() if found.offset is not None}
    has_forgotten = held is None and table is not None and table.transaction_version is not None
    moves = all(plan.moves_offsets for plan in (ledger.newest, held) if plan)
    moved, stands = _moved(base, snapshot), plan_stands(base, ledger, table)
    found = []
    for log in in_order({*planned, *in_table, *offsets}):
        in_zookeeper, in_plan, in_rows = offsets.get(log), planned.get(log), in_table.get(log)
        offsets_told = {
            in_plan,
            *(() if has_forgotten else (in_rows,)),
            *((in_zookeeper,) if moves else ()),
        }
        difference = Difference.NONE
        if in_plan is None and in_rows is None:
            difference = Difference.UNREAD
        elif len(offsets_told) > 1 or log in moved:
            if log in moved:
                difference = Difference.MOVED
            elif in_plan == in_rows or has_forgotten:
                difference = Difference.NOT_MOVED
            else:
                difference = _BY_PLAN[stands]
        found.append(PartitionSources(log, in_zookeeper, in_plan, in_rows, difference))
    return found


_BY_PLAN = {
    PlanStands.RECORDED: Difference.NOT_MOVED,
    PlanStands.NOT_RECORDED: Difference.NOT_MOVED,
    PlanStands.STORED: Difference.NOT_APPENDED,
    PlanStands.OTHER_HELD: Difference.LEDGER_BEHIND,
    PlanStands.BEHIND: Difference.LEDGER_BEHIND,
    PlanStands.NOT_HELD: Difference.NOT_HELD,
    PlanStands.GONE: Difference.DISAGREE,
    PlanStands.UNCLEAR: Difference.DISAGREE,
}


def _moved(base: PipelineState | None, snapshot: Snapshot) -> Collection[BrokerPartition]:
    """Return the partitions whose offset another client moved, relative to the state's plan."""
    if base is None or isinstance(base, FirstRun):
        return ()
    committed, plan = snapshot.committed, as_if_stored_in(snapshot.offsets_in, plan_of(base))
    if isinstance(base, RebuildFromTable):
        plan = expected_after_restore(plan, snapshot.ledger.newest, committed)
    return apart_from(plan, committed)[1]


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What the next run does about all differences, as far as known."""

    step: NextStep
    """Its first step; without an action if brokers were not asked."""
    refusal: EtlError | None = None
    """The error that it ends with, in its first step or a later one."""
    undecided: frozenset[BrokerPartition] = frozenset()
    """Partitions with an offset that is followed if the log reaches it, if brokers were not asked.
    """


def foresee(
    snapshot: Snapshot, settings: Settings, *, now_ms: int, has_asked_brokers: bool
) -> Foreseen:
    """Return what a run does with this snapshot, by its own decisions. Raises nothing."""
    seen = as_if_alone(snapshot if has_asked_brokers else _without_ends(snapshot), settings)
    try:
        if has_asked_brokers:
            step = next_step(seen, settings, now_ms=now_ms, uid="unnamed")
        else:
            step = _step_by_ledgers(seen, settings)
    except EtlError as error:
        return Foreseen(NextStep(seen, refusal=error), error)
    if step.refusal:
        return Foreseen(step, step.refusal)
    state = step.state
    last = state.state if isinstance(state, RebuildFromTable) else state
    followed = last.followed if isinstance(last, UpToDate) else {}
    try:
        if isinstance(
            last, Replay | Supersede
        ):  # its offsets are moved once its rows are in the table, where no other client moved them
            followed = _behind(step.plan or last.plan, seen, settings)
        if has_asked_brokers:
            steps_ahead(seen, settings, now_ms=now_ms, uid="unnamed")
    except EtlError as error:
        return Foreseen(step, error)
    return Foreseen(step, undecided=frozenset() if has_asked_brokers else frozenset(followed))


def _behind(plan: Plan, seen: Snapshot, settings: Settings) -> Mapping[BrokerPartition, int]:
    """Return the offsets that are followed after this stored plan is in the table. Raises
    OffsetMoved.
    """
    if plan.handed_over is None or not is_member(settings):
        return up_to_date(
            plan, seen.committed, settings.group.on_offset_changed, ends_of(seen)
        ).followed
    if plan.handed_over:
        stand_as_member(plan, seen.committed, seen.committed.keys(), ends_of(seen))
    return {}


def as_members_see(sources: PartitionSources, foreseen: Foreseen) -> PartitionSources:
    """The difference as it is for runs that are members of the group: an offset that others moved
    on is what they read.
    """
    state = foreseen.step.state
    last = state.state if isinstance(state, RebuildFromTable) else state
    if sources.difference is not Difference.MOVED:
        return sources
    is_behind_stored = (
        isinstance(last, Replay | Supersede)
        and bool(last.plan.handed_over)
        and foreseen.refusal is None
        and (sources.committed or 0) > last.plan.positions.get(sources.log, 0)
    )
    is_theirs = is_behind_stored or (isinstance(last, UpToDate) and sources.log in last.passed)
    return replace(sources, difference=Difference.READ_ON) if is_theirs else sources


def _step_by_ledgers(snapshot: Snapshot, settings: Settings) -> NextStep:
    """The step as far as its repair: what it plans is not known without the brokers. Raises as
    `next_step`, and its refusal.
    """
    reject_retired_or_shared(snapshot)
    left = leave_to_owners(snapshot, settings)
    state = where_we_stand(left, settings)
    return NextStep(left, state, repair_of(state, left))


def _without_ends(snapshot: Snapshot) -> Snapshot:
    """Return the same with unbounded ends: what is rejected even so is rejected wherever partitions
    end.
    """
    return replace(
        snapshot,
        extents=dict.fromkeys(snapshot.leaderless, PartitionOffsets(0, _NO_END)),
        leaderless=frozenset(),
    )
