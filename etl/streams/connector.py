"""How does a `ConsumerConnector` feed streams, each read by a thread of its own?

As the consumers of Jafka and Kafka 0.8. One fetcher thread is the member of the group; it asks
brokers and group, and fills the queues of the streams. Other threads hand their wishes to it.

Offsets of a partition, under the connector's lock:

    fetched    end of the last response in a queue
    handed     after the last record that a stream returned: what the program commits
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

from etl.errors import ConsumerInUse, EtlError, NotAssigned, SettingsError
from etl.ledger.topic_filters import FilterKind
from etl.model.partitions import BrokerPartition
from etl.reader.cursor import RangeProgress
from etl.settings.choices import MIB
from etl.streams.conf import ConsumerConfig, RebalanceListener, Subscription, by_filter, by_names
from etl.streams.fetches import Fetches
from etl.streams.group_member import Subscribed, open_cluster
from etl.streams.positions import Positions
from etl.streams.records import Answer, Decoder, Record, records_of


class StreamQueue:
    """The queue of one stream; full above a number of records or bytes."""

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self._most_records, self._most_bytes = most_records, most_bytes
        self._answers: deque[Answer] = deque()
        self.logs: set[BrokerPartition] = set()
        """Partitions of the stream."""
        self.handed: Record | None = None
        """Offset after the last record returned to its thread, per partition."""

    @property
    def head(self) -> Answer | None:
        """The answer that the stream is in."""
        return self._answers[0] if self._answers else None

    @property
    def count(self) -> int:
        """Records, those of the answer that the stream is in all counted."""
        return sum(answer.count for answer in self._answers)

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(answer.size for answer in self._answers)

    @property
    def has_room(self) -> bool:
        """True if more may be fetched."""
        return self.count < self._most_records and self.size < self._most_bytes

    def holds(self, log: BrokerPartition) -> bool:
        """True if it has something of the partition."""
        return any(answer.log == log for answer in self._answers)

    def put(self, arrived: Answer) -> None:
        """Append. A response without records replaces the partition's earlier one of that kind,
        since they arrive as long as nobody reads the stream.
        """
        if not arrived.count and arrived.failure is None:
            self._answers = deque(
                one
                for one in self._answers
                if one.log != arrived.log or one.count or one.failure is not None
            )
        self._answers.append(arrived)

    def end(self, over: Answer) -> None:
        """The stream is through with it."""
        if self.head is over:
            self._answers.popleft()

    def put_off(self, broken: Answer) -> None:
        """Requeue an error after the other partitions' records, to be raised again."""
        if self.head is broken:
            self._answers.rotate(-1)

    def drop(self, log: BrokerPartition) -> None:
        """The log is not the stream's any more."""
        self.logs.discard(log)
        self._answers = deque(answer for answer in self._answers if answer.log != log)
        if self.handed is not None and self.handed.log == log:
            self.handed = None


class StreamPositions(Positions):
    """See `Positions`, which belong to the fetcher thread; what concerns a stream may be called by
    its thread.
    """

    def __init__(
        self,
        *given: Any,
        queue_of: Callable[[BrokerPartition], StreamQueue],
        changed: threading.Condition,
    ) -> None:
        """`queue_of`: the stream of a new partition; `changed`: held during each access."""
        super().__init__(*given)
        self._queue_of, self._changed = queue_of, changed
        self._queues: dict[BrokerPartition, StreamQueue] = {}
        self._broken: set[BrokerPartition] = set()
        """Logs of which nothing follows."""
        self._done: dict[BrokerPartition, int] = {}

    def assign(self, logs: Iterable[BrokerPartition]) -> None:
        """These and no others: what came of others is dropped, wherever it is."""
        with self._changed:
            wanted = list(logs)
            super().assign(wanted)
            for log in self._queues.keys() - set(wanted):
                self._queues.pop(log).drop(log)
                self._done.pop(log, None)
                self._broken.discard(log)
            for log in wanted:
                if log not in self._queues:
                    self._queues[log] = self._queue_of(log)
                    self._queues[log].logs.add(log)

    def seek(self, log: BrokerPartition, offset: int) -> None:
        """Begin there; see `Positions.seek`."""
        with self._changed:
            super().seek(log, offset)
            self._done[log] = offset

    def stop(self, logs: Collection[BrokerPartition]) -> None:
        """See `Positions.stop`: queued records are dropped, else streams would continue while
        returned records are committed.
        """
        with self._changed:
            for log in self._queues.keys() & set(logs):
                self._queues[log].drop(log)

    def to_ask(self) -> list[RangeProgress]:
        """Return the partitions whose streams have room."""
        with self._changed:
            return [
                self._walks[log]
                for log in self.rotation.assigned
                if log in self._walks and log not in self._broken and self._queues[log].has_room
            ]

    def done(self) -> dict[BrokerPartition, int]:
        """See the module."""
        with self._changed:
            return dict(self._done)

    def handed(self) -> dict[BrokerPartition, int]:
        """See the module."""
        with self._changed:
            return dict(self.known)

    def note_delivered(self, log: BrokerPartition, offset: int) -> None:
        """A record was handed out that ends there; under `changed`, as all that is the streams'."""
        if log in self.known:
            self.known[log] = offset

    def note_done(self, log: BrokerPartition, offset: int) -> None:
        """Note that the program returned for more after that offset."""
        if log in self._done:
            self._done[log] = max(self._done[log], offset)

    def _keep(self, arrived: Answer) -> None:
        with self._changed:
            if arrived.failure is not None:
                self._broken.add(arrived.log)
            self._queues[arrived.log].put(arrived)
            self._changed.notify_all()

    def _pass(self, log: BrokerPartition, offset: int) -> None:
        with self._changed:
            if self._queues[log].holds(log):
                self._queues[log].put(records_of(log, (), offset))
            else:
                self.known[log] = self._done[log] = offset


_SLICE_S = 0.05
_REST_S = 0.5
"""Pause after a temporary failure."""


class Pump:
    """The fetcher thread; see the module. Its resources end with `until`."""

    def __init__(
        self,
        group: Subscribed,
        positions: StreamPositions,
        fetches: Fetches,
        until: ExitStack,
        changed: threading.Condition,
    ) -> None:
        self.positions = positions
        self.is_ended = False
        """True after the last record."""
        self.failure: BaseException | None = None
        """The error that ended it."""
        self.trouble: EtlError | None = None
        """The error that prevents fetching now; it retries. None: none."""
        self._group, self._fetches, self._until, self._changed = group, fetches, until, changed
        self._wanted: list[Callable[[], None]] = []
        self._is_stopping = False
        self._left_with: BaseException | None = None
        """The error of leaving the group."""
        self._thread = threading.Thread(target=self._run, name="streams: fetches", daemon=True)
        self._thread.start()

    def commit(self) -> None:
        """Store where the streams are; returns once that is done. Raises what it raises."""
        if threading.current_thread() is self._thread:
            raise ConsumerInUse(
                "A listener commits the connector that called it",
                action="Use auto_commit_s, which commits at let-go",
            )
        done, raised = threading.Event(), list[BaseException]()

        def commit() -> None:
            try:
                if self.is_ended:
                    raise NotAssigned(
                        "The connector has ended, and nothing is committed any more",
                        action="Call commit() before shutdown()",
                    )
                if handed := self.positions.handed():
                    self._group.commit(handed)
            except BaseException as error:  # raised where it was asked for
                raised.append(error)
            finally:
                done.set()

        with self._changed:
            if self.is_ended:
                commit()
            else:
                self._wanted.append(commit)
        done.wait()
        if raised:
            raise raised[0]

    def stop(self) -> None:
        """Leave, and end all streams; returns once that is done, and raises what leaving failed
        with. May be called again.
        """
        self._is_stopping = True
        if threading.current_thread() is not self._thread:
            self._thread.join()
            failure, self._left_with = self._left_with, None
            if failure is not None:
                raise failure.with_traceback(None)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._is_stopping:
                self._try_step()
        except BaseException as error:  # raised where a stream is asked for its next record
            failure = error
        try:
            self._until.close()
        except BaseException as error:
            self._left_with, failure = error, failure or error
        with self._changed:
            self.failure, self.is_ended = failure, True
            wanted, self._wanted = self._wanted, []
            self._changed.notify_all()
        for do in wanted:
            do()

    def _try_step(self) -> None:
        try:
            self._step()
        except EtlError as error:
            if not error.retriable:
                raise
            with self._changed:
                self.trouble = error
                self._changed.notify_all()
            time.sleep(_REST_S)
        else:
            self.trouble = None

    def _step(self) -> None:
        try:
            self._group.tend()
        finally:  # who waits for a commit is told, also where the group does not settle
            with self._changed:
                wanted, self._wanted = self._wanted, []
            for do in wanted:
                do()
        self.positions.place()
        self.positions.take_answers(self._fetches.end(time.monotonic() + _SLICE_S))
        self._fetches.begin(self.positions.to_ask())
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
        self.topic, self.number = topic, number
        """The topic, where it was made for one; its place among those made with it."""
        self.timeout_s = timeout_s
        self.queue, self._changed = queue, changed
        self._pump: Pump | None = None
        self._told: EtlError | None = None
        self._in_use = threading.Lock()

    def start(self, pump: Pump) -> None:
        """From now on this fetches for it."""
        self._pump = pump

    def __next__(self) -> Record:
        if not self._in_use.acquire(blocking=False):
            raise ConsumerInUse(
                "Another thread waits for this stream's next record",
                action="Check that each thread has a stream of its own",
            )
        try:
            return self._next()
        finally:
            self._in_use.release()

    def _next(self) -> Record:
        pump = self._pump
        if pump is None:
            raise StopIteration
        deadline = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        with self._changed:
            if self.queue.handed is not None:
                pump.positions.note_done(self.queue.handed.log, self.queue.handed.next_offset)
                self.queue.handed = None
        while True:
            answer = self._head(pump, deadline)
            try:
                record = next(answer)
            except StopIteration:
                self._end(pump, answer)
                continue
            except EtlError:
                with self._changed:
                    if self.queue.head is not answer:
                        continue
                    if answer.is_over and answer.failure is not None:
                        self.queue.put_off(answer)
                raise
            with self._changed:
                if self.queue.head is not answer:
                    continue  # taken from us in between
                self.queue.handed = record
                pump.positions.note_delivered(record.log, record.next_offset)
            return record

    def _head(self, pump: Pump, deadline: float | None) -> Answer:
        """The answer that is next, once there is one. Raises StopIteration, ConsumerTimeout, and what
        keeps the connector from fetching.
        """
        with self._changed:
            while not pump.is_ended and self.queue.head is None:
                if pump.trouble is not None and pump.trouble is not self._told:
                    self._told = pump.trouble
                    raise pump.trouble.with_traceback(None)
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise ConsumerTimeout(f"nothing came within {self.timeout_s:g} s")
                self._changed.wait(left_s)
            if pump.failure is not None:
                raise pump.failure.with_traceback(None)
            if pump.is_ended or self.queue.head is None:
                raise StopIteration
            return self.queue.head

    def _end(self, pump: Pump, answer: Answer) -> None:
        with self._changed:
            if self.queue.head is answer:
                self.queue.end(answer)
                pump.positions.note_delivered(answer.log, answer.end)
                pump.positions.note_done(answer.log, answer.end)


class ConsumerConnector:
    """A group member that distributes its assignment to streams; ended by `shutdown`.

        conf            see `ConsumerConfig`; with a group
        queue_records   records queued per stream before fetching pauses
        queue_bytes     the same in bytes; beyond both a stream holds one response per partition
        listener        hears of rebalances in the fetcher thread; may not call the connector

    A program needs as many threads as streams: an unread stream holds its partitions all the same.
    In ZooKeeper each stream is a thread of the member and owns its partitions; with a coordinator
    the member's partitions are divided among its streams. Auto-commit (`Group.auto_commit_s`)
    covers what streams returned, but for the last record of each, which its thread may still
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
        if conf.checked() is None:
            raise SettingsError(
                "Streams are what a group gives a member, and there is no group",
                key="group",
                action="Conf(..., group=...)",
            )
        if queue_records < 1 or queue_bytes < 1:
            raise SettingsError(
                "A stream without a queue would never give anything",
                action="Check queue_records and queue_bytes: 1 or more",
            )
        self._conf, self._listener = conf, listener
        self._queue_records, self._queue_bytes = queue_records, queue_bytes
        self._changed = threading.Condition()
        self._streams: list[MessageStream] = []
        self._pump: Pump | None = None
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
        wanted = by_names(topics)
        made = {
            topic: [self._stream(topic, number, timeout_s) for number in range(count)]
            for topic, count in topics.items()
        }
        self._start(
            wanted,
            [stream for some in made.values() for stream in some],
            key_decoder,
            value_decoder,
        )
        return made

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
        """Return n streams over all topics that match the Java pattern as a whole (`white_list`),
        or over all others (`black_list`), later ones included.

        Raises as `create_message_streams`. Each stream has a part of each topic; internal topics
        are never included. Consumers of Jafka know no filters: beside them the member registers
        topic names, again after each change.
        """
        if type(streams) is not int or streams < 1:
            raise SettingsError(f"{streams!r} is no number of streams", action="Pass 1 or more")
        wanted = by_filter(pattern, FilterKind(kind), threads=streams)
        made = [self._stream(None, number, timeout_s) for number in range(streams)]
        self._start(wanted, made, key_decoder, value_decoder)
        return made

    def commit(self) -> None:
        """Commit after the last record that each stream returned; call when no thread is processing
        a record. Raises as `Consumer.commit`, and SettingsError before there are streams.
        """
        if self._pump is None:
            raise SettingsError(
                "There are no streams yet",
                action="Call create_message_streams, before anything is committed",
            )
        self._pump.commit()

    def shutdown(self) -> None:
        """End all streams, and leave the group. Commits nothing but where that is done by itself.
        May be called again.
        """
        self._is_shut_down = True
        if self._pump is not None:
            self._pump.stop()

    def _stream(self, topic: str | None, number: int, timeout_s: float | None) -> MessageStream:
        return MessageStream(
            topic,
            number,
            StreamQueue(self._queue_records, self._queue_bytes),
            self._changed,
            timeout_s,
        )

    def _start(
        self,
        wanted: Subscription,
        streams: Sequence[MessageStream],
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        if self._streams or self._is_shut_down:
            raise SettingsError(
                "A connector makes its streams once", action="Use another ConsumerConnector"
            )
        conf = self._conf
        with ExitStack() as until:
            opened, sizes = open_cluster(conf, until), conf.sizes
            fetches = Fetches(opened.cluster, sizes, conf.generation)
            until.callback(fetches.close)
            positions = StreamPositions(
                opened.cluster,
                opened.kept,
                conf.begins,
                sizes,
                key_decoder,
                value_decoder,
                queue_of=lambda log: queue_of(log),
                changed=self._changed,
            )
            group = Subscribed(opened, positions)
            queue_of = _sharing(streams, group)
            until.callback(group.unsubscribe)
            group.subscribe(wanted, self._listener)
            self._streams = list(streams)
            self._pump = Pump(group, positions, fetches, until.pop_all(), self._changed)
        for stream in streams:
            stream.start(self._pump)


def _sharing(
    streams: Sequence[MessageStream], group: Subscribed
) -> Callable[[BrokerPartition], StreamQueue]:
    """Which stream a log that comes belongs to: that of the thread that owns it, or else the one
    that has the fewest.
    """

    def queue_of(log: BrokerPartition) -> StreamQueue:
        of_topic = [stream for stream in streams if stream.topic in (None, log.topic)]
        if (threads := group.threads) is not None:
            return of_topic[threads[log]].queue
        return min(
            of_topic, key=lambda stream: sum(one.topic == log.topic for one in stream.queue.logs)
        ).queue

    return queue_of
