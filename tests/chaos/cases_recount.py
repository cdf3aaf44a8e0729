"""A kill between commit and record where its rows are hard to count again: mapped columns, vacuumed
files, a transform.

Row 27, as `cases_pipelines`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from signal import SIGKILL
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from etl.cli import main
from etl.model.columns import spark_schema
from tests.chaos.driver import Driver
from tests.chaos.stage import Case, CaseResult, Stage, checked, complete_files, held
from tests.system.driving import Pipeline
from tests.traffic.rows import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DROPPED = (0, 5)
"""Partition and offset."""


def dropping(rows: DataFrame) -> DataFrame:
    """A transform that drops one record."""
    return rows.where(f"not (partition = {_DROPPED[0]} and offset = {_DROPPED[1]})")


def _spark() -> SparkSession:
    spark = SparkSession.getActiveSession()
    assert spark is not None, "the stage has no Spark session"
    return spark


class ReadBySpark(Pipeline):
    """A pipeline whose table delta-rs' Arrow reader cannot read."""

    def in_table(self) -> Counter[Row]:
        """Every row of the table, by Spark."""
        rows = (
            _spark()
            .read.format("delta")
            .load(str(self.table))
            .select("partition", "offset", "value")
            .collect()
        )
        return Counter(
            (r["partition"], r["offset"], hashlib.sha256(r["value"]).hexdigest()[:16]) for r in rows
        )


def _killed_before_its_record(pipeline: Pipeline) -> str:
    pipeline.produce(400)
    with Driver(pipeline, sends=(SIGKILL, "record")) as driver:
        result = driver.wait()
    assert result.code == -SIGKILL, f"{result.code}\n{result.err}"
    return held(pipeline)


def mapped(stage: Stage, *, mode: str, are_gone: bool) -> CaseResult:
    """A table with column mapping and deletion vectors; where `are_gone`, OPTIMIZE and VACUUM
    follow the kill.
    """
    pipeline = ReadBySpark(**vars(stage.pipeline(table={"partition_by": ["partition"]})))
    table = f"delta.`{pipeline.table}`"
    properties = f"'delta.columnMapping.mode' = '{mode}', 'delta.enableDeletionVectors' = 'true'"
    _spark().sql(
        f"CREATE TABLE {table} ({spark_schema()}) USING delta PARTITIONED BY (partition) "
        f"TBLPROPERTIES ({properties})"
    )
    if are_gone:  # OPTIMIZE leaves a partition with one file as it is
        pipeline.produce(400)
        pipeline.ran()
    after = _killed_before_its_record(pipeline)
    if are_gone:
        written = complete_files(pipeline)
        _spark().conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        _spark().sql(f"OPTIMIZE {table}")
        _spark().sql(f"VACUUM {table} RETAIN 0 HOURS")
        assert not written & complete_files(pipeline)
    result = pipeline.ran()
    assert "plan_completed" in result.outcomes, result.outcomes
    assert [r["rows"] for r in pipeline.door("plans", "show").document["ranges"]] == [100] * 4
    assert pipeline.door("verify").code == 0
    return stage.finish(pipeline, after=after, next_run=result)


def behind_a_transform(stage: Stage) -> CaseResult:
    """The run succeeds, the proof waits for an operator."""
    pipeline = stage.pipeline(transform="tests.chaos.cases_recount:dropping")
    after = _killed_before_its_record(pipeline)
    result = pipeline.ran()
    proof = pipeline.door("verify")
    assert (proof.code, sum(partition["not_provable"] for partition in proof.document["logs"])) == (
        9,
        1,
    ), proof.err
    version = str(proof.document["table_version"])
    assert (
        main(
            [
                "table",
                "accept-changes",
                str(pipeline.conf),
                version,
                "--reason",
                "it was dropped on purpose",
                "--yes",
            ]
        )
        == 0
    )
    assert pipeline.door("verify").code == 0
    expected = Counter(
        {row: count for row, count in pipeline.in_topic().items() if row[:2] != _DROPPED}
    )
    return CaseResult(
        after, f"exit {result.code}: {', '.join(result.outcomes)}", checked(pipeline, expected)
    )


_WHAT = "SIGKILL between the Delta commit and its record, "

CASES: tuple[Case, ...] = (
    Case(
        27,
        "mapped columns",
        _WHAT + "on a table with column mapping by name",
        partial(mapped, mode="name", are_gone=False),
    ),
    Case(
        27,
        "mapped columns, files gone",
        _WHAT + "column mapping by id and deletion vectors; then OPTIMIZE and VACUUM",
        partial(mapped, mode="id", are_gone=True),
    ),
    Case(
        27,
        "behind a transform that drops a record",
        _WHAT + "with a transform that drops a record: `verify` exits 5 until accepted",
        behind_a_transform,
    ),
)
