"""How does a consumer join its group, and what does it own?

    a poll, not joined or membership lost    join; positions start at the group's offsets
    a poll, the group revokes partitions     auto-commit, call `revoked`, drop records, release
    a poll, the group removed the member     call `lost`, drop fetched records, rejoin
    no poll for too long                     leave; the next poll finds everything lost

Nothing is released between polls: partitions stay owned until the listener was called or the
timeout is over. A commit names its assignment, so a late one is rejected.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from etl.decide.group_assignment import OTHERS_BACKOFF_S, Strategy, Timing
from etl.errors import BrokerUnreachable, MembershipLost, NotAssigned, SessionLost, SettingsError
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.io.clusters import registered_cluster
from etl.io.process import new_uid
from etl.io.zookeeper.group_member import MemberOptions, ZooKeeperMember
from etl.io.zookeeper.session import ZooKeeper
from etl.model.partitions import (
    BrokerFamily,
    BrokerPartition,
    GroupProtocol,
    MemberAssignment,
    Membership,
    OffsetsStorage,
)
from etl.model.security import Access
from etl.streams.conf import ConsumerConfig, Group, RebalanceListener, Subscription
from etl.streams.positions import KafkaOffsetStore, OffsetStore, Positions, ZooKeeperOffsetStore

_PIPELINE = "~streams"
"""Pipeline name in our ZooKeeper nodes, by which the next process cleans up after a dead one of
this host. No pipeline may have it.
"""


class MembershipEvents(Protocol):
    """Callbacks for the end of an assignment."""

    def let_go(self, logs: frozenset[BrokerPartition]) -> None:
        """These are about to be let go, and still ours."""

    def lose(self) -> None:
        """Everything was lost at an unknown time."""


class GroupMember(Protocol):
    """One membership. Only the consumer that has it calls it, one thread at a time."""

    def join(self) -> MemberAssignment:
        """Join, with an assignment; see `run.services.Member.join`."""

    @property
    def is_called(self) -> bool:
        """True if a rebalance may be needed, or the membership is over."""

    def settle(self) -> MemberAssignment:
        """Let go of what the group wants, and take what it gives. What it raises ends the
        membership; with SessionLost it had ended.
        """

    @property
    def share(self) -> MemberAssignment | None:
        """By what commits are fenced; None: by nothing, for we are members no more."""

    def renewed(self, share: MemberAssignment) -> MemberAssignment | None:
        """Return the assignment by which its partitions are still ours after a rejected commit, if
        there is one.
        """

    @property
    def threads(self) -> dict[BrokerPartition, int] | None:
        """Which of its threads owns each log; None where the group knows no threads."""

    def look_after(self) -> None:
        """Do periodic work."""

    def leave(self) -> None:
        """Be a member no more. Never raises, and may be called again."""


class MemberInZooKeeper:
    """Beside consumers of Jafka and Kafka 0.8, in a session of its own."""

    def __init__(
        self,
        connect: str,
        access: Access,
        group: Group,
        dialect: BrokerFamily,
        wanted: Subscription,
        events: MembershipEvents,
    ) -> None:
        self._session = ZooKeeper(
            connect, session_timeout_s=group.session_timeout_s or 10.0, access=access
        )
        timing = Timing(group.join_timeout_s, others_backoff_s=OTHERS_BACKOFF_S[dialect])
        options = MemberOptions(
            dialect,
            wanted.names(()),
            Strategy(group.strategy),
            wanted.threads_each,
            group.member_id,
            timing,
            wanted.threads,
            wanted.filter,
        )
        self._member = ZooKeeperMember(self._session, group.name, _PIPELINE, new_uid(), options)
        self._member.before_let_go(
            lambda: events.let_go(self.share.logs if self.share else frozenset())
        )
        self.share: MemberAssignment | None = None
        """See `GroupMember`."""

    def join(self) -> MemberAssignment:
        """See `GroupMember`. Raises as ZooKeeper, too."""
        self._session.__enter__()
        try:
            self.share = self._member.join()
        except BaseException:
            self.leave()
            raise
        return self.share

    @property
    def is_called(self) -> bool:
        """See `GroupMember`."""
        return not self._member.is_current

    def settle(self) -> MemberAssignment:
        """See `GroupMember`."""
        self.share = self._member.rejoin()
        return self.share

    def renewed(self, share: MemberAssignment) -> MemberAssignment | None:
        """See `GroupMember`."""
        return None

    @property
    def threads(self) -> dict[BrokerPartition, int] | None:
        """See `GroupMember`."""
        return self._member.threads

    def look_after(self) -> None:
        """Call others that gave up because we were in their way."""
        with contextlib.suppress(SessionLost):  # told by `is_called`
            self._member.notify_other_members()

    def leave(self) -> None:
        """See `GroupMember`."""
        self._member.leave()
        self._session.close()


class MemberWithCoordinator:
    """Beside Kafka's consumers of 0.9 to 4.x."""

    def __init__(
        self,
        cluster: Cluster,
        group: Group,
        wanted: Subscription,
        events: MembershipEvents,
        *,
        timeout_s: float,
        generation: str | None,
    ) -> None:
        self._cluster, self._group, self._wanted, self._told = cluster, group, wanted, events
        self._timeout_s, self._generation = timeout_s, generation
        self._topics: frozenset[str] = frozenset()
        self._has_other_topics = False
        self._looked_at = 0.0
        self._member: CoordinatedMember | None = None
        """None while no topic passes the filter."""
        self._taken: MemberAssignment | None = None
        self._lost = 0

    def join(self) -> MemberAssignment:
        """See `GroupMember`. Raises as brokers, too."""
        group = self._group
        self._topics, self._has_other_topics = self._names(), False
        if not self._topics:
            return MemberAssignment("", Membership.COORDINATOR, group.strategy, None, frozenset())
        terms = MemberTerms(
            group.name,
            tuple(sorted(self._topics)),
            (group.strategy,),
            group.member_id,
            group.session_timeout_s or 45.0,
            group.rebalance_timeout_s,
            group.join_timeout_s,
            answers_in_s=self._timeout_s,
            holds_assignment=True,
        )
        self._member = CoordinatedMember(
            self._cluster.bootstrap,
            terms,
            protocol=GroupProtocol(group.protocol),
            generation=self._generation,
            security=self._cluster.security,
        )
        self._taken = self._member.join()
        self._lost = self._member.statistics.lost
        return self._taken

    @property
    def is_called(self) -> bool:
        """See `GroupMember`."""
        if self._member is None:
            return self._has_other_topics
        return (
            self._has_other_topics
            or self._is_lost
            or bool(self._member.release_requested)
            or not self._member.is_current
        )

    def settle(self) -> MemberAssignment:
        """See `GroupMember`."""
        if self._member is None:
            return self.join()
        self._note_loss(self._member)
        if self._has_other_topics and self._taken is not None:
            self._told.let_go(self._taken.logs)
            self.leave()
            return self.join()
        is_release_requested, before = self._member.release_requested, self._taken
        if is_release_requested:
            self._told.let_go(is_release_requested)
        by_coordinator = self._group.protocol == GroupProtocol.CONSUMER.value
        # Where nothing is asked back, nothing is to go that nobody was told of.
        if is_release_requested or not by_coordinator:
            self._taken = self._member.rejoin()
        else:
            self._taken = self._member.renew()
        self._note_loss(self._member)
        if (
            not by_coordinator
            and before is not None
            and before.generation != self._taken.generation
        ):
            self._told.lose()  # unless it was let go: another member may have had any of it in between
        return self._taken

    @property
    def share(self) -> MemberAssignment | None:
        """The newest one: by it the epoch of a commit is no older than the coordinator knows it."""
        newest = self._member.newest if self._member is not None else None
        return (
            None if self._is_lost else newest or self._taken
        )  # in this order: one that is behind a loss is none of ours

    def renewed(self, share: MemberAssignment) -> MemberAssignment | None:
        """In the consumer protocol each change of members makes a new epoch, and partitions that
        are not revoked stay.
        """
        if self._member is None or self._group.protocol != GroupProtocol.CONSUMER.value:
            return None
        newest = self._member.heard(within_s=self._timeout_s)
        is_another = newest is not None and newest.generation != share.generation
        return newest if is_another and not self._is_lost else None

    threads = None
    """See `GroupMember`."""

    def look_after(self) -> None:
        """Hold the filter against the topics that there are, once it is time for that."""
        if (
            self._wanted.filter is None
            or time.monotonic() < self._looked_at + self._group.topics_max_age_s
        ):
            return
        with contextlib.suppress(
            BrokerUnreachable
        ):  # looked again in its time; who cannot be fetched from is told by polls
            self._has_other_topics = self._names() != self._topics

    def leave(self) -> None:
        """See `GroupMember`."""
        if self._member is not None:
            self._member.leave()
        self._member = self._taken = None

    @property
    def _is_lost(self) -> bool:
        """True if the coordinator removed us and the program does not know yet."""
        return self._member is not None and self._member.statistics.lost > self._lost

    def _names(self) -> frozenset[str]:
        if self._wanted.filter is None:
            return self._wanted.names(())
        self._looked_at = time.monotonic()
        events = self._cluster.describe(None).topics.items()
        return self._wanted.names([name for name, topic in events if not topic.is_internal])

    def _note_loss(self, member: CoordinatedMember) -> None:
        """The coordinator took us for gone; by itself the member has joined again, or does."""
        if self._is_lost:
            self._lost = member.statistics.lost
            self._told.lose()


OpenMember = Callable[[Subscription, MembershipEvents], GroupMember]
"""Open a new membership, with its callbacks."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Resources of a consumer."""

    cluster: Cluster
    kept: OffsetStore | None = None
    """The group's offsets, where there is a group."""
    group: Group | None = None
    open_member: OpenMember | None = None
    """A membership of it."""


def open_cluster(conf: ConsumerConfig, until: ExitStack) -> Opened:
    """The cluster, and the group where there is one; both end with `until`. Raises SettingsError,
    and what ZooKeeper and its registrations do."""
    group = conf.checked()
    if conf.zookeeper:
        zookeeper = until.enter_context(ZooKeeper(conf.zookeeper, access=conf.access))
    else:
        zookeeper = None
    if conf.bootstrap is not None:
        cluster = Cluster(
            conf.addresses,
            timeout_s=conf.timeout_s,
            generation=conf.generation,
            security=conf.way_in,
        )
    elif zookeeper is not None:
        cluster = registered_cluster(
            zookeeper,
            physical=conf.is_physical,
            timeout_s=conf.timeout_s,
            generation=conf.generation,
            security=conf.way_in,
        )
    until.enter_context(cluster)
    if group is None:
        return Opened(cluster)
    if conf.storage is OffsetsStorage.KAFKA or zookeeper is None:
        kept: OffsetStore = KafkaOffsetStore(cluster, group.name)
    else:
        kept = ZooKeeperOffsetStore(zookeeper, group.name, physical=conf.is_physical)

    def open_member(wanted: Subscription, events: MembershipEvents) -> GroupMember:
        if group.membership is Membership.ZOOKEEPER:
            return MemberInZooKeeper(
                conf.zookeeper or "", conf.access, group, BrokerFamily(conf.dialect), wanted, events
            )
        return MemberWithCoordinator(
            cluster, group, wanted, events, timeout_s=conf.timeout_s, generation=conf.generation
        )

    return Opened(cluster, kept, group, open_member)


_TICK_S = 0.25
_COMMITS_MAX = 3
"""How often one is tried where only the epoch is another one by now."""


class Subscribed:
    """The group's side of one consumer, which calls it in one thread at a time; only what watches
    over its polls is another one.
    """

    def __init__(self, opened: Opened, positions: Positions) -> None:
        self._group, self._kept, self._open_member, self._at = (
            opened.group,
            opened.kept,
            opened.open_member,
            positions,
        )
        self._wanted: Subscription | None = None
        self._commits_by_itself = (
            opened.group is not None and opened.group.auto_commit_s is not None
        )
        self._listener = RebalanceListener()
        self._member: GroupMember | None = None
        self._one_at_a_time = threading.RLock()
        """Guards the member: used by this consumer's thread, also within a listener, and by the
        watching thread.
        """
        self._is_stale = False
        """True if it left because nobody polled."""
        self._polled_at = self._committed_at = time.monotonic()
        self._called_since: float | None = None
        self._watcher: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def is_subscribed(self) -> bool:
        """True if the group decides what is read."""
        return self._wanted is not None

    @property
    def threads(self) -> Mapping[BrokerPartition, int] | None:
        """Which of our threads owns each log; None where the group knows none."""
        return self._member.threads if self._member else None

    def subscribe(self, wanted: Subscription, listener: RebalanceListener | None) -> None:
        """With the next `tend`. Raises SettingsError without a group."""
        if self._open_member is None:
            message = "The consumer has no group, and only members of one subscribe"
            raise SettingsError(
                message, key="group", action="Pass a group: Consumer(..., group=...), or assign()"
            )
        if self._wanted is None and self._at.rotation.assigned:
            message = "Partitions are assigned to this consumer by hand"
            raise SettingsError(
                message, action="Call assign(()), or unsubscribe(), before it subscribes"
            )
        self.unsubscribe()
        self._wanted, self._listener, self._polled_at = (
            wanted,
            listener or RebalanceListener(),
            time.monotonic(),
        )
        self._ended = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, args=(self._ended,), name="streams: polls", daemon=True
        )
        self._watcher.start()

    def unsubscribe(self) -> None:
        """Let go of everything and leave."""
        if self._wanted is None:
            return
        self._ended.set()
        try:
            if self._watcher is not None:
                self._watcher.join()
            if self._is_stale:
                self.lose()
            else:
                self.let_go(frozenset(self._at.rotation.assigned))
        finally:
            self._forget()
            self._wanted = None

    def commit_by_itself_no_more(self) -> None:
        """The program failed amid what it was given: its next start is to be given it again."""
        self._commits_by_itself = False

    def tend(self) -> None:
        """Before each poll hands out anything: join, let go, take, commit; whatever is due."""
        if self._wanted is None or self._group is None:
            return
        with self._one_at_a_time:
            try:
                self._tend(self._group, self._wanted)
            finally:  # what it took the group to settle is none of the program's time
                self._polled_at, self._called_since = time.monotonic(), None

    def commit(self, offsets: Mapping[BrokerPartition, int]) -> None:
        """Commit as the member, or from outside without one. Raises MembershipLost, NotAssigned for
        another member's partition.
        """
        if self._kept is None:
            raise SettingsError(
                "The consumer has no group, so nobody keeps its offsets",
                key="group",
                action="Pass a group: Consumer(..., group=...)",
            )
        if self._wanted is None:
            self._kept.commit(offsets, None)
            return
        with self._one_at_a_time:
            self._commit_as_member(self._kept, offsets)

    def _commit_as_member(self, kept: OffsetStore, offsets: Mapping[BrokerPartition, int]) -> None:
        member = self._member
        share = None if self._is_stale or member is None else member.share
        if share is None or member is None:
            message = (
                "The consumer is no member of its group now, and others may be reading what it read"
            )
            action = "Check how long this program takes between two polls; the next one joins again and begins where the group is"
            raise MembershipLost(message, action=action)
        for log in offsets:
            if log not in self._at.rotation.assigned:
                message = "The partition is not in this consumer's share of the group"
                raise NotAssigned(message, **log.place, action="Check what the listener was told")
        for left in reversed(range(_COMMITS_MAX)):
            try:
                kept.commit(offsets, share)
                return
            except MembershipLost:
                renewed = member.renewed(share) if left else None
                if renewed is None:
                    raise
                share = renewed

    # What becomes of a share

    def let_go(self, logs: frozenset[BrokerPartition]) -> None:
        """These are about to be let go, and still ours."""
        mine = logs.intersection(self._at.rotation.assigned)
        if not mine:
            return
        self._at.stop(mine)
        try:
            if self._commits_by_itself:
                if offsets := {
                    log: offset for log, offset in self._at.done().items() if log in mine
                }:
                    self.commit(offsets)
            self._listener.revoked(mine)
        finally:
            self._at.assign([log for log in self._at.rotation.assigned if log not in mine])

    def lose(self) -> None:
        """Everything was lost at an unknown time."""
        lost = frozenset(self._at.rotation.assigned)
        self._at.assign(())
        if lost:
            self._listener.lost(lost)

    def _tend(self, group: Group, wanted: Subscription) -> None:
        if self._is_stale:
            self._forget()
            self.lose()
        if self._member is not None:
            self._member.look_after()
            if self._member.is_called:
                self._settle(self._member)
        if self._member is None:
            self._join(wanted)
        self._commit_in_time(group)

    def _join(self, wanted: Subscription) -> None:
        if self._open_member is not None:
            member = self._open_member(wanted, self)
            self._take(member.join(), member)

    def _settle(self, member: GroupMember) -> None:
        try:
            share = member.settle()
        except SessionLost:
            self._forget()
            self.lose()
            return
        except BaseException:
            self._forget()
            self.lose()
            raise
        self._take(share, member)

    def _take(self, share: MemberAssignment, member: GroupMember) -> None:
        self._member = member
        before = frozenset(self._at.rotation.assigned)
        self._at.assign(sorted(share.logs))
        if taken_away := before - share.logs:
            self._listener.lost(taken_away)
        if new := share.logs - before:
            self._listener.assigned(new)

    def _forget(self) -> None:
        member, self._member, self._is_stale = self._member, None, False
        if member is not None:
            member.leave()

    def _commit_in_time(self, group: Group) -> None:
        if (
            group.auto_commit_s is not None
            and time.monotonic() >= self._committed_at + group.auto_commit_s
        ):
            self._committed_at = time.monotonic()
            if offsets := self._at.done():
                self.commit(offsets)

    # Who is not polled

    def _watch(self, ended: threading.Event) -> None:
        """The other thread: a member that nobody polls blocks its group."""
        while not ended.wait(_TICK_S):
            if self._one_at_a_time.acquire(blocking=False):
                try:
                    self._leave_if_not_polled(time.monotonic())
                finally:
                    self._one_at_a_time.release()

    def _leave_if_not_polled(self, now: float) -> None:
        member, group = self._member, self._group
        if member is None or group is None or self._is_stale:
            return
        self._called_since = (self._called_since or now) if member.is_called else None
        is_overdue = (
            self._called_since is not None and now - self._called_since >= group.rebalance_timeout_s
        )
        if is_overdue or now - self._polled_at >= group.max_poll_interval_s:
            self._is_stale = True
            member.leave()
