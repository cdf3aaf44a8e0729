"""How does a user's function change the Arrow batches of a task?

A function from RecordBatch to RecordBatch, named `package.module:function`, is applied between
reading and writing, so both writers receive the same rows. A call with an empty batch finds its
output columns. Each batch is of one partition, and each row must be of a record of that batch.
Range results count the records that were read, and the rows that were made of them.

Arrow types that Delta lacks are converted (Delta protocol, "Primitive Types"); all columns are
nullable, as in Delta's own new tables.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import compute, types

from etl.errors import SettingsError
from etl.model.columns import arrow_schema, row_key

_DECIMAL_DIGITS = 38
_UNCHANGED_TYPES = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_date32,
)
_CONVERTED_TYPES = (
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
    (types.is_float16, pa.float32()),
    (types.is_date64, pa.date32()),
    (types.is_string, pa.string()),
    (types.is_large_string, pa.string()),
    (types.is_string_view, pa.string()),
    (types.is_binary, pa.binary()),
    (types.is_large_binary, pa.binary()),
    (types.is_binary_view, pa.binary()),
    (types.is_fixed_size_binary, pa.binary()),
)
_LISTS = (
    types.is_list,
    types.is_large_list,
    types.is_fixed_size_list,
    types.is_list_view,
    types.is_large_list_view,
)


class NoTypeOfDelta(ValueError):
    """An Arrow type that Delta lacks.

    Arguments: its name, and for a schema the path of field names.
    """


def stored_schema(returned: pa.Schema) -> pa.Schema:
    """Return the columns with the table's types. Raises NoTypeOfDelta."""
    return pa.schema([_stored_field(field) for field in returned])


def names_twice(fields: Iterable[pa.Field]) -> Iterator[list[str]]:
    """Yield names that are equal but for case, of columns and of the fields of each struct."""
    fields = list(fields)
    by_lower: dict[str, list[str]] = {}
    for field in fields:
        by_lower.setdefault(field.name.lower(), []).append(field.name)
    for names in by_lower.values():
        if len(names) > 1:
            yield names
    for field in fields:
        yield from names_twice(_struct_fields(field.type))


def _struct_fields(kind: pa.DataType) -> Iterator[pa.Field]:
    """Yield the fields of a struct; for a list or a map those of the structs in it."""
    for number in range(kind.num_fields):
        inner = kind.field(number)
        if types.is_struct(kind):
            yield inner
        else:
            yield from _struct_fields(inner.type)


def stored_type(returned: pa.DataType) -> pa.DataType:
    """Return the table's type for values of this type. Raises NoTypeOfDelta."""
    if any(is_type(returned) for is_type in _UNCHANGED_TYPES):
        return returned
    for is_type, converted in _CONVERTED_TYPES:
        if is_type(returned):
            return converted
    if types.is_timestamp(returned):
        # Delta has microseconds. With a time zone the value is an instant, in any zone.
        time_zone = "UTC" if returned.tz else None
        return pa.timestamp("us", tz=time_zone)
    if types.is_decimal(returned):
        fits = returned.precision <= _DECIMAL_DIGITS and 0 <= returned.scale <= returned.precision
        if fits:
            return pa.decimal128(returned.precision, returned.scale)
    if types.is_dictionary(returned) or types.is_run_end_encoded(returned):
        return stored_type(returned.value_type)
    return _stored_nested_type(returned)


def _stored_nested_type(returned: pa.DataType) -> pa.DataType:
    if any(is_type(returned) for is_type in _LISTS):
        return pa.list_(pa.field("element", stored_type(returned.value_type)))
    if types.is_map(returned):
        return pa.map_(stored_type(returned.key_type), stored_type(returned.item_type))
    if types.is_struct(returned) and returned.num_fields:
        fields = []
        for number in range(returned.num_fields):
            fields.append(_stored_field(returned.field(number)))
        return pa.struct(fields)
    raise NoTypeOfDelta(str(returned))


def _stored_field(returned: pa.Field) -> pa.Field:
    try:
        return pa.field(returned.name, stored_type(returned.type))
    except NoTypeOfDelta as error:
        raise NoTypeOfDelta(error.args[0], returned.name, *error.args[1:]) from error


OF_KEYS = {
    "transform.dataframe": "the transform",
    "transform.record_batch": "the Arrow transform",
}
"""The transform of each key, as a message names it within a sentence."""


def load_function(name: str, key: str, folder: str | None = None) -> Callable[[Any], Any]:
    """Return the function `package.module:function`.

    Its module is imported from `folder`, the conf's directory, else from the Python path or the
    current directory. Raises SettingsError.
    """
    module, _, function_name = name.partition(":")
    try:
        with _searching_first(folder):
            function = getattr(importlib.import_module(module), function_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import runs the user's module, which may call sys.exit
        raise SettingsError(
            f"The function of {key} cannot be imported: {describe_failure_of(error)}",
            key=key,
            action="Check its spelling, and that its module is beside the conf, installed or in"
            " this directory, also where tasks run",
        ) from error
    if not callable(function):
        raise SettingsError(
            f"{name} is not a function", key=key, action="Write package.module:function"
        )
    result: Callable[[Any], Any] = function
    return result


@contextlib.contextmanager
def _searching_first(folder: str | None) -> Iterator[None]:
    """Context manager: modules are imported from `folder` first, inside.

    Afterwards it stays on Python's path, before the current directory, for what the function
    imports when it is called; a file in it does not hide an installed module then.
    """
    if "" not in sys.path:
        sys.path.append("")
    if folder is None:
        yield
        return
    if folder not in sys.path:
        current = next(n for n, place in enumerate(sys.path) if place in ("", os.getcwd()))
        sys.path.insert(current, folder)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def describe_failure_of(error: BaseException) -> str:
    """Return the exception's name and first line; for a module or function that exits, the exit."""
    if isinstance(error, SystemExit):
        return f"it ends the process (sys.exit, with {error.code!r})"
    name = type(error).__name__
    text = str(error).strip()
    if not text:
        return name
    return f"{name}: {text.splitlines()[0]}".removesuffix(": ")


def line_of(error: BaseException) -> str | None:
    """Return the outermost line of the user's code that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    if not frames:
        return None
    return f"{frames[0].filename}:{frames[0].lineno}"


_KEY = "transform.record_batch"
_CHECK = (
    "Check the function: pyarrow.RecordBatch in, pyarrow.RecordBatch out, the same columns each"
    " time"
)
_RETRY = (
    ". The next run executes the stored plan again with the function of that time. Or replace the"
    " plan: etl plans supersede CONF N --reason ..."
)
_Columns = tuple[tuple[str, pa.DataType], ...]


@dataclass(frozen=True, slots=True)
class ArrowTransform:
    """A function that was called with an empty batch. It is sent to tasks by its name."""

    name: str
    """`package.module:function`."""
    made: pa.Schema
    """The columns that the function returns."""
    stored: pa.Schema
    """The same columns with the table's types."""
    physical: bool = False
    """The rows are of physical partitions (`TopicPartition.is_physical`)."""
    folder: str | None = None
    """See `load_function`; tasks of other machines may not have it."""


def load_arrow_transform(
    name: str, *, physical: bool = False, folder: str | None = None
) -> ArrowTransform:
    """Import the function, and find its output columns with an empty batch.

    Raises SettingsError, with the line where the function failed.
    """
    function = load_function(name, _KEY, folder)
    schema = arrow_schema(physical=physical)
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    returned = _call(function, empty, "for an empty batch", _CHECK)
    if returned.num_rows:
        raise _error(
            f"returned {returned.num_rows} rows for an empty batch",
            f"{_CHECK}. Each row must be of a record",
        )
    same_names = next(names_twice(returned.schema), None)
    if same_names is not None:
        raise _error(
            f"returns the column {' and '.join(dict.fromkeys(same_names))} more than once: Delta"
            " does not distinguish capital letters",
            "Check the columns that it returns",
        )
    try:
        stored = stored_schema(returned.schema)
        returned.cast(stored)
    except NoTypeOfDelta as error:
        kind, *path = error.args
        raise _error(
            f"returns the column {'.'.join(path)} of a type that Delta does not have: {kind}",
            "Check the columns that it returns",
        ) from error
    except pa.ArrowException as error:
        raise _error(
            f"returns columns that cannot be stored: {describe_failure_of(error)}",
            "Check the columns that it returns",
        ) from error
    return ArrowTransform(name, returned.schema, stored, physical, folder)


def transformed(
    batches: Iterable[pa.RecordBatch],
    transform: ArrowTransform,
    on_left_out: Callable[[pa.RecordBatch, int], None] = lambda batch, count: None,
) -> Iterator[pa.RecordBatch]:
    """Apply the function to each batch, with columns as `ArrowTransform.stored`.

    Batches without rows are left out. `on_left_out` is called with a batch of which the function
    left out records, and their number, before its rows are yielded. Raises SettingsError for the
    function's errors and for rows that the table or `verify` cannot use.
    """
    function = load_function(transform.name, _KEY, transform.folder)
    schema = arrow_schema(physical=transform.physical)
    expected = _columns(transform.made)
    for batch in batches:
        if not batch.schema.equals(schema):
            batch = batch.select(schema.names).cast(schema)
        returned = _call(function, batch, "for a batch with rows", _CHECK + _RETRY)
        found = _columns(returned.schema)
        if found != expected:
            raise _error(
                "returned other columns with rows than without:"
                f" {_first_difference(found, expected)}",
                _CHECK + _RETRY,
            )
        try:
            rows = returned.cast(transform.stored)
            # One text with invalid UTF-8 would make the whole table unreadable for delta-rs.
            rows.validate(full=True)
        except pa.ArrowException as error:
            raise _error(
                f"returned a value that the table cannot store: {describe_failure_of(error)}",
                f"Check the function{_RETRY}",
            ) from error
        _reject_other_records(batch, rows, physical=transform.physical)
        left_out = batch.num_rows - _count_records(batch, rows, physical=transform.physical)
        if left_out:
            on_left_out(batch, left_out)
        if rows.num_rows:
            yield rows


def _call(
    function: Callable[[Any], Any], batch: pa.RecordBatch, situation: str, action: str
) -> pa.RecordBatch:
    """Call the function once. Raises SettingsError."""
    try:
        returned = function(batch)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: uncaught it would set our exit code
        raise _error(
            f"failed {situation}: {describe_failure_of(error)}", action, line=line_of(error)
        ) from error
    if not isinstance(returned, pa.RecordBatch):
        raise _error(f"returned {type(returned).__name__} {situation}, not a RecordBatch", action)
    return returned


def _reject_other_records(batch: pa.RecordBatch, rows: pa.RecordBatch, *, physical: bool) -> None:
    """Raise SettingsError if a row is not of a record of its batch.

    Rows are counted, replaced and verified by the columns that identify a record. Rows may be
    fewer, more, or reordered; missing columns are checked with the table.
    """
    for name in row_key(physical=physical):
        if name not in rows.schema.names:
            continue
        before = batch.column(name)
        after = rows.column(name)
        try:
            if after.type != before.type:
                after = after.cast(before.type)
        except pa.ArrowException as error:
            raise _changed_key(name, describe_failure_of(error)) from error
        if after.equals(before):
            continue
        if after.null_count == 0:
            all_known = compute.all(compute.is_in(after, value_set=before)).as_py()
            if all_known in (True, None):  # None: no rows
                continue
        raise _changed_key(name, "a value that no record of the batch has")


def _count_records(batch: pa.RecordBatch, rows: pa.RecordBatch, *, physical: bool) -> int:
    """Return the number of records of the batch that have a row."""
    place = ["offset"]
    if physical:
        place.append("message_index")
    if not set(place) <= set(rows.schema.names):
        return int(min(batch.num_rows, rows.num_rows))
    if all(rows.column(name).equals(batch.column(name)) for name in place):
        return int(batch.num_rows)
    records = pa.table({name: rows.column(name) for name in place})
    return int(records.group_by(place).aggregate([]).num_rows)


def _changed_key(name: str, cause: str) -> SettingsError:
    return _error(
        f"changes the column {name}, which identifies the record of a row: {cause}",
        f"Change the function: it must leave {name} of each row unchanged; further columns are"
        f" fine{_RETRY}",
    )


def _error(message: str, action: str, **where: Any) -> SettingsError:
    return SettingsError(f"The Arrow transform {message}", key=_KEY, action=action, **where)


def _columns(schema: pa.Schema) -> _Columns:
    return tuple((field.name, field.type) for field in schema)


def _first_difference(found: _Columns, expected: _Columns) -> str:
    for (name, kind), (expected_name, expected_kind) in zip(found, expected, strict=False):
        if (name, kind) != (expected_name, expected_kind):
            return f"{name} ({kind}) instead of {expected_name} ({expected_kind})"
    return f"{len(found)} columns instead of {len(expected)}"
