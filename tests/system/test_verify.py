"""`etl verify` on a real table: why offsets have no row, and which commit removed a row."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.sql import SparkSession

from etl.commands import operator_decisions
from etl.decide import loaded_intervals
from etl.model.columns import arrow_schema
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before


def log_of(document: Any, partition: int) -> Any:
    return next(log for log in document["partitions"] if log["partition"] == partition)


@pytest.mark.without_spark
@pytest.mark.usefixtures("spark")
def test_deleted_rows_are_distinguished_from_a_missing_one_until_an_operator_accepts_the_loss(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(400)
    pipeline.ran()
    DeltaTable(str(pipeline.table)).delete("partition = 3 and offset < 11")
    proof = pipeline.door("verify")
    found = log_of(proof.document, 3)
    assert (proof.code, found["never_came"], found["removed_by_others"]) == (9, 0, 11)
    removal = {"table_version": 1, "operation": "DELETE", "reason": "removed rows"}
    assert found["removed_by"] == [removal]
    assert "11 removed later by another writer's DELETE at version 1" in proof.err
    assert "table accept-changes CONF 1" in proof.err

    operator_decisions.accept_table(load_settings(pipeline.conf), "1", "the law")
    pipeline.produce(40)
    pipeline.ran()
    shown = pipeline.door("verify", json_too=False)
    assert shown.code == 0, shown.err
    assert (
        f"{pipeline.topic} 3: 11 removed later by another writer's DELETE at version 1, as "
        f"policy or an operator allows" in shown.out
    )
    assert "429 records, each once, 11 were removed since, as allowed" in shown.out


def test_records_that_a_transform_of_dataframes_leaves_out_are_counted_by_plan(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pipeline.folder / "choosy_of_tests.py").write_text(
        "def chosen(rows):\n    return rows.where('offset % 10 <> 3')\n"
    )
    monkeypatch.syspath_prepend(str(pipeline.folder))
    pipeline.settings = {"transform": "choosy_of_tests:chosen"}
    pipeline.produce(400)
    first = pipeline.ran().document
    assert (first["records_read"], first["rows_written"]) == (400, 360)
    assert "400 records read: the transform left out 40" in first["outcomes"][0]["message"]
    proof = pipeline.door("verify")
    assert (proof.code, log_of(proof.document, 0)["not_provable"]) == (9, 10)
    assert "the transform left out records, and the files do not show at which" in proof.err
    assert "transform.may_drop: true" in proof.err

    pipeline.settings = {"transform": {"dataframe": "choosy_of_tests:chosen", "may_drop": True}}
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["left_out_by_transform"]) == (0, 40), proof.err
    summed = "plan 1: 400 records read, 360 rows written, 40 left out by the transform; the table"
    assert any(summed in note for note in proof.document["notes"])

    DeltaTable(str(pipeline.table)).delete("partition = 1 and offset < 3")
    pipeline.settings["table"] = {"on_rows_removed": "record"}
    assert "3 removed later" in " ".join(pipeline.door("verify").document["notes"])
    del pipeline.settings["table"]
    assert "3 removed later" in pipeline.door("verify").err


@pytest.mark.without_spark
@pytest.mark.usefixtures("spark")
def test_records_that_a_batch_transform_leaves_out_are_proven_range_by_range(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.settings = {
        "table": {"writer": "arrow"},
        "limits": {"local_below_bytes": 64 << 20},
        "transform": {"record_batch": "tests.system.transform_functions:tens"},
    }
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    for rows in (360, 360):
        pipeline.produce(400)
        document = pipeline.ran().document
        assert (document["records_read"], document["rows_written"]) == (400, rows)
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["passed"]) == (0, True), proof.err
    assert proof.document["left_out_by_transform"] == 80
    assert log_of(proof.document, 0)["without_row"]["left_out_by_transform"] == 20

    DeltaTable(str(pipeline.table)).delete("partition = 1 and offset < 3")
    assert log_of(pipeline.door("verify").document, 1)["missing"] == 3


@pytest.mark.without_spark
@pytest.mark.usefixtures("spark")
def test_a_foreign_row_without_a_record_is_reported_and_so_is_a_lost_file(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(400)
    pipeline.ran()
    path = str(pipeline.table)
    write_deltalake(
        path, pyarrow.Table.from_pylist([{"partition": 2}], schema=arrow_schema()), mode="append"
    )
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["rows_without_partition"]) == (9, 1)
    assert all(log["passed"] for log in proof.document["partitions"])
    first = "(first: topic NULL, partition 2, offset NULL)"
    assert f"1 rows name no record of a partition {first}" in proof.err

    lost = next(Path(path).glob("**/*.parquet"))
    lost.unlink()
    ways = ("Restore it from a copy", "repair()")
    missing = "A file that the table's log names does not exist"
    refused(pipeline.door("verify"), 5, missing, lost.name, *ways)
    DeltaTable(path).repair()
    version = str(DeltaTable(path).version())
    refused(pipeline.run(), 5, "removed rows", f"accept-changes CONF {version}")
    acceptance = (version, "--reason", "no copy exists", "--yes")
    assert pipeline.door("table", "accept-changes", after=acceptance).code == 0
    assert pipeline.run().code == 0


@pytest.mark.long
@pytest.mark.without_spark
@pytest.mark.usefixtures("spark")
def test_rows_lost_in_an_overwrite_are_attributed_to_it_and_without_the_files_the_cause_is_unknown(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(400)
    pipeline.ran()
    path = str(pipeline.table)
    rows = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, rows.slice(1), mode="overwrite")
    proof = pipeline.door("verify")
    [wrong] = [log for log in proof.document["partitions"] if not log["passed"]]
    assert (proof.code, wrong["removed_by_others"]) == (9, 1)
    assert [by["operation"] for by in wrong["removed_by"]] == ["WRITE"]

    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    proof = pipeline.door("verify")
    [wrong] = [log for log in proof.document["partitions"] if not log["passed"]]
    assert (proof.code, wrong["cause_unknown"]) == (9, 1)
    assert (wrong["never_came"], wrong["removed_by_others"]) == (0, 0)
    assert (
        "1 of unknown cause, since the files of their commit are deleted; another writer "
        "committed WRITE at version 1 since" in proof.err
    )


@pytest.mark.without_spark
@pytest.mark.usefixtures("spark")
def test_a_foreign_table_created_after_plan_1_takes_the_plan_once_it_is_accepted(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    broken_off_before("fetch", pipeline)
    DeltaTable.create(str(pipeline.table), arrow_schema())
    write_deltalake(
        str(pipeline.table),
        pyarrow.Table.from_pylist([{"topic": "a try"}], schema=arrow_schema()),
        mode="append",
    )
    DeltaTable(str(pipeline.table)).delete()
    refused(pipeline.run(), 5, "Plan 1 was made when there was no table")
    ruling = operator_decisions.accept_table(load_settings(pipeline.conf), "2", "made by hand")
    assert "0 rows of that plan are in it, so the next run replaces it" in ruling.summary
    assert "given up" not in ruling.summary
    assert pipeline.ran().outcomes == ["plan_superseded", "ingested"]
    assert pipeline.is_whole() and pipeline.door("verify").code == 0


@pytest.mark.without_spark
@pytest.mark.usefixtures("spark")
def test_an_update_of_another_writer_is_reported_as_by_a_run_until_it_is_accepted(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    DeltaTable(str(pipeline.table)).update(
        {"value": "key"}, predicate="partition = 0 and offset < 3"
    )
    proof, ran = pipeline.door("verify"), pipeline.run()
    assert (proof.code, ran.code, proof.document["missing"]) == (9, 5, 0)
    assert proof.document["by_others"] == [
        {"table_version": 1, "operation": "UPDATE", "reason": "removed rows"}
    ]
    assert ran.document["message"] in proof.err and "etl table accept-changes CONF 1" in proof.err
    operator_decisions.accept_table(load_settings(pipeline.conf), "1", "it was us")
    assert pipeline.door("verify").code == 0


def reasons(document: Any, partition: int = 0) -> dict[str, int]:
    """The reasons that apply, without the sentence and the stretches."""
    found = log_of(document, partition)["without_row"]
    return {
        name: count for name, count in found.items() if name not in ("message", "losses") and count
    }


@pytest.mark.long
def test_permitted_losses_are_reported_from_plans_and_later_from_the_losses_table(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(source={"on_data_loss": "skip"})
    pipeline.produce(400)
    with KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap) as admin:
        pipeline.ran()
        pipeline.produce(400)
        admin.delete_records({TopicPartition(pipeline.topic, 1): 150})
    broken_off_before("record", pipeline)
    before = pipeline.door("verify")
    assert (before.code, reasons(before.document, 1)) == (0, {"lost": 50})
    assert any(
        "the lost offsets of plan 2 are not in the losses table" in note
        for note in before.document["notes"]
    )
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    pipeline.ran()
    pipeline.produce(4)
    pipeline.ran()
    shown = pipeline.door("verify", json_too=False)
    assert (shown.code, "the losses table" in shown.out) == (0, False)
    assert (
        f"Offsets without a row in {pipeline.topic} 1: 50 lost (100 to 150, expired)" in shown.out
    )


@pytest.mark.long
def test_rows_copied_into_another_table_are_expected_after_their_plans_were_pruned(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    rows = DeltaTable(str(pipeline.table)).to_pyarrow_table()
    shutil.rmtree(pipeline.table)
    write_deltalake(str(pipeline.table), rows)
    operator_decisions.accept_table(load_settings(pipeline.conf), "0", "a copy")
    assert pipeline.door("verify").code == 0
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    pipeline.produce(40)
    pipeline.ran()
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 80), proof.err
    assert any(
        "40 rows are of plans that are unknown or were given up" in note
        for note in proof.document["notes"]
    )
    write_deltalake(str(pipeline.table), rows.slice(0, 1), mode="append")
    assert pipeline.door("verify").code == 9


Shape = Callable[[str], str]


@pytest.fixture
def shape(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Shape:
    """`shape("rows.limit(1)")`: the pipeline's transform does that, under the same name."""
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"shape_of_{pipeline.topic.replace('-', '_')}"

    def shaped(made: str) -> str:
        (pipeline.folder / f"{name}.py").write_text(f"def shaped(rows):\n    return {made}\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
        pipeline.settings = {**pipeline.settings, "transform": f"{name}:shaped"}
        return f"{name}:shaped"

    return shaped


def unproven(proof: Any) -> list[int]:
    return [partition["not_provable"] for partition in proof.document["partitions"]]


def test_rows_possibly_dropped_before_a_crash_are_unproven_until_an_operator_accepts(
    pipeline: Pipeline, shape: Shape
) -> None:
    shape("rows.where('not (partition = 2 and offset = 7)')")
    pipeline.produce(80)
    broken_off_before("record", pipeline)
    for _ in range(2):  # before and after the next run wrote its record
        proof = pipeline.door("verify")
        assert (proof.code, unproven(proof)) == (9, [0, 0, 1, 0])
        assert (
            "1 offsets without a row cannot be proven (first between 0 and 20; plan 1)" in proof.err
        )
        result = pipeline.ran()
    assert "up_to_date" in result.outcomes
    operator_decisions.accept_table(
        load_settings(pipeline.conf),
        str(DeltaTable(str(pipeline.table)).version()),
        "a test record, dropped on purpose",
    )
    accepted = pipeline.door("verify")
    assert (accepted.code, unproven(accepted)) == (0, [0, 0, 1, 0])
    assert any("an operator accepted that" in note for note in accepted.document["notes"])


def test_a_transform_that_drops_an_offset_is_rejected_and_the_doctor_reports_it_before_a_run(
    pipeline: Pipeline, shape: Shape
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    name = shape("rows.drop('offset')")
    pipeline.produce(80)
    doctor = pipeline.door("doctor")
    [line] = [line for line in doctor.document["checks"] if line["verdict"] == "failed"]
    assert (doctor.code, line["name"], "there is no column offset" in line["found"]) == (
        2,
        "transformed rows",
        True,
    )
    refused(pipeline.run(), 2, "there is no column offset", name, "topic, partition and offset")
    assert [plan["number"] for plan in pipeline.door("plans", "list").document["plans"]] == [1]
