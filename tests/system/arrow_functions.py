"""Arrow transforms of the system tests, where workers of all kinds find them."""

from __future__ import annotations

import os
import tempfile

import pyarrow as pa
from pyarrow import compute

from etl.reader import run_task

UNLUCKY = os.path.join(tempfile.gettempdir(), f"unlucky-of-tests-{os.getuid()}")
"""While this file is there; every worker knows its name."""


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


def begun(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the task of each row, for tasks of this process that reported their start; lists and
    maps of it, too.
    """
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


def unlucky(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fails on rows as long as that file is there, and not on none."""
    if batch.num_rows and os.path.exists(UNLUCKY):
        raise ValueError("no luck")
    return batch


def narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that cannot be proven."""
    return batch.drop_columns(["offset"])
