"""Which offset ranges does a query read, and in which tasks?

The ranges follow from the options and the offsets that brokers report. Missing offsets are an
error or left out, by `failOnDataLoss`. A start beyond the end is an error if both were given.

Lives here: parsed options, their offset ranges, tasks (values that are sent to executors).
Not here: parsing options (etl/reader/options.py), requests to brokers (etl/reader/source.py).
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
from etl.model.partitions import (
    Broker,
    Cleanup,
    Fingerprint,
    PartitionOffsets,
    TopicPartition,
    values_of,
)
from etl.model.plans import OffsetRange
from etl.model.security import OPEN_ZOOKEEPER, Access
from etl.reader.fetch_options import FetchOptions

if TYPE_CHECKING:
    from etl.reader.batch_transform import ArrowTransform


class LogEnd(str, Enum):
    """One of the two ends of a partition."""

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
    """One bound for every partition, or a bound for each named partition."""

    everywhere: Bound | None = None
    by_partition: Mapping[TopicPartition, Bound] = field(default_factory=dict)
    option: str = ""
    """The option that set it."""

    def of(self, partition: TopicPartition) -> Bound:
        """Return the bound of a partition.

        Raises SettingsError if partitions are named and this one is not.
        """
        if self.everywhere is not None:
            return self.everywhere
        if partition not in self.by_partition:
            action = "Name every partition that is read: -2 is its first offset, -1 its end"
            raise SettingsError(
                "A partition is not named",
                option=self.option,
                **partition.place,
                action=action,
            )
        return self.by_partition[partition]

    @property
    def are_offsets(self) -> bool:
        """True if all bounds are offsets, which never change."""
        if self.everywhere is not None:
            return False
        return all(isinstance(bound, int) for bound in self.by_partition.values())

    def only(self, partitions: Collection[TopicPartition]) -> Bounds:
        """Return the bounds of these partitions only."""
        by_partition = {
            partition: bound
            for partition, bound in self.by_partition.items()
            if partition in partitions
        }
        return replace(self, by_partition=by_partition)

    def times(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the times in ms of partitions whose bound is a time."""
        times: dict[TopicPartition, int] = {}
        for partition in partitions:
            bound = self.of(partition)
            if isinstance(bound, FirstAt):
                times[partition] = bound.ms
        return times


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The selected partitions: topics by name, topics by pattern, or partitions.

    A pattern matches anywhere in a topic's name, as in Spark's source.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def asked(self) -> list[str] | None:
        """Topics to request metadata of. None: all."""
        if self.pattern is not None:
            return None
        return sorted(set(self._named_topics))

    @property
    def _named_topics(self) -> list[str]:
        topics = [partition.topic for partition in self.partitions]
        return [*self.topics, *topics]

    def among(self, there: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the selected ones of the existing partitions, in order.

        Raises TopicMissing if a named topic or partition does not exist.
        """
        known = sorted(there)
        names = {partition.topic for partition in known}
        if self.pattern is not None:
            pattern = java_pattern(self.pattern)
            found = [partition for partition in known if pattern.search(partition.topic)]
            if not found:
                action = "Check the expression, and that this is the right cluster"
                raise TopicMissing(
                    "No topic matches subscribePattern", pattern=self.pattern, action=action
                )
            return found
        for topic in self._named_topics:
            if topic not in names:
                raise TopicMissing(
                    "The topic is not there",
                    topic=topic,
                    action="Check its name, and that this is the right cluster",
                )
        reject_missing_partitions(self.partitions, known)
        if self.partitions:
            return list(self.partitions)
        return [partition for partition in known if partition.topic in self.topics]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read."""

    fetch: FetchOptions
    columns: tuple[str, ...]
    target_task_bytes: int
    selection: TopicSelection = TopicSelection()
    ranges: tuple[OffsetRange, ...] | None = None
    """Exact ranges; None: `selection` from `starting` to `ending`."""
    starting: Bounds = Bounds(LogEnd.EARLIEST)
    ending: Bounds = Bounds(LogEnd.LATEST)
    zookeeper: str | None = None
    """ZooKeeper of the brokers, `host:port,host:port/chroot`. If set, `FetchOptions.bootstrap`
    is empty.
    """
    physical: bool = False
    """Partitions are physical (`TopicPartition.is_physical`)."""
    late_start_is_latest: bool = False
    """If no record is as late as a starting time, start at the end instead of failing."""
    compacted: frozenset[str] = frozenset()
    """Topics to treat as compacted, independent of what brokers report."""
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    """Upper bound of the offsets in one Spark partition. None: no bound."""
    access: Access = OPEN_ZOOKEEPER
    """Encryption and authentication of ZooKeeper."""
    transform: ArrowTransform | None = None
    """Transform that tasks apply to their rows; it receives all columns."""

    @property
    def has_moving_bounds(self) -> bool:
        """True if bounds change with the partition: `earliest`, `latest` and times."""
        return self.ranges is None and not (self.starting.are_offsets and self.ending.are_offsets)

    def only(self, partitions: Collection[TopicPartition]) -> ReadOptions:
        """Return the reading of these partitions only."""
        return replace(
            self, starting=self.starting.only(partitions), ending=self.ending.only(partitions)
        )


def reject_missing_partitions(
    named: Iterable[TopicPartition], there: Iterable[TopicPartition]
) -> None:
    """Raise TopicMissing for the first named partition that does not exist."""
    known = set(there)
    for partition in named:
        if partition in known:
            continue
        count = 0
        for other in known:
            if other.topic == partition.topic and other.broker_id == partition.broker_id:
                count += 1
        on = f" on broker {partition.broker_id}" if partition.is_physical else ""
        if count:
            message = f"The topic has {count} partitions{on}, numbered from 0, and not this one"
        else:
            message = f"The topic is not there{on}"
        raise TopicMissing(
            message,
            **partition.place,
            action="Check the option, and that this is the right cluster",
        )


T = TypeVar("T")
NAME = "offset_ranges"


@dataclass(frozen=True, slots=True)
class Task:
    """The ranges that one Spark partition reads."""

    indices: tuple[int, ...]
    """Their indices in the plan."""
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids when the ranges were planned, if known."""
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Leader epochs when the ranges were planned."""
    incarnations: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Incarnation of a partition, if it is not the first."""
    cleanups: Mapping[str, Cleanup] = field(default_factory=dict)
    """Cleanup policies of topics, if known."""
    fingerprints: Mapping[TopicPartition, Fingerprint] = field(default_factory=dict)
    """Tail fingerprints of physical partitions when the ranges were planned."""

    @property
    def number(self) -> int:
        """Identifies the task in its plan: its first range, which no other task reads."""
        return self.indices[0]


@dataclass(frozen=True, slots=True)
class QueryTask(Task):
    """A task of a DataFrame with bounds that change.

    Spark 4.2 plans the tasks of a DataFrame once, and each query executes them. `ranges` were split
    at that time. The first range of a partition represents all offsets below its end, the last one
    all offsets from its start on: each query resolves them (`reading.pieces_of`).
    """

    planned: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    """The whole range of each partition at that time. An empty one is in `ranges`, too."""
    brokers: tuple[Broker, ...] = ()
    """All brokers of the cluster when the tasks were planned."""
    others_than: frozenset[TopicPartition] | None = None
    """The task also reads selected partitions that are not among these: they were added later.

    None: another task reads them, or none does.
    """


def select_topics(values: Mapping[str, T], topics: Iterable[str]) -> dict[str, T]:
    """Return the values of these topics, sorted by topic."""
    return {topic: values[topic] for topic in sorted(topics) if topic in values}


def tasks_of_ranges(
    ranges: Sequence[OffsetRange],
    tasks: Sequence[Sequence[int]],
    *,
    topic_ids: Mapping[str, str],
    leader_epochs: Mapping[TopicPartition, int],
    incarnations: Mapping[TopicPartition, int],
    cleanups: Mapping[str, Cleanup],
    fingerprints: Mapping[TopicPartition, Fingerprint],
) -> list[Task]:
    """Return a task for each list of indices, with the values of its partitions only."""
    result = []
    for indices in tasks:
        read = tuple(ranges[i] for i in indices)
        partitions = [r.partition for r in read]
        topics = {partition.topic for partition in partitions}
        task = Task(
            tuple(indices),
            read,
            select_topics(topic_ids, topics),
            values_of(leader_epochs, partitions),
            values_of(incarnations, partitions),
            select_topics(cleanups, topics),
            values_of(fingerprints, partitions),
        )
        result.append(task)
    return result


def ranges_of(
    reading: ReadOptions,
    extents: Mapping[TopicPartition, PartitionOffsets],
    first: Mapping[TopicPartition, int | None],
    last: Mapping[TopicPartition, int | None],
) -> Iterator[OffsetRange]:
    """Yield the range of each partition.

    `first`, `last`: the offsets of the times of `starting` and `ending`, None without a record that
    late. A time is looked up after the partition's end was observed, so a record that arrived in
    between lies above the end and is not read.

    Raises SettingsError for impossible bounds, and the errors of `clip_to_partition` for missing
    offsets.
    """
    for bounds in (reading.starting, reading.ending):
        _reject_unread(bounds.option, bounds.by_partition, extents)
    for partition, offsets in sorted(extents.items()):
        starting = reading.starting.of(partition)
        ending = reading.ending.of(partition)
        start = _offset_of(starting, offsets, first.get(partition))
        end = _offset_of(ending, offsets, last.get(partition))
        if start is None:
            start = _start_after_last_record(partition, offsets, reading)
        if end is None:
            ending = LogEnd.LATEST
            end = offsets.end_offset
        _reject_reversed(partition, reading, (starting, start), (ending, end))
        if start > end and reading.fetch.fails_on_data_loss:
            raise _outside(partition, start, end, offsets)
        whole = OffsetRange(partition, start, max(start, end))
        yield clip_to_partition(whole, offsets, fails=reading.fetch.fails_on_data_loss)


def clip_to_partition(whole: OffsetRange, offsets: PartitionOffsets, *, fails: bool) -> OffsetRange:
    """Return the range, or without `fails` the part of it that the partition has.

    Raises with `fails`: DataLoss if the range starts below the log start; NotYetReadable if it ends
    above the readable end, which an open transaction holds back; RanOutBeforeUntil if it ends above
    the end of the partition.
    """
    place = whole.partition.place
    if (
        not whole.size
        or offsets.log_start_offset <= whole.from_offset <= whole.until_offset <= offsets.end_offset
    ):
        return whole
    if not fails:
        start = min(max(whole.from_offset, offsets.log_start_offset), offsets.end_offset)
        return OffsetRange(
            whole.partition, start, max(start, min(whole.until_offset, offsets.end_offset))
        )
    if whole.from_offset < offsets.log_start_offset:
        message = (
            f"The partition starts at {offsets.log_start_offset},"
            f" offsets from {whole.from_offset} on are requested"
        )
        action = "Check the topic's retention. failOnDataLoss: false reads what is left"
        raise DataLoss(message, **place, action=action)
    message = (
        f"The partition can be read up to {offsets.end_offset},"
        f" offsets up to {whole.until_offset} are requested"
    )
    if whole.until_offset <= offsets.end_offset + offsets.held_back:
        raise NotYetReadable(
            message,
            **place,
            action="Check who left a transaction open there. Once it ends, the rest can be read",
        )
    raise RanOutBeforeUntil(
        message, **place, action="Check the offsets. failOnDataLoss: false reads what is there"
    )


def pieces_of(task: QueryTask, wholes: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the part of each whole range that the task reads.

    All tasks together read each offset of the whole ranges once.
    """
    mine: dict[TopicPartition, list[OffsetRange]] = {}
    for piece in task.ranges:
        mine.setdefault(piece.partition, []).append(piece)
    for whole in wholes:
        planned = task.planned.get(whole.partition)
        if planned is None:  # added later
            yield whole
            continue
        for piece in mine.get(whole.partition, ()):
            start = whole.from_offset
            end = whole.until_offset
            if piece.from_offset > planned.from_offset:
                start = max(start, piece.from_offset)
            if piece.until_offset < planned.until_offset:
                end = min(end, piece.until_offset)
            if start < end:
                yield replace(whole, from_offset=start, until_offset=end)


def _reject_reversed(
    partition: TopicPartition,
    reading: ReadOptions,
    start: tuple[Bound, int],
    end: tuple[Bound, int],
) -> None:
    """Raise SettingsError if both bounds were given and the start is beyond the end.

    `start` and `end`: each bound, and its offset. Spark's source rejects the same.
    """
    starting, start_offset = start
    ending, end_offset = end
    message = None
    if isinstance(starting, FirstAt) and isinstance(ending, FirstAt) and starting.ms > ending.ms:
        message = f"Reading would start at the time {starting.ms} and stop at {ending.ms}"
    elif (
        start_offset > end_offset
        and starting is not LogEnd.EARLIEST
        and ending is not LogEnd.LATEST
    ):
        message = f"Reading would start at {start_offset} and stop at {end_offset}"
    if message:
        action = f"Check {reading.starting.option} and {reading.ending.option}"
        raise SettingsError(message, **partition.place, action=action)


def _outside(
    partition: TopicPartition, start: int, end: int, offsets: PartitionOffsets
) -> EtlError:
    """Return the error of a range outside the partition.

    The range starts above the readable end, or ends below the log start.
    """
    place = partition.place
    if start <= offsets.log_start_offset:
        message = (
            f"The partition starts at {offsets.log_start_offset}, offsets up to {end} are requested"
        )
        action = (
            "Check the topic's retention. failOnDataLoss: false reads what is left, here nothing"
        )
        return DataLoss(message, **place, action=action)
    message = (
        f"The partition can be read up to {offsets.end_offset},"
        f" offsets from {start} on are requested"
    )
    if start <= offsets.end_offset + offsets.held_back:
        return NotYetReadable(
            message,
            **place,
            action="Check who left a transaction open there. Once it ends, the rest can be read",
        )
    action = (
        "Check the offsets, and whether the topic was recreated."
        " failOnDataLoss: false reads nothing there"
    )
    return RanOutBeforeUntil(message, **place, action=action)


def _reject_unread(
    option: str, named: Iterable[TopicPartition], read: Iterable[TopicPartition]
) -> None:
    """Raise TopicMissing if an option has a bound for a partition that is not read."""
    unread = sorted(set(named) - set(read))
    if unread:
        message = "The option names a partition that does not exist or is not selected"
        action = "Check the option, and the topics read"
        raise TopicMissing(message, option=option, **unread[0].place, action=action)


def _offset_of(bound: Bound, offsets: PartitionOffsets, found: int | None) -> int | None:
    """Return the offset of a bound, None if no record is that late.

    A time's offset above the observed end becomes the end: later records are not read.
    """
    if isinstance(bound, LogEnd):
        return offsets.log_start_offset if bound is LogEnd.EARLIEST else offsets.end_offset
    if isinstance(bound, FirstAt):
        return None if found is None else min(found, offsets.end_offset)
    return bound


def _start_after_last_record(
    partition: TopicPartition, offsets: PartitionOffsets, reading: ReadOptions
) -> int:
    """Return the end of the partition if `late_start_is_latest`. Raises SettingsError."""
    if reading.late_start_is_latest:
        return offsets.end_offset
    message = "No record is as late as the starting time"
    action = "Check the time; startingOffsetsByTimestampStrategy: latest reads nothing there"
    raise SettingsError(message, option=reading.starting.option, **partition.place, action=action)
