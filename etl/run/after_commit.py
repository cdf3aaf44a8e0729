"""What follows the commit of a run: mirroring offsets, compacting small files.

Their failures are reported and do not fail the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from etl.decide.spark_settings import cause_in
from etl.decide.table_storage import is_compaction_due, small_files
from etl.errors import EtlError, follows_interrupt, whole_text
from etl.io.brokers.group_offsets import MirrorWriter, commit_to_mirror_group
from etl.io.delta.exclusive_create_probe import require_exclusive_create
from etl.io.delta.maintenance import Compacted, compact, data_files, may_have_deletion_vectors
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.plans import PlanKind
from etl.report.describe import counted
from etl.report.run_progress import Outcome, Verb, size_in_words
from etl.report.run_report import Report
from etl.run.discovery import Discovery
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mirror(settings: Settings, zookeeper: ZooKeeper, report: Report) -> None:
    """Commit the positions to `group.mirror_group`, also without new records: brokers delete
    offsets of a group without members after a week. A failure is reported and does not fail the
    run.
    """
    if settings.group.mirror_group is None:
        return
    try:
        ledger = PlanLedger(zookeeper, settings.group.id, settings.pipeline).read_ledger()
        plan = ledger.newest
        # A stored plan of a backfill moves no position: all before it is in the table.
        is_loaded = ledger.applied is not None
        if plan is None or not (is_loaded or plan.kind is PlanKind.BACKFILL):
            return
        positions = {}
        for partition, offset in plan.loaded_until.items():
            if settings.source.topic_filter.admits(partition.topic):
                positions[partition] = offset
        predecessors = [
            MirrorWriter(*app_id.split("/", 3)[2:]) for app_id in plan.predecessor_numbers
        ]
        with Discovery(settings, zookeeper).open_cluster() as cluster:
            others = commit_to_mirror_group(
                cluster,
                settings.group.mirror_group,
                positions,
                writer=MirrorWriter(settings.group.id, settings.pipeline),
                predecessors=predecessors,
                plan_number=plan.number,
            )
    except EtlError as error:
        message = f"group.mirror_group {settings.group.mirror_group} not updated: {error.message}"
        report.add(Outcome.NOT_MIRRORED, _with_action(message, error))
        return
    if others:
        partition, metadata = next(iter(others.items()))
        first = f"{partition} ({metadata})" if metadata else str(partition)
        report.add(
            Outcome.NOT_MIRRORED,
            f"group.mirror_group {settings.group.mirror_group} has offsets of another client in "
            f"{counted(len(others), 'partition')}, first {first}. They are not changed. Set "
            f"a group "
            "that no other client uses",
        )


def _with_action(message: str, error: EtlError) -> str:
    if not error.action:
        return message
    return f"{message}. {error.action}"


class HasSpark(Protocol):
    """Provides the session of a run."""

    def spark(self) -> SparkSession:
        """Return the session, started on the first call."""


def compact_when_due(settings: Settings, services: HasSpark, report: Report) -> None:
    """Compact after a run that appended rows, if the table has `table.auto_compact_min_files` small
    files. A failure is reported and does not fail the run.
    """
    at = settings.table.auto_compact_min_files
    if not at or not any(one.applied for one in report.plans):
        return
    try:
        small, _ = waiting(settings)
        if not is_compaction_due(small, at):
            return
        with report.timed(Verb.COMPACT), translating_spark_errors():
            done = compact(services.spark(), settings.table.path, settings.table.target_file_bytes)
    except EtlError as error:
        message = f"Small files remain: {error.message}"
        report.add(Outcome.TABLE_NOT_COMPACTED, _with_action(message, error))
        return
    except Exception as error:  # of Spark or Java: the rows are committed all the same
        if follows_interrupt(error):
            raise
        reason = cause_in(whole_text(error)) or f"{type(error).__name__}: {error}"
        report.add(Outcome.TABLE_NOT_COMPACTED, f"Small files remain: {reason}")
        return
    if done.files_removed:
        report.add(Outcome.TABLE_COMPACTED, became(settings.table.path, done))


def waiting(settings: Settings) -> tuple[int, int]:
    """Return the number of small files that can be compacted, and their bytes, without a JVM.
    Raises as `open_table`.
    """
    return small_files(data_files(settings.table.path), settings.table.target_file_bytes)


def compaction_of(services: HasSpark, settings: Settings) -> Compacted:
    """Compact small files, if there are any. Raises TableUnreachable if others changed the same
    files meanwhile, and NoExclusiveCreate if the store does not separate two writers. A table with
    possible deletion vectors is always compacted by Spark, which also rewrites partly deleted
    files.
    """
    table = settings.table
    require_exclusive_create(table.path)  # no plan shows that it was probed today
    if not waiting(settings)[0] and not may_have_deletion_vectors(table.path):
        return Compacted()
    return compact(services.spark(), table.path, table.target_file_bytes)


def would_become(table: str, small: int, small_bytes: int) -> str:
    """Describe a compaction that would be done."""
    files = counted(small, "small file")
    return f"{files} of {table}, {size_in_words(small_bytes)}, would become large ones (OPTIMIZE)"


def became(table: str, done: Compacted) -> str:
    """Describe a compaction."""
    removed = counted(done.files_removed, "small file")
    added = counted(done.files_added, "file")
    sizes = f"{size_in_words(done.bytes_removed)} became {size_in_words(done.bytes_added)}"
    return f"{removed} of {table} became {added}: {sizes}"
