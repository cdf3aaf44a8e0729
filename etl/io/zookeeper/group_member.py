"""How does a driver live as a member of a group in ZooKeeper?

Beside original consumers of Jafka or Kafka 0.8. It joins before the run plans, follows rebalances
before the offset commit on request and after it in a thread. The group's offsets are read after the
partitions are owned: a former owner commits before it releases.

All owner nodes belong to the driver's session, which the commit's transaction checks. Registrations
and partition counts are read with watches. A watch fires once and is set by the request that reads;
after a disconnect kazoo fires all watches, so everything is read again.

Not here: the order of steps (etl/decide/group_assignment.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kazoo.client import KazooState
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from etl.decide import group_assignment
from etl.decide.group_assignment import (
    AssignmentContext,
    Do,
    Phase,
    Standing,
    Step,
    Strategy,
    Timing,
    assign,
    assignment_of,
    context_of,
)
from etl.errors import Owned, PermissionDenied, SessionLost, SettingsError, Unreachable
from etl.io.process import this_driver
from etl.io.zookeeper.ledger import Check
from etl.io.zookeeper.owners import OUR_VERSION, GroupMembers, Owners
from etl.io.zookeeper.registry import unknown_registration
from etl.io.zookeeper.session import ZooKeeper
from etl.ledger.paths import BROKER_IDS, BROKER_TOPICS, GroupPaths
from etl.ledger.registrations import (
    FilteredTopics,
    FixedTopics,
    OwnerNode,
    Registration,
    consumer_id,
    driver_consumer_id,
    parse_count,
    parse_registration,
    parse_replicas,
    render_registration,
)
from etl.ledger.topic_filters import TopicFilter
from etl.model.partitions import (
    BrokerFamily,
    BrokerPartition,
    MemberAssignment,
    Membership,
    RebalanceStatistics,
)

T = TypeVar("T")


class Bell:
    """Merges events: wakes waiting threads; `is_called` is set if the group may have changed since
    it was reset.
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
class GroupSnapshot:
    """A group at one moment. Two that are equal divide their logs alike."""

    registrations: Mapping[str, Registration]
    partitions: Mapping[str, Collection[BrokerPartition]]
    """Partitions of each existing topic that matters for the assignment; filters accept existing
    topics only.
    """

    @property
    def context(self) -> AssignmentContext:
        """Return the context for the strategies."""
        return context_of(self.registrations, self.partitions)


class WatchedGroup:
    """Reads one group, and rings `bell` if anything that was read changes. Raises as `ZooKeeper`."""

    def __init__(self, zookeeper: ZooKeeper, group: str, dialect: BrokerFamily, bell: Bell) -> None:
        self._zookeeper, self._dialect, self._bell = zookeeper, dialect, bell
        self._members, self._ids = GroupMembers(zookeeper, group), GroupPaths(group).consumer_ids

    def read(self, topics: Collection[str], strategy: Strategy) -> GroupSnapshot:
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
        return GroupSnapshot(registrations, self._partitions(sorted(counting)))

    def _of_others(self, registrations: Mapping[str, Registration]) -> set[str]:
        """Return what the group's consumers read. The list of topics is watched while one of them
        has a filter.
        """
        has_filter = any(
            isinstance(found.reads, FilteredTopics) for found in registrations.values()
        )
        existing = self._children([BROKER_TOPICS])[0] if has_filter else ()
        return {topic for found in registrations.values() for topic in found.threads(existing)}

    def topics_allowed(self, wanted: TopicFilter) -> frozenset[str]:
        """Return the existing topics that the filter accepts. Call after `read`, which resets the
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
            raise SettingsError(
                "A consumer of the group is registered in a form that consumers of "
                f"{self._dialect.value} cannot read: {payload[:80]!r}",
                znode=path,
                action="Check that consumer, and source.broker_type; as long as it is registered "
                "the group's old consumers fail to rebalance",
            )
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
        """Return the data of each znode; None for a missing one."""
        client = self._zookeeper.client
        found = self._watched(paths, lambda path: client.get_async(path, self._bell.call))
        return [answer[0] or b"" if answer else None for answer in found]

    def _watched(self, paths: Sequence[str], ask: Callable[[str], Any]) -> list[Any]:
        """Read with watches, all requested before the first answer is awaited. A missing znode is
        watched until it exists.
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


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """How a driver joins."""

    dialect: BrokerFamily
    topics: frozenset[str]
    """Which it reads; under a filter it finds that out itself."""
    strategy: Strategy = Strategy.RANGE
    threads: int = 1
    """How many it counts for, of each topic."""
    member_id: str | None = None
    """Fixed name in the group; None: a name that identifies the process, by which the next run
    knows whether it is dead.
    """
    timing: Timing = Timing()
    threads_of: Mapping[str, int] = field(default_factory=dict)
    """Topics with another number of threads."""
    filter: TopicFilter | None = None
    """By what it reads all topics that pass, those that are made later, too."""


class Rebalance:
    """Steps of a member's rebalance, and what it knows by them. One thread at a time. Raises as
    `ZooKeeper`.
    """

    def __init__(
        self, zookeeper: ZooKeeper, group: str, pipeline: str, run_id: str, options: MemberOptions
    ) -> None:
        self._zookeeper, self._options = zookeeper, options
        self._us = OwnerNode(pipeline, this_driver(run_id))
        self.member = (
            consumer_id(group, options.member_id)
            if options.member_id
            else driver_consumer_id(group, self._us)
        )
        self.bell = Bell()
        self._members, self._owners = (
            GroupMembers(zookeeper, group),
            Owners(zookeeper, group, pipeline),
        )
        self._group = WatchedGroup(zookeeper, group, options.dialect, self.bell)
        self._seen = GroupSnapshot({}, {})
        self._in_the_way: Owned | None = None
        self._began = 0.0
        self._is_registered = False
        self._topics = options.topics
        self._do: dict[Do, Callable[[], Step]] = {
            Do.REGISTER: self._register,
            Do.LOOK: self._look,
            Do.CLAIM: self._claim,
            Do.WAIT: self._wait,
            Do.LET_GO: self._let_go,
            Do.LEAVE: self._give_up,
        }
        self.standing = Standing()
        self.share: dict[BrokerPartition, bytes] = {}
        """The logs that are ours, each with the thread that owns it."""
        self._left: set[BrokerPartition] = set()
        """Released partitions whose owner nodes may still exist."""
        self.statistics = RebalanceStatistics()
        self.before_let_go: Callable[[], None] = lambda: None
        """Called where something is to be let go, while it is still ours."""
        self.is_stopped = False
        """True if waiting threads shall return and do nothing more."""

    def run(self, step: Step) -> None:
        """Do what comes next until there is nothing to do.

        Raises Owned where the group does not settle in time, SessionLost where our session ended,
        SettingsError for a group that the options do not fit.
        """
        self._began = time.monotonic()
        while step[1] is not Do.REST and not self.is_stopped:
            self._zookeeper.require_session()
            self.standing = step[0]
            step = self._do[step[1]]()
        self.standing = step[0]

    def withdraw(self) -> None:
        """Let go and be registered no more, as far as the session still can: the rest goes with it.
        Never raises.
        """
        self._zookeeper.client.remove_listener(self._watch_session)
        with contextlib.suppress(KazooException, KazooTimeoutError, Unreachable, PermissionDenied):
            if (self._is_registered or self._left) and not self._release():
                self._zookeeper.reject_lost_session()  # a connection that comes back finds the nodes of a session that lives on
                self._release()
            if self._is_registered and self._zookeeper.client.connected:
                self._members.deregister(self.member)
        self.standing, self.share, self._is_registered = (
            group_assignment.ended(self.standing),
            {},
            False,
        )

    def nudge_ownerless(self) -> bool:
        """Call the others where logs that the group gives them have no owner; whether it did."""
        of_others = [
            log for logs in self._seen.partitions.values() for log in logs if log not in self.share
        ]
        if not group_assignment.ownerless(of_others, self._owners.owned_of(of_others)):
            return False
        self._members.nudge()
        self.standing = group_assignment.nudged(self.standing)
        return True

    def _register(self) -> Step:
        if not self._topics and self._options.filter is None:
            raise SettingsError(
                "No topic of source.topics is registered in ZooKeeper, so the group has no "
                "partition to assign",
                key="source.topics",
                action="Check the names, and zookeeper.connect with its chroot",
            )
        self._zookeeper.client.add_listener(self._watch_session)
        self._is_registered = True  # or may be, whatever comes back
        self._let_go()  # where it was stopped in the middle of another rebalance
        self._owners.release_stale_owners(self._topics, self._us)
        self._members.delete_stale_nodes(
            self._us
        )  # behind its owner nodes: who is called by it finds them free
        while not self._ensure_registered():
            left = self._options.timing.join_timeout_s - self._elapsed_s
            if left <= 0:
                message = f"Consumer {self.member} is registered in another session"
                self._in_the_way = Owned(message, znode=self._members.path(self.member))
                return self._give_up()
            self._zookeeper.require_session()
            self._members.wait_until_gone(self.member, wait_s=left)
        return group_assignment.registered(self.standing)

    def _ensure_registered(self) -> bool:
        return self._members.register(
            self.member, self._registration(), is_ours=self._options.member_id is None
        )

    def _registration(self) -> bytes:
        options = self._options
        if options.filter is not None and options.dialect is not BrokerFamily.JAFKA:
            reads: FixedTopics | FilteredTopics = FilteredTopics(options.filter, options.threads)
        else:
            reads = FixedTopics(
                {topic: options.threads_of.get(topic, options.threads) for topic in self._topics}
            )
        return render_registration(
            Registration(options.dialect, reads), now_ms=round(time.time() * 1000)
        )

    def _look(self) -> Step:
        seen = self._group.read(self._topics, self._options.strategy)
        if (
            self.member not in seen.registrations
        ):  # somebody deleted it: consumers register again, too
            self._ensure_registered()
            seen = self._group.read(self._topics, self._options.strategy)
        while (
            self._options.filter is not None
            and (topics := self._group.topics_allowed(self._options.filter)) != self._topics
        ):
            self._topics = topics
            if self._options.dialect is BrokerFamily.JAFKA:  # whose consumers know no filter
                self._members.replace(self.member, self._registration())
            seen = self._group.read(topics, self._options.strategy)
        self._seen = seen
        owns = self.standing.phase is not Phase.STABLE or self._owners.owns(self.share)
        return group_assignment.looked(self.standing, seen, owns_its_share=owns)

    def _claim(self) -> Step:
        if self._left and not self._release():
            return self._try_again(
                Owned("ZooKeeper did not delete earlier owner nodes of this run")
            )
        given = assign(self._seen.context, self._options.strategy, self.member)
        self.share = {
            log: thread.encode() for log, thread in assignment_of(self.member, given).items()
        }
        try:
            self._owners.claim(self.share, self._us)
        except Owned as error:
            self._release()
            return self._try_again(error)
        seconds = self.statistics.seconds + self._elapsed_s
        self.statistics = replace(
            self.statistics, rebalances=self.statistics.rebalances + 1, seconds=seconds
        )
        return group_assignment.claimed(self.standing, is_called=self.bell.is_called)

    def _wait(self) -> Step:
        """Wait until all our partitions are free or an event comes, a backoff at most."""
        deadline = time.monotonic() + group_assignment.backoff_s(
            self._options.timing, elapsed_s=self._elapsed_s
        )
        while (left := deadline - time.monotonic()) > 0:
            self.bell.rung.clear()
            if (
                self.bell.is_called
                or self.is_stopped
                or not (self._left or self._owners.owned_of(self.share, self.bell.rung))
            ):
                break
            self.bell.rung.wait(left)
        return group_assignment.waited(self.standing)

    def _let_go(self) -> Step:
        if self.share:
            self.before_let_go()
        self._release()
        self.share = {}
        return group_assignment.let_go(self.standing)

    def _release(self) -> bool:
        """Release everything. False: some may still be ours, and until its node is deleted nobody
        else can own it.
        """
        self._left |= self.share.keys()
        if self._owners.release(self._left):
            self._left.clear()
        return not self._left

    def _try_again(self, reason: Owned) -> Step:
        self._in_the_way = reason
        self.statistics = replace(self.statistics, tries=self.statistics.tries + 1)
        return group_assignment.refused(
            self.standing, self._options.timing, elapsed_s=self._elapsed_s
        )

    def _give_up(self) -> Step:
        reason, timeout_s = self._in_the_way, self._options.timing.join_timeout_s
        cause = reason.message if reason else "unknown reason"
        where = reason.where if reason else {}
        raise Owned(
            f"The group did not settle within {timeout_s:g} s: {cause}",
            action="Check that consumer; the time to join must be longer than what the group's "
            "consumers need for all their tries",
            **where,
        ) from reason

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _watch_session(self, state: str) -> None:
        if state == KazooState.LOST:
            self.bell.call()


class ZooKeeperMember:
    """A `run.services.Member`; its process holds the driver lock. Raises as `ZooKeeper`, too."""

    def __init__(
        self, zookeeper: ZooKeeper, group: str, pipeline: str, run_id: str, options: MemberOptions
    ) -> None:
        self._zookeeper, self._options, self._paths = zookeeper, options, GroupPaths(group)
        self._rebalance = Rebalance(zookeeper, group, pipeline, run_id, options)
        self._bell = self._rebalance.bell
        self._follower: threading.Thread | None = None
        self._look_at: float | None = None
        """When to check whether others own their partitions."""
        self.ended: Exception | None = None
        """Why the membership ended after the commit; nothing depends on it then."""

    @property
    def id(self) -> str:
        """The name of our node among the members."""
        return self._rebalance.member

    def join(self) -> MemberAssignment:
        """See `Member`. Nodes of a dead process of our pipeline on this host are deleted; for
        another one under its `member_id` its session's end is awaited.
        """
        self._stop_following()
        return self._settled(group_assignment.to_join(self._rebalance.standing))

    def rejoin(self) -> MemberAssignment:
        """See `Member`. If neither group nor owners have changed, nothing is released."""
        self._stop_following()
        if self._rebalance.standing.phase is not Phase.STABLE:
            return self.join()
        return self._settled((self._rebalance.standing, Do.LOOK))

    @property
    def is_current(self) -> bool:
        """See `Member`."""
        with contextlib.suppress(SessionLost):
            self._zookeeper.require_session()
            return self._rebalance.standing.phase is Phase.STABLE and not self._bell.is_called
        return False

    @property
    def statistics(self) -> RebalanceStatistics:
        """See `Member`."""
        return self._rebalance.statistics

    def owner_checks(self, logs: Collection[BrokerPartition]) -> list[Check]:
        """Return the checks of a commit of these partitions: that each is still ours. A rival of
        our kind creates nodes of the same version, but moves the offset when it commits, and the
        offset's version is part of the transaction.
        """
        return [Check(self._paths.owner(log), OUR_VERSION) for log in sorted(logs)]

    @property
    def threads(self) -> dict[BrokerPartition, int]:
        """Return the thread that owns each partition; numbers begin at 0 for each topic."""
        return {
            log: int(thread.rpartition(b"-")[2]) for log, thread in self._rebalance.share.items()
        }

    def before_let_go(self, do: Callable[[], None]) -> None:
        """Set what to call before `rejoin` releases partitions, while they are owned."""
        self._rebalance.before_let_go = do

    def notify_other_members(self) -> None:
        """For a member that does not `follow`: call now and then; nudges others that gave up
        because of us, when it is time.
        """
        if (
            self._follower is None
            and self._look_at is not None
            and self._look_at <= time.monotonic()
        ):
            self._look_at = self._next_look() if self._rebalance.nudge_ownerless() else None

    def follow(self) -> None:
        """See `Member`. If the group does not settle after the commit, or our session ends, the
        membership is over (`ended`).
        """
        if self._follower is None and self._rebalance.standing.phase is Phase.STABLE:
            self._follower = threading.Thread(
                target=self._follow, name=f"member {self.id}", daemon=True
            )
            self._follower.start()

    def leave(self) -> None:
        """See `Member`. Partitions are released first, so that others find them free."""
        self._stop_following()
        self._rebalance.withdraw()

    def _settled(self, step: Step) -> MemberAssignment:
        try:
            self._rebalance.run(step)
        except BaseException:
            self._rebalance.withdraw()
            raise
        self._look_at, logs = self._next_look(), frozenset(self._rebalance.share)
        return MemberAssignment(
            self.id, Membership.ZOOKEEPER, self._options.strategy.value, None, logs
        )

    def _follow(self) -> None:
        """The thread; errors are kept, since nobody waits for them."""
        try:
            self._follow_until_stopped()
        except Exception as error:  # told in `ended`
            self._rebalance.withdraw()
            self._rebalance.statistics = replace(self.statistics, lost=self.statistics.lost + 1)
            self.ended = error

    def _follow_until_stopped(self) -> None:
        """Take part in each rebalance; later check whether others own their partitions, and nudge
        them if not.
        """
        look_at = self._next_look()
        while not self._rebalance.is_stopped:
            self._bell.rung.clear()
            if self._bell.is_called:
                self._rebalance.run((self._rebalance.standing, Do.LOOK))
                look_at = self._next_look()
            elif look_at is not None and look_at <= time.monotonic():
                look_at = self._next_look() if self._rebalance.nudge_ownerless() else None
            elif not self._rebalance.is_stopped:
                self._bell.rung.wait(
                    None if look_at is None else max(0.0, look_at - time.monotonic())
                )

    def _next_look(self) -> float | None:
        wait_s = group_assignment.nudge_after_s(self._rebalance.standing, self._options.timing)
        return None if wait_s is None else time.monotonic() + wait_s

    def _stop_following(self) -> None:
        if self._follower is not None:
            self._rebalance.is_stopped = True
            self._bell.rung.set()
            self._follower.join()
            self._follower, self._rebalance.is_stopped = None, False
