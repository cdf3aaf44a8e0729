"""How does a person look at records?

`etl peek`: the records of one log, one by one, for a person. Nothing is stored, moved or owned,
and no Spark is needed.

Here it is decided which log that is and where to start in it; going through it belongs to
`peeked_log`, beyond its end to `followed_log`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from etl.commands.peeked_log import PeekedLog, leaderless
from etl.errors import Meaning, SettingsError, TopicMissing
from etl.io.brokers.cluster import Cluster
from etl.model.partitions import (
    FORM_OF_PARTITION,
    BrokerPartition,
    PartitionOffsets,
    parse_partition_key,
)
from etl.run.shell import open_cluster
from etl.settings.choices import StartAt
from etl.settings.sections import Settings
from etl.settings.source import Timestamp

Start = StartAt | Timestamp | int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a log is looked at."""

    topic: str
    partition: str
    """As people name it: `3`, or `0-3` where brokers have logs of their own."""
    start: Start = StartAt.EARLIEST
    most: int | None = None
    """Records; None: all."""
    follows: bool = False
    """Whether it goes on beyond where the log ended at first."""
    timeout_s: float | None = None
    """How long to wait for the next record; None: without end."""


@contextlib.contextmanager
def open_peek(settings: Settings, wanted: Wanted) -> Iterator[PeekedLog]:
    """The log is found, and where to start in it; its connections are closed at the end.

    Raises TopicMissing, and SettingsError for a partition or a start that is not there, besides
    what brokers and ZooKeeper raise.
    """
    log = _log_of(settings, wanted)
    with open_cluster(settings) as cluster:
        source = settings.source
        metadata = cluster.describe_once_told([log.topic], wait_s=source.wait_for_leader_s)
        told = metadata.topics.get(log.topic)
        if told is None or (told.refusal and told.refusal.meaning is Meaning.UNKNOWN_TOPIC):
            raise TopicMissing(
                "there is no such topic",
                topic=log.topic,
                check="its name; `etl offsets show` lists those of the conf",
            )
        if told.refusal and not told.partitions:
            raise told.refusal.error("tell of the topic", topic=log.topic)
        if log not in (known := [each.log for each in told.partitions]):
            there = ", ".join(each.key for each in known) or "none"
            away = "; those of a broker that is away are not told" if log.is_physical else ""
            raise SettingsError(
                f"the topic has no partition {log.key}",
                check=f"its partitions: {there}{away}",
                topic=log.topic,
            )
        found = cluster.extents(
            [log],
            isolation=source.isolation,
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


def _kind(wanted: Wanted) -> type[PeekedLog]:
    if not wanted.follows:
        return PeekedLog
    from etl.commands.followed_log import FollowedLog

    return FollowedLog


def _log_of(settings: Settings, wanted: Wanted) -> BrokerPartition:
    log = parse_partition_key(wanted.topic, wanted.partition)
    if log is None or log.is_physical != settings.source.is_physical:
        form = (
            FORM_OF_PARTITION
            if log is None
            else "BROKER-PARTITION, e.g. 0-3, for source.dialect jafka, else a number alone, e.g. 3"
        )
        raise SettingsError(
            f"{wanted.partition!r} names no partition of this cluster",
            check=form,
            topic=wanted.topic,
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
    if not extent.log_start_offset <= start <= max(extent.end_offset, extent.high_watermark or 0):
        what = f"offset {start} is not in the log, which has {extent.log_start_offset} to {extent.end_offset}"
        raise SettingsError(what, **log.place, check="--from")
    return start
