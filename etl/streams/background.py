"""How does a poll wait for requests no longer than its timeout?

Each request of a consumer runs in a lane, a thread that makes one call after the other: one lane
for each leader, one for all other broker requests, one for the group. A poll starts calls, waits
for a result until its timeout, and leaves later results to the next poll.

Not here: the calls (etl/streams/fetches.py, etl/streams/positions.py,
etl/streams/group_member.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
_CLOSED_WITHIN_S = 1.0
"""Time to wait for an idle lane to end; a call that waits for a silent server is left alone."""


class Results:
    """Wakes the thread that polls when a call has a result.

    A queue, because Ctrl-C in the middle of `Event.wait` may leave the event's lock held: then each
    lane would wait for it.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[None] = SimpleQueue()

    def notify(self) -> None:
        """Wake the thread in `wait`, or the next one that calls it."""
        if self._arrived.empty():
            self._arrived.put(None)

    def wait(self, deadline: float) -> None:
        """Wait for a result that arrived since the last call, until `time.monotonic` is that."""
        with contextlib.suppress(Empty):
            self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        # Two lanes may have notified at once.
        with contextlib.suppress(Empty):
            while True:
                self._arrived.get_nowait()


class Lane:
    """A daemon thread that makes calls in their order. The first call starts it."""

    def __init__(self, name: str, results: Results) -> None:
        self._name = name
        self._results = results
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        """True in the lane's own thread."""
        return threading.current_thread() is self._thread

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make the call in the lane. It notifies `results` when it is done."""
        result: Future[T] = Future()

        def make() -> None:
            try:
                result.set_result(call())
            except BaseException as error:  # raised by the thread that takes the result
                result.set_exception(error)
            self._results.notify()

        self._calls.put(make)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"streams: {self._name}", daemon=True
            )
            self._thread.start()
        return result

    def call(self, call: Callable[[], T]) -> T:
        """Make the call in the lane, wait for it, and return its result."""
        return self.submit(call).result()

    def close(self, last: Callable[[], object], *, wait_s: float = _CLOSED_WITHIN_S) -> None:
        """Make this call after all others, and end the lane.

        Returns after `wait_s` if a call still waits for a silent server.
        """
        result = self.submit(last)
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(wait_s)
        if result.done():
            result.result()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            call()
