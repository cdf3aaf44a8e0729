"""Small plans with the rows they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from etl.ledger.plan_document import with_id
from etl.model.columns import spark_schema
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan
from tests.builders import plain_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = TopicPartition("clicks", 0)


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., Plan]:
    """Plan N of one pipeline: by default it reads ten offsets of one partition."""

    def make(
        number: int,
        *,
        table_id: str | None = None,
        created_at_ms: int = 0,
        ranges: tuple[OffsetRange, ...] | None = None,
    ) -> Plan:
        if ranges is None:
            ranges = (OffsetRange(LOG, number * 10 - 10, number * 10),)
        positions = {r.partition: r.until_offset for r in ranges} or {LOG: number * 10}
        return with_id(
            plain_plan(
                number,
                uid="uid-1",
                created_at_ms=created_at_ms,
                ranges=ranges,
                loaded_until=positions,
                table_id=table_id,
            )
        )

    return make


@pytest.fixture(scope="session")
def rows_of(spark: SparkSession) -> Callable[[Plan], DataFrame]:
    """The rows of a plan; the record of offset n is n seconds after 1970 began."""

    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(spark_schema())
    assert isinstance(schema, StructType)

    def rows(plan: Plan) -> DataFrame:
        parts = [
            spark.range(r.from_offset, r.until_offset, numPartitions=1).selectExpr(
                "cast(null as binary) key",
                "cast('v' as binary) value",
                f"'{r.partition.topic}' topic",
                f"{r.partition.partition} partition",
                "id offset",
                "timestamp_seconds(id) timestamp",
                "0 timestampType",
                "cast(null as array<struct<key:string,value:binary>>) headers",
                "0 incarnation",
            )
            for r in plan.ranges
        ]
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.union(part)
        return frame.to(schema)

    return rows
