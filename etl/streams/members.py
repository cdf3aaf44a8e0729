"""A consumer's membership in its group: `edges`' members, each with what it lives in, from its join
to its end. A lost one is another one's turn, for nothing of it counts any more.

Nothing is let go behind a program's back: what the group wants stays ours until the consumer was
told, or its time is over.
"""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from etl.decide.group_assignment import OTHERS_BACKOFF_S, Strategy, Timing
from etl.errors import BrokerUnreachable, SessionLost
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.io.process import new_uid
from etl.io.zookeeper.group_member import MemberOptions, ZooKeeperMember
from etl.io.zookeeper.session import ZooKeeper
from etl.model.partitions import BrokerFamily, BrokerPartition, GroupProtocol, Membership, Share
from etl.model.security import Access
from etl.streams.groups import Group, Subscription

_PIPELINE = "~streams"
"""As what our nodes in ZooKeeper name a consumer, so that the next one does away with those of one
that died on this host. No pipeline may be called so."""


class Told(Protocol):
    """Who hears what becomes of a share."""

    def let_go(self, logs: frozenset[BrokerPartition]) -> None:
        """These are about to be let go, and still ours."""

    def lose(self) -> None:
        """Nothing is ours any more, since nobody knows when."""


class GroupMember(Protocol):
    """One membership. Only the consumer that has it calls it, one thread at a time."""

    def join(self) -> Share:
        """Be a member, with a share of the group; see `run.members.Member.join`."""

    @property
    def is_called(self) -> bool:
        """Whether the group may divide its logs anew, or we are members no more."""

    def settle(self) -> Share:
        """Let go of what the group wants, and take what it gives. What it raises ends the
        membership; with SessionLost it had ended.
        """

    @property
    def share(self) -> Share | None:
        """By what commits are fenced; None: by nothing, for we are members no more."""

    def renewed(self, share: Share) -> Share | None:
        """Once a commit by that share was refused: the one by which its logs are ours all the same,
        if there is one.
        """

    @property
    def threads(self) -> dict[BrokerPartition, int] | None:
        """Which of its threads owns each log; None where the group knows no threads."""

    def look_after(self) -> None:
        """What is to be done now and then while nothing happens."""

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
        told: Told,
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
            lambda: told.let_go(self.share.logs if self.share else frozenset())
        )
        self.share: Share | None = None
        """See `GroupMember`."""

    def join(self) -> Share:
        """See `GroupMember`. Raises what ZooKeeper does, too."""
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

    def settle(self) -> Share:
        """See `GroupMember`."""
        self.share = self._member.rejoin()
        return self.share

    def renewed(self, share: Share) -> Share | None:
        """See `GroupMember`."""
        return None

    @property
    def threads(self) -> dict[BrokerPartition, int] | None:
        """See `GroupMember`."""
        return self._member.threads

    def look_after(self) -> None:
        """Call others that gave up because we were in their way."""
        with contextlib.suppress(SessionLost):  # told by `is_called`
            self._member.look_after_others()

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
        told: Told,
        *,
        timeout_s: float,
        generation: str | None,
    ) -> None:
        self._cluster, self._group, self._wanted, self._told = cluster, group, wanted, told
        self._timeout_s, self._generation = timeout_s, generation
        self._topics: frozenset[str] = frozenset()
        self._has_other_topics = False
        self._looked_at = 0.0
        self._member: CoordinatedMember | None = None
        """None while no topic passes the filter."""
        self._taken: Share | None = None
        self._lost = 0

    def join(self) -> Share:
        """See `GroupMember`. Raises what brokers do, too."""
        group = self._group
        self._topics, self._has_other_topics = self._names(), False
        if not self._topics:
            return Share("", Membership.COORDINATOR, group.strategy, None, frozenset())
        terms = MemberTerms(
            group.name,
            tuple(sorted(self._topics)),
            (group.strategy,),
            group.member_id,
            group.session_timeout_s or 45.0,
            group.rebalance_timeout_s,
            group.join_timeout_s,
            answers_in_s=self._timeout_s,
            holds_shares=True,
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
            or bool(self._member.asked_back)
            or not self._member.is_current
        )

    def settle(self) -> Share:
        """See `GroupMember`."""
        if self._member is None:
            return self.join()
        self._note_loss(self._member)
        if self._has_other_topics and self._taken is not None:
            self._told.let_go(self._taken.logs)
            self.leave()
            return self.join()
        asked, before = self._member.asked_back, self._taken
        if asked:
            self._told.let_go(asked)
        by_coordinator = self._group.protocol == GroupProtocol.CONSUMER.value
        # Where nothing is asked back, nothing is to go that nobody was told of.
        self._taken = self._member.rejoin() if asked or not by_coordinator else self._member.renew()
        self._note_loss(self._member)
        if (
            not by_coordinator
            and before is not None
            and before.generation != self._taken.generation
        ):
            self._told.lose()  # unless it was let go: another member may have had any of it in between
        return self._taken

    @property
    def share(self) -> Share | None:
        """The newest one: by it the epoch of a commit is no older than the coordinator knows it."""
        newest = self._member.newest if self._member is not None else None
        return (
            None if self._is_lost else newest or self._taken
        )  # in this order: one that is behind a loss is none of ours

    def renewed(self, share: Share) -> Share | None:
        """In the consumer protocol whoever comes or goes makes another epoch, and logs that are not
        asked back stay where they are.
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
        """Whether the coordinator took us for gone, and nobody was told yet."""
        return self._member is not None and self._member.statistics.lost > self._lost

    def _names(self) -> frozenset[str]:
        if self._wanted.filter is None:
            return self._wanted.names(())
        self._looked_at = time.monotonic()
        told = self._cluster.describe(None).topics.items()
        return self._wanted.names([name for name, topic in told if not topic.is_internal])

    def _note_loss(self, member: CoordinatedMember) -> None:
        """The coordinator took us for gone; by itself the member has joined again, or does."""
        if self._is_lost:
            self._lost = member.statistics.lost
            self._told.lose()
