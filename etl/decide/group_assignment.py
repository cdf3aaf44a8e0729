"""Which member of a group reads which partition, and what does a member do next?

Lives here: assignment strategies, the state machine of a member in ZooKeeper, the reactions of a
member in Kafka to its coordinator.
Not here: I/O (etl/io/zookeeper/group_member.py, etl/io/brokers/group_member.py).

ZooKeeper groups have no leader: each member computes the assignment and claims its own part. A
member that computes another one is blocked by other owners until it gives up, so the original
consumers are reproduced exactly:

                    Jafka, Kafka 0.7                 Kafka 0.8 to 1.1
    range           per topic: partitions in order, split into one interval per thread, the
                    first ones longer by one
    order           keys `broker-partition` as text  numbers
    round robin     does not exist                   all topics: partitions by the hash of their
                                                     names, assigned to all threads in turn
    threads         as text: `c-10` before `c-2`

Round robin exists three times: 0.8.2 and 0.9 require equal topics and threads of all members; 0.10
and 0.11 do not, and skip threads that do not read a topic; 1.0 and 1.1 hash `clicks-3` instead of
`[clicks,3]`. Registrations do not contain the release. Text order and hashes are Java's.

Kafka groups: the leader assigns as Kafka's assignors of the same names.

    range                each topic: partitions by number, one interval per member that reads it
    roundrobin           topics by name, each partition to the next member that reads its topic
    sticky               as even as possible, keeping what members had
    cooperative-sticky   the same, but a partition that another member still owns is assigned in
                         the next rebalance

Members with an instance id come first, by that id, then the others by member id. range and
roundrobin are written here: kafka-python 3.0.12 gives nothing to members without an instance id
that sort before one with it, and raises KeyError if members read different topics. The sticky
assignors are kafka-python's.

A member in ZooKeeper, as a state machine (executed by `io.zookeeper.group_member`):

    state       event                                     next state  action
    unjoined    joins                                     joining     register
    joining     registered                                joining     observe the group
    joining     observed                                  joining     claim all partitions or none
    joining     one of them has another owner             joining     wait a backoff, observe
    joining     the same, join timeout is over            unjoined    leave
    joining     claimed                                   stable      none; observe if an event came
    stable      an event came                             stable      observe the group
    stable      observed: same group and owners           stable      none
    stable      observed: anything else                   letting go  release all partitions
    letting go  released                                  joining     observe the group
    stable      partitions of others unowned for a while  stable      nudge
    any         session expired                           unjoined    none: its znodes are gone

An event (a member, broker or topic changed) is one flag, cleared with the watches set before the
group is read. Original consumers release at each event, also if the assignment is the same; this
member does not. They try `tries` times, then own nothing until the next event: a member that blocks
them longer must create one after releasing (a nudge, `io.zookeeper.owners`).

A member in Kafka, by the answer of its coordinator:

| answer | action | id kept | assignment |
| --- | --- | --- | --- |
| no error | continue | | |
| rebalance in progress (27) | rejoin at once | yes | over, as requested |
| illegal generation (22) | rejoin at once: the coordinator would wait for the member | yes | lost |
| fenced member epoch (110) | rejoin at once | yes | lost |
| unknown member id (25) | join as a new member | no | lost |
| member id required (79) | join with the id of the answer | the new one | |
| stale member epoch (113) | request the epoch at once | yes | kept, under another epoch |
| not coordinator (16), not available (15), loading (14) | find it after a pause | yes | kept |
| other retriable errors | retry after a pause | yes | kept until the session ends |
| fenced instance id (82), all other errors | give up | | lost |

A member that is leaving treats any answer as the end of its membership.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Generic, TypeVar

from etl.errors import BrokerRefusal, Meaning, SettingsError
from etl.ledger.owner_nodes import consumer_of, thread_id
from etl.ledger.registrations import Registration
from etl.model.partitions import BrokerFamily, TopicPartition, select_keys

_LARGEST = 2**31 - 1


def java_hash(text: str, *, prefix_hash: int = 0) -> int:
    """Return `String.hashCode`: signed, 32 bits.

    `prefix_hash`: the hash of a text before this one, which is not hashed again.
    """
    hashed = prefix_hash
    for unit in _utf16_units(text):
        hashed = 31 * hashed + unit
    hashed &= 0xFFFFFFFF
    if hashed > _LARGEST:
        return hashed - 2**32
    return hashed


def java_order(text: str) -> bytes:
    """Return a sort key for `String.compareTo`.

    It compares UTF-16 units: code points above U+FFFF come before U+E000.
    """
    return text.encode("utf-16-be", "surrogatepass")


def _utf16_units(text: str) -> Sequence[int]:
    if text.isascii():
        return text.encode("ascii")
    encoded = java_order(text)
    return [encoded[at] << 8 | encoded[at + 1] for at in range(0, len(encoded), 2)]


Assignment = dict[str, tuple[TopicPartition, ...]]
"""Partitions of each thread of the group; empty for some if threads outnumber partitions."""


class Strategy(str, Enum):
    """`partition.assignment.strategy` of the group's consumers, by release where it matters."""

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    """0.8.2 and 0.9; if it has a result, it is that of 0.10 and 0.11."""
    ROUND_ROBIN_0_10 = "roundrobin-0.10"
    """0.10 and 0.11."""
    ROUND_ROBIN_1_0 = "roundrobin-1.0"
    """1.0 and 1.1."""

    @property
    def deals_all_topics(self) -> bool:
        """True if a thread's part of one topic depends on the group's other topics."""
        return self is not Strategy.RANGE


@dataclass(frozen=True, slots=True)
class AssignmentContext:
    """Input of the assignment; equal for all members that observed the same."""

    members: Mapping[str, Mapping[str, int]]
    """Consumer id -> topic -> number of its threads that read the topic."""
    partitions: Mapping[str, Collection[TopicPartition]]
    """Partitions of each topic, in any order; none for a missing topic. Range needs the topics in
    question, round robin each topic that a consumer of the group reads.
    """

    @property
    def threads(self) -> dict[str, list[str]]:
        """Return the threads that read each topic, in the order of the original consumers."""
        by_topic: dict[str, list[str]] = {}
        for member, counts in self.members.items():
            for topic, count in counts.items():
                threads = by_topic.setdefault(topic, [])
                for number in range(count):
                    threads.append(thread_id(member, number))
        for threads in by_topic.values():
            threads.sort(key=java_order)
        return by_topic


def context_of(
    registrations: Mapping[str, Registration], partitions: Mapping[str, Collection[TopicPartition]]
) -> AssignmentContext:
    """Return the context of a group with these consumers (by consumer id) and existing topics."""
    members = {}
    for member, registration in registrations.items():
        members[member] = registration.threads(partitions)
    return AssignmentContext(members, partitions)


def assign(context: AssignmentContext, strategy: Strategy, member: str) -> Assignment:
    """Return the partitions of each thread, as `member` and all other consumers compute them.

    Raises SettingsError if `member` is not in the group, and if consumers would compute different
    results of round robin.
    """
    if member not in context.members:
        raise SettingsError(
            "This consumer is not registered in its group",
            consumer=member,
            action="Check whether another client deleted the znode of this consumer",
        )
    if strategy is Strategy.RANGE:
        return _range(context)
    if strategy is Strategy.ROUND_ROBIN:
        _reject_unequal_threads(context)
    return _round_robin(context, strategy)


def assignment_of(member: str, assignment: Assignment) -> dict[TopicPartition, str]:
    """Return the partitions of one member, each with its thread that owns it."""
    threads: dict[TopicPartition, str] = {}
    for thread, partitions in assignment.items():
        if consumer_of(thread) == member:
            threads.update(dict.fromkeys(partitions, thread))
    return threads


def in_range_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions of one topic in the order that range splits.

    Physical ones are ordered by key as text (`0-10` before `0-2`), others by number.
    """
    return sorted(partitions, key=_range_order)


def _range_order(partition: TopicPartition) -> tuple[int, str]:
    if partition.broker_id is None:
        return partition.partition, ""
    return 0, partition.key


def _range(context: AssignmentContext) -> Assignment:
    assigned: dict[str, list[TopicPartition]] = {}
    for topic, threads in context.threads.items():
        ordered = in_range_order(context.partitions.get(topic, ()))
        for thread, (start, end) in zip(
            threads, _range_bounds(len(ordered), len(threads)), strict=True
        ):
            assigned.setdefault(thread, []).extend(ordered[start:end])
    return _unchanging(assigned)


def _unchanging(assigned: Mapping[str, Iterable[TopicPartition]]) -> Assignment:
    return {thread: tuple(partitions) for thread, partitions in assigned.items()}


def _range_bounds(count: int, readers: int) -> list[tuple[int, int]]:
    """Return [start, end) of each reader's interval; the first ones are longer by one."""
    size, longer = divmod(count, readers)
    bounds = []
    start = 0
    for reader in range(readers):
        end = start + size
        if reader < longer:
            end += 1
        bounds.append((start, end))
        start = end
    return bounds


def _round_robin(context: AssignmentContext, strategy: Strategy) -> Assignment:
    readers = context.threads
    threads = sorted(frozenset().union(*readers.values()), key=java_order)
    index_of = {thread: index for index, thread in enumerate(threads)}
    reader_indexes = {}
    for topic, topic_threads in readers.items():
        reader_indexes[topic] = [index_of[thread] for thread in topic_threads]
    assigned: dict[str, list[TopicPartition]] = {thread: [] for thread in threads}
    next_index = 0
    has_many_threads = len(threads) > 1
    for partition in _in_hash_order(context, readers, strategy, must_be_unique=has_many_threads):
        index = _next_reader(reader_indexes[partition.topic], next_index)
        assigned[threads[index]].append(partition)
        next_index = (index + 1) % len(threads)
    return _unchanging(assigned)


def _next_reader(indexes: Sequence[int], at_least: int) -> int:
    """Return the first of the sorted indexes that is not smaller, else the first of all."""
    return indexes[bisect_left(indexes, at_least) % len(indexes)]


def _in_hash_order(
    context: AssignmentContext, topics: Iterable[str], strategy: Strategy, *, must_be_unique: bool
) -> list[TopicPartition]:
    """Sort partitions by the hash of their names.

    Raises SettingsError if hashes must be unique and partitions of two topics have equal ones, as
    consumers would order them differently.
    """
    opening, separator, closing = "[", ",", "]"
    if strategy is Strategy.ROUND_ROBIN_1_0:
        opening, separator, closing = "", "-", ""
    hashed: list[tuple[int, int, TopicPartition]] = []
    for topic in topics:
        prefix_hash = java_hash(f"{opening}{topic}{separator}")
        for partition in context.partitions.get(topic, ()):
            name_hash = java_hash(f"{partition.partition}{closing}", prefix_hash=prefix_hash)
            hashed.append((name_hash, partition.partition, partition))
    hashed.sort()
    for (name_hash, _, partition), (next_hash, _, following) in pairwise(hashed):
        if must_be_unique and name_hash == next_hash and partition.topic != following.topic:
            message = (
                f"Round robin has no order for {partition} and {following}: "
                "their names have the same hash"
            )
            raise SettingsError(
                message,
                action=(
                    "Set group.join.assignment_strategy: range, which uses no hash, and "
                    "partition.assignment.strategy of all consumers of the group"
                ),
            )
    return [partition for _, _, partition in hashed]


def _reject_unequal_threads(context: AssignmentContext) -> None:
    """Reject groups in which consumers of 0.8.2 and 0.9 fail. Raises SettingsError."""
    by_topic = sorted(context.threads.items())
    for (first, expected), (topic, threads) in pairwise(by_topic):
        if threads != expected:
            differing = min(set(threads) ^ set(expected))
            message = (
                "Round robin to 0.9 needs consumers that read the same topics with as many "
                f"threads: {differing} reads one of two"
            )
            raise SettingsError(
                message,
                topics=f"{first}, {topic}",
                action=(
                    "Check the topics and threads of the group's consumers, or set "
                    "group.join.assignment_strategy: range, and all consumers to range"
                ),
            )


Assigned = dict[str, frozenset[TopicPartition]]
"""Partitions by member id, with each member of the group."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as the leader observes it when all have joined."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[TopicPartition] = frozenset()
    """Partitions that it reports as owned, for the sticky strategies."""
    generation: int | None = None
    """Generation of `owned`; None if its metadata lacks it."""


def assign_as_leader(
    strategy: str, members: Collection[GroupMember], partitions: Mapping[str, int]
) -> Assigned:
    """Return the assignment of each member.

    `partitions`: number of partitions of each existing topic.
    Raises SettingsError for an unknown strategy.
    """
    assign_members = _STRATEGIES.get(strategy)
    if assign_members is None:
        raise SettingsError(
            "The group chose an unknown assignment strategy, and this member is its leader",
            strategy=strategy,
            action=f"Set group.join.assignment_strategy: one of {', '.join(STRATEGIES)}",
        )
    assigned = assign_members(sorted(members, key=_member_order), partitions)
    return {member: frozenset(found) for member, found in assigned.items()}


def _member_order(member: GroupMember) -> tuple[bool, bytes]:
    if member.instance_id is None:
        return True, java_order(member.member_id)
    return False, java_order(member.instance_id)


def find_unassigned(
    partitions: Mapping[str, int], assigned: Collection[TopicPartition]
) -> frozenset[TopicPartition]:
    """Return the existing partitions that are assigned to no member.

    `partitions`: number of partitions of each existing topic.
    """
    existing: set[TopicPartition] = set()
    for topic, count in partitions.items():
        existing.update(_partitions_of(topic, range(count)))
    return frozenset(existing).difference(assigned)


def _partitions_of(topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


_Lists = dict[str, list[TopicPartition]]


def _empty_lists(members: Sequence[GroupMember]) -> _Lists:
    return {member.member_id: [] for member in members}


def _range_of_members(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    assigned = _empty_lists(members)
    for topic, count in partitions.items():
        readers = [member.member_id for member in members if topic in member.topics]
        if not readers:
            continue
        for reader, (start, end) in zip(readers, _range_bounds(count, len(readers)), strict=True):
            assigned[reader] += _partitions_of(topic, range(start, end))
    return assigned


def _round_robin_of_members(
    members: Sequence[GroupMember], partitions: Mapping[str, int]
) -> _Lists:
    assigned = _empty_lists(members)
    next_index = 0
    for topic in sorted(partitions, key=java_order):
        readers = [index for index, member in enumerate(members) if topic in member.topics]
        if not readers:
            continue
        for number in range(partitions[topic]):
            index = _next_reader(readers, next_index)
            assigned[members[index].member_id].append(TopicPartition(topic, number))
            next_index = (index + 1) % len(members)
    return assigned


class _Topics:
    """The part of a cluster's metadata that kafka-python's assignors use."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._partitions.get(topic)
        if count is None:
            return None
        return set(range(count))


def _sticky(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    from kafka.coordinator.assignors.sticky.sticky_assignor import (
        StickyAssignmentExecutor,
        StickyAssignorMemberMetadataV1,
    )
    from kafka.structs import TopicPartition as KafkaTopicPartition

    if not members:
        return {}
    subscriptions = {}
    subscribed = set[str]()
    for member in members:
        subscribed.update(member.topics)
        generation = member.generation
        if generation is None:
            generation = -1
        owned = []
        for partition in sorted(_owned_and_existing(member, partitions)):
            owned.append(KafkaTopicPartition(partition.topic, partition.partition))
        subscriptions[member.member_id] = StickyAssignorMemberMetadataV1(
            subscription=sorted(member.topics),
            generation=generation,
            partitions=owned,
        )
    topics = _Topics(select_keys(partitions, subscribed))
    executor = StickyAssignmentExecutor(topics, subscriptions)
    executor.perform_initial_assignment()
    executor.balance()
    assigned: _Lists = {}
    for member in members:
        found = assigned[member.member_id] = []
        for topic, numbers in executor.get_final_assignment(member.member_id):
            found += _partitions_of(topic, numbers)
    return assigned


def _owned_and_existing(member: GroupMember, partitions: Mapping[str, int]) -> list[TopicPartition]:
    """Return what the member owns of the topics that it reads, without deleted partitions."""
    existing = []
    for partition in member.owned:
        if partition.topic in member.topics and partition.partition < partitions.get(
            partition.topic, 0
        ):
            existing.append(partition)
    return existing


def _cooperative_sticky(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    owners: dict[TopicPartition, set[str]] = {}
    for member in members:
        for partition in member.owned:
            owners.setdefault(partition, set()).add(member.member_id)
    assigned: _Lists = {}
    for member_id, wanted in _sticky(members, partitions).items():
        assigned[member_id] = [
            topic_partition
            for topic_partition in wanted
            if owners.get(topic_partition, set()) <= {member_id}
        ]
    return assigned


_STRATEGIES: Mapping[str, Callable[[Sequence[GroupMember], Mapping[str, int]], _Lists]] = {
    "range": _range_of_members,
    "roundrobin": _round_robin_of_members,
    "sticky": _sticky,
    "cooperative-sticky": _cooperative_sticky,
}
STRATEGIES = tuple(_STRATEGIES)


OTHERS_BACKOFF_S: Mapping[BrokerFamily, float] = {BrokerFamily.KAFKA: 2.0, BrokerFamily.JAFKA: 10.0}
"""Default time between two tries of an old consumer.

In 0.8 it is the time that ZooKeeper's followers may lag by its settings, 2 s.
"""


class Phase(Enum):
    """State of a member."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    LETTING_GO = "letting go"


class MemberAction(Enum):
    """Next action of a member."""

    REGISTER = "register"
    LOOK = "look"
    CLAIM = "claim"
    WAIT = "wait"
    REST = "rest"
    LET_GO = "let go"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class MemberState:
    """State of a member, with what it observed."""

    phase: Phase = Phase.UNJOINED
    group: object = None
    """Input of its assignment, as last observed; any comparable value."""
    nudges: int = 0
    """Number of nudges of the other members since it observed a change of the group."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times that a member waits for others."""

    join_timeout_s: float = 60.0
    """Time to settle.

    It is longer than the others' tries with their backoffs, else it gives up while they still try.
    """
    backoff_s: float = 2.0
    """Time before it observes again, unless an owner releases earlier."""
    others_backoff_s: float = 2.0
    """The others' backoff: one that owns nothing for longer may have given up."""


Step = tuple[MemberState, MemberAction]


def start_join(standing: MemberState) -> Step:
    """Start to join."""
    return replace(standing, phase=Phase.JOINING, group=None), MemberAction.REGISTER


def after_registration(standing: MemberState) -> Step:
    """Continue after the member's own znode was created."""
    return standing, MemberAction.LOOK


def after_observation(standing: MemberState, group: object, *, owns_its_share: bool) -> Step:
    """Continue after the group was observed.

    `group`: the input of the assignment now. `owns_its_share`: the member still owns its
    partitions.
    """
    if standing.phase is Phase.STABLE:
        if group == standing.group and owns_its_share:
            return standing, MemberAction.REST
        return replace(standing, phase=Phase.LETTING_GO), MemberAction.LET_GO
    if group != standing.group:
        standing = replace(standing, group=group, nudges=0)
    return standing, MemberAction.CLAIM


def after_claim(standing: MemberState, *, is_called: bool) -> Step:
    """Continue after all partitions of the member are claimed. `is_called`: an event came."""
    stable = replace(standing, phase=Phase.STABLE)
    if is_called:
        return stable, MemberAction.LOOK
    return stable, MemberAction.REST


def after_rejected_claim(standing: MemberState, timing: Timing, *, elapsed_s: float) -> Step:
    """Continue if a partition has another owner. `elapsed_s`: since the rebalance began."""
    if elapsed_s >= timing.join_timeout_s:
        return replace(standing, phase=Phase.UNJOINED), MemberAction.LEAVE
    return standing, MemberAction.WAIT


def after_backoff(standing: MemberState) -> Step:
    """Continue after the backoff, or after an event that came before its end."""
    return standing, MemberAction.LOOK


def after_release(standing: MemberState) -> Step:
    """Continue after the member released all its partitions."""
    return replace(standing, phase=Phase.JOINING), MemberAction.LOOK


def after_session_end(standing: MemberState) -> MemberState:
    """Return the state after the session expired, or after the member left."""
    return replace(standing, phase=Phase.UNJOINED)


def backoff_s(timing: Timing, *, elapsed_s: float) -> float:
    """Return the longest wait before the next observation."""
    return max(0.0, min(timing.backoff_s, timing.join_timeout_s - elapsed_s))


def nudge_after_s(standing: MemberState, timing: Timing) -> float | None:
    """Return the seconds until the member searches for unowned partitions.

    They count from its settling, or from the last nudge. The first time is half a backoff longer
    than the others' backoff, then it doubles, up to the time that others may take. A member that
    owns nothing after that does not want to. None: no more nudges.
    """
    first = 1.5 * timing.others_backoff_s
    spent = first * (2**standing.nudges - 1)
    if standing.nudges == 0 or spent < timing.join_timeout_s:
        return float(first * 2**standing.nudges)
    return None


def after_nudge(standing: MemberState) -> MemberState:
    """Return the state after a nudge of the other members."""
    return replace(standing, nudges=standing.nudges + 1)


def find_unowned(
    of_others: Collection[TopicPartition], owned: Collection[TopicPartition]
) -> frozenset[TopicPartition]:
    """Return the partitions that are assigned to other members and owned by none of them.

    Those members are between two tries, or have given up.
    """
    return frozenset(of_others).difference(owned)


KEEPS_LOGS = frozenset({"cooperative-sticky"})
"""Strategies with incremental rebalances: members release only what moves (KIP-429)."""
Log = TypeVar("Log", bound=Hashable)


class Next(Enum):
    """Next action of a member."""

    GO_ON = "continue"
    JOIN_AGAIN = "rejoin at once"
    ASK_AT_ONCE = "request the assignment at once"
    LOOK_UP = "find the coordinator after a pause"
    ASK_AGAIN = "retry after a pause"
    GIVE_UP = "leave the group"


@dataclass(frozen=True, slots=True)
class Reaction:
    """The meaning of a response for a member."""

    next: Next
    keeps_id: bool = True
    is_lost: bool = False
    """True if the membership or its assignment ended unexpectedly."""


_MEANS: Mapping[Meaning, Reaction] = {
    Meaning.REBALANCING: Reaction(Next.JOIN_AGAIN),
    Meaning.OLD_GENERATION: Reaction(Next.JOIN_AGAIN, is_lost=True),
    Meaning.FENCED_EPOCH: Reaction(Next.JOIN_AGAIN, is_lost=True),
    Meaning.UNKNOWN_MEMBER: Reaction(Next.JOIN_AGAIN, keeps_id=False, is_lost=True),
    Meaning.ID_REQUIRED: Reaction(Next.JOIN_AGAIN),
    Meaning.STALE_EPOCH: Reaction(Next.ASK_AT_ONCE),
    Meaning.NOT_COORDINATOR: Reaction(Next.LOOK_UP),
    Meaning.NO_COORDINATOR_YET: Reaction(Next.LOOK_UP),
    Meaning.FENCED: Reaction(Next.GIVE_UP, is_lost=True),
}


def reaction_to(refusal: BrokerRefusal | None) -> Reaction:
    """Return the meaning of a coordinator's response; see the module's table."""
    if refusal is None:
        return Reaction(Next.GO_ON)
    if refusal.is_retriable:
        unlisted = Reaction(Next.ASK_AGAIN)
    else:
        unlisted = Reaction(Next.GIVE_UP, is_lost=True)
    return _MEANS.get(refusal.meaning, unlisted)


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """Times of heartbeats: when the next is due, and whether the session may have ended.

    Moments are seconds of one monotonic clock.
    """

    interval_s: float
    session_s: float
    backoff_s: float
    """Pause after a failed request."""
    begun: float
    """Moment when the member joined, or began to join."""
    sent: float = float("-inf")
    received: float = float("-inf")
    """Moment of the last response of a coordinator that knew the member."""
    has_failed: bool = False

    def at_send(self, now: float) -> Heartbeats:
        """Return the times after a heartbeat was sent."""
        return replace(self, sent=now, has_failed=False)

    def at_answer(self, now: float) -> Heartbeats:
        """Return the times after a response of a coordinator that knew the member."""
        return replace(self, received=now)

    def at_failure(self) -> Heartbeats:
        """Return the times after a heartbeat failed."""
        return replace(self, has_failed=True)

    def at_join(self, now: float) -> Heartbeats:
        """Return the times after the member joined: the session begins here."""
        return replace(self, begun=now, has_failed=False)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next heartbeat is due.

        `max(0, delay - (now - max(last sent, last joined)))`
        """
        delay = self.interval_s
        if self.has_failed:
            delay = self.backoff_s
        return max(0.0, delay - (now - max(self.sent, self.begun)))

    def age_s(self, now: float) -> float:
        """Return the seconds since the last response of a coordinator that knew the member."""
        return now - max(self.received, self.begun)

    def is_over(self, now: float) -> bool:
        """True if the coordinator may have removed the member: no response for a whole session."""
        return self.age_s(now) > self.session_s


_LONGEST_INTERVAL_S = 3.0


def interval_of(session_s: float) -> float:
    """Return the seconds between heartbeats.

    A third of the session, so that one may be lost, and three at most, as only heartbeats report
    rebalances (27).
    """
    return min(_LONGEST_INTERVAL_S, session_s / 3)


@dataclass(frozen=True, slots=True)
class Reconciled(Generic[Log]):
    """Partitions that a member of an incremental protocol owns, and what it reports next."""

    owned: frozenset[Log]
    held: frozenset[Log]
    """Partitions to release later; they are assigned to no other member before."""

    @property
    def is_settled(self) -> bool:
        """True if all requested changes are done."""
        return not self.held


def reconcile_assignment(
    owned: frozenset[Log], target: frozenset[Log], *, holds: bool
) -> Reconciled[Log]:
    """Return the partitions to own if `target` is assigned.

    Partitions that are no longer assigned are released first, or held; new ones are owned after
    that.
    """
    revoked = owned - target
    if revoked and holds:
        return Reconciled(owned, revoked)
    return Reconciled(target, frozenset())
