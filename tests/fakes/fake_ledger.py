"""The fake ZooKeeper's side of a run: plans and records travel as bytes, offsets move by compare-and-set and all or nothing per request."""

from __future__ import annotations

from collections.abc import Sequence

from etl.errors import CommitUnknown, OffsetMoved, Owned
from etl.model.ledger import Ledger
from etl.model.logs import BrokerPartition
from etl.model.plans import NOTHING_COMMITTED, Applied, Committed, Plan
from etl.protocol.zookeeper import plan_documents
from tests.fakes.fake_table import receipt_of
from tests.fakes.outside import FakeCommit, Outside


def read_ledger(out: Outside) -> Ledger:
    newest = out.newest_plan()
    payload = out.applied.get(newest.number) if newest else None
    applied = plan_documents.parse_applied(payload, path="applied") if payload else None
    return Ledger(
        out.uid, newest, applied if applied and newest and applied.plan_id == newest.id else None,
        newest_version=out.plan_versions.get(newest.number, 0) if newest else None, acknowledged=out.acknowledged)


def store_uid(out: Outside, uid: str) -> None:
    if out.uid not in (None, uid):
        raise Owned("another driver named this pipeline")
    out.uid = uid


def store_plan(out: Outside, plan: Plan) -> None:
    store_uid(out, plan.uid)
    kept = out.plans.setdefault(plan.number, plan_documents.render_plan(plan))
    if plan_documents.parse_plan(kept, path="plans").id != plan.id:
        raise Owned("another driver stored this number")


def replace_plan(out: Outside, plan: Plan, version: int | None) -> None:
    if out.plan_versions.get(plan.number, 0) != version:
        raise Owned("another driver changed this plan")
    out.plans[plan.number] = plan_documents.render_plan(plan)
    out.plan_versions[plan.number] = version + 1


def is_to_adopt(out: Outside, commit: FakeCommit) -> bool:
    """Whether the ledger lacks this plan, or its record."""
    known = out.plans.get(commit.number) if commit.number in out.applied else None
    return known is None or plan_documents.parse_plan(known, path="plans").id != commit.plan_id


def adopt_commit(out: Outside, commit: FakeCommit, version: int) -> None:
    out.plans[commit.number] = plan_documents.render_plan(commit.plan)
    out.plan_versions[commit.number] = out.plan_versions.get(commit.number, 0) + 1
    receipts = tuple(receipt_of(r, commit) for r in commit.plan.ranges)
    out.applied[commit.number] = plan_documents.render_applied(
        Applied(commit.number, commit.plan_id, version, "table-1", receipts, commit.run_id))


def record(out: Outside, applied: Applied) -> None:
    kept = out.applied.get(applied.number)
    if kept is None or plan_documents.parse_applied(kept, path="applied").plan_id != applied.plan_id:
        out.applied[applied.number] = plan_documents.render_applied(applied)


def record_losses(out: Outside, plan: Plan) -> None:
    """The losses table takes each number once, and no smaller one after it."""
    if plan.number > max((number for number, _ in out.losses), default=0):
        out.losses.extend((plan.number, loss) for loss in plan.losses)


def commit_request(out: Outside, plan: Plan, logs: Sequence[BrokerPartition]) -> dict[BrokerPartition, Committed]:
    there = out.committed()
    now = {log: there.get(log, NOTHING_COMMITTED) for log in logs}
    after = {log: plan.moved(log) for log in logs}
    if all(now[log] == plan.seen[log] for log in logs):
        out.offsets.update({log: (plan.positions[log], after[log].version or 0) for log in logs})
        return after
    if now == after:
        return after
    if any(now[log] not in (after[log], plan.seen[log]) for log in logs):
        raise OffsetMoved("somebody else moved the offset during the run")
    raise CommitUnknown("the offsets did not reach ZooKeeper")
