"""Which rows are in a table?

Queries that read rows, never file statistics, which are claims of the writer. Their results are
judged in etl/audit/audit.py.

Kafka 0.8 and later: bitmaps of offsets per partition.

Jafka: rows come in runs, each a part of what one task wrote: the same entry and the next index, or
a later entry and index 0. A partition whose runs, ordered by first row, continue the same way has
each message once, and rows between two edges of the ledger are counted directly. Of any other
partition Spark counts the rows of each entry and sums them between edges. The driver receives as
many rows as the ledger has intervals.

Replays: the `replaceWhere` condition and the number of rows that meet it. One overwrite is one
commit with the plan's transaction, and Delta rejects rows that do not meet the condition.

Rows that no pipeline of ours loaded: first and last offset of each partition, from statistics where
they suffice, else from the key columns of the files.
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

from etl.audit.audit import (
    BUCKET_OFFSETS,
    AuditedLog,
    Bucket,
    EntryInterval,
    Expected,
    LogFindings,
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
from etl.io.delta.file_statistics import TEXT_KEPT
from etl.io.delta.log import open_log
from etl.io.delta.recover_results import (
    LOG_EPOCH,
    TableFiles,
    Uncountable,
    actions_of,
    added_of,
    key_columns,
)
from etl.io.delta.stores import unreadable
from etl.io.delta.table import features_of, open_table, rust_path, spark_path
from etl.io.delta.table_state import other_pipelines
from etl.model.columns import misfit, names_of_key, row_key
from etl.model.partitions import BrokerPartition
from etl.model.plans import HeldRows, Plan

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, Row, SparkSession


Intervals = Mapping[AuditedLog, Sequence[tuple[int, int]]]
"""Offsets [from, until) of each log."""
_FROM_STATISTICS = "spark.databricks.delta.optimizeMetadataQuery.enabled"
_LOG_COLUMNS = ("topic", "log_epoch", "partition")
_DOUBLES_SHOWN = 5
_STRANGERS_SHOWN = 3


@dataclass(slots=True)
class Scan:
    """One scan of all rows of a table at `delta_version`. Raises TableUnreachable, SettingsError."""

    spark: SparkSession
    path: str
    delta_version: int | None = None
    rows_of_no_log: int = 0
    """Rows without topic, partition or offset, or with numbers that no log has; known when
    `buckets` has come to its end.
    """
    before: Intervals = field(default_factory=dict)
    """Offsets [from, until) with rows from before plan 1: left out."""

    def findings(self, expected: Mapping[AuditedLog, Expected]) -> Iterator[LogFindings]:
        """Return the rows compared with the expected ones. Raises as `audit`, too."""
        return audit(expected, self.buckets())

    def doubles(self, found: LogFindings) -> list[tuple[tuple[int, ...], int]]:
        """Return the first duplicate offsets of a partition, each with its number of rows."""
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
        """Return the key columns of some rows without a valid record."""
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
    """Return the key columns of some rows without a valid record."""
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
    """Make Spark read rows: Delta answers a plain count from file statistics by default. An
    unreadable file is named.
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

    whole, key = _is_of_a_log(physical=physical), row_key(physical=physical)
    return _load(spark, path, delta_version, physical=physical).select(
        [f.when(whole, f.col(name)).alias(name) for name in key]
    )


def _is_of_a_log(*, physical: bool) -> Column:
    """Return the condition of a valid record. No broker has an offset above 2^63 - 2, so that an
    end is a number, too.
    """
    from pyspark.sql import functions as f

    numbers = (f.col(name) >= 0 for name in row_key(physical=physical) if name != "topic")
    in_bounds = functools.reduce(operator.and_, numbers, f.col("offset") < 2**63 - 1)
    return f.coalesce(f.col("topic").isNotNull() & in_bounds, f.lit(False))


def _load(
    spark: SparkSession, path: str, delta_version: int | None, *, physical: bool
) -> DataFrame:
    """Return the key columns; a table whose transform dropped `log_epoch` has one incarnation."""
    from pyspark.sql import functions as f

    reader = spark.read.format("delta")
    if delta_version is not None:
        reader = reader.option("versionAsOf", delta_version)
    frame = reader.load(spark_path(path))
    wrong = misfit(frame.dtypes, physical=physical)
    if wrong:
        check = f"Check the transform: it must leave {names_of_key(physical=physical)} as they are"
        raise SettingsError(f"Nobody can prove the table's rows: {wrong}", path=path, action=check)
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


LOG = ("topic", "broker_id", "partition", "log_epoch")
"""The columns that name a log and its life. All are NULL in rows of no log."""
Log = tuple[str, int, int, int]
_RUN = ("number", "first_offset", "first_index", "last_offset", "last_index", "rows")


def intervals_in_order(keys: DataFrame, edges: Mapping[Log, Sequence[int]]) -> DataFrame:
    """Return a row for each partition and interval between its edges, sorted, and one with NULL
    keys for rows without a record.

    `keys`: the columns of `LOG`, as string and bigints, with `offset` and `message_index`. `edges`:
    of each expected partition, ascending; others have one interval, 0. Columns: those of `LOG`,
    `number`, `rows`, `offset` (the first entry), `is_ordered` (the runs of this interval are
    consecutive). If it is false once, the rows of the whole partition must be counted.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    kinds = {"topic": "string"}
    schema = ", ".join(f"{name} {kinds.get(name, 'bigint')}" for name in (*LOG, *_RUN))
    runs = keys.mapInArrow(
        Runs({log: numpy.array(some, numpy.int64) for log, some in edges.items()}), schema
    )
    in_order = Window.partitionBy(*LOG).orderBy("first_offset", "first_index")
    before_offset, before_index = (
        f.lag(name).over(in_order) for name in ("last_offset", "last_index")
    )
    goes_on = (
        f.when(before_offset.isNull(), f.col("first_index") == 0)
        .when(before_offset == f.col("first_offset"), f.col("first_index") == before_index + 1)
        .otherwise((before_offset < f.col("first_offset")) & (f.col("first_index") == 0))
    )
    compared = runs.withColumn("goes_on", f.col("topic").isNull() | goes_on)
    added = compared.groupBy(*LOG, "number").agg(
        f.sum("rows").alias("rows"),
        f.min("first_offset").alias("offset"),
        f.min("goes_on").alias("is_ordered"),
    )
    return added.orderBy(*LOG, "number")


class Runs:
    """The runs of rows in Arrow batches, as Spark's `mapInArrow` takes it; `edges` as
    `intervals_in_order` has them. Edges end a run.
    """

    def __init__(self, edges: Mapping[Log, NDArray[numpy.int64]]) -> None:
        self._edges = edges

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self._runs(batch)

    def _runs(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        import pyarrow

        numbers = {
            name: _int64(batch.column(name)) for name in (*LOG[1:], "offset", "message_index")
        }
        topics = batch.column("topic").dictionary_encode()
        logs = [_int64(topics.indices), *(numbers[name] for name in LOG[1:])]
        offset, index = numbers["offset"], numbers["message_index"]
        another_log = _changes(*logs)
        stretch = self._stretches(batch, offset, another_log)
        later = (offset[1:] > offset[:-1]) & (index[1:] == 0)
        next_one = (offset[1:] == offset[:-1]) & (index[1:] == index[:-1] + 1)
        nowhere = logs[0][1:] < 0
        goes_on = ~another_log & (later | next_one | nowhere) & (stretch[1:] == stretch[:-1])
        begins = numpy.concatenate(([0], numpy.flatnonzero(~goes_on) + 1))
        ends = numpy.concatenate((begins[1:], [batch.num_rows]))
        found = {
            "number": stretch[begins],
            "first_offset": offset[begins],
            "first_index": index[begins],
            "last_offset": offset[ends - 1],
            "last_index": index[ends - 1],
            "rows": ends - begins,
        }
        return pyarrow.record_batch(
            {
                **{name: batch.column(name).take(pyarrow.array(begins)) for name in LOG},
                **{name: pyarrow.array(found[name], pyarrow.int64()) for name in _RUN},
            }
        )

    def _stretches(
        self,
        batch: pyarrow.RecordBatch,
        offset: NDArray[numpy.int64],
        another_log: NDArray[numpy.bool_],
    ) -> NDArray[numpy.int64]:
        """How many edges of its log lie at or below each row's entry."""
        found = numpy.zeros(batch.num_rows, numpy.int64)
        begins = [0, *(numpy.flatnonzero(another_log) + 1).tolist(), batch.num_rows]
        heads = [batch.column(name).take(begins[:-1]).to_pylist() for name in LOG]
        for log, begin, end in zip(zip(*heads), begins, begins[1:]):
            edges = self._edges.get(log)
            if edges is not None:
                found[begin:end] = numpy.searchsorted(edges, offset[begin:end], side="right")
        return found


def _int64(column: pyarrow.Array) -> NDArray[numpy.int64]:
    """-1 for NULL: no log has such a number, and no topic such a place."""
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
    """One scan of all rows of a table at `delta_version`. Raises TableUnreachable, SettingsError."""

    spark: SparkSession
    path: str
    delta_version: int | None = None
    rows_of_no_log: int = 0
    """Rows that lack something of their key, or with numbers that no log has; known when `findings`
    has come to its end.
    """
    before: Intervals = field(default_factory=dict)
    """Offsets [from, until) with rows from before plan 1: left out."""

    def findings(self, expected: Mapping[AuditedLog, Expected]) -> Iterator[LogFindings]:
        """Return the rows compared with the expected ones. Raises as `audit_entries`, too."""
        edges = {audited: edges_of(audited, one) for audited, one in expected.items()}
        return audit_entries(expected, self.stretches(edges))

    def stretches(
        self, edges: Mapping[AuditedLog, Sequence[int]]
    ) -> Iterator[tuple[AuditedLog, EntryInterval]]:
        """The rows that the table holds, added up between the edges of each log, those of a log
        together and ordered by edge.
        """
        with rows_are_read(self.spark, self.path):
            keys = without_intervals(_keys(self.spark, self.path, self.delta_version), self.before)
            to_count = list[AuditedLog]()
            found = intervals_in_order(
                keys, {_log_of(audited): some for audited, some in edges.items()}
            )
            for audited, rows in groupby(found.toLocalIterator(), key=_audited):
                several = list(rows)
                if audited is None:
                    self.rows_of_no_log = several[0]["rows"]
                elif all(row["is_ordered"] for row in several):
                    yield from (
                        (
                            audited,
                            EntryInterval(row["number"], row["rows"], row["rows"], row["offset"]),
                        )
                        for row in several
                    )
                else:
                    to_count.append(audited)
            if to_count:
                yield from self._counted(
                    keys, {audited: edges.get(audited, ()) for audited in to_count}
                )

    def _counted(
        self, keys: DataFrame, edges: Mapping[AuditedLog, Sequence[int]]
    ) -> Iterator[tuple[AuditedLog, EntryInterval]]:
        """Return the same for the partitions of `edges`, counted message by message."""
        for row in _stretches(keys, edges).toLocalIterator():
            audited = _audited(row)
            if audited is not None:
                yield (
                    audited,
                    EntryInterval(
                        row["number"],
                        row["rows"],
                        row["messages"],
                        row["offset"],
                        row["holes"],
                        row["first_hole"],
                        row["first_double"],
                    ),
                )

    def doubles(self, found: LogFindings) -> list[tuple[tuple[int, ...], int]]:
        """Entry and index of the first messages of a log that have more than one row, each with its
        number of rows.
        """
        from pyspark.sql import functions as f

        if not found.double_places:
            return []
        wanted = {
            **found.audited.log.place,
            "log_epoch": found.audited.log_epoch,
            "offset": found.double_places[0],
        }
        with rows_are_read(self.spark, self.path):
            rows = without_intervals(
                read_keys(self.spark, self.path, self.delta_version, physical=True), self.before
            )
            for name, value in wanted.items():
                rows = rows.where(f.col(name) == value)
            counted = (
                rows.groupBy("message_index").agg(f.count(f.lit(1)).alias("rows")).where("rows > 1")
            )
            first = counted.orderBy("message_index").limit(_DOUBLES_SHOWN).collect()
            return [((found.double_places[0], row["message_index"]), row["rows"]) for row in first]

    def doubled_span(self, found: LogFindings) -> tuple[int, int] | None:
        """Return None: rows do not tell where the last duplicate entry ends, which a replay needs."""
        return None

    def first_of_no_log(self) -> list[dict[str, Any]]:
        """Return the key columns of some rows without a valid record."""
        return first_of_no_log(self.spark, self.path, self.delta_version, physical=True)


def _audited(row: Row) -> AuditedLog | None:
    """Return the partition of a row; None: without a record."""
    if row["topic"] is None:
        return None
    return AuditedLog(
        BrokerPartition(row["topic"], row["partition"], row["broker_id"]), row["log_epoch"]
    )


def _log_of(audited: AuditedLog) -> Log:
    log = audited.log
    return log.topic, log.broker_id or 0, log.partition, audited.log_epoch


def _keys(spark: SparkSession, path: str, delta_version: int | None) -> DataFrame:
    """The key of every row, in the same types whatever the table has."""
    from pyspark.sql import functions as f

    keys = read_keys(spark, path, delta_version, physical=True)
    return keys.select(
        [
            f.col(name).cast(_TYPES.get(name, "bigint")).alias(name)
            for name in (*_ENTRY, "message_index")
        ]
    )


def _stretches(keys: DataFrame, edges: Mapping[AuditedLog, Sequence[int]]) -> DataFrame:
    """One row for each log of `edges` and number."""
    from pyspark.sql import functions as f

    logs = list(edges)
    schema = ", ".join(f"{name} {_TYPES.get(name, 'bigint')}" for name in (*LOG, "log"))
    named = keys.sparkSession.createDataFrame(
        [(*_log_of(audited), at) for at, audited in enumerate(logs)], schema
    )
    entries = _entries(keys.join(f.broadcast(named), list(LOG), "inner"))
    columns = {**dict.fromkeys((*LOG, "number"), "first"), **_COUNTS}
    numbered = entries.mapInArrow(
        Numbering([numpy.array(edges[log], numpy.int64) for log in logs]),
        ", ".join(f"{name} {_TYPES.get(name, 'bigint')}" for name in columns),
    )
    together = {"sum": f.sum, "min": f.min}
    added = [together[how](name).alias(name) for name, how in _COUNTS.items()]
    return numbered.groupBy(*LOG, "number").agg(*added).orderBy(*LOG, "number")


def _entries(keys: DataFrame) -> DataFrame:
    """One row for each entry: its rows, its messages, and the index of the last of them. `log` is
    the place of its log.
    """
    from pyspark.sql import functions as f

    return keys.groupBy(*_ENTRY, "log").agg(
        f.count(f.lit(1)).alias("rows"),
        f.countDistinct("message_index").alias("messages"),
        f.max("message_index").alias("last_index"),
    )


class Numbering:
    """Numbers entries by the interval that they begin in, and adds up those of one partition and
    number in each Arrow batch. `edges` are those of each partition, by its place in `log`; others
    have one interval, 0.
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
        logs = batch.column("log").fill_null(-1).to_numpy(zero_copy_only=False)
        offsets = batch.column("offset").fill_null(0).to_numpy(zero_copy_only=False)
        numbers = numpy.zeros(len(logs), numpy.int64)
        order = numpy.argsort(logs, kind="stable")
        found, begins = numpy.unique(logs[order], return_index=True)
        for log, mine in zip(found.tolist(), numpy.split(order, begins[1:]), strict=True):
            if log >= 0:
                numbers[mine] = numpy.searchsorted(self._edges[log], offsets[mine], side="right")
        return numbers


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
    """Return the condition for a replay's plan and its table."""
    return condition(spans_of(plan), [field.name for field in table.schema().fields])


def replaceable(path: str) -> DeltaTable:
    """Return the table whose rows are replaced. Raises NotOurTable if it permits no deletions,
    LedgersDisagree if it is gone.
    """
    table = open_table(path)
    if table is None:
        raise LedgersDisagree(
            "There is no table whose rows could be replaced",
            path=path,
            action="Check who removed it",
        )
    if str(table.metadata().configuration.get(_APPEND_ONLY, "")).lower() == "true":
        check = f"Check who set {_APPEND_ONLY}, and why; rows of such a table cannot be replaced. `--into PATH` makes the rows in another table"
        raise NotOurTable(
            "The table is append-only: nobody may take rows out of it", path=path, action=check
        )
    return table


def rows_there(
    spark: SparkSession, path: str, spans: Sequence[Span]
) -> Mapping[BrokerPartition, int]:
    """Return the rows in each interval, whoever wrote them; one interval per partition. None
    without a table. Raises as `open_table`.
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


_DELETION_VECTORS = "deletionVectors"
_FILES_AT_ONCE = 4
_Counted = dict[tuple[Any, ...], tuple[int, int, int]]
"""By topic, broker, partition and life of the log: first and last offset, and the number of rows.
"""


def unaccounted_rows(
    path: str, topics: Collection[str], *, physical: bool, app_id: str = ""
) -> tuple[HeldRows, ...] | None:
    """Return the rows of `topics` that no pipeline of ours loaded into this table, sorted. None: no
    table, no files, or a log that no longer says what one of its pipelines loaded.

    Topics that another pipeline loaded have rules of their own (`other_pipelines`). `app_id`: this
    pipeline, if it has commits there and never knew these topics. Raises NeedsDecision if a file
    cannot be read, TableUnreachable.
    """
    table = open_table(path)
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
    """Return the rows of `topics` in the table, whoever wrote them; none if the table lacks a
    column that names a record.
    """
    names = key_columns(table, physical=physical)
    if names is None or not topics:
        return ()
    found: _Counted = {}
    to_read, may_be_deleted = [], _DELETION_VECTORS in features_of(table)
    for action in actions_of(table):
        if not _may_hold(action, names, topics):
            continue
        one = _by_statistics(action, names)
        if one is None or may_be_deleted:
            to_read.append(action)
        else:
            _add(found, *one)
    if to_read:
        _read_files(table, path, to_read, names, found)
    held = (_held(key, counted) for key, counted in found.items() if key[0] in topics)
    return tuple(sorted(one for one in held if one is not None))


def _held(key: tuple[Any, ...], counted: tuple[int, int, int]) -> HeldRows | None:
    topic, broker_id, partition, life = key
    first, last, rows = counted
    if min(partition, life, first, broker_id or 0) < 0:
        return None  # the row names no record
    return HeldRows(BrokerPartition(topic, partition, broker_id), life, first, last + 1, rows)


def _may_hold(action: Mapping[str, Any], names: Mapping[str, str], topics: Collection[str]) -> bool:
    """False if the statistics exclude all topics. Long texts are truncated in them, so bounds are
    compared, not equality.
    """
    if "topic" in action["partition"]:
        return action["partition"]["topic"] in topics
    low, high = action["min"].get(names["topic"]), action["max"].get(names["topic"])
    if low is None or high is None:
        return True
    return any(low.encode() <= topic.encode() <= high.encode() for topic in topics)


def _by_statistics(
    action: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[tuple[Any, ...], tuple[int, int, int]] | None:
    """Return what the file holds if that is one partition of one topic, by its statistics; else
    None.
    """
    bounds = {
        name: _bounds(action, name, physical)
        for name, physical in names.items()
        if name != "message_index"
    }
    rows, life = action.get("num_records"), bounds.get(LOG_EPOCH, (0, 0))
    if life is None and action["null_count"].get(names[LOG_EPOCH]) == rows:
        life = 0, 0
    if (
        rows is None
        or life is None
        or any(bounds[name] is None for name in bounds if name != LOG_EPOCH)
    ):
        return None
    one_value = {
        name: found for name, found in bounds.items() if found and name not in ("offset", LOG_EPOCH)
    }
    if (
        any(low != high for low, high in (*one_value.values(), life))
        or len(bounds["topic"][0]) >= TEXT_KEPT
    ):
        return None
    broker_id = one_value["broker_id"][0] if "broker_id" in one_value else None
    first, last = bounds["offset"]
    return (one_value["topic"][0], broker_id, one_value["partition"][0], life[0]), (
        first,
        last,
        rows,
    )


def _bounds(action: Mapping[str, Any], name: str, physical: str) -> Any:
    """Least and greatest value of a column without a null; None if they are not known."""
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
        message = f"The table has rows that no pipeline of ours loaded, and it is not known of which topics: {why}"
        check = "Check the table's files; or another table: table.path"
        raise NeedsDecision(message, path=path, action=check) from why


def _counted_in(files: TableFiles) -> list[tuple[tuple[Any, ...], tuple[int, int, int]]]:
    import pyarrow

    found: _Counted = {}
    for batch in files.rows():
        for group in _groups(pyarrow.Table.from_batches([batch])):
            _add(found, *group)
    return list(found.items())


def _groups(rows: pyarrow.Table) -> Iterator[tuple[tuple[Any, ...], tuple[int, int, int]]]:
    """First offset, last offset and rows of each partition and life of `rows`."""
    keys = [
        name for name in ("topic", "broker_id", "partition", LOG_EPOCH) if name in rows.column_names
    ]
    grouped = rows.group_by(keys).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    for row in grouped.to_pylist():
        key = row["topic"], row.get("broker_id"), row["partition"], row[LOG_EPOCH]
        yield key, (row["offset_min"], row["offset_max"], row["offset_count"])


def _by_query_engine(
    table: DeltaTable, names: Mapping[str, str]
) -> Iterable[tuple[tuple[Any, ...], tuple[int, int, int]]] | None:
    """Return the same for the whole table without rows that deletion vectors mark; None if delta-rs
    cannot read the table. The query has no condition, because delta-rs takes a missing bound for
    null and skips the file.
    """
    import pyarrow
    from deltalake import QueryBuilder

    life = f'coalesce("{LOG_EPOCH}", 0)' if LOG_EPOCH in names else "0"
    broker = ", broker_id" if "broker_id" in names else ""
    query = (
        f'select topic{broker}, partition, {life} as "life", min("offset") as "first", max("offset") as "last", count("offset") as "rows" '
        f"from held where partition is not null and topic is not null group by topic{broker}, partition, {life}"
    )
    try:
        rows = pyarrow.table(
            QueryBuilder().register("held", table).execute(query).read_all()
        ).to_pylist()
    except Exception:  # the query engine's failures have no class of their own; the files are read then, with rows that were deleted
        return None
    return [
        (
            (row["topic"], row.get("broker_id"), row["partition"], row["life"]),
            (row["first"], row["last"], row["rows"]),
        )
        for row in rows
        if row["rows"]
    ]


def _add(found: _Counted, key: tuple[Any, ...], counted: tuple[int, int, int]) -> None:
    first, last, rows = counted
    before = found.get(key)
    if before is not None:
        first, last, rows = min(first, before[0]), max(last, before[1]), rows + before[2]
    found[key] = first, last, rows
