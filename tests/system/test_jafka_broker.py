"""The sentences of the contract against a real Jafka, and what only a real one can show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
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
