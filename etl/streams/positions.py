"""Where is a consumer in each partition, and which offsets did its group commit?

Lives here: positions, and the two stores of committed offsets. In ZooKeeper an offset is written
only over the version that was read last; a member's commit also checks its owner nodes. A
coordinator fences members by generation, and rejects commits of other clients while the group has
members (Owned).
Not here: the membership (etl/streams/group_member.py), requests (etl/streams/fetches.py).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Protocol

from kazoo.exceptions import NoAuthError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import CheckVersion

from etl.errors import (
    BrokerUnreachable,
    CommitUnknown,
    EtlError,
    MembershipLost,
    NeedsDecision,
    NotAssigned,
    OffsetMoved,
    PermissionDenied,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.partition_ends import OffsetsAndLeaders
from etl.io.zookeeper.group_offsets import ConsumerGroup, ensure_offset_parents
from etl.io.zookeeper.owners import OUR_VERSION
from etl.io.zookeeper.session_requests import (
    OPERATION_BYTES,
    Changes,
    Outcome,
    ZooKeeper,
    failures_in,
    in_requests,
    outcomes,
)
from etl.kafka.request_values import CommittedOffset
from etl.ledger.registrations import render_offset
from etl.ledger.znode_paths import GroupPaths
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    MemberAssignment,
    Membership,
    TopicPartition,
)
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor, RangeProgress
from etl.reader.fetch_options import FetchOptions
from etl.settings.choices import StartAt
from etl.streams.background import Lane
from etl.streams.fetches import (
    Completed,
    FoundStart,
    StartLookup,
    batches_of,
    bytes_per_partition,
    missing_partition,
)
from etl.streams.partition_scheduler import PartitionScheduler
from etl.streams.records import Decoder, FetchedRecords, Record, records_of

_ANY_VERSION = -1


class OffsetStore(Protocol):
    """The store of a group's committed offsets."""

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offset of each partition that has one."""

    def commit(
        self, offsets: Mapping[TopicPartition, int], assignment: MemberAssignment | None
    ) -> None:
        """Commit next offsets, as the member with this assignment; None: without membership.

        Raises OffsetMoved, Owned, CommitUnknown, PermissionDenied, and MembershipLost if the
        assignment is over.
        """


class KafkaOffsetStore:
    """Offsets that the group's coordinator stores (0.8.2 and later)."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """See `OffsetStore`."""
        found = self._cluster.first(
            lambda consumer: consumer.fetch_offsets(
                self._group, sorted(partitions), require_stable=True
            )
        )
        return _offsets_of(found)

    def commit(
        self, offsets: Mapping[TopicPartition, int], assignment: MemberAssignment | None
    ) -> None:
        """See `OffsetStore`."""
        if assignment is None or assignment.membership is Membership.ZOOKEEPER:
            self._cluster.first(lambda consumer: consumer.commit_offsets(self._group, offsets))
        else:
            self._cluster.first(
                lambda consumer: consumer.commit_offsets(
                    self._group,
                    offsets,
                    generation=assignment.generation,
                    member_id=assignment.member_id,
                    instance_id=assignment.instance_id,
                )
            )


class ZooKeeperOffsetStore:
    """Offsets in `/consumers/<group>/offsets`."""

    def __init__(self, zookeeper: ZooKeeper, group: str, *, physical: bool) -> None:
        self._zookeeper = zookeeper
        self._paths = GroupPaths(group)
        self._group = ConsumerGroup(zookeeper, group, physical=physical)
        self._read: dict[TopicPartition, Committed] = {}
        """Offset and version of each partition as read or written last."""

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """See `OffsetStore`."""
        # The member's session observed the commits of the previous owner. This is another
        # session, perhaps at a server that is behind.
        self._zookeeper.sync(self._paths.offsets)
        found = self._group.committed(partitions)
        for partition in partitions:
            self._read[partition] = found.get(partition, NOTHING_COMMITTED)
        return _offsets_of(found)

    def commit(
        self, offsets: Mapping[TopicPartition, int], assignment: MemberAssignment | None
    ) -> None:
        """See `OffsetStore`."""
        unread = offsets.keys() - self._read.keys()
        if unread:
            self.committed(unread)
        changed = []
        for partition, offset in sorted(offsets.items()):
            if self._read[partition].offset != offset:
                changed.append(partition)
        ensure_offset_parents(self._zookeeper, self._paths, changed)
        batches = list(in_requests(changed, self._cost))
        requests = [self._changes(partitions, offsets, assignment) for partitions in batches]
        sent = [each.request.commit_async() for each in requests]
        # This does not depend on the session: versions show later writes, and owner nodes show
        # the present owners.
        for partitions, request, answer in zip(batches, requests, outcomes(sent), strict=True):
            if _has_failed(answer):
                _reject_lost_membership(request, answer)
                self._read_back(partitions, offsets)
            for partition in partitions:
                self._read[partition] = self._after_write(partition, offsets[partition])

    def _cost(self, partition: TopicPartition) -> int:
        return (
            2 * (OPERATION_BYTES + len(self._zookeeper.chroot))
            + len(self._paths.offset(partition))
            + len(self._paths.owner(partition))
            + 20
        )

    def _after_write(self, partition: TopicPartition, offset: int) -> Committed:
        """Return offset and version after one write by this consumer."""
        version = self._read[partition].znode_version
        if version is None:
            return Committed(offset, 0)
        return Committed(offset, version + 1)

    def _changes(
        self,
        partitions: Collection[TopicPartition],
        offsets: Mapping[TopicPartition, int],
        assignment: MemberAssignment | None,
    ) -> Changes:
        changes = Changes(self._zookeeper)
        # The owner nodes of a later owner of our own kind have the same version as ours, so the
        # registration of this member is checked, too.
        if assignment is not None:
            changes.check(f"{self._paths.consumer_ids}/{assignment.member_id}", _ANY_VERSION)
        for partition in partitions:
            if assignment is not None:
                changes.check(self._paths.owner(partition), OUR_VERSION)
            changes.put(
                self._paths.offset(partition),
                render_offset(offsets[partition]),
                self._read[partition].znode_version,
            )
        return changes

    def _read_back(
        self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Return if a rejected or unanswered commit was applied. Raises OffsetMoved, CommitUnknown.

        After OffsetMoved the other client's version is the one that was read, so a second commit
        overwrites it.
        """
        found = self._group.committed(partitions)
        before = dict(self._read)
        after = {
            partition: self._after_write(partition, offsets[partition]) for partition in partitions
        }
        now = {partition: found.get(partition, NOTHING_COMMITTED) for partition in partitions}
        if now == after:
            return
        for partition in partitions:
            if now[partition] not in (before[partition], after[partition]):
                self._read.update(now)
                raise OffsetMoved(
                    "Another client moved the offset since it was read:"
                    f" it is {now[partition].offset}, ours is {offsets[partition]}",
                    **partition.place,
                    offset=now[partition].offset,
                    action="Check which other consumer of this group runs."
                    " A second commit overwrites what it wrote",
                )
        raise CommitUnknown("The offsets did not reach ZooKeeper", action="Commit again")


def _offsets_of(
    found: Mapping[TopicPartition, Committed | CommittedOffset],
) -> dict[TopicPartition, int]:
    offsets = {}
    for partition, committed in found.items():
        if committed.offset is not None:
            offsets[partition] = committed.offset
    return offsets


def _has_failed(answer: Outcome) -> bool:
    if isinstance(answer, Exception):
        return True
    return bool(failures_in(answer))


def _reject_lost_membership(request: Changes, answer: Outcome) -> None:
    """Raise MembershipLost if the first failed operation is a check of membership or ownership.

    Raises PermissionDenied if it failed by an ACL.
    """
    if isinstance(answer, Exception):
        return
    for operation, result in zip(request.request.operations, answer, strict=False):
        if not isinstance(result, Exception):
            continue
        # The other operations of the same transaction have these errors.
        if isinstance(result, (RolledBackError, RuntimeInconsistency)):
            continue
        if isinstance(result, NoAuthError):
            raise PermissionDenied(
                "ZooKeeper does not allow the offset commit",
                key="zookeeper.auth",
                znode=operation.path,
                action="Check the login, and the ACLs of the znodes (getAcl)",
            ) from result
        if isinstance(operation, CheckVersion):
            raise MembershipLost(
                "The consumer does not own the partition any more, and nothing was committed",
                znode=operation.path,
                action="Check who owns it now. The next poll joins again and continues at the"
                " group's committed offsets",
            )
        return


_MAX_OFFSET = 2**63 - 1


def reject_invalid_offset(offset: int) -> None:
    """Raise ValueError for an offset that no partition can have.

    Other clients could not continue there.
    """
    try:
        number = operator.index(offset)
    except TypeError:
        number = -1
    if not 0 <= number < _MAX_OFFSET:
        raise ValueError(f"{offset!r} is not an offset: an offset is a whole number from 0 on")


class Positions:
    """The position and the fetched records of each assigned partition. For one thread.

    `requests` is the lane of all requests to `cluster` and to the offset store.
    """

    def __init__(
        self,
        cluster: Cluster,
        requests: Lane,
        offset_store: OffsetStore | None,
        start: StartAt | None,
        options: FetchOptions,
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        self._cluster = cluster
        self._requests = requests
        self._offset_store = offset_store
        self._start = start
        self._options = options
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self.scheduler = PartitionScheduler[Record]()
        self._progress: dict[TopicPartition, RangeProgress] = {}
        self.next_offsets: dict[TopicPartition, int] = {}
        """The position of each partition that has one already."""
        self._lookups: dict[TopicPartition, StartLookup] = {}
        """The others that have no committed offset: their start is looked up."""
        self._committed: tuple[list[TopicPartition], Future[dict[TopicPartition, int]]] | None
        self._committed = None
        """The lookup of committed offsets in flight."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the partitions; state of others is dropped."""
        before = set(self.scheduler.assigned)
        self.scheduler.assign(partitions)
        now = set(self.scheduler.assigned)
        for partition in before - now:
            self._progress.pop(partition, None)
            self._lookups.pop(partition, None)
            self.next_offsets.pop(partition, None)
        if before != now:
            # Another member may have committed since an offset was requested.
            self._committed = None

    def has_position(self, partition: TopicPartition) -> bool:
        """True if `initialize` found a position. Raises NotAssigned."""
        self._reject_unassigned([partition])
        return partition in self.next_offsets

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position. Raises NotAssigned, and as `reject_invalid_offset`."""
        self._reject_unassigned([partition])
        reject_invalid_offset(offset)
        previous = self._lookups.pop(partition, None) or self._progress.get(partition)
        leader = previous.leader if previous else None
        self.scheduler.drop(partition)
        self._progress[partition] = RangeProgress(0, self._cursor(partition, offset), leader)
        self.next_offsets[partition] = offset

    def seek_to(self, where: StartAt, partitions: Collection[TopicPartition] | None) -> None:
        """Seek to the log start or end; None: of all assigned partitions.

        Raises NotAssigned, BrokerUnreachable.
        """
        if partitions is None:
            partitions = self.scheduler.assigned
        self._reject_unassigned(partitions)
        for partition, offset in self.bounds(where, partitions).items():
            self.seek(partition, offset)

    def initialize(self) -> None:
        """Find a position for each partition without one: the committed offset, else `start`.

        Does not wait: a later call takes what was found. Raises NeedsDecision if there is neither,
        and the error of the offset store.
        """
        new = []
        for partition in self.scheduler.assigned:
            if partition not in self.next_offsets and partition not in self._lookups:
                new.append(partition)
        if not new:
            return
        store = self._offset_store
        if store is None:
            self._begin(new, {})
        elif self._committed is None:
            self._committed = new, self._requests.submit(lambda: store.committed(new))
        elif self._committed[1].done():
            requested, found = self._committed
            self._committed = None
            wanted = [partition for partition in requested if partition in new]
            self._begin(wanted, found.result())

    def _begin(
        self, partitions: Collection[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> None:
        """Continue at committed offsets, and look up the starts of the other partitions."""
        uncommitted = []
        for partition in partitions:
            if partition in committed:
                self.seek(partition, committed[partition])
            else:
                uncommitted.append(partition)
        if not uncommitted:
            return
        if self._start is None:
            raise NeedsDecision(
                "The group has no committed offset of the partition, and auto_offset_reset is None",
                **uncommitted[0].place,
                action="Call seek(), or pass auto_offset_reset=earliest or latest",
            )
        for partition in uncommitted:
            cursor = self._cursor(partition, 0)
            self._lookups[partition] = StartLookup(0, cursor, None, where=self._start)

    def _cursor(self, partition: TopicPartition, offset: int) -> Cursor:
        return Cursor(
            OffsetRange(partition, offset, _MAX_OFFSET),
            self._options,
            first_bytes=bytes_per_partition(self._options, len(self.scheduler.assigned)),
        )

    def done(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition, after all records that were returned."""
        return dict(self.next_offsets)

    @property
    def progress(self) -> Iterable[RangeProgress]:
        """The state of each partition that is fetched, paused, or whose start is looked up."""
        return (*self._lookups.values(), *self._progress.values())

    def to_request(self) -> list[RangeProgress]:
        """Return which partitions to request next, in order."""
        return [*self._lookups.values(), *self._to_fetch()]

    def _to_fetch(self) -> list[RangeProgress]:
        wanted = self.scheduler.to_fetch()
        return [self._progress[partition] for partition in wanted if partition in self._progress]

    def add_fetched(self, completed: Iterable[Completed]) -> None:
        """Add what completed requests found: starts, and records.

        A request that was sent before a seek or another assignment is ignored.
        """
        for found in completed:
            progress = found.progress
            partition = progress.partition
            if isinstance(found, FoundStart):
                if self._lookups.get(partition) is progress:
                    self.seek(partition, found.offset)
                continue
            if self._progress.get(partition) is not progress:
                continue
            batches, failure = batches_of(found, self._options.isolation)
            if failure or any(batch.num_rows for batch in batches):
                records = records_of(
                    partition,
                    batches,
                    progress.cursor.position,
                    failure,
                    key_decoder=self._key_decoder,
                    value_decoder=self._value_decoder,
                )
                self._add(records)
            else:
                self._skip_to(partition, progress.cursor.position)

    def _add(self, records: FetchedRecords) -> None:
        """Add records, or the error why there are none."""
        self.scheduler.add(records.partition, records)

    def _skip_to(self, partition: TopicPartition, offset: int) -> None:
        """Move past offsets without records."""
        self.next_offsets[partition] = offset

    def take(self, max_records: int) -> dict[TopicPartition, list[Record]]:
        """Take up to so many records. Raises the error of the partition that is next."""
        return self.scheduler.take(max_records)

    def advance(self, records: Mapping[TopicPartition, list[Record]]) -> None:
        """Move the positions after these records."""
        for partition, of_partition in records.items():
            self.next_offsets[partition] = of_partition[-1].next_offset

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """Return no more records of these partitions, which are released next.

        There is nothing to do here: only polls return records, and this is called within a poll.
        """

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Continue after the returned records if Ctrl-C or an unexpected error interrupts.

        It is unknown how much of a response was taken then.
        """
        try:
            yield
        except EtlError:
            raise
        except BaseException:
            for partition in set(self.next_offsets).intersection(self.scheduler.assigned):
                self.seek(partition, self.next_offsets[partition])
            raise

    def reject_unreachable(self, partition: TopicPartition | None = None) -> None:
        """Raise the error of a partition that was unreachable for `timeout_s`; then wait again.

        `partition`: of this one; None: of the first one.
        """
        for progress in self.to_request():
            if partition not in (None, progress.partition) or progress.failure is None:
                continue
            if progress.idle_for() >= self._options.timeout_s:
                progress.idle_since = None
                raise progress.failure.with_traceback(None)

    def failure(self, partition: TopicPartition) -> EtlError:
        """Return why the partition has no position yet."""
        lookup = self._lookups.get(partition)
        if lookup is not None and lookup.failure is not None:
            return lookup.failure.with_traceback(None)
        return BrokerUnreachable(
            f"The brokers returned no position within {self._options.timeout_s:g} s",
            **partition.place,
            action="Check the partition's leader, and the coordinator of the group",
        )

    def reject_missing(self, partitions: Collection[TopicPartition]) -> None:
        """Raise TopicMissing for a partition that its topic does not have."""
        topics = {partition.topic for partition in partitions}
        metadata = self._cluster.describe_when_known(topics, wait_s=self._options.timeout_s)
        for partition in partitions:
            topic = metadata.topics.get(partition.topic)
            if topic is not None:
                missing = missing_partition(partition, topic)
                if missing:
                    raise missing

    def bounds(
        self, where: StartAt, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the log start or the readable end of partitions, which need not be assigned.

        Raises TopicMissing, BrokerUnreachable.
        """
        if not partitions:
            return {}

        def request() -> OffsetsAndLeaders:
            self.reject_missing(partitions)
            return self._cluster.extents(partitions, isolation=self._options.isolation)

        found = self._requests.call(request)
        if found.leaderless:
            lost = min(found.leaderless)
            raise BrokerUnreachable(
                f"The partition {lost.unled}", **lost.place, action=lost.held_by
            )
        if where is StartAt.EARLIEST:
            return {
                partition: offsets.log_start_offset for partition, offsets in found.extents.items()
            }
        return {partition: offsets.end_offset for partition, offsets in found.extents.items()}

    def _reject_unassigned(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            if partition not in self.scheduler.assigned:
                raise NotAssigned(
                    "The partition is not assigned to this consumer",
                    **partition.place,
                    action="Pass the partition to assign() first",
                )
