"""Hands a plan over where the group keeps its offsets in ZooKeeper: plan, owner nodes and offsets
in one transaction, or nothing of it.

What a plan is that was handed over is `decide.group_commits`'s; how a plan is stored is
`ledger`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etl.edges.zookeeper.documents import REQUEST_MAX_BYTES, Check, Part, Write, size_of
from etl.edges.zookeeper.driver_lock import DriverLock
from etl.edges.zookeeper.in_flight import ensure_each
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import Owned, SessionLost, SettingsError
from etl.ledger.paths import GroupPaths
from etl.ledger.registrations import render_offset
from etl.model.partitions import BrokerPartition, Void
from etl.model.plans import Plan

_PLAN_BYTES = 20_000
"""What is left of a request for the plan itself, which lies in pieces of its own where it is
larger, and for what goes with it.
"""


class HandOver:
    """The hand-overs of one pipeline. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str, lock: DriverLock) -> None:
        self._zookeeper, self._paths, self._lock = zookeeper, GroupPaths(group), lock

    def store(
        self, plan: Plan, checks: Sequence[Check], write: Callable[[Sequence[Part]], None]
    ) -> Void | None:
        """Store the plan and move its offsets, in one step; why nothing of that was done, where
        somebody else came before.

        `checks`: each owner node as it is while it is ours. `write` stores the plan with these
        parts, or raises Owned with what `changed`. Raises SessionLost where the driver's lock is
        not ours any more, Owned where it is the plan that somebody else stored, SettingsError for
        more logs than one transaction holds.
        """
        logs = plan.offsets_to_hand_over
        offsets = {self._paths.offset(log): log for log in logs}
        moves = [
            Write(path, render_offset(plan.positions[log]), plan.seen[log].version)
            for path, log in offsets.items()
        ]
        ensure_each(self._zookeeper, {self._paths.offsets_of(log.topic) for log in logs})
        with self._lock.proven() as lock:
            parts: list[Part] = [lock, *checks, *moves]
            self._refuse_too_many(parts, len(logs))
            try:
                write(parts)
            except Owned as refused:
                return self._why(refused, plan, lock, offsets)
        return None

    def store_under_lock(self, plan: Plan, write: Callable[[Sequence[Part]], None]) -> Void | None:
        """Store a plan whose offsets are moved by a step of its own, as long as the driver's lock
        is ours. Raises as `store`.
        """
        with self._lock.proven() as lock:
            try:
                write((lock,))
            except Owned as refused:
                return self._why(refused, plan, lock, {})
        return None

    def _why(
        self, refused: Owned, plan: Plan, lock: Check, offsets: dict[str, BrokerPartition]
    ) -> Void:
        """Why nothing was done. Raises SessionLost, and the refusal where it has nothing to do with
        the hand-over.
        """
        changed = refused.where.get("changed")
        if changed == lock.path:
            check = "zookeeper.session_timeout_s against pauses of this host; run again: nothing was handed over"
            raise SessionLost(
                "our ZooKeeper session ended before the hand-over", check=check
            ) from refused
        owners = {self._paths.owner(log): log for log in offsets.values()}
        if changed in owners:
            found = self._zookeeper.read(changed)
            by = found[0].decode("utf-8", "replace") if found else None
            return Void(
                f"{owners[changed]} is not ours any more: "
                + (f"{by} owns it" if by else "nobody owns it")
            )
        if changed in offsets:
            found, log = self._zookeeper.read(changed), offsets[changed]
            now = found[0].decode("utf-8", "replace") if found else None
            return Void(
                f"the offset of {log} was moved since it was read: from {plan.seen[log].offset} to {now}"
            )
        raise refused

    def _refuse_too_many(self, parts: Sequence[Part], logs: int) -> None:
        size = size_of(parts) + len(parts) * len(self._zookeeper.chroot)
        if size > REQUEST_MAX_BYTES - _PLAN_BYTES:
            what = f"handing {logs:,} partitions over takes a request of {size:,} bytes, and ZooKeeper takes none above a megabyte"
            check = "fewer topics in one conf, and the others in another one; or more members, so that our share is smaller"
            raise SettingsError(what, key="source.topics", check=check)
