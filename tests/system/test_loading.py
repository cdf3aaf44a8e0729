"""What a run loads on real ZooKeeper, Kafka, Spark and Delta, and its report."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import date

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer
from pyspark.sql import SparkSession

import etl
from etl.commands.run import run
from etl.report.run_progress import Doing, Outcome, Verb
from etl.report.run_report import Report
from etl.run.run_context import RunContext
from etl.settings.load import load_settings
from etl.testkit.server_process import wait_until
from tests.command_result import CommandResult, refused
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FETCH, FakeBroker, as_it_is
from tests.system.driving import Pipeline


def is_reported(pipeline: Pipeline, result: CommandResult) -> None:
    """The report of the first run: its plan, times, lag and outcome."""
    [written] = (pipeline.folder / "reports").glob("*.json")
    report = json.loads(written.read_text())
    snapshot = report.pop("snapshot")  # it is in the file alone
    assert {"command": "run", **report} == result.document
    assert snapshot["first"]["partitions"]
    assert (report["state"], report["table_version"], report["exit_code"]) == ("done", 0, 0)
    assert report["conf"] == str(pipeline.conf)
    assert report["versions"]["offset_range_etl"] == etl.__version__
    assert abs(sum(report["seconds"].values()) - report["total_seconds"]) < 0.01
    ranges = report["plan"]["ranges"]
    assert report["bytes"] == sum(r["fetched_bytes"] for r in ranges)
    assert all(r["fetched_bytes"] > 0 for r in ranges)
    assert {(r["partition"], r["from"]) for r in ranges} == {(p, 0) for p in range(4)}
    assert {(r["until"], r["rows"]) for r in ranges} == {(1_000, 1_000)}
    assert [(one["before"], one["after"]) for one in report["lag"]] == [(1_000, 0)] * 4


def test_a_dry_run_stores_nothing_a_run_loads_all_a_second_nothing_and_a_third_what_came_since(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(4_000)
    shown = pipeline.door("run", after=["--dry-run"]).document
    assert (shown["records_at_most"], shown["lag"], shown["tasks"]) == (4_000, 4_000, 2)
    assert not shown["bytes_are_assumed"] and 0 < shown["estimated_bytes"] < 4_000 * 200
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}")
    assert not pipeline.table.exists()

    first = pipeline.ran()
    assert first.outcomes == ["ingested"]
    assert pipeline.is_whole()
    assert pipeline.committed() == dict.fromkeys(range(4), 1_000)
    is_reported(pipeline, first)

    again = pipeline.ran()
    assert (again.outcomes, DeltaTable(str(pipeline.table)).version()) == (["up_to_date"], 0)

    pipeline.produce(2_000)
    third = pipeline.ran()
    assert (third.outcomes, third.document["records_read"]) == (["ingested"], 2_000)
    assert pipeline.is_whole()
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["passed"], proof.document["found_rows"]) == (0, True, 6_000)


def test_what_tasks_have_read_is_known_while_they_read(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    pipeline, broker = spoiled
    pipeline.settings["source"]["fetch_max_bytes"] = 1024
    batches = [
        encode(Batch(30 + 10 * n, [Rec(delta, bytes(100)) for delta in range(10)]))
        for n in range(4)
    ]
    broker.append(pipeline.topic, 0, *batches)
    seen, states = threading.Event(), set[Doing]()

    def held(connection: socket.socket, response: bytes) -> None:
        assert seen.wait(60), states
        connection.sendall(response)

    @contextlib.contextmanager
    def watching(doing: Callable[[], Doing]) -> Iterator[None]:
        def known() -> bool:
            now = doing()
            states.add(now)
            return bool(
                now.verb is Verb.FETCH
                and now.reached
                and now.reached.records
                and not now.reached.ranges
            )

        def watch() -> None:
            if wait_until(known, 60):
                seen.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        yield
        watcher.join()

    broker.script[FETCH].extend([as_it_is, as_it_is, held])
    report = run(load_settings(pipeline.conf), RunContext(progress=watching))
    assert report.records == 70
    assert all(report.seconds[verb] > 0 for verb in (Verb.FIRST_JOB, Verb.FETCH, Verb.APPEND))


@pytest.mark.without_spark
def test_transactions_are_loaded_when_committed_skipped_when_aborted_and_waited_for_when_open(
    pipeline: Pipeline,
) -> None:
    with KafkaProducer(
        bootstrap_servers=pipeline.cluster.bootstrap, transactional_id=f"for-{pipeline.topic}"
    ) as producer:
        producer.init_transactions()
        for value, finish in (
            (b"kept", producer.commit_transaction),
            (b"dropped", producer.abort_transaction),
        ):
            producer.begin_transaction()
            producer.send(pipeline.topic, value, partition=0).get(30)
            finish()
        producer.begin_transaction()
        producer.send(pipeline.topic, b"open", partition=0).get(30)
        first = pipeline.ran()
        [r] = first.document["plan"]["ranges"]
        assert (r["from"], r["until"], r["rows"]) == (0, 4, 1)
        assert (r["control_records"], r["aborted_records"]) == (2, 1)
        assert pipeline.is_whole()
        assert pipeline.ran().outcomes == ["open_transaction", "up_to_date"]
        held_back = (
            f"{pipeline.topic} 0: 1 offset below the high watermark waits for the open "
            f"transaction for-{pipeline.topic} of"
        )
        [reported] = pipeline.door("run", after=["--dry-run"]).document["open_transactions"]
        assert reported.startswith(held_back) and ", open since 20" in reported
        shown = pipeline.door("offsets", "show").document["partitions"][0]
        names = ("log_end", "high_watermark", "held_back", "lag")
        assert [shown[name] for name in names] == [4, 5, 1, 0]
        assert reported in pipeline.door("doctor", json_too=False).out
        producer.commit_transaction()
    assert pipeline.ran().document["records_read"] == 1
    assert pipeline.is_whole()


def test_rows_can_be_partitioned_by_their_date_and_pass_a_transform(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(
        transform="shaping_of_tests:shaped", table={"partition_by": ["event_date"]}
    )
    (pipeline.folder / "shaping_of_tests.py").write_text(
        "from pyspark.sql import functions as f\n\n"
        "def shaped(rows):\n    return rows.withColumns({'size': f.length('value'), "
        "'source': f.lit('web')}).drop('headers')\n"
    )
    monkeypatch.syspath_prepend(str(pipeline.folder))
    pipeline.settings["table"]["path"] = str(pipeline.table)
    for _ in range(2):  # `source` is never null in the rows' schema, but may be in the table's
        pipeline.produce(200)
        pipeline.ran()
    table = DeltaTable(str(pipeline.table))
    assert table.metadata().partition_columns == ["event_date"]
    assert {"size", "event_date"} < set(table.to_pyarrow_table().column_names)
    dates = table.to_pyarrow_table(columns=["event_date"]).column("event_date").to_pylist()
    assert set(dates) == {date(2023, 11, 14)}
    assert pipeline.is_whole()


@pytest.mark.long
def test_rows_that_violate_a_constraint_of_the_table_are_reported_as_that(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    spark.sql(f"ALTER TABLE delta.`{pipeline.table}` ADD CONSTRAINT few CHECK (offset < 30)")
    pipeline.produce(80)
    skip = f"--skip {pipeline.topic}:0:3"
    refused(pipeline.run(), 2, "constraint few", "rejects a row", "offset 3", skip)
    spark.sql(f"ALTER TABLE delta.`{pipeline.table}` DROP CONSTRAINT few")
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert pipeline.is_whole()


def test_a_run_in_another_thread_uses_the_session_that_is_there_and_leaves_it_alone(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.produce(400)
    reported: list[Report] = []
    cell = threading.Thread(target=lambda: reported.append(run(load_settings(pipeline.conf))))
    cell.start()
    cell.join(timeout=120)
    assert [outcome for outcome, _ in reported[0].outcomes] == [Outcome.INGESTED]
    assert spark.range(3).count() == 3, "the session was stopped"


HOUR_MS = 3_600_000
NOON = 1_769_860_800_000
"""2026-01-31T12:00:00Z."""


def send(pipeline: Pipeline, *times_ms: int) -> None:
    """One record in each of two partitions at each of these times."""
    with contextlib.closing(
        KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap, acks="all")
    ) as producer:
        for when in times_ms:
            for partition in range(2):
                place = {"partition": partition, "timestamp_ms": when}
                producer.send(pipeline.topic, b"%d" % when, **place).get(20)


def times(pipeline: Pipeline) -> list[int]:
    """Return the timestamps of the table's rows, in hours after noon."""
    rows = DeltaTable(str(pipeline.table)).to_pyarrow_table(columns=["timestamp"]).to_pylist()
    return sorted((round(row["timestamp"].timestamp() * 1000) - NOON) // HOUR_MS for row in rows)


@pytest.mark.without_spark
def test_an_hour_is_loaded_once_under_its_key_and_the_next_hour_under_the_next_key(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(partitions=2)
    send(pipeline, NOON, NOON + 1, NOON + HOUR_MS, NOON + 2 * HOUR_MS)

    def run_until(hour: int, key: str, *words: str) -> CommandResult:
        request = ("--until", f"2026-01-31T{hour}:00:00Z", "--run-key", key)
        return pipeline.door("run", *words, after=request)

    assert run_until(13, "clicks/12", "--dry-run").document["records_at_most"] == 4
    first = run_until(13, "clicks/12")
    assert (first.code, first.outcomes, times(pipeline)) == (0, ["ingested"], [0, 0, 0, 0])
    assert first.document["request"]["run_key"] == "clicks/12"
    assert first.document["plan"]["until"]["said"] == "2026-01-31T13:00:00Z"

    send(pipeline, NOON + 2)
    again = run_until(13, "clicks/12")
    assert (again.code, again.outcomes) == (0, ["already_loaded"])
    message = "Run key clicks/12 was loaded by plan 1 (until 2026-01-31T13:00:00Z)"
    assert again.document["outcomes"][0]["message"] == message
    preview = run_until(13, "clicks/12", "--dry-run")
    assert "was loaded by plan 1" in preview.document["message"]
    refused(run_until(14, "clicks/12"), 2, "A key names one request: use another key")

    second = run_until(14, "clicks/13")
    assert (second.code, times(pipeline)) == (0, [0] * 4 + [1] * 2)
    empty = run_until(11, "clicks/11")
    assert (empty.code, empty.outcomes) == (0, ["already_beyond_until", "up_to_date"])
    assert pipeline.ran().code == 0 and pipeline.is_whole()
    keys = [row["run_key"] for row in pipeline.door("plans", "list").document["plans"]]
    assert keys == ["clicks/12", "clicks/13", None]
