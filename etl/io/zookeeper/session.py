"""How does one session read, write, and pipeline requests?

kazoo and ZooKeeper: `transaction().commit()` returns errors and raises none; one stale znode rolls
the whole `multi` back; a request above `jute.maxbuffer` (1 MB) closes the connection; a write whose
answer was lost may have happened, so it is read back and never repeated blindly.

multiRead (ZooKeeper 3.6) reads many znodes in one request, atomically. Older servers close the
connection on it, so the version is asked first (`srvr`); a server that does not tell is asked for
each znode.

Small requests are pipelined: ZooKeeper serves the requests of a session in order, so all are sent
before the first answer is awaited. A rejected one does not stop the others.
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.retry import KazooRetry, RetryFailedError

from etl.decide.tasks import in_parts
from etl.errors import EtlError, PermissionDenied, SessionLost, ZooKeeperUnreachable
from etl.io.zookeeper.connection import (
    LOOKED_AT_S,
    REFUSED,
    Client,
    Encrypting,
    error_of,
    why_shut,
)
from etl.model.security import OPEN_ZOOKEEPER, Access
from etl.settings.choices import split_connect

FEWEST = 200
"""For fewer znodes the server's version is not asked: pipelined reads are cheaper."""
_PATHS_OF_ONE = 4_000
"""Requests of this size are answered in some milliseconds, so that none keeps the session's
heartbeat waiting.
"""
_GET_DATA, _MULTI_READ, _ERROR = 4, 22, -1
_HEADER, _NUMBER, _STAT = struct.Struct("!iBi"), struct.Struct("!i"), struct.Struct("!32xi8xq16x")
_ASKED = _HEADER.pack(_GET_DATA, False, -1)
_END = _HEADER.pack(-1, True, -1)


class Znode(NamedTuple):
    """Content of a znode."""

    payload: bytes
    version: int
    owner_session: int
    """Session whose end deletes it; 0: none."""


class MultiRead(NamedTuple):
    """The request, as kazoo's connection takes one. Paths have the chroot in front."""

    paths: Sequence[str]

    @property
    def type(self) -> int:
        """Its number in ZooKeeper's protocol."""
        return _MULTI_READ

    def serialize(self) -> bytes:
        """Return the request after its number and type."""
        buffer = bytearray()
        for path in self.paths:
            name = path.encode()
            buffer += _ASKED + _NUMBER.pack(len(name)) + name + b"\0"  # no watch
        return bytes(buffer + _END)

    @staticmethod
    def deserialize(content: bytes, at: int) -> list[Znode | None]:
        """Return None for a missing znode. Raises as kazoo for other errors, ValueError for an
        invalid answer.
        """
        found: list[Znode | None] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(content, at)
            at += _HEADER.size
            if is_end:
                return found
            if kind == _ERROR:
                code, at = _NUMBER.unpack_from(content, at)[0], at + _NUMBER.size
                if code != NoNodeError.code:
                    raise EXCEPTIONS[code]()
                found.append(None)
                continue
            if kind != _GET_DATA:
                raise ValueError(f"an answer of kind {kind} to a read")
            size = max(0, _NUMBER.unpack_from(content, at)[0])  # -1: null
            at += _NUMBER.size
            found.append(Znode(content[at : at + size], *_STAT.unpack_from(content, at + size)))
            at += size + _STAT.size


def knows_multi_read(client: KazooClient) -> bool:
    """True if the connected server reports 3.6 or later."""
    try:
        version = re.search(r"[Vv]ersion: (\d+)\.(\d+)", client.command(b"srvr"))
    except (
        ConnectionLoss,
        KazooTimeoutError,
        OSError,
        AttributeError,
    ):  # AttributeError: kazoo has no socket at this moment
        return False
    return version is not None and (int(version[1]), int(version[2])) >= (3, 6)


def read_together(client: KazooClient, paths: Sequence[str]) -> Iterator[Znode | None]:
    """By multiRead, all requests sent before the first answer is awaited."""
    answers = []
    for at in range(0, len(paths), _PATHS_OF_ONE):
        answer = client.handler.async_result()
        client._call(
            MultiRead([client.chroot + path for path in paths[at : at + _PATHS_OF_ONE]]), answer
        )
        answers.append(answer)
    for answer in answers:
        yield from answer.get()


def read_each(client: KazooClient, paths: Sequence[str]) -> Iterator[Znode | None]:
    """By a request for each znode, all sent before the first answer is awaited."""
    for answer in [client.get_async(path) for path in paths]:
        yield _znode(answer.get)


def _znode(answer: Callable[[], Any]) -> Znode | None:
    try:
        payload, stat = answer()
        return Znode(payload or b"", stat.version, stat.owner_session_id or 0)
    except NoNodeError:
        return None


class SessionLife:
    """State of a client's session."""

    def __init__(self, client: KazooClient, hosts: str) -> None:
        self._hosts = hosts
        self._ended = threading.Event()
        self._settled = threading.Event()
        """Cleared while the connection is broken and the session's state unknown."""
        self._settled.set()
        self.connections = 0
        """Number of broken connections: the next one may be to another server."""
        client.add_listener(self.hear)

    @property
    def is_over(self) -> bool:
        """True if it has ended."""
        return self._ended.is_set()

    def require(self) -> None:
        """Fail if the session has ended: nothing read before may be used to commit. Raises
        SessionLost.
        """
        if self._ended.is_set():
            check = "Raise zookeeper.session_timeout_s, against pauses of this host; run again, it goes on from what is stored"
            raise SessionLost(
                "Our ZooKeeper session ended during the run", connect=self._hosts, action=check
            )

    def require_soon(self, within_s: float) -> None:
        """The same after a broken connection, which may break just before the server reports the
        end: wait for that.
        """
        self._settled.wait(within_s)
        self.require()

    def hear(self, state: str) -> None:
        """Handle a `KazooState`."""
        if state == KazooState.LOST:
            self._ended.set()
        if state == KazooState.SUSPENDED:
            self.connections += 1
            self._settled.clear()
        else:
            self._settled.set()


T = TypeVar("T")

NODE_MAX_BYTES = 900_000
"""Largest znode or request, with room for paths below the server's default of 1 MB."""
OPERATION_BYTES = 120
"""Upper bound of an operation's size besides path and data."""
NO_ANSWER = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    OperationTimeoutError,
    RetryFailedError,
    KazooTimeoutError,
)
"""Exceptions of kazoo for a call without an answer: a write may have happened."""

logging.getLogger("kazoo").addHandler(logging.NullHandler())

_CHANGED = (NoNodeError, NodeExistsError, BadVersionError)
_OVERTAKEN = (*_CHANGED, RolledBackError, RuntimeInconsistency)
"""Errors of a transaction that another client's change caused."""


def in_requests(wanted: Iterable[T], cost: Callable[[T], int]) -> Iterator[list[T]]:
    """Split into requests that fit, in order; `cost` returns the bytes of one."""
    return in_parts(wanted, cost, NODE_MAX_BYTES)


class ZooKeeper:
    """One session, as a context manager. Each method raises ZooKeeperUnreachable or
    PermissionDenied if the server is the reason.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_s: float = 10,
        connect_timeout_s: float = 10,
        access: Access = OPEN_ZOOKEEPER,
    ) -> None:
        self.hosts, slash, chroot = connect.partition("/")
        self.chroot = (slash + chroot).rstrip("/")
        self._connect_timeout_s, self._access = connect_timeout_s, access
        # of connections, too: without its deadline a call that is made while kazoo reconnects waits
        # for ever
        patience = KazooRetry(
            max_tries=-1, delay=0.1, max_delay=1, deadline=session_timeout_s + connect_timeout_s
        )
        self.client = Client(
            self.hosts + self.chroot, access, session_timeout_s=session_timeout_s, patience=patience
        )
        self.life = SessionLife(self.client, self.hosts)
        self._reads_many: tuple[int, bool] | None = None
        """Whether the server of that connection supports multiRead; None: not asked yet."""

    def at_root(self) -> ZooKeeper:
        """Open another session with the same servers, without the chroot."""
        return ZooKeeper(self.hosts, connect_timeout_s=self._connect_timeout_s, access=self._access)

    @property
    def connect(self) -> str:
        """The connection string, as it is shown in errors."""
        return self.hosts + self.chroot

    def __enter__(self) -> ZooKeeper:
        try:
            with warnings.catch_warnings(
                action="ignore", category=UserWarning
            ):  # a chroot that is not there is our own error, or made
                self.client.start(timeout=self._connect_timeout_s)
        except (*NO_ANSWER, *REFUSED) as error:
            self.close()
            raise self._not_entered(error) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session; ephemeral nodes of ours go with it."""
        for end in (self.client.stop, self.client.close):
            with contextlib.suppress(KazooException, KazooTimeoutError):
                end()

    def read(self, path: str) -> tuple[bytes, int] | None:
        """Payload and version of one znode, or None when it is not there."""
        return self.read_all([path])[0]

    def read_all(self, paths: Sequence[str]) -> list[tuple[bytes, int] | None]:
        """Read many, pipelined: all are requested before the first answer is awaited."""
        return [found and (found.payload, found.version) for found in self.read_znodes(paths)]

    def read_znodes(self, paths: Sequence[str]) -> list[Znode | None]:
        """Read the same, with the owning session of each."""

        def ask() -> list[Znode | None]:
            read = read_together if len(paths) >= FEWEST and self._knows_multi_read() else read_each
            return list(read(self.client, paths))

        return self.guarded(lambda: self.client.retry(ask), paths[0] if len(paths) == 1 else None)

    def children(self, path: str) -> list[str] | None:
        """Names of the children, or None when the znode is not there."""
        try:
            return list(
                self.guarded(lambda: self.client.retry(self.client.get_children, path), path)
            )
        except NoNodeError:
            return None

    def sync(self, path: str) -> None:
        """Let the server we talk to catch up with its leader before the decisive reads."""
        with contextlib.suppress(NoNodeError):
            self.guarded(lambda: self.client.retry(self.client.sync, path), path)

    def ensure(self, path: str) -> None:
        """Make the znode and its parents, without payload, where they are missing (the chroot too)."""
        try:
            self.guarded(lambda: self.client.retry(self.client.ensure_path, path), path)
        except NoNodeError:  # kazoo makes the last part of a chroot, and not those above it
            with self.at_root() as root:
                root.ensure(self.chroot)
            self.guarded(lambda: self.client.retry(self.client.ensure_path, path), path)

    def create(self, path: str, payload: bytes) -> bool:
        """Put-if-absent with parents; False when there is one already, be it other or the same."""
        try:
            self.client.create(path, payload, makepath=True)
        except NodeExistsError:
            return False
        except NO_ANSWER as error:
            self.reject_lost_session()
            found = self.read(path)
            if not found or found[0] != payload:
                raise ZooKeeperUnreachable(
                    "A write got no answer", znode=path, action="ZooKeeper's log; then run again"
                ) from error
        except REFUSED as error:
            raise self._refused(error, path) from error
        return True

    def replace(self, path: str, payload: bytes, *, version: int) -> bool:
        """Compare-and-set on the znode's version; False when it is not that version any more, or
        gone.
        """
        try:
            self.guarded(lambda: self.client.set(path, payload, version=version), path)
        except (BadVersionError, NoNodeError):
            return False
        return True

    def transact(self, request: TransactionRequest, path: str) -> bool:
        """Execute all or nothing; False if another client changed something meanwhile. `path` is
        named in errors.
        """
        return self.refused_at(request, path) is None

    def refused_at(self, request: TransactionRequest, path: str) -> str | None:
        """The same; return the first znode that another client changed, else None."""
        results = self.guarded(request.commit)
        failures = [result for result in results if isinstance(result, Exception)]
        for refused in (
            failure for failure in failures if isinstance(failure, NoAuthError | InvalidACLError)
        ):
            raise self._refused(refused, path) from refused
        if failures and not all(isinstance(failure, _OVERTAKEN) for failure in failures):
            raise ZooKeeperUnreachable(
                f"A change was refused: {failures!r}", znode=path, action="ZooKeeper's log"
            )
        changed = (
            part.path
            for part, result in zip(request.operations, results, strict=True)
            if isinstance(result, _CHANGED)
        )
        return next(changed, path).removeprefix(self.chroot) if failures else None

    def missing(self, path: str) -> list[str]:
        """The znode and those above it that are not there, deepest first, as far as we may ask."""
        names, found = path.strip("/").split("/"), list[str]()
        for depth in range(len(names), 0, -1):
            above = "/" + "/".join(names[:depth])
            try:
                if self.guarded(lambda: self.client.retry(self.client.exists, above)):  # noqa: B023, asked at once
                    break
            except PermissionDenied:
                break
            found.append(above)
        return found

    def delete_unused(self, path: str) -> bool:
        """Delete a znode that holds nothing, was never written and has no children; False when it
        is another, or not there.
        """
        try:
            self.guarded(lambda: self.client.delete(path, version=0), path)
        except (NoNodeError, NotEmptyError, BadVersionError):
            return False
        return True

    def delete_tree(self, path: str) -> None:
        """Delete the znode and all below it; quiet when it is not there."""
        with contextlib.suppress(NoNodeError):
            self.guarded(lambda: self.client.delete(path, recursive=True), path)

    def guarded(self, call: Callable[[], T], path: str | None = None) -> T:
        """Translate kazoo's exceptions about the server; answers (no node, node exists) pass.
        `path` is named in errors.
        """
        try:
            return call()
        except NO_ANSWER as error:
            if self.client.login_refused:
                raise self._refused(error) from error
            self.reject_lost_session()
            message = "ZooKeeper stopped answering"
            raise ZooKeeperUnreachable(
                message,
                connect=self.hosts,
                action="ZooKeeper's log and the network; then run again",
            ) from error
        except REFUSED as error:
            raise self._refused(error, path) from error

    def require_session(self) -> None:
        """Fail if the session has ended: nothing read before may be used to commit. Raises
        SessionLost.
        """
        self.life.require()

    def reject_lost_session(self) -> None:
        """Fail if the session is lost. A connection may break just before the server reports the
        end, so wait for that.
        """
        self.life.require_soon(self._connect_timeout_s)

    def _knows_multi_read(self) -> bool:
        connection = self.life.connections
        if (
            self._reads_many is None or self._reads_many[0] != connection
        ):  # the next server may be an older one
            self._reads_many = connection, knows_multi_read(self.client)
        return self._reads_many[1]

    def _not_entered(self, error: Exception) -> EtlError:
        if isinstance(self.client.handler, Encrypting) and self.client.handler.refusal is not None:
            return self.client.handler.refusal
        if self.client.login_refused or isinstance(error, REFUSED):
            return self._refused(error)
        servers = split_connect(self.hosts)[0]
        within_s = min(self._connect_timeout_s, LOOKED_AT_S) / len(servers)
        wrong = (why_shut(host, port, self._access, within_s) for host, port in servers)
        check = "Check that ZooKeeper runs there and zookeeper.connect names it"
        return next(filter(None, wrong), None) or ZooKeeperUnreachable(
            "ZooKeeper does not answer", connect=self.hosts, action=check
        )

    def _refused(self, error: Exception, path: str | None = None) -> EtlError:
        why = self.client.login_refused
        return (
            why
            if isinstance(why, EtlError)
            else error_of(AuthFailedError() if why else error, self.connect, self._access, path)
        )


Outcome = list[Any] | Exception
"""Result of a transaction in kazoo: a result or error for each part, or no answer."""


def children_of_each(zookeeper: ZooKeeper, paths: Sequence[str]) -> list[list[str]]:
    """Names of the children of each znode; none where it is not there."""

    def ask() -> list[list[str]]:
        return [
            _children(answer)
            for answer in [zookeeper.client.get_children_async(path) for path in paths]
        ]

    return zookeeper.guarded(lambda: zookeeper.client.retry(ask))


def ensure_each(zookeeper: ZooKeeper, paths: Iterable[str]) -> None:
    """Make each znode with those above it, without payload, where it is missing."""
    wanted = sorted(set(paths))
    missing = [
        path
        for path, found in zip(wanted, zookeeper.read_znodes(wanted), strict=True)
        if found is None
    ]
    for above in sorted({path.rpartition("/")[0] for path in missing}):
        zookeeper.ensure(above)

    def make() -> None:
        for answer in [zookeeper.client.create_async(path) for path in missing]:
            with contextlib.suppress(NodeExistsError):
                answer.get()

    zookeeper.guarded(lambda: zookeeper.client.retry(make))


class Changes:
    """Parts of one transaction, without kazoo's check of each path, which takes a second for a
    hundred thousand.
    """

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._chroot = zookeeper.chroot
        self._acl_of = zookeeper.client.acl_of
        self.request = zookeeper.client.transaction()

    def create(self, path: str, payload: bytes, *, ephemeral: bool = False) -> None:
        """Put-if-absent."""
        self.request.operations.append(
            Create(self._chroot + path, payload, self._acl_of(path), int(ephemeral))
        )

    def write(self, path: str, payload: bytes, version: int) -> None:
        """Compare-and-set on the znode's version."""
        self.request.operations.append(SetData(self._chroot + path, payload, version))

    def put(self, path: str, payload: bytes, version: int | None) -> None:
        """One or the other: `version` None, where there was no such znode."""
        if version is None:
            self.create(path, payload)
        else:
            self.write(path, payload, version)

    def delete(self, path: str, version: int) -> None:
        """Add a deletion."""
        self.request.operations.append(Delete(self._chroot + path, version))

    def check(self, path: str, version: int) -> None:
        """Add a check that the znode exists at this version."""
        self.request.operations.append(CheckVersion(self._chroot + path, version))

    def send(self) -> Any:
        """Send all of it, to be done or not as one, and do not wait. Raises SessionLost when our
        session has ended: nothing that was read before counts any more."""
        self._zookeeper.require_session()
        return self.request.commit_async()


def outcomes(sent: Iterable[Any]) -> list[Outcome]:
    """Return the results of transactions that were sent, once all are answered."""
    return [_outcome(answer) for answer in list(sent)]


def _outcome(answer: Any) -> Outcome:
    try:
        found: list[Any] = answer.get()
        return found
    except NO_ANSWER as error:
        return error  # type: ignore[no-any-return]


def _children(answer: Any) -> list[str]:
    try:
        return list(answer.get())
    except NoNodeError:
        return []
