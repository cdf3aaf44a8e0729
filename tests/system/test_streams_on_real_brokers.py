"""A consumer on a real broker and a real ZooKeeper: every record once, the group's offsets in
either place, together with another client.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import confluent_kafka
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from etl import Consumer, Group
from etl.errors import OffsetMoved
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import BrokerPartition
from etl.settings.choices import split_address
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.conftest import TopicFactory
from tests.fakes.group_readers import GroupReader
from tests.traffic.modern import grow_topic


def values(consumer: Consumer, count: int) -> list[int]:
    """So many, however many polls that takes."""
    found: list[int] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += [record.value for some in consumer.poll(1, 70).values() for record in some]
    return found


@pytest.fixture
def filled(cluster: EmbeddedCluster, topic: TopicFactory) -> str:
    """300 numbers in three partitions."""
    name = topic(3)
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    with SimpleConsumer(host, int(port)) as broker:
        for partition in range(3):
            broker.produce(
                name, partition, [(None, b"%d" % number) for number in range(partition, 300, 3)]
            )
    return name


def test_every_record_is_returned_once_and_a_group_continues_at_another_clients_commit(
    cluster: EmbeddedCluster,
    filled: str,
    unused_group: str,
) -> None:
    with Consumer(
        cluster.bootstrap, group=unused_group, auto_offset_reset="earliest", value_decoder=int
    ) as consumer:
        consumer.assign(consumer.partitions_of(filled))
        assert sorted(values(consumer, 300)) == list(range(300))
        consumer.commit()
    theirs = KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=unused_group)
    try:
        assert [theirs.committed(TopicPartition(filled, partition)) for partition in range(3)] == [
            100
        ] * 3
        theirs.commit({TopicPartition(filled, 1): OffsetAndMetadata(90, "", -1)})
    finally:
        theirs.close()
    with Consumer(
        cluster.bootstrap, group=unused_group, auto_offset_reset=None, value_decoder=int
    ) as again:
        again.assign((filled, partition) for partition in range(3))
        assert values(again, 10) == list(range(271, 300, 3))


def test_a_time_is_searched_from_1970_on_and_no_negative_one_comes_to_a_broker(
    cluster: EmbeddedCluster, filled: str
) -> None:
    with Consumer(cluster.bootstrap) as consumer:
        assert consumer.offsets_for_times({(filled, 0): 0}) == {BrokerPartition(filled, 0): 0}
        for when in (-1, -2, -3):
            with pytest.raises(ValueError, match="The target time"):
                consumer.offsets_for_times({(filled, 0): when})


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_static_consumer_that_returns_reads_topics_added_to_its_subscription_meanwhile(
    cluster: EmbeddedCluster,
    filled: str,
    unused_group: str,
    strategy: str,
) -> None:
    group = Group(unused_group, instance_id="reader", assignment_strategy=strategy, auto_commit_s=0)

    def read(count: int) -> Counter[str]:
        with Consumer(cluster.bootstrap, group=group, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(pattern=f"{filled}.*")
            assert len(values(consumer, count)) == count
            return Counter(log.topic for log in consumer.assigned)

    assert read(300) == {filled: 3}
    grow_topic(cluster, filled, 5)
    with SimpleConsumer(*split_address(cluster.bootstrap)) as broker:
        for partition in range(5):
            broker.produce(filled, partition, [(None, b"1")])
    assert read(5) == {filled: 5}
    grow_topic(cluster, f"{filled}-more", 1)
    with SimpleConsumer(*split_address(cluster.bootstrap)) as broker:
        broker.produce(f"{filled}-more", 0, [(None, b"1")])
    assert read(1) == {filled: 5, f"{filled}-more": 1}


@pytest.fixture
def theirs(cluster: EmbeddedCluster, filled: str, unused_group: str) -> Iterator[ConfluentReader]:
    reader = ConfluentReader(cluster.bootstrap, unused_group, filled)
    try:
        yield reader
    finally:
        reader.end()


class ConfluentReader:
    """librdkafka's consumer, which commits when something is taken from it and at its end."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.values: list[bytes | None] = []
        self.owned = self._committed = 0
        self._is_over = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "range",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assigned(
        self, consumer: confluent_kafka.Consumer, logs: list[confluent_kafka.TopicPartition]
    ) -> None:
        self.owned = len(logs)

    def _revoked(
        self, consumer: confluent_kafka.Consumer, logs: list[confluent_kafka.TopicPartition]
    ) -> None:
        if len(self.values) > self._committed:  # it refuses to commit nothing
            consumer.commit(asynchronous=False)
        self.owned, self._committed = 0, len(self.values)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.values += [
                message.value()
                for message in self._consumer.consume(10, 0.05)
                if message.error() is None
            ]
        self._consumer.close()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(60)


def test_with_another_client_in_a_group_of_kafka_each_record_is_read_once(
    cluster: EmbeddedCluster,
    filled: str,
    unused_group: str,
    theirs: ConfluentReader,
) -> None:
    assert wait_until(lambda: theirs.owned == 3, 60)
    group = Group(unused_group, session_timeout_s=6)
    ours = GroupReader(
        Consumer(cluster.bootstrap, group=group, auto_offset_reset="earliest"), [filled]
    )
    try:
        assert wait_until(
            lambda: theirs.owned + len(ours.owned) == 3 and bool(ours.owned) and bool(theirs.owned),
            60,
        )
        theirs.end()
        assert ours.owns(3)
        assert wait_until(lambda: len(theirs.values) + len(ours.values) >= 300, 60)
    finally:
        ours.end()
    assert sorted(int(value or -1) for value in theirs.values + ours.values) == list(range(300))
    assert not ours.lost_logs


def test_a_group_in_zookeeper_is_kept_there_and_what_another_client_moved_is_not_gone_over_unseen(
    cluster: EmbeddedCluster,
    filled: str,
    unused_group: str,
) -> None:
    log = BrokerPartition(filled, 0)
    znode = f"/consumers/{unused_group}/offsets/{filled}/0"
    with (
        Consumer(
            zookeeper=cluster.zookeeper_connect,
            group=unused_group,
            auto_offset_reset="earliest",
            value_decoder=int,
        ) as consumer,
        ZooKeeper(cluster.zookeeper_connect) as zookeeper,
    ):
        consumer.assign([log])
        assert values(consumer, 100) == list(range(0, 300, 3))
        consumer.commit()
        consumer.commit({log: 40})
        assert zookeeper.read(znode) == (b"40", 1)
        zookeeper.client.set(znode, b"50")
        with pytest.raises(OffsetMoved, match="it is 50, ours is 60"):
            consumer.commit({log: 60})
        assert consumer.committed([log]) == {log: 50}
        consumer.commit({log: 60})
    with Consumer(
        zookeeper=cluster.zookeeper_connect, group=unused_group, auto_offset_reset=None
    ) as again:
        again.assign([log])
        assert again.position(log) == 60
