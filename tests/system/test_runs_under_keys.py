"""`etl run --until TIME --run-key KEY` on real servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

from tests.command_result import CommandResult, refused
from tests.system.driving import Pipeline

pytestmark = pytest.mark.without_spark

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
