"""One kind of group at a time, with its servers and clients."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.brokers.stage import JafkaStage, KafkaStage
from tests.groups.kinds import BY_JAVA, BY_LIBRDKAFKA, OLD, Kind
from tests.groups.shared import Shared, sharing
from tests.units_of_work import by_units

_KIND = re.compile(
    rf"[\[-]({'|'.join(re.escape(kind.name) for kind in (*OLD, *BY_JAVA, *BY_LIBRDKAFKA))})[ \]]"
)


def servers_of(nodeid: str) -> str:
    """Tests with the same members have the same group name, which `xdist_group` breaks."""
    found = _KIND.search(nodeid)
    return found[1] if found else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist=loadgroup`: all tests of one kind of group share a worker and its servers."""
    return by_units(config, log, "loadgroup", servers_of)


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    """The user of the fixture selects it."""
    assert isinstance(request.param, Kind)
    return request.param


@pytest.fixture(scope="module")
def stage(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JafkaStage | KafkaStage]:
    with contextlib.ExitStack() as running:
        yield kind.begin(tmp_path_factory.mktemp("stage"), running)


@pytest.fixture
def make(
    kind: Kind, stage: JafkaStage | KafkaStage, spark: SparkSession, tmp_path: Path
) -> Iterator[Callable[..., Shared]]:
    """`make(others={...}, num_streams=...)`: a topic that our runs share with others."""
    with contextlib.ExitStack() as opened:
        yield lambda **given: sharing(kind, stage, tmp_path, opened, **given)
