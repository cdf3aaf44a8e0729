"""What must a DAG know of a pipeline and its environment, and does that exist?

A few keys of the conf; the task's command reads and checks all of it. The toolkit runs in an
environment of its own on the workers, since Airflow's Spark provider brings pyspark-client into the
same folder as pyspark. Of a command's document little is kept for XCom, because it goes to
Airflow's database.

`python -m etl.airflow check FOLDER` finds missing pools, for which tasks wait for ever, and missing
connections, without which Spark goes to yarn. Loads without Airflow.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etl.errors import SettingsError
from etl.model.partitions import BrokerFamily
from etl.settings.choices import folder_of, one_scheme, place_of
from etl.settings.conf_file import (
    CONF_MAX_BYTES,
    NOT_YAML,
    confs_in,
    defaults_of,
    document_of,
    expand_short_forms,
    over,
    resolve,
    said_of,
)
from etl.settings.secrets import read_text


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline, as its DAGs know it."""

    conf: str
    """Absolute path of its conf file on the workers."""
    name: str
    group: str
    table: str
    """URI of the table, equal for all spellings: `file:///...`, the store's URL, or
    `delta-table:///catalog.schema.table`.
    """
    is_physical: bool
    """Offsets are byte positions, and messages have no times: Jafka, Kafka 0.7."""


def pipeline_of(conf: str | Path) -> Pipeline:
    """The pipeline of a conf file. Secrets in it are not looked up: what parses DAG files needs
    none.

    Raises SettingsError for a file that is not there or cannot be read, and for a key that is
    missing.
    """
    path = Path(conf).absolute()
    try:
        document = document_of(read_text(path, CONF_MAX_BYTES))
    except (OSError, ValueError, *NOT_YAML) as error:
        action = "the path, which the DAG file names"
        raise SettingsError(
            f"the conf file cannot be read: {said_of(error)}", path=path, action=action
        ) from error
    names_table = path  # a folder is seen from the file that names it
    if defaults := defaults_of(document, str(path)):
        if _find(document, "table.path") is None and _find(defaults.written, "table.path"):
            names_table = Path(defaults.path)
        document = over(defaults.written, expand_short_forms(document))
    document = expand_short_forms(document)
    return Pipeline(
        str(path),
        _text(document, "pipeline", path),
        _text(document, "group.id", path),
        _table_of(document, names_table),
        is_physical=_find(document, "source.broker_type") == BrokerFamily.JAFKA.value,
    )


def _table_of(document: Any, path: Path) -> str:
    """The table's URI; `path` is the file that names it."""
    if _find(document, "table.name") is not None:
        return f"delta-table:///{_text(document, 'table.name', path)}"
    table = _text(document, "table.path", path)
    folder = folder_of(table)
    return (
        one_scheme(place_of(table))
        if folder is None
        else Path(os.path.normpath(path.parent / folder)).as_uri()
    )


def conf_files(folder: str | Path) -> list[Path]:
    """Return the conf files of a directory, sorted. Raises SettingsError without any, so that DAGs
    do not vanish silently.
    """
    try:
        return list(confs_in(Path(folder)))
    except (SettingsError, OSError) as error:
        message, action = (
            "no conf file is in the folder, so there is no DAG",
            "ETL_CONF, which names the folder",
        )
        raise SettingsError(message, path=folder, action=action) from error


def _text(document: Any, key: str, path: Path) -> str:
    found = resolve(_find(document, key), str(path), key)
    if not isinstance(found, str) or not found:
        raise SettingsError(
            "the conf file lacks a key that its DAGs need",
            key=key,
            path=path,
            action="`etl doctor CONF`",
        )
    return found


def _find(document: Any, key: str) -> Any:
    for part in key.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Maven package that a job needs besides pyspark 4.2."""
_ASKED_WITHIN_S = 600.0
_SAID = 4000
"""Characters of a command's last output that are logged if it left no document."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The environment that has Spark and this package."""

    python: str = sys.executable
    """Its interpreter; `spark-submit` is beside it."""
    jobs: str = "jobs"
    """The folder of the job files."""
    connection: str = "spark_default"
    """The id of Airflow's Spark connection: which master, which deploy mode."""
    submit: Mapping[str, Any] = field(default_factory=lambda: {"packages": DELTA})
    """Further arguments of spark-submit, with the names of Airflow's SparkSubmitOperator: conf,
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
        """Return the environment of spark-submit and the job's Python; a path alone does not lead
        spark-submit to its own Spark.
        """
        return {"PYSPARK_PYTHON": self.python, **self.variables}


def toolkit_from_environment(
    variables: Mapping[str, str] = os.environ, *, jobs: str | Path = "jobs"
) -> Toolkit:
    """Return the toolkit of ETL_PYTHON, ETL_JOBS, ETL_SPARK_CONNECTION and ETL_SPARK_SUBMIT, with
    defaults. `jobs`: default directory of job files. Raises SettingsError if ETL_SPARK_SUBMIT is no
    JSON object.
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
            action=f'its form, which is {{"packages": "{DELTA}"}}',
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
        reject_without_package(toolkit, done.stderr)
    return done.returncode, document


def reject_without_package(toolkit: Toolkit, said: str = "") -> None:
    """Log a failed command's output if it left no document. Raises SettingsError if the package
    cannot be imported.
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
            action=f"`{toolkit.python} -m pip install offset-range-etl`, or ETL_PYTHON, which names the interpreter that has it",
        )


def not_there(toolkit: Toolkit) -> SettingsError:
    """Return the error for an environment that this machine lacks."""
    return SettingsError(
        "the toolkit's own environment is not on this worker",
        path=toolkit.python,
        action="ETL_PYTHON, which names the interpreter of an environment that has offset-range-etl and pyspark, on each worker",
    )


def parsed(text: str) -> dict[str, Any] | None:
    """The one document that a command printed, or wrote; None where there is none, or not whole."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


RANGES_KEPT = 100
TEXT_KEPT = 2000


def brief_of(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The document's plain values, its outcomes, and the newest plan's number with its first
    ranges; nothing where there is no document.
    """
    told = document or {}
    brief: dict[str, Any] = {
        name: _short(value)
        for name, value in told.items()
        if isinstance(value, (str, int, float, bool))
    }
    if isinstance(told.get("outcomes"), list):
        brief["outcomes"] = [
            _short(one.get("message")) if isinstance(one, dict) else _short(one)
            for one in told["outcomes"]
        ]
    plan = told.get("plan")
    if isinstance(plan, dict):
        ranges = plan.get("ranges") or []
        brief["plan"] = {
            "number": plan.get("number"),
            "ranges_in_all": len(ranges),
            "ranges": ranges[:RANGES_KEPT],
        }
    return brief


def told_of(error: Mapping[str, Any] | None) -> str:
    """Return the sentences of an error document, as the command prints them."""
    if not error or not error.get("message"):
        return "the command left no document that says why: its log is above"
    where = error.get("where") or {}
    places = ", ".join(f"{name} {value}" for name, value in where.items())
    action = f". {error['action']}" if error.get("action") else ""
    return f"{error.get('error')}: {error['message']}{f' ({places})' if places else ''}{action}"


def _short(value: Any) -> Any:
    return f"{value[:TEXT_KEPT]}..." if isinstance(value, str) and len(value) > TEXT_KEPT else value


@dataclass(frozen=True, slots=True, order=True)
class Named:
    """A pool or a connection that a task names."""

    kind: str
    name: str
    dag: str
    task: str

    @property
    def command(self) -> str:
        """Return the command that creates it."""
        if self.kind == "pool":
            return f"airflow pools set {self.name} 1 'one load at a time'"
        return f"airflow connections add {self.name} --conn-type spark --conn-host 'local[*]'"

    def __str__(self) -> str:
        return f"the {self.kind} {self.name} is not there, and task {self.task} of DAG {self.dag} names it. Make it: {self.command}"


def named_by(dags: Mapping[str, Any]) -> list[Named]:
    """Return pools and connections of these DAGs' tasks."""
    tasks = [(dag_id, task) for dag_id, dag in dags.items() for task in dag.tasks]
    pools = [Named("pool", task.pool, dag_id, task.task_id) for dag_id, task in tasks]
    asked = [(dag_id, task, getattr(task, "_conn_id", None)) for dag_id, task in tasks]
    return sorted(
        {
            *pools,
            *(
                Named("connection", name, dag_id, task.task_id)
                for dag_id, task, name in asked
                if name
            ),
        }
    )


def missing(
    named: Iterable[Named], pools: Collection[str], connections: Collection[str]
) -> list[Named]:
    """Those that are neither among the pools nor the connections."""
    return [one for one in named if one.name not in (pools if one.kind == "pool" else connections)]
