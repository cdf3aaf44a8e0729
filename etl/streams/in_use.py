"""Who is using a consumer: one thread at a time, in which a listener may call it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from etl.errors import ConsumerInUse, NotAssigned


class InUse:
    """One consumer's."""

    def __init__(self) -> None:
        self._lock, self._is_inside = threading.RLock(), False
        self.is_closed = False

    @contextmanager
    def alone(self, *, nests: bool = True) -> Iterator[None]:
        """Inside it is this thread's. Raises ConsumerInUse where it is another one's, or a
        listener's where it does not nest; NotAssigned once closed."""
        if not self._lock.acquire(blocking=False):
            raise ConsumerInUse(
                "another thread is using this consumer",
                check="that each thread has a Consumer of its own",
            )
        try:
            if self.is_closed:
                raise NotAssigned("the consumer is closed", check="a new Consumer")
            if self._is_inside and not nests:
                what = "a listener polls or closes the consumer that called it, or says anew what it reads"
                raise ConsumerInUse(what, check="the listener: it may commit and seek")
            before, self._is_inside = self._is_inside, True
            try:
                yield
            finally:
                self._is_inside = before
        finally:
            self._lock.release()
