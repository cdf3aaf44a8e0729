"""A consumer on a real broker and ZooKeeper: offsets in either place, together with another client."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.structs import OffsetAndMetadata

from etl import Consumer, Group
from etl.errors import OffsetMoved
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import TopicPartition
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.conftest import TopicFactory
from tests.fakes.group_readers import GroupReader
from tests.system.driving import Pipeline
from tests.system.other_members import another_member


def values(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += [record.value for some in consumer.poll(1, 70).values() for record in some]
    return found


@pytest.fixture
def filled(cluster: EmbeddedCluster, topic: TopicFactory) -> str:
    name = topic(3)
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    with SimpleConsumer(host, int(port)) as broker:
        for partition in range(3):
            broker.produce(
                name, partition, [(None, b"%d" % number) for number in range(partition, 300, 3)]
            )
    return name


def test_every_record_is_returned_once_and_a_group_continues_at_another_clients_commit(
    cluster: EmbeddedCluster, filled: str, unused_group: str
) -> None:
    with Consumer(
        cluster.bootstrap, group=unused_group, auto_offset_reset="earliest", value_decoder=int
    ) as consumer:
        consumer.assign(consumer.partitions_of(filled))
        assert sorted(values(consumer, 300)) == list(range(300))
        consumer.commit()
    theirs = KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=unused_group)
    try:
        assert [
            theirs.committed(KafkaTopicPartition(filled, partition)) for partition in range(3)
        ] == [100] * 3
        theirs.commit({KafkaTopicPartition(filled, 1): OffsetAndMetadata(90, "", -1)})
    finally:
        theirs.close()
    with Consumer(
        cluster.bootstrap, group=unused_group, auto_offset_reset=None, value_decoder=int
    ) as again:
        again.assign((filled, partition) for partition in range(3))
        assert values(again, 10) == list(range(271, 300, 3))


def test_with_another_client_in_a_group_of_kafka_each_record_is_read_once(
    cluster: EmbeddedCluster, filled: str, unused_group: str, tmp_path: Path
) -> None:
    group = Group(unused_group, session_timeout_s=6)
    with contextlib.ExitStack() as ending:
        theirs = ending.enter_context(
            another_member(Pipeline(cluster, tmp_path, filled, unused_group))
        )
        theirs.owns(3)
        ours = GroupReader(
            Consumer(cluster.bootstrap, group=group, auto_offset_reset="earliest"), [filled]
        )
        ending.callback(ours.end)
        assert wait_until(
            lambda: len(theirs.owned) + len(ours.owned) == 3 > len(ours.owned) > 0, 60
        )
        theirs.close()
        assert ours.owns(3)
        assert wait_until(lambda: theirs.read.total() + len(ours.read) >= 300, 60)
    read = Counter((topic_partition.partition, offset) for topic_partition, offset in ours.read)
    read.update((partition, offset) for partition, offset, _ in theirs.read.elements())
    assert read == Counter((partition, offset) for partition in range(3) for offset in range(100))
    assert not ours.lost_logs


def test_offsets_of_a_group_in_zookeeper_are_not_overwritten_where_another_client_moved_them(
    cluster: EmbeddedCluster, filled: str, unused_group: str
) -> None:
    partition = TopicPartition(filled, 0)
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
        consumer.assign([partition])
        assert values(consumer, 100) == list(range(0, 300, 3))
        consumer.commit()
        consumer.commit({partition: 40})
        assert zookeeper.read(znode) == (b"40", 1)
        zookeeper.client.set(znode, b"50")
        with pytest.raises(OffsetMoved, match="it is 50, ours is 60"):
            consumer.commit({partition: 60})
        assert consumer.committed([partition]) == {partition: 50}
        consumer.commit({partition: 60})
    with Consumer(
        zookeeper=cluster.zookeeper_connect, group=unused_group, auto_offset_reset=None
    ) as again:
        again.assign([partition])
        assert again.position(partition) == 60
