"""A pipeline's group offsets where the group's coordinator keeps them: read, and moved from what a
plan saw.

A coordinator has no compare-and-set, so what is there is read before it is written over. What
another client wrote by then is told, and left; what it writes in the moment between is lost, as
with every client that commits from outside (generation -1). The coordinator itself refuses us as
long as the group has live members, so such a client is one from outside, too. Rows depend on none
of this (ADR 1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from etl.decide.offsets import is_anothers
from etl.decide.tasks import in_parts
from etl.edges.brokers.cluster import Cluster
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import CommitUnknown, Meaning, OffsetMoved, TopicMissing
from etl.kafka.messages import CommittedOffset
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Committed, Share

_MARK = "etl"
_WORD_MAX = 64
"""Characters: what others wrote that is longer is known by its digest."""
_COMMIT_BYTES = 500_000
"""Of one commit, which is one batch in the coordinator's log; brokers take 1,000,012 unless they
are told otherwise.
"""
_BYTES_OF_ONE = 64
"""Beside the names and the word: what the record of one offset takes."""


class KeptOffsets:
    """The offsets of one group, as one pipeline writes them. Raises what the brokers do."""

    def __init__(self, group: str, pipeline: str) -> None:
        self.group, self._pipeline = group, pipeline

    def metadata(self, word: str) -> str:
        """What stands beside an offset in Kafka for that word of ours."""
        return f"{_MARK}:{self._pipeline}:{word}"

    def bytes_of(self, log: BrokerPartition, word: str) -> int:
        """What one offset takes of a commit."""
        return _BYTES_OF_ONE + len(self.metadata(word)) + len(self.group) + len(log.topic.encode())

    def committed(
        self, cluster: Cluster, logs: Iterable[BrokerPartition]
    ) -> dict[BrokerPartition, Committed]:
        """The committed offset of each log that has one, and the word beside it. One that a
        transaction holds is waited for.

        A log whose topic is gone has none. Kafka 0.8.2 refuses to tell of it, as of one that a
        broker was not told of yet; so it counts as gone where the brokers' metadata lacks it, too.
        Raises TopicMissing where it does not.
        """
        asked = sorted(set(logs))
        if not asked:
            return {}
        try:
            told = self._told(cluster, asked)
        except TopicMissing:
            there = logs_there(cluster, asked)
            if not there or there == asked:
                raise
            told = self._told(cluster, there)
        return {
            log: Committed(one.offset, None, self._word_of(one.metadata))
            for log, one in told.items()
            if one.offset is not None
        }

    def _told(
        self, cluster: Cluster, asked: Sequence[BrokerPartition]
    ) -> dict[BrokerPartition, CommittedOffset]:
        return cluster.first(
            lambda consumer: consumer.fetch_offsets(self.group, asked, require_stable=True)
        )

    def move(
        self,
        cluster: Cluster,
        before: Mapping[BrokerPartition, Committed],
        after: Mapping[BrokerPartition, Committed],
        share: Share | None = None,
    ) -> list[BrokerPartition]:
        """Move offsets from `before` to `after`, each with its word: those that are there then.
        `share`: of a member of the group.

        One whose topic is gone is left out. Raises OffsetMoved where another client moved one
        since, before any is written; Owned while the group has live members, and we are none;
        MembershipLost where we are none any more; CommitUnknown where no answer came and it did not
        happen.
        """
        found = self.committed(cluster, after)
        there = {log: found.get(log, NOTHING_COMMITTED) for log in after}
        self._refuse_moved(before, after, there)
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
        share: Share | None,
    ) -> list[BrokerPartition]:
        try:
            told = cluster.first(
                lambda consumer: _committing(
                    consumer, self.group, offsets, self.metadata(word), share
                )
            )
        except CommitUnknown:
            found = self.committed(cluster, offsets)
            self._refuse_moved(
                before,
                {log: after[log] for log in offsets},
                {log: found.get(log, NOTHING_COMMITTED) for log in offsets},
            )
            if any(found.get(log, NOTHING_COMMITTED) != after[log] for log in offsets):
                raise
            return list(offsets)
        return [log for log, is_stored in told.items() if is_stored]

    def _refuse_moved(
        self,
        before: Mapping[BrokerPartition, Committed],
        after: Mapping[BrokerPartition, Committed],
        there: Mapping[BrokerPartition, Committed],
    ) -> None:
        for log, found in sorted(there.items()):
            if is_anothers(found, before[log], after[log]):
                what = f"somebody else moved the offset during the run: it is {found.offset}, ours is {after[log].offset}"
                check = "which other consumer of this group runs; the rows are in the table, the next run decides by source.on_moved"
                raise OffsetMoved(what, **log.place, offset=found.offset, check=check)

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
        """As many at once as a coordinator takes."""
        return in_parts(logs, lambda log: self.bytes_of(log, word), _COMMIT_BYTES)

    def _word_of(self, metadata: str) -> str:
        """See `Committed.word`."""
        ours = f"{_MARK}:{self._pipeline}:"
        if metadata.startswith(ours):
            return metadata.removeprefix(ours)
        return (
            metadata
            if len(metadata) <= _WORD_MAX
            else hashlib.sha256(metadata.encode()).hexdigest()
        )


def logs_there(cluster: Cluster, asked: Sequence[BrokerPartition]) -> list[BrokerPartition]:
    """Those of them that the brokers' metadata has."""
    topics = cluster.describe({log.topic for log in asked}).topics
    known = {each.log for topic in topics.values() for each in topic.partitions}
    return [log for log in asked if log in known]


def _committing(
    consumer: SimpleConsumer,
    group: str,
    offsets: Mapping[BrokerPartition, int],
    metadata: str,
    share: Share | None,
) -> dict[BrokerPartition, bool]:
    """Which of them are stored; not those of a topic that is gone. Raises for the first one that is
    refused otherwise.
    """
    told = (
        consumer.commit_each(group, offsets, metadata=metadata)
        if share is None
        else consumer.commit_each(
            group,
            offsets,
            metadata=metadata,
            generation=share.generation,
            member_id=share.member_id,
            instance_id=share.instance_id,
            is_sent_once=True,
        )
    )
    for log, refusal in sorted(told.items()):
        if refusal and refusal.meaning is not Meaning.UNKNOWN_TOPIC:
            raise refusal.error(
                f"commit an offset of group {group}",
                **log.place,
                offset=offsets[log],
                broker=consumer.address,
            )
    return {log: refusal is None for log, refusal in told.items()}
