"""What the transform makes of rows: whether they fit the table and can be proven there, as a run finds out before it stores a plan."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from etl.decisions.spark_on_stores import settings_for
from etl.doctor.check import Findings, Line, Verdict, advice, ok
from etl.doctor.machine import may_need_jars
from etl.errors import ProcessLost
from etl.model.raw_table import names_of_key
from etl.run.formats import try_on_no_rows
from etl.run.transform import fitting_arrow_transform, unprovable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def transformed(name: str, findings: Findings) -> Iterator[Line]:
    """Tried on no rows by the function that a run uses. Of DataFrames only Spark knows what comes out: it is started, for some seconds."""
    settings = findings.settings
    if not settings.either_transform:
        return
    if settings.transform and may_need_jars(findings):
        yield Line(name, Verdict.NOT_CHECKED, "Delta's jars are not on this machine yet, see above: the first run looks at it")
        return
    if settings.transform:
        try_on_no_rows(session_of(findings), settings)
    fitting_arrow_transform(settings)
    wrong = unprovable(settings)
    if wrong:
        key = names_of_key(physical=settings.source.is_physical)
        to_do = f"if they shall be proven: ALTER TABLE ... ADD COLUMN, and a transform that leaves {key} as they are"
        yield advice(name, f"they fit the table, but `verify` cannot prove its rows: {wrong}", to_do)
        return
    yield ok(name, "they fit the table" if findings.table else "they can make a new table")


def session_of(findings: Findings) -> SparkSession:
    """The session that is there, or one that ends with the doctor's look; told of the table's store, where that is known."""
    from etl.edges.spark.session import build_session, session_there
    from etl.edges.spark.stores import enter_store

    table = findings.settings.table
    there = session_there()
    if there is not None:
        if table.is_placed:
            enter_store(there, table.path)
        return there
    log = Path(findings.closing.enter_context(tempfile.TemporaryDirectory()), "spark.log")
    given = {**(settings_for(table.path, findings.settings.spark) if table.is_placed else {}), **findings.settings.spark}
    try:
        session = build_session("etl doctor", {**findings.spark_defaults(given), **given}, log=log)
    except Exception as error:  # whatever a JVM that does not start is told as
        said = str(error).strip().split("\n", 1)[0]
        check = "the lines above on Java, jars and packages, and the keys under spark"
        raise ProcessLost(f"Spark does not start: {said}", check=check) from error
    findings.closing.callback(session.stop)
    if table.is_placed:
        enter_store(session, table.path)
    return session
