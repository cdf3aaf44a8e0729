"""DAGs as users make them, that try again at once: for tests."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.common.compat.sdk import DAG

from etl.airflow import (
    EtlEnvironment,
    EtlSubmitOperator,
    backfill_dag,
    ingest_dag,
    maintenance_dag,
    replay_dag,
)

CLICKS = Path(os.environ["ETL_CONF_DIR"]) / "clicks.yaml"
quick = ingest_dag(
    CLICKS, "0 * * * *", dag_id="quick", retries=2, retry_delay=timedelta(), poke_interval_s=1
)
at_once = ingest_dag(
    CLICKS,
    "0 * * * *",
    dag_id="at_once",
    retries=2,
    retry_delay=timedelta(),
    assume_ready_after=None,
)
polling = ingest_dag(
    CLICKS, "0 * * * *", dag_id="polling", retries=0, deferrable=False, poke_interval_s=1
)
pooled = ingest_dag(CLICKS, "0 * * * *", dag_id="pooled", pool="clicks", assume_ready_after=None)

if os.environ.get("ETL_REAL_CONF"):
    real = EtlEnvironment(
        os.environ["ETL_REAL_PYTHON"],
        submit_options=json.loads(os.environ["ETL_REAL_SUBMIT"]),
        env_vars={"PYTHONPATH": os.environ["PYTHONPATH"]},
    )
    conf, soon = os.environ["ETL_REAL_CONF"], timedelta(seconds=5)
    at_once_again = {"retries": 5, "retry_delay": timedelta()}
    every_minute = ingest_dag(
        conf,
        "* * * * *",
        dag_id="every_minute",
        environment=real,
        retries=5,
        retry_delay=soon,
        poke_interval_s=2,
        assume_ready_after=timedelta(seconds=5),
    )
    by_hand = ingest_dag(
        conf,
        "0 * * * *",
        dag_id="by_hand",
        environment=real,
        retries=5,
        retry_delay=timedelta(),
        poke_interval_s=1,
    )
    filling = backfill_dag(conf, dag_id="filling", environment=real, default_args=at_once_again)
    again = replay_dag(conf, dag_id="again", environment=real, default_args=at_once_again)
    with DAG("own", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as own:
        EtlSubmitOperator(
            task_id="my_load",
            command="run",
            conf_file=conf,
            environment=real,
            arguments=lambda context: [conf, "--run-key", str(context["run_id"])],
            retries=5,
            retry_delay=soon,
        )
    proof = maintenance_dag(conf, "0 * * * *", dag_id="proof", environment=real)
    patient = ingest_dag(
        conf,
        "0 0 1 * *",
        dag_id="patient",
        environment=real,
        retries=5,
        retry_delay=soon,
        poke_interval_s=10,
        assume_ready_after=timedelta(days=3650),
    )
