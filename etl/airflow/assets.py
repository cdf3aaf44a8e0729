"""The table as an asset of Airflow: what waits for it is told of each commit, with the run's report
beside the event.

Airflow tells an event at least once: a task that is cleared and runs again tells it again, with the
same run key. Who must act once remembers `run_key`, or `plan.number`, of the extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from etl.airflow.pipeline import Pipeline
from etl.airflow.sdk import Asset


def table_asset(pipeline: Pipeline) -> Asset:
    """The asset of the pipeline's table. Its name is its URI, so that two pipelines of one table
    have one asset.
    """
    return Asset(pipeline.table)


def tell_assets(
    context: Mapping[str, Any], outlets: Iterable[Any], report: Mapping[str, Any]
) -> None:
    """The report goes with the events of these outlets."""
    for asset in outlets or ():
        context["outlet_events"][asset].extra = dict(report)
