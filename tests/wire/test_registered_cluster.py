"""A cluster whose leaders a registry names, since its brokers report no metadata."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

import pytest

from etl.errors import BrokerUnreachable
from etl.io.brokers.cluster_requests import Cluster, chosen_topics
from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.model.partitions import Broker, Isolation, Leader, PartitionOffsets, TopicPartition
from etl.settings.source import TopicFilter
from tests.fakes.jafka import JafkaBroker, entry

HERE, AWAY = TopicPartition("stones", 0, 7), TopicPartition("stones", 0, 8)
UNCOMMITTED = Isolation.READ_UNCOMMITTED


class Registry:
    """The registry: the one broker, or none, and the number of reads."""

    def __init__(self, *brokers: Broker) -> None:
        self.brokers = list(brokers)
        self.calls = 0

    def __call__(self, topics: Collection[str] | None) -> ClusterMetadata:
        self.calls += 1
        there = {broker.id: broker for broker in self.brokers}
        leaders = {
            partition: Leader(there[partition.broker_id]) if partition.broker_id in there else None
            for partition in (HERE, AWAY)
        }
        partitions = tuple(
            PartitionMetadata(partition, None, leader) for partition, leader in leaders.items()
        )
        reported = {"stones": TopicMetadata("stones", None, None, False, partitions)}
        return ClusterMetadata(
            None,
            there,
            {name: topic for name, topic in reported.items() if topics is None or name in topics},
        )


@pytest.fixture
def broker() -> Iterator[Broker]:
    with JafkaBroker().listening() as running:
        running.append("stones", 0, entry(b"hello"), entry(b"hello"))
        yield Broker(7, running.host, running.port, "jafka")


def cluster_of(registry: Registry) -> Cluster:
    return Cluster(
        [("127.0.0.1", registry.brokers[0].port)],
        timeout_s=5,
        registry=registry,
        broker_type="jafka",
    )


def test_the_registry_is_used_instead_of_the_brokers(broker: Broker) -> None:
    with cluster_of(Registry(broker)) as cluster:
        assert cluster.describe(None).leaders == {HERE: Leader(broker)}
        assert cluster.describe_when_known(["no-such-topic"], wait_s=float("inf")).topics == {}
        assert cluster.first(lambda consumer: consumer.introduction()) == "Jafka, or Kafka 0.7"


def test_logs_of_an_absent_broker_are_reported_at_once_and_the_others_read(broker: Broker) -> None:
    began = time.monotonic()
    with cluster_of(Registry(broker)) as cluster:
        described = chosen_topics(cluster.describe(None), TopicFilter(topics=("stones",)))
        found = cluster.extents(
            [HERE, AWAY], isolation=UNCOMMITTED, wait_for_leader_s=60, metadata=described
        )
        assert dict(found.extents) == {HERE: PartitionOffsets(0, 30, boundaries=(0, 30))}
        assert set(found.leaderless) == {AWAY}
        assert cluster.offsets_at({}, wait_for_leader_s=60) == {}
        assert cluster.bytes_per_offset(found) == {HERE: 1.0}
        assert cluster.retention(["stones"]) == {}
        assert cluster.epoch_ends({HERE: 1}, leaders=found.leaders) == {}
    assert time.monotonic() - began < 30


def test_a_silent_broker_is_waited_for_while_it_is_registered(broker: Broker) -> None:
    gone = Broker(8, "127.0.0.1", 1, "jafka")
    registry = Registry(broker, gone)

    class EndsSoon(Registry):
        def __call__(self, topics: Collection[str] | None) -> ClusterMetadata:
            reported = super().__call__(topics)
            self.brokers = [broker] if self.calls == 2 else self.brokers
            return reported

    with cluster_of(registry) as cluster, pytest.raises(BrokerUnreachable):
        cluster.extents([HERE, AWAY], isolation=UNCOMMITTED, wait_for_leader_s=0.3)
    ending = EndsSoon(broker, gone)
    with cluster_of(ending) as cluster:
        found = cluster.extents([HERE, AWAY], isolation=UNCOMMITTED, wait_for_leader_s=60)
    assert (set(found.extents), set(found.leaderless), ending.calls) == ({HERE}, {AWAY}, 3)
