"""Which thread of a group in ZooKeeper reads which log, as each of its consumers computes it for
itself. Pure functions of values.

Nobody leads such a group: all members compute, each claims its own part, and a member that computes
anything else finds owners in its way until it gives up. So this is what the originals do, not what
would be better:

                    Jafka, Kafka 0.7                 Kafka 0.8 to 1.1
    range           each topic by itself: its logs in order, cut into as many stretches as threads read it, the first ones by one longer
    logs in order   keys `broker-partition` as text  numbers
    round robin     unknown                          all topics: logs in the order of their names' hash, dealt to all threads in turn
    threads         as text, so that `c-10` comes before `c-2`

Round robin is three: in 0.8.2 and 0.9 all members must read the same topics with the same threads,
or their rebalance fails; 0.10 and 0.11 ask nothing of that kind, and pass over threads that do not
read a log's topic; 1.0 and 1.1 have another order, for there a log is called `clicks-3` and not
`[clicks,3]`. Registrations do not tell the release that wrote them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from etl.decisions.membership.java_order import java_hash, java_order
from etl.errors import SettingsError
from etl.ledger.registrations import Registration, consumer_of, thread_id
from etl.model.partitions import BrokerPartition

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
        _refuse_unequal_threads(context)
    return _round_robin(context, strategy)


def share_of(member: str, assignment: Assignment) -> dict[BrokerPartition, str]:
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


def _refuse_unequal_threads(context: AssignmentContext) -> None:
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
