"""How is a table compacted, vacuumed and checkpointed?

No row changes: OPTIMIZE marks its files with "dataChange": false (Delta protocol), VACUUM and
checkpoints change no version. So runs and streams skip these commits. The need for maintenance is
decided from the list of files, without a JVM. Spark does the work, because delta-rs does not detect
that another OPTIMIZE compacted the same files meanwhile, and then each row is in the table twice.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from etl.decide.table_storage import DataFile
from etl.errors import TableUnreachable, whole_text
from etl.io.delta.log import open_log
from etl.io.delta.stores import is_conflict, public_cause, translate, unreadable
from etl.io.delta.table_shape import features_of, not_by_delta_rs, open_table, rust_path, spark_path

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession


_LOGS_VACUUM = "spark.databricks.delta.vacuum.logging.enabled"
"""With it VACUUM commits the number of removed files."""
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_SPARKS_LISTING_TASKS = "10000"
"""Spark's default. VACUUM would start that many tasks even for three files: minutes on two cores.
"""
_TASKS_A_CORE = 4
_OPTIMIZE = "spark.databricks.delta.optimize."


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of OPTIMIZE."""

    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0


def data_files(path: str) -> list[DataFile]:
    """Return the files of the table's newest version. Raises as `open_table`."""
    table = open_table(path)
    if table is None:
        return []
    adds = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    partition_columns = [adds[f"partition.{name}"] for name in table.metadata().partition_columns]
    files = []
    for n, size in enumerate(adds["size_bytes"]):
        values = []
        for column in partition_columns:
            value = column[n]
            if value is not None:
                value = str(value)
            values.append(value)
        files.append(DataFile(tuple(values), size))
    return files


def may_have_deletion_vectors(path: str) -> bool:
    """Return True if the table has that feature. Raises as `open_table`."""
    table = open_table(path)
    return table is not None and "deletionVectors" in features_of(table)


def compact(spark: SparkSession, path: str, target_bytes: int) -> Compacted:
    """Compact the small files (`is_small`) up to `target_bytes` by OPTIMIZE.

    Raises TableUnreachable if another writer changed the same files meanwhile, or the table cannot
    be written.
    """
    sizes = {
        f"{_OPTIMIZE}minFileSize": str(-(-target_bytes // 2)),
        f"{_OPTIMIZE}maxFileSize": str(target_bytes),
    }
    # As SQL: Delta's DeltaTable.optimize does not escape a backtick in the path.
    with _translated(path), _set(spark, sizes):
        [row] = spark.sql(f"OPTIMIZE {_name_of(path)}").collect()
    metrics: Any = row["metrics"]
    added = metrics["filesAdded"]["totalSize"] or 0
    removed = metrics["filesRemoved"]["totalSize"] or 0
    return Compacted(metrics["numFilesRemoved"], metrics["numFilesAdded"], removed, added)


def unneeded(path: str, kept: timedelta) -> int:
    """Return how many files VACUUM would remove: those that no version of the time `kept` needs.

    Starts no JVM. Raises as `open_table`.
    """
    table = _there(path)
    with _translated(path):
        # `full`: includes files of killed runs, which no commit names.
        return len(
            table.vacuum(_hours(kept), dry_run=True, enforce_retention_duration=False, full=True)
        )


def vacuum(spark: SparkSession, path: str, kept: timedelta) -> int:
    """Remove the files that no version of the time `kept` needs; return their number.

    Raises as `compact`.
    """
    from delta.tables import DeltaTable

    with _translated(path), _set(spark, {_LOGS_VACUUM: "true", **_listing(spark)}):
        spark.sql(_vacuum(path, kept)).collect()
        [last] = DeltaTable.forPath(spark, spark_path(path)).history(1).collect()
    return int((last["operationMetrics"] or {}).get("numDeletedFiles", 0))


def write_checkpoint(path: str, spark: Callable[[], SparkSession]) -> int:
    """Write a checkpoint of the newest version, unless there is one; return the version.

    Delta then drops log entries older than `delta.logRetentionDuration`. `spark` is called only if
    delta-rs cannot write the checkpoint.
    """
    table = _there(path)
    if _last_checkpoint(path) == table.version():
        return table.version()
    if not_by_delta_rs(table):
        return _checkpoint_by_spark(path, spark())
    with _translated(path):
        table.create_checkpoint()
    return table.version()


def _there(path: str) -> DeltaTable:
    table = open_table(path)
    if table is None:
        raise TableUnreachable(
            "The table does not exist any more",
            path=path,
            action="Check who moved or removed it meanwhile",
        )
    return table


def _last_checkpoint(path: str) -> int | None:
    """Return the version of the last checkpoint; None if there is none, or it is unknown."""
    with _translated(path), contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        with open_log(rust_path(path)).open_input_stream("_delta_log/_last_checkpoint") as stream:
            return int(json.loads(bytes(stream.read()))["version"])
    return None


def _checkpoint_by_spark(path: str, spark: SparkSession) -> int:
    jvm: Any = spark._jvm  # there is no public access to it
    with _translated(path):
        partition = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            spark._jsparkSession, spark_path(path)
        )
        snapshot = partition.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty())
        partition.checkpoint(snapshot, jvm.scala.Option.empty())
        return int(snapshot.version())


def _vacuum(path: str, kept: timedelta) -> str:
    return f"VACUUM {_name_of(path)} RETAIN {_hours(kept)} HOURS"


def _name_of(path: str) -> str:
    """Return the table's name in SQL."""
    escaped = spark_path(path).replace("`", "``")
    return f"delta.`{escaped}`"


def _hours(kept: timedelta) -> int:
    return math.ceil(kept.total_seconds() / 3600)


def _listing(spark: SparkSession) -> dict[str, str]:
    """Return as many listing tasks as the session's cores can use, unless configured."""
    if spark.conf.get(_LISTING_TASKS) != _SPARKS_LISTING_TASKS:
        return {}
    return {_LISTING_TASKS: str(_TASKS_A_CORE * spark.sparkContext.defaultParallelism)}


@contextlib.contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Context manager: set these settings of the session, and restore the old ones at the end."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, was in before.items():
            if was is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, was)


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Context manager: translate exceptions of Spark, Java and delta-rs."""
    try:
        yield
    except Exception as error:  # their exceptions have no common class
        text = whole_text(error)
        if is_conflict(text):
            raise TableUnreachable(
                "Another writer changed the same files during the compaction",
                path=path,
                action="Run it again when no other writer changes the table. Nothing was changed",
            ) from error
        raise unreadable(text, path) or translate(error, path) from public_cause(error, path)
