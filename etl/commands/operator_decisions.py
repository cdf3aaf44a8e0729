"""How does an operator decide which table, plan or partition is right?

A decision is stored in the ledger with its reason, under the driver lock. The next run follows it
(etl/decide/reconcile.py). Each command returns a `DecisionResult`.

- `accept_table` (`etl table accept-changes`): accept a version of the table. This concerns the
  newest plan of the pipeline. If the ledger does not record whether that plan is in the table, its
  rows are counted.
- `supersede` (`etl plans supersede`): replace a stored plan.
- `accept_partitions` (`etl topics accept-changes`): accept recreated topics and truncated
  partitions.
- `refresh_path` (`etl table refresh-path`): store the location that the catalog reports now.

Lives here: the commands, and what commands that store a plan share: group membership, storing,
output. Not here: the rules (etl/decide), inheritance (inherit_pipeline.py), offsets
(set_offsets.py), restoring the ledger (restore_ledger.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from etl.commands.operator_session import operator_session, plan_of_command
from etl.commands.run import new_run_id
from etl.decide.accept_partitions import AcceptRequest, describe_accepted_partitions, plan_reset
from etl.decide.backfill import count_offsets, unloaded_of
from etl.decide.byte_offsets import correct_start_offsets
from etl.decide.member_offsets import (
    CommitOutcome,
    commit_outcome,
    is_left_open,
    plan_without_uncommitted,
    uncommitted_partitions,
    with_commit_resolved,
)
from etl.decide.next_step import plan_superseding, repair_of
from etl.decide.partition_owners import (
    leave_to_owners,
    reject_active_members,
    reject_fenced_plan,
    reject_partitions_of_other_members,
    reject_unknown_incarnations,
    reject_unrecorded_commit,
)
from etl.decide.reconcile import (
    is_unidentified,
    naming_table,
    reject_other_ledger,
    where_we_stand,
)
from etl.decide.table_changes import (
    REMOVED_ROWS,
    acknowledging,
    app_id_of,
    is_recorded,
    is_told,
    unacknowledged,
)
from etl.decide.table_rules import KEY, describe_accepted, topics_accepted
from etl.errors import NeedsDecision, SettingsError, Unreachable
from etl.io.delta.log import hash_of_commit, open_log
from etl.io.delta.table_shape import open_table, rust_path
from etl.io.zookeeper.ledger_side_documents import read_named_table, write_mark, write_named_table
from etl.ledger.plan_document import with_id
from etl.model.partitions import (
    FORM_OF_PARTITION,
    TopicPartition,
    parse_interval,
    parse_named,
    quoted_partition,
    select_keys,
)
from etl.model.plans import CommitResult, CommitState, Loss, LossReason, Plan, RangeResult
from etl.model.snapshot import (
    Acknowledgement,
    FirstRun,
    Ledger,
    NamedTable,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
    Table,
    UpToDate,
)
from etl.report.describe import (
    counted,
    describe_continuation,
    describe_given_up,
    describe_left,
    describe_stale_rows,
    format_time,
)
from etl.report.report_json import describe_losses, describe_plan
from etl.report.run_progress import Stopwatch
from etl.report.verify import foreign_commit_as_json
from etl.run.live_services import LiveServices
from etl.run.open_services import place_table
from etl.run.run_context import ALONE, RunContext
from etl.run.service_interfaces import now_ms
from etl.run.spark_on_demand import ask
from etl.settings.choices import place_of
from etl.settings.sections import Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """The outcome of an operator command."""

    summary: str
    """The text for the terminal."""
    document: dict[str, Any]
    """The document for `--json`."""


# -- etl table accept-changes


def accept_table(
    settings: Settings, version: str, reason: str, *, dry_run: bool = False
) -> DecisionResult:
    """Accept the table at `version`; the next plan starts at the loaded-until offsets.

    `none`: accept that there is no table. Changes by other writers up to that version stop no
    further run. If no ledger records whether the newest plan is in that table, its rows are
    counted: with rows the plan is recorded as done, without rows the next run replaces it. Rows of
    other writers, in topics that are planned for the first time, count as rows of another
    incarnation.

    Raises SettingsError if the table is at another version, or if there is no plan and nothing to
    accept; LedgersDisagree for a table that another ledger of the same name wrote.
    """
    with operator_session(settings, dry_run=dry_run, joins_group=False) as session:
        services = session.services
        ledger = services.ledger.read_ledger()
        if ledger.newest is None:
            return _acknowledge_rows(services, version, reason, dry_run=dry_run)
        table = services.read_table(ledger)
        topics: tuple[str, ...] = ()
        if ledger.newest.table.rows_before:
            topics = topics_accepted(services.observe())
        with naming_table(settings):
            reject_other_ledger(ledger, table)
        _reject_another_version(version, table)
        foreign = unacknowledged(table, ledger.acknowledged)
        changes = tuple(change for change in foreign if not change.by)

        at_ms = now_ms()
        decision = decide_on_table(
            services, ledger, ledger.newest, table, reason=reason, at_ms=at_ms
        )
        if not dry_run:
            services.note_removals(changes)
            record_found(services, ledger.newest, table, decision)
        acknowledgement = replace(decision.acknowledgement, rows_of=topics)
        if not dry_run:
            services.ledger.acknowledge(acknowledgement)

    accepted_state = "that there is no table"
    if table is not None:
        accepted_state = f"table {table.id} at version {table.version}"
    sentence = f"Accepted {accepted_state}, after plan {acknowledgement.number}: {reason}"
    sentence += _describe_abandoned_plans(
        ledger, ledger.newest, table, lacks_plan=decision.acknowledgement.lacks_plan
    )
    if decision.found:
        rows = sum(result.rows or 0 for result in decision.found)
        sentence += f"; {rows:,} rows of that plan are in it, "
        sentence += "so it is recorded as done" if rows else "so the next run replaces it"
    sentence += describe_accepted(topics)
    if not ledger.newest.is_physical and is_unidentified(ledger, table):
        sentence += (
            f". Whether plan {ledger.newest.number} is in it remains unknown: `etl ledger restore "
            "CONF --reason ...` continues after the rows in the table"
        )
    if any(change.why == REMOVED_ROWS for change in changes):
        sentence += (
            "; `etl verify CONF` counts the rows that are missing now, and `etl replay` loads them "
            "again"
        )
    changes_document = [foreign_commit_as_json(change) for change in changes]
    return _ruling_on_table(sentence, acknowledgement, changes_document)


def _acknowledge_rows(
    services: LiveServices, version: str, reason: str, *, dry_run: bool
) -> DecisionResult:
    """Accept the table before plan 1.

    Rows of other writers in the topics of the conf count as rows of another incarnation. Raises
    SettingsError if there are no such rows, or the table is at another version.
    """
    snapshot = services.observe()
    where_we_stand(snapshot, services.settings)
    table = snapshot.table
    topics = topics_accepted(snapshot)
    if table is None or not topics:
        raise SettingsError(
            "This pipeline has no plan yet, and the table holds no rows of its topics: there is "
            "nothing to accept",
            action="Check with `etl run CONF --dry-run`",
        )
    _reject_another_version(version, table)
    place = services.settings.table
    commit = hash_of_commit(open_log(rust_path(place.path)), table.version)
    acknowledgement = Acknowledgement(
        table.id,
        table.version,
        0,
        reason,
        now_ms(),
        transaction_version=0,
        was_recorded=False,
        commit=commit,
        place=place.place,
        rows_of=topics,
    )
    if not dry_run:
        services.ledger.acknowledge(acknowledgement)
    sentence = f"Accepted table {table.id} at version {table.version}, before plan 1: {reason}"
    sentence += describe_accepted(topics)
    return _ruling_on_table(sentence, acknowledgement, [])


def _ruling_on_table(
    sentence: str, acknowledgement: Acknowledgement, changes: list[Any]
) -> DecisionResult:
    document = {
        "message": sentence,
        "table_id": acknowledgement.table_id,
        "table_version": acknowledgement.delta_version,
        "after_plan": acknowledgement.number,
        "reason": acknowledgement.reason,
        "accepted": changes,
    }
    return DecisionResult(sentence, document)


def _reject_another_version(version: str, table: Table | None) -> None:
    """Raise SettingsError if the table is not at the version that the operator has checked."""
    current = str(table.version) if table else "none"
    if version == current:
        return
    message = f"There is no table (pass `none`), so it is not at version {version}"
    if table:
        message = f"The table is at version {current}, not {version}"
    raise SettingsError(
        message,
        key="UP_TO_VERSION",
        action="Check what changed since (DESCRIBE HISTORY), then accept that version",
    )


def _describe_abandoned_plans(
    ledger: Ledger, plan: Plan, table: Table | None, *, lacks_plan: bool
) -> str:
    """Describe which plans the accepted table lacks and no run loads again; empty if none.

    The newest plan is loaded if no commit of it is known.
    """
    version_in_table = 0
    if table:
        version_in_table = table.transaction_version or 0
    table_id = table.id if table else None
    is_done = is_recorded(ledger, plan)
    is_waiting = not is_done and (version_in_table, table_id) == (
        plan.table.transaction_version,
        plan.table.id,
    )
    if version_in_table >= plan.number or is_waiting:
        return ""
    if is_done or (table and not lacks_plan):
        abandoned = "rows of earlier plans that it lacks"
        if ledger.applied and is_done and ledger.applied.rows:
            abandoned = (
                f"the rows of plan {plan.number} ({ledger.applied.rows:,}), and those of earlier "
                "plans that it lacks,"
            )
        return f"; {abandoned} are not loaded again, and the next plan continues after them"
    text = ""
    had_a_table = plan.table.id is not None and plan.number > 1
    if had_a_table:
        text += f"; rows of plans before plan {plan.number} that it lacks are not loaded again"
    if not table:
        text += f"; another plan replaces plan {plan.number}"
    return text


@dataclass(frozen=True, slots=True)
class Accepted:
    """The decision for one ledger."""

    acknowledgement: Acknowledgement
    found: tuple[RangeResult, ...]
    """The rows of the newest plan in the table, by range; empty if no rows were counted."""


def decide_on_table(
    services: LiveServices,
    ledger: Ledger,
    plan: Plan,
    table: Table | None,
    *,
    reason: str,
    at_ms: int,
) -> Accepted:
    """Decide for one ledger; nothing is stored.

    Raises NeedsDecision if it is unknown whether the plan's rows are in the table, since they
    might be loaded twice.
    """
    is_known = is_told(ledger, table)
    found = () if is_known else _count_rows(services, plan)
    path = services.settings.table
    commit = None
    if table:
        # A version number comes back where a copy of the table was restored and written again. The
        # decision therefore keeps the hash of the commit file that was observed.
        commit = hash_of_commit(open_log(rust_path(path.path)), table.version)
    has_rows = any(result.rows for result in found)
    acknowledgement = acknowledging(
        ledger,
        plan,
        table,
        reason=reason,
        at_ms=at_ms,
        place=path.place,
        lacks_plan=not is_known and not has_rows,
        commit=commit,
    )
    return Accepted(acknowledgement, found)


def _count_rows(services: LiveServices, plan: Plan) -> tuple[RangeResult, ...]:
    """Count the plan's rows in the table. Raises NeedsDecision if they cannot be counted."""
    counted = services.loaded.recount(plan)
    if counted.uncounted:
        raise NeedsDecision(
            f"It is unknown whether plan {plan.number} is in the table: {counted.uncounted}",
            path=services.settings.table.path,
            action="Check the table's columns and files, and restore what is missing",
        )
    return counted.results


def record_found(
    services: LiveServices, plan: Plan, table: Table | None, decision: Accepted
) -> None:
    """Record the plan as done if rows of it are in the table."""
    if table and decision.found and not decision.acknowledgement.lacks_plan:
        services.record(
            plan, CommitResult(plan.number, plan.id, table.version, table.id, decision.found)
        )


# -- etl plans supersede


def supersede(
    settings: Settings,
    number: int,
    reason: str,
    skips: tuple[str, ...],
    *,
    is_handed_over: bool = False,
    dry_run: bool = False,
) -> DecisionResult:
    """Replace plan `number`, which is stored and not in the table; the next run executes the new
    one.

    The new plan follows the current conf. On Jafka, if the plan begins inside a message, it begins
    at the group's current offset. `skips`, each `TOPIC:PARTITION:FROM-UNTIL`, are left out and
    recorded as lost. The offsets of a member's plan whose commit is rejected or in doubt are left
    to the other members; with `is_handed_over` an operator has checked that no other member read
    them, and the plan is executed.

    Raises SettingsError for a plan that is not the newest and for a skip outside of it,
    NeedsDecision if the plan is in the table.
    """
    skipped = tuple(parse_skip(text) for text in skips)

    def skipped_until(partition: TopicPartition) -> list[int]:
        return [skip.until_offset for skip in skipped if skip.partition == partition]

    with operator_session(settings, dry_run=dry_run, joins_group=False) as session:
        services = session.services
        before = services.read_ledger()
        if before.newest and is_left_open(before) and not dry_run:
            services.fence(before.newest)
        observed = services.observe(skipped_until)
        snapshot = leave_to_owners(with_commit_resolved(observed), settings)
        newest = snapshot.ledger.newest
        if newest is None or newest.number != number:
            stored = "this pipeline has no plan yet"
            if newest:
                stored = f"the newest plan is {newest.number}"
            raise SettingsError(
                f"Plan {number} cannot be superseded: {stored}",
                action="Check with `etl plans list CONF`",
            )
        _reject_finished(number, where_we_stand(snapshot, settings), snapshot.table)
        if newest.commit.state.is_unresolved or is_handed_over:
            return _settle_commit(
                services,
                newest,
                snapshot,
                reason,
                skips,
                is_handed_over=is_handed_over,
                dry_run=dry_run,
            )
        old = correct_start_offsets(newest, services.ledger.read_plan(number - 1), snapshot)
        replacement = plan_superseding(
            Supersede(old, reason, skipped), snapshot, settings, now_ms=now_ms()
        )
        lost = replacement.losses.lost
        outcome = _IS_EXECUTED_NEXT
        if not dry_run:
            _log_losses(_new_losses(replacement, newest))
            services.supersede(replacement, snapshot.ledger)
            with contextlib.suppress(Unreachable):  # the replacement is stored
                outcome = outcome_of_replacement(replacement, services.ledger.read_plan(number))

    # Without a change, the id is of no use: it depends on the time of the replacement.
    replaced_by = "another plan of the same number"
    if not dry_run:
        replaced_by += f" ({replacement.id})"
    sentence = f"Plan {number} ({newest.id}) was replaced by {replaced_by}, {outcome}: {reason}"
    not_read = describe_left(newest, replacement)
    document = {
        "message": sentence,
        "plan": describe_plan(replacement, None),
        "superseded": _ranges(newest),
        "lost": describe_losses(lost),
        "not_read": not_read,
    }
    sentences = [sentence, *describe_given_up(lost), *not_read]
    kept = [loss for loss in lost if loss in newest.losses.lost]
    if any(loss.why is LossReason.SKIPPED for loss in kept):
        sentences.append(
            "To load offsets that an earlier decision skipped, set the next offset back: etl "
            f"offsets set CONF -p {quoted_partition(kept[0].partition)} "
            f"--to {kept[0].from_offset} --reason ..."
        )
    return DecisionResult("\n".join(sentences), document)


_IS_EXECUTED_NEXT = "which the next run executes"


def outcome_of_replacement(replacement: Plan, current: Plan | None) -> str:
    """Describe what becomes of a replacement that was stored. `current`: the plan that the ledger
    has under its number now; a suspended driver may have loaded the replaced one first.
    """
    if current is not None and current.id == replacement.id:
        return _IS_EXECUTED_NEXT
    return (
        "but another driver loaded or replaced the plan of this number meanwhile: check with "
        f"`etl plans show CONF {replacement.number}`"
    )


def _settle_commit(
    services: LiveServices,
    plan: Plan,
    snapshot: Snapshot,
    reason: str,
    skips: tuple[str, ...],
    *,
    is_handed_over: bool,
    dry_run: bool,
) -> DecisionResult:
    """Settle a rejected or in-doubt offset commit as the operator decided.

    Raises SettingsError if offsets are to be skipped, or if the outcome of the commit is known.
    """
    if skips:
        raise SettingsError(
            f"The offset commit of plan {plan.number} is not known to be done, so none of its "
            "offsets can be skipped",
            action="Leave --skip out",
        )
    if not is_handed_over:
        return _leave_to_group(services, plan, snapshot, reason, dry_run=dry_run)

    if commit_outcome(plan, snapshot.committed) is not CommitOutcome.UNTOLD:
        raise SettingsError(
            f"The outcome of the offset commit of plan {plan.number} is known",
            action="Run `etl run CONF`, which follows it; leave --assume-offsets-committed out",
            key="--assume-offsets-committed",
        )
    marked = plan.with_commit_state(CommitState.DONE)
    if not dry_run:
        write_mark(services.ledger, marked)
    sentence = (
        f"The offsets of plan {plan.number} ({plan.id}) count as committed, and the next run "
        f"executes it: {reason}"
    )
    document = {"message": sentence, "plan": describe_plan(marked, None), "superseded": []}
    return DecisionResult(sentence, document)


def _leave_to_group(
    services: LiveServices, plan: Plan, snapshot: Snapshot, reason: str, *, dry_run: bool
) -> DecisionResult:
    """Replace the plan by one without the offsets that were not committed."""
    is_in_part = commit_outcome(plan, snapshot.committed) is CommitOutcome.IN_PART
    if is_in_part:
        uncommitted: Collection[TopicPartition] = uncommitted_partitions(plan, snapshot.committed)
        described_part = "its uncommitted offsets are"
    else:
        uncommitted = plan.loaded_until.keys()
        described_part = "its offsets are"
    replacement = with_id(plan_without_uncommitted(plan, uncommitted, reason, now_ms=now_ms()))
    if not dry_run:
        reject_fenced_plan(services.supersede(replacement, snapshot.ledger))
    sentence = (
        f"Plan {plan.number} ({plan.id}) was replaced by another plan of the same number "
        f"({replacement.id}): {described_part} left to the group"
    )
    document = {
        "message": sentence,
        "plan": describe_plan(replacement, None),
        "superseded": _ranges(plan),
    }
    return DecisionResult(f"{sentence}: {reason}", document)


def _reject_finished(number: int, state: PipelineState, table: Table | None) -> None:
    """Raise NeedsDecision if the plan is in the table, or was in a table that was given up."""
    if isinstance(state, RebuildFromTable):
        raise NeedsDecision(
            f"The table holds plan {state.plan.number} ({state.plan.id}), which ZooKeeper does "
            "not have",
            action="Run `etl run CONF`, which restores it to the ledger",
        )
    if isinstance(state, (Resume, Supersede, StoredBackfill)):
        return
    place = "was in a table that an operator gave up; the next plan continues after it"
    if table is not None and (table.transaction_version or 0) >= number:
        place = "is in the table"
    raise NeedsDecision(
        f"Plan {number} {place}: there is nothing to supersede",
        action="Check with `etl run CONF --dry-run`",
    )


def parse_skip(text: str) -> Loss:
    """Parse `TOPIC:PARTITION:FROM-UNTIL`, the end exclusive, to a loss. Raises SettingsError."""
    found = parse_interval(text)
    if found is None:
        raise SettingsError(
            f"{text!r} is no range of offsets",
            key="--skip",
            action=(
                "Write it in the form TOPIC:PARTITION:FROM-UNTIL, FROM included and UNTIL not, "
                f"e.g. clicks:3:100-101; {FORM_OF_PARTITION}"
            ),
        )
    return Loss(*found, LossReason.SKIPPED)


def _ranges(plan: Plan) -> list[dict[str, Any]]:
    document: list[dict[str, Any]] = describe_plan(plan, None)["ranges"]
    return document


# -- etl topics accept-changes


def accept_partitions(
    settings: Settings,
    names: tuple[str, ...],
    reason: str,
    *,
    at: int | None = None,
    is_same_log: bool = False,
    dry_run: bool = False,
) -> DecisionResult:
    """Accept truncated or recreated partitions, each `TOPIC` or `TOPIC:PARTITION`; the next run
    continues with them.

    `at`: the truncation offset of one partition, if brokers cannot report it.
    `is_same_log`: only the topic's znode was recreated, or this partition's broker kept its
    records.

    Raises SettingsError for an unchanged partition and for options that contradict what is known;
    NeedsDecision if a run must first restore the table's plan.
    """
    named = tuple(parse_named(name) for name in names)
    request = AcceptRequest(named, reason, at, is_same_log)
    with operator_session(settings, dry_run=dry_run) as session:
        snapshot = session.observe(request.offsets_of)
        reject_active_members(snapshot, settings)
        state = where_we_stand(snapshot, settings)
        reject_unrecorded_commit(state, snapshot, settings)
        if isinstance(state, FirstRun):
            raise SettingsError(
                "This pipeline has no plan yet: there is nothing to accept",
                action="Check with `etl run CONF --dry-run`",
            )
        if isinstance(state, RebuildFromTable):
            raise NeedsDecision(
                f"The table holds plan {state.plan.number}, which ZooKeeper does not have",
                action=(
                    "Run `etl run CONF`, which restores it to the ledger and then stops here "
                    "again. Accept the partition after that"
                ),
            )
        if isinstance(state, Supersede):
            state = Resume(state.plan)
        repair = repair_of(state, snapshot)
        stored_backfill = None
        if isinstance(state, StoredBackfill):
            stored_backfill = state.plan
            state = state.state
        snapshot = session.finish(repair, snapshot)

        plan = plan_reset(state, snapshot, settings, request, now_ms=now_ms())
        reject_partitions_of_other_members(_restarted_partitions(plan, state), snapshot, settings)
        reject_unknown_incarnations(state, _restarted_partitions(plan, state))
        plan = plan_of_command(plan, snapshot, settings, stored_backfill)
        old = _plan_of(state)
        unloadable = _describe_backfills_left(
            session.services, old, _restarted_partitions(plan, state)
        )
        lost: tuple[Loss, ...] = ()
        if isinstance(state, Resume):
            lost = _new_losses(plan, old)
        if not dry_run:
            _log_losses(lost)
        session.store(plan, snapshot.ledger)

    is_stored = isinstance(state, Resume)
    sentences = [*describe_stored_plan(plan, reason), *describe_given_up(lost)]
    for partition in sorted(_restarted_partitions(plan, state)):
        sentences.append(describe_continuation(plan, old, partition, is_stored=is_stored))
    sentences += describe_accepted_partitions(old, plan, snapshot)
    sentences += unloadable
    document = {
        "message": sentences,
        "plan": describe_plan(plan, None),
        "lost": describe_losses(lost),
    }
    return DecisionResult(
        "\n".join([*sentences, *describe_stale_rows(plan.losses.stale_rows)]), document
    )


def _describe_backfills_left(
    services: LiveServices, old: Plan, restarted: Collection[TopicPartition]
) -> list[str]:
    """Describe what backfills cannot load once these partitions continue as other ones."""
    backfills = services.backfills.read_all()
    if not backfills:
        return []
    loaded = services.loaded.intervals()
    sentences = []
    for backfill in backfills:
        unloaded = unloaded_of(backfill, loaded)
        offsets = count_offsets(select_keys(unloaded, restarted))
        if offsets:
            sentences.append(
                f"Backfill {backfill.name} cannot load {counted(offsets, 'offset')} of these "
                "partitions that it had still to load"
            )
    return sentences


def _restarted_partitions(plan: Plan, state: UpToDate | Resume) -> list[TopicPartition]:
    """Return the partitions that have another incarnation in `plan` than in the plan before."""
    old = _plan_of(state)
    restarted = []
    for partition, incarnation in plan.incarnations.items():
        if incarnation != old.incarnations.get(partition, 0):
            restarted.append(partition)
    return restarted


def _plan_of(state: UpToDate | Resume) -> Plan:
    """Return the newest plan: the executed one, or the stored one."""
    if isinstance(state, UpToDate):
        return state.last
    return state.plan


# -- etl table refresh-path


def _check_nothing(at: Settings) -> None:
    """Let the catalog create the table without the checks of a first run."""


def refresh_path(
    settings: Settings,
    run_context: RunContext = ALONE,
    *,
    is_made: bool = False,
    dry_run: bool = False,
) -> DecisionResult:
    """Look the table's location up with Spark, and store it for runs.

    The next run compares the table's id with that of the plans. `is_made`: if the catalog has no
    such table, an empty one is created, as by a first run; rows of a dropped table are not
    restored. Raises SettingsError for a conf with a path, and as `run.spark_on_demand.ask`.
    """
    if settings.table.name is None:
        raise SettingsError(
            "The conf names the table by its path, so there is no table name to look up",
            key=KEY,
            action="Check with `etl doctor CONF`",
        )
    if is_made and dry_run:
        raise SettingsError(
            "--create-empty creates a table in the catalog, which a dry run does not",
            key="--dry-run",
            action="Pass --dry-run without --create-empty, to see what the catalog reports",
        )
    with operator_session(settings, run_context, dry_run=dry_run, joins_group=False) as session:
        services = session.services
        making = _check_nothing if is_made else None
        found = ask(
            settings, run_context, Stopwatch(), name=f"{session.run_id}-name", making=making
        )
        before = read_named_table(services.ledger)
        ledger = services.ledger.read_ledger()
        if not dry_run:
            write_named_table(services.ledger, found)

    sentence = describe_location(
        before, found, ledger, _last_plan_in_table(settings, found, ledger)
    )
    document = {
        "message": sentence,
        "now": as_json(found),
        "before": as_json(before) if before else None,
        "table_of_newest_plan": ledger.newest.table.id if ledger.newest else None,
    }
    return DecisionResult(sentence, document)


def _last_plan_in_table(settings: Settings, found: NamedTable, ledger: Ledger) -> int | None:
    """Return the number of this pipeline's last plan in the table; None if there is none.

    The table's columns are not checked.
    """
    table = open_table(found.path)
    if table is None or ledger.newest is None:
        return None
    return table.transaction_version(
        app_id_of(ledger.newest.cluster.name, settings.group.id, settings.pipeline)
    )


def describe_location(
    before: NamedTable | None, found: NamedTable, ledger: Ledger, in_table: int | None
) -> str:
    """Describe the location that was found, and what the next run does.

    `in_table`: the number of this pipeline's last plan in that table.
    """
    sentence = f"Table {found.name} is at {found.path}"
    is_elsewhere = before is not None and place_of(before.path) != place_of(found.path)
    if before is not None and (is_elsewhere or before.name != found.name):
        sentence += (
            f"; until now runs used {before.name} at {before.path}, as looked up at "
            f"{format_time(before.at_ms)}"
        )
    newest = ledger.newest
    if newest is None:
        return sentence
    if newest.table.id not in (None, found.table_id):
        return (
            f"{sentence}. It is another table ({found.table_id}) than that of plan "
            f"{newest.number} ({newest.table.id}): the next run stops until `etl table "
            "accept-changes CONF VERSION --reason ...` accepts it. Rows of earlier plans that it "
            "lacks are then not loaded again"
        )
    if not is_recorded(ledger, newest) or (in_table or 0) >= newest.number:
        return sentence
    advice = "Copy it here again"
    if before and is_elsewhere:
        advice = (
            f"Run ALTER TABLE {found.name} SET LOCATION '{before.path}' and this command again, "
            "or copy it here again"
        )
    return (
        f"{sentence}. It lacks plan {newest.number}, which the table had: the next run stops. "
        f"Nothing is lost if you find the copy that has that plan. {advice}"
    )


def as_json(found: NamedTable) -> dict[str, Any]:
    """Return the location as a JSON object."""
    return {
        "name": found.name,
        "path": found.path,
        "table_id": found.table_id,
        "resolved_at": str(format_time(found.at_ms)),
    }


def with_table(settings: Settings, run_context: RunContext = ALONE) -> Settings:
    """Return the settings with a named table's location, for reading.

    Nothing is stored. Raises SettingsError for an unknown name.
    """
    return place_table(settings, run_context, name=f"{new_run_id()}-name").settings


# -- shared by commands that store a plan


def describe_stored_plan(plan: Plan, reason: str) -> list[str]:
    """Describe the stored plan and the plan that it replaces."""
    sentences = [
        f"Plan {plan.number} ({plan.id}) is stored, and the next run executes it: {reason}"
    ]
    if plan.origin.supersedes:
        sentences.append(f"It replaces {plan.origin.supersedes}, which was not in the table")
    return sentences


def _new_losses(plan: Plan, old: Plan) -> tuple[Loss, ...]:
    """Return what `plan`, which replaces `old`, gives up."""
    return tuple(loss for loss in plan.losses.lost if loss not in old.losses.lost)


def _log_losses(lost: Collection[Loss]) -> None:
    """Log what a plan gives up, before it is stored.

    Not as a warning: the command prints the same, and a terminal would show it twice.
    """
    for sentence in describe_given_up(lost):
        _log.info("%s", sentence)
