"""One rebalance of a member in ZooKeeper: it registers, looks at the group, claims its share, all
or nothing, waits, lets go.

In which order is decided in `etl.decide.group_assignment`. When a member begins one, and what
it does between two, is in `membership`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kazoo.client import KazooState
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from etl.decide import group_assignment
from etl.decide.group_assignment import (
    Do,
    Phase,
    Standing,
    Step,
    Strategy,
    Timing,
    assign,
    share_of,
)
from etl.edges.zookeeper.members import GroupMembers
from etl.edges.zookeeper.owners import Owners
from etl.edges.zookeeper.process import this_driver
from etl.edges.zookeeper.session import ZooKeeper
from etl.edges.zookeeper.watched_group import Bell, SeenGroup, WatchedGroup
from etl.errors import Owned, PermissionRefused, SettingsError, Unreachable
from etl.ledger.registrations import (
    FilteredTopics,
    FixedTopics,
    OwnerNode,
    Registration,
    consumer_id,
    driver_consumer_id,
    render_registration,
)
from etl.ledger.topic_filters import TopicFilter
from etl.model.partitions import BrokerFamily, BrokerPartition, RebalanceStatistics


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """As what a driver joins."""

    dialect: BrokerFamily
    topics: frozenset[str]
    """Which it reads; under a filter it finds that out itself."""
    strategy: Strategy = Strategy.RANGE
    threads: int = 1
    """How many it counts for, of each topic."""
    member_id: str | None = None
    """Its name in the group, always the same one; None: one that says which process it is, by which
    the next run knows if it is dead.
    """
    timing: Timing = Timing()
    threads_of: Mapping[str, int] = field(default_factory=dict)
    """Of which topics it counts for another number."""
    filter: TopicFilter | None = None
    """By what it reads all topics that pass, those that are made later, too."""


class Rebalance:
    """What a member does in a rebalance, and what it knows by it. One thread at a time. Raises what
    `ZooKeeper` raises.
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
        self._seen = SeenGroup({}, {})
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
        """Logs that we let go, and whose owner nodes may be there yet."""
        self.statistics = RebalanceStatistics()
        self.before_let_go: Callable[[], None] = lambda: None
        """Called where something is to be let go, while it is still ours."""
        self.is_stopped = False
        """Whoever waits goes on and does nothing more."""

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
        with contextlib.suppress(KazooException, KazooTimeoutError, Unreachable, PermissionRefused):
            if (self._is_registered or self._left) and not self._release():
                self._zookeeper.refuse_lost_session()  # a connection that comes back finds the nodes of a session that lives on
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
            what = "none of the topics that source.topics names is registered in ZooKeeper, so that there is nothing to be a member for"
            raise SettingsError(
                what, key="source.topics", check="the names, and zookeeper.connect with its chroot"
            )
        self._zookeeper.client.add_listener(self._watch_session)
        self._is_registered = True  # or may be, whatever comes back
        self._let_go()  # where it was stopped in the middle of another rebalance
        self._owners.release_left_behind(self._topics, self._us)
        self._members.delete_left_behind(
            self._us
        )  # behind its owner nodes: who is called by it finds them free
        while not self._ensure_registered():
            left = self._options.timing.join_timeout_s - self._elapsed_s
            if left <= 0:
                what = f"a consumer {self.member} is registered in another session"
                self._in_the_way = Owned(what, znode=self._members.path(self.member))
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
                Owned("ZooKeeper did not delete owner nodes that were ours before")
            )
        given = assign(self._seen.context, self._options.strategy, self.member)
        self.share = {log: thread.encode() for log, thread in share_of(self.member, given).items()}
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
        """Until all of our share is free or we are called, a backoff at most."""
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
        """Own nothing any more. False: some of it may be ours yet, and until that is deleted nobody
        else can have it.
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
        what = f"the group did not settle within {timeout_s:g} s: {reason.what if reason else 'nobody knows why'}"
        check = "that consumer; a time to join must be longer than what the group's consumers take for all their tries"
        raise Owned(what, check=check, **(reason.where if reason else {})) from reason

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _watch_session(self, state: str) -> None:
        if state == KazooState.LOST:
            self.bell.call()
