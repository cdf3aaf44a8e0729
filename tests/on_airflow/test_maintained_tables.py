"""The DAG of maintenance: the table is proven first, and only one that is whole is maintained."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from etl.errors import VerificationFailed
from tests.on_airflow.home import CONF
from tests.on_airflow.running import run
from tests.on_airflow.stand_in import StandIn

pytestmark = pytest.mark.usefixtures("database")

CLICKS = str(CONF / "clicks.yaml")
WHOLE = {"document": {"incomplete": [], "message": "whole"}}


def test_a_proven_table_is_then_maintained_without_a_confirmation(
    stand_in: StandIn,
) -> None:
    stand_in.spark_submit(
        {"document": {"passed": True}}, {"document": {"small_files": 9, "large_files": 1}}
    )
    stand_in.command(WHOLE)
    ran = run("maintain_clicks", datetime(2026, 11, 16, 1, tzinfo=UTC), task="maintain")
    assert [request.job for request in stand_in.calls()] == [
        ["verify", CLICKS],
        ["table", "maintain", CLICKS, "--yes"],
    ]
    assert (
        ran.state == "success"
        and {"command": "table maintain", "small_files": 9, "large_files": 1}.items()
        <= ran.returned.items()
    )


def test_a_table_that_lacks_something_is_left_as_it_is(stand_in: StandIn) -> None:
    stand_in.spark_submit(
        {"code": 5, "document": VerificationFailed("3 rows are missing").as_json()}
    )
    stand_in.command(WHOLE)
    ran = run("maintain_clicks", datetime(2026, 11, 16, 2, tzinfo=UTC), task="table_gaps")
    assert [request.job[0] for request in stand_in.calls()] == ["verify"]
    assert ran.state == "failed" and ran.tasks["maintain"][0] == "upstream_failed"
