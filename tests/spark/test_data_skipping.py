"""Statistics of files that tasks wrote, as Spark uses them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.io.delta.append import ArrowWriter, Destination, Load, append
from etl.io.delta.data_files import DataFiles
from etl.io.delta.loaded_plans import Result
from etl.model.plans import FileOptions, Written
from tests.builders import plain_plan

MICROS = 1_700_000_000_123_456
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "real": pa.float64(),
        "money": pa.decimal128(10, 2),
        "large": pa.decimal128(30, 3),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "wall": pa.timestamp("us"),
        "text": pa.string(),
        "yes": pa.bool_(),
        "inner": pa.struct([("n", pa.int32()), ("text", pa.string())]),
        "country": pa.string(),
        "flag": pa.bool_(),
        "born": pa.date32(),
    }
)


def row(n: int, **changes: Any) -> dict[str, Any]:
    micros = MICROS + n * 1_000_001
    moment = datetime.fromtimestamp(micros // 10**6, UTC).replace(microsecond=micros % 10**6)
    return {
        "n": n,
        "real": n / 7,
        "money": Decimal(n) / 4,
        "large": Decimal(n) * 10**20 + Decimal("0.125"),
        "day": date(1900 + n, 1, 31),
        "at": moment,
        "wall": moment.replace(tzinfo=None),
        "text": f"{'é' * 40}{n:03d}",
        "yes": n % 2 == 0,
        "inner": {"n": n, "text": f"t{n}"},
        "country": f"c{n % 2}",
        "flag": n % 2 == 0,
        "born": date(2000, 1, 1 + n % 2),
        **changes,
    }


LACKED = ("real", "money", "at", "text", "yes", "inner")
"""Columns that the last file does not have, because none of its rows has a value in them."""
NO_PARTITION: dict[str, Any] = {"country": "", "flag": None, "born": None}
FILES: tuple[list[dict[str, Any]], ...] = (
    [row(n) for n in range(1, 9)],
    [row(n) for n in range(9, 17)],
    [
        row(20, real=math.nan),
        row(21, real=-0.0, text=None, inner=None),
        row(22, real=1.0, at=None, day=None),
    ],
    [
        row(30, real=math.inf, money=None, inner={"n": None, "text": None}, **NO_PARTITION),
        row(31, country="a b/c=d%"),
    ],
    [row(40, **dict.fromkeys(LACKED)), row(41, **dict.fromkeys(LACKED))],
)


class OneFileEach:
    """Tasks, each of which writes the rows of one of `FILES`."""

    def write(self, wanted: FileOptions) -> Sequence[Written]:
        found = []
        for task, rows in enumerate(FILES):
            files = DataFiles(wanted, task=task)
            files.take(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
            found.append(Written((), files.end(), {}, made=len(rows)))
        return found


FILTERS = [
    "real > 5.0",
    f"at >= timestamp_micros({MICROS + 8_000_008})",
    "inner.n = 31",
    "money is null",
    "inner is null",
]
"""Each finds rows of a file that slightly too tight bounds, or wrong null counts, would skip."""


def test_a_filter_finds_the_same_rows_whether_files_are_passed_over_or_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One time without data skipping by log and footers."""
    path = str(tmp_path / "table")
    load = Load(ArrowWriter(made=SCHEMA), OneFileEach())
    destination = Destination(path, "app", ("country", "flag", "born"))
    outcome = append(load, plain_plan(ranges=()), destination)
    assert outcome.result is Result.APPLIED
    with skipping(spark, "false"):
        rows = spark.read.format("delta").load(path)
        [every] = rows.selectExpr(*(f"count_if({each})" for each in FILTERS)).collect()
    with skipping(spark, "true"):
        found = one_by_one(spark, path, FILTERS)
    assert dict(zip(FILTERS, found, strict=True)) == dict(zip(FILTERS, every, strict=True))
    assert found[3:] == [3, 3], "columns that a file lacks are null for Spark"
    assert DeltaTable(path).to_pyarrow_table(columns=["n"], filters=[("n", ">", 16)]).num_rows == 7


@contextlib.contextmanager
def skipping(spark: SparkSession, value: str) -> Iterator[None]:
    keys = ("spark.databricks.delta.stats.skipping", "spark.sql.parquet.filterPushdown")
    before = {key: spark.conf.get(key, "true") for key in keys}
    try:
        for key in keys:
            spark.conf.set(key, value)
        yield
    finally:
        for key, was in before.items():
            spark.conf.set(key, str(was))


def one_by_one(spark: SparkSession, path: str, filters: list[str]) -> list[int]:
    """Each filter as a query, all of them as one job."""
    spark.read.format("delta").load(path).createOrReplaceTempView("skipped")
    every = " union all ".join(
        f"select {i} i, count(*) c from skipped where {each}" for i, each in enumerate(filters)
    )
    return [found.c for found in sorted(spark.sql(every).collect(), key=lambda one: one.i)]
