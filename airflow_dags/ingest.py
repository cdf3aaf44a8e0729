"""Scheduled ingest: an Airflow DAG for each conf file, which loads what came in each interval, once
that is complete.
"""

import os
from pathlib import Path

from etl.airflow.dags import dag_of_each, ingest_dag
from etl.airflow.pipeline import toolkit_from_environment

ROOT = Path(__file__).parents[1]
FOLDER = os.environ.get("ETL_CONF") or ROOT / "conf"
TOOLKIT = toolkit_from_environment(jobs=ROOT / "jobs")
SCHEDULES = {"jafka": "*/15 * * * *"}
"""Cron expressions in UTC by the name of the conf file; for all others the full hour."""


def schedule(conf: Path) -> str:
    """When the pipeline of this conf file runs."""
    return SCHEDULES.get(conf.stem, "0 * * * *")


for dag in dag_of_each(
    "ingest", FOLDER, lambda conf: ingest_dag(conf, schedule(conf), toolkit=TOOLKIT), schedule
):
    globals()[dag.dag_id] = dag
