"""`offset_ranges` of two real brokers of Jafka under a real Spark: what it reads is what their files hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from etl import OffsetRanges
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from tests.traffic.jafka import JafkaTraffic
from tests.traffic.rows import Row, hash_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.long
TRAFFIC = JafkaTraffic()
TOPIC = "clicks"


@pytest.fixture(scope="module")
def jafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Two brokers with two logs each, of several segments, with plain and nested compressed
    entries.
    """
    with EmbeddedCluster(
        2,
        version=JAFKA,
        folder=tmp_path_factory.mktemp("jafka"),
        properties={"log.file.size": "4096"},
    ) as cluster:
        TRAFFIC.create_topic(cluster, TOPIC, 4, replication_factor=1, config=None)
        TRAFFIC.load(cluster, TOPIC, 0, 2_000, 4)
        yield cluster


def rows_of(frame: DataFrame) -> Counter[Row]:
    return Counter(
        (*(row[column] for column in TRAFFIC.place), hash_of(row["value"]))
        for row in frame.collect()
    )


def test_every_message_of_every_broker_is_a_row_once_and_goes_into_a_delta_table(
    spark: SparkSession, jafka: EmbeddedCluster, tmp_path: Path
) -> None:
    spark.dataSource.register(OffsetRanges)
    frame = (
        spark.read.format("offset_ranges")
        .option("broker_type", "jafka")
        .option("zookeeper", jafka.zookeeper_connect)
        .option("subscribe", TOPIC)
        .option("target_task_bytes", "4096")
        .option("fetch_max_bytes", "1024")
        .load()
    )
    expected = TRAFFIC.in_topic(jafka, TOPIC)
    assert sum(expected.values()) == 2_000
    assert rows_of(frame) == expected
    path = str(tmp_path / "table")
    frame.write.format("delta").save(path)
    assert rows_of(spark.read.format("delta").load(path)) == expected
