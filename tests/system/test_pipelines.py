"""Several pipelines of one group: one of them has a topic, an operator retires the other, and a
rejected one leaves no files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etl.commands import run
from etl.errors import Owned
from etl.io.zookeeper.ledger import DriverLock
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger import plan_document
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Before, Pipeline

pytestmark = pytest.mark.without_spark


def test_of_two_pipelines_that_start_on_one_topic_one_wins_and_either_can_be_retired(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.produce(80)
    other = replace(pipeline, folder=tmp_path / "b", settings={"pipeline": "other"})
    other.folder.mkdir()
    with pytest.raises(Owned, match="took a topic"):
        run.run(load_settings(other.conf), around=Before("store", pipeline.ran))
    refused(
        other.run(),
        2,
        "Pipeline clicks of the same group",
        "another group",
        "pipelines retire CONF clicks",
    )
    assert not other.table.exists() and pipeline.run().outcomes == ["up_to_date"]
    with pipeline.zookeeper() as client:
        assert client.get_children(f"/consumers/{pipeline.group}/etl") == ["clicks"], (
            "the one that was refused left nothing"
        )

    reported = {
        row["pipeline"]: row for row in pipeline.door("pipelines", "list").document["pipelines"]
    }
    assert reported.keys() == {"clicks"}
    row = reported["clicks"]
    assert (
        row["group"],
        row["state"],
        row["newest_plan"],
        row["topics"],
        row["driver"],
        row["table"],
    ) == (pipeline.group, "up to date", 1, [pipeline.topic], None, str(pipeline.table)) and row[
        "age_s"
    ] >= 0
    assert other.door("pipelines", "list").document["pipelines"][0]["table"] is None, (
        "that conf names another table"
    )
    with (
        ZooKeeper(pipeline.cluster.zookeeper_connect) as session,
        DriverLock(session, pipeline.group, "clicks").driving("run-9", wait_s=0),
    ):
        there = {
            (row["group"], row["pipeline"]): row
            for row in pipeline.door("pipelines", "list", after=("--all-groups",)).document[
                "pipelines"
            ]
        }
        assert (
            there[pipeline.group, "clicks"]["state"] == "at work"
            and "run run-9" in there[pipeline.group, "clicks"]["driver"]
        )
    assert other.door("pipelines", "retire", after=("clicks", "--reason", "moved")).document[
        "topics"
    ] == [pipeline.topic]
    assert [row["state"] for row in pipeline.door("pipelines", "list").document["pipelines"]] == [
        "retired"
    ]
    refused(pipeline.run(), 5, "was retired: moved", "pipelines resume CONF")
    assert other.door("run", after=["--dry-run"]).code == 0
    assert pipeline.door("verify").code == 0, "what it loaded is still proven"
    assert pipeline.door("pipelines", "resume", after=("--reason", "back")).code == 0
    assert pipeline.run().outcomes == ["up_to_date"]


def test_a_plan_that_no_commit_can_carry_is_rejected_by_plan_and_run_and_reserves_nothing(
    make_pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(partitions=1)
    pipeline.produce(4, partitions=1)
    with monkeypatch.context() as small:
        small.setattr(plan_document, "METADATA_FULL_BYTES", 10)
        small.setattr(plan_document, "METADATA_MAX_BYTES", 10)
        for value in (pipeline.door("run", after=["--dry-run"]), pipeline.run()):
            refused(value, 2, "commit metadata", "source.topics")
    assert pipeline.door("plans", "list").document["plans"] == []
    assert pipeline.door("run", after=["--dry-run"]).code == 0


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"source": {"topics": ["no-such-topic"]}}, 2),
        ({"transform": "no_such_module:rows"}, 2),
        ({"table": {"partition_by": ["no_such_column"]}}, 2),
        (
            {
                "source": {
                    "starting_offsets": "2026-01-31T00:00:00+00:00",
                    "bootstrap_servers": "127.0.0.1:1",
                }
            },
            6,
        ),
        ({}, 4),
    ],
    ids=["topic", "transform", "table", "broker", "live consumer"],
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
