"""One connection to one broker: how it begins, one request at a time, one deadline per call.

It makes a broken connection anew once, and waits out a broker that throttles. What is asked belongs
to `simple_consumer`, bytes to `etl.kafka`, the socket to `connection`, and how a
connection begins to `handshake`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from etl.edges.broken import ConnectionBroken
from etl.edges.brokers.connection import Connection, Dropping, ImpossibleSize, absurd
from etl.edges.brokers.handshake import Handshake
from etl.edges.brokers.idle_connections import Idle, IdleConnections, Maker
from etl.edges.brokers.sent import Sent, end_of, fresh
from etl.errors import BrokerUnreachable, CorruptData, EtlError, NotKafka
from etl.kafka.families import choose, is_release
from etl.kafka.protocol import BrokerProtocol, Request
from etl.model.partitions import Isolation
from etl.model.security import OPEN, Security

Answer = TypeVar("Answer")
Ask = Callable[[BrokerProtocol], Request[Answer]]
"""A question in the words of whoever listens: made anew with each connection, since a broker may
come back as a newer one.
"""
_MAX_NUMBER = 0x7FFFFFFF
_COMPARED_WITHIN_S = 5.0
_MOST_UNANSWERED = 64
"""Of one question's requests: a broker that nobody takes answers from reads no more, and two that
both only send would wait for ever.
"""


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
        """As was told, or found out with the last connection."""
        self._idle, self._maker = (
            idle_connections,
            Maker(host, port, client_id, generation, security),
        )
        self._may_be_other = is_release(generation)
        """Whether what fails may be that the broker is of another release than was told. It is
        asked once.
        """
        self._was_compared = False
        self._may_take = True
        """Whether a connection that was idle would do. One that broke is made anew."""
        self._open: tuple[Connection, BrokerProtocol] | None = None
        self._check_if_cut = BrokerProtocol.check_if_cut
        self._to_come = 0
        """Answers; where some are, nobody else can use the connection."""
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
        """Hang up, or leave the connection to whoever asks next in this process; the next request
        would connect again.
        """
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
        """What the broker understands."""
        return self._connected(self.deadline())[1]

    def ask(self, ask: Ask[Answer], *, may_repeat: bool = True) -> Answer:
        """The answer; asked once more where the connection broke before any byte of it, if it may
        be.
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
        first = (
            end_of(frames, _MOST_UNANSWERED) if request.answers > _MOST_UNANSWERED else len(frames)
        )
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
                    f"an answer to request {found} came where {number} was asked",
                    broker=self.address,
                )
            self._to_come -= 1
            return response

    def _receive_all(self, sent: Sent[Answer], deadline: float) -> memoryview:
        """Its one answer; of several, all of them, each behind its size."""
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
                    check=sent.request.check_if_cut,
                ) from None
            if sent.request.answers == 1:
                return answer
            answers += len(answer).to_bytes(4, "big") + answer
        return memoryview(answers)

    def _send_more(self, frames: memoryview, deadline: float) -> memoryview:
        """The next requests of a question, since those before them are answered; what is left."""
        if self._open is None:
            raise ConnectionBroken("no connection any more", answered=True)
        until = end_of(frames, _MOST_UNANSWERED)
        with Dropping(self._hang_up):
            self._open[0].send(frames[:until], deadline)
        return frames[until:]

    def read(self, request: Request[Answer], response: memoryview) -> Answer:
        """What the bytes say. Raises CorruptData."""
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
        check = broken.check or self._check_if_cut
        return self._explained(
            BrokerUnreachable(f"the connection broke {broken}", broker=self.address, check=check)
        )

    def _explained(self, failure: EtlError) -> EtlError:
        """The same; of a broker that was told to be of a release, and is of another one when it is
        asked itself, that it is.
        """
        if self._generation is None or not self._may_be_other:
            return failure
        self._may_be_other = False
        itself = self._itself()
        return itself and itself.is_not_of(self._generation) or failure

    def refuse_other_release(self, isolation: Isolation) -> None:
        """Ask a broker once what it is, within five seconds, where it was told to be of a release;
        one that does not say is what was told.

        Raises OtherRelease where it lacks what that release speaks, or would not keep the isolation
        if it is spoken to so.
        """
        if self._generation is None or self._was_compared or not is_release(self._generation):
            return
        self._was_compared, itself = True, self._itself()
        if itself and (other := itself.is_not_of(self._generation, isolation)):
            raise other

    def _itself(self) -> BrokerProtocol | None:
        """What the broker understands by its own word, or by what it does, whatever was told of it;
        None: neither is to be had now.
        """
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
        taken = (
            self._idle.take(self._maker)
            if self._open is None and self._idle is not None and self._may_take
            else None
        )
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
            self._open[1].check_if_cut,
        )
        return self._open

    def _next_number(self) -> int:
        self._last_number = (self._last_number + 1) & _MAX_NUMBER
        return self._last_number
