"""A whole Airflow on this machine: scheduler, triggerer, workers, pages, database."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HEARTBEAT_S = 15
"""A task is retried after its worker was silent for so long; the default is 300."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_for(what: str, found: Callable[[], Any], within_s: float) -> Any:
    """Return the first true result; TimeoutError names the awaited event."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.5)
    raise TimeoutError(f"{what}: not within {within_s:g} s")


def started_with(name: str, value: str) -> list[int]:
    """Every process that was started with this variable; none on machines without /proc."""

    def has(process: Path) -> bool:
        try:
            return f"{name}={value}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if has(process)]


class StandaloneAirflow:
    """`with StandaloneAirflow(home, environment)`; output in `home`/standalone.log."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home, self.port = home, free_port()
        url = f"http://127.0.0.1:{self.port}"
        self.url = url
        self.environment = {
            **os.environ,
            **environment,
            **{
                # it starts its parts by the name `airflow`
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "AIRFLOW_HOME": str(home),
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
                "AIRFLOW__API__BASE_URL": url,
                "AIRFLOW__API__HOST": "127.0.0.1",
                "AIRFLOW__API__PORT": str(self.port),
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
                "AIRFLOW__CORE__PARALLELISM": "4",
                "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
                "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_S),
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            },
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # A shell's child may ignore SIGINT, and then nothing ends it with all its children.
        def begin() -> None:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        with (self.home / "standalone.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "standalone"],
                cwd=self.home,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=begin,
            )
        try:
            wait_for("Airflow's health page", self._is_well, 240)
        except BaseException:  # also Ctrl-C: only this function knows the process yet
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        """End all processes of the scheduler, except tasks and drivers in sessions of their own."""
        assert self._process
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in started_with("AIRFLOW_HOME", str(self.home)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cli(self, *words: str) -> str:
        """What `airflow WORDS` prints; its error where it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, (
            f"airflow {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done.stdout

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Of Airflow's database; none while it is locked."""
        try:
            with sqlite3.connect(
                f"file:{self.home / 'airflow.db'}?mode=ro", uri=True, timeout=10
            ) as database:
                return database.execute(query, values).fetchall()
        except sqlite3.OperationalError:
            return []

    def _is_well(self) -> bool:
        assert self._process and self._process.poll() is None, (
            self.home / "standalone.log"
        ).read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{self.url}/api/v2/monitor/health", timeout=5) as answer:
                reported = json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return False
        return all(
            reported.get(part, {}).get("status") == "healthy"
            for part in ("scheduler", "triggerer", "dag_processor")
        )
