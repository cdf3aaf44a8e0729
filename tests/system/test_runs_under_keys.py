"""Runs under a key and up to a time: the real command, ZooKeeper, Kafka, Spark and Delta."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from tests.command_result import refused
from tests.system.driving import Pipeline

pytestmark = pytest.mark.without_spark

HOUR_MS = 3_600_000
NOON = 1_769_860_800_000
"""2026-01-31T12:00:00Z."""
UNTIL = ("--until", "2026-01-31T13:00:00Z", "--run-key", "clicks/12")


def send(pipeline: Pipeline, *times_ms: int) -> None:
    """One record in each of two partitions at each of these times."""
    with contextlib.closing(
        KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap, acks="all")
    ) as producer:
        for when in times_ms:
            for partition in range(2):
                producer.send(
                    pipeline.topic, b"%d" % when, partition=partition, timestamp_ms=when
                ).get(20)


def times(pipeline: Pipeline) -> list[int]:
    """Return the timestamps of the table's rows, in hours after noon."""
    rows = DeltaTable(str(pipeline.table)).to_pyarrow_table(columns=["timestamp"]).to_pylist()
    return sorted((round(row["timestamp"].timestamp() * 1000) - NOON) // HOUR_MS for row in rows)


def test_an_hour_is_loaded_once_under_its_key_and_the_next_hour_under_the_next_key(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    pipeline = make_pipeline(partitions=2)
    send(pipeline, NOON, NOON + 1, NOON + HOUR_MS, NOON + 2 * HOUR_MS)
    planned = pipeline.door("run", "--dry-run", after=UNTIL)
    assert planned.document["records_at_most"] == 4
    first = pipeline.door("run", after=UNTIL)
    assert (first.code, first.outcomes, times(pipeline)) == (0, ["ingested"], [0, 0, 0, 0])
    assert (
        first.document["request"]["run_key"] == "clicks/12"
        and first.document["plan"]["until"]["said"] == "2026-01-31T13:00:00Z"
    )

    send(pipeline, NOON + 2)
    again = pipeline.door("run", after=UNTIL)
    assert (again.code, again.outcomes) == (0, ["already_loaded"])
    assert again.document["outcomes"][0]["message"] == (
        "Run key clicks/12 was loaded by plan 1 (until 2026-01-31T13:00:00Z)"
    )
    assert (
        "was loaded by plan 1" in pipeline.door("run", "--dry-run", after=UNTIL).document["message"]
    )
    other = pipeline.door(
        "run", after=("--until", "2026-01-31T14:00:00Z", "--run-key", "clicks/12")
    )
    refused(other, 2, "A key names one request: use another key")

    second = pipeline.door(
        "run", after=("--until", "2026-01-31T14:00:00Z", "--run-key", "clicks/13")
    )
    assert (second.code, times(pipeline)) == (0, [0] * 4 + [1] * 2)
    empty = pipeline.door(
        "run", after=("--until", "2026-01-31T11:00:00Z", "--run-key", "clicks/11")
    )
    assert (empty.code, empty.outcomes) == (0, ["already_beyond_until", "up_to_date"])
    assert pipeline.ran().code == 0 and pipeline.is_whole()
    assert [row["run_key"] for row in pipeline.door("plans", "list").document["plans"]] == [
        "clicks/12",
        "clicks/13",
        None,
    ]
