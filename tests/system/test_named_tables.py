"""Tables that a catalog names: Spark's own session catalog here, in the JVM that tests share; a
Hive metastore in tests/networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.command_result import refused
from tests.system.driving import WITHOUT_SPARK, Pipeline, broken_off_before


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
    named: Pipeline, spark: SparkSession
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
def test_a_table_lost_for_good_is_created_as_the_message_advises_and_used_once_accepted(
    named: Pipeline, spark: SparkSession
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
