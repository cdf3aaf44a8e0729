"""The rows of a plan as a Spark DataFrame, by tasks that the run planned: one Spark partition each.

They are what the data source of `source` would give. But Spark asks a data source for its schema
and for its partitions, each in a Python process that it starts for the question, and a run knows
both.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from etl.io.progress_port import ProgressAddress
from etl.model.columns import spark_schema
from etl.model.plans import RangeResult
from etl.reader.advice import for_a_pipeline
from etl.reader.kept_worker import begin_task
from etl.reader.reading import Reading
from etl.reader.receipts import Merge, ReceiptAccumulator
from etl.reader.task_rows import attempt_number, rows_of_task
from etl.reader.tasks import Task

if TYPE_CHECKING:
    import pyarrow
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def read_tasks(
    spark: SparkSession,
    tasks: Sequence[Task],
    reading: Reading,
    progress: ProgressAddress | None = None,
) -> tuple[DataFrame, ReceiptAccumulator]:
    """The rows of these tasks in the columns of `reading`, or in those that its transform makes of
    them, read when somebody asks for them; and the receipts to come.

    A task that fails raises TaskFailed (`rows_of_task`) where it runs; what a run makes of it is
    `errors.unmark`'s.
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

    return _rows_of(spark, tasks).mapInArrow(read, _columns(reading)), ReceiptAccumulator(
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
