"""A Hive metastore in Derby, in each JVM's own process."""

from __future__ import annotations

from pathlib import Path

from tests.networks.commands import finished
from tests.system.driving import Pipeline

NAMED = {"path": None, "name": "lake.table", "writer": "auto"}
"""`table` of a conf with this name of a table."""


def metastore_in(folder: Path) -> dict[str, str]:
    """`spark` of a conf with its catalog there."""
    return {
        "spark.master": "local[1]",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
    }


def run_statements(pipeline: Pipeline, *statements: str, at: str = "") -> None:
    """Execute them in another Spark than the pipeline's; `at`: a place in a store that they use."""
    finished(pipeline, "tests.networks.statements", str(pipeline.conf), at, *statements, code=0)
