"""The Spark session of a run: built when it is first needed, and stopped by whoever built it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from etl.report.phases import Phases, Verb
from etl.run.context import SparkDefaults
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RunSpark:
    """One session for the whole run."""

    def __init__(self, settings: Settings, defaults: SparkDefaults, phases: Phases, *, log: Path) -> None:
        self._settings, self._defaults, self._phases, self._log = settings, defaults, phases, log
        self._built: SparkSession | None = None

    def session(self, *, is_short: bool = False) -> SparkSession:
        """The session of this run; one that was there before is used and left alone. `is_short`: it has little to do, where it is built."""
        from etl.edges.spark.session import build_session, for_short_run, session_there

        there = self._built or session_there()
        if there is not None:
            return there
        wanted = self._settings.spark
        with self._phases.timed(Verb.START_SPARK):
            settings = {**self._defaults(wanted), **wanted}
            settings = for_short_run(settings, wanted) if is_short else settings
            self._built = build_session(f"etl {self._settings.pipeline}", settings, log=self._log)
        return self._built

    def stop(self) -> None:
        """Stop the session, if this run built one.

        Its JVM may be gone already: who stops a run with SIGTERM, Airflow among them, often stops all processes of its group.
        """
        if self._built is not None:
            with self._phases.timed(Verb.CLOSE), contextlib.suppress(Exception):  # whatever py4j says of it
                self._built.stop()
            self._built = None
