"""The fake ZooKeeper's side of a run: plans and records travel as bytes, offsets move by compare-and-set and all or nothing per request."""

from __future__ import annotations

from collections.abc import Sequence

from etl.decisions.coverage import ancestry, fold
from etl.decisions.run_keys import is_reached, kept_key, with_key
from etl.errors import CommitUnknown, LedgersDisagree, OffsetMoved, Owned
from etl.model.bounds import KeptKey
from etl.model.ledger import Coverage, Ledger
from etl.model.logs import BrokerPartition
from etl.model.plans import NOTHING_COMMITTED, Committed, Plan
from etl.model.receipts import Applied
from etl.protocol.zookeeper import ledger_documents, plan_documents
from tests.fakes.fake_table import receipt_of
from tests.fakes.outside import FakeCommit, Outside


def read_ledger(out: Outside) -> Ledger:
    newest = out.newest_plan()
    if newest is None:
        return Ledger(out.uid)
    known = _record_of(out, newest.number, newest.id) or _record_of(out, newest.number - 1, newest.previous)
    return Ledger(
        out.uid, newest, known if known and known.number == newest.number else None, known.delta_version if known else None,
        newest_version=out.plan_versions.get(newest.number, 0), acknowledged=out.acknowledged)


def _record_of(out: Outside, number: int, plan_id: str | None) -> Applied | None:
    """What came of that plan; of whichever has the number, where no id is given."""
    payload = out.applied.get(number)
    found = ledger_documents.parse_applied(payload, path="applied") if payload else None
    return found if found and plan_id in (None, found.plan_id) else None


def store_uid(out: Outside, uid: str) -> None:
    if out.uid not in (None, uid):
        raise Owned("another driver named this pipeline")
    out.uid = uid


def store_plan(out: Outside, plan: Plan) -> None:
    store_uid(out, plan.uid)
    kept = out.plans.setdefault(plan.number, plan_documents.render_plan(plan))
    if plan_documents.parse_plan(kept, path="plans").id != plan.id:
        raise Owned("another driver stored this number")


def find_key(out: Outside, key: str, newest: int) -> tuple[Plan | None, KeptKey | None]:
    """The newest plan under the key before that number, and what is kept of it; as it is asked of ZooKeeper, in this order."""
    plans = (plan_documents.parse_plan(out.plans[number], path="plans") for number in sorted(out.plans, reverse=True) if number < newest)
    return next((plan for plan in plans if plan.run_key == key), None), next((one for one in out.kept_keys if one.key == key), None)


def remember(out: Outside, key: KeptKey, behind: int) -> None:
    if behind + 1 in out.plans:
        raise Owned("another driver stored a plan meanwhile")
    out.kept_keys = with_key(out.kept_keys, key)


def prune(out: Outside) -> None:
    """Fold the oldest plan, in one transaction with its key."""
    plan, newest = plan_documents.parse_plan(out.plans.pop(min(out.plans)), path="plans"), out.newest_plan()
    if plan.run_key and is_reached(plan, newest.positions if newest else {}):
        out.kept_keys = with_key(out.kept_keys, kept_key(plan))


def replace_plan(out: Outside, plan: Plan, version: int | None) -> None:
    if version is None:
        raise LedgersDisagree(f"there is no plan {plan.number} to supersede")
    if plan.number in out.plans and out.plan_versions.get(plan.number, 0) == version:
        out.plans[plan.number] = plan_documents.render_plan(plan)
        out.plan_versions[plan.number] = version + 1
    elif not _is_stored(out, plan.number, plan.id):  # the answer may have been lost, and not the write
        raise Owned("another driver changed this plan")


def _is_stored(out: Outside, number: int, plan_id: str) -> bool:
    return number in out.plans and plan_documents.parse_plan(out.plans[number], path="plans").id == plan_id


def commits_to_adopt(out: Outside) -> list[tuple[int, FakeCommit]]:
    """Version and commit, oldest first, of each plan after the newest that the ledger has with its record."""
    commits = list(enumerate(out.table or (), 1))
    known = [place for place, (_, one) in enumerate(commits)
             if _is_stored(out, one.number, one.plan_id) and _record_of(out, one.number, one.plan_id)]
    return commits[max(known) + 1:] if known else commits


def adopt_commit(out: Outside, commit: FakeCommit, version: int) -> None:
    if commit.number in out.plans:
        out.plan_versions[commit.number] = out.plan_versions.get(commit.number, 0) + 1
    out.plans[commit.number] = plan_documents.render_plan(commit.plan)
    receipts = tuple(receipt_of(r, commit.rows) for r in commit.plan.ranges)
    out.applied[commit.number] = ledger_documents.render_applied(
        Applied(commit.number, commit.plan_id, version, out.table_id, receipts, commit.run_id))


def record(out: Outside, applied: Applied) -> None:
    kept = _record_of(out, applied.number, applied.plan_id)
    if kept is None or (kept.is_recounted and not applied.is_recounted):
        out.applied[applied.number] = ledger_documents.render_applied(applied)


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
        newest = max(out.plans, default=plan.number)
        if newest > plan.number:
            raise Owned(f"another driver went on to plan {newest}")
        raise OffsetMoved("somebody else moved the offset during the run")
    raise CommitUnknown("the offsets did not reach ZooKeeper")


def loaded(out: Outside) -> Coverage:
    """All that the recorded plans loaded."""
    found, plans = Coverage(), [plan_documents.parse_plan(payload, path="plans") for _, payload in sorted(out.plans.items())]
    recorded = [(plan, applied) for plan in plans if (applied := _record_of(out, plan.number, plan.id))]
    led = ancestry({plan.number: plan.table_transaction_version for plan, _ in recorded}, max(
        (plan.number for plan, _ in recorded), default=0))
    for plan, applied in recorded:
        found = fold(found, plan, applied, is_given_up=plan.number not in led.numbers)
    return found
