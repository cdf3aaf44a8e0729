"""A table that a catalog names: where runs go by that it is, and whether the catalog still says so.
Spark is started, for some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from etl.decide.table_rules import catalog_of, goes_by, refuse_temporary
from etl.doctor.check import Fact, Findings, Line, Verdict, ok
from etl.doctor.rows import spark_of
from etl.errors import NotOurTable
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_records import read_named_table
from etl.model.snapshot import NamedTable
from etl.run.spark import entry_of, of_entry, refuse_elsewhere
from etl.settings.load import placed_by_name


def place(name: str, findings: Findings) -> Iterator[Line]:
    """Nothing is said of a table that the conf names by its path."""
    settings = findings.settings
    called = settings.table.name
    if called is None:
        return
    refuse_temporary(called)
    kept, has_plans = _kept(findings)
    is_known = goes_by(kept, called, catalog_of(settings.spark))
    spark = spark_of(findings)
    with translating_spark_errors():
        if kept is not None and is_known:
            refuse_elsewhere(spark.session(), placed_by_name(settings, kept.path))
        try:
            entry = entry_of(spark, settings)
        except NotOurTable as not_there:
            if kept is not None or has_plans:
                raise
            yield Line(name, Verdict.NOT_CHECKED, f"{not_there.what} yet, the first run makes it")
            return
    found = of_entry(settings, entry)
    findings.settings = placed_by_name(settings, found.path)
    yield ok(
        name,
        f"{called} is at {found.path}, "
        + ("by which runs go" if is_known else "which the next run keeps"),
    )


def _kept(findings: Findings) -> tuple[NamedTable | None, bool]:
    """What the ledger keeps of a name, this one or another, and whether it has a plan; None where
    there is none, or nobody can tell.
    """
    settings = findings.settings
    if Fact.ZOOKEEPER not in findings.established or Fact.CHROOT not in findings.established:
        return None, False
    ledger = PlanLedger(findings.zookeeper, settings.group, settings.pipeline)
    return read_named_table(ledger), bool(ledger.plan_numbers())
