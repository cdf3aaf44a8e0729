"""Row 21: what Spark does to tasks on a standalone cluster of two hosts: they fail, are tried
again, run twice at a time, and get lost.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from etl.testkit.spark_launch import StandaloneSpark
from tests.chaos.driver import Driver, send
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.kept import kept
from tests.chaos.sources import stopped
from tests.chaos.stage import Case, CaseResult, Stage, complete_files, held, summary_of
from tests.command_result import CommandResult
from tests.processes import command, that_mention, working_folder
from tests.system.driving import ROOT, Pipeline

_SPECULATION = {
    "spark.speculation": True,
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": 0.5,
    "spark.speculation.multiplier": 1.1,
    "spark.speculation.minTaskRuntime": "100ms",
}


def two_hosts() -> StandaloneSpark:
    return kept("spark", lambda folder: StandaloneSpark(folder, hosts=2, cores=2, memory="768m"))


def on_two_hosts(stage: Stage, **spark: Any) -> Pipeline:
    """A pipeline of four tasks, two on each host."""
    pipeline = stage.pipeline(
        transform=TRANSFORM,
        spark={
            "spark.master": two_hosts().master_url,
            "spark.pyspark.python": sys.executable,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.executor.memory": "512m",
            "spark.executor.cores": 2,
            "spark.cores.max": 4,
            "spark.scheduler.minRegisteredResourcesRatio": 1.0,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            **spark,
        },
    )
    pipeline.produce(480)
    return pipeline


def executors() -> list[int]:
    """The executors' JVMs, which work in folders of the workers of ours."""
    ours = str(two_hosts().folder)
    return [
        pid
        for pid in that_mention("CoarseGrainedExecutorBackend")
        if command(pid)[0].endswith("java") and working_folder(pid).startswith(ours)
    ]


def task_fails(stage: Stage, *, at: str) -> CaseResult:
    """The Python worker of one task is killed, and the task is tried again."""
    pipeline = on_two_hosts(stage)
    hold = Hold(pipeline.folder / "marks", from_task=3, at=at)
    with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
        driver.wait_for("the last task", lambda: (hold.folder / f"{at}-3").exists())
        after = held(pipeline)
        first = int((hold.folder / f"{at}-3").read_text())
        send(first, signal.SIGKILL)
        driver.wait_for(
            "the task's second attempt", lambda: int((hold.folder / f"{at}-3").read_text()) != first
        )
        hold.release()
        result = stopped(driver.wait(), 0, "ingested")
    return _and_one_more(stage, pipeline, after, result)


def speculation(stage: Stage, *, at: str) -> CaseResult:
    """The last task is slow, so a second copy of it runs on the other host, and both continue at
    the same moment.
    """
    pipeline = on_two_hosts(stage, **_SPECULATION)
    hold = Hold(pipeline.folder / "marks", from_task=3, at=at)
    with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
        driver.wait_for("the last task", lambda: (hold.folder / f"{at}-3").exists())
        first = int((hold.folder / f"{at}-3").read_text())
        driver.wait_for("its copy", lambda: int((hold.folder / f"{at}-3").read_text()) != first)
        after = held(pipeline)
        hold.release()
        result = stopped(driver.wait(), 0, "ingested")
    return _and_one_more(stage, pipeline, after, result)


def executor_lost(stage: Stage, *, all_of_them: bool) -> CaseResult:
    """Executors are killed after two of four files are there, while the other tasks are at work."""
    pipeline = on_two_hosts(stage)
    hold = Hold(pipeline.folder / "marks", from_task=2)
    with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
        driver.wait_for("rows in every task", lambda: len(hold.workers()) == 4)
        driver.wait_for("2 files", lambda: len(complete_files(pipeline)) == 2)
        after, there = held(pipeline), executors()
        assert len(there) == 2, there
        for pid in there if all_of_them else there[:1]:
            send(pid, signal.SIGKILL)
        hold.release()
        result = stopped(driver.wait(), 0, "ingested")
    return _and_one_more(stage, pipeline, after, result)


def _and_one_more(
    stage: Stage, pipeline: Pipeline, after: str, result: CommandResult
) -> CaseResult:
    """The next run, in the shared session, loads what the producer wrote meanwhile."""
    next_run = pipeline.ran()
    return stage.finish(
        pipeline,
        after=after,
        next_run=f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}",
    )


CASES: tuple[Case, ...] = (
    Case(
        21,
        "task-fails-at-its-first-rows",
        "two hosts: the Python worker of a task killed at its first rows; the task is tried again",
        lambda stage: task_fails(stage, at="rows"),
    ),
    Case(
        21,
        "task-fails-at-its-end",
        "two hosts: the same when all rows of the task are read, before its file is closed",
        lambda stage: task_fails(stage, at="end"),
    ),
    Case(
        21,
        "speculation-at-the-first-rows",
        "two hosts: a slow task runs twice, and both copies write at the same moment",
        lambda stage: speculation(stage, at="rows"),
    ),
    Case(
        21,
        "speculation-at-the-end",
        "two hosts: a slow task runs twice, and both copies end at the same moment",
        lambda stage: speculation(stage, at="end"),
    ),
    Case(
        21,
        "executor-lost-after-it-wrote",
        "two hosts: an executor killed when 2 of 4 files are there",
        lambda stage: executor_lost(stage, all_of_them=False),
    ),
    Case(
        21,
        "all-executors-lost",
        "two hosts: all executors killed when 2 of 4 files are there",
        lambda stage: executor_lost(stage, all_of_them=True),
    ),
)
