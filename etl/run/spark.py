"""When does a run start Spark, and where is a table that a catalog names?

The Spark session of a run, or of doctor's look: built when it is first needed, and stopped by
whoever built it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from etl.decide.table_storage import place_of_catalog, settings_for, settings_for_any
from etl.report.run_state import Phases, Verb
from etl.run.context import SparkDefaults
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RunSpark:
    """One session for the whole run."""

    def __init__(
        self,
        settings: Settings,
        defaults: SparkDefaults,
        phases: Phases,
        *,
        log: Path,
        app: str | None = None,
    ) -> None:
        self._settings, self._defaults, self._phases, self._log = settings, defaults, phases, log
        self._app = app or f"etl {settings.pipeline}"
        self._built: SparkSession | None = None
        self._restore_zone: Callable[[], None] | None = None
        self._is_in_store = False
        table = settings.table
        self._place = (
            table.path if table.is_placed else place_of_catalog(settings.spark, table.store)
        )
        """In which store the session is to write; None: in none that is known yet."""
        self._given_for_place: Mapping[str, str] = {}

    def session(self, *, is_short: bool = False) -> SparkSession:
        """The session of this run; one that was there before is used and left alone. `is_short`: it
        has little to do, where it is built.
        """
        from etl.io.spark.session import build_session, for_short_run, is_submitted, session_there

        there = self._built or session_there()
        if there is not None:
            self._enter_time_zone(there)
            self._enter_store(there)
            return there
        given = self._settings.spark
        self._given_for_place = settings_for(self._place, given) if self._place is not None else {}
        told_later = (
            {} if self._settings.table.is_placed or not is_submitted() else settings_for_any(given)
        )  # else a JVM of its own comes
        wanted = {**told_later, **self._given_for_place, **given}
        with self._phases.timed(Verb.START_SPARK):
            settings = {**self._defaults(wanted), **wanted}
            settings = for_short_run(settings, given) if is_short else settings
            self._built = build_session(self._app, settings, log=self._log)
            self._enter_store(self._built)
        return self._built

    def session_at(self, path: str) -> SparkSession:
        """The session, and that it can make a table there: one of our own begins anew where its JVM
        lacks what that store needs.
        """
        from etl.io.spark.session import is_submitted

        needed = settings_for(path, self._settings.spark)
        if (
            self._built is not None
            and not is_submitted()
            and not needed.items() <= self._given_for_place.items()
        ):
            self.stop(with_jvm=True)
        self._place, self._is_in_store = path, False
        return self.session(is_short=True)

    @property
    def is_ours(self) -> bool:
        """Whether this run built the session that it has."""
        return self._built is not None

    def _enter_time_zone(self, session: SparkSession) -> None:
        """A session that this run built has the zone already."""
        from etl.io.spark.session import use_time_zone

        if self._built is None and self._restore_zone is None:
            self._restore_zone = use_time_zone(session, self._settings.spark)

    def _enter_store(self, session: SparkSession) -> None:
        """Before a session's first use for the store, and for the table, which is the one that its
        catalog still has, where it is named.
        """
        from etl.io.spark.catalog import enter_store
        from etl.run.named_table import refuse_elsewhere

        if not self._is_in_store and self._place is not None:
            enter_store(session, self._place)
            refuse_elsewhere(session, self._settings)
            self._is_in_store = True

    def stop(self, *, with_jvm: bool = False) -> None:
        """Stop the session, if this run built one; `with_jvm`: and its JVM, unless spark-submit
        started that, where all stays.

        Its JVM may be gone already: who stops a run with SIGTERM, Airflow among them, often stops
        all processes of its group. A session that was there before gets its own time zone back.
        """
        if self._restore_zone is not None:
            with contextlib.suppress(Exception):  # whatever py4j says of a JVM that is gone
                self._restore_zone()
            self._restore_zone = None
        if self._built is not None:
            from etl.io.spark.session import end_jvm, is_submitted

            if with_jvm and is_submitted():  # a cluster may end the application with its context
                return
            with (
                self._phases.timed(Verb.CLOSE),
                contextlib.suppress(Exception),
            ):  # whatever py4j says of it
                self._built.stop()
            self._built, self._is_in_store = None, False
            if with_jvm:
                end_jvm()
