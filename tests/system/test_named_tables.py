"""Tables that a catalog names: Spark's own session catalog here, in the JVM that tests share; a
Hive metastore in tests/networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.command_result import refused
from tests.system.driving import WITHOUT_SPARK, Pipeline, broken_off_before, take_over


@pytest.fixture
def named(make_pipeline: Callable[..., Pipeline], spark: SparkSession) -> Iterator[Pipeline]:
    """A pipeline with the table `table` of a new schema, in the pipeline's directory. Small plans
    need no Spark.
    """
    pipeline = make_pipeline(partitions=1, limits=WITHOUT_SPARK["limits"])
    schema = f"lake_{pipeline.topic.replace('-', '_')}"
    spark.sql(f"CREATE SCHEMA {schema} LOCATION '{pipeline.folder}'")
    pipeline.settings["table"] = {"path": None, "name": f"{schema}.table", "writer": "auto"}
    pipeline.produce(40, partitions=1)
    yield pipeline
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


def name_of(pipeline: Pipeline) -> str:
    return str(pipeline.settings["table"]["name"])


@pytest.mark.long
def test_the_first_run_creates_a_free_name_and_a_pipeline_by_its_path_finds_the_rows(
    named: Pipeline,
    spark: SparkSession,
) -> None:
    refused(
        named.door("run", after=["--dry-run"]),
        2,
        "The catalog has no table",
        "table.name",
        "etl run CONF",
    )
    assert not spark.catalog.tableExists(name_of(named))
    named.ran()
    assert named.is_whole() and spark.table(name_of(named)).count() == 40
    by_path = named.under("by-path")
    refused(by_path.door("run"), 5, "loaded", str(named.table))


@pytest.mark.long
def test_a_catalog_with_a_class_that_spark_does_not_find_is_a_mistake_of_the_conf(
    named: Pipeline, spark: SparkSession
) -> None:
    spark.conf.set("spark.sql.catalog.odd", "no.such.Catalog")
    for catalog in ("odd", "unknown"):
        named.settings["table"] |= {"name": f"{catalog}.lake.table"}
        refused(
            named.door("run"),
            2,
            f"Spark knows no catalog {catalog}",
            "table.name",
            f"spark.sql.catalog.{catalog}",
        )


@pytest.mark.long
def test_a_plan_with_a_table_dropped_before_its_execution_creates_none_by_its_path(
    named: Pipeline, spark: SparkSession
) -> None:
    named.ran()
    named.produce(40, partitions=1)
    broken_off_before("append", named)
    spark.sql(f"DROP TABLE {name_of(named)}")
    refused(named.door("run"), 5, "No Delta table is at the place", "etl table refresh-path CONF")
    refused(
        named.door("table", "refresh-path", after=["--yes"]),
        2,
        "The catalog has no table",
        "etl table refresh-path CONF --create-empty",
    )
    assert not named.table.exists()


@pytest.mark.long
def test_doctor_reports_how_a_run_will_use_a_free_name(named: Pipeline) -> None:
    looked = named.door("doctor")
    assert (
        looked.code == 0
        and f"The catalog has no table {name_of(named)} yet, the first run makes it" in looked.out
    )
    named.ran()
    named.settings["table"] |= {"name": f"{name_of(named)}_of_another_name"}
    refused(reported := named.door("run"), 2, "The catalog has no table", "no run creates")
    looked = named.door("doctor")
    assert (
        looked.code == 2
        and reported.document["message"] in looked.out
        and reported.document["action"] in looked.out
    )


@pytest.mark.long
def test_a_table_lost_for_good_is_created_as_the_message_advises_and_used_once_accepted(
    named: Pipeline,
    spark: SparkSession,
) -> None:
    named.ran()
    named.produce(40, partitions=1)
    broken_off_before("append", named)
    spark.sql(f"DROP TABLE {name_of(named)}")
    assert (
        "the next run stops"
        in named.door("table", "refresh-path", after=["--yes", "--create-empty"]).document[
            "message"
        ]
    )
    refused(
        named.door("run"),
        5,
        "plan 2",
        "etl table refresh-path CONF",
        "etl table accept-changes CONF 0",
    )
    accepted = named.door("table", "accept-changes", after=["0", "--reason", "it is gone", "--yes"])
    assert accepted.code == 0, accepted.err
    named.ran()
    assert spark.table(name_of(named)).count() == 40, "the first 40 went with the table"
    assert (
        "stops"
        not in named.door("table", "refresh-path", after=["--yes", "--create-empty"]).document[
            "message"
        ]
    )
    assert spark.table(name_of(named)).count() == 40


@pytest.mark.long
def test_a_table_outside_the_catalog_or_without_columns_is_reported_with_its_statement(
    named: Pipeline,
    spark: SparkSession,
) -> None:
    spark.sql(f"CREATE TABLE delta.`{named.table}` USING delta")
    result = named.door("run")
    refused(
        result,
        2,
        str(named.table),
        mending := f"CREATE TABLE {name_of(named)} USING delta LOCATION '{named.table}'",
    )
    spark.sql(mending)
    refused(named.door("run"), 2, "the Delta table has no columns", "ADD COLUMNS")
    spark.sql(f"ALTER TABLE {name_of(named)} ADD COLUMNS (topic STRING)")
    result = named.door("run")
    refused(result, 2, "The table has no column key")
    spark.sql(
        f"ALTER TABLE {name_of(named)} {result.document['action'].partition('ALTER TABLE ... ')[2]}"
    )
    named.ran()
    assert named.is_whole()


@pytest.mark.long
def test_a_table_dropped_and_recreated_elsewhere_stops_runs_until_an_operator_accepts_it(
    named: Pipeline,
    spark: SparkSession,
) -> None:
    named.ran()
    name = name_of(named)
    spark.sql(
        f"CREATE TABLE {name}_again USING delta LOCATION '{named.folder}/again' AS SELECT * "
        f"FROM {name} LIMIT 0"
    )
    spark.sql(f"DROP TABLE {name}")
    refused(named.door("run"), 5, "No Delta table is at the place", "etl table refresh-path CONF")
    spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{named.folder}/again'")
    resolved = named.door("table", "refresh-path", after=["--yes"])
    assert resolved.code == 0, resolved.err
    assert (
        f"{named.folder}/again" in resolved.document["message"]
        and "the next run stops" in resolved.document["message"]
    )
    refused(named.door("run"), 5, "plan 1")


@pytest.mark.long
def test_a_run_that_is_rejected_before_its_table_is_created_leaves_none(
    named: Pipeline, spark: SparkSession
) -> None:
    meant = dict(named.settings["table"])
    for section, changed, code, value in (
        ("table", {"losses_path": f"{named.table}/losses"}, 2, "table.losses_path"),
        ("table", {"writer": "arrow", "partition_by": ["timestamp"]}, 2, "table.writer"),
        ("table", {"store": {"region": "eu-central-1"}}, 2, "table.store.region"),
        ("table", {"name": "nowhere.table"}, 2, "no schema to make it in"),
        ("source", {"topics": ["not-there"]}, 2, "not-there"),
    ):
        named.settings |= {section: {**(meant if section == "table" else {}), **changed}}
        refused(named.door("run"), code, value)
        assert (
            not spark.catalog.tableExists(name_of(named))
            and not (named.table / "_delta_log").exists()
        ), changed
        named.settings = {"limits": named.settings["limits"], "table": dict(meant)}
    named.ran()
    assert named.is_whole()


@pytest.mark.long
def test_a_pipeline_that_has_plans_is_given_no_new_table_by_a_name_that_is_not_taken(
    named: Pipeline, spark: SparkSession
) -> None:
    by_name = dict(named.settings["table"])
    named.settings["table"] = {"path": f"{named.folder}/before", "writer": "auto"}
    named.ran()
    named.settings["table"] = by_name
    refused(
        reported := named.door("run"),
        2,
        "The catalog has no table",
        "etl table refresh-path CONF --create-empty",
    )
    assert reported.document["action"] in named.door("doctor").out
    assert not spark.catalog.tableExists(name_of(named))
    spark.sql(f"CREATE TABLE {name_of(named)} USING delta LOCATION '{named.folder}/before'")
    assert named.ran().outcomes == ["up_to_date"]


@pytest.mark.long
def test_a_pipeline_with_its_first_named_table_inherits_another_one_in_that_table(
    named: Pipeline,
) -> None:
    named.ran()
    heir = named.under("heir")
    heir.settings = dict(named.settings)
    take_over(heir, named)
    assert named.is_whole() and heir.door("verify").code == 0
    assert named.door("run").code == 5
