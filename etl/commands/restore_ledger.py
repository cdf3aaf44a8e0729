"""How is the ledger compared with the table, and restored from it?

`etl ledger restore` shows what is lost, then observes again under the driver lock and stores the
plan that restores it. If only rows are left, it is the plan by which a pipeline inherits from
itself (etl/decide/inherit_pipeline.py). `etl offsets diff` compares ZooKeeper's offsets, the newest
plan and the table, and says what the next run does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from etl.commands.operator_decisions import (
    DecisionResult,
    as_member,
    describe_stored_plan,
    store_decided,
)
from etl.commands.run import new_run_id
from etl.decide.group_commits import as_left_to_others
from etl.decide.group_ownership import (
    describe_rewound,
    foreseen_by_command,
    leave_to_owners,
    of_command,
    reject_active_members,
    reject_fenced_plan,
    reject_partitions_of_other_members,
    reject_rewinding_other_members,
)
from etl.decide.inherit_pipeline import plan_inheritance, predecessor_of, state_of_itself
from etl.decide.next_step import Action, Repair, repaired
from etl.decide.reconcile import plan_in_force, reject_other_broker_type, reject_retired
from etl.decide.restore_ledger import (
    Difference,
    Foreseen,
    Lost,
    PartitionSources,
    apart,
    as_members_see,
    describe_each_move,
    describe_restored_rows,
    differences,
    foresee,
    is_forgotten,
    plan_in_table,
    plan_stands,
    repair_from,
    state_by_ledgers,
    what_is_lost,
)
from etl.decide.set_offsets import Standing, plan_set
from etl.decide.table_changes import BEGIN_ANEW, ROWS_DO_NOT_TELL, plan_of
from etl.decide.table_rules import rows_not_begun
from etl.errors import EtlError, NeedsDecision, OffsetMoved, Owned, Unreachable
from etl.io.delta.table_state import other_pipelines
from etl.io.zookeeper.ledger_records import take_in
from etl.ledger.plan_document import with_id
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import (
    OtherPipeline,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    UpToDate,
)
from etl.report.lag import PAUSES_LOST
from etl.report.plan_json import describe_plan
from etl.report.run_report import Report
from etl.run.ingest import finish_repair
from etl.run.live import LiveServices
from etl.run.observe import Observer
from etl.run.services import ALONE, RunContext, Services, now_ms
from etl.run.shell import open_services
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Restorable:
    """What would be restored."""

    lost: Lost
    summary: tuple[str, ...]
    moves: frozenset[BrokerPartition] = frozenset()
    """Partitions whose committed offset would move."""
    positions: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Position of each partition."""
    lives: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """With rows only: the last incarnation of each partition."""


def look(settings: Settings, run_context: RunContext = ALONE) -> Restorable:
    """Return what would be restored; nothing is stored, moved or locked. Starts Spark if only rows
    are left. Raises what stops a run except moved offsets, and NeedsDecision for Jafka partitions
    of which only rows are left.
    """
    with _opened(settings, run_context, new_run_id()) as services:
        return _restorable(
            services, _seen(services, foreseen_by_command(services.observe(), settings))
        )


def restore(
    settings: Settings, foreseen: Restorable, reason: str, run_context: RunContext = ALONE
) -> DecisionResult:
    """Restore it by a numbered plan that the next run executes. Raises Owned while a driver is
    active, and if something else is lost than shown.
    """
    if foreseen.lost is Lost.NOTHING:
        return DecisionResult(
            foreseen.summary[0],
            {"message": list(foreseen.summary), "restored": foreseen.lost.value, "plan": None},
        )
    run_id = new_run_id()
    with (
        _opened(settings, run_context, run_id) as services,
        services.driving(run_id),
        as_member(services, settings) as share,
    ):
        snapshot = _seen(services, replace(services.observe(), share=share))
        reject_active_members(snapshot, settings)
        reject_partitions_of_other_members(foreseen.moves, snapshot, settings)
        if _restorable(services, snapshot, foreseen) != foreseen:
            raise Owned(
                "Something went on since it was looked at",
                action="Run this command again, and look at what it says",
            )
        if foreseen.lost is Lost.PLANS:
            plan = _behind_rows(services, snapshot, foreseen, reason)
        else:
            plan = from_commits(services, snapshot, settings, reason, run_id)
    sentences = [*describe_stored_plan(plan, reason), *foreseen.summary]
    return DecisionResult(
        "\n".join(sentences),
        {"message": sentences, "restored": foreseen.lost.value, "plan": describe_plan(plan, None)},
    )


@contextmanager
def _opened(settings: Settings, run_context: RunContext, run_id: str) -> Iterator[LiveServices]:
    """Open the services; invalid offset texts are overwritten like removed offsets."""
    with open_services(settings, run_context, name=run_id) as services:
        services.offsets.group.take_no_number_for_none()
        yield services


def _seen(services: LiveServices, snapshot: Snapshot) -> Snapshot:
    reject_retired(snapshot.ledger)
    in_force = plan_in_force(snapshot.ledger, snapshot.table)
    reject_other_broker_type(in_force, services.settings)
    reject_rewinding_other_members(in_force, snapshot.committed, services.settings)
    return as_left_to_others(
        leave_to_owners(snapshot, services.settings), in_force, services.settings
    )


def _restorable(
    services: LiveServices, snapshot: Snapshot, known: Restorable | None = None
) -> Restorable:
    """`known`: what rows told before; they are not read again while the table's plan is the same."""
    lost, plan = what_is_lost(snapshot, services.settings)
    if lost is Lost.PLANS:
        return _rows_tell(services, snapshot) if known is None or known.lost is not lost else known
    if plan is None or lost is Lost.NOTHING:
        is_stored = plan is not None and plan.number > (
            (snapshot.table.transaction_version or 0) if snapshot.table else 0
        )
        if is_stored:
            why = "the next run executes the stored plan"
        else:
            why = "ledger, offsets and table agree"
        return Restorable(lost, (f"there is nothing to restore: {why}",))
    moves = apart(plan, snapshot)
    sentences = *describe_each_move(moves), *describe_rewound(moves, snapshot, services.settings)
    if lost is Lost.LEDGER:
        newest = snapshot.ledger.newest
        knew = f"knows plan {newest.number} as the newest" if newest else "knows no plan"
        sentences = (
            f"ZooKeeper {knew}: the ledger is written anew from the table's commits up to plan {plan.number}",
            *(() if newest or snapshot.pauses else (PAUSES_LOST,)),
            *sentences,
        )
    return Restorable(lost, sentences, frozenset(moves), dict(plan.positions))


def _rows_tell(services: LiveServices, snapshot: Snapshot) -> Restorable:
    from etl.io.delta.scan import rows_until

    settings = services.settings
    if settings.source.is_physical:
        message = f"Nobody knows where this pipeline ended: {ROWS_DO_NOT_TELL}"
        check = (
            f"Restore a copy of ZooKeeper that is no older than the table's log; else {BEGIN_ANEW}"
        )
        raise NeedsDecision(message, path=settings.table.path, action=check)
    ledger = snapshot.ledger
    until = {} if is_forgotten(ledger, snapshot.table) else rows_not_begun(ledger.newest, snapshot)
    if until:
        return Restorable(
            Lost.PLANS,
            tuple(describe_restored_rows(until, snapshot, 0)),
            frozenset(until),
            {log: at for log, (_, at) in until.items()},
            {log: life for log, (life, _) in until.items()},
        )
    rows = rows_until(services.spark(), settings.table.path)
    known = ledger.newest.positions if ledger.newest else {}
    there = {
        log.topic for log in (*snapshot.extents, *snapshot.extents_left_alone, *snapshot.leaderless)
    }
    # rows of a topic that is not there tell nothing of one that is made later under its name
    until = {
        log: found
        for log, found in rows.items()
        if log in known or (settings.source.topic_filter.admits(log.topic) and log.topic in there)
    }
    if not until:
        message = "The table holds no row of the conf's topics, and its log no longer says what was loaded"
        raise NeedsDecision(
            message,
            path=settings.table.path,
            action="Check table.path and source.topics, or restore a newer copy of ZooKeeper",
        )
    others = len(other_pipelines(settings.table.path, services.app_id))
    sentences = (
        *describe_restored_rows(until, snapshot, others),
        *(() if snapshot.ledger.newest or snapshot.pauses else (PAUSES_LOST,)),
    )
    return Restorable(
        Lost.PLANS,
        sentences,
        frozenset(until),
        {log: at for log, (_, at) in until.items()},
        {log: life for log, (life, _) in until.items()},
    )


def from_commits(
    services: Services, snapshot: Snapshot, settings: Settings, reason: str, run_id: str
) -> Plan:
    """Restore the ledger or its missing result from the table's commits; then store a plan with the
    reason that moves offsets back.
    """
    lost, last = what_is_lost(snapshot, settings)
    if last is None:
        raise Owned("The table's log was cleaned up meanwhile", action="Run this command again")
    if lost is Lost.LEDGER:
        repair = repair_from(last, snapshot)
    else:
        repair = Repair(last, lacks_record=snapshot.ledger.applied is None)
    if snapshot.share:
        repair = replace(repair, offsets=())  # they move with the plan
    finish_repair(
        services,
        repair,
        Report(run_id, settings.pipeline, settings.group.id, settings.table.path, now_ms()),
    )
    snapshot = repaired(snapshot, repair)
    stands = Standing(UpToDate(last, last.positions), last.positions)
    plan = plan_set(stands, (), snapshot, settings, reason=reason, now_ms=now_ms())
    plan = with_id(of_command(plan, snapshot, settings))
    reject_fenced_plan(
        services.store(plan),
        "The ledger was restored, and no offset was committed" if lost is Lost.LEDGER else "",
    )
    return plan


def _behind_rows(
    services: LiveServices, snapshot: Snapshot, foreseen: Restorable, reason: str
) -> Plan:
    settings, ledger = services.settings, snapshot.ledger
    until = {log: (foreseen.lives.get(log, 0), at) for log, at in foreseen.positions.items()}
    number = (snapshot.table.transaction_version or 0) if snapshot.table else 0
    taken, state = (
        predecessor_of(OtherPipeline(services.app_id, number), until, snapshot, settings),
        state_of_itself(snapshot, settings),
    )
    is_begun_anew = not is_forgotten(ledger, snapshot.table)
    if is_begun_anew and ledger.newest:
        state = UpToDate(ledger.newest, ledger.newest.positions)
    plan: dict[str, Any] = {
        "uid": ledger.uid or services.new_uid(),
        "now_ms": now_ms(),
        "reason": reason,
        "sets_back": True,
    }
    found = plan_inheritance(taken, state, snapshot, settings, **plan)
    if is_begun_anew:  # no plan was lost
        found = replace(found, kind=PlanKind.SET, took_over=None)
    made = with_id(of_command(found, snapshot, settings))
    if isinstance(state, (Replay, Supersede, UpToDate)):
        known: Collection[BrokerPartition] = plan_of(state).positions.keys()
    else:
        known = set()
    take_in(
        services.ledger,
        None,
        taken.positions,
        table_id=made.table_id or "",
        known=known,
        lives=taken.incarnations,
    )
    store_decided(services, made, state, ledger)
    return made


_NOT_ASKED = (
    "where logs start and end, whether they are still the logs that were read, which of them nobody has read yet, and what the next run "
    "would plan"
)


@dataclass(frozen=True, slots=True)
class Sides:
    """The three sources, partition by partition."""

    document: dict[str, Any]
    refusal: EtlError | None = None
    """The error of a run until an operator decides; or why that is unknown."""


def offsets_diff(settings: Settings, *, shows_all: bool = False) -> Sides:
    """Compare without changing anything; without brokers by ZooKeeper and the table only. Raises as
    reading these does, and SettingsError if brokers are needed for the cluster's name.
    """
    patient = settings.model_copy(
        update={"source": settings.source.model_copy(update={"wait_for_leader_s": 0})}
    )
    with open_services(patient, ALONE) as services:
        try:
            return sides_of(services.observe(), settings, shows_all=shows_all)
        except Unreachable as error:  # no broker is registered, or none answers; where it is ZooKeeper, the next look tells that
            away = error
        observer = Observer(
            patient, services.zookeeper, services.offsets, services.ledger, now_ms=now_ms
        )
        return sides_of(
            observer.observe_ledgers().snapshot, settings, shows_all=shows_all, away=away
        )


def sides_of(
    snapshot: Snapshot,
    settings: Settings,
    *,
    shows_all: bool = False,
    away: Unreachable | None = None,
) -> Sides:
    """Return the same of a snapshot; `away`: why brokers were not asked."""
    base, ledger, table = state_by_ledgers(snapshot, settings), snapshot.ledger, snapshot.table
    foreseen = foresee(snapshot, settings, now_ms=now_ms(), has_asked_brokers=away is None)
    sources, stops = (
        [as_members_see(one, foreseen) for one in differences(snapshot, base)],
        foreseen.refusal,
    )
    apart = [one for one in sources if one.difference is not Difference.NONE]
    stands, newest, held = (
        plan_stands(base, ledger, table),
        ledger.newest,
        plan_in_table(ledger, table),
    )
    document = {
        "plan": {"number": newest.number, "id": newest.id, "stands": stands.value}
        if newest
        else None,
        "table": {
            "version": table.version,
            "transaction_version": table.transaction_version,
            "plan_id": held.id if held else None,
        }
        if table
        else None,
        "partitions": len(sources),
        "differing": len(apart),
        "rows": [
            {
                **one.log.place,
                "committed": one.committed,
                "plan": one.planned,
                "table": one.in_table,
                "difference": one.difference.value,
                "means": means(one, foreseen, newest),
                "next_run": next_run(one, foreseen),
            }
            for one in (sources if shows_all else apart)
        ],
        "stops": stops.as_json() if stops else None,
        "not_looked_at": [f"{away.message}; so nobody looked at {_NOT_ASKED}"] if away else [],
    }
    if stops is None and foreseen.undecided:
        return Sides(document, away)
    return Sides(document, None if stops is None or stops.retriable else stops)


def means(sources: PartitionSources, foreseen: Foreseen, newest: Plan | None) -> str | None:
    """Describe a difference in one sentence; None without one."""
    number = newest.number if newest else 0
    state = foreseen.step.state
    meanings = {
        Difference.UNREAD: "the group has an offset here, and no plan of this pipeline knows the partition",
        Difference.NOT_MOVED: "the rows up to this position are in the table, and the offset was not moved there yet",
        Difference.MOVED: f"another client {'removed' if sources.committed is None else 'moved'} the offset: no plan left it there",
        Difference.READ_ON: "other members of the group read on from here: these records are theirs, and nothing is lost",
        Difference.NOT_APPENDED: f"plan {number} is stored and not in the table",
        Difference.LEDGER_BEHIND: "the table holds a plan that ZooKeeper does not have: its ledger was lost, restored from an old copy, or "
        "changed beside a run",
        Difference.NOT_HELD: f"the table does not hold plan {number}, and an operator accepted that",
        Difference.DISAGREE: "the table and ZooKeeper tell two stories, and nobody can tell which one is right",
    }.get(sources.difference)
    if sources.difference is Difference.MOVED and isinstance(state, Replay | Supersede):
        return f"{meanings}; and plan {number} is stored and not in the table"
    return meanings


def next_run(sources: PartitionSources, foreseen: Foreseen) -> str | None:
    """Describe what the next run does about it, as the end of a sentence; None without a
    difference.
    """
    step, log = foreseen.step, sources.log
    if sources.difference is Difference.NONE:
        return None
    if step.state is None:
        is_passing = foreseen.refusal is not None and foreseen.refusal.retriable
        return "stops before it does anything" + (
            ", and a later one goes on" if is_passing else ": a person must decide"
        )
    if sources.difference is Difference.UNREAD:
        return _begins(sources, foreseen)
    if isinstance(step.state, Replay | Supersede):
        return _finishes(sources, foreseen)
    if log in foreseen.undecided:
        return "follows the offset or stops, by where the log ends, and that was not looked at"
    last = step.state.state if isinstance(step.state, RebuildFromTable) else step.state
    if isinstance(step.state, RebuildFromTable):
        did = ["writes the ledger anew from the table"]
    else:
        did = []
    if isinstance(last, UpToDate):
        if sources.difference is Difference.READ_ON:
            did.append(
                "goes on at the offset where the partition is of its share, and names what others read"
            )
        elif log in last.followed:
            did.append("goes on at the offset, as group.on_offset_changed says")
        elif log in last.not_followed:
            did.append(
                "leaves the offset and our position as they are: no topic that is read now has this partition"
            )
        elif log in last.uncommitted:
            did.append("moves the offset to the position")
        elif sources.difference is Difference.NOT_HELD:
            did.append("goes on behind the plan, and gives up what the table lacks of it")
    return ", then ".join(did)


def _begins(sources: PartitionSources, foreseen: Foreseen) -> str:
    plan = foreseen.step.plan if foreseen.step.action is Action.STORE else None
    if plan:
        start = min(
            (r.from_offset for r in plan.ranges if r.log == sources.log),
            default=plan.positions.get(sources.log),
        )
    else:
        start = None
    if start is None:
        return "decides where the partition starts, once it can be read"
    return f"begins the partition at offset {start}"


def _finishes(sources: PartitionSources, foreseen: Foreseen) -> str:
    """Describe that for a stored plan which is not in the table."""
    step = foreseen.step
    if step.refusal:
        return "stops, for the plan cannot be finished: a person must decide"
    sentence = "executes the plan, or puts another in its place"
    if step.action:
        if step.action is Action.REPLAY:
            sentence = "executes the plan"
        else:
            sentence = f"puts another plan in its place: {step.reason}"
    if sources.difference is not Difference.MOVED:
        return sentence
    if isinstance(foreseen.refusal, OffsetMoved):
        return f"{sentence}, then stops at this offset: a person must decide"
    return f"{sentence}; it does not move this offset, and group.on_offset_changed decides about it"
