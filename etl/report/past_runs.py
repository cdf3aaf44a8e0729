"""What a run came to in a few numbers, read from the head of its report: for the history of the
last runs.

A report may have a line for each of ten thousand partitions, so it is not parsed as a whole: what
counts stands before its plan, and the lag is summed from its lines, whose form is
`incident.as_text`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from etl.report.words import of_known

_PLAN, _LAG, _SAW = '\n  "plan": ', '\n  "lag": ', '\n  "saw": '
_OF_A_LOG = re.compile(r'"before": (\d+|null),\s+"after": (\d+|null)\s*\}')


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run of the pipeline. None: not known; of one that was killed most is."""

    run_id: str
    state: str
    started_at: str
    exit_code: int | None = None
    seconds: float | None = None
    records: int = 0
    bytes: int | None = None
    records_per_second: int | None = None
    lag_before: int | None = None
    """Of the partitions of which it is known."""
    lag_after: int | None = None
    outcomes: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether it did not come to its end, or came to none."""
        return self.state != "done"


def past_run(text: str) -> PastRun | None:
    """The run of a report as its file has it; None for a text that is none of our reports."""
    head, found, rest = text.partition(_PLAN)
    try:
        told = json.loads(head.rstrip().rstrip(",") + "}") if found else None
        return (
            None
            if told is None
            else _run_of(told, _OF_A_LOG.findall(rest.partition(_LAG)[2].partition(_SAW)[0]))
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def run_of(report: Mapping[str, Any]) -> PastRun:
    """The same of the report as a document. Raises KeyError for one that is none."""
    return _run_of(report, [(str(one["before"]), str(one["after"])) for one in report["lag"]])


def _run_of(told: Mapping[str, Any], lags: Iterable[tuple[str, str]]) -> PastRun:
    before, after = zip(*lags, strict=True) if lags else ((), ())
    return PastRun(
        told["run_id"],
        told["state"],
        told["started_at"],
        told["exit_code"],
        told["seconds_in_all"] or None,
        told["records"] or 0,
        told["bytes"],
        told["records_per_second"],
        _sum(before),
        _sum(after),
        tuple(one["outcome"] for one in told["outcomes"]),
    )


def _sum(told: Iterable[str]) -> int | None:
    return of_known(sum, (int(one) if one.isdecimal() else None for one in told))
