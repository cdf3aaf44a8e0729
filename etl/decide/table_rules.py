"""Which tables, columns and catalog entries can a run write to?

Columns: which ones a Delta table can have and be partitioned by, and whether rows fit. A column is
a field of the schema as Delta's log has it (Delta protocol, "Schema Serialization Format").

Catalogs: a run commits by path; a table that only its catalog may commit to or reach is rejected by
name. If a catalog fails, the first known cause and its setting are reported; texts of servers and
drivers are not repeated, since they may quote credentials.

Rows of the planned topics that no plan of the pipeline loaded:

    first offset of a partition to be read        decision
    -------------------------------------------   --------------------------------------------------
    after the last row of its last incarnation    it begins there, in that incarnation
    before it, accepted as other records          it begins there, in the next incarnation
    before it                                     NeedsDecision

The plan keeps what was found (`Plan.rows_before`), for partitions read later and for `etl verify`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from etl.decide.table_changes import accepted_version
from etl.errors import EtlError, NeedsDecision, NotOurTable, Owned, SettingsError, TableUnreachable
from etl.model.partitions import BrokerPartition, render_log
from etl.model.plans import HeldRows, Plan, RowsBefore
from etl.model.snapshot import CatalogEntry, NamedTable, Snapshot
from etl.settings.choices import place_of

Columns = Mapping[str, str]
"""Name -> `{"nullable": ..., "type": ...}`."""

_NULLABILITY = ("nullable", "containsNull", "valueContainsNull")
_FORBIDDEN = " ,;{}()\n\t="
"""In a name of a column, and of a struct's field, as long as the table has no column mapping
(Delta: `SchemaUtils.checkFieldNames`).
"""
_IN_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Delta's names of types, where Spark's statements have others."""
_NO_TYPE_OF_DELTA = re.compile(r"interval\b.*|time(\(\d+\))?")


def fits(rows: Any, table: Any) -> bool:
    """True if values of one type (or field) can be stored as the other: equal, or not nullable into
    nullable. So does Delta's own writer, which makes all columns of a new table nullable.
    """
    if isinstance(rows, dict) and isinstance(table, dict):
        return rows.keys() == table.keys() and all(
            (table[key] or not rows[key]) if key in _NULLABILITY else fits(rows[key], table[key])
            for key in rows
        )
    if isinstance(rows, list) and isinstance(table, list):
        return len(rows) == len(table) and all(
            fits(*pair) for pair in zip(rows, table, strict=True)
        )
    return bool(rows == table)


def reject_other_columns(path: str, wanted: Columns, found: Columns) -> None:
    """Raises NotOurTable naming the first column of the table that rows of the `wanted` columns do
    not fit.

    A column that they lack is fine when it may be null.
    """
    action = "Check that table.path is the right table, and that partitioning, transform and dialect did not change"
    to_add = columns_to_add(wanted, found)
    if to_add:
        action += f"; a table that is meant to have them gets them by {to_add}"
    where = {"path": path, "action": action}
    for name, kind in wanted.items():
        if name not in found:
            raise NotOurTable(f"The table has no column {name} (expected: {_said(kind)})", **where)
        if not fits(json.loads(kind), json.loads(found[name])):
            raise NotOurTable(
                f"The table's column {name} is {_said(found[name])}, expected {_said(kind)}",
                **where,
            )
    for name, kind in found.items():
        if name not in wanted and not json.loads(kind)["nullable"]:
            raise NotOurTable(
                f"The table's column {name} is {_said(kind)}, and our rows do not have it", **where
            )


def columns_to_add(wanted: Columns, found: Columns) -> str:
    """The statement that gives a table the columns that it lacks; empty if it has all of them."""
    lacking = ", ".join(
        f"{quoted(name)} {_in_sql(json.loads(kind)['type'])}"
        for name, kind in wanted.items()
        if name not in found
    )
    return f"ALTER TABLE ... ADD COLUMNS ({lacking})" if lacking else ""


def reject_partitions(
    columns: Columns, partition_by: Sequence[str], *, path: str | None = None
) -> None:
    """Reject a partitioning that changes a column's content or that Delta rejects. Raises
    SettingsError. `path`: of an existing table.
    """
    for name in partition_by:
        kind = json.loads(columns[name])["type"]
        if kind == "binary":
            message = f"The table cannot be partitioned by {name}: Delta keeps the values of partitions as text, and bytes come back as others"
            raise SettingsError(
                message,
                key="table.partition_by",
                path=path,
                action=_name_instead_of_bytes(name, path),
            )
        if (
            not isinstance(kind, str)
            or kind in ("variant", "void")
            or _NO_TYPE_OF_DELTA.fullmatch(kind)
        ):
            message = f"The table cannot be partitioned by {name}, which is {_named(kind)}"
            raise SettingsError(
                message,
                key="table.partition_by",
                action="Use columns of numbers, texts, dates, times or booleans",
            )
    if partition_by and set(columns) <= set(partition_by):
        action = "Add at least one column that is no partition"
        raise SettingsError(
            "The table cannot be partitioned by all of its columns",
            key="table.partition_by",
            action=action,
        )


def _name_instead_of_bytes(name: str, path: str | None) -> str:
    column = f"Use a string column that the transform adds, e.g. F.hex('{name}')"
    if path is None:
        return column
    return (
        f"{column}: write the table anew, partitioned by that one (overwrite with overwriteSchema), then `etl table accept-changes`; what was "
        f"no UTF-8 text in {name} is another one in this table for good, and a new table under another group and pipeline has it right"
    )


def reject_impossible_columns(
    columns: Sequence[Mapping[str, Any]], *, with_mapping: bool = False, key: str = "transform"
) -> None:
    """Raises SettingsError for columns, as a schema's fields, that no new Delta table can have.
    With column mapping names are free.

    `key` is the conf's key of the transform that makes them.
    """
    action = "Check the columns that the transform makes"
    for names in _names_together(columns):
        twice = [
            name for name, count in Counter(name.lower() for name in names).items() if count > 1
        ]
        if twice:
            named = " and ".join(dict.fromkeys(name for name in names if name.lower() == twice[0]))
            message = f"The transform makes the column {named} more than once; to Delta capital letters are no difference"
            raise SettingsError(message, key=key, action=action)
        bad = next((name for name in names if set(name) & set(_FORBIDDEN)), None)
        if bad is not None and not with_mapping:
            message = f"The transform makes a column {bad!r}, and Delta takes no blanks, tabs, line ends or any of ,;{{}}()= in a name"
            raise SettingsError(message, key=key, action=action)
    for field in columns:
        wrong = next(_impossible_types(field["type"]), None)
        if wrong is not None:
            raise SettingsError(
                f"The transform makes the column {field['name']} of a type that Delta does not have: {wrong}",
                key=key,
                action=action,
            )


def _names_together(fields: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """The names of these fields, then those within each of them."""
    yield [field["name"] for field in fields]
    for field in fields:
        for struct in _structs(field["type"]):
            yield from _names_together(struct["fields"])


def _structs(kind: Any) -> Iterator[Mapping[str, Any]]:
    """The outermost structs of a type."""
    if isinstance(kind, dict) and kind.get("type") == "struct":
        yield kind
    elif isinstance(kind, dict):
        for part in ("elementType", "keyType", "valueType"):
            yield from _structs(kind.get(part))


def _impossible_types(kind: Any) -> Iterator[str]:
    """Return types that Delta lacks; `void` only as a whole column or beside others in a struct."""
    if isinstance(kind, str):
        if _NO_TYPE_OF_DELTA.fullmatch(kind):
            yield kind
        return
    if kind.get("type") == "struct":
        if all(field["type"] == "void" for field in kind["fields"]):
            yield "a struct without anything in it"
        for field in kind["fields"]:
            yield from _impossible_types(field["type"])
        return
    for part in ("elementType", "keyType", "valueType"):
        if kind.get(part) == "void":
            yield f"{kind['type']} of nothing but null"
        elif part in kind:
            yield from _impossible_types(kind[part])


def quoted(name: str) -> str:
    """A column's name as SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def _in_sql(kind: Any) -> str:
    """A column's type as a statement has it."""
    if isinstance(kind, str):
        return _IN_SQL.get(kind, kind).upper()
    if kind["type"] == "array":
        return f"ARRAY<{_in_sql(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"MAP<{_in_sql(kind['keyType'])}, {_in_sql(kind['valueType'])}>"
    return (
        "STRUCT<"
        + ", ".join(f"{quoted(one['name'])}: {_in_sql(one['type'])}" for one in kind["fields"])
        + ">"
    )


def _said(column: str) -> str:
    """A column's type for a person."""
    found = json.loads(column)
    return _named(found["type"]) if found["nullable"] else f"{_named(found['type'])} not null"


def _named(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


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
    "`etl table lookup-path CONF`; only where it is gone for good `etl table lookup-path CONF --create-empty` has the catalog make an empty one (after "
    "DROP TABLE, where the catalog still has the name), and says what the next run makes of it"
)
"""No run makes a table again that was there: rows were in it."""
_OF_CATALOG = re.compile(
    r"spark\.sql\.(?:catalogImplementation|defaultCatalog|catalog\..+)$|spark\.(?:hadoop\.)?(?:hive\.metastore\.uris|"
    r"javax\.jdo\.option\.ConnectionURL)$"
)
_SECRET = re.compile(r"(?i)token|password|secret|credential|oauth|key$")
_OF_PERSON = re.compile(r"(?i)(?:password|user)\w*=[^;&]*|(?<=//)[^/@]*@")
"""User part of a database URL."""
_OF_DELTA = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_LENT = re.compile(r"(?:option\.)?fs\.[\w.-]+")
"""Settings of Hadoop's file systems by which a catalog lends credentials, as Unity Catalog does."""


def place_in(name: str, entry: CatalogEntry) -> str:
    """Return the table's location as a conf would have it. Raises NotOurTable for a table that
    cannot be committed to by path.
    """
    reject_temporary(name)
    if "VIEW" in entry.kind:
        raise _refused(name, "is a view", "Use the Delta table that it selects from")
    if entry.provider != _DELTA:
        message = f"is no Delta table, but one of {entry.provider or 'a kind that its catalog does not tell'}"
        raise _refused(
            name,
            message,
            "CONVERT TO DELTA, another table, or a name that is not taken yet: the first run makes it",
        )
    if any(key in entry.properties for key in _MANAGED_BY_CATALOG):
        raise managed_by_catalog(name)
    lent = next((key for key in sorted(entry.properties) if _LENT.fullmatch(key)), None)
    if lent is not None:
        action = "Check table.path and table.store, with credentials of its own, where the catalog lets others write to the table's files"
        raise _refused(
            name,
            f"is reached by credentials that its catalog lends to Spark alone ({lent})",
            action,
        )
    if not entry.location:
        raise _refused(
            name,
            "has no place that its catalog tells",
            "DESCRIBE TABLE EXTENDED; table.path, where you know it",
        )
    return as_written(entry.location)


def reject_temporary(name: str) -> None:
    """Raises NotOurTable for the schema in which a session keeps its own views."""
    if name.lower().startswith("global_temp."):
        raise _refused(
            name,
            "is a temporary view, which is gone with its session",
            "Use the Delta table that it selects from",
        )


def managed_by_catalog(name: str) -> NotOurTable:
    """Return the error for a table whose commits go through its catalog."""
    action = "Use a table of its own for this pipeline, without the table feature catalogManaged"
    return _refused(
        name, "is managed by its catalog: a commit by the table's path would go around it", action
    )


def as_written(location: str) -> str:
    """A place as Hadoop writes it, as a conf would: of a folder of this machine the folder alone."""
    if location.startswith("file:/"):
        return re.sub(r"/+", "/", location.removeprefix("file:"), count=1)
    return location


def reject_other_location(name: str, kept: str, now: str | None) -> None:
    """Raises NeedsDecision where the catalog has the table at another place by now, or none of this
    name (`now` is None).
    """
    if now is not None and place_of(now) == place_of(kept):
        return
    if now is None:
        message = f"the catalog has no table {name} any more"
    else:
        message = f"the catalog has the table {name} at {now} by now"
    action = (
        "Check whether it was moved, renamed, or dropped and recreated. If that is intended, set table.name and run `etl table lookup-path CONF`: "
        "the next run continues if it is the same table, and stops if it is another one"
    )
    action += f". Else {_HAD_BACK}" if now is None else ""
    raise NeedsDecision(
        f"{message}, and the pipeline loads into {kept}", key=KEY, path=kept, action=action
    )


def catalog_of(spark: Mapping[str, str]) -> str:
    """Return a digest of the Spark settings that define the catalog of a name, without possible
    secrets.
    """
    properties = {
        key: _OF_PERSON.sub("", value)
        for key, value in spark.items()
        if _OF_CATALOG.match(key) and not _SECRET.search(key)
    }
    return hashlib.sha256(json.dumps(sorted(properties.items())).encode()).hexdigest()[:16]


def goes_by(kept: NamedTable | None, name: str, catalog: str) -> TypeGuard[NamedTable]:
    """True if the kept location is of this name in the conf's catalog."""
    return kept is not None and kept.name == name and kept.catalog in (None, catalog)


def reject_in_memory_catalog(name: str, catalog: str, implementation: str, plugin: str) -> None:
    """Reject an in-memory catalog, in which no other session finds the table. Raises SettingsError.
    `implementation`, `plugin`: spark.sql.catalogImplementation, spark.sql.catalog.spark_catalog.
    """
    if catalog == "spark_catalog" and implementation == "in-memory" and plugin in ("", _OF_DELTA):
        message = f"There is no table {name}: Spark's own catalog is in memory here, and knows no table of another session"
        action = "Check spark.sql.catalogImplementation: hive and spark.hadoop.hive.metastore.uris under spark, or the catalog in table.name"
        raise SettingsError(message, key=KEY, action=action)


def reject_relocated_table(name: str, path: str, catalog: str, kept: NamedTable | None) -> None:
    """Raises Owned if the recorded location, which only we may change, is no longer `path`."""
    if goes_by(kept, name, catalog) and place_of(kept.path) != place_of(path):
        message = f"The table {name} was resolved anew, to {kept.path}, while this command waited; nothing was done"
        raise Owned(message, key=KEY, path=path, action="The next run goes by that place")


def gone(name: str, path: str) -> NeedsDecision:
    """Return the error for a named table whose files are gone. A run would create a table that the
    catalog does not know.
    """
    action = (
        "Check who dropped or moved it, and that what it lies on is mounted; where the catalog has it elsewhere by now: "
        f"`etl table lookup-path CONF`; else {_HAD_BACK}"
    )
    return NeedsDecision(
        f"No Delta table is at the place that the catalog had for {name}",
        key=KEY,
        path=path,
        action=action,
    )


def not_there(name: str) -> NotOurTable:
    """Return the error for an unknown name that may not be created."""
    action = (
        "Check the name, and the catalogs under spark; the first table of a pipeline the first `etl run CONF` makes, of one that had a table no "
        f"run does: {_HAD_BACK}"
    )
    return NotOurTable(f"The catalog has no table {name}", key=KEY, action=action)


def not_made(
    name: str, condition: str | None, called: str, text: str, creating: str
) -> SettingsError:
    """The failure for a table that its catalog did not make, by Spark's `condition` and `text`;
    `called`: the error's name for people.

    `creating`: the statement that makes it.
    """
    message = f"There is no table {name}, and the catalog does not make it: {called}"
    action = f"Check the rights in the catalog, or by whoever has them: {creating}"
    if condition == "SCHEMA_NOT_FOUND":
        message = f"There is no table {name}, and the catalog has no schema to make it in"
        action = f"Check the name, and spark.sql.catalogImplementation: hive for a Hive metastore; `CREATE SCHEMA {name.rpartition('.')[0]}`"
    elif condition == "INVALID_SCHEMA_OR_RELATION_NAME":
        message = f"There is no table {name}, and the catalog takes no such name"
        action = "Set table.name: a Hive metastore takes letters, digits and _ in a name, no hyphen"
    elif condition == _IN_THE_WAY:
        found = _PLACE.search(text)
        place = as_written(found[1]) if found else "..."
        message = (
            f"There is no table {name}, and something lies at the place that the catalog gives it"
        )
        message += f", {place}" if found else ""
        action = (
            "Check what that is: an empty Delta table is left by a run that was killed while the catalog made it, any other by a DROP TABLE "
            f"that leaves the files. Where it is the one that is meant: CREATE TABLE {name} USING delta LOCATION '{place}'; else another "
            "name, or that folder moved elsewhere"
        )
    return SettingsError(message, key=KEY, action=action)


def statement(name: str, columns: Iterable[tuple[str, str]], partition_by: Sequence[str]) -> str:
    """The statement that makes a Delta table of these columns, (name, Spark's type)."""
    shown = ", ".join(f"{quoted(column)} {kind}" for column, kind in columns)
    made = f"CREATE TABLE {name} ({shown}) USING delta"
    if partition_by:
        return f"{made} PARTITIONED BY ({', '.join(map(quoted, partition_by))})"
    return made


def by_its_name(action: str, name: str | None) -> str:
    """Return what to check of a table named in a catalog, without its path; None without a name."""
    if name is None:
        return action
    meant = (
        f"table.name ({name}; nothing is lost where the catalog led to the right one before: set it back there, by ALTER TABLE ... SET "
        "LOCATION or RENAME TO, and `etl table lookup-path CONF`)"
    )
    return action.replace("table.path", meant, 1)


def _refused(name: str, message: str, action: str) -> NotOurTable:
    return NotOurTable(f"{name} {message}", key=KEY, action=action)


_URIS = ("spark.hadoop.hive.metastore.uris", "spark.hive.metastore.uris", "hive.metastore.uris")
"""Keys of a Hive metastore's address; the last one is Hadoop's."""
_DATABASE = "spark.hadoop.javax.jdo.option.ConnectionURL"
_JARS = "Add the jar with it: spark.jars.packages, spark.jars or spark.driver.extraClassPath under spark, or spark-submit --jars"
_LOGIN = "Check the authentication of the catalog: the settings next to that key, the ticket, hive-site.xml"
_SERVER = "Check that the catalog's server answers there, and Spark's log next to the run's report. A later run asks again"
_WRAPPING = frozenset(
    (
        "AnalysisException",
        "ExecutionException",
        "HiveException",
        "InvocationTargetException",
        "MetaException",
        "Py4JJavaError",
        "RuntimeException",
        "SparkException",
        "UncheckedExecutionException",
        "UndeclaredThrowableException",
    )
)
"""Exceptions that only wrap another one."""
_CLASS = re.compile(r"(?:[a-z_]\w*\.)+([A-Z]\w*(?:Exception|Error))\b")


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a failure, and whether it is permanent until a setting changes."""

    summary: str
    stays: bool
    action: str


_KNOWN: Sequence[tuple[str, str, bool, str]] = (
    (
        r"(?:ClassNotFoundException: (?:Class )?|NoClassDefFoundError: |\bClass (?=[\w.$]+ not found))([\w.$/]+)",
        "Spark does not find the class {}",
        True,
        _JARS,
    ),
    (
        r"No suitable driver|Unable to load (?:JDBC )?driver|datastore driver \(.*?\) was not found",
        "Spark has no JDBC driver for the metastore's database",
        True,
        _JARS,
    ),
    (
        r"GSS initiate failed|SaslException|SASL negotiation failure|Access denied|authentication failed"
        r"|(?i:\bunauthori[sz]ed\b|\bforbidden\b)",
        "the login was refused",
        True,
        _LOGIN,
    ),
    (
        r"AccessControlException|Permission denied",
        "permission was refused",
        True,
        "Check the rights of the user of the run",
    ),
    (r"UnknownHostException", "there is no such host", False, _SERVER),
    (r"Connection refused", "connection refused", False, _SERVER),
    (
        r"SocketTimeoutException|ConnectTimeoutException|(?:Read|connect|Connection) timed out",
        "no answer in time",
        False,
        _SERVER,
    ),
    (
        r"NoRouteToHostException|Network is unreachable",
        "there is no way to the host",
        False,
        _SERVER,
    ),
    (r"Connection reset|Broken pipe|EOFException", "the connection broke", False, _SERVER),
    (
        r"XSDB6|Another instance of Derby",
        "another process has the metastore's Derby database",
        False,
        "Check who else uses it: one user at a time can",
    ),
)


def known_cause(causes: Sequence[str]) -> Cause | None:
    """Return the known cause of Java exceptions (class, text), outermost first; None if there is
    none.
    """
    text = "\n".join(causes)
    for pattern, reason, stays, action in _KNOWN:
        found = re.search(pattern, text)
        if found:
            return Cause(reason.format(*found.groups()), stays, action)
    return None


def innermost(causes: Sequence[str]) -> str:
    """The class of the innermost one that is more than a wrapping."""
    classes = [found[1] for one in reversed(causes) if (found := _CLASS.match(one))]
    return next(
        (name for name in classes if name not in _WRAPPING),
        classes[0] if classes else "nobody says why",
    )


def cannot_be(
    doing: str,
    name: str,
    causes: Sequence[str],
    spark: Mapping[str, str],
    *,
    instead: str | None = None,
) -> EtlError:
    """Return the error of an action ("be asked for", "make") on a name: exit 2 if only a person can
    fix it, else 7. `spark`: the session's settings, which name the catalog's address. `instead`: an
    alternative.
    """
    cause = known_cause(causes) or Cause(innermost(causes), False, _SERVER)
    key, place = _named_by(name, spark)
    message = f"The catalog cannot {doing} {name}: {cause.summary}{f', {place}' if place else ''}"
    kind = SettingsError if cause.stays else TableUnreachable
    return kind(
        message,
        key=key,
        action=f"{cause.action}. Or, with the rights for it: {instead}"
        if instead and cause.stays
        else cause.action,
    )


def meant_by(name: str, spark: Mapping[str, str]) -> str:
    """The catalog of a name; of one with a schema alone the session's own, "" where that is
    Spark's.
    """
    return name.split(".")[0] if name.count(".") > 1 else spark.get("spark.sql.defaultCatalog", "")


def _named_by(name: str, spark: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the setting with a catalog's address, and the address; of a database URL, which may
    have a password, nothing.
    """
    catalog = meant_by(name, spark)
    if catalog not in ("", "spark_catalog"):
        keys: tuple[str, ...] = (f"spark.sql.catalog.{catalog}.uri", f"spark.sql.catalog.{catalog}")
    else:
        keys = ()
    key = next((key for key in (*keys, *_URIS, _DATABASE) if key in spark), None)
    if key is None:
        return "table.name", None
    addresses = [
        f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        for one in spark[key].split(",")
        if (url := urlsplit(one.strip())).netloc
    ]
    return key, ",".join(addresses) if addresses and key != _DATABASE else None


def topics_to_check(
    topics: Collection[str], last: Plan | None, snapshot_table_id: str, *, has_commits: bool
) -> frozenset[str]:
    """Return topics of which the table may hold rows that no plan loaded. `last`: the newest plan;
    `has_commits`: the table has commits of ours. A pipeline that created the table, or found it
    empty, has none.
    """
    if last is None:
        return frozenset() if has_commits else frozenset(topics)
    if last.rows_before is None or last.rows_before.table_id != snapshot_table_id:
        return frozenset()
    return frozenset(topics) - last.topics


def rows_before(last: Plan | None, snapshot: Snapshot) -> RowsBefore | None:
    """Return what the next plan keeps: rows known to the last one, and rows of new topics."""
    table = snapshot.table
    kept = last.rows_before if last else None
    if table is None or (table.held is None and (kept is None or kept.table_id != table.id)):
        return kept
    known = kept.held if kept and kept.table_id == table.id else ()
    found = {(one.log, one.incarnation): one for one in (*known, *(table.held or ()))}
    word = snapshot.ledger.acknowledged
    topics = word.rows_of if word and accepted_version(word, table) == table.version else ()
    held = (
        replace(one, is_accepted=one.is_accepted or one.log.topic in topics)
        for one in found.values()
    )
    return RowsBefore(table.id, tuple(sorted(held)))


def inherited_rows(last: Plan | None, theirs: Plan | None, snapshot: Snapshot) -> RowsBefore | None:
    """Return what an inheriting plan keeps: rows known to the last plan, and the predecessor's of
    this table.
    """
    ours = rows_before(last, snapshot)
    if theirs is None and ours is None and snapshot.table:
        # the table's log no longer says what was loaded, so topics that are named later are looked
        # for, too
        return RowsBefore(snapshot.table.id, ())
    other = theirs.rows_before if theirs else None
    if other is None or snapshot.table is None or other.table_id != snapshot.table.id:
        return ours
    if ours is None or ours.table_id != other.table_id:
        return other
    found = {(one.log, one.incarnation): one for one in (*other.held, *ours.held)}
    return RowsBefore(other.table_id, tuple(sorted(found.values())))


def incarnations_begun(
    before: RowsBefore | None, begins: Mapping[BrokerPartition, int], snapshot: Snapshot
) -> dict[BrokerPartition, int]:
    """The life in which each partition begins that is read for the first time, if it is not the
    first one.

    `begins`: the first offset to read. Raises NeedsDecision if the table holds rows of such
    offsets.
    """
    table = snapshot.table
    if before is None or table is None or before.table_id != table.id:
        return {}
    lives, again = dict[BrokerPartition, int](), list[HeldRows]()
    for one in before.held:  # in order: the last life of a partition comes last
        if one.log in begins:
            is_met = begins[one.log] < one.until_offset and not one.is_accepted
            again = [other for other in again if other.log != one.log] + ([one] if is_met else [])
            lives[one.log] = one.incarnation + one.is_accepted
    if again:
        raise error_of(again, table.version, {one.log: begins[one.log] for one in again})
    return {log: life for log, life in lives.items() if life}


def rows_not_begun(last: Plan | None, snapshot: Snapshot) -> dict[BrokerPartition, tuple[int, int]]:
    """Partitions that the pipeline has not begun, and that the table holds rows of: the last life,
    and one past its last offset.
    """
    table, before = snapshot.table, rows_before(last, snapshot)
    if table is None or before is None or before.table_id != table.id:
        return {}
    begun = last.positions if last else {}
    return {
        one.log: (one.incarnation, one.until_offset)
        for one in before.held
        if one.log not in begun and one.log in snapshot.extents and not one.is_accepted
    }


def error_of(
    held: Sequence[HeldRows],
    table_version: int,
    begins: Mapping[BrokerPartition, int] | None = None,
    *,
    to_add: str = "",
) -> NeedsDecision:
    """Why nothing is loaded: the table holds these rows already. `to_add`: the statement that gives
    the table columns that it lacks.
    """
    one = min(held)
    others = len({other.log for other in held}) - 1
    more = f", and rows of {others:,} more partition{'s' if others > 1 else ''}" if others else ""
    message = (
        f"The table holds {one.rows:,} rows of {render_log(one.log)} that no plan of this pipeline loaded, from offset {one.from_offset} "
        f"to {one.until_offset - 1}{more}"
    )
    if begins is not None:
        message += f": a plan that begins at offset {begins[one.log]} would load them a second time"
    return NeedsDecision(
        message,
        **one.log.place,
        first_offset=one.from_offset,
        last_offset=one.until_offset - 1,
        table_version=table_version,
        action=_ways_out(one, table_version, to_add),
    )


def _ways_out(one: HeldRows, table_version: int, to_add: str) -> str:
    options = [
        "Check who wrote them (DESCRIBE HISTORY), and that this writer is stopped. Then (1) set another table.path"
    ]
    if not one.log.is_physical:
        options.append("(2) continue after them with `etl ledger restore CONF --reason ...`")
    number = len(options) + 1
    options.append(
        f"({number}) if they are of another cluster, or of another life of the topic: etl table accept-changes CONF {table_version} "
        f"--reason ..., and offsets are loaded with incarnation {one.incarnation + 1}"
    )
    ways = "; or ".join(options)
    if to_add:
        return f"{ways}. Unless it is another table, it first needs the columns that it lacks: {to_add}"
    return ways


def topics_accepted(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the topics whose rows an operator accepted as other records."""
    table, last = snapshot.table, snapshot.ledger.newest
    if table is None:
        return ()
    if last and last.rows_before and last.rows_before.table_id == table.id:
        kept = last.rows_before.held
    else:
        kept = ()
    unread = (one for one in kept if last is None or one.log not in last.positions)
    return tuple(sorted({one.log.topic for one in (*(table.held or ()), *unread)}))


def describe_accepted(topics: Collection[str]) -> str:
    """Describe that, as the end of a sentence."""
    if not topics:
        return ""
    names = ", ".join(sorted(map(shlex.quote, topics)))
    return f"; its rows of {names} are of another log, and what is loaded gets an incarnation of its own"
