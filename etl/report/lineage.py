"""A run as lineage: which topics it read and which table it wrote, in OpenLineage's words (its
specification, "Naming", and "Run state").

Topics are named by the addresses that the conf has, for those stay: `source.bootstrap`, or else
ZooKeeper with its chroot.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from etl.errors import Stopped
from etl.report.run_report import Report
from etl.settings.choices import folder_of
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class RunLineage:
    """One event of a run."""

    event_type: str
    """START, COMPLETE, FAIL or ABORT."""
    run_id: str
    """A UUID that follows from the run's own id."""
    namespace: str
    job: str
    inputs: tuple[tuple[str, str], ...]
    """Namespace and name of each topic that a plan of the run reads; at its start none is known."""
    output: tuple[str, str] | None
    """None: a catalog names the table, and the run has not asked it yet."""
    records: int | None
    """Rows of the run's plans; None at its start."""
    version: int | None
    """The table's version behind the newest plan."""
    error: str | None


def lineage_of(report: Report, settings: Settings, namespace: str) -> RunLineage:
    """The event for what the run is at: its start until it has ended."""
    has_ended = report.finished_at_ms is not None
    topics = sorted({r.log.topic for one in report.plans for r in one.plan.ranges})
    return RunLineage(
        _event_type(report) if has_ended else "START",
        str(uuid.uuid5(uuid.NAMESPACE_URL, f"offset-range-etl:{report.run_id}")),
        namespace,
        f"{report.group}.{report.pipeline}",
        tuple((_brokers(settings), topic) for topic in topics),
        _place(settings.table.path) if settings.table.is_placed else None,
        report.records if has_ended else None,
        report.result.delta_version if report.result else None,
        report.error.what if report.error else None,
    )


def _event_type(report: Report) -> str:
    if report.error is None:
        return "COMPLETE"
    return "ABORT" if isinstance(report.error, Stopped) else "FAIL"


def _brokers(settings: Settings) -> str:
    named = settings.source.bootstrap
    return f"kafka://{named[0] if named else settings.zookeeper.connect.partition(',')[0]}"


def _place(path: str) -> tuple[str, str]:
    """A folder is a name in the namespace `file`; of an object store the bucket is the namespace."""
    folder = folder_of(path)
    if folder is not None:
        return "file", str(folder)
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key
