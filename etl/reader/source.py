"""`offset_ranges`: exact offset ranges of Kafka logs as a Spark DataFrame, by Spark's Python Data Source API.

It works without the rest of this package's machinery:

    from etl import OffsetRanges

    spark.dataSource.register(OffsetRanges)
    clicks = spark.read.format("offset_ranges").option("bootstrap", "127.0.0.1:9092").option("topics", "clicks").load()

reads everything that is readable now; the logs' ends are fixed when a query is planned. The options are those of `options`: our own,
and those of Spark's Kafka source, so that `format("kafka")` becomes `format("offset_ranges")` and nothing else changes. The README
lists them.

It owns how tasks and receipts travel. What options mean belongs to `options`, how ranges are packed to `decisions.tasks`, reading them to
`fetch`. A run hands over the tasks that it planned (`read_tasks`) and gets back, with the rows, a receipt for each range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from etl.edges.progress_port import ProgressAddress, Teller
from etl.errors import EtlError, SparkLost
from etl.model.logs import BrokerPartition, Cleanup, Dialect, Isolation, Tail
from etl.model.plans import OffsetRange, Receipt
from etl.model.raw_table import spark_schema
from etl.protocol.error_line import mark
from etl.reader.advice import for_a_pipeline, for_options
from etl.reader.alone import tasks_of
from etl.reader.option_names import INTERNAL
from etl.reader.options import parse_options
from etl.reader.receipts import Merge, ReceiptAccumulator
from etl.reader.tasks import INLINE_BYTES, NAME, keep_file, render_tasks
from etl.settings.fetch_sizes import FETCH_LIMIT_BYTES, FETCH_MAX_BYTES, MAX_RECORD_BYTES, TIMEOUT_S

if TYPE_CHECKING:
    import pyarrow
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_PATIENCE_S, _LATER_PATIENCE_S = 120.0, 30.0
"""How long a log may give nothing in the first attempt of a task, and in those after it: Spark tries four times, and a run over a dead
network should end within minutes."""


class TaskFailed(RuntimeError):
    """Carries an EtlError through Spark's traceback; `error_line.unmark` finds it there again."""


class OffsetRanges(DataSource):
    """The data source; see the module. Wrong options raise SettingsError at `load()`."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` is given."""
        return NAME

    def schema(self) -> str:
        """The chosen columns of the raw table."""
        reading = parse_options(self.options)
        return spark_schema(reading.columns, physical=reading.physical)

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader of the options; `schema` is the one from above."""
        return RangesReader(self.options, self.note, self.progress)

    progress: ClassVar[ProgressAddress | None] = None
    """Where tasks tell how far they are. Alone, nobody asks."""

    @staticmethod
    def note(index: int, receipt: Receipt) -> None:
        """Take the receipt of one range. Alone, nobody asks for it."""


class RangesReader(DataSourceReader):
    """Plans in a process of the driver's machine, reads in the executors."""

    def __init__(self, options: Mapping[str, str], note: Any, progress: ProgressAddress | None = None) -> None:
        self._options = dict(options)
        self._reading = parse_options(options)
        self._note, self._progress = note, progress

    def partitions(self) -> list[InputPartition]:
        """One Spark partition for each task."""
        return [InputPartition(task) for task in tasks_of(self._options, self._reading)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Arrow batches of one task's ranges, none for a task that has none. Spark makes one empty partition where there is no task."""
        from pyspark import TaskContext

        from etl.reader.fetch import read_ranges

        task, context = partition.value, TaskContext.get()
        if task is None or not task.ranges:
            return
        reading, note, attempt = self._reading, self._note, context.attemptNumber() if context else 0
        again, teller = attempt > 0, Teller(self._progress, task.number, attempt)
        try:
            yield from read_ranges(
                _afresh(task.ranges) if again else task.ranges, deadline_s=_LATER_PATIENCE_S if again else _PATIENCE_S,
                isolation=reading.isolation, columns=reading.columns, bootstrap=_addresses(task.ranges, reading.bootstrap),
                fetch_max_bytes=reading.fetch_max_bytes, fetch_limit_bytes=reading.fetch_limit_bytes, timeout_s=reading.timeout_s,
                on_receipt=lambda at, receipt: note(task.indices[at], receipt), topic_ids=task.topic_ids,
                leader_epochs=task.leader_epochs, log_epochs=task.log_epochs, cleanups=task.cleanups, tails=task.tails,
                fails_on_loss=reading.fails_on_data_loss, on_read=teller.read, max_record_bytes=reading.max_record_bytes,
                generation=reading.generation,
            )
        except EtlError as error:
            told = for_a_pipeline(error) if self._options.keys() & set(INTERNAL) else for_options(error)
            raise TaskFailed(f"{told}\n{mark(told)}") from error
        finally:
            teller.close()


def receiving(spark: SparkSession, address: ProgressAddress | None = None) -> tuple[type[OffsetRanges], ReceiptAccumulator]:
    """A data source of its own name whose receipts come back to this driver; meanwhile its tasks tell at `address` how far they are.

    Spark starts sources in other processes and hands them only text, but a class made here is pickled with what it closes over.
    """
    merge = Merge()
    accumulator: Accumulator[dict[int, Receipt]] = spark.sparkContext.accumulator({}, merge)
    own_name = f"{NAME}_{accumulator.aid}"

    class Receiving(OffsetRanges):
        """OffsetRanges that gives its receipts to the driver."""

        progress = address

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
    broker_version: str | None = None, tails: Mapping[BrokerPartition, Tail] | None = None,
) -> tuple[DataFrame, ReceiptAccumulator]:
    """The rows of a plan's ranges, packed as `tasks` says (indices of `ranges`), and the receipts to come.

    Leaders travel with the ranges, so executors ask nobody; only a task that is tried again looks them up at `bootstrap`
    (`host:port` each). A topic that no longer has the id of `topic_ids` when it was read fails the task (TopicMadeAgain), and so does a log
    that no longer reaches up to its ranges in the epoch of `leader_epochs` or holds other bytes than those of `tails` (LogTruncated), and
    offsets missing from a topic whose cleaning, by `cleanups`, does not explain it (MissingOffsets). Rows carry their log's epoch of
    `log_epochs`. `physical`: all logs are (`BrokerPartition.is_physical`), and the rows have the columns of such. `broker_version`: as what
    brokers are spoken to whom nobody told anything else.
    """
    source, receipts = receiving(spark, progress)
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
    except SparkLost:
        return reader.load()


def _afresh(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """For a task that is tried again: whom the driver knew as leader may be why it failed. Nobody else ever leads a physical log."""
    return [r if r.log.is_physical else replace(r, leader=None) for r in ranges]


def _addresses(ranges: Sequence[OffsetRange], bootstrap: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Whom to ask for leaders: the leaders themselves may be the last brokers that still answer."""
    leaders = [(r.leader.broker.host, r.leader.broker.port) for r in ranges if r.leader]
    return list(dict.fromkeys([*bootstrap, *leaders]))
