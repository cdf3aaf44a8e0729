"""Appends on real Delta tables: what an append does, what a read-back finds, what others did."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from etl.errors import CorruptData, LedgersDisagree, NotOurTable, SettingsError
from etl.io.delta import append as writers
from etl.io.delta import loaded_plans
from etl.io.delta.append import Destination, EmptyCommit, Load, Writer
from etl.io.delta.loaded_plans import Outcome, Result, read_back
from etl.io.delta.recover_results import rows_in_null_partition
from etl.io.delta.table_shape import WRITTEN_BY_ARROW, check_shape, features_of
from etl.model.columns import arrow_schema, spark_schema
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan
from tests.spark.appending import ARROW, SPARK, WRITERS, append_nothing, append_rows

APP = "offset-range-etl/cluster/group/clicks"
LOG = TopicPartition("clicks", 0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture(params=WRITERS)
def append(
    request: pytest.FixtureRequest, rows_of: Callable[[Plan], Any], path: str
) -> Callable[..., Outcome]:
    """Append a plan's rows to the test's table, by each of the writers."""
    return appending(WRITERS[request.param], rows_of, path)


@pytest.fixture
def append_by_spark(rows_of: Callable[[Plan], Any], path: str) -> Callable[..., Outcome]:
    """For properties of Spark's writer only."""
    return appending(SPARK, rows_of, path)


def appending(by: Writer, rows_of: Callable[[Plan], Any], path: str) -> Callable[..., Outcome]:
    def do(
        plan: Plan, frame: Any = None, partition_by: tuple[str, ...] = (), known: int | None = None
    ) -> Outcome:
        rows = rows_of(plan) if frame is None else frame
        return append_rows(
            rows, plan, by=by, app_id=APP, path=path, partition_by=partition_by, known=known
        )

    return do


@pytest.fixture(scope="module")
def made(
    rows_of: Callable[[Plan], Any],
    make_plan: Callable[..., Plan],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A table with plans 1 and 2, made once."""
    folder = tmp_path_factory.mktemp("made") / "table"
    for number in (1, 2):
        table = loaded_plans.read_table(str(folder), APP, known=None)
        plan = make_plan(number, table_id=table.id if table else None)
        append_rows(rows_of(plan), plan, app_id=APP, path=str(folder))
    return folder


@pytest.fixture
def two_plans(made: Path, path: str) -> str:
    """The test's own copy of that table: a table's log names its files relative to it."""
    return str(shutil.copytree(made, path))


def offsets(spark: Any, path: str) -> list[int]:
    return sorted(
        row.offset for row in spark.read.format("delta").load(path).select("offset").collect()
    )


def read(path: str, known: int | None = None) -> Any:
    return loaded_plans.read_table(path, APP, known=known)


def test_a_plan_is_in_the_table_once_with_its_stamp_in_the_history(
    spark: Any, append: Any, make_plan: Any, path: str
) -> None:
    plan = make_plan(1)
    outcome = append(plan)
    assert (outcome.result, outcome.delta_version) == (Result.APPLIED, 0)
    table = read(path)
    assert (table.transaction_version, table.foreign) == (1, ())
    assert (table.metadata.plan_id, table.metadata.uid) == (plan.id, "uid-1")
    result = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()[0].userMetadata
    assert json.loads(result)["plan_id"] == plan.id
    assert offsets(spark, path) == list(range(10))


def test_a_number_at_or_below_the_tables_is_skipped_and_the_read_back_finds_its_plan(
    spark: Any, append: Any, make_plan: Any, two_plans: str
) -> None:
    path, first = two_plans, make_plan(1)
    second = make_plan(2, table_id=read(path).id)
    assert append(second).result is Result.APPLIED
    again, other = append(first), append(make_plan(1, created_at_ms=5))
    assert (again.result, again.delta_version) == (Result.APPLIED, 0)
    assert (other.result, other.metadata.plan_id) == (Result.APPLIED_BY_ANOTHER, first.id)
    assert offsets(spark, path) == list(range(20))


def test_an_invalid_folder_name_is_reported_and_repaired_rows_are_appended_by_the_plan(
    spark: Any, append_by_spark: Any, make_plan: Any, rows_of: Any, path: str
) -> None:
    plan = make_plan(1)
    rows = rows_of(plan).selectExpr("*", "concat('r', char(0), 'd') as colour")
    with pytest.raises(SettingsError, match="the partition column colour contains a NUL"):
        append_by_spark(plan, rows, ("colour",))
    assert read(path) is None
    repaired = rows.selectExpr("* except (colour)", "'red' as colour")
    assert append_by_spark(plan, repaired, ("colour",)).result is Result.APPLIED
    assert offsets(spark, path) == list(range(10))


def test_spark_itself_skips_a_used_number_silently(
    spark: Any,
    append_by_spark: Any,
    make_plan: Any,
    rows_of: Any,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append_by_spark(make_plan(1))
    late = make_plan(1, created_at_ms=7)
    monkeypatch.setattr(writers, "holds", lambda *_: False)
    assert append_by_spark(late).result is Result.APPLIED_BY_ANOTHER
    assert offsets(spark, path) == list(range(10))


@pytest.mark.parametrize("first_write", [True, False], ids=["the first write", "a later write"])
def test_of_two_appends_at_a_time_under_one_number_exactly_one_is_applied(
    spark: Any, append: Any, make_plan: Any, path: str, first_write: bool
) -> None:
    number, table_id = 1, None
    if not first_write:
        append(make_plan(1))
        number, table_id = 2, read(path).id
    plans = [make_plan(number, table_id=table_id, created_at_ms=at) for at in (1, 2)]
    ready, outcomes = threading.Barrier(2), dict[int, Outcome]()

    def run(at: int) -> None:
        ready.wait(60)
        outcomes[at] = append(plans[at])

    threads = [threading.Thread(target=run, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(outcome.result.value for outcome in outcomes.values()) == [
        "applied",
        "applied by another run",
    ]
    winner = next(at for at, outcome in outcomes.items() if outcome.result is Result.APPLIED)
    assert {outcome.metadata.plan_id for outcome in outcomes.values() if outcome.metadata} == {
        plans[winner].id
    }
    assert offsets(spark, path) == list(range(number * 10))


def test_an_append_that_loses_the_race_after_its_check_is_found_by_the_read_back(
    spark: Any, append: Any, make_plan: Any, rows_of: Any, path: str
) -> None:
    """The other driver commits while our job runs: Spark raises."""
    ours, theirs = make_plan(1), make_plan(1, created_at_ms=9)
    slow = rows_of(ours).withColumn("value", _commit_meanwhile(theirs, path)("value"))
    outcome = append(ours, slow)
    assert (outcome.result, outcome.metadata.plan_id) == (Result.APPLIED_BY_ANOTHER, theirs.id)
    assert offsets(spark, path) == []


def _commit_meanwhile(plan: Plan, path: str) -> Any:
    """A function of the rows that commits `plan` while they are being written."""
    from pyspark.sql.functions import udf

    load = Load(EmptyCommit(arrow_schema()))

    @udf("binary")
    def commit(value: bytes) -> bytes:
        if not os.path.exists(f"{path}/_delta_log/{0:020}.json"):
            writers.append(load, plan, Destination(path, APP))
        return value

    return commit


def test_a_plan_made_for_another_table_or_for_none_is_refused_and_found_by_the_read_back(
    spark: Any, append: Any, make_plan: Any, path: str
) -> None:
    spark.range(3).write.format("delta").save(path)
    with pytest.raises(LedgersDisagree, match="no table"):
        append(make_plan(1))
    shutil.rmtree(path)
    append(make_plan(1))
    with pytest.raises(LedgersDisagree, match="another-id"):
        append(make_plan(2, table_id="another-id"))
    with pytest.raises(LedgersDisagree, match="another-id"):
        read_back(make_plan(1, table_id="another-id"), app_id=APP, path=path, known=None)
    assert read(path).transaction_version == 1


def test_an_empty_plan_makes_the_very_table_that_sparks_append_would_make(
    spark: Any, make_plan: Any, rows_of: Any, append: Any, tmp_path: Path, path: str
) -> None:
    partition_by = ("topic", "event_date")
    start = make_plan(1, ranges=())
    other = str(tmp_path / "by-spark")
    outcome = append_nothing(start, app_id=APP, path=path, partition_by=partition_by, known=None)
    assert (outcome.result, outcome.delta_version) == (Result.APPLIED, 0)
    first = make_plan(1)
    append_rows(rows_of(first), first, app_id=APP, path=other, partition_by=partition_by)
    assert DeltaTable(path).schema().to_json() == DeltaTable(other).schema().to_json()
    assert (
        DeltaTable(path).metadata().partition_columns
        == DeltaTable(other).metadata().partition_columns
        == list(partition_by)
    )
    assert DeltaTable(path).protocol() == DeltaTable(other).protocol()

    second = make_plan(2, table_id=read(path).id)
    assert append(second, partition_by=partition_by).result is Result.APPLIED
    third = make_plan(3, table_id=read(path).id, ranges=())
    applied = append_nothing(third, app_id=APP, path=path, partition_by=partition_by, known=1)
    assert (applied.result, applied.delta_version) == (Result.APPLIED, 2)
    assert read(path).transaction_version == 3
    fourth = make_plan(4, table_id=read(path).id)
    assert append(fourth, partition_by=partition_by).result is Result.APPLIED
    assert offsets(spark, path) == list(range(10, 20)) + list(range(30, 40))


def test_an_empty_plan_is_applied_once(make_plan: Any, path: str) -> None:
    for at in (1, 2):
        plan = make_plan(1, ranges=(), created_at_ms=at)
        outcome = append_nothing(plan, app_id=APP, path=path)
        assert outcome.result is (Result.APPLIED if at == 1 else Result.APPLIED_BY_ANOTHER)
    assert DeltaTable(path).version() == 0


def test_the_event_date_is_the_utc_date_in_the_years_1_to_9999_whatever_the_sessions_time_zone(
    spark: Any, append: Any, make_plan: Any, rows_of: Any, path: str
) -> None:
    plan = make_plan(1, ranges=(OffsetRange(LOG, 0, len(_DATES) + 1),))
    plan_rows = rows_of(plan).selectExpr(
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        f"timestamp_micros(get(array({', '.join(map(str, _DATES))}), cast(offset as int))) "
        f"timestamp",
        "timestampType",
        "headers",
        "incarnation",
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        append(plan, plan_rows, partition_by=("event_date",))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    dates = dict(enumerate([*_DATES.values(), None]))
    rows = (
        spark.read.format("delta")
        .load(path)
        .selectExpr("offset", "event_date", "unix_micros(timestamp) micros")
        .collect()
    )
    assert {row.offset: row.event_date for row in rows} == dates
    assert {row.offset: row.micros for row in rows} == dict(enumerate([*_DATES, None]))
    columns = ["offset", "event_date", "timestamp"]
    by_delta_rs = DeltaTable(path).to_pyarrow_table(columns=columns)
    dates_by_delta_rs = by_delta_rs.select(["offset", "event_date"]).to_pylist()
    assert {row["offset"]: row["event_date"] for row in dates_by_delta_rs} == dates
    assert by_delta_rs.column("timestamp").null_count == 1
    assert rows_in_null_partition(path, 0, "event_date") == 5
    assert rows_in_null_partition(path, 7, "event_date") is None


_DATES = {
    -1: date(1969, 12, 31),
    0: date(1970, 1, 1),
    86_399_999_999: date(1970, 1, 1),
    86_400_000_000: date(1970, 1, 2),
    -62_135_596_800_000_000: date(1, 1, 1),
    253_402_300_799_999_999: date(9999, 12, 31),
    -62_135_596_800_000_001: None,
    253_402_300_800_000_000: None,
    -9_223_372_036_854_775_000: None,
    9_223_372_036_854_775_000: None,
}
"""Microseconds since 1970, and the date they lie in."""


@pytest.mark.long
def test_our_files_are_valid_in_a_table_with_every_feature_that_we_support(
    spark: Any, make_plan: Any, rows_of: Any, path: str
) -> None:
    properties = {
        "enableDeletionVectors": "true",
        "enableChangeDataFeed": "true",
        "checkpointPolicy": "v2",
        "checkpointInterval": "2",
    }
    text = ", ".join(f"'delta.{key}' = '{value}'" for key, value in properties.items())
    spark.sql(
        f"CREATE TABLE delta.`{path}` ({spark_schema()}, at timestamp_ntz) USING delta "
        f"TBLPROPERTIES ({text})"
    )
    for number in (1, 2):
        plan = make_plan(number, table_id=DeltaTable(path).metadata().id)
        outcome = append_rows(rows_of(plan), plan, by=ARROW, app_id=APP, path=path)
        assert outcome.result is Result.APPLIED
        if number == 1:
            spark.sql(f"DELETE FROM delta.`{path}` WHERE offset = 3")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    third = make_plan(3, table_id=DeltaTable(path).metadata().id)
    outcome = append_rows(rows_of(third), third, by=ARROW, app_id=APP, path=path)
    assert outcome.result is Result.APPLIED
    assert WRITTEN_BY_ARROW <= features_of(DeltaTable(path))
    assert offsets(spark, path) == [offset for offset in range(30) if offset != 3]
    feed = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 1)
        .load(path)
    )
    assert feed.where("_change_type = 'insert'").select("offset").distinct().count() == 30


@pytest.mark.parametrize(
    "statement, operation, why",
    [
        ("UPDATE {t} SET topic = 'x' WHERE offset = 3", "UPDATE", "removed rows"),
        ("RESTORE TABLE {t} TO VERSION AS OF 0", "RESTORE", "removed rows"),
        ("overwrite", "WRITE", "removed rows"),
        ("overwrite columns", "WRITE", "redefined the table"),
    ],
)
def test_what_others_do_to_our_rows_is_seen(
    spark: Any, two_plans: str, statement: str, operation: str, why: str
) -> None:
    path = two_plans
    if statement.startswith("overwrite"):
        frame = spark.read.format("delta").load(path).limit(1)
        if statement == "overwrite":
            frame = frame.selectExpr("*", "cast(null as string) extra")
        else:
            frame = frame.drop("headers")
        frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    else:
        spark.sql(statement.format(t=f"delta.`{path}`"))
    table = read(path)
    assert [(f.delta_version, f.operation, f.why) for f in table.foreign] == [(2, operation, why)]
    assert (table.transaction_version, table.metadata.delta_version) == (2, 1)


def test_a_delete_between_two_of_our_commits_is_seen_from_the_commit_the_ledger_knows(
    append: Any, make_plan: Any, two_plans: str
) -> None:
    path = two_plans
    DeltaTable(path).delete("offset < 5")
    outcome = append(make_plan(3, table_id=read(path).id), known=1)
    assert [f.delta_version for f in outcome.table.foreign] == [2]
    assert [f.delta_version for f in read(path, known=1).foreign] == [2]
    assert read(path, known=3).foreign == read(path).foreign == ()


def test_what_moves_no_row_is_quiet(
    spark: Any, make_plan: Any, rows_of: Any, two_plans: str
) -> None:
    path = two_plans
    for statement in (
        "OPTIMIZE {t}",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '7')",
        "ALTER TABLE {t} ADD COLUMN extra string",
    ):
        spark.sql(statement.format(t=f"delta.`{path}`"))
    spark.read.format("delta").load(path).limit(1).write.format("delta").mode("append").save(path)
    assert DeltaTable(path).version() == 5
    assert read(path).foreign == ()
    for number, writer in enumerate(WRITERS.values(), start=3):
        plan = make_plan(number, table_id=read(path).id)
        assert appending(writer, rows_of, path)(plan).result is Result.APPLIED


def test_a_cleaned_up_log_keeps_the_number_and_loses_the_stamp(
    append: Any, make_plan: Any, path: str
) -> None:
    append(make_plan(1))
    table = DeltaTable(path)
    for _ in range(2):
        table.alter.set_table_properties({"delta.checkpointInterval": "7"})
    table.create_checkpoint()
    os.remove(f"{path}/_delta_log/{0:020}.json")
    found = read(path)
    assert (found.transaction_version, found.metadata, found.foreign) == (1, None, ())
    assert read(path, known=0) == found
    assert append(make_plan(2, table_id=found.id)).result is Result.APPLIED


def test_of_two_empty_plans_at_a_time_the_later_one_is_refused_by_the_table(
    make_plan: Any, path: str
) -> None:
    append_nothing(make_plan(1, ranges=()), app_id=APP, path=path)
    stale = DeltaTable(path)
    second = make_plan(2, table_id=read(path).id, ranges=())
    append_nothing(second, app_id=APP, path=path, partition_by=(), known=0)
    with pytest.raises(Exception, match="(?i)transaction"):
        stale.create_write_transaction(
            [],
            "append",
            stale.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(APP, 2)]),
        )
    assert DeltaTable(path).version() == 1


def test_an_executors_failure_is_raised_as_itself(
    spark: Any, append: Any, make_plan: Any, rows_of: Any, path: str
) -> None:
    from pyspark.sql.functions import udf

    from etl.errors import mark

    place = {"topic": "clicks", "partition": 0, "offset": 7}
    corrupt = mark(CorruptData('a bad "CRC"', action="the broker's disk", **place))

    @udf("binary")
    def spoil(value: bytes) -> bytes:
        raise RuntimeError(corrupt)

    plan = make_plan(1)
    with pytest.raises(CorruptData) as caught:
        append(plan, rows_of(plan).withColumn("value", spoil("value")))
    assert caught.value.where == place
    assert read(path) is None, (
        "the files of a failed first write are no table, and the folder is not foreign"
    )
    assert os.listdir(path)
    assert append(plan).result is Result.APPLIED


def test_a_table_of_another_shape_is_refused_by_the_first_column_that_differs(
    spark: Any, append: Any, make_plan: Any, path: str
) -> None:
    expected = arrow_schema()
    check_shape(path, expected, ())
    append(make_plan(1))
    check_shape(path, expected, ())
    with pytest.raises(SettingsError, match="partitioned by day: the rows have no column day"):
        check_shape(path, expected, ("topic", "day"))
    with pytest.raises(NotOurTable, match="partitioned by nothing, the conf sets topic"):
        check_shape(path, expected, ("topic",))
    with pytest.raises(NotOurTable, match="no column event_date .*date"):
        check_shape(path, expected, ("event_date",))


def test_a_column_of_another_type_is_named_with_both_types(spark: Any, path: str) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (key binary, value string) USING delta")
    with pytest.raises(NotOurTable, match="column value is string, expected binary"):
        check_shape(path, arrow_schema(), ())
