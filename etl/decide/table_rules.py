"""Which tables, columns and catalog entries can a run write to?

Lives here: rules for columns, for a catalog's entry of a table, and for rows that no plan loaded.
Not here: changes of other writers (table_changes.py), files and stores (table_storage.py).

Columns: those that a Delta table can have and be partitioned by, and whether rows fit. A column is
a field of the schema in Delta's log (Delta protocol, "Schema Serialization Format").

Catalogs: a run commits by path, so a table that only its catalog may commit to or reach is rejected
by name. If a catalog fails, the error names the first known cause and its setting. It does not
repeat texts of servers and drivers, since they may quote credentials.

Rows of the planned topics that no plan of the pipeline loaded:

    first offset of a partition to be read        decision
    -------------------------------------------   --------------------------------------------------
    after the last row of its last incarnation    it begins there, in that incarnation
    before it, accepted as other records          it begins there, in the next incarnation
    before it                                     NeedsDecision

The plan keeps these rows (`TableExpectation.rows_before`), for partitions read later and for `etl
verify`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from etl.decide.table_changes import accepted_version
from etl.errors import EtlError, NeedsDecision, NotOurTable, Owned, SettingsError, TableUnreachable
from etl.model.partitions import TopicPartition, render_partition
from etl.model.plans import HeldRows, Plan, RowsBefore
from etl.model.snapshot import CatalogEntry, NamedTable, Snapshot
from etl.settings.choices import place_of

Columns = Mapping[str, str]
"""Name -> `{"nullable": ..., "type": ...}`."""

_NULLABILITY = ("nullable", "containsNull", "valueContainsNull")
NEVER_NULL = frozenset(
    (
        "topic",
        "partition",
        "offset",
        "timestampType",
        "broker_id",
        "message_index",
        "incarnation",
    )
)
"""Columns that each record has: a table may require them."""
_FORBIDDEN = " ,;{}()\n\t="
"""Characters that names of columns and struct fields may not have without column mapping (Delta:
`SchemaUtils.checkFieldNames`).
"""
_IN_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Delta's names of types -> those of Spark SQL, where they differ."""
_NONE_RENAMED: Mapping[str, str] = MappingProxyType({})
_NO_TYPE_OF_DELTA = re.compile(r"interval\b.*|time(\(\d+\))?")


def fits(rows: Any, table: Any) -> bool:
    """Return True if values of one type (or field) can be stored as the other.

    They are equal, or not nullable into nullable: Delta's own writer makes all columns of a new
    table nullable, nested ones too.
    """
    if isinstance(rows, dict) and isinstance(table, dict):
        if rows.keys() != table.keys():
            return False
        return all(_property_fits(key, rows[key], table[key]) for key in rows)
    if isinstance(rows, list) and isinstance(table, list):
        if len(rows) != len(table):
            return False
        return all(fits(*pair) for pair in zip(rows, table, strict=True))
    return bool(rows == table)


def _property_fits(key: str, rows: Any, table: Any) -> bool:
    if key in _NULLABILITY:
        return bool(table or not rows)
    return fits(rows, table)


def reject_other_columns(
    path: str, wanted: Columns, found: Columns, renamed: Mapping[str, str] = _NONE_RENAMED
) -> None:
    """Raise NotOurTable for the first column of the table that the rows do not fit.

    `wanted`: the columns of the rows. They may lack a column of the table that is nullable.
    `renamed`: former -> present name of columns of the table.
    """
    _reject_renamed_columns(path, wanted, found, renamed)
    action = (
        "Check that table.path is the right table, and that table.partition_by, transform and "
        "source.broker_type did not change"
    )
    to_add = columns_to_add(wanted, found)
    if to_add:
        action += f". If the table is meant to have these columns, add them: {to_add}"
    where = {"path": path, "action": action}

    for name, kind in wanted.items():
        expected = _describe_type(kind)
        if name not in found:
            raise NotOurTable(f"The table has no column {name} (expected: {expected})", **where)
        column = json.loads(found[name])
        if name in NEVER_NULL:
            column["nullable"] = True
        if not fits(json.loads(kind), column):
            message = (
                f"The table's column {name} is {_describe_type(found[name])}, expected {expected}"
            )
            changed = (
                f"{action}. If ALTER COLUMN changed the type, write the rows into a new table with "
                "the expected type, and set table.path to it: the next run reports how to accept it"
            )
            raise NotOurTable(message, path=path, action=changed)

    for name, kind in found.items():
        if name not in wanted and not json.loads(kind)["nullable"]:
            message = (
                f"The table's column {name} is {_describe_type(kind)}, and the rows do not have it"
            )
            raise NotOurTable(message, **where)


def _reject_renamed_columns(
    path: str, wanted: Columns, found: Columns, renamed: Mapping[str, str]
) -> None:
    """Raise NotOurTable if a column of the rows is in the table under another name.

    Without this, the advice would be to add it: older rows would have it as null.
    """
    for name in wanted:
        if name in found or name not in renamed:
            continue
        present = renamed[name]
        raise NotOurTable(
            f"The table's column {name} was renamed to {present}",
            path=path,
            action=f"Rename it back: ALTER TABLE ... RENAME COLUMN {quoted(present)} TO "
            f"{quoted(name)}. Or rename it in the rows, too, by a transform",
        )


def columns_to_add(wanted: Columns, found: Columns) -> str:
    """Return the statement that adds the missing columns to a table; empty if it has them all."""
    missing = []
    for name, kind in wanted.items():
        if name not in found:
            missing.append(f"{quoted(name)} {_sql_type(json.loads(kind)['type'])}")
    if not missing:
        return ""
    return f"ALTER TABLE ... ADD COLUMNS ({', '.join(missing)})"


def reject_partitions(
    columns: Columns, partition_by: Sequence[str], *, path: str | None = None
) -> None:
    """Reject a partitioning that changes a column's content or that Delta rejects.

    `path`: of an existing table. Raises SettingsError.
    """
    key = "table.partition_by"
    for name in partition_by:
        kind = json.loads(columns[name])["type"]
        if kind == "binary":
            # Partition values are text in Delta's log and in paths: bytes that are not UTF-8 come
            # back as others, and a NUL cannot be written.
            message = (
                f"The table cannot be partitioned by {name}: Delta keeps the values of partitions "
                "as text, and bytes come back as others"
            )
            action = _name_instead_of_bytes(name, path)
            raise SettingsError(message, key=key, path=path, action=action)

        is_nested = not isinstance(kind, str)
        if is_nested or kind in ("variant", "void") or _NO_TYPE_OF_DELTA.fullmatch(kind):
            message = f"The table cannot be partitioned by {name}, which is {_type_name(kind)}"
            action = "Use columns of numbers, texts, dates, times or booleans"
            raise SettingsError(message, key=key, action=action)

    if partition_by and set(columns) <= set(partition_by):
        message = "The table cannot be partitioned by all of its columns"
        action = "Add at least one column that is no partition"
        raise SettingsError(message, key=key, action=action)


def _name_instead_of_bytes(name: str, path: str | None) -> str:
    column = f"Use a string column that the transform adds, e.g. F.hex('{name}')"
    if path is None:
        return column
    return (
        f"{column}: write the table anew, partitioned by that one (overwrite with "
        "overwriteSchema), then run `etl table accept-changes`. In this table, values of "
        f"{name} that were not UTF-8 text stay changed for good; a new table under another group "
        "and pipeline has them right"
    )


def reject_impossible_columns(
    columns: Sequence[Mapping[str, Any]], *, with_mapping: bool = False, key: str = "transform"
) -> None:
    """Raise SettingsError for columns, as a schema's fields, that no new Delta table can have.

    With column mapping names are free. `key`: the conf's key of the transform that makes them.
    """
    action = "Check the columns that the transform makes"
    for names in _names_together(columns):
        counts = Counter(name.lower() for name in names)
        duplicates = [name for name, count in counts.items() if count > 1]
        if duplicates:
            spellings = [name for name in names if name.lower() == duplicates[0]]
            columns_shown = " and ".join(dict.fromkeys(spellings))
            message = (
                f"The transform makes the column {columns_shown} more than once; to "
                "Delta capital letters are no difference"
            )
            raise SettingsError(message, key=key, action=action)

        for name in names:
            if with_mapping or not set(name) & set(_FORBIDDEN):
                continue
            message = (
                f"The transform makes a column {name!r}, and Delta takes no blanks, tabs, line "
                "ends or any of ,;{}()= in a name"
            )
            raise SettingsError(message, key=key, action=action)

    for field in columns:
        wrong = next(_impossible_types(field["type"]), None)
        if wrong is not None:
            message = (
                f"The transform makes the column {field['name']} of a type that Delta does not "
                f"have: {wrong}"
            )
            raise SettingsError(message, key=key, action=action)


def _names_together(fields: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the names of these fields, then those of the structs within each field."""
    yield [field["name"] for field in fields]
    for field in fields:
        for struct in _structs(field["type"]):
            yield from _names_together(struct["fields"])


def _structs(kind: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the outermost structs of a type."""
    if isinstance(kind, dict) and kind.get("type") == "struct":
        yield kind
    elif isinstance(kind, dict):
        for part in ("elementType", "keyType", "valueType"):
            yield from _structs(kind.get(part))


def _impossible_types(kind: Any) -> Iterator[str]:
    """Yield types that Delta lacks; `void` is valid as a column or with others in a struct."""
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
    """Return a column's name, quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def _sql_type(kind: Any) -> str:
    """Return a column's type, as in a SQL statement."""
    if isinstance(kind, str):
        return _IN_SQL.get(kind, kind).upper()
    if kind["type"] == "array":
        return f"ARRAY<{_sql_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"MAP<{_sql_type(kind['keyType'])}, {_sql_type(kind['valueType'])}>"
    fields = []
    for field in kind["fields"]:
        fields.append(f"{quoted(field['name'])}: {_sql_type(field['type'])}")
    return f"STRUCT<{', '.join(fields)}>"


def _describe_type(column: str) -> str:
    """Describe a column's type and nullability."""
    found = json.loads(column)
    described = _type_name(found["type"])
    if found["nullable"]:
        return described
    return f"{described} not null"


def _type_name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    return json.dumps(kind)


KEY = "table.name"
_DELTA = "delta"
_MANAGED_BY_CATALOG = ("delta.feature.catalogManaged", "delta.feature.catalogOwned-preview")
"""Present and former name of the table feature (Delta protocol, "Catalog-managed tables")."""
_IN_THE_WAY = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
_PLACE = re.compile(r"associated location \('([^']*)'\)")
_RECOVER_TABLE = (
    "Recover the table, by which nothing is lost: restore its folder from a copy, or use what the "
    "catalog keeps of dropped tables (UNDROP), then run `etl table refresh-path CONF`. Only if it "
    "is gone for good, run `etl table refresh-path CONF --create-empty`: the catalog creates an "
    "empty one (after DROP TABLE, where the catalog still has the name), and the command describes "
    "what the next run does with it"
)
"""No run creates a table again that existed before: it had rows."""
_OF_CATALOG = re.compile(
    r"spark\.sql\.(?:catalogImplementation|defaultCatalog|catalog\..+)$"
    r"|spark\.(?:hadoop\.)?(?:hive\.metastore\.uris|javax\.jdo\.option\.ConnectionURL)$"
)
_SECRET = re.compile(r"(?i)token|password|secret|credential|oauth|key$")
_OF_PERSON = re.compile(r"(?i)(?:password|user)\w*=[^;&]*|(?<=//)[^/@]*@")
"""User part of a database URL."""
_OF_DELTA = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_LENT = re.compile(r"(?:option\.)?fs\.[\w.-]+")
"""Settings of Hadoop file systems by which a catalog, as Unity Catalog, lends credentials."""


def place_in(name: str, entry: CatalogEntry) -> str:
    """Return the table's location as written in a conf.

    Raises NotOurTable for a table that a run cannot commit to by path.
    """
    reject_temporary(name)
    if "VIEW" in entry.kind:
        raise _not_ours(name, "is a view", "Use the Delta table that it selects from")
    if entry.provider != _DELTA:
        provider = entry.provider or "a kind that its catalog does not report"
        message = f"is no Delta table, but one of {provider}"
        action = (
            "Convert it (CONVERT TO DELTA), or set another table, or a new name: the first run "
            "creates the table"
        )
        raise _not_ours(name, message, action)
    if not entry.properties.isdisjoint(_MANAGED_BY_CATALOG):
        raise managed_by_catalog(name)

    for key in sorted(entry.properties):
        if not _LENT.fullmatch(key):
            continue
        message = f"is reached by credentials that its catalog lends to Spark alone ({key})"
        action = (
            "Set table.path and table.store, with credentials of its own, if the catalog lets "
            "other clients write to the table's files"
        )
        raise _not_ours(name, message, action)
    if not entry.location:
        message = "has no place in its catalog's answer"
        action = "Check it with DESCRIBE TABLE EXTENDED; if you know its path, set table.path"
        raise _not_ours(name, message, action)
    return as_written(entry.location)


def reject_temporary(name: str) -> None:
    """Raise NotOurTable for the schema in which a session keeps its own views."""
    if name.lower().startswith("global_temp."):
        message = "is a temporary view, which ends with its session"
        raise _not_ours(name, message, "Use the Delta table that it selects from")


def managed_by_catalog(name: str) -> NotOurTable:
    """Return the error for a table whose commits go through its catalog."""
    message = "is managed by its catalog: a commit by the table's path would go around it"
    action = "Use a table of its own for this pipeline, without the table feature catalogManaged"
    return _not_ours(name, message, action)


def as_written(location: str) -> str:
    """Return a location in Hadoop's notation as a conf has it: a local folder as its path alone."""
    if location.startswith("file:/"):
        return re.sub(r"/+", "/", location.removeprefix("file:"), count=1)
    return location


def reject_other_location(name: str, kept: str, now: str | None) -> None:
    """Raise NeedsDecision if the catalog's location of a table is no longer the recorded one.

    `now`: the catalog's location; None: it has no table of this name.
    """
    if now is not None and place_of(now) == place_of(kept):
        return

    action = (
        "Check whether it was moved, renamed, or dropped and recreated. If that is intended, set "
        "table.name and run `etl table refresh-path CONF`: the next run continues if it is the "
        "same table, and stops if it is another one"
    )
    if now is None:
        message = f"The catalog has no table {name} any more, and the pipeline loads into {kept}"
        action += f". Otherwise: {_RECOVER_TABLE}"
    else:
        message = (
            f"The catalog has the table {name} at {now} now, and the pipeline loads into {kept}"
        )
    raise NeedsDecision(message, key=KEY, path=kept, action=action)


def catalog_of(spark: Mapping[str, str]) -> str:
    """Return a digest of the Spark settings that define the catalog of a name, without possible
    secrets.
    """
    properties = {}
    for key, value in spark.items():
        if _OF_CATALOG.match(key) and not _SECRET.search(key):
            properties[key] = _OF_PERSON.sub("", value)
    return hashlib.sha256(json.dumps(sorted(properties.items())).encode()).hexdigest()[:16]


def is_recorded_location(kept: NamedTable | None, name: str, catalog: str) -> TypeGuard[NamedTable]:
    """Return True if the recorded location is of this name in the conf's catalog."""
    return kept is not None and kept.name == name and kept.catalog in (None, catalog)


def reject_in_memory_catalog(name: str, catalog: str, implementation: str, plugin: str) -> None:
    """Reject an in-memory catalog: no other session finds its tables. Raises SettingsError.

    `implementation`, `plugin`: spark.sql.catalogImplementation, spark.sql.catalog.spark_catalog.
    """
    if catalog == "spark_catalog" and implementation == "in-memory" and plugin in ("", _OF_DELTA):
        message = (
            f"There is no table {name}: Spark's own catalog is in memory here, and has no table of "
            "another session"
        )
        action = (
            "Set spark.sql.catalogImplementation: hive and spark.hadoop.hive.metastore.uris under "
            "spark, or the catalog in table.name"
        )
        raise SettingsError(message, key=KEY, action=action)


def reject_relocated_table(name: str, path: str, catalog: str, kept: NamedTable | None) -> None:
    """Raise Owned if the recorded location, which only this pipeline changes, is not `path`."""
    if is_recorded_location(kept, name, catalog) and place_of(kept.path) != place_of(path):
        message = (
            f"The table {name} was resolved anew, to {kept.path}, while this command waited; "
            "nothing was done"
        )
        raise Owned(message, key=KEY, path=path, action="Run again: the next run uses that path")


def missing_files_error(name: str, path: str) -> NeedsDecision:
    """Return the error for a named table that has no files.

    A run creates no such table by its path: the catalog would not know it.
    """
    message = f"No Delta table is at the place that the catalog had for {name}"
    action = (
        "Check who dropped or moved it, and that its storage is mounted. If the catalog has it "
        f"elsewhere now: run `etl table refresh-path CONF`. Otherwise: {_RECOVER_TABLE}"
    )
    return NeedsDecision(message, key=KEY, path=path, action=action)


def unknown_name_error(name: str) -> NotOurTable:
    """Return the error for an unknown name that may not be created."""
    action = (
        "Check the name, and the catalogs under spark. The first `etl run CONF` of a pipeline "
        "creates its first table; no run creates the table of a pipeline that had one: "
        f"{_RECOVER_TABLE}"
    )
    return NotOurTable(f"The catalog has no table {name}", key=KEY, action=action)


def not_created_error(
    name: str, condition: str | None, called: str, text: str, creating: str
) -> SettingsError:
    """Return the error for a table that its catalog did not create.

    `condition`, `text`: Spark's error condition and text. `called`: the error's name in messages.
    `creating`: the statement that creates the table.
    """
    message = f"There is no table {name}, and the catalog does not create it: {called}"
    action = f"Check the rights in the catalog, or let an owner of these rights run: {creating}"
    if condition == "SCHEMA_NOT_FOUND":
        message = f"There is no table {name}, and the catalog has no schema to make it in"
        action = (
            "Check the name, and spark.sql.catalogImplementation: hive for a Hive metastore, or "
            f"run `CREATE SCHEMA {name.rpartition('.')[0]}`"
        )
    elif condition == "INVALID_SCHEMA_OR_RELATION_NAME":
        message = f"There is no table {name}, and the catalog takes no such name"
        action = "Set table.name: a Hive metastore takes letters, digits and _ in a name, no hyphen"
    elif condition == _IN_THE_WAY:
        found = _PLACE.search(text)
        message = f"There is no table {name}, and files are at the place that the catalog gives it"
        location = "..."
        if found:
            location = as_written(found[1])
            message += f", {location}"
        action = (
            "Check these files: an empty Delta table remains of a run that was killed while the "
            "catalog created it, any other table of a DROP TABLE that leaves the files. If it is "
            f"the intended table: CREATE TABLE {name} USING delta LOCATION '{location}'. Otherwise "
            "set another name, or move that folder elsewhere"
        )
    return SettingsError(message, key=KEY, action=action)


def statement(name: str, columns: Iterable[tuple[str, str]], partition_by: Sequence[str]) -> str:
    """Return the statement that creates a Delta table of these columns: (name, Spark type)."""
    definitions = [f"{quoted(column)} {kind}" for column, kind in columns]
    shown = ", ".join(definitions)
    create = f"CREATE TABLE {name} ({shown}) USING delta"
    if partition_by:
        return f"{create} PARTITIONED BY ({', '.join(map(quoted, partition_by))})"
    return create


def with_table_name(action: str, name: str | None) -> str:
    """Return the action with the table's name in place of table.path; without a name unchanged."""
    if name is None:
        return action
    named = (
        f"table.name ({name}; nothing is lost if the catalog led to the right table before: set it "
        "back there, by ALTER TABLE ... SET LOCATION or RENAME TO, and run `etl table refresh-path "
        "CONF`)"
    )
    return action.replace("table.path", named, 1)


def _not_ours(name: str, message: str, action: str) -> NotOurTable:
    return NotOurTable(f"{name} {message}", key=KEY, action=action)


_URIS = ("spark.hadoop.hive.metastore.uris", "spark.hive.metastore.uris", "hive.metastore.uris")
"""Keys of a Hive metastore's address; the last one is Hadoop's."""
_DATABASE = "spark.hadoop.javax.jdo.option.ConnectionURL"
_JARS = (
    "Add the jar with it: spark.jars.packages, spark.jars or spark.driver.extraClassPath under "
    "spark, or spark-submit --jars"
)
_LOGIN = (
    "Check the authentication of the catalog: the settings next to that key, the ticket, "
    "hive-site.xml"
)
_SERVER = (
    "Check that the catalog's server answers there, and Spark's log next to the run's report. A "
    "later run tries again"
)
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
        r"(?:ClassNotFoundException: (?:Class )?|NoClassDefFoundError: "
        r"|\bClass (?=[\w.$]+ not found))([\w.$/]+)",
        "Spark does not find the class {}",
        True,
        _JARS,
    ),
    (
        r"No suitable driver|Unable to load (?:JDBC )?driver"
        r"|datastore driver \(.*?\) was not found",
        "Spark has no JDBC driver for the metastore's database",
        True,
        _JARS,
    ),
    (
        r"GSS initiate failed|SaslException|SASL negotiation failure|Access denied"
        r"|authentication failed"
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
        "no route to the host",
        False,
        _SERVER,
    ),
    (r"Connection reset|Broken pipe|EOFException", "the connection broke", False, _SERVER),
    (
        r"XSDB6|Another instance of Derby",
        "another process has the metastore's Derby database",
        False,
        "Check which other process uses it: Derby allows one at a time",
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
    """Return the class of the innermost exception that does not only wrap another one."""
    classes = []
    for cause in reversed(causes):
        found = _CLASS.match(cause)
        if found:
            classes.append(found[1])
    if not classes:
        return "no known cause"
    for name in classes:
        if name not in _WRAPPING:
            return name
    return classes[0]


def catalog_error(
    doing: str,
    name: str,
    causes: Sequence[str],
    spark: Mapping[str, str],
    *,
    instead: str | None = None,
) -> EtlError:
    """Return the error of an action ("be asked for", "make") on a name.

    Exit 2 if only a change of settings fixes it, else 7. `spark`: the session's settings, which
    have the catalog's address. `instead`: an alternative.
    """
    cause = known_cause(causes) or Cause(innermost(causes), False, _SERVER)
    key, address = _catalog_address(name, spark)
    message = f"The catalog cannot {doing} {name}: {cause.summary}"
    if address:
        message += f", {address}"
    if not cause.stays:
        return TableUnreachable(message, key=key, action=cause.action)

    action = cause.action
    if instead:
        action = f"{action}. Or, with the rights for it: {instead}"
    return SettingsError(message, key=key, action=action)


def catalog_of_name(name: str, spark: Mapping[str, str]) -> str:
    """Return the catalog of a name.

    Of a name with only a schema, the session's default catalog; "" if that is Spark's own.
    """
    if name.count(".") > 1:
        return name.split(".")[0]
    return spark.get("spark.sql.defaultCatalog", "")


def _catalog_address(name: str, spark: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the setting with a catalog's address, and the address.

    The address is None if it is unknown, or a database URL, which may have a password.
    """
    catalog = catalog_of_name(name, spark)
    keys = [*_URIS, _DATABASE]
    if catalog not in ("", "spark_catalog"):
        keys = [f"spark.sql.catalog.{catalog}.uri", f"spark.sql.catalog.{catalog}", *keys]
    known_keys = [key for key in keys if key in spark]
    if not known_keys:
        return "table.name", None
    key = known_keys[0]

    addresses = []
    for text in spark[key].split(","):
        url = urlsplit(text.strip())
        if url.netloc:
            addresses.append(f"{url.scheme}://{url.netloc.rpartition('@')[2]}")
    if not addresses or key == _DATABASE:
        return key, None
    return key, ",".join(addresses)


def topics_to_check(
    topics: Collection[str], last: Plan | None, snapshot_table_id: str, *, has_commits: bool
) -> frozenset[str]:
    """Return topics of which the table may hold rows that no plan loaded.

    `last`: the newest plan. `has_commits`: the table has commits of this pipeline; one that created
    the table, or found it empty, has none.
    """
    if last is None:
        if has_commits:
            return frozenset()
        return frozenset(topics)
    if last.table.rows_before is None or last.table.rows_before.table_id != snapshot_table_id:
        return frozenset()
    return frozenset(topics) - last.known_topics


def rows_before(last: Plan | None, snapshot: Snapshot) -> RowsBefore | None:
    """Return the rows that the next plan keeps: those of the last plan, and those of new topics."""
    table = snapshot.table
    kept = None
    if last:
        kept = last.table.rows_before
    if table is None:
        return kept
    is_kept_of_table = kept is not None and kept.table_id == table.id
    if table.held is None and not is_kept_of_table:
        return kept

    known: tuple[HeldRows, ...] = ()
    if kept is not None and is_kept_of_table:
        known = kept.held
    decision = snapshot.ledger.acknowledged
    accepted: Collection[str] = ()
    if decision and accepted_version(decision, table) == table.version:
        accepted = decision.rows_of

    rows = []
    for held in _latest((*known, *(table.held or ()))):
        is_accepted = held.is_accepted or held.partition.topic in accepted
        rows.append(replace(held, is_accepted=is_accepted))
    return RowsBefore(table.id, tuple(sorted(rows)))


def _latest(rows: Iterable[HeldRows]) -> Iterable[HeldRows]:
    """Return the last entry of each incarnation of a partition."""
    return {(held.partition, held.incarnation): held for held in rows}.values()


def inherited_rows(last: Plan | None, theirs: Plan | None, snapshot: Snapshot) -> RowsBefore | None:
    """Return the rows that an inheriting plan keeps: the last plan's, and the predecessor's of this
    table.
    """
    ours = rows_before(last, snapshot)
    if theirs is None and ours is None and snapshot.table:
        # The table's log no longer has the loaded offsets, so topics that the conf names later are
        # searched, too.
        return RowsBefore(snapshot.table.id, ())

    other = None
    if theirs:
        other = theirs.table.rows_before
    if other is None or snapshot.table is None or other.table_id != snapshot.table.id:
        return ours
    if ours is None or ours.table_id != other.table_id:
        return other
    rows = _latest((*other.held, *ours.held))
    return RowsBefore(other.table_id, tuple(sorted(rows)))


def incarnations_begun(
    before: RowsBefore | None, begins: Mapping[TopicPartition, int], snapshot: Snapshot
) -> dict[TopicPartition, int]:
    """Return the incarnation in which each partition begins that is read for the first time, where
    it is not the first one.

    `begins`: the first offset to read. Raises NeedsDecision if the table holds rows of such
    offsets.
    """
    table = snapshot.table
    if before is None or table is None or before.table_id != table.id:
        return {}

    incarnations: dict[TopicPartition, int] = {}
    duplicates: dict[TopicPartition, HeldRows] = {}
    for held in before.held:  # in order: the last incarnation of a partition comes last
        if held.partition not in begins:
            continue
        duplicates.pop(held.partition, None)
        if begins[held.partition] < held.until_offset and not held.is_accepted:
            duplicates[held.partition] = held
        incarnations[held.partition] = held.incarnation + held.is_accepted
    if duplicates:
        starts = {partition: begins[partition] for partition in duplicates}
        raise unplanned_rows_error(list(duplicates.values()), table.version, starts)
    return {
        partition: incarnation for partition, incarnation in incarnations.items() if incarnation
    }


def rows_not_begun(last: Plan | None, snapshot: Snapshot) -> dict[TopicPartition, tuple[int, int]]:
    """Return partitions that the pipeline has not begun, and that the table holds rows of: the last
    incarnation, and one past its last offset.
    """
    table = snapshot.table
    before = rows_before(last, snapshot)
    if table is None or before is None or before.table_id != table.id:
        return {}

    begun: Mapping[TopicPartition, int] = {}
    if last:
        begun = last.loaded_until
    found = {}
    for held in before.held:
        if held.partition in begun or held.partition not in snapshot.readable or held.is_accepted:
            continue
        found[held.partition] = (held.incarnation, held.until_offset)
    return found


def unplanned_rows_error(
    held: Sequence[HeldRows],
    table_version: int,
    begins: Mapping[TopicPartition, int] | None = None,
    *,
    to_add: str = "",
) -> NeedsDecision:
    """Return the error for rows that the table holds already, because of which nothing is loaded.

    `begins`: the first offset to read per partition. `to_add`: the statement that adds the columns
    that the table lacks.
    """
    first = min(held)
    more = ""
    partitions = {rows.partition for rows in held}
    others = len(partitions) - 1
    if others == 1:
        more = f", and rows of {others:,} more partition"
    elif others:
        more = f", and rows of {others:,} more partitions"
    message = (
        f"The table holds {first.rows:,} rows of {render_partition(first.partition)} that no plan "
        f"of this pipeline loaded, from offset {first.from_offset} to "
        f"{first.until_offset - 1}{more}"
    )
    if begins is not None:
        start = begins[first.partition]
        message += f": a plan that begins at offset {start} would load them a second time"
    return NeedsDecision(
        message,
        **first.partition.place,
        first_offset=first.from_offset,
        last_offset=first.until_offset - 1,
        table_version=table_version,
        action=_possible_decisions(first, table_version, to_add),
    )


def _possible_decisions(held: HeldRows, table_version: int, to_add: str) -> str:
    options = [
        "Check which writer made them (DESCRIBE HISTORY), and that it is stopped. Then (1) set "
        "another table.path"
    ]
    if not held.partition.is_physical:
        options.append("(2) continue after them with `etl ledger restore CONF --reason ...`")
    number = len(options) + 1
    options.append(
        f"({number}) if they are of another cluster, or of another incarnation of the topic: "
        f"etl table accept-changes CONF {table_version} --reason ..., and offsets are loaded with "
        f"incarnation {held.incarnation + 1}"
    )
    action = "; or ".join(options)
    if to_add:
        return f"{action}. Except for another table, first add the columns that it lacks: {to_add}"
    return action


def topics_accepted(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the topics whose rows an operator accepted as other records."""
    table, last = snapshot.table, snapshot.ledger.newest
    if table is None:
        return ()
    if last and last.table.rows_before and last.table.rows_before.table_id == table.id:
        kept = last.table.rows_before.held
    else:
        kept = ()
    topics = {held.partition.topic for held in table.held or ()}
    for held in kept:
        if last is None or held.partition not in last.loaded_until:
            topics.add(held.partition.topic)
    return tuple(sorted(topics))


def describe_accepted(topics: Collection[str]) -> str:
    """Describe the topics whose rows were accepted, as the end of a sentence."""
    if not topics:
        return ""
    names = ", ".join(sorted(map(shlex.quote, topics)))
    return f"; its rows of {names} are of another incarnation, and loaded records get a new one"
