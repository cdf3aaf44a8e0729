"""Standard error for a machine: one JSON object a line, of what a command says, what a run comes
to, and what libraries log.

Each has `time` (ISO 8601 in UTC), `level` and `message`, and, null where there is none, `pipeline`,
`run_id`, `verb` and `plan`; some more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from etl.console.progress import Lines, following, own_stderr
from etl.errors import EtlError
from etl.report.describe import at
from etl.report.run_report import Report
from etl.report.run_state import Doing, Verb

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "taskName"}
_OF_A_RUN = (
    "state",
    "exit_code",
    "records",
    "bytes",
    "records_per_second",
    "offsets_committed",
    "delta_version",
    "seconds_in_all",
    "seconds",
)


class JsonLines(logging.Handler):
    """Writes lines to `stream`. It knows the pipeline once its settings are read, and the run while
    it goes on.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self.pipeline: str | None = None
        self.is_quiet = False
        """Errors alone are told."""
        self._report: Report | None = None

    def say(self, level: str, message: str, **more: Any) -> None:
        """One line. Whoever reads it may be gone: that ends nothing."""
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
            "verb": _verb(run),
            "plan": plan.number if plan else None,
            **more,
        }
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            print(json.dumps(told, default=str), file=self._stream, flush=True)

    def error(self, error: EtlError) -> None:
        """What ended the command, with what `--json` would tell of it."""
        document = error.as_json()
        self.say("error", document.pop("what"), **document)

    def emit(self, record: logging.LogRecord) -> None:
        """Of any logger of Python, also a library's."""
        more = {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
        if record.exc_info:
            more["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        self.say(record.levelname.lower(), record.getMessage(), **{**more, "logger": record.name})

    @contextlib.contextmanager
    def of_run(self, report: Report) -> Iterator[None]:
        """Inside, lines are of this run; the last one says what it came to."""
        self._report = report
        self.say("info", "the run begins", conf=report.process.conf)
        try:
            yield
        finally:
            level = "error" if report.error else "info"
            self.say(level, f"the run is {report.state.value}", **_came_to(report))

    @contextlib.contextmanager
    def progress(self, doing: Callable[[], Doing]) -> Iterator[None]:
        """Inside, it is said now and then how far the reading is."""
        with following(_Progress(doing, self)):
            yield


def _verb(run: Report | None) -> str | None:
    verb = run.watch.doing().verb if run else None
    return verb.value if verb else None


def _came_to(report: Report) -> dict[str, Any]:
    """What a run's report says of it in a few numbers; the error is told by itself."""
    document = report.as_json()
    return {name: document[name] for name in _OF_A_RUN}


class _Progress(Lines):
    """The lines of a run under way, as objects. That Spark starts is said by the verb."""

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
    """Inside, standard error is JSON, also what Python's loggers and warnings say."""
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
