"""`etl report`: pages of finished, earlier and killed runs."""

from __future__ import annotations

import json
import sys
import webbrowser
from pathlib import Path

import pytest

from etl.report.incident import as_text
from etl.report.report_json import report_as_json
from tests.builders import conf_in
from tests.command_result import refused, run_etl
from tests.reports import document_of, loaded, new_report

RUNS = ["20231113T221320-0a1b2c", "20231114T221320-0a1b2c"]


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A conf of a pipeline that has run twice; no server listens at its address."""
    (tmp_path / "reports").mkdir()
    for run_id in RUNS:
        document = {**document_of(loaded(2)), "run_id": run_id}
        path = tmp_path / "reports" / f"etl-clicks+clicks-{run_id}.json"
        path.write_text(as_text(document, None))
    conf = conf_in(tmp_path, 1)
    conf.write_text(conf.read_text().replace("group: group", "group: etl-clicks"))
    return conf


def test_the_page_of_the_last_run_is_written_next_to_its_report_and_its_path_is_printed(
    conf: Path,
) -> None:
    result = run_etl("report", str(conf))
    page = conf.parent / "reports" / f"etl-clicks+clicks-{RUNS[1]}.html"
    assert (result.code, result.out, result.err) == (0, f"{page}\n", "")
    assert f"<dd>{RUNS[1]}</dd>" in page.read_text() and "The last 2 runs" in page.read_text()


def test_an_earlier_run_is_shown_by_its_name_and_a_page_may_go_elsewhere(
    conf: Path, tmp_path: Path
) -> None:
    page = tmp_path / "x" / "page.html"
    result = run_etl("report", str(conf), "--run", RUNS[0], "--output", str(page), "--json")
    report = conf.parent / "reports" / f"etl-clicks+clicks-{RUNS[0]}.json"
    assert result.code == 0
    assert result.document == {
        **{"command": "report", "pipeline": "clicks", "run_id": RUNS[0]},
        **{"path": str(page), "report": str(report), "state": "done", "exit_code": 0},
    }
    assert f"<dd>{RUNS[0]}</dd>" in page.read_text()
    assert not report.with_suffix(".html").exists()


def test_the_page_of_a_run_that_was_killed_is_made_from_what_it_left(conf: Path) -> None:
    report = new_report()
    report.run_id = "20231115T000000-0a1b2c"
    (conf.parent / "reports" / f"etl-clicks+clicks-{report.run_id}.json").write_text(
        as_text(report_as_json(report), None)
    )
    result = run_etl("report", str(conf), "--json")
    assert result.code == 0
    assert result.document["state"] == "running"
    assert result.document["exit_code"] is None
    assert "it is still running, or it was killed" in Path(result.document["path"]).read_text()


@pytest.mark.parametrize(
    ("display", "takes_it"), [(":0", True), (":0", False), (None, True)], ids=str
)
def test_with_a_display_the_page_is_opened_and_a_missing_display_or_browser_is_reported(
    conf: Path, monkeypatch: pytest.MonkeyPatch, display: str | None, takes_it: bool
) -> None:
    opened = list[str]()

    def opens(url: str) -> bool:
        opened.append(url)
        return takes_it

    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(webbrowser, "open", opens)
    result = run_etl("report", str(conf), "--open")
    assert result.code == 0 and result.out.endswith(".html\n")
    assert opened == ([Path(result.out.strip()).as_uri()] if display else [])
    reported = "No display or no browser here: open the page on another machine" in result.err
    assert reported == bool(result.err) == (not display or not takes_it)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--run", "../x"), ("There is no report of a run '../x':", RUNS[1])),
        (("--output", "/dev/null/page.html"), ("The page cannot be written:", "--output")),
        (
            ("--set", "report.path=elsewhere"),
            ("There is no report of this pipeline in the directory", "etl run CONF", "report.path"),
        ),
    ],
)
def test_a_page_that_cannot_be_made_is_refused_with_what_can_be_done(
    conf: Path, words: tuple[str, ...], message: tuple[str, ...]
) -> None:
    refused(run_etl("report", str(conf), *words, "--json"), 2, *message)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", json.dumps({"pipeline": "clicks", "run_id": 3}), '{"pipeline": []}'],
)
def test_a_report_that_is_none_is_refused_with_its_path_and_another_way(
    conf: Path, content: str
) -> None:
    (conf.parent / "reports" / f"etl-clicks+clicks-{RUNS[1]}.json").write_text(content)
    refused(run_etl("report", str(conf), "--json"), 2, "The report is not ", RUNS[1], "--run")
    assert run_etl("report", str(conf), "--run", RUNS[0]).code == 0
