"""Where do reports, pages, metrics and lineage events of a run go?

Reports and their pages go to the report directory, metrics to a file for Prometheus' node exporter
(textfile collector), lineage to OpenLineage by its Python client (an extra), configured by
OPENLINEAGE_URL.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import mmap
import os
import platform
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etl import __version__
from etl.errors import EtlError, SettingsError, Stopped
from etl.report.describe import at
from etl.report.metrics import LAST_SUCCESS, PREFIX, format_labels, lineage_of, metrics_of
from etl.report.page import PastRun, outdated, page_of, past_run, run_ids
from etl.report.plan_json import as_text
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Process, Verb
from etl.settings.load import Change, describe_overrides
from etl.settings.sections import Settings, name_in_files


def send_lineage(report: Report, settings: Settings, namespace: str) -> None:
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

    event = lineage_of(report, settings, namespace)
    failed: dict[str, Any]
    if event.error:
        failed = {"errorMessage": ErrorMessageRunFacet(event.error, "PYTHON")}
    else:
        failed = {}
    version: dict[str, Any]
    if event.version is not None:
        version = {"version": DatasetVersionDatasetFacet(str(event.version))}
    else:
        version = {}
    counted = event.records is not None
    rows: dict[str, Any]
    if counted:
        rows = {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=event.records)}
    else:
        rows = {}
    moment = report.started_at_ms if report.finished_at_ms is None else report.finished_at_ms
    client = OpenLineageClient()
    client.emit(
        RunEvent(
            eventTime=str(at(moment)),
            eventType=RunState[event.event_type],
            run=Run(event.run_id, facets=failed),
            job=Job(event.namespace, event.job),
            inputs=[InputDataset(*topic) for topic in event.inputs],
            outputs=[OutputDataset(*event.output, facets=version, outputFacets=rows)]
            if event.output
            else [],
            producer=f"urn:offset-range-etl:{__version__}",
        )
    )
    client.close(timeout=_SENT_WITHIN_S)


_SENT_WITHIN_S = 10.0
"""Longest time that an asynchronous transport may take at the end of each event."""


HISTORY_RUNS = 30
HISTORY_MAX_BYTES = 64 << 20
"""How much of old reports one page reads; what each run saw is not read. Reports of some thousand
partitions fit.
"""
_SAW = b'\n  "snapshot": '


def past_runs(
    folder: Path, ours_called: str, *, before: str, most: int = HISTORY_RUNS
) -> list[PastRun]:
    """The last runs before the one that is called `before`, oldest first. A report that cannot be
    read is left out.
    """
    found, left = list[PastRun](), HISTORY_MAX_BYTES
    for run_id in reversed(
        [one for one in run_ids(os.listdir(folder), ours_called) if one < before][-most:]
    ):
        text = _without_snapshots(report_path(folder, ours_called, run_id), left)
        if text is None:
            continue
        left -= len(text)
        run = past_run(text.decode("utf-8", "replace"))
        if run:
            found.insert(0, run)
    return found


def _without_snapshots(path: Path, most: int) -> bytes | None:
    """The report down to what the run saw; None where it is empty, gone, or takes more bytes than
    that.
    """
    with contextlib.suppress(
        OSError, ValueError
    ):  # ValueError: nothing is in it; a run that ends now may have removed it
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            end = content.find(_SAW)
            size = len(content) if end < 0 else end
            return content[:size] if size <= most else None
    return None


def report_path(folder: Path, ours_called: str, run_id: str) -> Path:
    """Return the path of a run's report; `ours_called`: see `Settings.name_in_files`."""
    return folder / f"{ours_called}-{run_id}.json"


def newest_report(
    folder: Path, ours_called: str, run_id: str | None = None
) -> tuple[Path, Mapping[str, Any]]:
    """The report of the newest run, or of that one, with its path. Raises SettingsError where there
    is none, or none that can be read.
    """
    try:
        known = run_ids(os.listdir(folder), ours_called)
    except FileNotFoundError:
        known = []
    except OSError as error:
        message = f"The folder of reports cannot be read: {error.strerror}"
        raise SettingsError(
            message, key="report.path", path=folder, action="Check its permissions"
        ) from error
    if run_id is not None and run_id not in known:
        last = f"the newest is {known[-1]}" if known else "there is none of this pipeline"
        raise SettingsError(
            f"There is no report of a run {run_id!r}: {last}",
            key="report.path",
            path=folder,
            action="Check the name of the run",
        )
    if not known:
        action = "Check report.path, and the key pipeline; `etl run CONF` leaves the first one"
        raise SettingsError(
            "No run of this pipeline has left a report here",
            key="report.path",
            path=folder,
            action=action,
        )
    path = report_path(folder, ours_called, run_id or known[-1])
    return path, _read(path)


def _read(path: Path) -> Mapping[str, Any]:
    action = "Check who changed the file; `etl report CONF --run RUN` shows another run"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"The report cannot be read: {error.strerror}",
            path=path,
            action="Check its permissions",
        ) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"The report is no JSON: {error}", path=path, action=action) from error
    if not isinstance(found, dict):
        raise SettingsError("The report is no report of a run", path=path, action=action)
    return found


def write_page(to: Path, report: Mapping[str, Any], folder: Path) -> None:
    """Write the page of a report with earlier runs of the directory, linked if the new page is
    beside theirs; as a whole or not at all. Raises OSError, and KeyError, TypeError, AttributeError
    or ValueError for an invalid report.
    """
    ours_called = name_in_files(report["group"], report["pipeline"])
    before = past_runs(folder, ours_called, before=report["run_id"])
    is_same_pipeline = to.parent.resolve() == folder.resolve()
    pages = {
        run.run_id
        for run in before
        if is_same_pipeline
        and report_path(folder, ours_called, run.run_id).with_suffix(".html").exists()
    }
    text = page_of(
        report,
        before,
        lambda run: f"{ours_called}-{run.run_id}.html" if run.run_id in pages else None,
    )
    write_whole(to, text)


def write_whole(path: Path, text: str) -> None:
    """The file is the old one until it is the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):  # there no more, as it should be
            unfinished.unlink()


def write_metrics(report: Report, settings: Settings, *, now_ms: int) -> Path | None:
    """Write the metrics of a finished run; return their path, None if not configured. The file is
    replaced as a whole. Raises OSError. The last success is taken from the earlier file if this run
    had none, since reports may be gone.
    """
    if settings.metrics_file is None:
        return None
    path = Path(settings.metrics_file)
    before = _last_success_s(path, report)
    write_whole(
        path,
        metrics_of(
            report,
            now_ms=now_ms,
            per_partition=settings.metrics.per_partition,
            last_success_s=before,
        ),
    )
    return path


def _last_success_s(path: Path, report: Report) -> float | None:
    """Return this pipeline's last success in the file; None without one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    labels = format_labels((("pipeline", report.pipeline), ("group", report.group)))
    found = re.search(
        rf"^{re.escape(PREFIX + LAST_SUCCESS + labels)} (\d+(?:\.\d+)?)$", text, re.MULTILINE
    )
    return float(found[1]) if found else None


def this_process(conf: str | None, changes: Sequence[Change] = ()) -> Process:
    """Return host, conf, overrides and versions of this process."""
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "offset_range_etl": __version__,
    }
    versions |= {
        name.replace("-", "_"): installed_version(name)
        for name in ("pyspark", "delta-spark", "deltalake")
    }
    return Process(
        socket.gethostname(),
        os.getpid(),
        conf and os.path.abspath(conf),
        versions,
        describe_overrides(changes),
    )


def installed_version(package: str) -> str | None:
    """The version of this package; None for one that is not installed: spark-submit brings Spark as
    a folder, and Delta as a jar.
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def kept_in(folder: str, report: Report, *, keep: int) -> Iterator[None]:
    """The run happens inside: its report is written before it and at its end, however it ends. Time
    outside of all verbs is `connect`.

    At the end the report is written as a page, too. Afterwards the newest `keep` reports of the
    pipeline are left, with pages and logs.

    Raises SettingsError for a folder that cannot be written, before anything begins; at the end
    that is an outcome of the run.
    """
    ours_called = name_in_files(report.group, report.pipeline)
    path = report_path(Path(folder), ours_called, report.run_id)
    _write(path, report)
    _send_lineage(report)
    try:
        with report.timed(Verb.CONNECT):
            yield
    except BaseException as error:
        report.failed(_as_told(error))
        raise
    finally:
        report.finished(int(time.time() * 1000))
        _write_all(path, report)
        _prune(path, ours_called, keep)


def _write_all(path: Path, report: Report) -> None:
    """Write report, page, metrics and lineage; what failed is reported in the others."""
    is_kept, outcome_count = _write_last(path, report), len(report.outcomes)
    if is_kept:
        with _told_as(
            Outcome.REPORT_NOT_WRITTEN,
            report,
            path.with_suffix(".html"),
            "`etl report CONF` makes it again from the report",
        ):
            write_page(path.with_suffix(".html"), report.as_json(), path.parent)
    if report.settings is not None and report.settings.metrics_file is not None:
        with _told_as(
            Outcome.METRICS_NOT_WRITTEN,
            report,
            report.settings.metrics_file,
            "what is there is of an earlier run; metrics.path",
        ):
            write_metrics(report, report.settings, now_ms=report.finished_at_ms or 0)
    _send_lineage(report)
    if is_kept and len(report.outcomes) > outcome_count:
        _write_last(path, report)


def _send_lineage(report: Report) -> None:
    """Send lineage if configured. A failure is reported once and changes nothing else."""
    settings = report.settings
    if (
        settings is None
        or settings.openlineage.namespace is None
        or any(outcome is Outcome.LINEAGE_NOT_SENT for outcome, _ in report.outcomes)
    ):
        return
    try:
        send_lineage(report, settings, settings.openlineage.namespace)
    except ImportError:
        report.add(
            Outcome.LINEAGE_NOT_SENT,
            "openlineage-python is not installed: pip install 'offset-range-etl[openlineage]'",
        )
    except Exception as error:  # of a client that is not ours, or of the server that it was told
        reason = ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))
        report.add(
            Outcome.LINEAGE_NOT_SENT,
            f"{reason}; openlineage.namespace, and the client's own configuration",
        )


@contextlib.contextmanager
def _told_as(outcome: Outcome, report: Report, path: str | Path, what_then: str) -> Iterator[None]:
    """Context manager: what cannot be written inside becomes this outcome, since the run has its
    result.
    """
    try:
        yield
    except OSError as error:
        report.add(outcome, f"{error.strerror} ({path}); {what_then}")
    except (
        Exception
    ) as error:  # a bug of ours in what is told of a run must not make one fail that is done
        report.add(
            outcome,
            f"a bug: {type(error).__name__}: {error} ({path}); please report it with the run's report",
        )


def _write_last(path: Path, report: Report) -> bool:
    """Write the last report; return whether it was written. The run's result is its exit code
    anyway.
    """
    try:
        _write(path, report)
        return True
    except SettingsError as error:
        report.add(
            Outcome.REPORT_NOT_WRITTEN,
            f"{error.message} ({path}); what is there says that the run is still going on, or nothing",
        )
        return False


def _prune(own: Path, ours_called: str, keep: int) -> None:
    """A clock that went back makes this run's report the oldest: it stays."""
    with contextlib.suppress(OSError):  # what cannot be removed is in nobody's way
        for old in outdated(os.listdir(own.parent), ours_called, keep):
            if not old.startswith(own.stem):
                with contextlib.suppress(OSError):
                    own.with_name(old).unlink()


def _as_told(error: BaseException) -> EtlError:
    """Return the report's error: an exception that is not ours is a bug, and must not look like
    success.
    """
    if isinstance(error, EtlError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped("Stopped")
    return EtlError(f"A bug: {type(error).__name__}: {error}")


def _write(path: Path, report: Report) -> None:
    try:
        write_whole(path, as_text(report.as_json(), report.snapshots_as_json()))
    except OSError as error:
        message = f"The run's report cannot be written: {error.strerror}"
        raise SettingsError(
            message, key="report.path", path=path, action="Check the folder and its permissions"
        ) from error
