"""What is known of the earlier runs of a pipeline?

Lives here: the figures of a run by its report, the names of report files, and which are outdated.
Not here: reading and removing the files (etl/io/report_files.py), charts (etl/report/charts.py).

A report may have ten thousand partitions, and a page shows thirty runs. So only the head of an
earlier report is parsed, and its lag is summed line by line in the form of `incident.as_text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from etl.report.describe import aggregate_known
from etl.report.run_progress import State

_PLAN = '\n  "plan": '
_LAG = '\n  "lag": '
_SNAPSHOT = '\n  "snapshot": '
_LAG_OF_PARTITION = re.compile(r'"before": (\d+|null),\s+"after": (\d+|null)\s*\}')


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run of the pipeline. None: unknown, as most values of a killed run are."""

    run_id: str
    state: str
    started_at: str
    exit_code: int | None = None
    seconds: float | None = None
    records_read: int | None = None
    bytes: int | None = None
    records_per_second: int | None = None
    lag_before: int | None = None
    """Sum over the partitions with a known lag."""
    lag_after: int | None = None
    outcomes: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """True if the run failed or did not finish."""
        return self.state != State.DONE.value


def past_run(text: str) -> PastRun | None:
    """Return the run of a report's text; None if the text is not a report."""
    head, found, rest = text.partition(_PLAN)
    if not found:
        return None
    lag = rest.partition(_LAG)[2].partition(_SNAPSHOT)[0]
    try:
        document = json.loads(head.rstrip().rstrip(",") + "}")
        return _run_of(document, _LAG_OF_PARTITION.findall(lag))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def run_of(report: Mapping[str, Any]) -> PastRun:
    """Return the run of a report. Raises KeyError or TypeError for an invalid one."""
    lags = [(str(partition["before"]), str(partition["after"])) for partition in report["lag"]]
    return _run_of(report, lags)


def _run_of(document: Mapping[str, Any], lags: Iterable[tuple[str, str]]) -> PastRun:
    """Return the run of a report's document.

    `lags`: before and after the run, as digits or any other text for unknown.
    """
    before = []
    after = []
    for lag_before, lag_after in lags:
        before.append(_known(lag_before))
        after.append(_known(lag_after))
    # The report of a killed run has 0 seconds if none of its steps had ended.
    seconds = document["total_seconds"] or None
    return PastRun(
        run_id=document["run_id"],
        state=document["state"],
        started_at=document["started_at"],
        exit_code=document["exit_code"],
        seconds=seconds,
        records_read=document["records_read"],
        bytes=document["bytes"],
        records_per_second=document["records_per_second"],
        lag_before=aggregate_known(sum, before),
        lag_after=aggregate_known(sum, after),
        outcomes=tuple(outcome["outcome"] for outcome in document["outcomes"]),
    )


def _known(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() else None


_RUN_ID = r"(\d{8}T\d{6}-[0-9a-f]{6})"


def run_ids(names: Iterable[str], ours_called: str) -> list[str]:
    """Return the runs with a report among these file names, oldest first.

    `ours_called`: the pipeline's name in files, see `Settings.name_in_files`.
    """
    ours = re.compile(re.escape(ours_called) + f"-{_RUN_ID}" + r"\.json")
    matches = map(ours.fullmatch, names)
    return sorted(match[1] for match in matches if match)


def outdated(names: Iterable[str], ours_called: str, keep: int) -> list[str]:
    """Return the files of the pipeline's runs before the newest `keep`, with pages and logs.

    Names begin with the start in UTC, so they sort by time.
    """
    ours = re.compile(
        re.escape(ours_called)
        + f"-{_RUN_ID}"
        + r"(?:-verify|-maintain|-into)?(\.json|\.html|\.spark\.log)"
    )
    files = {}
    reported = []
    for name in names:
        match = ours.fullmatch(name)
        if match:
            files[name] = match[1]
            if match[2] == ".json":
                reported.append(match[1])
    kept = sorted(reported)[-keep:]
    if not kept:
        return []
    return sorted(name for name, run_id in files.items() if run_id < kept[0])
