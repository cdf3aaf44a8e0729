"""`etl topics ready-to-load` and `etl table gaps` on real brokers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable
from kafka import KafkaProducer

from tests.command_result import refused
from tests.system.driving import Pipeline

HOUR = timedelta(hours=1)


def ask(pipeline: Pipeline, until: datetime, *more: str) -> tuple[int, bool, list[int]]:
    result = pipeline.door("topics", "ready-to-load", after=("--until", until.isoformat(), *more))
    assert "Traceback" not in result.err
    incomplete = [partition["partition"] for partition in result.document["incomplete"]]
    return result.code, result.document["ready"], incomplete


def produce(pipeline: Pipeline, when: datetime, *partitions: int) -> None:
    producer = KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap)
    for partition in partitions:
        timestamp_ms = round(when.timestamp() * 1000)
        producer.send(pipeline.topic, value=b"x", partition=partition, timestamp_ms=timestamp_ms)
    producer.close()


def test_logs_are_complete_up_to_a_time_once_each_has_a_record_of_it_or_the_grace_is_over(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(partitions=3, config={"retention.ms": "-1"})
    past = datetime.now(UTC).replace(microsecond=0) - HOUR
    assert ask(pipeline, past) == (0, True, []), "empty, and the grace of ten minutes is over"
    assert ask(pipeline, past, "--assume-ready-after", "7200s") == (8, False, [0, 1, 2])
    produce(pipeline, past - HOUR, 0, 1, 2)
    produce(pipeline, past, 1)
    assert ask(pipeline, past, "--assume-ready-after", "7200s") == (8, False, [0, 2])
    produce(pipeline, past + HOUR / 2, 0, 2)
    assert ask(pipeline, past, "--assume-ready-after", "7200s") == (0, True, [])
    assert ask(pipeline, past + 2 * HOUR) == (8, False, [0, 1, 2]), "a time that is still to come"


def test_unloaded_intervals_are_reported_until_a_run_has_loaded_them(pipeline: Pipeline) -> None:
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 3 * HOUR
    interval = ("--from", begin.isoformat(), "--until", (begin + 4 * HOUR).isoformat())
    request = (*interval, "--every", "1h")

    def missing() -> list[tuple[str, int]]:
        result = pipeline.door("table", "gaps", after=request)
        assert result.code == (8 if result.document["incomplete"] else 0)
        assert result.document["intervals"] == 4
        return [(one["run_key"][9:13], one["missing"]) for one in result.document["incomplete"]]

    for hour, count in ((0, 1), (2, 2)):
        produce(pipeline, begin + hour * HOUR + HOUR / 2, *[0, 1][:count])
    hours = [f"{begin + hour * HOUR:%H%M}" for hour in range(4)]
    assert missing() == [(hours[0], 1), (hours[2], 2)]
    pipeline.ran()
    assert missing() == []
    produce(pipeline, begin + HOUR, 3)
    assert missing() == [(hours[1], 1)]


def test_intervals_of_a_table_that_lacks_rows_of_its_plans_are_not_reported_as_loaded(
    pipeline: Pipeline,
) -> None:
    produce(pipeline, datetime.now(UTC) - HOUR, 0, 1, 2, 3)
    pipeline.ran()
    request = ["--from", "-3h", "--until", "-1s"]
    assert pipeline.door("table", "gaps", after=request).code == 0

    DeltaTable(str(pipeline.table)).delete("partition = 1")
    refused(pipeline.door("table", "gaps", after=request), 5, "DELETE of another writer")
    accepted = pipeline.door("table", "accept-changes", after=["1", "--reason", "known", "--yes"])
    assert accepted.code == 0
    result = pipeline.door("table", "gaps", after=request)
    assert result.code == 0
    assert "1 commit of other writers" in result.document["message"]

    shutil.move(pipeline.table, pipeline.folder / "elsewhere")
    refused(pipeline.door("table", "gaps", after=request), 5, "there is no table")
