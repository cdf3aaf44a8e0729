"""`etl maintain` goes on where a run would, and nowhere else: what it removes nobody can put back."""

from __future__ import annotations

import pytest

from etl.commands.maintain import refuse_what_stops_a_run
from etl.errors import LedgersDisagree
from etl.model.table import Table
from tests.fakes import fake_table
from tests.fakes.outside import Outside
from tests.fakes.stories import SETTINGS, crash_at, grow, outside_of, run
from tests.fakes.world import Crash, FakeWorld, When


def loaded_twice() -> Outside:
    outside = outside_of(2, 2, 2)
    run(outside)
    grow(outside, 1, 1, 1)
    run(outside)
    return outside


def looked_at(outside: Outside) -> Table | None:
    table = fake_table.read_table(outside)
    refuse_what_stops_a_run(FakeWorld(outside, SETTINGS).read_ledger(), table, SETTINGS)
    return table


def test_an_older_copy_of_the_table_is_not_maintained_for_the_newer_files_would_go() -> None:
    outside = loaded_twice()
    assert outside.table
    outside.table.pop()
    with pytest.raises(LedgersDisagree) as at_run:
        run(outside)
    with pytest.raises(LedgersDisagree) as refused:
        looked_at(outside)
    assert (refused.value.what, refused.value.check) == (at_run.value.what, at_run.value.check)


def test_a_table_of_another_ledger_of_the_same_name_is_not_maintained() -> None:
    outside = loaded_twice()
    outside.plans.clear()
    outside.applied.clear()
    outside.uid = "another"
    with pytest.raises(LedgersDisagree, match="written by another pipeline of the same name"):
        looked_at(outside)


@pytest.mark.parametrize("stop", ["store plan", "append", "record"])
def test_a_table_is_maintained_behind_a_run_that_was_killed(stop: str) -> None:
    outside = loaded_twice()
    grow(outside, 1, 0, 0)
    with pytest.raises(Crash):
        run(outside, at=crash_at(stop, When.AFTER))
    assert looked_at(outside)


def test_a_table_is_maintained_though_its_ledger_is_lost() -> None:
    outside = loaded_twice()
    outside.plans.clear()
    outside.applied.clear()
    outside.uid = None
    assert looked_at(outside)
