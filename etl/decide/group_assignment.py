"""Which member of a group reads which partition, and what does a member do next?

ZooKeeper groups have no leader: each member computes the assignment and claims its own part. A
member that computes anything else finds owners in its way until it gives up, so the original
consumers are reproduced exactly:

                    Jafka, Kafka 0.7                 Kafka 0.8 to 1.1
    range           per topic: partitions in order, split into one interval per thread, the
                    first ones longer by one
    order           keys `broker-partition` as text  numbers
    round robin     does not exist                   all topics: partitions by the hash of their
                                                     names, dealt to all threads in turn
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
member does not. They try `tries` times, then own nothing until the next event: whoever blocks them
longer must create one after releasing (a nudge, `io.zookeeper.owners`).

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

A member that is leaving takes any answer for the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Generic, TypeVar

from etl.errors import BrokerRefusal, Meaning, SettingsError
from etl.ledger.registrations import Registration, consumer_of, thread_id
from etl.model.partitions import BrokerFamily, BrokerPartition

_LARGEST = 2**31 - 1


def java_hash(text: str, *, behind: int = 0) -> int:
    """Return `String.hashCode`: signed, 32 bits. `behind` is the hash of the text before, which is
    not hashed again.
    """
    found = behind
    for unit in text if text.isascii() else _units(text):
        found = 31 * found + (ord(unit) if isinstance(unit, str) else unit)
    found &= 0xFFFFFFFF
    return found - 2**32 if found > _LARGEST else found


def java_order(text: str) -> bytes:
    """Return a sort key for `String.compareTo`, which compares UTF-16 units: code points above
    U+FFFF come before U+E000.
    """
    return text.encode("utf-16-be", "surrogatepass")


def _units(text: str) -> list[int]:
    units = java_order(text)
    return [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]


Assignment = dict[str, tuple[BrokerPartition, ...]]
"""Every thread of the group and what it reads; nothing where there are more threads than logs."""


class Strategy(str, Enum):
    """`partition.assignment.strategy` of the group's consumers, with the release of theirs where
    that matters.
    """

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    """0.8.2 and 0.9; wherever it has an answer, it is that of 0.10 and 0.11."""
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
    """What the assignment depends on; equal for all members that observed the same."""

    members: Mapping[str, Mapping[str, int]]
    """Consumer id -> topic -> how many threads of it read that topic."""
    partitions: Mapping[str, Collection[BrokerPartition]]
    """Partitions of each topic, in any order; none for a missing topic. Range needs the topics in
    question, round robin each topic that a consumer of the group reads.
    """

    @property
    def threads(self) -> dict[str, list[str]]:
        """Those that read each topic, in the originals' order."""
        found: dict[str, list[str]] = {}
        for member, counts in self.members.items():
            for topic, count in counts.items():
                found.setdefault(topic, []).extend(
                    thread_id(member, number) for number in range(count)
                )
        return {topic: sorted(threads, key=java_order) for topic, threads in found.items()}


def context_of(
    registrations: Mapping[str, Registration], partitions: Mapping[str, Collection[BrokerPartition]]
) -> AssignmentContext:
    """The context of a group with these consumers (by consumer id), where these topics exist."""
    return AssignmentContext(
        {member: found.threads(partitions) for member, found in registrations.items()}, partitions
    )


def assign(context: AssignmentContext, strategy: Strategy, member: str) -> Assignment:
    """Return the partitions of each thread, as `member` and all other consumers compute them.
    Raises SettingsError if `member` is not in the group, and if round robin has no answer common to
    all.
    """
    if member not in context.members:
        message = "Our own registration is not among the group's consumers"
        raise SettingsError(
            message,
            consumer=member,
            action="Check whether somebody deleted the znode of this consumer",
        )
    if strategy is Strategy.RANGE:
        return _range(context)
    if strategy is Strategy.ROUND_ROBIN:
        _reject_unequal_threads(context)
    return _round_robin(context, strategy)


def assignment_of(member: str, assignment: Assignment) -> dict[BrokerPartition, str]:
    """The logs of one member, each with the thread of it that owns it."""
    return {
        log: thread
        for thread, logs in assignment.items()
        if consumer_of(thread) == member
        for log in logs
    }


def in_range_order(logs: Iterable[BrokerPartition]) -> list[BrokerPartition]:
    """The logs of one topic, as range cuts them: physical ones by key as text, so that `0-10` comes
    before `0-2`; others by number.
    """
    return sorted(
        logs, key=lambda log: (log.partition, "") if log.broker_id is None else (0, log.key)
    )


def _range(context: AssignmentContext) -> Assignment:
    found: dict[str, list[BrokerPartition]] = {}
    for topic, threads in context.threads.items():
        logs = in_range_order(context.partitions.get(topic, ()))
        each, longer = divmod(len(logs), len(threads))
        for at, thread in enumerate(threads):
            begins = each * at + min(at, longer)
            found.setdefault(thread, []).extend(logs[begins : begins + each + (at < longer)])
    return {thread: tuple(logs) for thread, logs in found.items()}


def _round_robin(context: AssignmentContext, strategy: Strategy) -> Assignment:
    readers = context.threads
    threads = sorted({thread for some in readers.values() for thread in some}, key=java_order)
    place = {thread: at for at, thread in enumerate(threads)}
    places = {topic: [place[thread] for thread in some] for topic, some in readers.items()}
    found: dict[str, list[BrokerPartition]] = {thread: [] for thread in threads}
    next_at = 0
    for log in _in_hash_order(context, readers, strategy, is_shared=len(threads) > 1):
        theirs = places[log.topic]
        at = theirs[bisect_left(theirs, next_at) % len(theirs)]
        found[threads[at]].append(log)
        next_at = (at + 1) % len(threads)
    return {thread: tuple(logs) for thread, logs in found.items()}


def _in_hash_order(
    context: AssignmentContext, topics: Iterable[str], strategy: Strategy, *, is_shared: bool
) -> list[BrokerPartition]:
    """Sort by hash. Raises SettingsError if partitions of two topics have equal hashes, since
    consumers would differ then.
    """
    before, between, after = (
        ("", "-", "") if strategy is Strategy.ROUND_ROBIN_1_0 else ("[", ",", "]")
    )
    hashed: list[tuple[int, int, BrokerPartition]] = []
    for topic in topics:
        prefix = java_hash(f"{before}{topic}{between}")
        hashed.extend(
            (java_hash(f"{log.partition}{after}", behind=prefix), log.partition, log)
            for log in context.partitions.get(topic, ())
        )
    hashed.sort()
    for (one, _, log), (another, _, other) in pairwise(hashed):
        if is_shared and one == another and log.topic != other.topic:
            message = (
                f"Round robin has no order for {log} and {other}: their names have the same hash"
            )
            raise SettingsError(
                message,
                action="Check partition.assignment.strategy of all consumers of the group: range knows no hash",
            )
    return [log for _, _, log in hashed]


def _reject_unequal_threads(context: AssignmentContext) -> None:
    """Check the conditions of 0.8.2 and 0.9, whose consumers fail otherwise. Raises SettingsError."""
    by_topic = sorted(context.threads.items())
    for (first, expected), (topic, threads) in pairwise(by_topic):
        if threads != expected:
            differing = min(set(threads) ^ set(expected))
            message = f"Round robin to 0.9 needs consumers that read the same topics with as many threads: {differing} reads one of two"
            raise SettingsError(
                message,
                topics=f"{first}, {topic}",
                action="Check the topics and threads of the group's consumers, or use range",
            )


Assigned = dict[str, frozenset[BrokerPartition]]
"""By member id, every member of the group among them."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as the leader sees it when all have joined."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[BrokerPartition] = frozenset()
    """Partitions that it reports as owned, for the sticky strategies."""
    generation: int | None = None
    """Generation of `owned`; None if its metadata lacks it."""


def assign_as_leader(
    strategy: str, members: Collection[GroupMember], partitions: Mapping[str, int]
) -> Assigned:
    """Return the assignment of each member. `partitions`: number of partitions of each existing
    topic. Raises SettingsError for an unknown strategy.
    """
    chosen = _STRATEGIES.get(strategy)
    if chosen is None:
        raise SettingsError(
            "The group's leader is asked for an assignment that is unknown here",
            strategy=strategy,
            action=f"Set group.join.assignment_strategy: one of {', '.join(STRATEGIES)}",
        )
    ordered = sorted(
        members,
        key=lambda member: (
            member.instance_id is None,
            java_order(member.member_id if member.instance_id is None else member.instance_id),
        ),
    )
    return {member: frozenset(logs) for member, logs in chosen(ordered, partitions).items()}


def find_unassigned(
    partitions: Mapping[str, int], assigned: Collection[BrokerPartition]
) -> frozenset[BrokerPartition]:
    """Return the partitions that exist and that no member has. `partitions`: how many each topic
    has, where it exists.
    """
    there = (
        BrokerPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count)
    )
    return frozenset(there).difference(assigned)


_Lists = dict[str, list[BrokerPartition]]


def _range_of_members(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    found: _Lists = {member.member_id: [] for member in members}
    for topic, count in partitions.items():
        readers = [member for member in members if topic in member.topics]
        each, longer = divmod(count, len(readers)) if readers else (0, 0)
        for at, member in enumerate(readers):
            begins = each * at + min(at, longer)
            found[member.member_id].extend(
                BrokerPartition(topic, p) for p in range(begins, begins + each + (at < longer))
            )
    return found


def _round_robin_of_members(
    members: Sequence[GroupMember], partitions: Mapping[str, int]
) -> _Lists:
    found: _Lists = {member.member_id: [] for member in members}
    next_at = 0
    for topic in sorted(partitions, key=java_order):
        readers = [at for at, member in enumerate(members) if topic in member.topics]
        for partition in range(partitions[topic] if readers else 0):
            at = readers[bisect_left(readers, next_at) % len(readers)]
            found[members[at].member_id].append(BrokerPartition(topic, partition))
            next_at = (at + 1) % len(members)
    return found


class _Topics:
    """The part of a cluster's metadata that kafka-python's assignors use."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._partitions.get(topic)
        return None if count is None else set(range(count))


def _sticky(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    from kafka.coordinator.assignors.sticky.sticky_assignor import (
        StickyAssignmentExecutor,
        StickyAssignorMemberMetadataV1,
    )
    from kafka.structs import TopicPartition

    if not members:
        return {}
    subscriptions = {
        member.member_id: StickyAssignorMemberMetadataV1(
            subscription=sorted(member.topics),
            generation=-1 if member.generation is None else member.generation,
            partitions=[
                TopicPartition(log.topic, log.partition)
                for log in sorted(_still_there(member, partitions))
            ],
        )
        for member in members
    }
    executor = StickyAssignmentExecutor(
        _Topics(
            {
                topic: count
                for topic, count in partitions.items()
                if any(topic in member.topics for member in members)
            }
        ),
        subscriptions,
    )
    executor.perform_initial_assignment()
    executor.balance()
    return {
        member.member_id: [
            BrokerPartition(topic, p)
            for topic, found in executor.get_final_assignment(member.member_id)
            for p in found
        ]
        for member in members
    }


def _still_there(member: GroupMember, partitions: Mapping[str, int]) -> list[BrokerPartition]:
    return [
        log
        for log in member.owned
        if log.topic in member.topics and log.partition < partitions.get(log.topic, 0)
    ]


def _cooperative_sticky(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    holders: dict[BrokerPartition, set[str]] = {}
    for member in members:
        for log in member.owned:
            holders.setdefault(log, set()).add(member.member_id)
    wanted = _sticky(members, partitions)
    return {
        member: [log for log in logs if not holders.get(log, set()) - {member}]
        for member, logs in wanted.items()
    }


_STRATEGIES: Mapping[str, Callable[[Sequence[GroupMember], Mapping[str, int]], _Lists]] = {
    "range": _range_of_members,
    "roundrobin": _round_robin_of_members,
    "sticky": _sticky,
    "cooperative-sticky": _cooperative_sticky,
}
STRATEGIES = tuple(_STRATEGIES)


OTHERS_BACKOFF_S: Mapping[BrokerFamily, float] = {BrokerFamily.KAFKA: 2.0, BrokerFamily.JAFKA: 10.0}
"""Between two tries of an old consumer, by default. In 0.8 that is as long as ZooKeeper's followers
may lag by its settings, 2 s.
"""


class Phase(Enum):
    """State of a member."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    LETTING_GO = "letting go"


class Do(Enum):
    """Next action of a member."""

    REGISTER = "register"
    LOOK = "look"
    CLAIM = "claim"
    WAIT = "wait"
    REST = "rest"
    LET_GO = "let go"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a member, with what it observed."""

    phase: Phase = Phase.UNJOINED
    group: object = None
    """What its assignment depends on, as last observed; any comparable value."""
    nudges: int = 0
    """How often it called the others since it saw the group change."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a member waits for others."""

    join_timeout_s: float = 60.0
    """Time to settle. Longer than the others' tries with their backoffs, else it gives up while
    they still try.
    """
    backoff_s: float = 2.0
    """Time before it observes again, unless an owner releases earlier."""
    others_backoff_s: float = 2.0
    """The others' backoff: one that owns nothing for longer may have given up."""


Step = tuple[Standing, Do]


def to_join(standing: Standing) -> Step:
    """Begin."""
    return replace(standing, phase=Phase.JOINING, group=None), Do.REGISTER


def registered(standing: Standing) -> Step:
    """Its own node is there."""
    return standing, Do.LOOK


def looked(standing: Standing, group: object, *, owns_its_share: bool) -> Step:
    """`group`: what the assignment depends on now; `owns_its_share`: whether its partitions are
    still its own.
    """
    if standing.phase is Phase.STABLE:
        if group == standing.group and owns_its_share:
            return standing, Do.REST
        return replace(standing, phase=Phase.LETTING_GO), Do.LET_GO
    if group != standing.group:
        standing = replace(standing, group=group, nudges=0)
    return standing, Do.CLAIM


def claimed(standing: Standing, *, is_called: bool) -> Step:
    """All its partitions are claimed."""
    return replace(standing, phase=Phase.STABLE), Do.LOOK if is_called else Do.REST


def refused(standing: Standing, timing: Timing, *, elapsed_s: float) -> Step:
    """A partition has another owner; `elapsed_s` since the rebalance began."""
    if elapsed_s >= timing.join_timeout_s:
        return replace(standing, phase=Phase.UNJOINED), Do.LEAVE
    return standing, Do.WAIT


def waited(standing: Standing) -> Step:
    """The backoff is over, or something happened before."""
    return standing, Do.LOOK


def let_go(standing: Standing) -> Step:
    """It owns nothing any more."""
    return replace(standing, phase=Phase.JOINING), Do.LOOK


def ended(standing: Standing) -> Standing:
    """Its session has ended, or it left."""
    return replace(standing, phase=Phase.UNJOINED)


def backoff_s(timing: Timing, *, elapsed_s: float) -> float:
    """Return the longest wait before the next observation."""
    return max(0.0, min(timing.backoff_s, timing.join_timeout_s - elapsed_s))


def nudge_after_s(standing: Standing, timing: Timing) -> float | None:
    """Return the seconds after settling, or after the last nudge, until the member looks for
    unowned partitions; None: no more.

    Half a backoff longer than others sleep, then doubled each time, within the time that others may
    take. A member that owns nothing after that does not want to.
    """
    first = 1.5 * timing.others_backoff_s
    spent = first * (2**standing.nudges - 1)
    if standing.nudges == 0 or spent < timing.join_timeout_s:
        return float(first * 2**standing.nudges)
    return None


def nudged(standing: Standing) -> Standing:
    """It called the others."""
    return replace(standing, nudges=standing.nudges + 1)


def ownerless(
    of_others: Collection[BrokerPartition], owned: Collection[BrokerPartition]
) -> frozenset[BrokerPartition]:
    """The logs that the group gives to others and that none of them has: they are between two
    tries, or have given up.
    """
    return frozenset(of_others).difference(owned)


KEEPS_LOGS = frozenset({"cooperative-sticky"})
"""Strategies whose members keep what they own during a rebalance and release only what moves
(KIP-429).
"""
Log = TypeVar("Log", bound=Hashable)


class Next(Enum):
    """Next action of a member."""

    GO_ON = "go on"
    JOIN_AGAIN = "join again at once"
    ASK_AT_ONCE = "ask at once what changed"
    LOOK_UP = "look the coordinator up again, after a pause"
    ASK_AGAIN = "ask again, after a pause"
    GIVE_UP = "be no member any more"


@dataclass(frozen=True, slots=True)
class Answered:
    """The meaning of a response for a member."""

    next: Next
    keeps_id: bool = True
    is_lost: bool = False
    """True if the membership or its assignment ended unexpectedly."""


_MEANS: Mapping[Meaning, Answered] = {
    Meaning.REBALANCING: Answered(Next.JOIN_AGAIN),
    Meaning.OLD_GENERATION: Answered(Next.JOIN_AGAIN, is_lost=True),
    Meaning.FENCED_EPOCH: Answered(Next.JOIN_AGAIN, is_lost=True),
    Meaning.UNKNOWN_MEMBER: Answered(Next.JOIN_AGAIN, keeps_id=False, is_lost=True),
    Meaning.ID_REQUIRED: Answered(Next.JOIN_AGAIN),
    Meaning.STALE_EPOCH: Answered(Next.ASK_AT_ONCE),
    Meaning.NOT_COORDINATOR: Answered(Next.LOOK_UP),
    Meaning.NO_COORDINATOR_YET: Answered(Next.LOOK_UP),
    Meaning.FENCED: Answered(Next.GIVE_UP, is_lost=True),
}


def answered(refusal: BrokerRefusal | None) -> Answered:
    """Return the meaning of a coordinator's response; see the module's table."""
    if refusal is None:
        return Answered(Next.GO_ON)
    if refusal.is_retriable:
        unlisted = Answered(Next.ASK_AGAIN)
    else:
        unlisted = Answered(Next.GIVE_UP, is_lost=True)
    return _MEANS.get(refusal.meaning, unlisted)


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """When the next heartbeat is due, and whether the session may still be alive. Moments are
    seconds of one clock that never goes back.
    """

    interval_s: float
    session_s: float
    backoff_s: float
    """Pause after a failed request."""
    begun: float
    """When the member joined, or began to."""
    sent: float = float("-inf")
    received: float = float("-inf")
    """When the last answer came that knew the member."""
    has_failed: bool = False

    def at_send(self, now: float) -> Heartbeats:
        """One is sent."""
        return replace(self, sent=now, has_failed=False)

    def at_answer(self, now: float) -> Heartbeats:
        """The coordinator knew the member."""
        return replace(self, received=now)

    def at_failure(self) -> Heartbeats:
        """The last one came to nothing."""
        return replace(self, has_failed=True)

    def at_join(self, now: float) -> Heartbeats:
        """The member joined: time counts from here."""
        return replace(self, begun=now, has_failed=False)

    def wait_s(self, now: float) -> float:
        """Until the next one is due: `max(0, delay - (now - max(last sent, last joined)))`."""
        delay = self.backoff_s if self.has_failed else self.interval_s
        return max(0.0, delay - (now - max(self.sent, self.begun)))

    def age_s(self, now: float) -> float:
        """Since the coordinator last showed that it knows the member."""
        return now - max(self.received, self.begun)

    def is_over(self, now: float) -> bool:
        """True if the coordinator may have removed the member: no response for a whole session."""
        return self.age_s(now) > self.session_s


_LONGEST_INTERVAL_S = 3.0


def interval_of(session_s: float) -> float:
    """Return the seconds between heartbeats: a third of the session, so that one may be lost, and
    three at most, since only heartbeats report rebalances (27).
    """
    return min(_LONGEST_INTERVAL_S, session_s / 3)


@dataclass(frozen=True, slots=True)
class Reconciled(Generic[Log]):
    """What a member of an incremental protocol owns, and what it reports next."""

    owned: frozenset[Log]
    held: frozenset[Log]
    """To be released later; nobody else is assigned them before."""

    @property
    def is_settled(self) -> bool:
        """True if all requested changes are done."""
        return not self.held


def reconciled(owned: frozenset[Log], target: frozenset[Log], *, holds: bool) -> Reconciled[Log]:
    """Return what to own if `target` is assigned: partitions no longer assigned are released first
    or held; new ones are taken after that.
    """
    revoked = owned - target
    if revoked and holds:
        return Reconciled(owned, revoked)
    return Reconciled(target, frozenset())
