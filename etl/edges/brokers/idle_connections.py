"""Connections that nobody uses just now, kept for whoever asks the same broker next in this
process.

A Python worker of Spark runs one task after the other, and each would begin with a connect and a
greeting to every broker that it reads from. So a task gives its connections back, and the next one
takes them. What is taken is as good as new, or is not given out:

- one that the broker has closed meanwhile, or on which something lies that nobody asked for, is
  closed here as well;
- one whose login ends soon is closed, too;
- one that was idle for longer than `idle_s` is closed, whether anybody asks for it or not: brokers
  and what lies between close idle ones
  without a word, and a worker that has no task holds none for long;
- a process that was forked has none: two that share a connection would read each other's answers.

A connection is given back only where every answer has come (`Exchange`). It belongs to who made it:
address, client id, generation, login.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from etl.edges.brokers.connection import Connection
from etl.kafka.protocol import BrokerProtocol
from etl.model.security import Security


class Maker(NamedTuple):
    """Whose connections are alike."""

    host: str
    port: int
    client_id: str
    generation: str | None
    """As whoever connects was told."""
    security: Security
    """How it was entered, and as whom."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A connection between two uses, and what its next user must know."""

    connection: Connection
    dialect: BrokerProtocol
    last_number: int
    throttled_until: float
    """A `time.monotonic` moment before which the broker reads nothing from it."""
    since: float = field(default_factory=time.monotonic)


class IdleConnections:
    """Some connections, the newest given out first. For any threads.

    idle_s   how long one is kept
    most     how many are kept in all; the oldest makes room
    """

    def __init__(self, *, idle_s: float = 30.0, most: int = 32) -> None:
        self._idle_s, self._most = idle_s, most
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[Maker, Idle]] = deque()
        self._sweeper: threading.Timer | None = None

    def take(self, maker: Maker) -> Idle | None:
        """One that is fit for use; None: there is none."""
        while True:
            with self._lock:
                found = next((each for each in reversed(self._kept) if each[0] == maker), None)
                if found is None:
                    return None
                self._kept.remove(found)
            idle = found[1]
            now = time.monotonic()
            if (
                now - idle.since < self._idle_s
                and now < idle.connection.renew_at
                and not idle.connection.is_answering(0)
            ):
                return idle
            idle.connection.close()

    def give(self, maker: Maker, idle: Idle) -> None:
        """Keep it for the next one. Its giver uses it no more."""
        with self._lock:
            self._kept.append((maker, idle))
            crowded_out = self._kept.popleft()[1] if len(self._kept) > self._most else None
            self._sweep_later()
        if crowded_out is not None:
            crowded_out.connection.close()

    def close(self) -> None:
        """Hang up on all of them."""
        with self._lock:
            kept, self._kept = self._kept, deque()
        for _, idle in kept:
            idle.connection.close()

    def forget(self) -> None:
        """After a fork, in the child: what is here is the parent's. Its own copies are closed,
        which the brokers do not see.
        """
        kept = self._kept
        self._begin()
        for _, idle in kept:
            idle.connection.close()

    def __len__(self) -> int:
        return len(self._kept)

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._kept:
            left_s = self._kept[0][1].since + self._idle_s - time.monotonic()
            self._sweeper = threading.Timer(max(0.0, left_s), self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        old = list[Idle]()
        with self._lock:
            self._sweeper = None
            while self._kept and time.monotonic() - self._kept[0][1].since >= self._idle_s:
                old.append(self._kept.popleft()[1])
            self._sweep_later()
        for idle in old:
            idle.connection.close()


OF_THIS_PROCESS = IdleConnections()
"""Those of tasks."""
os.register_at_fork(after_in_child=OF_THIS_PROCESS.forget)
