"""Finds the leaders of logs again that moved, in the middle of a task."""

from __future__ import annotations

import time
from collections.abc import Sequence

from etl.errors import BrokerError, BrokerUnreachable, EtlError, Meaning, TopicMissing
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.connection import IDLE_CONNECTIONS
from etl.kafka.messages import TopicMetadata
from etl.model.partitions import Broker, BrokerPartition
from etl.reader.range_progress import FetchSettings, RangeProgress

_LONGEST_BACKOFF_S = 5.0


def find_leaders(walks: Sequence[RangeProgress], settings: FetchSettings) -> None:
    """Look up the leaders that are not known, after a pause for those that failed. Raises when a
    walk failed too often.

    A physical log has its one broker, of which the driver alone can learn a new address: it is
    asked again where it was.
    """
    lost = [walk for walk in walks if walk.leader is None]
    if not lost:
        return
    for walk in lost:
        if walk.failure is not None and (
            walk.attempts > settings.retry or walk.idle_for() > settings.deadline_s
        ):
            raise walk.failure
    attempts = max(walk.attempts for walk in lost)
    if attempts > 1:
        time.sleep(min(settings.backoff_s * 2 ** (attempts - 2), _LONGEST_BACKOFF_S))
    for walk in lost:
        if walk.log.is_physical:
            walk.leader = walk.cursor.range.leader
    lost = [walk for walk in lost if not walk.log.is_physical]
    if not lost:
        return
    try:
        with Cluster(
            settings.bootstrap,
            timeout_s=settings.timeout_s,
            generation=settings.generation,
            idle_connections=IDLE_CONNECTIONS,
            security=settings.security,
        ) as cluster:
            metadata = cluster.describe({walk.log.topic for walk in lost})
    except BrokerUnreachable as silent:
        for walk in lost:
            walk.lose_leader(silent)
        return
    leaders = metadata.leaders
    for walk in lost:
        walk.leader = leaders.get(walk.log)
        if walk.leader is None:
            topic = metadata.topics.get(walk.log.topic)
            walk.lose_leader(_leaderless(walk.log, topic))


def _leaderless(log: BrokerPartition, topic: TopicMetadata | None) -> EtlError:
    refusal = topic.refusal if topic else None
    if topic is None or (refusal and refusal.meaning is Meaning.UNKNOWN_TOPIC):
        return TopicMissing(
            "the brokers know no such topic any more",
            topic=log.topic,
            check="whether it was deleted",
        )
    if refusal and refusal.meaning is Meaning.NOT_ALLOWED:
        return refusal.error("tell who leads the log", **log.place)
    return BrokerError(
        "nobody leads the log", **log.place, check="the brokers that hold its replicas"
    )


def by_broker(walks: Sequence[RangeProgress]) -> dict[Broker, list[RangeProgress]]:
    groups: dict[Broker, list[RangeProgress]] = {}
    for walk in walks:
        if walk.leader is not None:
            groups.setdefault(walk.leader.broker, []).append(walk)
    return groups
