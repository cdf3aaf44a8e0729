"""Scheduled ingest: a DAG for each conf file, which loads the records of each interval once it is
complete.
"""

import os
from pathlib import Path

from etl.airflow import EtlEnvironment, dags_for_each_conf, ingest_dag

ROOT = Path(__file__).parents[1]
CONF_DIR = os.environ.get("ETL_CONF_DIR") or ROOT / "conf"
ENVIRONMENT = EtlEnvironment(job=os.environ.get("ETL_JOB") or str(ROOT / "jobs" / "etl_job.py"))
SCHEDULES = {"jafka": "*/15 * * * *"}
"""Cron expressions in UTC by the name of the conf file; all others run hourly."""


def schedule(conf_file: Path) -> str:
    """Return the schedule of the pipeline of a conf file."""
    return SCHEDULES.get(conf_file.stem, "0 * * * *")


def build(conf_file: Path):
    """Build the DAG of a conf file."""
    return ingest_dag(conf_file, schedule(conf_file), environment=ENVIRONMENT)


for dag in dags_for_each_conf("ingest", CONF_DIR, build, schedule):
    globals()[dag.dag_id] = dag
