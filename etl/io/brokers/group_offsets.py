"""How are a group's offsets read from Kafka and committed to it?

A coordinator has no compare-and-set, so offsets are read before they are overwritten; what another
client wrote is reported and left. A write between the two is lost, as with each client that commits
from outside (generation -1). The coordinator rejects such commits while the group has members.
Rows do not depend on this (ADR 1).

A member's commit is fenced by its membership. It is one batch in the coordinator's log: all of it
or nothing. It may be repeated, since nobody else commits these partitions while the membership
lives; if no answer came, the offsets tell (`decide.group_commits`).

Positions are mirrored into another Kafka group for lag monitors, and never read. The metadata
`etl:<group>/<pipeline>:<number>` marks our commits; an offset with other metadata is not
overwritten, because consumers that are stopped for an hour would continue from ours.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from etl.decide.group_commits import HandOverOutcome, found_out
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
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.cluster import Cluster
from etl.kafka.messages import CommittedOffset
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    Committed,
    MemberAssignment,
    RejectedCommit,
)
from etl.model.plans import Plan

_MARK = "etl"
_WORD_MAX = 64
"""Characters: what others wrote that is longer is known by its digest."""
_COMMIT_BYTES = 500_000
"""Size of one commit, which is one batch in the coordinator's log; brokers accept 1,000,012 bytes
by default.
"""
_BYTES_OF_ONE = 64
"""Size of one offset's record besides names and metadata."""


class StoredOffsets:
    """The offsets of one group, as one pipeline writes them. Raises what the brokers do."""

    def __init__(self, group: str, pipeline: str) -> None:
        self.group, self._pipeline = group, pipeline

    def metadata(self, word: str) -> str:
        """Return the metadata stored with an offset for that part of ours."""
        return f"{_MARK}:{self._pipeline}:{word}"

    def bytes_of(self, log: BrokerPartition, word: str) -> int:
        """Return the size of one offset in a commit."""
        return _BYTES_OF_ONE + len(self.metadata(word)) + len(self.group) + len(log.topic.encode())

    def committed(
        self, cluster: Cluster, logs: Iterable[BrokerPartition]
    ) -> dict[BrokerPartition, Committed]:
        """Return the committed offset of each partition that has one, with its metadata.

        Offsets of an open transaction are waited for. Partitions of deleted topics have none. Kafka
        0.8.2 answers for them as for topics that a broker does not know yet; they count as deleted
        if metadata lacks them, too. Raises TopicMissing otherwise.
        """
        partitions = sorted(set(logs))
        if not partitions:
            return {}
        try:
            found = self._told(cluster, partitions)
        except TopicMissing:
            there = logs_there(cluster, partitions)
            if not there or there == partitions:
                raise
            found = self._told(cluster, there)
        return {
            log: Committed(one.offset, None, self._word_of(one.metadata))
            for log, one in found.items()
            if one.offset is not None
        }

    def _told(
        self, cluster: Cluster, partitions: Sequence[BrokerPartition]
    ) -> dict[BrokerPartition, CommittedOffset]:
        return cluster.first(
            lambda consumer: consumer.fetch_offsets(self.group, partitions, require_stable=True)
        )

    def move(
        self,
        cluster: Cluster,
        before: Mapping[BrokerPartition, Committed],
        after: Mapping[BrokerPartition, Committed],
        share: MemberAssignment | None = None,
    ) -> list[BrokerPartition]:
        """Move offsets from `before` to `after`, with metadata; return the offsets then. `share`:
        the member's assignment.

        Deleted topics are left out. Raises OffsetMoved if another client moved one, before any is
        written; Owned while the group has members and we are none; MembershipLost if we are none
        any more; CommitUnknown without an answer, if it did not happen.
        """
        found = self.committed(cluster, after)
        there = {log: found.get(log, NOTHING_COMMITTED) for log in after}
        self._reject_moved_offsets(before, after, there)
        moved = [log for log in after if there[log].offset == after[log].offset]
        for word, some in self._requests(
            {log: after[log] for log in after if there[log].offset != after[log].offset}
        ):
            moved += self._write(
                cluster, {log: after[log].offset or 0 for log in some}, word, before, after, share
            )
        return moved

    def _write(
        self,
        cluster: Cluster,
        offsets: Mapping[BrokerPartition, int],
        word: str,
        before: Mapping[BrokerPartition, Committed],
        after: Mapping[BrokerPartition, Committed],
        share: MemberAssignment | None,
    ) -> list[BrokerPartition]:
        try:
            refusals = cluster.first(
                lambda consumer: _committing(
                    consumer, self.group, offsets, self.metadata(word), share
                )
            )
        except CommitUnknown:
            found = self.committed(cluster, offsets)
            self._reject_moved_offsets(
                before,
                {log: after[log] for log in offsets},
                {log: found.get(log, NOTHING_COMMITTED) for log in offsets},
            )
            if any(found.get(log, NOTHING_COMMITTED) != after[log] for log in offsets):
                raise
            return list(offsets)
        return [log for log, is_stored in refusals.items() if is_stored]

    def _reject_moved_offsets(
        self,
        before: Mapping[BrokerPartition, Committed],
        after: Mapping[BrokerPartition, Committed],
        there: Mapping[BrokerPartition, Committed],
    ) -> None:
        for log, found in sorted(there.items()):
            if is_anothers(found, before[log], after[log]):
                message = f"Somebody else moved the offset during the run: it is {found.offset}, ours is {after[log].offset}"
                action = "Check which other consumer of this group runs; the rows are in the table, the next run decides by group.on_offset_changed"
                raise OffsetMoved(message, **log.place, offset=found.offset, action=action)

    def _requests(
        self, wanted: Mapping[BrokerPartition, Committed]
    ) -> Iterator[tuple[str, Sequence[BrokerPartition]]]:
        """Word and logs of each commit: those of one word, as many as a coordinator takes at once."""
        for word in sorted({one.word or "" for one in wanted.values()}):
            for some in self.in_commits(
                sorted(log for log, one in wanted.items() if (one.word or "") == word), word
            ):
                yield word, some

    def in_commits(
        self, logs: Iterable[BrokerPartition], word: str
    ) -> Iterator[Sequence[BrokerPartition]]:
        """Split into commits that a coordinator accepts."""
        return in_parts(logs, lambda log: self.bytes_of(log, word), _COMMIT_BYTES)

    def _word_of(self, metadata: str) -> str:
        """See `Committed.word`."""
        ours = f"{_MARK}:{self._pipeline}:"
        if metadata.startswith(ours):
            return metadata.removeprefix(ours)
        if len(metadata) <= _WORD_MAX:
            return metadata
        return hashlib.sha256(metadata.encode()).hexdigest()


def logs_there(cluster: Cluster, partitions: Sequence[BrokerPartition]) -> list[BrokerPartition]:
    """Those of them that the brokers' metadata has."""
    topics = cluster.describe({log.topic for log in partitions}).topics
    known = {each.log for topic in topics.values() for each in topic.partitions}
    return [log for log in partitions if log in known]


def _committing(
    consumer: SimpleConsumer,
    group: str,
    offsets: Mapping[BrokerPartition, int],
    metadata: str,
    share: MemberAssignment | None,
) -> dict[BrokerPartition, bool]:
    """Which of them are stored; not those of a topic that is gone. Raises for the first one that is
    refused otherwise.
    """
    if share is None:
        refusals = consumer.commit_each(group, offsets, metadata=metadata)
    else:
        refusals = consumer.commit_each(
            group,
            offsets,
            metadata=metadata,
            generation=share.generation,
            member_id=share.member_id,
            instance_id=share.instance_id,
            is_sent_once=True,
        )
    for log, refusal in sorted(refusals.items()):
        if refusal and refusal.meaning is not Meaning.UNKNOWN_TOPIC:
            raise refusal.error(
                f"commit an offset of group {group}",
                **log.place,
                offset=offsets[log],
                broker=consumer.address,
            )
    return {log: refusal is None for log, refusal in refusals.items()}


_PAUSE_S = 0.2
_BATCH_BYTES = 950_000
"""Brokers accept batches of 1,000,012 bytes by default."""
_FINDS_OUT = "The next run finds out"
_GONE = "The brokers do not know the topics of its partitions any more"


class FencedOffsetCommit:
    """Commits of one pipeline's plans, fenced by membership. `tries_for_s`: time to wait for an
    answer. Raises as brokers do.
    """

    def __init__(self, kept: StoredOffsets, *, tries_for_s: float) -> None:
        self._kept, self._tries_for_s = kept, tries_for_s

    def hand_over(
        self, cluster: Cluster, plan: Plan, *, unsure: Callable[[], None]
    ) -> RejectedCommit | None:
        """Commit the plan's offsets, all of them; return why none was, if the membership is over.

        A topic that the coordinator does not know yet is retried. `unsure` is called after a commit
        without an answer, which may arrive until its membership ends. Raises CommitUnknown without
        an answer in time, SettingsError for more partitions than a batch holds, and other errors of
        the coordinator.
        """
        logs, share = plan.offsets_to_commit, plan.share
        if not logs or share is None:
            return None
        self._reject_too_many(plan, logs)
        deadline, is_unsure, is_partly = time.monotonic() + self._tries_for_s, False, False
        try:
            while True:
                try:
                    answer = cluster.first(lambda consumer: self._asked(consumer, plan, share))
                    unknown = _unknown_to_coordinator(answer, plan)
                    if not unknown:
                        return None
                    if time.monotonic() > deadline:
                        return self._without(cluster, plan, unknown, is_unsure=is_unsure)
                    is_partly = True
                except CommitUnknown:
                    is_unsure = True
                    if time.monotonic() > deadline:
                        raise
                time.sleep(_PAUSE_S)
        except MembershipLost as lost:
            if is_unsure or is_partly:
                return self._found(cluster, plan, lost)
            return RejectedCommit(lost.message)
        finally:
            if is_unsure:
                unsure()

    def _found(self, cluster: Cluster, plan: Plan, lost: MembershipLost) -> RejectedCommit | None:
        """Return the result of earlier tries of a commit whose membership is over. Raises
        CommitUnknown if that is unknown now.
        """
        found = found_out(plan, self._kept.committed(cluster, plan.offsets_to_commit))
        if found is HandOverOutcome.TAKEN:
            return None
        if found is HandOverOutcome.NOT_TAKEN:
            return RejectedCommit(lost.message)
        raise CommitUnknown(lost.message, action=_FINDS_OUT, **lost.where) from lost

    def _without(
        self, cluster: Cluster, plan: Plan, unknown: Sequence[BrokerPartition], *, is_unsure: bool
    ) -> RejectedCommit | None:
        """Return the result of a commit with topics that the coordinator does not know: nobody else
        reads a deleted one either.
        """
        if there := logs_there(cluster, unknown):
            message = f"The group's coordinator does not know a topic that other brokers have, and commits nothing of {there[0]}"
            raise CommitUnknown(
                message,
                action="Check the coordinator's log; the next run finds out what was taken",
                **there[0].place,
            )
        if len(unknown) < len(plan.offsets_to_commit):
            return None
        if is_unsure:
            raise CommitUnknown(_GONE, action=_FINDS_OUT)
        return RejectedCommit(_GONE)

    def _asked(
        self, consumer: SimpleConsumer, plan: Plan, share: MemberAssignment
    ) -> Mapping[BrokerPartition, BrokerRefusal | None]:
        offsets = {log: plan.positions[log] for log in plan.offsets_to_commit}
        return consumer.commit_each(
            self._kept.group,
            offsets,
            metadata=self._kept.metadata(plan.word),
            generation=share.generation,
            member_id=share.member_id,
            instance_id=share.instance_id,
            is_sent_once=True,
        )

    def _reject_too_many(self, plan: Plan, logs: tuple[BrokerPartition, ...]) -> None:
        size = sum(self._kept.bytes_of(log, plan.word) for log in logs)
        if size > _BATCH_BYTES:
            message = f"Handing {len(logs):,} partitions over takes a commit of {size:,} bytes, and a coordinator takes a megabyte at once"
            action = "Use fewer topics in one conf, and the others in another one; or more members, so that our share is smaller"
            raise SettingsError(message, key="source.topics", action=action)


def _unknown_to_coordinator(
    refusals: Mapping[BrokerPartition, BrokerRefusal | None], plan: Plan
) -> list[BrokerPartition]:
    """Return the partitions of unknown topics. Raises the other errors of a partition."""
    for log, refusal in sorted(refusals.items()):
        if refusal is not None and refusal.meaning is not Meaning.UNKNOWN_TOPIC:
            raise refusal.error(
                f"hand plan {plan.number} over", **log.place, offset=plan.positions[log]
            )
    return sorted(log for log, refusal in refusals.items() if refusal is not None)


_MIRROR_MARK = "etl:"


class Writer(NamedTuple):
    """Identity of a pipeline in commit metadata."""

    group: str
    pipeline: str

    @property
    def words(self) -> tuple[str, str]:
        """How its words begin: today, and of earlier versions."""
        return f"{_MIRROR_MARK}{self.group}/{self.pipeline}:", f"{_MIRROR_MARK}{self.pipeline}:"


def mirror_positions(
    cluster: Cluster,
    group: str,
    positions: Mapping[BrokerPartition, int],
    *,
    writer: Writer,
    taken: Collection[Writer] = (),
    number: int,
) -> dict[BrokerPartition, str]:
    """Commit these positions of plan `number`, except over others' offsets: return those
    partitions, sorted, with their metadata. Offsets of predecessors (`taken`) are overwritten.
    Raises the broker's error: BrokerError if the group has members, SettingsError before Kafka
    0.8.2.
    """
    ours = tuple(word for one in (writer, *taken) for word in one.words)

    def write(consumer: SimpleConsumer) -> dict[BrokerPartition, str]:
        there = consumer.fetch_offsets(group, positions.keys())
        words = {
            log: stored.metadata
            for log, stored in sorted(there.items())
            if stored.offset is not None
        }
        others = {log: word for log, word in words.items() if not word.startswith(ours)}
        left = {log: offset for log, offset in positions.items() if log not in others}
        if left:
            consumer.commit_offsets(group, left, metadata=f"{writer.words[0]}{number}")
        return others

    return cluster.first(write)
