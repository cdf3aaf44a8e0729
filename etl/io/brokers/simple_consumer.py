"""Requests to one broker, one at a time, independent of the broker type.

`SimpleConsumer` has all of them: fetches, offsets, metadata, groups, committed offsets. It does not
retry after an error code: a response carries its codes, the short forms (`fetch`) raise them.

Committed offsets are in one of two places, as with Kafka's own consumers: the group coordinator,
which is found first; or ZooKeeper, written by any broker before 4.0 that has one.

    a commit                                                         raises
    --------------------------------------------------------------   -------------------------------
    from outside (no member), while the group has members            Owned: nothing stored
    by an unknown member or with an old generation or epoch, or      MembershipLost: nothing stored
    during a rebalance
    without an answer, or with an ambiguous one                      CommitUnknown: read it back
    rejected otherwise                                               the error of the first rejected
                                                                     partition

Not here: the connection and its deadlines (etl/io/brokers/exchange.py), bytes (etl/kafka), several
brokers (etl/io/brokers/cluster_requests.py), reading a range (etl/reader).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import RLock
from types import TracebackType
from typing import Any, Self

from etl.errors import (
    BrokerError,
    BrokerRefusal,
    BrokerUnreachable,
    CommitUnknown,
    ConsumerInUse,
    CorruptData,
    EtlError,
    Meaning,
    MembershipLost,
    OtherRelease,
    Owned,
    SettingsError,
)
from etl.io.brokers.connection import IdleConnections
from etl.io.brokers.exchange import Answer, Ask, Exchange, Fetching
from etl.kafka.broker_type_interface import BrokerProtocol, Request
from etl.kafka.request_values import (
    EARLIEST,
    LATEST,
    ClusterMetadata,
    CommittedOffset,
    CommittedOffsets,
    EpochEndsResponse,
    Fetch,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    GroupMember,
    ListedOffset,
    MembersResponse,
    OffsetsCommit,
    OffsetsQuery,
    SupportedMembership,
    in_serving_order,
    reject_negative,
    reject_wrong_times,
)
from etl.model.partitions import (
    AnyPartition,
    Broker,
    ByPartition,
    Isolation,
    OpenTransaction,
    PartitionName,
    Retention,
    TopicPartition,
    by_partition,
    partition_of,
)
from etl.model.security import OPEN, Security
from etl.settings.choices import FETCH_MAX_BYTES, MIB, TIMEOUT_S, StartAt, choice_of

_OTHER_PARTITIONS = "The answer to ListOffsets names other partitions than were asked for"
_NO_GROUP = (Meaning.NO_SUCH_GROUP, Meaning.SWITCHED_OFF)


class BrokerRequests:
    """One connection to one broker, and all requests but those of offsets and records."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "offset-range-etl",
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = TIMEOUT_S,
        max_response_bytes: int = 320 * MIB,
        broker_type: str | None = None,
        idle_connections: IdleConnections | None = None,
        security: Security | Mapping[str, Any] = OPEN,
    ) -> None:
        if not isinstance(security, Security):
            # Settings load pydantic, which tasks do without.
            from etl.settings.load import security_of

            security = security_of(security)
        self.host = host
        self.port = port
        self.security = security
        """Encryption and login of the listener."""
        self._timeout_s = request_timeout_s
        self._exchange = Exchange(
            host,
            port,
            client_id=client_id,
            connect_timeout_s=connect_timeout_s,
            timeout_s=request_timeout_s,
            max_response_bytes=max_response_bytes,
            broker_type=broker_type,
            idle_connections=idle_connections,
            security=security,
        )
        self._fetching = Fetching(self._exchange, max_response_bytes)
        self._one_at_a_time = RLock()

    @property
    def address(self) -> str:
        """host:port, as errors name it."""
        return self._exchange.address

    @property
    def broker_type(self) -> str | None:
        """Broker type or release (`Broker.broker_type`): configured, or detected by the first call.

        None before.
        """
        return self._exchange.broker_type

    def close(self) -> None:
        """Close the connection, or return it for reuse; drop a fetch in flight.

        The next call connects again.
        """
        self._fetching.forget()
        self._exchange.close()

    def interrupt(self) -> None:
        """Make a call that waits in another thread raise BrokerUnreachable at once.

        A connect is not interrupted.
        """
        self._exchange.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def ending_by(self, moment: float) -> Iterator[None]:
        """Limit the calls inside to end by this `time.monotonic` value, with any timeout."""
        self._exchange.ends_by = moment
        try:
            yield
        finally:
            self._exchange.ends_by = None

    # The cluster, as this broker knows it

    def introduction(self) -> str:
        """Return a description of the broker by its handshake; brokers report no version."""
        return self._protocol().introduction()

    def reject_other_release(self, isolation: Isolation) -> None:
        """Request the broker's versions once, if `broker_type` is a release such as `kafka-0.10.2`.

        Raises OtherRelease if it lacks what that release speaks, or has transactions that the
        release lacks while the isolation requires them. A broker that does not answer within five
        seconds is taken as configured.
        """
        with self._alone():
            self._exchange.reject_other_release(isolation)

    def topic_metadata(self, topics: Collection[str] | None = None) -> ClusterMetadata:
        """Return brokers, topics and leaders; None: of all topics. Never creates a topic."""
        return self._request(lambda protocol: protocol.metadata(topics))

    def log_sizes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes of the segments that this broker holds of each partition (KIP-113).

        Partitions that it does not hold are left out, and all if we lack Describe on the cluster.
        """
        return self._request(lambda protocol: protocol.log_sizes(partitions))

    def retention(self, topics: Collection[str]) -> dict[str, Retention]:
        """Return retention and cleanup policy of each topic (KIP-133).

        Topics that we may not describe are left out. Raises SettingsError for a broker before 1.0.
        """
        return self._request(lambda protocol: protocol.retention(topics))

    def has_describe_configs(self) -> bool:
        """True if the broker supports `retention` (from 0.11 on)."""
        return self._protocol().has_describe_configs

    def keeps_offsets(self) -> bool:
        """True if the broker stores group offsets itself (from 0.8.2 on)."""
        return self._protocol().groups.keeps_offsets

    def membership(self) -> SupportedMembership:
        """Return which membership protocols the broker supports."""
        return self._protocol().groups.membership

    def open_transactions(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        """Return the oldest open transaction of each partition that this broker leads (KIP-664).

        Raises SettingsError before 2.8.
        """
        return self._request(lambda protocol: protocol.open_transactions(partitions))

    def transactions_of(self, producer_ids: Collection[int]) -> dict[int, tuple[str, int | None]]:
        """Return transactional id and start of the open transaction, by producer id.

        Only those that this broker coordinates and we may describe. Raises SettingsError before
        3.0.
        """
        known = self._request(lambda protocol: protocol.transactional_ids(producer_ids))
        if not known:
            return {}
        return self._request(lambda protocol: protocol.transactions(known))

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], current: Mapping[TopicPartition, int | None]
    ) -> EpochEndsResponse:
        """Return the end of each leader epoch (KIP-320), in one request; empty before 2.1."""
        if not self._protocol().has_leader_epochs:
            return {}
        return self._request(lambda protocol: protocol.epoch_ends(epochs, current))

    def members_of(self, group: str) -> MembersResponse:
        """Return the members of Kafka's group with their partitions, of either group protocol.

        Only the group's coordinator answers. Before 0.9 there are none.
        """
        if not self._protocol().groups.keeps_groups:
            return MembersResponse(None, {})
        classic = self._request(lambda protocol: protocol.groups.members_of(group))
        is_error = classic.refusal and classic.refusal.meaning not in _NO_GROUP
        if classic.members or is_error or not self._protocol().groups.keeps_consumer_groups:
            return classic
        # DescribeGroups does not know a group of the newer protocol (KIP-848).
        newer = self._request(lambda protocol: protocol.groups.consumer_group_members(group))
        if newer.refusal and newer.refusal.meaning in _NO_GROUP:
            return MembersResponse(None, {})
        return newer

    def create_topic(self, topic: str, partitions: int) -> int:
        """Create a topic on this Jafka broker, or add partitions; return how many it has there.

        Raises SettingsError for other broker types.
        """
        created = self._request(
            lambda protocol: protocol.create_topic(topic, partitions), may_repeat=False
        )
        if isinstance(created, BrokerRefusal):
            raise created.error("create the topic", topic=topic, broker=self.address)
        return created

    def delete_topic(self, topic: str, password: str = "") -> int:
        """Delete a topic on this Jafka broker; return how many partitions it had there.

        Raises SettingsError for other broker types.
        """
        deleted = self._request(
            lambda protocol: protocol.delete_topic(topic, password), may_repeat=False
        )
        if isinstance(deleted, BrokerRefusal):
            raise deleted.error("delete the topic", topic=topic, broker=self.address)
        return deleted

    def send(self, request: Request[Answer] | Ask[Answer], *, may_repeat: bool = True) -> Answer:
        """Return the response to any request: a request, or a function of the broker's protocol.

        Sent again once if the connection broke before any byte of the response, unless it must not
        happen twice (`may_repeat`).
        """
        if isinstance(request, Request):
            return self._request(lambda protocol: request, may_repeat=may_repeat)
        return self._request(request, may_repeat=may_repeat)

    def _request(self, ask: Ask[Answer], *, may_repeat: bool = True) -> Answer:
        with self._alone():
            return self._exchange.ask(ask, may_repeat=may_repeat)

    def _protocol(self) -> BrokerProtocol:
        with self._alone():
            return self._exchange.dialect()

    @contextmanager
    def _alone(self, *, is_fetching: bool = False) -> Iterator[None]:
        """Guard the connection: no other response may come in between.

        Raises ConsumerInUse for another thread, ValueError for a fetch in flight.
        """
        if not self._one_at_a_time.acquire(blocking=False):
            raise ConsumerInUse(
                "Another thread waits for a response on this connection",
                broker=self.address,
                action="Check that each thread has a SimpleConsumer of its own",
            )
        try:
            if not is_fetching:
                self._fetching.reject_pending_request()
            yield
        finally:
            self._one_at_a_time.release()


_PAUSE_S = 0.2
_TIMES = {StartAt.EARLIEST: EARLIEST, StartAt.LATEST: LATEST}
_NOT_READY = (Meaning.NOT_COORDINATOR, Meaning.NO_COORDINATOR_YET, Meaning.UNSTABLE)
_FENCED = (
    Meaning.OLD_GENERATION,
    Meaning.UNKNOWN_MEMBER,
    Meaning.FENCED,
    Meaning.FENCED_EPOCH,
    Meaning.STALE_EPOCH,
    Meaning.REBALANCING,
)
_READ_IT_BACK = "Check what the group has stored: the commit may have happened"


class GroupOffsets(BrokerRequests):
    """Committed offsets of groups. Raises SettingsError if the broker type has none.

    `member_id` and `generation` (KIP-848: the member epoch) make it a member's request; without
    them it comes from outside the group.
    """

    def find_coordinator(self, group: str) -> Broker:
        """Return the coordinator of a group. Raises BrokerError if there is none by
        `request_timeout_s`.

        The first such request creates the topic `__consumer_offsets` in a cluster without groups.
        """
        return self._coordinator(group, time.monotonic() + self._timeout_s)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[AnyPartition, int],
        *,
        metadata: str = "",
        generation: int | None = None,
        member_id: str = "",
        instance_id: str | None = None,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
    ) -> None:
        """Commit next offsets with metadata; raise the first error of those `commit_each` returns.

        They go to the group coordinator. `in_zookeeper`: by this broker in ZooKeeper (OffsetCommit
        0). A coordinator that moved or is loading is found and requested again until
        `request_timeout_s`. Raises as the module's table.
        """
        next_offsets = by_partition(offsets)
        refusals = self.commit_each(
            group,
            next_offsets,
            metadata=metadata,
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
            leader_epochs=leader_epochs,
            topic_ids=topic_ids,
            in_zookeeper=in_zookeeper,
        )
        rejected = []
        for partition, refusal in sorted(refusals.items()):
            if refusal:
                rejected.append((partition, refusal))
        if not rejected:
            return
        partition, refusal = rejected[0]
        others = ""
        if len(rejected) > 1:
            others = f" (and {len(rejected) - 1:,} of {len(next_offsets):,} more were rejected)"
        raise refusal.error(
            f"commit an offset of group {group}{others}",
            **partition.place,
            offset=next_offsets[partition],
            broker=self.address,
        )

    def commit_each(
        self,
        group: str,
        offsets: Mapping[AnyPartition, int],
        *,
        metadata: str = "",
        generation: int | None = None,
        member_id: str = "",
        instance_id: str | None = None,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
        is_sent_once: bool = False,
    ) -> dict[TopicPartition, BrokerRefusal | None]:
        """Commit as `commit_offsets`, but return each partition's error, None for committed ones.

        Raises ValueError for a negative offset, generation or leader epoch: a stored -1 is read as
        no offset, and -1 as a generation is a commit from outside.

        `is_sent_once`: a member's commit over a broken connection raises CommitUnknown, too,
        instead of being sent again; so does an error of a new coordinator, which may have loaded
        the first commit.
        """
        reject_negative(generation=generation)
        next_offsets = by_partition(offsets)
        for partition, offset in next_offsets.items():
            if offset < 0:
                reject_negative(**{f"the offset of {partition.topic}-{partition.key}": offset})
        for epoch in (leader_epochs or {}).values():
            reject_negative(leader_epoch=epoch)
        member = None if generation is None else GroupMember(member_id, generation, instance_id)
        wanted = OffsetsCommit(
            group, next_offsets, metadata, member, leader_epochs or {}, topic_ids or {}
        )
        responses: list[dict[TopicPartition, BrokerRefusal | None]] = []

        def commit(broker: GroupOffsets) -> dict[TopicPartition, BrokerRefusal | None]:
            # Only a member's commit may be sent twice: between two commits from outside, another
            # client may have committed an offset.
            may_repeat = member is not None and not is_sent_once
            try:
                response = broker._request(
                    lambda protocol: protocol.groups.commit_offsets(
                        wanted, in_zookeeper=in_zookeeper
                    ),
                    may_repeat=may_repeat,
                )
            except BrokerUnreachable as error:
                raise _commit_unknown(group, error) from error
            responses.append(response)
            return response

        try:
            if in_zookeeper:
                refusals = commit(self)
            else:
                refusals = self._request_coordinator(
                    group, commit, lambda response: set(response.values())
                )
            self._reject_unsettled(wanted, refusals)
        except (MembershipLost, BrokerUnreachable) as error:
            earlier = responses
            if isinstance(error, MembershipLost):
                earlier = responses[:-1]
            if is_sent_once and earlier:
                raise _commit_unknown(group, error) from error
            raise
        return by_partition(refusals)

    def fetch_offsets(
        self,
        group: str,
        partitions: Collection[PartitionName],
        *,
        generation: int | None = None,
        member_id: str = "",
        require_stable: bool = False,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
    ) -> ByPartition[CommittedOffset]:
        """Return next offsets and metadata; raise the first error of those `fetch_each` returns.

        A broker of 0.8.2 does not know the topics of a moment ago: its error for them is no proof
        that nothing is committed.
        """
        found = self.fetch_each(
            group,
            partitions,
            generation=generation,
            member_id=member_id,
            require_stable=require_stable,
            topic_ids=topic_ids,
            in_zookeeper=in_zookeeper,
        )
        for partition, committed in sorted(found.items()):
            if committed.refusal:
                raise committed.refusal.error(
                    f"return an offset of group {group}", **partition.place, broker=self.address
                )
        return found

    def fetch_each(
        self,
        group: str,
        partitions: Collection[PartitionName],
        *,
        generation: int | None = None,
        member_id: str = "",
        require_stable: bool = False,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
    ) -> ByPartition[CommittedOffset]:
        """Return next offsets and metadata as `fetch_offsets`, and each partition's error with it.

        They come from the group coordinator. `in_zookeeper`: by this broker from ZooKeeper.
        `require_stable`: wait for offsets of an open transaction (from 2.5 on). A coordinator that
        moved or is loading is requested again; both until `request_timeout_s`. Raises
        MembershipLost, and ValueError for a negative generation.
        """
        reject_negative(generation=generation)
        member = None if generation is None else GroupMember(member_id, generation)
        wanted = tuple(map(partition_of, partitions))
        question = OffsetsQuery(group, wanted, member, require_stable, topic_ids or {})

        def request_offsets(broker: GroupOffsets) -> CommittedOffsets:
            return broker._request(
                lambda protocol: protocol.groups.committed_offsets(
                    question, in_zookeeper=in_zookeeper
                )
            )

        def refusals(response: CommittedOffsets) -> set[BrokerRefusal | None]:
            return {response.refusal, *(each.refusal for each in response.offsets.values())}

        if in_zookeeper:
            found = request_offsets(self)
        else:
            found = self._request_coordinator(group, request_offsets, refusals)
        if found.refusal:
            if member and found.refusal.meaning in _FENCED:
                raise self._membership_lost(group, found.refusal)
            raise found.refusal.error(f"return the offsets of group {group}", broker=self.address)
        return by_partition(found.offsets)

    def _reject_unsettled(
        self, wanted: OffsetsCommit, refusals: Mapping[TopicPartition, BrokerRefusal | None]
    ) -> None:
        """Raise an error of the whole commit, which the coordinator reports for each partition.

        See the module's table.
        """
        by_meaning = {}
        for refusal in refusals.values():
            if refusal:
                by_meaning[refusal.meaning] = refusal
        fenced = None
        for meaning in _FENCED:
            if meaning in by_meaning:
                fenced = by_meaning[meaning]
                break
        if fenced and wanted.member:
            raise self._membership_lost(wanted.group, fenced)
        if fenced:
            raise Owned(
                f"Group {wanted.group} has live members in Kafka, and they alone commit its"
                f" offsets: {fenced.name} (code {fenced.code})",
                action="Check which consumers of this group run: kafka-consumer-groups.sh"
                " --describe --members",
                broker=self.address,
            )
        # A coordinator answers COORDINATOR_NOT_AVAILABLE also when its own log took the offsets and
        # the replicas did not in time: they may be stored a moment later.
        for refusal in by_meaning.values():
            if refusal.is_retriable and refusal.kind is BrokerError:
                raise CommitUnknown(
                    f"It is unknown whether the offsets of group {wanted.group} are stored:"
                    f" {refusal.name} (code {refusal.code})",
                    action=f"{refusal.action}. {_READ_IT_BACK}",
                    broker=self.address,
                )

    def _membership_lost(self, group: str, refusal: BrokerRefusal) -> MembershipLost:
        return MembershipLost(
            f"The coordinator of group {group} does not take us for its member any more:"
            f" {refusal.name} (code {refusal.code})",
            action=refusal.action,
            broker=self.address,
        )

    def _request_coordinator(
        self,
        group: str,
        request: Callable[[GroupOffsets], Answer],
        refusals: Callable[[Answer], Collection[BrokerRefusal | None]],
    ) -> Answer:
        """Return the coordinator's response; find it again while it is none, not ready, or silent.

        Brokers name a dead coordinator for a while.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            coordinator = self._coordinator(group, deadline)
            try:
                response = self._request_at(coordinator, request)
                meanings = {refusal.meaning for refusal in refusals(response) if refusal}
                is_ready = meanings.isdisjoint(_NOT_READY)
                if is_ready or time.monotonic() + _PAUSE_S > deadline:
                    return response
            except BrokerUnreachable:
                if self._is_at(coordinator) or time.monotonic() + _PAUSE_S > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _coordinator(self, group: str, deadline: float) -> Broker:
        """Return the coordinator; retry while there is none, until a `time.monotonic` value."""
        while True:
            found = self._request(lambda protocol: protocol.groups.coordinator(group))
            if found.refusal is None:
                return found.broker
            if found.refusal.meaning not in _NOT_READY or time.monotonic() + _PAUSE_S > deadline:
                raise found.refusal.error(
                    f"name the coordinator of group {group}", broker=self.address
                )
            time.sleep(_PAUSE_S)

    def _request_at(self, broker: Broker, request: Callable[[GroupOffsets], Answer]) -> Answer:
        if self._is_at(broker):
            return request(self)
        with closing(
            GroupOffsets(
                broker.host,
                broker.port,
                request_timeout_s=self._timeout_s,
                broker_type=self.broker_type,
                security=self.security,
            )
        ) as coordinator:
            return request(coordinator)

    def _is_at(self, broker: Broker) -> bool:
        return (broker.host, broker.port) == (self.host, self.port)


def _time_of(time: int | str) -> int:
    """Return the time of ListOffsets. Raises SettingsError for another word."""
    if isinstance(time, str):
        return _TIMES[choice_of(StartAt, time, "time")]
    return time


def _commit_unknown(group: str, error: EtlError) -> CommitUnknown:
    return CommitUnknown(
        f"It is unknown whether the offsets of group {group} are stored: {error.message}",
        action=_READ_IT_BACK,
        **error.where,
    )


class SimpleConsumer(GroupOffsets):
    """All requests to one broker.

        host, port           address of the broker
        connect_timeout_s    timeout of a connect
        request_timeout_s    timeout of a call with connect and handshake; a fetch may take
                             `fetch_max_wait_ms` longer, and so may a call after a throttled
                             response, or one whose response arrives at 8 KiB/s or more
        max_response_bytes   larger responses are rejected before memory is reserved
        broker_type          broker type or release (`Broker.broker_type`); None: detected
        idle_connections     pool to take a connection from and to return it to with `close`;
                             None: no reuse
        security             encryption and login, or keys of `source.security` in a conf

    Connects with the first call. A connection that broke before any byte of a response is replaced
    once per call (brokers close idle connections), except for `produce`, which may have happened.

    Error codes are carried by responses (`multifetch`, `list_offsets`, `topic_metadata`) or raised;
    only group coordinators are retried. `Messages` decodes a fetched partition, one record at a
    time; `send` takes any request.

    Each call may raise BrokerUnreachable, NotKafka (another protocol), SettingsError (the broker is
    too old) and CorruptData (invalid bytes), a fetch also MessageTooLarge (a record batch above
    `max_response_bytes`); ConsumerInUse if another thread waits for a response: each needs its own
    consumer.
    """

    # Records

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = FETCH_MAX_BYTES,
        isolation_level: Isolation | str = Isolation.READ_COMMITTED,
        fetch_max_wait_ms: int = 500,
    ) -> FetchedPartition:
        """Return records of one partition from `offset` on; raises the error of the broker's code.

        `records` is valid until this consumer receives the second next fetch response.
        """
        wanted = [FetchTarget(TopicPartition(topic, partition), offset, max_bytes)]
        deadline = self._exchange.deadline()
        while True:
            response = self.multifetch(
                wanted,
                isolation_level=isolation_level,
                max_bytes=max_bytes,
                fetch_max_wait_ms=fetch_max_wait_ms,
            )
            if response.partitions:
                break
            if time.monotonic() > deadline:
                raise BrokerUnreachable(
                    "The broker throttles us and returns no records",
                    broker=self.address,
                    action="Check the quota of our client",
                )
        fetched = response.partitions[0]
        if fetched.refusal:
            raise fetched.refusal.error(
                "fetch", topic=topic, partition=partition, offset=offset, broker=self.address
            )
        return fetched

    def multifetch(
        self,
        wanted: Sequence[FetchTarget],
        *,
        isolation_level: Isolation | str = Isolation.READ_COMMITTED,
        max_bytes: int = FETCH_MAX_BYTES,
        fetch_max_wait_ms: int = 500,
        min_bytes: int = 1,
        keeps_arrived: bool = False,
    ) -> FetchAnswer:
        """Fetch several partitions in one request; each of the response carries its error code.

        A throttled response may contain no partition (KIP-219): fetch again. `keeps_arrived`: see
        `end_fetch`.
        """
        with self._alone():
            self.begin_fetch(
                wanted,
                isolation_level=isolation_level,
                max_bytes=max_bytes,
                fetch_max_wait_ms=fetch_max_wait_ms,
                min_bytes=min_bytes,
            )
            return self.end_fetch(keeps_arrived=keeps_arrived)

    def begin_fetch(
        self,
        wanted: Sequence[FetchTarget],
        *,
        isolation_level: Isolation | str = Isolation.READ_COMMITTED,
        max_bytes: int = FETCH_MAX_BYTES,
        fetch_max_wait_ms: int = 500,
        min_bytes: int = 1,
    ) -> None:
        """Send a fetch without waiting; `end_fetch` must follow.

        So the broker reads while the previous response is decoded. `max_bytes` bounds the whole
        response, each `FetchTarget.max_bytes` its part. The first partition with records returns
        its first record batch whole even if that is larger (KIP-74). Raises ValueError for a
        negative number, for a partition named twice, and while another fetch is in flight.
        """
        reject_negative(
            max_bytes=max_bytes, fetch_max_wait_ms=fetch_max_wait_ms, min_bytes=min_bytes
        )
        for target in wanted:
            if (
                target.offset < 0
                or target.max_bytes < 0
                or target.leader_epoch is not None
                and target.leader_epoch < 0
            ):
                reject_negative(
                    offset=target.offset,
                    max_bytes=target.max_bytes,
                    leader_epoch=target.leader_epoch,
                )
        isolation = choice_of(Isolation, isolation_level, "isolation_level")
        with self._alone():
            self._fetching.begin(
                Fetch(
                    in_serving_order(wanted),
                    isolation,
                    max_bytes,
                    fetch_max_wait_ms,
                    min_bytes,
                )
            )

    def end_fetch(self, *, keeps_arrived: bool = False) -> FetchAnswer:
        """Return the response to the fetch in flight, its partitions in the order of the response.

        Two buffers take turns: the records of this response are valid until the second next one is
        received. A response that the deadline cut is returned as far as it arrived, with its `cut`,
        if `keeps_arrived`; else it raises. Raises ValueError without a fetch in flight.
        """
        with self._alone(is_fetching=True):
            return self._fetching.end(keeps_arrived=keeps_arrived)

    def is_answered(self, wait_s: float = 0.0) -> bool:
        """True if the response begins to arrive, or the connection ends, within `wait_s`.

        Raises ValueError without a fetch in flight.
        """
        with self._alone(is_fetching=True):
            return self._fetching.is_answered(wait_s)

    # Offsets

    def list_offsets(
        self,
        times: Mapping[AnyPartition, int | str],
        *,
        isolation_level: Isolation | str = Isolation.READ_COMMITTED,
        epochs: Mapping[TopicPartition, int | None] | None = None,
    ) -> ByPartition[ListedOffset]:
        """Return the offset of a time in each partition, in one request.

        A time is `latest`, `earliest`, or milliseconds since 1970: the first record at or after it.
        Under read_committed LATEST is the last stable offset (KIP-98). Each partition carries its
        own error code. Raises ValueError for any other negative time.
        """
        isolation = choice_of(Isolation, isolation_level, "isolation_level")
        wanted = {}
        for name, time_ms in times.items():
            wanted[partition_of(name)] = _time_of(time_ms)
        return by_partition(self.list_offsets_at(wanted, isolation, epochs or {}))

    def list_offsets_at(
        self,
        times: Mapping[TopicPartition, int],
        isolation: Isolation,
        epochs: Mapping[TopicPartition, int | None],
    ) -> dict[TopicPartition, ListedOffset]:
        """Return as `list_offsets`, for the times of the protocol: LATEST, EARLIEST or
        milliseconds.
        """
        reject_wrong_times(times, least=EARLIEST)
        listed = self._request(lambda protocol: protocol.list_offsets(times, isolation, epochs))
        if listed.keys() != times.keys():
            raise CorruptData(_OTHER_PARTITIONS, broker=self.address)
        return listed

    def max_timestamps(
        self,
        partitions: Collection[TopicPartition],
        *,
        epochs: Mapping[TopicPartition, int | None] | None = None,
    ) -> dict[TopicPartition, ListedOffset] | None:
        """Return the largest timestamp of each partition, in one request.

        None: not supported (Kafka before 3.0, Jafka).
        """
        if not self._protocol().has_max_timestamps:
            return None
        listed = self._request(lambda protocol: protocol.max_timestamps(partitions, epochs or {}))
        if set(listed) != set(partitions):
            raise CorruptData(_OTHER_PARTITIONS, broker=self.address)
        return listed

    def offsets_before(
        self, topic: str, partition: int, time: int | str, max_offsets: int = 1
    ) -> tuple[int, ...]:
        """Return up to so many offsets, newest first, for `latest`, `earliest` or a time in ms.

        Kafka before 0.10.1 returns starts of segments written by that time; later ones the offset
        of the first record at or after it, if any. Jafka supports no times. Raises ValueError for
        any other negative time.
        """
        topic_partition = TopicPartition(topic, partition)
        time_ms = _time_of(time)
        reject_wrong_times({topic_partition: time_ms}, least=EARLIEST)
        if max_offsets <= 0:
            return ()
        found = self._request(
            lambda protocol: protocol.offsets_before(topic_partition, time_ms, max_offsets)
        )
        if isinstance(found, BrokerRefusal):
            raise found.error("list offsets", topic=topic, partition=partition, broker=self.address)
        return found

    def segment_before(self, partition: TopicPartition, time_ms: int) -> int:
        """Return the start of the newest segment written by that time, by the broker's clock.

        All records before it were written by that time. The log start if no segment is that old, or
        the broker does not support the request (Kafka from 4.0 on). Raises ValueError for a
        negative time.
        """
        reject_wrong_times({partition: time_ms})
        try:
            found = self._request(
                lambda protocol: protocol.segment_start_before(partition, time_ms)
            )
        except OtherRelease:
            raise
        except SettingsError:
            found = ()
        if found and not isinstance(found, BrokerRefusal):
            return found[0]
        return self.earliest_or_latest_offset(partition.topic, partition.partition, EARLIEST)

    def earliest_or_latest_offset(self, topic: str, partition: int, time: int | str) -> int:
        """Return the log start offset (`earliest`, -2) or the high watermark (`latest`, -1).

        Raises ValueError for another time.
        """
        if _time_of(time) not in (EARLIEST, LATEST):
            raise ValueError(f"{time} is neither earliest ({EARLIEST}) nor latest ({LATEST})")
        found = self.offsets_before(topic, partition, time)
        if not found:
            raise CorruptData(
                "The broker returned no offset for the start or end of a partition",
                topic=topic,
                partition=partition,
                broker=self.address,
            )
        return found[0]

    # Writing, for tests and demos

    def produce(
        self,
        topic: str,
        partition: int,
        records: bytes | Sequence[tuple[bytes | None, bytes | None]],
    ) -> int | None:
        """Append an encoded record batch, or keys and values; return the first offset.

        The broker must lead the partition. None: accepted, offset unknown (Jafka). Waits for all
        in-sync replicas. Never sent twice: after BrokerUnreachable it may have been appended.
        """
        topic_partition = TopicPartition(topic, partition)
        now_ms = int(time.time() * 1000)
        timeout_ms = int(self._timeout_s * 1000)
        appended = self._request(
            lambda protocol: protocol.append(
                topic_partition, records, timestamp_ms=now_ms, timeout_ms=timeout_ms
            ),
            may_repeat=False,
        )
        if isinstance(appended, BrokerRefusal):
            raise appended.error("append", topic=topic, partition=partition, broker=self.address)
        return appended
