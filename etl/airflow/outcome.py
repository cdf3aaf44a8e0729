"""What a command came to, as Airflow hears it: done, try again, or fail at once; always with the
command's own sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.airflow.brief import told_of
from etl.airflow.sdk import AirflowException, AirflowFailException
from etl.decide.run_requests import Verdict, verdict_of


def refuse_what_is_not_done(exit_code: int | None, document: Mapping[str, Any] | None) -> None:
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
