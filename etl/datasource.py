"""`offset_ranges`: exact offset ranges of Kafka logs as a Spark DataFrame, by Spark's Python Data Source API.

It works without the rest of this package's machinery:

    from etl.datasource import OffsetRanges

    spark.dataSource.register(OffsetRanges)
    clicks = spark.read.format("offset_ranges").option("bootstrap", "127.0.0.1:9092").option("topics", "clicks").load()

reads everything that is readable now; the logs' ends are fixed when a query is planned. Options, all of them text:

| option | meaning | default |
| --- | --- | --- |
| bootstrap | `host:port,host:port`: brokers to ask who leads what | needed |
| topics | names, separated by commas | this or `ranges` |
| ranges | exact ranges as JSON: `[{"topic": "clicks", "partition": 0, "from": 10, "until": 20}]`, `until` exclusive | this or `topics` |
| isolation | `read_committed` or `read_uncommitted` | `read_committed` |
| columns | which columns to build, separated by commas; Spark does not tell a source which ones a query needs | all |
| fetch_max_bytes | bytes asked for in one fetch | 16 MiB |
| fetch_limit_bytes | how far that may grow for one large record batch | 256 MiB |
| target_task_bytes | how much one Spark partition should read | 256 MiB |
| timeout_s | deadline of one request to a broker, in seconds | 30 |

It owns the options and the way receipts come back. How ranges are packed belongs to `plan`, reading them to `fetch`. A run hands
over the tasks it planned (`read_tasks`) and gets back, with the rows, a receipt for each range.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from etl.address import split_address
from etl.errors import EtlError, SettingsError, SparkLost, TopicMissing, mark
from etl.frame import raw_columns, spark_schema
from etl.model import Broker, BrokerPartition, Isolation, Leader, OffsetRange, Receipt

if TYPE_CHECKING:
    import pyarrow
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

NAME = "offset_ranges"
MIB = 1 << 20
_INLINE_BYTES = 32 * 1024
"""Longer tasks travel as a file: Spark sends every option to every task."""
_DEFAULTS: Mapping[str, int] = {"fetch_max_bytes": 16 * MIB, "fetch_limit_bytes": 256 * MIB, "target_task_bytes": 256 * MIB}
_MOST: Mapping[str, int] = {"fetch_max_bytes": 2**30, "fetch_limit_bytes": 2**31 - MIB, "target_task_bytes": 2**62}
"""A fetch says its size as an int32, and an answer is a little longer than that."""
_TIMEOUT_S, _LONGEST_TIMEOUT_S = 30.0, 86_400.0
_PATIENCE_S, _LATER_PATIENCE_S = 120.0, 30.0
"""How long a log may give nothing in the first attempt of a task, and in those after it: Spark tries four times, and a run over a dead
network should end within minutes."""
_OPTIONS = ("bootstrap", "topics", "ranges", "isolation", "columns", *_DEFAULTS, "timeout_s")
_INTERNAL = ("tasks", "tasks_file")


class TaskFailed(RuntimeError):
    """Carries an EtlError through Spark's traceback; `errors.unmark` finds it there again."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The options, parsed."""

    bootstrap: tuple[tuple[str, int], ...]
    isolation: Isolation
    columns: tuple[str, ...]
    fetch_max_bytes: int
    fetch_limit_bytes: int
    target_task_bytes: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """The ranges that one Spark partition reads, and which ranges of the plan they are."""

    indices: tuple[int, ...]
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """What the topics' ids were when the ranges were planned, where the plan knows them."""


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
        return RangesReader(self.options, self.note)

    @staticmethod
    def note(index: int, receipt: Receipt) -> None:
        """Take the receipt of one range. Alone, nobody asks for it."""


class RangesReader(DataSourceReader):
    """Plans in a process of the driver's machine, reads in the executors."""

    def __init__(self, options: Mapping[str, str], note: Any) -> None:
        self._options = dict(options)
        self._reading = parse_options(options)
        self._note = note

    def partitions(self) -> list[InputPartition]:
        """One Spark partition for each task."""
        return [InputPartition(task) for task in _tasks(self._options, self._reading)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Arrow batches of one task's ranges. Spark makes one empty partition where there is no task."""
        from pyspark import TaskContext

        from etl.fetch import read_ranges

        task, context = partition.value, TaskContext.get()
        if task is None:
            return
        reading, note, again = self._reading, self._note, bool(context and context.attemptNumber())
        try:
            yield from read_ranges(
                _afresh(task.ranges) if again else task.ranges, deadline_s=_LATER_PATIENCE_S if again else _PATIENCE_S,
                isolation=reading.isolation, columns=reading.columns, bootstrap=_addresses(task.ranges, reading.bootstrap),
                fetch_max_bytes=reading.fetch_max_bytes, max_fetch_bytes=reading.fetch_limit_bytes, timeout_s=reading.timeout_s,
                on_receipt=lambda at, receipt: note(task.indices[at], receipt), topic_ids=task.topic_ids,
            )
        except EtlError as error:
            raise TaskFailed(f"{error}\n{mark(error)}") from error


class ReceiptAccumulator:
    """The receipts of a read, by the ranges' indices in the plan. A range that is read twice has one."""

    def __init__(self, accumulator: Accumulator[dict[int, Receipt]]) -> None:
        self._accumulator = accumulator

    @property
    def receipts(self) -> dict[int, Receipt]:
        """What came back by now; complete when the job has succeeded."""
        return dict(self._accumulator.value)

    def in_order(self, count: int) -> tuple[Receipt, ...] | None:
        """A receipt for each of `count` ranges, or None when some are missing: the job failed, or Delta skipped it."""
        found = self.receipts
        return tuple(found[i] for i in range(count)) if all(i in found for i in range(count)) else None


class _Merge(AccumulatorParam[dict[int, Receipt]]):
    """Receipts of a range are equal, whichever attempt made them."""

    def zero(self, value: dict[int, Receipt]) -> dict[int, Receipt]:
        return {}

    def addInPlace(self, value1: dict[int, Receipt], value2: dict[int, Receipt]) -> dict[int, Receipt]:
        value1.update(value2)
        return value1


def receiving(spark: SparkSession) -> tuple[type[OffsetRanges], ReceiptAccumulator]:
    """A data source of its own name whose receipts come back to this driver.

    Spark starts sources in other processes and hands them only text, but a class made here is pickled with what it closes over.
    """
    accumulator: Accumulator[dict[int, Receipt]] = spark.sparkContext.accumulator({}, _Merge())
    own_name = f"{NAME}_{accumulator.aid}"

    class Receiving(OffsetRanges):
        """OffsetRanges that gives its receipts to the driver."""

        @classmethod
        def name(cls) -> str:
            return own_name

        @staticmethod
        def note(index: int, receipt: Receipt) -> None:
            accumulator.add({index: receipt})

    return Receiving, ReceiptAccumulator(accumulator)


def read_tasks(
    spark: SparkSession, ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]], *, bootstrap: Sequence[str],
    isolation: Isolation, columns: Sequence[str] | None = None, fetch_max_bytes: int = _DEFAULTS["fetch_max_bytes"],
    fetch_limit_bytes: int = _DEFAULTS["fetch_limit_bytes"], timeout_s: float = _TIMEOUT_S,
    topic_ids: Mapping[str, str] | None = None,
) -> tuple[DataFrame, ReceiptAccumulator]:
    """The rows of a plan's ranges, packed as `tasks` says (indices of `ranges`), and the receipts to come.

    Leaders travel with the ranges, so executors ask nobody; only a task that is tried again looks them up at `bootstrap`
    (`host:port` each). A topic that no longer has the id of `topic_ids` when it was read fails the task (NeedsDecision).
    """
    source, receipts = receiving(spark)
    spark.dataSource.register(source)
    reader = spark.read.format(source.name()).option("bootstrap", ",".join(bootstrap)).option("isolation", isolation.value)
    reader = reader.option("fetch_max_bytes", fetch_max_bytes).option("fetch_limit_bytes", fetch_limit_bytes)
    reader = reader.option("timeout_s", timeout_s)
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    text = render_tasks(ranges, tasks, topic_ids or {})
    reader = reader.option("tasks", text) if len(text) <= _INLINE_BYTES else reader.option("tasks_file", _keep(text))
    return _loaded(reader), receipts


def _loaded(reader: DataFrameReader) -> DataFrame:
    """Spark asks a Python worker for the schema. It tries a task again whose worker dies, and that question it does not."""
    from etl.edges.spark import telling_what_was_lost

    try:
        with telling_what_was_lost():
            return reader.load()
    except SparkLost:
        return reader.load()


def parse_options(options: Mapping[str, str]) -> Reading:
    """The options as values. Raises SettingsError naming the option."""
    unknown = sorted(set(options) - set(_OPTIONS) - set(_INTERNAL))
    if unknown:
        raise SettingsError(f"there is no option {unknown[0]!r}", option=unknown[0], check=f"the options are {', '.join(_OPTIONS)}")
    if sum(name in options for name in ("topics", "ranges", *_INTERNAL)) != 1:
        raise SettingsError("exactly one of the options `topics` and `ranges` must say what to read", check="the options")
    sizes = {name: _size(options, name, default) for name, default in _DEFAULTS.items()}
    columns = raw_columns(_names(options["columns"]) if "columns" in options else None)
    if not columns:
        raise SettingsError("no column is chosen", option="columns", check="name at least one, or leave the option out")
    timeout_s = _seconds(options, "timeout_s")
    return Reading(_bootstrap(options.get("bootstrap", "")), _isolation(options), columns, **sizes, timeout_s=timeout_s)


def render_tasks(ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]], topic_ids: Mapping[str, str] = MappingProxyType({})) -> str:
    """Ranges with their leaders, the ids of their topics, and the tasks, as the text that `parse_tasks` reads."""
    known = {topic: topic_ids[topic] for topic in sorted({r.log.topic for r in ranges}) if topic in topic_ids}
    document = {"ranges": [_row(r) for r in ranges], "tasks": [list(task) for task in tasks], "topic_ids": known}
    return json.dumps(document, separators=(",", ":"))


def parse_tasks(text: str) -> list[Task]:
    """The tasks of `render_tasks`."""
    found = json.loads(text)
    ranges = [_range(row) for row in found["ranges"]]
    topics = [{ranges[i].log.topic for i in task} for task in found["tasks"]]
    ids = [{topic: topic_id for topic, topic_id in found["topic_ids"].items() if topic in read} for read in topics]
    return [Task(tuple(task), tuple(ranges[i] for i in task), known) for task, known in zip(found["tasks"], ids, strict=True)]


def parse_ranges(text: str) -> tuple[OffsetRange, ...]:
    """The option `ranges`. Raises SettingsError."""
    try:
        return tuple(
            OffsetRange(BrokerPartition(str(one["topic"]), _below(2**31, one["partition"])), _below(2**63, one["from"]),
                        _below(2**63, one["until"]))
            for one in json.loads(text)
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        form = '[{"topic": "clicks", "partition": 0, "from": 10, "until": 20}]'
        raise SettingsError(f"these are no ranges: {error!r}", option="ranges", check=f"the form is {form}") from error


def _below(bound: int, said: Any) -> int:
    """A number as Kafka's protocol can carry it. Raises ValueError."""
    number = int(said)
    if isinstance(said, (bool, float)) or not 0 <= number < bound:
        raise ValueError(f"{said!r} is no whole number from 0 to {bound - 1}")
    return number


def _tasks(options: Mapping[str, str], reading: Reading) -> list[Task]:
    if "tasks_file" in options:
        with open(options["tasks_file"], encoding="utf-8") as file:
            return parse_tasks(file.read())
    if "tasks" in options:
        return parse_tasks(options["tasks"])
    ranges = [OffsetRange(log, start, end, leader) for log, start, end, leader in _wanted(options, reading)]
    return _packed([r for r in ranges if r.size], reading)


def _wanted(options: Mapping[str, str], reading: Reading) -> Iterator[tuple[BrokerPartition, int, int, Leader | None]]:
    """Log, bounds and today's leader of everything that the options ask for."""
    from etl.edges.cluster import Cluster

    with Cluster(reading.bootstrap) as cluster:
        if "ranges" in options:
            ranges = parse_ranges(options["ranges"])
            leaders = cluster.describe(sorted({r.log.topic for r in ranges})).leaders
            yield from ((r.log, r.from_offset, r.until_offset, leaders.get(r.log)) for r in ranges)
            return
        topics = _names(options["topics"])
        metadata = cluster.describe(topics)
        logs = metadata.leaders.keys() | metadata.leaderless
        for topic in topics:
            if not any(log.topic == topic for log in logs):
                raise TopicMissing("the topic is not there", topic=topic, check="its name, and that this is the right cluster")
        found = cluster.extents(logs, isolation=reading.isolation, metadata=metadata)
        if found.leaderless:
            lost = min(found.leaderless)
            raise TopicMissing("the log has no leader", topic=lost.topic, partition=lost.partition, check="the brokers that hold it")
        for log, extent in sorted(found.extents.items()):
            yield log, extent.log_start_offset, extent.end_offset, found.leaders[log]


def _packed(ranges: Sequence[OffsetRange], reading: Reading) -> list[Task]:
    """Ranges cut and packed towards `target_task_bytes`; nobody asks the brokers how large their logs are."""
    from etl.packing import pack_tasks, split_range

    cut = [piece for r in ranges for piece in split_range(r, {}, reading.target_task_bytes)]
    packed = pack_tasks(cut, {}, reading.target_task_bytes, os.cpu_count() or 1)
    return [Task(tuple(task), tuple(cut[i] for i in task)) for task in packed]


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


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _bootstrap(text: str) -> tuple[tuple[str, int], ...]:
    addresses = []
    for address in _names(text):
        try:
            addresses.append(split_address(address))
        except ValueError as error:
            raise SettingsError(f"no broker's address: {error}", option="bootstrap", check="the form is host:port,host:port") from error
    if not addresses:
        raise SettingsError("no broker is named", option="bootstrap", check="give host:port of one or more brokers")
    return tuple(addresses)


def _isolation(options: Mapping[str, str]) -> Isolation:
    said = options.get("isolation", Isolation.READ_COMMITTED.value)
    try:
        return Isolation(said)
    except ValueError as error:
        allowed = " or ".join(member.value for member in Isolation)
        raise SettingsError(f"{said!r} is no isolation", option="isolation", check=f"it is {allowed}") from error


def _size(options: Mapping[str, str], name: str, default: int) -> int:
    said, most = options.get(name, str(default)), _MOST[name]
    if not (said.isascii() and said.isdecimal()) or len(said) > 18 or not 0 < int(said) <= most:
        raise SettingsError(f"{said!r} is no number of bytes", option=name, check=f"a whole number from 1 to {most}")
    return int(said)


def _seconds(options: Mapping[str, str], name: str) -> float:
    said = options.get(name, str(_TIMEOUT_S))
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:  # neither is what is no number
        check = f"a number above 0, {_LONGEST_TIMEOUT_S:.0f} at most"
        raise SettingsError(f"{said!r} is no number of seconds", option=name, check=check)
    return seconds
