"""Counting what really lies in a table, by reading its rows: for `audit`, and for receipts that a crash kept from being written.

Owns the queries. What the counts mean belongs to `audit`. File statistics are never asked: they are what a writer claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy

from etl.audit import BUCKET_OFFSETS, AuditedLog, Bucket
from etl.edges.delta_log import Added, open_log, parse_added, read_commit_file
from etl.edges.delta_path import rust_path, spark_path, unreachable
from etl.errors import LedgersDisagree, SettingsError
from etl.model import BrokerPartition, OffsetRange, Receipt
from etl.seen_offsets import SeenOffsets

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import fs
    from pyspark.sql import DataFrame, SparkSession

GAPS_MAX = 1_000
"""How many gaps a recounted receipt keeps."""

_FROM_STATISTICS = "spark.databricks.delta.optimizeMetadataQuery.enabled"
_LOG_COLUMNS = ("topic", "log_epoch", "partition")


class Stray(Enum):
    """What to make of rows that no range of the plan names."""

    REFUSED = "refused"
    PASSED_OVER = "passed over"


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


def recount(
    path: str, delta_version: int | None, ranges: Sequence[OffsetRange], *, storage_options: Mapping[str, str] | None = None,
    gaps_max: int = GAPS_MAX,
) -> tuple[Receipt, ...]:
    """The receipts of `ranges`, counted from the Parquet files that commit `delta_version` added (None: the log forgot which).

    Nobody knows any more how many bytes were fetched (None), nor why an offset gave no row: all of those are `missing_offsets`.
    Where OPTIMIZE and VACUUM took the files away, the table's files of today are read instead: a row is in one plan only.
    Raises LedgersDisagree when a file holds offsets of no range, TableUnreachable.
    """
    found = None
    if delta_version is not None:
        found = recount_commit(path, delta_version, ranges, storage_options=storage_options, gaps_max=gaps_max)
    if found is not None:
        return found
    return _recounted(path, _batches_of_today(path, ranges, storage_options), ranges, gaps_max, Stray.PASSED_OVER)


def recount_commit(
    path: str, delta_version: int, ranges: Sequence[OffsetRange], *, storage_options: Mapping[str, str] | None = None,
    gaps_max: int = GAPS_MAX, stray: Stray = Stray.REFUSED,
) -> tuple[Receipt, ...] | None:
    """The same from the commit's own files alone, whatever the table holds today; None where they are gone."""
    files = open_log(rust_path(path), storage_options)
    content = read_commit_file(files, delta_version)
    added = parse_added(content) if content is not None else None
    if added is None or not all(_is_there(files, one) for one in added):
        return None
    return _recounted(path, (batch for one in added for batch in _batches_of(files, one)), ranges, gaps_max, stray)


def _recounted(
    path: str, batches: Iterator[dict[str, Any]], ranges: Sequence[OffsetRange], gaps_max: int, stray: Stray,
) -> tuple[Receipt, ...]:
    seen, by_log = {i: SeenOffsets(r) for i, r in enumerate(ranges)}, _by_log(ranges)
    try:
        for batch in batches:
            _count(batch, by_log, seen, stray)
    except OSError as error:
        raise unreachable(error, path, "read") from error
    return tuple(seen[i].receipt(gaps_max) for i in range(len(ranges)))


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


def _is_there(files: fs.FileSystem, added: Added) -> bool:
    from pyarrow import fs

    return bool(files.get_file_info(unquote(added.path)).type == fs.FileType.File)


def _batches_of(files: fs.FileSystem, added: Added) -> Iterator[dict[str, Any]]:
    """Topic, partition and offset of each row, a batch at a time; a column the table is partitioned by is not in the file."""
    from pyarrow import parquet

    with parquet.ParquetFile(unquote(added.path), filesystem=files) as file:
        names = [name for name in ("topic", "partition", "offset") if name not in added.partition_values]
        for batch in file.iter_batches(columns=names, batch_size=2**17):
            yield {**added.partition_values, **{name: batch.column(name) for name in names}}


def _batches_of_today(
    path: str, ranges: Sequence[OffsetRange], storage_options: Mapping[str, str] | None
) -> Iterator[dict[str, Any]]:
    from deltalake import DeltaTable
    from pyarrow import dataset

    rows = DeltaTable(rust_path(path), storage_options=dict(storage_options or {})).to_pyarrow_dataset()
    topics = dataset.field("topic").isin(sorted({r.log.topic for r in ranges}))
    for batch in rows.scanner(columns=["topic", "partition", "offset"], filter=topics).to_batches():
        yield {name: batch.column(name) for name in batch.schema.names}


def _by_log(ranges: Sequence[OffsetRange]) -> dict[tuple[str, int], list[tuple[int, OffsetRange]]]:
    found: dict[tuple[str, int], list[tuple[int, OffsetRange]]] = {}
    for i, r in enumerate(ranges):
        found.setdefault((r.log.topic, r.log.partition), []).append((i, r))
    return {log: sorted(members, key=lambda member: member[1].from_offset) for log, members in found.items()}


def _count(
    batch: Mapping[str, Any], by_log: Mapping[tuple[str, int], list[tuple[int, OffsetRange]]], seen: Mapping[int, SeenOffsets], stray: Stray
) -> None:
    """Give each offset of a batch to its range: the batch is cut into the runs of one log, the run is sorted and cut by bounds."""
    for log, offsets in _runs(batch):
        offsets = numpy.sort(offsets)
        given = 0
        for i, r in by_log.get(log, ()):
            low, high = numpy.searchsorted(offsets, (r.from_offset, r.until_offset))
            seen[i].add(offsets[low:high])
            given += int(high - low)
        if given < len(offsets) and stray is Stray.REFUSED:
            check = "who wrote this commit; `verify` names the rows"
            raise LedgersDisagree("the commit holds rows that its plan does not name", topic=log[0], partition=log[1], check=check)


def _runs(batch: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], Any]]:
    """The offsets of each log in a batch."""
    import pyarrow
    from pyarrow import compute

    offsets = batch["offset"].to_numpy(zero_copy_only=False)
    topics, numbers = _column(batch["topic"], len(offsets)), _column(batch["partition"], len(offsets)).cast("int32")
    pairs = pyarrow.table({"topic": topics, "partition": numbers}).group_by(["topic", "partition"]).aggregate([])
    for pair in pairs.to_pylist():
        mine = compute.and_(compute.equal(topics, pair["topic"]), compute.equal(numbers, pair["partition"]))
        yield (pair["topic"], pair["partition"]), offsets[mine.to_numpy(zero_copy_only=False)]


def _column(values: Any, rows: int) -> pyarrow.Array:
    """A column, or the one value that a table partition gives to all its rows."""
    import pyarrow

    return pyarrow.repeat(values, rows) if isinstance(values, str) else values
