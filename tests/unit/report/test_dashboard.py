"""The dashboard in the docs uses metrics and labels that a run's file has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from etl.model.partitions import OldestRecord, RebalanceStatistics, Retention, TopicPartition
from etl.model.plans import Requests
from etl.model.snapshot import Pause
from etl.report.lag import PausedPartitions
from etl.report.metrics import HELP, PREFIX, metrics_of
from tests.builders import plain_settings
from tests.reports import BEGAN_MS, loaded

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "pipelines.json"
DOCUMENT: dict[str, Any] = json.loads(DASHBOARD.read_text())
EXPRESSIONS = [target["expr"] for panel in DOCUMENT["panels"] for target in panel["targets"]]
CHOICES = [
    one["query"]["query"] for one in DOCUMENT["templating"]["list"] if one["type"] == "query"
]
NAME = re.compile(rf"\b{PREFIX}(\w+)")


def written() -> str:
    """The file of a run that left some of a topic, so that every metric has a sample."""
    partition = TopicPartition("clicks", 0)
    retention = {"clicks": Retention(ms=3_600_000, bytes=10_000)}
    report = loaded(1, left={0: 50}, bytes_per_offset={partition: 10.0}, retention=retention)
    report.settings = plain_settings()
    report.oldest = {partition: OldestRecord(BEGAN_MS)}
    report.asked_by_driver = {"h:9092": Requests(1, 0.5, 10, 20)}
    report.membership = RebalanceStatistics(1, 0.5, heartbeat_age_s=1.0)
    pause = Pause("clicks", partition, "broken", "kim@host", 5)
    report.paused = (PausedPartitions((pause,), (partition,), 50, 7.0),)
    return metrics_of(report, now_ms=BEGAN_MS + 60_000, per_partition=False, last_success_s=None)


def test_a_run_that_leaves_some_has_a_sample_of_every_metric() -> None:
    assert set(re.findall(rf"^{PREFIX}(\w+){{", written(), re.MULTILINE)) == HELP.keys()


@pytest.mark.parametrize("requested", [*EXPRESSIONS, *CHOICES])
def test_a_panel_queries_only_metrics_and_labels_that_a_run_writes(requested: str) -> None:
    names, file = NAME.findall(requested), written()
    assert names
    for name, labels in re.findall(rf"\b{PREFIX}(\w+)(?:{{([^}}]*)}})?", requested):
        [line, *_] = [one for one in file.splitlines() if one.startswith(f"{PREFIX}{name}{{")]
        assert all(f'{label}="' in line for label in re.findall(r"(\w+)[=!]~?", labels)), line
    grouped = re.findall(r"by \(([^)]*)\)", requested)
    assert all(f'{label.strip()}="' in file for labels in grouped for label in labels.split(","))


def test_every_panel_has_the_data_source_that_is_chosen_and_a_title_of_its_own() -> None:
    panels = DOCUMENT["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    for key in ("id", "title"):
        assert len({panel[key] for panel in panels}) == len(panels)
