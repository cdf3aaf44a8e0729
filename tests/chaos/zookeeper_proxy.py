"""A TCP proxy in front of one ZooKeeper that breaks the connection in the middle of a chosen
request.

Owns ZooKeeper's framing as far as that takes: four bytes of length, then a request's xid and
operation (jute's RequestHeader), and the xid of an answer (ReplyHeader). What comes of it is the
cases' affair.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Any, Self

from etl.testkit.server_process import HOST
from tests.chaos.stage import Stage
from tests.fakes.sockets import read_frame
from tests.system.driving import Pipeline

MULTI, CREATE, CREATE2, SET_DATA, DELETE = 14, 1, 15, 5, 2
_HEADER = struct.Struct(">ii")


class Lost(str, Enum):
    REQUEST = "request"
    ANSWER = "answer"
    """The server has executed the request."""


Chosen = Callable[[int, bytes], bool]
"""Whether it is this request: (operation, the whole frame)."""


class ZooKeeperProxy:
    """After `lose` the next request that is chosen, and only that one, is broken."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listening = socket.create_server((HOST, 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._lost: Lost | None = None
        self._chosen: Chosen = lambda operation, frame: False
        self.happened = threading.Event()

    @property
    def connect(self) -> str:
        return f"{HOST}:{self._listening.getsockname()[1]}"

    def lose(self, lost: Lost, chosen: Chosen) -> None:
        """Break the connection at the next chosen request."""
        with self._lock:
            self._lost, self._chosen = lost, chosen
            self.happened.clear()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut()

    def cut(self) -> None:
        """Close all connections, and accept no more."""
        _hang_up(self._listening, *self._open)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection((HOST, self._server_port), timeout=10)
                except OSError:  # it is down: so are we
                    _hang_up(client)
                    continue
                server.settimeout(None)
                self._open += [client, server]
                pair = _Pair(client, server)
                threading.Thread(target=self._requests, args=(pair,), daemon=True).start()
                threading.Thread(target=pair.answers, daemon=True).start()

    def _requests(self, pair: _Pair) -> None:
        first = True  # the session's request has no header
        while (frame := read_frame(pair.client)) is not None:
            xid, operation = (
                _HEADER.unpack_from(frame, 4) if not first and len(frame) >= 12 else (0, 0)
            )
            lost = None if first else self._take(operation, frame)
            first = False
            if lost is Lost.REQUEST:
                break
            if lost is Lost.ANSWER:
                pair.broken_at = xid
            try:
                pair.server.sendall(frame)
            except OSError:
                break
        _hang_up(pair.client, pair.server)

    def _take(self, operation: int, frame: bytes) -> Lost | None:
        with self._lock:
            if self._lost is None or not self._chosen(operation, frame):
                return None
            lost, self._lost = self._lost, None
            self.happened.set()
            return lost


def proxied(stage: Stage, **settings: Any) -> tuple[Pipeline, ZooKeeperProxy]:
    """A pipeline that reaches its ZooKeeper by a proxy, with a short session."""
    cluster = stage.cluster
    proxy = stage.at_end.enter_context(ZooKeeperProxy(cluster.zookeeper.port))
    _, _, chroot = cluster.zookeeper_connect.partition("/")
    zookeeper = {"connect": f"{proxy.connect}/{chroot}", "session_timeout_s": 6}
    # a session that was not closed keeps the driver lock until its timeout, and its process may be
    # this one
    return stage.pipeline(zookeeper=zookeeper, ledger={"lock_timeout_s": 30}, **settings), proxy


class _Pair:
    """One client's connection and ours to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.broken_at: int | None = None
        """The xid whose answer is dropped."""

    def answers(self) -> None:
        """Pass answers on until the one that is lost."""
        while (frame := read_frame(self.server)) is not None:
            if (
                self.broken_at is not None
                and struct.unpack_from(">i", frame, 4)[0] == self.broken_at
            ):
                break
            try:
                self.client.sendall(frame)
            except OSError:
                break
        _hang_up(self.client, self.server)


def _hang_up(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
