"""`offset_ranges`: exact offset ranges of Kafka logs as a Spark DataFrame, by Spark's Python Data Source API.

It works without the rest of this package's machinery:

    from etl import OffsetRanges

    spark.dataSource.register(OffsetRanges)
    clicks = spark.read.format("offset_ranges").option("bootstrap", "127.0.0.1:9092").option("topics", "clicks").load()

reads everything that is readable now; the logs' ends are fixed when a query is planned. The options are those of `options`: our own,
and those of Spark's Kafka source, so that `format("kafka")` becomes `format("offset_ranges")` and nothing else changes. They are listed
in docs/READER.md.

It owns how tasks and receipts travel. What options mean belongs to `options`, how ranges are packed to `decisions.tasks`, reading them to
`task_rows` and `fetch`. A run hands over the tasks that it planned (`read_tasks`) and gets back, with the rows, a receipt for each range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from etl.edges.progress_port import ProgressAddress
from etl.errors import ProcessLost
from etl.model.logs import BrokerPartition, Cleanup, Dialect, Isolation, Tail
from etl.model.plans import OffsetRange
from etl.model.raw_table import raw_columns, spark_schema
from etl.model.receipts import Receipt
from etl.reader.advice import for_a_pipeline, for_options
from etl.reader.alone import tasks_of
from etl.reader.kept_worker import begin_task
from etl.reader.option_names import INTERNAL
from etl.reader.options import columns_of_schema, parse_options
from etl.reader.receipts import Merge, ReceiptAccumulator
from etl.reader.task_rows import TaskFailed, attempt_number, rows_of_task
from etl.reader.tasks import INLINE_BYTES, NAME, keep_file, render_tasks
from etl.settings.fetch_sizes import FETCH_LIMIT_BYTES, FETCH_MAX_BYTES, MAX_RECORD_BYTES, TIMEOUT_S

__all__ = ["OffsetRanges", "RangesReader", "TaskFailed", "read_tasks", "receiving"]

if TYPE_CHECKING:
    import pyarrow
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from etl.reader.arrow_transform import ArrowTransform


class OffsetRanges(DataSource):
    """The data source; see the module. Wrong options raise SettingsError at `load()`."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` is given."""
        return NAME

    def schema(self) -> str | StructType:
        """The chosen columns of the raw table, or those that a run's transform makes."""
        if self.transform is not None:
            from pyspark.sql.pandas.types import from_arrow_schema

            return from_arrow_schema(self.transform.stored, prefer_timestamp_ntz=True)
        reading = parse_options(self.options)
        return spark_schema(reading.columns, physical=reading.physical)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        """A reader of the options; `schema` is the one from above, or names the columns that the query's author wants of it.

        It takes no filters (`pushFilters`): Spark 4.2 keeps what those of one query left, and gives it to others of the same DataFrame.
        """
        return RangesReader(self.options, self.note, self.progress, None if self.transform else schema, self.transform)

    progress: ClassVar[ProgressAddress | None] = None
    """Where tasks tell how far they are. Alone, nobody asks."""
    transform: ClassVar[ArrowTransform | None] = None
    """What a run's tasks make of their rows."""

    @staticmethod
    def note(index: int, receipt: Receipt) -> None:
        """Take the receipt of one range. Alone, nobody asks for it."""


class RangesReader(DataSourceReader):
    """Plans in a process of the driver's machine, reads in the executors."""

    def __init__(
        self, options: Mapping[str, str], note: Any, progress: ProgressAddress | None = None, schema: StructType | None = None,
        transform: ArrowTransform | None = None,
    ) -> None:
        self._options, self._note, self._progress = dict(options), note, progress
        chosen = parse_options(options)
        self._names = chosen.columns if schema is None else columns_of_schema(schema, chosen)
        self._reading = replace(chosen, columns=raw_columns(self._names, physical=chosen.physical), transform=transform)

    def partitions(self) -> list[InputPartition]:
        """One Spark partition for each task."""
        return [InputPartition(task) for task in tasks_of(self._options, self._reading)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Arrow batches of one task's ranges, none for a task that has none. Spark makes one empty partition where there is no task."""
        begin_task()
        task = partition.value
        if task is None or not task.ranges:
            return
        advise = for_a_pipeline if self._options.keys() & set(INTERNAL) else for_options
        rows = rows_of_task(
            task, self._reading, attempt=attempt_number(), note=self._note, progress=self._progress, advise=advise)
        yield from rows if self._names == self._reading.columns else (batch.select(list(self._names)) for batch in rows)


def receiving(
    spark: SparkSession, address: ProgressAddress | None = None, made_by: ArrowTransform | None = None,
) -> tuple[type[OffsetRanges], ReceiptAccumulator]:
    """A data source of its own name whose receipts come back to this driver; meanwhile its tasks tell at `address` how far they are.

    Its rows are those that `made_by` makes of what is read.

    Spark starts sources in other processes and hands them only text, but a class made here is pickled with what it closes over.
    """
    merge = Merge()
    accumulator: Accumulator[dict[int, Receipt]] = spark.sparkContext.accumulator({}, merge)
    own_name = f"{NAME}_{accumulator.aid}"

    class Receiving(OffsetRanges):
        """OffsetRanges that gives its receipts to the driver."""

        progress, transform = address, made_by

        @classmethod
        def name(cls) -> str:
            return own_name

        @staticmethod
        def note(index: int, receipt: Receipt) -> None:
            accumulator.add({index: receipt})

    return Receiving, ReceiptAccumulator(accumulator, merge)


def read_tasks(
    spark: SparkSession, ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]], *, bootstrap: Sequence[str],
    isolation: Isolation, fetch_max_bytes: int = FETCH_MAX_BYTES, fetch_limit_bytes: int = FETCH_LIMIT_BYTES, timeout_s: float = TIMEOUT_S,
    topic_ids: Mapping[str, str] | None = None, leader_epochs: Mapping[BrokerPartition, int] | None = None,
    log_epochs: Mapping[BrokerPartition, int] | None = None, cleanups: Mapping[str, Cleanup] | None = None,
    progress: ProgressAddress | None = None, max_record_bytes: int = MAX_RECORD_BYTES, physical: bool = False,
    broker_version: str | None = None, tails: Mapping[BrokerPartition, Tail] | None = None, transform: ArrowTransform | None = None,
) -> tuple[DataFrame, ReceiptAccumulator]:
    """The rows of a plan's ranges, packed as `tasks` says (indices of `ranges`), and the receipts to come.

    Leaders travel with the ranges, so executors ask nobody; only a task that is tried again looks them up at `bootstrap`
    (`host:port` each). A topic that no longer has the id of `topic_ids` when it was read fails the task (TopicMadeAgain), and so does a log
    that no longer reaches up to its ranges in the epoch of `leader_epochs` or holds other bytes than those of `tails` (LogTruncated), and
    offsets missing from a topic whose cleaning, by `cleanups`, does not explain it (MissingOffsets). Rows carry their log's epoch of
    `log_epochs`. `physical`: all logs are (`BrokerPartition.is_physical`), and the rows have the columns of such. `broker_version`: as what
    brokers are spoken to whom nobody told anything else. `transform`: what tasks make of the rows.
    """
    source, receipts = receiving(spark, progress, transform)
    spark.dataSource.register(source)
    reader = spark.read.format(source.name()).option("bootstrap", ",".join(bootstrap)).option("isolation", isolation.value)
    reader = reader.option("fetch_max_bytes", fetch_max_bytes).option("fetch_limit_bytes", fetch_limit_bytes)
    reader = reader.option("max_record_bytes", max_record_bytes).option("timeout_s", timeout_s)
    if physical:
        reader = reader.option("dialect", Dialect.JAFKA.value)
    if broker_version is not None:
        reader = reader.option("broker_version", broker_version)
    text = render_tasks(ranges, tasks, topic_ids or {}, leader_epochs or {}, log_epochs or {}, cleanups or {}, tails or {})
    reader = reader.option("tasks", text) if len(text) <= INLINE_BYTES else reader.option("tasks_file", keep_file(text))
    return _loaded(reader), receipts


def _loaded(reader: DataFrameReader) -> DataFrame:
    """Spark asks a Python worker for the schema. It tries a task again whose worker dies, and that question it does not."""
    from etl.edges.spark.failures import translating_spark_errors

    try:
        with translating_spark_errors():
            return reader.load()
    except ProcessLost:
        return reader.load()
