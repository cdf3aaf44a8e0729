"""How does a task start a command by spark-submit, and what does Airflow learn of it?

A try may begin while the driver of the last one is active, or after it committed: equal run keys
are one plan and one commit, so each try submits the same arguments.

Results become success, retry or failure, with the command's own message. The table is an asset
whose events carry the report; events are at least once, so a consumer remembers `run_key` or
`plan.number`. A final failure is reported to a callback as one value.
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
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    Asset,
    BaseHook,
)
from etl.airflow.pipeline import (
    Pipeline,
    Toolkit,
    brief_of,
    not_there,
    parsed,
    reject_without_package,
    told_of,
)
from etl.decide.run_requests import (
    DOCUMENT_FILE,
    TimeInterval,
    Verdict,
    interval_of_run,
    verdict_of,
)
from etl.errors import SettingsError


def table_asset(pipeline: Pipeline) -> Asset:
    """The asset of the pipeline's table. Its name is its URI, so that two pipelines of one table
    have one asset.
    """
    return Asset(pipeline.table)


def add_report_to_assets(
    context: Mapping[str, Any], outlets: Iterable[Any], report: Mapping[str, Any]
) -> None:
    """The report goes with the events of these outlets."""
    for asset in outlets or ():
        context["outlet_events"][asset].extra = dict(report)


def interval_of(context: Mapping[str, Any]) -> TimeInterval:
    """As `interval_of_run`. Raises AirflowFailException with its error."""
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


def raise_unless_done(exit_code: int | None, document: Mapping[str, Any] | None) -> None:
    """Raises AirflowException where a retry may help and AirflowFailException where it would not;
    see `verdict_of`.
    """
    verdict = verdict_of(exit_code, document)
    if verdict is Verdict.DONE:
        return
    error = (document or {}).get("error")
    said = told_of(error if isinstance(error, dict) else document)
    if verdict is Verdict.FAIL:
        raise AirflowFailException(f"{said}. A retry would not help (exit code {exit_code})")
    raise AirflowException(f"{said}. A retry may help (exit code {exit_code})")


class EtlSubmitOperator(SparkSubmitOperator):
    """`spark-submit jobs/JOB.py ARGUMENTS` in the toolkit's environment.

    toolkit     where that is, and what spark-submit is told besides
    pipeline    whose job it is
    job         the name of the job's file: ingest, replay, backfill, verify, maintain
    arguments   of an Airflow context, those of the job

    The task returns what the job said, in brief, and says the same of its outlets. It is tried
    again where that may help (`outcome`). Raises AirflowFailException where it does not, with the
    job's own sentences.
    """

    def __init__(
        self,
        *,
        toolkit: Toolkit,
        pipeline: Pipeline,
        job: str,
        arguments: Callable[[Mapping[str, Any]], Sequence[str]],
        **kwargs: Any,
    ) -> None:
        submit = dict(toolkit.submit)
        conf = {
            "spark.log.level": "WARN",
            **submit.pop("conf", {}),
            **(kwargs.pop("conf", None) or {}),
        }
        super().__init__(
            **{
                "application": toolkit.job(job),
                "conn_id": toolkit.connection,
                "spark_binary": toolkit.spark_submit,
                "conf": conf,
                "name": f"{job} {pipeline.group}/{pipeline.name}",
                **submit,
                **kwargs,
                "env_vars": {**toolkit.environment, **(kwargs.get("env_vars") or {})},
            }
        )
        self._toolkit, self._pipeline, self._job, self._arguments = (
            toolkit,
            pipeline,
            job,
            arguments,
        )

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """See the class."""
        self._reject_missing_connection()
        self.application_args = list(self._arguments(context))
        with tempfile.TemporaryDirectory(prefix="etl-") as folder:
            kept = Path(folder, "document.json")
            self.env_vars: dict[str, str] = {**self.env_vars, DOCUMENT_FILE: str(kept)}
            with _environment_with(self.env_vars):
                exit_code = self._submit(context)
            document = parsed(kept.read_text()) if kept.exists() else None
        if exit_code and document is None and not self.py_files:
            self._reject_without_package()
        raise_unless_done(exit_code, document)
        if document is None:
            raise AirflowFailException(
                "spark-submit ended with exit code 0, and the job left no report, so nobody knows what became of it: it may still be at "
                "work, or have failed. Check: that it runs in the deploy mode client, also by spark-defaults.conf, and that ETL_JOBS has "
                "the jobs of this version; where it is at work, the same run again waits for it, and loads nothing twice"
            )
        whose = f"{self._pipeline.group}/{self._pipeline.name}"
        interval = interval_of(context).as_json() if self._job == "ingest" else {}
        report = {"job": self._job, "pipeline": whose, **interval, **brief_of(document)}
        add_report_to_assets(context, self.outlets, report)
        return report

    def _reject_missing_connection(self) -> None:
        """Airflow's hook takes master yarn for a connection that is not there, without a word."""
        connection = self._toolkit.connection
        try:
            extra = BaseHook.get_connection(connection).extra_dejson
        except AirflowNotFoundException as error:
            raise AirflowFailException(
                f"the Airflow connection {connection} is not there. Check: ETL_SPARK_CONNECTION, or make it: "
                f"airflow connections add {connection} --conn-type spark --conn-host 'local[*]'"
            ) from error
        if "cluster" in (
            self._deploy_mode,
            extra.get("deploy-mode"),
            (self.conf or {}).get("spark.submit.deployMode"),
        ):
            raise AirflowFailException(
                f"the Airflow connection {connection}, or the task, asks for the deploy mode cluster: the job's report and exit code do "
                "not come back from there. Check: its extra, deploy-mode must be client; and spark.submit.deployMode in ETL_SPARK_SUBMIT"
            )
        if not Path(self._toolkit.spark_submit).exists():
            raise AirflowFailException(str(not_there(self._toolkit)))
        if not Path(self.application).exists():
            raise AirflowFailException(
                f"the job is not on this worker: {self.application}. Check: ETL_JOBS, which names the folder of the job files"
            )

    def _reject_without_package(self) -> None:
        try:
            reject_without_package(self._toolkit)
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error

    def _submit(self, context: Mapping[str, Any]) -> int | None:
        """The exit code of spark-submit; None: it ended otherwise."""
        try:
            super().execute(context)
        except AirflowException as error:
            started = getattr(self._hook, "_submit_sp", None)
            if started is None:
                raise
            self.log.error("%s", error)
            code: int | None = started.returncode
            return code
        return 0


@contextlib.contextmanager
def _environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside, this process has them, and so has what it starts: for a master of Kubernetes
    Airflow's hook hands them on to pods alone.
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


logger = logging.getLogger(__name__)

Tell = Callable[[Mapping[str, Any]], None]


def failure_of(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return what failed, for which interval, why, in which try, and the log's location, as far as
    the context has it.
    """

    task = context.get("task_instance") or context.get("ti")
    named = {
        name: getattr(task, attribute, None)
        for name, attribute in (
            ("dag", "dag_id"),
            ("task", "task_id"),
            ("run", "run_id"),
            ("try", "try_number"),
            ("log", "log_url"),
        )
    }
    try:
        interval = interval_of(context).as_json()
    except AirflowFailException:
        interval = {}
    why = context.get("exception")
    told = {**named, **interval, "why": None if why is None else str(why)}
    return {name: value for name, value in told.items() if value is not None}


def on_failure(tell: Tell | None = None) -> Callable[[Mapping[str, Any]], None]:
    """Return an `on_failure_callback` that passes the failure to `tell`; by default a JSON line in
    the task's log.
    """

    def callback(context: Mapping[str, Any]) -> None:
        (tell or _log)(failure_of(context))

    return callback


def failure_callback_from_environment(variables: Mapping[str, str] = os.environ) -> Tell | None:
    """Return the function named by ETL_ON_FAILURE, `package.module:function`; None if unset. Raises
    SettingsError.
    """
    named = variables.get("ETL_ON_FAILURE")
    if not named:
        return None
    module, _, name = named.partition(":")
    try:
        found: Tell = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        action = "its form, package.module:function, and that Airflow can import it"
        raise SettingsError(f"ETL_ON_FAILURE names no function: {named}", action=action) from error
    return found


def _log(failure: Mapping[str, Any]) -> None:
    logger.error("failed: %s", json.dumps(failure, default=str))
