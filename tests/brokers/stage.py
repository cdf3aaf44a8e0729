"""A cluster of one release, with producers and parallel consumers of its own version."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from etl.testkit.brokers import JAFKA, Kafka
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.brokers.compiling import number_of, programs
from tests.brokers.foreign import (
    JafkaClients,
    JavaClients,
    JavaProducer,
    KeyValue,
    ScalaClients,
    Seen,
)

Writer = Callable[[str, int, Sequence[KeyValue]], None]
"""Topic, partition and records: it sends them as one batch of its codec, or as one request."""

PARTITIONS = 4
_numbers = itertools.count(1)
_SCALA_CODECS = ("none", "gzip", "snappy", "lz4")


class Stage(Protocol):
    """What a test may ask, whichever release runs."""

    has_keys: bool

    @property
    def cluster(self) -> EmbeddedCluster:
        """Its servers."""

    @property
    def writers(self) -> Mapping[str, Writer]:
        """By what the producer is called and how it packs."""

    @property
    def conf(self) -> Mapping[str, Any]:
        """The conf to read from here, with `source`."""

    def new_topic(self) -> str:
        """A new topic of PARTITIONS partitions."""

    def read(self, topic: str) -> list[Seen]:
        """Everything in it, as the release's own simple consumer reads it."""

    def ends(self, topic: str) -> dict[str, int]:
        """The committed offsets of a group that read everything, by znode names."""


class KafkaStage:
    has_keys = True

    def __init__(
        self, version: str, folder: Path, running: ExitStack, cluster: EmbeddedCluster | None
    ) -> None:
        running.callback(shutil.rmtree, folder / "cluster", ignore_errors=True)
        self.cluster = cluster or running.enter_context(
            EmbeddedCluster(version=version, folder=folder / "cluster")
        )
        self.version = version
        self.release = release = number_of(version)
        source: dict[str, Any] = {}
        if not self.cluster.brokers[0].release.has_zookeeper:
            source["bootstrap_servers"] = [self.cluster.bootstrap]
        if release < (0, 10, 1):
            source["assume_cluster_id"] = "tests"
        self.conf: Mapping[str, Any] = {"source": source}
        self.writers: dict[str, Writer] = {}
        self.scala: ScalaClients | None = None
        if "ScalaClients" in programs(version):
            self.scala = running.enter_context(ScalaClients(self.cluster, version, folder))
            self._add("Scala", self.scala, _SCALA_CODECS)
        java = JavaClients if "JavaClients" in programs(version) else JavaProducer
        self.java = running.enter_context(java(self.cluster, version, folder))
        self.codecs = (*_SCALA_CODECS, "zstd") if release >= (2, 1) else _SCALA_CODECS
        self._add("Java", self.java, self.codecs)

    def _add(self, name: str, producer: ScalaClients | JavaProducer, codecs: Sequence[str]) -> None:
        def writer(codec: str) -> Writer:
            return lambda topic, partition, records: producer.send(topic, partition, records, codec)

        self.writers.update({f"{name}, {codec}": writer(codec) for codec in codecs})

    def new_topic(self, partitions: int = PARTITIONS) -> str:
        name = f"foreign-{next(_numbers)}"
        self.cluster.create_topic(name, partitions)
        return name

    def read(self, topic: str) -> list[Seen]:
        return [seen for partition in range(PARTITIONS) for seen in self._read(topic, partition)]

    def ends(self, topic: str) -> dict[str, int]:
        return {
            str(n): max((seen.offset + 1 for seen in self._read(topic, n)), default=0)
            for n in range(PARTITIONS)
        }

    def _read(self, topic: str, partition: int) -> list[Seen]:
        if isinstance(self.java, JavaClients):
            return self.java.read(topic, partition)
        assert self.scala is not None
        return self.scala.read(self.cluster.brokers[0], topic, partition)


class JafkaStage:
    """Two brokers with the same topics: partition n is number n // 2 of broker n % 2."""

    has_keys = False

    def __init__(self, folder: Path, running: ExitStack) -> None:
        running.callback(shutil.rmtree, folder / "cluster", ignore_errors=True)
        self.cluster = running.enter_context(
            EmbeddedCluster(2, version=JAFKA, folder=folder / "cluster")
        )
        self.conf: Mapping[str, Any] = {
            "source": {"broker_type": "jafka", "assume_cluster_id": "tests"}
        }
        self.clients = running.enter_context(JafkaClients(self.cluster, folder))
        self.writers: dict[str, Writer] = {"plain": self._writer(0), "gzip": self._writer(1)}

    def _writer(self, codec: int) -> Writer:
        def write(topic: str, partition: int, records: Sequence[KeyValue]) -> None:
            broker, number = self.cluster.brokers[partition % 2], partition // 2
            before = self.clients.end(broker, topic, number)
            self.clients.send(
                broker, topic, number, [value for _, value in records if value is not None], codec
            )
            assert wait_until(lambda: self.clients.end(broker, topic, number) > before, 30), (
                "the sent records are not readable"
            )

        return write

    def new_topic(self) -> str:
        name = f"foreign-{next(_numbers)}"
        self.cluster.create_topic(name, PARTITIONS // 2)
        return name

    def read(self, topic: str) -> list[Seen]:
        return [
            seen
            for broker, number in self._logs()
            for seen in self.clients.read(broker, topic, number)
        ]

    def ends(self, topic: str) -> dict[str, int]:
        return {
            f"{broker.broker_id}-{number}": self.clients.end(broker, topic, number)
            for broker, number in self._logs()
        }

    def _logs(self) -> Iterator[tuple[Kafka, int]]:
        return itertools.product(self.cluster.brokers, range(PARTITIONS // 2))


def begin(
    version: str, folder: Path, running: ExitStack, cluster: EmbeddedCluster | None = None
) -> KafkaStage | JafkaStage:
    """Start the clients, and servers if there is no `cluster`; `running` ends them."""
    if version == JAFKA:
        return JafkaStage(folder, running)
    return KafkaStage(version, folder, running, cluster)
