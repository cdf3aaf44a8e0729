"""One range on its way through a task, and how the task asks for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.errors import EtlError
from etl.model.partitions import BrokerPartition, Isolation, Leader
from etl.model.security import OPEN, Security
from etl.reader.cursor import Cursor


@dataclass(slots=True)
class RangeProgress:
    """One range on its way: its place in the caller's list, its cursor, and what went wrong since
    it last moved.
    """

    index: int
    cursor: Cursor
    leader: Leader | None
    attempts: int = 0
    failure: EtlError | None = None
    idle_since: float | None = None
    """When it was first seen to stand still; None while it moves."""

    @property
    def log(self) -> BrokerPartition:
        return self.cursor.range.log

    def lose_leader(self, failure: EtlError) -> None:
        """The leader is to be looked up again."""
        self.leader, self.failure = None, failure
        self.attempts += 1
        self.idle_for()

    def idle_for(self) -> float:
        """For how many seconds it has given nothing."""
        now = time.monotonic()
        self.idle_since = now if self.idle_since is None else self.idle_since
        return now - self.idle_since


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How one task asks: everything about it that is not a range."""

    isolation: Isolation
    bootstrap: tuple[tuple[str, int], ...]
    fetch_max_bytes: int
    fetch_limit_bytes: int
    retry: int
    backoff_s: float
    deadline_s: float
    timeout_s: float
    max_wait_ms: int
    topic_ids: Mapping[str, str]
    fails_on_loss: bool
    generation: str | None
    """How brokers are to be spoken to that are looked up on the way."""
    security: Security = OPEN


def lose_all(walks: Sequence[RangeProgress], failure: EtlError) -> None:
    for walk in walks:
        if not walk.cursor.done:
            walk.lose_leader(failure)


def place_of(walk: RangeProgress) -> dict[str, Any]:
    return {**walk.log.place, "offset": walk.cursor.position}
