"""What does a task do where it runs: rows, data files, results, retries?

The fetch loop with the task's retries and errors. Rows go to Spark, or into data files written
where they are decoded, so that none passes the JVM; each attempt writes files of its own names, and
only those that are returned are committed.

Garbage collection: pyspark collects after each task (`pyspark/daemon.py`). With kernels and pyarrow
loaded that are 190,000 live objects, 0.05 to 0.09 s of CPU per task. They are frozen instead.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from etl.errors import EtlError, mark
from etl.io.process import REQUEST_METER
from etl.io.progress_port import ProgressAddress, Teller
from etl.model.plans import FileOptions, OffsetRange, RangeResult, Written, since
from etl.reader.options import for_a_pipeline
from etl.reader.reading import Reading, Task

if TYPE_CHECKING:
    import pyarrow


_PATIENCE_S, _LATER_PATIENCE_S = 120.0, 30.0
"""How long a log may give nothing in the first attempt of a task, and in those after it: Spark
tries four times, and a run over a dead network should end within minutes."""


class TaskFailed(RuntimeError):
    """Carries an EtlError through Spark's traceback; `errors.unmark` finds it there again."""


def failed(error: EtlError) -> TaskFailed:
    """Return what a task raises instead of the error."""
    return TaskFailed(f"{error}\n{mark(error)}")


def attempt_number() -> int:
    """Which attempt of its task this process is at, from 0; 0 where there is no task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context else 0


def rows_of_task(
    task: Task,
    reading: Reading,
    *,
    attempt: int,
    note: Callable[[int, RangeResult], None],
    progress: ProgressAddress | None,
    advise: Callable[[EtlError], EtlError],
) -> Iterator[pyarrow.RecordBatch]:
    """Yield Arrow batches of the task's ranges, after the transform. `note` is called with (index,
    result) of each range. Raises TaskFailed with the error as `advise` returns it.
    """
    from etl.reader.fetch import read_ranges

    def made_of(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        if reading.transform is None:
            return batches
        from etl.reader.batch_transform import transformed

        return transformed(batches, reading.transform)

    again, teller = attempt > 0, Teller(progress, task.number, attempt)
    requests = REQUEST_METER.told()

    def done(at: int, receipt: RangeResult) -> None:
        nonlocal requests
        before, requests = requests, REQUEST_METER.told()
        note(task.indices[at], replace(receipt, requests=tuple(since(before, requests).items())))

    try:
        yield from made_of(
            read_ranges(
                _afresh(task.ranges) if again else task.ranges,
                deadline_s=_LATER_PATIENCE_S if again else _PATIENCE_S,
                isolation=reading.isolation,
                columns=reading.columns,
                bootstrap=_addresses(task.ranges, reading.bootstrap),
                fetch_max_bytes=reading.fetch_max_bytes,
                max_batch_bytes=reading.max_batch_bytes,
                timeout_s=reading.timeout_s,
                on_receipt=done,
                topic_ids=task.topic_ids,
                leader_epochs=task.leader_epochs,
                incarnations=task.incarnations,
                cleanups=task.cleanups,
                tails=task.tails,
                fails_on_loss=reading.fails_on_data_loss,
                on_read=teller.read,
                max_record_bytes=reading.max_record_bytes,
                generation=reading.generation,
                security=reading.security,
            )
        )
    except EtlError as error:
        raise failed(advise(error)) from error
    finally:
        teller.close()


def _afresh(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Drop the driver's leaders for a repeated task, since they may be why it failed. A Jafka
    partition has only one.
    """
    return [r if r.log.is_physical else replace(r, leader=None) for r in ranges]


def _addresses(
    ranges: Sequence[OffsetRange], bootstrap: Sequence[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return the brokers to ask for leaders: the leaders themselves may be the last that answer."""
    leaders = [(r.leader.broker.host, r.leader.broker.port) for r in ranges if r.leader]
    return list(dict.fromkeys([*bootstrap, *leaders]))


def write_task(
    task: Task,
    reading: Reading,
    wanted: FileOptions,
    progress: ProgressAddress | None = None,
    *,
    attempt: int = 0,
) -> Written:
    """Write the task's ranges into files, in one attempt. Raises TaskFailed."""
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
def _telling_obstacles(wanted: FileOptions) -> Iterator[None]:
    """Context manager: report failures of the table's directory (space, permissions) and invalid
    values as such. Raises TaskFailed.
    """
    from etl.io.delta.stores import public_cause, unreachable

    try:
        yield
    except (OSError, EtlError) as error:
        if isinstance(error, EtlError):
            marked = error
        else:
            marked = unreachable(error, wanted.root, "written")
        raise TaskFailed(f"{marked}\n{mark(marked)}") from public_cause(error, wanted.root)


_tasks = 0


def begin_task() -> None:
    """Note that a Spark task begins in this process. At the second one all objects are frozen
    (`gc.freeze`): pyspark has just collected, so none is garbage. They are still freed with their
    last reference.
    """
    global _tasks
    _tasks += 1
    if _tasks == 2:
        gc.freeze()
