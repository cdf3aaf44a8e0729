"""The rows that `etl verify` and `find_table_gaps` expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest

from etl.audit.compare_rows import (
    BUCKET_OFFSETS,
    AuditedPartition,
    Bucket,
    Expected,
    PartitionFindings,
    audit,
    without_reloaded,
)
from etl.commands import expected_rows, lag, verify
from etl.commands.expected_rows import BothLedgers, loaded_plans
from etl.decide import loaded_intervals
from etl.decide.loaded_intervals import fold
from etl.errors import Owned
from etl.io.zookeeper.ledger_side_documents import prune, read_plans_with_results
from etl.model.plans import CommitResult, OffsetRange, Plan, RangeResult
from etl.model.snapshot import Acknowledgement, Interval, Ledger, LoadedIntervals, Table
from etl.run.live_services import LiveServices
from etl.settings.sections import Settings
from tests.builders import plain_plan
from tests.fakes import fake_table
from tests.fakes.backfill_stories import backfill_request, filled
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import Outside
from tests.fakes.stories import LOGS, run, settings_of

LOG = LOGS[0]
HERE = AuditedPartition(LOG)
CAPPED = settings_of(starting_offsets="earliest", limits={"max_records_per_plan": 10})


@pytest.fixture
def outside() -> Outside:
    """[0, 40) went to a lost table and was accepted; the present one has [40, 45)."""
    outside = Outside({LOG: FakeLog(40)})
    for _ in range(5):
        run(outside, CAPPED)
    newest = outside.newest_plan()
    assert newest is not None
    outside.table, outside.table_id = None, "table-2"
    accepted = Acknowledgement(None, None, newest.number, "the disk is gone", 1, False)
    outside.acknowledged = replace(
        accepted,
        plan_id=newest.id,
        transaction_version=0,
        was_recorded=True,
        place=CAPPED.table.place,
    )
    outside.logs[LOG].grow(5)
    run(outside, CAPPED)
    return outside


def both_ledgers_of(outside: Outside) -> BothLedgers:
    kept = tuple(read_plans_with_results(outside.ledger))
    return BothLedgers(
        outside.ledger.read_ledger(), fake_table.read_table(outside), kept, LoadedIntervals()
    )


def world_of(outside: Outside, settings: Settings) -> Any:
    return SimpleNamespace(settings=settings, app_id=outside.app_id)


@pytest.fixture
def expected(outside: Outside) -> Any:
    """What the pipeline is expected to have put into the table."""

    def found() -> expected_rows.ExpectedOfAll:
        reported, world = both_ledgers_of(outside), world_of(outside, CAPPED)
        table = reported.table
        assert table is not None
        loaded = loaded_plans(world, reported, table)
        return expected_rows.expected_of_all(world, reported, table, *loaded)

    return found


def proven(outside: Outside, expected: Any) -> PartitionFindings:
    there = numpy.zeros(BUCKET_OFFSETS, bool)
    there[[offset for _, offset in outside.rows()]] = True
    bucket = Bucket(
        0, sum(outside.rows().values()), numpy.packbits(there, bitorder="little").tobytes()
    )
    [findings] = audit(expected().rows, [(HERE, bucket)])
    return findings


def test_rows_that_a_backfill_loaded_again_are_expected_once(
    outside: Outside, expected: Any
) -> None:
    before = proven(outside, expected)
    assert (before.missing, before.unexpected) == (40, 0), (
        "the rows of the lost table are in no present table, and the proof reports them"
    )
    filled(outside, backfill_request(0, 40), settings=CAPPED, name="jan")
    found = proven(outside, expected)
    assert (found.found_rows, found.missing, found.double_rows, found.unexpected) == (45, 0, 0, 0)


def test_a_plan_without_result_that_a_later_plan_followed_is_given_up_kept_and_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = Outside({LOG: FakeLog(20)})
    for _ in range(2):
        run(outside, CAPPED)
    del outside.applied[1]
    reported = both_ledgers_of(outside)
    assert reported.table is not None
    loaded, _ = loaded_plans(world_of(outside, CAPPED), reported, reported.table)
    assert [(one.plan.number, one.is_given_up) for one in loaded] == [(1, True), (2, False)]
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    prune(outside.ledger)
    assert outside.ledger.plan_numbers() == [2]
    kept = outside.ledger.read_loaded_intervals()
    assert [interval.until_offset for interval in kept.given_up[LOG]] == [10]


def test_intervals_with_rows_in_a_lost_table_are_not_expected_in_this_one(
    outside: Outside, expected: Any
) -> None:
    of_all = expected()
    reported = lag._offsets(of_all.rows[HERE], of_all.losses.get(HERE, ()))
    assert reported.in_table == [(40, 45)]
    assert reported.lost == [(0, 10), (10, 20), (20, 30), (30, 40)]


def test_of_rows_that_went_with_a_lost_table_those_are_missed_that_a_backfill_did_not_load_again(
    outside: Outside,
    expected: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled(outside, backfill_request(3, 14), settings=CAPPED, name="jan")
    found, of_all, reported = proven(outside, expected), expected(), both_ledgers_of(outside)
    assert (found.found_rows, found.missing, found.double_rows, found.unexpected) == (16, 29, 0, 0)
    short = [(one.from_offset, one.until_offset, one.missing) for one in found.short]
    assert short == [(0, 3, 3), (14, 20, 6), (20, 30, 10), (30, 40, 10)]
    assert reported.table is not None
    monkeypatch.setattr(verify, "_removals", lambda *_: ((), frozenset[int]()))
    [partition] = verify._explain(
        world_of(outside, CAPPED), reported, reported.table, of_all, [found]
    )
    assert (partition.missing.elsewhere, partition.missing.unknown, partition.is_right) == (
        29,
        0,
        True,
    ), "an operator accepted that the table was lost"


def test_rows_in_another_table_are_missing_except_reloaded_ones() -> None:
    def of(start: int, until: int) -> tuple[OffsetRange, RangeResult]:
        return OffsetRange(LOG, start, until), RangeResult(until - start, 0)

    ranges = (of(0, 10), of(10, 20), of(15, 20), of(30, 40), of(35, 40))
    lost = Expected((of(5, 7),), (Interval(30, 35, 5),), elsewhere=ranges)
    found = without_reloaded(lost, HERE)
    left = [(r.from_offset, r.until_offset, result.rows) for r, result in found.elsewhere]
    assert left == [(0, 5, 5), (7, 10, 3), (10, 20, 10), (35, 40, 5)]
    assert found.given_up == ()


def test_of_a_range_with_unknown_gaps_nothing_is_missing_if_a_part_was_reloaded() -> None:
    """The number of its rows outside of that is unknown."""
    unknown = OffsetRange(LOG, 0, 10), RangeResult(8, 0, gaps_complete=False)
    apart = OffsetRange(LOG, 10, 20), RangeResult(8, 0, gaps_complete=False)
    found = without_reloaded(Expected((), (Interval(2, 4, 2),), elsewhere=(unknown, apart)), HERE)
    assert found.elsewhere == (apart,)
    assert [(one.from_offset, one.until_offset) for one in found.given_up] == [(0, 10)]


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
    found = [r for plan, _ in reported.kept for r in plan.ranges]
    for intervals in reported.loaded.intervals.values():
        found += intervals
    return sorted((one.from_offset, one.until_offset) for one in found)


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
