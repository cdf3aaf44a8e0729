"""How does a task fetch its ranges, and when does it fail instead of completing them?

`Cursor.feed` moves the position by batch headers alone, so the next fetch is sent before this
response is decoded: two buffers, one being decoded, one being filled.

A request contains all partitions of the leader that the task still reads. The broker fills the
response in order, and only the first partition is sure to get a batch larger than its part
(KIP-74), so partitions that got nothing come first next time.

A leader that moved or is silent is looked up again, at most `retry` times and for `deadline_s`
without a record batch; all other retries are Spark's. The task fails if offsets are missing, the
partition changed meanwhile, or no records come.

Not here: the position and the rows of one range (etl/reader/cursor.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from etl.decide.recreated_or_truncated import Cut
from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    DataLoss,
    EtlError,
    Meaning,
    MissingOffsets,
    NotYetReadable,
    RanOutBeforeUntil,
    TopicMissing,
    TopicRecreated,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.connection import IDLE_CONNECTIONS
from etl.io.brokers.partition_ends import read_fingerprints
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import (
    EARLIEST,
    LATEST,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    TopicMetadata,
)
from etl.model.partitions import (
    Broker,
    Cleanup,
    Fingerprint,
    Isolation,
    Leader,
    TopicPartition,
    render_intervals,
    values_of,
)
from etl.model.plans import OffsetRange, RangeResult
from etl.reader.cursor import (
    MISSING_MAX,
    Cursor,
    RangeProgress,
    lose_leaders,
    max_response_bytes,
    place_of,
)
from etl.reader.fetch_options import FetchOptions
from etl.settings.choices import (
    MIB,
)

if TYPE_CHECKING:
    import pyarrow as pa


_MAX_BACKOFF_S = 5.0


def find_leaders(ranges: Sequence[RangeProgress], options: FetchOptions) -> None:
    """Look up unknown leaders, after a pause for those that failed.

    Raises the error of a range that failed too often. A Jafka partition has one broker, and its new
    address is known only to the driver: the same broker is requested again.
    """
    lost = [progress for progress in ranges if progress.leader is None]
    if not lost:
        return
    for progress in lost:
        if progress.failure is None:
            continue
        if progress.attempts > options.retry or progress.idle_for() > options.deadline_s:
            raise progress.failure
    attempts = max(progress.attempts for progress in lost)
    if attempts > 1:
        time.sleep(min(options.backoff_s * 2 ** (attempts - 2), _MAX_BACKOFF_S))
    for progress in lost:
        if progress.partition.is_physical:
            progress.leader = progress.cursor.range.leader
    lost = [progress for progress in lost if not progress.partition.is_physical]
    if not lost:
        return
    topics = {progress.partition.topic for progress in lost}
    try:
        with _open_cluster(options) as cluster:
            metadata = cluster.describe(topics)
    except BrokerUnreachable as unreachable:
        for progress in lost:
            progress.lose_leader(unreachable)
        return
    leaders = metadata.leaders
    for progress in lost:
        progress.leader = leaders.get(progress.partition)
        if progress.leader is None:
            topic = metadata.topics.get(progress.partition.topic)
            progress.lose_leader(_leaderless(progress.partition, topic))


def _open_cluster(options: FetchOptions) -> Cluster:
    return Cluster(
        options.bootstrap,
        timeout_s=options.timeout_s,
        broker_type=options.broker_type,
        idle_connections=IDLE_CONNECTIONS,
        security=options.security,
    )


def _leaderless(partition: TopicPartition, topic: TopicMetadata | None) -> EtlError:
    refusal = topic.refusal if topic else None
    if topic is None or (refusal and refusal.meaning is Meaning.UNKNOWN_TOPIC):
        return TopicMissing(
            "The topic does not exist any more",
            topic=partition.topic,
            action="Check whether it was deleted",
        )
    if refusal and refusal.meaning is Meaning.NOT_ALLOWED:
        return refusal.error("report the leader of the partition", **partition.place)
    return BrokerError(
        "The partition has no leader",
        **partition.place,
        action="Check the brokers that host its replicas",
    )


def group_by_broker(ranges: Sequence[RangeProgress]) -> dict[Broker, list[RangeProgress]]:
    """Return the ranges with a known leader, by leader."""
    groups: dict[Broker, list[RangeProgress]] = {}
    for progress in ranges:
        if progress.leader is not None:
            groups.setdefault(progress.leader.broker, []).append(progress)
    return groups


def reject_missing(cursors: Sequence[Cursor]) -> None:
    """Raise MissingOffsets once all ranges are read, so that all intervals are reported at once."""
    found = []
    for cursor in cursors:
        for from_offset, until_offset in cursor.missing:
            found.append((cursor.range.partition, from_offset, until_offset))
    if not found:
        return
    for cursor in cursors:
        _reject_many_missing(cursor)
    count = sum(until_offset - from_offset for _, from_offset, until_offset in found)
    partition, first_offset, _ = found[0]
    cleanup = next(cursor.cleanup for cursor in cursors if cursor.missing)
    raise MissingOffsets(
        f"{count:,} offsets are missing from inside the partition",
        **partition.place,
        offset=first_offset,
        missing=render_intervals(found),
        action=f"Check the broker's disks and log for a lost segment. {_cleanup_to_check(cleanup)}",
    )


def _reject_many_missing(cursor: Cursor) -> None:
    """Raise DataLoss for too many gaps: lost segments leave few, and no plan could list these."""
    if cursor.missing_count <= MISSING_MAX:
        return
    raise DataLoss(
        f"Offsets are missing from inside the partition in {cursor.missing_count:,} places, as"
        " compaction leaves them",
        **cursor.range.partition.place,
        offset=cursor.missing[0][0],
        action=f"{_cleanup_to_check(cursor.cleanup)}."
        " assume_compacted is for a topic that was compacted before",
    )


_UNKNOWN_CLEANUP = (
    "which the brokers do not report: before 0.11 they cannot, later it needs the ACL"
    " DescribeConfigs on the topic. assume_compacted sets it instead"
)


def _cleanup_to_check(cleanup: Cleanup) -> str:
    if cleanup.is_compacted is None:
        return f"Check whether the topic is compacted, {_UNKNOWN_CLEANUP}"
    return "Check the topic's cleanup.policy, which does not include compact"


def reject_other_topics(consumer: SimpleConsumer, ranges: Iterable[RangeProgress]) -> None:
    """Check that the topics of ranges are still the planned ones, by topic id.

    Before version 13 a fetch names topics, not ids. The broker that served the last records is
    requested: it learned of a deletion before it could serve the new topic. Raises TopicRecreated,
    BrokerError for a deleted topic.
    """
    planned = {}
    for progress in ranges:
        if progress.topic_id is not None:
            planned[progress.partition.topic] = progress.topic_id
    if not planned:
        return
    topics = consumer.topic_metadata(planned).topics
    for topic, topic_id in sorted(planned.items()):
        found = topics.get(topic)
        if found is None or (found.refusal and found.refusal.meaning is Meaning.UNKNOWN_TOPIC):
            raise BrokerError(
                "The topic disappeared while it was read",
                topic=topic,
                broker=consumer.address,
                action="Check whether it was deleted",
            )
        _reject_other_topic(found, topic_id)


def reject_recreated_topic(consumer: SimpleConsumer, progress: RangeProgress) -> None:
    """Raise TopicRecreated if the broker reports another topic id than planned.

    A broker that does not know the id yet passes, since the fetch is retried.
    """
    with contextlib.suppress(BrokerUnreachable):
        topic = progress.partition.topic
        found = consumer.topic_metadata([topic]).topics.get(topic)
        if found is not None and progress.topic_id is not None:
            _reject_other_topic(found, progress.topic_id)


def _reject_other_topic(found: TopicMetadata, planned: str) -> None:
    if found.topic_id not in (None, planned):
        raise TopicRecreated(
            f"The topic was deleted and recreated while it was read: its id is {found.topic_id},"
            f" planned was {planned}",
            topic=found.topic,
            action="Check who recreated it",
        )


def reject_changed_partitions(
    ranges: Sequence[OffsetRange],
    leader_epochs: Mapping[TopicPartition, int],
    fingerprints: Mapping[TopicPartition, Fingerprint],
    options: FetchOptions,
) -> None:
    """Reject partitions that were truncated or recreated since they were planned.

    Raises PartitionTruncated.
    """
    _reject_truncated_partitions(ranges, leader_epochs, options)
    _reject_other_bytes(ranges, fingerprints, options)


def _reject_truncated_partitions(
    ranges: Sequence[OffsetRange], planned: Mapping[TopicPartition, int], options: FetchOptions
) -> None:
    """Check leader epochs once all is read.

    After an unclean election the leader serves other records at the same offsets, and the fetch
    succeeds. A partition that still reaches the end of its ranges in its planned epoch did so all
    the time.
    """
    until: dict[TopicPartition, int] = {}
    for each in ranges:
        if each.partition in planned and each.size:
            until[each.partition] = max(each.until_offset, until.get(each.partition, 0))
    if not until:
        return
    with _open_cluster(options) as cluster:
        epochs = values_of(planned, until)
        ends = cluster.epoch_ends(epochs, wait_for_leader_s=options.deadline_s)
    for partition, end in sorted(ends.items()):
        if end.end_offset < until[partition]:
            raise Cut(partition, until[partition], end.end_offset).error()


def current_end(consumer: SimpleConsumer, progress: RangeProgress) -> int | None:
    """Return the broker's current high watermark, or flushed end; None if it reports none."""
    partition = progress.partition
    with contextlib.suppress(BrokerUnreachable):
        listed = consumer.list_offsets(
            {partition: LATEST}, isolation_level=Isolation.READ_UNCOMMITTED
        )[partition]
        return None if listed.refusal else listed.offset
    return None


def reject_ended(consumer: SimpleConsumer, progress: RangeProgress) -> None:
    """Raise RanOutBeforeUntil if a partition that returns nothing ends below the range.

    Jafka's responses have no end offset: a deleted partition, a truncated one and a broker in
    trouble all return nothing. A flushed end moves back only by truncation, so the error is raised
    at once.
    """
    end = current_end(consumer, progress)
    until = progress.cursor.range.until_offset
    if end is not None and end < until:
        raise RanOutBeforeUntil(
            f"The partition ends at {end}, the range at {until}",
            **place_of(progress),
            action="Check whether the topic was deleted or recreated, or the broker lost what was"
            " not yet on its disk",
        )


def _reject_other_bytes(
    ranges: Sequence[OffsetRange],
    planned: Mapping[TopicPartition, Fingerprint],
    options: FetchOptions,
) -> None:
    """Check tail fingerprints of Jafka partitions, which have no epochs."""
    leaders: dict[TopicPartition, Leader] = {}
    for each in ranges:
        if each.leader and each.size and each.partition in planned:
            leaders[each.partition] = each.leader
    if not leaders:
        return
    places = {
        partition: (planned[partition].until_offset, planned[partition].size)
        for partition in leaders
    }
    with _open_cluster(options) as cluster:
        found = read_fingerprints(cluster, places, leaders)
    for partition, tail in sorted(found.items()):
        if tail != planned[partition]:
            until = tail.until_offset
            raise Cut(partition, until, until - 1, is_known=False, holds_others=True).error()


def check_patience(progress: RangeProgress, options: FetchOptions) -> None:
    """Raise after the deadline for a partition that returns nothing.

    Raises NotYetReadable, RanOutBeforeUntil, BrokerUnreachable.
    """
    if progress.idle_for() < options.deadline_s:
        return
    cursor = progress.cursor
    place = place_of(progress)
    until = cursor.range.until_offset
    if cursor.is_held_back:
        raise NotYetReadable(
            f"The partition cannot be read up to {until}: a transaction is open below",
            **place,
            action="Check who left the transaction open (kafka-transactions.sh find-hanging)."
            " Once it ends, a retry continues",
        )
    if progress.partition.is_physical:
        raise NotYetReadable(
            f"The broker returned no message for {options.deadline_s:g} s, and did not report an"
            f" end of the partition below {until}",
            **place,
            action="Check the broker's log and its load",
        )
    if cursor.starved:
        raise RanOutBeforeUntil(
            f"The partition cannot be read up to {until}: its readable end stays below",
            **place,
            action="Check for a truncated partition (unclean leader election), or a topic that was"
            " deleted or recreated",
        )
    if cursor.silent:
        raise NotYetReadable(
            f"The broker returned no records for {options.deadline_s:g} s, though the partition"
            f" reaches to {until} or beyond",
            **place,
            action=_silence_to_check(cursor.cleanup),
        )
    raise BrokerUnreachable(
        f"The broker returned no records for {options.deadline_s:g} s",
        **place,
        action="Check the broker's quotas and load",
    )


def _silence_to_check(cleanup: Cleanup) -> str:
    if cleanup.is_tiered:
        return (
            "Check the remote storage: it may be slower than the brokers' remote.fetch.max.wait.ms"
        )
    if cleanup.is_compacted is None:
        return f"Check whether the end was compacted away, {_UNKNOWN_CLEANUP}"
    return "Check the broker's log. If the topic was compacted before, name it in assume_compacted"


_MIN_PARTITION_BYTES = MIB
_MAX_PARTITIONS_PER_REQUEST = 64
_MAX_PAUSE_S = 1.0
_MIN_PAUSE_S = 0.05


def read_ranges(
    ranges: Sequence[OffsetRange],
    options: FetchOptions,
    *,
    on_result: Callable[[int, RangeResult], None],
    columns: tuple[str, ...] | None = None,
    incarnations: Mapping[TopicPartition, int] | None = None,
    topic_ids: Mapping[str, str] | None = None,
    leader_epochs: Mapping[TopicPartition, int] | None = None,
    fingerprints: Mapping[TopicPartition, Fingerprint] | None = None,
    cleanups: Mapping[str, Cleanup] | None = None,
    on_read: Callable[[int, int, int, int], None] = lambda index, offsets, rows, size: None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `ranges` as Arrow batches.

    They are in order within a range; ranges come in any order and interleaved. Leaders are asked of
    the brokers of `options.bootstrap` and of the leaders in `ranges`.

        on_result        called with (index in `ranges`, result) once all rows of that range were
                          taken from the iterator
        on_read           called with (index in `ranges`, offsets passed, rows, bytes fetched so
                          far) each time that rows of it were taken
        columns           columns of the raw table; None: all
        incarnations      incarnation of each partition's rows; 0 where missing
        topic_ids         topic ids when the ranges were planned (KIP-516): checked at the end
        leader_epochs     leader epochs when the ends were planned (KIP-320): once all is read, the
                          partition must still reach the ranges in that epoch
        fingerprints      tail fingerprints of physical partitions when the ranges were planned:
                          checked at the end
        cleanups          cleanup policies of topics, if known: they may explain missing offsets

    Raises RanOutBeforeUntil, DataLoss, ExpiredOffsets, MissingOffsets, CorruptData, RecordTooLarge,
    MessageTooLarge, NotYetReadable, BrokerUnreachable or BrokerError (may pass: run the task
    again), NotKafka, TopicMissing, PermissionDenied, TopicRecreated, PartitionTruncated. Closing
    the iterator closes the connections.
    """
    addresses = list(options.bootstrap)
    for each in ranges:
        if each.leader is not None:
            addresses.append((each.leader.broker.host, each.leader.broker.port))
    options = replace(
        options,
        bootstrap=tuple(dict.fromkeys(addresses)),
        max_unpacked_bytes=max(options.max_unpacked_bytes, options.max_record_bytes),
    )
    even = max(options.fetch_max_bytes // max(len(ranges), 1), _MIN_PARTITION_BYTES)
    progresses = []
    for index, each in enumerate(ranges):
        cursor = Cursor(
            each,
            options,
            columns=columns,
            incarnation=(incarnations or {}).get(each.partition, 0),
            cleanup=(cleanups or {}).get(each.partition.topic, Cleanup()),
            first_bytes=min(options.fetch_max_bytes, even),
        )
        topic_id = (topic_ids or {}).get(each.partition.topic)
        progresses.append(RangeProgress(index, cursor, each.leader, topic_id))
    for progress in progresses:
        if progress.cursor.done:
            on_result(progress.index, progress.cursor.result)
    while unfinished := [progress for progress in progresses if not progress.cursor.done]:
        find_leaders(unfinished, options)
        for broker, group in group_by_broker(unfinished).items():
            yield from _read_from(broker, group, options, on_result, on_read)
    reject_changed_partitions(ranges, leader_epochs or {}, fingerprints or {}, options)
    if options.fails_on_data_loss:
        cursors = [progress.cursor for progress in progresses]
        reject_missing(cursors)


def _read_from(
    broker: Broker,
    ranges: list[RangeProgress],
    options: FetchOptions,
    on_result: Callable[[int, RangeResult], None],
    on_read: Callable[[int, int, int, int], None],
) -> Iterator[pa.RecordBatch]:
    """Read all of `ranges` from their leader, except those that lose it meanwhile."""
    with SimpleConsumer(
        broker.host,
        broker.port,
        request_timeout_s=options.timeout_s,
        broker_type=broker.broker_type or options.broker_type,
        max_response_bytes=options.max_batch_bytes + options.fetch_max_bytes + MIB,
        idle_connections=IDLE_CONNECTIONS,
        security=options.security,
    ) as consumer:
        pending = ranges
        requested = _send_fetch(consumer, pending, options)
        idle_responses = 0
        while requested:
            try:
                response = consumer.end_fetch(keeps_arrived=True)
            except BrokerUnreachable as unreachable:
                lose_leaders(pending, unreachable)
                return
            results = _feed_or_fail(consumer, response, requested, options)
            has_moved = any(rows is not None for _, rows in results)
            if response.cut is not None:
                for progress in requested:
                    progress.note_cut()
                if not has_moved:
                    lose_leaders(pending, response.cut)
                    return
            elif has_moved:
                for progress in requested:
                    progress.note_whole()
            if has_moved:
                idle_responses = 0
            else:
                idle_responses += 1
            _pause(idle_responses)
            pending = _in_turn(pending, requested, results)
            requested = _send_fetch(consumer, pending, options)
            for progress, rows in results:
                if rows is not None:
                    yield from rows
                    on_read(progress.index, *progress.cursor.read_so_far)
                    if progress.cursor.done:
                        on_result(progress.index, progress.cursor.result)
        # A range that lost its leader is read later, and its topic is checked then.
        if all(progress.cursor.done for progress in ranges):
            reject_other_topics(consumer, ranges)


def _send_fetch(
    consumer: SimpleConsumer, pending: Sequence[RangeProgress], options: FetchOptions
) -> list[RangeProgress]:
    """Send the next fetch, and return its ranges; none if they are done or the broker is lost."""
    requested: dict[TopicPartition, RangeProgress] = {}
    for progress in pending:
        # Two ranges of one partition are read one after the other: a broker rejects a request with
        # the same partition twice.
        if len(requested) < _MAX_PARTITIONS_PER_REQUEST:
            requested.setdefault(progress.partition, progress)
    if not requested:
        return []
    max_bytes = max_response_bytes(list(requested.values()), options)
    even = max_bytes // len(requested)
    targets = []
    for partition, progress in requested.items():
        leader_epoch = progress.leader.epoch if progress.leader else None
        target = FetchTarget(
            partition,
            progress.cursor.position,
            max(progress.cursor.max_bytes, even),
            leader_epoch,
            progress.topic_id,
        )
        targets.append(target)
    try:
        consumer.begin_fetch(
            targets,
            isolation_level=options.isolation,
            fetch_max_wait_ms=options.max_wait_ms,
            max_bytes=max_bytes,
        )
    except BrokerUnreachable as unreachable:
        lose_leaders(pending, unreachable)
        return []
    return list(requested.values())


_FeedResults = list[tuple[RangeProgress, "Iterator[pa.RecordBatch] | None"]]
"""Each range of a response with its rows; None: its position did not move."""


def _feed_or_fail(
    consumer: SimpleConsumer,
    response: FetchAnswer,
    requested: Sequence[RangeProgress],
    options: FetchOptions,
) -> _FeedResults:
    """As `_feed`; if offsets are gone because the topic was recreated, raise TopicRecreated."""
    try:
        return _feed(consumer, response, requested, options)
    except (DataLoss, RanOutBeforeUntil):
        reject_other_topics(consumer, requested)
        raise


def _feed(
    consumer: SimpleConsumer,
    response: FetchAnswer,
    requested: Sequence[RangeProgress],
    options: FetchOptions,
) -> _FeedResults:
    """Move every cursor by the response."""
    results: _FeedResults = []
    if not response.partitions and response.cut is None:  # throttled by a quota (KIP-219)
        for progress in requested:
            check_patience(progress, options)
            results.append((progress, None))
        return results
    by_name = {(each.partition.topic, each.partition.partition): each for each in requested}
    for fetched in response.partitions:
        progress = by_name[fetched.topic, fetched.partition]
        results.append((progress, _feed_one(consumer, response, fetched, progress, options)))
    return results


def _feed_one(
    consumer: SimpleConsumer,
    response: FetchAnswer,
    fetched: FetchedPartition,
    progress: RangeProgress,
    options: FetchOptions,
) -> Iterator[pa.RecordBatch] | None:
    refusal = fetched.refusal
    meaning = refusal.meaning if refusal else None
    end: int | None = None
    if meaning is Meaning.UNSAID:
        end = current_end(consumer, progress)
    if meaning is Meaning.OUT_OF_RANGE:
        found = _with_log_start(consumer, fetched, progress)
        if found is None:
            if progress.partition.is_physical:
                action = "Check the broker's log"
            else:
                action = "Check the broker's log: its replicas may disagree"
            progress.lose_leader(
                BrokerError(
                    "The offset is out of range, and yet inside the partition",
                    broker=consumer.address,
                    **place_of(progress),
                    action=action,
                )
            )
            return None
        if not options.fails_on_data_loss:
            return _skip_lost(progress, found.log_start_offset or 0)
        fetched = found
    elif end is not None and end < progress.cursor.position:
        # Above the high watermark Kafka 0.8 and 0.9 return code -1, later brokers return nothing.
        fetched = replace(fetched, refusal=None, high_watermark=end, last_stable_offset=None)
    elif refusal and refusal.is_retriable and progress.attempts < options.retry:
        if meaning is Meaning.ANOTHER_TOPIC:
            reject_recreated_topic(consumer, progress)
        failure = refusal.error("fetch", broker=consumer.address, **place_of(progress))
        progress.lose_leader(failure)
        return None
    previous = progress.cursor.position
    rows = progress.cursor.feed(fetched)
    if progress.cursor.position == previous:
        is_squeezed_out = not response.throttle_ms and not fetched.proves_empty
        if fetched.cut is not None or is_squeezed_out and not len(fetched.records):
            return None  # its turn is next, however long the records before it took
        try:
            if fetched.high_watermark is None and fetched.proves_empty:
                reject_ended(consumer, progress)
            check_patience(progress, options)
        except RanOutBeforeUntil:
            if options.fails_on_data_loss:
                raise
            return _skip_lost(progress, previous)
        return None
    progress.note_progress()
    return rows


def _skip_lost(progress: RangeProgress, log_start: int) -> Iterator[pa.RecordBatch]:
    """Continue after lost offsets: at the log start, or done if it is not above the position."""
    progress.note_progress()
    if log_start > progress.cursor.position:
        progress.cursor.pass_over(log_start)
    else:
        progress.cursor.pass_over(progress.cursor.range.until_offset)
    return iter(())


def _with_log_start(
    consumer: SimpleConsumer, fetched: FetchedPartition, progress: RangeProgress
) -> FetchedPartition | None:
    """Return the response with the log start, which most brokers leave out of this error.

    None: the position is inside the partition; a broker that just lost or won the leadership
    reports it as out of range.
    """
    partition = progress.partition
    bounds = []
    for timestamp in (EARLIEST, LATEST):
        listed = consumer.list_offsets(
            {partition: timestamp}, isolation_level=Isolation.READ_UNCOMMITTED
        )[partition]
        bound = None if listed.refusal else listed.offset
        bounds.append(bound)
    start, end = bounds
    if start is None or end is None or start <= progress.cursor.position <= end:
        return None
    return replace(fetched, log_start_offset=start)


def _in_turn(
    pending: Sequence[RangeProgress],
    requested: Sequence[RangeProgress],
    results: _FeedResults,
) -> list[RangeProgress]:
    """Return the unfinished ranges in the order of the next request.

    First those that got nothing, then those that were not requested, then the others.
    """
    fed = {progress.index for progress, rows in results if rows is not None}
    tried = {progress.index for progress in requested}

    def turn(progress: RangeProgress) -> int:
        if progress.index in fed:
            return 2
        if progress.index in tried:
            return 0
        return 1

    left = [each for each in pending if each.leader is not None and not each.cursor.done]
    return sorted(left, key=turn)


def _pause(idle_responses: int) -> None:
    """Pause, if the broker answers with empty responses at once instead of after max_wait_ms."""
    if idle_responses > 1:
        time.sleep(min(_MIN_PAUSE_S * 2 ** (idle_responses - 2), _MAX_PAUSE_S))
