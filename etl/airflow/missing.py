"""The operator that looks whether the table lacks intervals. That Airflow has a run for an interval
does not say that it was loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from etl.airflow.interval import interval_of
from etl.airflow.outcome import refuse_what_is_not_done
from etl.airflow.pipeline import Pipeline
from etl.airflow.sdk import AirflowFailException, BaseOperator
from etl.airflow.toolkit import Toolkit, ask
from etl.decide.run_requests import length, looked_back_at
from etl.errors import SettingsError

BEHIND = timedelta(hours=3)
"""An hour whose run waits for late records, is tried again, and has a large load to do."""
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
        whole = looked_back_at(
            interval_of(context).end,
            behind=self._behind,
            back=self._back,
            every=length(self._every),
        )
        words = [
            "--from-time",
            whole.start.isoformat(),
            "--until-time",
            whole.end.isoformat(),
            "--every",
            self._every,
        ]
        try:
            code, document = ask(
                self._toolkit,
                ["intervals", self._pipeline.conf, *words, "--json"],
                within_s=_WITHIN_S,
            )
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error
        refuse_what_is_not_done(code, document)
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
        return {"says": told.get("says")}
