"""Rows of physical logs that lie in a table as they were read, for `scan_entries`: in order, so
that none of them need be counted alone.

A run of rows is what one task wrote, or a part of it: in each step either the same entry and the
next index, or a later entry and the index
0. Inside a run no message is there twice and none is left out of an entry. So a log is right in
   itself where its runs, by their first rows,
follow one another in the same way; then the rows between two edges of the ledger are as many
messages. Of a log where they do not (rows that are double, missing from inside an entry, or in
another order) nothing is said here.

Owns finding runs in Arrow batches, and comparing each with the one before. There is a run for each
Arrow batch and log as a rule, so that Spark sorts thousands of them and not the rows; a table whose
rows are in no order has as many runs as rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

LOG = ("topic", "broker_id", "partition", "log_epoch")
"""The columns that name a log and its life. All are NULL in rows of no log."""
Log = tuple[str, int, int, int]
_RUN = ("number", "first_offset", "first_index", "last_offset", "last_index", "rows")


def ordered_stretches(keys: DataFrame, edges: Mapping[Log, Sequence[int]]) -> DataFrame:
    """One row for each log and number of a stretch between its edges, by log and number; one more
    for the rows of no log, all NULL.

    keys    the columns of `LOG`, as string and bigints, with `offset` and `message_index`
    edges   of each log that is expected, ascending; other logs have one stretch, 0

    Columns: those of `LOG`, `number`, `rows`, `offset` (the first entry), and `is_ordered`, whether
    the runs of this stretch go on where the ones before end. Where it is false in one stretch of a
    log, the rows of the whole log are still to be counted.
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
    `ordered_stretches` has them. Edges end a run.
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
    """Whether each row but the first differs from the one before in any of the columns."""
    found: NDArray[numpy.bool_] = numpy.logical_or.reduce(
        [column[1:] != column[:-1] for column in columns]
    )
    return found
