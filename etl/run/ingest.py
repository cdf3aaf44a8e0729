"""What does a run do, step by step: observe, reconcile, plan, fetch, append, commit?

A run first finishes what an earlier run left: a ledger behind the table, a missing result of a
plan, uncommitted offsets, a stored plan. Then it makes one plan of its own and starts with
`observe` again. A failure between two steps loses nothing: the next run finds the stored plan, the
Delta commit and the offsets, and continues from there.

Lives here, too: replacing a plan during its execution by one without lost offsets, and recording
rows that other writers removed with permission.

Not here: decisions (etl/decide/next_step.py), everything that can block (`Services`), closing the
number of a stored plan (etl/run/void_plan_number.py).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from etl.decide.byte_offsets import OperatorOffsets, name_damaged_plan, no_operator_offsets
from etl.decide.member_offsets import duplicate_reads
from etl.decide.next_step import Action, NextStep, Repair, next_step
from etl.decide.partition_owners import owners_to_wait_for
from etl.decide.plan_replacement import plan_without
from etl.decide.reconcile import naming_table
from etl.decide.recreated_or_truncated import creations_to_compare, reject_topics_recreated_since
from etl.decide.replay import give_up_replay
from etl.decide.table_changes import reject_changes_by_others, unacknowledged
from etl.decide.time_zones import describe_time_zones, in_time_zone
from etl.errors import CorruptData, DataLoss, ExpiredOffsets, MissingOffsets, Owned, TableAppeared
from etl.ledger.plan_document import with_id
from etl.model.partitions import RejectedCommit, parse_intervals
from etl.model.plans import CommitResult, CommitState, Loss, LossReason, Plan, PlanKind
from etl.model.snapshot import (
    Acknowledgement,
    ForeignCommit,
    Ledger,
    PipelineState,
    RebuildFromTable,
    Snapshot,
    StoredBackfill,
    Table,
    UpToDate,
)
from etl.report.describe import counted, describe_uncounted
from etl.report.lag import PAUSES_AND_BACKFILLS_LOST, describe_paused_but_executed
from etl.report.run_progress import Outcome, Verb
from etl.report.run_report import Report
from etl.run.group_member import Joining, commit, joined
from etl.run.service_interfaces import Services
from etl.settings.choices import OnDataLoss
from etl.settings.sections import Settings

STEPS_MAX = 3
"""Steps in a row that are not the run's last: a stored plan of an earlier run takes one, the others
are conflicts with another driver.
"""
EXPIRIES_MAX = 3
"""How often one run observes again because retention deleted planned offsets: a partition that is
deleted faster than it is read cannot be loaded.
"""
TABLE_APPEARANCES_MAX = 1
"""How often a run observes again because the table was created meanwhile. A second time, another
process keeps replacing it.
"""


def ingest(services: Services, settings: Settings, report: Report) -> None:
    """Run once: finish the plan of an earlier run, then load one new plan.

    The rows of each plan are in the table once, and its offsets committed. With a run key and caps,
    a run makes as many plans as the end of the key needs. Afterwards the table has everything that
    was readable at the start, or `report` lists what was left out and why. Raises any EtlError;
    finished steps stay, and `report` has them.
    """
    with joined(services.member(), report, settings) as joining:
        _ingest(services, settings, report, joining)


def _ingest(services: Services, settings: Settings, report: Report, joining: Joining) -> None:
    steps = expiries = appearances = 0
    while steps < STEPS_MAX and joining.ensure_assignment(services):
        try:
            step = _one_step(services, settings, report, joining)
        except TableAppeared:
            # Another pipeline created the table after the snapshot. The next snapshot has it.
            appearances += 1
            if appearances > TABLE_APPEARANCES_MAX:
                raise
            continue
        except ExpiredOffsets:
            # The next snapshot shows what retention left of the stored plan, as it would in the
            # next run, and another plan replaces it.
            expiries += 1
            if settings.source.on_data_loss is OnDataLoss.FAIL or expiries > EXPIRIES_MAX:
                raise
            continue
        if step and step.is_last:
            return
        if joining.is_void or (step and step.goes_on):
            steps = 0
        else:
            steps += 1
    if steps == STEPS_MAX:
        raise Owned(
            f"Another driver runs this pipeline: {STEPS_MAX} steps did not finish this run",
            action="Check who else runs this conf. Committed rows stay; the next run continues",
        )


def _one_step(
    services: Services, settings: Settings, report: Report, joining: Joining
) -> NextStep | None:
    """Execute one step, from the snapshot to the committed offsets. Returns None if another
    driver's plan has the number, or the offset commit was rejected.

    A stored plan takes a step of its own: its commit changes the znodes of the offsets, and the
    next plan's compare-and-set expects their new versions.
    """
    step = observe_and_decide(services, settings, report, joining=joining)
    finish_repair(services, step.repair, report)
    if joining.waits(step):
        return None
    with report.timed(Verb.PLAN):
        plan = _store(services, step, report)
    if isinstance(plan, RejectedCommit):
        joining.was_void(plan)
        return None
    if plan is None:
        if step.action is Action.NOTHING:
            _end_without_plan(services, step, report)
        return step
    joining.stored(step)
    executed = execute(services, plan, step.snapshot, settings, report)
    if executed is None:
        return None
    if step.is_last:
        report.left_by_caps(executed, step.snapshot, settings)
        report.left_of_key(step.request.left)
    return step


# ---------------------------------------------------------------------------- observe and decide


def observe_and_decide(
    services: Services,
    settings: Settings,
    report: Report,
    named: OperatorOffsets = no_operator_offsets,
    *,
    joining: Joining | None = None,
) -> NextStep:
    """Take a snapshot and return the next step. `named`: offsets that an operator names; `joining`:
    set for a group member.
    """
    observe = partial(_observe, services, settings, named)
    with report.timed(Verb.OBSERVE):
        snapshot = joining.look(observe) if joining else observe()
        report.saw(snapshot)
    with report.timed(Verb.RECONCILE):
        step = next_step(snapshot, settings, now_ms=services.now_ms(), uid=services.new_uid())
        _report_state(services, snapshot, step, settings, report)
    return step


def _observe(services: Services, settings: Settings, named: OperatorOffsets) -> Snapshot:
    """Take a snapshot; if the policy is to wait for owners, take another one after waiting."""
    snapshot = services.observe(named)
    owners = owners_to_wait_for(snapshot, settings)
    if not owners:
        return snapshot
    services.wait_for_owners(owners.keys())
    return services.observe(named)


def _report_state(
    services: Services, snapshot: Snapshot, step: NextStep, settings: Settings, report: Report
) -> None:
    """Report what the run leaves out, the state of the pipeline, and rows that others removed."""
    report.left(step.snapshot, settings, now_ms=services.now_ms())
    if step.state:
        note_removals(services, snapshot.table, snapshot.ledger.acknowledged, report)
        report.stands(step.state, settings)
        report.read_twice(duplicate_reads(step.state, snapshot))
        report_dropped_offsets(step.state, report)


def note_removals(
    services: Services,
    table: Table | None,
    acknowledged: Acknowledgement | None,
    report: Report,
    *,
    reported: Collection[ForeignCommit] = (),
) -> None:
    """Report rows that others removed as policy or an operator permits, and store that for
    `verify`, except commits that are `reported` already.

    Called before a result is recorded: commits up to a recorded one are not read again.
    """
    removals = []
    for found in table.foreign if table else ():
        if found not in reported and not found.by:
            removals.append(found)
    if removals:
        services.note_removals(removals)
    for found in unacknowledged(table, acknowledged):
        if found in removals:
            report.add(
                Outcome.ROWS_REMOVED,
                f"Another writer's {found.operation} {found.why}, table version "
                f"{found.delta_version}",
            )


def report_dropped_offsets(state: PipelineState, report: Report) -> None:
    """Report that Kafka deleted committed offsets of the group; they are committed again."""
    last = state
    if isinstance(state, (RebuildFromTable, StoredBackfill)):
        last = state.state
    if isinstance(last, UpToDate) and last.dropped:
        report.add(
            Outcome.PLAN_COMPLETED,
            f"Kafka deleted the committed offsets of {counted(len(last.dropped), 'partition')}, as "
            "it does for a group without members (offsets.retention.minutes). They are committed "
            "again",
        )


# -------------------------------------------------------------------------- repair an earlier run


def finish_repair(services: Services, repair: Repair | None, report: Report) -> None:
    """Finish what an earlier run left: the ledger, the result of its plan, its offsets."""
    if repair is None:
        return
    if repair.adopts:
        with report.timed(Verb.RECONCILE):
            _restore_ledger(services, repair, repair.adopts, report)
    with report.timed(Verb.COMMIT):
        if repair.lacks_record:
            _record_result(services, repair.plan, report)
        _report_changed_offsets(repair, report)
        if not repair.adopts:
            _commit_offsets(services, repair, report)


def _restore_ledger(services: Services, repair: Repair, restored: Plan, report: Report) -> None:
    """Restore the ledger from the table's commits.

    Offsets are committed first: once the ledger has the plan, an offset below its loaded-until
    offset would count as moved by another client.
    """
    known = repair.knew
    if known and known.number == restored.number:
        report.add(
            Outcome.LEDGER_RESTORED,
            f"The table has another plan {restored.number} ({restored.id}) than ZooKeeper "
            f"({known.id}): the table's plan was restored",
        )
    else:
        lost = "no plan"
        pauses = ""
        if known:
            lost = f"plan {known.number} as the newest"
        elif not report.paused:
            pauses = f". {PAUSES_AND_BACKFILLS_LOST}"
        report.add(
            Outcome.LEDGER_RESTORED,
            f"ZooKeeper had {lost}: the ledger was restored from the table's commits up to plan "
            f"{restored.number}{pauses}",
        )
    _commit_offsets(services, repair, report)
    report.lost(restored)
    if services.adopt(restored).applied is None:
        _record_result(services, repair.plan, report)


def _record_result(services: Services, plan: Plan, report: Report) -> None:
    report.lost(plan)
    recounted = services.recount(plan)
    services.record(plan, recounted)
    if recounted is None:
        return
    source = "from its commit"
    if recounted.is_recounted:
        source = "by counting the rows of the table's files"
    report.add(
        Outcome.PLAN_COMPLETED,
        f"Plan {plan.number} of an earlier run: result stored, {source}"
        + describe_uncounted(recounted),
    )


def _report_changed_offsets(repair: Repair, report: Report) -> None:
    results = (
        (repair.followed, "followed"),
        (repair.not_followed, "not followed: the partition is not read now"),
    )
    for changed, result in results:
        for partition, offset in sorted(changed.items()):
            difference = offset - repair.plan.loaded_until[partition]
            report.add(
                Outcome.OFFSET_CHANGED,
                f"{partition}: another client committed {offset} ({difference:+,}), {result}",
            )


def _commit_offsets(services: Services, repair: Repair, report: Report) -> None:
    if not repair.offsets:
        return
    committed = services.commit(repair.plan, repair.offsets)
    if committed:
        report.add(
            Outcome.PLAN_COMPLETED,
            f"Plan {repair.plan.number} of an earlier run: offsets of "
            f"{counted(len(committed), 'partition')} committed",
        )


# --------------------------------------------------------------------------------------- the plan


def _store(services: Services, step: NextStep, report: Report) -> Plan | RejectedCommit | None:
    """Store the plan of a step, and commit its offsets if they are committed before the read.

    Returns None if there is nothing new, RejectedCommit if the group rejected the commit. Raises
    the error of the step.
    """
    if step.refusal:
        raise step.refusal
    if step.action in (Action.STORE, Action.NOTHING):
        report.beyond_bound(step.snapshot)
    if step.plan is None:
        return None
    rejected = None
    if step.action in (Action.STORE, Action.SUPERSEDE):
        rejected = store_or_replace(services, step.plan, step.snapshot.ledger)
    if rejected:
        return rejected
    plan = services.hand_over(step.plan)
    if isinstance(plan, RejectedCommit):
        return plan
    if _is_committed_now(step, plan):
        report.offsets_committed += len(plan.offsets_to_commit)
    _report_stored(step, plan, report)
    plan = in_time_zone(plan, step.snapshot)
    report.planned(plan, goes_on=step.is_cut)
    for expiry in step.expires_soon:
        report.add(Outcome.EXPIRES_SOON, str(expiry))
    return plan


def store_or_replace(services: Services, plan: Plan, ledger: Ledger) -> RejectedCommit | None:
    """Store the next plan, or one that replaces the newest plan of the ledger."""
    if plan.origin.supersedes:
        return services.supersede(plan, ledger)
    return services.store(plan)


def _is_committed_now(step: NextStep, plan: Plan) -> bool:
    """True if this run committed the plan's offsets before the read."""
    if plan.commit.state is not CommitState.DONE or step.plan is None:
        return False
    if step.plan.commit.state is not CommitState.DONE:
        return True
    # In ZooKeeper offsets are committed with the stored plan.
    newest = step.snapshot.ledger.newest
    if step.action is Action.SUPERSEDE:
        return newest is None or newest.commit.state is not CommitState.DONE
    return step.action is Action.STORE


def _report_stored(step: NextStep, plan: Plan, report: Report) -> None:
    if step.action is not Action.RESUME and plan.origin.supersedes:
        report.add(
            Outcome.PLAN_SUPERSEDED,
            f"Plan {plan.number} ({plan.origin.supersedes}) was replaced: {plan.origin.reason}",
        )
    elif step.action is Action.RESUME and not _is_of_command(plan):
        paused = describe_paused_but_executed(plan, step.snapshot.ledger.pauses)
        report.add(
            Outcome.PLAN_RESUMED,
            f"{_describe_stored(plan)} is stored and not in the table: it is executed "
            f"unchanged{paused}",
        )
    report.called(plan, step.snapshot.ledger.newest)
    for sentence in describe_time_zones(plan, step.snapshot):
        report.add(Outcome.OTHER_TIME_ZONE, sentence)


def _describe_stored(plan: Plan) -> str:
    """Return the stored plan and its origin: an earlier run, or the plan that it replaced."""
    if plan.origin.supersedes is None:
        return f"Plan {plan.number} of an earlier run"
    return f"Plan {plan.number} ({plan.id}), which replaced {plan.origin.supersedes},"


def _is_of_command(plan: Plan) -> bool:
    """True if a command stored the plan for the next run, which is no resumed work of a run. A run
    that died while it executed the plan is not noticed.
    """
    return plan.kind in (PlanKind.RESET, PlanKind.SET)


def _end_without_plan(services: Services, step: NextStep, report: Report) -> None:
    """End without a plan: store that the run key is done, if it is new."""
    request = step.request
    if request.remembers:
        services.remember(request.remembers, after=step.newest)
    report.found_nothing_new(
        request.done_before, request.remembers, open_partitions=request.open_partitions
    )
    report.left_of_key(request.left)


def finish_left(
    services: Services, step: NextStep, settings: Settings, report: Report
) -> Plan | None:
    """Execute the stored plan of an earlier run, or its replacement. Returns None if the table has
    another plan of that number.
    """
    with report.timed(Verb.PLAN):
        plan = _store(services, step, report)
    if not isinstance(plan, Plan):
        return None
    return execute(services, plan, step.snapshot, settings, report)


# ------------------------------------------------------------------------ fetch, append and commit


def execute(
    services: Services, plan: Plan, snapshot: Snapshot, settings: Settings, report: Report
) -> Plan | None:
    """Execute a stored plan, from the fetch to the committed offsets.

    Returns the plan that is in the table then, possibly a replacement without lost offsets; None if
    the table has another plan of this number.
    """
    with services.claiming(plan):
        plan, result = _load(services, plan, snapshot, settings, report)
        if result is None:
            return None
        with report.timed(Verb.COMMIT):
            commit(services, plan, result, report)
            services.tidy()
    return plan


def _load(
    services: Services, plan: Plan, snapshot: Snapshot, settings: Settings, report: Report
) -> tuple[Plan, CommitResult | None]:
    """Fetch and append the plan's rows in one commit.

    Lost offsets that policy allows are left out by a replacement plan, which is loaded instead.
    Returns the loaded plan and its result; None: the table has another plan of this number.
    """
    while True:
        try:
            with report.timed(Verb.FETCH):
                report.plans[-1].writer = services.writer_of(plan, snapshot)
                rows = services.fetch(plan, snapshot)
            # Tasks may have waited long for Spark.
            _reject_recreated_topics(services, plan, snapshot)
            with report.timed(Verb.APPEND):
                result = _append(services, plan, rows, snapshot, settings, report)
                is_in_table = result is not None
                _reject_recreated_topics(services, plan, snapshot, is_in_table=is_in_table)
                return plan, result
        except CorruptData as damaged:
            named = name_damaged_plan(damaged, plan)
            if named is damaged:
                raise
            raise named from damaged
        except DataLoss as lost:
            if plan.kind is PlanKind.REPLAY:
                plan = replace_given_up_replay(services, plan, lost, report)
                continue
            may_skip = settings.source.on_data_loss is not OnDataLoss.FAIL
            if not isinstance(lost, MissingOffsets) or not may_skip:
                raise
            # Before the append: losses that only the results name would be forgotten by a crash
            # between the commit and the record.
            plan = replace_without_missing(services, plan, lost, report)


def _reject_recreated_topics(
    services: Services, plan: Plan, snapshot: Snapshot, *, is_in_table: bool = False
) -> None:
    """Reject topics that were recreated since the snapshot, by the ids of their znodes.

    If brokers report topic ids, tasks check them at their end instead. Rows are read during the
    append, so this is checked after it, too.
    """
    known = creations_to_compare(plan, snapshot)
    if known:
        current = services.creation_ids(known.keys())
        reject_topics_recreated_since(plan, known, current, is_in_table=is_in_table)


def _append(
    services: Services,
    plan: Plan,
    rows: Any,
    snapshot: Snapshot,
    settings: Settings,
    report: Report,
) -> CommitResult | None:
    """Append the rows in one commit. Returns None if the table has another plan of this number."""
    acknowledged = snapshot.ledger.acknowledged
    result, table = services.append(plan, rows)
    with naming_table(settings):
        reject_changes_by_others(table, acknowledged, settings.table.on_rows_removed)
    reported = snapshot.table.foreign if snapshot.table else ()
    note_removals(services, table, acknowledged, report, reported=reported)
    if result is None:
        report.add(
            Outcome.LOADED_BY_ANOTHER_RUN,
            f"Another run loaded another plan {plan.number} meanwhile, so this one is not executed",
        )
        return None
    report.applied(result)
    if result.undated:
        report.add(
            Outcome.ROWS_WITHOUT_EVENT_DATE,
            f"Plan {plan.number}: {counted(result.undated, 'row')} without event_date: the record "
            "has no timestamp, or one outside the years 1 to 9999",
        )
    return result


# -------------------------------------------------------------------------------- replace the plan


def replace_without_missing(
    services: Services, plan: Plan, missing: MissingOffsets, report: Report
) -> Plan:
    """Replace a plan by one without missing offsets. The losses are stored in it before its first
    fetch.
    """
    losses = []
    for interval in parse_intervals(missing.where["missing"]):
        losses.append(Loss(*interval, LossReason.MISSING))
    replacement = with_id(plan_without(plan, losses, now_ms=services.now_ms()))
    return _replace(services, plan, replacement, report)


def replace_given_up_replay(services: Services, plan: Plan, lost: DataLoss, report: Report) -> Plan:
    """Replace a replay whose records are lost by a plan that reads nothing, so that the table keeps
    its rows.
    """
    replacement = with_id(give_up_replay(plan, str(lost), now_ms=services.now_ms()))
    return _replace(services, plan, replacement, report)


def _replace(services: Services, plan: Plan, replacement: Plan, report: Report) -> Plan:
    ledger = services.read_ledger()
    if ledger.newest is None or ledger.newest.id != plan.id:
        raise Owned(
            f"Another driver replaced plan {plan.number}", action="Check who else runs this conf"
        )
    services.supersede(replacement, ledger)
    report.add(
        Outcome.PLAN_SUPERSEDED,
        f"Plan {plan.number} ({plan.id}) was replaced: {replacement.origin.reason}",
    )
    report.planned(replacement)
    return replacement
