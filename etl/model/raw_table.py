"""The raw table's schema: the columns of Spark's own Kafka source, same names, types and order, then `log_epoch`.

Owns names, types and order. Building Arrow batches of this schema belongs to `protocol.records.arrow`; a unit test holds the two
together. Imports neither pyspark nor, until asked for an Arrow schema, pyarrow. A row of a table fed by Kafka 0.8 or later is
unique by topic, log_epoch, partition and offset.

| column | what it holds |
| --- | --- |
| key, value | the record's bytes, null where the record has null |
| topic, partition | the log |
| offset | the record's own offset |
| timestamp | microseconds UTC; null where the record has none (-1), or where no microsecond value can hold it |
| timestampType | 0 create time, 1 log append time, as Kafka numbers them |
| headers | null, not an empty list, where the record has none: so does Spark's source |
| log_epoch | 0, plus one each time an operator accepts that a topic was deleted and made again |
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
"""Column -> Spark SQL type, in the table's order. What plain `timestamp` means is the session's to say (`spark.sql.timestampType`)."""

COLUMNS: tuple[str, ...] = tuple(SPARK_TYPES)


def raw_columns(names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The chosen columns in the table's order; all of them for None.

    Raises SettingsError for a name that is no column of the raw table.
    """
    if names is None:
        return COLUMNS
    for name in names:
        if name not in SPARK_TYPES:
            raise SettingsError(f"there is no column {name!r} in the raw table", check=f"the columns are {', '.join(COLUMNS)}", column=name)
    return tuple(name for name in COLUMNS if name in names)


def spark_schema(names: Sequence[str] | None = None) -> str:
    """The schema as the DDL string that Spark's `schema()` takes, e.g. `key binary, value binary, ...`."""
    return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in raw_columns(names))


_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_NAMING_A_RECORD = {"topic": ("string",), "partition": _NUMBERS, "offset": _NUMBERS}


def misfit(types: Iterable[tuple[str, str]]) -> str | None:
    """Why rows of these columns, (name, Spark SQL type), cannot be told from one another by their records; None where they can.

    Whoever counts or proves rows needs topic, partition and offset as the log has them; `log_epoch` may be missing.
    """
    found = dict(types)
    for name, fitting in {**_NAMING_A_RECORD, "log_epoch": _NUMBERS}.items():
        if name not in found and name in _NAMING_A_RECORD:
            return f"there is no column {name}"
        if name in found and found[name] not in fitting:
            return f"the column {name} is {found[name]}"
    return None


def arrow_schema(names: Sequence[str] | None = None) -> pa.Schema:
    """The schema as pyarrow has it; every column may be null, as Spark's Kafka source says of its own."""
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
    return pa.schema([pa.field(name, types[SPARK_TYPES[name]]) for name in raw_columns(names)])
