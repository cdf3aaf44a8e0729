"""The data source without a pipeline: what its options come to is asked of the brokers, cut and packed into tasks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from etl.decisions.byte_positions.boundaries import Boundaries, boundaries_of
from etl.decisions.expiry import cleanup_of
from etl.decisions.tasks import cut_ranges, cut_to_offsets, pack_tasks, split_tasks
from etl.errors import BrokerUnreachable
from etl.model.logs import BrokerPartition, Cleanup, uncounted
from etl.model.plans import OffsetRange
from etl.reader.ranges import inside, ranges_of
from etl.reader.reading import Reading, refuse_missing_partitions
from etl.reader.tasks import Task, of_topics

if TYPE_CHECKING:
    from etl.edges.brokers.cluster import Cluster


def tasks_of(reading: Reading) -> list[Task]:
    """The tasks that the options come to."""
    wanted = _wanted(reading)
    return _packed(wanted, reading)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The ranges that the options ask for, as the brokers' answers make them, with today's leaders, and what is known of their logs."""

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    leader_epochs: Mapping[BrokerPartition, int]
    cleanups: Mapping[str, Cleanup]
    boundaries: Boundaries
    bytes_per_offset: Mapping[BrokerPartition, float]
    """Of logs whose brokers tell their sizes."""

    def task(self, ranges: Sequence[OffsetRange], indices: Sequence[int]) -> Task:
        """A task of these pieces of the ranges, with what is known of them."""
        read = tuple(ranges[i] for i in indices)
        topics = {r.log.topic for r in read}
        epochs = {r.log: self.leader_epochs[r.log] for r in read if r.log in self.leader_epochs}
        return Task(tuple(indices), read, of_topics(self.topic_ids, topics), epochs, cleanups=of_topics(self.cleanups, topics))


def _wanted(reading: Reading) -> _Wanted:
    """Asks the brokers.

    One Metadata request, two or three ListOffsets for each broker, one more for each side that is given by time, one DescribeLogDirs, and
    one DescribeConfigs.
    """
    named = None if reading.ranges is None else sorted({r.log for r in reading.ranges})
    with _open_cluster(reading, named or reading.chosen.logs) as cluster:
        asked = reading.chosen.asked if named is None else {log.topic for log in named}
        metadata = cluster.describe_once_told(asked, wait_s=reading.timeout_s)
        there = metadata.leaders.keys() | metadata.leaderless
        there -= uncounted(metadata.leaderless, metadata.leaders)
        if reading.chosen.pattern is not None:
            there = {log for log in there if not metadata.topics[log.topic].is_internal}
        if named is not None:
            refuse_missing_partitions(named, there)
        logs = reading.chosen.among(there) if named is None else named
        found = cluster.extents(logs, isolation=reading.isolation, metadata=metadata)
        if found.leaderless:
            lost = min(found.leaderless)
            raise BrokerUnreachable(f"the log {lost.unled}", **lost.place, check=lost.held_by)
        if reading.ranges is not None:
            ranges = [inside(r, found.extents[r.log], fails=reading.fails_on_data_loss) for r in reading.ranges]
        else:
            first, last = (
                cluster.first_at(bounds.times(logs), isolation=reading.isolation) for bounds in (reading.starting, reading.ending))
            ranges = list(ranges_of(reading, found.extents, first, last))
        told, sizes = cluster.retention({r.log.topic for r in ranges}), cluster.bytes_per_offset(found)
    cleanups = {r.log.topic: cleanup_of(told.get(r.log.topic), said_to_be_compacted=r.log.topic in reading.compacted) for r in ranges}
    led = tuple(replace(r, leader=found.leaders[r.log]) for r in ranges if r.size)
    epochs = found.epochs if reading.fails_on_data_loss else {}
    return _Wanted(led, metadata.topic_ids, epochs, cleanups, boundaries_of(found.extents), sizes)


@contextlib.contextmanager
def _open_cluster(reading: Reading, named: Sequence[BrokerPartition]) -> Iterator[Cluster]:
    """Whom to ask. Only here, where a query is planned, is ZooKeeper asked: executors have the leaders in their tasks."""
    from etl.edges.brokers.cluster import Cluster
    from etl.edges.zookeeper.session import ZooKeeper
    from etl.reader.registered import registered_cluster

    if reading.zookeeper is None:
        with Cluster(reading.bootstrap, timeout_s=reading.timeout_s, generation=reading.generation, security=reading.security) as cluster:
            yield cluster
        return
    with ZooKeeper(reading.zookeeper, access=reading.access) as zookeeper, registered_cluster(
            zookeeper, physical=reading.physical, timeout_s=reading.timeout_s, generation=reading.generation, known=named,
            security=reading.security) as cluster:
        yield cluster


def _packed(wanted: _Wanted, reading: Reading) -> list[Task]:
    """Ranges cut and packed towards `target_task_bytes`, and within the bounds of the options."""
    parallelism, most = max(os.cpu_count() or 1, reading.least_tasks), _most_offsets(sum(r.size for r in wanted.ranges), reading)
    cut = cut_ranges(wanted.ranges, wanted.bytes_per_offset, reading.target_task_bytes, parallelism, wanted.boundaries)
    if most is not None:
        cut = cut_to_offsets(cut, most)
    packed = pack_tasks(cut, wanted.bytes_per_offset, reading.target_task_bytes, parallelism)
    return [wanted.task(cut, task) for task in (packed if most is None else split_tasks(packed, cut, most))]


def _most_offsets(offsets: int, reading: Reading) -> int | None:
    """How many offsets one task may read: tasks of no more than an even share are at least as many as are asked for."""
    bounds = [] if reading.most_offsets is None else [reading.most_offsets]
    if reading.least_tasks > 1:
        bounds.append(max(1, offsets // reading.least_tasks))
    return min(bounds, default=None)
