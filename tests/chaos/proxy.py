"""A small TCP proxy in front of a real broker, which damages some of its answers.

It splits the traffic into Kafka's frames (four bytes of length, then that many; a request starts
with its api key), so that a case can choose which answers are damaged, how, and how often. A client
must wait for each answer before its next request, as `SimpleConsumer` does. `ProxiedCluster` is a
cluster whose broker has a second listener, known by the proxy's address only: the pipeline uses
that one, all other clients connect to the broker.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from etl.testkit.brokers import Kafka
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST, free_port
from tests.fakes.sockets import read_frame

FETCH, METADATA, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP = (
    1,
    3,
    2,
    8,
    9,
    11,
    13,
    14,
)
_LINGER_NOT = struct.pack("ii", 1, 0)

Spoil = Callable[["Link", bytes], bool]
"""Forwards (or not) one whole answer, length included; returns True if the connection stays open.
"""


class Proxy:
    """`with Proxy() as proxy`: forwards `proxy.port` to `proxy.target` once that is set."""

    def __init__(self) -> None:
        self.target = 0
        """The broker's port on 127.0.0.1."""
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._order = threading.Condition()
        self._spoiling: _Spoiling | None = None
        self._links: set[Link] = set()
        self._ended = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name=f"proxy {self.port}", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.heal()

    def spoil(
        self, spoil: Spoil, *, api: int | None = FETCH, after: int = 0, times: int | None = None
    ) -> None:
        """Spoil `times` answers to `api` (None: all) after `after` of them."""
        with self._order:
            self._spoiling = _Spoiling(spoil, api, after, times)

    def heal(self) -> None:
        """Damage nothing any more, and close connections that still wait for a damaged answer."""
        with self._order:
            self._spoiling, links = None, list(self._links)
        for link in links:
            link.close()

    @property
    def spoiled(self) -> int:
        """How many answers were, since the last `spoil`."""
        with self._order:
            return self._spoiling.count if self._spoiling else 0

    def how(self, api: int) -> Spoil:
        """What becomes of the next answer to a request of this kind."""
        with self._order:
            return self._spoiling.next(api) if self._spoiling else passed

    def forget(self, link: Link) -> None:
        with self._order:
            self._links.discard(link)

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            link = Link(self, client)
            with self._order:
                self._links.add(link)
            threading.Thread(
                target=link.run, name=f"link of proxy {self.port}", daemon=True
            ).start()


class Link:
    """One client's connection and the one to the broker that it is passed on to."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy, self.client = proxy, client
        self.closed = threading.Event()
        """Set when no client waits for an answer here any more."""
        self._broker: socket.socket | None = None

    def run(self) -> None:
        """One request and its answer after the other, until either side hangs up."""
        with contextlib.suppress(OSError):
            self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._broker = socket.create_connection((HOST, self._proxy.target), timeout=60)
            while self._pass_on(self._broker):
                pass
        self.close()
        self._proxy.forget(self)

    def _pass_on(self, broker: socket.socket) -> bool:
        request = read_frame(self.client)
        if request is None:
            return False
        broker.sendall(request)
        answer = read_frame(broker)
        if answer is None:
            return False
        return self._proxy.how(int.from_bytes(request[4:6], "big"))(self, answer)

    def wait(self, seconds: float) -> bool:
        """True if the client is still there after that time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self.closed.is_set():
            self.client.settimeout(min(left, 0.2))
            with contextlib.suppress(TimeoutError):
                if not self.client.recv(1, socket.MSG_PEEK):
                    return False
                self.closed.wait(min(left, 0.2))
        self.client.settimeout(None)
        return not self.closed.is_set()

    def close(self) -> None:
        self.closed.set()
        for one in (self.client, self._broker):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()


@dataclass
class _Spoiling:
    """A request of `Proxy.spoil`, and its progress."""

    spoil: Spoil
    api: int | None
    after: int
    times: int | None
    count: int = 0

    def next(self, api: int) -> Spoil:
        if self.api not in (None, api) or (self.times is not None and self.count >= self.times):
            return passed
        if self.after > 0:
            self.after -= 1
            return passed
        self.count += 1
        return self.spoil


def passed(link: Link, answer: bytes) -> bool:
    link.client.sendall(answer)
    return True


def in_pieces(size: int, pause_s: float) -> Spoil:
    """`size` bytes at a time with a pause after each."""

    def spoil(link: Link, answer: bytes) -> bool:
        for at in range(0, len(answer), size):
            link.client.sendall(answer[at : at + size])
            if link.closed.wait(pause_s):
                return False
        return True

    return spoil


def delayed(seconds: float) -> Spoil:
    return lambda link, answer: link.wait(seconds) and passed(link, answer)


def gated(go: threading.Event) -> Spoil:
    """Whole, once `go` is set."""

    def spoil(link: Link, answer: bytes) -> bool:
        while not go.wait(0.05):
            if link.closed.is_set():
                return False
        return passed(link, answer)

    return spoil


def stalled(part: float) -> Spoil:
    """Send the first part of it (0 to 1), and then nothing as long as the client waits."""

    def spoil(link: Link, answer: bytes) -> bool:
        link.client.sendall(answer[: int(len(answer) * part)])
        while link.wait(60):
            pass
        return False

    return spoil


def cut(part: float) -> Spoil:
    """The first part of it, and then the end of the connection, in order (FIN)."""

    def spoil(link: Link, answer: bytes) -> bool:
        link.client.sendall(answer[: int(len(answer) * part)])
        return False

    return spoil


def reset(part: float) -> Spoil:
    """The first part of it, and then RST."""

    def spoil(link: Link, answer: bytes) -> bool:
        link.client.sendall(answer[: int(len(answer) * part)])
        link.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        link.client.close()
        return False

    return spoil


class ProxiedCluster(EmbeddedCluster):
    """A cluster of one broker with a second listener that clients can only reach through `proxy`."""

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(folder=folder)
        self.proxy = Proxy()
        port, direct_port = self.brokers[0].port, free_port()
        self.proxy.target = direct_port
        self.brokers = [
            Kafka(
                zookeeper=self.zookeeper.connect,
                folder=self.folder / "kafka-0",
                port=port,
                properties={
                    "listeners": f"DIRECT://{HOST}:{port},PROXIED://{HOST}:{direct_port}",
                    "advertised.listeners": f"DIRECT://{HOST}:{port},PROXIED://{HOST}:{self.proxy.port}",
                    "listener.security.protocol.map": "DIRECT:PLAINTEXT,PROXIED:PLAINTEXT",
                    "inter.broker.listener.name": "DIRECT",
                    **(properties or {}),
                },
            )
        ]

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self.proxy.__exit__(kind, error, trace)
