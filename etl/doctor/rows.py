"""What the transform makes of rows: whether they fit the table and can be proven there, as a run
finds out before it stores a plan.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from etl.doctor.check import Findings, Line, Verdict, advice, ok
from etl.doctor.machine import may_need_jars
from etl.errors import EtlError, ProcessLost
from etl.io.spark.session import session_there
from etl.model.columns import names_of_key
from etl.report.run_state import Stopwatch
from etl.run.rows import fitting_arrow_transform, try_on_no_rows, unprovable
from etl.run.spark import RunSpark


def transformed(name: str, findings: Findings) -> Iterator[Line]:
    """Tried on no rows by the function that a run uses. Of DataFrames only Spark knows what comes
    out: it is started, for some seconds.
    """
    settings = findings.settings
    if not settings.either_transform:
        return
    if settings.transform and may_need_jars(findings):
        yield Line(
            name,
            Verdict.NOT_CHECKED,
            "Delta's jars are not on this machine yet, see above: the first run looks at it",
        )
        return
    if settings.transform:
        try_on_no_rows(spark_of(findings).session(), settings)
    fitting_arrow_transform(settings)
    wrong = unprovable(settings)
    if wrong:
        key = names_of_key(physical=settings.source.is_physical)
        to_do = f"if they shall be proven: ALTER TABLE ... ADD COLUMN, and a transform that leaves {key} as they are"
        yield advice(
            name, f"they fit the table, but `verify` cannot prove its rows: {wrong}", to_do
        )
        return
    yield ok(name, "they fit the table" if findings.table else "they can make a new table")


def spark_of(findings: Findings) -> RunSpark:
    """Spark as a run would have it: with the session that is there, or one that ends with the
    doctor's look.
    """
    log = Path(findings.closing.enter_context(tempfile.TemporaryDirectory()), "spark.log")
    spark = RunSpark(
        findings.settings, findings.spark_defaults, Stopwatch(), log=log, app="etl doctor"
    )
    findings.closing.callback(spark.stop)
    try:
        spark.session()
    except Exception as error:  # whatever a JVM that does not start is told as
        if isinstance(error, EtlError) or session_there() is not None:
            raise
        said = str(error).strip().split("\n", 1)[0]
        check = "the lines above on Java, jars and packages, and the keys under spark"
        raise ProcessLost(f"Spark does not start: {said}", check=check) from error
    return spark
