"""What does `etl run` do, with one conf or a folder of them?

`etl run`: one run, and its report.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import secrets
from collections.abc import Callable, Iterator
from functools import partial

from etl.commands.lag import ask_oldest
from etl.commands.preview import refuse_before_making
from etl.errors import EtlError, SessionLost, Unreachable
from etl.io.process import REQUEST_METER
from etl.io.report_files import kept_in, this_process
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger_records import write_named_table
from etl.model.plans import Request, since
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb
from etl.run.ingest import ingest
from etl.run.live import LiveServices
from etl.run.services import ALONE, RunContext, Services, now_ms
from etl.run.shell import compact_when_due, mirror, open_world, place_table
from etl.run.spark import Making
from etl.settings.load import starting_by
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
    around: Callable[[Services], Services] = lambda world: world,
) -> Report:
    """One run by the settings of the file `conf`, and of what `request` asks for beside it.

    Its report is written to the configured folder however the run ends.

    `around` may wrap the world (tests, demo). After a lost session nothing that was read before it
    is used: a new session, the driver's lock again, and `reconcile` decides what is left to do.
    """
    settings = starting_by(settings, request)
    return reported(
        settings,
        run_context,
        lambda world, report: ingest(around(world), world.settings, report),
        conf=conf,
        strict=strict,
        request=request,
        making=partial(refuse_before_making, request=request),
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
    """A story of the one driver of the pipeline, and its report; told anew with a new session where
    that was lost. See `run`.

    Where a catalog names the table the world's settings know its place, which is kept. `making`: a
    name that is not taken is made a table.
    """
    run_id = new_run_id()
    report = Report(
        run_id,
        settings.pipeline,
        settings.group,
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
        settings, asked = place_table(
            settings, run_context, report.watch, name=run_id, making=making
        )
        report.table_path, report.settings = settings.table.path, settings
        if untold := untried(settings.table.path):
            _log.warning("table.path: %s; etl verify says whether each row is there once", untold)
        for left in reversed(range(SESSIONS_MAX)):
            try:
                opened = open_world(
                    settings, run_context, name=run_id, phases=report.watch, request=request
                )
                with (
                    opened as world,
                    world.driving(run_id),
                    translating_spark_errors(),
                    _measured(world, settings, report),
                ):
                    if asked is not None:
                        write_named_table(world.ledger, asked)
                    story(world, report)
                    mirror(settings, world.zookeeper, report)
                    compact_when_due(settings, world, report)
                break
            except SessionLost as error:
                if not left:
                    raise
                report.add(Outcome.SESSION_LOST, f"{error.what}: begun anew with a new one")
    return report


@contextlib.contextmanager
def _counted(report: Report) -> Iterator[None]:
    """What this process asks brokers inside is the driver's, however it ends."""
    before = REQUEST_METER.told()
    try:
        yield
    finally:
        report.asked_by_driver = since(before, REQUEST_METER.told())


@contextlib.contextmanager
def _measured(world: LiveServices, settings: Settings, report: Report) -> Iterator[None]:
    """For the metrics the brokers are asked how old the first record is that the run leaves, also
    where it failed and they answer.
    """
    try:
        yield
    except Unreachable:
        raise
    except EtlError:
        _ask_oldest(world, settings, report)
        raise
    _ask_oldest(world, settings, report)


def _ask_oldest(world: LiveServices, settings: Settings, report: Report) -> None:
    left = report.looks.unread() if settings.metrics_file else None
    if left is None:
        return
    with (
        report.timed(Verb.CLOSE),
        contextlib.suppress(EtlError),
    ):  # then there is no such metric; what the run came to stays
        report.oldest = ask_oldest(world, *left, settings)


def new_run_id() -> str:
    """Names a run: its start in UTC and something random."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
