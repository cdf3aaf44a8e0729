"""Which traffic the brokers of a cluster want."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from tests.traffic.jafka import JafkaTraffic
from tests.traffic.kafka_08 import Kafka08Traffic
from tests.traffic.modern import ModernTraffic
from tests.traffic.rows import Message, Row


class Traffic(Protocol):
    """What others do with topics; logs are counted over all brokers together."""

    @property
    def place(self) -> tuple[str, ...]:
        """The columns of the table that identify a record in its topic."""

    @property
    def conf(self) -> Mapping[str, Any]:
        """The conf that such brokers need."""

    def create_topic(
        self,
        cluster: EmbeddedCluster,
        name: str,
        partitions: int,
        *,
        replication_factor: int,
        config: Mapping[str, str] | None,
    ) -> None:
        """Return when every log can be written and read."""

    def load(
        self, cluster: EmbeddedCluster, topic: str, first: int, count: int, partitions: int
    ) -> None:
        """Append `count` events from `first` on, in every codec; return when brokers have them."""

    def sending(
        self, cluster: EmbeddedCluster, topic: str
    ) -> AbstractContextManager[Callable[[Sequence[Message]], None]]:
        """`send(messages)` in the block. Raises KafkaError or OSError without brokers."""

    def in_topic(self, cluster: EmbeddedCluster, topic: str) -> Counter[Row]:
        """Every readable record of the topic."""


_OLD: Mapping[str, Traffic] = {JAFKA: JafkaTraffic(), "0.8.2.2": Kafka08Traffic()}


def traffic_of(cluster: EmbeddedCluster) -> Traffic:
    return _OLD.get(cluster.brokers[0].version, ModernTraffic())
