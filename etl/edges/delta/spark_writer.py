"""Rows of a plan into the table, by Spark: one append, or one overwrite of a replay's rows. Owns
the built-in column `event_date`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etl.edges.delta.failures import translate
from etl.edges.delta.path import announce_first_write, open_table, spark_path
from etl.edges.delta.replace_where import condition_of, replaceable
from etl.edges.delta.shape import EVENT_DATE, refuse_unknown
from etl.edges.delta.store_failures import behind
from etl.edges.delta.taking import Takes
from etl.model.plans import Codec, Plan, PlanKind

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
"""Integer arithmetic on the instant: `to_date` would follow the session's time zone. Other years
are no date that every reader of a table knows (`event_date=+55840-11-08` is none for delta-rs), and
the arithmetic would leave the range of an int64 in the least of them.
"""
_SPELLED = {Codec.LZ4: "lz4_raw"}
"""As Spark calls codecs, where it is not as we do: its own `lz4` is Hadoop's frame, which others do
not read.
"""


@dataclass(frozen=True, slots=True)
class SparkWriter:
    """The writer of rows that Spark's tasks read: files first, by the executors, then one commit by
    the driver.
    """

    codec: Codec | None = None
    """None: what the session says, snappy unless it was told otherwise."""

    @property
    def name(self) -> str:
        """As reports call it."""
        return "spark"

    @property
    def takes(self) -> Takes:
        """A DataFrame."""
        return Takes.DATA_FRAME

    @property
    def writes_files(self) -> bool:
        """Yes."""
        return True

    def commit(
        self, plan: Plan, rows: DataFrame, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """See `Writer`. Spark opens the table itself, and skips a number at or below the table's
        without a word.
        """
        writer = (
            with_event_date(rows, to.partition_by)
            .write.format("delta")
            .mode("append")
            .partitionBy(*to.partition_by)
        )
        writer = (
            writer
            if self.codec is None
            else writer.option("compression", _SPELLED.get(self.codec, self.codec.value))
        )
        if plan.kind is PlanKind.REPLAY:
            writer = writer.mode("overwrite").option(
                "replaceWhere", condition_of(plan, replaceable(to.path))
            )  # also where none is by now
        writer.option("txnAppId", to.app_id).option("txnVersion", plan.number).option(
            "userMetadata", metadata
        ).save(spark_path(to.path))


def replace_in(
    path: str, plan: Plan, rows: DataFrame, metadata: str, partition_by: Sequence[str]
) -> None:
    """Put the rows of a replay in the place of those that another table has of its offsets; without
    a table make it. One commit.

    It carries no transaction: whoever does it again replaces the same rows again. Raises as an
    append does.
    """
    table, dated = open_table(path), with_event_date(rows, partition_by)
    writer = dated.write.format("delta").partitionBy(*partition_by).option("userMetadata", metadata)
    try:
        if table is None:
            announce_first_write(path)
            writer.mode("error").save(spark_path(path))
        else:
            writer.mode("overwrite").option(
                "replaceWhere", condition_of(plan, replaceable(path))
            ).save(spark_path(path))
    except Exception as error:  # whatever Spark and Java raise
        raise translate(error, path) from behind(error, path)


def with_event_date(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Add the built-in column `event_date`, the UTC date of `timestamp`, when the partitioning
    names it and the rows lack it.
    """
    refuse_unknown(partition_by, frame.columns)
    if EVENT_DATE not in partition_by or EVENT_DATE in frame.columns:
        return frame
    from pyspark.sql import functions

    return frame.withColumn(EVENT_DATE, functions.expr(_UTC_DATE))
