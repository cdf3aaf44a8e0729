"""A driver that stops at a moment of its work, while others work, and goes on later.

A moment is a call of `FakeWorld`'s `at`: before and after each single change of the outside. The
driver has a thread of its own, and exactly one thread works at any time: whoever calls `go_on`
waits until the driver sleeps or is gone. So a history is the same each time it is played.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from etl.errors import EtlError, SessionLost, TableUnreachable
from tests.fakes.world import Crash, When

At = Callable[[str, When], None]

TABLE_STEPS = frozenset(("open table", "append", "record losses", "count rows"))
"""Changes that need no ZooKeeper: if they fail, the table is unreachable."""


class Fate(str, Enum):
    """What happens to a driver at its moment."""

    NOTHING = "nothing"
    CRASH = "crash"
    """Its process is gone. It releases nothing."""
    FAIL = "fail"
    """The connection breaks before the change, or with its answer."""
    SLEEP = "sleep"
    """It stops, and does not know that its session ends meanwhile."""


class Driver:
    """A command of ours in a thread. `work` raises EtlError where the command stops."""

    def __init__(self, name: str, work: Callable[[At], None]) -> None:
        self.name = name
        self.is_over = False
        self.is_disturbed = False
        """Whether anything happened to it, or others worked during it."""
        self.error: EtlError | None = None
        """Why it ended."""
        self.place = "not begun"
        self._work = work
        self._moments_left = 0
        self._fate = Fate.NOTHING
        self._broken: BaseException | None = None
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, fate: Fate = Fate.NOTHING, moments: int = 0) -> None:
        """Work on until the fate comes, or until the end. Raises bugs."""
        assert not self.is_over
        self._fate, self._moments_left = fate, moments
        self._turn.release()
        self._back.acquire()
        if self._broken is not None:
            raise self._broken

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._work(self._at)
        except Crash:
            pass
        except EtlError as error:
            self.error = error
        except BaseException as broken:
            self._broken = broken
        self.is_over = True
        self._back.release()

    def _at(self, step: str, when: When) -> None:
        self.place = f"{when.value} {step}"
        while self._fate is not Fate.NOTHING and not self._moments_left:
            fate, self._fate = self._fate, Fate.NOTHING
            self.is_disturbed = True
            if fate is Fate.CRASH:
                raise Crash(self.place)
            if fate is Fate.FAIL:
                raise _error_at(step)
            self._back.release()
            self._turn.acquire()
        self._moments_left -= 1


def _error_at(step: str) -> EtlError:
    if step in TABLE_STEPS:
        return TableUnreachable("the store does not answer")
    return SessionLost("the session ended")
