"""A crash between the table's commit and the plan's result, for tables and transforms that make
the rows hard to count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.commands import operator_decisions
from etl.model.columns import spark_schema
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before

Shape = Callable[[str], str]


@pytest.fixture
def shape(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Shape:
    """`shape("rows.limit(1)")`: the pipeline's transform makes that of its rows; called again, it
    is changed under its name.
    """
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
    return [log["not_provable"] for log in proof.document["logs"]]


@pytest.mark.long
def test_mapped_columns_and_deletion_vectors_are_recounted_also_without_the_commits_files(
    pipeline: Pipeline,
    spark: SparkSession,
) -> None:
    properties = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'"
    table = f"delta.`{pipeline.table}`"
    spark.sql(
        f"CREATE TABLE {table} ({spark_schema()}) USING delta PARTITIONED BY (partition) "
        f"TBLPROPERTIES ({properties})"
    )
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["partition"]}}
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for are_gone in (False, True):
        pipeline.produce(80)
        broken_off_before("record", pipeline)
        written = set(pipeline.table.rglob("*.parquet"))
        if are_gone:
            spark.sql(f"OPTIMIZE {table}")
            spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
            assert not written & set(pipeline.table.rglob("*.parquet"))
        assert "plan_completed" in pipeline.ran().outcomes
        [*_, plan] = pipeline.door("plans", "show").document["ranges"]
        assert (plan["rows"], plan["missing_offsets"]) == (20, 0)
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 160)


def test_rows_possibly_dropped_before_a_crash_are_unproven_until_an_operator_accepts(
    pipeline: Pipeline,
    shape: Shape,
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


@pytest.mark.long
def test_a_transform_that_doubles_rows_before_a_crash_is_found(
    pipeline: Pipeline, shape: Shape
) -> None:
    shape("rows.unionAll(rows.where('partition = 2 and offset = 7'))")
    pipeline.produce(80)
    broken_off_before("record", pipeline)
    pipeline.ran()
    proof = pipeline.door("verify")
    assert (
        proof.code,
        [log["double_rows"] for log in proof.document["logs"]],
        proof.document["missing"],
    ) == (5, [0, 0, 1, 0], 0)


@pytest.mark.long
def test_offsets_rewritten_by_a_transform_stop_no_run_after_a_crash_and_verify_reports_them(
    pipeline: Pipeline, shape: Shape
) -> None:
    shape("rows.withColumn('offset', rows['offset'] + 1000)")
    pipeline.produce(80)
    broken_off_before("record", pipeline)
    repaired = pipeline.ran()
    assert (
        "80 offsets have no row, and whether the transform left them out is unknown" in repaired.out
    )
    pipeline.produce(80)
    pipeline.ran()
    proof = pipeline.door("verify")
    assert (proof.code, unproven(proof)) == (9, [20] * 4)


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


@pytest.mark.long
def test_without_offsets_in_the_table_a_crash_leaves_an_unknown_count_and_the_runs_continue(
    pipeline: Pipeline,
    shape: Shape,
    spark: SparkSession,
) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{pipeline.table}` (topic string, partition int, value binary) "
        f"USING delta"
    )
    shape("rows.select('topic', 'partition', 'value')")
    pipeline.produce(80)
    broken_off_before("record", pipeline)
    assert "the number of rows is unknown (the table has no column offset)" in pipeline.ran().out
    [listed] = pipeline.door("plans", "list").document["plans"]
    assert listed["rows"] is None
    shown = pipeline.door("plans", "show", json_too=False)
    assert "Its rows are not counted: the table has no column offset" in shown.out
    pipeline.produce(80)
    assert pipeline.ran().document["records_read"] == 80
    refused(pipeline.door("verify"), 2, "there is no column offset")
    doctor = pipeline.door("doctor")
    [line] = [line for line in doctor.document["checks"] if line["name"] == "transformed rows"]
    assert (doctor.code, line["verdict"]) == (0, "advice")
