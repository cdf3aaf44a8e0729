"""What a run takes from whoever started it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from etl.report.phases import Doing

Progress = Callable[[Callable[[], Doing]], contextlib.AbstractContextManager[None]]
"""Shows inside what a run is at; given is how to ask for it, which may be done from any thread."""
SparkDefaults = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Plain Spark settings of this machine (where Delta's jars are, ...) beside those given, asked for when a session is built."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run takes from whoever started it."""

    progress: Progress = lambda doing: contextlib.nullcontext()
    spark_defaults: SparkDefaults = lambda given: {}


ALONE = RunContext()


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)
