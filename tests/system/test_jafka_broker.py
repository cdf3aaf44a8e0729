"""The sentences of the contract against a real Jafka, and what only a real one can show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from etl.errors import BrokerError
from etl.kafka.request_values import LATEST
from etl.records.decode import Messages
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from tests.fakes.jafka import entry
from tests.fakes.jafka_contract import PARTITIONS, SEGMENT_BYTES, JafkaContract, ServedJafka

_SETTINGS = {"num.partitions": str(PARTITIONS), "log.file.size": str(SEGMENT_BYTES)}


def served_by(cluster: EmbeddedCluster, name: str) -> ServedJafka:
    host, _, port = cluster.bootstrap.rpartition(":")
    numbers = count()
    return ServedJafka(host, int(port), lambda: f"{name}-{next(numbers)}")


@pytest.fixture(scope="module")
def served() -> Iterator[ServedJafka]:
    with EmbeddedCluster(version=JAFKA, properties=_SETTINGS) as cluster:
        yield served_by(cluster, "topic")


class TestRealJafka(JafkaContract):
    """On a broker of its own."""


@pytest.mark.long
def test_unflushed_messages_are_neither_reported_nor_returned_by_a_real_broker() -> None:
    never = {
        "log.flush.interval": "4",
        "log.default.flush.interval.ms": "3600000",
        "log.default.flush.scheduler.interval.ms": "3600000",
    }
    with (
        EmbeddedCluster(version=JAFKA, properties={**_SETTINGS, **never}) as cluster,
        served_by(cluster, "unflushed").consumer() as consumer,
    ):
        for _ in range(6):
            consumer.produce("late", 0, entry(b"hello"))
        assert consumer.earliest_or_latest_offset("late", 0, LATEST) == 4 * 15
        assert len(list(Messages(consumer.fetch("late", 0, 0)))) == 4
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
            consumer.fetch("late", 0, 6 * 15)
