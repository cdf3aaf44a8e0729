"""Manual backfill: a DAG for each conf file, which loads an interval that the pipeline never loaded."""

import os
from pathlib import Path

from etl.airflow import EtlEnvironment, backfill_dag, dags_for_each_conf

ROOT = Path(__file__).parents[1]
CONF_DIR = os.environ.get("ETL_CONF_DIR") or ROOT / "conf"
ENVIRONMENT = EtlEnvironment(job=os.environ.get("ETL_JOB") or str(ROOT / "jobs" / "etl_job.py"))


def build(conf_file: Path):
    """Build the DAG of a conf file."""
    return backfill_dag(conf_file, environment=ENVIRONMENT)


for dag in dags_for_each_conf("backfill", CONF_DIR, build):
    globals()[dag.dag_id] = dag
