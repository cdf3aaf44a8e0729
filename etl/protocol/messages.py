"""What is asked of brokers and what they answer, in words of no generation. No I/O, no bytes but
the records themselves.

A generation of brokers (`generations`) maps these to bytes and back; what the records field holds
belongs to `records`. The wire's numbers for "there is none" are None here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from etl.errors import Refusal
from etl.model.partitions import Broker, BrokerPartition, Isolation, Leader

LATEST = -1
"""Instead of a time: the readable end (high watermark, or last stable offset under read_committed).
"""
EARLIEST = -2
"""Instead of a time: the log start offset."""
_LOGS_NAMED = 5
_END_OF_TIME = 2**63


def reject_wrong_times(times: Mapping[BrokerPartition, int], *, least: int = 0) -> None:
    """Reject times that ListOffsets would take for words: below 0, or with `least` below LATEST and
    EARLIEST.

    -3 is the record with the largest timestamp (KIP-734), -4 and -5 are of tiered storage. Raises ValueError.
    """
    for log, when in times.items():
        if not least <= when < _END_OF_TIME:
            what = f"The target time for partition {log.topic}-{log.key} is {when}."
            kinds = (
                "LATEST, EARLIEST or milliseconds since 1970"
                if least
                else "milliseconds since 1970, and cannot be negative"
            )
            raise ValueError(f"{what} A target time is {kinds}.")


def reject_negative(**numbers: int | None) -> None:
    """Reject negative numbers, which brokers take for "none", "any" or "no limit". Raises
    ValueError with the name.
    """
    for name, number in numbers.items():
        if number is not None and number < 0:
            raise ValueError(f"{name} is {number}, and cannot be negative")


class EntryLayout(Enum):
    """How the entries of a records field begin: the one thing about records that only the broker's
    generation tells.
    """

    LOGICAL = "offset, length, record batch or message"
    """Kafka 0.8 and later; the magic byte, at the same place in all of them, tells the rest."""
    PHYSICAL = "length, message"
    """Jafka and Kafka 0.7: an entry's offset is the byte position at which it begins."""


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """One log in a Fetch: from which offset, and how many bytes at most."""

    log: BrokerPartition
    offset: int
    max_bytes: int
    leader_epoch: int | None = None
    """The epoch that the metadata told: a broker that is behind or deposed then refuses (KIP-320).
    """
    topic_id: str | None = None
    """The id that the topic must still have, where brokers know ids (KIP-516): one that was made
    again is then refused.
    """


def in_serving_order(wanted: Sequence[FetchTarget]) -> tuple[FetchTarget, ...]:
    """`wanted` as a broker serves it: by topic in order of first appearance, since a topic is
    written once.

    The order matters (KIP-74): the first log that has records gets its first record batch whole,
    the later ones what is left of the request's size.

    Raises ValueError when a log is named twice: a broker refuses such a request.
    """
    topics: dict[str, list[FetchTarget]] = {}
    for each in wanted:
        topics.setdefault(each.log.topic, []).append(each)
    ordered = tuple(each for group in topics.values() for each in group)
    if len({each.log for each in ordered}) < len(ordered):
        twice = sorted(f"{each.log.topic}/{each.log.partition}" for each in ordered)
        raise ValueError(f"a fetch may name a log once only: {', '.join(twice)}")
    return ordered


@dataclass(frozen=True, slots=True)
class Fetch:
    """Records of several logs, asked for at once."""

    wanted: tuple[FetchTarget, ...]
    """In the order in which they are served, see `in_serving_order`."""
    isolation: Isolation
    max_bytes: int
    """Bounds the whole answer; each target's own bounds its part."""
    max_wait_ms: int
    min_bytes: int

    @property
    def place(self) -> dict[str, object]:
        """What an error names that cannot know which of the logs it was."""
        first = self.wanted[0]
        if len(self.wanted) == 1:
            return {**first.log.place, "offset": first.offset}
        named = ", ".join(str(each.log) for each in self.wanted[:_LOGS_NAMED])
        return {
            "one_of": named
            + (
                f" and {len(self.wanted) - _LOGS_NAMED} more"
                if len(self.wanted) > _LOGS_NAMED
                else ""
            )
        }


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What one Fetch answer says of one Kafka partition. The wire's -1 is None here.

    `records` is a view of the receive buffer, not a copy: it is only good until the next answer is
    received into that buffer, so what `Cursor.feed` returns must be read to its end before.
    """

    topic: str
    partition: int
    refusal: Refusal | None
    high_watermark: int | None
    """None: the generation's answers have no such field."""
    last_stable_offset: int | None
    """None: the version of the answer has no such field."""
    log_start_offset: int | None
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of the aborted transactions that overlap this answer (KIP-98)."""
    records: memoryview
    """Record batches or message sets; the last one may be cut off. Empty where the wire says null.
    """
    proves_empty: bool = False
    """True: if `records` is empty, then there is nothing to read at the asked offset.

    A broker also answers empty when it throttles, and when the partitions before this one in the
    same answer used up the bytes (KIP-74). So this may be said only of a partition whose answer was
    not throttled and before which no other partition of the answer had records.
    """
    layout: EntryLayout = EntryLayout.LOGICAL
    broker_id: int | None = None
    """Of the log, where its identity has one (0.7 family)."""
    asked_offset: int = 0
    """What was asked for: `records` may begin below it, or, where offsets are byte positions,
    begins there.
    """


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One Fetch response. The records of its partitions are slices of the buffer it was read from."""

    throttle_ms: int
    refusal: Refusal | None
    """Of the whole request."""
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One log and who leads it now."""

    log: BrokerPartition
    refusal: Refusal | None
    leader: Leader | None
    """None: no leader at the moment, wait and ask again."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic, or why the broker does not tell of it."""

    topic: str
    refusal: Refusal | None
    topic_id: str | None
    """None where brokers have no topic ids (before 2.8)."""
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The answer to one Metadata request."""

    cluster_id: str | None
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]

    @property
    def leaders(self) -> dict[BrokerPartition, Leader]:
        """Every log that has a leader."""
        return {each.log: each.leader for each in self._partitions() if each.leader is not None}

    @property
    def leaderless(self) -> frozenset[BrokerPartition]:
        """Every log that is known and has no leader."""
        return frozenset(each.log for each in self._partitions() if each.leader is None)

    @property
    def topic_ids(self) -> dict[str, str]:
        """Topic ids, where the broker has them."""
        return {
            name: topic.topic_id
            for name, topic in self.topics.items()
            if topic.topic_id is not None
        }

    def _partitions(self) -> Iterable[PartitionMetadata]:
        return (partition for topic in self.topics.values() for partition in topic.partitions)


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """What a broker answered for one log and one time."""

    log: BrokerPartition
    refusal: Refusal | None
    offset: int | None
    """None: no record that late."""
    timestamp_ms: int | None
    leader_epoch: int | None
    boundaries: tuple[int, ...] | None = None
    """Of LATEST where offsets are byte positions: every offset at which a range may be cut,
    ascending, the end among them.
    """
    is_last_stable: bool = False
    """Of LATEST: the last stable offset, above which the high watermark may lie (KIP-98). Brokers
    without transactions know one end.
    """


@dataclass(frozen=True, slots=True)
class ToldEpochEnd:
    """What a broker answered of one log and one epoch."""

    refusal: Refusal | None
    epoch: int | None
    end_offset: int | None
    """None: the leader's log knows no such epoch (an epoch above its own, or a log without epochs).
    """


ToldEpochEnds = dict[BrokerPartition, ToldEpochEnd]


@dataclass(frozen=True, slots=True)
class ToldCoordinator:
    """Who keeps the offsets of a group, or why nobody can be named."""

    refusal: Refusal | None
    broker: Broker


@dataclass(frozen=True, slots=True)
class ToldMembers:
    """Who is in a group that brokers keep, with the logs that each reads, None where that is not
    known.
    """

    refusal: Refusal | None
    members: Mapping[str, frozenset[BrokerPartition] | None]
