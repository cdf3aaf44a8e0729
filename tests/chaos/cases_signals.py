"""Ctrl-C and SIGTERM, in each of the six verbs: exit 130, nothing lost, and the next run makes it
whole. They count among rows 1 to 8.
"""

from __future__ import annotations

import os
import signal
from functools import partial

from tests.chaos.cases_kill import held_pipeline
from tests.chaos.driver import Driver
from tests.chaos.holding import Hold
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.system.driving import Pipeline

_STOPPED = 130
_VERBS = {
    "observe": ("observe", 1),
    "reconcile": ("now_ms", 1),
    "plan": ("store", 1),
    "fetch": ("fetch", 2),
    "append": ("append", 4),
    "commit": ("commit", 7),
}
"""Each verb of a run: the method of `services.Services` before which the signal comes, and the row
of the matrix that it belongs to.
"""


def stopped_at_verb(stage: Stage, *, method: str, kind: signal.Signals) -> CaseResult:
    """The run sends itself the signal, and continues as far as it can."""
    pipeline = stage.pipeline()
    pipeline.produce(400)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        with Driver(pipeline, sends=(kind, method)) as driver:
            after, next_run = _ended(pipeline, driver)
    return stage.finish(pipeline, after=after, next_run=next_run)


def stopped_while_writing(stage: Stage, *, kind: signal.Signals, whole_group: bool) -> CaseResult:
    """The signal comes from outside while tasks are at work, as from a terminal or a scheduler."""
    pipeline = held_pipeline(stage, loaded=False)
    hold = Hold(pipeline.folder / "marks", stage.writes.tasks // 2)
    with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
        driver.wait_for("rows in every task", lambda: len(hold.workers()) == stage.writes.tasks)
        if whole_group:
            os.killpg(driver.process.pid, kind)
        else:
            os.kill(driver.process.pid, kind)
        after, next_run = _ended(pipeline, driver)
    return stage.finish(pipeline, after=after, next_run=next_run)


def _ended(pipeline: Pipeline, driver: Driver) -> tuple[str, str]:
    """The table's state after the run had stopped, and the results of that run and the next."""
    result = driver.wait()
    assert result.code == _STOPPED, f"{summary_of(result)}\n{result.err}"
    assert "Traceback" not in result.err and "Nothing is lost" in result.err, result.err
    driver.wait_until_gone()
    after = held(pipeline)
    return after, f"exit {_STOPPED}; the next run: {summary_of(pipeline.ran())}"


CASES: tuple[Case, ...] = (
    *(
        Case(
            row,
            f"{kind.name} in {verb}",
            f"{kind.name} to the driver as it begins to {verb}",
            partial(stopped_at_verb, method=method, kind=kind),
        )
        for verb, (method, row) in _VERBS.items()
        for kind in (signal.SIGINT, signal.SIGTERM)
    ),
    *(
        Case(
            5,
            f"{kind.name} to {whom} while files are written",
            f"{kind.name} to {whom} while tasks write files",
            partial(stopped_while_writing, kind=kind, whole_group=whole_group),
        )
        for kind in (signal.SIGINT, signal.SIGTERM)
        for whom, whole_group in (("the driver", False), ("the process group", True))
    ),
)
