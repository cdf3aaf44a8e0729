"""Small files of the table put together: what waits, and what a run does behind its commit where
the conf asks for it.

A run's records are in the table and its offsets are moved by then, so nothing of this fails the
run, and nothing of it is kept quiet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from etl.decide.table_storage import is_compaction_due, small_files
from etl.errors import EtlError
from etl.io.delta.exclusive_create import require_exclusive_create
from etl.io.delta.maintenance import Compacted, compact, data_files, may_have_deletion_vectors
from etl.io.spark.session import translating_spark_errors
from etl.report.describe import counted
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb, size_in_words
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HasSpark(Protocol):
    """Who knows the session of a run."""

    def spark(self) -> SparkSession:
        """Built when it is first asked for."""


def compact_when_due(settings: Settings, world: HasSpark, report: Report) -> None:
    """Behind a run that appended something: put small files together where as many wait as
    `table.compact_at_small_files` says.
    """
    at = settings.table.compact_at_small_files
    if not at or not any(one.applied for one in report.plans):
        return
    try:
        small, _ = waiting(settings)
        if not is_compaction_due(small, at):
            return
        with report.timed(Verb.COMPACT), translating_spark_errors():
            done = compact(world.spark(), settings.table.path, settings.table.target_file_bytes)
    except EtlError as error:
        what = f"small files of the table stay as they are: {error.what}"
        report.add(Outcome.NOT_COMPACTED, f"{what}; check {error.check}" if error.check else what)
        return
    if done.files_removed:
        report.add(Outcome.COMPACTED, became(settings.table.path, done))


def waiting(settings: Settings) -> tuple[int, int]:
    """How many small files the table has that can be put together, and their bytes. No JVM starts
    for it. Raises as `open_table`.
    """
    return small_files(data_files(settings.table.path), settings.table.target_file_bytes)


def compaction_of(world: HasSpark, settings: Settings) -> Compacted:
    """Put them together, if there are any. Raises TableUnreachable where somebody changed the same
    files meanwhile, and NoExclusiveCreate where the table's store or mount does not keep two
    writers apart.

    Of a table that may have deletion vectors Spark is asked anyway: it writes files anew of which a
    part is deleted, however large.
    """
    table = settings.table
    require_exclusive_create(table.path)  # no plan says whether that was tried today
    if not waiting(settings)[0] and not may_have_deletion_vectors(table.path):
        return Compacted()
    return compact(world.spark(), table.path, table.target_file_bytes)


def would_become(table: str, small: int, small_bytes: int) -> str:
    """What waits, in words."""
    return f"{counted(small, 'small file')} of {table}, {size_in_words(small_bytes)}, would become large ones (OPTIMIZE)"


def became(table: str, done: Compacted) -> str:
    """What was done, in words."""
    return (
        f"{counted(done.files_removed, 'small file')} of {table} became {counted(done.files_added, 'file')}: "
        f"{size_in_words(done.bytes_removed)} became {size_in_words(done.bytes_added)}"
    )
