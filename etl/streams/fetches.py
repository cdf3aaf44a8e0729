"""Which fetches are in flight, and what did each return?

At most one fetch per leader, sent before any response is awaited. A completed fetch gives for each
partition records, an error, or a retry.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    EtlError,
    ExpiredOffsets,
    Meaning,
    RanOutBeforeUntil,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import EARLIEST, LATEST, EntryLayout, FetchedPartition, FetchTarget
from etl.model.columns import raw_columns
from etl.model.partitions import (
    Broker,
    Isolation,
    values_of,
)
from etl.reader.cursor import RangeProgress, lose_leaders, max_response_bytes, place_of
from etl.reader.fetch import group_by_broker
from etl.reader.fetch_options import FetchOptions
from etl.records.batch_v2 import AbortedTransactions
from etl.records.decode import decode, walk_entries
from etl.records.entries import Counts, Selection
from etl.records.kernel_cache import Tally
from etl.settings.choices import MIB

_MIN_PARTITION_BYTES = 64 << 10
_RETRY_S = 0.2
_SLICE_S = 0.01
_MIN_PAUSE_S = 0.01
_MAX_PAUSE_S = 0.25


def bytes_per_partition(options: FetchOptions, count: int) -> int:
    """Return the first request size of each of `count` partitions.

    Brokers before 0.10.1 do not limit the size of a whole response.
    """
    even = max(_MIN_PARTITION_BYTES, options.fetch_max_bytes // max(count, 1))
    if options.partition_max_bytes is None:
        return min(options.fetch_max_bytes, even)
    return min(options.partition_max_bytes, even)


class _Connection:
    """The connection to one leader."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self.consumer = consumer
        self.in_flight: list[RangeProgress] = []
        """Partitions of the fetch in flight; empty without one."""
        self.sent_at = 0.0
        self.paused_until = 0.0
        self.empty_responses = 0

    def lose(self, failure: EtlError) -> None:
        """Give up the fetch in flight. Its partitions are idle since it was sent."""
        partitions = self.in_flight
        self.in_flight = []
        for progress in partitions:
            if progress.idle_since is None:
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


CompletedFetch = tuple[RangeProgress, FetchedPartition, SimpleConsumer]


class Fetches:
    """Fetches from the leaders of partitions. For one thread."""

    def __init__(self, cluster: Cluster, options: FetchOptions, release_name: str | None) -> None:
        self._cluster = cluster
        self._options = options
        self._release_name = release_name
        self._connections: dict[Broker, _Connection] = {}
        self._leaders_found_at = 0.0

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.consumer.close()
        self._connections.clear()

    def begin(self, partitions: Sequence[RangeProgress]) -> None:
        """Send a fetch to each idle leader of these. Waits for metadata only.

        Unknown leaders are looked up; failures are kept in the partition's state. Raises NotKafka,
        SettingsError, PermissionDenied.
        """
        leaderless = [progress for progress in partitions if progress.leader is None]
        self._find_leaders(leaderless)
        for broker, group in group_by_broker(partitions).items():
            connection = self._connections.get(broker) or self._connect(broker)
            if not connection.in_flight and time.monotonic() >= connection.paused_until:
                self._send(connection, group)

    def end(self, deadline: float) -> Iterator[CompletedFetch]:
        """Yield the fetches that are complete; if none is, wait for the first one.

        Waits until the deadline (`time.monotonic`) at most.
        """
        while True:
            waiting = []
            for connection in self._connections.values():
                if connection.in_flight and not self._is_given_up(connection):
                    waiting.append(connection)
            answered = []
            for connection in waiting:
                if connection.consumer.is_answered():
                    answered.append(connection)
            left_s = deadline - time.monotonic()
            if answered:
                for connection in answered:
                    yield from self._receive(connection)
                return
            if left_s <= 0:
                return
            if len(waiting) == 1:
                if waiting[0].consumer.is_answered(min(left_s, _RETRY_S)):
                    continue
                return  # the caller may be able to send other fetches now
            time.sleep(min(left_s, _SLICE_S))
            if not waiting:
                return

    def _is_given_up(self, connection: _Connection) -> bool:
        """Give up a fetch that is not answered within a request's timeout; return True if so.

        Its partitions are requested anew.
        """
        options = self._options
        deadline = connection.sent_at + options.timeout_s + options.max_wait_ms / 1000
        if time.monotonic() < deadline or connection.consumer.is_answered():
            return False
        connection.consumer.close()
        connection.lose(
            BrokerUnreachable(
                f"The broker did not answer a fetch within {options.timeout_s:g} s",
                broker=connection.consumer.address,
                action="Check that the broker runs, and the network between it and this process",
            )
        )
        return True

    def _connect(self, broker: Broker) -> _Connection:
        options = self._options
        consumer = SimpleConsumer(
            broker.host,
            broker.port,
            request_timeout_s=options.timeout_s,
            generation=broker.generation or self._release_name,
            max_response_bytes=options.max_batch_bytes + options.fetch_max_bytes + MIB,
            security=self._cluster.security,
        )
        connection = _Connection(consumer)
        self._connections[broker] = connection
        return connection

    def _send(self, connection: _Connection, partitions: Sequence[RangeProgress]) -> None:
        options = self._options
        targets = []
        for progress in partitions:
            cursor = progress.cursor
            leader_epoch = progress.leader.epoch if progress.leader else None
            targets.append(
                FetchTarget(progress.partition, cursor.position, cursor.max_bytes, leader_epoch)
            )
        try:
            connection.consumer.begin_fetch(
                targets,
                isolation_level=options.isolation,
                fetch_max_wait_ms=options.max_wait_ms,
                max_bytes=max_response_bytes(partitions, options),
            )
        except BrokerUnreachable as failure:
            lose_leaders(partitions, failure)
            return
        connection.in_flight = list(partitions)
        connection.sent_at = time.monotonic()

    def _receive(self, connection: _Connection) -> Iterator[CompletedFetch]:
        partitions = connection.in_flight
        try:
            response = connection.consumer.end_fetch(keeps_arrived=True)
            if response.cut is not None:
                for progress in partitions:
                    progress.note_cut()
                if not response.partitions:
                    raise response.cut
        except BrokerUnreachable as failure:
            connection.lose(failure)
            return
        finally:
            connection.in_flight = []
        has_records = any(len(fetched.records) for fetched in response.partitions)
        connection.note_response(has_records=has_records, max_wait_ms=self._options.max_wait_ms)
        by_name = {(each.partition.topic, each.partition.partition): each for each in partitions}
        for fetched in response.partitions:
            yield by_name[fetched.topic, fetched.partition], fetched, connection.consumer

    def _find_leaders(self, partitions: Sequence[RangeProgress]) -> None:
        if not partitions or time.monotonic() < self._leaders_found_at + _RETRY_S:
            return
        failure: EtlError | None = None
        topic_partitions = [progress.partition for progress in partitions]
        try:
            leaders = self._cluster.describe_topics_of(topic_partitions).leaders
        except BrokerUnreachable as unreachable:
            leaders = {}
            failure = unreachable
        brokers = {leader.broker for leader in values_of(leaders, topic_partitions).values()}
        self._cluster.reject_lost_isolation(brokers, self._options.isolation)
        for progress in partitions:
            progress.leader = leaders.get(progress.partition)
            if progress.leader is None:
                progress.lose_leader(failure or _leaderless(progress))
        self._leaders_found_at = time.monotonic()


def _leaderless(progress: RangeProgress) -> BrokerError:
    partition = progress.partition
    return BrokerError(
        f"The partition {partition.unled}", **partition.place, action=partition.held_by
    )


_MAX_OFFSET = 2**63 - 1
_SEEK = "Call seek, seek_to_beginning or seek_to_end to choose where to continue"


def batches_of(
    progress: RangeProgress,
    fetched: FetchedPartition,
    consumer: SimpleConsumer,
    isolation: Isolation,
) -> tuple[list[pa.RecordBatch], EtlError | None]:
    """Return the rows of the response, and the error after them.

    Neither, if the partition is to be requested again; its leader may be unknown then. Rows are
    decoded here, since the buffer is reused.
    """
    refusal = fetched.refusal
    try:
        if refusal and refusal.meaning in (Meaning.OUT_OF_RANGE, Meaning.UNSAID):
            out_of_range = _out_of_range(progress, consumer)
            if out_of_range:
                return [], out_of_range
        if refusal and (refusal.is_retriable or refusal.meaning is Meaning.OUT_OF_RANGE):
            failure = refusal.error("fetch", broker=consumer.address, **place_of(progress))
            progress.lose_leader(failure)
            return [], None
        previous = progress.cursor.position
        rows = progress.cursor.feed(fetched)
    except BrokerUnreachable as failure:
        progress.lose_leader(failure)
        return [], None
    except EtlError as failure:
        return [], failure
    if fetched.cut is not None and progress.cursor.position == previous:
        progress.lose_leader(fetched.cut)
        return [], None
    progress.note_progress()
    try:
        return list(rows), None
    except EtlError:
        return _decode_one_by_one(fetched, isolation)


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


def _out_of_range(progress: RangeProgress, consumer: SimpleConsumer) -> EtlError | None:
    """Return the error if the offset is outside of the log; None if it is inside.

    A broker that just lost or won the leadership reports such offsets as out of range.
    """
    start = _bound(progress, consumer, EARLIEST)
    end = _bound(progress, consumer, LATEST)
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


def _bound(progress: RangeProgress, consumer: SimpleConsumer, timestamp: int) -> int:
    partition = progress.partition
    listed = consumer.list_offsets(
        {partition: timestamp}, isolation_level=Isolation.READ_UNCOMMITTED
    )[partition]
    if listed.refusal or listed.offset is None:
        raise BrokerError(
            "The broker reports no start or end of the partition",
            **partition.place,
            action="Check the broker's log",
        )
    return listed.offset
