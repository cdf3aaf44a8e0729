"""Registrations of brokers and topics in ZooKeeper, in every version's form."""

from __future__ import annotations

import pytest

from etl.io.zookeeper.broker_registrations import read_physical_cluster
from etl.ledger.registrations import (
    PartitionState,
    dialect_of,
    parse_broker,
    parse_cluster_id,
    parse_count,
    parse_listeners,
    parse_partition_state,
    parse_physical_broker,
    parse_replicas,
    parse_topic_config,
)
from etl.model.partitions import Broker, BrokerFamily
from etl.model.security import Security, SecurityProtocol
from tests.fakes.zookeeper_memory import Memory, MemoryZooKeeper

# Payloads as brokers of these versions write them.
KAFKA_0_8 = b'{"jmx_port":-1,"timestamp":"1700000000000","host":"kafka-1","version":1,"port":9092}'
KAFKA_0_9 = b'{"jmx_port":-1,"timestamp":"1700000000000","endpoints":["PLAINTEXT://kafka-1:9092"],"host":"kafka-1","version":2,"port":9092}'
KAFKA_0_10 = (
    b'{"jmx_port":-1,"timestamp":"1700000000000","endpoints":["SSL://kafka-1:9093","PLAINTEXT://kafka-1:9092"],"rack":"r1",'
    b'"host":"kafka-1","version":3,"port":9092}'
)
KAFKA_1_1 = (
    b'{"listener_security_protocol_map":{"INSIDE":"PLAINTEXT","OUTSIDE":"SASL_SSL"},'
    b'"endpoints":["OUTSIDE://proxy:443","INSIDE://kafka-1:9092"],"jmx_port":-1,"host":null,"port":-1,"version":4}'
)
KAFKA_3_9 = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:39092"],'
    b'"jmx_port":-1,"port":39092,"host":"127.0.0.1","version":5,"timestamp":"1700000000000"}'
)
TLS_FIRST = (
    b'{"endpoints":["SSL://h:1","PLAINTEXT://[::1]:9092"],"host":null,"version":5,"port":-1}'
)
NAMED_LIKE_PLAIN = b'{"listener_security_protocol_map":{"PLAINTEXT":"SSL"},"endpoints":["PLAINTEXT://h:1"],"host":null,"version":5,"port":-1}'


@pytest.mark.parametrize(
    ("payload", "broker"),
    [
        (KAFKA_0_8, Broker(1, "kafka-1", 9092)),
        (KAFKA_0_9, Broker(1, "kafka-1", 9092)),
        (KAFKA_0_10, Broker(1, "kafka-1", 9092)),
        (KAFKA_1_1, Broker(1, "kafka-1", 9092)),
        (KAFKA_3_9, Broker(1, "127.0.0.1", 39092)),
        (TLS_FIRST, Broker(1, "::1", 9092)),
    ],
)
def test_a_broker_is_where_it_listens_in_plain_text(payload: bytes, broker: Broker) -> None:
    assert parse_broker("1", payload) == broker
    assert dialect_of(payload) is BrokerFamily.KAFKA


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"creator:host:9092",
        b"[]",
        b"{}",
        b"null",
        b'{"endpoints":["SSL://h:1"],"host":null,"port":-1}',
        b'{"endpoints":7}',
        b'{"host":"h","port":"9092"}',
        b'{"endpoints":["PLAINTEXT://h:port"]}',
        b'{"endpoints":["PLAINTEXT://:9092"]}',
        b"[" * 100_000,
        b"\xff",
        NAMED_LIKE_PLAIN,
        b'{"listener_security_protocol_map":[],"endpoints":["PLAINTEXT"]}',
        b'{"host":"h","port":70000}',
    ],
)
def test_a_registration_without_a_plain_endpoint_is_no_broker(payload: bytes) -> None:
    assert parse_broker("1", payload) is None


def test_a_broker_id_that_is_no_number_is_no_broker() -> None:
    assert parse_broker("one", KAFKA_3_9) is None
    assert parse_physical_broker("one", b"vm-1:vm:9092") is None


@pytest.mark.parametrize(
    ("payload", "host", "port"),
    [
        (
            b"192.168.1.7-1310449279123:192.168.1.7:6667",
            "192.168.1.7",
            6667,
        ),  # Kafka 0.7, and Jafka 1.0
        (b"vm-1795173889337:vm:19096:true", "vm", 19096),  # Jafka from 1.4 on
        (b"vm-1795173889337:vm:19096:false", "vm", 19096),
        (b"fe80##1-1795173889337:fe80##1:9092:true", "fe80::1", 9092),
        (b"a-b-c-1:my-host.example.com:9092:true", "my-host.example.com", 9092),
        (
            b"\xac\xed\x00\x05t\x00\x0cvm-1:vm:9092",
            "vm",
            9092,
        ),  # by a ZkClient with its default serializer
    ],
)
def test_a_jafka_broker_has_three_or_four_fields(payload: bytes, host: str, port: int) -> None:
    found = parse_physical_broker("3", payload)
    assert found == Broker(3, host, port)
    assert found.broker_type == "jafka"
    assert dialect_of(payload) is BrokerFamily.JAFKA


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"vm:9092",
        b"vm-1:vm:port",
        b"vm-1:vm:0",
        b"vm-1:vm:70000",
        b"vm-1::9092",
        b"a:b:1:true:more",
        b"a:b:1:maybe",
        KAFKA_3_9,
        b"\xff\xfe",
        b"\xac\xed\x00\x05",
        b"a:b:" + b"9" * 5000,
        b"{vm-1:vm:9092",
        b" {vm-1:vm:9092:true",
        b"\xac\xed\x00\x05t\x00\x0d{vm-1:vm:9092",
    ],
)
def test_any_other_text_is_no_such_broker(payload: bytes) -> None:
    assert parse_physical_broker("3", payload) is None
    assert dialect_of(payload) in (None, BrokerFamily.KAFKA)


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"1", 1),
        (b"12", 12),
        (b"", None),
        (b"0", None),
        (b"-1", None),
        (b"many", None),
        (b"9" * 5000, None),
        (b'{"version":1}', None),
    ],
)
def test_a_count_of_partitions_is_a_small_number_above_0(payload: bytes, count: int | None) -> None:
    assert parse_count(payload) == count


@pytest.mark.parametrize(
    ("payload", "replicas"),
    [
        (b'{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}', {0: (1, 2), 1: (2, 1)}),
        (
            b'{"topic_id":"x","version":3,"partitions":{"0":[1]},"adding_replicas":{},"removing_replicas":{}}',
            {0: (1,)},
        ),
        (b"", {}),
        (b"12", {}),
        (b'{"partitions":{"x":[1]}}', {}),
        (b'{"partitions":[]}', {}),
        (b'{"partitions":{"0":7}}', {}),
    ],
)
def test_a_topic_names_its_replicas(payload: bytes, replicas: dict[int, tuple[int, ...]]) -> None:
    assert parse_replicas(payload) == replicas


@pytest.mark.parametrize(
    ("payload", "config"),
    [
        (
            b'{"version":1,"config":{"cleanup.policy":"compact","retention.ms":"1000"}}',
            {"cleanup.policy": "compact", "retention.ms": "1000"},
        ),
        (b'{"version":1,"config":{}}', {}),
        (b"", {}),
        (b"[]", {}),
        (b'{"config":[1]}', {}),
        (b'{"config":null}', {}),
        (b"\xac\xed", {}),
    ],
)
def test_other_fields_of_a_config_are_ignored(payload: bytes, config: dict[str, str]) -> None:
    assert parse_topic_config(payload) == config


@pytest.mark.parametrize(
    ("payload", "state"),
    [
        (
            b'{"controller_epoch":1,"leader":2,"version":1,"leader_epoch":5,"isr":[2,1]}',
            PartitionState(2, 5, (2, 1)),
        ),
        (
            b'{"controller_epoch":9,"leader":-1,"version":1,"leader_epoch":7,"isr":[2],"leader_recovery_state":0}',
            PartitionState(None, 7, (2,)),
        ),
        (b"", None),
        (b"{}", None),
        (b'{"leader":"x","leader_epoch":1,"isr":[]}', None),
        (b'{"leader":1,"leader_epoch":1,"isr":7}', None),
    ],
)
def test_the_state_of_a_partition_is_parsed(payload: bytes, state: PartitionState | None) -> None:
    assert parse_partition_state(payload) == state


@pytest.mark.parametrize(
    ("payload", "cluster"),
    [
        (b'{"version":"1","id":"3wPxsVzoRDqGLX6QEbYmCA"}', "3wPxsVzoRDqGLX6QEbYmCA"),
        (b"", None),
        (b"{}", None),
        (b"7", None),
        (b"[", None),
        (b'{"id":null}', None),
        (b'{"id":""}', None),
        (b"\xff\xfe", None),
    ],
)
def test_a_cluster_id_is_text_or_nothing(payload: bytes, cluster: str | None) -> None:
    assert parse_cluster_id(payload) == cluster


SECURED = (
    b'{"listener_security_protocol_map":{"INSIDE":"SASL_SSL","OUTSIDE":"SASL_SSL","SSL":"SSL","PLAINTEXT":"PLAINTEXT"},'
    b'"endpoints":["OUTSIDE://out:9094","INSIDE://in:9095","SSL://in:9093","PLAINTEXT://in:9092"],"host":"in","version":5,"port":9092}'
)


@pytest.mark.parametrize(
    ("security", "place"),
    [
        (Security(), ("in", 9092)),
        (Security(SecurityProtocol.SSL), ("in", 9093)),
        (Security(SecurityProtocol.SASL_SSL), ("out", 9094)),
        (Security(SecurityProtocol.SASL_SSL, "INSIDE"), ("in", 9095)),
        (Security(SecurityProtocol.PLAINTEXT, "PLAINTEXT"), ("in", 9092)),
        (Security(SecurityProtocol.SASL_SSL, "SSL"), None),
        (Security(SecurityProtocol.SASL_PLAINTEXT), None),
        (Security(SecurityProtocol.SSL, "NOWHERE"), None),
    ],
)
def test_a_listener_has_a_protocol_and_a_name(
    security: Security, place: tuple[str, int] | None
) -> None:
    found = parse_broker("7", SECURED, security)
    assert (found and (found.host, found.port)) == place


def test_listeners_have_their_names_and_protocols() -> None:
    assert parse_listeners(SECURED) == (
        "OUTSIDE (SASL_SSL)",
        "INSIDE (SASL_SSL)",
        "SSL",
        "PLAINTEXT",
    )
    assert (
        parse_listeners(KAFKA_0_9) == ("PLAINTEXT",)
        and parse_listeners(b"{") == parse_listeners(b"[]") == ()
    )


def test_topics_of_jafka_brokers_take_no_round_trip_each(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    memory.ensure("/brokers/ids")
    memory.create("/brokers/ids/3", b"creator:h:9092")
    for number in range(100):
        memory.ensure(f"/brokers/topics/t{number}")
        memory.create(f"/brokers/topics/t{number}/3", b"2")
    zookeeper = MemoryZooKeeper(memory)
    waited_for = list[str]()
    children = zookeeper.children

    def counted(path: str) -> list[str] | None:
        waited_for.append(path)
        return children(path)

    monkeypatch.setattr(zookeeper, "children", counted)
    found = read_physical_cluster(zookeeper, [*(f"t{number}" for number in range(100)), "gone"])
    assert sorted(found.topics) == sorted(f"t{number}" for number in range(100))
    assert len(found.leaders) == 200
    assert len(waited_for) < 5
