"""What is said when a task has failed for good: one value with everything that a person on call
asks first.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from etl.airflow.sdk import AirflowFailException
from etl.errors import SettingsError

logger = logging.getLogger(__name__)

Tell = Callable[[Mapping[str, Any]], None]


def failure_of(context: Mapping[str, Any]) -> dict[str, Any]:
    """What failed, for which interval, why, in which try, and where its log is. What the context
    does not have is left out.
    """
    from etl.airflow.interval import interval_of

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
    """For Airflow's `on_failure_callback`: hands the failure to `tell`; by default it is a line of
    JSON in the task's log, as an error.
    """

    def callback(context: Mapping[str, Any]) -> None:
        (tell or _log)(failure_of(context))

    return callback


def tell_from_environment(variables: Mapping[str, str] = os.environ) -> Tell | None:
    """Who is told: the function that ETL_ON_FAILURE names as `package.module:function`; None where
    it is not set. Raises SettingsError.
    """
    named = variables.get("ETL_ON_FAILURE")
    if not named:
        return None
    module, _, name = named.partition(":")
    try:
        found: Tell = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        check = "its form, package.module:function, and that Airflow can import it"
        raise SettingsError(f"ETL_ON_FAILURE names no function: {named}", check=check) from error
    return found


def _log(failure: Mapping[str, Any]) -> None:
    logger.error("failed: %s", json.dumps(failure, default=str))
