"""Did others change the table, and does a run stop for it?

Lives here: whether the ledger knows this state of the table (accepted by an operator, known to hold
the newest plan, or awaited); commits of other writers; other pipelines of the table, their names,
and what they loaded.

Not here: the state of the pipeline that follows (etl/decide/reconcile.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from etl.decide.recreated_or_truncated import name_put_back
from etl.errors import LedgersDisagree
from etl.model.partitions import topics_of
from etl.model.plans import (
    CommitResult,
    Plan,
    PlanKind,
    Predecessor,
    RowsBefore,
    TableExpectation,
)
from etl.model.snapshot import (
    Acknowledgement,
    FirstRun,
    ForeignCommit,
    Ledger,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.choices import OnRowsRemoved
from etl.settings.sections import Settings


def table_to_record(table: Table | None, rows_before: RowsBefore | None = None) -> TableExpectation:
    """Return the state of the table, or of a missing one, that a plan or a decision records.

    `rows_before`: of a plan, the rows that are older than the pipeline (`TableExpectation`).
    """
    if table is None:
        return TableExpectation(rows_before=rows_before)
    return TableExpectation(
        table.id, table.version, table.transaction_version or 0, rows_before=rows_before
    )


def is_accepted(ledger: Ledger, plan: Plan, table: Table | None, place: str) -> bool:
    """True if the operator's decision covers this plan and table, or the missing table at `place`.

    The table must hold as many of the pipeline's plans as at the decision. A later result of the
    plan, and an older copy of the table, each need another decision.
    """
    acknowledgement = ledger.acknowledged
    if acknowledgement is None or not _is_of(acknowledgement, table, place):
        return False
    if acknowledgement.number != plan.number:
        return False
    if acknowledgement.plan_id not in (None, plan.id):
        return False
    now = table_to_record(table)
    if now.transaction_version < (acknowledgement.transaction_version or 0):
        return False
    if (now.version or 0) < (acknowledgement.delta_version or 0):
        return False
    return not _is_after_acknowledgement(ledger.applied, acknowledgement)


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
) -> Acknowledgement:
    """Return the decision that this table, or a missing table at this place, is right.

    `lacks_plan`: no row of the newest `plan` is in it. `commit`: the hash of the version's commit.
    """
    accepted = table_to_record(table)
    return Acknowledgement(
        accepted.id,
        accepted.version,
        plan.number,
        reason,
        at_ms,
        lacks_plan,
        plan_id=plan.id,
        transaction_version=accepted.transaction_version,
        was_recorded=ledger.applied is not None,
        commit=commit,
        place=place,
    )


def accepted_version(acknowledgement: Acknowledgement | None, table: Table) -> int | None:
    """Return the table version that the decision covers; None if it is about another table.

    Version numbers repeat after a restored copy, so the hash of the commit is compared too.
    """
    if acknowledgement is None or acknowledgement.table_id != table.id:
        return None
    if acknowledgement.commit not in (None, table.commit_in_log):
        return None
    return acknowledgement.delta_version


def is_told(ledger: Ledger, table: Table | None) -> bool:
    """True if it is known without the table's rows whether the newest plan is in this table."""
    plan = ledger.newest
    if plan is None or table is None:
        return True
    in_table = table.transaction_version or 0
    if in_table == plan.number or is_recorded(ledger, plan):
        return True
    return in_table == plan.table.transaction_version and plan.table.id == table.id


def is_waiting_for_a_table(ledger: Ledger, table: Table) -> bool:
    """True if the newest plan was made without a table, has no known commit, and a table exists
    now.

    False for a plan that accepts other partitions, since its replacement would not record that.
    """
    plan = ledger.newest
    if plan is None or plan.table.id is not None or plan.table.transaction_version:
        return False
    if plan.kind not in (PlanKind.INGEST, PlanKind.START, PlanKind.BACKFILL):
        return False
    return table.transaction_version is None and not is_recorded(ledger, plan)


def is_recorded(ledger: Ledger, plan: Plan) -> bool:
    """True if the plan's result is recorded."""
    return ledger.applied is not None and ledger.applied.number == plan.number


def _is_of(acknowledgement: Acknowledgement, table: Table | None, place: str) -> bool:
    """True if the decision is about this table, or about a missing table at `place`."""
    if table is None:
        return acknowledgement.table_id is None and acknowledgement.place in (None, place)
    return accepted_version(acknowledgement, table) is not None


def _is_after_acknowledgement(
    applied: CommitResult | None, acknowledgement: Acknowledgement
) -> bool:
    """True if the plan reached a table, or this version of it, after the decision."""
    if applied is None or acknowledgement.was_recorded is not False:
        return False
    if applied.table_id != acknowledgement.table_id:
        return True
    return applied.delta_version > (acknowledgement.delta_version or 0)


def reject_topics_of_other_pipelines(
    state: PipelineState, snapshot: Snapshot, settings: Settings
) -> None:
    """Raise LedgersDisagree if another pipeline loaded one of the topics into this table.

    Its group and cluster do not matter. Known topics were checked when they were new, unless the
    table has no commit of this pipeline; another pipeline may have inherited them since.
    """
    table = snapshot.table
    if table is None:
        return
    plan: Plan | None = None
    if not isinstance(state, FirstRun):
        plan = plan_of(state)
    partitions = (*snapshot.readable, *snapshot.leaderless)
    topics = topics_of(partitions)
    unknown = topics
    if plan and table.transaction_version:
        unknown = topics - plan.known_topics
        own_app_id = app_id_of(plan.cluster.name, settings.group.id, settings.pipeline)
        for other in table.others:
            inherited = _topics_inherited_by(other, plan, own_app_id) & topics & plan.known_topics
            if inherited:
                raise _inherited_by(other, min(inherited))
    for other in table.others:
        shared = unknown & topics_loaded_by(other, table)
        if plan and is_taken(other, plan):
            shared -= plan.known_topics
        own_name = f"{settings.group.id}/{settings.pipeline}"
        if shared and plan is None and names_in_command(other.app_id) == own_name:
            raise _loaded_from_another_cluster(other, min(shared), snapshot.cluster.name)
        if shared:
            is_physical = any(partition.is_physical for partition in partitions)
            raise _loaded_by(other, min(shared), is_physical=is_physical)


def is_taken(other: OtherPipeline, plan: Plan) -> bool:
    """True if the other pipeline was inherited."""
    return other.app_id in plan.predecessor_numbers


def _topics_inherited_by(other: OtherPipeline, plan: Plan, own_app_id: str) -> frozenset[str]:
    """Return the topics that the other pipeline inherited from this one and has not given back.

    A pipeline that inherits a part of the topics leaves this one in service, and its loaded-until
    offsets of that part as they were.
    """
    if other.plan is None or own_app_id not in other.plan.predecessor_numbers:
        return frozenset()
    inherited = set()
    for partition, planned in other.plan.partitions.items():
        theirs = (planned.incarnation, planned.loaded_until)
        ours = (0, 0)
        if partition in plan.partitions:
            own = plan.partitions[partition]
            ours = (own.incarnation, own.loaded_until)
        is_further = theirs > ours
        is_equal = theirs == ours and not is_taken(other, plan)
        if is_further or is_equal:
            inherited.add(partition.topic)
    return frozenset(inherited)


def topics_loaded_by(other: OtherPipeline, table: Table) -> frozenset[str]:
    """Return the topics that the pipeline loaded into the table.

    If they are unknown: all topics with rows in the table of unknown origin.
    """
    if other.topics is None:
        return table.topics_with_rows
    return other.topics


def plan_of(state: Resume | Supersede | RebuildFromTable | StoredBackfill | UpToDate) -> Plan:
    """Return the newest plan of the pipeline's state."""
    if isinstance(state, UpToDate):
        return state.last
    return state.plan


APP_ID_PREFIX = "offset-range-etl/"
"""Prefix of the application id of each pipeline. Cluster, group and pipeline follow."""


def app_id_of(cluster: str, group: str, pipeline: str) -> str:
    """Return the application id of a pipeline in the table's transactions."""
    return f"{APP_ID_PREFIX}{cluster}/{group}/{pipeline}"


def name_of(app_id: str) -> str:
    """Return the description of a pipeline's application id for a message."""
    cluster = "unknown"
    group = "unknown"
    pipeline = app_id
    if app_id.count("/") >= 3:
        _, cluster, group, pipeline = app_id.split("/", 3)
    return f"pipeline {pipeline} of group {group} on cluster {cluster}"


def take_over_command(app_id: str) -> str:
    """Return the advice to stop a pipeline and to inherit its partitions."""
    return (
        f"stop that pipeline for good, then: etl pipelines inherit CONF --predecessor "
        f"{names_in_command(app_id)} --reason ..."
    )


def names_in_command(app_id: str) -> str:
    """Return the pipeline's name for a command."""
    parts = app_id.split("/")
    return "/".join(parts[2:]) or app_id


ROWS_DO_NOT_TELL = "rows tell where a message begins and not where it ends"
"""Why Jafka cannot continue behind rows whose plans the table's log has lost."""
BEGIN_ANEW = "begin anew, with another group or pipeline and another table.path"


def _loaded_by(other: OtherPipeline, topic: str, *, is_physical: bool) -> LedgersDisagree:
    """Return the error for a topic that another pipeline has loaded into this table."""
    message = _describe_load(other)
    check = "Check that table.path is the intended table: the rows would be in it twice"
    if is_physical and other.plan is None:
        action = (
            f"{check}. The other pipeline cannot be inherited, since {ROWS_DO_NOT_TELL}: this "
            "pipeline needs another table"
        )
    else:
        action = (
            f"{check}. If this pipeline replaces the other one, {take_over_command(other.app_id)}; "
            "if both continue, or the clusters differ, this pipeline needs another table"
        )
    return LedgersDisagree(message, topic=topic, table_version=other.delta_version, action=action)


def _inherited_by(other: OtherPipeline, topic: str) -> LedgersDisagree:
    """Return the error for a topic that another pipeline has inherited from this one."""
    return LedgersDisagree(
        f"{name_of(other.app_id)} has inherited this topic, and this pipeline reads it again",
        topic=topic,
        table_version=other.delta_version,
        action="Remove the topic from source.topics, or add it to source.exclude_topics: its rows "
        "would be in the table twice. If this pipeline is to load it again, "
        f"{take_over_command(other.app_id)}",
    )


def _loaded_from_another_cluster(other: OtherPipeline, topic: str, cluster: str) -> LedgersDisagree:
    """Return the error for a topic that the table has from a pipeline of the same name.

    Brokers get a new cluster id if their ZooKeeper is emptied, which loses a ledger in it, too.
    """
    message = f"{_describe_load(other)}. These brokers are of cluster {cluster}"
    former_cluster = other.app_id.split("/")[1]
    action = (
        "Check source.bootstrap_servers and zookeeper.connect. If the brokers are of another "
        f"cluster, set table.path to another table; {name_put_back(former_cluster)}"
    )
    return LedgersDisagree(message, topic=topic, table_version=other.delta_version, action=action)


def _describe_load(other: OtherPipeline) -> str:
    if other.plan:
        return f"{name_of(other.app_id)} has loaded this topic into this table"
    return (
        f"{name_of(other.app_id)} may have loaded this topic into this table: the table holds "
        "rows of the topic, and its log no longer has the plans that loaded them"
    )


IsOurs = Callable[[str], bool]
"""True if the pipeline reads a topic of this name."""


def removes_rows_of(
    plan: Plan | None, by: Predecessor, is_ours: IsOurs, inherited: Mapping[str, int]
) -> bool:
    """Return whether a commit of pipeline `by` that removed rows may have removed rows of ours.

    A replay removes the rows of its ranges and no others, so its plan decides. `plan`: that of the
    commit; None: the commit has no readable plan. `inherited`: application id and last inherited
    plan of each predecessor: these plans count as ours.
    """
    if by.number <= inherited.get(by.app_id, -1):
        return False
    if plan is None:
        return True
    return any(is_ours(topic) for topic in plan.read_topics)


REMOVED_ROWS = "removed rows"
REDEFINED = "redefined the table"
"""What a commit of another writer did (`ForeignCommit.why`)."""
DELETE = "DELETE"
RESTORE = "RESTORE"
"""Operations in Delta commits; Spark and delta-rs use the same names."""


def reject_changes_by_others(
    table: Table | None,
    acknowledged: Acknowledgement | None = None,
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL,
) -> None:
    """Raise LedgersDisagree if others removed rows or redefined the table since our last commit."""
    if table is None:
        return
    blocking = []
    for change in unacknowledged(table, acknowledged):
        if not is_let_pass(change, on_rows_removed):
            blocking.append(change)
    if blocking:
        raise error_of(blocking, table.version)


def error_of(changes: Sequence[ForeignCommit], newest_version: int | None) -> LedgersDisagree:
    """Return the error for changes by other writers, oldest first.

    Its advice names the newest version of the table for an operator to accept, unless the changes
    double rows.
    """
    first = changes[0]
    if first.by:
        message = f"Since our last commit {name_of(first.by.app_id)} {first.why} in this table"
        action = (
            "Check whether it replaces this pipeline: then run that one, and this one never again. "
            "If it has inherited some topics only, remove these from source.topics here. "
            f"To continue with this one instead, {take_over_command(first.by.app_id)}; `etl verify "
            "CONF` names doubled rows"
        )
        return LedgersDisagree(message, table_version=first.delta_version, action=action)
    writer = "another writer"
    taken_back = "the later commits, too"
    if first.unread:
        writer = f"{name_of(first.unread.app_id)}, whose plan cannot be read,"
        taken_back = "what that pipeline loaded"
    message = f"Since our last commit the {first.operation} of {writer} {first.why}"
    restorable = _describe_restore(changes, newest_version)
    if newest_version is None:
        newest_version = first.delta_version
    accept = f"etl table accept-changes CONF {newest_version} --reason ..."
    replay = "etl replay CONF -p TOPIC:PARTITION --from ... --until ... --reason ..."
    restores = [change for change in changes[1:] if change.operation == RESTORE]
    if restores:
        message += f", and a RESTORE came after it, at version {restores[-1].delta_version}"
        action = (
            "Check whether that RESTORE put the rows back (`etl verify CONF` counts them); "
            f"then accept the table as it is now: {accept}. Rows that are still missing are loaded "
            f"again by `{replay}`"
        )
    elif restorable:
        action = (
            f"Check its author and reason (DESCRIBE HISTORY); then {restorable}, or accept the "
            f"change, and rows that it removed stay removed: {accept}"
        )
    elif first.why == REMOVED_ROWS:
        check = "Check its author and reason (DESCRIBE HISTORY)"
        if first.unread:
            check = (
                "Upgrade offset-range-etl here to the version that wrote it: then the next run "
                "decides by the plan. If that version cannot read it either, check its reason "
                "(DESCRIBE HISTORY)"
            )
        action = (
            f"{check}, and which offsets are missing "
            f"(`etl verify CONF`). A RESTORE would take back {taken_back}: accept the "
            f"change ({accept}), and load missing rows again with `{replay}`, as far as Kafka "
            f"still has their records; version {first.delta_version - 1} of the table has the rows"
        )
    else:
        action = (
            "Check its author and reason (DESCRIBE HISTORY). A RESTORE would take back the later "
            "commits, too: give the table its columns back (ALTER TABLE), or accept it as it is: "
            f"{accept}"
        )
    return LedgersDisagree(message, table_version=first.delta_version, action=action)


def _describe_restore(changes: Sequence[ForeignCommit], newest_version: int | None) -> str:
    """Return the advice to RESTORE the table, and what that takes back; empty if it takes back a
    commit that is not one of the changes, or one of another pipeline.
    """
    first = changes[0].delta_version
    versions = [change.delta_version for change in changes]
    if newest_version is None or versions != list(range(first, newest_version + 1)):
        return ""
    if any(change.by or change.unread for change in changes):
        return ""
    operations = " and ".join(dict.fromkeys(change.operation for change in changes))
    taken_back = f"version {first}"
    if newest_version > first:
        taken_back = f"versions {first} to {newest_version}"
    return (
        f"RESTORE the table to version {first - 1}, which takes back {taken_back} ({operations}) "
        "and nothing else"
    )


def unacknowledged(
    table: Table | None, acknowledged: Acknowledgement | None
) -> tuple[ForeignCommit, ...]:
    """Return changes by others since our last commit and the last operator decision.

    No decision accepts that another pipeline loads the same topics.
    """
    if table is None:
        return ()
    accepted = accepted_version(acknowledged, table)
    changes = []
    for change in table.foreign:
        if change.by or accepted is None or change.delta_version > accepted:
            changes.append(change)
    return tuple(changes)


def is_let_pass(change: ForeignCommit, on_rows_removed: OnRowsRemoved) -> bool:
    """True if table.on_rows_removed permits the change without an operator's decision."""
    return on_rows_removed is OnRowsRemoved.RECORD and change.operation == DELETE
