"""The data source without a pipeline, against fake brokers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from etl.decide import tasks
from etl.errors import (
    DataLoss,
    EtlError,
    MissingOffsets,
    PartitionTruncated,
    RecordTooLarge,
    SettingsError,
    TopicRecreated,
    unmark,
)
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.query_ranges import QueryTask, Task, pieces_of
from etl.reader.run_task import TaskFailed
from etl.reader.source import OffsetRanges, RangesReader
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.fakes.old_broker import OldBroker

PIPELINE_WORDS = ("on_data_loss", "source.", "etl plans", "CONF", "next run")


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeBroker]:
    """For tests that only plan."""
    with FakeBroker() as running:
        for partition in range(4):
            fill(running, partition, batches=partition * 7)
        yield running


def fill(broker: FakeBroker, partition: int, *, batches: int, records: int = 10) -> None:
    broker.log("clicks", partition)
    for _ in range(batches):
        start = broker.log("clicks", partition).log_end
        broker.append(
            "clicks",
            partition,
            encode(Batch(start, [Rec(delta, b"x" * 10) for delta in range(records)])),
        )


def reader_of(broker: FakeBroker, **options: str) -> RangesReader:
    chosen = (
        {} if {"ranges", "subscribePattern", "assign"} & set(options) else {"subscribe": "clicks"}
    )
    reader = OffsetRanges(
        {"kafka.bootstrap.servers": f"{broker.host}:{broker.port}", **chosen, **options}
    ).reader(None)
    assert isinstance(reader, RangesReader)
    return reader


def tasks_of(broker: FakeBroker, **options: str) -> list[Task]:
    return [partition.value for partition in reader_of(broker, **options).partitions()]


def offsets_of(task: Task) -> list[tuple[int, int]]:
    return [
        (r.partition.partition, offset)
        for r in task.ranges
        for offset in range(r.from_offset, r.until_offset)
    ]


# How many Spark partitions, and how large


def test_the_size_of_tasks_follows_the_bytes(
    shared: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset here costs some twenty bytes; as many of a kilobyte would be twenty tasks."""
    monkeypatch.setattr(tasks, "LEAST_TASK_BYTES", 1)
    size = sum(
        len(batch) for partition in range(4) for batch in shared.log("clicks", partition).batches
    )
    assert len(tasks_of(shared, target_task_bytes=str(2 * size))) <= max(3, os.cpu_count() or 1)
    assert len(tasks_of(shared, target_task_bytes=str(size // 8))) >= 7


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    most=st.integers(1, 500),
    least=st.integers(1, 60),
    target=st.sampled_from(["20000", "300000", "100000000"]),
)
def test_limits_of_spark_partitions_are_kept(
    shared: FakeBroker, most: int, least: int, target: str
) -> None:
    tasks = tasks_of(
        shared, maxRecordsPerPartition=str(most), minPartitions=str(least), target_task_bytes=target
    )
    assert max(len(offsets_of(task)) for task in tasks) <= most
    assert len(tasks) >= least
    read = sorted(each for task in tasks for each in offsets_of(task))
    assert read == [
        (partition, offset) for partition in range(4) for offset in range(partition * 70)
    ]


# What may be read


def test_ranges_that_touch_are_read_once_each(shared: FakeBroker) -> None:
    ranges = [
        {"topic": "clicks", "partition": 2, "from": start, "until": until}
        for start, until in ((40, 60), (0, 40), (50, 50))
    ]
    assert sorted(
        each for task in tasks_of(shared, ranges=json.dumps(ranges)) for each in offsets_of(task)
    ) == [(2, n) for n in range(60)]


def test_a_partition_that_is_assigned_twice_is_read_once(shared: FakeBroker) -> None:
    read = [
        each for task in tasks_of(shared, assign='{"clicks": [1, 1]}') for each in offsets_of(task)
    ]
    assert sorted(read) == [(1, n) for n in range(70)]


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("lick", {"clicks", "clicks-eu"}),
        ("^clicks$", {"clicks"}),
        ("c|v", {"clicks", "clicks-eu", "views"}),
    ],
)
def test_a_pattern_chooses_topics_as_that_of_spark(
    broker: FakeBroker, pattern: str, topics: set[str]
) -> None:
    for topic in ("clicks", "clicks-eu", "views", "__consumer_offsets"):
        broker.append(topic, 0, encode(Batch(0, [Rec(0)])))
    broker.world.internal = {"__consumer_offsets"}
    tasks = tasks_of(broker, subscribePattern=pattern)
    assert {r.partition.topic for task in tasks for r in task.ranges} == topics


# Logs that change between planning and reading


def recreates(broker: FakeBroker) -> None:
    broker.world.topic_ids["clicks"] = UUID(int=2)


def recreates_a_shorter_one(broker: FakeBroker) -> None:
    recreates(broker)
    broker.log("clicks", 0).batches[1:] = []


def recreates_an_empty_one(broker: FakeBroker) -> None:
    recreates(broker)
    broker.log("clicks", 0).batches.clear()


def truncates(broker: FakeBroker) -> None:
    broker.log("clicks", 0).batches[1:] = []
    broker.log("clicks", 0).elect(4)
    fill(broker, 0, batches=3)


def truncates_the_planned_epoch(broker: FakeBroker) -> None:
    """The new leader has no record of it."""
    partition = broker.log("clicks", 0)
    partition.batches[1:] = []
    partition.epoch_starts, partition.leader_epoch = {}, 0
    fill(broker, 0, batches=1)
    partition.elect(3)
    fill(broker, 0, batches=2)


def expires(broker: FakeBroker) -> None:
    broker.log("clicks", 0).log_start = 20


def loses_a_segment(broker: FakeBroker) -> None:
    del broker.log("clicks", 0).batches[1]


@pytest.mark.parametrize(
    ("options", "changes", "error", "message", "action"),
    [
        ({}, recreates, TopicRecreated, "deleted and recreated", ""),
        ({"failOnDataLoss": "false"}, recreates, TopicRecreated, "deleted and recreated", ""),
        ({}, recreates_a_shorter_one, TopicRecreated, "deleted and recreated", ""),
        ({}, recreates_an_empty_one, TopicRecreated, "deleted and recreated", ""),
        ({}, truncates, PartitionTruncated, "truncated at offset 10", ""),
        ({}, truncates_the_planned_epoch, PartitionTruncated, "truncated at offset 20 or be", ""),
        ({}, expires, DataLoss, "", "failOnDataLoss"),
        ({}, loses_a_segment, MissingOffsets, "", "failOnDataLoss"),
        ({"max_record_bytes": "9"}, lambda broker: None, RecordTooLarge, "", "max_record_bytes"),
    ],
)
def test_a_partition_that_changes_after_the_planning_names_options_only(
    broker: FakeBroker,
    options: dict[str, str],
    changes: Callable[[FakeBroker], None],
    error: type[EtlError],
    message: str,
    action: str,
) -> None:
    fill(broker, 0, batches=1)
    broker.log("clicks", 0).elect(2)
    fill(broker, 0, batches=2)
    broker.world.topic_ids["clicks"] = UUID(int=1)
    broker.world.configs["clicks"] = {"cleanup.policy": "delete"}
    reader = reader_of(broker, startingOffsets='{"clicks": {"0": 5}}', **options)
    [planned] = reader.partitions()
    changes(broker)
    with pytest.raises(TaskFailed) as raised:
        list(reader.read(planned))
    found = unmark(str(raised.value))
    assert type(found) is error, found
    assert message in found.message and action in found.action
    assert [word for word in PIPELINE_WORDS if word in str(found)] == []


def test_losses_are_skipped_by_the_option(broker: FakeBroker) -> None:
    fill(broker, 0, batches=9)
    reader = reader_of(broker, startingOffsets='{"clicks": {"0": 0}}', failOnDataLoss="false")
    planned = reader.partitions()
    broker.log("clicks", 0).log_start = 40
    del broker.log("clicks", 0).batches[6]
    assert rows_of(reader, planned) == [*clicks(0, 40, 60), *clicks(0, 70, 90)]


# Queries of a DataFrame with planned tasks


def rows_of(reader: RangesReader, planned: list[InputPartition]) -> list[tuple[str, int, int]]:
    found = [
        row
        for task in planned
        for arrow_batch in reader.read(task)
        for row in arrow_batch.to_pylist()
    ]
    return sorted((row["topic"], row["partition"], row["offset"]) for row in found)


def clicks(partition: int, start: int, until: int) -> list[tuple[str, int, int]]:
    return [("clicks", partition, offset) for offset in range(start, until)]


def test_planned_tasks_read_the_log_as_it_is_when_a_query_executes_them(broker: FakeBroker) -> None:
    fill(broker, 0, batches=3)
    fill(broker, 1, batches=0)
    reader = reader_of(broker, maxRecordsPerPartition="8")
    planned = reader.partitions()
    assert len(planned) == 4 and rows_of(reader, planned) == clicks(0, 0, 30)
    fill(broker, 0, batches=2)
    fill(broker, 1, batches=1)
    fill(broker, 2, batches=2)
    broker.log("clicks", 0).log_start = 20
    assert rows_of(reader, planned) == [*clicks(0, 20, 50), *clicks(1, 0, 10), *clicks(2, 0, 20)]


def test_an_assigned_partition_is_read_and_none_that_was_added_later(broker: FakeBroker) -> None:
    fill(broker, 0, batches=1)
    reader = reader_of(broker, assign='{"clicks": [0]}')
    planned = reader.partitions()
    fill(broker, 0, batches=1)
    fill(broker, 1, batches=1)
    assert rows_of(reader, planned) == clicks(0, 0, 20)


def test_a_later_partition_needs_a_bound_where_each_has_one(broker: FakeBroker) -> None:
    fill(broker, 0, batches=1)
    reader = reader_of(broker, startingOffsets='{"clicks": {"0": -2}}')
    planned = reader.partitions()
    fill(broker, 1, batches=1)
    with pytest.raises(TaskFailed, match="A partition is not named"):
        rows_of(reader, planned)


def test_a_topic_deleted_after_the_planning_may_be_left_out(broker: FakeBroker) -> None:
    for topic in ("logs-1", "logs-2"):
        broker.append(topic, 0, encode(Batch(0, [Rec(0)])))
    readers = [
        reader_of(broker, subscribePattern="logs-", failOnDataLoss=fails)
        for fails in ("true", "false")
    ]
    planned = [reader.partitions() for reader in readers]
    for name in [name for name in broker.world.logs if name[0] == "logs-1"]:
        del broker.world.logs[name]
    with pytest.raises(TaskFailed, match="topic logs-1"):
        rows_of(readers[0], planned[0])
    assert rows_of(readers[1], planned[1]) == [("logs-2", 0, 0)]


@settings(max_examples=200)
@given(
    cuts=st.lists(st.integers(0, 50), min_size=2, max_size=6, unique=True).map(sorted),
    start=st.integers(0, 60),
    size=st.integers(0, 60),
)
def test_planned_tasks_read_each_offset_once(cuts: list[int], start: int, size: int) -> None:
    partition = TopicPartition("clicks", 0)
    whole = OffsetRange(partition, cuts[0], cuts[-1])
    pieces = [OffsetRange(partition, first, until) for first, until in zip(cuts, cuts[1:])]
    now = OffsetRange(partition, start, start + size)
    read = [
        offset
        for number, piece in enumerate(pieces)
        for each in pieces_of(QueryTask((number,), (piece,), planned={partition: whole}), [now])
        for offset in range(each.from_offset, each.until_offset)
    ]
    assert sorted(read) == list(range(start, start + size))


@pytest.mark.parametrize("release", ["0.8", "0.9"])
def test_an_error_of_the_planning_names_options_only(release: str) -> None:
    with OldBroker(release) as old:
        old.log("clicks", 0).append(*[b"x"] * 30)
        options = {"subscribe": "clicks", "broker_version": release}
        options["kafka.bootstrap.servers"] = f"127.0.0.1:{old.port}"
        starts = '{"clicks": {"0": 4}}'
        [planned] = RangesReader({**options, "startingOffsets": starts}).partitions()
        [read] = planned.value.ranges
        assert (read.from_offset, read.until_offset) == (4, 30)
        assert read.leader and read.leader.broker.broker_type == f"kafka-{release}"
        with pytest.raises(SettingsError, match="cannot find the record of a time") as raised:
            RangesReader({**options, "startingTimestamp": "1700000000000"}).partitions()
    assert not any(word in str(raised.value) for word in PIPELINE_WORDS)
