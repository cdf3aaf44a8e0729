"""Backfills beside a pipeline on the fake world: begun, loaded, given up."""

from __future__ import annotations

from typing import Any

from etl.decisions.backfills.backfilling import Asked
from etl.decisions.identity.accepting import parse_named
from etl.model.claims import Claim
from etl.model.ledger import Acknowledgement
from etl.report.run_report import Report
from etl.report.run_state import Outcome
from etl.run.backfill import abandon, backfill
from etl.settings.backfills import settings_of_backfill
from etl.settings.sections import Settings
from tests.fakes import fake_table
from tests.fakes.outside import Outside
from tests.fakes.stories import At, grow, new_report, outcomes, outside_of, run, settings_of
from tests.fakes.world import FakeWorld, When

CAPPED = settings_of(start="latest", limits={"max_records_per_run": 4})
"""The live pipeline begins at the ends, and no plan has more than four offsets."""


def asked(from_: Any = 0, until: Any = 5, *names: str, only_retained: bool = False, only_missing: bool = False) -> Asked:
    named = tuple(map(parse_named, names))
    return Asked(named, from_, until, only_retained, f"from {from_} until {until} {names} {only_missing}", only_missing)


def live(*ends: int, settings: Settings = CAPPED) -> Outside:
    """A pipeline that began at these ends, and has loaded two offsets more of each."""
    outside = outside_of(*ends)
    run(outside, settings)
    grow(outside, *(2 for _ in range(3)))
    run(outside, settings)
    while outcomes(run(outside, settings)) != [Outcome.NOTHING_NEW]:
        pass
    return outside


def nothing(step: str, when: When) -> None:
    del step, when


def filled(
    outside: Outside, what: Asked | None = asked(), at: At = nothing, *, name: str = "old", settings: Settings = CAPPED,
    report: Report | None = None, run_id: str = "run-1",
) -> Claim | None:
    own = settings_of_backfill(settings, name)
    world = FakeWorld(outside.beside(name), own, at, run_id=run_id)
    return backfill(world, FakeWorld(outside, settings, at), own, settings, report or new_report(), what)


def given_up(outside: Outside, at: At = nothing, *, name: str = "old", settings: Settings = CAPPED) -> Claim:
    own = settings_of_backfill(settings, name)
    return abandon(FakeWorld(outside.beside(name), own, at), own, new_report(), "not needed")


def accept_table(outside: Outside) -> None:
    """What `etl plans acknowledge` does: the table that is there now, or that there is none, is right."""
    newest, table = outside.newest_plan(), fake_table.read_table(outside)
    assert newest
    outside.acknowledged = Acknowledgement(
        table.id if table else None, table.version if table else None, newest.number, "no other copy is left", 1, False,
        plan_id=newest.id, transaction_version=outside.transaction_version(), was_recorded=newest.number in outside.applied,
        place=CAPPED.table.place)
