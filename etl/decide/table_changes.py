"""Did others change the table, and does a run stop for it?

Lives here: whether the ledger knows this state of the table (accepted by an operator, known to hold
the newest plan, or awaited); commits of other writers; other pipelines of the table, their names,
and what they loaded.

Not here: the state of the pipeline that follows (etl/decide/reconcile.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from etl.errors import LedgersDisagree
from etl.model.plans import CommitResult, Plan, PlanKind
from etl.model.snapshot import (
    Acknowledgement,
    FirstRun,
    ForeignCommit,
    Ledger,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
    is_same_pipeline,
    live_and_name,
)
from etl.settings.choices import OnRowsRemoved


def is_accepted(ledger: Ledger, plan: Plan, table: Table | None, place: str) -> bool:
    """True if the operator's decision is about this plan and table, or a missing table at this
    place, which holds as much of ours as then. A later result of the plan, and an older copy of the
    table, need a decision of their own.
    """
    acknowledgement = ledger.acknowledged
    if acknowledgement is None or not _is_of(acknowledgement, table, place):
        return False
    if acknowledgement.number != plan.number or acknowledgement.plan_id not in (None, plan.id):
        return False
    in_table, version = (table.transaction_version or 0, table.version) if table else (0, 0)
    if in_table < (acknowledgement.transaction_version or 0) or version < (
        acknowledgement.delta_version or 0
    ):
        return False
    return not _is_after_acknowledgement(ledger.applied, acknowledgement)


def accepted_with_backfills(live: Ledger, name: str) -> Acknowledgement | None:
    """Return the operator's decision as it applies to that backfill. `live`: the pipeline's ledger.

    That the table is missing holds while the pipeline has not planned since, and creates none: a
    table that is absent later may only be unmounted, and a backfill begun in it must not take it
    for the earlier one.
    """
    acknowledged, newest = live.acknowledged, live.newest
    if acknowledged and acknowledged.table_id is None:
        if (
            newest is None
            or newest.number != acknowledged.number
            or acknowledged.plan_id not in (None, newest.id)
        ):
            return None
        if acknowledged.was_recorded is False and newest.table_id is None:
            return None
    return acknowledged.of_backfill(name) if acknowledged else None


def acknowledging(
    ledger: Ledger,
    plan: Plan,
    table: Table | None,
    *,
    reason: str,
    at_ms: int,
    lacks_plan: bool,
    commit: str | None,
    place: str,
    of_backfills: Mapping[str, Acknowledgement] = MappingProxyType({}),
) -> Acknowledgement:
    """The decision that this table, or none at this place, is right.

    `lacks_plan`: no row of the newest `plan` is in it. `commit`: the hash of the version's commit.
    """
    return Acknowledgement(
        table.id if table else None,
        table.version if table else None,
        plan.number,
        reason,
        at_ms,
        lacks_plan,
        plan_id=plan.id,
        transaction_version=(table.transaction_version or 0) if table else 0,
        was_recorded=ledger.applied is not None,
        commit=commit,
        place=place,
        beside=dict(of_backfills),
    )


def accepted_version(acknowledgement: Acknowledgement | None, table: Table) -> int | None:
    """Return the table version that the decision covers; None if it is about another table. Version
    numbers repeat after a restored copy, so the commit itself must be the one that was seen.
    """
    if (
        acknowledgement is None
        or acknowledgement.table_id != table.id
        or acknowledgement.commit not in (None, table.commit_in_log)
    ):
        return None
    return acknowledgement.delta_version


def is_told(ledger: Ledger, table: Table | None) -> bool:
    """True if the ledgers tell whether the newest plan is in this table; else only its rows can."""
    plan, in_table = ledger.newest, (table.transaction_version or 0) if table else 0
    if plan is None or table is None or in_table == plan.number or is_recorded(ledger, plan):
        return True
    return in_table == plan.table_transaction_version and plan.table_id == table.id


def is_waiting_for_a_table(ledger: Ledger, table: Table) -> bool:
    """True if the newest plan is stored, was made without a table, has no known commit, and a table
    exists now. A plan that accepts other partitions does not wait, since its replacement would not
    say so.
    """
    plan = ledger.newest
    if (
        plan is None
        or plan.table_id is not None
        or plan.table_transaction_version
        or plan.kind not in (PlanKind.INGEST, PlanKind.START)
    ):
        return False
    return table.transaction_version is None and not is_recorded(ledger, plan)


def is_recorded(ledger: Ledger, plan: Plan) -> bool:
    """True if the plan's result is recorded."""
    return ledger.applied is not None and ledger.applied.number == plan.number


def known_in_table(ledger: Ledger, table: Table) -> int:
    """The newest plan that has been in this very table, by a ledger that was read before it; 0 for
    none.

    Of an older copy of the table that was put back it may be missing.
    """
    plan, applied = ledger.newest, ledger.applied
    if plan is None:
        return 0
    is_done = is_recorded(ledger, plan)
    went_to = applied.table_id if applied and is_done else plan.table_id
    if went_to != table.id:
        return 0
    return plan.number if is_done else plan.table_transaction_version or 0


def _is_of(acknowledgement: Acknowledgement, table: Table | None, place: str) -> bool:
    if table is None:
        return acknowledgement.table_id is None and acknowledgement.place in (None, place)
    return accepted_version(acknowledgement, table) is not None


def _is_after_acknowledgement(
    applied: CommitResult | None, acknowledgement: Acknowledgement
) -> bool:
    """True if the plan reached a table, or this version of it, after the decision."""
    if applied is None or acknowledgement.was_recorded is not False:
        return False
    return applied.table_id != acknowledgement.table_id or applied.delta_version > (
        acknowledgement.delta_version or 0
    )


def reject_topics_of_other_pipelines(state: PipelineState, snapshot: Snapshot) -> None:
    """Stop before reading a topic that another pipeline loaded into this table, of whatever group
    or cluster. Known topics were checked when they were new, unless the table has no commit of
    ours. Raises LedgersDisagree.
    """
    table, plan = snapshot.table, None if isinstance(state, FirstRun) else plan_of(state)
    is_known = bool(plan and table and table.transaction_version)
    known = plan.topics if plan and is_known else frozenset()
    unknown = {log.topic for log in (*snapshot.extents, *snapshot.leaderless)} - known
    for other in table.others if table else ():
        taken = plan.topics if plan and is_taken(other, plan) else frozenset[str]()
        shared = (unknown & (topics_loaded_by(other, table) if table else frozenset())) - taken
        if shared:
            raise _loaded_by(
                other,
                min(shared),
                is_physical=any(
                    log.is_physical for log in (*snapshot.extents, *snapshot.leaderless)
                ),
            )


def is_taken(other: OtherPipeline, plan: Plan) -> bool:
    """True if it was inherited, or is a backfill of an inherited pipeline."""
    return any(is_same_pipeline(other.app_id, one) for one in plan.taken)


def topics_loaded_by(other: OtherPipeline, table: Table) -> frozenset[str]:
    """Return the topics that the pipeline loaded into the table; if unknown, each unknown topic
    with rows there.
    """
    return table.topics_with_rows if other.topics is None else other.topics


def plan_of(state: Replay | Supersede | RebuildFromTable | UpToDate) -> Plan:
    """The newest plan, by the pipeline's state."""
    return state.last if isinstance(state, UpToDate) else state.plan


def app_id_of(cluster: str, group: str, pipeline: str) -> str:
    """The table's application id of a pipeline."""
    return f"offset-range-etl/{cluster}/{group}/{pipeline}"


def name_of(app_id: str) -> str:
    """A pipeline's application id for a person."""
    _, cluster, group, pipeline = (
        app_id.split("/", 3) if app_id.count("/") >= 3 else ("", "unknown", "unknown", app_id)
    )
    live, name = live_and_name(pipeline)
    return (
        f"{f'backfill {name} of ' if name else ''}pipeline {live} of group {group} on cluster "
        f"{cluster}"
    )


def take_over_command(app_id: str) -> str:
    return (
        f"stop that pipeline for good, then: etl pipelines inherit CONF --predecessor "
        f"{names_in_command(app_id)} --reason ..."
    )


def names_in_command(app_id: str) -> str:
    """Return the pipeline's name for a command; a backfill's is its live pipeline's."""
    return "/".join(live_and_name(app_id)[0].split("/")[2:]) or app_id


ROWS_DO_NOT_TELL = "rows tell where a message begins and not where it ends"
"""Why Jafka cannot continue behind rows whose plans the table's log has lost."""
BEGIN_ANEW = "begin anew, with another group or pipeline and another table.path"


def _loaded_by(other: OtherPipeline, topic: str, *, is_physical: bool) -> LedgersDisagree:
    message = f"{name_of(other.app_id)} " + (
        "has loaded this topic into this table"
        if other.plan
        else "may have loaded this topic into this table: it holds rows of it, and its log no "
        "longer says who loaded them"
    )
    if is_physical and other.plan is None:
        action = (
            "Check that table.path is the table you mean: its rows would be there twice. Nobody "
            "can take the other's place, since "
            f"{ROWS_DO_NOT_TELL}: this pipeline needs another table"
        )
        return LedgersDisagree(
            message, topic=topic, table_version=other.delta_version, action=action
        )
    action = (
        "Check that table.path is the table you mean: its rows would be there twice. Where this "
        "pipeline takes the other's place, "
        f"{take_over_command(other.app_id)}; where both stay, or the clusters are two, this one "
        f"needs another table"
    )
    return LedgersDisagree(message, topic=topic, table_version=other.delta_version, action=action)


DELETE, RESTORE = "DELETE", "RESTORE"
"""Delta's names for them in a commit, Spark's and delta-rs's alike."""


def reject_changes_by_others(
    table: Table | None,
    acknowledged: Acknowledgement | None = None,
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL,
) -> None:
    """Stop if others removed rows or redefined the table since our last commit. Raises
    LedgersDisagree.
    """
    stopping = [
        found
        for found in unacknowledged(table, acknowledged)
        if not is_let_pass(found, on_rows_removed)
    ]
    if stopping:
        raise error_of(stopping, table.version if table else None)


def error_of(done: Sequence[ForeignCommit], newest_version: int | None) -> LedgersDisagree:
    """Return the error for changes by others, oldest first, whose newest version an operator may
    accept, unless rows are doubled.
    """
    found, later = done[0], [one for one in done[1:] if one.operation == RESTORE]
    if found.by:
        message = f"Since our last commit {name_of(found.by.app_id)} {found.why} in this table"
        action = (
            "Check whether it took the place of this pipeline: then run that one, and this one "
            "never again. To continue with this one instead, "
            f"{take_over_command(found.by.app_id)}; `etl verify CONF` names rows that are there "
            f"twice"
        )
        return LedgersDisagree(message, table_version=found.delta_version, action=action)
    message = f"Since our last commit somebody else's {found.operation} {found.why}"
    accept = (
        f"etl table accept-changes CONF "
        f"{found.delta_version if newest_version is None else newest_version} --reason ..."
    )
    action = (
        "Check who did it and why (DESCRIBE HISTORY); then RESTORE the table to the version "
        "before it, or accept it, and what is gone stays "
        f"gone: {accept}"
    )
    if later:
        message += f", and a RESTORE came after it, at version {later[-1].delta_version}"
        action = (
            f"Check whether that RESTORE put the rows back (`etl verify CONF` counts them); "
            f"then accept the table as it is now: {accept}"
        )
    return LedgersDisagree(message, table_version=found.delta_version, action=action)


def unacknowledged(
    table: Table | None, acknowledged: Acknowledgement | None
) -> tuple[ForeignCommit, ...]:
    """Return changes by others since our last commit and the last operator decision. No decision
    accepts that another pipeline loads the same topics.
    """
    if not table:
        return ()
    accepted = accepted_version(acknowledged, table)
    return tuple(
        found
        for found in table.foreign
        if found.by or accepted is None or found.delta_version > accepted
    )


def is_let_pass(found: ForeignCommit, on_rows_removed: OnRowsRemoved) -> bool:
    """True if policy permits the change without an operator's decision."""
    return on_rows_removed is OnRowsRemoved.RECORD and found.operation == DELETE
