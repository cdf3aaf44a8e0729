"""Tables in a Hive metastore (Derby); every command is a process of its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from etl.testkit.cluster import EmbeddedCluster
from tests.conftest import TopicFactory
from tests.networks.commands import command, command_with
from tests.networks.statements import NAMED, metastore_in, run_statements
from tests.system.driving import WITHOUT_SPARK, Pipeline, watched_run

pytestmark = [pytest.mark.networks]


@pytest.fixture
def pipeline(
    cluster: EmbeddedCluster, topic: TopicFactory, unused_group: str, tmp_path: Path
) -> Pipeline:
    """A pipeline with a table of a schema `lake`, in a metastore of its own."""
    made = Pipeline(cluster, tmp_path, topic(2), unused_group)
    made.settings |= {**WITHOUT_SPARK, "table": dict(NAMED), "spark": metastore_in(made.folder)}
    run_statements(made, f"CREATE SCHEMA lake LOCATION '{made.folder}'")
    return made


def as_if_catalog_managed(log: Path) -> None:
    """The table's first commit, with the table feature by which only its catalog commits."""
    commit = log / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    features = {
        "readerFeatures": ["catalogManaged"],
        "writerFeatures": ["catalogManaged", "inCommitTimestamp"],
    }
    protocol: dict[str, Any] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    kept = [action for action in actions if "protocol" not in action]
    for action in kept:
        if "metaData" in action:
            action["metaData"]["configuration"] = {"delta.enableInCommitTimestamps": "true"}
        if "commitInfo" in action:
            action["commitInfo"]["inCommitTimestamp"] = action["commitInfo"]["timestamp"]
    for file in log.iterdir():
        if file.is_file():
            file.unlink()
    commit.write_text("\n".join(map(json.dumps, [*kept, {"protocol": protocol}])))


def test_runs_by_a_name_of_a_hive_metastore_load_rows_once_and_idle_ones_start_no_jvm(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(200, partitions=2)
    command(pipeline, "run")
    pipeline.produce(200, partitions=2)
    for outcome in ("ingested", "up_to_date"):
        cost, outcomes = watched_run(pipeline)
        assert cost["code"] == 0 and outcomes == [outcome]
        assert not {"pyspark", "py4j", "delta"} & set(cost["loaded"])
    assert pipeline.is_whole()
    assert "lake.table is at" in command(pipeline, "doctor")
    command(pipeline, "verify")
    pipeline.settings["table"] |= {"writer": "spark"}
    pipeline.settings["limits"] = {}
    pipeline.produce(200, partitions=2)
    command(pipeline, "run")
    assert pipeline.is_whole()


@pytest.mark.parametrize("verb", ["store", "append", "record"])
def test_a_run_by_a_name_that_is_killed_is_finished_by_the_next_one(
    pipeline: Pipeline, verb: str
) -> None:
    pipeline.produce(100, partitions=2)
    if verb == "append":  # by Spark: one JVM reads the catalog, the next one writes
        pipeline.settings |= {"table": {**NAMED, "writer": "spark"}, "limits": {}}
    assert pipeline.killed_before(verb) == -signal.SIGKILL
    command(pipeline, "run")
    assert pipeline.is_whole()


def test_a_moved_table_stops_the_next_run_with_spark_until_an_operator_accepts_it(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(100, partitions=2)
    command(pipeline, "run")
    run_statements(pipeline, "ALTER TABLE lake.table RENAME TO lake.renamed")  # with its folder
    assert "No Delta table is at the place" in command(pipeline, "run", code=5)
    found = command_with(pipeline, ("table", "refresh-path"), "--yes", code=2)
    assert "The catalog has no table lake.table" in found
    pipeline.settings["table"] |= {"name": "lake.renamed"}
    pipeline.produce(100, partitions=2)
    command(pipeline, "run")
    assert DeltaTable(str(pipeline.folder / "renamed")).to_pyarrow_table().num_rows == 200


def test_a_pipeline_with_a_path_continues_with_a_name_of_it_and_stops_at_a_name_of_another_location(
    pipeline: Pipeline,
) -> None:
    pipeline.settings["table"] = {"writer": "auto"}
    for table in ({"writer": "auto"}, NAMED):
        pipeline.settings["table"] = dict(table)
        pipeline.produce(100, partitions=2)
        command(pipeline, "run")
        if table is not NAMED:
            run_statements(
                pipeline, f"CREATE TABLE lake.table USING delta LOCATION '{pipeline.table}'"
            )
    assert pipeline.is_whole()
    run_statements(
        pipeline,
        "DROP TABLE lake.table",
        f"CREATE TABLE lake.table (a int) USING delta LOCATION '{pipeline.folder}/elsewhere'",
    )
    for words in (("verify",), ("doctor",)):
        reported = command(pipeline, *words, code=5)
        assert "elsewhere now" in reported and "etl table refresh-path CONF" in reported


def test_commands_that_need_spark_go_by_the_name_and_leave_each_row_once(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(100, partitions=2)
    command(pipeline, "run")
    rows = "--partition", pipeline.topic, "--from", "0", "--until", "20"
    confirmed = "--yes", "--reason", "seen"
    command_with(pipeline, ("replay",), *rows, *confirmed)
    command_with(pipeline, ("replay",), *rows, "--into", f"{pipeline.folder}/apart", *confirmed)
    command_with(pipeline, ("table", "maintain"), "--yes")
    assert pipeline.is_whole()
    assert DeltaTable(f"{pipeline.folder}/apart").to_pyarrow_table().num_rows == 40
    command(pipeline, "verify")


def test_a_catalog_in_memory_creates_no_table_and_another_metastore_is_queried_anew(
    pipeline: Pipeline,
) -> None:
    spark = dict(pipeline.settings["spark"])
    pipeline.settings["spark"] = {
        key: value for key, value in spark.items() if "catalogImplementation" not in key
    }
    pipeline.settings["table"] |= {"name": "default.table"}
    pipeline.produce(100, partitions=2)
    assert "in memory here" in command(pipeline, "run", code=2)
    pipeline.settings |= {"spark": spark, "table": dict(NAMED)}
    command(pipeline, "run")
    url = f"jdbc:derby:;databaseName={pipeline.folder}/another;create=true"
    pipeline.settings["spark"] = {**spark, "spark.hadoop.javax.jdo.option.ConnectionURL": url}
    assert "The catalog has no table lake.table" in command(pipeline, "run", code=2)


def test_an_unreachable_catalog_is_reported_with_its_cause_and_its_key(
    pipeline: Pipeline,
) -> None:
    spark = dict(pipeline.settings["spark"])
    for key, value, code, reported in (
        (
            "spark.hadoop.hive.metastore.uris",
            "thrift://127.0.0.1:1",
            7,
            "connection refused, thrift://127.0.0.1:1",
        ),
        (
            "spark.hadoop.javax.jdo.option.ConnectionURL",
            "jdbc:mysql://127.0.0.1:1/hive?password=hunter2",
            2,
            "no JDBC driver",
        ),
    ):
        pipeline.settings["spark"] = {**spark, key: value}
        said_of_it = command(pipeline, "run", code=code)
        assert reported in said_of_it and key in said_of_it and "hunter2" not in said_of_it, (
            said_of_it
        )


def test_what_no_run_may_commit_to_by_its_path_is_refused_by_its_name(pipeline: Pipeline) -> None:
    place = pipeline.folder
    run_statements(
        pipeline,
        "CREATE TABLE lake.rows (a int) USING parquet",
        "CREATE TABLE lake.text (a int) STORED AS TEXTFILE",
        "CREATE VIEW lake.seen AS SELECT 1 AS a",
        f"CREATE TABLE lake.managed (a int) USING delta LOCATION '{place}/managed'",
        f"CREATE TABLE lake.gone (a int) USING delta LOCATION '{place}/gone'",
    )
    as_if_catalog_managed(place / "managed" / "_delta_log")
    for file in (place / "gone" / "_delta_log").rglob("*"):
        if file.is_file():
            file.unlink()
    for name, code, words in (
        ("lake.rows", 2, "no Delta table, but one of parquet"),
        ("lake.text", 2, "no Delta table, but one of hive"),
        ("lake.seen", 2, "lake.seen is a view"),
        ("lake.managed", 2, "managed by its catalog"),
        ("lake.gone", 5, "No Delta table is at"),
        ("nowhere.table", 2, "no schema to make it in"),
        ("unknown.lake.table", 2, "Spark knows no catalog unknown"),
        ("global_temp.seen", 2, "temporary view"),
    ):
        pipeline.settings["table"] |= {"name": name}
        reported = command(pipeline, "run", code=code)
        assert words in reported and "table.name" in reported, reported
