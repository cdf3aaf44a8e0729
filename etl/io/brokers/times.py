"""Which offset has a time, and how old are records?

Lives here: offsets by timestamp, and timestamps by offset. Not here: starts and ends
(etl/io/brokers/partition_ends.py).

A broker searches only the first segment with a largest timestamp not below the time. For a segment
without timestamps it takes the time of the file: then the answer is "none" although later segments
have records (seen on Kafka 0.10.2, 2.8 and 4.1). So "none" is believed only if the largest
timestamp of the partition (Kafka 3.0, KIP-734), else that of its last record, confirms it.

No request returns the time of an offset, so the record is fetched. Since Fetch v3 (KIP-74) a record
batch that does not fit is returned only as the first of a response, so many partitions are fetched
at once, and those that did not fit again with eight times the size, bounded per broker.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from etl.errors import BrokerUnreachable, EtlError, Meaning, OtherRelease, SettingsError
from etl.io.brokers.partition_ends import LEADER_WAIT_S, Brokers, OffsetsOfLeaders
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import (
    INSTEAD_OF_A_TIME,
    LATEST,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    reject_wrong_times,
)
from etl.model.partitions import Isolation, Leader, OldestRecord, TopicPartition, values_of
from etl.records.entries import largest_timestamp
from etl.settings.choices import MIB

_ROUNDS = ((64 * 1024, 256), (1024 * 1024, 16), (1024 * 1024, 1))
"""Bytes per partition and partitions per request.

A record batch that does not fit is requested in the next round; alone it is returned whole
(KIP-74).
"""
_THROTTLED_S = 30.0
"""Time to wait for a response that is not empty by throttling."""
_NEVER = -1
"""A timestamp below all times."""


def max_timestamps(
    consumer: SimpleConsumer, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Return the largest timestamp in ms of these partitions, which this broker leads.

    A value below all times if no record has a timestamp. Partitions are left out if the broker does
    not know it: Kafka before 3.0, or formats without timestamps. Raises the broker's error.
    """
    found: dict[TopicPartition, int | None] = {}
    for partition, listed in (consumer.max_timestamps(partitions) or {}).items():
        if listed.refusal is None:
            found[partition] = _NEVER if listed.timestamp_ms is None else listed.timestamp_ms
        elif listed.refusal.meaning is not Meaning.NO_SEARCH:
            raise listed.refusal.error(
                "return the largest timestamp", **partition.place, broker=consumer.address
            )
    return found


def last_timestamps(
    consumer: SimpleConsumer, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Return the largest timestamp in ms of the last record batch or message of these partitions.

    `ends`: their high watermarks. None without a timestamp, or if no record is left there.
    Partitions that are empty now are left out. Raises BrokerUnreachable, and the broker's error.
    """
    found: dict[TopicPartition, int | None] = {}
    left = sorted(ends)
    for size, most in _ROUNDS:
        waiting = left
        left = []
        for at in range(0, len(waiting), most):
            targets = [
                FetchTarget(partition, ends[partition] - 1, size)
                for partition in waiting[at : at + most]
            ]
            left += _fetch_last_times(consumer, targets, found)
    return {**found, **dict.fromkeys(left)}


def _fetch_last_times(
    consumer: SimpleConsumer,
    wanted: Sequence[FetchTarget],
    found: dict[TopicPartition, int | None],
) -> list[TopicPartition]:
    """Send one request and add to `found`; return the partitions without bytes in the response."""
    partitions = {
        (target.partition.topic, target.partition.partition): target.partition for target in wanted
    }
    left: list[TopicPartition] = []
    for part in _multifetch(consumer, wanted).partitions:
        partition = partitions[part.topic, part.partition]
        if part.refusal is not None:
            if part.refusal.meaning is Meaning.OUT_OF_RANGE:
                continue
            raise part.refusal.error(
                "return the last record", **partition.place, broker=consumer.address
            )
        if part.records or part.proves_empty:
            found[partition] = largest_timestamp(part.records)
        else:
            left.append(partition)
    return left


def _multifetch(consumer: SimpleConsumer, wanted: Sequence[FetchTarget]) -> FetchAnswer:
    """Return the response; fetch again while it is throttled and empty."""
    deadline = time.monotonic() + _THROTTLED_S
    max_bytes = sum(target.max_bytes for target in wanted)
    while True:
        response = consumer.multifetch(
            wanted, isolation_level=Isolation.READ_UNCOMMITTED, max_bytes=max_bytes
        )
        if response.partitions:
            return response
        if time.monotonic() > deadline:
            raise BrokerUnreachable(
                "The broker throttles us and returns no records",
                broker=consumer.address,
                action="Check the quota of our client",
            )


_UNCOMMITTED = Isolation.READ_UNCOMMITTED


class OffsetsByTime(OffsetsOfLeaders):
    """Offsets by timestamp.

    Looked up after the ends of the partitions were observed: a record that arrives in between is
    beyond the end, and is not read.
    """

    def offsets_at(
        self,
        moments: Mapping[TopicPartition, int],
        *,
        wait_for_leader_s: float = LEADER_WAIT_S,
        may_be_earlier: bool = False,
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after each partition's time (ms), else the high watermark.

        Without isolation: under read_committed brokers answer "none" for a record after the start
        of an open transaction, and the end that they report is below older records. Partitions that
        stay without a leader are left out.

        Raises SettingsError if a partition cannot be searched: brokers before 0.10.1, formats
        without timestamps, or an unconfirmed "none". With `may_be_earlier` it returns the start of
        the last segment written by that time instead, or the log start, so that no record is
        skipped. ValueError for a negative time.
        """
        reject_wrong_times(moments)
        try:
            found = self.list_offsets(moments, _UNCOMMITTED, wait_for_leader_s, None)
        except SettingsError as error:
            if may_be_earlier and not isinstance(error, OtherRelease):
                return self._segments_at(moments, self.describe_topics_of(moments).leaders)
            raise
        late = values_of(moments, found.without_record)
        ends, unconfirmed = self._ends_of(late, found.leaders)
        unsearched = {**found.unsearched, **unconfirmed}
        if unsearched and not may_be_earlier:
            raise unsearched[min(unsearched)]
        earlier = self._segments_at(values_of(moments, unsearched), found.leaders)
        return {**found.existing, **ends, **earlier}

    def first_at(
        self,
        times_ms: Mapping[TopicPartition, int],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each time; None if there is none.

        Raises SettingsError as `offsets_at`; BrokerUnreachable without a leader; ValueError for a
        negative time.
        """
        reject_wrong_times(times_ms)
        found = self.list_offsets(times_ms, isolation, LEADER_WAIT_S, None)
        late = values_of(times_ms, found.without_record)
        if isolation is not _UNCOMMITTED and late:
            # A record of an open transaction exists, but is not readable yet: "none" is right.
            uncommitted = self.list_offsets(late, _UNCOMMITTED, LEADER_WAIT_S, None, found.leaders)
            late = values_of(late, uncommitted.without_record)
        _, unconfirmed = self._ends_of(late, found.leaders)
        unsearched = {**found.unsearched, **unconfirmed}
        if unsearched:
            raise unsearched[min(unsearched)]
        leaderless = times_ms.keys() - found.listed.keys()
        if leaderless:
            first = min(leaderless)
            raise BrokerUnreachable(
                f"The partition {first.unled}", **first.place, action=first.held_by
            )
        return found.offsets

    def _ends_of(
        self,
        late: Mapping[TopicPartition, int],
        leaders: Mapping[TopicPartition, Leader],
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, EtlError]]:
        """Return the high watermark of partitions without a record that late, and errors.

        An error if the partition does not confirm it. If the last record is that late, it may be
        new: the time is searched again first.
        """
        if not late:
            return {}, {}
        ends = self.list_offsets(
            dict.fromkeys(late, LATEST), _UNCOMMITTED, LEADER_WAIT_S, None, leaders
        )
        high_watermarks = ends.existing
        confirmed = self._confirmed(late, high_watermarks, ends.leaders)
        unconfirmed: dict[TopicPartition, int] = {}
        for partition, time_ms in late.items():
            if partition in high_watermarks and partition not in confirmed:
                unconfirmed[partition] = time_ms
        again = self.list_offsets(unconfirmed, _UNCOMMITTED, LEADER_WAIT_S, None, ends.leaders)

        offsets = {partition: high_watermarks[partition] for partition in confirmed}
        offsets.update(again.existing)
        errors = dict(again.unsearched)
        for partition in again.without_record:
            errors[partition] = _unconfirmed_error(partition, ends.leaders[partition])
        return offsets, errors

    def _confirmed(
        self,
        late: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
        leaders: Mapping[TopicPartition, Leader],
    ) -> set[TopicPartition]:
        """Return the partitions that have no record that late.

        By their largest timestamp, else because they are empty or their last record is earlier.
        """

        def request(
            consumer: SimpleConsumer, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, int | None]:
            largest = max_timestamps(consumer, partitions)
            others = {
                partition: high_watermarks[partition]
                for partition in partitions
                if partition not in largest
            }
            return {**largest, **last_timestamps(consumer, others)}

        not_empty = {}
        for partition, high_watermark in high_watermarks.items():
            if high_watermark:
                not_empty[partition] = leaders[partition]
        times: dict[TopicPartition, int | None] = {}
        for of_broker in self.request_leaders(not_empty, request):
            times.update(of_broker)
        confirmed: set[TopicPartition] = set()
        for partition in high_watermarks:
            # Without a time the partition is empty.
            largest = times.get(partition, _NEVER)
            if largest is not None and largest < late[partition]:
                confirmed.add(partition)
        return confirmed

    def _segments_at(
        self,
        moments: Mapping[TopicPartition, int],
        leaders: Mapping[TopicPartition, Leader],
    ) -> dict[TopicPartition, int]:
        """Return the start of each partition's newest segment that was written by its time.

        By the clock of its broker; the log start if no segment is that old.
        """

        def request(
            consumer: SimpleConsumer, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, int]:
            return {
                partition: consumer.segment_before(partition, moments[partition])
                for partition in partitions
            }

        led = values_of(leaders, moments)
        starts: dict[TopicPartition, int] = {}
        for of_broker in self.request_leaders(led, request):
            starts.update(of_broker)
        return starts


def _unconfirmed_error(partition: TopicPartition, leader: Leader) -> SettingsError:
    return SettingsError(
        "The broker finds no record that late, but the partition does not confirm it: it has one,"
        " or its last record has no timestamp. Records without timestamps keep a broker from"
        " finding later ones",
        **partition.place,
        broker=leader.broker,
        action=f"{INSTEAD_OF_A_TIME}. If the group has a committed offset, a run starts there",
    )


# The oldest unread record

Unread = Mapping[TopicPartition, tuple[int, int]]
"""For each partition the oldest unread offset, and the readable end."""
FIRST_BYTES = 32 << 10
"""First request size per partition: two record batches of an unconfigured producer."""
SEARCHED_BYTES_MAX = 64 * MIB
"""Limit of bytes for all partitions of one broker together."""
_ANSWER_BYTES_MAX = 16 * MIB
_GROWTH = 8

_NO_RECORD = OldestRecord(
    why="the unread offsets hold no record, only markers, aborted or compacted records"
)
_NO_TIME = OldestRecord(why="its message format has no timestamps")
_NOT_RETURNED = OldestRecord(why="the broker returned no record of it")
_TOO_LARGE = OldestRecord(why=f"its record batch is larger than {_ANSWER_BYTES_MAX // MIB} MiB")
_OVER_LIMIT = OldestRecord(
    why=f"{SEARCHED_BYTES_MAX // MIB} MiB were read from its broker without reaching its record"
)


@dataclass(slots=True)
class _Search:
    """State of the search in one partition."""

    offset: int
    end_offset: int
    max_bytes: int = FIRST_BYTES


def read_oldest(
    cluster: Brokers,
    unread: Unread,
    leaders: Mapping[TopicPartition, Leader],
    *,
    isolation: Isolation,
) -> dict[TopicPartition, OldestRecord]:
    """Return the oldest unread record of each partition with a leader.

    Errors of brokers become reasons (`OldestRecord.why`), not exceptions.
    """

    def request(
        consumer: SimpleConsumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OldestRecord]:
        searches = {partition: _Search(*unread[partition]) for partition in sorted(partitions)}
        return _search_broker(consumer, searches, leaders, isolation)

    led = values_of(leaders, unread)
    records: dict[TopicPartition, OldestRecord] = {}
    for of_broker in cluster.request_leaders(led, request):
        records.update(of_broker)
    return records


def _search_broker(
    consumer: SimpleConsumer,
    waiting: dict[TopicPartition, _Search],
    leaders: Mapping[TopicPartition, Leader],
    isolation: Isolation,
) -> dict[TopicPartition, OldestRecord]:
    found: dict[TopicPartition, OldestRecord] = {}
    bytes_left = SEARCHED_BYTES_MAX
    while waiting and bytes_left > 0:
        batch = _next_batch(waiting)
        targets = []
        max_bytes = 0
        for partition, search in batch.items():
            targets.append(
                FetchTarget(partition, search.offset, search.max_bytes, leaders[partition].epoch)
            )
            max_bytes += search.max_bytes
        try:
            answer = consumer.multifetch(targets, isolation_level=isolation, max_bytes=max_bytes)
        except EtlError as error:
            found |= dict.fromkeys(waiting, OldestRecord(why=error.message))
            return found
        parts = {}
        for part in answer.partitions:
            parts[part.topic, part.partition] = part
            bytes_left -= len(part.records)
        for partition, search in batch.items():
            record = _oldest_record(
                partition, parts.get((partition.topic, partition.partition)), search
            )
            if record is not None:
                found[partition] = record
                del waiting[partition]
    return found | dict.fromkeys(waiting, _OVER_LIMIT)


def _next_batch(waiting: Mapping[TopicPartition, _Search]) -> dict[TopicPartition, _Search]:
    """Return as many partitions as one response may hold, the smallest first."""
    batch: dict[TopicPartition, _Search] = {}
    size = 0
    for partition, search in sorted(waiting.items(), key=lambda each: (each[1].max_bytes, each[0])):
        if batch and size + search.max_bytes > _ANSWER_BYTES_MAX:
            break
        batch[partition] = search
        size += search.max_bytes
    return batch


def _oldest_record(
    partition: TopicPartition, fetched: FetchedPartition | None, search: _Search
) -> OldestRecord | None:
    """Return the result of the response for the partition; None: fetch again by `search`."""
    if fetched is not None and fetched.refusal is not None:
        return OldestRecord(why=fetched.refusal.error("fetch", **partition.place).message)
    if fetched is None or not len(fetched.records):
        return _grow(search, _NOT_RETURNED)
    try:
        # The compiled kernels load only where records are decoded.
        from etl.records.decode import Messages

        messages = Messages(fetched)
        if messages.needed_bytes:
            return _grow(search, _TOO_LARGE)
        record = next(iter(messages), None)
    except EtlError as error:
        return OldestRecord(why=f"its record cannot be read: {error.message}")
    if record is not None and record.offset < search.end_offset:
        if record.timestamp_ms is None or record.timestamp_ms < 0:
            return _NO_TIME
        return OldestRecord(record.timestamp_ms)
    if record is not None or messages.next_offset >= search.end_offset:
        return _NO_RECORD
    search.offset = max(search.offset, messages.next_offset)
    return _grow(search, _NOT_RETURNED)


def _grow(search: _Search, at_limit: OldestRecord) -> OldestRecord | None:
    """Let the next request have more bytes; at their limit return `at_limit`."""
    if search.max_bytes >= _ANSWER_BYTES_MAX:
        return at_limit
    search.max_bytes = min(_ANSWER_BYTES_MAX, search.max_bytes * _GROWTH)
    return None
