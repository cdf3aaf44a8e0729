"""Offsets that an operator sets, from the broker to the proof."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from etl.commands.run import new_run_id
from etl.io.zookeeper.ledger import DriverLock
from etl.io.zookeeper.session_requests import ZooKeeper
from tests.command_result import CommandResult, refused, run_etl
from tests.system.driving import Pipeline, clean_log

pytestmark = [pytest.mark.without_spark, pytest.mark.usefixtures("spark")]


def set_to(pipeline: Pipeline, partition: str, to: str, *more: str) -> CommandResult:
    words = ("offsets", "set", str(pipeline.conf), "-p", partition, "--to", to)
    return run_etl(*words, "--reason", "seen", *more, "--json")


def test_an_offset_is_set_forwards_and_back_and_every_record_is_there_once_or_reported(
    pipeline: Pipeline,
) -> None:
    topic = pipeline.topic
    pipeline.produce(80)
    refused(set_to(pipeline, f"{topic}:0", "5", "--yes"), 2, "no plan yet")
    pipeline.ran()
    refused(
        set_to(pipeline, f"{topic}:0", "5", "--yes"),
        5,
        "Offsets before 20 were loaded into the table already",
        "position stays at 20",
    )
    pipeline.produce(80)
    refused(set_to(pipeline, f"{topic}:0", "latest"), 2, "from 20 to 40", "--yes")
    refused(set_to(pipeline, topic, "30", "--yes"), 2, "An offset is one partition's", f"{topic}:0")
    refused(set_to(pipeline, f"{topic}:9", "30", "--yes"), 2, "no partition")
    refused(set_to(pipeline, f"{topic}:0", "41", "--yes"), 2, "which has 0 to 40")
    assert pipeline.committed() == dict.fromkeys(range(4), 20)

    result = set_to(pipeline, f"{topic}:0", "-5", "--yes")
    assert result.code == 0, result.err
    move = {"topic": topic, "partition": 0, "from": 20, "to": 35, "skipped": 15, "comes": 0}
    assert result.document["moves"] == [move]
    assert set_to(pipeline, f"{topic}:1", "1970-01-02T00:00:00+00:00", "--yes").code == 5, (
        "that early everything is loaded"
    )
    assert set_to(pipeline, f"{topic}:1", "2100-01-01T00:00:00+00:00", "--yes").code == 0
    assert pipeline.ran().outcomes == ["records_lost", "records_lost", "offsets_set", "ingested"]
    losses = DeltaTable(f"{pipeline.table}_losses").to_pyarrow_table().to_pylist()
    assert sorted(
        (row["partition"], row["from_offset"], row["until_offset"], row["reason"]) for row in losses
    ) == [(0, 20, 35, "skipped"), (1, 20, 40, "skipped")]
    assert sum(pipeline.in_table().values()) == 160 - 15 - 20
    proof = pipeline.door("verify")
    assert proof.code == 0 and "15 lost" in str(proof.document), proof.err

    assert set_to(pipeline, f"{topic}:1", "40", "--yes").document["moves"] == [], (
        "it is there already"
    )
    result = set_to(pipeline, f"{topic}:1", "20", "--yes")
    assert result.code == 0, result.err
    assert pipeline.ran().outcomes == ["offsets_set", "ingested"]
    assert sum(pipeline.in_table().values()) == 160 - 15
    assert pipeline.committed() == dict.fromkeys(range(4), 40)
    proof = pipeline.door("verify")
    assert proof.code == 0 and "20 lost" not in str(proof.document), proof.err

    with (
        ZooKeeper(pipeline.cluster.zookeeper_connect) as session,
        DriverLock(session, pipeline.group, "clicks").driving(new_run_id(), wait_s=0),
    ):
        assert set_to(pipeline, f"{topic}:1", "20", "--yes").code == 5, (
            "loaded offsets are rejected before the command waits for the lock"
        )
        pipeline.produce(80)
        refused(set_to(pipeline, f"{topic}:2", "latest", "--yes"), 4)


def restore(pipeline: Pipeline, *more: str) -> CommandResult:
    return run_etl("ledger", "restore", str(pipeline.conf), "--reason", "seen", *more, "--json")


def test_after_the_loss_of_zookeeper_the_tables_commits_or_its_rows_decide_the_next_offset(
    pipeline: Pipeline,
) -> None:
    refused(restore(pipeline, "--yes"), 2, "nothing to restore")
    for _ in range(2):
        pipeline.produce(80)
        pipeline.ran()
    assert restore(pipeline, "--yes").document["restored"] == "nothing"
    with pipeline.zookeeper() as client:
        client.set(f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/1", b"7")
    refused(pipeline.run(), 5, "moved a committed offset", "etl ledger restore CONF")
    refused(
        restore(pipeline),
        2,
        f"{pipeline.topic}:1: the committed offset changes from 7 to 40",
        "--yes",
    )
    foreseen = restore(pipeline, "--dry-run")
    assert foreseen.code == 0, foreseen.err
    assert foreseen.document["dry_run"] is True and foreseen.document["restored"] == "offsets"
    assert restore(pipeline, "--yes").document["restored"] == "offsets"
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["offsets_set", "ingested"]

    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
    refused(pipeline.door("verify"), 5, "The table holds plan 4", "ZooKeeper knows none")
    result = restore(pipeline, "--yes")
    assert (result.code, result.document["restored"]) == (0, "ledger"), result.err
    assert result.document["plan"]["number"] == 5
    assert pipeline.committed() == dict.fromkeys(range(4), 60)
    pipeline.produce(80)
    pipeline.ran()
    assert pipeline.is_whole() and pipeline.door("verify").code == 0

    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
        client.create(
            f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/2", b"81", makepath=True
        )
    clean_log(pipeline.table)
    refused(pipeline.run(), 5, "the table's log no longer has that plan", "etl ledger restore CONF")
    result = restore(pipeline, "--yes")
    assert (result.code, result.document["restored"]) == (0, "plans"), result.err
    sentence = "the committed offset is 81, and the offsets between are read again"
    assert sentence in " ".join(result.document["message"])
    pipeline.produce(80)
    pipeline.ran()
    assert pipeline.is_whole() and pipeline.committed() == dict.fromkeys(range(4), 100)
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 400), proof.err

    # Of the plans only the newest is in the log: rows of the others are no error, and replayed.
    with pipeline.zookeeper() as client:
        client.delete(f"/consumers/{pipeline.group}", recursive=True)
    clean_log(pipeline.table, is_compacted=False)
    assert pipeline.ran().outcomes[0] == "ledger_restored"
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 400), proof.err
    replay = ("replay", str(pipeline.conf), "-p", f"{pipeline.topic}:0", "--from", "20", "--until")
    result = run_etl(*replay, "40", "--reason", "seen", "--dry-run", "--json")
    assert result.code == 0, result.err
