"""One log that is looked at: fetch after fetch, each at the offset that the answer before ended at,
until there is nothing more to show.

What is held at a time is one answer: small ones, that grow for one large record only, up to
`source.fetch_limit_bytes`. A leader that moved or is silent is looked up again, for
`source.timeout_s`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from enum import Enum

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    CorruptData,
    EtlError,
    ExpiredOffsets,
    Meaning,
    MessageTooLarge,
    OffsetInsideMessage,
    RanOutBeforeUntil,
    Refusal,
)
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.cluster import Cluster
from etl.kafka.messages import EARLIEST, LATEST, EntryLayout, FetchedPartition, FetchTarget
from etl.model.partitions import BrokerPartition, Isolation, Leader, PartitionOffsets
from etl.records.decode import DecodedRecord, Messages
from etl.settings.source import SourceSettings

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
    """Of a log that cannot be read now."""
    return BrokerError(f"the log {log.unled}", **log.place, check=log.held_by)


class PeekedLog:
    """One log that is looked at."""

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
        """See `peek.Wanted`."""
        self.log, self.extent, self.from_offset = log, extent, from_offset
        self.position = from_offset
        """Where a fetch goes on behind what was given."""
        self.given = 0
        self.ended: Ended | None = None
        """None while it goes on."""
        self._source, self._cluster = source, cluster
        self._most, self._timeout_s = most, timeout_s
        self._leader: Leader | None = leader
        self._least_bytes = self._max_bytes = min(FETCH_BYTES, source.fetch_max_bytes)
        self._idle_since, self._failing_since, self._empty_answers = time.monotonic(), math.inf, 0

    def records(self) -> Iterator[DecodedRecord]:
        """Each record, until there are as many as wanted, the log ends where it ended at first, or
        nothing comes in time.

        Raises CorruptData, OffsetInsideMessage, MessageTooLarge, RecordTooLarge, ExpiredOffsets,
        RanOutBeforeUntil, and what a broker that stays silent for `source.timeout_s` or refuses
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
        except OffsetInsideMessage as inside:
            if self.given or self.position != self.from_offset:
                raise
            check = "--from: messages begin at earliest, at committed offsets, and at the boundaries of `etl offsets show CONF --json`"
            raise OffsetInsideMessage(inside.what, check=check, **inside.where) from None

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
        """What the next fetch brings; None where that is nothing. A leader that moved or is silent
        is looked up again, for a while.
        """
        try:
            leader = self._leader or self._found_leader()
            target = FetchTarget(self.log, self.position, self._max_bytes, leader.epoch)
            answer = self._consumer(leader).multifetch(
                [target],
                isolation=self._source.isolation,
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
        if time.monotonic() - self._failing_since >= self._source.timeout_s:
            raise failure
        return None

    def _failure(self, refusal: Refusal | None) -> EtlError | None:
        """What a refusal comes to once nobody asks again; raised where that would not help."""
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
                "the offset was deleted by retention before it was read",
                **self.log.place,
                offset=self.position,
                log_start_offset=start,
                check="the topic's retention; --from earliest begins with what is left",
            )
        if self.position > end:
            raise RanOutBeforeUntil(
                f"the log ends at {end} by now, below what was read",
                **self.log.place,
                offset=self.position,
                check="whether the topic was deleted and made again, or lost its end with a broker",
            )
        return BrokerError(
            "the offset is out of range, and yet inside the log",
            **self.log.place,
            offset=self.position,
            check="the broker's log"
            if self.log.is_physical
            else "the broker's log: its replicas may disagree",
        )

    def _bound(self, when: int) -> int:
        consumer = self._consumer(self._leader or self._found_leader())
        listed = consumer.list_offsets({self.log: when}, isolation=Isolation.READ_UNCOMMITTED)[
            self.log
        ]
        if listed.refusal or listed.offset is None:
            raise BrokerError(
                "the broker names no start or end of the log",
                **self.log.place,
                check="the broker's log",
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
        """Ask with more bytes for a record that does not fit; where that would not help, say what
        is wrong with it.
        """
        limit = max(self._source.fetch_limit_bytes, self._least_bytes)
        if len(fetched.records) < self._max_bytes:
            kind = OffsetInsideMessage if fetched.layout is EntryLayout.PHYSICAL else CorruptData
            what = f"a message claims {needed:,} bytes, and {len(fetched.records):,} are there"
            raise kind(
                what,
                **self.log.place,
                offset=self.position,
                check="that a message begins at this offset, and the broker's log",
            )
        if max(needed, self._max_bytes + 1) > limit:
            takes = f"; it takes {needed:,}" if needed > 1 else ""
            raise MessageTooLarge(
                f"a record does not fit into the largest fetch, {limit:,} bytes{takes}",
                **self.log.place,
                offset=self.position,
                check="source.fetch_limit_bytes",
            )
        self._max_bytes = min(limit, max(2 * self._max_bytes, needed))

    def _wait_ms(self) -> int:
        """How long the broker may hold an answer back."""
        return max(1, round(min(_LONGEST_WAIT_S, self._left_s()) * 1000))

    def _left_s(self) -> float:
        """How long the next record may still be waited for."""
        return (
            math.inf
            if self._timeout_s is None
            else self._idle_since + self._timeout_s - time.monotonic()
        )

    def _wait(self) -> None:
        """Before the next fetch. Brokers hold an answer back while there is nothing; one that does
        not is not asked in a busy loop.
        """
        left_s = self._left_s()
        if left_s <= 0:
            self.ended = Ended.TIME_OUT
            return
        time.sleep(
            min(_SHORTEST_PAUSE_S * 2 ** min(self._empty_answers, 10), _LONGEST_PAUSE_S, left_s)
        )
        self._empty_answers += 1
