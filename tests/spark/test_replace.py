"""A replay's commit to a real Delta table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.decide.loaded_intervals import Span, spans_of
from etl.errors import LedgersDisagree, SettingsError, TableUnreachable
from etl.io.delta import loaded_plans
from etl.io.delta.loaded_plans import Outcome, Result
from etl.io.delta.offsets_of_rows import condition, rows_in_files, rows_there
from etl.io.delta.recover_results import recount
from etl.ledger.plan_document import with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan, PlanKind
from tests.builders import plain_plan
from tests.spark.appending import append_rows

APP = "offset-range-etl/cluster/group/clicks"
LOGS = [
    TopicPartition("clicks", 0),
    TopicPartition("clicks", 1),
    TopicPartition("other.topic", 0),
]


def ranges(*bounds: tuple[int, int, int]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(LOGS[partition], low, high) for partition, low, high in bounds)


@pytest.fixture
def put(rows_of: Callable[[Plan], Any], tmp_path: Path) -> Callable[..., Outcome]:
    """Append or replace these ranges as the next plan; `value` identifies the writer of a row."""
    path, made = str(tmp_path / "table"), list[Plan]()

    def do(
        kind: PlanKind,
        *bounds: tuple[int, int, int],
        value: str,
        number: int | None = None,
        rows: Any = None,
        partition_by: tuple[str, ...] = (),
    ) -> Outcome:
        table = loaded_plans.read_table(path, APP, known=None)
        plan = with_id(
            plain_plan(
                number or len(made) + 1,
                uid="uid-1",
                kind=kind,
                ranges=ranges(*bounds),
                loaded_until=dict.fromkeys(LOGS, 100),
                table_id=table.id if table else None,
                table_transaction_version=len(made),
                reason=value,
            )
        )
        made.append(plan)
        frame = (rows or rows_of)(plan).selectExpr(
            "* except (value, incarnation)",
            f"cast('{value}' as binary) as value",
            "cast(null as int) as incarnation",
        )
        return append_rows(frame, plan, app_id=APP, path=path, partition_by=partition_by)

    return do


def there(path: Path) -> dict[tuple[str, int, int], str]:
    columns = ["topic", "partition", "offset", "value"]
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=columns).to_pylist()
    found = {(row["topic"], row["partition"], row["offset"]): row["value"].decode() for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


@pytest.mark.parametrize("partition_by", [(), ("topic",)], ids=["plain", "partitioned"])
def test_a_replay_is_one_commit_that_replaces_its_rows_and_is_known_as_ours(
    spark: SparkSession, put: Callable[..., Outcome], tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    path = tmp_path / "table"
    put(PlanKind.INGEST, (0, 0, 20), (1, 0, 20), (2, 0, 20), value="old", partition_by=partition_by)
    put(PlanKind.INGEST, (0, 20, 40), value="old", partition_by=partition_by)
    before = there(path)
    outcome = put(PlanKind.REPLAY, (0, 10, 30), (2, 5, 9), value="new", partition_by=partition_by)
    assert (outcome.result, outcome.delta_version) == (Result.APPLIED, 2)
    assert outcome.table is not None
    assert (outcome.table.transaction_version, outcome.table.foreign) == (3, ())
    new = {("clicks", 0, n) for n in range(10, 30)} | {("other.topic", 0, n) for n in range(5, 9)}
    assert there(path) == {row: "new" if row in new else by for row, by in before.items()}
    counted = recount(str(path), 2, ranges((0, 10, 30), (2, 5, 9)))
    assert [result.rows for result in counted.results] == [20, 4], (
        "rows that its files hold of others are none of its own"
    )
    known = loaded_plans.read_table(str(path), APP, known=1)
    assert known is not None and known.foreign == (), (
        "the replay is no foreign commit that removed rows"
    )

    again = put(PlanKind.REPLAY, (0, 0, 40), value="newer", number=3, partition_by=partition_by)
    assert again.result is Result.APPLIED_BY_ANOTHER and "newer" not in there(path).values(), (
        "its number was used"
    )
    wanted = ranges((0, 10, 50), (1, 30, 40), (2, 0, 9))
    spans = spans_of(plain_plan(kind=PlanKind.REPLAY, ranges=wanted))
    expected = {LOGS[0]: 30, LOGS[1]: 0, LOGS[2]: 9}
    assert rows_there(spark, str(path), spans) == rows_in_files(str(path), spans) == expected


def test_rows_outside_the_replaced_interval_are_rejected_and_nothing_is_replaced(
    put: Callable[..., Outcome], rows_of: Callable[[Plan], Any], tmp_path: Path
) -> None:
    put(PlanKind.INGEST, (0, 0, 20), value="old")

    def moved(plan: Plan) -> Any:
        return rows_of(plan).selectExpr("* except (offset)", "offset + 1 offset")

    with pytest.raises(SettingsError, match="changes the columns that identify a record"):
        put(PlanKind.REPLAY, (0, 5, 10), value="new", rows=moved)
    assert set(there(tmp_path / "table").values()) == {"old"}


def test_without_a_table_nothing_is_replaced_and_none_is_made(
    put: Callable[..., Outcome], tmp_path: Path
) -> None:
    with pytest.raises((LedgersDisagree, TableUnreachable), match="no table"):
        put(PlanKind.REPLAY, (0, 5, 10), value="new")
    assert not list((tmp_path / "table").rglob("*.json"))


def test_the_condition_names_each_life_of_each_log() -> None:
    spans = [Span(TopicPartition("a'b\\", 3), 5, 9, 2), Span(TopicPartition("c", 0, 7), 0, 4)]
    assert condition(spans, ["topic", "incarnation"]) == (
        "(`topic` = 'a\\'b\\\\' AND `partition` = 3 AND `offset` >= 5 AND `offset` < 9 AND "
        "coalesce(`incarnation`, 0) = 2) OR "
        "(`topic` = 'c' AND `partition` = 0 AND `broker_id` = 7 AND `offset` >= 0 AND "
        "`offset` < 4 AND coalesce(`incarnation`, 0) = 0)"
    )
    assert condition(spans[1:], ["topic"]).endswith("AND 0 = 0)")
