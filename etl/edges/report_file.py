"""A run's report as a file, and what the process that runs can say of itself."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from etl import __version__
from etl.errors import EtlError, SettingsError, Stopped
from etl.report.incident import as_text
from etl.report.old_reports import outdated
from etl.report.phases import Verb
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Process


def this_process(conf: str | None) -> Process:
    """Where this process runs, and the versions of what it runs."""
    versions: dict[str, str | None] = {"python": platform.python_version(), "offset_range_etl": __version__}
    versions |= {name.replace("-", "_"): installed_version(name) for name in ("pyspark", "delta-spark", "deltalake")}
    return Process(socket.gethostname(), os.getpid(), conf and os.path.abspath(conf), versions)


def installed_version(package: str) -> str | None:
    """The version of this package; None for one that is not installed: spark-submit brings Spark as a folder, and Delta as a jar."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def kept_in(folder: str, report: Report, *, keep: int) -> Iterator[None]:
    """The run happens inside: its report is written before it and at its end, however it ends. Time outside of all verbs is `connect`.

    Afterwards the newest `keep` reports of the pipeline are left, with their logs.

    Raises SettingsError for a folder that cannot be written, before anything begins; at the end that is an outcome of the run.
    """
    path = Path(folder) / f"{report.pipeline}-{report.run_id}.json"
    _write(path, report)
    try:
        with report.timed(Verb.CONNECT):
            yield
    except BaseException as error:
        report.failed(_as_told(error))
        raise
    finally:
        report.finished(int(time.time() * 1000))
        _write_last(path, report)
        _prune(path, report.pipeline, keep)


def _write_last(path: Path, report: Report) -> None:
    """What came of the run is its exit code, whether its report can be written or not: it is told with the others."""
    try:
        _write(path, report)
    except SettingsError as error:
        report.add(Outcome.NOT_KEPT, f"{error.what} ({path}); what is there says that the run is still going on, or nothing")


def _prune(own: Path, pipeline: str, keep: int) -> None:
    """A clock that went back makes this run's report the oldest: it stays."""
    with contextlib.suppress(OSError):  # what cannot be removed is in nobody's way
        for name in outdated(os.listdir(own.parent), pipeline, keep):
            if not name.startswith(own.stem):
                with contextlib.suppress(OSError):
                    own.with_name(name).unlink()


def _as_told(error: BaseException) -> EtlError:
    """What the report says of it: whatever is not an error of ours is a bug of ours, and a report must not say that all is well."""
    if isinstance(error, EtlError):
        return error
    return Stopped("stopped") if isinstance(error, KeyboardInterrupt) else EtlError(f"a bug: {type(error).__name__}: {error}")


def _write(path: Path, report: Report) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        try:
            unfinished.write_text(as_text(report.as_json(), report.saw_as_json()), encoding="utf-8")
            unfinished.replace(path)
        finally:
            with contextlib.suppress(OSError):  # there no more, as it should be
                unfinished.unlink()
    except OSError as error:
        what = f"the run's report cannot be written: {error.strerror}"
        raise SettingsError(what, key="report.path", path=path, check="the folder and its permissions") from error
