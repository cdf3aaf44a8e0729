"""Maintenance: an Airflow DAG for each conf file, which proves every night that each record is in
the table once, and keeps its house.
"""

import os
from pathlib import Path

from etl.airflow.dags import dag_of_each, maintenance_dag
from etl.airflow.pipeline import toolkit_from_environment

ROOT = Path(__file__).parents[1]
FOLDER = os.environ.get("ETL_CONF") or ROOT / "conf"
TOOLKIT = toolkit_from_environment(jobs=ROOT / "jobs")
SCHEDULE = "30 2 * * *"
"""Cron, in UTC."""

for dag in dag_of_each(
    "maintain",
    FOLDER,
    lambda conf: maintenance_dag(conf, SCHEDULE, toolkit=TOOLKIT),
    lambda conf: SCHEDULE,
):
    globals()[dag.dag_id] = dag
