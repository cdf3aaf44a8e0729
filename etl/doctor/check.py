"""What a check says, and what checks tell one another. No I/O.

A `Line` is one line of what `etl doctor` prints, a `Check` makes some, `Findings` is what later
checks may build on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from etl.errors import EtlError
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from etl.io.zookeeper.session import ZooKeeper
    from etl.kafka.messages import ClusterMetadata

T = TypeVar("T")


class Verdict(str, Enum):
    """What a line says of a run that would start now."""

    OK = "ok"
    ADVICE = "advice"
    """A run works, and yet there is something to do."""
    NOT_CHECKED = "not checked"
    """It could not be looked at, because of a line above."""
    FAILED = "failed"
    """A run would fail."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what was looked at, the verdict, what was found, and what to do about it."""

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
    """What a check establishes and others build on; the value is how a person calls it."""

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
    """What is known so far. A field is set by the check that establishes its fact; what is open is
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
    """With TABLE established: None says that there is none yet."""
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
        """What the brokers say of themselves and their topics, with CLUSTER established; only ours
        with TOPICS.
        """
        return _known(self._metadata, Fact.CLUSTER)

    @metadata.setter
    def metadata(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at: what it needs to know, and what is established when each of its lines
    was checked and none failed.
    """

    name: str
    look: Callable[[str, Findings], Iterable[Line]]
    """Is given the check's name for its lines. May raise EtlError, which is a line, too."""
    needs: tuple[Fact, ...] = ()
    gives: Fact | None = None

    def lines(self, findings: Findings) -> tuple[Line, ...]:
        """Look, or say why not."""
        missing = [fact.value for fact in self.needs if fact not in findings.established]
        if missing:
            return (Line(self.name, Verdict.NOT_CHECKED, f"first {missing[0]}, see above"),)
        try:
            said = tuple(self.look(self.name, findings))
        except EtlError as error:
            said = (failed(self.name, error),)
        if self.gives and not any(
            line.verdict in (Verdict.FAILED, Verdict.NOT_CHECKED) for line in said
        ):
            findings.established.add(self.gives)
        return said


def ok(name: str, found: str) -> Line:
    """All is well."""
    return Line(name, Verdict.OK, found)


def advice(name: str, found: str, to_do: str) -> Line:
    """A run works, but something should be looked at."""
    return Line(name, Verdict.ADVICE, found, to_do)


def failed(name: str, error: EtlError) -> Line:
    """A run would raise `error`."""
    places = ", ".join(f"{place} {value}" for place, value in error.where.items())
    return Line(
        name,
        Verdict.FAILED,
        f"{error.what} ({places})" if places else error.what,
        error.check,
        error,
    )


def _known(value: T | None, fact: Fact) -> T:
    if value is None:
        raise LookupError(f"{fact.value} is not established: the check lacks it in its needs")
    return value
