"""Rows from before plan 1: how `etl verify` recognizes and reports them."""

from __future__ import annotations

from dataclasses import replace

from etl.audit.compare_rows import AuditedPartition, Expected, more_than_before, rows_before_of
from etl.model.partitions import TopicPartition
from etl.model.plans import HeldRows, OffsetRange, RangeResult, RowsBefore
from etl.model.snapshot import Interval, Table
from etl.report.verify import Proof
from tests.builders import changed, plain_plan

LOG = TopicPartition("clicks", 0)
FIRST, SECOND = AuditedPartition(LOG, 0), AuditedPartition(LOG, 1)
PLAN = plain_plan(
    loaded_until={LOG: 300},
    rows_before=RowsBefore("t", (HeldRows(LOG, 0, 10, 100, 90), HeldRows(LOG, 1, 0, 50, 50))),
)
TABLE = Table("t", 3, 1)


def test_rows_from_before_plan_one_are_those_of_its_offsets_without_later_loads() -> None:
    assert rows_before_of(PLAN, TABLE, {}) == {FIRST: [(10, 100)], SECOND: [(0, 50)]}
    backfilled = Expected(
        applied=((OffsetRange(LOG, 20, 30), RangeResult(10)),), loaded=(Interval(0, 12, 12),)
    )
    assert rows_before_of(PLAN, TABLE, {FIRST: backfilled})[FIRST] == [(12, 20), (30, 100)]
    whole = Expected(loaded=(Interval(0, 100, 100),))
    assert FIRST not in rows_before_of(PLAN, TABLE, {FIRST: whole})


def test_another_table_and_a_plan_without_such_rows_have_none() -> None:
    assert rows_before_of(PLAN, replace(TABLE, id="another"), {}) == {}
    assert (
        rows_before_of(changed(PLAN, rows_before=None), TABLE, {})
        == rows_before_of(None, TABLE, {})
        == {}
    )


def test_as_many_rows_as_there_were_or_fewer_are_right_and_more_are_not() -> None:
    assert more_than_before(PLAN, {FIRST: 90, SECOND: 3}) == ()
    since = more_than_before(PLAN, {FIRST: 92, SECOND: 50})
    assert since == ((FIRST, 2),)
    right, wrong = (
        Proof((), (), 3, (), rows_before=140),
        Proof((), (), 3, (), rows_before=142, more_than_before=since),
    )
    assert (
        right.is_right and right.found_rows == 140 and right.as_json()["rows_before_plan_1"] == 140
    )
    assert not wrong.is_right
    assert "topic clicks, partition 0: 2 rows of offsets from before plan 1" in wrong.first_finding
    assert "DESCRIBE HISTORY" in wrong.action
