"""Another pipeline makes the table between a plan and its append: the same run puts another plan in
its place, and not for ever.
"""

from __future__ import annotations

from typing import Any

import pytest

from etl.errors import LedgersDisagree, TableAppeared
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Table
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    SETTINGS,
    crash_at,
    new_report,
    outcomes,
    outside_of,
    reject_unfinished,
    run,
)
from tests.fakes.world import Crash, FakeWorld, When

SOMEBODYS = Table("table-1", 0, None)
OTHER_PIPELINES = Table("table-1", 0, None, is_of_others_alone=True)


class Arriving(FakeWorld):
    """Before its first append `found` is where no table was."""

    found: Table | None = None
    arrives: Table = OTHER_PIPELINES

    def _table(self) -> Table | None:
        return super()._table() or self.found

    def append(self, plan: Plan, rows: Any) -> tuple[CommitResult | None, Table | None]:
        """As a writer looks at the table that it appends to."""
        if not self.outside.table:
            self.found = self.arrives
            if plan.table.id is None:
                raise TableAppeared("at this path there is a table by now")
        return super().append(plan, rows)


def run_in(world: FakeWorld) -> Report:
    report = new_report()
    ingest(world, SETTINGS, report)
    return report


def test_a_table_that_another_pipeline_creates_meanwhile_gets_every_record_once() -> None:
    outside = outside_of(5, 3, 4)
    assert outcomes(run_in(Arriving(outside, SETTINGS))) == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.INGESTED,
    ]
    assert len(outside.table or ()) == 1
    reject_unfinished(outside)


def test_a_table_with_unknown_content_stops_the_run_before_any_record_is_read_again() -> None:
    outside = outside_of(5, 3, 4)
    world = Arriving(outside, SETTINGS)
    world.arrives = SOMEBODYS
    with pytest.raises(LedgersDisagree, match="Plan 1 was made when there was no table,"):
        run_in(world)
    assert world.steps.count("fetch") == 1 and outside.table is None


def test_a_driver_that_still_holds_the_old_plan_and_appends_it_first_is_adopted() -> None:
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, SETTINGS, crash_at("append", When.BEFORE))
    zombies = outside.newest_plan()
    assert zombies is not None

    def at(step: str, when: When) -> None:
        if (step, when) == ("fetch", When.BEFORE) and not outside.table:
            append_unnoticed(outside, zombies)

    world = Arriving(outside, SETTINGS, at)
    world.found = OTHER_PIPELINES
    assert Outcome.LOADED_BY_ANOTHER_RUN in outcomes(run_in(world))
    reject_unfinished(outside)


def append_unnoticed(outside: Outside, plan: Plan) -> None:
    FakeWorld(outside, SETTINGS, run_id="the zombie").append(plan, list(plan.ranges))
