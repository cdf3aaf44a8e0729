"""Two pipelines and one table on real parts: what one has loaded the other never loads again, and one can take the other's place."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from etl.commands import run
from etl.report.run_state import Outcome
from etl.settings.loader import load_settings
from tests.said import refused
from tests.system.driving import Before, Pipeline, broken_off_before, clean_log, log_copied, put_back

pytestmark = pytest.mark.without_spark


@pytest.fixture
def renamed(pipeline: Pipeline) -> Pipeline:
    """The same conf under another group: the same topic, the same table, an empty ledger. The old one has loaded 80 records."""
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    return pipeline.under("renamed")


def take_over(pipeline: Pipeline, place: str) -> Any:
    return pipeline.door("plans", "take-over", "--from", place, "--reason", "renamed")


def test_a_renamed_group_is_refused_by_every_door_until_it_takes_the_old_ones_place_and_then_nothing_is_there_twice(
    pipeline: Pipeline, renamed: Pipeline,
) -> None:
    renamed.produce(20)
    for words in ("run",), ("plan",), ("doctor",), ("verify",):
        said = renamed.door(*words)
        assert said.code == 5 and f"pipeline clicks of group {pipeline.group} on cluster" in said.err, said.err
        assert f"etl plans take-over CONF --from {pipeline.group}/clicks" in said.err
    ruling = take_over(renamed, f"{pipeline.group}/clicks")
    assert ruling.code == 0, ruling.err
    broken_off_before("record", renamed)
    assert renamed.ran().outcomes[-1] == "ingested"
    assert pipeline.is_whole()
    proof = renamed.door("verify")
    assert (proof.code, proof.document["found_rows"], proof.document["expected_rows"]) == (0, 100, 100), proof.err
    refused(pipeline.run(), 5)
    assert sum(pipeline.in_table().values()) == 100


@pytest.mark.long
def test_a_take_over_that_was_never_executed_is_taken_back_and_one_that_was_is_taken_over_with_all_it_had_taken(
    pipeline: Pipeline, renamed: Pipeline,
) -> None:
    assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
    refused(pipeline.run(), 5, "was retired", f"take-over CONF --from {renamed.group}/clicks")
    back = take_over(pipeline, f"{renamed.group}/clicks")
    assert back.code == 0 and "in service again" in back.out, back.err
    refused(renamed.run(), 5, "has loaded this topic into this table")
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
        assert (proof.code, proof.document["found_rows"]) == (0, 140 if one is last else 140), proof.err


@pytest.mark.long
def test_a_taken_over_pipeline_of_another_zookeeper_stops_by_the_tables_word_and_can_take_its_place_back(
    pipeline: Pipeline, renamed: Pipeline,
) -> None:
    with pipeline.zookeeper() as client:
        away = "/kept"
        copy_tree(client, f"/consumers/{pipeline.group}", away)
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
        assert take_over(renamed, f"{pipeline.group}/clicks").code == 0
        renamed.produce(20)
        renamed.ran()
        proof = renamed.door("verify")
        assert (proof.code, proof.document["found_rows"], proof.document["expected_rows"]) == (0, 100, 20), proof.err
        copy_tree(client, away, f"/consumers/{pipeline.group}")
    refused(pipeline.run(), 5, f"pipeline clicks of group {renamed.group}", "took over topic", "this one never again")
    assert take_over(pipeline, f"{renamed.group}/clicks").code == 0
    pipeline.produce(20)
    pipeline.ran()
    assert sum(pipeline.in_table().values()) == 120
    refused(renamed.run(), 5)


@pytest.mark.long
def test_where_an_older_copy_of_the_table_was_put_back_an_heir_goes_on_from_the_copy_and_expects_what_it_holds(pipeline: Pipeline) -> None:
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
        assert (proof.code, proof.document["found_rows"], proof.document["expected_rows"]) == (0, rows, rows), proof.err
        while renamed.ran().outcomes != ["nothing new"]:
            pass
    assert pipeline.is_whole()


def copy_tree(client: Any, source: str, target: str) -> None:
    """Without what sessions own."""
    value, stat = client.get(source)
    if stat.ephemeralOwner:
        return
    client.create(target, value, makepath=True)
    for name in client.get_children(source):
        copy_tree(client, f"{source}/{name}", f"{target}/{name}")


@pytest.mark.long
def test_a_ledger_that_is_lost_with_the_tables_log_goes_on_behind_the_rows_that_are_there(pipeline: Pipeline) -> None:
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
    refused(pipeline.door("verify"), 5, "the table holds plan 2 of pipeline clicks", "ZooKeeper knows none")
    clean_log(pipeline.table)
    refused(pipeline.run(), 5, "the table's log no longer says", "etl offsets restore CONF --from-table")
    assert take_over(pipeline, f"{pipeline.group}/clicks").code == 0
    pipeline.produce(40)
    pipeline.ran()
    assert pipeline.is_whole()
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 120), proof.err


def beside(pipeline: Pipeline) -> Pipeline:
    """Another pipeline with a topic of its own, into the same table."""
    other_topic = f"{pipeline.topic}-other"
    pipeline.cluster.create_topic(other_topic, 4)
    return pipeline.under("other", topic=other_topic, produced=0)


def test_of_two_pipelines_that_make_one_table_at_the_same_moment_both_load_their_records_in_their_first_run(pipeline: Pipeline) -> None:
    other = beside(pipeline)
    pipeline.produce(40)
    other.produce(20)
    report = run.run(load_settings(other.conf), around=Before("append", pipeline.ran))
    assert [outcome for outcome, _ in report.outcomes] == [Outcome.SUPERSEDED, Outcome.INGESTED]
    for one, rows in ((pipeline, 40), (other, 20)):
        proof = one.door("verify")
        assert (proof.code, proof.document["found_rows"]) == (0, rows), proof.err
    shutil.rmtree(other.folder)


@pytest.mark.long
def test_two_topics_in_one_table_are_two_pipelines_affair_and_each_proves_its_own(pipeline: Pipeline) -> None:
    pipeline.produce(40)
    pipeline.ran()
    other = beside(pipeline)
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
        assert any("of topics that other pipelines load into this table" in note for note in proof.document["notes"])
    shutil.rmtree(other.folder)
