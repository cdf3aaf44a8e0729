"""The doctor on clusters by their real ZooKeeper: invented brokers of Jafka, and Kafka's partitions
without a leader.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from etl.commands import doctor_services as zookeeper_lines
from etl.commands.doctor_machine import Findings, Line, Verdict
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.model.partitions import Broker, TopicPartition
from tests.builders import plain_settings
from tests.fakes.jafka import JafkaBroker, entry


@pytest.fixture
def findings(connect: str, zookeeper: ZooKeeper) -> Iterator[Findings]:
    with contextlib.ExitStack() as closing:
        found = Findings(
            plain_settings(zookeeper={"connect": connect}, source={"on_no_leader": "skip"}), closing
        )
        found.zookeeper = zookeeper
        yield found


@pytest.fixture
def of_jafka(connect: str, zookeeper: ZooKeeper) -> Iterator[Findings]:
    """Broker 1 is registered and has the topic; broker 2 had it, by the group's offsets."""
    with contextlib.ExitStack() as closing:
        broker = closing.enter_context(JafkaBroker(counts={"clicks": 1}).listening())
        broker.append("clicks", 0, entry(b"hello"))
        zookeeper.create("/brokers/ids/1", f"vm-1:{broker.host}:{broker.port}:true".encode())
        zookeeper.create("/brokers/topics/clicks/1", b"1")
        zookeeper.create("/consumers/group/offsets/clicks/2-0", b"36")
        found = Findings(
            plain_settings(
                zookeeper={"connect": connect},
                source={"assume_cluster_id": "old", "broker_type": "jafka"},
            ),
            closing,
        )
        found.zookeeper = zookeeper
        yield found


def verdicts(lines: Iterator[Line]) -> list[tuple[Verdict, str]]:
    return [(line.verdict, line.found) for line in lines]


def test_of_a_cluster_of_jafka_every_line_up_to_the_group_is_reported(of_jafka: Findings) -> None:
    [(_, chroot)] = verdicts(zookeeper_lines.chroot("chroot", of_jafka))
    assert chroot.endswith("registered brokers: 1")
    assert verdicts(zookeeper_lines.cluster("cluster", of_jafka)) == [
        (Verdict.OK, "id old; brokers: 1, topics: 1")
    ]
    [(verdict, broker)] = verdicts(zookeeper_lines.each_broker("broker", of_jafka))
    assert (verdict, broker.partition(": ")[2]) == (
        Verdict.OK,
        "Jafka, or Kafka 0.7, partitions led: 1",
    )
    away, _, there = verdicts(zookeeper_lines.topics("topics", of_jafka))
    assert away == (Verdict.ADVICE, "1 partition of unavailable brokers (2): clicks 2-0")
    assert there == (Verdict.OK, "clicks; partitions: 2")
    assert verdicts(zookeeper_lines.group("group", of_jafka)) == [
        (Verdict.OK, "group: no live consumer, no owner, no driver")
    ]


def test_offsets_that_the_group_left_in_kafka_are_reported_and_are_no_failure(
    of_jafka: Findings, zookeeper: ZooKeeper
) -> None:
    zookeeper.create("/consumers/group/offsets/clicks/0", b"5")
    assert verdicts(zookeeper_lines.cluster("cluster", of_jafka)) == [
        (Verdict.OK, "id old; brokers: 1, topics: 1")
    ]
    unknown_user, left = verdicts(zookeeper_lines.group("group", of_jafka))
    assert (unknown_user[0], left[0]) == (Verdict.OK, Verdict.ADVICE)
    assert left[1].startswith(
        "1 of the group's offsets are of the other broker type, the first of clicks 0"
    )


def test_a_partition_of_kafka_without_a_leader_is_reported_with_the_brokers_of_its_replicas(
    findings: Findings, zookeeper: ZooKeeper
) -> None:
    topic_partitions = [TopicPartition("clicks", number) for number in range(5)]
    partitions = {str(partition.partition): [1, 2] for partition in topic_partitions[:2]}
    zookeeper.create(
        "/brokers/topics/clicks", json.dumps({"version": 1, "partitions": partitions}).encode()
    )
    zookeeper.create(
        "/brokers/topics/clicks/partitions/0/state",
        json.dumps({"leader": -1, "leader_epoch": 3, "isr": [2]}).encode(),
    )
    reported = TopicMetadata(
        "clicks",
        None,
        None,
        False,
        tuple(PartitionMetadata(partition, None, None) for partition in topic_partitions),
    )
    findings.metadata = ClusterMetadata("c", {7: Broker(7, "h", 1)}, {"clicks": reported})
    findings.silent_brokers = {7}
    (verdict, found), _ = verdicts(zookeeper_lines.topics("topics", findings))
    assert (verdict, found) == (
        Verdict.ADVICE,
        (
            "5 partitions without a leader: clicks 0 (replicas on brokers 1 2, last in sync: 2), "
            "clicks 1 (replicas on brokers 1 2), clicks 2 and 2 more"
        ),
    )
