"""Another plan in the place of one that is being executed: without what its logs turn out to lack."""

from __future__ import annotations

from etl.decide.replacement import plan_without
from etl.decide.replay import plan_that_gives_up
from etl.errors import DataLoss, MissingOffsets, Owned
from etl.ledger.plan_document import with_id
from etl.model.partitions import parse_stretches
from etl.model.plans import Loss, LossReason, Plan
from etl.report.run_report import Report
from etl.report.run_state import Outcome
from etl.run.world import World


def without_missing(world: World, plan: Plan, missing: MissingOffsets, report: Report) -> Plan:
    """Another plan in the place of this one. What is lost is kept in it before its first fetch, as
    all losses are.
    """
    losses = [
        Loss(*stretch, LossReason.MISSING) for stretch in parse_stretches(missing.where["missing"])
    ]
    return _instead(world, plan, with_id(plan_without(plan, losses, now_ms=world.now_ms())), report)


def given_up(world: World, plan: Plan, lost: DataLoss, report: Report) -> Plan:
    """A plan that reads nothing in the place of a replay whose records are gone, so that its rows
    stand.
    """
    return _instead(
        world, plan, with_id(plan_that_gives_up(plan, str(lost), now_ms=world.now_ms())), report
    )


def _instead(world: World, plan: Plan, instead: Plan, report: Report) -> Plan:
    ledger = world.read_ledger()
    if ledger.newest is None or ledger.newest.id != plan.id:
        raise Owned(
            f"another driver put another plan in the place of plan {plan.number}",
            check="who else runs this conf",
        )
    world.supersede(instead, ledger)
    report.add(
        Outcome.SUPERSEDED, f"plan {plan.number} ({plan.id}) was superseded: {instead.reason}"
    )
    report.planned(instead)
    return instead
