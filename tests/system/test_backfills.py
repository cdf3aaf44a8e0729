"""`etl backfills run` on real ZooKeeper, Kafka, Spark and Delta: what the pipeline never loaded is
there once, and all know it as ours.
"""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable
from kafka.admin import KafkaAdminClient

from etl.testkit.server_process import wait_until
from tests.command_result import refused
from tests.system.driving import Pipeline, backfill_broken_off_before

pytestmark = pytest.mark.without_spark

INTERVAL = ("--from", "0", "--until", "100")


def backfill(pipeline: Pipeline, *words: str) -> Any:
    return pipeline.door("backfills", "run", after=(*words, "--yes"))


def test_records_before_the_start_are_loaded_once_and_verify_and_the_next_run_accept_them(
    late: Pipeline,
) -> None:
    pipeline, offsets = late, late.committed()
    shown = backfill(pipeline, "old", *INTERVAL, "--dry-run")
    assert (shown.code, shown.document["offsets"], len(shown.document["loads"])) == (0, 400, 4), (
        shown.err
    )
    assert pipeline.door("backfills", "list").document["backfills"] == []

    result = backfill(pipeline, "old", *INTERVAL)
    assert result.code == 0, result.err
    assert result.outcomes == ["ingested", "ingested", "ingested", "backfill_done"]
    assert (
        result.document["outcomes"][-1]["message"]
        == "Backfill old: all 400 offsets of 4 partitions loaded"
    )
    assert pipeline.is_whole() and pipeline.committed() == offsets
    assert backfill(pipeline, "old", *INTERVAL).outcomes == ["already_loaded"]
    assert pipeline.door("backfills", "run", after=("old",)).outcomes == ["already_loaded"]
    [row] = pipeline.door("backfills", "list").document["backfills"]
    assert (row["state"], row["loaded"], row["left"], row["newest_plan"]) == ("whole", 400, 0, 3)

    assert pipeline.ran().outcomes == ["up_to_date"]
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 600), proof.err
    pipeline.produce(40)
    assert pipeline.ran().outcomes == ["ingested"]
    assert pipeline.door("verify").document["found_rows"] == 640 and pipeline.is_whole()
    assert pipeline.door("doctor").code == 0
    [listed] = pipeline.door("pipelines", "list").document["pipelines"]
    assert (listed["pipeline"], listed["backfills"]) == (
        "clicks",
        [{"name": "old", "state": "whole"}],
    )


@pytest.mark.parametrize("verb", [pytest.param("fetch", marks=pytest.mark.long), "record"])
def test_an_interrupted_backfill_continues_during_runs_of_the_pipeline(
    late: Pipeline, verb: str
) -> None:
    backfill_broken_off_before(verb, late, "old", "0", "100")
    assert late.door("backfills", "list").document["backfills"][0]["state"] == "stopped"
    assert late.door("verify").code == 0
    [reported] = [
        line for line in late.door("doctor").document["checks"] if line["name"] == "backfills"
    ]
    assert reported["verdict"] == "advice" and "old is stopped" in reported["found"], reported
    late.produce(40)
    assert late.ran().outcomes == ["ingested"]
    assert late.door("backfills", "run", after=("old",)).code == 0
    assert late.is_whole() and late.door("verify").document["found_rows"] == 640


def test_one_that_is_given_up_keeps_what_it_loaded_and_another_one_fills_the_rest(
    late: Pipeline,
) -> None:
    backfill_broken_off_before("record", late, "old", "0", "100")
    rows = DeltaTable(str(late.table)).to_pyarrow_table(columns=["offset"]).num_rows
    given_up = late.door("backfills", "delete", after=("old", "--reason", "too slow", "--yes"))
    assert given_up.code == 0, given_up.err
    [row] = late.door("backfills", "list").document["backfills"]
    assert (row["state"], row["loaded"], row["reason"]) == ("given up", rows - 200, "too slow")
    refused(backfill(late, "old", *INTERVAL), 2, "was given up: too slow")
    assert backfill(late, "rest", *INTERVAL, "--only-unloaded").code == 0
    assert late.is_whole() and late.door("verify").document["found_rows"] == 600


def test_what_cannot_be_backfilled_is_refused_with_what_to_do_and_nothing_is_claimed(
    late: Pipeline,
) -> None:
    beyond = backfill(late, "a", "--from", "0", "--until", "120")
    refused(beyond, 2, "The pipeline loads this partition from offset 100 on", "--only-unloaded")
    refused(backfill(late, "a", "--from", "10", "--until", "10"), 2, "The interval is empty")
    refused(
        backfill(late, "a", "--from", "10", "--until", "9"),
        2,
        "The interval runs backwards",
    )
    refused(
        backfill(late, "a", "--from", "0", "--until", "999"),
        2,
        "The interval ends at 999, and the partition at ",
    )
    refused(
        backfill(late, "a", "--from", "2035-01-01T00:00:00Z", "--until", "2035-01-02T00:00:00Z"),
        8,
        "is not over",
    )
    refused(backfill(late, "a/b", *INTERVAL), 2, "is not a name of a backfill")
    refused(backfill(late, "a", *INTERVAL, "-p", "0"), 2, "The brokers have no 0")
    refused(
        late.door("backfills", "run", after=("a",)),
        2,
        "No backfill of this name exists",
    )
    assert late.door("backfills", "list").document["backfills"] == []
    assert backfill(late, "b", "--from", "10", "--until", "20").code == 0
    refused(
        backfill(late, "b", "--from", "10", "--until", "21"),
        2,
        "Backfill b was begun from 10 until 20",
    )
    refused(
        backfill(late, "c", "--from", "0", "--until", "15"),
        2,
        "Backfill b has loaded offsets 10 to 15, or will",
    )


def test_deleted_rows_of_a_complete_backfill_are_released_and_loaded_by_another_one(
    late: Pipeline,
) -> None:
    pipeline, name = late, ("old", "--reason", "deleted by mistake")
    assert backfill(pipeline, "old", *INTERVAL).code == 0
    refused(
        pipeline.door("backfills", "delete", after=(*name, "--yes")),
        2,
        "There is nothing to give up",
    )
    DeltaTable(str(pipeline.table)).delete("partition = 1 and offset >= 20 and offset < 60")
    refused(
        pipeline.door("backfills", "delete", after=(*name, "--yes")),
        5,
        "removed rows",
        "table accept-changes",
    )
    version = DeltaTable(str(pipeline.table)).version()
    accepted = pipeline.door(
        "table", "accept-changes", after=(str(version), "--reason", "a test", "--yes")
    )
    assert accepted.code == 0, accepted.err
    refused(
        backfill(pipeline, "new", *INTERVAL),
        2,
        "Backfill old has loaded offsets 0 to 100",
        "`etl backfills delete CONF old --reason ...`",
    )
    given_up = pipeline.door("backfills", "delete", after=(*name, "--yes"))
    assert given_up.code == 0, given_up.err
    [row] = pipeline.door("backfills", "list").document["backfills"]
    assert (row["state"], row["loaded"]) == ("given up", 360)
    assert pipeline.door("verify").document["found_rows"] == 560

    assert backfill(pipeline, "new", *INTERVAL, "--only-unloaded").code == 0
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 600), proof.err
    assert pipeline.is_whole() and pipeline.ran().outcomes == ["up_to_date"]


def test_offsets_missing_in_an_accepted_copy_are_released_also_for_a_deleted_topic(
    late: Pipeline,
) -> None:
    assert backfill(late, "old", *INTERVAL).code == 0
    last = DeltaTable(str(late.table)).version()
    for kept in (late.table / "_delta_log").glob(f"*{last:020}.*"):
        kept.unlink()
    abandon = ("old", "--reason", "an older copy", "--yes")
    refused(
        late.door("backfills", "delete", after=abandon),
        5,
        "now the table does not hold it",
        f"etl table accept-changes CONF {last - 1}",
    )
    accepted = late.door(
        "table", "accept-changes", after=(str(last - 1), "--reason", "a test", "--yes")
    )
    assert accepted.code == 0, accepted.err
    refused(
        late.door("backfills", "run", after=("old",)),
        5,
        "the table has no row of",
        "`etl backfills delete CONF old",
    )
    assert late.door("backfills", "delete", after=abandon).code == 0
    assert backfill(late, "rest", *INTERVAL, "--only-unloaded").code == 0
    assert late.is_whole() and late.door("verify").document["found_rows"] == 600
    assert late.ran().outcomes == ["up_to_date"]
    with KafkaAdminClient(bootstrap_servers=late.cluster.bootstrap) as admin:
        admin.delete_topics([late.topic])
        assert wait_until(lambda: late.topic not in admin.list_topics(), 30)
    assert late.door("backfills", "run", after=("rest",)).outcomes == ["already_loaded"]
    refused(
        late.door("backfills", "delete", after=("rest", "--reason", "gone", "--yes")),
        2,
        "There is nothing to give up",
    )
