"""Rows 1 to 8: a run is killed at each point of its way, while a producer keeps writing.

Between two verbs the run kills itself (`etl.demo.crash_run`). While tasks write, in rows 4 to 6,
the case watches from outside: rows that pass a transform, Parquet files that are complete, and no
commit yet.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from etl.demo.crash_run import HALF_COMMIT
from tests.chaos.driver import Driver, send
from tests.chaos.holding import Hold
from tests.chaos.stage import Case, CaseResult, Stage, commits, complete_files, held, summary_of
from tests.system.driving import Pipeline

_ATTEMPTS = 5
_SOON_S = 20.0

Ending = Callable[[Driver], None]


def at_verb(
    stage: Stage, *, verb: str, then: str, loaded: bool = False, **settings: Any
) -> CaseResult:
    """Killed before a verb; the next run's outcomes must have `then`, or the kill was not where it
    should be.
    """
    pipeline = stage.pipeline(**settings)
    _prepare(pipeline, loaded)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
            result = driver.wait()
            assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"
            assert "group" not in settings or owned(pipeline), "no owner was claimed"
            after = held(pipeline)
            next_run = pipeline.ran()
    assert then in next_run.outcomes, next_run.outcomes
    return stage.finish(pipeline, after=after, next_run=next_run)


def while_writing(stage: Stage, *, half: bool, ending: Ending, loaded: bool = False) -> CaseResult:
    """Ended when no file is there, or `half` of them, and the other tasks have rows that are not
    written.
    """
    pipeline, files = held_pipeline(stage, loaded), stage.writes.tasks // 2 if half else 0
    before, version = complete_files(pipeline), commits(pipeline)
    hold = Hold(pipeline.folder / "marks", files)
    with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
        driver.wait_for("rows in every task", lambda: len(hold.workers()) == stage.writes.tasks)
        driver.wait_for(f"{files} files", lambda: len(complete_files(pipeline) - before) == files)
        ending(driver)
        assert (len(complete_files(pipeline) - before), commits(pipeline)) == (files, version), (
            "it went on"
        )
        after = held(pipeline)
        next_run = pipeline.ran()
    assert "plan_resumed" in next_run.outcomes, next_run.outcomes
    return stage.finish(pipeline, after=after, next_run=next_run)


def before_the_commit(stage: Stage, *, ending: Ending, loaded: bool = False) -> CaseResult:
    """Ended when all files are written and there is no commit; a moment so short that it takes
    several attempts at times.
    """
    for _ in range(_ATTEMPTS):
        pipeline = held_pipeline(stage, loaded)
        hold = last_hold(stage, pipeline)
        with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
            if not stopped_before_the_commit(stage, driver, pipeline, hold):
                continue
            after = held(pipeline)
            ending(driver)
            next_run = pipeline.ran()
        return stage.finish(pipeline, after=after, next_run=next_run)
    raise AssertionError(f"the moment was missed {_ATTEMPTS} times")


def worker_killed(stage: Stage, *, half: bool) -> CaseResult:
    """The Python worker of one task is killed; the run continues, or fails as it should."""
    pipeline, files = held_pipeline(stage, loaded=False), stage.writes.tasks // 2 if half else 0
    hold = Hold(pipeline.folder / "marks", files)
    with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
        driver.wait_for("rows in every task", lambda: len(hold.workers()) == stage.writes.tasks)
        driver.wait_for(f"{files} files", lambda: len(complete_files(pipeline)) == files)
        after = held(pipeline)
        send(hold.workers()[-1], signal.SIGKILL)
        hold.release()
        result = driver.wait()
        assert result.code in (0, 7), f"{summary_of(result)}\n{result.err}"
        next_run = pipeline.ran()
    reported = f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}"
    return stage.finish(pipeline, after=after, next_run=reported)


def owned(pipeline: Pipeline) -> list[str]:
    """The partitions that have an owner in ZooKeeper now: those of a dead driver have one until its
    session ends.
    """
    with pipeline.zookeeper() as client:
        path = f"/consumers/{pipeline.group}/owners/{pipeline.topic}"
        return sorted(client.get_children(path)) if client.exists(path) else []


def held_pipeline(stage: Stage, loaded: bool) -> Pipeline:
    """A pipeline whose tasks can be held, with records to read; a partition and a file for each
    task.
    """
    pipeline = stage.pipeline(partitions=stage.writes.tasks, **stage.writes.held)
    _prepare(pipeline, loaded, stage.writes.tasks)
    return pipeline


def last_hold(stage: Stage, pipeline: Pipeline) -> Hold:
    """As near to the end of tasks as their writer can be held."""
    return Hold(pipeline.folder / "marks", 0, "end" if stage.writes.passes_the_jvm else "rows")


def stopped_before_the_commit(stage: Stage, driver: Driver, pipeline: Pipeline, hold: Hold) -> bool:
    """Let the held tasks end, and stop who commits between its last file and its commit; whether
    that was in time.
    """
    tasks, before, version = stage.writes.tasks, complete_files(pipeline), commits(pipeline)
    driver.wait_for("the end of every task", lambda: len(hold.workers()) == tasks)
    commits_it = driver.jvm() if stage.writes.passes_the_jvm else driver.process.pid
    hold.release()
    deadline = time.monotonic() + _SOON_S
    while len(complete_files(pipeline) - before) < tasks and time.monotonic() < deadline:
        time.sleep(0.001)
    send(commits_it, signal.SIGSTOP)
    return len(complete_files(pipeline) - before) == tasks and commits(pipeline) == version


def driver_alone(driver: Driver) -> None:
    """The driver is killed; its JVM continues until it notices."""
    driver.kill()
    driver.wake_all()


def _prepare(pipeline: Pipeline, loaded: bool, partitions: int = 4) -> None:
    pipeline.produce(400, partitions=partitions)
    if loaded:
        pipeline.ran()
        pipeline.produce(400, partitions=partitions)


_ALL_AT_ONCE = "the whole process group"

CASES: tuple[Case, ...] = (
    Case(
        1,
        "killed before the plan is stored",
        "SIGKILL before the plan is stored",
        partial(at_verb, verb="store", then="ingested"),
    ),
    Case(
        1,
        "killed before the plan is stored later",
        "the same where the table holds a plan already",
        partial(at_verb, verb="store", then="ingested", loaded=True),
    ),
    Case(
        2,
        "killed after the plan is stored",
        "SIGKILL after the plan is stored",
        partial(at_verb, verb="claiming", then="plan_resumed"),
    ),
    Case(
        2,
        "killed after the plan is stored later",
        "the same where the table holds a plan already",
        partial(at_verb, verb="claiming", then="plan_resumed", loaded=True),
    ),
    Case(
        3,
        "killed after owners are claimed",
        "SIGKILL after the partitions' owners are claimed, before the first fetch",
        partial(at_verb, verb="fetch", then="plan_resumed", group={"mode": "claim"}),
    ),
    Case(
        4,
        "killed when the first rows came",
        f"SIGKILL for {_ALL_AT_ONCE} when the first rows are fetched and none is written",
        partial(while_writing, half=False, ending=Driver.kill_all),
    ),
    Case(
        4,
        "driver killed when the first rows came",
        "SIGKILL for the driver alone when the first rows are fetched",
        partial(while_writing, half=False, ending=driver_alone, loaded=True),
    ),
    Case(
        4,
        "worker killed when the first rows came",
        "SIGKILL for one Python worker when the first rows are fetched",
        partial(worker_killed, half=False),
    ),
    Case(
        5,
        "killed when half the files were written",
        f"SIGKILL for {_ALL_AT_ONCE} when half of the files are written",
        partial(while_writing, half=True, ending=Driver.kill_all),
    ),
    Case(
        5,
        "driver killed when half the files were written",
        "SIGKILL for the driver alone when half of the files are written",
        partial(while_writing, half=True, ending=driver_alone, loaded=True),
    ),
    Case(
        5,
        "worker killed when half the files were written",
        "SIGKILL for one Python worker when half of the files are written",
        partial(worker_killed, half=True),
    ),
    Case(
        6,
        "killed when all files were written",
        f"SIGKILL for {_ALL_AT_ONCE} when all files are written and not committed",
        partial(before_the_commit, ending=Driver.kill_all),
    ),
    Case(
        6,
        "killed when all files were written later",
        "the same where the table holds a plan already",
        partial(before_the_commit, ending=Driver.kill_all, loaded=True),
    ),
    Case(
        6,
        "driver killed when all files were written",
        "SIGKILL for the driver alone then, and its JVM goes on until it notices",
        partial(before_the_commit, ending=driver_alone, loaded=True),
    ),
    Case(
        7,
        "killed when delta had committed",
        "SIGKILL after the Delta commit, before anything is written to ZooKeeper",
        partial(at_verb, verb="record", then="plan_completed"),
        short=True,
    ),
    Case(
        7,
        "killed before the offsets moved",
        "SIGKILL after the plan's receipts are kept, before an offset is moved",
        partial(at_verb, verb="commit", then="plan_completed", loaded=True),
    ),
    Case(
        8,
        "killed when half of the offsets were moved",
        "SIGKILL when half of the offsets are moved",
        partial(at_verb, verb=HALF_COMMIT, then="plan_completed"),
    ),
    Case(
        8,
        "killed when half of the offsets were moved later",
        "the same where the table holds a plan already",
        partial(at_verb, verb=HALF_COMMIT, then="plan_completed", loaded=True),
    ),
    Case(
        8,
        "killed before old plans are folded",
        "SIGKILL when all offsets are moved, before old plans are folded into coverage",
        partial(at_verb, verb="tidy", then="ingested", loaded=True),
    ),
)
