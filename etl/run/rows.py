"""How are the rows of a plan read, followed and transformed?

The rows of a plan as the brokers have them, in decoded columns, as its writer takes them.

What the table has of a DataFrame is made in `formats`; files have the decoded columns as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from etl.decide.partition_identity import is_creation_id
from etl.decide.plan import PlanTasks, is_small, tasks_of_plan
from etl.io.delta.append import Chosen, Takes, Writer, choose_writer
from etl.io.delta.table import open_table
from etl.io.process import cores
from etl.model.columns import raw_columns
from etl.model.partitions import Cleanup, cleanup_of
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot
from etl.reader.following import Following, follow
from etl.reader.reading import Reading
from etl.run.discovery import said_generation
from etl.run.transform import columns_of_tasks, fitting_arrow_transform
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.reader.local_workers import FilesOfWorkers
    from etl.reader.reading import Task
    from etl.reader.spark_tasks import PlannedFiles


_HERE = "127.0.0.1"


def writer_of(plan: Plan, settings: Settings) -> Chosen:
    """The writer that appends the plan, to the table that is there now. Raises as `choose_writer`
    and `open_table`.
    """
    return choose_writer(
        plan, settings, lambda: open_table(settings.table.path), lambda: columns_of_tasks(settings)
    )


def check_rows(plan: Plan, settings: Settings) -> None:
    """What keeps the plan's rows from their table as far as it is known without Spark. Raises as
    `writer_of` and what it asks.
    """
    writer_of(plan, settings)
    if plan.ranges or plan.table_id is None:
        fitting_arrow_transform(settings)


def writer_in_words(plan: Plan, snapshot: Snapshot, settings: Settings) -> str:
    """The writer, why it is this one, and whether Spark has no part in it."""
    chosen = writer_of(plan, settings)
    return (
        f"{chosen}, without Spark"
        if needs_no_spark(plan, snapshot, settings, chosen.writer)
        else str(chosen)
    )


def needs_no_spark(plan: Plan, snapshot: Snapshot, settings: Settings, writer: Writer) -> bool:
    """Whether the rows come to the writer by processes of this machine."""
    return writer.takes is Takes.FILES and is_small(plan, snapshot.bytes_per_offset, settings)


def reader_for(writer: Writer) -> Callable[..., tuple[Any, Following]]:
    """Who reads the rows as this writer takes them: `read_rows` or `write_files`."""
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
    """The records of the plan's ranges in decoded columns, read when somebody asks for them; and
    what tells how far that is.
    """
    from etl.reader.spark_tasks import read_tasks

    packed = tasks_of_plan(
        plan, snapshot, settings, parallelism=spark.sparkContext.defaultParallelism, now_ms=now_ms
    )
    tasks, asked = _to_read(packed, plan, snapshot, settings, bootstrap)
    reading = follow(spark, plan.id, packed.ranges, packed.tasks)
    try:
        rows, reading.receipts = read_tasks(spark, tasks, asked, reading.port.address)
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
    """The same ranges in the same tasks, which write their rows themselves when somebody asks for
    it.
    """
    from etl.reader.spark_tasks import PlannedFiles

    packed = tasks_of_plan(
        plan, snapshot, settings, parallelism=spark.sparkContext.defaultParallelism, now_ms=now_ms
    )
    tasks, asked = _to_read(packed, plan, snapshot, settings, bootstrap)
    reading = follow(spark, plan.id, packed.ranges, packed.tasks)
    files = PlannedFiles(spark, tasks, asked, reading.port.address)
    reading.receipts = files.receipts
    return files, reading


def write_files_without_spark(
    plan: Plan,
    snapshot: Snapshot,
    settings: Settings,
    bootstrap: Sequence[tuple[str, int]],
    *,
    now_ms: int,
) -> tuple[FilesOfWorkers, Following]:
    """The same by processes of this machine."""
    from etl.reader.local_workers import FilesOfWorkers

    most = cores()
    workers = min(most, snapshot.parallelism or most)
    packed = tasks_of_plan(plan, snapshot, settings, parallelism=workers, now_ms=now_ms)
    tasks, asked = _to_read(packed, plan, snapshot, settings, bootstrap)
    reading = Following(plan.id, packed.ranges, packed.tasks, host=_HERE, bind=_HERE)
    files = FilesOfWorkers(
        tasks, asked, reading.port.address, workers=workers, time_zone=snapshot.time_zone
    )
    reading.receipts, reading.ends = files.receipts, files.close
    return files, reading


def _to_read(
    packed: PlanTasks,
    plan: Plan,
    snapshot: Snapshot,
    settings: Settings,
    bootstrap: Sequence[tuple[str, int]],
) -> tuple[list[Task], Reading]:
    from etl.reader.reading import tasks_of_ranges

    source = settings.source
    asked = Reading(
        tuple(bootstrap),
        source.isolation,
        raw_columns(physical=source.is_physical),
        source.fetch_max_bytes,
        source.fetch_limit_bytes,
        source.max_record_bytes,
        settings.limits.target_task_bytes,
        source.timeout_s,
        physical=source.is_physical,
        generation=said_generation(source),
        security=source.way_in,
        transform=fitting_arrow_transform(settings),
    )
    tasks = tasks_of_ranges(
        packed.ranges,
        packed.tasks,
        topic_ids=_own_ids(plan),
        leader_epochs=plan.leader_epochs,
        log_epochs=plan.log_epochs,
        cleanups=_cleanups(plan, snapshot, settings),
        tails=plan.tails,
    )
    return tasks, asked


def _own_ids(plan: Plan) -> dict[str, str]:
    return {
        topic: topic_id
        for topic, topic_id in plan.topic_ids.items()
        if not is_creation_id(topic_id)
    }


def _cleanups(plan: Plan, snapshot: Snapshot, settings: Settings) -> dict[str, Cleanup]:
    says = settings.source.says_compacted
    topics = {r.log.topic for r in plan.ranges}
    return {
        topic: cleanup_of(snapshot.retention.get(topic), said_to_be_compacted=says(topic))
        for topic in topics
    }
