"""`offset_ranges` with `broker_type` `jafka` under a real Spark, on two real brokers: what it reads is
what their files hold.
"""

from __future__ import annotations

import json
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


def frame_of(spark: SparkSession, cluster: EmbeddedCluster, **options: str) -> DataFrame:
    spark.dataSource.register(OffsetRanges)
    chosen = {} if "ranges" in options or "assign" in options else {"subscribe": TOPIC}
    result = {"broker_type": "jafka", "zookeeper": cluster.zookeeper_connect, **chosen, **options}
    return spark.read.format("offset_ranges").options(**result).load()


def rows_of(frame: DataFrame) -> Counter[Row]:
    return Counter(
        (*(row[column] for column in TRAFFIC.place), hash_of(row["value"]))
        for row in frame.collect()
    )


def test_every_message_of_every_broker_is_a_row_once(
    spark: SparkSession, jafka: EmbeddedCluster
) -> None:
    expected = TRAFFIC.in_topic(jafka, TOPIC)
    assert sum(expected.values()) == 2_000
    assert rows_of(frame_of(spark, jafka)) == expected


def test_many_small_tasks_read_the_same_as_one_for_each_log(
    spark: SparkSession, jafka: EmbeddedCluster
) -> None:
    cut = frame_of(spark, jafka, target_task_bytes="4096", fetch_max_bytes="1024")
    assert cut.rdd.getNumPartitions() > 4
    assert rows_of(cut) == TRAFFIC.in_topic(jafka, TOPIC)


def test_exact_ranges_meet_at_a_segments_start_and_share_no_message(
    spark: SparkSession, jafka: EmbeddedCluster
) -> None:
    log = TRAFFIC.logs(jafka, TOPIC)[0]
    starts = [start for start, _ in log.files(".jafka")]
    first, middle, last = starts[0], starts[1], starts[2]
    of_log = {
        row
        for row in TRAFFIC.in_topic(jafka, TOPIC)
        if row[:2] == (log.broker.broker_id, log.partition)
    }

    def between(start: int, until: int) -> Counter[Row]:
        text = json.dumps(
            [
                {
                    "topic": TOPIC,
                    "broker": log.broker.broker_id,
                    "partition": log.partition,
                    "from": start,
                    "until": until,
                }
            ]
        )
        return rows_of(frame_of(spark, jafka, ranges=text))

    assert between(first, middle) == Counter(row for row in of_log if first <= row[2] < middle)
    assert between(middle, last) == Counter(row for row in of_log if middle <= row[2] < last)


def test_an_offset_inside_a_message_is_an_error_that_names_it(
    spark: SparkSession, jafka: EmbeddedCluster
) -> None:
    log = TRAFFIC.logs(jafka, TOPIC)[0]
    name = f"{log.broker.broker_id}-{log.partition}"
    frame = frame_of(
        spark,
        jafka,
        assign=json.dumps({TOPIC: [name]}),
        startingOffsets=json.dumps({TOPIC: {name: 3}}),
    )
    with pytest.raises(Exception, match="offset 3"):
        frame.collect()


def test_rows_of_jafka_go_into_delta_and_back(
    spark: SparkSession, jafka: EmbeddedCluster, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    frame_of(spark, jafka).write.format("delta").save(path)
    assert rows_of(spark.read.format("delta").load(path)) == TRAFFIC.in_topic(jafka, TOPIC)
