"""What is made of a catalog's word on a table: the place that a run goes by, or why it cannot.

Pure functions of values. A run commits by the table's path: what only its catalog may commit to, or
reach, is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from etl.decisions.table_columns import quoted
from etl.errors import NeedsDecision, NotOurTable, Owned, SettingsError
from etl.model.snapshot import CatalogEntry, NamedTable
from etl.settings.choices import place_of

KEY = "table.name"
_DELTA = "delta"
_MANAGED_BY_CATALOG = ("delta.feature.catalogManaged", "delta.feature.catalogOwned-preview")
"""The table feature, in force and as it was called before (Delta protocol, "Catalog-managed
tables").
"""
_IN_THE_WAY = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
_PLACE = re.compile(r"associated location \('([^']*)'\)")
_HAD_BACK = (
    "have it back, by which nothing is lost: its folder from a copy, or what the catalog keeps of dropped tables (UNDROP), then "
    "`etl table resolve CONF`; only where it is gone for good `etl table resolve CONF --make` has the catalog make an empty one (after "
    "DROP TABLE, where the catalog still has the name), and says what the next run makes of it"
)
"""No run makes a table again that was there: rows were in it."""
_OF_CATALOG = re.compile(
    r"spark\.sql\.(?:catalogImplementation|defaultCatalog|catalog\..+)$|spark\.(?:hadoop\.)?(?:hive\.metastore\.uris|"
    r"javax\.jdo\.option\.ConnectionURL)$"
)
_SECRET = re.compile(r"(?i)token|password|secret|credential|oauth|key$")
_OF_PERSON = re.compile(r"(?i)(?:password|user)\w*=[^;&]*|(?<=//)[^/@]*@")
"""Who enters a database, in its URL."""
_OF_DELTA = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_LENT = re.compile(r"(?:option\.)?fs\.[\w.-]+")
"""What a catalog gives a session to reach a table's files by: settings of Hadoop's file systems, as
Unity Catalog does.
"""


def place_in(name: str, entry: CatalogEntry) -> str:
    """The table's place as a conf would write it. Raises NotOurTable for what is no Delta table
    that may be committed to by its path.
    """
    refuse_temporary(name)
    if "VIEW" in entry.kind:
        raise _refused(name, "is a view", "the Delta table that it selects from")
    if entry.provider != _DELTA:
        what = f"is no Delta table, but one of {entry.provider or 'a kind that its catalog does not tell'}"
        raise _refused(
            name,
            what,
            "CONVERT TO DELTA, another table, or a name that is not taken yet: the first run makes it",
        )
    if any(key in entry.properties for key in _MANAGED_BY_CATALOG):
        raise managed_by_catalog(name)
    lent = next((key for key in sorted(entry.properties) if _LENT.fullmatch(key)), None)
    if lent is not None:
        check = "table.path and table.store, with credentials of its own, where the catalog lets others write to the table's files"
        raise _refused(
            name, f"is reached by credentials that its catalog lends to Spark alone ({lent})", check
        )
    if not entry.location:
        raise _refused(
            name,
            "has no place that its catalog tells",
            "DESCRIBE TABLE EXTENDED; table.path, where you know it",
        )
    return as_written(entry.location)


def refuse_temporary(name: str) -> None:
    """Raises NotOurTable for the schema in which a session keeps its own views."""
    if name.lower().startswith("global_temp."):
        raise _refused(
            name,
            "is a temporary view, which is gone with its session",
            "the Delta table that it selects from",
        )


def managed_by_catalog(name: str) -> NotOurTable:
    """The failure for a table whose commits go through its catalog."""
    check = "a table of its own for this pipeline, without the table feature catalogManaged"
    return _refused(
        name, "is managed by its catalog: a commit by the table's path would go around it", check
    )


def as_written(location: str) -> str:
    """A place as Hadoop writes it, as a conf would: of a folder of this machine the folder alone."""
    return (
        re.sub(r"/+", "/", location.removeprefix("file:"), count=1)
        if location.startswith("file:/")
        else location
    )


def refuse_another_place(name: str, kept: str, now: str | None) -> None:
    """Raises NeedsDecision where the catalog has the table at another place by now, or none of this
    name (`now` is None).
    """
    if now is not None and place_of(now) == place_of(kept):
        return
    what = (
        f"the catalog has no table {name} any more"
        if now is None
        else f"the catalog has the table {name} at {now} by now"
    )
    check = (
        "whether it was moved, renamed, or dropped and made again; where that was meant: table.name, and `etl table resolve CONF`, by "
        "which the next run goes on where the table is the same, and stops where it is another one"
    )
    check += f"; else {_HAD_BACK}" if now is None else ""
    raise NeedsDecision(
        f"{what}, and the pipeline loads into {kept}", key=KEY, path=kept, check=check
    )


def catalog_of(spark: Mapping[str, str]) -> str:
    """Which catalog a name means by a conf's Spark settings: a digest of those that say so, without
    what may be a secret.
    """
    told = {
        key: _OF_PERSON.sub("", value)
        for key, value in spark.items()
        if _OF_CATALOG.match(key) and not _SECRET.search(key)
    }
    return hashlib.sha256(json.dumps(sorted(told.items())).encode()).hexdigest()[:16]


def goes_by(kept: NamedTable | None, name: str, catalog: str) -> TypeGuard[NamedTable]:
    """Whether what is kept is the word on this name, of the catalog that the conf means."""
    return kept is not None and kept.name == name and kept.catalog in (None, catalog)


def refuse_forgetful(name: str, catalog: str, implementation: str, plugin: str) -> None:
    """Raises SettingsError for the catalog of a session that is ours alone: nobody would find a
    table by a name in its memory.

    `implementation` and `plugin` are the session's spark.sql.catalogImplementation and
    spark.sql.catalog.spark_catalog.
    """
    if catalog == "spark_catalog" and implementation == "in-memory" and plugin in ("", _OF_DELTA):
        what = f"there is no table {name}: Spark's own catalog is in memory here, and knows no table of another session"
        check = "spark.sql.catalogImplementation: hive and spark.hadoop.hive.metastore.uris under spark, or the catalog in table.name"
        raise SettingsError(what, key=KEY, check=check)


def refuse_resolved_anew(name: str, path: str, catalog: str, kept: NamedTable | None) -> None:
    """Raises Owned where what is `kept` by now, which nobody but us may change any more, is another
    place of that name than `path`.
    """
    if goes_by(kept, name, catalog) and place_of(kept.path) != place_of(path):
        what = f"the table {name} was resolved anew, to {kept.path}, while this command waited; nothing was done"
        raise Owned(what, key=KEY, path=path, check="nothing; the next run goes by that place")


def gone(name: str, path: str) -> NeedsDecision:
    """The failure for a named table whose files are gone. By a path a run would make a new one, of
    which the catalog knew nothing.
    """
    check = (
        "who dropped or moved it, and that what it lies on is mounted; where the catalog has it elsewhere by now: "
        f"`etl table resolve CONF`; else {_HAD_BACK}"
    )
    return NeedsDecision(
        f"no Delta table is at the place that the catalog had for {name}",
        key=KEY,
        path=path,
        check=check,
    )


def not_there(name: str) -> NotOurTable:
    """The failure for a name that its catalog does not know, where nobody may make a table of it."""
    check = (
        "the name, and the catalogs under spark; the first table of a pipeline the first `etl run CONF` makes, of one that had a table no "
        f"run does: {_HAD_BACK}"
    )
    return NotOurTable(f"the catalog has no table {name}", key=KEY, check=check)


def not_made(
    name: str, condition: str | None, called: str, text: str, creating: str
) -> SettingsError:
    """The failure for a table that its catalog did not make, by Spark's `condition` and `text`;
    `called`: the error's name for people.

    `creating`: the statement that makes it.
    """
    what = f"there is no table {name}, and the catalog does not make it: {called}"
    check = f"rights in the catalog, or by whoever has them: {creating}"
    if condition == "SCHEMA_NOT_FOUND":
        what = f"there is no table {name}, and the catalog has no schema to make it in"
        check = f"the name, and spark.sql.catalogImplementation: hive for a Hive metastore; `CREATE SCHEMA {name.rpartition('.')[0]}`"
    elif condition == "INVALID_SCHEMA_OR_RELATION_NAME":
        what = f"there is no table {name}, and the catalog takes no such name"
        check = "table.name: a Hive metastore takes letters, digits and _ in a name, no hyphen"
    elif condition == _IN_THE_WAY:
        found = _PLACE.search(text)
        place = as_written(found[1]) if found else "..."
        what = (
            f"there is no table {name}, and something lies at the place that the catalog gives it"
        )
        what += f", {place}" if found else ""
        check = (
            "what that is: an empty Delta table is left by a run that was killed while the catalog made it, any other by a DROP TABLE "
            f"that leaves the files. Where it is the one that is meant: CREATE TABLE {name} USING delta LOCATION '{place}'; else another "
            "name, or that folder moved elsewhere"
        )
    return SettingsError(what, key=KEY, check=check)


def statement(name: str, columns: Iterable[tuple[str, str]], partition_by: Sequence[str]) -> str:
    """The statement that makes a Delta table of these columns, (name, Spark's type)."""
    shown = ", ".join(f"{quoted(column)} {kind}" for column, kind in columns)
    made = f"CREATE TABLE {name} ({shown}) USING delta"
    return (
        f"{made} PARTITIONED BY ({', '.join(map(quoted, partition_by))})" if partition_by else made
    )


def by_its_name(check: str, name: str | None) -> str:
    """What to check of a table, where a catalog has it as `name`: not its path, which the conf does
    not say. None: it is not named.
    """
    if name is None:
        return check
    meant = (
        f"table.name ({name}; nothing is lost where the catalog led to the right one before: set it back there, by ALTER TABLE ... SET "
        "LOCATION or RENAME TO, and `etl table resolve CONF`)"
    )
    return check.replace("table.path", meant, 1)


def _refused(name: str, what: str, check: str) -> NotOurTable:
    return NotOurTable(f"{name} {what}", key=KEY, check=check)
