"""Many small requests on one session, all sent before the first answer is awaited: a round trip for
all of them, not for each.

ZooKeeper serves the requests of a session in the order in which they were sent, and kazoo sends
them in the order of its calls: what is asked or written behind these finds them done. One that is
refused keeps none of the others back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData

from etl.edges.zookeeper.session import NO_ANSWER, ZooKeeper

Outcome = list[Any] | Exception
"""What a transaction came to, as kazoo tells it: a result or an error for each part of it; or that
no answer came.
"""


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
    """The parts of one transaction: kazoo's own without its look at each path, which for a hundred
    thousand paths takes a second.
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
        """The same, to delete it."""
        self.request.operations.append(Delete(self._chroot + path, version))

    def check(self, path: str, version: int) -> None:
        """That the znode is there, at this version."""
        self.request.operations.append(CheckVersion(self._chroot + path, version))

    def send(self) -> Any:
        """Send all of it, to be done or not as one, and do not wait. Raises SessionLost when our
        session has ended: nothing that was read before counts any more."""
        self._zookeeper.require_session()
        return self.request.commit_async()


def outcomes(sent: Iterable[Any]) -> list[Outcome]:
    """What became of transactions that were sent, once all of them are answered."""
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
