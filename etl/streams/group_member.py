"""How does a consumer join its group, and what does it own?

Waiting (a join, a release, a leave) happens in the group's lane, so that a poll ends in time: the
next poll continues. Only polls call the listener: a member that releases partitions waits for one.

    event                                            what the consumer does
    -----------------------------------------------  ---------------------------------------------
    poll, not joined yet or the membership was lost  join; start at the group's committed offsets
    poll, the group revokes partitions               auto-commit, call `revoked`, drop their
                                                     records, release them
    poll, the group removed the member               call `lost`, drop fetched records, rejoin
    no poll for too long                             leave; the next poll calls `lost`
    closed, also during a join or a rebalance        auto-commit, call `revoked`, leave

Nothing is released between polls: partitions stay owned until the listener was called or the
timeout is over. A commit names its assignment, so a late one is rejected.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from etl.decide.group_assignment import OTHERS_BACKOFF_S, Strategy, Timing
from etl.errors import (
    BrokerUnreachable,
    MembershipLost,
    NotAssigned,
    SessionLost,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.cluster_requests import Cluster, unknown_topics
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.io.clusters import registered_cluster
from etl.io.process import new_uid
from etl.io.zookeeper.group_member import MemberOptions, ZooKeeperMember
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import (
    BrokerFamily,
    GroupProtocol,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    TopicPartition,
)
from etl.model.security import Access
from etl.streams.background import Lane, Results
from etl.streams.conf import ConsumerConfig, Group, RebalanceListener, Subscription
from etl.streams.positions import KafkaOffsetStore, OffsetStore, Positions, ZooKeeperOffsetStore

T = TypeVar("T")
_PIPELINE = "~streams"
"""Pipeline name in our ZooKeeper nodes, by which the next process cleans up after a dead one of
this host. No pipeline may have it.
"""


class MembershipEvents(Protocol):
    """Callbacks for the end of an assignment."""

    def release(self, partitions: frozenset[TopicPartition]) -> None:
        """Finish with these partitions, which are still owned and are released next."""

    def lose_all(self) -> None:
        """Drop all partitions: they were lost at an unknown time."""


class GroupMember(Protocol):
    """One membership. Only its own consumer calls it: what may wait, in the group's lane."""

    def join(self) -> MemberAssignment:
        """Join and return the assignment; see `run.service_interfaces.Member.join`."""

    @property
    def needs_rebalance(self) -> bool:
        """True if a rebalance may be needed, or the membership is over."""

    def rebalance(self) -> MemberAssignment:
        """Release what the group revokes, and return the new assignment.

        Any error ends the membership; with SessionLost it had ended before.
        """

    @property
    def assignment(self) -> MemberAssignment | None:
        """The assignment that fences commits; None if the membership is over."""

    def renewed_assignment(self, rejected: MemberAssignment) -> MemberAssignment | None:
        """Return a newer assignment that still has the partitions of a rejected commit, if any."""

    @property
    def threads(self) -> dict[TopicPartition, int] | None:
        """The thread that owns each partition; None if the group does not assign to threads."""

    @property
    def has_periodic_work(self) -> bool:
        """True if work between rebalances is due. Called at each poll, and does not wait."""

    def do_periodic_work(self) -> None:
        """Do that work."""

    def interrupt(self) -> None:
        """Make `join` and `rebalance`, which wait in another thread, return or raise at once.

        Only `leave` follows.
        """

    def leave(self) -> None:
        """End the membership. Never raises, and may be called again."""


class MemberInZooKeeper:
    """A member next to consumers of Jafka and Kafka 0.8, in a session of its own."""

    def __init__(
        self,
        connect: str,
        access: Access,
        group: Group,
        family: BrokerFamily,
        subscription: Subscription,
        events: MembershipEvents,
    ) -> None:
        self._events = events
        self._session = ZooKeeper(
            connect, session_timeout_s=group.session_timeout_s or 10.0, access=access
        )
        timing = Timing(group.join_timeout_s, others_backoff_s=OTHERS_BACKOFF_S[family])
        options = MemberOptions(
            family,
            subscription.names(()),
            Strategy(group.assignment_strategy),
            subscription.threads_each,
            group.instance_id,
            timing,
            subscription.threads,
            subscription.filter,
        )
        self._member = ZooKeeperMember(self._session, group.name, _PIPELINE, new_uid(), options)
        self._member.before_let_go(self._release_all)
        self.assignment: MemberAssignment | None = None
        """See `GroupMember`."""

    def join(self) -> MemberAssignment:
        """See `GroupMember`. Raises as `ZooKeeper`, too."""
        self._session.__enter__()
        try:
            self.assignment = self._member.join()
        except BaseException:
            self.leave()
            raise
        return self.assignment

    @property
    def needs_rebalance(self) -> bool:
        """See `GroupMember`."""
        return not self._member.is_current

    def rebalance(self) -> MemberAssignment:
        """See `GroupMember`."""
        self.assignment = self._member.rejoin()
        return self.assignment

    def renewed_assignment(self, rejected: MemberAssignment) -> MemberAssignment | None:
        """See `GroupMember`."""
        return None

    @property
    def threads(self) -> dict[TopicPartition, int] | None:
        """See `GroupMember`."""
        return self._member.threads

    @property
    def has_periodic_work(self) -> bool:
        """True if members may have given up their rebalance because this one owned a partition."""
        return self._member.is_notification_due

    def do_periodic_work(self) -> None:
        """Notify these members."""
        with contextlib.suppress(SessionLost):  # `needs_rebalance` reports it
            self._member.notify_other_members()

    def interrupt(self) -> None:
        """See `GroupMember`."""
        self._member.interrupt()

    def leave(self) -> None:
        """See `GroupMember`."""
        self._member.leave()
        self._session.close()

    def _release_all(self) -> None:
        if self.assignment is None:
            self._events.release(frozenset())
        else:
            self._events.release(self.assignment.partitions)


class MemberWithCoordinator:
    """A member next to Kafka's consumers of 0.9 to 4.x."""

    def __init__(
        self,
        cluster: Cluster,
        requests: Lane,
        group: Group,
        subscription: Subscription,
        events: MembershipEvents,
        *,
        timeout_s: float,
        release_name: str | None,
    ) -> None:
        self._cluster = cluster
        self._requests = requests
        self._group = group
        self._subscription = subscription
        self._events = events
        self._timeout_s = timeout_s
        self._release_name = release_name
        self._topics: frozenset[str] = frozenset()
        self._topics_changed = False
        self._topics_listed_at = 0.0
        self._topic_list: Future[frozenset[str]] | None = None
        """The request for the topics of the filter in flight."""
        self._is_interrupted = False
        self._member: CoordinatedMember | None = None
        """None while no topic passes the filter."""
        self._last_assignment: MemberAssignment | None = None
        self._losses_handled = 0

    def join(self) -> MemberAssignment:
        """See `GroupMember`. Raises as `Cluster`, too."""
        group = self._group
        self._topics_listed_at = time.monotonic()
        self._topics = self._requests.call(self._subscribed_topics)
        self._topics_changed = False
        if not self._topics or self._is_interrupted:
            return MemberAssignment(
                "", Membership.COORDINATOR, group.assignment_strategy, None, frozenset()
            )
        terms = MemberTerms(
            group.name,
            tuple(sorted(self._topics)),
            (group.assignment_strategy,),
            group.instance_id,
            group.session_timeout_s or 45.0,
            group.rebalance_timeout_s,
            group.join_timeout_s,
            answers_in_s=self._timeout_s,
            topics_max_age_s=group.topics_max_age_s,
            holds_assignment=True,
        )
        self._member = CoordinatedMember(
            self._cluster.bootstrap,
            terms,
            protocol=GroupProtocol(group.protocol),
            broker_type=self._release_name,
            security=self._cluster.security,
        )
        self._losses_handled = 0
        if self._is_interrupted:
            self._member.interrupt()
        self._last_assignment = self._member.join()
        return self._last_assignment

    @property
    def needs_rebalance(self) -> bool:
        """See `GroupMember`."""
        if self._member is None:
            return self._topics_changed
        return (
            self._topics_changed
            or self._is_lost
            or bool(self._member.release_requested)
            or not self._member.is_current
        )

    def rebalance(self) -> MemberAssignment:
        """See `GroupMember`."""
        if self._member is None:
            return self.join()
        self._report_loss(self._member)
        if self._topics_changed and self._last_assignment is not None:
            self._events.release(self._last_assignment.partitions)
            self.leave()
            return self.join()

        revoked = self._member.release_requested
        previous = self._last_assignment
        if revoked:
            self._events.release(revoked)
        assigned_by_coordinator = self._group.protocol == GroupProtocol.CONSUMER.value
        # Without a revocation, the consumer protocol takes the new assignment and releases
        # nothing: what `rejoin` released would reach no listener.
        if revoked or not assigned_by_coordinator:
            renewed = self._member.rejoin()
        else:
            renewed = self._member.renew()
        self._report_loss(self._member)
        if (
            not assigned_by_coordinator
            and previous is not None
            and previous.generation != renewed.generation
        ):
            # Another member may have owned any partition between the two generations. What was
            # released above is not reported again.
            self._events.lose_all()
        # Only now: a commit of the former partitions must not have the new generation.
        self._last_assignment = renewed
        return renewed

    @property
    def assignment(self) -> MemberAssignment | None:
        """The assignment of the partitions that the consumer has now.

        In the consumer protocol with the coordinator's newest epoch. A classic group may have
        assigned the partitions to others between two generations.
        """
        assignment = self._last_assignment
        member = self._member
        if member is not None and self._group.protocol == GroupProtocol.CONSUMER.value:
            # Read before the check for a loss: an assignment received after a loss does not count.
            assignment = member.newest or assignment
        if self._is_lost:
            return None
        return assignment

    def renewed_assignment(self, rejected: MemberAssignment) -> MemberAssignment | None:
        """See `GroupMember`.

        In the consumer protocol each change of members makes a new epoch, and partitions that are
        not revoked stay.
        """
        member = self._member  # the next step may set another one meanwhile
        if member is None:
            return None
        renewed = member.unbroken(rejected, within_s=self._timeout_s)
        if renewed is None or renewed.generation == rejected.generation or self._is_lost:
            return None
        return renewed

    threads = None
    """See `GroupMember`."""

    @property
    def has_periodic_work(self) -> bool:
        """Compare the filter with the existing topics every `topics_max_age_s`."""
        if self._subscription.filter is None:
            return False
        if self._topic_list is not None:
            if self._topic_list.done():
                # The next comparison retries; polls report unreachable partitions.
                with contextlib.suppress(BrokerUnreachable):
                    self._topics_changed = self._topic_list.result() != self._topics
                self._topic_list = None
        elif time.monotonic() >= self._topics_listed_at + self._group.topics_max_age_s:
            self._topics_listed_at = time.monotonic()
            self._topic_list = self._requests.submit(self._subscribed_topics)
        return False

    def do_periodic_work(self) -> None:
        """There is none that waits."""

    def interrupt(self) -> None:
        """See `GroupMember`."""
        self._is_interrupted = True
        if self._member is not None:
            self._member.interrupt()

    def leave(self) -> None:
        """See `GroupMember`."""
        if self._member is not None:
            self._member.leave()
        self._member = None
        self._last_assignment = None

    @property
    def _is_lost(self) -> bool:
        """True if the coordinator removed this member and the listener was not called yet."""
        member = self._member
        return member is not None and member.statistics.lost > self._losses_handled

    def _subscribed_topics(self) -> frozenset[str]:
        if self._subscription.filter is None:
            return self._subscription.names(())
        names = []
        for name, topic in self._cluster.describe(None).topics.items():
            if not topic.is_internal:
                names.append(name)
        return self._subscription.names(names)

    def _report_loss(self, member: CoordinatedMember) -> None:
        """Call `lose_all` if the coordinator removed this member; `CoordinatedMember` rejoins."""
        lost = member.statistics.lost
        if lost > self._losses_handled:
            self._events.lose_all()
            # Only now: until the partitions are dropped, a commit of them is rejected.
            self._losses_handled = lost


OpenMember = Callable[[Subscription, MembershipEvents], GroupMember]
"""Create a membership that is not joined yet, with its callbacks."""


@dataclass(frozen=True, slots=True)
class ConsumerResources:
    """Resources of a consumer."""

    cluster: Cluster
    requests: Lane
    """The lane of all requests to `cluster` and `offset_store`."""
    results: Results
    offset_store: OffsetStore | None = None
    """The group's committed offsets; None without a group."""
    group: Group | None = None
    open_member: OpenMember | None = None
    """Creates memberships; None without a group."""


def open_cluster(conf: ConsumerConfig, until: ExitStack) -> ConsumerResources:
    """Open the cluster, and the group's offsets if there is a group. `until` closes them.

    Raises SettingsError, and as `ZooKeeper` and `registered_cluster`.
    """
    group = conf.checked()
    if conf.zookeeper:
        zookeeper = until.enter_context(ZooKeeper(conf.zookeeper, access=conf.access))
    else:
        zookeeper = None
    if conf.bootstrap_servers is not None:
        cluster = Cluster(
            conf.addresses,
            timeout_s=conf.request_timeout_s,
            broker_type=conf.broker_release,
            security=conf.way_in,
        )
    elif zookeeper is not None:
        cluster = registered_cluster(
            zookeeper,
            physical=conf.is_physical,
            timeout_s=conf.request_timeout_s,
            broker_type=conf.broker_release,
            security=conf.way_in,
        )
    results = Results()
    requests = Lane("requests", results)
    until.callback(lambda: requests.close(cluster.close))
    if group is None:
        return ConsumerResources(cluster, requests, results)

    offset_store: OffsetStore
    if conf.storage is OffsetsStorage.KAFKA or zookeeper is None:
        offset_store = KafkaOffsetStore(cluster, group.name)
    else:
        offset_store = ZooKeeperOffsetStore(zookeeper, group.name, physical=conf.is_physical)

    def open_member(subscription: Subscription, events: MembershipEvents) -> GroupMember:
        if group.membership is Membership.ZOOKEEPER:
            connect = conf.zookeeper or ""
            family = BrokerFamily(conf.broker_type)
            return MemberInZooKeeper(connect, conf.access, group, family, subscription, events)
        return MemberWithCoordinator(
            cluster,
            requests,
            group,
            subscription,
            events,
            timeout_s=conf.request_timeout_s,
            release_name=conf.broker_release,
        )

    return ConsumerResources(cluster, requests, results, offset_store, group, open_member)


_POLL_CHECK_S = 0.25
_SLICE_S = 0.2
_COMMIT_ATTEMPTS = 3
"""Attempts of one commit if only the epoch of the assignment changed."""


@dataclass(frozen=True, slots=True)
class _Released:
    """Partitions that are about to be released, and what auto-commit commits of them."""

    partitions: frozenset[TopicPartition]
    offsets: Mapping[TopicPartition, int]


class GroupSubscription:
    """The membership of one consumer, and what it owns.

    The consumer calls it in one thread at a time. A second thread, the group's lane, waits for the
    group, a third one checks that the consumer is polled.
    """

    def __init__(self, resources: ConsumerResources, positions: Positions) -> None:
        self._group = resources.group
        self._offset_store = resources.offset_store
        self._open_member = resources.open_member
        self._cluster = resources.cluster
        self._requests = resources.requests
        self._results = resources.results
        self._lane = Lane("group", resources.results)
        self._positions = positions
        self._subscription: Subscription | None = None
        self._auto_commits = (
            resources.group is not None and resources.group.auto_commit_s is not None
        )
        self._listener = RebalanceListener()
        self._member: GroupMember | None = None
        self._step: tuple[GroupMember, Future[MemberAssignment | None]] | None = None
        """The step that a member takes in the lane: a join or a rebalance, with its result."""
        self._calls: list[tuple[Callable[[], None], Future[None]]] = []
        """Calls that the step waits for, which only polls make."""
        self._is_releasing = False
        """True from the first to the last call of a release."""
        self._step_error: Exception | None = None
        """What a release, or the report of a loss, raised in the step."""
        self._lock = threading.RLock()
        """Guards the member and the calls against the thread that checks for polls."""
        self._is_stale = False
        """True if the member left because polls stopped: no more calls are made."""
        self._topics: frozenset[str] = frozenset()
        """Topics with partitions in the last assignment."""
        self._deleted: Future[frozenset[str]] | None = None
        """The request which topics without partitions were deleted."""
        self._commit_in_flight: Future[None] | None = None
        """An auto-commit."""
        self._committed_at = time.monotonic()
        self._polled_at = self._committed_at
        self._rebalance_requested_at: float | None = None
        self._poll_checker: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def is_subscribed(self) -> bool:
        """True if the group assigns the partitions."""
        return self._subscription is not None

    @property
    def is_rebalancing(self) -> bool:
        """True if the consumer is subscribed, and joins or rebalances."""
        return self.is_subscribed and (self._step is not None or self._member is None)

    @property
    def is_in_zookeeper(self) -> bool:
        """True if the group's members are registered in ZooKeeper."""
        return self._group is not None and self._group.membership is Membership.ZOOKEEPER

    @property
    def threads(self) -> Mapping[TopicPartition, int] | None:
        """The thread of this member that owns each partition; None if the group has no threads."""
        return self._member.threads if self._member else None

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        """Join the group at the next `tend`. Raises SettingsError without a group."""
        if self._open_member is None:
            raise SettingsError(
                "The consumer has no group, and only group members can subscribe",
                key="group",
                action="Pass a group: Consumer(..., group=...), or call assign()",
            )
        if self._subscription is None and self._positions.scheduler.assigned:
            raise SettingsError(
                "Partitions are assigned to this consumer by hand",
                action="Call assign(()) or unsubscribe() before subscribe()",
            )
        self.unsubscribe()
        self._subscription = subscription
        self._listener = listener or RebalanceListener()
        self._polled_at = time.monotonic()
        self._ended = threading.Event()
        self._poll_checker = threading.Thread(
            target=self._check_polls, args=(self._ended,), name="streams: polls", daemon=True
        )
        self._poll_checker.start()

    def unsubscribe(self) -> None:
        """Release all partitions and leave the group.

        Raises what the release raised, or the one in the step that it ends.
        """
        if self._subscription is None:
            return
        self._ended.set()
        try:
            if self._poll_checker is not None:
                self._poll_checker.join()
            if self._is_stale:
                self._discard_step()
                self.lose_all()
            else:
                self._finish_release()
                self.release(frozenset(self._positions.scheduler.assigned))
                self._interrupt_step()
        finally:
            self._end_membership()

    def close(self) -> None:
        """Leave the group, and end its lane."""
        try:
            self.unsubscribe()
        finally:
            self._lane.close(lambda: None)

    def stop_auto_commit(self) -> None:
        """Commit automatically no more.

        For a program that failed while it processed records: its next start reads them again.
        """
        self._auto_commits = False

    def tend(self) -> bool:
        """Do what is due before a poll returns records: join, rebalance, auto-commit.

        Does not wait: return False while a join or a rebalance is under way, in which the poll
        returns nothing.
        """
        if self._subscription is None or self._group is None:
            return True
        with self._lock:
            try:
                return self._tend(self._group, self._subscription)
            finally:  # the duration of a rebalance does not count against the poll interval
                self._polled_at = time.monotonic()
                self._rebalance_requested_at = None

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit as the member, or without membership if partitions are assigned by hand.

        Raises MembershipLost, NotAssigned for another member's partition, SettingsError without a
        group.
        """
        commit = self._prepare_commit(offsets)
        self._requests.call(commit)

    def _prepare_commit(self, offsets: Mapping[TopicPartition, int]) -> Callable[[], None]:
        """Return the call that commits, with the assignment of now. Raises as `commit`."""
        store = self._offset_store
        if store is None:
            raise SettingsError(
                "The consumer has no group, so it has no committed offsets",
                key="group",
                action="Pass a group: Consumer(..., group=...)",
            )
        if self._subscription is None:
            return lambda: store.commit(offsets, None)
        member = self._member
        assignment = None
        if member is not None and not self._is_stale:
            assignment = member.assignment
        if member is None or assignment is None:
            raise MembershipLost(
                "The consumer is not a member of its group now, and others may be reading its"
                " partitions",
                action="Check how long this program takes between two polls; the next poll joins"
                " again and continues at the group's committed offsets",
            )
        for partition in offsets:
            if partition not in self._positions.scheduler.assigned:
                raise NotAssigned(
                    "The group does not assign the partition to this consumer",
                    **partition.place,
                    action="Commit only partitions that the listener received in assigned()",
                )
        return lambda: _commit_as_member(store, offsets, member, assignment)

    # The end of an assignment. A member calls these in the lane, and a poll makes their calls.

    def release(self, partitions: frozenset[TopicPartition]) -> None:
        """Auto-commit these partitions and call `revoked`; they are still owned."""
        with self._keeping_error():
            released = self._in_poll(lambda: self._stop(partitions))
            if not released.partitions:
                return
            try:
                if released.offsets:
                    commit = self._in_poll(lambda: self._prepare_commit(released.offsets))
                    self._requests.call(commit)
                self._in_poll(lambda: self._listener.revoked(released.partitions))
            finally:
                self._in_poll(lambda: self._drop(released.partitions))

    def lose_all(self) -> None:
        """Drop all partitions and call `lost`: they were lost at an unknown time."""
        with self._keeping_error():
            self._in_poll(self._lose_all)

    @contextlib.contextmanager
    def _keeping_error(self) -> Iterator[None]:
        """Keep an error of the step for `unsubscribe`, which does not take the step's result."""
        try:
            yield
        except Exception as error:
            if self._lane.is_current:
                self._step_error = error
            raise

    def _stop(self, partitions: frozenset[TopicPartition]) -> _Released:
        released = partitions.intersection(self._positions.scheduler.assigned)
        self._is_releasing = bool(released)
        self._positions.stop(released)
        offsets = {}
        if self._auto_commits:
            for partition, offset in self._positions.done().items():
                if partition in released:
                    offsets[partition] = offset
        return _Released(released, offsets)

    def _drop(self, released: frozenset[TopicPartition]) -> None:
        assigned = self._positions.scheduler.assigned
        self._positions.assign([each for each in assigned if each not in released])
        self._commit_in_flight = None
        self._is_releasing = False

    def _lose_all(self) -> None:
        lost = frozenset(self._positions.scheduler.assigned)
        self._positions.assign(())
        self._commit_in_flight = None
        self._is_releasing = False
        if lost:
            self._listener.lost(lost)

    def _in_poll(self, call: Callable[[], T]) -> T:
        """Make a call in the thread that polls: from the lane, wait for the next poll."""
        if not self._lane.is_current:
            return call()
        returned: list[T] = []
        done: Future[None] = Future()
        with self._lock:
            if self._is_stale:
                raise _not_polled()
            self._calls.append((lambda: returned.append(call()), done))
        self._results.notify()
        done.result()
        return returned[0]

    def _make_calls(self) -> None:
        """Make the calls that the step waits for; it gets their errors.

        Ctrl-C is raised here, and ends the step.
        """
        while self._calls:
            call, done = self._calls[0]
            try:
                if not done.done():
                    call()
                    done.set_result(None)
            except Exception as error:
                done.set_exception(error)
            except BaseException:
                done.set_exception(_CallInterrupted())
                raise
            finally:
                del self._calls[0]

    # Steps of the member

    def _tend(self, group: Group, subscription: Subscription) -> bool:
        if self._is_stale:
            self._discard_step()
            self._leave()
            self.lose_all()
        if self._step is not None:
            self._make_calls()
            if not self._step[1].done():
                return False
            self._finish_step()
        member = self._member
        if member is None:
            if self._open_member is not None:
                joining = self._open_member(subscription, self)
                self._begin_step(joining, joining.join)
            return False
        has_periodic_work = member.has_periodic_work
        if member.needs_rebalance:
            self._begin_step(member, member.rebalance)
            return False
        if has_periodic_work:
            self._begin_step(member, member.do_periodic_work)
            return False
        self._reject_deleted_topics()
        self._auto_commit(group)
        return True

    def _reject_deleted_topics(self) -> None:
        """Raise TopicMissing, once, for a subscribed topic that was assigned and is gone."""
        if self._deleted is None or not self._deleted.done():
            return
        request = self._deleted
        self._deleted = None
        deleted: frozenset[str] = frozenset()
        with contextlib.suppress(BrokerUnreachable):
            deleted = request.result()
        if deleted:
            raise TopicMissing(
                "A subscribed topic was deleted",
                topic=min(deleted),
                action="Check who deleted it. Once it is created again, the group reads it",
            )

    def _begin_step(self, member: GroupMember, step: Callable[[], MemberAssignment | None]) -> None:
        self._step_error = None
        self._step = member, self._lane.submit(step)

    def _finish_step(self) -> None:
        """Take the result of the step: a new assignment, or the end of the membership."""
        if self._step is None:
            return
        member, result = self._step
        self._step = None
        try:
            assignment = result.result()
        except _CallInterrupted:
            self._leave()
            self.lose_all()
            return
        except SessionLost:
            has_joined = self._member is not None
            self._leave()
            self.lose_all()
            if not has_joined:
                raise
            return
        except BaseException:
            self._leave()
            self.lose_all()
            raise
        if assignment is not None:
            self._apply(assignment, member)

    def _finish_release(self) -> None:
        """Make the calls of a release that the step has begun."""
        if self._step is None:
            return
        self._make_calls()
        while self._is_releasing and not self._step[1].done():
            self._results.wait(time.monotonic() + _SLICE_S)
            self._make_calls()

    def _interrupt_step(self) -> None:
        """End the step. Of its result only the error of a release is raised."""
        if self._step is None:
            return
        member, result = self._step
        member.interrupt()
        while not result.done():
            self._make_calls()
            self._results.wait(time.monotonic() + _SLICE_S)
        error = self._step_error
        if error is not None and not isinstance(error, _CallInterrupted):
            raise error.with_traceback(None)

    def _end_membership(self) -> None:
        """Leave, also as the member of a step that was not ended, and wait for it."""
        member = self._member
        if self._step is not None:
            member = self._step[0]
            member.interrupt()
        if member is not None:
            with self._lock:
                self._leave_in_lane(member)
        self._step = None
        self._member = None
        self._subscription = None
        self._lane.call(lambda: None)
        self._is_stale = False
        self._is_releasing = False
        self._positions.assign(())

    def _leave_in_lane(self, member: GroupMember) -> None:
        """Leave after the step, whose calls are not made any more."""
        self._is_stale = True
        for _, done in self._calls:
            done.set_exception(_not_polled())
        self._calls.clear()
        self._lane.submit(member.leave)

    def _discard_step(self) -> None:
        """Forget the step of a member that left because polls stopped."""
        self._step = None
        self._calls.clear()

    def _apply(self, assignment: MemberAssignment, member: GroupMember) -> None:
        self._member = member
        self._note_topics(frozenset(each.topic for each in assignment.partitions))
        previous = frozenset(self._positions.scheduler.assigned)
        self._positions.assign(sorted(assignment.partitions))
        lost = previous - assignment.partitions
        if lost:
            self._listener.lost(lost)
        new = assignment.partitions - previous
        if new:
            self._listener.assigned(new)

    def _note_topics(self, topics: frozenset[str]) -> None:
        missing = self._topics - topics
        self._topics = topics
        if missing and self._subscription is not None and self._subscription.filter is None:
            self._deleted = self._requests.submit(
                lambda: unknown_topics(self._cluster.describe(missing), missing)
            )

    def _leave(self) -> None:
        """Leave in the lane, before the next step."""
        member = self._member
        self._member = None
        self._is_stale = False
        if member is not None:
            self._lane.submit(member.leave)

    def _auto_commit(self, group: Group) -> None:
        """Commit in the background, and raise the error of the commit before."""
        if group.auto_commit_s is None:
            return
        if self._commit_in_flight is not None:
            if not self._commit_in_flight.done():
                return
            finished = self._commit_in_flight
            self._commit_in_flight = None
            finished.result()
        if time.monotonic() < self._committed_at + group.auto_commit_s:
            return
        self._committed_at = time.monotonic()
        offsets = self._positions.done()
        if offsets:
            self._commit_in_flight = self._requests.submit(self._prepare_commit(offsets))

    # A consumer that is not polled

    def _check_polls(self, ended: threading.Event) -> None:
        """Run the third thread: a member that is not polled blocks its group, so it leaves."""
        while not ended.wait(_POLL_CHECK_S):
            with self._lock:
                self._leave_if_not_polled(time.monotonic())

    def _leave_if_not_polled(self, now: float) -> None:
        group = self._group
        member = self._step[0] if self._step is not None else self._member
        if member is None or group is None or self._is_stale:
            return
        if self._step is not None and not self._step[1].done():
            if not self._calls:
                return  # it waits for the group, and not for a poll
            is_requested = True
        else:
            is_requested = member.needs_rebalance
        if not is_requested:
            self._rebalance_requested_at = None
        elif not self._rebalance_requested_at:
            self._rebalance_requested_at = now
        requested_at = self._rebalance_requested_at
        is_overdue = requested_at is not None and now - requested_at >= group.rebalance_timeout_s
        if is_overdue or now - self._polled_at >= group.max_poll_interval_s:
            self._leave_in_lane(member)


class _CallInterrupted(Exception):
    """Ctrl-C ended a call that a step waited for. The poll that made the call raised it."""


def _commit_as_member(
    store: OffsetStore,
    offsets: Mapping[TopicPartition, int],
    member: GroupMember,
    assignment: MemberAssignment,
) -> None:
    for attempts_left in reversed(range(_COMMIT_ATTEMPTS)):
        try:
            store.commit(offsets, assignment)
            return
        except MembershipLost:
            renewed = None
            if attempts_left:
                renewed = member.renewed_assignment(assignment)
            if renewed is None:
                raise
            assignment = renewed


def _not_polled() -> MembershipLost:
    return MembershipLost(
        "The consumer left its group, since it was not polled",
        action="Check how long this program takes between two polls",
    )
