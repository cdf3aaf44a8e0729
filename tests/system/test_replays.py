"""`etl replay` on real ZooKeeper, Kafka, Spark and Delta: exactly its rows are new, in one commit,
and everybody knows them as ours.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.commands import replay as replaying
from tests.command_result import refused
from tests.system.driving import Before, BrokenOff, Pipeline

MARKS = """
def marked(rows):
    from pyspark.sql import functions
    return rows.withColumn("timestampType", functions.lit(7))
"""


@pytest.fixture
def marking(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline that has loaded 600 records by two plans. Its conf now has a transform that marks
    each row.
    """
    pipeline.produce(400)
    pipeline.ran()
    pipeline.produce(200)
    pipeline.ran()
    (tmp_path / "marking_of_tests.py").write_text(MARKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "marking_of_tests", raising=False)
    pipeline.settings["transform"] = "marking_of_tests:marked"
    return pipeline


def replay(pipeline: Pipeline, *words: str) -> Any:
    partition = () if "-p" in words else ("-p", pipeline.topic)
    return pipeline.door("replay", after=(*partition, *words, "--reason", "seen"))


def marks(path: Path) -> dict[tuple[int, int], int]:
    """The mark of each row, of which each is there once."""
    rows = (
        DeltaTable(str(path))
        .to_pyarrow_table(columns=["partition", "offset", "timestampType"])
        .to_pylist()
    )
    places = Counter((row["partition"], row["offset"]) for row in rows)
    assert max(places.values(), default=1) == 1, places.most_common(3)
    return {(row["partition"], row["offset"]): row["timestampType"] for row in rows}


def test_a_replay_replaces_exactly_its_rows_in_one_commit_and_verify_and_the_next_run_know_it(
    marking: Pipeline,
) -> None:
    pipeline = marking
    before, offsets = marks(pipeline.table), pipeline.committed()
    partitions = ("-p", f"{pipeline.topic}:1", "-p", f"{pipeline.topic}:2")
    interval = ("--from", "50", "--until", "120", *partitions)
    shown = replay(
        pipeline,
        *interval,
        "--dry-run",
    )
    assert (shown.code, shown.document["rows_that_go"], shown.document["plan"]) == (0, 140, 3)
    assert [r["rows_that_come_at_most"] for r in shown.document["replaces"]] == [70, 70]
    assert DeltaTable(str(pipeline.table)).version() == 1, "a dry run changes nothing"

    result = replay(
        pipeline,
        *interval,
        "--yes",
        "--reason",
        "the mark was missing",
    )
    assert (result.code, result.outcomes) == (0, ["rows_replaced"]), result.err
    assert (
        result.document["outcomes"][0]["message"]
        == "Plan 3: 140 rows replaced by 140 rows, table version 2"
    )
    after = marks(pipeline.table)
    assert {place for place, mark in after.items() if mark == 7} == {
        (p, n) for p in (1, 2) for n in range(50, 120)
    }
    assert after.keys() == before.keys() and pipeline.is_whole() and pipeline.committed() == offsets
    table = DeltaTable(str(pipeline.table))
    assert (table.version(), table.history(1)[0]["operation"]) == (2, "WRITE")
    assert json.loads(table.history(1)[0]["userMetadata"])["kind"] == "replay"
    assert pipeline.door("verify").document["passed"]
    assert pipeline.ran().outcomes == ["up_to_date"]

    pipeline.produce(40)
    assert pipeline.ran().outcomes == ["ingested"]
    proof = pipeline.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, 640)


@pytest.mark.parametrize("verb", [pytest.param("fetch", marks=pytest.mark.long), "record"])
def test_a_replay_that_broke_off_is_executed_or_repaired_by_the_next_run(
    marking: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:
    def break_off() -> None:
        raise BrokenOff

    whole = replaying.replay_rows
    with monkeypatch.context() as patched:
        patched.setattr(
            replaying,
            "replay_rows",
            lambda *a, **k: whole(*a, **{**k, "around": Before(verb, break_off)}),
        )
        with pytest.raises(BrokenOff):
            replay(marking, "--from", "90", "--until", "110", "--yes")
    assert set(Counter(marks(marking.table).values())) == ({0} if verb == "fetch" else {0, 7})
    assert marking.ran().outcomes == (
        ["plan_resumed", "rows_replaced"] if verb == "fetch" else ["plan_completed", "up_to_date"]
    )
    assert {place for place, mark in marks(marking.table).items() if mark == 7} == {
        (p, n) for p in range(4) for n in range(90, 110)
    }
    assert [r["rows"] for r in marking.door("plans", "show").document["ranges"]] == [20] * 4
    assert marking.is_whole() and marking.door("verify").code == 0


def test_rows_are_made_in_another_table_and_the_pipelines_own_stays_as_it_is(
    marking: Pipeline,
) -> None:
    into = str(marking.folder / "other")
    for turn in range(2):
        result = replay(marking, "--from", "0", "--until", "100", "--into", into)
        assert (result.code, result.document["rows"], result.document["rows_that_went"]) == (
            0,
            400,
            400 * turn,
        ), result.err
        assert set(marks(Path(into)).values()) == {7} and len(marks(Path(into))) == 400
    assert (
        replay(
            marking, "--from", "100", "--until", "150", "-p", f"{marking.topic}:0", "--into", into
        ).document["rows"]
        == 50
    )
    assert len(marks(Path(into))) == 450
    assert DeltaTable(str(marking.table)).version() == 1 and set(marks(marking.table).values()) == {
        0
    }
    refused(
        replay(marking, "--from", "0", "--until", "9", "--into", str(marking.table)),
        2,
        "This is the pipeline's own table",
    )


@pytest.mark.long
def test_a_table_with_deletion_vectors_and_mapped_columns_is_replayed_and_recounted(
    marking: Pipeline,
    spark: SparkSession,
) -> None:
    table = f"delta.`{marking.table}`"
    spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        f"'delta.columnMapping.mode' = 'name')"
    )
    assert replay(marking, "--from", "20", "--until", "30", "--yes").code == 0
    assert replay(marking, "--from", "25", "--until", "60", "--yes").code == 0
    rows = spark.read.format("delta").load(str(marking.table))
    assert (
        rows.count(),
        rows.where("timestampType = 7").count(),
        rows.select("partition", "offset").distinct().count(),
    ) == (600, 160, 600)
    with marking.zookeeper() as client:
        client.delete(f"/consumers/{marking.group}/etl/clicks/applied/4")
    assert marking.ran().outcomes == ["plan_completed", "up_to_date"]
    assert [r["rows"] for r in marking.door("plans", "show").document["ranges"]] == [35] * 4
    assert marking.door("verify").document["passed"]


def test_what_cannot_be_replayed_is_refused_with_what_to_do_and_nothing_is_changed(
    marking: Pipeline,
    spark: SparkSession,
) -> None:
    interval = ("--from", "0", "--until", "10")
    refused(replay(marking, *interval), 2, "there is no terminal for a confirmation", "--yes")
    refused(replay(marking, "--from", "10", "--until", "10", "--yes"), 2, "The interval is empty")
    refused(
        replay(marking, "--from", "10", "--until", "9", "--yes"), 2, "The interval runs backwards"
    )
    refused(
        replay(marking, "--from", "yesterday", "--until", "9", "--yes"),
        2,
        "neither an offset nor a time",
    )
    refused(
        replay(marking, "--from", "2026-01-01T00:00:00", "--until", "9", "--yes"),
        2,
        "has no UTC offset",
    )
    refused(
        replay(marking, "--from", "0", "--until", "151", "--yes"),
        2,
        "This partition is loaded up to offset",
    )
    refused(
        replay(marking, *interval, "-p", f"{marking.topic}:9", "--yes"), 2, "has loaded nothing of"
    )
    refused(
        replay(
            marking, "--from", "2035-01-01T00:00:00Z", "--until", "2035-01-02T00:00:00Z", "--yes"
        ),
        2,
        "This pipeline has loaded nothing in the interval",
    )
    spark.sql(
        f"ALTER TABLE delta.`{marking.table}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')"
    )
    refused(replay(marking, *interval, "--yes"), 2, "The table is append-only")
    assert [row["number"] for row in marking.door("plans", "list").document["plans"]] == [1, 2]


def test_before_the_first_run_a_replay_is_refused(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    pipeline = make_pipeline()
    pipeline.produce(40)
    refused(replay(pipeline, "--from", "0", "--until", "10", "--yes"), 2, "nothing can be replayed")
