"""Where is a consumer in each partition, and where are its offsets committed?

Offset stores: in ZooKeeper an offset is written only if it is what was seen last, for a member with
a check of its owner node. A coordinator fences members by generation and rejects commits from
outside while the group has members (Owned).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
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
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    Committed,
    MemberAssignment,
    Membership,
)
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor, RangeProgress
from etl.settings.choices import StartAt
from etl.streams.fetches import Arrived, FetchSizes, batches_of
from etl.streams.partition_scheduler import Rotation
from etl.streams.records import Answer, Decoder, Record, records_of

_ANY_VERSION = -1


class OffsetStore(Protocol):
    """Where the group's offsets are kept."""

    def committed(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        """The next offset of each log that has one."""

    def commit(
        self, offsets: Mapping[BrokerPartition, int], share: MemberAssignment | None
    ) -> None:
        """Commit next offsets, as the member with this assignment if there is one. Raises
        OffsetMoved, Owned, CommitUnknown, PermissionDenied, and MembershipLost if the assignment is
        over.
        """


class KafkaOffsetStore:
    """With the group's coordinator (0.8.2 and later)."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group

    def committed(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        found = self._cluster.first(
            lambda consumer: consumer.fetch_offsets(self._group, sorted(logs), require_stable=True)
        )
        return {log: one.offset for log, one in found.items() if one.offset is not None}

    def commit(
        self, offsets: Mapping[BrokerPartition, int], share: MemberAssignment | None
    ) -> None:
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


class ZooKeeperOffsetStore:
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

    def commit(
        self, offsets: Mapping[BrokerPartition, int], share: MemberAssignment | None
    ) -> None:
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
                _reject_lost(sent, outcome)
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
        """Return the stored offset after one write of ours."""
        seen = self._seen[log].version
        return Committed(offset, 0 if seen is None else seen + 1)

    def _changes(
        self,
        logs: Collection[BrokerPartition],
        offsets: Mapping[BrokerPartition, int],
        share: MemberAssignment | None,
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
        """Return whether a rejected or unanswered commit happened. What another client wrote is
        known from now on: repeated, our commit overwrites it.
        """
        found, before = self._group.committed(logs), dict(self._seen)
        after = {log: self._after(log, offsets[log]) for log in logs}
        now = {log: found.get(log, NOTHING_COMMITTED) for log in logs}
        if now == after:
            return
        for log in logs:
            if now[log] not in (before[log], after[log]):
                self._seen.update(now)
                message = f"Somebody else moved the offset since it was read: it is {now[log].offset}, ours is {offsets[log]}"
                action = "Check which other consumer of this group runs; a second commit goes over what it wrote"
                raise OffsetMoved(message, **log.place, offset=now[log].offset, action=action)
        raise CommitUnknown("The offsets did not reach ZooKeeper", action="Commit again")


def _reject_lost(sent: Changes, outcome: Outcome) -> None:
    """Raises MembershipLost where the first thing refused is that we are a member, or that a log is
    ours; PermissionDenied.
    """
    for part, one in zip(
        sent.request.operations, [] if isinstance(outcome, Exception) else outcome, strict=False
    ):
        if isinstance(one, Exception) and not isinstance(
            one, (RolledBackError, RuntimeInconsistency)
        ):
            if isinstance(one, NoAuthError):
                raise PermissionDenied(
                    "ZooKeeper does not let us commit",
                    znode=part.path,
                    action="Check the znodes' ACLs",
                ) from one
            if isinstance(part, CheckVersion):
                raise MembershipLost(
                    "The partition is not ours any more, and nothing was committed",
                    znode=part.path,
                    action="Check who owns it now; the next poll joins again and begins where the group is",
                )
            return


_END_OF_ALL = 2**63 - 1


def reject_no_offset(offset: int) -> None:
    """Raises ValueError for an offset that no log can have: other clients could not continue there."""
    try:
        number = operator.index(offset)
    except TypeError:
        number = -1
    if not 0 <= number < _END_OF_ALL:
        raise ValueError(f"{offset!r} is no offset, which is a whole number from 0 on")


class Positions:
    """See `Consumer`. For one thread."""

    def __init__(
        self,
        cluster: Cluster,
        kept: OffsetStore | None,
        start: StartAt | None,
        sizes: FetchSizes,
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        self._cluster, self._kept, self._start, self._sizes = cluster, kept, start, sizes
        self._key_decoder, self._value_decoder = key_decoder, value_decoder
        self.rotation = Rotation[Record]()
        self._walks: dict[BrokerPartition, RangeProgress] = {}
        self.known: dict[BrokerPartition, int] = {}
        """The next offset of each log that has one by now."""

    def assign(self, logs: Iterable[BrokerPartition]) -> None:
        """These and no others."""
        self.rotation.assign(logs)
        for log in set(self.known).difference(self.rotation.assigned):
            del self._walks[log], self.known[log]

    def position(self, log: BrokerPartition) -> int:
        """Raises NotAssigned, and as `place`."""
        self._reject_foreign([log])
        self._place([log])
        return self.known[log]

    def seek(self, log: BrokerPartition, offset: int) -> None:
        """Raises NotAssigned, and as `reject_no_offset`."""
        self._reject_foreign([log])
        reject_no_offset(offset)
        sizes, before = self._sizes, self._walks.get(log)
        cursor = Cursor(
            OffsetRange(log, offset, _END_OF_ALL),
            isolation=sizes.isolation,
            fetch_max_bytes=sizes.share(len(self.rotation.assigned)),
            max_batch_bytes=sizes.max_batch_bytes,
        )
        self.rotation.drop(log)
        self._walks[log] = RangeProgress(0, cursor, before.leader if before else None)
        self.known[log] = offset

    def seek_to(self, where: StartAt, logs: Collection[BrokerPartition] | None) -> None:
        """To one end of each, None: of all. Raises NotAssigned, BrokerUnreachable."""
        wanted = self.rotation.assigned if logs is None else logs
        self._reject_foreign(wanted)
        for log, offset in self._ends(where, wanted).items():
            self.seek(log, offset)

    def place(self) -> None:
        """Set a position for each partition without one: the group's offset, else the configured
        start. Raises NeedsDecision without a start.
        """
        self._place(self.rotation.assigned)

    def done(self) -> dict[BrokerPartition, int]:
        """Return the next offset of each, after all that was returned."""
        return dict(self.known)

    def to_ask(self) -> list[RangeProgress]:
        """Return which partitions to fetch next, in order."""
        return [self._walks[log] for log in self.rotation.to_ask()]

    def take_answers(self, arrived: Iterable[Arrived]) -> None:
        """Keep what came. An answer to a question that was overtaken, by a seek or another
        assignment, is left.
        """
        for walk, fetched, consumer in arrived:
            if self._walks.get(walk.log) is not walk:
                continue
            batches, failure = batches_of(walk, fetched, consumer, self._sizes.isolation)
            if failure or any(batch.num_rows for batch in batches):
                self._keep(
                    records_of(
                        walk.log,
                        batches,
                        walk.cursor.position,
                        failure,
                        key_decoder=self._key_decoder,
                        value_decoder=self._value_decoder,
                    )
                )
            else:
                self._pass(walk.log, walk.cursor.position)

    def _keep(self, arrived: Answer) -> None:
        """Records came, or why there are none."""
        self.rotation.feed(arrived.log, arrived)

    def _pass(self, log: BrokerPartition, offset: int) -> None:
        """There is nothing up to there."""
        self.known[log] = offset

    def take(self, most: int) -> dict[BrokerPartition, list[Record]]:
        """Take up to so many records. Raises the error of a partition whose turn it is."""
        return self.rotation.take(most)

    def hand_out(self, taken: Mapping[BrokerPartition, list[Record]]) -> None:
        """Move the positions after these records."""
        self.known.update({log: some[-1].next_offset for log, some in taken.items()})

    def stop(self, logs: Collection[BrokerPartition]) -> None:
        """Return nothing more of these partitions, which are about to be released. Only polls
        return records, and this is within one.
        """

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Context manager: after Ctrl-C or an unexpected error continue after what was returned,
        since it is unknown how much of a response was taken.
        """
        try:
            yield
        except EtlError:
            raise
        except BaseException:
            for log in set(self.known).intersection(self.rotation.assigned):
                self.seek(log, self.known[log])
            raise

    def reject_unreachable(self) -> None:
        """Raises why a log was out of reach for so long; then it is waited for as long again."""
        for walk in self.to_ask():
            if walk.failure is not None and walk.idle_for() >= self._sizes.timeout_s:
                walk.idle_since = None
                raise walk.failure

    def _place(self, logs: Collection[BrokerPartition]) -> None:
        new = [log for log in logs if log not in self.known]
        offsets = self._kept.committed(new) if self._kept and new else {}
        if left := [log for log in new if log not in offsets]:
            if self._start is None:
                message = (
                    "The group has no offset of the partition, and nothing says where it begins"
                )
                raise NeedsDecision(
                    message, **left[0].place, action="Call seek(), or start=earliest or latest"
                )
            offsets = {**offsets, **self._ends(self._start, left)}
        for log, offset in offsets.items():
            self.seek(log, offset)

    def _ends(
        self, where: StartAt, logs: Collection[BrokerPartition]
    ) -> dict[BrokerPartition, int]:
        if not logs:
            return {}
        found = self._cluster.extents(logs, isolation=self._sizes.isolation)
        if found.leaderless:
            lost = min(found.leaderless)
            raise BrokerUnreachable(f"The log {lost.unled}", **lost.place, action=lost.held_by)
        return {
            log: one.log_start_offset if where is StartAt.EARLIEST else one.end_offset
            for log, one in found.extents.items()
        }

    def _reject_foreign(self, logs: Collection[BrokerPartition]) -> None:
        for log in logs:
            if log not in self.rotation.assigned:
                raise NotAssigned(
                    "The partition is not assigned to this consumer",
                    **log.place,
                    action="Call assign(), and what it was given",
                )
