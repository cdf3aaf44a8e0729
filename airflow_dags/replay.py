"""Replay by hand: an Airflow DAG for each conf file, which reads a range of a topic again and
replaces its rows.
"""

import os
from pathlib import Path

from etl.airflow.dags import dag_of_each, replay_dag
from etl.airflow.pipeline import toolkit_from_environment

ROOT = Path(__file__).parents[1]
FOLDER = os.environ.get("ETL_CONF") or ROOT / "conf"
TOOLKIT = toolkit_from_environment(jobs=ROOT / "jobs")

for dag in dag_of_each("replay", FOLDER, lambda conf: replay_dag(conf, toolkit=TOOLKIT)):
    globals()[dag.dag_id] = dag
