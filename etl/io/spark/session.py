"""How does a Spark session start and end, and what do its failures mean?

Settings: the caller's win over spark-submit and its files, which win over our defaults. A setting
passed to the builder replaces the one of `spark-defaults.conf`, so ours are merged with that file's
text. An existing session is used as it is, except for the time zone (`use_time_zone`).

The JVM that this process started is ended with the session, so that the next one may use other
jars. Failures: Spark lost a process (its JVM, an executor, a Python worker), a worker lacks a
package, or a row could not be computed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
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
from etl.errors import EtlError, ProcessLost, SettingsError
from etl.io.process import cores
from etl.io.spark.log_store import jar_path
from etl.model.plans import Codec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"
_ENDS = re.compile(r"\r\n|\r|\n")
_JOINED = re.compile(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*")
_LINE = re.compile(r"[ \t\f]*([^\s=:]+)(?:[ \t\f]*[=:]|[ \t\f])[ \t\f]*(.*)")


def settings_of_file() -> dict[str, str]:
    """Its settings, by Java's rules for such files but for escapes in them; none where there is no
    such file.
    """
    file = _folder() / "spark-defaults.conf"
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    written = [
        line for line in _ENDS.split(text) if not line.lstrip(" \t\f").startswith(("#", "!"))
    ]
    lines = _JOINED.sub(r"\1", "\n".join(written)).split("\n")
    return {found[1]: found[2].strip() for line in lines if (found := _LINE.match(line))}


def without_file_options(ours: Mapping[str, str]) -> dict[str, str]:
    """Return our settings without the JVM's options if the file has some, and with its class path
    before ours.
    """
    theirs = settings_of_file()
    kept = {key: value for key, value in ours.items() if key != JAVA_OPTIONS or key not in theirs}
    if CLASS_PATH in kept and theirs.get(CLASS_PATH):
        kept[CLASS_PATH] += os.pathsep + theirs[CLASS_PATH]
    return kept


def _folder() -> Path:
    """Return the directory of Spark's own scripts: the configured one, or that of the installed
    Spark.
    """
    named, home, installed = (
        os.environ.get("SPARK_CONF_DIR"),
        os.environ.get("SPARK_HOME"),
        find_spec("pyspark"),
    )
    if not home and installed and installed.origin:
        home = str(Path(installed.origin).parent)
    return Path(named) if named else Path(home or "", "conf")


@contextlib.contextmanager
def own_ctrl_c() -> Iterator[None]:
    """Context manager: a first Ctrl-C or SIGTERM waits until the session exists; a second one ends
    the starting JVM.

    pyspark leaves a JVM behind for ever if its start is interrupted: it deletes the directory with
    the JVM's port, and the JVM fails before it watches its parent. pyspark's own Ctrl-C handler
    calls the JVM in the middle of another call, so the former handlers are restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    ours = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def wait(kind: int, _frame: FrameType | None) -> None:
        came.append(kind)
        if len(came) > 1:
            raise KeyboardInterrupt

    for kind in ours:
        signal.signal(kind, wait)
    try:
        yield
    except KeyboardInterrupt as stop:
        _end_what_was_started(stop)
        raise
    finally:
        for kind, handler in ours.items():
            signal.signal(kind, handler)
        if came:
            signal.raise_signal(came[0])


def _end_what_was_started(stop: KeyboardInterrupt) -> None:
    """End a starting JVM, which only pyspark's waiting function refers to."""
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        for held in frame.f_locals.values():
            if isinstance(held, subprocess.Popen):
                held.kill()


@contextlib.contextmanager
def what_is_started_writes_to(log: Path | None) -> Iterator[None]:
    """A JVM that is started inside writes its log, and its workers theirs, to this file instead of
    the terminal.

    A JVM keeps the standard output and error that its parent had when it was started, so these two
    are exchanged for that moment.
    """
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        for number, before in enumerate(kept, start=1):
            os.dup2(before, number)
            os.close(before)


_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # without any handler Python prints errors to the terminal

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Fetched by Spark itself if Delta's jars are not configured."""
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
"""For a JVM that lives less than a minute: its second compiler would take half of the processor
time (docs/adr/0033). No collector is set, since a JVM with two does not start.
"""
_LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_PYTHON = "spark.pyspark.python"
WHERE_JARS_ARE = ("spark.jars", "spark.jars.packages", CLASS_PATH)
"""Settings that name Delta's jars."""


def build_session(
    app_name: str, settings: Mapping[str, str], *, log: Path | None = None
) -> SparkSession:
    """Return this process's session, or a new one with `settings` over our defaults, whose JVM logs
    to `log`.

    `settings` are plain Spark settings; `spark.jars` names local Delta jars, otherwise Spark
    fetches them. In local mode workers use this Python; Spark would take the first `python3` on
    PATH.
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
    """Return Spark's other configuration: of spark-submit, which has read its files, else
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
        message = f"Spark does not know the time zone {zone.name!r} ({zone.source.value})"
        action = "Check the name of a region, e.g. Europe/Berlin, or an offset, e.g. +01:00; without one it is UTC"
        raise SettingsError(message, key=TIME_ZONE, action=action) from error


def for_short_run(settings: Mapping[str, str], given: Collection[str]) -> dict[str, str]:
    """Return the settings with a JVM for a short run. Not if others chose its options (`given`), in
    Spark's file or elsewhere, not if tasks run elsewhere, and not if spark-submit has started it.
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
    """True if the session, or its context, was stopped in this process."""
    return session.sparkContext._jsc is None  # no public way to ask; `stop` sets it


def _log_what_the_accumulators_meet(session: SparkSession) -> None:
    """Log what pyspark's accumulator server would print if the JVM ends first, as when a process
    group is stopped. The call that finds the JVM gone reports it.
    """

    def log_it(request: object, client_address: object) -> None:
        _log.error("the JVM hung up on pyspark's accumulators", exc_info=True)

    server = session.sparkContext._accumulatorServer  # no public way to it
    if server is not None:
        server.handle_error = log_it  # type: ignore[method-assign]


def parallelism_of(settings: Mapping[str, str]) -> int | None:
    """Return Spark's `defaultParallelism`; None if only the cluster knows. Starts nothing: an
    existing session is asked, else the settings count.
    """
    if "pyspark" in sys.modules:
        there = session_there()
        if there is not None:
            return int(there.sparkContext.defaultParallelism)
    given = {**_submitted(), **settings}
    value = given.get("spark.default.parallelism", "")
    if value.isascii() and value.isdecimal() and int(value):
        return int(value)
    found = _LOCAL.fullmatch(given.get("spark.master", LOCAL_MASTER))
    if found is None:
        return None
    return cores() if found[1] == "*" else int(found[1] or 1)


_LOCAL = re.compile(r"local(?:\[(\*|\d{1,6})(?:,\s*\d+)?\])?")


def complete(settings: Mapping[str, str], submitted: Mapping[str, str]) -> dict[str, str]:
    """Return `settings` with our defaults for keys that neither they nor `submitted` set."""
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
    """True if spark-submit started this process; it copies standard error to standard output."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted() -> dict[str, str]:
    """Return spark-submit's settings: it starts the JVM first and leaves its gateway port in the
    environment.
    """
    if not is_submitted():
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # no public way to reach the JVM before there is a session
    return dict(SparkConf().getAll())


_ENDS_WITHIN_S = 30


def end_jvm() -> None:
    """End the JVM after its session's `stop`, unless spark-submit started it or it has a session."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # no public way to it
    if gateway is None or is_submitted() or SparkContext._active_spark_context is not None:
        return
    started: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):  # whatever py4j says of a JVM that is gone
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if started is not None and started.stdin is not None:
        started.stdin.close()  # it ends when nobody can write to it any more
        try:
            started.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            started.kill()


_NEEDED = frozenset(
    (
        "cramjam",
        "etl",
        "google_crc32c",
        "kafka",
        "kazoo",
        "llvmlite",
        "numba",
        "numpy",
        "packaging",
        "pandas",
        "pyarrow",
        "pydantic",
        "pyroaring",
        "yaml",
    )
)
"""Modules that our tasks import; any other one is a transform's."""
_HOW = (
    "Build the files with `etl package`, which prints the whole command: a zip for spark-submit --py-files where the workers have the "
    "libraries, an archive of the environment (--include-dependencies) where they have not"
)
_PYTHON_CHECK = (
    "PYSPARK_PYTHON, or spark.pyspark.python: on each host, the driver's too, a Python of the driver's minor version with the libraries; "
    "`etl package --include-dependencies` packs one"
)


def _of_module(found: re.Match[str]) -> SettingsError | None:
    name = found[1] or found[2]
    if name.partition(".")[0].lower() not in _NEEDED:
        return None
    return SettingsError(f"The workers' Python does not have the module {name}", action=_HOW)


_SIGNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], SettingsError | None]], ...] = (
    (
        re.compile(
            r"ModuleNotFoundError: No module named '([\w.]+)'|\[PACKAGE_NOT_INSTALLED\] (\w+)"
        ),
        _of_module,
    ),
    (
        re.compile(r"ImportError: (Numba needs [^\n]+)"),
        lambda found: SettingsError(
            f"The workers' Python has libraries that do not fit one another: {found[1]}",
            action=_HOW,
        ),
    ),
    (
        re.compile(r'Cannot run program "([^"]*python[^"]*)"'),
        lambda found: SettingsError(
            "The workers' Python is not there", path=found[1], action=_PYTHON_CHECK
        ),
    ),
    (
        re.compile(r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+)"),
        lambda found: SettingsError(
            f"The workers' Python is of another version: {found[1]}", action=_PYTHON_CHECK
        ),
    ),
)


def lacking(text: str) -> SettingsError | None:
    """Return the error if this exception text of Spark says that a worker could not start; None for
    anything else.
    """
    return next(
        (error for sign, make in _SIGNS if (found := sign.search(text)) and (error := make(found))),
        None,
    )


_LOST = re.compile(
    r"ExecutorLostFailure|java\.lang\.OutOfMemoryError|Answer from Java side is empty|pyspark\.daemon's stdout"
    r"|SparkContext was shut down|stopped SparkContext|Python worker (?:exited unexpectedly|failed to connect back)[^\n]*"
)
_TRACEBACK = "Traceback (most recent call last):\n"
_PYTHON_TRACEBACK = re.compile(re.escape(_TRACEBACK) + r"((?:[ \t].*\n)+)(\S.*)")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_JAVA = re.compile(r"\n\s+at |\n SQLSTATE")
"""Where a Python traceback ends and Java's stack trace begins."""
_OUR_READER = "etl/reader/spark_tasks.py"
"""The module under which a run's tasks read: what failed there is ours."""
_SPARK = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
"""An error condition of Spark, with its text."""
_NOT_OF_A_ROW = ("[TASK_WRITE_FAILED]", "[DELTA_")
_OF_AN_EXPRESSION = frozenset(
    (
        "ArithmeticException",
        "ArrayIndexOutOfBoundsException",
        "DateTimeException",
        "NumberFormatException",
        "SparkRuntimeException",
    )
)
"""pyspark's name for an error of an expression without a writer."""
_IN_A_TASK = ("[TASK_WRITE_FAILED]", "Job aborted due to stage failure")


@contextlib.contextmanager
def translating_spark_errors() -> Iterator[None]:
    """Context manager: report a lost JVM, executor or worker, and what workers lack, instead of a
    bug.

    Raises ProcessLost, SettingsError, and KeyboardInterrupt for failures that follow from one: py4j
    has closed its connection then, and pyspark's next calls may fail, too (one in twelve did).
    """
    try:
        yield
    except Exception as error:
        if _is_stopped_session(error):
            raise KeyboardInterrupt from error
        if isinstance(error, EtlError):
            raise
        lacks = lacking(str(error))
        if lacks:
            raise lacks from error
        found = _LOST.search(str(error))
        if found is None and not _is_of_the_jvms_line(error):
            raise
        action = (
            "Check memory on the machines that run driver and executors (what killed it?), and Spark's log beside the run's report; "
            "in a notebook, begin a new process"
        )
        raise ProcessLost(
            f"Spark lost a process of its own: {found[0] if found else type(error).__name__}",
            action=action,
        ) from error


def _is_stopped_session(error: BaseException) -> bool:
    met: BaseException | None = error
    while met is not None and not isinstance(met, KeyboardInterrupt):
        met = met.__context__
    return met is not None


def _is_of_the_jvms_line(error: Exception) -> bool:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, ConnectionError):
        return any(
            "py4j" in Path(frame.filename).parts
            for frame in traceback.extract_tb(error.__traceback__)
        )
    return isinstance(error, Py4JNetworkError)


def raised_on_a_row(kind: str, text: str) -> tuple[str, str | None] | None:
    """Return what was raised while a task computed rows, with the Python line if any; None for
    another kind of failure. `kind` is the exception's name, `text` its text with causes; of chained
    exceptions the last counts.
    """
    _, begins, rest = text.partition(_TRACEBACK)
    if begins:
        trace = begins + _JAVA.split(rest, maxsplit=1)[0]
        raised = _PYTHON_TRACEBACK.findall(trace)
        if not raised or _OUR_READER in trace:
            return None
        frames, message = raised[-1]
        places = _PLACE.findall(frames)
        return message.strip(), ":".join(places[-1]) if places else None
    errors = [found for found in _SPARK.findall(text) if not found.startswith(_NOT_OF_A_ROW)]
    if errors and (kind in _OF_AN_EXPRESSION or any(one in text for one in _IN_A_TASK)):
        return (errors[-1].strip(), None)
    return None
