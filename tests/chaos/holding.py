"""Transforms that change nothing, and show a case how far the tasks of a run are, and hold them
there.

`transform: tests.chaos.holding:held`, or `transform.record_batch: tests.chaos.holding:held_batch`
if tasks write files: that one gets only batches, and no end of a task. Only the environment of the
run's process configures them, so that the next run, without these variables, has the same transform
and is not held.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

TRANSFORM = "tests.chaos.holding:held"
ARROW_TRANSFORM = "tests.chaos.holding:held_batch"
_FOLDER, _FROM_TASK, _WHERE = "CHAOS_MARKS", "CHAOS_HOLD_FROM", "CHAOS_HOLD_AT"
_LONGEST_S = 120.0


@dataclass(frozen=True, slots=True)
class Hold:
    """From task `from_task` on, wait before the first row (`rows`) or the file's end (`end`)."""

    folder: Path
    from_task: int
    at: str = "rows"

    def variables(self) -> dict[str, str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return {_FOLDER: str(self.folder), _FROM_TASK: str(self.from_task), _WHERE: self.at}

    def workers(self) -> list[int]:
        """The Python workers whose tasks are held, or have passed that place."""
        return [int(mark.read_text()) for mark in self.folder.glob(f"{self.at}-*[0-9]")]

    def release(self) -> None:
        (self.folder / "go").touch()


def held(rows: DataFrame) -> DataFrame:
    folder, from_task, where = (
        os.environ.get(_FOLDER),
        int(os.environ.get(_FROM_TASK, "0")),
        os.environ.get(_WHERE),
    )
    if folder is None:
        return rows

    # Made here, so that it travels to the workers by value: they need not know this module.
    def passing(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import os
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context else 0

        def wait(place: str) -> None:
            mark = Path(folder, f"{place}-{task}")
            unfinished = mark.with_suffix(".tmp")
            unfinished.write_text(str(os.getpid()))
            unfinished.replace(mark)
            deadline = time.monotonic() + longest_s
            while (
                place == where
                and task >= from_task
                and not Path(folder, "go").exists()
                and time.monotonic() < deadline
            ):
                time.sleep(0.01)

        for number, batch in enumerate(batches):
            if number == 0:
                wait("rows")
            yield batch
        wait("end")

    longest_s = _LONGEST_S
    return rows.mapInArrow(passing, rows.schema)


def held_batch(batch: RecordBatch) -> RecordBatch:
    """The rows as they are; tasks are numbered as their first rows come."""
    folder = os.environ.get(_FOLDER)
    if folder is None or not batch.num_rows or os.getpid() in _SEEN:
        return batch
    _SEEN.add(os.getpid())
    task = _numbered(Path(folder))
    deadline = time.monotonic() + _LONGEST_S
    while (
        task >= int(os.environ[_FROM_TASK])
        and not Path(folder, "go").exists()
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    return batch


def _numbered(folder: Path) -> int:
    """The next number that no task has; its mark is there whole or not at all."""
    unfinished = folder / f"unfinished-{os.getpid()}.tmp"
    unfinished.write_text(str(os.getpid()))
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, folder / f"rows-{number}")
            break
    unfinished.unlink()
    return number


_SEEN: set[int] = set()
"""This process, once its task has passed its first rows."""
