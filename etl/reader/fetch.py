"""How does a task fetch its ranges, find leaders again, and what does it refuse to call read?

The loop one task runs: its offset ranges in, Arrow batches out, a receipt per range.

It owns which logs share a request, when the next request is sent, waiting, and finding a leader
that moved. What an answer means to a range belongs to `cursor`, the connection to
`client`. Spark's side of a task is `source`.

How the time is used: `Cursor.feed` moves the position by the headers of the record batches alone,
so the next fetch is sent before a single record of this answer is decoded, and the broker works
while we do. Hence two buffers, each as large as an answer: one is decoded, the other is received
into after that.

How a request is filled: every log of the leader that the task still reads, in turn. The broker
serves them in order until the size is used up, and only the first is sure to get a record batch
that is larger than its share (KIP-74), so logs that got nothing come first in the next request:
none starves.

Connections are those that earlier tasks of this process gave back, and are given back where every
answer has come. Retrying is bounded: a leader that moved or is silent is looked up again and read
on at the same position, at most `retry` times and for `deadline_s` without a record batch in
between. Everything else is Spark's to retry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from etl.errors import BrokerError, BrokerUnreachable, DataLoss, Meaning, RanOutBeforeUntil
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.connection import IDLE_CONNECTIONS
from etl.kafka.messages import EARLIEST, LATEST, FetchAnswer, FetchedPartition, FetchTarget
from etl.model.partitions import Broker, BrokerPartition, Cleanup, Isolation, Tail
from etl.model.plans import OffsetRange, RangeResult
from etl.model.security import OPEN, Security
from etl.reader.cursor import Cursor
from etl.reader.leaders import by_broker, find_leaders
from etl.reader.range_progress import FetchSettings, RangeProgress, lose_all, place_of
from etl.reader.refusals import (
    check_patience,
    refuse_changed_logs,
    refuse_ended,
    refuse_missing,
    refuse_other_topics,
    refuse_topic_made_again,
    told_end,
)
from etl.records.entries import MAX_UNPACKED_BYTES
from etl.settings.choices import (
    FETCH_LIMIT_BYTES,
    FETCH_MAX_BYTES,
    MAX_RECORD_BYTES,
    MIB,
    TIMEOUT_S,
)

if TYPE_CHECKING:
    import pyarrow as pa


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
    fetch_limit_bytes: int = FETCH_LIMIT_BYTES,
    columns: tuple[str, ...] | None = None,
    log_epochs: Mapping[BrokerPartition, int] | None = None,
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
    fetch_limit_bytes what it may grow to for one record batch larger than that columns           of
    the raw table, None: all log_epochs        log -> log epoch of its rows, 0 where not named retry
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
    again), NotKafka, TopicMissing, PermissionRefused, TopicMadeAgain, LogTruncated. Closing the
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
        fetch_limit_bytes,
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
                fetch_limit_bytes=fetch_limit_bytes,
                columns=columns,
                log_epoch=(log_epochs or {}).get(each.log, 0),
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
        for broker, group in by_broker(walks).items():
            yield from _read_from(broker, group, settings, on_receipt, on_read)
    refuse_changed_logs(ranges, leader_epochs or {}, tails or {}, settings)
    if fails_on_loss:
        refuse_missing(cursors)


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
        max_response_bytes=settings.fetch_limit_bytes + settings.fetch_max_bytes + MIB,
        idle_connections=IDLE_CONNECTIONS,
        security=settings.security,
    ) as consumer:
        asked, idle_answers, group = _ask(consumer, walks, settings), 0, walks
        while asked:
            try:
                answer = consumer.end_fetch()
            except BrokerUnreachable as silent:
                lose_all(walks, silent)
                return
            moved = _feed_or_tell(consumer, answer, asked, settings)
            idle_answers = 0 if any(rows is not None for _, rows in moved) else idle_answers + 1
            _pause(idle_answers)
            walks = _in_turn(walks, asked, moved)
            asked = _ask(consumer, walks, settings)
            for walk, rows in moved:
                if rows is not None:
                    yield from rows
                    on_read(walk.index, *walk.cursor.read_so_far)
                    if walk.cursor.done:
                        on_receipt(walk.index, walk.cursor.receipt)
        if settings.topic_ids and all(
            walk.cursor.done for walk in group
        ):  # who lost its leader comes by here later
            refuse_other_topics(consumer, settings.topic_ids)


def _ask(
    consumer: SimpleConsumer, walks: Sequence[RangeProgress], settings: FetchSettings
) -> list[RangeProgress]:
    """Send the next fetch for `walks`, and say whom it asks for; nobody when they are done or the
    broker is gone.
    """
    asked: dict[BrokerPartition, RangeProgress] = {}
    for walk in walks:
        # Two ranges of one log are read one after the other: a broker refuses to be asked for both
        # at once.
        if len(asked) < _MOST_LOGS_PER_REQUEST:
            asked.setdefault(walk.log, walk)
    if not asked:
        return []
    share = settings.fetch_max_bytes // len(asked)
    wanted = [
        FetchTarget(
            log,
            walk.cursor.position,
            max(walk.cursor.max_bytes, share),
            None if walk.leader is None else walk.leader.epoch,
            settings.topic_ids.get(log.topic),
        )
        for log, walk in asked.items()
    ]
    try:
        consumer.begin_fetch(
            wanted,
            isolation=settings.isolation,
            max_wait_ms=settings.max_wait_ms,
            max_bytes=max(
                settings.fetch_max_bytes, max(walk.cursor.max_bytes for walk in asked.values())
            ),
        )
    except BrokerUnreachable as silent:
        lose_all(walks, silent)
        return []
    return list(asked.values())


_Moved = list[tuple[RangeProgress, "Iterator[pa.RecordBatch] | None"]]


def _feed_or_tell(
    consumer: SimpleConsumer,
    answer: FetchAnswer,
    asked: Sequence[RangeProgress],
    settings: FetchSettings,
) -> _Moved:
    """`_feed`; where offsets are gone because the topic is another one by now, that is told
    instead.
    """
    try:
        return _feed(consumer, answer, asked, settings)
    except (DataLoss, RanOutBeforeUntil):
        if settings.topic_ids:
            refuse_other_topics(consumer, settings.topic_ids)
        raise


def _feed(
    consumer: SimpleConsumer,
    answer: FetchAnswer,
    asked: Sequence[RangeProgress],
    settings: FetchSettings,
) -> _Moved:
    """Move every cursor by the answer. Rows are None for a walk that stayed where it was."""
    if not answer.partitions:  # over quota
        for walk in asked:
            check_patience(walk, settings)
        return [(walk, None) for walk in asked]
    walks = {(walk.log.topic, walk.log.partition): walk for walk in asked}
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
            check = (
                "the broker's log"
                if walk.log.is_physical
                else "the broker's log: its replicas may disagree"
            )
            what = "the offset is out of range, and yet inside the log"
            walk.lose_leader(
                BrokerError(what, broker=consumer.address, check=check, **place_of(walk))
            )
            return None
        if not settings.fails_on_loss:
            return _passed_over(walk, found.log_start_offset or 0)
        fetched = found
    elif (
        refusal
        and refusal.meaning is Meaning.UNSAID
        and (end := told_end(consumer, walk)) is not None
        and end < walk.cursor.position
    ):
        # brokers before 0.10 say so of an offset above the high watermark, where later ones answer
        # with nothing
        fetched = replace(fetched, refusal=None, high_watermark=end, last_stable_offset=None)
    elif refusal and refusal.is_retriable and walk.attempts < settings.retry:
        if refusal.meaning is Meaning.ANOTHER_TOPIC:
            refuse_topic_made_again(consumer, walk.log.topic, settings.topic_ids)
        walk.lose_leader(refusal.error("fetch", broker=consumer.address, **place_of(walk)))
        return None
    before = walk.cursor.position
    rows = walk.cursor.feed(fetched)
    if walk.cursor.position == before:
        try:
            if fetched.high_watermark is None and fetched.proves_empty:
                refuse_ended(consumer, walk)
            check_patience(walk, settings)
        except RanOutBeforeUntil:
            if settings.fails_on_loss:
                raise
            return _passed_over(walk, before)
        return None
    walk.attempts, walk.failure, walk.idle_since = 0, None, None
    return rows


def _passed_over(walk: RangeProgress, log_start: int) -> Iterator[pa.RecordBatch]:
    """On behind what is gone: at the log start, or done where the log ends below the position."""
    walk.attempts, walk.failure, walk.idle_since = 0, None, None
    walk.cursor.pass_over(
        log_start if log_start > walk.cursor.position else walk.cursor.range.until_offset
    )
    return iter(())


def _with_log_start(
    consumer: SimpleConsumer, fetched: FetchedPartition, walk: RangeProgress
) -> FetchedPartition | None:
    """The refusal with the log start that brokers leave out of it, so that the cursor can tell on
    which side it fell.

    None: the position lies inside the log. A broker that just lost the lead, or won it, answers so.
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
    walks: Sequence[RangeProgress], asked: Sequence[RangeProgress], moved: _Moved
) -> list[RangeProgress]:
    """Who is asked next, in which order: those that got nothing, those that were not asked, those
    that got something.
    """
    fed = {walk.index for walk, rows in moved if rows is not None}
    tried = {walk.index for walk in asked}
    left = [walk for walk in walks if walk.leader is not None and not walk.cursor.done]
    return sorted(
        left, key=lambda walk: 2 if walk.index in fed else 0 if walk.index in tried else 1
    )


def _pause(idle_answers: int) -> None:
    """Brokers hold an answer back while there is nothing (max_wait_ms); one that does not is not
    asked in a busy loop.
    """
    if idle_answers > 1:
        time.sleep(min(_SHORTEST_PAUSE_S * 2 ** (idle_answers - 2), _LONGEST_PAUSE_S))
