"""Brokers, logs, and what is known of a log: who leads it, where it starts and ends, how its topic
is kept.

A missing thing is None, never -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Self


class Dialect(str, Enum):
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
    """How it must be spoken to, as `protocol.generations.choice` names it; None: it tells that
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
    and nowhere else, and read in `protocol.zookeeper.payloads`. A tuple, for what is known of a
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
class Extent:
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
class DoubtedOffset:
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
