"""Writes down what became of a plan's hand-over, where that is a commit of its own: in Kafka,
behind the plan's being stored.
"""

from __future__ import annotations

from etl.edges.zookeeper.ledger import PlanLedger
from etl.errors import Owned
from etl.ledger.plan_document import parse_plan, render_plan
from etl.model.plans import Plan

_TRIES = 3


def write_mark(ledger: PlanLedger, plan: Plan) -> None:
    """Keep that this plan, which is stored, was handed over, or is void; nothing where it says so
    already.

    Raises Owned where another plan is stored in its place by now, or another driver wrote down
    something else.
    """
    path = ledger.paths.plan(plan.number)
    for _ in range(_TRIES):
        stored = ledger.documents.read(path)
        there = parse_plan(stored[0], path=path) if stored else None
        if stored is None or there is None or there.id != plan.id or not _goes(there, plan):
            break
        if _mark(there) == _mark(plan) or ledger.documents.replace(
            path, render_plan(plan), version=stored[1]
        ):
            return
    raise Owned(
        f"another driver changed plan {plan.number} at this moment",
        znode=path,
        check="nothing; the next run goes on from there",
    )


def _goes(there: Plan, plan: Plan) -> bool:
    """Of one that was handed over nobody says anything else; of one that was void that it was taken
    all the same.
    """
    return there.is_open or _mark(there) == _mark(plan) or bool(there.is_void and plan.handed_over)


def _mark(plan: Plan) -> tuple[bool | None, bool]:
    return plan.handed_over, plan.is_void
