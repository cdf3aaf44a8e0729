"""How does Spark read offset ranges as a data source?

    from etl import OffsetRanges

    spark.dataSource.register(OffsetRanges)
    clicks = (
        spark.read.format("offset_ranges")
        .option("kafka.bootstrap.servers", "127.0.0.1:9092")
        .option("subscribe", "clicks")
        .load()
    )

It works without a pipeline. It has options of its own (docs/READER.md) and those of Spark's Kafka
source, so `format("kafka")` becomes `format("offset_ranges")`.

Spark 4.2 calls `reader` and `partitions` once for a DataFrame and all its queries
(`PythonDataSourceV2.getOrCreateReadInfo`). So `partitions` fixes the number of tasks, and `read`
resolves bounds that are not offsets, each time a query runs.

Not here: options (etl/reader/options.py), ranges (etl/reader/query_ranges.py), tasks of a run
(etl/reader/spark_tasks.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from etl.decide.recreated_or_truncated import Cut
from etl.decide.tasks import (
    Boundaries,
    boundaries_of,
    pack_tasks,
    split_by_offsets,
    split_ranges,
    split_tasks,
)
from etl.errors import BrokerUnreachable, EtlError, TopicRecreated
from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.model.columns import raw_columns, spark_schema
from etl.model.partitions import (
    Broker,
    Cleanup,
    TopicPartition,
    cleanup_of,
    uncounted,
    values_of,
)
from etl.model.plans import OffsetRange
from etl.reader.options import columns_of_schema, name_options, parse_options, with_option_advice
from etl.reader.query_ranges import (
    NAME,
    QueryTask,
    ReadOptions,
    Task,
    clip_to_partition,
    pieces_of,
    ranges_of,
    reject_missing_partitions,
    select_topics,
)
from etl.reader.run_task import attempt_number, begin_task, failed, rows_of_task

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from etl.io.brokers.cluster_requests import Cluster
    from etl.io.brokers.partition_ends import OffsetsAndLeaders


def plan_tasks(reading: ReadOptions) -> list[Task]:
    """Return the tasks of these options.

    If bounds move, all of them are QueryTasks, and there is at least one.
    """
    request = _request_of(reading)
    ranges, groups = _packed(request, reading)
    if reading.has_moving_bounds:
        return list(_query_tasks(request, ranges, groups, reading))
    return [request.task(ranges, group) for group in groups]


def _query_tasks(
    request: _RequestedRanges,
    ranges: Sequence[OffsetRange],
    groups: Sequence[Sequence[int]],
    reading: ReadOptions,
) -> Iterator[QueryTask]:
    """Yield the tasks, with the empty partitions, where later queries may find records."""
    empty = [each for each in request.ranges if not each.size]
    all_ranges = [*ranges, *empty]
    empty_indices = range(len(ranges), len(all_ranges))
    planned = {each.partition: each for each in request.ranges}
    may_grow = not reading.physical and not reading.selection.partitions
    count = max(1, len(groups))
    for number in range(count):
        indices = list(groups[number]) if groups else []
        indices += empty_indices[number::count]
        task = request.task(all_ranges, indices)
        # The first task reads partitions that are added later.
        others_than = frozenset(planned) if may_grow and number == 0 else None
        partitions = [each.partition for each in task.ranges]
        yield QueryTask(
            task.indices,
            task.ranges,
            task.topic_ids,
            task.leader_epochs,
            cleanups=task.cleanups,
            planned=values_of(planned, partitions),
            brokers=request.brokers,
            others_than=others_than,
        )


def resolve_task(task: QueryTask, reading: ReadOptions) -> Task:
    """Return the task with current offsets and metadata.

    Requests: one Metadata, one DescribeConfigs, two or three ListOffsets per leader, one more for
    each side given by time. Raises TopicMissing and TopicRecreated for changed topics,
    PartitionTruncated (with `failOnDataLoss` false only TopicRecreated), and as `ranges_of`.
    """
    with _cluster_of(task, reading) as cluster:
        if task.others_than is None:
            topics: Collection[str] | None = {each.partition.topic for each in task.ranges}
        else:
            topics = reading.selection.asked
        metadata = cluster.describe_when_known(topics, wait_s=reading.fetch.timeout_s)
        _reject_recreated(task, metadata)
        partitions = _current_partitions(task, reading, metadata)
        request, found = _resolve(cluster, reading.only(set(partitions)), partitions, metadata)
        if reading.fetch.fails_on_data_loss:
            _reject_truncated(cluster, task, found)
    ranges = tuple(pieces_of(task, request.ranges))
    return request.task(ranges, range(len(ranges)))


def _cluster_of(task: QueryTask, reading: ReadOptions) -> Cluster:
    """Open the cluster on an executor, which connects to brokers only, not to ZooKeeper."""
    from etl.io.brokers.cluster_requests import Cluster
    from etl.io.brokers.connection import IDLE_CONNECTIONS

    planned = [(broker.host, broker.port) for broker in task.brokers]
    addresses = list(dict.fromkeys([*reading.fetch.bootstrap, *planned]))
    if not reading.physical:
        return Cluster(
            addresses,
            timeout_s=reading.fetch.timeout_s,
            broker_type=reading.fetch.broker_type,
            idle_connections=IDLE_CONNECTIONS,
            security=reading.fetch.security,
        )
    metadata = _planned_metadata(task)
    return Cluster(
        addresses,
        timeout_s=reading.fetch.timeout_s,
        broker_type=min(task.brokers).broker_type,
        idle_connections=IDLE_CONNECTIONS,
        registry=lambda topics: metadata,
    )


def _planned_metadata(task: QueryTask) -> ClusterMetadata:
    """Return topics and leaders as they were when the tasks were planned.

    Brokers of Jafka and Kafka 0.7 do not report them.
    """
    partitions: dict[str, list[PartitionMetadata]] = {}
    for partition, whole in task.planned.items():
        partitions.setdefault(partition.topic, []).append(
            PartitionMetadata(partition, None, whole.leader)
        )
    topics = {}
    for name, found in partitions.items():
        topics[name] = TopicMetadata(name, None, None, False, tuple(found))
    brokers = {broker.id: broker for broker in task.brokers}
    return ClusterMetadata(None, brokers, topics)


def _reject_recreated(task: QueryTask, metadata: ClusterMetadata) -> None:
    """Raise TopicRecreated for a recreated topic.

    Other tasks of the same query may have read the deleted topic.
    """
    now = metadata.topic_ids
    for topic, planned in sorted(task.topic_ids.items()):
        if now.get(topic, planned) != planned:
            raise TopicRecreated(
                "The topic was deleted and recreated since the DataFrame was made:"
                f" its id is {now[topic]}, it was {planned}",
                topic=topic,
                action="Check who recreated it",
            )


def _current_partitions(
    task: QueryTask, reading: ReadOptions, metadata: ClusterMetadata
) -> list[TopicPartition]:
    """Return the task's partitions, with later ones if it covers them. Raises TopicMissing."""
    existing = _existing(metadata, reading)
    planned = sorted(task.planned)
    if reading.selection.pattern is not None and not reading.fetch.fails_on_data_loss:
        planned = [partition for partition in planned if partition in existing]
    reject_missing_partitions(planned, existing)
    if task.others_than is None:
        return planned
    selected = reading.selection.among(existing)
    added = [partition for partition in selected if partition not in task.others_than]
    return [*planned, *added]


def _reject_truncated(cluster: Cluster, task: QueryTask, found: OffsetsAndLeaders) -> None:
    """Raise PartitionTruncated for a partition that lost its end since the tasks were planned.

    Partitions with an unchanged leader epoch are not checked.
    """
    elected: dict[TopicPartition, int] = {}
    for partition, epoch in task.leader_epochs.items():
        if found.epochs.get(partition, epoch) != epoch:
            elected[partition] = epoch
    if not elected:
        return
    ends = cluster.epoch_ends(elected, leaders=values_of(found.leaders, elected))
    for partition, end in sorted(ends.items()):
        planned_end = task.planned[partition].until_offset
        if end.end_offset < planned_end:
            is_known = end.epoch == end.asked_epoch
            raise Cut(partition, planned_end, end.end_offset, is_known).error()


@dataclass(frozen=True, slots=True)
class _RequestedRanges:
    """The requested ranges with current leaders and metadata."""

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    leader_epochs: Mapping[TopicPartition, int]
    cleanups: Mapping[str, Cleanup]
    boundaries: Boundaries
    brokers: tuple[Broker, ...]
    """All brokers of the cluster."""
    bytes_per_offset: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Of partitions with reported sizes."""

    def task(self, ranges: Sequence[OffsetRange], indices: Sequence[int]) -> Task:
        """Return a task of these pieces."""
        read = tuple(ranges[i] for i in indices)
        partitions = [r.partition for r in read]
        topics = {partition.topic for partition in partitions}
        return Task(
            tuple(indices),
            read,
            select_topics(self.topic_ids, topics),
            values_of(self.leader_epochs, partitions),
            cleanups=select_topics(self.cleanups, topics),
        )


def _request_of(reading: ReadOptions) -> _RequestedRanges:
    """Resolve the options when Spark plans the tasks.

    Requests: one Metadata, two or three ListOffsets per broker, one more for each side given by
    time, one DescribeLogDirs, one DescribeConfigs.
    """
    named: list[TopicPartition] | None = None
    if reading.ranges is not None:
        named = sorted({r.partition for r in reading.ranges})
    with _open_cluster(reading, named or reading.selection.partitions) as cluster:
        if named is None:
            topics: Collection[str] | None = reading.selection.asked
        else:
            topics = {partition.topic for partition in named}
        metadata = cluster.describe_when_known(topics, wait_s=reading.fetch.timeout_s)
        existing = _existing(metadata, reading)
        if named is None:
            partitions = reading.selection.among(existing)
        else:
            reject_missing_partitions(named, existing)
            partitions = named
        request, found = _resolve(cluster, reading, partitions, metadata)
        return replace(request, bytes_per_offset=cluster.bytes_per_offset(found))


def _existing(metadata: ClusterMetadata, reading: ReadOptions) -> set[TopicPartition]:
    """Return the existing partitions; with a pattern, without those of internal topics."""
    existing = metadata.leaders.keys() | metadata.leaderless
    existing -= uncounted(metadata.leaderless, metadata.leaders)
    if reading.selection.pattern is not None:
        existing = {
            partition for partition in existing if not metadata.topics[partition.topic].is_internal
        }
    return existing


def _resolve(
    cluster: Cluster,
    reading: ReadOptions,
    partitions: Sequence[TopicPartition],
    metadata: ClusterMetadata,
) -> tuple[_RequestedRanges, OffsetsAndLeaders]:
    """Return the ranges of the current partitions, and their offsets."""
    found = cluster.extents(partitions, isolation=reading.fetch.isolation, metadata=metadata)
    if found.leaderless:
        lost = min(found.leaderless)
        raise BrokerUnreachable(f"The partition {lost.unled}", **lost.place, action=lost.held_by)
    ranges: list[OffsetRange] = []
    if reading.ranges is not None:
        for whole in reading.ranges:
            offsets = found.extents[whole.partition]
            ranges.append(clip_to_partition(whole, offsets, fails=reading.fetch.fails_on_data_loss))
    else:
        # After the offsets: a record that comes in between is above the end, and not read.
        first = cluster.first_at(
            reading.starting.times(partitions), isolation=reading.fetch.isolation
        )
        last = cluster.first_at(reading.ending.times(partitions), isolation=reading.fetch.isolation)
        ranges = list(ranges_of(reading, found.extents, first, last))
    # With failOnDataLoss false a truncated partition is no error, so its epoch is not checked.
    leader_epochs = found.epochs if reading.fetch.fails_on_data_loss else {}
    led = []
    topics = set()
    for r in ranges:
        led.append(replace(r, leader=found.leaders[r.partition]))
        topics.add(r.partition.topic)
    request = _RequestedRanges(
        tuple(led),
        metadata.topic_ids,
        leader_epochs,
        _cleanups(cluster, topics, reading),
        boundaries_of(found.extents),
        tuple(metadata.brokers.values()),
    )
    return request, found


def _cleanups(
    cluster: Cluster, topics: Collection[str], reading: ReadOptions
) -> dict[str, Cleanup]:
    """Return the cleanup policies of topics."""
    retention = cluster.retention(topics)
    cleanups: dict[str, Cleanup] = {}
    for topic in topics:
        is_compacted = topic in reading.compacted
        cleanups[topic] = cleanup_of(retention.get(topic), said_to_be_compacted=is_compacted)
    return cleanups


@contextlib.contextmanager
def _open_cluster(reading: ReadOptions, named: Sequence[TopicPartition]) -> Iterator[Cluster]:
    """Open the cluster on the driver. Only this connects to ZooKeeper."""
    from etl.io.brokers.cluster_requests import Cluster
    from etl.io.clusters import registered_cluster
    from etl.io.zookeeper.session_requests import ZooKeeper

    if reading.zookeeper is None:
        with Cluster(
            reading.fetch.bootstrap,
            timeout_s=reading.fetch.timeout_s,
            broker_type=reading.fetch.broker_type,
            security=reading.fetch.security,
        ) as cluster:
            yield cluster
        return
    with (
        ZooKeeper(reading.zookeeper, access=reading.access) as zookeeper,
        registered_cluster(
            zookeeper,
            physical=reading.physical,
            timeout_s=reading.fetch.timeout_s,
            broker_type=reading.fetch.broker_type,
            known=named,
            security=reading.fetch.security,
        ) as cluster,
    ):
        yield cluster


def _packed(
    request: _RequestedRanges, reading: ReadOptions
) -> tuple[Sequence[OffsetRange], Sequence[Sequence[int]]]:
    """Split and pack ranges by `target_task_bytes` and the options.

    Returns the split ranges, and their indices by task.
    """
    parallelism = max(os.cpu_count() or 1, reading.min_partitions)
    offsets = sum(r.size for r in request.ranges)
    max_offsets = _max_offsets(offsets, reading)
    task_bytes = reading.target_task_bytes
    split = split_ranges(
        request.ranges, request.bytes_per_offset, task_bytes, parallelism, request.boundaries
    )
    if max_offsets is not None:
        split = split_by_offsets(split, max_offsets)
    packed = pack_tasks(split, request.bytes_per_offset, task_bytes, parallelism)
    if max_offsets is not None:
        packed = split_tasks(packed, split, max_offsets)
    return split, packed


def _max_offsets(offsets: int, reading: ReadOptions) -> int | None:
    """Return the most offsets per task; None: no limit.

    `minPartitions` limits them, too: if no task has more than an even share of all offsets, there
    are at least as many tasks as requested.
    """
    bounds = []
    if reading.max_records_per_partition is not None:
        bounds.append(reading.max_records_per_partition)
    if reading.min_partitions > 1:
        bounds.append(max(1, offsets // reading.min_partitions))
    return min(bounds, default=None)


class OffsetRanges(DataSource):
    """The data source; see the module. Wrong options raise SettingsError at `load()`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return NAME

    def schema(self) -> str | StructType:
        """Return the selected columns of the raw table."""
        reading = parse_options(self.options)
        return spark_schema(reading.columns, physical=reading.physical)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        """Return a reader. `schema`: the one of `schema()`, or the columns that the query selects.

        It takes no filters (`pushFilters`): Spark 4.2 keeps the filtered reader of one query, and
        uses it for other queries of the same DataFrame, which would lack rows.
        """
        return RangesReader(self.options, schema)


class RangesReader(DataSourceReader):
    """Plans in a process of the driver's machine, reads in the executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType | None = None) -> None:
        reading = parse_options(options)
        self._names = reading.columns
        if schema is not None:
            self._names = columns_of_schema(schema, reading)
        columns = raw_columns(self._names, physical=reading.physical)
        self._reading = replace(reading, columns=columns)

    def partitions(self) -> list[InputPartition]:
        """Return one Spark partition for each task."""
        try:
            return [InputPartition(task) for task in plan_tasks(self._reading)]
        except EtlError as error:
            raise name_options(error) from None

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield Arrow batches of one task's ranges.

        Without tasks Spark makes one empty partition, of which this yields nothing.
        """
        begin_task()
        task = partition.value
        if isinstance(task, QueryTask):
            try:
                task = resolve_task(task, self._reading)
            except EtlError as error:
                raise failed(with_option_advice(error)) from error
        if task is None or not task.ranges:
            return
        rows = rows_of_task(
            task,
            self._reading,
            attempt=attempt_number(),
            note=lambda index, result: None,
            progress=None,
            advise=with_option_advice,
        )
        if self._names == self._reading.columns:
            yield from rows
            return
        for batch in rows:
            yield batch.select(list(self._names))
