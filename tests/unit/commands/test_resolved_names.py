"""`etl table refresh-path`, and the report of a run that never learned the path of its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.commands.operator_decisions import describe_location
from etl.errors import NotOurTable
from etl.model.plans import CommitResult
from etl.model.snapshot import Ledger, NamedTable
from etl.report.metrics import metrics_of
from tests.builders import plain_plan, plain_settings
from tests.reports import new_report

FOUND = NamedTable("lake.clicks", "/wh/clicks", "id-1", 1_700_000_000_000)


@pytest.mark.parametrize(
    ("before", "made_for", "words", "is_silent_of"),
    [
        (None, None, "Table lake.clicks is at /wh/clicks", "until now"),
        (FOUND, "id-1", "Table lake.clicks is at /wh/clicks", "the next run stops"),
        (
            replace(FOUND, path="/wh/old"),
            "id-1",
            "until now runs used lake.clicks at /wh/old",
            "the next run stops",
        ),
        (
            replace(FOUND, name="lake.visits"),
            "id-2",
            "It is another table (id-1) than that of plan 1 (id-2): the next run stops",
            "  ",
        ),
    ],
)
def test_the_next_runs_use_of_a_table_name_is_reported(
    before: NamedTable | None, made_for: str | None, words: str, is_silent_of: str
) -> None:
    ledger = Ledger("uid", plain_plan(1, table_id=made_for)) if made_for else Ledger(None)
    message = describe_location(before, FOUND, ledger, None)
    assert words in message and is_silent_of not in message


@pytest.mark.parametrize(
    ("before", "in_table", "words", "is_silent_of"),
    [
        (replace(FOUND, path="/wh/old"), 1, "SET LOCATION '/wh/old'", "accepts"),
        (None, None, "lacks plan 2", "SET LOCATION"),
        (FOUND, 1, "lacks plan 2", "SET LOCATION"),
        (replace(FOUND, path="/wh/old"), 2, "is at /wh/clicks", "lacks"),
    ],
)
def test_a_copy_without_the_newest_plan_is_reported_with_the_location_that_may_have_it(
    before: NamedTable | None, in_table: int | None, words: str, is_silent_of: str
) -> None:
    plan = plain_plan(2, table_id="id-1")
    message = describe_location(
        before, FOUND, Ledger("uid", plan, CommitResult(2, plan.id, 7, "id-1", ())), in_table
    )
    assert words in message and is_silent_of not in message
    assert ("the next run stops" in message) == ("lacks" in message)
    assert "lacks" not in describe_location(
        before, FOUND, Ledger("uid", plan), in_table
    )  # it is stored, the next run appends it


def test_a_run_that_never_learned_where_its_table_is_has_a_report_and_metrics_all_the_same() -> (
    None
):
    settings = plain_settings(table={"path": None, "name": "lake.clicks"})
    report = new_report()
    report.table_path, report.settings = settings.table.called, settings
    report.failed(NotOurTable("lake.clicks is a view", key="table.name", action="select from it"))
    now_ms = report.started_at_ms + 1
    report.finished(now_ms)
    assert report.as_json()["table"] == "lake.clicks" and report.as_json()["exit_code"] == 2
    assert metrics_of(report, now_ms=now_ms, per_partition=False, last_success_s=None)
