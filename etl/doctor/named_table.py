"""A table that a catalog names: where runs go by that it is, and whether the catalog still says so. Spark is started, for some seconds."""

from __future__ import annotations

from collections.abc import Iterator

from etl.decisions.named_tables import place_in, refuse_another_place, refuse_temporary
from etl.doctor.check import Fact, Findings, Line, Verdict, ok
from etl.doctor.rows import session_of
from etl.edges.spark.catalog import look_up
from etl.edges.spark.failures import translating_spark_errors
from etl.edges.zookeeper.ledger import PlanLedger
from etl.edges.zookeeper.named_table import read_named_table
from etl.model.named_table import NamedTable
from etl.run.named_table import of_entry
from etl.settings.table_place import placed_by_name


def place(name: str, findings: Findings) -> Iterator[Line]:
    """Nothing is said of a table that the conf names by its path."""
    called = findings.settings.table.name
    if called is not None:
        kept = _kept(findings)
        refuse_temporary(called)
        with translating_spark_errors():
            entry = look_up(session_of(findings), called)
        if kept is not None:
            refuse_another_place(called, kept.path, place_in(called, entry) if entry else None)
        if entry is None:
            yield Line(name, Verdict.NOT_CHECKED, f"the catalog has no {called} yet, the first run makes it")
            return
        found = of_entry(findings.settings, entry)
        findings.settings = placed_by_name(findings.settings, found.path)
        yield ok(name, f"{called} is at {found.path}, " + ("by which runs go" if kept else "which the first run keeps"))


def _kept(findings: Findings) -> NamedTable | None:
    """What runs go by of this name; None where it is not known, or nobody can tell."""
    settings = findings.settings
    if Fact.ZOOKEEPER not in findings.established or Fact.CHROOT not in findings.established:
        return None
    kept = read_named_table(PlanLedger(findings.zookeeper, settings.group, settings.pipeline))
    return kept if kept is not None and kept.name == settings.table.name else None
