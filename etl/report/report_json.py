"""How are the report of a run, its plans and its losses written as JSON?

The documents of `--json` and of report files: times are ISO 8601 text under names that end in
`_at`, durations are seconds.

Not here: the report itself (etl/report/run_report.py), the snapshots that its file keeps
(etl/report/incident.py), the documents in ZooKeeper (etl/ledger/).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from etl.model.plans import (
    CommitResult,
    CommitState,
    Loss,
    OffsetRange,
    Plan,
    RangeResult,
    Request,
    RowsBefore,
)
from etl.report.describe import format_time
from etl.report.run_progress import Verb
from etl.report.run_report import Report


def report_as_json(report: Report) -> dict[str, Any]:
    """Return the report of a run as a JSON object.

    Values that are known at the end only are None before. `plan` is the newest plan,
    `previous_plans` are the plans executed before it.
    """
    seconds = sum(report.seconds.values())
    plans = []
    for one in report.plans:
        plans.append({**describe_plan(one.plan, one.applied), "writer": one.writer})
    newest_plan = plans[-1] if plans else None
    error = report.error.as_json() if report.error else None
    table_version = report.result.delta_version if report.result else None
    exit_code = None
    records_per_second = None
    if report.finished_at_ms is not None:
        exit_code = report.exit_code
        if seconds:
            records_per_second = round(report.records / seconds)
    return {
        "run_id": report.run_id,
        "state": report.state.value,
        "pipeline": report.pipeline,
        "group": report.group,
        "table": report.table_path,
        "conf": report.process.conf,
        "overrides": dict(report.process.changes),
        "host": report.process.host,
        "pid": report.process.pid,
        "versions": dict(report.process.versions),
        "started_at": format_time(report.started_at_ms),
        "finished_at": format_time(report.finished_at_ms),
        "outcomes": [{"outcome": o.value, "message": s} for o, s in report.outcomes],
        "exit_code": exit_code,
        "error": error,
        "seconds": {verb.value: round(report.seconds.get(verb, 0.0), 3) for verb in Verb},
        "total_seconds": round(seconds, 3),
        "records_read": report.records,
        "rows_written": report.rows_written,
        "bytes": report.fetched_bytes,
        "records_per_second": records_per_second,
        "offsets_committed": report.offsets_committed,
        "table_version": table_version,
        "request": describe_request(report.request),
        "plan": newest_plan,
        "previous_plans": plans[:-1],
        "lag": report.looks.lag_as_json(),
        "paused": [pause.as_json() for pause in report.paused],
        "statistics": report.statistics.as_json(),
    }


def describe_request(request: Request | None) -> dict[str, object]:
    """Return the request of a run as a JSON object."""
    document: dict[str, object] = {"run_key": None, "from": None, "until": None}
    if request is None:
        return document
    document["run_key"] = request.run_key
    for name, bound in (("from", request.bounds.start), ("until", request.bounds.until)):
        if bound:
            document[name] = {
                "said": bound.said,
                "at": format_time(bound.at_ms),
                "offsets_before_end": bound.back,
            }
    return document


def describe_plan(plan: Plan, applied: CommitResult | None) -> dict[str, Any]:
    """Return a plan and the result of each range as a JSON object.

    The result of another plan is ignored.
    """
    if applied and not applied.is_of(plan):
        applied = None
    commit: dict[str, Any] = {
        "run_id": None,
        "table_version": None,
        "records_read": None,
        "rows_written": None,
        "uncounted": None,
    }
    results: list[RangeResult | None] = [None] * len(plan.ranges)
    if applied:
        results = list(applied.results)
        commit = {
            "run_id": applied.run_id,
            "table_version": applied.delta_version,
            "records_read": applied.records_read,
            "rows_written": applied.rows,
            "uncounted": applied.uncounted,
        }
    inherits = None
    if plan.inherits:
        inherits = plan.inherits.app_id
    left_of_run_key = []
    for partition, until in sorted(plan.request.unfinished.items()):
        left_of_run_key.append({**partition.place, "until": until})
    ranges = []
    for planned, result in zip(plan.ranges, results, strict=True):
        ranges.append(_describe_range(planned, result))
    incarnations = []
    for partition, incarnation in sorted(plan.incarnations.items()):
        incarnations.append({**partition.place, "incarnation": incarnation})
    undecided = []
    for partition, found in sorted(plan.partitions.items()):
        if found.topic_id is not None:
            undecided.append({**partition.place, "topic_id": found.topic_id})
    document = {
        "number": plan.number,
        "id": plan.id,
        "pipeline_id": plan.origin.pipeline_id,
        "kind": plan.kind.value,
        "created_at": format_time(plan.origin.created_at_ms),
        **describe_request(Request(plan.request.run_key, plan.request.bounds)),
        "open_logs": plan.request.bounds.open_partitions,
        "left_of_run_key": left_of_run_key,
        "cluster": plan.cluster.name,
        "cluster_id": plan.cluster.id,
        "table_id": plan.table.id,
        "took_over": inherits,
        "previous": plan.origin.previous,
        "supersedes": plan.origin.supersedes,
        "reason": plan.origin.reason,
        "shape": plan.shape,
        "time_zone": plan.origin.time_zone,
        **commit,
        "ranges": ranges,
        "partitions": _describe_loaded_until(plan),
        "pending_starts": _describe_pending_starts(plan),
        "losses": describe_losses(plan.losses.lost),
        "incarnations": incarnations,
        "undecided": undecided,
        "vanished": _describe_stale_rows(plan),
    }
    if plan.table.rows_before:
        document.update(_describe_rows_before(plan.table.rows_before))
    document.update(_describe_assignment(plan))
    return document


def _describe_range(planned: OffsetRange, result: RangeResult | None) -> dict[str, Any]:
    document = {
        **planned.partition.place,
        "from": planned.from_offset,
        "until": planned.until_offset,
        "leader": None,
        "leader_epoch": None,
    }
    if planned.leader:
        document["leader"] = str(planned.leader.broker)
        document["leader_epoch"] = planned.leader.epoch
    if result:
        document.update(_describe_range_result(result))
    return document


def _describe_loaded_until(plan: Plan) -> list[dict[str, Any]]:
    partitions = []
    for partition, position in sorted(plan.loaded_until.items()):
        seen = plan.expected_commits[partition]
        partitions.append(
            {
                **partition.place,
                "loaded_until": position,
                "seen_offset": seen.offset,
                "seen_version": seen.znode_version,
            }
        )
    return partitions


def _describe_pending_starts(plan: Plan) -> list[dict[str, Any]]:
    starts = []
    for partition, pending in sorted(plan.pending.items()):
        start = {**partition.place, "first_record_at": format_time(pending.start_ms)}
        if pending.start_offset is not None:
            start["first_offset"] = pending.start_offset
        starts.append(start)
    return starts


def _describe_stale_rows(plan: Plan) -> list[dict[str, Any]]:
    vanished = []
    for interval in plan.losses.stale_rows:
        vanished.append(
            {
                **interval.partition.place,
                "from": interval.from_offset,
                "until": interval.until_offset,
                "incarnation": interval.incarnation,
            }
        )
    return vanished


def describe_losses(losses: Iterable[Loss]) -> list[dict[str, Any]]:
    """Return losses as JSON objects."""
    described = []
    for loss in losses:
        described.append(
            {
                **loss.partition.place,
                "from": loss.from_offset,
                "until": loss.until_offset,
                "reason": loss.why.value,
                "incarnation": loss.incarnation,
            }
        )
    return described


def _describe_rows_before(before: RowsBefore) -> dict[str, Any]:
    described = []
    for held in before.held:
        described.append(
            {
                **held.partition.place,
                "incarnation": held.incarnation,
                "from": held.from_offset,
                "until": held.until_offset,
                "rows": held.rows,
                "of_another_log": held.is_accepted,
            }
        )
    return {"rows_before": described}


def _describe_assignment(plan: Plan) -> dict[str, Any]:
    assignment = plan.commit.member
    if assignment is None:
        return {}
    read_by_others = []
    for interval in plan.losses.read_by_others:
        offsets = {"from": interval.from_offset, "until": interval.until_offset}
        read_by_others.append(
            {**interval.partition.place, **offsets, "incarnation": interval.incarnation}
        )
    return {
        "share": {
            "member_id": assignment.member_id,
            "instance_id": assignment.instance_id,
            "membership": assignment.membership.value,
            "strategy": assignment.strategy,
            "generation": assignment.generation,
            "partitions": [partition.place for partition in sorted(assignment.partitions)],
        },
        "handed_over": plan.commit.state.is_committed,
        "is_void": plan.commit.state is CommitState.REJECTED,
        "read_by_others": read_by_others,
    }


def _describe_range_result(result: RangeResult) -> dict[str, Any]:
    if result.records_read is None:
        return {"records": None, "rows": None, "fetched_bytes": None, "missing_offsets": None}
    return {
        "records": result.records_read,
        "rows": result.rows,
        "fetched_bytes": result.fetched_bytes,
        "control_records": result.control_records,
        "aborted_records": result.aborted_records,
        "missing_offsets": result.missing_offsets,
        "leader_epochs": list(map(list, result.epochs)),
        "gaps": list(map(list, result.gaps)),
        "gaps_complete": result.gaps_complete,
        "behind_transform": result.behind_transform,
    }
