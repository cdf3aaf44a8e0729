"""Row 20: no space on the disk, and a directory that becomes read-only, while files are written.

The table is on a small file system of its own (tmpfs), so that only it can be full or read-only.
Only root may mount: for other users the cases that mount are skipped.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

from kafka import KafkaProducer

from tests.chaos.driver import amid_its_files
from tests.chaos.holding import TRANSFORM
from tests.chaos.scenes import prepare
from tests.chaos.stage import CaseResult, Stage, held_after, stopped
from tests.system.driving import Pipeline

MAY_MOUNT = os.geteuid() == 0
_VALUE_BYTES = 10_000
_FOUR_TASKS = {"spark.master": "local[4,4]"}


def mounted(stage: Stage, folder: Path, options: str) -> None:
    """A file system in memory at `folder`, until the case ends."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    stage.at_end.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def _lock(folder: Path, is_locked: bool) -> None:
    """No file can be created there; root ignores permission bits, but not this attribute."""
    if MAY_MOUNT:
        subprocess.run(["chattr", "+i" if is_locked else "-i", str(folder)], check=True)
    else:
        folder.chmod(0o555 if is_locked else 0o755)


def produce_much(pipeline: Pipeline, records: int) -> None:
    """Values that no compression makes smaller."""
    numbers = random.Random(1)
    with KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap) as producer:
        for number in range(records):
            producer.send(pipeline.topic, numbers.randbytes(_VALUE_BYTES), partition=number % 4)
        producer.flush()


def disk_full(stage: Stage, *, loaded: bool) -> CaseResult:
    """The rows of a run do not fit on the table's disk; then it is made larger."""
    pipeline = stage.pipeline()
    mounted(stage, pipeline.table, "size=2m")
    if loaded:
        pipeline.produce(240)
        pipeline.ran()
    produce_much(pipeline, 600)
    with stage.writing(pipeline):
        result = stopped(pipeline.run(), 7, "No space left")
        after = held_after(pipeline, result)
        stopped(pipeline.run(), 7)
        remount(pipeline.table, "size=64m")
        next_run = stopped(pipeline.run(), 0, "plan_resumed")
    return stage.finish(pipeline, after, next_run)


def no_room_for_the_commit(stage: Stage) -> CaseResult:
    """All files are written, and the disk of the table's log has no inodes left."""
    pipeline = stage.pipeline()
    partition = pipeline.table / "_delta_log"
    pipeline.produce(240)
    mounted(stage, partition, "size=1m,nr_inodes=2")
    result = stopped(pipeline.run(), 7)
    after = held_after(pipeline, result)
    remount(partition, "nr_inodes=1000")
    pipeline.produce(80)
    next_run = stopped(pipeline.run(), 0, "plan_resumed")
    return stage.finish(pipeline, after, next_run)


def taken_away(stage: Stage, *, taken: str, files: int) -> CaseResult:
    """When `files` of four are written a folder becomes read-only, until later."""
    pipeline = stage.pipeline(transform=TRANSFORM, spark=_FOUR_TASKS)
    if taken == "disk":
        mounted(stage, pipeline.table, "size=64m")
    folder = pipeline.table / "_delta_log" if taken == "log" else pipeline.table
    prepare(pipeline, loaded=True)
    with amid_its_files(stage, pipeline, files, tasks=4) as (driver, hold):
        if taken == "disk":
            remount(folder, "ro")
        else:
            _lock(folder, True)
        try:
            hold.release()
            result = stopped(driver.wait(), 7)
            after = held_after(pipeline, result)
            stopped(pipeline.run(), 7)
        finally:
            if taken == "disk":
                remount(folder, "rw")
            else:
                _lock(folder, False)
        next_run = stopped(pipeline.run(), 0, "plan_resumed")
    return stage.finish(pipeline, after, next_run)
