"""The story of a run: observe, reconcile, plan, fetch, append, commit. Each verb hands its value to the right.

What an earlier run left is finished first, and then the run makes one plan of its own: the verbs are told again from `observe` on.
A failure between two verbs loses nothing: what is stored by then (the plan, the Delta commit, some offsets) is what the
next run's `reconcile` finds, and it goes on from there. Decisions are in `reconcile` and `plan`; `World` is everything
that can hang.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from etl.decisions.expiry import expiring
from etl.decisions.foreign_commits import refuse_what_others_did, unacknowledged
from etl.decisions.ownership import leave_to_owners, owners_to_wait_for, refuse_owned_ranges
from etl.decisions.plan import plan_next
from etl.decisions.reconcile import naming_table, where_we_stand
from etl.decisions.refusals import refuse_what_cannot_run
from etl.decisions.replacement import plan_instead, plan_without
from etl.decisions.replay import replay_or_supersede
from etl.errors import ExpiredOffsets, MissingOffsets, Owned, TableAppeared
from etl.model.ledger import Acknowledgement
from etl.model.logs import BrokerPartition
from etl.model.plans import Applied, Loss, Plan, PlanKind, LossReason
from etl.model.snapshot import RebuildFromTable, FirstRun, UpToDate, Replay, Snapshot, Supersede
from etl.model.table import ForeignCommit, Table
from etl.protocol.zookeeper.plan_documents import with_id
from etl.report.phases import Verb
from etl.report.run_report import Outcome, Report
from etl.report.sentences import doubt_of
from etl.run.world import World
from etl.settings.policies import OnDataLoss
from etl.settings.sections import Settings

Settled = FirstRun | Replay | Supersede | UpToDate
"""Where the pipeline stands once the ledger needs no rebuilding."""


TURNS_MAX = 3
"""A plan that was left, one of our own, and one more where another driver came in between."""
EXPIRIES_MAX = 3
"""How often one run begins anew because retention overtook it: a log that is deleted faster than it is read cannot be caught."""


ARRIVALS_MAX = 1
"""How often one run begins anew because there is a table where there was none: a second one is somebody's exchange."""


def ingest(world: World, settings: Settings, report: Report) -> None:
    """One run: the plan that an earlier one left, if there is one, and one new plan; the rows of each in the table once, its offsets moved.

    Afterwards the table holds what could be read when the run began, or `report` says what left which of it. Raises any EtlError. What
    was done until then stands, and `report` tells it.
    """
    turns = expiries = arrivals = 0
    while turns < TURNS_MAX:
        try:
            if _one_plan(world, settings, report):
                return
            turns += 1
        except TableAppeared:
            # made by another pipeline since we looked: what the plan becomes is decided by what that table is
            arrivals += 1
            if arrivals > ARRIVALS_MAX:
                raise
        except ExpiredOffsets:
            # looking again is what the next run would do: it finds the plan stored, and what of it is gone, and puts another in its place
            expiries += 1
            if settings.source.on_data_loss is OnDataLoss.FAIL or expiries > EXPIRIES_MAX:
                raise
    what = f"another driver of this pipeline worked at the same moments, {TURNS_MAX} times"
    raise Owned(what, check="who else runs this conf; what is in the table stays, the next run goes on from there")


def _one_plan(world: World, settings: Settings, report: Report) -> bool:
    """One plan, from the look to the offsets. True when the run is done: it made that plan itself, or there is nothing new."""
    with report.timed(Verb.OBSERVE):
        snapshot = _observe(world, settings)
        report.saw(snapshot)
    with report.timed(Verb.RECONCILE):
        refuse_what_cannot_run(snapshot)
        snapshot = leave_to_owners(snapshot, settings)
        report.left(snapshot)
        snapshot, state = _where_we_stand(world, snapshot, settings, report)
        report.stands(state, settings)
    if isinstance(state, UpToDate):
        with report.timed(Verb.COMMIT):
            snapshot = repair(world, snapshot, state, report)
    with report.timed(Verb.PLAN):
        plan = _plan(world, snapshot, state, settings, report)
    if plan is None:
        report.found_nothing_new()
        return True
    report.planned(plan)
    for one in expiring(plan.ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=world.now_ms()):
        report.add(Outcome.EXPIRES_SOON, str(one))
    with world.claiming(plan):
        plan, applied = _load(world, plan, snapshot, settings, report)
        if applied is None:
            return False
        with report.timed(Verb.COMMIT):
            world.record(plan, applied)
            world.commit(plan)
            report.committed(plan)
            world.tidy()
    if isinstance(state, (Replay, Supersede)):
        return False
    report.left_by_caps(plan, snapshot, settings.limits)
    return True


def _observe(world: World, settings: Settings) -> Snapshot:
    """The world as it is; where policy says to wait for those who own what we would read, as it is after them."""
    snapshot = world.observe()
    owners = owners_to_wait_for(snapshot, settings)
    if not owners:
        return snapshot
    world.wait_for_owners(owners.keys())
    return world.observe()


def _where_we_stand(world: World, snapshot: Snapshot, settings: Settings, report: Report) -> tuple[Snapshot, Settled]:
    """What both ledgers say together; where the table knows more, ZooKeeper has learnt it afterwards."""
    state = where_we_stand(snapshot, settings)
    _note_removals(world, snapshot.table, snapshot.ledger.acknowledged, report)
    if not isinstance(state, RebuildFromTable):
        return snapshot, state
    newest, adopted = snapshot.ledger.newest, state.plan
    if newest and newest.number == adopted.number:
        sentence = f"the table holds another plan {adopted.number} ({adopted.id}) than ZooKeeper ({newest.id}): it was adopted"
        report.add(Outcome.ADOPTED, sentence)
    else:
        knew = f"knew plan {newest.number} as the newest" if newest else "knew no plan"
        report.add(Outcome.REBUILT, f"ZooKeeper {knew}: the ledger was rebuilt from the table's commits up to plan {adopted.number}")
    settled = replace(state.state, uncommitted=())
    # offsets first: once the ledger holds the plan, an offset below its position would count as moved by another client
    snapshot = _commit_left(world, snapshot, state.state, report)
    report.lost(adopted)
    return replace(snapshot, ledger=world.adopt(adopted)), settled


def repair(world: World, snapshot: Snapshot, state: UpToDate, report: Report) -> Snapshot:
    """Finish what the last run left: its record, and the offsets it did not move."""
    last = state.last
    if snapshot.ledger.applied is None:
        report.lost(last)
        recounted = world.recount(last)
        world.record(last, recounted)
        if recounted:
            what = f"the record of plan {last.number} was missing: its rows were counted from the table's files"
            report.add(Outcome.REPAIRED, what + doubt_of(recounted))
    for log, offset in sorted(state.followed.items()):
        by = offset - last.positions[log]
        report.add(Outcome.FOLLOWED, f"{log.topic} {log.partition}: somebody else moved the offset by {by:+,} to {offset}, followed")
    return _commit_left(world, snapshot, state, report)


def _commit_left(world: World, snapshot: Snapshot, state: UpToDate, report: Report) -> Snapshot:
    if not state.uncommitted:
        return snapshot
    moved = world.commit(state.last, state.uncommitted)
    report.add(Outcome.REPAIRED, f"{len(moved)} offsets of plan {state.last.number} were not committed: they are now")
    return replace(snapshot, committed={**snapshot.committed, **moved})


def _plan(world: World, snapshot: Snapshot, state: Settled, settings: Settings, report: Report) -> Plan | None:
    """The plan to execute: the stored one, another one in its place, or the next; stored when this returns. None: nothing new."""
    if isinstance(state, (Replay, Supersede)):
        refuse_owned_ranges(state.plan, snapshot)
    if isinstance(state, Replay):
        state = replay_or_supersede(state, snapshot, settings)
    if isinstance(state, Replay):
        if state.plan.kind is not PlanKind.RESET:  # that one nobody has executed before: an operator's command stored it
            sentence = f"plan {state.plan.number} was stored and not in the table: it is executed again, word for word"
            report.add(Outcome.REPLAYED, sentence)
        return state.plan
    if isinstance(state, Supersede):
        plan = with_id(plan_instead(state, snapshot, settings, now_ms=world.now_ms()))
        world.supersede(plan, snapshot.ledger)
        report.add(Outcome.SUPERSEDED, f"plan {plan.number} ({plan.supersedes}) was superseded: {plan.reason}")
        return plan
    new = plan_next(snapshot, state, settings, uid=snapshot.ledger.uid or world.new_uid(), now_ms=world.now_ms())
    if new is None:
        return None
    plan = with_id(new)
    world.store(plan)
    return plan


def _load(world: World, plan: Plan, snapshot: Snapshot, settings: Settings, report: Report) -> tuple[Plan, Applied | None]:
    """The plan's rows into the table; where its logs lack offsets that policy lets go, those of the same plan without them."""
    while True:
        try:
            with report.timed(Verb.FETCH):
                rows = world.fetch(plan, snapshot)
            with report.timed(Verb.APPEND):
                return plan, _append(world, plan, rows, snapshot, settings, report)
        except MissingOffsets as missing:
            if settings.source.on_data_loss is OnDataLoss.FAIL:
                raise
            plan = _without(world, plan, missing, report)


def _without(world: World, plan: Plan, missing: MissingOffsets, report: Report) -> Plan:
    """Another plan in the place of this one. What is lost is kept in it before its first fetch, as all losses are."""
    ledger = world.read_ledger()
    if ledger.newest is None or ledger.newest.id != plan.id:
        raise Owned(f"another driver put another plan in the place of plan {plan.number}", check="who else runs this conf")
    losses = [
        Loss(BrokerPartition(topic, partition), start, until, LossReason.MISSING) for topic, partition, start, until in missing.stretches]
    instead = with_id(plan_without(plan, losses, now_ms=world.now_ms()))
    world.supersede(instead, ledger)
    report.add(Outcome.SUPERSEDED, f"plan {plan.number} ({plan.id}) was superseded: {instead.reason}")
    report.planned(instead)
    return instead


def _append(world: World, plan: Plan, rows: Any, snapshot: Snapshot, settings: Settings, report: Report) -> Applied | None:
    """One commit, and what became of it; None when the table holds another plan of this number."""
    applied, table = world.append(plan, rows)
    with naming_table(settings):
        refuse_what_others_did(table, snapshot.ledger.acknowledged, settings.table.on_rows_removed)
    _note_removals(world, table, snapshot.ledger.acknowledged, report, told=snapshot.table.foreign if snapshot.table else ())
    if applied is None:
        sentence = f"the table holds another plan {plan.number}, appended by another run meanwhile; this one goes on from it"
        report.add(Outcome.APPLIED_BY_ANOTHER, sentence)
        return None
    report.applied(applied)
    if applied.undated:
        what = "of its records have no event_date: they have no timestamp, or one outside the years 1 to 9999"
        report.add(Outcome.UNDATED, f"plan {plan.number}: {applied.undated:,} {what}")
    return applied


def _note_removals(
    world: World, table: Table | None, acknowledged: Acknowledgement | None, report: Report, *, told: Collection[ForeignCommit] = (),
) -> None:
    """What others removed and policy or an operator let pass is told, and kept for `verify`: but for what was `told` before.

    Before the record: from then on nobody looks at the commits before ours again.
    """
    new = [found for found in (table.foreign if table else ()) if found not in told and not found.by]
    if new:
        world.note_removals(new)
    for found in unacknowledged(table, acknowledged):
        if found in new:
            report.add(Outcome.ROWS_REMOVED, f"somebody else's {found.operation} {found.why} at version {found.delta_version} of the table")
