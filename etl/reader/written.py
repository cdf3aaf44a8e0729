"""The rows of a plan as data files that its tasks write: fetched and decoded where they are
encoded, so that none passes the JVM.

The same loop, retries and errors as those of the data source (`task_rows`); what comes back is a
small value of each task. Each attempt writes files of its own names, and only those that came back
are ever named by a commit. Who runs the tasks is `spark_files`', or `worker_pool`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from etl.errors import EtlError, mark
from etl.io.progress_port import ProgressAddress
from etl.model.plans import FilesWanted, RangeResult, Written
from etl.reader.advice import for_a_pipeline
from etl.reader.reading import Reading
from etl.reader.task_rows import TaskFailed, rows_of_task
from etl.reader.tasks import Task


def write_task(
    task: Task,
    reading: Reading,
    wanted: FilesWanted,
    progress: ProgressAddress | None = None,
    *,
    attempt: int = 0,
) -> Written:
    """What one attempt of a task does: its ranges into files. Raises TaskFailed."""
    from etl.io.delta.data_files import DataFiles, needed_columns

    receipts = dict[int, RangeResult]()
    is_made, taken = reading.transform is not None, 0
    with _telling_obstacles(wanted):
        files = DataFiles(wanted, task=task.number, attempt=attempt)
    rows = rows_of_task(
        task,
        reading if is_made else replace(reading, columns=needed_columns(wanted)),
        attempt=attempt,
        note=receipts.__setitem__,
        progress=progress,
        advise=for_a_pipeline,
    )
    try:
        for batch in rows:
            taken += batch.num_rows
            with _telling_obstacles(wanted):
                files.take(batch)
        with _telling_obstacles(wanted):
            return Written(task.indices, files.end(), receipts, taken if is_made else None)
    except BaseException:
        files.abandon()
        raise


@contextlib.contextmanager
def _telling_obstacles(wanted: FilesWanted) -> Iterator[None]:
    """Inside, what the table's folder refuses (no space, no right), or the rows' values, is told as
    that, and not as a bug.

    Raises TaskFailed.
    """
    from etl.io.delta.stores import behind, unreachable

    try:
        yield
    except (OSError, EtlError) as error:
        told = error if isinstance(error, EtlError) else unreachable(error, wanted.root, "written")
        raise TaskFailed(f"{told}\n{mark(told)}") from behind(error, wanted.root)
