"""The rows of a plan as the brokers have them, in decoded columns. What the table has of them is made in `formats`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etl.decisions.expiry import cleanup_of
from etl.decisions.made_again import is_creation_id
from etl.decisions.plan_tasks import tasks_of_plan
from etl.model.logs import Cleanup
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot
from etl.reader.following import Following, follow
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_rows(
    spark: SparkSession, plan: Plan, snapshot: Snapshot, settings: Settings, bootstrap: Sequence[tuple[str, int]], *, now_ms: int,
) -> tuple[DataFrame, Following]:
    """The records of the plan's ranges in decoded columns, read when somebody asks for them; and what tells how far that is."""
    from etl.reader.source import read_tasks

    source = settings.source
    packed = tasks_of_plan(plan, snapshot, settings, parallelism=spark.sparkContext.defaultParallelism, now_ms=now_ms)
    reading = follow(spark, plan.id, packed.ranges, packed.tasks)
    try:
        rows, reading.receipts = read_tasks(
            spark, packed.ranges, packed.tasks, bootstrap=[f"{host}:{port}" for host, port in bootstrap],
            isolation=source.isolation, fetch_max_bytes=source.fetch_max_bytes, fetch_limit_bytes=source.fetch_limit_bytes,
            timeout_s=source.timeout_s, max_record_bytes=source.max_record_bytes, cleanups=_cleanups(plan, snapshot, settings),
            topic_ids={topic: topic_id for topic, topic_id in plan.topic_ids.items() if not is_creation_id(topic_id)},
            leader_epochs=plan.leader_epochs, tails=plan.tails, log_epochs=plan.log_epochs, broker_version=source.broker_version,
            progress=reading.port.address, physical=source.is_physical)
    except BaseException:
        reading.port.close()
        raise
    return rows, reading


def _cleanups(plan: Plan, snapshot: Snapshot, settings: Settings) -> dict[str, Cleanup]:
    says = settings.source.says_compacted
    topics = {r.log.topic for r in plan.ranges}
    return {topic: cleanup_of(snapshot.retention.get(topic), said_to_be_compacted=says(topic)) for topic in topics}
