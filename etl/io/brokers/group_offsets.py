"""How are a group's offsets read from Kafka and committed to it?

Lives here: commits from outside the group, a member's commits, and the mirror group. Not here: the
requests (etl/io/brokers/simple_consumer.py), offsets in ZooKeeper
(etl/io/zookeeper/group_offsets.py), the result of an in-doubt commit
(etl/decide/member_offsets.py).

A coordinator has no compare-and-set, so offsets are read before they are overwritten; an offset
that another client committed is reported and left. A commit between the two requests is lost, as
with each client that commits from outside (generation -1). The coordinator rejects such commits
while the group has members. Rows do not depend on this (ADR 1).

A member's commit is fenced by its membership. It is one batch in the coordinator's log: all of it
or nothing. It may be repeated, since no other client commits these partitions while the membership
lasts. Without an answer the committed offsets show the result.

The offsets of a plan are mirrored into another Kafka group for lag monitors, and never read. The
metadata `etl:<group>/<pipeline>:<number>` marks our commits; an offset with other metadata is not
overwritten, because consumers that are stopped for an hour would continue from ours.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from etl.decide.member_offsets import CommitOutcome, commit_outcome
from etl.decide.offsets import is_anothers
from etl.decide.tasks import in_parts
from etl.errors import (
    BrokerRefusal,
    CommitUnknown,
    Meaning,
    MembershipLost,
    OffsetMoved,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import CommittedOffset
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    MemberAssignment,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import Plan

_MARK = "etl"
_METADATA_MAX = 64
"""Characters: longer metadata of another client is represented by its digest."""
_COMMIT_BYTES = 500_000
"""Size of one commit, which is one batch in the coordinator's log.

Brokers accept 1,000,012 bytes by default.
"""
_BYTES_OF_ONE = 64
"""Size of one offset's record besides names and metadata."""


class StoredOffsets:
    """The offsets of one group, as one pipeline commits them. Raises the brokers' errors.

    A `plan_name` is the part of the commit metadata after the pipeline's name.
    """

    def __init__(self, group: str, pipeline: str) -> None:
        self.group = group
        self._pipeline = pipeline

    def metadata(self, plan_name: str) -> str:
        """Return the commit metadata of a plan."""
        return f"{_MARK}:{self._pipeline}:{plan_name}"

    def bytes_of(self, partition: TopicPartition, plan_name: str) -> int:
        """Return the size of one offset in a commit."""
        return (
            _BYTES_OF_ONE
            + len(self.metadata(plan_name))
            + len(self.group)
            + len(partition.topic.encode())
        )

    def committed(
        self, cluster: Cluster, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Committed]:
        """Return the committed offset of each partition that has one, with its metadata.

        Offsets of an open transaction are waited for. Partitions of deleted topics have none. Kafka
        0.8.2 answers for them as for topics that a broker does not know yet; they count as deleted
        if metadata lacks them, too. Raises TopicMissing otherwise.
        """
        partitions = sorted(set(topic_partitions))
        if not partitions:
            return {}
        try:
            found = self._fetch(cluster, partitions)
        except TopicMissing:
            existing = existing_partitions(cluster, partitions)
            if not existing or existing == partitions:
                raise
            found = self._fetch(cluster, existing)
        committed: dict[TopicPartition, Committed] = {}
        for partition, stored in found.items():
            if stored.offset is not None:
                committed[partition] = Committed(
                    stored.offset, None, self._word_of(stored.metadata)
                )
        return committed

    def _fetch(
        self, cluster: Cluster, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        return cluster.first(
            lambda consumer: consumer.fetch_offsets(self.group, partitions, require_stable=True)
        )

    def move(
        self,
        cluster: Cluster,
        before: Mapping[TopicPartition, Committed],
        after: Mapping[TopicPartition, Committed],
        assignment: MemberAssignment | None = None,
    ) -> list[TopicPartition]:
        """Move offsets from `before` to `after`, with metadata; return the moved partitions.

        `assignment`: of the member that commits; None: from outside the group. Deleted topics are
        left out. Raises OffsetMoved if another client moved an offset, before any is written; Owned
        while the group has members and we are none; MembershipLost if our membership ended;
        CommitUnknown without an answer, if the offsets were not committed.
        """
        found = self.committed(cluster, after)
        current = {partition: found.get(partition, NOTHING_COMMITTED) for partition in after}
        self._reject_moved_offsets(before, after, current)
        moved: list[TopicPartition] = []
        to_commit: dict[TopicPartition, Committed] = {}
        for partition, wanted in after.items():
            if current[partition].offset == wanted.offset:
                moved.append(partition)
            else:
                to_commit[partition] = wanted
        for plan_name, partitions in self._commits(to_commit):
            offsets = {partition: after[partition].offset or 0 for partition in partitions}
            moved += self._commit(cluster, offsets, plan_name, before, after, assignment)
        return moved

    def _commit(
        self,
        cluster: Cluster,
        offsets: Mapping[TopicPartition, int],
        plan_name: str,
        before: Mapping[TopicPartition, Committed],
        after: Mapping[TopicPartition, Committed],
        assignment: MemberAssignment | None,
    ) -> list[TopicPartition]:
        metadata = self.metadata(plan_name)
        try:
            return cluster.first(
                lambda consumer: _commit_existing(
                    consumer, self.group, offsets, metadata, assignment
                )
            )
        except CommitUnknown:
            found = self.committed(cluster, offsets)
            current = {partition: found.get(partition, NOTHING_COMMITTED) for partition in offsets}
            wanted = {partition: after[partition] for partition in offsets}
            self._reject_moved_offsets(before, wanted, current)
            if current != wanted:
                raise
            return list(offsets)

    def _reject_moved_offsets(
        self,
        before: Mapping[TopicPartition, Committed],
        after: Mapping[TopicPartition, Committed],
        current: Mapping[TopicPartition, Committed],
    ) -> None:
        for partition, found in sorted(current.items()):
            if is_anothers(found, before[partition], after[partition]):
                raise OffsetMoved(
                    f"Another client moved the offset during the run: it is {found.offset},"
                    f" ours is {after[partition].offset}",
                    **partition.place,
                    offset=found.offset,
                    action="Check which other consumer of this group runs. The rows are in the"
                    " table, the next run decides by group.on_offset_changed",
                )

    def _commits(
        self, wanted: Mapping[TopicPartition, Committed]
    ) -> Iterator[tuple[str, Sequence[TopicPartition]]]:
        """Yield plan_name and partitions of each commit, as many as a coordinator accepts at
        once.
        """
        by_plan: dict[str, list[TopicPartition]] = {}
        for partition in sorted(wanted):
            by_plan.setdefault(wanted[partition].metadata or "", []).append(partition)
        for plan_name in sorted(by_plan):
            for partitions in self.in_commits(by_plan[plan_name], plan_name):
                yield plan_name, partitions

    def in_commits(
        self, partitions: Iterable[TopicPartition], plan_name: str
    ) -> Iterator[Sequence[TopicPartition]]:
        """Split into commits that a coordinator accepts."""
        return in_parts(
            partitions, lambda partition: self.bytes_of(partition, plan_name), _COMMIT_BYTES
        )

    def _word_of(self, metadata: str) -> str:
        """Return `Committed.metadata` of this metadata."""
        ours = f"{_MARK}:{self._pipeline}:"
        if metadata.startswith(ours):
            return metadata.removeprefix(ours)
        if len(metadata) <= _METADATA_MAX:
            return metadata
        return hashlib.sha256(metadata.encode()).hexdigest()


def existing_partitions(
    cluster: Cluster, partitions: Sequence[TopicPartition]
) -> list[TopicPartition]:
    """Return the partitions that the brokers' metadata contains."""
    topics = {topic_partition.topic for topic_partition in partitions}
    known: set[TopicPartition] = set()
    for topic in cluster.describe(topics).topics.values():
        for partition in topic.partitions:
            known.add(partition.partition)
    return [topic_partition for topic_partition in partitions if topic_partition in known]


def _commit_existing(
    consumer: SimpleConsumer,
    group: str,
    offsets: Mapping[TopicPartition, int],
    metadata: str,
    assignment: MemberAssignment | None,
) -> list[TopicPartition]:
    """Commit offsets; return the committed partitions, without those of deleted topics.

    Raises the error of the first partition that is rejected otherwise.
    """
    if assignment is None:
        refusals = consumer.commit_each(group, offsets, metadata=metadata)
    else:
        refusals = _commit_as_member(consumer, group, offsets, metadata, assignment)
    for partition, refusal in sorted(refusals.items()):
        if refusal and refusal.meaning is not Meaning.UNKNOWN_TOPIC:
            raise refusal.error(
                f"commit an offset of group {group}",
                **partition.place,
                offset=offsets[partition],
                broker=consumer.address,
            )
    return [partition for partition, refusal in refusals.items() if refusal is None]


def _commit_as_member(
    consumer: SimpleConsumer,
    group: str,
    offsets: Mapping[TopicPartition, int],
    metadata: str,
    assignment: MemberAssignment,
) -> dict[TopicPartition, BrokerRefusal | None]:
    return consumer.commit_each(
        group,
        offsets,
        metadata=metadata,
        generation=assignment.generation,
        member_id=assignment.member_id,
        instance_id=assignment.instance_id,
        is_sent_once=True,
    )


_PAUSE_S = 0.2
_BATCH_BYTES = 950_000
"""Brokers accept batches of 1,000,012 bytes by default."""
_RUN_AGAIN = "Run again: the next run finds out whether the offsets were committed"
_TOPICS_GONE = "The brokers do not know the topics of its partitions any more"


class FencedOffsetCommit:
    """Commits of one pipeline's plans, fenced by membership. Raises the brokers' errors.

    `tries_for_s`: how long a commit without an answer is retried.
    """

    def __init__(self, kept: StoredOffsets, *, tries_for_s: float) -> None:
        self._stored_offsets = kept
        self._tries_for_s = tries_for_s

    def hand_over(
        self, cluster: Cluster, plan: Plan, *, unsure: Callable[[], None]
    ) -> RejectedCommit | None:
        """Commit all offsets of the plan; return the rejection if the membership has ended.

        A topic that the coordinator does not know yet is retried. `unsure` is called after a commit
        without an answer: it may arrive until its membership ends, after a later commit, and would
        set the offset back. Raises CommitUnknown without an answer in time, SettingsError for more
        partitions than a batch holds, and other errors of the coordinator.
        """
        partitions = plan.offsets_to_commit
        assignment = plan.commit.member
        if not partitions or assignment is None:
            return None
        self._reject_too_many(plan, partitions)
        offsets = {partition: plan.loaded_until[partition] for partition in partitions}
        metadata = self._stored_offsets.metadata(plan.commit_metadata)
        deadline = time.monotonic() + self._tries_for_s
        is_unsure = False
        is_partly_committed = False
        try:
            while True:
                try:
                    refusals = cluster.first(
                        lambda consumer: _commit_as_member(
                            consumer, self._stored_offsets.group, offsets, metadata, assignment
                        )
                    )
                    unknown = _unknown_to_coordinator(refusals, plan)
                    if not unknown:
                        return None
                    if time.monotonic() > deadline:
                        return self._commit_without(cluster, plan, unknown, is_unsure=is_unsure)
                    is_partly_committed = True
                except CommitUnknown:
                    is_unsure = True
                    if time.monotonic() > deadline:
                        raise
                time.sleep(_PAUSE_S)
        except MembershipLost as lost:
            if is_unsure or is_partly_committed:
                return self._result_of_earlier_tries(cluster, plan, lost)
            return RejectedCommit(lost.message)
        finally:
            if is_unsure:
                unsure()

    def _result_of_earlier_tries(
        self, cluster: Cluster, plan: Plan, lost: MembershipLost
    ) -> RejectedCommit | None:
        """Return the result of earlier tries of a commit after its membership ended.

        Raises CommitUnknown if it is unknown now.
        """
        committed = self._stored_offsets.committed(cluster, plan.offsets_to_commit)
        outcome = commit_outcome(plan, committed)
        if outcome is CommitOutcome.TAKEN:
            return None
        if outcome is CommitOutcome.NOT_TAKEN:
            return RejectedCommit(lost.message)
        raise CommitUnknown(lost.message, action=_RUN_AGAIN, **lost.where) from lost

    def _commit_without(
        self, cluster: Cluster, plan: Plan, unknown: Sequence[TopicPartition], *, is_unsure: bool
    ) -> RejectedCommit | None:
        """Return the result of a commit with topics that the coordinator does not know.

        Offsets of deleted topics need no commit: no other consumer reads them.
        """
        existing = existing_partitions(cluster, unknown)
        if existing:
            raise CommitUnknown(
                "The group's coordinator does not know a topic that other brokers have, and commits"
                f" nothing of {existing[0]}",
                action="Check the coordinator's log. The next run finds out which offsets were"
                " committed",
                **existing[0].place,
            )
        if len(unknown) < len(plan.offsets_to_commit):
            return None
        if is_unsure:
            raise CommitUnknown(_TOPICS_GONE, action=_RUN_AGAIN)
        return RejectedCommit(_TOPICS_GONE)

    def _reject_too_many(self, plan: Plan, partitions: tuple[TopicPartition, ...]) -> None:
        size = sum(
            self._stored_offsets.bytes_of(partition, plan.commit_metadata)
            for partition in partitions
        )
        if size > _BATCH_BYTES:
            raise SettingsError(
                f"The offset commit of {len(partitions):,} partitions has {size:,} bytes, and a"
                " coordinator accepts a megabyte at once",
                key="source.topics",
                action="Move some of the topics to another conf, or add members to the group, so"
                " that our assignment is smaller",
            )


def _unknown_to_coordinator(
    refusals: Mapping[TopicPartition, BrokerRefusal | None], plan: Plan
) -> list[TopicPartition]:
    """Return the partitions of unknown topics. Raises the other errors of a partition."""
    for partition, refusal in sorted(refusals.items()):
        if refusal is not None and refusal.meaning is not Meaning.UNKNOWN_TOPIC:
            raise refusal.error(
                f"commit the offsets of plan {plan.number}",
                **partition.place,
                offset=plan.loaded_until[partition],
            )
    return sorted(partition for partition, refusal in refusals.items() if refusal is not None)


_MIRROR_MARK = "etl:"


class MirrorWriter(NamedTuple):
    """A pipeline that commits to mirror groups."""

    group: str
    pipeline: str

    def metadata(self, plan_number: int) -> str:
        """Return the metadata of its commits."""
        return f"{_MIRROR_MARK}{self.group}/{self.pipeline}:{plan_number}"

    def has_written(self, metadata: str) -> bool:
        """Return True for the metadata of its commits, also that of earlier versions.

        They wrote no group. A plan's own commit has an id after the number, and is none of these.
        """
        mark = re.escape(_MIRROR_MARK)
        group = re.escape(f"{self.group}/")
        pipeline = re.escape(self.pipeline)
        return re.fullmatch(f"{mark}(?:{group})?{pipeline}:[0-9]+", metadata) is not None


def commit_to_mirror_group(
    cluster: Cluster,
    group: str,
    positions: Mapping[TopicPartition, int],
    *,
    writer: MirrorWriter,
    predecessors: Collection[MirrorWriter] = (),
    plan_number: int,
) -> dict[TopicPartition, str]:
    """Commit the offsets of a plan to the mirror group, except over those of other clients.

    Offsets of predecessors are overwritten. Return the partitions with an offset of another client,
    sorted, with its metadata. A group without members may still have consumers that are stopped, so
    only offsets with our metadata are overwritten. Raises the broker's error: BrokerError if the
    group has members, SettingsError before Kafka 0.8.2.
    """
    writers = (writer, *predecessors)

    def commit(consumer: SimpleConsumer) -> dict[TopicPartition, str]:
        others: dict[TopicPartition, str] = {}
        for partition, stored in sorted(consumer.fetch_offsets(group, positions.keys()).items()):
            is_ours = any(each.has_written(stored.metadata) for each in writers)
            if stored.offset is not None and not is_ours:
                others[partition] = stored.metadata
        to_commit = {
            partition: offset for partition, offset in positions.items() if partition not in others
        }
        if to_commit:
            consumer.commit_offsets(group, to_commit, metadata=writer.metadata(plan_number))
        return others

    return cluster.first(commit)
