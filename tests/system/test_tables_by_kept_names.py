"""Named tables with their path in the ledger: runs use no catalog, and start no Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from etl.commands.operator_decisions import with_table
from etl.errors import Owned
from etl.io.delta.table_shape import id_of
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_side_documents import write_named_table
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.columns import arrow_schema
from etl.model.snapshot import NamedTable
from etl.run.open_services import open_services
from etl.run.service_interfaces import ALONE
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Pipeline

pytestmark = pytest.mark.without_spark
NAME = "lake.table"


def keep(pipeline: Pipeline, place: Path) -> None:
    """The catalog's word of an empty table there, as a first run keeps it."""
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
    keep(pipeline, pipeline.table)
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
    keep(named, named.folder / "elsewhere")
    with (
        open_services(settings, ALONE) as world,
        pytest.raises(Owned, match="resolved anew"),
        world.driving("late"),
    ):
        pytest.fail("it drives the pipeline by a place that is not its table's any more")
    named.ran()
    assert (
        DeltaTable(str(named.folder / "elsewhere")).version() == 1
        and DeltaTable(str(named.table)).version() == 0
    )


def test_commands_that_need_no_spark_go_by_the_kept_place_and_start_none(
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


@pytest.mark.parametrize("given", [None, "let_go"])
def test_losses_of_a_run_are_in_the_losses_table_next_to_the_stored_location_or_at_the_confs_path(
    named: Pipeline, given: str | None
) -> None:
    losses = named.folder / (given or f"{named.table.name}_losses")
    named.settings["source"] = {"on_data_loss": "skip"}
    named.settings["table"] |= {"losses_path": str(losses)} if given else {}
    named.ran()
    named.produce(40, partitions=1)
    with KafkaAdminClient(bootstrap_servers=named.cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(named.topic, 0): 50})
    assert named.ran().outcomes == ["records_lost", "ingested"]
    [lost] = (
        DeltaTable(str(losses))
        .to_pyarrow_table(columns=["from_offset", "until_offset"])
        .to_pylist()
    )
    assert tuple(lost.values()) == (40, 50) and sum(named.in_table().values()) == 70
