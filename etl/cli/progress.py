"""What does a person, or a machine, see of a run in progress?

On standard error: a live display on a terminal, else a line now and then, from a thread of its own
that neither fails nor slows the run. With `--log-format json` one JSON object per line, with
`time` (ISO 8601, UTC), `level`, `message`, `pipeline`, `run_id`, `phase` and `plan`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from etl.errors import EtlError
from etl.report.describe import at
from etl.report.run_report import Report
from etl.report.run_state import Doing, Pace, Verb, format_progress, time_in_words

FIRST_LINE_S, MOST_BETWEEN_LINES_S = 10.0, 60.0
_LOOK_S = 0.25
_WORDS = {
    None: "at work",
    Verb.CONNECT: "connecting",
    Verb.OBSERVE: "looking at brokers, ledger and table",
    Verb.RECONCILE: "reconciling",
    Verb.PLAN: "planning",
    Verb.START_SPARK: "starting Spark",
    Verb.FIRST_JOB: "waiting for the first task",
    Verb.FETCH: "fetching and writing",
    Verb.APPEND: "committing to the table",
    Verb.COMMIT: "moving the offsets",
    Verb.COMPACT: "putting small files together",
    Verb.CLOSE: "stopping Spark",
}


@contextlib.contextmanager
def showing(doing: Callable[[], Doing]) -> Iterator[None]:
    """Context manager: show what `doing` returns while a run goes on inside."""
    with own_stderr() as stream:
        console = Console(file=stream, highlight=False)
        if console.is_terminal and not console.is_dumb_terminal:
            picture = Picture(doing)
            with Live(
                get_renderable=picture.now,
                console=console,
                refresh_per_second=1 / _LOOK_S,
                transient=True,
            ):
                yield
        else:
            with following(Lines(doing, lambda line: print(line, file=stream, flush=True))):
                yield


class _Words:
    """The run's activity as text; the speed is of the fetch only."""

    def __init__(self) -> None:
        self._pace = Pace()

    def of(self, doing: Doing, now: float) -> tuple[str, str]:
        """Return the activity and its progress; nothing if unknown."""
        reached = doing.reached
        if reached is None or doing.verb is Verb.FIRST_JOB:
            return _WORDS[doing.verb], ""
        if doing.verb is not Verb.FETCH:
            return _WORDS[doing.verb], format_progress(reached)
        self._pace.see(now, reached)
        return _WORDS[doing.verb], format_progress(reached, self._pace)


class Picture:
    """A live display: the activity, and its progress below."""

    def __init__(self, doing: Callable[[], Doing]) -> None:
        self._doing, self._words, self._began = doing, _Words(), time.monotonic()
        self._spinner = Spinner("dots")

    def now(self) -> Group:
        """Return the current display."""
        doing, now = self._doing(), time.monotonic()
        what, how_far = self._words.of(doing, now)
        cells: list[RenderableType] = [self._spinner, Text(what)]
        if how_far and doing.reached:
            cells.append(
                ProgressBar(
                    total=max(doing.reached.offsets_in_all, 1),
                    completed=doing.reached.offsets,
                    width=24,
                )
            )
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells, Text(time_in_words(now - self._began), style="cyan"))
        return (
            Group(line, Text(f"  {how_far}", no_wrap=True, overflow="ellipsis"))
            if how_far
            else Group(line)
        )


class Lines:
    """Lines for output that nobody watches: that Spark starts, and progress after ten seconds, then
    every minute.
    """

    def __init__(
        self,
        doing: Callable[[], Doing],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing, self._say, self._clock = doing, say, clock
        self._words = _Words()
        self._verb: Verb | None = None
        self._between = FIRST_LINE_S
        self._next = clock() + self._between

    def look(self) -> None:
        """Write the lines that are due."""
        doing, now = self._doing(), self._clock()
        what, how_far = self._words.of(doing, now)
        before, self._verb = self._verb, doing.verb
        if now >= self._next:
            self._between = min(MOST_BETWEEN_LINES_S, 2 * self._between)
            self._next = now + self._between
        elif doing.verb is not Verb.START_SPARK or before is Verb.START_SPARK:
            return
        self.tell(what, how_far, doing)

    def tell(self, what: str, how_far: str, doing: Doing) -> None:
        """One line."""
        self._say(
            f"{datetime.now(UTC).isoformat(timespec='seconds')} etl: {what}"
            + (f": {how_far}" if how_far else "")
        )


@contextlib.contextmanager
def following(lines: Lines) -> Iterator[None]:
    """Context manager: call `lines` now and then in a thread."""
    ended = threading.Event()

    def follow() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody listens to standard error any more
            while not ended.wait(_LOOK_S):
                lines.look()

    watcher = threading.Thread(target=follow, name="showing", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextlib.contextmanager
def own_stderr() -> Iterator[TextIO]:
    """Standard error as it is now: while Spark starts, the process's own is exchanged for a file."""
    try:
        number = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # none, or one in memory
        yield sys.stderr
        return
    stream = os.fdopen(number, "w", encoding=sys.stderr.encoding, errors="backslashreplace")
    try:
        yield stream
    finally:
        with contextlib.suppress(OSError):  # what nobody takes any more
            stream.close()


_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "taskName"}
_OF_A_RUN = (
    "state",
    "exit_code",
    "records",
    "bytes",
    "records_per_second",
    "offsets_committed",
    "table_version",
    "total_seconds",
    "seconds",
)


class JsonLines(logging.Handler):
    """Writes JSON lines to `stream`, with the pipeline once settings are loaded, and the run while
    it goes on.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self.pipeline: str | None = None
        self.is_quiet = False
        """True: errors only."""
        self._report: Report | None = None

    def say(self, level: str, message: str, **more: Any) -> None:
        """Write one line. A closed stream is ignored."""
        if self.is_quiet and level not in ("error", "critical"):
            return
        run = self._report
        plan = run.plan if run else None
        told = {
            "time": at(int(time.time() * 1000)),
            "level": level,
            "message": message,
            "pipeline": self.pipeline,
            "run_id": run.run_id if run else None,
            "phase": _verb(run),
            "plan": plan.number if plan else None,
            **more,
        }
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            print(json.dumps(told, default=str), file=self._stream, flush=True)

    def error(self, error: EtlError) -> None:
        """Write the command's error, as in `--json`."""
        document = error.as_json()
        self.say("error", document.pop("message"), **document)

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a record of any Python logger."""
        more = {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
        if record.exc_info:
            more["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        self.say(record.levelname.lower(), record.getMessage(), **{**more, "logger": record.name})

    @contextlib.contextmanager
    def of_run(self, report: Report) -> Iterator[None]:
        """Context manager: lines belong to this run; the last one has its result."""
        self._report = report
        self.say("info", "the run begins", conf=report.process.conf)
        try:
            yield
        finally:
            level = "error" if report.error else "info"
            self.say(level, f"the run is {report.state.value}", **_came_to(report))

    @contextlib.contextmanager
    def progress(self, doing: Callable[[], Doing]) -> Iterator[None]:
        """Context manager: write progress of reading now and then."""
        with following(_Progress(doing, self)):
            yield


def _verb(run: Report | None) -> str | None:
    verb = run.watch.doing().verb if run else None
    return verb.value if verb else None


def _came_to(report: Report) -> dict[str, Any]:
    """Return the figures of a run's report; its error is written separately."""
    document = report.as_json()
    return {name: document[name] for name in _OF_A_RUN}


class _Progress(Lines):
    """Progress of a run as objects. The verb tells that Spark starts."""

    def __init__(self, doing: Callable[[], Doing], lines: JsonLines) -> None:
        super().__init__(doing, lambda line: None)
        self._lines = lines

    def tell(self, what: str, how_far: str, doing: Doing) -> None:
        """One object."""
        reached = doing.reached
        if reached is not None:
            self._lines.say(
                "info", f"{what}: {how_far}" if how_far else what, **dataclasses.asdict(reached)
            )
        elif doing.verb is not Verb.START_SPARK:
            self._lines.say("info", what)


@contextlib.contextmanager
def written() -> Iterator[JsonLines]:
    """Context manager: standard error is JSON inside, with Python's loggers and warnings."""
    with own_stderr() as stream:
        lines, root, ours = JsonLines(stream), logging.getLogger(), logging.getLogger("etl")
        before = ours.level
        root.addHandler(lines)
        ours.setLevel(logging.INFO)
        logging.captureWarnings(True)
        try:
            yield lines
        finally:
            logging.captureWarnings(False)
            ours.setLevel(before)
            root.removeHandler(lines)
