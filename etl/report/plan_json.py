"""How are plans and snapshots written as JSON, and read back?

A plan for people and programs; and what a run decided from, as JSON that is read back to the
same values: a test in a report.

What is written to be read back names no broker's address and none of ZooKeeper's, and of the
settings those that decide, no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from etl.model.partitions import BrokerPartition
from etl.model.plans import CommitResult, Loss, Plan, RangeResult, Request, RowsBefore
from etl.model.snapshot import Snapshot, live_and_name
from etl.report.asked import describe_asked
from etl.report.value_json import read_value, write_value
from etl.report.words import at
from etl.settings.sections import Settings

_DECIDING: dict[str, Any] = {
    "version": True,
    "pipeline": True,
    "cluster": True,
    "group": True,
    "limits": True,
    "ownership": True,
    "offsets": True,
    "transform": True,
    "arrow_transform": True,
    "source": {
        "dialect",
        "topics",
        "start",
        "start_new_topics",
        "on_data_loss",
        "on_moved",
        "on_no_leader",
        "isolation",
        "expiry_warning_s",
        "compacted_topics",
    },
    "table": {"partition_by", "on_rows_removed"},
}
_AS_IN_LEDGER = "the newest plan of the ledger"


def write_plan(plan: Plan) -> dict[str, Any]:
    """A plan as JSON: as it is stored, without the brokers' addresses."""
    return write_value(plan)  # type: ignore[no-any-return]


def read_plan(found: dict[str, Any]) -> Plan:
    """The plan that `write_plan` wrote; its id is not checked, so that a test may change something
    in it.
    """
    return read_value(Plan, found)


def write_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """What a run saw as JSON; the table's plan is not said again where the ledger has it."""
    newest, table = snapshot.ledger.newest, snapshot.table
    metadata = table.metadata if table else None
    is_known = bool(
        newest and metadata and metadata.document is not None and metadata.plan_id == newest.id
    )
    if table and metadata:  # what reading it came to decides nothing
        kept = replace(metadata, document=None if is_known else metadata.document, receipts=None)
        snapshot = replace(snapshot, table=replace(table, metadata=kept))
    found: dict[str, Any] = write_value(snapshot)
    if is_known:
        found["table"]["metadata"]["document"] = _AS_IN_LEDGER
    return found


def read_snapshot(found: dict[str, Any]) -> Snapshot:
    """The snapshot that `write_snapshot` wrote."""
    table = found["table"]
    if table and table.get("metadata", {}).get("document") == _AS_IN_LEDGER:
        metadata = {**table["metadata"], "document": found["ledger"]["newest"]}
        found = {**found, "table": {**table, "metadata": metadata}}
    return read_value(Snapshot, found)


def write_settings(settings: Settings) -> dict[str, Any]:
    """The settings that decide, as JSON; the table's path in full, so that it means the same place
    elsewhere.
    """
    # pydantic warns of `source.start`, of which it cannot tell what our own validator makes
    found = settings.model_dump(mode="json", include=_DECIDING, warnings=False)
    joined = {"membership": settings.membership.value} if settings.membership else {}
    return {
        **found,
        "ownership": {**found["ownership"], **joined},
        "table": {**found["table"], "path": settings.table.place},
    }


def read_settings(found: dict[str, Any]) -> Settings:
    """Settings that decide as those did which `write_settings` wrote. They lead nowhere."""
    live = live_and_name(found["pipeline"])[0]  # no conf has a backfill's name
    conf = Settings.model_validate(
        {**found, "pipeline": live, "zookeeper": {"connect": "left-out:2181"}}
    )
    return conf.model_copy(update={"pipeline": found["pipeline"]})


def describe_plan(plan: Plan, applied: CommitResult | None) -> dict[str, Any]:
    """A plan for people and programs: its facts, and each range with its receipt where there is
    one; another plan's tells nothing.
    """
    applied = applied if applied and applied.is_of(plan) else None
    receipts: list[RangeResult | None] = (
        list(applied.receipts) if applied else [None] * len(plan.ranges)
    )
    return {
        "number": plan.number,
        "id": plan.id,
        "uid": plan.uid,
        "kind": plan.kind.value,
        "created_at": at(plan.created_at_ms),
        **describe_asked(Request(plan.run_key, plan.bounds)),
        "open_logs": plan.bounds.open_logs,
        "left_of_run_key": [
            {**log.place, "until": until} for log, until in sorted(plan.key_ends.items())
        ],
        "cluster": plan.cluster,
        "cluster_id": plan.cluster_id,
        "table_id": plan.table_id,
        "took_over": plan.took_over.app_id if plan.took_over else None,
        "previous": plan.previous,
        "supersedes": plan.supersedes,
        "reason": plan.reason,
        "shape": plan.shape,
        "time_zone": plan.time_zone,
        "run_id": applied.run_id if applied else None,
        "delta_version": applied.delta_version if applied else None,
        "uncounted": applied.uncounted if applied else None,
        "ranges": [
            {
                **r.log.place,
                "from": r.from_offset,
                "until": r.until_offset,
                "leader": str(r.leader.broker) if r.leader else None,
                "leader_epoch": r.leader.epoch if r.leader else None,
                **(_describe_receipt(receipt) if receipt else {}),
            }
            for r, receipt in zip(plan.ranges, receipts, strict=True)
        ],
        "positions": [
            {
                **log.place,
                "position": position,
                "seen_offset": plan.seen[log].offset,
                "seen_version": plan.seen[log].version,
            }
            for log, position in sorted(plan.positions.items())
        ],
        "pending_starts": [
            {**log.place, "first_record_at": at(moment), **_pending_offset(plan, log)}
            for log, moment in sorted(plan.pending_starts.items())
        ],
        "losses": describe_losses(plan.losses),
        "log_epochs": [{**log.place, "log_epoch": n} for log, n in sorted(plan.log_epochs.items())],
        "undecided": [
            {**log.place, "topic_id": topic_id}
            for log, topic_id in sorted(plan.log_topic_ids.items())
        ],
        "vanished": [
            {
                **v.log.place,
                "from": v.from_offset,
                "until": v.until_offset,
                "log_epoch": v.log_epoch,
            }
            for v in plan.vanished
        ],
        **(_describe_rows_before(plan.rows_before) if plan.rows_before else {}),
        **(_describe_share(plan) if plan.share else {}),
    }


def _pending_offset(plan: Plan, log: BrokerPartition) -> dict[str, Any]:
    return {"first_offset": plan.pending_offsets[log]} if log in plan.pending_offsets else {}


def describe_losses(losses: Iterable[Loss]) -> list[dict[str, Any]]:
    """The losses of a plan, or of a command, for programs."""
    return [
        {
            **loss.log.place,
            "from": loss.from_offset,
            "until": loss.until_offset,
            "why": loss.why.value,
            "log_epoch": loss.log_epoch,
        }
        for loss in losses
    ]


def _describe_rows_before(before: RowsBefore) -> dict[str, Any]:
    return {
        "rows_before": [
            {
                **one.log.place,
                "log_epoch": one.log_epoch,
                "from": one.from_offset,
                "until": one.until_offset,
                "rows": one.rows,
                "of_another_log": one.is_accepted,
            }
            for one in before.held
        ]
    }


def _describe_share(plan: Plan) -> dict[str, Any]:
    share = plan.share
    return (
        {}
        if share is None
        else {
            "share": {
                "member_id": share.member_id,
                "instance_id": share.instance_id,
                "membership": share.membership.value,
                "strategy": share.strategy,
                "generation": share.generation,
                "partitions": [log.place for log in sorted(share.logs)],
            },
            "handed_over": plan.handed_over,
            "is_void": plan.is_void,
            "read_by_others": [
                {
                    **hole.log.place,
                    "from": hole.from_offset,
                    "until": hole.until_offset,
                    "log_epoch": hole.log_epoch,
                }
                for hole in plan.read_by_others
            ],
        }
    )


def _describe_receipt(receipt: RangeResult) -> dict[str, Any]:
    if receipt.rows is None:
        return {"rows": None, "fetched_bytes": None, "missing_offsets": None}
    return {
        "rows": receipt.rows,
        "fetched_bytes": receipt.fetched_bytes,
        "control_records": receipt.control_records,
        "aborted_records": receipt.aborted_records,
        "missing_offsets": receipt.missing_offsets,
        "leader_epochs": [list(one) for one in receipt.epochs],
        "gaps": [list(gap) for gap in receipt.gaps],
        "gaps_complete": receipt.gaps_complete,
        "behind_transform": receipt.behind_transform,
    }
