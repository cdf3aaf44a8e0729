"""Row 21: tasks on a standalone Spark of two hosts that fail, are retried, run twice, are lost."""

from __future__ import annotations

import signal
import sys
from typing import Any

from etl.testkit.spark_launch import StandaloneSpark
from tests.chaos.driver import Driver, amid_its_files, send
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.stage import CaseResult, Stage, both, held, kept, stopped
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


def twice(stage: Stage, *, at: str, is_killed: bool) -> CaseResult:
    """A task's worker is killed; or a task runs twice, and both continue at the same moment."""
    pipeline = on_two_hosts(stage, **{} if is_killed else _SPECULATION)
    hold = Hold(pipeline.folder / "marks", from_task=3, at=at)
    mark = hold.folder / f"{at}-3"
    with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
        driver.wait_for("the last task", mark.exists)
        first, after = int(mark.read_text()), held(pipeline)
        if is_killed:
            send(first, signal.SIGKILL)
        driver.wait_for("the task's second attempt", lambda: int(mark.read_text()) != first)
        hold.release()
        result = stopped(driver.wait(), 0, "ingested")
    return stage.finish(pipeline, after, both(result, pipeline.ran()))


def executor_lost(stage: Stage, *, all_of_them: bool) -> CaseResult:
    """Executors are killed after two of four files are there, while the other tasks are at work."""
    pipeline = on_two_hosts(stage)
    with amid_its_files(stage, pipeline, files=2, tasks=4) as (driver, hold):
        after, there = held(pipeline), executors()
        assert len(there) == 2, there
        for pid in there if all_of_them else there[:1]:
            send(pid, signal.SIGKILL)
        hold.release()
        result = stopped(driver.wait(), 0, "ingested")
    return stage.finish(pipeline, after, both(result, pipeline.ran()))
