"""The offsets of a consumer's group, where the group keeps them: in ZooKeeper as consumers of Jafka
and 0.8 do, or with its coordinator.

In ZooKeeper an offset is written where it still is what was seen last, so nobody else's is lost; a
member's with the check that the log is still its own. A coordinator knows its members by their
generation, and refuses a commit from outside while the group has members (Owned).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from kazoo.exceptions import NoAuthError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import CheckVersion

from etl.errors import CommitUnknown, MembershipLost, OffsetMoved, PermissionRefused
from etl.io.brokers.cluster import Cluster
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.owners import OUR_VERSION
from etl.io.zookeeper.session import (
    OPERATION_BYTES,
    Changes,
    Outcome,
    ZooKeeper,
    ensure_each,
    in_requests,
    outcomes,
)
from etl.ledger.paths import GroupPaths
from etl.ledger.registrations import render_offset
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Committed, Membership, Share

_ANY_VERSION = -1


class Kept(Protocol):
    """Where they are kept."""

    def committed(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        """The next offset of each log that has one."""

    def commit(self, offsets: Mapping[BrokerPartition, int], share: Share | None) -> None:
        """Store next offsets; as the member that has this share, where there is one. Raises
        OffsetMoved, Owned, CommitUnknown, PermissionRefused, and MembershipLost where that share is
        over."""


class KeptInKafka:
    """With the group's coordinator (0.8.2 and later)."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group

    def committed(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        told = self._cluster.first(
            lambda consumer: consumer.fetch_offsets(self._group, sorted(logs), require_stable=True)
        )
        return {log: one.offset for log, one in told.items() if one.offset is not None}

    def commit(self, offsets: Mapping[BrokerPartition, int], share: Share | None) -> None:
        if share is None or share.membership is Membership.ZOOKEEPER:
            self._cluster.first(lambda consumer: consumer.commit_offsets(self._group, offsets))
        else:
            self._cluster.first(
                lambda consumer: consumer.commit_offsets(
                    self._group,
                    offsets,
                    generation=share.generation,
                    member_id=share.member_id,
                    instance_id=share.instance_id,
                )
            )


class KeptInZooKeeper:
    """In `/consumers/<group>/offsets`."""

    def __init__(self, zookeeper: ZooKeeper, group: str, *, physical: bool) -> None:
        self._zookeeper, self._paths = zookeeper, GroupPaths(group)
        self._group = ConsumerGroup(zookeeper, group, physical=physical)
        self._seen: dict[BrokerPartition, Committed] = {}

    def committed(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        # What whoever had them before us committed was seen in the member's session; this is
        # another one, perhaps at another server.
        self._zookeeper.sync(self._paths.offsets)
        found = self._group.committed(logs)
        self._seen.update({log: found.get(log, NOTHING_COMMITTED) for log in logs})
        return {log: one.offset for log, one in found.items() if one.offset is not None}

    def commit(self, offsets: Mapping[BrokerPartition, int], share: Share | None) -> None:
        if unseen := offsets.keys() - self._seen.keys():
            self.committed(unseen)
        wanted = sorted(log for log, offset in offsets.items() if self._seen[log].offset != offset)
        ensure_each(self._zookeeper, {self._paths.offsets_of(log.topic) for log in wanted})
        requests = list(in_requests(wanted, self._cost))
        changes = [self._changes(some, offsets, share) for some in requests]
        # Whatever became of our session: versions tell what was written since, and owner nodes
        # whose a log is.
        for some, sent, outcome in zip(
            requests,
            changes,
            outcomes([each.request.commit_async() for each in changes]),
            strict=True,
        ):
            if isinstance(outcome, Exception) or any(isinstance(one, Exception) for one in outcome):
                _refuse_lost(sent, outcome)
                self._read_back(some, offsets)
            self._seen.update({log: self._after(log, offsets[log]) for log in some})

    def _cost(self, log: BrokerPartition) -> int:
        return (
            2 * (OPERATION_BYTES + len(self._zookeeper.chroot))
            + len(self._paths.offset(log))
            + len(self._paths.owner(log))
            + 20
        )

    def _after(self, log: BrokerPartition, offset: int) -> Committed:
        """As it is one write of ours further."""
        seen = self._seen[log].version
        return Committed(offset, 0 if seen is None else seen + 1)

    def _changes(
        self,
        logs: Collection[BrokerPartition],
        offsets: Mapping[BrokerPartition, int],
        share: Share | None,
    ) -> Changes:
        changes = Changes(self._zookeeper)
        if (
            share is not None
        ):  # one of our own kind that owns a log behind us has nodes of the same version
            changes.check(f"{self._paths.consumer_ids}/{share.member_id}", _ANY_VERSION)
        for log in logs:
            if share is not None:
                changes.check(self._paths.owner(log), OUR_VERSION)
            changes.put(
                self._paths.offset(log), render_offset(offsets[log]), self._seen[log].version
            )
        return changes

    def _read_back(
        self, logs: Collection[BrokerPartition], offsets: Mapping[BrokerPartition, int]
    ) -> None:
        """Whether a commit that was refused or got no answer happened. What another client wrote is
        seen from now on: said again, ours goes over it."""
        found, before = self._group.committed(logs), dict(self._seen)
        after = {log: self._after(log, offsets[log]) for log in logs}
        now = {log: found.get(log, NOTHING_COMMITTED) for log in logs}
        if now == after:
            return
        for log in logs:
            if now[log] not in (before[log], after[log]):
                self._seen.update(now)
                what = f"somebody else moved the offset since it was read: it is {now[log].offset}, ours is {offsets[log]}"
                check = "which other consumer of this group runs; a second commit goes over what it wrote"
                raise OffsetMoved(what, **log.place, offset=now[log].offset, check=check)
        raise CommitUnknown("the offsets did not reach ZooKeeper", check="commit again")


def _refuse_lost(sent: Changes, outcome: Outcome) -> None:
    """Raises MembershipLost where the first thing refused is that we are a member, or that a log is
    ours; PermissionRefused.
    """
    for part, one in zip(
        sent.request.operations, [] if isinstance(outcome, Exception) else outcome, strict=False
    ):
        if isinstance(one, Exception) and not isinstance(
            one, (RolledBackError, RuntimeInconsistency)
        ):
            if isinstance(one, NoAuthError):
                raise PermissionRefused(
                    "ZooKeeper does not let us commit", znode=part.path, check="the znodes' ACLs"
                ) from one
            if isinstance(part, CheckVersion):
                raise MembershipLost(
                    "the partition is not ours any more, and nothing was committed",
                    znode=part.path,
                    check="who owns it now; the next poll joins again and begins where the group is",
                )
            return
