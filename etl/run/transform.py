"""The transform of a pipeline: the user's function, found by its name and tried on no rows before
it is trusted with any.

What it raises, on its own or on a row, is told with the line where it failed; what our reader
raised inside it, or Spark lost, is not its. Rows that nobody could count or prove afterwards are
refused before the first of them is written.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from etl.errors import EtlError, SettingsError, unmark, whole_text
from etl.io.delta.table import check_columns, check_partitioning, open_table
from etl.io.spark.session import is_stopped, raised_on_a_row, translating_spark_errors
from etl.model.columns import arrow_schema, misfit, names_of_key
from etl.reader.batch_transform import OF_KEYS, line_of, load_function, said_by
from etl.settings.sections import Settings

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

    from etl.reader.batch_transform import ArrowTransform


def fitting_rows(settings: Settings, rows: DataFrame) -> DataFrame:
    """What the transform, if there is one, makes of `rows`, where the table and whoever must count
    or prove it can live with that.

    Its columns tell; whether it changes what is in them, no schema says. Raises SettingsError,
    NotOurTable.
    """
    if not settings.transform:
        return rows
    made = apply_transform(settings.transform, rows)
    _refuse_misfit(settings, made.dtypes, "transform")
    check_columns(
        settings.table.path, made.schema.json(), settings.table.partition_by, spark=settings.spark
    )
    return made


def fitting_arrow_transform(settings: Settings) -> ArrowTransform | None:
    """The Arrow transform of the conf, tried on no rows, where the table and whoever must count or
    prove it can live with its columns.

    Raises SettingsError, NotOurTable.
    """
    if not settings.arrow_transform:
        return None
    from deltalake import Schema

    found = _arrow_transform(settings.arrow_transform, settings)
    columns = Schema.from_arrow(found.stored).to_json()
    _refuse_misfit(settings, _sql_types(json.loads(columns)["fields"]), "arrow_transform")
    check_columns(
        settings.table.path,
        columns,
        settings.table.partition_by,
        spark=settings.spark,
        key="arrow_transform",
    )
    return found


def columns_of_tasks(settings: Settings) -> pyarrow.Schema:
    """The columns of the rows that tasks give: those of `columns`, or what the Arrow transform
    makes. Raises SettingsError.
    """
    if settings.arrow_transform:
        return _arrow_transform(settings.arrow_transform, settings).stored
    return arrow_schema(physical=settings.source.is_physical)


def _arrow_transform(name: str, settings: Settings) -> ArrowTransform:
    from etl.reader.batch_transform import load_arrow_transform

    return load_arrow_transform(name, physical=settings.source.is_physical)


def _refuse_misfit(settings: Settings, types: Iterable[tuple[str, str]], key: str) -> None:
    """Raises SettingsError for columns of a transform by which nobody could tell rows from one
    another, unless the table is so already.
    """
    physical = settings.source.is_physical
    wrong = misfit(types, physical=physical)
    if wrong and unprovable(settings) is None:
        names = names_of_key(physical=physical)
        check = f"the function: it must leave {names} of each row as they came; further columns are fine"
        what = f"nobody could count or prove what {OF_KEYS[key]} makes: {wrong}"
        raise SettingsError(what, key=key, function=settings.either_transform, check=check)


def check_without_spark(settings: Settings) -> None:
    """What `fitting_rows` refuses before it needs rows: a transform that is not there, a table of
    another partitioning.

    Importing it runs its module, as a run does. Raises SettingsError, NotOurTable.
    """
    if settings.transform:
        load_transform(settings.transform)
        check_partitioning(settings.table.path, settings.table.partition_by)


def unprovable(settings: Settings) -> str | None:
    """Why nobody can prove the rows of the table that is there, made so by somebody's decision;
    None where they can, or there is none.
    """
    table = open_table(settings.table.path)
    if table is None:
        return None
    return misfit(
        _sql_types(json.loads(table.schema().to_json())["fields"]),
        physical=settings.source.is_physical,
    )


def _sql_types(fields: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Columns as Delta's log has them, each with its type as Spark SQL calls it."""
    for field in fields:
        kind = field["type"]
        yield field["name"], _SQL_NAMES.get(kind, kind) if isinstance(kind, str) else "nested"


_SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Delta's names of types (Delta protocol, "Primitive Types") and Spark's."""


def apply_transform(name: str, rows: DataFrame) -> DataFrame:
    """What the transform of this name makes of `rows`. Raises SettingsError with the line where it
    failed.
    """
    from pyspark.sql import DataFrame

    function = load_transform(name)
    check = "the function, on rows of spark.read.format('offset_ranges')"
    try:
        with translating_spark_errors():
            transformed = function(rows)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is somebody else's code: whatever it raises (SystemExit, too) is about the transform
        _refuse_stopped(rows, error)
        if isinstance(error, EtlError):
            raise
        told = unmark(whole_text(error))  # what our reader raised inside is not the transform's
        if told:
            raise told from error
        raise SettingsError(
            f"the transform failed: {said_by(error)}",
            key="transform",
            line=line_of(error),
            check=check,
        ) from error
    _refuse_stopped(rows)
    if not isinstance(transformed, DataFrame):
        raise SettingsError(
            f"the transform gave {type(transformed).__name__}, no DataFrame",
            key="transform",
            check=check,
        )
    return transformed


def _refuse_stopped(rows: DataFrame, error: BaseException | None = None) -> None:
    """Whatever follows on a session that was stopped fails, and none of that says why. Raises
    SettingsError.
    """
    if is_stopped(rows.sparkSession):
        check = "the function: the session is the run's, and whoever made it stops it"
        raise SettingsError("the transform stopped Spark", key="transform", check=check) from error


@contextlib.contextmanager
def translating_transform_errors(name: str | None) -> Iterator[None]:
    """What a function or an expression of the transform raises on a row inside is told as the
    transform's. Raises SettingsError.

    What Spark lost meanwhile is not its: raises ProcessLost.
    """
    try:
        with translating_spark_errors():
            yield
    except EtlError:
        raise
    except Exception as error:
        told = raised_on_a_row(type(error).__name__, whole_text(error)) if name else None
        if told is None:
            raise
        said, line = told
        check = (
            "the function, and that the workers have its module; the stored plan is executed again by the next run, with the function "
            "as it is then; or give the plan up: etl plans supersede CONF N --reason ..."
        )
        raise SettingsError(
            f"the transform failed on a row: {said}", key="transform", line=line, check=check
        ) from error


def load_transform(name: str) -> Callable[[DataFrame], DataFrame]:
    """The function `package.module:function`, from the Python path or the current folder. Raises
    SettingsError.
    """
    return load_function(name, "transform")
