"""Fixtures of the system tests."""

from __future__ import annotations

import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.io.zookeeper.session_requests import ZooKeeper
from etl.testkit import cluster as embedded
from etl.testkit.cluster import EmbeddedCluster
from tests.conftest import TopicFactory
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.fakes.worker_here import work_here
from tests.system.driving import WITHOUT_SPARK, Pipeline

# Without `site`, .pth files are not read, and through such a file an editable install puts this
# package on the path.
_SCRIPT = """#!/bin/sh
PYTHONPATH="{libraries}${{PYTHONPATH:+:$PYTHONPATH}}" exec "{python}" -S "$@"
"""


@pytest.fixture(scope="session")
def python_without_the_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `python` of workers without this package; `--py-files` can be imported."""
    script = tmp_path_factory.mktemp("bare") / "python"
    script.write_text(
        _SCRIPT.format(libraries=sysconfig.get_path("purelib"), python=sys.executable)
    )
    script.chmod(0o755)
    return script


@pytest.fixture(scope="session")
def server() -> Iterator[embedded.ZooKeeper]:
    """A ZooKeeper without a Kafka, for the tests of one edge; each uses a chroot of its own."""
    with embedded.ZooKeeper() as running:
        yield running


@pytest.fixture
def connect(server: embedded.ZooKeeper) -> str:
    return f"{server.connect}/{uuid.uuid4().hex}"


@pytest.fixture
def zookeeper(connect: str) -> Iterator[ZooKeeper]:
    with ZooKeeper(connect) as session:
        session.ensure("/")
        yield session


@pytest.fixture(autouse=True)
def without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the test is marked so. Its rows are then made in this process.

    A command of any test that needs Spark fails where the test does not request the session of its
    worker: one of the command's own costs 20 seconds of processor time.
    """
    is_marked = request.node.get_closest_marker("without_spark") is not None
    if is_marked:
        work_here(monkeypatch)
    requested = set(request.fixturenames)
    if not is_marked and "pipeline" in requested:
        requested.add("spark")
    if "spark" not in requested:
        monkeypatch.setattr("etl.run.spark_on_demand.RunSpark.session", _reject_session)
    return is_marked


def _reject_session(*_: Any, **__: Any) -> None:
    raise AssertionError("this command needs Spark: the test has to request the fixture `spark`")


@pytest.fixture
def make_pipeline(
    cluster: EmbeddedCluster,
    topic: TopicFactory,
    unused_group: str,
    tmp_path: Path,
    without_spark: bool,
) -> Callable[..., Pipeline]:
    """`make_pipeline(partitions=4, source={...})`: a pipeline with its own topic and group."""
    everywhere = WITHOUT_SPARK if without_spark else {}

    def make(
        *, partitions: int = 4, config: dict[str, str] | None = None, **settings: Any
    ) -> Pipeline:
        return Pipeline(
            cluster,
            tmp_path,
            topic(partitions, config=config),
            unused_group,
            settings,
            everywhere=everywhere,
        )

    return make


@pytest.fixture
def pipeline(
    make_pipeline: Callable[..., Pipeline], without_spark: bool, request: pytest.FixtureRequest
) -> Pipeline:
    """A pipeline of four partitions; its runs share the tests' Spark session, if they need one."""
    if not without_spark:
        request.getfixturevalue("spark")
    return make_pipeline()


@pytest.fixture
def spoiled(
    make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> Iterator[tuple[Pipeline, FakeBroker]]:
    """A pipeline on a broker of our own that can misbehave; its ledger is in the real ZooKeeper."""
    with FakeBroker() as broker:
        pipeline = make_pipeline(
            source={"bootstrap_servers": f"127.0.0.1:{broker.port}", "request_timeout_s": 3}
        )
        records = [Rec(delta, b"value-%d" % delta) for delta in range(10)]
        broker.append(pipeline.topic, 0, *(encode(Batch(10 * n, records)) for n in range(3)))
        yield pipeline, broker
