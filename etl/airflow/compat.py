"""Names of Airflow, the same for 2.11 and 3."""

from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    Asset,
    BaseHook,
    BaseOperator,
    BaseOperatorLink,
    BaseSensorOperator,
    Param,
)

try:
    from airflow.sdk import CronDataIntervalTimetable

    IS_3 = True
except ImportError:  # Airflow 2.11
    from airflow.timetables.interval import CronDataIntervalTimetable

    IS_3 = False

__all__ = [
    "DAG",
    "IS_3",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "Asset",
    "BaseHook",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "CronDataIntervalTimetable",
    "Param",
]
