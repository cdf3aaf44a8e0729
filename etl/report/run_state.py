"""What is a run doing, how far is it, and what became of it?

What a report tells of its run as a whole: what it came to, how far it is, which process runs,
and the plans that it executed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from etl.model.plans import CommitResult, Plan

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # without any handler Python prints warnings to the terminal


class Outcome(str, Enum):
    """What a run came to; a run may have several."""

    INGESTED = "ingested"
    STARTED = "kept the start"
    LET_GO = "let go"
    RESET = "went on with another log"
    SET = "position set"
    COMPACTED = "compacted"
    NOT_COMPACTED = "not compacted"
    NOT_MIRRORED = "not mirrored"
    BACKFILLED = "backfilled"
    CLOSED = "closed"
    TOOK_OVER = "took over"
    REPLACED = "replaced rows"
    NOTHING_NEW = "nothing new"
    ALREADY_APPLIED = "already applied"
    NOT_COMPLETE = "not complete"
    BEYOND_BOUND = "beyond the bound"
    REPLAYED = "replayed"
    NOW_WITH_ID = "now with a cluster id"
    OTHER_TIME_ZONE = "another time zone"
    REPAIRED = "repaired"
    FOLLOWED = "followed"
    NOT_FOLLOWED = "not followed"
    ADOPTED = "adopted the table's plan"
    REBUILT = "rebuilt the ledger from the table"
    SUPERSEDED = "superseded"
    ROWS_REMOVED = "rows removed by others"
    SESSION_LOST = "session lost"
    LEFT_TO_OWNER = "left to its owner"
    NO_SHARE = "no share"
    VOID = "hand-over void"
    MEMBERSHIP_LOST = "membership lost"
    READ_BY_OTHERS = "read by others"
    READ_TWICE = "read twice"
    TAKEN = "taken by another member"
    NO_LEADER = "no leader"
    OPEN_TRANSACTION = "open transaction"
    PAUSED = "paused"
    APPLIED_BY_ANOTHER = "applied by another run"
    RECORDS_LOST = "records lost"
    EXPIRES_SOON = "expires soon"
    UNDATED = "rows without event_date"
    CAPPED = "left by a cap"
    NOT_KEPT = "report not written"
    NO_PAGE = "page not written"
    NO_METRICS = "metrics not written"
    NO_LINEAGE = "lineage not told"
    FAILED = "failed"

    @property
    def is_loud(self) -> bool:
        """Whether a person should look at it."""
        return self in _LOUD


_LOUD = frozenset(
    (
        Outcome.OPEN_TRANSACTION,
        Outcome.RECORDS_LOST,
        Outcome.APPLIED_BY_ANOTHER,
        Outcome.ROWS_REMOVED,
        Outcome.NOT_KEPT,
        Outcome.NO_PAGE,
        Outcome.NO_METRICS,
        Outcome.NO_LINEAGE,
        Outcome.NOT_COMPACTED,
        Outcome.OTHER_TIME_ZONE,
        Outcome.FAILED,
    )
)


def log_outcome(outcome: Outcome, sentence: str) -> None:
    """To whoever listens to Python's loggers; what ended a run is told by whoever catches the
    error.
    """
    if outcome is not Outcome.FAILED:
        level = logging.WARNING if outcome.is_loud else logging.INFO
        _log.log(level, "%s: %s", outcome.value, sentence, extra={"outcome": outcome.value})


class State(str, Enum):
    """How far a run is. A report that says `running` of a process that is gone is that of a run
    that was killed.
    """

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Process:
    """The process that runs: where, by which conf, of which versions."""

    host: str | None = None
    pid: int | None = None
    conf: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
    changes: Mapping[str, str | None] = field(default_factory=dict)
    """Keys of the conf that were said on the command line (`--set`), and as what; null where that
    may be a secret.
    """


@dataclass(slots=True)
class Executed:
    """One plan of the run, and what came of it; None: it is not known to be in the table."""

    plan: Plan
    applied: CommitResult | None = None
    writer: str | None = None
    """Which one appended it, and why; None where the run did not come so far."""

    @property
    def records(self) -> int:
        """Rows that the plan gave."""
        return sum(r.rows or 0 for r in self.applied.receipts) if self.applied else 0


def fetched_bytes_of(plans: Iterable[Executed]) -> int | None:
    """Bytes that the brokers sent for these plans; None where a crash took that knowledge along."""
    told = [r.fetched_bytes for one in plans if one.applied for r in one.applied.receipts]
    known = [size for size in told if size is not None]
    return sum(known) if len(known) == len(told) else None
