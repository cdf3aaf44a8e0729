"""Rows 27 and 43: rows that are hard to count again, and rows from before plan 1."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from etl.model.columns import spark_schema
from tests.chaos.driver import kill_before, kill_command
from tests.chaos.stage import (
    REASON,
    CaseResult,
    Stage,
    case_result,
    checked,
    complete_files,
    decide,
    ended,
    held,
    stopped,
    succeeded,
)
from tests.system.driving import Pipeline
from tests.traffic.rows import Row, hash_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DROPPED = (0, 5)
_BEFORE = 240


def dropping(rows: DataFrame) -> DataFrame:
    return rows.where(f"not (partition = {_DROPPED[0]} and offset = {_DROPPED[1]})")


def _spark() -> SparkSession:
    spark = SparkSession.getActiveSession()
    assert spark is not None, "the stage has no Spark session"
    return spark


class ReadBySpark(Pipeline):
    """A pipeline whose table delta-rs' Arrow reader cannot read."""

    def in_table(self) -> Counter[Row]:
        rows = _spark().read.format("delta").load(str(self.table))
        found = rows.select("partition", "offset", "value").collect()
        return Counter((r["partition"], r["offset"], hash_of(r["value"])) for r in found)


def mapped(stage: Stage, *, mode: str, are_gone: bool) -> CaseResult:
    """A table with column mapping and deletion vectors; `are_gone`: then OPTIMIZE and VACUUM."""
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
    pipeline.produce(400)
    after = kill_before(pipeline, "record")
    if are_gone:
        written = complete_files(pipeline)
        _spark().conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        _spark().sql(f"OPTIMIZE {table}")
        _spark().sql(f"VACUUM {table} RETAIN 0 HOURS")
        assert not written & complete_files(pipeline)
    result = succeeded(pipeline.run(), "plan_completed")
    assert [r["rows"] for r in pipeline.door("plans", "show").document["ranges"]] == [100] * 4
    ended(pipeline.door("verify"), 0)
    return stage.finish(pipeline, after, result)


def behind_a_transform(stage: Stage) -> CaseResult:
    """The run succeeds, the proof waits for an operator."""
    pipeline = stage.pipeline(transform=f"{__name__}:dropping")
    pipeline.produce(400)
    after = kill_before(pipeline, "record")
    result = pipeline.ran()
    proof = ended(pipeline.door("verify"), 9)
    assert sum(partition["not_provable"] for partition in proof.document["partitions"]) == 1, (
        proof.err
    )
    decide(pipeline, "table accept-changes", str(proof.document["table_version"]))
    ended(pipeline.door("verify"), 0)
    kept = {row: count for row, count in pipeline.in_topic().items() if row[:2] != _DROPPED}
    return case_result(after, result, checked(pipeline, Counter(kept)))


@dataclass(frozen=True, slots=True)
class _NextLife:
    """The topic, and the rows of the table that were loaded in the second life of its logs."""

    pipeline: Pipeline

    def in_topic(self) -> Counter[Row]:
        return self.pipeline.in_topic()

    def in_table(self) -> Counter[Row]:
        columns = ["partition", "offset", "value", "incarnation"]
        rows = DeltaTable(str(self.pipeline.table)).to_pyarrow_table(columns=columns).to_pylist()
        return Counter(
            (row["partition"], row["offset"], hash_of(row["value"]))
            for row in rows
            if row["incarnation"] == 1
        )


def rows_before(stage: Stage, *, are_others: bool, dies_at: str = "", verb: str = "") -> CaseResult:
    """A new pipeline whose table has rows of another writer, the first records of the topic. It
    continues after them; or an operator declares that they are other records (`are_others`), and
    everything is loaded as the next incarnation of the partitions. The command is killed at
    `dies_at` first, or the run after it before a verb.
    """
    old = stage.pipeline()
    old.produce(_BEFORE)
    old.ran()
    heir = old.under("heir")
    heir.settings = {**old.settings, "table": {"path": str(heir.table)}}
    write_deltalake(str(heir.table), DeltaTable(str(old.table)).to_pyarrow_table())
    heir.produce(160)
    stopped(heir.run(), 5, "no plan of this pipeline loaded")
    version = str(DeltaTable(str(heir.table)).version())
    command = "table accept-changes" if are_others else "ledger restore"
    words = (version,) if are_others else ()
    if dies_at:
        kill_command(heir, dies_at, *command.split(), str(heir.conf), *words, *REASON)
    decide(heir, command, *words)
    after = kill_before(heir, verb) if verb else held(heir)
    next_run = heir.ran()
    ended(heir.door("verify"), 0)
    if are_others:
        assert sum(heir.in_table().values()) == _BEFORE + heir.produced
    return case_result(after, next_run, checked(_NextLife(heir) if are_others else heir))
