"""Backfill by hand: an Airflow DAG for each conf file, which loads an interval that the pipeline
never loaded.
"""

import os
from pathlib import Path

from etl.airflow.dags import backfill_dag, dag_of_each
from etl.airflow.pipeline import toolkit_from_environment

ROOT = Path(__file__).parents[1]
FOLDER = os.environ.get("ETL_CONF") or ROOT / "conf"
TOOLKIT = toolkit_from_environment(jobs=ROOT / "jobs")

for dag in dag_of_each("backfill", FOLDER, lambda conf: backfill_dag(conf, toolkit=TOOLKIT)):
    globals()[dag.dag_id] = dag
