"""SQL by a Spark of its own, as somebody else than a pipeline says it: `python -m tests.networks.statements CONF STATEMENT...`."""

from __future__ import annotations

import sys
from pathlib import Path

from etl.edges.spark.session import build_session
from etl.embedded.spark import jar_settings, set_spark_environment
from etl.settings.loader import load_settings


def main(conf: str, *statements: str) -> None:
    """Each in turn, by a session with the Spark settings of the conf."""
    given = load_settings(conf).spark
    set_spark_environment()
    session = build_session("statements", {**jar_settings(given["spark.master"]), **given}, log=Path(conf).with_name("statements.log"))
    for statement in statements:
        session.sql(statement).collect()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
