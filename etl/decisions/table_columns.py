"""Which columns a Delta table can have and be partitioned by, and whether rows fit those that are
there. Pure functions of types.

A column is a field of a schema as Delta's log has it (Delta protocol, "Schema Serialization
Format"; Spark's `StructType.json()` is the same), as `edges.delta.log.Shape` keeps it: name -> JSON
of type and nullability.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etl.errors import NotOurTable, SettingsError

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
    """Whether values of one type (or field) can be stored as the other: the same one, but what is
    never null fits what may be null.

    So does Delta's own writer; it stores the columns of a new table as nullable, nested ones too,
    whatever the rows say.
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


def refuse_other_columns(path: str, wanted: Columns, found: Columns) -> None:
    """Raises NotOurTable naming the first column of the table that rows of the `wanted` columns do
    not fit.

    A column that they lack is fine when it may be null.
    """
    check = "that table.path is the right table, and that partitioning, transform and dialect did not change"
    to_add = columns_to_add(wanted, found)
    if to_add:
        check += f"; a table that is meant to have them gets them by {to_add}"
    where = {"path": path, "check": check}
    for name, kind in wanted.items():
        if name not in found:
            raise NotOurTable(f"the table has no column {name} (expected: {_said(kind)})", **where)
        if not fits(json.loads(kind), json.loads(found[name])):
            raise NotOurTable(
                f"the table's column {name} is {_said(found[name])}, expected {_said(kind)}",
                **where,
            )
    for name, kind in found.items():
        if name not in wanted and not json.loads(kind)["nullable"]:
            raise NotOurTable(
                f"the table's column {name} is {_said(kind)}, and our rows do not have it", **where
            )


def columns_to_add(wanted: Columns, found: Columns) -> str:
    """The statement that gives a table the columns that it lacks; empty if it has all of them."""
    lacking = ", ".join(
        f"{quoted(name)} {_in_sql(json.loads(kind)['type'])}"
        for name, kind in wanted.items()
        if name not in found
    )
    return f"ALTER TABLE ... ADD COLUMNS ({lacking})" if lacking else ""


def refuse_partitions(
    columns: Columns, partition_by: Sequence[str], *, path: str | None = None
) -> None:
    """Raises SettingsError for a partitioning that changes what is in a column, or that Delta
    refuses. `path` is that of a table there.
    """
    for name in partition_by:
        kind = json.loads(columns[name])["type"]
        if kind == "binary":
            what = f"the table cannot be partitioned by {name}: Delta keeps the values of partitions as text, and bytes come back as others"
            raise SettingsError(
                what, key="table.partition_by", path=path, check=_instead_of_bytes(name, path)
            )
        if (
            not isinstance(kind, str)
            or kind in ("variant", "void")
            or _NO_TYPE_OF_DELTA.fullmatch(kind)
        ):
            what = f"the table cannot be partitioned by {name}, which is {_named(kind)}"
            raise SettingsError(
                what,
                key="table.partition_by",
                check="columns of numbers, texts, dates, times or booleans",
            )
    if partition_by and set(columns) <= set(partition_by):
        check = "at least one column that is no partition"
        raise SettingsError(
            "the table cannot be partitioned by all of its columns",
            key="table.partition_by",
            check=check,
        )


def _instead_of_bytes(name: str, path: str | None) -> str:
    column = f"a text column that the transform adds, e.g. F.hex('{name}')"
    if path is None:
        return column
    return (
        f"{column}: write the table anew, partitioned by that one (overwrite with overwriteSchema), then `etl plans acknowledge`; what was "
        f"no UTF-8 text in {name} is another one in this table for good, and a new table under another group and pipeline has it right"
    )


def refuse_impossible_columns(
    columns: Sequence[Mapping[str, Any]], *, with_mapping: bool = False, key: str = "transform"
) -> None:
    """Raises SettingsError for columns, as a schema's fields, that no new Delta table can have.
    With column mapping names are free.

    `key` is the conf's key of the transform that makes them.
    """
    check = "the columns that the transform makes"
    for names in _names_together(columns):
        twice = [
            name for name, count in Counter(name.lower() for name in names).items() if count > 1
        ]
        if twice:
            said = " and ".join(dict.fromkeys(name for name in names if name.lower() == twice[0]))
            what = f"the transform makes the column {said} more than once; to Delta capital letters are no difference"
            raise SettingsError(what, key=key, check=check)
        bad = next((name for name in names if set(name) & set(_FORBIDDEN)), None)
        if bad is not None and not with_mapping:
            what = f"the transform makes a column {bad!r}, and Delta takes no blanks, tabs, line ends or any of ,;{{}}()= in a name"
            raise SettingsError(what, key=key, check=check)
    for field in columns:
        wrong = next(_impossible_types(field["type"]), None)
        if wrong is not None:
            raise SettingsError(
                f"the transform makes the column {field['name']} of a type that Delta does not have: {wrong}",
                key=key,
                check=check,
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
    """What Delta has no type for; nothing but null (`void`) it takes as a whole column only, or
    beside others in a struct.
    """
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
