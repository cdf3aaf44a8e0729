"""What is a whole cluster asked: its topics, partitions, and what explains them?

One Metadata request, two ListOffsets requests per broker (start and end; three for read_committed),
one DescribeLogDirs per broker, one DescribeConfigs; never a request per partition. What follows
from a partition without a leader or a missing topic is the caller's policy.

On Jafka, whether an entry begins at an unverified byte offset, in two steps:

- The bytes there must be an entry with a valid checksum that ends within its segment. One request
  for all partitions, a few KiB each. A payload that contains messages passes this test, too.
- From a known entry the lengths are followed up to the offset. This reads all bytes in between, so
  it is bounded per broker, bad offsets first, then the nearest. An offset beyond that bound has
  the checksum only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.offsets import OffsetsAndLeaders, pause
from etl.io.brokers.times import LogMoments
from etl.kafka.messages import (
    ClusterMetadata,
    FetchedPartition,
    FetchTarget,
    MembersResponse,
    TopicMetadata,
)
from etl.model.partitions import (
    Broker,
    BrokerPartition,
    Isolation,
    KafkaGroup,
    Leader,
    LookedAt,
    OpenTransaction,
    Retention,
    UnverifiedOffset,
)
from etl.settings.choices import MIB
from etl.settings.source import TopicFilter

LOOK_BYTES = 4 << 10
"""First request size at each offset."""
WALKED_BYTES_MAX = 64 * MIB
"""Limit of all bytes followed at one broker, and of one entry whose checksum is verified."""
_LOGS_AT_A_TIME, _ANSWER_BYTES_MAX = 1000, 16 * MIB
_BAD_ONES_WALKED = 16
"""One of them is reported."""
_NOTHING_GIVEN = "its broker gives nothing from there"
_LENGTH_BYTES = 4


def look_at(
    consumer: SimpleConsumer, doubted: Collection[UnverifiedOffset]
) -> list[tuple[BrokerPartition, LookedAt]]:
    """Return the verification of these offsets at this broker. Raises BrokerUnreachable."""
    found = dict(_checked(consumer, doubted))
    found.update(_walked(consumer, _to_walk(found), found))
    return [(one.log, looked) for one, looked in found.items()]


def _to_walk(found: Mapping[UnverifiedOffset, LookedAt]) -> list[UnverifiedOffset]:
    """Return the offsets to follow entries to: some bad ones, in order, so that the reported one is
    complete; then the nearest.
    """
    bad = sorted(one for one, looked in found.items() if looked.is_entry is False)[
        :_BAD_ONES_WALKED
    ]
    good = [
        one for one, looked in found.items() if looked.is_entry is not False and not one.is_kept
    ]
    left, chosen = WALKED_BYTES_MAX, list[UnverifiedOffset]()
    for one in (*bad, *sorted(good, key=lambda one: (one.offset - one.walk_from, one))):
        if one.offset - one.walk_from <= left:
            left -= one.offset - one.walk_from
            chosen.append(one)
    return chosen


def _checked(
    consumer: SimpleConsumer, doubted: Collection[UnverifiedOffset]
) -> Iterator[tuple[UnverifiedOffset, LookedAt]]:
    """By the bytes at each offset alone."""
    waiting = {one: LOOK_BYTES for one in doubted}
    while waiting:
        batch = _of_different_logs(waiting)
        for one, fetched in zip(
            batch,
            _fetched(consumer, [(one, one.offset, waiting[one]) for one in batch]),
            strict=True,
        ):
            looked, needed = _checked_one(one, fetched, waiting[one])
            if waiting[one] < needed:
                waiting[one] = needed
                continue
            del waiting[one]
            yield one, looked


def _of_different_logs(waiting: dict[UnverifiedOffset, int]) -> list[UnverifiedOffset]:
    """A request names a log once, and an answer is held in memory: a few of those that wait."""
    batch: dict[BrokerPartition, UnverifiedOffset] = {}
    size = 0
    for one, needed in waiting.items():
        if (
            one.log not in batch
            and len(batch) < _LOGS_AT_A_TIME
            and (not batch or size + needed <= _ANSWER_BYTES_MAX)
        ):
            batch[one.log] = one
            size += needed
    return list(batch.values())


def _checked_one(
    one: UnverifiedOffset, fetched: FetchedPartition | None, asked_bytes: int
) -> tuple[LookedAt, int]:
    """Return what the bytes tell, and how many are needed if these are too few."""
    from etl.records.message_kernel import PHYSICAL_ENTRY_BYTES, SMALLEST_PHYSICAL

    left = one.until_offset - one.offset
    if left < PHYSICAL_ENTRY_BYTES + SMALLEST_PHYSICAL:
        return LookedAt(
            one.offset,
            False,
            f"there are {left} bytes before {one.until_offset}, and none is so small",
        ), 0
    if fetched is None:
        return LookedAt(one.offset, None, _NOTHING_GIVEN), 0
    try:
        # The compiled kernels load only where records are decoded.
        from etl.records.decode import Messages

        messages = Messages(fetched)
        if needed := messages.needed_bytes:
            return _cut_off(one, len(fetched.records), asked_bytes, needed)
        next(iter(messages), None)
    except MisalignedOffset as inside:
        if inside.where.get("offset") == one.offset:
            return LookedAt(one.offset, False, inside.message), 0
    except EtlError:
        pass  # it begins there, and is damaged: whoever reads it tells
    return LookedAt(one.offset, True), 0


def _cut_off(
    one: UnverifiedOffset, given_bytes: int, asked_bytes: int, needed: int
) -> tuple[LookedAt, int]:
    """Return the same for a response without a complete entry. One shorter than requested ends at
    its segment's end.
    """
    if needed > one.until_offset - one.offset:
        wrong = f"it would reach to {one.offset + needed}, beyond {one.until_offset}, where its segment or the log ends"
        return LookedAt(one.offset, False, wrong), 0
    if given_bytes < asked_bytes:
        return LookedAt(
            one.offset,
            False,
            f"there are {given_bytes} bytes before its segment ends, and no whole message",
        ), 0
    if needed > WALKED_BYTES_MAX:
        return LookedAt(
            one.offset,
            None,
            f"it would have {needed:,} bytes, and {WALKED_BYTES_MAX:,} are looked at",
        ), 0
    return LookedAt(one.offset, True), needed


def _walked(
    consumer: SimpleConsumer,
    doubted: Sequence[UnverifiedOffset],
    found: Mapping[UnverifiedOffset, LookedAt],
) -> Iterator[tuple[UnverifiedOffset, LookedAt]]:
    """Return what following entries tells, for all partitions together; nothing if the broker
    returns nothing on the way.
    """
    at = {one: one.walk_from for one in doubted}
    while at:
        sizes = {
            one: min(MIB, max(one.offset - position, LOOK_BYTES)) for one, position in at.items()
        }
        wanted = [(one, at.pop(one), sizes[one]) for one in _of_different_logs(sizes)]
        answers = zip(wanted, _fetched(consumer, wanted), strict=True)
        steps = [
            (one, position, _step(one, position, fetched))
            for (one, position, _), fetched in answers
        ]
        for (
            one,
            position,
            reached,
        ) in steps:  # only now, for who asks more takes the buffers of these answers
            if isinstance(reached, MisalignedOffset):
                yield (
                    one,
                    _inside(consumer, one, reached.where["offset"], found[one], reached.message),
                )
            elif reached >= one.offset:
                yield one, LookedAt(one.offset, True)
            elif reached > position:
                at[one] = reached


def _step(
    one: UnverifiedOffset, position: int, fetched: FetchedPartition | None
) -> int | MisalignedOffset:
    """Return the end of the entries from `position` on in these bytes, or that one crosses the
    offset.
    """
    from etl.records.decode import walk_entries

    if fetched is None:
        return position
    try:
        found = walk_entries(fetched, position, one.offset)
    except MisalignedOffset as inside:
        return inside
    reached = found.batches[-1].last_offset + 1 if found.batches else position
    return reached + (
        found.incomplete_bytes if found.incomplete_bytes > 1 else 0
    )  # the length of that one is known, and its bytes not needed


def _inside(
    consumer: SimpleConsumer, one: UnverifiedOffset, begins: int, looked: LookedAt, wrong: str
) -> LookedAt:
    """Return the result for an offset inside the entry that begins there; if there is none, the log
    is damaged.
    """
    header = _fetched(consumer, [(one, begins, _LENGTH_BYTES)])[0]
    if header is None or len(header.records) < _LENGTH_BYTES:
        return looked
    ends = begins + _LENGTH_BYTES + int.from_bytes(header.records, "big", signed=True)
    if not begins < one.offset < ends <= min(one.until_offset, begins + WALKED_BYTES_MAX):
        return looked
    around = replace(one, offset=begins)
    is_whole = _checked_one(
        around, _fetched(consumer, [(around, begins, ends - begins)])[0], ends - begins
    )[0].is_entry
    return LookedAt(one.offset, False, looked.wrong or wrong, begins, ends) if is_whole else looked


def _fetched(
    consumer: SimpleConsumer, wanted: Sequence[tuple[UnverifiedOffset, int, int]]
) -> list[FetchedPartition | None]:
    """The bytes from an offset on, so many at most, of each log; None where the broker gives none."""
    targets = [FetchTarget(one.log, offset, size) for one, offset, size in wanted]
    answer = consumer.multifetch(
        targets,
        isolation=Isolation.READ_UNCOMMITTED,
        max_bytes=sum(each.max_bytes for each in targets),
    )
    found = {
        (each.topic, each.partition): each
        for each in answer.partitions
        if each.refusal is None and len(each.records)
    }
    return [found.get((one.log.topic, one.log.partition)) for one, _, _ in wanted]


Key = TypeVar("Key")
Told = TypeVar("Told")


def chosen_topics(metadata: ClusterMetadata, names: TopicFilter) -> ClusterMetadata:
    """Return the topics that the conf selects; internal ones only by their exact names. Raises
    PermissionDenied, and SettingsError if a leader lacks our listener.
    """
    there = {
        name: topic
        for name, topic in metadata.topics.items()
        if not _is_unknown(topic) and names.admits(name)
    }
    chosen = {
        name: topic
        for name, topic in there.items()
        if not topic.is_internal or name in names.literal_names
    }
    refused = sorted(
        name
        for name, topic in chosen.items()
        if topic.refusal and topic.refusal.meaning is Meaning.NOT_ALLOWED
    )
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        message, action = (
            f"The brokers do not let us read the topic{more}",
            "Check the topics' ACLs: Describe and Read",
        )
        if (
            refused[0] not in names.literal_names
        ):  # brokers say the same of one that is not there, or they would tell who asks that it is
            action += "; where it was deleted with them, since this pipeline has read it: source.exclude_topics with it"
        raise PermissionDenied(message, topic=refused[0], action=action)
    for partition in (each for topic in chosen.values() for each in topic.partitions):
        if (
            partition.leader is None
            and partition.refusal
            and partition.refusal.meaning is Meaning.NO_LISTENER
        ):
            message = "The broker that leads the partition is there, and has no listener of the name by which the other brokers are entered"
            action = "Check listeners of all brokers: each needs this one, by the same name; or source.listener, one that all of them have"
            raise SettingsError(
                message, key="source.listener", action=action, **partition.log.place
            )
    return replace(metadata, topics=chosen)


def unknown_topics(metadata: ClusterMetadata, names: Collection[str]) -> frozenset[str]:
    """Return the requested names that the brokers do not know."""
    there = {name for name, topic in metadata.topics.items() if not _is_unknown(topic)}
    return frozenset(names) - there


def names_of_topics(cluster: Cluster) -> tuple[str, ...]:
    """All topics that the cluster lets us see, for a message; none where it does not answer that."""
    with contextlib.suppress(EtlError):
        return tuple(cluster.describe(None).topics)
    return ()


class Cluster(LogMoments):
    """Every question that takes more than one broker. See `Brokers` for its connections,
    `LogOffsets` and `LogMoments` for offsets.
    """

    def describe_when_known(
        self, topics: Collection[str] | None, *, wait_s: float
    ) -> ClusterMetadata:
        """`describe`, repeated for up to `wait_s` while the broker knows no topic.

        A broker that has just started reports none until the controller has updated it. One that
        knows another topic and none of these is believed at once, and so is a registry.
        """
        if self._registry is not None:
            return self.describe(topics)
        deadline, attempt = time.monotonic() + wait_s, 0
        while True:
            metadata = self.describe(topics)
            left = deadline - time.monotonic()
            if (
                left <= 0
                or not all(map(_is_unknown, metadata.topics.values()))
                or (topics is not None and not self._is_untold(topics))
            ):
                return metadata
            pause(attempt, left)
            attempt += 1

    def _is_untold(self, topics: Collection[str]) -> bool:
        """True if the broker knows no topic at all, and none of the requested ones."""
        known = self.describe(None).topics
        return not known or not known.keys().isdisjoint(topics)

    def open_transactions(self, found: OffsetsAndLeaders) -> dict[BrokerPartition, OpenTransaction]:
        """Return open transactions of partitions with unreadable offsets (KIP-664).

        One DescribeProducers request per leader, and at most two more per broker for their start
        times. For messages only, so no failure stops a run.
        """
        held_back = {
            log: leader for log, leader in found.leaders.items() if found.extents[log].held_back
        }
        described: dict[BrokerPartition, OpenTransaction] = {}
        for answer in self.of_each(held_back, _open_transactions):
            described.update(answer)
        if not described:
            return {}
        producers = {one.producer_id for one in described.values()}
        try:
            brokers = self.describe(()).brokers.values()
        except BrokerUnreachable:
            return described
        known: dict[int, tuple[str, int | None]] = {}
        for begun in self.side_by_side(
            [(self.consumer(one.host, one.port, one.generation), producers) for one in brokers],
            _transactions,
        ):
            known.update(begun)
        return {log: _named(one, known) for log, one in described.items()}

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
        since_ms: Mapping[BrokerPartition, int],
        *,
        isolation: Isolation,
    ) -> dict[BrokerPartition, int]:
        """Return the first offset at or after that time in each partition, its end if there is
        none: one ListOffsets per broker.
        """
        times = {log: when for log, when in since_ms.items() if log in found.leaders}
        try:
            listed = (
                self.listed(times, isolation, 0.0, None, found.leaders).offsets if times else {}
            )
        except OtherRelease:
            raise
        except (SettingsError, BrokerUnreachable):
            return {}
        return {
            log: found.extents[log].end_offset if offset is None else offset
            for log, offset in listed.items()
        }

    def members_of(self, group: str, brokers: Collection[Broker]) -> KafkaGroup:
        """Return the live members of Kafka's group of this name: one DescribeGroups to every
        broker, of which its coordinator answers.

        FindCoordinator is not used, because it creates __consumer_offsets. A group of the newer
        protocol (KIP-848) needs a second request to the coordinator. Failures do not stop a run;
        they become the reason why the members are unknown.
        """

        def ask(consumer: SimpleConsumer, group: str) -> MembersResponse | EtlError:
            try:
                return consumer.members_of(group)
            except OtherRelease:
                raise
            except (SettingsError, BrokerUnreachable, CorruptData) as error:
                return error

        answers = self.side_by_side(
            [(self.consumer(one.host, one.port, one.generation), group) for one in brokers], ask
        )
        silent = [answer.message for answer in answers if isinstance(answer, EtlError)]
        for answer in answers:
            if not isinstance(answer, EtlError) and (
                answer.refusal is None or answer.refusal.meaning is not Meaning.NOT_COORDINATOR
            ):
                return (
                    KafkaGroup(unknown=answer.refusal.name)
                    if answer.refusal
                    else KafkaGroup(answer.members)
                )
        return KafkaGroup(unknown=silent[0] if silent else None)

    def looked_at(
        self,
        doubted: Collection[UnverifiedOffset],
        leaders: Mapping[BrokerPartition, Leader],
    ) -> dict[BrokerPartition, tuple[LookedAt, ...]]:
        """Return the verification of unverified offsets; see the module. Raises BrokerUnreachable."""

        def ask(
            consumer: SimpleConsumer, logs: Collection[BrokerPartition]
        ) -> list[tuple[BrokerPartition, LookedAt]]:
            theirs = set(logs)
            return look_at(consumer, [one for one in doubted if one.log in theirs])

        found: dict[BrokerPartition, tuple[LookedAt, ...]] = {}
        for answer in self.of_each({one.log: leaders[one.log] for one in doubted}, ask):
            for log, looked in answer:
                found[log] = (*found.get(log, ()), looked)
        return found

    def bytes_per_offset(self, found: OffsetsAndLeaders) -> dict[BrokerPartition, float]:
        """Return the average bytes per offset, by the leaders' segment sizes: one request per
        broker. Partitions without a reported size, and empty ones, are left out. On Jafka it is one
        byte.
        """
        sizes: dict[BrokerPartition, int] = {}
        for answer in self.of_each(
            {log: leader for log, leader in found.leaders.items() if not log.is_physical}, _sizes
        ):
            sizes.update(answer)
        spans = {
            log: extent.end_offset - extent.log_start_offset
            for log, extent in found.extents.items()
        }
        averages = {
            log: size / spans[log]
            for log, size in sizes.items()
            if size > 0 and spans.get(log, 0) > 0
        }
        return {**averages, **{log: 1.0 for log in found.leaders if log.is_physical}}


def _open_transactions(
    consumer: SimpleConsumer, logs: Collection[BrokerPartition]
) -> dict[BrokerPartition, OpenTransaction]:
    return _if_told(lambda: consumer.open_transactions(logs))


def _transactions(
    consumer: SimpleConsumer, producer_ids: Collection[int]
) -> dict[int, tuple[str, int | None]]:
    return _if_told(lambda: consumer.transactions_of(producer_ids))


def _named(one: OpenTransaction, known: Mapping[int, tuple[str, int | None]]) -> OpenTransaction:
    name, since_ms = known.get(one.producer_id, (None, None))
    return replace(one, transactional_id=name, since_ms=since_ms)


def _sizes(
    consumer: SimpleConsumer, logs: Collection[BrokerPartition]
) -> dict[BrokerPartition, int]:
    # A hint for the planner: without it tasks are cut by offsets alone, so no failure of this
    # question stops a run.
    return _if_told(lambda: consumer.log_sizes(logs))


def _if_told(ask: Callable[[], dict[Key, Told]]) -> dict[Key, Told]:
    """Ask for optional facts: None if the broker does not report them. OtherRelease is always
    raised.
    """
    try:
        return ask()
    except OtherRelease:
        raise
    except (SettingsError, BrokerUnreachable):
        return {}


def _is_unknown(topic: TopicMetadata) -> bool:
    return topic.refusal is not None and topic.refusal.meaning is Meaning.UNKNOWN_TOPIC
