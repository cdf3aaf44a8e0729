"""What OpenLineage hears of a run: its start, how it ended, what it read and wrote; and that
nothing of it changes the run.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from etl.errors import CorruptData, Stopped
from etl.io.report_files import kept_in
from etl.report.metrics import lineage_of
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from tests.builders import plain_settings
from tests.reports import loaded

SOMEWHERE = {"table": {"path": "/data/clicks"}, "openlineage": {"namespace": "shop"}}


def test_a_run_that_has_loaded_rows_reports_topics_table_rows_and_version() -> None:
    settings, report = plain_settings(**SOMEWHERE), loaded()
    result = lineage_of(report, settings, "shop")
    assert (result.event_type, result.namespace, result.job) == (
        "COMPLETE",
        "shop",
        f"{report.group}.{report.pipeline}",
    )
    assert result.inputs == tuple(
        (f"kafka://{settings.zookeeper.connect}", topic)
        for topic in sorted({r.log.topic for one in report.plans for r in one.plan.ranges})
    )
    assert result.inputs and result.output == ("file", "/data/clicks")
    assert (result.records, result.error) == (report.records, None) and result.version is not None
    assert uuid.UUID(result.run_id) and result.run_id == lineage_of(report, settings, "shop").run_id


def test_the_start_knows_no_topic_yet_and_an_object_store_is_named_by_its_bucket() -> None:
    source = {"topics": ["clicks"], "bootstrap_servers": "b1:9092,b2:9092"}
    settings = plain_settings(source=source, table={"path": "s3://lake/raw/clicks"})
    assert {place for place, _ in lineage_of(loaded(), settings, "shop").inputs} == {
        "kafka://b1:9092"
    }
    result = lineage_of(Report("r1", "clicks", "g", "t", 0), settings, "shop")
    assert (result.event_type, result.inputs, result.records, result.output) == (
        "START",
        (),
        None,
        ("s3://lake", "raw/clicks"),
    )
    named = plain_settings(source=source, table={"path": None, "name": "lake.clicks"})
    assert lineage_of(Report("r1", "clicks", "g", "t", 0), named, "shop").output is None, (
        "the run does not know the table's path yet"
    )


@pytest.mark.parametrize(
    ("error", "event_type"), [(CorruptData("bad bytes"), "FAIL"), (Stopped("stopped"), "ABORT")]
)
def test_a_failed_run_is_reported_with_its_error_and_a_stopped_one_as_such(
    error: Exception, event_type: str
) -> None:
    report = Report("r1", "clicks", "g", "t", 0)
    report.failed(error)  # type: ignore[arg-type]
    report.finished(1)
    result = lineage_of(report, plain_settings(**SOMEWHERE), "shop")
    assert (result.event_type, result.error) == (event_type, str(error))


def new_report(folder: Path, **settings: Any) -> Report:
    return Report(
        "r1", "clicks", "g", "/data/clicks", 1_700_000_000_000, settings=plain_settings(**settings)
    )


def test_without_the_client_installed_a_run_reports_it_once_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    report = new_report(tmp_path, **SOMEWHERE)
    with kept_in(str(tmp_path), report, keep=9):
        pass
    assert [outcome for outcome, _ in report.outcomes].count(Outcome.LINEAGE_NOT_SENT) == 1
    assert (
        "pip install 'offset-range-etl[openlineage]'" in report.outcomes[0][1]
        and report.exit_code == 0
    )
    assert "lineage_not_sent" in next(tmp_path.glob("*.json")).read_text()


def test_without_a_namespace_in_the_conf_no_event_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    report = new_report(tmp_path)
    with kept_in(str(tmp_path), report, keep=9):
        pass
    assert report.outcomes == []


def test_the_client_writes_an_event_at_the_start_and_one_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client", reason="`make setup` brings it")
    events = tmp_path / "events.json"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(events))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    report = new_report(tmp_path, **SOMEWHERE)
    with pytest.raises(CorruptData), kept_in(str(tmp_path / "reports"), report, keep=9):
        raise CorruptData("bad bytes")
    start, end = map(json.loads, events.read_text().splitlines())
    assert (start["eventType"], end["eventType"], start["run"]["runId"]) == (
        "START",
        "FAIL",
        end["run"]["runId"],
    )
    assert end["run"]["facets"]["errorMessage"]["message"] == "bad bytes"
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 0
    assert Outcome.LINEAGE_NOT_SENT not in [outcome for outcome, _ in report.outcomes]


def test_a_server_that_refuses_changes_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client", reason="`make setup` brings it")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", "/dev/null/events.json")
    report = new_report(tmp_path, **SOMEWHERE)
    with kept_in(str(tmp_path), report, keep=9):
        pass
    assert [outcome for outcome, _ in report.outcomes] == [
        Outcome.LINEAGE_NOT_SENT
    ] and report.exit_code == 0
