"""Consumer settings: cluster, group, subscription and fetch options.

Immutable values, no I/O; and the listener of rebalances.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from etl.decide.group_assignment import STRATEGIES, Strategy
from etl.errors import EtlError, SettingsError
from etl.kafka.broker_types import release_name
from etl.ledger.topic_filters import FilterKind, NotTranslated, TopicFilter, cleaned
from etl.model.partitions import (
    BrokerFamily,
    Isolation,
    Membership,
    OffsetsStorage,
    TopicPartition,
)
from etl.model.security import Access, Security
from etl.reader.fetch_options import FetchOptions
from etl.settings.choices import (
    FETCH_MAX_BYTES,
    MAX_BATCH_BYTES,
    MIB,
    TIMEOUT_S,
    StartAt,
    choice_of,
    split_address,
)
from etl.settings.load import access_of, security_of

_OLD_WORDS = {"smallest": "earliest", "largest": "latest"}
"""`auto.offset.reset` of Jafka and Kafka 0.8."""
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
    """A group, and how the consumer joins it. A name alone stands for a group with defaults."""

    name: str
    membership: Membership | str | None = None
    """Place of the membership: `zookeeper`, as for consumers of Jafka and Kafka 0.8, or
    `coordinator`, as from 0.9 on; None: the former if the consumer has a ZooKeeper, else the
    latter.
    """
    assignment_strategy: str = "range"
    """Assignment strategy of the group: the same as its other members."""
    protocol: str = "classic"
    """With a coordinator: `classic`, or `consumer` (KIP-848, brokers from 4.0 on), in which the
    coordinator assigns and not a member.
    """
    instance_id: str | None = None
    """Name in ZooKeeper; with a coordinator the name of a static member (from 2.3 on)."""
    session_timeout_s: float | None = None
    """Time after which the group removes a silent member; None: 10 in ZooKeeper, 45 with a
    coordinator.
    """
    join_timeout_s: float = 60.0
    """Polls raise Owned after a rebalance of this length."""
    rebalance_timeout_s: float = 60.0
    """A consumer that is not polled for so long while the group revokes partitions leaves the
    group, and joins again with its next poll.
    """
    max_poll_interval_s: float = 300.0
    """A consumer that is not polled for so long leaves, too, and joins with its next poll."""
    topics_max_age_s: float = 30.0
    """With a coordinator: interval at which new topics and partitions are looked for. ZooKeeper
    reports them itself.
    """
    auto_commit_s: float | None = None
    """Interval at which polls commit the records that earlier polls returned; each rebalance and
    the end commit, too. None: no auto-commit.
    """

    def resolved(self, *, has_zookeeper: bool, physical: bool) -> Group:
        """Return the group with defaults resolved.

        Raises SettingsError for impossible combinations.
        """
        if self.membership:
            configured = self.membership
        elif has_zookeeper:
            configured = Membership.ZOOKEEPER
        else:
            configured = Membership.COORDINATOR
        membership = choice_of(Membership, configured, "membership")
        for key in _SECONDS:
            value = getattr(self, key)
            # the consumer protocol reads -1 as "unchanged"
            if value is not None and not value >= 0:
                raise SettingsError(
                    f"{value:g} is not a valid number of seconds",
                    key=key,
                    action="Pass 0 or more",
                )
        in_zookeeper = membership is Membership.ZOOKEEPER
        if in_zookeeper and not has_zookeeper:
            raise SettingsError(
                "Membership in ZooKeeper needs the ZooKeeper of the group",
                key="membership",
                action="Pass zookeeper",
            )
        if physical and not in_zookeeper:
            raise SettingsError(
                "Groups of Jafka and Kafka 0.7 are in ZooKeeper",
                key="membership",
                action="Use zookeeper",
            )
        self._reject_names(in_zookeeper=in_zookeeper)
        known = [strategy.value for strategy in Strategy] if in_zookeeper else list(STRATEGIES)
        if self.assignment_strategy not in known:
            raise SettingsError(
                f"A group with membership {membership.value} has no strategy "
                f"{self.assignment_strategy!r}",
                key="assignment_strategy",
                action=f"Use one of {', '.join(known)}",
            )
        protocols = ("classic",) if in_zookeeper else ("classic", "consumer")
        if self.protocol not in protocols:
            raise SettingsError(
                f"A group with membership {membership.value} has no protocol {self.protocol!r}",
                key="protocol",
                action="Use classic, or consumer with a coordinator of 4.0 or later",
            )
        session_timeout_s = self.session_timeout_s or (10.0 if in_zookeeper else 45.0)
        return replace(self, membership=membership, session_timeout_s=session_timeout_s)

    def _reject_names(self, *, in_zookeeper: bool) -> None:
        """Raise SettingsError for an invalid name of the group or the member."""
        for key, name in (("group", self.name), ("instance_id", self.instance_id)):
            if name is None:
                continue
            is_no_znode = "/" in name or not name.strip(".")
            if name == "" or in_zookeeper and is_no_znode:
                raise SettingsError(
                    f"{name!r} is not a valid {key.partition('_')[0]} name",
                    key=key,
                    action="Use a name that is not empty;"
                    " in ZooKeeper without slashes and not only dots",
                )


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that a member reads: named ones, or those of a filter."""

    threads: Mapping[str, int] = field(default_factory=dict)
    """Named topics, each with the number of threads that are registered in ZooKeeper for it."""
    filter: TopicFilter | None = None
    """Filter of topics, later ones included; then no topic is named."""
    threads_each: int = 1
    """Number of threads for each topic of the filter."""

    def names(self, existing: Collection[str]) -> frozenset[str]:
        """Return which of the existing topics are read; named ones always count."""
        if self.filter is None:
            return frozenset(self.threads)
        return frozenset(filter(self.filter.allows, existing))


class RebalanceListener:
    """Callbacks for changes of the assignment, called within `poll`, `unsubscribe` and `close`.

    These calls raise the exceptions of a callback. A callback may not make these calls, nor call
    `subscribe` (ConsumerInUse).
    """

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """The group revokes these partitions, which this member still owns.

        `commit` now, and the next owner begins there.
        """

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """The group assigns these partitions.

        They begin at the group's committed offsets, unless this callback calls `seek`.
        """

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions were lost at an unknown time.

        Other members may be reading them, and their offsets cannot be committed any more.
        """


def by_filter(
    text: str,
    kind: FilterKind = FilterKind.WHITE_LIST,
    *,
    threads: int = 1,
    in_zookeeper: bool,
) -> Subscription:
    """Return the subscription to topics that match a Java regular expression, or to all others.

    A topic matches as a whole. Only consumers in ZooKeeper clean a pattern: a comma means `|`.
    Raises SettingsError for an unsupported expression.
    """
    pattern = cleaned(text) if in_zookeeper else text
    try:
        return Subscription(filter=TopicFilter(kind, pattern), threads_each=threads)
    except NotTranslated as error:
        raise SettingsError(
            f"The pattern {text!r} is not supported: {error}",
            action="Use a simpler pattern, or the names of the topics",
        ) from error


_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def by_names(topics: Mapping[str, int], *, physical: bool) -> Subscription:
    """Return the subscription to these topics, each with its number of threads.

    Raises SettingsError for no topics, for fewer threads than one, and for a name that no topic of
    Kafka can have; `physical`: brokers of Jafka and Kafka 0.7 allow others.
    """
    if not topics:
        raise SettingsError("No topics to subscribe to", action="Pass topic names, or a pattern")
    for topic, count in topics.items():
        if not physical and not _TOPIC_NAME.fullmatch(topic):
            raise SettingsError(
                f"{topic!r} is not a valid name of a topic",
                action="Use letters, digits, dots, underscores and hyphens, 249 at most",
            )
        if type(count) is not int or count < 1:
            raise SettingsError(
                f"{count!r} is not a valid number of streams",
                topic=topic,
                action="Pass 1 or more",
            )
    return Subscription(dict(topics))


SecurityInput = Security | Mapping[str, Any] | None
"""The value itself, or its keys as in a conf file."""
ZooKeeperAccessInput = Access | Mapping[str, Any] | None
"""Keys of `zookeeper`: `tls` and `auth`."""


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The arguments of `Consumer`. Strings may stand for enums."""

    bootstrap_servers: str | Sequence[str] | None = None
    zookeeper: str | None = None
    group: str | Group | None = None
    offsets_storage: OffsetsStorage | str | None = None
    broker_type: BrokerFamily | str = BrokerFamily.KAFKA
    broker_version: str | None = None
    auto_offset_reset: StartAt | str | None = StartAt.LATEST
    isolation_level: Isolation | str = Isolation.READ_COMMITTED
    fetch_max_bytes: int = FETCH_MAX_BYTES
    max_partition_fetch_bytes: int = MIB
    max_batch_bytes: int = MAX_BATCH_BYTES
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    request_timeout_s: float = TIMEOUT_S
    security: SecurityInput = None
    zookeeper_security: ZooKeeperAccessInput = None

    @property
    def description(self) -> str:
        """The brokers and the group, for a representation."""
        group = self.group.name if isinstance(self.group, Group) else self.group
        servers = self.bootstrap_servers or self.zookeeper
        if servers is not None and not isinstance(servers, str):
            servers = ",".join(servers)
        return f"of {servers}" + (f", group {group}" if group is not None else "")

    @property
    def storage(self) -> OffsetsStorage:
        """The store of the group's offsets: as configured, else ZooKeeper if it is given."""
        if self.offsets_storage:
            return choice_of(OffsetsStorage, self.offsets_storage, "offsets_storage")
        return OffsetsStorage.ZOOKEEPER if self.zookeeper else OffsetsStorage.KAFKA

    @property
    def way_in(self) -> Security:
        """Encryption and authentication of broker connections. Raises SettingsError."""
        return security_of(self.security)

    @property
    def access(self) -> Access:
        """Encryption and authentication of ZooKeeper sessions. Raises SettingsError."""
        return access_of(self.zookeeper_security)

    @property
    def broker_release(self) -> str | None:
        """Return the release of the brokers, if configured."""
        return None if self.broker_version is None else release_name(self.broker_version)

    @property
    def is_physical(self) -> bool:
        """True if offsets are byte positions."""
        family = choice_of(BrokerFamily, self.broker_type, "broker_type")
        return family is BrokerFamily.JAFKA

    @property
    def begins(self) -> StartAt | None:
        """The start of partitions without a committed offset; None: an error."""
        if self.auto_offset_reset is None:
            return None
        word = _OLD_WORDS.get(self.auto_offset_reset, self.auto_offset_reset)
        return choice_of(StartAt, word, "auto_offset_reset")

    @property
    def fetch_options(self) -> FetchOptions:
        """Return the options of fetches."""
        return FetchOptions(
            isolation=choice_of(Isolation, self.isolation_level, "isolation_level"),
            fetch_max_bytes=self.fetch_max_bytes,
            partition_max_bytes=min(self.max_partition_fetch_bytes, self.fetch_max_bytes),
            max_batch_bytes=self.max_batch_bytes,
            max_wait_ms=self.fetch_max_wait_ms,
            min_bytes=self.fetch_min_bytes,
            timeout_s=self.request_timeout_s,
        )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each bootstrap broker. Raises SettingsError."""
        if isinstance(self.bootstrap_servers, str):
            addresses: Sequence[str] = self.bootstrap_servers.split(",")
        else:
            addresses = self.bootstrap_servers or ()
        try:
            return [split_address(address.strip()) for address in addresses]
        except ValueError as error:
            raise SettingsError(
                str(error),
                key="bootstrap_servers",
                action="Write host:port, several with commas between them",
            ) from None

    def _reject_sizes(self) -> None:
        """Raise SettingsError for sizes and times that are too small.

        In the protocol a negative number has a meaning of its own, and a fetch of 0 bytes returns
        nothing.
        """
        for key in ("fetch_max_bytes", "max_partition_fetch_bytes", "max_batch_bytes"):
            size = getattr(self, key)
            if not size > 0:
                raise SettingsError(
                    f"{size} is not a valid number of bytes", key=key, action="Pass 1 or more"
                )
        for key in ("fetch_max_wait_ms", "fetch_min_bytes"):
            number = getattr(self, key)
            if not number >= 0:
                raise SettingsError(
                    f"{number} is not a valid {key}", key=key, action="Pass 0 or more"
                )
        if not self.request_timeout_s > 0:
            raise SettingsError(
                f"{self.request_timeout_s:g} is not a valid number of seconds",
                key="request_timeout_s",
                action="Pass more than 0",
            )

    def checked(self) -> Group | None:
        """Return the group with defaults resolved. Raises SettingsError for invalid settings."""
        self._reject_sizes()
        _ = self.begins, self.fetch_options  # which reject other words
        if self.bootstrap_servers is None and self.zookeeper is None:
            raise SettingsError(
                "The consumer has no brokers to connect to",
                key="bootstrap_servers",
                action="Pass bootstrap_servers or zookeeper",
            )
        if self.zookeeper is None and self.zookeeper_security is not None:
            raise SettingsError(
                "zookeeper_security has no effect without zookeeper",
                key="zookeeper_security",
                action="Pass zookeeper, or leave zookeeper_security out",
            )
        if self.is_physical and (self.zookeeper is None or self.bootstrap_servers is not None):
            raise SettingsError(
                "Brokers of Jafka and Kafka 0.7 are found only in ZooKeeper",
                key="zookeeper",
                action="Pass zookeeper, and not bootstrap_servers",
            )
        if self.group is None:
            return None
        if self.storage is OffsetsStorage.DUAL:
            raise SettingsError(
                "A consumer commits its group's offsets to one store",
                key="offsets_storage",
                action="Use zookeeper or kafka",
            )
        if self.storage is OffsetsStorage.ZOOKEEPER and self.zookeeper is None:
            raise SettingsError(
                "Offsets in ZooKeeper need the ZooKeeper of the group",
                key="zookeeper",
                action="Pass zookeeper",
            )
        if self.storage is OffsetsStorage.KAFKA and self.is_physical:
            raise SettingsError(
                "Brokers of Jafka and Kafka 0.7 cannot store offsets",
                key="offsets_storage",
                action="Use zookeeper",
            )
        configured = Group(self.group) if isinstance(self.group, str) else self.group
        group = configured.resolved(
            has_zookeeper=self.zookeeper is not None, physical=self.is_physical
        )
        if group.membership is Membership.COORDINATOR and self.storage is OffsetsStorage.ZOOKEEPER:
            raise SettingsError(
                "A group with a coordinator has its offsets in Kafka, too",
                key="offsets_storage",
                action="Use kafka, or membership=zookeeper",
            )
        return group


_SECTIONS = (
    ("source.security", "security"),
    ("source.listener", "security.listener"),
    ("source.topics", "the topics"),
    ("source.starting_offsets", "auto_offset_reset"),
    ("source.", ""),
    ("zookeeper.connect", "zookeeper"),
    ("zookeeper.session_timeout_s", "Group.session_timeout_s"),
    ("zookeeper.tls", "zookeeper_security.tls"),
    ("zookeeper.auth", "zookeeper_security.auth"),
    ("group.join.", "Group."),
)
"""Keys of a conf, and the arguments of a consumer for them."""


@contextmanager
def naming_arguments() -> Iterator[None]:
    """Raise errors with the arguments of a consumer in place of a conf's keys."""
    try:
        yield
    except EtlError as error:
        raise _with_arguments(error) from error.__cause__


def _with_arguments(error: EtlError) -> EtlError:
    """Return the error with arguments; the error itself if it names no key."""

    def reword(text: str) -> str:
        for section, argument in _SECTIONS:
            text = text.replace(section, argument)
        return text

    place: dict[str, Any] = {}
    for name, value in error.where.items():
        place[name] = reword(value) if name == "key" else value
    action = reword(error.action)
    if action == error.action and place == error.where:
        return error
    return type(error)(reword(error.message), action=action, **place)
