"""Names of Airflow, the same for 2.11 and 3."""

from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    Asset,
    BaseHook,
    BaseOperator,
    BaseSensorOperator,
    Param,
)

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 2.11
    from airflow.timetables.interval import CronDataIntervalTimetable

__all__ = [
    "DAG",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "Asset",
    "BaseHook",
    "BaseOperator",
    "BaseSensorOperator",
    "CronDataIntervalTimetable",
    "Param",
]
