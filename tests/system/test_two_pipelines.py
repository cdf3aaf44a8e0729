"""Two pipelines and one table on real parts: what one has loaded the other never loads again, and
one can take the other's place.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.commands import run
from etl.errors import LedgersDisagree, NeedsDecision, Owned
from etl.report.run_progress import Outcome
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import (
    Before,
    Pipeline,
    broken_off_before,
    clean_log,
    log_copied,
    put_back,
)

pytestmark = pytest.mark.without_spark


@pytest.fixture
def renamed(pipeline: Pipeline) -> Pipeline:
    """The same conf under another group: the same topic, the same table, an empty ledger. The old
    one has loaded 80 records.
    """
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    return pipeline.under("renamed")


def take_over(pipeline: Pipeline, place: str, *options: str) -> Any:
    return pipeline.door(
        "pipelines", "inherit", "--predecessor", place, "--reason", "renamed", "--yes", *options
    )


def test_a_renamed_group_is_rejected_until_it_inherits_and_then_loads_nothing_twice(
    pipeline: Pipeline,
    renamed: Pipeline,
) -> None:
    renamed.produce(20)
    for words in ("run",), ("run", "--dry-run"), ("doctor",), ("verify",):
        result = renamed.door(*words)
        assert (
            result.code == 5
            and f"pipeline clicks of group {pipeline.group} on cluster" in result.err
        ), result.err
        assert f"etl pipelines inherit CONF --predecessor {pipeline.group}/clicks" in result.err
    foreseen = take_over(renamed, f"{pipeline.group}/clicks", "--dry-run")
    assert foreseen.code == 0 and foreseen.document["dry_run"] is True, foreseen.err
    refused(renamed.run(), 5, "etl pipelines inherit CONF")
    [kept] = pipeline.door("pipelines", "list").document["pipelines"]
    assert kept["state"] == "up to date"
    ruling = take_over(renamed, f"{pipeline.group}/clicks")
    assert ruling.code == 0, ruling.err
    assert {**foreseen.document, "plan": None, "dry_run": None} == {
        **ruling.document,
        "plan": None,
        "dry_run": None,
    }
    broken_off_before("record", renamed)
    assert renamed.ran().outcomes[-1] == "ingested"
    assert pipeline.is_whole()
    proof = renamed.door("verify")
    assert (proof.code, proof.document["found_rows"], proof.document["expected_rows"]) == (
        0,
        100,
        100,
    ), proof.err
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


@pytest.mark.long
def test_an_unexecuted_inheritance_is_withdrawn_and_an_executed_one_is_inherited_whole(
    pipeline: Pipeline,
    renamed: Pipeline,
) -> None:
    assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
    refused(pipeline.run(), 5, "was retired", f"inherit CONF --predecessor {renamed.group}/clicks")
    back = take_over(pipeline, f"{renamed.group}/clicks")
    assert back.code == 0 and "Plan 3 inherits from" in back.out, back.err
    refused(renamed.run(), 5, "was retired", f"inherit CONF --predecessor {pipeline.group}/clicks")
    pipeline.produce(20)
    pipeline.ran()
    assert pipeline.is_whole()
    assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
    renamed.produce(20)
    renamed.ran()
    last = pipeline.under("last")
    last.produce(20)
    refused(last.run(), 5, "has loaded this topic into this table")
    assert take_over(last, f"{renamed.group}/clicks").code == 0
    last.ran()
    last.produced = 140
    assert sum(pipeline.in_table().values()) == 140
    for one in last, renamed, pipeline:
        proof = one.door("verify")
        assert (proof.code, proof.document["found_rows"]) == (0, 140 if one is last else 140), (
            proof.err
        )


@pytest.mark.long
def test_an_inherited_pipeline_of_another_zookeeper_stops_and_can_inherit_back(
    pipeline: Pipeline,
    renamed: Pipeline,
) -> None:
    with pipeline.zookeeper() as client:
        away = "/kept"
        copy_tree(client, f"/consumers/{pipeline.group}", away)
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
        assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
        renamed.produce(20)
        renamed.ran()
        proof = renamed.door("verify")
        assert (proof.code, proof.document["found_rows"], proof.document["expected_rows"]) == (
            0,
            100,
            20,
        ), proof.err
        copy_tree(client, away, f"/consumers/{pipeline.group}")
    refused(
        pipeline.run(),
        5,
        f"pipeline clicks of group {renamed.group}",
        "took over topic",
        "this one never again",
    )
    assert take_over(pipeline, f"{renamed.group}/clicks").code == 0
    pipeline.produce(20)
    pipeline.ran()
    assert sum(pipeline.in_table().values()) == 120
    refused(renamed.run(), 5)


@pytest.mark.long
def test_with_an_older_copy_of_the_table_an_heir_continues_from_the_copy_and_expects_its_rows(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    older = log_copied(pipeline.table, "older")
    pipeline.produce(40)
    pipeline.ran()
    put_back(older, pipeline.table)
    renamed = pipeline.under("renamed")
    assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
    for rows in 40, 80:
        proof = renamed.door("verify")
        assert (proof.code, proof.document["found_rows"], proof.document["expected_rows"]) == (
            0,
            rows,
            rows,
        ), proof.err
        while renamed.ran().outcomes != ["up_to_date"]:
            pass
    assert pipeline.is_whole()


def end_session_of_the_driver(pipeline: Pipeline) -> None:
    """As ZooKeeper does with a driver that sleeps past its session: its lock and its owner nodes
    are gone, and the driver does not know.
    """
    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}/etl/clicks/drivers", recursive=True)
        owners = f"/consumers/{pipeline.group}/owners"
        if client.exists(owners):
            client.delete(owners, recursive=True)


def lose_the_place(pipeline: Pipeline, heir: Pipeline) -> None:
    """What happens while the driver of `pipeline` sleeps: its session ends, and `heir` takes its
    place and loads the same offsets.
    """
    end_session_of_the_driver(pipeline)
    assert take_over(heir, f"{pipeline.group}/clicks").code == 0
    heir.ran()


@pytest.mark.parametrize("verb", ["claiming", "append"])
def test_a_driver_that_slept_while_its_pipeline_was_taken_over_appends_nothing(
    pipeline: Pipeline,
    renamed: Pipeline,
    verb: str,
) -> None:
    pipeline.produce(40)
    with pytest.raises((NeedsDecision, LedgersDisagree, Owned)):
        run.run(
            load_settings(pipeline.conf),
            around=Before(verb, partial(lose_the_place, pipeline, renamed)),
        )
    assert pipeline.is_whole()
    assert renamed.ran().outcomes == ["up_to_date"]
    assert renamed.door("verify").code == 0
    assert pipeline.door("verify").code == 0


def test_verify_names_the_replay_that_removes_exactly_the_second_copies(
    pipeline: Pipeline,
    renamed: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
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


def test_a_driver_that_slept_while_its_pipeline_was_retired_appends_nothing(
    pipeline: Pipeline,
) -> None:
    other = other_pipeline(pipeline)
    other.produce(8)
    other.ran()
    heir = replace(
        pipeline,
        folder=pipeline.folder / "heir",
        settings={"pipeline": "heir", "table": {"path": str(pipeline.table)}},
    )
    heir.folder.mkdir()
    pipeline.produce(40)

    def retired_meanwhile() -> None:
        end_session_of_the_driver(pipeline)
        assert pipeline.door("pipelines", "retire", after=("--reason", "moved")).code == 0
        heir.ran()

    with pytest.raises((NeedsDecision, LedgersDisagree, Owned)):
        run.run(load_settings(pipeline.conf), around=Before("append", retired_meanwhile))
    assert sum(pipeline.in_table().values()) == 48
    heir.produced = pipeline.produced
    assert heir.ran().outcomes == ["up_to_date"]
    assert heir.door("verify").code == 0


def test_a_stored_plan_is_closed_by_spark_in_a_table_that_delta_rs_cannot_commit_to(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    spark.sql(
        f"ALTER TABLE delta.`{pipeline.table}` SET TBLPROPERTIES ('delta.enableRowTracking' "
        f"= 'true')"
    )
    pipeline.produce(40)
    broken_off_before("append", pipeline)
    retired = pipeline.door("pipelines", "retire", after=("--reason", "moved"))
    assert (retired.code, retired.document["closed_plan"]) == (0, 2), retired.err
    assert sum(pipeline.in_table().values()) == 40
    assert pipeline.door("pipelines", "resume", after=("--reason", "back")).code == 0
    pipeline.ran()
    assert pipeline.is_whole()


def test_a_retired_pipeline_with_a_closed_stored_plan_reads_the_same_offsets_after_its_resume(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    pipeline.produce(40)
    broken_off_before("append", pipeline)
    retired = pipeline.door("pipelines", "retire", after=("--reason", "moved"))
    assert (retired.code, retired.document["closed_plan"]) == (0, 2), retired.err
    assert pipeline.door("pipelines", "resume", after=("--reason", "back")).code == 0
    assert pipeline.ran().outcomes == ["ingested"]
    assert pipeline.is_whole()
    assert pipeline.door("verify").code == 0


def test_an_inherited_pipeline_with_its_ledger_elsewhere_cannot_append_its_stored_plan(
    pipeline: Pipeline,
    renamed: Pipeline,
) -> None:
    def taken_over_from_another_zookeeper() -> None:
        with pipeline.zookeeper() as client:
            end_session_of_the_driver(pipeline)
            copy_tree(client, f"/consumers/{pipeline.group}", "/away")
            client.delete(f"/consumers/{pipeline.group}", recursive=True)
            assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
            renamed.ran()
            client.delete(f"/consumers/{pipeline.group}", recursive=True)
            copy_tree(client, "/away", f"/consumers/{pipeline.group}")

    pipeline.produce(40)
    with pytest.raises((NeedsDecision, LedgersDisagree, Owned)):
        run.run(
            load_settings(pipeline.conf), around=Before("append", taken_over_from_another_zookeeper)
        )
    assert pipeline.is_whole()
    assert renamed.door("verify").code == 0


def copy_tree(client: Any, source: str, target: str) -> None:
    """Without what sessions own."""
    value, stat = client.get(source)
    if stat.ephemeralOwner:
        return
    client.create(target, value, makepath=True)
    for name in client.get_children(source):
        copy_tree(client, f"{source}/{name}", f"{target}/{name}")


@pytest.mark.long
def test_a_ledger_lost_with_the_tables_log_continues_after_the_existing_rows(
    pipeline: Pipeline,
) -> None:
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
    refused(
        pipeline.door("verify"),
        5,
        "the table holds plan 2 of pipeline clicks",
        "ZooKeeper knows none",
    )
    clean_log(pipeline.table)
    refused(pipeline.run(), 5, "the table's log no longer has that plan", "etl ledger restore CONF")
    assert take_over(pipeline, f"{pipeline.group}/clicks").code == 0
    pipeline.produce(40)
    pipeline.ran()
    assert pipeline.is_whole()
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 120), proof.err


def other_pipeline(pipeline: Pipeline) -> Pipeline:
    """Another pipeline with a topic of its own, into the same table."""
    other_topic = f"{pipeline.topic}-other"
    pipeline.cluster.create_topic(other_topic, 4)
    return pipeline.under("other", topic=other_topic, produced=0)


def test_two_pipelines_that_create_one_table_at_once_both_load_in_their_first_run(
    pipeline: Pipeline,
) -> None:
    other = other_pipeline(pipeline)
    pipeline.produce(40)
    other.produce(20)
    report = run.run(load_settings(other.conf), around=Before("append", pipeline.ran))
    assert [outcome for outcome, _ in report.outcomes] == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.INGESTED,
    ]
    for one, rows in ((pipeline, 40), (other, 20)):
        proof = one.door("verify")
        assert (proof.code, proof.document["found_rows"]) == (0, rows), proof.err
    shutil.rmtree(other.folder)


@pytest.mark.long
def test_two_topics_in_one_table_are_two_pipelines_affair_and_each_proves_its_own(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    other = other_pipeline(pipeline)
    other.produce(40)
    assert other.door("doctor").code == 0
    for _ in range(2):
        other.ran()
        pipeline.produce(20)
        pipeline.ran()
        other.produce(20)
    for one, rows in ((pipeline, 80), (other, 60)):
        proof = one.door("verify")
        assert (proof.code, proof.document["found_rows"]) == (0, rows), proof.err
        assert any(
            "of topics that other pipelines load into this table" in note
            for note in proof.document["notes"]
        )
    shutil.rmtree(other.folder)
