"""A plan and the offsets of logs, for people and programs."""

from __future__ import annotations

from typing import Any

from etl.model.plans import Applied, Plan, Receipt
from etl.report.words import at


def describe_plan(plan: Plan, applied: Applied | None) -> dict[str, Any]:
    """A plan for people and programs: its facts, and each range with its receipt where there is one; another plan's tells nothing."""
    applied = applied if applied and applied.is_of(plan) else None
    receipts: list[Receipt | None] = list(applied.receipts) if applied else [None] * len(plan.ranges)
    return {
        "number": plan.number, "id": plan.id, "uid": plan.uid, "kind": plan.kind.value, "created_at": at(plan.created_at_ms),
        "cluster": plan.cluster, "table_id": plan.table_id,
        "took_over": plan.took_over.app_id if plan.took_over else None, "previous": plan.previous, "supersedes": plan.supersedes,
        "reason": plan.reason, "shape": plan.shape, "run_id": applied.run_id if applied else None,
        "delta_version": applied.delta_version if applied else None, "uncounted": applied.uncounted if applied else None,
        "ranges": [
            {"topic": r.log.topic, "partition": r.log.partition, "from": r.from_offset, "until": r.until_offset,
             "leader": str(r.leader.broker) if r.leader else None, "leader_epoch": r.leader.epoch if r.leader else None,
             **(_describe_receipt(receipt) if receipt else {})}
            for r, receipt in zip(plan.ranges, receipts, strict=True)
        ],
        "positions": [
            {"topic": log.topic, "partition": log.partition, "position": position,
             "seen_offset": plan.seen[log].offset, "seen_version": plan.seen[log].version}
            for log, position in sorted(plan.positions.items())
        ],
        "pending_starts": [
            {"topic": log.topic, "partition": log.partition, "first_record_at": at(moment)}
            for log, moment in sorted(plan.pending_starts.items())],
        "losses": [
            {"topic": loss.log.topic, "partition": loss.log.partition, "from": loss.from_offset, "until": loss.until_offset,
             "why": loss.why.value, "log_epoch": loss.log_epoch} for loss in plan.losses],
        "log_epochs": [{"topic": log.topic, "partition": log.partition, "log_epoch": n} for log, n in sorted(plan.log_epochs.items())],
        "vanished": [
            {"topic": v.log.topic, "partition": v.log.partition, "from": v.from_offset, "until": v.until_offset, "log_epoch": v.log_epoch}
            for v in plan.vanished],
    }


def _describe_receipt(receipt: Receipt) -> dict[str, Any]:
    if receipt.rows is None:
        return {"rows": None, "fetched_bytes": None, "missing_offsets": None}
    return {
        "rows": receipt.rows, "fetched_bytes": receipt.fetched_bytes, "control_records": receipt.control_records,
        "aborted_records": receipt.aborted_records, "missing_offsets": receipt.missing_offsets,
        "leader_epochs": [list(one) for one in receipt.epochs],
        "gaps": [list(gap) for gap in receipt.gaps], "gaps_complete": receipt.gaps_complete, "behind_transform": receipt.behind_transform,
    }
