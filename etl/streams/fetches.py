"""Which requests to leaders are in flight, and what did each return?

At most one request per leader, in a lane of its own. A leader is first requested for the starts of
partitions without a position, then for records. A completed fetch gives for each partition
records, an error, or a retry.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    EtlError,
    ExpiredOffsets,
    Meaning,
    RanOutBeforeUntil,
    TopicMissing,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import (
    EARLIEST,
    LATEST,
    ClusterMetadata,
    EntryLayout,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    ListedOffset,
    TopicMetadata,
)
from etl.model.columns import raw_columns
from etl.model.partitions import Broker, Isolation, Leader, TopicPartition, values_of
from etl.reader.cursor import RangeProgress, lose_leaders, max_response_bytes, place_of
from etl.reader.fetch import group_by_broker
from etl.reader.fetch_options import FetchOptions
from etl.records.batch_v2 import AbortedTransactions
from etl.records.decode import decode, walk_entries
from etl.records.entries import Counts, Selection
from etl.records.kernel_cache import Tally
from etl.settings.choices import MIB, StartAt
from etl.streams.background import Lane, Results

_MIN_PARTITION_BYTES = 64 << 10
_RETRY_S = 0.2
_SWEEP_S = 1.0
_MIN_PAUSE_S = 0.01
_MAX_PAUSE_S = 0.25
_TIMES = {StartAt.EARLIEST: EARLIEST, StartAt.LATEST: LATEST}


def bytes_per_partition(options: FetchOptions, count: int) -> int:
    """Return the first request size of each of `count` partitions.

    Brokers before 0.10.1 do not limit the size of a whole response.
    """
    even = max(_MIN_PARTITION_BYTES, options.fetch_max_bytes // max(count, 1))
    if options.partition_max_bytes is None:
        return min(options.fetch_max_bytes, even)
    return min(options.partition_max_bytes, even)


@dataclass(eq=False)
class StartLookup(RangeProgress):
    """A partition without a position: its leader is requested for the start or the end."""

    where: StartAt = StartAt.LATEST


@dataclass(frozen=True, slots=True)
class NoLeader:
    """Why a partition has no leader."""

    error: EtlError
    is_final: bool = False
    """True if no retry helps."""


Bounds = tuple[int, int] | EtlError
"""Log start and end of a partition; or why they are unknown."""


@dataclass(frozen=True, slots=True)
class CompletedFetch:
    """The response of a fetch for one partition."""

    progress: RangeProgress
    fetched: FetchedPartition
    broker: str
    bounds: Bounds | None = None
    """If the broker reports the offset as out of range."""


@dataclass(frozen=True, slots=True)
class FoundStart:
    """The offset at which a partition begins."""

    progress: RangeProgress
    offset: int


Completed = CompletedFetch | FoundStart


@dataclass(frozen=True, slots=True)
class _Response:
    """The response to one request of a leader."""

    fetched: FetchAnswer | None = None
    bounds: dict[tuple[str, int], Bounds] = field(default_factory=dict)
    listed: dict[TopicPartition, ListedOffset] = field(default_factory=dict)


class _Connection:
    """The connection to one leader."""

    def __init__(self, consumer: SimpleConsumer, lane: Lane) -> None:
        self.consumer = consumer
        self.lane = lane
        self.response: Future[_Response] | None = None
        """The request in flight; None without one."""
        self.in_flight: list[RangeProgress] = []
        """Its partitions."""
        self.sent_at = 0.0
        self.paused_until = 0.0
        self.empty_responses = 0

    def lose(self, failure: EtlError) -> None:
        """Give up the request in flight. Its partitions are idle since it was sent.

        An error that no retry helps against is due at once.
        """
        partitions = self.in_flight
        self.in_flight = []
        for progress in partitions:
            if not failure.retriable:
                progress.idle_since = -math.inf
            elif progress.idle_since is None:
                progress.idle_since = self.sent_at
        lose_leaders(partitions, failure)

    def note_response(self, *, has_records: bool, max_wait_ms: int) -> None:
        """Note a response, and pause longer after each empty one.

        A broker that answers empty at once (Jafka, a throttled one) is not polled in a busy loop.
        """
        now = time.monotonic()
        if has_records or now - self.sent_at > max_wait_ms / 2000:
            self.empty_responses = 0
        else:
            self.empty_responses += 1
        pause_s = 0.0
        if self.empty_responses:
            doublings = min(self.empty_responses - 1, 10)
            pause_s = min(_MIN_PAUSE_S * 2**doublings, _MAX_PAUSE_S)
        self.paused_until = now + pause_s

    def interrupt(self) -> None:
        """End the request in flight."""
        if self.response is not None and not self.response.done():
            self.consumer.interrupt()


class Fetches:
    """Fetches from the leaders of partitions. For one thread; requests run in lanes.

    requests    the lane of all requests to `cluster`
    results     notified when a request is done
    """

    def __init__(
        self,
        cluster: Cluster,
        options: FetchOptions,
        release_name: str | None,
        requests: Lane,
        results: Results,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._release_name = release_name
        self._requests = requests
        self._results = results
        self._connections: dict[Broker, _Connection] = {}
        self._leaders: Future[dict[TopicPartition, Leader | NoLeader]] | None = None
        """The lookup of leaders in flight."""
        self._leaders_found_at = 0.0
        self._swept_at = time.monotonic()

    def close(self) -> None:
        """Close all connections."""
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.interrupt()
        for connection in connections:
            connection.lane.close(connection.consumer.close)

    def begin(self, partitions: Sequence[RangeProgress]) -> None:
        """Send a request to each idle leader of these, without waiting.

        Unknown leaders are looked up; failures are kept in the partition's state. Raises NotKafka,
        SettingsError, PermissionDenied of that lookup.
        """
        leaderless = [progress for progress in partitions if progress.leader is None]
        self._find_leaders(leaderless)
        for broker, group in group_by_broker(partitions).items():
            connection = self._connections.get(broker) or self._connect(broker)
            if connection.response is None and time.monotonic() >= connection.paused_until:
                self._send(connection, group)

    def end(self, deadline: float) -> Iterator[Completed]:
        """Yield what completed requests found; if none is complete, wait for a result once.

        Waits until the deadline (`time.monotonic`) at most, or until `begin` may send more.
        """
        if not any(map(_is_complete, self._connections.values())):
            self._results.wait(min(deadline, self._next_begin_at()))
        for connection in list(self._connections.values()):
            if _is_complete(connection):
                yield from self._receive(connection)

    def wait(self, deadline: float) -> None:
        """Wait for the result of any request, and take none."""
        self._results.wait(deadline)

    def close_unused(self, partitions: Iterable[RangeProgress]) -> None:
        """Close connections to brokers that lead none of these partitions; not at each call."""
        if time.monotonic() < self._swept_at + _SWEEP_S:
            return
        self._swept_at = time.monotonic()
        used = {progress.leader.broker for progress in partitions if progress.leader}
        for broker in self._connections.keys() - used:
            connection = self._connections.pop(broker)
            connection.interrupt()
            connection.lane.close(connection.consumer.close, wait_s=0.0)

    def _next_begin_at(self) -> float:
        """Return when the first paused connection may be used, or leaders be looked up again."""
        now = time.monotonic()
        moments = [now + _RETRY_S]
        for connection in self._connections.values():
            if connection.response is None and connection.paused_until > now:
                moments.append(connection.paused_until)
        return min(moments)

    def _connect(self, broker: Broker) -> _Connection:
        options = self._options
        consumer = SimpleConsumer(
            broker.host,
            broker.port,
            request_timeout_s=options.timeout_s,
            broker_type=broker.broker_type or self._release_name,
            max_response_bytes=options.max_batch_bytes + options.fetch_max_bytes + MIB,
            security=self._cluster.security,
        )
        connection = _Connection(consumer, Lane(f"broker {broker.id}", self._results))
        self._connections[broker] = connection
        return connection

    def _send(self, connection: _Connection, partitions: Sequence[RangeProgress]) -> None:
        """Request starts if there are any to find, else records."""
        consumer = connection.consumer
        lookups = [each for each in partitions if isinstance(each, StartLookup)]
        if lookups:
            connection.in_flight = list(lookups)
            times = {each.partition: _TIMES[each.where] for each in lookups}
            epochs = {each.partition: _leader_epoch(each) for each in lookups}

            def request() -> _Response:
                listed = consumer.list_offsets(
                    times, isolation_level=self._options.isolation, epochs=epochs
                )
                return _Response(listed=listed)
        else:
            connection.in_flight = list(partitions)
            targets = []
            for each in partitions:
                cursor = each.cursor
                targets.append(
                    FetchTarget(
                        each.partition, cursor.position, cursor.max_bytes, _leader_epoch(each)
                    )
                )
            max_bytes = max_response_bytes(partitions, self._options)

            def request() -> _Response:
                return self._fetch(consumer, targets, max_bytes)

        connection.sent_at = time.monotonic()
        connection.response = connection.lane.submit(request)

    def _fetch(
        self, consumer: SimpleConsumer, targets: Sequence[FetchTarget], max_bytes: int
    ) -> _Response:
        options = self._options
        answer = consumer.multifetch(
            targets,
            isolation_level=options.isolation,
            fetch_max_wait_ms=options.max_wait_ms,
            max_bytes=max_bytes,
            min_bytes=options.min_bytes,
            keeps_arrived=True,
        )
        partitions = {
            (each.partition.topic, each.partition.partition): each.partition for each in targets
        }
        bounds: dict[tuple[str, int], Bounds] = {}
        for fetched in answer.partitions:
            refusal = fetched.refusal
            if refusal and refusal.meaning in (Meaning.OUT_OF_RANGE, Meaning.UNSAID):
                key = (fetched.topic, fetched.partition)
                bounds[key] = _bounds(consumer, partitions[key])
        return _Response(answer, bounds)

    def _receive(self, connection: _Connection) -> Iterator[Completed]:
        response = connection.response
        partitions = connection.in_flight
        connection.response = None
        if response is None:
            return
        try:
            found = response.result()
        except EtlError as failure:
            connection.lose(failure)
            return
        answer = found.fetched
        if answer is not None and answer.cut is not None:
            _request_less(partitions, answer, answer.cut)
        connection.in_flight = []
        if answer is None:
            yield from self._starts(connection, partitions, found.listed)
            return
        has_records = any(len(fetched.records) for fetched in answer.partitions)
        if has_records and answer.cut is None:
            for progress in partitions:
                progress.note_whole()
        connection.note_response(has_records=has_records, max_wait_ms=self._options.max_wait_ms)
        by_name = {(each.partition.topic, each.partition.partition): each for each in partitions}
        for fetched in answer.partitions:
            key = (fetched.topic, fetched.partition)
            yield CompletedFetch(
                by_name[key], fetched, connection.consumer.address, found.bounds.get(key)
            )

    def _starts(
        self,
        connection: _Connection,
        partitions: Sequence[RangeProgress],
        listed: dict[TopicPartition, ListedOffset],
    ) -> Iterator[FoundStart]:
        for progress in partitions:
            found = listed[progress.partition]
            if found.refusal is None and found.offset is not None:
                yield FoundStart(progress, found.offset)
                continue
            if found.refusal is None:
                _note_failure(progress, _no_bounds(progress.partition))
                continue
            failure = found.refusal.error(
                "list offsets", **progress.partition.place, broker=connection.consumer.address
            )
            _note_failure(progress, failure, is_final=not found.refusal.is_retriable)

    def _find_leaders(self, partitions: Sequence[RangeProgress]) -> None:
        lookup = self._leaders
        if lookup is None:
            if partitions and time.monotonic() >= self._leaders_found_at + _RETRY_S:
                wanted = [progress.partition for progress in partitions]
                self._leaders = self._requests.submit(lambda: self._look_up(wanted))
            return
        if not lookup.done():
            return
        self._leaders = None
        self._leaders_found_at = time.monotonic()
        found = lookup.result()
        for progress in partitions:
            leader = found.get(progress.partition)
            if isinstance(leader, NoLeader):
                _note_failure(progress, leader.error, is_final=leader.is_final)
            else:
                progress.leader = leader

    def _look_up(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Leader | NoLeader]:
        """Return the leader of each partition, or why it has none."""
        try:
            metadata = self._cluster.describe_topics_of(partitions)
        except BrokerUnreachable as failure:
            return dict.fromkeys(partitions, NoLeader(failure))
        leaders = metadata.leaders
        brokers = {leader.broker for leader in values_of(leaders, partitions).values()}
        self._cluster.reject_lost_isolation(brokers, self._options.isolation)
        found: dict[TopicPartition, Leader | NoLeader] = {}
        for partition in partitions:
            found[partition] = leaders.get(partition) or _no_leader(partition, metadata)
        return found


def _request_less(
    partitions: Collection[RangeProgress], answer: FetchAnswer, cut: EtlError
) -> None:
    """Request less of each partition: the deadline cut the response.

    The partition that was cut waits for the next lookup of leaders, so that the leader serves the
    others meanwhile. It is a failure only if there is no smaller request. If the response ended
    between partitions, those that did not arrive wait.
    """
    arrived = {(fetched.topic, fetched.partition): fetched for fetched in answer.partitions}
    has_cut_partition = any(fetched.cut is not None for fetched in answer.partitions)
    for progress in partitions:
        shrinks = progress.note_cut()
        fetched = arrived.get((progress.partition.topic, progress.partition.partition))
        is_whole = fetched is not None and fetched.cut is None
        is_behind = fetched is None and has_cut_partition
        if is_whole or is_behind:
            continue
        if shrinks:
            progress.leader = None
        else:
            progress.lose_leader(cut)


def _is_complete(connection: _Connection) -> bool:
    return connection.response is not None and connection.response.done()


def _leader_epoch(progress: RangeProgress) -> int | None:
    return progress.leader.epoch if progress.leader else None


def _note_failure(progress: RangeProgress, failure: EtlError, *, is_final: bool = False) -> None:
    """Note why a partition has no leader, or no start; due at once if no retry helps."""
    if is_final:
        progress.idle_since = -math.inf
    progress.lose_leader(failure)


def _no_leader(partition: TopicPartition, metadata: ClusterMetadata) -> NoLeader:
    topic = metadata.topics.get(partition.topic)
    if topic is not None and topic.refusal is not None:
        error = topic.refusal.error("describe the topic", topic=partition.topic)
        return NoLeader(error, is_final=not topic.refusal.is_retriable)
    missing = missing_partition(partition, topic) if topic is not None else None
    if missing is not None:
        return NoLeader(missing)
    return NoLeader(
        BrokerError(f"The partition {partition.unled}", **partition.place, action=partition.held_by)
    )


def missing_partition(partition: TopicPartition, topic: TopicMetadata) -> TopicMissing | None:
    """Return the error for a partition that an existing topic does not have; None if it has it."""
    known = {each.partition for each in topic.partitions}
    if not known or partition in known or partition.is_physical:
        return None
    return TopicMissing(
        f"The topic has {len(known)} partitions, numbered from 0, and not this one",
        **partition.place,
        action="Check the number of the partition, and that this is the right cluster",
    )


_MAX_OFFSET = 2**63 - 1
_SEEK = "Call seek, seek_to_beginning or seek_to_end to choose where to continue"


def batches_of(
    completed: CompletedFetch, isolation: Isolation
) -> tuple[list[pa.RecordBatch], EtlError | None]:
    """Return the rows of the response, and the error after them.

    Neither, if the partition is to be requested again; its leader may be unknown then. Rows are
    decoded here, since the buffer is reused.
    """
    progress = completed.progress
    refusal = completed.fetched.refusal
    try:
        if completed.bounds is not None:
            out_of_range = _out_of_range(progress, completed.bounds)
            if out_of_range:
                return [], out_of_range
        if refusal and (refusal.is_retriable or refusal.meaning is Meaning.OUT_OF_RANGE):
            failure = refusal.error("fetch", broker=completed.broker, **place_of(progress))
            progress.lose_leader(failure)
            return [], None
        previous = progress.cursor.position
        rows = progress.cursor.feed(completed.fetched)
    except BrokerUnreachable as failure:
        progress.lose_leader(failure)
        return [], None
    except EtlError as failure:
        return [], failure
    if completed.fetched.cut is not None and progress.cursor.position == previous:
        return [], None
    progress.note_progress()
    try:
        return list(rows), None
    except EtlError:
        return _decode_one_by_one(completed.fetched, isolation)


def _decode_one_by_one(
    fetched: FetchedPartition, isolation: Isolation
) -> tuple[list[pa.RecordBatch], EtlError | None]:
    """Return the rows before a damaged record batch, and its error with the offset after it.

    Decoding all record batches together returns no rows if one is damaged.
    """
    start = fetched.asked_offset
    found: list[pa.RecordBatch] = []
    aborted = AbortedTransactions(fetched.aborted)
    columns = raw_columns(physical=fetched.layout is EntryLayout.PHYSICAL)
    skips_aborted = isolation is Isolation.READ_COMMITTED
    selection = Selection(start, _MAX_OFFSET, columns, skips_aborted=skips_aborted)
    for header in walk_entries(fetched, start, _MAX_OFFSET).batches:
        try:
            found += decode(fetched, [header], selection, Tally(start), Counts(), aborted)
        except EtlError as damaged:
            where = {**damaged.where, "next_offset": header.last_offset + 1}
            action = f"{damaged.action}. Seek to next_offset to continue after it"
            return found, type(damaged)(damaged.message, action=action, **where)
    return found, None


def _out_of_range(progress: RangeProgress, bounds: Bounds) -> EtlError | None:
    """Return the error if the offset is outside of the log; None if it is inside.

    A broker that just lost or won the leadership reports such offsets as out of range.
    """
    if isinstance(bounds, EtlError):
        raise bounds
    start, end = bounds
    if progress.cursor.position < start:
        return ExpiredOffsets(
            "The offset was deleted by retention before it was read",
            **place_of(progress),
            log_start_offset=start,
            action=f"Check the topic's retention. {_SEEK}",
        )
    if progress.cursor.position > end:
        return RanOutBeforeUntil(
            f"The partition ends at {end} now, below the offset",
            **place_of(progress),
            action="Check whether the topic was deleted and recreated, or lost its end with a"
            f" broker. {_SEEK}",
        )
    return None


def _bounds(consumer: SimpleConsumer, partition: TopicPartition) -> Bounds:
    """Return the log start and the high watermark."""
    found = []
    try:
        for timestamp in (EARLIEST, LATEST):
            listed = consumer.list_offsets(
                {partition: timestamp}, isolation_level=Isolation.READ_UNCOMMITTED
            )[partition]
            if listed.refusal or listed.offset is None:
                return _no_bounds(partition)
            found.append(listed.offset)
    except EtlError as failure:
        return failure
    return found[0], found[1]


def _no_bounds(partition: TopicPartition) -> BrokerError:
    return BrokerError(
        "The broker reports no start or end of the partition",
        **partition.place,
        action="Check the broker's log",
    )
