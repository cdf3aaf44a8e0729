"""`python -m tests.stores.rpc_faults PORT STORE_PORT RULES`: the way to a name node of HDFS. See
`tests.stores.way`.

A connection begins with seven bytes; then each side sends frames, four bytes of length and that
many. A call has its method's name and the paths as texts in its frame. Data goes to data nodes
directly.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from etl.testkit.server_process import HOST
from tests.fakes.sockets import exactly
from tests.stores.way import Kept

_HEADER_BYTES = 7
_SOON_S = 60.0


class _Link:
    """One client's connection, and ours to the name node."""

    def __init__(self, client: socket.socket, store_port: int, kept: Kept) -> None:
        self._client, self._kept = client, kept
        self._store = socket.create_connection((HOST, store_port))
        self._fault: str | None = None
        """What befalls the next answer."""
        self._is_answered = threading.Event()

    def calls(self) -> None:
        """Forward the client's requests until one side closes."""
        with self._ending():
            self._store.sendall(exactly(self._client, _HEADER_BYTES))
            threading.Thread(target=self._answers, daemon=True).start()
            while True:
                frame = _frame(self._client)
                fault = self._kept.fault(
                    lambda method, part: method.encode() in frame and part.encode() in frame
                )
                if fault == "half":
                    self._store.sendall(frame[: len(frame) // 2])
                    self._kept.is_let_go()
                    return
                if fault == "late" and not self._kept.is_let_go():
                    return
                self._fault = fault or self._fault
                self._store.sendall(frame)
                if fault == "late":
                    self._is_answered.wait(
                        _SOON_S
                        # the client may be gone: the name node does not answer a closed connection
                    )

    def _answers(self) -> None:
        with self._ending():
            while True:
                frame, fault = _frame(self._store), self._fault
                if fault == "lose" or fault == "late_answer" and not self._kept.is_let_go():
                    return
                if fault is not None:
                    self._kept.answered()
                    self._is_answered.set()
                self._fault = None
                self._client.sendall(frame)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """The end of one side ends both."""
        with contextlib.suppress(OSError, EOFError):
            yield
        for end in (self._client, self._store):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _frame(link: socket.socket) -> bytes:
    length = exactly(link, 4)
    return length + exactly(link, int.from_bytes(length))


def main(port: str, store_port: str, rules: str) -> None:
    kept = Kept(Path(rules))
    with socket.create_server((HOST, int(port))) as server:
        while True:
            client, _ = server.accept()
            link = _Link(client, int(store_port), kept)
            threading.Thread(target=link.calls, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
