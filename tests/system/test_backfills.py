"""`etl backfills run` on real ZooKeeper, Kafka, Spark and Delta: what the pipeline never loaded is
there once, and all know it as ours.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from deltalake import DeltaTable

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
    assert (row["state"], row["loaded"], row["left"], row["newest_plan"]) == ("whole", 400, 0, 5)

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
    assert late.ran().outcomes[-1] == "ingested"
    assert late.door("backfills", "run", after=("old",)).code == 0
    assert late.is_whole() and late.door("verify").document["found_rows"] == 640


def test_a_deleted_backfill_keeps_what_it_loaded_and_another_one_of_its_name_loads_the_rest(
    late: Pipeline,
) -> None:
    backfill_broken_off_before("record", late, "old", "0", "100")
    late.produce(40)
    deleted = late.door("backfills", "delete", after=("old", "--reason", "too slow", "--yes"))
    assert deleted.code == 0, deleted.err
    assert late.door("backfills", "list").document["backfills"] == []
    assert late.ran().outcomes[-1] == "ingested"
    assert backfill(late, "old", *INTERVAL, "--only-unloaded").code == 0
    assert late.is_whole() and late.door("verify").document["found_rows"] == 640


def test_what_cannot_be_backfilled_is_refused_with_what_to_do_and_nothing_is_claimed(
    late: Pipeline,
) -> None:
    beyond = backfill(late, "a", "--from", "0", "--until", "120")
    refused(
        beyond, 2, "The pipeline has loaded this partition from offset 100 on", "--only-unloaded"
    )
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
        "The pipeline has loaded offsets 10 to 15",
    )


def test_deleted_rows_of_a_backfill_are_replayed_once_that_is_accepted(late: Pipeline) -> None:
    pipeline = late
    assert backfill(pipeline, "old", *INTERVAL).code == 0
    DeltaTable(str(pipeline.table)).delete("partition = 1 and offset >= 20 and offset < 60")
    refused(pipeline.run(), 5, "removed rows", "table accept-changes")
    version = DeltaTable(str(pipeline.table)).version()
    accepted = pipeline.door(
        "table", "accept-changes", after=(str(version), "--reason", "a test", "--yes")
    )
    assert accepted.code == 0, accepted.err
    interval = ("--from", "20", "--until", "60", "--reason", "deleted by mistake", "--yes")
    replayed = pipeline.door("replay", after=("-p", f"{pipeline.topic}:1", *interval))
    assert replayed.code == 0, replayed.err
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 600), proof.err
    assert pipeline.is_whole() and pipeline.ran().outcomes == ["up_to_date"]


def test_offsets_missing_in_an_accepted_copy_are_loaded_again_by_the_same_backfill(
    late: Pipeline,
) -> None:
    assert backfill(late, "old", *INTERVAL).code == 0
    last = DeltaTable(str(late.table)).version()
    for kept in (late.table / "_delta_log").glob(f"*{last:020}.*"):
        kept.unlink()
    for command in (late.run, lambda: late.door("backfills", "run", after=("old",))):
        refused(command(), 5, f"etl table accept-changes CONF {last - 1}")
    accepted = late.door(
        "table", "accept-changes", after=(str(last - 1), "--reason", "a test", "--yes")
    )
    assert accepted.code == 0, accepted.err
    [row] = late.door("backfills", "list").document["backfills"]
    assert row["state"] == "stopped" and row["loaded"] + row["left"] == 400 > row["loaded"]
    assert late.door("backfills", "run", after=("old",)).outcomes[-1] == "backfill_done"
    assert late.is_whole() and late.door("verify").document["found_rows"] == 600
    assert late.ran().outcomes == ["up_to_date"]


def test_where_zookeeper_lost_the_ledger_the_rows_of_a_backfill_are_not_loaded_again(
    late: Pipeline,
) -> None:
    assert backfill(late, "old", *INTERVAL).code == 0
    with late.zookeeper() as client:
        client.delete(f"/consumers/{late.group}/etl", recursive=True)
    late.produce(40)
    assert "ledger_restored" in late.ran().outcomes
    assert late.door("backfills", "list").document["backfills"] == []
    refused(backfill(late, "old", *INTERVAL), 2, "The pipeline has loaded this partition from")
    assert backfill(late, "old", *INTERVAL, "--only-unloaded").outcomes == ["up_to_date"]
    assert late.is_whole() and late.door("verify").document["found_rows"] == 640


def test_a_dropped_table_that_was_accepted_is_made_by_a_backfill(late: Pipeline) -> None:
    shutil.rmtree(late.table)
    accepted = late.door("table", "accept-changes", after=("none", "--reason", "a test", "--yes"))
    assert accepted.code == 0, accepted.err
    assert late.door("verify").code == 0
    done = backfill(late, "all", "--from", "0", "--until", "150", "--only-unloaded")
    assert done.code == 0 and done.outcomes[-1] == "backfill_done", done.err
    [row] = late.door("backfills", "list").document["backfills"]
    proof = late.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, row["offsets"]), proof.err
    assert late.ran().outcomes == ["up_to_date"]
