"""What a task refuses to call read: offsets that are missing, logs that changed meanwhile, a log
that gives nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from etl.decide.partition_identity import Cut
from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    DataLoss,
    Meaning,
    MissingOffsets,
    NotYetReadable,
    RanOutBeforeUntil,
    TopicMadeAgain,
)
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.connection import IDLE_CONNECTIONS
from etl.io.brokers.offsets import read_tails
from etl.kafka.messages import LATEST, TopicMetadata
from etl.model.partitions import BrokerPartition, Cleanup, Isolation, Tail, render_stretches
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor
from etl.reader.passed_batches import MISSING_MAX
from etl.reader.range_progress import FetchSettings, RangeProgress, place_of


def refuse_missing(cursors: Sequence[Cursor]) -> None:
    """What no record batch had is told once all is read, so that a person, or the driver, learns of
    all of it at once.
    """
    found = [(cursor.range.log, *stretch) for cursor in cursors for stretch in cursor.missing]
    if not found:
        return
    for cursor in cursors:
        _refuse_many_missing(cursor)
    count = sum(end - start for _, start, end in found)
    missing = render_stretches(found)
    log, first, _ = found[0]
    cleanup = next(cursor.cleanup for cursor in cursors if cursor.missing)
    check = f"the broker's disks and log for a lost segment, and {_cleanup_to_check(cleanup)}"
    what = f"{count:,} offsets are missing from inside the log"
    raise MissingOffsets(what, check=check, **log.place, offset=first, missing=missing)


def _refuse_many_missing(cursor: Cursor) -> None:
    """So many holes are no lost segments. Nobody would name them one by one, and no plan could."""
    if cursor.missing_count <= MISSING_MAX:
        return
    log, what = (
        cursor.range.log,
        f"offsets are missing from inside the log in {cursor.missing_count:,} places, as compaction leaves them",
    )
    check = f"{_cleanup_to_check(cursor.cleanup)}; compacted_topics is for a topic that was compacted before"
    raise DataLoss(what, check=check, **log.place, offset=cursor.missing[0][0])


_UNTOLD = (
    "which the brokers do not tell: before 0.11 they cannot, later it takes the ACL DescribeConfigs on the topic; compacted_topics says it "
    "instead"
)


def _cleanup_to_check(cleanup: Cleanup) -> str:
    if cleanup.is_compacted is None:
        return f"whether the topic is compacted, {_UNTOLD}"
    return "the topic's cleanup.policy, which does not say compact"


def refuse_other_topics(consumer: SimpleConsumer, planned: Mapping[str, str]) -> None:
    """A fetch names topics and not their ids, before version 13 of it; and one that was made again
    has other records at the same offsets.

    Asked of the broker that gave the last records: it learnt that the old topic is gone before it
    could serve the new one.
    """
    topics = consumer.topic_metadata(planned).topics
    for topic, topic_id in sorted(planned.items()):
        found = topics.get(topic)
        if found is None or (found.refusal and found.refusal.meaning is Meaning.UNKNOWN_TOPIC):
            raise BrokerError(
                "the topic went away while it was read",
                topic=topic,
                broker=consumer.address,
                check="whether it was deleted",
            )
        _refuse_other_topic(found, topic_id)


def refuse_topic_made_again(
    consumer: SimpleConsumer, topic: str, planned: Mapping[str, str]
) -> None:
    """Where the broker says that the topic is not the one that was planned. It may also not know it
    yet, and is asked again then.
    """
    with contextlib.suppress(BrokerUnreachable):
        found = consumer.topic_metadata([topic]).topics.get(topic)
        if found is not None and topic in planned:
            _refuse_other_topic(found, planned[topic])


def _refuse_other_topic(found: TopicMetadata, planned: str) -> None:
    if found.topic_id not in (None, planned):
        what = f"the topic was deleted and made again while it was read: its id is {found.topic_id}, planned was {planned}"
        raise TopicMadeAgain(what, topic=found.topic, check="who did it")


def refuse_changed_logs(
    ranges: Sequence[OffsetRange],
    leader_epochs: Mapping[BrokerPartition, int],
    tails: Mapping[BrokerPartition, Tail],
    settings: FetchSettings,
) -> None:
    """Logs that were cut, or made again, since they were planned. Raises LogTruncated."""
    _refuse_cut_logs(ranges, leader_epochs, settings)
    _refuse_other_bytes(ranges, tails, settings)


def _refuse_cut_logs(
    ranges: Sequence[OffsetRange], planned: Mapping[BrokerPartition, int], settings: FetchSettings
) -> None:
    """A leader of another line has other records at the same offsets, and whoever is elected
    meanwhile gives them out without a word.

    Once all is read, because a log that still reaches up to a range in the epoch it was planned in
    did so all the time.
    """
    until: dict[BrokerPartition, int] = {}
    for each in ranges:
        if each.log in planned and each.size:
            until[each.log] = max(each.until_offset, until.get(each.log, 0))
    if not until:
        return
    with Cluster(
        settings.bootstrap,
        timeout_s=settings.timeout_s,
        generation=settings.generation,
        idle_connections=IDLE_CONNECTIONS,
        security=settings.security,
    ) as cluster:
        ends = cluster.epoch_ends(
            {log: planned[log] for log in until}, wait_for_leader_s=settings.deadline_s
        )
    for log, end in sorted(ends.items()):
        if end.end_offset < until[log]:
            raise Cut(log, until[log], end.end_offset).error()


def told_end(consumer: SimpleConsumer, walk: RangeProgress) -> int | None:
    """The high watermark, or the flushed end, as the broker tells it now; None where it does not."""
    with contextlib.suppress(BrokerUnreachable):
        listed = consumer.list_offsets({walk.log: LATEST}, isolation=Isolation.READ_UNCOMMITTED)[
            walk.log
        ]
        return None if listed.refusal else listed.offset
    return None


def refuse_ended(consumer: SimpleConsumer, walk: RangeProgress) -> None:
    """A log that gives nothing, and whose answers do not tell where it ends: the broker is asked.

    A flushed end never goes back but where the log was cut, so an end below the range is told at
    once. Raises RanOutBeforeUntil.
    """
    end, until = told_end(consumer, walk), walk.cursor.range.until_offset
    if end is not None and end < until:
        check = "whether the topic was deleted or made anew, or the broker lost what was not yet on its disk"
        raise RanOutBeforeUntil(
            f"the log ends at {end}, the range at {until}", check=check, **place_of(walk)
        )


def _refuse_other_bytes(
    ranges: Sequence[OffsetRange], planned: Mapping[BrokerPartition, Tail], settings: FetchSettings
) -> None:
    """The same of physical logs, which have no epochs: one that still holds the bytes by which it
    was known did so all the time.
    """
    leaders = {
        each.log: each.leader
        for each in ranges
        if each.leader and each.size and each.log in planned
    }
    if not leaders:
        return
    places = {log: (planned[log].until_offset, planned[log].size) for log in leaders}
    with Cluster(
        settings.bootstrap,
        timeout_s=settings.timeout_s,
        generation=settings.generation,
        idle_connections=IDLE_CONNECTIONS,
        security=settings.security,
    ) as cluster:
        found = read_tails(cluster, places, leaders)
    for log, tail in sorted(found.items()):
        if tail != planned[log]:
            raise Cut(
                log, tail.until_offset, tail.until_offset - 1, is_known=False, holds_others=True
            ).error()


def check_patience(walk: RangeProgress, settings: FetchSettings) -> None:
    """A log that gives nothing is asked again until the deadline, then its range is out of reach."""
    if walk.idle_for() < settings.deadline_s:
        return
    if walk.cursor.is_held_back:
        raise NotYetReadable(
            f"the log cannot be read up to {walk.cursor.range.until_offset}: a transaction is open below",
            check="who left the transaction open (kafka-transactions.sh find-hanging); once it ends, a retry goes on",
            **place_of(walk),
        )
    if walk.log.is_physical:
        until = walk.cursor.range.until_offset
        what = f"the broker gave no message for {settings.deadline_s:g} s, and nothing says that its log ends below {until}"
        raise NotYetReadable(what, check="the broker's log and its load", **place_of(walk))
    if walk.cursor.starved:
        raise RanOutBeforeUntil(
            f"the log cannot be read up to {walk.cursor.range.until_offset}: its readable end stays below",
            check="for a truncated log (unclean leader election), or a topic that was deleted or made anew",
            **place_of(walk),
        )
    if walk.cursor.silent:
        until = walk.cursor.range.until_offset
        what = f"the broker gave no records for {settings.deadline_s:g} s, though the log reaches to {until} or beyond"
        raise NotYetReadable(what, check=_silence_to_check(walk.cursor.cleanup), **place_of(walk))
    raise BrokerUnreachable(
        f"the broker gave no records for {settings.deadline_s:g} s",
        check="the broker's quotas and load",
        **place_of(walk),
    )


def _silence_to_check(cleanup: Cleanup) -> str:
    if cleanup.is_tiered:
        return "the remote storage: it may be slower than the brokers' remote.fetch.max.wait.ms"
    if cleanup.is_compacted is None:
        return f"whether the end was compacted away, {_UNTOLD}"
    return "the broker's log; if the topic was compacted before, name it in compacted_topics"
