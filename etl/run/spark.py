"""When does a run start Spark, and where is a table that a catalog names?

The session is created when it is first needed and stopped by its creator. The location of a named
table is kept in the ledger, so idle runs start no JVM; a run that starts Spark anyway compares it
(`reject_moved_table`). Whether the table there is the pipeline's is decided by its id
(`decide.reconcile`).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from etl.decide.table_rules import (
    as_written,
    catalog_of,
    goes_by,
    gone,
    managed_by_catalog,
    not_there,
    place_in,
    reject_in_memory_catalog,
    reject_other_location,
    reject_temporary,
)
from etl.decide.table_storage import place_of_catalog, settings_for, settings_for_any
from etl.errors import EtlError, NotOurTable
from etl.io.delta.table import open_table
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_records import read_named_table
from etl.model.columns import spark_schema
from etl.model.snapshot import CatalogEntry, NamedTable
from etl.report.run_state import Phases, Verb
from etl.run.rows import columns_of_tasks, fitting_arrow_transform, format_rows
from etl.run.services import RunContext, SparkDefaults, now_ms
from etl.settings.load import placed_by_name
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        describe_later_settings = (
            {} if self._settings.table.is_placed or not is_submitted() else settings_for_any(given)
        )  # else a JVM of its own comes
        wanted = {**describe_later_settings, **self._given_for_place, **given}
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
        """True if this run started its session."""
        return self._built is not None

    def _enter_time_zone(self, session: SparkSession) -> None:
        """A session that this run built has the zone already."""
        from etl.io.spark.session import use_time_zone

        if self._built is None and self._restore_zone is None:
            self._restore_zone = use_time_zone(session, self._settings.spark)

    def _enter_store(self, session: SparkSession) -> None:
        """Prepare a session's first use of the store, and check a named table's location in its
        catalog.
        """
        from etl.io.spark.catalog import enter_store

        if not self._is_in_store and self._place is not None:
            enter_store(session, self._place)
            reject_moved_table(session, self._settings)
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


Making = Callable[[Settings], object]
"""Called with the location that the catalog would use, before it creates the table: raises what
prevents a run.
"""


class Placed(NamedTuple):
    """Settings by which the table can be opened."""

    settings: Settings
    asked: NamedTable | None = None
    """What Spark just reported, not recorded yet; None if it was not asked."""


def placed(
    settings: Settings,
    ledger: PlanLedger,
    run_context: RunContext,
    phases: Phases,
    *,
    name: str,
    making: Making | None = None,
) -> Placed:
    """Return the settings with a named table's location. Spark is asked if none is recorded for the
    name in that catalog. A pipeline that had a table by another name or in another catalog does not
    create one. Raises as `ask`.
    """
    kept = read_named_table(ledger)
    if goes_by(kept, settings.table.called, catalog_of(settings.spark)):
        return Placed(placed_by_name(settings, kept.path))
    found = ask(settings, run_context, phases, name=name, making=making if kept is None else None)
    return Placed(placed_by_name(settings, found.path), found)


def ask(
    settings: Settings,
    run_context: RunContext,
    phases: Phases,
    *,
    name: str,
    making: Making | None = None,
) -> NamedTable:
    """Return Spark's location of `table.name`, with the id of the table there; our own session ends
    with its JVM, since the next one may need other jars for the store.

    `making`: creates an unknown table. Raises SettingsError for a catalog that Spark does not know,
    NotOurTable for a table that cannot be loaded by path and, without `making`, for an unknown
    name, NeedsDecision if nothing is at the location, TableUnreachable.
    """
    called = settings.table.called
    reject_temporary(called)
    log = Path(settings.report.path, f"{settings.name_in_files}-{name}.spark.log")
    spark = RunSpark(settings, run_context.spark_defaults, phases, log=log)
    try:
        with translating_spark_errors():
            entry = entry_of(spark, settings, making)
    finally:
        spark.stop(with_jvm=True)
    return of_entry(settings, entry)


def entry_of(spark: RunSpark, settings: Settings, making: Making | None = None) -> CatalogEntry:
    """The catalog's word; see `ask`."""
    from etl.io.spark.catalog import kind_of_catalog, look_up

    called, session = settings.table.called, spark.session(is_short=True)
    entry = look_up(session, called)
    if (
        entry is None and spark.is_ours
    ):  # nobody but us can have made a table in the memory of that session
        reject_in_memory_catalog(called, *kind_of_catalog(session, called))
    if entry is None and making is not None:
        entry = _made(spark, settings, making)
    if entry is None:
        raise not_there(called)
    return entry


def _made(spark: RunSpark, settings: Settings, making: Making) -> CatalogEntry | None:
    """Return the catalog's entry of a table that it creates now. What prevents a run is raised
    before, so that none is created then.
    """
    from etl.io.spark.catalog import look_up, make_table, place_to_be

    called, session = settings.table.called, spark.session()
    place = place_to_be(session, called)
    if place is None:
        with _placed_nowhere(settings) as new:
            making(new)
    else:
        at = placed_by_name(settings, as_written(place))
        making(at)
        session = spark.session_at(at.table.path)
    make_table(_no_rows(session, settings), called, settings.table.partition_by)
    return look_up(session, called)


def of_entry(settings: Settings, entry: CatalogEntry) -> NamedTable:
    """Return the location and the table's id."""
    called = settings.table.called
    at = placed_by_name(settings, place_in(called, entry)).table.path
    try:
        table = open_table(at)
    except NotOurTable as error:
        if (
            "catalog-managed" in error.message
        ):  # so delta-rs calls it, which reads none by their path
            raise managed_by_catalog(called) from error
        raise
    except EtlError as error:
        error.where.setdefault("table", called)
        raise
    if table is None:
        raise gone(called, at)
    return NamedTable(
        called, str(at), str(table.metadata().id), now_ms(), catalog_of(settings.spark)
    )


def reject_moved_table(session: SparkSession, settings: Settings) -> None:
    """Raises NeedsDecision where the catalog has the table elsewhere by now than these settings, as
    `place_in` does, and as `look_up`.
    """
    from etl.io.spark.catalog import look_up

    if settings.table.name is None or not settings.table.is_placed:
        return
    entry = look_up(session, settings.table.name)
    reject_other_location(
        settings.table.name,
        settings.table.path,
        place_in(settings.table.name, entry) if entry else None,
    )


@contextlib.contextmanager
def _placed_nowhere(settings: Settings) -> Iterator[Settings]:
    """Return the settings as if the table were at an empty place."""
    with tempfile.TemporaryDirectory() as nothing:
        yield settings.model_copy(
            update={"table": settings.table.placed(str(Path(nothing, "new")), None)}
        )


def _no_rows(session: SparkSession, settings: Settings) -> DataFrame:
    """Return an empty DataFrame with a run's columns, to check as for a new table."""
    from etl.io.delta.append import with_event_date

    with _placed_nowhere(settings) as new:
        columns: object = spark_schema(physical=settings.source.is_physical)
        if fitting_arrow_transform(new):
            from pyspark.sql.pandas.types import from_arrow_schema

            columns = from_arrow_schema(columns_of_tasks(new), prefer_timestamp_ntz=True)
        rows = format_rows(session.createDataFrame([], columns), new)  # type: ignore[call-overload]
        return with_event_date(rows, settings.table.partition_by)
