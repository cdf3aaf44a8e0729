"""Home, database, DAG folder and confs of a test's Airflow; imported before Airflow is."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests.on_airflow.stand_in import StandIn

ROOT = Path(__file__).parents[2]
HOME = Path(tempfile.mkdtemp(prefix="etl-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
DAGS, CONF = HOME / "dags", HOME / "conf"
DAGS.mkdir()
CONF.mkdir()
for file in (
    *(ROOT / "airflow_dags").glob("*.py"),
    ROOT / "tests" / "on_airflow" / "quick_dags.py",
):
    shutil.copy(file, DAGS)
for file in (ROOT / "conf" / "examples").glob("*.yaml"):
    shutil.copy(file, CONF)
ENVIRONMENT = StandIn(HOME / "environment")
os.environ.update(
    {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PYTHONWARNINGS": "ignore",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
        "ETL_CONF_DIR": str(CONF),
        "ETL_JOB": str(ROOT / "jobs" / "etl_job.py"),
        "ETL_REAL_PYTHON": os.environ.get("ETL_PYTHON", ""),
        "ETL_PYTHON": str(ENVIRONMENT.python),
    }
)
