"""What a report tells of its run as a whole: what it came to, how far it is, which process runs, and the plans that it executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from etl.model.plans import Applied, Plan


class Outcome(str, Enum):
    """What a run came to; a run may have several."""

    INGESTED = "ingested"
    STARTED = "kept the start"
    LET_GO = "let go"
    RESET = "went on with another log"
    TOOK_OVER = "took over"
    NOTHING_NEW = "nothing new"
    REPLAYED = "replayed"
    NOW_WITH_ID = "now with a cluster id"
    REPAIRED = "repaired"
    FOLLOWED = "followed"
    NOT_FOLLOWED = "not followed"
    ADOPTED = "adopted the table's plan"
    REBUILT = "rebuilt the ledger from the table"
    SUPERSEDED = "superseded"
    ROWS_REMOVED = "rows removed by others"
    SESSION_LOST = "session lost"
    LEFT_TO_OWNER = "left to its owner"
    NO_LEADER = "no leader"
    OPEN_TRANSACTION = "open transaction"
    APPLIED_BY_ANOTHER = "applied by another run"
    RECORDS_LOST = "records lost"
    EXPIRES_SOON = "expires soon"
    UNDATED = "rows without event_date"
    CAPPED = "left by a cap"
    NOT_KEPT = "report not written"
    FAILED = "failed"


class State(str, Enum):
    """How far a run is. A report that says `running` of a process that is gone is that of a run that was killed."""

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


@dataclass(slots=True)
class Executed:
    """One plan of the run, and what came of it; None: it is not known to be in the table."""

    plan: Plan
    applied: Applied | None = None

    @property
    def records(self) -> int:
        """Rows that the plan gave."""
        return sum(r.rows or 0 for r in self.applied.receipts) if self.applied else 0
