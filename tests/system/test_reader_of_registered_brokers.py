"""The data source without a pipeline on brokers that a real ZooKeeper registers: Jafka's, made up,
and what it plans and reads of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from etl.errors import BrokerUnreachable, SettingsError, TopicMissing, WrongChroot
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import TopicPartition
from etl.reader.query_ranges import Task
from etl.reader.source import OffsetRanges, RangesReader
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.fakes.jafka import JafkaBroker, entry


@pytest.fixture
def brokers(zookeeper: ZooKeeper) -> Iterator[list[JafkaBroker]]:
    """Brokers 1 and 2 with the topic clicks, two partitions on the first one, and their
    registrations.
    """
    with (
        JafkaBroker(counts={"clicks": 2}).listening() as first,
        JafkaBroker(counts={"clicks": 1}).listening() as second,
    ):
        for number, (broker, count) in enumerate([(first, 2), (second, 1)], start=1):
            zookeeper.create(
                f"/brokers/ids/{number}", f"vm-1:{broker.host}:{broker.port}:true".encode()
            )
            zookeeper.create(f"/brokers/topics/clicks/{number}", str(count).encode())
            for partition in range(count):
                broker.append(
                    "clicks",
                    partition,
                    b"".join(entry(b"%d-%d %d" % (number, partition, n)) for n in range(50)),
                )
                broker.logs["clicks", partition].roll()
                broker.append("clicks", partition, entry(b"last"))
        yield [first, second]


def reader_of(connect: str, **options: str) -> RangesReader:
    chosen = (
        {} if {"ranges", "assign", "subscribePattern"} & set(options) else {"subscribe": "clicks"}
    )
    reader = OffsetRanges(
        {"broker_type": "jafka", "zookeeper": connect, **chosen, **options}
    ).reader(None)
    assert isinstance(reader, RangesReader)
    return reader


def tasks_of(connect: str, **options: str) -> list[Task]:
    return [partition.value for partition in reader_of(connect, **options).partitions()]


def test_tasks_are_cut_where_segments_begin(connect: str, brokers: list[JafkaBroker]) -> None:
    cut = brokers[0].logs["clicks", 0].starts[1]
    ranges = [r for task in tasks_of(connect, target_task_bytes="100") for r in task.ranges]
    assert sorted(
        (r.from_offset, r.until_offset)
        for r in ranges
        if r.partition == TopicPartition("clicks", 0, 1)
    ) == [(0, cut), (cut, brokers[0].logs["clicks", 0].flushed)]


def test_a_planned_query_reads_the_present_records_of_its_brokers_and_uses_no_zookeeper(
    connect: str, zookeeper: ZooKeeper, brokers: list[JafkaBroker]
) -> None:
    reader = reader_of(connect, target_task_bytes="100")
    planned = reader.partitions()
    for number in (1, 2):
        zookeeper.client.delete(f"/brokers/ids/{number}")
    brokers[1].append("clicks", 0, entry(b"later"))
    values = [
        row["value"]
        for partition in planned
        for arrow_batch in reader.read(partition)
        for row in arrow_batch.to_pylist()
    ]
    assert len(values) == len(set(values)) + 2 == 3 * 51 + 1  # "last" is in all three logs
    assert b"later" in values


def test_brokers_of_kafka_found_once_are_used_by_each_query(
    connect: str, zookeeper: ZooKeeper
) -> None:
    with FakeBroker() as broker:
        zookeeper.create(
            "/brokers/ids/1",
            json.dumps({"version": 1, "host": broker.host, "port": broker.port}).encode(),
        )
        broker.log("clicks", 0)
        reader = reader_of(connect, broker_type="kafka")
        planned = reader.partitions()
        zookeeper.client.delete("/brokers/ids/1")
        broker.append("clicks", 0, encode(Batch(0, [Rec(0), Rec(1)])))
        rows = [
            row
            for partition in planned
            for arrow_batch in reader.read(partition)
            for row in arrow_batch.to_pylist()
        ]
    assert [row["offset"] for row in rows] == [0, 1]


def test_a_log_of_a_broker_that_is_away_cannot_be_read_and_nothing_is_passed_over(
    connect: str, zookeeper: ZooKeeper, brokers: list[JafkaBroker]
) -> None:
    zookeeper.client.delete("/brokers/ids/2")
    zookeeper.client.delete("/brokers/topics/clicks/2")
    with pytest.raises(BrokerUnreachable, match="of a broker that is away"):
        tasks_of(connect, assign='{"clicks": ["1-0", "2-0"]}')
    assert {r.partition.broker_id for task in tasks_of(connect) for r in task.ranges} == {1}


def test_missing_topics_and_partitions_are_reported(
    connect: str, zookeeper: ZooKeeper, brokers: list[JafkaBroker]
) -> None:
    with pytest.raises(TopicMissing, match="not there"):
        tasks_of(connect, subscribe="clocks")
    with pytest.raises(TopicMissing, match="2 partitions on broker 1"):
        tasks_of(connect, assign='{"clicks": ["1-2"]}')
    with pytest.raises(WrongChroot):
        tasks_of(f"{connect}/elsewhere")
    with pytest.raises(SettingsError, match="is of Jafka or Kafka 0.7"):
        tasks_of(connect, broker_type="kafka")
