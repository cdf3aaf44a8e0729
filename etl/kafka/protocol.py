"""What must each broker type provide?

A `Generation` performs the handshake with a broker and returns a `BrokerProtocol`; that one makes a
`Request` of each question of etl/kafka/messages.py. A request knows its bytes and how its response
is decoded. All types send the size as an int32 first.

A login (SASL) is described here independent of the broker type; the tokens are the mechanism's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol, TypeVar

from etl.errors import BrokerRefusal, OtherRelease, SettingsError
from etl.kafka.messages import (
    ClusterMetadata,
    CommittedOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    CoordinatorResponse,
    EpochEndsResponse,
    Fetch,
    FetchAnswer,
    Joined,
    JoinRequest,
    ListedOffset,
    MemberIdentity,
    MembersResponse,
    OffsetsCommit,
    OffsetsQuestion,
    SpokenMembership,
    Synced,
)
from etl.model.partitions import BrokerPartition, Isolation, OpenTransaction, Retention

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer]):
    """A response, and for how long the broker throttles us."""

    answer: Answer
    throttled_ms: int = 0


@dataclass(frozen=True, slots=True)
class Request(Generic[Answer]):
    """A question as bytes, and its parser."""

    frame: Callable[[int], bytes]
    """The bytes to send, size included, under the number that is given; a generation without
    numbers leaves it out.
    """
    read: Callable[[memoryview], Reply[Answer]]
    """Parses the bytes after the size. Raises CorruptData."""
    answers: int = 1
    """Number of responses, if the frame holds several requests, because the broker type cannot ask
    for several partitions in one; `read` then gets all of them, each with its size.
    """
    check_if_truncated: str = ""
    """What to check if the broker closes the connection, where that is how it rejects this request.
    """


class BrokerProtocol(Protocol):
    """The questions that one broker understands. Every generation answers the first five, the
    others only those that have them.

    A question that this broker has no version of raises SettingsError.
    """

    least_answer_bytes: int = 4
    """Smallest size of any response of this broker."""
    check_if_truncated: str = (
        "Check the broker's log. A listener that needs a login (SASL) also closes the connection"
    )
    """What to check if the broker closes the connection, unless the request says more."""

    def introduction(self) -> str:
        """Return what the broker is, for a person. Raises SettingsError for one whose records
        cannot be read.
        """

    def number_of(self, start: memoryview) -> int | None:
        """Which request is answered, from the first bytes of an answer; None where answers only
        come in order.
        """

    def metadata(self, topics: Collection[str] | None) -> Request[ClusterMetadata]:
        """Brokers, topics and leaders; None: of all topics."""

    def list_offsets(
        self,
        times: Mapping[BrokerPartition, int],
        isolation: Isolation,
        epochs: Mapping[BrokerPartition, int | None],
    ) -> Request[dict[BrokerPartition, ListedOffset]]:
        """LATEST, EARLIEST, or the first record at or after milliseconds since 1970, log by log."""

    def fetch(self, fetch: Fetch) -> Request[FetchAnswer]:
        """Records of several logs."""

    @property
    def generation(self) -> str | None:
        """Return the name in `Generation.names` by which the next connection can skip detection;
        None: each does the handshake.
        """
        return None

    def release_mismatch(
        self, reported: str, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> OtherRelease | None:
        """Return the error for a broker configured as a release (`Generation.releases`) that lacks
        what it speaks; else None. Under read_committed also if it has transactions and the release
        has none, since it would return uncommitted records.
        """
        return None

    def offsets_before(
        self, log: BrokerPartition, time_ms: int, most: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        """Offsets of one log for LATEST, EARLIEST or milliseconds since 1970, newest first, at most
        so many.

        Brokers that know no more of a time than when segments were written name where those begin
        that were written by then; the others name one offset, that of the first record at or after
        it.
        """
        request = self.list_offsets({log: time_ms}, Isolation.READ_UNCOMMITTED, {})

        def read(answer: memoryview) -> Reply[tuple[int, ...] | BrokerRefusal]:
            reply = request.read(answer)
            listed = reply.answer[log]
            named = listed.boundaries or (() if listed.offset is None else (listed.offset,))
            return Reply(listed.refusal or named[::-1][:most], reply.throttled_ms)

        return Request(request.frame, read, request.answers, request.check_if_truncated)

    @property
    def has_max_timestamps(self) -> bool:
        """True if the broker reports the largest timestamp of a partition (KIP-734)."""
        return False

    def max_timestamps(
        self,
        logs: Collection[BrokerPartition],
        epochs: Mapping[BrokerPartition, int | None],
    ) -> Request[dict[BrokerPartition, ListedOffset]]:
        """The largest timestamp in each log, and where a record with it is; without a timestamp
        where no record has one.
        """
        self._cannot("tell the largest timestamp of a log")

    def segment_start_before(
        self, log: BrokerPartition, time_ms: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        """Ask for the start of the newest segment written by that time, by the broker's clock; none
        without one.
        """
        self._cannot("tell when segments were written")

    @property
    def keeps_groups(self) -> bool:
        """True if the broker keeps consumer groups."""
        return False

    @property
    def membership(self) -> SpokenMembership:
        """How consumers can be members of those groups."""
        return SpokenMembership()

    @property
    def has_describe_configs(self) -> bool:
        """True if the broker can be asked for retention and cleanup."""
        return False

    @property
    def keeps_offsets(self) -> bool:
        """True if the broker keeps group offsets itself."""
        return False

    @property
    def has_leader_epochs(self) -> bool:
        """True if the broker has leader epochs (KIP-320)."""
        return False

    def epoch_ends(
        self, epochs: Mapping[BrokerPartition, int], current: Mapping[BrokerPartition, int | None]
    ) -> Request[EpochEndsResponse]:
        """Ask for the ends of epochs; `current`: known leader epochs."""
        self._cannot("tell where an epoch ends")

    def log_sizes(self, logs: Collection[BrokerPartition]) -> Request[dict[BrokerPartition, int]]:
        """Bytes of the segments that this broker holds."""
        self._cannot("tell the sizes of logs")

    def retention(self, topics: Collection[str]) -> Request[dict[str, Retention]]:
        """How long topics are kept, and how they are cleaned up."""
        self._cannot("tell how topics are cleaned up")

    def open_transactions(
        self, logs: Collection[BrokerPartition]
    ) -> Request[dict[BrokerPartition, OpenTransaction]]:
        """The open transaction that began first in each log."""
        self._cannot("tell of open transactions")

    def transactional_ids(self, producer_ids: Collection[int]) -> Request[list[str]]:
        """The transactional ids of these producers."""
        self._cannot("tell of transactional ids")

    def transactions(
        self, transactional_ids: Collection[str]
    ) -> Request[dict[int, tuple[str, int | None]]]:
        """Producer id -> transactional id and the start of its transaction."""
        self._cannot("tell of transactions")

    def coordinator(self, group: str) -> Request[CoordinatorResponse]:
        """Ask for the coordinator of a group."""
        self._cannot("tell who keeps a group's offsets")

    def members_of(self, group: str) -> Request[MembersResponse]:
        """Ask for the members of a classic group; a group of the consumer protocol (KIP-848) has
        none by this question.
        """
        self._cannot("tell who is in a group")

    @property
    def keeps_consumer_groups(self) -> bool:
        """True if there may be groups of the consumer protocol."""
        return False

    def consumer_group_members(self, group: str) -> Request[MembersResponse]:
        """Ask for the members of such a group; an error means that there is none of this name."""
        self._cannot("tell who is in a group of the consumer protocol")

    # Membership in a group, which its coordinator is asked for

    def join_group(self, wanted: JoinRequest) -> Request[Joined]:
        """To be in the next generation of a group; answered when all its members have joined, or
        were waited for long enough.
        """
        self._cannot("have members in a group")

    def sync_group(
        self,
        identity: MemberIdentity,
        strategy: str,
        assigned: Mapping[str, Iterable[BrokerPartition]],
    ) -> Request[Synced]:
        """Ask for our assignment; the leader sends all, by member id."""
        self._cannot("have members in a group")

    def heartbeat(self, identity: MemberIdentity) -> Request[BrokerRefusal | None]:
        """Report that the member lives; an error tells about the group."""
        self._cannot("have members in a group")

    def leave_group(self, identity: MemberIdentity) -> Request[BrokerRefusal | None]:
        """We are no member any more."""
        self._cannot("have members in a group")

    def consumer_heartbeat(self, beat: ConsumerHeartbeat) -> Request[ConsumerHeartbeatAnswer]:
        """Send a heartbeat of the consumer protocol (KIP-848)."""
        self._cannot("have members in a group of the consumer protocol")

    def commit_offsets(
        self, commit: OffsetsCommit, *, in_zookeeper: bool = False
    ) -> Request[dict[BrokerPartition, BrokerRefusal | None]]:
        """Store next offsets of a group: its coordinator keeps them, or any broker writes them to
        ZooKeeper for us, as old consumers do.
        """
        self._cannot("store a group's offsets")

    def committed_offsets(
        self, question: OffsetsQuestion, *, in_zookeeper: bool = False
    ) -> Request[CommittedOffsets]:
        """Next offsets of a group, as stored."""
        self._cannot("tell a group's offsets")

    def append(
        self,
        log: BrokerPartition,
        records: bytes | Sequence[tuple[bytes | None, bytes | None]],
        *,
        timestamp_ms: int,
        timeout_ms: int,
    ) -> Request[int | BrokerRefusal | None]:
        """Append encoded records, or keys and values; the response has the first offset, None if
        unknown.
        """
        self._cannot("take records from us")

    def create_topic(self, topic: str, partitions: int) -> Request[int | BrokerRefusal]:
        """Make a topic on this broker, or enlarge it: how many partitions it has then."""
        self._cannot("make topics for us")

    def delete_topic(self, topic: str, password: str) -> Request[int | BrokerRefusal]:
        """Delete a topic on this broker: how many partitions it had."""
        self._cannot("delete topics for us")

    def _cannot(self, operation: str) -> NoReturn:
        raise SettingsError(
            f"Brokers of this generation cannot {operation}",
            action="Check what the conf asks of them",
            broker=self.introduction(),
        )


@dataclass(frozen=True, slots=True)
class OlderBrokers:
    """Brokers of the same family from before the greeting, which leave it unanswered or hang up on
    it.

    A newer one may do either too, when it is overloaded or starts again. So both are proven, by a
    question that is as old as the family.
    """

    frame: bytes
    is_answer: Callable[[memoryview], bool]
    patience_s: float
    """How long to wait for the handshake's response before this is sent after it."""
    unanswering: Callable[[], BrokerProtocol]
    """A broker that answers this, sent after the handshake, will never answer the handshake, since
    responses come in order.
    """
    hanging_up: Sequence[tuple[bytes, Callable[[], BrokerProtocol]]]
    """For a broker that closes the connection on the handshake, answers this, and closes it again
    on the handshake: the protocol of the first question that it answers, newest first.
    """


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first request of a connection, and whom its answer shows."""

    name: str
    """Name in errors."""
    frame: bytes
    is_answer: Callable[[memoryview], bool]
    """True if the first four bytes after the size can be a response to this."""
    dialect: Callable[[memoryview], BrokerProtocol]
    """Return the broker's protocol. Raises CorruptData."""
    least_answer_bytes: int = 4
    """Smallest size of a response."""
    check_if_truncated: str = (
        "Check whether the port is a TLS listener, needs a login, or is not Kafka"
    )
    """What to check if the other side closes the connection."""
    older: OlderBrokers | None = None
    """None: what leaves the greeting unanswered is no broker of this family."""


class Generation(Protocol):
    """One family of brokers."""

    names: Collection[str]
    """Names in `Broker.generation`."""
    releases: Collection[str] = ()
    """Names that are releases, which define the protocol without asking the broker."""
    without_isolation: Collection[str] = ()
    """Releases whose brokers have no transactions, and so no isolation."""
    is_told: bool
    """True if this type cannot be detected, since it closes the connection on other handshakes as
    others do on its: it must be configured.
    """

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        """Return the handshake; client id and address are used in requests and errors. `name`: the
        configured name.
        """


@dataclass(frozen=True, slots=True)
class MechanismAnswer:
    """Whether a login by this mechanism may begin."""

    is_taken: bool
    offered: tuple[str, ...] = ()
    """Mechanisms of the listener."""
    wants_none: bool = False
    """True if the listener has no logins."""


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """The response to a token."""

    token: bytes = b""
    refusal: BrokerRefusal | None = None
    """Why the login failed; None: it continues, or is done."""
    is_wrong: bool = False
    """True if the credentials were rejected; other errors say nothing about them."""
    said: str = ""
    """The broker's own words of a refusal, which may quote what it was sent; empty: it has none."""
    lifetime_s: float | None = None
    """How long the login holds (KIP-368); None: without end."""


class LoginDialect(Protocol):
    """Requests of a login."""

    def mechanism(self, name: str) -> Request[MechanismAnswer]:
        """The login is to be by this one."""

    def token(self, token: bytes) -> Request[TokenAnswer]:
        """The mechanism's next bytes."""
