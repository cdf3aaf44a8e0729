"""What may a run ask of the outside world?

`Services` is everything that `ingest` can touch, with what it may rely on; `GroupMember` is the
same for a membership, whichever group it is; `RunContext` is what the caller of a run provides.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from etl.decide.byte_offsets import Named, none_named
from etl.decide.loaded_intervals import Span
from etl.model.partitions import (
    BrokerPartition,
    Committed,
    MemberAssignment,
    RebalanceStatistics,
    RejectedCommit,
)
from etl.model.plans import CommitResult, Plan, RangeResult, RunKeyRecord
from etl.model.snapshot import (
    Claimed,
    ForeignCommit,
    Ledger,
    LoadedIntervals,
    Reservation,
    Snapshot,
    Table,
)
from etl.report.run_report import Report
from etl.report.run_state import Doing
from etl.settings.load import Change


class Member(Protocol):
    """A member of a group, from before it joins until it has left.

    A run joins, reads the group's offsets, plans, commits and only then fetches. Until the commit
    it owns what `join` or `rejoin` returned last, while `is_current`; after it the plan does not
    depend on the membership.
    """

    def join(self) -> MemberAssignment:
        """Register and rebalance until the group has settled. The assignment may be empty.

        Raises Owned if it does not settle in time; MembershipLost if the registration ends
        meanwhile; SettingsError if group and conf do not fit. Then nothing of ours stays
        registered.
        """

    def rejoin(self) -> MemberAssignment:
        """Release everything and settle again, after `is_current` was False or a commit was
        rejected. Raises as `join`.
        """

    @property
    def is_current(self) -> bool:
        """True if no rebalance is known and the membership lives. Only a hint: the commit itself
        checks.
        """

    def follow(self) -> None:
        """After the commit: release and take new assignments in the background. Never raises.

        A member that commits after the append holds its assignment instead, until it leaves or the
        group's timeout is over.
        """

    def leave(self) -> None:
        """Let go, and be no member any more. May be called again and again, and before `join`;
        never raises.
        """

    @property
    def statistics(self) -> RebalanceStatistics:
        """Cost of the membership so far."""


class Services(Protocol):
    """Everything outside, as a run sees it."""

    def observe(self, named: Named = none_named) -> Snapshot:
        """Read all that the run will need to know; `named` are offsets that an operator names."""

    def observe_ledgers(self) -> Snapshot:
        """Return a snapshot of ZooKeeper and the table only: partitions of the ledger, without
        asking brokers for offsets or leaders. The coordinator is asked if offsets are in Kafka.
        """

    def wait_for_owners(self, logs: Collection[BrokerPartition]) -> None:
        """Return when these partitions have no owner. Raises Owned after the timeout."""

    def new_uid(self) -> str:
        """A random id for a pipeline that has none."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def member(self) -> Member | None:
        """The membership of a run of this pipeline, not joined yet; None where its conf is of none."""

    def store(self, plan: Plan) -> RejectedCommit | None:
        """Store the plan before its first fetch, if its number is free. Where the commit is part of
        the same step it moves the group's offsets; if others came first, nothing is stored and the
        reason is returned. Raises Owned if another driver stored that number.
        """

    def hand_over(self, plan: Plan) -> Plan | RejectedCommit:
        """Commit the group's offsets of the stored plan, where that is a separate step, and record
        it; return the plan then. If others came first, nothing moves, that is recorded, and the
        reason is returned. Any other plan is returned unchanged.
        """

    def fence(self, plan: Plan) -> None:
        """End the membership that the plan was made with, so that no commit of it can arrive. If
        the plan's commit is in doubt, it is settled and recorded, if possible.
        """

    def remember(self, key: RunKeyRecord, *, behind: int) -> None:
        """Keep a run key that had nothing more to read after plan `behind`. Raises Owned if a plan
        was stored since.
        """

    def supersede(self, plan: Plan, ledger: Ledger) -> RejectedCommit | None:
        """Replace the ledger's newest plan, if it is still there; commits as `store` if that one
        did not.
        """

    def adopt(self, plan: Plan) -> Ledger:
        """Write the ledger anew from the table's commits, of which `plan` is the newest of ours;
        the ledger as it is then.

        What `plan` let go is written down first, as in `record`.
        """

    def read_ledger(self) -> Ledger:
        """The ledger as it is now."""

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        """Keep that others removed rows, and that it was let pass."""

    def claiming(self, plan: Plan) -> AbstractContextManager[None]:
        """Inside, the plan's partitions are owned; afterwards they are released. Raises Owned, and
        then none is owned.
        """

    def fetch(self, plan: Plan, snapshot: Snapshot) -> Any:
        """The rows of the plan's ranges, lazily."""

    def writer_of(self, plan: Plan, snapshot: Snapshot) -> str:
        """Which writer appends the plan, and why, in words."""

    def creation_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return current ids of these topics' znodes, as in `Snapshot.creation_ids`, without
        deleted ones.
        """

    def append(self, plan: Plan, rows: Any) -> tuple[CommitResult | None, Table | None]:
        """Append as plan N and read the table again; no Applied: it holds another plan under that
        number.
        """

    def record(self, plan: Plan, applied: CommitResult | None) -> None:
        """Record the plan's losses once, and then its result: a recorded result says that both are
        done. Without `applied` no result is recorded.
        """

    def recount(self, plan: Plan) -> CommitResult | None:
        """Recount a plan in the table whose result was lost in a crash; None if the table does not
        hold it.
        """

    def commit(
        self, plan: Plan, logs: Collection[BrokerPartition] | None = None
    ) -> Mapping[BrokerPartition, Committed]:
        """Commit the plan's positions by compare-and-set, of `logs` only if given, as the run's
        member. Of a member's plan (`Plan.is_of_member`) only what its membership, or today's, still
        owns. Returns what was moved.
        """

    def loaded(self, transaction_version: int | None = None) -> LoadedIntervals:
        """All that the recorded plans of this pipeline loaded, and what of it was given up: all
        that did not lead to the table as it is.

        `transaction_version`: the table's; None: the newest recorded plan is in it.
        """

    def claim(self) -> Claimed | None:
        """Return this pipeline's reservation, if it is a backfill's."""

    def stored_plans(self) -> Sequence[tuple[Plan, bool]]:
        """The plans that are kept, ascending, and whether it is recorded what came of each."""

    def begin_backfill(self, claim: Reservation, plan: Plan) -> None:
        """Store a backfill's reservation with its first plan. Raises Owned if anything was reserved
        since the snapshot.
        """

    def backfill_in_table(self, name: str) -> int | None:
        """Return the newest plan in the table of a backfill of that name, of any ledger; None for
        none.
        """

    def close_backfill(self, claim: Reservation, plan: Plan, ledger: Ledger) -> None:
        """Store the closing plan of this backfill with its reservation; no other plan is stored
        after it. It replaces the ledger's newest plan or follows it. Raises Owned if one was stored
        since the snapshot.
        """

    def settle_backfill(self, claim: Reservation) -> None:
        """Write the final reservation of a closed backfill. Raises Owned if another process did
        since the snapshot.
        """

    def first_at(
        self, moments: Collection[tuple[BrokerPartition, int]]
    ) -> Mapping[tuple[BrokerPartition, int], int]:
        """Return the first offset of each partition at or after its time in milliseconds; its end
        if there is none.
        """

    def rows_there(self, spans: Sequence[Span]) -> Mapping[BrokerPartition, int]:
        """Return the number of rows in each interval, whoever wrote them; one interval per
        partition. Raises if rows may not be replaced.
        """

    def results_from_table(self, plan: Plan) -> Sequence[RangeResult] | None:
        """Return what the current table holds of each range, with its gaps; None if it cannot be
        counted.
        """

    def tidy(self) -> None:
        """Merge old plans into loaded intervals."""


Progress = Callable[[Callable[[], Doing]], contextlib.AbstractContextManager[None]]
"""Shows inside what a run is at; given is how to ask for it, which may be done from any thread."""
OfRun = Callable[[Report], contextlib.AbstractContextManager[None]]
"""Context manager: inside, this report's run is under way and may be queried at any time."""
SparkDefaults = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Spark settings of this machine (where Delta's jars are, ...) in addition to the given ones,
called when a session is built.
"""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the caller of a run provides."""

    progress: Progress = lambda doing: contextlib.nullcontext()
    of_run: OfRun = lambda report: contextlib.nullcontext()
    spark_defaults: SparkDefaults = lambda given: {}
    changes: Sequence[Change] = ()
    """Keys changed on the command line; the settings include them."""


ALONE = RunContext()


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)
