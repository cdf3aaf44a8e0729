"""A configured release that is not that of the brokers: no wrong data is read, and the error names
it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from etl.errors import OtherRelease
from etl.io.brokers import exchange
from etl.io.brokers.cluster_requests import Cluster
from etl.kafka import versions
from etl.model.partitions import Isolation, TopicPartition
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import (
    API_VERSIONS,
    CONFIGS,
    FETCH,
    LOG_DIRS,
    METADATA,
    FakeBroker,
    World,
    hang_up,
)

DEMO = TopicPartition("demo", 0)
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_unanswering", set())


def broker_of(release: str, world: World | None = None, broker_id: int = 1) -> FakeBroker:
    """What it does not speak is for each test to script."""
    broker = FakeBroker(world, broker_id=broker_id)
    broker.versions = dict(versions.releases()[release])
    broker.append("demo", 0, encode(Batch(0, [Rec(0, value=b"here")])))
    return broker


def cluster_of(broker: FakeBroker, text: str) -> Cluster:
    return Cluster([(broker.host, broker.port)], timeout_s=2, generation=f"kafka-{text}")


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
