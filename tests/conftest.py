"""Fixtures of several folders: one Spark session and one cluster, started at their first use."""

from __future__ import annotations

import contextlib
import gc
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import HealthCheck, settings

from etl.decide.table_storage import is_ours, packages, settings_for
from etl.io.spark.log_store import jar_path
from etl.io.spark.session import build_session
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.java_and_jars import store_jars
from etl.testkit.spark_launch import set_spark_environment, spark_settings
from tests.units_of_work import by_units, turn_of, unit_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.stores.pipeline import StoredPipeline
    from tests.stores.servers import StoreServer

# CI runs the same examples each time, enough to find the errors of a change; `make fuzz` searches
# for others, and longer. The speed of examples only shows the load of the machine.
settings.register_profile(
    "gate",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "random", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gate")

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """See `pytest_collection_finish`."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order of `turn_of`, else as they were collected."""
    items.sort(key=lambda item: turn_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Exclude the collected tests, a million objects, from garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist=loadfile`, but tests that share a release's servers stay together."""
    return by_units(config, log, "loadfile", unit_of)


class TopicFactory(Protocol):
    def __call__(self, partitions: int = 1, *, config: Mapping[str, str] | None = None) -> str: ...


@contextlib.contextmanager
def small_session(warehouse: Path, *, for_path: str | None = None) -> Iterator[SparkSession]:
    """A local session with two cores and two tries per task for Delta; `for_path`: in a store."""
    set_spark_environment()
    small = {
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        # what pays on large data only
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    wanted = settings_for(for_path, {}) if for_path else {}
    jars = [*store_jars(packages(wanted)), *([jar_path()] if is_ours(wanted) else [])]
    chosen = {**spark_settings("local[2,2]", besides=jars), **small, **wanted}
    # Where one compiler works alone, code has 48 MB by default: within a minute of tests these are
    # full, and from then on code is dropped and compiled again.
    chosen["spark.driver.extraJavaOptions"] += " -XX:ReservedCodeCacheSize=240m"
    session = build_session("tests", chosen)
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with small_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """An embedded ZooKeeper and a Kafka broker; each test has its own topics and groups."""
    folder = tmp_path_factory.mktemp("cluster")
    with EmbeddedCluster(folder=folder) as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def topic(cluster: EmbeddedCluster) -> TopicFactory:
    """`topic(partitions=8)` gives the name of a new topic."""

    def create(partitions: int = 1, *, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{next(_numbers)}"
        cluster.create_topic(name, partitions, config=config)
        return name

    return create


@pytest.fixture
def unused_group() -> str:
    """The name of a consumer group that no other test uses."""
    return f"group-{next(_numbers)}"


@pytest.fixture
def make_stored(
    cluster: EmbeddedCluster,
    topic: TopicFactory,
    unused_group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    """`make_stored(store)`: a pipeline of two partitions without Spark, its table in that store."""
    from tests.stores.pipeline import StoredPipeline
    from tests.system.driving import WITHOUT_SPARK

    def make(
        store: StoreServer, kind: type[StoredPipeline] = StoredPipeline, **given: Any
    ) -> StoredPipeline:
        store.give_secrets(monkeypatch)
        options = {"everywhere": WITHOUT_SPARK, "store": store, **given}
        return kind(cluster, tmp_path, topic(2), unused_group, **options)

    return make
