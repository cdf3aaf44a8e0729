"""Backfills and replays where a table was lost, or an older copy of it was put back, and an operator accepted that."""

from __future__ import annotations

import pytest

from etl.report.run_state import Outcome
from tests.fakes.backfill_stories import accept_table, asked, filled
from tests.fakes.outside import Outside
from tests.fakes.stories import LOGS, grow, new_report, outcomes, outside_of, run, settings_of

FROM_THE_START = settings_of(limits={"max_records_per_run": 4})
"""The pipeline begins at the logs' starts, so all that a backfill may load was given up."""


def loaded(*ends: int) -> Outside:
    """By one plan for every four offsets."""
    outside = outside_of(*ends)
    while outcomes(run(outside, FROM_THE_START)) != [Outcome.NOTHING_NEW]:
        pass
    return outside


def refuse_lacking(outside: Outside) -> None:
    """Each record is in the table once."""
    rows = outside.rows()
    assert set(rows.values()) == {1}
    assert set(rows) == {(log, place) for log, found in outside.logs.items() for place in found.read(found.log_start, found.end)}


@pytest.mark.parametrize("has_gone_on", [True, False])
def test_what_an_older_copy_of_the_table_lacks_is_missing_as_soon_as_the_copy_is_accepted(has_gone_on: bool) -> None:
    outside = loaded(12)
    outside.table = (outside.table or [])[:2]  # of three plans
    accept_table(outside)
    if has_gone_on:
        grow(outside, 1)
        run(outside, FROM_THE_START)
    claim = filled(outside, asked(0, 12, only_missing=True), settings=FROM_THE_START)
    assert claim and dict(claim.stretches) == {LOGS[0]: ((8, 12),)}
    run(outside, FROM_THE_START)
    refuse_lacking(outside)
    report = new_report()
    assert filled(outside, asked(0, 12, only_missing=True), name="again", settings=FROM_THE_START, report=report) is None
    assert outcomes(report) == [Outcome.NOTHING_NEW]
