"""`etl pipelines` on real servers: list, retire, resume and inherit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.commands import run
from etl.errors import LedgersDisagree, Owned
from etl.io.zookeeper.ledger import DriverLock
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Before, Pipeline, broken_off_before

pytestmark = pytest.mark.without_spark


@pytest.mark.usefixtures("spark")
def test_of_two_pipelines_that_start_on_one_topic_one_wins_and_either_can_be_retired(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.produce(80)
    other = replace(pipeline, folder=tmp_path / "b", settings={"pipeline": "other"})
    other.folder.mkdir()
    with pytest.raises(Owned, match="took a topic"):
        run.run(load_settings(other.conf), around=Before("store", pipeline.ran))
    ways = ("another group", "pipelines retire CONF clicks")
    refused(other.run(), 2, "Pipeline clicks of the same group", *ways)
    assert not other.table.exists() and pipeline.run().outcomes == ["up_to_date"]
    with pipeline.zookeeper() as client:
        assert client.get_children(f"/consumers/{pipeline.group}/etl") == ["clicks"]

    [row] = pipeline.door("pipelines", "list").document["pipelines"]
    assert row["pipeline"] == "clicks"
    assert (row["group"], row["state"], row["newest_plan"]) == (pipeline.group, "up to date", 1)
    assert (row["topics"], row["driver"]) == ([pipeline.topic], None)
    assert row["table"] == str(pipeline.table) and row["age_s"] >= 0
    [row] = other.door("pipelines", "list").document["pipelines"]
    assert row["table"] is None, "that conf names another table"
    with (
        ZooKeeper(pipeline.cluster.zookeeper_connect) as session,
        DriverLock(session, pipeline.group, "clicks").driving("run-9", wait_s=0),
    ):
        listed = pipeline.door("pipelines", "list", after=("--all-groups",)).document["pipelines"]
        [row] = [row for row in listed if row["group"] == pipeline.group]
        assert row["state"] == "running" and "run run-9" in row["driver"]
    retired = other.door("pipelines", "retire", after=("clicks", "--reason", "moved"))
    assert retired.document["topics"] == [pipeline.topic]
    [row] = pipeline.door("pipelines", "list").document["pipelines"]
    assert row["state"] == "retired"
    refused(pipeline.run(), 5, "was retired: moved", "pipelines resume CONF")
    assert other.door("run", after=["--dry-run"]).code == 0
    assert pipeline.door("verify").code == 0, "what it loaded is still proven"
    assert pipeline.door("pipelines", "resume", after=("--reason", "back")).code == 0
    assert pipeline.run().outcomes == ["up_to_date"]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"source": {"topics": ["no-such-topic"]}}, 2),
        ({"transform": "no_such_module:rows"}, 2),
        ({}, 4),
    ],
    ids=["topic", "transform", "live consumer"],
)
def test_a_first_run_that_is_refused_leaves_no_znode(
    make_pipeline: Callable[..., Pipeline], settings: dict[str, Any], code: int
) -> None:
    pipeline = make_pipeline(partitions=1, **settings)
    pipeline.produce(4, partitions=1)
    with pipeline.zookeeper() as client:
        before = [f"/consumers/{pipeline.group}/ids/someone"] if code == 4 else []
        for path in before:
            client.create(path, b"", ephemeral=True, makepath=True)
        for _ in range(2):
            result = pipeline.run()
            assert result.code == code, result.err
        assert bool(client.exists(f"/consumers/{pipeline.group}")) == bool(before)
        assert not client.exists(f"/consumers/{pipeline.group}/etl")


@pytest.fixture
def renamed(pipeline: Pipeline) -> Pipeline:
    """The same topic and table under another group, after 80 loaded records."""
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    return pipeline.under("renamed")


def take_over(pipeline: Pipeline, place: str, *options: str) -> Any:
    return pipeline.door(
        "pipelines", "inherit", "--predecessor", place, "--reason", "renamed", "--yes", *options
    )


@pytest.mark.usefixtures("spark")
def test_a_renamed_group_is_rejected_until_it_inherits_and_then_loads_nothing_twice(
    pipeline: Pipeline, renamed: Pipeline
) -> None:
    renamed.produce(20)
    for words in ("run",), ("run", "--dry-run"), ("doctor",), ("verify",):
        result = renamed.door(*words)
        assert result.code == 5, result.err
        assert f"pipeline clicks of group {pipeline.group} on cluster" in result.err
        assert f"etl pipelines inherit CONF --predecessor {pipeline.group}/clicks" in result.err
    foreseen = take_over(renamed, f"{pipeline.group}/clicks", "--dry-run")
    assert foreseen.code == 0 and foreseen.document["dry_run"] is True, foreseen.err
    refused(renamed.run(), 5, "etl pipelines inherit CONF")
    [kept] = pipeline.door("pipelines", "list").document["pipelines"]
    assert kept["state"] == "up to date"
    ruling = take_over(renamed, f"{pipeline.group}/clicks")
    assert ruling.code == 0, ruling.err
    differing = {"plan": None, "dry_run": None}
    assert {**foreseen.document, **differing} == {**ruling.document, **differing}
    broken_off_before("record", renamed)
    assert renamed.ran().outcomes[-1] == "ingested"
    assert pipeline.is_whole()
    proof = renamed.door("verify")
    assert proof.code == 0, proof.err
    assert proof.document["found_rows"] == proof.document["expected_rows"] == 100
    refused(pipeline.run(), 5)
    assert sum(pipeline.in_table().values()) == 100


def test_a_pipeline_that_was_retired_and_then_inherited_is_not_resumed(
    pipeline: Pipeline, renamed: Pipeline
) -> None:
    successor = f"{renamed.group}/clicks"
    assert pipeline.door("pipelines", "retire", after=("--reason", "rests")).code == 0
    assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
    refused(
        pipeline.door("pipelines", "resume", after=("--reason", "back")),
        2,
        f"Pipeline clicks was inherited by {successor}",
        f"`etl pipelines inherit CONF --predecessor {successor} --reason ...`",
    )
    refused(
        pipeline.run(),
        5,
        f"was retired: taken over by {successor}: renamed (retired before: rests)",
        f"inherit CONF --predecessor {successor}",
    )
    [kept] = pipeline.door("pipelines", "list").document["pipelines"]
    assert kept["state"] == "taken over"
    renamed.produce(20)
    renamed.ran()
    assert pipeline.is_whole()


def test_a_predecessor_that_stays_in_service_does_not_read_an_inherited_topic_again(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    first = make_pipeline(partitions=1)
    second = make_pipeline(partitions=1)
    both = {"topics": [first.topic, second.topic]}
    alone = {"topics": [first.topic]}
    predecessor = replace(first, settings={"source": both})
    successor = second.under("successor")
    for pipeline in (first, second):
        pipeline.produce(4, partitions=1)
    predecessor.ran()
    assert take_over(successor, f"{first.group}/clicks").code == 0
    predecessor = replace(first, settings={"source": alone})
    second.produce(4, partitions=1)
    successor.ran()
    # The newest commit is of the predecessor, so no commit of another pipeline follows it.
    first.produce(4, partitions=1)
    predecessor.ran()
    second.produce(4, partitions=1)
    predecessor = replace(first, settings={"source": both})
    for words in ("run",), ("run", "--dry-run"), ("doctor",):
        refused(predecessor.door(*words), 5, "has inherited this topic", "source.topics")
    successor.ran()
    predecessor = replace(first, settings={"source": alone})
    predecessor.ran()
    assert first.in_topic() + second.in_topic() == first.in_table()


def lose_the_place(pipeline: Pipeline, heir: Pipeline) -> None:
    """`pipeline` lost its lock and owner nodes in its sleep; `heir` loads the same offsets."""
    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}/etl/clicks/drivers", recursive=True)
        owners = f"/consumers/{pipeline.group}/owners"
        if client.exists(owners):
            client.delete(owners, recursive=True)
    assert take_over(heir, f"{pipeline.group}/clicks").code == 0
    heir.ran()


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_verify_names_the_replay_that_removes_exactly_the_second_copies(
    pipeline: Pipeline, renamed: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.produce(40)
    with monkeypatch.context() as patched:
        patched.setattr("etl.commands.inherit_pipeline.close_stored_plan", lambda *_: None)
        with pytest.raises(LedgersDisagree):
            run.run(
                load_settings(pipeline.conf),
                around=Before("append", partial(lose_the_place, pipeline, renamed)),
            )
    doubled = pipeline.in_table()
    assert sum(doubled.values()) == 160

    assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
    renamed.ran()
    replays = 0
    while (proof := renamed.door("verify")).code:
        assert replays < 4, proof.err
        [named] = re.findall(r"`etl replay CONF ([^`]+)`", proof.err)
        assert renamed.door("replay", after=(*shlex.split(named), "--yes")).code == 0
        replays += 1
    assert replays == 2, "one for each partition that has records"
    assert pipeline.is_whole()


def test_a_stored_plan_is_closed_by_spark_in_a_table_that_delta_rs_cannot_commit_to(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    row_tracking = "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    spark.sql(f"ALTER TABLE delta.`{pipeline.table}` {row_tracking}")
    pipeline.produce(40)
    broken_off_before("append", pipeline)
    retired = pipeline.door("pipelines", "retire", after=("--reason", "moved"))
    assert (retired.code, retired.document["closed_plan"]) == (0, 2), retired.err
    assert sum(pipeline.in_table().values()) == 40
    assert pipeline.door("pipelines", "resume", after=("--reason", "back")).code == 0
    pipeline.ran()
    assert pipeline.is_whole()
