"""How are the rows of a plan read and transformed?

Reading: tasks and their results, as one state that progress output follows.

Format: what `value` becomes between decoding and writing. There is one, `raw`: the bytes of the
record, a row per record. Another format belongs here, before the transform: it drops no row, marks
records that it cannot parse, and keeps the columns of `columns.row_key`, by which rows are counted
and verified.

Transform: the user's function is tried on an empty DataFrame before any row is read. Its errors are
reported with the line that failed. Rows that could not be counted or verified later are rejected.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from etl.decide.plan import PlanTasks, is_small, tasks_of_plan
from etl.decide.recreated_or_truncated import is_creation_id
from etl.errors import EtlError, SettingsError, unmark, whole_text
from etl.io.delta.append import Chosen, Takes, Writer, choose_writer
from etl.io.delta.table_shape import check_columns, check_partitioning, open_table
from etl.io.process import cores
from etl.io.progress_port import ProgressPort
from etl.io.spark.session import is_stopped, raised_on_a_row, translating_spark_errors
from etl.model.columns import arrow_schema, misfit, names_of_key, raw_columns, spark_schema
from etl.model.partitions import Cleanup, cleanup_of
from etl.model.plans import OffsetRange, Plan, RangeResult
from etl.model.snapshot import Snapshot
from etl.reader.batch_transform import OF_KEYS, describe_failure_of, line_of, load_function
from etl.reader.fetch_options import FetchOptions
from etl.reader.query_ranges import ReadOptions
from etl.report.run_progress import Doing, TaskProgress, Verb
from etl.run.discovery import configured_family
from etl.settings.sections import Settings

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from etl.reader.batch_transform import ArrowTransform
    from etl.reader.local_workers import FilesOfWorkers
    from etl.reader.query_ranges import Task
    from etl.reader.spark_tasks import PlannedFiles


class RangeResults(Protocol):
    """Range results, as they arrive from tasks."""

    @property
    def results(self) -> Mapping[int, RangeResult]:
        """Return the results so far, by index of the range in the plan; complete when all tasks
        have ended.
        """

    @property
    def last_came(self) -> float | None:
        """Time of the last result, by `time.monotonic`."""

    def in_order(self, count: int) -> tuple[RangeResult, ...] | None:
        """Return a result for each of `count` ranges, or None if some are missing."""


class Following:
    """Follows the tasks that read a plan's ranges; `results` is set when rows are requested.
    `host` is the driver's name for executors, `bind` its own address; without it tasks report no
    progress.
    """

    def __init__(
        self,
        plan_id: str,
        ranges: Sequence[OffsetRange],
        tasks: Sequence[Sequence[int]],
        *,
        host: str = "",
        bind: str | None = None,
    ) -> None:
        self.plan_id = plan_id
        """A run may execute two plans."""
        self._reckoning = TaskProgress(ranges, tasks)
        self._one_at_a_time = threading.Lock()
        self.port = ProgressPort(self._reckoning.planned, bind=bind, host=host)
        self.results: RangeResults | None = None
        self.ends: Callable[[], None] = _nothing
        """Ends reading that does not end with a Spark job."""

    def close(self) -> None:
        """Stop following and end reading. May be called again."""
        self.port.close()
        self.ends()

    def doing(self) -> Doing:
        """Return the progress while Spark writes; callable from any thread."""
        results: Mapping[int, RangeResult] = {}
        if self.results:
            results = self.results.results
        with self._one_at_a_time:
            reached = self._reckoning.reached(results, dict(self.port.last_progress))
        if reached.ranges == reached.ranges_in_all:
            return Doing(Verb.APPEND, reached)
        if self.port.began is not None or results:
            return Doing(Verb.FETCH, reached)
        return Doing(Verb.FIRST_JOB, reached)

    def spent(self, began: float, now: float) -> dict[Verb, float]:
        """Return the seconds from `began` to now that were not the table's commit. If no task
        reported its begin, the first job counts as fetch; if none reported its end, as append.
        """
        last = self.results.last_came if self.results else None
        first = self.port.began
        if self.doing().verb is not Verb.APPEND:
            last = now if first else None
        if last is None:
            return {}
        first = min(last, max(began, first or began))
        return {Verb.FIRST_JOB: first - began, Verb.FETCH: last - first}


def _nothing() -> None:
    """Spark's tasks end with its job."""


def follow(
    spark: SparkSession, plan_id: str, ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]]
) -> Following:
    """Follow the tasks of this session's executors, which reach the driver at
    `spark.driver.host`.
    """
    host = spark.conf.get("spark.driver.host", None) or "127.0.0.1"
    return Following(
        plan_id,
        ranges,
        tasks,
        host=host,
        bind=spark.conf.get("spark.driver.bindAddress", None) or host,
    )


def fitting_rows(settings: Settings, rows: DataFrame) -> DataFrame:
    """Apply the transform to `rows`, and check that the table and later counts can use its columns.

    The values in the columns cannot be checked. Raises SettingsError, NotOurTable.
    """
    if not settings.transform.dataframe:
        return rows
    made = apply_transform(settings.transform.dataframe, rows, settings.transform.folder)
    _reject_misfit(settings, made.dtypes, "transform.dataframe")
    check_columns(
        settings.table.path, made.schema.json(), settings.table.partition_by, spark=settings.spark
    )
    return made


def fitting_arrow_transform(settings: Settings) -> ArrowTransform | None:
    """Return the conf's Arrow transform, tried on an empty batch, with columns that the table and
    later counts can use. Raises SettingsError, NotOurTable.
    """
    if not settings.transform.record_batch:
        return None
    from deltalake import Schema

    found = _arrow_transform(settings.transform.record_batch, settings)
    columns = Schema.from_arrow(found.stored).to_json()
    _reject_misfit(settings, _sql_types(json.loads(columns)["fields"]), "transform.record_batch")
    check_columns(
        settings.table.path,
        columns,
        settings.table.partition_by,
        spark=settings.spark,
        key="transform.record_batch",
    )
    return found


def columns_of_tasks(settings: Settings) -> pyarrow.Schema:
    """The columns of the rows that tasks give: those of `columns`, or what the Arrow transform
    makes. Raises SettingsError.
    """
    if settings.transform.record_batch:
        return _arrow_transform(settings.transform.record_batch, settings).stored
    return arrow_schema(physical=settings.source.is_physical)


def _arrow_transform(name: str, settings: Settings) -> ArrowTransform:
    from etl.reader.batch_transform import load_arrow_transform

    folder = settings.transform.folder
    return load_arrow_transform(name, physical=settings.source.is_physical, folder=folder)


def _reject_misfit(settings: Settings, types: Iterable[tuple[str, str]], key: str) -> None:
    """Reject columns of a transform by which rows cannot be identified, unless the table lacks them
    already. Raises SettingsError.
    """
    physical = settings.source.is_physical
    wrong = misfit(types, physical=physical)
    if wrong and unprovable(settings) is None:
        names = names_of_key(physical=physical)
        raise SettingsError(
            f"Rows of {OF_KEYS[key]} cannot be counted or verified: {wrong}",
            key=key,
            function=settings.transform.function,
            action=f"Change the function: it must keep {names} of each row unchanged; it may add "
            "columns",
        )


def check_without_spark(settings: Settings) -> None:
    """Check what `fitting_rows` rejects without rows: a missing transform, another partitioning.
    Imports the transform's module, as a run does. Raises SettingsError, NotOurTable.
    """
    if settings.transform.dataframe:
        import_transform(settings)
        check_partitioning(settings.table.path, settings.table.partition_by)


def unprovable(settings: Settings) -> str | None:
    """Return why rows of the existing table cannot be verified, by an operator's decision; None if
    they can, or without a table.
    """
    table = open_table(settings.table.path)
    if table is None:
        return None
    return misfit(
        _sql_types(json.loads(table.schema().to_json())["fields"]),
        physical=settings.source.is_physical,
    )


def _sql_types(fields: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Columns as Delta's log has them, each with its type as Spark SQL calls it."""
    for field in fields:
        kind = field["type"]
        yield field["name"], _SQL_NAMES.get(kind, kind) if isinstance(kind, str) else "nested"


_SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Delta's names of types (Delta protocol, "Primitive Types") and Spark's."""


def apply_transform(name: str, rows: DataFrame, folder: str | None = None) -> DataFrame:
    """Apply the named transform to `rows`. Raises SettingsError with the line that failed."""
    from pyspark.sql import DataFrame

    function = load_transform(name, folder)
    action = "Test the function on rows of spark.read.format('offset_ranges')"
    try:
        with translating_spark_errors():
            transformed = function(rows)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may raise anything, SystemExit, too
        _reject_stopped(rows, error)
        if isinstance(error, EtlError):
            raise
        reader_error = unmark(whole_text(error))
        if reader_error:
            raise reader_error from error
        raise SettingsError(
            f"The transform failed: {describe_failure_of(error)}",
            key="transform.dataframe",
            line=line_of(error),
            action=action,
        ) from error
    _reject_stopped(rows)
    if not isinstance(transformed, DataFrame):
        raise SettingsError(
            f"The transform returned {type(transformed).__name__}, not a DataFrame",
            key="transform.dataframe",
            action=action,
        )
    return transformed


def _reject_stopped(rows: DataFrame, error: BaseException | None = None) -> None:
    """Report a Spark session that was stopped, as later errors do not show it.

    Raises SettingsError.
    """
    if is_stopped(rows.sparkSession):
        raise SettingsError(
            "The transform stopped Spark",
            key="transform.dataframe",
            action="Change the function: the run stops the session itself",
        ) from error


@contextlib.contextmanager
def translating_transform_errors(name: str | None) -> Iterator[None]:
    """Report errors of the transform's functions and expressions as the transform's. Raises
    SettingsError; ProcessLost if Spark lost a process meanwhile.
    """
    try:
        with translating_spark_errors():
            yield
    except EtlError:
        raise
    except Exception as error:
        failure = None
        if name:
            failure = raised_on_a_row(type(error).__name__, whole_text(error))
        if failure is None:
            raise
        reason, line = failure
        raise SettingsError(
            f"The transform failed on a row: {reason}",
            key="transform.dataframe",
            line=line,
            action="Check the function, and that workers have its module. The next run executes "
            "the "
            "stored plan again with the function of that time; or replace the plan: "
            "`etl plans supersede CONF N --reason ...`",
        ) from error


def load_transform(name: str, folder: str | None = None) -> Callable[[DataFrame], DataFrame]:
    """Return the function of `transform.dataframe`. Raises as `load_function`."""
    return load_function(name, "transform.dataframe", folder)


def import_transform(settings: Settings) -> None:
    """Import the transform of either kind, before Spark starts for its rows. Raises
    SettingsError.
    """
    transform = settings.transform
    if transform.function:
        load_function(transform.function, transform.key, transform.folder)


_HERE = "127.0.0.1"


def writer_of(plan: Plan, settings: Settings) -> Chosen:
    """The writer that appends the plan, to the table that is there now. Raises as `choose_writer`
    and `open_table`.
    """
    return choose_writer(
        plan, settings, lambda: open_table(settings.table.path), lambda: columns_of_tasks(settings)
    )


def check_rows(plan: Plan, settings: Settings) -> None:
    """Check what prevents the plan's rows from being written, without Spark. Raises as
    `writer_of`.
    """
    writer_of(plan, settings)
    if plan.ranges or plan.table.id is None:
        fitting_arrow_transform(settings)


def writer_in_words(plan: Plan, snapshot: Snapshot, settings: Settings) -> str:
    """Describe the writer, why it is chosen, and whether it works without Spark."""
    chosen = writer_of(plan, settings)
    if needs_no_spark(plan, snapshot, settings, chosen.writer):
        return f"{chosen}, without Spark"
    return str(chosen)


def needs_no_spark(plan: Plan, snapshot: Snapshot, settings: Settings, writer: Writer) -> bool:
    """Return True if processes of this machine read the rows."""
    return writer.takes is Takes.FILES and is_small(plan, snapshot.bytes_per_offset, settings)


def reader_for(writer: Writer) -> Callable[..., tuple[Any, Following]]:
    """Return the reader for this writer: `read_rows` or `write_files`."""
    return write_files if writer.takes is Takes.FILES else read_rows


def read_rows(
    spark: SparkSession,
    plan: Plan,
    snapshot: Snapshot,
    settings: Settings,
    bootstrap: Sequence[tuple[str, int]],
    *,
    now_ms: int,
) -> tuple[DataFrame, Following]:
    """Return the records of the plan's ranges in decoded columns, read lazily, with what follows
    their progress.
    """
    from etl.reader.spark_tasks import read_tasks

    packed = tasks_of_plan(
        plan, snapshot, settings, parallelism=spark.sparkContext.defaultParallelism, now_ms=now_ms
    )
    tasks, reading_options = _to_read(packed, plan, snapshot, settings, bootstrap)
    reading = follow(spark, plan.id, packed.ranges, packed.tasks)
    try:
        rows, reading.results = read_tasks(spark, tasks, reading_options, reading.port.address)
    except BaseException:
        reading.port.close()
        raise
    return rows, reading


def write_files(
    spark: SparkSession,
    plan: Plan,
    snapshot: Snapshot,
    settings: Settings,
    bootstrap: Sequence[tuple[str, int]],
    *,
    now_ms: int,
) -> tuple[PlannedFiles, Following]:
    """Return the same for tasks that write files themselves, executed lazily."""
    from etl.reader.spark_tasks import PlannedFiles

    packed = tasks_of_plan(
        plan, snapshot, settings, parallelism=spark.sparkContext.defaultParallelism, now_ms=now_ms
    )
    tasks, reading_options = _to_read(packed, plan, snapshot, settings, bootstrap)
    reading = follow(spark, plan.id, packed.ranges, packed.tasks)
    files = PlannedFiles(spark, tasks, reading_options, reading.port.address)
    reading.results = files.results
    return files, reading


def write_files_without_spark(
    plan: Plan,
    snapshot: Snapshot,
    settings: Settings,
    bootstrap: Sequence[tuple[str, int]],
    *,
    now_ms: int,
) -> tuple[FilesOfWorkers, Following]:
    """Return the same for processes of this machine that write files."""
    from etl.reader.local_workers import FilesOfWorkers

    most = cores()
    workers = min(most, snapshot.parallelism or most)
    packed = tasks_of_plan(plan, snapshot, settings, parallelism=workers, now_ms=now_ms)
    tasks, reading_options = _to_read(packed, plan, snapshot, settings, bootstrap)
    reading = Following(plan.id, packed.ranges, packed.tasks, host=_HERE, bind=_HERE)
    files = FilesOfWorkers(
        tasks, reading_options, reading.port.address, workers=workers, time_zone=snapshot.time_zone
    )
    reading.results, reading.ends = files.results, files.close
    return files, reading


def _to_read(
    packed: PlanTasks,
    plan: Plan,
    snapshot: Snapshot,
    settings: Settings,
    bootstrap: Sequence[tuple[str, int]],
) -> tuple[list[Task], ReadOptions]:
    from etl.reader.query_ranges import tasks_of_ranges

    source = settings.source
    options = ReadOptions(
        FetchOptions(
            isolation=source.isolation_level,
            bootstrap=tuple(bootstrap),
            fetch_max_bytes=source.fetch_max_bytes,
            max_batch_bytes=source.max_batch_bytes,
            max_record_bytes=source.max_record_bytes,
            timeout_s=source.request_timeout_s,
            broker_type=configured_family(source),
            security=source.way_in,
        ),
        raw_columns(physical=source.is_physical),
        settings.limits.target_task_bytes,
        physical=source.is_physical,
        transform=fitting_arrow_transform(settings),
    )
    tasks = tasks_of_ranges(
        packed.ranges,
        packed.tasks,
        topic_ids=_own_ids(plan),
        leader_epochs=plan.leader_epochs,
        incarnations=plan.incarnations,
        cleanups=_cleanups(plan, snapshot, settings),
        fingerprints=plan.fingerprints,
    )
    return tasks, options


def _own_ids(plan: Plan) -> dict[str, str]:
    own_ids = {}
    for topic, topic_id in plan.topic_ids.items():
        if not is_creation_id(topic_id):
            own_ids[topic] = topic_id
    return own_ids


def _cleanups(plan: Plan, snapshot: Snapshot, settings: Settings) -> dict[str, Cleanup]:
    cleanups = {}
    for topic in {r.partition.topic for r in plan.ranges}:
        is_assumed = settings.source.is_assumed_compacted(topic)
        retention = snapshot.topic(topic).retention
        cleanups[topic] = cleanup_of(retention, said_to_be_compacted=is_assumed)
    return cleanups


def format_rows(decoded: DataFrame, settings: Settings) -> DataFrame:
    """Return the rows that a writer appends, from decoded columns (`model.columns`). Every row of
    every plan passes here. Raises SettingsError, NotOurTable.
    """
    return fitting_rows(settings, decoded)


def try_on_no_rows(spark: SparkSession, settings: Settings) -> None:
    """Check before planning what `format_rows` would reject. Raises as it does."""
    format_rows(
        spark.createDataFrame([], spark_schema(physical=settings.source.is_physical)), settings
    )
