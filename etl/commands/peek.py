"""How do you view the records of a topic?

`etl records show` prints the records of one partition, `etl records consume` those that are
assigned to a group member. Both store nothing, need no Spark and hold one fetch response in memory.
`show` retries for `source.request_timeout_s` if the leader moved or does not answer; with
`--follow` it uses a `Consumer`. `consume` takes its assignment from other members while it runs,
and commits only on request.

Lives here: reading records for printing, and the decoders of keys and values. Bytes that a decoder
cannot read become `Undecoded`, not an error.
Not here: how records are printed (etl/cli/record_screens.py).
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from etl.errors import (
    BrokerError,
    BrokerRefusal,
    BrokerUnreachable,
    CorruptData,
    EtlError,
    ExpiredOffsets,
    Meaning,
    MessageTooLarge,
    MisalignedOffset,
    RanOutBeforeUntil,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.cluster_requests import Cluster, chosen_topics
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import (
    EARLIEST,
    LATEST,
    ClusterMetadata,
    EntryLayout,
    FetchedPartition,
    FetchTarget,
)
from etl.model.partitions import (
    FORM_OF_PARTITION,
    Isolation,
    Leader,
    Membership,
    OffsetsStorage,
    PartitionOffsets,
    TopicPartition,
    parse_named,
)
from etl.reader.cursor import LEAST_FETCH_BYTES
from etl.records.decode import DecodedRecord, Messages
from etl.run.open_services import open_cluster
from etl.settings.choices import StartAt
from etl.settings.sections import Settings
from etl.settings.source import BeforeEnd, SourceSettings, Timestamp
from etl.streams.conf import ConsumerConfig, Group, RebalanceListener
from etl.streams.consumer import Consumer
from etl.streams.records import Record

FETCH_BYTES = 256 << 10
_LONGEST_WAIT_S = 0.5
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Ended(Enum):
    """Why printing ended; the value is the text for people and for the JSON document."""

    COUNT = "the requested number"
    INSIDE = (
        "the requested number, in the middle of a compressed message: "
        "a larger -n shows the rest of it"
    )
    END = "the end of the log"
    TIME_OUT = "no further record within --timeout"
    STOPPED = "stopped"


def error_of_no_leader(partition: TopicPartition) -> BrokerError:
    """Return the error for a partition without a leader."""
    return BrokerError(
        f"The partition {partition.unled}", **partition.place, action=partition.held_by
    )


class PeekedPartition:
    """Iterator over the records of one partition, from an offset to its present end."""

    def __init__(
        self,
        source: SourceSettings,
        cluster: Cluster,
        partition: TopicPartition,
        offsets: PartitionOffsets,
        leader: Leader,
        *,
        from_offset: int,
        most: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """See `PeekRequest`."""
        self.partition = partition
        self.extent = offsets
        self.from_offset = from_offset
        self.position = from_offset
        """Offset of the next fetch."""
        self.given = 0
        """Number of records returned."""
        self.ended: Ended | None = None
        """None until it has ended."""
        self._source = source
        self._cluster = cluster
        self._most = most
        self._timeout_s = timeout_s
        self._leader: Leader | None = leader
        """None: look it up before the next request."""
        self._first_bytes = min(FETCH_BYTES, source.fetch_max_bytes)
        self._max_bytes = self._first_bytes
        """Size of the next fetch; grows for a large record, and shrinks for a slow line."""
        self._least_bytes = LEAST_FETCH_BYTES
        """No smaller fetch: the size of the next record, if a response truncated it."""
        self._idle_since = time.monotonic()
        self._failing_since = math.inf
        self._last_failure: EtlError | None = None
        """The failure of the last fetch; None if the broker answered."""
        self._empty_answers = 0

    def records(self) -> Iterator[DecodedRecord]:
        """Yield records up to the number, the end that the partition had at first, or the timeout.

        Raises CorruptData, MisalignedOffset, MessageTooLarge, RecordTooLarge, ExpiredOffsets,
        RanOutBeforeUntil, and a broker's error after `source.request_timeout_s` of retries.
        """
        while self.ended is None:
            if self.position >= self.extent.end_offset:
                self.ended = Ended.END
                return
            fetched = self._fetch()
            if fetched is None:
                self._wait()
                continue
            messages = self._messages(fetched)
            if fetched.cut is not None and messages.next_offset == self.position:
                continue
            if messages.needed_bytes:
                self._grow(fetched, messages.needed_bytes)
            elif messages.next_offset == self.position:
                self._wait()
            else:
                if fetched.cut is None:
                    self._max_bytes = min(self._first_bytes, 2 * self._max_bytes)
                yield from self._records_of(messages)

    def _messages(self, fetched: FetchedPartition) -> Messages:
        try:
            return Messages(fetched)
        except MisalignedOffset as inside:
            if self.given or self.position != self.from_offset:
                raise
            action = (
                "Pass --from: messages begin at earliest, at committed offsets, "
                "and at the boundaries of `etl offsets show CONF --json`"
            )
            raise MisalignedOffset(inside.message, action=action, **inside.where) from None

    def _records_of(self, messages: Messages) -> Iterator[DecodedRecord]:
        self._empty_answers = 0
        self._least_bytes = LEAST_FETCH_BYTES
        self._note_answer()
        for record in messages:
            if record.offset >= self.extent.end_offset:
                self.ended = Ended.END
                return
            self.given += 1
            self.position = record.next_offset
            yield record
            if self.given == self._most:
                self.ended = _ended_by_count(record)
                return
        self.position = messages.next_offset
        self._idle_since = time.monotonic()

    def _fetch(self) -> FetchedPartition | None:
        """Return the next response; None if it is empty or failed and is retried.

        A leader that moved or does not answer is looked up again for `source.request_timeout_s`.
        The complete batches of a response that the deadline cut are returned.
        """
        try:
            leader = self._leader or self._find_leader()
            target = FetchTarget(self.partition, self.position, self._max_bytes, leader.epoch)
            answer = self._consumer(leader).multifetch(
                [target],
                isolation_level=self._source.isolation_level,
                max_bytes=self._max_bytes,
                fetch_max_wait_ms=self._wait_ms(),
                keeps_arrived=True,
            )
        except BrokerUnreachable as unreachable:
            self._look_up_again(unreachable)
            return None
        if answer.cut is not None:
            self._request_less(answer.cut)
        elif not answer.partitions:  # the client is over its quota
            self._note_answer()
        if not answer.partitions:
            return None
        failure = self._failure(answer.partitions[0].refusal)
        if failure is not None:
            self._look_up_again(failure)
            return None
        if answer.cut is None:
            self._note_answer()
        return answer.partitions[0]

    def _look_up_again(self, failure: EtlError) -> None:
        """Keep the failure, as `_note_failure`; the leader is looked up before the next request."""
        self._leader = None
        self._note_failure(failure)

    def _request_less(self, cut: EtlError) -> None:
        """Request half of the bytes next time: the deadline cut the response.

        It is a failure only if there is no smaller fetch: the bytes that arrived are no lack of
        records.
        """
        self._idle_since = time.monotonic()
        if self._max_bytes <= self._least_bytes:
            self._note_failure(cut)
            return
        self._max_bytes = max(self._least_bytes, self._max_bytes // 2)
        self._note_answer()

    def _note_answer(self) -> None:
        self._last_failure = None
        self._failing_since = math.inf

    def _note_failure(self, failure: EtlError) -> None:
        """Keep the failure, or raise it if they last for `source.request_timeout_s`."""
        self._last_failure = failure
        self._failing_since = min(self._failing_since, time.monotonic())
        if time.monotonic() - self._failing_since >= self._source.request_timeout_s:
            raise failure

    def _failure(self, refusal: BrokerRefusal | None) -> EtlError | None:
        """Return the error to raise after the last retry; raises it if a retry would not help."""
        if refusal is None:
            return None
        if refusal.meaning is Meaning.OUT_OF_RANGE:
            try:
                return self._out_of_range()
            except BrokerUnreachable as unreachable:
                return unreachable
        error = refusal.error("fetch", **self.partition.place, offset=self.position)
        if not refusal.is_retriable:
            raise error
        return error

    def _out_of_range(self) -> EtlError:
        start = self._bound(EARLIEST)
        end = self._bound(LATEST)
        if self.position < start:
            raise ExpiredOffsets(
                "The offset was deleted by retention before it was read",
                **self.partition.place,
                offset=self.position,
                log_start_offset=start,
                action=(
                    "Check the topic's retention. "
                    "Pass --from earliest to begin with the records that are left"
                ),
            )
        if self.position > end:
            raise RanOutBeforeUntil(
                f"The partition now ends at {end}, below an offset that was read",
                **self.partition.place,
                offset=self.position,
                action="Check whether the topic was deleted and recreated, or truncated",
            )
        action = "Check the broker's log"
        if not self.partition.is_physical:
            action += ": its replicas may disagree"
        return BrokerError(
            "The offset is out of range, and yet inside the log",
            **self.partition.place,
            offset=self.position,
            action=action,
        )

    def _bound(self, when: int) -> int:
        consumer = self._consumer(self._leader or self._find_leader())
        answers = consumer.list_offsets(
            {self.partition: when}, isolation_level=Isolation.READ_UNCOMMITTED
        )
        listed = answers[self.partition]
        if listed.refusal:
            error = listed.refusal.error(
                "report the start and end of the partition", **self.partition.place
            )
            if listed.refusal.is_retriable:
                # A broker that lost the replica reports that the topic is missing.
                raise BrokerError(error.message, **self.partition.place, action=error.action)
            raise error
        if listed.offset is None:
            raise BrokerError(
                "The broker reports no start or end of the partition",
                **self.partition.place,
                action="Check the broker's log",
            )
        return listed.offset

    def _consumer(self, leader: Leader) -> SimpleConsumer:
        return self._cluster.consumer(
            leader.broker.host, leader.broker.port, leader.broker.broker_type
        )

    def _find_leader(self) -> Leader:
        self._leader = self._cluster.describe([self.partition.topic]).leaders.get(self.partition)
        if self._leader is None:
            raise error_of_no_leader(self.partition)
        return self._leader

    def _grow(self, fetched: FetchedPartition, needed: int) -> None:
        """Increase the fetch size for a large record.

        Raises MessageTooLarge, and MisalignedOffset or CorruptData for a wrong size field.
        """
        limit = max(self._source.max_batch_bytes, self._first_bytes)
        if len(fetched.records) < self._max_bytes:
            kind = MisalignedOffset if fetched.layout is EntryLayout.PHYSICAL else CorruptData
            message = f"A message claims {needed:,} bytes, and {len(fetched.records):,} are there"
            raise kind(
                message,
                **self.partition.place,
                offset=self.position,
                action="Check that a message begins at this offset, and the broker's log",
            )
        if max(needed, self._max_bytes + 1) > limit:
            message = f"A record does not fit into the largest fetch, {limit:,} bytes"
            if needed > 1:
                message += f"; it takes {needed:,}"
            raise MessageTooLarge(
                message,
                **self.partition.place,
                offset=self.position,
                action="Raise source.max_batch_bytes",
            )
        self._least_bytes = max(LEAST_FETCH_BYTES, needed)
        self._max_bytes = min(limit, max(2 * self._max_bytes, needed))

    def _wait_ms(self) -> int:
        """Return how long the broker may delay its response."""
        return max(1, round(min(_LONGEST_WAIT_S, self._left_s()) * 1000))

    def _left_s(self) -> float:
        """Return the time left to wait for the next record."""
        if self._timeout_s is None:
            return math.inf
        return self._idle_since + self._timeout_s - time.monotonic()

    def _wait(self) -> None:
        """Wait before the next fetch; pauses grow, as a broker may answer empty fetches at once.

        Raises the failure of the last fetch if no time is left.
        """
        left_s = self._left_s()
        if left_s <= 0:
            if self._last_failure is not None:
                raise self._last_failure
            self.ended = Ended.TIME_OUT
            return
        pause_s = _SHORTEST_PAUSE_S * 2 ** min(self._empty_answers, 10)
        time.sleep(min(pause_s, _LONGEST_PAUSE_S, left_s))
        self._empty_answers += 1


def _ended_by_count(last: DecodedRecord | Record) -> Ended:
    """Return whether the last record ends its message: a Jafka message has one offset."""
    if last.next_offset > last.offset:
        return Ended.COUNT
    return Ended.INSIDE


Start = StartAt | Timestamp | BeforeEnd | int


@dataclass(frozen=True, slots=True)
class PeekRequest:
    """Which records of a partition to print."""

    partition: str
    """`TOPIC:PARTITION`: `clicks:3`, or `clicks:0-3` on Jafka."""
    start: Start = StartAt.EARLIEST
    most: int | None = None
    """Number of records; None: all."""
    follows: bool = False
    """True if it continues beyond the first end."""
    timeout_s: float | None = None
    """How long to wait for the next record; None: without end."""


@contextlib.contextmanager
def open_peek(settings: Settings, wanted: PeekRequest) -> Iterator[PeekedPartition]:
    """Find the partition and its start offset; closes its connections at the end.

    Raises TopicMissing, SettingsError for an unknown partition or start, and what brokers and
    ZooKeeper raise.
    """
    partition = _partition_of(settings, wanted)
    with open_cluster(settings) as cluster:
        source = settings.source
        metadata = cluster.describe_when_known([partition.topic], wait_s=source.wait_for_leader_s)
        _reject_unknown_partition(partition, metadata)
        found = cluster.extents(
            [partition],
            isolation=source.isolation_level,
            wait_for_leader_s=source.wait_for_leader_s,
            metadata=metadata,
        )
        if partition not in found.extents:
            raise error_of_no_leader(partition)
        offsets = found.extents[partition]
        from_offset = _start_of(cluster, partition, offsets, wanted.start)
        peeked_class = FollowedPartition if wanted.follows else PeekedPartition
        yield peeked_class(
            source,
            cluster,
            partition,
            offsets,
            found.leaders[partition],
            from_offset=from_offset,
            most=wanted.most,
            timeout_s=wanted.timeout_s,
        )


def _partition_of(settings: Settings, wanted: PeekRequest) -> TopicPartition:
    partition = parse_named(wanted.partition).partition
    if partition is None:
        raise SettingsError(
            f"{wanted.partition} is a topic, and records are printed of one partition",
            key="--partition",
            action=f"Write it in the form TOPIC:PARTITION; {FORM_OF_PARTITION}",
        )
    if partition.is_physical != settings.source.is_physical:
        raise SettingsError(
            f"{wanted.partition!r} names no partition of this cluster",
            key="--partition",
            action=(
                "Pass BROKER-PARTITION, e.g. 0-3, for source.broker_type jafka, "
                "else a number alone, e.g. 3"
            ),
        )
    return partition


def _reject_unknown_partition(topic_partition: TopicPartition, metadata: ClusterMetadata) -> None:
    described = metadata.topics.get(topic_partition.topic)
    refusal = described.refusal if described else None
    if described is None or (refusal and refusal.meaning is Meaning.UNKNOWN_TOPIC):
        raise TopicMissing(
            "There is no such topic",
            key="--partition",
            topic=topic_partition.topic,
            action="Check its name; `etl offsets show` lists those of the conf",
        )
    if refusal and not described.partitions:
        raise refusal.error("describe the topic", topic=topic_partition.topic)
    known = [partition.partition for partition in described.partitions]
    if topic_partition not in known:
        keys = ", ".join(each.key for each in known)
        action = f"Check its partitions: {keys or 'none'}"
        if topic_partition.is_physical:
            action += "; partitions of an unreachable broker are unknown"
        raise SettingsError(
            f"The topic has no partition {topic_partition.key}",
            key="--partition",
            action=action,
            topic=topic_partition.topic,
        )


def _start_of(
    cluster: Cluster, partition: TopicPartition, offsets: PartitionOffsets, start: Start
) -> int:
    if isinstance(start, Timestamp):
        found = cluster.offsets_at({partition: start.ms}).get(partition)
        if found is None:
            raise error_of_no_leader(partition)
        return found
    if isinstance(start, StartAt):
        if start is StartAt.EARLIEST:
            return offsets.log_start_offset
        return offsets.end_offset
    if isinstance(start, BeforeEnd):
        if partition.is_physical:
            raise SettingsError(
                "Jafka's offsets are byte positions, so the last messages cannot be counted",
                key="--last",
                action="Pass --from, with an offset of `etl offsets show CONF`",
            )
        return max(offsets.log_start_offset, offsets.end_offset - start.offsets)
    end = max(offsets.end_offset, offsets.high_watermark or 0)
    if not offsets.log_start_offset <= start <= end:
        message = (
            f"Offset {start} is not in the log, "
            f"which has {offsets.log_start_offset} to {offsets.end_offset}"
        )
        raise SettingsError(
            message, **partition.place, action="Pass --from with an offset in this range"
        )
    return start


_FOLLOW_SLICE_S = 0.5


class FollowedPartition(PeekedPartition):
    """Iterator over the records of one partition that ends only by count or timeout."""

    def records(self) -> Iterator[Record]:  # type: ignore[override]
        """Yield records up to the number or the timeout. Raises as `Consumer.poll`."""
        source, partition = self._source, self.partition
        conf = ConsumerConfig(
            isolation_level=source.isolation_level,
            broker_version=source.broker_version,
            fetch_max_bytes=source.fetch_max_bytes,
            max_partition_fetch_bytes=FETCH_BYTES,
            max_batch_bytes=source.max_batch_bytes,
            request_timeout_s=source.request_timeout_s,
        )
        with Consumer.on(self._cluster, conf) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, self.from_offset)
            while self.ended is None:
                polled = self._poll(consumer)
                for record in polled:
                    self.given += 1
                    self.position = record.next_offset
                    yield record
                    if self.given == self._most:
                        self.ended = _ended_by_count(record)
                        return
                if polled:
                    self._idle_since = time.monotonic()
                else:
                    self.position = consumer.position(partition)
                    if self._left_s() <= 0:
                        self.ended = Ended.TIME_OUT

    def _poll(self, consumer: Consumer) -> list[Record]:
        wait_s = max(0.0, min(_FOLLOW_SLICE_S, self._left_s()))
        try:
            return consumer.poll(wait_s).get(self.partition, [])
        except (ExpiredOffsets, RanOutBeforeUntil) as gone:
            action = (
                "Check the topic's retention, and whether it was deleted and recreated. "
                "Pass --from earliest to begin with the records that are left"
            )
            raise type(gone)(gone.message, action=action, **gone.where) from None
        except CorruptData as broken:
            action = "Check the broker's log. Pass --from to continue after the damage"
            raise type(broken)(broken.message, action=action, **broken.where) from None


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Bytes that a decoder could not read, and why."""

    content: bytes
    why: str


Decoder = Callable[[bytes], Any]


def decoder_of(name: str, option: str) -> Decoder:
    """Return a decoder: one of `DECODERS`, or a function of bytes as `package.module:function`.

    Raises SettingsError, which names the option.
    """
    if ":" not in name and name not in DECODERS:
        raise SettingsError(
            f"There is no decoder {name!r}",
            key=option,
            action=f"Use one of {', '.join(DECODERS)}, or package.module:function",
        )
    decode = DECODERS[name] if name in DECODERS else _function(name, option)

    def decoded(content: bytes) -> Any:
        try:
            found = decode(content)
            json.dumps(found, default=str)
            return found
        except Exception as error:  # a user's function may raise anything; the record is shown
            return Undecoded(content, f"{type(error).__name__}: {error}")

    return decoded


def _function(name: str, option: str) -> Decoder:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # importing a user's module runs it, which may raise anything
        action = (
            "Check the name, package.module:function, "
            "and that the module can be imported from here (PYTHONPATH)"
        )
        message = f"The decoder {name!r} cannot be loaded: {type(error).__name__}: {error}"
        raise SettingsError(message, key=option, action=action) from None
    if not callable(found):
        raise SettingsError(
            f"The decoder {name!r} is not a function",
            key=option,
            action="Check the name: package.module:function",
        )
    decode: Decoder = found
    return decode


def _json(content: bytes) -> Any:
    return json.loads(content, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _number(content: bytes) -> int:
    if len(content) not in (1, 2, 4, 8):
        raise ValueError(f"a number has 1, 2, 4 or 8 bytes, the value has {len(content)}")
    return int.from_bytes(content, "big", signed=True)


DECODERS: dict[str, Decoder] = {
    "text": lambda content: content.decode("utf-8"),
    "json": _json,
    "hex": bytes.hex,
    "base64": lambda content: base64.b64encode(content).decode("ascii"),
    "int": _number,
}
"""`text` is UTF-8, `int` a signed big-endian number of 1, 2, 4 or 8 bytes, as Java's serializers
write them.
"""


_SLICE_S = 0.5
_COMMIT_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class TailRequest:
    """The group to join, and how many records to print."""

    group: str
    topics: tuple[str, ...] = ()
    """Empty: the existing topics of the conf."""
    start: StartAt = StartAt.LATEST
    """Start of partitions without a committed offset."""
    most: int | None = None
    timeout_s: float | None = None
    commits: bool = False
    """True if printed records are committed."""


@contextlib.contextmanager
def open_tail(settings: Settings, wanted: TailRequest) -> Iterator[TailedGroup]:
    """Return a consumer that joins at its first poll and leaves at the end.

    Raises SettingsError for the pipeline's own group, TopicMissing, and as `Consumer`.
    """
    _reject_own_group(settings, wanted.group)
    topics = wanted.topics or _topics(settings)
    with Consumer.of_conf(conf_of(settings, wanted)) as consumer:
        tailed = TailedGroup(consumer, topics, wanted)
        yield tailed
        tailed.commit()


def _reject_own_group(settings: Settings, group: str) -> None:
    if group == settings.group.id:
        message = f"{group} is the pipeline's own group, and its offsets follow the table"
    elif group == settings.group.mirror_group:
        message = f"{group} is the group that mirrors the pipeline's offsets (group.mirror_group)"
    else:
        return
    raise SettingsError(
        message,
        key="--group",
        action="Use another group; `etl records show` prints records without a group",
    )


def conf_of(settings: Settings, wanted: TailRequest) -> ConsumerConfig:
    """Return the consumer settings for the conf's brokers and the group."""
    source = settings.source
    join = settings.group.join
    storage = OffsetsStorage.KAFKA
    membership = Membership.COORDINATOR
    connect = None
    access = None
    if source.bootstrap_servers is None:
        connect = settings.zookeeper.connect
        access = settings.zookeeper.access
        if settings.group.offsets_storage is OffsetsStorage.ZOOKEEPER:
            storage = OffsetsStorage.ZOOKEEPER
            membership = Membership.ZOOKEEPER
    group = Group(
        wanted.group,
        membership,
        join.assignment_strategy[0].value,
        join.protocol.value,
        join_timeout_s=join.join_timeout_s,
        rebalance_timeout_s=join.rebalance_timeout_s,
    )
    return ConsumerConfig(
        source.bootstrap_servers,
        connect,
        group,
        storage,
        source.broker_type,
        source.broker_version,
        wanted.start,
        source.isolation_level,
        source.fetch_max_bytes,
        max_batch_bytes=source.max_batch_bytes,
        request_timeout_s=source.request_timeout_s,
        security=source.way_in,
        zookeeper_security=access,
    )


def _topics(settings: Settings) -> tuple[str, ...]:
    source = settings.source
    with open_cluster(settings) as cluster:
        metadata = cluster.describe_when_known(None, wait_s=source.wait_for_leader_s)
        found = chosen_topics(metadata, source.topic_filter).topics
    if not found:
        raise TopicMissing(
            "No topic of the conf exists", action="Check source.topics, or pass --topic"
        )
    return tuple(sorted(found))


class TailedGroup(RebalanceListener):
    """Iterator over the records that are assigned to a group member."""

    def __init__(self, consumer: Consumer, topics: tuple[str, ...], wanted: TailRequest) -> None:
        self.group = wanted.group
        self.topics = topics
        self.given = 0
        """Number of records returned."""
        self.ended: Ended | None = None
        """None until it has ended."""
        self._consumer = consumer
        self._wanted = wanted
        self._idle_since = time.monotonic()
        self._uncommitted: dict[TopicPartition, int] = {}
        """The offset to commit for each partition with printed records since the last commit."""
        consumer.subscribe(topics, listener=self)

    def records(self) -> Iterator[Record]:
        """Yield records up to the number or the timeout. Raises as `Consumer.poll`."""
        self._idle_since = time.monotonic()
        committed_at = self._idle_since
        timeout_s = self._wanted.timeout_s
        while self.ended is None:
            for polled in self._poll():
                for record in polled:
                    self.given += 1
                    yield record
                    self._uncommitted[record.topic_partition] = record.next_offset
                    if self.given == self._wanted.most:
                        self.ended = _ended_by_count(record)
                        return
                self._idle_since = time.monotonic()
            if self._consumer.is_rebalancing:
                self._idle_since = time.monotonic()
            if timeout_s is not None and time.monotonic() - self._idle_since >= timeout_s:
                self.ended = Ended.TIME_OUT
            if time.monotonic() - committed_at >= _COMMIT_EVERY_S:
                self.commit()
                committed_at = time.monotonic()

    def _poll(self) -> Collection[list[Record]]:
        try:
            return self._consumer.poll(_SLICE_S).values()
        except (ExpiredOffsets, RanOutBeforeUntil, CorruptData) as unread:
            action = (
                "Check the topic's retention, and whether it was recreated. "
                "`etl records show` shows the records that are left, and a group without offsets "
                "begins there with --offset-reset earliest"
            )
            if isinstance(unread, CorruptData):
                action = (
                    "Check the broker's log. "
                    "`etl records show --from OFFSET` shows the records after the damage"
                )
            raise type(unread)(unread.message, action=action, **unread.where) from None

    def commit(self) -> None:
        """Commit what was printed, if requested."""
        if self._wanted.commits and self._uncommitted:
            self._consumer.commit(dict(self._uncommitted.items()))
        self._uncommitted.clear()

    def drop_uncommitted(self) -> None:
        """Commit none of the records printed since the last commit."""
        self._uncommitted.clear()

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """See `RebalanceListener`. A rebalance does not count as time without records."""
        self._idle_since = time.monotonic()

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """See `RebalanceListener`."""
        self.commit()

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """See `RebalanceListener`."""
        for partition in partitions:
            self._uncommitted.pop(partition, None)
