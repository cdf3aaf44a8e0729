"""Which values do requests and responses have, independent of the broker type?

Lives here: metadata, offsets, fetches, committed offsets, and the messages of group members:
classic protocol (0.9 to 4.x; the leader assigns) and consumer protocol (KIP-848, 4.0; the
coordinator assigns). Not here: their encoding (kafka_python_messages.py,
many_partition_messages.py), and the decoding of the records field (etl/records).

Only the records field holds bytes. The protocol's -1 and "" for a missing value are None here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from etl.errors import BrokerRefusal, EtlError
from etl.model.partitions import Broker, Isolation, Leader, TopicPartition, partition_of

LATEST = -1
"""Instead of a time: the readable end (high watermark, or last stable offset under read_committed).
"""
EARLIEST = -2
"""Instead of a time: the log start offset."""
INSTEAD_OF_A_TIME = (
    "In place of the time use earliest (source.starting_offsets) or an offset (--from, --until)"
)
"""What to do where brokers cannot find the record of a time. `latest` would skip records."""
_LOGS_NAMED = 5
_END_OF_TIME = 2**63


def reject_wrong_times(times: Mapping[TopicPartition, int], *, least: int = 0) -> None:
    """Reject times with a special meaning in ListOffsets: below 0, or below `least`.

    -3 is the record with the largest timestamp (KIP-734), -4 and -5 are of tiered storage. Raises
    ValueError.
    """
    for partition, when in times.items():
        if not least <= when < _END_OF_TIME:
            message = f"The target time for partition {partition.topic}-{partition.key} is {when}."
            if least:
                kinds = "LATEST, EARLIEST or milliseconds since 1970"
            else:
                kinds = "milliseconds since 1970, and cannot be negative"
            raise ValueError(f"{message} A target time is {kinds}.")


def reject_negative(**numbers: int | None) -> None:
    """Reject negative numbers, to which brokers give the meanings "none", "any" or "no limit".

    Raises ValueError with the name.
    """
    for name, number in numbers.items():
        if number is not None and number < 0:
            raise ValueError(f"{name} is {number}, and cannot be negative")


class EntryLayout(Enum):
    """How the entries of a records field begin; only the broker type determines it."""

    LOGICAL = "offset, length, record batch or message"
    """Kafka 0.8 and later; the magic byte, always at the same place, determines the format."""
    PHYSICAL = "length, message"
    """Jafka and Kafka 0.7: an entry's offset is the byte position at which it begins."""


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """One partition in a Fetch: the first offset, and the maximum number of bytes."""

    partition: TopicPartition
    offset: int
    max_bytes: int
    leader_epoch: int | None = None
    """Leader epoch of the metadata.

    A former leader, or a broker with older metadata, rejects the request (KIP-320).
    """
    topic_id: str | None = None
    """The id that the topic must still have, if brokers have topic ids (KIP-516).

    Brokers reject a fetch from a recreated topic by it.
    """

    def __post_init__(self) -> None:
        """Take a name of the partition, `("clicks", 0)`, too."""
        if not isinstance(self.partition, TopicPartition):
            object.__setattr__(self, "partition", partition_of(self.partition))


def in_serving_order(wanted: Sequence[FetchTarget]) -> tuple[FetchTarget, ...]:
    """Return `wanted` in the order of a broker: by topic in order of first appearance.

    The order matters (KIP-74): the first partition with records gets a whole record batch, others
    the remaining bytes. Raises ValueError for a duplicate partition, which brokers reject.
    """
    topics: dict[str, list[FetchTarget]] = {}
    for each in wanted:
        topics.setdefault(each.partition.topic, []).append(each)
    ordered: list[FetchTarget] = []
    for of_topic in topics.values():
        ordered.extend(of_topic)
    partitions = {each.partition for each in ordered}
    if len(partitions) < len(ordered):
        twice = sorted(f"{each.partition.topic}/{each.partition.partition}" for each in ordered)
        raise ValueError(f"A fetch has a partition twice: {', '.join(twice)}")
    return tuple(ordered)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A fetch of several partitions."""

    wanted: tuple[FetchTarget, ...]
    """In the order of `in_serving_order`."""
    isolation: Isolation
    max_bytes: int
    """Limit of the whole response; that of each target limits its part."""
    max_wait_ms: int
    min_bytes: int

    @property
    def place(self) -> dict[str, object]:
        """Return the place for an error that concerns no single partition."""
        first = self.wanted[0]
        if len(self.wanted) == 1:
            return {**first.partition.place, "offset": first.offset}
        partitions = ", ".join(str(each.partition) for each in self.wanted[:_LOGS_NAMED])
        if len(self.wanted) > _LOGS_NAMED:
            partitions += f" and {len(self.wanted) - _LOGS_NAMED} more"
        return {"one_of": partitions}


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a Fetch response.

    `records` is a view of the receive buffer, valid until the next response is received into it:
    consume the result of `Cursor.feed` completely before.
    """

    topic: str
    partition: int
    refusal: BrokerRefusal | None
    high_watermark: int | None
    """None: responses of this broker type have no such field."""
    last_stable_offset: int | None
    """None: this version of the response has no such field."""
    log_start_offset: int | None
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of aborted transactions that overlap this response (KIP-98)."""
    records: memoryview
    """Record batches or message sets; the last one may be truncated. Empty for null."""
    proves_empty: bool = False
    """True: empty `records` prove that nothing is readable at the requested offset.

    Brokers also return no records while they throttle, and after partitions that used up the bytes
    (KIP-74). So it is True only in an unthrottled response, and without records of a partition
    before this one.
    """
    layout: EntryLayout = EntryLayout.LOGICAL
    broker_id: int | None = None
    """On Jafka."""
    asked_offset: int = 0
    """The requested offset: `records` may begin below it; with byte offsets they begin there."""
    cut: EtlError | None = None
    """The error of the response if it ended inside `records`: more bytes need not be requested."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One Fetch response. The records of its partitions are slices of the receive buffer."""

    throttle_ms: int
    refusal: BrokerRefusal | None
    """Error of the whole request."""
    partitions: tuple[FetchedPartition, ...]
    cut: EtlError | None = None
    """The error that ended the response, after these of the requested partitions."""


class PartitionMetadata(NamedTuple):
    """One partition and its current leader.

    A tuple, as are the other values of one partition in a response: it is made in a third of the
    time of a dataclass, and there are 100,000 of each.
    """

    partition: TopicPartition
    refusal: BrokerRefusal | None
    leader: Leader | None
    """None: no leader at the moment; a later request can return one."""


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
    """The response to one Metadata request."""

    cluster_id: str | None
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]

    @property
    def leaders(self) -> dict[TopicPartition, Leader]:
        """Return the leader of each partition that has one."""
        leaders = {}
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader is not None:
                    leaders[partition.partition] = partition.leader
        return leaders

    @property
    def leaderless(self) -> frozenset[TopicPartition]:
        """Return the known partitions without a leader."""
        leaderless = set()
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader is None:
                    leaderless.add(partition.partition)
        return frozenset(leaderless)

    @property
    def topic_ids(self) -> dict[str, str]:
        """Return the topic ids, if the broker has them."""
        topic_ids = {}
        for name, topic in self.topics.items():
            if topic.topic_id is not None:
                topic_ids[name] = topic.topic_id
        return topic_ids


class ListedOffset(NamedTuple):
    """The listed offset of one partition for a time."""

    partition: TopicPartition
    refusal: BrokerRefusal | None
    offset: int | None
    """None: no record at or after the time."""
    timestamp_ms: int | None
    leader_epoch: int | None
    boundaries: tuple[int, ...] | None = None
    """For LATEST with byte offsets: offsets at which a range can be split, ascending, with the end.
    """
    is_last_stable: bool = False
    """For LATEST: True for the last stable offset, which may be below the high watermark (KIP-98).

    Brokers without transactions have one end.
    """


class EpochEndResponse(NamedTuple):
    """The end of a leader epoch of one partition."""

    refusal: BrokerRefusal | None
    epoch: int | None
    end_offset: int | None
    """None: the leader does not know the epoch.

    It is above the leader's own, or the partition has no epochs.
    """


EpochEndsResponse = dict[TopicPartition, EpochEndResponse]


@dataclass(frozen=True, slots=True)
class CoordinatorResponse:
    """The coordinator of a group, or the error."""

    refusal: BrokerRefusal | None
    broker: Broker


@dataclass(frozen=True, slots=True)
class MembersResponse:
    """The members of a group in Kafka, with their partitions, None if unknown."""

    refusal: BrokerRefusal | None
    members: Mapping[str, frozenset[TopicPartition] | None]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The identity by which the coordinator fences requests for a group's offsets."""

    member_id: str
    generation: int
    """Generation of the classic protocol, member epoch of the consumer protocol (KIP-848)."""
    instance_id: str | None = None
    """Instance id of a static member (Kafka 2.3 and later)."""


@dataclass(frozen=True, slots=True)
class OffsetsCommit:
    """A commit of next offsets, with equal commit metadata for each."""

    group: str
    offsets: Mapping[TopicPartition, int]
    metadata: str = ""
    member: GroupMember | None = None
    """None: the committer is no member, and is accepted while the group has no members."""
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Leader epochs of the records before the offsets, if known; stored from Kafka 2.1 on."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Ids of all topics, else names are used.

    By id brokers reject the commit for a recreated topic (Kafka 4.1 and later).
    """


@dataclass(frozen=True, slots=True)
class OffsetsQuery:
    """The partitions of a group for which committed offsets are requested."""

    group: str
    partitions: tuple[TopicPartition, ...]
    member: GroupMember | None = None
    """Sent to brokers of 4.0 and later, which reject a former member epoch."""
    is_stable: bool = False
    """True: brokers reject offsets that an open transaction will replace.

    Before Kafka 2.5 brokers return them.
    """
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """As in `OffsetsCommit`."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group in one partition."""

    refusal: BrokerRefusal | None
    offset: int | None
    """None: no offset was committed, or the commit expired."""
    metadata: str = ""
    """Commit metadata."""
    leader_epoch: int | None = None
    """Leader epoch of the record before it, as committed."""


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """The committed offsets of a group."""

    refusal: BrokerRefusal | None
    """Error of the whole request."""
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics and owned partitions of one member, as sent to the leader."""

    topics: tuple[str, ...]
    owned: frozenset[TopicPartition] | None = None
    """Partitions that it reads until they are revoked (KIP-429); None: the field is missing.

    Strategies that release all partitions in each rebalance do without it.
    """
    generation: int | None = None
    """The generation of the owned partitions."""
    user_data: bytes = b""
    """Data of other assignment strategies."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member in the list that the leader receives."""

    member_id: str
    instance_id: str | None
    """Instance id of a static member (KIP-345)."""
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The request of one member to join the next generation of a group."""

    group: str
    member_id: str | None
    """None: a new member."""
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """How long the coordinator waits for other members to rejoin.

    Brokers before 0.10.1 use the session timeout instead.
    """
    subscriptions: Mapping[str, Subscription]
    """By assignment strategy, in order of preference."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of a join."""

    refusal: BrokerRefusal | None
    member_id: str | None
    """Also with the error MEMBER_ID_REQUIRED (KIP-394)."""
    generation: int
    strategy: str
    is_leader: bool
    members: tuple[MemberSubscription, ...]
    """All members, if this member is the leader; else empty.

    Brokers before 3.2 do not list them for a static leader that returns.
    """
    skips_assignment: bool = False
    """True: the leader is a static member that returned (KIP-814).

    The assignment stays unchanged, and brokers ignore a SyncGroup with another one.
    """


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
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """The only request of members in the consumer protocol."""

    group: str
    member_id: str | None
    """None: the coordinator creates one, if it does so (3.7 to 3.9)."""
    epoch: int
    """0 to join; `LEAVES` or `LEAVES_TEMPORARILY` to leave."""
    instance_id: str | None
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    owned: Mapping[str, frozenset[int]] | None
    """Topic id to partitions that the member still owns; None: unchanged.

    Without a revoked partition it acknowledges the revocation.
    """


@dataclass(frozen=True, slots=True)
class SupportedMembership:
    """The membership protocols of a broker."""

    is_classic: bool = False
    has_rebalance_timeout: bool = False
    """True if members have a rebalance timeout besides the session timeout.

    Older brokers use the session timeout for both, at most 30 s by default.
    """
    is_static: bool = False
    """True if the broker has static members."""
    is_consumer: bool = False
    """True if the broker has the consumer protocol."""
    release: str = ""
    """The newest release that the broker can have, if it keeps groups."""


LEAVES = -1
"""Epoch of a member that leaves for good."""
LEAVES_TEMPORARILY = -2
"""Epoch of a static member that leaves and keeps its partitions for its session."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    """The response to `ConsumerHeartbeat`."""

    refusal: BrokerRefusal | None
    said: str
    """Error message of the broker."""
    member_id: str | None
    epoch: int
    interval_ms: int
    """Milliseconds until the next heartbeat is due."""
    assigned: Mapping[str, frozenset[int]] | None
    """Topic id to partitions: the member's whole assignment; None: unchanged."""
