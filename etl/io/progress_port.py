"""How do tasks report their progress to the driver?

They send UDP datagrams, as Spark's accumulators arrive only when a task has ended. A datagram has
the totals of one attempt, so a later one replaces lost ones. No result depends on them; if the port
is unreachable, progress follows range results. Tasks never wait for a send. The driver accepts only
datagrams of the right length with the run's random token, from its own tasks.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from etl.report.run_progress import AttemptProgress

_FORM = struct.Struct(">16sIIQQQ")
"""Token, task, attempt, offsets, records, bytes."""
_EVERY_S = 0.5
_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class ProgressAddress:
    """The address to which tasks send progress, and the token that identifies the run."""

    host: str
    port: int
    token: bytes


class ProgressPort:
    """The driver's port, which receives the progress of its tasks."""

    def __init__(self, planned: Mapping[int, int], *, bind: str | None, host: str) -> None:
        """`planned`: offsets by task. `bind`: the driver's own address, None for no port; `host`:
        the one that executors know it by.
        """
        self.last_progress: dict[int, AttemptProgress] = {}
        """The last progress of each task."""
        self.began: float | None = None
        """Time of the first report of any task, by `time.monotonic`."""
        self.address: ProgressAddress | None = None
        self._planned = planned
        self._closed = threading.Event()
        listening = None
        if bind:
            listening = _opened(bind)
        if listening is not None:
            self.address = ProgressAddress(
                host, listening.getsockname()[1], secrets.token_bytes(16)
            )
            threading.Thread(
                target=self._listen,
                args=(listening, self.address.token),
                name="progress",
                daemon=True,
            ).start()

    def close(self) -> None:
        """Close the port; received progress stays."""
        self._closed.set()

    def _listen(self, listening: socket.socket, token: bytes) -> None:
        with listening:
            while not self._closed.is_set():
                try:
                    self._take(listening.recv(_FORM.size + 1), token)
                except TimeoutError:
                    continue
                except OSError:  # the machine's network is shutting down
                    self._closed.wait(_WAIT_S)

    def _take(self, datagram: bytes, token: bytes) -> None:
        if len(datagram) != _FORM.size:
            return
        plan_hash, task, attempt, offsets, records, size = _FORM.unpack(datagram)
        if not hmac.compare_digest(plan_hash, token) or task not in self._planned:
            return
        before = self.last_progress.get(task)
        if before is None or attempt >= before.attempt:
            most = self._planned[task]
            self.last_progress[task] = AttemptProgress(
                attempt, min(offsets, most), min(records, most), size
            )
        if self.began is None:
            self.began = time.monotonic()


class ProgressSender:
    """Sends the progress of one task. Without an address it sends nothing."""

    def __init__(
        self,
        address: ProgressAddress | None,
        task: int,
        attempt: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task = task
        self._attempt = attempt
        self._clock = clock
        self._token = b""
        self._socket: socket.socket | None = None
        self._read: dict[int, tuple[int, int, int]] = {}
        self._sum = [0, 0, 0]
        self._next = 0.0
        if address is not None:
            self._token = address.token
            self._socket = _connected(address)
            # Reports the start of the task; its first records are sent at once, too.
            self._send()

    def read(self, index: int, offsets: int, records: int, size: int) -> None:
        """Report one range: offsets passed, records and bytes so far."""
        if self._socket is None:
            return
        now_read = (offsets, records, size)
        before = self._read.get(index, (0, 0, 0))
        self._read[index] = now_read
        for i in range(3):
            self._sum[i] += now_read[i] - before[i]
        if self._clock() >= self._next:
            self._send()
            self._next = self._clock() + _EVERY_S

    def close(self) -> None:
        """Send once more, then nothing."""
        if self._socket is not None:
            self._send()
            self._socket.close()
            self._socket = None

    def _send(self) -> None:
        # Without a receiver, buffer space or network nothing is sent.
        with contextlib.suppress(OSError, struct.error):
            if self._socket is not None:
                self._socket.send(_FORM.pack(self._token, self._task, self._attempt, *self._sum))


def _opened(bind: str) -> socket.socket | None:
    """Return a socket bound to a free port; None if there is none."""
    return _made(bind, 0, socket.socket.bind, wait_s=_WAIT_S, flags=socket.AI_PASSIVE)


def _connected(address: ProgressAddress) -> socket.socket | None:
    """Return a socket that never waits when it sends.

    Spark's own connections of this executor have resolved the name before.
    """
    return _made(address.host, address.port, socket.socket.connect, wait_s=0)


def _made(
    host: str,
    port: int,
    join: Callable[[socket.socket, Any], None],
    *,
    wait_s: float,
    flags: int = 0,
) -> socket.socket | None:
    """Return a datagram socket that is bound or connected by `join`; None after an error."""
    with contextlib.suppress(OSError, UnicodeError):
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_DGRAM, flags=flags
        )[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(wait_s)
            join(made, place)
            return made
        except OSError:
            made.close()
    return None
