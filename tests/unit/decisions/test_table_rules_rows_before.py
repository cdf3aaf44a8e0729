"""Where a partition begins of which the table has rows from before the first plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etl.decide.plan import plan_from, plan_next
from etl.decide.table_rules import inherited_rows, topics_accepted, topics_to_check
from etl.errors import NeedsDecision
from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import HeldRows, Plan, RowsBefore
from etl.model.snapshot import Acknowledgement, FirstRun, Ledger, Snapshot, Table
from tests.builders import changed, plain_plan, plain_settings, plain_snapshot

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
HELD = (HeldRows(FIRST, 0, 0, 100, 90), HeldRows(SECOND, 0, 40, 60, 20))
TABLE = Table("t", 7, None, held=HELD)


def accepted_rows(**changes: Any) -> Ledger:
    acknowledgement = Acknowledgement("t", 7, 0, "of another cluster", 1, rows_of=("clicks",))
    return Ledger(acknowledged=replace(acknowledgement, **changes))


def seen(**changes: Any) -> Snapshot:
    return plain_snapshot({FIRST: (0, 200), SECOND: (0, 200)}, **{"table": TABLE, **changes})


def planned(snapshot: Snapshot) -> Plan:
    plan = plan_next(snapshot, FirstRun(), plain_settings(), uid="u", now_ms=1)
    assert plan is not None
    return plan


def begins(plan: Plan) -> dict[TopicPartition, int]:
    return {r.partition: r.from_offset for r in plan.ranges}


def test_a_first_plan_over_rows_of_the_table_is_rejected_with_the_rows_and_the_actions() -> None:
    with pytest.raises(NeedsDecision) as refused:
        planned(seen())
    error = refused.value
    assert error.where == {
        "topic": "clicks",
        "partition": 0,
        "first_offset": 0,
        "last_offset": 99,
        "table_version": 7,
    }
    assert "holds 90 rows of clicks:0" in error.message
    assert "rows of 1 more partition" in error.message
    for way in ("table.path", "etl ledger restore CONF", "accept-changes CONF 7", "incarnation 1"):
        assert way in error.action


@pytest.mark.parametrize(("first", "second"), [(100, 60), (150, 200)])
def test_a_partition_starts_after_the_rows_if_the_groups_offset_is_there(
    first: int, second: int
) -> None:
    plan = planned(seen(committed={FIRST: Committed(first, 1), SECOND: Committed(second, 1)}))
    assert (plan.loaded_until, plan.incarnations) == ({FIRST: 200, SECOND: 200}, {})
    assert plan.table.rows_before == RowsBefore("t", HELD)


@pytest.mark.parametrize(("first", "second"), [(99, 60), (100, 59)])
def test_a_partition_does_not_start_before_the_rows(first: int, second: int) -> None:
    with pytest.raises(NeedsDecision):
        planned(seen(committed={FIRST: Committed(first, 1), SECOND: Committed(second, 1)}))


def test_only_rows_of_the_last_incarnation_count_and_later_rows_have_that_incarnation() -> None:
    held = (HeldRows(FIRST, 0, 0, 900, 900), HeldRows(FIRST, 2, 0, 50, 50))
    plan = planned(seen(table=replace(TABLE, held=held), committed={FIRST: Committed(50, 1)}))
    assert begins(plan)[FIRST] == 50 and plan.incarnations == {FIRST: 2}


def test_rows_accepted_as_other_records_keep_the_start_and_the_next_incarnation_begins() -> None:
    plan = planned(seen(ledger=accepted_rows()))
    assert begins(plan) == {FIRST: 0, SECOND: 0} and plan.incarnations == {FIRST: 1, SECOND: 1}
    assert plan.table.rows_before is not None and all(
        one.is_accepted for one in plan.table.rows_before.held
    )


@pytest.mark.parametrize(
    "value",
    [
        {"delta_version": 6},
        {"table_id": "another"},
        {"rows_of": ("views",)},
        {"rows_of": ()},
        {"commit": "x"},
    ],
)
def test_an_acceptance_of_another_version_table_or_topic_does_not_count(
    value: dict[str, Any],
) -> None:
    with pytest.raises(NeedsDecision):
        planned(seen(ledger=accepted_rows(**value)))


def test_a_partition_unreadable_at_first_is_judged_by_the_facts_in_the_last_plan() -> None:
    last = plain_plan(loaded_until={FIRST: 200}, table_id="t", pending_starts={SECOND: None})
    refused, accepted = (
        RowsBefore("t", tuple(replace(one, is_accepted=is_accepted) for one in HELD))
        for is_accepted in (False, True)
    )
    of_last = changed(last, rows_before=refused)
    later = seen(table=replace(TABLE, version=9, held=None), ledger=Ledger("u", of_last))

    def next_plan(before: RowsBefore, snapshot: Snapshot) -> Plan:
        newest = changed(last, rows_before=before)
        settings = plain_settings()
        return plan_from({FIRST: 200}, newest, snapshot, settings, number=2, uid="u", now_ms=1)

    with pytest.raises(NeedsDecision, match="holds 20 rows of clicks:1"):
        next_plan(refused, later)
    plan = next_plan(accepted, later)
    assert plan.incarnations == {SECOND: 1} and plan.table.rows_before == accepted
    assert next_plan(accepted, replace(later, table=Table("another", 9, None))).incarnations == {}
    assert topics_accepted(later) == ("clicks",)


def test_a_table_is_searched_before_plan_one_and_for_later_topics_if_it_had_rows() -> None:
    topics, last = ("clicks", "views"), plain_plan(loaded_until={FIRST: 1}, table_id="t")
    assert topics_to_check(topics, None, "t", has_commits=False) == {"clicks", "views"}
    assert topics_to_check(topics, None, "t", has_commits=True) == frozenset()
    assert topics_to_check(topics, last, "t", has_commits=True) == frozenset()
    kept = changed(last, rows_before=RowsBefore("t"))
    assert topics_to_check(topics, kept, "t", has_commits=True) == {"views"}
    assert topics_to_check(topics, kept, "another", has_commits=True) == frozenset()


def test_a_successor_keeps_what_its_predecessor_knew_of_rows_from_before_it() -> None:
    theirs = plain_plan(rows_before=RowsBefore("t", HELD[:1]))
    ours = plain_plan(rows_before=RowsBefore("t", HELD[1:]))
    of_another_table = changed(theirs, rows_before=RowsBefore("another", HELD))
    snapshot = seen(table=replace(TABLE, held=None))
    assert inherited_rows(None, theirs, snapshot) == RowsBefore("t", HELD[:1])
    assert inherited_rows(ours, theirs, snapshot) == RowsBefore("t", HELD)
    assert inherited_rows(ours, of_another_table, snapshot) == ours.table.rows_before
