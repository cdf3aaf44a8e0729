"""Airflow DAGs, operators and sensors of pipelines. Each task starts one command of `etl`.

    EtlEnvironment                       where the package and Spark are installed
    ingest_dag, replay_dag, backfill_dag, maintenance_dag, dags_for_each_conf
    EtlSubmitOperator                    runs a command by spark-submit
    TopicsReadySensor                    waits until partitions are complete up to a time
    TableGapsOperator                    fails if intervals are missing in the table
    table_asset                          the asset of a conf's table, for DAGs that wait for it

`dags` builds DAGs from conf files, `submit` starts commands by spark-submit, `sensors` waits for
complete partitions and finds missing intervals, `pipeline` reads what a DAG needs of a conf and
starts commands without Spark, `compat` has the names of Airflow 2.11 and 3.

A DAG file imports nothing heavy: no pyspark, numba, pyarrow, kafka, kazoo. A name is imported on
first access, because `pipeline` also loads without Airflow. No other folder imports this one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.airflow.dags import (
        backfill_dag,
        dags_for_each_conf,
        ingest_dag,
        maintenance_dag,
        replay_dag,
    )
    from etl.airflow.pipeline import EtlEnvironment
    from etl.airflow.sensors import TableGapsOperator, TopicsReadySensor
    from etl.airflow.submit import EtlSubmitOperator, table_asset

__all__ = [
    "EtlEnvironment",
    "EtlSubmitOperator",
    "TableGapsOperator",
    "TopicsReadySensor",
    "backfill_dag",
    "dags_for_each_conf",
    "ingest_dag",
    "maintenance_dag",
    "replay_dag",
    "table_asset",
]

_HOMES = {
    "EtlEnvironment": "etl.airflow.pipeline",
    "EtlSubmitOperator": "etl.airflow.submit",
    "TableGapsOperator": "etl.airflow.sensors",
    "TopicsReadySensor": "etl.airflow.sensors",
    "backfill_dag": "etl.airflow.dags",
    "dags_for_each_conf": "etl.airflow.dags",
    "ingest_dag": "etl.airflow.dags",
    "maintenance_dag": "etl.airflow.dags",
    "replay_dag": "etl.airflow.dags",
    "table_asset": "etl.airflow.submit",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
