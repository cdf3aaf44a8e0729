"""What Kafka's and ZooKeeper's protocols have in common, for the proxies: four bytes of length, then that many."""

from __future__ import annotations

import contextlib
import socket


def read_frame(connection: socket.socket) -> bytes | None:
    """One frame with its length; None when the other side has hung up, or ours is closed."""
    with contextlib.suppress(OSError):
        length = _exactly(connection, 4)
        content = _exactly(connection, int.from_bytes(length, "big")) if length else None
        return length + content if length and content is not None else None
    return None


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    got = bytearray()
    while len(got) < size:
        piece = connection.recv(size - len(got))
        if not piece:
            return None
        got += piece
    return bytes(got)
