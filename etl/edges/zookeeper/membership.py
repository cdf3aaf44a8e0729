"""A driver as a member of a group in ZooKeeper, beside consumers of Jafka or Kafka 0.8 that are not
ours.

What one rebalance consists of is in `rebalance`; here is when: at joining, before a hand-over
whenever the run asks for it, and behind it in a thread, whenever the group does. What a run reads
after it joined, the group's offsets above all, it reads as the owner: a predecessor that commits
when it lets go has committed by then.

All of it happens in the driver's own session: the hand-over's transaction checks these owner nodes,
and what a session leaves goes at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from etl.decide import group_assignment
from etl.decide.group_assignment import Do, Phase, Step
from etl.edges.zookeeper.documents import Check
from etl.edges.zookeeper.owners import OUR_VERSION
from etl.edges.zookeeper.rebalance import MemberOptions, Rebalance
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import SessionLost
from etl.ledger.paths import GroupPaths
from etl.model.partitions import BrokerPartition, Membership, RebalanceStatistics, Share


class ZooKeeperMember:
    """A `run.members.Member`. Whoever is one holds the driver's lock. Raises what `ZooKeeper`
    raises, too.
    """

    def __init__(
        self, zookeeper: ZooKeeper, group: str, pipeline: str, run_id: str, options: MemberOptions
    ) -> None:
        self._zookeeper, self._options, self._paths = zookeeper, options, GroupPaths(group)
        self._rebalance = Rebalance(zookeeper, group, pipeline, run_id, options)
        self._bell = self._rebalance.bell
        self._follower: threading.Thread | None = None
        self._look_at: float | None = None
        """When it looks whether the others have taken their shares."""
        self.ended: Exception | None = None
        """Why the membership ended behind the hand-over without our wish: there nothing depends on
        it any more.
        """

    @property
    def id(self) -> str:
        """The name of our node among the members."""
        return self._rebalance.member

    def join(self) -> Share:
        """See `Member`. What a dead process of our pipeline left on this host is done away with;
        what another one left under its `member_id` is waited for until its session ends.
        """
        self._stop_following()
        return self._settled(group_assignment.to_join(self._rebalance.standing))

    def rejoin(self) -> Share:
        """See `Member`. Where neither the group nor an owner of our share has changed, nothing is
        let go.
        """
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
        """What a hand-over of these logs writes with its plan: that each of them is still ours.

        A rival that claims as we do makes nodes of this version, too. But it has moved the group's
        offset when it hands over, and the offset's version is part of the same transaction.
        """
        return [Check(self._paths.owner(log), OUR_VERSION) for log in sorted(logs)]

    @property
    def threads(self) -> dict[BrokerPartition, int]:
        """By which of its threads it owns each log of its share; they are counted from 0 for each
        topic.
        """
        return {
            log: int(thread.rpartition(b"-")[2]) for log, thread in self._rebalance.share.items()
        }

    def before_let_go(self, do: Callable[[], None]) -> None:
        """From now on do this where `rejoin` is about to let go of the share, while it is still
        owned.
        """
        self._rebalance.before_let_go = do

    def look_after_others(self) -> None:
        """Of a member that does not `follow`: called now and then, it calls those that gave up
        because of us, once it is time for that.
        """
        if (
            self._follower is None
            and self._look_at is not None
            and self._look_at <= time.monotonic()
        ):
            self._look_at = self._next_look() if self._rebalance.nudge_ownerless() else None

    def follow(self) -> None:
        """See `Member`. Where the group does not settle behind the hand-over, or our session ends,
        we are no member any more (`ended`).
        """
        if self._follower is None and self._rebalance.standing.phase is Phase.STABLE:
            self._follower = threading.Thread(
                target=self._follow, name=f"member {self.id}", daemon=True
            )
            self._follower.start()

    def leave(self) -> None:
        """See `Member`. What is owned is let go first, so that whoever is called by our leaving
        finds it free.
        """
        self._stop_following()
        self._rebalance.withdraw()

    def _settled(self, step: Step) -> Share:
        try:
            self._rebalance.run(step)
        except BaseException:
            self._rebalance.withdraw()
            raise
        self._look_at, logs = self._next_look(), frozenset(self._rebalance.share)
        return Share(self.id, Membership.ZOOKEEPER, self._options.strategy.value, None, logs)

    def _follow(self) -> None:
        """The thread. Whatever goes wrong in it, nobody is left to wait for us."""
        try:
            self._follow_until_stopped()
        except Exception as error:  # told in `ended`
            self._rebalance.withdraw()
            self._rebalance.statistics = replace(self.statistics, lost=self.statistics.lost + 1)
            self.ended = error

    def _follow_until_stopped(self) -> None:
        """Take part in each rebalance; some time after it look whether the others have taken
        theirs, and call them where they have not.
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
