"""What does a run do, step by step: observe, reconcile, plan, fetch, append, commit?

What an earlier run left is finished first (the ledger that is behind the table, the result of a
plan, the offsets); then the run makes one plan of its own, beginning with `observe` again. A
failure between two steps loses nothing: the stored plan, the Delta commit and the offsets are what
the next run's `next_step` finds, and it continues from there.

Lives here, too: replacing a plan under execution by one without the offsets that are gone, and
recording rows that others removed with permission.

Not here: decisions (etl/decide/next_step.py), everything that can block (`Services`), closing the
number of a stored plan (etl/run/close_plan.py).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from etl.decide.byte_offsets import Named, none_named
from etl.decide.group_commits import read_twice
from etl.decide.group_ownership import owners_to_wait_for
from etl.decide.next_step import Action, NextStep, Repair, next_step
from etl.decide.partition_identity import creations_to_compare, reject_topics_recreated_since
from etl.decide.reconcile import naming_table
from etl.decide.replacement import plan_without
from etl.decide.replay import plan_that_gives_up
from etl.decide.table_changes import reject_changes_by_others, unacknowledged
from etl.decide.table_storage import describe_time_zones, in_time_zone
from etl.errors import DataLoss, ExpiredOffsets, MissingOffsets, Owned, TableAppeared
from etl.ledger.plan_document import with_id
from etl.model.partitions import RejectedCommit, parse_intervals
from etl.model.plans import CommitResult, Loss, LossReason, Plan, PlanKind
from etl.model.snapshot import (
    Acknowledgement,
    ForeignCommit,
    PipelineState,
    RebuildFromTable,
    Snapshot,
    Table,
    UpToDate,
)
from etl.report.describe import counted, doubt_of
from etl.report.lag import PAUSES_LOST, describe_paused_but_executed
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb
from etl.run.group_member import Joining, commit, joined
from etl.run.services import Services
from etl.settings.choices import OnDataLoss
from etl.settings.sections import Settings


def without_missing(world: Services, plan: Plan, missing: MissingOffsets, report: Report) -> Plan:
    """Replace this plan by one without missing offsets. Losses are stored in it before its first
    fetch, as always.
    """
    losses = [
        Loss(*stretch, LossReason.MISSING) for stretch in parse_intervals(missing.where["missing"])
    ]
    return _instead(world, plan, with_id(plan_without(plan, losses, now_ms=world.now_ms())), report)


def given_up(world: Services, plan: Plan, lost: DataLoss, report: Report) -> Plan:
    """Replace a replay whose records are gone by a plan that reads nothing, so that its rows stay."""
    return _instead(
        world, plan, with_id(plan_that_gives_up(plan, str(lost), now_ms=world.now_ms())), report
    )


def _instead(world: Services, plan: Plan, instead: Plan, report: Report) -> Plan:
    ledger = world.read_ledger()
    if ledger.newest is None or ledger.newest.id != plan.id:
        raise Owned(
            f"another driver put another plan in the place of plan {plan.number}",
            action="who else runs this conf",
        )
    world.supersede(instead, ledger)
    report.add(
        Outcome.PLAN_SUPERSEDED, f"plan {plan.number} ({plan.id}) was superseded: {instead.reason}"
    )
    report.planned(instead)
    return instead


def note_removals(
    world: Services,
    table: Table | None,
    acknowledged: Acknowledgement | None,
    report: Report,
    *,
    told: Collection[ForeignCommit] = (),
) -> None:
    """Report removed rows that policy or an operator permits, and keep them for `verify`, except
    those already `told`. It precedes the record, after which earlier commits are not read again.
    """
    new = [
        found for found in (table.foreign if table else ()) if found not in told and not found.by
    ]
    if new:
        world.note_removals(new)
    for found in unacknowledged(table, acknowledged):
        if found in new:
            report.add(
                Outcome.ROWS_REMOVED,
                f"somebody else's {found.operation} {found.why} at version {found.delta_version} of the table",
            )


def finish_repair(world: Services, repair: Repair | None, report: Report) -> None:
    """Nothing where nothing was left."""
    if repair is None:
        return
    if repair.adopts:
        with report.timed(Verb.RECONCILE):
            _rebuild_ledger(world, repair, repair.adopts, report)
    with report.timed(Verb.COMMIT):
        if repair.lacks_record:
            _record(world, repair.plan, report)
        for log, offset in sorted(repair.followed.items()):
            by = offset - repair.plan.positions[log]
            report.add(
                Outcome.OFFSET_CHANGED,
                f"{log}: somebody else moved the offset by {by:+,} to {offset}, followed",
            )
        for log, offset in sorted(repair.not_followed.items()):
            by = offset - repair.plan.positions[log]
            moved = f"{log}: somebody else moved the offset by {by:+,} to {offset}"
            report.add(
                Outcome.OFFSET_CHANGED,
                f"{moved}, not followed: no topic that is read now has this partition",
            )
        if not repair.adopts:
            _move_offsets(world, repair, report)


def _rebuild_ledger(world: Services, repair: Repair, adopted: Plan, report: Report) -> None:
    """Offsets first: once the ledger holds the plan, an offset below its position would count as
    moved by another client.
    """
    if repair.knew and repair.knew.number == adopted.number:
        sentence = f"the table holds another plan {adopted.number} ({adopted.id}) than ZooKeeper ({repair.knew.id}): it was adopted"
        report.add(Outcome.LEDGER_RESTORED, sentence)
    else:
        knew = f"knew plan {repair.knew.number} as the newest" if repair.knew else "knew no plan"
        lost = "" if repair.knew or report.paused else f"; {PAUSES_LOST}"
        rebuilt = f"the ledger was rebuilt from the table's commits up to plan {adopted.number}"
        report.add(Outcome.LEDGER_RESTORED, f"ZooKeeper {knew}: {rebuilt}{lost}")
    _move_offsets(world, repair, report)
    report.lost(adopted)
    if world.adopt(adopted).applied is None:
        _record(world, repair.plan, report)


def _record(world: Services, plan: Plan, report: Report) -> None:
    report.lost(plan)
    recounted = world.recount(plan)
    world.record(plan, recounted)
    if recounted:
        how = (
            "its rows were counted from the table's files"
            if recounted.is_recounted
            else "its commit says what reading it came to"
        )
        message = f"the record of plan {plan.number} was missing: {how}"
        report.add(Outcome.PLAN_COMPLETED, message + doubt_of(recounted))


def report_dropped_offsets(state: PipelineState, report: Report) -> None:
    """Report that Kafka expired offsets of the group; they are committed again."""
    last = state.state if isinstance(state, RebuildFromTable) else state
    if isinstance(last, UpToDate) and last.dropped:
        gone = f"Kafka dropped the group's offsets of {counted(len(last.dropped), 'partition')}, as it does where a group has no members"
        report.add(
            Outcome.PLAN_COMPLETED,
            f"{gone} (offsets.retention.minutes): the pipeline goes on at its positions, and commits them again",
        )


def _move_offsets(world: Services, repair: Repair, report: Report) -> None:
    if repair.offsets:
        moved = world.commit(repair.plan, repair.offsets)
    if repair.offsets and moved:
        report.add(
            Outcome.PLAN_COMPLETED,
            f"{len(moved)} offsets of plan {repair.plan.number} were not committed: they are now",
        )


TURNS_MAX = 3
"""A plan that was left, one of our own, and one more where another driver came in between."""
EXPIRIES_MAX = 3
"""How often one run begins anew because retention overtook it: a log that is deleted faster than it
is read cannot be caught.
"""
ARRIVALS_MAX = 1
"""How often one run begins again because a table appeared: a second time another process is
replacing it.
"""


def ingest(world: Services, settings: Settings, report: Report) -> None:
    """Run once: finish the plan of an earlier run, then load one new plan.

    The rows of each are in the table once, and its offsets committed. With a run key and caps it
    makes as many plans as the key's bound needs. Afterwards the table holds what was readable at
    the start, or `report` says what was left out and why. Raises any EtlError; what was done until
    then stays, and `report` has it.
    """
    with joined(world.member(), report, settings) as joining:
        _ingest(world, settings, report, joining)


def _ingest(world: Services, settings: Settings, report: Report, joining: Joining) -> None:
    turns = expiries = arrivals = 0
    while turns < TURNS_MAX and joining.settle(world):
        try:
            step = _one_plan(world, settings, report, joining)
            if step and step.is_last:
                return
            turns = 0 if joining.is_void or (step and step.goes_on) else turns + 1
        except TableAppeared:
            # made by another pipeline since we looked: what the plan becomes is decided by what
            # that table is
            arrivals += 1
            if arrivals > ARRIVALS_MAX:
                raise
        except ExpiredOffsets:
            # looking again is what the next run would do: it finds the plan stored, and what of it
            # is gone, and puts another in its place
            expiries += 1
            if settings.source.on_data_loss is OnDataLoss.FAIL or expiries > EXPIRIES_MAX:
                raise
    if turns == TURNS_MAX:
        message = f"another driver of this pipeline worked at the same moments, {TURNS_MAX} times"
        raise Owned(
            message,
            action="who else runs this conf; what is in the table stays, the next run goes on from there",
        )


def _one_plan(
    world: Services, settings: Settings, report: Report, joining: Joining
) -> NextStep | None:
    """Execute one step, from the snapshot to the offsets. Returns None if another driver's plan
    took the number, or the commit was rejected.
    """
    step = observe_and_decide(world, settings, report, joining=joining)
    finish_repair(world, step.repair, report)
    if joining.waits(step):
        return None
    with report.timed(Verb.PLAN):
        plan = _store(world, step, report)
    if isinstance(plan, RejectedCommit):
        joining.was_void(plan)
        return None
    if plan is None:
        if step.action is Action.NOTHING:
            _end_without_plan(world, step, report)
        return step
    joining.stored(step)
    done = execute(world, plan, step.snapshot, settings, report)
    if done and step.is_last:
        report.left_by_caps(done, step.snapshot, settings)
        report.left_of_key(step.left_of_key)
    return step if done else None


def observe_and_decide(
    world: Services,
    settings: Settings,
    report: Report,
    named: Named = none_named,
    *,
    joining: Joining | None = None,
) -> NextStep:
    """Return the snapshot and the step that follows; `named` are offsets that an operator names,
    `joining` is set for a group member.
    """
    with report.timed(Verb.OBSERVE):
        look = partial(_observe, world, settings, named)
        snapshot = joining.look(look) if joining else look()
        report.saw(snapshot)
    with report.timed(Verb.RECONCILE):
        step = next_step(snapshot, settings, now_ms=world.now_ms(), uid=world.new_uid())
        _tell(world, snapshot, step, settings, report)
    return step


def finish_left(world: Services, step: NextStep, settings: Settings, report: Report) -> Plan | None:
    """Execute the plan that an earlier run left, or the one that takes its place; None where the
    table holds another one by now.
    """
    with report.timed(Verb.PLAN):
        plan = _store(world, step, report)
    return execute(world, plan, step.snapshot, settings, report) if isinstance(plan, Plan) else None


def execute(
    world: Services, plan: Plan, snapshot: Snapshot, settings: Settings, report: Report
) -> Plan | None:
    """A stored plan from the fetch to the offsets: the plan that is in the table then, which may
    have taken this one's place.

    None: the table holds another plan of this number.
    """
    with world.claiming(plan):
        plan, applied = _load(world, plan, snapshot, settings, report)
        if applied is None:
            return None
        with report.timed(Verb.COMMIT):
            commit(world, plan, applied, report)
            world.tidy()
    return plan


def _end_without_plan(world: Services, step: NextStep, report: Report) -> None:
    """End without a plan: record the result of the run key, if it is new."""
    if step.remembers:
        world.remember(step.remembers, behind=step.newest)
    report.found_nothing_new(step.done_before, step.remembers, open_logs=step.open_logs)
    report.left_of_key(step.left_of_key)


def _observe(world: Services, settings: Settings, named: Named) -> Snapshot:
    """Return a snapshot; if policy waits for owners, the one after them."""
    snapshot = world.observe(named)
    owners = owners_to_wait_for(snapshot, settings)
    if not owners:
        return snapshot
    world.wait_for_owners(owners.keys())
    return world.observe(named)


def _tell(
    world: Services, snapshot: Snapshot, step: NextStep, settings: Settings, report: Report
) -> None:
    """Report what the run leaves out, where the pipeline stands, and what others removed."""
    report.left(step.snapshot, now_ms=world.now_ms())
    if step.state:
        note_removals(world, snapshot.table, snapshot.ledger.acknowledged, report)
        report.stands(step.state, settings)
        report.read_twice(read_twice(step.state, snapshot))
        report_dropped_offsets(step.state, report)


def _store(world: Services, step: NextStep, report: Report) -> Plan | RejectedCommit | None:
    """Store the plan and commit with it. Returns None if there is nothing new, RejectedCommit if
    others came first. Raises what the step stops with.
    """
    if step.refusal:
        raise step.refusal
    plan = step.plan
    if step.action in (Action.STORE, Action.NOTHING):
        report.beyond_bound(step.snapshot)
    if plan is None:
        return None
    if step.action is not Action.REPLAY:
        void = (
            world.store(plan)
            if step.action is Action.STORE
            else world.supersede(plan, step.snapshot.ledger)
        )
        if void:
            return void
    handed = world.hand_over(plan)
    if isinstance(handed, RejectedCommit):
        return handed
    plan = handed
    if step.action is Action.SUPERSEDE:
        report.add(
            Outcome.PLAN_SUPERSEDED,
            f"plan {plan.number} ({plan.supersedes}) was superseded: {plan.reason}",
        )
    elif step.action is Action.REPLAY and not _is_new(plan):
        whole = describe_paused_but_executed(plan, step.snapshot.pauses)
        report.add(
            Outcome.PLAN_RESUMED,
            f"plan {plan.number} was stored and not in the table: it is executed again, word for word{whole}",
        )
    report.called(plan, step.snapshot.ledger.newest)
    for sentence in describe_time_zones(plan, step.snapshot):
        report.add(Outcome.OTHER_TIME_ZONE, sentence)
    plan = in_time_zone(plan, step.snapshot)
    report.planned(plan, goes_on=step.is_cut)
    for one in step.expires_soon:
        report.add(Outcome.EXPIRES_SOON, str(one))
    return plan


def _is_new(plan: Plan) -> bool:
    """Stored by a command, and not executed before."""
    return plan.kind in (PlanKind.RESET, PlanKind.SET) or (
        plan.kind is PlanKind.BACKFILL and plan.number == 1
    )


def _load(
    world: Services, plan: Plan, snapshot: Snapshot, settings: Settings, report: Report
) -> tuple[Plan, CommitResult | None]:
    """The plan's rows into the table; where its logs lack offsets that policy lets go, those of the
    same plan without them.
    """
    while True:
        try:
            with report.timed(Verb.FETCH):
                report.plans[-1].writer = world.writer_of(plan, snapshot)
                rows = world.fetch(plan, snapshot)
            _reject_recreated_topics(world, plan, snapshot)  # tasks may have waited long for Spark
            with report.timed(Verb.APPEND):
                applied = _append(world, plan, rows, snapshot, settings, report)
                _reject_recreated_topics(world, plan, snapshot, is_in_table=applied is not None)
                return plan, applied
        except DataLoss as lost:
            if plan.kind is PlanKind.REPLAY:
                plan = given_up(world, plan, lost, report)
                continue
            if (
                not isinstance(lost, MissingOffsets)
                or settings.source.on_data_loss is OnDataLoss.FAIL
            ):
                raise
            plan = without_missing(world, plan, lost, report)


def _reject_recreated_topics(
    world: Services, plan: Plan, snapshot: Snapshot, *, is_in_table: bool = False
) -> None:
    """Reject recreated topics, as tasks do at their end if brokers report topic ids. Rows are read
    during the append, so it is checked after that, too.
    """
    known = creations_to_compare(plan, snapshot)
    if known:
        reject_topics_recreated_since(
            plan, known, world.creation_ids(known.keys()), is_in_table=is_in_table
        )


def _append(
    world: Services, plan: Plan, rows: Any, snapshot: Snapshot, settings: Settings, report: Report
) -> CommitResult | None:
    """One commit, and what became of it; None when the table holds another plan of this number."""
    applied, table = world.append(plan, rows)
    with naming_table(settings):
        reject_changes_by_others(
            table, snapshot.ledger.acknowledged, settings.table.on_rows_removed
        )
    note_removals(
        world,
        table,
        snapshot.ledger.acknowledged,
        report,
        told=snapshot.table.foreign if snapshot.table else (),
    )
    if applied is None:
        sentence = f"the table holds another plan {plan.number}, appended by another run meanwhile; this one goes on from it"
        report.add(Outcome.LOADED_BY_ANOTHER_RUN, sentence)
        return None
    report.applied(applied)
    if applied.undated:
        message = "of its records have no event_date: they have no timestamp, or one outside the years 1 to 9999"
        report.add(
            Outcome.ROWS_WITHOUT_EVENT_DATE, f"plan {plan.number}: {applied.undated:,} {message}"
        )
    return applied
