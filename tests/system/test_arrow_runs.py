"""Runs whose tasks write the table's files, compared with Spark's writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.io.delta.recover_results import files_of_commit
from tests.system.driving import Pipeline, broken_off_before, data_files


@pytest.fixture
def by_arrow(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline with four partitions; its tasks write the table's files."""
    return make_pipeline(table={"writer": "arrow"})


def test_runs_that_change_their_writer_load_every_record_once_and_arrow_takes_one_job_of_spark(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    """One file for each concurrent task; a second job would read or write the rows again."""
    pipeline, tracker = make_pipeline(partitions=12), spark.sparkContext.statusTracker()
    for writer in ("arrow", "spark", "auto"):
        pipeline.settings = {"table": {"writer": writer}}
        pipeline.produce(400, partitions=12)
        before = set(tracker.getJobIdsForGroup(None))
        result = pipeline.ran()
        assert (result.outcomes, result.document["records_read"]) == (["ingested"], 400)
        ran = "spark" if writer == "spark" else "arrow"
        assert result.document["plan"]["writer"].startswith(ran), result.document["plan"]["writer"]
        if writer == "arrow":
            jobs = set(tracker.getJobIdsForGroup(None)) - before
            files = data_files(pipeline.table)
            assert (len(jobs), len(files)) == (1, spark.sparkContext.defaultParallelism)
    assert pipeline.is_whole()
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["passed"], proof.document["found_rows"]) == (0, True, 1200)


def test_every_column_of_every_row_is_what_sparks_writer_writes(
    by_arrow: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    by_arrow.produce(400)
    by_arrow.ran()
    other = by_arrow.under("by-spark")
    other.settings = {"table": {"path": str(tmp_path / "other"), "writer": "spark"}}
    other.ran()
    ours, theirs = (
        spark.read.format("delta").load(str(path)) for path in (by_arrow.table, tmp_path / "other")
    )
    assert ours.schema == theirs.schema
    rows = rows_in(by_arrow.table)
    assert rows == rows_in(tmp_path / "other") and len(rows) == 400
    assert any(row["headers"] for row in rows)


@pytest.mark.usefixtures("spark")
def test_results_travel_with_the_commit_so_a_crash_before_the_record_costs_no_count(
    by_arrow: Pipeline,
) -> None:
    by_arrow.produce(200)
    broken_off_before("record", by_arrow)
    for file in files_of_commit(str(by_arrow.table), 0).added:  # type: ignore[union-attr]
        Path(by_arrow.table, file.path).rename(Path(by_arrow.table, f"{file.path}.away"))
    result = by_arrow.ran()
    assert "result stored, from its commit" in result.out
    for file in by_arrow.table.glob("*.away"):
        file.rename(file.with_suffix(""))
    ranges = by_arrow.door("plans", "show").document["ranges"]
    assert all(r["fetched_bytes"] > 0 for r in ranges) and sum(r["rows"] for r in ranges) == 200


@pytest.fixture
def decoding(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline with rows made by `decoded`; it starts no Spark unless its writer is changed."""
    return make_pipeline(
        table={"writer": "auto"},
        limits={"local_below_bytes": 64 << 20},
        transform={"record_batch": "tests.system.transform_functions:decoded"},
    )


def rows_in(path: Path) -> list[dict[str, Any]]:
    return sorted(
        DeltaTable(str(path)).to_pyarrow_table().to_pylist(),
        key=lambda row: (row["partition"], row["offset"]),
    )


def test_either_writer_returns_the_same_rows_and_may_finish_a_plan_of_the_other(
    decoding: Pipeline, spark: SparkSession
) -> None:
    decoding.produce(100)
    assert decoding.ran().document["plan"]["writer"] == "arrow: table.writer is auto, without Spark"
    rows = rows_in(decoding.table)
    assert all(
        row["half"] * 2 == row["price"] == row["inner"]["offset"] == row["offset"] for row in rows
    )
    assert all(
        row["kind"] == ("odd" if row["offset"] % 2 else "even") and row["size"] == len(row["value"])
        for row in rows
    )
    assert all(row["wall"].date() == row["day"] == row["timestamp"].date() for row in rows)
    other = decoding.under("by-spark")
    table = str(other.folder / "table")
    other.settings = {
        "table": {"path": table, "writer": "arrow"},
        "transform": {"record_batch": decoding.settings["transform"]["record_batch"]},
    }
    broken_off_before("append", other)
    other.settings["table"]["writer"] = "spark"
    assert other.ran().outcomes[0] == "plan_resumed"
    assert rows_in(other.folder / "table") == rows
    assert (
        DeltaTable(table).schema().to_json() == DeltaTable(str(decoding.table)).schema().to_json()
    )
    assert decoding.is_whole()
