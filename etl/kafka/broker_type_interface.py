"""What must each broker type provide?

A `BrokerType` is a broker type. It performs the handshake with a broker and returns a
`BrokerProtocol`, which creates a `Request` for each question of etl/kafka/request_values.py. A
request holds its bytes and the parser of its response. All types send the size as an int32 first.

Lives here: requests, broker protocols, handshakes and logins (SASL), for all broker types.
Not here: the broker types (kafka_broker_type.py, jafka_broker_type.py), tokens of login mechanisms
(etl/io/brokers).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol, TypeVar

from etl.errors import BrokerRefusal, EtlError, OtherRelease, SettingsError
from etl.kafka.request_values import (
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
    OffsetsQuery,
    SupportedMembership,
    Synced,
)
from etl.model.partitions import Isolation, OpenTransaction, Retention, TopicPartition

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer]):
    """A response, and how long the broker throttles this client."""

    answer: Answer
    throttled_ms: int = 0


@dataclass(frozen=True, slots=True)
class Request(Generic[Answer]):
    """An encoded request, and the parser of its response."""

    frame: Callable[[int], bytes]
    """Returns the bytes to send, size included. The argument is the correlation id; broker types
    without correlation ids ignore it.
    """
    read: Callable[[memoryview], Reply[Answer]]
    """Parses the bytes after the size. Raises CorruptData."""
    answers: int = 1
    """Number of responses. More than one if the frame holds several requests, because a request of
    this broker type is about one partition; `read` then gets all of them, each with its size.
    """
    check_if_truncated: str = ""
    """What to check if the broker closes the connection, where that is how it rejects this request.
    """
    read_arrived: Callable[[memoryview, EtlError], Reply[Answer]] | None = None
    """Parses the beginning of a response that ended with this error; None: it is useless."""


class GroupRequests:
    """The requests about consumer groups: their members, and their committed offsets.

    Requests of members go to the coordinator of their group. All raise SettingsError if the broker
    type, or the version of this broker, lacks them.
    """

    def __init__(self, introduction: Callable[[], str]) -> None:
        self._introduction = introduction

    @property
    def keeps_groups(self) -> bool:
        """True if the broker coordinates consumer groups."""
        return False

    @property
    def membership(self) -> SupportedMembership:
        """The membership protocols of those groups."""
        return SupportedMembership()

    @property
    def keeps_offsets(self) -> bool:
        """True if the broker stores committed offsets itself."""
        return False

    def coordinator(self, group: str) -> Request[CoordinatorResponse]:
        """Request the coordinator of a group."""
        self._cannot("report the coordinator of a group")

    def members_of(self, group: str) -> Request[MembersResponse]:
        """Request the members of a classic group.

        For a group of the consumer protocol (KIP-848) the response is empty.
        """
        self._cannot("report the members of a group")

    @property
    def keeps_consumer_groups(self) -> bool:
        """True if the broker can have groups of the consumer protocol."""
        return False

    def consumer_group_members(self, group: str) -> Request[MembersResponse]:
        """Request the members of such a group; an error means that no group has this name."""
        self._cannot("report the members of a group of the consumer protocol")

    def join_group(self, wanted: JoinRequest) -> Request[Joined]:
        """Join the next generation of a group.

        The response comes when all members have joined, or their rebalance timeout is over.
        """
        self._cannot("have group members")

    def sync_group(
        self,
        identity: MemberIdentity,
        strategy: str,
        assigned: Mapping[str, Iterable[TopicPartition]],
    ) -> Request[Synced]:
        """Request the assignment of this member; the leader sends all, by member id."""
        self._cannot("have group members")

    def heartbeat(self, identity: MemberIdentity) -> Request[BrokerRefusal | None]:
        """Send a heartbeat; an error in the response is about the state of the group."""
        self._cannot("have group members")

    def leave_group(self, identity: MemberIdentity) -> Request[BrokerRefusal | None]:
        """Leave the group."""
        self._cannot("have group members")

    def consumer_heartbeat(self, beat: ConsumerHeartbeat) -> Request[ConsumerHeartbeatAnswer]:
        """Send a heartbeat of the consumer protocol (KIP-848)."""
        self._cannot("have group members of the consumer protocol")

    def commit_offsets(
        self, commit: OffsetsCommit, *, in_zookeeper: bool = False
    ) -> Request[dict[TopicPartition, BrokerRefusal | None]]:
        """Commit the next offsets of a group.

        Its coordinator stores them, or with `in_zookeeper` any broker writes them to ZooKeeper, as
        for old consumers.
        """
        self._cannot("store committed offsets")

    def committed_offsets(
        self, question: OffsetsQuery, *, in_zookeeper: bool = False
    ) -> Request[CommittedOffsets]:
        """Request the committed offsets of a group."""
        self._cannot("report committed offsets")

    def _cannot(self, operation: str) -> NoReturn:
        raise unsupported(operation, self._introduction())


def unsupported(operation: str, introduction: str) -> SettingsError:
    """Return the error for a request that a broker's type or version lacks."""
    return SettingsError(
        f"Brokers of this type cannot {operation}",
        action="Check source.broker_type and source.broker_version, and which settings need this",
        broker=introduction,
    )


class BrokerProtocol(Protocol):
    """The requests of one broker.

    Every broker type has `introduction`, `number_of`, `metadata`, `list_offsets`,
    `offsets_before` and `fetch`. The others raise SettingsError if the broker type, or the version
    of this broker, lacks them.
    """

    least_answer_bytes: int = 4
    """Smallest size of any response of this broker."""
    check_if_truncated: str = (
        "Check the broker's log. A listener that needs a login (SASL) also closes the connection"
    )
    """What to check if the broker closes the connection, unless the request says more."""

    def introduction(self) -> str:
        """Return a description of the broker for users.

        Raises SettingsError for a broker from which no records can be read.
        """

    @property
    def groups(self) -> GroupRequests:
        """The requests about consumer groups."""
        return GroupRequests(self.introduction)

    def number_of(self, start: memoryview) -> int | None:
        """Return the correlation id of a response from its first bytes.

        None: this broker type has none, and responses come in the order of the requests.
        """

    def metadata(self, topics: Collection[str] | None) -> Request[ClusterMetadata]:
        """Request brokers, topics and leaders; None: of all topics."""

    def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        isolation: Isolation,
        epochs: Mapping[TopicPartition, int | None],
    ) -> Request[dict[TopicPartition, ListedOffset]]:
        """Request an offset of each partition.

        `times` holds LATEST, EARLIEST, or milliseconds since 1970 for the first record at or after
        that time.
        """

    def fetch(self, fetch: Fetch) -> Request[FetchAnswer]:
        """Request records of several partitions."""

    @property
    def broker_type(self) -> str | None:
        """Return the name in `BrokerType.names` with which the next connection skips detection.

        None: each connection does the handshake.
        """
        return None

    def release_mismatch(
        self, reported: str, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> OtherRelease | None:
        """Return the error if the broker does not support the requests of the configured release.

        `reported` is the configured name (`Generation.releases`). Under read_committed it is also
        an error if the broker has transactions and the release has none, because the requests of
        that release return uncommitted records. None: the release fits.
        """
        return None

    def offsets_before(
        self, partition: TopicPartition, time_ms: int, most: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        """Request up to `most` offsets of one partition, newest first.

        `time_ms` is LATEST, EARLIEST or milliseconds since 1970. Brokers that only know when
        segments were written return the starts of the segments written up to that time. Others
        return one offset: of the first record at or after it.
        """

    @property
    def has_max_timestamps(self) -> bool:
        """True if the broker reports the largest timestamp of a partition (KIP-734)."""
        return False

    def max_timestamps(
        self,
        partitions: Collection[TopicPartition],
        epochs: Mapping[TopicPartition, int | None],
    ) -> Request[dict[TopicPartition, ListedOffset]]:
        """Request the largest timestamp of each partition, and the offset of a record with it.

        The timestamp is None if no record has one.
        """
        self._cannot("report the largest timestamp of a partition")

    def segment_start_before(
        self, partition: TopicPartition, time_ms: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        """Request the start of the newest segment written up to that time, by the broker's clock.

        Empty if there is no such segment.
        """
        self._cannot("report when segments were written")

    @property
    def has_describe_configs(self) -> bool:
        """True if the broker reports retention and cleanup policy of topics."""
        return False

    @property
    def has_leader_epochs(self) -> bool:
        """True if the broker has leader epochs (KIP-320)."""
        return False

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], current: Mapping[TopicPartition, int | None]
    ) -> Request[EpochEndsResponse]:
        """Request the ends of leader epochs; `current`: known leader epochs."""
        self._cannot("report the end of a leader epoch")

    def log_sizes(
        self, partitions: Collection[TopicPartition]
    ) -> Request[dict[TopicPartition, int]]:
        """Request the bytes of the segments that this broker holds."""
        self._cannot("report the sizes of partitions")

    def retention(self, topics: Collection[str]) -> Request[dict[str, Retention]]:
        """Request retention and cleanup policy of topics."""
        self._cannot("report the retention of topics")

    def open_transactions(
        self, partitions: Collection[TopicPartition]
    ) -> Request[dict[TopicPartition, OpenTransaction]]:
        """Request the earliest open transaction of each partition."""
        self._cannot("report open transactions")

    def transactional_ids(self, producer_ids: Collection[int]) -> Request[list[str]]:
        """Request the transactional ids of these producers."""
        self._cannot("report transactional ids")

    def transactions(
        self, transactional_ids: Collection[str]
    ) -> Request[dict[int, tuple[str, int | None]]]:
        """Request producer id -> transactional id and the start of its transaction."""
        self._cannot("report transactions")

    def append(
        self,
        partition: TopicPartition,
        records: bytes | Sequence[tuple[bytes | None, bytes | None]],
        *,
        timestamp_ms: int,
        timeout_ms: int,
    ) -> Request[int | BrokerRefusal | None]:
        """Append encoded records, or keys and values.

        The response is the first offset, None if unknown.
        """
        self._cannot("append records")

    def create_topic(self, topic: str, partitions: int) -> Request[int | BrokerRefusal]:
        """Create a topic on this broker, or add partitions; the response is their number."""
        self._cannot("create topics")

    def delete_topic(self, topic: str, password: str) -> Request[int | BrokerRefusal]:
        """Delete a topic on this broker; the response is the number of its partitions."""
        self._cannot("delete topics")

    def _cannot(self, operation: str) -> NoReturn:
        raise unsupported(operation, self.introduction())


@dataclass(frozen=True, slots=True)
class OlderBrokers:
    """Older brokers of the same type, which do not answer its handshake, or close the connection.

    A newer broker may do the same while it is overloaded or restarts. So each case is confirmed by
    a request that all brokers of the type support.
    """

    frame: bytes
    is_answer: Callable[[memoryview], bool]
    patience_s: float
    """How long to wait for the response to the handshake before `frame` is sent."""
    unanswering: Callable[[], BrokerProtocol]
    """The protocol of a broker that answers `frame` and not the handshake sent before it.

    Responses come in the order of the requests, so such a broker never answers the handshake.
    """
    hanging_up: Sequence[tuple[bytes, Callable[[], BrokerProtocol]]]
    """(request, protocol of a broker that answers it), the newest first.

    For a broker that closes the connection on the handshake, answers `frame` on a new connection,
    and closes it on a second handshake.
    """


@dataclass(frozen=True, slots=True)
class Greeting:
    """The handshake: the first request of a connection, and how its response is recognized."""

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
    """None: all brokers of this type answer the handshake."""


class BrokerType(Protocol):
    """A broker type: its names, and its handshake."""

    names: Collection[str]
    """Names of this type (`Broker.broker_type`)."""
    releases: Collection[str] = ()
    """Names that are releases: the protocol is known without a request to the broker."""
    without_isolation: Collection[str] = ()
    """Releases without transactions, and so without isolation levels."""
    is_told: bool
    """True if this type must be configured.

    It cannot be detected: its brokers close the connection on the handshakes of other types, and
    other brokers close it on the handshake of this one.
    """

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        """Return the handshake. `client_id` and `address` are used in requests and errors.

        `name` is the configured name of the type or release, if any.
        """


@dataclass(frozen=True, slots=True)
class MechanismAnswer:
    """The response to SaslHandshake: True in `is_taken` if the login may begin."""

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
    """True if the credentials were rejected; other errors do not concern them."""
    said: str = ""
    """Error message of the broker. It may quote the token. Empty: none."""
    lifetime_s: float | None = None
    """Seconds until the login expires (KIP-368); None: never."""


class LoginProtocol(Protocol):
    """Requests of a login."""

    def mechanism(self, name: str) -> Request[MechanismAnswer]:
        """Request a login by this mechanism."""

    def token(self, token: bytes) -> Request[TokenAnswer]:
        """Send the next token of the mechanism."""
