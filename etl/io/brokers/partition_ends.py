"""Where do partitions start and end, as reported by their leaders?

Lives here: connections to all brokers, offsets, leader epochs and tail fingerprints. Not here:
offsets by time (etl/io/brokers/times.py), other requests to several brokers
(etl/io/brokers/cluster_requests.py).

One connection per broker, and one ListOffsets or OffsetForLeaderEpoch request per leader at a time,
never one per partition. A partition without a leader, or with a leader that moved, is retried until
a deadline.

The tail fingerprint of a Jafka partition is a digest of the bytes before an offset, by one
MultiFetch per broker. A response does not cross a segment, so bytes in two segments need a second
request.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from etl.errors import (
    BrokerError,
    BrokerRefusal,
    BrokerUnreachable,
    CorruptData,
    EtlError,
    Meaning,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.connection import CHECK_BROKER_RUNS, CHECK_NAME, IdleConnections
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.process import open_files
from etl.kafka.broker_types import returns_uncommitted_records
from etl.kafka.request_values import (
    EARLIEST,
    LATEST,
    ClusterMetadata,
    EpochEndResponse,
    EpochEndsResponse,
    FetchTarget,
    ListedOffset,
)
from etl.model.partitions import (
    Broker,
    EpochEnd,
    Fingerprint,
    Isolation,
    Leader,
    PartitionOffsets,
    TopicPartition,
    drop_keys,
    known_values,
)
from etl.model.security import OPEN, Security
from etl.settings.choices import TIMEOUT_S

Answer = TypeVar("Answer")
Subject = TypeVar("Subject")
Value = TypeVar("Value")
MAX_PARALLEL_BROKERS = 64
"""Brokers that are requested in parallel, each by a thread: a slow broker delays no other."""


def max_kept_connections() -> int:
    """Return half of the files that this process may open, less those of parallel requests."""
    return max(0, open_files() // 2 - MAX_PARALLEL_BROKERS)


class LedPartitions(NamedTuple, Generic[Value]):
    """Partitions that one broker leads, each with a value of a request."""

    values: dict[TopicPartition, Value]
    epochs: dict[TopicPartition, int | None]
    """Their leader epochs, as they are known here."""


Registry = Callable[[Collection[str] | None], ClusterMetadata]
"""Source of brokers and topics if brokers do not report them; called like `describe`."""


class Brokers:
    """All brokers of a cluster, with one connection to each until `close`.

        bootstrap          host and port of the brokers that are requested first
        keeps              connections kept after each request; None: `max_kept_connections`
        registry           source of the cluster's metadata instead of the brokers
        broker_type        type or release of all brokers (`Broker.broker_type`); None: detected
        idle_connections   pool to take connections from and to return them to with `close`; None:
                           no reuse
        security           encryption and login
        listeners          returns the names of the brokers' listeners, for a message

    Each request raises BrokerUnreachable if no broker answers, and NotKafka for another protocol.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        connect_timeout_s: float = 10.0,
        timeout_s: float = TIMEOUT_S,
        registry: Registry | None = None,
        broker_type: str | None = None,
        idle_connections: IdleConnections | None = None,
        keeps: int | None = None,
        security: Security = OPEN,
        listeners: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        if not bootstrap:
            raise SettingsError(
                "There is no broker to connect to",
                action="Check source.bootstrap_servers, or the brokers in ZooKeeper",
            )
        self._bootstrap = tuple(bootstrap)
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._registry = registry
        self._listeners = listeners
        self._broker_type = broker_type
        self._idle_connections = idle_connections
        self.security = security
        """Encryption and login of the brokers' listeners."""
        self._consumers: dict[tuple[str, int], SimpleConsumer] = {}
        self._keeps = max_kept_connections() if keeps is None else keeps
        self._not_kept: set[SimpleConsumer] = set()

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """Return host and port of the brokers that are requested first."""
        return self._bootstrap

    def close(self) -> None:
        """Close all connections, or return them for reuse."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        self._not_kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def describe(self, topics: Collection[str] | None = None) -> ClusterMetadata:
        """Return the metadata of topics; None: of all topics. Creates no topic.

        One Metadata request to the first broker that answers, or the registry's metadata.
        """
        if self._registry is not None:
            return self._registry(topics)
        return self.first(lambda consumer: consumer.topic_metadata(topics))

    def describe_topics_of(self, partitions: Iterable[TopicPartition]) -> ClusterMetadata:
        """Return the metadata of these partitions' topics, as `describe`."""
        return self.describe({partition.topic for partition in partitions})

    def first(self, ask: Callable[[SimpleConsumer], Answer]) -> Answer:
        """Return the response of the first broker that answers."""
        failures: list[str] = []
        actions: list[str] = []
        keys = set()
        for host, port in self._bootstrap:
            try:
                return ask(self.consumer(host, port))
            except BrokerUnreachable as error:
                failures.append(f"{host}:{port}: {error.message}")
                actions.append(error.action)
                keys.add(error.where.get("key"))
        action = (
            "Check that brokers run at these addresses, which bootstrap_servers names or which are"
            " registered in ZooKeeper"
        )
        message = f"No broker answers: {'; '.join(failures)}"
        if len(set(actions)) == 1 and actions[0] != CHECK_BROKER_RUNS:
            action = actions[0]
        if action == CHECK_NAME:
            message = f"No broker's name is known here: {'; '.join(failures)}"
            listeners = self._listeners()
            if listeners:
                action += f". The brokers have the listeners {', '.join(listeners)}"
        where: dict[str, Any] = {}
        if len(keys) == 1 and None not in keys:
            where["key"] = keys.pop()
        raise BrokerUnreachable(
            message,
            action=action,
            **where,
            brokers=", ".join(f"{host}:{port}" for host, port in self._bootstrap),
        )

    def request_leaders(
        self,
        leaders: Mapping[TopicPartition, Leader],
        ask: Callable[[SimpleConsumer, Collection[TopicPartition]], Answer],
    ) -> list[Answer]:
        """Return one response per broker that leads some of these partitions, in parallel."""
        return self.request_with_epochs(
            leaders, leaders, lambda consumer, led: ask(consumer, led.values)
        )

    def request_with_epochs(
        self,
        leaders: Mapping[TopicPartition, Leader],
        values: Mapping[TopicPartition, Value],
        ask: Callable[[SimpleConsumer, LedPartitions[Value]], Answer],
    ) -> list[Answer]:
        """Return one response per broker that leads some partitions of `values`, in parallel.

        Partitions without a leader are left out.
        """
        # In one pass: to look up each partition again for its broker takes longer than its request.
        led_by: dict[tuple[str, int], LedPartitions[Value]] = {}
        requests = []
        for partition, value in values.items():
            leader = leaders.get(partition)
            if leader is None:
                continue
            broker = leader.broker
            address = (broker.host, broker.port)
            led = led_by.get(address)
            if led is None:
                led = led_by[address] = LedPartitions({}, {})
                requests.append((self.consumer(*address, broker.broker_type), led))
            led.values[partition] = value
            led.epochs[partition] = leader.epoch
        return self.request_in_parallel(requests, ask)

    def request_in_parallel(
        self,
        requests: Sequence[tuple[SimpleConsumer, Subject]],
        ask: Callable[[SimpleConsumer, Subject], Answer],
    ) -> list[Answer]:
        """Return one response per request, in order, all under the deadline of one call.

        So several brokers that do not answer take no longer than one. Requests that would begin
        after the deadline are not sent.
        """
        deadline = time.monotonic() + self._timeout_s

        def send(request: tuple[SimpleConsumer, Subject]) -> Answer:
            consumer, subject = request
            try:
                with consumer.ending_by(deadline):
                    return ask(consumer, subject)
            finally:
                if consumer in self._not_kept:
                    consumer.close()

        if len(requests) < 2:
            return [send(request) for request in requests]
        return _answers_in_threads(send, requests, min(MAX_PARALLEL_BROKERS, len(requests)))

    def reject_lost_isolation(self, brokers: Collection[Broker], isolation: Isolation) -> None:
        """Raise OtherRelease for a broker with transactions that is configured as one before 0.11.

        Such a broker would not apply read_committed. Its release is requested once per connection,
        only with read_committed and a configured release that lacks transactions.
        """
        if isolation is not Isolation.READ_COMMITTED:
            return
        consumers: dict[tuple[str, int], SimpleConsumer] = {}
        for broker in brokers:
            address = (broker.host, broker.port)
            consumers[address] = self.consumer(broker.host, broker.port, broker.broker_type)
        unsure = []
        for consumer in consumers.values():
            if returns_uncommitted_records(consumer.broker_type):
                unsure.append((consumer, isolation))
        self.request_in_parallel(
            unsure, lambda consumer, wanted: consumer.reject_other_release(wanted)
        )

    def _with_broker_type(self, broker: Broker) -> Broker:
        """Return the broker with its detected type, so that it need not be detected again."""
        found = self.consumer(broker.host, broker.port, broker.broker_type).broker_type
        if found == broker.broker_type:
            return broker
        return replace(broker, broker_type=found)

    def consumer(self, host: str, port: int, broker_type: str | None = None) -> SimpleConsumer:
        """Return the only connection to this address; `broker_type`: see `Broker`."""
        if (host, port) not in self._consumers:
            consumer = SimpleConsumer(
                host,
                port,
                request_timeout_s=self._timeout_s,
                connect_timeout_s=self._connect_timeout_s,
                broker_type=broker_type or self._broker_type,
                idle_connections=self._idle_connections,
                security=self.security,
            )
            self._consumers[host, port] = consumer
            if len(self._consumers) > self._keeps:
                self._not_kept.add(consumer)
        return self._consumers[host, port]


def _answers_in_threads(
    send: Callable[[Subject], Answer], requests: Sequence[Subject], threads: int
) -> list[Answer]:
    """Return the answers in the order of the requests.

    Raises the error of the first request that failed; requests that wait then are not sent.
    """
    # A thread takes one request after the other: a task of the pool for each request would take as
    # long as a small request itself.
    waiting = deque(enumerate(requests))
    answers: dict[int, Answer] = {}
    failures: dict[int, BaseException] = {}

    def send_waiting() -> None:
        while True:
            try:
                at, request = waiting.popleft()
            except IndexError:
                return
            try:
                answers[at] = send(request)
            except BaseException as failure:
                failures[at] = failure
                waiting.clear()

    with ThreadPoolExecutor(threads) as pool:
        try:
            wait([pool.submit(send_waiting) for _ in range(threads)])
        finally:
            waiting.clear()  # after an interrupt
    if failures:
        first = failures[min(failures)]
        failures.clear()  # else the error holds itself, by the frame of its traceback
        raise first
    return [answers[at] for at in range(len(requests))]


_BACKOFF_S = (0.1, 0.2, 0.5, 1.0)
LEADER_WAIT_S = 30.0
"""Time to wait for a leader, unless the caller sets one."""


@dataclass(frozen=True, slots=True)
class OffsetsAndLeaders:
    """Offsets and leaders of partitions; `leaderless` had no leader until the deadline."""

    extents: Mapping[TopicPartition, PartitionOffsets]
    leaders: Mapping[TopicPartition, Leader]
    leaderless: frozenset[TopicPartition]
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Leader epoch of the end, as reported by that leader."""

    def without(self, partitions: Collection[TopicPartition]) -> OffsetsAndLeaders:
        """Return the same with these partitions without a leader."""
        if not partitions:
            return self
        extents = {
            partition: offsets
            for partition, offsets in self.extents.items()
            if partition not in partitions
        }
        leaders = {
            partition: leader
            for partition, leader in self.leaders.items()
            if partition not in partitions
        }
        return OffsetsAndLeaders(
            extents, leaders, self.leaderless | frozenset(partitions), self.epochs
        )


@dataclass(frozen=True, slots=True)
class ListedOffsets:
    """Results of ListOffsets by partition."""

    listed: dict[TopicPartition, ListedOffset] = field(default_factory=dict)
    leaders: dict[TopicPartition, Leader] = field(default_factory=dict)
    leaderless: frozenset[TopicPartition] = frozenset()
    unsearched: dict[TopicPartition, EtlError] = field(default_factory=dict)
    """Partitions that their leader cannot search by time, and the error; not in `listed`."""

    @property
    def offsets(self) -> dict[TopicPartition, int | None]:
        """Return the offset of each partition; None: no record that late."""
        return {partition: listed.offset for partition, listed in self.listed.items()}

    @property
    def existing(self) -> dict[TopicPartition, int]:
        """Return the offset of each partition with a record that late."""
        return known_values(self.listed, attrgetter("offset"))

    @property
    def without_record(self) -> list[TopicPartition]:
        """Return the partitions for which the answer is "none": no record is that late."""
        return [partition for partition, listed in self.listed.items() if listed.offset is None]


class OffsetsOfLeaders(Brokers):
    """Offsets as reported by the leaders of partitions."""

    def extents(
        self,
        partitions: Collection[TopicPartition],
        *,
        isolation: Isolation,
        wait_for_leader_s: float = LEADER_WAIT_S,
        metadata: ClusterMetadata | None = None,
    ) -> OffsetsAndLeaders:
        """Return log start and readable end of each partition.

        The end is under the isolation of later fetches: the offsets from the last stable offset to
        the high watermark could not be fetched with read_committed. Two ListOffsets requests per
        leader, and one more for high watermarks if it reports last stable offsets.

        Partitions without a leader are retried until `wait_for_leader_s`, then returned as
        leaderless. `metadata`: a fresh result of `describe` for `partitions`. Raises TopicMissing,
        PermissionDenied, BrokerUnreachable if a leader does not answer, and as
        `reject_lost_isolation`.
        """
        if metadata is None:
            metadata = self.describe_topics_of(partitions)
        self.reject_lost_isolation(metadata.brokers.values(), isolation)
        starts = self.list_offsets(
            dict.fromkeys(partitions, EARLIEST), isolation, wait_for_leader_s, metadata
        )
        ends = self.list_offsets(
            dict.fromkeys(starts.listed, LATEST),
            isolation,
            wait_for_leader_s,
            None,
            starts.leaders,
        )
        stable = [partition for partition, end in ends.listed.items() if end.is_last_stable]
        uncommitted = self.list_offsets(
            dict.fromkeys(stable, LATEST),
            Isolation.READ_UNCOMMITTED,
            wait_for_leader_s,
            None,
            ends.leaders,
        )
        leaders = {**ends.leaders, **uncommitted.leaders}
        for partition in uncommitted.leaderless:
            leaders.pop(partition, None)
        # Again, for brokers that were elected or started meanwhile.
        brokers = {leader.broker for leader in leaders.values()}
        self.reject_lost_isolation(brokers, isolation)
        extents: dict[TopicPartition, PartitionOffsets] = {}
        for partition in leaders:
            end = ends.listed[partition]
            high_watermark = uncommitted.listed.get(partition, end)
            extents[partition] = _partition_offsets(starts.listed[partition], end, high_watermark)
        epochs = known_values(ends.listed, attrgetter("leader_epoch"))
        leaderless = starts.leaderless | ends.leaderless | uncommitted.leaderless
        return OffsetsAndLeaders(extents, leaders, leaderless, epochs)

    def epoch_ends(
        self,
        epochs: Mapping[TopicPartition, int],
        *,
        wait_for_leader_s: float = LEADER_WAIT_S,
        leaders: Mapping[TopicPartition, Leader] | None = None,
    ) -> dict[TopicPartition, EpochEnd]:
        """Return the end of each leader epoch in the current leader's log (KIP-320).

        One request per leader; `leaders` saves the Metadata request. Partitions are left out if
        their leader is before 2.1, or does not know the epoch. Raises as `extents`, and BrokerError
        for a partition that stays without a leader.
        """
        deadline = time.monotonic() + wait_for_leader_s
        attempt = 0
        answered = EpochEndsResponse()
        waiting = dict(epochs)
        while waiting:
            known: Mapping[TopicPartition, Leader]
            if leaders is None:
                known = self.describe_topics_of(waiting).leaders
            else:
                known = leaders
            failure = self._request_epochs(known, waiting, answered)
            left = deadline - time.monotonic()
            waiting = {
                partition: epoch for partition, epoch in epochs.items() if partition not in answered
            }
            if not waiting:
                break
            if left <= 0:
                if failure is not None:
                    raise failure
                first = min(waiting)
                raise BrokerError(
                    "The partition has no leader",
                    **first.place,
                    action="Check the brokers that host its replicas",
                )
            pause(attempt, left)
            leaders = None
            attempt += 1
        ends: dict[TopicPartition, EpochEnd] = {}
        for partition, end in answered.items():
            if end.epoch is not None and end.end_offset is not None:
                ends[partition] = EpochEnd(epochs[partition], end.epoch, end.end_offset)
        return ends

    def _request_epochs(
        self,
        leaders: Mapping[TopicPartition, Leader],
        epochs: Mapping[TopicPartition, int],
        answered: EpochEndsResponse,
    ) -> EtlError | None:
        """Request each leader once and add to `answered`.

        Return the error of a partition to retry, if any.
        """

        def request(
            consumer: SimpleConsumer, led: LedPartitions[int]
        ) -> EpochEndsResponse | EtlError:
            try:
                response = consumer.epoch_ends(led.values, led.epochs)
            except BrokerUnreachable as error:
                return error
            unknown = EpochEndResponse(None, None, None)
            return {partition: response.get(partition, unknown) for partition in led.values}

        failure: EtlError | None = None
        for response in self.request_with_epochs(leaders, epochs, request):
            if isinstance(response, EtlError):
                failure = failure or response
                continue
            for partition, end in response.items():
                if end.refusal is None:
                    answered[partition] = end
                    continue
                failure = end.refusal.error(
                    "return the end of a leader epoch",
                    **partition.place,
                    broker=leaders[partition].broker,
                )
                if not end.refusal.is_retriable:
                    raise failure
        return failure

    def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        isolation: Isolation,
        wait_s: float,
        metadata: ClusterMetadata | None,
        leaders: Mapping[TopicPartition, Leader] | None = None,
    ) -> ListedOffsets:
        """Return one offset per partition, by the leaders; retried until a deadline of `wait_s`.

        `metadata` and `leaders` save the first Metadata request. A Jafka partition without a leader
        is not retried: there are no elections.
        """
        deadline = time.monotonic() + wait_s
        attempt = 0
        found = ListedOffsets()
        waiting = dict(times)
        while waiting:
            if leaders is None:
                if metadata is None:
                    metadata = self.describe_topics_of(waiting)
                leaders = metadata.leaders
            away = set()
            for partition in waiting:
                if partition not in leaders and partition.is_physical:
                    away.add(partition)
            if away:
                found = replace(found, leaderless=found.leaderless.union(away))
            failure = self._list_once(leaders, waiting, isolation, found)
            if len(found.listed) == len(times):
                break
            done = {*found.listed, *found.unsearched, *away}
            waiting = drop_keys(waiting, done)
            left = deadline - time.monotonic()
            if waiting and left <= 0:
                _reject_unavailable(failure, metadata, waiting)
                return replace(found, leaderless=found.leaderless.union(waiting))
            if waiting:
                pause(attempt, left)
            metadata = None
            leaders = None
            attempt += 1
        return found

    def _list_once(
        self,
        leaders: Mapping[TopicPartition, Leader],
        times: Mapping[TopicPartition, int],
        isolation: Isolation,
        found: ListedOffsets,
    ) -> EtlError | None:
        """Request each leader once and add to `found`.

        Return the error of a partition to retry, if any.
        """

        def request(
            consumer: SimpleConsumer, led: LedPartitions[int]
        ) -> dict[TopicPartition, ListedOffset] | BrokerUnreachable:
            try:
                return consumer.list_offsets_at(led.values, isolation, led.epochs)
            except BrokerUnreachable as error:
                return error

        failure: EtlError | None = None
        for response in self.request_with_epochs(leaders, times, request):
            if isinstance(response, BrokerUnreachable):
                # The first such error: later requests may not have been sent.
                failure = failure or response
                continue
            # All partitions of a response have the same leader.
            broker = self._with_broker_type(leaders[next(iter(response))].broker)
            by_epoch: dict[int | None, Leader] = {}  # shared by partitions
            refused: dict[TopicPartition, BrokerRefusal] = {}
            for partition, listed in response.items():
                if listed.refusal is not None:
                    refused[partition] = listed.refusal
                    continue
                epoch = leaders[partition].epoch
                leader = by_epoch.get(epoch)
                if leader is None:
                    leader = by_epoch[epoch] = Leader(broker, epoch)
                found.listed[partition] = listed
                found.leaders[partition] = leader
            # Sorted: the order of partitions in a response is the broker's, and may be any.
            for partition, refusal in sorted(refused.items()):
                error = refusal.error("list offsets", **partition.place, broker=broker)
                if refusal.meaning is Meaning.NO_SEARCH:
                    found.unsearched[partition] = error
                    found.leaders[partition] = Leader(broker, leaders[partition].epoch)
                    continue
                failure = error
                if not refusal.is_retriable:
                    raise failure
        return failure


def pause(attempt: int, left_s: float) -> None:
    """Sleep before a retry: longer with each attempt (the first is 0), within the time left."""
    time.sleep(min(left_s, _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]))


def _partition_offsets(
    listed_start: ListedOffset, listed_end: ListedOffset, listed_high: ListedOffset
) -> PartitionOffsets:
    """Return the offsets of a partition by its start, readable end and high watermark."""
    start = listed_start.offset
    end = listed_end.offset
    high_watermark = listed_high.offset
    if start is None or end is None or high_watermark is None:
        raise CorruptData(
            "The broker returned no offset for the start or end of the partition",
            **listed_end.partition.place,
        )
    # Retention may have moved the start between the two requests, a truncation the end.
    end = max(start, end)
    higher = high_watermark if high_watermark > end else None
    boundaries = listed_end.boundaries
    if boundaries is None:
        return PartitionOffsets(start, end, higher, None)
    inside = {each for each in boundaries if start < each < end}
    return PartitionOffsets(start, end, higher, tuple(sorted({start, end, *inside})))


def _reject_unavailable(
    failure: EtlError | None,
    metadata: ClusterMetadata | None,
    waiting: Collection[TopicPartition],
) -> None:
    """Raise the error of partitions that are missing for another reason than a leader election.

    A leader does not answer, or the topic is unknown, or we may not describe it.
    """
    if failure is not None:
        raise failure
    for partition in sorted(waiting):
        topic = metadata.topics.get(partition.topic) if metadata is not None else None
        if topic is None:
            raise TopicMissing(
                "The brokers do not know the topic",
                topic=partition.topic,
                action="Check its name (source.topics), and whether it was deleted",
            )
        if topic.refusal and topic.refusal.meaning in (Meaning.UNKNOWN_TOPIC, Meaning.NOT_ALLOWED):
            raise topic.refusal.error("describe the topic", topic=partition.topic)


# Tail fingerprints

Places = Mapping[TopicPartition, tuple[int, int]]
"""For each partition the offset where the bytes end, and their number."""
_PARTITIONS_PER_REQUEST = 4096
_DIGEST_BYTES = 8


def read_fingerprints(
    cluster: Brokers, places: Places, leaders: Mapping[TopicPartition, Leader]
) -> dict[TopicPartition, Fingerprint]:
    """Return the tail fingerprints of the bytes at these places.

    A partition that has expired the bytes is left out. One that ends before `until` has fewer
    bytes, or none. Raises BrokerUnreachable, and the broker's error.
    """

    def request(
        consumer: SimpleConsumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Fingerprint]:
        wanted = sorted(partitions)
        found: dict[TopicPartition, Fingerprint] = {}
        for at in range(0, len(wanted), _PARTITIONS_PER_REQUEST):
            found.update(
                _read_fingerprints(consumer, wanted[at : at + _PARTITIONS_PER_REQUEST], places)
            )
        return found

    led = {partition: leaders[partition] for partition in places if partition in leaders}
    fingerprints: dict[TopicPartition, Fingerprint] = {}
    for of_broker in cluster.request_leaders(led, request):
        fingerprints.update(of_broker)
    return fingerprints


def _read_fingerprints(
    consumer: SimpleConsumer, topic_partitions: Sequence[TopicPartition], places: Places
) -> dict[TopicPartition, Fingerprint]:
    """Return the tail fingerprints of partitions of one broker, see `read_fingerprints`.

    Bytes in two segments take two requests. Raises the broker's error, also if it lists no start of
    a partition: a fingerprint of no bytes would be that of another log.
    """
    content: dict[TopicPartition, bytes] = {}
    out_of_range: set[TopicPartition] = set()
    partitions = list(topic_partitions)
    while partitions:
        wanted: dict[TopicPartition, tuple[int, int]] = {}
        for partition in partitions:
            until, size = places[partition]
            begin = until - size + len(content.get(partition, b""))
            wanted[partition] = (begin, until - begin)
        partitions = []
        for partition, fetched in _fetch_bytes(consumer, wanted).items():
            if fetched is None:
                if partition not in content:
                    out_of_range.add(partition)
                continue
            content[partition] = content.get(partition, b"") + fetched
            if fetched and len(content[partition]) < places[partition][1]:
                partitions.append(partition)
    if out_of_range:
        starts = consumer.list_offsets(dict.fromkeys(sorted(out_of_range), EARLIEST))
        for partition, start in sorted(starts.items()):
            if start.refusal is not None:
                raise start.refusal.error(
                    "list offsets", **partition.place, broker=consumer.address
                )
            until, size = places[partition]
            # The partition ends before these bytes; it has not expired them.
            if start.offset is None or start.offset <= until - size:
                content[partition] = b""
    return {
        partition: _tail(places[partition], of_partition)
        for partition, of_partition in content.items()
    }


def _fetch_bytes(
    consumer: SimpleConsumer, wanted: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, bytes | None]:
    """Return the bytes of each partition from an offset on, up to a number, of one response.

    None: the offset is out of range.
    """
    by_name = {(partition.topic, partition.partition): partition for partition in wanted}
    targets = [FetchTarget(partition, offset, size) for partition, (offset, size) in wanted.items()]
    max_bytes = sum(target.max_bytes for target in targets)
    answer = consumer.multifetch(targets, max_bytes=max_bytes)
    results: dict[TopicPartition, bytes | None] = {}
    for part in answer.partitions:
        partition = by_name[part.topic, part.partition]
        if part.refusal is None:
            results[partition] = bytes(part.records)
        elif part.refusal.meaning is Meaning.OUT_OF_RANGE:
            results[partition] = None
        else:
            raise part.refusal.error(
                "return the bytes before an offset", **partition.place, broker=consumer.address
            )
    return results


def _tail(place: tuple[int, int], content: bytes) -> Fingerprint:
    until, size = place
    return Fingerprint(until, size, hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest())
