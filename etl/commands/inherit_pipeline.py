"""How does a pipeline inherit from another pipeline of its table?

`etl pipelines inherit`, under the driver locks of both pipelines:
1. close the number of the predecessor's stored plan (etl/run/void_plan_number.py)
2. read its loaded-until offsets from the table
3. store the predecessor's pauses, and retire it
4. merge its loaded intervals into this ledger
5. store the plan that begins at its loaded-until offsets; the next run executes it

Each step can be repeated.

Lives here: these steps.
Not here: the content of the plan, and what is rejected (etl/decide/inherit_pipeline.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from etl.commands.operator_decisions import (
    DecisionResult,
)
from etl.commands.operator_session import OperatorSession, operator_session
from etl.decide.inherit_pipeline import (
    Loaded,
    PredecessorState,
    plan_inheritance,
    predecessor_of,
    reject_unloaded_gap,
    retirement_of_predecessor,
    state_of_itself,
    taken_over_by,
)
from etl.decide.member_offsets import as_left_to_others
from etl.decide.next_step import repair_of
from etl.decide.partition_owners import (
    ownership_after_inheritance,
    reject_active_members,
    reject_partitions_of_other_members,
    reject_rewinding_other_members,
    reject_unfinished_predecessor,
)
from etl.decide.reconcile import is_of_another_era, naming_table, reconciled
from etl.decide.set_offsets import merged
from etl.decide.table_changes import BEGIN_ANEW, ROWS_DO_NOT_TELL, name_of, plan_of
from etl.errors import NeedsDecision, SettingsError
from etl.io.delta.loaded_plans import loaded_by, other_pipelines
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_side_documents import (
    read_all_loaded_intervals,
    read_pauses,
    read_pauses_at,
    take_in,
    write_pauses,
)
from etl.io.zookeeper.pipelines import pipelines_beside
from etl.ledger.plan_document import with_id
from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import Plan
from etl.model.snapshot import (
    FirstRun,
    LoadedIntervals,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Table,
    UpToDate,
)
from etl.report.report_json import describe_plan
from etl.run.live_services import LiveServices
from etl.run.run_context import ALONE, RunContext
from etl.run.service_interfaces import now_ms
from etl.run.void_plan_number import close_next_number, close_stored_plan
from etl.settings.sections import Settings


def inherit_pipeline(
    settings: Settings,
    predecessor: str,
    reason: str,
    run_context: RunContext = ALONE,
    *,
    dry_run: bool = False,
) -> DecisionResult:
    """Continue where another pipeline of this table ended.

    predecessor   `NAME`, `GROUP/NAME` or `CLUSTER/GROUP/NAME`

    The plan is stored, and the next run commits it. The predecessor is retired if its ledger is in
    this ZooKeeper and this conf names all its topics.

    A pipeline that inherits from itself continues after the table's rows, if the table's log no
    longer has its plans, or another ledger of its name wrote them. A pipeline that inherits from
    a successor without a stored plan is in service again.

    Raises SettingsError for a pipeline that the table does not know, NeedsDecision for one of
    another cluster.
    """
    with operator_session(settings, run_context, dry_run=dry_run) as session:
        snapshot = session.observe()
        reject_active_members(snapshot, settings)
        resumed = _resumed(session, predecessor, snapshot)
        if resumed:
            return resumed
        other = _find_pipeline(predecessor, _pipelines_in_table(session.services, snapshot.table))
        with (
            naming_table(settings),
            _driver_lock_of(session, other.app_id) as ledger,
        ):
            return _inherit(session, ledger, other, snapshot, settings, reason)


def _inherit(
    session: OperatorSession,
    other_ledger: PlanLedger | None,
    other: OtherPipeline,
    snapshot: Snapshot,
    settings: Settings,
    reason: str,
) -> DecisionResult:
    """Store the plan by which this pipeline inherits, under the driver locks of both.

    other_ledger   None: it is not in this ZooKeeper, or the pipeline inherits from itself
    """
    services = session.services
    is_itself = _is_this_pipeline(other.app_id, settings)
    if other_ledger:
        committed: Mapping[TopicPartition, Committed] = {}
        if _is_of_group(other, settings):
            committed = snapshot.committed
        reject_unfinished_predecessor(other, other_ledger.read_ledger().newest, committed)
    if not is_itself and not session.is_dry_run:
        _close_plan(services, other_ledger, other, session.run_id)
    # again: closing a plan adds a commit to the table
    other = _find_pipeline(other.app_id, _pipelines_in_table(services, snapshot.table))
    topics_left = _topics_left(other, settings)

    if is_itself:
        state = state_of_itself(snapshot, settings)
    else:
        state = _state_without(other.app_id, snapshot, settings)
    repair = None
    if isinstance(state, (UpToDate, RebuildFromTable)):
        # a successor may have closed this pipeline's next number in the table alone, if this
        # ledger was not in its ZooKeeper
        repair = repair_of(state, snapshot)
    snapshot = session.finish(repair, snapshot)
    if isinstance(state, RebuildFromTable):
        state = state.state
    if isinstance(state, StoredBackfill):
        state = Resume(state.plan)
    is_of_other_era = is_of_another_era(snapshot.ledger, snapshot.table)

    readable = _leave_to_other_members(other_ledger, other, snapshot, settings)
    rows: Mapping[TopicPartition, tuple[int, int]] = {}
    if not other.plan:
        rows = _rows_until(services)
    predecessor = predecessor_of(other, rows, readable, settings)
    intervals = None
    if other_ledger:
        intervals = read_all_loaded_intervals(other_ledger, other.number)
    if state and not is_itself and not isinstance(state, FirstRun):
        _reject_unloaded_gap(services, predecessor, state, snapshot, intervals)
    plan = plan_inheritance(
        predecessor,
        state,
        readable,
        settings,
        uid=snapshot.ledger.uid or services.new_uid(),
        now_ms=now_ms(),
        reason=reason,
    )
    reject_partitions_of_other_members(plan.loaded_until, snapshot, settings)
    plan = with_id(ownership_after_inheritance(plan, snapshot, settings))

    to_retire = other_ledger
    if topics_left:
        to_retire = None
    known: Collection[TopicPartition] = set()
    if state and not isinstance(state, FirstRun):
        known = plan_of(state).loaded_until.keys()
    if not session.is_dry_run:
        topics = {partition.topic for partition in predecessor.positions}
        _take_in_pauses(services.ledger, other_ledger, topics)
        _retire(services, to_retire, snapshot, reason)
        take_in(
            services.ledger,
            intervals,
            predecessor.positions,
            table_id=plan.table.id or "",
            known=known,
            lives=predecessor.incarnations,
        )
        done = ""
        if to_retire:
            done = f"{name_of(other.app_id)} is retired, and no offset was committed"
        session.store(plan, snapshot.ledger, done=done)

    given_up = {}
    if is_of_other_era:
        for partition, offset in plan.loaded_until.items():
            if offset > predecessor.positions.get(partition, 0):
                given_up[partition] = offset
    sentences = _describe(plan, predecessor, topics_left, given_up)
    if not is_itself:
        sentences.append("Its run keys and requests of backfills are not inherited")
    return _result(sentences, plan, other.app_id, is_retired=bool(to_retire))


# -- the pipelines of a table


def _pipelines_in_table(services: LiveServices, table: Table | None) -> list[OtherPipeline]:
    """Return all pipelines that have loaded into the table, including this one."""
    if table is None:
        return []
    pipelines = [*other_pipelines(services.settings.table.path, services.app_id)]
    if table.transaction_version:
        pipelines.append(OtherPipeline(services.app_id, table.transaction_version))
    return pipelines


def _find_pipeline(name: str, pipelines: Sequence[OtherPipeline]) -> OtherPipeline:
    """Return the pipeline with this name: `NAME`, `GROUP/NAME` or `CLUSTER/GROUP/NAME`.

    Raises SettingsError if none or several have it.
    """
    suffix = f"/{name.strip('/')}"
    found = []
    for pipeline in pipelines:
        if f"/{pipeline.app_id}".endswith(suffix):
            found.append(pipeline)
    if len(found) == 1:
        return found[0]
    message = f"No pipeline {name} has loaded into the table"
    if found:
        message = f"Several pipelines {name} have loaded into the table"
    names = ["/".join(pipeline.app_id.split("/")[1:]) for pipeline in found or pipelines]
    if not names:
        action = "Check table.path: no pipeline has loaded into the table"
    else:
        action = (
            "Pass NAME, GROUP/NAME or CLUSTER/GROUP/NAME, as far as only one of these has it: "
            + ", ".join(sorted(names))
        )
    raise SettingsError(message, key="--predecessor", action=action)


def _is_this_pipeline(app_id: str, settings: Settings) -> bool:
    """Return whether it is this pipeline, also under an earlier name of the cluster."""
    return app_id.split("/")[-2:] == [settings.group.id, settings.pipeline]


def _is_of_group(other: OtherPipeline, settings: Settings) -> bool:
    """Return whether the other pipeline has the same consumer group."""
    return other.app_id.split("/")[-2] == settings.group.id


@contextmanager
def _driver_lock_of(session: OperatorSession, app_id: str) -> Iterator[PlanLedger | None]:
    """Context manager: the ledger of another pipeline, under its driver lock; a dry run needs none.

    None for this pipeline, and if the ledger is not in this ZooKeeper. Raises Owned.
    """
    services = session.services
    group, pipeline = app_id.split("/")[-2:]
    ledger = PlanLedger(services.zookeeper, group, pipeline)
    if _is_this_pipeline(app_id, services.settings) or ledger.read_ledger().uid is None:
        yield None
        return
    if session.is_dry_run:
        yield ledger
        return
    with DriverLock(services.zookeeper, group, pipeline).driving(
        session.run_id, wait_s=services.settings.ledger.lock_timeout_s
    ):
        yield ledger


def _topics_left(other: OtherPipeline, settings: Settings) -> list[str]:
    """Return the topics that the other pipeline keeps; with any, it stays in service.

    Raises SettingsError if there are any and it is in the same group.
    """
    left = []
    for topic in sorted(other.topics or ()):
        if not settings.source.topic_filter.admits(topic):
            left.append(topic)
    is_itself = _is_this_pipeline(other.app_id, settings)
    if left and _is_of_group(other, settings) and not is_itself:
        raise SettingsError(
            f"{name_of(other.app_id)} also loads topics that this conf does not name: "
            f"{', '.join(left)}",
            key="source.topics",
            action="Name all of them: two pipelines of one group cannot divide the topics that one "
            "of them has loaded",
        )
    return left


# -- closing, retiring and resuming


def _close_plan(
    services: LiveServices, ledger: PlanLedger | None, other: OtherPipeline, run_id: str
) -> None:
    """Close the number of a plan that the other pipeline has stored, or may have stored.

    Its driver may be suspended before the commit, and would else commit the plan later.
    """
    reason = _taken_over_by(services.settings)
    if ledger is None:
        close_next_number(services, other, reason)
        return
    with _services_of(ledger, services, run_id) as other_services:
        close_stored_plan(other_services, reason)


def _taken_over_by(settings: Settings) -> str:
    """Return the reason that retirements and closing plans store."""
    return taken_over_by(f"{settings.group.id}/{settings.pipeline}")


@contextmanager
def _services_of(ledger: PlanLedger, services: LiveServices, run_id: str) -> Iterator[LiveServices]:
    """Context manager: the services of another pipeline of this table."""
    group = services.settings.group.model_copy(update={"id": ledger.paths.group})
    settings = services.settings.model_copy(update={"group": group, "pipeline": ledger.pipeline})
    other_services = LiveServices(settings, services.zookeeper, ALONE, run_id)
    try:
        yield other_services
    finally:
        other_services.close()


def _take_in_pauses(
    ledger: PlanLedger, other_ledger: PlanLedger | None, topics: Collection[str]
) -> None:
    """Store the predecessor's pauses of these topics."""
    if other_ledger:
        before, version = read_pauses_at(ledger)
        after = merged(before, read_pauses(other_ledger), topics)
        if after != before:
            write_pauses(ledger, after, version)


def _retire(
    services: LiveServices, other_ledger: PlanLedger | None, snapshot: Snapshot, reason: str
) -> None:
    """Retire the predecessor, if any, and end this pipeline's own retirement."""
    if other_ledger:
        before = other_ledger.read_retirement()
        successor = f"{services.settings.group.id}/{services.settings.pipeline}"
        retirement = retirement_of_predecessor(
            before, successor=successor, reason=reason, at_ms=now_ms()
        )
        if retirement:
            pipelines_beside(other_ledger).retire(other_ledger.pipeline, retirement, before=before)
    if snapshot.ledger.retired:
        _resume(services)
        services.observe()  # the group's pipelines have changed


def _resume(services: LiveServices) -> None:
    """End this pipeline's own retirement."""
    pipelines = pipelines_beside(services.ledger)
    pipelines.resume(services.ledger.pipeline, version=pipelines.version() or 0)


def _resumed(session: OperatorSession, name: str, snapshot: Snapshot) -> DecisionResult | None:
    """Resume this pipeline if `name` inherited from it, and has stored and committed no plan.

    If the successor has stored a plan, its driver may be suspended before the commit: the plan is
    committed here. Then, and in all other cases, returns None: this pipeline inherits from it
    like from any other pipeline.
    """
    services = session.services
    settings = services.settings
    group, _, pipeline = f"{settings.group.id}/{name.strip('/')}".rpartition("/")
    group = group.rpartition("/")[2]
    successor = f"{group}/{pipeline}"
    retirement = snapshot.ledger.retired
    if _is_this_pipeline(successor, settings):
        return None
    if retirement is None or retirement.taken_over_by != successor:
        return None
    ledger = PlanLedger(services.zookeeper, group, pipeline)
    lock: AbstractContextManager[object] = nullcontext()
    if not session.is_dry_run:
        lock = DriverLock(services.zookeeper, group, pipeline).driving(
            session.run_id, wait_s=settings.ledger.lock_timeout_s
        )
    with lock:
        number = 0
        for in_table in _pipelines_in_table(services, snapshot.table):
            if in_table.app_id.endswith(f"/{successor}"):
                if _has_continued(in_table, services):
                    return None
                number = in_table.number
                break
        stored = ledger.read_ledger().newest
        if stored and stored.number > number and services.app_id in stored.predecessor_numbers:
            if session.is_dry_run:
                return None
            with _services_of(ledger, services, session.run_id) as other_services:
                close_stored_plan(other_services, _taken_over_by(settings))
            return None
        if not session.is_dry_run:
            _resume(services)
    sentence = (
        f"{successor} never continued this pipeline, and will not: this pipeline is in service "
        "again, at its own loaded-until offsets"
    )
    return _result([sentence], None, None, is_retired=False)


def _has_continued(successor: OtherPipeline, services: LiveServices) -> bool:
    """Return whether the successor's commits in the table include topics of this pipeline."""
    if successor.plan is None or services.app_id in successor.plan.predecessor_numbers:
        return True
    topics = set(successor.topics or ())
    return bool(topics & services.ledger.topics())


# -- the state of this pipeline and of the predecessor


def _state_without(app_id: str, snapshot: Snapshot, settings: Settings) -> PipelineState:
    """Return the state of this pipeline without the table changes of another one."""
    table = snapshot.table
    if table:
        foreign = []
        for change in table.foreign:
            if not (change.by and change.by.app_id == app_id):
                foreign.append(change)
        table = replace(table, foreign=tuple(foreign))
    return reconciled(replace(snapshot, table=table), settings)


def _leave_to_other_members(
    ledger: PlanLedger | None, other: OtherPipeline, snapshot: Snapshot, settings: Settings
) -> Snapshot:
    """Return the snapshot without the offsets that other members of the group read.

    Those are the committed offsets beyond the predecessor's loaded-until offsets, if both
    pipelines are in one group. Raises NeedsDecision.
    """
    if ledger is None or not _is_of_group(other, settings):
        return snapshot
    reject_rewinding_other_members(other.plan, snapshot.committed, settings)
    return as_left_to_others(snapshot, other.plan, settings)


def _rows_until(services: LiveServices) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return the end of the table's rows per partition, as incarnation and offset.

    Raises NeedsDecision for Jafka: the offset after a row's message is unknown.
    """
    from etl.io.delta.offsets_of_rows import rows_until

    if services.settings.source.is_physical:
        raise NeedsDecision(
            f"The loaded-until offsets of the other pipeline are unknown: {ROWS_DO_NOT_TELL}",
            path=services.settings.table.path,
            action="Check that ZooKeeper was not emptied, and restore a copy of it that is no "
            f"older than the table's log. Otherwise {BEGIN_ANEW}",
        )
    return rows_until(services.spark(), services.settings.table.path)


def _reject_unloaded_gap(
    services: LiveServices,
    predecessor: PredecessorState,
    state: PipelineState,
    snapshot: Snapshot,
    intervals: LoadedIntervals | None,
) -> None:
    """Raise NeedsDecision if neither pipeline loaded the offsets between their ends.

    Checks only partitions that both have loaded. Without the predecessor's plans nothing is
    checked: its rows show where it ended, and not what it loaded.
    """
    other = predecessor.other
    if other.plan is None:
        return
    own: Mapping[TopicPartition, int] = {}
    if not isinstance(state, FirstRun):
        own = plan_of(state).loaded_until
    if all(
        own.get(partition, offset) == offset for partition, offset in predecessor.positions.items()
    ):
        return
    path = services.settings.table.path
    own_intervals = read_all_loaded_intervals(services.ledger)
    own_loaded = _merge_loaded(own_intervals, loaded_by(path, services.app_id))
    other_intervals = intervals or LoadedIntervals()
    other_loaded = _merge_loaded(other_intervals, loaded_by(path, other.app_id))
    reject_unloaded_gap(predecessor, state, snapshot, own_loaded, other_loaded)


def _merge_loaded(intervals: LoadedIntervals, in_table_log: Loaded) -> Loaded:
    """Return the intervals of the ledger and of the table's log together."""
    merged_by_partition = {partition: list(known) for partition, known in in_table_log.items()}
    for by_partition in (intervals.intervals, intervals.given_up):
        for partition, of_partition in by_partition.items():
            known = merged_by_partition.setdefault(partition, [])
            for interval in of_partition:
                known.append((interval.incarnation, interval.from_offset, interval.until_offset))
    return merged_by_partition


# -- the output


def _describe(
    plan: Plan,
    predecessor: PredecessorState,
    topics_left: Sequence[str],
    given_up: Mapping[TopicPartition, int],
) -> list[str]:
    """Describe the stored plan.

    given_up   where partitions continue that plans of this ledger loaded into another table
    """
    other = predecessor.other
    sentences = [
        f"Plan {plan.number} inherits from {name_of(other.app_id)}, after its plan "
        f"{other.number}, in {len(predecessor.positions):,} partitions. The next run executes it "
        f"first: {plan.origin.reason}"
    ]
    if topics_left:
        sentences.append(
            f"That pipeline keeps {', '.join(topics_left)}. Remove the other topics from its conf"
        )
    if given_up:
        partition = min(given_up)
        more = ""
        if len(given_up) > 1:
            more = f" (and {len(given_up) - 1:,} more)"
        sentences.append(
            "What the plans of this ledger loaded elsewhere is not loaded into this table: "
            f"{partition} continues at offset {given_up[partition]}{more}"
        )
    return sentences


def _result(
    sentences: Sequence[str], plan: Plan | None, inherits: str | None, *, is_retired: bool
) -> DecisionResult:
    message = "\n".join(sentences)
    described = None
    if plan:
        described = describe_plan(plan, None)
    document = {
        "message": message,
        "plan": described,
        "took_over": inherits,
        "retired": is_retired,
    }
    return DecisionResult(message, document)
