"""Progress of a run: a live display, lines with timestamps, and JSON lines."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pty
import re
import threading
import warnings
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from etl.cli import app as commands
from etl.cli import progress
from etl.cli.progress import FIRST_LINE_S, JsonLines, Lines, Picture, showing
from etl.errors import TableUnreachable
from etl.report.run_progress import Doing, Outcome, ReadSoFar, Stopwatch, Verb
from etl.testkit.server_process import wait_until
from tests.command_result import run_etl
from tests.reports import failed, loaded, new_report

HALF = ReadSoFar(3, 6, 500, 1000, 490, 45_000_000)


class Run:
    """A run with a clock and activity that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.doing = Doing(Verb.OBSERVE)
        self.printed: list[str] = []
        self.lines = Lines(lambda: self.doing, self.printed.append, clock=lambda: self.now)

    def until(self, second: int) -> None:
        while self.now < second:
            self.now += 0.25
            self.lines.update()

    @property
    def words(self) -> list[str]:
        return [line.partition(" etl: ")[2] for line in self.printed]


def test_the_start_of_spark_is_printed_at_once_with_the_time() -> None:
    run = Run()
    run.until(1)
    run.doing = Doing(Verb.START_SPARK)
    run.until(5)
    [line] = run.printed
    when, _, words = line.partition(" etl: ")
    assert (words, datetime.fromisoformat(when).utcoffset()) == ("starting Spark", timedelta(0))


def test_lines_come_after_ten_seconds_and_then_more_rarely_down_to_one_a_minute() -> None:
    run = Run()
    times = []
    for second in range(1, 301):
        before = len(run.printed)
        run.until(second)
        times += [second] * (len(run.printed) - before)
    assert times == [10, 30, 70, 130, 190, 250]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (
            Verb.FETCH,
            "fetching and writing: 50%, 490 records, 45 MB, 50 records/s, about 10 s left",
        ),
        (Verb.FIRST_JOB, "waiting for the first task"),
        (Verb.APPEND, "committing to the table: 50%, 490 records, 45 MB"),
    ],
)
def test_a_line_has_progress_and_while_records_are_fetched_speed_and_remaining_time(
    verb: Verb, words: str
) -> None:
    run = Run()
    run.doing = Doing(verb, ReadSoFar(0, 6, 0, 1000, 0, 0))
    run.until(8)
    run.doing = Doing(verb, HALF)
    run.until(10)
    assert run.words == [words]


@pytest.mark.parametrize("verb", [None, *Verb])
def test_the_picture_of_every_verb_fits_a_terminal(verb: Verb | None) -> None:
    most = ReadSoFar(99_999, 99_999, 10**12, 10**12, 10**12, 10**14)
    for reached in (None, HALF, most):
        picture = Picture(partial(Doing, verb, reached))
        console = Console(width=80, file=io.StringIO(), force_terminal=True)
        with console.capture() as seen:
            console.print(picture.now())
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.get()).splitlines()
        assert len(lines) <= 2 and all(len(line.rstrip()) <= 80 for line in lines)


def test_where_no_terminal_is_lines_go_to_the_standard_error_of_the_moment() -> None:
    """As it was when the run began: while Spark starts, the process's own is a file."""
    watch, (read_end, write_end) = Stopwatch(), os.pipe()
    with os.fdopen(read_end) as result, os.fdopen(write_end, "w") as error:
        with contextlib.redirect_stderr(error), showing(watch.doing):
            with watch.timed(Verb.START_SPARK):
                assert result.readline().endswith("etl: starting Spark\n")


def test_a_terminal_shows_a_picture_that_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as error, contextlib.redirect_stderr(error):
        seen = b""

        def shows(words: bytes) -> bool:
            nonlocal seen
            seen += os.read(ours, 4096)
            return words in seen

        with showing(lambda: Doing(Verb.FETCH, HALF)):
            assert wait_until(lambda: shows(b"490 records, 45 MB"), 10)
        assert wait_until(lambda: shows(b"\x1b[2K"), 10), "the lines are taken away"
    os.close(ours)


def test_a_closed_standard_error_ends_no_run() -> None:
    watch, read_end, write_end = Stopwatch(), *os.pipe()
    os.close(read_end)
    error = os.fdopen(write_end, "w")
    with contextlib.redirect_stderr(error), showing(watch.doing), watch.timed(Verb.START_SPARK):
        assert wait_until(
            lambda: all(thread.name != "showing" for thread in threading.enumerate()), 10
        ), "it gave up"
    error.close()


ALWAYS = {"time", "level", "message", "pipeline", "run_id", "phase", "plan"}


def objects(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(one.keys() >= ALWAYS for one in found), found
    return found


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
    assert result.code == 2 and result.err.startswith("etl: ")
    assert "'xml' is not one of" in result.err


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


def test_what_fails_because_of_ctrl_c_is_a_stop_and_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped_in_wait(conf: Path) -> None:
        try:
            commands._stop(2, None)
        finally:
            raise RuntimeError("cannot release un-acquired lock")

    monkeypatch.setattr(commands, "table_settings_of", stopped_in_wait)
    result = run_etl("lag", "x.yaml", "--log-format", "json")
    assert result.code == 130 and objects(result.err)[-1]["error"] == "Stopped"


def test_ctrl_c_is_reported_though_libraries_are_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(conf: Path) -> None:
        commands._stop(2, None)

    monkeypatch.setattr(commands, "table_settings_of", stopped)
    result = run_etl("lag", "x.yaml", "--log-format", "json")
    assert not logging.root.manager.disable, "the tests after this one still receive log records"
    assert result.code == 130 and objects(result.err)[-1]["error"] == "Stopped"


def test_lines_of_a_run_name_pipeline_run_verb_and_plan_and_what_it_came_to() -> None:
    stream, report = io.StringIO(), new_report()
    with contextlib.redirect_stderr(stream), progress.written() as lines:
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
    with contextlib.redirect_stderr(stream), progress.written() as lines, lines.of_run(report):
        failed(TableUnreachable("it is full"), report)
    assert "it is full" not in stream.getvalue()
    last = objects(stream.getvalue())[-1]
    assert (last["level"], last["message"], last["exit_code"]) == ("error", "Run ended: failed", 7)


def test_progress_is_reported_in_numbers_and_no_more_often_than_as_text() -> None:
    stream, now = io.StringIO(), [0.0]
    doing = Doing(Verb.FETCH, ReadSoFar(2, 4, 500, 1000, 490, 45_000_000))
    reporting = progress._Progress(lambda: doing, JsonLines(stream))
    reporting._clock = lambda: now[0]
    reporting._next = FIRST_LINE_S
    for second in range(int(FIRST_LINE_S) * 2):
        now[0] = float(second)
        reporting.update()
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
    with contextlib.redirect_stderr(stream), progress.written():
        warnings.warn("soon\nit is gone", UserWarning, stacklevel=1)
        try:
            raise KeyError("x")
        except KeyError:
            logging.getLogger("some.library").exception("it broke")
    found = objects(stream.getvalue())
    assert found[0]["level"] == "warning" and "soon\nit is gone" in found[0]["message"]
    assert found[1]["level"] == "error" and "KeyError: 'x'" in found[1]["traceback"]
