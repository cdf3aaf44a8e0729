"""`etl verify` on real parts: why offsets have no row, and which commit removed a row that existed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.sql import SparkSession

from etl.commands import operator_decisions
from etl.decide import loaded_intervals
from etl.model.columns import arrow_schema
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before


def log_of(document: Any, partition: int) -> Any:
    return next(
        topic_partition
        for topic_partition in document["logs"]
        if topic_partition["partition"] == partition
    )


@pytest.mark.without_spark
def test_deleted_rows_are_distinguished_from_a_missing_one_until_an_operator_accepts_the_loss(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(400)
    pipeline.ran()
    DeltaTable(str(pipeline.table)).delete("partition = 3 and offset < 11")
    proof = pipeline.door("verify")
    found = log_of(proof.document, 3)
    assert (proof.code, found["never_came"], found["removed_by_others"]) == (9, 0, 11)
    assert found["removed_by"] == [
        {"table_version": 1, "operation": "DELETE", "reason": "removed rows"}
    ]
    assert "11 removed later by another writer's DELETE at version 1" in proof.err
    assert "table accept-changes CONF 1" in proof.err

    operator_decisions.accept_table(load_settings(pipeline.conf), "1", "the law")
    pipeline.produce(40)
    pipeline.ran()
    shown = pipeline.door("verify", json_too=False)
    assert shown.code == 0, shown.err
    assert (
        f"{pipeline.topic} 3: 11 removed later by another writer's DELETE at version 1, as "
        f"policy or an operator allows" in shown.out
    )
    assert "429 records, each once, 11 were removed since, as allowed" in shown.out


def test_a_transform_that_drops_rows_is_named_and_no_other_writer(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pipeline.folder / "choosy_of_tests.py").write_text(
        "def chosen(rows):\n    return rows.where('offset % 10 <> 3')\n"
    )
    monkeypatch.syspath_prepend(str(pipeline.folder))
    pipeline.settings = {"transform": "choosy_of_tests:chosen"}
    pipeline.produce(400)
    pipeline.ran()
    proof = pipeline.door("verify")
    assert (proof.code, log_of(proof.document, 0)["never_came"]) == (9, 10)
    assert "10 missing (first: 3, 13, 23, 33, 43): 10 never committed to the table" in proof.err
    assert "the transform choosy_of_tests:chosen may be the reason" in proof.err
    assert "Check the transform: " in proof.err


@pytest.mark.without_spark
def test_a_lost_table_and_an_old_copy_of_it_are_refused_by_every_door_in_the_words_of_a_run(
    pipeline: Pipeline,
) -> None:
    copy = pipeline.folder / "copy"
    for turn in range(2):
        pipeline.produce(40)
        pipeline.ran()
        if not turn:
            shutil.copytree(pipeline.table, copy)
    whole = pipeline.folder / "whole"
    pipeline.table.rename(whole)
    for there in ("now there is no table", "now the table does not hold it"):
        for words in (("run",), ("verify",), ("run", "--dry-run")):
            refused(
                pipeline.door(*words),
                5,
                there,
                f"path {pipeline.table}",
                "loading continues after them",
            )
        offsets = pipeline.door("offsets", "show")
        assert (
            offsets.code,
            {(one["loaded_until"], one["lag"]) for one in offsets.document["partitions"]},
        ) == (5, {(None, None)})
        assert there in offsets.err
        if not pipeline.table.exists():
            copy.rename(pipeline.table)
    shutil.rmtree(pipeline.table)
    whole.rename(pipeline.table)
    assert pipeline.door("verify").code == 0


@pytest.mark.without_spark
def test_an_update_of_another_writer_is_reported_as_by_a_run_until_it_is_accepted(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    DeltaTable(str(pipeline.table)).update(
        {"value": "key"}, predicate="partition = 0 and offset < 3"
    )
    proof, ran = pipeline.door("verify"), pipeline.run()
    assert (proof.code, ran.code, proof.document["missing"]) == (9, 5, 0)
    assert proof.document["by_others"] == [
        {"table_version": 1, "operation": "UPDATE", "reason": "removed rows"}
    ]
    assert ran.document["message"] in proof.err and "etl table accept-changes CONF 1" in proof.err
    operator_decisions.accept_table(load_settings(pipeline.conf), "1", "it was us")
    assert pipeline.door("verify").code == 0


@pytest.mark.without_spark
def test_a_foreign_row_without_a_record_is_reported_and_so_is_a_lost_file(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(400)
    pipeline.ran()
    path = str(pipeline.table)
    write_deltalake(
        path, pyarrow.Table.from_pylist([{"partition": 2}], schema=arrow_schema()), mode="append"
    )
    proof = pipeline.door("verify")
    assert (
        proof.code,
        proof.document["rows_of_no_log"],
        [log["passed"] for log in proof.document["logs"]],
    ) == (9, 1, [True] * 4)
    assert (
        "1 rows name no record of a partition (first: topic NULL, partition 2, offset NULL)"
        in proof.err
    )

    lost = next(Path(path).glob("**/*.parquet"))
    lost.unlink()
    refused(
        pipeline.door("verify"),
        5,
        "A file that the table's log names does not exist",
        lost.name,
        "Restore it from a copy",
        "repair()",
    )
    DeltaTable(path).repair()
    version = str(DeltaTable(path).version())
    refused(pipeline.run(), 5, "removed rows", f"accept-changes CONF {version}")
    assert (
        pipeline.door(
            "table", "accept-changes", after=(version, "--reason", "no copy exists", "--yes")
        ).code
        == pipeline.run().code
        == 0
    )


@pytest.mark.without_spark
def test_a_table_with_another_plan_than_zookeeper_is_named(pipeline: Pipeline) -> None:
    pipeline.produce(40)
    pipeline.ran()
    [log_file] = Path(pipeline.table, "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log_file.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            stamp = json.loads(action["commitInfo"]["userMetadata"])
            action["commitInfo"]["userMetadata"] = json.dumps({**stamp, "plan_id": "another"})
    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}/etl/clicks/applied/1")
    log_file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for crc in log_file.parent.glob(".*.crc"):
        crc.unlink()
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["error"]) == (5, "LedgersDisagree")
    assert "carries a plan that was not made for it" in proof.err


def reasons(document: Any, partition: int = 0) -> dict[str, int]:
    """The reasons that apply, without the sentence and the stretches."""
    found = log_of(document, partition)["without_row"]
    return {
        name: count for name, count in found.items() if name not in ("message", "losses") and count
    }


@pytest.mark.long
def test_permitted_losses_are_reported_from_plans_and_later_from_the_losses_table(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(source={"on_data_loss": "skip"})
    pipeline.produce(400)
    with KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap) as admin:
        pipeline.ran()
        pipeline.produce(400)
        admin.delete_records({TopicPartition(pipeline.topic, 1): 150})
    broken_off_before("record", pipeline)
    before = pipeline.door("verify")
    assert (before.code, reasons(before.document, 1)) == (0, {"lost": 50})
    assert any(
        "the lost offsets of plan 2 are not in the losses table" in note
        for note in before.document["notes"]
    )
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    pipeline.ran()
    pipeline.produce(4)
    pipeline.ran()
    shown = pipeline.door("verify", json_too=False)
    assert (shown.code, "the losses table" in shown.out) == (0, False)
    assert (
        f"Offsets without a row in {pipeline.topic} 1: 50 lost (100 to 150, expired)" in shown.out
    )


@pytest.mark.long
def test_rows_lost_in_an_overwrite_are_attributed_to_it_and_without_the_files_the_cause_is_unknown(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(400)
    pipeline.ran()
    path = str(pipeline.table)
    rows = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, rows.slice(1), mode="overwrite")
    proof = pipeline.door("verify")
    [wrong] = [log for log in proof.document["logs"] if not log["passed"]]
    assert (
        proof.code,
        wrong["removed_by_others"],
        [by["operation"] for by in wrong["removed_by"]],
    ) == (9, 1, ["WRITE"])

    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    proof = pipeline.door("verify")
    [wrong] = [log for log in proof.document["logs"] if not log["passed"]]
    assert (proof.code, wrong["nobody_knows"], wrong["never_came"], wrong["removed_by_others"]) == (
        9,
        1,
        0,
        0,
    )
    assert (
        "1 of unknown cause, since the files of their commit are deleted; another writer "
        "committed WRITE at version 1 since" in proof.err
    )


@pytest.mark.long
def test_rows_copied_into_another_table_are_expected_after_their_plans_were_pruned(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    rows = DeltaTable(str(pipeline.table)).to_pyarrow_table()
    shutil.rmtree(pipeline.table)
    write_deltalake(str(pipeline.table), rows)
    operator_decisions.accept_table(load_settings(pipeline.conf), "0", "a copy")
    assert pipeline.door("verify").code == 0
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    pipeline.produce(40)
    pipeline.ran()
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 80), proof.err
    assert any(
        "40 rows are of plans that were given up" in note for note in proof.document["notes"]
    )
    write_deltalake(str(pipeline.table), rows.slice(0, 1), mode="append")
    assert pipeline.door("verify").code == 9


@pytest.mark.without_spark
def test_a_foreign_table_created_after_plan_1_takes_the_plan_once_it_is_accepted(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    broken_off_before("fetch", pipeline)
    DeltaTable.create(str(pipeline.table), arrow_schema())
    write_deltalake(
        str(pipeline.table),
        pyarrow.Table.from_pylist([{"topic": "a try"}], schema=arrow_schema()),
        mode="append",
    )
    DeltaTable(str(pipeline.table)).delete()
    refused(pipeline.run(), 5, "Plan 1 was made when there was no table")
    ruling = operator_decisions.accept_table(load_settings(pipeline.conf), "2", "made by hand")
    assert (
        "0 rows of that plan are in it, so the next run replaces it" in ruling.summary
        and "given up" not in ruling.summary
    )
    assert pipeline.ran().outcomes == ["plan_superseded", "ingested"]
    assert pipeline.is_whole() and pipeline.door("verify").code == 0
