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
    """`String.hashCode`: a signed number of 32 bits. `behind`: the hash of what stands before this
    text, which is then not looked at.
    """
    found = behind
    for unit in text if text.isascii() else _units(text):
        found = 31 * found + (ord(unit) if isinstance(unit, str) else unit)
    found &= 0xFFFFFFFF
    return found - 2**32 if found > _LARGEST else found


def java_order(text: str) -> bytes:
    """A key to sort by: `String.compareTo` compares units of UTF-16, so what lies above U+FFFF
    comes before U+E000.
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
        """Whether a thread's share of one topic hangs on what else the group reads."""
        return self is not Strategy.RANGE


@dataclass(frozen=True, slots=True)
class AssignmentContext:
    """What the assignment follows from: the same for every member of the group, once all have seen
    the same.
    """

    members: Mapping[str, Mapping[str, int]]
    """Consumer id -> topic -> how many threads of it read that topic."""
    partitions: Mapping[str, Collection[BrokerPartition]]
    """The logs of each topic, in any order; a topic that is not there has none. Range needs those
    of the topics that are asked about, round robin those of every topic that a consumer of the
    group reads."""

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
    """What each thread of the group reads, as `member` and every other consumer of it computes.

    Raises SettingsError where `member` is not among the group's consumers, and where round robin
    has no answer that all come to.
    """
    if member not in context.members:
        what = "our own registration is not among the group's consumers"
        raise SettingsError(
            what, consumer=member, check="whether somebody deleted the znode of this consumer"
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
    """Raises SettingsError where logs of two topics have the same hash: which comes first then, no
    consumer could tell for another.
    """
    before, between, behind = (
        ("", "-", "") if strategy is Strategy.ROUND_ROBIN_1_0 else ("[", ",", "]")
    )
    hashed: list[tuple[int, int, BrokerPartition]] = []
    for topic in topics:
        prefix = java_hash(f"{before}{topic}{between}")
        hashed.extend(
            (java_hash(f"{log.partition}{behind}", behind=prefix), log.partition, log)
            for log in context.partitions.get(topic, ())
        )
    hashed.sort()
    for (one, _, log), (another, _, other) in pairwise(hashed):
        if is_shared and one == another and log.topic != other.topic:
            what = f"round robin has no order for {log} and {other}: their names have the same hash"
            raise SettingsError(
                what,
                check="partition.assignment.strategy of all consumers of the group: range knows no hash",
            )
    return [log for _, _, log in hashed]


def _reject_unequal_threads(context: AssignmentContext) -> None:
    """The conditions of 0.8.2 and 0.9, whose consumers all fail where they do not hold. Raises
    SettingsError.
    """
    by_topic = sorted(context.threads.items())
    for (first, expected), (topic, threads) in pairwise(by_topic):
        if threads != expected:
            differing = min(set(threads) ^ set(expected))
            what = f"round robin to 0.9 needs consumers that read the same topics with as many threads: {differing} reads one of two"
            raise SettingsError(
                what,
                topics=f"{first}, {topic}",
                check="the topics and threads of the group's consumers, or use range",
            )


Assigned = dict[str, frozenset[BrokerPartition]]
"""By member id, every member of the group among them."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member as the leader is told of it when all have joined."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[BrokerPartition] = frozenset()
    """What it says that it has, for the sticky ones."""
    generation: int | None = None
    """Of which generation it has that; None where its metadata does not tell."""


def assign_as_leader(
    strategy: str, members: Collection[GroupMember], partitions: Mapping[str, int]
) -> Assigned:
    """What each member gets. `partitions`: how many each topic has, where it exists. Raises
    SettingsError for an unknown strategy.
    """
    chosen = _STRATEGIES.get(strategy)
    if chosen is None:
        raise SettingsError(
            "the group's leader is asked for an assignment that is unknown here",
            strategy=strategy,
            check=f"ownership.strategy: one of {', '.join(STRATEGIES)}",
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
    """What kafka-python's executor asks of a cluster."""

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
    told = {
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
        told,
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
    """Where a member stands."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    LETTING_GO = "letting go"


class Do(Enum):
    """What it does next."""

    REGISTER = "register"
    LOOK = "look"
    CLAIM = "claim"
    WAIT = "wait"
    REST = "rest"
    LET_GO = "let go"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a member stands."""

    phase: Phase = Phase.UNJOINED
    group: object = None
    """All that its share follows from, as it saw it last; anything that can be compared."""
    nudges: int = 0
    """How often it called the others since it saw the group change."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a member waits for others."""

    join_timeout_s: float = 60.0
    """For a settled share. Longer than the tries of the others with their backoffs, or it gives up
    while they still try.
    """
    backoff_s: float = 2.0
    """Before it looks again; that somebody let go ends it early."""
    others_backoff_s: float = 2.0
    """Theirs: whoever owns nothing for longer than that may have given up."""


Step = tuple[Standing, Do]


def to_join(standing: Standing) -> Step:
    """Begin."""
    return replace(standing, phase=Phase.JOINING, group=None), Do.REGISTER


def registered(standing: Standing) -> Step:
    """Its own node is there."""
    return standing, Do.LOOK


def looked(standing: Standing, group: object, *, owns_its_share: bool) -> Step:
    """`group`: what the share follows from, as it is now; `owns_its_share`: whether the logs of the
    last share are still its.
    """
    if standing.phase is Phase.STABLE:
        if group == standing.group and owns_its_share:
            return standing, Do.REST
        return replace(standing, phase=Phase.LETTING_GO), Do.LET_GO
    if group != standing.group:
        standing = replace(standing, group=group, nudges=0)
    return standing, Do.CLAIM


def claimed(standing: Standing, *, is_called: bool) -> Step:
    """All of its share is its."""
    return replace(standing, phase=Phase.STABLE), Do.LOOK if is_called else Do.REST


def refused(standing: Standing, timing: Timing, *, elapsed_s: float) -> Step:
    """Somebody else owns a log of its share; `elapsed_s` since it began to rebalance."""
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
    """How long to wait at most before the next look."""
    return max(0.0, min(timing.backoff_s, timing.join_timeout_s - elapsed_s))


def nudge_after_s(standing: Standing, timing: Timing) -> float | None:
    """How long after it settled, or after the last nudge, a member looks whether logs of others
    have no owner.

    None: not any more. Half a backoff of theirs longer than they sleep at most, then twice as long
    each time; as often as fits into the time that the others may take. One that owns nothing after
    that does not want to.
    """
    first = 1.5 * timing.others_backoff_s
    spent = first * (2**standing.nudges - 1)
    return (
        first * 2**standing.nudges
        if standing.nudges == 0 or spent < timing.join_timeout_s
        else None
    )


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
"""Strategies whose members keep what they own while the group divides its logs anew, and let go of
what moves (KIP-429).
"""
Log = TypeVar("Log", bound=Hashable)


class Next(Enum):
    """What a member does next."""

    GO_ON = "go on"
    JOIN_AGAIN = "join again at once"
    ASK_AT_ONCE = "ask at once what changed"
    LOOK_UP = "look the coordinator up again, after a pause"
    ASK_AGAIN = "ask again, after a pause"
    GIVE_UP = "be no member any more"


@dataclass(frozen=True, slots=True)
class Answered:
    """What an answer means to a member."""

    next: Next
    keeps_id: bool = True
    is_lost: bool = False
    """Whether the membership ended, or its share, without anybody's having asked for it in time."""


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
    """What a coordinator's answer means; see the table of the module."""
    if refusal is None:
        return Answered(Next.GO_ON)
    unlisted = (
        Answered(Next.ASK_AGAIN) if refusal.is_retriable else Answered(Next.GIVE_UP, is_lost=True)
    )
    return _MEANS.get(refusal.meaning, unlisted)


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """When the next heartbeat is due, and whether the session may still be alive. Moments are
    seconds of one clock that never goes back.
    """

    interval_s: float
    session_s: float
    backoff_s: float
    """What is waited after one that failed."""
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
        """Whether the coordinator may have taken the member for gone: nothing was heard for a whole
        session.
        """
        return self.age_s(now) > self.session_s


_LONGEST_INTERVAL_S = 3.0


def interval_of(session_s: float) -> float:
    """Seconds between heartbeats: a third of the session, so that one may be lost, and no more than
    three, for 27 is told by none else.
    """
    return min(_LONGEST_INTERVAL_S, session_s / 3)


@dataclass(frozen=True, slots=True)
class Reconciled(Generic[Log]):
    """What a member of a protocol in which logs move one by one has, and what is next to say of it."""

    owned: frozenset[Log]
    held: frozenset[Log]
    """To be let go, and not yet: nobody else gets them before."""

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing that was asked for and not yet done."""
        return not self.held


def reconciled(owned: frozenset[Log], target: frozenset[Log], *, holds: bool) -> Reconciled[Log]:
    """What to own, where `target` is assigned: what is assigned no more is let go first, or held;
    what is new is taken only behind that.
    """
    revoked = owned - target
    if revoked and holds:
        return Reconciled(owned, revoked)
    return Reconciled(target, frozenset())
