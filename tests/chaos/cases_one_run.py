"""Row 22: a run is killed, more records come, and one run with nothing in its way brings all of
them, without a second one after it.
"""

from __future__ import annotations

import signal
from functools import partial

from etl.demo.crash_run import HALF_COMMIT
from tests.chaos.driver import Driver
from tests.chaos.stage import Case, CaseResult, Stage, checked, held, summary_of


def one_run(stage: Stage, *, verb: str, loaded: bool = False) -> CaseResult:
    """Killed before a verb; the topic grows; the very next run must leave nothing."""
    pipeline = stage.pipeline()
    pipeline.produce(400)
    if loaded:
        pipeline.ran()
        pipeline.produce(400)
    with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
        result = driver.wait()
    assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"
    pipeline.produce(400)
    after, next_run = held(pipeline), pipeline.ran()
    figures = checked(pipeline)
    assert set(pipeline.committed().values()) == {300 if loaded else 200}, pipeline.committed()
    return CaseResult(after, summary_of(next_run), figures)


_WHAT = "more records come, one run: SIGKILL "

CASES: tuple[Case, ...] = (
    Case(
        22,
        "one run after a kill before the plan",
        _WHAT + "before the plan is stored",
        partial(one_run, verb="store"),
    ),
    Case(
        22,
        "one run after a kill before the fetch",
        _WHAT + "after the plan is stored",
        partial(one_run, verb="fetch", loaded=True),
    ),
    Case(
        22,
        "one run after a kill before the append",
        _WHAT + "before the append",
        partial(one_run, verb="append"),
    ),
    Case(
        22,
        "one run after a kill before the record",
        _WHAT + "after the Delta commit",
        partial(one_run, verb="record", loaded=True),
    ),
    Case(
        22,
        "one run after a kill before the offsets",
        _WHAT + "before the offsets are moved",
        partial(one_run, verb="commit"),
    ),
    Case(
        22,
        "one run after a kill amid the offsets",
        _WHAT + "when half of the offsets are moved",
        partial(one_run, verb=HALF_COMMIT, loaded=True),
    ),
)
