"""ZooKeeper's znodes in memory, and a client of them with the calls of kazoo that this program
makes. The edges in etl/io/zookeeper run over it as over a server.

`tests/system/test_zookeeper_memory.py` plays the same requests on it and on a real ZooKeeper.

Not here: ACLs (everything is permitted), logins, watches (none fires), and the time after which the
session of a dead client ends (`Memory.end` ends it).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kazoo.client import TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData, Transaction
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE

from etl.io.zookeeper.session_requests import SessionLife, ZooKeeper
from etl.model.security import OPEN_ZOOKEEPER

_EPHEMERAL, _SEQUENCE = 1, 2


class Znode:
    __slots__ = ("payload", "version", "session", "children", "created")

    def __init__(self, payload: bytes, session: int = 0) -> None:
        self.payload = payload
        self.version = 0
        self.session = session
        """Of an ephemeral znode; 0: it stays."""
        self.children: dict[str, None] = {}
        self.created = 0
        """Number of children that were ever created."""

    def copy(self) -> Znode:
        found = Znode(self.payload, self.session)
        found.version, found.created = self.version, self.created
        found.children = dict(self.children)
        return found

    @property
    def stat(self) -> ZnodeStat:
        """As kazoo returns it, without times and transaction ids."""
        changes = 2 * self.created - len(self.children)
        size, count = len(self.payload), len(self.children)
        return ZnodeStat(0, 0, 0, 0, self.version, changes, 0, self.session, size, count, 0)


def _parent_and_name(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name


class Memory:
    """The znodes of one ZooKeeper. Raises kazoo's errors about a znode."""

    def __init__(self) -> None:
        self.znodes = {"/": Znode(b"")}
        self.sessions = itertools.count(1)
        self._undo: list[Callable[[], None]] = []
        """What reverts the changes of the present transaction, the last one first."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memory) and self._contents() == other._contents()

    def __deepcopy__(self, memo: object) -> Memory:
        copied = Memory()
        copied.restore(self.znodes)
        return copied

    def _contents(self) -> dict[str, tuple[bytes, int]]:
        return {path: (found.payload, found.version) for path, found in self.znodes.items()}

    def find(self, path: str) -> Znode:
        found = self.znodes.get(path)
        if found is None:
            raise NoNodeError
        return found

    def children(self, path: str) -> list[str]:
        """Return the names of the children; none for a missing znode."""
        found = self.znodes.get(path)
        return list(found.children) if found else []

    def check(self, path: str, version: int) -> Znode:
        """Return the znode if it has that version; -1: any."""
        found = self.find(path)
        if version not in (-1, found.version):
            raise BadVersionError
        return found

    def create(self, path: str, payload: bytes, session: int = 0, *, sequence: bool = False) -> str:
        above, name = _parent_and_name(path)
        parent = self.find(above)
        if sequence:
            name = f"{name}{parent.created:010d}"
            path = f"{above.rstrip('/')}/{name}"
        if path in self.znodes:
            raise NodeExistsError
        if parent.session:
            raise NoChildrenForEphemeralsError
        self.znodes[path] = Znode(payload, session)
        parent.children[name] = None
        parent.created += 1

        def undo() -> None:
            del self.znodes[path], parent.children[name]
            parent.created -= 1

        self._undo.append(undo)
        return path

    def write(self, path: str, payload: bytes, version: int = -1) -> Znode:
        found = self.check(path, version)
        before = found.payload
        found.payload = payload
        found.version += 1

        def undo() -> None:
            found.payload = before
            found.version -= 1

        self._undo.append(undo)
        return found

    def delete(self, path: str, version: int = -1) -> None:
        found = self.check(path, version)
        if found.children:
            raise NotEmptyError
        above, name = _parent_and_name(path)
        parent = self.znodes[above]
        del self.znodes[path], parent.children[name]

        def undo() -> None:
            self.znodes[path], parent.children[name] = found, None

        self._undo.append(undo)

    def delete_tree(self, path: str) -> None:
        found = self.znodes.get(path)
        if found is None:
            return
        for name in list(found.children):
            self.delete_tree(f"{path.rstrip('/')}/{name}")
        self.delete(path)

    def ensure(self, path: str) -> None:
        """Create the znode and those above it, as far as they are missing."""
        if path not in self.znodes:
            self.ensure(_parent_and_name(path)[0])
            self.create(path, b"")

    def transact(self, operations: Iterable[Any], session: int) -> list[Any]:
        """Execute all operations or none; return the result or the error of each, as kazoo does."""
        wanted = list(operations)
        results: list[Any] = []
        self._undo = []
        for operation in wanted:
            try:
                results.append(self._execute(operation, session))
            except KazooException as error:
                for undo in reversed(self._undo):
                    undo()
                rolled_back = [RolledBackError() for _ in results]
                left = len(wanted) - len(results) - 1
                return [*rolled_back, error, *(RuntimeInconsistency() for _ in range(left))]
        return results

    def _execute(self, operation: Any, session: int) -> Any:
        if isinstance(operation, Create):
            owner = session if operation.flags & _EPHEMERAL else 0
            is_sequence = bool(operation.flags & _SEQUENCE)
            return self.create(operation.path, operation.data, owner, sequence=is_sequence)
        if isinstance(operation, SetData):
            return self.write(operation.path, operation.data, operation.version).stat
        if isinstance(operation, Delete):
            self.delete(operation.path, operation.version)
        else:
            assert isinstance(operation, CheckVersion)
            self.check(operation.path, operation.version)
        return True

    def end(self, session: int) -> None:
        """End a session: its ephemeral znodes are deleted."""
        for path in [path for path, found in self.znodes.items() if found.session == session]:
            self.delete(path)

    def persistent(self) -> dict[str, Znode]:
        """Return a copy of all znodes but the ephemeral ones, as a backup has them."""
        copied = {}
        for path, found in self.znodes.items():
            if not found.session:
                copied[path] = found.copy()
        for path, found in self.znodes.items():
            if found.session:
                above, name = _parent_and_name(path)
                copied[above].children.pop(name)
        return copied

    def restore(self, znodes: Mapping[str, Znode]) -> None:
        """Put copies in the place of all znodes."""
        self.znodes = {path: found.copy() for path, found in znodes.items()}


@contextlib.contextmanager
def _undisturbed(is_of_parents: bool) -> Iterator[None]:
    del is_of_parents
    yield


class Answer:
    """The answer to a request, which is there at once."""

    value: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class MemoryClient:
    """One session, with kazoo's calls.

    `changing` is entered around each request that changes znodes, with True for one that only creates
    empty znodes above others. A test may look, change or raise
    there; ConnectionLoss: the request or its answer is lost. After `die` every call raises.
    """

    login_refused = False
    default_acl = None
    logger = logging.getLogger("kazoo.client")

    def __init__(self, memory: Memory, chroot: str = "") -> None:
        self.memory, self.chroot = memory, chroot
        self.session = next(memory.sessions)
        self.client_id = (self.session, b"")
        self.handler = self
        self.changing: Callable[[bool], contextlib.AbstractContextManager[None]] = _undisturbed
        self._death: BaseException | None = None

    @property
    def connected(self) -> bool:
        return self._death is None

    def add_listener(self, listener: object) -> None:
        """The state never changes."""

    def die(self, death: BaseException) -> None:
        """Every later call raises this. Ephemeral znodes stay until the session is ended."""
        self._death = death

    def start(self, timeout: float = 0) -> None:
        pass

    def stop(self) -> None:
        self.memory.end(self.session)

    def close(self) -> None:
        pass

    def retry(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call again after a lost answer."""
        try:
            return call(*args, **more)
        except ConnectionLoss:
            return call(*args, **more)

    def command(self, name: bytes) -> str:
        """This server answers none, so nothing is known of its version."""
        raise ConnectionLoss(name)

    def acl_of(self, path: str) -> list[Any]:
        del path
        return OPEN_ACL_UNSAFE  # type: ignore[no-any-return]

    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        found = self._find(path)
        return found.payload, found.stat

    def exists(self, path: str, watch: object = None) -> ZnodeStat | None:
        self._require()
        found = self.memory.znodes.get(self._full(path))
        return found.stat if found else None

    def get_children(self, path: str, watch: object = None) -> list[str]:
        found = self._find(path)
        return list(found.children)

    def sync(self, path: str) -> str:
        self._require()
        return path

    def create(
        self,
        path: str,
        value: bytes = b"",
        acl: object = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> str:
        del acl
        if makepath:
            self.ensure_path(_parent_and_name(path)[0])
        owner = self.session if ephemeral else 0
        full = self._full(path)
        return self._change(  # type: ignore[no-any-return]
            lambda: self.memory.create(full, value, owner, sequence=sequence)
        )

    def ensure_path(self, path: str) -> bool | str:
        full = self._full(path)
        self._require()
        if full in self.memory.znodes:
            return True
        self._change(lambda: self.memory.ensure(full), is_of_parents=True)
        return path

    def set(self, path: str, value: bytes, version: int = -1) -> ZnodeStat:
        full = self._full(path)
        return self._change(lambda: self.memory.write(full, value, version).stat)

    def delete(self, path: str, version: int = -1, recursive: bool = False) -> bool | None:
        full = self._full(path)
        if recursive:
            is_there = full in self.memory.znodes
            self._change(lambda: self.memory.delete_tree(full))
            return None if is_there else True
        self._change(lambda: self.memory.delete(full, version))
        return True

    def transaction(self) -> TransactionRequest:
        return TransactionRequest(self)

    def get_async(self, path: str) -> Answer:
        return _answered(lambda: self.get(path))

    def get_children_async(self, path: str) -> Answer:
        return _answered(lambda: self.get_children(path))

    def create_async(self, path: str) -> Answer:
        """As `create`, of a znode that is a parent only."""
        full = self._full(path)
        return _answered(
            lambda: self._change(lambda: self.memory.create(full, b""), is_of_parents=True)
        )

    @staticmethod
    def async_result() -> Answer:
        """As kazoo's handler: what a transaction is answered by."""
        return Answer()

    def _call(self, request: Transaction, answer: Answer) -> None:
        try:
            results = self._change(lambda: self.memory.transact(request.operations, self.session))
        except KazooException as error:
            answer.error = error
            return
        answer.value = [self._below_chroot(result) for result in results]

    def _below_chroot(self, result: Any) -> Any:
        return result.removeprefix(self.chroot) if isinstance(result, str) else result

    def _change(self, do: Callable[[], Any], *, is_of_parents: bool = False) -> Any:
        self._require()
        with self.changing(is_of_parents):
            self._require()
            return self._below_chroot(do())

    def _find(self, path: str) -> Znode:
        self._require()
        return self.memory.find(self._full(path))

    def _full(self, path: str) -> str:
        return (self.chroot + path).rstrip("/") or "/"

    def _require(self) -> None:
        if self._death is not None:
            raise self._death


def _answered(request: Callable[[], Any]) -> Answer:
    answer = Answer()
    try:
        answer.value = request()
    except KazooException as error:
        answer.error = error
    return answer


class MemoryZooKeeper(ZooKeeper):
    """A session of the real class over these znodes."""

    client: Any

    def __init__(self, memory: Memory, chroot: str = "") -> None:
        self.hosts, self.chroot = "memory", chroot
        self._connect_timeout_s, self._access = 0, OPEN_ZOOKEEPER
        self.client = MemoryClient(memory, chroot)
        self.life = SessionLife(self.client, self.hosts)
        self._reads_many = None

    def at_root(self) -> MemoryZooKeeper:
        """Return another session without the chroot."""
        return MemoryZooKeeper(self.client.memory)
