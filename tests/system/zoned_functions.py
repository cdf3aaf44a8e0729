"""Transforms of the tests of time zones: columns that a local time zone could change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow
from pyarrow import compute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def hours(frame: DataFrame) -> DataFrame:
    """Add what Spark and a Python function of its workers make of a moment and of a time without a
    zone.
    """
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


def local_hours(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Add what Arrow makes of a moment, and the hour of it on the clock of the process."""
    moments = batch.column("timestamp")
    micros = moments.cast(pyarrow.int64()).to_pylist()
    on_the_clock = [time.localtime(one / 1_000_000).tm_hour for one in micros]
    made = batch.append_column("hour", compute.hour(moments).cast(pyarrow.int32()))
    made = made.append_column("date", moments.cast(pyarrow.date32()))
    made = made.append_column("text", compute.strftime(moments, format="%Y-%m-%d %H:%M:%S"))
    return made.append_column("hour_on_the_clock", pyarrow.array(on_the_clock, pyarrow.int32()))
