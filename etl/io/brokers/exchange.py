"""How do requests and responses pass over one connection, each under a deadline?

A connection begins with TLS, a login and the handshake (defined by the broker type), and is usable
then; otherwise the error says what the port may be. A broker is never taken for an older one than
it is: an older protocol would lose parts of records silently.

Then one request at a time. A broken connection is replaced once, and throttling is waited for. One
fetch may be in flight, with two buffers: one is decoded while the broker fills the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from etl.errors import BrokerUnreachable, CorruptData, EtlError, NotKafka
from etl.io.brokers.authentication import log_in, wanted_login
from etl.io.brokers.connection import (
    Connection,
    Dropping,
    Idle,
    IdleConnections,
    ImpossibleSize,
    Maker,
    Sent,
    absurd,
    end_of,
    fresh,
    hung_up,
    not_kafka,
    outsized,
    unanswered,
)
from etl.io.tls import ConnectionBroken
from etl.kafka.families import choose, is_release_name
from etl.kafka.messages import Fetch, FetchAnswer
from etl.kafka.protocol import BrokerProtocol, Greeting, OlderBrokers, Request
from etl.model.partitions import Isolation
from etl.model.security import OPEN, Security

Greeted = tuple[Connection, BrokerProtocol]
_MAX_ANSWER_BYTES = 64 << 10
"""A handshake response is below 1 KiB; other servers may claim anything."""
_unanswering: set[tuple[str, int]] = set()
"""Addresses that left a handshake unanswered: nobody waits there again. Only a hint; it is proven
each time.
"""


class Handshake:
    """Begins connections to one address. Every deadline is a `time.monotonic` moment."""

    def __init__(
        self,
        host: str,
        port: int,
        connect_timeout_s: float,
        *,
        client_id: str,
        security: Security = OPEN,
    ) -> None:
        self._host, self._port, self._connect_timeout_s = host, port, connect_timeout_s
        self._client_id, self._security = client_id, security

    def greet(self, greeting: Greeting, deadline: float) -> Greeted:
        """Perform the handshake. Raises NotKafka for another protocol or a closed connection,
        BrokerUnreachable without an answer, CorruptData; and as `tls` and `login`.
        """
        try:
            return self._greet_once(greeting, deadline)
        except ConnectionBroken:
            pass
        # A broker that is being restarted may do this once; an old one, and a port of something
        # else, do it again.
        try:
            if greeting.older is None:
                found = None
            else:
                found = self._hung_up_on(greeting, greeting.older, deadline)
            return found or self._greet_once(greeting, deadline)
        except ConnectionBroken as again:
            raise again.each_time or hung_up(
                self._address, str(again), greeting.check_if_truncated
            ) from None

    def wanted_login(self, deadline: float) -> EtlError | None:
        """For a broker that closes the connection after the handshake: return the error if its
        listener requires a login; else None.
        """
        if self._security.login is not None:
            return None
        try:
            connection = Connection(
                self._host,
                self._port,
                min(deadline, time.monotonic() + self._connect_timeout_s),
                self._security,
            )
        except (EtlError, ConnectionBroken):
            return None
        try:
            return wanted_login(connection, self._client_id, deadline)
        finally:
            connection.close()

    def _greet_once(self, greeting: Greeting, deadline: float) -> Greeted:
        older = greeting.older
        with ExitStack() as closing:
            connection = self._connect(deadline, closing)
            connection.send(greeting.frame, deadline)
            if older is None or connection.is_answering(self._patience(older, deadline)):
                dialect = greeting.dialect(
                    self._answer(connection, greeting, deadline, greeting.is_answer)
                )
                if older is not None:
                    _unanswering.discard((self._host, self._port))
                closing.pop_all()
                return connection, dialect
            connection.send(older.frame, deadline)
            first = self._answer(
                connection,
                greeting,
                deadline,
                lambda start: older.is_answer(start) or greeting.is_answer(start),
            )
        if older.is_answer(first[:4]):
            _unanswering.add((self._host, self._port))
            return self._connect(deadline), older.unanswering()
        # It was only slow. On that connection the other answer is still to come, or a hang-up.
        _unanswering.discard((self._host, self._port))
        return self._greet_once(replace(greeting, older=None), deadline)

    def _patience(self, older: OlderBrokers, deadline: float) -> float:
        """Return until when to wait for the handshake, leaving time for the older question."""
        is_known, now = (self._host, self._port) in _unanswering, time.monotonic()
        return now + (0 if is_known else min(older.patience_s, (deadline - now) / 2))

    def _hung_up_on(
        self, greeting: Greeting, older: OlderBrokers, deadline: float
    ) -> Greeted | None:
        """Return the connection to a broker that answers the older question; None: it closes the
        connection on that, too.
        """
        connection = self._answering(older.frame, greeting, older, deadline)
        if connection is None:
            return None
        with ExitStack() as closing:
            closing.callback(connection.close)
            try:
                connection.send(greeting.frame, deadline)
                dialect = greeting.dialect(
                    self._answer(connection, greeting, deadline, greeting.is_answer)
                )
                closing.pop_all()
                return connection, dialect
            except ConnectionBroken:
                pass
        for question, make in older.hanging_up:
            if found := self._answering(question, greeting, older, deadline):
                return found, make()
        return None

    def _answering(
        self, question: bytes, greeting: Greeting, older: OlderBrokers, deadline: float
    ) -> Connection | None:
        """Return a connection on which the question was answered; None: it was closed instead."""
        with ExitStack() as closing:
            connection = self._connect(deadline, closing)
            try:
                connection.send(question, deadline)
                self._answer(connection, greeting, deadline, older.is_answer)
            except ConnectionBroken:
                return None
            closing.pop_all()
            return connection

    def _connect(self, deadline: float, closing: ExitStack | None = None) -> Connection:
        """Return a connection that is ready for requests."""
        with ExitStack() as until_done:
            connection = Connection(
                self._host,
                self._port,
                min(deadline, time.monotonic() + self._connect_timeout_s),
                self._security,
            )
            until_done.callback(connection.close)
            log_in(connection, self._security, self._host, self._client_id, deadline)
            until_done.pop_all()
        if closing is not None:
            closing.callback(connection.close)
        return connection

    def _answer(
        self,
        connection: Connection,
        greeting: Greeting,
        deadline: float,
        is_answer: Callable[[memoryview], bool],
    ) -> memoryview:
        try:
            answer = connection.receive(
                deadline,
                fresh,
                max_bytes=_MAX_ANSWER_BYTES,
                least_bytes=greeting.least_answer_bytes,
            )
        except ImpossibleSize as size:
            raise not_kafka(self._address, size.first) from None
        except BrokerUnreachable as late:
            raise unanswered(late, greeting.name) from None
        if not is_answer(answer[:4]):
            raise not_kafka(self._address, bytes(answer[:4]))
        return answer

    @property
    def _address(self) -> str:
        return f"{self._host}:{self._port}"


Answer = TypeVar("Answer")
Ask = Callable[[BrokerProtocol], Request[Answer]]
"""A function from protocol to request, called for each connection, since a broker may return as a
newer one.
"""
_MAX_NUMBER = 0x7FFFFFFF
_COMPARED_WITHIN_S = 5.0
_MOST_UNANSWERED = 64
"""Most unanswered requests of one question: a broker whose responses nobody reads stops reading."""


class Exchange:
    """Requests to one broker. Connects with the first; a connection on which anything raised is
    closed.

    See `SimpleConsumer` for the parameters.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        connect_timeout_s: float,
        timeout_s: float,
        max_response_bytes: int,
        generation: str | None = None,
        idle_connections: IdleConnections | None = None,
        security: Security = OPEN,
    ) -> None:
        self._host, self._port, self._client_id = host, port, client_id
        self._handshake = Handshake(
            host, port, connect_timeout_s, client_id=client_id, security=security
        )
        self._timeout_s = timeout_s
        self._max_response_bytes = max_response_bytes
        self._generation = generation
        self.generation = generation
        """Configured, or detected with the last connection."""
        self._idle, self._maker = (
            idle_connections,
            Maker(host, port, client_id, generation, security),
        )
        self._may_be_other = is_release_name(generation)
        """True if a failure may come from another release than configured; asked once."""
        self._was_compared = False
        self._may_take = True
        """True if an idle connection may be used; after a broken one a new one is made."""
        self._open: tuple[Connection, BrokerProtocol] | None = None
        self._check_if_cut = BrokerProtocol.check_if_truncated
        self._to_come = 0
        """Expected responses; while there are some, nobody else may use the connection."""
        self._last_number = 0
        self._throttled_until = 0.0
        self.ends_by: float | None = None
        """A moment by which a question to many brokers has ended, this one's call with it; None:
        each call has its own time.
        """

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def close(self) -> None:
        """Close the connection, or return it for reuse; the next request connects again."""
        if self._open is not None and self._idle is not None and not self._to_come:
            (connection, dialect), self._open = self._open, None
            self._idle.give(
                self._maker, Idle(connection, dialect, self._last_number, self._throttled_until)
            )
        self._hang_up()
        self._may_take = True

    def interrupt(self) -> None:
        """From another thread: see Connection."""
        if opened := self._open:
            opened[0].interrupt()

    def _hang_up(self) -> None:
        if self._open is not None:
            self._open[0].close()
        self._open, self._to_come = None, 0

    def dialect(self) -> BrokerProtocol:
        """Return the broker's protocol."""
        return self._connected(self.deadline())[1]

    def ask(self, ask: Ask[Answer], *, may_repeat: bool = True) -> Answer:
        """Return the response; repeated once if the connection broke before any byte of it, if
        permitted.
        """
        deadline = self.deadline()
        try:
            return self._ask_once(ask, deadline)
        except ConnectionBroken as broken:
            if broken.answered or not may_repeat:
                raise self.cut(broken) from None
        try:
            return self._ask_once(ask, deadline)
        except ConnectionBroken as again:
            raise self.cut(again) from None

    def _ask_once(self, ask: Ask[Answer], deadline: float) -> Answer:
        sent = self.send(ask, deadline)
        try:
            response = self._receive_all(sent, deadline)
        except ImpossibleSize as size:
            raise absurd(self.address, size) from None
        return self.read(sent.request, response)

    def send(self, ask: Ask[Answer], deadline: float) -> Sent[Answer]:
        """Send and do not wait. Raises ConnectionBroken."""
        connection, dialect = self._connected(deadline)
        request, number = ask(dialect), self._next_number()
        frames = memoryview(request.frame(number))
        if request.answers > _MOST_UNANSWERED:
            first = end_of(frames, _MOST_UNANSWERED)
        else:
            first = len(frames)
        with Dropping(self._hang_up):
            self._to_come += request.answers
            connection.send(frames[:first], deadline)
        return Sent(request, number, frames[first:], connection.is_answering)

    def receive(
        self, number: int, deadline: float, room: Callable[[int], memoryview]
    ) -> memoryview:
        """The bytes of the next answer, in what `room` gives. Raises ConnectionBroken, and
        ImpossibleSize for a size not taken.
        """
        if self._open is None:
            raise ConnectionBroken("no connection any more", answered=False)
        connection, dialect = self._open
        with Dropping(self._hang_up):
            try:
                response = connection.receive(
                    deadline,
                    room,
                    max_bytes=self._max_response_bytes,
                    least_bytes=dialect.least_answer_bytes,
                )
            except BrokerUnreachable as late:
                raise self._explained(late) from None
            found = dialect.number_of(response[:4])
            if found not in (None, number):
                raise CorruptData(
                    f"An answer to request {found} came where {number} was asked",
                    broker=self.address,
                )
            self._to_come -= 1
            return response

    def _receive_all(self, sent: Sent[Answer], deadline: float) -> memoryview:
        """Receive the response, or all responses of a question, each with its size."""
        answers, rest = bytearray(), sent.rest
        for got in range(sent.request.answers):
            try:
                if got and got % _MOST_UNANSWERED == 0:
                    rest = self._send_more(rest, deadline)
                answer = self.receive(sent.number, deadline, fresh)
            except ConnectionBroken as broken:
                raise ConnectionBroken(
                    str(broken),
                    answered=broken.answered or got > 0,
                    action=sent.request.check_if_truncated,
                ) from None
            if sent.request.answers == 1:
                return answer
            answers += len(answer).to_bytes(4, "big") + answer
        return memoryview(answers)

    def _send_more(self, frames: memoryview, deadline: float) -> memoryview:
        """Send the next requests of a question after earlier ones are answered; return the rest."""
        if self._open is None:
            raise ConnectionBroken("no connection any more", answered=True)
        until = end_of(frames, _MOST_UNANSWERED)
        with Dropping(self._hang_up):
            self._open[0].send(frames[:until], deadline)
        return frames[until:]

    def read(self, request: Request[Answer], response: memoryview) -> Answer:
        """Parse the response. Raises CorruptData."""
        with Dropping(self._hang_up):
            try:
                reply = request.read(response)
            except CorruptData as corrupt:
                raise self._explained(corrupt) from None
        self._throttled_until = time.monotonic() + max(reply.throttled_ms, 0) / 1000
        return reply.answer

    def deadline(self) -> float:
        """When a call that begins now must have ended."""
        # A broker that throttled us reads the next request only when that time is over (KIP-219).
        alone = max(time.monotonic(), self._throttled_until) + self._timeout_s
        return alone if self.ends_by is None else min(alone, self.ends_by)

    def cut(self, broken: ConnectionBroken) -> EtlError:
        """The failure for a connection that broke and is not made anew."""
        if not broken.answered and (wanted := self._handshake.wanted_login(self._soon())):
            return wanted
        action = broken.action or self._check_if_cut
        return self._explained(
            BrokerUnreachable(f"The connection broke {broken}", broker=self.address, action=action)
        )

    def _explained(self, failure: EtlError) -> EtlError:
        """Return the failure, or that the broker is of another release than configured, if it says
        so itself.
        """
        if self._generation is None or not self._may_be_other:
            return failure
        self._may_be_other = False
        itself = self._itself()
        return itself and itself.release_mismatch(self._generation) or failure

    def reject_other_release(self, isolation: Isolation) -> None:
        """Ask the broker for its release within five seconds, if one is configured; without an
        answer the configured one is assumed. Raises OtherRelease if it lacks what that release
        speaks, or the isolation would be lost.
        """
        if self._generation is None or self._was_compared or not is_release_name(self._generation):
            return
        self._was_compared, itself = True, self._itself()
        if itself and (other := itself.release_mismatch(self._generation, isolation)):
            raise other

    def _itself(self) -> BrokerProtocol | None:
        """Return the broker's own protocol, regardless of the conf; None: unavailable now."""
        deadline = self._soon()
        try:
            connection, dialect = choose(
                lambda greeting: self._handshake.greet(greeting, deadline),
                client_id=self._client_id,
                address=self.address,
            )
        except EtlError:
            return None
        connection.close()
        return dialect

    def _soon(self) -> float:
        return time.monotonic() + min(self._timeout_s, _COMPARED_WITHIN_S)

    def _connected(self, deadline: float) -> tuple[Connection, BrokerProtocol]:
        if (
            self._open is not None
            and not self._to_come
            and time.monotonic() >= self._open[0].renew_at
        ):
            self._hang_up()
        if self._open is None and self._idle is not None and self._may_take:
            taken = self._idle.take(self._maker)
        else:
            taken = None
        self._may_take = False
        if taken is not None:
            self._open = taken.connection, taken.dialect
            self._last_number, self._throttled_until = taken.last_number, taken.throttled_until
        elif self._open is None:
            try:
                self._open = choose(
                    lambda greeting: self._handshake.greet(greeting, deadline),
                    client_id=self._client_id,
                    address=self.address,
                    told=self._generation,
                )
            except (BrokerUnreachable, CorruptData, NotKafka) as failure:
                raise self._explained(failure) from None
        self.generation, self._check_if_cut = (
            self._open[1].generation or self._generation,
            self._open[1].check_if_truncated,
        )
        return self._open

    def _next_number(self) -> int:
        self._last_number = (self._last_number + 1) & _MAX_NUMBER
        return self._last_number


class Fetching:
    """The fetches of one exchange. See `SimpleConsumer.begin_fetch` and `end_fetch`."""

    def __init__(self, exchange: Exchange, max_response_bytes: int) -> None:
        self._exchange = exchange
        self._max_response_bytes = max_response_bytes
        self._under_way: tuple[Fetch, Sent[FetchAnswer]] | None = None
        self._buffers = [bytearray(), bytearray()]
        self._turn = 0

    def reject_pending_request(self) -> None:
        """Raise ValueError where an answer is still to come: it would be taken for another's."""
        if self._under_way is not None:
            raise ValueError("a fetch is under way on this connection: end_fetch first")

    def is_answered(self, wait_s: float) -> bool:
        """True if the response has begun, or the connection ended, within so long."""
        if self._under_way is None:
            raise ValueError("no fetch is under way")
        return self._under_way[1].is_answering(time.monotonic() + wait_s)

    def forget(self) -> None:
        """Wait for nothing any more."""
        self._under_way = None

    def begin(self, fetch: Fetch) -> None:
        deadline = self._exchange.deadline()
        try:
            sent = self._send(fetch, deadline)
        except ConnectionBroken:
            sent = self._send_anew(fetch, deadline)
        self._under_way = fetch, sent

    def end(self) -> FetchAnswer:
        if self._under_way is None:
            raise ValueError("no fetch is under way")
        (fetch, sent), self._under_way = self._under_way, None
        deadline = self._exchange.deadline() + fetch.max_wait_ms / 1000
        try:
            response = self._receive(fetch, sent, deadline)
        except ConnectionBroken as broken:
            if broken.answered:
                raise self._exchange.cut(broken) from None
            sent = self._send_anew(fetch, deadline)
            try:
                response = self._receive(fetch, sent, deadline)
            except ConnectionBroken as again:
                raise self._exchange.cut(again) from None
        return self._checked(self._read(fetch, sent, response), fetch)

    def _send(self, fetch: Fetch, deadline: float) -> Sent[FetchAnswer]:
        return self._exchange.send(lambda dialect: dialect.fetch(fetch), deadline)

    def _send_anew(self, fetch: Fetch, deadline: float) -> Sent[FetchAnswer]:
        try:
            return self._send(fetch, deadline)
        except ConnectionBroken as broken:
            raise self._exchange.cut(broken) from None

    def _receive(self, fetch: Fetch, sent: Sent[FetchAnswer], deadline: float) -> memoryview:
        try:
            return self._exchange.receive(sent.number, deadline, self._next_buffer)
        except ImpossibleSize as size:
            raise outsized(
                self._exchange.address, size, sent.number, self._max_response_bytes, fetch.place
            ) from None

    def _next_buffer(self, size: int) -> memoryview:
        # A bytearray with views cannot grow, and the views of an earlier answer must stay what they
        # are: a new one.
        self._turn ^= 1
        if len(self._buffers[self._turn]) < size:
            self._buffers[self._turn] = bytearray(
                min(size + size // 4, max(size, self._max_response_bytes))
            )
        return memoryview(self._buffers[self._turn])[:size]

    def _read(self, fetch: Fetch, sent: Sent[FetchAnswer], response: memoryview) -> FetchAnswer:
        try:
            return self._exchange.read(sent.request, response)
        except CorruptData as corrupt:
            requested = {(each.log.topic, each.log.partition): each.offset for each in fetch.wanted}
            offset = requested.get(
                (corrupt.where.get("topic", ""), corrupt.where.get("partition", -1))
            )
            raise CorruptData(
                corrupt.message, action=corrupt.action, **{**corrupt.where, "offset": offset}
            ) from None

    def _checked(self, answer: FetchAnswer, fetch: Fetch) -> FetchAnswer:
        if answer.refusal:
            raise answer.refusal.error("fetch", broker=self._exchange.address)
        if answer.throttle_ms > 0 and not answer.partitions:
            return answer
        requested = {(each.log.topic, each.log.partition): each.offset for each in fetch.wanted}
        got = [(each.topic, each.partition) for each in answer.partitions]
        if len(got) != len(requested) or set(got) != set(requested):
            raise CorruptData(
                "The answer to a fetch names other partitions than were asked for",
                broker=self._exchange.address,
                asked=sorted(requested),
                got=got,
            )
        return replace(
            answer,
            partitions=tuple(
                replace(each, asked_offset=requested[each.topic, each.partition])
                for each in answer.partitions
            ),
        )
