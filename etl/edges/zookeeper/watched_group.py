"""What a member's share follows from, read with watches: who is registered, and which partitions
there are.

A watch fires once. It is set by the very request that reads, so nothing that changes later is
missed; and when the connection breaks kazoo fires all of them, so that everything is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.exceptions import NoNodeError

from etl.decide.group_assignment import AssignmentContext, Strategy, context_of
from etl.edges.zookeeper.members import GroupMembers
from etl.edges.zookeeper.physical_registry import unknown_registration
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import SettingsError
from etl.ledger.paths import BROKER_IDS, BROKER_TOPICS, GroupPaths
from etl.ledger.registrations import (
    FilteredTopics,
    Registration,
    parse_count,
    parse_registration,
    parse_replicas,
)
from etl.ledger.topic_filters import TopicFilter
from etl.model.partitions import BrokerFamily, BrokerPartition

T = TypeVar("T")


class Bell:
    """Merges what happens: whoever waits is woken, and `is_called` says whether the group may have
    changed since it was last silenced.
    """

    def __init__(self) -> None:
        self.rung = threading.Event()
        self.is_called = False

    def call(self, *_: object) -> None:
        """The group may have changed. A watch."""
        self.is_called = True
        self.rung.set()

    def silence(self) -> None:
        """Before the group is read."""
        self.is_called = False


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group at one moment. Two that are equal divide their logs alike."""

    registrations: Mapping[str, Registration]
    partitions: Mapping[str, Collection[BrokerPartition]]
    """Of each topic that counts for the share, where it exists: a filter lets none pass that does
    not.
    """

    @property
    def context(self) -> AssignmentContext:
        """As the strategies take it."""
        return context_of(self.registrations, self.partitions)


class WatchedGroup:
    """Reads one group, and rings `bell` whenever what was read has changed. Raises what `ZooKeeper`
    raises.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, dialect: BrokerFamily, bell: Bell) -> None:
        self._zookeeper, self._dialect, self._bell = zookeeper, dialect, bell
        self._members, self._ids = GroupMembers(zookeeper, group), GroupPaths(group).consumer_ids

    def read(self, topics: Collection[str], strategy: Strategy) -> SeenGroup:
        """The group as it is now, with the partitions of these topics; of all that the group reads,
        where the strategy deals them together.

        An old consumer is not called when a topic changes that it does not read, and keeps what it
        has until the next event. We are called: who keeps what it had is in the way of those who
        are, too. Raises SettingsError where a registration cannot be read by all of the group's
        consumers, so that no rebalance of theirs succeeds, or where we do not know what it means;
        CorruptData for a count of partitions that is none.
        """
        self._bell.silence()
        members, _ = self._children(
            [self._ids, BROKER_IDS]
        )  # where no broker was there, old consumers share anew once one is
        registrations = {
            member: self._parsed(member, payload)
            for member, payload in self._members.read(members).items()
        }
        counting = (
            set(topics) | self._of_others(registrations) if strategy.deals_all_topics else topics
        )
        return SeenGroup(registrations, self._partitions(sorted(counting)))

    def _of_others(self, registrations: Mapping[str, Registration]) -> set[str]:
        """What the group's consumers read. The list of topics is watched while one of them has a
        filter.
        """
        has_filter = any(
            isinstance(found.reads, FilteredTopics) for found in registrations.values()
        )
        existing = self._children([BROKER_TOPICS])[0] if has_filter else ()
        return {topic for found in registrations.values() for topic in found.threads(existing)}

    def topics_allowed(self, wanted: TopicFilter) -> frozenset[str]:
        """The topics that are there now and pass. To be asked behind `read`, which silences the
        bell.
        """
        return frozenset(
            topic for topic in self._children([BROKER_TOPICS])[0] if wanted.allows(topic)
        )

    def _parsed(self, member: str, payload: bytes) -> Registration:
        path = self._members.path(member)
        found = parse_registration(payload, path=path)
        if (
            found.dialect is not self._dialect
            or self._dialect is BrokerFamily.JAFKA
            and isinstance(found.reads, FilteredTopics)
        ):
            what = f"a consumer of the group is registered in a form that those of {self._dialect.value} cannot read: {payload[:80]!r}"
            check = "that consumer, and source.dialect; while it is there the group's old consumers fail to rebalance"
            raise SettingsError(what, znode=path, check=check)
        return found

    def _partitions(self, topics: Sequence[str]) -> dict[str, Collection[BrokerPartition]]:
        paths = [f"{BROKER_TOPICS}/{topic}" for topic in topics]
        if self._dialect is BrokerFamily.JAFKA:
            return self._physical(topics, self._children(paths))
        return {
            topic: tuple(
                BrokerPartition(topic, number) for number in sorted(parse_replicas(payload))
            )
            for topic, payload in zip(topics, self._payloads(paths), strict=True)
            if payload is not None
        }

    def _physical(
        self, topics: Sequence[str], brokers: Sequence[Collection[str]]
    ) -> dict[str, Collection[BrokerPartition]]:
        """A broker that goes or comes between the two reads, or counts anew, has fired the watch."""
        asked = [
            (topic, broker)
            for topic, some in zip(topics, brokers, strict=True)
            for broker in sorted(some)
            if broker.isdecimal()
        ]
        found: dict[str, list[BrokerPartition]] = {topic: [] for topic in topics}
        paths = [f"{BROKER_TOPICS}/{topic}/{broker}" for topic, broker in asked]
        for (topic, broker), path, payload in zip(
            asked, paths, self._zookeeper.read_all(paths), strict=True
        ):
            if payload is None:
                continue
            count = parse_count(payload[0])
            if count is None:
                raise unknown_registration(path, payload[0], "a number of partitions")
            found[topic] += (BrokerPartition(topic, number, int(broker)) for number in range(count))
        return {topic: tuple(logs) for topic, logs in found.items()}

    def _children(self, paths: Sequence[str]) -> list[list[str]]:
        """Names of each znode's children; none where it is not there."""
        client = self._zookeeper.client
        found = self._watched(paths, lambda path: client.get_children_async(path, self._bell.call))
        return [list(names or ()) for names in found]

    def _payloads(self, paths: Sequence[str]) -> list[bytes | None]:
        """Of each znode; None where it is not there."""
        client = self._zookeeper.client
        found = self._watched(paths, lambda path: client.get_async(path, self._bell.call))
        return [answer[0] or b"" if answer else None for answer in found]

    def _watched(self, paths: Sequence[str], ask: Callable[[str], Any]) -> list[Any]:
        """All asked before the first answer is awaited. A znode that is not there is watched until
        it is.
        """
        client = self._zookeeper.client

        def every() -> list[Any]:
            return [_or_none(answer) for answer in [ask(path) for path in paths]]

        def absent(missing: Sequence[str]) -> list[Any]:
            return [
                answer.get()
                for answer in [client.exists_async(path, self._bell.call) for path in missing]
            ]

        found = self._zookeeper.guarded(lambda: client.retry(every))
        missing = [path for path, answer in zip(paths, found, strict=True) if answer is None]
        if any(self._zookeeper.guarded(lambda: client.retry(absent, missing))):
            self._bell.call()  # it came meanwhile
        return list(found)


def _or_none(answer: Any) -> Any:
    try:
        return answer.get()
    except NoNodeError:
        return None
