"""Sessions of kazoo's over TLS: the handshake, the host's name, and what went wrong, by the rules
of connections to brokers.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import AuthFailedError
from kazoo.handlers.threading import SequentialThreadingHandler

from etl.edges import tls
from etl.edges.broken import ConnectionBroken
from etl.errors import EtlError
from etl.model.security import Tls


class Encrypting(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, whose connections begin with a handshake that checks the host's name.

    kazoo itself tells nothing of a handshake that failed, but for the time that ran out.
    """

    def __init__(self, settings: Tls, servers: int) -> None:
        super().__init__()
        self._settings, self._servers = settings, servers
        self._refused: dict[object, EtlError] = {}
        self._hosts: dict[object, str] = {}
        self._broke: set[object] = set()
        self._had_one = False

    @property
    def refusal(self) -> EtlError | None:
        """Why the last handshake failed."""
        return next(reversed(self._refused.values()), None)

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: object = None,
        timeout: float | None = None,
        **_: Any,
    ) -> socket.socket:
        """Raises OSError, upon which kazoo tries the next server; AuthFailedError, upon which it
        ends, where each has refused and none ever was entered."""
        if isinstance(
            hostname, str
        ):  # for a server's own commands kazoo names its port (client.py, `command`)
            self._hosts[address] = hostname
        host = self._hosts.get(address, address[0])
        within_s = (
            None if timeout is None else timeout / self._servers
        )  # one that says nothing leaves time for the others
        connected = socket.create_connection(address, within_s)
        try:
            wrapped = self._wrapped(connected, host, address)
        except EtlError as refusal:
            self._refused[address] = refusal
            if len(self._refused) >= self._servers and not self._had_one:
                raise AuthFailedError(str(refusal)) from refusal
            raise OSError(str(refusal)) from refusal
        wrapped.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._had_one = True
        return wrapped

    def _wrapped(
        self, connected: socket.socket, host: str, address: tuple[str, int]
    ) -> ssl.SSLSocket:
        try:
            return tls.wrap(connected, host, self._settings, f"{host}:{address[1]}", tls.ZOOKEEPER)
        except ConnectionBroken as broken:
            if broken.each_time is not None and address in self._broke:
                raise broken.each_time from None
            self._broke.add(address)
            raise

    def select(
        self,
        read: Sequence[Any],
        write: Sequence[Any],
        other: Sequence[Any],
        timeout: float | None = None,
    ) -> Any:
        """What was decrypted and not read yet counts: the socket itself has no more of it, and
        kazoo would wait for its next heartbeat.
        """
        decrypted = [one for one in read if isinstance(one, ssl.SSLSocket) and one.pending()]
        ready, writable, odd = super().select(read, write, other, 0 if decrypted else timeout)
        return [*decrypted, *(one for one in ready if one not in decrypted)], writable, odd
