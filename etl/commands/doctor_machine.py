"""What is a check of `etl doctor`, and what does it check on this machine?

A `Check` returns `Line`s, and `Findings` carries results to later checks.

Lives here: these classes; checks of Java, Delta's jars, Python packages, the workers' Python, the
time zone, the transform, and the folders of reports and metrics.
Not here: the list of checks and their order (etl/commands/doctor.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from etl.decide.spark_settings import MASTER, invalid_settings, unnamed_user_error
from etl.decide.table_storage import PACKAGES_OF_STORES
from etl.decide.time_zones import TIME_ZONE, offset_minutes
from etl.errors import EtlError, SettingsError
from etl.io.report_files import installed_version
from etl.io.spark.session import LOCAL_MASTER, WHERE_JARS_ARE, is_submitted, settings_of_file
from etl.io.spark.session import time_zone as session_time_zone
from etl.run.read_rows import import_transform
from etl.settings.secrets import place_of_file
from etl.settings.sections import Settings, files_of_secrets
from etl.testkit.java_and_jars import (
    DELTA_VERSION,
    SET_CACHE,
    cache_folder,
    cached_delta_jars,
    cached_jars,
    find_java,
    folder_of_package,
    java_version,
    reject_other_jars,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from etl.io.zookeeper.session_requests import ZooKeeper
    from etl.kafka.request_values import ClusterMetadata


T = TypeVar("T")


class Verdict(str, Enum):
    """The result of a check for a run that would start now."""

    OK = "ok"
    ADVICE = "advice"
    """A run works, but something needs attention."""
    NOT_CHECKED = "not checked"
    """Not checked because of an earlier line."""
    FAILED = "failed"
    """A run would fail."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the output: the check, its verdict, the finding and the action."""

    name: str
    verdict: Verdict
    found: str
    to_do: str = ""
    error: EtlError | None = None
    """The error that a run would raise; None unless the verdict is FAILED."""

    @property
    def exit_code(self) -> int:
        """Return the exit code of a run that would fail here; 0 if it would not."""
        return self.error.exit_code if self.error else 0

    def as_json(self) -> dict[str, Any]:
        """Return the line in the document of `etl doctor --json`."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "found": self.found,
            "to_do": self.to_do,
            "exit_code": self.exit_code,
            "error": type(self.error).__name__ if self.error else None,
        }


class Fact(str, Enum):
    """A fact that a check establishes for later checks; the value is its name in messages."""

    JAVA = "Java"
    TRANSFORM = "the transform"
    ZOOKEEPER = "ZooKeeper"
    CHROOT = "the chroot"
    CLUSTER = "the cluster"
    TOPICS = "the topics"
    PLACE = "the table's location"
    TABLE = "the table"
    RETENTION = "the table's retention"
    COLUMNS = "the table's columns"


@dataclass(slots=True)
class Findings:
    """Results for later checks. The check that establishes a fact sets its field."""

    settings: Settings
    closing: contextlib.ExitStack
    """Closes opened resources after the last check."""
    established: set[Fact] = field(default_factory=set)
    silent_brokers: set[int] = field(default_factory=set)
    """Ids of the brokers that do not answer."""
    _zookeeper: ZooKeeper | None = None
    _metadata: ClusterMetadata | None = None
    table: DeltaTable | None = None
    """None if the table does not exist yet. Valid once TABLE is established."""
    spark_defaults: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda given: {}
    """See `run_context.SparkDefaults`."""

    @property
    def zookeeper(self) -> ZooKeeper:
        """Return the session. Raises LookupError unless ZOOKEEPER is established."""
        return _known(self._zookeeper, Fact.ZOOKEEPER)

    @zookeeper.setter
    def zookeeper(self, session: ZooKeeper) -> None:
        self._zookeeper = session

    @property
    def metadata(self) -> ClusterMetadata:
        """Return the brokers' metadata; only of the conf's topics once TOPICS is established.

        Raises LookupError unless CLUSTER is established.
        """
        return _known(self._metadata, Fact.CLUSTER)

    @metadata.setter
    def metadata(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the facts it needs, and those it establishes if none of its lines failed."""

    name: str
    run: Callable[[str, Findings], Iterable[Line]]
    """Called with the check's name. An EtlError that it raises becomes a line."""
    needs: tuple[Fact, ...] = ()
    gives: Fact | None = None

    def lines(self, findings: Findings) -> tuple[Line, ...]:
        """Run the check; return one NOT_CHECKED line if a fact that it needs is missing."""
        for fact in self.needs:
            if fact not in findings.established:
                return (Line(self.name, Verdict.NOT_CHECKED, f"needs {fact.value}, see above"),)
        try:
            lines = tuple(self.run(self.name, findings))
        except EtlError as error:
            lines = (failed(self.name, error),)
        verdicts = {line.verdict for line in lines}
        if self.gives and not verdicts & {Verdict.FAILED, Verdict.NOT_CHECKED}:
            findings.established.add(self.gives)
        return lines


def ok(name: str, found: str) -> Line:
    """Return a line without a problem."""
    return Line(name, Verdict.OK, found)


def advice(name: str, found: str, to_do: str) -> Line:
    """Return a line for a problem that stops no run."""
    return Line(name, Verdict.ADVICE, found, to_do)


def failed(name: str, error: EtlError) -> Line:
    """Return a line for an error that a run would raise."""
    found = error.message
    if error.where:
        places = ", ".join(f"{place} {value}" for place, value in error.where.items())
        found = f"{found} ({places})"
    return Line(name, Verdict.FAILED, found, error.action, error)


def _known(value: T | None, fact: Fact) -> T:
    if value is None:
        raise LookupError(f"{fact.value} is not established: the check lacks it in its needs")
    return value


# -- checks


PACKAGES = {
    "pyspark": ">=4.2.0,<4.2.1",
    "delta-spark": ">=4.4.0,<4.4.1",
    "deltalake": ">=1.6.6,<1.7",
    "kazoo": ">=2.11,<3",
    "kafka-python": ">=3.0.12,<3.1",
    "pyarrow": ">=26,<27",
    "numba": ">=0.68,<0.69",
    "numpy": ">=2.4,<2.5",
}
"""The versions that are tested together, as in setup.cfg.

A post-release of a version that setup.cfg pins (`==`) counts as that version.
"""
_WORKER_MODULES = ("pyarrow", "numba", "numpy", "kafka", "cramjam", "google_crc32c")
"""Modules that a worker imports to read a range."""
_DESCRIBE_PYTHON = (
    "import importlib.util as u, json, sys; "
    "missing = [n for n in sys.argv[1:] if u.find_spec(n) is None]; "
    "print(json.dumps([list(sys.version_info[:2]), missing]))"
)
"""Prints the version and the missing modules as JSON."""
_PYTHON_TIMEOUT_S = 30
EVENT_LOG = "spark.eventLog.dir"
LOCAL_DIR = "spark.local.dir"


def java(name: str, findings: Findings) -> Iterator[Line]:
    """Check the version of the Java that Spark starts with."""
    if is_submitted():
        yield ok(name, "spark-submit started it")
        return
    path = find_java()
    found = f"Java {java_version(path)}, {path}"
    home = os.environ.get("JAVA_HOME")
    if home:
        found = f"{found} (JAVA_HOME is {home})"
    yield ok(name, found)


def jars(name: str, findings: Findings) -> Iterator[Line]:
    """Report where Delta's jars come from, and check cached ones. Fetches nothing.

    Raises SettingsError for a cached jar that is not that of Maven Central.
    """
    conf = findings.settings.spark
    configured = [f"{key}: {conf[key]}" for key in WHERE_JARS_ARE if key in conf]
    cached = cached_delta_jars()
    if is_submitted():
        yield ok(name, "spark-submit brings them")
    elif configured:
        yield ok(name, "; ".join(configured))
    elif cached:
        of_stores = map(folder_of_package, PACKAGES_OF_STORES.values())
        for folder in (cached[0].parent.name, *of_stores):
            reject_other_jars(folder, cached_jars(folder))
        yield ok(name, f"{len(cached)} jars of Delta {DELTA_VERSION} in {cached[0].parent}")
    else:
        try:
            _check_folder(name, cache_folder())
        except OSError as error:
            message = f"Delta's jars have no place: the cache cannot be written: {error.strerror}"
            cache_error = SettingsError(message, path=cache_folder(), action=SET_CACHE)
            yield failed(name, cache_error)
            return
        yield advice(
            name,
            f"Delta {DELTA_VERSION} is not in the cache: "
            "the first run fetches it from Maven Central",
            "Run `python -m etl.testkit` to fetch them now. "
            "Without a network, name them with spark.jars or spark.jars.packages",
        )


def may_need_jars(findings: Findings) -> bool:
    """True if Spark would fetch Delta's jars at its start."""
    return not (
        is_submitted()
        or cached_delta_jars()
        or any(key in findings.settings.spark for key in WHERE_JARS_ARE)
    )


def packages(name: str, findings: Findings) -> Iterator[Line]:
    """Check that packages have the versions that are tested together.

    Spark, Delta and delta-rs are compatible only in these versions.
    """
    versions = {package: installed_version(package) for package in PACKAGES}
    errors = []
    for package, version in versions.items():
        error = _version_error(package, version)
        if error:
            errors.append(error)
    for error in errors:
        yield failed(name, error)
    if not errors:
        shown = list(versions.items())[:3]
        yield ok(name, ", ".join(f"{package} {version}" for package, version in shown))


def _version_error(package: str, version: str | None) -> SettingsError | None:
    tested = PACKAGES[package]
    action = f"Run `pip install '{package}{tested}'`"
    if version is None:
        return SettingsError(f"{package} is not installed", action=action)
    if not _is_in_range(version, tested):
        return SettingsError(
            f"{package} is {version}, and only {tested} is tested with the other packages",
            action=action,
        )
    return None


def _is_in_range(version: str, specifiers: str) -> bool:
    """Return whether the version matches (PEP 440: a pre-release precedes its release).

    False for a version that is not of PEP 440, as some vendors use.
    """
    try:
        return SpecifierSet(specifiers).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def workers_python(name: str, findings: Findings) -> Iterator[Line]:
    """Check the version and the modules of the Python that reads the ranges.

    Spark rejects a worker with another minor version than the driver's.
    """
    spark = findings.settings.spark
    python = spark.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if python == os.environ.get("PYSPARK_PYTHON"):
        setting = "PYSPARK_PYTHON"
    elif python in spark.values():
        setting = "spark.pyspark.python"
    else:
        setting = ""
    driver_version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not spark.get("spark.master", "local").startswith("local") or is_submitted():
        yield ok(
            name,
            f"{python} on the executors' hosts, which is not checked from here: it must be "
            f"Python {driver_version} with the libraries of the driver's Python",
        )
    elif python == sys.executable:
        yield ok(name, f"the driver's Python, {python}, Python {driver_version}")
    else:
        yield _other_python(name, python, setting, driver_version)


def _other_python(name: str, python: str, setting: str, driver_version: str) -> Line:
    """Run the workers' Python, and check its version and its modules."""
    command = [shutil.which(python) or python, "-c", _DESCRIBE_PYTHON, *_WORKER_MODULES]
    problem = ""
    version = ""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_PYTHON_TIMEOUT_S, check=True
        )
        numbers, missing = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        problem = f"The workers' Python does not run: {error}"
    else:
        version = ".".join(map(str, numbers))
        if version != driver_version:
            problem = f"The workers' Python {python} is {version}, the driver's is {driver_version}"
        elif missing:
            problem = f"The workers' Python {python} lacks {', '.join(missing)}"
    if not problem:
        return ok(name, f"{python} ({setting}), Python {version}")
    action = (
        f"Unset {setting or 'PYSPARK_PYTHON'}, or set it to a Python {driver_version} "
        "with the libraries of the driver's Python"
    )
    return failed(name, SettingsError(problem, key=setting or None, action=action))


def spark_settings(name: str, findings: Findings) -> Iterator[Line]:
    """Check sizes, master and local folders of Spark's settings, and this user. Starts nothing."""
    if is_submitted():
        yield ok(name, "spark-submit has started Spark with them")
        return
    settings = {**settings_of_file(), **findings.settings.spark}
    errors: list[EtlError] = list(invalid_settings(settings))
    errors += _folder_errors(settings)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        errors.append(unnamed_user_error())
    for error in errors:
        yield failed(name, error)
    if not errors:
        master = settings.get(MASTER, LOCAL_MASTER)
        yield ok(name, f"master {master}; `etl doctor CONF --spark` starts a session")


def _folder_errors(settings: Mapping[str, str]) -> Iterator[SettingsError]:
    """Return the errors of Spark's local folders."""
    logs = settings.get(EVENT_LOG, "file:///tmp/spark-events")
    if settings.get("spark.eventLog.enabled", "").lower() == "true" and _is_local(logs):
        folder = Path(urlsplit(logs).path)
        if not folder.is_dir():
            yield SettingsError(
                "The folder of Spark's event log does not exist",
                key=EVENT_LOG,
                path=folder,
                action="Create the folder: Spark does not create it",
            )
    scratch = os.environ.get("SPARK_LOCAL_DIRS") or settings.get(LOCAL_DIR, "")
    for place in filter(None, scratch.split(",")):
        try:
            _check_folder("", Path(place).absolute())
        except OSError as error:
            yield SettingsError(
                f"Spark cannot write to its local folder: {error.strerror}",
                key=LOCAL_DIR,
                path=place,
                action=f"Check {LOCAL_DIR}, or the variable SPARK_LOCAL_DIRS",
            )


def _is_local(place: str) -> bool:
    return urlsplit(place).scheme in ("", "file")


def transform(name: str, findings: Findings) -> Iterator[Line]:
    """Check that the transform can be imported; its rows are checked with the table."""
    settings = findings.settings
    function = settings.transform.function
    if function is None:
        yield ok(name, "none")
        return
    import_transform(settings)
    yield ok(name, f"{function} can be imported")


def time_zone(name: str, findings: Findings) -> Iterator[Line]:
    """Check the zone in which Spark computes dates and hours; never this machine's local zone."""
    zone = session_time_zone(findings.settings.spark)
    known = available_timezones()
    if offset_minutes(zone.name) is not None or not known or zone.name in known:
        yield ok(name, f"{zone.name}, {zone.source.value}")
        return
    yield advice(
        name,
        f"this Python does not know the time zone {zone.name!r} ({zone.source.value})",
        f"Set {TIME_ZONE} to a region, for example Europe/Berlin, or to an offset, for example "
        "+01:00. A run stops if Spark does not know the zone",
    )


def report_folder(name: str, findings: Findings) -> Iterator[Line]:
    """Check that reports can be written."""
    folder = Path(findings.settings.report.path).absolute()
    try:
        yield _check_folder(name, folder)
    except OSError as error:
        settings_error = SettingsError(
            f"A run's report cannot be written: {error.strerror}",
            key="report.path",
            path=folder,
            action="Check the folder and its permissions",
        )
        yield failed(name, settings_error)


def metrics_folder(name: str, findings: Findings) -> Iterator[Line]:
    """Check that metrics can be written. Yields no line without `metrics.path`.

    Only advice: a run continues without them, and monitors read the old file.
    """
    if findings.settings.metrics_file is None:
        return
    file = Path(findings.settings.metrics_file).absolute()
    try:
        yield _check_folder(name, file.parent)
    except OSError as error:
        yield advice(
            name,
            f"a run's metrics cannot be written to {file}: {error.strerror}",
            "Check metrics.path, the folder and its permissions. "
            "Until then the file keeps the values of an earlier run",
        )


def secret_files(name: str, findings: Findings) -> Iterator[Line]:
    """Check who can read the files of secrets. Yields no line without such files.

    A missing file is reported by the connection that needs it.
    """
    private = []
    for key, file in sorted(files_of_secrets(findings.settings).items()):
        path = place_of_file(file)
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except OSError:
            continue
        if mode & stat.S_IRWXO:
            yield advice(
                name,
                f"{path} ({key}) is open to every user of this machine: mode {mode:04o}",
                f"Run `chmod o= {shlex.quote(path)}`",
            )
        else:
            private.append(path)
    if private:
        yield ok(name, ", ".join(private))


def _check_folder(name: str, folder: Path) -> Line:
    """Create and remove a file in the folder, or in the nearest parent that exists.

    Raises OSError if that fails.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    with tempfile.TemporaryFile(dir=existing):
        pass
    if existing == folder:
        return ok(name, str(folder))
    return ok(name, f"{folder}, which will be created in {existing}")
