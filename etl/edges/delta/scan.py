"""Counting what really lies in a table, by reading its rows, for `audit`.

Owns the queries on rows that are known by their offset (`scan_entries` has those on physical logs).
What the counts mean belongs to `audit`. File statistics are never asked: they are what a writer
claimed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from etl.audit.audit import BUCKET_OFFSETS, AuditedLog, Bucket, Expected, LogFindings, audit
from etl.edges.delta.failures import unreadable
from etl.edges.delta.path import spark_path
from etl.errors import EtlError, SettingsError, whole_text
from etl.model.columns import misfit, names_of_key, row_key
from etl.model.partitions import BrokerPartition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Intervals = Mapping[AuditedLog, Sequence[tuple[int, int]]]
"""Offsets [from, until) of each log."""
_FROM_STATISTICS = "spark.databricks.delta.optimizeMetadataQuery.enabled"
_LOG_COLUMNS = ("topic", "log_epoch", "partition")
_DOUBLES_SHOWN = 5
_STRANGERS_SHOWN = 3


@dataclass(slots=True)
class Scan:
    """One look at all rows of a table; `delta_version` fixes the version to read. Raises
    TableUnreachable, SettingsError.
    """

    spark: SparkSession
    path: str
    delta_version: int | None = None
    rows_of_no_log: int = 0
    """Rows without topic, partition or offset, or with numbers that no log has; known when
    `buckets` has come to its end.
    """
    before: Intervals = field(default_factory=dict)
    """Offsets [from, until) whose rows are from before plan 1: they are left out."""

    def findings(self, expected: Mapping[AuditedLog, Expected]) -> Iterator[LogFindings]:
        """What is there, compared with what should be. Raises as `audit`, too."""
        return audit(expected, self.buckets())

    def doubles(self, found: LogFindings) -> list[tuple[tuple[int, ...], int]]:
        """What names the first doubled rows of a log, here their offset alone, each with its number
        of rows.
        """
        return [
            ((offset,), rows)
            for bucket in found.double_places[:1]
            for offset, rows in doubled_offsets(
                self.spark,
                self.path,
                found.audited,
                bucket,
                delta_version=self.delta_version,
                before=self.before,
            )
        ]

    def _keys(self) -> DataFrame:
        return without_intervals(
            read_keys(self.spark, self.path, self.delta_version, physical=False), self.before
        )

    def doubled_span(self, found: LogFindings) -> tuple[int, int] | None:
        """From the first doubled offset of a log to one past the last. None: no offset is doubled."""
        from pyspark.sql import functions as f

        if not found.double_rows:
            return None
        with rows_are_read(self.spark, self.path):
            rows = _of_log(self._keys(), found.audited)
            doubled = rows.groupBy("offset").agg(f.count(f.lit(1)).alias("rows")).where("rows > 1")
            [span] = doubled.agg(
                f.min("offset").alias("first"), f.max("offset").alias("last")
            ).collect()
        return None if span["first"] is None else (span["first"], span["last"] + 1)

    def buckets(self) -> Iterator[tuple[AuditedLog, Bucket]]:
        """The offsets that the table holds, one bitmap for each 32,768 of a log, ordered by log and
        bucket.

        Spark aggregates; one partition of its answer at a time comes to the driver.
        """
        with rows_are_read(self.spark, self.path):
            for row in _buckets(self._keys()).toLocalIterator():
                if row["bucket"] is None:
                    self.rows_of_no_log = row["rows"]
                    continue
                full = row["rows"] == row["distinct_offsets"] == BUCKET_OFFSETS
                audited = AuditedLog(
                    BrokerPartition(row["topic"], row["partition"]), row["log_epoch"]
                )
                yield (
                    audited,
                    Bucket(row["bucket"], row["rows"], None if full else bytes(row["bitmap"])),
                )

    def first_of_no_log(self) -> list[dict[str, Any]]:
        """What should name the record of some rows of no log."""
        return first_of_no_log(self.spark, self.path, self.delta_version, physical=False)


def doubled_offsets(
    spark: SparkSession,
    path: str,
    audited: AuditedLog,
    bucket: int,
    *,
    delta_version: int | None = None,
    before: Intervals = MappingProxyType({}),
) -> list[tuple[int, int]]:
    """The first offsets of one bucket that have more than one row, each with its number of rows."""
    from pyspark.sql import functions as f

    start = bucket * BUCKET_OFFSETS
    with rows_are_read(spark, path):
        of_log = _of_log(
            without_intervals(read_keys(spark, path, delta_version, physical=False), before),
            audited,
        )
        rows = of_log.where((f.col("offset") >= start) & (f.col("offset") < start + BUCKET_OFFSETS))
        counted = (
            rows.groupBy("offset")
            .agg(f.count(f.lit(1)).alias("rows"))
            .where("rows > 1")
            .orderBy("offset")
            .limit(_DOUBLES_SHOWN)
        )
        return [(row["offset"], row["rows"]) for row in counted.collect()]


def _of_log(rows: DataFrame, audited: AuditedLog) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.where(
        (f.col("topic") == audited.log.topic)
        & (f.col("partition") == audited.log.partition)
        & (f.col("log_epoch") == audited.log_epoch)
    )


def rows_until(spark: SparkSession, path: str) -> dict[BrokerPartition, tuple[int, int]]:
    """The last life of each log that the table holds rows of, and one past the last offset of that
    life.
    """
    from pyspark.sql import functions as f

    with rows_are_read(spark, path):
        rows = read_keys(spark, path, None, physical=False).dropna(
            subset=["topic", "partition", "offset"]
        )
        last = rows.groupBy("topic", "partition").agg(
            f.max(f.struct("log_epoch", "offset")).alias("last")
        )
        return {
            BrokerPartition(row["topic"], row["partition"]): (
                row["last"]["log_epoch"],
                row["last"]["offset"] + 1,
            )
            for row in last.collect()
        }


def rows_in_intervals(
    spark: SparkSession,
    path: str,
    delta_version: int | None,
    intervals: Intervals,
    *,
    physical: bool,
) -> dict[AuditedLog, int]:
    """How many rows the table has in these intervals of each log."""
    if not intervals:
        return {}
    names = [name for name in row_key(physical=physical) if name not in ("offset", "message_index")]
    with rows_are_read(spark, path):
        keys = read_keys(spark, path, delta_version, physical=physical)
        counted = _joined(keys, intervals, "left_semi").groupBy(*names).count().collect()
    return {
        AuditedLog(
            BrokerPartition(row["topic"], row["partition"], row["broker_id"] if physical else None),
            row["log_epoch"],
        ): row["count"]
        for row in counted
    }


def without_intervals(keys: DataFrame, intervals: Intervals) -> DataFrame:
    """The rows that are in none of these intervals."""
    return _joined(keys, intervals, "left_anti") if intervals else keys


def _joined(keys: DataFrame, intervals: Intervals, how: str) -> DataFrame:
    from pyspark.sql import functions as f

    physical = any(audited.log.is_physical for audited in intervals)
    names = [name for name in row_key(physical=physical) if name not in ("offset", "message_index")]
    rows = [
        (
            *({**audited.log.place, "log_epoch": audited.log_epoch}[name] for name in names),
            start,
            until,
        )
        for audited, parts in intervals.items()
        for start, until in parts
    ]
    kinds = {"topic": "string"}
    schema = ", ".join(
        f"{name} {kinds.get(name, 'bigint')}" for name in (*names, "from_offset", "until_offset")
    )
    of_logs = f.broadcast(keys.sparkSession.createDataFrame(rows, schema).alias("one"))
    is_same = functools.reduce(
        operator.and_, (f.col(f"key.{name}") == f.col(f"one.{name}") for name in names)
    )
    is_inside = (f.col("key.offset") >= f.col("one.from_offset")) & (
        f.col("key.offset") < f.col("one.until_offset")
    )
    return keys.alias("key").join(of_logs, is_same & is_inside, how)


def first_of_no_log(
    spark: SparkSession, path: str, delta_version: int | None, *, physical: bool
) -> list[dict[str, Any]]:
    """What should name the record of some rows that name none."""
    names = [name for name in row_key(physical=physical) if name != "log_epoch"]
    with rows_are_read(spark, path):
        found = (
            _load(spark, path, delta_version, physical=physical)
            .where(~_is_of_a_log(physical=physical))
            .limit(_STRANGERS_SHOWN)
        )
        return [{name: row[name] for name in names} for row in found.collect()]


@contextmanager
def rows_are_read(spark: SparkSession, path: str) -> Iterator[None]:
    """Delta answers a plain count from file statistics unless told not to. A file that cannot be
    read is told by its name.
    """
    before = spark.conf.get(_FROM_STATISTICS, None)
    spark.conf.set(_FROM_STATISTICS, "false")
    try:
        yield
    except EtlError:
        raise
    except Exception as error:
        told = unreadable(whole_text(error), path)
        if told is None:
            raise
        raise told from error
    finally:
        if before is None:
            spark.conf.unset(_FROM_STATISTICS)
        else:
            spark.conf.set(_FROM_STATISTICS, before)


def read_keys(
    spark: SparkSession, path: str, delta_version: int | None, *, physical: bool
) -> DataFrame:
    """What names the record of every row (`columns.row_key`); all of it NULL where a row names no
    log.
    """
    from pyspark.sql import functions as f

    whole, key = _is_of_a_log(physical=physical), row_key(physical=physical)
    return _load(spark, path, delta_version, physical=physical).select(
        [f.when(whole, f.col(name)).alias(name) for name in key]
    )


def _is_of_a_log(*, physical: bool) -> Column:
    """No broker has an offset above 2^63 - 2: an end, which is one more, must be a number, too."""
    from pyspark.sql import functions as f

    numbers = (f.col(name) >= 0 for name in row_key(physical=physical) if name != "topic")
    in_bounds = functools.reduce(operator.and_, numbers, f.col("offset") < 2**63 - 1)
    return f.coalesce(f.col("topic").isNotNull() & in_bounds, f.lit(False))


def _load(
    spark: SparkSession, path: str, delta_version: int | None, *, physical: bool
) -> DataFrame:
    """The columns that name a record; a table whose transform dropped `log_epoch` has one life of
    each log.
    """
    from pyspark.sql import functions as f

    reader = spark.read.format("delta")
    if delta_version is not None:
        reader = reader.option("versionAsOf", delta_version)
    frame = reader.load(spark_path(path))
    wrong = misfit(frame.dtypes, physical=physical)
    if wrong:
        check = f"the transform: it must leave {names_of_key(physical=physical)} as they are"
        raise SettingsError(f"nobody can prove the table's rows: {wrong}", path=path, check=check)
    epoch = f.coalesce(f.col("log_epoch"), f.lit(0)) if "log_epoch" in frame.columns else f.lit(0)
    return frame.select(
        [
            epoch.alias(name) if name == "log_epoch" else f.col(name)
            for name in row_key(physical=physical)
        ]
    )


def _buckets(frame: DataFrame) -> DataFrame:
    """Spark's bitmap functions number the buckets of positive values from 1, value 1 being the
    first bit: hence offset + 1.
    """
    from pyspark.sql import functions as f

    at = f.col("offset") + 1
    grouped = frame.groupBy(*_LOG_COLUMNS, (f.bitmap_bucket_number(at) - 1).alias("bucket"))
    bitmap = f.bitmap_construct_agg(f.bitmap_bit_position(at)).alias("bitmap")
    counted = grouped.agg(f.count(f.lit(1)).alias("rows"), bitmap)
    return counted.withColumn("distinct_offsets", f.bitmap_count("bitmap")).orderBy(
        *_LOG_COLUMNS, "bucket"
    )
