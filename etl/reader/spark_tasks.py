"""How does Spark run the tasks of a plan, and how do their results return?

One Spark partition per task, as a DataFrame or, if tasks write files, as one `collect`. The data
source is not used: Spark would start one Python process for its schema and another for its
partitions, and a run knows both. Results return by an accumulator: `Observation.get` would wait for
ever if Delta skips the write.

Not here: the work of a task (etl/reader/run_task.py), the data source (etl/reader/source.py).
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

from etl.io.progress_port import ProgressAddress
from etl.model.columns import spark_schema
from etl.model.plans import FileOptions, RangeResult, Written
from etl.reader.options import with_pipeline_advice
from etl.reader.query_ranges import ReadOptions, Task
from etl.reader.run_task import (
    attempt_number,
    begin_task,
    results_in_order,
    rows_of_task,
    write_task,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class RangeResultAccumulator:
    """Range results, by index in the plan. A range that is read twice has one result."""

    def __init__(self, accumulator: Accumulator[dict[int, RangeResult]], merge: Merge) -> None:
        self._accumulator = accumulator
        self._merge = merge

    @property
    def results(self) -> dict[int, RangeResult]:
        """Return the results so far; complete when the job has succeeded."""
        return dict(self._accumulator.value)

    @property
    def last_came(self) -> float | None:
        """Time of the last result (`time.monotonic`)."""
        return self._merge.last_came

    def in_order(self, count: int) -> tuple[RangeResult, ...] | None:
        """Return a result for each of `count` ranges.

        None if some are missing: the job failed, Delta skipped it, or a transform with `limit()`
        did not read the rows of a task to their end.
        """
        return results_in_order(self.results, count)


class Merge(AccumulatorParam[dict[int, RangeResult]]):
    """Merges the results of tasks. Results of a range are equal for all attempts."""

    last_came: float | None = None

    def zero(self, value: dict[int, RangeResult]) -> dict[int, RangeResult]:
        return {}

    def addInPlace(
        self, value1: dict[int, RangeResult], value2: dict[int, RangeResult]
    ) -> dict[int, RangeResult]:
        self.last_came = time.monotonic()
        value1.update(value2)
        return value1


def read_tasks(
    spark: SparkSession,
    tasks: Sequence[Task],
    reading: ReadOptions,
    progress: ProgressAddress | None = None,
) -> tuple[DataFrame, RangeResultAccumulator]:
    """Return the rows of these tasks, read lazily, and their future results.

    The columns are those of `reading` or of its transform. A failing task raises TaskFailed
    (`rows_of_task`), which a run converts by `errors.unmark`.
    """
    merge = Merge()
    accumulator: Accumulator[dict[int, RangeResult]] = spark.sparkContext.accumulator({}, merge)

    def note(index: int, result: RangeResult) -> None:
        accumulator.add({index: result})

    def read(rows: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        begin_task()
        for batch in rows:
            for pickled in batch.column(0).to_pylist():
                for task in pickle.loads(pickled):
                    yield from rows_of_task(
                        task,
                        reading,
                        attempt=attempt_number(),
                        note=note,
                        progress=progress,
                        advise=with_pipeline_advice,
                    )

    rows = _pickled_tasks(spark, tasks).mapInArrow(read, _columns(reading))
    return rows, RangeResultAccumulator(accumulator, merge)


def _columns(reading: ReadOptions) -> StructType | str:
    """Return the Spark schema of the rows that tasks yield."""
    if reading.transform is None:
        return spark_schema(reading.columns, physical=reading.physical)
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(reading.transform.stored, prefer_timestamp_ntz=True)


def _pickled_tasks(spark: SparkSession, tasks: Sequence[Task]) -> DataFrame:
    """Return a row of bytes for each task (a pickled list of it), in a Spark partition of its own.

    Each Spark task receives its own row only; tasks in the closure would all be sent to each one.
    Spark does not know the size of a DataFrame that is made from an RDD. A `range`, or rows of the
    driver, would count as small, and a transform's join would broadcast the rows of the plan.
    """
    from pyspark.sql import DataFrame

    # There is no public way to rows that no Python worker makes.
    pickled = spark.sparkContext.parallelize(tasks, max(1, len(tasks)))._jrdd
    jvm: Any = spark._jvm
    binary = jvm.org.apache.spark.sql.Encoders.BINARY()
    return DataFrame(spark._jsparkSession.createDataset(pickled.rdd(), binary).toDF(), spark)


class PlannedFiles:
    """The rows of a plan, not read yet. `results` arrive when tasks end."""

    def __init__(
        self,
        spark: SparkSession,
        tasks: Sequence[Task],
        reading: ReadOptions,
        progress: ProgressAddress | None,
    ) -> None:
        self._spark = spark
        self._tasks = tasks
        self._reading = reading
        self._progress = progress
        merge = Merge()
        self._accumulator: Accumulator[dict[int, RangeResult]] = spark.sparkContext.accumulator(
            {}, merge
        )
        self.results = RangeResultAccumulator(self._accumulator, merge)

    def write(self, options: FileOptions) -> Sequence[Written]:
        """Read all ranges into files, and return the result of each task.

        Raises Spark's errors, with a task's error inside (`errors.unmark`).
        """
        # `write` is pickled for the executors, so it must not refer to `self`.
        reading = self._reading
        progress = self._progress
        accumulator = self._accumulator

        def write(task: Task) -> Written:
            begin_task()
            written = write_task(task, reading, options, progress, attempt=attempt_number())
            accumulator.add(dict(written.results))
            return written

        tasks = self._spark.sparkContext.parallelize(self._tasks, len(self._tasks))
        return tasks.map(write).collect()
