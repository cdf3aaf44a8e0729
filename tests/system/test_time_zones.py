"""The same load under several local time zones, on real servers: the same rows, and a word where a
zone was another one.
"""

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
from tests.system.driving import Pipeline, broken_off_before

MODULE = "tests.system.zoned_functions"
KEY = "spark.sql.session.timeZone"
MOMENT = datetime(2026, 3, 2, 1, 30, tzinfo=UTC)
"""Still March 1 in New York, and half past ten in Tokyo."""


def produce_at(pipeline: Pipeline, moment: datetime, count: int = 10) -> None:
    producer = KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap)
    for number in range(count):
        producer.send(
            pipeline.topic,
            b"%d" % number,
            partition=0,
            timestamp_ms=round(moment.timestamp() * 1000),
        )
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


def make_table(spark: SparkSession, table: Path) -> None:
    """With a column that Delta computes, and a constraint on its date."""
    from delta.tables import DeltaTable as Made

    from etl.model.columns import spark_schema

    made = (
        Made.create(spark)
        .location(str(table))
        .addColumns(spark.createDataFrame([], spark_schema()).schema)
    )
    for name, kind in (
        ("hour", "INT"),
        ("date", "DATE"),
        ("text", "STRING"),
        ("parsed", "BIGINT"),
        ("hour_in_python", "INT"),
    ):
        made = made.addColumn(name, kind)
    made.addColumn("day", "DATE", generatedAlwaysAs="CAST(timestamp AS DATE)").execute()
    spark.sql(
        f"ALTER TABLE delta.`{table}` ADD CONSTRAINT since_march CHECK (CAST(timestamp AS "
        f"DATE) >= DATE'2026-03-02')"
    )


@pytest.fixture
def pipelines(make_pipeline: Callable[..., Pipeline]) -> list[Pipeline]:
    """Two of one topic, each with a table of its own."""
    first = make_pipeline(partitions=1)
    second = first.under("another")
    second.settings = {"table": {"path": str(second.folder / "table")}}
    produce_at(first, MOMENT)
    return [first, second]


@pytest.mark.long
def test_the_same_load_from_new_york_and_from_tokyo_gives_the_same_rows(
    pipelines: list[Pipeline], spark: SparkSession
) -> None:
    found = []
    for pipeline, zone in zip(pipelines, ("America/New_York", "Asia/Tokyo"), strict=True):
        pipeline.settings["transform"] = f"{MODULE}:hours"
        make_table(spark, pipeline.table)
        run_in(zone, pipeline)
        found.append(rows_of(pipeline.table))
    assert found[0] == found[1]
    row = found[0][0]
    assert (len(found[0]), row["hour"], row["date"], row["day"]) == (
        10,
        1,
        date(2026, 3, 2),
        date(2026, 3, 2),
    )
    assert (row["text"], row["hour_in_python"]) == ("2026-03-02 01:30", 1)
    assert row["parsed"] == datetime(2026, 3, 2, 0, 30, tzinfo=UTC).timestamp()


@pytest.mark.long
def test_a_zone_of_sparks_own_file_holds_unless_the_conf_has_one(pipelines: list[Pipeline]) -> None:
    folder = pipelines[0].folder / "spark"
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(f"{KEY} Asia/Tokyo\n")
    pipelines[1].settings["spark"] = {KEY: "Europe/Berlin"}
    hours = []
    for pipeline in pipelines:
        pipeline.settings["transform"] = f"{MODULE}:hours"
        run_in("America/New_York", pipeline, SPARK_CONF_DIR=str(folder))
        hours.append({(row["hour"], row["hour_in_python"]) for row in rows_of(pipeline.table)})
    assert hours == [{(10, 10)}, {(2, 2)}]


@pytest.mark.parametrize(
    "small", [{}, {"local_below_bytes": 64 << 20}], ids=["spark", "without spark"]
)
def test_a_transform_of_arrow_batches_sees_utc_wherever_the_tasks_run(
    pipelines: list[Pipeline],
    small: dict[str, int],
) -> None:
    found = []
    for pipeline, zone in zip(pipelines, ("America/New_York", "Asia/Tokyo"), strict=True):
        pipeline.settings |= {
            "limits": small,
            "transform": {"record_batch": f"{MODULE}:local_hours"},
        }
        pipeline.settings["table"] = {
            **pipeline.settings.get("table", {}),
            "writer": "arrow",
            "partition_by": ["event_date"],
        }
        run_in(zone, pipeline)
        found.append(rows_of(pipeline.table))
    assert found[0] == found[1]
    row = found[0][0]
    assert (len(found[0]), row["hour"], row["hour_on_the_clock"]) == (10, 1, 1)
    assert (row["date"], row["event_date"]) == (date(2026, 3, 2), date(2026, 3, 2))


def test_a_stored_plan_executed_under_another_time_zone_is_reported_and_its_commit_names_that_zone(
    pipelines: list[Pipeline],
    spark: SparkSession,
) -> None:
    pipeline = pipelines[0]
    pipeline.settings |= {"transform": f"{MODULE}:hours", "spark": {KEY: "America/New_York"}}
    broken_off_before("append", pipeline)
    assert spark.conf.get(KEY) == "UTC"
    pipeline.settings["spark"] = {KEY: "Asia/Tokyo"}
    ran = pipeline.ran()
    assert ran.outcomes == ["plan_resumed", "another_time_zone", "ingested"]
    [sentence] = [
        one["message"] for one in ran.document["outcomes"] if one["outcome"] == "another_time_zone"
    ]
    assert (
        "executed under the time zone Asia/Tokyo" in sentence
        and "stored under America/New_York" in sentence
    )
    assert {row["hour"] for row in rows_of(pipeline.table)} == {10}
    [commit] = DeltaTable(str(pipeline.table)).history()
    metadata = parse_commit_metadata(commit["userMetadata"], 0)
    assert metadata is not None and metadata.document is not None
    assert parse_plan(metadata.document, path="").origin.time_zone == "Asia/Tokyo"


def test_rows_of_another_time_zone_are_reported_by_the_next_run_a_replay_its_preview_and_a_backfill(
    pipelines: list[Pipeline],
    spark: SparkSession,
) -> None:
    pipeline = pipelines[0]
    pipeline.settings |= {"transform": f"{MODULE}:hours", "source": {"starting_offsets": "latest"}}
    pipeline.ran()
    produce_at(pipeline, MOMENT)
    assert pipeline.ran().outcomes == ["ingested"]
    produce_at(pipeline, MOMENT)
    pipeline.settings["spark"] = {KEY: "Asia/Tokyo"}
    which = ("-p", pipeline.topic, "--from", "10", "--until", "20", "--reason", "seen")
    shown = pipeline.door("replay", after=(*which, "--dry-run"))
    assert any("made under UTC" in note for note in shown.document["notes"])
    assert "made under UTC" in pipeline.door("run", after=["--dry-run"]).document["message"]
    filled = pipeline.door(
        "backfills",
        "run",
        after=("before", "--from", "0", "--until", "10", *which[:2], "--yes"),
    )
    assert filled.outcomes[0] == "another_time_zone"
    assert pipeline.ran().outcomes == ["ingested"], "the backfill's plan is the newest one"
    assert pipeline.door("replay", after=(*which, "--yes")).outcomes == [
        "another_time_zone",
        "rows_replaced",
    ]
    assert [row["hour"] for row in rows_of(pipeline.table)] == [10] * 30
    assert pipeline.door("replay", after=(*which, "--yes")).outcomes == ["rows_replaced"]


def test_a_session_that_was_there_computes_in_the_zone_of_the_run_and_keeps_its_own(
    pipelines: list[Pipeline],
    spark: SparkSession,
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
    assert {row["parsed"] for row in rows_of(pipeline.table)} == {
        datetime(2026, 3, 2, 0, 30, tzinfo=UTC).timestamp()
    }


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
