"""How a ZooKeeper server is accessed: TLS, authentication, ACLs.

An ACL holds for one znode, not for its children (ZooKeeper Programmer's Guide, "ZooKeeper access
control using ACLs"), so each is created with its own. `ids`, `owners` and `offsets` stay open;
otherwise original consumers could not use them.

kazoo counts a session as connected before its login. A rejected login ends the client for good, and
a start waits for its whole timeout. So handshakes are repeated here by hand to find and report the
reason.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    InvalidACLError,
    NoAuthError,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL, Connect
from kazoo.protocol.serialization import Auth as AuthRequest
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import (
    ACL,
    AUTH_IDS,
    OPEN_ACL_UNSAFE,
    READ_ACL_UNSAFE,
    Permissions,
    make_digest_acl_credential,
)

from etl.errors import EtlError, PermissionDenied, SettingsError
from etl.io import tls
from etl.io.tls import ConnectionBroken
from etl.ledger.znode_paths import is_of_a_pipeline
from etl.model.security import Access, Acl, Scheme, SecretRef, Tls
from etl.settings.secrets import login_text

LOOKED_AT_S = 2.0
"""Seconds for handshakes by hand, if kazoo failed without a reason."""
_CLOSE_SESSION = struct.pack(">iii", 8, 1, -11)
_HANDSHAKE_SIZES = (36, 37)
"""Without and with the flag for read-only servers."""
_MOST_BYTES = 1 << 16


class NoHandshake(Exception):
    """The server is no ZooKeeper, or does not accept sessions."""


class HungUp(NoHandshake):
    """The server closed the connection without an answer."""


def srvr(host: str, port: int, access: Access, timeout_s: float) -> str:
    """Return the server's answer to `srvr`; empty without one (4lw.commands.whitelist).

    Raises as `granted_ms`.
    """
    with _connected(host, port, access, timeout_s) as connection, _telling(f"{host}:{port}"):
        connection.sendall(b"srvr")
        with connection.makefile("rb") as answer:
            return answer.read(_MOST_BYTES).decode("utf-8", "replace")


def granted_ms(host: str, port: int, access: Access, *, asked_ms: int, timeout_s: float) -> int:
    """Return the granted timeout of a session without login, in milliseconds.

    The session is closed at once. Raises OSError and NoHandshake, and as `tls` SettingsError and
    PermissionDenied.
    """
    frame = Connect(0, 0, asked_ms, 0, b"\0" * 16, False).serialize()
    with _connected(host, port, access, timeout_s) as connection, _telling(f"{host}:{port}"):
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as answer:
            header = answer.read(4)
            if not header:
                raise HungUp("it hangs up (a server without a quorum does)")
            size = int.from_bytes(header, "big")
            if size not in _HANDSHAKE_SIZES:
                raise NoHandshake(f"its answer starts with {header!r}, which is not ZooKeeper's")
            body = answer.read(size)
        if not size or len(body) != size:
            raise NoHandshake("it hangs up (a server without a quorum does)")
        granted = Connect.deserialize(body, 0)[0]
        if granted.time_out <= 0:
            raise NoHandshake("it hangs up (a server without a quorum does)")
        connection.sendall(_CLOSE_SESSION)
        return int(granted.time_out)


def why_shut(host: str, port: int, access: Access, timeout_s: float) -> EtlError | str | None:
    """Return why this server grants no session: the error of TLS or login, else a reason in words.

    None: it grants one now.
    """
    try:
        granted_ms(host, port, access, asked_ms=0, timeout_s=timeout_s)
    except EtlError as error:
        return error
    except (OSError, NoHandshake) as error:
        expected = of_encryption(error, host, port, access, timeout_s)
        if expected is not None:
            return expected
        return str(getattr(error, "strerror", None) or error) or type(error).__name__
    return None


def of_encryption(
    error: OSError | NoHandshake, host: str, port: int, access: Access, timeout_s: float
) -> EtlError | None:
    """Return the error if a server expects TLS and the conf does not; None for another reason.

    Such a server closes unencrypted connections, or waits for more of a handshake.
    """
    if access.tls is None and isinstance(
        error, HungUp | ConnectionResetError | BrokenPipeError | TimeoutError
    ):
        if _speaks_tls(host, port, min(timeout_s, LOOKED_AT_S)):
            return SettingsError(
                "The port speaks TLS",
                key="zookeeper.tls.enabled",
                server=f"{host}:{port}",
                action="Set zookeeper.tls.enabled: true if the system's authorities are trusted, "
                "else zookeeper.tls.ca_file; or check the port",
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
    """Context manager: from TLS 1.3 on a server rejects a client certificate after the
    handshake.
    """
    try:
        yield
    except ssl.SSLError as error:
        raise tls.refused(error, address, tls.ZOOKEEPER) or error from None


def _speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Return True if the port speaks TLS; nothing is sent after the handshake."""
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


class Encrypting(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler with TLS connections that verify the host's name.

    For a failed handshake, kazoo itself reports nothing but a timeout.
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
        """Connect with TLS.

        Raises OSError, after which kazoo tries the next server. Raises AuthFailedError, after which
        kazoo ends, once each server has rejected the handshake and none ever accepted it.
        """
        # For a server's own commands kazoo passes its port as hostname (login_and_acl.py,
        # `command`).
        if isinstance(hostname, str):
            self._hosts[address] = hostname
        host = self._hosts.get(address, address[0])
        # A silent server must leave time for the others.
        within_s = None if timeout is None else timeout / self._servers
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
            is_again = address in self._broke and not broken.may_pass
            if broken.each_time is not None and is_again:
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
        """Select, and report sockets with decrypted unread bytes as readable.

        Such a socket has no more bytes of its own, and kazoo would wait for its next heartbeat.
        """
        decrypted = []
        for one in read:
            if isinstance(one, ssl.SSLSocket) and one.pending():
                decrypted.append(one)
        if decrypted:
            timeout = 0
        ready, writable, failed = super().select(read, write, other, timeout)
        ready = [one for one in ready if one not in decrypted]
        return [*decrypted, *ready], writable, failed


def no_such_login() -> SettingsError:
    """Return the error for a server that has an empty answer to SASL."""
    return SettingsError(
        "The server has no login by SASL (DIGEST-MD5)",
        key="zookeeper.auth.scheme",
        action="Check on every server authProvider.sasl, and the section Server of its "
        "java.security.auth.login.config; or set another scheme",
    )


def said_of(access: Access, name: str) -> str:
    """Return `username` or `password` of the login; empty if it has none.

    Raises SettingsError, with key and machine, for a missing secret.
    """
    reference: str | SecretRef | None = getattr(access.auth, name, None)
    if reference is None:
        return ""
    return login_text(reference, f"zookeeper.auth.{name}")


def id_of(access: Access) -> str | None:
    """Return the identity of this login in ACLs, `scheme:id`.

    None without a login, or if only the server knows the identity (subject of a certificate).
    """
    if access.auth is None or access.auth.scheme is Scheme.X509:
        return None
    if access.auth.scheme is Scheme.SASL:
        return f"sasl:{said_of(access, 'username')}"
    username = said_of(access, "username")
    password = said_of(access, "password")
    return f"digest:{make_digest_acl_credential(username, password)}"


Acls = list[ACL]

CREATOR_WRITES: Acls = [ACL(Permissions.ALL, AUTH_IDS), *READ_ACL_UNSAFE]
"""The same login may do everything, others read."""
_DECIDED = (
    KeeperState.CONNECTED,
    KeeperState.CONNECTED_RO,
    KeeperState.AUTH_FAILED,
    KeeperState.CLOSED,
)
_SESSION_PASSWORD = "session_passwd"
"""Part of kazoo's log message with the session password, by which a reader could use the session.
"""


def _has_no_secret(record: logging.LogRecord) -> bool:
    if _SESSION_PASSWORD in str(record.msg):
        return False
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(one, AuthRequest | SASL | Connect) for one in arguments)


class Client(KazooClient):  # type: ignore[misc]
    """A client with TLS and login, not started yet.

    `start` raises SettingsError for a missing secret, and kazoo's own exceptions.
    """

    def __init__(
        self, hosts: str, access: Access, *, session_timeout_s: float, patience: KazooRetry
    ) -> None:
        self._access = access
        self._decided = threading.Event()
        """Set once the login was accepted or finally rejected."""
        self.login_refused: EtlError | bool = False
        """Why the server rejected the login, or why it was not sent. kazoo then ends the session.
        """
        logger = logging.getLogger("kazoo.client")
        logger.addFilter(_has_no_secret)
        handler = None
        if access.tls is not None:
            handler = Encrypting(access.tls, len(hosts.split(",")))
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_s,
            command_retry=patience,
            connection_retry=patience.copy(),
            logger=logger,
            handler=handler,
        )
        self._connection = _Connection(
            access, self, self._conn_retry.copy(), logger=logger, sasl_options=self._sasl()
        )

    def _sasl(self) -> dict[str, Any] | None:
        if self._access.auth is None or self._access.auth.scheme is not Scheme.SASL:
            return None
        from puresasl import QOP  # only a login by SASL needs it

        return {
            "mechanism": "DIGEST-MD5",
            "callback": lambda name: said_of(self._access, name),
            "qops": [QOP.AUTH],
        }

    def start(self, timeout: float = 10) -> None:
        """Start the session within `timeout` seconds, and check the login by one request."""
        auth = self._access.auth
        username = said_of(self._access, "username")
        password = said_of(self._access, "password")
        if auth is not None and auth.scheme is Scheme.DIGEST:
            self.auth_data = {("digest", f"{username}:{password}")}
        self._decided.clear()
        self.start_async()
        self._decided.wait(timeout)
        if not self.connected:
            self.stop()
            self.close()
            if self.login_refused:
                raise AuthFailedError()
            raise self.handler.timeout_exception("Connection time-out")
        # A hidden chroot does not mean that the login failed. Later reads report what is hidden.
        with contextlib.suppress(NoAuthError):
            self.retry(self.exists, "/")

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.AUTH_FAILED:
            self.login_refused = self.login_refused or True
        super()._session_callback(state)
        if state in _DECIDED:
            self._decided.set()

    def acl_of(self, path: str) -> Acls:
        """Return the ACL of a new znode; its path is without the chroot."""
        if self._access.acl is Acl.CREATOR and is_of_a_pipeline(path):
            return CREATOR_WRITES
        everybody: Acls = OPEN_ACL_UNSAFE
        return everybody

    def create_async(
        self, path: str, value: bytes = b"", acl: Acls | None = None, *args: Any, **how: Any
    ) -> Any:
        """Create a znode. Missing parents get their own ACLs, not that of the znode."""
        return super().create_async(path, value, self._acl_to_create(path, acl), *args, **how)

    def _acl_to_create(self, path: str, acl: Acls | None) -> Acls:
        if acl is None or acl is CREATOR_WRITES:
            return self.acl_of(path)
        return acl

    def transaction(self) -> TransactionRequest:
        """Begin a transaction that creates znodes with their ACLs."""
        return _Transaction(self)


class _Transaction(TransactionRequest):  # type: ignore[misc]
    def create(
        self, path: str, value: bytes = b"", acl: Acls | None = None, *args: Any, **how: Any
    ) -> None:
        super().create(path, value, acl or self.client.acl_of(path), *args, **how)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """A connection that ends once each server has rejected the login.

    A server that closes the connection for another reason is tried again.
    """

    def __init__(self, access: Access, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._access = access
        self._shut: dict[tuple[str, int], EtlError | None] = {}
        """Servers that closed the connection, with their reason if known."""
        self._was_in = False
        self._broke = False
        self._sasl_requests = 0

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        try:
            connected = super()._connect(host, hostip, port)
        except ConnectionDropped as dropped:
            is_late = isinstance(dropped.__context__, TimeoutError)
            if not self._was_in and not is_late and (host, port) not in self._shut:
                found = why_shut(host, port, self._access, LOOKED_AT_S)
                reason = found if isinstance(found, EtlError) else None
                self._shut[host, port] = reason
                all_tried = len(self._shut) == len(self.client.hosts)
                if reason is not None and all_tried and all(self._shut.values()):
                    self.client.login_refused = reason
                    raise AuthFailedError(str(reason)) from dropped
            raise
        self._was_in = True
        return connected

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if isinstance(request, SASL):
            self._sasl_requests += 1
            # kazoo and the server would exchange empty challenges without end.
            if self._sasl_requests > 1 and not request.challenge:
                raise AuthFailedError from no_such_login()
        super()._submit(request, timeout, xid)

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        self._sasl_requests = 0
        try:
            super()._authenticate_with_sasl(host, timeout)
        except SessionClosedRequireSaslError as error:
            # The server requires another login.
            raise AuthFailedError from error
        except AuthFailedError as error:
            cause = error.__cause__
            if isinstance(cause, EtlError):
                self.client.login_refused = cause
            if isinstance(cause, ConnectionDropped) and (self._was_in or not self._broke):
                # A server that stops drops the connection. One before ZooKeeper 3.6 also drops it
                # to reject a login, but then it never accepted one: try once more.
                self._broke = True
                raise cause from None
            raise
        self._broke = False


REFUSED = (NoAuthError, AuthFailedError, SessionClosedRequireSaslError, InvalidACLError)
"""Exceptions of kazoo for a rejected session."""
_AUTH = "zookeeper.auth"


def error_of(
    error: Exception, connect: str, access: Access, znode: str | None = None
) -> PermissionDenied:
    """Return the error for one of the exceptions `REFUSED`.

    ZooKeeper does not reject a wrong password of scheme digest: it only permits nothing
    (NoAuthError).
    """
    identity = describe_identity(access)
    where = {"connect": connect} if znode is None else {"znode": znode, "connect": connect}
    if isinstance(error, AuthFailedError) and access.auth is not None:
        return PermissionDenied(
            f"ZooKeeper rejects the login, {identity}",
            key=_AUTH,
            **where,
            action=f"Check scheme, username and password of {_AUTH}, "
            "and that every server knows them",
        )
    if isinstance(error, AuthFailedError | SessionClosedRequireSaslError):
        required = "of another scheme"
        if isinstance(error, SessionClosedRequireSaslError):
            required = "by SASL"
        return PermissionDenied(
            f"ZooKeeper requires a login {required}",
            key=_AUTH,
            **where,
            action=f"Set {_AUTH} with scheme sasl. The present login: {identity}",
        )
    if isinstance(error, InvalidACLError):
        return PermissionDenied(
            f"ZooKeeper does not know the login, {identity}, "
            "but zookeeper.acl: creator lets only this login write",
            key=_AUTH,
            **where,
            action=f"Set a scheme in {_AUTH} that every server has",
        )
    action = f"Check the login in {_AUTH} ({identity}) and the ACL of the znode (getAcl)"
    if znode is not None and is_of_a_pipeline(znode):
        action += ". A login that the ACL names changes it by `etl ledger apply-acl CONF`"
    return PermissionDenied(
        "ZooKeeper denies access: the ACL of a znode is for other logins",
        **where,
        action=action,
    )


def describe_identity(access: Access) -> str:
    """Describe the identity of this login, without a secret."""
    auth = access.auth
    if auth is None:
        return "none, since zookeeper.auth.scheme is not set"
    if auth.scheme is Scheme.X509:
        cert_file = access.tls and access.tls.cert_file
        return f"x509, by the certificate of zookeeper.tls.cert_file ({cert_file})"
    identity = f"{auth.scheme.value} user {auth.username}"
    if auth.scheme is Scheme.DIGEST:
        identity += ", whose wrong password servers do not reject"
    return identity
