"""What brokers, the group or the ledger hold and should not: exit 5, where it is, what to check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.command_result import refused
from tests.fakes.batches import Batch, Codec, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.system.driving import Pipeline


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (b"5", ("the log starts at 10", "partition 0", "offset 5", "on_data_loss")),
        (b"99", ("above the end of the log", "partition 0", "offset 99")),
        (b"12\n", ("no number", "12", "partition 0")),
        (b"\xac\xed\x00\x05t\x00\x0212", ("no number", "partition 0")),
    ],
    ids=["below the log start", "above the log end", "with a newline", "serialised by Java"],
)
def test_a_committed_offset_that_cannot_be_is_named(
    make_pipeline: Callable[..., Pipeline], offset: bytes, words: tuple[str, ...]
) -> None:
    pipeline = make_pipeline()
    pipeline.produce(80)
    with KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(pipeline.topic, 0): 10})
    with pipeline.zookeeper() as client:
        client.create(
            f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/0", offset, makepath=True
        )
        refused(pipeline.run(), 5, pipeline.topic, *words)
        assert client.get(f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/0")[0] == offset
    assert not pipeline.table.exists()


def test_a_moved_offset_is_named_and_restored_on_request(pipeline: Pipeline) -> None:
    pipeline.produce(80)
    pipeline.ran()
    path = f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/1"
    with pipeline.zookeeper() as client:
        client.set(path, b"13")
        refused(pipeline.run(), 5, "it is 13, ours is 20", "partition 1", "load rows twice")
        client.set(path, b"13.5")
        refused(pipeline.run(), 5, "no number: '13.5'", "etl ledger restore CONF")
        assert (
            pipeline.door(
                "ledger", "restore", after=["--reason", "who wrote it is known", "--yes"]
            ).code
            == 0
        )
        assert pipeline.run().code == 0 and pipeline.committed()[1] == 20


RECORDS = [Rec(delta, b"value-%d" % delta) for delta in range(10)]


def test_a_record_batch_with_a_wrong_crc_is_named_to_the_offset(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    log = broker.log(pipeline.topic, 0)
    whole = log.batches[1]
    log.batches[1] = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
    refused(pipeline.run(), 5, "CRC", f"topic {pipeline.topic}", "partition 0", "offset 10")
    assert not DeltaTable.is_deltatable(str(pipeline.table))
    log.batches[1] = whole
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert sum(pipeline.in_table().values()) == 30


@pytest.mark.parametrize(
    "batch",
    [encode(Batch(10, RECORDS, count=9)), encode(Batch(10, RECORDS, Codec.ZSTD, payload=b"zstd?"))],
    ids=["too few records", "no zstd"],
)
def test_a_record_batch_that_lies_under_a_right_crc_is_named_to_the_offset(
    spoiled: tuple[Pipeline, FakeBroker], batch: bytes
) -> None:
    pipeline, broker = spoiled
    broker.log(pipeline.topic, 0).batches[1] = batch
    refused(pipeline.run(), 5, f"topic {pipeline.topic}", "partition 0", "offset 10")
    assert not DeltaTable.is_deltatable(str(pipeline.table))


def test_records_without_an_event_date_are_loaded_and_counted(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    """Microseconds taken for milliseconds, the least timestamp there is, and none."""
    pipeline, broker = spoiled
    pipeline.settings["table"] = {"partition_by": ["event_date"]}
    broker.log(pipeline.topic, 0).batches[1:] = [
        encode(Batch(base, RECORDS, base_timestamp=moment))
        for base, moment in ((10, 1_700_000_000_000_000), (20, -(2**63)), (30, -1))
    ]
    result = pipeline.ran()
    assert result.outcomes == ["ingested", "rows_without_event_date"]
    assert "30 rows without event_date" in result.document["outcomes"][1]["message"]
    assert sum(pipeline.in_table().values()) == 40


def test_a_topic_that_would_have_no_name_in_the_table_is_refused_before_any_plan(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    broker.append("__HIVE_DEFAULT_PARTITION__", 0, encode(Batch(0, RECORDS)))
    pipeline.settings |= {
        "table": {"partition_by": ["topic"]},
        "source": {**pipeline.settings["source"], "topics": [".*"]},
    }
    refused(pipeline.run(), 2, "__HIVE_DEFAULT_PARTITION__", "table.partition_by")
    doctor = pipeline.door("doctor")
    [failed] = [line for line in doctor.document["checks"] if line["verdict"] == "failed"]
    assert (
        doctor.code == failed["exit_code"] == 2
        and "__HIVE_DEFAULT_PARTITION__" in failed["found"] + failed["to_do"]
    )
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


@pytest.mark.parametrize("what", ["plans", "applied", "uid"])
def test_a_znode_of_the_ledger_that_is_not_ours_to_read_is_named(
    pipeline: Pipeline, what: str
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    root = f"/consumers/{pipeline.group}/etl/clicks"
    with pipeline.zookeeper() as client:
        if what == "uid":
            node = root
        else:
            node = f"{root}/{what}/" + max(client.get_children(f"{root}/{what}"))
        client.set(node, b"\xac\xed\x00 junk")
    for words in (
        ("run",),
        ("run", "--dry-run"),
        ("offsets", "show"),
        ("plans", "list"),
        ("verify",),
    ):
        result = pipeline.door(*words)
        if what == "uid" and words[0] in ("offsets", "plans"):
            continue
        refused(result, 5, f"/consumers/{pipeline.group}/etl/clicks" if what != "uid" else "uid")
    if what != "uid":
        assert f"delete {root}" in pipeline.run().err
    with pipeline.zookeeper() as client:
        client.delete(root, recursive=True)
    pipeline.produce(40)
    assert pipeline.ran().outcomes == ["ledger_restored", "ingested"]
    assert pipeline.is_whole()


def test_an_offset_that_is_no_number_beside_a_stored_plan_is_set_right_as_advised(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    pipeline.produce(80)
    pipeline.killed_before("fetch")
    restore = ["--reason", "known", "--yes"]
    path = f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/1"
    with pipeline.zookeeper() as client:
        client.set(path, b"abc")
        refused(pipeline.run(), 5, "no number: 'abc'", "etl ledger restore CONF")
        advice = "Set its committed offset, which is no number, to 20 as plain decimal text"
        refused(pipeline.door("ledger", "restore", after=restore), 5, advice, "etl run CONF")
        client.set(path, b"20")
    refused(pipeline.run(), 5, "moved the committed offset")
    assert pipeline.door("ledger", "restore", after=restore).code == 0
    pipeline.ran()
    assert pipeline.is_whole()
    assert pipeline.committed() == dict.fromkeys(range(4), 40)
