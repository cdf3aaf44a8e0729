"""The metrics of a run, and the dashboard of the docs, which uses them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from etl.errors import NotOurTable, Owned, TableUnreachable
from etl.model.partitions import OldestRecord, RebalanceStatistics, Retention, TopicPartition
from etl.model.plans import Requests
from etl.model.snapshot import FirstRun, Ledger, Pause, Snapshot
from etl.report import metrics
from etl.report.lag import PausedPartitions
from etl.report.metrics import HELP, PREFIX, metrics_of
from etl.report.report_json import report_as_json
from etl.report.run_progress import Outcome, Verb
from etl.report.run_report import Report
from tests.builders import plain_settings, plain_snapshot
from tests.reports import BEGAN_MS, SECONDS, failed, loaded, new_report

NOW_MS = BEGAN_MS + 60_000
A, B, C = TopicPartition("clicks", 0), TopicPartition("clicks", 1), TopicPartition("orders", 0)
SETTINGS = plain_settings()


def labelled_metrics(
    report: Report, per_partition: bool = False, last_success_s: float | None = None
) -> dict[str, dict[str, float]]:
    """Metric -> labels besides pipeline and group, the topic first -> value."""
    report.settings = report.settings or SETTINGS
    text = metrics_of(
        report, now_ms=NOW_MS, per_partition=per_partition, last_success_s=last_success_s
    )
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation == HELP[family.name.removeprefix(PREFIX)]
        for sample in family.samples:
            labels = dict(sample.labels)
            pipeline, group = labels.pop("pipeline"), labels.pop("group")
            assert (pipeline, group) == (report.pipeline, report.group)
            by_topic = sorted(labels, key=lambda label: label != "topic")
            series = " ".join(labels[label] for label in by_topic)
            of_name = found.setdefault(sample.name.removeprefix(PREFIX), {})
            assert series not in of_name, "no series is there twice"
            of_name[series] = sample.value
    return found


def looked(extents: Mapping[TopicPartition, tuple[int, int]], **changes: object) -> Report:
    report = new_report()
    see(report, plain_snapshot(extents, ledger=Ledger("u", None), **changes))
    report.finished(BEGAN_MS + 1000)
    return report


def see(report: Report, snapshot: Snapshot) -> None:
    report.saw(snapshot)
    report.stands(FirstRun(), SETTINGS)


def test_a_successful_run_reports_its_records_its_time_and_a_lag_of_zero() -> None:
    found = labelled_metrics(loaded(4, topics=2))
    plain = {name: series[""] for name, series in found.items() if "" in series}
    assert plain == {
        "run_start_timestamp_seconds": BEGAN_MS / 1000,
        "run_end_timestamp_seconds": BEGAN_MS / 1000 + 22.454,
        "last_success_timestamp_seconds": BEGAN_MS / 1000 + 22.454,
        "run_success": 1,
        "run_exit_code": 0,
        "run_retriable": 0,
        "run_duration_seconds": pytest.approx(sum(SECONDS.values())),
        "run_records": 388,
        "run_rows": 388,
        "run_fetched_bytes": 36_000,
        "run_offsets_committed": 4,
        "run_lost_offsets": 0,
        "table_version": 3,
        "run_table_commits": 1,
    }
    nothing = {"clicks": 0, "clicks1": 0}
    assert found["lag_records"] == found["oldest_unread_age_seconds"] == nothing
    assert "retention_headroom_seconds" not in found, "where nothing is unread nothing can expire"


def test_the_time_of_each_verb_and_each_outcome_has_a_series_whether_or_not_it_came_to_it() -> None:
    found = labelled_metrics(loaded(1, lost=True))
    assert found["run_phase_duration_seconds"] == {
        verb.value: pytest.approx(SECONDS.get(verb, 0), abs=0.001) for verb in Verb
    }
    assert {name for name, value in found["run_outcome"].items() if value} == {
        "ingested",
        "records_lost",
    }
    assert found["run_outcome"].keys() == {outcome.value for outcome in Outcome}
    assert found["run_lost_offsets"] == {"": 40}


def test_a_failed_run_keeps_the_time_of_the_last_success_and_reports_whether_a_retry_may_help() -> (
    None
):
    found = labelled_metrics(failed(TableUnreachable("it is full")), last_success_s=1_600_000_000.5)
    assert found["last_success_timestamp_seconds"] == {"": 1_600_000_000.5}
    assert [found[f"run_{name}"][""] for name in ("success", "exit_code", "retriable")] == [0, 7, 1]


def test_an_unknown_value_has_no_sample() -> None:
    found = labelled_metrics(failed(Owned("another driver")))
    assert (
        found.keys()
        & {"last_success_timestamp_seconds", "table_version", "lag_records", "partitions"}
        == set()
    )


def test_lag_is_reported_by_topic_with_its_oldest_record_and_the_least_headroom() -> None:
    report = looked(
        {A: (0, 10), B: (5, 25), C: (0, 3)},
        bytes_per_offset={A: 100.0, B: 10.0},
        retention={"clicks": Retention(ms=3_600_000, bytes=4000, is_compacted=False)},
    )
    report.oldest = {
        A: OldestRecord(NOW_MS - 120_000),
        B: OldestRecord(NOW_MS - 7_000),
        C: OldestRecord(why="it has none"),
    }
    found = labelled_metrics(report)
    assert found["lag_records"] == {"clicks": 30, "orders": 3}
    assert found["lag_bytes"] == {"clicks": 1200}
    assert found["oldest_unread_age_seconds"] == {"clicks": 120.0}
    assert found["partitions"] == {"clicks": 2, "orders": 1}
    assert found["retention_headroom_seconds"] == {"clicks": 3480.0}
    assert found["retention_headroom_bytes"] == {"clicks": 3000}
    by_partition = labelled_metrics(report, True)["lag_records"]
    assert by_partition == {"clicks 0": 10, "clicks 1": 20, "orders 0": 3}


def test_a_partition_with_an_unknown_lag_is_counted_as_that() -> None:
    report = looked({A: (0, 10)}, leaderless=frozenset({B, C}))
    found = labelled_metrics(report)
    assert found["partitions_unknown"] == {"clicks": 1, "orders": 1}
    assert found["lag_records"] == {"clicks": 10}


def test_lag_of_physical_logs_is_bytes_and_no_records() -> None:
    found = labelled_metrics(
        looked({TopicPartition("clicks", 0, 1): (0, 10), TopicPartition("clicks", 0, 2): (0, 5)}),
        True,
    )
    assert found["lag_bytes"] == {"clicks 1-0": 10, "clicks 2-0": 5} and "lag_records" not in found


@pytest.mark.parametrize("per_partition", [False, True])
def test_however_many_topics_there_are_series_are_few_and_their_sum_is_right(
    monkeypatch: pytest.MonkeyPatch, per_partition: bool
) -> None:
    monkeypatch.setattr(metrics, "MOST_SERIES", 3)
    found = labelled_metrics(
        looked({TopicPartition(f"t{n}", 0): (0, n) for n in range(10)}), per_partition
    )
    named = ["t9 0", "t8 0", "t7 0"] if per_partition else ["t9", "t8", "t7"]
    others = "(others) " if per_partition else "(others)"
    assert found["lag_records"] == {**{name: int(name[1]) for name in named}, others: 21}
    assert sum(found["partitions"].values()) == 10


def test_no_name_breaks_the_file() -> None:
    report = new_report(pipeline='cl"i\\cks\nx{} 3')
    see(report, plain_snapshot({TopicPartition('a"\\\n', 0): (0, 1)}, ledger=Ledger("u", None)))
    report.finished(BEGAN_MS)
    assert labelled_metrics(report)["lag_records"] == {'a"\\\n': 1}


def test_paused_lag_is_reported_by_topic_and_lag_beyond_the_bound_in_total(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "MOST_SERIES", 2)
    report = looked({A: (0, 10)})

    def rests(
        partition: TopicPartition, headroom_s: float | None, since: int = 5
    ) -> PausedPartitions:
        pause = Pause(partition.topic, partition, "r", "kim@h", 1000 * since)
        return PausedPartitions((pause,), (partition,), 4, headroom_s)

    others = [rests(TopicPartition(name, 0), 1.0) for name in ("x", "y")]
    report.paused = (rests(A, 7.0), rests(B, 3.0, 9), rests(C, None), *others)
    found = labelled_metrics(report)
    assert found["paused_partitions"] == {"clicks": 2, "orders": 1, metrics.OTHERS: 2}
    assert found["paused_unread"]["clicks"] == 8
    assert found["paused_headroom_seconds"] == {"clicks": 3, metrics.OTHERS: 1}
    assert found["paused_since_timestamp_seconds"]["clicks"] == 5


def test_a_run_that_never_learned_where_its_table_is_has_a_report_and_metrics_all_the_same() -> (
    None
):
    settings = plain_settings(table={"path": None, "name": "lake.clicks"})
    report = new_report()
    report.table_path, report.settings = settings.table.called, settings
    report.failed(NotOurTable("lake.clicks is a view", key="table.name", action="select from it"))
    now_ms = report.started_at_ms + 1
    report.finished(now_ms)
    assert (
        report_as_json(report)["table"] == "lake.clicks"
        and report_as_json(report)["exit_code"] == 2
    )
    assert metrics_of(report, now_ms=now_ms, per_partition=False, last_success_s=None)


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
