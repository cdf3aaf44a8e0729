"""How a group's offsets in ZooKeeper are committed by compare-and-set.

    when                   class            what each offset is compared with
    --------------------   --------------   --------------------------------------------------
    outside of a group     ConsumerGroup    version of its znode
    after an append        OwnedOffsets     version of its znode, and its owner node
    with a stored plan     HandOver         the same, in one transaction with the plan

Another driver of this program creates owner nodes of the same version. Then the offset is at most
what our plan observed, it moves forwards to what is in our table, and the other driver's own commit
is rejected.

Transactions of one commit are in flight together, and a rejected one does not stop the others.
Nothing follows from which of them succeeded: each offset is compared with plan and table on its
own. What must come first is answered first: the pieces of a plan before its znode, the plan before
the offsets, the result before the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kazoo.exceptions import NoAuthError

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
from etl.io.zookeeper.session_requests import (
    OPERATION_BYTES,
    Changes,
    Outcome,
    ZooKeeper,
    causes_in,
    children_of_each,
    ensure_each,
    failures_in,
    in_requests,
    outcomes,
    payload_of_each,
)
from etl.ledger.registrations import parse_offset, render_offset
from etl.ledger.znode_paths import GroupPaths
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    RejectedCommit,
    TopicPartition,
    in_order,
    parse_partition_key,
)
from etl.model.plans import Plan


def ensure_offset_parents(
    zookeeper: ZooKeeper, paths: GroupPaths, partitions: Collection[TopicPartition]
) -> None:
    """Create the missing znodes above the offsets of these partitions."""
    topics = {partition.topic for partition in partitions}
    ensure_each(zookeeper, [paths.offsets_of(topic) for topic in topics])


_TOPICS_ASKED_FOR = 1000
"""For more topics one request finds first those that have znodes: each topic is a request."""
_COMMIT_DENIED = "ZooKeeper does not let this login commit offsets"
_ACL_CHECK = "Check the login, and the ACLs of the znodes (getAcl)"


class ConsumerGroup:
    """Offsets, owners and consumers of one group. Raises what `ZooKeeper` raises.

    A group that moved from Kafka 0.7 to 0.8 in one ZooKeeper has znodes of both forms: `0-3`, of a
    broker, and `3`.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, *, physical: bool = False) -> None:
        """Create the reader of a group's offsets; no I/O.

        `physical`: the partitions are byte files of each broker (Kafka 0.7, Jafka). Znodes of the
        other broker type are left alone.
        """
        self._zookeeper = zookeeper
        self._group = GroupPaths(group)
        self._physical = physical
        self._invalid_is_none = False

    def live_consumers(self) -> tuple[str, ...]:
        """Return the ids of the consumers that are registered in the group."""
        return tuple(sorted(self._zookeeper.children(self._group.consumer_ids) or ()))

    def owners(self, topics: Iterable[str]) -> dict[TopicPartition, str]:
        """Return the owners of these topics' partitions."""
        partitions = self._ours(self._partitions_below(topics, self._group.owners))
        owners = {}
        for partition, payload in payload_of_each(
            self._zookeeper, partitions, self._group.owner
        ).items():
            owners[partition] = payload.decode("utf-8", "replace")
        return owners

    def committed(
        self,
        partitions: Iterable[TopicPartition],
        seen: Mapping[TopicPartition, Committed] = {},
    ) -> dict[TopicPartition, Committed]:
        """Return the committed offset of each partition that has one, with its znode's version.

        `seen`: what the newest plan observed. Raises BadOffset for text that is no number, unless
        the plan observed it and overwrites it, or `take_no_number_for_none` was called; then the
        offset counts as missing.
        """
        wanted = {partition: partition for partition in partitions}
        topics = {partition.topic for partition in wanted}
        stored = self._partitions_below(topics, self._group.offsets)
        # The objects of the caller: look-ups by the same object need no comparison of topics.
        existing = [wanted[partition] for partition in stored if partition in wanted]
        paths = [self._group.offset(partition) for partition in existing]
        committed = {}
        for partition, path, found in zip(
            existing, paths, self._zookeeper.read_all(paths), strict=True
        ):
            if found is None:
                continue
            payload, version = found
            if found == (b"", 0):  # created as a parent or by hand, and never written
                committed[partition] = Committed(None, 0)
                continue
            try:
                offset: int | None = parse_offset(payload, path=path, partition=partition)
            except BadOffset:
                is_overwritten = seen.get(partition) == Committed(None, version)
                if not is_overwritten and not self._invalid_is_none:
                    raise
                offset = None
            committed[partition] = Committed(offset, version)
        return committed

    def take_no_number_for_none(self) -> None:
        """Treat text that is no number as no offset, for commands that overwrite offsets."""
        self._invalid_is_none = True

    def partitions_with_offsets(self, is_wanted: Callable[[str], bool]) -> set[TopicPartition]:
        """Return each partition of the wanted topics that has a znode for a committed offset.

        The partition itself may not exist any more.
        """
        topics = filter(is_wanted, self._zookeeper.children(self._group.offsets) or ())
        return set(self._ours(self._partitions_of(sorted(topics), self._group.offsets)))

    def offsets_of_the_other_family(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return the partitions of the other broker type with offsets, which are left alone."""
        partitions = self._partitions_below(topics, self._group.offsets)
        return [partition for partition in partitions if partition.is_physical != self._physical]

    def _ours(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [partition for partition in partitions if partition.is_physical == self._physical]

    def _partitions_below(self, topics: Iterable[str], parent: str) -> list[TopicPartition]:
        """Return the partitions of these topics that the znodes below `parent` name."""
        wanted = set(topics)
        if len(wanted) > _TOPICS_ASKED_FOR:
            wanted &= set(self._zookeeper.children(parent) or ())
        return self._partitions_of(sorted(wanted), parent)

    def _partitions_of(self, topics: Sequence[str], parent: str) -> list[TopicPartition]:
        """Return the partitions that the children of the topics' znodes name."""
        paths = [f"{parent}/{topic}" for topic in topics]
        partitions = []
        for topic, keys in zip(topics, children_of_each(self._zookeeper, paths), strict=True):
            for key in keys:
                partition = parse_partition_key(topic, key)
                if partition:
                    partitions.append(partition)
        return in_order(partitions)

    def commit(
        self, plan: Plan, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed]:
        """Commit the loaded-until offsets of a plan; return the committed offsets.

        `partitions`: None for all partitions that change. Compare-and-set on what the plan
        observed, in as few `multi` as fit, all sent before the first answer is awaited. Raises
        OffsetMoved if another client moved an offset, SessionLost if the session ended since
        `driving` began, CommitUnknown without an answer.
        """
        if partitions is None:
            partitions = plan.offsets_to_move
        wanted = sorted(partitions)
        ensure_offset_parents(self._zookeeper, self._group, wanted)
        requests = list(in_requests(wanted, lambda partition: self._cost(plan, partition)))
        sent = [self._changes(plan, request).send() for request in requests]
        moved: dict[TopicPartition, Committed] = {}
        for request, outcome in zip(requests, outcomes(sent), strict=True):
            moved.update(self._result(plan, request, outcome))
        return moved

    def _cost(self, plan: Plan, partition: TopicPartition) -> int:
        return (
            OPERATION_BYTES
            + len(self._zookeeper.chroot)
            + len(self._group.offset(partition))
            + len(str(plan.loaded_until[partition]))
        )

    def _changes(self, plan: Plan, partitions: Sequence[TopicPartition]) -> Changes:
        changes = Changes(self._zookeeper)
        for partition in partitions:
            changes.put(
                self._group.offset(partition),
                render_offset(plan.loaded_until[partition]),
                plan.expected_commits[partition].znode_version,
            )
        return changes

    def _result(
        self, plan: Plan, partitions: Sequence[TopicPartition], outcome: Outcome
    ) -> dict[TopicPartition, Committed]:
        """Return the result of one request. Raises as `commit`."""
        after = {partition: plan.moved(partition) for partition in partitions}
        if isinstance(outcome, Exception):
            return self._read_back(plan, after, outcome)
        failures = failures_in(outcome)
        if not failures:
            return after
        causes = causes_in(outcome) or failures
        reason = causes[0]
        if isinstance(reason, NoAuthError):
            raise PermissionDenied(
                _COMMIT_DENIED,
                key="zookeeper.auth",
                znode=self._group.offsets,
                action=_ACL_CHECK,
            ) from reason
        return self._read_back(plan, after, reason)

    def _read_back(
        self,
        plan: Plan,
        after: Mapping[TopicPartition, Committed],
        reason: Exception,
    ) -> dict[TopicPartition, Committed]:
        """Return the offsets if a rejected or unanswered commit succeeded after all.

        It did if each znode has our value at the version that our write creates. Raises OffsetMoved
        and CommitUnknown.
        """
        found = self.committed(after)
        if found == after:
            return dict(after)
        for partition, ours in after.items():
            now = found.get(partition, NOTHING_COMMITTED)
            if now not in (ours, plan.expected_commits[partition]):
                raise OffsetMoved(
                    "Another client moved the committed offset during the run: "
                    f"it is {now.offset}, the plan's is {ours.offset}",
                    **partition.place,
                    offset=now.offset,
                    action="Check which other consumer of this group runs; the rows are in the "
                    "table, the next run decides by group.on_offset_changed",
                ) from reason
        raise CommitUnknown(
            f"The offsets of plan {plan.number} did not reach ZooKeeper",
            action="Run again: the rows are in the table, the next run commits the offsets",
        ) from reason


class OwnedOffsets:
    """Commits offsets with checks of owner nodes. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, name: str, group: ConsumerGroup) -> None:
        self._zookeeper = zookeeper
        self._paths = GroupPaths(name)
        self._group = group

    def move(
        self, plan: Plan, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Committed]:
        """Commit the loaded-until offsets of these partitions; return those that were committed.

        An offset stays if another client moved it, or this run does not own the partition any more.
        After a lost answer, an offset that is as our write leaves it counts as committed.
        Raises PermissionDenied.
        """
        ensure_offset_parents(self._zookeeper, self._paths, partitions)
        rejected, uncertain = self._rejected(plan, list(in_requests(partitions, self._cost)))
        # One rejected offset rejects its whole request, so each is sent again on its own.
        single = [[partition] for partition in rejected]
        left, still_uncertain = self._rejected(plan, single)
        uncertain_left = {*uncertain, *still_uncertain}.intersection(left)
        found = self._group.committed(uncertain_left) if uncertain_left else {}
        moved = {}
        for partition in partitions:
            committed = plan.moved(partition)
            if partition not in left or found.get(partition) == committed:
                moved[partition] = committed
        return moved

    def _rejected(
        self, plan: Plan, requests: Sequence[Sequence[TopicPartition]]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return partitions without a confirmed commit, and those of them without an answer.

        Raises PermissionDenied.
        """
        sent = [self._changes(plan, request).send() for request in requests]
        rejected: list[TopicPartition] = []
        uncertain: list[TopicPartition] = []
        for request, outcome in zip(requests, outcomes(sent), strict=True):
            if isinstance(outcome, Exception):
                uncertain.extend(request)
            if not _is_done(outcome):
                rejected.extend(request)
        return rejected, uncertain

    def _changes(self, plan: Plan, partitions: Sequence[TopicPartition]) -> Changes:
        changes = Changes(self._zookeeper)
        for partition in partitions:
            changes.check(self._paths.owner(partition), OUR_VERSION)
            changes.put(
                self._paths.offset(partition),
                render_offset(plan.loaded_until[partition]),
                plan.expected_commits[partition].znode_version,
            )
        return changes

    def _cost(self, partition: TopicPartition) -> int:
        paths = len(self._paths.offset(partition)) + len(self._paths.owner(partition))
        return 2 * (OPERATION_BYTES + len(self._zookeeper.chroot)) + paths + len(str(2**63))


def _is_done(outcome: Outcome) -> bool:
    """Return True if a transaction succeeded. Raises PermissionDenied."""
    if isinstance(outcome, Exception):
        return False
    if any(isinstance(result, NoAuthError) for result in outcome):
        raise PermissionDenied(_COMMIT_DENIED, key="zookeeper.auth", action=_ACL_CHECK)
    return not failures_in(outcome)


_PLAN_BYTES = 20_000
"""Bytes of a request that are reserved for the plan and its other parts.

A larger plan is written in pieces before the request.
"""


class HandOver:
    """Commits the offsets of one pipeline together with a plan. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str, lock: DriverLock) -> None:
        self._zookeeper = zookeeper
        self._paths = GroupPaths(group)
        self._lock = lock

    def store(
        self, plan: Plan, checks: Sequence[Check], write: Callable[[Sequence[Part]], None]
    ) -> RejectedCommit | None:
        """Store the plan and commit its offsets in one transaction; return a rejection's reason.

        `checks`: the expected version of each owner node. `write` stores the plan with these
        parts, or raises Owned with the znode that `changed`. Raises SessionLost if the driver lock
        is lost, Owned if another driver stored that number, SettingsError for more partitions than
        a transaction holds.
        """
        partitions = plan.offsets_to_commit
        offsets = {}
        moves = []
        for partition in partitions:
            path = self._paths.offset(partition)
            offsets[path] = partition
            moves.append(
                Write(
                    path,
                    render_offset(plan.loaded_until[partition]),
                    plan.expected_commits[partition].znode_version,
                )
            )
        ensure_offset_parents(self._zookeeper, self._paths, partitions)
        with self._lock.proven() as lock:
            parts: list[Part] = [lock, *checks, *moves]
            self._reject_too_many(parts, len(partitions))
            try:
                write(parts)
            except Owned as rejection:
                return self._reason(rejection, plan, lock, offsets)
        return None

    def store_under_lock(
        self, plan: Plan, write: Callable[[Sequence[Part]], None]
    ) -> RejectedCommit | None:
        """Store a plan whose offsets are committed in a separate step, under the driver lock.

        Raises as `store`.
        """
        with self._lock.proven() as lock:
            try:
                write((lock,))
            except Owned as rejection:
                return self._reason(rejection, plan, lock, {})
        return None

    def _reason(
        self, rejection: Owned, plan: Plan, lock: Check, offsets: dict[str, TopicPartition]
    ) -> RejectedCommit:
        """Return why the commit was rejected, by the znode that changed.

        Only an owner or an offset that changed rejects the commit (plan again). Raises SessionLost
        if the lock was lost, and `rejection` for any other znode, such as another driver's plan.
        """
        changed = rejection.where.get("changed")
        if changed == lock.path:
            raise SessionLost(
                "The ZooKeeper session ended before the offset commit",
                action="Raise zookeeper.session_timeout_s above the longest pause of this host. "
                "Run again: no offset was committed",
            ) from rejection
        owners = {self._paths.owner(partition): partition for partition in offsets.values()}
        if changed in owners:
            owner = self._text_of(changed)
            reason = f"{owner} owns it" if owner else "it has no owner"
            return RejectedCommit(f"{owners[changed]} is no longer owned by this run: {reason}")
        if changed in offsets:
            partition = offsets[changed]
            return RejectedCommit(
                f"the offset of {partition} was moved since it was read: "
                f"from {plan.expected_commits[partition].offset} to {self._text_of(changed)}"
            )
        raise rejection

    def _text_of(self, path: str) -> str | None:
        found = self._zookeeper.read(path)
        return found[0].decode("utf-8", "replace") if found else None

    def _reject_too_many(self, parts: Sequence[Part], partitions: int) -> None:
        size = size_of(parts) + len(parts) * len(self._zookeeper.chroot)
        if size > REQUEST_MAX_BYTES - _PLAN_BYTES:
            raise SettingsError(
                f"The offset commit of {partitions:,} partitions needs a request of {size:,} "
                "bytes, more than ZooKeeper's limit of a megabyte",
                key="source.topics",
                action="Set fewer topics in this conf and the others in another one, "
                "or start more members, so that the assignment is smaller",
            )
