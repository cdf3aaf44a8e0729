"""Truncated and recreated partitions, from the broker to the proof, with the real ledger, table and
Spark.
"""

from __future__ import annotations

import pytest

from tests.command_result import refused
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.system.driving import Pipeline


def write(broker: FakeBroker, topic: str, records: int) -> None:
    log = broker.log(topic)
    batch = Batch(
        log.log_end,
        [Rec(delta, b"value-%d" % delta) for delta in range(records)],
        leader_epoch=log.leader_epoch,
    )
    broker.append(topic, 0, encode(batch))


@pytest.mark.long
def test_a_truncated_log_is_reported_by_every_command_accepted_and_read_on(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    broker.log(
        pipeline.topic
    ).batches.clear()  # those of the fixture name another epoch than the broker's
    for _ in range(3):
        write(broker, pipeline.topic, 10)
    pipeline.ran()
    assert pipeline.accept_log(pipeline.topic).code == 2, "nothing is wrong with it"
    broker.log(pipeline.topic).batches[2:] = []
    broker.log(pipeline.topic).elect(3)
    write(broker, pipeline.topic, 25)
    for words in (("run",), ("run", "--dry-run"), ("doctor",)):
        refused(
            pipeline.door(*words),
            5,
            "truncated at offset 20, and records up to 30",
            f"accept-changes CONF -p {pipeline.topic}:0",
        )
    shown = pipeline.door("offsets", "show", json_too=False)
    assert (shown.code, "truncated at offset 20, and records up to 30" in shown.err) == (5, True), (
        shown.err
    )
    foreseen = pipeline.accept_log(f"{pipeline.topic}:0", "--dry-run")
    assert foreseen.code == 0 and foreseen.document["dry_run"] is True, foreseen.err
    refused(pipeline.run(), 5, "truncated at offset 20, and records up to 30")
    result = pipeline.accept_log(f"{pipeline.topic}:0")
    assert result.code == 0, result.err
    assert result.document["plan"]["vanished"] == foreseen.document["plan"]["vanished"]
    assert result.document["plan"]["vanished"] == [
        {"topic": pipeline.topic, "partition": 0, "from": 20, "until": 30, "incarnation": 0}
    ]
    assert pipeline.ran().outcomes == [
        "topic_changes_accepted",
        "topic_changes_accepted",
        "ingested",
    ]
    assert pipeline.committed() == {0: 45}
    proof = pipeline.door("verify")
    assert proof.code == 0, proof.err
    assert [(log["incarnation"], log["found_rows"]) for log in proof.document["logs"]] == [
        (0, 30),
        (1, 25),
    ]
    assert any("offsets 20 to 30 with incarnation 0" in note for note in proof.document["notes"])
