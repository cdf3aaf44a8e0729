"""How does Spark run the tasks of a plan, and how do their results return?

One Spark partition per task, as a DataFrame or, where tasks write files, as one `collect`. The data
source is not used: Spark would start a Python process to ask for its schema and another one for its
partitions, and a run knows both. Results return by an accumulator.
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
from etl.reader.options import for_a_pipeline
from etl.reader.reading import Reading, Task
from etl.reader.task_rows import attempt_number, begin_task, rows_of_task, write_task

if TYPE_CHECKING:
    import pyarrow
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class RangeResultAccumulator:
    """Range results, by index in the plan. A range that is read twice has one."""

    def __init__(self, accumulator: Accumulator[dict[int, RangeResult]], merge: Merge) -> None:
        self._accumulator, self._merge = accumulator, merge

    @property
    def receipts(self) -> dict[int, RangeResult]:
        """Return the results so far; complete when the job has succeeded."""
        return dict(self._accumulator.value)

    @property
    def last_came(self) -> float | None:
        """When the last of them came, by `time.monotonic`."""
        return self._merge.last_came

    def in_order(self, count: int) -> tuple[RangeResult, ...] | None:
        """Return a result for each of `count` ranges, or None if some are missing: the job failed,
        or Delta skipped it.
        """
        found = self.receipts
        if all(i in found for i in range(count)):
            return tuple(found[i] for i in range(count))
        return None


class Merge(AccumulatorParam[dict[int, RangeResult]]):
    """Results of a range are equal for all attempts."""

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
    reading: Reading,
    progress: ProgressAddress | None = None,
) -> tuple[DataFrame, RangeResultAccumulator]:
    """Return the rows of these tasks, read lazily, in the columns of `reading` or of its transform,
    and their future results. A failing task raises TaskFailed (`rows_of_task`), which a run
    converts by `errors.unmark`.
    """
    merge = Merge()
    accumulator: Accumulator[dict[int, RangeResult]] = spark.sparkContext.accumulator({}, merge)

    def note(index: int, receipt: RangeResult) -> None:
        accumulator.add({index: receipt})

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
                        advise=for_a_pipeline,
                    )

    return _rows_of(spark, tasks).mapInArrow(read, _columns(reading)), RangeResultAccumulator(
        accumulator, merge
    )


def _columns(reading: Reading) -> StructType | str:
    """Those of the rows that tasks give, as Spark has them."""
    if reading.transform is None:
        return spark_schema(reading.columns, physical=reading.physical)
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(reading.transform.stored, prefer_timestamp_ntz=True)


def _rows_of(spark: SparkSession, tasks: Sequence[Task]) -> DataFrame:
    """A row of bytes for each task, a pickled list of it, in a Spark partition of its own.

    Of a DataFrame that comes of an RDD Spark does not know how large it is. Of what comes of a
    `range`, or of rows that the driver has, it would think that it is little, and in a transform's
    join it would broadcast the rows of the plan.
    """
    from pyspark.sql import DataFrame

    pickled = spark.sparkContext.parallelize(
        tasks, max(1, len(tasks))
    )._jrdd  # no public way to rows that no Python worker makes
    jvm: Any = spark._jvm
    binary = jvm.org.apache.spark.sql.Encoders.BINARY()
    return DataFrame(spark._jsparkSession.createDataset(pickled.rdd(), binary).toDF(), spark)


class PlannedFiles:
    """The rows of a plan, not read yet. `receipts` arrive when tasks end."""

    def __init__(
        self,
        spark: SparkSession,
        tasks: Sequence[Task],
        reading: Reading,
        progress: ProgressAddress | None,
    ) -> None:
        self._spark, self._tasks, self._reading, self._progress = spark, tasks, reading, progress
        merge = Merge()
        self._accumulator: Accumulator[dict[int, RangeResult]] = spark.sparkContext.accumulator(
            {}, merge
        )
        self.receipts = RangeResultAccumulator(self._accumulator, merge)

    def write(self, wanted: FileOptions) -> Sequence[Written]:
        """Read all and write it; what each task gave back. Raises what Spark raises, a task's error
        inside (`errors.unmark`).
        """
        reading, progress, accumulator = self._reading, self._progress, self._accumulator

        def write(task: Task) -> Written:
            begin_task()
            found = write_task(task, reading, wanted, progress, attempt=attempt_number())
            accumulator.add(dict(found.receipts))
            return found

        return (
            self._spark.sparkContext.parallelize(self._tasks, len(self._tasks)).map(write).collect()
        )
