"""Restore decisions: what a lost ledger can be restored from, and where the sources differ.

Lives here: the comparison of ZooKeeper, the newest plan and the table, for `etl ledger restore` and
`etl offsets diff`. Not here: storing the restored ledger or offsets
(etl/commands/restore_ledger.py), the decisions of a run (etl/decide/next_step.py).

    ledger and table                                  restored
    -----------------------------------------------   ----------------------------------------------
    the table has a plan that the ledger lacks, and   the ledger, from the table's commits, and all
    the table's log contains its commit               committed offsets
    the same, without the commit in the table's log   a plan that continues after the last row of
                                                      each partition
    they agree or neither has a plan, and the table   the same, for these partitions only
    has rows of partitions that have not begun
    they agree, and committed offsets differ          the committed offsets, by a plan
    a plan is stored and not in the table             nothing: the next run executes it

Restoring from rows has these limits:

    Jafka pipelines   rejected: a row has the offset of its message, and not the end of its log
                      entry, where the next read begins
    end of the rows   offsets there without rows are read again, which does no harm; rows that were
                      deleted there return; offsets that were skipped there are loaded if retained.
                      Below the start of the ledger's newest plan, or its end if the result is
                      recorded, nothing is read again
    lower offsets     gaps remain unknown

`compare` (etl/decide/reconcile.py) decides by ledger and table only, and etl/decide/next_step.py
with the brokers. `differences` names the difference of one partition:

    NONE           all sources have the same offset
    UNREAD         the group has a committed offset, and no plan of the pipeline has the partition
    NOT_MOVED      rows are in the table, and the committed offset is as the plan observed it
    MOVED          another client committed another offset
    READ_ON        the same, and the other client is a member of the group
    NOT_APPENDED   the plan is stored and not in the table
    LEDGER_BEHIND  the table has a plan that ZooKeeper lacks
    NOT_HELD       the table lacks the newest plan, which an operator accepted
    DISAGREE       ledger and table contradict each other: an operator decides
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from etl.decide.member_offsets import (
    as_if_alone,
    is_member,
    reject_in_doubt_commit,
    state_after_plan,
    with_commit_resolved,
)
from etl.decide.next_step import NextStep, Repair, next_step, repair_of, steps_ahead
from etl.decide.offsets import (
    apart_from,
    as_if_stored_in,
    ends_by_ledger,
    ends_of,
    expected_after_restore,
    off_position,
    place_moved,
    up_to_date,
)
from etl.decide.partition_owners import leave_to_owners
from etl.decide.reconcile import (
    compare,
    is_unidentified,
    naming_table,
    reject_changed_table,
    reject_other_ledger,
    reject_retired_or_shared,
    where_we_stand,
)
from etl.decide.table_changes import (
    is_recorded,
    plan_of,
    reject_topics_of_other_pipelines,
)
from etl.decide.table_rules import rows_not_begun
from etl.errors import EtlError, LedgersDisagree, NeedsDecision, SettingsError
from etl.ledger.plan_document import parse_plan
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    PartitionOffsets,
    TopicPartition,
    in_order,
    quoted_partition,
    render_partition,
)
from etl.model.plans import CommitState, Plan
from etl.model.snapshot import (
    Availability,
    FirstRun,
    Ledger,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.sections import Settings


class Lost(str, Enum):
    """A lost part that can be restored."""

    NOTHING = "nothing"
    OFFSETS = "offsets"
    LEDGER = "ledger"
    PLANS = "plans"
    """Plans that neither the ledger nor the table's log contains: rows are the only source."""


def find_lost_part(snapshot: Snapshot, settings: Settings) -> tuple[Lost, Plan | None]:
    """Return the part to restore, and the plan to restore it from.

    The plan is the newest one, or the table's if the ledger lacks it; None for `Lost.PLANS`.
    Raises LedgersDisagree if an operator must first accept a table, SettingsError if neither the
    table nor ZooKeeper has a plan, NeedsDecision if a stored plan must be executed first.
    """
    ledger = snapshot.ledger
    table = snapshot.table
    with naming_table(settings):
        reject_other_ledger(ledger, table)
        reject_changed_table(
            ledger, table, settings.table.on_rows_removed, place=settings.table.place
        )
        if is_forgotten(ledger, table):
            return Lost.PLANS, None
        state = compare(ledger, table, settings.table.place)
    if isinstance(state, FirstRun):
        if rows_not_begun(None, snapshot):
            with naming_table(settings):
                reject_topics_of_other_pipelines(state, snapshot, settings)
            return Lost.PLANS, None
        raise SettingsError(
            "Neither the table nor ZooKeeper has a plan of this pipeline: there is nothing to "
            "restore",
            path=settings.table.path,
            action="Check table.path, group.id and pipeline. `etl run CONF --dry-run` describes a "
            "first run",
        )
    if isinstance(state, RebuildFromTable):
        return Lost.LEDGER, state.plan
    if isinstance(state, StoredBackfill):
        state = state.state
    if not isinstance(state, UpToDate):
        return Lost.NOTHING, _stored_plan(state, snapshot, settings)
    if differing_offsets(state.last, snapshot):
        return Lost.OFFSETS, state.last
    if rows_not_begun(state.last, snapshot):
        return Lost.PLANS, None
    return Lost.NOTHING, state.last


def is_forgotten(ledger: Ledger, table: Table | None) -> bool:
    """Return True if the table has a plan that neither the ledger nor the table's log contains, or
    may have one (`is_unidentified`).
    """
    if table is None:
        return False
    if table.metadata and table.metadata.document is not None:
        return False
    newest_number = 0
    if ledger.newest:
        newest_number = ledger.newest.number
    number_in_table = table.transaction_version or 0
    return number_in_table > newest_number or is_unidentified(ledger, table)


def _stored_plan(state: Resume | Supersede, snapshot: Snapshot, settings: Settings) -> Plan:
    """Return the stored plan that the next run executes.

    Raises NeedsDecision if another client moved a committed offset after the plan was stored, and
    the errors of `reject_in_doubt_commit`.
    """
    plan = with_commit_resolved(snapshot).ledger.newest or state.plan
    reject_in_doubt_commit(plan, snapshot, settings)
    for partition in sorted(plan.offsets_to_move):
        committed = snapshot.committed.get(partition, NOTHING_COMMITTED)
        if place_moved(plan, partition, committed):
            raise NeedsDecision(
                f"Plan {plan.number} is stored and not in the table, and another client moved the "
                f"offset of {render_partition(partition)} since",
                action=f"{_before_the_run(plan, partition, committed)}Run `etl run CONF`, which "
                "executes it and then stops at this offset. Then run this command again",
            )
    return plan


def _before_the_run(plan: Plan, partition: TopicPartition, committed: Committed) -> str:
    """Return what must be done by hand before a run reads the offset; empty if nothing."""
    is_no_number = committed.offset is None and committed.znode_version is not None
    if not is_no_number:
        return ""
    expected = plan.expected_commits[partition].offset
    if expected is None:
        return "Delete the znode of its committed offset, which is no number. "
    return f"Set its committed offset, which is no number, to {expected} as plain decimal text. "


def differing_offsets(
    plan: Plan, snapshot: Snapshot
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Return the partitions with another committed offset than the plan's loaded-until offset.

    The values are the committed offset now (None: no offset is committed) and after restoring.
    """
    differing: dict[TopicPartition, tuple[int | None, int]] = {}
    for partition, loaded_until in sorted(plan.loaded_until.items()):
        committed = snapshot.committed.get(partition, NOTHING_COMMITTED)
        offset = off_position(committed, loaded_until)
        if offset != loaded_until:
            differing[partition] = (offset, loaded_until)
    return differing


def repair_from(plan: Plan, snapshot: Snapshot) -> Repair:
    """Return the repair that restores the ledger from the table's commits.

    It commits the loaded-until offset of each partition, also if another client moved the committed
    offset: the plan of the repair expects the offsets of this snapshot, and not those that the
    plan in the table observed.
    """
    observed = {}
    for partition in plan.loaded_until:
        observed[partition] = snapshot.committed.get(partition, NOTHING_COMMITTED)
    commit = replace(plan.commit, storage=snapshot.group.storage)
    return Repair(
        replace(plan.with_expected(observed), commit=commit),
        tuple(differing_offsets(plan, snapshot)),
        adopts=plan,
        knew=snapshot.ledger.newest,
    )


def describe_each_move(offsets: Mapping[TopicPartition, tuple[int | None, int]]) -> list[str]:
    """Describe the changed committed offsets of `differing_offsets`, a sentence per partition."""
    sentences = []
    for partition, (committed, restored) in offsets.items():
        before = "none"
        if committed is not None:
            before = str(committed)
        sentences.append(
            f"{render_partition(partition)}: the committed offset changes from {before} to "
            f"{restored}"
        )
    return sentences


def find_ends_beyond_rows(
    ledger: Ledger, until: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return where partitions continue by the ledger, since the table has no row up to there.

    The values are incarnation and offset, as those of `until`, the ends of the rows. The plan that
    restores the ledger continues there, too (`inherit_pipeline`). The ranges of a plan without a
    result are read again: no row of them can be there twice.
    """
    newest = ledger.newest
    if newest is None:
        return {}
    found = {}
    for partition, offset in ends_by_ledger(ledger).items():
        end = (newest.incarnations.get(partition, 0), offset)
        if partition not in until or until[partition] < end:
            found[partition] = end
    return found


def describe_ends_beyond_rows(ends: Mapping[TopicPartition, tuple[int, int]]) -> list[str]:
    """Describe the partitions of `find_ends_beyond_rows`, a sentence per partition."""
    sentences = []
    for partition, (_, offset) in sorted(ends.items()):
        sentences.append(
            f"{render_partition(partition)} continues at {offset}, up to which ZooKeeper's plans "
            "loaded it; the table lacks its last rows before, and `etl verify` counts them"
        )
    return sentences


def describe_restored_rows(
    until: Mapping[TopicPartition, tuple[int, int]],
    snapshot: Snapshot,
    others: int,
) -> list[str]:
    """Describe the effects of a plan that continues after the last row of each partition.

    until    the last incarnation of each partition, and one past its last offset
    others   number of other pipelines that loaded into the table
    """
    sentences = []
    for partition, (_, until_offset) in sorted(until.items()):
        sentences.append(_describe_continuation(partition, until_offset, snapshot))
    if until:
        first = min(until)
        last_offset = until[first][1] - 1
        sentences.append(
            "If a topic was deleted and recreated since, and is longer now, its records before "
            "these offsets would be skipped. Compare the last rows with the records at their "
            "offsets, e.g. "
            f"`etl records show CONF -p {quoted_partition(first)} --from {last_offset} -n 1`"
        )
    sentences.append(
        "Rows that were deleted at the end of a partition are loaded again, lost offsets there are "
        "loaded if their records exist, and gaps at lower offsets can no longer be found"
    )
    if others:
        sentences.append(
            f"Other pipelines have loaded into this table ({others}): all rows of the conf's "
            "topics count, of any writer"
        )
    return sentences


def _describe_continuation(partition: TopicPartition, until_offset: int, snapshot: Snapshot) -> str:
    """Describe where a partition continues after its rows, and what contradicts these rows."""
    sentence = f"{render_partition(partition)} continues at {until_offset}, one past its last row"
    committed = snapshot.committed.get(partition, NOTHING_COMMITTED).offset
    if committed is not None and committed > until_offset:
        sentence += (
            f"; the committed offset is {committed}, and the offsets between are read again, as "
            "the table has no rows of them"
        )
    offsets = snapshot.readable.get(partition)
    if offsets and offsets.end_offset + offsets.held_back < until_offset:
        sentence += (
            f"; the partition ends at {offsets.end_offset}, so it was truncated or recreated, and "
            "the next run stops there"
        )
    return sentence


class Difference(str, Enum):
    """The difference of one partition (see the module's table); the value is the text shown."""

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
    """The state of ZooKeeper's newest plan; the value is the text shown."""

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

    partition: TopicPartition
    committed: int | None
    """The committed offset of the group; None: no offset is committed."""
    planned: int | None
    """The loaded-until offset of ZooKeeper's newest plan; None: the plan lacks the partition."""
    in_table: int | None
    """The loaded-until offset of the table's newest plan; None: unknown, or not in that plan."""
    difference: Difference


def state_by_ledgers(snapshot: Snapshot, settings: Settings) -> PipelineState | None:
    """Return the state by ledger and table, without offsets; None if they disagree."""
    try:
        return compare(snapshot.ledger, snapshot.table, settings.table.place)
    except LedgersDisagree:
        return None


def plan_in_table(ledger: Ledger, table: Table | None) -> Plan | None:
    """Return the plan of the pipeline's newest commit in the table.

    None if there is no such commit, the table's log no longer contains it, or its plan is
    unreadable.
    """
    if table is None or table.metadata is None:
        return None
    metadata = table.metadata
    if ledger.newest and metadata.plan_id == ledger.newest.id:
        return ledger.newest
    if not metadata.document:
        return None
    # `compare` reports an unreadable plan.
    with suppress(LedgersDisagree):
        return parse_plan(metadata.document, path=f"commit {metadata.delta_version} of the table")
    return None


def plan_stands(base: PipelineState | None, ledger: Ledger, table: Table | None) -> PlanStands:
    """Return the state of the ledger's newest plan. `base` is the result of `state_by_ledgers`."""
    newest = ledger.newest
    if isinstance(base, RebuildFromTable):
        if newest and base.plan.number == newest.number:
            return PlanStands.OTHER_HELD
        return PlanStands.BEHIND
    if newest is None:
        return PlanStands.UNCLEAR
    number_in_table = 0
    if table:
        number_in_table = table.transaction_version or 0
    if base is None:
        if is_recorded(ledger, newest) and number_in_table < newest.number:
            return PlanStands.GONE
        return PlanStands.UNCLEAR
    if isinstance(base, Resume | Supersede | StoredBackfill):
        return PlanStands.STORED
    if number_in_table != newest.number:
        return PlanStands.NOT_HELD
    if ledger.applied is None:
        return PlanStands.NOT_RECORDED
    return PlanStands.RECORDED


def differences(snapshot: Snapshot, base: PipelineState | None) -> list[PartitionSources]:
    """Compare the offsets of every partition that any of the three sources has, in order.

    `base` is `state_by_ledgers` of the same snapshot.
    """
    newest = snapshot.ledger.newest
    table = snapshot.table
    table_plan = plan_in_table(snapshot.ledger, table)
    in_ledger: Mapping[TopicPartition, int] = {}
    in_table: Mapping[TopicPartition, int] = {}
    if newest:
        in_ledger = newest.loaded_until
    if table_plan:
        in_table = table_plan.loaded_until
    in_group = {}
    for partition, committed in snapshot.committed.items():
        if committed.offset is not None:
            in_group[partition] = committed.offset

    # The table has a plan, and its log no longer contains it: its offsets are not compared.
    is_table_plan_unknown = (
        table_plan is None and table is not None and table.transaction_version is not None
    )
    moved = _moved_by_others(base, snapshot)
    by_plan = _DIFFERENCE_BY_PLAN[plan_stands(base, snapshot.ledger, table)]
    partitions = []
    for partition in in_order({*in_ledger, *in_table, *in_group}):
        committed_offset = in_group.get(partition)
        planned = in_ledger.get(partition)
        loaded = in_table.get(partition)
        compared = {planned}
        if not is_table_plan_unknown:
            compared.add(loaded)
        compared.add(committed_offset)

        if planned is None and loaded is None:
            difference = Difference.UNREAD
        elif partition in moved:
            difference = Difference.MOVED
        elif len(compared) == 1:
            difference = Difference.NONE
        elif planned == loaded:
            difference = Difference.NOT_MOVED
        else:
            difference = by_plan
        partitions.append(
            PartitionSources(partition, committed_offset, planned, loaded, difference)
        )
    return partitions


_DIFFERENCE_BY_PLAN = {
    PlanStands.RECORDED: Difference.NOT_MOVED,
    PlanStands.NOT_RECORDED: Difference.NOT_MOVED,
    PlanStands.STORED: Difference.NOT_APPENDED,
    PlanStands.OTHER_HELD: Difference.LEDGER_BEHIND,
    PlanStands.BEHIND: Difference.LEDGER_BEHIND,
    PlanStands.NOT_HELD: Difference.NOT_HELD,
    PlanStands.GONE: Difference.DISAGREE,
    PlanStands.UNCLEAR: Difference.DISAGREE,
}
"""The difference of a partition if ledger and table have different loaded-until offsets."""


def _moved_by_others(base: PipelineState | None, snapshot: Snapshot) -> Collection[TopicPartition]:
    """Return the partitions with an offset that another client committed after the state's plan."""
    if base is None or isinstance(base, FirstRun):
        return ()
    committed = snapshot.committed
    plan = as_if_stored_in(snapshot.group.storage, plan_of(base))
    if isinstance(base, RebuildFromTable):
        plan = expected_after_restore(plan, snapshot.ledger.newest, committed)
    _, moved = apart_from(plan, committed)
    return moved


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """The expected reaction of the next run to all differences."""

    step: NextStep
    """The first step; without an action and a plan if brokers were not observed."""
    refusal: EtlError | None = None
    """The error that ends the run, in its first step or a later one; None: no error is expected."""
    undecided: frozenset[TopicPartition] = frozenset()
    """Partitions that continue at a committed offset if the partition's end is not below it.

    Empty if brokers were observed.
    """


def expect_run(
    snapshot: Snapshot, settings: Settings, *, now_ms: int, brokers_observed: bool
) -> ExpectedRun:
    """Return the reaction of a run to this snapshot, by the decisions of a run.

    An error that the run would raise is returned in `ExpectedRun.refusal`, and not raised.
    """
    if not brokers_observed:
        snapshot = _with_unbounded_ends(snapshot)
    expected = as_if_alone(snapshot, settings)
    try:
        if brokers_observed:
            step = next_step(expected, settings, now_ms=now_ms, uid="unnamed")
        else:
            step = _step_by_ledgers(expected, settings)
    except EtlError as error:
        return ExpectedRun(NextStep(expected, refusal=error), error)
    if step.refusal:
        return ExpectedRun(step, step.refusal)

    state = _state_after_restore(step)
    followed: Mapping[TopicPartition, int] = {}
    if isinstance(state, UpToDate):
        followed = state.followed
    try:
        if isinstance(state, Resume | Supersede):
            # The run commits the plan's offsets after the append, unless another client moved them.
            followed = _followed_after_append(step.plan or state.plan, expected, settings)
        if brokers_observed:
            # For its errors only: those of the later steps.
            steps_ahead(expected, settings, now_ms=now_ms, uid="unnamed")
    except EtlError as error:
        return ExpectedRun(step, error)
    if brokers_observed:
        return ExpectedRun(step)
    return ExpectedRun(step, undecided=frozenset(followed))


def _state_after_restore(step: NextStep) -> PipelineState | None:
    """Return the state of the step; if it restores the ledger, the state afterwards."""
    if isinstance(step.state, RebuildFromTable):
        return step.state.state
    return step.state


def _followed_after_append(
    plan: Plan, snapshot: Snapshot, settings: Settings
) -> Mapping[TopicPartition, int]:
    """Return the committed offsets that a run continues at once this stored plan is in the table.

    Raises OffsetMoved.
    """
    committed = snapshot.committed
    ends = ends_of(snapshot)
    if not plan.commit.state.is_before_read or not is_member(settings):
        return up_to_date(plan, committed, settings.group.on_offset_changed, ends).followed
    if plan.commit.state is CommitState.DONE:
        # For its errors only: a member continues at the offsets of its assignment.
        state_after_plan(plan, committed, committed.keys(), ends)
    return {}


def as_members_see(sources: PartitionSources, expected_run: ExpectedRun) -> PartitionSources:
    """Return the difference for a run that is a member of the group.

    MOVED becomes READ_ON if the offset moved forwards: another member has read the offsets between.
    """
    if sources.difference is not Difference.MOVED:
        return sources
    if not _is_read_by_members(sources, expected_run):
        return sources
    return replace(sources, difference=Difference.READ_ON)


def _is_read_by_members(sources: PartitionSources, expected_run: ExpectedRun) -> bool:
    """Return True if other members have read the partition up to its committed offset."""
    state = _state_after_restore(expected_run.step)
    if isinstance(state, UpToDate):
        return sources.partition in state.passed
    if not isinstance(state, Resume | Supersede):
        return False
    if state.plan.commit.state is not CommitState.DONE or expected_run.refusal is not None:
        return False
    committed = sources.committed or 0
    return committed > state.plan.loaded_until.get(sources.partition, 0)


def _step_by_ledgers(snapshot: Snapshot, settings: Settings) -> NextStep:
    """Return the next step up to its repair: without the brokers its plan is unknown.

    Raises the errors of `next_step`, and those that `next_step` returns as a refusal.
    """
    reject_retired_or_shared(snapshot)
    available = leave_to_owners(with_commit_resolved(snapshot), settings)
    state = where_we_stand(available, settings)
    return NextStep(available, state, repair_of(state, available))


_UNBOUNDED_END = 2**63 - 1


def _with_unbounded_ends(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot of unreachable brokers with the largest end for every partition.

    An offset that is rejected with these ends is rejected with any end.
    """
    changed = {}
    for partition in snapshot.leaderless:
        changed[partition] = replace(
            snapshot.partitions[partition],
            availability=Availability.READABLE,
            offsets=PartitionOffsets(0, _UNBOUNDED_END),
        )
    return snapshot.with_partitions(changed)
