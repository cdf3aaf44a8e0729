"""How one ZooKeeper session reads, writes, and pipelines requests.

kazoo and ZooKeeper: `transaction().commit()` returns errors and raises none; one stale znode rolls
the whole `multi` back; a request above `jute.maxbuffer` (1 MB) closes the connection. A write
without an answer may have succeeded, so it is read back and never repeated blindly.

multiRead (ZooKeeper 3.6) reads many znodes in one request, atomically. Older servers close the
connection on it, and kazoo does not know it. So from `FEWEST` znodes on the server's version is
requested first (`srvr`), again after each reconnect; without an answer each znode is read by a
request of its own.

Small requests are pipelined: ZooKeeper serves the requests of a session in order, so all are sent
before the first answer is awaited. A rejected one does not stop the others.

Lives here: sessions, single znodes, transactions. Not here: login and TLS (login_and_acl.py).
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
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
from etl.io.zookeeper.login_and_acl import (
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
"""Fewest znodes for multiRead. For fewer, pipelined reads are cheaper than asking the version."""
_PATHS_OF_ONE = 4_000
"""Paths of one multiRead: answered in some milliseconds, so the session's heartbeat never waits."""
_GET_DATA, _MULTI_READ, _ERROR = 4, 22, -1
_HEADER, _NUMBER, _STAT = struct.Struct("!iBi"), struct.Struct("!i"), struct.Struct("!32xi8xq16x")
_GET_HEADER = _HEADER.pack(_GET_DATA, False, -1)
_END = _HEADER.pack(-1, True, -1)


class Znode(NamedTuple):
    """Content of a znode."""

    payload: bytes
    version: int
    owner_session: int
    """Id of the session that owns an ephemeral znode; 0: none."""


class MultiRead(NamedTuple):
    """A multiRead request in the form of kazoo's requests. Paths include the chroot."""

    paths: Sequence[str]

    @property
    def type(self) -> int:
        """The request's number in ZooKeeper's protocol."""
        return _MULTI_READ

    def serialize(self) -> bytes:
        """Return the request after its number and type."""
        request = bytearray()
        for path in self.paths:
            name = path.encode()
            request += _GET_HEADER + _NUMBER.pack(len(name)) + name + b"\0"  # no watch
        return bytes(request + _END)

    @staticmethod
    def deserialize(content: bytes, at: int) -> list[Znode | None]:
        """Return each znode; None for a missing one.

        Raises as kazoo for other errors, ValueError for an invalid answer.
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
    """Return True if the connected server reports version 3.6 or later."""
    try:
        version = re.search(r"[Vv]ersion: (\d+)\.(\d+)", client.command(b"srvr"))
    except (ConnectionLoss, KazooTimeoutError, OSError, AttributeError):
        return False  # AttributeError: kazoo has no socket while it reconnects
    return version is not None and (int(version[1]), int(version[2])) >= (3, 6)


def read_together(client: KazooClient, paths: Sequence[str]) -> Iterator[Znode | None]:
    """Read by multiRead; all requests are sent before the first answer is awaited."""
    answers = []
    for at in range(0, len(paths), _PATHS_OF_ONE):
        answer = client.handler.async_result()
        part = [client.chroot + path for path in paths[at : at + _PATHS_OF_ONE]]
        client._call(MultiRead(part), answer)
        answers.append(answer)
    for answer in answers:
        yield from answer.get()


def read_each(client: KazooClient, paths: Sequence[str]) -> Iterator[Znode | None]:
    """Read by one request per znode; all are sent before the first answer is awaited."""
    for answer in [client.get_async(path) for path in paths]:
        yield _znode(answer.get)


def _znode(answer: Callable[[], Any]) -> Znode | None:
    try:
        payload, stat = answer()
        return Znode(payload or b"", stat.version, stat.owner_session_id or 0)
    except NoNodeError:
        return None


class SessionLife:
    """The state of a client's session."""

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
        """True if the session has ended."""
        return self._ended.is_set()

    def require(self) -> None:
        """Raise SessionLost if the session has ended: nothing read before may be used to commit."""
        if self._ended.is_set():
            raise SessionLost(
                "The ZooKeeper session ended during the run",
                connect=self._hosts,
                action="Raise zookeeper.session_timeout_s above the longest pause of this host. "
                "Run again: the next run continues from the stored plan",
            )

    def require_soon(self, within_s: float) -> None:
        """Raise SessionLost if the session ends within this time after a broken connection.

        The connection may break just before the server reports the end, so the state is awaited.
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
K = TypeVar("K")

NODE_MAX_BYTES = 900_000
"""Largest znode or request, with room for paths below the server's default of 1 MB."""
OPERATION_BYTES = 120
"""Upper bound of an operation's size without path and data."""
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
    """One ZooKeeper session, as a context manager.

    Each method raises ZooKeeperUnreachable, SessionLost or PermissionDenied.
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
        self._connect_timeout_s = connect_timeout_s
        self._access = access
        # Used for connections, too: kazoo queues calls while it reconnects, and without a deadline
        # they would wait for ever.
        patience = KazooRetry(
            max_tries=-1, delay=0.1, max_delay=1, deadline=session_timeout_s + connect_timeout_s
        )
        self.client = Client(
            self.hosts + self.chroot, access, session_timeout_s=session_timeout_s, patience=patience
        )
        self.life = SessionLife(self.client, self.hosts)
        self._reads_many: tuple[int, bool] | None = None
        """Number of the connection, and whether its server supports multiRead; None: unknown."""

    def at_root(self) -> ZooKeeper:
        """Return another session with the same servers, without the chroot."""
        return ZooKeeper(self.hosts, connect_timeout_s=self._connect_timeout_s, access=self._access)

    @property
    def connect(self) -> str:
        """The connect string, as it is shown in errors."""
        return self.hosts + self.chroot

    def __enter__(self) -> ZooKeeper:
        try:
            # kazoo warns of a missing chroot, which is reported or created here.
            with warnings.catch_warnings(action="ignore", category=UserWarning):
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
        """End the session, which deletes its ephemeral znodes."""
        for end in (self.client.stop, self.client.close):
            with contextlib.suppress(KazooException, KazooTimeoutError):
                end()

    def read(self, path: str) -> tuple[bytes, int] | None:
        """Return payload and version of one znode; None if it does not exist."""
        return self.read_all([path])[0]

    def read_all(self, paths: Sequence[str]) -> list[tuple[bytes, int] | None]:
        """Return payload and version of each znode; None for a missing one. Pipelined."""
        return [found and (found.payload, found.version) for found in self.read_znodes(paths)]

    def read_znodes(self, paths: Sequence[str]) -> list[Znode | None]:
        """Return each znode with its owning session; None for a missing one. Pipelined."""

        def request() -> list[Znode | None]:
            if len(paths) >= FEWEST and self._knows_multi_read():
                return list(read_together(self.client, paths))
            return list(read_each(self.client, paths))

        path = paths[0] if len(paths) == 1 else None
        return self.guarded(lambda: self.client.retry(request), path)

    def children(self, path: str) -> list[str] | None:
        """Return the names of the children; None if the znode does not exist."""
        try:
            return list(
                self.guarded(lambda: self.client.retry(self.client.get_children, path), path)
            )
        except NoNodeError:
            return None

    def sync(self, path: str) -> None:
        """Make the connected server catch up with its leader before decisive reads."""
        with contextlib.suppress(NoNodeError):
            self.guarded(lambda: self.client.retry(self.client.sync, path), path)

    def ensure(self, path: str) -> None:
        """Create the znode and its missing parents, without payload, including the chroot.

        A parent that another client deletes meanwhile is created again.
        """
        while True:
            try:
                self.guarded(lambda: self.client.retry(self.client.ensure_path, path), path)
                return
            except NoNodeError:
                # kazoo creates the last part of a chroot, but not those above it.
                if self.chroot:
                    with self.at_root() as root:
                        root.ensure(self.chroot)

    def create(self, path: str, payload: bytes) -> bool:
        """Create a znode with its parents; False if it exists, with any payload."""
        try:
            self.client.create(path, payload, makepath=True)
        except NodeExistsError:
            return False
        except NoNodeError:
            # Another client deleted a parent after kazoo had created it.
            self.ensure(path.rpartition("/")[0])
            return self.create(path, payload)
        except NO_ANSWER as error:
            self.reject_lost_session()
            found = self.read(path)
            if not found or found[0] != payload:
                raise ZooKeeperUnreachable(
                    "A write got no answer",
                    znode=path,
                    action="Check ZooKeeper's log, then run again",
                ) from error
        except REFUSED as error:
            raise self._refused(error, path) from error
        return True

    def replace(self, path: str, payload: bytes, *, version: int) -> bool:
        """Write a znode of that version; False if it has another version or does not exist."""
        try:
            self.guarded(lambda: self.client.set(path, payload, version=version), path)
        except (BadVersionError, NoNodeError):
            return False
        return True

    def transact(self, request: TransactionRequest, path: str) -> bool:
        """Execute a transaction; False if another client changed one of its znodes.

        `path` is shown in errors.
        """
        return self.refused_at(request, path) is None

    def refused_at(self, request: TransactionRequest, path: str) -> str | None:
        """Execute a transaction; return the first znode that another client changed, else None.

        `path` is shown in errors, and returned if the changed znode is unknown.
        """
        results = self.guarded(request.commit)
        failures = failures_in(results)
        if not failures:
            return None
        for failure in failures:
            if isinstance(failure, NoAuthError | InvalidACLError):
                raise self._refused(failure, path) from failure
        if not all(isinstance(failure, _OVERTAKEN) for failure in failures):
            raise ZooKeeperUnreachable(
                f"ZooKeeper rejected a change: {failures!r}",
                znode=path,
                action="Check ZooKeeper's log",
            )
        for part, result in zip(request.operations, results, strict=True):
            if isinstance(result, _CHANGED):
                changed: str = part.path
                return changed.removeprefix(self.chroot)
        return path.removeprefix(self.chroot)

    def missing(self, path: str) -> list[str]:
        """Return the znode and those above it that do not exist, deepest first.

        Ends at the first znode that exists or that this login may not see.
        """
        names = path.strip("/").split("/")
        missing = []
        for depth in range(len(names), 0, -1):
            above = "/" + "/".join(names[:depth])
            try:
                exists = partial(self.client.retry, self.client.exists, above)
                if self.guarded(exists):
                    break
            except PermissionDenied:
                break
            missing.append(above)
        return missing

    def delete_unused(self, path: str) -> bool:
        """Delete a znode that was never written and has no children; return success."""
        try:
            self.guarded(lambda: self.client.delete(path, version=0), path)
        except (NoNodeError, NotEmptyError, BadVersionError):
            return False
        return True

    def delete_tree(self, path: str) -> None:
        """Delete the znode and all below it, if it exists."""
        with contextlib.suppress(NoNodeError):
            self.guarded(lambda: self.client.delete(path, recursive=True), path)

    def guarded(self, call: Callable[[], T], path: str | None = None) -> T:
        """Call kazoo, and translate its exceptions about the server; `path` is shown in errors.

        Answers about a znode (NoNodeError, NodeExistsError, BadVersionError) pass.
        """
        try:
            return call()
        except NO_ANSWER as error:
            if self.client.login_refused:
                raise self._refused(error) from error
            self.reject_lost_session()
            raise ZooKeeperUnreachable(
                "ZooKeeper stopped answering",
                connect=self.hosts,
                action="Check ZooKeeper's log and the network, then run again",
            ) from error
        except REFUSED as error:
            raise self._refused(error, path) from error

    def require_session(self) -> None:
        """Raise SessionLost if the session has ended: nothing read before may be used to commit."""
        self.life.require()

    def reject_lost_session(self) -> None:
        """Raise SessionLost if the session is lost, as `SessionLife.require_soon`."""
        self.life.require_soon(self._connect_timeout_s)

    def _knows_multi_read(self) -> bool:
        connection = self.life.connections
        # After a reconnect the server may be an older one.
        if self._reads_many is None or self._reads_many[0] != connection:
            self._reads_many = connection, knows_multi_read(self.client)
        return self._reads_many[1]

    def _not_entered(self, error: Exception) -> EtlError:
        if isinstance(self.client.handler, Encrypting) and self.client.handler.refusal is not None:
            return self.client.handler.refusal
        if self.client.login_refused or isinstance(error, REFUSED):
            return self._refused(error)
        servers = split_connect(self.hosts)[0]
        within_s = min(self._connect_timeout_s, LOOKED_AT_S) / len(servers)
        reasons = []
        for host, port in servers:
            reason = why_shut(host, port, self._access, within_s)
            if isinstance(reason, EtlError):
                return reason
            if reason:
                reasons.append(f"{host}:{port}: {reason}")
        message = "ZooKeeper does not answer"
        if reasons:
            message = f"{message}: {'; '.join(reasons)}"
        return ZooKeeperUnreachable(
            message,
            connect=self.hosts,
            action="Check that ZooKeeper runs there, and that zookeeper.connect names it",
        )

    def _refused(self, error: Exception, path: str | None = None) -> EtlError:
        rejection = self.client.login_refused
        if isinstance(rejection, EtlError):
            return rejection
        cause = AuthFailedError() if rejection else error
        return error_of(cause, self.connect, self._access, path)


Outcome = list[Any] | Exception
"""Result of a transaction in kazoo: a result or error for each part, or no answer."""


def failures_in(results: Iterable[Any]) -> list[Exception]:
    """Return the errors among the results of a transaction; empty if it succeeded."""
    return [result for result in results if isinstance(result, Exception)]


def causes_in(results: Iterable[Any]) -> list[Exception]:
    """Return the errors that made ZooKeeper reject a transaction; empty if it succeeded.

    The other operations of a rejected transaction report that they were rolled back.
    """
    causes = []
    for failure in failures_in(results):
        if not isinstance(failure, (RolledBackError, RuntimeInconsistency)):
            causes.append(failure)
    return causes


def payload_of_each(
    zookeeper: ZooKeeper, keys: Collection[K], path_of: Callable[[K], str]
) -> dict[K, bytes]:
    """Return the payload of each key's znode; missing znodes are left out. Pipelined."""
    stored = zookeeper.read_all([path_of(key) for key in keys])
    payloads = {}
    for key, found in zip(keys, stored, strict=True):
        if found:
            payloads[key] = found[0]
    return payloads


def children_of_each(zookeeper: ZooKeeper, paths: Sequence[str]) -> list[list[str]]:
    """Return the names of the children of each znode; empty for a missing one. Pipelined."""

    def request() -> list[list[str]]:
        pending = [zookeeper.client.get_children_async(path) for path in paths]
        return [_children(answer) for answer in pending]

    return zookeeper.guarded(lambda: zookeeper.client.retry(request))


def ensure_each(zookeeper: ZooKeeper, paths: Iterable[str]) -> None:
    """Create each missing znode and its parents, without payload. Pipelined."""
    wanted = sorted(set(paths))
    missing = []
    parents = set()
    for path, found in zip(wanted, zookeeper.read_znodes(wanted), strict=True):
        if found is None:
            missing.append(path)
            parents.add(path.rpartition("/")[0])
    for parent in sorted(parents):
        zookeeper.ensure(parent)

    def create() -> list[str]:
        answers = [zookeeper.client.create_async(path) for path in missing]
        without_parent = []
        for path, answer in zip(missing, answers, strict=True):
            try:
                answer.get()
            except NodeExistsError:
                continue
            except NoNodeError:  # another client has deleted the parent
                without_parent.append(path)
        return without_parent

    for path in zookeeper.guarded(lambda: zookeeper.client.retry(create)):
        zookeeper.ensure(path)


class Changes:
    """The operations of one transaction.

    Bypasses kazoo's check of each path, which takes a second for a hundred thousand.
    """

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._chroot = zookeeper.chroot
        self._acl_of = zookeeper.client.acl_of
        self.request = zookeeper.client.transaction()

    def create(self, path: str, payload: bytes, *, ephemeral: bool = False) -> None:
        """Add a creation."""
        self.request.operations.append(
            Create(self._chroot + path, payload, self._acl_of(path), int(ephemeral))
        )

    def write(self, path: str, payload: bytes, version: int) -> None:
        """Add a write of a znode of that version."""
        self.request.operations.append(SetData(self._chroot + path, payload, version))

    def put(self, path: str, payload: bytes, version: int | None) -> None:
        """Add a creation (`version` None: no such znode) or a write."""
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
        """Send the transaction without waiting for the answer.

        Raises SessionLost if the session has ended: nothing read before may be used to commit.
        """
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
