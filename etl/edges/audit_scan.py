"""Counting what really lies in a table, by reading its rows, for `audit`.

Owns the queries. What the counts mean belongs to `audit`. File statistics are never asked: they are what a writer claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from etl.audit import BUCKET_OFFSETS, AuditedLog, Bucket
from etl.edges.delta_path import spark_path
from etl.errors import SettingsError
from etl.model import BrokerPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FROM_STATISTICS = "spark.databricks.delta.optimizeMetadataQuery.enabled"
_LOG_COLUMNS = ("topic", "log_epoch", "partition")


def scan_buckets(spark: SparkSession, path: str, *, delta_version: int | None = None) -> Iterator[tuple[AuditedLog, Bucket]]:
    """The offsets that the table holds, one bitmap for each 32,768 of a log, ordered by log and bucket.

    Spark aggregates; one partition of its answer at a time comes to the driver. `delta_version` fixes the version to read.
    """
    with _rows_are_read(spark):
        for row in _buckets(_read(spark, path, delta_version)).toLocalIterator():
            full = row["rows"] == row["distinct_offsets"] == BUCKET_OFFSETS
            audited = AuditedLog(BrokerPartition(row["topic"], row["partition"]), row["log_epoch"])
            yield audited, Bucket(row["bucket"], row["rows"], None if full else bytes(row["bitmap"]))


def doubled_offsets(
    spark: SparkSession, path: str, audited: AuditedLog, bucket: int, *, shown: int = 5, delta_version: int | None = None
) -> list[tuple[int, int]]:
    """The first offsets of one bucket that have more than one row, each with its number of rows."""
    from pyspark.sql import functions as f

    start = bucket * BUCKET_OFFSETS
    with _rows_are_read(spark):
        rows = _read(spark, path, delta_version).where(
            (f.col("topic") == audited.log.topic) & (f.col("partition") == audited.log.partition)
            & (f.col("log_epoch") == audited.log_epoch) & (f.col("offset") >= start) & (f.col("offset") < start + BUCKET_OFFSETS))
        counted = rows.groupBy("offset").agg(f.count(f.lit(1)).alias("rows")).where("rows > 1").orderBy("offset").limit(shown)
        return [(row["offset"], row["rows"]) for row in counted.collect()]


@contextmanager
def _rows_are_read(spark: SparkSession) -> Iterator[None]:
    """Delta answers a plain count from file statistics unless told not to."""
    before = spark.conf.get(_FROM_STATISTICS, None)
    spark.conf.set(_FROM_STATISTICS, "false")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_FROM_STATISTICS)
        else:
            spark.conf.set(_FROM_STATISTICS, before)


def _read(spark: SparkSession, path: str, delta_version: int | None) -> DataFrame:
    """Log and offset of every row; a table whose transform dropped `log_epoch` has one life of each log."""
    from pyspark.sql import functions as f

    reader = spark.read.format("delta")
    if delta_version is not None:
        reader = reader.option("versionAsOf", delta_version)
    frame = reader.load(spark_path(path))
    for name in ("topic", "partition", "offset"):
        if name not in frame.columns:
            check = "the transform: it must leave topic, partition and offset as they are"
            raise SettingsError(f"the table has no column {name}, and without it nobody can prove its rows", path=path, check=check)
    epoch = f.coalesce(f.col("log_epoch"), f.lit(0)) if "log_epoch" in frame.columns else f.lit(0)
    return frame.select("topic", epoch.alias("log_epoch"), "partition", "offset")


def _buckets(frame: DataFrame) -> DataFrame:
    """Spark's bitmap functions number the buckets of positive values from 1, value 1 being the first bit: hence offset + 1."""
    from pyspark.sql import functions as f

    at = f.col("offset") + 1
    grouped = frame.groupBy(*_LOG_COLUMNS, (f.bitmap_bucket_number(at) - 1).alias("bucket"))
    bitmap = f.bitmap_construct_agg(f.bitmap_bit_position(at)).alias("bitmap")
    counted = grouped.agg(f.count(f.lit(1)).alias("rows"), bitmap)
    return counted.withColumn("distinct_offsets", f.bitmap_count("bitmap")).orderBy(*_LOG_COLUMNS, "bucket")
