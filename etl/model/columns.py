"""Which columns does the raw table have, and of which types?

They are the columns of Spark's Kafka source (same names, types and order), then `incarnation`.
A row of a table loaded from Kafka 0.8 or later is unique by topic, incarnation, partition and
offset; a row loaded from Jafka or Kafka 0.7 by those, broker_id and message_index.

| column | content |
| --- | --- |
| key, value | bytes of the record; null if the record has null |
| topic, partition | where the record was read |
| offset | offset of the record; on Jafka the byte position at which its message set entry begins |
| timestamp | microseconds UTC; null if the record has none (-1) or it does not fit microseconds |
| timestampType | 0 create time, 1 log append time (Kafka's numbers) |
| headers | null, not an empty list, if the record has none, as in Spark's source |
| broker_id | Jafka only: the broker |
| message_index | Jafka only: index of the message in its entry, from 0, nested wrappers in order |
| incarnation | 0, plus 1 each time an operator accepts a truncated or recreated partition |

Messages of Jafka have no key, timestamp or headers: these columns are null.

Not here: filling Arrow arrays (etl/records/arrow_buffers.py). This module imports neither pyspark
nor, before an Arrow schema is requested, pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from etl.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa


SPARK_TYPES: dict[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp_ltz",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "incarnation": "int",
}
"""Column name -> Spark SQL type, in the table's order. `spark.sql.timestampType` decides what plain
`timestamp` means.
"""

PHYSICAL_TYPES: dict[str, str] = {
    **{name: kind for name, kind in SPARK_TYPES.items() if name != "incarnation"},
    "broker_id": "int",
    "message_index": "int",
    "incarnation": SPARK_TYPES["incarnation"],
}
"""Types of the additional columns of Jafka rows."""

COLUMNS: tuple[str, ...] = tuple(SPARK_TYPES)


def types_of(*, physical: bool) -> dict[str, str]:
    """Return the Spark SQL type of each column, in the table's order."""
    if physical:
        return PHYSICAL_TYPES
    return SPARK_TYPES


def raw_columns(names: Sequence[str] | None = None, *, physical: bool = False) -> tuple[str, ...]:
    """Return the chosen columns in the table's order; all of them for None.

    `physical`: the columns of rows from Jafka or Kafka 0.7. Raises SettingsError for a name that is
    no column of the raw table.
    """
    types = types_of(physical=physical)
    if names is None:
        return tuple(types)
    for name in names:
        if name not in types:
            raise SettingsError(
                f"There is no column {name!r} in the raw table",
                action=f"Use the columns {', '.join(types)}",
                column=name,
            )
    return tuple(name for name in types if name in names)


def spark_schema(names: Sequence[str] | None = None, *, physical: bool = False) -> str:
    """Return the schema as a DDL string of Spark, e.g. `key binary, value binary, ...`."""
    types = types_of(physical=physical)
    columns = [f"{name} {types[name]}" for name in raw_columns(names, physical=physical)]
    return ", ".join(columns)


def row_key(*, physical: bool) -> tuple[str, ...]:
    """Return the columns that identify a row, `incarnation` last.

    `misfit` names those that may be missing.
    """
    if physical:
        return ("topic", "broker_id", "partition", "offset", "message_index", "incarnation")
    return ("topic", "partition", "offset", "incarnation")


def names_of_key(*, physical: bool) -> str:
    """Format the columns that a transform must not change: those of `row_key` but the last."""
    *most, last = [name for name in row_key(physical=physical) if name != "incarnation"]
    return f"{', '.join(most)} and {last}"


_NUMBERS = ("tinyint", "smallint", "int", "bigint")


def misfit(types: Iterable[tuple[str, str]], *, physical: bool = False) -> str | None:
    """Return why rows with these columns cannot be matched with their records; None if they can.

    `types`: pairs of column name and Spark SQL type. Counting and verifying need the columns of
    `row_key` with their original types; only `incarnation` may be missing.
    """
    present = dict(types)
    for name in row_key(physical=physical):
        fitting: tuple[str, ...] = _NUMBERS
        if name == "topic":
            fitting = ("string",)
        if name not in present and name != "incarnation":
            return f"there is no column {name}"
        if name in present and present[name] not in fitting:
            return f"the column {name} is {present[name]}"
    return None


def arrow_schema(names: Sequence[str] | None = None, *, physical: bool = False) -> pa.Schema:
    """Return the schema for pyarrow; every column is nullable, as in Spark's Kafka source."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types = {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp_ltz": pa.timestamp("us", tz="UTC"),
        "array<struct<key:string,value:binary>>": pa.list_(pa.field("element", header)),
    }
    of_columns = types_of(physical=physical)
    fields = []
    for name in raw_columns(names, physical=physical):
        fields.append(pa.field(name, types[of_columns[name]]))
    return pa.schema(fields)
