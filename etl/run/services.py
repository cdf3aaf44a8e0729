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
    """One member of a group, from before it has joined until it has left.

    A run joins, reads the group's offsets, plans, hands over and only then fetches. Up to the
    hand-over it owns what `join` or `rejoin` gave last, for as long as `is_current`; behind the
    hand-over nothing of the plan depends on membership any more.
    """

    def join(self) -> MemberAssignment:
        """Register, and rebalance until the group has settled.

        The share may be empty. Raises Owned where it does not settle in time; MembershipLost where
        the registration ends meanwhile; SettingsError where the group and the conf do not fit
        together. Then nothing of ours is registered any more, and nobody is stranded.
        """

    def rejoin(self) -> MemberAssignment:
        """Let go, and settle again: after `is_current` was False, or a hand-over was void. Raises
        as `join`.
        """

    @property
    def is_current(self) -> bool:
        """Whether the last share still stands as far as anybody told us: no rebalance is called
        for, and the membership is alive.

        A hint: only the hand-over's own check decides.
        """

    def follow(self) -> None:
        """Behind the stored plan: from now on let go whenever that is asked for, and take the new
        share in the background. Never raises.

        Not so a member that commits behind the append, where the group waits for each by itself: it
        holds its share until it leaves, or for as long as the group waits.
        """

    def leave(self) -> None:
        """Let go, and be no member any more. May be called again and again, and before `join`;
        never raises.
        """

    @property
    def statistics(self) -> RebalanceStatistics:
        """What it cost so far."""


class Services(Protocol):
    """Everything outside, as a run sees it."""

    def observe(self, named: Named = none_named) -> Snapshot:
        """Read all that the run will need to know; `named` are offsets that an operator names."""

    def observe_ledgers(self) -> Snapshot:
        """The same of ZooKeeper and the table alone: logs are those that the ledger knows, and no
        broker is asked where one of them starts, ends, or is led; the group's coordinator is, where
        offsets are in Kafka."""

    def wait_for_owners(self, logs: Collection[BrokerPartition]) -> None:
        """Return when nobody owns these logs any more. Raises Owned when that takes too long."""

    def new_uid(self) -> str:
        """A random id for a pipeline that has none."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def member(self) -> Member | None:
        """The membership of a run of this pipeline, not joined yet; None where its conf is of none."""

    def store(self, plan: Plan) -> RejectedCommit | None:
        """Keep the plan before its first fetch, put-if-absent. One that is handed over moves the
        group's offsets in the same step; where others came before, nothing is done, and it is said
        why. Raises Owned where another driver stored that number.
        """

    def hand_over(self, plan: Plan) -> Plan | RejectedCommit:
        """Move the group's offsets with the stored plan, where that is a step of its own, and write
        that down: the plan as it is then.

        Where others came before nothing is moved, that is written down, and it is said why. Any
        other plan is told as it is.
        """

    def fence(self, plan: Plan) -> None:
        """End the membership that the plan was made with, so that nothing that its run committed
        comes any more.

        Where nobody wrote down whether the plan was handed over, that is found out and written
        down, unless nobody can tell.
        """

    def remember(self, key: RunKeyRecord, *, behind: int) -> None:
        """Keep a run key under which there was nothing more to read behind plan `behind`. Raises
        Owned where a plan was stored since.
        """

    def supersede(self, plan: Plan, ledger: Ledger) -> RejectedCommit | None:
        """Put the plan in the place of the ledger's newest one, if that is still there; handed over
        as in `store` where that was not.
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
        """Inside, the logs that the plan reads are ours for all to see, and nobody's once it ends.
        Raises Owned; then none is ours.
        """

    def fetch(self, plan: Plan, snapshot: Snapshot) -> Any:
        """The rows of the plan's ranges, lazily."""

    def writer_of(self, plan: Plan, snapshot: Snapshot) -> str:
        """Which writer appends the plan, and why, in words."""

    def creation_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """What stands for the ids of these topics by now, as in `Snapshot.creation_ids`; without
        those that are gone.
        """

    def append(self, plan: Plan, rows: Any) -> tuple[CommitResult | None, Table | None]:
        """Append as plan N and read the table again; no Applied: it holds another plan under that
        number.
        """

    def record(self, plan: Plan, applied: CommitResult | None) -> None:
        """Write down what the plan in the table let go, once, and only then what came of it: a
        record says that both are done.

        Without `applied` nobody could tell what came of it, and no record is kept.
        """

    def recount(self, plan: Plan) -> CommitResult | None:
        """What came of a plan in the table whose record a crash prevented; None where the table
        does not hold this plan.
        """

    def commit(
        self, plan: Plan, logs: Collection[BrokerPartition] | None = None
    ) -> Mapping[BrokerPartition, Committed]:
        """Move the offsets to the plan's positions by compare-and-set; those of `logs` only, where
        given, as the member that the run is.

        Of a member's plan (`Plan.is_of_member`) those alone that its membership, or today's, still
        owns; what was moved.
        """

    def loaded(self, transaction_version: int | None = None) -> LoadedIntervals:
        """All that the recorded plans of this pipeline loaded, and what of it was given up: all
        that did not lead to the table as it is.

        `transaction_version`: the table's; None: the newest recorded plan is in it.
        """

    def claim(self) -> Claimed | None:
        """What this pipeline claims, where it is a backfill that somebody began."""

    def stored_plans(self) -> Sequence[tuple[Plan, bool]]:
        """The plans that are kept, ascending, and whether it is recorded what came of each."""

    def begin_backfill(self, claim: Reservation, plan: Plan) -> None:
        """Store a backfill's claim with its first plan, beside this pipeline. Raises Owned where
        somebody claimed since the last look.
        """

    def backfill_in_table(self, name: str) -> int | None:
        """The newest plan that the table holds of a backfill of that name beside this pipeline, of
        whatever ledger; None for none.
        """

    def close_backfill(self, claim: Reservation, plan: Plan, ledger: Ledger) -> None:
        """Store the plan that closes this backfill, and its claim, of which no other plan is stored
        from then on.

        The plan takes the place of the ledger's newest one, or comes behind it. Raises Owned where
        one was stored since the last look.
        """

    def settle_backfill(self, claim: Reservation) -> None:
        """Write what a backfill that was closed keeps. Raises Owned where somebody else did since
        the last look.
        """

    def first_at(
        self, moments: Collection[tuple[BrokerPartition, int]]
    ) -> Mapping[tuple[BrokerPartition, int], int]:
        """The first offset of each log whose record is at its moment, in milliseconds, or later;
        its end where there is none.
        """

    def rows_there(self, spans: Sequence[Span]) -> Mapping[BrokerPartition, int]:
        """How many rows of the table lie in each span, whoever wrote them; one span for each log.
        Raises where nobody may replace rows.
        """

    def results_from_table(self, plan: Plan) -> Sequence[RangeResult] | None:
        """What the table of today holds of each of its ranges, whoever put it there, with its gaps;
        None where nobody can count that.
        """

    def tidy(self) -> None:
        """Fold old plans into coverage."""


Progress = Callable[[Callable[[], Doing]], contextlib.AbstractContextManager[None]]
"""Shows inside what a run is at; given is how to ask for it, which may be done from any thread."""
OfRun = Callable[[Report], contextlib.AbstractContextManager[None]]
"""Inside is the run of this report; it may be asked at any moment."""
SparkDefaults = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Plain Spark settings of this machine (where Delta's jars are, ...) beside those given, asked for
when a session is built.
"""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run takes from whoever started it."""

    progress: Progress = lambda doing: contextlib.nullcontext()
    of_run: OfRun = lambda report: contextlib.nullcontext()
    spark_defaults: SparkDefaults = lambda given: {}
    changes: Sequence[Change] = ()
    """What was said on the command line of keys of the conf; the settings have it already."""


ALONE = RunContext()


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)
