"""Replay by hand: an Airflow DAG for each conf file, which reads a range of a topic again and replaces its rows."""

import os
from pathlib import Path

from etl.airflow.dags import replay_dag
from etl.airflow.pipeline import conf_files
from etl.airflow.toolkit import toolkit_from_environment

ROOT = Path(__file__).parents[1]

for conf in conf_files(os.environ.get("ETL_CONF") or ROOT / "conf"):
    dag = replay_dag(conf, toolkit=toolkit_from_environment(jobs=ROOT / "jobs"))
    globals()[dag.dag_id] = dag
