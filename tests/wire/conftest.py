"""A fake broker and its clients, for tests that need no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.simple_consumer import SimpleConsumer
from tests.fakes.broker import FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        yield running


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster([(broker.host, broker.port)], timeout_s=5) as connected:
        yield connected


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(broker.host, broker.port, request_timeout_s=5) as connected:
        yield connected
