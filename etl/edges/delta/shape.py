"""The columns of the table that is there, and whether those that a run will write fit it.

Owns the built-in column `event_date` among the columns of rows. What fits what, and what a table
can be partitioned by, is decided in `table_rules`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etl.decide import table_rules
from etl.decide.table_rules import (
    refuse_impossible_columns,
    refuse_other_columns,
    refuse_partitions,
)
from etl.edges.delta.log import Shape, parse_shape
from etl.edges.delta.path import open_table
from etl.errors import NotOurTable, SettingsError

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable

EVENT_DATE = "event_date"
_EVENT_DATE = {"name": EVENT_DATE, "type": "date", "nullable": True, "metadata": {}}
_MAPPING_OF_NEW_TABLES = "spark.databricks.delta.properties.defaults.columnMapping.mode"


def check_shape(path: str, expected: pyarrow.Schema, partition_by: Sequence[str]) -> None:
    """Refuse a table that our rows do not fit, before any work; where there is none, one that could
    not be made.

    `expected` are the columns of the rows without the built-in `event_date`. A column that we do
    not write is fine when it may be null. Raises NotOurTable naming the first column that differs,
    SettingsError for a partitioning that the rows cannot have.
    """
    from deltalake import Schema

    check_columns(path, Schema.from_arrow(expected).to_json(), partition_by)


def check_columns(
    path: str,
    expected: str,
    partition_by: Sequence[str],
    *,
    spark: Mapping[str, str] | None = None,
    key: str = "transform",
) -> None:
    """The same of columns as Spark or delta-rs writes a schema, JSON. `spark` are the conf's
    settings of that name.

    `key` is the conf's key of the transform that makes them.
    """
    fields = json.loads(expected)["fields"]
    names = [field["name"] for field in fields]
    refuse_unknown(partition_by, names)
    if EVENT_DATE in partition_by and EVENT_DATE not in names:
        fields.append(_EVENT_DATE)
    table = open_table(path)
    with_mapping = table is not None or (spark or {}).get(_MAPPING_OF_NEW_TABLES, "none") != "none"
    refuse_impossible_columns(fields, with_mapping=with_mapping, key=key)
    wanted = parse_shape("", json.dumps({"fields": fields}), partition_by)
    found = shape_of(table) if table is not None else None
    is_there_so = found is not None and found.partition_by == wanted.partition_by
    refuse_partitions(wanted.columns, partition_by, path=path if is_there_so else None)
    if found is None:
        return
    refuse_other_columns(path, wanted.columns, found.columns)
    _refuse_another_partitioning(found, wanted.partition_by, path)


def columns_to_add(path: str, expected: pyarrow.Schema) -> str:
    """The statement that gives the table the columns that it lacks; empty if there is none, or it
    has all of them.
    """
    from deltalake import Schema

    table = open_table(path)
    if table is None:
        return ""
    wanted = parse_shape("", Schema.from_arrow(expected).to_json(), ())
    return table_rules.columns_to_add(wanted.columns, shape_of(table).columns)


def check_partitioning(path: str, partition_by: Sequence[str]) -> None:
    """What `check_columns` refuses of the table that is there whatever columns the rows have.
    Raises NotOurTable, SettingsError.
    """
    table = open_table(path)
    if table is None:
        return
    found = shape_of(table)
    _refuse_another_partitioning(found, tuple(partition_by), path)
    refuse_partitions(found.columns, partition_by, path=path)


def _refuse_another_partitioning(found: Shape, partition_by: Sequence[str], path: str) -> None:
    if found.partition_by != partition_by:
        refuse_partitions(
            found.columns, found.partition_by, path=path
        )  # one that cannot go on so is not to be named in the conf either
        what = f"the table is partitioned by {_listed(found.partition_by)}, the conf says {_listed(partition_by)}"
        raise NotOurTable(
            what,
            path=path,
            key="table.partition_by",
            check="table.partition_by, or that table.path is the right table",
        )


def with_event_date_field(schema: pyarrow.Schema, partition_by: Sequence[str]) -> pyarrow.Schema:
    """The schema with the built-in column `event_date`, when the partitioning names it and the rows
    lack it.
    """
    import pyarrow

    refuse_unknown(partition_by, schema.names)
    if EVENT_DATE not in partition_by or EVENT_DATE in schema.names:
        return schema
    return schema.append(pyarrow.field(EVENT_DATE, pyarrow.date32()))


def refuse_unknown(partition_by: Sequence[str], columns: Sequence[str]) -> None:
    """`event_date` is made of the column `timestamp`, every other column must be there. Raises
    SettingsError.
    """
    for name in partition_by:
        needed = "timestamp" if name == EVENT_DATE and name not in columns else name
        if needed not in columns:
            what = f"the table cannot be partitioned by {name}: the rows have no column {needed}"
            raise SettingsError(
                what, key="table.partition_by", check=f"the columns are {', '.join(columns)}"
            )


def shape_of(table: DeltaTable) -> Shape:
    """The table's id, columns and partitioning."""
    return parse_shape(id_of(table), table.schema().to_json(), table.metadata().partition_columns)


def id_of(table: DeltaTable) -> str:
    """The table's id."""
    return str(table.metadata().id)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
