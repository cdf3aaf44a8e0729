"""Where do partitions start and end, asked of all their leaders?

One connection per broker, one ListOffsets or OffsetForLeaderEpoch request per leader and question,
never one per partition. A partition without a leader, or whose leader moved, is retried until a
deadline.

Tail fingerprints of Jafka partitions: the bytes before an offset, by one MultiFetch per broker. A
response does not cross a segment, so partitions whose bytes are in two are asked once more.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, TypeVar

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    CorruptData,
    EtlError,
    Meaning,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.connection import IdleConnections
from etl.io.process import open_files
from etl.kafka.families import returns_uncommitted_records
from etl.kafka.messages import (
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
    BrokerPartition,
    EpochEnd,
    Isolation,
    Leader,
    PartitionOffsets,
    Tail,
)
from etl.model.security import OPEN, Security
from etl.settings.choices import TIMEOUT_S

Answer = TypeVar("Answer")
Subject = TypeVar("Subject")
MOST_AT_A_TIME = 64
"""Brokers asked in parallel, each by a thread that mostly waits, so that a slow one delays no
other.
"""


def connections_to_keep() -> int:
    """Half of the files that this process may open, less those in use."""
    return max(0, open_files() // 2 - MOST_AT_A_TIME)


Registry = Callable[[Collection[str] | None], ClusterMetadata]
"""Source of brokers and topics if brokers do not report them; called like `describe`."""


class Brokers:
    """All brokers behind a list of addresses, with a connection to each until it is closed.

        keeps              connections kept after each question; None: `connections_to_keep`
        registry           source of the cluster's metadata instead of the brokers
        generation         type or release of all brokers (`Broker.generation`); None: detected
        idle_connections   where connections come from and go to with `close`; None: its own
        security           encryption and login

    Each question raises BrokerUnreachable if no broker answers, and NotKafka for another protocol.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        connect_timeout_s: float = 10.0,
        timeout_s: float = TIMEOUT_S,
        registry: Registry | None = None,
        generation: str | None = None,
        idle_connections: IdleConnections | None = None,
        keeps: int | None = None,
        security: Security = OPEN,
    ) -> None:
        if not bootstrap:
            raise SettingsError(
                "There is no broker to ask",
                action="Check source.bootstrap_servers, or the brokers in ZooKeeper",
            )
        self._bootstrap = tuple(bootstrap)
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._registry, self._generation, self._idle_connections = (
            registry,
            generation,
            idle_connections,
        )
        self.security = security
        """How the brokers' listeners are entered."""
        self._consumers: dict[tuple[str, int], SimpleConsumer] = {}
        self._keeps = connections_to_keep() if keeps is None else keeps
        self._not_kept: set[SimpleConsumer] = set()

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """Return host and port of the brokers to ask first."""
        return self._bootstrap

    def close(self) -> None:
        """Hang up everywhere."""
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
        """One Metadata request to the first broker that answers, or the registry's word; None: of
        all topics. Creates none.
        """
        if self._registry is not None:
            return self._registry(topics)
        return self.first(lambda consumer: consumer.topic_metadata(topics))

    def first(self, ask: Callable[[SimpleConsumer], Answer]) -> Answer:
        """The answer of the first broker that gives one."""
        silent: list[str] = []
        for host, port in self._bootstrap:
            try:
                return ask(self.consumer(host, port))
            except BrokerUnreachable as error:
                silent.append(str(error))
        raise BrokerUnreachable(
            f"No broker answers: {'; '.join(silent)}",
            action="Check that brokers run at these addresses",
            brokers=", ".join(f"{host}:{port}" for host, port in self._bootstrap),
        )

    def of_each(
        self,
        leaders: Mapping[BrokerPartition, Leader],
        ask: Callable[[SimpleConsumer, Collection[BrokerPartition]], Answer],
    ) -> list[Answer]:
        """Return one answer per broker, asked in parallel on their own connections."""
        by_address: dict[tuple[str, int], tuple[Broker, list[BrokerPartition]]] = {}
        for log, leader in leaders.items():
            broker = leader.broker
            by_address.setdefault((broker.host, broker.port), (broker, []))[1].append(log)
        requests = [
            (self.consumer(broker.host, broker.port, broker.generation), logs)
            for broker, logs in by_address.values()
        ]
        return self.side_by_side(requests, ask)

    def side_by_side(
        self,
        requests: Sequence[tuple[SimpleConsumer, Subject]],
        ask: Callable[[SimpleConsumer, Subject], Answer],
    ) -> list[Answer]:
        """Return one answer per question, in order, all under the deadline of a call to one broker:
        silent brokers together take no longer than one. Questions whose turn comes later are not
        sent.
        """
        deadline = time.monotonic() + self._timeout_s

        def in_turn(each: tuple[SimpleConsumer, Subject]) -> Answer:
            consumer, subject = each
            try:
                with consumer.ending_by(deadline):
                    return ask(consumer, subject)
            finally:
                if consumer in self._not_kept:
                    consumer.close()

        if len(requests) < 2:
            return [in_turn(each) for each in requests]
        with ThreadPoolExecutor(min(MOST_AT_A_TIME, len(requests))) as pool:
            return list(pool.map(in_turn, requests))

    def reject_lost_isolation(self, brokers: Collection[Broker], isolation: Isolation) -> None:
        """Raises OtherRelease for a broker that has transactions while it is addressed as one
        before 0.11. Asked once per connection, only with read_committed and a configured release
        that lacks transactions; otherwise the broker applies the isolation.
        """
        if isolation is Isolation.READ_COMMITTED:
            consumers = {
                (one.host, one.port): self.consumer(one.host, one.port, one.generation)
                for one in brokers
            }
            unsure = [
                (one, isolation)
                for one in consumers.values()
                if returns_uncommitted_records(one.generation)
            ]
            self.side_by_side(
                unsure, lambda consumer, wanted: consumer.reject_other_release(wanted)
            )

    def with_generation(self, broker: Broker) -> Broker:
        """Return the broker with its detected type, so that it need not be detected again."""
        found = self.consumer(broker.host, broker.port, broker.generation).generation
        return broker if found == broker.generation else replace(broker, generation=found)

    def consumer(self, host: str, port: int, generation: str | None = None) -> SimpleConsumer:
        """The one connection to this address; `generation`: see `Broker`."""
        if (host, port) not in self._consumers:
            made = self._consumers[host, port] = SimpleConsumer(
                host,
                port,
                timeout_s=self._timeout_s,
                connect_timeout_s=self._connect_timeout_s,
                generation=generation or self._generation,
                idle_connections=self._idle_connections,
                security=self.security,
            )
            if len(self._consumers) > self._keeps:
                self._not_kept.add(made)
        return self._consumers[host, port]


_BACKOFF_S = (0.1, 0.2, 0.5, 1.0)
LEADER_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class OffsetsAndLeaders:
    """Offsets and leaders of partitions; `leaderless` had no leader until the deadline."""

    extents: Mapping[BrokerPartition, PartitionOffsets]
    leaders: Mapping[BrokerPartition, Leader]
    leaderless: frozenset[BrokerPartition]
    epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Leader epoch of the end, as reported by that leader."""

    def without(self, logs: Collection[BrokerPartition]) -> OffsetsAndLeaders:
        """Return the same with these partitions without a leader."""
        if not logs:
            return self
        extents = {log: extent for log, extent in self.extents.items() if log not in logs}
        leaders = {log: leader for log, leader in self.leaders.items() if log not in logs}
        return OffsetsAndLeaders(extents, leaders, self.leaderless | frozenset(logs), self.epochs)


@dataclass(frozen=True, slots=True)
class Listed:
    """Results of ListOffsets by partition: an offset (None: no record that late) and its leader."""

    offsets: dict[BrokerPartition, int | None]
    leaders: dict[BrokerPartition, Leader]
    leaderless: frozenset[BrokerPartition]
    epochs: dict[BrokerPartition, int] = field(default_factory=dict)
    boundaries: dict[BrokerPartition, tuple[int, ...]] = field(default_factory=dict)
    """With byte offsets: see `ListedOffset`."""
    stable: set[BrokerPartition] = field(default_factory=set)
    """Logs of which a last stable offset was named."""
    unsearched: dict[BrokerPartition, EtlError] = field(default_factory=dict)
    """Partitions that their leader cannot search by time, and the error; they have no offset here.
    """

    def note(self, listed: ListedOffset, leader: Leader) -> None:
        """Add the results of that leader."""
        log = listed.log
        self.offsets[log], self.leaders[log] = listed.offset, leader
        if listed.leader_epoch is not None:
            self.epochs[log] = listed.leader_epoch
        if listed.boundaries is not None:
            self.boundaries[log] = listed.boundaries
        if listed.is_last_stable:
            self.stable.add(log)


class LogOffsets(Brokers):
    """Offsets as reported by the leaders of partitions."""

    def extents(
        self,
        logs: Collection[BrokerPartition],
        *,
        isolation: Isolation,
        wait_for_leader_s: float = LEADER_WITHIN_S,
        metadata: ClusterMetadata | None = None,
    ) -> OffsetsAndLeaders:
        """Return log start and readable end of each partition, the end under the isolation of later
        fetches.

        Two ListOffsets requests per leader, and one more for high watermarks if it reports last
        stable offsets. Partitions without a leader are retried until `wait_for_leader_s`, then
        reported. `metadata`: a fresh answer of `describe` for `logs`. Raises TopicMissing,
        PermissionDenied, BrokerUnreachable if a leader is silent, and as `reject_lost_isolation`.
        """
        metadata = metadata or self.describe({log.topic for log in logs})
        self.reject_lost_isolation(metadata.brokers.values(), isolation)
        starts = self.listed(dict.fromkeys(logs, EARLIEST), isolation, wait_for_leader_s, metadata)
        ends = self.listed(
            dict.fromkeys(starts.offsets, LATEST),
            isolation,
            wait_for_leader_s,
            None,
            starts.leaders,
        )
        above = self.listed(
            dict.fromkeys(ends.stable, LATEST),
            Isolation.READ_UNCOMMITTED,
            wait_for_leader_s,
            None,
            ends.leaders,
        )
        leaders = {
            log: leader
            for log, leader in {**ends.leaders, **above.leaders}.items()
            if log not in above.leaderless
        }
        self.reject_lost_isolation(
            {leader.broker for leader in leaders.values()}, isolation
        )  # who was elected, or came, meanwhile
        highs = {**ends.offsets, **above.offsets}
        extents = {
            log: _extent(
                log, starts.offsets[log], ends.offsets[log], highs[log], ends.boundaries.get(log)
            )
            for log in leaders
        }
        return OffsetsAndLeaders(
            extents, leaders, starts.leaderless | ends.leaderless | above.leaderless, ends.epochs
        )

    def epoch_ends(
        self,
        epochs: Mapping[BrokerPartition, int],
        *,
        wait_for_leader_s: float = LEADER_WITHIN_S,
        leaders: Mapping[BrokerPartition, Leader] | None = None,
    ) -> dict[BrokerPartition, EpochEnd]:
        """Return the end of each leader epoch in the current leader's log (KIP-320): one request
        per leader.

        Left out are partitions whose leader does not know: a broker before 2.1, or an unknown
        epoch. `leaders` saves the Metadata request. Raises as `extents`, and for a partition that
        stays without a leader.
        """
        deadline, attempt, answered = time.monotonic() + wait_for_leader_s, 0, EpochEndsResponse()
        while waiting := {log: epoch for log, epoch in epochs.items() if log not in answered}:
            if leaders is None:
                known: Mapping[BrokerPartition, Leader] = self.describe(
                    {log.topic for log in waiting}
                ).leaders
            else:
                known = leaders
            failure = self._ask_epochs(
                {log: known[log] for log in waiting if log in known}, waiting, answered
            )
            left = deadline - time.monotonic()
            if answered.keys() >= epochs.keys():
                break
            if left <= 0:
                lost = min(log for log in epochs if log not in answered)
                raise failure or BrokerError(
                    "Nobody leads the log", **lost.place, action="Check its brokers"
                )
            pause(attempt, left)
            leaders, attempt = None, attempt + 1
        return {
            log: EpochEnd(epochs[log], end.epoch, end.end_offset)
            for log, end in answered.items()
            if end.epoch is not None and end.end_offset is not None
        }

    def _ask_epochs(
        self,
        leaders: Mapping[BrokerPartition, Leader],
        epochs: Mapping[BrokerPartition, int],
        answered: EpochEndsResponse,
    ) -> EtlError | None:
        """Ask all brokers once, into `answered`; return the error of a partition to retry, if any."""

        def ask(
            consumer: SimpleConsumer, logs: Collection[BrokerPartition]
        ) -> EpochEndsResponse | EtlError:
            try:
                answer = consumer.epoch_ends(
                    {log: epochs[log] for log in logs}, {log: leaders[log].epoch for log in logs}
                )
                return {log: answer.get(log, EpochEndResponse(None, None, None)) for log in logs}
            except BrokerUnreachable as error:
                return error

        failure: EtlError | None = None
        for answer in self.of_each(leaders, ask):
            if isinstance(answer, EtlError):
                failure = failure or answer
                continue
            for log, end in answer.items():
                if end.refusal is None:
                    answered[log] = end
                    continue
                failure = end.refusal.error(
                    "tell where an epoch ends", **log.place, broker=leaders[log].broker
                )
                if not end.refusal.is_retriable:
                    raise failure
        return failure

    def listed(
        self,
        times: Mapping[BrokerPartition, int],
        isolation: Isolation,
        wait_s: float,
        known: ClusterMetadata | None,
        led: Mapping[BrokerPartition, Leader] | None = None,
    ) -> Listed:
        """Return one offset per partition, retried for missing or moved leaders until the deadline.
        `known` and `led` save the first Metadata request. A Jafka partition without a leader is not
        waited for: there are no elections.
        """
        deadline, attempt = time.monotonic() + wait_s, 0
        found, waiting = Listed({}, {}, frozenset()), dict(times)
        while waiting:
            if led is None:
                known = known or self.describe({log.topic for log in waiting})
                led = known.leaders
            away = {log for log in waiting if log.is_physical and log not in led}
            found = replace(found, leaderless=found.leaderless.union(away))
            failure = self._list_once(
                {log: led[log] for log in waiting if log in led}, waiting, isolation, found
            )
            done = {*found.offsets, *found.unsearched, *away}
            waiting = {log: when for log, when in waiting.items() if log not in done}
            left = deadline - time.monotonic()
            if waiting and left <= 0:
                _give_up(failure, known, waiting)
                return replace(found, leaderless=found.leaderless.union(waiting))
            if waiting:
                pause(attempt, left)
            known, led, attempt = None, None, attempt + 1
        return found

    def _list_once(
        self,
        leaders: Mapping[BrokerPartition, Leader],
        times: Mapping[BrokerPartition, int],
        isolation: Isolation,
        found: Listed,
    ) -> EtlError | None:
        """One round over the brokers into `found`; the error of a log that may still come, if there
        is one.
        """

        def ask(
            consumer: SimpleConsumer, logs: Collection[BrokerPartition]
        ) -> dict[BrokerPartition, ListedOffset] | BrokerUnreachable:
            try:
                return consumer.list_offsets(
                    {log: times[log] for log in logs},
                    isolation=isolation,
                    epochs={log: leaders[log].epoch for log in logs},
                )
            except BrokerUnreachable as error:
                return error

        failure: EtlError | None = None
        for answer in self.of_each(leaders, ask):
            if isinstance(answer, BrokerUnreachable):
                failure = (
                    failure or answer
                )  # those behind the first may not have been asked any more
                continue
            broker = self.with_generation(
                leaders[next(iter(answer))].broker
            )  # all of an answer are of one
            for log, listed in answer.items():
                if leaders[log].broker is broker:
                    leader = leaders[log]
                else:
                    leader = Leader(broker, leaders[log].epoch)
                if listed.refusal is None:
                    found.note(listed, leader)
                    continue
                refused = listed.refusal.error("list offsets", **log.place, broker=broker)
                if listed.refusal.meaning is Meaning.NO_SEARCH:
                    found.unsearched[log], found.leaders[log] = refused, leader
                    continue
                failure = refused
                if not listed.refusal.is_retriable:
                    raise failure
        return failure


def pause(attempt: int, left_s: float) -> None:
    """Sleep before the next try: longer each time (0 is the first), within the time left."""
    time.sleep(min(left_s, _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]))


def _extent(
    log: BrokerPartition,
    start: int | None,
    end: int | None,
    high: int | None,
    boundaries: tuple[int, ...] | None,
) -> PartitionOffsets:
    if start is None or end is None or high is None:
        raise CorruptData("The broker names no offset for a log's start or end", **log.place)
    # Retention may have moved the start in between, a truncation the end; an extent never ends
    # before it starts.
    end = max(start, end)
    if boundaries is None:
        inside = None
    else:
        inside = tuple(sorted({start, end, *(each for each in boundaries if start < each < end)}))
    return PartitionOffsets(start, end, high if high > end else None, inside)


def _give_up(
    failure: EtlError | None, known: ClusterMetadata | None, waiting: Collection[BrokerPartition]
) -> None:
    """At the deadline: a leader that is named and does not answer, or a topic that is not there, is
    an error of its own.
    """
    if failure is not None:
        raise failure
    for log in sorted(waiting):
        topic = known.topics.get(log.topic) if known is not None else None
        if topic is None:
            raise TopicMissing(
                "The brokers do not tell of the topic",
                topic=log.topic,
                action="Check its name, and whether it was deleted",
            )
        if topic.refusal and topic.refusal.meaning in (Meaning.UNKNOWN_TOPIC, Meaning.NOT_ALLOWED):
            raise topic.refusal.error("tell of the topic", topic=log.topic)


Places = Mapping[BrokerPartition, tuple[int, int]]
"""For each partition the offset where the bytes end, and their number."""
_LOGS_AT_A_TIME = 4096
_DIGEST_BYTES = 8


def read_tails(
    cluster: Brokers, places: Places, leaders: Mapping[BrokerPartition, Leader]
) -> dict[BrokerPartition, Tail]:
    """Return the bytes at these places. Partitions that expired them are left out; ones that end
    before have fewer. Raises BrokerUnreachable, and the broker's error.
    """

    def ask(
        consumer: SimpleConsumer, logs: Collection[BrokerPartition]
    ) -> dict[BrokerPartition, Tail]:
        wanted, found = sorted(logs), dict[BrokerPartition, Tail]()
        for at in range(0, len(wanted), _LOGS_AT_A_TIME):
            found |= _ask(consumer, wanted[at : at + _LOGS_AT_A_TIME], places)
        return found

    answers = cluster.of_each({log: leaders[log] for log in places if log in leaders}, ask)
    return {log: tail for answer in answers for log, tail in answer.items()}


def _ask(
    consumer: SimpleConsumer, logs: Sequence[BrokerPartition], places: Places
) -> dict[BrokerPartition, Tail]:
    found, outside = dict[BrokerPartition, bytes](), set[BrokerPartition]()
    partitions = list(logs)
    while partitions:
        begins = {
            log: places[log][0] - places[log][1] + len(found.get(log, b"")) for log in partitions
        }
        more = _fetched(
            consumer, {log: (begin, places[log][0] - begin) for log, begin in begins.items()}
        )
        outside |= {log for log, content in more.items() if content is None and log not in found}
        found |= {
            log: found.get(log, b"") + content
            for log, content in more.items()
            if content is not None
        }
        partitions = [
            log for log, content in more.items() if content and len(found[log]) < places[log][1]
        ]
    if outside:
        starts = consumer.list_offsets(dict.fromkeys(sorted(outside), EARLIEST))
        found |= {
            log: b""
            for log in outside
            if (starts[log].offset or 0) <= places[log][0] - places[log][1]
        }
    return {log: _tail(places[log], content) for log, content in found.items()}


def _fetched(
    consumer: SimpleConsumer, wanted: Mapping[BrokerPartition, tuple[int, int]]
) -> dict[BrokerPartition, bytes | None]:
    """Return these bytes from one response, each from an offset on with a maximum; None if the log
    does not reach it.
    """
    by_name, results = (
        {(log.topic, log.partition): log for log in wanted},
        dict[BrokerPartition, bytes | None](),
    )
    targets = [FetchTarget(log, offset, size) for log, (offset, size) in wanted.items()]
    answer = consumer.multifetch(targets, max_bytes=sum(target.max_bytes for target in targets))
    for part in answer.partitions:
        log = by_name[part.topic, part.partition]
        if part.refusal is not None and part.refusal.meaning is not Meaning.OUT_OF_RANGE:
            raise part.refusal.error(
                "read what lies before a position", **log.place, broker=consumer.address
            )
        results[log] = None if part.refusal else bytes(part.records)
    return results


def _tail(place: tuple[int, int], content: bytes) -> Tail:
    until, size = place
    return Tail(until, size, hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest())
