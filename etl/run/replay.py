"""How does a replay run?

Observe, decide which rows are replaced, plan, fetch, replace. The stored plan of an earlier run is
finished first. The replay is the next plan, stored before its first fetch and written by one Delta
commit. After a kill before the commit the old rows stay, and the next run or replay executes the
plan; after a later kill the new rows are there. If Kafka lost the records meanwhile, the replay
is given up and the rows stay. No committed offset moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from etl.decide.loaded_intervals import fold, spans_of
from etl.decide.next_step import NextStep, repaired
from etl.decide.plan_replacement import in_place_of
from etl.decide.replay import (
    ReplayRequest,
    is_executed,
    plan_replay,
    requested_intervals,
    requested_partitions,
    times_to_look_up,
)
from etl.decide.time_zones import describe_replaced_time_zones
from etl.errors import NeedsDecision, Owned, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.plans import Plan, PlanKind, ReplayPayload
from etl.model.snapshot import (
    Ledger,
    LoadedIntervals,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
    UpToDate,
)
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_progress import Outcome, Verb
from etl.report.run_report import Report
from etl.run.ingest import (
    STEPS_MAX,
    execute,
    finish_left,
    finish_repair,
    observe_and_decide,
    store_or_replace,
)
from etl.run.service_interfaces import Services
from etl.settings.sections import Settings


@dataclass(slots=True)
class StoredReplay:
    """The plan that a command stored, kept while it starts again with a new ZooKeeper session."""

    plan: Plan | None = None


def replay(
    services: Services,
    settings: Settings,
    report: Report,
    wanted: ReplayRequest,
    reason: str | None,
    *,
    shown: Plan | None = None,
    own: StoredReplay | None = None,
) -> Plan:
    """Replace the requested rows once; return the plan. `shown`: the plan that the operator
    confirmed; `own`: the plan that the same command stored in an earlier session.

    Raises what a run raises, SettingsError and DataLoss as `decide.replay`, and NeedsDecision if
    the replay was given up or superseded, or other offsets than confirmed would be replaced.
    """
    own = own or StoredReplay()
    left = None
    for _ in range(STEPS_MAX):
        step = observe_and_decide(services, settings, report, wanted.offsets_of)
        if is_left(step):
            left = finish_left(services, step, settings, report)
            continue
        finish_repair(services, step.repair, report)
        if own.plan and _is_executed(services, step, own.plan):
            return own.plan
        with report.timed(Verb.PLAN):
            plan = next_replay(services, step, settings, wanted, reason)
            if left and left.kind is PlanKind.REPLAY and _places(left) == _places(plan):
                return left  # an earlier command stored this very replay, and was killed
            _reject_another(shown, plan)
            plan = with_id(with_replaced_rows(services, step, plan))
            own.plan = plan  # before the store: a lost session may hide that it succeeded
            store_or_replace(services, plan, repaired(step.snapshot, step.repair).ledger)
            report.planned(plan)
            partitions = {r.partition for r in plan.ranges}
            for sentence in describe_paused_but_loaded(partitions, step.snapshot.ledger.pauses):
                report.add(Outcome.PAUSED, sentence)
            for sentence in zones_of_replaced(services, plan, step.snapshot):
                report.add(Outcome.OTHER_TIME_ZONE, sentence)
        done = execute(services, plan, step.snapshot, settings, report)
        if done is None:
            continue
        if done.kind is not PlanKind.REPLAY:
            raise NeedsDecision(
                f"Plan {plan.number} was not executed: {done.origin.reason}",
                action="Check the interval, and which offsets the partition still has",
            )
        return done
    raise Owned(
        f"Another driver runs this pipeline: {STEPS_MAX} steps did not finish this replay",
        action="Check who else runs this conf, then run the replay again. Committed rows stay",
    )


def _is_executed(services: Services, step: NextStep, replay: Plan) -> bool:
    """See `is_executed`. Raises the error of a step without a state, too."""
    repaired_state(step)
    return is_executed(replay, [plan for plan, _ in services.loaded.stored_plans()])


def zones_of_replaced(services: Services, plan: Plan, snapshot: Snapshot) -> tuple[str, ...]:
    """Describe rows that a replay replaces and that were written under another time zone."""
    stored = services.loaded.stored_plans()
    loaded = [one for one, _ in stored if one.id != plan.id]
    return tuple(describe_replaced_time_zones(plan, loaded, snapshot))


def is_left(step: NextStep) -> bool:
    """True if an earlier run left a stored plan that is not in the table."""
    return isinstance(step.state, (Resume, Supersede))


def next_replay(
    services: Services,
    step: NextStep,
    settings: Settings,
    wanted: ReplayRequest,
    reason: str | None,
) -> Plan:
    """Return the plan of the replay after the one in the table, without id and existing rows.
    Stores nothing.
    """
    state, _ = repaired_state(step)
    snapshot = repaired(step.snapshot, step.repair).with_paused()
    partitions = requested_partitions(wanted, state.last, snapshot)
    found = services.first_at(times_to_look_up(wanted, partitions))
    intervals = requested_intervals(
        wanted, partitions, found, state.last, snapshot, loaded_now(services, snapshot.ledger)
    )
    return plan_replay(
        state, intervals, snapshot, settings, reason=reason, now_ms=services.now_ms()
    )


def with_replaced_rows(services: Services, step: NextStep, plan: Plan) -> Plan:
    """Return the plan of a replay with the rows that it replaces, under the number of a stored plan
    of a backfill if there is one.
    """
    plan = replace(plan, payload=ReplayPayload(services.loaded.rows_in(spans_of(plan))))
    _, stored = repaired_state(step)
    if stored:
        plan = in_place_of(plan, stored)
    return plan


def repaired_state(step: NextStep) -> tuple[UpToDate, Plan | None]:
    """Return the state from which a replay or a backfill plans, once the step's repair is done; and
    the stored plan of a backfill whose number the plan takes, if there is one.

    Raises the error of a step without a state, and SettingsError for a pipeline that has loaded
    nothing.
    """
    if step.state is None and step.refusal:
        raise step.refusal
    if isinstance(step.state, StoredBackfill):
        return step.state.state, step.state.plan
    state = step.state
    if isinstance(state, RebuildFromTable):
        state = state.state
    if isinstance(state, UpToDate):
        return state, None
    raise SettingsError(
        "This pipeline has loaded nothing yet, so nothing can be replayed or backfilled",
        action="Check with `etl run CONF --dry-run` what a run would load, and run `etl run CONF`",
    )


def loaded_now(services: Services, ledger: Ledger) -> LoadedIntervals:
    """Return what the pipeline has loaded, or will have once its stored plan is executed."""
    loaded = services.loaded.intervals()
    newest, result = ledger.newest, ledger.applied
    if newest and result and result.is_of(newest):
        return fold(loaded, newest, result)
    return loaded


def _reject_another(shown: Plan | None, plan: Plan) -> None:
    if shown is not None and _places(shown) != _places(plan):
        raise NeedsDecision(
            "The offsets to replace changed after the confirmation, by retention or by a run",
            action="Nothing was replaced. Run the replay again and confirm the new offsets",
        )


def _places(plan: Plan) -> tuple[object, ...]:
    places = []
    for span in spans_of(plan):
        places.append((span.partition, span.from_offset, span.until_offset, span.incarnation))
    return tuple(places)
