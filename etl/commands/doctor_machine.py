"""What is a check, and what do checks find on this machine?

A `Line` is a line of `etl doctor`, a `Check` returns lines, `Findings` carries results to later
checks. Checks here: Java, Delta's jars, Python packages, the workers' Python, the transform, report
and metrics directories.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import available_timezones

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from etl.decide.table_storage import TIME_ZONE, offset_minutes
from etl.errors import EtlError, SettingsError
from etl.io.report_files import installed_version
from etl.io.spark.session import WHERE_JARS_ARE, is_submitted
from etl.io.spark.session import time_zone as session_time_zone
from etl.reader.batch_transform import load_function
from etl.settings.sections import Settings
from etl.testkit.java import DELTA_VERSION, cached_delta_jars, find_java, java_version

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from etl.io.zookeeper.session import ZooKeeper
    from etl.kafka.messages import ClusterMetadata


T = TypeVar("T")


class Verdict(str, Enum):
    """The result of a line, for a run that would start now."""

    OK = "ok"
    ADVICE = "advice"
    """A run works, and yet there is something to do."""
    NOT_CHECKED = "not checked"
    """Not checked because of an earlier line."""
    FAILED = "failed"
    """A run would fail."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the check, its result, what was found, and what to do."""

    name: str
    verdict: Verdict
    found: str
    to_do: str = ""
    error: EtlError | None = None
    """With FAILED: what a run would raise."""

    @property
    def exit_code(self) -> int:
        """The exit code of a run that stumbles here; 0 where it does not."""
        return self.error.exit_code if self.error else 0

    def as_json(self) -> dict[str, Any]:
        """The line in the document of `etl doctor --json`."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "found": self.found,
            "to_do": self.to_do,
            "exit_code": self.exit_code,
            "error": type(self.error).__name__ if self.error else None,
        }


class Fact(str, Enum):
    """A fact that a check establishes for later checks; the value is its name for a person."""

    JAVA = "Java"
    TRANSFORM = "the transform"
    ZOOKEEPER = "ZooKeeper"
    CHROOT = "the chroot"
    CLUSTER = "the cluster"
    TOPICS = "the topics"
    PLACE = "the table's place"
    TABLE = "the table"
    RETENTION = "the table's retention"
    COLUMNS = "the table's columns"


@dataclass(slots=True)
class Findings:
    """What is known so far. The check that establishes a fact sets its field; open resources are
    closed at the end.
    """

    settings: Settings
    closing: contextlib.ExitStack
    established: set[Fact] = field(default_factory=set)
    silent_brokers: set[int] = field(default_factory=set)
    """Ids of the brokers that do not answer."""
    _zookeeper: ZooKeeper | None = None
    _metadata: ClusterMetadata | None = None
    table: DeltaTable | None = None
    """With TABLE established: None if there is none yet."""
    spark_defaults: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda given: {}
    """See `services.SparkDefaults`."""

    @property
    def zookeeper(self) -> ZooKeeper:
        """The session, with ZOOKEEPER established."""
        return _known(self._zookeeper, Fact.ZOOKEEPER)

    @zookeeper.setter
    def zookeeper(self, session: ZooKeeper) -> None:
        self._zookeeper = session

    @property
    def metadata(self) -> ClusterMetadata:
        """Return the brokers' metadata, with CLUSTER established; with TOPICS only the conf's
        topics.
        """
        return _known(self._metadata, Fact.CLUSTER)

    @metadata.setter
    def metadata(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the facts it needs, and those it establishes if none of its lines failed."""

    name: str
    look: Callable[[str, Findings], Iterable[Line]]
    """Called with the check's name. May raise EtlError, which becomes a line."""
    needs: tuple[Fact, ...] = ()
    gives: Fact | None = None

    def lines(self, findings: Findings) -> tuple[Line, ...]:
        """Run the check, or say why it was not run."""
        missing = [fact.value for fact in self.needs if fact not in findings.established]
        if missing:
            return (Line(self.name, Verdict.NOT_CHECKED, f"first {missing[0]}, see above"),)
        try:
            found = tuple(self.look(self.name, findings))
        except EtlError as error:
            found = (failed(self.name, error),)
        if self.gives and not any(
            line.verdict in (Verdict.FAILED, Verdict.NOT_CHECKED) for line in found
        ):
            findings.established.add(self.gives)
        return found


def ok(name: str, found: str) -> Line:
    """All is well."""
    return Line(name, Verdict.OK, found)


def advice(name: str, found: str, to_do: str) -> Line:
    """A run works, but something needs attention."""
    return Line(name, Verdict.ADVICE, found, to_do)


def failed(name: str, error: EtlError) -> Line:
    """A run would raise `error`."""
    places = ", ".join(f"{place} {value}" for place, value in error.where.items())
    return Line(
        name,
        Verdict.FAILED,
        f"{error.message} ({places})" if places else error.message,
        error.action,
        error,
    )


def _known(value: T | None, fact: Fact) -> T:
    if value is None:
        raise LookupError(f"{fact.value} is not established: the check lacks it in its needs")
    return value


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
"""The versions that were tried together, as in setup.cfg; a post-release of a pinned one (`==`) is
not another version.
"""
_IN_WORKERS = ("pyarrow", "numba", "numpy", "kafka", "cramjam", "google_crc32c")
"""What a worker imports to read a range."""
_ASK_PYTHON = (
    "import importlib.util as u, json, sys; "
    "print(json.dumps([list(sys.version_info[:2]), [n for n in sys.argv[1:] if u.find_spec(n) is None]]))"
)
_ANSWER_WITHIN_S = 30


def java(name: str, findings: Findings) -> Iterator[Line]:
    """The Java that Spark starts with."""
    if is_submitted():
        yield ok(name, "spark-submit has started it")
        return
    found, home = find_java(), os.environ.get("JAVA_HOME")
    yield ok(
        name, f"Java {java_version(found)}, {found}" + (f" (JAVA_HOME is {home})" if home else "")
    )


def jars(name: str, findings: Findings) -> Iterator[Line]:
    """Report where Delta's jars come from. Nothing is fetched."""
    given = findings.settings.spark
    named = [f"{key}: {given[key]}" for key in WHERE_JARS_ARE if key in given]
    there = cached_delta_jars()
    if is_submitted():
        yield ok(name, "spark-submit brings them")
    elif named:
        yield ok(name, "; ".join(named))
    elif there:
        yield ok(name, f"{len(there)} jars of Delta {DELTA_VERSION} in {there[0].parent}")
    else:
        to_do = "`python -m etl.testkit` fetches them now; without a network name them with spark.jars or spark.jars.packages"
        yield advice(
            name,
            f"Delta {DELTA_VERSION} is not in the cache: the first run fetches it from Maven Central",
            to_do,
        )


def may_need_jars(findings: Findings) -> bool:
    """True if Spark would fetch Delta's jars at its start."""
    return not (
        is_submitted()
        or cached_delta_jars()
        or any(key in findings.settings.spark for key in WHERE_JARS_ARE)
    )


def packages(name: str, findings: Findings) -> Iterator[Line]:
    """Spark, Delta and delta-rs fit one another only in the versions that were tried together."""
    found = {package: installed_version(package) for package in PACKAGES}
    wrong = [
        failed(name, error)
        for package, version in found.items()
        if (error := _untried(package, version))
    ]
    yield from wrong or [
        ok(name, ", ".join(f"{package} {version}" for package, version in list(found.items())[:3]))
    ]


def _untried(package: str, version: str | None) -> SettingsError | None:
    tried = PACKAGES[package]
    action = f"Run `pip install '{package}{tried}'`"
    if version is None:
        return SettingsError(f"{package} is not installed", action=action)
    if not _is_among(tried, version):
        return SettingsError(
            f"{package} is {version}, and only {tried} was tried with the others", action=action
        )
    return None


def _is_among(tried: str, version: str) -> bool:
    """True if the version is one of `tried` (PEP 440: a pre-release precedes its release); False
    for a vendor's scheme.
    """
    try:
        return SpecifierSet(tried).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def workers_python(name: str, findings: Findings) -> Iterator[Line]:
    """The Python that reads the ranges: Spark refuses another minor version than the driver's."""
    spark = findings.settings.spark
    chosen = spark.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if chosen == os.environ.get("PYSPARK_PYTHON"):
        where = "PYSPARK_PYTHON"
    elif chosen in spark.values():
        where = "spark.pyspark.python"
    else:
        where = ""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not spark.get("spark.master", "local").startswith("local") or is_submitted():
        yield ok(
            name,
            f"{chosen} on the executors' hosts, not seen from here: it must be Python {ours} with the libraries of this one",
        )
    elif chosen == sys.executable:
        yield ok(name, f"this one, {chosen}, Python {ours}")
    else:
        yield _another_python(name, chosen, where, ours)


def _another_python(name: str, chosen: str, where: str, ours: str) -> Line:
    action = f"{where or 'PYSPARK_PYTHON'}: unset it, or name a Python {ours} with the libraries of this one"
    try:
        command = [shutil.which(chosen) or chosen, "-c", _ASK_PYTHON, *_IN_WORKERS]
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=True
        )
        version, missing = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return failed(
            name,
            SettingsError(
                f"The workers' Python does not run: {error}", key=where or None, action=action
            ),
        )
    written = ".".join(map(str, version))
    if written != ours:
        return failed(
            name,
            SettingsError(
                f"The workers' Python {chosen} is {written}, this one {ours}",
                key=where or None,
                action=action,
            ),
        )
    if missing:
        message = f"The workers' Python {chosen} lacks {', '.join(missing)}"
        return failed(name, SettingsError(message, key=where or None, action=action))
    return ok(name, f"{chosen} ({where}), Python {written}")


def transform(name: str, findings: Findings) -> Iterator[Line]:
    """Check that the transform can be imported; its rows are checked with the table."""
    settings = findings.settings
    chosen = settings.transform.function
    if chosen is None:
        yield ok(name, "none")
        return
    load_function(chosen, settings.transform.key)
    yield ok(name, f"{chosen} can be imported")


def time_zone(name: str, findings: Findings) -> Iterator[Line]:
    """The zone in which Spark computes dates and hours; the local one of this machine never counts."""
    zone = session_time_zone(findings.settings.spark)
    known = available_timezones()
    if offset_minutes(zone.name) is not None or not known or zone.name in known:
        yield ok(name, f"{zone.name}, {zone.source.value}")
        return
    to_do = f"{TIME_ZONE}: a region, e.g. Europe/Berlin, or an offset, e.g. +01:00; a run stops where Spark does not know it"
    yield advice(
        name, f"{zone.name!r} is no time zone that this Python knows ({zone.source.value})", to_do
    )


def report_folder(name: str, findings: Findings) -> Iterator[Line]:
    """Check that reports can be written."""
    wanted = Path(findings.settings.report.path).absolute()
    try:
        yield _placed(name, wanted)
    except OSError as error:
        message = f"A run's report cannot be written: {error.strerror}"
        yield failed(
            name,
            SettingsError(
                message,
                key="report.path",
                path=wanted,
                action="Check the folder and its permissions",
            ),
        )


def metrics_folder(name: str, findings: Findings) -> Iterator[Line]:
    """Check that metrics can be written, if configured: without them a run continues, and monitors
    see an old file.
    """
    if findings.settings.metrics_file is None:
        return
    wanted = Path(findings.settings.metrics_file).absolute()
    try:
        yield _placed(name, wanted.parent)
    except OSError as error:
        found = f"a run's metrics cannot be written to {wanted}: {error.strerror}"
        yield advice(
            name,
            found,
            "metrics.path, the folder and its permissions: what is there stays as an earlier run left it",
        )


def _placed(name: str, wanted: Path) -> Line:
    """The folder, or where it will be made; nothing stays there. Raises OSError where no file can
    be made in it.
    """
    at = wanted
    while not at.exists():
        at = at.parent
    with tempfile.TemporaryFile(dir=at):
        pass
    return ok(name, str(wanted) if at == wanted else f"{wanted}, which will be made in {at}")
