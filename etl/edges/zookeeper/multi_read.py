"""Many znodes read by few requests: multiRead, which servers know from ZooKeeper 3.6 on and kazoo
does not know yet.

A multiRead is read as one: no write of anybody comes between its first znode and its last. A server
before 3.6 hangs up on it, so a server is asked before what it is (`srvr`, which no whitelist lacks
by default); one that does not say is asked for each znode.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionLoss, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

FEWEST = 200
"""Below so many znodes nobody asks what the server is: reads that are sent together cost less than
that.
"""
_PATHS_OF_ONE = 4_000
"""Requests of this size are answered in some milliseconds, so that none keeps the session's
heartbeat waiting.
"""
_GET_DATA, _MULTI_READ, _ERROR = 4, 22, -1
_HEADER, _NUMBER, _STAT = struct.Struct("!iBi"), struct.Struct("!i"), struct.Struct("!32xi8xq16x")
_ASKED = _HEADER.pack(_GET_DATA, False, -1)
_END = _HEADER.pack(-1, True, -1)


class Znode(NamedTuple):
    """What one holds."""

    payload: bytes
    version: int
    owner_session: int
    """The session whose end deletes it; 0: none does."""


class MultiRead(NamedTuple):
    """The request, as kazoo's connection takes one. Paths have the chroot in front."""

    paths: Sequence[str]

    @property
    def type(self) -> int:
        """Its number in ZooKeeper's protocol."""
        return _MULTI_READ

    def serialize(self) -> bytes:
        """Behind the number of the request and its type."""
        asked = bytearray()
        for path in self.paths:
            name = path.encode()
            asked += _ASKED + _NUMBER.pack(len(name)) + name + b"\0"  # no watch
        return bytes(asked + _END)

    @staticmethod
    def deserialize(content: bytes, at: int) -> list[Znode | None]:
        """None where there is no such znode. Raises what kazoo raises for any other refusal of one,
        ValueError for what is no answer.
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
    """Whether the server that we talk to says that it is of 3.6 or later."""
    try:
        told = re.search(r"[Vv]ersion: (\d+)\.(\d+)", client.command(b"srvr"))
    except (
        ConnectionLoss,
        KazooTimeoutError,
        OSError,
        AttributeError,
    ):  # AttributeError: kazoo has no socket at this moment
        return False
    return told is not None and (int(told[1]), int(told[2])) >= (3, 6)


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
