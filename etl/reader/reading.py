"""What is read, from where to where, in which tasks?

Options and the brokers' offsets give offset ranges. Missing offsets are an error or left out, by
`failOnDataLoss`; a start beyond the end is an error where both were given. Tasks are values that
are sent to executors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from etl.errors import (
    DataLoss,
    EtlError,
    NotYetReadable,
    RanOutBeforeUntil,
    SettingsError,
    TopicMissing,
)
from etl.ledger.topic_filters import java_pattern
from etl.model.partitions import Broker, BrokerPartition, Cleanup, Isolation, PartitionOffsets, Tail
from etl.model.plans import OffsetRange
from etl.model.security import OPEN, OPEN_ZOOKEEPER, Access, Security

if TYPE_CHECKING:
    from etl.reader.batch_transform import ArrowTransform


class LogEnd(str, Enum):
    """One of the two ends of a log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class FirstAt:
    """The first record at that time or later."""

    ms: int


Bound = LogEnd | FirstAt | int
"""A bound of a partition: its start or end, a time, or an offset."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """One bound for every log, or one for each of those that are named."""

    everywhere: Bound | None = None
    by_log: Mapping[BrokerPartition, Bound] = field(default_factory=dict)
    option: str = ""
    """The option that set it."""

    def of(self, log: BrokerPartition) -> Bound:
        """The bound of one log. Raises SettingsError where logs are named and this one is not."""
        if self.everywhere is not None:
            return self.everywhere
        if log not in self.by_log:
            action = "Name every partition that is read: -2 is its first offset, -1 its end"
            raise SettingsError(
                "A partition is not named", option=self.option, **log.place, action=action
            )
        return self.by_log[log]

    @property
    def are_offsets(self) -> bool:
        """True if all are offsets, which never change."""
        return self.everywhere is None and all(
            isinstance(bound, int) for bound in self.by_log.values()
        )

    def only(self, logs: Collection[BrokerPartition]) -> Bounds:
        """Return the bounds of these partitions only."""
        return replace(
            self, by_log={log: bound for log, bound in self.by_log.items() if log in logs}
        )

    def times(self, logs: Iterable[BrokerPartition]) -> dict[BrokerPartition, int]:
        """Return the times in ms of partitions whose bound is a time."""
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
        if self.pattern is not None:
            return None
        return sorted({*self.topics, *(log.topic for log in self.logs)})

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
                action = "Check the expression, and that this is the right cluster"
                raise TopicMissing(
                    "No topic matches subscribePattern", pattern=self.pattern, action=action
                )
            return found
        for topic in (*self.topics, *(log.topic for log in self.logs)):
            if topic not in names:
                raise TopicMissing(
                    "The topic is not there",
                    topic=topic,
                    action="Check its name, and that this is the right cluster",
                )
        reject_missing_partitions(self.logs, known)
        return list(self.logs) or [log for log in known if log.topic in self.topics]


@dataclass(frozen=True, slots=True)
class Reading:
    """The options, parsed."""

    bootstrap: tuple[tuple[str, int], ...]
    isolation: Isolation
    columns: tuple[str, ...]
    fetch_max_bytes: int
    max_batch_bytes: int
    max_record_bytes: int
    target_task_bytes: int
    timeout_s: float
    chosen: Chosen = Chosen()
    ranges: tuple[OffsetRange, ...] | None = None
    """Exact ranges; None: `chosen` from `starting` to `ending`."""
    starting: Bounds = Bounds(LogEnd.EARLIEST)
    ending: Bounds = Bounds(LogEnd.LATEST)
    zookeeper: str | None = None
    """ZooKeeper with the brokers' registry, `host:port,host:port/chroot`; `bootstrap` is empty
    then.
    """
    physical: bool = False
    """The logs are (`BrokerPartition.is_physical`)."""
    late_start_is_latest: bool = False
    """If no record is as late as a starting time: start at the end instead of failing."""
    compacted: frozenset[str] = frozenset()
    """Topics whose missing offsets were compacted, whatever brokers report."""
    fails_on_data_loss: bool = True
    least_tasks: int = 1
    most_offsets: int | None = None
    """In one Spark partition."""
    generation: str | None = None
    """Broker type or release (`Broker.generation`); None: detected."""
    security: Security = OPEN
    """How the brokers' listeners are entered."""
    access: Access = OPEN_ZOOKEEPER
    """How ZooKeeper is entered."""
    transform: ArrowTransform | None = None
    """Transform that tasks apply to their rows; it receives all columns."""

    @property
    def has_moving_bounds(self) -> bool:
        """True if the bounds change with the log: `earliest`, `latest` and times."""
        return self.ranges is None and not (self.starting.are_offsets and self.ending.are_offsets)

    def only(self, logs: Collection[BrokerPartition]) -> Reading:
        """Return the reading of these partitions only."""
        return replace(self, starting=self.starting.only(logs), ending=self.ending.only(logs))


def reject_missing_partitions(
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
            if count:
                message = f"The topic has {count} partitions{on}, numbered from 0, and not this one"
            else:
                message = f"The topic is not there{on}"
            raise TopicMissing(
                message, **log.place, action="Check the option, and that this is the right cluster"
            )


T = TypeVar("T")
NAME = "offset_ranges"


@dataclass(frozen=True, slots=True)
class Task:
    """The ranges that one Spark partition reads, and which ranges of the plan they are."""

    indices: tuple[int, ...]
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids when the ranges were planned, if known."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Leader epochs when the ranges were planned."""
    incarnations: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Which life of the log the rows are of, where it is not the first."""
    cleanups: Mapping[str, Cleanup] = field(default_factory=dict)
    """How the topics are cleaned up, where that is known."""
    tails: Mapping[BrokerPartition, Tail] = field(default_factory=dict)
    """By which bytes physical logs were known when the ranges were planned."""

    @property
    def number(self) -> int:
        """Names it among the tasks of its plan: its first range, which no other one reads."""
        return self.indices[0]


@dataclass(frozen=True, slots=True)
class QueryTask(Task):
    """A task of a DataFrame whose bounds change.

    Spark plans tasks once, and each query executes them. `ranges` were cut when the tasks were
    planned. The first range of a partition stands for all offsets below its end, the last for all
    from its start on: each query resolves them (`reading.pieces_of`).
    """

    planned: Mapping[BrokerPartition, OffsetRange] = field(default_factory=dict)
    """The whole range of each log when the tasks were planned. An empty one is in `ranges`, too."""
    brokers: tuple[Broker, ...] = ()
    """All brokers of the cluster when the tasks were planned."""
    others_than: frozenset[BrokerPartition] | None = None
    """The task also reads every chosen log that is not one of these: it was added later. None:
    another task does, or none.
    """


def of_topics(values: Mapping[str, T], topics: Iterable[str]) -> dict[str, T]:
    return {topic: values[topic] for topic in sorted(topics) if topic in values}


def tasks_of_ranges(
    ranges: Sequence[OffsetRange],
    tasks: Sequence[Sequence[int]],
    *,
    topic_ids: Mapping[str, str],
    leader_epochs: Mapping[BrokerPartition, int],
    incarnations: Mapping[BrokerPartition, int],
    cleanups: Mapping[str, Cleanup],
    tails: Mapping[BrokerPartition, Tail],
) -> list[Task]:
    """The tasks as values, each with what concerns it alone."""
    return [
        Task(
            tuple(task),
            read,
            of_topics(topic_ids, topics),
            _of_logs(leader_epochs, logs),
            _of_logs(incarnations, logs),
            of_topics(cleanups, topics),
            _of_logs(tails, logs),
        )
        for task in tasks
        for read in [tuple(ranges[i] for i in task)]
        for logs in [[r.log for r in read]]
        for topics in [{log.topic for log in logs}]
    ]


def _of_logs(
    values: Mapping[BrokerPartition, T], logs: Iterable[BrokerPartition]
) -> dict[BrokerPartition, T]:
    return {log: values[log] for log in logs if log in values}


def ranges_of(
    reading: Reading,
    extents: Mapping[BrokerPartition, PartitionOffsets],
    first: Mapping[BrokerPartition, int | None],
    last: Mapping[BrokerPartition, int | None],
) -> Iterator[OffsetRange]:
    """Return the range of each partition. `first`, `last`: offsets of the times of `starting` and
    `ending`, None without a record that late. Raises SettingsError for impossible bounds, and as
    `inside` for offsets that the log lacks.
    """
    for option, bounds in (
        (reading.starting.option, reading.starting),
        (reading.ending.option, reading.ending),
    ):
        _reject_others(option, bounds.by_log, extents)
    for log, extent in sorted(extents.items()):
        starting, ending = reading.starting.of(log), reading.ending.of(log)
        start, end = (
            _offset_of(starting, extent, first.get(log)),
            _offset_of(ending, extent, last.get(log)),
        )
        if start is None:
            start = _too_late(log, extent, reading)
        if end is None:
            ending, end = LogEnd.LATEST, extent.end_offset
        _reject_reversed(log, reading, (starting, start), (ending, end))
        if start > end and reading.fails_on_data_loss:
            raise _not_held(log, start, end, extent)
        yield inside(
            OffsetRange(log, start, max(start, end)), extent, fails=reading.fails_on_data_loss
        )


def inside(whole: OffsetRange, extent: PartitionOffsets, *, fails: bool) -> OffsetRange:
    """The range, when the log holds all of it; else, unless it `fails`, the part that the log
    holds.

    Raises DataLoss when it starts below the log start, NotYetReadable when it reaches beyond the
    readable end, RanOutBeforeUntil when it reaches beyond the log's.
    """
    place = whole.log.place
    if (
        not whole.size
        or extent.log_start_offset <= whole.from_offset <= whole.until_offset <= extent.end_offset
    ):
        return whole
    if not fails:
        start = min(max(whole.from_offset, extent.log_start_offset), extent.end_offset)
        return OffsetRange(whole.log, start, max(start, min(whole.until_offset, extent.end_offset)))
    if whole.from_offset < extent.log_start_offset:
        message = f"The log starts at {extent.log_start_offset}, offsets from {whole.from_offset} on are asked for"
        raise DataLoss(
            message,
            **place,
            action="Check the topic's retention; failOnDataLoss: false reads what is left",
        )
    message = f"The log can be read up to {extent.end_offset}, offsets up to {whole.until_offset} are asked for"
    if whole.until_offset <= extent.end_offset + extent.held_back:
        raise NotYetReadable(
            message,
            **place,
            action="Check who left a transaction open there; once it ends, the rest can be read",
        )
    raise RanOutBeforeUntil(
        message, **place, action="Check the offsets; failOnDataLoss: false reads what is there"
    )


def pieces_of(task: QueryTask, wholes: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """The part of each whole range that the task reads. All tasks together read each offset of the
    wholes once.
    """
    mine: dict[BrokerPartition, list[OffsetRange]] = {}
    for piece in task.ranges:
        mine.setdefault(piece.log, []).append(piece)
    for whole in wholes:
        planned = task.planned.get(whole.log)
        if planned is None:  # a log that was added later
            yield whole
            continue
        for piece in mine.get(whole.log, ()):
            start, end = whole.from_offset, whole.until_offset
            if piece.from_offset > planned.from_offset:
                start = max(start, piece.from_offset)
            if piece.until_offset < planned.until_offset:
                end = min(end, piece.until_offset)
            if start < end:
                yield replace(whole, from_offset=start, until_offset=end)


def _reject_reversed(
    log: BrokerPartition, reading: Reading, start: tuple[Bound, int], end: tuple[Bound, int]
) -> None:
    """Reject a start beyond the end if both were given. Raises SettingsError, as Spark's source
    does.
    """
    message = None
    if isinstance(start[0], FirstAt) and isinstance(end[0], FirstAt) and start[0].ms > end[0].ms:
        message = f"Reading would start at the time {start[0].ms} and stop at {end[0].ms}"
    elif start[1] > end[1] and LogEnd.EARLIEST is not start[0] and LogEnd.LATEST is not end[0]:
        message = f"Reading would start at {start[1]} and stop at {end[1]}"
    if message:
        action = f"Check {reading.starting.option} and {reading.ending.option}"
        raise SettingsError(message, **log.place, action=action)


def _not_held(log: BrokerPartition, start: int, end: int, extent: PartitionOffsets) -> EtlError:
    """The error of a range that lies outside the log: it starts above the readable end, or ends
    below the log start.
    """
    place = log.place
    if start <= extent.log_start_offset:
        message = f"The log starts at {extent.log_start_offset}, offsets up to {end} are asked for"
        return DataLoss(
            message,
            **place,
            action="Check the topic's retention; failOnDataLoss: false reads what is left, here nothing",
        )
    message = (
        f"The log can be read up to {extent.end_offset}, offsets from {start} on are asked for"
    )
    if start <= extent.end_offset + extent.held_back:
        return NotYetReadable(
            message,
            **place,
            action="Check who left a transaction open there; once it ends, the rest can be read",
        )
    action = "Check the offsets, and whether the topic was made again; failOnDataLoss: false reads nothing there"
    return RanOutBeforeUntil(message, **place, action=action)


def _reject_others(
    option: str, named: Iterable[BrokerPartition], read: Iterable[BrokerPartition]
) -> None:
    """A bound for a log that is not read is a mistake. Raises TopicMissing."""
    left = sorted(set(named) - set(read))
    if left:
        message = "The option names a partition that is not there, or not chosen to be read"
        raise TopicMissing(
            message, option=option, **left[0].place, action="Check the option, and the topics read"
        )


def _offset_of(bound: Bound, extent: PartitionOffsets, found: int | None) -> int | None:
    """Return None if no record is that late. A later record than the observed end is not read."""
    if isinstance(bound, LogEnd):
        return extent.log_start_offset if bound is LogEnd.EARLIEST else extent.end_offset
    if isinstance(bound, FirstAt):
        return None if found is None else min(found, extent.end_offset)
    return bound


def _too_late(log: BrokerPartition, extent: PartitionOffsets, reading: Reading) -> int:
    if reading.late_start_is_latest:
        return extent.end_offset
    message, action = (
        "No record is as late as the starting time",
        "Check the time; startingOffsetsByTimestampStrategy: latest reads nothing there",
    )
    raise SettingsError(message, option=reading.starting.option, **log.place, action=action)
