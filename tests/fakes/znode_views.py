"""Mappings of the znodes of one pipeline and its group, for tests that read or change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Generic, TypeVar

from etl.ledger.owner_nodes import parse_owner
from etl.ledger.znode_paths import GroupPaths, PipelinePaths
from etl.model.partitions import TopicPartition, parse_partition_key
from tests.fakes.zookeeper_memory import Memory, Znode

GROUP, PIPELINE = "group", "clicks"
IN_GROUP, IN_PIPELINE = GroupPaths(GROUP), PipelinePaths(GROUP, PIPELINE)
FOREIGN_SESSION = -1
"""Session of all clients that are not ours."""
K = TypeVar("K")
V = TypeVar("V")


class View(MutableMapping[K, V], Generic[K, V]):
    """The znodes of one kind, by key. A copy is a plain dictionary."""

    def __init__(
        self,
        memory: Memory,
        keys: Callable[[Memory], list[K]],
        path: Callable[[K], str],
        read: Callable[[Znode], V],
        write: Callable[[Znode, V], None],
    ) -> None:
        self._memory, self._keys, self._path = memory, keys, path
        self._read, self._write = read, write

    def __getitem__(self, key: K) -> V:
        found = self._memory.znodes.get(self._path(key))
        if found is None:
            raise KeyError(key)
        return self._read(found)

    def __setitem__(self, key: K, value: V) -> None:
        path = self._path(key)
        self._memory.delete_tree(path)
        self._memory.ensure(path)
        self._write(self._memory.find(path), value)

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._memory.delete_tree(self._path(key))

    def __iter__(self) -> Iterator[K]:
        return iter(sorted(self._keys(self._memory)))  # type: ignore[type-var]

    def __len__(self) -> int:
        return len(self._keys(self._memory))

    def __deepcopy__(self, memo: object) -> dict[K, V]:
        return dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))


def put(view: MutableMapping[K, V], found: MutableMapping[K, V]) -> None:
    """Write these znodes in the place of all of the view."""
    wanted = dict(found)
    view.clear()
    view.update(wanted)


def documents(
    memory: Memory, parent: str, path: Callable[[K], str], key: Callable[[str], Any] = str
) -> View[K, bytes]:
    def keys(memory: Memory) -> list[K]:
        return [key(name) for name in memory.children(parent)]

    def write(made: Znode, payload: bytes) -> None:
        made.payload = payload

    return View(memory, keys, path, lambda found: found.payload, write)


def offsets(memory: Memory) -> View[TopicPartition, tuple[int, int]]:
    def write(made: Znode, value: tuple[int, int]) -> None:
        made.payload, made.version = b"%d" % value[0], value[1]

    return View(
        memory,
        lambda memory: _partitions(memory, IN_GROUP.offsets),
        IN_GROUP.offset,
        lambda found: (int(found.payload), found.version),
        write,
    )


def owner_nodes(memory: Memory) -> View[TopicPartition, str]:
    """The thread that owns each partition. This program writes its nodes twice."""

    def write(made: Znode, owner: str) -> None:
        made.payload, made.session = owner.encode(), FOREIGN_SESSION
        made.version = 1 if parse_owner(GROUP, owner) else 0

    return View(
        memory,
        lambda memory: _partitions(memory, IN_GROUP.owners),
        IN_GROUP.owner,
        lambda found: found.payload.decode(),
        write,
    )


def _partitions(memory: Memory, parent: str) -> list[TopicPartition]:
    found = []
    for topic in memory.children(parent):
        for name in memory.children(f"{parent}/{topic}"):
            partition = parse_partition_key(topic, name)
            assert partition is not None
            found.append(partition)
    return found
