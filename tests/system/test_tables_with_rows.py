"""A table that holds rows of the topic from before plan 1, by real Spark, brokers and ZooKeeper:
nothing is loaded a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import compute, parquet
from pyspark.sql import SparkSession, functions

from etl.model.columns import COLUMNS
from tests.command_result import CommandResult, refused, run_etl
from tests.conftest import TopicFactory
from tests.system.driving import Pipeline, clean_log
from tests.traffic.modern import grow_topic

OF_KAFKA_SOURCE = COLUMNS[:7]
BY_SPARK, BY_ARROW = {"writer": "spark"}, {"writer": "arrow"}


def written_by_a_query(
    pipeline: Pipeline, spark: SparkSession, columns: Sequence[str] = COLUMNS, **table: Any
) -> Pipeline:
    """A new pipeline on a streaming query's table: 400 rows of the topic's 600 records."""
    pipeline.produce(400)
    pipeline.ran()
    rows = spark.read.format("delta").load(str(pipeline.table)).select(*columns)
    return _on_copy(pipeline, rows.write.option("txnAppId", "query").option("txnVersion", 3), table)


def _on_copy(pipeline: Pipeline, rows: Any, table: dict[str, Any]) -> Pipeline:
    heir = pipeline.under("new")
    rows.format("delta").save(str(heir.table))
    heir.settings = {"table": {"path": str(heir.table), **table}}
    heir.produce(200)
    return heir


def rows_by_offset(pipeline: Pipeline) -> Counter[tuple[int, int]]:
    """How many rows each record has."""
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


@pytest.mark.parametrize("table", [BY_SPARK, BY_ARROW], ids=["spark", "arrow"])
def test_a_table_of_a_streaming_query_is_rejected_until_a_run_begins_after_its_rows(
    pipeline: Pipeline,
    spark: SparkSession,
    table: dict[str, Any],
) -> None:
    heir = written_by_a_query(pipeline, spark, **table)
    for words in ("run",), ("run", "--dry-run"), ("doctor",):
        result = heir.door(*words)
        assert result.code == 5, result.err + result.out
        assert f"The table holds 100 rows of {heir.topic}:0" in result.err, result.err
        assert "from offset 0 to 99, and rows of 3 more partitions" in result.err, result.err
        for way in (
            "table.path",
            "etl ledger restore CONF --reason",
            "etl table accept-changes CONF 0 --reason",
        ):
            assert way in result.err, result.err
    assert sum(rows_by_offset(heir).values()) == 400
    assert restored(heir).code == 0
    heir.ran()
    heir.ran()
    assert heir.is_whole()
    is_proven(heir, before=400, loaded=200)
    heir.produce(40)
    heir.ran()
    assert heir.is_whole()
    is_proven(heir, before=400, loaded=240)


@pytest.mark.parametrize("table", [BY_SPARK, BY_ARROW], ids=["spark", "arrow"])
def test_rows_accepted_as_another_logs_stay_and_the_next_incarnation_loads_every_record(
    pipeline: Pipeline,
    spark: SparkSession,
    table: dict[str, Any],
) -> None:
    heir = written_by_a_query(pipeline, spark, **table)
    refused(heir.run(), 5)
    result = accepted(heir)
    assert result.code == 0 and heir.topic in result.document["message"], result.err
    heir.ran()
    assert Counter(rows_by_offset(heir).values()) == {2: 400, 1: 200}
    lives = (
        DeltaTable(str(heir.table))
        .to_pyarrow_table(columns=["incarnation"])
        .column("incarnation")
        .to_pylist()
    )
    assert Counter(lives) == {0: 400, 1: 600}
    is_proven(heir, before=400, loaded=600)
    heir.produce(40)
    heir.ran()
    is_proven(heir, before=400, loaded=640)


def test_a_word_counts_for_the_version_that_was_seen_and_not_for_rows_that_came_later(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    heir = written_by_a_query(pipeline, spark)
    assert accepted(heir).code == 0
    more = spark.read.format("delta").load(str(heir.table)).limit(1)
    more.write.format("delta").mode("append").save(str(heir.table))
    refused(heir.run(), 5, "a second time")


def test_rows_written_after_plan_one_among_those_from_before_it_are_found_by_verify(
    pipeline: Pipeline,
    spark: SparkSession,
) -> None:
    heir = written_by_a_query(pipeline, spark)
    assert restored(heir).code == 0
    heir.ran()
    heir.ran()
    again = spark.read.format("delta").load(str(heir.table)).where("offset < 100")
    again.limit(7).write.format("delta").mode("append").save(str(heir.table))
    proof = heir.door("verify")
    assert (
        proof.code == 9 and "7 rows of offsets from before plan 1 were added later" in proof.err
    ), proof.err


def test_a_table_without_our_columns_is_reported_with_its_columns_and_never_loaded_twice(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    heir = written_by_a_query(pipeline, spark, OF_KAFKA_SOURCE)
    for words in ("run",), ("run", "--dry-run"), ("doctor",):
        result = heir.door(*words)
        assert result.code == 5, result.err + result.out
        assert f"The table holds 100 rows of {heir.topic}:0" in result.err, result.err
    spark.sql(
        f"ALTER TABLE delta.`{heir.table}` ADD COLUMNS (headers "
        f"array<struct<key:string,value:binary>>, incarnation int)"
    )
    refused(heir.run(), 5, "a second time")
    assert restored(heir).code == 0
    heir.ran()
    heir.ran()
    assert heir.is_whole()
    is_proven(heir, before=400, loaded=200)


def test_our_own_table_without_its_transactions_continues_after_its_rows(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(400)
    pipeline.ran()
    without_transactions(pipeline.table)
    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
    pipeline.produce(200)
    refused(
        pipeline.run(),
        5,
        "that no plan of this pipeline loaded",
        "ledger restore CONF",
    )
    assert restored(pipeline).code == 0
    pipeline.ran()
    pipeline.ran()
    assert pipeline.is_whole()
    is_proven(pipeline, before=400, loaded=200)


def without_transactions(table: Path) -> None:
    """A checkpoint as of deltalake 0.17.4, without `txn`; older commits are cleaned up."""
    clean_log(table)
    [checkpoint] = table.glob("_delta_log/*.checkpoint.parquet")
    found = parquet.read_table(checkpoint)
    assert found.column("txn").null_count < found.num_rows
    parquet.write_table(
        found.filter(compute.is_null(found.column("txn"))).drop_columns(["txn"]), checkpoint
    )


def test_a_copy_of_our_table_is_no_table_of_ours_and_its_rows_are_not_loaded_again(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.produce(400)
    pipeline.ran()
    copy = pipeline.table.with_name("copy")
    spark.sql(f"CREATE TABLE delta.`{copy}` USING delta AS SELECT * FROM delta.`{pipeline.table}`")
    heir = replace(pipeline.under("new"), settings={"table": {"path": str(copy)}})
    refused(heir.run(), 5, "a second time")
    assert DeltaTable(str(copy)).to_pyarrow_table(columns=["offset"]).num_rows == 400


def test_with_offsets_of_the_group_after_the_rows_the_run_begins_there_without_a_decision(
    pipeline: Pipeline,
    spark: SparkSession,
) -> None:
    heir = written_by_a_query(pipeline, spark)
    with heir.zookeeper() as client:
        for partition in range(4):
            client.create(
                f"/consumers/{heir.group}/offsets/{heir.topic}/{partition}", b"100", makepath=True
            )
    heir.ran()
    assert heir.is_whole()
    is_proven(heir, before=400, loaded=200)
    refused(
        heir.door("backfills", "run", after=("old", "--from", "0", "--until", "50", "--yes")),
        5,
        "The table holds",
        "rows of offsets 0 to 50",
    )


def test_a_topic_that_is_added_to_the_conf_later_is_not_loaded_over_rows_from_before_plan_one(
    pipeline: Pipeline,
    spark: SparkSession,
    topic: TopicFactory,
) -> None:
    heir = written_by_a_query(pipeline, spark)
    of_it = pipeline.topic
    first = replace(heir, topic=topic(4), produced=0)
    first.produce(40)
    first.ran()
    both = {**heir.settings, "source": {"topics": [first.topic, of_it], "request_timeout_s": 20}}
    refused(replace(first, settings=both).run(), 5, f"The table holds 100 rows of {of_it}:0")


def test_rows_of_a_topic_added_later_are_continued_or_accepted_as_other_records(
    pipeline: Pipeline,
    spark: SparkSession,
    topic: TopicFactory,
) -> None:
    heir = written_by_a_query(pipeline, spark)
    first = replace(heir, topic=topic(4), produced=0)
    first.produce(40)
    first.ran()
    both = replace(
        first,
        settings={
            **heir.settings,
            "source": {"topics": [first.topic, heir.topic], "request_timeout_s": 20},
        },
    )
    refused(
        both.run(),
        5,
        f"The table holds 100 rows of {heir.topic}:0",
        "ledger restore CONF",
    )
    assert restored(both).code == 0
    assert both.ran().outcomes[-1] == "ingested"
    assert set(rows_by_offset(both).values()) == {1, 2}, (
        "partitions of two topics have the same numbers"
    )
    rows = (
        DeltaTable(str(heir.table))
        .to_pyarrow_table(columns=["topic", "partition", "offset"])
        .to_pylist()
    )
    assert len(rows) == 640 == len({tuple(row.values()) for row in rows})
    assert both.door("verify").code == 0


def test_a_topic_left_out_of_a_restore_by_rows_is_not_loaded_over_its_rows_later(
    pipeline: Pipeline,
    topic: TopicFactory,
) -> None:
    other = replace(pipeline, topic=topic(4), produced=0)
    for one in pipeline, other:
        one.produce(40)
    both = replace(
        pipeline,
        settings={"source": {"topics": [pipeline.topic, other.topic], "request_timeout_s": 20}},
    )
    both.ran()
    clean_log(pipeline.table)
    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
    one = replace(pipeline, settings={})
    assert restored(one).code == 0
    one.ran()
    refused(both.run(), 5, f"The table holds 20 rows of {other.topic}:0")
    assert restored(both).code == 0
    other.produce(20)
    assert both.ran().outcomes[-1] == "ingested"
    rows = (
        DeltaTable(str(pipeline.table))
        .to_pyarrow_table(columns=["topic", "partition", "offset"])
        .to_pylist()
    )
    assert len(rows) == 100 == len({tuple(row.values()) for row in rows})
    assert both.door("verify").code == 0


def test_partitions_added_later_begin_after_rows_of_the_table_or_in_the_next_incarnation(
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
) -> None:
    small = make_pipeline(partitions=1)
    small.produce(40, partitions=1)
    small.ran()
    heir = small.under("new")
    heir.settings = {"table": {"path": str(heir.table)}}
    rows = spark.read.format("delta").load(str(small.table)).where("offset < 10")
    rows.withColumn("partition", functions.lit(1)).write.format("delta").save(str(heir.table))
    heir.ran()
    grow_topic(small.cluster, small.topic, 2)
    refused(heir.run(), 5, f"The table holds 10 rows of {small.topic}:1")
    assert accepted(heir).code == 0
    heir.produce(20, partitions=2)
    assert heir.ran().outcomes[-1] == "ingested"
    assert heir.door("verify").code == 0


def test_a_first_conf_reports_that_the_table_has_rows_of_the_topic(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    heir = written_by_a_query(pipeline, spark)
    result = run_etl(
        "init",
        "--zookeeper",
        heir.cluster.zookeeper_connect,
        "--topic",
        heir.topic,
        "--table",
        str(heir.table),
        "--output",
        str(tmp_path / "first" / "conf.yaml"),
        "--json",
    )
    assert result.code == 0, result.err
    why = {one["key"]: one["reason"] for one in result.document["chosen"]}["table.path"]
    assert (
        "the first run stops: The table holds 100 rows" in why and "etl ledger restore CONF" in why
    )


def test_rows_that_were_deleted_by_a_deletion_vector_are_in_nobodys_way(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    heir = written_by_a_query(pipeline, spark)
    table = f"delta.`{heir.table}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    spark.sql(f"DELETE FROM {table} WHERE offset < 60")
    refused(heir.run(), 5, f"The table holds 40 rows of {heir.topic}:0", "from offset 60 to 99")
    spark.sql(f"DELETE FROM {table} WHERE offset < 100")
    heir.ran()
    assert (
        spark.sql(f"SELECT DISTINCT partition, offset FROM {table}").count()
        == spark.table(table).count()
        == 600
    )
    assert heir.door("verify").code == 0


def test_rows_in_files_that_columns_have_other_names_in_are_found(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    heir = written_by_a_query(pipeline, spark)
    spark.sql(f"""ALTER TABLE delta.`{heir.table}` SET TBLPROPERTIES (
        'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')""")
    spark.sql(f"ALTER TABLE delta.`{heir.table}` RENAME COLUMN topic TO was_topic")
    spark.sql(f"ALTER TABLE delta.`{heir.table}` RENAME COLUMN was_topic TO topic")
    spark.sql(f"OPTIMIZE delta.`{heir.table}`")
    refused(heir.run(), 5, f"The table holds 100 rows of {heir.topic}:0")
