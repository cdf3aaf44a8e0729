"""How does one TCP connection to a broker carry frames, and when is it reused?

Lives here: frames, deadlines, and the errors for a port that does not speak Kafka. Not here: the
protocol (etl/io/brokers/exchange.py, etl/kafka).

A connection that raised is closed: after half a response the next frame cannot be found.

Idle connections are kept for the next task of the same process, because each task would begin with
a connect and a handshake per broker. A connection is reused only if:

- the broker has not closed it and no unexpected bytes arrived;
- its login does not end soon;
- it was idle for less than `idle_s`: brokers and firewalls close idle connections silently;
- the process was not forked since: two processes would read each other's responses;
- all its responses have arrived (`Exchange`), and address, client id, broker type and login match.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

from etl.errors import BrokerUnreachable, CorruptData, EtlError, MessageTooLarge, NotKafka
from etl.io import tls
from etl.io.process import REQUEST_METER
from etl.io.tls import ConnectionBroken
from etl.kafka.broker_type_interface import BrokerProtocol, Request
from etl.model.plans import Requests
from etl.model.security import OPEN, Security
from etl.settings.choices import MAX_BATCH_BYTES_MOST


class ImpossibleSize(ValueError):
    """The first four bytes of a response are no acceptable size.

    `second`: the next four bytes, if the size is too large.
    """

    def __init__(self, first: bytes, second: bytes = b"") -> None:
        super().__init__(f"first bytes {first!r}")
        self.first = first
        self.second = second


class ResponseCut(Exception):
    """The deadline passed inside a response, whose bytes arrived too slowly to renew it.

    `arrived`: the bytes before the cut.
    """

    def __init__(self, arrived: memoryview, size: int, seconds: float) -> None:
        super().__init__(f"{len(arrived):,} of {size:,} bytes arrived in {seconds:.1f} s")
        self.arrived = arrived


CHECK_BROKER_RUNS = "Check that the broker runs, and that its host and port are right"
CHECK_NAME = (
    "Check where the name comes from: source.bootstrap_servers, or the broker's own"
    " advertised.listeners, which ZooKeeper and the brokers report. Let it resolve here (DNS,"
    " /etc/hosts), or set source.listener to a listener whose name does"
)
_TLS = "handshake of TLS"
_LEAST_BYTES_PER_S = 8 << 10
"""The bytes of a response that arrive at this rate or faster renew its deadline.

A slow line is waited for; a broker that sends a byte now and then is not.
"""
_TIMEOUT_KEPT_S = 0.25
"""For so long a socket timeout is not renewed while bytes arrive.

A call may end so much after its deadline.
"""


class Connection:
    """Frames to and from one address, encrypted if configured. Logins are elsewhere.

    Raises BrokerUnreachable after a deadline (`time.monotonic`) or a refused connect,
    ConnectionBroken, ImpossibleSize, ResponseCut; with encryption as `tls`.
    """

    def __init__(self, host: str, port: int, deadline: float, security: Security = OPEN) -> None:
        self.address = f"{host}:{port}"
        self._socket = self._connect(host, port, deadline)
        self._read_ahead = b""
        """A byte that was read to detect whether there is one."""
        self._read_ahead_error: OSError | None = None
        """The error of that read."""
        self.renew_at = math.inf
        """`time.monotonic` value after which the connection is replaced when nothing is in flight.

        Its login ends soon then (KIP-368).
        """
        if security.protocol.is_encrypted:
            try:
                self._socket.settimeout(self._time_left(deadline, _TLS))
                self._socket = tls.wrap(self._socket, host, security.tls, self.address)
            except TimeoutError:
                raise self._late(_TLS) from None

    def _connect(self, host: str, port: int, deadline: float) -> socket.socket:
        try:
            connected = socket.create_connection(
                (host, port), timeout=self._time_left(deadline, "connect")
            )
        except TimeoutError:
            raise self._late("connect") from None
        except (OSError, UnicodeError) as error:
            message = f"No connection: {getattr(error, 'strerror', None) or error}"
            action = CHECK_BROKER_RUNS
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                action = (
                    "Check how many files a process may open (ulimit -n): connections to brokers"
                    " take up to half of them"
                )
            elif isinstance(error, socket.gaierror | UnicodeError):
                message = f"{message}: this machine does not know the name {host}"
                action = CHECK_NAME
            raise BrokerUnreachable(message, broker=self.address, action=action) from None
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connected

    def send(self, frame: bytes | memoryview, deadline: float) -> None:
        began = time.monotonic()
        try:
            self._socket.settimeout(self._time_left(deadline, "send"))
            self._socket.sendall(frame)
        except TimeoutError:
            raise self._late("send") from None
        except ssl.SSLError as error:
            raise self._broken(error, "while sending", answered=False) from None
        except OSError as error:
            raise ConnectionBroken(
                f"while sending: {error.strerror or error}", answered=False
            ) from None
        REQUEST_METER.add(
            self.address, Requests(seconds=time.monotonic() - began, sent_bytes=len(frame))
        )

    def is_answering(self, deadline: float) -> bool:
        """True if bytes, or the end of the connection, arrive before the deadline.

        Nothing is consumed.
        """
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while not self._has_bytes():
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
            if not isinstance(self._socket, ssl.SSLSocket):
                return True
        return True

    def _has_bytes(self) -> bool:
        """True if an encrypted connection has application bytes, or an end.

        Session tickets of TLS also make the socket readable.
        """
        if self._read_ahead or not isinstance(self._socket, ssl.SSLSocket):
            return bool(self._read_ahead)
        self._socket.settimeout(0)
        try:
            self._read_ahead = self._socket.recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            self._read_ahead_error = error
        return True

    def receive(
        self,
        deadline: float,
        room: Callable[[int], memoryview],
        *,
        max_bytes: int,
        least_bytes: int = 4,
        renewed_by_s: float = 0.0,
    ) -> memoryview:
        """Return one response without its length; `room` returns the buffer for a checked size.

        If the response has begun at the deadline, and arrives fast enough, it gets `renewed_by_s`
        more, again and again.
        """
        first = bytearray(4)
        began = time.monotonic()
        self._fill(memoryview(first), deadline, answered=False)
        size = int.from_bytes(first, "big", signed=True)
        if size > max_bytes:
            raise ImpossibleSize(bytes(first), self._correlation_id(deadline))
        if size < least_bytes:
            raise ImpossibleSize(bytes(first))
        into = room(size)
        self._fill(into, deadline, answered=True, renewed_by_s=renewed_by_s)
        REQUEST_METER.add(
            self.address, Requests(1, time.monotonic() - began, received_bytes=size + len(first))
        )
        return into

    def _correlation_id(self, deadline: float) -> bytes:
        """Return the correlation id of the response; empty if no more bytes arrive."""
        second = bytearray(4)
        try:
            self._fill(memoryview(second), deadline, answered=True)
        except (ConnectionBroken, BrokerUnreachable):
            return b""
        return bytes(second)

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """Make a call that waits in another thread raise ConnectionBroken."""
        with contextlib.suppress(OSError):
            # The plain socket's shutdown, also of an encrypted one: after that of ssl the remaining
            # bytes would be read without decryption.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _fill(
        self, into: memoryview, deadline: float, *, answered: bool, renewed_by_s: float = 0.0
    ) -> None:
        at = len(self._read_ahead)
        into[:at] = self._read_ahead
        self._read_ahead = b""
        began = time.monotonic()
        measured_from, measured_at = began, 0
        set_until = 0.0
        while at < len(into):
            # Not for each 16 KiB of TLS: it is a system call.
            now = time.monotonic()
            if now >= set_until:
                if now >= deadline:
                    if not renewed_by_s:
                        raise self._late("answer")
                    arrived = at - measured_at
                    if arrived <= _LEAST_BYTES_PER_S * (now - measured_from):
                        raise ResponseCut(into[:at], len(into), now - began)
                    deadline = now + renewed_by_s
                    measured_from, measured_at = now, at
                self._socket.settimeout(deadline - now)
                set_until = min(deadline, now + _TIMEOUT_KEPT_S)
            try:
                if self._read_ahead_error is not None:
                    raise self._read_ahead_error
                got = self._socket.recv_into(into[at:])
            except TimeoutError as error:
                if error.errno is not None:  # ETIMEDOUT of the network, not our own timeout
                    raise ConnectionBroken(
                        f"after {at} bytes of {len(into)}: {error.strerror or error}",
                        answered=answered or at > 0,
                    ) from None
                set_until = 0.0
                continue
            except ssl.SSLError as error:
                raise self._broken(
                    error, f"after {at} bytes of {len(into)}", answered=answered or at > 0
                ) from None
            except OSError as error:
                raise ConnectionBroken(
                    f"after {at} bytes of {len(into)}: {error.strerror or error}",
                    answered=answered or at > 0,
                ) from None
            if got == 0:
                raise ConnectionBroken(
                    f"closed by the other side after {at} bytes of {len(into)}",
                    answered=answered or at > 0,
                )
            at += got

    def _broken(
        self, error: ssl.SSLError, when: str, *, answered: bool
    ) -> EtlError | ConnectionBroken:
        broken = ConnectionBroken(
            f"{when}: {error.reason or error.strerror or error}", answered=answered
        )
        if answered:
            return broken
        return tls.refused(error, self.address) or broken

    def _time_left(self, deadline: float, doing: str) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._late(doing)
        return left

    def _late(self, doing: str) -> BrokerUnreachable:
        if doing == _TLS:
            listener = "a listener of TLS (source.security.protocol)"
        else:
            listener = "a Kafka listener"
        return BrokerUnreachable(
            f"The deadline passed (waiting for: {doing})",
            broker=self.address,
            action=f"Check the network, the broker's load, and that the port is {listener}",
        )


_NO_FETCH = b"\0\0\0\2"
"""The size of a response that is an error code only.

Jafka takes the handshake of Kafka 0.8 for an empty MultiFetch.
"""


def not_kafka(address: str, first: bytes) -> NotKafka:
    """Return the error for a port whose first response began with `first`."""
    if first.startswith((b"HTTP", b"<")):
        return NotKafka(
            "The port speaks HTTP, not Kafka",
            broker=address,
            action="Check the port in source.bootstrap_servers: it may be a metrics, Connect or"
            " REST port of the same machine",
        )
    if first[:1] in (b"\x15", b"\x16") and first[1:2] == b"\x03":
        return NotKafka(
            "The port speaks TLS",
            key="source.security.protocol",
            broker=address,
            action="Set source.security.protocol: SSL, or SASL_SSL where there is a login",
        )
    if first == _NO_FETCH:
        return NotKafka(
            "The port speaks as Jafka and Kafka 0.7 do",
            broker=address,
            action="Set source.broker_type: jafka (of a Consumer, broker_type). Such brokers are"
            " found in ZooKeeper, where they register, and not by an address",
        )
    return NotKafka(
        f"The port does not speak Kafka: its answer starts with {first!r}",
        broker=address,
        action="Check host and port in source.bootstrap_servers, or in the broker's own"
        " advertised.listeners",
    )


def closed_on_first_request(address: str, why: str, action: str) -> NotKafka:
    """Return the error for a port that closes the connection on the first request, twice."""
    return NotKafka(
        f"The connection was closed on the first request ({why})",
        key="source.security.protocol",
        broker=address,
        action=action,
    )


def no_first_answer(late: BrokerUnreachable, first_request: str) -> BrokerUnreachable:
    """Return the error for a port that accepts the first request and does not answer."""
    return BrokerUnreachable(
        f"Connected, but the first request ({first_request}) got no answer",
        **late.where,
        action="Check the broker's load, and that the port is a Kafka listener: other servers may"
        " wait for more",
    )


def impossible_size(address: str, size: ImpossibleSize) -> CorruptData:
    """Return the error for an impossible size on a connection that spoke Kafka before."""
    return CorruptData(
        f"A response claims {int.from_bytes(size.first, 'big', signed=True)} bytes",
        broker=address,
        action="Check that nothing between here and the broker alters bytes",
    )


def response_cut(address: str, cut: ResponseCut, *, is_fetch: bool = False) -> BrokerUnreachable:
    """Return the error for a response that did not arrive before its deadline."""
    action = "Check the network. For a slow line raise source.request_timeout_s"
    if is_fetch:
        action += ", or lower source.fetch_max_bytes"
    return BrokerUnreachable(
        f"The response did not arrive in time: {cut}", broker=address, action=action
    )


def response_too_large(
    address: str,
    size: ImpossibleSize,
    correlation_id: int,
    max_bytes: int,
    place: dict[str, object],
) -> EtlError:
    """Return the error for a fetch response that is too large.

    If it has our correlation id it is the broker's: only a record batch may exceed the requested
    size (KIP-74). No conf allows more than `MAX_BATCH_BYTES_MOST`.
    """
    is_ours = size.second and int.from_bytes(size.second, "big", signed=True) == correlation_id
    if not is_ours or int.from_bytes(size.first, "big") > MAX_BATCH_BYTES_MOST:
        return impossible_size(address, size)
    found = int.from_bytes(size.first, "big")
    return MessageTooLarge(
        f"A record batch is too large: the response that it fills has {found:,} bytes, and the"
        f" limit is {max_bytes:,}",
        action="Compare the size with the topic's max.message.bytes: if no batch can be as large,"
        " something between here and the broker alters bytes. For such batches raise"
        " source.max_batch_bytes, and check the executors' memory",
        broker=address,
        **place,
    )


class CloseOnError:
    """Context manager that closes the connection on any exception, Ctrl-C included.

    The position in the stream of frames is lost then.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._close()


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class SentRequest(Generic[Answer]):
    """A request without a response yet, and its correlation id."""

    request: Request[Answer]
    number: int
    rest: memoryview
    """Frames to send after earlier ones are answered."""
    is_answering: Callable[[float], bool]


def end_of_requests(frames: memoryview, requests: int) -> int:
    """Return the end of the first requests; each frame begins with its size."""
    at = 0
    for _ in range(requests):
        if at < len(frames):
            at += 4 + int.from_bytes(frames[at : at + 4], "big")
    return at


def new_buffer(size: int) -> memoryview:
    """Return a buffer for one response."""
    return memoryview(bytearray(size))


class ConnectionKey(NamedTuple):
    """The properties that a reused connection must have."""

    host: str
    port: int
    client_id: str
    broker_type: str | None
    """As configured."""
    security: Security
    """Encryption and login."""


@dataclass(frozen=True, slots=True)
class IdleConnection:
    """A connection between two uses, with the state that its next user needs."""

    connection: Connection
    dialect: BrokerProtocol
    last_number: int
    throttled_until: float
    """`time.monotonic` value before which the broker reads nothing from it."""
    since: float = field(default_factory=time.monotonic)


class IdleConnections:
    """A pool of idle connections, the newest reused first. Thread-safe.

    idle_s   how long a connection is kept
    most     how many are kept in all; beyond it the oldest is closed
    """

    def __init__(self, *, idle_s: float = 30.0, most: int = 32) -> None:
        self._idle_s = idle_s
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[ConnectionKey, IdleConnection]] = deque()
        self._sweeper: threading.Timer | None = None

    def take(self, key: ConnectionKey) -> IdleConnection | None:
        """Return a usable connection and remove it from the pool; None: there is none."""
        while True:
            with self._lock:
                found = self._newest(key)
                if found is None:
                    return None
                self._kept.remove(found)
            idle = found[1]
            now = time.monotonic()
            if (
                now - idle.since < self._idle_s
                and now < idle.connection.renew_at
                and not idle.connection.is_answering(0)
            ):
                return idle
            idle.connection.close()

    def _newest(self, key: ConnectionKey) -> tuple[ConnectionKey, IdleConnection] | None:
        for kept in reversed(self._kept):
            if kept[0] == key:
                return kept
        return None

    def give(self, key: ConnectionKey, idle: IdleConnection) -> None:
        """Add a connection to the pool. The caller may not use it any more."""
        oldest: IdleConnection | None = None
        with self._lock:
            self._kept.append((key, idle))
            if len(self._kept) > self._most:
                oldest = self._kept.popleft()[1]
            self._sweep_later()
        if oldest is not None:
            oldest.connection.close()

    def close(self) -> None:
        """Close all connections of the pool."""
        with self._lock:
            kept = self._kept
            self._kept = deque()
        for _, idle in kept:
            idle.connection.close()

    def forget(self) -> None:
        """Close the parent's connections in a forked child; the brokers do not notice that."""
        kept = self._kept
        self._begin()
        for _, idle in kept:
            idle.connection.close()

    def __len__(self) -> int:
        return len(self._kept)

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._kept:
            left_s = self._kept[0][1].since + self._idle_s - time.monotonic()
            self._sweeper = threading.Timer(max(0.0, left_s), self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        old: list[IdleConnection] = []
        with self._lock:
            self._sweeper = None
            while self._kept and time.monotonic() - self._kept[0][1].since >= self._idle_s:
                old.append(self._kept.popleft()[1])
            self._sweep_later()
        for idle in old:
            idle.connection.close()


IDLE_CONNECTIONS = IdleConnections()
"""The pool of the tasks of this process."""
os.register_at_fork(after_in_child=IDLE_CONNECTIONS.forget)
