"""One Spark session that can write Delta, from plain settings.

Owns our defaults. What spark-submit or its files say wins over them, what the caller says wins over
both, and a session that exists already is taken as it is, but for its time zone where a run
computes in it (`use_time_zone`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from etl.decide.table_storage import (
    TIME_ZONE,
    TIME_ZONE_OF_WORKERS,
    TimeZone,
    ZoneSource,
    is_ours,
    level_of,
    local_zone,
    packages,
    time_zone_of,
    without_ours,
)
from etl.edges.machine import cores
from etl.edges.spark.defaults_file import CLASS_PATH, JAVA_OPTIONS, settings_of_file
from etl.edges.spark.log_store import jar_path
from etl.edges.spark.starting import own_ctrl_c, what_is_started_writes_to
from etl.errors import SettingsError
from etl.model.plans import Codec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # without any handler Python prints errors to the terminal

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Fetched by Spark itself when nobody says where Delta's jars are."""
LOCAL_MASTER = "local[*,4]"
"""All cores; a task may fail three times, where plain `local[*]` gives up at its first failure."""

_EXTENSIONS = "spark.sql.extensions"
_DEFAULTS = {
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.parquet.compression.codec.zstd.level": str(level_of(Codec.ZSTD)),
    "spark.sql.debug.maxToStringFields": "200",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
"""Delta's own 50 snapshot partitions and Spark's 200 shuffle partitions make a small write take 15
s. Timestamps as Spark writes them (INT96) are nanoseconds for pyarrow and so for delta-rs, which
cannot read a file with one before 1677 or after 2262. Parquet's own level of zstd, 3, takes about
twice the time of ours, and JSON comes out no smaller. No writer of Delta hands an option for it on
to Parquet.
"""
_FIRST_COMPILER_ALONE = "-XX:TieredStopAtLevel=1"
"""For a JVM that ends within a minute: half of its processor time would be its second compiler's
(docs/adr/0033). No collector is chosen beside it: a JVM that is told of two does not start.
"""
_LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_PYTHON = "spark.pyspark.python"
WHERE_JARS_ARE = ("spark.jars", "spark.jars.packages", CLASS_PATH)
"""Settings that name Delta's jars."""


def build_session(
    app_name: str, settings: Mapping[str, str], *, log: Path | None = None
) -> SparkSession:
    """The session of this process, or a new one with `settings` over our defaults, whose JVM writes
    to `log` instead of the terminal.

    `settings` are plain Spark settings; `spark.jars` names Delta's jars where they lie on this
    machine, otherwise Spark fetches them. In local mode the workers run this very Python: Spark
    would take the first `python3` on PATH.
    """
    from pyspark.sql import SparkSession

    there = session_there()
    if there is not None:
        return there
    builder = SparkSession.builder.appName(app_name)
    chosen = {**complete(settings, _submitted()), **_zones(settings)}
    if _PYTHON in chosen:
        os.environ["PYSPARK_PYTHON"] = chosen[
            _PYTHON
        ]  # pyspark reads the setting only when spark-submit started it
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with (
        own_ctrl_c(),
        what_is_started_writes_to(log),
        _translating_zone_errors(time_zone(settings)),
    ):
        session = builder.getOrCreate()
    _log_what_the_accumulators_meet(session)
    return session


def time_zone(settings: Mapping[str, str]) -> TimeZone:
    """Return the session time zone that a run by these settings has. Starts nothing."""
    there = session_there() if "pyspark" in sys.modules else None
    if there is not None:
        return time_zone_of(settings, dict(there.conf.getAll))
    return time_zone_of(settings, _configured())


def use_time_zone(session: SparkSession, settings: Mapping[str, str]) -> Callable[[], None]:
    """Give a session that was there before the zone of the run; return what gives it back its own.

    A zone that the session was given explicitly stays, unless the conf names one. Raises
    SettingsError.
    """
    before = dict(session.conf.getAll).get(TIME_ZONE)
    wanted = time_zone(settings)
    if before == wanted.name:
        return lambda: None
    with _translating_zone_errors(wanted):
        session.conf.set(TIME_ZONE, wanted.name)

    def restore() -> None:
        if before is None:
            session.conf.unset(TIME_ZONE)
        else:
            session.conf.set(TIME_ZONE, before)

    return restore


def _zones(settings: Mapping[str, str]) -> dict[str, str]:
    """The zone of a new session, and that of the Python workers, which a function of a transform
    may ask.
    """
    zone, configured = time_zone(settings).name, _configured()
    workers = (
        settings.get(TIME_ZONE_OF_WORKERS)
        or configured.get(TIME_ZONE_OF_WORKERS)
        or local_zone(zone)
    )
    return {TIME_ZONE: zone, TIME_ZONE_OF_WORKERS: workers}


def _configured() -> dict[str, str]:
    """What Spark is told elsewhere: by spark-submit, which has read its files, else by
    `spark-defaults.conf`.
    """
    return _submitted() if is_submitted() else settings_of_file()


@contextlib.contextmanager
def _translating_zone_errors(zone: TimeZone) -> Iterator[None]:
    """Raises SettingsError for a name that Spark does not know."""
    try:
        yield
    except Exception as error:
        if zone.source is ZoneSource.DEFAULT or TIME_ZONE not in str(error):
            raise
        what = f"Spark does not know the time zone {zone.name!r} ({zone.source.value})"
        check = "the name of a region, e.g. Europe/Berlin, or an offset, e.g. +01:00; without one it is UTC"
        raise SettingsError(what, key=TIME_ZONE, check=check) from error


def for_short_run(settings: Mapping[str, str], given: Collection[str]) -> dict[str, str]:
    """The same, and that the JVM is to be one for a short run.

    Not where somebody chose its options (`given` are the names of what others than we set), in
    Spark's own file neither, not where tasks run elsewhere, and not where spark-submit has started
    it already.
    """
    is_chosen = JAVA_OPTIONS in given or JAVA_OPTIONS in settings_of_file()
    is_ours = (
        settings.get("spark.master", LOCAL_MASTER).startswith("local")
        and not is_chosen
        and not is_submitted()
    )
    options = f"{settings.get(JAVA_OPTIONS, '')} {_FIRST_COMPILER_ALONE}".strip()
    return {**settings, **({JAVA_OPTIONS: options} if is_ours else {})}


def session_there() -> SparkSession | None:
    """The session that this process has already, whichever thread made it; it belongs to who made
    it.

    "Active" is a word about one thread of the JVM, and each Python thread has a thread of its own
    there: in a second cell's thread, or after a connection to the JVM was made anew, no session is
    active while the context lives.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:  # no public way to ask
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def is_stopped(session: SparkSession) -> bool:
    """Whether somebody stopped the session, or its context, in this process."""
    return session.sparkContext._jsc is None  # no public way to ask; `stop` sets it


def _log_what_the_accumulators_meet(session: SparkSession) -> None:
    """When the JVM ends first, as when a whole process group is stopped, pyspark's server of
    accumulators prints a traceback.

    It goes to Python's logging instead; what it means for a run is told by the call that finds the
    JVM gone.
    """

    def log_it(request: object, client_address: object) -> None:
        _log.error("the JVM hung up on pyspark's accumulators", exc_info=True)

    server = session.sparkContext._accumulatorServer  # no public way to it
    if server is not None:
        server.handle_error = log_it  # type: ignore[method-assign]


def parallelism_of(settings: Mapping[str, str]) -> int | None:
    """How many tasks will work at once, as Spark's `defaultParallelism` says it; None where only
    the cluster knows.

    Starts nothing: a session that is there is asked, else it is what the settings say.
    """
    if "pyspark" in sys.modules:
        there = session_there()
        if there is not None:
            return int(there.sparkContext.defaultParallelism)
    given = {**_submitted(), **settings}
    said = given.get("spark.default.parallelism", "")
    if said.isascii() and said.isdecimal() and int(said):
        return int(said)
    found = _LOCAL.fullmatch(given.get("spark.master", LOCAL_MASTER))
    if found is None:
        return None
    return cores() if found[1] == "*" else int(found[1] or 1)


_LOCAL = re.compile(r"local(?:\[(\*|\d{1,6})(?:,\s*\d+)?\])?")


def complete(settings: Mapping[str, str], submitted: Mapping[str, str]) -> dict[str, str]:
    """What to set: `settings`, and each of our defaults that neither they nor `submitted` mention."""
    settings = without_ours(settings, submitted)
    given = {**submitted, **settings}
    master = given.get("spark.master", LOCAL_MASTER)
    defaults = {**_DEFAULTS, "spark.master": master}
    if master.startswith("local"):
        defaults |= _LOCAL_DEFAULTS
        defaults[_PYTHON] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    if not any(key in given for key in WHERE_JARS_ARE):
        defaults["spark.jars.packages"] = ",".join([DELTA_PACKAGE, *packages(given)])
    chosen = {key: value for key, value in defaults.items() if key not in given} | dict(settings)
    if _DEFAULTS[_EXTENSIONS] not in given.get(_EXTENSIONS, _DEFAULTS[_EXTENSIONS]).split(","):
        chosen[_EXTENSIONS] = f"{given[_EXTENSIONS]},{_DEFAULTS[_EXTENSIONS]}"
    if is_ours(settings) and str(jar_path()) not in given.get(CLASS_PATH, "").split(os.pathsep):
        chosen["spark.jars"] = ",".join(filter(None, [given.get("spark.jars"), str(jar_path())]))
    return chosen


def is_submitted() -> bool:
    """Whether spark-submit started this process. It hands on what is said on standard error as
    standard output.
    """
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted() -> dict[str, str]:
    """What spark-submit was told: it starts the JVM first and leaves the port of its gateway in the
    environment.
    """
    if not is_submitted():
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # no public way to reach the JVM before there is a session
    return dict(SparkConf().getAll())
