"""Transforms of the tests, where workers of all kinds find them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import compute

from etl.reader import run_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Columns of many kinds; the value as text, in types that Delta has under other names."""
    size = compute.binary_length(batch["value"])
    offset = batch["offset"]
    more = {
        "size": size.cast(pa.int16()),
        "half": compute.divide(offset.cast(pa.float64()), 2.0),
        "kind": compute.if_else(
            compute.equal(compute.bit_wise_and(offset, 1), 0), "even", "odd"
        ).dictionary_encode(),
        "day": batch["timestamp"].cast(pa.timestamp("us")).cast(pa.date32()),
        "wall": batch["timestamp"].cast(pa.timestamp("us")),
        "price": offset.cast(pa.decimal128(19, 0)),
        "inner": pa.StructArray.from_arrays([offset, size], ["offset", "size"]),
    }
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *more.values()], names=[*batch.schema.names, *more]
    )


def tens(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out every tenth offset."""
    last_digit = compute.subtract(
        batch["offset"], compute.multiply(compute.divide(batch["offset"], 10), 10)
    )
    return batch.filter(compute.not_equal(last_digit, 3))


def begun(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The task of each row, for tasks that reported their start; also as lists and maps."""
    task = pa.array([run_task._tasks] * batch.num_rows, pa.int64())
    more = {
        "task": task,
        "all": pa.array([[n] for n in task.to_pylist()], pa.list_(pa.int64())),
        "by_name": pa.array(
            [{"task": n} for n in task.to_pylist()], pa.map_(pa.string(), pa.int64())
        ),
    }
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *more.values()], names=[*batch.schema.names, *more]
    )


def hours(frame: DataFrame) -> DataFrame:
    """What Spark and Python make of a moment and of a time without a zone."""
    from pyspark.sql import functions

    in_python = functions.udf(lambda moment: moment.hour, "int")
    return (
        frame.withColumn("hour", functions.hour("timestamp"))
        .withColumn("date", functions.to_date("timestamp"))
        .withColumn("text", functions.date_format("timestamp", "yyyy-MM-dd HH:mm"))
        .withColumn(
            "parsed",
            functions.unix_seconds(functions.to_timestamp(functions.lit("2026-03-02 00:30:00"))),
        )
        .withColumn("hour_in_python", in_python("timestamp"))
    )


def local_hours(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add what Arrow makes of a moment, and the hour of it on the clock of the process."""
    moments = batch.column("timestamp")
    micros = moments.cast(pa.int64()).to_pylist()
    on_the_clock = [time.localtime(one / 1_000_000).tm_hour for one in micros]
    made = batch.append_column("hour", compute.hour(moments).cast(pa.int32()))
    made = made.append_column("date", moments.cast(pa.date32()))
    made = made.append_column("text", compute.strftime(moments, format="%Y-%m-%d %H:%M:%S"))
    return made.append_column("hour_on_the_clock", pa.array(on_the_clock, pa.int32()))
