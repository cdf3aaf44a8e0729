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
    """What was answered, and for how long the broker reads nothing more from us after it."""

    answer: Answer
    throttled_ms: int = 0


@dataclass(frozen=True, slots=True)
class Request(Generic[Answer]):
    """One question as bytes, and what its answer says."""

    frame: Callable[[int], bytes]
    """The bytes to send, size included, under the number that is given; a generation without
    numbers leaves it out.
    """
    read: Callable[[memoryview], Reply[Answer]]
    """The answer, from the bytes behind the size. Raises CorruptData where they are none."""
    answers: int = 1
    """How many answers belong to it, where the frame holds several requests of a generation that
    cannot ask for several logs in one; `read` is then given all of them, each behind its own size.
    """
    check_if_truncated: str = ""
    """What to check where the broker hangs up instead of an answer, if that is how it refuses this
    request.
    """


class BrokerProtocol(Protocol):
    """The questions that one broker understands. Every generation answers the first five, the
    others only those that have them.

    A question that this broker has no version of raises SettingsError.
    """

    least_answer_bytes: int = 4
    """What no answer of this broker is smaller than."""
    check_if_truncated: str = (
        "the broker's log; a listener that wants a login (SASL) also hangs up like this"
    )
    """What to check where it hangs up instead of an answer, and the request does not say more."""

    def introduction(self) -> str:
        """What the broker is, for a person. Raises SettingsError for one that records cannot be
        read from.
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
        """By which of `Generation.names` whoever connects next can be told what was found out here;
        None: it is for each to be greeted.
        """
        return None

    def is_not_of(
        self, told: str, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> OtherRelease | None:
        """The error for a broker that was told to be of a release (`Generation.releases`), where it
        lacks what those speak; else None.

        Under read_committed also where it has transactions and those have none: spoken to so it
        gives out what was never committed.
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
        """Whether the broker can tell the largest timestamp of a log, wherever in it that is
        (KIP-734).
        """
        return False

    def largest_times(
        self,
        logs: Collection[BrokerPartition],
        epochs: Mapping[BrokerPartition, int | None],
    ) -> Request[dict[BrokerPartition, ListedOffset]]:
        """The largest timestamp in each log, and where a record with it is; without a timestamp
        where no record has one.
        """
        self._cannot("tell the largest timestamp of a log")

    def segments_before(
        self, log: BrokerPartition, time_ms: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        """Where the newest segment of one log begins that was written by then, by its broker's
        clock; nothing where none was.
        """
        self._cannot("tell when segments were written")

    @property
    def keeps_groups(self) -> bool:
        """Whether consumers can be members of groups that brokers keep."""
        return False

    @property
    def membership(self) -> SpokenMembership:
        """How consumers can be members of those groups."""
        return SpokenMembership()

    @property
    def has_describe_configs(self) -> bool:
        """Whether the broker can be asked how topics are kept and cleaned up."""
        return False

    @property
    def keeps_offsets(self) -> bool:
        """Whether the broker keeps the offsets of groups itself."""
        return False

    @property
    def has_leader_epochs(self) -> bool:
        """Whether the broker has leader epochs to tell of (KIP-320)."""
        return False

    def epoch_ends(
        self, epochs: Mapping[BrokerPartition, int], current: Mapping[BrokerPartition, int | None]
    ) -> Request[EpochEndsResponse]:
        """Where the records up to an epoch end; `current` are the leaders' epochs that we know."""
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
        """Who keeps the offsets of a group."""
        self._cannot("tell who keeps a group's offsets")

    def members_of(self, group: str) -> Request[MembersResponse]:
        """Who is in a group of the classic protocol; a group of the consumer protocol (KIP-848) has
        nobody, by this question.
        """
        self._cannot("tell who is in a group")

    @property
    def keeps_consumer_groups(self) -> bool:
        """Whether there may be groups of the consumer protocol."""
        return False

    def consumer_members_of(self, group: str) -> Request[MembersResponse]:
        """Who is in a group of that protocol; a refusal says that there is none of this name."""
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
        """What we were assigned; the leader tells it of everybody, by member id."""
        self._cannot("have members in a group")

    def heartbeat(self, identity: MemberIdentity) -> Request[BrokerRefusal | None]:
        """We are alive; a refusal says what became of the group."""
        self._cannot("have members in a group")

    def leave_group(self, identity: MemberIdentity) -> Request[BrokerRefusal | None]:
        """We are no member any more."""
        self._cannot("have members in a group")

    def consumer_heartbeat(self, beat: ConsumerHeartbeat) -> Request[ConsumerHeartbeatAnswer]:
        """Everything that a member of the consumer protocol says and is told (KIP-848)."""
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
        """Append encoded records, or keys and values: the offset of the first; None where the
        broker does not tell.
        """
        self._cannot("take records from us")

    def create_topic(self, topic: str, partitions: int) -> Request[int | BrokerRefusal]:
        """Make a topic on this broker, or enlarge it: how many partitions it has then."""
        self._cannot("make topics for us")

    def delete_topic(self, topic: str, password: str) -> Request[int | BrokerRefusal]:
        """Delete a topic on this broker: how many partitions it had."""
        self._cannot("delete topics for us")

    def _cannot(self, what: str) -> NoReturn:
        raise SettingsError(
            f"brokers of this generation cannot {what}",
            check="what the conf asks of them",
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
    """How long the answer to the greeting is waited for before this is asked behind it."""
    unanswering: Callable[[], BrokerProtocol]
    """Of a broker that answers this where it was asked behind the greeting: answers come in order,
    so that one never comes.
    """
    hanging_up: Sequence[tuple[bytes, Callable[[], BrokerProtocol]]]
    """Of a broker that hung up on the greeting, answers this, and hangs up again when the greeting
    is sent behind it: the dialect of the first question here that it answers. The newest comes
    first; the last is this one."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first request of a connection, and whom its answer shows."""

    name: str
    """As an error calls it."""
    frame: bytes
    is_answer: Callable[[memoryview], bool]
    """Whether the bytes behind the size can be an answer to this at all, by their first four."""
    dialect: Callable[[memoryview], BrokerProtocol]
    """Whom we speak with. Raises CorruptData."""
    least_answer_bytes: int = 4
    """What no answer to it is smaller than."""
    check_if_truncated: str = "for a TLS listener on this port, a broker that wants a login, or something that is not Kafka"
    """What to check where the other side hangs up on it."""
    older: OlderBrokers | None = None
    """None: what leaves the greeting unanswered is no broker of this family."""


class Generation(Protocol):
    """One family of brokers."""

    names: Collection[str]
    """What `Broker.generation` calls it."""
    releases: Collection[str] = ()
    """Those of the names that say what brokers speak, which they would else tell themselves or
    show.
    """
    without_isolation: Collection[str] = ()
    """Those of the releases whose brokers have no transactions, so that nothing of them can be left
    out.
    """
    is_told: bool
    """A broker of this family cannot be found out by greeting it, since it hangs up on others'
    greetings as they do on its: whoever connects must have been told."""

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        """How a connection begins; client and address are named in requests and errors. `name`:
        which of its names it was told by.
        """


@dataclass(frozen=True, slots=True)
class MechanismAnswer:
    """Whether a login by the mechanism that was named may begin."""

    is_taken: bool
    offered: tuple[str, ...] = ()
    """What the listener has instead."""
    wants_none: bool = False
    """Nobody logs in on this listener."""


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """What comes of a token."""

    token: bytes = b""
    refusal: BrokerRefusal | None = None
    """Why the login came to nothing; None: it goes on, or is done."""
    is_wrong: bool = False
    """Whether the refusal is of who we say we are; any other one says nothing of that."""
    said: str = ""
    """The broker's own words of a refusal, which may quote what it was sent; empty: it has none."""
    lifetime_s: float | None = None
    """How long the login holds (KIP-368); None: without end."""


class LoginDialect(Protocol):
    """How one broker is told."""

    def mechanism(self, name: str) -> Request[MechanismAnswer]:
        """The login is to be by this one."""

    def token(self, token: bytes) -> Request[TokenAnswer]:
        """The mechanism's next bytes."""
