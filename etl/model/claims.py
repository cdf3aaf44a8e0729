"""What backfills claim of logs, and what whoever claims has read before.

A backfill has a pipeline of its own, called `PIPELINE@NAME`: no conf can name one so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from etl.model.logs import BrokerPartition

MARK = "@"
"""Between a live pipeline's name and that of a backfill beside it."""


class ClaimState(str, Enum):
    """How far a backfill is that somebody began."""

    OPEN = "open"
    """It loads, or has loaded all."""
    CLOSING = "closing"
    """It is being given up: none of its plans is stored any more, and what the table has of them is
    not known yet.
    """
    GIVEN_UP = "given up"
    """It claims what it has loaded."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The offsets that a backfill has loaded or will load, and nobody else."""

    name: str
    stretches: Mapping[BrokerPartition, tuple[tuple[int, int], ...]]
    """Of each log offsets [from, until), ascending, apart from one another."""
    log_epochs: Mapping[BrokerPartition, int]
    """Which life of a log they are of; 0 where not named."""
    asked: str
    """What was asked for, in words: one name stands for one thing."""
    made_at_ms: int
    state: ClaimState = ClaimState.OPEN
    reason: str | None = None
    """Why it was given up."""
    table_id: str | None = None
    """Of the table that it was begun for; None: it is from before this was kept."""

    def is_of(self, table_id: str | None) -> bool:
        """Whether it may be of that table; of one that took its place it claims nothing."""
        return None in (self.table_id, table_id) or self.table_id == table_id

    @property
    def offsets(self) -> int:
        """How many there are; bytes, of physical logs."""
        return sum(until - start for found in self.stretches.values() for start, until in found)

    def life_of(self, log: BrokerPartition) -> int:
        """Which life of the log its offsets are of."""
        return self.log_epochs.get(log, 0)

    def left_from(
        self, positions: Mapping[BrokerPartition, int]
    ) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
        """What lies at these positions or above; logs of which nothing does are left out."""
        found = {
            log: tuple(
                (max(start, positions.get(log, 0)), until)
                for start, until in parts
                if positions.get(log, 0) < until
            )
            for log, parts in self.stretches.items()
        }
        return {log: parts for log, parts in found.items() if parts}


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim as it was read."""

    claim: Claim
    version: int
    """Of its znode."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What is claimed beside a live pipeline, and the fence as it was read before."""

    fence: int | None = None
    """The version of its znode; None: it is not there, nobody has claimed yet."""
    backfills: tuple[Claimed, ...] = ()
    """By name."""

    def __iter__(self) -> Iterator[Claim]:
        return (one.claim for one in self.backfills)

    def of(self, table_id: str | None) -> Claims:
        """Those that may be of that table."""
        return Claims(self.fence, tuple(one for one in self.backfills if one.claim.is_of(table_id)))

    def named(self, name: str) -> Claimed | None:
        """The one of that name."""
        return next((one for one in self.backfills if one.claim.name == name), None)


NO_CLAIMS = Claims()


def backfill_pipeline(pipeline: str, name: str) -> str:
    """What the pipeline of a backfill is called."""
    return f"{pipeline}{MARK}{name}"


def live_and_name(pipeline: str) -> tuple[str, str | None]:
    """The live pipeline, and the backfill's name where it is one."""
    live, mark, name = pipeline.partition(MARK)
    return live, name if mark else None


def is_beside(app_id: str, other: str) -> bool:
    """Whether two application ids are of one live pipeline and its backfills: what they load is
    kept apart by claims.
    """
    return live_and_name(app_id)[0] == live_and_name(other)[0]
