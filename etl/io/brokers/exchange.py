"""How do requests and responses pass over one connection, each under a deadline?

Lives here: the handshake, requests and responses, and the fetch in flight. Not here: sockets
(etl/io/brokers/connection.py), logins (etl/io/brokers/authentication.py), bytes (etl/kafka).

A connection begins with TLS, a login and the handshake (defined by the broker type), and is usable
then; otherwise the error describes what the port may be. A broker is never taken for an older one
than it is: the older record format has no headers or timestamps, and they would be lost silently. A
broker that closes the connection on the handshake may only be starting, one that leaves it
unanswered may only be busy. So both are proven by their answer to a second, older request on the
same connection, since responses come in order.

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
from etl.io.brokers.authentication import log_in, missing_login_error
from etl.io.brokers.connection import (
    CloseOnError,
    Connection,
    ConnectionKey,
    IdleConnection,
    IdleConnections,
    ImpossibleSize,
    ResponseCut,
    SentRequest,
    closed_on_first_request,
    end_of_requests,
    impossible_size,
    new_buffer,
    no_first_answer,
    not_kafka,
    response_cut,
    response_too_large,
)
from etl.io.tls import ConnectionBroken
from etl.kafka.broker_type_interface import BrokerProtocol, Greeting, OlderBrokers, Request
from etl.kafka.broker_types import choose, is_release_name
from etl.kafka.request_values import Fetch, FetchAnswer
from etl.model.partitions import Isolation
from etl.model.security import OPEN, Security

Greeted = tuple[Connection, BrokerProtocol]
_MAX_ANSWER_BYTES = 64 << 10
"""A handshake response is below 1 KiB; other servers may claim anything."""
_RETRY_S = 0.2
_unanswering: set[tuple[str, int]] = set()
"""Addresses that left a handshake unanswered: no wait there again.

Only a hint; it is proven each time.
"""


class Handshake:
    """Creates connections to one address. Every deadline is a `time.monotonic` value."""

    def __init__(
        self,
        host: str,
        port: int,
        connect_timeout_s: float,
        *,
        client_id: str,
        security: Security = OPEN,
    ) -> None:
        self._host = host
        self._port = port
        self._connect_timeout_s = connect_timeout_s
        self._client_id = client_id
        self._security = security

    def greet(self, greeting: Greeting, deadline: float) -> Greeted:
        """Perform the handshake.

        Raises NotKafka for another protocol or a closed connection, BrokerUnreachable without an
        answer, CorruptData; and as `tls` and `log_in`. What may pass is tried until the deadline.
        """
        while True:
            try:
                return self._greet_twice(greeting, deadline)
            except ConnectionBroken as broken:
                if broken.each_time is None:
                    raise closed_on_first_request(
                        self._address, str(broken), greeting.check_if_truncated
                    ) from None
                if not broken.may_pass or time.monotonic() + _RETRY_S > deadline:
                    raise broken.each_time from None
                time.sleep(_RETRY_S)

    def _greet_twice(self, greeting: Greeting, deadline: float) -> Greeted:
        """Perform the handshake, a second time if the connection breaks.

        Raises ConnectionBroken if it breaks again.
        """
        try:
            return self._greet_once(greeting, deadline)
        except ConnectionBroken:
            pass
        # A broker that is being restarted may do this once; an old one, and a port of another
        # server, do it again.
        if greeting.older is not None:
            found = self._greet_by_older(greeting, greeting.older, deadline)
            if found is not None:
                return found
        return self._greet_once(greeting, deadline)

    def missing_login(self, deadline: float) -> EtlError | None:
        """Return the error if the listener requires a login and none is configured; else None.

        For a broker that closes the connection after the handshake.
        """
        if self._security.login is not None:
            return None
        try:
            connection = self._open_socket(deadline)
        except (EtlError, ConnectionBroken):
            return None
        try:
            return missing_login_error(connection, self._client_id, deadline)
        finally:
            connection.close()

    def _greet_once(self, greeting: Greeting, deadline: float) -> Greeted:
        older = greeting.older
        with ExitStack() as closing:
            connection = self._connect(deadline, closing)
            connection.send(greeting.frame, deadline)
            if older is None or connection.is_answering(self._wait_until(older, deadline)):
                protocol = greeting.dialect(
                    self._receive_answer(connection, greeting, deadline, greeting.is_answer)
                )
                if older is not None:
                    _unanswering.discard((self._host, self._port))
                closing.pop_all()
                return connection, protocol
            connection.send(older.frame, deadline)
            first = self._receive_answer(
                connection,
                greeting,
                deadline,
                lambda start: older.is_answer(start) or greeting.is_answer(start),
            )
        if older.is_answer(first[:4]):
            _unanswering.add((self._host, self._port))
            return self._connect(deadline), older.unanswering()
        # It was only slow. That connection still has the other response to come, or its end.
        _unanswering.discard((self._host, self._port))
        return self._greet_once(replace(greeting, older=None), deadline)

    def _wait_until(self, older: OlderBrokers, deadline: float) -> float:
        """Return until when to wait for the handshake, leaving time for the older request."""
        now = time.monotonic()
        if (self._host, self._port) in _unanswering:
            return now
        return now + min(older.patience_s, (deadline - now) / 2)

    def _greet_by_older(
        self, greeting: Greeting, older: OlderBrokers, deadline: float
    ) -> Greeted | None:
        """Return the connection to a broker that answers the older request.

        None: it closes the connection on that, too.
        """
        connection = self._connect_if_answered(older.frame, greeting, older, deadline)
        if connection is None:
            return None
        with ExitStack() as closing:
            closing.callback(connection.close)
            try:
                connection.send(greeting.frame, deadline)
                protocol = greeting.dialect(
                    self._receive_answer(connection, greeting, deadline, greeting.is_answer)
                )
                closing.pop_all()
                return connection, protocol
            except ConnectionBroken:
                pass
        for request, create_protocol in older.hanging_up:
            found = self._connect_if_answered(request, greeting, older, deadline)
            if found is not None:
                return found, create_protocol()
        return None

    def _connect_if_answered(
        self, request: bytes, greeting: Greeting, older: OlderBrokers, deadline: float
    ) -> Connection | None:
        """Return a connection on which the request was answered; None: it was closed instead."""
        with ExitStack() as closing:
            connection = self._connect(deadline, closing)
            try:
                connection.send(request, deadline)
                self._receive_answer(connection, greeting, deadline, older.is_answer)
            except ConnectionBroken:
                return None
            closing.pop_all()
            return connection

    def _connect(self, deadline: float, closing: ExitStack | None = None) -> Connection:
        """Return a connection that is ready for requests."""
        with ExitStack() as until_done:
            connection = self._open_socket(deadline)
            until_done.callback(connection.close)
            log_in(connection, self._security, self._host, self._client_id, deadline)
            until_done.pop_all()
        if closing is not None:
            closing.callback(connection.close)
        return connection

    def _open_socket(self, deadline: float) -> Connection:
        connected_by = min(deadline, time.monotonic() + self._connect_timeout_s)
        return Connection(self._host, self._port, connected_by, self._security)

    def _receive_answer(
        self,
        connection: Connection,
        greeting: Greeting,
        deadline: float,
        is_answer: Callable[[memoryview], bool],
    ) -> memoryview:
        try:
            answer = connection.receive(
                deadline,
                new_buffer,
                max_bytes=_MAX_ANSWER_BYTES,
                least_bytes=greeting.least_answer_bytes,
            )
        except ImpossibleSize as size:
            raise not_kafka(self._address, size.first) from None
        except BrokerUnreachable as late:
            raise no_first_answer(late, greeting.name) from None
        if not is_answer(answer[:4]):
            raise not_kafka(self._address, bytes(answer[:4]))
        return answer

    @property
    def _address(self) -> str:
        return f"{self._host}:{self._port}"


Answer = TypeVar("Answer")
Ask = Callable[[BrokerProtocol], Request[Answer]]
"""A function from protocol to request.

Called for each connection, since a broker may be upgraded between two.
"""
_MAX_NUMBER = 0x7FFFFFFF
_COMPARED_WITHIN_S = 5.0
_MOST_UNANSWERED = 64
"""Most unanswered requests at once.

A broker stops reading while its responses are not received: both sides would wait forever.
"""


class Exchange:
    """Requests to one broker. Connects with the first request.

    A connection on which anything raised is closed. See `SimpleConsumer` for the parameters.
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
        broker_type: str | None = None,
        idle_connections: IdleConnections | None = None,
        security: Security = OPEN,
    ) -> None:
        self._host = host
        self._port = port
        self._client_id = client_id
        self._handshake = Handshake(
            host, port, connect_timeout_s, client_id=client_id, security=security
        )
        self._timeout_s = timeout_s
        self._max_response_bytes = max_response_bytes
        self._broker_type = broker_type
        self.broker_type = broker_type
        """Configured, or detected with the last connection."""
        self._idle_connections = idle_connections
        self._connection_key = ConnectionKey(host, port, client_id, broker_type, security)
        self._may_be_other_release = is_release_name(broker_type)
        """True if a failure may come from another release than configured; checked once."""
        self._was_compared = False
        self._may_reuse_idle = True
        """True if an idle connection may be used; a broken connection is replaced by a new one."""
        self._open: tuple[Connection, BrokerProtocol] | None = None
        self._connection_check = BrokerProtocol.check_if_truncated
        self._expected_responses = 0
        """While responses are expected, the connection may not be reused."""
        self._is_interrupted = False
        """True until `close`: nothing is sent again."""
        self._last_number = 0
        self._throttled_until = 0.0
        self.ends_by: float | None = None
        """Deadline (`time.monotonic`) of a request to many brokers, for this call, too.

        None: each call has its own timeout. A response that is still arriving may end later.
        """

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def close(self) -> None:
        """Close the connection, or return it for reuse; the next request connects again."""
        may_return = self._idle_connections is not None and not self._expected_responses
        if self._open is not None and self._idle_connections is not None and may_return:
            connection, protocol = self._open
            self._open = None
            self._idle_connections.give(
                self._connection_key,
                IdleConnection(connection, protocol, self._last_number, self._throttled_until),
            )
        self._hang_up()
        self._may_reuse_idle = True
        self._is_interrupted = False

    def interrupt(self) -> None:
        """Interrupt a call that waits in another thread. See `Connection.interrupt`."""
        self._is_interrupted = True
        opened = self._open
        if opened:
            opened[0].interrupt()

    def _hang_up(self) -> None:
        if self._open is not None:
            self._open[0].close()
        self._open = None
        self._expected_responses = 0

    def dialect(self) -> BrokerProtocol:
        """Return the broker's protocol."""
        return self._connected(self.deadline())[1]

    def ask(self, ask: Ask[Answer], *, may_repeat: bool = True) -> Answer:
        """Return the response.

        With `may_repeat` the request is sent again once if the connection broke before any byte of
        the response.
        """
        deadline = self.deadline()
        try:
            return self._ask_once(ask, deadline)
        except ConnectionBroken as broken:
            if broken.answered or not may_repeat:
                raise self.connection_error(broken) from None
        try:
            return self._ask_once(ask, deadline)
        except ConnectionBroken as again:
            raise self.connection_error(again) from None

    def _ask_once(self, ask: Ask[Answer], deadline: float) -> Answer:
        sent = self.send(ask, deadline)
        try:
            response = self._receive_all(sent, deadline)
        except ImpossibleSize as size:
            raise impossible_size(self.address, size) from None
        except ResponseCut as cut:
            raise response_cut(self.address, cut) from None
        return self.read(sent.request, response)

    def send(self, ask: Ask[Answer], deadline: float) -> SentRequest[Answer]:
        """Send a request without waiting. Raises ConnectionBroken."""
        connection, protocol = self._connected(deadline)
        request = ask(protocol)
        number = self._next_number()
        frames = memoryview(request.frame(number))
        if request.answers > _MOST_UNANSWERED:
            first = end_of_requests(frames, _MOST_UNANSWERED)
        else:
            first = len(frames)
        with CloseOnError(self._hang_up):
            self._expected_responses += request.answers
            connection.send(frames[:first], deadline)
        return SentRequest(request, number, frames[first:], connection.is_answering)

    def receive(
        self, number: int, deadline: float, room: Callable[[int], memoryview]
    ) -> memoryview:
        """Return the next response, in the buffer that `room` returns for its size.

        Raises ConnectionBroken, ImpossibleSize for a size that is not accepted, and ResponseCut.
        """
        if self._open is None:
            raise ConnectionBroken("no connection any more", answered=False)
        connection, protocol = self._open
        with CloseOnError(self._hang_up):
            try:
                response = connection.receive(
                    deadline,
                    room,
                    max_bytes=self._max_response_bytes,
                    least_bytes=protocol.least_answer_bytes,
                    renewed_by_s=self._timeout_s,
                )
            except BrokerUnreachable as late:
                raise self._explain(late) from None
            except ResponseCut as cut:
                self._reject_other_response(protocol, cut.arrived, number)
                raise
            self._reject_other_response(protocol, response, number)
            self._expected_responses -= 1
            return response

    def _reject_other_response(
        self, protocol: BrokerProtocol, response: memoryview, number: int
    ) -> None:
        """Raise CorruptData for the response to another request than `number`."""
        if len(response) < 4:
            return
        found = protocol.number_of(response[:4])
        if found not in (None, number):
            raise CorruptData(
                f"A response to request {found} arrived instead of the one to {number}",
                broker=self.address,
            )

    def _receive_all(self, sent: SentRequest[Answer], deadline: float) -> memoryview:
        """Return the response, or all responses of a request that has many, each with its size."""
        responses = bytearray()
        rest = sent.rest
        for received in range(sent.request.answers):
            try:
                if received and received % _MOST_UNANSWERED == 0:
                    rest = self._send_more(rest, deadline)
                response = self.receive(sent.number, deadline, new_buffer)
            except ConnectionBroken as broken:
                raise ConnectionBroken(
                    str(broken),
                    answered=broken.answered or received > 0,
                    action=sent.request.check_if_truncated,
                ) from None
            if sent.request.answers == 1:
                return response
            responses += len(response).to_bytes(4, "big") + response
        return memoryview(responses)

    def _send_more(self, frames: memoryview, deadline: float) -> memoryview:
        """Send the next frames after earlier ones are answered; return the rest."""
        if self._open is None:
            raise ConnectionBroken("no connection any more", answered=True)
        until = end_of_requests(frames, _MOST_UNANSWERED)
        with CloseOnError(self._hang_up):
            self._open[0].send(frames[:until], deadline)
        return frames[until:]

    def read(self, request: Request[Answer], response: memoryview) -> Answer:
        """Parse the response. Raises CorruptData."""
        with CloseOnError(self._hang_up):
            try:
                reply = request.read(response)
            except CorruptData as corrupt:
                raise self._explain(corrupt) from None
        self.note_throttle(reply.throttled_ms)
        return reply.answer

    def note_throttle(self, throttled_ms: int) -> None:
        """Note the throttle time of a response: the broker answers the next request after it."""
        self._throttled_until = time.monotonic() + max(throttled_ms, 0) / 1000

    def deadline(self) -> float:
        """Return the deadline (`time.monotonic`) of a call that begins now."""
        # A broker that throttled us reads the next request only when that time is over (KIP-219).
        deadline = max(time.monotonic(), self._throttled_until) + self._timeout_s
        if self.ends_by is None:
            return deadline
        return min(deadline, self.ends_by)

    def connection_error(self, broken: ConnectionBroken) -> EtlError:
        """Return the error for a connection that broke and is not replaced."""
        if not broken.answered:
            missing_login = self._handshake.missing_login(self._comparison_deadline())
            if missing_login:
                return missing_login
        action = broken.action or self._connection_check
        return self._explain(
            BrokerUnreachable(f"The connection broke {broken}", broker=self.address, action=action)
        )

    def _explain(self, failure: EtlError) -> EtlError:
        """Return the failure, or the error that the broker has another release than configured.

        A broker of 0.8 ignores a request's version: it reads what it can and answers as ever, or
        closes the connection; 0.9 does not answer. So after such a failure the broker's release is
        requested, once.
        """
        if self._broker_type is None or not self._may_be_other_release:
            return failure
        self._may_be_other_release = False
        detected = self._detect_protocol()
        if detected is None:
            return failure
        return detected.release_mismatch(self._broker_type) or failure

    def reject_other_release(self, isolation: Isolation) -> None:
        """Compare the broker's release with the configured one, if one is configured.

        Without an answer within five seconds the configured one is assumed. Raises OtherRelease if
        the broker lacks what that release speaks, or the isolation would be lost: to a Fetch
        version from before transactions a broker returns aborted and open ones, without an error.
        """
        if (
            self._broker_type is None
            or self._was_compared
            or not is_release_name(self._broker_type)
        ):
            return
        self._was_compared = True
        detected = self._detect_protocol()
        if detected is None:
            return
        mismatch = detected.release_mismatch(self._broker_type, isolation)
        if mismatch:
            raise mismatch

    def _detect_protocol(self) -> BrokerProtocol | None:
        """Return the broker's own protocol, regardless of the conf; None: unavailable now."""
        deadline = self._comparison_deadline()
        try:
            connection, protocol = choose(
                lambda greeting: self._handshake.greet(greeting, deadline),
                client_id=self._client_id,
                address=self.address,
            )
        except EtlError:
            return None
        connection.close()
        return protocol

    def _comparison_deadline(self) -> float:
        return time.monotonic() + min(self._timeout_s, _COMPARED_WITHIN_S)

    def _connected(self, deadline: float) -> tuple[Connection, BrokerProtocol]:
        """Return the open connection; else an idle one, or a new one."""
        if self._is_interrupted:
            raise ConnectionBroken("interrupted", answered=True)
        if self._open is not None and not self._expected_responses:
            connection, _ = self._open
            if time.monotonic() >= connection.renew_at:
                self._hang_up()
        idle: IdleConnection | None = None
        if self._open is None and self._idle_connections is not None and self._may_reuse_idle:
            idle = self._idle_connections.take(self._connection_key)
        self._may_reuse_idle = False
        if idle is not None:
            self._open = idle.connection, idle.dialect
            self._last_number = idle.last_number
            self._throttled_until = idle.throttled_until
        elif self._open is None:
            try:
                self._open = choose(
                    lambda greeting: self._handshake.greet(greeting, deadline),
                    client_id=self._client_id,
                    address=self.address,
                    told=self._broker_type,
                )
            except (BrokerUnreachable, CorruptData, NotKafka) as failure:
                raise self._explain(failure) from None
        _, protocol = self._open
        self.broker_type = protocol.broker_type or self._broker_type
        self._connection_check = protocol.check_if_truncated
        return self._open

    def _next_number(self) -> int:
        self._last_number = (self._last_number + 1) & _MAX_NUMBER
        return self._last_number


class Fetching:
    """The fetches of one exchange. See `SimpleConsumer.begin_fetch` and `end_fetch`."""

    def __init__(self, exchange: Exchange, max_response_bytes: int) -> None:
        self._exchange = exchange
        self._max_response_bytes = max_response_bytes
        self._in_flight: tuple[Fetch, SentRequest[FetchAnswer]] | None = None
        self._buffers = [bytearray(), bytearray()]
        self._turn = 0

    def reject_pending_request(self) -> None:
        """Raise ValueError while a fetch is in flight: the next response would be the fetch's."""
        if self._in_flight is not None:
            raise ValueError("a fetch is in flight on this connection: call end_fetch first")

    def is_answered(self, wait_s: float) -> bool:
        """True if the response begins to arrive, or the connection ends, within `wait_s`."""
        if self._in_flight is None:
            raise ValueError("no fetch is in flight")
        return self._in_flight[1].is_answering(time.monotonic() + wait_s)

    def forget(self) -> None:
        """Drop the fetch in flight."""
        self._in_flight = None

    def begin(self, fetch: Fetch) -> None:
        deadline = self._exchange.deadline()
        try:
            sent = self._send(fetch, deadline)
        except ConnectionBroken:
            sent = self._send_again(fetch, deadline)
        self._in_flight = fetch, sent

    def end(self, *, keeps_arrived: bool) -> FetchAnswer:
        if self._in_flight is None:
            raise ValueError("no fetch is in flight")
        fetch, sent = self._in_flight
        self._in_flight = None
        deadline = self._exchange.deadline() + fetch.max_wait_ms / 1000
        try:
            return self._receive(fetch, sent, deadline, keeps_arrived=keeps_arrived)
        except ConnectionBroken as broken:
            if broken.answered:
                raise self._exchange.connection_error(broken) from None
        sent = self._send_again(fetch, deadline)
        try:
            return self._receive(fetch, sent, deadline, keeps_arrived=keeps_arrived)
        except ConnectionBroken as again:
            raise self._exchange.connection_error(again) from None

    def _send(self, fetch: Fetch, deadline: float) -> SentRequest[FetchAnswer]:
        return self._exchange.send(lambda protocol: protocol.fetch(fetch), deadline)

    def _send_again(self, fetch: Fetch, deadline: float) -> SentRequest[FetchAnswer]:
        try:
            return self._send(fetch, deadline)
        except ConnectionBroken as broken:
            raise self._exchange.connection_error(broken) from None

    def _receive(
        self,
        fetch: Fetch,
        sent: SentRequest[FetchAnswer],
        deadline: float,
        *,
        keeps_arrived: bool,
    ) -> FetchAnswer:
        try:
            response = self._exchange.receive(sent.number, deadline, self._next_buffer)
        except ImpossibleSize as size:
            raise response_too_large(
                self._exchange.address, size, sent.number, self._max_response_bytes, fetch.place
            ) from None
        except ResponseCut as cut:
            error = response_cut(self._exchange.address, cut, is_fetch=True)
            if not keeps_arrived:
                raise error from None
            answer = FetchAnswer(0, None, (), error)
            if sent.request.read_arrived is not None:
                reply = sent.request.read_arrived(cut.arrived, error)
                self._exchange.note_throttle(reply.throttled_ms)
                answer = reply.answer
            return self._check(answer, fetch)
        return self._check(self._read(fetch, sent, response), fetch)

    def _next_buffer(self, size: int) -> memoryview:
        # A bytearray with views cannot grow, and the views of an earlier response must keep their
        # bytes: a new bytearray.
        self._turn ^= 1
        if len(self._buffers[self._turn]) < size:
            self._buffers[self._turn] = bytearray(
                min(size + size // 4, max(size, self._max_response_bytes))
            )
        return memoryview(self._buffers[self._turn])[:size]

    def _read(
        self, fetch: Fetch, sent: SentRequest[FetchAnswer], response: memoryview
    ) -> FetchAnswer:
        try:
            return self._exchange.read(sent.request, response)
        except CorruptData as corrupt:
            partition = (corrupt.where.get("topic", ""), corrupt.where.get("partition", -1))
            where = {**corrupt.where, "offset": _requested_offsets(fetch).get(partition)}
            raise CorruptData(corrupt.message, action=corrupt.action, **where) from None

    def _check(self, answer: FetchAnswer, fetch: Fetch) -> FetchAnswer:
        """Return the response with the requested offsets, if it has the requested partitions."""
        if answer.refusal:
            raise answer.refusal.error("fetch", broker=self._exchange.address)
        if answer.throttle_ms > 0 and not answer.partitions:
            return answer
        requested = _requested_offsets(fetch)
        got = [(each.topic, each.partition) for each in answer.partitions]
        is_complete = answer.cut is not None or len(got) == len(requested)
        if not is_complete or len(set(got)) != len(got) or not requested.keys() >= set(got):
            raise CorruptData(
                "The answer to a fetch names other partitions than were asked for",
                broker=self._exchange.address,
                asked=sorted(requested),
                got=got,
            )
        partitions = []
        for each in answer.partitions:
            asked_offset = requested[each.topic, each.partition]
            partitions.append(replace(each, asked_offset=asked_offset))
        return replace(answer, partitions=tuple(partitions))


def _requested_offsets(fetch: Fetch) -> dict[tuple[str, int], int]:
    return {(each.partition.topic, each.partition.partition): each.offset for each in fetch.wanted}
