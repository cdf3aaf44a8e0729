"""What Kafka's and ZooKeeper's protocols have in common on a socket, for fakes and proxies: four
bytes of length, then that many.
"""

from __future__ import annotations

import contextlib
import socket


def exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; EOFError when the other side hangs up before."""
    content = bytearray()
    while len(content) < count:
        got = connection.recv(count - len(content))
        if not got:
            raise EOFError
        content += got
    return bytes(content)


def read_frame(connection: socket.socket) -> bytes | None:
    """One frame with its length; None when the other side has hung up, or ours is closed."""
    with contextlib.suppress(OSError, EOFError):
        length = exactly(connection, 4)
        return length + exactly(connection, int.from_bytes(length, "big"))
    return None
