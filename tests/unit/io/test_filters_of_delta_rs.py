"""Statistics of files that tasks wrote, as delta-rs's PyArrow dataset uses them (pandas,
`filters=`): if only some bounds are missing, it reads them as null and skips the file.
`tests/spark/test_data_skipping.py` has the same for Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import compute

from etl.io.delta.append import ArrowWriter, Destination, Load, append
from etl.io.delta.data_files import DataFiles
from etl.io.delta.loaded_plans import Result
from etl.model.plans import FileOptions, Written
from tests.builders import plain_plan

DIGITS, DAY, AT = pa.decimal128(38, 10), pa.date32(), pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class OneFileEach:
    """Tasks, each of which writes one of these batches."""

    batches: Sequence[pa.RecordBatch]

    def write(self, wanted: FileOptions) -> Sequence[Written]:
        found = []
        for task, batch in enumerate(self.batches):
            files = DataFiles(wanted, task=task)
            files.take(batch)
            found.append(Written((), files.end(), {}, made=batch.num_rows))
        return found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array(["a", "b"]), pa.array(["c", "d" * 5000])),
        (pa.array([1.0, 2.0]), pa.array([3.0, float("nan")])),
        (pa.array([1.0, 2.0]), pa.array([float("-inf"), 0.5])),
        (
            pa.array([1, 2], pa.int64()).cast(DIGITS),
            pa.array([Decimal("0.00001"), Decimal("-0.00001")], DIGITS),
        ),
        (
            pa.array([1, 2], pa.int64()).cast(DIGITS),
            pa.array([Decimal("1234567890123456789.5"), Decimal(-3)], DIGITS),
        ),
        (
            pa.array([1, 2], pa.int64()).cast(DIGITS),
            pa.array([Decimal(10**28 - 1), Decimal(3)], DIGITS),
        ),
        (pa.array([0, 1], pa.int32()).cast(DAY), pa.array([2, 3_000_000], pa.int32()).cast(DAY)),
        (pa.array([0, 1], AT), pa.array([2, 2**62], AT)),
        (pa.array([True, True]), pa.array([True, False])),
        (pa.array([1, 2]), pa.array([None, None], pa.int64())),
    ],
    ids=[
        "long text",
        "NaN",
        "infinite",
        "tiny",
        "many digits",
        "as many as there are",
        "day",
        "time",
        "boolean",
        "nulls",
    ],
)
def test_each_value_is_found_whatever_statistics_of_others_lack(
    tmp_path: Path, first: pa.Array, second: pa.Array
) -> None:
    batches = [
        pa.record_batch({"n": pa.array([at, at]), "found": values})
        for at, values in enumerate((first, second))
    ]
    load = Load(ArrowWriter(made=batches[0].schema), OneFileEach(batches))
    assert (
        append(load, plain_plan(ranges=()), Destination(str(tmp_path / "table"), "app")).result
        is Result.APPLIED
    )
    table = DeltaTable(tmp_path / "table").to_pyarrow_dataset()
    for value in {*first, *second}:
        of: Any = compute.field("found")
        filters = of == value if value.is_valid else of.is_null()
        every = table.to_table().filter(filters)
        assert table.to_table(filter=filters).num_rows == every.num_rows, value
    assert table.to_table(filter=compute.field("n") == 1).num_rows == 2
