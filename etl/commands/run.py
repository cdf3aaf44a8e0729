"""`etl run`: one run, and its report."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable

from etl.edges.report_file import kept_in, this_process
from etl.edges.spark.failures import translating_spark_errors
from etl.errors import SessionLost
from etl.report.run_report import Report
from etl.report.run_state import Outcome
from etl.run.context import ALONE, RunContext, now_ms
from etl.run.ingest import ingest
from etl.run.wiring import open_world
from etl.run.world import World
from etl.settings.sections import Settings

SESSIONS_MAX = 3
"""How often one run begins anew after its ZooKeeper session ended under it."""


def run(
    settings: Settings, run_context: RunContext = ALONE, *, conf: str | None = None, strict: bool = False,
    around: Callable[[World], World] = lambda world: world,
) -> Report:
    """One run by the settings of the file `conf`. Its report is written to the configured folder however the run ends.

    `around` may wrap the world (tests, demo).
    After a lost session nothing that was read before it is used: a new session, the driver's lock again, and `reconcile` decides
    what is left to do.
    """
    run_id = new_run_id()
    report = Report(
        run_id, settings.pipeline, settings.group, settings.table.path, now_ms(), this_process(conf), strict=strict, settings=settings)
    kept = kept_in(settings.report.path, report, keep=settings.report.keep)
    with kept, run_context.progress(report.watch.doing):
        for left in reversed(range(SESSIONS_MAX)):
            try:
                opened = open_world(settings, run_context, name=run_id, phases=report.watch)
                with opened as world, world.driving(run_id), translating_spark_errors():
                    ingest(around(world), settings, report)
                break
            except SessionLost as error:
                if not left:
                    raise
                report.add(Outcome.SESSION_LOST, f"{error.what}: begun anew with a new one")
    return report


def new_run_id() -> str:
    """Names a run: its start in UTC and something random."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
