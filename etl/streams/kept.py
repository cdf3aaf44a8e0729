"""The offsets of a consumer's group, where the group keeps them: in ZooKeeper as consumers of Jafka and 0.8 do, or with its coordinator.

In ZooKeeper an offset is written where it still is what was seen last, so nobody else's is lost. A coordinator has no such thing; it
refuses a commit from outside while the group has members (Owned).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from etl.edges.brokers.cluster import Cluster
from etl.edges.zookeeper.group import ConsumerGroup
from etl.edges.zookeeper.in_flight import Changes, ensure_each, outcomes
from etl.edges.zookeeper.session import OPERATION_BYTES, ZooKeeper, in_requests
from etl.errors import CommitUnknown, OffsetMoved
from etl.model.committed import NOTHING_COMMITTED, Committed
from etl.model.logs import BrokerPartition
from etl.protocol.zookeeper.paths import GroupPaths
from etl.protocol.zookeeper.payloads import render_offset


class Kept(Protocol):
    """Where they are kept."""

    def committed(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        """The next offset of each log that has one."""

    def commit(self, offsets: Mapping[BrokerPartition, int]) -> None:
        """Store next offsets. Raises OffsetMoved, Owned, CommitUnknown, PermissionRefused."""


class KeptInKafka:
    """With the group's coordinator (0.8.2 and later)."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group

    def committed(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        told = self._cluster.first(lambda consumer: consumer.fetch_offsets(self._group, sorted(logs), require_stable=True))
        return {log: one.offset for log, one in told.items() if one.offset is not None}

    def commit(self, offsets: Mapping[BrokerPartition, int]) -> None:
        self._cluster.first(lambda consumer: consumer.commit_offsets(self._group, offsets))


class KeptInZooKeeper:
    """In `/consumers/<group>/offsets`."""

    def __init__(self, zookeeper: ZooKeeper, group: str, *, physical: bool) -> None:
        self._zookeeper, self._paths = zookeeper, GroupPaths(group)
        self._group = ConsumerGroup(zookeeper, group, physical=physical)
        self._seen: dict[BrokerPartition, Committed] = {}

    def committed(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        found = self._group.committed(logs)
        self._seen.update({log: found.get(log, NOTHING_COMMITTED) for log in logs})
        return {log: one.offset for log, one in found.items() if one.offset is not None}

    def commit(self, offsets: Mapping[BrokerPartition, int]) -> None:
        if unseen := offsets.keys() - self._seen.keys():
            self.committed(unseen)
        wanted = sorted(log for log, offset in offsets.items() if self._seen[log].offset != offset)
        ensure_each(self._zookeeper, {self._paths.offsets_of(log.topic) for log in wanted})
        requests = list(in_requests(wanted, lambda log: OPERATION_BYTES + len(self._zookeeper.chroot) + len(self._paths.offset(log)) + 20))
        for some, outcome in zip(requests, outcomes(self._changes(some, offsets).send() for some in requests), strict=True):
            if isinstance(outcome, Exception) or any(isinstance(one, Exception) for one in outcome):
                self._read_back(some, offsets)
            self._seen.update({log: self._after(log, offsets[log]) for log in some})

    def _after(self, log: BrokerPartition, offset: int) -> Committed:
        """As it is one write of ours further."""
        seen = self._seen[log].version
        return Committed(offset, 0 if seen is None else seen + 1)

    def _changes(self, logs: Collection[BrokerPartition], offsets: Mapping[BrokerPartition, int]) -> Changes:
        changes = Changes(self._zookeeper)
        for log in logs:
            path, payload, seen = self._paths.offset(log), render_offset(offsets[log]), self._seen[log].version
            if seen is None:
                changes.create(path, payload)
            else:
                changes.write(path, payload, seen)
        return changes

    def _read_back(self, logs: Collection[BrokerPartition], offsets: Mapping[BrokerPartition, int]) -> None:
        """Whether a commit that was refused or got no answer happened. What another client wrote is seen from now on: said again, ours
        goes over it."""
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
