"""What does a consumer read: cluster, group and fetch options?

Immutable values, no I/O: consumer settings, group settings, subscriptions, and the listener of
rebalances.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from etl.decide.group_assignment import STRATEGIES, Strategy
from etl.errors import SettingsError
from etl.kafka.families import release_name
from etl.ledger.topic_filters import FilterKind, NotTranslated, TopicFilter, cleaned
from etl.model.partitions import (
    BrokerFamily,
    BrokerPartition,
    Isolation,
    Membership,
    OffsetsStorage,
)
from etl.model.security import Access, Security
from etl.settings.choices import (
    FETCH_MAX_BYTES,
    MAX_BATCH_BYTES,
    MIB,
    TIMEOUT_S,
    StartAt,
    split_address,
)
from etl.settings.load import access_of, security_of
from etl.streams.fetches import FetchSizes

_SECONDS = (
    "session_timeout_s",
    "join_timeout_s",
    "rebalance_timeout_s",
    "max_poll_interval_s",
    "topics_max_age_s",
    "auto_commit_s",
)


@dataclass(frozen=True, slots=True)
class Group:
    """A group, and as what a consumer is its member. A name alone stands for the group with all
    that is the default here.
    """

    name: str
    membership: Membership | str | None = None
    """Who assigns partitions: `zookeeper`, as for consumers of Jafka and Kafka 0.8, or
    `coordinator`, as from 0.9 on; None: the former if the consumer has a ZooKeeper, else the
    latter.
    """
    strategy: str = "range"
    """How the group divides its logs: the same as its other members."""
    protocol: str = "classic"
    """With a coordinator: `classic`, or `consumer` (KIP-848, brokers from 4.0 on), by which the
    coordinator divides and not a member.
    """
    member_id: str | None = None
    """Its name in ZooKeeper; with a coordinator that of a static member (from 2.3 on)."""
    session_timeout_s: float | None = None
    """How long the group believes in a member of which nothing is heard; None: 10 in ZooKeeper, 45
    with a coordinator.
    """
    join_timeout_s: float = 60.0
    """How long a poll waits for the group to settle."""
    rebalance_timeout_s: float = 60.0
    """A consumer that is not polled for so long while the group wants something of it back is a
    member no more; nor is one that is not polled for `max_poll_interval_s`. It joins again with its
    next poll."""
    max_poll_interval_s: float = 300.0
    topics_max_age_s: float = 30.0
    """With a coordinator: how often a pattern is compared with existing topics. ZooKeeper reports
    new ones itself.
    """
    auto_commit_s: float | None = None
    """How often polls commit what earlier polls handed out; that is done at each rebalance and at
    the end, too. None: never by itself.
    """

    def settled(self, *, has_zookeeper: bool, physical: bool) -> Group:
        """Return the group with defaults resolved. Raises SettingsError for impossible
        combinations.
        """
        try:
            membership = Membership(
                self.membership
                or (Membership.ZOOKEEPER if has_zookeeper else Membership.COORDINATOR)
            )
        except ValueError:
            raise _refused(
                "membership",
                f"{self.membership!r} is no kind of membership",
                f"Use one of {_names(Membership)}",
            ) from None
        for key in _SECONDS:
            value = getattr(self, key)
            # the consumer protocol reads -1 as "unchanged"
            if value is not None and not value >= 0:
                raise _refused(key, f"{value:g} is no number of seconds", "Pass 0 or more")
        in_zookeeper = membership is Membership.ZOOKEEPER
        if in_zookeeper and not has_zookeeper:
            raise _refused(
                "membership", "the ZooKeeper of the group's members is not set", "Pass zookeeper"
            )
        if physical and not in_zookeeper:
            raise _refused(
                "membership", "groups of Jafka and Kafka 0.7 are in ZooKeeper", "Use zookeeper"
            )
        for key, name in (("group", self.name), ("member_id", self.member_id)):
            if name == "" or name and in_zookeeper and ("/" in name or not name.strip(".")):
                raise _refused(
                    key,
                    f"{name!r} names no {key.partition('_')[0]}",
                    "Use a name that is not empty; in ZooKeeper without slashes and not only dots",
                )
        known = [one.value for one in Strategy] if in_zookeeper else list(STRATEGIES)
        if self.strategy not in known:
            raise _refused(
                "strategy",
                f"no group of that kind assigns partitions by {self.strategy!r}",
                f"Use one of {', '.join(known)}",
            )
        if (
            self.protocol not in ("classic", "consumer")
            or in_zookeeper
            and self.protocol != "classic"
        ):
            raise _refused(
                "protocol",
                f"a group of that kind does not speak {self.protocol!r}",
                "Use classic, or consumer with a coordinator of 4.0 or later",
            )
        session_s = self.session_timeout_s or (10.0 if in_zookeeper else 45.0)
        return replace(self, membership=membership, session_timeout_s=session_s)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics a member reads."""

    threads: Mapping[str, int] = field(default_factory=dict)
    """Those that it names, and as how many it counts in ZooKeeper for each."""
    filter: TopicFilter | None = None
    """By what it reads all that pass, those that are made later, too; then none is named."""
    threads_each: int = 1
    """Number of threads for each of these."""

    def names(self, there: Collection[str]) -> frozenset[str]:
        """Return which of the existing topics are read; named ones always count."""
        if self.filter is None:
            return frozenset(self.threads)
        return frozenset(filter(self.filter.allows, there))


class RebalanceListener:
    """Callbacks for changes of the assignment, called within `poll`, `unsubscribe` and `close`.
    Their exceptions come out of these; they may not call them, nor `subscribe` (ConsumerInUse).
    """

    def revoked(self, logs: Collection[BrokerPartition]) -> None:
        """The group revokes these. They are still ours: `commit` now, and the next owner begins
        there.
        """

    def assigned(self, logs: Collection[BrokerPartition]) -> None:
        """The group gives these. They begin where the group is, unless they are sought in now."""

    def lost(self, logs: Collection[BrokerPartition]) -> None:
        """These were lost at an unknown time: others may be reading them, and nothing of them can
        be committed any more.
        """


def by_filter(
    text: str, kind: FilterKind = FilterKind.WHITE_LIST, *, threads: int = 1
) -> Subscription:
    """Subscribe to topics that match a Java regular expression as a whole, or to all others. Raises
    SettingsError for an unsupported one.
    """
    try:
        return Subscription(filter=TopicFilter(kind, cleaned(text)), threads_each=threads)
    except NotTranslated as error:
        raise SettingsError(
            f"The pattern {text!r} is not understood: {error}",
            action="Use a simpler one, or the topics' names",
        ) from error


def by_names(topics: Mapping[str, int]) -> Subscription:
    """These topics, each with its number of threads. Raises SettingsError for none, and for fewer
    threads than one.
    """
    if not topics:
        raise SettingsError(
            "No topic is named, and no pattern", action="Check the topics to subscribe to"
        )
    for topic, count in topics.items():
        if type(count) is not int or count < 1:
            raise SettingsError(
                f"{count!r} is no number of streams", topic=topic, action="Pass 1 or more"
            )
    return Subscription(dict(topics))


def _refused(key: str, message: str, action: str) -> SettingsError:
    return SettingsError(message, key=key, action=action)


def _names(kind: type[Membership]) -> str:
    return ", ".join(one.value for one in kind)


SecurityInput = Security | Mapping[str, Any] | None
"""The value itself, or its keys as in a conf file."""
ZooKeeperAccessInput = Access | Mapping[str, Any] | None
"""Keys of `zookeeper`: `tls` and `auth`."""


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Arguments as of `Consumer`. Strings may stand for enums."""

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
    max_batch_bytes: int = MAX_BATCH_BYTES
    max_wait_ms: int = 500
    timeout_s: float = TIMEOUT_S
    security: SecurityInput = None
    zookeeper_access: ZooKeeperAccessInput = None

    @property
    def storage(self) -> OffsetsStorage:
        """Return where the group's offsets are: as configured, else in ZooKeeper if it is given."""
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
        """Return the broker type or release, if configured."""
        return None if self.broker_version is None else release_name(self.broker_version)

    @property
    def is_physical(self) -> bool:
        """True if offsets are byte positions."""
        return BrokerFamily(self.dialect) is BrokerFamily.JAFKA

    @property
    def begins(self) -> StartAt | None:
        """Return where partitions without a committed offset begin."""
        return None if self.start is None else StartAt(self.start)

    @property
    def sizes(self) -> FetchSizes:
        """Return the fetch sizes."""
        return FetchSizes(
            Isolation(self.isolation),
            self.fetch_max_bytes,
            min(self.partition_max_bytes, self.fetch_max_bytes),
            self.max_batch_bytes,
            self.max_wait_ms,
            self.timeout_s,
        )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each broker that was named. Raises SettingsError."""
        if isinstance(self.bootstrap, str):
            named: Sequence[str] = self.bootstrap.split(",")
        else:
            named = self.bootstrap or ()
        try:
            return [split_address(one.strip()) for one in named]
        except ValueError as error:
            raise SettingsError(
                str(error),
                key="bootstrap",
                action="Write host:port, several with commas between them",
            ) from None

    def _reject_sizes(self) -> None:
        """On the wire a negative number has a meaning of its own, and of 0 bytes nothing ever
        comes.
        """
        for key in ("fetch_max_bytes", "partition_max_bytes", "max_batch_bytes"):
            if not getattr(self, key) > 0:
                raise SettingsError(
                    f"{getattr(self, key)} is no number of bytes", key=key, action="Pass 1 or more"
                )
        if not self.max_wait_ms >= 0:
            raise SettingsError(
                f"{self.max_wait_ms} is no number of milliseconds",
                key="max_wait_ms",
                action="Pass 0 or more",
            )
        if not self.timeout_s > 0:
            raise SettingsError(
                f"{self.timeout_s:g} is no number of seconds",
                key="timeout_s",
                action="Pass more than 0",
            )

    def checked(self) -> Group | None:
        """Return the group with defaults resolved. Raises SettingsError for invalid settings."""
        self._reject_sizes()
        if self.bootstrap is None and self.zookeeper is None:
            raise SettingsError(
                "Nothing says which brokers to ask",
                key="bootstrap",
                action="Pass bootstrap, or zookeeper",
            )
        if self.zookeeper is None and self.zookeeper_access is not None:
            message = "zookeeper_access says how a ZooKeeper is entered, and none is given"
            raise SettingsError(
                message,
                key="zookeeper_access",
                action="Pass zookeeper; or leave zookeeper_access out",
            )
        if self.is_physical and (self.zookeeper is None or self.bootstrap is not None):
            message = "Brokers of Jafka and Kafka 0.7 are found in ZooKeeper alone"
            raise SettingsError(
                message, key="zookeeper", action="Pass zookeeper, and not bootstrap"
            )
        if self.group is None:
            return None
        if self.storage is OffsetsStorage.DUAL:
            message = "A consumer keeps its group's offsets in one place"
            raise SettingsError(message, key="offsets_storage", action="Use zookeeper or kafka")
        if self.storage is OffsetsStorage.ZOOKEEPER and self.zookeeper is None:
            raise SettingsError(
                "Nothing says in which ZooKeeper the group's offsets are",
                key="zookeeper",
                action="Use zookeeper",
            )
        if self.storage is OffsetsStorage.KAFKA and self.is_physical:
            raise SettingsError(
                "Jafka and Kafka 0.7 keep no offsets", key="offsets_storage", action="Use zookeeper"
            )
        named = Group(self.group) if isinstance(self.group, str) else self.group
        group = named.settled(has_zookeeper=self.zookeeper is not None, physical=self.is_physical)
        if group.membership is Membership.COORDINATOR and self.storage is OffsetsStorage.ZOOKEEPER:
            message = "A group with a coordinator keeps its offsets there, too"
            raise SettingsError(
                message, key="offsets_storage", action="Use kafka, or membership=zookeeper"
            )
        return group
