"""Questions that take more than one broker: who leads what, where logs start and end, how large they are.

The driver's side of `simple_consumer`: one Metadata request, two ListOffsets requests per broker (start and end; three
under read_committed), one DescribeLogDirs per broker, one DescribeConfigs in all; never one request per partition. What to
do about a log without a leader, or a topic that is not there, is the caller's policy.
"""

from __future__ import annotations

import time
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TypeVar

from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import BrokerError, BrokerUnreachable, CorruptData, EtlError, PermissionRefused, SettingsError, TopicMissing
from etl.model.logs import Broker, BrokerPartition, EpochEnd, Extent, Isolation, KafkaGroup, Leader, OpenTransaction, Retention
from etl.protocol.messages import (
    EARLIEST, LATEST, ClusterMetadata, ListedOffset, Meaning, ToldEpochEnd, ToldEpochEnds, ToldMembers, TopicMetadata,
)
from etl.settings.sections import TopicFilter

Answer = TypeVar("Answer")
Subject = TypeVar("Subject")
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0)
_MOST_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Extents:
    """Where logs start and end, and who leads them; `leaderless` had no leader until the deadline."""

    extents: Mapping[BrokerPartition, Extent]
    leaders: Mapping[BrokerPartition, Leader]
    leaderless: frozenset[BrokerPartition]
    epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The epoch of the leader that told the end, by its own word."""

    def without(self, logs: Collection[BrokerPartition]) -> Extents:
        """The same where these logs have lost their leader since."""
        if not logs:
            return self
        extents = {log: extent for log, extent in self.extents.items() if log not in logs}
        leaders = {log: leader for log, leader in self.leaders.items() if log not in logs}
        return Extents(extents, leaders, self.leaderless | frozenset(logs), self.epochs)


@dataclass(frozen=True, slots=True)
class _Listed:
    """What ListOffsets came to: an offset (None: no record that late) and the leader that named it, log by log."""

    offsets: dict[BrokerPartition, int | None]
    leaders: dict[BrokerPartition, Leader]
    leaderless: frozenset[BrokerPartition]
    epochs: dict[BrokerPartition, int] = field(default_factory=dict)


def chosen_topics(metadata: ClusterMetadata, names: TopicFilter) -> ClusterMetadata:
    """What of the cluster the conf chooses; internal topics only where they are named letter by letter. Raises PermissionRefused."""
    there = {name: told for name, told in metadata.topics.items() if not _is_unknown(told) and names.admits(name)}
    chosen = {name: told for name, told in there.items() if not told.is_internal or name in names.literal_names}
    refused = sorted(name for name, told in chosen.items() if told.refusal and told.refusal.meaning is Meaning.NOT_ALLOWED)
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        what, check = f"the brokers do not let us read the topic{more}", "the topics' ACLs: Describe and Read"
        raise PermissionRefused(what, topic=refused[0], check=check)
    return replace(metadata, topics=chosen)


def unknown_topics(metadata: ClusterMetadata, names: Collection[str]) -> frozenset[str]:
    """Those of the names that were asked for and that the brokers do not know."""
    there = {name for name, told in metadata.topics.items() if not _is_unknown(told)}
    return frozenset(names) - there


def names_of_topics(cluster: Cluster) -> tuple[str, ...]:
    """All topics that the cluster lets us see, for a message; none where it does not answer that."""
    with contextlib.suppress(EtlError):
        return tuple(cluster.describe(None).topics)
    return ()


class Cluster:
    """All brokers behind a list of addresses. Keeps one connection per broker until it is closed.

    Every question raises BrokerUnreachable when nobody answers, and NotKafka when a port speaks something else.
    """

    def __init__(self, bootstrap: Sequence[tuple[str, int]], *, client_id: str = "offset-range-etl",
                 connect_timeout_s: float = 10.0, timeout_s: float = 30.0) -> None:
        if not bootstrap:
            raise SettingsError("there is no broker to ask", check="source.bootstrap, or the brokers in ZooKeeper")
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._consumers: dict[tuple[str, int], SimpleConsumer] = {}

    def close(self) -> None:
        """Hang up everywhere."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def describe(self, topics: Collection[str] | None = None) -> ClusterMetadata:
        """One Metadata request to the first broker that answers; None: of all topics. Creates none."""
        return self._first(lambda consumer: consumer.topic_metadata(topics))

    def _first(self, ask: Callable[[SimpleConsumer], Answer]) -> Answer:
        """The answer of the first broker that gives one."""
        silent: list[str] = []
        for host, port in self._bootstrap:
            try:
                return ask(self._consumer(host, port))
            except BrokerUnreachable as error:
                silent.append(str(error))
        raise BrokerUnreachable(f"no broker answers: {'; '.join(silent)}", check="that brokers run at these addresses",
                                brokers=", ".join(f"{host}:{port}" for host, port in self._bootstrap))

    def extents(self, logs: Collection[BrokerPartition], *, isolation: Isolation, wait_for_leader_s: float = 30.0,
                metadata: ClusterMetadata | None = None) -> Extents:
        """Log start and readable end of each log, the end under the same isolation as the fetches to come.

        Two ListOffsets requests per leader, and under read_committed one more for the high watermarks. Logs without a
        leader, or whose leader has just moved, are asked for again until `wait_for_leader_s` has passed, and are then
        reported. `metadata`: a fresh answer of `describe` that covers `logs`, to save the request.

        Raises TopicMissing, PermissionRefused, or BrokerUnreachable when a leader stays silent.
        """
        starts = self._list(dict.fromkeys(logs, EARLIEST), isolation, wait_for_leader_s, metadata)
        ends = self._list(dict.fromkeys(starts.offsets, LATEST), isolation, wait_for_leader_s, None, starts.leaders)
        above = ends
        if isolation is Isolation.READ_COMMITTED:
            above = self._list(dict.fromkeys(ends.offsets, LATEST), Isolation.READ_UNCOMMITTED, wait_for_leader_s, None, ends.leaders)
        extents = {log: _extent(log, starts.offsets[log], ends.offsets[log], high) for log, high in above.offsets.items()}
        return Extents(extents, above.leaders, starts.leaderless | ends.leaderless | above.leaderless, ends.epochs)

    def open_transactions(self, found: Extents) -> dict[BrokerPartition, OpenTransaction]:
        """What holds back the end of each log that has offsets behind an open transaction, where the brokers tell (KIP-664).

        One DescribeProducers request to each leader of such a log; to find out since when, at most two more to each broker. It is told
        to people only, so no failure of these questions stops a run.
        """
        held_back = {log: leader for log, leader in found.leaders.items() if found.extents[log].held_back}
        told: dict[BrokerPartition, OpenTransaction] = {}
        for answer in self._of_each(held_back, _open_transactions):
            told.update(answer)
        if not told:
            return {}
        producers = {one.producer_id for one in told.values()}
        try:
            brokers = self.describe(()).brokers.values()
        except BrokerUnreachable:
            return told
        known: dict[int, tuple[str, int | None]] = {}
        for begun in self._side_by_side([(self._consumer(one.host, one.port), producers) for one in brokers], _transactions):
            known.update(begun)
        return {log: _named(one, known) for log, one in told.items()}

    def offsets_at(self, moments: Mapping[BrokerPartition, int], *, wait_for_leader_s: float = 30.0) -> dict[BrokerPartition, int]:
        """The first offset of each log whose record is at its moment (in milliseconds) or later; the high watermark where none is.

        Asked without isolation: under read_committed brokers answer "none" for a record behind an open transaction, as for one that is
        not there, and the end that they then tell lies below records that are older. Logs that stay without a leader are left out.
        """
        found = self._list(moments, Isolation.READ_UNCOMMITTED, wait_for_leader_s, None)
        late = {log: LATEST for log, offset in found.offsets.items() if offset is None}
        ends = self._list(late, Isolation.READ_UNCOMMITTED, wait_for_leader_s, None, found.leaders)
        return {log: offset for log, offset in {**found.offsets, **ends.offsets}.items() if offset is not None}

    def first_at(self, times_ms: Mapping[BrokerPartition, int], *, isolation: Isolation = Isolation.READ_COMMITTED,
                 wait_for_leader_s: float = 30.0) -> dict[BrokerPartition, int | None]:
        """The first offset of each log whose record is at its time or later; None where none is.

        Logs that stay without a leader are left out.
        """
        return self._list(times_ms, isolation, wait_for_leader_s, None).offsets

    def epoch_ends(self, epochs: Mapping[BrokerPartition, int], *, wait_for_leader_s: float = 30.0,
                   leaders: Mapping[BrokerPartition, Leader] | None = None) -> dict[BrokerPartition, EpochEnd]:
        """Where the records up to a leader epoch end in each leader's log now (KIP-320): one request per leader.

        Left out are logs whose leader cannot tell: a broker before 2.1, or an epoch that its log does not know. `leaders` saves the
        Metadata request. Raises what `extents` raises, and for a log that stays without a leader: not to know is no answer here.
        """
        deadline, attempt, told = time.monotonic() + wait_for_leader_s, 0, ToldEpochEnds()
        while waiting := {log: epoch for log, epoch in epochs.items() if log not in told}:
            known = self.describe({log.topic for log in waiting}).leaders if leaders is None else leaders
            failure = self._ask_epochs({log: known[log] for log in waiting if log in known}, waiting, told)
            left = deadline - time.monotonic()
            if told.keys() >= epochs.keys():
                break
            if left <= 0:
                lost = min(log for log in epochs if log not in told)
                raise failure or BrokerError("nobody leads the log", topic=lost.topic, partition=lost.partition, check="its brokers")
            time.sleep(min(left, _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]))
            leaders, attempt = None, attempt + 1
        return {log: EpochEnd(epochs[log], end.epoch, end.end_offset) for log, end in told.items()
                if end.epoch is not None and end.end_offset is not None}

    def _ask_epochs(self, leaders: Mapping[BrokerPartition, Leader], epochs: Mapping[BrokerPartition, int],
                    told: ToldEpochEnds) -> EtlError | None:
        """One round over the brokers into `told`; the error of a log that may still come, if there is one."""
        def ask(consumer: SimpleConsumer, logs: Collection[BrokerPartition]) -> ToldEpochEnds | EtlError:
            try:
                answer = consumer.epoch_ends({log: epochs[log] for log in logs}, {log: leaders[log].epoch for log in logs})
                return {log: answer.get(log, ToldEpochEnd(None, None, None)) for log in logs}
            except BrokerUnreachable as error:
                return error

        failure: EtlError | None = None
        for answer in self._of_each(leaders, ask):
            if isinstance(answer, EtlError):
                failure = answer
                continue
            for log, end in answer.items():
                if end.refusal is None:
                    told[log] = end
                    continue
                failure = end.refusal.error("tell where an epoch ends", topic=log.topic, partition=log.partition,
                                            broker=leaders[log].broker)
                if not end.refusal.is_retriable:
                    raise failure
        return failure

    def retention(self, topics: Collection[str]) -> dict[str, Retention]:
        """How long each topic is kept and how it is cleaned up: one request to the first broker that answers.

        A topic that we may not describe is left out, and every one where the broker is too old to tell.
        """
        if not topics:
            return {}
        try:
            return self._first(lambda consumer: consumer.retention(topics))
        except SettingsError:
            return {}

    def retained_from(self, found: Extents, since_ms: Mapping[BrokerPartition, int], *, isolation: Isolation) -> dict[BrokerPartition, int]:
        """The first offset of each log whose record is at that time or later, its end where none is: one ListOffsets per broker."""
        times = {log: when for log, when in since_ms.items() if log in found.leaders}
        try:
            listed = self._list(times, isolation, 0.0, None, found.leaders).offsets if times else {}
        except (SettingsError, BrokerUnreachable):
            return {}
        return {log: found.extents[log].end_offset if offset is None else offset for log, offset in listed.items()}

    def members_of(self, group: str, brokers: Collection[Broker]) -> KafkaGroup:
        """Who is alive in Kafka's own group of this name: one DescribeGroups to every broker, of which its coordinator answers.

        Who that is is not asked: where there never was a group, FindCoordinator makes the topic __consumer_offsets. Groups of the newer
        protocol (KIP-848) are not told. No failure of this question stops a run; it says why nobody could tell.
        """

        def ask(broker: Broker) -> ToldMembers | EtlError:
            try:
                return self._consumer(broker.host, broker.port).members_of(group)
            except (SettingsError, BrokerUnreachable, CorruptData) as error:
                return error

        for broker in brokers:
            self._consumer(broker.host, broker.port)  # made here, so that no two threads make one
        with ThreadPoolExecutor(_MOST_AT_A_TIME) as pool:
            answers = list(pool.map(ask, brokers))
        silent = [answer.what for answer in answers if isinstance(answer, EtlError)]
        for answer in answers:
            if not isinstance(answer, EtlError) and (answer.refusal is None or answer.refusal.meaning is not Meaning.NOT_COORDINATOR):
                return KafkaGroup(unknown=answer.refusal.name) if answer.refusal else KafkaGroup(answer.members)
        return KafkaGroup(unknown=silent[0] if silent else None)

    def bytes_per_offset(self, found: Extents) -> dict[BrokerPartition, float]:
        """How many bytes one offset costs on average, by the sizes of the leaders' segments: one request per broker.

        Logs of a broker that refuses to tell, or is too old to, are left out, and so are empty ones.
        """
        sizes: dict[BrokerPartition, int] = {}
        for answer in self._of_each(found.leaders, _sizes):
            sizes.update(answer)
        spans = {log: extent.end_offset - extent.log_start_offset for log, extent in found.extents.items()}
        return {log: size / spans[log] for log, size in sizes.items() if size > 0 and spans.get(log, 0) > 0}

    def _list(self, times: Mapping[BrokerPartition, int], isolation: Isolation, wait_s: float,
              known: ClusterMetadata | None, led: Mapping[BrokerPartition, Leader] | None = None) -> _Listed:
        """One offset per log, asked for again where a leader is missing or has moved, until the deadline.

        `known` and `led` save the first Metadata request.
        """
        deadline, attempt = time.monotonic() + wait_s, 0
        found = _Listed({}, {}, frozenset())
        while waiting := {log: when for log, when in times.items() if log not in found.offsets}:
            if led is None:
                known = known or self.describe({log.topic for log in waiting})
                led = known.leaders
            failure = self._list_once({log: led[log] for log in waiting if log in led}, waiting, isolation, found)
            waiting = {log: when for log, when in waiting.items() if log not in found.offsets}
            left = deadline - time.monotonic()
            if waiting and left <= 0:
                _give_up(failure, known, waiting)
                return replace(found, leaderless=frozenset(waiting))
            if waiting:
                time.sleep(min(left, _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]))
            known, led, attempt = None, None, attempt + 1
        return found

    def _list_once(self, leaders: Mapping[BrokerPartition, Leader], times: Mapping[BrokerPartition, int],
                   isolation: Isolation, found: _Listed) -> EtlError | None:
        """One round over the brokers into `found`; the error of a log that may still come, if there is one."""
        def ask(consumer: SimpleConsumer, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, ListedOffset] | BrokerUnreachable:
            try:
                return consumer.list_offsets({log: times[log] for log in logs}, isolation=isolation,
                                             epochs={log: leaders[log].epoch for log in logs})
            except BrokerUnreachable as error:
                return error

        failure: EtlError | None = None
        for answer in self._of_each(leaders, ask):
            if isinstance(answer, BrokerUnreachable):
                failure = answer
                continue
            for log, listed in answer.items():
                if listed.refusal is None:
                    found.offsets[log], found.leaders[log] = listed.offset, leaders[log]
                    if listed.leader_epoch is not None:
                        found.epochs[log] = listed.leader_epoch
                    continue
                failure = listed.refusal.error("list offsets", topic=log.topic, partition=log.partition, broker=leaders[log].broker)
                if not listed.refusal.is_retriable:
                    raise failure
        return failure

    def _of_each(self, leaders: Mapping[BrokerPartition, Leader],
                 ask: Callable[[SimpleConsumer, Collection[BrokerPartition]], Answer]) -> list[Answer]:
        """One answer per broker, brokers asked side by side; each has a connection of its own."""
        by_broker: dict[Broker, list[BrokerPartition]] = {}
        for log, leader in leaders.items():
            by_broker.setdefault(leader.broker, []).append(log)
        return self._side_by_side([(self._consumer(broker.host, broker.port), logs) for broker, logs in by_broker.items()], ask)

    @staticmethod
    def _side_by_side(asked: Sequence[tuple[SimpleConsumer, Subject]], ask: Callable[[SimpleConsumer, Subject], Answer]) -> list[Answer]:
        if len(asked) < 2:
            return [ask(consumer, subject) for consumer, subject in asked]
        with ThreadPoolExecutor(min(_MOST_AT_A_TIME, len(asked))) as pool:
            return list(pool.map(lambda each: ask(*each), asked))

    def _consumer(self, host: str, port: int) -> SimpleConsumer:
        if (host, port) not in self._consumers:
            self._consumers[host, port] = SimpleConsumer(host, port, client_id=self._client_id, timeout_s=self._timeout_s,
                                                         connect_timeout_s=self._connect_timeout_s)
        return self._consumers[host, port]


def _extent(log: BrokerPartition, start: int | None, end: int | None, high: int | None) -> Extent:
    if start is None or end is None or high is None:
        raise CorruptData("the broker names no offset for a log's start or end", topic=log.topic, partition=log.partition)
    # Retention may have moved the start in between, a truncation the end; an extent never ends before it starts.
    end = max(start, end)
    return Extent(start, end, high if high > end else None)


def _open_transactions(consumer: SimpleConsumer, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, OpenTransaction]:
    try:
        return consumer.open_transactions(logs)
    except (SettingsError, BrokerUnreachable):
        return {}


def _transactions(consumer: SimpleConsumer, producer_ids: Collection[int]) -> dict[int, tuple[str, int | None]]:
    try:
        return consumer.transactions_of(producer_ids)
    except (SettingsError, BrokerUnreachable):
        return {}


def _named(one: OpenTransaction, known: Mapping[int, tuple[str, int | None]]) -> OpenTransaction:
    name, since_ms = known.get(one.producer_id, (None, None))
    return replace(one, transactional_id=name, since_ms=since_ms)


def _sizes(consumer: SimpleConsumer, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
    # A hint for the planner: without it tasks are cut by offsets alone, so no failure of this question stops a run.
    try:
        return consumer.log_sizes(logs)
    except (SettingsError, BrokerUnreachable):
        return {}


def _give_up(failure: EtlError | None, known: ClusterMetadata | None, waiting: Collection[BrokerPartition]) -> None:
    """At the deadline: a leader that is named and does not answer, or a topic that is not there, is an error of its own."""
    if failure is not None:
        raise failure
    for log in sorted(waiting):
        topic = known.topics.get(log.topic) if known is not None else None
        if topic is None:
            raise TopicMissing("the brokers do not tell of the topic", topic=log.topic, check="its name, and whether it was deleted")
        if topic.refusal and topic.refusal.meaning in (Meaning.UNKNOWN_TOPIC, Meaning.NOT_ALLOWED):
            raise topic.refusal.error("tell of the topic", topic=log.topic)


def _is_unknown(topic: TopicMetadata) -> bool:
    return topic.refusal is not None and topic.refusal.meaning is Meaning.UNKNOWN_TOPIC
