"""How does a pipeline inherit from its predecessor?

`etl pipelines inherit`. While nobody drives the predecessor: close the number of its stored plan
(etl/run/close_plan.py), read its positions from the table, merge its loaded intervals, retire it,
and store the plan that begins at its positions. Each step can be repeated; the next run executes
the plan.

Not here: what the plan holds (etl/decide/inherit_pipeline.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from etl.commands.backfill import reject_table_without_backfills, reject_unfinished
from etl.commands.operator_decisions import DecisionResult, as_member, store_decided
from etl.commands.run import new_run_id
from etl.decide.group_commits import as_left_to_others
from etl.decide.group_ownership import (
    ownership_after_inheritance,
    reject_active_members,
    reject_partitions_of_other_members,
    reject_rewinding_other_members,
    reject_unfinished_predecessor,
)
from etl.decide.inherit_pipeline import (
    Loaded,
    Predecessor,
    plan_inheritance,
    predecessor_of,
    reject_unloaded_gap,
    state_of_itself,
)
from etl.decide.loaded_intervals import with_backfills
from etl.decide.next_step import repair_of, repaired
from etl.decide.reconcile import is_of_another_era, naming_table, reconciled
from etl.decide.set_offsets import merged
from etl.decide.table_changes import BEGIN_ANEW, ROWS_DO_NOT_TELL, name_of, plan_of
from etl.errors import NeedsDecision, SettingsError
from etl.io.delta.table_state import loaded_by, other_pipelines
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_records import (
    ClaimsBeside,
    read_all_loaded_intervals,
    read_pauses,
    read_pauses_at,
    take_in,
    write_pauses,
)
from etl.ledger.plan_document import with_id
from etl.model.partitions import BrokerPartition, Committed
from etl.model.plans import Plan
from etl.model.snapshot import (
    FirstRun,
    LoadedIntervals,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    ReservationState,
    Retirement,
    Snapshot,
    Table,
    UpToDate,
)
from etl.report.plan_json import describe_plan
from etl.report.run_report import Report
from etl.run.close_plan import close_next_number, close_stored_plan
from etl.run.ingest import finish_repair
from etl.run.live import LiveServices
from etl.run.services import ALONE, RunContext, now_ms
from etl.run.shell import open_services
from etl.settings.sections import Settings


def pipelines_of(services: LiveServices, table: Table | None) -> list[OtherPipeline]:
    """All that have loaded into the table, this one among them."""
    if table is None:
        return []
    if table.transaction_version:
        us = [OtherPipeline(services.app_id, table.transaction_version)]
    else:
        us = []
    return [*other_pipelines(services.settings.table.path, services.app_id), *us]


def find_pipeline(place: str, there: Sequence[OtherPipeline]) -> OtherPipeline:
    """The pipeline that is called so, `GROUP/PIPELINE` or `CLUSTER/GROUP/PIPELINE`. Raises
    SettingsError where that is not one.
    """
    found = [one for one in there if f"/{one.app_id}".endswith(f"/{place.strip('/')}")]
    if len(found) != 1:
        names = (
            ", ".join(sorted("/".join(one.app_id.split("/")[1:]) for one in found or there))
            or "none"
        )
        message = f"{'several pipelines of this name have' if found else 'no pipeline of this name has'} loaded into the table"
        raise SettingsError(
            message, key="--predecessor", action=f"Write CLUSTER/GROUP/PIPELINE, one of: {names}"
        )
    return found[0]


def is_us(app_id: str, settings: Settings) -> bool:
    """True if it is this pipeline, also under an earlier name of the cluster."""
    return app_id.split("/")[-2:] == [settings.group.id, settings.pipeline]


def take_over(
    settings: Settings, place: str, reason: str, run_context: RunContext = ALONE
) -> DecisionResult:
    """Inherit from another pipeline of this table, `GROUP/PIPELINE` or `CLUSTER/GROUP/PIPELINE`:
    continue where it ended.

    The plan is stored and the next run commits it; the other pipeline is retired if its ledger is
    in our ZooKeeper and this conf names all its topics. A pipeline that inherits from itself
    continues behind the table's rows, if no log says what it loaded, or another ledger of its name
    wrote them. If a pipeline was to inherit from us and has stored no plan, this one is in service
    again. Raises SettingsError for a pipeline that the table does not know, NeedsDecision for one
    of another cluster.
    """
    run_id = new_run_id()
    with (
        open_services(settings, run_context, name=run_id) as services,
        services.driving(run_id),
        as_member(services, settings) as share,
    ):
        snapshot = replace(services.observe(), share=share)
        reject_active_members(snapshot, settings)
        resumed = _resumed(services, place, snapshot, run_id)
        if resumed:
            return resumed
        other = find_pipeline(place, pipelines_of(services, snapshot.table))
        with naming_table(settings), _resting(services, other.app_id, run_id) as theirs:
            if theirs:
                reject_unfinished(theirs)
                if snapshot.table:
                    reject_table_without_backfills(
                        theirs, other.app_id, snapshot.table, settings.table.path
                    )
            if theirs:
                reject_unfinished_predecessor(
                    other,
                    theirs.read_ledger().newest,
                    _committed_in_our_group(other, snapshot, settings),
                )
            if not is_us(other.app_id, settings):
                _close(services, theirs, other, run_id)
            other = find_pipeline(
                other.app_id, pipelines_of(services, snapshot.table)
            )  # as it is now that it rests
            left = _left_to(other, settings)
            is_itself = is_us(other.app_id, settings)
            if is_itself:
                state = state_of_itself(snapshot, settings)
            else:
                state = _state_without(other.app_id, snapshot, settings)
            # our own number may have been closed by the pipeline that took our place, where our
            # ledger was not in its ZooKeeper
            if isinstance(state, (UpToDate, RebuildFromTable)):
                repair = repair_of(state, snapshot)
            else:
                repair = None
            finish_repair(
                services,
                repair,
                Report(run_id, settings.pipeline, settings.group.id, settings.table.path, now_ms()),
            )
            snapshot = repaired(snapshot, repair)
            state = state.state if isinstance(state, RebuildFromTable) else state
            is_apart = is_of_another_era(snapshot.ledger, snapshot.table)
            seen = _as_left_to_others(theirs, other, snapshot, settings)
            taken = predecessor_of(
                other, {} if other.plan else _rows_until(services), seen, settings
            )
            coverage = _loaded_by_all(theirs, other, snapshot.table) if theirs else None
            if state and not is_itself and not isinstance(state, FirstRun):
                _reject_unloaded_gap(services, taken, state, snapshot, coverage)
            plan = plan_inheritance(
                taken,
                state,
                seen,
                settings,
                uid=snapshot.ledger.uid or services.new_uid(),
                now_ms=now_ms(),
                reason=reason,
            )
            reject_partitions_of_other_members(plan.positions, snapshot, settings)
            plan = with_id(ownership_after_inheritance(plan, snapshot, settings))
            _take_in_pauses(services.ledger, theirs, {log.topic for log in taken.positions})
            _retire_predecessor(services, None if left else theirs, snapshot, reason)
            if state is None or isinstance(state, FirstRun):
                known: Collection[BrokerPartition] = set()
            else:
                known = plan_of(state).positions.keys()
            take_in(
                services.ledger,
                coverage,
                taken.positions,
                table_id=plan.table_id or "",
                known=known,
                lives=taken.incarnations,
            )
            if left or not theirs:
                done = ""
            else:
                done = f"{name_of(other.app_id)} is retired by now, and no offset was moved"
            store_decided(services, plan, state, snapshot.ledger, done=done)
    given_up = {
        log: offset
        for log, offset in plan.positions.items()
        if is_apart and offset > taken.positions.get(log, 0)
    }
    return _ruling(
        plan, other, len(taken.positions), left, given_up, is_retired=bool(theirs) and not left
    )


def _committed_in_our_group(
    other: OtherPipeline, snapshot: Snapshot, settings: Settings
) -> Mapping[BrokerPartition, Committed]:
    return snapshot.committed if other.app_id.split("/")[-2] == settings.group.id else {}


def _close(
    services: LiveServices, theirs: PlanLedger | None, other: OtherPipeline, run_id: str
) -> None:
    """Close the number of a plan that the other pipeline has stored, or may have: its driver may
    sleep.
    """
    reason = f"taken over by {services.settings.group.id}/{services.settings.pipeline}"
    if theirs is None:
        close_next_number(services, other, reason)
        return
    with _services_of(theirs, services, run_id) as their_services:
        close_stored_plan(their_services, reason)


@contextmanager
def _services_of(theirs: PlanLedger, services: LiveServices, run_id: str) -> Iterator[LiveServices]:
    settings = services.settings.model_copy(
        update={
            "group": services.settings.group.model_copy(update={"id": theirs.paths.group}),
            "pipeline": theirs.pipeline,
        }
    )
    their_services = LiveServices(settings, services.zookeeper, ALONE, run_id)
    try:
        yield their_services
    finally:
        their_services.close()


def _as_left_to_others(
    theirs: PlanLedger | None, other: OtherPipeline, snapshot: Snapshot, settings: Settings
) -> Snapshot:
    """Among members of one group the offsets beyond the other's positions are what further members
    read. Raises NeedsDecision.
    """
    if theirs is None or other.app_id.split("/")[-2] != settings.group.id:
        return snapshot
    reject_rewinding_other_members(other.plan, snapshot.committed, settings)
    return as_left_to_others(snapshot, other.plan, settings)


def _resumed(
    services: LiveServices, place: str, snapshot: Snapshot, run_id: str
) -> DecisionResult | None:
    """Resume a pipeline that another one was to inherit from: `place` has stored and committed no
    plan.

    If it has stored one, its driver may sleep before the commit: the plan is committed here, None
    is returned, and `place` is inherited from like any other pipeline.
    """
    group, _, pipeline = f"{services.settings.group.id}/{place.strip('/')}".rpartition("/")
    ledger = PlanLedger(services.zookeeper, group.rpartition("/")[2], pipeline)
    us, name = snapshot.ledger.retired, f"{group.rpartition('/')[2]}/{pipeline}"
    if is_us(name, services.settings) or (us.taken_over_by if us else None) != name:
        return None
    with DriverLock(services.zookeeper, *name.split("/")).driving(
        run_id, wait_s=services.settings.ledger.lock_timeout_s
    ):
        there = next(
            (
                one
                for one in pipelines_of(services, snapshot.table)
                if one.app_id.endswith(f"/{name}")
            ),
            None,
        )
        if there and (
            there.plan is None
            or services.app_id in there.plan.taken
            or (there.topics or set()) & services.ledger.topics()
        ):
            return None
        stored = ledger.read_ledger().newest
        if (
            stored
            and stored.number > (there.number if there else 0)
            and services.app_id in stored.taken
        ):
            with _services_of(ledger, services, run_id) as their_services:
                close_stored_plan(
                    their_services,
                    f"taken over by {services.settings.group.id}/{services.settings.pipeline}",
                )
            return None
        services.ledger.resume(beside=services.ledger.pipelines_version() or 0)
    sentence = f"{name} never went on in the place of this pipeline, and will not: this one is in service again, at its own positions"
    return DecisionResult(
        sentence, {"message": sentence, "plan": None, "took_over": None, "retired": False}
    )


def _reject_unloaded_gap(
    services: LiveServices,
    taken: Predecessor,
    state: PipelineState,
    snapshot: Snapshot,
    theirs: LoadedIntervals | None,
) -> None:
    """Check only partitions known to both. If the other's plans are lost, its rows tell where it
    ended and nothing else.
    """
    mine = plan_of(state).positions if not isinstance(state, FirstRun) else {}
    if taken.other.plan is None or not any(
        mine.get(log, offset) != offset for log, offset in taken.positions.items()
    ):
        return
    path = services.settings.table.path
    ours = _loaded(read_all_loaded_intervals(services.ledger), loaded_by(path, services.app_id))
    reject_unloaded_gap(
        taken,
        state,
        snapshot,
        ours,
        _loaded(theirs or LoadedIntervals(), loaded_by(path, taken.other.app_id)),
    )


def _loaded_by_all(
    theirs: PlanLedger, other: OtherPipeline, table: Table | None
) -> LoadedIntervals:
    """Return what the pipeline and its backfills loaded into this table; of an older copy, what it
    holds. Of an abandoned backfill what it still reserves: others may have loaded what it gave
    back.
    """
    claims = ClaimsBeside(theirs.zookeeper, theirs.paths.group, theirs.pipeline)
    of_backfills = [
        read_all_loaded_intervals(
            claims.ledger_of(claim.name),
            claim=claim if claim.state is ReservationState.GIVEN_UP else None,
        )
        for claim in claims.read()
    ]
    return with_backfills(
        read_all_loaded_intervals(theirs, other.number), of_backfills, table.id if table else ""
    )


def _loaded(coverage: LoadedIntervals, in_log: Loaded) -> Loaded:
    found = {log: list(known) for log, known in in_log.items()}
    for intervals in (coverage.intervals, coverage.given_up):
        for log, some in intervals.items():
            found.setdefault(log, []).extend(
                (one.incarnation, one.from_offset, one.until_offset) for one in some
            )
    return found


def _ruling(
    plan: Plan,
    other: OtherPipeline,
    partitions: int,
    left: Sequence[str],
    given_up: Mapping[BrokerPartition, int],
    *,
    is_retired: bool,
) -> DecisionResult:
    sentence = (
        f"plan {plan.number} takes the place of {name_of(other.app_id)}, after its plan {other.number}, in {partitions:,} partitions; "
        f"the next run begins with it: {plan.reason}"
    )
    if left:
        sentence += f"\nit stays in service for {', '.join(left)}, and its conf must not name the other topics any more"
    if given_up:
        log, more = (
            min(given_up),
            f" (and {len(given_up) - 1:,} more)" if given_up.keys() - {min(given_up)} else "",
        )
        sentence += (
            f"\nwhat this ledger's plans loaded elsewhere is not loaded into this table: {log} goes on from offset "
            f"{given_up[log]}{more}"
        )
    return DecisionResult(
        sentence,
        {
            "message": sentence,
            "plan": describe_plan(plan, None),
            "took_over": other.app_id,
            "retired": is_retired,
        },
    )


def _rows_until(services: LiveServices) -> Mapping[BrokerPartition, tuple[int, int]]:
    """Return the ends of the table's rows. Raises NeedsDecision if they do not tell."""
    from etl.io.delta.scan import rows_until

    if services.settings.source.is_physical:
        message = f"Nobody knows where that pipeline ended: {ROWS_DO_NOT_TELL}"
        action = f"Check that ZooKeeper was not emptied: restore a copy of it that is no older than the table's log; else {BEGIN_ANEW}"
        raise NeedsDecision(message, path=services.settings.table.path, action=action)
    return rows_until(services.spark(), services.settings.table.path)


def _left_to(other: OtherPipeline, settings: Settings) -> list[str]:
    """The topics that stay with the other pipeline, which then stays in service. Raises
    SettingsError where it is of our group.
    """
    left = sorted(
        topic for topic in other.topics or () if not settings.source.topic_filter.admits(topic)
    )
    if (
        left
        and other.app_id.split("/")[-2] == settings.group.id
        and not is_us(other.app_id, settings)
    ):
        message = f"{name_of(other.app_id)} loads topics, too, that this conf does not name: {', '.join(left)}"
        raise SettingsError(
            message,
            key="source.topics",
            action="Name them all: two pipelines of one group cannot share what one of them had",
        )
    return left


def _take_in_pauses(ours: PlanLedger, theirs: PlanLedger | None, topics: Collection[str]) -> None:
    """Keep the predecessor's pauses."""
    if theirs:
        before, version = read_pauses_at(ours)
        after = merged(before, read_pauses(theirs), topics)
        if after != before:
            write_pauses(ours, after, version)


def _retire_predecessor(
    services: LiveServices, theirs: PlanLedger | None, snapshot: Snapshot, reason: str
) -> None:
    """Their pipeline loads no more, and ours does, were it ever retired."""
    us = f"{services.settings.group.id}/{services.settings.pipeline}"
    if theirs and not theirs.read_retirement():
        theirs.retire(Retirement(f"taken over by {us}: {reason}", now_ms(), us))
    if snapshot.ledger.retired:
        services.ledger.resume(beside=services.ledger.pipelines_version() or 0)
        services.observe()  # the group's pipelines are others now


@contextmanager
def _resting(services: LiveServices, app_id: str, run_id: str) -> Iterator[PlanLedger | None]:
    """Context manager: another pipeline's ledger, with its driver lock; None if our ZooKeeper has
    none. Raises Owned.
    """
    group, pipeline = app_id.split("/")[-2:]
    ledger = PlanLedger(services.zookeeper, group, pipeline)
    if is_us(app_id, services.settings) or ledger.read_ledger().uid is None:
        yield None
        return
    with DriverLock(services.zookeeper, group, pipeline).driving(
        run_id, wait_s=services.settings.ledger.lock_timeout_s
    ):
        yield ledger


def _state_without(app_id: str, snapshot: Snapshot, settings: Settings) -> PipelineState:
    """The state of this pipeline, leaving out what that other pipeline did to the table."""
    table = snapshot.table
    if table:
        foreign = tuple(
            found for found in table.foreign if not (found.by and found.by.app_id == app_id)
        )
    else:
        foreign = ()
    return reconciled(
        replace(snapshot, table=replace(table, foreign=foreign) if table else None), settings
    )
