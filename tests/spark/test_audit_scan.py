"""The findings of an audit in a real table, and the recount of rows from a commit's files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from etl.audit.compare_rows import AuditedPartition, Expected, PartitionFindings, audit
from etl.errors import FileLost, SettingsError, TableUnreachable
from etl.io.delta.offsets_of_rows import Scan, doubled_offsets
from etl.io.delta.recover_results import Recount, recount, recount_commit
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan, RangeResult
from etl.model.snapshot import Interval
from tests.spark.appending import append_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = "app"
CLICKS, VIEWS = TopicPartition("clicks", 0), TopicPartition("views", 3)
RANGES = (
    OffsetRange(CLICKS, 32_000, 36_000),
    OffsetRange(VIEWS, 1_000_000, 1_000_010),
    OffsetRange(CLICKS, 36_000, 36_020),
)
"""The first one lies in two bitmaps, which have 32,768 offsets each."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a table of ours")


@pytest.fixture(scope="module")
def made(
    rows_of: Callable[[Plan], DataFrame],
    make_plan: Callable[..., Plan],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A table of one plan, made once. The log lacks offsets 32,005 to 32,007 and 33,000."""
    folder = tmp_path_factory.mktemp("made") / "table"
    plan = make_plan(1, ranges=RANGES)
    rows = rows_of(plan).where(
        "topic = 'views' or not (offset between 32005 and 32007 or offset = 33000)"
    )
    append_rows(rows, plan, app_id=APP, path=str(folder), partition_by=("topic",))
    return folder


@pytest.fixture
def filled(made: Path, path: str) -> None:
    """The test's own copy of that table: a table's log names its files relative to it."""
    shutil.copytree(made, path)


def rows_of_others(rows: list[tuple[Any, Any, Any]]) -> pyarrow.Table:
    names, kinds = (
        ("topic", "partition", "offset"),
        (pyarrow.string(), pyarrow.int32(), pyarrow.int64()),
    )
    columns = [pyarrow.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    return pyarrow.table(columns, names=names)


RECEIPTS = (
    RangeResult(rows=3_996, missing_offsets=4, gaps=((32_005, 32_008), (33_000, 33_001))),
    RangeResult(rows=10),
    RangeResult(rows=20),
)


def find(spark: SparkSession, path: str) -> dict[TopicPartition, PartitionFindings]:
    expected = {
        AuditedPartition(CLICKS): Expected(
            ((RANGES[0], RECEIPTS[0]),), (Interval(36_000, 36_020, 20),)
        ),
        AuditedPartition(VIEWS): Expected(((RANGES[1], RECEIPTS[1]),)),
    }
    return {
        found.audited.partition: found for found in audit(expected, Scan(spark, path).buckets())
    }


def test_a_table_is_right_until_rows_are_missing_double_or_strange_and_each_is_found_where_it_is(
    spark: SparkSession, filled: None, path: str
) -> None:
    right = find(spark, path)
    assert [f.is_right for f in right.values()] == [True, True]
    assert (right[CLICKS].found_rows, right[VIEWS].found_rows) == (4_016, 10)

    DeltaTable(path).delete("topic = 'clicks' AND offset IN (32009, 34000)")
    more = [("views", 3, offset) for offset in (1_000_008, 1_000_009, 1_000_009, 2_000_000)]
    write_deltalake(path, rows_of_others(more), mode="append", schema_mode="merge")
    found = find(spark, path)
    clicks, views_found = found[CLICKS], found[VIEWS]
    assert (clicks.missing, clicks.missing_first, clicks.double_rows) == (2, (32_009, 34_000), 0)
    assert (views_found.double_rows, views_found.missing) == (3, 0)
    assert views_found.unexpected_first == (2_000_000,)
    (bucket,) = views_found.double_places
    assert doubled_offsets(spark, path, AuditedPartition(VIEWS), bucket) == [
        (1_000_008, 2),
        (1_000_009, 3),
    ]
    before = Scan(spark, path, 0).buckets()
    assert sum(bucket.rows for _, bucket in before) == 4_026


def test_a_table_without_log_epoch_can_be_proved_and_one_without_offsets_cannot(
    spark: SparkSession, path: str
) -> None:
    rows = rows_of_others([("views", 3, 0)])
    write_deltalake(f"{path}-incarnation", rows)
    write_deltalake(f"{path}-offset", rows.drop_columns(["offset"]))
    assert [a for a, _ in Scan(spark, f"{path}-incarnation").buckets()] == [AuditedPartition(VIEWS)]
    with pytest.raises(SettingsError, match="no column offset"):
        list(Scan(spark, f"{path}-offset").buckets())


def test_rows_that_name_no_record_are_counted_apart(spark: SparkSession, path: str) -> None:
    strange = [
        (None, 0, 1),
        ("clicks", None, 1),
        ("clicks", 0, None),
        ("clicks", -1, 1),
        ("clicks", 0, -1),
        ("clicks", 0, 2**63 - 1),
        (None, None, None),
    ]
    write_deltalake(path, rows_of_others([*strange, ("clicks", 0, 2**63 - 2), ("clicks", 0, 0)]))
    scan = Scan(spark, path)
    assert [(audited, bucket.number, bucket.rows) for audited, bucket in scan.buckets()] == [
        (AuditedPartition(CLICKS), 0, 1),
        (AuditedPartition(CLICKS), 2**48 - 1, 1),
    ]
    assert scan.rows_without_partition == len(strange)
    named = [tuple(one.values()) for one in scan.first_without_partition()]
    assert len(named) == 3 and set(named) <= set(strange)


def test_rows_are_counted_in_the_files_whatever_their_statistics_are(
    spark: SparkSession, path: str
) -> None:
    """Spark answers a plain count from the log's statistics."""
    write_deltalake(path, rows_of_others([("clicks", 0, 0), ("clicks", 0, 1)]))
    log = Path(path, "_delta_log", f"{0:020d}.json")
    text = log.read_text()
    log.write_text(text.replace('\\"numRecords\\":2', '\\"numRecords\\":999'))
    assert log.read_text() != text and spark.read.format("delta").load(path).count() == 999
    [(_, bucket)] = Scan(spark, path).buckets()
    assert bucket.rows == 2


@pytest.mark.parametrize(
    "damage, message",
    [
        (None, "does not exist"),
        (lambda whole: whole[:-9], "cannot be read"),
        (lambda whole: whole[:8] + b"\xff" * 60 + whole[68:], "cannot be read"),
    ],
    ids=["lost", "cut off", "overwritten"],
)
def test_a_file_that_is_lost_or_damaged_is_named(
    spark: SparkSession, path: str, damage: Any, message: str
) -> None:
    write_deltalake(path, rows_of_others([("clicks", 0, 0)]))
    [file] = Path(path).glob("*.parquet")
    whole = file.read_bytes()
    file.unlink()
    if damage:
        file.write_bytes(damage(whole))
    with pytest.raises(TableUnreachable if damage else FileLost, match=message) as caught:
        list(Scan(spark, path).buckets())
    assert caught.value.where["file"] == file.name


def test_results_are_counted_again_from_the_files_of_the_commit(filled: None, path: str) -> None:
    assert recount(path, 0, RANGES) == Recount(RECEIPTS)


def test_what_a_commit_held_is_counted_from_its_own_files_whatever_was_deleted_since(
    filled: None, path: str
) -> None:
    DeltaTable(path).delete("topic = 'views'")
    assert recount_commit(path, 0, RANGES) == RECEIPTS
    assert recount_commit(path, 0, RANGES[:1]) == RECEIPTS[:1]
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert recount_commit(path, 0, RANGES) is None
    assert recount_commit(path, 7, RANGES) is None
