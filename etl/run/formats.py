"""The format of a table's rows: what becomes of a record's `value` between the decoded columns and
the writer.

Today there is one, `raw`: `value` goes to the table as the bytes it came in, and every record is a
row. A further format has its place here, before the transform: it turns `value` into columns of its
own, and marks a record that it cannot read as a dead letter. It drops no row, and leaves the
columns of `columns.row_key` as they are: by these rows are counted and proved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.model.columns import spark_schema
from etl.run.transform import fitting_rows
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def format_rows(decoded: DataFrame, settings: Settings) -> DataFrame:
    """The rows that a writer appends, made of decoded columns (`model.columns`). All rows of all
    plans pass here, and nowhere else.

    Raises SettingsError, NotOurTable where the table, or whoever must count the rows, cannot live
    with the outcome.
    """
    return fitting_rows(settings, decoded)


def try_on_no_rows(spark: SparkSession, settings: Settings) -> None:
    """What `format_rows` refuses, found out before there is a plan. Raises as it does."""
    format_rows(
        spark.createDataFrame([], spark_schema(physical=settings.source.is_physical)), settings
    )
