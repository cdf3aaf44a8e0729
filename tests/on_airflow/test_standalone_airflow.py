"""A whole Airflow: a sensor, a schedule, a backfill, a worker that is killed."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.on_airflow.home import CONF, DAGS
from tests.on_airflow.real import PARTITIONS, Real, real_pipeline
from tests.on_airflow.running import IS_2
from tests.on_airflow.standalone import StandaloneAirflow, wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(IS_2, reason="backfills that the scheduler runs are those of Airflow 3"),
]

DAG = "every_minute"
RUNS = "select run_type, state, data_interval_start from dag_run where dag_id = ?"
LOADS = "select run_id, state, try_number from task_instance where dag_id = ? and task_id = 'load'"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with real_pipeline(tmp_path_factory.mktemp("real")) as running:
        yield running


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, real: Real) -> Iterator[StandaloneAirflow]:
    home = tmp_path_factory.mktemp("standalone") / "airflow"
    (home / "dags").mkdir(parents=True)
    shutil.copy(DAGS / "quick_dags.py", home / "dags")
    environment = {
        **real.environment,
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "ETL_CONF_DIR": str(CONF),
    }
    with StandaloneAirflow(home, environment) as running:
        yield running


def drivers(real: Real) -> dict[int, int]:
    """Every spark-submit for this conf that runs: its pid, and that of its parent."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            parent = parent_of(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(real.conf).encode() in words and b"org.apache.spark.deploy.SparkSubmit" in words:
            found[int(process.name)] = parent
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def loads(airflow: StandaloneAirflow) -> list[tuple[str, str, int]]:
    return [(str(run), str(state), int(tries)) for run, state, tries in airflow.rows(LOADS, DAG)]


def begin_backfill(airflow: StandaloneAirflow, first: datetime, last: datetime) -> None:
    """Airflow's command may fail on a busy SQLite with some of the runs made."""
    dates = ("--from-date", first.isoformat(), "--to-date", last.isoformat())
    options = ("--max-active-runs", "3", "--reprocess-behavior", "completed")
    while not [kind for kind, _, _ in airflow.rows(RUNS, DAG) if kind == "backfill"]:
        try:
            airflow.cli("backfill", "create", "--dag-id", DAG, *dates, *options)
        except AssertionError as error:
            if "database is locked" not in str(error):
                raise


def test_a_sensor_that_waits_for_the_logs_holds_no_worker_and_the_triggerer_ends_its_wait(
    airflow: StandaloneAirflow, real: Real
) -> None:
    wait_for("the DAG", lambda: "patient" in airflow.cli("dags", "list"), 120)
    airflow.cli(
        "dags", "unpause", "patient"
    )  # its schedule has one run to make, that of last month
    sensor = (
        "select state from task_instance where dag_id = 'patient' and task_id = 'wait_until_ready'"
    )
    wait_for("the sensor's rest", lambda: airflow.rows(sensor) == [("deferred",)], 120)
    now = round(time.time() * 1000)
    real.ask("produce", name="clicks", times=[[partition, now] for partition in range(PARTITIONS)])
    wait_for("the sensor's end", lambda: airflow.rows(sensor) == [("success",)], 120)
    wait_for(
        "the run's end",
        lambda: (
            airflow.rows("select state from dag_run where dag_id = 'patient'") == [("success",)]
        ),
        300,
    )
    assert real.rows() == [], "what came this month is not of the last one"


def test_a_schedule_a_backfill_over_it_and_a_worker_that_is_killed_load_each_record_once(
    airflow: StandaloneAirflow, real: Real
) -> None:
    begun = datetime.now(UTC).replace(second=0, microsecond=0)
    already = len(real.records())
    real.ask("flow", name="clicks", partitions=PARTITIONS, every_s=0.02)
    wait_for("the DAG", lambda: DAG in airflow.cli("dags", "list"), 120)
    airflow.cli("dags", "unpause", DAG)
    wait_for("a first load", lambda: any(state == "success" for _, state, _ in loads(airflow)), 300)

    # the worker of the next load is lost while its Spark driver continues
    driver, worker = wait_for(
        "a driver at work", lambda: next(iter(drivers(real).items()), None), 300
    )
    [lost] = [run for run, state, _ in loads(airflow) if state == "running"]
    for pid in (parent_of(worker), worker):
        os.kill(pid, signal.SIGKILL)
    assert driver in drivers(real), "the driver does not know of its lost task"

    # while it is not known yet that it is lost, a backfill begins over intervals of the schedule,
    # and others before them
    begin_backfill(airflow, begun - timedelta(minutes=3), begun)
    wait_for(
        "the lost try to be tried again",
        lambda: any(run == lost and tries > 1 for run, _, tries in loads(airflow)),
        300,
    )
    wait_for("the backfill", lambda: _is_done(airflow, "backfill"), 600)

    produced = already + real.ask("still")
    end = datetime.now(UTC)
    wait_for("a scheduled run after the last record", lambda: _is_loaded_after(airflow, end), 600)

    states = {run: state for run, state, _ in loads(airflow)}
    assert states[lost] == "success" and "failed" not in states.values()
    assert len({run for run, _, _ in loads(airflow)}) > 4
    rows, records = real.rows(), real.records()
    assert len(records) == produced and rows == records, (
        "each record once, by Kafka's own client and delta-rs"
    )
    assert len({value for _, _, value in rows}) == produced
    verified = real.etl("verify", str(real.conf), "--json")
    assert verified.returncode == 0, verified.stderr


def test_two_runs_at_once_one_in_a_dag_of_the_user_and_a_cleared_task_load_each_record_once(
    airflow: StandaloneAirflow, real: Real
) -> None:
    airflow.cli("dags", "pause", DAG)
    now = datetime.now(UTC)
    until = now - timedelta(seconds=5)
    for moment, count in ((until - timedelta(seconds=5), 10), (now, 1)):
        at = round(moment.timestamp() * 1000)
        real.ask("produce", name="clicks", times=[[n % PARTITIONS, at] for n in range(count * 4)])
    params = {"from": (until - timedelta(hours=1)).isoformat(), "until": until.isoformat()}
    started = {"by_hand": json.dumps(params), "own": "{}"}
    logical_date = now.replace(microsecond=0).isoformat()
    for dag, given in started.items():
        airflow.cli("dags", "unpause", dag)
        airflow.cli("dags", "trigger", dag, "--logical-date", logical_date, "--conf", given)
    ended = (
        "select state from dag_run where dag_id = ? and run_type = 'manual' and "
        "state in ('success', 'failed')"
    )
    for dag in started:
        wait_for(f"the run of {dag}", functools.partial(airflow.rows, ended, dag), 300)
        assert airflow.rows(ended, dag) == [("success",)]
    rows = real.rows()
    assert rows == real.records()

    load = (
        "select state, try_number from task_instance where dag_id = 'by_hand' and "
        "task_id = 'load' and run_id like 'manual%'"
    )
    [(_, tries)] = airflow.rows(load)
    airflow.cli("tasks", "clear", "by_hand", "--task-regex", "load", "--yes")
    wait_for("the cleared task", lambda: _is_tried_again(airflow.rows(load), tries), 300)
    assert real.rows() == rows == real.records()
    assert real.etl("verify", str(real.conf)).returncode == 0


def _is_tried_again(found: list[tuple[Any, ...]], tries: int) -> bool:
    return bool(found) and found[0][0] == "success" and int(found[0][1]) > tries


def _is_done(airflow: StandaloneAirflow, kind: str) -> bool:
    states = [
        state for run_type, state, _ in airflow.rows(RUNS, DAG) if str(run_type).startswith(kind)
    ]
    return bool(states) and set(states) <= {"success", "failed"}


def _is_loaded_after(airflow: StandaloneAirflow, when: datetime) -> bool:
    """Return True if a run of an interval that ends after that time is done."""
    found = airflow.rows(
        "select data_interval_end from dag_run where dag_id = ? and state = 'success' and "
        "run_type = 'scheduled'",
        DAG,
    )
    return any(
        datetime.fromisoformat(str(end)).replace(tzinfo=UTC) > when for (end,) in found if end
    )
