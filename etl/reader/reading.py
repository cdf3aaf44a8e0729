"""What is to be read, from where to where, in which tasks?

What a reading of the data source is to read and how: which logs, from where to where, in what
manner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from etl.errors import SettingsError, TopicMissing
from etl.ledger.topic_filters import java_pattern
from etl.model.partitions import BrokerPartition, Isolation
from etl.model.plans import OffsetRange
from etl.model.security import OPEN, OPEN_ZOOKEEPER, Access, Security

if TYPE_CHECKING:
    from etl.reader.arrow_transform import ArrowTransform


class LogEnd(str, Enum):
    """One of the two ends of a log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class FirstAt:
    """The first record at that time or later."""

    ms: int


Bound = LogEnd | FirstAt | int
"""Where reading a log starts or stops: one of its ends, a time, or an offset."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """One bound for every log, or one for each of those that are named."""

    everywhere: Bound | None = None
    by_log: Mapping[BrokerPartition, Bound] = field(default_factory=dict)
    option: str = ""
    """Which option said so."""

    def of(self, log: BrokerPartition) -> Bound:
        """The bound of one log. Raises SettingsError where logs are named and this one is not."""
        if self.everywhere is not None:
            return self.everywhere
        if log not in self.by_log:
            check = "name every partition that is read: -2 is its first offset, -1 its end"
            raise SettingsError(
                "a partition is not named", option=self.option, **log.place, check=check
            )
        return self.by_log[log]

    @property
    def are_offsets(self) -> bool:
        """Whether each of them is an offset: it stays what it is, whatever happens to the log."""
        return self.everywhere is None and all(
            isinstance(bound, int) for bound in self.by_log.values()
        )

    def only(self, logs: Collection[BrokerPartition]) -> Bounds:
        """The same bounds, of none but these logs."""
        return replace(
            self, by_log={log: bound for log, bound in self.by_log.items() if log in logs}
        )

    def times(self, logs: Iterable[BrokerPartition]) -> dict[BrokerPartition, int]:
        """Milliseconds since 1970 of those logs whose bound is a time."""
        return {log: bound.ms for log in logs if isinstance(bound := self.of(log), FirstAt)}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which logs to read: topics by name, by a pattern that is somewhere in their name (as Spark's
    source has it), or partitions.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    logs: tuple[BrokerPartition, ...] = ()

    @property
    def asked(self) -> list[str] | None:
        """Topics to ask the brokers for; None: all."""
        return (
            None
            if self.pattern is not None
            else sorted({*self.topics, *(log.topic for log in self.logs)})
        )

    def among(self, there: Iterable[BrokerPartition]) -> list[BrokerPartition]:
        """The chosen ones of the logs that there are, in order. Raises TopicMissing for one that is
        named and not there.
        """
        known = sorted(there)
        names = {log.topic for log in known}
        if self.pattern is not None:
            pattern = java_pattern(self.pattern)
            found = [log for log in known if pattern.search(log.topic)]
            if not found:
                check = "the expression, and that this is the right cluster"
                raise TopicMissing(
                    "no topic matches subscribePattern", pattern=self.pattern, check=check
                )
            return found
        for topic in (*self.topics, *(log.topic for log in self.logs)):
            if topic not in names:
                raise TopicMissing(
                    "the topic is not there",
                    topic=topic,
                    check="its name, and that this is the right cluster",
                )
        refuse_missing_partitions(self.logs, known)
        return list(self.logs) or [log for log in known if log.topic in self.topics]


@dataclass(frozen=True, slots=True)
class Reading:
    """The options, parsed."""

    bootstrap: tuple[tuple[str, int], ...]
    isolation: Isolation
    columns: tuple[str, ...]
    fetch_max_bytes: int
    fetch_limit_bytes: int
    max_record_bytes: int
    target_task_bytes: int
    timeout_s: float
    chosen: Chosen = Chosen()
    ranges: tuple[OffsetRange, ...] | None = None
    """Exact ranges; None: `chosen` from `starting` to `ending`."""
    starting: Bounds = Bounds(LogEnd.EARLIEST)
    ending: Bounds = Bounds(LogEnd.LATEST)
    zookeeper: str | None = None
    """Where the brokers are registered, `host:port,host:port/chroot`, when they are found there;
    `bootstrap` is empty then.
    """
    physical: bool = False
    """The logs are (`BrokerPartition.is_physical`)."""
    late_start_is_latest: bool = False
    """Where no record is as late as a starting time: start at the end instead of failing."""
    compacted: frozenset[str] = frozenset()
    """Topics whose missing offsets are compaction's, whatever the brokers tell."""
    fails_on_data_loss: bool = True
    least_tasks: int = 1
    most_offsets: int | None = None
    """In one Spark partition."""
    generation: str | None = None
    """How brokers are to be spoken to (`Broker.generation`); None: as they tell, or are found out.
    """
    security: Security = OPEN
    """How the brokers' listeners are entered."""
    access: Access = OPEN_ZOOKEEPER
    """How ZooKeeper is entered."""
    transform: ArrowTransform | None = None
    """What tasks make of their rows before anybody takes them; it is given all columns."""

    @property
    def has_moving_bounds(self) -> bool:
        """Whether the options come to other offsets when the logs change: `earliest`, `latest` and
        times do.
        """
        return self.ranges is None and not (self.starting.are_offsets and self.ending.are_offsets)

    def only(self, logs: Collection[BrokerPartition]) -> Reading:
        """The same reading, of none but these logs."""
        return replace(self, starting=self.starting.only(logs), ending=self.ending.only(logs))


def refuse_missing_partitions(
    named: Iterable[BrokerPartition], there: Iterable[BrokerPartition]
) -> None:
    """Raises TopicMissing for the first partition that is named and not there."""
    known = set(there)
    for log in named:
        if log not in known:
            count = sum(
                (other.topic, other.broker_id) == (log.topic, log.broker_id) for other in known
            )
            on = f" on broker {log.broker_id}" if log.is_physical else ""
            what = (
                f"the topic has {count} partitions{on}, numbered from 0, and not this one"
                if count
                else f"the topic is not there{on}"
            )
            raise TopicMissing(
                what, **log.place, check="the option, and that this is the right cluster"
            )
