"""Frames of Kafka and ZooKeeper (four bytes of length), and a port that is no broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


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


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of this machine that sends `answer` to each client, one after the other."""
    server = socket.create_server(("127.0.0.1", 0))
    served: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                served.append(connection)
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    connection.recv(1, socket.MSG_PEEK)
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in tuple(served):  # one that a reader keeps for later would be waited for
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(10)
