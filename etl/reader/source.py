"""How does Spark read offset ranges as a data source of its own?

`offset_ranges`: exact offset ranges of Kafka logs as a Spark DataFrame, by Spark's Python Data
Source API.

It works without the rest of this package's machinery:

    from etl import OffsetRanges

    spark.dataSource.register(OffsetRanges)
    clicks = spark.read.format("offset_ranges").option("bootstrap", "127.0.0.1:9092").option("topics", "clicks").load()

reads everything that is readable when a query runs. The options are those of `options`: our own,
and those of Spark's Kafka source, so that `format("kafka")` becomes `format("offset_ranges")` and
nothing else changes. They are listed in docs/READER.md.

Spark 4.2 calls `reader` and `partitions` once for a DataFrame, and keeps both for all its queries,
and for views of it (`PythonDataSourceV2.getOrCreateReadInfo`). So `partitions` says how many tasks
there are and what each stands for, and `read` looks up the bounds of the logs where they are not
given as offsets.

What options mean belongs to `options`, how ranges are packed to `decide.tasks`, reading them to
`task_rows` and `fetch`. A run, which has planned its tasks, reads them by `spark_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from etl.errors import EtlError
from etl.model.columns import raw_columns, spark_schema
from etl.reader.advice import for_options, in_options
from etl.reader.alone import bound_now, tasks_of
from etl.reader.kept_worker import begin_task
from etl.reader.options import columns_of_schema, parse_options
from etl.reader.task_rows import TaskFailed, attempt_number, failed, rows_of_task
from etl.reader.tasks import NAME, QueryTask

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


__all__ = ["OffsetRanges", "RangesReader", "TaskFailed"]


class OffsetRanges(DataSource):
    """The data source; see the module. Wrong options raise SettingsError at `load()`."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` is given."""
        return NAME

    def schema(self) -> str | StructType:
        """The chosen columns of the raw table."""
        reading = parse_options(self.options)
        return spark_schema(reading.columns, physical=reading.physical)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        """A reader of the options; `schema` is the one from above, or names the columns that the
        query's author wants of it.

        It takes no filters (`pushFilters`): Spark 4.2 keeps what those of one query left, and gives
        it to others of the same DataFrame.
        """
        return RangesReader(self.options, schema)


class RangesReader(DataSourceReader):
    """Plans in a process of the driver's machine, reads in the executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType | None = None) -> None:
        chosen = parse_options(options)
        self._names = chosen.columns if schema is None else columns_of_schema(schema, chosen)
        self._reading = replace(chosen, columns=raw_columns(self._names, physical=chosen.physical))

    def partitions(self) -> list[InputPartition]:
        """One Spark partition for each task."""
        try:
            return [InputPartition(task) for task in tasks_of(self._reading)]
        except EtlError as error:
            raise in_options(error) from None

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Arrow batches of one task's ranges, none for a task that has none. Spark makes one empty
        partition where there is no task.
        """
        begin_task()
        task = partition.value
        if isinstance(task, QueryTask):
            try:
                task = bound_now(task, self._reading)
            except EtlError as error:
                raise failed(for_options(error)) from error
        if task is None or not task.ranges:
            return
        rows = rows_of_task(
            task,
            self._reading,
            attempt=attempt_number(),
            note=lambda index, receipt: None,
            progress=None,
            advise=for_options,
        )
        yield from (
            rows
            if self._names == self._reading.columns
            else (batch.select(list(self._names)) for batch in rows)
        )
