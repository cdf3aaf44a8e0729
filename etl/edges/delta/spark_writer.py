"""Rows of a plan into the table, by Spark: one append. Owns the built-in column `event_date` of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etl.edges.delta.path import spark_path
from etl.edges.delta.shape import EVENT_DATE, refuse_unknown
from etl.model.plans import Plan

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

    from etl.edges.delta.writers import Destination

_MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_MICROS = "unix_micros(timestamp)"
_UTC_DATE = (
    f"case when {_MICROS} >= {_YEAR_1} and {_MICROS} < {_YEAR_10000} then "
    f"date_from_unix_date(cast(({_MICROS} - pmod({_MICROS}, {_MICROS_PER_DAY})) div {_MICROS_PER_DAY} as int)) end"
)
"""Integer arithmetic on the instant: `to_date` would follow the session's time zone. Other years are no date that every reader of a
table knows (`event_date=+55840-11-08` is none for delta-rs), and the arithmetic would leave the range of an int64 in the least of them.
"""


class SparkWriter:
    """The writer of rows that Spark's tasks read: files first, by the executors, then one commit by the driver."""

    @property
    def takes_spark(self) -> bool:
        """Yes."""
        return True

    @property
    def writes_files(self) -> bool:
        """Yes."""
        return True

    def commit(self, plan: Plan, rows: DataFrame, table: DeltaTable | None, metadata: str, to: Destination) -> None:
        """See `Writer`. Spark opens the table itself, and skips a number at or below the table's without a word."""
        writer = with_event_date(rows, to.partition_by).write.format("delta").mode("append").partitionBy(*to.partition_by)
        writer.option("txnAppId", to.app_id).option("txnVersion", plan.number).option("userMetadata", metadata).save(spark_path(to.path))


def with_event_date(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Add the built-in column `event_date`, the UTC date of `timestamp`, when the partitioning names it and the rows lack it."""
    refuse_unknown(partition_by, frame.columns)
    if EVENT_DATE not in partition_by or EVENT_DATE in frame.columns:
        return frame
    from pyspark.sql import functions

    return frame.withColumn(EVENT_DATE, functions.expr(_UTC_DATE))
