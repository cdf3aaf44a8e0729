"""What is a consumer told: which cluster, which group, how to fetch?

What a consumer is told: which cluster, which group, and how to ask. Values; nobody is asked
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.errors import SettingsError
from etl.kafka.families import of_broker_version
from etl.model.partitions import BrokerFamily, Isolation, Membership, OffsetsStorage
from etl.model.security import Access, Security
from etl.settings.choices import (
    FETCH_LIMIT_BYTES,
    FETCH_MAX_BYTES,
    MIB,
    TIMEOUT_S,
    StartAt,
    split_address,
)
from etl.settings.load import access_of, security_of
from etl.streams.fetches import FetchSizes
from etl.streams.groups import Group

SaidSecurity = Security | Mapping[str, Any] | None
"""The value itself, or its keys as in a conf file."""
SaidAccess = Access | Mapping[str, Any] | None
"""The same of ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Conf:
    """Each is what `Consumer` says of it. Words may stand for enums."""

    bootstrap: str | Sequence[str] | None = None
    zookeeper: str | None = None
    group: str | Group | None = None
    offsets_storage: OffsetsStorage | str | None = None
    dialect: BrokerFamily | str = BrokerFamily.KAFKA
    broker_version: str | None = None
    start: StartAt | str | None = StartAt.LATEST
    isolation: Isolation | str = Isolation.READ_COMMITTED
    fetch_max_bytes: int = FETCH_MAX_BYTES
    partition_max_bytes: int = MIB
    fetch_limit_bytes: int = FETCH_LIMIT_BYTES
    max_wait_ms: int = 500
    timeout_s: float = TIMEOUT_S
    security: SaidSecurity = None
    zookeeper_access: SaidAccess = None

    @property
    def storage(self) -> OffsetsStorage:
        """Where the group's offsets are: as was said, else in ZooKeeper where that was given."""
        return OffsetsStorage(
            self.offsets_storage
            or (OffsetsStorage.ZOOKEEPER if self.zookeeper else OffsetsStorage.KAFKA)
        )

    @property
    def way_in(self) -> Security:
        """How the brokers' listeners are entered. Raises SettingsError."""
        return security_of(self.security)

    @property
    def access(self) -> Access:
        """How sessions with ZooKeeper begin. Raises SettingsError."""
        return access_of(self.zookeeper_access)

    @property
    def generation(self) -> str | None:
        """How all brokers are to be spoken to, where that was said."""
        return None if self.broker_version is None else of_broker_version(self.broker_version)

    @property
    def is_physical(self) -> bool:
        """Whether offsets are byte positions."""
        return BrokerFamily(self.dialect) is BrokerFamily.JAFKA

    @property
    def begins(self) -> StartAt | None:
        """Where a partition begins of which the group has no offset."""
        return None if self.start is None else StartAt(self.start)

    @property
    def sizes(self) -> FetchSizes:
        """How it asks."""
        return FetchSizes(
            Isolation(self.isolation),
            self.fetch_max_bytes,
            min(self.partition_max_bytes, self.fetch_max_bytes),
            self.fetch_limit_bytes,
            self.max_wait_ms,
            self.timeout_s,
        )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each broker that was named. Raises SettingsError."""
        named = (
            self.bootstrap.split(",") if isinstance(self.bootstrap, str) else self.bootstrap or ()
        )
        try:
            return [split_address(one.strip()) for one in named]
        except ValueError as error:
            raise SettingsError(
                str(error), key="bootstrap", check="host:port, several with commas between them"
            ) from None

    def _refuse_sizes(self) -> None:
        """On the wire a negative number has a meaning of its own, and of 0 bytes nothing ever
        comes.
        """
        for key in ("fetch_max_bytes", "partition_max_bytes", "fetch_limit_bytes"):
            if not getattr(self, key) > 0:
                raise SettingsError(
                    f"{getattr(self, key)} is no number of bytes", key=key, check="1 or more"
                )
        if not self.max_wait_ms >= 0:
            raise SettingsError(
                f"{self.max_wait_ms} is no number of milliseconds",
                key="max_wait_ms",
                check="0 or more",
            )
        if not self.timeout_s > 0:
            raise SettingsError(
                f"{self.timeout_s:g} is no number of seconds", key="timeout_s", check="more than 0"
            )

    def checked(self) -> Group | None:
        """The group, with all that it leaves open said. Raises SettingsError for what cannot be
        opened.
        """
        self._refuse_sizes()
        if self.bootstrap is None and self.zookeeper is None:
            raise SettingsError(
                "nothing says which brokers to ask",
                key="bootstrap",
                check="bootstrap, or zookeeper",
            )
        if self.zookeeper is None and self.zookeeper_access is not None:
            what = "zookeeper_access says how a ZooKeeper is entered, and none is given"
            raise SettingsError(
                what, key="zookeeper_access", check="zookeeper; or leave zookeeper_access out"
            )
        if self.is_physical and (self.zookeeper is None or self.bootstrap is not None):
            what = "brokers of Jafka and Kafka 0.7 are found in ZooKeeper alone"
            raise SettingsError(what, key="zookeeper", check="zookeeper given, bootstrap not")
        if self.group is None:
            return None
        if self.storage is OffsetsStorage.DUAL:
            what = "a consumer keeps its group's offsets in one place"
            raise SettingsError(what, key="offsets_storage", check="zookeeper or kafka")
        if self.storage is OffsetsStorage.ZOOKEEPER and self.zookeeper is None:
            raise SettingsError(
                "nothing says in which ZooKeeper the group's offsets are",
                key="zookeeper",
                check="zookeeper",
            )
        if self.storage is OffsetsStorage.KAFKA and self.is_physical:
            raise SettingsError(
                "Jafka and Kafka 0.7 keep no offsets", key="offsets_storage", check="zookeeper"
            )
        named = Group(self.group) if isinstance(self.group, str) else self.group
        group = named.settled(has_zookeeper=self.zookeeper is not None, physical=self.is_physical)
        if group.membership is Membership.COORDINATOR and self.storage is OffsetsStorage.ZOOKEEPER:
            what = "a group with a coordinator keeps its offsets there, too"
            raise SettingsError(what, key="offsets_storage", check="kafka, or membership=zookeeper")
        return group
