"""The short form of the crash matrix; `make chaos` plays all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.spark_launch import jar_settings
from tests.chaos.collected import ALL
from tests.chaos.stage import Case, Stage


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ALL if case.short])
def test_every_record_is_in_the_table_once_after(
    case: Case, cluster: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    with Stage(cluster, tmp_path / "case") as stage:
        # A process of a case starts Spark with the archive of classes, as the tests' session does.
        everywhere = {**stage.writes.settings, "spark": jar_settings("local")}
        stage.writes = replace(stage.writes, settings=everywhere)
        assert case.play(stage).checked.is_whole
