"""The other pipelines of a table: what each has loaded there, and how it is called."""

from __future__ import annotations

from etl.errors import LedgersDisagree
from etl.model.plans import Plan
from etl.model.snapshot import (
    FirstRun,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
    is_beside,
    live_and_name,
)


def refuse_topics_of_others(state: PipelineState, snapshot: Snapshot) -> None:
    """Stop before a topic is read that another pipeline has loaded into this table, whatever group
    or cluster it is of.

    Topics that we know were asked for when they were new, unless the table has no commit of ours.
    Raises LedgersDisagree.
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
    """Whether its place was taken, or that of the pipeline that it is a backfill of."""
    return any(is_beside(other.app_id, one) for one in plan.taken)


def topics_loaded_by(other: OtherPipeline, table: Table) -> frozenset[str]:
    """What that pipeline loaded into the table; where nobody knows, every topic that we do not know
    and that the table has rows of.
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
    return f"{f'backfill {name} of ' if name else ''}pipeline {live} of group {group} on cluster {cluster}"


def take_over_command(app_id: str) -> str:
    return f"stop that pipeline for good, then: etl plans take-over CONF --from {names_in_command(app_id)} --reason ..."


def names_in_command(app_id: str) -> str:
    """Of a backfill those of the pipeline that it is beside: it has no place of its own."""
    return "/".join(live_and_name(app_id)[0].split("/")[2:]) or app_id


ROWS_DO_NOT_TELL = "rows tell where a message begins and not where it ends"
"""Why nobody can go on behind the rows of a table of Jafka, where its log has forgotten the plans.
"""
BEGIN_ANEW = "begin anew, with another group or pipeline and another table.path"


def _loaded_by(other: OtherPipeline, topic: str, *, is_physical: bool) -> LedgersDisagree:
    what = f"{name_of(other.app_id)} " + (
        "has loaded this topic into this table"
        if other.plan
        else "may have loaded this topic into this table: it holds rows of it, and its log no longer says who loaded them"
    )
    if is_physical and other.plan is None:
        check = (
            "that table.path is the table you mean: its rows would be there twice. Nobody can take the other's place, since "
            f"{ROWS_DO_NOT_TELL}: this pipeline needs another table"
        )
        return LedgersDisagree(what, topic=topic, table_version=other.delta_version, check=check)
    check = (
        "that table.path is the table you mean: its rows would be there twice. Where this pipeline takes the other's place, "
        f"{take_over_command(other.app_id)}; where both stay, or the clusters are two, this one needs another table"
    )
    return LedgersDisagree(what, topic=topic, table_version=other.delta_version, check=check)
