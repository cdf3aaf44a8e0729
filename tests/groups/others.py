"""Other consumers of a group, with any storage: each reads, commits and reports its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.session_requests import ZooKeeper
from tests.brokers.foreign import JafkaClients, JavaClients, ScalaClients, Seen
from tests.brokers.stage import JafkaStage, KafkaStage

BACKOFF_MS = 500
MANY = 100
"""Tries of a consumer that is not to give up."""


class Others(Protocol):
    """The consumers of one group and topic that are not ours, by names."""

    def enter(self, name: str) -> None:
        """One more, which reads and commits until it exits."""

    def exit(self, name: str) -> list[Seen]:
        """It leaves the group; what it read and committed."""

    def count(self, name: str) -> int:
        """How many records it has read by now."""

    def owned(self) -> dict[str, int]:
        """How many partitions each owner has now; of ours it may be known, as `etl`, or not."""


@dataclass
class OldConsumers:
    """High-level consumers of Jafka and of Kafka 0.8 to 1.1, in ZooKeeper."""

    stage: JafkaStage | KafkaStage
    group: str
    topic: str
    zookeeper: ZooKeeper
    threads: int = 1
    strategy: str = "range"
    tries: int = MANY
    backoff_ms: int = BACKOFF_MS

    @property
    def clients(self) -> JafkaClients | ScalaClients:
        found = self.stage.clients if isinstance(self.stage, JafkaStage) else self.stage.scala
        assert found is not None
        return found

    def enter(self, name: str) -> None:
        """See Others. Fails the test when it does not get its share by its tries."""
        more = {} if isinstance(self.stage, JafkaStage) else {"strategy": self.strategy}
        self.clients.open(
            name,
            self.group,
            self.topic,
            backoff_ms=self.backoff_ms,
            tries=self.tries,
            threads=self.threads,
            **more,
        )

    def exit(self, name: str) -> list[Seen]:
        """See Others. Jafka's consumer reports no offsets: values are looked up."""
        clients = self.clients
        if isinstance(clients, ScalaClients):
            return clients.close(name)
        values = clients.close(name)
        places = {seen.value: seen for seen in self.stage.read(self.topic)}
        return [places[value] for value in values]

    def count(self, name: str) -> int:
        return self.clients.count(name)

    def owned(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for owner in (
            ConsumerGroup(self.zookeeper, self.group, physical=isinstance(self.stage, JafkaStage))
            .owners([self.topic])
            .values()
        ):
            name = owner.removeprefix(f"{self.group}_").rpartition("-")[0].partition(":")[0]
            found[name] = found.get(name, 0) + 1
        return found


@dataclass
class JavaConsumers:
    """Kafka's consumers in Java, 0.9 on, in the group's coordinator."""

    clients: JavaClients
    group: str
    topic: str
    settings: Mapping[str, object] = field(default_factory=dict)
    _inside: set[str] = field(default_factory=set)

    def enter(self, name: str) -> None:
        """See Others. It has no share yet when this returns."""
        self.clients.enter(name, self.group, self.topic, **self.settings)
        self._inside.add(name)

    def exit(self, name: str) -> list[Seen]:
        self._inside.remove(name)
        return self.clients.exit(name)

    def count(self, name: str) -> int:
        return self.clients.count(name)

    def owned(self) -> dict[str, int]:
        return {name: count for name in self._inside if (count := len(self.clients.owns(name)))}
