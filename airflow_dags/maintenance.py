"""Maintenance: a DAG for each conf file, which verifies every night that each record is in the
table once, and then compacts and cleans the table.
"""

import os
from pathlib import Path

from etl.airflow import EtlEnvironment, dags_for_each_conf, maintenance_dag

ROOT = Path(__file__).parents[1]
CONF_DIR = os.environ.get("ETL_CONF_DIR") or ROOT / "conf"
ENVIRONMENT = EtlEnvironment(job=os.environ.get("ETL_JOB") or str(ROOT / "jobs" / "etl_job.py"))
SCHEDULE = "30 2 * * *"
"""Cron expression in UTC."""


def schedule(conf_file: Path) -> str:
    """Return the schedule of a conf file."""
    return SCHEDULE


def build(conf_file: Path):
    """Build the DAG of a conf file."""
    return maintenance_dag(conf_file, SCHEDULE, environment=ENVIRONMENT)


for dag in dags_for_each_conf("maintain", CONF_DIR, build, schedule):
    globals()[dag.dag_id] = dag
