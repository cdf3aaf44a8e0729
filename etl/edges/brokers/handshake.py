"""How a connection to a broker begins: encryption, a login, the greeting, and how brokers show
themselves that are older than it.

What is sent and what an answer means is a generation's; the order of things is here. It ends with a
connection that is fit for use, or with the failure that says what the port may be. Nobody is taken
for an older broker than it is: such a one gives records out without what the formats of its time
lack, and nobody would notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from etl.edges.broken import ConnectionBroken
from etl.edges.brokers.connection import Connection, ImpossibleSize, hung_up, not_kafka, unanswered
from etl.edges.brokers.login import log_in, wanted_login
from etl.edges.brokers.sent import fresh
from etl.errors import BrokerUnreachable, EtlError
from etl.kafka.protocol import BrokerProtocol, Greeting, OlderBrokers
from etl.model.security import OPEN, Security

Greeted = tuple[Connection, BrokerProtocol]
_MAX_ANSWER_BYTES = 64 << 10
"""A real answer to a greeting is below 1 KiB; what is no broker may claim anything."""
_unanswering: set[tuple[str, int]] = set()
"""Addresses at which a greeting was left unanswered: nobody waits there for it again. Only a hint,
for it is proven each time.
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
        """A connection, and whom it leads to.

        Raises NotKafka for what answers otherwise or hangs up, BrokerUnreachable for what does not
        answer, CorruptData; and what `tls` and `login` say of the way in.
        """
        try:
            return self._greet_once(greeting, deadline)
        except ConnectionBroken:
            pass
        # A broker that is being restarted may do this once; an old one, and a port of something
        # else, do it again.
        try:
            found = (
                None
                if greeting.older is None
                else self._hung_up_on(greeting, greeting.older, deadline)
            )
            return found or self._greet_once(greeting, deadline)
        except ConnectionBroken as again:
            raise again.each_time or hung_up(
                self._address, str(again), greeting.check_if_cut
            ) from None

    def wanted_login(self, deadline: float) -> EtlError | None:
        """Of a broker that greets and then hangs up: the error where its listener wants a login
        that we have none for; else None.
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
        """Until when the greeting's answer is waited for. There must be time left for what is asked
        then.
        """
        is_known, now = (self._host, self._port) in _unanswering, time.monotonic()
        return now + (0 if is_known else min(older.patience_s, (deadline - now) / 2))

    def _hung_up_on(
        self, greeting: Greeting, older: OlderBrokers, deadline: float
    ) -> Greeted | None:
        """Of a broker that answers the older question; None: it hangs up on that too."""
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
        """A connection on which the question was answered; None: it was cut instead."""
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
        """As it may be asked anything."""
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
