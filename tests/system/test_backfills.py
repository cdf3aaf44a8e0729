"""`etl backfills` on real servers: run, list and delete, a run between two plans, and exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from etl.commands.backfill import parse_backfill_request, run_backfill
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Before, BrokenOff, Pipeline, break_off

pytestmark = pytest.mark.without_spark

INTERVAL = ("--from", "0", "--until", "100")


@pytest.fixture
def late(pipeline: Pipeline) -> Pipeline:
    """A pipeline that began at offset 100 of each partition; 160 records per plan."""
    pipeline.settings = {"source": {"starting_offsets": "latest"}}
    pipeline.produce(400)
    pipeline.ran()
    pipeline.produce(200)
    pipeline.ran()
    pipeline.settings["limits"] = {"max_records_per_plan": 160}
    return pipeline


def backfill(pipeline: Pipeline, *words: str) -> Any:
    return pipeline.door("backfills", "run", after=(*words, "--yes"))


@pytest.mark.usefixtures("spark")
def test_a_backfill_that_was_interrupted_loads_the_rest_once_and_every_command_knows_it(
    late: Pipeline,
) -> None:
    offsets = late.committed()
    refused(backfill(late, "old", "--from", "0", "--until", "120"), 2, "from offset 100 on")
    future = ("--from", "2035-01-01T00:00:00Z", "--until", "2035-01-02T00:00:00Z")
    refused(backfill(late, "old", *future), 8, "is not over")
    refused(late.door("backfills", "run", after=("old",)), 2, "No backfill of this name exists")
    shown = backfill(late, "old", *INTERVAL, "--dry-run")
    assert (shown.code, shown.document["offsets"], len(shown.document["loads"])) == (0, 400, 4), (
        shown.err
    )
    assert late.door("backfills", "list").document["backfills"] == []

    request = parse_backfill_request("0", "100", ())
    with pytest.raises(BrokenOff):
        run_backfill(load_settings(late.conf), "old", request, around=Before("record", break_off))
    assert late.door("backfills", "list").document["backfills"][0]["state"] == "stopped"
    checks = late.door("doctor").document["checks"]
    [line] = [line for line in checks if line["name"] == "backfills"]
    assert line["verdict"] == "advice" and "old is stopped" in line["found"], line
    assert late.ran().outcomes[-1] == "up_to_date"

    result = late.door("backfills", "run", after=("old",))
    assert result.code == 0 and result.outcomes[-1] == "backfill_done", result.err
    assert late.is_whole() and late.committed() == offsets
    assert backfill(late, "old", *INTERVAL).outcomes == ["already_loaded"]
    [row] = late.door("backfills", "list").document["backfills"]
    assert (row["state"], row["loaded"], row["left"], row["newest_plan"]) == ("complete", 400, 0, 5)
    [listed] = late.door("pipelines", "list").document["pipelines"]
    assert listed["backfills"] == [{"name": "old", "state": "complete"}]

    late.produce(40)
    assert late.ran().outcomes == ["ingested"]
    deleted = late.door("backfills", "delete", after=("old", "--reason", "it is done", "--yes"))
    assert deleted.code == 0, deleted.err
    assert late.door("backfills", "list").document["backfills"] == []
    proof = late.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 640), proof.err
