"""`etl replay` on real servers: exactly its rows are new, in one commit; and its exit codes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.run.spark_on_demand import RunSpark
from tests.command_result import refused
from tests.system.driving import Pipeline

pytestmark = [pytest.mark.without_spark, pytest.mark.usefixtures("spark")]
"""Loads are without Spark; a replay with a transform of DataFrames is by Spark."""
MARKS = """
def marked(rows):
    from pyspark.sql import functions
    return rows.withColumn("timestampType", functions.lit(7))
"""


@pytest.fixture
def marking(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline with 600 records by two plans, and now a transform that marks rows."""
    pipeline.produce(400)
    pipeline.ran()
    pipeline.produce(200)
    pipeline.ran()
    (tmp_path / "marking_of_tests.py").write_text(MARKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "marking_of_tests", raising=False)
    pipeline.settings["transform"] = "marking_of_tests:marked"
    return pipeline


def replay(pipeline: Pipeline, *words: str) -> Any:
    partition = () if "-p" in words else ("-p", pipeline.topic)
    return pipeline.door("replay", after=(*partition, *words, "--reason", "seen"))


def marks(path: Path) -> dict[tuple[int, int], int]:
    """The mark of each row, of which each is there once."""
    rows = (
        DeltaTable(str(path))
        .to_pyarrow_table(columns=["partition", "offset", "timestampType"])
        .to_pylist()
    )
    places = Counter((row["partition"], row["offset"]) for row in rows)
    assert max(places.values(), default=1) == 1, places.most_common(3)
    return {(row["partition"], row["offset"]): row["timestampType"] for row in rows}


@pytest.mark.long
def test_a_replay_stops_no_other_pipeline_of_the_table(
    pipeline: Pipeline, make_pipeline: Callable[..., Pipeline]
) -> None:
    other = make_pipeline(table={"path": str(pipeline.table)})
    for one in (pipeline, other):
        one.produce(80)
        one.ran()
    replayed = replay(other, "--from", "2", "--until", "6", "--yes")
    assert replayed.code == 0, replayed.err
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    for one in (pipeline, other):
        proof = one.door("verify")
        assert (proof.code, proof.document["by_others"]) == (0, []), proof.err


def test_a_replay_replaces_exactly_its_rows_in_one_commit_and_verify_and_the_next_run_know_it(
    marking: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = marking
    before, offsets = marks(pipeline.table), pipeline.committed()
    partitions = ("-p", f"{pipeline.topic}:1", "-p", f"{pipeline.topic}:2")
    interval = ("--from", "50", "--until", "120", *partitions)
    with monkeypatch.context() as patch:
        patch.setattr(RunSpark, "session", None)  # a dry run starts no Spark
        shown = replay(pipeline, *interval, "--dry-run")
    assert (shown.code, shown.document["rows_that_go"], shown.document["plan"]) == (0, 140, 3)
    assert [r["rows_that_come_at_most"] for r in shown.document["replaces"]] == [70, 70]
    assert DeltaTable(str(pipeline.table)).version() == 1, "a dry run changes nothing"

    refused(replay(pipeline, *interval), 2, "no terminal for a confirmation", "--yes")
    result = replay(pipeline, *interval, "--yes")
    assert (result.code, result.outcomes) == (0, ["rows_replaced"]), result.err
    assert (
        result.document["outcomes"][0]["message"]
        == "Plan 3: 140 rows replaced by 140 rows, table version 2"
    )
    after = marks(pipeline.table)
    assert {place for place, mark in after.items() if mark == 7} == {
        (p, n) for p in (1, 2) for n in range(50, 120)
    }
    assert after.keys() == before.keys() and pipeline.is_whole() and pipeline.committed() == offsets
    table = DeltaTable(str(pipeline.table))
    assert (table.version(), table.history(1)[0]["operation"]) == (2, "WRITE")
    assert json.loads(table.history(1)[0]["userMetadata"])["kind"] == "replay"
    pipeline.produce(40)
    assert pipeline.ran().outcomes == ["ingested"]
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 640)
    append_only = "SET TBLPROPERTIES ('delta.appendOnly' = 'true')"
    spark.sql(f"ALTER TABLE delta.`{pipeline.table}` {append_only}")
    refused(replay(pipeline, *interval, "--yes"), 2, "The table is append-only")
    assert len(pipeline.door("plans", "list").document["plans"]) == 4


def test_rows_are_made_in_another_table_and_the_pipelines_own_stays_as_it_is(
    marking: Pipeline,
) -> None:
    into = str(marking.folder / "other")
    for turn in range(2):
        result = replay(marking, "--from", "0", "--until", "100", "--into", into)
        assert (result.code, result.document["rows"], result.document["rows_that_went"]) == (
            0,
            400,
            400 * turn,
        ), result.err
        assert set(marks(Path(into)).values()) == {7} and len(marks(Path(into))) == 400
    assert DeltaTable(str(marking.table)).version() == 1 and set(marks(marking.table).values()) == {
        0
    }
