"""How does a `Consumer` poll the partitions that it reads?

One thread at a time uses a consumer; a listener may call it again in that thread.

Not here: positions and commits (etl/streams/positions.py), order of partitions
(etl/streams/partition_scheduler.py), requests (etl/streams/fetches.py), the group
(etl/streams/group_member.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Self

from etl.errors import (
    ConsumerInUse,
    EtlError,
    NotAssigned,
    SettingsError,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.model.partitions import (
    AnyPartition,
    BrokerFamily,
    ByPartition,
    Isolation,
    OffsetsStorage,
    PartitionName,
    TopicPartition,
    by_partition,
    partition_of,
)
from etl.settings.choices import FETCH_MAX_BYTES, MAX_BATCH_BYTES, MIB, TIMEOUT_S, StartAt
from etl.streams.background import Lane, Results
from etl.streams.conf import (
    ConsumerConfig,
    Group,
    RebalanceListener,
    SecurityInput,
    ZooKeeperAccessInput,
    by_filter,
    by_names,
    naming_arguments,
)
from etl.streams.fetches import Fetches
from etl.streams.group_member import ConsumerResources, GroupSubscription, open_cluster
from etl.streams.positions import OffsetStore, Positions, reject_invalid_offset
from etl.streams.records import Decoder, Record

_ITERATION_S = 1.0


Naming = Callable[[], AbstractContextManager[None]]


class SingleThreadGuard:
    """Keeps other threads, and calls of listeners that may not nest, out of one consumer.

    `naming`: the context of each call, which says how its errors name a setting.
    """

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._lock = threading.RLock()
        self._is_inside = False
        self.is_closed = False

    @contextmanager
    def exclusive(self, *, nests: bool = True) -> Iterator[None]:
        """Enter a call of the consumer; `nests`: a listener may make it within another call.

        Raises ConsumerInUse if another thread is inside, or a listener's call may not nest;
        NotAssigned once closed.
        """
        if not self._lock.acquire(blocking=False):
            raise ConsumerInUse(
                "Another thread is using this consumer",
                action="Check that each thread has a Consumer of its own",
            )
        try:
            if self.is_closed:
                raise NotAssigned("The consumer is closed", action="Use a new Consumer")
            if self._is_inside and not nests:
                raise ConsumerInUse(
                    "A listener polls, closes, assigns or subscribes the consumer that called it",
                    action="Check the listener: it may only commit and seek",
                )
            was_inside = self._is_inside
            self._is_inside = True
            try:
                with self._naming():
                    yield
            finally:
                self._is_inside = was_inside
        finally:
            self._lock.release()


class Consumer:
    """Reads partitions of one cluster, of any broker type.

        bootstrap_servers    "host:port,..." of some brokers, or a sequence of such; or
        zookeeper            registry of the brokers; with `bootstrap_servers`, of the group's
                             offsets only
        group                a name, or a `Group`: its offsets are read and committed, partitions
                             begin at them, and `subscribe` joins it; None: no group
        offsets_storage      None: ZooKeeper if it is given, else the group's coordinator
        broker_type          `jafka` for Jafka and Kafka 0.7
        broker_version       release of brokers that do not report it (Kafka before 0.10)
        auto_offset_reset    start of partitions without a committed offset; None: an error
        key_decoder, value_decoder   called with non-null bytes
        isolation_level      `read_committed`: no records of open and aborted transactions
        fetch_max_bytes      of one response; max_partition_fetch_bytes: of one partition in it
        max_batch_bytes      limit to which these grow for one large record batch
        fetch_max_wait_ms    how long a broker may delay a response below fetch_min_bytes
        request_timeout_s    of each request; also the time that a partition may lack a leader
                             before `poll` raises
        security, zookeeper_security   keys of `source.security` in a conf, and `listener`; `tls`
                             and `auth` of `zookeeper`

    Memory: one response per partition, and one per broker in flight. One thread at a time: a second
    one gets ConsumerInUse, from `close`, too. After `close` everything else raises NotAssigned. A
    member has two threads of its own, for its group and to leave if polls stop.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        zookeeper: str | None = None,
        group: str | Group | None = None,
        offsets_storage: OffsetsStorage | str | None = None,
        broker_type: BrokerFamily | str = BrokerFamily.KAFKA,
        broker_version: str | None = None,
        auto_offset_reset: StartAt | str | None = StartAt.LATEST,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        isolation_level: Isolation | str = Isolation.READ_COMMITTED,
        fetch_max_bytes: int = FETCH_MAX_BYTES,
        max_partition_fetch_bytes: int = MIB,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        request_timeout_s: float = TIMEOUT_S,
        security: SecurityInput = None,
        zookeeper_security: ZooKeeperAccessInput = None,
    ) -> None:
        """Raises SettingsError, and as finding brokers in ZooKeeper does.

        Connects to brokers with the first request.
        """
        conf = ConsumerConfig(
            bootstrap_servers,
            zookeeper,
            group,
            offsets_storage,
            broker_type,
            broker_version,
            auto_offset_reset,
            isolation_level,
            fetch_max_bytes,
            max_partition_fetch_bytes,
            max_batch_bytes,
            fetch_max_wait_ms,
            fetch_min_bytes,
            request_timeout_s,
            security,
            zookeeper_security,
        )
        with naming_arguments(), ExitStack() as until:
            self._begin(open_cluster(conf, until), conf, until, key_decoder, value_decoder)

    @classmethod
    def on(cls, cluster: Cluster, conf: ConsumerConfig) -> Self:
        """Return a consumer without a group on an open cluster, which it does not close.

        Its errors name keys of a conf.
        """
        results = Results()
        requests = Lane("requests", results)
        until = ExitStack()
        until.callback(requests.close, lambda: None)
        consumer = cls.__new__(cls)
        resources = ConsumerResources(cluster, requests, results)
        consumer._begin(resources, conf, until, naming=nullcontext)
        return consumer

    @classmethod
    def of_conf(cls, conf: ConsumerConfig) -> Self:
        """Return a consumer for the settings of a conf. Its errors name keys of the conf."""
        consumer = cls.__new__(cls)
        with ExitStack() as until:
            consumer._begin(open_cluster(conf, until), conf, until, naming=nullcontext)
        return consumer

    def _begin(
        self,
        resources: ConsumerResources,
        conf: ConsumerConfig,
        until: ExitStack,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        *,
        naming: Naming = naming_arguments,
    ) -> None:
        options = conf.fetch_options
        self._guard = SingleThreadGuard(naming)
        self._exclusive = self._guard.exclusive
        self._cluster = resources.cluster
        self._requests = resources.requests
        self._offset_store = resources.offset_store
        self._results = resources.results
        self._is_woken = False
        self._description = conf.description
        self._isolation = options.isolation
        self._is_physical = conf.is_physical
        self._request_timeout_s = options.timeout_s
        self._fetches = Fetches(
            resources.cluster, options, conf.broker_release, resources.requests, resources.results
        )
        self._positions = Positions(
            resources.cluster,
            resources.requests,
            resources.offset_store,
            conf.begins,
            options,
            key_decoder,
            value_decoder,
        )
        self._group = GroupSubscription(resources, self._positions)
        until.callback(self._fetches.close)
        until.callback(self._group.close)
        self._until = until.pop_all()

    def __enter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        state = "closed" if self._guard.is_closed else f"{len(self.assigned)} partitions"
        return f"<Consumer {self._description}, {state}>"

    def __iter__(self) -> Iterator[Record]:
        """Yield records one by one, without end; `commit` covers those that were yielded."""
        while True:
            for records in self.poll(_ITERATION_S, 1).values():
                yield from records

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:  # the program may not have processed all returned records
            self._group.stop_auto_commit()
        self.close()

    def close(self) -> None:
        """Leave the group and close connections. May be called again.

        Only auto-commit commits here, after the records that were returned, and not after an error
        in the `with` block.
        """
        if not self._guard.is_closed:
            with self._exclusive(nests=False):
                try:
                    self._until.close()  # a listener may still commit
                finally:
                    self._guard.is_closed = True

    # Partitions

    def topics(self) -> frozenset[str]:
        """Return the existing topics, without internal ones."""
        with self._exclusive():
            found = self._requests.call(lambda: self._cluster.describe(None)).topics.values()
            return frozenset(topic.topic for topic in found if not topic.is_internal)

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of a topic that have a leader now, for `assign`.

        Empty if there is no such topic.
        """
        with self._exclusive():
            leaders = self._requests.call(lambda: self._cluster.describe([topic])).leaders
            return tuple(sorted(partition for partition in leaders if partition.topic == topic))

    def assign(self, partitions: Iterable[PartitionName]) -> None:
        """Read these partitions and no others, from the next `poll` on.

        One that stays continues, paused or not; a new one begins at the group's committed offset,
        or at `auto_offset_reset`. Raises SettingsError while the consumer is subscribed.
        """
        with self._exclusive(nests=False):
            if self._group.is_subscribed:
                raise SettingsError(
                    "The consumer is subscribed, and its group assigns the partitions",
                    action="Call unsubscribe() before assign()",
                )
            self._positions.assign(_partitions(partitions))

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the group at the next `poll`, and read the partitions that it assigns.

        They are of these topics, or of all that match a Java pattern as a whole, later ones
        included. A second call replaces the first.

        Polls return nothing during a rebalance, and raise Owned after `Group.join_timeout_s` of it;
        `listener` is called at changes, by polls. Raises SettingsError without a group, and while
        partitions are assigned by hand.
        """
        if (pattern is None) is not bool(topics) or isinstance(topics, str):
            raise SettingsError(
                "subscribe() takes either a collection of topic names or a pattern",
                action="Call subscribe([name, ...]), or subscribe(pattern=...)",
            )
        if pattern is None:
            subscription = by_names(dict.fromkeys(topics, 1), physical=self._is_physical)
        else:
            subscription = by_filter(pattern, in_zookeeper=self._group.is_in_zookeeper)
        with self._exclusive(nests=False):
            self._group.subscribe(subscription, listener)

    def unsubscribe(self) -> None:
        """Leave the group; manual assignments end, too."""
        with self._exclusive(nests=False):
            self._group.unsubscribe()
            self._positions.assign(())

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self._positions.scheduler.assigned)

    @property
    def is_rebalancing(self) -> bool:
        """True while the consumer joins its group, or rebalances: polls return nothing."""
        return self._group.is_rebalancing

    def poll(self, timeout_s: float = 0.0, max_records: int = 500) -> ByPartition[list[Record]]:
        """Return up to `max_records` records by partition, each in its order.

        Empty if no record came in time: the next poll continues what this one began. So it takes no
        longer than `timeout_s`, and what a listener needs. The next fetches are sent before records
        are returned, so brokers work while the program does. Raises:

            NotAssigned          nothing is assigned, and the consumer is not subscribed
            CorruptData, MessageTooLarge, ExpiredOffsets, RanOutBeforeUntil, ...
                                 the records of a partition cannot be read: in its turn, when no
                                 other record is returned, and again until a seek
            BrokerUnreachable, TopicMissing
                                 a partition was unreachable or missing for `request_timeout_s`,
                                 and no other one has records
            NeedsDecision        a partition has no committed offset, and `auto_offset_reset` is
                                 None
            and, as a member, as `run.service_interfaces.Member.join`
        """
        with self._exclusive(nests=False):
            deadline = time.monotonic() + timeout_s
            wait_until = 0.0
            positions = self._positions
            while True:
                with positions.all_or_nothing():
                    is_settled = self._group.tend()
                    if not (positions.scheduler.assigned or self._group.is_subscribed):
                        raise NotAssigned(
                            "No partition is assigned to this consumer",
                            action="Call assign() or subscribe()",
                        )
                    found = self._step(wait_until, max_records if is_settled else 0)
                if is_settled and not found:
                    positions.reject_unreachable()
                if found or self._is_woken or time.monotonic() >= deadline:
                    self._is_woken = False
                    return ByPartition(found)
                wait_until = deadline

    def wakeup(self) -> None:
        """Make the poll that waits in another thread return now, else the next one."""
        self._is_woken = True
        self._results.notify()

    def _step(self, wait_until: float, max_records: int) -> dict[TopicPartition, list[Record]]:
        """Take what requests found, and send the next ones; waits for a result at most once."""
        positions = self._positions
        positions.initialize()
        positions.add_fetched(self._fetches.end(wait_until))
        found: dict[TopicPartition, list[Record]] = {}
        failure: EtlError | None = None
        try:
            found = positions.take(max_records)
        except EtlError as error:  # raised once the other partitions are requested
            failure = error
        self._fetches.close_unused(positions.progress)
        try:
            self._fetches.begin(positions.to_request())
        except EtlError:  # these records are returned first; the next poll raises it
            if not found and failure is None:
                raise
        if failure is not None:
            raise failure
        positions.advance(found)
        return found

    def pause(self, partitions: Collection[PartitionName]) -> None:
        """Fetch and return no records of these partitions until they are resumed.

        Raises NotAssigned, and then pauses none.
        """
        with self._exclusive():
            self._positions.scheduler.pause(_partitions(partitions))

    def resume(self, partitions: Collection[PartitionName]) -> None:
        """Read paused partitions again. Raises NotAssigned, and then resumes none."""
        with self._exclusive():
            self._positions.scheduler.resume(_partitions(partitions))

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return self._positions.scheduler.paused

    # Positions

    def position(self, partition: PartitionName) -> int:
        """Return the next offset of `poll`.

        Raises NotAssigned; BrokerUnreachable or TopicMissing if there is none within
        `request_timeout_s`.
        """
        topic_partition = partition_of(partition)
        with self._exclusive():
            positions = self._positions
            deadline = time.monotonic() + self._request_timeout_s
            while not positions.has_position(topic_partition):
                self._step(deadline, 0)
                positions.reject_unreachable(topic_partition)
                if time.monotonic() >= deadline:
                    raise positions.failure(topic_partition)
            return positions.next_offsets[topic_partition]

    def seek(self, partition: PartitionName, offset: int) -> None:
        """Continue at this offset. Raises NotAssigned, and ValueError for an invalid offset.

        `poll` raises for an offset outside of the partition.
        """
        with self._exclusive():
            self._positions.seek(partition_of(partition), offset)

    def seek_to_beginning(self, partitions: Collection[PartitionName] | None = None) -> None:
        """Continue at the log start; None: of all assigned partitions.

        Raises NotAssigned, BrokerUnreachable.
        """
        self._seek_to(StartAt.EARLIEST, partitions)

    def seek_to_end(self, partitions: Collection[PartitionName] | None = None) -> None:
        """Continue at the readable end; None: of all assigned partitions.

        Raises NotAssigned, BrokerUnreachable.
        """
        self._seek_to(StartAt.LATEST, partitions)

    def beginning_offsets(self, partitions: Collection[PartitionName]) -> ByPartition[int]:
        """Return the log start of each partition. They need not be assigned.

        Raises TopicMissing, BrokerUnreachable.
        """
        with self._exclusive():
            return ByPartition(self._positions.bounds(StartAt.EARLIEST, _partitions(partitions)))

    def end_offsets(self, partitions: Collection[PartitionName]) -> ByPartition[int]:
        """Return the readable end of each partition; otherwise as `beginning_offsets`."""
        with self._exclusive():
            return ByPartition(self._positions.bounds(StartAt.LATEST, _partitions(partitions)))

    def lag(self) -> ByPartition[int]:
        """Return the offsets (on Jafka bytes) from position to readable end.

        Of each assigned partition that has a position. Raises as `end_offsets`.
        """
        with self._exclusive():
            positions = self._positions.next_offsets
            ends = self._positions.bounds(StartAt.LATEST, list(positions))
            lags = ByPartition[int]()
            for partition, end in ends.items():
                lags[partition] = max(0, end - positions[partition])
            return lags

    def offsets_for_times(self, times_ms: Mapping[AnyPartition, int]) -> ByPartition[int | None]:
        """Return the first offset at or after each time (ms since 1970); None if there is none.

        Partitions need not be assigned. Raises ValueError for a negative time, SettingsError if the
        broker cannot search by time (Jafka, Kafka before 0.10.1).
        """
        with self._exclusive():
            times = by_partition(times_ms)
            if not times:
                return ByPartition()

            def request() -> dict[TopicPartition, int | None]:
                self._positions.reject_missing(times)
                return self._cluster.first_at(times, isolation=self._isolation)

            return ByPartition(self._requests.call(request))

    # Committed offsets

    def committed(self, partitions: Collection[PartitionName]) -> ByPartition[int]:
        """Return the committed offset of each partition that has one. They need not be assigned."""
        with self._exclusive():
            store = self._required_store()
            wanted = _partitions(partitions)
            return ByPartition(self._requests.call(lambda: store.committed(wanted)))

    def commit(self, offsets: Mapping[AnyPartition, int] | None = None) -> None:
        """Commit next offsets for the group.

        None: the positions of all assigned partitions that were polled or sought.

        Raises OffsetMoved if another client moved one in ZooKeeper since it was read, Owned while
        the group has members with its coordinator, CommitUnknown without an answer, SettingsError
        without a group, ValueError for an invalid offset. A member gets MembershipLost once its
        assignment is over, and NotAssigned for other partitions: then nothing is committed.
        """
        with self._exclusive():
            self._required_store()
            if offsets is None:
                next_offsets = self._positions.done()
            else:
                for offset in offsets.values():
                    reject_invalid_offset(offset)
                next_offsets = by_partition(offsets)
            if next_offsets:
                self._group.commit(next_offsets)

    def _required_store(self) -> OffsetStore:
        if self._offset_store is None:
            raise SettingsError(
                "The consumer has no group, so it has no committed offsets",
                key="group",
                action="Pass a group: Consumer(..., group=...)",
            )
        return self._offset_store

    def _seek_to(self, where: StartAt, topic_partitions: Collection[PartitionName] | None) -> None:
        with self._exclusive():
            partitions = None
            if topic_partitions is not None:
                partitions = _partitions(topic_partitions)
            self._positions.seek_to(where, partitions)


def _partitions(partitions: Iterable[PartitionName]) -> list[TopicPartition]:
    return [partition_of(partition) for partition in partitions]
