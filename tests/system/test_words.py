"""An operator's acknowledgement is about the very table that was seen: real ZooKeeper, brokers,
Spark and Delta.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka.admin import KafkaAdminClient
from kazoo.client import KazooClient

from etl.testkit.server_process import wait_until
from tests.command_result import CommandResult, refused
from tests.system.driving import Pipeline, broken_off_before

pytestmark = pytest.mark.without_spark


def acknowledge(pipeline: Pipeline, version: str) -> CommandResult:
    return pipeline.door("table", "accept-changes", after=(version, "--reason", "seen", "--yes"))


def put_back(pipeline: Pipeline, copy: Path) -> None:
    shutil.rmtree(pipeline.table)
    shutil.copytree(copy, pipeline.table)


def test_a_word_on_a_version_does_not_cover_another_commit_of_that_number(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(20)
    pipeline.ran()
    copy = pipeline.folder / "copy"
    shutil.copytree(pipeline.table, copy)
    DeltaTable(str(pipeline.table)).delete("offset = 0")
    foreseen = pipeline.door(
        "table", "accept-changes", after=("1", "--reason", "seen", "--dry-run")
    )
    assert foreseen.code == 0 and foreseen.document["dry_run"] is True, foreseen.err
    refused(pipeline.run(), 5, "DELETE of another writer removed rows", "accept-changes CONF 1")
    assert acknowledge(pipeline, "1").code == 0
    assert pipeline.ran().outcomes == ["up_to_date"]
    put_back(pipeline, copy)
    assert pipeline.ran().outcomes == ["up_to_date"]
    DeltaTable(str(pipeline.table)).delete("offset = 1")
    refused(pipeline.run(), 5, "DELETE of another writer removed rows", "accept-changes CONF 1")
    DeltaTable(str(pipeline.table)).restore(0)
    refused(
        pipeline.run(),
        5,
        "a RESTORE came after it, at version 2",
        "counts them",
        "accept-changes CONF 2",
    )
    assert acknowledge(pipeline, "2").code == pipeline.door("verify").code == 0


def test_an_earlier_table_that_is_put_back_lacks_a_plan_and_its_accepted_delete_is_not_reported(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(20)
    pipeline.ran()
    DeltaTable(str(pipeline.table)).delete("offset = 0")
    assert acknowledge(pipeline, "1").code == 0
    pipeline.produce(20)
    pipeline.ran()
    pipeline.produce(20)
    broken_off_before("fetch", pipeline)
    earlier = pipeline.folder / "earlier"
    pipeline.table.rename(earlier)
    assert acknowledge(pipeline, "none").code == 0
    assert pipeline.ran().outcomes == ["plan_superseded", "ingested"]
    shutil.rmtree(pipeline.table)
    earlier.rename(pipeline.table)
    table_id = DeltaTable(str(pipeline.table)).metadata().id
    texts = (
        f"The table at this path has id {table_id}, plan 3 went to ",
        "the rows of plan 3 (20), and what it lacks of the plans before, are then given up",
        "etl backfills run CONF NAME -p TOPIC:PARTITION --from OFFSET --until OFFSET "
        "--only-unloaded",
    )
    for words in (("run",), ("run", "--dry-run"), ("verify",)):
        refused(pipeline.door(*words), 5, *texts)
    compared = pipeline.door("offsets", "diff")
    assert compared.code == 5
    for text in texts:
        assert text in compared.err, compared.err
    before = DeltaTable(str(pipeline.table)).to_pyarrow_table().num_rows
    accepted = acknowledge(pipeline, "2")
    assert accepted.code == 0 and "the rows of plan 3 (20)" in accepted.out, accepted.err
    assert pipeline.ran().outcomes == ["up_to_date"]
    again = pipeline.door(
        "backfills",
        "run",
        after=("again", "--from", "0", "--until", "60", "--only-unloaded", "--yes"),
    )
    assert again.code == 0, again.err
    assert DeltaTable(str(pipeline.table)).to_pyarrow_table().num_rows == before + 20


def test_a_word_on_there_being_no_table_covers_that_place_alone_and_the_plan_left_can_be_superseded(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(20)
    pipeline.ran()
    pipeline.produce(20)
    broken_off_before("fetch", pipeline)
    pipeline.settings = {"table": {"path": str(pipeline.folder / "b")}}
    refused(
        pipeline.run(),
        5,
        "There is no table at this path, and ZooKeeper knows plan",
        "accept-changes CONF none",
    )
    assert acknowledge(pipeline, "none").code == 0
    pipeline.settings = {"table": {"path": str(pipeline.folder / "c")}}
    refused(
        pipeline.run(),
        5,
        "There is no table at this path, and ZooKeeper knows plan",
        "accept-changes CONF none",
    )
    pipeline.settings = {"table": {"path": f"file://{pipeline.folder}/c/../b/"}}
    instead = pipeline.door("plans", "supersede", after=("2", "--reason", "another table", "--yes"))
    assert instead.code == 0, instead.err
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert DeltaTable(str(pipeline.folder / "b")).to_pyarrow_table().num_rows == 20


@pytest.mark.long
def test_a_table_of_another_era_is_gone_on_with_by_taking_its_place_and_not_by_a_word(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(20)
    pipeline.ran()
    old = pipeline.folder / "old"
    pipeline.table.rename(old)
    with pipeline.zookeeper() as client:
        _forget(client, pipeline)
    pipeline.ran()
    pipeline.produce(20)
    pipeline.ran()
    put_back(pipeline, old)
    place = f"inherit CONF --predecessor {pipeline.group}/clicks"
    refused(pipeline.run(), 5, "another pipeline of the same name", place)
    refused(acknowledge(pipeline, "0"), 5, "another pipeline of the same name", place)
    taken = pipeline.door(
        "pipelines",
        "inherit",
        after=("--predecessor", f"{pipeline.group}/clicks", "--reason", "put back", "--yes"),
    )
    assert taken.code == 0 and "is not loaded into this table" in taken.document["message"], (
        taken.err
    )
    pipeline.produce(20)
    assert pipeline.ran().outcomes == ["plan_resumed", "inherited", "ingested"]
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 40), proof.err


def _forget(client: KazooClient, pipeline: Pipeline) -> None:
    client.delete(f"/consumers/{pipeline.group}", recursive=True)


def test_a_stored_plan_of_a_topic_that_was_deleted_is_superseded_by_name(
    pipeline: Pipeline, topic: Callable[..., str]
) -> None:
    gone = topic(1)
    pipeline.settings = {"source": {"topics": [pipeline.topic, gone]}}
    pipeline.produce(20)
    replace(pipeline, topic=gone).produce(20, partitions=1)
    broken_off_before("fetch", pipeline)
    with contextlib.closing(
        KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap)
    ) as admin:
        admin.delete_topics([gone])
    assert wait_until(lambda: pipeline.door("run", after=["--dry-run"]).code == 5, 60)
    refused(
        pipeline.run(),
        5,
        "the brokers do not know its topic any more",
        gone,
        "etl plans supersede CONF 1",
    )
    assert (
        pipeline.door("plans", "supersede", after=("1", "--reason", "deleted", "--yes")).code == 0
    )
    refused(pipeline.run(), 2, gone, "take it out")
    pipeline.settings = {}
    pipeline.ran()
    assert pipeline.is_whole()
