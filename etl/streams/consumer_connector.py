"""How does a `ConsumerConnector` feed streams, each read by a thread of its own?

As the consumers of Jafka and Kafka 0.8. One fetcher thread is the member of the group: it sends
all requests, and fills the queues of the streams. Other threads pass their commits to it.

Offsets of a partition, under the connector's lock:

    fetched    end of the last response in a queue
    returned   after the last record that a stream returned: what the program commits
    done       after the record before: what auto-commit commits, since the program may not have
               finished the last one
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from etl.errors import ConsumerInUse, EtlError, NotAssigned, SettingsError, TopicMissing
from etl.ledger.topic_filters import FilterKind
from etl.model.partitions import Membership, TopicPartition
from etl.reader.cursor import RangeProgress
from etl.settings.choices import MIB, choice_of
from etl.streams.conf import (
    ConsumerConfig,
    RebalanceListener,
    Subscription,
    by_filter,
    by_names,
    naming_arguments,
)
from etl.streams.fetches import Fetches
from etl.streams.group_member import GroupSubscription, open_cluster
from etl.streams.positions import Positions
from etl.streams.records import Decoder, FetchedRecords, Record, records_of


class StreamQueue:
    """The queue of one stream; full above a number of records or bytes.

    The caller of each method holds the connector's `changed`.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._responses: deque[FetchedRecords] = deque()
        self.count = 0
        """Number of queued records; of the response that is read now all are counted."""
        self.size = 0
        """Size of these records in bytes."""
        self.partitions: set[TopicPartition] = set()
        """Partitions of the stream."""
        self.last_returned: Record | None = None
        """The last record returned to the program, until it asks for the next one."""

    @property
    def head(self) -> FetchedRecords | None:
        """The response that is read now."""
        return self._responses[0] if self._responses else None

    @property
    def has_room(self) -> bool:
        """True if more may be fetched."""
        return self.count < self._max_records and self.size < self._max_bytes

    def has_partition(self, partition: TopicPartition) -> bool:
        """True if a response of the partition is queued."""
        return any(response.partition == partition for response in self._responses)

    def put(self, fetched: FetchedRecords) -> None:
        """Append a response.

        One without records replaces the partition's earlier one without records, since they come
        as long as the stream is not read.
        """
        if not fetched.count and fetched.failure is None:
            kept: deque[FetchedRecords] = deque()
            for response in self._responses:
                is_replaced = (
                    response.partition == fetched.partition
                    and not response.count
                    and response.failure is None
                )
                if is_replaced:
                    self.size -= response.size
                else:
                    kept.append(response)
            self._responses = kept
        self._responses.append(fetched)
        self.count += fetched.count
        self.size += fetched.size

    def end(self, finished: FetchedRecords) -> None:
        """Remove a response that was read to its end."""
        if self.head is finished:
            self._responses.popleft()
            self.count -= finished.count
            self.size -= finished.size

    def put_off(self, failed: FetchedRecords) -> None:
        """Requeue an error after the other partitions' records, to be raised again."""
        if self.head is failed:
            self._responses.rotate(-1)

    def drop(self, partition: TopicPartition) -> None:
        """Remove a partition that is no longer the stream's."""
        self.partitions.discard(partition)
        kept = [response for response in self._responses if response.partition != partition]
        self._responses = deque(kept)
        self.count = sum(response.count for response in kept)
        self.size = sum(response.size for response in kept)
        if self.last_returned is not None and self.last_returned.topic_partition == partition:
            self.last_returned = None


class StreamPositions(Positions):
    """Positions of the fetcher thread, with records in the queues of streams.

    `note_returned` and `note_done` are called by the streams' threads.
    """

    def __init__(
        self,
        *args: Any,
        queue_of: Callable[[TopicPartition], StreamQueue],
        changed: threading.Condition,
    ) -> None:
        """`queue_of`: the queue of a new partition; `changed`: held during each access."""
        super().__init__(*args)
        self._queue_of = queue_of
        self._changed = changed
        self._queues: dict[TopicPartition, StreamQueue] = {}
        self._failed: set[TopicPartition] = set()
        """Partitions with an error, of which nothing more is fetched."""
        self._done: dict[TopicPartition, int] = {}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the partitions; queued records of others are dropped."""
        with self._changed:
            assigned = list(partitions)
            super().assign(assigned)
            for partition in self._queues.keys() - set(assigned):
                self._queues.pop(partition).drop(partition)
                self._done.pop(partition, None)
                self._failed.discard(partition)
            for partition in assigned:
                if partition not in self._queues:
                    self._queues[partition] = self._queue_of(partition)
                    self._queues[partition].partitions.add(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position; see `Positions.seek`."""
        with self._changed:
            super().seek(partition, offset)
            self._done[partition] = offset

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop queued records; see `Positions.stop`.

        Otherwise streams would continue while the returned records are committed.
        """
        with self._changed:
            for partition in self._queues.keys() & set(partitions):
                self._queues[partition].drop(partition)

    def _to_fetch(self) -> list[RangeProgress]:
        """Return the partitions that have room in their stream's queue."""
        found = []
        with self._changed:
            for partition in self.scheduler.assigned:
                if partition not in self._progress or partition in self._failed:
                    continue
                if self._queues[partition].has_room:
                    found.append(self._progress[partition])
        return found

    def done(self) -> dict[TopicPartition, int]:
        """Return the offsets that auto-commit commits; see the module."""
        with self._changed:
            return dict(self._done)

    def returned(self) -> dict[TopicPartition, int]:
        """Return the offsets after the last returned records; see the module."""
        with self._changed:
            return dict(self.next_offsets)

    def note_returned(self, partition: TopicPartition, offset: int) -> None:
        """Note that a stream returned the record before `offset`. The caller holds `changed`."""
        if partition in self.next_offsets:
            self.next_offsets[partition] = offset

    def note_done(self, partition: TopicPartition, offset: int) -> None:
        """Note that the program finished the record before `offset`. The caller holds `changed`."""
        if partition in self._done:
            self._done[partition] = max(self._done[partition], offset)

    def _add(self, records: FetchedRecords) -> None:
        with self._changed:
            if records.failure is not None:
                self._failed.add(records.partition)
            self._queues[records.partition].put(records)
            self._changed.notify_all()

    def _skip_to(self, partition: TopicPartition, offset: int) -> None:
        with self._changed:
            if self._queues[partition].has_partition(partition):
                self._queues[partition].put(records_of(partition, (), offset))
            else:
                self.next_offsets[partition] = offset
                self._done[partition] = offset


_SLICE_S = 0.05
_RETRY_S = 0.5
"""Pause after a temporary failure."""


class FetcherThread:
    """The fetcher thread; see the module. `until` closes its resources."""

    def __init__(
        self,
        group: GroupSubscription,
        positions: StreamPositions,
        fetches: Fetches,
        until: ExitStack,
        changed: threading.Condition,
    ) -> None:
        self.positions = positions
        self.is_ended = False
        """True once no more records come."""
        self.failure: BaseException | None = None
        """The error that ended the thread."""
        self.temporary_failure: EtlError | None = None
        """The error that prevents fetching now; the thread retries."""
        self._group = group
        self._fetches = fetches
        self._until = until
        self._changed = changed
        self._commits: list[Callable[[], None]] = []
        """Commits of other threads that are due."""
        self._is_stopping = False
        self._leave_error: BaseException | None = None
        """The error of leaving the group."""
        self._thread = threading.Thread(target=self._run, name="streams: fetches", daemon=True)
        self._thread.start()

    def commit(self) -> None:
        """Commit after the last returned records, and wait for it. Raises the commit's error."""
        if threading.current_thread() is self._thread:
            raise ConsumerInUse(
                "A listener commits the connector that called it",
                action="Use auto_commit_s, which commits when partitions are revoked",
            )
        done = threading.Event()
        errors: list[BaseException] = []

        def commit() -> None:
            try:
                if self.is_ended:
                    raise NotAssigned(
                        "The connector has ended, and nothing is committed any more",
                        action="Call commit() before shutdown()",
                    )
                offsets = self.positions.returned()
                if offsets:
                    self._group.commit(offsets)
            except BaseException as error:  # raised in the thread that called commit()
                errors.append(error)
            finally:
                done.set()

        with self._changed:
            if self.is_ended:
                commit()
            else:
                self._commits.append(commit)
        done.wait()
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Leave the group, end all streams, and wait for it. May be called again.

        Raises the error of leaving the group.
        """
        self._is_stopping = True
        if threading.current_thread() is not self._thread:
            self._thread.join()
            error = self._leave_error
            self._leave_error = None
            if error is not None:
                raise error.with_traceback(None)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._is_stopping:
                with naming_arguments():
                    self._try_step()
        except BaseException as error:  # raised by the streams
            failure = error
        try:
            self._until.close()
        except BaseException as error:
            self._leave_error = error
            failure = failure or error
        with self._changed:
            self.failure = failure
            self.is_ended = True
            commits = self._commits
            self._commits = []
            self._changed.notify_all()
        for commit in commits:
            commit()

    def _try_step(self) -> None:
        try:
            self._step()
        except EtlError as error:
            # Streams of other topics go on without one that was deleted.
            if not error.retriable and not isinstance(error, TopicMissing):
                raise
            with self._changed:
                self.temporary_failure = error
                self._changed.notify_all()
            time.sleep(_RETRY_S)
        else:
            self.temporary_failure = None

    def _step(self) -> None:
        try:
            is_settled = self._group.tend()
        finally:  # waiting threads get an answer even if the rebalance fails
            with self._changed:
                commits = self._commits
                self._commits = []
            for commit in commits:
                commit()
        deadline = time.monotonic() + _SLICE_S
        if not is_settled:
            # What arrives while partitions are released would be returned after their commit.
            self._fetches.wait(deadline)
            return
        self.positions.initialize()
        self.positions.add_fetched(self._fetches.end(deadline))
        self._fetches.close_unused(self.positions.progress)
        self._fetches.begin(self.positions.to_request())
        self.positions.reject_unreachable()


class ConsumerTimeout(Exception):
    """A stream waited for its timeout. Not an error: `next` may be called again."""


class MessageStream(Iterator[Record]):
    """Iterates over records; made by a `ConsumerConnector`, ended by its `shutdown`.

    `timeout_s`: how long `next` waits before it raises ConsumerTimeout, after which it may be
    called again; None: forever. Records of one partition come in order. Errors (a failing decoder,
    a damaged record batch, an expired offset) are raised with topic, partition and offset: after a
    decoder's error `next` continues; any other one is raised again after the other partitions'
    records. Unreachable brokers are raised once if nothing else is queued, and retried. One thread
    at a time: a second one gets ConsumerInUse.
    """

    def __init__(
        self,
        topic: str | None,
        number: int,
        queue: StreamQueue,
        changed: threading.Condition,
        timeout_s: float | None,
    ) -> None:
        self.topic = topic
        """The topic; None if the stream reads all topics of a filter."""
        self.number = number
        """Index, from 0, among the streams of the same topic or filter."""
        self.timeout_s = timeout_s
        self.queue = queue
        self._changed = changed
        self._fetcher: FetcherThread | None = None
        self._raised: EtlError | None = None
        """The temporary failure that was raised last."""
        self._lock = threading.Lock()

    def start(self, fetcher: FetcherThread) -> None:
        """Attach the thread that fetches for this stream."""
        self._fetcher = fetcher

    def __next__(self) -> Record:
        if not self._lock.acquire(blocking=False):
            raise ConsumerInUse(
                "Another thread waits for this stream's next record",
                action="Check that each thread has a stream of its own",
            )
        try:
            return self._next()
        finally:
            self._lock.release()

    def _next(self) -> Record:
        fetcher = self._fetcher
        if fetcher is None:
            raise StopIteration
        deadline = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        with self._changed:
            last = self.queue.last_returned
            if last is not None:
                fetcher.positions.note_done(last.topic_partition, last.next_offset)
                self.queue.last_returned = None
        while True:
            response = self._head(fetcher, deadline)
            try:
                record = next(response)
            except StopIteration:
                self._end(fetcher, response)
                continue
            except EtlError:
                with self._changed:
                    if self.queue.head is not response:
                        continue
                    if response.is_over and response.failure is not None:
                        self.queue.put_off(response)
                raise
            with self._changed:
                if self.queue.head is not response:
                    continue  # the partition was released meanwhile
                self.queue.last_returned = record
                fetcher.positions.note_returned(record.topic_partition, record.next_offset)
            return record

    def _head(self, fetcher: FetcherThread, deadline: float | None) -> FetchedRecords:
        """Wait for the first response of the queue.

        Raises StopIteration, ConsumerTimeout, and the error that prevents fetching.
        """
        with self._changed:
            while not fetcher.is_ended and self.queue.head is None:
                failure = fetcher.temporary_failure
                if failure is not None and failure is not self._raised:
                    self._raised = failure
                    raise failure.with_traceback(None)
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise ConsumerTimeout(f"No record came within {self.timeout_s:g} s")
                self._changed.wait(left_s)
            if fetcher.failure is not None:
                raise fetcher.failure.with_traceback(None)
            if fetcher.is_ended or self.queue.head is None:
                raise StopIteration
            return self.queue.head

    def _end(self, fetcher: FetcherThread, response: FetchedRecords) -> None:
        with self._changed:
            if self.queue.head is response:
                self.queue.end(response)
                fetcher.positions.note_returned(response.partition, response.end)
                fetcher.positions.note_done(response.partition, response.end)


class ConsumerConnector:
    """A group member that distributes its assignment to streams; ended by `shutdown`.

        conf            see `ConsumerConfig`; with a group
        queue_records   records queued per stream before fetching pauses
        queue_bytes     the same in bytes; beyond both a stream has one response per partition
        listener        called for rebalances by the fetcher thread; may not call the connector

    A program needs as many threads as streams: an unread stream keeps its partitions.
    In ZooKeeper each stream is a thread of the member and owns its partitions; with a coordinator
    the member's partitions are divided among its streams. Auto-commit (`Group.auto_commit_s`)
    covers what streams returned, except the last record of each, which its thread may still
    process.
    """

    def __init__(
        self,
        conf: ConsumerConfig,
        *,
        queue_records: int = 100_000,
        queue_bytes: int = 4 * MIB,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Raises SettingsError."""
        group = conf.checked()
        if group is None:
            raise SettingsError(
                "Streams read what a group assigns to a member, and the conf has no group",
                key="group",
                action="Pass a group: ConsumerConfig(..., group=...)",
            )
        if queue_records < 1 or queue_bytes < 1:
            raise SettingsError(
                "A stream with an empty queue would never return a record",
                action="Pass 1 or more for queue_records and queue_bytes",
            )
        self._conf = conf
        self._is_in_zookeeper = group.membership is Membership.ZOOKEEPER
        self._listener = listener
        self._queue_records = queue_records
        self._queue_bytes = queue_bytes
        self._changed = threading.Condition()
        self._streams: list[MessageStream] = []
        self._fetcher: FetcherThread | None = None
        self._is_shut_down = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def create_message_streams(
        self,
        topics: Mapping[str, int],
        *,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, list[MessageStream]]:
        """Return n streams for each topic; missing topics join once they exist.

        `key_decoder`, `value_decoder` are called with non-null bytes by the reading thread;
        `timeout_s` of each `next`: see `MessageStream`. Raises SettingsError, also if streams were
        made before; BrokerUnreachable or ZooKeeperUnreachable.
        """
        subscription = by_names(topics, physical=self._conf.is_physical)
        by_topic: dict[str, list[MessageStream]] = {}
        streams: list[MessageStream] = []
        for topic, count in topics.items():
            by_topic[topic] = [self._stream(topic, number, timeout_s) for number in range(count)]
            streams += by_topic[topic]
        self._start(subscription, streams, key_decoder, value_decoder)
        return by_topic

    def create_message_streams_by_filter(
        self,
        pattern: str,
        streams: int = 1,
        *,
        kind: FilterKind | str = FilterKind.WHITE_LIST,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        timeout_s: float | None = None,
    ) -> list[MessageStream]:
        """Return n streams over the topics of a filter, later ones included.

        The filter accepts topics that match the Java pattern as a whole (`white_list`), or all
        others (`black_list`). Raises as `create_message_streams`. Each stream has a part of each
        topic; internal topics are never included. Consumers of Jafka do not know filters: next to
        them the member registers topic names, and registers again after each change.
        """
        if type(streams) is not int or streams < 1:
            raise SettingsError(
                f"{streams!r} is not a valid number of streams", action="Pass 1 or more"
            )
        subscription = by_filter(
            pattern,
            choice_of(FilterKind, kind, "kind"),
            threads=streams,
            in_zookeeper=self._is_in_zookeeper,
        )
        made = [self._stream(None, number, timeout_s) for number in range(streams)]
        self._start(subscription, made, key_decoder, value_decoder)
        return made

    def commit(self) -> None:
        """Commit after the last record that each stream returned.

        Call it when no thread is processing a record. Raises as `Consumer.commit`, and
        SettingsError before there are streams.
        """
        if self._fetcher is None:
            raise SettingsError(
                "The connector has no streams yet",
                action="Call create_message_streams() before commit()",
            )
        self._fetcher.commit()

    def shutdown(self) -> None:
        """End all streams, and leave the group. Commits only with auto-commit.

        May be called again.
        """
        self._is_shut_down = True
        if self._fetcher is not None:
            self._fetcher.stop()

    def _stream(self, topic: str | None, number: int, timeout_s: float | None) -> MessageStream:
        queue = StreamQueue(self._queue_records, self._queue_bytes)
        return MessageStream(topic, number, queue, self._changed, timeout_s)

    def _start(
        self,
        subscription: Subscription,
        streams: Sequence[MessageStream],
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        if self._streams or self._is_shut_down:
            raise SettingsError(
                "A connector makes its streams once", action="Use another ConsumerConnector"
            )
        conf = self._conf
        with naming_arguments(), ExitStack() as until:
            resources = open_cluster(conf, until)
            options = conf.fetch_options
            fetches = Fetches(
                resources.cluster,
                options,
                conf.broker_release,
                resources.requests,
                resources.results,
            )
            until.callback(fetches.close)
            positions = StreamPositions(
                resources.cluster,
                resources.requests,
                resources.offset_store,
                conf.begins,
                options,
                key_decoder,
                value_decoder,
                queue_of=lambda partition: queue_of(partition),
                changed=self._changed,
            )
            group = GroupSubscription(resources, positions)
            queue_of = _queue_chooser(streams, group)
            until.callback(group.close)
            group.subscribe(subscription, self._listener)
            self._streams = list(streams)
            self._fetcher = FetcherThread(group, positions, fetches, until.pop_all(), self._changed)
        for stream in streams:
            stream.start(self._fetcher)


def _queue_chooser(
    streams: Sequence[MessageStream], group: GroupSubscription
) -> Callable[[TopicPartition], StreamQueue]:
    """Return the function that chooses the queue of a new partition.

    It is the queue of the thread that owns the partition; without such threads that of the stream
    with the fewest partitions of the topic.
    """

    def queue_of(partition: TopicPartition) -> StreamQueue:
        candidates = [stream for stream in streams if stream.topic in (None, partition.topic)]
        threads = group.threads
        if threads is not None:
            return candidates[threads[partition]].queue

        def partitions_of_topic(stream: MessageStream) -> int:
            return sum(other.topic == partition.topic for other in stream.queue.partitions)

        return min(candidates, key=partitions_of_topic).queue

    return queue_of
