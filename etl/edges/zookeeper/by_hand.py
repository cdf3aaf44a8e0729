"""The beginning of a session with one server, by hand: what kazoo does not tell of a server that
lets nobody in, and what it grants.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator

from kazoo.protocol.serialization import Connect

from etl.edges import tls
from etl.edges.broken import ConnectionBroken
from etl.errors import EtlError, SettingsError
from etl.model.security import Access

LOOKED_AT_S = 2.0
"""For so long servers are asked once more by hand, where kazoo was not let in and cannot tell why.
"""
_CLOSE_SESSION = struct.pack(">iii", 8, 1, -11)
_HANDSHAKE_SIZES = (36, 37)
"""Without and with the flag for read-only servers."""
_MOST_BYTES = 1 << 16


class NoHandshake(Exception):
    """The server is no ZooKeeper, or does not take sessions now."""


class HungUp(NoHandshake):
    """It closed the connection without a word."""


def srvr(host: str, port: int, access: Access, timeout_s: float) -> str:
    """What it says of itself; nothing where it does not answer that (4lw.commands.whitelist).
    Raises as `granted_ms`.
    """
    with _connected(host, port, access, timeout_s) as connection, _telling(f"{host}:{port}"):
        connection.sendall(b"srvr")
        with connection.makefile("rb") as answer:
            return answer.read(_MOST_BYTES).decode("utf-8", "replace")


def granted_ms(host: str, port: int, access: Access, *, asked_ms: int, timeout_s: float) -> int:
    """The timeout of a session that is closed at once, and without a login.

    Raises OSError and NoHandshake, and what `tls` says of the way in: SettingsError and
    PermissionRefused.
    """
    frame = Connect(0, 0, asked_ms, 0, b"\0" * 16, False).serialize()
    with _connected(host, port, access, timeout_s) as connection, _telling(f"{host}:{port}"):
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as answer:
            said = answer.read(4)
            size = int.from_bytes(said, "big")
            if said and size not in _HANDSHAKE_SIZES:
                raise NoHandshake(f"its answer starts with {said!r}, which is not ZooKeeper's")
            answered = answer.read(size)
            granted = (
                Connect.deserialize(answered, 0)[0] if size and len(answered) == size else None
            )
        if not said:
            raise HungUp("it hangs up (a server without a quorum does)")
        if granted is None or granted.time_out <= 0:
            raise NoHandshake("it hangs up (a server without a quorum does)")
        connection.sendall(_CLOSE_SESSION)
        return int(granted.time_out)


def why_shut(host: str, port: int, access: Access, timeout_s: float) -> EtlError | None:
    """What of the way in is wrong; None: nothing that this server tells."""
    try:
        granted_ms(host, port, access, asked_ms=0, timeout_s=timeout_s)
    except EtlError as error:
        return error
    except (OSError, NoHandshake) as error:
        return of_encryption(error, host, port, access, timeout_s)
    return None


def of_encryption(
    error: OSError | NoHandshake, host: str, port: int, access: Access, timeout_s: float
) -> EtlError | None:
    """What it is where a server hangs up on whoever does not encrypt, or waits for more of what it
    takes for a handshake; None: it does so for another reason."""
    if access.tls is None and isinstance(
        error, HungUp | ConnectionResetError | BrokenPipeError | TimeoutError
    ):
        if _speaks_tls(host, port, min(timeout_s, LOOKED_AT_S)):
            check = "zookeeper.tls.enabled: true where the system's authorities are trusted, else zookeeper.tls.ca_file; or the port"
            return SettingsError(
                "the port speaks TLS",
                key="zookeeper.tls.enabled",
                server=f"{host}:{port}",
                check=check,
            )
    return None


def _connected(host: str, port: int, access: Access, timeout_s: float) -> socket.socket:
    connected = socket.create_connection((host, port), timeout_s)
    if access.tls is None:
        return connected
    try:
        return tls.wrap(connected, host, access.tls, f"{host}:{port}", tls.ZOOKEEPER)
    except ConnectionBroken as broken:
        raise broken.each_time or broken from None


@contextlib.contextmanager
def _telling(address: str) -> Iterator[None]:
    """From TLS 1.3 on a server says behind the handshake what it thinks of our certificate."""
    try:
        yield
    except ssl.SSLError as error:
        raise tls.refused(error, address, tls.ZOOKEEPER) or error from None


def _speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Whoever it is: nothing is sent behind the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout_s) as connected,
            context.wrap_socket(connected),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
