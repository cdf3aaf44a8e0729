"""Maintenance: an Airflow DAG for each conf file, which proves every night that each record is in the table once, and keeps its house."""

import os
from pathlib import Path

from etl.airflow.dags import maintenance_dag
from etl.airflow.pipeline import conf_files
from etl.airflow.toolkit import toolkit_from_environment

ROOT = Path(__file__).parents[1]

for conf in conf_files(os.environ.get("ETL_CONF") or ROOT / "conf"):
    dag = maintenance_dag(conf, "30 2 * * *", toolkit=toolkit_from_environment(jobs=ROOT / "jobs"))
    globals()[dag.dag_id] = dag
