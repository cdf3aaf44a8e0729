"""What happens before and after a run: connecting, mirroring offsets, compacting files?

Opens the services of a run, or its brokers alone, and closes everything at the end. Mirroring
positions (`mirror_group`) and compacting small files follow the commit: their failures are reported
and do not fail the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from etl.decide.table_storage import is_compaction_due, small_files
from etl.errors import EtlError
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.group_offsets import MirrorWriter, commit_to_mirror_group
from etl.io.delta.exclusive_create_probe import require_exclusive_create
from etl.io.delta.maintenance import Compacted, compact, data_files, may_have_deletion_vectors
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.requests import ZooKeeper
from etl.model.plans import Request
from etl.report.describe import counted
from etl.report.run_progress import Outcome, Phases, Stopwatch, Verb, size_in_words
from etl.report.run_report import Report
from etl.run.discovery import Discovery
from etl.run.live_services import LiveServices
from etl.run.service_interfaces import RunContext
from etl.run.spark_on_demand import Making, Placed, placed
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def open_services(
    settings: Settings,
    run_context: RunContext,
    *,
    name: str = "look",
    phases: Phases | None = None,
    request: Request | None = None,
) -> Iterator[LiveServices]:
    """Context manager: connect to ZooKeeper; other connections are opened when first used, and all
    are closed at the end.

    `name`: the run's id, in commits and in the name of Spark's log. `phases`: receives timings that
    `ingest` cannot know. `request`: run key and end of the run.
    """
    with _zookeeper(settings) as zookeeper:
        services = LiveServices(settings, zookeeper, run_context, name, phases, request=request)
        try:
            yield services
        finally:
            services.close()


@contextlib.contextmanager
def open_cluster(settings: Settings) -> Iterator[Cluster]:
    """Open the brokers, and ZooKeeper if it is their registry."""
    with contextlib.ExitStack() as closing:
        zookeeper = _zookeeper(settings)
        if settings.source.bootstrap_servers is None:
            closing.enter_context(zookeeper)
        yield closing.enter_context(Discovery(settings, zookeeper).open_cluster())


@contextlib.contextmanager
def open_discovery(settings: Settings) -> Iterator[Discovery]:
    """Open the source of the conf's topics and leaders: brokers, and ZooKeeper."""
    with _zookeeper(settings) as zookeeper:
        yield Discovery(settings, zookeeper)


def place_table(
    settings: Settings,
    run_context: RunContext,
    phases: Phases | None = None,
    *,
    name: str,
    making: Making | None = None,
) -> Placed:
    """Return the settings with a named table's location, from the ledger or Spark; unchanged for a
    path. `name`, `making`: see `run.spark_on_demand.placed`, which raises for it.
    """
    if settings.table.is_placed:
        return Placed(settings)
    with _zookeeper(settings) as zookeeper:
        ledger = PlanLedger(zookeeper, settings.group.id, settings.pipeline)
        return placed(
            settings, ledger, run_context, phases or Stopwatch(), name=name, making=making
        )


def _zookeeper(settings: Settings) -> ZooKeeper:
    return ZooKeeper(
        settings.zookeeper.connect,
        session_timeout_s=settings.zookeeper.session_timeout_s,
        connect_timeout_s=settings.zookeeper.session_timeout_s,
        access=settings.zookeeper.access,
    )


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
        if plan is None or ledger.applied is None or not plan.moves_offsets:
            return
        positions = {}
        for log, offset in plan.positions.items():
            if settings.source.topic_filter.admits(log.topic):
                positions[log] = offset
        predecessors = [MirrorWriter(*app_id.split("/", 3)[2:]) for app_id in plan.taken]
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
        log, metadata = next(iter(others.items()))
        first = f"{log} ({metadata})" if metadata else str(log)
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
    possible deletion vectors is always compacted by Spark, which rewrites partly deleted files of
    any size.
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
