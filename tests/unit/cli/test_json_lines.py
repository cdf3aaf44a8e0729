"""`--log-format json`: each line of standard error is a JSON object, with run id and phase for
lines of a run.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import typer

from etl.cli import app as commands
from etl.cli import progress as json_lines
from etl.cli.app import app
from etl.cli.progress import FIRST_LINE_S, JsonLines
from etl.errors import TableUnreachable
from etl.report.run_progress import Doing, Outcome, ReadSoFar, Verb
from tests.command_result import run_etl
from tests.reports import failed, loaded, new_report

ALWAYS = {"time", "level", "message", "pipeline", "run_id", "phase", "plan"}


def objects(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(one.keys() >= ALWAYS for one in found), found
    return found


def leaves(command: Any) -> list[Any]:
    inner = getattr(command, "commands", None)
    return [command] if inner is None else [leaf for one in inner.values() for leaf in leaves(one)]


def test_each_command_takes_the_option_once() -> None:
    found = leaves(typer.main.get_command(app))
    assert len(found) >= 17
    assert [
        one.name for one in found if sum("--log-format" in param.opts for param in one.params) != 1
    ] == []


def test_an_error_is_an_object_with_all_that_the_document_of_the_error_has(tmp_path: Path) -> None:
    result = run_etl("run", str(tmp_path / "none.yaml"), "--dry-run", "--log-format", "json")
    [reported] = objects(result.err)
    assert (result.code, result.out) == (2, "")
    assert reported["level"] == "error"
    assert reported["message"] == "The conf file does not exist"
    assert reported["error"] == "SettingsError"
    assert reported["exit_code"] == 2
    assert reported["where"] == {"path": str(tmp_path / "none.yaml")}
    assert reported["action"]
    assert reported["retriable"] is False


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--log-format", "json"],
        ["--log-format=json", "forget"],
        ["lag", "x", "y", "--log-format=json"],
    ],
)
def test_wrong_arguments_are_reported_as_json_too(words: list[str]) -> None:
    result = run_etl(*words)
    [reported] = objects(result.err)
    assert result.code == 2
    assert reported["error"] == "SettingsError"
    assert reported["action"].startswith("Check the arguments with `etl ")


def test_another_format_is_refused_in_text() -> None:
    result = run_etl("run", "x.yaml", "--log-format", "xml")
    assert (
        result.code == 2 and "'xml' is not one of" in result.err and result.err.startswith("etl: ")
    )


def test_without_the_option_standard_error_is_text_as_ever_and_loggers_are_left_alone(
    tmp_path: Path,
) -> None:
    run_etl("run", str(tmp_path / "none.yaml"), "--dry-run", "--log-format", "json")
    result = run_etl("run", str(tmp_path / "none.yaml"), "--dry-run")
    assert result.err.startswith("etl: The conf file does not exist") and "{" not in result.err
    assert not [one for one in logging.getLogger().handlers if isinstance(one, JsonLines)]
    assert logging.getLogger("etl").level == logging.NOTSET


def test_a_bug_is_one_line_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "table_settings_of", lambda conf: 1 / 0)
    result = run_etl("lag", "x.yaml", "--log-format", "json")
    bug, reported = objects(result.err)
    assert result.code == 1
    assert "ZeroDivisionError: division" in bug["traceback"]
    assert reported["message"] == "Bug: ZeroDivisionError: division by zero"


def test_ctrl_c_is_reported_though_libraries_are_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(conf: Path) -> None:
        commands._stop(2, None)

    monkeypatch.setattr(commands, "table_settings_of", stopped)
    result = run_etl("lag", "x.yaml", "--log-format", "json")
    assert not logging.root.manager.disable, "the tests after this one still receive log records"
    assert result.code == 130 and objects(result.err)[-1]["error"] == "Stopped"


def test_lines_of_a_run_name_pipeline_run_verb_and_plan_and_what_it_came_to() -> None:
    stream, report = io.StringIO(), new_report()
    with contextlib.redirect_stderr(stream), json_lines.written() as lines:
        lines.pipeline = "clicks"
        with lines.of_run(report):
            with report.timed(Verb.OBSERVE):
                logging.getLogger("kazoo.client").warning("the session %s", "is new")
            with report.timed(Verb.APPEND):
                loaded(2, report=report)
            report.add(Outcome.RECORDS_LOST, "clicks 0: 40 offsets")
    found = objects(stream.getvalue())
    assert {(one["pipeline"], one["run_id"]) for one in found} == {("clicks", report.run_id)}
    assert [(one["level"], one["message"], one["phase"], one["plan"]) for one in found] == [
        ("info", "Run started", None, None),
        ("info", "observe begins", "observe", None),
        ("warning", "the session is new", "observe", None),
        ("info", "append begins", "append", None),
        ("info", "ingested: Plan 1: 194 rows written, table version 3", "append", 1),
        ("warning", "records_lost: clicks 0: 40 offsets", None, 1),
        ("info", "Run ended: done", None, 1),
    ]
    assert found[2]["logger"] == "kazoo.client" and found[4]["outcome"] == "ingested"
    assert found[-1]["records_read"] == 194
    assert found[-1]["exit_code"] == 0
    assert found[-1]["state"] == "done"


def test_a_failing_run_logs_it_once_and_leaves_the_error_to_the_caller() -> None:
    stream, report = io.StringIO(), new_report()
    with contextlib.redirect_stderr(stream), json_lines.written() as lines, lines.of_run(report):
        failed(TableUnreachable("it is full"), report)
    assert "it is full" not in stream.getvalue()
    last = objects(stream.getvalue())[-1]
    assert (last["level"], last["message"], last["exit_code"]) == ("error", "Run ended: failed", 7)


def test_progress_is_reported_in_numbers_and_no_more_often_than_as_text() -> None:
    stream, now = io.StringIO(), [0.0]
    doing = Doing(Verb.FETCH, ReadSoFar(2, 4, 500, 1000, 490, 45_000_000))
    progress = json_lines._Progress(lambda: doing, JsonLines(stream))
    progress._clock = lambda: now[0]
    progress._next = FIRST_LINE_S
    for second in range(int(FIRST_LINE_S) * 2):
        now[0] = float(second)
        progress.update()
    [reported] = objects(stream.getvalue())
    assert reported["message"].startswith("fetching and writing: 50%, 490 records, 45 MB")
    names = ("offsets", "offsets_in_all", "records", "ranges")
    assert [reported[name] for name in names] == [500, 1000, 490, 2]


def test_quiet_leaves_errors_alone() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.is_quiet = True
    for level in ("info", "warning", "error"):
        lines.write(level, level)
    assert [one["message"] for one in objects(stream.getvalue())] == ["error"]
    stream.close()
    lines.write("error", "a closed standard error ends nothing")


def test_warnings_of_python_and_tracebacks_of_libraries_are_lines() -> None:
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream), json_lines.written():
        warnings.warn("soon\nit is gone", UserWarning, stacklevel=1)
        try:
            raise KeyError("x")
        except KeyError:
            logging.getLogger("some.library").exception("it broke")
    found = objects(stream.getvalue())
    assert found[0]["level"] == "warning" and "soon\nit is gone" in found[0]["message"]
    assert found[1]["level"] == "error" and "KeyError: 'x'" in found[1]["traceback"]
