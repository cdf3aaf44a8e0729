"""Row 20: no space on the disk, and a directory that becomes read-only, while files are written.

The table is on a small file system of its own (tmpfs), so that only it can be full or read-only.
Only root may mount: for other users the cases that mount are skipped.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kafka import KafkaProducer

from tests.chaos.driver import Driver
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.sources import stopped
from tests.chaos.stage import Case, CaseResult, Stage, complete_files, held, summary_of
from tests.system.driving import Pipeline

_MAY_MOUNT = os.geteuid() == 0
_VALUE_BYTES = 10_000
_FOUR_TASKS = {"spark.master": "local[4,4]"}


def mounted(stage: Stage, folder: Path, options: str) -> None:
    """A file system in memory at `folder`, until the case ends."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    stage.at_end.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def lock(folder: Path) -> None:
    """No file can be created there any more; root ignores permission bits, but not this attribute."""
    if _MAY_MOUNT:
        subprocess.run(["chattr", "+i", str(folder)], check=True)
    else:
        folder.chmod(0o555)


def unlock(folder: Path) -> None:
    if _MAY_MOUNT:
        subprocess.run(["chattr", "-i", str(folder)], check=True)
    else:
        folder.chmod(0o755)


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
        after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
        stopped(pipeline.run(), 7)
        remount(pipeline.table, "size=64m")
        next_run = stopped(pipeline.run(), 0, "plan_resumed")
    return stage.finish(pipeline, after=after, next_run=next_run)


def no_room_for_the_commit(stage: Stage) -> CaseResult:
    """All files are written, and the table's log takes no file any more: its disk has no inodes
    left.
    """
    pipeline = stage.pipeline()
    partition = pipeline.table / "_delta_log"
    pipeline.produce(240)
    mounted(stage, partition, "size=1m,nr_inodes=2")
    result = stopped(pipeline.run(), 7)
    after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
    remount(partition, "nr_inodes=1000")
    pipeline.produce(80)
    next_run = stopped(pipeline.run(), 0, "plan_resumed")
    return stage.finish(pipeline, after=after, next_run=next_run)


def taken_away(
    stage: Stage,
    *,
    before: Callable[[Stage, Pipeline], None],
    take: Callable[[Pipeline], None],
    give: Callable[[Pipeline], None],
    from_task: int,
    files: int,
) -> CaseResult:
    """When `files` of four are written and the other tasks have their first rows, something is
    taken away; it is given back later.
    """
    pipeline = stage.pipeline(transform=TRANSFORM, spark=_FOUR_TASKS)
    before(stage, pipeline)
    pipeline.produce(240)
    pipeline.ran()
    pipeline.produce(240)
    known = complete_files(pipeline)
    hold = Hold(pipeline.folder / "marks", from_task)
    with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
        driver.wait_for("rows in every task", lambda: len(hold.workers()) == 4)
        driver.wait_for(f"{files} files", lambda: len(complete_files(pipeline) - known) == files)
        take(pipeline)
        try:
            hold.release()
            result = stopped(driver.wait(), 7)
            after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
            stopped(pipeline.run(), 7)
        finally:
            give(pipeline)
        next_run = stopped(pipeline.run(), 0, "plan_resumed")
    return stage.finish(pipeline, after=after, next_run=next_run)


def _nothing(stage: Stage, pipeline: Pipeline) -> None:
    pass


def _own_disk(stage: Stage, pipeline: Pipeline) -> None:
    mounted(stage, pipeline.table, "size=64m")


_MOUNTING: tuple[Case, ...] = (
    Case(
        20,
        "disk-full-at-first",
        "the disk is full while the first files of a table are written; then it is made larger",
        partial(disk_full, loaded=False),
    ),
    Case(
        20,
        "disk-full",
        "the disk is full while files are written; then it is made larger",
        partial(disk_full, loaded=True),
    ),
    Case(
        20,
        "disk-full-for-the-commit",
        "all files are written, and there is no room for the commit",
        no_room_for_the_commit,
    ),
    Case(
        20,
        "disk-turns-read-only",
        "the file system turns read-only when 1 of 4 files is written; then it is writable again",
        partial(
            taken_away,
            before=_own_disk,
            take=lambda p: remount(p.table, "ro"),
            give=lambda p: remount(p.table, "rw"),
            from_task=1,
            files=1,
        ),
    ),
)
CASES: tuple[Case, ...] = (
    *(_MOUNTING if _MAY_MOUNT else ()),
    *(
        Case(
            20,
            "table-may-not-be-written",
            "the table's folder may not be written any more when 2 of 4 files are written",
            partial(
                taken_away,
                before=_nothing,
                take=lambda p: lock(p.table),
                give=lambda p: unlock(p.table),
                from_task=2,
                files=2,
            ),
        ),
        Case(
            20,
            "log-may-not-be-written",
            "the table's log may not be written any more when 2 of 4 files are written",
            partial(
                taken_away,
                before=_nothing,
                take=lambda p: lock(p.table / "_delta_log"),
                give=lambda p: unlock(p.table / "_delta_log"),
                from_task=2,
                files=2,
            ),
        ),
    ),
)
