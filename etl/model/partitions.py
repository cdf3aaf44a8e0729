"""Partitions: identity, text form, leaders, offsets, and their assignment to group members.

Lives here: brokers, partitions, their leaders and offsets; how topics are retained; partitions
and offset intervals as text, as operators type them and errors print them; committed offsets;
what a member of a consumer group owns.

A committed offset is the expected side of a compare-and-set. In ZooKeeper the version of the
znode shows that another client wrote it since. A group coordinator has no versions: there the
commit metadata identifies the plan that committed, and each plan writes different metadata.

A missing value is None, never -1.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, overload

from etl.errors import SettingsError

Value = TypeVar("Value")
K = TypeVar("K")
V = TypeVar("V")


class BrokerFamily(str, Enum):
    """Which family of brokers a cluster belongs to."""

    KAFKA = "kafka"
    JAFKA = "jafka"


class Isolation(str, Enum):
    """Which transactional records a reader sees; the names of Kafka's own `isolation.level`."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True, order=True)
class Broker:
    """One Kafka server and where it listens."""

    id: int
    host: str
    port: int
    broker_type: str | None = field(default=None, compare=False)
    """Broker type or release, named as in `etl.kafka.broker_types`; None: the broker reports it in
    the handshake.
    """

    def __hash__(self) -> int:
        """Return the id: brokers are looked up for each range of a plan, and few share an id."""
        return self.id

    def __str__(self) -> str:
        return f"{self.id} at {self.host}:{self.port}"


class TopicPartition(
    NamedTuple("_Log", [("topic", str), ("partition", int), ("broker_id", int | None)])
):
    """The identity of one partition.

    On Jafka it is (topic, broker, partition). From Kafka 0.8 on it is (topic, partition); the
    broker is only today's address and `broker_id` is None. A tuple, because a hundred thousand
    partitions are used as dictionary keys, and hashing and comparing tuples needs no Python code.
    """

    __slots__ = ()

    def __new__(cls, topic: str, partition: int, broker_id: int | None = None) -> Self:
        """Raises ValueError for a partition below 0."""
        if partition < 0:
            raise ValueError(f"partition {partition} of topic {topic} is negative")
        return tuple.__new__(cls, (topic, partition, broker_id))

    @property
    def is_physical(self) -> bool:
        """True if offsets are byte positions (Jafka, Kafka 0.7): most are no record's, several
        records may share one, and none can be counted.
        """
        return self.broker_id is not None

    @property
    def unit(self) -> str:
        """Return the unit of a difference of two offsets."""
        if self.is_physical:
            return "byte"
        return "offset"

    @property
    def unled(self) -> str:
        """Return the end of a sentence on a partition without a leader."""
        if self.is_physical:
            return "is of a broker that is away, or that counts fewer partitions now"
        return "has no leader"

    @property
    def held_by(self) -> str:
        """Return what to check if the partition has no leader."""
        if self.is_physical:
            return f"Check broker {self.broker_id}"
        return "Check the brokers that host its replicas"

    @property
    def key(self) -> str:
        """Return the key within the topic, in ZooKeeper and in messages: `3`; `0-3` (broker,
        partition) on Jafka.
        """
        if self.broker_id is None:
            return str(self.partition)
        return f"{self.broker_id}-{self.partition}"

    @property
    def place(self) -> dict[str, Any]:
        """Return topic, partition and, on Jafka, broker_id, for errors and JSON documents."""
        place: dict[str, Any] = {"topic": self.topic, "partition": self.partition}
        if self.broker_id is not None:
            place["broker_id"] = self.broker_id
        return place

    def __str__(self) -> str:
        """Return the partition for a message: `clicks 3`, on Jafka `clicks 0-3`."""
        return f"{self.topic} {self.key}"


PartitionName = TopicPartition | tuple[str, int] | tuple[str, int, int | None]
"""A partition as programs name it: topic and number; on Jafka also the broker's id."""
AnyPartition = TypeVar("AnyPartition", bound=PartitionName)


def partition_of(name: PartitionName) -> TopicPartition:
    """Return the partition of this name."""
    if isinstance(name, TopicPartition):
        return name
    return TopicPartition(*name)


class ByPartition(dict[TopicPartition, Value]):
    """Values by partition, which are also found by a name of it: `("clicks", 0)`."""

    if TYPE_CHECKING:

        def __getitem__(self, name: PartitionName, /) -> Value: ...

    def __missing__(self, name: Any) -> Value:
        if isinstance(name, tuple) and not isinstance(name, TopicPartition):
            partition = _named(name)
            if partition is not None and dict.__contains__(self, partition):
                return dict.__getitem__(self, partition)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or dict.__contains__(self, _named(name))

    @overload
    def get(self, name: PartitionName, default: None = None, /) -> Value | None: ...
    @overload
    def get(self, name: PartitionName, default: Value, /) -> Value: ...
    @overload
    def get(self, name: PartitionName, default: K, /) -> Value | K: ...
    def get(self, name: Any, default: Any = None, /) -> Any:
        """Return the value of the partition, else the default."""
        return self[name] if name in self else default


def by_partition(values: Mapping[Any, Value]) -> ByPartition[Value]:
    """Return these values, given by partitions or their names."""
    return ByPartition((partition_of(name), value) for name, value in values.items())


def _named(name: object) -> TopicPartition | None:
    try:
        return TopicPartition(*name)  # type: ignore[misc]
    except (TypeError, ValueError):
        return None


def in_order(topic_partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Sort by topic, broker and partition, as documents and reports do."""
    partitions = list(topic_partitions)
    if any(partition.broker_id is not None for partition in partitions):
        return sorted(partitions, key=_order)
    return sorted(partitions)


def values_of(
    values: Mapping[TopicPartition, Value], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Value]:
    """Return the value of each of these partitions; partitions without one are left out."""
    return {partition: values[partition] for partition in partitions if partition in values}


def topics_of(partitions: Iterable[TopicPartition]) -> set[str]:
    """Return the topics of these partitions."""
    return {partition.topic for partition in partitions}


def select_keys(values: Mapping[K, V], keys: Collection[K]) -> dict[K, V]:
    """Return the values of these keys, without keys that have none."""
    return {key: value for key, value in values.items() if key in keys}


def drop_keys(values: Mapping[K, V], keys: Collection[K]) -> dict[K, V]:
    """Return the values of all other keys."""
    return {key: value for key, value in values.items() if key not in keys}


def known_values(items: Mapping[K, Value], value: Callable[[Value], V | None]) -> dict[K, V]:
    """Return one value of each item, by its key; items where it is None are left out."""
    found = {}
    for key, item in items.items():
        known = value(item)
        if known is not None:
            found[key] = known
    return found


def _order(partition: TopicPartition) -> tuple[str, int, int]:
    broker_id = -1
    if partition.broker_id is not None:
        broker_id = partition.broker_id
    return partition.topic, broker_id, partition.partition


@dataclass(frozen=True, slots=True)
class Leader:
    """The broker to fetch a partition from, and its leader epoch if brokers have epochs."""

    broker: Broker
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Log start and readable end of one partition at one moment."""

    log_start_offset: int
    end_offset: int
    """One past the last offset that may be read: the last stable offset under read_committed, else
    the high watermark.
    """
    high_watermark: int | None = None
    """One past the last offset that all in-sync replicas have; None: it equals the readable end."""
    boundaries: tuple[int, ...] | None = None
    """The only offsets at which a range may begin or end, ascending, with log start and end; None:
    any offset.
    """

    @property
    def held_back(self) -> int:
        """Offsets that may not be read yet, because a transaction at or below them is open
        (KIP-98).
        """
        if self.high_watermark is None:
            return 0
        return max(0, self.high_watermark - self.end_offset)


@dataclass(frozen=True, slots=True, order=True)
class UnverifiedOffset:
    """An unverified byte offset: an entry may begin there, or it may lie inside one."""

    partition: TopicPartition
    offset: int
    walk_from: int
    """The nearest offset at or below it at which an entry begins for sure."""
    until_offset: int
    """The nearest offset above it at which an entry ends for sure: the end of its segment or of
    the partition.
    """
    is_kept: bool = False
    """True if a stored plan keeps it: it was verified when the plan was made, so its own bytes
    suffice.
    """


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The result of verifying an unverified offset."""

    offset: int
    is_entry: bool | None
    """True if an entry begins there; None: the broker's answer does not show it."""
    wrong: str = ""
    """Why none does."""
    before: int | None = None
    """Start of the entry that contains the offset; None: not searched, or the log is damaged there.
    """
    after: int | None = None
    """End of that entry, where the next one begins."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The open transaction that bounds the readable part of a partition (KIP-664)."""

    producer_id: int
    first_offset: int
    """Its first offset in this partition."""
    transactional_id: str | None = None
    since_ms: int | None = None
    """Its start time. None, with the id: the brokers do not describe transactional ids to us."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The end offset of a leader epoch in the current leader's log (OffsetForLeaderEpoch,
    KIP-320).
    """

    asked_epoch: int
    epoch: int
    """The largest epoch at or below the requested one that the leader knows."""
    end_offset: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Fingerprint of the bytes of a Jafka partition right before an offset: it identifies the
    log.
    """

    until_offset: int
    size: int
    """In bytes."""
    digest: str
    """BLAKE2b of them, 8 bytes in hex."""


@dataclass(frozen=True, slots=True)
class OldestRecord:
    """The timestamp of the first record at or after an offset."""

    timestamp_ms: int | None = None
    why: str | None = None
    """Why it has none, or none is known."""


def uncounted(
    leaderless: Iterable[TopicPartition], led: Iterable[TopicPartition]
) -> frozenset[TopicPartition]:
    """Return Jafka partitions that their broker no longer counts, although it leads others of the
    topic.
    """
    there = {(partition.topic, partition.broker_id) for partition in led}
    missing = set()
    for partition in leaderless:
        if partition.is_physical and (partition.topic, partition.broker_id) in there:
            missing.add(partition)
    return frozenset(missing)


Lineage = tuple[tuple[int, int], ...]
"""Leader epochs of a partition, ascending, each with its first known offset."""


@dataclass(frozen=True, slots=True)
class KafkaGroup:
    """The live members of the group in Kafka, as its coordinator reports them."""

    members: Mapping[str, frozenset[TopicPartition] | None] = field(default_factory=dict)
    """Id and host of each member, and its assignment; None: unknown, as during a rebalance."""
    unknown: str | None = None
    """Why the members are unknown; None if the answer is complete."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention limits of a topic; None: no such limit."""

    ms: int | None = None
    bytes: int | None = None
    """Per partition."""
    is_compacted: bool = False
    """`cleanup.policy` contains `compact`: any offsets may be missing."""
    is_tiered: bool = False
    """`remote.storage.enable` (KIP-405): an answer without records may only mean that the remote
    storage is slow.
    """


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The cleanup policy of a topic, and so the meaning of offsets that no record batch has."""

    is_compacted: bool | None = None
    """None: unknown."""
    is_tiered: bool = False

    @property
    def explains_missing(self) -> bool:
        """True if compaction explains missing offsets; otherwise they are lost."""
        return bool(self.is_compacted)

    @property
    def ends_in_silence(self) -> bool:
        """True if answers without records prove that no record is left up to the log end."""
        return bool(self.is_compacted) and not self.is_tiered


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Metadata v0 does not mark internal topics; old consumers recognise them by name."""


_KEY = re.compile(r"(?:(0|[1-9][0-9]{0,9})-)?(0|[1-9][0-9]{0,9})")


@lru_cache(maxsize=16_384)
def _numbers_of_key(key: str) -> tuple[int, int | None] | None:
    """Return the partition number and the broker id of a key; None if it is invalid.

    The topics of a plan have the same few keys again and again.
    """
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    broker, partition = found.groups()
    broker_id = None
    if broker is not None:
        broker_id = int(broker)
    return int(partition), broker_id


def parse_partition_key(topic: str, key: str) -> TopicPartition | None:
    """Return the partition of a key, or None if it is not a valid key. `03` is not: its znode
    differs from that of `3`.
    """
    numbers = _numbers_of_key(key)
    if numbers is None:
        return None
    return TopicPartition(topic, *numbers)


Stretch = tuple[TopicPartition, int, int]
"""An offset interval of a partition: partition, from (inclusive), until (exclusive)."""
FORM_OF_PARTITION = (
    "PARTITION is a number, e.g. 3; where brokers have logs of their own (0.7 family) "
    "BROKER-PARTITION, e.g. 0-3"
)
_LOG = re.compile(r"(?P<topic>.+):(?P<key>(\d{1,10}-)?\d{1,9})")
_STRETCH = re.compile(r"(?P<log>.*):(?P<start>\d{1,19})-(?P<until>\d{1,19})")
_IN_NO_TOPIC = re.compile(r"[/\x00-\x1f\x7f-\x9f]")


def render_partition(partition: TopicPartition) -> str:
    """Format a partition as `TOPIC:PARTITION`."""
    return f"{partition.topic}:{partition.key}"


def quoted_partition(partition: TopicPartition) -> str:
    """Return the partition, quoted for a shell."""
    return shlex.quote(render_partition(partition))


def may_be_topic(text: str) -> bool:
    """True if brokers of some type allow a topic of this name: Jafka forbids less than Kafka ('/',
    control characters, '.' and '..').
    """
    return bool(text) and text not in (".", "..") and not _IN_NO_TOPIC.search(text)


def parse_partition(text: str) -> TopicPartition | None:
    """Parse a partition that `render_partition` wrote; None for any other text.

    The last ':' separates the partition, because topics of Jafka may contain colons.
    """
    found = _LOG.fullmatch(text)
    if found and may_be_topic(found["topic"]):
        return parse_partition_key(found["topic"], found["key"])
    return None


def render_intervals(stretches: Iterable[Stretch]) -> str:
    """Format intervals as `TOPIC:PARTITION:FROM-UNTIL` (until exclusive), separated by spaces."""
    texts = []
    for partition, start, until in stretches:
        texts.append(f"{render_partition(partition)}:{start}-{until}")
    return " ".join(texts)


def parse_interval(text: str) -> Stretch | None:
    """Parse one interval that `render_intervals` wrote; None for another text or an empty
    interval.
    """
    match = _STRETCH.fullmatch(text)
    if match is None:
        return None
    partition = parse_partition(match["log"])
    start = int(match["start"])
    until = int(match["until"])
    if partition is None or start >= until:
        return None
    return partition, start, until


def parse_intervals(text: str) -> tuple[Stretch, ...]:
    """Parse intervals that `render_intervals` wrote, for topics without spaces.

    Raises ValueError for another text.
    """
    intervals = []
    for word in text.split():
        interval = parse_interval(word)
        if interval is None:
            raise ValueError(f"{text!r} names no offset intervals")
        intervals.append(interval)
    return tuple(intervals)


class OffsetsStorage(str, Enum):
    """Where the group's offsets are kept; plans are always in ZooKeeper."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    """In the group's coordinator (0.8.2 and later)."""
    DUAL = "dual"
    """In both, during a migration of consumers from one to the other; the larger one counts."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The **next** offset of the group, with what detects a commit by another client."""

    offset: int | None = None
    """None: no offset is committed. With `dual`: the larger one."""
    znode_version: int | None = None
    """Version of its znode; None without a znode, or if offsets are in Kafka."""
    metadata: str | None = None
    """Commit metadata in Kafka: `<number>:<id>` of a plan of this pipeline, else unchanged; None:
    no offset is stored.
    """
    differing: tuple[int | None, int | None] | None = None
    """With `dual`, if they differ: the offset in ZooKeeper and the one in Kafka."""

    @property
    def in_zookeeper(self) -> Committed:
        """Return the part in ZooKeeper."""
        offset = self.offset
        if self.differing:
            offset, _ = self.differing
        return Committed(offset, self.znode_version)

    @property
    def in_kafka(self) -> Committed:
        """Return the part in Kafka."""
        offset = self.offset
        if self.differing:
            _, offset = self.differing
        return Committed(offset, None, self.metadata)

    def moved(self, to: int, metadata: str, storage: OffsetsStorage) -> Committed:
        """Return the committed offset after a plan with that metadata committed `to`.

        It is one write later in each storage that had another offset.
        """
        if storage is OffsetsStorage.ZOOKEEPER:
            version = 0
            if self.znode_version is not None:
                version = self.znode_version + 1
            return Committed(to, version)
        if storage is OffsetsStorage.KAFKA:
            return Committed(to, None, metadata)
        zookeeper, kafka = self.in_zookeeper, self.in_kafka
        if zookeeper.offset != to:
            zookeeper = zookeeper.moved(to, metadata, OffsetsStorage.ZOOKEEPER)
        if kafka.offset != to:
            kafka = replace(kafka, offset=to, metadata=metadata)
        return Committed(to, zookeeper.znode_version, kafka.metadata)

    def is_at(self, position: int) -> bool:
        """True if each place holds this position."""
        return self.offset == position and self.differing is None


NOTHING_COMMITTED = Committed()


class Membership(str, Enum):
    """Which mechanism assigns the partitions of a group."""

    ZOOKEEPER = "zookeeper"
    """The members themselves, by owner nodes: Kafka 0.8's consumers, and Jafka's."""
    COORDINATOR = "coordinator"
    """A broker: Kafka's consumers from 0.9 on."""


BY_COORDINATOR = "consumer"
"""Name of the strategy if the coordinator assigned (consumer protocol)."""


class GroupProtocol(str, Enum):
    """By which requests a member speaks with its coordinator."""

    CLASSIC = "classic"
    """0.9 to 4.x: the members divide the logs, all of them at once."""
    CONSUMER = "consumer"
    """4.0 on (KIP-848): the coordinator divides them, one by one."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """Which cluster offsets are of."""

    family: BrokerFamily
    name: str
    """Kafka's cluster id, or the conf's name for the cluster where brokers have none."""
    id: str | None = None
    """The id that the brokers report, or reported for the newest plan; None if it is the name, or
    was never reported (`etl.decide.recreated_or_truncated`).
    """


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The partitions that a group member owns after a rebalance."""

    member_id: str
    """In ZooKeeper the name of the node below `ids`; of a coordinator the member id."""
    membership: Membership
    strategy: str
    """How the group divides its logs: `range`, `roundrobin`, `cooperative-sticky`, ..."""
    generation: int | None
    """Generation of a classic group, member epoch of the consumer protocol; None in ZooKeeper."""
    partitions: frozenset[TopicPartition]
    """May be empty: the group has more members than logs."""
    instance_id: str | None = None
    """The name of a static member, where it is one."""


_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def is_of_instance(member_id: str, instance_id: str) -> bool:
    """True if a member id of a classic group belongs to this static member.

    Brokers create the member id INSTANCE_ID-UUID each time that the member joins.
    """
    return re.fullmatch(f"{re.escape(instance_id)}-{_UUID}", member_id) is not None


@dataclass(frozen=True, slots=True)
class RebalanceStatistics:
    """The cost of membership in a run."""

    rebalances: int = 0
    """Number of rebalances, the first join included."""
    seconds: float = 0.0
    """Their total duration, from the wish to the settled assignment."""
    tries: int = 0
    """How often others were in the way on the way there."""
    lost: int = 0
    """Number of memberships that ended against our wish: expired sessions, unknown member ids."""
    heartbeat_age_s: float | None = None
    """How long ago the group's side last answered that we are a member; None where nothing beats.
    """

    def plus(self, earlier: RebalanceStatistics | None) -> RebalanceStatistics:
        """Return the sum with an earlier membership of the same run that lost its session."""
        if earlier is None:
            return self
        return replace(
            self,
            rebalances=self.rebalances + earlier.rebalances,
            seconds=self.seconds + earlier.seconds,
            tries=self.tries + earlier.tries,
            lost=self.lost + earlier.lost,
        )


@dataclass(frozen=True, slots=True)
class RejectedCommit:
    """A rejected commit: no offset was moved, nothing is fetched. In ZooKeeper the plan was not
    stored either.
    """

    why: str


def cleanup_of(retention: Retention | None, *, said_to_be_compacted: bool) -> Cleanup:
    """Return what missing offsets of a topic mean, by its brokers' settings (None: unknown) and by
    the conf.
    """
    if retention is None and said_to_be_compacted:
        return Cleanup(True)
    if retention is None:
        return Cleanup(None)
    return Cleanup(retention.is_compacted or said_to_be_compacted, retention.is_tiered)


_MISSPELT = re.compile(r".*:[0-9-]*|:.*", re.DOTALL)
"""Names that are no topic, because the operator meant a partition."""


@dataclass(frozen=True, slots=True)
class Named:
    """A topic, or one partition of it, that an operator named."""

    topic: str
    partition: TopicPartition | None = None
    """None: all of the topic's."""

    def __str__(self) -> str:
        if self.partition is None:
            return self.topic
        return render_partition(self.partition)

    def covers(self, partition: TopicPartition) -> bool:
        """True if the name includes the partition."""
        # `clicks:0` is no partition of Jafka: each broker there has a partition 0 of its own, and
        # `clicks:1-0` is that of broker 1.
        return partition.topic == self.topic and self.partition in (None, partition)

    def covers_any(self, partitions: Iterable[TopicPartition]) -> bool:
        """True if the name includes one of the partitions."""
        return any(self.covers(partition) for partition in partitions)


def is_named(partition: TopicPartition, names: Iterable[Named]) -> bool:
    """True if one of the names includes the partition."""
    return any(name.covers(partition) for name in names)


def parse_named(text: str) -> Named:
    """`TOPIC` or `TOPIC:PARTITION`. Raises SettingsError."""
    partition = parse_partition(text)
    if partition is not None:
        return Named(partition.topic, partition)
    if not may_be_topic(text) or _MISSPELT.fullmatch(text):
        raise SettingsError(
            f"{text!r} names no log",
            key="--partition",
            action=f"Write it in the form TOPIC or TOPIC:PARTITION; {FORM_OF_PARTITION}",
        )
    return Named(text)
