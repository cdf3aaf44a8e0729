"""Which offset lies at a time, and how old are records?

A broker searches only the first segment whose largest timestamp is not below the time. A segment
without timestamps counts by its file time: then the answer is "none" although later segments have
records (seen on Kafka 0.10.2, 2.8 and 4.1). So "none" is believed only if the largest timestamp of
the partition (Kafka 3.0, KIP-734), else that of its last record, confirms it.

No request returns the time of an offset, so the record is fetched. Since Fetch v3 (KIP-74) a batch
that does not fit is returned only as the first of a response, so many partitions are asked at once,
and those that did not fit again with eight times the size, bounded per broker.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from etl.errors import BrokerUnreachable, EtlError, Meaning, OtherRelease, SettingsError
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.offsets import LEADER_WITHIN_S, Brokers, Listed, LogOffsets
from etl.kafka.messages import (
    LATEST,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    reject_wrong_times,
)
from etl.model.partitions import BrokerPartition, Isolation, Leader, OldestRecord
from etl.records.entries import largest_timestamp
from etl.settings.choices import MIB

_ROUNDS = ((64 * 1024, 256), (1024 * 1024, 16), (1024 * 1024, 1))
"""Bytes per partition and partitions per request: what does not fit is requested in the next round;
alone it comes whole (KIP-74).
"""
_PATIENCE_S = 30.0
_NEVER = -1


def max_timestamps(
    consumer: SimpleConsumer, logs: Collection[BrokerPartition]
) -> dict[BrokerPartition, int | None]:
    """Return the largest timestamp in ms of these partitions, which this broker leads; one below
    all times if no record has any. Partitions of unknown timestamps are left out: Kafka before 3.0,
    or formats without them. Raises the broker's error.
    """
    found = dict[BrokerPartition, int | None]()
    for log, answer in (consumer.max_timestamps(logs) or {}).items():
        if answer.refusal is None:
            found[log] = _NEVER if answer.timestamp_ms is None else answer.timestamp_ms
        elif answer.refusal.meaning is not Meaning.NO_SEARCH:
            raise answer.refusal.error(
                "tell the largest timestamp", **log.place, broker=consumer.address
            )
    return found


def last_times(
    consumer: SimpleConsumer, ends: Mapping[BrokerPartition, int]
) -> dict[BrokerPartition, int | None]:
    """Return the largest timestamp in ms of the record batch or message below the high watermark of
    these partitions; None without one, or if nothing is left there. Partitions that begin at their
    end by now are left out. Raises BrokerUnreachable, and the broker's error.
    """
    found: dict[BrokerPartition, int | None] = {}
    left = sorted(ends)
    for size, most in _ROUNDS:
        batch, left = left, []
        for at in range(0, len(batch), most):
            left += _ask(
                consumer,
                [FetchTarget(log, ends[log] - 1, size) for log in batch[at : at + most]],
                found,
            )
    return {**found, **dict.fromkeys(left)}


def _ask(
    consumer: SimpleConsumer,
    wanted: Sequence[FetchTarget],
    found: dict[BrokerPartition, int | None],
) -> Iterator[BrokerPartition]:
    """One request, into `found`; the logs of which nothing came."""
    logs = {(one.log.topic, one.log.partition): one.log for one in wanted}
    for part in _answer(consumer, wanted).partitions:
        log = logs[part.topic, part.partition]
        if part.refusal is None:
            yield from _note_largest_times(log, part, found)
        elif part.refusal.meaning is not Meaning.OUT_OF_RANGE:
            raise part.refusal.error(
                "read what lies at the end", **log.place, broker=consumer.address
            )


def _note_largest_times(
    log: BrokerPartition, part: FetchedPartition, found: dict[BrokerPartition, int | None]
) -> Iterator[BrokerPartition]:
    if part.records or part.proves_empty:
        found[log] = largest_timestamp(part.records)
    else:
        yield log


def _answer(consumer: SimpleConsumer, wanted: Sequence[FetchTarget]) -> FetchAnswer:
    """Return the response, asked again while it is throttled and empty."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (
        answer := consumer.multifetch(
            wanted,
            isolation=Isolation.READ_UNCOMMITTED,
            max_bytes=sum(one.max_bytes for one in wanted),
        )
    ).partitions:
        if time.monotonic() > deadline:
            raise BrokerUnreachable(
                "The broker throttles us and gives nothing",
                broker=consumer.address,
                action="Check the quota of our client",
            )
    return answer


_UNCOMMITTED = Isolation.READ_UNCOMMITTED


class LogMoments(LogOffsets):
    """The offsets that lie at a time."""

    def offsets_at(
        self,
        moments: Mapping[BrokerPartition, int],
        *,
        wait_for_leader_s: float = LEADER_WITHIN_S,
        may_be_earlier: bool = False,
    ) -> dict[BrokerPartition, int]:
        """Return the first offset at or after each partition's time (ms); the high watermark if
        there is none.

        Without isolation: under read_committed brokers answer "none" for a record behind an open
        transaction, and the end that they report is below older records. Partitions that stay
        without a leader are left out. SettingsError if a partition cannot be searched: brokers
        before 0.10.1, formats without timestamps, or an unconfirmed "none". With `may_be_earlier`
        it is then the start of the last segment written by that time, or of the log. ValueError for
        a negative time.
        """
        reject_wrong_times(moments)
        try:
            found = self.listed(moments, _UNCOMMITTED, wait_for_leader_s, None)
        except SettingsError as error:
            if may_be_earlier and not isinstance(error, OtherRelease):
                return self._segments_at(
                    moments, self.describe({log.topic for log in moments}).leaders
                )
            raise
        late = {log: moments[log] for log, offset in found.offsets.items() if offset is None}
        ends, doubted = self._ends_of(late, found.leaders)
        unsearched = {**found.unsearched, **doubted}
        if unsearched and not may_be_earlier:
            raise unsearched[min(unsearched)]
        earlier = self._segments_at({log: moments[log] for log in unsearched}, found.leaders)
        return {
            **{log: offset for log, offset in found.offsets.items() if offset is not None},
            **ends,
            **earlier,
        }

    def first_at(
        self,
        times_ms: Mapping[BrokerPartition, int],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> dict[BrokerPartition, int | None]:
        """Return the first offset at or after each time; None if there is none. SettingsError as
        `offsets_at`; BrokerUnreachable without a leader; ValueError for a negative time.
        """
        reject_wrong_times(times_ms)
        found = self.listed(times_ms, isolation, LEADER_WITHIN_S, None)
        late = {log: times_ms[log] for log, offset in found.offsets.items() if offset is None}
        if (
            isolation is not _UNCOMMITTED and late
        ):  # a record behind an open transaction is there, and none of those that can be read
            late = _late(
                late, self.listed(late, _UNCOMMITTED, LEADER_WITHIN_S, None, found.leaders)
            )
        _, doubted = self._ends_of(late, found.leaders)
        unsearched = {**found.unsearched, **doubted}
        if unsearched:
            raise unsearched[min(unsearched)]
        if lost := times_ms.keys() - found.offsets.keys():
            raise BrokerUnreachable(
                f"The log {min(lost).unled}", **min(lost).place, action=min(lost).held_by
            )
        return found.offsets

    def _ends_of(
        self,
        late: Mapping[BrokerPartition, int],
        leaders: Mapping[BrokerPartition, Leader],
    ) -> tuple[dict[BrokerPartition, int], dict[BrokerPartition, EtlError]]:
        """Return the high watermark of partitions without a record that late, if confirmed, else
        the error. If the last record is that late, it may be new: the time is looked up again.
        """
        if not late:
            return {}, {}
        ends = self.listed(
            dict.fromkeys(late, LATEST), _UNCOMMITTED, LEADER_WITHIN_S, None, leaders
        )
        highs = {log: offset for log, offset in ends.offsets.items() if offset is not None}
        believed = self._borne_out(late, highs, ends.leaders)
        doubted = {log: when for log, when in late.items() if log in highs and log not in believed}
        again = self.listed(doubted, _UNCOMMITTED, LEADER_WITHIN_S, None, ends.leaders)
        came = {log: offset for log, offset in again.offsets.items() if offset is not None}
        wrong: dict[BrokerPartition, EtlError] = {
            log: _doubted(log, ends.leaders[log]) for log in _late(doubted, again)
        }
        return {**{log: highs[log] for log in believed}, **came}, {**again.unsearched, **wrong}

    def _borne_out(
        self,
        late: Mapping[BrokerPartition, int],
        highs: Mapping[BrokerPartition, int],
        leaders: Mapping[BrokerPartition, Leader],
    ) -> set[BrokerPartition]:
        """Return the partitions without anything that late: by their largest timestamp, else by an
        earlier record below the high watermark, or none.
        """

        def ask(
            consumer: SimpleConsumer, logs: Collection[BrokerPartition]
        ) -> dict[BrokerPartition, int | None]:
            largest = max_timestamps(consumer, logs)
            return {
                **largest,
                **last_times(consumer, {log: highs[log] for log in logs if log not in largest}),
            }

        filled = {log: leaders[log] for log, high in highs.items() if high}
        times = {log: when for answer in self.of_each(filled, ask) for log, when in answer.items()}
        return {
            log
            for log in highs
            if log not in times or ((largest := times[log]) is not None and largest < late[log])
        }

    def _segments_at(
        self,
        moments: Mapping[BrokerPartition, int],
        leaders: Mapping[BrokerPartition, Leader],
    ) -> dict[BrokerPartition, int]:
        """The start of the newest segment of each log that was written by its moment, by the clock
        of its broker; else of the log.
        """

        def ask(
            consumer: SimpleConsumer, logs: Collection[BrokerPartition]
        ) -> dict[BrokerPartition, int]:
            return {log: consumer.segment_before(log, moments[log]) for log in logs}

        answers = self.of_each({log: leaders[log] for log in moments if log in leaders}, ask)
        return {log: offset for answer in answers for log, offset in answer.items()}


def _late(times: Mapping[BrokerPartition, int], found: Listed) -> dict[BrokerPartition, int]:
    """Those of the logs for which "none" was answered."""
    return {
        log: when
        for log, when in times.items()
        if log in found.offsets and found.offsets[log] is None
    }


def _doubted(log: BrokerPartition, leader: Leader) -> SettingsError:
    return SettingsError(
        "The broker finds no record that late, but the log does not bear it out: it has one, or its last record has no timestamp. Records "
        "without timestamps keep a broker from finding later ones",
        **log.place,
        broker=leader.broker,
        action="Check where reading is to start or stop by a time: earliest and offsets hold for this log (a committed one of the group, too)",
    )


Unread = Mapping[BrokerPartition, tuple[int, int]]
"""For each partition the oldest unread offset, and the readable end."""
FIRST_BYTES = 32 << 10
"""First request size per partition: two record batches of an unconfigured producer."""
LOOKED_AT_BYTES_MAX = 64 * MIB
"""Of all partitions of one broker together."""
_ANSWER_BYTES_MAX = 16 * MIB
_GROWTH = 8

_NO_RECORD = OldestRecord(
    why="what is not read holds no record, only markers, aborted or compacted ones"
)
_NO_TIME = OldestRecord(why="the format of its messages has no time")
_SILENT = OldestRecord(why="the broker gave no record of it")
_TOO_LARGE = OldestRecord(why=f"its record batch is larger than {_ANSWER_BYTES_MAX // MIB} MiB")
_TOO_FAR = OldestRecord(why="it was not among what is looked at of one broker's logs together")


@dataclass(slots=True)
class _Look:
    """How far the search in one log is."""

    offset: int
    end_offset: int
    max_bytes: int = FIRST_BYTES


def read_oldest(
    cluster: Brokers,
    unread: Unread,
    leaders: Mapping[BrokerPartition, Leader],
    *,
    isolation: Isolation,
) -> dict[BrokerPartition, OldestRecord]:
    """Return the oldest unread record of each partition with a leader. Errors of brokers become
    reasons, not exceptions.
    """

    def ask(
        consumer: SimpleConsumer, logs: Collection[BrokerPartition]
    ) -> dict[BrokerPartition, OldestRecord]:
        return _of_broker(
            consumer, {log: _Look(*unread[log]) for log in sorted(logs)}, leaders, isolation
        )

    answers = cluster.of_each({log: leaders[log] for log in unread if log in leaders}, ask)
    return {log: record for answer in answers for log, record in answer.items()}


def _of_broker(
    consumer: SimpleConsumer,
    waiting: dict[BrokerPartition, _Look],
    leaders: Mapping[BrokerPartition, Leader],
    isolation: Isolation,
) -> dict[BrokerPartition, OldestRecord]:
    found, left = dict[BrokerPartition, OldestRecord](), LOOKED_AT_BYTES_MAX
    while waiting and left > 0:
        batch = _fitting(waiting)
        targets = [
            FetchTarget(log, look.offset, look.max_bytes, leaders[log].epoch)
            for log, look in batch.items()
        ]
        try:
            answer = consumer.multifetch(
                targets, isolation=isolation, max_bytes=sum(each.max_bytes for each in targets)
            )
        except EtlError as error:
            found |= dict.fromkeys(waiting, OldestRecord(why=error.message))
            return found
        parts = {(each.topic, each.partition): each for each in answer.partitions}
        left -= sum(len(each.records) for each in answer.partitions)
        for log, look in batch.items():
            record = _oldest_record(log, parts.get((log.topic, log.partition)), look)
            if record is not None:
                found[log] = record
                del waiting[log]
    return found | dict.fromkeys(waiting, _TOO_FAR)


def _fitting(waiting: Mapping[BrokerPartition, _Look]) -> dict[BrokerPartition, _Look]:
    """Return as many partitions as one response may hold, the smallest first."""
    batch, size = dict[BrokerPartition, _Look](), 0
    for log, look in sorted(waiting.items(), key=lambda each: (each[1].max_bytes, each[0])):
        if batch and size + look.max_bytes > _ANSWER_BYTES_MAX:
            break
        batch[log] = look
        size += look.max_bytes
    return batch


def _oldest_record(
    log: BrokerPartition, fetched: FetchedPartition | None, look: _Look
) -> OldestRecord | None:
    """Return what the response tells about the partition; None: ask again, as `look` says then."""
    if fetched is not None and fetched.refusal is not None:
        return OldestRecord(why=fetched.refusal.error("fetch", **log.place).message)
    if fetched is None or not len(fetched.records):
        return _grown(look, _SILENT)
    try:
        # The compiled kernels load only where records are decoded.
        from etl.records.decode import Messages

        messages = Messages(fetched)
        if messages.needed_bytes:
            return _grown(look, _TOO_LARGE)
        record = next(iter(messages), None)
    except EtlError as error:
        return OldestRecord(why=f"its record cannot be read: {error.message}")
    if record is not None and record.offset < look.end_offset:
        if record.timestamp_ms is None or record.timestamp_ms < 0:
            return _NO_TIME
        return OldestRecord(record.timestamp_ms)
    if record is not None or messages.next_offset >= look.end_offset:
        return _NO_RECORD
    look.offset = max(look.offset, messages.next_offset)
    return _grown(look, _SILENT)


def _grown(look: _Look, at_last: OldestRecord) -> OldestRecord | None:
    """Request more bytes; at the limit return the final answer."""
    if look.max_bytes >= _ANSWER_BYTES_MAX:
        return at_last
    look.max_bytes = min(_ANSWER_BYTES_MAX, look.max_bytes * _GROWTH)
    return None
