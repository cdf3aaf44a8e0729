"""The data source without a pipeline, against fake brokers: which Spark partitions it plans, and
logs that change meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
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
    NeedsDecision,
    RecordTooLarge,
    SettingsError,
    unmark,
)
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.query_ranges import QueryTask, Task, pieces_of
from etl.reader.run_task import TaskFailed
from etl.reader.source import OffsetRanges, RangesReader
from tests.fakes.batches import Batch, Codec, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.fakes.old_broker import OldBroker

PIPELINE_WORDS = ("on_data_loss", "source.", "etl plans", "CONF", "next run")
"""What only a pipeline has."""


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


def failure_of(rows: Iterator[object]) -> EtlError:
    """What the task fails with, as Spark's traceback carries it."""
    with pytest.raises(TaskFailed) as raised:
        list(rows)
    found = unmark(str(raised.value))
    assert found is not None
    return found


# How many Spark partitions, and how large


def test_spark_partitions_are_as_large_as_the_logs_bytes_make_them(
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
def test_no_spark_partition_exceeds_its_limit_of_offsets_and_their_number_is_the_requested_one(
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


def test_ranges_that_overlap_are_refused_because_their_rows_would_be_double(
    shared: FakeBroker,
) -> None:
    ranges = [
        {"topic": "clicks", "partition": 2, "from": start, "until": until}
        for start, until in ((40, 60), (0, 41), (60, 70))
    ]
    with pytest.raises(SettingsError, match="0 to 41 and 40 to 60 overlap.*partition 2"):
        tasks_of(shared, ranges=json.dumps(ranges))


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


def test_a_pattern_chooses_topics_as_sparks_does(broker: FakeBroker) -> None:
    for topic in ("clicks", "clicks-eu", "views", "__consumer_offsets"):
        broker.append(topic, 0, encode(Batch(0, [Rec(0)])))
    broker.world.internal = {"__consumer_offsets"}
    found = {
        pattern: sorted(
            {
                r.partition.topic
                for task in tasks_of(broker, subscribePattern=pattern)
                for r in task.ranges
            }
        )
        for pattern in ("lick", "^clicks$", "c|v")
    }
    assert found == {
        "lick": ["clicks", "clicks-eu"],
        "^clicks$": ["clicks"],
        "c|v": ["clicks", "clicks-eu", "views"],
    }


# Logs that change between planning and reading


def test_a_topic_recreated_between_planning_and_reading_is_found(broker: FakeBroker) -> None:
    fill(broker, 0, batches=3)
    broker.world.topic_ids["clicks"] = UUID(int=1)
    for fails in ("true", "false"):
        broker.world.topic_ids["clicks"] = UUID(int=1)
        reader = reader_of(broker, failOnDataLoss=fails)
        [planned] = reader.partitions()
        broker.world.topic_ids["clicks"] = UUID(int=2)
        error = failure_of(reader.read(planned))
        assert isinstance(error, NeedsDecision) and "deleted and recreated" in error.message
        assert [word for word in PIPELINE_WORDS if word in str(error)] == []


@pytest.mark.parametrize("left", [0, 1])
def test_a_recreated_and_shorter_topic_is_reported_as_that(broker: FakeBroker, left: int) -> None:
    fill(broker, 0, batches=3)
    broker.world.topic_ids["clicks"] = UUID(int=1)
    reader = reader_of(broker, startingOffsets='{"clicks": {"0": 15}}')
    [planned] = reader.partitions()
    broker.world.topic_ids["clicks"] = UUID(int=2)
    broker.log("clicks", 0).batches[left:] = []
    assert "deleted and recreated" in failure_of(reader.read(planned)).message


def test_records_that_expire_during_the_read_are_an_error_or_skipped_by_the_option(
    broker: FakeBroker,
) -> None:
    fill(broker, 0, batches=9)
    starts = '{"clicks": {"0": 0}}'
    reader = reader_of(broker, startingOffsets=starts)
    [planned] = reader.partitions()
    broker.log("clicks", 0).log_start = 40
    error = failure_of(reader.read(planned))
    assert isinstance(error, DataLoss) and "failOnDataLoss" in error.action
    assert [word for word in PIPELINE_WORDS if word in str(error)] == []
    lenient = reader_of(broker, startingOffsets=starts, failOnDataLoss="false")
    assert [
        row["offset"] for arrow_batch in lenient.read(planned) for row in arrow_batch.to_pylist()
    ] == list(range(40, 90))


def test_a_lost_segment_is_an_error_or_skipped_by_the_option(broker: FakeBroker) -> None:
    fill(broker, 0, batches=9)
    broker.world.configs["clicks"] = {"cleanup.policy": "delete"}
    del broker.log("clicks", 0).batches[2:4]
    reader = reader_of(broker)
    error = failure_of(reader.read(reader.partitions()[0]))
    assert (
        isinstance(error, MissingOffsets)
        and error.where["missing"] == "clicks:0:20-40"
        and "failOnDataLoss" in error.action
    )
    assert [word for word in PIPELINE_WORDS if word in str(error)] == []
    lenient = reader_of(broker, failOnDataLoss="false")
    rows = [
        row["offset"]
        for task in lenient.partitions()
        for arrow_batch in lenient.read(task)
        for row in arrow_batch.to_pylist()
    ]
    assert rows == [*range(20), *range(40, 90)]


def test_a_log_that_was_cut_and_written_anew_since_it_was_planned_is_noticed(
    broker: FakeBroker,
) -> None:
    fill(broker, 0, batches=3)
    reader = reader_of(broker)
    [planned] = reader.partitions()
    broker.log("clicks", 0).batches[1:] = []
    broker.log("clicks", 0).elect(1)
    fill(broker, 0, batches=3)
    error = failure_of(reader.read(planned))
    assert "truncated at offset 10" in error.message
    assert [word for word in PIPELINE_WORDS if word in str(error)] == []


def test_the_truncation_offset_is_unknown_if_the_leader_lacks_the_planned_epoch(
    broker: FakeBroker,
) -> None:
    planned = planned_in_a_lost_epoch(broker)
    error = failure_of(reader_of(broker).read(planned))
    assert "truncated at offset 20 or below, and records up to 30" in error.message
    assert [word for word in PIPELINE_WORDS if word in str(error)] == []


def planned_in_a_lost_epoch(broker: FakeBroker) -> InputPartition:
    """A task of epoch 2, after a leader was elected that has none of its records."""
    fill(broker, 0, batches=1)
    partition = broker.log("clicks", 0)
    partition.elect(2)
    fill(broker, 0, batches=2)
    [planned] = reader_of(broker).partitions()
    partition.batches[1:] = []
    partition.epoch_starts = {}
    partition.leader_epoch = 0
    fill(broker, 0, batches=1)
    partition.elect(3)
    fill(broker, 0, batches=2)
    return planned


def test_a_record_that_is_too_large_is_reported_with_the_names_of_the_options(
    broker: FakeBroker,
) -> None:
    broker.append("clicks", 0, encode(Batch(0, [Rec(0, b"x" * 100_000)], codec=Codec.NONE)))
    reader = reader_of(broker, max_record_bytes="1000")
    error = failure_of(reader.read(reader.partitions()[0]))
    assert isinstance(error, RecordTooLarge) and "max_record_bytes" in error.action
    assert [word for word in PIPELINE_WORDS if word in str(error)] == []


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


def test_a_partition_that_was_added_later_needs_a_bound_where_each_has_its_own(
    broker: FakeBroker,
) -> None:
    fill(broker, 0, batches=1)
    reader = reader_of(broker, startingOffsets='{"clicks": {"0": -2}}')
    planned = reader.partitions()
    fill(broker, 1, batches=1)
    assert "A partition is not named" in failure_of(reader.read(planned[0])).message


def test_a_new_leader_that_lost_nothing_is_no_truncation(broker: FakeBroker) -> None:
    fill(broker, 0, batches=3)
    reader = reader_of(broker)
    planned = reader.partitions()
    for epoch in (1, 2):
        broker.log("clicks", 0).elect(epoch)
        fill(broker, 0, batches=1)
    assert rows_of(reader, planned) == clicks(0, 0, 50)


def test_a_topic_that_was_deleted_since_is_an_error_or_left_out_where_a_pattern_chose_it(
    broker: FakeBroker,
) -> None:
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
def test_planned_tasks_together_read_each_offset_of_the_present_log_once(
    cuts: list[int], start: int, size: int
) -> None:
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
def test_old_brokers_are_read_by_offsets_and_not_by_times(release: str) -> None:
    with OldBroker(release).listening() as old:
        old.log("clicks", 0).append(*[b"x"] * 30)
        given = {
            "kafka.bootstrap.servers": f"127.0.0.1:{old.port}",
            "subscribe": "clicks",
            "broker_version": release,
        }
        [task] = [
            partition.value
            for partition in RangesReader(
                {**given, "startingOffsets": '{"clicks": {"0": 4}}'}
            ).partitions()
        ]
        reported = [
            (r.from_offset, r.until_offset, r.leader and r.leader.broker.generation)
            for r in task.ranges
        ]
        assert reported == [(4, 30, f"kafka-{release}")]
        with pytest.raises(SettingsError, match="cannot find the record of a time") as raised:
            RangesReader({**given, "startingTimestamp": "1700000000000"}).partitions()
        assert not any(word in str(raised.value) for word in PIPELINE_WORDS)
