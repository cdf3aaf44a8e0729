"""One kind of group at a time, with its servers and clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.brokers.stage import JafkaStage, KafkaStage
from tests.groups.kinds import Kind
from tests.groups.shared import Shared, sharing


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is tried in one kind of group, or on one release, comes to one worker, which has its servers: said before xdist asks."""
    for item in items:
        found = getattr(item, "callspec", None)
        params = found.params if found else {}
        kind, release = params.get("kind"), params.get("stage")
        if isinstance(kind, Kind):
            item.add_marker(pytest.mark.xdist_group(kind.name))
        elif release:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {release}"))


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    """Whoever uses it says which."""
    assert isinstance(request.param, Kind)
    return request.param


@pytest.fixture(scope="module")
def stage(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JafkaStage | KafkaStage]:
    """Its servers and clients."""
    with contextlib.ExitStack() as running:
        yield kind.begin(tmp_path_factory.mktemp("stage"), running)


@pytest.fixture
def make(kind: Kind, stage: JafkaStage | KafkaStage, spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Shared]]:
    """`make(others={...}, strategy=...)`: a topic that our runs share with others. Only `etl verify` needs Spark, of all that is played."""
    with contextlib.ExitStack() as opened:
        yield lambda **given: sharing(kind, stage, tmp_path, opened, **given)
