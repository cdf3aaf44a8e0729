"""Which operations of the outside world does a run use?

`Services` is everything that a run, a replay or a backfill can touch, with its guarantees: replay
and backfill use `loaded` and `first_at`, backfill alone `backfills`. `Member` is the same for a
membership, in ZooKeeper or in Kafka.

Not here: implementations (`LiveServices` in etl/run/live_services.py, fakes in the tests).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from etl.decide.byte_offsets import OperatorOffsets, no_operator_offsets
from etl.decide.loaded_intervals import Span
from etl.model.partitions import (
    Committed,
    MemberAssignment,
    RebalanceStatistics,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import CommitResult, Plan, RangeResult, RunKeyRecord
from etl.model.snapshot import (
    Backfill,
    ForeignCommit,
    Ledger,
    LoadedIntervals,
    Snapshot,
    Table,
)


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
        """Release the assignment and end the membership. May be called repeatedly, and before
        `join`. Never raises.
        """

    @property
    def statistics(self) -> RebalanceStatistics:
        """Cost of the membership so far."""


class BackfillRequests(Protocol):
    """The stored requests of a pipeline's backfills."""

    def read(self, name: str) -> Backfill | None:
        """Return the request of this backfill; None if there is none of that name."""

    def create(self, backfill: Backfill) -> None:
        """Store the request of a new backfill. Raises Owned if its name is used."""

    def replace(self, before: Backfill, after: Backfill) -> None:
        """Store a changed request. Raises Owned if it is not as before any more."""


class LoadedRows(Protocol):
    """What earlier plans loaded, by the ledger and by the rows of the table."""

    def intervals(self, transaction_version: int | None = None) -> LoadedIntervals:
        """Return the intervals that plans with a result loaded, and those given up because they are
        not in the table's history.

        `transaction_version`: the table's; None: the newest plan with a result is in it.
        """

    def stored_plans(self) -> Sequence[tuple[Plan, bool]]:
        """Return the stored plans, ascending, each with whether it has a stored result."""

    def rows_in(self, spans: Sequence[Span]) -> Mapping[TopicPartition, int]:
        """Return the number of rows in each interval, by any writer; one interval per partition.

        Raises if rows may not be replaced.
        """

    def results_in_table(self, plan: Plan) -> Sequence[RangeResult] | None:
        """Return the rows of each range in the current table, with gaps; None if they cannot be
        counted.
        """


class Services(Protocol):
    """The outside world of one pipeline: brokers, ZooKeeper, table and clock."""

    @property
    def backfills(self) -> BackfillRequests:
        """The stored requests of backfills."""

    @property
    def loaded(self) -> LoadedRows:
        """What earlier plans loaded."""

    def observe(self, named: OperatorOffsets = no_operator_offsets) -> Snapshot:
        """Take a snapshot of brokers, ledger and table. `named`: offsets that an operator names."""

    def wait_for_owners(self, partitions: Collection[TopicPartition]) -> None:
        """Return when these partitions have no owner. Raises Owned after the timeout."""

    def new_uid(self) -> str:
        """Return a random id for a new pipeline."""

    def now_ms(self) -> int:
        """Return the current time in ms since 1970."""

    def member(self) -> Member | None:
        """Return the membership of a run, not joined yet; None if the conf has no `group.mode:
        join`.
        """

    def store(self, plan: Plan) -> RejectedCommit | None:
        """Store the plan before its first fetch, if its number is free.

        If the offset commit is part of the same transaction (ZooKeeper), it is committed, too; if
        the group rejects it, nothing is stored and the reason is returned. Raises Owned if another
        driver stored that number.
        """

    def hand_over(self, plan: Plan) -> Plan | RejectedCommit:
        """Commit the group's offsets of the stored plan before the read, if that is a separate step
        (Kafka), and store that it is done. Return the plan with that state, or any other plan
        unchanged. If the group rejects the commit, store and return that.
        """

    def fence(self, plan: Plan) -> None:
        """End the membership that the plan was made with, so that no late commit of it succeeds. If
        the plan's commit is in doubt, it is resolved and stored, if possible.
        """

    def remember(self, key: RunKeyRecord, *, after: int) -> None:
        """Store that a run key had nothing more to read after plan `after`. Raises Owned if a plan
        was stored meanwhile.
        """

    def supersede(self, plan: Plan, ledger: Ledger) -> RejectedCommit | None:
        """Replace the newest plan of the ledger, if it is unchanged. Commits offsets as `store`
        does, if the replaced plan did not.
        """

    def adopt(self, plan: Plan) -> Ledger:
        """Restore the ledger from the table's commits, of which `plan` is the pipeline's newest.
        Return the ledger. The losses of `plan` are stored first, as in `record`.
        """

    def read_ledger(self) -> Ledger:
        """Read the ledger."""

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        """Store that other writers removed rows, as policy or an operator permits."""

    def claiming(self, plan: Plan) -> AbstractContextManager[None]:
        """Context manager: own the plan's partitions inside. Raises Owned, and then owns none."""

    def fetch(self, plan: Plan, snapshot: Snapshot) -> Any:
        """Return the rows of the plan's ranges, read lazily."""

    def writer_of(self, plan: Plan, snapshot: Snapshot) -> str:
        """Describe which writer appends the plan, and why."""

    def creation_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return current ids of these topics' znodes, as in `Snapshot.creation_ids`, without
        deleted ones.
        """

    def append(self, plan: Plan, rows: Any) -> tuple[CommitResult | None, Table | None]:
        """Append the rows as plan N and read the table again. Returns no result if the table has
        another plan of that number.
        """

    def record(self, plan: Plan, applied: CommitResult | None) -> None:
        """Store the plan's losses once, and then its result: a stored result means that both are
        done. Without `applied` no result is stored.
        """

    def recount(self, plan: Plan) -> CommitResult | None:
        """Recover the result of a plan in the table that a crash lost; None if the table does not
        have the plan.
        """

    def commit(
        self, plan: Plan, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Committed]:
        """Commit the plan's offsets by compare-and-set; return the offsets that changed.

        `partitions`: commit these partitions only. For a member's plan (AFTER_APPEND_AS_MEMBER)
        only partitions that its membership, or today's, still owns are committed.
        """

    def first_at(
        self, moments: Collection[tuple[TopicPartition, int]]
    ) -> Mapping[tuple[TopicPartition, int], int]:
        """Return the first offset of each partition at or after its time in milliseconds; its end
        if there is none.
        """

    def tidy(self) -> None:
        """Merge old plans into loaded intervals."""


def now_ms() -> int:
    """Return the current time in ms since 1970."""
    return int(time.time() * 1000)
