"""How does a Spark session start and end, and what do its failures mean?

The caller's settings override those of spark-submit and its files, which override our defaults. A
setting passed to the builder replaces the one of `spark-defaults.conf`, so our defaults are merged
with the text of that file. An existing session is used unchanged, except for the time zone
(`use_time_zone`).

A JVM that this process started ends with the session, so that the next one may use other jars.
Failures: Spark lost a process (its JVM, an executor, a Python worker), a worker lacks a package, or
a row could not be computed.
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

from etl.decide.spark_settings import CATALOG, error_of_start, invalid_settings, other_catalog_error
from etl.decide.table_storage import is_ours, level_of, packages, without_own_log_store
from etl.decide.time_zones import (
    TIME_ZONE,
    TIME_ZONE_OF_WORKERS,
    TimeZone,
    ZoneSource,
    local_zone,
    time_zone_of,
)
from etl.errors import (
    EtlError,
    ProcessLost,
    SettingsError,
    Unreachable,
    follows_interrupt,
    whole_text,
)
from etl.io.process import cores
from etl.io.spark.log_store import jar_path
from etl.model.plans import Codec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"
_ENDS = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ENTRY = re.compile(r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<character>.))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_AROUND_VALUES = "".join(chr(code) for code in range(33) if chr(code) not in "\r\n")
"""Spark removes control characters and blanks around a value, except line ends
(`Utils.trimExceptCRLF`).
"""


def settings_of_file() -> dict[str, str]:
    """Return the settings of `spark-defaults.conf`; empty if the file does not exist.

    It is read by the rules of `java.util.Properties.load`. Raises SettingsError if it cannot be
    read.
    """
    file = _folder() / "spark-defaults.conf"
    try:
        if not file.is_file():
            return {}
        text = file.read_text("utf-8", "replace")
    except OSError as error:
        raise SettingsError(
            f"Spark's configuration cannot be read: {error.strerror}",
            path=file,
            action="Check the permissions of the file, SPARK_CONF_DIR and SPARK_HOME",
        ) from None
    settings = {}
    for line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        if entry:
            settings[_unescaped(entry["key"])] = _unescaped(entry["value"]).strip(_AROUND_VALUES)
    return settings


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines of a properties file, joined at a backslash, without comments and blank
    lines.

    A comment is not continued, and a line that continues another is no comment.
    """
    continued = ""
    for line in _ENDS.split(text):
        line = line.lstrip(_BLANKS)
        if not continued and line.startswith(("#", "!")):
            continue
        joined = continued + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            continued = joined[:-1]
            continue
        continued = ""
        if joined:
            yield joined
    if continued:
        yield continued


def _unescaped(text: str) -> str:
    """Replace the escapes of a key or value, such as `\\t` and `\\u00e9`."""
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    if escape["code"]:
        return chr(int(escape["code"], 16))
    return _CONTROLS.get(escape["character"], escape["character"])


def without_file_options(ours: Mapping[str, str]) -> dict[str, str]:
    """Return our settings without JVM options if Spark's file has some, and with its class path
    appended.
    """
    in_file = settings_of_file()
    kept = dict(ours)
    if JAVA_OPTIONS in in_file:
        kept.pop(JAVA_OPTIONS, None)
    if CLASS_PATH in kept and in_file.get(CLASS_PATH):
        kept[CLASS_PATH] += os.pathsep + in_file[CLASS_PATH]
    return kept


def _folder() -> Path:
    """Return the directory of Spark's configuration: the configured one, or that of the installed
    Spark.
    """
    configured = os.environ.get("SPARK_CONF_DIR")
    if configured:
        return Path(configured)
    home = os.environ.get("SPARK_HOME")
    installed = find_spec("pyspark")
    if not home and installed and installed.origin:
        home = str(Path(installed.origin).parent)
    return Path(home or "", "conf")


@contextlib.contextmanager
def own_ctrl_c() -> Iterator[None]:
    """Context manager: a first Ctrl-C, SIGTERM or SIGHUP waits until the session exists; a second
    one ends the starting JVM.

    If its start is interrupted, pyspark leaves a JVM that never ends: it deletes the directory with
    the JVM's port, and the JVM fails before it watches its parent. pyspark's own Ctrl-C handler
    calls the JVM in the middle of another call, so the former handlers are restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    ours = {}
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        handler = signal.getsignal(kind)
        if handler != signal.SIG_IGN:
            ours[kind] = handler

    def wait(kind: int, _frame: FrameType | None) -> None:
        came.append(kind)
        if len(came) > 1:
            raise KeyboardInterrupt

    for kind in ours:
        signal.signal(kind, wait)
    try:
        yield
    except KeyboardInterrupt as stop:
        _end_starting_jvm(stop)
        raise
    finally:
        for kind, handler in ours.items():
            signal.signal(kind, handler)
        if came:
            signal.raise_signal(came[0])


def _end_starting_jvm(stop: KeyboardInterrupt) -> None:
    """End a starting JVM, which only pyspark's waiting function refers to."""
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        for held in frame.f_locals.values():
            if isinstance(held, subprocess.Popen):
                held.kill()


@contextlib.contextmanager
def redirecting_jvm_output(log: Path | None) -> Iterator[None]:
    """Context manager: a JVM that starts inside writes its log, and its workers' logs, to this file
    instead of the terminal.

    A JVM keeps the standard output and error of its parent at its start, so both are redirected
    until it has started.
    """
    if log is None:
        yield
        return
    file = _open_log(log)
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        yield
    finally:
        for number, before in enumerate(kept, start=1):
            os.dup2(before, number)
            os.close(before)


def _open_log(log: Path) -> int:
    """Open Spark's log to append, without following a link that another user may have made.

    Raises SettingsError.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return os.open(log, _APPEND, 0o666)
    except OSError as error:
        raise SettingsError(
            f"Spark's log cannot be written: {error.strerror}",
            key="report.path",
            path=log,
            action="Check the directory and its permissions",
        ) from error


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # without any handler Python prints errors to the terminal

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Spark fetches this package itself if Delta's jars are not configured."""
LOCAL_MASTER = "local[*,4]"
"""All cores; a task may fail three times, where plain `local[*]` gives up at its first failure."""

_EXTENSIONS = "spark.sql.extensions"
_DEFAULTS = {
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
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
"""With Delta's 50 snapshot partitions and Spark's 200 shuffle partitions a small write takes 15 s.

Spark's default timestamps (INT96) are nanoseconds for pyarrow and so for delta-rs, which cannot
read a file with one before 1677 or after 2262. Parquet's default level of zstd, 3, takes about
twice the time of ours, and JSON does not become smaller. Delta's writers pass no option for it to
Parquet.
"""
_FIRST_COMPILER_ALONE = "-XX:TieredStopAtLevel=1"
"""For a JVM that lives less than a minute: its second compiler would take half of the processor
time (docs/adr/0033). No garbage collector is set, since a JVM with two does not start.
"""
_CATALOG_IN = "spark.sql.catalogImplementation"
_HIVE = "hive"
_LOOPBACK = "127.0.0.1"
_LOCAL_DEFAULTS = {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
_PYTHON = "spark.pyspark.python"
WHERE_JARS_ARE = ("spark.jars", "spark.jars.packages", CLASS_PATH)
"""Settings that name Delta's jars."""


def build_session(
    app_name: str, settings: Mapping[str, str], *, log: Path | None = None
) -> SparkSession:
    """Return this process's session, or a new one with `settings` over our defaults.

    The JVM of a new session logs to `log`. `settings` are plain Spark settings; `spark.jars` names
    local Delta jars, otherwise Spark fetches them. In local mode workers use this Python; Spark
    would take the first `python3` on PATH. Raises SettingsError for settings with which no session
    starts, Unreachable for a master that does not answer.
    """
    from pyspark.sql import SparkSession

    there = session_there()
    if there is not None:
        return there
    builder = SparkSession.builder.appName(app_name)
    chosen = {**complete(settings, _submitted()), **_zones(settings)}
    if _PYTHON in chosen:
        # pyspark reads the setting itself only if spark-submit started the process.
        os.environ["PYSPARK_PYTHON"] = chosen[_PYTHON]
    if not is_submitted():
        for error in invalid_settings(chosen):
            raise error
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with (
        own_ctrl_c(),
        _translating_start_errors(chosen, log),
        _bound_to_loopback(chosen),
        redirecting_jvm_output(log),
        _translating_zone_errors(time_zone(settings)),
    ):
        session = builder.getOrCreate()
        if session.sparkContext.getConf().get(_CATALOG_IN) != _HIVE:
            _use_catalog(session, chosen, log)
    _log_accumulator_errors(session)
    return session


def _use_catalog(session: SparkSession, settings: Mapping[str, str], log: Path | None) -> None:
    """Let Spark check the settings that it checks at their first use.

    Not for a Hive metastore: its client copies Hadoop's settings, and `enter_store` has not set the
    store's keys yet.
    """
    state = session._jsparkSession.sessionState()
    if settings.get(CATALOG, _DEFAULTS[CATALOG]) != _DEFAULTS[CATALOG]:
        with _translating_start_errors(settings, log, key=CATALOG):
            state.catalogManager().v2SessionCatalog()


@contextlib.contextmanager
def _bound_to_loopback(settings: Mapping[str, str]) -> Iterator[None]:
    """Context manager: a JVM of a local master that starts inside does not look up the name of this
    machine, which need not resolve in a container.
    """
    variable = "SPARK_LOCAL_IP"
    is_local = settings.get("spark.master", LOCAL_MASTER).startswith("local")
    if not is_local or variable in os.environ:
        yield
        return
    os.environ[variable] = _LOOPBACK
    try:
        yield
    finally:
        del os.environ[variable]


_MOST_OUTPUT_BYTES = 64 << 10


@contextlib.contextmanager
def _translating_start_errors(
    settings: Mapping[str, str], log: Path | None, *, key: str | None = None
) -> Iterator[None]:
    """Context manager: raise the error of a session that does not start, with Java's own reason.

    `key`: the setting that is tried. A process that is lost meanwhile is left to
    `translating_spark_errors`.
    """
    begins_at = 0
    if log is not None and log.exists():
        begins_at = log.stat().st_size
    try:
        yield
    except EtlError:
        raise
    except Exception as error:
        if follows_interrupt(error):
            raise
        printed = ""
        if log is not None and log.exists():
            with log.open("rb") as written:
                written.seek(begins_at)
                printed = written.read(_MOST_OUTPUT_BYTES).decode("utf-8", "replace")
        found = error_of_start(whole_text(error), printed, settings, key)
        is_lost = _LOST.search(str(error)) or _is_broken_jvm_connection(error)
        if is_lost and not isinstance(found, Unreachable):
            raise
        raise found from error


def time_zone(settings: Mapping[str, str]) -> TimeZone:
    """Return the session time zone of a run with these settings. Starts nothing."""
    if "pyspark" in sys.modules:
        session = session_there()
        if session is not None:
            return time_zone_of(settings, dict(session.conf.getAll))
    return time_zone_of(settings, _configured())


def use_time_zone(session: SparkSession, settings: Mapping[str, str]) -> Callable[[], None]:
    """Set the run's time zone in an existing session; return a function that restores the old one.

    An explicit zone of the session stays, unless the conf names one. Raises SettingsError.
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
    """Return the time zones of a new session and of its Python workers, which a transform may
    read.
    """
    zone = time_zone(settings).name
    configured = _configured()
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
    if is_submitted():
        return _submitted()
    return settings_of_file()


@contextlib.contextmanager
def _translating_zone_errors(zone: TimeZone) -> Iterator[None]:
    """Context manager: raise SettingsError for a time zone that Spark does not know."""
    try:
        yield
    except Exception as error:
        if zone.source is ZoneSource.DEFAULT or TIME_ZONE not in str(error):
            raise
        raise SettingsError(
            f"Spark does not know the time zone {zone.name!r} ({zone.source.value})",
            key=TIME_ZONE,
            action="Set the name of a region, e.g. Europe/Berlin, or an offset, e.g. +01:00. The "
            "default is UTC",
        ) from error


def for_short_run(settings: Mapping[str, str], given: Collection[str]) -> dict[str, str]:
    """Return the settings with JVM options for a short run.

    Unchanged if the user chose JVM options (`given`, or Spark's file), if tasks run on a cluster,
    or if spark-submit has started the JVM.
    """
    if not settings.get("spark.master", LOCAL_MASTER).startswith("local"):
        return dict(settings)
    if JAVA_OPTIONS in given or JAVA_OPTIONS in settings_of_file() or is_submitted():
        return dict(settings)
    options = f"{settings.get(JAVA_OPTIONS, '')} {_FIRST_COMPILER_ALONE}".strip()
    return {**settings, JAVA_OPTIONS: options}


def session_there() -> SparkSession | None:
    """Return the existing session of this process, of any thread; its creator stops it.

    An active session belongs to one thread of the JVM, and each Python thread has a JVM thread of
    its own: in a second cell's thread, or after a new connection to the JVM, no session is active
    while the context lives.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:  # there is no public access to it
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def is_stopped(session: SparkSession) -> bool:
    """Return True if the session, or its context, was stopped in this process."""
    # `stop` sets it; there is no public access.
    return session.sparkContext._jsc is None


def _log_accumulator_errors(session: SparkSession) -> None:
    """Log errors of pyspark's accumulator server instead of printing them.

    They occur if the JVM ends first, for example when a process group is stopped. The next call of
    the JVM reports its end.
    """

    def log_error(request: object, client_address: object) -> None:
        _log.error("the JVM closed its connection to pyspark's accumulators", exc_info=True)

    server = session.sparkContext._accumulatorServer  # there is no public access to it
    if server is not None:
        server.handle_error = log_error  # type: ignore[method-assign]


def parallelism_of(settings: Mapping[str, str]) -> int | None:
    """Return Spark's `defaultParallelism`; None if only the cluster knows it.

    Starts nothing: it is that of an existing session, else that of the settings.
    """
    if "pyspark" in sys.modules:
        session = session_there()
        if session is not None:
            return int(session.sparkContext.defaultParallelism)
    given = {**_submitted(), **settings}
    value = given.get("spark.default.parallelism", "")
    if value.isascii() and value.isdecimal() and int(value):
        return int(value)
    found = _LOCAL.fullmatch(given.get("spark.master", LOCAL_MASTER))
    if found is None:
        return None
    if found[1] == "*":
        return cores()
    return int(found[1] or 1)


_LOCAL = re.compile(r"local(?:\[(\*|\d{1,6})(?:,\s*\d+)?\])?")


def complete(settings: Mapping[str, str], submitted: Mapping[str, str]) -> dict[str, str]:
    """Return `settings` with our defaults for keys that neither they nor `submitted` set."""
    settings = without_own_log_store(settings, submitted)
    given = {**submitted, **settings}
    master = given.get("spark.master", LOCAL_MASTER)
    defaults = {**_DEFAULTS, "spark.master": master}
    if master.startswith("local"):
        defaults |= _LOCAL_DEFAULTS
        defaults[_PYTHON] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    if not any(key in given for key in WHERE_JARS_ARE):
        defaults["spark.jars.packages"] = ",".join([DELTA_PACKAGE, *packages(given)])
    chosen = {key: value for key, value in defaults.items() if key not in given}
    chosen.update(settings)
    if _DEFAULTS[_EXTENSIONS] not in given.get(_EXTENSIONS, _DEFAULTS[_EXTENSIONS]).split(","):
        chosen[_EXTENSIONS] = f"{given[_EXTENSIONS]},{_DEFAULTS[_EXTENSIONS]}"
    if is_ours(settings) and str(jar_path()) not in given.get(CLASS_PATH, "").split(os.pathsep):
        chosen["spark.jars"] = ",".join(filter(None, [given.get("spark.jars"), str(jar_path())]))
    return chosen


def is_submitted() -> bool:
    """Return True if spark-submit started this process; it copies standard error to standard
    output.
    """
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted() -> dict[str, str]:
    """Return spark-submit's settings: it starts the JVM first and leaves its gateway port in the
    environment.
    """
    if not is_submitted():
        return {}
    from pyspark import SparkConf, SparkContext

    # There is no public access to the JVM before a session exists.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


_ENDS_WITHIN_S = 30


def end_jvm() -> None:
    """End the JVM after its session's `stop`, unless spark-submit started it or it has a
    session.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # there is no public access to it
    if gateway is None or is_submitted() or SparkContext._active_spark_context is not None:
        return
    started: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):  # any error of py4j: the JVM may have ended
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if started is not None and started.stdin is not None:
        started.stdin.close()  # the JVM ends at the end of its standard input
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
"""Modules that our tasks import; any other module belongs to a transform."""
_BUILD_PACKAGE = (
    "Build the files with `etl package`, which prints the whole command: a zip for spark-submit "
    "--py-files if the workers have the libraries, else an archive of the environment "
    "(--include-dependencies)"
)
_PYTHON_CHECK = (
    "Check PYSPARK_PYTHON, or spark.pyspark.python: each host, also the driver's, needs a "
    "Python of "
    "the driver's minor version with the libraries. `etl package --include-dependencies` packs one"
)


def _of_module(found: re.Match[str]) -> SettingsError | None:
    name = found[1] or found[2]
    if name.partition(".")[0].lower() not in _NEEDED:
        return None
    return SettingsError(
        f"The workers' Python does not have the module {name}", action=_BUILD_PACKAGE
    )


_NO_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '([\w.]+)'|\[PACKAGE_NOT_INSTALLED\] (\w+)"
)
_OLD_LIBRARIES = re.compile(r"ImportError: (Numba needs [^\n]+)")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]*python[^"]*)"')
_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+)")


def lacking(text: str) -> SettingsError | None:
    """Return the error if this exception text of Spark means that a worker could not start; None
    for anything else.
    """
    found = _NO_MODULE.search(text)
    if found:
        error = _of_module(found)
        if error:
            return error
    found = _OLD_LIBRARIES.search(text)
    if found:
        return SettingsError(
            f"The workers' Python has incompatible libraries: {found[1]}", action=_BUILD_PACKAGE
        )
    found = _NO_PYTHON.search(text)
    if found:
        return SettingsError(
            "The workers' Python does not exist", path=found[1], action=_PYTHON_CHECK
        )
    found = _OTHER_PYTHON.search(text)
    if found:
        return SettingsError(
            f"The workers' Python is of another version: {found[1]}", action=_PYTHON_CHECK
        )
    return None


_LOST = re.compile(
    r"ExecutorLostFailure|java\.lang\.OutOfMemoryError|Answer from Java side is empty"
    r"|pyspark\.daemon's stdout|SparkContext was shut down|stopped SparkContext"
    r"|Python worker (?:exited unexpectedly|failed to connect back)[^\n]*"
)
_TRACEBACK = "Traceback (most recent call last):\n"
_PYTHON_TRACEBACK = re.compile(re.escape(_TRACEBACK) + r"((?:[ \t].*\n)+)(\S.*)")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_JAVA = re.compile(r"\n\s+at |\n SQLSTATE")
"""The end of a Python traceback, before Java's stack trace."""
_OUR_READER = "etl/reader/spark_tasks.py"
"""The module with the tasks of a run: errors in it are not errors of a transform."""
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
    """Context manager: report a lost JVM, executor or worker, and missing packages of workers,
    instead of a bug.

    Raises ProcessLost and SettingsError. Raises KeyboardInterrupt for failures that follow from
    one: py4j has closed its connection then, and pyspark's next calls may fail, too (one in twelve
    did).
    """
    try:
        yield
    except Exception as error:
        if follows_interrupt(error):
            raise KeyboardInterrupt from error
        if isinstance(error, EtlError):
            raise
        lacks = lacking(str(error)) or other_catalog_error(str(error))
        if lacks:
            raise lacks from error
        found = _LOST.search(str(error))
        if found:
            reason = found[0]
        elif _is_broken_jvm_connection(error):
            reason = type(error).__name__
        else:
            raise
        raise ProcessLost(
            f"Spark lost one of its processes: {reason}",
            action="Check the memory of the machines that run driver and executors (what killed "
            "the "
            "process?), and Spark's log in the directory of the run's report. In a notebook, start "
            "a new process",
        ) from error


def _is_broken_jvm_connection(error: Exception) -> bool:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, ConnectionError):
        frames = traceback.extract_tb(error.__traceback__)
        return any("py4j" in Path(frame.filename).parts for frame in frames)
    return isinstance(error, Py4JNetworkError)


def raised_on_a_row(kind: str, text: str) -> tuple[str, str | None] | None:
    """Return the error of a task that computed rows, with its Python line if any; None for another
    kind of failure.

    `kind` is the exception's name, `text` its text with causes; of chained exceptions the last
    counts.
    """
    _, begins, rest = text.partition(_TRACEBACK)
    if begins:
        trace = begins + _JAVA.split(rest, maxsplit=1)[0]
        raised = _PYTHON_TRACEBACK.findall(trace)
        if not raised or _OUR_READER in trace:
            return None
        frames, message = raised[-1]
        places = _PLACE.findall(frames)
        if not places:
            return message.strip(), None
        return message.strip(), ":".join(places[-1])
    errors = []
    for found in _SPARK.findall(text):
        if not found.startswith(_NOT_OF_A_ROW):
            errors.append(found)
    if errors and (kind in _OF_AN_EXPRESSION or any(one in text for one in _IN_A_TASK)):
        return (errors[-1].strip(), None)
    return None
