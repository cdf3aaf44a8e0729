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
    MemberAction,
    MemberState,
    Phase,
    Step,
    Strategy,
    Timing,
    assign,
    assignment_of,
    context_of,
)
from etl.errors import Owned, PermissionDenied, SessionLost, SettingsError, Unreachable
from etl.io.process import this_driver
from etl.io.zookeeper.broker_registrations import unknown_registration
from etl.io.zookeeper.ledger import Check
from etl.io.zookeeper.owners import OUR_VERSION, GroupMembers, Owners
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.owner_nodes import OwnerNode, consumer_id, driver_consumer_id
from etl.ledger.registrations import (
    FilteredTopics,
    FixedTopics,
    Registration,
    parse_count,
    parse_registration,
    parse_replicas,
    render_registration,
)
from etl.ledger.topic_filters import TopicFilter
from etl.ledger.znode_paths import BROKER_IDS, BROKER_TOPICS, GroupPaths
from etl.model.partitions import (
    BrokerFamily,
    MemberAssignment,
    Membership,
    RebalanceStatistics,
    TopicPartition,
)

T = TypeVar("T")


class ChangeSignal:
    """Merges watch events: wakes waiting threads, and keeps whether the group may have changed."""

    def __init__(self) -> None:
        self.wakeup = threading.Event()
        """Set by each change, and to stop a waiting thread, which clears it first."""
        self.is_set = False
        """True if the group may have changed since it was read."""

    def set(self, *_: object) -> None:
        """Record that the group may have changed. The callback of all watches."""
        self.is_set = True
        self.wakeup.set()

    def clear(self) -> None:
        """Reset `is_set`, before the group is read. It does not affect `wakeup`."""
        self.is_set = False


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group at one moment. Equal snapshots give equal assignments."""

    registrations: Mapping[str, Registration]
    partitions: Mapping[str, Collection[TopicPartition]]
    """Partitions of each existing topic that matters for the assignment; filters accept existing
    topics only.
    """

    @property
    def context(self) -> AssignmentContext:
        """Return the context for the strategies."""
        return context_of(self.registrations, self.partitions)


class WatchedGroup:
    """Reads one group with watches that set `changes`. Raises as `ZooKeeper`."""

    def __init__(
        self, zookeeper: ZooKeeper, group: str, dialect: BrokerFamily, changes: ChangeSignal
    ) -> None:
        self._zookeeper = zookeeper
        self._dialect = dialect
        self._changes = changes
        self._members, self._ids = GroupMembers(zookeeper, group), GroupPaths(group).consumer_ids

    def read(self, topics: Collection[str], strategy: Strategy) -> GroupSnapshot:
        """Return the group with the partitions of these topics.

        If the strategy assigns all topics together, the topics of the other members are included.
        An old consumer gets no event for a topic that it does not read, and keeps its partitions
        until the next event. This member watches such topics, too, since those partitions block
        the members that rebalance.

        Raises SettingsError for a registration that is unknown here or that not all consumers of
        the group can read, so that none of their rebalances succeeds. Raises CorruptData for an
        invalid partition count.
        """
        self._changes.clear()
        # Brokers are watched because old consumers rebalance once the first broker registers.
        members, _ = self._children([self._ids, BROKER_IDS])
        registrations = {}
        for member, payload in self._members.read(members).items():
            registrations[member] = self._parsed(member, payload)
        topics_to_read = set(topics)
        if strategy.deals_all_topics:
            topics_to_read |= self._of_others(registrations)
        return GroupSnapshot(registrations, self._partitions(sorted(topics_to_read)))

    def _of_others(self, registrations: Mapping[str, Registration]) -> set[str]:
        """Return the topics that the group's consumers read.

        The list of topics is watched while a consumer has a filter.
        """
        existing: Collection[str] = ()
        if any(isinstance(found.reads, FilteredTopics) for found in registrations.values()):
            existing = self._children([BROKER_TOPICS])[0]
        topics: set[str] = set()
        for found in registrations.values():
            topics.update(found.threads(existing))
        return topics

    def topics_allowed(self, wanted: TopicFilter) -> frozenset[str]:
        """Return the existing topics that the filter accepts.

        Call it after `read`, which clears the signal.
        """
        allowed = set()
        for topic in self._children([BROKER_TOPICS])[0]:
            if wanted.allows(topic):
                allowed.add(topic)
        return frozenset(allowed)

    def _parsed(self, member: str, payload: bytes) -> Registration:
        path = self._members.path(member)
        found = parse_registration(payload, path=path)
        is_filter_on_jafka = self._dialect is BrokerFamily.JAFKA and isinstance(
            found.reads, FilteredTopics
        )
        if found.dialect is not self._dialect or is_filter_on_jafka:
            raise SettingsError(
                "A consumer of the group is registered in a form that consumers of "
                f"{self._dialect.value} cannot read: {payload[:80]!r}",
                znode=path,
                action="Check that consumer, and source.broker_type; as long as it is registered "
                "the group's old consumers fail to rebalance",
            )
        return found

    def _partitions(self, topics: Sequence[str]) -> dict[str, Collection[TopicPartition]]:
        paths = [f"{BROKER_TOPICS}/{topic}" for topic in topics]
        if self._dialect is BrokerFamily.JAFKA:
            return self._physical(topics, self._children(paths))
        found: dict[str, Collection[TopicPartition]] = {}
        for topic, payload in zip(topics, self._payloads(paths), strict=True):
            if payload is not None:
                numbers = sorted(parse_replicas(payload))
                found[topic] = tuple(TopicPartition(topic, number) for number in numbers)
        return found

    def _physical(
        self, topics: Sequence[str], brokers: Sequence[Collection[str]]
    ) -> dict[str, Collection[TopicPartition]]:
        """Return the partitions of topics whose brokers were read with a watch.

        The watch fires if a broker registers, unregisters, or changes its partition count between
        the two reads.
        """
        registered = []
        for topic, names in zip(topics, brokers, strict=True):
            for name in sorted(names):
                if name.isdecimal():
                    registered.append((topic, name))
        paths = [f"{BROKER_TOPICS}/{topic}/{broker}" for topic, broker in registered]
        payloads = self._zookeeper.read_all(paths)
        found: dict[str, list[TopicPartition]] = {topic: [] for topic in topics}
        for (topic, broker), path, payload in zip(registered, paths, payloads, strict=True):
            if payload is None:
                continue
            count = parse_count(payload[0])
            if count is None:
                raise unknown_registration(path, payload[0], "a number of partitions")
            found[topic] += (TopicPartition(topic, number, int(broker)) for number in range(count))
        return {topic: tuple(partitions) for topic, partitions in found.items()}

    def _children(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names of each znode's children; none of a missing znode."""
        client = self._zookeeper.client
        found = self._watched(
            paths, lambda path: client.get_children_async(path, self._changes.set)
        )
        return [list(names or ()) for names in found]

    def _payloads(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the data of each znode; None for a missing one."""
        client = self._zookeeper.client
        found = self._watched(paths, lambda path: client.get_async(path, self._changes.set))
        payloads = []
        for answer in found:
            payload = None
            if answer:
                payload = answer[0] or b""
            payloads.append(payload)
        return payloads

    def _watched(self, paths: Sequence[str], ask: Callable[[str], Any]) -> list[Any]:
        """Read znodes with watches; a missing znode is watched until it exists.

        All requests are sent before the first answer is awaited.
        """
        client = self._zookeeper.client

        def read_each() -> list[Any]:
            answers = [ask(path) for path in paths]
            return [_or_none(answer) for answer in answers]

        def watch_missing(missing: Sequence[str]) -> list[Any]:
            answers = [client.exists_async(path, self._changes.set) for path in missing]
            return [answer.get() for answer in answers]

        found = self._zookeeper.guarded(lambda: client.retry(read_each))
        missing = []
        for path, answer in zip(paths, found, strict=True):
            if answer is None:
                missing.append(path)
        if any(self._zookeeper.guarded(lambda: client.retry(watch_missing, missing))):
            self._changes.set()  # a znode was created between the two reads
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
    """Topics that it reads; with a filter the member finds them itself."""
    strategy: Strategy = Strategy.RANGE
    threads: int = 1
    """Number of consumer threads per topic."""
    member_id: str | None = None
    """Fixed name in the group. None: a name that identifies the process, so that the next run can
    check whether it is dead.
    """
    timing: Timing = Timing()
    threads_of: Mapping[str, int] = field(default_factory=dict)
    """Topics with another number of threads."""
    filter: TopicFilter | None = None
    """Filter of topics, later ones included."""


class Rebalance:
    """The steps of a member's rebalance, and their state. One thread at a time.

    Raises as `ZooKeeper`.
    """

    def __init__(
        self, zookeeper: ZooKeeper, group: str, pipeline: str, run_id: str, options: MemberOptions
    ) -> None:
        self._zookeeper = zookeeper
        self._options = options
        self._us = OwnerNode(pipeline, this_driver(run_id))
        if options.member_id:
            self.member = consumer_id(group, options.member_id)
        else:
            self.member = driver_consumer_id(group, self._us)
        self.changes = ChangeSignal()
        self._members = GroupMembers(zookeeper, group)
        self._owners = Owners(zookeeper, group, pipeline)
        self._group = WatchedGroup(zookeeper, group, options.dialect, self.changes)
        self._seen = GroupSnapshot({}, {})
        self._in_the_way: Owned | None = None
        self._began = 0.0
        self._is_registered = False
        self._topics = options.topics
        self._do: dict[MemberAction, Callable[[], Step]] = {
            MemberAction.REGISTER: self._register,
            MemberAction.LOOK: self._look,
            MemberAction.CLAIM: self._claim,
            MemberAction.WAIT: self._wait,
            MemberAction.LET_GO: self._let_go,
            MemberAction.LEAVE: self._give_up,
        }
        self.standing = MemberState()
        self.share: dict[TopicPartition, bytes] = {}
        """The owned partitions, each with the thread that owns it."""
        self._left: set[TopicPartition] = set()
        """Released partitions whose owner nodes may still exist."""
        self.statistics = RebalanceStatistics()
        self.before_let_go: Callable[[], None] = lambda: None
        """Called before partitions are released, while they are still owned."""
        self.is_stopped = False
        """True if waiting threads must return without further steps."""

    def run(self, step: Step) -> None:
        """Take steps until the group is settled.

        Raises Owned if the group does not settle in time, SessionLost if the session ended, and
        SettingsError if the options do not fit the group.
        """
        self._began = time.monotonic()
        while step[1] is not MemberAction.REST and not self.is_stopped:
            self._zookeeper.require_session()
            self.standing = step[0]
            step = self._do[step[1]]()
        self.standing = step[0]

    def withdraw(self) -> None:
        """Release all partitions and deregister, as far as the session permits. Never raises.

        ZooKeeper deletes what remains when the session ends.
        """
        self._zookeeper.client.remove_listener(self._watch_session)
        with contextlib.suppress(KazooException, KazooTimeoutError, Unreachable, PermissionDenied):
            if (self._is_registered or self._left) and not self._release():
                # After a reconnect the session may still be alive, and its nodes exist.
                self._zookeeper.reject_lost_session()
                self._release()
            if self._is_registered and self._zookeeper.client.connected:
                self._members.deregister(self.member)
        self.standing = group_assignment.after_session_end(self.standing)
        self.share = {}
        self._is_registered = False

    def nudge_ownerless(self) -> bool:
        """Make the others rebalance if partitions assigned to them have no owner.

        Returns whether it did.
        """
        of_others = []
        for partitions in self._seen.partitions.values():
            of_others += [partition for partition in partitions if partition not in self.share]
        if not group_assignment.find_unowned(of_others, self._owners.owned_of(of_others)):
            return False
        self._members.nudge()
        self.standing = group_assignment.after_nudge(self.standing)
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
        self._is_registered = True  # also if the answer to the registration is lost
        self._let_go()  # partitions of a rebalance that was stopped in the middle
        # Owner nodes first: consumers that the deleted registration wakes must find them free.
        self._owners.release_stale_owners(self._topics, self._us)
        self._members.delete_stale_nodes(self._us)
        while not self._ensure_registered():
            left = self._options.timing.join_timeout_s - self._elapsed_s
            if left <= 0:
                message = f"Consumer {self.member} is registered in another session"
                self._in_the_way = Owned(message, znode=self._members.path(self.member))
                return self._give_up()
            self._zookeeper.require_session()
            self._members.wait_until_gone(self.member, wait_s=left)
        return group_assignment.after_registration(self.standing)

    def _ensure_registered(self) -> bool:
        return self._members.register(
            self.member, self._registration(), is_ours=self._options.member_id is None
        )

    def _registration(self) -> bytes:
        options = self._options
        if options.filter is not None and options.dialect is not BrokerFamily.JAFKA:
            reads: FixedTopics | FilteredTopics = FilteredTopics(options.filter, options.threads)
        else:
            threads = {}
            for topic in self._topics:
                threads[topic] = options.threads_of.get(topic, options.threads)
            reads = FixedTopics(threads)
        registration = Registration(options.dialect, reads)
        return render_registration(registration, now_ms=round(time.time() * 1000))

    def _look(self) -> Step:
        seen = self._group.read(self._topics, self._options.strategy)
        if self.member not in seen.registrations:
            # Another client deleted it. Consumers register again in this case, too.
            self._ensure_registered()
            seen = self._group.read(self._topics, self._options.strategy)
        while self._options.filter is not None:
            topics = self._group.topics_allowed(self._options.filter)
            if topics == self._topics:
                break
            self._topics = topics
            # Registrations on Jafka have no filter: they list the topics.
            if self._options.dialect is BrokerFamily.JAFKA:
                self._members.replace(self.member, self._registration())
            seen = self._group.read(topics, self._options.strategy)
        self._seen = seen
        owns = self.standing.phase is not Phase.STABLE or self._owners.owns(self.share)
        return group_assignment.after_observation(self.standing, seen, owns_its_share=owns)

    def _claim(self) -> Step:
        if self._left and not self._release():
            return self._try_again(
                Owned("ZooKeeper did not delete earlier owner nodes of this run")
            )
        assigned = assign(self._seen.context, self._options.strategy, self.member)
        self.share = {}
        for partition, thread in assignment_of(self.member, assigned).items():
            self.share[partition] = thread.encode()
        try:
            self._owners.claim(self.share, self._us)
        except Owned as error:
            self._release()
            return self._try_again(error)
        seconds = self.statistics.seconds + self._elapsed_s
        self.statistics = replace(
            self.statistics, rebalances=self.statistics.rebalances + 1, seconds=seconds
        )
        return group_assignment.after_claim(self.standing, is_called=self.changes.is_set)

    def _wait(self) -> Step:
        """Wait until all assigned partitions are free or an event comes, a backoff at most."""
        backoff_s = group_assignment.backoff_s(self._options.timing, elapsed_s=self._elapsed_s)
        deadline = time.monotonic() + backoff_s
        while (left := deadline - time.monotonic()) > 0:
            self.changes.wakeup.clear()
            if self.changes.is_set or self.is_stopped:
                break
            if not self._left and not self._owners.owned_of(self.share, self.changes.wakeup):
                break
            self.changes.wakeup.wait(left)
        return group_assignment.after_backoff(self.standing)

    def _let_go(self) -> Step:
        if self.share:
            self.before_let_go()
        self._release()
        self.share = {}
        return group_assignment.after_release(self.standing)

    def _release(self) -> bool:
        """Release all partitions. False: some owner nodes may still exist and block others."""
        self._left |= self.share.keys()
        if self._owners.release(self._left):
            self._left.clear()
        return not self._left

    def _try_again(self, reason: Owned) -> Step:
        self._in_the_way = reason
        self.statistics = replace(self.statistics, tries=self.statistics.tries + 1)
        return group_assignment.after_rejected_claim(
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
            self.changes.set()


class ZooKeeperMember:
    """A `run.service_interfaces.Member`. Its process holds the driver lock. Raises as `ZooKeeper`,
    too.
    """

    def __init__(
        self, zookeeper: ZooKeeper, group: str, pipeline: str, run_id: str, options: MemberOptions
    ) -> None:
        self._zookeeper = zookeeper
        self._options = options
        self._paths = GroupPaths(group)
        self._rebalance = Rebalance(zookeeper, group, pipeline, run_id, options)
        self._changes = self._rebalance.changes
        self._follower: threading.Thread | None = None
        self._look_at: float | None = None
        """When to check whether others own their partitions."""
        self.ended: Exception | None = None
        """Why the membership ended after the commit. Nothing depends on it at that point."""

    @property
    def id(self) -> str:
        """Return the name of this member's node."""
        return self._rebalance.member

    def join(self) -> MemberAssignment:
        """See `Member`.

        Deletes nodes of a dead process of this pipeline on this host. Waits for the end of the
        session of another process with the same `member_id`.
        """
        self._stop_following()
        return self._settled(group_assignment.start_join(self._rebalance.standing))

    def rejoin(self) -> MemberAssignment:
        """See `Member`. If neither group nor owners have changed, nothing is released."""
        self._stop_following()
        if self._rebalance.standing.phase is not Phase.STABLE:
            return self.join()
        return self._settled((self._rebalance.standing, MemberAction.LOOK))

    @property
    def is_current(self) -> bool:
        """See `Member`."""
        with contextlib.suppress(SessionLost):
            self._zookeeper.require_session()
            return self._rebalance.standing.phase is Phase.STABLE and not self._changes.is_set
        return False

    @property
    def statistics(self) -> RebalanceStatistics:
        """See `Member`."""
        return self._rebalance.statistics

    def owner_checks(self, partitions: Collection[TopicPartition]) -> list[Check]:
        """Return the checks for a commit: that each partition is still owned.

        Another member of this kind creates nodes of the same version, but its commit moves the
        offset, and the transaction checks the version of the offset, too.
        """
        return [
            Check(self._paths.owner(partition), OUR_VERSION) for partition in sorted(partitions)
        ]

    @property
    def threads(self) -> dict[TopicPartition, int]:
        """Return the thread that owns each partition; numbers begin at 0 for each topic."""
        threads = {}
        for partition, thread in self._rebalance.share.items():
            threads[partition] = int(thread.rpartition(b"-")[2])
        return threads

    def before_let_go(self, do: Callable[[], None]) -> None:
        """Set what to call before `rejoin` releases partitions, while they are owned."""
        self._rebalance.before_let_go = do

    @property
    def is_notification_due(self) -> bool:
        """True if it is time to `notify_other_members`."""
        if self._follower is not None or self._look_at is None:
            return False
        return self._look_at <= time.monotonic()

    def notify_other_members(self) -> None:
        """Make members that gave up because of this one rebalance, when it is time.

        A member that does not `follow` calls it regularly.
        """
        if self.is_notification_due:
            nudged = self._rebalance.nudge_ownerless()
            self._look_at = self._next_look() if nudged else None

    def interrupt(self) -> None:
        """Make `join` or `rejoin`, which waits in another thread, return. Only `leave` follows."""
        self._rebalance.is_stopped = True
        self._changes.wakeup.set()

    def follow(self) -> None:
        """See `Member`.

        If the group does not settle after the commit, or the session ends, the membership ends
        (`after_session_end`).
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
        self._look_at = self._next_look()
        partitions = frozenset(self._rebalance.share)
        strategy = self._options.strategy.value
        return MemberAssignment(self.id, Membership.ZOOKEEPER, strategy, None, partitions)

    def _follow(self) -> None:
        """Run the thread. It has no caller, so `after_session_end` keeps its error."""
        try:
            self._follow_until_stopped()
        except Exception as error:
            self._rebalance.withdraw()
            self._rebalance.statistics = replace(self.statistics, lost=self.statistics.lost + 1)
            self.ended = error

    def _follow_until_stopped(self) -> None:
        """Take part in each rebalance.

        Later check whether the others own their partitions, and make them rebalance if not.
        """
        look_at = self._next_look()
        while not self._rebalance.is_stopped:
            self._changes.wakeup.clear()
            if self._changes.is_set:
                self._rebalance.run((self._rebalance.standing, MemberAction.LOOK))
                look_at = self._next_look()
            elif look_at is not None and look_at <= time.monotonic():
                nudged = self._rebalance.nudge_ownerless()
                look_at = self._next_look() if nudged else None
            elif not self._rebalance.is_stopped:
                wait_s = None
                if look_at is not None:
                    wait_s = max(0.0, look_at - time.monotonic())
                self._changes.wakeup.wait(wait_s)

    def _next_look(self) -> float | None:
        wait_s = group_assignment.nudge_after_s(self._rebalance.standing, self._options.timing)
        return None if wait_s is None else time.monotonic() + wait_s

    def _stop_following(self) -> None:
        if self._follower is not None:
            self._rebalance.is_stopped = True
            self._changes.wakeup.set()
            self._follower.join()
            self._follower, self._rebalance.is_stopped = None, False
