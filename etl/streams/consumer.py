"""How does a `Consumer` poll the partitions that it reads?

One thread at a time uses a consumer; a listener may call it again in that thread.

Not here: offsets (etl/streams/positions.py), order of partitions
(etl/streams/partition_scheduler.py), requests (etl/streams/fetches.py), the group
(etl/streams/group_member.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from etl.errors import ConsumerInUse, EtlError, NotAssigned, SettingsError
from etl.io.brokers.cluster import Cluster
from etl.model.partitions import BrokerFamily, BrokerPartition, Isolation, OffsetsStorage
from etl.settings.choices import FETCH_LIMIT_BYTES, FETCH_MAX_BYTES, MIB, TIMEOUT_S, StartAt
from etl.streams.conf import (
    ConsumerConfig,
    Group,
    RebalanceListener,
    SecurityInput,
    ZooKeeperAccessInput,
    by_filter,
    by_names,
)
from etl.streams.fetches import Fetches
from etl.streams.group_member import Opened, Subscribed, open_cluster
from etl.streams.positions import OffsetStore, Positions, reject_no_offset
from etl.streams.records import Decoder, Record


class InUse:
    """One consumer's."""

    def __init__(self) -> None:
        self._lock, self._is_inside = threading.RLock(), False
        self.is_closed = False

    @contextmanager
    def alone(self, *, nests: bool = True) -> Iterator[None]:
        """Inside it is this thread's. Raises ConsumerInUse where it is another one's, or a
        listener's where it does not nest; NotAssigned once closed."""
        if not self._lock.acquire(blocking=False):
            raise ConsumerInUse(
                "another thread is using this consumer",
                check="that each thread has a Consumer of its own",
            )
        try:
            if self.is_closed:
                raise NotAssigned("the consumer is closed", check="a new Consumer")
            if self._is_inside and not nests:
                what = "a listener polls or closes the consumer that called it, or says anew what it reads"
                raise ConsumerInUse(what, check="the listener: it may commit and seek")
            before, self._is_inside = self._is_inside, True
            try:
                yield
            finally:
                self._is_inside = before
        finally:
            self._lock.release()


_TEND_EVERY_S = 0.2

Log = BrokerPartition | tuple[str, int] | tuple[str, int, int | None]
"""A partition: topic and number, on Jafka and Kafka 0.7 the broker's id with them."""


class Consumer:
    """Reads partitions of one cluster, of whichever generation.

    bootstrap             "host:port,..." of some brokers, or a sequence of such; or zookeeper
    the ZooKeeper that brokers are registered in; with `bootstrap` that of the group's offsets alone
    group                 whose offsets `committed` and `commit` are about, where partitions begin,
    and whose member it is once it
                          subscribes: a name, or a `Group`; None: nobody's
    offsets_storage       where they are; None: in ZooKeeper where that is given, else with the
    group's coordinator dialect, broker_version   `jafka` for Jafka and Kafka 0.7; the brokers'
    release, where they do not tell it (Kafka before 0.10) start                 where a partition
    begins that has no committed offset; None: that is an error key_decoder, value_decoder   called
    with the bytes of each that is not null isolation             `read_committed`: records of open
    and aborted transactions are not given fetch_max_bytes       of one broker's answer;
    partition_max_bytes: of one partition in it fetch_limit_bytes     what these may grow to for one
    record batch larger than that max_wait_ms           how long a broker may hold an answer back
    while there is nothing timeout_s             of each question; and how long a partition may have
    no leader, or a silent one, before `poll` says so security, zookeeper_access   encryption and
    login: keys of `source.security` in a conf, and `listener`; `tls` and `auth` of `zookeeper`

    Held in memory at most: one answer of each partition, and one of each broker that is under way.
    One thread at a time: a second one gets ConsumerInUse, from `close`, too. Once closed everything
    but `close` raises NotAssigned. As a member it has two threads of its own, for its group and for
    the case that nobody polls.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        zookeeper: str | None = None,
        group: str | Group | None = None,
        offsets_storage: OffsetsStorage | str | None = None,
        dialect: BrokerFamily | str = BrokerFamily.KAFKA,
        broker_version: str | None = None,
        start: StartAt | str | None = StartAt.LATEST,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        fetch_max_bytes: int = FETCH_MAX_BYTES,
        partition_max_bytes: int = MIB,
        fetch_limit_bytes: int = FETCH_LIMIT_BYTES,
        max_wait_ms: int = 500,
        timeout_s: float = TIMEOUT_S,
        security: SecurityInput = None,
        zookeeper_access: ZooKeeperAccessInput = None,
    ) -> None:
        """Raises SettingsError, and what finding the brokers in ZooKeeper does. Brokers are asked
        with the first question.
        """
        conf = ConsumerConfig(
            bootstrap,
            zookeeper,
            group,
            offsets_storage,
            dialect,
            broker_version,
            start,
            isolation,
            fetch_max_bytes,
            partition_max_bytes,
            fetch_limit_bytes,
            max_wait_ms,
            timeout_s,
            security,
            zookeeper_access,
        )
        with ExitStack() as until:
            self._begin(open_cluster(conf, until), conf, until, key_decoder, value_decoder)

    @classmethod
    def on(cls, cluster: Cluster, conf: ConsumerConfig) -> Self:
        """One without a group that asks a cluster which is open, and stays so when it is closed."""
        made = cls.__new__(cls)
        made._begin(Opened(cluster), conf, ExitStack(), None, None)
        return made

    def _begin(
        self,
        opened: Opened,
        conf: ConsumerConfig,
        until: ExitStack,
        key_decoder: Decoder | None,
        value_decoder: Decoder | None,
    ) -> None:
        sizes, self._in_use = conf.sizes, InUse()
        self._alone = self._in_use.alone
        self._cluster, self._kept, self._isolation = opened.cluster, opened.kept, sizes.isolation
        self._fetches = Fetches(opened.cluster, sizes, conf.generation)
        self._at = Positions(
            opened.cluster, opened.kept, conf.begins, sizes, key_decoder, value_decoder
        )
        self._group = Subscribed(opened, self._at)
        until.callback(self._fetches.close)
        until.callback(self._group.unsubscribe)
        self._until = until.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:  # it may not have come to all that was handed out
            self._group.commit_by_itself_no_more()
        self.close()

    def close(self) -> None:
        """Leave the group, and hang up. Commits nothing but where that is done by itself, and then
        what was handed out, not where an error ends the `with` block. May be called again."""
        if not self._in_use.is_closed:
            with self._alone(nests=False):
                try:
                    self._until.close()  # where a listener may still commit
                finally:
                    self._in_use.is_closed = True

    # What is read

    def partitions_of(self, topic: str) -> tuple[BrokerPartition, ...]:
        """The partitions of a topic that have a leader now, for `assign`; none where there is no
        such topic.
        """
        with self._alone():
            return tuple(
                sorted(log for log in self._cluster.describe([topic]).leaders if log.topic == topic)
            )

    def assign(self, logs: Iterable[Log]) -> None:
        """Read these partitions and no others. One that stays goes on as it is, paused or not; one
        that comes begins where the group is, or at `start`, with the next `poll`. Raises
        SettingsError while it is subscribed."""
        with self._alone(nests=False):
            if self._group.is_subscribed:
                raise SettingsError(
                    "the group says what this consumer reads",
                    check="unsubscribe(), before anything is assigned by hand",
                )
            self._at.assign([BrokerPartition(*log) for log in logs])

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Be a member of the group from the next `poll` on, and read what it gives of these topics,
        or of all that match a pattern of Java's from end to end, those that are made later, too.
        Said again, the last word counts.

        A poll in which the group divides its logs anew takes as long as that takes,
        `Group.join_timeout_s` at most; `listener` hears what is taken and what is given. Raises
        SettingsError without a group, and while something is assigned by hand.
        """
        if (pattern is None) is not bool(topics) or isinstance(topics, str):
            what = "topics are named, or there is a pattern of them"
            raise SettingsError(what, check="subscribe([name, ...]), or subscribe(pattern=...)")
        wanted = by_names(dict.fromkeys(topics, 1)) if pattern is None else by_filter(pattern)
        with self._alone(nests=False):
            self._group.subscribe(wanted, listener)

    def unsubscribe(self) -> None:
        """Leave the group; what was assigned by hand is no more, too."""
        with self._alone(nests=False):
            self._group.unsubscribe()
            self._at.assign(())

    @property
    def assigned(self) -> frozenset[BrokerPartition]:
        return frozenset(self._at.rotation.assigned)

    def poll(
        self, timeout_s: float = 0.0, max_records: int = 500
    ) -> dict[BrokerPartition, list[Record]]:
        """Up to `max_records` records by partition, each in its order; none where nothing came in
        time.

        The next fetches are sent before records are returned, so brokers work while the program
        does. Raises NotAssigned where nothing is assigned and it is not subscribed; of a member as
        `run.services.Member.join` does; what the records of a partition cannot be had for
        (CorruptData, MessageTooLarge, ExpiredOffsets, RanOutBeforeUntil, ...) in its turn, when
        nothing else is handed out, and again until it is sought in; BrokerUnreachable for one that
        was out of reach for `timeout_s`, once a poll finds nothing in the others; and NeedsDecision
        for one without a committed offset where no `start` is given.
        """
        with self._alone(nests=False):
            deadline, wait_until = time.monotonic() + timeout_s, 0.0
            while True:
                with self._at.all_or_nothing():
                    self._group.tend()
                    if not (self._at.rotation.assigned or self._group.is_subscribed):
                        raise NotAssigned(
                            "no partition is assigned to this consumer",
                            check="assign() or subscribe()",
                        )
                    self._at.place()
                    self._at.take_answers(self._fetches.end(wait_until))
                    found = self._at.take(max_records)
                    try:
                        self._fetches.begin(self._at.to_ask())
                    except EtlError:  # what was taken comes first; the next poll asks, and says so
                        if not found:
                            raise
                    self._at.hand_out(found)
                if not found:
                    self._at.reject_unreachable()
                if found or time.monotonic() >= deadline:
                    return found
                wait_until = min(deadline, time.monotonic() + _TEND_EVERY_S)

    def pause(self, logs: Collection[Log]) -> None:
        """Ask for none of these and hand out none of what came, until they are resumed. Raises
        NotAssigned, and then pauses none.
        """
        with self._alone():
            self._at.rotation.pause([BrokerPartition(*log) for log in logs])

    def resume(self, logs: Collection[Log]) -> None:
        """The opposite. Raises NotAssigned, and then resumes none."""
        with self._alone():
            self._at.rotation.resume([BrokerPartition(*log) for log in logs])

    @property
    def paused(self) -> frozenset[BrokerPartition]:
        return self._at.rotation.paused

    # Where it is

    def position(self, log: Log) -> int:
        """The next offset that `poll` hands out, or looks behind. Raises NotAssigned."""
        with self._alone():
            return self._at.position(BrokerPartition(*log))

    def seek(self, log: Log, offset: int) -> None:
        """Go on at this offset. Raises NotAssigned, ValueError for what is none; one outside of the
        log is told by `poll`.
        """
        with self._alone():
            self._at.seek(BrokerPartition(*log), offset)

    def seek_to_beginning(self, logs: Collection[Log] | None = None) -> None:
        """Go on with the first record that is there; None: of all that are assigned. Raises
        NotAssigned, BrokerUnreachable.
        """
        self._seek_to(StartAt.EARLIEST, logs)

    def seek_to_end(self, logs: Collection[Log] | None = None) -> None:
        """Go on behind the last record that may be read now; None: of all that are assigned. Raises
        NotAssigned, BrokerUnreachable.
        """
        self._seek_to(StartAt.LATEST, logs)

    def offsets_for_times(self, times_ms: Mapping[Log, int]) -> dict[BrokerPartition, int | None]:
        """The first offset of each whose record is at its time or later (milliseconds since 1970);
        None where none is. They need not be assigned. ValueError for a negative time, SettingsError
        where a log cannot be searched (Jafka, Kafka before 0.10.1)."""
        with self._alone():
            wanted = {BrokerPartition(*log): when for log, when in times_ms.items()}
            return self._cluster.first_at(wanted, isolation=self._isolation) if wanted else {}

    # What the group has of it

    def committed(self, logs: Collection[Log]) -> dict[BrokerPartition, int]:
        """The group's next offset of each that has one. They need not be assigned."""
        with self._alone():
            return self._group_offsets().committed([BrokerPartition(*log) for log in logs])

    def commit(self, offsets: Mapping[Log, int] | None = None) -> None:
        """Store next offsets for the group; None: the positions of all that are assigned and were
        polled or sought.

        Raises OffsetMoved where another client moved one in ZooKeeper since it was read, Owned
        while the group has members with its coordinator, CommitUnknown where no answer came,
        SettingsError without a group, ValueError for what is no offset. A member gets
        MembershipLost once the share by which it read is over, and NotAssigned for what is not in
        it: then nothing of it is committed.
        """
        with self._alone():
            self._group_offsets()
            for offset in (offsets or {}).values():
                reject_no_offset(offset)
            wanted = (
                self._at.done()
                if offsets is None
                else {BrokerPartition(*log): offset for log, offset in offsets.items()}
            )
            if wanted:
                self._group.commit(wanted)

    def _group_offsets(self) -> OffsetStore:
        if self._kept is None:
            raise SettingsError(
                "the consumer has no group, so nobody keeps its offsets",
                key="group",
                check="Consumer(..., group=...)",
            )
        return self._kept

    def _seek_to(self, where: StartAt, logs: Collection[Log] | None) -> None:
        with self._alone():
            self._at.seek_to(
                where, None if logs is None else [BrokerPartition(*log) for log in logs]
            )
