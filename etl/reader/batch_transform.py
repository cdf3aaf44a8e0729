"""How does a user's function change the Arrow batches of a task?

A function from RecordBatch to RecordBatch, named `package.module:function`, applied between reading
and writing, so both writers receive the same rows. Its output columns are found by calling it with
an empty batch. Each batch is of one partition, and each row must name a record of it. Range results
count what was read.

Arrow types that Delta lacks are converted (Delta protocol, "Primitive Types"); all columns are
nullable, as in Delta's own new tables.
"""

from __future__ import annotations

import importlib
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
_SAME = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_date32,
)
_KEPT_AS = (
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
    """An Arrow type that Delta lacks; arguments: its name, and for a schema the path of field
    names.
    """


def stored_schema(made: pa.Schema) -> pa.Schema:
    """The columns as the table has them. Raises NoTypeOfDelta."""
    return pa.schema([_field(field) for field in made])


def names_twice(fields: Iterable[pa.Field]) -> Iterator[list[str]]:
    """Names that only capital letters keep apart, or nothing, of columns and of the fields of each
    struct in them.
    """
    named = list(fields)
    same: dict[str, list[str]] = {}
    for field in named:
        same.setdefault(field.name.lower(), []).append(field.name)
    yield from (names for names in same.values() if len(names) > 1)
    for field in named:
        yield from names_twice(_inside(field.type))


def _inside(kind: pa.DataType) -> Iterator[pa.Field]:
    """The fields of a struct; of a list or a map those of the structs in it."""
    for inner in (kind.field(at) for at in range(kind.num_fields)):
        yield from [inner] if types.is_struct(kind) else _inside(inner.type)


def stored_type(made: pa.DataType) -> pa.DataType:
    """The type that the table keeps values of this one as. Raises NoTypeOfDelta."""
    if any(holds(made) for holds in _SAME):
        return made
    kept = next((kept for holds, kept in _KEPT_AS if holds(made)), None)
    if kept is not None:
        return kept
    if types.is_timestamp(
        made
    ):  # Delta's are of microseconds; with a zone it is a moment, whichever zone that is
        return pa.timestamp("us", tz="UTC" if made.tz else None)
    if (
        types.is_decimal(made)
        and made.precision <= _DECIMAL_DIGITS
        and 0 <= made.scale <= made.precision
    ):
        return pa.decimal128(made.precision, made.scale)
    if types.is_dictionary(made) or types.is_run_end_encoded(made):
        return stored_type(made.value_type)
    return _nested(made)


def _nested(made: pa.DataType) -> pa.DataType:
    if any(holds(made) for holds in _LISTS):
        return pa.list_(pa.field("element", stored_type(made.value_type)))
    if types.is_map(made):
        return pa.map_(stored_type(made.key_type), stored_type(made.item_type))
    if types.is_struct(made) and made.num_fields:
        return pa.struct([_field(made.field(at)) for at in range(made.num_fields)])
    raise NoTypeOfDelta(str(made))


def _field(made: pa.Field) -> pa.Field:
    try:
        return pa.field(made.name, stored_type(made.type))
    except NoTypeOfDelta as error:
        raise NoTypeOfDelta(error.args[0], made.name, *error.args[1:]) from error


OF_KEYS = {
    "transform.dataframe": "the transform",
    "transform.record_batch": "the Arrow transform",
}
"""Key of the conf -> what it names, as a sentence calls it."""


def load_function(name: str, key: str) -> Callable[[Any], Any]:
    """The function `package.module:function`, from the Python path or the current folder. Raises
    SettingsError.
    """
    module, _, function = name.partition(":")
    sys.path[:] = sys.path if "" in sys.path else [*sys.path, ""]
    try:
        found = getattr(importlib.import_module(module), function)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing runs the module: whatever it raises (SystemExit, too) is about the transform
        message = f"{OF_KEYS[key]} cannot be imported: {describe_failure_of(error)}"
        action = "Check its spelling, and that its module is installed or in this folder, also where tasks run"
        raise SettingsError(message, key=key, action=action) from error
    if not callable(found):
        raise SettingsError(
            f"{name} is no function", key=key, action="Write package.module:function"
        )
    wanted: Callable[[Any], Any] = found
    return wanted


def describe_failure_of(error: BaseException) -> str:
    """Return the exception's name and first line; for a module or function that exits, the exit."""
    if isinstance(error, SystemExit):
        return f"it ends the process (sys.exit, with {error.code!r})"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}".removesuffix(
        ": "
    )


def line_of(error: BaseException) -> str | None:
    """Return the outermost line of the user's code that led to the error."""
    return next(
        (
            f"{frame.filename}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)[1:]
        ),
        None,
    )


_KEY = "transform.record_batch"
_CHECK = "Check the function: pyarrow.RecordBatch in, pyarrow.RecordBatch out, the same columns each time"
_AGAIN = (
    ". The next run executes the stored plan again with the function of that time; or replace the plan: "
    "etl plans supersede CONF N --reason ..."
)
Names = tuple[tuple[str, pa.DataType], ...]


@dataclass(frozen=True, slots=True)
class ArrowTransform:
    """A function that was tried on no rows. It is sent to tasks by its name."""

    name: str
    """`package.module:function`."""
    made: pa.Schema
    """The columns as the function makes them."""
    stored: pa.Schema
    """The same with the table's types (`batch_transform`)."""
    physical: bool = False
    """The rows are of physical logs (`BrokerPartition.is_physical`)."""


def load_arrow_transform(name: str, *, physical: bool = False) -> ArrowTransform:
    """Find the function, and find out which columns it makes. Raises SettingsError, with the line
    where it failed.
    """
    function = load_function(name, _KEY)
    given = arrow_schema(physical=physical)
    made = _called(function, pa.RecordBatch.from_pylist([], schema=given), "on no rows", _CHECK)
    if made.num_rows:
        raise _wrong(f"made {made.num_rows} rows of none", f"{_CHECK}; a row is made of a record")
    twice = next(names_twice(made.schema), None)
    if twice is not None:
        message = f"makes the column {' and '.join(dict.fromkeys(twice))} more than once; to Delta capital letters are no difference"
        raise _wrong(message, "Check the columns that it returns")
    try:
        stored = stored_schema(made.schema)
        made.cast(stored)
    except NoTypeOfDelta as error:
        kind, *path = error.args
        message = f"makes the column {'.'.join(path)} of a type that Delta does not have: {kind}"
        raise _wrong(message, "Check the columns that it returns") from error
    except pa.ArrowException as error:
        raise _wrong(
            f"makes columns that cannot be kept: {describe_failure_of(error)}",
            "Check the columns that it returns",
        ) from error
    return ArrowTransform(name, made.schema, stored, physical)


def transformed(
    batches: Iterable[pa.RecordBatch], transform: ArrowTransform
) -> Iterator[pa.RecordBatch]:
    """Apply the function to each batch, with columns as `ArrowTransform.stored`; batches without
    rows are left out. Raises SettingsError for its errors and for rows that the table or `verify`
    cannot use.
    """
    function, given, expected = (
        load_function(transform.name, _KEY),
        arrow_schema(physical=transform.physical),
        _names(transform.made),
    )
    for read in batches:
        batch = read if read.schema.equals(given) else read.select(given.names).cast(given)
        made = _called(function, batch, "on rows", _CHECK + _AGAIN)
        if _names(made.schema) != expected:
            message = f"made other columns of rows than of none: {_first_difference(_names(made.schema), expected)}"
            raise _wrong(message, _CHECK + _AGAIN)
        try:
            rows = made.cast(transform.stored)
            rows.validate(
                full=True
            )  # bytes that are no UTF-8 in one text, and delta-rs reads nothing of the table any more
        except pa.ArrowException as error:
            raise _wrong(
                f"made a value that the table cannot keep: {describe_failure_of(error)}",
                f"Check the function{_AGAIN}",
            ) from error
        _reject_other_records(batch, rows, physical=transform.physical)
        if rows.num_rows:
            yield rows


def _called(
    function: Callable[[Any], Any], batch: pa.RecordBatch, where: str, action: str
) -> pa.RecordBatch:
    """One call. Raises SettingsError."""
    try:
        made = function(batch)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is somebody else's code: whatever it raises (SystemExit, too) is about the transform
        raise _wrong(
            f"failed {where}: {describe_failure_of(error)}", action, line=line_of(error)
        ) from error
    if not isinstance(made, pa.RecordBatch):
        raise _wrong(f"gave {type(made).__name__} {where}, no RecordBatch", action)
    return made


def _reject_other_records(read: pa.RecordBatch, rows: pa.RecordBatch, *, physical: bool) -> None:
    """Check that each row names a record of its batch, since rows are counted, replaced and
    verified by these columns. Raises SettingsError. Rows may be fewer, more, or reordered; missing
    columns are checked with the table.
    """
    for name in row_key(physical=physical):
        if name not in rows.schema.names:
            continue
        before, after = read.column(name), rows.column(name)
        try:
            same_kind = after if after.type == before.type else after.cast(before.type)
        except pa.ArrowException as error:
            raise _another(name, describe_failure_of(error)) from error
        if not same_kind.equals(before) and not (
            same_kind.null_count == 0
            and compute.all(compute.is_in(same_kind, value_set=before)).as_py() in (True, None)
        ):
            raise _another(name, "a value that no record of the batch has")


def _another(name: str, why: str) -> SettingsError:
    return _wrong(
        f"changes the column {name}, by which a row is known as that of its record: {why}",
        f"Change the function: it must leave {name} of each row as it came; further columns are fine{_AGAIN}",
    )


def _wrong(message: str, action: str, **where: Any) -> SettingsError:
    return SettingsError(f"The Arrow transform {message}", key=_KEY, action=action, **where)


def _names(schema: pa.Schema) -> Names:
    return tuple((field.name, field.type) for field in schema)


def _first_difference(found: Names, expected: Names) -> str:
    for one, other in zip(found, expected, strict=False):
        if one != other:
            return f"{one[0]} ({one[1]}) in the place of {other[0]} ({other[1]})"
    return f"{len(found)} columns in the place of {len(expected)}"
