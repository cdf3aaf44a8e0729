"""The interval that an Airflow run is for: from its context to values, and a refusal that Airflow
shows and does not try again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.airflow.sdk import AirflowFailException
from etl.decide.run_requests import TimeInterval, interval_of_run
from etl.errors import SettingsError


def interval_of(context: Mapping[str, Any]) -> TimeInterval:
    """As `interval_of_run`. Raises AirflowFailException with what it refuses."""
    params = context.get("params") or {}
    try:
        return interval_of_run(
            params.get("from_time"),
            params.get("until_time"),
            (context.get("data_interval_start"), context.get("data_interval_end")),
            context.get("logical_date"),
        )
    except SettingsError as error:
        raise AirflowFailException(str(error)) from error
