"""The plan without ranges that supersedes a stored one of a sleeping driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.decide.plan_replacement import closing_plan_of, needs_closing, next_closing_plan
from etl.ledger.plan_document import parse_plan, render_plan, with_id
from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import Loss, LossReason, OffsetRange, Plan, PlanKind, Predecessor
from etl.model.snapshot import OtherPipeline
from tests.builders import changed, plain_plan

LOG = TopicPartition("clicks", 0)


def stored(**changes: object) -> Plan:
    """Plan 2, which reads offsets 100 to 200 of a log and is not in the table."""
    plan = changed(
        plain_plan(2),
        ranges=(OffsetRange(LOG, 100, 200),),
        loaded_until={LOG: 200},
        expected_commits={LOG: Committed(100, znode_version=3)},
        origin=replace(plain_plan(2).origin, previous="1" * 32),
        table=replace(plain_plan(2).table, id="table", transaction_version=1),
    )
    return with_id(changed(plan, **changes))


def test_a_closing_plan_reads_nothing_and_keeps_the_positions_before_the_stored_one() -> None:
    closing = with_id(closing_plan_of(stored(), "retired", now_ms=5))
    assert (closing.number, closing.kind, closing.ranges, closing.loaded_until) == (
        2,
        PlanKind.SET,
        (),
        {LOG: 100},
    )
    assert (
        closing.origin.supersedes == stored().id
        and closing.origin.previous == "1" * 32
        and closing.is_closing
    )
    assert closing.offsets_to_move == ()
    assert parse_plan(render_plan(closing), path="here") == closing


@pytest.mark.parametrize(
    ("loss", "is_kept"),
    [
        (Loss(LOG, 90, 100, LossReason.EXPIRED), True),
        (Loss(LOG, 150, 160, LossReason.SKIPPED), False),
    ],
)
def test_a_closing_plan_keeps_the_losses_that_no_later_plan_finds_again(
    loss: Loss, is_kept: bool
) -> None:
    closing = closing_plan_of(stored(lost=(loss,)), "retired", now_ms=5)
    assert (loss in closing.losses.lost) is is_kept


def test_a_stored_take_over_is_executed_as_it_is() -> None:
    plan = stored(kind=PlanKind.TAKE_OVER, ranges=(), inherits=Predecessor("a/b/c/d", 7))
    assert needs_closing(plan) and closing_plan_of(plan, "retired", now_ms=5) is plan


def test_a_plan_without_ranges_is_closed_only_if_it_superseded_one_a_driver_may_hold() -> None:
    assert needs_closing(stored())
    assert not needs_closing(stored(ranges=(), kind=PlanKind.SET))
    assert needs_closing(stored(ranges=(), kind=PlanKind.SET, supersedes="2" * 32))


def test_the_number_after_the_tables_newest_plan_is_closed() -> None:
    last = stored()
    closing = next_closing_plan(
        last, "taken over", table_id="table", table_version=9, number=2, now_ms=5
    )
    assert (
        closing.number,
        closing.origin.previous,
        closing.origin.supersedes,
        closing.loaded_until,
    ) == (
        3,
        last.id,
        None,
        {LOG: 200},
    )
    assert (closing.table.transaction_version, closing.table.version, closing.expected_commits) == (
        2,
        9,
        {LOG: last.committed_after(LOG)},
    )


def test_a_first_plan_that_was_closed_counts_for_no_topic() -> None:
    first = closing_plan_of(stored(number=1, previous=None), "retired", now_ms=5)
    assert OtherPipeline("a/b/c/d", 1, 1, first).topics == frozenset()
    assert OtherPipeline(
        "a/b/c/d", 2, 1, closing_plan_of(stored(), "retired", now_ms=5)
    ).topics == frozenset({"clicks"})
