"""How does a task run a command by spark-submit, and what does Airflow learn from it?

A try may begin while the driver of the previous try is active, or after it committed. Equal run
keys are one plan and one commit, so each try submits the same arguments.

The exit code and the document of a command become success, retry or failure, with the command's own
message. The table is an asset, its events carry the report. Events are delivered at least once, so
a consumer remembers `run_key` or `plan.number`. A final failure is passed to a callback.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from etl.airflow.compat import (
    IS_3,
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    Asset,
    BaseHook,
    BaseOperatorLink,
)
from etl.airflow.pipeline import (
    DELTA,
    EtlEnvironment,
    Pipeline,
    delta_jars,
    describe_error,
    describe_unresolved,
    missing_environment,
    page_url,
    parse_document,
    read_pipeline,
    reject_missing_package,
    table_name,
    xcom_summary,
)
from etl.decide.run_requests import (
    DOCUMENT_FILE,
    TimeInterval,
    Verdict,
    interval_of_run,
    verdict_of,
)
from etl.errors import SettingsError

logger = logging.getLogger(__name__)


class RunPageLink(BaseOperatorLink):
    """Link from a task to the page of its run, if ETL_REPORTS_URL is set."""

    @property
    def name(self) -> str:
        """See Airflow."""
        return "Page of the run"

    def get_link(self, operator: Any, **_: Any) -> str:
        """Return the address, which is known after the task has run."""
        address: str = operator.page
        return address


_JARS_BY_CONF = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


class EtlSubmitOperator(SparkSubmitOperator):
    """Runs `etl COMMAND ARGUMENTS` by spark-submit.

    command       `run`, `replay`, `backfills run`, `verify` or `table maintain`
    arguments     function from an Airflow context to the command's arguments
    conf_file     the conf of the pipeline
    environment   where spark-submit and the package are; default: by environment variables

    Returns a summary of the command's document, also the `extra` of the outlets' events, which a dry
    run has not. Raises AirflowException if a retry may help, else AirflowFailException, with the
    command's own sentences.
    """

    jars: str | None
    packages: str | None
    # Airflow 2.11 takes links of plugins only.
    operator_extra_links = (RunPageLink(),) if IS_3 else ()

    def __init__(
        self,
        *,
        command: str,
        arguments: Callable[[Mapping[str, Any]], Sequence[str]],
        conf_file: str | Path,
        environment: EtlEnvironment | None = None,
        **kwargs: Any,
    ) -> None:
        environment = environment or EtlEnvironment()
        pipeline = read_pipeline(conf_file)
        options = dict(environment.submit_options)
        spark_conf = {
            "spark.log.level": "WARN",
            **options.pop("conf", {}),
            **(kwargs.pop("conf", None) or {}),
        }
        env_vars = {**environment.variables, **(kwargs.pop("env_vars", None) or {})}
        submit_arguments = {
            "application": environment.job_path,
            "conn_id": environment.conn_id,
            "spark_binary": environment.spark_submit,
            "conf": spark_conf,
            "name": f"etl {command} {pipeline.full_name}",
            **options,
            **kwargs,
            "env_vars": env_vars,
        }
        super().__init__(**submit_arguments)
        self.environment = environment
        self._pipeline = pipeline
        self._command = command
        self._arguments = arguments
        self.page = ""
        """Address of the page of the last run; empty: unknown."""

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """See the class."""
        arguments = [*self._command.split(), *self._arguments(context)]
        document = self.submit(arguments, context)
        report = {
            **xcom_summary(document),
            "command": self._command,
            "pipeline": self._pipeline.full_name,
        }
        if self._command == "run":
            with contextlib.suppress(AirflowFailException):  # a DAG of the user may have none
                report.update(interval_of(context).as_json())
        for outcome in report.get("outcomes", ()):
            self.log.info("%s", outcome)
        if document.get("dry_run"):
            self.outlets = list[Any]()
        add_report_to_assets(context, self.outlets, report)
        return report

    def try_out(self) -> None:
        """Submit `etl doctor` of the conf. Raises as `execute`."""
        self.submit(["doctor", self._pipeline.conf], {})

    def submit(self, arguments: Sequence[str], context: Mapping[str, Any]) -> dict[str, Any]:
        """Run the command by spark-submit and return its document. Raises as `execute`."""
        self._reject_missing_parts()
        self._add_delta()
        self.application_args = list(arguments)
        with tempfile.TemporaryDirectory(prefix="etl-") as folder:
            document_file = Path(folder, "document.json")
            self.env_vars: dict[str, str] = {**self.env_vars, DOCUMENT_FILE: str(document_file)}
            with _environment_with(self.env_vars):
                exit_code, output = self._submit(context)
            document = None
            if document_file.exists():
                document = parse_document(document_file.read_text())
        self.page = page_url(self.environment, self._pipeline, (document or {}).get("run_id"))
        if exit_code and document is None:
            unresolved = describe_unresolved(output)
            if unresolved:
                raise AirflowException(f"{unresolved}. A retry may help (exit code {exit_code})")
            if not self.py_files:
                self._reject_missing_package()
        raise_unless_done(exit_code, document)
        if document is None:
            raise AirflowFailException(
                "spark-submit ended with exit code 0, and the job left no report, so its result is "
                "unknown: it may still run, or have failed. Check that it runs in deploy mode "
                "client, also in spark-defaults.conf, and that ETL_JOB is the job file of this "
                "version. If it still runs, the same run again waits for it and loads nothing twice"
            )
        return document

    def _add_delta(self) -> None:
        """Name Delta's jars, unless the task, or Spark's configuration, names jars or packages.

        They are those of the environment's cache, else Maven's, which each task asks again. Raises
        as `raise_unless_done` if they cannot be fetched into the cache.
        """
        conf = self.conf or {}
        if self.jars or self.packages or any(conf.get(key) for key in _JARS_BY_CONF):
            return
        exit_code, document = delta_jars(self.environment)
        if document is not None and "exit_code" in document:
            raise_unless_done(exit_code, document)
        jars = (document or {}).get("jars")
        if jars:
            self.jars = ",".join(jars)
        else:
            self.packages = DELTA

    def _reject_missing_parts(self) -> None:
        """Raise AirflowFailException if connection, spark-submit or job file are missing, or the
        deploy mode is cluster.
        """
        connection = self.environment.conn_id
        try:
            extra = BaseHook.get_connection(connection).extra_dejson
        except AirflowNotFoundException as error:
            # Airflow's hook would use master yarn instead, silently.
            raise AirflowFailException(
                f"The Airflow connection {connection} does not exist. Set ETL_CONN_ID, or create "
                f"it: airflow connections add {connection} --conn-type spark "
                "--conn-host 'local[*]'"
            ) from error
        spark_conf = self.conf or {}
        deploy_modes = (
            self._deploy_mode,
            extra.get("deploy-mode"),
            spark_conf.get("spark.submit.deployMode"),
        )
        if "cluster" in deploy_modes:
            raise AirflowFailException(
                f"The Airflow connection {connection}, or the task, sets deploy mode "
                f"cluster, which "
                "returns neither the job's report nor its exit code. Set deploy-mode to client in "
                "the connection's extra, and spark.submit.deployMode in ETL_SUBMIT_OPTIONS"
            )
        if not Path(self.environment.spark_submit).exists():
            raise AirflowFailException(str(missing_environment(self.environment)))
        if not Path(self.application).exists():
            raise AirflowFailException(
                f"The job file does not exist on this worker: {self.application}. Set ETL_JOB to "
                "the path of etl_job.py"
            )

    def _reject_missing_package(self) -> None:
        try:
            reject_missing_package(self.environment)
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error

    def _submit(self, context: Mapping[str, Any]) -> tuple[int | None, str]:
        """Run spark-submit and return its exit code, None if it is unknown, and its last output."""
        try:
            super().execute(context)
        except AirflowException as error:
            process = getattr(self._hook, "_submit_sp", None)
            if process is None:
                raise
            # Its text repeats the last lines of the log, up to hundreds.
            self.log.error("spark-submit ended with exit code %s", process.returncode)
            return process.returncode, str(error)
        return 0, ""


def raise_unless_done(exit_code: int | None, document: Mapping[str, Any] | None) -> None:
    """Raise AirflowException if a retry may help, AirflowFailException if not; see `verdict_of`."""
    verdict = verdict_of(exit_code, document)
    if verdict is Verdict.DONE:
        return
    # the document of a run holds the error; that of a failed command is the error
    error = (document or {}).get("error")
    description = describe_error(error if isinstance(error, dict) else document)
    if verdict is Verdict.FAIL:
        raise AirflowFailException(f"{description}. A retry does not help (exit code {exit_code})")
    raise AirflowException(f"{description}. A retry may help (exit code {exit_code})")


def interval_of(context: Mapping[str, Any]) -> TimeInterval:
    """Return the interval of a run, see `interval_of_run`. Raises AirflowFailException."""
    params = context.get("params") or {}
    try:
        return interval_of_run(
            params.get("from"),
            params.get("until"),
            (context.get("data_interval_start"), context.get("data_interval_end")),
            context.get("logical_date"),
        )
    except SettingsError as error:
        raise AirflowFailException(str(error)) from error


# ------------------------------------------------------------------------------------- the asset


def table_asset(pipeline: Pipeline | str | Path) -> Asset:
    """Return the asset of the table of a pipeline, or of a conf file. Name and URI follow from the
    table, so pipelines of one table share it. Raises as `read_pipeline`.
    """
    if not isinstance(pipeline, Pipeline):
        pipeline = read_pipeline(pipeline)
    if not IS_3:  # an asset has no name
        return Asset(pipeline.table)
    name = table_name(pipeline.table)
    if not name.isascii():  # Airflow on MySQL rejects it
        name = pipeline.table
    return Asset(name=name, uri=pipeline.table)


def add_report_to_assets(
    context: Mapping[str, Any], outlets: Iterable[Any], report: Mapping[str, Any]
) -> None:
    """Set the report as `extra` of the events of these outlets."""
    for asset in outlets or ():
        context["outlet_events"][asset].extra = dict(report)


@contextlib.contextmanager
def _environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for a while. For a Kubernetes master, Airflow's
    hook passes `env_vars` to pods only, not to spark-submit.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ------------------------------------------------------------------------------------- failures

FailureCallback = Callable[[Mapping[str, Any]], None]


def failure_of(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return DAG, task, run, try, log URL, interval and reason of a failure, as far as the context
    has them.
    """
    task = context.get("task_instance") or context.get("ti")
    failure = {
        "dag": getattr(task, "dag_id", None),
        "task": getattr(task, "task_id", None),
        "run": getattr(task, "run_id", None),
        "try": getattr(task, "try_number", None),
        "log": getattr(task, "log_url", None),
    }
    with contextlib.suppress(AirflowFailException):
        failure.update(interval_of(context).as_json())
    exception = context.get("exception")
    if exception is not None:
        failure["reason"] = str(exception)
    return {name: value for name, value in failure.items() if value is not None}


def on_failure(callback: FailureCallback | None = None) -> Callable[[Mapping[str, Any]], None]:
    """Return an `on_failure_callback` that passes the failure to `callback`; default: a JSON line
    in the task's log.
    """
    receive = callback or _log

    def on_failure_callback(context: Mapping[str, Any]) -> None:
        receive(failure_of(context))

    return on_failure_callback


def failure_callback_from_environment(
    variables: Mapping[str, str] = os.environ,
) -> FailureCallback | None:
    """Import the function that ETL_ON_FAILURE names, `package.module:function`; None if unset.

    Raises SettingsError if it cannot be imported.
    """
    text = variables.get("ETL_ON_FAILURE")
    if not text:
        return None
    module, _, name = text.partition(":")
    try:
        callback: FailureCallback = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"ETL_ON_FAILURE names no function: {text}",
            action="Write it in the form package.module:function, of a module that Airflow can "
            "import",
        ) from error
    return callback


def _log(failure: Mapping[str, Any]) -> None:
    logger.error("failed: %s", json.dumps(failure, default=str))
