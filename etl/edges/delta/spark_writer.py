"""Rows of a plan into the table, by Spark: one append. Owns the built-in column `event_date` of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etl.edges.delta.others import IsOurs
from etl.edges.delta.outcome import Outcome, decide, holds, read_back
from etl.edges.delta.path import announce_first_write, open_table, spark_path
from etl.edges.delta.shape import EVENT_DATE, refuse_unknown
from etl.edges.delta.state import StorageOptions
from etl.model.ledger import Acknowledgement
from etl.model.plans import Plan
from etl.protocol.zookeeper.commit_metadata import render_commit_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_MICROS = "unix_micros(timestamp)"
_UTC_DATE = (
    f"case when {_MICROS} >= {_YEAR_1} and {_MICROS} < {_YEAR_10000} then "
    f"date_from_unix_date(cast(({_MICROS} - pmod({_MICROS}, {_MICROS_PER_DAY})) div {_MICROS_PER_DAY} as int)) end"
)
"""Integer arithmetic on the instant: `to_date` would follow the session's time zone. Other years are no date that every reader of a
table knows (`event_date=+55840-11-08` is none for delta-rs), and the arithmetic would leave the range of an int64 in the least of them.
"""


def append(
    frame: DataFrame, plan: Plan, *, app_id: str, path: str, partition_by: Sequence[str], known: int | None,
    run_id: str | None = None, is_ours: IsOurs = lambda topic: False, word: Acknowledgement | None = None,
    storage_options: StorageOptions = None,
) -> Outcome:
    """Append `frame` as plan `plan.number`, at most once, and say what the table holds afterwards.

    Where the table already holds that number Spark is not even asked. When the plan is not in the table afterwards, what Spark
    raised is raised: the executor's own EtlError, TableUnreachable for a place that cannot be written, anything else as it is.
    Without an exception and without the plan the outcome is NOT_APPLIED: somebody replaced the table meanwhile.
    """
    metadata = render_commit_metadata(plan, app_id, run_id)
    if holds(plan, open_table(path, storage_options), app_id):
        return read_back(plan, app_id=app_id, path=path, known=known, is_ours=is_ours, word=word, storage_options=storage_options)
    announce_first_write(path)
    failure = None
    try:
        writer = with_event_date(frame, partition_by).write.format("delta").mode("append").partitionBy(*partition_by)
        writer.option("txnAppId", app_id).option("txnVersion", plan.number).option("userMetadata", metadata).save(spark_path(path))
    except Exception as error:  # whatever it is, the table decides first: the commit may have happened before it
        failure = error
    return decide(failure, plan, app_id, path, known, is_ours, word, storage_options)


def with_event_date(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Add the built-in column `event_date`, the UTC date of `timestamp`, when the partitioning names it and the rows lack it."""
    refuse_unknown(partition_by, frame.columns)
    if EVENT_DATE not in partition_by or EVENT_DATE in frame.columns:
        return frame
    from pyspark.sql import functions

    return frame.withColumn(EVENT_DATE, functions.expr(_UTC_DATE))
