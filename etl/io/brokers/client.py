"""What can one broker be asked?

`SimpleConsumer` asks one question at a time, independent of the broker type: offsets and fetches,
metadata and groups, committed offsets. It does not retry after an error code: answers carry it, the
short forms raise it.

Committed offsets are in one of two places, as with Kafka's own consumers: the group coordinator,
which is looked up first; or ZooKeeper, written by any broker before 4.0 that has one.

    a commit                                                         raises
    --------------------------------------------------------------   -------------------------------
    from outside (no member), while the group has members            Owned: nothing stored
    by an unknown member or with an old generation or epoch, or      MembershipLost: nothing stored
    during a rebalance
    without an answer, or with an ambiguous one                      CommitUnknown: read it back
    rejected otherwise                                               the error of the first rejected
                                                                     partition

Not here: the connection and its deadlines (etl/io/brokers/exchange.py), bytes (etl/kafka), several
brokers (etl/io/brokers/cluster.py), reading a range (etl/reader).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import RLock
from types import TracebackType
from typing import Self

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
from etl.kafka.messages import (
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
    OffsetsQuestion,
    SpokenMembership,
    in_serving_order,
    reject_negative,
    reject_wrong_times,
)
from etl.kafka.protocol import BrokerProtocol, Request
from etl.model.partitions import Broker, BrokerPartition, Isolation, OpenTransaction, Retention
from etl.model.security import OPEN, Security
from etl.settings.choices import FETCH_MAX_BYTES, MIB, TIMEOUT_S

_NO_GROUP = (Meaning.NO_SUCH_GROUP, Meaning.SWITCHED_OFF)


class BrokerQuestions:
    """One connection to one broker, and the questions that no range of records needs."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "offset-range-etl",
        connect_timeout_s: float = 10.0,
        timeout_s: float = TIMEOUT_S,
        max_response_bytes: int = 320 * MIB,
        generation: str | None = None,
        idle_connections: IdleConnections | None = None,
        security: Security = OPEN,
    ) -> None:
        self.host = host
        self.port = port
        self.security = security
        """How the listener is entered."""
        self._timeout_s = timeout_s
        self._exchange = Exchange(
            host,
            port,
            client_id=client_id,
            connect_timeout_s=connect_timeout_s,
            timeout_s=timeout_s,
            max_response_bytes=max_response_bytes,
            generation=generation,
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
    def generation(self) -> str | None:
        """Broker type or release (`Broker.generation`): configured, or detected by the first call;
        None before.
        """
        return self._exchange.generation

    def close(self) -> None:
        """Hang up, or give the connection back; the next call would connect again. A fetch under
        way is forgotten.
        """
        self._fetching.forget()
        self._exchange.close()

    def interrupt(self) -> None:
        """From another thread: a call that waits for a response raises BrokerUnreachable at once. A
        connect is not interrupted.
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
        """Context manager: calls inside end by that `time.monotonic` value, whatever their own
        timeout.
        """
        self._exchange.ends_by = moment
        try:
            yield
        finally:
            self._exchange.ends_by = None

    # The cluster, as this broker knows it

    def introduction(self) -> str:
        """Return what the handshake tells about the broker, for a person; brokers report no
        version.
        """
        return self._dialect().introduction()

    def reject_other_release(self, isolation: Isolation) -> None:
        """Ask the broker once for its versions, if `generation` is a release such as
        `kafka-0.10.2`.

        Raises OtherRelease if it lacks what that release speaks, or has transactions that the
        release lacks while the isolation requires them. A broker that does not answer within five
        seconds is taken as configured.
        """
        with self._alone():
            self._exchange.reject_other_release(isolation)

    def topic_metadata(self, topics: Collection[str] | None = None) -> ClusterMetadata:
        """Brokers, topics and leaders; None: of all topics. Never creates a topic."""
        return self._ask(lambda dialect: dialect.metadata(topics))

    def log_sizes(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, int]:
        """Bytes of the segments that this broker holds of each log (KIP-113); a log it does not
        hold is left out.

        Also left out is everything when we may not ask (it takes Describe on the cluster).
        """
        return self._ask(lambda dialect: dialect.log_sizes(logs))

    def retention(self, topics: Collection[str]) -> dict[str, Retention]:
        """How long the brokers keep each topic, and how they clean it up (KIP-133); one that we may
        not describe is left out.

        Raises SettingsError for a broker before 1.0.
        """
        return self._ask(lambda dialect: dialect.retention(topics))

    def has_describe_configs(self) -> bool:
        """True if the broker can be asked for `retention` (from 0.11 on)."""
        return self._dialect().has_describe_configs

    def keeps_offsets(self) -> bool:
        """True if the broker keeps group offsets itself (from 0.8.2 on)."""
        return self._dialect().keeps_offsets

    def membership(self) -> SpokenMembership:
        """Return which membership protocols the broker supports."""
        return self._dialect().membership

    def open_transactions(
        self, logs: Collection[BrokerPartition]
    ) -> dict[BrokerPartition, OpenTransaction]:
        """The open transaction that began first in each log that this broker leads (KIP-664).
        Raises SettingsError before 2.8.
        """
        return self._ask(lambda dialect: dialect.open_transactions(logs))

    def transactions_of(self, producer_ids: Collection[int]) -> dict[int, tuple[str, int | None]]:
        """Producer id -> transactional id and the start of its transaction, of those that this
        broker coordinates and we may see.

        Raises SettingsError before 3.0.
        """
        known = self._ask(lambda dialect: dialect.transactional_ids(producer_ids))
        return self._ask(lambda dialect: dialect.transactions(known)) if known else {}

    def epoch_ends(
        self, epochs: Mapping[BrokerPartition, int], current: Mapping[BrokerPartition, int | None]
    ) -> EpochEndsResponse:
        """Return the end of each leader epoch (KIP-320), in one request; nothing for a broker
        before 2.1.
        """
        if not self._dialect().has_leader_epochs:
            return {}
        return self._ask(lambda dialect: dialect.epoch_ends(epochs, current))

    def members_of(self, group: str) -> MembersResponse:
        """Return the members of Kafka's group with their partitions, in either protocol; only its
        coordinator knows. None of them before 0.9.
        """
        if not self._dialect().keeps_groups:
            return MembersResponse(None, {})
        found = self._ask(lambda dialect: dialect.members_of(group))
        if (
            found.members
            or not self._dialect().keeps_consumer_groups
            or (found.refusal and found.refusal.meaning not in _NO_GROUP)
        ):
            return found
        newer = self._ask(
            lambda dialect: dialect.consumer_group_members(group)
        )  # a group of that protocol is none to the other question
        if newer.refusal and newer.refusal.meaning in _NO_GROUP:
            return MembersResponse(None, {})
        return newer

    def create_topic(self, topic: str, partitions: int) -> int:
        """Make a topic on this broker, or enlarge it: how many partitions it has there. Raises
        SettingsError but for a Jafka.
        """
        made = self._ask(lambda dialect: dialect.create_topic(topic, partitions), may_repeat=False)
        if isinstance(made, BrokerRefusal):
            raise made.error("make the topic", topic=topic, broker=self.address)
        return made

    def delete_topic(self, topic: str, password: str = "") -> int:
        """Delete a topic on this broker: how many partitions it had there. Raises SettingsError but
        for a Jafka.
        """
        gone = self._ask(lambda dialect: dialect.delete_topic(topic, password), may_repeat=False)
        if isinstance(gone, BrokerRefusal):
            raise gone.error("delete the topic", topic=topic, broker=self.address)
        return gone

    def send(self, request: Request[Answer] | Ask[Answer], *, may_repeat: bool = True) -> Answer:
        """Return the response to any request of the broker's type: a request, or a function of its
        protocol. Repeated once if the connection broke before any byte of the response, unless it
        must not happen twice.
        """
        return self._ask(
            (lambda dialect: request) if isinstance(request, Request) else request,
            may_repeat=may_repeat,
        )

    def _ask(self, ask: Ask[Answer], *, may_repeat: bool = True) -> Answer:
        with self._alone():
            return self._exchange.ask(ask, may_repeat=may_repeat)

    def _dialect(self) -> BrokerProtocol:
        with self._alone():
            return self._exchange.dialect()

    @contextmanager
    def _alone(self, *, is_fetching: bool = False) -> Iterator[None]:
        """Guard: no other response may come in between. Raises ConsumerInUse for another thread,
        ValueError for a fetch in flight.
        """
        if not self._one_at_a_time.acquire(blocking=False):
            raise ConsumerInUse(
                "Another thread waits for an answer on this connection",
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
_COMING = (Meaning.NOT_COORDINATOR, Meaning.NO_COORDINATOR_YET, Meaning.UNSTABLE)
_FENCED = (
    Meaning.OLD_GENERATION,
    Meaning.UNKNOWN_MEMBER,
    Meaning.FENCED,
    Meaning.FENCED_EPOCH,
    Meaning.STALE_EPOCH,
    Meaning.REBALANCING,
)
_OPEN = "nobody knows whether the offsets are stored"
_READ_IT_BACK = "Check what the group has stored: the commit may have happened"


class GroupOffsets(BrokerQuestions):
    """Committed offsets of groups. Raises SettingsError if the broker type has none. `member_id`
    and `generation` (KIP-848: the member epoch) make it a member's request; without them it comes
    from outside.
    """

    def find_coordinator(self, group: str) -> Broker:
        """The broker to ask for the offsets of `group`. Raises BrokerError where there is none yet
        when `timeout_s` has passed.

        The first question of this kind makes the topic `__consumer_offsets` where there never was a
        group.
        """
        return self._coordinator(group, time.monotonic() + self._timeout_s)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[BrokerPartition, int],
        *,
        metadata: str = "",
        generation: int | None = None,
        member_id: str = "",
        instance_id: str | None = None,
        leader_epochs: Mapping[BrokerPartition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
    ) -> None:
        """Commit next offsets with metadata: at the group coordinator, or by this broker in
        ZooKeeper (OffsetCommit 0). A coordinator that moved or is loading is looked up and asked
        again until `timeout_s`. Raises as the module's table.
        """
        refusals = self.commit_each(
            group,
            offsets,
            metadata=metadata,
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
            leader_epochs=leader_epochs,
            topic_ids=topic_ids,
            in_zookeeper=in_zookeeper,
        )
        refused = {log: refusal for log, refusal in sorted(refusals.items()) if refusal}
        for log, refusal in refused.items():
            if len(refused) > 1:
                others = f" (and {len(refused) - 1:,} of {len(offsets):,} more were refused)"
            else:
                others = ""
            raise refusal.error(
                f"commit an offset of group {group}{others}",
                **log.place,
                offset=offsets[log],
                broker=self.address,
            )

    def commit_each(
        self,
        group: str,
        offsets: Mapping[BrokerPartition, int],
        *,
        metadata: str = "",
        generation: int | None = None,
        member_id: str = "",
        instance_id: str | None = None,
        leader_epochs: Mapping[BrokerPartition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
        is_sent_once: bool = False,
    ) -> dict[BrokerPartition, BrokerRefusal | None]:
        """As `commit_offsets`, but return the error of each partition, None for committed ones.

        Raises ValueError for a negative offset, generation or leader epoch: stored, -1 is read as
        no offset, and as a generation it is a commit from outside. `is_sent_once`: a broken
        connection is CommitUnknown for a member, too, whose commit would be repeated otherwise; so
        is an error of a new coordinator, which may have loaded the first commit.
        """
        reject_negative(generation=generation)
        for log, offset in offsets.items():
            if offset < 0:
                reject_negative(**{f"the offset of {log.topic}-{log.key}": offset})
        for epoch in (leader_epochs or {}).values():
            reject_negative(leader_epoch=epoch)
        member = None if generation is None else GroupMember(member_id, generation, instance_id)
        wanted = OffsetsCommit(
            group, offsets, metadata, member, leader_epochs or {}, topic_ids or {}
        )
        answers = list[dict[BrokerPartition, BrokerRefusal | None]]()

        def commit(broker: GroupOffsets) -> dict[BrokerPartition, BrokerRefusal | None]:
            # Only a member's commit may be sent twice: behind another one, somebody else's offset
            # may lie between the two.
            try:
                may_repeat = member is not None and not is_sent_once
                refusals = broker._ask(
                    lambda dialect: dialect.commit_offsets(wanted, in_zookeeper=in_zookeeper),
                    may_repeat=may_repeat,
                )
            except BrokerUnreachable as error:
                raise _unknown(group, error) from error
            answers.append(refusals)
            return refusals

        try:
            if in_zookeeper:
                refusals = commit(self)
            else:
                refusals = self._of_coordinator(
                    group, commit, lambda refusals: set(refusals.values())
                )
            self._reject_unsettled(wanted, refusals)
        except (MembershipLost, BrokerUnreachable) as error:
            earlier = answers if isinstance(error, BrokerUnreachable) else answers[:-1]
            if is_sent_once and earlier:
                raise _unknown(group, error) from error
            raise
        return refusals

    def fetch_offsets(
        self,
        group: str,
        logs: Collection[BrokerPartition],
        *,
        generation: int | None = None,
        member_id: str = "",
        require_stable: bool = False,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
    ) -> dict[BrokerPartition, CommittedOffset]:
        """Return next offsets and their metadata, from the group coordinator or by this broker from
        ZooKeeper.

        `require_stable`: wait for offsets of an open transaction (from 2.5 on). A coordinator that
        moved or is loading is asked again; both until `timeout_s`. Raises the first partition's
        error, and MembershipLost; ValueError for a negative generation.
        """
        reject_negative(generation=generation)
        member = None if generation is None else GroupMember(member_id, generation)
        question = OffsetsQuestion(group, tuple(logs), member, require_stable, topic_ids or {})

        def ask(broker: GroupOffsets) -> CommittedOffsets:
            return broker._ask(
                lambda dialect: dialect.committed_offsets(question, in_zookeeper=in_zookeeper)
            )

        def refusals(answer: CommittedOffsets) -> set[BrokerRefusal | None]:
            return {answer.refusal, *(each.refusal for each in answer.offsets.values())}

        found = ask(self) if in_zookeeper else self._of_coordinator(group, ask, refusals)
        if found.refusal:
            if member and found.refusal.meaning in _FENCED:
                raise self._lost(group, found.refusal)
            raise found.refusal.error(f"tell the offsets of group {group}", broker=self.address)
        for log, answer in sorted(found.offsets.items()):
            if answer.refusal:
                raise answer.refusal.error(
                    f"tell an offset of group {group}", **log.place, broker=self.address
                )
        return dict(found.offsets)

    def _reject_unsettled(
        self, wanted: OffsetsCommit, refusals: Mapping[BrokerPartition, BrokerRefusal | None]
    ) -> None:
        """Raise an error of the whole commit, which the coordinator reports for each partition; see
        the module's table.
        """
        meant = {refusal.meaning: refusal for refusal in refusals.values() if refusal}
        fenced = next((meant[meaning] for meaning in _FENCED if meaning in meant), None)
        if fenced and wanted.member:
            raise self._lost(wanted.group, fenced)
        if fenced:
            message = f"Group {wanted.group} has live members in Kafka, and they alone commit its offsets: {fenced.name} (code {fenced.code})"
            raise Owned(
                message,
                action="Check which consumers of this group run: kafka-consumer-groups.sh --describe --members",
                broker=self.address,
            )
        for refusal in meant.values():
            if refusal.is_retriable and refusal.kind is BrokerError:
                message = f"{_OPEN} of group {wanted.group}: {refusal.name} (code {refusal.code})"
                raise CommitUnknown(
                    message, action=f"{refusal.action}. {_READ_IT_BACK}", broker=self.address
                )

    def _lost(self, group: str, refusal: BrokerRefusal) -> MembershipLost:
        message = f"The coordinator of group {group} does not take us for its member any more: {refusal.name} (code {refusal.code})"
        return MembershipLost(message, action=refusal.action, broker=self.address)

    def _of_coordinator(
        self,
        group: str,
        ask: Callable[[GroupOffsets], Answer],
        refusals: Callable[[Answer], Collection[BrokerRefusal | None]],
    ) -> Answer:
        """Ask the group's coordinator, looked up again while it is none, not ready, or silent:
        brokers name a dead one for a while.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            coordinator = self._coordinator(group, deadline)
            try:
                answer = self._asked_at(coordinator, ask)
                is_coming = any(
                    refusal and refusal.meaning in _COMING for refusal in refusals(answer)
                )
                if not is_coming or time.monotonic() + _PAUSE_S > deadline:
                    return answer
            except BrokerUnreachable:
                if self._is(coordinator) or time.monotonic() + _PAUSE_S > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _coordinator(self, group: str, deadline: float) -> Broker:
        """Return the coordinator, asked for again while there is none, until the deadline
        (`time.monotonic`).
        """
        while True:
            found = self._ask(lambda dialect: dialect.coordinator(group))
            if found.refusal is None:
                return found.broker
            if found.refusal.meaning not in _COMING or time.monotonic() + _PAUSE_S > deadline:
                raise found.refusal.error(
                    f"name the coordinator of group {group}", broker=self.address
                )
            time.sleep(_PAUSE_S)

    def _asked_at(self, broker: Broker, ask: Callable[[GroupOffsets], Answer]) -> Answer:
        if self._is(broker):
            return ask(self)
        with closing(
            GroupOffsets(
                broker.host,
                broker.port,
                timeout_s=self._timeout_s,
                generation=self.generation,
                security=self.security,
            )
        ) as coordinator:
            return ask(coordinator)

    def _is(self, broker: Broker) -> bool:
        return (broker.host, broker.port) == (self.host, self.port)


def _unknown(group: str, error: EtlError) -> CommitUnknown:
    return CommitUnknown(
        f"{_OPEN} of group {group}: {error.message}", action=_READ_IT_BACK, **error.where
    )


class SimpleConsumer(GroupOffsets):
    """Asks one broker.

        host, port           where the broker listens
        connect_timeout_s    timeout of a connect
        timeout_s            timeout of a call with connect and handshake; a fetch may take
                             `max_wait_ms` longer, and so may a call after a throttled response
        max_response_bytes   larger responses are rejected before memory is reserved
        generation           broker type or release (`Broker.generation`); None: detected
        idle_connections     where connections come from and go to with `close`; None: its own
        security             encryption and login (`etl.settings.load.security_of` makes it)

    Connects with the first call. A connection that broke before any byte of a response is replaced
    once per call (brokers close idle connections), except for `produce`, which may have happened.

    Error codes are carried by answers (`multifetch`, `list_offsets`, `topic_metadata`) or raised;
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
        isolation: Isolation = Isolation.READ_COMMITTED,
        max_wait_ms: int = 500,
    ) -> FetchedPartition:
        """Records of one log from `offset` on; raises what the broker's error code means.

        `records` is valid until the second next fetch answer of this consumer is received.
        """
        wanted, deadline = (
            [FetchTarget(BrokerPartition(topic, partition), offset, max_bytes)],
            self._exchange.deadline(),
        )
        while not (
            answer := self.multifetch(
                wanted, isolation=isolation, max_bytes=max_bytes, max_wait_ms=max_wait_ms
            )
        ).partitions:
            if time.monotonic() > deadline:
                raise BrokerUnreachable(
                    "The broker throttles us and gives nothing",
                    broker=self.address,
                    action="Check the quota of our client",
                )
        fetched = answer.partitions[0]
        if fetched.refusal:
            raise fetched.refusal.error(
                "fetch", topic=topic, partition=partition, offset=offset, broker=self.address
            )
        return fetched

    def multifetch(
        self,
        wanted: Sequence[FetchTarget],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        max_bytes: int = FETCH_MAX_BYTES,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
    ) -> FetchAnswer:
        """Fetch several partitions in one request; each partition of the answer carries its error
        code. A throttled response may contain no partition (KIP-219): ask again.
        """
        with self._alone():
            self.begin_fetch(
                wanted,
                isolation=isolation,
                max_bytes=max_bytes,
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
            )
            return self.end_fetch()

    def begin_fetch(
        self,
        wanted: Sequence[FetchTarget],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        max_bytes: int = FETCH_MAX_BYTES,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
    ) -> None:
        """Send a fetch and do not wait: the broker reads while the answer before is decoded.
        `end_fetch` must follow.

        max_bytes bounds the whole answer, each `FetchTarget.max_bytes` its part. The first log with
        records gets its first record batch whole even if that is larger (KIP-74). Raises ValueError
        for a negative number, and when a log is named twice or another fetch is under way.
        """
        reject_negative(max_bytes=max_bytes, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
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
        with self._alone():
            self._fetching.begin(
                Fetch(in_serving_order(wanted), isolation, max_bytes, max_wait_ms, min_bytes)
            )

    def end_fetch(self) -> FetchAnswer:
        """The answer to the fetch under way, its partitions in the order they were served.

        Two buffers take turns: the records of this answer are valid until the second next answer is
        received. Raises ValueError when no fetch is under way.
        """
        with self._alone(is_fetching=True):
            return self._fetching.end()

    def is_answered(self, wait_s: float = 0.0) -> bool:
        """True if the response to the fetch in flight has begun, or the connection ended, within
        `wait_s`. Raises ValueError without a fetch in flight.
        """
        with self._alone(is_fetching=True):
            return self._fetching.is_answered(wait_s)

    # Offsets

    def list_offsets(
        self,
        times: Mapping[BrokerPartition, int],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        epochs: Mapping[BrokerPartition, int | None] | None = None,
    ) -> dict[BrokerPartition, ListedOffset]:
        """One request for many logs: LATEST, EARLIEST, or the first record at or after milliseconds
        since 1970.

        Under read_committed LATEST is the last stable offset (KIP-98). Each answer carries its own
        error code. Raises ValueError for any other negative time.
        """
        reject_wrong_times(times, least=EARLIEST)
        listed = self._ask(lambda dialect: dialect.list_offsets(times, isolation, epochs or {}))
        if set(listed) != set(times):
            raise CorruptData(
                "The answer to ListOffsets names other partitions than were asked for",
                broker=self.address,
            )
        return listed

    def max_timestamps(
        self,
        logs: Collection[BrokerPartition],
        *,
        epochs: Mapping[BrokerPartition, int | None] | None = None,
    ) -> dict[BrokerPartition, ListedOffset] | None:
        """Return the largest timestamp of each partition, in one request; None: not supported
        (Kafka before 3.0, Jafka).
        """
        if not self._dialect().has_max_timestamps:
            return None
        listed = self._ask(lambda dialect: dialect.max_timestamps(logs, epochs or {}))
        if set(listed) != set(logs):
            raise CorruptData(
                "The answer to ListOffsets names other partitions than were asked for",
                broker=self.address,
            )
        return listed

    def offsets_before(
        self, topic: str, partition: int, time: int, max_offsets: int = 1
    ) -> tuple[int, ...]:
        """Return at most `max_offsets` offsets for `LATEST`, `EARLIEST` or ms since 1970, newest
        first.

        Kafka before 0.10.1 returns starts of segments written by that time; later ones the offset
        of the first record at or after it, if any. Jafka supports no times. Raises ValueError for
        any other negative time.
        """
        log = BrokerPartition(topic, partition)
        reject_wrong_times({log: time}, least=EARLIEST)
        if max_offsets > 0:
            found = self._ask(lambda dialect: dialect.offsets_before(log, time, max_offsets))
        else:
            found = ()
        if isinstance(found, BrokerRefusal):
            raise found.error("list offsets", topic=topic, partition=partition, broker=self.address)
        return found

    def segment_before(self, log: BrokerPartition, time_ms: int) -> int:
        """Return the start of the newest segment written by that time, by the broker's clock: no
        earlier record is later. The log start if no segment is that old, or the broker does not
        tell (Kafka from 4.0 on). Raises ValueError for a negative time.
        """
        reject_wrong_times({log: time_ms})
        try:
            found = self._ask(lambda dialect: dialect.segment_start_before(log, time_ms))
        except OtherRelease:
            raise
        except SettingsError:
            found = ()
        if found and not isinstance(found, BrokerRefusal):
            return found[0]
        return self.earliest_or_latest_offset(log.topic, log.partition, EARLIEST)

    def earliest_or_latest_offset(self, topic: str, partition: int, time: int) -> int:
        """The log start offset (`EARLIEST`) or the high watermark (`LATEST`). ValueError for
        another time.
        """
        if time not in (EARLIEST, LATEST):
            raise ValueError(f"{time} is neither EARLIEST ({EARLIEST}) nor LATEST ({LATEST})")
        found = self.offsets_before(topic, partition, time)
        if not found:
            raise CorruptData(
                "The broker names no offset for a log's end",
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
        """Append an encoded record batch, or keys and values, to a partition that this broker
        leads; return its first offset. None: accepted, offset unknown (Jafka).

        Waits for all in-sync replicas. Never sent twice: after BrokerUnreachable it may have been
        appended.
        """
        log = BrokerPartition(topic, partition)
        now_ms, timeout_ms = int(time.time() * 1000), int(self._timeout_s * 1000)
        appended = self._ask(
            lambda dialect: dialect.append(
                log, records, timestamp_ms=now_ms, timeout_ms=timeout_ms
            ),
            may_repeat=False,
        )
        if isinstance(appended, BrokerRefusal):
            raise appended.error("append", topic=topic, partition=partition, broker=self.address)
        return appended
