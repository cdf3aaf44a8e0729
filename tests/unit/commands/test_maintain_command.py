"""`etl table maintain` continues only in states in which a run would: removed files cannot be restored."""

from __future__ import annotations

import pytest

from etl.commands.maintain import reject_table_that_stops_a_run
from etl.errors import LedgersDisagree
from etl.model.snapshot import Table
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
    assert refused.value.message == at_run.value.message
    assert refused.value.action == at_run.value.action


@pytest.mark.parametrize("stop", ["store plan", "append", "record"])
def test_a_table_is_maintained_after_a_killed_run(stop: str) -> None:
    outside = loaded_twice()
    grow(outside, 1, 0, 0)
    with pytest.raises(Crash):
        run(outside, at=crash_at(stop, When.AFTER))
    assert observed(outside)


@pytest.mark.parametrize("uid", [None, "another"])
def test_a_table_is_maintained_if_its_ledger_is_lost_and_not_if_it_is_another_ones(
    uid: str | None,
) -> None:
    outside = loaded_twice()
    outside.plans.clear()
    outside.applied.clear()
    outside.uid = uid
    if uid is None:
        assert observed(outside)
        return
    with pytest.raises(LedgersDisagree, match="written by another pipeline of the same name"):
        observed(outside)
