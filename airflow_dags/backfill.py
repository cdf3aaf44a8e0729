"""Backfill by hand: an Airflow DAG for each conf file, which loads an interval that the pipeline never loaded."""

import os
from pathlib import Path

from etl.airflow.dags import backfill_dag
from etl.airflow.pipeline import conf_files
from etl.airflow.toolkit import toolkit_from_environment

ROOT = Path(__file__).parents[1]

for conf in conf_files(os.environ.get("ETL_CONF") or ROOT / "conf"):
    dag = backfill_dag(conf, toolkit=toolkit_from_environment(jobs=ROOT / "jobs"))
    globals()[dag.dag_id] = dag
