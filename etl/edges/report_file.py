"""A run's report as a file, and what the process that runs can say of itself."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from etl import __version__
from etl.edges.lineage import tell_lineage
from etl.edges.metrics_file import write_metrics
from etl.edges.report_folder import report_path, write_page, write_whole
from etl.errors import EtlError, SettingsError, Stopped
from etl.report.page import outdated
from etl.report.plan_json import as_text
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Process, Verb
from etl.settings.load import Change, told_changes
from etl.settings.sections import name_in_files


def this_process(conf: str | None, changes: Sequence[Change] = ()) -> Process:
    """Where this process runs, by which conf and what was changed of it, and the versions of what
    it runs.
    """
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
        told_changes(changes),
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
    _tell_lineage(report)
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
    """Report, page, metrics and lineage; what could not be written is told in those that can."""
    is_kept, told = _write_last(path, report), len(report.outcomes)
    if is_kept:
        with _told_as(
            Outcome.NO_PAGE,
            report,
            path.with_suffix(".html"),
            "`etl report CONF` makes it again from the report",
        ):
            write_page(path.with_suffix(".html"), report.as_json(), path.parent)
    if report.settings is not None and report.settings.metrics_file is not None:
        with _told_as(
            Outcome.NO_METRICS,
            report,
            report.settings.metrics_file,
            "what is there is of an earlier run; metrics_path",
        ):
            write_metrics(report, report.settings, now_ms=report.finished_at_ms or 0)
    _tell_lineage(report)
    if is_kept and len(report.outcomes) > told:
        _write_last(path, report)


def _tell_lineage(report: Report) -> None:
    """Where the conf wants it. Whatever comes of it is told once, and changes nothing else: it is
    somebody else's server.
    """
    settings = report.settings
    if (
        settings is None
        or settings.lineage_namespace is None
        or any(outcome is Outcome.NO_LINEAGE for outcome, _ in report.outcomes)
    ):
        return
    try:
        tell_lineage(report, settings, settings.lineage_namespace)
    except ImportError:
        report.add(
            Outcome.NO_LINEAGE,
            "openlineage-python is not installed: pip install 'offset-range-etl[openlineage]'",
        )
    except Exception as error:  # of a client that is not ours, or of the server that it was told
        said = ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))
        report.add(
            Outcome.NO_LINEAGE, f"{said}; lineage_namespace, and the client's own configuration"
        )


@contextlib.contextmanager
def _told_as(outcome: Outcome, report: Report, path: str | Path, what_then: str) -> Iterator[None]:
    """What cannot be written inside is told as this outcome: the run has come to what it came to."""
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
    """Whether the report is written. What came of the run is its exit code all the same: it is told
    with the others.
    """
    try:
        _write(path, report)
        return True
    except SettingsError as error:
        report.add(
            Outcome.NOT_KEPT,
            f"{error.what} ({path}); what is there says that the run is still going on, or nothing",
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
    """What the report says of it: whatever is not an error of ours is a bug of ours, and a report
    must not say that all is well.
    """
    if isinstance(error, EtlError):
        return error
    return (
        Stopped("stopped")
        if isinstance(error, KeyboardInterrupt)
        else EtlError(f"a bug: {type(error).__name__}: {error}")
    )


def _write(path: Path, report: Report) -> None:
    try:
        write_whole(path, as_text(report.as_json(), report.saw_as_json()))
    except OSError as error:
        what = f"the run's report cannot be written: {error.strerror}"
        raise SettingsError(
            what, key="report.path", path=path, check="the folder and its permissions"
        ) from error
