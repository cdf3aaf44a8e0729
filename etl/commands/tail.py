"""`etl tail`: records as a member of a group is given them, for a person. Its share is taken from
the group's other members while it looks.

It commits nothing unless it is told to; so what it showed is read again by whoever has its
partitions next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from etl.commands.peeked_log import Ended
from etl.errors import CorruptData, ExpiredOffsets, RanOutBeforeUntil, SettingsError, TopicMissing
from etl.io.brokers.cluster import chosen_topics
from etl.model.partitions import BrokerPartition, Membership, OffsetsStorage
from etl.run.shell import open_cluster
from etl.settings.choices import StartAt
from etl.settings.sections import Settings
from etl.streams.conf import Conf, Group, Listener
from etl.streams.consumer import Consumer
from etl.streams.records import Record

_SLICE_S, _COMMIT_EVERY_S = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """As what member of which group, and how much."""

    group: str
    topics: tuple[str, ...] = ()
    """None: those of the conf that there are now."""
    membership: Membership | None = None
    """None: in ZooKeeper where the brokers are found there, else with their coordinator."""
    strategy: str = "range"
    protocol: str = "classic"
    start: StartAt = StartAt.LATEST
    """Where a partition begins of which the group has no offset."""
    most: int | None = None
    timeout_s: float | None = None
    commits: bool = False
    """Whether the group goes on behind what was shown."""


@contextlib.contextmanager
def open_tail(settings: Settings, wanted: Wanted) -> Iterator[TailedGroup]:
    """A consumer that joins with its first record, and leaves at the end.

    Raises SettingsError for the pipeline's own group, whose offsets are the pipeline's to move;
    TopicMissing; and as `Consumer`.
    """
    if wanted.group in (settings.group, settings.mirror_group):
        what = f"{wanted.group} is the group of the pipeline itself, whose offsets follow its table"
        if wanted.group != settings.group:
            what = (
                f"{wanted.group} is the group that the pipeline tells its offsets to (mirror_group)"
            )
        raise SettingsError(
            what, key="group", check="another group; `etl peek` shows records without any"
        )
    topics = wanted.topics or _topics(settings)
    consumer = Consumer(
        **{name: getattr(conf_of(settings, wanted), name) for name in Conf.__slots__}
    )
    with consumer:
        tailed = TailedGroup(consumer, topics, wanted)
        yield tailed
        tailed.commit()


def conf_of(settings: Settings, wanted: Wanted) -> Conf:
    """How the conf's brokers are asked, and the group found."""
    source = settings.source
    membership = wanted.membership or (
        Membership.ZOOKEEPER if source.bootstrap is None else Membership.COORDINATOR
    )
    in_zookeeper = membership is Membership.ZOOKEEPER
    group = Group(
        wanted.group,
        membership,
        wanted.strategy,
        wanted.protocol,
        join_timeout_s=settings.ownership.join_timeout_s,
        rebalance_timeout_s=settings.ownership.rebalance_timeout_s,
    )
    zookeeper = settings.zookeeper if in_zookeeper or source.bootstrap is None else None
    return Conf(
        source.bootstrap,
        zookeeper.connect if zookeeper else None,
        group,
        OffsetsStorage.ZOOKEEPER if in_zookeeper else OffsetsStorage.KAFKA,
        source.dialect,
        source.broker_version,
        wanted.start,
        source.isolation,
        source.fetch_max_bytes,
        fetch_limit_bytes=source.fetch_limit_bytes,
        timeout_s=source.timeout_s,
        security=source.way_in,
        zookeeper_access=zookeeper.access if zookeeper else None,
    )


def _topics(settings: Settings) -> tuple[str, ...]:
    with open_cluster(settings) as cluster:
        found = chosen_topics(
            cluster.describe_once_told(None, wait_s=settings.source.wait_for_leader_s),
            settings.source.topics,
        ).topics
    if not found:
        raise TopicMissing(
            "none of the conf's topics is there", check="source.topics, or topics behind CONF"
        )
    return tuple(sorted(found))


class TailedGroup(Listener):
    """A group that is looked at as its member."""

    def __init__(self, consumer: Consumer, topics: tuple[str, ...], wanted: Wanted) -> None:
        self.group, self.topics = wanted.group, topics
        self.given = 0
        self.ended: Ended | None = None
        """None while it goes on."""
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
            check = (
                "the topic's retention, and whether it was made again; `etl peek` shows what is left, and a group that has no offsets "
                "begins there with --start earliest"
            )
            if isinstance(unread, CorruptData):
                check = "the broker's log; `etl peek --from OFFSET` shows what is behind it"
            raise type(unread)(unread.what, check=check, **unread.where) from None

    def commit(self) -> None:
        """Behind what was shown, where that is wanted."""
        if self._wanted.commits and self._shown:
            self._consumer.commit(dict(self._shown.items()))
        self._shown.clear()

    def assigned(self, logs: Collection[BrokerPartition]) -> None:
        """See `Listener`. What the group took to settle is no time in which records could have
        come.
        """
        self._idle_since = time.monotonic()

    def revoked(self, logs: Collection[BrokerPartition]) -> None:
        """See `Listener`."""
        self.commit()

    def lost(self, logs: Collection[BrokerPartition]) -> None:
        """See `Listener`."""
        for log in logs:
            self._shown.pop(log, None)
