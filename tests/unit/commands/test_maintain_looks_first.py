"""`etl table maintain` continues only in states in which a run would: removed files cannot be
restored.
"""

from __future__ import annotations

import contextlib

import pytest

from etl.commands.maintain import reject_table_that_stops_a_run
from etl.decide.reservations import reject_table_without_backfill
from etl.errors import LedgersDisagree
from etl.model.snapshot import Table
from tests.fakes import fake_table
from tests.fakes.backfill_stories import backfill_request, filled, live, nothing
from tests.fakes.outside import Outside
from tests.fakes.stories import SETTINGS, At, crash_at, grow, outside_of, run
from tests.fakes.world import Crash, FakeWorld, When


def loaded_twice() -> Outside:
    outside = outside_of(2, 2, 2)
    run(outside)
    grow(outside, 1, 1, 1)
    run(outside)
    return outside


def observed(outside: Outside) -> Table | None:
    table = fake_table.read_table(outside)
    reject_table_that_stops_a_run(FakeWorld(outside, SETTINGS).read_ledger(), table, SETTINGS)
    return table


def test_an_older_copy_of_the_table_is_not_maintained_for_the_newer_files_would_go() -> None:
    outside = loaded_twice()
    assert outside.table
    outside.table.pop()
    with pytest.raises(LedgersDisagree) as at_run:
        run(outside)
    with pytest.raises(LedgersDisagree) as refused:
        observed(outside)
    assert (refused.value.message, refused.value.action) == (
        at_run.value.message,
        at_run.value.action,
    )


def test_a_table_of_another_ledger_of_the_same_name_is_not_maintained() -> None:
    outside = loaded_twice()
    outside.plans.clear()
    outside.applied.clear()
    outside.uid = "another"
    with pytest.raises(LedgersDisagree, match="written by another pipeline of the same name"):
        observed(outside)


@pytest.mark.parametrize("stop", ["store plan", "append", "record"])
def test_a_table_is_maintained_after_a_killed_run(stop: str) -> None:
    outside = loaded_twice()
    grow(outside, 1, 0, 0)
    with pytest.raises(Crash):
        run(outside, at=crash_at(stop, When.AFTER))
    assert observed(outside)


def test_a_table_is_maintained_though_its_ledger_is_lost() -> None:
    outside = loaded_twice()
    outside.plans.clear()
    outside.applied.clear()
    outside.uid = None
    assert observed(outside)


def backfilled(at: At = nothing) -> Outside:
    """Three partitions that the pipeline started at offset 3, and a backfill of the offsets before
    in three plans.
    """
    outside = live(3, 3, 3)
    with contextlib.suppress(Crash):
        filled(outside, backfill_request(0, 3), at)
    return outside


def observed_with_backfill(outside: Outside) -> None:
    """As maintenance looks at what the backfill has loaded, its ledger first."""
    backfill = outside.backfill("old")
    ledger, theirs, table = (
        FakeWorld(backfill, SETTINGS).read_ledger(),
        fake_table.read_table(backfill),
        fake_table.read_table(outside),
    )
    assert table
    reject_table_without_backfill(
        "old", ledger, table, (theirs.transaction_version or 0) if theirs else 0
    )


@pytest.mark.parametrize(
    ("lacking", "message"),
    [(1, "loaded plan 3 .* its newest plan there is plan 2"), (3, "holds none of its plans")],
)
def test_an_older_copy_of_the_table_that_lacks_a_backfills_commits_alone_is_not_maintained(
    lacking: int, message: str
) -> None:
    outside = backfilled()
    observed_with_backfill(outside)
    assert outside.table
    del outside.table[-lacking:]
    assert observed(outside), "of the pipeline's own commits it lacks none"
    with pytest.raises(LedgersDisagree, match=message):
        observed_with_backfill(outside)


@pytest.mark.parametrize("stop", ["begin", "fetch", "append", "record", "store plan"])
def test_a_table_is_maintained_after_a_killed_backfill(stop: str) -> None:
    observed_with_backfill(backfilled(crash_at(stop, When.AFTER)))


def test_a_table_that_lacks_what_a_killed_backfill_had_loaded_before_is_not_maintained() -> None:
    outside = backfilled(crash_at("store plan", When.AFTER))
    assert outside.table
    outside.table.pop()
    with pytest.raises(LedgersDisagree, match="Backfill old has loaded plan 1"):
        observed_with_backfill(outside)


def test_a_backfill_into_another_table_does_not_prevent_the_maintenance_of_this_one() -> None:
    outside = backfilled()
    outside.table_id = "table-2"
    assert outside.table
    del outside.table[-3:]
    observed_with_backfill(outside)
