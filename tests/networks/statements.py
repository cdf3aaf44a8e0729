"""SQL in another session (`python -m tests.networks.statements CONF AT STATEMENT...`), and a Hive
metastore (Derby) for it."""

from __future__ import annotations

import sys
from pathlib import Path

from etl.decide.table_storage import packages, settings_for
from etl.io.spark.catalog import enter_store
from etl.io.spark.log_store import jar_path
from etl.io.spark.session import build_session
from etl.settings.load import load_settings
from etl.settings.table import TablePath
from etl.testkit.java_and_jars import store_jars
from etl.testkit.spark_launch import jar_settings, set_spark_environment
from tests.networks.commands import finished
from tests.system.driving import Pipeline


def main(conf: str, at: str, *statements: str) -> None:
    """Execute each; `at`: a table's place, whose store the session needs; or empty."""
    settings = load_settings(conf)
    given = {**settings_for(at, settings.spark), **settings.spark}
    set_spark_environment()
    jars = [*store_jars(packages(given)), jar_path()] if at else []
    session = build_session(
        "statements",
        {**jar_settings(given["spark.master"], besides=jars), **given},
        log=Path(conf).with_name("statements.log"),
    )
    enter_store(session, TablePath(at, settings.table.store))
    for statement in statements:
        session.sql(statement).collect()
    session.stop()


NAMED = {"path": None, "name": "lake.table", "writer": "auto"}


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


if __name__ == "__main__":
    main(*sys.argv[1:])
