"""A Hive metastore in Derby, in each JVM's own process, and commands on a pipeline whose table it names, as people run them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.system.driving import Pipeline

_WITHIN_S = 400
NAMED = {"path": None, "name": "lake.table", "writer": "auto"}
"""`table` of a conf whose table is called so."""


def metastore_in(folder: Path) -> dict[str, str]:
    """`spark` of a conf whose catalog lies there."""
    return {
        "spark.master": "local[1]", "spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.hadoop.hive.metastore.schema.verification": "false", "spark.hadoop.datanucleus.schema.autoCreateAll": "true"}


def said(pipeline: Pipeline, *statements: str, at: str = "") -> None:
    """As somebody else than the pipeline says them; `at`: a place in a store that they speak of."""
    finished(pipeline, "tests.networks.statements", str(pipeline.conf), at, *statements, code=0)


def command(pipeline: Pipeline, *words: str, code: int = 0) -> str:
    """What `etl` with these words says on standard error and output."""
    return finished(pipeline, "etl", *words, str(pipeline.conf), code=code)


def command_with(pipeline: Pipeline, words: tuple[str, ...], *options: str) -> str:
    """The same with options behind the conf."""
    return finished(pipeline, "etl", *words, str(pipeline.conf), *options, code=0)


def finished(pipeline: Pipeline, *words: str, code: int) -> str:
    child: subprocess.Popen[str] = pipeline.start(*words)
    out, err = child.communicate(timeout=_WITHIN_S)
    assert child.returncode == code, (words, out, err)
    assert code == 0 or "Traceback" not in err, err
    return err + out
