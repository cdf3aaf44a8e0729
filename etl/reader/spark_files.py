"""The data files of a plan by tasks that Spark schedules, one Spark partition each, as it does
those of the data source.

One `collect`, and nothing behind the writing that would run it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etl.io.progress_port import ProgressAddress
from etl.model.plans import FilesWanted, RangeResult, Written
from etl.reader.kept_worker import begin_task
from etl.reader.reading import Reading
from etl.reader.receipts import Merge, ReceiptAccumulator
from etl.reader.task_rows import attempt_number
from etl.reader.tasks import Task
from etl.reader.written import write_task

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession


class PlannedFiles:
    """The rows of a plan, not read yet. `receipts` come at each task's end, as those of the data
    source do.
    """

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
        self.receipts = ReceiptAccumulator(self._accumulator, merge)

    def write(self, wanted: FilesWanted) -> Sequence[Written]:
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
