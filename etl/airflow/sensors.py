"""Is an interval complete in the topics, and is it in the table?

The sensor waits, deferred, until partitions are complete: one `etl topics ready-to-load` per poke,
in the environment that the triggerer needs, too. The operator compares intervals with the table,
because a successful run in Airflow does not prove that its interval was loaded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from etl.airflow.compat import AirflowFailException, BaseOperator, BaseSensorOperator
from etl.airflow.pipeline import (
    EtlEnvironment,
    describe_error,
    missing_environment,
    parse_document,
    read_pipeline,
    reject_missing_package,
    run_command,
)
from etl.airflow.submit import interval_of, raise_unless_done
from etl.decide.run_requests import Verdict, checked_period, duration, verdict_of
from etl.errors import NotReady, SettingsError


class TopicsReadySensor(BaseSensorOperator):
    """Waits until every partition has a record at or after the end of the interval.

    conf_file            the conf of the pipeline
    environment          where the command is; default: by environment variables
    assume_ready_after   a partition without such a record is ready this long after the end
    deferrable           False: a worker waits, in the modes that every sensor has

    `poke_interval` and `timeout` are those of every sensor. A run without an interval, and a conf
    that is invalid, fail at once.
    """

    def __init__(
        self,
        *,
        conf_file: str | Path,
        environment: EtlEnvironment | None = None,
        assume_ready_after: timedelta = timedelta(minutes=10),
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._pipeline = read_pipeline(conf_file)
        self._environment = environment or EtlEnvironment()
        self._assume_ready_after = assume_ready_after
        self._deferrable = deferrable

    def execute(self, context: Mapping[str, Any]) -> Any:
        """See the class."""
        if not self._deferrable:
            return super().execute(context)
        if self.poke(context):
            return None
        trigger = TopicsReadyTrigger(
            self._environment.python,
            dict(self._environment.env_vars),
            self._arguments(context),
            float(self.poke_interval),
        )
        return self.defer(
            trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout)
        )

    def poke(self, context: Mapping[str, Any]) -> bool:
        """Check once."""
        try:
            exit_code, document = run_command(self._environment, self._arguments(context))
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("%s", (document or {}).get("message") or describe_error(document))
        return is_ready(exit_code, document)

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Handle the trigger's event: ready, or an error that no further check can change."""
        if event.get("error"):
            raise AirflowFailException(str(event["error"]))
        self.log.info("%s", event.get("message"))

    def _arguments(self, context: Mapping[str, Any]) -> list[str]:
        until = interval_of(context).end.isoformat()
        seconds = round(self._assume_ready_after.total_seconds())
        ready_after = ["--assume-ready-after", f"{seconds}s"]
        return [
            "topics",
            "ready-to-load",
            self._pipeline.conf,
            "--until",
            until,
            *ready_after,
            "--json",
        ]


def is_ready(exit_code: int | None, document: Mapping[str, Any] | None) -> bool:
    """Return the result of one check; False: check again later. Raises AirflowFailException if no
    later check can succeed.
    """
    verdict = verdict_of(exit_code, None)
    if verdict is Verdict.FAIL:
        raise AirflowFailException(
            f"{describe_error(document)}. A retry does not help (exit code {exit_code})"
        )
    return verdict is Verdict.DONE


class TopicsReadyTrigger(BaseTrigger):
    """Checks periodically, in the triggerer. A temporary failure does not end it; the sensor's
    timeout does.
    """

    def __init__(
        self, python: str, env_vars: dict[str, str], arguments: list[str], interval_s: float
    ) -> None:
        super().__init__()
        self._python = python
        self._env_vars = env_vars
        self._arguments = arguments
        self._interval_s = interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class and arguments as plain values for Airflow's database."""
        return f"{__name__}.{type(self).__name__}", {
            "python": self._python,
            "env_vars": self._env_vars,
            "arguments": self._arguments,
            "interval_s": self._interval_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, at the end."""
        while True:
            await asyncio.sleep(self._interval_s)
            event = await self._check()
            if event:
                yield TriggerEvent(event)
                return

    async def _check(self) -> dict[str, str] | None:
        """Return the event that ends the trigger: `message` or `error`; None: check again."""
        environment = EtlEnvironment(
            python=self._python, env_vars=self._env_vars, submit_options={}
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *environment.command(*self._arguments),
                env={**os.environ, **self._env_vars},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError:
            return {"error": f"{missing_environment(environment)}. The triggerer needs it, too"}
        try:
            output, errors = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        document = parse_document(output.decode())
        try:
            if process.returncode and document is None:
                error_text = errors.decode(errors="replace")
                await asyncio.to_thread(reject_missing_package, environment, error_text)
            if not is_ready(process.returncode, document):
                return None
        except (AirflowFailException, SettingsError) as error:
            return {"error": str(error)}
        return {"message": (document or {}).get("message", "ready")}


IGNORE_LAST = timedelta(hours=3)
"""Time for a run that waits for late records, is retried, and loads much."""
_GAPS_NAMED = 100
_GAPS_TIMEOUT_S = 1800.0


class TableGapsOperator(BaseOperator):
    """Fails if intervals before the end of its own are not fully loaded, and names them.

    conf_file     the conf of the pipeline; not of Jafka and Kafka 0.7: their messages have no
                  timestamps
    environment   where the command is; default: by environment variables
    lookback      how far it looks back
    every         length of an interval: `1h`
    ignore_last   intervals that ended less than this before the end are not checked
    """

    def __init__(
        self,
        *,
        conf_file: str | Path,
        environment: EtlEnvironment | None = None,
        lookback: timedelta = timedelta(days=7),
        every: str = "1h",
        ignore_last: timedelta = IGNORE_LAST,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._pipeline = read_pipeline(conf_file)
        self._environment = environment or EtlEnvironment()
        self._lookback = lookback
        self._every = every
        self._ignore_last = ignore_last

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """See the class."""
        checked = checked_period(
            interval_of(context).end,
            behind=self._ignore_last,
            back=self._lookback,
            every=duration(self._every, "every"),
        )
        bounds = ["--from", checked.start.isoformat(), "--until", checked.end.isoformat()]
        arguments = ["table", "gaps", self._pipeline.conf, *bounds, "--every", self._every]
        try:
            exit_code, document = run_command(
                self._environment, [*arguments, "--json"], timeout_s=_GAPS_TIMEOUT_S
            )
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error
        if exit_code != NotReady.exit_code:
            raise_unless_done(exit_code, document)
        document = document or {}
        gaps = []
        for gap in document.get("incomplete", [])[:_GAPS_NAMED]:
            gaps.append(f"{gap['from_time']} to {gap['until_time']} ({gap['missing']:,} offsets)")
        if exit_code == NotReady.exit_code or gaps:
            raise AirflowFailException(
                f"{document.get('message')}: {', '.join(gaps)}. Check the runs of the ingest DAG; "
                "the next one loads what is missing"
            )
        return {"message": document.get("message")}
