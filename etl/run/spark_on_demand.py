"""When does a run start Spark, and which path has a table that a catalog names?

The session is started on first use and stopped by its creator. The path of a named table is stored
in the ledger, so a run without new records starts no JVM; a run that starts Spark compares the path
(`reject_moved_table`). Whether the table is the pipeline's is decided by its id
(`decide.reconcile`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from etl.decide.spark_settings import MASTER
from etl.decide.table_rules import (
    as_written,
    catalog_of,
    is_recorded_location,
    managed_by_catalog,
    missing_files_error,
    place_in,
    reject_in_memory_catalog,
    reject_other_location,
    reject_temporary,
    unknown_name_error,
)
from etl.decide.table_storage import place_of_catalog, settings_for, settings_for_any
from etl.errors import EtlError, NotOurTable
from etl.io.delta.table_shape import open_table
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_side_documents import read_named_table
from etl.model.columns import spark_schema
from etl.model.snapshot import CatalogEntry, NamedTable
from etl.report.run_progress import Phases, Verb
from etl.run.read_rows import (
    columns_of_tasks,
    fitting_arrow_transform,
    format_rows,
    import_transform,
)
from etl.run.run_context import RunContext, SparkDefaults
from etl.run.service_interfaces import now_ms
from etl.settings.load import placed_by_name
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RunSpark:
    """The Spark session of a run."""

    def __init__(
        self,
        settings: Settings,
        defaults: SparkDefaults,
        phases: Phases,
        *,
        log: Path,
        app: str | None = None,
    ) -> None:
        self._settings = settings
        self._defaults = defaults
        self._phases = phases
        self._log = log
        self._app = app or f"etl {settings.pipeline}"
        self._built: SparkSession | None = None
        self._restore_zone: Callable[[], None] | None = None
        self._is_in_store = False
        table = settings.table
        self._place = place_of_catalog(settings.spark, table.store)
        """Where the session writes; None: unknown yet."""
        if table.is_placed:
            self._place = table.path
        self._given_for_place: Mapping[str, str] = {}

    def session(self, *, is_short: bool = False) -> SparkSession:
        """Return the session of this run; an existing one is used and not stopped. `is_short`: a
        new one is set up for little work.
        """
        from etl.io.spark.session import build_session, for_short_run, is_submitted, session_there

        existing = self._built or session_there()
        if existing is not None:
            self._enter_time_zone(existing)
            self._enter_store(existing)
            return existing
        given = with_import_path(self._settings)
        self._given_for_place = {}
        if self._place is not None:
            self._given_for_place = settings_for(self._place, given)
        for_later: Mapping[str, str] = {}
        if is_submitted() and not self._settings.table.is_placed:
            # The JVM is the submitter's, so it must fit whatever store the catalog names.
            for_later = settings_for_any(given)
        wanted = {**for_later, **self._given_for_place, **given}
        with self._phases.timed(Verb.START_SPARK):
            settings = {**self._defaults(wanted), **wanted}
            if is_short:
                settings = for_short_run(settings, given)
            self._built = build_session(self._app, settings, log=self._log)
            self._enter_store(self._built)
        return self._built

    def session_at(self, path: str) -> SparkSession:
        """Return a session that can create a table at `path`. A session of this run is started
        again if its JVM lacks the jars of that store.
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
        """Return True if this run started its session."""
        return self._built is not None

    def _enter_time_zone(self, session: SparkSession) -> None:
        """Set the time zone of an existing session; one that this run built has it."""
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
        """Stop the session, if this run built one. `with_jvm`: and its JVM, except under
        spark-submit, where nothing is stopped.

        Its JVM may have ended already: SIGTERM, for example of Airflow, often goes to all processes
        of a group. An existing session gets its time zone back.
        """
        if self._restore_zone is not None:
            with contextlib.suppress(Exception):  # of py4j, if the JVM has ended
                self._restore_zone()
            self._restore_zone = None
        if self._built is not None:
            from etl.io.spark.session import end_jvm, is_submitted

            if with_jvm and is_submitted():  # a cluster may end the application with its context
                return
            with self._phases.timed(Verb.CLOSE), contextlib.suppress(Exception):  # of py4j
                self._built.stop()
            self._built = None
            self._is_in_store = False
            if with_jvm:
                end_jvm()


_IMPORT_PATH = "spark.executorEnv.PYTHONPATH"
_SAFE_IMPORT_PATH = "spark.executorEnv.PYTHONSAFEPATH"


def with_import_path(settings: Settings) -> dict[str, str]:
    """Return the conf's Spark properties with the directory of its transform for Python workers,
    which import its module by name, in the order of the driver: the conf's directory, then the
    working directory (which Python itself would put first).
    """
    given = dict(settings.spark)
    folder = settings.transform.folder
    if settings.transform.dataframe is None or folder is None:
        return given
    from etl.io.spark.session import is_submitted, settings_of_file

    master = {**settings_of_file(), **given}.get(MASTER, "local")
    if is_submitted() or not master.startswith("local"):
        # Executors of a cluster have import paths of their own, and not the conf's directory.
        return given
    places = [folder, given.get(_IMPORT_PATH, ""), "."]
    given[_IMPORT_PATH] = os.pathsep.join(filter(None, places))
    given.setdefault(_SAFE_IMPORT_PATH, "1")
    return given


Making = Callable[[Settings], object]
"""Called with the path that the catalog would use, before it creates the table. Raises errors that
would prevent a run.
"""


class Placed(NamedTuple):
    """Settings with the path of the table."""

    settings: Settings
    asked: NamedTable | None = None
    """Spark's answer, not stored yet; None if the path was stored."""


def placed(
    settings: Settings,
    ledger: PlanLedger,
    run_context: RunContext,
    phases: Phases,
    *,
    name: str,
    making: Making | None = None,
) -> Placed:
    """Return the settings with the path of a named table.

    The path is looked up with Spark if none is stored for the name in that catalog. A pipeline that
    had a table of another name or catalog does not create one. Raises as `ask`.
    """
    stored = read_named_table(ledger)
    if is_recorded_location(stored, settings.table.called, catalog_of(settings.spark)):
        return Placed(placed_by_name(settings, stored.path))
    if stored is not None:
        making = None
    if making is not None:
        import_transform(settings)
    found = ask(settings, run_context, phases, name=name, making=making)
    return Placed(placed_by_name(settings, found.path), found)


def ask(
    settings: Settings,
    run_context: RunContext,
    phases: Phases,
    *,
    name: str,
    making: Making | None = None,
) -> NamedTable:
    """Return the path of `table.name` in Spark's catalogs, with the id of the table there. A
    session of this run ends with its JVM, since the next one may need other jars for the store.

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
    """Return the catalog's entry of the table; see `ask`."""
    from etl.io.spark.catalog import kind_of_catalog, look_up

    called = settings.table.called
    session = spark.session(is_short=True)
    entry = look_up(session, called)
    if entry is None and spark.is_ours:
        # the catalog in memory of a new session cannot have the table
        reject_in_memory_catalog(called, *kind_of_catalog(session, called))
    if entry is None and making is not None:
        entry = _made(spark, settings, making)
    if entry is None:
        raise unknown_name_error(called)
    return entry


def _made(spark: RunSpark, settings: Settings, making: Making) -> CatalogEntry | None:
    """Create the table in the catalog and return its entry. Errors that would prevent a run are
    raised before.

    A named table is never created by its path: the catalog would not know it.
    """
    from etl.io.spark.catalog import look_up, make_table, place_to_be

    called = settings.table.called
    session = spark.session()
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
        if "catalog-managed" in error.message:  # delta-rs' term for a table without a path
            raise managed_by_catalog(called) from error
        raise
    except EtlError as error:
        error.where.setdefault("table", called)
        raise
    if table is None:
        raise missing_files_error(called, at)
    return NamedTable(
        called, str(at), str(table.metadata().id), now_ms(), catalog_of(settings.spark)
    )


def reject_moved_table(session: SparkSession, settings: Settings) -> None:
    """Raise NeedsDecision if the catalog has another path of the table than these settings; also
    raises as `place_in` and `look_up`.
    """
    from etl.io.spark.catalog import look_up

    if settings.table.name is None or not settings.table.is_placed:
        return
    entry = look_up(session, settings.table.name)
    place = place_in(settings.table.name, entry) if entry else None
    reject_other_location(settings.table.name, settings.table.path, place)


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
