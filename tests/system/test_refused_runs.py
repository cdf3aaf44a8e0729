"""Runs that are rejected: wrong confs (exit 2), and data that needs a decision (exit 5)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.command_result import refused
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.system.driving import WITHOUT_SPARK, Pipeline, broken_off_before


@pytest.mark.parametrize("length", [249, 250], ids=["a name", "longer than any name"])
def test_a_topic_that_is_not_there_is_named_also_beside_one_that_is(
    pipeline: Pipeline, length: int
) -> None:
    pipeline.settings = {"source": {"topics": [pipeline.topic, "x" * length]}}
    refused(pipeline.run(), 2, "The topic is not there", "source.topics", "x" * length)


def test_a_transform_that_does_not_work_is_named_before_a_plan_binds_the_conf_to_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pipeline.folder / "colours_of_tests.py"
    module.write_text("\ndef coloured(rows):\n    return rows.select('colour')\n")
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.delitem(sys.modules, "colours_of_tests", raising=False)
    pipeline.produce(40)
    pipeline.settings = {"transform": "colours_of_tests:coloured"}
    refused(pipeline.run(), 2, "transform", "colour", "colours_of_tests.py:3")
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


_OF_BATCHES = """import pyarrow

def shaped(batch):
    size = pyarrow.array([{size}] * len(batch), pyarrow.int32())
    return batch.append_column("size", size)
"""
_OF_DATA_FRAMES = """from pyspark.sql import functions as f

def sized(value):
    return {size}

def shaped(rows):
    return rows.withColumn("size", f.udf(sized, "int")("value"))
"""


@pytest.mark.parametrize(
    ("takes", "writer", "module"),
    [
        pytest.param("record_batch", WITHOUT_SPARK, _OF_BATCHES, id="batches"),
        pytest.param("dataframe", {}, _OF_DATA_FRAMES, id="DataFrames", marks=pytest.mark.long),
    ],
)
def test_a_transform_is_found_beside_the_conf_and_a_missing_one_ends_the_run_before_spark(
    make_pipeline: Callable[..., Pipeline], takes: str, writer: dict[str, Any], module: str
) -> None:
    pipeline = make_pipeline(partitions=1, transform={takes: "beside_of_tests:shaped"}, **writer)
    conf = pipeline.folder / "confs" / "clicks.yaml"
    conf.parent.mkdir()
    conf.write_text(pipeline.conf.read_text())
    pipeline.produce(20, partitions=1)
    missing = pipeline.start("etl", "run", str(conf))
    assert "No module named 'beside_of_tests'" in missing.communicate(timeout=120)[1]
    assert missing.returncode == 2
    assert not list(pipeline.folder.glob("reports/*.spark.log"))
    # Workers import the function by its name: the module of the conf, not of their directory.
    for folder, size in ((conf.parent, 7), (pipeline.folder, 0)):
        (folder / "beside_of_tests.py").write_text(module.format(size=size))
    found = pipeline.start("etl", "run", str(conf))
    assert found.communicate(timeout=300) and found.returncode == 0
    rows = DeltaTable(str(pipeline.table)).to_pyarrow_table()
    assert rows["size"].to_pylist() == [7] * 20


def test_a_transform_that_fails_on_a_row_is_named_and_the_mended_one_finishes_the_plan(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pipeline.folder / "unlucky_of_tests.py"
    module.write_text(
        "from pyspark.sql import functions as f\n\n"
        "@f.udf('int')\ndef lucky(value):\n    if value:\n        raise ValueError('no luck')\n\n"
        "def shaped(rows):\n    return rows.withColumn('size', lucky('value'))\n"
    )
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    pipeline.produce(400)
    pipeline.settings = {"transform": "unlucky_of_tests:shaped"}
    words = ("ValueError: no luck", "unlucky_of_tests.py:6")
    refused(pipeline.run(), 2, "The transform failed on a row", *words)
    module.write_text("def shaped(rows):\n    return rows\n")
    monkeypatch.delitem(sys.modules, "unlucky_of_tests")
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert pipeline.is_whole()
    monkeypatch.delitem(sys.modules, "unlucky_of_tests")


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (b"5", ("the log starts at 10", "partition 0", "offset 5", "on_data_loss")),
        (b"99", ("above the end of the log", "partition 0", "offset 99")),
        (b"\xac\xed\x00\x05t\x00\x0212", ("no number", "partition 0")),
    ],
    ids=["below the log start", "above the log end", "serialised by Java"],
)
def test_an_impossible_committed_offset_is_named(
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


RECORDS = [Rec(delta, b"value-%d" % delta) for delta in range(10)]


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
    assert doctor.code == failed["exit_code"] == 2
    assert "__HIVE_DEFAULT_PARTITION__" in failed["found"] + failed["to_do"]
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


@pytest.mark.without_spark
def test_a_znode_of_the_ledger_that_is_not_ours_to_read_is_named(pipeline: Pipeline) -> None:
    pipeline.produce(40)
    pipeline.ran()
    root = f"/consumers/{pipeline.group}/etl/clicks"
    ledger = (("run",), ("run", "--dry-run"), ("verify",))
    shown = (("offsets", "show"), ("plans", "list"))
    with pipeline.zookeeper() as client:
        for znode, place, commands in (
            (f"{root}/plans/1", root, (*ledger, *shown)),
            (f"{root}/applied/1", root, (*ledger, *shown)),
            (root, "uid", ledger),
        ):
            payload, _ = client.get(znode)
            client.set(znode, b"\xac\xed\x00 junk")
            for words in commands:
                refused(pipeline.door(*words), 5, place)
            client.set(znode, payload)
    assert pipeline.ran().outcomes == ["up_to_date"]
    with pipeline.zookeeper() as client:
        client.set(f"{root}/applied/1", b"junk")
        assert f"delete {root}" in pipeline.run().err
        client.delete(root, recursive=True)
    pipeline.produce(40)
    assert pipeline.ran().outcomes == ["ledger_restored", "ingested"]
    assert pipeline.is_whole()


@pytest.mark.without_spark
def test_a_moved_offset_and_one_that_is_no_number_are_named_and_set_right_as_advised(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    restore = ["--reason", "known", "--yes"]
    path = f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/1"
    with pipeline.zookeeper() as client:
        client.set(path, b"13")
        refused(pipeline.run(), 5, "it is 13, ours is 20", "partition 1", "load rows twice")
        client.set(path, b"13.5")
        refused(pipeline.run(), 5, "no number: '13.5'", "etl ledger restore CONF")
        assert pipeline.door("ledger", "restore", after=restore).code == 0
        assert pipeline.run().code == 0 and pipeline.committed()[1] == 20

        pipeline.produce(80)
        broken_off_before("fetch", pipeline)
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
