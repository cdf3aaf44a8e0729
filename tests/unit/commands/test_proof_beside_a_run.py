"""`verify` reads both ledgers, and a concurrent run does not change the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from etl.commands import expected_rows
from etl.decide.loaded_intervals import fold
from etl.errors import Owned
from etl.model.partitions import TopicPartition
from etl.model.plans import CommitResult, OffsetRange, Plan, RangeResult
from etl.model.snapshot import Ledger, LoadedIntervals, Table
from etl.run.live_services import LiveServices
from tests.builders import plain_plan

LOG = TopicPartition("clicks", 0)


def plan_of(number: int) -> Plan:
    start = number * 10
    return plain_plan(
        number,
        ranges=(OffsetRange(LOG, start, start + 10),),
        loaded_until={LOG: start + 10},
        id=f"plan-{number}",
        table_transaction_version=number - 1,
    )


def record_of(plan: Plan) -> CommitResult:
    return CommitResult(plan.number, plan.id, plan.number, "t", (RangeResult(10, 100),))


@dataclass
class RunsMeanwhile:
    """Both ledgers, and a run that does something when a certain thing is read."""

    newest: int = 3
    pruned: int = 0
    when: str = ""
    then: Callable[[RunsMeanwhile], None] = lambda during: None
    coverage: LoadedIntervals = field(default_factory=LoadedIntervals)

    @property
    def ledger(self) -> RunsMeanwhile:
        return self

    def _at(self, read: str) -> None:
        if read == self.when:
            self.then(self)

    def mark(self) -> tuple[int, int | None]:
        return self.newest, 0

    def read_ledger(self) -> Ledger:
        found = Ledger("u", plan_of(self.newest))
        self._at("ledger")
        return found

    def read_table(self, ledger: Ledger) -> Table:
        found = Table("t", self.newest, self.newest)
        self._at("table")
        return found

    def read_plans(self) -> list[Plan]:
        numbers = range(self.pruned + 1, self.newest + 1)
        self._at("plans")
        return [plan_of(number) for number in numbers if number > self.pruned]

    def read_record_of(self, plan: Plan) -> CommitResult | None:
        self._at(f"record {plan.number}")
        return record_of(plan) if plan.number > self.pruned else None

    def read_loaded_intervals(self) -> LoadedIntervals:
        self._at("coverage")
        return self.coverage

    def prune(self, through: int) -> None:
        for number in range(self.pruned + 1, through + 1):
            self.coverage = fold(self.coverage, plan_of(number), record_of(plan_of(number)))
        self.pruned = max(self.pruned, through)

    def run_again(self) -> None:
        """One plan more is stored and applied, and all but the newest are pruned."""
        self.newest += 1
        self.prune(self.newest - 1)


def offsets_of(reported: Any) -> list[tuple[int, int]]:
    """The expected intervals, from kept plans and from the loaded intervals."""
    kept = [(r.from_offset, r.until_offset) for plan, _ in reported.kept for r in plan.ranges]
    return sorted(
        kept
        + [
            (i.from_offset, i.until_offset)
            for found in reported.loaded.intervals.values()
            for i in found
        ]
    )


def look(during: RunsMeanwhile) -> Any:
    return expected_rows.read_both_ledgers(cast(LiveServices, during))


@pytest.mark.parametrize("when", ["ledger", "table", "plans", "record 1", "record 2", "coverage"])
def test_a_plan_that_a_run_prunes_meanwhile_counts_once(when: str) -> None:
    reported = look(RunsMeanwhile(when=when, then=lambda during: during.prune(2)))
    assert offsets_of(reported) in ([(10, 20), (20, 30), (30, 40)], [(10, 30), (30, 40)])
    assert all(record for _, record in reported.kept), "none of them is counted again"


@pytest.mark.parametrize("when", ["ledger", "table", "plans", "record 1", "coverage"])
def test_a_run_that_continues_and_prunes_meanwhile_is_observed_again(when: str) -> None:
    def run_once(during: RunsMeanwhile) -> None:
        during.when = ""
        during.run_again()

    reported = look(RunsMeanwhile(when=when, then=run_once))
    newest = reported.table.transaction_version
    assert offsets_of(reported)[-1][1] == (newest + 1) * 10, (
        "all that the table holds by then, and nothing that came later"
    )
    assert sum(until - start for start, until in offsets_of(reported)) == newest * 10


def test_runs_without_a_pause_are_reported_and_no_loss_is_invented() -> None:
    with pytest.raises(Owned) as caught:
        look(RunsMeanwhile(when="plans", then=RunsMeanwhile.run_again))
    assert caught.value.exit_code == 4
