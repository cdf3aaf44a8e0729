"""Counts what this process asks brokers: how many requests each answered, how long that was waited
for, and how many bytes went over.

One count for a process, as a process is what a driver or a task is; who wants to know of a stretch
of time takes the difference (`model.plans.since`). It only grows, by one entry for each
address that is asked.
"""

from __future__ import annotations

import threading

from etl.model.plans import NO_REQUESTS, Requests


class RequestMeter:
    """May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Requests] = {}

    def add(self, broker: str, more: Requests) -> None:
        """So much more of the broker at that address."""
        with self._lock:
            self._found[broker] = self._found.get(broker, NO_REQUESTS) + more

    def told(self) -> dict[str, Requests]:
        """All of it until now."""
        with self._lock:
            return dict(self._found)


OF_THIS_PROCESS = RequestMeter()
