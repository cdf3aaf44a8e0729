"""Progress of a run: a live display on a terminal, lines with timestamps elsewhere, and one JSON
document on standard output.
"""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import threading
from datetime import datetime, timedelta

import pytest
from rich.console import Console

from etl.cli.progress import Lines, Picture, showing
from etl.report.run_progress import Doing, ReadSoFar, Stopwatch, Verb
from etl.testkit.server_process import wait_until

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
        """The printed lines without their times."""
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
        picture, console = (
            Picture(lambda: Doing(verb, reached)),
            Console(width=80, file=io.StringIO(), force_terminal=True),
        )
        with console.capture() as seen:
            console.print(picture.now())
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.get()).splitlines()
        assert len(lines) <= 2 and all(len(line.rstrip()) <= 80 for line in lines)


def test_where_no_terminal_is_lines_go_to_the_standard_error_of_the_moment() -> None:
    """As it was when the run began: while Spark starts, the process's own is a file."""
    watch, read_end, write_end = Stopwatch(), *os.pipe()
    with (
        os.fdopen(read_end) as result,
        os.fdopen(write_end, "w") as error,
        contextlib.redirect_stderr(error),
    ):
        with showing(watch.doing), watch.timed(Verb.START_SPARK):
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
