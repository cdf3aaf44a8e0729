"""Arrow's types as a Delta table has them (Delta protocol, "Primitive Types"); any other one is
kept as the type that holds its values.

Every column, nested ones too, may be null, as Delta's own writer makes those of a new table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import types

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
    """What Delta has no type for; its arguments are the type as Arrow calls it and, of a schema,
    the names that lead to it.
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
