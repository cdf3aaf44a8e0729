"""Tells OpenLineage of a run, by its Python client, which is an extra. Where to, that one's own
configuration says (OPENLINEAGE_URL).
"""

from __future__ import annotations

from typing import Any

from etl import __version__
from etl.report.describe import at
from etl.report.metrics import lineage_of
from etl.report.run_report import Report
from etl.settings.sections import Settings


def tell_lineage(report: Report, settings: Settings, namespace: str) -> None:
    """Send the event of what the run is at. Raises ImportError without the client, and whatever
    that raises.
    """
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import (
        InputDataset,
        Job,
        OutputDataset,
        Run,
        RunEvent,
        RunState,
    )
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.error_message_run import ErrorMessageRunFacet
    from openlineage.client.generated.output_statistics_output_dataset import (
        OutputStatisticsOutputDatasetFacet,
    )

    said = lineage_of(report, settings, namespace)
    failed: dict[str, Any] = (
        {"errorMessage": ErrorMessageRunFacet(said.error, "PYTHON")} if said.error else {}
    )
    version: dict[str, Any] = (
        {"version": DatasetVersionDatasetFacet(str(said.version))}
        if said.version is not None
        else {}
    )
    counted = said.records is not None
    rows: dict[str, Any] = (
        {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=said.records)}
        if counted
        else {}
    )
    moment = report.started_at_ms if report.finished_at_ms is None else report.finished_at_ms
    client = OpenLineageClient()
    client.emit(
        RunEvent(
            eventTime=str(at(moment)),
            eventType=RunState[said.event_type],
            run=Run(said.run_id, facets=failed),
            job=Job(said.namespace, said.job),
            inputs=[InputDataset(*topic) for topic in said.inputs],
            outputs=[OutputDataset(*said.output, facets=version, outputFacets=rows)]
            if said.output
            else [],
            producer=f"urn:offset-range-etl:{__version__}",
        )
    )
    client.close(timeout=_SENT_WITHIN_S)


_SENT_WITHIN_S = 10.0
"""How long a transport that sends behind our back may take at the end of each event."""
