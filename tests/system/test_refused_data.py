"""What brokers, the group or the ledger hold and should not: exit 5, where it is, and what to
check; nothing is lost by it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from etl.commands import operator_decisions
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.fakes.batches import Batch, Codec, Rec, encode
from tests.fakes.broker import FETCH, FakeBroker, altered, cut_to, instead
from tests.fakes.message_sets import Msg, message_bytes
from tests.system.driving import Pipeline

# -- committed offsets
# ------------------------------------------------------------------------------------------------


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


def test_a_moved_offset_is_named_and_followed_if_policy_permits(
    pipeline: Pipeline,
) -> None:
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
                "ledger",
                "restore",
                after=["--reason", "who wrote it is known", "--yes"],
            ).code
            == 0
        )
        assert pipeline.run().code == 0 and pipeline.committed()[1] == 20
        pipeline.produce(80)
        client.set(path, b"27")
    refused(pipeline.run(), 5, "it is 27, ours is 20", "partition 1", "group.on_offset_changed")
    pipeline.settings = {"group": {"on_offset_changed": "follow", "on_owned": "skip"}}
    owner = f"/consumers/{pipeline.group}/owners/{pipeline.topic}/1"
    with pipeline.zookeeper() as client:
        client.set(path, b"41")
        client.create(owner, b"old-consumer-0", ephemeral=True, makepath=True)
        refused(
            pipeline.run(),
            5,
            "it is 41, ours is 20, and the log ends at 40",
            "partition 1",
            "set it back to 20",
        )
        client.set(path, b"27")
        client.delete(owner)
    assert pipeline.ran().outcomes == ["offset_changed", "records_lost", "ingested"]
    assert pipeline.committed() == dict.fromkeys(range(4), 40)
    assert sum(pipeline.in_table().values()) == 160 - 7


# -- record batches and responses
# -------------------------------------------------------------------------------------


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
    [
        encode(Batch(10, RECORDS, count=9)),
        pytest.param(encode(Batch(10, RECORDS, count=2**31 - 1)), marks=pytest.mark.long),
        encode(Batch(10, RECORDS, Codec.ZSTD, payload=b"zstd?")),
        pytest.param(encode(Batch(10, RECORDS, payload=b"\x80" * 80)), marks=pytest.mark.long),
    ],
    ids=["too few records", "an absurd count", "no zstd", "no varint"],
)
def test_a_record_batch_that_lies_under_a_right_crc_is_named_to_the_offset(
    spoiled: tuple[Pipeline, FakeBroker], batch: bytes
) -> None:
    pipeline, broker = spoiled
    broker.log(pipeline.topic, 0).batches[1] = batch
    refused(pipeline.run(), 5, f"topic {pipeline.topic}", "partition 0", "offset 10")
    assert not DeltaTable.is_deltatable(str(pipeline.table))


@pytest.mark.long
def test_records_that_are_too_much_for_spark_are_named_one_by_one_and_can_be_left_out(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    pipeline.settings["source"]["max_record_bytes"] = 2_000_000
    crowd, giant = Rec(5, b"x", headers=((b"", b""),) * 100_001), Rec(7, bytes(2_000_001))
    broker.log(pipeline.topic, 0).batches[1:3] = [
        encode(
            Batch(
                base,
                [poison if record.delta == poison.delta else record for record in RECORDS],
                Codec.ZSTD,
            )
        )
        for base, poison in ((10, crowd), (20, giant))
    ]
    for offset, words in ((15, "100000 headers"), (27, "2000000 bytes")):
        refused(
            pipeline.run(), 5, words, f"topic {pipeline.topic}", "partition 0", f"offset {offset}"
        )
        operator_decisions.supersede(
            load_settings(pipeline.conf),
            1,
            "too much",
            (f"{pipeline.topic}:0:{offset}-{offset + 1}",),
        )
    pipeline.ran()
    assert sorted(offset for _, offset, _ in pipeline.in_table()) == [
        offset for offset in range(30) if offset not in (15, 27)
    ]
    assert pipeline.door("verify").code == 0


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


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_of_a_format_before_0_11_with_a_wrong_crc_is_named_to_the_offset(
    spoiled: tuple[Pipeline, FakeBroker],
    magic: int,
) -> None:
    pipeline, broker = spoiled
    messages = [
        message_bytes(Msg(offset, b"v%d" % offset, timestamp=1_700_000_000_000), magic)
        for offset in range(10)
    ]
    messages[7] = messages[7][:-1] + b"x"
    broker.log(pipeline.topic, 0).batches[:1] = messages
    refused(pipeline.run(), 5, f"topic {pipeline.topic}", "partition 0", "offset 7")
    assert not DeltaTable.is_deltatable(str(pipeline.table))


@pytest.mark.long
def test_offsets_missing_inside_a_log_stop_the_run_and_are_skipped_if_policy_permits(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    broker.world.configs[pipeline.topic] = {"cleanup.policy": "delete"}
    del broker.log(pipeline.topic, 0).batches[1]
    refused(pipeline.run(), 5, f"missing {pipeline.topic}:0:10-20", "cleanup.policy")
    assert not DeltaTable.is_deltatable(str(pipeline.table))
    pipeline.settings["source"] = {**pipeline.settings["source"], "on_data_loss": "skip"}
    result = pipeline.door("run", "--fail-on-loss")
    assert (result.code, result.outcomes) == (
        3,
        ["plan_resumed", "plan_superseded", "records_lost", "ingested"],
    )
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["logs"][0]["without_row"]["losses"]) == (
        0,
        [[10, 20, "missing"]],
    )
    rows = (
        DeltaTable(f"{pipeline.table}_losses")
        .to_pyarrow_table(columns=["from_offset", "until_offset", "reason"])
        .to_pylist()
    )
    assert rows == [{"from_offset": 10, "until_offset": 20, "reason": "missing"}]


def test_an_absurd_length_in_a_response_is_named(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    broker.versions[FETCH] = (4, 11)  # the last in which a length is four bytes
    length = struct.pack(">i", sum(len(batch) for batch in broker.log(pipeline.topic, 0).batches))
    broker.script[FETCH].extend(
        [altered(lambda frame: frame.replace(length, b"\x7f\xff\xff\xff"))] * 8
    )
    refused(pipeline.run(), 5, f"topic {pipeline.topic}", "partition 0", "offset 0")
    broker.script.clear()
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]


@pytest.mark.long
def test_a_response_with_an_absurd_frame_length_is_named(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    broker.script[FETCH].extend([instead(struct.pack(">i", 0x7FFFFFFF) + b"rest")] * 30)
    refused(pipeline.run(), 5, f"127.0.0.1:{broker.port}")
    broker.script.clear()
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]


def test_a_response_that_is_cut_off_costs_a_retry_and_no_record(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    broker.script[FETCH].append(cut_to(60))
    assert pipeline.ran().document["records_read"] == 30


# -- the ledger
# --------------------------------------------------------------------------------------------------


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
