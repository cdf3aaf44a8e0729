"""Which columns has the raw table, and of which types?

The raw table's schema: the columns of Spark's own Kafka source, same names, types and order,
then `log_epoch`.

Owns names, types and order. Building Arrow batches of this schema belongs to
`etl.records.arrow`; a unit test holds the two together. Imports neither pyspark nor, until
asked for an Arrow schema, pyarrow. A row of a table fed by Kafka 0.8 or later is unique by topic,
log_epoch, partition and offset; a row of a physical log (0.7 family) by those, broker_id and
message_index.

| column | what it holds |
| --- | --- |
| key, value | the record's bytes, null where the record has null |
| topic, partition | the log |
| offset | the record's own offset; in a physical log the byte position at which the entry of the log begins that it came in |
| timestamp | microseconds UTC; null where the record has none (-1), or where no microsecond value can hold it |
| timestampType | 0 create time, 1 log append time, as Kafka numbers them |
| headers | null, not an empty list, where the record has none: so does Spark's source |
| broker_id | physical logs only: the broker whose log it is |
| message_index | physical logs only: its place, from 0, among the messages of that entry, those of nested wrappers in order |
| log_epoch | 0, plus one each time an operator accepts that the log was cut, or its topic made again |

Messages of physical logs have neither key, timestamp nor headers: these columns are null there.
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
    "log_epoch": "int",
}
"""Column -> Spark SQL type, in the table's order. What plain `timestamp` means is the session's to
say (`spark.sql.timestampType`).
"""

PHYSICAL_TYPES: dict[str, str] = {
    **{name: kind for name, kind in SPARK_TYPES.items() if name != "log_epoch"},
    "broker_id": "int",
    "message_index": "int",
    "log_epoch": SPARK_TYPES["log_epoch"],
}
"""The same of rows of physical logs."""

COLUMNS: tuple[str, ...] = tuple(SPARK_TYPES)


def types_of(*, physical: bool) -> dict[str, str]:
    """Column -> Spark SQL type, in the table's order."""
    return PHYSICAL_TYPES if physical else SPARK_TYPES


def raw_columns(names: Sequence[str] | None = None, *, physical: bool = False) -> tuple[str, ...]:
    """The chosen columns in the table's order; all of them for None. `physical`: of rows of
    physical logs.

    Raises SettingsError for a name that is no column of the raw table.
    """
    types = types_of(physical=physical)
    if names is None:
        return tuple(types)
    for name in names:
        if name not in types:
            raise SettingsError(
                f"there is no column {name!r} in the raw table",
                check=f"the columns are {', '.join(types)}",
                column=name,
            )
    return tuple(name for name in types if name in names)


def spark_schema(names: Sequence[str] | None = None, *, physical: bool = False) -> str:
    """The schema as the DDL string that Spark's `schema()` takes, e.g. `key binary, value binary,
    ...`.
    """
    return ", ".join(
        f"{name} {types_of(physical=physical)[name]}"
        for name in raw_columns(names, physical=physical)
    )


def row_key(*, physical: bool) -> tuple[str, ...]:
    """The columns by which a row is the only one of its record, that of the log's life last;
    `misfit` tells which may be missing.
    """
    return (
        "topic",
        *(("broker_id",) if physical else ()),
        "partition",
        "offset",
        *(("message_index",) if physical else ()),
        "log_epoch",
    )


def names_of_key(*, physical: bool) -> str:
    """The columns of `row_key` that a transform must leave as they are, as a sentence names them."""
    *most, last = [name for name in row_key(physical=physical) if name != "log_epoch"]
    return f"{', '.join(most)} and {last}"


_NUMBERS = ("tinyint", "smallint", "int", "bigint")


def misfit(types: Iterable[tuple[str, str]], *, physical: bool = False) -> str | None:
    """Why rows of these columns, (name, Spark SQL type), cannot be told from one another by their
    records; None where they can.

    Whoever counts or proves rows needs the columns of `row_key` as the log has them; only
    `log_epoch` may be missing.
    """
    found = dict(types)
    for name in row_key(physical=physical):
        fitting = ("string",) if name == "topic" else _NUMBERS
        if name not in found and name != "log_epoch":
            return f"there is no column {name}"
        if name in found and found[name] not in fitting:
            return f"the column {name} is {found[name]}"
    return None


def arrow_schema(names: Sequence[str] | None = None, *, physical: bool = False) -> pa.Schema:
    """The schema as pyarrow has it; every column may be null, as Spark's Kafka source says of its
    own.
    """
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
    return pa.schema(
        [pa.field(name, types[of_columns[name]]) for name in raw_columns(names, physical=physical)]
    )
