"""The OpenLineage events of a run; one that is not sent does not change the run."""

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
    settings, report = plain_settings(**SOMEWHERE), loaded(4, topics=2)
    result = lineage_of(report, settings, "shop")
    job = f"{report.group}.{report.pipeline}"
    assert (result.event_type, result.namespace, result.job) == ("COMPLETE", "shop", job)
    place = f"kafka://{settings.zookeeper.connect}"
    assert result.inputs == ((place, "clicks"), (place, "clicks1"))
    assert result.output == ("file", "/data/clicks")
    assert (result.rows, result.error) == (report.records, None) and result.version is not None
    assert uuid.UUID(result.run_id) and result.run_id == lineage_of(report, settings, "shop").run_id


def test_the_start_knows_no_topic_yet_and_an_object_store_is_named_by_its_bucket() -> None:
    source = {"topics": ["clicks"], "bootstrap_servers": "b1:9092,b2:9092"}
    settings = plain_settings(source=source, table={"path": "s3://lake/raw/clicks"})
    places = {place for place, _ in lineage_of(loaded(), settings, "shop").inputs}
    assert places == {"kafka://b1:9092"}
    begun = Report("r1", "clicks", "g", "t", 0)
    result = lineage_of(begun, settings, "shop")
    assert (result.event_type, result.inputs, result.rows) == ("START", (), None)
    assert result.output == ("s3://lake", "raw/clicks")
    named = plain_settings(source=source, table={"path": None, "name": "lake.clicks"})
    assert lineage_of(begun, named, "shop").output is None, "its path is not known yet"


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


def new_report(**settings: Any) -> Report:
    at = 1_700_000_000_000
    return Report("r1", "clicks", "g", "/data/clicks", at, settings=plain_settings(**settings))


def test_without_the_client_installed_a_run_reports_it_once_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    report, without = new_report(**SOMEWHERE), new_report()
    with kept_in(str(tmp_path), report, keep=9):
        pass
    [(outcome, message)] = report.outcomes
    assert (outcome, report.exit_code) == (Outcome.LINEAGE_NOT_SENT, 0)
    assert "pip install 'offset-range-etl[openlineage]'" in message
    assert "lineage_not_sent" in next(tmp_path.glob("*.json")).read_text()
    with kept_in(str(tmp_path), without, keep=9):
        pass
    assert without.outcomes == [], "no event is sent without a namespace in the conf"


def test_the_client_writes_an_event_at_the_start_and_one_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client", reason="`make setup` brings it")
    events = tmp_path / "events.json"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(events))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    report = new_report(**SOMEWHERE)
    with pytest.raises(CorruptData), kept_in(str(tmp_path / "reports"), report, keep=9):
        raise CorruptData("bad bytes")
    start, end = map(json.loads, events.read_text().splitlines())
    assert start["eventType"] == "START"
    assert end["eventType"] == "FAIL"
    assert start["run"]["runId"] == end["run"]["runId"]
    assert end["run"]["facets"]["errorMessage"]["message"] == "bad bytes"
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 0
    assert Outcome.LINEAGE_NOT_SENT not in [outcome for outcome, _ in report.outcomes]


def test_a_client_that_cannot_send_changes_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client", reason="`make setup` brings it")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", "/dev/null/events.json")
    report = new_report(**SOMEWHERE)
    with kept_in(str(tmp_path), report, keep=9):
        pass
    outcomes = [outcome for outcome, _ in report.outcomes]
    assert (outcomes, report.exit_code) == ([Outcome.LINEAGE_NOT_SENT], 0)
