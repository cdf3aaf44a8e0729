"""Scheduled ingest: an Airflow DAG for each conf file, which loads what came in each interval, once that is complete."""

import os
from pathlib import Path

from etl.airflow.dags import ingest_dag
from etl.airflow.pipeline import conf_files
from etl.airflow.toolkit import toolkit_from_environment

ROOT = Path(__file__).parents[1]
SCHEDULES = {"jafka": "*/15 * * * *"}
"""Cron expressions in UTC by the name of the conf file; for all others the full hour."""

for conf in conf_files(os.environ.get("ETL_CONF") or ROOT / "conf"):
    dag = ingest_dag(conf, SCHEDULES.get(conf.stem, "0 * * * *"), toolkit=toolkit_from_environment(jobs=ROOT / "jobs"))
    globals()[dag.dag_id] = dag
