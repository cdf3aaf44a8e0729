"""Where the toolkit is installed, seen from an Airflow worker: an environment of its own, for
Airflow's has another pyspark.

The Spark provider of Airflow brings pyspark-client, which lies in the same folder as pyspark. So
the two have environments of their own on the workers, and a task names the other one's interpreter.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etl.errors import SettingsError

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""What a job needs beside pyspark 4.2, from a Maven repository."""
_ASKED_WITHIN_S = 600.0
_SAID = 4000
"""Characters of what a command said last that go to the log, where it left no document."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The environment that has Spark and this package."""

    python: str = sys.executable
    """Its interpreter; `spark-submit` lies beside it."""
    jobs: str = "jobs"
    """The folder of the job files."""
    connection: str = "spark_default"
    """The id of Airflow's Spark connection: which master, which deploy mode."""
    submit: Mapping[str, Any] = field(default_factory=lambda: {"packages": DELTA})
    """What spark-submit is told besides, by the names that Airflow's SparkSubmitOperator has: conf,
    packages, jars, py_files, ...
    """
    variables: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of whatever is started there."""

    @property
    def spark_submit(self) -> str:
        """The very command; by its name alone another one may be found."""
        return str(Path(self.python).with_name("spark-submit"))

    def job(self, name: str) -> str:
        """The file of a job, such as `ingest`."""
        return str(Path(self.jobs, f"{name}.py").absolute())

    def command(self, *words: str) -> list[str]:
        """`etl WORDS` as a command of that environment."""
        return [self.python, "-m", "etl", *words]

    @property
    def environment(self) -> dict[str, str]:
        """What spark-submit and the job's Python are told; a path alone does not lead spark-submit
        to its own Spark.
        """
        return {"PYSPARK_PYTHON": self.python, **self.variables}


def toolkit_from_environment(
    variables: Mapping[str, str] = os.environ, *, jobs: str | Path = "jobs"
) -> Toolkit:
    """As the variables ETL_PYTHON, ETL_JOBS, ETL_SPARK_CONNECTION and ETL_SPARK_SUBMIT say; a
    default holds for each that is not set.

    `jobs`: the folder of the job files where ETL_JOBS does not say.

    Raises SettingsError where ETL_SPARK_SUBMIT is no JSON object.
    """
    told: dict[str, Any] = {"jobs": str(jobs)} | {
        name: variables[key]
        for name, key in (
            ("python", "ETL_PYTHON"),
            ("jobs", "ETL_JOBS"),
            ("connection", "ETL_SPARK_CONNECTION"),
        )
        if variables.get(key)
    }
    submit = variables.get("ETL_SPARK_SUBMIT")
    return Toolkit(**told) if not submit else Toolkit(**told, submit=_object(submit))


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SettingsError(
            "ETL_SPARK_SUBMIT is no JSON object",
            check=f'its form, which is {{"packages": "{DELTA}"}}',
        )
    return found


def ask(
    toolkit: Toolkit, words: Sequence[str], *, within_s: float = _ASKED_WITHIN_S
) -> tuple[int, dict[str, Any] | None]:
    """Start a command that needs no Spark and wait for it: its exit code, and its document; None
    where it printed none.

    Raises SettingsError where the interpreter is not there or has no such package,
    subprocess.TimeoutExpired after `within_s`.
    """
    try:
        done = subprocess.run(
            toolkit.command(*words),
            env={**os.environ, **toolkit.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
        )
    except OSError as error:
        raise not_there(toolkit) from error
    document = parsed(done.stdout)
    if done.returncode and document is None:
        refuse_without_package(toolkit, done.stderr)
    return done.returncode, document


def refuse_without_package(toolkit: Toolkit, said: str = "") -> None:
    """Where a command failed without a document: what it said goes to the log. Raises SettingsError
    where it cannot even be imported.
    """
    if said:
        logger.error("%s", said[-_SAID:])
    looking = [toolkit.python, "-c", "import etl.cli.app"]
    looked = subprocess.run(
        looking,
        env={**os.environ, **toolkit.variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ASKED_WITHIN_S,
    )
    why = (looked.stderr.strip().splitlines() or [""])[-1]
    if looked.returncode and why.startswith(("ImportError", "ModuleNotFoundError")):
        raise SettingsError(
            f"the toolkit's environment on this worker lacks the package, or a part of it: {why}",
            path=toolkit.python,
            check=f"`{toolkit.python} -m pip install offset-range-etl`, or ETL_PYTHON, which names the interpreter that has it",
        )


def not_there(toolkit: Toolkit) -> SettingsError:
    """Of an environment that this machine does not have."""
    return SettingsError(
        "the toolkit's own environment is not on this worker",
        path=toolkit.python,
        check="ETL_PYTHON, which names the interpreter of an environment that has offset-range-etl and pyspark, on each worker",
    )


def parsed(text: str) -> dict[str, Any] | None:
    """The one document that a command printed, or wrote; None where there is none, or not whole."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
