"""Real brokers of Jafka: the contract of one, and two with one topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from etl.commands.plans import preview
from etl.demo.story import click_messages
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.zookeeper.broker_registrations import read_creation_ids
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import TopicPartition
from etl.settings.load import load_settings
from etl.settings.sections import Settings
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.builders import plain_settings
from tests.command_result import run_etl
from tests.fakes.jafka_contract import PARTITIONS, SEGMENT_BYTES, JafkaContract, ServedJafka

GONE_WITHIN_S = 20.0
"""A broker's session ends 6 s after its last word."""


@pytest.fixture(scope="module")
def jafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Small segments, so that there is something to cut at."""
    folder = tmp_path_factory.mktemp("jafka")
    with EmbeddedCluster(
        2, version=JAFKA, chroot="/old", folder=folder, properties={"log.file.size": "4096"}
    ) as running:
        yield running


@pytest.fixture
def topic(jafka: EmbeddedCluster) -> str:
    """One topic per test, with two partitions on each broker and 500 events in total."""
    name = f"topic-{uuid.uuid4().hex}"
    jafka.create_topic(name, 2)
    produce(jafka, name, 500)
    return name


@pytest.fixture
def zookeeper(jafka: EmbeddedCluster) -> Iterator[ZooKeeper]:
    with ZooKeeper(jafka.zookeeper_connect) as session:
        yield session


def produce(jafka: EmbeddedCluster, topic: str, records: int) -> None:
    for number, messages in click_messages(0, records, partitions=4, messages_per_set=10):
        with SimpleConsumer(
            "127.0.0.1", jafka.brokers[number % 2].port, broker_type="jafka"
        ) as broker:
            broker.produce(topic, number // 2, messages)


def settings_of(jafka: EmbeddedCluster, topic: str, folder: Path, **source: Any) -> Settings:
    return plain_settings(
        zookeeper={"connect": jafka.zookeeper_connect},
        table={"path": str(folder / "table")},
        group=f"group-{topic}",
        source={"assume_cluster_id": "old", "broker_type": "jafka", "topics": [topic], **source},
        report={"path": str(folder / "reports")},
    )


def test_a_plan_reads_both_brokers_from_themselves_and_is_cut_at_segments(
    jafka: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    settings = settings_of(jafka, topic, tmp_path)
    limits = settings.limits.model_copy(update={"target_task_bytes": 1000})
    seen = preview(settings.model_copy(update={"limits": limits}))
    assert {r.partition for r in seen.ranges} == {
        TopicPartition(topic, number, broker) for broker in (0, 1) for number in (0, 1)
    }
    assert {(r.partition.broker_id, r.leader.broker.port) for r in seen.ranges if r.leader} == {
        (broker.broker_id, broker.port) for broker in jafka.brokers
    }
    cuts = [
        (r.partition, offset) for r in seen.ranges for offset in (r.from_offset, r.until_offset)
    ]
    assert len(seen.ranges) > 4
    assert all(
        offset in (seen.snapshot.readable[partition].boundaries or ()) for partition, offset in cuts
    )


def test_a_first_conf_follows_the_registrations_of_the_brokers_and_the_doctor_passes(
    jafka: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    conf, table = tmp_path / "conf" / "old.yaml", str(tmp_path / "table")
    servers = ("--zookeeper", jafka.zookeeper_connect, "--topic", topic)
    written = run_etl("init", *servers, "--table", table, "--output", str(conf), "--json")
    assert written.code == 0, written.err
    source = load_settings(conf).source
    assert (source.is_physical, source.assume_cluster_id, source.topics) == (True, "old", (topic,))
    checked = run_etl("doctor", str(conf), "--json")
    assert checked.code == 0, checked.err


def test_a_broker_that_dies_is_absent_after_its_session_and_read_again_later(
    jafka: EmbeddedCluster, topic: str, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    settings = settings_of(jafka, topic, tmp_path)
    second, away = jafka.brokers[1], TopicPartition(topic, 0, 1)
    has_read_there = f"/consumers/{settings.group.id}/offsets/{topic}/1-0"
    zookeeper.create(has_read_there, b"0")
    second.kill()
    try:
        seen = preview(settings_of(jafka, topic, tmp_path, request_timeout_s=1))
    finally:
        second.start()
    assert {r.partition.broker_id for r in seen.ranges} == {0}
    leaderless = seen.snapshot.leaderless
    assert away in leaderless and {partition.broker_id for partition in leaderless} == {1}
    assert "its broker is unavailable" in seen.leaderless[0]
    assert wait_until(
        lambda: zookeeper.read(f"/brokers/topics/{topic}/1") is not None, GONE_WITHIN_S
    )
    assert {r.partition.broker_id for r in preview(settings).ranges} == {0, 1}


def test_a_topic_deleted_on_both_brokers_and_recreated_is_another_one(
    jafka: EmbeddedCluster, topic: str, zookeeper: ZooKeeper
) -> None:
    before = read_creation_ids(zookeeper, [topic])
    for broker in jafka.brokers:
        with SimpleConsumer("127.0.0.1", broker.port, broker_type="jafka") as request:
            assert request.delete_topic(topic) == 2
    assert wait_until(lambda: zookeeper.children(f"/brokers/topics/{topic}") is None, GONE_WITHIN_S)
    jafka.create_topic(topic, 1)
    after = read_creation_ids(zookeeper, [topic])
    assert (list(before), list(after), before == after) == ([topic], [topic], False)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedJafka]:
    settings = {"num.partitions": str(PARTITIONS), "log.file.size": str(SEGMENT_BYTES)}
    numbers = count()
    with EmbeddedCluster(version=JAFKA, properties=settings) as cluster:
        host, _, port = cluster.bootstrap.rpartition(":")
        yield ServedJafka(host, int(port), lambda: f"topic-{next(numbers)}")


class TestRealJafka(JafkaContract):
    """On a broker of its own."""
