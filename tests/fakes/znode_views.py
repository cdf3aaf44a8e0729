"""What the znodes of one pipeline and its group hold, for tests that look at them or change them
as an operator, a copy or another client does: a mapping of each kind of document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Generic, TypeVar

from etl.ledger.registrations import parse_owner
from etl.ledger.znode_paths import GroupPaths, PipelinePaths
from etl.model.partitions import TopicPartition, parse_partition_key
from tests.fakes.zookeeper_memory import Memory, Znode

GROUP, PIPELINE = "group", "clicks"
OFFSETS, DOCUMENTS = GroupPaths(GROUP), PipelinePaths(GROUP, PIPELINE)
FOREIGN_SESSION = -1
"""Session of all clients that are not ours."""
K = TypeVar("K")
V = TypeVar("V")


class _View(MutableMapping[K, V], Generic[K, V]):
    """The znodes of one kind. A copy is a plain dictionary."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __getitem__(self, key: K) -> V:
        found = self._memory.znodes.get(self.path(key))
        if found is None:
            raise KeyError(key)
        return self.value(found)

    def __setitem__(self, key: K, value: V) -> None:
        path = self.path(key)
        self._memory.delete_tree(path)
        self._memory.ensure(path.rpartition("/")[0])
        self._memory.create(path, b"")
        self.write(self._memory.find(path), value)

    def __delitem__(self, key: K) -> None:
        if self.path(key) not in self._memory.znodes:
            raise KeyError(key)
        self._memory.delete_tree(self.path(key))

    def __iter__(self) -> Iterator[K]:
        return iter(sorted(self.keys_of()))  # type: ignore[type-var]

    def __len__(self) -> int:
        return len(self.keys_of())

    def __copy__(self) -> dict[K, V]:
        return dict(self)

    def __deepcopy__(self, memo: object) -> dict[K, V]:
        return dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def children(self, path: str) -> list[str]:
        """Return the names of the children."""
        found = self._memory.znodes.get(path)
        return list(found.children) if found else []

    def path(self, key: K) -> str:
        """Return the path of a key."""
        raise NotImplementedError

    def keys_of(self) -> list[K]:
        """Return all keys."""
        raise NotImplementedError

    def value(self, found: Znode) -> V:
        """Return the value of a znode."""
        raise NotImplementedError

    def write(self, made: Znode, value: V) -> None:
        """Write the value to a new znode."""
        raise NotImplementedError


class _Children(_View[K, V]):
    """The children of one znode."""

    def __init__(
        self,
        memory: Memory,
        parent: str,
        path: Callable[[K], str],
        key: Callable[[str], Any] = str,
    ) -> None:
        super().__init__(memory)
        self._parent, self._path, self._key = parent, path, key

    def path(self, key: K) -> str:
        """See `_View`."""
        return self._path(key)

    def keys_of(self) -> list[K]:
        """See `_View`."""
        return [self._key(name) for name in self.children(self._parent)]


class Documents(_Children[K, bytes]):
    """The payloads of the children of one znode."""

    def value(self, found: Znode) -> bytes:
        """See `_View`."""
        return found.payload

    def write(self, made: Znode, value: bytes) -> None:
        """See `_View`."""
        made.payload = value


class Versions(_Children[K, int]):
    """The versions of the same znodes, which must exist."""

    def value(self, found: Znode) -> int:
        """See `_View`."""
        return found.version

    def __setitem__(self, key: K, value: int) -> None:
        self._memory.find(self.path(key)).version = value


class _Partitions(_View[TopicPartition, V]):
    parent: str

    def keys_of(self) -> list[TopicPartition]:
        """See `_View`."""
        found = []
        for topic in self.children(self.parent):
            for name in self.children(f"{self.parent}/{topic}"):
                partition = parse_partition_key(topic, name)
                assert partition is not None
                found.append(partition)
        return found


class Offsets(_Partitions[tuple[int, int]]):
    """Value and version of each committed offset."""

    parent = OFFSETS.offsets

    def path(self, key: TopicPartition) -> str:
        """See `_View`."""
        return OFFSETS.offset(key)

    def value(self, found: Znode) -> tuple[int, int]:
        """See `_View`."""
        return int(found.payload), found.version

    def write(self, made: Znode, value: tuple[int, int]) -> None:
        """See `_View`."""
        made.payload, made.version = b"%d" % value[0], value[1]


class OwnerNodes(_Partitions[str]):
    """The thread that owns each partition."""

    parent = OFFSETS.owners

    def path(self, key: TopicPartition) -> str:
        """See `_View`."""
        return OFFSETS.owner(key)

    def value(self, found: Znode) -> str:
        """See `_View`."""
        return found.payload.decode()

    def write(self, made: Znode, value: str) -> None:
        """See `_View`; this program writes its nodes twice."""
        made.payload, made.session = value.encode(), FOREIGN_SESSION
        made.version = 1 if parse_owner(GROUP, value) else 0
