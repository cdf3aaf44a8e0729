"""Of which partition of the table each row of a batch is, by the columns that the table is
partitioned by.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import pyarrow as pa
from pyarrow import compute, types

from etl.edges.delta.failures import FOLDER_BYTES, of_no_folder
from etl.errors import SettingsError

EVENT_DATE = "event_date"
_MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_DAY_1, _LAST_DAY = _YEAR_1 // _MICROS_PER_DAY, _YEAR_10000 // _MICROS_PER_DAY - 1
_READS_AS_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Characters that Spark writes as three in the name of a partition's folder."""
Values = tuple[str | None, ...]
"""Of the columns that the table is partitioned by, as the log has them."""


def split_by_values(
    batch: pa.RecordBatch, partition_by: tuple[str, ...]
) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows of each combination of partition values, in the order in which they first come; the
    rows' own order is kept.

    Raises SettingsError for a value that no partition can have.
    """
    if not partition_by:
        yield (), batch
        return
    keys = pa.table({name: _values_of(batch, name) for name in partition_by})
    found = keys.group_by(list(partition_by), use_threads=False).aggregate([]).to_pylist()
    for one in found:
        values = tuple(_text(one[name], name) for name in partition_by)
        yield values, batch if len(found) == 1 else batch.filter(_is_of(keys, one))


def _values_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Of one column that the table is partitioned by; null where no row has it (physical logs have
    fewer columns).
    """
    if name not in batch.schema.names:
        return _date_of(batch) if name == EVENT_DATE else pa.nulls(batch.num_rows, pa.string())
    values = batch.column(name)
    if types.is_string(
        values.type
    ):  # to Delta a text without characters is null (Delta protocol, "Partition Value Serialization")
        return compute.if_else(compute.equal(values, ""), None, values)
    if types.is_date32(values.type):
        days = values.cast(pa.int32())
        if compute.any(
            compute.or_(compute.less(days, _DAY_1), compute.greater(days, _LAST_DAY))
        ).as_py():
            check = "the transform; such a date cannot be the name of a partition that all readers of a table understand"
            raise SettingsError(
                f"a date of {name} lies outside of the years 1 to 9999",
                key="table.partition_by",
                check=check,
            )
    return values


def _text(value: Any, name: str) -> str | None:
    if value == _READS_AS_NULL:
        check = "the transform; to Spark this text in a partition is null"
        raise SettingsError(
            f"a value of {name} is {value!r}", key="table.partition_by", check=check
        )
    if isinstance(value, str):
        _refuse_without_folder(value, name)
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _refuse_without_folder(value: str, name: str) -> None:
    """Our files need no folder; who puts them together (OPTIMIZE), or changes rows of theirs, makes
    one. Raises SettingsError.
    """
    if "\0" in value:
        raise of_no_folder(name, "holds a NUL")
    if len(f"{name}={_ESCAPED.sub('%00', value)}".encode()) > FOLDER_BYTES:
        raise of_no_folder(name, f"has {len(value)} characters")


def _is_of(keys: pa.Table, one: Mapping[str, Any]) -> pa.ChunkedArray:
    found = [
        compute.is_null(column)
        if value is None
        else compute.fill_null(compute.equal(column, pa.scalar(value, column.type)), False)
        for name, value in one.items()
        for column in [keys.column(name)]
    ]
    return functools.reduce(compute.and_, found).combine_chunks()


def _date_of(batch: pa.RecordBatch) -> pa.Array:
    """The built-in column `event_date`: the UTC date of the timestamp in the years 1 to 9999, else
    null, as Spark's writer has it.
    """
    timestamps = batch.column("timestamp")
    micros = timestamps.cast(pa.int64()).fill_null(_YEAR_10000).to_numpy(zero_copy_only=False)
    days = numpy.floor_divide(micros, _MICROS_PER_DAY)
    outside = (micros < _YEAR_1) | (micros >= _YEAR_10000)
    return pa.array(numpy.where(outside, 0, days).astype(numpy.int32), mask=outside).cast(
        pa.date32()
    )
