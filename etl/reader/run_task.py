"""What does a task do in its process: rows, data files, results, retries?

The fetch loop with the task's retries and errors. Rows go to Spark, or into data files that the
same process writes, so that no row passes the JVM. Each attempt writes files with names of its own,
and only the files of the returned attempt are committed.

Garbage collection: pyspark collects after each task (`pyspark/daemon.py`). With kernels and pyarrow
there are 190,000 live objects, 0.05 to 0.09 s of CPU per task. They are frozen instead.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etl.errors import EtlError, mark
from etl.io.process import REQUEST_METER
from etl.io.progress_port import ProgressAddress, ProgressSender
from etl.model.plans import FileOptions, OffsetRange, RangeResult, Written, since
from etl.reader.options import with_pipeline_advice
from etl.reader.query_ranges import ReadOptions, Task
from etl.settings.secrets import use_shipped_files

if TYPE_CHECKING:
    import pyarrow


_DEADLINE_S = 120.0
_RETRY_DEADLINE_S = 30.0
"""Time that a partition may return nothing in the first attempt of a task, and in later attempts:
Spark tries four times, and a run over a dead network should end within minutes.
"""


class TaskFailed(RuntimeError):
    """Carries an EtlError through Spark's traceback; `errors.unmark` extracts it."""


def failed(error: EtlError) -> TaskFailed:
    """Return the exception that a task raises instead of the error."""
    return TaskFailed(f"{error}\n{mark(error)}")


def attempt_number() -> int:
    """Return the number of the attempt in this process, from 0; 0 outside of a Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context else 0


def rows_of_task(
    task: Task,
    reading: ReadOptions,
    *,
    attempt: int,
    note: Callable[[int, RangeResult], None],
    progress: ProgressAddress | None,
    advise: Callable[[EtlError], EtlError],
) -> Iterator[pyarrow.RecordBatch]:
    """Yield Arrow batches of the task's ranges, after the transform.

    `note` is called with (index, result) of each range. Raises TaskFailed with the error as
    `advise` returns it.
    """
    from etl.reader.fetch import read_ranges

    reporter = ProgressSender(progress, task.number, attempt)
    requests = REQUEST_METER.counts()
    left_out = _LeftOut(task.ranges)

    def on_result(number: int, result: RangeResult) -> None:
        nonlocal requests
        before = requests
        requests = REQUEST_METER.counts()
        sent = tuple(since(before, requests).items())
        result = result.without_left_out(left_out.count_of(number))
        note(task.indices[number], replace(result, requests=sent))

    ranges: Sequence[OffsetRange] = task.ranges
    deadline_s = _DEADLINE_S
    if attempt > 0:
        ranges = _without_leaders(ranges)
        deadline_s = _RETRY_DEADLINE_S
    addresses = _addresses(task.ranges, reading.fetch.bootstrap)
    options = replace(reading.fetch, deadline_s=deadline_s, bootstrap=addresses)
    try:
        rows = read_ranges(
            ranges,
            options,
            columns=reading.columns,
            on_result=on_result,
            topic_ids=task.topic_ids,
            leader_epochs=task.leader_epochs,
            incarnations=task.incarnations,
            cleanups=task.cleanups,
            fingerprints=task.fingerprints,
            on_read=reporter.read,
        )
        if reading.transform is None:
            yield from rows
        else:
            from etl.reader.batch_transform import transformed

            yield from transformed(rows, reading.transform, left_out.add)
    except EtlError as error:
        raise failed(advise(error)) from error
    finally:
        reporter.close()


class _LeftOut:
    """Records of each range that a transform left out."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self._ranges = ranges
        self._counts: Counter[int] = Counter()
        self._of_partition: dict[tuple[Any, ...], list[int]] = {}
        for number, each in enumerate(ranges):
            place = tuple(each.partition.place.values())
            self._of_partition.setdefault(place, []).append(number)

    def add(self, batch: pyarrow.RecordBatch, count: int) -> None:
        """Add the records that were left out of a batch, which is of one range."""
        names = self._ranges[0].partition.place
        place = tuple(batch.column(name)[0].as_py() for name in names)
        offset = batch.column("offset")[0].as_py()
        for number in self._of_partition[place]:
            if self._ranges[number].from_offset <= offset < self._ranges[number].until_offset:
                self._counts[number] += count

    def count_of(self, number: int) -> int:
        """Return the records that were left out of a range."""
        return self._counts[number]


def _without_leaders(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges without the driver's leaders, which may have made the task fail.

    A Jafka partition has one broker, so its leader stays.
    """
    result = []
    for each in ranges:
        if each.partition.is_physical:
            result.append(each)
        else:
            result.append(replace(each, leader=None))
    return result


def _addresses(
    ranges: Sequence[OffsetRange], bootstrap: Sequence[tuple[str, int]]
) -> tuple[tuple[str, int], ...]:
    """Return the brokers to request leaders from.

    The leaders are among them, since they may be the only brokers that still answer.
    """
    leaders = [(r.leader.broker.host, r.leader.broker.port) for r in ranges if r.leader]
    return tuple(dict.fromkeys([*bootstrap, *leaders]))


def write_task(
    task: Task,
    reading: ReadOptions,
    options: FileOptions,
    progress: ProgressAddress | None = None,
    *,
    attempt: int = 0,
) -> Written:
    """Write the task's ranges into files, in one attempt. Raises TaskFailed."""
    from etl.io.delta.data_files import DataFiles, needed_columns

    results: dict[int, RangeResult] = {}
    has_transform = reading.transform is not None
    row_count = 0
    with _as_task_failed(options):
        files = DataFiles(options, task=task.number, attempt=attempt)
    if not has_transform:
        reading = replace(reading, columns=needed_columns(options))
    rows = rows_of_task(
        task,
        reading,
        attempt=attempt,
        note=results.__setitem__,
        progress=progress,
        advise=with_pipeline_advice,
    )
    try:
        for batch in rows:
            row_count += batch.num_rows
            with _as_task_failed(options):
                files.take(batch)
        with _as_task_failed(options):
            transformed_rows = row_count if has_transform else None
            return Written(task.indices, files.end(), results, transformed_rows)
    except BaseException:
        files.abandon()
        raise


@contextlib.contextmanager
def _as_task_failed(options: FileOptions) -> Iterator[None]:
    """Raise TaskFailed for failures of the table's directory (space, permissions) and for values
    that the table cannot store.
    """
    from etl.io.delta.stores import public_cause, unreachable

    try:
        yield
    except (OSError, EtlError) as error:
        if isinstance(error, EtlError):
            failure = error
        else:
            failure = unreachable(error, options.root, "written")
        raise failed(failure) from public_cause(error, options.root)


_tasks = 0
"""Spark tasks that began in this process."""


def begin_task() -> None:
    """Count a Spark task of this process.

    At the second one all objects are frozen (`gc.freeze`): pyspark has just collected, so none is
    garbage. They are still freed with their last reference.
    """
    global _tasks
    _tasks += 1
    if _tasks == 1:
        _find_shipped_files()
    if _tasks == 2:
        gc.freeze()


def _find_shipped_files() -> None:
    """Look for secrets and certificates among the files of `spark-submit --files`, too.

    In local mode Spark copies them into a directory of its own, which is not the working directory.
    """
    from pyspark import SparkFiles, TaskContext

    if TaskContext.get() is not None:
        use_shipped_files(SparkFiles.getRootDirectory())


def results_in_order(
    results: Mapping[int, RangeResult], count: int
) -> tuple[RangeResult, ...] | None:
    """Return the results of `count` ranges by index; None if some are missing."""
    in_order = []
    for i in range(count):
        if i not in results:
            return None
        in_order.append(results[i])
    return tuple(in_order)
