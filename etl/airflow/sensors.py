"""Is an interval complete, and is it in the table?

The sensor waits for complete partitions, deferred, by one `etl topics ready` per poke in the toolkit's
environment, which the triggerer needs, too. The operator compares intervals with the table: a run
in Airflow does not prove that its interval was loaded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from etl.airflow.compat import AirflowFailException, BaseOperator, BaseSensorOperator
from etl.airflow.pipeline import (
    Pipeline,
    Toolkit,
    ask,
    not_there,
    parsed,
    reject_without_package,
    told_of,
)
from etl.airflow.submit import interval_of, raise_unless_done
from etl.decide.run_requests import Verdict, duration, intervals_looked_back_at, verdict_of
from etl.errors import NotReady, SettingsError


def words_of(pipeline: Pipeline, until: str, grace_s: float) -> list[str]:
    """Return the arguments of the command."""
    ready_after = f"{round(grace_s)}s"
    words = ["topics", "ready", pipeline.conf, "--until", until]
    return [*words, "--assume-ready-after", ready_after, "--json"]


class LogCompleteSensor(BaseSensorOperator):
    """Done when every partition has a record at the end of the interval or later, or that is
    `grace` ago.

    toolkit, pipeline   where the command is, and whose logs grace               a partition without
    a record that late counts as complete so long after the end deferrable          False: a worker
    waits, in the modes that every sensor has

    `poke_interval` and `timeout` are those of every sensor. A run without an interval, and a conf
    that no look can use, fail at once.
    """

    def __init__(
        self,
        *,
        toolkit: Toolkit,
        pipeline: Pipeline,
        grace: timedelta = timedelta(minutes=10),
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._toolkit, self._pipeline, self._grace_s, self._is_deferrable = (
            toolkit,
            pipeline,
            grace.total_seconds(),
            deferrable,
        )

    def execute(self, context: Mapping[str, Any]) -> Any:
        """See the class."""
        if not self._is_deferrable:
            return super().execute(context)
        if self.poke(context):
            return None
        trigger = LogCompleteTrigger(
            self._toolkit.python,
            dict(self._toolkit.variables),
            self._words(context),
            float(self.poke_interval),
        )
        return self.defer(
            trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout)
        )

    def poke(self, context: Mapping[str, Any]) -> bool:
        """Check once."""
        try:
            code, document = ask(self._toolkit, self._words(context))
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("%s", (document or {}).get("message") or told_of(document))
        return is_complete(code, document)

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Handle the trigger's event: complete, or impossible to tell."""
        if event.get("refused"):
            raise AirflowFailException(str(event["refused"]))
        self.log.info("%s", event.get("message"))

    def _words(self, context: Mapping[str, Any]) -> list[str]:
        return words_of(self._pipeline, interval_of(context).end.isoformat(), self._grace_s)


def is_complete(code: int | None, document: Mapping[str, Any] | None) -> bool:
    """Return the result of one check; False: check again. Raises AirflowFailException if that is
    useless.
    """
    verdict = verdict_of(code, None)
    if verdict is Verdict.FAIL:
        raise AirflowFailException(
            f"{told_of(document)}. A retry would not help (exit code {code})"
        )
    return verdict is Verdict.DONE


class LogCompleteTrigger(BaseTrigger):
    """Checks every so many seconds, in the triggerer. A temporary failure does not end it; the
    sensor's timeout does.
    """

    def __init__(
        self, python: str, variables: dict[str, str], words: list[str], every_s: float
    ) -> None:
        super().__init__()
        self._python, self._variables, self._words, self._every_s = (
            python,
            variables,
            words,
            every_s,
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return plain values for Airflow's database."""
        return f"{__name__}.{type(self).__name__}", {
            "python": self._python,
            "variables": self._variables,
            "words": self._words,
            "every_s": self._every_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event, at the end."""
        while True:
            await asyncio.sleep(self._every_s)
            event = await self._look()
            if event:
                yield TriggerEvent(event)
                return

    async def _look(self) -> dict[str, str] | None:
        toolkit = Toolkit(python=self._python, variables=self._variables)
        try:
            looking = await asyncio.create_subprocess_exec(
                *toolkit.command(*self._words),
                env={**os.environ, **self._variables},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError:
            return {"refused": f"{not_there(toolkit)} The triggerer needs it, too"}
        try:
            said, complained = await looking.communicate()
        except asyncio.CancelledError:
            looking.kill()
            raise
        document = parsed(said.decode())
        try:
            if looking.returncode and document is None:
                await asyncio.to_thread(
                    reject_without_package, toolkit, complained.decode(errors="replace")
                )
            return (
                {"message": (document or {}).get("message", "complete")}
                if is_complete(looking.returncode, document)
                else None
            )
        except (AirflowFailException, SettingsError) as error:
            return {"refused": str(error)}


BEHIND = timedelta(hours=3)
"""An hour whose run waits for late records, is retried, and loads much."""
TOLD = 100
_WITHIN_S = 1800.0


class MissingIntervalsOperator(BaseOperator):
    """Fails where intervals before the end of its own are not whole in the table, and names them;
    returns what it found.

    toolkit, pipeline   where the command is, and whose table; not of Jafka and Kafka 0.7, whose
    messages have no times back, every         how far it looks back, and how long each interval is:
    `1h` behind              how long after its end an interval must be in the table: what is
    younger is not looked at
    """

    def __init__(
        self,
        *,
        toolkit: Toolkit,
        pipeline: Pipeline,
        back: timedelta,
        every: str,
        behind: timedelta = BEHIND,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._toolkit, self._pipeline, self._back, self._every, self._behind = (
            toolkit,
            pipeline,
            back,
            every,
            behind,
        )

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """See the class."""
        whole = intervals_looked_back_at(
            interval_of(context).end,
            behind=self._behind,
            back=self._back,
            every=duration(self._every, "every"),
        )
        words = [
            "--from",
            whole.start.isoformat(),
            "--until",
            whole.end.isoformat(),
            "--every",
            self._every,
        ]
        try:
            code, document = ask(
                self._toolkit,
                ["table", "gaps", self._pipeline.conf, *words, "--json"],
                within_s=_WITHIN_S,
            )
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error
        if code != NotReady.exit_code:
            raise_unless_done(code, document)
        told = document or {}
        missing = told.get("incomplete", [])[:TOLD]
        if missing:
            named = ", ".join(
                f"{one['from_time']} to {one['until_time']} ({one['missing']:,} offsets)"
                for one in missing
            )
            raise AirflowFailException(
                f"{told.get('says')}: {named}. Check: the runs of the ingest DAG; the next one makes them good"
            )
        return {"message": told.get("message")}
