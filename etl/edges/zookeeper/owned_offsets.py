"""Offsets that a member in ZooKeeper moves behind an append: each with a check of its owner node,
so that only those move that are ours.

A rival that claims as we do makes owner nodes of the same version. But then the offset is at most
what our plan saw, and it moves forwards, to what is in our table: the rival's own commit is
refused, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from kazoo.exceptions import NoAuthError

from etl.edges.zookeeper.group import ConsumerGroup
from etl.edges.zookeeper.in_flight import Changes, Outcome, ensure_each, outcomes
from etl.edges.zookeeper.owners import OUR_VERSION
from etl.edges.zookeeper.session import OPERATION_BYTES, ZooKeeper, in_requests
from etl.errors import PermissionRefused
from etl.ledger.paths import GroupPaths
from etl.ledger.registrations import render_offset
from etl.model.partitions import BrokerPartition, Committed
from etl.model.plans import Plan


class OwnedOffsets:
    """Of one group, whose offsets `group` reads. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, name: str, group: ConsumerGroup) -> None:
        self._zookeeper, self._paths, self._group = zookeeper, GroupPaths(name), group

    def move(self, plan: Plan, logs: Sequence[BrokerPartition]) -> dict[BrokerPartition, Committed]:
        """Move these offsets from what the plan saw to its positions, and say what those are that
        were moved.

        One that somebody else moved, or whose log is not ours any more, stays as it is. Only where
        an answer was lost is one that is as we would have left it taken for ours: others who read
        just as far by one write leave it so, too. Raises PermissionRefused.
        """
        ensure_each(self._zookeeper, {self._paths.offsets_of(log.topic) for log in logs})
        refused, unsure = self._refused(plan, list(in_requests(logs, self._cost)))
        left, still_unsure = self._refused(
            plan, [[log] for log in refused]
        )  # of a request nothing is done, because of one of them
        maybe = {*unsure, *still_unsure}.intersection(left)
        found = self._group.committed(maybe) if maybe else {}
        return {
            log: plan.moved(log)
            for log in logs
            if log not in left or found.get(log) == plan.moved(log)
        }

    def _refused(
        self, plan: Plan, requests: Sequence[Sequence[BrokerPartition]]
    ) -> tuple[list[BrokerPartition], list[BrokerPartition]]:
        """What was not moved as far as we were told, and what of it may have been. Raises
        PermissionRefused.
        """
        told = list(
            zip(
                requests,
                outcomes([self._changes(plan, some).send() for some in requests]),
                strict=True,
            )
        )
        unsure = [log for some, outcome in told if isinstance(outcome, Exception) for log in some]
        return [log for some, outcome in told if not _is_done(outcome) for log in some], unsure

    def _changes(self, plan: Plan, logs: Sequence[BrokerPartition]) -> Changes:
        changes = Changes(self._zookeeper)
        for log in logs:
            changes.check(self._paths.owner(log), OUR_VERSION)
            changes.put(
                self._paths.offset(log), render_offset(plan.positions[log]), plan.seen[log].version
            )
        return changes

    def _cost(self, log: BrokerPartition) -> int:
        paths = len(self._paths.offset(log)) + len(self._paths.owner(log))
        return 2 * (OPERATION_BYTES + len(self._zookeeper.chroot)) + paths + len(str(2**63))


def _is_done(outcome: Outcome) -> bool:
    """Raises PermissionRefused."""
    if isinstance(outcome, Exception):
        return False
    if any(isinstance(one, NoAuthError) for one in outcome):
        raise PermissionRefused("ZooKeeper does not let us move offsets", check="the znodes' ACLs")
    return not any(isinstance(one, Exception) for one in outcome)
