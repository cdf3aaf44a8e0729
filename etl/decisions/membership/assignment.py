"""Which thread of a group in ZooKeeper reads which log, as each of its consumers computes it for itself. Pure functions of values.

Nobody leads such a group: all members compute, each claims its own part, and a member that computes anything else finds owners in its way
until it gives up. So this is what the originals do, not what would be better:

                    Jafka, Kafka 0.7                 Kafka 0.8 to 1.1
    range           each topic by itself: its logs in order, cut into as many stretches as threads read it, the first ones by one longer
    logs in order   keys `broker-partition` as text  numbers
    round robin     unknown                          all topics: logs in the order of their names' hash, dealt to all threads in turn
    threads         as text, so that `c-10` comes before `c-2`

Round robin deals what the consumer that computes reads, not what the group reads. In 0.8.2 all members must read the same topics with the
same threads, or their rebalance fails. From 0.9 on nothing is asked, and consumers of different topics deal different partitions: they
agree by luck. What a log's name is differs, too: `[clicks,3]` to 0.11, `clicks-3` in 1.0 and 1.1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from etl.decisions.membership.java_order import java_hash, java_order
from etl.errors import SettingsError
from etl.model.logs import BrokerPartition
from etl.protocol.zookeeper.consumers import Registration, consumer_of, thread_id

Assignment = dict[str, tuple[BrokerPartition, ...]]
"""Every thread of the group and what it reads; nothing where there are more threads than logs."""


class Strategy(str, Enum):
    """`partition.assignment.strategy` of the group's consumers, with the release of theirs where that matters."""

    RANGE = "range"
    ROUND_ROBIN_0_8 = "roundrobin-0.8"
    """0.8.2 alone."""
    ROUND_ROBIN = "roundrobin"
    """0.9 to 0.11; the same as in 0.8.2 wherever that has an answer."""
    ROUND_ROBIN_1_0 = "roundrobin-1.0"
    """1.0 and 1.1."""


@dataclass(frozen=True, slots=True)
class AssignmentContext:
    """What the assignment follows from: the same for every member of the group, once all have seen the same."""

    members: Mapping[str, Mapping[str, int]]
    """Consumer id -> topic -> how many threads of it read that topic."""
    partitions: Mapping[str, Collection[BrokerPartition]]
    """The logs of each topic, in any order; a topic that is not there has none. Those of topics that a member does not read may be
    missing when its share is asked for."""

    @property
    def threads(self) -> dict[str, list[str]]:
        """Those that read each topic, in the originals' order."""
        found: dict[str, list[str]] = {}
        for member, counts in self.members.items():
            for topic, count in counts.items():
                found.setdefault(topic, []).extend(thread_id(member, number) for number in range(count))
        return {topic: sorted(threads, key=java_order) for topic, threads in found.items()}

    def topics_of(self, member: str) -> frozenset[str]:
        """Raises SettingsError where the group has no such consumer."""
        if member not in self.members:
            what = "our own registration is not among the group's consumers"
            raise SettingsError(what, consumer=member, check="whether somebody deleted the znode of this consumer")
        return frozenset(self.members[member])


def context_of(registrations: Mapping[str, Registration], partitions: Mapping[str, Collection[BrokerPartition]]) -> AssignmentContext:
    """The context of a group with these consumers (by consumer id), where these topics exist."""
    return AssignmentContext({member: found.threads(partitions) for member, found in registrations.items()}, partitions)


def assign(context: AssignmentContext, strategy: Strategy, member: str) -> Assignment:
    """What each thread of the group reads of the topics that `member` reads, as `member` computes it; of other topics, nothing.

    Raises SettingsError where `member` is no consumer of the group, and where round robin has no answer that all members come to.
    """
    topics = context.topics_of(member)
    if strategy is Strategy.RANGE:
        return _range(context, topics)
    if strategy is Strategy.ROUND_ROBIN_0_8:
        _refuse_unequal_threads(context)
    dealt = _round_robin(context, topics, strategy)
    _refuse_other_views(context, topics, strategy, dealt)
    return dealt


def share_of(member: str, assignment: Assignment) -> dict[BrokerPartition, str]:
    """The logs of one member, each with the thread of it that owns it."""
    return {log: thread for thread, logs in assignment.items() if consumer_of(thread) == member for log in logs}


def in_range_order(logs: Iterable[BrokerPartition]) -> list[BrokerPartition]:
    """The logs of one topic, as range cuts them: physical ones by key as text, so that `0-10` comes before `0-2`; others by number."""
    return sorted(logs, key=lambda log: (log.partition, "") if log.broker_id is None else (0, log.key))


def _range(context: AssignmentContext, topics: Collection[str]) -> Assignment:
    found: dict[str, list[BrokerPartition]] = {}
    for topic, threads in context.threads.items():
        for thread in threads:
            found.setdefault(thread, [])
        if topic in topics:
            logs = in_range_order(context.partitions.get(topic, ()))
            each, longer = divmod(len(logs), len(threads))
            for at, thread in enumerate(threads):
                begins = each * at + min(at, longer)
                found[thread].extend(logs[begins:begins + each + (at < longer)])
    return {thread: tuple(logs) for thread, logs in found.items()}


def _round_robin(context: AssignmentContext, topics: Collection[str], strategy: Strategy) -> Assignment:
    readers = context.threads
    threads = sorted({thread for some in readers.values() for thread in some}, key=java_order)
    place = {thread: at for at, thread in enumerate(threads)}
    places = {topic: [place[thread] for thread in some] for topic, some in readers.items()}
    found: dict[str, list[BrokerPartition]] = {thread: [] for thread in threads}
    next_at = 0
    for log in _in_hash_order(context, topics, strategy, is_shared=len(threads) > 1):
        theirs = places[log.topic]
        at = theirs[bisect_left(theirs, next_at) % len(theirs)]
        found[threads[at]].append(log)
        next_at = (at + 1) % len(threads)
    return {thread: tuple(logs) for thread, logs in found.items()}


def _in_hash_order(
    context: AssignmentContext, topics: Collection[str], strategy: Strategy, *, is_shared: bool,
) -> list[BrokerPartition]:
    """Raises SettingsError where logs of two topics have the same hash: which comes first then, no consumer could tell for another."""
    before, between, behind = ("", "-", "") if strategy is Strategy.ROUND_ROBIN_1_0 else ("[", ",", "]")
    hashed: list[tuple[int, int, BrokerPartition]] = []
    for topic in topics:
        prefix = java_hash(f"{before}{topic}{between}")
        hashed.extend((java_hash(f"{log.partition}{behind}", behind=prefix), log.partition, log)
                      for log in context.partitions.get(topic, ()))
    hashed.sort()
    for (one, _, log), (another, _, other) in pairwise(hashed):
        if is_shared and one == another and log.topic != other.topic:
            what = f"round robin has no order for {log} and {other}: their names have the same hash"
            raise SettingsError(what, check="partition.assignment.strategy of all consumers of the group: range knows no hash")
    return [log for _, _, log in hashed]


def _refuse_unequal_threads(context: AssignmentContext) -> None:
    """The two conditions of 0.8.2, whose consumers all fail where they do not hold. Raises SettingsError."""
    by_topic = sorted(context.threads.items())
    for (first, expected), (topic, threads) in pairwise(by_topic):
        if threads != expected:
            differing = min(set(threads) ^ set(expected))
            what = f"round robin of 0.8.2 needs consumers that read the same topics with as many threads: {differing} reads one of two"
            raise SettingsError(what, topics=f"{first}, {topic}", check="the topics and threads of the group's consumers, or use range")


def _refuse_other_views(context: AssignmentContext, topics: frozenset[str], strategy: Strategy, dealt: Assignment) -> None:
    """Raises SettingsError where a consumer that reads other topics deals the common ones differently: both would claim the same log."""
    owners = _owners(dealt)
    for theirs in {context.topics_of(member) for member in context.members} - {topics}:
        if not theirs & topics:
            continue
        for log, thread in _owners(_round_robin(context, theirs, strategy)).items():
            if owners.get(log, thread) != thread:
                what = f"consumers of the group disagree about {log}: it is for {owners[log]} or for {thread}, by the topics that one reads"
                raise SettingsError(what, check="that all consumers of the group read the same topics, or use range")


def _owners(assignment: Assignment) -> dict[BrokerPartition, str]:
    return {log: thread for thread, logs in assignment.items() for log in logs}
