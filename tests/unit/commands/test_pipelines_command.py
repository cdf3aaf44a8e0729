"""`etl pipelines`: the names that it refuses, and the state and the table of each pipeline."""

from __future__ import annotations

import pytest

from etl.cli.screens import show_pipelines
from etl.commands import pipelines
from etl.commands.pipelines import State, _state_of
from etl.errors import SettingsError
from etl.ledger.registrations import DriverNode
from etl.model.plans import CommitResult
from etl.model.snapshot import Ledger, Retirement
from tests.builders import plain_plan, plain_settings

PLAN = plain_plan()


DRIVER = DriverNode("host", 7, None, "run-1")


@pytest.mark.parametrize(
    ("ledger", "retirement", "driver", "state"),
    [
        (Ledger(), None, None, State.NO_PLAN),
        (Ledger("u", PLAN), None, None, State.STORED),
        (Ledger("u", PLAN, CommitResult(1, "", 3, "t", ())), None, None, State.UP_TO_DATE),
        (Ledger("u", PLAN), None, DRIVER, State.RUNNING),
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
        **dict.fromkeys(("table", "retired")),
        **{"group": "g", "pipeline": "p", "state": "running", "newest_plan": 12, "age_s": 90.0},
        **{"topics": ["a", "b"], "table_id": "5f-7", "driver": "run run-1, pid 7 on host"},
        **{"paused": [], "backfills": [{"name": "old", "state": "complete"}]},
    }
    show_pipelines([row])
    result = capsys.readouterr().out
    for words in ("5f-7", "a, b", "g/p: running, run run-1, pid 7 on host"):
        assert words in result


@pytest.mark.parametrize("name", [".", "..", "../x", "a/b", "é"])
def test_an_invalid_pipeline_name_is_rejected_before_any_request_to_zookeeper(name: str) -> None:
    for command in pipelines.retire, pipelines.resume:
        with pytest.raises(SettingsError, match="no name of a pipeline"):
            command(plain_settings(), name, "r")
