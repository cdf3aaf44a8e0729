"""How are the report, page, metrics and lineage events of a run written?

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
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from etl import __version__
from etl.errors import EtlError, SettingsError, Stopped, follows_interrupt
from etl.report.describe import format_time
from etl.report.incident import as_text, snapshots_as_json
from etl.report.page import page_of
from etl.report.report_json import report_as_json
from etl.report.run_history import PastRun, outdated, past_run, run_ids
from etl.report.run_progress import Outcome, Process, Verb
from etl.report.run_report import Report
from etl.settings.load import Change, describe_overrides
from etl.settings.secrets import open_regular
from etl.settings.sections import Settings, name_in_files


def send_lineage(report: Report, settings: Settings, namespace: str) -> None:
    """Send the event of the run's present state.

    Raises ImportError without the client, and any error of the client.
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

    from etl.report.metrics import lineage_of

    event = lineage_of(report, settings, namespace)
    failed: dict[str, Any] = {}
    if event.error:
        failed["errorMessage"] = ErrorMessageRunFacet(event.error, "PYTHON")
    version: dict[str, Any] = {}
    if event.version is not None:
        version["version"] = DatasetVersionDatasetFacet(str(event.version))
    rows: dict[str, Any] = {}
    if event.rows is not None:
        rows["outputStatistics"] = OutputStatisticsOutputDatasetFacet(rowCount=event.rows)
    outputs = []
    if event.output:
        outputs.append(OutputDataset(*event.output, facets=version, outputFacets=rows))
    time_ms = report.finished_at_ms
    if time_ms is None:
        time_ms = report.started_at_ms
    client = OpenLineageClient()
    client.emit(
        RunEvent(
            eventTime=str(format_time(time_ms)),
            eventType=RunState[event.event_type],
            run=Run(event.run_id, facets=failed),
            job=Job(event.namespace, event.job),
            inputs=[InputDataset(*topic) for topic in event.inputs],
            outputs=outputs,
            producer=f"urn:offset-range-etl:{__version__}",
        )
    )
    client.close(timeout=_SENT_WITHIN_S)


_SENT_WITHIN_S = 10.0
"""Longest time that an asynchronous transport may take at the end of each event."""


HISTORY_RUNS = 30
HISTORY_MAX_BYTES = 64 << 20
"""Bytes of old reports that one page reads, without their snapshots. Reports of some thousand
partitions fit.
"""
_SAW = b'\n  "snapshot": '


def past_runs(
    folder: Path, ours_called: str, *, before: str, most: int = HISTORY_RUNS
) -> list[PastRun]:
    """Return the last runs before the run with the id `before`, oldest first, without unreadable
    reports.
    """
    found: list[PastRun] = []
    left = HISTORY_MAX_BYTES
    all_runs = run_ids(os.listdir(folder), ours_called)
    earlier = [run_id for run_id in all_runs if run_id < before]
    for run_id in reversed(earlier[-most:]):
        text = _without_snapshots(report_path(folder, ours_called, run_id), left)
        if text is None:
            continue
        left -= len(text)
        run = past_run(text.decode("utf-8", "replace"))
        if run:
            found.insert(0, run)
    return found


def _without_snapshots(path: Path, most: int) -> bytes | None:
    """Return the report up to its snapshot; None if it is empty, gone, or larger than `most`
    bytes.
    """
    # ValueError: the file is empty. A run that ends now may have removed it.
    with contextlib.suppress(OSError, ValueError):
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            size = content.find(_SAW)
            if size < 0:
                size = len(content)
            if size <= most:
                return content[:size]
    return None


def report_path(folder: Path, ours_called: str, run_id: str) -> Path:
    """Return the path of a run's report; `ours_called`: see `Settings.name_in_files`."""
    return folder / f"{ours_called}-{run_id}.json"


def newest_report(
    folder: Path, ours_called: str, run_id: str | None = None
) -> tuple[Path, Mapping[str, Any]]:
    """Return the report of the newest run, or of the named one, with its path.

    Raises SettingsError if it does not exist or cannot be read.
    """
    try:
        known = run_ids(os.listdir(folder), ours_called)
    except FileNotFoundError:
        known = []
    except OSError as error:
        raise SettingsError(
            f"The directory of reports cannot be read: {error.strerror}",
            key="report.path",
            path=folder,
            action="Check its permissions",
        ) from error
    if run_id is not None and run_id not in known:
        last = "there is none of this pipeline"
        if known:
            last = f"the newest is {known[-1]}"
        raise SettingsError(
            f"There is no report of a run {run_id!r}: {last}",
            key="--run",
            path=folder,
            action="Pass the id of a run whose report is in report.path",
        )
    if not known:
        raise SettingsError(
            "There is no report of this pipeline in the directory",
            key="report.path",
            path=folder,
            action="Check report.path, and the key pipeline. `etl run CONF` writes the first one",
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
            key="report.path",
            path=path,
            action="Check its permissions",
        ) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"The report is not valid JSON: {error}", path=path, action=action
        ) from error
    if not isinstance(found, dict):
        raise SettingsError("The report is not a JSON object", path=path, action=action)
    return found


def write_page(to: Path, report: Mapping[str, Any], folder: Path) -> None:
    """Write the page of a report with earlier runs of the directory, completely or not at all.

    Earlier pages are linked if the new page is in their directory. Raises OSError, and KeyError,
    TypeError, AttributeError or ValueError for an invalid report.
    """
    ours_called = name_in_files(report["group"], report["pipeline"])
    before = past_runs(folder, ours_called, before=report["run_id"])
    links: dict[str, str] = {}
    if to.parent.resolve() == folder.resolve():
        for run in before:
            page = report_path(folder, ours_called, run.run_id).with_suffix(".html")
            if page.exists():
                links[run.run_id] = f"{ours_called}-{run.run_id}.html"
    write_whole(to, page_of(report, before, lambda run: links.get(run.run_id)))


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Context manager: a new file that replaces `path` at the end; an error removes it.

    Others may write into the directory, so the new file has a random name and follows no link. It
    has the permissions of the umask, because monitors read it as another user. Raises OSError.
    """
    unfinished = path.with_name(f".{secrets.token_hex(8)}{UNFINISHED}")
    descriptor = os.open(unfinished, _CREATE_NEW, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


UNFINISHED = ".etl-tmp"
"""Ending of files that are being written."""
_CREATE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_metrics(report: Report, settings: Settings, *, now_ms: int) -> Path | None:
    """Write the metrics of a finished run atomically; return their path, None if not configured.

    If this run failed, the last success is taken from the earlier file, since reports may be gone.
    Raises OSError.
    """
    if settings.metrics_file is None:
        return None
    from etl.report.metrics import metrics_of

    path = Path(settings.metrics_file)
    before = _last_success_s(path, report)
    per_partition = settings.metrics.per_partition
    text = metrics_of(report, now_ms=now_ms, per_partition=per_partition, last_success_s=before)
    write_whole(path, text)
    return path


def _last_success_s(path: Path, report: Report) -> float | None:
    """Return this pipeline's last success in the file; None without one."""
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8")
    except (FileNotFoundError, ValueError):  # ValueError: a pipe, or invalid UTF-8
        return None
    from etl.report.metrics import last_success_of

    return last_success_of(text, report)


def this_process(conf: str | None, changes: Sequence[Change] = ()) -> Process:
    """Return host, conf, overrides and versions of this process."""
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "offset_range_etl": __version__,
    }
    for name in ("pyspark", "delta-spark", "deltalake"):
        versions[name.replace("-", "_")] = installed_version(name)
    conf_path = conf and os.path.abspath(conf)
    overrides = describe_overrides(changes)
    return Process(socket.gethostname(), os.getpid(), conf_path, versions, overrides)


def installed_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed.

    spark-submit provides Spark as a directory, and Delta as a jar.
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def kept_in(folder: str, report: Report, *, keep: int) -> Iterator[None]:
    """Context manager around a run: write its report before it, and at its end in any case.

    At the end the report is written as a page, too, and only the newest `keep` reports of the
    pipeline stay, with pages and logs. Time outside of all phases counts as `connect`.

    Raises SettingsError for an unwritable directory at the start; at the end that is an outcome of
    the run.
    """
    ours_called = name_in_files(report.group, report.pipeline)
    path = report_path(Path(folder), ours_called, report.run_id)
    _write(path, report)
    _send_lineage(report)
    try:
        with report.timed(Verb.CONNECT):
            yield
    except BaseException as error:
        report.failed(_reported_error(error))
        raise
    finally:
        report.finished(int(time.time() * 1000))
        _write_all(path, report)
        _prune(path, ours_called, keep)


def _write_all(path: Path, report: Report) -> None:
    """Write report, page, metrics and lineage; what failed is reported in the others."""
    is_kept = _write_last(path, report)
    outcome_count = len(report.outcomes)
    if is_kept:
        page = path.with_suffix(".html")
        advice = "`etl report CONF` creates it again from the report"
        with _reporting(Outcome.REPORT_NOT_WRITTEN, report, page, advice):
            write_page(page, report_as_json(report), path.parent)
    if report.settings is not None and report.settings.metrics_file is not None:
        metrics = report.settings.metrics_file
        advice = "the file has the metrics of an earlier run. Check metrics.path"
        with _reporting(Outcome.METRICS_NOT_WRITTEN, report, metrics, advice):
            write_metrics(report, report.settings, now_ms=report.finished_at_ms or 0)
    _send_lineage(report)
    if is_kept and len(report.outcomes) > outcome_count:
        _write_last(path, report)


def _send_lineage(report: Report) -> None:
    """Send lineage if configured. A failure is reported once and changes nothing else."""
    settings = report.settings
    if settings is None or settings.openlineage.namespace is None:
        return
    if any(outcome is Outcome.LINEAGE_NOT_SENT for outcome, _ in report.outcomes):
        return
    try:
        send_lineage(report, settings, settings.openlineage.namespace)
    except ImportError:
        report.add(
            Outcome.LINEAGE_NOT_SENT,
            "openlineage-python is not installed: pip install 'offset-range-etl[openlineage]'",
        )
    except Exception as error:  # any error of the client library or of the server
        reason = ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))
        report.add(
            Outcome.LINEAGE_NOT_SENT,
            f"{reason}. Check openlineage.namespace, and the client's own configuration",
        )


@contextlib.contextmanager
def _reporting(outcome: Outcome, report: Report, path: str | Path, advice: str) -> Iterator[None]:
    """Context manager: report a file that cannot be written as this outcome, since the run has its
    result.
    """
    try:
        yield
    except OSError as error:
        report.add(outcome, f"{error.strerror} ({path}); {advice}")
    except Exception as error:  # a bug in a page or in metrics must not fail a completed run
        report.add(
            outcome,
            f"a bug: {type(error).__name__}: {error} ({path}); please report it with the run's "
            "report",
        )


def _write_last(path: Path, report: Report) -> bool:
    """Write the last report; return True if it was written. The run's result is its exit code in
    any case.
    """
    try:
        _write(path, report)
        return True
    except SettingsError as error:
        report.add(
            Outcome.REPORT_NOT_WRITTEN,
            f"{error.message} ({path}); the file shows an unfinished run, or does not exist",
        )
        return False


def _prune(own: Path, ours_called: str, keep: int) -> None:
    """Remove old reports. This run's report stays, also if the clock went back and it is the
    oldest.
    """
    with contextlib.suppress(OSError):  # a file that cannot be removed does no harm
        names = os.listdir(own.parent)
        unfinished = [name for name in names if name.endswith(UNFINISHED)]
        abandoned = [name for name in unfinished if _is_abandoned(own.with_name(name))]
        for old in (*outdated(names, ours_called, keep), *abandoned):
            if not old.startswith(own.stem):
                with contextlib.suppress(OSError):
                    own.with_name(old).unlink()


def _is_abandoned(unfinished: Path) -> bool:
    """True for a file that a killed process left: nothing is written for an hour."""
    with contextlib.suppress(OSError):  # another run has removed it
        return unfinished.lstat().st_mtime < time.time() - 3600
    return False


def _reported_error(error: BaseException) -> EtlError:
    """Return the error for the report: any other exception is a bug, and must not look like
    success.
    """
    if isinstance(error, EtlError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped("Stopped")
    if follows_interrupt(error):
        return Stopped(f"Stopped ({type(error).__name__}: {error})")
    return EtlError(f"A bug: {type(error).__name__}: {error}")


def _write(path: Path, report: Report) -> None:
    try:
        write_whole(path, as_text(report_as_json(report), snapshots_as_json(report)))
    except OSError as error:
        message = f"The run's report cannot be written: {error.strerror}"
        raise SettingsError(
            message, key="report.path", path=path, action="Check the directory and its permissions"
        ) from error
