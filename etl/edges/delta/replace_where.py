"""Which rows of a table a replay replaces: the condition that Spark's writer takes out by, and how
many rows meet it.

One overwrite with `replaceWhere` is one commit: it takes out the rows that meet the condition, and
its rows must all meet it, or Delta refuses it. Delta takes the transaction of the plan and its
metadata for such a commit as for an append, and skips a used number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etl.decide.loaded_intervals import Span, spans_of
from etl.edges.delta.path import open_table, spark_path
from etl.edges.delta.scan import rows_are_read
from etl.errors import LedgersDisagree, NotOurTable
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

_APPEND_ONLY = "delta.appendOnly"


def condition(spans: Sequence[Span], columns: Sequence[str]) -> str:
    """SQL that holds for the rows of these offsets and for no other; `columns` are the table's.

    A row without a `log_epoch` is of the log's first life.
    """
    life = "coalesce(`log_epoch`, 0)" if "log_epoch" in columns else "0"
    return " OR ".join(
        f"({_partition_condition(span.log)} AND `offset` >= {span.from_offset} AND `offset` < {span.until_offset} "
        f"AND {life} = {span.log_epoch})"
        for span in spans
    )


def _partition_condition(log: BrokerPartition) -> str:
    broker = "" if log.broker_id is None else f" AND `broker_id` = {log.broker_id}"
    return f"`topic` = {_text(log.topic)} AND `partition` = {log.partition}{broker}"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def condition_of(plan: Plan, table: DeltaTable) -> str:
    """The same of a replay's plan and the table that it is for."""
    return condition(spans_of(plan), [field.name for field in table.schema().fields])


def replaceable(path: str) -> DeltaTable:
    """The table whose rows are to be replaced. Raises NotOurTable where it lets nobody take rows
    out, LedgersDisagree where it is gone.
    """
    table = open_table(path)
    if table is None:
        raise LedgersDisagree(
            "there is no table whose rows could be replaced", path=path, check="who removed it"
        )
    if str(table.metadata().configuration.get(_APPEND_ONLY, "")).lower() == "true":
        check = f"who set {_APPEND_ONLY}, and why; rows of such a table cannot be replaced. `--into PATH` makes the rows in another table"
        raise NotOurTable(
            "the table is append-only: nobody may take rows out of it", path=path, check=check
        )
    return table


def rows_there(
    spark: SparkSession, path: str, spans: Sequence[Span]
) -> Mapping[BrokerPartition, int]:
    """How many rows of the table lie in each span, whoever wrote them; one span for each log. No
    table: none. Raises as `open_table`.
    """
    table = open_table(path)
    found = dict.fromkeys((span.log for span in spans), 0)
    if table is None:
        return found
    names = [field.name for field in table.schema().fields]
    logs = [
        "topic",
        "partition",
        *(["broker_id"] if "broker_id" in names and any(log.is_physical for log in found) else []),
    ]
    frame = spark.read.format("delta").option("versionAsOf", table.version()).load(spark_path(path))
    with rows_are_read(spark, path):
        counted = frame.where(condition(spans, names)).groupBy(*logs).count().collect()
    for row in counted:
        found[
            BrokerPartition(
                row["topic"], row["partition"], row["broker_id"] if "broker_id" in logs else None
            )
        ] = row["count"]
    return found
