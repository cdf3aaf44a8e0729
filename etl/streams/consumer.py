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
from etl.settings.choices import FETCH_MAX_BYTES, MAX_BATCH_BYTES, MIB, TIMEOUT_S, StartAt
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
                "Another thread is using this consumer",
                action="Check that each thread has a Consumer of its own",
            )
        try:
            if self.is_closed:
                raise NotAssigned("The consumer is closed", action="Use a new Consumer")
            if self._is_inside and not nests:
                message = "A listener polls or closes the consumer that called it, or says anew what it reads"
                raise ConsumerInUse(message, action="Check the listener: it may commit and seek")
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
    """Reads partitions of one cluster, of any broker type.

        bootstrap            "host:port,..." of some brokers, or a sequence of such; or
        zookeeper            the brokers' registry; with `bootstrap`, of the group's offsets only
        group                a name, or a `Group`: whose offsets are read and committed, where
                             partitions begin, and what `subscribe` joins; None: no group
        offsets_storage      None: ZooKeeper if it is given, else the group's coordinator
        dialect              `jafka` for Jafka and Kafka 0.7
        broker_version       release of brokers that do not report it (Kafka before 0.10)
        start                where partitions without a committed offset begin; None: an error
        key_decoder, value_decoder   called with non-null bytes
        isolation            `read_committed`: no records of open and aborted transactions
        fetch_max_bytes      of one response; partition_max_bytes: of one partition in it
        max_batch_bytes    what these may grow to for one large record batch
        max_wait_ms          how long a broker may delay an empty response
        timeout_s            of each request; and how long a partition may lack a leader before
                             `poll` raises
        security, zookeeper_access   keys of `source.security` in a conf, and `listener`; `tls`
                             and `auth` of `zookeeper`

    Memory: one response per partition, and one per broker in flight. One thread at a time: a second
    one gets ConsumerInUse, from `close`, too. After `close` everything else raises NotAssigned. A
    member has two threads of its own, for its group and to leave if nobody polls.
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
        max_batch_bytes: int = MAX_BATCH_BYTES,
        max_wait_ms: int = 500,
        timeout_s: float = TIMEOUT_S,
        security: SecurityInput = None,
        zookeeper_access: ZooKeeperAccessInput = None,
    ) -> None:
        """Raises SettingsError, and as finding brokers in ZooKeeper does. Brokers are asked with
        the first request.
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
            max_batch_bytes,
            max_wait_ms,
            timeout_s,
            security,
            zookeeper_access,
        )
        with ExitStack() as until:
            self._begin(open_cluster(conf, until), conf, until, key_decoder, value_decoder)

    @classmethod
    def on(cls, cluster: Cluster, conf: ConsumerConfig) -> Self:
        """Return a consumer without a group on an open cluster, which it does not close."""
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
        """Leave the group and close connections. Commits only with auto-commit, and then what was
        returned; not after an error in the `with` block. May be called again.
        """
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
        """Read these partitions and no others, from the next `poll` on. One that stays continues,
        paused or not; a new one begins at the group's offset, or at `start`. Raises SettingsError
        while it is subscribed.
        """
        with self._alone(nests=False):
            if self._group.is_subscribed:
                raise SettingsError(
                    "The group says what this consumer reads",
                    action="Call unsubscribe(), before anything is assigned by hand",
                )
            self._at.assign([BrokerPartition(*log) for log in logs])

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the group at the next `poll`, and read what it assigns of these topics, or of all
        that match a Java pattern as a whole, later ones included. The last call counts.

        A poll during a rebalance takes as long as that, `Group.join_timeout_s` at most; `listener`
        is told of changes. Raises SettingsError without a group, and while partitions are assigned
        by hand.
        """
        if (pattern is None) is not bool(topics) or isinstance(topics, str):
            message = "Topics are named, or there is a pattern of them"
            raise SettingsError(
                message, action="Call subscribe([name, ...]), or subscribe(pattern=...)"
            )
        wanted = by_names(dict.fromkeys(topics, 1)) if pattern is None else by_filter(pattern)
        with self._alone(nests=False):
            self._group.subscribe(wanted, listener)

    def unsubscribe(self) -> None:
        """Leave the group; manual assignments end, too."""
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
                            "No partition is assigned to this consumer",
                            action="Call assign() or subscribe()",
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
        """Return the next offset of `poll`. Raises NotAssigned."""
        with self._alone():
            return self._at.position(BrokerPartition(*log))

    def seek(self, log: Log, offset: int) -> None:
        """Continue at this offset. Raises NotAssigned, ValueError for an invalid one; one outside
        of the log is raised by `poll`.
        """
        with self._alone():
            self._at.seek(BrokerPartition(*log), offset)

    def seek_to_beginning(self, logs: Collection[Log] | None = None) -> None:
        """Continue at the log start; None: of all assigned partitions. Raises NotAssigned,
        BrokerUnreachable.
        """
        self._seek_to(StartAt.EARLIEST, logs)

    def seek_to_end(self, logs: Collection[Log] | None = None) -> None:
        """Continue at the readable end; None: of all assigned partitions. Raises NotAssigned,
        BrokerUnreachable.
        """
        self._seek_to(StartAt.LATEST, logs)

    def offsets_for_times(self, times_ms: Mapping[Log, int]) -> dict[BrokerPartition, int | None]:
        """Return the first offset at or after each time (ms since 1970); None if there is none.
        Partitions need not be assigned. ValueError for a negative time, SettingsError if one cannot
        be searched (Jafka, Kafka before 0.10.1).
        """
        with self._alone():
            wanted = {BrokerPartition(*log): when for log, when in times_ms.items()}
            return self._cluster.first_at(wanted, isolation=self._isolation) if wanted else {}

    # What the group has of it

    def committed(self, logs: Collection[Log]) -> dict[BrokerPartition, int]:
        """The group's next offset of each that has one. They need not be assigned."""
        with self._alone():
            return self._group_offsets().committed([BrokerPartition(*log) for log in logs])

    def commit(self, offsets: Mapping[Log, int] | None = None) -> None:
        """Commit next offsets for the group; None: positions of all assigned partitions that were
        polled or sought.

        Raises OffsetMoved if another client moved one in ZooKeeper since it was read, Owned while
        the group has members with its coordinator, CommitUnknown without an answer, SettingsError
        without a group, ValueError for an invalid offset. A member gets MembershipLost once its
        assignment is over, and NotAssigned for other partitions: then nothing is committed.
        """
        with self._alone():
            self._group_offsets()
            for offset in (offsets or {}).values():
                reject_no_offset(offset)
            if offsets is None:
                wanted = self._at.done()
            else:
                wanted = {BrokerPartition(*log): offset for log, offset in offsets.items()}
            if wanted:
                self._group.commit(wanted)

    def _group_offsets(self) -> OffsetStore:
        if self._kept is None:
            raise SettingsError(
                "The consumer has no group, so nobody keeps its offsets",
                key="group",
                action="Pass a group: Consumer(..., group=...)",
            )
        return self._kept

    def _seek_to(self, where: StartAt, logs: Collection[Log] | None) -> None:
        with self._alone():
            self._at.seek_to(
                where, None if logs is None else [BrokerPartition(*log) for log in logs]
            )
