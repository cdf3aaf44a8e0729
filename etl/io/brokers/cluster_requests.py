"""What does a whole cluster report: its topics, partitions, and what explains them?

One Metadata request, two ListOffsets requests per broker (start and end; three for read_committed),
one DescribeLogDirs per broker, one DescribeConfigs; never a request per partition. The caller
decides what follows from a partition without a leader or from a missing topic.

Lives here: requests that take more than one broker, and the verification of byte offsets. Not here:
connections and leaders (`Brokers`), offsets (`OffsetsOfLeaders`), times (`OffsetsByTime`).

On Jafka an unverified byte offset is verified in two steps:

- The bytes there must be an entry with a valid checksum that ends within its segment. One request
  for all partitions, a few KiB each. A payload that contains messages passes this test, too.
- From a known entry the lengths are followed up to the offset. This reads all bytes in between, so
  it is bounded per broker: misaligned offsets first, then the nearest. An offset beyond that bound
  has the checksum only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from etl.errors import (
    BrokerUnreachable,
    CorruptData,
    EtlError,
    Meaning,
    MisalignedOffset,
    OtherRelease,
    PermissionDenied,
    SettingsError,
)
from etl.io.brokers.partition_ends import OffsetsAndLeaders, pause
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.brokers.times import OffsetsByTime
from etl.kafka.request_values import (
    ClusterMetadata,
    FetchedPartition,
    FetchTarget,
    MembersResponse,
    TopicMetadata,
)
from etl.model.partitions import (
    Broker,
    Isolation,
    KafkaGroup,
    Leader,
    LookedAt,
    OpenTransaction,
    Retention,
    TopicPartition,
    UnverifiedOffset,
    select_keys,
)
from etl.settings.choices import MIB
from etl.settings.source import TopicFilter

FIRST_REQUEST_BYTES = 4 << 10
"""First request size at each offset."""
WALKED_BYTES_MAX = 64 * MIB
"""Limit of all bytes followed at one broker, and of one entry whose checksum is verified."""
_PARTITIONS_PER_REQUEST = 1000
_RESPONSE_BYTES_MAX = 16 * MIB
_MISALIGNED_WALKED_MAX = 16
"""How many misaligned offsets are followed: an error names one of them."""
_NOTHING_RETURNED = "the broker returned no bytes from there"
_LENGTH_BYTES = 4

Key = TypeVar("Key")
Fact = TypeVar("Fact")


# The cluster


class Cluster(OffsetsByTime):
    """Every question that takes more than one broker.

    `Brokers` has its connections, `OffsetsOfLeaders` and `OffsetsByTime` the offsets.
    """

    def describe_when_known(
        self, topics: Collection[str] | None, *, wait_s: float
    ) -> ClusterMetadata:
        """Return the metadata of topics; retry for up to `wait_s` while the broker knows no topic.

        A broker that has just started reports none until the controller has updated it. A broker
        that knows other topics but none of these is believed at once, and so is a registry.
        """
        if self._registry is not None:
            return self.describe(topics)
        deadline = time.monotonic() + wait_s
        attempt = 0
        while True:
            metadata = self.describe(topics)
            left = deadline - time.monotonic()
            if left <= 0 or not all(map(_is_unknown, metadata.topics.values())):
                return metadata
            if topics is not None and not self._is_incomplete(topics):
                return metadata
            pause(attempt, left)
            attempt += 1

    def _is_incomplete(self, topics: Collection[str]) -> bool:
        """True if the broker knows no topic at all, or now knows one of the requested ones."""
        known = self.describe(None).topics
        return not known or not known.keys().isdisjoint(topics)

    def open_transactions(self, found: OffsetsAndLeaders) -> dict[TopicPartition, OpenTransaction]:
        """Return open transactions of partitions with unreadable offsets (KIP-664).

        One DescribeProducers request per leader, and at most two more per broker for their start
        times. For messages only, so no failure stops a run. Since when a transaction is open the
        leader does not know: it reports the producer id, and the coordinators know the rest, of
        transactional ids that we may describe.
        """
        held_back = {}
        for partition, leader in found.leaders.items():
            if found.extents[partition].held_back:
                held_back[partition] = leader
        described: dict[TopicPartition, OpenTransaction] = {}
        for answer in self.request_leaders(held_back, _open_transactions):
            described.update(answer)
        if not described:
            return {}
        producer_ids = {transaction.producer_id for transaction in described.values()}
        try:
            brokers = self.describe(()).brokers.values()
        except BrokerUnreachable:
            return described
        questions = [(self._consumer_of(broker), producer_ids) for broker in brokers]
        known: dict[int, tuple[str, int | None]] = {}
        for transactions in self.request_in_parallel(questions, _transactions):
            known.update(transactions)
        return {
            partition: _named(transaction, known) for partition, transaction in described.items()
        }

    def retention(self, topics: Collection[str]) -> dict[str, Retention]:
        """Return retention and cleanup of topics, by one request to the first broker that answers.

        Topics that we may not describe are left out, and all if the broker is too old.
        """
        if not topics:
            return {}
        try:
            return self.first(lambda consumer: consumer.retention(topics))
        except OtherRelease:
            raise
        except SettingsError:
            return {}

    def retained_from(
        self,
        found: OffsetsAndLeaders,
        since_ms: Mapping[TopicPartition, int],
        *,
        isolation: Isolation,
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after that time in each partition: one ListOffsets per
        broker.

        The end offset where no record is that late; empty if the brokers cannot answer.
        """
        times = select_keys(since_ms, found.leaders)
        if not times:
            return {}
        try:
            listed = self.list_offsets(times, isolation, 0.0, None, found.leaders).listed
        except OtherRelease:
            raise
        except (SettingsError, BrokerUnreachable):
            return {}
        retained: dict[TopicPartition, int] = {}
        for partition, first_retained in listed.items():
            if first_retained.offset is None:
                retained[partition] = found.extents[partition].end_offset
            else:
                retained[partition] = first_retained.offset
        return retained

    def members_of(self, group: str, brokers: Collection[Broker]) -> KafkaGroup:
        """Return the live members of the Kafka group of this name.

        One DescribeGroups to every broker; only the group's coordinator answers it. FindCoordinator
        is not used, because it creates __consumer_offsets. A group of the newer protocol (KIP-848)
        needs a second request to the coordinator. Failures do not stop a run; they become the
        reason why the members are unknown.
        """
        questions = [(self._consumer_of(broker), group) for broker in brokers]
        failures: list[EtlError] = []
        for answer in self.request_in_parallel(questions, _members_or_error):
            if isinstance(answer, EtlError):
                failures.append(answer)
            elif answer.refusal is None:
                return KafkaGroup(answer.members)
            elif answer.refusal.meaning is not Meaning.NOT_COORDINATOR:
                return KafkaGroup(unknown=answer.refusal.name)
        if failures:
            return KafkaGroup(unknown=failures[0].message)
        return KafkaGroup()

    def looked_at(
        self,
        doubted: Collection[UnverifiedOffset],
        leaders: Mapping[TopicPartition, Leader],
    ) -> dict[TopicPartition, tuple[LookedAt, ...]]:
        """Verify byte offsets, as the module describes. Raises BrokerUnreachable."""

        def verify(
            consumer: SimpleConsumer, partitions: Collection[TopicPartition]
        ) -> list[tuple[TopicPartition, LookedAt]]:
            led = set(partitions)
            of_this_broker = [each for each in doubted if each.partition in led]
            return verify_offsets(consumer, of_this_broker)

        leaders_to_ask = {each.partition: leaders[each.partition] for each in doubted}
        verified: dict[TopicPartition, tuple[LookedAt, ...]] = {}
        for answer in self.request_leaders(leaders_to_ask, verify):
            for partition, result in answer:
                verified[partition] = (*verified.get(partition, ()), result)
        return verified

    def bytes_per_offset(self, found: OffsetsAndLeaders) -> dict[TopicPartition, float]:
        """Return the average bytes per offset, by the leaders' segment sizes: one request per
        broker.

        Partitions without a reported size, and empty ones, are left out. On Jafka it is one byte.
        """
        averages: dict[TopicPartition, float] = {}
        counted = {}
        for partition, leader in found.leaders.items():
            if partition.is_physical:
                averages[partition] = 1.0
            else:
                counted[partition] = leader
        for sizes in self.request_leaders(counted, _sizes):
            for partition, size in sizes.items():
                offsets = found.extents.get(partition)
                if offsets is None or size <= 0:
                    continue
                span = offsets.end_offset - offsets.log_start_offset
                if span > 0:
                    averages[partition] = size / span
        return averages

    def _consumer_of(self, broker: Broker) -> SimpleConsumer:
        return self.consumer(broker.host, broker.port, broker.broker_type)


def _members_or_error(consumer: SimpleConsumer, group: str) -> MembersResponse | EtlError:
    try:
        return consumer.members_of(group)
    except OtherRelease:
        raise
    except (SettingsError, BrokerUnreachable, CorruptData) as error:
        return error


def _open_transactions(
    consumer: SimpleConsumer, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OpenTransaction]:
    return _if_available(lambda: consumer.open_transactions(partitions))


def _transactions(
    consumer: SimpleConsumer, producer_ids: Collection[int]
) -> dict[int, tuple[str, int | None]]:
    return _if_available(lambda: consumer.transactions_of(producer_ids))


def _named(
    transaction: OpenTransaction, known: Mapping[int, tuple[str, int | None]]
) -> OpenTransaction:
    name, since_ms = known.get(transaction.producer_id, (None, None))
    return replace(transaction, transactional_id=name, since_ms=since_ms)


def _sizes(
    consumer: SimpleConsumer, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    # A hint for the planner: without it tasks are cut by offsets alone, so no failure of this
    # question stops a run.
    return _if_available(lambda: consumer.log_sizes(partitions))


def _if_available(ask: Callable[[], dict[Key, Fact]]) -> dict[Key, Fact]:
    """Return optional facts; empty if the broker does not report them. OtherRelease is raised."""
    try:
        return ask()
    except OtherRelease:
        raise
    except (SettingsError, BrokerUnreachable):
        return {}


# Topics


def chosen_topics(metadata: ClusterMetadata, names: TopicFilter) -> ClusterMetadata:
    """Return the topics that the conf selects; internal ones only by their exact names.

    Raises PermissionDenied, and SettingsError if a leader lacks our listener.
    """
    chosen: dict[str, TopicMetadata] = {}
    for name, topic in metadata.topics.items():
        if _is_unknown(topic) or not names.admits(name):
            continue
        if not topic.is_internal or name in names.literal_names:
            chosen[name] = topic
    _reject_denied_topics(chosen, names)
    _reject_missing_listeners(chosen.values())
    return replace(metadata, topics=chosen)


def _reject_denied_topics(topics: Mapping[str, TopicMetadata], names: TopicFilter) -> None:
    denied = []
    for name, topic in topics.items():
        if topic.refusal and topic.refusal.meaning is Meaning.NOT_ALLOWED:
            denied.append(name)
    if not denied:
        return
    denied.sort()
    more = f" and {len(denied) - 1} more" if len(denied) > 1 else ""
    message = f"The brokers do not let us read the topic{more}"
    action = "Check the topics' ACLs: Describe and Read"
    if denied[0] not in names.literal_names:
        # Brokers give the same answer for a topic that does not exist: otherwise a client without
        # permission could find out which topics exist.
        action += (
            ". If the topic was deleted, and its ACLs with it, after this pipeline read it:"
            " add it to source.exclude_topics"
        )
    raise PermissionDenied(message, topic=denied[0], action=action)


def _reject_missing_listeners(topics: Iterable[TopicMetadata]) -> None:
    for topic in topics:
        for partition in topic.partitions:
            refusal = partition.refusal
            if partition.leader is not None or refusal is None:
                continue
            if refusal.meaning is Meaning.NO_LISTENER:
                raise SettingsError(
                    "The broker that leads the partition has no listener of the name that we use"
                    " at the other brokers",
                    key="source.listener",
                    action="Check `listeners` of all brokers: each needs a listener of this name;"
                    " or set source.listener to one that all of them have",
                    **partition.partition.place,
                )


def unknown_topics(metadata: ClusterMetadata, names: Collection[str]) -> frozenset[str]:
    """Return the requested names that the brokers do not know."""
    known = set()
    for name, topic in metadata.topics.items():
        if not _is_unknown(topic):
            known.add(name)
    return frozenset(names) - known


def names_of_topics(cluster: Cluster) -> tuple[str, ...]:
    """Return all topics that we may see, for a message; none if the cluster does not answer."""
    with contextlib.suppress(EtlError):
        return tuple(cluster.describe(None).topics)
    return ()


def _is_unknown(topic: TopicMetadata) -> bool:
    return topic.refusal is not None and topic.refusal.meaning is Meaning.UNKNOWN_TOPIC


# Verification of byte offsets


def verify_offsets(
    consumer: SimpleConsumer, doubted: Collection[UnverifiedOffset]
) -> list[tuple[TopicPartition, LookedAt]]:
    """Verify these offsets at this broker. Raises BrokerUnreachable."""
    results = dict(_verify_by_checksum(consumer, doubted))
    results.update(_verify_by_walk(consumer, _select_for_walk(results), results))
    return [(unverified.partition, result) for unverified, result in results.items()]


def _select_for_walk(results: Mapping[UnverifiedOffset, LookedAt]) -> list[UnverifiedOffset]:
    """Select the offsets up to which entries are followed, within WALKED_BYTES_MAX.

    First some misaligned ones, in order, so that the reported one is complete; then the nearest.
    """
    misaligned: list[UnverifiedOffset] = []
    others: list[UnverifiedOffset] = []
    for unverified, result in results.items():
        if result.is_entry is False:
            misaligned.append(unverified)
        elif not unverified.is_kept:
            others.append(unverified)
    misaligned.sort()
    others.sort(key=lambda unverified: (_walk_bytes(unverified), unverified))

    bytes_left = WALKED_BYTES_MAX
    selected: list[UnverifiedOffset] = []
    for unverified in (*misaligned[:_MISALIGNED_WALKED_MAX], *others):
        size = _walk_bytes(unverified)
        if size <= bytes_left:
            bytes_left -= size
            selected.append(unverified)
    return selected


def _walk_bytes(unverified: UnverifiedOffset) -> int:
    return unverified.offset - unverified.walk_from


def _verify_by_checksum(
    consumer: SimpleConsumer, doubted: Collection[UnverifiedOffset]
) -> Iterator[tuple[UnverifiedOffset, LookedAt]]:
    """Verify each offset by the bytes at it alone."""
    waiting = dict.fromkeys(doubted, FIRST_REQUEST_BYTES)
    while waiting:
        batch = _next_batch(waiting)
        wanted = [(each, each.offset, waiting[each]) for each in batch]
        answers = _fetch(consumer, wanted)
        for unverified, fetched in zip(batch, answers, strict=True):
            result, needed = _verify_entry(unverified, fetched, waiting[unverified])
            if waiting[unverified] < needed:
                waiting[unverified] = needed
                continue
            del waiting[unverified]
            yield unverified, result


def _next_batch(waiting: dict[UnverifiedOffset, int]) -> list[UnverifiedOffset]:
    """Return the offsets of the next request.

    A request names a partition once, and its response is held in memory, so it takes some only.
    """
    batch: dict[TopicPartition, UnverifiedOffset] = {}
    size = 0
    for unverified, needed in waiting.items():
        if unverified.partition in batch or len(batch) >= _PARTITIONS_PER_REQUEST:
            continue
        if not batch or size + needed <= _RESPONSE_BYTES_MAX:
            batch[unverified.partition] = unverified
            size += needed
    return list(batch.values())


def _verify_entry(
    unverified: UnverifiedOffset, fetched: FetchedPartition | None, requested_bytes: int
) -> tuple[LookedAt, int]:
    """Return what the bytes show, and how many bytes are needed if these are too few, else 0."""
    from etl.records.message_set_kernel import PHYSICAL_ENTRY_BYTES, SMALLEST_PHYSICAL

    offset = unverified.offset
    left = unverified.until_offset - offset
    if left < PHYSICAL_ENTRY_BYTES + SMALLEST_PHYSICAL:
        reason = f"there are {left} bytes before {unverified.until_offset}, and none is so small"
        return LookedAt(offset, False, reason), 0
    if fetched is None:
        return LookedAt(offset, None, _NOTHING_RETURNED), 0
    try:
        # The compiled kernels load only where records are decoded.
        from etl.records.decode import Messages

        messages = Messages(fetched)
        needed = messages.needed_bytes
        if needed:
            return _incomplete_entry(unverified, len(fetched.records), requested_bytes, needed)
        next(iter(messages), None)
    except MisalignedOffset as error:
        if error.where.get("offset") == offset:
            return LookedAt(offset, False, error.message), 0
    except EtlError:
        pass  # An entry begins there, and is damaged: the reader of the records reports that.
    return LookedAt(offset, True), 0


def _incomplete_entry(
    unverified: UnverifiedOffset, returned_bytes: int, requested_bytes: int, needed: int
) -> tuple[LookedAt, int]:
    """Return the result for a response without a complete entry, and how many bytes are needed.

    A response shorter than requested ends at its segment's end.
    """
    offset = unverified.offset
    until = unverified.until_offset
    if needed > until - offset:
        reason = (
            f"it would reach to {offset + needed}, beyond {until},"
            " where its segment or the log ends"
        )
        return LookedAt(offset, False, reason), 0
    if returned_bytes < requested_bytes:
        reason = f"there are {returned_bytes} bytes before its segment ends, and no whole message"
        return LookedAt(offset, False, reason), 0
    if needed > WALKED_BYTES_MAX:
        reason = f"it would have {needed:,} bytes, and {WALKED_BYTES_MAX:,} are the limit"
        return LookedAt(offset, None, reason), 0
    return LookedAt(offset, True), needed


def _verify_by_walk(
    consumer: SimpleConsumer,
    doubted: Sequence[UnverifiedOffset],
    by_checksum: Mapping[UnverifiedOffset, LookedAt],
) -> Iterator[tuple[UnverifiedOffset, LookedAt]]:
    """Follow entries up to the offsets, for all partitions together.

    Yields nothing for an offset before which the broker returns no bytes. Damage on the way proves
    nothing about the offset.
    """
    positions = {unverified: unverified.walk_from for unverified in doubted}
    while positions:
        sizes: dict[UnverifiedOffset, int] = {}
        for unverified, position in positions.items():
            sizes[unverified] = min(MIB, max(unverified.offset - position, FIRST_REQUEST_BYTES))
        wanted = [(each, positions.pop(each), sizes[each]) for each in _next_batch(sizes)]
        answers = _fetch(consumer, wanted)
        # All steps come first: the next request overwrites the buffer of these answers.
        steps = []
        for (unverified, position, _), fetched in zip(wanted, answers, strict=True):
            steps.append(_follow_entries(unverified, position, fetched))
        for (unverified, position, _), reached in zip(wanted, steps, strict=True):
            if isinstance(reached, MisalignedOffset):
                start = reached.where["offset"]
                result = by_checksum[unverified]
                yield unverified, _inside(consumer, unverified, start, result, reached.message)
            elif reached >= unverified.offset:
                yield unverified, LookedAt(unverified.offset, True)
            elif reached > position:
                positions[unverified] = reached


def _follow_entries(
    unverified: UnverifiedOffset, position: int, fetched: FetchedPartition | None
) -> int | MisalignedOffset:
    """Return where the entries from `position` on end in these bytes, or the error if one crosses
    the offset.
    """
    from etl.records.decode import walk_entries

    if fetched is None:
        return position
    try:
        entries = walk_entries(fetched, position, unverified.offset)
    except MisalignedOffset as error:
        return error
    reached = entries.batches[-1].last_offset + 1 if entries.batches else position
    if entries.incomplete_bytes > 1:
        # The length of the incomplete entry is known, so its bytes are not needed.
        reached += entries.incomplete_bytes
    return reached


def _inside(
    consumer: SimpleConsumer,
    unverified: UnverifiedOffset,
    start: int,
    by_checksum: LookedAt,
    reason: str,
) -> LookedAt:
    """Return the result for an offset inside the entry that begins at `start`.

    If no whole entry begins there, the log is damaged: the result by checksum stays.
    """
    header = _fetch(consumer, [(unverified, start, _LENGTH_BYTES)])[0]
    if header is None or len(header.records) < _LENGTH_BYTES:
        return by_checksum
    end = start + _LENGTH_BYTES + int.from_bytes(header.records, "big", signed=True)
    if (
        not start
        < unverified.offset
        < end
        <= min(unverified.until_offset, start + WALKED_BYTES_MAX)
    ):
        return by_checksum
    entry = replace(unverified, offset=start)
    fetched = _fetch(consumer, [(entry, start, end - start)])[0]
    result, _ = _verify_entry(entry, fetched, end - start)
    if not result.is_entry:
        return by_checksum
    return LookedAt(unverified.offset, False, by_checksum.wrong or reason, start, end)


def _fetch(
    consumer: SimpleConsumer, wanted: Sequence[tuple[UnverifiedOffset, int, int]]
) -> list[FetchedPartition | None]:
    """Return up to so many bytes of each partition from an offset on; None where there are none."""
    targets = [
        FetchTarget(unverified.partition, offset, size) for unverified, offset, size in wanted
    ]
    max_bytes = sum(target.max_bytes for target in targets)
    answer = consumer.multifetch(
        targets, isolation_level=Isolation.READ_UNCOMMITTED, max_bytes=max_bytes
    )
    fetched = {}
    for partition in answer.partitions:
        if partition.refusal is None and len(partition.records):
            fetched[partition.topic, partition.partition] = partition
    return [fetched.get((each.partition.topic, each.partition.partition)) for each, _, _ in wanted]
