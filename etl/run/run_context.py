"""What does the caller of a run provide?

A command provides progress output, a context around the run, Spark defaults of the machine, and
the keys of `--set`. Without a caller that needs any of them: `ALONE`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from etl.report.run_progress import Doing
from etl.report.run_report import Report
from etl.settings.load import Change

Progress = Callable[[Callable[[], Doing]], contextlib.AbstractContextManager[None]]
"""Context manager that shows the progress of a run inside. Its argument returns the progress and
may be called from any thread.
"""
OfRun = Callable[[Report], contextlib.AbstractContextManager[None]]
"""Context manager: inside, the report's run is active; the report may be read at any time."""
SparkDefaults = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Spark settings of this machine (where Delta's jars are, ...) in addition to the given ones,
called when a session is built.
"""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the caller of a run provides: progress output, a context around the run, Spark defaults,
    and the keys that were set on the command line.
    """

    progress: Progress = lambda doing: contextlib.nullcontext()
    of_run: OfRun = lambda report: contextlib.nullcontext()
    spark_defaults: SparkDefaults = lambda given: {}
    changes: Sequence[Change] = ()
    """Keys set with `--set`; the settings include them."""


ALONE = RunContext()
