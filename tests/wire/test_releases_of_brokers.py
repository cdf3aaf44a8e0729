"""The release of a broker, by its answer, silence or hang-up, and a wrong conf."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from etl.errors import BrokerUnreachable, NotKafka, OtherRelease, SettingsError
from etl.io.brokers import exchange
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.connection import Connection
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka import kafka_broker_type, versions
from etl.model.partitions import Isolation, TopicPartition
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import (
    API_VERSIONS,
    CONFIGS,
    FETCH,
    LIST_OFFSETS,
    LOG_DIRS,
    METADATA,
    Act,
    FakeBroker,
    World,
    hang_up,
    never,
)
from tests.fakes.old_broker import OldBroker

ASKED_VERSIONS, ASKED_NOTHING = (API_VERSIONS, 0), (LIST_OFFSETS, 0)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_unanswering", set())
    monkeypatch.setattr(kafka_broker_type, "HANDSHAKE_PATIENCE_S", 0.2)


@pytest.fixture(params=["0.8", "0.9"])
def old(request: pytest.FixtureRequest) -> Iterator[OldBroker]:
    with OldBroker(request.param) as broker:
        broker.log("demo").append(b"hello")
        yield broker


def consumer_of(
    broker: OldBroker | FakeBroker, broker_type: str | None = None, timeout_s: float = 5
) -> SimpleConsumer:
    return SimpleConsumer(
        "127.0.0.1", broker.port, request_timeout_s=timeout_s, broker_type=broker_type
    )


def test_an_old_broker_is_recognized(old: OldBroker) -> None:
    with consumer_of(old) as consumer:
        assert consumer.broker_type is None
        assert consumer.earliest_or_latest_offset("demo", 0, -1) == 1
        assert consumer.broker_type == f"kafka-{old.release}"
        version = 1 if old.release == "0.9" else 0
        introduction = f"Kafka, treated as {old.release}, Fetch v{version}"
        assert consumer.introduction() == introduction


def test_a_broker_of_0_9_may_hang_up_as_0_8_does() -> None:
    with OldBroker("0.9", hangs_up=True) as old, consumer_of(old) as consumer:
        assert consumer.introduction() == "Kafka, treated as 0.9, Fetch v1"


def test_with_a_known_generation_no_versions_are_requested(old: OldBroker) -> None:
    with consumer_of(old, f"kafka-{old.release}") as consumer:
        assert consumer.earliest_or_latest_offset("demo", 0, -1) == 1
    assert (API_VERSIONS, 0) not in old.requests
    assert old.connections == 1


def test_a_silent_broker_is_waited_for_once_only(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    is_answering = Connection.is_answering

    def timed(connection: Connection, deadline: float) -> bool:
        waits.append(deadline - time.monotonic())
        return is_answering(connection, deadline)

    monkeypatch.setattr(Connection, "is_answering", timed)
    with OldBroker("0.9") as old:
        for _ in range(3):
            with consumer_of(old) as consumer:
                assert consumer.introduction().startswith("Kafka, treated as 0.9")
    assert [wait > 0 for wait in waits] == [True, False, False]


def test_a_newer_broker_at_the_address_of_an_old_one_is_detected() -> None:
    with FakeBroker() as upgraded:
        exchange._unanswering.add((upgraded.host, upgraded.port))
        with consumer_of(upgraded) as consumer:
            assert consumer.introduction().startswith("Kafka 3.9")
        assert exchange._unanswering == set()


def slowly(connection: socket.socket, frame: bytes) -> None:
    time.sleep(0.4)
    connection.sendall(frame)


ASKED_AGAIN = [ASKED_VERSIONS, ASKED_NOTHING, ASKED_VERSIONS]


@pytest.mark.parametrize("act", [slowly, hang_up])
@pytest.mark.parametrize("hangs_up_on_the_old_request", [False, True], ids=["", "as 4.x does"])
def test_a_busy_or_restarting_broker_is_not_taken_for_an_old_one(
    act: Act, hangs_up_on_the_old_request: bool
) -> None:
    with FakeBroker() as broker, consumer_of(broker) as consumer:
        broker.script[API_VERSIONS].append(act)
        broker.script[LIST_OFFSETS].extend([hang_up] * hangs_up_on_the_old_request)
        assert consumer.introduction().startswith("Kafka 3.9")
        assert broker.requests[-1] == ASKED_VERSIONS
        assert act is slowly or broker.requests == ASKED_AGAIN or hangs_up_on_the_old_request
        assert consumer.broker_type == "kafka"


def test_a_port_that_hangs_up_on_everything_is_no_broker() -> None:
    with FakeBroker() as other, consumer_of(other) as consumer:
        other.script[API_VERSIONS].extend([hang_up] * 2)
        other.script[LIST_OFFSETS].extend([hang_up] * 2)
        with pytest.raises(NotKafka, match="closed on the first request"):
            consumer.introduction()


def test_a_broker_of_another_generation_than_configured_fails_with_that_error() -> None:
    with FakeBroker() as new, consumer_of(new, "kafka-0.9") as consumer:
        new.script[LIST_OFFSETS].extend([hang_up] * 2)  # as 4.x does
        with pytest.raises(
            NotKafka, match="closed on the first request.*Kafka 0.9.*broker_version"
        ):
            consumer.introduction()


def test_an_unknown_configured_generation_is_named() -> None:
    with FakeBroker() as broker, consumer_of(broker, "granite") as consumer:
        with pytest.raises(SettingsError, match="There is no broker type granite"):
            consumer.introduction()


@pytest.mark.parametrize(
    "broker_type", ["kafka", "kafka-0.8", "kafka-0.9", "kafka-0.10.0", "kafka-3.9", "kafka-4.1"]
)
def test_a_broker_without_answers_is_unreachable_at_the_deadline(broker_type: str) -> None:
    with FakeBroker() as silent, consumer_of(silent, broker_type, timeout_s=0.3) as consumer:
        silent.script[API_VERSIONS].extend([never] * 5)
        silent.script[LIST_OFFSETS].extend([never] * 5)
        began = time.monotonic()
        with pytest.raises(BrokerUnreachable, match="got no answer"):
            consumer.introduction()
        assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("broker_type", "version"),
    [("kafka-0.10.0", 0), ("kafka-0.10.1", 1), ("kafka-0.11", 2), ("kafka-4.1", 7)],
)
def test_the_first_request_fits_a_configured_release(broker_type: str, version: int) -> None:
    with FakeBroker() as broker, consumer_of(broker, broker_type) as consumer:
        assert consumer.introduction().startswith(f"Kafka, treated as {broker_type[6:]}, ")
        assert broker.requests == [(LIST_OFFSETS, version)]


# Configured releases


DEMO = TopicPartition("demo", 0)
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


def broker_of(release: str, world: World | None = None, broker_id: int = 1) -> FakeBroker:
    """What it does not speak is for each test to script."""
    broker = FakeBroker(world, broker_id=broker_id)
    broker.versions = dict(versions.releases()[release])
    broker.append("demo", 0, encode(Batch(0, [Rec(0, value=b"here")])))
    return broker


def cluster_of(broker: FakeBroker, text: str) -> Cluster:
    return Cluster([(broker.host, broker.port)], timeout_s=2, broker_type=f"kafka-{text}")


def extents_of(cluster: Cluster, isolation: Isolation) -> set[TopicPartition]:
    return set(
        cluster.extents([DEMO], isolation=isolation, metadata=cluster.describe(["demo"])).extents
    )


# A release without transactions, of a broker that has them


def test_a_release_without_transactions_reads_none_uncommitted() -> None:
    with broker_of("1.1") as broker, cluster_of(broker, "0.10.2") as cluster:
        with pytest.raises(
            OtherRelease, match="treated as Kafka 0.10.2, and answers like Kafka 1.1"
        ):
            extents_of(cluster, COMMITTED)


@pytest.mark.parametrize(
    ("release", "configured", "isolation", "probes"),
    [
        ("1.1", "0.10.2", UNCOMMITTED, 0),
        ("3.9", "0.11", COMMITTED, 0),
        ("3.9", "3.9", COMMITTED, 0),
        ("0.10.2", "0.10.2", COMMITTED, 1),
    ],
)
def test_a_broker_is_probed_once_where_it_may_have_transactions(
    release: str, configured: str, isolation: Isolation, probes: int
) -> None:
    with broker_of(release) as broker, cluster_of(broker, configured) as cluster:
        assert [extents_of(cluster, isolation) for _ in range(3)] == [{DEMO}] * 3
        assert broker.requests.count((API_VERSIONS, 0)) == probes


def test_a_broker_that_leads_nothing_yet_is_probed_too() -> None:
    world = World()
    with broker_of("0.10.2", world) as first, FakeBroker(world, broker_id=2) as second:
        with cluster_of(first, "0.10.2") as cluster, pytest.raises(OtherRelease) as raised:
            extents_of(cluster, COMMITTED)
    assert raised.value.where["broker"] == f"{second.host}:{second.port}"


def test_an_unreachable_broker_that_leads_nothing_stops_nothing() -> None:
    world = World()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        world.addresses[2] = gone.getsockname()
    with broker_of("0.10.2", world) as broker, cluster_of(broker, "0.10.2") as cluster:
        assert extents_of(cluster, COMMITTED) == {DEMO}


# A release of which the brokers do not speak everything (any more)


@pytest.mark.parametrize(
    ("release", "text", "api", "ask"),
    [
        ("2.8", "4.1", METADATA, lambda cluster: cluster.describe(["demo"])),
        (
            "4.1",
            "1.0",
            LOG_DIRS,
            lambda cluster: cluster.bytes_per_offset(cluster.extents([DEMO], isolation=COMMITTED)),
        ),
        ("4.1", "0.11", CONFIGS, lambda cluster: cluster.retention(["demo"])),
        (
            "4.1",
            "0.10.2",
            FETCH,
            lambda cluster: cluster.first(lambda consumer: consumer.fetch("demo", 0, 0)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_request_that_makes_brokers_hang_up_names_the_setting(
    release: str, text: str, api: int, ask: Callable[[Cluster], object]
) -> None:
    with broker_of(release) as broker, cluster_of(broker, text) as cluster:
        broker.versions.setdefault(api, (1, 4))
        broker.script[api].extend([hang_up] * 4)
        with pytest.raises(
            OtherRelease,
            match=f"treated as Kafka {text}, and answers like Kafka {release}, which has no ",
        ):
            ask(cluster)
