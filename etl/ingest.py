"""The story of a run: observe, reconcile, plan, fetch, append, commit. Each verb hands its value to the right.

A failure between two verbs loses nothing: what is stored by then (the plan, the Delta commit, some offsets) is what the
next run's `reconcile` finds, and it goes on from there. Decisions are in `reconcile` and `plan`; `World` is everything
that can hang.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from etl.model import Applied, BrokerPartition, Committed, Onward, Plan, Replay, Snapshot, Table
from etl.plan import plan_next, refuse_another_shape, refuse_owned, refuse_recreated_topics, refuse_shared_topics
from etl.protocol.plan_documents import with_id
from etl.reconcile import reconcile, refuse_what_others_did
from etl.report import Outcome, Report, Verb
from etl.settings import Settings


class World(Protocol):
    """Everything outside, as a run sees it."""

    def observe(self) -> Snapshot:
        """Read all that the run will need to know."""

    def new_uid(self) -> str:
        """A random id for a pipeline that has none."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def store(self, plan: Plan) -> None:
        """Keep the plan before its first fetch, put-if-absent."""

    def fetch(self, plan: Plan, snapshot: Snapshot) -> Any:
        """The rows of the plan's ranges, lazily."""

    def append(self, plan: Plan, rows: Any) -> tuple[Applied | None, Table | None]:
        """Append as plan N and read the table again; no Applied: it holds another plan under that number."""

    def record(self, applied: Applied) -> None:
        """Keep what came of the plan."""

    def recount(self, plan: Plan) -> Applied | None:
        """What came of a plan in the table whose record a crash prevented; None when the table's log forgot its commit."""

    def commit(self, plan: Plan, logs: Collection[BrokerPartition] | None = None) -> Mapping[BrokerPartition, Committed]:
        """Move the offsets to the plan's positions by compare-and-set; those of `logs` only, where given."""

    def tidy(self) -> None:
        """Fold old plans into coverage."""


def ingest(world: World, settings: Settings, report: Report) -> None:
    """One run: at most one plan, its rows in the table once, its offsets moved.

    Raises any EtlError. What was done until then stands, and `report` tells it.
    """
    with report.timed(Verb.OBSERVE):
        snapshot = world.observe()
        report.saw(snapshot)
    with report.timed(Verb.RECONCILE):
        refuse_owned(snapshot)
        refuse_shared_topics(snapshot)
        standing = reconcile(snapshot.ledger, snapshot.table, snapshot.committed, settings.source.on_moved)
    if isinstance(standing, Replay):
        plan = standing.plan
        refuse_another_shape(plan, settings)
        refuse_recreated_topics(plan, snapshot)
        report.add(Outcome.REPLAYED, f"plan {plan.number} was stored and not in the table: it is executed again, word for word")
    else:
        if isinstance(standing, Onward):
            with report.timed(Verb.COMMIT):
                snapshot = _repair(world, snapshot, standing, report)
        with report.timed(Verb.PLAN):
            new = plan_next(snapshot, standing, settings, uid=snapshot.ledger.uid or world.new_uid(), now_ms=world.now_ms())
            if new is None:
                report.add(Outcome.NOTHING_NEW, "nothing new to read")
                return
            plan = with_id(new)
            world.store(plan)
    report.planned(plan)
    _execute(world, snapshot, plan, report)


def _execute(world: World, snapshot: Snapshot, plan: Plan, report: Report) -> None:
    with report.timed(Verb.FETCH):
        rows = world.fetch(plan, snapshot)
    with report.timed(Verb.APPEND):
        applied, table = world.append(plan, rows)
        refuse_what_others_did(table)
        if applied is None:
            report.add(Outcome.APPLIED_BY_ANOTHER, f"the table holds another plan {plan.number}, appended by another run meanwhile")
            return
        report.applied(applied)
    with report.timed(Verb.COMMIT):
        world.record(applied)
        world.commit(plan)
        report.committed(plan)
        world.tidy()


def _repair(world: World, snapshot: Snapshot, standing: Onward, report: Report) -> Snapshot:
    """Finish what the last run left: its record, and the offsets it did not move."""
    if snapshot.ledger.applied is None:
        recounted = world.recount(standing.last)
        if recounted:
            world.record(recounted)
            sentence = f"the record of plan {standing.last.number} was missing: its rows were counted from the table's files"
            report.add(Outcome.REPAIRED, sentence)
    for log, offset in sorted(standing.followed.items()):
        report.add(Outcome.FOLLOWED, f"{log.topic} {log.partition}: somebody else moved the offset to {offset}, followed")
    if not standing.uncommitted:
        return snapshot
    moved = world.commit(standing.last, standing.uncommitted)
    report.add(Outcome.REPAIRED, f"{len(moved)} offsets of plan {standing.last.number} were not committed: they are now")
    return replace(snapshot, committed={**snapshot.committed, **moved})
