"""Topics of two real brokers of Jafka that are deleted and recreated on one of them, while the
other one is unreachable or keeps its log.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.command_result import refused
from tests.system.driving import Pipeline

WITHIN_S = 20.0
"""A broker's session ends 6 s after its last word."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def jafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(
        2, version=JAFKA, chroot="/old", folder=tmp_path_factory.mktemp("jafka")
    ) as running:
        yield running


@pytest.fixture
def zookeeper(jafka: EmbeddedCluster) -> Iterator[ZooKeeper]:
    with ZooKeeper(jafka.zookeeper_connect) as session:
        yield session


@pytest.fixture
def pipeline(jafka: EmbeddedCluster, spark: SparkSession, tmp_path: Path) -> Pipeline:
    """A topic of one partition on each broker, with a hundred messages of one size in each, all of
    them loaded.
    """
    name = uuid.uuid4().hex
    jafka.create_topic(f"topic-{name}", 1)
    made = Pipeline(jafka, tmp_path, f"topic-{name}", f"group-{name}")
    for broker in (0, 1):
        send(made, broker, 100, "first")
    made.ran()
    return made


def asking(pipeline: Pipeline, broker: int) -> SimpleConsumer:
    return SimpleConsumer("127.0.0.1", pipeline.cluster.brokers[broker].port, generation="jafka")


def send(pipeline: Pipeline, broker: int, count: int, life: str) -> None:
    """Messages of one size: an entry of one log begins where one of any other does."""
    with asking(pipeline, broker) as consumer:
        consumer.produce(
            pipeline.topic,
            0,
            [(None, f"{life:>8}-{broker}-{number:06}".encode()) for number in range(count)],
        )


def make_again(pipeline: Pipeline, broker: int, zookeeper: ZooKeeper, *, is_kept: bool) -> None:
    """Delete the topic on this broker, and make it again there once ZooKeeper has forgotten it;
    `is_kept`: another broker has it.
    """
    there = f"/brokers/topics/{pipeline.topic}"
    with asking(pipeline, broker) as consumer:
        consumer.delete_topic(pipeline.topic)
        assert wait_until(
            lambda: (
                zookeeper.read(f"{there}/{broker}") is None
                and (is_kept or zookeeper.read(there) is None)
            ),
            WITHIN_S,
        )
        consumer.create_topic(pipeline.topic, 1)


def rows(pipeline: Pipeline) -> Counter[tuple[Any, ...]]:
    """How many rows each life of each broker's log has; every message is there once."""
    found = (
        DeltaTable(str(pipeline.table))
        .to_pyarrow_table(columns=["broker_id", "incarnation", "value"])
        .to_pylist()
    )
    assert len({row["value"] for row in found}) == len(found)
    return Counter((row["broker_id"], row["incarnation"]) for row in found)


def test_a_topic_recreated_on_one_broker_while_the_other_is_away_needs_decisions(
    pipeline: Pipeline, zookeeper: ZooKeeper
) -> None:
    away, topic = pipeline.cluster.brokers[1], pipeline.topic
    away.stop()
    try:
        assert wait_until(lambda: zookeeper.read(f"/brokers/topics/{topic}/1") is None, WITHIN_S)
        make_again(pipeline, 0, zookeeper, is_kept=False)
        send(pipeline, 0, 200, "second")
        refused(
            pipeline.run(),
            5,
            f"{topic}:0-0: the bytes that were read or planned are not there",
            f"accept-changes CONF -p {topic} --reason",
        )
        result = pipeline.accept_log(topic)
        assert result.code == 0, result.err
        assert f"{topic}:1-0: stays undecided: its broker is unreachable" in " ".join(
            result.document["message"]
        )
        assert pipeline.ran().outcomes == [
            "topic_changes_accepted",
            "topic_changes_accepted",
            "no_leader",
            "ingested",
        ]
    finally:
        away.start()
    assert wait_until(lambda: zookeeper.read(f"/brokers/topics/{topic}/1") is not None, WITHIN_S)
    send(pipeline, 1, 10, "later")
    for words in (("run",), ("run", "--dry-run"), ("doctor",)):
        refused(
            pipeline.door(*words),
            5,
            f"{topic}:1-0: the bytes that were read or planned last are there",
        )
    refused(pipeline.accept_log(f"{topic}:1-0"), 2, "It is the same partition", "--not-recreated")
    assert pipeline.accept_log(f"{topic}:1-0", "--not-recreated").code == 0
    pipeline.ran()
    assert rows(pipeline) == {(0, 0): 100, (0, 1): 200, (1, 0): 110}
    assert pipeline.door("verify").code == 0


def test_a_topic_recreated_on_one_broker_with_a_longer_log_is_reported(
    pipeline: Pipeline, zookeeper: ZooKeeper
) -> None:
    topic = pipeline.topic
    make_again(pipeline, 0, zookeeper, is_kept=True)
    send(pipeline, 0, 300, "second")
    refused(
        pipeline.run(),
        5,
        "the log holds other bytes before offset",
        f"accept-changes CONF -p {topic}:0-0 --truncated-at OFFSET",
    )
    assert pipeline.accept_log(f"{topic}:0-0", "--truncated-at", "0").code == 0
    pipeline.ran()
    assert rows(pipeline) == {(0, 0): 100, (0, 1): 300, (1, 0): 100}
    assert pipeline.door("verify").code == 0
