"""The file of a run's metrics, which Prometheus' node exporter reads (its textfile collector)."""

from __future__ import annotations

import re
from pathlib import Path

from etl.edges.report_folder import write_whole
from etl.report.metrics import LAST_SUCCESS, PREFIX, metrics_of, told_labels
from etl.report.run_report import Report
from etl.settings.sections import Settings


def write_metrics(report: Report, settings: Settings, *, now_ms: int) -> Path | None:
    """Where the metrics of a run that has ended are; None where none are wanted. The file is
    replaced as a whole. Raises OSError.

    When a run last succeeded is taken over from the file before where this one did not: reports may
    be gone.
    """
    if settings.metrics_file is None:
        return None
    path = Path(settings.metrics_file)
    before = _last_success_s(path, report)
    write_whole(
        path, metrics_of(report, now_ms=now_ms, per=settings.metrics_per, last_success_s=before)
    )
    return path


def _last_success_s(path: Path, report: Report) -> float | None:
    """What the file says of this pipeline; None where there is none, or where it is another one's."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    labels = told_labels((("pipeline", report.pipeline), ("group", report.group)))
    found = re.search(
        rf"^{re.escape(PREFIX + LAST_SUCCESS + labels)} (\d+(?:\.\d+)?)$", text, re.MULTILINE
    )
    return float(found[1]) if found else None
