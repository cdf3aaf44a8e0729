"""Pipelines with an Arrow transform on real servers: the same rows from each writer, and a clear
word for what it does wrong.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.command_result import refused
from tests.system.arrow_functions import KILLING, UNLUCKY
from tests.system.driving import Pipeline, broken_off_before

MODULE = "tests.system.arrow_functions"
SMALL = {"local_below_bytes": 64 << 20}


@pytest.fixture
def decoding(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline with rows made by `decoded`; it starts no Spark unless its writer is changed."""
    return make_pipeline(
        table={"writer": "auto"}, limits=SMALL, transform={"record_batch": f"{MODULE}:decoded"}
    )


def by(writer: str, pipeline: Pipeline, **limits: Any) -> None:
    pipeline.settings = {
        **pipeline.settings,
        "table": {**pipeline.settings["table"], "writer": writer},
        "limits": limits,
    }


def rows_in(path: Path) -> list[dict[str, Any]]:
    return sorted(
        DeltaTable(str(path)).to_pyarrow_table().to_pylist(),
        key=lambda row: (row["partition"], row["offset"]),
    )


def test_either_writer_returns_the_same_rows_and_may_finish_a_plan_of_the_other(
    decoding: Pipeline,
    spark: SparkSession,
) -> None:
    decoding.produce(100)
    assert decoding.ran().document["plan"]["writer"] == "arrow: table.writer is auto, without Spark"
    rows = rows_in(decoding.table)
    assert all(
        row["half"] * 2 == row["price"] == row["inner"]["offset"] == row["offset"] for row in rows
    )
    assert all(
        row["kind"] == ("odd" if row["offset"] % 2 else "even") and row["size"] == len(row["value"])
        for row in rows
    )
    assert all(row["wall"].date() == row["day"] == row["timestamp"].date() for row in rows)
    other = decoding.under("by-spark")
    table = str(other.folder / "table")
    other.settings = {
        "table": {"path": table, "writer": "arrow"},
        "transform": {"record_batch": decoding.settings["transform"]["record_batch"]},
    }
    broken_off_before("append", other)
    by("spark", other)
    assert other.ran().outcomes[0] == "plan_resumed"
    assert rows_in(other.folder / "table") == rows
    assert (
        DeltaTable(table).schema().to_json() == DeltaTable(str(decoding.table)).schema().to_json()
    )
    assert decoding.is_whole()


@pytest.mark.long
def test_a_pipeline_may_change_its_writer_from_plan_to_plan(
    decoding: Pipeline, spark: SparkSession
) -> None:
    for writer, limits in (("spark", {}), ("arrow", SMALL), ("auto", {}), ("spark", {})):
        by(writer, decoding, **limits)
        decoding.produce(100)
        assert (
            decoding.ran()
            .document["plan"]["writer"]
            .startswith("spark" if writer == "spark" else "arrow")
        )
    assert decoding.is_whole()
    assert decoding.door("verify").code == 0


@pytest.mark.long
def test_rows_that_the_function_drops_are_reported_by_verify_and_the_records_are_those_read(
    decoding: Pipeline,
) -> None:
    decoding.settings["transform"]["record_batch"] = f"{MODULE}:even"
    decoding.produce(100)
    assert decoding.ran().document["records_read"] == 100
    assert {row["offset"] % 2 for row in rows_in(decoding.table)} == {0}
    proof = decoding.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (9, len(rows_in(decoding.table)))
    assert f"the transform {MODULE}:even may have done it" in proof.err


def test_an_error_of_the_function_is_reported_before_a_plan_is_stored_by_plan_doctor_and_run_alike(
    decoding: Pipeline,
) -> None:
    decoding.produce(40)
    for function, words in (
        ("narrow", "there is no column offset"),
        ("missing", "cannot be imported"),
        ("MODULE", "cannot be imported"),
    ):
        decoding.settings["transform"]["record_batch"] = f"{MODULE}:{function}"
        refused(decoding.run(), 2, words, "transform.record_batch")
        refused(decoding.door("run", after=["--dry-run"]), 2, words, "transform.record_batch")
    assert decoding.door("plans", "list").document["plans"] == []
    assert decoding.door("doctor").code == 2


@pytest.mark.parametrize(
    "writer",
    [pytest.param("arrow", marks=pytest.mark.long), pytest.param("spark", marks=pytest.mark.long)],
)
def test_a_function_that_fails_on_a_row_is_named_and_the_mended_one_finishes_the_plan(
    decoding: Pipeline,
    spark: SparkSession,
    writer: str,
) -> None:
    why = Path(UNLUCKY)
    why.touch()
    by(writer, decoding, **(SMALL if writer == "arrow" else {}))
    decoding.settings["transform"]["record_batch"] = f"{MODULE}:unlucky"
    decoding.produce(40)
    try:
        refused(
            decoding.run(),
            2,
            "The Arrow transform failed for a batch with rows: ValueError: no luck",
            "arrow_functions.py:",
            "plans supersede",
        )
    finally:
        why.unlink()
    assert not DeltaTable.is_deltatable(str(decoding.table))
    assert "plan_resumed" in decoding.ran().outcomes
    assert decoding.is_whole()


def test_a_table_of_other_columns_is_refused_before_a_plan_is_stored(decoding: Pipeline) -> None:
    shaped = decoding.settings.pop("transform")
    decoding.produce(40)
    decoding.ran()
    decoding.produce(40)
    decoding.settings["transform"] = shaped
    refused(decoding.run(), 2, "The table has no column size")
    refused(decoding.door("run", after=["--dry-run"]), 2, "The table has no column size")
    assert [plan["number"] for plan in decoding.door("plans", "list").document["plans"]] == [1]


@pytest.mark.long
def test_a_crash_leaves_dropped_rows_unproven_under_sparks_writer_and_none_under_arrow(
    decoding: Pipeline,
    spark: SparkSession,
) -> None:
    """After a transform rows cannot be counted again; results in the commit need no count."""
    for writer, code in (("arrow", 0), ("spark", 0)):
        by(writer, decoding)
        decoding.produce(100)
        broken_off_before("record", decoding)
        decoding.ran()
        assert decoding.door("verify").code == code
    shown = decoding.door("plans", "show", after=("1",)).document["ranges"]
    assert all(r["fetched_bytes"] > 0 for r in shown)


@pytest.mark.long
@pytest.mark.parametrize("whom", ["worker", "driver"])
def test_a_kill_in_the_middle_of_the_functions_work_loses_and_doubles_nothing(
    decoding: Pipeline, whom: str
) -> None:
    decoding.settings |= {
        "source": {"fetch_max_bytes": 4096},
        "transform": {"record_batch": f"{MODULE}:killing_once"},
    }
    decoding.produce(2_000)
    Path(KILLING).write_text(whom)
    run = decoding.start("etl", "run", str(decoding.conf))
    result = run.communicate(timeout=120)
    assert run.returncode == (0 if whom == "worker" else -signal.SIGKILL), result
    assert not Path(KILLING).exists(), "the transform killed no process"
    assert (decoding.ran().outcomes == ["up_to_date"]) is (whom == "worker")
    assert decoding.is_whole()
    assert decoding.door("verify").code == 0


@pytest.mark.long
def test_a_replay_makes_its_rows_by_the_function_too(
    decoding: Pipeline, spark: SparkSession
) -> None:
    decoding.produce(100)
    decoding.ran()
    before = rows_in(decoding.table)
    result = decoding.door(
        "replay",
        after=(
            "-p",
            decoding.topic,
            "--reason",
            "seen",
            "--from",
            "5",
            "--until",
            "15",
            "--yes",
            "--reason",
            "again",
        ),
    )
    assert result.code == 0, result.err
    assert rows_in(decoding.table) == before
    into = decoding.folder / "replayed"
    result = decoding.door(
        "replay",
        after=(
            *("-p", decoding.topic, "--from", "5", "--until", "15"),
            *("--into", str(into), "--reason", "seen"),
        ),
    )
    assert result.code == 0, result.err
    assert rows_in(into) == [row for row in before if 5 <= row["offset"] < 15]
    assert decoding.door("verify").code == 0


@pytest.mark.long
def test_a_backfill_makes_its_rows_by_the_function_too(decoding: Pipeline) -> None:
    decoding.produce(400)
    decoding.settings["source"] = {"starting_offsets": "latest"}
    decoding.ran()
    result = decoding.door(
        "backfills", "run", after=("old", "--from", "0", "--until", "100", "--yes")
    )
    assert result.code == 0, result.err
    assert all(row["half"] * 2 == row["offset"] for row in rows_in(decoding.table))
    assert decoding.is_whole()
