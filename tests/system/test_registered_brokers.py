"""What a cluster registers in a real ZooKeeper, as doctor and data source read it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kazoo.client import KazooClient

from etl.commands import doctor_services
from etl.commands.doctor_machine import Findings, Line, Verdict
from etl.errors import (
    BrokerUnreachable,
    CorruptData,
    SettingsError,
    TopicMissing,
    WrongChroot,
    ZooKeeperUnreachable,
)
from etl.io.zookeeper.broker_registrations import (
    read_brokers,
    read_cluster_id,
    read_compacted,
    read_creation_ids,
    read_partition_states,
    read_physical_brokers,
    read_physical_cluster,
    read_replicas,
)
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.ledger.registrations import PartitionState
from etl.model.partitions import Broker, TopicPartition
from etl.reader.query_ranges import Task
from etl.reader.source import OffsetRanges, RangesReader
from tests.builders import plain_settings
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.fakes.jafka import JafkaBroker, entry
from tests.system.driving import session_at

REGISTRATION = (
    b'{"jmx_port":-1,"timestamp":"1700000000000","host":"kafka-1","version":1,"port":9092}'
)


@pytest.fixture
def client(connect: str, zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    with session_at(connect) as kazoo:
        yield kazoo


@pytest.fixture
def jafka(client: KazooClient) -> KazooClient:
    """Two brokers with the topic clicks; another topic on unreachable brokers."""
    client.create("/brokers/ids/1", b"vm-1795173889337:vm:19096:true", makepath=True)
    client.create("/brokers/ids/10", b"fe80##1-1795173889338:fe80##1:9092", makepath=True)
    client.create("/brokers/topics/clicks/1", b"11", makepath=True)
    client.create("/brokers/topics/clicks/10", b"2")
    client.create("/brokers/topics/resting", b"", makepath=True)
    return client


def test_brokers_of_kafka_are_those_registered_in_order_of_their_ids(
    zookeeper: ZooKeeper, client: KazooClient
) -> None:
    for number, port in ((10, 2), (2, 1)):
        client.create(f"/brokers/ids/{number}", b'{"host":"h","port":%d}' % port, makepath=True)
    client.create("/brokers/ids/3", b'{"host":null,"port":-1,"endpoints":["SSL://h:3"]}')
    assert read_cluster_id(zookeeper) is None
    client.create("/cluster/id", b'{"version":"1","id":"abc"}', makepath=True)
    assert read_brokers(zookeeper) == (Broker(2, "h", 1), Broker(10, "h", 2))
    assert read_cluster_id(zookeeper) == "abc"


def test_a_topic_is_on_every_broker_that_counts_its_partitions_in_the_order_of_text(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    found = read_physical_cluster(zookeeper)
    clicks = found.topics["clicks"]
    in_order = "1-0 1-1 1-10 1-2 1-3 1-4 1-5 1-6 1-7 1-8 1-9 10-0 10-1".split()
    assert [p.partition.key for p in clicks.partitions] == in_order
    assert {
        (p.partition.broker_id, p.leader.broker.id if p.leader else None) for p in clicks.partitions
    } == {(1, 1), (10, 10)}
    assert (found.cluster_id, found.topic_ids, found.leaderless) == (None, {}, frozenset())


def test_a_topic_with_all_brokers_away_exists_and_has_no_log(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    found = read_physical_cluster(zookeeper, ["resting", "no-such-topic"])
    assert found.topics.keys() == {"resting"} and found.topics["resting"].partitions == ()


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
    jafka.create("/brokers/ids/2", b"vm-1:vm:19097:true")  # it does not count the topic yet
    assert read_physical_cluster(zookeeper, known=[away]).leaderless == {away}
    jafka.create("/brokers/topics/clicks/2", b"1")
    found = read_physical_cluster(zookeeper, known=[away])
    assert found.leaders[away].broker == Broker(2, "vm", 19097)


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
    jafka.delete("/brokers/ids", recursive=True)
    jafka.create("/brokers/ids/1", REGISTRATION, makepath=True)
    with pytest.raises(SettingsError, match="is of Kafka 0.8 or later") as caught:
        read_physical_cluster(zookeeper)
    assert "source.broker_type: kafka" in caught.value.action


def test_two_families_under_one_chroot_are_refused_whichever_is_meant(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    jafka.create("/brokers/ids/2", REGISTRATION)
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
    assert caught.value.exit_code == 2 and zookeeper.children("/brokers") is None
    client.ensure_path("/brokers/ids")
    with pytest.raises(ZooKeeperUnreachable, match="No broker is registered"):
        read(zookeeper)


def test_a_topic_deleted_everywhere_and_recreated_is_another_one(
    zookeeper: ZooKeeper, jafka: KazooClient
) -> None:
    before = read_creation_ids(zookeeper, ["clicks"])
    jafka.delete("/brokers/topics/clicks/1")  # one broker restarts, and the topic stays
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
    topics = ["state", "both", "clicks", "like", "plain", "no-such-topic"]
    assert read_compacted(zookeeper, topics) == {"state", "both"}
    assert read_compacted(zookeeper, []) == frozenset()


@pytest.fixture
def findings(connect: str, zookeeper: ZooKeeper) -> Iterator[Callable[..., Findings]]:
    """`findings(broker_type="jafka")`: what the doctor's checks know of this ZooKeeper."""
    with contextlib.ExitStack() as closing:

        def make(**source: str) -> Findings:
            found = Findings(plain_settings(zookeeper={"connect": connect}, source=source), closing)
            found.zookeeper = zookeeper
            return found

        yield make


@pytest.fixture
def of_jafka(zookeeper: ZooKeeper, findings: Callable[..., Findings]) -> Iterator[Findings]:
    """Broker 1 is registered and has the topic; broker 2 had it, by the group's offsets."""
    with JafkaBroker(counts={"clicks": 1}).listening() as broker:
        broker.append("clicks", 0, entry(b"hello"))
        zookeeper.create("/brokers/ids/1", f"vm-1:{broker.host}:{broker.port}:true".encode())
        zookeeper.create("/brokers/topics/clicks/1", b"1")
        zookeeper.create("/consumers/group/offsets/clicks/2-0", b"36")
        yield findings(assume_cluster_id="old", broker_type="jafka")


def verdicts(lines: Iterator[Line]) -> list[tuple[Verdict, str]]:
    return [(line.verdict, line.found) for line in lines]


def test_the_doctor_reports_a_cluster_of_jafka_from_its_chroot_to_the_group(
    of_jafka: Findings,
) -> None:
    [(_, chroot)] = verdicts(doctor_services.chroot("chroot", of_jafka))
    assert chroot.endswith("registered brokers: 1")
    assert verdicts(doctor_services.cluster("cluster", of_jafka)) == [
        (Verdict.OK, "id old; brokers: 1, topics: 1")
    ]
    [(verdict, broker)] = verdicts(doctor_services.each_broker("broker", of_jafka))
    assert (verdict, broker.partition(": ")[2]) == (
        Verdict.OK,
        "Jafka, or Kafka 0.7, partitions led: 1",
    )
    away, _, there = verdicts(doctor_services.topics("topics", of_jafka))
    assert away == (Verdict.ADVICE, "1 partition of unavailable brokers (2): clicks 2-0")
    assert there == (Verdict.OK, "clicks; partitions: 2")
    assert verdicts(doctor_services.group("group", of_jafka)) == [
        (Verdict.OK, "group: no live consumer, no owner, no driver")
    ]


def test_the_doctor_reports_offsets_of_the_other_broker_type_and_they_are_no_failure(
    of_jafka: Findings, zookeeper: ZooKeeper
) -> None:
    zookeeper.create("/consumers/group/offsets/clicks/0", b"5")
    assert verdicts(doctor_services.cluster("cluster", of_jafka)) == [
        (Verdict.OK, "id old; brokers: 1, topics: 1")
    ]
    first, left = verdicts(doctor_services.group("group", of_jafka))
    assert (first[0], left[0]) == (Verdict.OK, Verdict.ADVICE)
    assert left[1].startswith(
        "1 of the group's offsets are of the other broker type, the first of clicks 0"
    )


def test_the_doctor_reports_a_partition_without_a_leader_with_the_brokers_of_its_replicas(
    findings: Callable[..., Findings], zookeeper: ZooKeeper
) -> None:
    replicas = b'{"version": 1, "partitions": {"0": [1, 2], "1": [1, 2]}}'
    zookeeper.create("/brokers/topics/clicks", replicas)
    state = b'{"leader": -1, "leader_epoch": 3, "isr": [2]}'
    zookeeper.create("/brokers/topics/clicks/partitions/0/state", state)
    partitions = [PartitionMetadata(TopicPartition("clicks", n), None, None) for n in range(5)]
    reported = TopicMetadata("clicks", None, None, False, tuple(partitions))
    known = findings(on_no_leader="skip")
    known.metadata = ClusterMetadata("c", {7: Broker(7, "h", 1)}, {"clicks": reported})
    known.silent_brokers = {7}
    (verdict, found), _ = verdicts(doctor_services.topics("topics", known))
    assert (verdict, found) == (
        Verdict.ADVICE,
        (
            "5 partitions without a leader: clicks 0 (replicas on brokers 1 2, last in sync: 2), "
            "clicks 1 (replicas on brokers 1 2), clicks 2 and 2 more"
        ),
    )


@pytest.fixture
def brokers(zookeeper: ZooKeeper) -> Iterator[list[JafkaBroker]]:
    """Brokers 1 and 2 with clicks, two partitions on the first one, registered."""
    with (
        JafkaBroker(counts={"clicks": 2}).listening() as first,
        JafkaBroker(counts={"clicks": 1}).listening() as second,
    ):
        for number, (broker, count) in enumerate([(first, 2), (second, 1)], start=1):
            registration = f"vm-1:{broker.host}:{broker.port}:true"
            zookeeper.create(f"/brokers/ids/{number}", registration.encode())
            zookeeper.create(f"/brokers/topics/clicks/{number}", str(count).encode())
            for partition in range(count):
                entries = [entry(b"%d-%d %d" % (number, partition, n)) for n in range(50)]
                broker.append("clicks", partition, b"".join(entries))
                broker.logs["clicks", partition].roll()
                broker.append("clicks", partition, entry(b"last"))
        yield [first, second]


def reader_of(connect: str, **options: str) -> RangesReader:
    chosen = (
        {} if {"ranges", "assign", "subscribePattern"} & set(options) else {"subscribe": "clicks"}
    )
    reader = OffsetRanges(
        {"broker_type": "jafka", "zookeeper": connect, **chosen, **options}
    ).reader(None)
    assert isinstance(reader, RangesReader)
    return reader


def rows_of(reader: RangesReader, planned: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for partition in planned:
        for batch in reader.read(partition):
            yield from batch.to_pylist()


def tasks_of(connect: str, **options: str) -> list[Task]:
    return [partition.value for partition in reader_of(connect, **options).partitions()]


def test_tasks_of_the_data_source_are_cut_where_segments_begin(
    connect: str, brokers: list[JafkaBroker]
) -> None:
    cut = brokers[0].logs["clicks", 0].starts[1]
    ranges = [r for task in tasks_of(connect, target_task_bytes="100") for r in task.ranges]
    assert sorted(
        (r.from_offset, r.until_offset)
        for r in ranges
        if r.partition == TopicPartition("clicks", 0, 1)
    ) == [(0, cut), (cut, brokers[0].logs["clicks", 0].flushed)]


def test_a_planned_query_reads_the_present_records_of_its_brokers_and_uses_no_zookeeper(
    connect: str, zookeeper: ZooKeeper, brokers: list[JafkaBroker]
) -> None:
    reader = reader_of(connect, target_task_bytes="100")
    planned = reader.partitions()
    for number in (1, 2):
        zookeeper.client.delete(f"/brokers/ids/{number}")
    brokers[1].append("clicks", 0, entry(b"later"))
    values = [row["value"] for row in rows_of(reader, planned)]
    assert len(values) == len(set(values)) + 2 == 3 * 51 + 1  # "last" is in all three logs
    assert b"later" in values


def test_brokers_of_kafka_found_once_are_used_by_each_query(
    connect: str, zookeeper: ZooKeeper
) -> None:
    with FakeBroker() as broker:
        zookeeper.create(
            "/brokers/ids/1",
            json.dumps({"version": 1, "host": broker.host, "port": broker.port}).encode(),
        )
        broker.log("clicks", 0)
        reader = reader_of(connect, broker_type="kafka")
        planned = reader.partitions()
        zookeeper.client.delete("/brokers/ids/1")
        broker.append("clicks", 0, encode(Batch(0, [Rec(0), Rec(1)])))
        offsets = [row["offset"] for row in rows_of(reader, planned)]
    assert offsets == [0, 1]


def test_the_data_source_reads_no_log_of_a_broker_that_is_away_and_passes_over_none(
    connect: str, zookeeper: ZooKeeper, brokers: list[JafkaBroker]
) -> None:
    zookeeper.client.delete("/brokers/ids/2")
    zookeeper.client.delete("/brokers/topics/clicks/2")
    with pytest.raises(BrokerUnreachable, match="of a broker that is away"):
        tasks_of(connect, assign='{"clicks": ["1-0", "2-0"]}')
    assert {r.partition.broker_id for task in tasks_of(connect) for r in task.ranges} == {1}


def test_the_data_source_reports_missing_topics_and_partitions(
    connect: str, zookeeper: ZooKeeper, brokers: list[JafkaBroker]
) -> None:
    with pytest.raises(TopicMissing, match="not there"):
        tasks_of(connect, subscribe="clocks")
    with pytest.raises(TopicMissing, match="2 partitions on broker 1"):
        tasks_of(connect, assign='{"clicks": ["1-2"]}')
    with pytest.raises(WrongChroot):
        tasks_of(f"{connect}/elsewhere")
    with pytest.raises(SettingsError, match="is of Jafka or Kafka 0.7"):
        tasks_of(connect, broker_type="kafka")
