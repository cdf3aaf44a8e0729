"""Which rows are in a table?

Lives here: queries that read rows. File statistics are only claims of a writer, so a proof does not
use them. Not here: the judgement of the results (etl/audit/compare_rows.py).

Kafka 0.8 and later: bitmaps of offsets per partition.

Jafka: rows come in runs, each a part of the rows that one task wrote. Within a run the next row has
the same entry and the next index, or a later entry and index 0. If the runs of a partition, ordered
by first row, continue in the same way, the partition has each message once, and rows between two
edges of the ledger are counted directly. Of any other partition Spark counts the rows of each entry
and sums them between edges. The driver receives as many rows as the ledger has intervals.

Replays: the `replaceWhere` condition and the number of rows that meet it. One overwrite is one
commit with the plan's transaction, and Delta rejects rows that do not meet the condition.

Rows that no pipeline loaded: first and last offset of each partition, from statistics if they
suffice, else from the key columns of the files.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy

from etl.audit.compare_rows import (
    BUCKET_OFFSETS,
    AuditedPartition,
    Bucket,
    EntryInterval,
    Expected,
    PartitionFindings,
    audit,
    audit_entries,
    edges_of,
)
from etl.decide.loaded_intervals import Span, spans_of
from etl.errors import (
    EtlError,
    LedgersDisagree,
    NeedsDecision,
    NotOurTable,
    SettingsError,
    whole_text,
)
from etl.io.delta.loaded_plans import other_pipelines
from etl.io.delta.log import open_log
from etl.io.delta.recover_results import (
    INCARNATION,
    TableFiles,
    Uncountable,
    actions_of,
    added_of,
    count_rows,
    incarnation_columns,
    key_columns,
    may_hold_offsets,
)
from etl.io.delta.statistics_to_write import TEXT_KEPT
from etl.io.delta.stores import unreadable
from etl.io.delta.table_shape import features_of, open_table, rust_path, spark_path
from etl.model.columns import misfit, names_of_key, row_key
from etl.model.partitions import TopicPartition
from etl.model.plans import HeldRows, OffsetRange, Plan

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, Row, SparkSession


Intervals = Mapping[AuditedPartition, Sequence[tuple[int, int]]]
"""Offsets [from, until) of each partition."""
_FROM_STATISTICS = "spark.databricks.delta.optimizeMetadataQuery.enabled"
_LOG_COLUMNS = ("topic", "incarnation", "partition")
_DOUBLES_SHOWN = 5
_STRANGERS_SHOWN = 3


@dataclass(slots=True)
class Scan:
    """A scan of all rows of a table at `delta_version`. Raises TableUnreachable, SettingsError."""

    spark: SparkSession
    path: str
    delta_version: int | None = None
    rows_without_partition: int = 0
    """Rows without topic, partition or offset, or with numbers that no partition has. Known after
    the last item of `buckets`.
    """
    before: Intervals = field(default_factory=dict)
    """Offsets [from, until) with rows from before plan 1: left out."""

    def findings(
        self, expected: Mapping[AuditedPartition, Expected]
    ) -> Iterator[PartitionFindings]:
        """Return the rows compared with the expected ones. Raises as `audit`, too."""
        return audit(expected, self.buckets())

    def doubles(self, found: PartitionFindings) -> list[tuple[tuple[int, ...], int]]:
        """Return the first duplicate offsets of a partition, each with its number of rows."""
        if not found.double_places:
            return []
        doubled = doubled_offsets(
            self.spark,
            self.path,
            found.audited,
            found.double_places[0],
            delta_version=self.delta_version,
            before=self.before,
        )
        return [((offset,), rows) for offset, rows in doubled]

    def _keys(self) -> DataFrame:
        keys = read_keys(self.spark, self.path, self.delta_version, physical=False)
        return without_intervals(keys, self.before)

    def doubled_span(self, found: PartitionFindings) -> tuple[int, int] | None:
        """Return the first duplicate offset of a partition, and the last one plus 1.

        None: no offset has two rows.
        """
        from pyspark.sql import functions as f

        if not found.double_rows:
            return None
        with rows_are_read(self.spark, self.path):
            rows = _of_partition(self._keys(), found.audited)
            doubled = rows.groupBy("offset").agg(f.count(f.lit(1)).alias("rows")).where("rows > 1")
            bounds = doubled.agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
            [span] = bounds.collect()
        return None if span["first"] is None else (span["first"], span["last"] + 1)

    def buckets(self) -> Iterator[tuple[AuditedPartition, Bucket]]:
        """Yield the offsets in the table, one bitmap for each 32,768 offsets of a partition.

        Ordered by partition and bucket. Spark aggregates; the driver receives one partition of its
        result at a time.
        """
        with rows_are_read(self.spark, self.path):
            for row in _buckets(self._keys()).toLocalIterator():
                if row["bucket"] is None:
                    self.rows_without_partition = row["rows"]
                    continue
                partition = TopicPartition(row["topic"], row["partition"])
                is_full = row["rows"] == row["distinct_offsets"] == BUCKET_OFFSETS
                bitmap = None if is_full else bytes(row["bitmap"])
                bucket = Bucket(row["bucket"], row["rows"], bitmap)
                yield AuditedPartition(partition, row["incarnation"]), bucket

    def first_without_partition(self) -> list[dict[str, Any]]:
        """Return the key columns of some rows without a valid record."""
        return first_without_partition(self.spark, self.path, self.delta_version, physical=False)


def doubled_offsets(
    spark: SparkSession,
    path: str,
    audited: AuditedPartition,
    bucket: int,
    *,
    delta_version: int | None = None,
    before: Intervals = MappingProxyType({}),
) -> list[tuple[int, int]]:
    """Return the first offsets of one bucket with several rows, each with its number of rows."""
    from pyspark.sql import functions as f

    start = bucket * BUCKET_OFFSETS
    with rows_are_read(spark, path):
        keys = read_keys(spark, path, delta_version, physical=False)
        rows = _of_partition(without_intervals(keys, before), audited)
        rows = rows.where((f.col("offset") >= start) & (f.col("offset") < start + BUCKET_OFFSETS))
        counted = rows.groupBy("offset").agg(f.count(f.lit(1)).alias("rows"))
        doubled = counted.where("rows > 1").orderBy("offset").limit(_DOUBLES_SHOWN)
        return [(row["offset"], row["rows"]) for row in doubled.collect()]


def _of_partition(rows: DataFrame, audited: AuditedPartition) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.where(
        (f.col("topic") == audited.partition.topic)
        & (f.col("partition") == audited.partition.partition)
        & (f.col("incarnation") == audited.incarnation)
    )


def rows_until(spark: SparkSession, path: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return the last incarnation of each partition in the table, and its last offset plus 1."""
    from pyspark.sql import functions as f

    with rows_are_read(spark, path):
        keys = read_keys(spark, path, None, physical=False)
        rows = keys.dropna(subset=["topic", "partition", "offset"])
        newest = f.max(f.struct("incarnation", "offset")).alias("last")
        found = {}
        for row in rows.groupBy("topic", "partition").agg(newest).collect():
            last = row["last"]
            partition = TopicPartition(row["topic"], row["partition"])
            found[partition] = last["incarnation"], last["offset"] + 1
        return found


def rows_in_intervals(
    spark: SparkSession,
    path: str,
    delta_version: int | None,
    intervals: Intervals,
    *,
    physical: bool,
) -> dict[AuditedPartition, int]:
    """Return the number of rows in these intervals of each partition."""
    if not intervals:
        return {}
    names = incarnation_columns(physical=physical)
    with rows_are_read(spark, path):
        keys = read_keys(spark, path, delta_version, physical=physical)
        counted = _joined(keys, intervals, "left_semi").groupBy(*names).count().collect()
    rows = {}
    for row in counted:
        broker_id = row["broker_id"] if physical else None
        partition = TopicPartition(row["topic"], row["partition"], broker_id)
        rows[AuditedPartition(partition, row["incarnation"])] = row["count"]
    return rows


def without_intervals(keys: DataFrame, intervals: Intervals) -> DataFrame:
    """Return the rows that are in none of these intervals."""
    return _joined(keys, intervals, "left_anti") if intervals else keys


def _joined(keys: DataFrame, intervals: Intervals, how: str) -> DataFrame:
    from pyspark.sql import functions as f

    physical = any(audited.partition.is_physical for audited in intervals)
    names = incarnation_columns(physical=physical)
    rows = []
    for audited, parts in intervals.items():
        values = {**audited.partition.place, "incarnation": audited.incarnation}
        key = [values[name] for name in names]
        for start, until in parts:
            rows.append((*key, start, until))
    schema = _schema_of((*names, "from_offset", "until_offset"))
    listed = f.broadcast(keys.sparkSession.createDataFrame(rows, schema).alias("listed"))
    same = [f.col(f"key.{name}") == f.col(f"listed.{name}") for name in names]
    same.append(f.col("key.offset") >= f.col("listed.from_offset"))
    same.append(f.col("key.offset") < f.col("listed.until_offset"))
    return keys.alias("key").join(listed, functools.reduce(operator.and_, same), how)


def _schema_of(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {_TYPES.get(name, 'bigint')}" for name in names)


def first_without_partition(
    spark: SparkSession, path: str, delta_version: int | None, *, physical: bool
) -> list[dict[str, Any]]:
    """Return the key columns of some rows without a valid record."""
    names = [name for name in row_key(physical=physical) if name != "incarnation"]
    with rows_are_read(spark, path):
        rows = _load(spark, path, delta_version, physical=physical)
        invalid = rows.where(~_is_of_a_log(physical=physical)).limit(_STRANGERS_SHOWN)
        found = []
        for row in invalid.collect():
            values = {name: row[name] for name in names}
            found.append(values)
        return found


@contextmanager
def rows_are_read(spark: SparkSession, path: str) -> Iterator[None]:
    """Make Spark read rows. By default Delta answers a plain count from file statistics.

    Raises TableUnreachable or FileLost for a file that Spark cannot read.
    """
    before = spark.conf.get(_FROM_STATISTICS, None)
    spark.conf.set(_FROM_STATISTICS, "false")
    try:
        yield
    except EtlError:
        raise
    except Exception as error:
        translated = unreadable(whole_text(error), path)
        if translated is None:
            raise
        raise translated from error
    finally:
        if before is None:
            spark.conf.unset(_FROM_STATISTICS)
        else:
            spark.conf.set(_FROM_STATISTICS, before)


def read_keys(
    spark: SparkSession, path: str, delta_version: int | None, *, physical: bool
) -> DataFrame:
    """Return the key columns of each row (`columns.row_key`); all NULL if a row names no record."""
    from pyspark.sql import functions as f

    is_of_a_log = _is_of_a_log(physical=physical)
    columns = []
    for name in row_key(physical=physical):
        columns.append(f.when(is_of_a_log, f.col(name)).alias(name))
    return _load(spark, path, delta_version, physical=physical).select(columns)


def _is_of_a_log(*, physical: bool) -> Column:
    """Return the condition of a valid record.

    No broker has an offset above 2^63 - 2, so that an end offset is an int64, too.
    """
    from pyspark.sql import functions as f

    in_bounds = f.col("offset") < 2**63 - 1
    for name in row_key(physical=physical):
        if name != "topic":
            in_bounds &= f.col(name) >= 0
    return f.coalesce(f.col("topic").isNotNull() & in_bounds, f.lit(False))


def _load(
    spark: SparkSession, path: str, delta_version: int | None, *, physical: bool
) -> DataFrame:
    """Return the key columns; a table whose transform dropped `incarnation` has one incarnation."""
    from pyspark.sql import functions as f

    reader = spark.read.format("delta")
    if delta_version is not None:
        reader = reader.option("versionAsOf", delta_version)
    frame = reader.load(spark_path(path))
    wrong = misfit(frame.dtypes, physical=physical)
    if wrong:
        keys = names_of_key(physical=physical)
        raise SettingsError(
            f"The table's rows cannot be verified: {wrong}",
            key="transform",
            path=path,
            action=f"Check the transform: it must leave {keys} as they are",
        )
    epoch = f.lit(0)
    if "incarnation" in frame.columns:
        epoch = f.coalesce(f.col("incarnation"), epoch)
    columns = []
    for name in row_key(physical=physical):
        column = epoch if name == "incarnation" else f.col(name)
        columns.append(column.alias(name))
    return frame.select(columns)


def _buckets(frame: DataFrame) -> DataFrame:
    """Return a bitmap of the offsets of each partition and bucket.

    Spark's bitmap functions number the buckets of positive values from 1, and value 1 is the first
    bit: hence offset + 1.
    """
    from pyspark.sql import functions as f

    at = f.col("offset") + 1
    grouped = frame.groupBy(*_LOG_COLUMNS, (f.bitmap_bucket_number(at) - 1).alias("bucket"))
    bitmap = f.bitmap_construct_agg(f.bitmap_bit_position(at)).alias("bitmap")
    counted = grouped.agg(f.count(f.lit(1)).alias("rows"), bitmap)
    with_distinct = counted.withColumn("distinct_offsets", f.bitmap_count("bitmap"))
    return with_distinct.orderBy(*_LOG_COLUMNS, "bucket")


LOG = ("topic", "broker_id", "partition", "incarnation")
"""The columns of a partition and its incarnation. All are NULL in rows without a valid record."""
Log = tuple[str, int, int, int]
_RUN = ("number", "first_offset", "first_index", "last_offset", "last_index", "rows")


def intervals_in_order(keys: DataFrame, edges: Mapping[Log, Sequence[int]]) -> DataFrame:
    """Return a row for each partition and interval between its edges, sorted.

    `keys`: the columns of `LOG`, as string and bigints, with `offset` and `message_index`. `edges`:
    of each expected partition, ascending; others have one interval, 0. Columns: those of `LOG`,
    `number`, `rows`, `offset` (the first entry), `is_ordered` (the runs of this interval are
    consecutive). If `is_ordered` is false once, the rows of the whole partition must be counted.
    Rows without a record are in one row with NULL keys.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    edges_of_partitions = {
        partition: numpy.array(some, numpy.int64) for partition, some in edges.items()
    }
    runs = keys.mapInArrow(Runs(edges_of_partitions), _schema_of((*LOG, *_RUN)))
    in_order = Window.partitionBy(*LOG).orderBy("first_offset", "first_index")
    before_offset = f.lag("last_offset").over(in_order)
    before_index = f.lag("last_index").over(in_order)
    follows = (
        f.when(before_offset.isNull(), f.col("first_index") == 0)
        .when(before_offset == f.col("first_offset"), f.col("first_index") == before_index + 1)
        .otherwise((before_offset < f.col("first_offset")) & (f.col("first_index") == 0))
    )
    compared = runs.withColumn("follows", f.col("topic").isNull() | follows)
    added = compared.groupBy(*LOG, "number").agg(
        f.sum("rows").alias("rows"),
        f.min("first_offset").alias("offset"),
        f.min("follows").alias("is_ordered"),
    )
    return added.orderBy(*LOG, "number")


class Runs:
    """A function for Spark's `mapInArrow` that returns the runs of rows in Arrow batches.

    `edges` as in `intervals_in_order`. An edge ends a run.
    """

    def __init__(self, edges: Mapping[Log, NDArray[numpy.int64]]) -> None:
        self._edges = edges

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self._runs(batch)

    def _runs(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        import pyarrow

        numbers = {}
        for name in (*LOG[1:], "offset", "message_index"):
            numbers[name] = _int64(batch.column(name))
        topics = batch.column("topic").dictionary_encode()
        partitions = [_int64(topics.indices), *(numbers[name] for name in LOG[1:])]
        offset, index = numbers["offset"], numbers["message_index"]
        another_partition = _changes(*partitions)
        interval = self._intervals(batch, offset, another_partition)
        later = (offset[1:] > offset[:-1]) & (index[1:] == 0)
        next_one = (offset[1:] == offset[:-1]) & (index[1:] == index[:-1] + 1)
        without_record = partitions[0][1:] < 0
        same_interval = interval[1:] == interval[:-1]
        follows = ~another_partition & (later | next_one | without_record) & same_interval
        begins = numpy.concatenate(([0], numpy.flatnonzero(~follows) + 1))
        ends = numpy.concatenate((begins[1:], [batch.num_rows]))
        found = {
            "number": interval[begins],
            "first_offset": offset[begins],
            "first_index": index[begins],
            "last_offset": offset[ends - 1],
            "last_index": index[ends - 1],
            "rows": ends - begins,
        }
        columns = {}
        for name in LOG:
            columns[name] = batch.column(name).take(pyarrow.array(begins))
        for name in _RUN:
            columns[name] = pyarrow.array(found[name], pyarrow.int64())
        return pyarrow.record_batch(columns)

    def _intervals(
        self,
        batch: pyarrow.RecordBatch,
        offset: NDArray[numpy.int64],
        another_partition: NDArray[numpy.bool_],
    ) -> NDArray[numpy.int64]:
        """Return the number of edges of its partition at or below each row's entry."""
        found = numpy.zeros(batch.num_rows, numpy.int64)
        begins = [0, *(numpy.flatnonzero(another_partition) + 1).tolist(), batch.num_rows]
        heads = [batch.column(name).take(begins[:-1]).to_pylist() for name in LOG]
        for partition, begin, end in zip(zip(*heads), begins, begins[1:]):
            edges = self._edges.get(partition)
            if edges is not None:
                found[begin:end] = numpy.searchsorted(edges, offset[begin:end], side="right")
        return found


def _int64(column: pyarrow.Array) -> NDArray[numpy.int64]:
    """Return the column as int64, with -1 for NULL: no partition or topic has that number."""
    found: NDArray[numpy.int64] = (
        column.fill_null(-1).to_numpy(zero_copy_only=False).astype(numpy.int64, copy=False)
    )
    return found


def _changes(*columns: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
    """Return whether each row but the first differs from the one before in any column."""
    found: NDArray[numpy.bool_] = numpy.logical_or.reduce(
        [column[1:] != column[:-1] for column in columns]
    )
    return found


_ENTRY = (*LOG, "offset")
_TYPES = {"topic": "string"}
_COUNTS = {
    "rows": "sum",
    "messages": "sum",
    "holes": "sum",
    "offset": "min",
    "first_hole": "min",
    "first_double": "min",
}


@dataclass(slots=True)
class EntryScan:
    """A scan of all rows of a table at `delta_version`. Raises TableUnreachable, SettingsError."""

    spark: SparkSession
    path: str
    delta_version: int | None = None
    rows_without_partition: int = 0
    """Rows with an incomplete key, or with numbers that no partition has. Known after the last item
    of `findings`.
    """
    before: Intervals = field(default_factory=dict)
    """Offsets [from, until) with rows from before plan 1: left out."""

    def findings(
        self, expected: Mapping[AuditedPartition, Expected]
    ) -> Iterator[PartitionFindings]:
        """Return the rows compared with the expected ones. Raises as `audit_entries`, too."""
        edges = {audited: edges_of(audited, one) for audited, one in expected.items()}
        return audit_entries(expected, self.stretches(edges))

    def stretches(
        self, edges: Mapping[AuditedPartition, Sequence[int]]
    ) -> Iterator[tuple[AuditedPartition, EntryInterval]]:
        """Yield the number of rows between the edges of each partition.

        The intervals of one partition are consecutive and ordered by edge.
        """
        with rows_are_read(self.spark, self.path):
            keys = without_intervals(_keys(self.spark, self.path, self.delta_version), self.before)
            to_count: dict[AuditedPartition, Sequence[int]] = {}
            by_partition = {_log_of(audited): some for audited, some in edges.items()}
            found = intervals_in_order(keys, by_partition).toLocalIterator()
            for audited, grouped in groupby(found, key=_audited):
                rows = list(grouped)
                if audited is None:
                    self.rows_without_partition = rows[0]["rows"]
                elif all(row["is_ordered"] for row in rows):
                    for row in rows:
                        count = row["rows"]
                        yield audited, EntryInterval(row["number"], count, count, row["offset"])
                else:
                    to_count[audited] = edges.get(audited, ())
            if to_count:
                yield from self._counted(keys, to_count)

    def _counted(
        self, keys: DataFrame, edges: Mapping[AuditedPartition, Sequence[int]]
    ) -> Iterator[tuple[AuditedPartition, EntryInterval]]:
        """Yield the same for the partitions of `edges`, counted message by message."""
        for row in _stretches(keys, edges).toLocalIterator():
            audited = _audited(row)
            if audited is None:
                continue
            interval = EntryInterval(
                row["number"],
                row["rows"],
                row["messages"],
                row["offset"],
                row["holes"],
                row["first_hole"],
                row["first_double"],
            )
            yield audited, interval

    def doubles(self, found: PartitionFindings) -> list[tuple[tuple[int, ...], int]]:
        """Return the first duplicate messages of a partition.

        Each has its entry and index, and its number of rows.
        """
        from pyspark.sql import functions as f

        if not found.double_places:
            return []
        entry = found.double_places[0]
        audited = found.audited
        wanted = {**audited.partition.place, "incarnation": audited.incarnation, "offset": entry}
        with rows_are_read(self.spark, self.path):
            keys = read_keys(self.spark, self.path, self.delta_version, physical=True)
            rows = without_intervals(keys, self.before)
            for name, value in wanted.items():
                rows = rows.where(f.col(name) == value)
            counted = rows.groupBy("message_index").agg(f.count(f.lit(1)).alias("rows"))
            doubled = counted.where("rows > 1").orderBy("message_index").limit(_DOUBLES_SHOWN)
            return [((entry, row["message_index"]), row["rows"]) for row in doubled.collect()]

    def doubled_span(self, found: PartitionFindings) -> tuple[int, int] | None:
        """Return None: a replay needs the end of the last duplicate entry, which rows lack."""
        return None

    def first_without_partition(self) -> list[dict[str, Any]]:
        """Return the key columns of some rows without a valid record."""
        return first_without_partition(self.spark, self.path, self.delta_version, physical=True)


def _audited(row: Row) -> AuditedPartition | None:
    """Return the partition of a row; None: without a record."""
    if row["topic"] is None:
        return None
    return AuditedPartition(
        TopicPartition(row["topic"], row["partition"], row["broker_id"]), row["incarnation"]
    )


def _log_of(audited: AuditedPartition) -> Log:
    partition = audited.partition
    return partition.topic, partition.broker_id or 0, partition.partition, audited.incarnation


def _keys(spark: SparkSession, path: str, delta_version: int | None) -> DataFrame:
    """Return the key of every row, in the same types for every table."""
    from pyspark.sql import functions as f

    keys = read_keys(spark, path, delta_version, physical=True)
    columns = []
    for name in (*_ENTRY, "message_index"):
        columns.append(f.col(name).cast(_TYPES.get(name, "bigint")).alias(name))
    return keys.select(columns)


def _stretches(keys: DataFrame, edges: Mapping[AuditedPartition, Sequence[int]]) -> DataFrame:
    """Return a row for each partition of `edges` and interval number."""
    from pyspark.sql import functions as f

    partitions = list(edges)
    numbered_partitions = [(*_log_of(audited), at) for at, audited in enumerate(partitions)]
    named = keys.sparkSession.createDataFrame(numbered_partitions, _schema_of((*LOG, "log")))
    entries = _entries(keys.join(f.broadcast(named), list(LOG), "inner"))
    columns = (*LOG, "number", *_COUNTS)
    edges_of_partitions = [numpy.array(edges[partition], numpy.int64) for partition in partitions]
    numbered = entries.mapInArrow(Numbering(edges_of_partitions), _schema_of(columns))
    functions = {"sum": f.sum, "min": f.min}
    added = [functions[how](name).alias(name) for name, how in _COUNTS.items()]
    return numbered.groupBy(*LOG, "number").agg(*added).orderBy(*LOG, "number")


def _entries(keys: DataFrame) -> DataFrame:
    """Return a row for each entry: its rows, its messages, and the index of the last message.

    `log` is the index of its partition.
    """
    from pyspark.sql import functions as f

    return keys.groupBy(*_ENTRY, "log").agg(
        f.count(f.lit(1)).alias("rows"),
        f.countDistinct("message_index").alias("messages"),
        f.max("message_index").alias("last_index"),
    )


class Numbering:
    """A function for `mapInArrow` that numbers entries by the interval in which they begin.

    It adds up the entries of one partition and number in each Arrow batch. `edges`: of each
    partition, by the index in `log`; others have one interval, 0.
    """

    def __init__(self, edges: Sequence[numpy.ndarray[Any, numpy.dtype[numpy.int64]]]) -> None:
        self._edges = edges

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from self._added(batch)

    def _added(self, batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyarrow import compute

        offset, rows, messages = (batch.column(name) for name in ("offset", "rows", "messages"))
        with_hole = compute.greater(compute.add(batch.column("last_index"), 1), messages)
        double = compute.greater(rows, messages)
        nothing = pyarrow.scalar(None, pyarrow.int64())
        table = pyarrow.table(
            {
                **{name: batch.column(name) for name in LOG},
                "number": self._numbers(batch),
                "rows": rows,
                "messages": messages,
                "holes": compute.cast(with_hole, pyarrow.int64()),
                "offset": offset,
                "first_hole": compute.if_else(with_hole, offset, nothing),
                "first_double": compute.if_else(double, offset, nothing),
            }
        )
        added = table.group_by([*LOG, "number"]).aggregate(list(_COUNTS.items()))
        named = {
            **{name: added[name] for name in (*LOG, "number")},
            **{name: added[f"{name}_{how}"] for name, how in _COUNTS.items()},
        }
        yield from pyarrow.table(named).to_batches()

    def _numbers(self, batch: pyarrow.RecordBatch) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
        partitions = batch.column("log").fill_null(-1).to_numpy(zero_copy_only=False)
        offsets = batch.column("offset").fill_null(0).to_numpy(zero_copy_only=False)
        numbers = numpy.zeros(len(partitions), numpy.int64)
        order = numpy.argsort(partitions, kind="stable")
        found, begins = numpy.unique(partitions[order], return_index=True)
        for partition, mine in zip(found.tolist(), numpy.split(order, begins[1:]), strict=True):
            if partition >= 0:
                numbers[mine] = numpy.searchsorted(
                    self._edges[partition], offsets[mine], side="right"
                )
        return numbers


_APPEND_ONLY = "delta.appendOnly"


def condition(spans: Sequence[Span], columns: Sequence[str]) -> str:
    """Return SQL that is true for exactly the rows of these offsets. `columns`: of the table.

    A row without an `incarnation` is of the partition's first incarnation.
    """
    incarnation = "0"
    if "incarnation" in columns:
        incarnation = "coalesce(`incarnation`, 0)"
    conditions = []
    for span in spans:
        conditions.append(
            f"({_partition_condition(span.partition)} "
            f"AND `offset` >= {span.from_offset} AND `offset` < {span.until_offset} "
            f"AND {incarnation} = {span.incarnation})"
        )
    return " OR ".join(conditions)


def _partition_condition(partition: TopicPartition) -> str:
    broker = "" if partition.broker_id is None else f" AND `broker_id` = {partition.broker_id}"
    return f"`topic` = {_text(partition.topic)} AND `partition` = {partition.partition}{broker}"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def condition_of(plan: Plan, table: DeltaTable) -> str:
    """Return the condition for a replay's plan and its table."""
    columns = [field.name for field in table.schema().fields]
    return condition(spans_of(plan), columns)


def replaceable(path: str, stored: Plan | None = None) -> DeltaTable:
    """Return the table in which rows are to be replaced. `stored`: the plan of a stored replay.

    Raises NotOurTable if it permits no deletions, LedgersDisagree if it is gone.
    """
    table = open_table(path)
    if table is None:
        raise LedgersDisagree(
            "There is no table in which rows could be replaced",
            path=path,
            action="Check who removed it",
        )
    if str(table.metadata().configuration.get(_APPEND_ONLY, "")).lower() == "true":
        message = "The table is append-only: no rows may be removed from it"
        action = (
            f"Check who set {_APPEND_ONLY}, and why; rows of such a table cannot be replaced. "
            "`--into PATH` writes the rows to another table"
        )
        if stored is not None:
            message = f"Plan {stored.number} is a stored replay, but the table is append-only"
            action = (
                f"Check who set {_APPEND_ONLY}, and why. Unset it, and the next run executes the "
                "replay, or give the replay up, and its rows stay as they are: "
                f"etl plans supersede CONF {stored.number} --reason ..."
            )
        raise NotOurTable(message, path=path, action=action)
    return table


def rows_there(
    spark: SparkSession, path: str, spans: Sequence[Span]
) -> Mapping[TopicPartition, int]:
    """Return the number of rows in each interval, of all writers; one interval per partition.

    All are 0 without a table. Raises as `open_table`.
    """
    table = open_table(path)
    found = {span.partition: 0 for span in spans}
    if table is None:
        return found
    names = [field.name for field in table.schema().fields]
    columns = ["topic", "partition"]
    has_broker = "broker_id" in names and any(partition.is_physical for partition in found)
    if has_broker:
        columns.append("broker_id")
    frame = spark.read.format("delta").option("versionAsOf", table.version()).load(spark_path(path))
    with rows_are_read(spark, path):
        counted = frame.where(condition(spans, names)).groupBy(*columns).count().collect()
    for row in counted:
        broker_id = row["broker_id"] if has_broker else None
        found[TopicPartition(row["topic"], row["partition"], broker_id)] = row["count"]
    return found


def rows_in_files(path: str, spans: Sequence[Span]) -> Mapping[TopicPartition, int] | None:
    """Return the same as `rows_there` without Spark, from the key columns of the table's files.

    None: Spark must count, as the table may have deletion vectors, lacks a column of the record's
    key, has a damaged file, or more files may hold these offsets than one process should read.
    """
    table = open_table(path)
    if table is None:
        return {span.partition: 0 for span in spans}
    ranges = [OffsetRange(span.partition, span.from_offset, span.until_offset) for span in spans]
    names = key_columns(table, physical=any(r.partition.is_physical for r in ranges))
    if names is None or _DELETION_VECTORS in features_of(table):
        return None
    topics = {span.partition.topic for span in spans}
    offsets = [(span.from_offset, span.until_offset) for span in spans]
    folder = open_log(rust_path(path))
    files = []
    for action in actions_of(table):
        if _may_hold(action, names, topics) and may_hold_offsets(action, names["offset"], offsets):
            files.append(TableFiles(path, folder, [added_of(action, names)], names))
    if len(files) > _FILES_READ_HERE:
        return None
    incarnations = {span.partition: span.incarnation for span in spans}
    found = {span.partition: 0 for span in spans}
    try:
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            for counts in pool.map(lambda one: count_rows(one, ranges, incarnations), files):
                for span, count in zip(spans, counts, strict=True):
                    found[span.partition] += count
    except Uncountable:
        return None
    return found


_DELETION_VECTORS = "deletionVectors"
_FILES_READ_HERE = 256
"""Spark reads more files in parallel, on all executors."""
_FILES_AT_ONCE = 4
_Counted = dict[tuple[Any, ...], tuple[int, int, int]]
"""By topic, broker, partition and incarnation: first offset, last offset, number of rows."""


def unaccounted_rows(
    path: str,
    topics: Collection[str],
    *,
    physical: bool,
    app_id: str = "",
    table: DeltaTable | None = None,
) -> tuple[HeldRows, ...] | None:
    """Return the rows of `topics` that no pipeline loaded into this table, sorted.

    None: no table, no files, or a pipeline has commits in it and the log no longer contains the
    plan of one. Topics that another pipeline loaded have rules of their own (`other_pipelines`).
    `app_id`: this pipeline, if it has commits there and never knew these topics. `table`: a version
    of the table, if it is open; else the newest. Raises NeedsDecision if a file cannot be read,
    TableUnreachable.
    """
    table = table or open_table(path)
    if table is None or not table.get_add_actions().num_rows:
        return None
    loaded = frozenset[str]()
    for pipeline in other_pipelines(path, app_id):
        if pipeline.topics is None:
            return None
        loaded |= pipeline.topics
    return held_rows(table, path, frozenset(topics) - loaded, physical=physical)


def held_rows(
    table: DeltaTable, path: str, topics: Collection[str], *, physical: bool
) -> tuple[HeldRows, ...]:
    """Return the rows of `topics` in the table, of all writers.

    None are returned if the table lacks a column of the record's key.
    """
    names = key_columns(table, physical=physical)
    if names is None or not topics:
        return ()
    found: _Counted = {}
    to_read = []
    may_be_deleted = _DELETION_VECTORS in features_of(table)
    for action in actions_of(table):
        if not _may_hold(action, names, topics):
            continue
        group = _by_statistics(action, names)
        if group is None or may_be_deleted:
            to_read.append(action)
        else:
            _add(found, *group)
    if to_read:
        _read_files(table, path, to_read, names, found)
    rows = []
    for key, counted in found.items():
        held = _held(key, counted) if key[0] in topics else None
        if held is not None:
            rows.append(held)
    return tuple(sorted(rows))


def _held(key: tuple[Any, ...], counted: tuple[int, int, int]) -> HeldRows | None:
    topic, broker_id, partition, incarnation = key
    first, last, rows = counted
    if min(partition, incarnation, first, broker_id or 0) < 0:
        return None  # no valid record
    return HeldRows(TopicPartition(topic, partition, broker_id), incarnation, first, last + 1, rows)


def _may_hold(action: Mapping[str, Any], names: Mapping[str, str], topics: Collection[str]) -> bool:
    """Return False if the statistics exclude all topics.

    Statistics truncate long texts, so bounds are compared, not equality.
    """
    if "topic" in action["partition"]:
        return action["partition"]["topic"] in topics
    low = action["min"].get(names["topic"])
    high = action["max"].get(names["topic"])
    if low is None or high is None:
        return True
    return any(low.encode() <= topic.encode() <= high.encode() for topic in topics)


def _by_statistics(
    action: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[tuple[Any, ...], tuple[int, int, int]] | None:
    """Return the rows of a file by its statistics; None unless it has one partition and topic."""
    bounds = {}
    for name, physical in names.items():
        if name != "message_index":
            bounds[name] = _bounds(action, name, physical)
    rows = action.get("num_records")
    incarnation = bounds.pop(INCARNATION, (0, 0))
    if incarnation is None and action["null_count"].get(names[INCARNATION]) == rows:
        incarnation = 0, 0
    if rows is None or incarnation is None or None in bounds.values():
        return None
    first, last = bounds.pop("offset")
    if any(low != high for low, high in (*bounds.values(), incarnation)):
        return None
    topic = bounds["topic"][0]
    if len(topic) >= TEXT_KEPT:  # the statistics may have truncated it
        return None
    broker_id = bounds["broker_id"][0] if "broker_id" in bounds else None
    return (topic, broker_id, bounds["partition"][0], incarnation[0]), (first, last, rows)


def _bounds(action: Mapping[str, Any], name: str, physical: str) -> Any:
    """Return the least and greatest value of a column without nulls; None if unknown."""
    if name in action["partition"]:
        value = action["partition"][name]
        return None if value is None else (value, value)
    low, high = action["min"].get(physical), action["max"].get(physical)
    if low is None or high is None or action["null_count"].get(physical) != 0:
        return None
    return low, high


def _read_files(
    table: DeltaTable,
    path: str,
    actions: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    found: _Counted,
) -> None:
    """Count the rows of these files. Raises NeedsDecision for one that cannot be read."""
    if _DELETION_VECTORS in features_of(table):
        counted = _by_query_engine(table, names)
        if counted is not None:
            for group in counted:
                _add(found, *group)
            return
    folder = open_log(rust_path(path))
    each = [TableFiles(path, folder, [added_of(action, names)], names) for action in actions]
    try:
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            for groups in pool.map(_counted_in, each):
                for group in groups:
                    _add(found, *group)
    except Uncountable as why:
        raise NeedsDecision(
            "The table has rows that no pipeline loaded, and their topics are unknown: " + str(why),
            path=path,
            action="Check the table's files, or set table.path to another table",
        ) from why


def _counted_in(files: TableFiles) -> list[tuple[tuple[Any, ...], tuple[int, int, int]]]:
    import pyarrow

    found: _Counted = {}
    for batch in files.rows():
        for group in _groups(pyarrow.Table.from_batches([batch])):
            _add(found, *group)
    return list(found.items())


def _groups(rows: pyarrow.Table) -> Iterator[tuple[tuple[Any, ...], tuple[int, int, int]]]:
    """Yield first offset, last offset and rows of each partition and incarnation of `rows`."""
    columns = ("topic", "broker_id", "partition", INCARNATION)
    keys = [name for name in columns if name in rows.column_names]
    grouped = rows.group_by(keys).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    for row in grouped.to_pylist():
        key = row["topic"], row.get("broker_id"), row["partition"], row[INCARNATION]
        yield key, (row["offset_min"], row["offset_max"], row["offset_count"])


def _by_query_engine(
    table: DeltaTable, names: Mapping[str, str]
) -> Iterable[tuple[tuple[Any, ...], tuple[int, int, int]]] | None:
    """Return the same for the whole table, without rows that deletion vectors mark.

    None: delta-rs cannot read the table. The query has no condition on the topic, because delta-rs
    takes a missing bound in the statistics for null and skips the file.
    """
    import pyarrow
    from deltalake import QueryBuilder

    incarnation = f'coalesce("{INCARNATION}", 0)' if INCARNATION in names else "0"
    broker = ", broker_id" if "broker_id" in names else ""
    query = (
        f'select topic{broker}, partition, {incarnation} as "life", '
        'min("offset") as "first", max("offset") as "last", count("offset") as "rows" '
        "from held where partition is not null and topic is not null "
        f"group by topic{broker}, partition, {incarnation}"
    )
    try:
        result = QueryBuilder().register("held", table).execute(query).read_all()
        rows = pyarrow.table(result).to_pylist()
    except Exception:
        # Failures of the query engine have no class of their own. The caller reads the files then,
        # with rows that were deleted.
        return None
    counted = []
    for row in rows:
        if row["rows"]:
            key = row["topic"], row.get("broker_id"), row["partition"], row["life"]
            counted.append((key, (row["first"], row["last"], row["rows"])))
    return counted


def _add(found: _Counted, key: tuple[Any, ...], counted: tuple[int, int, int]) -> None:
    first, last, rows = counted
    before = found.get(key)
    if before is not None:
        first, last, rows = min(first, before[0]), max(last, before[1]), rows + before[2]
    found[key] = first, last, rows
