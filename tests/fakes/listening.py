"""A port that is no broker: it sends any answer to the first request."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def listening(
    answer: Callable[[socket.socket], None], *, side_by_side: bool = False
) -> Iterator[int]:
    """A port of this machine that sends `answer` to each client, one after the other or in
    parallel.
    """
    server = socket.create_server(("127.0.0.1", 0))
    served: list[socket.socket] = []

    def serve_one(connection: socket.socket) -> None:
        served.append(connection)
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            connection.recv(1, socket.MSG_PEEK)
            answer(connection)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                if side_by_side:
                    threading.Thread(target=serve_one, args=(connection,), daemon=True).start()
                else:
                    serve_one(connection)

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
