"""How is the ledger compared with the table, and restored from it?

`etl offsets diff` compares ZooKeeper's offsets, the newest plan and the table, and describes what
the next run does. `etl ledger restore` shows what is lost, then observes again under the driver
lock and stores the plan that restores it. If only rows are left, that is the plan by which a
pipeline inherits from itself (etl/decide/inherit_pipeline.py).

Lives here: both commands and their texts.
Not here: what is lost, and which partitions differ (etl/decide/restore_ledger.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from etl.commands.operator_decisions import (
    DecisionResult,
    describe_stored_plan,
)
from etl.commands.operator_session import (
    finish_earlier_work,
    operator_session,
    plan_of_command,
    store_decided,
)
from etl.commands.run import new_run_id
from etl.decide.inherit_pipeline import (
    PredecessorState,
    plan_inheritance,
    predecessor_of,
    state_of_itself,
)
from etl.decide.member_offsets import as_left_to_others
from etl.decide.next_step import Action, Repair
from etl.decide.partition_owners import (
    describe_rewound,
    foreseen_by_command,
    leave_to_owners,
    reject_active_members,
    reject_partitions_of_other_members,
    reject_rewinding_other_members,
)
from etl.decide.reconcile import (
    compare,
    plan_in_force,
    reject_other_broker_type,
    reject_retired,
)
from etl.decide.restore_ledger import (
    Difference,
    ExpectedRun,
    Lost,
    PartitionSources,
    as_members_see,
    describe_each_move,
    describe_ends_beyond_rows,
    describe_restored_rows,
    differences,
    differing_offsets,
    expect_run,
    find_ends_beyond_rows,
    find_lost_part,
    is_forgotten,
    plan_in_table,
    plan_stands,
    repair_from,
    state_by_ledgers,
)
from etl.decide.set_offsets import Standing, plan_set
from etl.decide.table_changes import BEGIN_ANEW, ROWS_DO_NOT_TELL, plan_of
from etl.decide.table_rules import rows_not_begun
from etl.errors import EtlError, NeedsDecision, OffsetMoved, Owned, Unreachable
from etl.io.delta.loaded_plans import other_pipelines
from etl.io.zookeeper.ledger_side_documents import take_in
from etl.model.partitions import TopicPartition, drop_keys
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import (
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
    UpToDate,
)
from etl.report.lag import PAUSES_AND_BACKFILLS_LOST
from etl.report.report_json import describe_plan
from etl.run.live_services import LiveServices
from etl.run.observe import Observer
from etl.run.open_services import open_services
from etl.run.run_context import ALONE, RunContext
from etl.run.service_interfaces import Services, now_ms
from etl.settings.sections import Settings

# -- restoring


@dataclass(frozen=True, slots=True)
class Restorable:
    """What `etl ledger restore` would restore."""

    lost: Lost
    summary: tuple[str, ...]
    moves: frozenset[TopicPartition] = frozenset()
    """Partitions with a committed offset that would move."""
    loaded_until: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The loaded-until offset of each partition."""
    incarnations: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The last incarnation of each partition in the rows; empty if more than rows is left."""


def preview_restore(settings: Settings, run_context: RunContext = ALONE) -> Restorable:
    """Return what would be restored, without storing, committing or locking anything.

    Starts Spark if only rows are left. Raises what stops a run, except for moved offsets, and
    NeedsDecision if only rows are left of Jafka partitions.
    """
    with _open(settings, run_context, new_run_id()) as services:
        observed = foreseen_by_command(services.observe(), settings)
        return _find_restorable(services, _checked(services, observed))


def restore(
    settings: Settings, foreseen: Restorable, reason: str, run_context: RunContext = ALONE
) -> DecisionResult:
    """Store the plan that restores what `preview_restore` returned; the next run executes it.

    Raises Owned while a driver is active, and if something else is lost by now.
    """
    if foreseen.lost is Lost.NOTHING:
        return _result(foreseen.summary, foreseen.lost, None)
    with operator_session(settings, run_context) as session:
        services = session.services
        services.offsets.group.take_no_number_for_none()
        snapshot = _checked(services, session.observe())
        reject_active_members(snapshot, settings)
        reject_partitions_of_other_members(foreseen.moves, snapshot, settings)
        if _find_restorable(services, snapshot, foreseen) != foreseen:
            raise Owned(
                "Ledger, offsets or table changed since the preview",
                action="Run this command again, and check what it would restore",
            )
        if foreseen.lost is Lost.PLANS:
            plan = _from_rows(services, snapshot, foreseen, reason)
        else:
            plan = restore_from_commits(services, snapshot, settings, reason, session.run_id)
    return _result((*describe_stored_plan(plan, reason), *foreseen.summary), foreseen.lost, plan)


def _result(sentences: Sequence[str], lost: Lost, plan: Plan | None) -> DecisionResult:
    described = None
    if plan:
        described = describe_plan(plan, None)
    document = {"message": list(sentences), "restored": lost.value, "plan": described}
    return DecisionResult("\n".join(sentences), document)


@contextmanager
def _open(settings: Settings, run_context: RunContext, run_id: str) -> Iterator[LiveServices]:
    """Open the services; invalid offset texts count as removed offsets and are overwritten."""
    with open_services(settings, run_context, name=run_id) as services:
        services.offsets.group.take_no_number_for_none()
        yield services


def _checked(services: LiveServices, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without offsets of other members. Raises what stops this command."""
    settings = services.settings
    reject_retired(snapshot.ledger)
    in_force = plan_in_force(snapshot.ledger, snapshot.table)
    reject_other_broker_type(in_force, settings)
    reject_rewinding_other_members(in_force, snapshot.committed, settings)
    return as_left_to_others(leave_to_owners(snapshot, settings), in_force, settings)


def _find_restorable(
    services: LiveServices, snapshot: Snapshot, previous: Restorable | None = None
) -> Restorable:
    """Return what can be restored.

    previous   an earlier result; its rows are not read again if still only rows are left
    """
    lost, plan = find_lost_part(snapshot, services.settings)
    if lost is Lost.PLANS:
        if previous and previous.lost is lost:
            return previous
        return _restorable_from_rows(services, snapshot)
    if plan is None or lost is Lost.NOTHING:
        why = "ledger, offsets and table agree"
        if plan and plan.number > _number_in_table(snapshot):
            why = "the next run executes the stored plan"
        return Restorable(lost, (f"Nothing to restore: {why}",))
    moves = differing_offsets(plan, snapshot)
    sentences = []
    if lost is Lost.LEDGER:
        newest = snapshot.ledger.newest
        in_zookeeper = "ZooKeeper has no plan"
        if newest:
            in_zookeeper = f"Plan {newest.number} is the newest in ZooKeeper"
        sentences.append(
            f"{in_zookeeper}: the ledger is restored from the table's commits up to plan "
            f"{plan.number}"
        )
        sentences += _describe_lost_requests(snapshot)
    sentences += describe_each_move(moves)
    sentences += describe_rewound(moves, snapshot, services.settings)
    return Restorable(lost, tuple(sentences), frozenset(moves), dict(plan.loaded_until))


def _number_in_table(snapshot: Snapshot) -> int:
    """Return the number of the pipeline's newest plan in the table; 0: there is none."""
    if snapshot.table is None:
        return 0
    return snapshot.table.transaction_version or 0


def _describe_lost_requests(snapshot: Snapshot) -> list[str]:
    """Return the warning that pauses and backfills may be lost, if ZooKeeper has neither plans nor
    pauses.
    """
    if snapshot.ledger.newest or snapshot.ledger.pauses:
        return []
    return [PAUSES_AND_BACKFILLS_LOST]


def _restorable_from_rows(services: LiveServices, snapshot: Snapshot) -> Restorable:
    """Return what the table's rows restore. Raises NeedsDecision if they restore nothing."""
    from etl.io.delta.offsets_of_rows import rows_until

    settings = services.settings
    if settings.source.is_physical:
        raise NeedsDecision(
            f"The loaded-until offsets of this pipeline are unknown: {ROWS_DO_NOT_TELL}",
            path=settings.table.path,
            action="Restore a copy of ZooKeeper that is no older than the table's log. "
            f"Otherwise {BEGIN_ANEW}",
        )
    ledger = snapshot.ledger
    if not is_forgotten(ledger, snapshot.table):
        not_begun = rows_not_begun(ledger.newest, snapshot)
        if not_begun:
            return _restorable_until(not_begun, describe_restored_rows(not_begun, snapshot, 0))

    known: Collection[TopicPartition] = set()
    if ledger.newest:
        known = ledger.newest.loaded_until.keys()
    topics = set()
    for partition in (*snapshot.readable, *snapshot.left_out, *snapshot.leaderless):
        if settings.source.topic_filter.admits(partition.topic):
            topics.add(partition.topic)
    until = {}
    for partition, end in rows_until(services.spark(), settings.table.path).items():
        # rows of a topic that does not exist: a later topic of that name starts at its beginning
        if partition in known or partition.topic in topics:
            until[partition] = end
    if not until and ledger.newest is None:
        raise NeedsDecision(
            "The table holds no row of the conf's topics, and its log no longer has the plans",
            path=settings.table.path,
            action="Check table.path and source.topics, or restore a newer copy of ZooKeeper",
        )
    others = len(other_pipelines(settings.table.path, services.app_id))
    by_ledger = find_ends_beyond_rows(ledger, until)
    by_rows = drop_keys(until, by_ledger)
    sentences = [
        *describe_restored_rows(by_rows, snapshot, others),
        *describe_ends_beyond_rows(by_ledger),
        *_describe_lost_requests(snapshot),
    ]
    return _restorable_until({**by_rows, **by_ledger}, sentences)


def _restorable_until(
    until: Mapping[TopicPartition, tuple[int, int]], sentences: Sequence[str]
) -> Restorable:
    """Return the result for rows up to these ends: incarnation and offset per partition."""
    loaded_until = {}
    incarnations = {}
    for partition, (incarnation, offset) in until.items():
        loaded_until[partition] = offset
        incarnations[partition] = incarnation
    return Restorable(
        Lost.PLANS,
        tuple(sentences),
        moves=frozenset(until),
        loaded_until=loaded_until,
        incarnations=incarnations,
    )


def restore_from_commits(
    services: Services, snapshot: Snapshot, settings: Settings, reason: str, run_id: str
) -> Plan:
    """Restore the ledger, or its missing result, from the table's commits.

    Then stores and returns a plan with the reason, which moves the committed offsets back.
    """
    lost, last = find_lost_part(snapshot, settings)
    if last is None:
        raise Owned("The table's log was cleaned up meanwhile", action="Run this command again")
    done = ""
    stored = None
    if lost is not Lost.LEDGER:
        stored = _stored_backfill(snapshot, settings)
    if lost is Lost.LEDGER:
        repair = repair_from(last, snapshot)
        done = "The ledger was restored, and no offset was committed"
    else:
        is_unrecorded = snapshot.ledger.applied is None and stored is None
        repair = Repair(last, lacks_record=is_unrecorded)
    if snapshot.group.assignment:
        repair = replace(repair, offsets=())  # the plan moves them
    snapshot = finish_earlier_work(services, repair, snapshot, settings, run_id)
    standing = Standing(UpToDate(last, last.loaded_until), last.loaded_until)
    plan = plan_set(standing, (), snapshot, settings, reason=reason, now_ms=now_ms())
    plan = plan_of_command(plan, snapshot, settings, stored)
    store_decided(services, plan, snapshot.ledger, done)
    return plan


def _stored_backfill(snapshot: Snapshot, settings: Settings) -> Plan | None:
    """Return the stored plan of a backfill, whose number the next plan takes; None without one."""
    state = compare(snapshot.ledger, snapshot.table, settings.table.place)
    if isinstance(state, StoredBackfill):
        return state.plan
    return None


def _from_rows(
    services: LiveServices, snapshot: Snapshot, foreseen: Restorable, reason: str
) -> Plan:
    """Store and return the plan that continues after the table's rows."""
    settings = services.settings
    ledger = snapshot.ledger
    until = {}
    for partition, offset in foreseen.loaded_until.items():
        until[partition] = (foreseen.incarnations.get(partition, 0), offset)
    itself = OtherPipeline(services.app_id, _number_in_table(snapshot))
    admits = settings.source.topic_filter.admits
    if any(admits(partition.topic) for partition in until):
        predecessor = predecessor_of(itself, until, snapshot, settings)
    else:
        predecessor = PredecessorState(itself, {}, {})
    state = state_of_itself(snapshot, settings)
    has_all_plans = not is_forgotten(ledger, snapshot.table)
    stored = None
    if has_all_plans and ledger.newest:
        stored = _stored_backfill(snapshot, settings)
        state = UpToDate(ledger.newest, ledger.newest.loaded_until)
    plan = plan_inheritance(
        predecessor,
        state,
        snapshot,
        settings,
        uid=ledger.uid or services.new_uid(),
        now_ms=now_ms(),
        reason=reason,
        sets_back=True,
    )
    if has_all_plans:
        plan = replace(plan, kind=PlanKind.SET, inherits=None)
    plan = plan_of_command(plan, snapshot, settings, stored)
    known: Collection[TopicPartition] = set()
    if isinstance(state, (Resume, Supersede, StoredBackfill, UpToDate)):
        known = plan_of(state).loaded_until.keys()
    take_in(
        services.ledger,
        None,
        predecessor.positions,
        table_id=plan.table.id or "",
        known=known,
        lives=predecessor.incarnations,
    )
    store_decided(services, plan, ledger)
    return plan


# -- comparing


_NEEDS_BROKERS = (
    "log starts and log ends, whether partitions were truncated or recreated, which partitions are "
    "new, and what the next run would plan"
)


@dataclass(frozen=True, slots=True)
class SourcesDiff:
    """The result of `etl offsets diff`."""

    document: dict[str, Any]
    refusal: EtlError | None = None
    """The error of each run until an operator decides; or why that is unknown."""


def offsets_diff(settings: Settings, *, shows_all: bool = False) -> SourcesDiff:
    """Compare committed offsets, newest plan and table; nothing is changed.

    If no broker answers, compares by ZooKeeper and the table only. Raises the errors of reading
    these, and SettingsError if the cluster's name needs brokers.
    """
    source = settings.source.model_copy(update={"wait_for_leader_s": 0})
    patient = settings.model_copy(update={"source": source})
    with open_services(patient, ALONE) as services:
        try:
            return compare_sources(services.observe(), settings, shows_all=shows_all)
        except Unreachable as error:
            # no broker is registered or answers; if it is ZooKeeper, the next read raises again
            unreachable = error
        observer = Observer(
            patient, services.zookeeper, services.offsets, services.ledger, now_ms=now_ms
        )
        snapshot = observer.observe_ledgers().snapshot
        return compare_sources(snapshot, settings, shows_all=shows_all, away=unreachable)


def compare_sources(
    snapshot: Snapshot,
    settings: Settings,
    *,
    shows_all: bool = False,
    away: Unreachable | None = None,
) -> SourcesDiff:
    """Compare the sources in a snapshot.

    shows_all   also list partitions without a difference
    away        why brokers were not asked; None: they were
    """
    state = state_by_ledgers(snapshot, settings)
    foreseen = expect_run(snapshot, settings, now_ms=now_ms(), brokers_observed=away is None)
    partitions = []
    differing = []
    for difference in differences(snapshot, state):
        partition = as_members_see(difference, foreseen)
        partitions.append(partition)
        if partition.difference is not Difference.NONE:
            differing.append(partition)
    listed = differing
    if shows_all:
        listed = partitions
    newest = snapshot.ledger.newest
    error = foreseen.refusal
    stops = None
    if error:
        stops = error.as_json()
    not_checked = []
    if away:
        not_checked.append(f"{away.message}. Not checked: {_NEEDS_BROKERS}")
    document = {
        "plan": _plan_json(snapshot, state),
        "table": _table_json(snapshot),
        "partitions": len(partitions),
        "differing": len(differing),
        "rows": [_partition_json(partition, foreseen, newest) for partition in listed],
        "stops": stops,
        "not_looked_at": not_checked,
    }
    if error is None and foreseen.undecided:
        return SourcesDiff(document, away)
    if error and error.retriable:
        return SourcesDiff(document)
    return SourcesDiff(document, error)


def _plan_json(snapshot: Snapshot, state: PipelineState | None) -> dict[str, Any] | None:
    newest = snapshot.ledger.newest
    if newest is None:
        return None
    stands = plan_stands(state, snapshot.ledger, snapshot.table)
    return {"number": newest.number, "id": newest.id, "stands": stands.value}


def _table_json(snapshot: Snapshot) -> dict[str, Any] | None:
    table = snapshot.table
    in_table = plan_in_table(snapshot.ledger, table)
    if table is None:
        return None
    plan_id = None
    if in_table:
        plan_id = in_table.id
    return {
        "version": table.version,
        "transaction_version": table.transaction_version,
        "plan_id": plan_id,
    }


def _partition_json(
    sources: PartitionSources, foreseen: ExpectedRun, newest: Plan | None
) -> dict[str, Any]:
    return {
        **sources.partition.place,
        "committed": sources.committed,
        "plan": sources.planned,
        "table": sources.in_table,
        "difference": sources.difference.value,
        "means": _describe_difference(sources, foreseen, newest),
        "next_run": _describe_next_run(sources, foreseen),
    }


def _describe_difference(
    sources: PartitionSources, foreseen: ExpectedRun, newest: Plan | None
) -> str | None:
    """Describe a difference in one sentence; None without one."""
    number = 0
    if newest:
        number = newest.number
    not_in_table = f"plan {number} is stored and not in the table"
    if sources.difference is Difference.MOVED:
        moved = "another client moved the committed offset: no plan committed this one"
        if sources.committed is None:
            moved = "another client removed the committed offset: no plan removed it"
        if isinstance(foreseen.step.state, Resume | Supersede):
            return f"{moved}; and {not_in_table}"
        return moved
    sentences = {
        Difference.UNREAD: "the group has a committed offset here, and no plan of this pipeline "
        "has the partition",
        Difference.NOT_MOVED: "the rows up to the loaded-until offset are in the table, and it is "
        "not committed yet",
        Difference.READ_ON: "other members of the group continued from here: they read these "
        "records, and nothing is lost",
        Difference.NOT_APPENDED: not_in_table,
        Difference.LEDGER_BEHIND: "the table holds a plan that ZooKeeper does not have: the ledger "
        "was lost, was restored from an old copy, or was changed during a run",
        Difference.NOT_HELD: f"the table does not hold plan {number}, and an operator accepted "
        "that",
        Difference.DISAGREE: "the table and ZooKeeper contradict each other, and it is unknown "
        "which one is right",
    }
    return sentences.get(sources.difference)


def _describe_next_run(sources: PartitionSources, foreseen: ExpectedRun) -> str | None:
    """Describe what the next run does about a difference, as the end of a sentence.

    None without a difference.
    """
    state = foreseen.step.state
    if sources.difference is Difference.NONE:
        return None
    if state is None:
        if foreseen.refusal is not None and foreseen.refusal.retriable:
            return "stops before it does anything, and a later run continues"
        return "stops before it does anything: a person must decide"
    if sources.difference is Difference.UNREAD:
        return _describe_start(sources, foreseen)
    if isinstance(state, Resume | Supersede):
        return _describe_stored_plan(sources, foreseen)
    if sources.partition in foreseen.undecided:
        return "follows the offset or stops, depending on the log end, which was not read"
    if isinstance(state, StoredBackfill):
        return _describe_continuing(sources, state.state)
    if not isinstance(state, RebuildFromTable):
        return _describe_continuing(sources, state)
    parts = ["restores the ledger from the table", _describe_continuing(sources, state.state)]
    return ", then ".join(part for part in parts if part)


def _describe_continuing(sources: PartitionSources, state: PipelineState) -> str:
    """Describe what a run does that has no stored plan to finish; empty if nothing."""
    if not isinstance(state, UpToDate):
        return ""
    if sources.difference is Difference.READ_ON:
        return (
            "continues at the committed offset if the partition is in its assignment, and reports "
            "what other members read"
        )
    if sources.partition in state.followed:
        return "continues at the committed offset, by group.on_offset_changed"
    if sources.partition in state.not_followed:
        return (
            "leaves the committed offset and the loaded-until offset as they are: no selected "
            "topic has this partition"
        )
    if sources.partition in state.uncommitted:
        return "commits the loaded-until offset"
    if sources.difference is Difference.NOT_HELD:
        return "continues after the plan, and gives up what the table lacks of it"
    return ""


def _describe_start(sources: PartitionSources, foreseen: ExpectedRun) -> str:
    """Describe where the next run starts a partition without a plan."""
    step = foreseen.step
    if step.plan and step.action is Action.STORE:
        starts = [r.from_offset for r in step.plan.ranges if r.partition == sources.partition]
        start = min(starts, default=step.plan.loaded_until.get(sources.partition))
        if start is not None:
            return f"begins the partition at offset {start}"
    return "decides where the partition starts, once it can be read"


def _describe_stored_plan(sources: PartitionSources, foreseen: ExpectedRun) -> str:
    """Describe what the next run does with a stored plan that is not in the table."""
    step = foreseen.step
    if step.refusal:
        return "stops, because the plan cannot be finished: a person must decide"
    if step.action is Action.RESUME:
        sentence = "executes the plan"
    elif step.action:
        sentence = f"replaces the plan: {step.reason}"
    else:
        sentence = "executes the plan, or replaces it"
    if sources.difference is not Difference.MOVED:
        return sentence
    if isinstance(foreseen.refusal, OffsetMoved):
        return f"{sentence}, then stops at this offset: a person must decide"
    return f"{sentence}; it does not move this offset, and group.on_offset_changed decides about it"
