"""The other pipelines of a table as `verify` sees them: which rows are not ours to judge, and when
what others loaded stops a run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from etl.audit.audit import AuditedLog, Expected, LogFindings
from etl.decide.reconcile import compare
from etl.decide.table_changes import is_taken, name_of, plan_of, refuse_topics_of_others
from etl.errors import LedgersDisagree
from etl.io.delta.table_state import other_pipelines
from etl.model.plans import Plan
from etl.model.snapshot import FirstRun, ForeignCommit, Ledger, OtherPipeline, PipelineState, Table
from etl.run.live import LiveServices


def refuse_lost_ledger(world: LiveServices) -> None:
    """Raises LedgersDisagree for a table that this very pipeline has loaded, while no ledger tells
    of it.
    """
    us = f"/{world.settings.group}/{world.settings.pipeline}"
    for other in other_pipelines(world.settings.table.path, ""):
        if other.app_id.endswith(us):
            what = f"the table holds plan {other.number} of {name_of(other.app_id)}, ZooKeeper knows none"
            check = "that ZooKeeper was not emptied; `etl plan CONF`: the next run writes the ledger anew from the table"
            raise LedgersDisagree(what, table_version=other.delta_version, check=check)


def refuse_what_others_loaded(
    world: LiveServices, state: PipelineState, table: Table, ledger: Ledger
) -> None:
    """Stop where a run would, in its words, because another pipeline has loaded a topic that it
    would begin. Raises LedgersDisagree.

    The brokers are asked only where the table has another pipeline that may have: they say which
    topics there are.
    """
    if ledger.retired:
        return
    plan = None if isinstance(state, FirstRun) else plan_of(state)
    known = plan.topics if plan and table.transaction_version else frozenset[str]()
    others = other_pipelines(world.settings.table.path, world.app_id if plan else "")
    if any(_may_have_loaded(one, plan, known, world) for one in others):
        snapshot = world.observe()
        refuse_topics_of_others(
            compare(snapshot.ledger, snapshot.table, world.settings.table.place), snapshot
        )


def _may_have_loaded(
    other: OtherPipeline, plan: Plan | None, known: Collection[str], world: LiveServices
) -> bool:
    if other.topics is None:
        return not (known and plan and is_taken(other, plan))
    return any(world.settings.source.topics.admits(topic) for topic in other.topics - set(known))


def stops_a_run(found: ForeignCommit, ledger: Ledger) -> bool:
    """Whether what others load stops this pipeline: never once it is retired, for then it loads no
    more.
    """
    return not (found.by and ledger.retired)


def without_others(
    world: LiveServices,
    ledger: Ledger,
    table: Table,
    expected: Mapping[AuditedLog, Expected],
    found: tuple[LogFindings, ...],
) -> tuple[tuple[LogFindings, ...], int]:
    """The findings without what other pipelines loaded into this table, and how many rows that is.

    Those are topics that we never knew, and what lies beyond our own in topics that are another
    one's by now: since this pipeline was retired, since its conf leaves them out, or since another
    one has loaded them all the same, at which a run stops.
    """
    ours = {audited.log.topic for audited in expected} | (
        ledger.newest.topics if ledger.newest else frozenset()
    )
    is_over = bool(ledger.retired) or any(one.by for one in table.foreign)
    gone = {
        f.audited.log.topic
        for f in found
        if f.unexpected
        and (is_over or not world.settings.source.topics.admits(f.audited.log.topic))
    } & ours
    strange = {f.audited.log.topic for f in found} - ours
    others = other_pipelines(world.settings.table.path, world.app_id) if strange or gone else ()
    theirs = {
        topic
        for topic in strange | gone
        if any(one.topics is None or topic in one.topics for one in others)
    }
    kept = [f for f in found if f.audited.log.topic not in theirs - ours]
    judged = tuple(_without_unexpected(f) if f.audited.log.topic in theirs else f for f in kept)
    left_out = sum(f.found_rows for f in found if f.audited.log.topic in theirs - ours)
    return judged, left_out + sum(
        f.unexpected - one.unexpected for f, one in zip(kept, judged, strict=True)
    )


def _without_unexpected(found: LogFindings) -> LogFindings:
    """The same without unexpected rows, but for those that are too many inside of what we loaded."""
    too_many = sum(max(0, one.found_rows - one.expected_rows) for one in found.unequal)
    return replace(found, unexpected=too_many, unexpected_first=())
