"""Whom a consumer asks: brokers by their addresses, or those that ZooKeeper has; and where its group keeps offsets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from etl.edges.brokers.cluster import Cluster
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import SettingsError
from etl.model.committed import OffsetsStorage
from etl.model.logs import Dialect
from etl.protocol.generations.choice import of_broker_version
from etl.reader.registered import registered_cluster
from etl.settings.address import split_address
from etl.streams.kept import Kept, KeptInKafka, KeptInZooKeeper


@dataclass(frozen=True, slots=True)
class Asked:
    """Which cluster, and which group."""

    bootstrap: str | Sequence[str] | None
    zookeeper: str | None
    dialect: Dialect
    broker_version: str | None
    group: str | None
    offsets_storage: OffsetsStorage | None
    timeout_s: float

    @property
    def storage(self) -> OffsetsStorage:
        """Where the group's offsets are: as was said, else in ZooKeeper where that was given."""
        return self.offsets_storage or (OffsetsStorage.ZOOKEEPER if self.zookeeper else OffsetsStorage.KAFKA)

    @property
    def generation(self) -> str | None:
        """How all brokers are to be spoken to, where that was said."""
        return None if self.broker_version is None else of_broker_version(self.broker_version)

    def check(self) -> None:
        """Raises SettingsError for what cannot be opened."""
        physical = self.dialect is Dialect.JAFKA
        if self.bootstrap is None and self.zookeeper is None:
            raise SettingsError("nothing says which brokers to ask", key="bootstrap", check="bootstrap, or zookeeper")
        if physical and (self.zookeeper is None or self.bootstrap is not None):
            what = "brokers of Jafka and Kafka 0.7 are found in ZooKeeper alone"
            raise SettingsError(what, key="zookeeper", check="zookeeper given, bootstrap not")
        if self.group is None:
            return
        if self.storage is OffsetsStorage.DUAL:
            what = "a consumer keeps its group's offsets in one place"
            raise SettingsError(what, key="offsets_storage", check="zookeeper or kafka")
        if self.storage is OffsetsStorage.ZOOKEEPER and self.zookeeper is None:
            raise SettingsError("nothing says in which ZooKeeper the group's offsets are", key="zookeeper", check="zookeeper")
        if self.storage is OffsetsStorage.KAFKA and physical:
            raise SettingsError("Jafka and Kafka 0.7 keep no offsets", key="offsets_storage", check="zookeeper")


def open_cluster(asked: Asked, until: ExitStack) -> tuple[Cluster, Kept | None]:
    """The cluster, and the group's offsets where there is a group; both end with `until`. Raises SettingsError, and what ZooKeeper and its
    registrations do."""
    asked.check()
    zookeeper = until.enter_context(ZooKeeper(asked.zookeeper)) if asked.zookeeper else None
    physical = asked.dialect is Dialect.JAFKA
    if asked.bootstrap is not None:
        cluster = Cluster(_addresses(asked.bootstrap), timeout_s=asked.timeout_s, generation=asked.generation)
    elif zookeeper is not None:
        cluster = registered_cluster(zookeeper, physical=physical, timeout_s=asked.timeout_s, generation=asked.generation)
    until.enter_context(cluster)
    if asked.group is None:
        return cluster, None
    if asked.storage is OffsetsStorage.KAFKA or zookeeper is None:
        return cluster, KeptInKafka(cluster, asked.group)
    return cluster, KeptInZooKeeper(zookeeper, asked.group, physical=physical)


def _addresses(bootstrap: str | Sequence[str]) -> list[tuple[str, int]]:
    try:
        return [split_address(one.strip()) for one in (bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap)]
    except ValueError as error:
        raise SettingsError(str(error), key="bootstrap", check="host:port, several with commas between them") from None
