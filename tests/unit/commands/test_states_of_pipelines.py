"""`etl table maintain` continues only in states in which a run would: removed files cannot be
restored. The state of a pipeline in `etl pipelines list`.
"""

from __future__ import annotations

import pytest

from etl.cli.screens import show_pipelines
from etl.commands.maintain import reject_table_that_stops_a_run
from etl.commands.pipelines import State, _state_of
from etl.errors import LedgersDisagree
from etl.ledger.registrations import DriverNode
from etl.model.plans import CommitResult
from etl.model.snapshot import Ledger, Retirement, Table
from tests.builders import plain_plan
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


PLAN = plain_plan()
DRIVER = DriverNode("host", 7, None, "run-1")


@pytest.mark.parametrize(
    ("ledger", "retirement", "driver", "state"),
    [
        (Ledger(), None, None, State.NO_PLAN),
        (Ledger("u", PLAN), None, None, State.STORED),
        (Ledger("u", PLAN, CommitResult(1, "", 3, "t", ())), None, None, State.UP_TO_DATE),
        (Ledger("u", PLAN), None, DRIVER, State.AT_WORK),
        (Ledger("u", PLAN), Retirement("moved", 1), None, State.RETIRED),
        (Ledger("u", PLAN), Retirement("moved", 1, "g/other"), None, State.TAKEN_OVER),
    ],
    ids=lambda value: value.value if isinstance(value, State) else None,
)
def test_the_state_of_a_pipeline(
    ledger: Ledger, retirement: Retirement | None, driver: DriverNode | None, state: State
) -> None:
    assert _state_of(ledger, retirement, driver) is state


def test_a_table_that_is_not_the_confs_is_shown_by_its_id(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {
        "group": "g",
        "pipeline": "p",
        "state": "at work",
        "newest_plan": 12,
        "age_s": 90.0,
        "topics": ["a", "b"],
        "table": None,
        "table_id": "5f-7",
        "driver": "run run-1, pid 7 on host",
        "retired": None,
        "paused": [],
        "backfills": [{"name": "old", "state": "whole"}],
    }
    show_pipelines([row])
    result = capsys.readouterr().out
    assert (
        "5f-7" in result and "a, b" in result and "g/p: at work, run run-1, pid 7 on host" in result
    )
