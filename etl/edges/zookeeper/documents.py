"""Documents of a pipeline in ZooKeeper, each whole or not at all.

One too large for a znode is written as pieces first and then named by one znode that holds their
hash.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kazoo.client import TransactionRequest
from kazoo.protocol.serialization import CheckVersion, Create, SetData

from etl.edges.zookeeper.session import NODE_MAX_BYTES, ZooKeeper
from etl.errors import LedgersDisagree
from etl.ledger.paths import PipelinePaths

REQUEST_MAX_BYTES = 1_000_000
"""Of a transaction: a server takes 1,048,575 bytes of a request unless it is told otherwise."""
_OPERATION_BYTES = 25
"""What a check or a write costs besides path and payload."""
_PIECES_MAX = 10_000
"""A document in more pieces than this is not one of ours."""


@dataclass(frozen=True, slots=True)
class _Index:
    """What the znode of a document in pieces holds."""

    digest: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Write:
    """What a znode is to hold."""

    path: str
    payload: bytes
    version: int | None
    """The one that it has now; None: it is not there."""

    def add_to(self, request: TransactionRequest) -> None:
        """As a part of a transaction; without kazoo's look at each path, which of thousands takes
        longer than all else.
        """
        path = request.client.chroot + self.path
        if self.version is None:
            request.operations.append(
                Create(path, self.payload, request.client.acl_of(self.path), 0)
            )
        else:
            request.operations.append(SetData(path, self.payload, self.version))


@dataclass(frozen=True, slots=True)
class Check:
    """What a znode is to be when others are written."""

    path: str
    version: int

    def add_to(self, request: TransactionRequest) -> None:
        """As a part of a transaction: all of it is refused where the znode has another version, or
        is not there.
        """
        request.operations.append(CheckVersion(request.client.chroot + self.path, self.version))


Part = Write | Check
"""Of a transaction."""


def size_of(parts: Iterable[Part]) -> int:
    """About how many bytes of a request these are, without the chroot."""
    return sum(
        _OPERATION_BYTES + len(one.path) + (len(one.payload) if isinstance(one, Write) else 0)
        for one in parts
    )


class Documents:
    """The documents of one pipeline. Raises what `ZooKeeper` raises, and LedgersDisagree on what is
    not ours.
    """

    def __init__(self, zookeeper: ZooKeeper, paths: PipelinePaths) -> None:
        self._zookeeper = zookeeper
        self._paths = paths

    def read(self, path: str) -> tuple[bytes, int] | None:
        """A document and the version of the znode that holds or names it."""
        found = self._zookeeper.read(path)
        if not found or not found[0]:
            return None
        if not found[0].startswith(b"{"):
            return found
        index = _index(found[0], path)
        pieces = self._zookeeper.read_all(
            [self._paths.chunk(index.digest, i) for i in range(index.count)]
        )
        whole = b"".join(p[0] for p in pieces if p)
        if hashlib.sha256(whole).hexdigest() == index.digest:
            return whole, found[1]
        check = "whether ZooKeeper was restored from a copy"
        raise LedgersDisagree("pieces of the document are missing", znode=path, check=check)

    def create(self, path: str, payload: bytes) -> bool:
        """Put a document where there is none; False where there is one."""
        return self._zookeeper.create(path, self.head(payload))

    def put(self, path: str, payload: bytes) -> bool:
        """Put a document in the place of whatever is there, or where there is none; False when
        somebody else changed it at this moment.
        """
        found = self._zookeeper.read(path)
        return self.replace(path, payload, version=found[1] if found else None)

    def replace(
        self,
        path: str,
        payload: bytes,
        *,
        version: int | None,
        deleting: Sequence[str] = (),
        absent: Sequence[str] = (),
    ) -> bool:
        """Replace the document of that version (None: there was none) and delete others, all or
        nothing.

        False, and nothing is done, when somebody else changed one of them since, or where a znode
        of `absent` is there.
        """
        head, request = self.head(payload), self._zookeeper.client.transaction()
        if version is not None:
            request.set_data(path, head, version=version)
        else:
            request.create(path, head)
        for gone in deleting:
            request.delete(gone)
        for free in (
            absent
        ):  # no transaction can ask that: made and deleted in one go, it fails where it is there
            request.create(free, b"")
            request.delete(free)
        return self._zookeeper.transact(request, path)

    def head(self, payload: bytes, *, beside: Iterable[Part] = ()) -> bytes:
        """What the znode itself holds: the document, or the hash of its pieces, which are written
        before this returns.

        `beside`: what is written with it in one request; whoever has more of that than a request
        holds is refused by whoever sends it.
        """
        if len(payload) <= min(NODE_MAX_BYTES, REQUEST_MAX_BYTES - size_of(beside)):
            return payload
        digest = hashlib.sha256(payload).hexdigest()
        pieces = [payload[i : i + NODE_MAX_BYTES] for i in range(0, len(payload), NODE_MAX_BYTES)]
        for i, piece in enumerate(pieces):
            self._zookeeper.create(self._paths.chunk(digest, i), piece)
        return json.dumps({"chunks": digest, "count": len(pieces), "bytes": len(payload)}).encode()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Bytes of each document; one in pieces is as large as its pieces. None where there is
        none.
        """
        stored = self._zookeeper.read_all(paths)
        return [
            _size(found[0], path) if found else None
            for found, path in zip(stored, paths, strict=True)
        ]

    def pieces(self) -> list[str]:
        """The hash of each document that has pieces, whether a znode names it or not."""
        return self._zookeeper.children(self._paths.all_chunks) or []

    def drop_pieces(self, digests: Collection[str], *, but_of: Sequence[str]) -> None:
        """Delete the pieces of these hashes that no document at `but_of` names."""
        named = b" ".join(
            p[0] for p in self._zookeeper.read_all([*but_of]) if p and p[0].startswith(b"{")
        )
        for digest in digests:
            if digest.encode() not in named:
                self._zookeeper.delete_tree(self._paths.chunks(digest))


def _size(payload: bytes, path: str) -> int:
    return _index(payload, path).size if payload.startswith(b"{") else len(payload)


def _index(payload: bytes, path: str) -> _Index:
    try:
        found = json.loads(payload)
        index = _Index(found["chunks"], int(found["count"]), int(found["bytes"]))
        if not re.fullmatch("[0-9a-f]{64}", index.digest) or not 0 < index.count <= min(
            index.size, _PIECES_MAX
        ):
            raise ValueError("it names no pieces of ours")
        return index
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise LedgersDisagree(
            "the znode does not hold what it should", znode=path, check="who wrote it"
        ) from error
