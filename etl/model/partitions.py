"""What is a partition, how is it written as text, and which part of it does a group member own?

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Self

from etl.errors import SettingsError


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
    generation: str | None = field(default=None, compare=False)
    """How it must be spoken to, as `etl.kafka.families` names it; None: it tells that
    itself when it is greeted.
    """

    def __str__(self) -> str:
        return f"{self.id} at {self.host}:{self.port}"


class BrokerPartition(
    NamedTuple("_Log", [("topic", str), ("partition", int), ("broker_id", int | None)])
):
    """The identity of one log.

    On the 0.7 family a log is (topic, broker, partition). From Kafka 0.8 on it is (topic,
    partition), the broker is only today's address, and `broker_id` is None. Its `key` is made here
    and nowhere else, and read in `etl.ledger.registrations`. A tuple, for what is known of a
    hundred thousand logs is looked up by them, and Python computes no hash or order of a tuple.
    """

    __slots__ = ()

    def __new__(cls, topic: str, partition: int, broker_id: int | None = None) -> Self:
        """Raises ValueError for a partition below 0."""
        if partition < 0:
            raise ValueError(f"partition {partition} of topic {topic} is negative")
        return tuple.__new__(cls, (topic, partition, broker_id))

    @property
    def is_physical(self) -> bool:
        """Its offsets are byte positions (0.7 family): most are no record's, several records may
        share one, none can be counted.
        """
        return self.broker_id is not None

    @property
    def unit(self) -> str:
        """What a difference of two of its offsets counts."""
        return "byte" if self.is_physical else "offset"

    @property
    def unled(self) -> str:
        """What it is where nobody leads it: the end of a sentence about the partition."""
        return (
            "is of a broker that is away, or that counts fewer partitions now"
            if self.is_physical
            else "has no leader"
        )

    @property
    def held_by(self) -> str:
        """Who has it, for a person who is to look."""
        return (
            f"broker {self.broker_id}" if self.is_physical else "the brokers that hold its replicas"
        )

    @property
    def key(self) -> str:
        """What tells it from the topic's other logs, in ZooKeeper and to people: `3`; `0-3`
        (broker, partition) on the 0.7 family.
        """
        return (
            str(self.partition) if self.broker_id is None else f"{self.broker_id}-{self.partition}"
        )

    @property
    def place(self) -> dict[str, Any]:
        """The log in an error and in a document for programs: topic, partition, and broker_id where
        it has one.
        """
        place: dict[str, Any] = {"topic": self.topic, "partition": self.partition}
        return place if self.broker_id is None else {**place, "broker_id": self.broker_id}

    def __str__(self) -> str:
        """The log in a sentence: `clicks 3`, `clicks 0-3`."""
        return f"{self.topic} {self.key}"


def in_order(logs: Iterable[BrokerPartition]) -> list[BrokerPartition]:
    """As documents and reports have them: by topic, broker, partition."""
    found = list(logs)
    return sorted(found, key=_order if any(log.broker_id is not None for log in found) else None)


def _order(log: BrokerPartition) -> tuple[str, int, int]:
    return log.topic, -1 if log.broker_id is None else log.broker_id, log.partition


@dataclass(frozen=True, slots=True)
class Leader:
    """The broker to fetch a log from now, and the epoch of its election where brokers tell it."""

    broker: Broker
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Log start and readable end of one log at one moment."""

    log_start_offset: int
    end_offset: int
    """One past the last offset that may be read: the last stable offset under read_committed, else
    the high watermark.
    """
    high_watermark: int | None = None
    """One past the last offset that all in-sync replicas have, where that lies above the readable
    end; None: nothing does.
    """
    boundaries: tuple[int, ...] | None = None
    """The only offsets at which a range of this log may begin or end, ascending, its start and end
    among them; None: all are.
    """

    @property
    def held_back(self) -> int:
        """Offsets that may not be read yet, because a transaction at or below them is open
        (KIP-98).
        """
        return max(0, (self.high_watermark or 0) - self.end_offset)


@dataclass(frozen=True, slots=True, order=True)
class UnverifiedOffset:
    """A byte position of a physical log that somebody told, and no broker named: an entry may begin
    there, or it may lie inside one.
    """

    log: BrokerPartition
    offset: int
    walk_from: int
    """The nearest offset at or below it at which an entry begins for sure."""
    until_offset: int
    """The nearest offset above it at which an entry ends for sure: where its segment does, or the
    log.
    """
    is_kept: bool = False
    """A plan that is stored keeps it: it was looked at when that was made, so its own bytes will
    do.
    """


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What the bytes of a log say of a doubted offset."""

    offset: int
    is_entry: bool | None
    """Whether an entry begins there; None: the broker gave nothing by which to tell."""
    wrong: str = ""
    """Why none does."""
    before: int | None = None
    """Where the entry begins inside of which the offset lies; None: nobody looked so far back, or
    the log is damaged there.
    """
    after: int | None = None
    """Where that one ends, and the next begins."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What the brokers tell of the transaction at which the readable part of a log ends (KIP-664)."""

    producer_id: int
    first_offset: int
    """Of its records in this log."""
    transactional_id: str | None = None
    since_ms: int | None = None
    """When it began. None of both: the brokers do not tell us of transactional ids."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where the records that were written up to one leader epoch end in the leader's log of now
    (OffsetForLeaderEpoch, KIP-320).
    """

    asked_epoch: int
    epoch: int
    """The largest epoch at or below the asked one that the leader's log knows."""
    end_offset: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The bytes that a physical log holds right before an offset: by them it is known again."""

    until_offset: int
    size: int
    """In bytes."""
    digest: str
    """BLAKE2b of them, 8 bytes in hex."""


@dataclass(frozen=True, slots=True)
class OldestRecord:
    """What its broker tells of the time of the first record from an offset on."""

    timestamp_ms: int | None = None
    why: str | None = None
    """Why it has none, or none is known."""


def uncounted(
    leaderless: Iterable[BrokerPartition], led: Iterable[BrokerPartition]
) -> frozenset[BrokerPartition]:
    """Physical logs that their broker counts no more, though it is there and has others of the
    topic.
    """
    there = {(log.topic, log.broker_id) for log in led}
    return frozenset(
        log for log in leaderless if log.is_physical and (log.topic, log.broker_id) in there
    )


Lineage = tuple[tuple[int, int], ...]
"""Leader epochs of a log, ascending, each with the first offset that is known to be of it."""


@dataclass(frozen=True, slots=True)
class KafkaGroup:
    """Who is alive in Kafka's own group of our group's name, as its coordinator tells."""

    members: Mapping[str, frozenset[BrokerPartition] | None] = field(default_factory=dict)
    """Id and host of each member, and the logs that it reads; None: not known, as in the middle of
    a rebalance.
    """
    unknown: str | None = None
    """Why nobody could tell; None where the answer is whole."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What a topic's brokers say of how long they keep its records; None: no such limit."""

    ms: int | None = None
    bytes: int | None = None
    """Of each partition."""
    is_compacted: bool = False
    """`cleanup.policy` contains `compact`: offsets may be missing anywhere in a log."""
    is_tiered: bool = False
    """`remote.storage.enable` (KIP-405): an answer without records may only mean that the remote
    storage is slow.
    """


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What a reader knows of how a topic is cleaned up, and so what offsets mean that no record
    batch has.
    """

    is_compacted: bool | None = None
    """None: the brokers do not tell."""
    is_tiered: bool = False

    @property
    def explains_missing(self) -> bool:
        """Missing offsets are compaction's. Else they are lost."""
        return bool(self.is_compacted)

    @property
    def ends_in_silence(self) -> bool:
        """Answers without records prove that nothing is left up to the end of the log."""
        return bool(self.is_compacted) and not self.is_tiered


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Metadata v0 does not mark them, and old consumers know them by their names."""


_KEY = re.compile(r"((0|[1-9][0-9]{0,9})-)?(0|[1-9][0-9]{0,9})")


def parse_partition_key(topic: str, key: str) -> BrokerPartition | None:
    """The log that `key` names, or None when it is no key (somebody else's znode). `03` is none:
    its znode is another than that of `3`.
    """
    if not _KEY.fullmatch(key):
        return None
    broker, dash, partition = key.rpartition("-")
    return BrokerPartition(topic, int(partition), int(broker) if dash else None)


Stretch = tuple[BrokerPartition, int, int]
"""A log, from, until."""
FORM_OF_PARTITION = "PARTITION is a number, e.g. 3; where brokers have logs of their own (0.7 family) BROKER-PARTITION, e.g. 0-3"
_LOG = re.compile(r"(?P<topic>.+):(?P<key>(\d{1,10}-)?\d{1,9})")
_STRETCH = re.compile(r"(?P<log>.*):(?P<start>\d{1,19})-(?P<until>\d{1,19})")
_IN_NO_TOPIC = re.compile(r"[/\x00-\x1f\x7f-\x9f]")


def render_log(log: BrokerPartition) -> str:
    """`TOPIC:PARTITION`."""
    return f"{log.topic}:{log.key}"


def quoted_log(log: BrokerPartition) -> str:
    """The same as a shell takes it."""
    return shlex.quote(render_log(log))


def may_be_topic(text: str) -> bool:
    """Whether brokers of any generation may have a topic of this name: those of the 0.7 family
    forbid less than Kafka (a '/', control characters, '.' and '..')."""
    return bool(text) and text not in (".", "..") and not _IN_NO_TOPIC.search(text)


def parse_log(text: str) -> BrokerPartition | None:
    """The log that `render_log` names; None for any other text. The last ':' is the one before the
    partition, for topics may have some.
    """
    found = _LOG.fullmatch(text)
    return (
        parse_partition_key(found["topic"], found["key"])
        if found and may_be_topic(found["topic"])
        else None
    )


def render_intervals(stretches: Iterable[Stretch]) -> str:
    """Each as `TOPIC:PARTITION:FROM-UNTIL`, until exclusive, with a space between them."""
    return " ".join(f"{render_log(log)}:{start}-{until}" for log, start, until in stretches)


def parse_interval(text: str) -> Stretch | None:
    """One of those that `render_intervals` wrote; None for any other text, and for a stretch
    without an offset.
    """
    found = _STRETCH.fullmatch(text)
    log = parse_log(found["log"]) if found else None
    if not found or log is None or int(found["start"]) >= int(found["until"]):
        return None
    return log, int(found["start"]), int(found["until"])


def parse_intervals(text: str) -> tuple[Stretch, ...]:
    """What `render_intervals` wrote of topics without a space, as Kafka's are. Raises ValueError
    for anything else.
    """
    found = [parse_interval(one) for one in text.split()]
    if None in found:
        raise ValueError(f"{text!r} names no stretches of offsets")
    return tuple(one for one in found if one is not None)


class OffsetsStorage(str, Enum):
    """Where the group's offsets are; plans are in ZooKeeper in every case."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    """In the group's coordinator (0.8.2 and later)."""
    DUAL = "dual"
    """In both, while consumers go from one to the other; the larger one counts."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The group's **next** offset, and what tells whether it was written since."""

    offset: int | None = None
    """None: there is none. Kept in both places, the larger one."""
    version: int | None = None
    """Of its znode; None without one, or where offsets are in Kafka."""
    word: str | None = None
    """What stands beside it in Kafka: of a plan of this pipeline `<number>:<id>`, else as it is
    there; None: nothing is stored there.
    """
    apart: tuple[int | None, int | None] | None = None
    """Kept in both places, where they differ: the offset in ZooKeeper, and in Kafka."""

    @property
    def in_zookeeper(self) -> Committed:
        """That side of it."""
        return Committed(self.apart[0] if self.apart else self.offset, self.version)

    @property
    def in_kafka(self) -> Committed:
        """The other one."""
        return Committed(self.apart[1] if self.apart else self.offset, None, self.word)

    def moved(self, to: int, word: str, storage: OffsetsStorage) -> Committed:
        """What there is once a plan with that word has moved it there: one write further, in the
        places that were elsewhere.
        """
        if storage is OffsetsStorage.ZOOKEEPER:
            return Committed(to, 0 if self.version is None else self.version + 1)
        if storage is OffsetsStorage.KAFKA:
            return Committed(to, None, word)
        zookeeper, kafka = self.in_zookeeper, self.in_kafka
        if zookeeper.offset != to:
            zookeeper = zookeeper.moved(to, word, OffsetsStorage.ZOOKEEPER)
        if kafka.offset != to:
            kafka = replace(kafka, offset=to, word=word)
        return Committed(to, zookeeper.version, kafka.word)

    def is_at(self, position: int) -> bool:
        """Whether it is there in each place."""
        return self.offset == position and self.apart is None


NOTHING_COMMITTED = Committed()


class Membership(str, Enum):
    """Who says which member of a group owns which log."""

    ZOOKEEPER = "zookeeper"
    """The members themselves, by owner nodes: Kafka 0.8's consumers, and Jafka's."""
    COORDINATOR = "coordinator"
    """A broker: Kafka's consumers from 0.9 on."""


BY_COORDINATOR = "consumer"
"""The strategy of a share that the coordinator divided, as it likes: of the consumer protocol."""


class GroupProtocol(str, Enum):
    """By which requests a member speaks with its coordinator."""

    CLASSIC = "classic"
    """0.9 to 4.x: the members divide the logs, all of them at once."""
    CONSUMER = "consumer"
    """4.0 on (KIP-848): the coordinator divides them, one by one."""


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What one member of a group owns after a rebalance has settled."""

    member_id: str
    """In ZooKeeper the name of the node below `ids`; of a coordinator the member id."""
    membership: Membership
    strategy: str
    """How the group divides its logs: `range`, `roundrobin`, `cooperative-sticky`, ..."""
    generation: int | None
    """Of a coordinator's classic group its generation, of its consumer protocol the member's epoch;
    None in ZooKeeper, which has none.
    """
    logs: frozenset[BrokerPartition]
    """May be empty: the group has more members than logs."""
    instance_id: str | None = None
    """The name of a static member, where it is one."""


@dataclass(frozen=True, slots=True)
class RebalanceStatistics:
    """What membership cost a run."""

    rebalances: int = 0
    """How often a share was taken, the first time included."""
    seconds: float = 0.0
    """How long all of that took, from the wish to the settled share."""
    tries: int = 0
    """How often others were in the way on the way there."""
    lost: int = 0
    """How often the membership ended without our wish: an expired session, a member that nobody
    knew any more.
    """
    heartbeat_age_s: float | None = None
    """How long ago the group's side last answered that we are a member; None where nothing beats.
    """

    def beside(self, earlier: RebalanceStatistics | None) -> RebalanceStatistics:
        """The same, with what an earlier membership of the run cost, where there was one: in a
        session that was lost.
        """
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
    """A hand-over that was refused: nothing was moved, and nothing will be fetched. In ZooKeeper
    nothing was stored either.
    """

    why: str


def cleanup_of(told: Retention | None, *, said_to_be_compacted: bool) -> Cleanup:
    """What missing offsets of a topic mean, by what its brokers tell (None: nothing) and what an
    operator says.
    """
    if told is None:
        return Cleanup(True if said_to_be_compacted else None)
    return Cleanup(told.is_compacted or said_to_be_compacted, told.is_tiered)


_MISSPELT = re.compile(r".*:[0-9-]*|:.*", re.DOTALL)
"""No topic's name, though one might be called so, for what is meant is a partition."""


@dataclass(frozen=True, slots=True)
class Named:
    """What an operator named: a topic, or one partition of it."""

    topic: str
    log: BrokerPartition | None = None
    """None: all of the topic's."""

    def __str__(self) -> str:
        return self.topic if self.log is None else render_log(self.log)

    def covers(self, log: BrokerPartition) -> bool:
        """Whether the log is meant."""
        return log.topic == self.topic and self.log in (None, log)


def parse_named(text: str) -> Named:
    """`TOPIC` or `TOPIC:PARTITION`. Raises SettingsError."""
    log = parse_log(text)
    if log is not None:
        return Named(log.topic, log)
    if not may_be_topic(text) or _MISSPELT.fullmatch(text):
        raise SettingsError(
            f"{text!r} names no log",
            key="LOG",
            check=f"the form TOPIC or TOPIC:PARTITION; {FORM_OF_PARTITION}",
        )
    return Named(text)


def parse_partition(topic: str, text: str) -> Named:
    """A partition of a topic. Raises SettingsError."""
    log = parse_partition_key(topic, text)
    if log is None:
        raise SettingsError(
            f"{text!r} names no partition", key="--partition", check=FORM_OF_PARTITION
        )
    return Named(topic, log)
