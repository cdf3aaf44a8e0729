"""Compaction of real tables: no row moves, and concurrent commits."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable as DeltaTables
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from etl.errors import TableUnreachable
from etl.io.delta.maintenance import Compacted, compact, data_files, unneeded, write_checkpoint
from etl.model.columns import arrow_schema
from etl.model.plans import CommitResult
from etl.report.run_progress import Executed, Outcome
from etl.report.run_report import Report
from etl.run.after_commit import compact_when_due
from etl.settings.sections import Settings
from tests.builders import plain_plan, plain_settings

MIB = 2**20


def rows(first: int, many: int = 10, topic: str = "clicks") -> pa.Table:
    """Of the raw table; each has another offset and value."""
    values = {
        "topic": [topic] * many,
        "partition": [0] * many,
        "offset": list(range(first, first + many)),
        "incarnation": [0] * many,
        "timestamp": [1_700_000_000_123_000 + n * 1000 for n in range(first, first + many)],
        "value": [b"\xff\x00%d" % n for n in range(first, first + many)],
        "headers": [
            [{"key": "n", "value": b"%d" % n}] if n % 2 else None
            for n in range(first, first + many)
        ],
    }
    return pa.table(
        [pa.array(values.get(field.name, [None] * many), field.type) for field in arrow_schema()],
        schema=arrow_schema(),
    )


def table_of(path: Path, *topics: str, partition_by: tuple[str, ...] = ()) -> str:
    """A table with a small file of ten rows for each of these topics."""
    for n, topic in enumerate(topics):
        write_deltalake(
            path, rows(n * 10, topic=topic), mode="append", partition_by=list(partition_by) or None
        )
    return str(path)


def content(path: str) -> list[dict[str, Any]]:
    return sorted(
        DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: int(row["offset"])
    )


@pytest.fixture
def three(tmp_path: Path) -> str:
    return table_of(tmp_path / "a:table`", *["clicks"] * 3)


@pytest.fixture
def held_up(spark: Any, three: str, tmp_path: Path) -> Callable[..., Any]:
    """All task slots are busy: the compaction has read the table and waits."""
    DeltaTables.forPath(spark, three).toDF().collect()  # so that the look itself takes no job

    @contextlib.contextmanager
    def holding(do: Callable[[], Any]) -> Iterator[list[Any]]:
        release, came = tmp_path / "release", list[Any]()
        context = spark.sparkContext

        def wait(_: Any) -> None:
            while not release.exists():
                time.sleep(0.005)

        def run_and_report() -> None:
            try:
                came.append(do())
            except Exception as error:
                came.append(error)

        slots = context.defaultParallelism
        holder = threading.Thread(
            target=lambda: context.parallelize(range(slots), slots).foreach(wait)
        )
        doing = threading.Thread(target=run_and_report)
        holder.start()
        until(lambda: sum(info.numActiveTasks for info in stages(context)) == slots)
        doing.start()
        until(lambda: len(context.statusTracker().getActiveJobsIds()) > 1 or bool(came))
        try:
            yield came
        finally:
            release.touch()
            holder.join()
            doing.join()

    return holding


def stages(context: Any) -> list[Any]:
    tracker = context.statusTracker()
    return [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]


def until(is_so: Callable[[], bool]) -> None:
    """At most a minute."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.005)


def test_small_files_of_a_partition_become_one_and_the_rows_stay(
    spark: Any, tmp_path: Path
) -> None:
    path = table_of(tmp_path / "table", "a", "ä b/c", "a", "ä b/c", "lone", partition_by=("topic",))
    setting = "spark.databricks.delta.optimize.maxFileSize"
    before, size = content(path), spark.conf.get(setting, None)
    done = compact(spark, path, MIB)
    assert (done.files_removed, done.files_added) == (4, 2) and content(path) == before
    assert sorted(str(file.partition[0]) for file in data_files(path)) == ["a", "lone", "ä b/c"]
    assert spark.conf.get(setting, None) == size, "others' OPTIMIZE is as it was"


def test_files_do_not_exceed_the_requested_size_and_files_of_half_that_size_stay(
    spark: Any, three: str
) -> None:
    size = max(file.size_bytes for file in data_files(three))
    assert compact(spark, three, 2 * size - 2) == Compacted()
    assert compact(spark, three, int(2.5 * size)).files_removed == 2, (
        "a third one would make it larger"
    )


def test_an_append_while_files_are_put_together_passes_and_stays(
    spark: Any, three: str, held_up: Any
) -> None:
    with held_up(lambda: compact(spark, three, MIB)) as came:
        assert not came
        write_deltalake(three, rows(30), mode="append")
    assert came[0].files_removed == 3
    assert [row["offset"] for row in content(three)] == list(range(40))


def test_a_concurrent_removal_of_the_same_files_wins_over_the_compaction_and_is_reported(
    spark: Any, three: str, held_up: Any
) -> None:
    with held_up(lambda: compact(spark, three, MIB)) as came:
        DeltaTable(three).delete("offset < 5")
        left, version = content(three), DeltaTable(three).version()
    assert isinstance(came[0], TableUnreachable)
    assert "Another writer changed the same files" in came[0].message
    assert content(three) == left and DeltaTable(three).version() == version


def test_delta_rs_still_doubles_rows_where_two_put_the_same_files_together(three: str) -> None:
    """Why Spark compacts here. If this fails, delta-rs can be used."""
    looked_at = DeltaTable(three)
    DeltaTable(three).optimize.compact()
    looked_at.optimize.compact()
    assert len(content(three)) == 60


def test_files_of_a_present_run_and_of_versions_of_the_week_are_not_counted_as_unneeded(
    spark: Any, three: str
) -> None:
    compact(spark, three, MIB)
    written = Path(three, "part-00000-now.parquet")
    written.write_bytes(b"rows")
    assert unneeded(three, timedelta(days=7)) == 0
    os.utime(written, (1, 1))
    assert unneeded(three, timedelta(days=7)) == 1
    assert unneeded(three, timedelta()) == 4


def test_a_checkpoint_is_written_once_without_spark_and_keeps_what_the_ledger_goes_by(
    three: str,
) -> None:
    write_deltalake(
        three,
        rows(30),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("us", 7)]),
    )
    assert write_checkpoint(three, open_no_session) == 3
    log = Path(three, "_delta_log")
    written_at = (log / f"{3:020}.checkpoint.parquet").stat().st_mtime_ns
    assert write_checkpoint(three, open_no_session) == 3
    assert (log / f"{3:020}.checkpoint.parquet").stat().st_mtime_ns == written_at
    for commit in log.glob("*.json"):
        commit.unlink()
    assert DeltaTable(three).transaction_version("us") == 7 and len(content(three)) == 40


def open_no_session() -> Any:
    raise AssertionError("the command opened a Spark session")


class World:
    """Of a run; it may have no session to give."""

    def __init__(self, session: Any = None) -> None:
        self._session = session

    def spark(self) -> Any:
        return self._session or open_no_session()


def after_a_run(
    settings: Settings, world: World, *, appended: bool = True
) -> list[tuple[Outcome, str]]:
    report, plan = Report("run-1", "clicks", "group", settings.table.path, 0), plain_plan(1)
    report.plans.append(
        Executed(plan, CommitResult(1, plan.id, 0, "table", ()) if appended else None)
    )
    compact_when_due(settings, world, report)
    return report.outcomes


def conf(path: str, at: int) -> Settings:
    return plain_settings(
        table={"path": path, "auto_compact_min_files": at, "target_file_bytes": MIB}
    )


def test_a_run_starts_spark_only_at_the_confs_number_of_small_files(spark: Any, three: str) -> None:
    assert after_a_run(conf(three, 0), World()) == after_a_run(conf(three, 4), World()) == []
    assert after_a_run(conf(three, 3), World(), appended=False) == []
    [(outcome, result)] = after_a_run(conf(three, 3), World(spark))
    assert outcome is Outcome.TABLE_COMPACTED and "3 small files" in result
    assert len(data_files(three)) == 1
    assert after_a_run(conf(three, 1), World()) == []


def test_files_that_a_run_cannot_compact_are_reported_and_the_outcome_of_the_run_stays(
    spark: Any, three: str
) -> None:
    [lost, *_] = Path(three).glob("*.parquet")
    lost.unlink()
    [(outcome, result)] = after_a_run(conf(three, 3), World(spark))
    assert outcome is Outcome.TABLE_NOT_COMPACTED and outcome.is_loud
    assert "A file that the table's log names does not exist" in result
    assert len(DeltaTable(three).file_uris()) == 3


def test_an_unknown_error_of_spark_leaves_the_outcome_of_the_run_too(three: str) -> None:
    class Failing(World):
        def spark(self) -> Any:
            raise ValueError("An error occurred while calling o1.sql.\n: java.lang.X: no parser")

    assert after_a_run(conf(three, 3), Failing()) == [
        (Outcome.TABLE_NOT_COMPACTED, "Small files remain: java.lang.X: no parser")
    ]
