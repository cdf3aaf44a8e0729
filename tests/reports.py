"""Reports of runs: one that went well, a failed, a killed, and one of thousands of partitions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import etl
from etl.errors import EtlError
from etl.ledger.plan_document import with_id
from etl.model.partitions import Broker, Leader, TopicPartition
from etl.model.plans import CommitResult, Loss, LossReason, OffsetRange, RangeResult
from etl.model.snapshot import FirstRun, Ledger
from etl.report.report_json import report_as_json
from etl.report.run_history import PastRun
from etl.report.run_progress import Process, Verb
from etl.report.run_report import Report
from tests.builders import plain_plan, plain_settings, plain_snapshot

STYLE_SHEET = (Path(etl.__file__).parent / "report" / "page.css").read_text()
_COLORS = re.findall(r":root \{(.*?)\}", STYLE_SHEET, re.DOTALL)
LIGHT, DARK = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", colors)) for colors in _COLORS)

BEGAN_MS = 1_700_000_000_000
LEADER = Leader(Broker(0, "h", 9092), 4)
SECONDS = {
    Verb.CONNECT: 0.2,
    Verb.OBSERVE: 0.4,
    Verb.START_SPARK: 6.1,
    Verb.FETCH: 14.25,
    Verb.APPEND: 1.5,
    Verb.COMMIT: 0.004,
}


def new_report(pipeline: str = "clicks", **process: Any) -> Report:
    if not process:
        reported = Process("host-1", 7, "/conf/clicks.yaml", {"python": "3.11.2", "pyspark": None})
    else:
        reported = Process(**process)
    return Report(
        "20231114T221320-0a1b2c", pipeline, "etl-clicks", "/warehouse/clicks", BEGAN_MS, reported
    )


def loaded(
    partitions: int = 4,
    *,
    topics: int = 1,
    left: Mapping[int, int] | None = None,
    lost: bool = False,
    report: Report | None = None,
    **seen: Any,
) -> Report:
    """A run that read 100 offsets of each partition; `left`: what some have above that."""
    report, left = report or new_report(), left or {}
    topic_partitions = [
        TopicPartition(f"clicks{n % topics or ''}", n // topics) for n in range(partitions)
    ]
    snapshot = plain_snapshot(
        {partition: (0, 100 + left.get(n, 0)) for n, partition in enumerate(topic_partitions)},
        ledger=Ledger("u", None),
        **seen,
    )
    ranges = tuple(OffsetRange(partition, 0, 100, LEADER) for partition in topic_partitions)
    losses = (Loss(topic_partitions[0], 0, 40, LossReason.EXPIRED),) if lost else ()
    plan = with_id(
        plain_plan(ranges=ranges, loaded_until=dict.fromkeys(topic_partitions, 100), lost=losses)
    )
    results = tuple(
        RangeResult(
            rows=97, fetched_bytes=9_000, control_records=3, missing_offsets=3, gaps=((97, 100),)
        )
        for _ in ranges
    )
    for verb, seconds in SECONDS.items():
        report.watch.reckon(verb, seconds)
    report.saw(snapshot)
    report.stands(FirstRun(), plain_settings())
    report.planned(plan)
    report.applied(CommitResult(1, plan.id, 3, "t", results))
    report.committed(plan)
    report.finished(BEGAN_MS + 22_454)
    return report


def failed(error: EtlError, report: Report | None = None) -> Report:
    report = report or new_report()
    report.watch.reckon(Verb.CONNECT, 1.25)
    report.failed(error)
    report.finished(BEGAN_MS + 1_250)
    return report


def document_of(report: Report) -> dict[str, Any]:
    """The report as its file has it."""
    return json.loads(json.dumps(report_as_json(report), allow_nan=False))  # type: ignore[no-any-return]


def past(number: int, **changes: Any) -> PastRun:
    reported: dict[str, Any] = {
        "run_id": f"20231113T{number:02}0000-0a1b2c",
        "started_at": f"2023-11-13T{number:02}:00:00.000+00:00",
        "state": "done",
        "exit_code": 0,
        "seconds": 20.0 + number,
        "records_read": 1000 * number,
        "bytes": 100_000,
        "records_per_second": 50 * number,
        "lag_before": 1000 * number,
        "lag_after": 0,
        "outcomes": ("ingested",),
    }
    return PastRun(**{**reported, **changes})
