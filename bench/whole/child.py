"""A process that executes jobs one after the other, in lines of JSON: the timed code runs in it,
and the timer outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.whole.processes import Peaks, cpu_seconds

_LOG_BYTES = 2000
_ENDING_S = 60.0
_MOST_S = 1200.0
"""A job that takes longer is ended with its process."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a job took."""

    seconds: float
    """All of it."""
    cpu: float
    """Seconds of processor time of the process and all below it."""
    figures: Mapping[str, Any]
    """The job's own figures."""
    peaks: Mapping[str, int]


class Failed(Exception):
    """A job failed; its text is the last output."""


class Child:
    """`with Child("bench.whole.peer", folder) as child: child.do(...)`; what it prints goes
    into a file of `folder`.
    """

    def __init__(self, module: str, folder: Path, *words: str) -> None:
        self._log = folder / f"{module.rpartition('.')[2]}-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Send no more jobs: it ends by itself, or is ended."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def do(self, *, peaks: bool = False, **job: Any) -> Spent:
        """Ask for a job and wait. `peaks`: look at memory meanwhile. Raises Failed."""
        assert self._process.stdin and self._process.stdout
        pid, watch = self._process.pid, Peaks(self._process.pid)
        used, began = cpu_seconds(pid), time.monotonic()
        too_long = threading.Timer(_MOST_S, self._process.kill)
        too_long.start()
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            if peaks:
                with watch:
                    line = self._process.stdout.readline()
            else:
                line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            too_long.cancel()
        seconds = time.monotonic() - began
        if not line:
            raise Failed(self._log.read_text(errors="replace")[-_LOG_BYTES:])
        reported = json.loads(line)
        if "failed" in reported:
            raise Failed(reported["failed"])
        return Spent(
            reported.pop("seconds", seconds), cpu_seconds(pid) - used, reported, watch.largest()
        )


def serve(jobs: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """The child's side: each line of standard input is a job, its answer a line. What else is
    printed goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = jobs(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": _shortened(f"{type(error).__name__}: {error}")}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _shortened(failed: str) -> str:
    """The beginning, and the innermost cause: of an exception of the JVM that is the last that is
    called one.
    """
    causes = [line for line in failed.splitlines() if line.startswith("Caused by:")]
    return "\n".join([failed[:_LOG_BYTES], *causes[-1:]])
