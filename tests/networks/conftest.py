"""One secured broker for all tests of this folder, and a server of each store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.networks.secured import PASSWORD, MakePipeline, Secured
from tests.networks.secured_zookeeper import USERS, variable_of
from tests.stores.servers import STORES, StoreServer
from tests.system.driving import WITHOUT_SPARK, Pipeline


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the confs of these tests find it, and those of ZooKeeper's users."""
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    for user, theirs in USERS.items():
        monkeypatch.setenv(variable_of(user), theirs)


@pytest.fixture(scope="module", params=list(STORES))
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreServer]:
    with STORES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def piped(secured: Secured, tmp_path: Path) -> MakePipeline:
    """`piped(way, partitions=4)`: a pipeline on a new topic with that security in its conf."""

    def make(way: dict[str, Any], *, partitions: int = 4, **settings: Any) -> Pipeline:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        secured.cluster.create_topic(name, partitions)
        source = {**way, **settings.pop("source", {})}
        return Pipeline(
            secured.cluster,
            tmp_path,
            name,
            f"group-{name}",
            {"source": source, **settings},
            everywhere=WITHOUT_SPARK,
        )

    return make
