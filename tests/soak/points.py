"""Points at which a driver may be interrupted: every call to the outside, ZooKeeper's requests,
delta-rs's calls and fetches alike.

It counts those points and interrupts the driver at the chosen one. The choice, and other drivers
meanwhile, belong to the story (`tests.soak.story`).

A call that changes something has a point before and one after it, any other call only the one
before: after it nothing has changed that the next point would not find. A killed driver reaches
nothing any more: the calls of its `finally` blocks fail, as with a process that has ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar
from unittest import mock

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss
from kazoo.protocol import serialization

T = TypeVar("T")

_CHANGES = tuple(
    getattr(serialization, name)
    for name in (
        "Create",
        "Create2",
        "CreateContainer",
        "SetData",
        "Delete",
        "Transaction",
        "SetACL",
    )
    if hasattr(serialization, name)
)
_ANSWER_WITHIN_S = 30.0


class Killed(BaseException):
    """The driver's process is gone. Nothing that the driver could catch."""


class Deed(str, Enum):
    """What happens to a driver at its moment."""

    KILL = "kill"
    PAUSE = "pause"
    """It is suspended while others do whole runs, and continues at the same point: a zombie."""
    LOSE = "lose"
    """Its connection to ZooKeeper breaks: before a request the request is lost, after it the
    answer. Elsewhere nothing happens.
    """


@dataclass(frozen=True, slots=True)
class Fate:
    """`deed` at the `moment`-th call to the outside, counted from 0."""

    deed: Deed
    moment: int


@dataclass
class Driver:
    """One driver in this process: the points that it has passed, and its interruption."""

    run_id: str
    fate: Fate | None = None
    meanwhile: Callable[[], None] = lambda: None
    """What others do while this driver is paused."""
    passed: list[str] = field(default_factory=list)
    is_dead: bool = False
    thread: int = field(default_factory=threading.get_ident)

    def reach(self, moment: str) -> Deed | None:
        """Pass one moment. Raises Killed when it is this driver's last, or was before. Returns LOSE
        where that is its fate.
        """
        if self.is_dead:
            raise Killed
        self.passed.append(moment)
        if self.fate is None or len(self.passed) - 1 != self.fate.moment:
            return None
        if self.fate.deed is Deed.KILL:
            self.is_dead = True
            raise Killed
        if self.fate.deed is Deed.PAUSE:
            self.meanwhile()
        return self.fate.deed


class _Now(threading.local):
    """The driver at work on this thread; a paused one waits below it on the same stack."""

    driver: Driver | None = None


_now = _Now()


@contextlib.contextmanager
def at_work(driver: Driver, client: KazooClient) -> Iterator[None]:
    """Inside, `driver` drives on this thread, and the requests of `client` are its calls to the
    outside.
    """
    before, _now.driver = _now.driver, driver
    try:
        with mock.patch.object(client, "_call", _interrupted(driver, client, client._call)):
            yield
    finally:
        _now.driver = before


def through(step: str, call: Callable[[], T], *, changes: bool = False) -> T:
    """Do a call to the outside that is not ZooKeeper's, as the driver at work on this thread;
    without one, just do it.
    """
    driver = _now.driver
    if driver is None:
        return call()
    driver.reach(f"before {step}")
    result = call()
    if changes:
        driver.reach(f"after {step}")
    return result


def wrapped(step: str, function: Callable[..., T], *, changes: bool = False) -> Callable[..., T]:
    """A function that calls the outside, with its moments."""
    return lambda *args, **kwargs: through(step, lambda: function(*args, **kwargs), changes=changes)


Call = Callable[[Any, Any], Any]


def _interrupted(driver: Driver, client: KazooClient, send: Call) -> Call:
    """kazoo's one door for requests. It is also used by kazoo's own threads (the parents of a new
    znode), where an exception outside Exception would end the thread and leave the driver waiting
    for ever: there a killed driver loses its connection, and dies with the next thing it tries."""

    def call(request: Any, answer: Any) -> Any:
        if request.type in (serialization.Close.type,):
            return send(request, answer)
        step, changes = _named(request), isinstance(request, _CHANGES)
        try:
            if driver.reach(f"before {step}") is Deed.LOSE:
                answer.set_exception(ConnectionLoss())
                return True
            if not changes:
                return send(request, answer)
            own = client.handler.async_result()
            sent = send(request, own)
            if not own.wait(_ANSWER_WITHIN_S):
                raise AssertionError(f"ZooKeeper did not answer {step}")
            lost = driver.reach(f"after {step}") is Deed.LOSE
        except Killed:
            if threading.get_ident() == driver.thread:
                raise
            answer.set_exception(ConnectionClosedError())
            return False
        failure = ConnectionLoss() if lost else own.exception
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set(own.value)
        return sent

    return call


def _named(request: Any) -> str:
    if isinstance(request, serialization.Transaction):
        return "multi " + " ".join(sorted({_named(one) for one in request.operations}))
    path = "/".join(
        part if not part.isdecimal() else "N"
        for part in getattr(request, "path", "").split("/")[3:]
    )
    return f"{type(request).__name__} {path}".strip()
