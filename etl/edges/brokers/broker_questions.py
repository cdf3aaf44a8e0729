"""What one broker can be asked besides records and offsets: itself, its topics, who is in a group;
and the one connection to it.

`SimpleConsumer` is the whole of it, and says what the parameters and errors are. Nothing here
retries on a refusal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from types import TracebackType
from typing import Self

from etl.edges.brokers.exchange import Answer, Ask, Exchange
from etl.edges.brokers.fetching import Fetching
from etl.edges.brokers.idle_connections import IdleConnections
from etl.errors import ConsumerInUse, Meaning, Refusal
from etl.kafka.messages import ClusterMetadata, SpokenMembership, ToldEpochEnds, ToldMembers
from etl.kafka.protocol import BrokerProtocol, Request
from etl.model.partitions import BrokerPartition, Isolation, OpenTransaction, Retention
from etl.model.security import OPEN, Security
from etl.settings.choices import MIB, TIMEOUT_S

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
        """How the broker is spoken to (`Broker.generation`): as was told, or found out with the
        first call; None before.
        """
        return self._exchange.generation

    def close(self) -> None:
        """Hang up, or give the connection back; the next call would connect again. A fetch under
        way is forgotten.
        """
        self._fetching.forget()
        self._exchange.close()

    def interrupt(self) -> None:
        """From another thread: whoever waits for an answer here gets BrokerUnreachable at once. A
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
        """Whatever is asked inside has ended by that `time.monotonic` moment, though a call may
        take longer on its own.
        """
        self._exchange.ends_by = moment
        try:
            yield
        finally:
            self._exchange.ends_by = None

    # The cluster, as this broker knows it

    def introduction(self) -> str:
        """What the broker is, as far as it shows at the handshake, for a person; brokers tell no
        version of themselves.
        """
        return self._dialect().introduction()

    def refuse_other_release(self, isolation: Isolation) -> None:
        """Ask the broker once what it is, where `generation` was told as a release, such as
        `kafka-0.10.2`; else nobody is asked.

        Raises OtherRelease where it lacks what that release speaks, or where it has transactions,
        that release has none, and the isolation could not be kept. One that does not say what it is
        within five seconds is what was told.
        """
        with self._alone():
            self._exchange.refuse_other_release(isolation)

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

    def tells_cleanup(self) -> bool:
        """Whether the broker can be asked for `retention` at all: not before 0.11."""
        return self._dialect().tells_cleanup

    def keeps_offsets(self) -> bool:
        """Whether the broker keeps the offsets of groups itself: not before 0.8.2."""
        return self._dialect().keeps_offsets

    def membership(self) -> SpokenMembership:
        """What members of groups the broker understands."""
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
    ) -> ToldEpochEnds:
        """Where the records up to a leader epoch end in each log (KIP-320); nothing for a broker
        before 2.1. One request for many logs.
        """
        if not self._dialect().tells_epoch_ends:
            return {}
        return self._ask(lambda dialect: dialect.epoch_ends(epochs, current))

    def members_of(self, group: str) -> ToldMembers:
        """Who is in Kafka's group with the logs that each reads, by either protocol; only the
        group's coordinator knows.

        Nobody, where brokers keep no groups (before 0.9).
        """
        if not self._dialect().keeps_groups:
            return ToldMembers(None, {})
        told = self._ask(lambda dialect: dialect.members_of(group))
        if (
            told.members
            or not self._dialect().keeps_consumer_groups
            or (told.refusal and told.refusal.meaning not in _NO_GROUP)
        ):
            return told
        newer = self._ask(
            lambda dialect: dialect.consumer_members_of(group)
        )  # a group of that protocol is none to the other question
        return (
            ToldMembers(None, {}) if newer.refusal and newer.refusal.meaning in _NO_GROUP else newer
        )

    def create_topic(self, topic: str, partitions: int) -> int:
        """Make a topic on this broker, or enlarge it: how many partitions it has there. Raises
        SettingsError but for a Jafka.
        """
        made = self._ask(lambda dialect: dialect.create_topic(topic, partitions), may_repeat=False)
        if isinstance(made, Refusal):
            raise made.error("make the topic", topic=topic, broker=self.address)
        return made

    def delete_topic(self, topic: str, password: str = "") -> int:
        """Delete a topic on this broker: how many partitions it had there. Raises SettingsError but
        for a Jafka.
        """
        gone = self._ask(lambda dialect: dialect.delete_topic(topic, password), may_repeat=False)
        if isinstance(gone, Refusal):
            raise gone.error("delete the topic", topic=topic, broker=self.address)
        return gone

    def send(self, request: Request[Answer] | Ask[Answer], *, may_repeat: bool = True) -> Answer:
        """The answer to any request of the broker's generation: one that is there, or what is made
        of the dialect that the broker speaks.

        Sent once more where the connection broke before any byte of an answer came, unless it must
        not happen twice.
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
        """Nobody else's answer may come in between. Raises ConsumerInUse for another thread,
        ValueError for a fetch under way.
        """
        if not self._one_at_a_time.acquire(blocking=False):
            raise ConsumerInUse(
                "another thread waits for an answer on this connection",
                broker=self.address,
                check="that each thread has a SimpleConsumer of its own",
            )
        try:
            if not is_fetching:
                self._fetching.refuse_while_under_way()
            yield
        finally:
            self._one_at_a_time.release()
