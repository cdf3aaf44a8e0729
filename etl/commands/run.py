"""What does `etl run` do, with one conf or a folder of them?

One run and its report; or a run of each conf of a folder, one after the other. A failed run does
not stop the others, an interrupt does. How each is started is the caller's (etl/cli/run_folder.py).
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

from etl.commands.lag import ask_oldest
from etl.commands.plans import reject_before_creating_table
from etl.errors import EtlError, SessionLost, SettingsError, Stopped, Unreachable, worst_of
from etl.io.process import REQUEST_METER
from etl.io.report_files import kept_in, this_process
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger_records import write_named_table
from etl.model.plans import Request, since
from etl.report.describe import counted
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb
from etl.run.ingest import ingest
from etl.run.live import LiveServices
from etl.run.services import ALONE, RunContext, Services, now_ms
from etl.run.shell import compact_when_due, mirror, open_services, place_table
from etl.run.spark import Making
from etl.settings.conf_file import confs_in
from etl.settings.load import Change, load_settings
from etl.settings.sections import Settings
from etl.settings.table import untried

_log = logging.getLogger(__name__)
SESSIONS_MAX = 3
"""How often one run begins anew after its ZooKeeper session ended under it."""


def run(
    settings: Settings,
    run_context: RunContext = ALONE,
    *,
    conf: str | None = None,
    strict: bool = False,
    request: Request | None = None,
    around: Callable[[Services], Services] = lambda services: services,
) -> Report:
    """Run once with the settings of `conf` and the request; a report is written however it ends.
    `around` may wrap the services (tests, demo).

    After a lost session nothing read before it is used: a new session takes the driver lock, and
    `reconcile` decides what is left.
    """
    return reported(
        settings,
        run_context,
        lambda services, report: ingest(around(services), services.settings, report),
        conf=conf,
        strict=strict,
        request=request,
        making=partial(reject_before_creating_table, request=request),
    )


def reported(
    settings: Settings,
    run_context: RunContext,
    story: Callable[[LiveServices, Report], object],
    *,
    conf: str | None = None,
    strict: bool = False,
    request: Request | None = None,
    making: Making | None = None,
) -> Report:
    """Run a story as the pipeline's one driver, with a report; repeated with a new session after a
    lost one. See `run`. A named table's location is resolved first; `making`: an unknown table is
    created.
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
        report.table_path, report.settings = settings.table.path, settings
        if untested := untried(settings.table.path):
            _log.warning("table.path: %s; etl verify says whether each row is there once", untested)
        for left in reversed(range(SESSIONS_MAX)):
            try:
                opened = open_services(
                    settings, run_context, name=run_id, phases=report.watch, request=request
                )
                with (
                    opened as services,
                    services.driving(run_id),
                    translating_spark_errors(),
                    _measured(services, settings, report),
                ):
                    if named_table is not None:
                        write_named_table(services.ledger, named_table)
                    story(services, report)
                    mirror(settings, services.zookeeper, report)
                    compact_when_due(settings, services, report)
                break
            except SessionLost as error:
                if not left:
                    raise
                report.add(Outcome.SESSION_LOST, f"{error.message}: begun anew with a new one")
    return report


@contextlib.contextmanager
def _counted(report: Report) -> Iterator[None]:
    """Count this process's requests to brokers as the driver's."""
    before = REQUEST_METER.told()
    try:
        yield
    finally:
        report.asked_by_driver = since(before, REQUEST_METER.told())


@contextlib.contextmanager
def _measured(services: LiveServices, settings: Settings, report: Report) -> Iterator[None]:
    """For the metrics, ask the brokers for the age of the first unread record, also after a
    failure.
    """
    try:
        yield
    except Unreachable:
        raise
    except EtlError:
        _ask_oldest(services, settings, report)
        raise
    _ask_oldest(services, settings, report)


def _ask_oldest(services: LiveServices, settings: Settings, report: Report) -> None:
    left = report.looks.unread() if settings.metrics_file else None
    if left is None:
        return
    with (
        report.timed(Verb.CLOSE),
        contextlib.suppress(EtlError),
    ):  # then there is no such metric; what the run came to stays
        report.oldest = ask_oldest(services, *left, settings)


def new_run_id() -> str:
    """Names a run: its start in UTC and something random."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


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
        """Its part of the document."""
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
        """Return the error that the whole ends with; None if all succeeded. An interrupt counts for
        all.
        """
        failed = {run.conf: run.error for run in self.runs if run.error}
        stopped = next((error for error in failed.values() if isinstance(error, Stopped)), None)
        worst = stopped or worst_of(failed.values())
        if worst is None:
            return None
        message = f"{len(failed)} of {counted(len(self.runs), 'pipeline')} failed, the worst by {_name(failed, worst)}: {worst.message}"
        return type(worst)(message, action=worst.action, **worst.where)

    def as_json(self) -> dict[str, Any]:
        """The document of `etl run FOLDER --json`."""
        return {
            "folder": self.folder,
            "exit_code": self.worst.exit_code if self.worst else 0,
            "runs": [run.as_json() for run in self.runs],
        }


def _name(failed: Mapping[str, EtlError], worst: EtlError) -> str:
    return next(conf for conf, error in failed.items() if error is worst)


def run_each(
    folder: Path,
    start: Callable[[Path], ConfRun],
    show: Callable[[ConfRun], object],
    changes: Sequence[Change] = (),
) -> FolderRun:
    """Run each conf of the directory. `start` runs one and raises KeyboardInterrupt if it was
    interrupted; `show` is called with each result. Raises SettingsError without a conf.
    """
    confs = confs_in(folder)
    twice = _same_pipeline(confs, changes)
    runs: list[ConfRun] = []
    for conf in confs:
        try:
            runs.append(ConfRun(str(conf), error=twice[conf]) if conf in twice else start(conf))
        except KeyboardInterrupt:
            runs.append(
                ConfRun(
                    str(conf),
                    error=Stopped(
                        "Stopped; nothing is lost, the next run goes on from what is stored"
                    ),
                )
            )
        show(runs[-1])
        if isinstance(runs[-1].error, Stopped):
            break
    runs += [
        ConfRun(str(left), error=Stopped("Not begun: the runs were stopped"))
        for left in confs[len(runs) :]
    ]
    return FolderRun(str(folder), tuple(runs))


def _same_pipeline(confs: Sequence[Path], changes: Sequence[Change]) -> dict[Path, SettingsError]:
    """Return confs of the same pipeline, such as an unchanged copy: each would continue where the
    other ended.
    """
    by_name: dict[tuple[str, str, str], list[Path]] = {}
    for conf in confs:
        with contextlib.suppress(SettingsError):  # told when it is run
            found = load_settings(conf, changes)
            by_name.setdefault(
                (found.zookeeper.connect, found.group.id, found.pipeline), []
            ).append(conf)
    refused = {}
    for (_, group, name), same in by_name.items():
        for conf in same if len(same) > 1 else ():
            message = f"These confs are one pipeline, {group}/{name}: {', '.join(map(str, same))}"
            action = "Use one conf per pipeline of the folder; none of these was run"
            refused[conf] = SettingsError(message, key="pipeline", path=conf, action=action)
    return refused
