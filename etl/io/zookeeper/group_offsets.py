"""How are a group's offsets in ZooKeeper moved by compare-and-set?

Three ways: by version, outside of a group; after an append, each with a check of its owner node;
with a stored plan, in one transaction of plan, owner nodes and offsets.

A rival of our own kind creates owner nodes of the same version. But then the offset is at most what
our plan saw and moves forwards to what is in our table, and the rival's own commit is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kazoo.exceptions import NoAuthError, RolledBackError, RuntimeInconsistency

from etl.errors import (
    BadOffset,
    CommitUnknown,
    OffsetMoved,
    Owned,
    PermissionDenied,
    SessionLost,
    SettingsError,
)
from etl.io.zookeeper.ledger import REQUEST_MAX_BYTES, Check, DriverLock, Part, Write, size_of
from etl.io.zookeeper.owners import OUR_VERSION
from etl.io.zookeeper.session import (
    OPERATION_BYTES,
    Changes,
    Outcome,
    ZooKeeper,
    children_of_each,
    ensure_each,
    in_requests,
    outcomes,
)
from etl.ledger.paths import GroupPaths
from etl.ledger.registrations import parse_offset, render_offset
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    Committed,
    RejectedCommit,
    in_order,
    parse_partition_key,
)
from etl.model.plans import Plan


class ConsumerGroup:
    """The group whose offsets these are. Raises as `ZooKeeper`.

    A group that moved from Kafka 0.7 to 0.8 in one ZooKeeper has znodes of both forms: `0-3`, of a
    broker, and `3`.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, *, physical: bool = False) -> None:
        """`physical`: our brokers' logs are byte files of each broker (0.7 family); what the other
        family's consumers left is not ours.
        """
        self._zookeeper = zookeeper
        self._group = GroupPaths(group)
        self._physical = physical
        self._no_number_is_none = False

    def live_consumers(self) -> tuple[str, ...]:
        """Ids of the consumers registered in the group now."""
        return tuple(sorted(self._zookeeper.children(self._group.consumer_ids) or ()))

    def owners(self, topics: Iterable[str]) -> dict[BrokerPartition, str]:
        """Return the owners of these topics' partitions."""
        logs = self._ours(self._logs_below(topics, self._group.owners_of))
        payloads = self._zookeeper.read_all([self._group.owner(log) for log in logs])
        return {
            log: p[0].decode("utf-8", "replace") for log, p in zip(logs, payloads, strict=True) if p
        }

    def committed(
        self,
        logs: Iterable[BrokerPartition],
        seen: Mapping[BrokerPartition, Committed] = {},
    ) -> dict[BrokerPartition, Committed]:
        """Return the committed offset of each partition that has one, with its znode's version.
        Raises BadOffset for text that is no number, unless a plan overwrites it (`seen`: what the
        newest one saw), or the caller does; it counts as none then.
        """
        wanted = set(logs)
        to_read = [
            log
            for log in self._logs_below({log.topic for log in wanted}, self._group.offsets_of)
            if log in wanted
        ]
        found = {}
        for log, payload in zip(
            to_read,
            self._zookeeper.read_all([self._group.offset(log) for log in to_read]),
            strict=True,
        ):
            if payload == (b"", 0):
                found[log] = Committed(None, 0)  # made as a parent or by hand, and never written
            elif payload:
                found[log] = self._read(
                    log, *payload, is_left=seen.get(log) == Committed(None, payload[1])
                )
        return found

    def take_no_number_for_none(self) -> None:
        """From now on treat text that is no number as no offset, for commands that overwrite
        offsets.
        """
        self._no_number_is_none = True

    def _read(
        self, log: BrokerPartition, payload: bytes, version: int, *, is_left: bool
    ) -> Committed:
        try:
            return Committed(parse_offset(payload, path=self._group.offset(log), log=log), version)
        except BadOffset:
            if is_left or self._no_number_is_none:
                return Committed(None, version)
            raise

    def logs_with_offsets(self, is_wanted: Callable[[str], bool]) -> set[BrokerPartition]:
        """Every log of the wanted topics that has a znode for a committed offset, whether it is
        there now or not.
        """
        topics = [
            topic
            for topic in self._zookeeper.children(self._group.offsets) or ()
            if is_wanted(topic)
        ]
        return set(self._ours(self._logs_below(topics, self._group.offsets_of)))

    def offsets_of_the_other_family(self, topics: Iterable[str]) -> list[BrokerPartition]:
        """Return the offsets of the other broker type in these topics, which are left alone."""
        return [
            log
            for log in self._logs_below(topics, self._group.offsets_of)
            if log.is_physical != self._physical
        ]

    def _ours(self, logs: Iterable[BrokerPartition]) -> list[BrokerPartition]:
        return [log for log in logs if log.is_physical == self._physical]

    def _logs_below(
        self, topics: Iterable[str], path_of: Callable[[str], str]
    ) -> list[BrokerPartition]:
        """The logs that the children of the topics' znodes name."""
        names = sorted(set(topics))
        keys = children_of_each(self._zookeeper, [path_of(topic) for topic in names])
        found = (
            parse_partition_key(topic, key)
            for topic, some in zip(names, keys, strict=True)
            for key in some
        )
        return in_order(log for log in found if log)

    def commit(
        self, plan: Plan, logs: Iterable[BrokerPartition] | None = None
    ) -> dict[BrokerPartition, Committed]:
        """Commit the plan's positions of `logs` (by default all that change); return the offsets
        then.

        Compare-and-set on what the plan saw, in as few `multi` as fit, all sent before the first
        answer is awaited; a rejected one does not stop the others. Raises OffsetMoved if another
        client moved one, SessionLost if the session ended since `driving` began, CommitUnknown
        without an answer.
        """
        wanted = sorted(plan.offsets_to_move if logs is None else logs)
        ensure_each(
            self._zookeeper,
            (self._group.offsets_of(topic) for topic in {log.topic for log in wanted}),
        )
        requests = list(in_requests(wanted, lambda log: self._cost(plan, log)))
        found = outcomes(self._changes(plan, some).send() for some in requests)
        moved: dict[BrokerPartition, Committed] = {}
        for some, outcome in zip(requests, found, strict=True):
            moved.update(self._judged(plan, some, outcome))
        return moved

    def _cost(self, plan: Plan, log: BrokerPartition) -> int:
        return (
            OPERATION_BYTES
            + len(self._zookeeper.chroot)
            + len(self._group.offset(log))
            + len(str(plan.positions[log]))
        )

    def _changes(self, plan: Plan, logs: Sequence[BrokerPartition]) -> Changes:
        changes = Changes(self._zookeeper)
        for log in logs:
            changes.put(
                self._group.offset(log), render_offset(plan.positions[log]), plan.seen[log].version
            )
        return changes

    def _judged(
        self, plan: Plan, logs: Sequence[BrokerPartition], outcome: Outcome
    ) -> dict[BrokerPartition, Committed]:
        """Return the result of one request. Raises as `commit`."""
        after = {log: plan.moved(log) for log in logs}
        if isinstance(outcome, Exception):
            return self._read_back(plan, after, outcome)
        failures = [r for r in outcome if isinstance(r, Exception)]
        if not failures:
            return after
        reason = next(
            (f for f in failures if not isinstance(f, (RolledBackError, RuntimeInconsistency))),
            failures[0],
        )
        if isinstance(reason, NoAuthError):
            message = "ZooKeeper does not let us move offsets"
            raise PermissionDenied(
                message, znode=self._group.offsets, action="Check the znodes' ACLs"
            ) from reason
        return self._read_back(plan, after, reason)

    def _read_back(
        self,
        plan: Plan,
        after: Mapping[BrokerPartition, Committed],
        reason: Exception,
    ) -> dict[BrokerPartition, Committed]:
        """Return whether a rejected or unanswered commit happened: each znode has our value at the
        version that our write makes.
        """
        found = self.committed(after)
        if found == after:
            return dict(after)
        for log, ours in after.items():
            now = found.get(log, NOTHING_COMMITTED)
            if now not in (ours, plan.seen[log]):
                message = f"Somebody else moved the offset during the run: it is {now.offset}, ours is {ours.offset}"
                action = "Check which other consumer of this group runs; the rows are in the table, the next run decides by group.on_offset_changed"
                raise OffsetMoved(
                    message, **log.place, offset=now.offset, action=action
                ) from reason
        message = f"The offsets of plan {plan.number} did not reach ZooKeeper"
        raise CommitUnknown(
            message, action="The rows are in the table, the next run moves the offsets"
        ) from reason


class OwnedOffsets:
    """Moves offsets with checks of owner nodes; `group` reads them. Raises as `ZooKeeper`."""

    def __init__(self, zookeeper: ZooKeeper, name: str, group: ConsumerGroup) -> None:
        self._zookeeper, self._paths, self._group = zookeeper, GroupPaths(name), group

    def move(self, plan: Plan, logs: Sequence[BrokerPartition]) -> dict[BrokerPartition, Committed]:
        """Move these offsets from what the plan saw to its positions; return those that moved. One
        that another client moved, or whose partition is not ours any more, stays. Only if an answer
        was lost, one that is as we would have left it counts as ours. Raises PermissionDenied.
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
        """Return what was not moved, and what of it may have been. Raises PermissionDenied."""
        results = list(
            zip(
                requests,
                outcomes([self._changes(plan, some).send() for some in requests]),
                strict=True,
            )
        )
        unsure = [
            log for some, outcome in results if isinstance(outcome, Exception) for log in some
        ]
        return [log for some, outcome in results if not _is_done(outcome) for log in some], unsure

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
    """Raises PermissionDenied."""
    if isinstance(outcome, Exception):
        return False
    if any(isinstance(one, NoAuthError) for one in outcome):
        raise PermissionDenied(
            "ZooKeeper does not let us move offsets", action="Check the znodes' ACLs"
        )
    return not any(isinstance(one, Exception) for one in outcome)


_PLAN_BYTES = 20_000
"""Bytes of a request that are left for the plan, which lies in pieces if larger, and what goes with
it.
"""


class HandOver:
    """The hand-overs of one pipeline. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str, lock: DriverLock) -> None:
        self._zookeeper, self._paths, self._lock = zookeeper, GroupPaths(group), lock

    def store(
        self, plan: Plan, checks: Sequence[Check], write: Callable[[Sequence[Part]], None]
    ) -> RejectedCommit | None:
        """Store the plan and move its offsets in one transaction; return the reason if another
        client came first.

        `checks`: each owner node as it is while it is ours. `write` stores the plan with these
        parts, or raises Owned with what `changed`. Raises SessionLost if the driver lock is lost,
        Owned if another driver stored that number, SettingsError for more partitions than a
        transaction holds.
        """
        logs = plan.offsets_to_commit
        offsets = {self._paths.offset(log): log for log in logs}
        moves = [
            Write(path, render_offset(plan.positions[log]), plan.seen[log].version)
            for path, log in offsets.items()
        ]
        ensure_each(self._zookeeper, {self._paths.offsets_of(log.topic) for log in logs})
        with self._lock.proven() as lock:
            parts: list[Part] = [lock, *checks, *moves]
            self._reject_too_many(parts, len(logs))
            try:
                write(parts)
            except Owned as refused:
                return self._why(refused, plan, lock, offsets)
        return None

    def store_under_lock(
        self, plan: Plan, write: Callable[[Sequence[Part]], None]
    ) -> RejectedCommit | None:
        """Store a plan that commits in a separate step, while the driver lock is ours. Raises as
        `store`.
        """
        with self._lock.proven() as lock:
            try:
                write((lock,))
            except Owned as refused:
                return self._why(refused, plan, lock, {})
        return None

    def _why(
        self, refused: Owned, plan: Plan, lock: Check, offsets: dict[str, BrokerPartition]
    ) -> RejectedCommit:
        """Return why nothing was done. Raises SessionLost, and the rejection if it has nothing to
        do with the commit.
        """
        changed = refused.where.get("changed")
        if changed == lock.path:
            action = "Raise zookeeper.session_timeout_s, against pauses of this host; run again: nothing was handed over"
            raise SessionLost(
                "Our ZooKeeper session ended before the hand-over", action=action
            ) from refused
        owners = {self._paths.owner(log): log for log in offsets.values()}
        if changed in owners:
            found = self._zookeeper.read(changed)
            by = found[0].decode("utf-8", "replace") if found else None
            return RejectedCommit(
                f"{owners[changed]} is not ours any more: "
                + (f"{by} owns it" if by else "nobody owns it")
            )
        if changed in offsets:
            found, log = self._zookeeper.read(changed), offsets[changed]
            now = found[0].decode("utf-8", "replace") if found else None
            return RejectedCommit(
                f"the offset of {log} was moved since it was read: from {plan.seen[log].offset} to {now}"
            )
        raise refused

    def _reject_too_many(self, parts: Sequence[Part], logs: int) -> None:
        size = size_of(parts) + len(parts) * len(self._zookeeper.chroot)
        if size > REQUEST_MAX_BYTES - _PLAN_BYTES:
            message = f"Handing {logs:,} partitions over takes a request of {size:,} bytes, and ZooKeeper takes none above a megabyte"
            action = "Use fewer topics in one conf, and the others in another one; or more members, so that our share is smaller"
            raise SettingsError(message, key="source.topics", action=action)
