"""What does `etl run` do, with one conf or a folder of them?

Lives here: one run and its report; a run of each conf of a folder, one after the other. A failed
run does not stop the others, an interrupt does.
Not here: how the process of each conf is started (etl/cli/run_folder.py), the steps of a run
(etl/run/ingest.py).
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from etl.errors import EtlError, SessionLost, SettingsError, Stopped, Unreachable, worst_of
from etl.io.process import REQUEST_METER
from etl.io.report_files import kept_in, this_process
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger_side_documents import write_named_table
from etl.model.plans import Request, since
from etl.report.describe import counted
from etl.report.run_progress import Outcome, Verb
from etl.report.run_report import Report
from etl.run.discovery import Discovery
from etl.run.ingest import ingest
from etl.run.live_services import LiveServices
from etl.run.open_services import open_services, place_table
from etl.run.run_context import ALONE, RunContext
from etl.run.service_interfaces import Services, now_ms
from etl.run.spark_on_demand import Making
from etl.settings.conf_file import confs_in
from etl.settings.load import Change, load_settings
from etl.settings.sections import Settings
from etl.settings.table import untried

_log = logging.getLogger(__name__)
SESSIONS_MAX = 3
"""Number of ZooKeeper sessions that one run may use: it starts again after a lost session."""


def run(
    settings: Settings,
    run_context: RunContext = ALONE,
    *,
    conf: str | None = None,
    strict: bool = False,
    request: Request | None = None,
    around: Callable[[Services], Services] = lambda services: services,
) -> Report:
    """Run once with the settings of `conf` and the request. A report is written in any case.

    After a lost session nothing read before it is used: a new session takes the driver lock, and
    `reconcile` decides what is left. `around` may wrap the services (tests, demo).
    """
    return reported(
        settings,
        run_context,
        lambda services, report: ingest(around(services), services.settings, report),
        conf=conf,
        strict=strict,
        request=request,
        making=partial(_reject_before_creating_table, request=request),
    )


def _reject_before_creating_table(settings: Settings, *, request: Request | None) -> None:
    # Only a run that creates a table in a catalog needs the preview of its plans.
    from etl.commands.plans import reject_before_creating_table

    reject_before_creating_table(settings, request)


def reported(
    settings: Settings,
    run_context: RunContext,
    story: Callable[[LiveServices, Report], object],
    *,
    conf: str | None = None,
    strict: bool = False,
    request: Request | None = None,
    making: Making | None = None,
    takes_turns: bool = False,
) -> Report:
    """Run `story` as the driver of the pipeline, with a report.

    It is repeated with a new session after a lost one (see `run`). The location of a named table is
    looked up first; `making`: an unknown table is created. `takes_turns`: the story takes the
    driver lock itself, for each of its plans.
    """
    run_id = new_run_id()
    report = Report(
        run_id,
        settings.pipeline,
        settings.group.id,
        settings.table.called,
        now_ms(),
        this_process(conf, run_context.changes),
        strict=strict,
        settings=settings,
        request=request,
    )
    kept = kept_in(settings.report.path, report, keep=settings.report.keep)
    with (
        run_context.of_run(report),
        kept,
        _counted(report),
        run_context.progress(report.watch.doing),
    ):
        settings, named_table = place_table(
            settings, run_context, report.watch, name=run_id, making=making
        )
        report.table_path = settings.table.path
        report.settings = settings
        untested = untried(settings.table.path)
        if untested:
            _log.warning("table.path: %s; etl verify says whether each row is there once", untested)
        for left in reversed(range(SESSIONS_MAX)):
            try:
                opened = open_services(
                    settings, run_context, name=run_id, phases=report.watch, request=request
                )
                with (
                    opened as services,
                    translating_spark_errors(),
                    _measured(services, settings, report),
                ):
                    if takes_turns:
                        if named_table is not None:
                            with services.driving(run_id):
                                write_named_table(services.ledger, named_table)
                        story(services, report)
                        break
                    with services.driving(run_id):
                        if named_table is not None:
                            write_named_table(services.ledger, named_table)
                        story(services, report)
                        _follow_up(settings, services, report)
                break
            except SessionLost as error:
                if not left:
                    raise
                report.add(Outcome.SESSION_LOST, f"{error.message}: started again with a new one")
    return report


def _follow_up(settings: Settings, services: LiveServices, report: Report) -> None:
    """Mirror the offsets and compact small files, if the conf has one of them."""
    if settings.group.mirror_group is None and not settings.table.auto_compact_min_files:
        return
    from etl.run.after_commit import compact_when_due, mirror

    mirror(settings, services.zookeeper, report)
    compact_when_due(settings, services, report)


@contextlib.contextmanager
def _counted(report: Report) -> Iterator[None]:
    """Count this process's requests to brokers as the driver's."""
    before = REQUEST_METER.counts()
    try:
        yield
    finally:
        report.asked_by_driver = since(before, REQUEST_METER.counts())


@contextlib.contextmanager
def _measured(services: LiveServices, settings: Settings, report: Report) -> Iterator[None]:
    """Look up the age of the oldest unread record for the metrics, also after a failure."""
    try:
        yield
    except Unreachable:
        raise
    except EtlError:
        _ask_oldest(services, settings, report)
        raise
    _ask_oldest(services, settings, report)


def _ask_oldest(services: LiveServices, settings: Settings, report: Report) -> None:
    if not settings.metrics_file:
        return
    unread = report.looks.unread()
    if unread is None:
        return
    # An error leaves this metric out; the result of the run stays.
    with report.timed(Verb.CLOSE), contextlib.suppress(EtlError):
        discovery = Discovery(settings, services.zookeeper)
        report.oldest = discovery.oldest_unread(*unread)


def new_run_id() -> str:
    """Return the id of a new run: the current time in UTC and a random part."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class ConfRun:
    """The result of one conf."""

    conf: str
    report: Mapping[str, Any] | None = None
    """As printed by `etl run --json`; None without one."""
    error: EtlError | None = None

    @property
    def exit_code(self) -> int:
        """Return the exit code of a run of this conf alone."""
        return self.error.exit_code if self.error else 0

    def as_json(self) -> dict[str, Any]:
        """Return its part of the document of `etl run FOLDER --json`."""
        error = self.error.as_json() if self.error else None
        return {
            "conf": self.conf,
            "exit_code": self.exit_code,
            "report": self.report,
            "error": error,
        }


@dataclass(frozen=True, slots=True)
class FolderRun:
    """The results of all confs, sorted by name."""

    folder: str
    runs: tuple[ConfRun, ...]

    @property
    def worst(self) -> EtlError | None:
        """Return the error of the command; None if all runs succeeded.

        An interrupt counts before all others.
        """
        failed = [run for run in self.runs if run.error]
        errors = [run.error for run in failed if run.error]
        stopped = [error for error in errors if isinstance(error, Stopped)]
        worst = stopped[0] if stopped else worst_of(errors)
        if worst is None:
            return None
        conf = next(run.conf for run in failed if run.error is worst)
        message = (
            f"{len(failed)} of {counted(len(self.runs), 'pipeline')} failed, the worst by {conf}: "
            f"{worst.message}"
        )
        return type(worst)(message, action=worst.action, **worst.where)

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl run FOLDER --json`."""
        return {
            "folder": self.folder,
            "exit_code": self.worst.exit_code if self.worst else 0,
            "runs": [run.as_json() for run in self.runs],
        }


def run_each(
    folder: Path,
    start: Callable[[Path], ConfRun],
    show: Callable[[ConfRun], object],
    changes: Sequence[Change] = (),
) -> FolderRun:
    """Run each conf of the directory.

    `start` runs one and raises KeyboardInterrupt if it was interrupted; `show` is called with each
    result. Raises SettingsError if the directory has no conf.
    """
    confs = confs_in(folder)
    rejected = _same_pipeline(confs, changes)
    runs: list[ConfRun] = []
    for conf in confs:
        if conf in rejected:
            result = ConfRun(str(conf), error=rejected[conf])
        else:
            try:
                result = start(conf)
            except KeyboardInterrupt:
                stopped = Stopped(
                    "Stopped; nothing is lost, the next run continues from what is stored"
                )
                result = ConfRun(str(conf), error=stopped)
        runs.append(result)
        show(result)
        if isinstance(result.error, Stopped):
            break
    for conf in confs[len(runs) :]:
        runs.append(ConfRun(str(conf), error=Stopped("Not started: the runs were stopped")))
    return FolderRun(str(folder), tuple(runs))


def _same_pipeline(confs: Sequence[Path], changes: Sequence[Change]) -> dict[Path, SettingsError]:
    """Return an error for each conf that shares its pipeline with another, such as a copy.

    Each of them would continue where the other ended.
    """
    by_name: dict[tuple[str, str, str], list[Path]] = {}
    for conf in confs:
        # The run of an invalid conf reports its error.
        with contextlib.suppress(SettingsError):
            found = load_settings(conf, changes)
            pipeline = (found.zookeeper.connect, found.group.id, found.pipeline)
            by_name.setdefault(pipeline, []).append(conf)
    errors = {}
    for (_, group, name), same in by_name.items():
        if len(same) == 1:
            continue
        for conf in same:
            message = f"These confs are one pipeline, {group}/{name}: {', '.join(map(str, same))}"
            action = "Use one conf per pipeline of the folder; none of these was run"
            errors[conf] = SettingsError(message, key="pipeline", path=conf, action=action)
    return errors
