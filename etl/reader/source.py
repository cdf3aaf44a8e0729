"""How does Spark read offset ranges as a data source?

    from etl import OffsetRanges

    spark.dataSource.register(OffsetRanges)
    clicks = (
        spark.read.format("offset_ranges")
        .option("bootstrap", "127.0.0.1:9092")
        .option("topics", "clicks")
        .load()
    )

It works without a pipeline. The options (docs/READER.md) are ours and those of Spark's Kafka
source, so `format("kafka")` becomes `format("offset_ranges")`.

Spark 4.2 calls `reader` and `partitions` once for a DataFrame and all its queries
(`PythonDataSourceV2.getOrCreateReadInfo`). So `partitions` says how many tasks there are, and
`read` resolves bounds that are not offsets, each time a query runs.

Not here: tasks of a run (etl/reader/spark_tasks.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from etl.decide.partition_identity import Cut
from etl.decide.tasks import (
    Boundaries,
    boundaries_of,
    pack_tasks,
    split_by_offsets,
    split_ranges,
    split_tasks,
)
from etl.errors import BrokerUnreachable, EtlError, TopicRecreated
from etl.kafka.messages import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.model.columns import raw_columns, spark_schema
from etl.model.partitions import Broker, BrokerPartition, Cleanup, cleanup_of, uncounted
from etl.model.plans import OffsetRange
from etl.reader.options import columns_of_schema, for_options, in_options, parse_options
from etl.reader.reading import (
    NAME,
    QueryTask,
    Reading,
    Task,
    inside,
    of_topics,
    pieces_of,
    ranges_of,
    reject_missing_partitions,
)
from etl.reader.task_rows import attempt_number, begin_task, failed, rows_of_task

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from etl.io.brokers.cluster import Cluster
    from etl.io.brokers.offsets import OffsetsAndLeaders


def tasks_of(reading: Reading) -> list[Task]:
    """The tasks that the options come to. Where bounds move there is at least one, and all of them
    are QueryTasks.
    """
    wanted = _wanted(reading)
    ranges, groups = _packed(wanted, reading)
    if reading.has_moving_bounds:
        return list(_query_tasks(wanted, ranges, groups, reading))
    return [wanted.task(ranges, group) for group in groups]


def _query_tasks(
    wanted: _Wanted,
    ranges: Sequence[OffsetRange],
    groups: Sequence[Sequence[int]],
    reading: Reading,
) -> Iterator[QueryTask]:
    """The planned tasks, with the empty logs among them: later queries may find records there."""
    empty = [each for each in wanted.ranges if not each.size]
    all_ranges = [*ranges, *empty]
    of_empty = range(len(ranges), len(all_ranges))
    planned = {each.log: each for each in wanted.ranges}
    count = max(1, len(groups))
    for number in range(count):
        group = [*(groups[number] if groups else ()), *of_empty[number::count]]
        task = wanted.task(all_ranges, group)
        looks_for_others = number == 0 and not reading.physical and not reading.chosen.logs
        yield QueryTask(
            task.indices,
            task.ranges,
            task.topic_ids,
            task.leader_epochs,
            cleanups=task.cleanups,
            planned={each.log: planned[each.log] for each in task.ranges},
            brokers=wanted.brokers,
            others_than=frozenset(planned) if looks_for_others else None,
        )


def bound_now(task: QueryTask, reading: Reading) -> Task:
    """Return the task with current offsets and metadata.

    Requests: one Metadata, one DescribeConfigs, two or three ListOffsets per leader, one more for
    each side given by time. Raises TopicMissing and TopicRecreated for changed topics,
    PartitionTruncated (with `failOnDataLoss` false only TopicRecreated), and as `ranges_of`.
    """
    with _cluster_of(task, reading) as cluster:
        if task.others_than is None:
            topics: Collection[str] | None = {each.log.topic for each in task.ranges}
        else:
            topics = reading.chosen.asked
        metadata = cluster.describe_when_known(topics, wait_s=reading.timeout_s)
        _reject_recreated(task, metadata)
        logs = _logs_now(task, reading, metadata)
        wanted, found = _bound(cluster, reading.only(set(logs)), logs, metadata)
        if reading.fails_on_data_loss:
            _reject_truncated(cluster, task, found)
    ranges = tuple(pieces_of(task, wanted.ranges))
    return wanted.task(ranges, range(len(ranges)))


def _cluster_of(task: QueryTask, reading: Reading) -> Cluster:
    """Open the cluster on an executor, which asks brokers only."""
    from etl.io.brokers.cluster import Cluster
    from etl.io.brokers.connection import IDLE_CONNECTIONS

    addresses = list(
        dict.fromkeys(
            [*reading.bootstrap, *((broker.host, broker.port) for broker in task.brokers)]
        )
    )
    if not reading.physical:
        return Cluster(
            addresses,
            timeout_s=reading.timeout_s,
            generation=reading.generation,
            idle_connections=IDLE_CONNECTIONS,
            security=reading.security,
        )
    metadata = _planned_metadata(task)
    return Cluster(
        addresses,
        timeout_s=reading.timeout_s,
        generation=min(task.brokers).generation,
        idle_connections=IDLE_CONNECTIONS,
        registry=lambda topics: metadata,
    )


def _planned_metadata(task: QueryTask) -> ClusterMetadata:
    """Topics and leaders when the tasks were planned: brokers of Jafka and Kafka 0.7 do not know
    them.
    """
    partitions: dict[str, list[PartitionMetadata]] = {}
    for log, whole in task.planned.items():
        partitions.setdefault(log.topic, []).append(PartitionMetadata(log, None, whole.leader))
    topics = {
        name: TopicMetadata(name, None, None, False, tuple(found))
        for name, found in partitions.items()
    }
    return ClusterMetadata(None, {broker.id: broker for broker in task.brokers}, topics)


def _reject_recreated(task: QueryTask, metadata: ClusterMetadata) -> None:
    """Raises TopicRecreated: other tasks of the same query may have read the topic that was
    deleted.
    """
    now = metadata.topic_ids
    for topic, planned in sorted(task.topic_ids.items()):
        if now.get(topic, planned) != planned:
            message = f"The topic was deleted and made again since the DataFrame was made: its id is {now[topic]}, it was {planned}"
            raise TopicRecreated(message, topic=topic, action="Check who did it")


def _logs_now(
    task: QueryTask, reading: Reading, metadata: ClusterMetadata
) -> list[BrokerPartition]:
    """Return the task's partitions, with later ones if the task covers them. Raises TopicMissing."""
    there = _there(metadata, reading)
    mine = sorted(task.planned)
    if reading.chosen.pattern is not None and not reading.fails_on_data_loss:
        mine = [log for log in mine if log in there]
    reject_missing_partitions(mine, there)
    if task.others_than is None:
        return mine
    return [*mine, *(log for log in reading.chosen.among(there) if log not in task.others_than)]


def _reject_truncated(cluster: Cluster, task: QueryTask, found: OffsetsAndLeaders) -> None:
    """Raises PartitionTruncated for a partition that lost its end since the tasks were planned; not
    with an unchanged epoch.
    """
    elected = {
        log: epoch
        for log, epoch in task.leader_epochs.items()
        if found.epochs.get(log, epoch) != epoch
    }
    if not elected:
        return
    ends = cluster.epoch_ends(elected, leaders={log: found.leaders[log] for log in elected})
    for log, end in sorted(ends.items()):
        until = task.planned[log].until_offset
        if end.end_offset < until:
            raise Cut(log, until, end.end_offset).error()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The requested ranges with today's leaders and metadata."""

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    leader_epochs: Mapping[BrokerPartition, int]
    cleanups: Mapping[str, Cleanup]
    boundaries: Boundaries
    brokers: tuple[Broker, ...]
    """All of the cluster."""
    bytes_per_offset: Mapping[BrokerPartition, float] = field(default_factory=dict)
    """For partitions with reported sizes."""

    def task(self, ranges: Sequence[OffsetRange], indices: Sequence[int]) -> Task:
        """Return a task of these pieces."""
        read = tuple(ranges[i] for i in indices)
        topics = {r.log.topic for r in read}
        epochs = {r.log: self.leader_epochs[r.log] for r in read if r.log in self.leader_epochs}
        return Task(
            tuple(indices),
            read,
            of_topics(self.topic_ids, topics),
            epochs,
            cleanups=of_topics(self.cleanups, topics),
        )


def _wanted(reading: Reading) -> _Wanted:
    """Ask the brokers when Spark plans the tasks: one Metadata request, two or three ListOffsets
    per broker, one more for each side given by time, one DescribeLogDirs, one DescribeConfigs.
    """
    named = None if reading.ranges is None else sorted({r.log for r in reading.ranges})
    with _open_cluster(reading, named or reading.chosen.logs) as cluster:
        topics = reading.chosen.asked if named is None else {log.topic for log in named}
        metadata = cluster.describe_when_known(topics, wait_s=reading.timeout_s)
        there = _there(metadata, reading)
        if named is not None:
            reject_missing_partitions(named, there)
        logs = reading.chosen.among(there) if named is None else named
        wanted, found = _bound(cluster, reading, logs, metadata)
        return replace(wanted, bytes_per_offset=cluster.bytes_per_offset(found))


def _there(metadata: ClusterMetadata, reading: Reading) -> set[BrokerPartition]:
    """The logs that there are, internal ones only where they are named."""
    there = metadata.leaders.keys() | metadata.leaderless
    there -= uncounted(metadata.leaderless, metadata.leaders)
    if reading.chosen.pattern is not None:
        there = {log for log in there if not metadata.topics[log.topic].is_internal}
    return there


def _bound(
    cluster: Cluster, reading: Reading, logs: Sequence[BrokerPartition], metadata: ClusterMetadata
) -> tuple[_Wanted, OffsetsAndLeaders]:
    """Resolve the options for the current partitions."""
    found = cluster.extents(logs, isolation=reading.isolation, metadata=metadata)
    if found.leaderless:
        lost = min(found.leaderless)
        raise BrokerUnreachable(f"The log {lost.unled}", **lost.place, action=lost.held_by)
    if reading.ranges is not None:
        ranges = [
            inside(r, found.extents[r.log], fails=reading.fails_on_data_loss)
            for r in reading.ranges
        ]
    else:
        first, last = (
            cluster.first_at(bounds.times(logs), isolation=reading.isolation)
            for bounds in (reading.starting, reading.ending)
        )
        ranges = list(ranges_of(reading, found.extents, first, last))
    retention = cluster.retention({r.log.topic for r in ranges})
    cleanups = {
        r.log.topic: cleanup_of(
            retention.get(r.log.topic), said_to_be_compacted=r.log.topic in reading.compacted
        )
        for r in ranges
    }
    led = tuple(replace(r, leader=found.leaders[r.log]) for r in ranges)
    epochs = found.epochs if reading.fails_on_data_loss else {}
    brokers = tuple(metadata.brokers.values())
    return _Wanted(
        led, metadata.topic_ids, epochs, cleanups, boundaries_of(found.extents), brokers
    ), found


@contextlib.contextmanager
def _open_cluster(reading: Reading, named: Sequence[BrokerPartition]) -> Iterator[Cluster]:
    """Open the cluster on the driver; only here ZooKeeper is asked."""
    from etl.io.brokers.cluster import Cluster
    from etl.io.clusters import registered_cluster
    from etl.io.zookeeper.session import ZooKeeper

    if reading.zookeeper is None:
        with Cluster(
            reading.bootstrap,
            timeout_s=reading.timeout_s,
            generation=reading.generation,
            security=reading.security,
        ) as cluster:
            yield cluster
        return
    with (
        ZooKeeper(reading.zookeeper, access=reading.access) as zookeeper,
        registered_cluster(
            zookeeper,
            physical=reading.physical,
            timeout_s=reading.timeout_s,
            generation=reading.generation,
            known=named,
            security=reading.security,
        ) as cluster,
    ):
        yield cluster


def _packed(
    wanted: _Wanted, reading: Reading
) -> tuple[Sequence[OffsetRange], Sequence[Sequence[int]]]:
    """Cut and pack ranges by `target_task_bytes` and the options: the pieces, and their indices by
    task.
    """
    parallelism, most = (
        max(os.cpu_count() or 1, reading.least_tasks),
        _most_offsets(sum(r.size for r in wanted.ranges), reading),
    )
    cut = split_ranges(
        wanted.ranges,
        wanted.bytes_per_offset,
        reading.target_task_bytes,
        parallelism,
        wanted.boundaries,
    )
    if most is not None:
        cut = split_by_offsets(cut, most)
    packed = pack_tasks(cut, wanted.bytes_per_offset, reading.target_task_bytes, parallelism)
    return cut, packed if most is None else split_tasks(packed, cut, most)


def _most_offsets(offsets: int, reading: Reading) -> int | None:
    """Return the most offsets per task, so that there are at least as many tasks as requested."""
    bounds = [] if reading.most_offsets is None else [reading.most_offsets]
    if reading.least_tasks > 1:
        bounds.append(max(1, offsets // reading.least_tasks))
    return min(bounds, default=None)


class OffsetRanges(DataSource):
    """The data source; see the module. Wrong options raise SettingsError at `load()`."""

    @classmethod
    def name(cls) -> str:
        """Name for `spark.read.format`."""
        return NAME

    def schema(self) -> str | StructType:
        """The chosen columns of the raw table."""
        reading = parse_options(self.options)
        return spark_schema(reading.columns, physical=reading.physical)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        """A reader of the options; `schema` is the one from above, or names the columns that the
        query's author wants of it.

        It takes no filters (`pushFilters`): Spark 4.2 keeps what those of one query left, and gives
        it to others of the same DataFrame.
        """
        return RangesReader(self.options, schema)


class RangesReader(DataSourceReader):
    """Plans in a process of the driver's machine, reads in the executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType | None = None) -> None:
        chosen = parse_options(options)
        self._names = chosen.columns if schema is None else columns_of_schema(schema, chosen)
        self._reading = replace(chosen, columns=raw_columns(self._names, physical=chosen.physical))

    def partitions(self) -> list[InputPartition]:
        """One Spark partition for each task."""
        try:
            return [InputPartition(task) for task in tasks_of(self._reading)]
        except EtlError as error:
            raise in_options(error) from None

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Arrow batches of one task's ranges, none for a task that has none. Spark makes one empty
        partition where there is no task.
        """
        begin_task()
        task = partition.value
        if isinstance(task, QueryTask):
            try:
                task = bound_now(task, self._reading)
            except EtlError as error:
                raise failed(for_options(error)) from error
        if task is None or not task.ranges:
            return
        rows = rows_of_task(
            task,
            self._reading,
            attempt=attempt_number(),
            note=lambda index, receipt: None,
            progress=None,
            advise=for_options,
        )
        yield from (
            rows
            if self._names == self._reading.columns
            else (batch.select(list(self._names)) for batch in rows)
        )
