"""Rows 1 to 10 and 22: a run is stopped while its tasks write, by SIGKILL, SIGINT or SIGTERM; or it
sleeps past its session, and two drivers are at work at the same moment.

What is stopped before a verb is in `ways`. While tasks write, the case watches from outside: rows
that pass a transform, Parquet files that are complete, and no commit yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping

from tests.chaos.driver import Driver, amid_its_files, kill_before, send
from tests.chaos.holding import Hold
from tests.chaos.scenes import prepare
from tests.chaos.stage import (
    CaseResult,
    Checked,
    Stage,
    both,
    case_result,
    checked,
    commits,
    complete_files,
    ended,
    held,
    succeeded,
    summary_of,
)
from tests.chaos.ways import RETRY, overtaken, short_session, wait_for_no_driver
from tests.system.driving import Pipeline

_ATTEMPTS = 5
_SOON_S = 20.0
_INTERRUPTED = 130


def _kill_alone(driver: Driver) -> None:
    """The driver is killed; its JVM continues until it notices."""
    driver.kill()
    driver.wake_all()


KILLS: Mapping[str, Callable[[Driver], None]] = {"all": Driver.kill_all, "driver": _kill_alone}


def while_writing(stage: Stage, *, half: bool, kill: str, loaded: bool = False) -> CaseResult:
    """Killed when no file is there, or `half` of them, and other tasks have unwritten rows."""
    pipeline, files = held_pipeline(stage, loaded), _files(stage, half)
    before, version = complete_files(pipeline), commits(pipeline)
    with amid_its_files(stage, pipeline, files) as (driver, _):
        KILLS[kill](driver)
        there = len(complete_files(pipeline) - before), commits(pipeline)
        assert there == (files, version), "it went on"
        after, next_run = held(pipeline), succeeded(pipeline.run(), "plan_resumed")
    return stage.finish(pipeline, after, next_run)


def before_the_commit(stage: Stage, *, kill: str, loaded: bool = False) -> CaseResult:
    """Killed between the last file and the commit; a short moment that needs several attempts."""
    for _ in range(_ATTEMPTS):
        pipeline = held_pipeline(stage, loaded)
        hold = _last_hold(stage, pipeline)
        with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
            if not _stopped_before_the_commit(stage, driver, pipeline, hold):
                continue
            after = held(pipeline)
            KILLS[kill](driver)
            next_run = pipeline.ran()
        return stage.finish(pipeline, after, next_run)
    raise AssertionError(f"the moment was missed {_ATTEMPTS} times")


def worker_killed(stage: Stage, *, half: bool) -> CaseResult:
    """The Python worker of one task is killed; the run continues, or fails as it should."""
    pipeline = held_pipeline(stage, loaded=False)
    with amid_its_files(stage, pipeline, _files(stage, half)) as (driver, hold):
        after = held(pipeline)
        send(hold.workers()[-1], signal.SIGKILL)
        hold.release()
        result = ended(driver.wait(), 0, 7)
        next_run = pipeline.ran()
    return stage.finish(pipeline, after, both(result, next_run))


def interrupted(stage: Stage, *, verb: str, kind: str) -> CaseResult:
    """The run sends itself SIGINT or SIGTERM before a verb, and continues as far as it can."""
    pipeline = stage.pipeline()
    pipeline.produce(400)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        with Driver(pipeline, sends=(signal.Signals[kind], verb)) as driver:
            after, next_run = _interrupted(pipeline, driver)
    return stage.finish(pipeline, after, next_run)


def interrupted_while_writing(stage: Stage, *, kind: str, whole_group: bool) -> CaseResult:
    """The signal comes from outside while tasks are at work, as from a terminal or a scheduler."""
    pipeline = held_pipeline(stage, loaded=False)
    with amid_its_files(stage, pipeline, _files(stage, half=True)) as (driver, _):
        sends = os.killpg if whole_group else os.kill
        sends(driver.process.pid, signal.Signals[kind])
        after, next_run = _interrupted(pipeline, driver)
    return stage.finish(pipeline, after, next_run)


def _interrupted(pipeline: Pipeline, driver: Driver) -> tuple[str, str]:
    """The table's state after the run had stopped, and the results of that run and the next."""
    result = ended(driver.wait(), _INTERRUPTED)
    assert "Traceback" not in result.err and "Nothing is lost" in result.err, result.err
    driver.wait_until_gone()
    after = held(pipeline)
    return after, f"exit {_INTERRUPTED}; the next run: {summary_of(pipeline.ran())}"


def one_run(stage: Stage, *, verb: str, loaded: bool = False) -> CaseResult:
    """Killed before a verb; the topic grows; the very next run must leave nothing."""
    pipeline = stage.pipeline()
    prepare(pipeline, loaded)
    after = kill_before(pipeline, verb)
    pipeline.produce(400)
    next_run = pipeline.ran()
    figures = checked(pipeline)
    assert set(pipeline.committed().values()) == {300 if loaded else 200}, pipeline.committed()
    return case_result(after, next_run, figures)


def asleep_while_writing(stage: Stage, *, half: bool, driver_alone: bool = False) -> CaseResult:
    """Paused, JVM and workers too or not, when no file is written, or `half` of them."""
    pipeline = held_pipeline(stage, loaded=False)
    with (
        short_session(pipeline),
        amid_its_files(stage, pipeline, _files(stage, half)) as (zombie, hold),
    ):
        if driver_alone:
            zombie.pause()
        else:
            zombie.pause_all()
        hold.release()
        after, message = overtaken(zombie, pipeline)
    return stage.finish(pipeline, after, message)


def asleep_before_the_commit(stage: Stage) -> CaseResult:
    """Paused when all files are written and not committed."""
    for _ in range(_ATTEMPTS):
        pipeline = held_pipeline(stage, loaded=True)
        hold = _last_hold(stage, pipeline)
        with (
            stage.writing(pipeline),
            short_session(pipeline),
            Driver(pipeline, hold=hold) as zombie,
        ):
            if not _stopped_before_the_commit(stage, zombie, pipeline, hold):
                continue
            zombie.pause_all()
            after, message = overtaken(zombie, pipeline)
        return stage.finish(pipeline, after, message)
    raise AssertionError(f"the moment was missed {_ATTEMPTS} times")


def started_together(stage: Stage, *, times: int, fresh: bool) -> CaseResult:
    """Two commands at the same moment, again and again; every second time they wait for each other."""

    def ends(pipeline: Pipeline, number: int) -> list[str]:
        pipeline.settings["ledger"] = {"lock_timeout_s": 120 * (number % 2)}
        with stage.writing(pipeline), Driver(pipeline) as one, Driver(pipeline) as other:
            codes = sorted(driver.wait().code for driver in (one, other))
        assert codes in ([0, 0], [0, 4]) and (codes == [0, 0] or not number % 2), codes
        return [f"exits {codes[0]} and {codes[1]}"]

    return _again_and_again(stage, times, fresh, ends)


def released_together(stage: Stage, *, verb: str, times: int, fresh: bool) -> CaseResult:
    """Two drivers that both passed the lock continue at the same moment from the same verb."""

    def ends(pipeline: Pipeline, number: int) -> list[str]:
        two = list[Driver]()
        with (
            stage.writing(pipeline) as writer,
            short_session(pipeline),
            contextlib.ExitStack() as started,
        ):
            for _ in range(2):
                two.append(started.enter_context(Driver(pipeline, sends=(signal.SIGSTOP, verb))))
                two[-1].wait_until_paused()
                wait_for_no_driver(pipeline)
                writer.wait_for(20)
            for driver in two:
                driver.wake_all()
            results = [ended(driver.wait(), 0, *RETRY) for driver in two]
        return [f"exit {one.code}" if one.code else summary_of(one) for one in results]

    return _again_and_again(stage, times, fresh, ends)


def _again_and_again(
    stage: Stage, times: int, fresh: bool, ends: Callable[[Pipeline, int], list[str]]
) -> CaseResult:
    """Two drivers so many times, each time on a new table if `fresh`, and the check after each."""
    pipeline, figures, seen = stage.pipeline(), list[Checked](), set[str]()
    for number in range(times):
        if fresh:
            pipeline = stage.pipeline()
        prepare(pipeline, loaded=not fresh and not number)
        seen.update(ends(pipeline, number))
        after = held(pipeline)
        figures.append(stage.finish(pipeline, after, "").checked)
    total = Checked(
        records=sum(each.records for each in figures),
        rows=sum(each.rows for each in figures),
        missing=sum(each.missing for each in figures),
        double=sum(each.double for each in figures),
        unexpected=sum(each.unexpected for each in figures),
    )
    message = f"the two, {times} times: {'; '.join(sorted(seen))}"
    return CaseResult(after, message, total if fresh else figures[-1])


def held_pipeline(stage: Stage, loaded: bool) -> Pipeline:
    """A pipeline whose tasks can be held; a partition and a file for each task."""
    pipeline = stage.pipeline(partitions=stage.writes.tasks, **stage.writes.held)
    prepare(pipeline, loaded, stage.writes.tasks)
    return pipeline


def _files(stage: Stage, half: bool) -> int:
    """How many files are written when a run is stopped."""
    return stage.writes.tasks // 2 if half else 0


def _last_hold(stage: Stage, pipeline: Pipeline) -> Hold:
    """As near to the end of tasks as their writer can be held."""
    return Hold(pipeline.folder / "marks", 0, "end" if stage.writes.passes_the_jvm else "rows")


def _stopped_before_the_commit(
    stage: Stage, driver: Driver, pipeline: Pipeline, hold: Hold
) -> bool:
    """True if the driver was stopped between its last file and its commit."""
    tasks, before, version = stage.writes.tasks, complete_files(pipeline), commits(pipeline)
    driver.wait_for("the end of every task", lambda: len(hold.workers()) == tasks)
    commits_it = driver.jvm() if stage.writes.passes_the_jvm else driver.process.pid
    hold.release()
    deadline = time.monotonic() + _SOON_S
    while len(complete_files(pipeline) - before) < tasks and time.monotonic() < deadline:
        time.sleep(0.001)
    send(commits_it, signal.SIGSTOP)
    return len(complete_files(pipeline) - before) == tasks and commits(pipeline) == version
