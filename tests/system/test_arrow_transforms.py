"""Pipelines with an Arrow transform: the same rows from each writer, and each error of a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.command_result import refused
from tests.system.arrow_functions import UNLUCKY
from tests.system.driving import Pipeline, broken_off_before

MODULE = "tests.system.arrow_functions"
SMALL = {"local_below_bytes": 64 << 20}


@pytest.fixture
def decoding(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline with rows made by `decoded`; it starts no Spark unless its writer is changed."""
    return make_pipeline(
        table={"writer": "auto"}, limits=SMALL, transform={"record_batch": f"{MODULE}:decoded"}
    )


def rows_in(path: Path) -> list[dict[str, Any]]:
    return sorted(
        DeltaTable(str(path)).to_pyarrow_table().to_pylist(),
        key=lambda row: (row["partition"], row["offset"]),
    )


def test_either_writer_returns_the_same_rows_and_may_finish_a_plan_of_the_other(
    decoding: Pipeline, spark: SparkSession
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
    other.settings["table"]["writer"] = "spark"
    assert other.ran().outcomes[0] == "plan_resumed"
    assert rows_in(other.folder / "table") == rows
    assert (
        DeltaTable(table).schema().to_json() == DeltaTable(str(decoding.table)).schema().to_json()
    )
    assert decoding.is_whole()


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


@pytest.mark.long
def test_a_function_that_fails_on_a_row_is_named_and_the_mended_one_finishes_the_plan(
    decoding: Pipeline,
) -> None:
    why = Path(UNLUCKY)
    why.touch()
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
