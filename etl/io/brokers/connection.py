"""How does one TCP connection to a broker carry frames, and when is it reused?

Knows frames and deadlines, nothing of the protocol. A connection that raised is closed: after half
a response the next frame cannot be found.

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
from etl.kafka.protocol import BrokerProtocol, Request
from etl.model.plans import Requests
from etl.model.security import OPEN, Security


class ImpossibleSize(ValueError):
    """The first four bytes of a response are no acceptable size; `second`: the next four, of one
    that is too large.
    """

    def __init__(self, first: bytes, second: bytes = b"") -> None:
        super().__init__(f"first bytes {first!r}")
        self.first, self.second = first, second


_TLS = "handshake of TLS"
_SET_FOR_S = 0.25
"""For so long a time-out is not set anew while bytes come: a call that began under it may end so
much late.
"""


class Connection:
    """Frames to and from one address, encrypted if configured. Logins are elsewhere.

    Raises BrokerUnreachable after a deadline (`time.monotonic`) or a refused connect,
    ConnectionBroken, ImpossibleSize; with encryption as `tls`.
    """

    def __init__(self, host: str, port: int, deadline: float, security: Security = OPEN) -> None:
        self.address = f"{host}:{port}"
        self._socket = self._connect(host, port, deadline)
        self._ahead = b""
        """A byte that was read to see whether there is one."""
        self._met: OSError | None = None
        """What came instead of it."""
        self.renew_at = math.inf
        """`time.monotonic` value after which an idle connection is replaced, since its login ends
        soon (KIP-368).
        """
        if security.protocol.is_encrypted:
            try:
                self._socket.settimeout(self._left(deadline, _TLS))
                self._socket = tls.wrap(self._socket, host, security.tls, self.address)
            except TimeoutError:
                raise self._late(_TLS) from None

    def _connect(self, host: str, port: int, deadline: float) -> socket.socket:
        try:
            connected = socket.create_connection(
                (host, port), timeout=self._left(deadline, "connect")
            )
        except TimeoutError:
            raise self._late("connect") from None
        except (
            OSError,
            UnicodeError,
        ) as error:  # UnicodeError: what the brokers call this host is no host's name
            action = "Check that the broker runs, and that its host and port are right"
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                action = "Check how many files a process may open (ulimit -n): connections to brokers take up to half of them"
            message = f"No connection: {getattr(error, 'strerror', None) or error}"
            raise BrokerUnreachable(message, broker=self.address, action=action) from None
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connected

    def send(self, frame: bytes | memoryview, deadline: float) -> None:
        began = time.monotonic()
        try:
            self._socket.settimeout(self._left(deadline, "send"))
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
        """True if bytes, or the end of the connection, arrive before the deadline. Nothing is
        consumed.
        """
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while not self._has_ahead():
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
            if not isinstance(self._socket, ssl.SSLSocket):
                return True
        return True

    def _has_ahead(self) -> bool:
        """True if an encrypted connection has application bytes, or an end. Session tickets of TLS
        also make the socket readable.
        """
        if self._ahead or not isinstance(self._socket, ssl.SSLSocket):
            return bool(self._ahead)
        self._socket.settimeout(0)
        try:
            self._ahead = self._socket.recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            self._met = error
        return True

    def receive(
        self,
        deadline: float,
        room: Callable[[int], memoryview],
        *,
        max_bytes: int,
        least_bytes: int = 4,
    ) -> memoryview:
        """One response without its length; `room` gives the bytes to receive it into, once its size
        was checked.
        """
        first, began = bytearray(4), time.monotonic()
        self._fill(memoryview(first), deadline, answered=False)
        size = int.from_bytes(first, "big", signed=True)
        if not least_bytes <= size <= max_bytes:
            raise ImpossibleSize(bytes(first), self._second(deadline) if size > max_bytes else b"")
        into = room(size)
        self._fill(into, deadline, answered=True)
        REQUEST_METER.add(
            self.address, Requests(1, time.monotonic() - began, received_bytes=size + len(first))
        )
        return into

    def _second(self, deadline: float) -> bytes:
        """The number of the request that is answered; nothing where no more comes."""
        second = bytearray(4)
        try:
            self._fill(memoryview(second), deadline, answered=True)
        except (ConnectionBroken, BrokerUnreachable):
            return b""
        return bytes(second)

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """From another thread: a waiting call is told that the connection broke."""
        with contextlib.suppress(OSError):
            # Of an encrypted socket, too, the socket's own: ssl's would read what is still to come
            # as if nothing were encrypted.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _fill(self, into: memoryview, deadline: float, *, answered: bool) -> None:
        at = len(self._ahead)
        into[:at], self._ahead = self._ahead, b""
        set_until = 0.0
        while at < len(into):
            try:
                if time.monotonic() >= set_until:  # not for each 16 KiB of TLS: a system call each
                    self._socket.settimeout(self._left(deadline, "answer"))
                    set_until = min(deadline, time.monotonic() + _SET_FOR_S)
                if self._met is not None:
                    raise self._met
                got = self._socket.recv_into(into[at:])
            except TimeoutError:
                raise self._late("answer") from None
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
        return broken if answered else tls.refused(error, self.address) or broken

    def _left(self, deadline: float, doing: str) -> float:
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
"""The size of an answer that is an error code and nothing else. Jafka takes the greeting of Kafka
0.8 for a MultiFetch of nothing.
"""


def not_kafka(address: str, first: bytes) -> NotKafka:
    """Return the error for a port whose first response began with `first`."""
    if first.startswith((b"HTTP", b"<")):
        return NotKafka(
            "The port speaks HTTP, not Kafka",
            broker=address,
            action="Check the port: it may be a metrics, Connect or REST port of the same machine",
        )
    if first[:1] in (b"\x15", b"\x16") and first[1:2] == b"\x03":
        return NotKafka(
            "The port speaks TLS",
            broker=address,
            action="Set source.security.protocol: SSL, or SASL_SSL where there is a login",
        )
    if first == _NO_FETCH:
        return NotKafka(
            "The port speaks as Jafka and Kafka 0.7 do",
            broker=address,
            action="Set source.broker_type: jafka (of a ConsumerConfig, dialect). Such brokers are "
            "found in ZooKeeper, where they register, and not by an address",
        )
    return NotKafka(
        f"The port does not speak Kafka: its answer starts with {first!r}",
        broker=address,
        action="Check host and port",
    )


def hung_up(address: str, why: str, action: str) -> NotKafka:
    """The failure for a port that closes the connection on the very first request, twice."""
    return NotKafka(
        f"The connection was closed on the first request ({why})", broker=address, action=action
    )


def unanswered(late: BrokerUnreachable, first_request: str) -> BrokerUnreachable:
    """Return the error for a port that accepts the first request and does not answer."""
    return BrokerUnreachable(
        f"Connected, but the first request ({first_request}) got no answer",
        **late.where,
        action="Check the broker's load, and that the port is a Kafka listener: other servers may wait for more",
    )


def absurd(address: str, size: ImpossibleSize) -> CorruptData:
    """The failure for an impossible size on a connection that had spoken Kafka before."""
    return CorruptData(
        f"A response claims {int.from_bytes(size.first, 'big', signed=True)} bytes",
        broker=address,
        action="Check that nothing between here and the broker alters bytes",
    )


def outsized(
    address: str,
    size: ImpossibleSize,
    correlation_id: int,
    max_bytes: int,
    place: dict[str, object],
) -> EtlError:
    """Return the error for a fetch response that is too large. If it has our correlation id it is
    the broker's: only a record batch may exceed the requested size (KIP-74).
    """
    if int.from_bytes(size.second, "big", signed=True) != correlation_id or not size.second:
        return absurd(address, size)
    found = int.from_bytes(size.first, "big")
    message = f"A record batch is too large: the answer that it fills has {found:,} bytes, and at most {max_bytes:,} are taken"
    action = f"Check the topic's max.message.bytes, and the executors' memory: with a fetch limit of {found} bytes the record batch is read"
    return MessageTooLarge(message, action=action, broker=address, **place)


class Dropping:
    """Closes the connection when anything at all interrupts an exchange, Ctrl-C included: its bytes
    have lost their frame.
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
class Sent(Generic[Answer]):
    """A request that waits for its answer, and its number."""

    request: Request[Answer]
    number: int
    rest: memoryview
    """Bytes to send after responses have come."""
    is_answering: Callable[[float], bool]


def end_of(frames: memoryview, requests: int) -> int:
    """Return the end of the first requests, each of which has its size in front."""
    at = 0
    for _ in range(requests):
        if at < len(frames):
            at += 4 + int.from_bytes(frames[at : at + 4], "big")
    return at


def fresh(size: int) -> memoryview:
    """Room of its own for an answer."""
    return memoryview(bytearray(size))


class Maker(NamedTuple):
    """What equal connections have in common."""

    host: str
    port: int
    client_id: str
    generation: str | None
    """As configured."""
    security: Security
    """How it was entered, and as whom."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A connection between two uses, and what its next user must know."""

    connection: Connection
    dialect: BrokerProtocol
    last_number: int
    throttled_until: float
    """A `time.monotonic` moment before which the broker reads nothing from it."""
    since: float = field(default_factory=time.monotonic)


class IdleConnections:
    """Some connections, the newest given out first. For any threads.

    idle_s   how long one is kept
    most     how many are kept in all; the oldest makes room
    """

    def __init__(self, *, idle_s: float = 30.0, most: int = 32) -> None:
        self._idle_s, self._most = idle_s, most
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[Maker, Idle]] = deque()
        self._sweeper: threading.Timer | None = None

    def take(self, maker: Maker) -> Idle | None:
        """One that is fit for use; None: there is none."""
        while True:
            with self._lock:
                found = next((each for each in reversed(self._kept) if each[0] == maker), None)
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

    def give(self, maker: Maker, idle: Idle) -> None:
        """Keep it for the next one. Its giver uses it no more."""
        with self._lock:
            self._kept.append((maker, idle))
            crowded_out = self._kept.popleft()[1] if len(self._kept) > self._most else None
            self._sweep_later()
        if crowded_out is not None:
            crowded_out.connection.close()

    def close(self) -> None:
        """Hang up on all of them."""
        with self._lock:
            kept, self._kept = self._kept, deque()
        for _, idle in kept:
            idle.connection.close()

    def forget(self) -> None:
        """After a fork, in the child: close the parent's connections, which the brokers do not
        notice.
        """
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
        old = list[Idle]()
        with self._lock:
            self._sweeper = None
            while self._kept and time.monotonic() - self._kept[0][1].since >= self._idle_s:
                old.append(self._kept.popleft()[1])
            self._sweep_later()
        for idle in old:
            idle.connection.close()


IDLE_CONNECTIONS = IdleConnections()
"""Those of tasks."""
os.register_at_fork(after_in_child=IDLE_CONNECTIONS.forget)
