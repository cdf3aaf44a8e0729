"""A consumer of ours on each release, compared with the release's own consumer."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from etl import Consumer, Group, Record
from etl.model.partitions import TopicPartition
from etl.testkit.brokers import JAFKA, RELEASES
from tests.brokers.groups import with_consumer_protocol
from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage
from tests.brokers.writing import many
from tests.fakes.group_readers import GroupReader, all_read_once

OLD = (JAFKA, "0.8.2.2")


def polled(consumer: Consumer, count: int) -> list[Record]:
    """So many records, however many polls that takes."""
    found: list[Record] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += [record for some in consumer.poll(1, 7).values() for record in some]
    return found


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(version, marks=[] if version in OLD else pytest.mark.brokers)
        for version in RELEASES
    ],
    indirect=True,
)
def test_records_of_foreign_producers_are_returned_once_and_a_group_continues(
    stage: KafkaStage | JafkaStage, unused_group: str
) -> None:
    topic = stage.new_topic()
    for name, write in stage.writers.items():
        if name.endswith(("plain", "none", "gzip")):
            write(topic, 1, many(20))
    expected = stage.read(topic)
    physical = isinstance(stage, JafkaStage)
    options: dict[str, Any] = {
        "group": unused_group,
        "broker_type": "jafka" if physical else "kafka",
    }
    if "bootstrap_servers" in stage.conf["source"]:
        options["bootstrap_servers"] = stage.cluster.bootstrap
    else:
        options["zookeeper"] = stage.cluster.zookeeper_connect
    with Consumer(**options, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_of(topic)
        consumer.assign(partitions)
        records = polled(consumer, len(expected))
        assert consumer.poll(0.2) == {}, "and nothing is given twice"
        values = Counter(record.value for record in records)
        assert values == Counter(seen.value for seen in expected)
        consumer.commit()
        there = stage.ends(topic) if physical else {"1": len(expected)}
        ends = {partition: there.get(partition.key, 0) for partition in partitions}
        positions = {partition: consumer.position(partition) for partition in partitions}
        assert positions == consumer.committed(partitions) == ends
    with Consumer(**options, auto_offset_reset=None) as again:
        again.assign(partitions)
        next(iter(stage.writers.values()))(topic, 0, many(3))
        assert len(polled(again, 3)) == 3
        read = {record.topic_partition for record in records}
        assert read == {partition for partition in ends if ends[partition]} and read


@pytest.mark.groups
def test_members_of_a_group_read_each_record_once_while_they_come_and_go(
    stage: KafkaStage | JafkaStage, unused_group: str
) -> None:
    if isinstance(stage, JafkaStage):
        return  # together with its own consumers: test_old_consumers
    membership = "zookeeper" if stage.release < (0, 9) else "coordinator"
    it_is_read_once(stage, Group(unused_group, membership, session_timeout_s=6))
    if stage.release >= (4,):
        with_consumer_protocol(stage.cluster)
        it_is_read_once(stage, Group(f"{unused_group}-2", protocol="consumer"))


def it_is_read_once(stage: KafkaStage, group: Group) -> None:
    """By two members, of which the first one goes."""
    topic = stage.new_topic()
    write = next(write for name, write in stage.writers.items() if name.endswith("none"))
    options: dict[str, Any] = {"group": group, "auto_offset_reset": "earliest"}
    if group.membership == "zookeeper":
        options["zookeeper"] = stage.cluster.zookeeper_connect
    else:
        options["bootstrap_servers"] = stage.cluster.bootstrap

    def more() -> None:
        for partition in range(PARTITIONS):
            write(topic, partition, many(20))

    more()
    first = GroupReader(Consumer(**options), [topic])
    assert first.owns(PARTITIONS)
    second = GroupReader(Consumer(**options), [topic])
    try:
        assert first.owns(PARTITIONS // 2) and second.owns(PARTITIONS // 2)
        more()
        first.end()
        assert second.owns(PARTITIONS)
        more()
        expected = Counter({TopicPartition(topic, number): 60 for number in range(PARTITIONS)})
        all_read_once([first, second], lambda: expected)
    finally:
        first.end()
        second.end()
    assert not first.lost_logs and not second.lost_logs
