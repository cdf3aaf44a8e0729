"""How does an operator decide which table, plan or partition is right?

Decisions are stored in the ledger with their reason, under the driver lock; the next run follows
them (etl/decide/reconcile.py). Accepting a table concerns the newest plan of the pipeline and of
each backfill; if no ledger tells whether such a plan is in the table, its rows are looked up. A
command that moves offsets joins the group, if runs do. `etl table lookup-path` accepts the location
that the catalog reports now.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from etl.commands.backfill import unloaded_by_backfill
from etl.commands.run import new_run_id
from etl.decide.accept_partitions import Accepting, plan_reset, told_of
from etl.decide.byte_offsets import put_right
from etl.decide.group_commits import (
    HandOverOutcome,
    found_out,
    is_left_open,
    plan_without_uncommitted,
    uncommitted_partitions,
    with_commit_settled,
)
from etl.decide.group_ownership import (
    joins_for_commands,
    leave_to_owners,
    of_command,
    reject_active_members,
    reject_fenced_plan,
    reject_partitions_of_other_members,
    reject_unknown_incarnations,
    reject_unrecorded_commit,
)
from etl.decide.next_step import plan_superseding, repair_of, repaired
from etl.decide.reconcile import (
    is_of_another_era,
    naming_table,
    reject_other_ledger,
    where_we_stand,
)
from etl.decide.reservations import reject_restart_of_reserved_partition
from etl.decide.table_changes import acknowledging, app_id_of, is_recorded, is_told, unacknowledged
from etl.decide.table_rules import KEY, describe_accepted, topics_accepted
from etl.errors import NeedsDecision, SettingsError
from etl.io.delta.log import hash_of_commit, open_log
from etl.io.delta.table import open_table, rust_path
from etl.io.zookeeper.ledger_records import read_named_table, write_mark, write_named_table
from etl.ledger.plan_document import with_id
from etl.model.partitions import (
    FORM_OF_PARTITION,
    BrokerPartition,
    MemberAssignment,
    parse_interval,
    parse_named,
)
from etl.model.plans import CommitResult, Loss, LossReason, Plan, RangeResult
from etl.model.snapshot import (
    Acknowledgement,
    FirstRun,
    Ledger,
    NamedTable,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
)
from etl.report.describe import (
    at,
    describe_continuation,
    describe_given_up,
    describe_left,
    describe_vanished,
)
from etl.report.plan_json import describe_losses, describe_plan
from etl.report.run_report import Report
from etl.report.run_state import Stopwatch
from etl.report.verify import described
from etl.run.ingest import finish_repair
from etl.run.live import LiveServices
from etl.run.services import ALONE, RunContext, Services, now_ms
from etl.run.shell import open_services, place_table
from etl.run.spark import ask
from etl.settings.choices import place_of
from etl.settings.load import settings_of_backfill
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Accepted:
    """The decision for one ledger."""

    acknowledgement: Acknowledgement
    found: tuple[RangeResult, ...]
    """What the table has of the newest plan, if rows were looked up."""


def accepted(
    services: LiveServices,
    ledger: Ledger,
    plan: Plan,
    table: Table | None,
    *,
    reason: str,
    at_ms: int,
) -> Accepted:
    """Decide without storing. Raises NeedsDecision if it is unknown whether rows are there, since
    they might be doubled.
    """
    found = () if is_told(ledger, table) else _looked_for(services, plan)
    path = services.settings.table
    return Accepted(
        acknowledging(
            ledger,
            plan,
            table,
            reason=reason,
            at_ms=at_ms,
            place=path.place,
            lacks_plan=not is_told(ledger, table) and not any(receipt.rows for receipt in found),
            commit=hash_of_commit(open_log(rust_path(path.path)), table.version) if table else None,
        ),
        found,
    )


def record_found(
    services: LiveServices, plan: Plan, table: Table | None, decision: Accepted
) -> None:
    """Record the plan as done if rows of it are there."""
    if table and decision.found and not decision.acknowledgement.lacks_plan:
        services.record(
            plan, CommitResult(plan.number, plan.id, table.version, table.id, decision.found)
        )


@dataclass(frozen=True, slots=True)
class AcceptedBeside:
    """The decisions for the backfills, by name."""

    said: dict[str, Acknowledgement]
    untold: dict[str, str]
    """Backfills without a decision, because it is unknown what the table has of them, and why."""

    @property
    def sentence(self) -> str:
        """Return a sentence about these, to append; empty without any."""
        return "".join(
            f"; of backfill {name} nothing is accepted: {why}; mend that, and say this again"
            for name, why in self.untold.items()
        )


def accepted_with_backfills(
    live: LiveServices, table: Table | None, *, reason: str, at_ms: int
) -> AcceptedBeside:
    """Decide the same for the backfills in that table; rows that are there are recorded."""
    decisions, unknown = dict[str, Acknowledgement](), dict[str, str]()
    for claim in live.claims.beside.read():
        own = LiveServices(
            settings_of_backfill(live.settings, claim.name), live.zookeeper, ALONE, live.run_id
        )
        ledger = own.ledger.read_ledger()
        plan, there = ledger.newest, own.read_table(ledger)
        if (
            table is None
            or there is None
            or plan is None
            or plan.table_id != there.id
            or is_of_another_era(ledger, there)
        ):
            continue
        # the version that the operator has looked at; of a newer one it says nothing
        try:
            one = accepted(
                own, ledger, plan, replace(there, version=table.version), reason=reason, at_ms=at_ms
            )
        except NeedsDecision as error:
            unknown[claim.name] = error.message
            continue
        record_found(own, plan, there, one)
        decisions[claim.name] = one.acknowledgement
    return AcceptedBeside(decisions, unknown)


def _looked_for(services: LiveServices, plan: Plan) -> tuple[RangeResult, ...]:
    counted = services.rows_of_today(plan)
    if counted.uncounted:
        message = f"Nobody can tell whether plan {plan.number} is in the table: {counted.uncounted}"
        raise NeedsDecision(
            message,
            path=services.settings.table.path,
            action="Check the table's columns and files: what is missing there",
        )
    return counted.receipts


@contextlib.contextmanager
def as_member(services: Services, settings: Settings) -> Iterator[MemberAssignment | None]:
    """Context manager: inside, the assignment is ours; None if commands are no members. Raises as
    `Member.join`.
    """
    member = services.member() if joins_for_commands(settings) else None
    if member is None:
        yield None
        return
    try:
        yield member.join()
    finally:
        member.leave()


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ruling:
    """An operator's decision, for output."""

    says: str
    document: dict[str, Any]


def store_decided(
    services: LiveServices,
    plan: Plan,
    state: PipelineState | None,
    ledger: Ledger,
    *,
    done: str = "",
) -> None:
    """Store what an operator decided, in the place of a plan that is stored and not in the table.

    Raises Owned where the group changed since it was decided: then it is not stored. `done`: see
    `reject_fenced_plan`.
    """
    reject_fenced_plan(
        services.supersede(plan, ledger)
        if isinstance(state, (Replay, Supersede))
        else services.store(plan),
        done,
    )


def describe_stored_plan(plan: Plan, reason: str) -> list[str]:
    """Describe the plan and the one it replaces."""
    replaced = (
        [f"it takes the place of {plan.supersedes}, which was not in the table"]
        if plan.supersedes
        else []
    )
    return [
        f"plan {plan.number} ({plan.id}) is stored, and the next run executes it: {reason}",
        *replaced,
    ]


def acknowledge(settings: Settings, version: str, reason: str) -> Ruling:
    """Accept the table as it is at `version` (`none`: that there is none), and continue from
    ZooKeeper's positions.

    Changes by others up to that version stop no run any more. If no ledger tells whether the newest
    plan is in that table, its rows are looked up: with some the plan counts as done, without any it
    is replaced. The same is decided for the newest plan of each backfill. Rows of topics that are
    planned for the first time and that others wrote count as another incarnation's. Raises
    SettingsError if the table is at another version by now, or the pipeline has no plan yet,
    LedgersDisagree for a table that another ledger of the same name wrote.
    """
    with open_services(settings, ALONE) as services, services.driving(new_run_id()):
        ledger = services.ledger.read_ledger()
        if ledger.newest is None:
            return _acknowledge_rows(services, version, reason)
        table, topics = services.read_table(ledger), tuple[str, ...]()
        if ledger.newest.rows_before:
            topics = topics_accepted(services.observe())
        with naming_table(settings):
            reject_other_ledger(ledger, table)
        _reject_another_version(version, table)
        done = tuple(found for found in unacknowledged(table, ledger.acknowledged) if not found.by)
        at_ms = now_ms()
        decision = accepted(services, ledger, ledger.newest, table, reason=reason, at_ms=at_ms)
        found, lacks_plan = decision.found, decision.acknowledgement.lacks_plan
        services.note_removals(done)
        record_found(services, ledger.newest, table, decision)
        of_backfills = accepted_with_backfills(services, table, reason=reason, at_ms=at_ms)
        acknowledgement = replace(
            decision.acknowledgement, beside=of_backfills.said, rows_of=topics
        )
        services.ledger.acknowledge(acknowledgement)
    message = (
        "that there is no table"
        if table is None
        else f"the table {table.id} at version {table.version}"
    )
    sentence = f"acknowledged {message}, after plan {acknowledgement.number}: {reason}"
    sentence += _given_up(ledger, ledger.newest, table, lacks_plan=lacks_plan)
    if found:
        rows = sum(receipt.rows or 0 for receipt in found)
        sentence += f"; {rows:,} rows of that plan are in it, " + (
            "so it counts as done" if rows else "so another one takes its place"
        )
    sentence += of_backfills.sentence + describe_accepted(topics)
    return Ruling(
        sentence,
        {
            "message": sentence,
            "table_id": acknowledgement.table_id,
            "table_version": acknowledgement.delta_version,
            "after_plan": acknowledgement.number,
            "reason": reason,
            "accepted": [described(found) for found in done],
        },
    )


def _acknowledge_rows(services: LiveServices, version: str, reason: str) -> Ruling:
    """Do the same before plan 1: rows of the conf's topics by others are another incarnation's.
    Raises SettingsError.
    """
    snapshot = services.observe()
    where_we_stand(snapshot, services.settings)
    table, topics = snapshot.table, topics_accepted(snapshot)
    if table is None or not topics:
        message = "This pipeline has made no plan yet, and the table holds no rows of its topics: there is nothing to acknowledge"
        raise SettingsError(message, action="Check with `etl run CONF --dry-run`")
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
    services.ledger.acknowledge(acknowledgement)
    sentence = f"acknowledged the table {table.id} at version {table.version}, before plan 1: {reason}{describe_accepted(topics)}"
    return Ruling(
        sentence,
        {
            "message": sentence,
            "table_id": table.id,
            "table_version": table.version,
            "after_plan": 0,
            "reason": reason,
            "accepted": [],
        },
    )


def _given_up(ledger: Ledger, plan: Plan, table: Table | None, *, lacks_plan: bool) -> str:
    """Describe what that table lacks and no plan loads any more; the newest plan is loaded if no
    commit of it is known.
    """
    in_table, is_done = (table.transaction_version or 0) if table else 0, is_recorded(ledger, plan)
    is_waiting = not is_done and (in_table, table.id if table else None) == (
        plan.table_transaction_version,
        plan.table_id,
    )
    if in_table >= plan.number or is_waiting:
        return ""
    if is_done or table and not lacks_plan:
        return "; what it lacks of the plans until now is given up, and loading goes on behind them"
    had_a_table = plan.table_id is not None and plan.number > 1
    earlier = (
        f"; what it lacks of the plans before plan {plan.number} is given up" if had_a_table else ""
    )
    return earlier + ("" if table else f"; another plan takes the place of plan {plan.number}")


def supersede(
    settings: Settings,
    number: int,
    reason: str,
    skips: tuple[str, ...],
    *,
    is_handed_over: bool = False,
) -> Ruling:
    """Replace plan `number`, which is stored and not in the table; the next run executes the new
    one.

    It is planned by the current conf; on Jafka, if it begins inside a message, from the group's
    current offset. `skips`, each `TOPIC:PARTITION:FROM-UNTIL`, are left out and recorded as lost. A
    member's plan that is not known to be committed is left to other members. `is_handed_over`: an
    operator checked that nobody read it, and it is executed. Raises SettingsError for a plan that
    is not the newest or a skip outside of it, NeedsDecision if the plan is in the table.
    """
    skipped = tuple(parse_skip(text) for text in skips)
    with open_services(settings, ALONE) as services, services.driving(new_run_id()):
        left = services.read_ledger()
        if left.newest and is_left_open(left):
            services.fence(left.newest)
        seen = services.observe(
            lambda log: [skip.until_offset for skip in skipped if skip.log == log]
        )
        snapshot = leave_to_owners(with_commit_settled(seen), settings)
        newest = snapshot.ledger.newest
        if newest is None or newest.number != number:
            stored = (
                f"the newest plan is {newest.number}"
                if newest
                else "this pipeline has made no plan yet"
            )
            raise SettingsError(
                f"Plan {number} cannot be superseded: {stored}",
                action="Check with `etl plans list CONF`",
            )
        _reject_finished(number, where_we_stand(snapshot, settings), snapshot.table)
        if newest.handed_over is False or is_handed_over:
            return _settled(
                services, newest, snapshot, reason, skips, is_handed_over=is_handed_over
            )
        old = put_right(newest, services.ledger.read_plan(number - 1), snapshot)
        instead = plan_superseding(
            Supersede(old, reason, skipped), snapshot, settings, now_ms=now_ms()
        )
        lost = _describe_lost_by(instead, newest)
        services.supersede(instead, snapshot.ledger)
    sentence = f"plan {number} ({newest.id}) was superseded by {instead.id}, which the next run executes: {reason}"
    not_read = describe_left(newest, instead)
    document = {
        "message": sentence,
        "plan": describe_plan(instead, None),
        "superseded": _ranges(newest),
        "lost": describe_losses(lost),
        "not_read": not_read,
    }
    return Ruling("\n".join([sentence, *describe_given_up(lost), *not_read]), document)


def _settled(
    services: LiveServices,
    plan: Plan,
    snapshot: Snapshot,
    reason: str,
    skips: tuple[str, ...],
    *,
    is_handed_over: bool,
) -> Ruling:
    """Apply an operator's knowledge of a commit in doubt. Raises SettingsError if there is nothing
    to settle or skip.
    """
    if skips:
        raise SettingsError(
            f"Plan {plan.number} is not known to be handed over, so nothing of it can be skipped",
            action="Leave --skip out",
        )
    if not is_handed_over:
        is_in_part = found_out(plan, snapshot.committed) is HandOverOutcome.IN_PART
        left = (
            uncommitted_partitions(plan, snapshot.committed)
            if is_in_part
            else plan.positions.keys()
        )
        instead = with_id(plan_without_uncommitted(plan, left, reason, now_ms=now_ms()))
        reject_fenced_plan(services.supersede(instead, snapshot.ledger))
        held = "what was not handed over" if is_in_part else "what it held"
        sentence = f"plan {plan.number} ({plan.id}) was superseded by {instead.id}: {held} is left to the group"
        return Ruling(
            f"{sentence}: {reason}",
            {
                "message": sentence,
                "plan": describe_plan(instead, None),
                "superseded": _ranges(plan),
            },
        )
    if found_out(plan, snapshot.committed) is not HandOverOutcome.UNTOLD:
        message = f"Whether plan {plan.number} was handed over is known"
        raise SettingsError(
            message,
            action="Run `etl run CONF`, which goes by it; leave --assume-offsets-committed out",
            key="--assume-offsets-committed",
        )
    marked = replace(plan, handed_over=True)
    write_mark(services.ledger, marked)
    sentence = f"plan {plan.number} ({plan.id}) counts as handed over, and the next run executes it: {reason}"
    return Ruling(
        sentence, {"message": sentence, "plan": describe_plan(marked, None), "superseded": []}
    )


def _reject_finished(number: int, state: PipelineState, table: Table | None) -> None:
    """Reject a plan that is in the table, or was in one that was given up. Raises NeedsDecision."""
    if isinstance(state, RebuildFromTable):
        message = f"The table holds plan {state.plan.number} ({state.plan.id}), which ZooKeeper does not have"
        raise NeedsDecision(message, action="Run `etl run CONF`, which takes it over")
    if not isinstance(state, (Replay, Supersede)):
        is_there = table is not None and (table.transaction_version or 0) >= number
        message = (
            "is in the table"
            if is_there
            else "was in a table that an operator gave up: the next plan goes on behind it"
        )
        raise NeedsDecision(
            f"Plan {number} {message}: there is nothing to supersede",
            action="Check with `etl run CONF --dry-run`",
        )


def accept_log(
    settings: Settings,
    names: tuple[str, ...],
    reason: str,
    *,
    at: int | None = None,
    is_same_log: bool = False,
) -> Ruling:
    """Continue with truncated or recreated partitions, each `TOPIC` or `TOPIC:PARTITION`; the next
    run executes it.

    `at`: truncation offset of one partition, if brokers cannot tell. `is_same_log`: only the
    topic's znode was recreated, or this partition's broker kept its log. Raises SettingsError for
    an unchanged partition, and if the options contradict what is known; NeedsDecision if a run must
    first restore the table's plan, or a backfill has still to load it.
    """
    wanted = Accepting(tuple(parse_named(name) for name in names), reason, at, is_same_log)
    run_id = new_run_id()
    with (
        open_services(settings, ALONE) as services,
        services.driving(run_id),
        as_member(services, settings) as share,
    ):
        snapshot = replace(services.observe(wanted.offsets_of), share=share)
        reject_active_members(snapshot, settings)
        state = where_we_stand(snapshot, settings)
        reject_unrecorded_commit(state, snapshot, settings)
        if isinstance(state, FirstRun):
            raise SettingsError(
                "This pipeline has made no plan yet: there is nothing to accept",
                action="Check with `etl run CONF --dry-run`",
            )
        if isinstance(state, RebuildFromTable):
            message = f"The table holds plan {state.plan.number}, which ZooKeeper does not have"
            raise NeedsDecision(
                message,
                action="Run `etl run CONF`, which takes it over and then stops here again; accept the log after that",
            )
        if isinstance(state, Supersede):
            state = Replay(state.plan)
        repair = repair_of(state, snapshot)
        finish_repair(
            services,
            repair,
            Report(run_id, settings.pipeline, settings.group.id, settings.table.path, now_ms()),
        )
        snapshot = repaired(snapshot, repair)
        plan = plan_reset(state, snapshot, settings, wanted, now_ms=now_ms())
        reject_partitions_of_other_members(_moved_logs(plan, state), snapshot, settings)
        reject_unknown_incarnations(state, _moved_logs(plan, state))
        plan = with_id(of_command(plan, snapshot, settings))
        old = state.last if isinstance(state, UpToDate) else state.plan
        reject_restart_of_reserved_partition(plan, old, unloaded_by_backfill(services.ledger))
        lost = _describe_lost_by(plan, old) if isinstance(state, Replay) else ()
        store_decided(services, plan, state, snapshot.ledger)
    sentences = [*describe_stored_plan(plan, reason), *describe_given_up(lost)]
    sentences += [
        describe_continuation(plan, old, log, is_stored=isinstance(state, Replay))
        for log in sorted(_moved_logs(plan, state))
    ]
    sentences += told_of(old, plan, snapshot)
    document = {
        "message": sentences,
        "plan": describe_plan(plan, None),
        "lost": describe_losses(lost),
    }
    return Ruling("\n".join([*sentences, *describe_vanished(plan.vanished)]), document)


def _describe_lost_by(plan: Plan, old: Plan) -> tuple[Loss, ...]:
    """Describe what is lost by this plan, which replaces `old`, before it is stored."""
    lost = tuple(loss for loss in plan.losses if loss not in old.losses)
    for sentence in describe_given_up(lost):
        _log.warning("%s", sentence)
    return lost


def _moved_logs(plan: Plan, state: UpToDate | Replay) -> list[BrokerPartition]:
    old = state.last if isinstance(state, UpToDate) else state.plan
    return [log for log, epoch in plan.log_epochs.items() if epoch != old.log_epochs.get(log, 0)]


def parse_skip(text: str) -> Loss:
    """`TOPIC:PARTITION:FROM-UNTIL`, until exclusive, to a loss. Raises SettingsError."""
    found = parse_interval(text)
    if found is None:
        action = f"Write it in the form TOPIC:PARTITION:FROM-UNTIL, FROM included and UNTIL not, e.g. clicks:3:100-101; {FORM_OF_PARTITION}"
        raise SettingsError(f"{text!r} names no offsets", key="--skip", action=action)
    return Loss(*found, LossReason.SKIPPED)


def _reject_another_version(version: str, table: Table | None) -> None:
    there = str(table.version) if table else "none"
    if version != there:
        is_at = f"is at version {there}" if table else "is not there (say `none`)"
        action = (
            "Check what changed since you looked (DESCRIBE HISTORY), then acknowledge that version"
        )
        raise SettingsError(f"The table {is_at}, not {version}", key="VERSION", action=action)


def _ranges(plan: Plan) -> list[dict[str, Any]]:
    document: list[dict[str, Any]] = describe_plan(plan, None)["ranges"]
    return document


def with_table(settings: Settings, run_context: RunContext = ALONE) -> Settings:
    """Return the settings with a named table's location, for reading: nothing is stored, and an
    unknown name is rejected.
    """
    return place_table(settings, run_context, name=f"{new_run_id()}-name").settings


def resolve(
    settings: Settings, run_context: RunContext = ALONE, *, is_made: bool = False
) -> Ruling:
    """Ask Spark for the table's location and store it for runs.

    Whether it is the same table is decided by its id at the next run. `is_made`: if the catalog has
    no such table, an empty one is created, as by a first run; rows of a dropped one stay gone.
    Raises SettingsError for a conf with a path, and as `run.spark.ask`.
    """
    if settings.table.name is None:
        raise SettingsError(
            "The conf names the table by its path, so there is no name to resolve",
            key=KEY,
            action="Check with `etl doctor CONF`",
        )
    run_id = new_run_id()
    with open_services(settings, run_context, name=run_id) as services, services.driving(run_id):
        found = ask(
            settings,
            run_context,
            Stopwatch(),
            name=f"{run_id}-name",
            making=(lambda at: None) if is_made else None,
        )
        before, ledger = read_named_table(services.ledger), services.ledger.read_ledger()
        write_named_table(services.ledger, found)
    sentence = told(before, found, ledger, _in_table(settings, found, ledger))
    return Ruling(
        sentence,
        {
            "message": sentence,
            "now": as_json(found),
            "before": as_json(before) if before else None,
            "table_of_newest_plan": ledger.newest.table_id if ledger.newest else None,
        },
    )


def _in_table(settings: Settings, found: NamedTable, ledger: Ledger) -> int | None:
    """The number of the plan that the table holds last, of this pipeline; its columns may be any."""
    table = open_table(found.path)
    if table is None or ledger.newest is None:
        return None
    return table.transaction_version(
        app_id_of(ledger.newest.cluster, settings.group.id, settings.pipeline)
    )


def told(before: NamedTable | None, found: NamedTable, ledger: Ledger, in_table: int | None) -> str:
    """Describe what was found, and what the next run does. `in_table`: number of the last plan in
    it.
    """
    sentence = f"the table {found.name} is at {found.path}"
    is_elsewhere = before is not None and place_of(before.path) != place_of(found.path)
    if before is not None and (is_elsewhere or before.name != found.name):
        sentence += f"; until now runs went by {before.name} at {before.path}, as it was at {at(before.at_ms)}"
    newest = ledger.newest
    if newest is not None and newest.table_id not in (None, found.table_id):
        was = f"than plan {newest.number} was made for ({newest.table_id})"
        return (
            f"{sentence}. It is another table ({found.table_id}) {was}: the next run stops, until "
            "`etl table accept-changes CONF VERSION --reason ...` accepts it, and what it lacks of the plans until now is given up by that"
        )
    if newest is None or not is_recorded(ledger, newest) or (in_table or 0) >= newest.number:
        return sentence
    back = (
        f"ALTER TABLE {found.name} SET LOCATION '{before.path}' and this command again lead back, "
        if before and is_elsewhere
        else ""
    )
    return (
        f"{sentence}. It lacks plan {newest.number}, which the table has had: the next run stops. Nothing is lost where the copy is found "
        f"that has it: {back}or it is copied here again"
    )


def as_json(found: NamedTable) -> dict[str, Any]:
    """Return it for a document."""
    return {
        "name": found.name,
        "path": found.path,
        "table_id": found.table_id,
        "resolved_at": str(at(found.at_ms)),
    }
