"""Who is using a consumer: one thread at a time, in which a listener may call it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from etl.errors import ConsumerInUse, NotAssigned


class InUse:
    """One consumer's."""

    def __init__(self) -> None:
        self._lock, self._is_polling = threading.RLock(), False
        self.is_closed = False

    @contextmanager
    def alone(self, *, polls: bool = False) -> Iterator[None]:
        """Inside it is this thread's. Raises ConsumerInUse where it is another one's, or a listener polls; NotAssigned once closed."""
        if not self._lock.acquire(blocking=False):
            raise ConsumerInUse("another thread is using this consumer", check="that each thread has a Consumer of its own")
        try:
            if self.is_closed:
                raise NotAssigned("the consumer is closed", check="a new Consumer")
            if polls and self._is_polling:
                raise ConsumerInUse("a listener polls the consumer that called it", check="the listener: it may commit and seek")
            before, self._is_polling = self._is_polling, self._is_polling or polls
            try:
                yield
            finally:
                self._is_polling = before
        finally:
            self._lock.release()
