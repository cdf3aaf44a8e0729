"""A guarded port in front of a fake broker: TLS, a login by PLAIN, sessions that end. What real
ones do is proven in `tests/networks`.

Requests are decoded and answers encoded with kafka-python, as the fake broker's are.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from tests.fakes.broker import API_VERSIONS, FakeBroker
from tests.fakes.sockets import exactly

HANDSHAKE, AUTHENTICATE = 17, 36
WRONG, NO_SUCH, NONE_WANTED = 58, 33, 34
REFUSED = "Authentication failed: Invalid username or password"


class Guarded:
    """`with Guarded(broker, users={"etl": "secret"}) as port:`; without `users` there is no login,
    without `context` no encryption.

    lifetime_ms   of a login: after it the connection is closed with the next request, as a broker
    does (KIP-368) answers       a function that answers a login's tokens instead
    """

    def __init__(
        self,
        broker: FakeBroker,
        *,
        users: dict[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        lifetime_ms: int = 0,
        answers: Callable[[bytes], tuple[int, bytes, str | None]] | None = None,
        mechanisms: tuple[str, ...] = ("PLAIN",),
    ) -> None:
        self._broker, self._users, self._context, self.lifetime_ms = (
            broker,
            users,
            context,
            lifetime_ms,
        )
        self._answers, self._mechanisms = answers or self._plain, mechanisms
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open = list[socket.socket]()
        self.port: int = self._listening.getsockname()[1]
        self.ended_at = 0.0
        """Logins before this `time.monotonic` moment are over."""
        self.refuses = 0
        """So many of the next connections are closed after their first bytes."""
        self.resets = 0
        """So many of the next connections are reset after their first byte."""
        self.hangs_up = False
        """On every request but those for versions and logins."""
        self.logins = 0
        self.connections = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), contextlib.closing(connection):
            if self.resets:
                self.resets -= 1
                connection.recv(1)
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return
            if self.refuses:
                self.refuses -= 1
                connection.recv(1 << 16)  # unread bytes would make it a reset
                return
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            with (
                contextlib.closing(connection),
                socket.create_connection(("127.0.0.1", self._broker.port)) as to_broker,
            ):
                self._open.append(to_broker)
                self._speak(connection, to_broker)

    def _speak(self, connection: socket.socket, to_broker: socket.socket) -> None:
        is_in, ends, since = self._users is None, float("inf"), float("inf")
        while True:
            frame = _frame_from(connection)
            key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
            if time.monotonic() > ends or since < self.ended_at:
                return
            if key == API_VERSIONS:
                kind, known = (
                    ApiVersionsResponse.ApiVersion,
                    {**self._broker.versions, HANDSHAKE: (0, 1), AUTHENTICATE: (0, 2)},
                )
                keys = [
                    kind(api_key=one, min_version=least, max_version=most)
                    for one, (least, most) in known.items()
                ]
                _send(connection, frame, ApiVersionsResponse(error_code=0, api_keys=keys), version)
            elif key == HANDSHAKE:
                named = SaslHandshakeRequest.decode(frame, version=version, header=True).mechanism
                if self._users is None:
                    code = NONE_WANTED
                elif named in self._mechanisms:
                    code = 0
                else:
                    code = NO_SUCH
                _send(
                    connection,
                    frame,
                    SaslHandshakeResponse(error_code=code, mechanisms=list(self._mechanisms)),
                    version,
                )
            elif key == AUTHENTICATE:
                code, token, result = self._answers(
                    SaslAuthenticateRequest.decode(frame, version=version, header=True).auth_bytes
                )
                since = time.monotonic()
                is_in, self.logins = code == 0, self.logins + (code == 0)
                ends = time.monotonic() + self.lifetime_ms / 1000 if self.lifetime_ms else ends
                _send(
                    connection,
                    frame,
                    SaslAuthenticateResponse(
                        error_code=code,
                        error_message=result,
                        auth_bytes=token,
                        session_lifetime_ms=self.lifetime_ms,
                    ),
                    version,
                )
            elif not is_in or self.hangs_up:
                return
            else:
                to_broker.sendall(len(frame).to_bytes(4, "big") + frame)
                answer = _frame_from(to_broker)
                connection.sendall(len(answer).to_bytes(4, "big") + answer)

    def _plain(self, token: bytes) -> tuple[int, bytes, str | None]:
        _, name, password = token.decode().split("\0")
        is_right = (self._users or {}).get(name) == password
        return (0, b"", None) if is_right else (WRONG, b"", f"{REFUSED} by {password}")


def _frame_from(connection: socket.socket) -> bytes:
    return exactly(connection, int.from_bytes(exactly(connection, 4), "big"))


def _send(connection: socket.socket, request: bytes, response: Any, version: int) -> None:
    response.API_VERSION = version
    response.with_header(int.from_bytes(request[4:8], "big"))
    connection.sendall(bytes(response.encode(header=True, framed=True)))
