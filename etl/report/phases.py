"""What a run's time goes to: the phases by their names, and a watch by which every moment belongs
to one of them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from etl.report.progress import ReadSoFar

_log = logging.getLogger(__name__)


class Verb(str, Enum):
    """The phases of a run, in their order. Six are the verbs of the story; the others are what the
    world around it takes.
    """

    CONNECT = "connect"
    """ZooKeeper's session, and waiting for another driver."""
    OBSERVE = "observe"
    RECONCILE = "reconcile"
    PLAN = "plan"
    START_SPARK = "start_spark"
    """From nothing to a session: mostly the start of the JVM."""
    FIRST_JOB = "first_job"
    """From a session to the first task that reads: Delta's look at the table, the first Python
    workers.
    """
    FETCH = "fetch"
    """Tasks read the brokers, and write the table's files while they read."""
    APPEND = "append"
    """From the last task's end: the table's commit, and reading the table again."""
    COMMIT = "commit"
    COMPACT = "compact"
    """Small files of the table put together, where the conf asks for it."""
    CLOSE = "close"
    """Spark's end, and giving up the driver's lock."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What a run is at."""

    verb: Verb | None
    reached: ReadSoFar | None = None


class Phases(Protocol):
    """Where whoever works says what it works at."""

    def timed(self, verb: Verb) -> contextlib.AbstractContextManager[None]:
        """What passes inside belongs to `verb`, but for what belongs to a verb further inside."""

    def reckon(self, verb: Verb, seconds: float) -> None:
        """That many seconds of the verb that is open now were `verb`, as is known only afterwards."""

    def reading(self, doing: Callable[[], Doing]) -> contextlib.AbstractContextManager[None]:
        """Inside, tasks read: `doing` tells at any moment which verb that is by now and how far
        they are.
        """


class Stopwatch:
    """Seconds by verb. What is inside another one is taken from that one, so that their sum is the
    time that passed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: dict[Verb, float] = {}
        self._clock = clock
        self._inside = 0.0
        """Seconds of the open verb that were given to others."""
        self._open: list[Verb] = []
        self._reading: Callable[[], Doing] | None = None

    @contextlib.contextmanager
    def timed(self, verb: Verb) -> Iterator[None]:
        """See `Phases`; however it ends."""
        began, around, self._inside = self._clock(), self._inside, 0.0
        self._open.append(verb)
        _log.info("%s begins", verb.value)
        try:
            yield
        finally:
            self._open.pop()
            spent = self._clock() - began
            self._add(verb, spent - self._inside)
            self._inside = around + spent

    def reckon(self, verb: Verb, seconds: float) -> None:
        """See `Phases`."""
        self._add(verb, seconds)
        self._inside += seconds

    @contextlib.contextmanager
    def reading(self, doing: Callable[[], Doing]) -> Iterator[None]:
        """See `Phases`."""
        self._reading = doing
        try:
            yield
        finally:
            self._reading = None

    def doing(self) -> Doing:
        """What goes on at this moment; may be asked from another thread."""
        reading, verbs = self._reading, self._open[-1:]
        return reading() if reading else Doing(verbs[0] if verbs else None)

    def _add(self, verb: Verb, seconds: float) -> None:
        self.seconds[verb] = self.seconds.get(verb, 0.0) + seconds
