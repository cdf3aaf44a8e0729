"""`make airflow-demo`: it starts, a run of its DAG succeeds, and Ctrl-C ends all of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.on_airflow.running import IS_2
from tests.on_airflow.standalone import wait_for

pytestmark = [pytest.mark.long, pytest.mark.skipif(IS_2, reason="it is made with Airflow 3")]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    """As a terminal starts it: in a group of its own, which Ctrl-C is for."""

    def begin() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    environment = {
        **os.environ,
        "ETL_PYTHON": os.environ["ETL_REAL_PYTHON"],
        "PYTHONUNBUFFERED": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.on_airflow.demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=begin,
    ) as started:
        yield started
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGINT)


def got(url: str, token: str = "") -> str:
    request = urllib.request.Request(
        url, headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def of(folder: str) -> list[str]:
    """Every process that has something of this folder in its words or its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (
                (process / name).read_bytes().replace(b"\0", b" ").decode()
                for name in ("cmdline", "environ")
            )
        except OSError:
            continue
        if folder in words or folder in environment:
            found.append(f"{process.name} {words[:200]}")
    return found


def test_the_demo_opens_a_run_of_its_dag_loads_the_last_hour_and_ctrl_c_leaves_nothing(
    demo: subprocess.Popen[str],
) -> None:
    assert demo.stdout
    reported = next(line for line in demo.stdout if line.startswith("Airflow: "))
    url, folder = re.findall(r"Airflow: (\S+) .*reports: (\S+);", reported)[0]
    assert "<title>" in got(url) and of(folder)

    token = json.loads(got(f"{url}/auth/token"))["access_token"]

    def api(path: str) -> Any:
        return json.loads(got(f"{url}/api/v2/dags/ingest_clicks/{path}", token))

    states = wait_for(
        "a run",
        lambda: [
            run for run in api("dagRuns")["dag_runs"] if run["state"] in ("success", "failed")
        ],
        300,
    )
    assert {run["state"] for run in states} == {"success"}
    result = api(f"dagRuns/{states[0]['dag_run_id']}/taskInstances/load/xcomEntries/return_value")[
        "value"
    ]
    assert (result if isinstance(result, dict) else json.loads(result))["records_read"] > 0

    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(120) == 0
    assert of(folder) == [] and not Path(folder).exists()
