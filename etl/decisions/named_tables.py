"""What is made of a catalog's word on a table: the place that a run goes by, or why it cannot.

Pure functions of values. A run commits by the table's path: what only its catalog may commit to, or reach, is refused by name.
"""

from __future__ import annotations

import re

from etl.errors import NeedsDecision, NotOurTable
from etl.model.named_table import CatalogEntry
from etl.settings.places import place_of

KEY = "table.name"
_DELTA = "delta"
_MANAGED_BY_CATALOG = ("delta.feature.catalogManaged", "delta.feature.catalogOwned-preview")
"""The table feature, in force and as it was called before (Delta protocol, "Catalog-managed tables")."""
_LENT = re.compile(r"(?:option\.)?fs\.[\w.-]+")
"""What a catalog gives a session to reach a table's files by: settings of Hadoop's file systems, as Unity Catalog does."""


def place_in(name: str, entry: CatalogEntry) -> str:
    """The table's place as a conf would write it. Raises NotOurTable for what is no Delta table that may be committed to by its path."""
    refuse_temporary(name)
    if "VIEW" in entry.kind:
        raise _refused(name, "is a view", "the Delta table that it selects from")
    if entry.provider != _DELTA:
        what = f"is no Delta table, but one of {entry.provider or 'a kind that its catalog does not tell'}"
        raise _refused(name, what, "CONVERT TO DELTA, another table, or a name that is not taken yet: the first run makes it")
    if any(key in entry.properties for key in _MANAGED_BY_CATALOG):
        raise managed_by_catalog(name)
    lent = next((key for key in sorted(entry.properties) if _LENT.fullmatch(key)), None)
    if lent is not None:
        check = "table.path and table.store, with credentials of its own, where the catalog lets others write to the table's files"
        raise _refused(name, f"is reached by credentials that its catalog lends to Spark alone ({lent})", check)
    if not entry.location:
        raise _refused(name, "has no place that its catalog tells", "DESCRIBE TABLE EXTENDED; table.path, where you know it")
    return as_written(entry.location)


def refuse_temporary(name: str) -> None:
    """Raises NotOurTable for the schema in which a session keeps its own views."""
    if name.lower().startswith("global_temp."):
        raise _refused(name, "is a temporary view, which is gone with its session", "the Delta table that it selects from")


def managed_by_catalog(name: str) -> NotOurTable:
    """The failure for a table whose commits go through its catalog."""
    check = "a table of its own for this pipeline, without the table feature catalogManaged"
    return _refused(name, "is managed by its catalog: a commit by the table's path would go around it", check)


def as_written(location: str) -> str:
    """A place as Hadoop writes it, as a conf would: of a folder of this machine the folder alone."""
    return re.sub(r"/+", "/", location.removeprefix("file:"), count=1) if location.startswith("file:/") else location


def refuse_another_place(name: str, kept: str, now: str | None) -> None:
    """Raises NeedsDecision where the catalog has the table at another place by now, or none of this name (`now` is None)."""
    if now is not None and place_of(now) == place_of(kept):
        return
    what = f"the catalog has no table {name} any more" if now is None else f"the catalog has the table {name} at {now} by now"
    check = (
        "whether it was moved, renamed, or dropped and made again; where that was meant: table.name, and `etl table resolve CONF`, by "
        "which the next run goes on where the table is the same, and stops where it is another one")
    raise NeedsDecision(f"{what}, and the pipeline loads into {kept}", key=KEY, path=kept, check=check)


def gone(name: str, path: str) -> NeedsDecision:
    """The failure for a named table whose files are gone. By a path a run would make a new one, of which the catalog knew nothing."""
    check = "who dropped or moved it, and that what it lies on is mounted; where it is another table by now: `etl table resolve CONF`"
    return NeedsDecision(f"no Delta table is at the place that the catalog had for {name}", key=KEY, path=path, check=check)


def _refused(name: str, what: str, check: str) -> NotOurTable:
    return NotOurTable(f"{name} {what}", key=KEY, check=check)
