"""The short form of the crash matrix; `make chaos` plays all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.collected import ALL
from tests.chaos.stage import Case, Stage


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ALL if case.short])
def test_every_record_is_in_the_table_once_after(
    case: Case, cluster: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    with Stage(cluster, tmp_path / "case") as stage:
        assert case.play(stage).checked.is_whole
