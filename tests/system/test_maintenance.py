"""`etl table maintain` on a real table: small files become large ones, files go, and every proof
and every further run finds what it found.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before, data_files
from tests.system.watching import watched

DAY_S = 86_400
SPARK = {"pyspark", "py4j", "delta"}


def grown_older(table: Path, days: int) -> None:
    """As if all that was written lay there for so long: VACUUM goes by the time of a removal in the
    log and by that of files.
    """
    for path in table.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - days * DAY_S,) * 2)


def test_a_table_that_is_maintained_is_proven_and_loaded_as_before_and_no_row_moves(
    pipeline: Pipeline,
) -> None:
    for _ in range(2):
        pipeline.produce(80)
        pipeline.ran()
    before, committed, rows = data_files(pipeline.table), pipeline.committed(), pipeline.in_table()
    shown = pipeline.door("table", "maintain", after=("--dry-run",))
    assert shown.code == 0, shown.err
    assert (shown.document["small_files"], shown.document["unneeded_files"]) == (len(before), 0)
    assert data_files(pipeline.table) == before and DeltaTable(str(pipeline.table)).version() == 1

    done = pipeline.door("table", "maintain", after=("--yes",))
    assert done.code == 0, done.err
    assert (
        done.document["small_files"],
        done.document["large_files"],
        done.document["removed_files"],
    ) == (len(before), 1, 0)
    assert before < data_files(pipeline.table), "what OPTIMIZE replaced stays for a week"
    assert (
        pipeline.table / "_delta_log" / f"{done.document['checkpoint']:020}.checkpoint.parquet"
    ).exists()
    assert pipeline.in_table() == rows and pipeline.committed() == committed
    assert pipeline.door("verify").document["passed"] is True
    assert pipeline.ran().outcomes == ["up_to_date"], (
        "the compaction loads no rows and is no foreign change"
    )
    cost, again = watched(pipeline, "table", "maintain", after=("--yes",))
    assert cost["started"] == [] and not SPARK & set(cost["loaded"]), (
        "where nothing is to be done no Spark is started"
    )
    assert (again["small_files"], again["removed_files"], again["checkpoint"]) == (
        0,
        0,
        done.document["checkpoint"],
    )

    pipeline.produce(80)
    assert pipeline.ran().document["records_read"] == 80
    assert pipeline.is_whole() and pipeline.door("verify").document["passed"] is True


@pytest.mark.long
def test_unneeded_files_are_deleted_after_a_week_and_an_unrecorded_plan_is_counted(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    pipeline.produce(80)
    assert pipeline.killed_before("record") == -9, (
        "its rows are in the table, and the ledger does not know what came of it"
    )
    assert pipeline.door("table", "maintain", after=("--yes",)).code == 0
    left = pipeline.table / "part-00000-of-a-run-that-was-killed.parquet"
    left.write_bytes(b"half a file")
    removed_earlier(pipeline.table, days=8)
    grown_older(pipeline.table, days=8)
    done = pipeline.door("table", "maintain", after=("--yes",))
    assert done.code == 0 and done.document["removed_files"] > 1, done.err + done.out
    assert not left.exists() and len(data_files(pipeline.table)) == 1
    assert pipeline.ran().code == 0
    assert pipeline.is_whole() and pipeline.door("verify").document["passed"] is True


def removed_earlier(table: Path, days: int) -> None:
    """Rewrite the moments of removals in the log, and drop the checkpoints, which have them too."""
    log = table / "_delta_log"
    for path in [
        *log.glob("*.checkpoint*"),
        log / "_last_checkpoint",
        *log.glob(".*.crc"),
        *log.glob("*.crc"),
    ]:
        path.unlink(missing_ok=True)
    for path in log.glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= days * DAY_S * 1000
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_deleted_rows_can_be_restored_because_no_file_is_touched_before_the_decision(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    spark.sql(f"DELETE FROM delta.`{pipeline.table}` WHERE offset < 3")
    before, version = data_files(pipeline.table), DeltaTable(str(pipeline.table)).version()
    refused(
        pipeline.door("table", "maintain", after=("--yes",)),
        5,
        "DELETE",
        "etl table accept-changes",
    )
    assert (
        data_files(pipeline.table) == before
        and DeltaTable(str(pipeline.table)).version() == version
    )
    acknowledged = pipeline.door(
        "table", "accept-changes", after=(str(version), "--reason", "a test", "--yes")
    )
    assert acknowledged.code == 0, acknowledged.err
    assert pipeline.door("table", "maintain", after=("--yes",)).code == 0
    assert pipeline.door("verify").document["passed"] is True


@pytest.mark.long
def test_a_table_with_deletion_vectors_loses_them_and_no_row(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.settings = {"table": {"on_rows_removed": "record"}}
    pipeline.produce(80)
    pipeline.ran()
    spark.sql(
        f"ALTER TABLE delta.`{pipeline.table}` SET TBLPROPERTIES "
        f"('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(f"DELETE FROM delta.`{pipeline.table}` WHERE offset < 3")
    rows = spark.read.format("delta").load(str(pipeline.table)).count()
    done = pipeline.door("table", "maintain", after=("--yes",))
    assert done.code == 0, done.err
    assert spark.read.format("delta").load(str(pipeline.table)).count() == rows == 80 - 4 * 3
    pipeline.produce(80)
    assert pipeline.ran().document["records_read"] == 80
    proof = pipeline.door("verify").document
    assert proof["passed"] is True, "the DELETE was noted before the log may forget it"


def test_a_table_that_cannot_be_maintained_is_reported_and_nothing_is_written(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    refused(
        pipeline.door("table", "maintain", after=("--yes",)), 2, "There is no table yet", "etl run"
    )
    pipeline.produce(40)
    pipeline.ran()
    refused(
        pipeline.door("table", "maintain", after=("--yes", "--retain", "6d")),
        2,
        "7 days at least",
        "--retain 7d",
    )
    refused(
        pipeline.door("table", "maintain"), 2, "there is no terminal for a confirmation", "OPTIMIZE"
    )
    other = pipeline.under("other")
    refused(
        other.door("table", "maintain", after=("--yes",)),
        2,
        "This pipeline has no commit in the table",
    )
    assert DeltaTable(str(pipeline.table)).version() == 0


@pytest.mark.without_spark
def test_runs_without_spark_leave_small_files_until_the_confs_number_and_then_one_run_compacts_them(
    pipeline: Pipeline,
) -> None:
    pipeline.settings = {"table": {"auto_compact_min_files": 100}}
    for _ in range(2):
        pipeline.produce(80)
        assert pipeline.ran().outcomes == ["ingested"]
    pipeline.settings["table"]["auto_compact_min_files"] = 3
    pipeline.produce(80)
    broken_off_before("record", pipeline)
    assert len(DeltaTable(str(pipeline.table)).file_uris()) >= 3, (
        "the run that appended came to its end too early"
    )
    pipeline.produce(80)
    result = pipeline.ran()
    assert (
        result.outcomes[-1] == "table_compacted"
        and len(DeltaTable(str(pipeline.table)).file_uris()) == 1
    )
    assert pipeline.is_whole() and pipeline.door("verify").document["passed"] is True, (
        "its rows were counted after a crash"
    )
    replayed = pipeline.door(
        "replay",
        after=(
            "-p",
            f"{pipeline.topic}:0",
            "--from",
            "0",
            "--until",
            "10",
            "--reason",
            "a test",
            "--yes",
        ),
    )
    assert replayed.code == 0, replayed.err
    assert pipeline.is_whole() and pipeline.door("verify").document["passed"] is True
    assert pipeline.ran().outcomes == ["up_to_date"]


@pytest.mark.long
def test_etl_compact_puts_small_files_together_and_nothing_else_and_stops_where_a_run_does(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    refused(pipeline.door("table", "compact"), 2, "There is no table yet", "etl run")
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    before = data_files(pipeline.table)
    shown = pipeline.door("table", "compact", after=("--dry-run",))
    assert shown.document["small_files"] == len(before) and data_files(pipeline.table) == before
    done = pipeline.door("table", "compact")
    assert (done.document["small_files"], done.document["large_files"]) == (len(before), 1), (
        done.err
    )
    assert before < data_files(pipeline.table) and pipeline.is_whole()
    cost, again = watched(pipeline, "compact")
    assert cost["started"] == [] and not SPARK & set(cost["loaded"]) and again["small_files"] == 0
    spark.sql(f"DELETE FROM delta.`{pipeline.table}` WHERE offset < 3")
    refused(pipeline.door("table", "compact"), 5, "DELETE", "etl table accept-changes")
