"""Manual replay: a DAG for each conf file, which reads offsets again and replaces their rows."""

import os
from pathlib import Path

from etl.airflow import EtlEnvironment, dags_for_each_conf, replay_dag

ROOT = Path(__file__).parents[1]
CONF_DIR = os.environ.get("ETL_CONF_DIR") or ROOT / "conf"
ENVIRONMENT = EtlEnvironment(job=os.environ.get("ETL_JOB") or str(ROOT / "jobs" / "etl_job.py"))


def build(conf_file: Path):
    """Build the DAG of a conf file."""
    return replay_dag(conf_file, environment=ENVIRONMENT)


for dag in dags_for_each_conf("replay", CONF_DIR, build):
    globals()[dag.dag_id] = dag
