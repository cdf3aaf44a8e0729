"""kazoo's client as our sessions have it: how it begins, with which login, and which ACL each znode
gets that it makes.

An ACL holds for one znode, not for those below it (ZooKeeper Programmer's Guide, "ZooKeeper access
control using ACLs"), so each is made with its own. Those of old consumers (`ids`, `owners`,
`offsets`) stay open whatever is asked for, or the consumers were locked out.

Facts of kazoo that this is built around: a session counts as connected before its login; a login
that is refused ends the client for good, after which each call is told that the connection is
closed; a start waits for its whole time, whatever was heard meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    NoAuthError,
    SessionClosedRequireSaslError,
)
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL, Connect
from kazoo.protocol.serialization import Auth as AuthRequest
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, AUTH_IDS, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Permissions

from etl.edges.zookeeper.by_hand import LOOKED_AT_S, why_shut
from etl.edges.zookeeper.encrypting import Encrypting
from etl.edges.zookeeper.login import no_such_login, said_of
from etl.errors import EtlError
from etl.ledger.paths import is_of_a_pipeline
from etl.model.security import Access, Acl, Scheme

Acls = list[ACL]

CREATOR_WRITES: Acls = [ACL(Permissions.ALL, AUTH_IDS), *READ_ACL_UNSAFE]
"""Whoever is logged in as we are does everything, others read."""
_DECIDED = (
    KeeperState.CONNECTED,
    KeeperState.CONNECTED_RO,
    KeeperState.AUTH_FAILED,
    KeeperState.CLOSED,
)
_SAYS_A_SECRET = "session_passwd"
"""In kazoo's own words: with it whoever reads a log takes our session over."""


def _says_no_secret(record: logging.LogRecord) -> bool:
    said = record.args if isinstance(record.args, tuple) else ()
    return _SAYS_A_SECRET not in str(record.msg) and not any(
        isinstance(one, AuthRequest | SASL | Connect) for one in said
    )


class Client(KazooClient):  # type: ignore[misc]
    """One that has not begun. `start` raises SettingsError where a secret is not where the conf
    says, and what kazoo raises.
    """

    def __init__(
        self, hosts: str, access: Access, *, session_timeout_s: float, patience: KazooRetry
    ) -> None:
        self._access = access
        self._decided = threading.Event()
        """Whether we are let in, or never will be."""
        self.login_refused: EtlError | bool = False
        """Whether a server refused our login, or why we could not even say it. kazoo ends the
        session for good then.
        """
        logger = logging.getLogger("kazoo.client")
        logger.addFilter(_says_no_secret)
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_s,
            command_retry=patience,
            connection_retry=patience.copy(),
            logger=logger,
            handler=Encrypting(access.tls, len(hosts.split(",")))
            if access.tls is not None
            else None,
        )
        self._connection = _Connection(
            access, self, self._conn_retry.copy(), logger=logger, sasl_options=self._sasl()
        )

    def _sasl(self) -> dict[str, Any] | None:
        if self._access.auth is None or self._access.auth.scheme is not Scheme.SASL:
            return None
        from puresasl import QOP  # who logs in nowhere does not need it

        return {
            "mechanism": "DIGEST-MD5",
            "callback": lambda name: said_of(self._access, name),
            "qops": [QOP.AUTH],
        }

    def start(self, timeout: float = 10) -> None:
        """Begin the session, within `timeout` seconds; one request tells whether it is let in,
        which no connection says.
        """
        auth, said = (
            self._access.auth,
            [said_of(self._access, name) for name in ("username", "password")],
        )
        if auth is not None and auth.scheme is Scheme.DIGEST:
            self.auth_data = {("digest", ":".join(said))}
        self._decided.clear()
        self.start_async()
        self._decided.wait(timeout)
        if not self.connected:
            self.stop()
            self.close()
            raise (
                AuthFailedError()
                if self.login_refused
                else self.handler.timeout_exception("Connection time-out")
            )
        with contextlib.suppress(
            NoAuthError
        ):  # of the chroot: we are in, and what we may not see is told where it is wanted
            self.retry(self.exists, "/")

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.AUTH_FAILED:
            self.login_refused = self.login_refused or True
        super()._session_callback(state)
        if state in _DECIDED:
            self._decided.set()

    def acl_of(self, path: str) -> Acls:
        """What a znode is made with; its path without the chroot."""
        return (
            CREATOR_WRITES
            if self._access.acl is Acl.CREATOR and is_of_a_pipeline(path)
            else OPEN_ACL_UNSAFE
        )

    def create_async(
        self, path: str, value: bytes = b"", acl: Acls | None = None, *args: Any, **how: Any
    ) -> Any:
        """As kazoo's. Parents that are made on the way come here, each with the ACL of the znode
        below it: each gets its own.
        """
        return super().create_async(path, value, self._made_with(path, acl), *args, **how)

    def _made_with(self, path: str, acl: Acls | None) -> Acls:
        return acl if acl is not None and acl is not CREATOR_WRITES else self.acl_of(path)

    def transaction(self) -> TransactionRequest:
        """As kazoo's."""
        return _Transaction(self)


class _Transaction(TransactionRequest):  # type: ignore[misc]
    def create(
        self, path: str, value: bytes = b"", acl: Acls | None = None, *args: Any, **how: Any
    ) -> None:
        super().create(path, value, acl or self.client.acl_of(path), *args, **how)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """Tells a server that goes away from one that refuses us, and ends where each refuses us and
    none ever let us in.
    """

    def __init__(self, access: Access, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._access = access
        self._shut: dict[tuple[str, int], EtlError | None] = {}
        """Servers that hung up, and what was wrong where they told it."""
        self._was_in = self._broke = False
        self._said = 0

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        try:
            connected = super()._connect(host, hostip, port)
        except ConnectionDropped as dropped:
            is_late = isinstance(dropped.__context__, TimeoutError)
            if not self._was_in and not is_late and (host, port) not in self._shut:
                self._shut[host, port] = wrong = why_shut(host, port, self._access, LOOKED_AT_S)
                if (
                    wrong is not None
                    and len(self._shut) == len(self.client.hosts)
                    and all(self._shut.values())
                ):
                    self.client.login_refused = wrong
                    raise AuthFailedError(str(wrong)) from dropped
            raise
        self._was_in = True
        return connected

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if isinstance(request, SASL):
            self._said += 1
            if (
                self._said > 1 and not request.challenge
            ):  # kazoo would go on for ever, and the server with it
                raise AuthFailedError from no_such_login()
        super()._submit(request, timeout, xid)

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        self._said = 0
        try:
            super()._authenticate_with_sasl(host, timeout)
        except (
            SessionClosedRequireSaslError
        ) as error:  # of one that wants a login, and not this one
            raise AuthFailedError from error
        except AuthFailedError as error:
            why = error.__cause__
            if isinstance(why, EtlError):
                self.client.login_refused = why
            if isinstance(why, ConnectionDropped) and (self._was_in or not self._broke):
                self._broke = True  # one that is being stopped does this, and before ZooKeeper 3.6 one that refuses us: it never let us in
                raise why from None
            raise
        self._broke = False
