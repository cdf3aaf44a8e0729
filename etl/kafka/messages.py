"""What are brokers asked and what do they answer, independent of the broker type?

Values without bytes, except the records field itself. A broker type (etl/kafka/families.py) encodes
the questions and decodes the answers; what the records field holds is decoded in etl/records.
The protocol's -1 and "" for a missing value are None here.

Lives here: metadata, offsets, fetches, committed offsets, and the messages of group members:
classic protocol (0.9 to 4.x; the leader assigns) and consumer protocol (KIP-848, 4.0; the
coordinator assigns).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from etl.errors import BrokerRefusal
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
            message = f"The target time for partition {log.topic}-{log.key} is {when}."
            if least:
                kinds = "LATEST, EARLIEST or milliseconds since 1970"
            else:
                kinds = "milliseconds since 1970, and cannot be negative"
            raise ValueError(f"{message} A target time is {kinds}.")


def reject_negative(**numbers: int | None) -> None:
    """Reject negative numbers, which brokers take for "none", "any" or "no limit". Raises
    ValueError with the name.
    """
    for name, number in numbers.items():
        if number is not None and number < 0:
            raise ValueError(f"{name} is {number}, and cannot be negative")


class EntryLayout(Enum):
    """How entries of a records field begin, which only the broker type tells."""

    LOGICAL = "offset, length, record batch or message"
    """Kafka 0.8 and later; the magic byte, always at the same place, tells the format."""
    PHYSICAL = "length, message"
    """Jafka and Kafka 0.7: an entry's offset is the byte position at which it begins."""


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """One log in a Fetch: from which offset, and how many bytes at most."""

    log: BrokerPartition
    offset: int
    max_bytes: int
    leader_epoch: int | None = None
    """Leader epoch of the metadata: a broker that is behind or deposed rejects the request
    (KIP-320).
    """
    topic_id: str | None = None
    """The id that the topic must still have, where brokers know ids (KIP-516): one that was made
    again is then refused.
    """


def in_serving_order(wanted: Sequence[FetchTarget]) -> tuple[FetchTarget, ...]:
    """Return `wanted` as a broker serves it: by topic in order of first appearance. The order
    matters (KIP-74): the first partition with records gets a whole record batch, others what is
    left. Raises ValueError for a duplicate partition, which brokers reject.
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
    """A fetch of several partitions."""

    wanted: tuple[FetchTarget, ...]
    """In the order in which they are served, see `in_serving_order`."""
    isolation: Isolation
    max_bytes: int
    """Bounds the whole answer; each target's own bounds its part."""
    max_wait_ms: int
    min_bytes: int

    @property
    def place(self) -> dict[str, object]:
        """Return the place for an error that concerns no single partition."""
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
    """One partition of a Fetch response. The protocol's -1 is None here.

    `records` is a view of the receive buffer, valid until the next response is received into it, so
    what `Cursor.feed` returns must be read to its end before.
    """

    topic: str
    partition: int
    refusal: BrokerRefusal | None
    high_watermark: int | None
    """None: the generation's answers have no such field."""
    last_stable_offset: int | None
    """None: the version of the answer has no such field."""
    log_start_offset: int | None
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of the aborted transactions that overlap this answer (KIP-98)."""
    records: memoryview
    """Record batches or message sets; the last one may be truncated. Empty for null."""
    proves_empty: bool = False
    """True: empty `records` prove that nothing is readable at the requested offset. Brokers also
    answer empty while they throttle, and after partitions that used up the bytes (KIP-74): so it
    holds only for an unthrottled response and a partition without records before it.
    """
    layout: EntryLayout = EntryLayout.LOGICAL
    broker_id: int | None = None
    """On Jafka."""
    asked_offset: int = 0
    """The requested offset: `records` may begin below it; with byte offsets they begin there."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One Fetch response. The records of its partitions are slices of the buffer it was read from."""

    throttle_ms: int
    refusal: BrokerRefusal | None
    """Error of the whole request."""
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One log and who leads it now."""

    log: BrokerPartition
    refusal: BrokerRefusal | None
    leader: Leader | None
    """None: no leader at the moment, wait and ask again."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic, or the error for it."""

    topic: str
    refusal: BrokerRefusal | None
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
    """The answer for one partition and time."""

    log: BrokerPartition
    refusal: BrokerRefusal | None
    offset: int | None
    """None: no record that late."""
    timestamp_ms: int | None
    leader_epoch: int | None
    boundaries: tuple[int, ...] | None = None
    """For LATEST with byte offsets: offsets at which a range may be cut, ascending, with the end.
    """
    is_last_stable: bool = False
    """For LATEST: whether it is the last stable offset, which may be below the high watermark
    (KIP-98). Brokers without transactions have one end.
    """


@dataclass(frozen=True, slots=True)
class EpochEndResponse:
    """The answer for one partition and epoch."""

    refusal: BrokerRefusal | None
    epoch: int | None
    end_offset: int | None
    """None: the leader's log knows no such epoch (an epoch above its own, or a log without epochs).
    """


EpochEndsResponse = dict[BrokerPartition, EpochEndResponse]


@dataclass(frozen=True, slots=True)
class CoordinatorResponse:
    """The coordinator of a group, or the error."""

    refusal: BrokerRefusal | None
    broker: Broker


@dataclass(frozen=True, slots=True)
class MembersResponse:
    """The members of a group in Kafka, with their partitions, None if unknown."""

    refusal: BrokerRefusal | None
    members: Mapping[str, frozenset[BrokerPartition] | None]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The identity by which the coordinator fences requests for a group's offsets."""

    member_id: str
    generation: int
    """Generation of the classic protocol, member epoch of the consumer protocol (KIP-848)."""
    instance_id: str | None = None
    """The name of a static member (Kafka 2.3 and later)."""


@dataclass(frozen=True, slots=True)
class OffsetsCommit:
    """A commit: next offsets, with equal metadata for each."""

    group: str
    offsets: Mapping[BrokerPartition, int]
    metadata: str = ""
    member: GroupMember | None = None
    """None: from outside, which is accepted while the group has no members."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Leader epochs of the records before the offsets, if known; stored from Kafka 2.1 on."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Ids of all topics, else names are used. By id a recreated topic is rejected (Kafka 4.1 and
    later).
    """


@dataclass(frozen=True, slots=True)
class OffsetsQuestion:
    """Which of a group's offsets to read."""

    group: str
    logs: tuple[BrokerPartition, ...]
    member: GroupMember | None = None
    """Sent to brokers of 4.0 and later, which reject a former epoch."""
    is_stable: bool = False
    """Offsets that an open transaction will replace are rejected (Kafka 2.5 and later; earlier ones
    return them).
    """
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """As in `OffsetsCommit`."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset that a group stored for one log; None: none was ever stored, or it was
    forgotten.
    """

    refusal: BrokerRefusal | None
    offset: int | None
    metadata: str = ""
    """Metadata as committed."""
    leader_epoch: int | None = None
    """Leader epoch of the record before it, as committed."""


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """A group's offsets by its coordinator."""

    refusal: BrokerRefusal | None
    """Error of the whole request."""
    offsets: Mapping[BrokerPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member wants to read, as the leader sees it."""

    topics: tuple[str, ...]
    owned: frozenset[BrokerPartition] = frozenset()
    """What it reads until it is revoked (KIP-429); nothing with strategies that release everything
    in each rebalance.
    """
    generation: int | None = None
    """Its generation."""
    user_data: bytes = b""
    """Data of other strategies."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    """The name of a static member (KIP-345)."""
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """One member's wish to be in the next generation of a group."""

    group: str
    member_id: str | None
    """None: a new member."""
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """How long the coordinator waits for others to join again; before 0.10.1 that is the session
    timeout.
    """
    subscriptions: Mapping[str, Subscription]
    """By strategy, in order of preference."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of a join."""

    refusal: BrokerRefusal | None
    member_id: str | None
    """Also with the error that requires it (KIP-394)."""
    generation: int
    strategy: str
    is_leader: bool
    members: tuple[MemberSubscription, ...]
    """All of them, of the leader; else nothing. Brokers before 3.2 do not list them to a static
    leader that comes back.
    """
    skips_assignment: bool = False
    """The leader is a static member that came back: the assignment stays as it is, and a SyncGroup
    with another one is ignored (KIP-814)."""


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Identity of a member after its join."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A member's assignment."""

    refusal: BrokerRefusal | None
    logs: frozenset[BrokerPartition]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """The one request of the consumer protocol."""

    group: str
    member_id: str | None
    """None: one that the coordinator is to make, where it does (3.7 to 3.9)."""
    epoch: int
    """0: to join. Of one that leaves see `LEAVES` and `WILL_BE_BACK`."""
    instance_id: str | None
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    owned: Mapping[str, frozenset[int]] | None
    """Topic id to partitions of all that the member still owns, which acknowledges revocations;
    None: unchanged.
    """


@dataclass(frozen=True, slots=True)
class SpokenMembership:
    """The membership protocols of a broker."""

    is_classic: bool = False
    has_rebalance_timeout: bool = False
    """True if members have a rebalance timeout besides the session timeout; older brokers use the
    session's for both, at most 30 s by default.
    """
    is_static: bool = False
    """Members with a name of their own."""
    is_consumer: bool = False
    """Those of the consumer protocol."""
    release: str = ""
    """The newest that the broker may be of, where it keeps groups."""


_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def is_of_instance(member_id: str, instance_id: str) -> bool:
    """True if a member id of a classic group is one of this static member: brokers make
    INSTANCE_ID-UUID at each return.
    """
    return re.fullmatch(f"{re.escape(instance_id)}-{_UUID}", member_id) is not None


LEAVES = -1
"""Epoch of a member that leaves for good."""
WILL_BE_BACK = -2
"""Epoch of a static member that leaves and keeps its partitions for its session."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    """The response to it."""

    refusal: BrokerRefusal | None
    said: str
    """The broker's own words about a refusal."""
    member_id: str | None
    epoch: int
    interval_ms: int
    """After which the next one is expected."""
    assigned: Mapping[str, frozenset[int]] | None
    """Topic id to partitions: the member's whole assignment; None: unchanged."""
