"""Brokers that the client libraries of today still speak to: kafka-python writes and reads."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from etl.demo.story import click_batches
from etl.errors import BrokerError, TopicMissing
from etl.io.brokers.cluster_requests import Cluster as Brokers
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.model.partitions import Broker
from etl.settings.choices import split_address
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.fakes.oracle import codecs
from tests.traffic.rows import Message, Row, hash_of


def grow_topic(cluster: EmbeddedCluster, topic: str, partitions: int) -> None:
    """Create or extend a topic, and wait until each partition has a leader."""
    addresses = [split_address(address) for address in cluster.bootstrap.split(",")]
    with Brokers(addresses) as request:
        if not request.describe([topic]).leaders:
            cluster.create_topic(topic, partitions)
        else:
            with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:
                admin.create_partitions({topic: partitions})
        assert wait_until(lambda: len(request.describe([topic]).leaders) == partitions, 30)


class ModernTraffic:
    """See `choice.Traffic`. Batches of every codec, which our client appends unchanged."""

    place = ("partition", "offset")
    conf: Mapping[str, Any] = {}

    def create_topic(
        self,
        cluster: EmbeddedCluster,
        name: str,
        partitions: int,
        *,
        replication_factor: int,
        config: Mapping[str, str] | None,
    ) -> None:
        cluster.create_topic(name, partitions, replication_factor=replication_factor, config=config)

    def load(
        self, cluster: EmbeddedCluster, topic: str, first: int, count: int, partitions: int
    ) -> None:
        addresses = [split_address(address) for address in cluster.bootstrap.split(",")]
        with Brokers(addresses) as request, contextlib.ExitStack() as opened:
            leaders = _leaders(request, topic, partitions)
            brokers = {
                one: opened.enter_context(SimpleConsumer(one.host, one.port))
                for one in set(leaders.values())
            }
            batches = click_batches(
                first,
                count,
                partitions=partitions,
                began_ms=1_700_000_000_000,
                records_per_batch=20,
            )
            for partition, batch in batches:
                broker = brokers[leaders[partition]]
                is_taken = functools.partial(took, broker, topic, partition, batch)
                assert wait_until(is_taken, 60), f"{broker.address} does not lead {partition}"

    @contextlib.contextmanager
    def sending(self, cluster: EmbeddedCluster, topic: str) -> Iterator[Any]:
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap.split(","), acks="all", max_block_ms=5_000
        )

        def send(messages: Sequence[Message]) -> None:
            for key, value in messages:
                producer.send(topic, key=key, value=value)

        try:
            yield send
        finally:
            producer.close(timeout=10)

    def in_topic(self, cluster: EmbeddedCluster, topic: str) -> Counter[Row]:
        rows: Counter[Row] = Counter()
        with contextlib.ExitStack() as opened:
            opened.enter_context(codecs())
            consumer = KafkaConsumer(
                bootstrap_servers=cluster.bootstrap,
                isolation_level="read_committed",
                enable_auto_commit=False,
            )
            opened.callback(consumer.close)
            partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
            ends = consumer.end_offsets(partitions)
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            deadline = time.monotonic() + 60
            while any(consumer.position(partition) < ends[partition] for partition in partitions):
                assert time.monotonic() < deadline, "the topic could not be read"
                for records in consumer.poll(timeout_ms=500).values():
                    rows.update((r.partition, r.offset, hash_of(r.value)) for r in records)
        return rows


def took(
    broker: SimpleConsumer, topic: str, partition: int, batch: bytes | Sequence[Message]
) -> bool:
    """Append; False if the broker does not know yet that it leads the partition."""
    try:
        broker.produce(topic, partition, batch)
    except (BrokerError, TopicMissing) as error:
        if not any(yet in error.message for yet in ("NOT_LEADER", "UNKNOWN_TOPIC")):
            raise
        return False
    return True


def _leaders(cluster: Brokers, topic: str, partitions: int) -> dict[int, Broker]:
    """The leader of each partition, once all have one."""
    found: dict[int, Broker] = {}

    def are_known() -> bool:
        found.update(
            {
                partition.partition: leader.broker
                for partition, leader in cluster.describe([topic]).leaders.items()
            }
        )
        return len(found) >= partitions

    assert wait_until(are_known, 60), (
        f"partitions without a leader: {set(range(partitions)) - found.keys()}"
    )
    return found
