"""What who takes a pipeline's place takes in of a backfill that gave deleted rows back: what it
still claims, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from etl.audit.compare_rows import pieces_of
from etl.commands import inherit_pipeline
from etl.decide.loaded_intervals import inherit_intervals
from etl.model.snapshot import Interval, LoadedIntervals, OtherPipeline
from tests.fakes import fake_ledger, fake_table
from tests.fakes.backfill_stories import accept_table, backfill_request, filled, given_up
from tests.fakes.fake_log import FakeLog, offset_of
from tests.fakes.outside import Outside
from tests.fakes.stories import LOGS, run, settings_of

LOG = LOGS[0]
CAPPED = settings_of(starting_offsets="latest", limits={"max_records_per_plan": 15})


def ledger_of(outside: Outside) -> Any:
    """As `PlanLedger` reads it."""
    plans = {plan.number: plan for plan, _ in fake_ledger.stored_plans(outside)}
    return SimpleNamespace(
        zookeeper=None,
        paths=SimpleNamespace(group="group"),
        pipeline="clicks",
        plan_numbers=lambda: sorted(plans),
        read_plan=plans.get,
        read_applied=lambda number: fake_ledger._record_of(outside, number, None),
        read_loaded_intervals=LoadedIntervals,
    )


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Outside:
    """The pipeline has loaded [40, 45). Backfill jan loaded [0, 40) in plans of 15, and released
    [0, 20) after its rows were deleted.
    """
    outside = Outside({LOG: FakeLog(40)})
    run(outside, CAPPED)
    outside.logs[LOG].grow(5)
    run(outside, CAPPED)
    filled(outside, backfill_request(0, 40), name="jan", settings=CAPPED)
    outside.table = [
        replace(one, replaced=one.replaced | {row for row in one.rows if offset_of(row[1]) < 20})
        if "@jan" in one.app_id
        else one
        for one in outside.table or ()
    ]
    accept_table(outside, settings=CAPPED)
    assert given_up(outside, name="jan", settings=CAPPED).stretches == {LOG: ((20, 40),)}
    claims = SimpleNamespace(
        read=lambda: fake_ledger.read_claims(outside),
        ledger_of=lambda name: ledger_of(outside.backfill(name)),
    )
    monkeypatch.setattr(inherit_pipeline, "ReservationStore", lambda *_: claims)
    return outside


def taken_in(outside: Outside) -> tuple[Interval, ...]:
    """The heir's coverage of the log."""
    newest = outside.newest_plan()
    assert newest is not None
    other = OtherPipeline(outside.app_id, newest.number, plan=newest)
    theirs = inherit_pipeline._loaded_by_all(
        ledger_of(outside), other, fake_table.read_table(outside)
    )
    return inherit_intervals(
        LoadedIntervals(), theirs, newest.positions, table_id=outside.table_id, known=()
    ).intervals[LOG]


def test_offsets_that_no_pipeline_has_loaded_since_are_free(outside: Outside) -> None:
    assert taken_in(outside) == (Interval(20, 45, 25),)


def test_offsets_that_another_backfill_has_loaded_since_are_there_once(outside: Outside) -> None:
    filled(outside, backfill_request(0, 20), name="feb", settings=CAPPED)
    found = taken_in(outside)
    assert found == (Interval(0, 45, 45),)
    pieces_of(LOG, found, ())
