"""`offset_ranges`: exact offset ranges of Kafka logs as a Spark DataFrame, by Spark's Python Data Source API.

It works without the rest of this package's machinery:

    from etl.datasource import OffsetRanges

    spark.dataSource.register(OffsetRanges)
    clicks = spark.read.format("offset_ranges").option("bootstrap", "127.0.0.1:9092").option("topics", "clicks").load()

reads everything that is readable now; the logs' ends are fixed when a query is planned. The options are those of `reader_options`: our own,
and those of Spark's Kafka source, so that `format("kafka")` becomes `format("offset_ranges")` and nothing else changes. The README
lists them.

It owns how tasks and receipts travel. What options mean belongs to `reader_options`, how ranges are packed to `packing`, reading them to
`fetch`. A run hands
over the tasks it planned (`read_tasks`) and gets back, with the rows, a receipt for each range.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark.accumulators import AccumulatorParam
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from etl.decisions.expiry import cleanup_of
from etl.decisions.tasks import cut_ranges, cut_to_offsets, pack_tasks, split_tasks
from etl.edges.progress_port import ProgressAddress, Teller
from etl.errors import BrokerUnreachable, EtlError, SparkLost, mark
from etl.model.plans import Broker, BrokerPartition, Cleanup, Isolation, Leader, OffsetRange, Receipt
from etl.model.raw_table import spark_schema
from etl.reader.advice import for_a_pipeline, for_options
from etl.reader.options import INTERNAL, SIZES, TIMEOUT_S, Reading, parse_options, refuse_missing_partitions
from etl.reader.ranges import inside, ranges_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

T = TypeVar("T")

NAME = "offset_ranges"
_INLINE_BYTES = 32 * 1024
"""Longer tasks travel as a file: Spark sends every option to every task."""
_PATIENCE_S, _LATER_PATIENCE_S = 120.0, 30.0
"""How long a log may give nothing in the first attempt of a task, and in those after it: Spark tries four times, and a run over a dead
network should end within minutes."""


class TaskFailed(RuntimeError):
    """Carries an EtlError through Spark's traceback; `errors.unmark` finds it there again."""


@dataclass(frozen=True, slots=True)
class Task:
    """The ranges that one Spark partition reads, and which ranges of the plan they are."""

    indices: tuple[int, ...]
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """What the topics' ids were when the ranges were planned, where the plan knows them."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The same of the leaders' epochs."""
    log_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Which life of the log the rows are of, where it is not the first."""
    cleanups: Mapping[str, Cleanup] = field(default_factory=dict)
    """How the topics are cleaned up, where that is known."""

    @property
    def number(self) -> int:
        """Names it among the tasks of its plan: its first range, which no other one reads."""
        return self.indices[0]


class OffsetRanges(DataSource):
    """The data source; see the module. Wrong options raise SettingsError at `load()`."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` is given."""
        return NAME

    def schema(self) -> str:
        """The chosen columns of the raw table."""
        reading = parse_options(self.options)
        return spark_schema(reading.columns)

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
        return [InputPartition(task) for task in _tasks(self._options, self._reading)]

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
                fetch_max_bytes=reading.fetch_max_bytes, max_fetch_bytes=reading.fetch_limit_bytes, timeout_s=reading.timeout_s,
                on_receipt=lambda at, receipt: note(task.indices[at], receipt), topic_ids=task.topic_ids,
                leader_epochs=task.leader_epochs, log_epochs=task.log_epochs, cleanups=task.cleanups,
                fails_on_loss=reading.fails_on_data_loss, on_read=teller.read, max_record_bytes=reading.max_record_bytes,
            )
        except EtlError as error:
            told = for_a_pipeline(error) if self._options.keys() & set(INTERNAL) else for_options(error)
            raise TaskFailed(f"{told}\n{mark(told)}") from error
        finally:
            teller.close()


class ReceiptAccumulator:
    """The receipts of a read, by the ranges' indices in the plan. A range that is read twice has one."""

    def __init__(self, accumulator: Accumulator[dict[int, Receipt]], merge: _Merge) -> None:
        self._accumulator, self._merge = accumulator, merge

    @property
    def receipts(self) -> dict[int, Receipt]:
        """What came back by now; complete when the job has succeeded."""
        return dict(self._accumulator.value)

    @property
    def last_came(self) -> float | None:
        """When the last of them came, by `time.monotonic`."""
        return self._merge.last_came

    def in_order(self, count: int) -> tuple[Receipt, ...] | None:
        """A receipt for each of `count` ranges, or None when some are missing: the job failed, or Delta skipped it."""
        found = self.receipts
        return tuple(found[i] for i in range(count)) if all(i in found for i in range(count)) else None


class _Merge(AccumulatorParam[dict[int, Receipt]]):
    """Receipts of a range are equal, whichever attempt made them."""

    last_came: float | None = None

    def zero(self, value: dict[int, Receipt]) -> dict[int, Receipt]:
        return {}

    def addInPlace(self, value1: dict[int, Receipt], value2: dict[int, Receipt]) -> dict[int, Receipt]:
        self.last_came = time.monotonic()
        value1.update(value2)
        return value1


def receiving(spark: SparkSession, address: ProgressAddress | None = None) -> tuple[type[OffsetRanges], ReceiptAccumulator]:
    """A data source of its own name whose receipts come back to this driver; meanwhile its tasks tell at `address` how far they are.

    Spark starts sources in other processes and hands them only text, but a class made here is pickled with what it closes over.
    """
    merge = _Merge()
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
    isolation: Isolation, columns: Sequence[str] | None = None, fetch_max_bytes: int = SIZES["fetch_max_bytes"],
    fetch_limit_bytes: int = SIZES["fetch_limit_bytes"], timeout_s: float = TIMEOUT_S,
    topic_ids: Mapping[str, str] | None = None, leader_epochs: Mapping[BrokerPartition, int] | None = None,
    log_epochs: Mapping[BrokerPartition, int] | None = None, cleanups: Mapping[str, Cleanup] | None = None,
    progress: ProgressAddress | None = None, max_record_bytes: int = SIZES["max_record_bytes"],
) -> tuple[DataFrame, ReceiptAccumulator]:
    """The rows of a plan's ranges, packed as `tasks` says (indices of `ranges`), and the receipts to come.

    Leaders travel with the ranges, so executors ask nobody; only a task that is tried again looks them up at `bootstrap`
    (`host:port` each). A topic that no longer has the id of `topic_ids` when it was read fails the task (NeedsDecision), and so does a log
    that no longer reaches up to its ranges in the epoch of `leader_epochs` (LogTruncated), and offsets missing from a topic whose
    cleaning, by `cleanups`, does not explain it (MissingOffsets). Rows carry their log's epoch of `log_epochs`.
    """
    source, receipts = receiving(spark, progress)
    spark.dataSource.register(source)
    reader = spark.read.format(source.name()).option("bootstrap", ",".join(bootstrap)).option("isolation", isolation.value)
    reader = reader.option("fetch_max_bytes", fetch_max_bytes).option("fetch_limit_bytes", fetch_limit_bytes)
    reader = reader.option("max_record_bytes", max_record_bytes).option("timeout_s", timeout_s)
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    text = render_tasks(ranges, tasks, topic_ids or {}, leader_epochs or {}, log_epochs or {}, cleanups or {})
    reader = reader.option("tasks", text) if len(text) <= _INLINE_BYTES else reader.option("tasks_file", _keep(text))
    return _loaded(reader), receipts


def _loaded(reader: DataFrameReader) -> DataFrame:
    """Spark asks a Python worker for the schema. It tries a task again whose worker dies, and that question it does not."""
    from etl.edges.spark.session import telling_what_was_lost

    try:
        with telling_what_was_lost():
            return reader.load()
    except SparkLost:
        return reader.load()


_NOTHING_KNOWN: Mapping[Any, Any] = MappingProxyType({})


def render_tasks(
    ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]], topic_ids: Mapping[str, str] = _NOTHING_KNOWN,
    leader_epochs: Mapping[BrokerPartition, int] = _NOTHING_KNOWN, log_epochs: Mapping[BrokerPartition, int] = _NOTHING_KNOWN,
    cleanups: Mapping[str, Cleanup] = _NOTHING_KNOWN,
) -> str:
    """Ranges with their leaders, what is known of their topics and logs, and the tasks, as the text that `parse_tasks` reads."""
    topics = {r.log.topic for r in ranges}
    document = {
        "ranges": [_row(r) for r in ranges], "tasks": [list(task) for task in tasks], "topic_ids": _of(topic_ids, topics),
        "leader_epochs": [leader_epochs.get(r.log) for r in ranges], "log_epochs": [log_epochs.get(r.log) for r in ranges],
        "cleanups": {topic: [told.is_compacted, told.is_tiered] for topic, told in _of(cleanups, topics).items()}}
    return json.dumps(document, separators=(",", ":"))


def parse_tasks(text: str) -> list[Task]:
    """The tasks of `render_tasks`."""
    found = json.loads(text)
    ranges = [_range(row) for row in found["ranges"]]

    def known(name: str, task: Sequence[int]) -> dict[BrokerPartition, int]:
        return {ranges[i].log: found[name][i] for i in task if found[name][i] is not None}

    topics = [{ranges[i].log.topic for i in task} for task in found["tasks"]]
    cleanups = {topic: Cleanup(*told) for topic, told in found["cleanups"].items()}
    return [
        Task(tuple(task), tuple(ranges[i] for i in task), _of(found["topic_ids"], read), known("leader_epochs", task),
             known("log_epochs", task), _of(cleanups, read))
        for task, read in zip(found["tasks"], topics, strict=True)]


def _of(told: Mapping[str, T], topics: Iterable[str]) -> dict[str, T]:
    return {topic: told[topic] for topic in sorted(topics) if topic in told}


def _tasks(options: Mapping[str, str], reading: Reading) -> list[Task]:
    if "tasks_file" in options:
        with open(options["tasks_file"], encoding="utf-8") as file:
            return parse_tasks(file.read())
    if "tasks" in options:
        return parse_tasks(options["tasks"])
    wanted = _wanted(reading)
    return _packed(wanted, reading)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The ranges that the options ask for, as the brokers' answers make them, with today's leaders, and what is known of their logs."""

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    leader_epochs: Mapping[BrokerPartition, int]
    cleanups: Mapping[str, Cleanup]

    def task(self, ranges: Sequence[OffsetRange], indices: Sequence[int]) -> Task:
        """A task of these pieces of the ranges, with what is known of them."""
        read = tuple(ranges[i] for i in indices)
        topics = {r.log.topic for r in read}
        epochs = {r.log: self.leader_epochs[r.log] for r in read if r.log in self.leader_epochs}
        return Task(tuple(indices), read, _of(self.topic_ids, topics), epochs, cleanups=_of(self.cleanups, topics))


def _wanted(reading: Reading) -> _Wanted:
    """Asks the brokers.

    One Metadata request, two or three ListOffsets for each broker, one more for each side that is given by time, one DescribeConfigs.
    """
    from etl.edges.brokers.cluster import Cluster

    with Cluster(reading.bootstrap, timeout_s=reading.timeout_s) as cluster:
        named = None if reading.ranges is None else sorted({r.log for r in reading.ranges})
        metadata = cluster.describe(reading.chosen.asked if named is None else {log.topic for log in named})
        there = metadata.leaders.keys() | metadata.leaderless
        if reading.chosen.pattern is not None:
            there = {log for log in there if not metadata.topics[log.topic].is_internal}
        if named is not None:
            refuse_missing_partitions(named, there)
        logs = reading.chosen.among(there) if named is None else named
        found = cluster.extents(logs, isolation=reading.isolation, metadata=metadata)
        if found.leaderless:
            lost = min(found.leaderless)
            raise BrokerUnreachable("the log has no leader", topic=lost.topic, partition=lost.partition, check="the brokers that hold it")
        if reading.ranges is not None:
            ranges = [inside(r, found.extents[r.log], fails=reading.fails_on_data_loss) for r in reading.ranges]
        else:
            first, last = (
                cluster.first_at(bounds.times(logs), isolation=reading.isolation) for bounds in (reading.starting, reading.ending))
            ranges = list(ranges_of(reading, found.extents, first, last))
        told = cluster.retention({r.log.topic for r in ranges})
    cleanups = {r.log.topic: cleanup_of(told.get(r.log.topic), said_to_be_compacted=r.log.topic in reading.compacted) for r in ranges}
    led = tuple(replace(r, leader=found.leaders[r.log]) for r in ranges if r.size)
    return _Wanted(led, metadata.topic_ids, found.epochs if reading.fails_on_data_loss else {}, cleanups)


def _packed(wanted: _Wanted, reading: Reading) -> list[Task]:
    """Ranges cut and packed towards `target_task_bytes`, all offsets being taken to cost the same, and within the bounds of the options."""
    parallelism, most = max(os.cpu_count() or 1, reading.least_tasks), _most_offsets(sum(r.size for r in wanted.ranges), reading)
    cut = cut_ranges(wanted.ranges, {}, reading.target_task_bytes, parallelism)
    if most is not None:
        cut = cut_to_offsets(cut, most)
    packed = pack_tasks(cut, {}, reading.target_task_bytes, parallelism)
    return [wanted.task(cut, task) for task in (packed if most is None else split_tasks(packed, cut, most))]


def _most_offsets(offsets: int, reading: Reading) -> int | None:
    """How many offsets one task may read: tasks of no more than an even share are at least as many as are asked for."""
    bounds = [] if reading.most_offsets is None else [reading.most_offsets]
    if reading.least_tasks > 1:
        bounds.append(max(1, offsets // reading.least_tasks))
    return min(bounds, default=None)


def _afresh(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """For a task that is tried again: whom the driver knew as leader may be why it failed."""
    return [replace(r, leader=None) for r in ranges]


def _addresses(ranges: Sequence[OffsetRange], bootstrap: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Whom to ask for leaders: the leaders themselves may be the last brokers that still answer."""
    leaders = [(r.leader.broker.host, r.leader.broker.port) for r in ranges if r.leader]
    return list(dict.fromkeys([*bootstrap, *leaders]))


def _row(r: OffsetRange) -> list[Any]:
    row: list[Any] = [r.log.topic, r.log.partition, r.log.broker_id, r.from_offset, r.until_offset]
    return row + [r.leader.broker.id, r.leader.broker.host, r.leader.broker.port, r.leader.epoch] if r.leader else row


def _range(row: Sequence[Any]) -> OffsetRange:
    topic, partition, broker_id, start, until, *led = row
    leader = Leader(Broker(led[0], led[1], led[2]), led[3]) if led else None
    return OffsetRange(BrokerPartition(topic, partition, broker_id), start, until, leader)


def _keep(text: str) -> str:
    """A file for as long as this process lives: a DataFrame may be planned again at any time."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix=f"{NAME}-", suffix=".json", delete=False) as file:
        file.write(text)
    atexit.register(_remove, file.name)
    return file.name


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)
