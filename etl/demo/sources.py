"""Whose click events the demo loads: the cluster that it starts, the conf for it, and how events
get there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from etl.embedded.clicks import click_batches, click_messages
from etl.io.brokers.client import SimpleConsumer
from etl.model.partitions import BrokerFamily
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import Cluster

TOPIC, LOGS = "clicks", 8


class Source(Protocol):
    """One family of brokers."""

    who: str
    """Who runs, in the sentence that tells it."""
    what: str
    """What is produced."""
    cluster_line: str
    """The conf's key `cluster`, where the brokers have no id."""
    source: str
    """The conf's section."""
    partition_by: str

    def cluster(self, folder: Path) -> Cluster:
        """The servers, not yet started."""

    def create(self, cluster: Cluster) -> None:
        """Make the topic."""

    def produce(self, cluster: Cluster, first: int, count: int) -> None:
        """The events from number `first` on."""


class KafkaClicks:
    """One broker of the version that is embedded by default."""

    who = "ZooKeeper and a Kafka {version} broker run"
    what = f"{LOGS} partitions (none, gzip, snappy, lz4, zstd)"
    cluster_line = ""
    source = f'{{topics: {{allow: ["{TOPIC}"]}}}}'
    partition_by = "event_date"

    def cluster(self, folder: Path) -> Cluster:
        return Cluster(folder=folder)

    def create(self, cluster: Cluster) -> None:
        cluster.create_topic(TOPIC, LOGS)

    def produce(self, cluster: Cluster, first: int, count: int) -> None:
        with SimpleConsumer("127.0.0.1", cluster.brokers[0].port) as broker:
            for partition, batch in click_batches(
                first, count, partitions=LOGS, began_ms=int(time.time() * 1000)
            ):
                broker.produce(TOPIC, partition, batch)


class JafkaClicks:
    """Two brokers of Jafka with the same topic, each with half of its partitions; small segments,
    so that there is something to cut at.
    """

    brokers = 2
    who = "ZooKeeper and two brokers of Jafka 3.0.6 run"
    what = f"{LOGS // 2} partitions of each broker (plain, and gzipped message sets)"
    cluster_line = "cluster: demo\n"
    source = f'{{dialect: jafka, topics: {{allow: ["{TOPIC}"]}}}}'
    partition_by = "broker_id"

    def cluster(self, folder: Path) -> Cluster:
        return Cluster(
            self.brokers,
            version=JAFKA,
            chroot="/jafka",
            folder=folder,
            properties={"log.file.size": str(4 << 20)},
        )

    def create(self, cluster: Cluster) -> None:
        cluster.create_topic(TOPIC, LOGS // self.brokers)

    def produce(self, cluster: Cluster, first: int, count: int) -> None:
        consumers = [
            SimpleConsumer("127.0.0.1", broker.port, generation=BrokerFamily.JAFKA.value)
            for broker in cluster.brokers
        ]
        try:
            for number, messages in click_messages(first, count, partitions=LOGS):
                consumers[number % self.brokers].produce(TOPIC, number // self.brokers, messages)
        finally:
            for consumer in consumers:
                consumer.close()


SOURCES: Mapping[BrokerFamily, Source] = {
    BrokerFamily.KAFKA: KafkaClicks(),
    BrokerFamily.JAFKA: JafkaClicks(),
}
