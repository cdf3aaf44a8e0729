"""One release at a time; `make test-brokers` runs them all, `make test` those of IN_THE_GATE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.testkit.brokers import DEFAULT_VERSION, RELEASES
from tests.brokers.compiling import IN_THE_GATE
from tests.brokers.stage import JafkaStage, KafkaStage, begin
from tests.brokers.writing import ForeignPipeline
from tests.fakes.worker_here import work_here
from tests.system.driving import WITHOUT_SPARK

VERSIONS = [
    pytest.param(version, marks=[] if version in IN_THE_GATE else pytest.mark.brokers)
    for version in RELEASES
]


@pytest.fixture(scope="package", params=VERSIONS)
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaStage | JafkaStage]:
    """A release's servers and clients; the default release has those of the other tests."""
    there = request.getfixturevalue("cluster") if request.param == DEFAULT_VERSION else None
    with ExitStack() as running:
        yield begin(request.param, tmp_path_factory.mktemp("stage"), running, there)


@pytest.fixture
def make_pipeline(
    stage: KafkaStage | JafkaStage,
    spark: SparkSession,
    unused_group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., ForeignPipeline]:
    """`make_pipeline(source={...})`: a pipeline on a new topic; its runs need no Spark."""
    work_here(monkeypatch)

    def make(*, source: dict[str, Any] | None = None, **settings: Any) -> ForeignPipeline:
        merged = {**settings, **stage.conf, "source": {**stage.conf["source"], **(source or {})}}
        topic, everywhere = stage.new_topic(), WITHOUT_SPARK
        return ForeignPipeline(
            stage.cluster, tmp_path, topic, unused_group, merged, everywhere=everywhere, stage=stage
        )

    return make
