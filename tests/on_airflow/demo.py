"""`python -m tests.on_airflow.demo`: a standalone Airflow with the DAGs of this project, on an
embedded broker with clicks coming in.

It runs in Airflow's environment, until Ctrl-C. Everything it makes is in a temporary folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAST, PAST_MS = 4000, 4 * 3600 * 1000
"""Clicks of the last hours, so that the first run, for the last whole hour, has records to load."""


def main() -> int:
    os.environ["ETL_REAL_PYTHON"] = os.environ["ETL_PYTHON"]
    from tests.on_airflow.real import PARTITIONS, real_pipeline
    from tests.on_airflow.standalone import StandaloneAirflow

    folder = Path(tempfile.mkdtemp(prefix="etl-airflow-demo-"))
    home = folder / "airflow"
    shutil.copytree(
        ROOT / "airflow_dags", home / "dags", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "conf").mkdir()
    print("starting ZooKeeper, Kafka and Airflow: half a minute", flush=True)
    try:
        with contextlib.suppress(KeyboardInterrupt), real_pipeline(folder) as real:
            now = round(time.time() * 1000)
            hours = [
                [number % PARTITIONS, now - PAST_MS + number * PAST_MS // PAST]
                for number in range(PAST)
            ]
            real.ask("produce", name="clicks", times=hours)
            real.ask("flow", name="clicks", partitions=PARTITIONS, every_s=0.02)
            shutil.copy(real.conf, folder / "conf")
            environment = {
                "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "ETL_CONF_DIR": str(folder / "conf"),
                "ETL_JOB": str(ROOT / "jobs" / "etl_job.py"),
                "ETL_SUBMIT_OPTIONS": real.environment["ETL_REAL_SUBMIT"],
                "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
            }
            with StandaloneAirflow(home, environment) as airflow:
                airflow.cli("dags", "unpause", "ingest_clicks")
                print(
                    f"Airflow: {airflow.url} (no login), DAG ingest_clicks; table and "
                    f"reports: {folder}; Ctrl-C ends all",
                    flush=True,
                )
                _until_stopped()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _until_stopped() -> None:
    stopped = threading.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: stopped.set())
    with contextlib.suppress(KeyboardInterrupt):
        stopped.wait()


if __name__ == "__main__":
    sys.exit(main())
