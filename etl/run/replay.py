"""How does a replay run?

Observe, decide which rows are replaced, plan, fetch, replace. What an earlier run left is finished
first; the replay is the next plan, stored before its first fetch and written by one Delta commit.
Killed before the commit, the old rows stay and the next run or replay executes the plan; killed
after it, the new rows are there. If its records are gone by then, it is given up and the rows stay.
No position moves.
"""

from __future__ import annotations

from dataclasses import replace

from etl.decide.loaded_intervals import fold, spans_of
from etl.decide.next_step import NextStep, repaired
from etl.decide.replay import ReplayRequest, intervals_of, moments_of, plan_replay, wanted_logs
from etl.decide.set_offsets import with_paused
from etl.decide.table_storage import describe_replaced_time_zones
from etl.errors import NeedsDecision, Owned, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import (
    FirstRun,
    Ledger,
    LoadedIntervals,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    UpToDate,
)
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb
from etl.run.ingest import TURNS_MAX, execute, finish_left, finish_repair, observe_and_decide
from etl.run.services import Services
from etl.settings.sections import Settings


def replay(
    world: Services,
    settings: Settings,
    report: Report,
    wanted: ReplayRequest,
    reason: str | None,
    *,
    shown: Plan | None = None,
) -> Plan:
    """Replace the requested rows once; return the plan. `shown`: what the operator confirmed.

    Raises what a run raises, SettingsError and DataLoss as `decide.replay`, and NeedsDecision if
    the replay was given up or other offsets than confirmed would be replaced.
    """
    left = None
    for _ in range(TURNS_MAX):
        step = observe_and_decide(world, settings, report, wanted.offsets_of)
        if is_left(step):
            left = finish_left(world, step, settings, report)
            continue
        finish_repair(world, step.repair, report)
        with report.timed(Verb.PLAN):
            plan = next_replay(world, step, settings, wanted, reason)
            if left and left.kind is PlanKind.REPLAY and _places(left) == _places(plan):
                return left  # an earlier command stored this very replay, and was killed
            _reject_another(shown, plan)
            plan = with_id(replace(plan, stood=world.rows_there(spans_of(plan))))
            world.store(plan)
            report.planned(plan)
            for sentence in describe_paused_but_loaded(
                {r.log for r in plan.ranges}, step.snapshot.pauses
            ):
                report.add(Outcome.PAUSED, sentence)
            for sentence in zones_of_replaced(world, plan, step.snapshot):
                report.add(Outcome.OTHER_TIME_ZONE, sentence)
        done = execute(world, plan, step.snapshot, settings, report)
        if done is None:
            continue
        if done.kind is not PlanKind.REPLAY:
            raise NeedsDecision(
                f"plan {plan.number} was not executed: {done.reason}",
                action="the interval, and what the log still has",
            )
        return done
    message = f"another driver of this pipeline worked at the same moments, {TURNS_MAX} times"
    raise Owned(message, action="who else runs this conf; what is in the table stays, say it again")


def zones_of_replaced(world: Services, plan: Plan, snapshot: Snapshot) -> tuple[str, ...]:
    """Sentences on the rows that a replay replaces and that were made under another time zone."""
    loaded = [one for one, _ in world.stored_plans() if one.id != plan.id]
    return tuple(describe_replaced_time_zones(plan, loaded, snapshot))


def is_left(step: NextStep) -> bool:
    """True if an earlier run left a stored plan that is not in the table."""
    return isinstance(step.state, (Replay, Supersede))


def next_replay(
    world: Services, step: NextStep, settings: Settings, wanted: ReplayRequest, reason: str | None
) -> Plan:
    """Return the plan of the replay after the one in the table, without id and existing rows.
    Stores nothing.
    """
    if step.state is None and step.refusal:
        raise step.refusal
    state = step.state.state if isinstance(step.state, RebuildFromTable) else step.state
    if isinstance(state, FirstRun) or not isinstance(state, UpToDate):
        raise SettingsError(
            "this pipeline has loaded nothing yet: there is nothing to replay",
            action="`etl run CONF --dry-run`",
        )
    snapshot = with_paused(repaired(step.snapshot, step.repair))
    logs = wanted_logs(wanted, state.last, snapshot)
    found = world.first_at(moments_of(wanted, logs))
    intervals = intervals_of(
        wanted, logs, found, state.last, snapshot, _loaded(world, snapshot.ledger)
    )
    return plan_replay(state, intervals, snapshot, settings, reason=reason, now_ms=world.now_ms())


def _loaded(world: Services, ledger: Ledger) -> LoadedIntervals:
    """Return what the pipeline has loaded, or will have once its stored plan is executed."""
    found, newest, applied = world.loaded(), ledger.newest, ledger.applied
    return fold(found, newest, applied) if newest and applied and applied.is_of(newest) else found


def _reject_another(shown: Plan | None, plan: Plan) -> None:
    if shown is not None and _places(shown) != _places(plan):
        message = "other offsets are to be replaced by now than those that were shown: retention or a run changed something meanwhile"
        raise NeedsDecision(
            message, action="nothing was replaced; look again, and agree to what is shown then"
        )


def _places(plan: Plan) -> tuple[object, ...]:
    return tuple(
        (span.log, span.from_offset, span.until_offset, span.log_epoch) for span in spans_of(plan)
    )
