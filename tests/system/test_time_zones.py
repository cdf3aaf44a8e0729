"""The same load under several local time zones."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from etl.ledger.plan_document import parse_commit_metadata, parse_plan
from tests.command_result import refused
from tests.system.driving import WITHOUT_SPARK, Pipeline, broken_off_before

MODULE = "tests.system.transform_functions"
KEY = "spark.sql.session.timeZone"
MOMENT = datetime(2026, 3, 2, 1, 30, tzinfo=UTC)
"""Still March 1 in New York, and half past ten in Tokyo."""


def produce_at(pipeline: Pipeline, moment: datetime, count: int = 10) -> None:
    producer = KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap)
    timestamp_ms = round(moment.timestamp() * 1000)
    for number in range(count):
        producer.send(pipeline.topic, b"%d" % number, partition=0, timestamp_ms=timestamp_ms)
    producer.close()


def run_in(zone: str, pipeline: Pipeline, **variables: str) -> dict[str, Any]:
    """A run in a process of that zone, which must succeed."""
    child = pipeline.start("etl", "run", str(pipeline.conf), "--json", TZ=zone, **variables)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err + out
    document: dict[str, Any] = json.loads(out)
    return document


def rows_of(table: Path) -> list[dict[str, Any]]:
    found = DeltaTable(str(table)).to_pyarrow_table()
    return sorted(found.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


@pytest.fixture
def pipelines(make_pipeline: Callable[..., Pipeline]) -> list[Pipeline]:
    """Two of one topic, each with a table of its own."""
    first = make_pipeline(partitions=1)
    second = first.under("another")
    second.settings = {"table": {"path": str(second.folder / "table")}}
    produce_at(first, MOMENT)
    return [first, second]


def test_a_transform_of_arrow_batches_sees_utc_wherever_the_tasks_run(
    pipelines: list[Pipeline],
) -> None:
    found = []
    for pipeline, zone in zip(pipelines, ("America/New_York", "Asia/Tokyo"), strict=True):
        pipeline.settings |= {
            "limits": WITHOUT_SPARK["limits"],
            "transform": {"record_batch": f"{MODULE}:local_hours"},
        }
        table = pipeline.settings.get("table", {})
        pipeline.settings["table"] = {**table, "writer": "arrow", "partition_by": ["event_date"]}
        run_in(zone, pipeline)
        found.append(rows_of(pipeline.table))
    assert found[0] == found[1]
    row = found[0][0]
    assert (len(found[0]), row["hour"], row["hour_on_the_clock"]) == (10, 1, 1)
    assert (row["date"], row["event_date"]) == (date(2026, 3, 2), date(2026, 3, 2))


def test_a_stored_plan_executed_under_another_time_zone_is_reported_and_its_commit_names_that_zone(
    pipelines: list[Pipeline], spark: SparkSession
) -> None:
    pipeline = pipelines[0]
    pipeline.settings |= {"transform": f"{MODULE}:hours", "spark": {KEY: "America/New_York"}}
    broken_off_before("append", pipeline)
    assert spark.conf.get(KEY) == "UTC"
    pipeline.settings["spark"] = {KEY: "Asia/Tokyo"}
    ran = pipeline.ran()
    assert ran.outcomes == ["plan_resumed", "another_time_zone", "ingested"]
    sentence = ran.document["outcomes"][1]["message"]
    assert "executed under the time zone Asia/Tokyo" in sentence
    assert "stored under America/New_York" in sentence
    assert {row["hour"] for row in rows_of(pipeline.table)} == {10}
    [commit] = DeltaTable(str(pipeline.table)).history()
    metadata = parse_commit_metadata(commit["userMetadata"], 0)
    assert metadata is not None and metadata.document is not None
    assert parse_plan(metadata.document, path="").origin.time_zone == "Asia/Tokyo"


def test_a_session_that_was_there_computes_in_the_zone_of_the_run_and_keeps_its_own(
    pipelines: list[Pipeline], spark: SparkSession
) -> None:
    pipeline = pipelines[0]
    pipeline.settings["transform"] = f"{MODULE}:hours"
    before = str(spark.conf.get(KEY))
    spark.conf.unset(KEY)
    try:
        pipeline.ran()
        assert KEY not in spark.conf.getAll
    finally:
        spark.conf.set(KEY, before)
    parsed = datetime(2026, 3, 2, 0, 30, tzinfo=UTC).timestamp()
    assert {row["parsed"] for row in rows_of(pipeline.table)} == {parsed}


def test_a_time_zone_unknown_to_spark_is_reported_with_its_key_and_by_doctor(
    pipelines: list[Pipeline], spark: SparkSession
) -> None:
    pipeline = pipelines[0]
    pipeline.settings |= {"transform": f"{MODULE}:hours", "spark": {KEY: "Middle/Earth"}}
    refused(pipeline.run(), 2, "Middle/Earth", KEY)
    lines = {line["name"]: line for line in pipeline.door("doctor").document["checks"]}
    assert lines["time zone"]["verdict"] == "advice"
    del pipeline.settings["spark"]
    lines = {line["name"]: line for line in pipeline.door("doctor").document["checks"]}
    assert (lines["time zone"]["verdict"], lines["time zone"]["found"][:3]) == ("ok", "UTC")
