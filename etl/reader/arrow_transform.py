"""The Arrow transform of a pipeline: the user's function from RecordBatch to RecordBatch, which
tasks apply to the rows that they read.

It stands between reading and whoever takes the rows, so both writers get the same ones, and
receipts count what was read. Which columns it makes is found out before there are rows, from what
it makes of none. Each batch is of one log, which is why a row that names a record of another one,
or none of the batch, is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import compute

from etl.errors import SettingsError
from etl.model.columns import arrow_schema, row_key
from etl.reader.arrow_types import NoTypeOfDelta, names_twice, stored_schema
from etl.reader.user_function import line_of, load_function, said_by

_KEY = "arrow_transform"
_CHECK = "the function: pyarrow.RecordBatch in, pyarrow.RecordBatch out, the same columns each time"
_AGAIN = (
    "; the stored plan is executed again by the next run, with the function as it is then; or give the plan up: "
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
    """The same as the table has them (`arrow_types`)."""
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
        what = f"makes the column {' and '.join(dict.fromkeys(twice))} more than once; to Delta capital letters are no difference"
        raise _wrong(what, "the columns that it makes")
    try:
        stored = stored_schema(made.schema)
        made.cast(stored)
    except NoTypeOfDelta as error:
        kind, *path = error.args
        what = f"makes the column {'.'.join(path)} of a type that Delta does not have: {kind}"
        raise _wrong(what, "the columns that it makes") from error
    except pa.ArrowException as error:
        raise _wrong(
            f"makes columns that cannot be kept: {said_by(error)}", "the columns that it makes"
        ) from error
    return ArrowTransform(name, made.schema, stored, physical)


def transformed(
    batches: Iterable[pa.RecordBatch], transform: ArrowTransform
) -> Iterator[pa.RecordBatch]:
    """What the function makes of each batch, columns as `ArrowTransform.stored` has them; a batch
    that it leaves no row of is left out.

    Raises SettingsError for what it raises, and for rows that the table, or whoever must prove it,
    cannot live with.
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
            what = f"made other columns of rows than of none: {_first_difference(_names(made.schema), expected)}"
            raise _wrong(what, _CHECK + _AGAIN)
        try:
            rows = made.cast(transform.stored)
            rows.validate(
                full=True
            )  # bytes that are no UTF-8 in one text, and delta-rs reads nothing of the table any more
        except pa.ArrowException as error:
            raise _wrong(
                f"made a value that the table cannot keep: {said_by(error)}",
                f"the function{_AGAIN}",
            ) from error
        _refuse_other_records(batch, rows, physical=transform.physical)
        if rows.num_rows:
            yield rows


def _called(
    function: Callable[[Any], Any], batch: pa.RecordBatch, where: str, check: str
) -> pa.RecordBatch:
    """One call. Raises SettingsError."""
    try:
        made = function(batch)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is somebody else's code: whatever it raises (SystemExit, too) is about the transform
        raise _wrong(f"failed {where}: {said_by(error)}", check, line=line_of(error)) from error
    if not isinstance(made, pa.RecordBatch):
        raise _wrong(f"gave {type(made).__name__} {where}, no RecordBatch", check)
    return made


def _refuse_other_records(read: pa.RecordBatch, rows: pa.RecordBatch, *, physical: bool) -> None:
    """Whoever counts, replaces or proves rows goes by these columns: each row must name a record of
    the batch. Raises SettingsError.

    Rows may be fewer, more, or in another order. A column that the function does not make is judged
    where the table is.
    """
    for name in row_key(physical=physical):
        if name not in rows.schema.names:
            continue
        before, after = read.column(name), rows.column(name)
        try:
            same_kind = after if after.type == before.type else after.cast(before.type)
        except pa.ArrowException as error:
            raise _another(name, said_by(error)) from error
        if not same_kind.equals(before) and not (
            same_kind.null_count == 0
            and compute.all(compute.is_in(same_kind, value_set=before)).as_py() in (True, None)
        ):
            raise _another(name, "a value that no record of the batch has")


def _another(name: str, why: str) -> SettingsError:
    return _wrong(
        f"changes the column {name}, by which a row is known as that of its record: {why}",
        f"the function: it must leave {name} of each row as it came; further columns are fine{_AGAIN}",
    )


def _wrong(what: str, check: str, **where: Any) -> SettingsError:
    return SettingsError(f"the Arrow transform {what}", key=_KEY, check=check, **where)


def _names(schema: pa.Schema) -> Names:
    return tuple((field.name, field.type) for field in schema)


def _first_difference(found: Names, expected: Names) -> str:
    for one, other in zip(found, expected, strict=False):
        if one != other:
            return f"{one[0]} ({one[1]}) in the place of {other[0]} ({other[1]})"
    return f"{len(found)} columns in the place of {len(expected)}"
