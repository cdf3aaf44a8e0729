"""What happens around a run: connect before it, mirror offsets and compact after it?

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
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.group_offsets import Writer, mirror_positions
from etl.io.delta.exclusive_create import require_exclusive_create
from etl.io.delta.maintenance import Compacted, compact, data_files, may_have_deletion_vectors
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.session import ZooKeeper
from etl.model.plans import Request
from etl.report.describe import counted
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Phases, Stopwatch, Verb, size_in_words
from etl.run.discovery import Discovery
from etl.run.live import LiveServices
from etl.run.services import RunContext
from etl.run.spark import Making, Placed, placed
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
    """Connect to ZooKeeper; other connections are made when first needed, and all are closed at the
    end.

    `name`: the run's id, in commits and the name of Spark's log. `phases`: receives timings that
    the run's story cannot know. `request`: what the run is asked to load.
    """
    with _zookeeper(settings) as zookeeper:
        world = LiveServices(settings, zookeeper, run_context, name, phases, request=request)
        try:
            yield world
        finally:
            world.close()


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
    path. `name`, `making`: see `run.spark.placed`, which raises for it.
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
    """Also by a run that found nothing new: brokers forget the offsets of a group without members
    after a week.
    """
    if settings.group.mirror_group is None:
        return
    try:
        ledger = PlanLedger(zookeeper, settings.group.id, settings.pipeline).read_ledger()
        plan = ledger.newest
        if plan is None or ledger.applied is None or not plan.moves_offsets:
            return
        positions = {
            log: at
            for log, at in plan.positions.items()
            if settings.source.topic_filter.admits(log.topic)
        }
        with Discovery(settings, zookeeper).open_cluster() as cluster:
            others = mirror_positions(
                cluster,
                settings.group.mirror_group,
                positions,
                writer=Writer(settings.group.id, settings.pipeline),
                taken=[Writer(*app_id.split("/", 3)[2:]) for app_id in plan.taken],
                number=plan.number,
            )
    except EtlError as error:
        message = (
            f"group {settings.group.mirror_group} does not have the positions: {error.message}"
        )
        report.add(Outcome.NOT_MIRRORED, f"{message}. {error.action}" if error.action else message)
        return
    if others:
        log, word = next(iter(others.items()))
        message = f"group {settings.group.mirror_group} has offsets of somebody else in {counted(len(others), 'partition')}, the first {log}"
        said = f" ({word})" if word else ""
        report.add(
            Outcome.NOT_MIRRORED,
            f"{message}{said}: they stay as they are; name a group that nobody consumes or mirrors under",
        )


class HasSpark(Protocol):
    """Provides the session of a run."""

    def spark(self) -> SparkSession:
        """Return the session, started on the first call."""


def compact_when_due(settings: Settings, world: HasSpark, report: Report) -> None:
    """After a run that appended something: compact if as many small files wait as
    `table.auto_compact_min_files` says.
    """
    at = settings.table.auto_compact_min_files
    if not at or not any(one.applied for one in report.plans):
        return
    try:
        small, _ = waiting(settings)
        if not is_compaction_due(small, at):
            return
        with report.timed(Verb.COMPACT), translating_spark_errors():
            done = compact(world.spark(), settings.table.path, settings.table.target_file_bytes)
    except EtlError as error:
        message = f"small files of the table stay as they are: {error.message}"
        report.add(
            Outcome.TABLE_NOT_COMPACTED,
            f"{message}. {error.action}" if error.action else message,
        )
        return
    if done.files_removed:
        report.add(Outcome.TABLE_COMPACTED, became(settings.table.path, done))


def waiting(settings: Settings) -> tuple[int, int]:
    """How many small files the table has that can be put together, and their bytes. No JVM starts
    for it. Raises as `open_table`.
    """
    return small_files(data_files(settings.table.path), settings.table.target_file_bytes)


def compaction_of(world: HasSpark, settings: Settings) -> Compacted:
    """Compact small files, if there are any. Raises TableUnreachable if others changed the same
    files meanwhile, and NoExclusiveCreate if the store does not separate two writers. A table with
    possible deletion vectors is always compacted by Spark, which rewrites partly deleted files of
    any size.
    """
    table = settings.table
    require_exclusive_create(table.path)  # no plan says whether that was tried today
    if not waiting(settings)[0] and not may_have_deletion_vectors(table.path):
        return Compacted()
    return compact(world.spark(), table.path, table.target_file_bytes)


def would_become(table: str, small: int, small_bytes: int) -> str:
    """Describe what waits."""
    return f"{counted(small, 'small file')} of {table}, {size_in_words(small_bytes)}, would become large ones (OPTIMIZE)"


def became(table: str, done: Compacted) -> str:
    """Describe what was done."""
    return (
        f"{counted(done.files_removed, 'small file')} of {table} became {counted(done.files_added, 'file')}: "
        f"{size_in_words(done.bytes_removed)} became {size_in_words(done.bytes_added)}"
    )
