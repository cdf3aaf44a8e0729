"""What must a DAG know of a pipeline and its environment, and does that exist?

Lives here: the few keys of a conf that a DAG needs (the task's command reads and checks all of it);
the environment that has Spark and this package; starting a command there; the summary of a
command's document for XCom, kept small for Airflow's database; pools and connections that DAGs
name.
Not here: anything that imports Airflow.

The environment is apart from Airflow's own, since Airflow's Spark provider installs pyspark-client
into the same folder as pyspark.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from etl.errors import SettingsError
from etl.settings.choices import finds_times, folder_of, one_scheme, place_of
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

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The keys of a conf that a DAG needs."""

    conf: str
    """Absolute path of the conf file on the workers."""
    name: str
    group: str
    table: str
    """URI of the table, equal for all spellings: `file:///...`, the store's URL, or
    `delta-table:///catalog.schema.table`.
    """
    finds_times: bool
    """See `etl.settings.choices.finds_times`."""

    @property
    def full_name(self) -> str:
        """GROUP/NAME."""
        return f"{self.group}/{self.name}"


def read_pipeline(conf_file: str | Path) -> Pipeline:
    """Read the pipeline of a conf file. Secrets are not resolved: a DAG file needs none.

    Raises SettingsError if the file is missing or invalid, or lacks a key that a DAG needs.
    """
    path = Path(conf_file).absolute()
    try:
        document = document_of(read_text(path, CONF_MAX_BYTES))
    except (OSError, ValueError, *NOT_YAML) as error:
        action = "Check the path that the DAG file names, and the file's syntax"
        raise SettingsError(
            f"The conf file cannot be read: {said_of(error)}", path=path, action=action
        ) from error
    file_of_table = path  # a relative table.path is relative to the file that sets it
    defaults = defaults_of(document, str(path))
    if defaults:
        if _find(document, "table.path") is None and _find(defaults.written, "table.path"):
            file_of_table = Path(defaults.path)
        document = over(defaults.written, expand_short_forms(document))
    document = expand_short_forms(document)
    return Pipeline(
        str(path),
        _text(document, "pipeline", path),
        _text(document, "group.id", path),
        _table_uri(document, file_of_table),
        finds_times=finds_times(
            _resolved(document, "source.broker_type", path),
            _resolved(document, "source.broker_version", path),
        ),
    )


def conf_files(folder: str | Path) -> list[Path]:
    """Return the conf files of a directory, sorted. Raises SettingsError if there is none, so that
    DAGs do not vanish silently.
    """
    try:
        return list(confs_in(Path(folder)))
    except (SettingsError, OSError) as error:
        raise SettingsError(
            "The folder has no conf file, so there is no DAG",
            path=folder,
            action="Set ETL_CONF_DIR to the folder of the conf files",
        ) from error


def _table_uri(document: Any, path: Path) -> str:
    """Return the URI of the table; `path` is the file that sets it."""
    if _find(document, "table.name") is not None:
        return f"delta-table:///{_text(document, 'table.name', path)}"
    table = _text(document, "table.path", path)
    folder = folder_of(table)
    if folder is None:
        return one_scheme(place_of(table))
    return Path(os.path.normpath(path.parent / folder)).as_uri()


def _text(document: Any, key: str, path: Path) -> str:
    found = resolve(_find(document, key), str(path), key)
    if not isinstance(found, str) or not found:
        raise SettingsError(
            "The conf file lacks a key that its DAGs need",
            key=key,
            path=path,
            action="Check the conf with `etl doctor CONF`",
        )
    return found


def _resolved(document: Any, key: str, path: Path) -> Any:
    """Return the value of an optional key; None if it refers to a variable that is missing here."""
    try:
        return resolve(_find(document, key), str(path), key)
    except SettingsError:
        return None


def _find(document: Any, key: str) -> Any:
    for part in key.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


# ------------------------------------------------------------------------------- the environment

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Maven package that a job needs besides pyspark 4.2, if Delta's jars are not in the cache."""
_COMMAND_TIMEOUT_S = 600.0
_LOGGED_OUTPUT_MAX = 4000
"""Characters of a command's last output that are logged if it left no document."""


def _submit_options_of_environment() -> dict[str, Any]:
    text = os.environ.get("ETL_SUBMIT_OPTIONS")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise SettingsError(
            "ETL_SUBMIT_OPTIONS is not a JSON object",
            action=f'Write it in the form {{"packages": "{DELTA}"}}',
        )
    return options


def _variable(name: str, default: str) -> Any:
    return field(default_factory=lambda: os.environ.get(name) or default)


@dataclass(frozen=True, slots=True)
class EtlEnvironment:
    """The Python environment of the workers that has Spark and this package.

    Fields without a value come from the environment variables ETL_PYTHON, ETL_JOB, ETL_CONN_ID,
    ETL_SUBMIT_OPTIONS and ETL_REPORTS_URL. Raises SettingsError if ETL_SUBMIT_OPTIONS is not a JSON
    object.
    """

    python: str = _variable("ETL_PYTHON", sys.executable)
    """Its interpreter. `spark-submit` is in the same folder."""
    job: str = _variable("ETL_JOB", "jobs/etl_job.py")
    """The file that spark-submit runs."""
    conn_id: str = _variable("ETL_CONN_ID", "spark_default")
    """Id of an Airflow connection of type Spark: master and deploy mode (client)."""
    submit_options: Mapping[str, Any] = field(default_factory=_submit_options_of_environment)
    """Further arguments of Airflow's SparkSubmitOperator: conf, packages, jars, py_files, ...
    Without jars and packages Delta's jars are those of the cache.
    """
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of each command."""
    reports_url: str = _variable("ETL_REPORTS_URL", "")
    """Where a web server shows the directory `report.path`; empty: tasks have no link to pages."""

    @property
    def spark_submit(self) -> str:
        """Absolute path of spark-submit; a bare name could find another one."""
        return str(Path(self.python).with_name("spark-submit"))

    @property
    def job_path(self) -> str:
        """Absolute path of the job file."""
        return str(Path(self.job).absolute())

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of spark-submit and of the job's Python."""
        return {"PYSPARK_PYTHON": self.python, **self.env_vars}

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of `etl ARGUMENTS` in this environment."""
        return [self.python, "-m", "etl", *arguments]


def run_command(
    environment: EtlEnvironment,
    arguments: Sequence[str],
    *,
    timeout_s: float = _COMMAND_TIMEOUT_S,
) -> tuple[int, dict[str, Any] | None]:
    """Run a command that needs no Spark. Return its exit code and its JSON document (None: it
    printed none).

    Raises SettingsError if the interpreter or the package is missing, subprocess.TimeoutExpired
    after `timeout_s`.
    """
    try:
        done = _run(environment, environment.command(*arguments), timeout_s)
    except OSError as error:
        raise missing_environment(environment) from error
    document = parse_document(done.stdout)
    if done.returncode and document is None:
        reject_missing_package(environment, done.stderr)
    return done.returncode, document


_JARS = """
import json, sys
from etl.errors import EtlError
from etl.testkit.java_and_jars import delta_jars
try:
    print(json.dumps({"jars": [str(jar) for jar in delta_jars()]}))
except EtlError as error:
    print(json.dumps(error.as_json()))
    sys.exit(error.exit_code)
"""


def delta_jars(environment: EtlEnvironment) -> tuple[int, dict[str, Any] | None]:
    """Return Delta's jars of the environment's cache, which fetches missing ones once: exit code
    and document, with `jars` or an error; None if the package is not installed there.
    """
    done = _run(environment, [environment.python, "-c", _JARS], _COMMAND_TIMEOUT_S)
    return done.returncode, parse_document(done.stdout)


def reject_missing_package(environment: EtlEnvironment, output: str = "") -> None:
    """Raise SettingsError if the package cannot be imported there; called after a command that
    failed without a document. `output` is logged.
    """
    if output:
        logger.error("%s", output[-_LOGGED_OUTPUT_MAX:])
    done = _run(environment, [environment.python, "-c", "import etl.cli.app"], _COMMAND_TIMEOUT_S)
    lines = done.stderr.strip().splitlines() or [""]
    reason = lines[-1]
    if done.returncode and reason.startswith(("ImportError", "ModuleNotFoundError")):
        raise SettingsError(
            "The environment on this worker lacks the package, or one of its requirements: "
            f"{reason}",
            path=environment.python,
            action=f"Run `{environment.python} -m pip install offset-range-etl`, or set ETL_PYTHON "
            "to the interpreter of an environment that has it",
        )


def missing_environment(environment: EtlEnvironment) -> SettingsError:
    """Return the error for an interpreter that this machine lacks."""
    return SettingsError(
        "The interpreter of the Spark environment does not exist on this worker",
        path=environment.python,
        action="Set ETL_PYTHON, on each worker, to the interpreter of an environment that has "
        "offset-range-etl and pyspark",
    )


def _run(
    environment: EtlEnvironment, command: Sequence[str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **environment.env_vars},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


# --------------------------------------------------------------------------------- the document


def parse_document(text: str) -> dict[str, Any] | None:
    """Parse the JSON document that a command printed or wrote; None if there is none, or half."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


RANGES_KEPT = 100
TEXT_KEPT = 2000


def xcom_summary(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the document's plain values, its outcomes, and the newest plan's number with its first
    ranges; empty without a document.
    """
    document = document or {}
    summary: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, (str, int, float, bool)):
            summary[name] = _shortened(value)
    outcomes = document.get("outcomes")
    if isinstance(outcomes, list):
        summary["outcomes"] = [_shortened(_message_of(outcome)) for outcome in outcomes]
    plan = document.get("plan")
    if isinstance(plan, dict):
        ranges = plan.get("ranges") or []
        summary["plan"] = {
            "number": plan.get("number"),
            "total_ranges": len(ranges),
            "ranges": ranges[:RANGES_KEPT],
        }
    return summary


def describe_error(document: Mapping[str, Any] | None) -> str:
    """Return the sentences of an error document, as the command prints them; of `etl doctor` those
    of the failed checks.
    """
    document = document or {}
    failed = []
    for check in document.get("checks") or ():
        if check.get("exit_code"):
            failed.append(f"{check['name']}: {check['found']}. {check['to_do']}")
    if failed:
        return "; ".join(failed)
    if not document.get("message"):
        return "The command left no document with a reason: see its log above"
    text = str(document["message"])
    if document.get("error"):
        text = f"{document['error']}: {text}"
    where = document.get("where") or {}
    if where:
        places = ", ".join(f"{name} {value}" for name, value in where.items())
        text += f" ({places})"
    if document.get("action"):
        text += f". {document['action']}"
    return text


def describe_unresolved(output: str) -> str | None:
    """Return the sentences for packages that spark-submit could not resolve; None: it could."""
    found = re.search(r"\[?unresolved dependency: ([^\]\n]+)", output)
    if found is None:
        return None
    return (
        f"spark-submit could not resolve packages at Maven: {found[1].strip()}. Check `packages` in "
        "ETL_SUBMIT_OPTIONS, and that this worker reaches Maven Central; or name local files with "
        "`jars`"
    )


def page_url(environment: EtlEnvironment, pipeline: Pipeline, run_id: object) -> str:
    """Return the address of a run's page; empty if it is unknown."""
    if not environment.reports_url or not run_id:
        return ""
    page = quote(f"{pipeline.group}+{pipeline.name}-{run_id}.html", safe="+")
    return f"{environment.reports_url.rstrip('/')}/{page}"


def table_name(uri: str) -> str:
    """Return the name of a table for people: its path, its URL, or its name in a catalog."""
    for prefix in ("file://", "delta-table:///"):
        if uri.startswith(prefix):
            return unquote(uri.removeprefix(prefix))
    return uri


def _message_of(outcome: Any) -> Any:
    return outcome.get("message") if isinstance(outcome, dict) else outcome


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_KEPT:
        return f"{value[:TEXT_KEPT]}..."
    return value


# ------------------------------------------------------------------------ pools and connections


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A pool or a connection that a task names.

    Without its pool a task waits for ever; without its connection Spark runs on yarn.
    """

    kind: str
    """`pool` or `connection`."""
    name: str
    dag: str
    task: str

    @property
    def command(self) -> str:
        """The command that creates it."""
        if self.kind == "pool":
            return f"airflow pools set {self.name} 1 'one load at a time'"
        return f"airflow connections add {self.name} --conn-type spark --conn-host 'local[*]'"

    def __str__(self) -> str:
        return (
            f"The {self.kind} {self.name} does not exist; task {self.task} of DAG {self.dag} "
            f"names it. Create it: {self.command}"
        )


def references_of(dags: Mapping[str, Any]) -> list[Reference]:
    """Return the pools and connections that the tasks of these DAGs name, sorted."""
    found = set()
    for dag_id, dag in dags.items():
        for task in dag.tasks:
            found.add(Reference("pool", task.pool, dag_id, task.task_id))
            connection = getattr(task, "_conn_id", None)
            if connection:
                found.add(Reference("connection", connection, dag_id, task.task_id))
    return sorted(found)


def missing_references(
    references: Iterable[Reference], pools: Collection[str], connections: Collection[str]
) -> list[Reference]:
    """Return the references that are in neither collection."""
    existing = {"pool": pools, "connection": connections}
    return [one for one in references if one.name not in existing[one.kind]]
