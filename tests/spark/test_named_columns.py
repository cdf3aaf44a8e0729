"""Queries that name their columns get these alone, and all rows whatever filters Spark pushes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from etl import OffsetRanges
from etl.records import arrow_buffers
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def clicks(spark: SparkSession) -> Iterator[Any]:
    """A reader of a topic with ten records."""
    spark.dataSource.register(OffsetRanges)
    with FakeBroker() as broker:
        broker.append(
            "clicks",
            0,
            encode(Batch(0, [Rec(n, b"v%d" % n, b"k", ((b"h", b"1"),)) for n in range(10)])),
        )
        yield (
            spark.read.format("offset_ranges")
            .option("kafka.bootstrap.servers", f"{broker.host}:{broker.port}")
            .option("subscribe", "clicks")
        )


def test_a_query_that_names_columns_by_a_schema_gets_those_in_its_order(clicks: Any) -> None:
    frame = clicks.schema("offset BIGINT, value BINARY, timestamp TIMESTAMP").load()
    assert frame.columns == ["offset", "value", "timestamp"]
    found = (
        frame.where("offset > 8")
        .selectExpr("offset", "cast(value as string)", "unix_millis(timestamp)")
        .collect()
    )
    assert list(map(tuple, found)) == [(9, "v9", 1_700_000_000_000)]


def test_a_schema_with_another_type_of_a_column_is_reported_with_the_column(clicks: Any) -> None:
    with pytest.raises(Exception, match="The schema says that offset is int, it is bigint"):
        clicks.schema("offset INT").load().collect()


def test_columns_that_a_schema_leaves_out_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.types import StructType

    built: list[frozenset[str]] = []
    fill = arrow_buffers.BatchBuffers.__init__

    def watched(self: Any, columns: Any, **more: Any) -> None:
        built.append(frozenset(columns))
        fill(self, columns, **more)

    monkeypatch.setattr(arrow_buffers.BatchBuffers, "__init__", watched)
    schema = StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": kind, "nullable": True, "metadata": {}}
                for name, kind in (("value", "binary"), ("partition", "integer"))
            ],
        }
    )
    with FakeBroker() as broker:
        broker.append("clicks", 0, encode(Batch(0, [Rec(0, b"v", b"k", ((b"h", b"1"),))])))
        reader = OffsetRanges(
            {"kafka.bootstrap.servers": f"{broker.host}:{broker.port}", "subscribe": "clicks"}
        ).reader(schema)
        [task] = reader.partitions()
        batches: Any = reader.read(task)
        assert [batch.to_pylist() for batch in batches] == [[{"value": b"v", "partition": 0}]]
    assert built == [frozenset({"value", "partition"})]


def test_our_rows_are_all_there_for_every_query_where_a_session_pushes_filters(
    spark: SparkSession, clicks: Any
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = clicks.load()
        assert [row.offset for row in frame.where("offset = 7").collect()] == [7]
        assert frame.select("offset").count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
