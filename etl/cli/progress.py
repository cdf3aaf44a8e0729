"""How is the progress of a run shown?

On standard error: a live display on a terminal, else periodic lines, from a thread that can neither
fail nor slow the run. With `--log-format json` one JSON object per line, with
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
from etl.report.describe import format_time
from etl.report.report_json import report_as_json
from etl.report.run_progress import Doing, Pace, Verb, format_progress, time_in_words
from etl.report.run_report import Report

FIRST_LINE_S = 10.0
MAX_BETWEEN_LINES_S = 60.0
_REFRESH_S = 0.25
_PHASES = {
    None: "running",
    Verb.CONNECT: "connecting",
    Verb.OBSERVE: "observing brokers, ledger and table",
    Verb.RECONCILE: "reconciling",
    Verb.PLAN: "planning",
    Verb.START_SPARK: "starting Spark",
    Verb.FIRST_JOB: "waiting for the first task",
    Verb.FETCH: "fetching and writing",
    Verb.APPEND: "committing to the table",
    Verb.COMMIT: "committing the offsets",
    Verb.COMPACT: "compacting small files",
    Verb.CLOSE: "closing",
}


@contextlib.contextmanager
def showing(doing: Callable[[], Doing]) -> Iterator[None]:
    """Context manager: show what `doing` returns while the run inside is active."""
    with own_stderr() as stream:
        console = Console(file=stream, highlight=False)
        if console.is_terminal and not console.is_dumb_terminal:
            picture = Picture(doing)
            with Live(
                get_renderable=picture.now,
                console=console,
                refresh_per_second=1 / _REFRESH_S,
                transient=True,
            ):
                yield
        else:
            lines = Lines(doing, lambda line: print(line, file=stream, flush=True))
            with following(lines):
                yield


class _PhaseText:
    """The phase of a run as text. Only the fetch has a speed."""

    def __init__(self) -> None:
        self._pace = Pace()

    def of(self, doing: Doing, now: float) -> tuple[str, str]:
        """Return the phase and its progress (empty: unknown)."""
        phase = _PHASES[doing.verb]
        reached = doing.reached
        if reached is None or doing.verb is Verb.FIRST_JOB:
            return phase, ""
        if doing.verb is not Verb.FETCH:
            return phase, format_progress(reached)
        self._pace.see(now, reached)
        return phase, format_progress(reached, self._pace)


class Picture:
    """A live display: the phase, and its progress below."""

    def __init__(self, doing: Callable[[], Doing]) -> None:
        self._doing = doing
        self._phase_text = _PhaseText()
        self._began = time.monotonic()
        self._spinner = Spinner("dots")

    def now(self) -> Group:
        """Return the current display."""
        doing = self._doing()
        now = time.monotonic()
        phase, progress = self._phase_text.of(doing, now)
        cells: list[RenderableType] = [self._spinner, Text(phase)]
        if progress and doing.reached:
            total = max(doing.reached.offsets_in_all, 1)
            cells.append(ProgressBar(total=total, completed=doing.reached.offsets, width=24))
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells, Text(time_in_words(now - self._began), style="cyan"))
        if not progress:
            return Group(line)
        return Group(line, Text(f"  {progress}", no_wrap=True, overflow="ellipsis"))


class Lines:
    """Progress without a terminal: a line when Spark starts, one after ten seconds, then one per
    minute.
    """

    def __init__(
        self,
        doing: Callable[[], Doing],
        write: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing = doing
        self._write = write
        self._clock = clock
        self._phase_text = _PhaseText()
        self._verb: Verb | None = None
        self._between = FIRST_LINE_S
        self._next = clock() + self._between

    def update(self) -> None:
        """Write the lines that are due."""
        doing = self._doing()
        now = self._clock()
        phase, progress = self._phase_text.of(doing, now)
        before = self._verb
        self._verb = doing.verb
        if now >= self._next:
            self._between = min(MAX_BETWEEN_LINES_S, 2 * self._between)
            self._next = now + self._between
        elif doing.verb is not Verb.START_SPARK or before is Verb.START_SPARK:
            return
        self.write(phase, progress, doing)

    def write(self, phase: str, progress: str, doing: Doing) -> None:
        """Write one line."""
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')} etl: {phase}"
        if progress:
            line += f": {progress}"
        self._write(line)


@contextlib.contextmanager
def following(lines: Lines) -> Iterator[None]:
    """Context manager: update `lines` periodically in a thread."""
    ended = threading.Event()

    def follow() -> None:
        with contextlib.suppress(OSError, ValueError):  # standard error is closed
            while not ended.wait(_REFRESH_S):
                lines.update()

    watcher = threading.Thread(target=follow, name="showing", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextlib.contextmanager
def own_stderr() -> Iterator[TextIO]:
    """Context manager: a copy of standard error, because Spark's start redirects the process's own
    descriptor to a file.
    """
    try:
        number = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # none, or one in memory
        yield sys.stderr
        return
    stream = os.fdopen(number, "w", encoding=sys.stderr.encoding, errors="backslashreplace")
    try:
        yield stream
    finally:
        with contextlib.suppress(OSError):  # standard error is closed
            stream.close()


_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "taskName"}
_RESULT_FIELDS = (
    "state",
    "exit_code",
    "records_read",
    "rows_written",
    "bytes",
    "records_per_second",
    "offsets_committed",
    "table_version",
    "total_seconds",
    "seconds",
)


class JsonLines(logging.Handler):
    """Writes JSON lines to `stream`. They have the pipeline once settings are loaded, and the run
    while it is active.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self.pipeline: str | None = None
        self.is_quiet = False
        """True: errors only."""
        self._report: Report | None = None

    def write(self, level: str, message: str, **fields: Any) -> None:
        """Write one line. A closed stream is ignored."""
        if self.is_quiet and level not in ("error", "critical"):
            return
        line = {
            "time": format_time(int(time.time() * 1000)),
            "level": level,
            "message": message,
            "pipeline": self.pipeline,
            **_run_fields(self._report),
            **fields,
        }
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            print(json.dumps(line, default=str), file=self._stream, flush=True)

    def error(self, error: EtlError) -> None:
        """Write the command's error, as in `--json`."""
        document = error.as_json()
        self.write("error", document.pop("message"), **document)

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a record of any Python logger."""
        fields = {}
        for name, value in record.__dict__.items():
            if name not in _PLAIN:
                fields[name] = value
        if record.exc_info:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        fields["logger"] = record.name
        self.write(record.levelname.lower(), record.getMessage(), **fields)

    @contextlib.contextmanager
    def of_run(self, report: Report) -> Iterator[None]:
        """Context manager: the lines inside belong to this run; the last one has its result."""
        self._report = report
        self.write("info", "Run started", conf=report.process.conf)
        try:
            yield
        finally:
            level = "error" if report.error else "info"
            self.write(level, f"Run ended: {report.state.value}", **_result_fields(report))

    @contextlib.contextmanager
    def progress(self, doing: Callable[[], Doing]) -> Iterator[None]:
        """Context manager: write progress periodically."""
        with following(_Progress(doing, self)):
            yield


def _run_fields(report: Report | None) -> dict[str, Any]:
    """Return run, phase and plan of a line; each is None if there is none at present."""
    fields: dict[str, Any] = {"run_id": None, "phase": None, "plan": None}
    if report is None:
        return fields
    plan = report.plan
    verb = report.watch.doing().verb
    fields["run_id"] = report.run_id
    if verb:
        fields["phase"] = verb.value
    if plan:
        fields["plan"] = plan.number
    return fields


def _result_fields(report: Report) -> dict[str, Any]:
    """Return the figures of a run's report; its error is written separately."""
    document = report_as_json(report)
    return {name: document[name] for name in _RESULT_FIELDS}


class _Progress(Lines):
    """Progress of a run as JSON objects. There is none for the start of Spark, which is a phase."""

    def __init__(self, doing: Callable[[], Doing], lines: JsonLines) -> None:
        super().__init__(doing, lambda line: None)
        self._lines = lines

    def write(self, phase: str, progress: str, doing: Doing) -> None:
        """Write one object."""
        if doing.reached is not None:
            message = phase
            if progress:
                message = f"{phase}: {progress}"
            self._lines.write("info", message, **dataclasses.asdict(doing.reached))
        elif doing.verb is not Verb.START_SPARK:
            self._lines.write("info", phase)


@contextlib.contextmanager
def written() -> Iterator[JsonLines]:
    """Context manager: inside, standard error is JSON, also of Python's loggers and warnings."""
    with own_stderr() as stream:
        lines = JsonLines(stream)
        root = logging.getLogger()
        ours = logging.getLogger("etl")
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
