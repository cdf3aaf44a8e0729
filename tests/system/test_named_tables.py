"""Tables that `table.name` names: runs use the stored location and start no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.sql import SparkSession

from etl.commands.operator_decisions import with_table
from etl.errors import Owned
from etl.io.delta.table_shape import id_of
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_side_documents import write_named_table
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.columns import arrow_schema
from etl.model.snapshot import NamedTable
from etl.run.open_services import open_services
from etl.run.run_context import ALONE
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before

pytestmark = pytest.mark.without_spark
NAME = "lake.table"


def store_location(pipeline: Pipeline, place: Path) -> None:
    """Store the location of an empty table, as the catalog gives it to a first run."""
    table = DeltaTable.create(str(place), arrow_schema())
    with ZooKeeper(pipeline.cluster.zookeeper_connect) as zookeeper:
        write_named_table(
            PlanLedger(zookeeper, pipeline.group, "clicks"),
            NamedTable(NAME, str(place), id_of(table), 0),
        )


@pytest.fixture
def named(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline with a table that the catalog created, and 40 records to load."""
    pipeline = make_pipeline(partitions=1)
    pipeline.settings["table"] = {"path": None, "name": NAME, "writer": "auto"}
    pipeline.produce(40, partitions=1)
    store_location(pipeline, pipeline.table)
    return pipeline


def test_commands_use_the_stored_location_and_a_pipeline_by_its_path_finds_the_rows(
    named: Pipeline,
) -> None:
    for _ in range(2):
        named.ran()
        assert named.is_whole()
        named.produce(40, partitions=1)
    refused(named.under("by-path").door("run"), 5, "loaded", str(named.table))


def test_a_command_that_waited_for_the_driver_stops_if_the_location_was_resolved_anew(
    named: Pipeline,
) -> None:
    settings = with_table(load_settings(str(named.conf)))
    store_location(named, named.folder / "elsewhere")
    with (
        open_services(settings, ALONE) as world,
        pytest.raises(Owned, match="resolved anew"),
        world.driving("late"),
    ):
        pytest.fail("it drives the pipeline by a location that is not its table's any more")
    named.ran()
    assert DeltaTable(str(named.folder / "elsewhere")).version() == 1
    assert DeltaTable(str(named.table)).version() == 0


def test_commands_that_need_no_spark_use_the_stored_location_and_start_none(
    named: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etl.run.spark_on_demand.RunSpark.session", None)
    named.settings["source"] = {"starting_offsets": "latest"}
    named.ran()
    named.produce(40, partitions=1)
    named.ran()
    backfill = ("before", "-p", named.topic, "--from", "0", "--until", "40", "--yes")
    for words, after in (
        (("run", "--dry-run"), ()),
        (("lag",), ()),
        (("offsets", "show"), ()),
        (("plans", "list"), ()),
        (("table", "compact"), ()),
        (("backfills", "run"), backfill),
        (("pipelines", "list"), ()),
        (("pipelines", "retire"), ("--reason", "seen")),
    ):
        result = named.door(*words, after=after)
        assert result.code == 0, (words, result.err)
    assert named.is_whole()


def test_losses_of_a_run_are_in_the_losses_table_next_to_the_stored_location(
    named: Pipeline,
) -> None:
    named.settings["source"] = {"on_data_loss": "skip"}
    named.ran()
    named.produce(40, partitions=1)
    with KafkaAdminClient(bootstrap_servers=named.cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(named.topic, 0): 50})
    assert named.ran().outcomes == ["records_lost", "ingested"]
    [lost] = DeltaTable(f"{named.table}_losses").to_pyarrow_table().to_pylist()
    assert (lost["from_offset"], lost["until_offset"]) == (40, 50)
    assert sum(named.in_table().values()) == 70


@pytest.fixture
def in_catalog(make_pipeline: Callable[..., Pipeline], spark: SparkSession) -> Iterator[Pipeline]:
    """A pipeline with a table of a new schema, in its own directory, without Spark."""
    pipeline = make_pipeline(partitions=1)
    schema = f"lake_{pipeline.topic.replace('-', '_')}"
    spark.sql(f"CREATE SCHEMA {schema} LOCATION '{pipeline.folder}'")
    pipeline.settings["table"] = {"path": None, "name": f"{schema}.table", "writer": "auto"}
    pipeline.produce(40, partitions=1)
    yield pipeline
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.long
def test_a_table_lost_for_good_is_created_as_the_message_advises_and_used_once_accepted(
    in_catalog: Pipeline, spark: SparkSession
) -> None:
    name = in_catalog.settings["table"]["name"]
    create_empty = ["--yes", "--create-empty"]
    in_catalog.ran()
    in_catalog.produce(40, partitions=1)
    broken_off_before("append", in_catalog)
    spark.sql(f"DROP TABLE {name}")
    created = in_catalog.door("table", "refresh-path", after=create_empty)
    assert "the next run stops" in created.document["message"]
    ways = ("etl table refresh-path CONF", "etl table accept-changes CONF 0")
    refused(in_catalog.run(), 5, "plan 2", *ways)
    acceptance = ["0", "--reason", "it is gone", "--yes"]
    accepted = in_catalog.door("table", "accept-changes", after=acceptance)
    assert accepted.code == 0, accepted.err
    in_catalog.ran()
    assert spark.table(name).count() == 40, "the first 40 went with the table"
    again = in_catalog.door("table", "refresh-path", after=create_empty)
    assert "stops" not in again.document["message"]
    assert spark.table(name).count() == 40
