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
    refusal: BrokerRefusal | None
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
    refusal: BrokerRefusal | None
    """Of the whole request."""
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
    """One topic, or why the broker does not tell of it."""

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
    """What a broker answered for one log and one time."""

    log: BrokerPartition
    refusal: BrokerRefusal | None
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
class EpochEndResponse:
    """What a broker answered of one log and one epoch."""

    refusal: BrokerRefusal | None
    epoch: int | None
    end_offset: int | None
    """None: the leader's log knows no such epoch (an epoch above its own, or a log without epochs).
    """


EpochEndsResponse = dict[BrokerPartition, EpochEndResponse]


@dataclass(frozen=True, slots=True)
class CoordinatorResponse:
    """Who keeps the offsets of a group, or why nobody can be named."""

    refusal: BrokerRefusal | None
    broker: Broker


@dataclass(frozen=True, slots=True)
class MembersResponse:
    """Who is in a group that brokers keep, with the logs that each reads, None where that is not
    known.
    """

    refusal: BrokerRefusal | None
    members: Mapping[str, frozenset[BrokerPartition] | None]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """As whom somebody asks for a group's offsets, or stores them: what the group's coordinator
    fences by.
    """

    member_id: str
    generation: int
    """Of the classic protocol the group's generation, of the consumer protocol (KIP-848) the
    member's epoch.
    """
    instance_id: str | None = None
    """The name of a static member (Kafka 2.3 and later)."""


@dataclass(frozen=True, slots=True)
class OffsetsCommit:
    """What a group is to store: next offsets, and beside each of them the same word."""

    group: str
    offsets: Mapping[BrokerPartition, int]
    metadata: str = ""
    member: GroupMember | None = None
    """None: from outside of any membership, which is taken while the group has no members."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Of the records before the offsets, where they are known; kept from Kafka 2.1 on."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Of all the topics, else they go by their names alone. Named so, one that was made again is
    refused (Kafka 4.1 and later).
    """


@dataclass(frozen=True, slots=True)
class OffsetsQuestion:
    """Which of a group's offsets somebody asks for."""

    group: str
    logs: tuple[BrokerPartition, ...]
    member: GroupMember | None = None
    """Told to brokers of 4.0 and later alone, which then refuse an epoch of the past."""
    is_stable: bool = False
    """An offset that an open transaction is about to replace is refused instead of told (Kafka 2.5
    and later; others tell it).
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
    """What whoever stored it wrote beside it."""
    leader_epoch: int | None = None
    """Of the record before it, where whoever stored it said so."""


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """What a group's coordinator told of its offsets."""

    refusal: BrokerRefusal | None
    """Of the whole request."""
    offsets: Mapping[BrokerPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member wants to read, as it tells the leader."""

    topics: tuple[str, ...]
    owned: frozenset[BrokerPartition] = frozenset()
    """What it reads until it is told to stop (KIP-429); nothing under a strategy that lets go of
    everything in each rebalance.
    """
    generation: int | None = None
    """Of which that is."""
    user_data: bytes = b""
    """What a strategy of others tells itself."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member as the leader is told of it."""

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
    """What a join came to."""

    refusal: BrokerRefusal | None
    member_id: str | None
    """Also told with a refusal that asks for it (KIP-394)."""
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
    """Who speaks, after a join."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Synced:
    """What a member was assigned."""

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
    """Topic id to partitions of all that the member still has, which acknowledges what it was told
    to let go; None: as told before.
    """


@dataclass(frozen=True, slots=True)
class SpokenMembership:
    """What members of groups a broker understands."""

    is_classic: bool = False
    has_rebalance_timeout: bool = False
    """Of each member, beside its session; older brokers take the session for both, and by default
    none of more than 30 s.
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
"""As the epoch: goes for good."""
WILL_BE_BACK = -2
"""As the epoch: a static member that goes, and keeps its logs for as long as a session lasts."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    """What it came to."""

    refusal: BrokerRefusal | None
    said: str
    """The broker's own words about a refusal."""
    member_id: str | None
    epoch: int
    interval_ms: int
    """After which the next one is expected."""
    assigned: Mapping[str, frozenset[int]] | None
    """Topic id to partitions: all that the member is to have; None: as told before."""
