"""Offsets of logs, asked of all their leaders: where logs start and end, where an epoch ends. What
lies at a time is `moments`'.

One ListOffsets or OffsetForLeaderEpoch request per leader and question, never one per partition. A
log without a leader, or whose leader has just moved, is asked for again until a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from etl.edges.brokers.brokers import Brokers
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import BrokerError, BrokerUnreachable, CorruptData, EtlError, Meaning, TopicMissing
from etl.kafka.messages import (
    EARLIEST,
    LATEST,
    ClusterMetadata,
    ListedOffset,
    ToldEpochEnd,
    ToldEpochEnds,
)
from etl.model.partitions import BrokerPartition, EpochEnd, Isolation, Leader, PartitionOffsets

_BACKOFF_S = (0.1, 0.2, 0.5, 1.0)
LEADER_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Extents:
    """Where logs start and end, and who leads them; `leaderless` had no leader until the deadline."""

    extents: Mapping[BrokerPartition, PartitionOffsets]
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
class Listed:
    """What ListOffsets came to: an offset (None: no record that late) and the leader that named it,
    log by log.
    """

    offsets: dict[BrokerPartition, int | None]
    leaders: dict[BrokerPartition, Leader]
    leaderless: frozenset[BrokerPartition]
    epochs: dict[BrokerPartition, int] = field(default_factory=dict)
    boundaries: dict[BrokerPartition, tuple[int, ...]] = field(default_factory=dict)
    """Where offsets are byte positions: see `ListedOffset`."""
    stable: set[BrokerPartition] = field(default_factory=set)
    """Logs of which a last stable offset was named."""
    unsearched: dict[BrokerPartition, EtlError] = field(default_factory=dict)
    """Logs that their leader cannot search by time, and what it says; they have no offset here."""

    def note(self, listed: ListedOffset, leader: Leader) -> None:
        """What that leader told."""
        log = listed.log
        self.offsets[log], self.leaders[log] = listed.offset, leader
        if listed.leader_epoch is not None:
            self.epochs[log] = listed.leader_epoch
        if listed.boundaries is not None:
            self.boundaries[log] = listed.boundaries
        if listed.is_last_stable:
            self.stable.add(log)


class LogOffsets(Brokers):
    """The offsets that the leaders of logs tell."""

    def extents(
        self,
        logs: Collection[BrokerPartition],
        *,
        isolation: Isolation,
        wait_for_leader_s: float = LEADER_WITHIN_S,
        metadata: ClusterMetadata | None = None,
    ) -> Extents:
        """Log start and readable end of each log, the end under the same isolation as the fetches
        to come.

        Two ListOffsets requests per leader, and one more for the high watermarks where it names
        last stable offsets. Logs without a leader, or whose leader has just moved, are asked for
        again until `wait_for_leader_s` has passed, and are then reported. `metadata`: a fresh
        answer of `describe` that covers `logs`, to save the request.

        Raises TopicMissing, PermissionRefused, BrokerUnreachable when a leader stays silent, and
        what `refuse_lost_isolation` raises.
        """
        metadata = metadata or self.describe({log.topic for log in logs})
        self.refuse_lost_isolation(metadata.brokers.values(), isolation)
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
        self.refuse_lost_isolation(
            {leader.broker for leader in leaders.values()}, isolation
        )  # who was elected, or came, meanwhile
        highs = {**ends.offsets, **above.offsets}
        extents = {
            log: _extent(
                log, starts.offsets[log], ends.offsets[log], highs[log], ends.boundaries.get(log)
            )
            for log in leaders
        }
        return Extents(
            extents, leaders, starts.leaderless | ends.leaderless | above.leaderless, ends.epochs
        )

    def epoch_ends(
        self,
        epochs: Mapping[BrokerPartition, int],
        *,
        wait_for_leader_s: float = LEADER_WITHIN_S,
        leaders: Mapping[BrokerPartition, Leader] | None = None,
    ) -> dict[BrokerPartition, EpochEnd]:
        """Where the records up to a leader epoch end in each leader's log now (KIP-320): one
        request per leader.

        Left out are logs whose leader cannot tell: a broker before 2.1, or an epoch that its log
        does not know. `leaders` saves the Metadata request. Raises what `extents` raises, and for a
        log that stays without a leader: not to know is no answer here.
        """
        deadline, attempt, told = time.monotonic() + wait_for_leader_s, 0, ToldEpochEnds()
        while waiting := {log: epoch for log, epoch in epochs.items() if log not in told}:
            known = (
                self.describe({log.topic for log in waiting}).leaders
                if leaders is None
                else leaders
            )
            failure = self._ask_epochs(
                {log: known[log] for log in waiting if log in known}, waiting, told
            )
            left = deadline - time.monotonic()
            if told.keys() >= epochs.keys():
                break
            if left <= 0:
                lost = min(log for log in epochs if log not in told)
                raise failure or BrokerError(
                    "nobody leads the log", **lost.place, check="its brokers"
                )
            pause(attempt, left)
            leaders, attempt = None, attempt + 1
        return {
            log: EpochEnd(epochs[log], end.epoch, end.end_offset)
            for log, end in told.items()
            if end.epoch is not None and end.end_offset is not None
        }

    def _ask_epochs(
        self,
        leaders: Mapping[BrokerPartition, Leader],
        epochs: Mapping[BrokerPartition, int],
        told: ToldEpochEnds,
    ) -> EtlError | None:
        """One round over the brokers into `told`; the error of a log that may still come, if there
        is one.
        """

        def ask(
            consumer: SimpleConsumer, logs: Collection[BrokerPartition]
        ) -> ToldEpochEnds | EtlError:
            try:
                answer = consumer.epoch_ends(
                    {log: epochs[log] for log in logs}, {log: leaders[log].epoch for log in logs}
                )
                return {log: answer.get(log, ToldEpochEnd(None, None, None)) for log in logs}
            except BrokerUnreachable as error:
                return error

        failure: EtlError | None = None
        for answer in self.of_each(leaders, ask):
            if isinstance(answer, EtlError):
                failure = failure or answer
                continue
            for log, end in answer.items():
                if end.refusal is None:
                    told[log] = end
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
        """One offset per log, asked for again where a leader is missing or has moved, until the
        deadline.

        `known` and `led` save the first Metadata request. A physical log without a leader is not
        waited for: nobody is elected there.
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
                leader = (
                    leaders[log]
                    if leaders[log].broker is broker
                    else Leader(broker, leaders[log].epoch)
                )
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
    """Before brokers are asked again: longer from attempt to attempt (0 is the first), and never
    beyond the time that is left.
    """
    time.sleep(min(left_s, _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]))


def _extent(
    log: BrokerPartition,
    start: int | None,
    end: int | None,
    high: int | None,
    boundaries: tuple[int, ...] | None,
) -> PartitionOffsets:
    if start is None or end is None or high is None:
        raise CorruptData("the broker names no offset for a log's start or end", **log.place)
    # Retention may have moved the start in between, a truncation the end; an extent never ends
    # before it starts.
    end = max(start, end)
    inside = (
        None
        if boundaries is None
        else tuple(sorted({start, end, *(each for each in boundaries if start < each < end)}))
    )
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
                "the brokers do not tell of the topic",
                topic=log.topic,
                check="its name, and whether it was deleted",
            )
        if topic.refusal and topic.refusal.meaning in (Meaning.UNKNOWN_TOPIC, Meaning.NOT_ALLOWED):
            raise topic.refusal.error("tell of the topic", topic=log.topic)
