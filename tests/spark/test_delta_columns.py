"""The columns that Delta accepts, compared with `etl.io.delta.table_shape`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from etl.errors import SettingsError
from etl.io.delta.table_shape import check_columns


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(b"k", "t", 1)], "key binary, topic string, offset bigint")


def write(rows: DataFrame, path: str, *partition_by: str) -> None:
    rows.write.format("delta").mode("append").partitionBy(*partition_by).save(path)


def test_rows_that_are_never_null_fit_the_table_that_they_made(
    rows: DataFrame, tmp_path: Path
) -> None:
    one = f.struct(f.lit(1).alias("a"), f.array(f.lit(1)).alias("b"))
    made = rows.select(
        "*",
        f.lit("web").alias("source"),
        f.monotonically_increasing_id().alias("id"),
        f.explode(f.array(f.lit(1))).alias("each"),
        one.alias("struct"),
        f.array(one).alias("array"),
        f.create_map(f.lit("a"), one).alias("map"),
        f.lit(None).alias("void"),
    )
    assert not made.schema["source"].nullable
    path = str(tmp_path / "table")
    for _ in range(2):
        check_columns(path, made.schema.json(), ["source"])
        write(made, path, "source")
    assert made.sparkSession.read.format("delta").load(path).count() == 2


@pytest.mark.parametrize(
    "made",
    [
        "1 as `a b`",
        "1 as `a;b`",
        "named_struct('a b', 1) as s",
        "array(named_struct('a,b', 1)) as s",
        "1 as KEY",
        "named_struct('a', 1, 'A', 2) as s",
        "interval '1' year as s",
        "array(interval '1' day) as s",
        "make_interval(1) as s",
        "array() as s",
        "named_struct('a', null) as s",
        "current_time() as s",
    ],
)
def test_columns_that_delta_refuses_are_refused_before(
    rows: DataFrame, tmp_path: Path, made: str
) -> None:
    path = str(tmp_path / "table")
    refused = rows.selectExpr("*", made)
    with pytest.raises(SettingsError, match="The transform makes (the|a) column"):
        check_columns(path, refused.schema.json(), [])
    with pytest.raises(AnalysisException):
        write(refused, path)


@pytest.mark.parametrize(
    "partition_by", [["headers"], ["name"], ["variant"], ["topic", "headers", "name", "variant"]]
)
def test_partitions_that_delta_refuses_are_refused_before(
    spark: SparkSession, tmp_path: Path, partition_by: list[str]
) -> None:
    path = str(tmp_path / "table")
    rows = spark.sql(
        "select 't' topic, array(1) headers, named_struct('a', 1) name, parse_json('1') variant"
    )
    with pytest.raises(SettingsError, match="cannot be partitioned by"):
        check_columns(path, rows.schema.json(), partition_by)
    with pytest.raises(AnalysisException):
        write(rows, path, *partition_by)


def test_a_partition_of_bytes_comes_back_as_other_bytes(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write(
        spark.createDataFrame([(b"\xff\xfe", 1), (b"", 2)], "key binary, offset bigint"),
        path,
        "key",
    )
    found = spark.read.format("delta").load(path).collect()
    assert {row.offset: row.key and bytes(row.key) for row in found} == {
        1: b"\xef\xbf\xbd\xef\xbf\xbd",
        2: None,
    }
    with pytest.raises(SettingsError, match="etl table accept-changes"):
        check_columns(
            path, spark.createDataFrame([], "key binary, offset bigint").schema.json(), ["key"]
        )
