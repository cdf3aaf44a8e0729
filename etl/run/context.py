"""What a run takes from whoever started it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from etl.report.run_report import Report
from etl.report.run_state import Doing
from etl.settings.load import Change

Progress = Callable[[Callable[[], Doing]], contextlib.AbstractContextManager[None]]
"""Shows inside what a run is at; given is how to ask for it, which may be done from any thread."""
OfRun = Callable[[Report], contextlib.AbstractContextManager[None]]
"""Inside is the run of this report; it may be asked at any moment."""
SparkDefaults = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Plain Spark settings of this machine (where Delta's jars are, ...) beside those given, asked for
when a session is built.
"""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run takes from whoever started it."""

    progress: Progress = lambda doing: contextlib.nullcontext()
    of_run: OfRun = lambda report: contextlib.nullcontext()
    spark_defaults: SparkDefaults = lambda given: {}
    changes: Sequence[Change] = ()
    """What was said on the command line of keys of the conf; the settings have it already."""


ALONE = RunContext()


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)
