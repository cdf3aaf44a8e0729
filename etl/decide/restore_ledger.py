"""How do ZooKeeper, the newest plan and the table differ, and what can be restored?

    ledger and table                                  restored
    -----------------------------------------------   ----------------------------------------------
    the table has a plan that the ledger lacks, and   the ledger, from the table's commits, and all
    its commit is known                               offsets
    the same, no commit is known                      a plan that continues after the last row of
                                                      each partition
    they agree, or neither has a plan, and the table  the same for these partitions
    has rows of partitions that were not begun
    they agree, offsets differ                        the offsets, by a plan that moves them back
    a plan is stored and not in the table             nothing: the next run executes it

A row has the end of its offset, but not of its entry: Jafka cannot continue after rows alone. Rows
do not show: offsets at the end without rows (read again, no harm), rows deleted there (they
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
    state_after_plan,
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
    """The lost part that can be restored."""

    NOTHING = "nothing"
    OFFSETS = "offsets"
    LEDGER = "ledger"
    PLANS = "plans"
    """The ledger and its commits are lost: only rows are left."""


def find_lost_part(snapshot: Snapshot, settings: Settings) -> tuple[Lost, Plan | None]:
    """Return the part to restore, and the table's plan (None if the table has none).

    Raises LedgersDisagree if an operator must first accept a table, SettingsError if the table has
    no plan of ours, NeedsDecision if a stored plan must be executed first.
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
        raise SettingsError(
            "Neither the table nor ZooKeeper has a plan of this pipeline: there is nothing to "
            "restore",
            path=settings.table.path,
            action="Check table.path, group and pipeline. `etl run CONF --dry-run` describes a "
            "first "
            "run",
        )
    if isinstance(found, RebuildFromTable):
        return Lost.LEDGER, found.plan
    if not isinstance(found, UpToDate):
        return Lost.NOTHING, _stored_plan(found, snapshot, settings)
    if differing_offsets(found.last, snapshot):
        return Lost.OFFSETS, found.last
    if rows_not_begun(found.last, snapshot):
        return Lost.PLANS, None
    return Lost.NOTHING, found.last


def is_forgotten(ledger: Ledger, table: Table | None) -> bool:
    """Return True if the table has a plan that neither the ledger nor the table's log contains."""
    if table is None or (table.metadata and table.metadata.document is not None):
        return False
    newest = 0
    if ledger.newest:
        newest = ledger.newest.number
    return (table.transaction_version or 0) > newest


def _stored_plan(state: Replay | Supersede, snapshot: Snapshot, settings: Settings) -> Plan:
    """Return a stored plan whose committed offsets are unchanged since.

    Raises NeedsDecision, and as `reject_in_doubt_commit`.
    """
    plan = with_commit_settled(snapshot).ledger.newest or state.plan
    reject_in_doubt_commit(plan, snapshot, settings)
    for log in sorted(plan.offsets_to_move):
        committed = snapshot.committed.get(log, NOTHING_COMMITTED)
        if place_moved(plan, log, committed):
            raise NeedsDecision(
                f"Plan {plan.number} is stored and not in the table, and another client moved the "
                f"offset of {render_log(log)} since",
                action="Run `etl run CONF`, which executes it and then stops at this offset. Then "
                "run this command again",
            )
    return plan


def differing_offsets(
    plan: Plan, snapshot: Snapshot
) -> dict[BrokerPartition, tuple[int | None, int]]:
    """Return the partitions whose committed offset is not the plan's position: the offset now and
    after restoring.
    """
    found: dict[BrokerPartition, tuple[int | None, int]] = {}
    if not plan.moves_offsets:
        return found
    for log, position in sorted(plan.positions.items()):
        committed = snapshot.committed.get(log, NOTHING_COMMITTED)
        offset = off_position(committed, position)
        if offset != position:
            found[log] = (offset, position)
    return found


def repair_from(plan: Plan, snapshot: Snapshot) -> Repair:
    """Return the repair that restores the ledger from the table's commits, and sets each offset to
    its position, also one that another client moved.
    """
    seen = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in plan.positions}
    observed_by_settings = replace(plan, seen=seen, offsets_in=snapshot.offsets_in)
    return Repair(
        observed_by_settings,
        tuple(differing_offsets(plan, snapshot)),
        adopts=plan,
        knew=snapshot.ledger.newest,
    )


def describe_each_move(offsets: Mapping[BrokerPartition, tuple[int | None, int]]) -> list[str]:
    """Describe the changed offsets: a sentence for each partition."""
    sentences = []
    for log, (there, to) in offsets.items():
        before = "none" if there is None else str(there)
        sentences.append(f"{render_log(log)}: the committed offset changes from {before} to {to}")
    return sentences


def describe_restored_rows(
    until: Mapping[BrokerPartition, tuple[int, int]],
    snapshot: Snapshot,
    others: int,
) -> list[str]:
    """Describe the effects of continuing after the rows. `others`: number of other pipelines in the
    table.
    """
    sentences = []
    for log, (_, position) in sorted(until.items()):
        committed = snapshot.committed.get(log, NOTHING_COMMITTED).offset
        extent = snapshot.extents.get(log)
        sentence = f"{render_log(log)} continues at {position}, one past its last row"
        if committed is not None and committed > position:
            sentence += (
                f"; the committed offset is {committed}, and the offsets between are read again, "
                f"as "
                "the table has no rows of them"
            )
        if extent and extent.end_offset + extent.held_back < position:
            sentence += (
                f"; the partition ends at {extent.end_offset}, so it was truncated or recreated, "
                f"and "
                "the next run stops there"
            )
        sentences.append(sentence)
    log = min(until)
    last_offset = until[log][1] - 1
    sentences.append(
        "if a topic was deleted and recreated since, and is longer now, its records before these "
        "offsets would be skipped: compare the last rows with the records at their offsets, e.g. "
        f"`etl records show CONF -p {quoted_log(log)} --from {last_offset} -n 1`"
    )
    sentences.append(
        "rows that were deleted at the end of a partition are loaded again, lost offsets there are "
        "loaded if their records exist, and gaps further down can no longer be found"
    )
    if others:
        sentences.append(
            f"other pipelines have loaded into this table ({others}): all rows of the conf's "
            f"topics "
            "count, of any writer"
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
    """The state of ZooKeeper's newest plan; the value is its text in a table."""

    RECORDED = "in the table, and recorded"
    NOT_RECORDED = "in the table, and not recorded"
    STORED = "stored, and not in the table"
    OTHER_HELD = "not the plan of this number that the table holds"
    BEHIND = "older than the table's"
    NOT_HELD = "not in the table, which was accepted"
    GONE = "recorded, and the table does not hold it"
    UNCLEAR = "stored; whether its rows are in this table is unknown"


@dataclass(frozen=True, slots=True)
class PartitionSources:
    """The offsets of one partition in the three sources."""

    log: BrokerPartition
    committed: int | None
    """The committed offset of the group; None without one."""
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
    if table is None or table.metadata is None:
        return None
    metadata = table.metadata
    if ledger.newest and metadata.plan_id == ledger.newest.id:
        return ledger.newest
    if not metadata.document:
        return None
    # An unreadable plan is `compare`'s to report.
    with suppress(LedgersDisagree):
        return parse_plan(metadata.document, path=f"commit {metadata.delta_version} of the table")
    return None


def plan_stands(base: PipelineState | None, ledger: Ledger, table: Table | None) -> PlanStands:
    """Return the state of the ledger's newest plan, by `state_by_ledgers`."""
    newest = ledger.newest
    if isinstance(base, RebuildFromTable):
        if newest and base.plan.number == newest.number:
            return PlanStands.OTHER_HELD
        return PlanStands.BEHIND
    in_table = 0
    if table:
        in_table = table.transaction_version or 0
    if newest is None:
        return PlanStands.UNCLEAR
    if base is None:
        if is_recorded(ledger, newest) and in_table < newest.number:
            return PlanStands.GONE
        return PlanStands.UNCLEAR
    if isinstance(base, Replay | Supersede):
        return PlanStands.STORED
    if in_table != newest.number:
        return PlanStands.NOT_HELD
    if ledger.applied is None:
        return PlanStands.NOT_RECORDED
    return PlanStands.RECORDED


def differences(snapshot: Snapshot, base: PipelineState | None) -> list[PartitionSources]:
    """Return the differences of each partition in any of the three sources, in order.

    `base` is `state_by_ledgers` of the same snapshot.
    """
    ledger = snapshot.ledger
    table = snapshot.table
    held = plan_in_table(ledger, table)
    planned: Mapping[BrokerPartition, int] = {}
    in_table: Mapping[BrokerPartition, int] = {}
    commits_offsets = True
    if ledger.newest:
        planned = ledger.newest.positions
        commits_offsets = ledger.newest.moves_offsets
    if held:
        in_table = held.positions
        commits_offsets = commits_offsets and held.moves_offsets
    offsets = {}
    for log, committed in snapshot.committed.items():
        if committed.offset is not None:
            offsets[log] = committed.offset
    has_forgotten = held is None and table is not None and table.transaction_version is not None
    moved = _moved(base, snapshot)
    by_plan = _BY_PLAN[plan_stands(base, ledger, table)]
    found = []
    for log in in_order({*planned, *in_table, *offsets}):
        in_group = offsets.get(log)
        in_plan = planned.get(log)
        in_rows = in_table.get(log)
        compared = {in_plan}
        if not has_forgotten:
            compared.add(in_rows)
        if commits_offsets:
            compared.add(in_group)
        if in_plan is None and in_rows is None:
            difference = Difference.UNREAD
        elif log in moved:
            difference = Difference.MOVED
        elif len(compared) == 1:
            difference = Difference.NONE
        elif in_plan == in_rows or has_forgotten:
            difference = Difference.NOT_MOVED
        else:
            difference = by_plan
        found.append(PartitionSources(log, in_group, in_plan, in_rows, difference))
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
    committed = snapshot.committed
    plan = as_if_stored_in(snapshot.offsets_in, plan_of(base))
    if isinstance(base, RebuildFromTable):
        plan = expected_after_restore(plan, snapshot.ledger.newest, committed)
    return apart_from(plan, committed)[1]


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """The reaction of the next run to all differences, as far as known."""

    step: NextStep
    """Its first step; without an action if brokers were not observed."""
    refusal: EtlError | None = None
    """The error that it ends with, in its first step or a later one."""
    undecided: frozenset[BrokerPartition] = frozenset()
    """Partitions with an offset that is followed if the log reaches it; empty if brokers were
    observed.
    """


def expect_run(
    snapshot: Snapshot, settings: Settings, *, now_ms: int, has_asked_brokers: bool
) -> ExpectedRun:
    """Return the reaction of a run to this snapshot, by its own decisions. Raises no error."""
    if has_asked_brokers:
        seen = as_if_alone(snapshot, settings)
    else:
        seen = as_if_alone(_without_ends(snapshot), settings)
    try:
        if has_asked_brokers:
            step = next_step(seen, settings, now_ms=now_ms, uid="unnamed")
        else:
            step = _step_by_ledgers(seen, settings)
    except EtlError as error:
        return ExpectedRun(NextStep(seen, refusal=error), error)
    if step.refusal:
        return ExpectedRun(step, step.refusal)
    last = _last_state(step)
    followed: Mapping[BrokerPartition, int] = {}
    if isinstance(last, UpToDate):
        followed = last.followed
    try:
        if isinstance(last, Replay | Supersede):
            # Its offsets are committed once its rows are in the table, if no other client moved
            # them.
            followed = _followed_after(step.plan or last.plan, seen, settings)
        if has_asked_brokers:
            steps_ahead(seen, settings, now_ms=now_ms, uid="unnamed")
    except EtlError as error:
        return ExpectedRun(step, error)
    if has_asked_brokers:
        return ExpectedRun(step)
    return ExpectedRun(step, undecided=frozenset(followed))


def _last_state(step: NextStep) -> PipelineState | None:
    """Return the state of the step, after a restore of the ledger."""
    if isinstance(step.state, RebuildFromTable):
        return step.state.state
    return step.state


def _followed_after(
    plan: Plan, seen: Snapshot, settings: Settings
) -> Mapping[BrokerPartition, int]:
    """Return the offsets that are followed after this stored plan is in the table.

    Raises OffsetMoved.
    """
    if plan.handed_over is None or not is_member(settings):
        policy = settings.group.on_offset_changed
        return up_to_date(plan, seen.committed, policy, ends_of(seen)).followed
    if plan.handed_over:
        state_after_plan(plan, seen.committed, seen.committed.keys(), ends_of(seen))
    return {}


def as_members_see(sources: PartitionSources, foreseen: ExpectedRun) -> PartitionSources:
    """Return the difference for runs that are members of the group: an offset that others moved
    forwards was read by them.
    """
    if sources.difference is not Difference.MOVED:
        return sources
    last = _last_state(foreseen.step)
    is_read_by_others = False
    if isinstance(last, UpToDate):
        is_read_by_others = sources.log in last.passed
    elif isinstance(last, Replay | Supersede):
        is_beyond_plan = (sources.committed or 0) > last.plan.positions.get(sources.log, 0)
        is_read_by_others = (
            bool(last.plan.handed_over) and foreseen.refusal is None and is_beyond_plan
        )
    if not is_read_by_others:
        return sources
    return replace(sources, difference=Difference.READ_ON)


def _step_by_ledgers(snapshot: Snapshot, settings: Settings) -> NextStep:
    """Return the step up to its repair: its plan is unknown without the brokers.

    Raises as `next_step`, and its error.
    """
    reject_retired_or_shared(snapshot)
    left = leave_to_owners(snapshot, settings)
    state = where_we_stand(left, settings)
    return NextStep(left, state, repair_of(state, left))


def _without_ends(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with unbounded ends: an offset that is rejected with them is rejected at
    any end.
    """
    return replace(
        snapshot,
        extents=dict.fromkeys(snapshot.leaderless, PartitionOffsets(0, _NO_END)),
        leaderless=frozenset(),
    )
