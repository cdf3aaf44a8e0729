"""What a cluster registers in ZooKeeper, on a real one: both families, the wrong one named, brokers
that are away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from etl.errors import CorruptData, SettingsError, WrongChroot, ZooKeeperUnreachable
from etl.io.zookeeper.broker_registrations import (
    read_brokers,
    read_compacted,
    read_creation_ids,
    read_partition_states,
    read_physical_brokers,
    read_physical_cluster,
    read_replicas,
)
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.registrations import PartitionState
from etl.model.partitions import Broker, TopicPartition
from tests.system.sessions import session_at

KAFKA = b'{"jmx_port":-1,"timestamp":"1700000000000","host":"kafka-1","version":1,"port":9092}'


@pytest.fixture
def client(connect: str, zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    """Another client: the brokers."""
    with session_at(connect) as kazoo:
        yield kazoo


@pytest.fixture
def jafka(client: KazooClient) -> KazooClient:
    """Two brokers with the topic clicks, one with eleven partitions; a topic on brokers that are
    unreachable.
    """
    client.create("/brokers/ids/1", b"vm-1795173889337:vm:19096:true", makepath=True)
    client.create("/brokers/ids/10", b"fe80##1-1795173889338:fe80##1:9092", makepath=True)
    client.create("/brokers/topics/clicks/1", b"11", makepath=True)
    client.create("/brokers/topics/clicks/10", b"2")
    client.create("/brokers/topics/resting", b"", makepath=True)
    return client


def keys(partitions: list[TopicPartition]) -> list[str]:
    return [f"{partition.broker_id}-{partition.partition}" for partition in partitions]


def test_brokers_of_byte_positions_are_those_registered_by_fields(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    assert read_physical_brokers(zookeeper) == {
        1: Broker(1, "vm", 19096),
        10: Broker(10, "fe80::1", 9092),
    }
    assert {broker.generation for broker in read_physical_brokers(zookeeper).values()} == {"jafka"}


def test_a_topic_is_on_every_broker_that_counts_its_partitions_in_the_order_of_text(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    found = read_physical_cluster(zookeeper)
    clicks = found.topics["clicks"]
    assert keys([p.partition for p in clicks.partitions]) == [
        "1-0",
        "1-1",
        "1-10",
        "1-2",
        "1-3",
        "1-4",
        "1-5",
        "1-6",
        "1-7",
        "1-8",
        "1-9",
        "10-0",
        "10-1",
    ]
    assert {
        (p.partition.broker_id, p.leader.broker.id if p.leader else None) for p in clicks.partitions
    } == {(1, 1), (10, 10)}
    assert (found.cluster_id, found.topic_ids, found.leaderless) == (None, {}, frozenset())


def test_a_topic_with_all_brokers_away_exists_and_has_no_log(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    assert read_physical_cluster(zookeeper, ["resting", "no-such-topic"]).topics.keys() == {
        "resting"
    }
    assert read_physical_cluster(zookeeper).topics["resting"].partitions == ()


def test_logs_that_were_known_before_are_leaderless_while_their_broker_is_away(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    away, gone_topic, logical = (
        TopicPartition("clicks", 0, 2),
        TopicPartition("gone", 0, 1),
        TopicPartition("clicks", 0),
    )
    found = read_physical_cluster(zookeeper, known=[away, gone_topic, logical])
    assert found.leaderless == {away}
    jafka.create(
        "/brokers/ids/2", b"vm-1:vm:19097:true"
    )  # it comes back, and does not count the topic yet
    assert read_physical_cluster(zookeeper, known=[away]).leaderless == {away}
    jafka.create("/brokers/topics/clicks/2", b"1")
    assert read_physical_cluster(zookeeper, known=[away]).leaders[away].broker == Broker(
        2, "vm", 19097
    )


def test_a_partition_beyond_its_brokers_count_is_not_requested_and_is_reported_if_it_was_known(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    beyond = TopicPartition("clicks", 2, 10)
    assert read_physical_cluster(zookeeper, known=[beyond]).leaderless == {beyond}
    assert read_physical_cluster(zookeeper).leaderless == frozenset()
    jafka.set("/brokers/topics/clicks/10", b"3")
    assert read_physical_cluster(zookeeper, known=[beyond]).leaders[beyond].broker.id == 10


def test_a_broker_that_counts_partitions_and_is_not_registered_leads_nothing(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    jafka.delete("/brokers/ids/10")
    assert read_physical_cluster(zookeeper).leaderless == {
        TopicPartition("clicks", 0, 10),
        TopicPartition("clicks", 1, 10),
    }


def test_an_invalid_count_or_registration_is_named_with_its_znode(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    jafka.set("/brokers/topics/clicks/10", b"many")
    with pytest.raises(CorruptData) as caught:
        read_physical_cluster(zookeeper)
    assert caught.value.where["znode"] == "/brokers/topics/clicks/10"
    jafka.create("/brokers/ids/11", b"somewhere")
    with pytest.raises(CorruptData, match="somewhere") as caught:
        read_physical_brokers(zookeeper)
    assert caught.value.where["znode"] == "/brokers/ids/11"


def test_a_child_that_is_no_broker_id_is_none_of_the_topics(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    jafka.create("/brokers/topics/clicks/partitions", b"")
    assert len(read_physical_cluster(zookeeper).topics["clicks"].partitions) == 13


def test_the_wrong_broker_type_in_the_conf_is_reported_with_the_right_one(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    with pytest.raises(SettingsError, match="Broker 1 under .* is of Jafka or Kafka 0.7") as caught:
        read_brokers(zookeeper)
    assert (caught.value.exit_code, caught.value.where["key"]) == (2, "source.broker_type")
    assert "source.broker_type: jafka" in caught.value.action


def test_the_wrong_broker_type_is_reported_in_the_other_direction(
    zookeeper: ZooKeeper, client: KazooClient
) -> None:
    client.create("/brokers/ids/1", KAFKA, makepath=True)
    with pytest.raises(SettingsError, match="is of Kafka 0.8 or later") as caught:
        read_physical_cluster(zookeeper)
    assert "source.broker_type: kafka" in caught.value.action


def test_two_families_under_one_chroot_are_refused_whichever_is_meant(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    jafka.create("/brokers/ids/2", KAFKA)
    for read in (read_brokers, read_physical_brokers):
        with pytest.raises(SettingsError, match="source.broker_type is"):
            read(zookeeper)


@pytest.mark.parametrize("read", [read_brokers, read_physical_cluster])
def test_a_chroot_without_a_cluster_is_the_wrong_one_and_one_without_brokers_is_unreachable(
    zookeeper: ZooKeeper, client: KazooClient, read: Callable[[ZooKeeper], object]
) -> None:
    with pytest.raises(WrongChroot) as caught:
        read(zookeeper)
    assert ("bootstrap" in caught.value.action) is (read is read_brokers)
    client.ensure_path("/brokers/ids")
    with pytest.raises(ZooKeeperUnreachable, match="No broker is registered"):
        read(zookeeper)


def test_a_topic_deleted_everywhere_and_recreated_is_another_one(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    before = read_creation_ids(zookeeper, ["clicks"])
    jafka.delete(
        "/brokers/topics/clicks/1"
    )  # one broker restarts: its count is made anew, the topic stays
    jafka.create("/brokers/topics/clicks/1", b"11")
    assert read_creation_ids(zookeeper, ["clicks"]) == before
    jafka.delete("/brokers/topics/clicks", recursive=True)
    jafka.create("/brokers/topics/clicks/1", b"11", makepath=True)
    assert read_creation_ids(zookeeper, ["clicks"]) != before


def test_kafkas_controller_reports_the_replicas_of_a_partition_and_those_in_sync(
    zookeeper: ZooKeeper, client: KazooClient
) -> None:
    first, second, unknown = (TopicPartition("clicks", number) for number in range(3))
    client.create(
        "/brokers/topics/clicks", b'{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}', makepath=True
    )
    client.create(
        "/brokers/topics/clicks/partitions/0/state",
        b'{"controller_epoch":1,"leader":-1,"version":1,"leader_epoch":5,"isr":[2]}',
        makepath=True,
    )
    assert read_replicas(zookeeper, [first, second, unknown]) == {first: (1, 2), second: (2, 1)}
    assert read_partition_states(zookeeper, [first, second]) == {
        first: PartitionState(None, 5, (2,))
    }
    assert read_replicas(zookeeper, [TopicPartition("no-such-topic", 0)]) == {}


def test_a_topic_is_compacted_where_that_was_set_for_it(
    client: KazooClient, zookeeper: ZooKeeper
) -> None:
    for topic, policy in (
        ("state", "compact"),
        ("both", "compact, delete"),
        ("clicks", "delete"),
        ("like", "compacted"),
    ):
        client.create(
            f"/config/topics/{topic}",
            b'{"version":1,"config":{"cleanup.policy":"%s"}}' % policy.encode(),
            makepath=True,
        )
    client.create("/config/topics/plain", b'{"version":1,"config":{}}')
    assert read_compacted(
        zookeeper, ["state", "both", "clicks", "like", "plain", "no-such-topic"]
    ) == {"state", "both"}
    assert read_compacted(zookeeper, []) == frozenset()
