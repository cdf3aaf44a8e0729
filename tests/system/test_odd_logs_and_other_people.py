"""What a run meets on a real broker and a real ledger beyond the plain path: odd logs, and people
who change things between two runs.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.sql import SparkSession

from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.settings.choices import split_address
from etl.testkit.server_process import wait_until
from tests.command_result import refused
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.system.driving import Pipeline, broken_off_before
from tests.traffic.modern import read

pytestmark = pytest.mark.without_spark


def stopped(pipeline: Pipeline, *words: str) -> None:
    """The run and the dry run exit with 5 and print all of `words`, and commit nothing."""
    before = pipeline.committed()
    for value in (pipeline.run(), pipeline.door("run", after=["--dry-run"])):
        assert value.code == 5, value.err + value.out
        assert "Traceback" not in value.err and "\n     " in value.err
        for word in words:
            assert word in value.err, value.err
    assert pipeline.committed() == before


# -- odd logs
# --------------------------------------------------------------------------------------------------


def test_one_record_among_empty_partitions_is_loaded_and_every_offset_is_kept(
    pipeline: Pipeline,
) -> None:
    with SimpleConsumer(*split_address(pipeline.cluster.bootstrap)) as broker:
        broker.produce(pipeline.topic, 2, [(b"only", b"one")])
    assert pipeline.ran().document["records_read"] == 1
    assert pipeline.is_whole()
    with pipeline.zookeeper() as client:
        root = f"/consumers/{pipeline.group}/offsets/{pipeline.topic}"
        assert {key: client.get(f"{root}/{key}")[0] for key in client.get_children(root)} == {
            "0": b"0",
            "1": b"0",
            "2": b"1",
            "3": b"0",
        }
    assert pipeline.ran().outcomes == ["up_to_date"]
    assert pipeline.door("verify").code == 0


def test_a_topic_without_any_leader_at_the_first_run_is_no_new_topic_when_it_has_one(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    pipeline.settings["source"] |= {
        "new_topics_starting_offsets": "latest",
        "on_no_leader": "skip",
        "wait_for_leader_s": 0,
    }
    for partition in (0, 1):
        broker.append(pipeline.topic, partition, encode(Batch(0, [Rec(0, b"there")])))
        broker.log(pipeline.topic, partition).leader_id = -1
    assert pipeline.ran().outcomes == ["no_leader", "offsets_stored"]
    broker.log(pipeline.topic, 1).leader_id = broker.broker_id
    [r] = pipeline.door("run", after=["--dry-run"]).document["ranges"]
    assert (r["partition"], r["from"], r["until"]) == (1, 0, 1)


def test_a_partition_without_a_leader_at_the_first_run_starts_at_the_latest_record_of_that_day(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    pipeline.settings["source"] |= {
        "starting_offsets": "latest",
        "on_no_leader": "skip",
        "wait_for_leader_s": 0,
    }
    away, there = broker.log(pipeline.topic, 0), encode(Batch(0, [Rec(0, b"there")]))
    broker.append(pipeline.topic, 1, there)
    away.leader_id = -1
    assert pipeline.ran().outcomes == ["no_leader", "offsets_stored"]
    [kept] = pipeline.door("plans", "show").document["pending_starts"]
    assert kept["partition"] == 0
    away.leader_id = broker.broker_id
    now_ms = round(time.time() * 1000)
    broker.append(
        pipeline.topic,
        0,
        encode(Batch(30, [Rec(0, b"new")], base_timestamp=now_ms, max_timestamp=now_ms)),
    )
    [r] = pipeline.door("run", after=["--dry-run"]).document["ranges"]
    assert (r["partition"], r["from"], r["until"]) == (0, 30, 31)


@pytest.mark.long
def test_a_range_of_aborted_records_and_markers_alone_gives_no_row_and_is_done(
    pipeline: Pipeline,
) -> None:
    with KafkaProducer(
        bootstrap_servers=pipeline.cluster.bootstrap, transactional_id=f"aborts-{pipeline.topic}"
    ) as producer:
        producer.init_transactions()
        for _ in range(2):
            producer.begin_transaction()
            producer.send(pipeline.topic, b"dropped", partition=0).get(30)
            producer.abort_transaction()
    [r] = pipeline.ran().document["plan"]["ranges"]
    assert (r["from"], r["until"], r["rows"], r["control_records"], r["aborted_records"]) == (
        0,
        4,
        0,
        2,
        2,
    )
    assert pipeline.in_table() == Counter()
    assert pipeline.committed()[0] == 4
    assert pipeline.ran().outcomes == ["up_to_date"]
    assert pipeline.door("verify").code == 0


def test_read_uncommitted_takes_aborted_and_open_records_too(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    pipeline = make_pipeline(source={"isolation_level": "read_uncommitted"})
    with KafkaProducer(
        bootstrap_servers=pipeline.cluster.bootstrap, transactional_id=f"open-{pipeline.topic}"
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(pipeline.topic, b"dropped", partition=0).get(30)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(pipeline.topic, b"open", partition=0).get(30)
        pipeline.ran()
        assert pipeline.in_table() == read(pipeline.cluster, pipeline.topic, "read_uncommitted")
        assert sorted(offset for _, offset, _ in pipeline.in_table()) == [0, 2]
        pipeline.settings["source"] = {"isolation_level": "read_committed"}
        refused(pipeline.run(), 6, "above the last stable offset 2", pipeline.topic)
        pipeline.settings["source"] = {"isolation_level": "read_uncommitted"}
        producer.abort_transaction()
    assert pipeline.door("verify").code == 0


def test_a_start_by_time_begins_at_the_first_record_of_that_time_in_each_partition(
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
) -> None:
    pipeline = make_pipeline(
        partitions=3, source={"starting_offsets": "2023-11-14T22:13:25+00:00"}
    )  # 1,700,000,005,000
    with SimpleConsumer(*split_address(pipeline.cluster.bootstrap)) as broker:
        for partition, seconds in ((0, (0, 4, 5, 9)), (1, (1, 2))):
            for second in seconds:
                at = 1_700_000_000_000 + 1000 * second
                broker.produce(
                    pipeline.topic,
                    partition,
                    encode(Batch(0, [Rec(0, b"v")], base_timestamp=at, max_timestamp=at)),
                )
    assert pipeline.ran().document["records_read"] == 2
    assert sorted((partition, offset) for partition, offset, _ in pipeline.in_table()) == [
        (0, 2),
        (0, 3),
    ]
    assert pipeline.committed() == {0: 4, 1: 2, 2: 0}


def test_a_range_that_expires_soon_is_reported_by_plan_and_run(
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
) -> None:
    hour_ms = 3_600_000
    pipeline = make_pipeline(
        partitions=2, config={"retention.ms": str(12 * hour_ms)}, source={"expiry_warning_s": 7_200}
    )
    now = int(time.time() * 1000)
    with SimpleConsumer(*split_address(pipeline.cluster.bootstrap)) as broker:
        for partition, hours_ago in ((0, 1), (1, 11), (1, 1)):
            at = now - hours_ago * hour_ms
            broker.produce(
                pipeline.topic,
                partition,
                encode(Batch(0, [Rec(0, b"v")], base_timestamp=at, max_timestamp=at)),
            )
    expected = (
        f"{pipeline.topic} 1: records up to offset 1 may expire within 2.0 h (retention.ms "
        f"43,200,000); "
        "its range (from 0) is read first"
    )
    assert pipeline.door("run", after=["--dry-run"]).document["expires_soon"] == [expected]
    result = pipeline.ran()
    assert result.document["outcomes"][0] == {"outcome": "expires_soon", "message": expected}
    assert result.document["records_read"] == 3


def test_a_cap_of_bytes_loads_everything_in_the_end_and_every_partition_moves(
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
) -> None:
    pipeline = make_pipeline(limits={"max_bytes_per_plan": 30_000})
    pipeline.produce(1_600)
    moved = []
    while (reported := pipeline.ran().document)["outcomes"][0]["outcome"] == "ingested":
        moved.append({r["partition"] for r in reported["plan"]["ranges"]})
        assert len(moved) < 20, "the cap lets too little through"
    assert len(moved) > 1, "the cap did not hold anything back"
    assert moved[0] == {0, 1, 2, 3}
    assert pipeline.is_whole()


def test_a_record_batch_larger_than_a_fetch_is_read(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    pipeline = make_pipeline(partitions=1, source={"fetch_max_bytes": 1024})
    with SimpleConsumer(*split_address(pipeline.cluster.bootstrap)) as broker:
        for value in (b"small", b"x" * 50_000, b"small"):
            broker.produce(pipeline.topic, 0, [(None, value)])
    pipeline.ran()
    assert pipeline.is_whole()


# -- crashes upon crashes
# -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_crashes_in_a_row_at_different_verbs_lose_and_double_nothing(pipeline: Pipeline) -> None:
    for verb in ("fetch", "append", "commit", "store", "append", "record"):
        pipeline.produce(80)
        broken_off_before(verb, pipeline)
    pipeline.ran()
    assert pipeline.is_whole()
    assert pipeline.committed() == dict.fromkeys(range(4), 120)
    assert pipeline.door("verify").document["found_rows"] == 480


def test_files_of_a_first_write_that_never_finished_are_no_rows_and_no_obstacle(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    broken_off_before("append", pipeline)
    (pipeline.table / "_delta_log").mkdir(parents=True)
    (pipeline.table / "part-00000-of-a-dead-run.snappy.parquet").write_bytes(b"PAR1")
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert pipeline.is_whole()


def test_a_stored_plan_with_expired_records_stops_until_an_operator_decides(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    broken_off_before("append", pipeline)
    with KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(pipeline.topic, 1): 7})
    result = pipeline.run()
    assert result.code == 5, result.err
    assert "Traceback" not in result.err
    for word in (pipeline.topic, "partition 1", "7"):
        assert word in result.err, result.err
    assert not DeltaTable.is_deltatable(str(pipeline.table))


# -- what others do between two runs
# ------------------------------------------------------------------------------------


@pytest.fixture
def loaded(pipeline: Pipeline) -> Pipeline:
    """A pipeline with two plans of 80 records in its table, and 80 more waiting."""
    for _ in range(2):
        pipeline.produce(80)
        pipeline.ran()
    pipeline.produce(80)
    return pipeline


@pytest.mark.parametrize("lost", [pytest.param("consumers", marks=pytest.mark.long), "newest plan"])
def test_a_ledger_that_was_lost_is_rebuilt_from_the_table_and_the_proof_holds(
    loaded: Pipeline, lost: str
) -> None:
    root = f"/consumers/{loaded.group}/etl/clicks"
    with loaded.zookeeper() as client:
        if lost == "consumers":
            client.delete(f"/consumers/{loaded.group}", recursive=True)
        else:
            for branch in ("plans", "applied"):
                client.delete(
                    f"{root}/{branch}/{max(client.get_children(f'{root}/{branch}'))}",
                    recursive=True,
                )
    again = ["plan_completed"] if lost == "consumers" else []
    assert loaded.ran().outcomes == ["ledger_restored", *again, "ingested"]
    assert loaded.is_whole()
    assert loaded.committed() == dict.fromkeys(range(4), 60)
    assert loaded.door("verify").code == 0
    assert [plan["rows"] for plan in loaded.door("plans", "list").document["plans"]] == [80, 80, 80]


def test_a_table_that_was_dropped_and_recreated_stops_the_run(loaded: Pipeline) -> None:
    shape = DeltaTable(str(loaded.table)).schema()
    shutil.rmtree(loaded.table)
    DeltaTable.create(str(loaded.table), shape)
    stopped(loaded, "table", "table.path")


def test_rows_that_others_removed_stop_the_run(loaded: Pipeline) -> None:
    """What else others may do to a table is in the crash matrix."""
    DeltaTable(str(loaded.table)).delete("partition = 1 and offset = 3")
    stopped(loaded, "Since our last commit", "DELETE")
    assert loaded.door("verify").code == 9


@pytest.mark.long
def test_compacting_the_table_and_vacuuming_it_are_nobodys_business(loaded: Pipeline) -> None:
    table = DeltaTable(str(loaded.table))
    assert table.optimize.compact()["numFilesRemoved"] > 0
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert loaded.ran().outcomes == ["ingested"]
    assert loaded.is_whole()
    assert loaded.door("verify").code == 0


def test_a_deleted_topic_is_named_and_a_recreated_one_is_not_read_on(
    loaded: Pipeline,
) -> None:
    delete_topic(loaded)
    result = loaded.run()
    assert (result.code, "Traceback" in result.err) == (2, False), result.err
    assert f"topic {loaded.topic}" in result.err
    loaded.cluster.create_topic(loaded.topic, 4)
    stopped(loaded, "deleted and recreated", loaded.topic)


def test_a_stored_plan_is_not_executed_on_a_recreated_topic(pipeline: Pipeline) -> None:
    pipeline.produce(80)
    broken_off_before("append", pipeline)
    delete_topic(pipeline)
    pipeline.cluster.create_topic(pipeline.topic, 4)
    pipeline.produce(160)
    stopped(pipeline, "deleted and recreated", pipeline.topic)
    assert not DeltaTable.is_deltatable(str(pipeline.table))


def delete_topic(pipeline: Pipeline) -> None:
    with (
        KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap) as admin,
        pipeline.zookeeper() as client,
    ):
        admin.delete_topics([pipeline.topic])
        assert wait_until(lambda: not client.exists(f"/brokers/topics/{pipeline.topic}"), 30)
        assert wait_until(lambda: pipeline.topic not in admin.list_topics(), 30)


def test_a_stored_plan_is_not_executed_under_another_transform_or_partitioning(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    broken_off_before("append", pipeline)
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["event_date"]}}
    stopped(pipeline, "table.partition_by")
    pipeline.settings = {}
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert pipeline.is_whole()


@pytest.mark.long
def test_a_second_pipeline_of_the_group_on_the_same_topic_is_refused(
    loaded: Pipeline, tmp_path: Path
) -> None:
    loaded.settings = {"pipeline": "other", "table": {"path": str(tmp_path / "other")}}
    result = loaded.run()
    assert result.code == 2, result.out + result.err
    assert "Pipeline clicks of the same group" in result.err and loaded.topic in result.err
