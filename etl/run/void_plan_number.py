"""How is the number of a stored plan closed, so that a suspended driver cannot append under it?

A pipeline that is retired or inherited may have a plan that is stored and not in the table. A
driver that is suspended past its session with that plan in memory appends it when it resumes: only
the table decides, and another pipeline may have loaded the same offsets meanwhile. So a plan that
reads nothing is stored in its place and committed to the table. The driver finds its number in use,
as after any other replaced plan (docs/adr/0012-one-pipeline-for-a-topic-of-a-table.md).

Not here: who may be retired or inherited (`etl.commands.pipelines`,
`etl.commands.inherit_pipeline`).
"""

from __future__ import annotations

from etl.decide.plan_replacement import closing_plan_of, needs_closing, next_closing_plan
from etl.decide.table_changes import app_id_of
from etl.errors import Owned
from etl.io.delta.append import Destination, Load, Takes, append
from etl.io.delta.loaded_plans import Result, read_table
from etl.io.delta.table_shape import id_of, open_table, spark_path
from etl.ledger.plan_document import parse_plan, with_id
from etl.model.plans import Plan
from etl.model.snapshot import OtherPipeline
from etl.run.live_services import LiveServices
from etl.run.read_rows import writer_of

_TRIES = 3


def close_stored_plan(services: LiveServices, reason: str) -> Plan | None:
    """Close the number of the pipeline's stored plan; the caller holds the driver lock. Returns the
    plan that has the number then.

    Returns None if there is nothing to close: each stored plan is in the table, the newest one was
    made for another table, or the suspended driver appended it first. Each step can be repeated.
    Raises TableUnreachable, and Owned while another driver commits.
    """
    settings = services.settings
    path = settings.table.path
    for _ in range(_TRIES):
        ledger = services.read_ledger()
        opened = open_table(path)
        stored = ledger.newest
        if stored is None or opened is None or stored.table.id != id_of(opened):
            return None
        app_id = app_id_of(stored.cluster.name, settings.group.id, settings.pipeline)
        in_table = opened.transaction_version(app_id) or 0
        if in_table == stored.number and ledger.applied is None:
            _adopt_plan_of_table(services, stored, app_id)
        if in_table >= stored.number or not needs_closing(stored):
            return None
        services.read_table(ledger)  # from here on the services use the cluster's name in that plan
        plan = with_id(closing_plan_of(stored, reason, now_ms=services.now_ms()))
        if plan.id != stored.id:
            services.ledger.supersede_plan(plan, ledger.newest_version or 0)
        if _commit(services, plan, app_id) is Result.APPLIED:
            services.record(plan, services.recount(plan))
            return plan
    raise Owned(
        "A driver of that pipeline commits to the table at the same time",
        action="Stop it, then run this command again",
    )


def close_next_number(services: LiveServices, other: OtherPipeline, reason: str) -> None:
    """Close the next number of a pipeline with its ledger in another ZooKeeper: its stored plan is
    unknown here.

    A pipeline stores plan N + 1 only after plan N, so its next number is the one to close. If the
    table's log no longer holds its newest plan, nothing is committed. Raises TableUnreachable.
    """
    opened = open_table(services.settings.table.path)
    if other.plan is None or opened is None:
        return
    plan = with_id(
        next_closing_plan(
            other.plan,
            reason,
            table_id=id_of(opened),
            table_version=opened.version(),
            number=other.number,
            now_ms=services.now_ms(),
        )
    )
    # If the driver of that pipeline commits first, the caller reads the table again.
    _commit(services, plan, other.app_id)


def _commit(services: LiveServices, plan: Plan, app_id: str) -> Result:
    path = services.settings.table.path
    writer = writer_of(plan, services.settings).writer
    load = Load(writer)
    if writer.takes is not Takes.NOTHING:
        load = Load(writer, services.spark().read.format("delta").load(spark_path(path)).limit(0))
    to = Destination(
        path, app_id, partition_by=services.settings.table.partition_by, run_id=services.run_id
    )
    return append(load, plan, to).result


def _adopt_plan_of_table(services: LiveServices, stored: Plan, app_id: str) -> None:
    """Write the table's plan into the ledger if it differs from the ledger's plan of that
    number.
    """
    table = read_table(services.settings.table.path, app_id, known=None)
    metadata = table.metadata if table else None
    if metadata is None or metadata.document is None or metadata.plan_id == stored.id:
        return
    services.read_table(services.read_ledger())
    services.adopt(
        parse_plan(metadata.document, path=f"commit {metadata.delta_version} of the table")
    )
