"""Which fetches are in flight, and what did each return?

At most one fetch per leader, sent before any is awaited. A completed fetch gives, for each
partition, records, an error, or a retry.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    EtlError,
    ExpiredOffsets,
    Meaning,
    RanOutBeforeUntil,
)
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.cluster import Cluster
from etl.kafka.messages import EARLIEST, LATEST, EntryLayout, FetchedPartition, FetchTarget
from etl.model.columns import raw_columns
from etl.model.partitions import Broker, Isolation
from etl.reader.cursor import RangeProgress, lose_all, place_of
from etl.reader.fetch import by_broker
from etl.records.batch_v2 import AbortedTransactions
from etl.records.decode import decode
from etl.records.decode import walk_entries as walk_of
from etl.records.entries import Counts, Selection
from etl.records.kernel_cache import Tally
from etl.settings.choices import MIB

_LEAST_SHARE_BYTES = 64 << 10
_LOOK_AGAIN_S = 0.2
_SLICE_S = 0.01
_SHORTEST_REST_S, _LONGEST_REST_S = 0.01, 0.25


@dataclass(frozen=True, slots=True)
class FetchSizes:
    """Fetch sizes of a consumer."""

    isolation: Isolation
    fetch_max_bytes: int
    """Of one response."""
    partition_max_bytes: int
    """Of one partition in it, at first."""
    max_batch_bytes: int
    """What that may grow to for one large record batch."""
    max_wait_ms: int
    """How long a broker may hold an answer back while there is nothing."""
    timeout_s: float

    def share(self, logs: int) -> int:
        """How many bytes to ask for at first of each of so many logs: brokers before 0.10.1 bound
        no answer as a whole.
        """
        return min(
            self.partition_max_bytes, max(_LEAST_SHARE_BYTES, self.fetch_max_bytes // max(logs, 1))
        )


class _Line:
    """The connection to one leader."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self.consumer = consumer
        self.asked: list[RangeProgress] = []
        """Partitions of the fetch in flight; empty without one."""
        self.sent_at = 0.0
        self.rests_until = 0.0
        self.empty_answers = 0

    def lose(self, failure: EtlError) -> None:
        """The fetch under way came to nothing; its logs stood still since it was sent."""
        walks, self.asked = self.asked, []
        for walk in walks:
            walk.idle_since = self.sent_at if walk.idle_since is None else walk.idle_since
        lose_all(walks, failure)

    def note(self, *, brought_any: bool, max_wait_ms: int) -> None:
        """Note a response: a broker that answers empty at once (Jafka, a throttled one) is not
        asked in a busy loop.
        """
        now = time.monotonic()
        if brought_any or now - self.sent_at > max_wait_ms / 2000:
            self.empty_answers = 0
        else:
            self.empty_answers = self.empty_answers + 1
        if self.empty_answers:
            rest_s = min(_SHORTEST_REST_S * 2 ** min(self.empty_answers - 1, 10), _LONGEST_REST_S)
        else:
            rest_s = 0.0
        self.rests_until = now + rest_s


Arrived = tuple[RangeProgress, FetchedPartition, SimpleConsumer]


class Fetches:
    """Fetches from the leaders of partitions. For one thread."""

    def __init__(self, cluster: Cluster, sizes: FetchSizes, generation: str | None) -> None:
        self._cluster, self._sizes, self._generation = cluster, sizes, generation
        self._lines: dict[Broker, _Line] = {}
        self._looked_at = 0.0

    def close(self) -> None:
        """Hang up everywhere."""
        for line in self._lines.values():
            line.consumer.close()
        self._lines.clear()

    def begin(self, walks: Sequence[RangeProgress]) -> None:
        """Send a fetch to each idle leader of these. Waits for metadata only.

        Unknown leaders are looked up; failures are kept in the partition's state. Raises NotKafka,
        SettingsError, PermissionDenied.
        """
        self._find_leaders([walk for walk in walks if walk.leader is None])
        for broker, some in by_broker(walks).items():
            line = self._lines.get(broker) or self._connect(broker)
            if not line.asked and time.monotonic() >= line.rests_until:
                self._send(line, some)

    def end(self, deadline: float) -> Iterator[Arrived]:
        """The answers that have come, one by one; where none has, the first that comes before the
        deadline (`time.monotonic`).
        """
        while True:
            waiting = [
                line for line in self._lines.values() if line.asked and not self._is_given_up(line)
            ]
            answered = [line for line in waiting if line.consumer.is_answered()]
            left_s = deadline - time.monotonic()
            if answered:
                for line in answered:
                    yield from self._received(line)
                return
            if left_s <= 0:
                return
            if len(waiting) == 1 and waiting[0].consumer.is_answered(min(left_s, _LOOK_AGAIN_S)):
                continue
            if len(waiting) == 1:
                return  # time to look whether others can be asked
            time.sleep(min(left_s, _SLICE_S))
            if not waiting:
                return

    def _is_given_up(self, line: _Line) -> bool:
        """True if its broker has been silent longer than a request's timeout. Its partitions are
        requested anew.
        """
        sizes = self._sizes
        if (
            time.monotonic() < line.sent_at + sizes.timeout_s + sizes.max_wait_ms / 1000
            or line.consumer.is_answered()
        ):
            return False
        line.consumer.close()
        message = f"The broker did not answer a fetch within {sizes.timeout_s:g} s"
        line.lose(
            BrokerUnreachable(
                message,
                broker=line.consumer.address,
                action="Check that it runs, and what is between it and us",
            )
        )
        return True

    def _connect(self, broker: Broker) -> _Line:
        sizes = self._sizes
        line = self._lines[broker] = _Line(
            SimpleConsumer(
                broker.host,
                broker.port,
                timeout_s=sizes.timeout_s,
                generation=broker.generation or self._generation,
                max_response_bytes=sizes.max_batch_bytes + sizes.fetch_max_bytes + MIB,
                security=self._cluster.security,
            )
        )
        return line

    def _send(self, line: _Line, walks: Sequence[RangeProgress]) -> None:
        sizes = self._sizes
        wanted = [
            FetchTarget(
                walk.log,
                walk.cursor.position,
                walk.cursor.max_bytes,
                walk.leader.epoch if walk.leader else None,
            )
            for walk in walks
        ]
        try:
            line.consumer.begin_fetch(
                wanted,
                isolation=sizes.isolation,
                max_wait_ms=sizes.max_wait_ms,
                max_bytes=max(sizes.fetch_max_bytes, max(walk.cursor.max_bytes for walk in walks)),
            )
        except BrokerUnreachable as silent:
            lose_all(walks, silent)
            return
        line.asked, line.sent_at = list(walks), time.monotonic()

    def _received(self, line: _Line) -> Iterator[Arrived]:
        walks = line.asked
        try:
            answer = line.consumer.end_fetch()
        except BrokerUnreachable as silent:
            line.lose(silent)
            return
        finally:
            line.asked = []
        line.note(
            brought_any=any(len(one.records) for one in answer.partitions),
            max_wait_ms=self._sizes.max_wait_ms,
        )
        by_name = {(walk.log.topic, walk.log.partition): walk for walk in walks}
        for fetched in answer.partitions:
            yield by_name[fetched.topic, fetched.partition], fetched, line.consumer

    def _find_leaders(self, lost: Sequence[RangeProgress]) -> None:
        if not lost or time.monotonic() < self._looked_at + _LOOK_AGAIN_S:
            return
        try:
            leaders = self._cluster.describe({walk.log.topic for walk in lost}).leaders
        except BrokerUnreachable as silent:
            leaders = {}
            failure: EtlError | None = silent
        else:
            failure = None
        self._cluster.reject_lost_isolation(
            {leaders[w.log].broker for w in lost if w.log in leaders}, self._sizes.isolation
        )
        for walk in lost:
            walk.leader = leaders.get(walk.log)
            if walk.leader is None:
                walk.lose_leader(
                    failure
                    or BrokerError(
                        f"The log {walk.log.unled}", **walk.log.place, action=walk.log.held_by
                    )
                )
        self._looked_at = time.monotonic()


_END_OF_ALL = 2**63 - 1
_SEEK = "seek, seek_to_beginning or seek_to_end, which say what is read next"


def batches_of(
    walk: RangeProgress,
    fetched: FetchedPartition,
    consumer: SimpleConsumer,
    isolation: Isolation,
) -> tuple[list[pa.RecordBatch], EtlError | None]:
    """Return the rows of the response, and the error after them. Neither, if the partition is to be
    requested again; its leader may be unknown then. Rows are decoded here, since the buffer is
    reused.
    """
    refusal = fetched.refusal
    try:
        if (
            refusal
            and refusal.meaning in (Meaning.OUT_OF_RANGE, Meaning.UNSAID)
            and (outside := _outside(walk, consumer))
        ):
            return [], outside
        if refusal and (refusal.is_retriable or refusal.meaning is Meaning.OUT_OF_RANGE):
            walk.lose_leader(refusal.error("fetch", broker=consumer.address, **place_of(walk)))
            return [], None
        rows = walk.cursor.feed(fetched)
    except BrokerUnreachable as silent:
        walk.lose_leader(silent)
        return [], None
    except EtlError as broken:
        return [], broken
    walk.failure, walk.idle_since, walk.attempts = None, None, 0
    try:
        return list(rows), None
    except EtlError:
        return _up_to_the_broken(fetched, isolation)


def _up_to_the_broken(
    fetched: FetchedPartition, isolation: Isolation
) -> tuple[list[pa.RecordBatch], EtlError | None]:
    """Return the same batch by batch, since decoding them together returns none; the error has the
    damaged one's end.
    """
    requested, found, aborted = (
        fetched.asked_offset,
        list[pa.RecordBatch](),
        AbortedTransactions(fetched.aborted),
    )
    columns = raw_columns(physical=fetched.layout is EntryLayout.PHYSICAL)
    selection = Selection(
        requested, _END_OF_ALL, columns, skips_aborted=isolation is Isolation.READ_COMMITTED
    )
    for header in walk_of(fetched, requested, _END_OF_ALL).batches:
        try:
            found += decode(fetched, [header], selection, Tally(requested), Counts(), aborted)
        except EtlError as broken:
            where = {**broken.where, "next_offset": header.last_offset + 1}
            return found, type(broken)(
                broken.message,
                action=f"{broken.action}. Seek to next_offset to continue after it",
                **where,
            )
    return found, None


def _outside(walk: RangeProgress, consumer: SimpleConsumer) -> EtlError | None:
    """Why the offset is not in the log; None where it is: a broker that just lost the lead, or won
    it, answers so.
    """
    start, end = (_bound(walk, consumer, when) for when in (EARLIEST, LATEST))
    if walk.cursor.position < start:
        return ExpiredOffsets(
            "The offset was deleted by retention before it was read",
            action=f"Check the topic's retention; {_SEEK}",
            **place_of(walk),
            log_start_offset=start,
        )
    if walk.cursor.position > end:
        return RanOutBeforeUntil(
            f"The log ends at {end} by now, below the offset",
            **place_of(walk),
            action=f"Check whether the topic was deleted and made again, or lost its end with a broker; {_SEEK}",
        )
    return None


def _bound(walk: RangeProgress, consumer: SimpleConsumer, when: int) -> int:
    listed = consumer.list_offsets({walk.log: when}, isolation=Isolation.READ_UNCOMMITTED)[walk.log]
    if listed.refusal or listed.offset is None:
        raise BrokerError(
            "The broker names no start or end of the log",
            **walk.log.place,
            action="Check the broker's log",
        )
    return listed.offset
