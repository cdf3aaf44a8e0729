"""How does a task fetch its ranges, and when does it fail instead of calling them read?

`Cursor.feed` moves the position by batch headers alone, so the next fetch is sent before this
answer is decoded: two buffers, one being decoded, one being filled.

A request contains all partitions of the leader that the task still reads. The broker fills the
response in order, and only the first is sure to get a batch larger than its part (KIP-74), so
partitions that got nothing come first next time.

A leader that moved or is silent is looked up again, at most `retry` times and for `deadline_s`
without a record batch; all other retries are Spark's. The task fails if offsets are missing, the
partition changed meanwhile, or it returns nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from etl.decide.partition_identity import Cut
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
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.connection import IDLE_CONNECTIONS
from etl.io.brokers.offsets import read_tails
from etl.kafka.messages import (
    EARLIEST,
    LATEST,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    TopicMetadata,
)
from etl.model.partitions import Broker, BrokerPartition, Cleanup, Isolation, Tail, render_intervals
from etl.model.plans import OffsetRange, RangeResult
from etl.model.security import OPEN, Security
from etl.reader.cursor import (
    MISSING_MAX,
    Cursor,
    FetchSettings,
    RangeProgress,
    lose_leaders,
    place_of,
)
from etl.records.entries import MAX_UNPACKED_BYTES
from etl.settings.choices import (
    FETCH_MAX_BYTES,
    MAX_BATCH_BYTES,
    MAX_RECORD_BYTES,
    MIB,
    TIMEOUT_S,
)

if TYPE_CHECKING:
    import pyarrow as pa


_LONGEST_BACKOFF_S = 5.0


def find_leaders(walks: Sequence[RangeProgress], settings: FetchSettings) -> None:
    """Look up unknown leaders, after a pause for those that failed. Raises if a range failed too
    often. A Jafka partition has one broker, whose new address only the driver can learn: it is
    asked again.
    """
    lost = [walk for walk in walks if walk.leader is None]
    if not lost:
        return
    for walk in lost:
        if walk.failure is not None and (
            walk.attempts > settings.retry or walk.idle_for() > settings.deadline_s
        ):
            raise walk.failure
    attempts = max(walk.attempts for walk in lost)
    if attempts > 1:
        time.sleep(min(settings.backoff_s * 2 ** (attempts - 2), _LONGEST_BACKOFF_S))
    for walk in lost:
        if walk.log.is_physical:
            walk.leader = walk.cursor.range.leader
    lost = [walk for walk in lost if not walk.log.is_physical]
    if not lost:
        return
    try:
        with Cluster(
            settings.bootstrap,
            timeout_s=settings.timeout_s,
            generation=settings.generation,
            idle_connections=IDLE_CONNECTIONS,
            security=settings.security,
        ) as cluster:
            metadata = cluster.describe({walk.log.topic for walk in lost})
    except BrokerUnreachable as silent:
        for walk in lost:
            walk.lose_leader(silent)
        return
    leaders = metadata.leaders
    for walk in lost:
        walk.leader = leaders.get(walk.log)
        if walk.leader is None:
            topic = metadata.topics.get(walk.log.topic)
            walk.lose_leader(_leaderless(walk.log, topic))


def _leaderless(log: BrokerPartition, topic: TopicMetadata | None) -> EtlError:
    refusal = topic.refusal if topic else None
    if topic is None or (refusal and refusal.meaning is Meaning.UNKNOWN_TOPIC):
        return TopicMissing(
            "The brokers know no such topic any more",
            topic=log.topic,
            action="Check whether it was deleted",
        )
    if refusal and refusal.meaning is Meaning.NOT_ALLOWED:
        return refusal.error("tell who leads the log", **log.place)
    return BrokerError(
        "Nobody leads the log", **log.place, action="Check the brokers that hold its replicas"
    )


def group_by_broker(walks: Sequence[RangeProgress]) -> dict[Broker, list[RangeProgress]]:
    groups: dict[Broker, list[RangeProgress]] = {}
    for walk in walks:
        if walk.leader is not None:
            groups.setdefault(walk.leader.broker, []).append(walk)
    return groups


def reject_missing(cursors: Sequence[Cursor]) -> None:
    """Raise missing offsets once all ranges are read, so that all are reported at once."""
    found = [(cursor.range.log, *stretch) for cursor in cursors for stretch in cursor.missing]
    if not found:
        return
    for cursor in cursors:
        _reject_many_missing(cursor)
    count = sum(end - start for _, start, end in found)
    missing = render_intervals(found)
    log, first, _ = found[0]
    cleanup = next(cursor.cleanup for cursor in cursors if cursor.missing)
    action = (
        f"Check the broker's disks and log for a lost segment, and {_cleanup_to_check(cleanup)}"
    )
    message = f"{count:,} offsets are missing from inside the log"
    raise MissingOffsets(message, action=action, **log.place, offset=first, missing=missing)


def _reject_many_missing(cursor: Cursor) -> None:
    """Reject too many gaps: no lost segments look so, and no plan could name them."""
    if cursor.missing_count <= MISSING_MAX:
        return
    log, message = (
        cursor.range.log,
        f"Offsets are missing from inside the log in {cursor.missing_count:,} places, as compaction leaves them",
    )
    action = f"{_cleanup_to_check(cursor.cleanup)}; assume_compacted is for a topic that was compacted before"
    raise DataLoss(message, action=action, **log.place, offset=cursor.missing[0][0])


_UNTOLD = (
    "which the brokers do not tell: before 0.11 they cannot, later it takes the ACL DescribeConfigs on the topic; assume_compacted says it "
    "instead"
)


def _cleanup_to_check(cleanup: Cleanup) -> str:
    if cleanup.is_compacted is None:
        return f"whether the topic is compacted, {_UNTOLD}"
    return "the topic's cleanup.policy, which does not say compact"


def reject_other_topics(consumer: SimpleConsumer, planned: Mapping[str, str]) -> None:
    """Check that topics are still the planned ones: before version 13 a fetch names topics, not
    ids. Asked of the broker that served the last records, which learned of a deletion before it
    could serve the new topic.
    """
    topics = consumer.topic_metadata(planned).topics
    for topic, topic_id in sorted(planned.items()):
        found = topics.get(topic)
        if found is None or (found.refusal and found.refusal.meaning is Meaning.UNKNOWN_TOPIC):
            raise BrokerError(
                "The topic went away while it was read",
                topic=topic,
                broker=consumer.address,
                action="Check whether it was deleted",
            )
        _reject_other_topic(found, topic_id)


def reject_recreated_topic(
    consumer: SimpleConsumer, topic: str, planned: Mapping[str, str]
) -> None:
    """Raise if the broker reports another topic id than planned; a broker that does not know the id
    yet is asked again.
    """
    with contextlib.suppress(BrokerUnreachable):
        found = consumer.topic_metadata([topic]).topics.get(topic)
        if found is not None and topic in planned:
            _reject_other_topic(found, planned[topic])


def _reject_other_topic(found: TopicMetadata, planned: str) -> None:
    if found.topic_id not in (None, planned):
        message = f"The topic was deleted and made again while it was read: its id is {found.topic_id}, planned was {planned}"
        raise TopicRecreated(message, topic=found.topic, action="Check who did it")


def reject_changed_partitions(
    ranges: Sequence[OffsetRange],
    leader_epochs: Mapping[BrokerPartition, int],
    tails: Mapping[BrokerPartition, Tail],
    settings: FetchSettings,
) -> None:
    """Reject partitions that were truncated or recreated since they were planned. Raises
    PartitionTruncated.
    """
    _reject_truncated_partitions(ranges, leader_epochs, settings)
    _reject_other_bytes(ranges, tails, settings)


def _reject_truncated_partitions(
    ranges: Sequence[OffsetRange], planned: Mapping[BrokerPartition, int], settings: FetchSettings
) -> None:
    """Check leader epochs once all is read: after an unclean election the leader serves other
    records at the same offsets. A partition that still reaches the range in its planned epoch did
    so all the time.
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


def end_for_backfill(consumer: SimpleConsumer, walk: RangeProgress) -> int | None:
    """Return the broker's current high watermark, or flushed end; None if it does not report one."""
    with contextlib.suppress(BrokerUnreachable):
        listed = consumer.list_offsets({walk.log: LATEST}, isolation=Isolation.READ_UNCOMMITTED)[
            walk.log
        ]
        return None if listed.refusal else listed.offset
    return None


def reject_ended(consumer: SimpleConsumer, walk: RangeProgress) -> None:
    """Check the end of a partition that returns nothing. A flushed end moves back only by
    truncation, so an end below the range raises at once. Raises RanOutBeforeUntil.
    """
    end, until = end_for_backfill(consumer, walk), walk.cursor.range.until_offset
    if end is not None and end < until:
        action = "Check whether the topic was deleted or made anew, or the broker lost what was not yet on its disk"
        raise RanOutBeforeUntil(
            f"The log ends at {end}, the range at {until}", action=action, **place_of(walk)
        )


def _reject_other_bytes(
    ranges: Sequence[OffsetRange], planned: Mapping[BrokerPartition, Tail], settings: FetchSettings
) -> None:
    """Check tail fingerprints of Jafka partitions, which have no epochs."""
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
    """Raise after the deadline for a partition that returns nothing."""
    if walk.idle_for() < settings.deadline_s:
        return
    if walk.cursor.is_held_back:
        raise NotYetReadable(
            f"The log cannot be read up to {walk.cursor.range.until_offset}: a transaction is open below",
            action="Check who left the transaction open (kafka-transactions.sh find-hanging); once it ends, a retry continues",
            **place_of(walk),
        )
    if walk.log.is_physical:
        until = walk.cursor.range.until_offset
        message = f"The broker gave no message for {settings.deadline_s:g} s, and nothing says that its log ends below {until}"
        raise NotYetReadable(
            message, action="Check the broker's log and its load", **place_of(walk)
        )
    if walk.cursor.starved:
        raise RanOutBeforeUntil(
            f"The log cannot be read up to {walk.cursor.range.until_offset}: its readable end stays below",
            action="Check for a truncated log (unclean leader election), or a topic that was deleted or made anew",
            **place_of(walk),
        )
    if walk.cursor.silent:
        until = walk.cursor.range.until_offset
        message = f"The broker gave no records for {settings.deadline_s:g} s, though the log reaches to {until} or beyond"
        raise NotYetReadable(
            message, action=_silence_to_check(walk.cursor.cleanup), **place_of(walk)
        )
    raise BrokerUnreachable(
        f"The broker gave no records for {settings.deadline_s:g} s",
        action="Check the broker's quotas and load",
        **place_of(walk),
    )


def _silence_to_check(cleanup: Cleanup) -> str:
    if cleanup.is_tiered:
        return (
            "Check the remote storage: it may be slower than the brokers' remote.fetch.max.wait.ms"
        )
    if cleanup.is_compacted is None:
        return f"Check whether the end was compacted away, {_UNTOLD}"
    return "Check the broker's log. If the topic was compacted before, name it in assume_compacted"


_LEAST_SHARE_BYTES = MIB
_MOST_LOGS_PER_REQUEST = 64
_LONGEST_PAUSE_S = 1.0
_SHORTEST_PAUSE_S = 0.05


def read_ranges(
    ranges: Sequence[OffsetRange],
    *,
    isolation: Isolation,
    on_receipt: Callable[[int, RangeResult], None],
    bootstrap: Sequence[tuple[str, int]] = (),
    fetch_max_bytes: int = FETCH_MAX_BYTES,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    columns: tuple[str, ...] | None = None,
    incarnations: Mapping[BrokerPartition, int] | None = None,
    retry: int = 8,
    backoff_s: float = 0.25,
    deadline_s: float = 120.0,
    timeout_s: float = TIMEOUT_S,
    max_wait_ms: int = 500,
    security: Security = OPEN,
    topic_ids: Mapping[str, str] | None = None,
    leader_epochs: Mapping[BrokerPartition, int] | None = None,
    tails: Mapping[BrokerPartition, Tail] | None = None,
    cleanups: Mapping[str, Cleanup] | None = None,
    fails_on_loss: bool = True,
    max_record_bytes: int = MAX_RECORD_BYTES,
    generation: str | None = None,
    on_read: Callable[[int, int, int, int], None] = lambda index, offsets, rows, size: None,
) -> Iterator[pa.RecordBatch]:
    """The rows of `ranges` as Arrow batches: in order within a range, ranges in any order and
    interleaved.

    on_receipt        called as (index in `ranges`, receipt) once all rows of that range were taken
    from the iterator bootstrap         (host, port) of brokers that know the leaders; the leaders
    named in `ranges` are asked too fetch_max_bytes   size of one answer; two are held at a time
    max_batch_bytes what it may grow to for one record batch larger than that columns           of
    the raw table, None: all incarnations        log -> log epoch of its rows, 0 where not named retry
    how often in a row a leader is looked up again before its error is raised backoff_s
    pause before the second of these look-ups; it doubles, up to 5 s deadline_s        how long a
    log may give nothing before its range counts as out of reach on_read           called as (index
    in `ranges`, offsets passed, rows, bytes fetched so far) each time that rows of it were taken
    topic_ids         topic -> the id it had when the ranges were planned (KIP-516): once all is
    read it must still be that topic leader_epochs     log -> the epoch of the leader that told its
    end (KIP-320): once all is read, it must still reach up to the ranges cleanups          topic ->
    what is known of how it is cleaned up, which may explain missing offsets tails
    physical log -> the bytes by which it was known when the ranges were planned: they must be there
    once all is read fails_on_loss     offsets that the log does not hold any more, and once all is
    read missing ones that nothing explains, are an error;
                      else what there is is read
    max_record_bytes  a larger record is refused generation        how brokers are to be spoken to
    that are looked up, None: they are asked; security: how all are entered

    Raises RanOutBeforeUntil, DataLoss, ExpiredOffsets, MissingOffsets, CorruptData, RecordTooLarge,
    MessageTooLarge, NotYetReadable, BrokerUnreachable or BrokerError (may pass: run the task
    again), NotKafka, TopicMissing, PermissionDenied, TopicRecreated, PartitionTruncated. Closing the
    iterator closes the connections.
    """
    addresses = [
        *bootstrap,
        *(
            (each.leader.broker.host, each.leader.broker.port)
            for each in ranges
            if each.leader is not None
        ),
    ]
    settings = FetchSettings(
        isolation,
        tuple(dict.fromkeys(addresses)),
        fetch_max_bytes,
        max_batch_bytes,
        retry,
        backoff_s,
        deadline_s,
        timeout_s,
        max_wait_ms,
        topic_ids or {},
        fails_on_loss,
        generation,
        security,
    )
    share = min(fetch_max_bytes, max(fetch_max_bytes // max(len(ranges), 1), _LEAST_SHARE_BYTES))
    walks = [
        RangeProgress(
            index,
            Cursor(
                each,
                isolation=isolation,
                fetch_max_bytes=share,
                max_batch_bytes=max_batch_bytes,
                columns=columns,
                incarnation=(incarnations or {}).get(each.log, 0),
                max_record_bytes=max_record_bytes,
                max_unpacked_bytes=max(MAX_UNPACKED_BYTES, max_record_bytes),
                cleanup=(cleanups or {}).get(each.log.topic, Cleanup()),
            ),
            each.leader,
        )
        for index, each in enumerate(ranges)
    ]
    cursors = [walk.cursor for walk in walks]
    for walk in walks:
        if walk.cursor.done:
            on_receipt(walk.index, walk.cursor.receipt)
    while walks := [walk for walk in walks if not walk.cursor.done]:
        find_leaders(walks, settings)
        for broker, group in group_by_broker(walks).items():
            yield from _read_from(broker, group, settings, on_receipt, on_read)
    reject_changed_partitions(ranges, leader_epochs or {}, tails or {}, settings)
    if fails_on_loss:
        reject_missing(cursors)


def _read_from(
    broker: Broker,
    walks: list[RangeProgress],
    settings: FetchSettings,
    on_receipt: Callable[[int, RangeResult], None],
    on_read: Callable[[int, int, int, int], None],
) -> Iterator[pa.RecordBatch]:
    """Read all of `walks` from their leader, but for those that lose it on the way."""
    with SimpleConsumer(
        broker.host,
        broker.port,
        timeout_s=settings.timeout_s,
        generation=broker.generation or settings.generation,
        max_response_bytes=settings.max_batch_bytes + settings.fetch_max_bytes + MIB,
        idle_connections=IDLE_CONNECTIONS,
        security=settings.security,
    ) as consumer:
        requested, idle_answers, group = _ask(consumer, walks, settings), 0, walks
        while requested:
            try:
                answer = consumer.end_fetch()
            except BrokerUnreachable as silent:
                lose_leaders(walks, silent)
                return
            moved = _feed_or_fail(consumer, answer, requested, settings)
            idle_answers = 0 if any(rows is not None for _, rows in moved) else idle_answers + 1
            _pause(idle_answers)
            walks = _in_turn(walks, requested, moved)
            requested = _ask(consumer, walks, settings)
            for walk, rows in moved:
                if rows is not None:
                    yield from rows
                    on_read(walk.index, *walk.cursor.read_so_far)
                    if walk.cursor.done:
                        on_receipt(walk.index, walk.cursor.receipt)
        if settings.topic_ids and all(
            walk.cursor.done for walk in group
        ):  # who lost its leader comes by here later
            reject_other_topics(consumer, settings.topic_ids)


def _ask(
    consumer: SimpleConsumer, walks: Sequence[RangeProgress], settings: FetchSettings
) -> list[RangeProgress]:
    """Send the next fetch; return the ranges in it, none if they are done or the broker is gone."""
    requested: dict[BrokerPartition, RangeProgress] = {}
    for walk in walks:
        # Two ranges of one log are read one after the other: a broker refuses to be asked for both
        # at once.
        if len(requested) < _MOST_LOGS_PER_REQUEST:
            requested.setdefault(walk.log, walk)
    if not requested:
        return []
    share = settings.fetch_max_bytes // len(requested)
    wanted = [
        FetchTarget(
            log,
            walk.cursor.position,
            max(walk.cursor.max_bytes, share),
            None if walk.leader is None else walk.leader.epoch,
            settings.topic_ids.get(log.topic),
        )
        for log, walk in requested.items()
    ]
    try:
        consumer.begin_fetch(
            wanted,
            isolation=settings.isolation,
            max_wait_ms=settings.max_wait_ms,
            max_bytes=max(
                settings.fetch_max_bytes, max(walk.cursor.max_bytes for walk in requested.values())
            ),
        )
    except BrokerUnreachable as silent:
        lose_leaders(walks, silent)
        return []
    return list(requested.values())


_Moved = list[tuple[RangeProgress, "Iterator[pa.RecordBatch] | None"]]


def _feed_or_fail(
    consumer: SimpleConsumer,
    answer: FetchAnswer,
    requested: Sequence[RangeProgress],
    settings: FetchSettings,
) -> _Moved:
    """As `_feed`; if offsets are gone because the topic was recreated, that is raised instead."""
    try:
        return _feed(consumer, answer, requested, settings)
    except (DataLoss, RanOutBeforeUntil):
        if settings.topic_ids:
            reject_other_topics(consumer, settings.topic_ids)
        raise


def _feed(
    consumer: SimpleConsumer,
    answer: FetchAnswer,
    requested: Sequence[RangeProgress],
    settings: FetchSettings,
) -> _Moved:
    """Move every cursor by the answer. Rows are None for a walk that stayed where it was."""
    if not answer.partitions:  # over quota
        for walk in requested:
            check_patience(walk, settings)
        return [(walk, None) for walk in requested]
    walks = {(walk.log.topic, walk.log.partition): walk for walk in requested}
    return [
        (walk, _feed_one(consumer, fetched, walk, settings))
        for fetched in answer.partitions
        for walk in [walks[fetched.topic, fetched.partition]]
    ]


def _feed_one(
    consumer: SimpleConsumer,
    fetched: FetchedPartition,
    walk: RangeProgress,
    settings: FetchSettings,
) -> Iterator[pa.RecordBatch] | None:
    refusal = fetched.refusal
    if refusal and refusal.meaning is Meaning.OUT_OF_RANGE:
        found = _with_log_start(consumer, fetched, walk)
        if found is None:
            if walk.log.is_physical:
                action = "Check the broker's log"
            else:
                action = "Check the broker's log: its replicas may disagree"
            message = "The offset is out of range, and yet inside the log"
            walk.lose_leader(
                BrokerError(message, broker=consumer.address, action=action, **place_of(walk))
            )
            return None
        if not settings.fails_on_loss:
            return _passed_over(walk, found.log_start_offset or 0)
        fetched = found
    elif (
        refusal
        and refusal.meaning is Meaning.UNSAID
        and (end := end_for_backfill(consumer, walk)) is not None
        and end < walk.cursor.position
    ):
        # brokers before 0.10 say so of an offset above the high watermark, where later ones answer
        # with nothing
        fetched = replace(fetched, refusal=None, high_watermark=end, last_stable_offset=None)
    elif refusal and refusal.is_retriable and walk.attempts < settings.retry:
        if refusal.meaning is Meaning.ANOTHER_TOPIC:
            reject_recreated_topic(consumer, walk.log.topic, settings.topic_ids)
        walk.lose_leader(refusal.error("fetch", broker=consumer.address, **place_of(walk)))
        return None
    before = walk.cursor.position
    rows = walk.cursor.feed(fetched)
    if walk.cursor.position == before:
        try:
            if fetched.high_watermark is None and fetched.proves_empty:
                reject_ended(consumer, walk)
            check_patience(walk, settings)
        except RanOutBeforeUntil:
            if settings.fails_on_loss:
                raise
            return _passed_over(walk, before)
        return None
    walk.attempts, walk.failure, walk.idle_since = 0, None, None
    return rows


def _passed_over(walk: RangeProgress, log_start: int) -> Iterator[pa.RecordBatch]:
    """Continue after lost offsets: at the log start, or done if the log ends below the position."""
    walk.attempts, walk.failure, walk.idle_since = 0, None, None
    walk.cursor.pass_over(
        log_start if log_start > walk.cursor.position else walk.cursor.range.until_offset
    )
    return iter(())


def _with_log_start(
    consumer: SimpleConsumer, fetched: FetchedPartition, walk: RangeProgress
) -> FetchedPartition | None:
    """Return the error with the log start, which brokers leave out, so that the cursor knows the
    side. None: the position lies inside the log; a broker that just lost or won the leadership
    answers so.
    """
    bounds = [
        consumer.list_offsets({walk.log: when}, isolation=Isolation.READ_UNCOMMITTED)[walk.log]
        for when in (EARLIEST, LATEST)
    ]
    start, end = (None if bound.refusal else bound.offset for bound in bounds)
    if start is None or end is None or start <= walk.cursor.position <= end:
        return None
    return replace(fetched, log_start_offset=start)


def _in_turn(
    walks: Sequence[RangeProgress], requested: Sequence[RangeProgress], moved: _Moved
) -> list[RangeProgress]:
    """Return the order of the next request: ranges that got nothing, ranges not requested, then the
    others.
    """
    fed = {walk.index for walk, rows in moved if rows is not None}
    tried = {walk.index for walk in requested}
    left = [walk for walk in walks if walk.leader is not None and not walk.cursor.done]
    return sorted(
        left, key=lambda walk: 2 if walk.index in fed else 0 if walk.index in tried else 1
    )


def _pause(idle_answers: int) -> None:
    """Pause, if the broker answered an empty response at once instead of waiting max_wait_ms."""
    if idle_answers > 1:
        time.sleep(min(_SHORTEST_PAUSE_S * 2 ** (idle_answers - 2), _LONGEST_PAUSE_S))
