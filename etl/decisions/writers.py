"""What of a conf keeps tasks from writing the table's files themselves, and which plans need no
Spark then. Pure functions of values.

Tables are judged in `features`.
"""

from __future__ import annotations

from collections.abc import Mapping

from etl.decisions.tasks import bytes_of
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan
from etl.settings.sections import Settings

_OF_NEW_TABLES = "spark.databricks.delta.properties.defaults."
EVENT_DATE = "event_date"
_AS_TEXT = (
    "topic",
    "partition",
    "offset",
    "timestampType",
    "broker_id",
    "message_index",
    "log_epoch",
    EVENT_DATE,
)
"""Columns of the raw table whose values have one text that all readers of a table take for them."""

_TYPES_AS_TEXT = ("string", "bool", "int8", "int16", "int32", "int64", "date32[day]")
"""The same by Arrow's type."""
_MOMENT = "timestamp[us, tz=UTC]"


def is_small(
    plan: Plan, bytes_per_offset: Mapping[BrokerPartition, float], settings: Settings
) -> bool:
    """Whether processes of the driver's machine read the plan, by what the brokers tell of the size
    of their logs.
    """
    limit = settings.limits.without_spark_below_bytes
    return limit > 0 and bytes_of(plan.ranges, bytes_per_offset) < limit


def why_not_arrow(
    settings: Settings, *, is_new: bool, made: Mapping[str, str] | None = None
) -> str | None:
    """Why the conf's rows cannot come by files of tasks; None where they can. `is_new`: the table
    is not there yet.

    `made`: the columns that an Arrow transform makes, each with its type as Arrow calls it.
    """
    if settings.transform is not None:
        return "the transform takes a DataFrame"
    by = settings.table.partition_by
    unlike = next(
        (
            name
            for name in by
            if not (name in _AS_TEXT if made is None else _has_one_text(name, made))
        ),
        None,
    )
    if unlike is not None:
        return f"the table is partitioned by {unlike}"
    default = next((key for key in settings.spark if key.startswith(_OF_NEW_TABLES)), None)
    return f"Spark alone makes a table by {default}" if is_new and default else None


def _has_one_text(name: str, made: Mapping[str, str]) -> bool:
    """Whether values of a column that a transform makes have; `event_date` is built in where it
    makes none.
    """
    if name == EVENT_DATE and name not in made:
        return made.get("timestamp") == _MOMENT
    return made.get(name) in _TYPES_AS_TEXT
