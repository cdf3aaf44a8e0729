"""How does a person view records?

`etl records show` prints the records of one partition, `etl records consume` those assigned to a group member. Nothing
is stored, no Spark is needed, one response is in memory at a time. `show` retries a leader that
moved or is silent for `source.request_timeout_s`; with follow it uses a `Consumer`. `consume` takes its
assignment from other members while it runs, and commits only on request.

Decoders turn keys and values into JSON values. Bytes that a decoder cannot read are `Undecoded`,
not an error.
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
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.cluster import Cluster, chosen_topics
from etl.kafka.messages import EARLIEST, LATEST, EntryLayout, FetchedPartition, FetchTarget
from etl.model.partitions import (
    FORM_OF_PARTITION,
    BrokerPartition,
    Isolation,
    Leader,
    Membership,
    OffsetsStorage,
    PartitionOffsets,
    parse_named,
)
from etl.records.decode import DecodedRecord, Messages
from etl.run.shell import open_cluster
from etl.settings.choices import StartAt
from etl.settings.sections import Settings
from etl.settings.source import BeforeEnd, SourceSettings, Timestamp
from etl.streams.conf import ConsumerConfig, Group, RebalanceListener
from etl.streams.consumer import Consumer
from etl.streams.records import Record

FETCH_BYTES = 256 << 10
_LONGEST_WAIT_S = 0.5
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class Ended(Enum):
    """Why there are no more records."""

    COUNT = "as many as were asked for"
    INSIDE = "as many as were asked for, in the middle of a compressed message: a larger -n shows the rest of it"
    END = "the end of the log"
    TIME_OUT = "nothing more came in time"
    STOPPED = "stopped"


def leaderless(log: BrokerPartition) -> BrokerError:
    """Return the error for a partition without a leader."""
    return BrokerError(f"The log {log.unled}", **log.place, action=log.held_by)


class PeekedLog:
    """Iterates over records of one partition."""

    def __init__(
        self,
        source: SourceSettings,
        cluster: Cluster,
        log: BrokerPartition,
        extent: PartitionOffsets,
        leader: Leader,
        *,
        from_offset: int,
        most: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """See `PeekRequest`."""
        self.log, self.extent, self.from_offset = log, extent, from_offset
        self.position = from_offset
        """Offset of the next fetch."""
        self.given = 0
        self.ended: Ended | None = None
        """None until it has ended."""
        self._source, self._cluster = source, cluster
        self._most, self._timeout_s = most, timeout_s
        self._leader: Leader | None = leader
        self._least_bytes = self._max_bytes = min(FETCH_BYTES, source.fetch_max_bytes)
        self._idle_since, self._failing_since, self._empty_answers = time.monotonic(), math.inf, 0

    def records(self) -> Iterator[DecodedRecord]:
        """Each record, until there are as many as wanted, the log ends where it ended at first, or
        nothing comes in time.

        Raises CorruptData, MisalignedOffset, MessageTooLarge, RecordTooLarge, ExpiredOffsets,
        RanOutBeforeUntil, and what a broker that stays silent for `source.request_timeout_s` or refuses
        comes to.
        """
        while self.ended is None:
            if self._is_at_end:
                self.ended = Ended.END
            elif (fetched := self._fetched()) is None:
                self._wait()
            elif needed := (messages := self._messages(fetched)).needed_bytes:
                self._grow(fetched, needed)
            elif messages.next_offset == self.position:
                self._wait()
            else:
                yield from self._given(messages)

    def _messages(self, fetched: FetchedPartition) -> Messages:
        try:
            return Messages(fetched)
        except MisalignedOffset as inside:
            if self.given or self.position != self.from_offset:
                raise
            action = "Pass --from: messages begin at earliest, at committed offsets, and at the boundaries of `etl offsets show CONF --json`"
            raise MisalignedOffset(inside.message, action=action, **inside.where) from None

    @property
    def _is_at_end(self) -> bool:
        return self.position >= self.extent.end_offset

    def _given(self, messages: Messages) -> Iterator[DecodedRecord]:
        self._max_bytes, self._empty_answers = self._least_bytes, 0
        for record in messages:
            if record.offset >= self.extent.end_offset:
                self.ended = Ended.END
                return
            self.given += 1
            self.position = record.next_offset
            yield record
            if self.given == self._most:
                self.ended = Ended.COUNT if record.next_offset > record.offset else Ended.INSIDE
                return
        self.position, self._idle_since = messages.next_offset, time.monotonic()

    def _fetched(self) -> FetchedPartition | None:
        """Return the next response; None if it is empty. A leader that moved or is silent is looked
        up again for a while.
        """
        try:
            leader = self._leader or self._found_leader()
            target = FetchTarget(self.log, self.position, self._max_bytes, leader.epoch)
            answer = self._consumer(leader).multifetch(
                [target],
                isolation=self._source.isolation_level,
                max_bytes=self._max_bytes,
                max_wait_ms=self._wait_ms(),
            )
            failure = self._failure(answer.partitions[0].refusal) if answer.partitions else None
        except BrokerUnreachable as unreachable:
            failure = unreachable
        if failure is None:
            self._failing_since = math.inf
            return answer.partitions[0] if answer.partitions else None  # none: over quota
        self._leader, self._failing_since = None, min(self._failing_since, time.monotonic())
        if time.monotonic() - self._failing_since >= self._source.request_timeout_s:
            raise failure
        return None

    def _failure(self, refusal: BrokerRefusal | None) -> EtlError | None:
        """Return the error to raise after the last retry; raises it if a retry would not help."""
        if refusal is None:
            return None
        if refusal.meaning is Meaning.OUT_OF_RANGE:
            return self._out_of_range()
        error = refusal.error("fetch", **self.log.place, offset=self.position)
        if not refusal.is_retriable:
            raise error
        return error

    def _out_of_range(self) -> EtlError:
        start, end = (self._bound(when) for when in (EARLIEST, LATEST))
        if self.position < start:
            raise ExpiredOffsets(
                "The offset was deleted by retention before it was read",
                **self.log.place,
                offset=self.position,
                log_start_offset=start,
                action="Check the topic's retention; --from earliest begins with what is left",
            )
        if self.position > end:
            raise RanOutBeforeUntil(
                f"The log ends at {end} by now, below what was read",
                **self.log.place,
                offset=self.position,
                action="Check whether the topic was deleted and made again, or lost its end with a broker",
            )
        return BrokerError(
            "The offset is out of range, and yet inside the log",
            **self.log.place,
            offset=self.position,
            action="Check the broker's log"
            if self.log.is_physical
            else "Check the broker's log: its replicas may disagree",
        )

    def _bound(self, when: int) -> int:
        consumer = self._consumer(self._leader or self._found_leader())
        listed = consumer.list_offsets({self.log: when}, isolation=Isolation.READ_UNCOMMITTED)[
            self.log
        ]
        if listed.refusal or listed.offset is None:
            raise BrokerError(
                "The broker names no start or end of the log",
                **self.log.place,
                action="Check the broker's log",
            )
        return listed.offset

    def _consumer(self, leader: Leader) -> SimpleConsumer:
        return self._cluster.consumer(
            leader.broker.host, leader.broker.port, leader.broker.generation
        )

    def _found_leader(self) -> Leader:
        self._leader = self._cluster.describe([self.log.topic]).leaders.get(self.log)
        if self._leader is None:
            raise leaderless(self.log)
        return self._leader

    def _grow(self, fetched: FetchedPartition, needed: int) -> None:
        """Increase the fetch size for a large record, or raise what is wrong with it."""
        limit = max(self._source.max_batch_bytes, self._least_bytes)
        if len(fetched.records) < self._max_bytes:
            kind = MisalignedOffset if fetched.layout is EntryLayout.PHYSICAL else CorruptData
            message = f"A message claims {needed:,} bytes, and {len(fetched.records):,} are there"
            raise kind(
                message,
                **self.log.place,
                offset=self.position,
                action="Check that a message begins at this offset, and the broker's log",
            )
        if max(needed, self._max_bytes + 1) > limit:
            takes = f"; it takes {needed:,}" if needed > 1 else ""
            raise MessageTooLarge(
                f"A record does not fit into the largest fetch, {limit:,} bytes{takes}",
                **self.log.place,
                offset=self.position,
                action="Check source.max_batch_bytes",
            )
        self._max_bytes = min(limit, max(2 * self._max_bytes, needed))

    def _wait_ms(self) -> int:
        """How long the broker may hold an answer back."""
        return max(1, round(min(_LONGEST_WAIT_S, self._left_s()) * 1000))

    def _left_s(self) -> float:
        """How long the next record may still be waited for."""
        if self._timeout_s is None:
            return math.inf
        return self._idle_since + self._timeout_s - time.monotonic()

    def _wait(self) -> None:
        """Wait before the next fetch, if the broker answered an empty one at once."""
        left_s = self._left_s()
        if left_s <= 0:
            self.ended = Ended.TIME_OUT
            return
        time.sleep(
            min(_SHORTEST_PAUSE_S * 2 ** min(self._empty_answers, 10), _LONGEST_PAUSE_S, left_s)
        )
        self._empty_answers += 1


Start = StartAt | Timestamp | BeforeEnd | int


@dataclass(frozen=True, slots=True)
class PeekRequest:
    """Which records of a partition to print."""

    partition: str
    """As people write it: `clicks:3`, or `clicks:0-3` on Jafka."""
    start: Start = StartAt.EARLIEST
    most: int | None = None
    """Records; None: all."""
    follows: bool = False
    """True if it continues beyond the first end."""
    timeout_s: float | None = None
    """How long to wait for the next record; None: without end."""


@contextlib.contextmanager
def open_peek(settings: Settings, wanted: PeekRequest) -> Iterator[PeekedLog]:
    """The log is found, and where to start in it; its connections are closed at the end.

    Raises TopicMissing, and SettingsError for a partition or a start that is not there, besides
    what brokers and ZooKeeper raise.
    """
    log = _log_of(settings, wanted)
    with open_cluster(settings) as cluster:
        source = settings.source
        metadata = cluster.describe_when_known([log.topic], wait_s=source.wait_for_leader_s)
        described = metadata.topics.get(log.topic)
        if described is None or (
            described.refusal and described.refusal.meaning is Meaning.UNKNOWN_TOPIC
        ):
            raise TopicMissing(
                "There is no such topic",
                topic=log.topic,
                action="Check its name; `etl offsets show` lists those of the conf",
            )
        if described.refusal and not described.partitions:
            raise described.refusal.error("tell of the topic", topic=log.topic)
        if log not in (known := [each.log for each in described.partitions]):
            there = ", ".join(each.key for each in known) or "none"
            away = "; those of a broker that is away are not told" if log.is_physical else ""
            raise SettingsError(
                f"The topic has no partition {log.key}",
                action=f"Check its partitions: {there}{away}",
                topic=log.topic,
            )
        found = cluster.extents(
            [log],
            isolation=source.isolation_level,
            wait_for_leader_s=source.wait_for_leader_s,
            metadata=metadata,
        )
        if log not in found.extents:
            raise leaderless(log)
        extent = found.extents[log]
        from_offset = _start_of(cluster, log, extent, wanted.start)
        yield _kind(wanted)(
            source,
            cluster,
            log,
            extent,
            found.leaders[log],
            from_offset=from_offset,
            most=wanted.most,
            timeout_s=wanted.timeout_s,
        )


def _kind(wanted: PeekRequest) -> type[PeekedLog]:
    if not wanted.follows:
        return PeekedLog

    return FollowedLog


def _log_of(settings: Settings, wanted: PeekRequest) -> BrokerPartition:
    log = parse_named(wanted.partition).log
    if log is None:
        raise SettingsError(
            f"{wanted.partition} is a topic, and records are printed of one partition",
            key="--partition",
            action=f"Write it in the form TOPIC:PARTITION; {FORM_OF_PARTITION}",
        )
    if log.is_physical != settings.source.is_physical:
        raise SettingsError(
            f"{wanted.partition!r} names no partition of this cluster",
            key="--partition",
            action="BROKER-PARTITION, e.g. 0-3, for source.broker_type jafka, else a number alone, e.g. 3",
        )
    return log


def _start_of(
    cluster: Cluster, log: BrokerPartition, extent: PartitionOffsets, start: Start
) -> int:
    if isinstance(start, Timestamp):
        found = cluster.offsets_at({log: start.ms}).get(log)
        if found is None:
            raise leaderless(log)
        return found
    if isinstance(start, StartAt):
        return extent.log_start_offset if start is StartAt.EARLIEST else extent.end_offset
    if isinstance(start, BeforeEnd):
        if log.is_physical:
            raise SettingsError(
                "Offsets are byte positions, from which no messages can be counted",
                key="--last",
                action="Pass --from, with an offset of `etl offsets show CONF`",
            )
        return max(extent.log_start_offset, extent.end_offset - start.offsets)
    if not extent.log_start_offset <= start <= max(extent.end_offset, extent.high_watermark or 0):
        message = f"Offset {start} is not in the log, which has {extent.log_start_offset} to {extent.end_offset}"
        raise SettingsError(message, **log.place, action="Pass --from")
    return start


_FOLLOW_SLICE_S = 0.5


class FollowedLog(PeekedLog):
    """See `PeekedLog`; ends only by time without records, and by count."""

    def records(self) -> Iterator[Record]:  # type: ignore[override]
        """Each record, until there are as many as wanted, or nothing comes in time. Raises as
        `Consumer.poll`.
        """
        source, log = self._source, self.log
        conf = ConsumerConfig(
            isolation=source.isolation_level,
            broker_version=source.broker_version,
            fetch_max_bytes=source.fetch_max_bytes,
            partition_max_bytes=FETCH_BYTES,
            max_batch_bytes=source.max_batch_bytes,
            timeout_s=source.request_timeout_s,
        )
        with Consumer.on(self._cluster, conf) as consumer:
            consumer.assign([log])
            consumer.seek(log, self.from_offset)
            while self.ended is None:
                some = self._polled(consumer)
                for record in some:
                    self.given += 1
                    self.position = record.next_offset
                    yield record
                    if self.given == self._most:
                        if record.next_offset > record.offset:
                            self.ended = Ended.COUNT
                        else:
                            self.ended = Ended.INSIDE
                        return
                if some:
                    self._idle_since = time.monotonic()
                else:
                    self.position = consumer.position(log)
                    self.ended = Ended.TIME_OUT if self._left_s() <= 0 else None

    def _polled(self, consumer: Consumer) -> list[Record]:
        try:
            return consumer.poll(max(0.0, min(_FOLLOW_SLICE_S, self._left_s()))).get(self.log, [])
        except (ExpiredOffsets, RanOutBeforeUntil) as gone:
            action = "Check the topic's retention, and whether it was deleted and made again; --from earliest begins with what is left"
            raise type(gone)(gone.message, action=action, **gone.where) from None
        except CorruptData as broken:
            action = "Check the broker's log; --from continues behind it"
            raise type(broken)(broken.message, action=action, **broken.where) from None


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Bytes that a decoder could not read, and why."""

    content: bytes
    why: str


Decoder = Callable[[bytes], Any]


def decoder_of(name: str) -> Decoder:
    """The decoder of this name: one of `DECODERS`, or a function of bytes as
    `package.module:function`. Raises SettingsError.
    """
    if ":" not in name and name not in DECODERS:
        raise SettingsError(
            f"There is no decoder {name!r}",
            action=f"Use one of {', '.join(DECODERS)}, or package.module:function",
        )
    decode = DECODERS[name] if name in DECODERS else _function(name)

    def decoded(content: bytes) -> Any:
        try:
            found = decode(content)
            json.dumps(found, default=str)
            return found
        except Exception as error:  # whatever somebody else's function raises or makes, the record is there and can be shown
            return Undecoded(content, f"{type(error).__name__}: {error}")

    return decoded


def _function(name: str) -> Decoder:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # the module is somebody else's, and importing it runs it
        action = "Check the name, package.module:function, and that the module can be imported from here (PYTHONPATH)"
        raise SettingsError(
            f"The decoder {name!r} cannot be loaded: {type(error).__name__}: {error}", action=action
        ) from None
    if not callable(found):
        raise SettingsError(
            f"The decoder {name!r} is no function", action="Check the name: package.module:function"
        )
    decode: Decoder = found
    return decode


def _json(content: bytes) -> Any:
    return json.loads(content, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _number(content: bytes) -> int:
    if len(content) not in (1, 2, 4, 8):
        raise ValueError(f"a number has 1, 2, 4 or 8 bytes, here are {len(content)}")
    return int.from_bytes(content, "big", signed=True)


DECODERS: dict[str, Decoder] = {
    "text": lambda content: content.decode("utf-8"),
    "json": _json,
    "hex": bytes.hex,
    "base64": lambda content: base64.b64encode(content).decode("ascii"),
    "int": _number,
}
"""`text` is UTF-8, `int` a signed number of 1, 2, 4 or 8 bytes, the high one first, as Java's
serializers write them.
"""


_SLICE_S, _COMMIT_EVERY_S = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class TailRequest:
    """The group to join, and how many records to print."""

    group: str
    topics: tuple[str, ...] = ()
    """None: those of the conf that there are now."""
    start: StartAt = StartAt.LATEST
    """Start of partitions without a committed offset."""
    most: int | None = None
    timeout_s: float | None = None
    commits: bool = False
    """True if printed records are committed."""


@contextlib.contextmanager
def open_tail(settings: Settings, wanted: TailRequest) -> Iterator[TailedGroup]:
    """Return a consumer that joins at its first poll and leaves at the end. Raises SettingsError
    for the pipeline's own group, TopicMissing, and as `Consumer`.
    """
    if wanted.group in (settings.group.id, settings.group.mirror_group):
        message = (
            f"{wanted.group} is the group of the pipeline itself, whose offsets follow its table"
        )
        if wanted.group != settings.group.id:
            message = f"{wanted.group} is the group that the pipeline tells its offsets to (group.mirror_group)"
        raise SettingsError(
            message,
            key="group",
            action="Use another group; `etl records show` prints records without a group",
        )
    topics = wanted.topics or _topics(settings)
    consumer = Consumer(
        **{name: getattr(conf_of(settings, wanted), name) for name in ConsumerConfig.__slots__}
    )
    with consumer:
        tailed = TailedGroup(consumer, topics, wanted)
        yield tailed
        tailed.commit()


def conf_of(settings: Settings, wanted: TailRequest) -> ConsumerConfig:
    """Return the consumer settings for the conf's brokers and the group."""
    source = settings.source
    in_zookeeper = (
        source.bootstrap_servers is None
        and settings.group.offsets_storage is OffsetsStorage.ZOOKEEPER
    )
    group = Group(
        wanted.group,
        Membership.ZOOKEEPER if in_zookeeper else Membership.COORDINATOR,
        settings.group.join.assignment_strategy[0].value,
        settings.group.join.protocol.value,
        join_timeout_s=settings.group.join.join_timeout_s,
        rebalance_timeout_s=settings.group.join.rebalance_timeout_s,
    )
    zookeeper = settings.zookeeper if in_zookeeper or source.bootstrap_servers is None else None
    return ConsumerConfig(
        source.bootstrap_servers,
        zookeeper.connect if zookeeper else None,
        group,
        OffsetsStorage.ZOOKEEPER if in_zookeeper else OffsetsStorage.KAFKA,
        source.broker_type,
        source.broker_version,
        wanted.start,
        source.isolation_level,
        source.fetch_max_bytes,
        max_batch_bytes=source.max_batch_bytes,
        timeout_s=source.request_timeout_s,
        security=source.way_in,
        zookeeper_access=zookeeper.access if zookeeper else None,
    )


def _topics(settings: Settings) -> tuple[str, ...]:
    with open_cluster(settings) as cluster:
        found = chosen_topics(
            cluster.describe_when_known(None, wait_s=settings.source.wait_for_leader_s),
            settings.source.topic_filter,
        ).topics
    if not found:
        raise TopicMissing(
            "None of the conf's topics is there", action="Check source.topics, or --topic"
        )
    return tuple(sorted(found))


class TailedGroup(RebalanceListener):
    """Iterates over the records assigned to a group member."""

    def __init__(self, consumer: Consumer, topics: tuple[str, ...], wanted: TailRequest) -> None:
        self.group, self.topics = wanted.group, topics
        self.given = 0
        self.ended: Ended | None = None
        """None until it has ended."""
        self._consumer, self._wanted = consumer, wanted
        self._idle_since = time.monotonic()
        self._shown: dict[BrokerPartition, int] = {}
        """The next offset of each log of which something was shown and not committed yet."""
        consumer.subscribe(topics, listener=self)

    def records(self) -> Iterator[Record]:
        """Each record, until there are as many as wanted or nothing comes in time. Raises as
        `Consumer.poll`.
        """
        self._idle_since = committed_at = time.monotonic()
        while self.ended is None:
            for some in self._polled():
                for record in some:
                    self.given += 1
                    yield record
                    self._shown[record.log] = record.next_offset
                    if self.given == self._wanted.most:
                        self.ended = Ended.COUNT
                        return
                self._idle_since = time.monotonic()
            if (
                self._wanted.timeout_s is not None
                and time.monotonic() - self._idle_since >= self._wanted.timeout_s
            ):
                self.ended = Ended.TIME_OUT
            if time.monotonic() - committed_at >= _COMMIT_EVERY_S:
                self.commit()
                committed_at = time.monotonic()

    def _polled(self) -> Collection[list[Record]]:
        try:
            return self._consumer.poll(_SLICE_S).values()
        except (ExpiredOffsets, RanOutBeforeUntil, CorruptData) as unread:
            action = (
                "Check the topic's retention, and whether it was made again; `etl records show` shows what is left, and a group that has no offsets "
                "begins there with --offset-reset earliest"
            )
            if isinstance(unread, CorruptData):
                action = "Check the broker's log; `etl records show --from OFFSET` shows what is behind it"
            raise type(unread)(unread.message, action=action, **unread.where) from None

    def commit(self) -> None:
        """Commit what was printed, if requested."""
        if self._wanted.commits and self._shown:
            self._consumer.commit(dict(self._shown.items()))
        self._shown.clear()

    def assigned(self, logs: Collection[BrokerPartition]) -> None:
        """See `RebalanceListener`. Time to settle does not count as time without records."""
        self._idle_since = time.monotonic()

    def revoked(self, logs: Collection[BrokerPartition]) -> None:
        """See `RebalanceListener`."""
        self.commit()

    def lost(self, logs: Collection[BrokerPartition]) -> None:
        """See `RebalanceListener`."""
        for log in logs:
            self._shown.pop(log, None)
