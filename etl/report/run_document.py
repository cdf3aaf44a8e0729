"""A run's report as the document that its file and `--json` have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etl.report.asked import describe_asked
from etl.report.phases import Verb
from etl.report.plan_json import describe_plan
from etl.report.words import at

if TYPE_CHECKING:
    from etl.report.run_report import Report


def document_of(report: Report) -> dict[str, Any]:
    """See `Report.as_json`."""
    ended, seconds = report.finished_at_ms is not None, sum(report.seconds.values())
    plans = [{**describe_plan(one.plan, one.applied), "writer": one.writer} for one in report.plans]
    return {
        "run_id": report.run_id,
        "state": report.state.value,
        "pipeline": report.pipeline,
        "group": report.group,
        "table": report.table_path,
        "conf": report.process.conf,
        "set": dict(report.process.changes),
        "host": report.process.host,
        "pid": report.process.pid,
        "versions": dict(report.process.versions),
        "started_at": at(report.started_at_ms),
        "finished_at": at(report.finished_at_ms),
        "outcomes": [{"outcome": o.value, "says": s} for o, s in report.outcomes],
        "exit_code": report.exit_code if ended else None,
        "error": report.error.as_json() if report.error else None,
        "seconds": {verb.value: round(report.seconds.get(verb, 0.0), 3) for verb in Verb},
        "seconds_in_all": round(seconds, 3),
        "records": report.records,
        "bytes": report.fetched_bytes,
        "records_per_second": round(report.records / seconds) if ended and seconds else None,
        "offsets_committed": report.offsets_committed,
        "delta_version": report.result.delta_version if report.result else None,
        "asked": describe_asked(report.request),
        "plan": plans[-1] if plans else None,
        "earlier_plans": plans[:-1],
        "lag": report.looks.lag_as_json(),
        "paused": [one.as_json() for one in report.paused],
        "statistics": report.statistics.as_json(),
    }
