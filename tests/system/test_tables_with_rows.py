"""A table that holds rows of the topic from before plan 1: nothing is loaded a second time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.model.columns import COLUMNS
from tests.command_result import CommandResult, refused, run_etl
from tests.system.driving import Pipeline


def written_by_a_query(pipeline: Pipeline, spark: SparkSession, writer: str = "spark") -> Pipeline:
    """A new pipeline on a streaming query's table: 400 rows of the topic's 600 records."""
    pipeline.produce(400)
    pipeline.ran()
    rows = spark.read.format("delta").load(str(pipeline.table)).select(*COLUMNS)
    heir = pipeline.under("new")
    query = rows.write.option("txnAppId", "query").option("txnVersion", 3)
    query.format("delta").save(str(heir.table))
    heir.settings = {"table": {"path": str(heir.table), "writer": writer}}
    heir.produce(200)
    return heir


def rows_by_offset(pipeline: Pipeline) -> Counter[tuple[int, int]]:
    rows = (
        DeltaTable(str(pipeline.table))
        .to_pyarrow_table(columns=["partition", "offset"])
        .to_pylist()
    )
    return Counter((row["partition"], row["offset"]) for row in rows)


def restored(pipeline: Pipeline) -> CommandResult:
    return pipeline.door("ledger", "restore", after=("--yes", "--reason", "a query wrote them"))


def accepted(pipeline: Pipeline) -> CommandResult:
    version = str(DeltaTable(str(pipeline.table)).version())
    return pipeline.door(
        "table", "accept-changes", after=(version, "--reason", "of another cluster", "--yes")
    )


def is_proven(pipeline: Pipeline, *, before: int, loaded: int) -> None:
    proof = pipeline.door("verify")
    assert proof.code == 0, proof.err + proof.out
    found = proof.document
    assert (found["rows_before_plan_1"], found["expected_rows"], found["found_rows"]) == (
        before,
        loaded,
        before + loaded,
    )
    assert any(f"{before} rows are from before plan 1" in note for note in found["notes"])


@pytest.mark.without_spark
def test_a_table_of_a_streaming_query_is_rejected_until_a_run_begins_after_its_rows(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    heir = written_by_a_query(pipeline, spark, "auto")
    texts = (
        f"The table holds 100 rows of {heir.topic}:0",
        "from offset 0 to 99, and rows of 3 more partitions",
        "table.path",
        "etl ledger restore CONF --reason",
        "etl table accept-changes CONF 0 --reason",
    )
    for words in ("run",), ("run", "--dry-run"), ("doctor",):
        result = heir.door(*words)
        assert result.code == 5, result.err + result.out
        for text in texts:
            assert text in result.err, result.err
    assert sum(rows_by_offset(heir).values()) == 400
    servers = ("--zookeeper", heir.cluster.zookeeper_connect, "--topic", heir.topic)
    places = ("--table", str(heir.table), "--output", str(tmp_path / "first" / "conf.yaml"))
    first_conf = run_etl("init", *servers, *places, "--json")
    assert first_conf.code == 0, first_conf.err
    reasons = {one["key"]: one["reason"] for one in first_conf.document["chosen"]}
    assert "the first run stops: The table holds 100 rows" in reasons["table.path"]
    assert "etl ledger restore CONF" in reasons["table.path"]
    assert restored(heir).code == 0
    heir.ran()
    heir.ran()
    assert heir.is_whole()
    is_proven(heir, before=400, loaded=200)
    again = spark.read.format("delta").load(str(heir.table)).where("offset < 100")
    again.limit(7).write.format("delta").mode("append").save(str(heir.table))
    added = "7 rows of offsets from before plan 1 were added later"
    proof = heir.door("verify")
    assert proof.code == 9 and added in proof.err, proof.err


@pytest.mark.without_spark
def test_rows_accepted_as_another_logs_stay_and_the_next_incarnation_loads_every_record(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    heir = written_by_a_query(pipeline, spark, "auto")
    refused(heir.run(), 5)
    result = accepted(heir)
    assert result.code == 0 and heir.topic in result.document["message"], result.err
    heir.ran()
    assert Counter(rows_by_offset(heir).values()) == {2: 400, 1: 200}
    incarnations = DeltaTable(str(heir.table)).to_pyarrow_table(columns=["incarnation"])
    assert Counter(incarnations.column("incarnation").to_pylist()) == {0: 400, 1: 600}
    is_proven(heir, before=400, loaded=600)


@pytest.mark.long
def test_rows_are_found_under_other_column_names_and_deleted_rows_are_not(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    heir = written_by_a_query(pipeline, spark)
    table = f"delta.`{heir.table}`"
    properties = {
        "columnMapping.mode": "name",
        "minReaderVersion": "2",
        "minWriterVersion": "5",
        "enableDeletionVectors": "true",
    }
    text = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({text})")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN topic TO was_topic")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN was_topic TO topic")
    spark.sql(f"OPTIMIZE {table}")
    refused(heir.run(), 5, f"The table holds 100 rows of {heir.topic}:0")
    spark.sql(f"DELETE FROM {table} WHERE offset < 60")
    refused(heir.run(), 5, f"The table holds 40 rows of {heir.topic}:0", "from offset 60 to 99")
    spark.sql(f"DELETE FROM {table} WHERE offset < 100")
    heir.ran()
    places = spark.sql(f"SELECT DISTINCT partition, offset FROM {table}")
    assert places.count() == spark.table(table).count() == 600
