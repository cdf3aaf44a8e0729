"""Tables by the name that the ledger has kept the place of: what goes by it asks no catalog, and starts no Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from etl.commands.named_table import with_table
from etl.edges.delta.shape import id_of
from etl.edges.zookeeper.ledger import PlanLedger
from etl.edges.zookeeper.named_table import write_named_table
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import Owned
from etl.model.named_table import NamedTable
from etl.model.raw_table import arrow_schema
from etl.run.context import ALONE
from etl.run.wiring import open_world
from etl.settings.loader import load_settings
from tests.said import refused
from tests.system.driving import Pipeline

pytestmark = pytest.mark.without_spark
NAME = "lake.table"


def keep(pipeline: Pipeline, place: Path) -> None:
    """The catalog's word of an empty table there, as a first run keeps it."""
    table = DeltaTable.create(str(place), arrow_schema())
    with ZooKeeper(pipeline.cluster.zookeeper_connect) as zookeeper:
        write_named_table(PlanLedger(zookeeper, pipeline.group, "clicks"), NamedTable(NAME, str(place), id_of(table), 0))


@pytest.fixture
def named(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline whose table the catalog has made, with 40 records to load."""
    pipeline = make_pipeline(partitions=1)
    pipeline.settings["table"] = {"path": None, "name": NAME, "writer": "auto"}
    pipeline.produce(40, partitions=1)
    keep(pipeline, pipeline.table)
    return pipeline


def test_runs_and_looks_go_by_the_kept_place_and_a_pipeline_by_its_path_finds_the_rows_of_the_one_by_its_name(named: Pipeline) -> None:
    for _ in range(2):
        named.ran()
        assert named.is_whole()
        named.produce(40, partitions=1)
    refused(named.under("by-path").door("run"), 5, "loaded", str(named.table))


def test_a_command_that_waited_for_the_driver_does_not_go_by_a_place_that_was_resolved_anew_meanwhile(named: Pipeline) -> None:
    settings = with_table(load_settings(str(named.conf)))
    keep(named, named.folder / "elsewhere")
    with open_world(settings, ALONE) as world, pytest.raises(Owned, match="resolved anew"), world.driving("late"):
        pytest.fail("it drives the pipeline by a place that is not its table's any more")
    named.ran()
    assert DeltaTable(str(named.folder / "elsewhere")).version() == 1 and DeltaTable(str(named.table)).version() == 0


def test_commands_that_need_no_spark_go_by_the_kept_place_and_start_none(named: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.run.spark.RunSpark.session", None)
    named.settings["source"] = {"start": "latest"}
    named.ran()
    named.produce(40, partitions=1)
    named.ran()
    backfill = ("--name", "before", "--topic", named.topic, "--from", "0", "--until", "40", "--yes")
    for words, after in (
            (("plan",), ()), (("lag",), ()), (("offsets", "show"), ()), (("plans", "list"), ()), (("compact",), ()),
            (("backfill", "begin"), backfill), (("pipelines", "list"), ()), (("pipelines", "retire"), ("--reason", "seen"))):
        said = named.door(*words, after=after)
        assert said.code == 0, (words, said.err)
    assert named.is_whole()
